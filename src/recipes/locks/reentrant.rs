//! The reentrant lock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use super::lock_node::LockNode;
use super::mutex::{DistributedLock, LockGuard};
use crate::contend::Limits;
use crate::error::Result;
use crate::rt::Deadline;
use crate::session::{Client, Wait};

/// A [`DistributedLock`] that its holding thread can lock again.
///
/// A thread that has locked it *n* times holds it until the *n* guards are dropped, in any order.
/// Locking again sends no request. But in the destructors of thread-local values the library may no
/// longer know what the thread holds: locking again there waits for the thread's own guards. Only a
/// value and its clones count as the same lock, not another value of the same path. It and a
/// `DistributedLock` of the same path exclude each other.
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
    /// Its address identifies the value and its clones.
    identity: Arc<()>,
}

thread_local! {
    /// What this thread holds, by the identities' addresses. The last guard removes its entry.
    static HELD: RefCell<HashMap<usize, Weak<Held>>> = RefCell::default();
}

/// The thread's hold, which its guards share.
struct Held {
    guard: LockGuard,
    _entry: Entry,
}

/// Removes its entry from the thread's table when dropped.
struct Entry(Arc<()>);

impl Drop for Entry {
    fn drop(&mut self) {
        // While the thread ends, its table may be gone already.
        let _ = HELD.try_with(|held| held.borrow_mut().remove(&address(&self.0)));
    }
}

fn address(identity: &Arc<()>) -> usize {
    Arc::as_ptr(identity).addr()
}

impl ReentrantLock {
    /// Returns the lock `name` under the path `base`: see [`DistributedLock::new`].
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> ReentrantLock {
        ReentrantLock::from(DistributedLock::new(zk, base, name))
    }

    /// Blocks until this thread holds the lock; returns at once if it holds it already.
    ///
    /// # Errors
    ///
    /// [`NodeDeleted`](crate::ErrorKind::NodeDeleted) or [`SessionLost`](crate::ErrorKind::SessionLost) if
    /// this thread's guards have lost the lock, until all of them are dropped. Otherwise as
    /// [`DistributedLock::lock`].
    pub fn lock(&self) -> Result<ReentrantGuard> {
        self.enter_or(DistributedLock::lock)
    }

    /// Acquires the lock, waiting at most `wait`, as [`DistributedLock::lock_within`] does.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled); otherwise as
    /// [`try_lock_for`](ReentrantLock::try_lock_for).
    pub fn lock_within(&self, wait: impl Into<Wait>) -> Result<Option<ReentrantGuard>> {
        self.try_enter_or(|lock| lock.lock_within(wait))
    }

    /// Acquires the lock if this thread holds it already, or no other contender is there; otherwise
    /// returns `None`, as [`DistributedLock::try_lock`] does.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) as there; otherwise as [`lock`](ReentrantLock::lock).
    pub fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        self.try_enter_or(DistributedLock::try_lock)
    }

    /// Acquires the lock, waiting at most `limit`, as [`DistributedLock::try_lock_for`] does.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) as there; otherwise as [`lock`](ReentrantLock::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<ReentrantGuard>> {
        self.lock_within(limit)
    }

    pub(crate) fn is_same(&self, other: &ReentrantLock) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }

    pub(crate) fn acquire(&self, limits: Limits<'_>) -> Result<Option<ReentrantGuard>> {
        self.try_enter_or(|lock| lock.acquire(limits))
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

    /// Returns another guard if this thread has one already.
    fn enter(&self) -> Result<Option<ReentrantGuard>> {
        // A thread that is ending may have no table any more, and then gets no second guard.
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

impl Deref for ReentrantLock {
    type Target = LockNode;

    fn deref(&self) -> &LockNode {
        &self.lock
    }
}

impl From<DistributedLock> for ReentrantLock {
    /// Makes a reentrant lock with the settings of `lock`.
    fn from(lock: DistributedLock) -> ReentrantLock {
        ReentrantLock { lock, identity: Arc::default() }
    }
}

impl fmt::Debug for ReentrantLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReentrantLock").field(&self.lock).finish()
    }
}

/// One of the guards by which a thread holds a [`ReentrantLock`]; dropping the last one releases
/// the lock.
///
/// It cannot leave its thread:
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
    /// Drops this guard; if it is the last one, releases the lock as [`LockGuard::unlock`] does.
    ///
    /// Only that may fail.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<()> {
        match Rc::try_unwrap(self.held) {
            Ok(Held { guard, _entry }) => guard.unlock(),
            Err(_others) => Ok(()),
        }
    }

    /// Drops this guard; if it is the last one, releases the lock as [`LockGuard::unlock_within`]
    /// does.
    ///
    /// Only that may fail.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock_within`].
    pub fn unlock_within(self, wait: impl Into<Wait>) -> Result<bool> {
        match Rc::try_unwrap(self.held) {
            Ok(Held { guard, _entry }) => guard.unlock_within(wait),
            Err(_others) => Ok(true),
        }
    }
}

impl ReentrantGuard {
    /// Releases as dropping does, but waits no longer than `until`.
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
