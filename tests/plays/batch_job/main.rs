//! Several worker processes, each with several threads, append to one file under one lock. One of
//! them is paused for longer than its session lasts, while it holds the lock, between a check of
//! its guard and a write. The file refuses that late write because of its fencing token. Later
//! another worker is killed while it holds the lock. At the end the file is checked.
//!
//! ```text
//! cargo run --release --example batch_job
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! two writers never wrote at the same time, 1 if they did, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod audit;
mod crew;
mod lead;
mod ledger;
mod options;
mod progress;
mod report;
mod story;
#[path = "../support/mod.rs"]
mod support;
mod words;
mod worker;

use std::env;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use options::{Options, USAGE};
use support::Result;

/// How long the lock of a dead process stays held, if the server grants this timeout.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an entry takes to write.
const WORK: Duration = Duration::from_millis(1);
const BASE: &str = "/zklock-demo";

fn main() -> ExitCode {
    env_logger::init();
    support::exit(run())
}

fn run() -> Result<bool> {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(options) => options,
        Err(reason) => return Err(format!("{reason}\n\n{USAGE}").into()),
    };
    if options.help {
        println!("{USAGE}");
        Ok(true)
    } else if let Some(number) = options.worker {
        worker::work(number, &options)
    } else if let Some(path) = &options.check {
        let found = audit::audit(&fs::read_to_string(path)?);
        println!("{} rounds in {} lines", found.rounds, found.lines);
        Ok(report::faults(&found))
    } else {
        lead::lead(options)
    }
}
