//! The read/write lock.

use std::fmt;
use std::time::{Duration, Instant};

use super::guard_macro::guard;
use super::lock_config::{LockConfig, looking_on, settings};
use crate::acl::Acl;
use crate::contend::fencing::FencingToken;
use crate::contend::hold::Hold;
use crate::contend::list_contenders::Contender;
use crate::contend::loss_reason::LossReason;
use crate::contend::observer::Observer;
use crate::contend::ticket::{Class, Form, NodeNaming};
use crate::contend::watchdog::Lost;
use crate::error::Result;
use crate::rt::Deadline;
use crate::session::cancel::Cancel;
use crate::session::client::Client;

/// A lock that many may hold for reading, or one for writing.
///
/// These are the shared locks of ZooKeeper's "Recipes and Solutions", made safe and fair: a reader
/// waits for the nearest writer before it, a writer for whoever is before it, each by a watch on
/// that one node. So a released writer wakes the readers behind it up to the next writer, and
/// nobody else. Node names are those of Curator's `InterProcessReadWriteLock`, with which it can
/// share a path.
///
/// As with [`DistributedLock`](crate::DistributedLock), the value is a description, the guarantees
/// are the same, and a thread that takes a lock that excludes one of its own waits for itself.
/// The base path and name of a read/write lock must not be those of any other recipe's lock.
///
/// # Fairness
///
/// First come, first served: readers that come after a waiting writer wait behind it, so that
/// neither readers nor writers starve.
///
/// # From one to the other
///
/// A writer can become a reader without letting any other writer in between:
/// [`WriteGuard::downgrade`]. The reverse does not exist: two readers who both wanted to become
/// the writer would wait for each other for ever. Release, and take the lock for writing.
///
/// # Example
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
    pub(crate) config: LockConfig,
}

impl DistributedRwLock {
    /// The lock `name` under the path `base`, with the default settings: as
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> DistributedRwLock {
        DistributedRwLock::builder(zk, base, name).build()
    }

    /// As [`new`](DistributedRwLock::new), with settings.
    pub fn builder(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> DistributedRwLockBuilder {
        let config = LockConfig::new(zk.into(), base.as_ref(), name.as_ref());
        DistributedRwLockBuilder { lock: DistributedRwLock { config } }
    }

    /// Blocks until the lock is held for reading.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn read(&self) -> Result<ReadGuard> {
        self.config.wait(self.reader(), None).map(ReadGuard::new)
    }

    /// As [`read`](DistributedRwLock::read), until any thread trips `cancel`.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock_with`](crate::DistributedLock::lock_with).
    pub fn read_with(&self, cancel: &Cancel) -> Result<ReadGuard> {
        self.config.wait(self.reader(), Some(cancel)).map(ReadGuard::new)
    }

    /// Takes the lock for reading if no writer holds it or waits for it; else `None`, and no node
    /// is left: as [`DistributedLock::try_lock`](crate::DistributedLock::try_lock).
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.config.try_now(self.reader())?.map(ReadGuard::new))
    }

    /// Waits for so long at the most; `None` when the lock was not to be had: as
    /// [`DistributedLock::try_lock_for`](crate::DistributedLock::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn try_read_for(&self, limit: Duration) -> Result<Option<ReadGuard>> {
        self.try_read_by(Deadline::after(limit))
    }

    /// As [`try_read_for`](DistributedRwLock::try_read_for), until an instant.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn try_read_until(&self, end: Instant) -> Result<Option<ReadGuard>> {
        self.try_read_by(Deadline::at(end))
    }

    /// Blocks until the lock is held for writing.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn write(&self) -> Result<WriteGuard> {
        self.config.wait(self.writer(), None).map(|hold| self.written(hold))
    }

    /// As [`write`](DistributedRwLock::write), until any thread trips `cancel`.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock_with`](crate::DistributedLock::lock_with).
    pub fn write_with(&self, cancel: &Cancel) -> Result<WriteGuard> {
        self.config.wait(self.writer(), Some(cancel)).map(|hold| self.written(hold))
    }

    /// Takes the lock for writing if nobody holds it or waits for it; else `None`, and no node is
    /// left: as [`DistributedLock::try_lock`](crate::DistributedLock::try_lock).
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.config.try_now(self.writer())?.map(|hold| self.written(hold)))
    }

    /// Waits for so long at the most; `None` when the lock was not to be had: as
    /// [`DistributedLock::try_lock_for`](crate::DistributedLock::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn try_write_for(&self, limit: Duration) -> Result<Option<WriteGuard>> {
        self.try_write_by(Deadline::after(limit))
    }

    /// As [`try_write_for`](DistributedRwLock::try_write_for), until an instant.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn try_write_until(&self, end: Instant) -> Result<Option<WriteGuard>> {
        self.try_write_by(Deadline::at(end))
    }

    pub(crate) fn try_read_by(&self, deadline: Deadline) -> Result<Option<ReadGuard>> {
        Ok(self.config.try_until(self.reader(), deadline)?.map(ReadGuard::new))
    }

    pub(crate) fn try_write_by(&self, deadline: Deadline) -> Result<Option<WriteGuard>> {
        Ok(self.config.try_until(self.writer(), deadline)?.map(|hold| self.written(hold)))
    }

    fn written(&self, hold: Hold) -> WriteGuard {
        WriteGuard { hold, config: self.config.clone() }
    }

    fn reader(&self) -> Form {
        self.config.form(Class::Read)
    }

    fn writer(&self) -> Form {
        self.config.form(Class::Write)
    }
}

