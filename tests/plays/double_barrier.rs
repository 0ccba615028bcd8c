//! Three workers that begin each step of a computation together, and end it together.
//!
//! ```text
//! cargo run --example double_barrier
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! the workers stayed together, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use support::{Checks, Result, find, say, unique};
use zklock::{Client, DoubleBarrier};

const WORKERS: u32 = 3;
const STEPS: u32 = 3;

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let name = unique("double-barrier");
    let mut checks = Checks::default();
    let zk = Client::connect(zookeeper.hosts())?;
    let barrier = DoubleBarrier::new(&zk, "/zklock-examples", &name, WORKERS);

    let alone = barrier.enter_within(Duration::from_millis(200))?;
    checks.that("enter_within(200 ms) by one of three gives None", alone.is_none());

    // How many workers have begun, and ended, a step.
    let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    let in_step = thread::scope(|scope| {
        let work = |number: u32| -> zklock::Result<bool> {
            let mut in_step = true;
            for step in 1..=STEPS {
                thread::sleep(Duration::from_millis(u64::from(number) * 50));
                begun.fetch_add(1, Ordering::SeqCst);
                let entered = barrier.enter()?;
                in_step &= begun.load(Ordering::SeqCst) == step * WORKERS;
                say(format!("worker {number} computes step {step}"));
                ended.fetch_add(1, Ordering::SeqCst);
                entered.leave()?;
                in_step &= ended.load(Ordering::SeqCst) == step * WORKERS;
                // No worker goes on before all have read the counters.
                barrier.enter()?.leave()?;
            }
            Ok(in_step)
        };
        let workers: Vec<_> =
            (1..=WORKERS).map(|number| scope.spawn(move || work(number))).collect();
        workers
            .into_iter()
            .map(|worker| Ok(worker.join().map_err(|_| "a worker panicked")??))
            .collect::<Result<Vec<bool>>>()
    })?;
    checks.that("all began and ended every step together", in_step.into_iter().all(|one| one));
    Ok(checks.all_passed)
}
