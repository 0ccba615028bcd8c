//! Several locks at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::lock_config::LockConfig;
use super::mutex::DistributedLock;
use super::reentrant::{ReentrantGuard, ReentrantLock};
use super::rwlock::DistributedRwLock;
use super::semaphore::DistributedSemaphore;
use crate::contend::acquire::{Limits, insist};
use crate::contend::fencing::FencingToken;
use crate::contend::hold::{DROP_LIMIT, Hold};
use crate::contend::loss_reason::LossReason;
use crate::contend::ticket::{Class, Form};
use crate::error::{Error, ErrorKind, Result};
use crate::rt::{AtomicBool, Deadline, Mutex};
use crate::session::cancel::Cancel;
use crate::session::watch_loop::worth_asking;

/// Several locks, taken all or none.
///
/// They are taken one after the other in the order of their nodes' paths, whatever the order in
/// which they were named, so that two who name the same locks never wait for each other in a
/// circle. That holds as long as whoever takes several of these locks takes them so, and in one
/// `MultiLock`: do not wait for one while holding a lock that it names.
///
/// Naming a lock twice is the same as naming it once; clients are taken to be of one ensemble if
/// their connect strings name the same hosts. Which ensemble a handle of the program's is connected
/// to is not known: locks of one path over different handles are refused, as
/// [`InvalidName`](ErrorKind::InvalidName). Of a read/write lock that is named for
/// reading and for writing, the writer's is taken; permits of one semaphore are added up. Locks of
/// different kinds cannot share a node: [`InvalidName`](ErrorKind::InvalidName).
///
/// The first that fails or cannot be had ends it: what was taken is released in reverse order, the
/// later ones are not tried. One deadline, or one [`Cancel`], is for all of them together. No lock
/// at all is always to be had.
///
/// ```no_run
/// use zklock::{Client, DistributedLock, DistributedRwLock, MultiLock};
///
/// let zk = Client::connect("localhost")?;
/// let from = DistributedLock::new(&zk, "/accounts", "17");
/// let to = DistributedLock::new(&zk, "/accounts", "4");
/// let rates = DistributedRwLock::new(&zk, "/", "rates");
/// let guard = MultiLock::new().with(&from).with(&to).with_read(&rates).lock()?;
/// guard.unlock()?;
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "it does nothing before it is locked"]
pub struct MultiLock {
    members: Vec<MemberLock>,
}

#[derive(Clone, Debug)]
struct MemberLock {
    config: LockConfig,
    form: Form,
    /// Where threads may enter again.
    reentrant: Option<ReentrantLock>,
}

/// A member that is held.
#[derive(Debug)]
enum MemberGuard {
    Hold(Hold, Class),
    Entered(ReentrantGuard),
}

impl MultiLock {
    /// No lock yet.
    pub fn new() -> MultiLock {
        MultiLock::default()
    }

    /// And this lock.
    pub fn with(self, lock: &DistributedLock) -> MultiLock {
        self.and(&lock.config, lock.form(), None)
    }

    /// And this lock, which a thread that holds it enters again.
    pub fn with_reentrant(self, lock: &ReentrantLock) -> MultiLock {
        let mutex = lock.as_mutex();
        self.and(&mutex.config, mutex.form(), Some(lock.clone()))
    }

    /// And this lock, for reading.
    pub fn with_read(self, lock: &DistributedRwLock) -> MultiLock {
        self.and(&lock.config, lock.config.form(Class::Read), None)
    }

    /// And this lock, for writing.
    pub fn with_write(self, lock: &DistributedRwLock) -> MultiLock {
        self.and(&lock.config, lock.config.form(Class::Write), None)
    }

    /// And so many permits of this semaphore.
    pub fn with_permits(self, semaphore: &DistributedSemaphore, permits: u32) -> MultiLock {
        let form = Form::of_permits(semaphore.config.naming, permits, semaphore.permits());
        self.and(&semaphore.config, form, None)
    }

    fn and(
        mut self,
        config: &LockConfig,
        form: Form,
        reentrant: Option<ReentrantLock>,
    ) -> MultiLock {
        self.members.push(MemberLock { config: config.clone(), form, reentrant });
        self
    }

    /// Blocks until all of them are held.
    ///
    /// If a session is lost on the way, and locks with it, all are released and taken anew.
    ///
    /// # Errors
    ///
    /// Those of the member that failed: see [`DistributedLock::lock`],
    /// [`DistributedSemaphore::acquire_many`], [`ReentrantLock::lock`];
    /// [`InvalidName`](ErrorKind::InvalidName) if locks of different kinds have one node. Nothing is
    /// held then.
    pub fn lock(&self) -> Result<MultiGuard> {
        self.wait(None)
    }

    /// As [`lock`](MultiLock::lock), until any thread trips `cancel`.
    ///
    /// Cleaning up takes up to a second more while the servers do not answer: half a second for the
    /// lock that was waited for, and half a second for those that were taken.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled); else as [`lock`](MultiLock::lock).
    pub fn lock_with(&self, cancel: &Cancel) -> Result<MultiGuard> {
        self.wait(Some(cancel))
    }

