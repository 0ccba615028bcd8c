//! The read/write lock.

use std::time::Duration;

use super::lock_node::{LockNode, guard, naming_setting, patience_setting, settings};
use crate::acl::Acl;
use crate::contend::{ContenderKind, Form, Hold, NodeNaming};
use crate::error::Result;
use crate::fencing::FencingToken;
use crate::session::{Client, Wait};

/// A lock that many readers may hold at once, or one writer.
///
/// These are the shared locks of ZooKeeper's "Recipes and Solutions", made safe and fair. A
/// writer's release wakes only the readers behind it up to the next writer. Curator's
/// `InterProcessReadWriteLock` can share a path with it; another recipe must not.
///
/// The value is a description, with the guarantees of a
/// [`DistributedLock`](crate::DistributedLock). A thread waits for itself if it acquires a lock
/// that excludes one that it holds.
///
/// - First come, first served: readers that come after a waiting writer wait behind it, so that
///   neither readers nor writers starve.
/// - A writer can [become a reader](WriteGuard::downgrade). The reverse does not exist: two readers
///   that both wanted it would wait for each other for ever. Release the lock, and acquire it for
///   writing.
///
/// ```no_run
/// use zklock::{Client, DistributedRwLock};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let lock = DistributedRwLock::new(&zk, "/locks", "catalogue");
/// {
///     let _guard = lock.read()?; // with other readers, without writers
/// }
/// let guard = lock.write()?; // alone
/// println!("at work, with token {}", guard.fencing_token());
/// let guard = guard.downgrade()?; // no writer has come in between
/// # drop(guard);
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DistributedRwLock {
    lock_node: LockNode,
}

impl DistributedRwLock {
    /// Returns the lock `name` under the path `base`: see
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> DistributedRwLock {
        let place = (base.as_ref(), name.as_ref());
        DistributedRwLock {
            lock_node: LockNode::new(zk.into(), place, ContenderKind::Read, "lock"),
        }
    }

    /// Blocks until the lock is held for reading.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn read(&self) -> Result<ReadGuard> {
        self.lock_node.wait(self.reader()).map(ReadGuard::new)
    }

    /// Acquires the lock for reading, waiting at most `wait`, as
    /// [`DistributedLock::lock_within`](crate::DistributedLock::lock_within) does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn read_within(&self, wait: impl Into<Wait>) -> Result<Option<ReadGuard>> {
        Ok(self.lock_node.within(self.reader(), &wait.into())?.map(ReadGuard::new))
    }

    /// Acquires the lock for reading if no writer holds it or waits for it; otherwise returns
    /// `None`, as [`DistributedLock::try_lock`](crate::DistributedLock::try_lock) does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.lock_node.try_now(self.reader())?.map(ReadGuard::new))
    }

    /// Acquires the lock for reading, waiting at most `limit`, as
    /// [`DistributedLock::try_lock_for`](crate::DistributedLock::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_read_for(&self, limit: Duration) -> Result<Option<ReadGuard>> {
        self.read_within(limit)
    }

    /// Blocks until the lock is held for writing.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn write(&self) -> Result<WriteGuard> {
        self.lock_node.wait(self.writer()).map(|hold| self.written(hold))
    }

    /// Acquires the lock for writing, waiting at most `wait`, as
    /// [`DistributedLock::lock_within`](crate::DistributedLock::lock_within) does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_within(&self, wait: impl Into<Wait>) -> Result<Option<WriteGuard>> {
        Ok(self.lock_node.within(self.writer(), &wait.into())?.map(|hold| self.written(hold)))
    }

    /// Acquires the lock for writing if no other contender is there; otherwise returns `None`, as
    /// [`DistributedLock::try_lock`](crate::DistributedLock::try_lock) does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.lock_node.try_now(self.writer())?.map(|hold| self.written(hold)))
    }

    /// Acquires the lock for writing, waiting at most `limit`, as
    /// [`DistributedLock::try_lock_for`](crate::DistributedLock::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_write_for(&self, limit: Duration) -> Result<Option<WriteGuard>> {
        self.write_within(limit)
    }

    fn written(&self, hold: Hold) -> WriteGuard {
        WriteGuard { hold, lock_node: self.lock_node.clone() }
    }

    fn reader(&self) -> Form {
        self.lock_node.form(ContenderKind::Read)
    }

    fn writer(&self) -> Form {
        self.lock_node.form(ContenderKind::Write)
    }
}

settings!(DistributedRwLock);
naming_setting!(DistributedRwLock);
patience_setting!(DistributedRwLock);

/// Holds a [`DistributedRwLock`] for reading; dropping the guard releases the lock as with a
/// [`LockGuard`](crate::LockGuard).
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct ReadGuard {
    hold: Hold,
}

impl ReadGuard {
    fn new(hold: Hold) -> ReadGuard {
        ReadGuard { hold }
    }

    /// Returns the reader's token: greater than earlier writers' tokens, less than later ones'.
    ///
    /// Readers that hold at once have tokens in any order; a downgraded guard keeps its writer's.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }
}

guard!(ReadGuard, unlock, unlock_within, "Releases the lock");

/// Holds a [`DistributedRwLock`] for writing; dropping the guard releases the lock as with a
/// [`LockGuard`](crate::LockGuard).
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct WriteGuard {
    hold: Hold,
    lock_node: LockNode,
}

impl WriteGuard {
    /// Returns the number to send with each write, so that its receiver can refuse late writes of a
    /// former holder.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Turns the writer into a reader, and lets no other writer in between; other readers may
    /// acquire the lock then.
    ///
    /// The new guard keeps the place, ahead of waiting writers, and the writer's fencing token; it
    /// has a node of its own. Like [`unlock`](WriteGuard::unlock), the call waits for the server;
    /// while the connection is lost, until the session is resumed or lost.
    ///
    /// Callbacks registered with [`on_lost`](Hold::on_lost) and
    /// [`on_release_requested`](Hold::on_release_requested) end with the writer's guard; an earlier
    /// request to release the lock is not passed on.
    ///
    /// # Errors
    ///
    /// After an error **nothing is held any more**: [`NodeDeleted`](crate::ErrorKind::NodeDeleted),
    /// [`SessionLost`](crate::ErrorKind::SessionLost), [`Closed`](crate::ErrorKind::Closed) or
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed) if the lock was lost before or during the call,
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) if the lock node's ACL no longer allows
    /// creating or deleting, [`InvalidArgument`](crate::ErrorKind::InvalidArgument),
    /// [`Server`](crate::ErrorKind::Server).
    pub fn downgrade(self) -> Result<ReadGuard> {
        self.downgrade_within(Wait::FOREVER)
    }

    /// Turns the writer into a reader as [`downgrade`](WriteGuard::downgrade) does, waiting at most
    /// `wait` in total.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) or
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) at the end of `wait`,
    /// [`Cancelled`](crate::ErrorKind::Cancelled): nothing is held then. Otherwise as
    /// [`downgrade`](WriteGuard::downgrade).
    pub fn downgrade_within(self, wait: impl Into<Wait>) -> Result<ReadGuard> {
        let (form, data) = (self.lock_node.form(ContenderKind::Read), self.lock_node.data());
        let contender = (&*data, &*self.lock_node.node.acl);
        self.hold.downgrade(form, contender, &wait.into()).map(ReadGuard::new)
    }
}

guard!(WriteGuard, unlock, unlock_within, "Releases the lock");
