//! The server in memory: a thread, its sockets, and the engine that decides.

mod answers;
mod engine;
mod server;
#[cfg(test)]
mod tests;
mod wire;
mod words;

pub(crate) use engine::Settings;
pub(crate) use server::{Loop, MemoryServer};
#[cfg(feature = "local")]
pub(crate) use wire::{close_request, connect_request};
