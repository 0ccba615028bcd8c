//! A ZooKeeper for tests, in the test's own process.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod core;
