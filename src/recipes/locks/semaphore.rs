//! The semaphore.

use std::time::Duration;

use super::lock_node::{LockNode, guard, settings};
use crate::acl::Acl;
use crate::contend::{ContenderKind, Form, Hold};
use crate::error::Result;
use crate::session::{Client, Wait};

/// A fixed number of permits, of which each holder has one or more.
///
/// A contender is admitted once those before it leave enough permits, whichever holder releases. A
/// release wakes at most as many waiters as there are permits, and all waiters if there are 17
/// permits or more; each lists the contenders once. No semaphore of another library, and no other
/// recipe, can share the path.
///
/// The value is a description, with the guarantees of a
/// [`DistributedLock`](crate::DistributedLock).
///
/// - All clients must use the same number of permits. A contender whose number differs from that of
///   the first holder or waiting contender fails with [`Conflict`](crate::ErrorKind::Conflict), and
///   affects no other contender. To change the number, first wait until no contender is left.
/// - First come, first served: contenders that ask for few permits do not overtake one that asks
///   for many.
///
/// ```no_run
/// use zklock::{Client, DistributedSemaphore};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let downloads = DistributedSemaphore::new(&zk, "/semaphores", "downloads", 10);
/// {
///     let _permit = downloads.acquire()?; // one of ten in the whole fleet
/// }
/// let _permits = downloads.acquire_many(4)?; // all four, or none yet
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DistributedSemaphore {
    lock_node: LockNode,
    pub(crate) permits: u32,
}

impl DistributedSemaphore {
    /// Returns the semaphore `name` under the path `base`: see
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    ///
    /// If `permits` is 0, every acquisition fails.
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
        permits: u32,
    ) -> DistributedSemaphore {
        let place = (base.as_ref(), name.as_ref());
        let lock_node = LockNode::new(zk.into(), place, ContenderKind::Permits, "permit");
        DistributedSemaphore { lock_node, permits }
    }

    /// Blocks until a permit is held.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1)
    }

    /// Blocks until `permits` permits are held: all at once, and none before.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for no permits, or more than the
    /// semaphore has; [`Conflict`](crate::ErrorKind::Conflict) if other clients use another number
    /// of permits; otherwise as [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn acquire_many(&self, permits: u32) -> Result<Permit> {
        self.lock_node.wait(self.share(permits)).map(Permit::new)
    }

    /// Acquires a permit, waiting at most `wait`, as
    /// [`DistributedLock::lock_within`](crate::DistributedLock::lock_within) does.
    ///
    /// # Errors
    ///
    /// As [`acquire_many_within`](DistributedSemaphore::acquire_many_within).
    pub fn acquire_within(&self, wait: impl Into<Wait>) -> Result<Option<Permit>> {
        self.acquire_many_within(1, wait)
    }

    /// Acquires `permits` permits, waiting at most `wait`, as
    /// [`DistributedLock::lock_within`](crate::DistributedLock::lock_within) does.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) and [`Cancelled`](crate::ErrorKind::Cancelled) as
    /// there; otherwise as [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn acquire_many_within(
        &self,
        permits: u32,
        wait: impl Into<Wait>,
    ) -> Result<Option<Permit>> {
        let hold = self.lock_node.within(self.share(permits), &wait.into())?;
        Ok(hold.map(Permit::new))
    }

    /// Acquires a permit if one is free and no other contender waits; otherwise returns `None`, as
    /// [`DistributedLock::try_lock`](crate::DistributedLock::try_lock) does.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) as there; otherwise as
    /// [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.try_acquire_many(1)
    }

    /// Acquires `permits` permits if they are free and no other contender waits, as
    /// [`try_acquire`](DistributedSemaphore::try_acquire) does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permit>> {
        Ok(self.lock_node.try_now(self.share(permits))?.map(Permit::new))
    }

    /// Acquires a permit, waiting at most `limit`; otherwise returns `None`, as
    /// [`DistributedLock::try_lock_for`](crate::DistributedLock::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) as there; otherwise as
    /// [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn try_acquire_for(&self, limit: Duration) -> Result<Option<Permit>> {
        self.acquire_within(limit)
    }

    fn share(&self, permits: u32) -> Form {
        Form::of_permits(self.lock_node.naming, permits, self.permits)
    }
}

settings!(DistributedSemaphore);

/// Holds permits of a [`DistributedSemaphore`]; dropping it releases them as with a
/// [`LockGuard`](crate::LockGuard).
///
/// There is no fencing token: contenders that hold at once have no order.
#[must_use = "if unused the permits are released immediately"]
#[clippy::has_significant_drop]
pub struct Permit {
    hold: Hold,
}

impl Permit {
    fn new(hold: Hold) -> Permit {
        Permit { hold }
    }
}

guard!(Permit, release, release_within, "Releases the permits");
