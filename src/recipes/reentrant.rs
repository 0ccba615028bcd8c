//! The re-entrant lock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::mutex::{DistributedLock, LockGuard};
use crate::contend::acquire::Limits;
use crate::error::Result;
use crate::rt::Deadline;
use crate::session::cancel::Cancel;
use crate::session::client::Client;

/// A [`DistributedLock`] that the thread which holds it can take again.
///
/// A thread that has locked it *n* times holds it until the *n* guards are dropped, in any order.
/// Locking again asks nobody. In the destructors of thread-local values, though, it may be forgotten
/// what the thread holds: what is still held there is waited for. What counts as the same lock is the value and its clones, not
/// another value of the same path.
///
/// To others it is a mutex like any other: a `DistributedLock` of the same path excludes it.
///
/// ```no_run
/// use zklock::{Client, ReentrantLock};
///
/// let zk = Client::connect("localhost")?;
/// let lock = ReentrantLock::new(&zk, "/locks", "nightly");
/// let outer = lock.lock()?;
/// let inner = lock.lock()?; // the same thread: at once
/// drop(outer);
/// assert!(inner.is_held());
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone)]
pub struct ReentrantLock {
    lock: DistributedLock,
    /// Known by its address.
    identity: Arc<()>,
}

thread_local! {
    /// What this thread holds, by the identities' addresses. Entries go with their last guards.
    static HELD: RefCell<HashMap<usize, Weak<Held>>> = RefCell::default();
}

/// The thread's hold, which its guards share.
struct Held {
    guard: LockGuard,
    _entry: Entry,
}

/// In the thread's table.
struct Entry(Arc<()>);

impl Drop for Entry {
    fn drop(&mut self) {
        // At the thread's end the table may be gone already.
        let _ = HELD.try_with(|held| held.borrow_mut().remove(&address(&self.0)));
    }
}

fn address(identity: &Arc<()>) -> usize {
    Arc::as_ptr(identity).addr()
}

impl ReentrantLock {
    /// The lock `name` under the path `base`, with the default settings: as
    /// [`DistributedLock::new`].
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> ReentrantLock {
        ReentrantLock::from(DistributedLock::new(zk, base, name))
    }

    /// Blocks until this thread holds the lock; at once if it does already.
    ///
    /// # Errors
    ///
    /// If this thread's guards have lost the lock, that error, until all of them are dropped:
    /// [`LockLost`](crate::ErrorKind::LockLost) or [`SessionLost`](crate::ErrorKind::SessionLost). Else as
    /// [`DistributedLock::lock`].
    pub fn lock(&self) -> Result<ReentrantGuard> {
        self.enter_or(DistributedLock::lock)
    }

    /// As [`lock`](ReentrantLock::lock), until any thread trips `cancel`.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled); else as [`lock`](ReentrantLock::lock).
    pub fn lock_with(&self, cancel: &Cancel) -> Result<ReentrantGuard> {
        self.enter_or(|lock| lock.lock_with(cancel))
    }

    /// Takes the lock if this thread holds it, or nobody holds it or waits for it: as
    /// [`DistributedLock::try_lock`].
    ///
    /// # Errors
    ///
    /// As [`lock`](ReentrantLock::lock).
    pub fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        self.try_enter_or(DistributedLock::try_lock)
    }

    /// Waits for so long at the most: as [`DistributedLock::try_lock_for`].
    ///
    /// # Errors
    ///
    /// As [`lock`](ReentrantLock::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<ReentrantGuard>> {
        self.try_by(Deadline::after(limit))
    }

    /// As [`try_lock_for`](ReentrantLock::try_lock_for), until an instant.
    ///
    /// # Errors
    ///
    /// As [`lock`](ReentrantLock::lock).
    pub fn try_lock_until(&self, end: Instant) -> Result<Option<ReentrantGuard>> {
        self.try_by(Deadline::at(end))
    }

    /// The mutex behind it, to look at contention or to ask its holder to let go. Locking it in a
    /// thread that holds this lock would wait for itself.
    pub fn as_mutex(&self) -> &DistributedLock {
        &self.lock
    }

    pub(crate) fn is_same(&self, other: &ReentrantLock) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }

    pub(crate) fn enter_within(&self, limits: Limits<'_>) -> Result<Option<ReentrantGuard>> {
        self.try_enter_or(|lock| lock.acquire(limits))
    }

    fn try_by(&self, deadline: Deadline) -> Result<Option<ReentrantGuard>> {
        self.try_enter_or(|lock| lock.try_by(deadline))
    }

    fn try_enter_or(
        &self,
        acquire: impl FnOnce(&DistributedLock) -> Result<Option<LockGuard>>,
    ) -> Result<Option<ReentrantGuard>> {
        match self.enter()? {
            Some(guard) => Ok(Some(guard)),
            None => Ok(acquire(&self.lock)?.map(|guard| self.entered(guard))),
        }
    }

    fn enter_or(
        &self,
        acquire: impl FnOnce(&DistributedLock) -> Result<LockGuard>,
    ) -> Result<ReentrantGuard> {
        match self.enter()? {
            Some(guard) => Ok(guard),
            None => acquire(&self.lock).map(|guard| self.entered(guard)),
        }
    }

    /// Another guard, if this thread has one.
    fn enter(&self) -> Result<Option<ReentrantGuard>> {
        // A thread that is at its end may have no table any more, and no second guard then.
        let held = HELD.try_with(|held| held.borrow().get(&address(&self.identity))?.upgrade());
        match held.ok().flatten() {
            Some(held) => {
                held.guard.check()?;
                Ok(Some(ReentrantGuard { held }))
            }
            None => Ok(None),
        }
    }

    fn entered(&self, guard: LockGuard) -> ReentrantGuard {
        let held = Rc::new(Held { guard, _entry: Entry(Arc::clone(&self.identity)) });
        let key = address(&self.identity);
        let _ = HELD.try_with(|all| all.borrow_mut().insert(key, Rc::downgrade(&held)));
        ReentrantGuard { held }
    }
}

impl From<DistributedLock> for ReentrantLock {
    /// With the settings of that lock.
    fn from(lock: DistributedLock) -> ReentrantLock {
        ReentrantLock { lock, identity: Arc::default() }
    }
}

impl fmt::Debug for ReentrantLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReentrantLock").field(&self.lock).finish()
    }
}

/// One of the guards by which a thread holds a [`ReentrantLock`]; the last one dropped releases
/// it. It cannot leave its thread:
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// fn guard() -> zklock::ReentrantGuard { unimplemented!() }
/// send(guard());
/// ```
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct ReentrantGuard {
    held: Rc<Held>,
}

impl ReentrantGuard {
    /// Gives up this guard. The last one releases the lock, waits until the server has confirmed
    /// it, and tells if it could not be.
    ///
    /// # Errors
    ///
    /// Of the last guard, as [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<()> {
        match Rc::try_unwrap(self.held) {
            Ok(Held { guard, _entry }) => guard.unlock(),
            Err(_others) => Ok(()),
        }
    }
}

impl ReentrantGuard {
    /// As dropping does, but no longer than that.
    pub(crate) fn let_go(self, until: Deadline) {
        if let Ok(Held { guard, _entry }) = Rc::try_unwrap(self.held) {
            guard.into_hold().let_go(until);
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.held.guard
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReentrantGuard").field(&self.held.guard).finish()
    }
}
