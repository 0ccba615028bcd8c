//! The server in memory: a thread, its sockets, and the engine that decides.

mod engine;
mod server;
mod wire;
mod words;

pub(crate) use engine::Settings;
pub(crate) use server::{Loop, MemoryServer};
