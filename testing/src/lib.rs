//! A ZooKeeper for tests, in the test's own process.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod core;
mod error;
mod memory;
mod zookeeper;

pub use error::{Error, Result};
pub use zookeeper::{InMemoryBuilder, ZooKeeper};
