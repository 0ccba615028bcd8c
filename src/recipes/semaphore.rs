//! The semaphore.

use std::fmt;
use std::time::{Duration, Instant};

use super::guard_macro::guard;
use super::lock_config::{LockConfig, looking_on, settings};
use crate::acl::Acl;
use crate::contend::hold::Hold;
use crate::contend::list_contenders::Contender;
use crate::contend::loss_reason::LossReason;
use crate::contend::observer::Observer;
use crate::contend::ticket::{Form, NodeNaming};
use crate::contend::watchdog::Lost;
use crate::error::Result;
use crate::rt::Deadline;
use crate::session::cancel::Cancel;
use crate::session::client::Client;

/// A number of permits, of which each holder takes one or more.
///
/// One node for each acquisition, whose name says how many of how many permits it takes. Whoever
/// contends is admitted once those before it leave enough; until then it watches the shortest run
/// of nodes before it of which one must go first, so that whichever holder releases, the right
/// waiter wakes. A release wakes up to as many waiters as there are permits, and from 17 permits on
/// all of them; each lists the contenders once. No client in another language has this semaphore: Curator's and kazoo's have
/// layouts of their own, and do not share a path with it or with each other.
///
/// As with [`DistributedLock`](crate::DistributedLock), the value is a description, and the
/// guarantees are the same. The base path and name must not be those of any other recipe's lock.
///
/// # The number of permits
///
/// All must name the same. Whoever names another than the first of those who hold or wait gets the
/// error [`Disagreement`](crate::ErrorKind::Disagreement), and takes nothing from anybody. To change
/// the number, let all go first.
///
/// # Fairness
///
/// First come, first served: one that asks for many permits is not overtaken by others that ask
/// for few.
///
/// # Example
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
    pub(crate) config: LockConfig,
    permits: u32,
}

impl DistributedSemaphore {
    /// The semaphore `name` under the path `base`, with so many permits: as
    /// [`DistributedLock::new`](crate::DistributedLock::new). With no permits at all, every
    /// acquisition fails.
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
        permits: u32,
    ) -> DistributedSemaphore {
        DistributedSemaphore::builder(zk, base, name, permits).build()
    }

    /// As [`new`](DistributedSemaphore::new), with settings.
    pub fn builder(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
        permits: u32,
    ) -> DistributedSemaphoreBuilder {
        let config = LockConfig::new(zk.into(), base.as_ref(), name.as_ref());
        DistributedSemaphoreBuilder { lock: DistributedSemaphore { config, permits } }
    }

    /// How many permits it has in all.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Blocks until a permit is held.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1)
    }

    /// Blocks until so many permits are held: all at once, and none before.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](crate::ErrorKind::InvalidData) for no permits, or more than there are;
    /// [`Disagreement`](crate::ErrorKind::Disagreement) if others name another number of permits; else as
    /// [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn acquire_many(&self, permits: u32) -> Result<Permit> {
        self.config.wait(self.share(permits), None).map(|hold| Permit { hold, permits })
    }

    /// As [`acquire_many`](DistributedSemaphore::acquire_many), until any thread trips `cancel`.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled); else as
    /// [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn acquire_many_with(&self, permits: u32, cancel: &Cancel) -> Result<Permit> {
        self.config.wait(self.share(permits), Some(cancel)).map(|hold| Permit { hold, permits })
    }

    /// Takes a permit if there is one and nobody waits for it; else `None`, and no node is left:
    /// as [`DistributedLock::try_lock`](crate::DistributedLock::try_lock).
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.try_acquire_many(1)
    }

    /// As [`try_acquire`](DistributedSemaphore::try_acquire), for so many permits.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permit>> {
        Ok(self.config.try_now(self.share(permits))?.map(|hold| Permit { hold, permits }))
    }

    /// Waits for a permit for so long at the most; `None` when there was none to be had: as
    /// [`DistributedLock::try_lock_for`](crate::DistributedLock::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn try_acquire_for(&self, limit: Duration) -> Result<Option<Permit>> {
        self.try_acquire_by(1, Deadline::after(limit))
    }

    /// As [`try_acquire_for`](DistributedSemaphore::try_acquire_for), until an instant.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn try_acquire_until(&self, end: Instant) -> Result<Option<Permit>> {
        self.try_acquire_by(1, Deadline::at(end))
    }

    /// As [`try_acquire_for`](DistributedSemaphore::try_acquire_for), for so many permits.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn try_acquire_many_for(&self, permits: u32, limit: Duration) -> Result<Option<Permit>> {
        self.try_acquire_by(permits, Deadline::after(limit))
    }

    /// As [`try_acquire_many_for`](DistributedSemaphore::try_acquire_many_for), until an instant.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](DistributedSemaphore::acquire_many).
    pub fn try_acquire_many_until(&self, permits: u32, end: Instant) -> Result<Option<Permit>> {
        self.try_acquire_by(permits, Deadline::at(end))
    }

    pub(crate) fn try_acquire_by(&self, permits: u32, by: Deadline) -> Result<Option<Permit>> {
        let hold = self.config.try_until(self.share(permits), by)?;
        Ok(hold.map(|hold| Permit { hold, permits }))
    }

    fn share(&self, permits: u32) -> Form {
        Form::of_permits(self.config.naming, permits, self.permits)
    }

    fn holders(&self) -> Form {
        Form::of_permits(self.config.naming, 1, self.permits)
    }
}

looking_on!(
    DistributedSemaphore,
    DistributedSemaphore::holders,
    "As several may hold at once, the list of children is watched: whoever comes or goes costs \
     each observer a list, and a read for each holder."
);

/// Settings of a [`DistributedSemaphore`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct DistributedSemaphoreBuilder {
    lock: DistributedSemaphore,
}

settings!(DistributedSemaphoreBuilder, DistributedSemaphore);

/// Held permits of a [`DistributedSemaphore`]; dropped, they are released, as a
/// [`LockGuard`](crate::LockGuard) is.
///
/// There is no fencing token: those who hold at once cannot be put in an order.
#[must_use = "if unused the permits are released immediately"]
#[clippy::has_significant_drop]
pub struct Permit {
    hold: Hold,
    permits: u32,
}

impl Permit {
    /// How many permits it holds.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Releases the permits, waits until the server has confirmed it, and tells if it could not
    /// be.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn release(self) -> Result<()> {
        self.hold.release()
    }
}

guard!(Permit, permits);
