//! Tests against a real ZooKeeper. `sNN_` names the acceptance scenario that a test covers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    reason = "test code"
)]

mod support;

mod mutex; // scenarios 1–22 and what the lock costs
