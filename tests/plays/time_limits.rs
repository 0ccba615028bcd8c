//! Waiting with limits: trying, timeouts, and a wait that another thread cancels.
//!
//! ```text
//! cargo run --example time_limits
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! every call ended as it should, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use support::{Checks, Result, find, say, unique};
use zklock::{Cancel, Client, DistributedLock, ErrorKind};

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let zk = Client::connect(zookeeper.hosts())?;
    let name = unique("time-limits");
    let named = |who: &str| DistributedLock::new(&zk, "/zklock-examples", &name).data(who);
    let (holder, lock) = (named("the holder"), named("the waiter"));
    let mut checks = Checks::default();

    let free = lock.try_lock()?;
    checks.that("try_lock() on a free lock gives a guard", free.is_some());
    drop(free);

    let held = holder.lock()?;
    say("another holder has it from here on");
    checks.that("try_lock() gives None at once", lock.try_lock()?.is_none());

    let limit = Duration::from_millis(300);
    let began = Instant::now();
    checks.that("try_lock_for(300 ms) gives None", lock.try_lock_for(limit)?.is_none());
    let took = began.elapsed();
    checks.that(format!("after {took:.0?}"), took >= limit && took < limit * 2);

    // One deadline for several calls.
    let end = Instant::now() + limit;
    let (first, second) = (lock.lock_within(end)?, lock.lock_within(end)?);
    checks.that("lock_within(an instant), twice, gives None", first.or(second).is_none());
    let late = end.elapsed();
    checks.that(format!("the second returned {late:.0?} after that instant"), late < limit);

    let cancel = Cancel::new();
    thread::scope(|scope| -> Result<()> {
        let waiting = scope.spawn(|| lock.lock_within(&cancel));
        while lock.contenders()?.len() < 2 {
            thread::sleep(Duration::from_millis(10));
        }
        say("the holder of the lock, and the waiters (contenders()):");
        for (place, contender) in lock.contenders()?.iter().enumerate() {
            let (who, age) = (contender.label(), contender.age().unwrap_or_default());
            say(format!("  {}. {who}, for {age:.0?}, number {}", place + 1, contender.sequence));
        }
        cancel.cancel();
        let outcome = waiting.join().map_err(|_| "the waiting thread panicked")?;
        let cancelled = matches!(&outcome, Err(error) if error.kind() == ErrorKind::Cancelled);
        checks.that("lock_within(&cancel) ends with Cancelled when cancelled", cancelled);
        Ok(())
    })?;
    checks.that("the cancelled waiter is no longer a contender", lock.contenders()?.len() == 1);

    let soon = Duration::from_millis(200);
    let releases = thread::spawn(move || {
        thread::sleep(soon);
        held.unlock()
    });
    let guard = lock.try_lock_for(Duration::from_secs(10))?;
    checks.that("try_lock_for(10 s) gives a guard when the holder releases", guard.is_some());
    releases.join().map_err(|_| "the releasing thread panicked")??;
    Ok(checks.all_passed)
}
