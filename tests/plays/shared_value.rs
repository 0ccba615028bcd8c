//! A setting that all clients see and change one at a time, and a counter that loses no addition.
//!
//! ```text
//! cargo run --example shared_value
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! everything was as it should be, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use support::{Checks, Result, find, say, unique};
use zklock::{Client, SharedCounter, SharedValue};

const BASE: &str = "/zklock-examples";
const SOON: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let [ours, theirs] = [Client::connect(zookeeper.hosts())?, Client::connect(zookeeper.hosts())?];
    let (name, mut checks) = (unique("limit"), Checks::default());

    let limit = SharedValue::new(&ours, BASE, &name);
    let seen = SharedValue::new(&theirs, BASE, &name);
    let mut changes = seen.observe();
    checks.that("a value that was never set is none", changes.next_within(SOON)? == Some(None));
    limit.set("100")?;
    let told = changes.next_within(SOON)?.flatten().ok_or("the observer saw no value")?;
    say(format!("another client sees {told:?}"));
    checks.that("an observer sees the new value", told.data == b"100");

    // Of two clients that have read the same version, one succeeds.
    let new = limit.compare_and_set(told.version, "200")?;
    checks.that("compare_and_set with the version that was read succeeds", new.is_some());
    let outdated = seen.compare_and_set(told.version, "300")?;
    checks.that("a second one with that version does not", outdated.is_none());

    let count = SharedCounter::new(&ours, BASE, format!("{name}-count"));
    thread::scope(|scope| -> Result<()> {
        let add = || -> zklock::Result<()> { (0..50).try_for_each(|_| count.add(1).map(drop)) };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        for thread in threads {
            thread.join().map_err(|_| "a counting thread panicked")??;
        }
        Ok(())
    })?;
    let sum = count.get()?;
    checks.that(format!("four threads have added 50 each: {sum}"), sum == 200);
    Ok(checks.all_passed)
}