    /// Takes them if nobody is in the way of any; else `None`, and no node is left. It waits for
    /// the ensemble up to the shortest of the members' clients'
    /// [connect time-outs](crate::ClientBuilder::connect_timeout).
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        let patience = |member: &MemberLock| member.config.client.core().connect_timeout();
        let patience = self.members.iter().map(patience).min().unwrap_or_default();
        let deadline = Deadline::after(patience);
        self.acquire(Limits { deadline, patient: false, cancel: None })
    }

    /// Waits for all of them together for so long at the most: as
    /// [`DistributedLock::try_lock_for`].
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard>> {
        self.acquire(Limits { deadline: Deadline::after(limit), patient: true, cancel: None })
    }

    /// As [`try_lock_for`](MultiLock::try_lock_for), until an instant.
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock).
    pub fn try_lock_until(&self, end: Instant) -> Result<Option<MultiGuard>> {
        self.acquire(Limits { deadline: Deadline::at(end), patient: true, cancel: None })
    }

    fn wait(&self, cancel: Option<&Cancel>) -> Result<MultiGuard> {
        let limits = Limits { deadline: Deadline::NEVER, patient: true, cancel };
        insist(|| self.acquire(limits))
    }

    fn acquire(&self, limits: Limits<'_>) -> Result<Option<MultiGuard>> {
        let members = self.in_order()?;
        let late = worth_asking(limits.deadline);
        loop {
            let parts = Vec::with_capacity(members.len());
            let mut taken = MultiGuard { parts, released: Arc::default() };
            for member in &members {
                // What one may be late must not add up.
                let in_time = taken.parts.is_empty() || !late.has_passed();
                match if in_time { member.acquire(limits) } else { Ok(None) } {
                    Ok(Some(part)) => taken.parts.push(part),
                    Ok(None) => {
                        taken.let_go(late);
                        return Ok(None);
                    }
                    Err(error) => {
                        taken.let_go(late);
                        return Err(error);
                    }
                }
            }
            // A session may have been lost while later ones were waited for.
            if taken.parts.iter().all(|part| part.check().is_ok()) {
                return Ok(Some(taken));
            }
            taken.let_go(late);
            if limits.deadline.has_passed() {
                return Ok(None);
            }
        }
    }

    /// No two of one node; in an order that is the same in every process.
    fn in_order(&self) -> Result<Vec<MemberLock>> {
        let mut keyed = Vec::new();
        for member in &self.members {
            let core = member.config.client.core();
            keyed.push(((core.whole(member.config.node()?), core.ensemble()), member.clone()));
        }
        keyed.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut members: Vec<(_, MemberLock)> = Vec::new();
        for (key, member) in keyed {
            member.config.check(member.form)?;
            match members.last_mut().filter(|(latest, _)| *latest == key) {
                Some((_, last)) => {
                    last.form = last.merge(&member)?;
                    last.config.check(last.form)?;
                }
                None => members.push((key, member)),
            }
        }
        Ok(members.into_iter().map(|(_, member)| member).collect())
    }
}

impl MemberLock {
    /// What does for both, which have one node.
    fn merge(&self, other: &MemberLock) -> Result<Form> {
        let (mine, theirs) = (self.form, other.form);
        let handle = |member: &MemberLock| member.config.client.core().handle();
        if handle(self) != handle(other) {
            let message = "nobody knows whether two handles' locks of one path are one lock";
            return Err(Error::new(ErrorKind::InvalidName, message).on(self.config.node()?));
        }
        let same_threads = match (&self.reentrant, &other.reentrant) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        let form = match (mine.class, theirs.class) {
            _ if mine.naming != theirs.naming || !same_threads => None,
            (Class::Mutex, Class::Mutex) | (Class::Read | Class::Write, Class::Read) => Some(mine),
            (Class::Read | Class::Write, Class::Write) => Some(theirs),
            (Class::Permits, Class::Permits) if mine.permits == theirs.permits => {
                // No semaphore has more than that, so it is refused as too many.
                let Some(weight) = mine.weight.checked_add(theirs.weight) else {
                    let message = format!("so many permits cannot be had of {}", mine.permits);
                    return Err(Error::new(ErrorKind::InvalidData, message).on(self.config.node()?));
                };
                Some(Form { weight, ..mine })
            }
            _ => None,
        };
        let refused = || {
            let message = "locks that differ in kind, or in what they are told, have one node";
            Error::new(ErrorKind::InvalidName, message)
        };
        match form {
            Some(form) => Ok(form),
            None => Err(refused().on(self.config.node()?)),
        }
    }

