//! A queue whose items have a priority: the lowest number comes first.
//!
//! ```text
//! cargo run --example priority_queue
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
use zklock::{Client, PriorityQueue};

const URGENT: u32 = 0;
const NORMAL: u32 = 5;
const SOME_DAY: u32 = 9;
const SOON: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let zk = Client::connect(zookeeper.hosts())?;
    let jobs = PriorityQueue::new(&zk, "/zklock-examples", unique("jobs"));
    let mut checks = Checks::default();

    jobs.offer(SOME_DAY, "tidy up")?;
    jobs.offer(NORMAL, "build the index")?;
    jobs.offer(NORMAL, "send the reports")?;
    let first = jobs.take()?;
    say(format!("the first job is to {}", String::from_utf8_lossy(&first)));
    checks.that("the lower number comes first", first == b"build the index");

    jobs.offer(URGENT, "stop the leak")?;
    checks.that("an urgent job overtakes the others", jobs.take()? == b"stop the leak");
    let next = jobs.try_take()?;
    checks.that("equal priorities keep their order", next.as_deref() == Some(b"send the reports"));
    let next = jobs.take_within(SOON)?;
    checks.that("the highest number comes last", next.as_deref() == Some(b"tidy up"));

    let waiting = {
        let jobs = jobs.clone();
        thread::spawn(move || jobs.take_within(SOON))
    };
    jobs.offer(NORMAL, "go home")?;
    let last = waiting.join().map_err(|_| "the waiting thread panicked")??;
    checks.that("a waiting consumer gets a new job", last.as_deref() == Some(b"go home"));
    checks.that("then nothing is left", jobs.len()? == 0);
    Ok(checks.all_passed)
}