looking_on!(
    DistributedRwLock,
    DistributedRwLock::reader,
    "As several may hold at once, the list of children is watched: whoever comes or goes costs \
     each observer a list, and a read for each holder."
);

/// Settings of a [`DistributedRwLock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct DistributedRwLockBuilder {
    lock: DistributedRwLock,
}

settings!(DistributedRwLockBuilder, DistributedRwLock);

/// A [`DistributedRwLock`] held for reading; dropped, it releases it, as a
/// [`LockGuard`](crate::LockGuard) does.
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct ReadGuard {
    hold: Hold,
}

impl ReadGuard {
    fn new(hold: Hold) -> ReadGuard {
        ReadGuard { hold }
    }

    /// To be compared with writers' tokens only: it is above those of all writers before, and
    /// below those of all writers behind. Readers who hold at once have tokens in any order; one
    /// that was downgraded keeps its writer's.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Releases the lock, waits until the server has confirmed it, and tells if it could not be.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn unlock(self) -> Result<()> {
        self.hold.release()
    }
}

guard!(ReadGuard, fencing_token);

/// A [`DistributedRwLock`] held for writing; dropped, it releases it, as a
/// [`LockGuard`](crate::LockGuard) does.
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct WriteGuard {
    hold: Hold,
    config: LockConfig,
}

impl WriteGuard {
    /// The number to send along with whatever the lock protects, so that its receiver can
    /// refuse what a former holder sends late.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Goes on as a reader: other readers may come in, and no writer has been in between.
    ///
    /// The guard that comes back keeps the place, ahead of writers that wait, and the writer's
    /// fencing token; it has a node of its own. As [`unlock`](WriteGuard::unlock) does, it waits
    /// for the server; while the connection is lost, until the session is resumed or lost.
    ///
    /// What was registered with [`on_lost`](WriteGuard::on_lost) and
    /// [`on_release_requested`](WriteGuard::on_release_requested) ends with the writer's guard; a
    /// request to let go that came before is not passed on.
    ///
    /// # Errors
    ///
    /// After an error **nothing is held any more**; it says why:
    /// [`LockLost`](crate::ErrorKind::LockLost), [`SessionLost`](crate::ErrorKind::SessionLost),
    /// [`Closed`](crate::ErrorKind::Closed) or [`AuthFailed`](crate::ErrorKind::AuthFailed) if the
    /// lock was lost before or on the way, [`NotAuthorized`](crate::ErrorKind::NotAuthorized) if
    /// the lock node's ACL does not allow to create or delete any more,
    /// [`InvalidData`](crate::ErrorKind::InvalidData), [`Server`](crate::ErrorKind::Server).
    pub fn downgrade(self) -> Result<ReadGuard> {
        let form = self.config.form(Class::Read);
        self.hold.downgrade(form, &self.config.data(), &self.config.acl).map(ReadGuard::new)
    }

    /// Releases the lock, waits until the server has confirmed it, and tells if it could not be.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn unlock(self) -> Result<()> {
        self.hold.release()
    }
}

guard!(WriteGuard, fencing_token);
