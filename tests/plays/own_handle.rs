//! Locks in the session of the program's own handle of the `zookeeper` crate.
//!
//! ```text
//! cargo run --example own_handle
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! each of two clients was kept out while the other held the lock, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use env_logger::Env;
use support::{Checks, Result, find, unique};
use zklock::zookeeper::{self, WatchedEvent};
use zklock::{Client, DistributedLock, SessionId};

const BASE: &str = "/zklock-examples";

fn main() -> ExitCode {
    // The crate logs an error when a closed handle is dropped.
    let settings = Env::default().default_filter_or("error,zookeeper=off");
    env_logger::init_from_env(settings);
    support::exit(story())
}

fn story() -> Result<bool> {
    let found = find()?;
    let timeout = Duration::from_secs(10);
    let handle = zookeeper::ZooKeeper::connect(found.hosts(), timeout, |_: WatchedEvent| ())?;
    let handle = Arc::new(handle);
    let name = unique("own-handle");
    let mut checks = Checks::default();

    // The program goes on using the handle for other requests.
    let zk = Client::from(&handle);
    let lock = DistributedLock::new(&zk, BASE, &name);
    let guard = lock.lock()?;
    let stat = handle.exists(guard.path(), false)?;
    let owner = stat.map(|stat| SessionId::from(stat.ephemeral_owner));
    checks.that(
        "the contender's node is of the handle's session",
        owner.is_some() && owner == zk.session_id(),
    );

    // A client with its own connection shares the lock. It has a lease, so its guards notice a loss
    // even without a connection; guards on a handle do not.
    let other = DistributedLock::new(&Client::connect(found.hosts())?, BASE, &name);
    checks.that("another client is kept out", other.try_lock()?.is_none());

    // Without a lease, a holder that must be sure asks the ensemble.
    guard.ensure_held()?;
    guard.unlock()?;
    let guard = other.lock()?;
    checks.that("and this one, while the other holds it", lock.try_lock()?.is_none());
    guard.unlock()?;

    // Without this, the handle is closed when its last owner is dropped, here or in `lock`.
    handle.close()?;
    Ok(checks.all_passed)
}
