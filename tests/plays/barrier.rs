//! A barrier at which workers wait during maintenance, and go on afterwards.
//!
//! ```text
//! cargo run --example barrier
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! the barrier held and let go as it should, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use support::{Checks, Result, find, say, unique};
use zklock::{Barrier, Client};

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let zk = Client::connect(zookeeper.hosts())?;
    let barrier = Barrier::new(&zk, "/zklock-examples", unique("barrier"));
    let mut checks = Checks::default();

    barrier.wait()?;
    checks.that("wait() returns at once while the barrier is not up", true);
    checks.that("raise() raises the barrier", barrier.raise()?);
    checks.that("a second raise() returns false", !barrier.raise()?);
    let soon = Duration::from_millis(200);
    checks.that("wait_within(200 ms) gives false", !barrier.wait_within(soon)?);

    let workers: Vec<_> = (1..=3)
        .map(|number| {
            let barrier = barrier.clone();
            thread::spawn(move || {
                let passed = barrier.wait_within(Duration::from_secs(30));
                say(format!("worker {number} goes on"));
                passed
            })
        })
        .collect();
    thread::sleep(soon);
    checks.that("three workers wait", workers.iter().all(|worker| !worker.is_finished()));
    say("the maintenance is over");
    checks.that("lift() lifts the barrier", barrier.lift()?);
    for worker in workers {
        let passed = worker.join().map_err(|_| "a worker panicked")??;
        checks.that("a worker has passed", passed);
    }
    Ok(checks.all_passed)
}
