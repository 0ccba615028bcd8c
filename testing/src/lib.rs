#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod builder;
#[doc(hidden)]
pub mod core;
#[cfg(feature = "docker")]
mod docker;
mod error;
#[cfg(feature = "local")]
mod local;
mod memory;
#[cfg(feature = "local")]
mod testcontainers_toml;
mod zookeeper;

pub use builder::ZooKeeperBuilder;
pub use error::{Error, ErrorKind, Result};
pub use zookeeper::ZooKeeper;
