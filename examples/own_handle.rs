//! Locks in the session of a handle of the `zookeeper` crate that the program has already.
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
use support::{Checks, Result, ZooKeeper, unique};
use zklock::zookeeper::{self, WatchedEvent};
use zklock::{Client, DistributedLock};

const BASE: &str = "/zklock-examples";

fn main() -> ExitCode {
    // To the crate it is an error that a handle is dropped which was closed.
    let settings = Env::default().default_filter_or("error,zookeeper=off");
    env_logger::init_from_env(settings);
    support::exit(story())
}

fn story() -> Result<bool> {
    let found = ZooKeeper::find()?;
    let timeout = Duration::from_secs(10);
    let handle = zookeeper::ZooKeeper::connect(found.hosts(), timeout, |_: WatchedEvent| ())?;
    let handle = Arc::new(handle);
    let name = unique("own-handle");
    let mut checks = Checks::default();

    // The handle stays the program's, and is asked for whatever else it is there for.
    let zk = Client::from(&handle);
    let lock = DistributedLock::new(&zk, BASE, &name);
    let guard = lock.lock()?;
    let stat = handle.exists(guard.path(), false)?;
    let owner = stat.map(|stat| stat.ephemeral_owner);
    checks.that(
        "the contender's node is of the handle's session",
        owner.is_some() && owner == zk.session_id(),
    );

    // A client with a connection of its own shares the lock. That one has a lease: its guards know
    // of a loss while there is no connection, which the handle's do not.
    let other = DistributedLock::new(&Client::connect(found.hosts())?, BASE, &name);
    checks.that("another client is kept out", other.try_lock()?.is_none());

    // Without a lease, whoever has to know asks the ensemble.
    guard.ensure_held()?;
    guard.unlock()?;
    let guard = other.lock()?;
    checks.that("and this one, when the other has it", lock.try_lock()?.is_none());
    guard.unlock()?;

    // Or else it is closed when its last owner is gone, here or in `lock`.
    handle.close()?;
    Ok(checks.all_passed)
}
