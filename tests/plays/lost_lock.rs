//! Work that stops when its lock is lost, and three ways to notice that: checks between steps, a
//! callback, and a thread that waits.
//!
//! ```text
//! cargo run --example lost_lock
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. It pauses only its own
//! server. The exit code is 0 if the work stopped each time, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use support::{Result, find, say, unique};
use zklock::{Client, DistributedLock, LockGuard, LossReason};
use zklock_examples::Ensemble;

const SESSION_TIMEOUT: Duration = Duration::from_secs(2);
const BASE: &str = "/zklock-examples";
const STEP: Duration = Duration::from_millis(20);
/// Work that goes on for this long was not stopped.
const FAR_TOO_LONG: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let zk = Client::builder(zookeeper.hosts()).session_timeout(SESSION_TIMEOUT).connect()?;
    zk.on_state_change(|state| say(format!("         the session is {state}"))).detach();
    let name = unique("lost-lock");
    let lock = DistributedLock::new(&zk, BASE, &name);

    say("1. Another client deletes the holder's node");
    let deleted = work(&lock, |guard| {
        // As an operator might do.
        let operator = Client::connect(zookeeper.hosts())?;
        let same = DistributedLock::new(&operator, BASE, &name);
        let holder = same.contenders()?.into_iter().find(|one| one.path == guard.path());
        same.break_lock(&holder.ok_or("the lock has no holder")?)?;
        say("         the node is deleted");
        Ok(())
    })?;
    let mut fine = deleted == Some(LossReason::NodeDeleted);

    if let Ensemble::InMemory(server) = &zookeeper {
        println!();
        say("2. The server goes silent, for longer than a session lasts without it");
        let silent = work(&lock, |_| {
            server.pause()?;
            say("         the server is silent; its connections stay open");
            Ok(())
        })?;
        fine &= silent == Some(LossReason::LeaseExpired);

        println!();
        say("3. The server answers again, and the same lock value works, on a new session");
        server.resume()?;
    } else {
        println!();
        say("2. is left out: it would pause the server that ZKLOCK_HOSTS names");
    }
    let guard = lock.lock()?;
    say(format!("         locked again, with the token {}", guard.fencing_token()));
    guard.unlock()?;
    Ok(fine)
}

/// Works step by step under the lock until it is lost, and returns why; `None` if the loss did not
/// stop the work.
fn work(
    lock: &DistributedLock,
    provoke: impl FnOnce(&LockGuard) -> Result<()> + Send,
) -> Result<Option<LossReason>> {
    let guard = lock.lock()?;
    say(format!("         locked, with the token {}", guard.fencing_token()));

    // The callback: for work that has to be told to stop, such as a job on another machine.
    guard.on_lost(|why| say(format!("on_lost  tells: {why}")));

    // The wait, on any thread: it also ends, with `Released`, when the guard is dropped.
    let lost = guard.lost();
    let waiter = thread::spawn(move || {
        if let Err(why) = lost.wait() {
            say(format!("lost()   tells: {why}"));
        }
    });

    // The check between steps: it sends no request, it only compares times.
    let (started, mut steps) = (Instant::now(), 0);
    thread::scope(|scope| {
        let provoked = scope.spawn(|| {
            thread::sleep(STEP * 10);
            // An error is returned, so that it does not look like success.
            provoke(&guard).map_err(|error| error.to_string())
        });
        while guard.is_held() && started.elapsed() < FAR_TOO_LONG {
            thread::sleep(STEP);
            steps += 1;
        }
        provoked.join().map_err(|_| "the thread that provokes the loss panicked")?
    })?;
    say(format!("is_held  is {}: the work stops after {steps} steps", guard.is_held()));

    let stopped = !guard.is_held();
    // Before a step that cannot be undone, ask the ensemble itself.
    if let Err(error) = guard.ensure_held() {
        say(format!("         ensure_held: {error}"));
    }
    let end = guard.lost().wait_within(Duration::from_secs(5));
    drop(guard);
    waiter.join().map_err(|_| "the waiting thread panicked")?;
    Ok(match end {
        Some(Err(why)) if stopped => Some(why),
        _ => None,
    })
}