    fn acquire(&self, limits: Limits<'_>) -> Result<Option<MemberGuard>> {
        match &self.reentrant {
            Some(lock) => Ok(lock.enter_within(limits)?.map(MemberGuard::Entered)),
            None => {
                let hold = self.config.acquire(self.form, limits)?;
                Ok(hold.map(|hold| MemberGuard::Hold(hold, self.form.class)))
            }
        }
    }
}

impl MemberGuard {
    fn check(&self) -> Result<()> {
        match self {
            MemberGuard::Hold(hold, _) => hold.check(),
            MemberGuard::Entered(guard) => guard.check(),
        }
    }

    fn ensure_held(&self) -> Result<()> {
        match self {
            MemberGuard::Hold(hold, _) => hold.ensure_held(),
            MemberGuard::Entered(guard) => guard.ensure_held(),
        }
    }

    fn release(self) -> Result<()> {
        match self {
            MemberGuard::Hold(hold, _) => hold.release(),
            MemberGuard::Entered(guard) => guard.unlock(),
        }
    }

    fn let_go(self, until: Deadline) {
        match self {
            MemberGuard::Hold(hold, _) => hold.let_go(until),
            MemberGuard::Entered(guard) => guard.let_go(until),
        }
    }
}

/// The locks of a [`MultiLock`], all held; dropped, it releases them in reverse order, within half
/// a second for all, and else in the background.
///
/// It cannot leave its thread, as there may be a [`ReentrantGuard`] in it.
#[must_use = "if unused the locks are released immediately"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct MultiGuard {
    parts: Vec<MemberGuard>,
    /// A thread may go on holding a re-entrant lock, of whose later loss nothing is told here.
    released: Arc<AtomicBool>,
}

impl MultiGuard {
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn seems_held(&self) -> bool {
        self.parts.iter().all(|part| match part {
            MemberGuard::Hold(hold, _) => hold.held_node().seems_held(),
            MemberGuard::Entered(guard) => guard.seems_held(),
        })
    }

    /// Whether all are held for all that is known here: see
    /// [`LockGuard::is_held`](crate::LockGuard::is_held).
    pub fn is_held(&self) -> bool {
        self.parts.iter().all(|part| part.check().is_ok())
    }

    /// Asks the ensemble, lock by lock: see
    /// [`LockGuard::ensure_held`](crate::LockGuard::ensure_held).
    ///
    /// # Errors
    ///
    /// That of the first that is not held, in the order in which they were taken.
    pub fn ensure_held(&self) -> Result<()> {
        self.parts.iter().try_for_each(MemberGuard::ensure_held)
    }

    /// Calls `callback`, once, when the first of the locks is lost: see
    /// [`LockGuard::on_lost`](crate::LockGuard::on_lost).
    pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        let callback = Arc::new(Mutex::new(Some(callback)));
        for part in &self.parts {
            let callback = Arc::clone(&callback);
            let once = move |why| {
                let callback = callback.lock().take();
                if let Some(callback) = callback {
                    callback(why);
                }
            };
            match part {
                MemberGuard::Hold(hold, _) => hold.on_lost(Box::new(once)),
                MemberGuard::Entered(guard) => {
                    let released = Arc::clone(&self.released);
                    guard.on_lost(move |why| {
                        if !released.load(Ordering::SeqCst) {
                            once(why);
                        }
                    });
                }
            }
        }
    }

    /// The contenders' nodes, as their clients name them, with their fencing tokens, in the order
    /// in which they were taken. Permits have none.
    pub fn fencing_tokens(&self) -> Vec<(&str, FencingToken)> {
        let token = |part| match part {
            &MemberGuard::Hold(_, Class::Permits) => None,
            MemberGuard::Hold(hold, _) => Some((hold.path(), hold.token())),
            MemberGuard::Entered(guard) => Some((guard.path(), guard.fencing_token())),
        };
        self.parts.iter().filter_map(token).collect()
    }

    /// Releases them in reverse order, waits until the servers have confirmed it, and tells of all
    /// that could not be. A failure does not keep the others from being released.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock): of the first that failed; the others'
    /// are its [`others`](Error::others).
    pub fn unlock(mut self) -> Result<()> {
        let parts = self.part();
        let failed = parts.into_iter().rev().filter_map(|part| part.release().err());
        Error::gather(failed).map_or(Ok(()), Err)
    }

    fn let_go(mut self, until: Deadline) {
        MultiGuard::let_all_go(self.part(), until);
    }

    fn part(&mut self) -> Vec<MemberGuard> {
        // A loss that comes before the release is told.
        let is_held = self.parts.iter().all(|part| part.check().is_ok());
        self.released.store(is_held, Ordering::SeqCst);
        std::mem::take(&mut self.parts)
    }

    fn let_all_go(parts: Vec<MemberGuard>, until: Deadline) {
        let until = until.earlier(Deadline::after(DROP_LIMIT));
        parts.into_iter().rev().for_each(|part| part.let_go(until));
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        MultiGuard::let_all_go(self.part(), Deadline::NEVER);
    }
}
