//! The other locks: read/write lock, semaphore, reentrant lock, several locks at once, and a holder
//! that is asked to release.
//!
//! ```text
//! cargo run --example family
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! everything was as it should be, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use support::{Checks, Result, find, unique};
use zklock::{
    Client, DistributedLock, DistributedRwLock, DistributedSemaphore, ErrorKind, MultiLock,
    ReentrantLock,
};

const BASE: &str = "/zklock-examples";
const SOON: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let zk = Client::connect(zookeeper.hosts())?;
    let mut checks = Checks::default();
    readers_and_writers(&zk, &mut checks)?;
    permits(&zk, &mut checks)?;
    again_and_several(&zk, &mut checks)?;
    asked_to_let_go(&zk, &mut checks)?;
    Ok(checks.all_passed)
}

fn readers_and_writers(zk: &Client, checks: &mut Checks) -> Result<()> {
    let catalogue = DistributedRwLock::new(zk, BASE, unique("catalogue"));
    let (one, other) = (catalogue.read()?, catalogue.try_read()?);
    checks.that("two readers hold at once", other.is_some());
    checks.that("and a writer has to wait", catalogue.try_write()?.is_none());
    drop((one, other));

    let writer = catalogue.write()?;
    let token = writer.fencing_token();
    checks.that("a writer is alone", catalogue.try_read()?.is_none());
    let reader = writer.downgrade()?;
    checks.that("as a reader it keeps its token", reader.fencing_token() == token);
    checks.that("and lets other readers in", catalogue.try_read()?.is_some());
    Ok(())
}

fn permits(zk: &Client, checks: &mut Checks) -> Result<()> {
    let name = unique("downloads");
    let downloads = DistributedSemaphore::new(zk, BASE, &name, 3);
    let permits = downloads.acquire_many(2)?;
    checks.that("after two of three permits, a third is free", downloads.try_acquire()?.is_some());
    checks.that("but not two more", downloads.try_acquire_many(2)?.is_none());
    let mistaken = DistributedSemaphore::new(zk, BASE, &name, 4).acquire();
    let told = mistaken.is_err_and(|error| error.kind() == ErrorKind::Conflict);
    checks.that("a client that expects four permits gets an error", told);
    permits.release()?;
    Ok(())
}

fn again_and_several(zk: &Client, checks: &mut Checks) -> Result<()> {
    let (name, settled) = (unique("ledger"), DistributedLock::new(zk, BASE, unique("settled")));
    let ledger = ReentrantLock::new(zk, BASE, &name);
    let outer = ledger.lock()?;
    let inner = ledger.lock()?;
    checks.that("a thread locks its reentrant lock twice", inner.is_held());
    drop(outer);
    checks.that("and holds it until both guards are gone", inner.is_held());
    drop(inner);

    let both = MultiLock::new().with(&settled).with_reentrant(&ledger);
    let guard = both.lock()?;
    checks.that("two locks are held at once", settled.try_lock()?.is_none());
    guard.unlock()?;
    checks.that("and released together", settled.try_lock()?.is_some());
    Ok(())
}

fn asked_to_let_go(zk: &Client, checks: &mut Checks) -> Result<()> {
    let lock = DistributedLock::new(zk, BASE, unique("printer"));
    let guard = lock.lock()?;
    let (tell, told) = mpsc::channel();
    guard.on_release_requested(move || {
        // A real holder would finish the present page, and release the lock.
        let _ = tell.send(());
    });
    checks.that("one holder is asked to release", lock.request_release()? == 1);
    checks.that("and learns of it", told.recv_timeout(SOON).is_ok() && guard.release_requested());
    guard.unlock()?;
    Ok(())
}
