//! Runs `zklock run` and `zklock lead` as a user does: real processes, a real server, real signals.
//!
//! The judge of whether two commands work at once is the kernel: each command takes a file lock (flock), which all
//! that it starts inherits, and exits with 99 if another one has it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod asked;
mod faults;
mod forward;
mod many;
mod patience;
mod plain;
mod signals;
mod stay;
mod steps;
mod support;
mod terminal;
