//! Several locks at once.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lock_node::LockNode;
use super::mutex::DistributedLock;
use super::reentrant::{ReentrantGuard, ReentrantLock};
use super::rwlock::DistributedRwLock;
use super::semaphore::DistributedSemaphore;
use crate::contend::{
    ContenderKind, DROP_LIMIT, Form, Hold, JointRelease, Limits, OthersSeen, insist, insist_within,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fencing::FencingToken;
use crate::rt::{self, Deadline};
use crate::session::{Wait, worth_asking};

/// Several locks, of which a call acquires all or none.
///
/// They are acquired in the order of their paths, so that two callers of the same locks never wait
/// for each other in a circle, as long as every caller that needs several of them acquires them in
/// one `MultiLock`: do not wait for a `MultiLock` while holding a lock that it contains.
///
/// - A lock that is added twice counts once. Permits of one semaphore add up. A read/write lock
///   that is added for both is acquired for writing.
/// - Locks of different kinds, or over different handles of a program's own, cannot share a path:
///   [`InvalidArgument`](ErrorKind::InvalidArgument). Other clients are of one ensemble if their
///   connect strings name the same hosts.
/// - The first lock that fails or cannot be acquired ends the call: what was acquired is released
///   in reverse order. One deadline, or one [`Cancel`](crate::Cancel), applies to all together.
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
    lock_node: LockNode,
    form: Form,
    /// Set if the lock is reentrant.
    reentrant: Option<ReentrantLock>,
}

/// A member that is held.
#[derive(Debug)]
enum MemberGuard {
    Hold(Hold, ContenderKind),
    Entered(ReentrantGuard),
}

impl MultiLock {
    /// Creates a `MultiLock` without any lock.
    pub fn new() -> MultiLock {
        MultiLock::default()
    }

    /// Adds a lock.
    pub fn with(self, lock: &DistributedLock) -> MultiLock {
        self.and(lock, lock.form(ContenderKind::Mutex), None)
    }

    /// Adds a reentrant lock; a thread that already holds it locks it once more.
    pub fn with_reentrant(self, lock: &ReentrantLock) -> MultiLock {
        self.and(lock, lock.form(ContenderKind::Mutex), Some(lock.clone()))
    }

    /// Adds a read/write lock, for reading.
    pub fn with_read(self, lock: &DistributedRwLock) -> MultiLock {
        self.and(lock, lock.form(ContenderKind::Read), None)
    }

    /// Adds a read/write lock, for writing.
    pub fn with_write(self, lock: &DistributedRwLock) -> MultiLock {
        self.and(lock, lock.form(ContenderKind::Write), None)
    }

    /// Adds `permits` permits of a semaphore.
    pub fn with_permits(self, semaphore: &DistributedSemaphore, permits: u32) -> MultiLock {
        let form = Form::of_permits(semaphore.naming, permits, semaphore.permits);
        self.and(semaphore, form, None)
    }

    fn and(
        mut self,
        lock_node: &LockNode,
        form: Form,
        reentrant: Option<ReentrantLock>,
    ) -> MultiLock {
        self.members.push(MemberLock { lock_node: lock_node.clone(), form, reentrant });
        self
    }

    /// Blocks until all locks are held.
    ///
    /// If a session is lost on the way, all are released and acquired anew.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`], [`DistributedSemaphore::acquire_many`] or
    /// [`ReentrantLock::lock`] of the lock that failed.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if locks of different kinds share a path, or
    /// there is no lock. After an error nothing is held.
    pub fn lock(&self) -> Result<MultiGuard> {
        insist(|| self.acquire(Limits::patient(&Wait::FOREVER)))
    }

    /// Acquires all locks, waiting at most `wait` in total, as [`DistributedLock::lock_within`]
    /// does.
    ///
    /// When the wait is cancelled, cleaning up takes up to a second more while the servers do not
    /// answer.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled); otherwise as [`try_lock_for`](MultiLock::try_lock_for).
    pub fn lock_within(&self, wait: impl Into<Wait>) -> Result<Option<MultiGuard>> {
        let wait = wait.into();
        insist_within(&wait, || self.acquire(Limits::patient(&wait)))
    }

    /// Acquires all locks if no other contender blocks any of them; otherwise returns `None` and
    /// leaves no node behind.
    ///
    /// It waits for the ensemble at most the shortest [connect
    /// timeout](crate::ClientBuilder::connect_timeout) of the locks' clients.
    ///
    /// # Errors
    ///
    /// [`Connect`](ErrorKind::Connect) if no server answered in this time; otherwise as
    /// [`lock`](MultiLock::lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        let patience = |member: &MemberLock| member.lock_node.client().core().connect_timeout();
        let patience = self.members.iter().map(patience).min().unwrap_or_default();
        self.acquire(Limits::impatient(&patience.into()))
    }

    /// Acquires all locks, waiting at most `limit` in total, as [`DistributedLock::try_lock_for`]
    /// does.
    ///
    /// # Errors
    ///
    /// [`Connect`](ErrorKind::Connect) at the end of `limit` if no server answered in this call;
    /// otherwise as [`lock`](MultiLock::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard>> {
        self.lock_within(limit)
    }

    fn acquire(&self, limits: Limits<'_>) -> Result<Option<MultiGuard>> {
        let members = self.in_order()?;
        let late = worth_asking(limits.wait.until());
        let (begin, others) = (rt::now(), OthersSeen::default());
        loop {
            let mut taken = Vec::with_capacity(members.len());
            for member in &members {
                // Each acquisition may exceed the deadline a little; this must not add up.
                let in_time = taken.is_empty() || !late.has_passed();
                let got = if in_time {
                    member.acquire(limits, &others, begin)
                } else {
                    member.out_of_time(&others, begin)
                };
                match got {
                    Ok(Some(part)) => taken.push(part),
                    Ok(None) => {
                        let_all_go(taken, late);
                        return Ok(None);
                    }
                    Err(error) => {
                        let_all_go(taken, late);
                        return Err(error);
                    }
                }
            }
            // A session may have been lost during the wait for later locks.
            if taken.iter().all(|part: &MemberGuard| part.hold().check().is_ok()) {
                return MultiGuard::new(taken).map(Some);
            }
            let_all_go(taken, late);
            if let (true, Some(member)) = (limits.wait.until().has_passed(), members.first()) {
                return member.out_of_time(&others, begin);
            }
        }
    }

    /// Merges the locks of one path, and sorts them in an order that is the same in every process.
    fn in_order(&self) -> Result<Vec<MemberLock>> {
        let mut keyed = Vec::new();
        for member in &self.members {
            let core = member.lock_node.client().core();
            keyed.push(((core.whole(member.lock_node.node()?), core.ensemble()), member.clone()));
        }
        keyed.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut members: Vec<(_, MemberLock)> = Vec::new();
        for (key, member) in keyed {
            member.lock_node.check(member.form)?;
            match members.last_mut().filter(|(latest, _)| *latest == key) {
                Some((_, last)) => {
                    last.form = last.merge(&member)?;
                    let limits = [&*last, &member].map(|one| one.lock_node.hold_at_most);
                    last.lock_node.hold_at_most = limits.into_iter().flatten().min();
                    // The more urgent of both.
                    let patience = [&*last, &member].map(|one| one.lock_node.patience);
                    last.lock_node.patience = patience.into_iter().flatten().min();
                    last.lock_node.asks_worse |= member.lock_node.asks_worse;
                    last.lock_node.check(last.form)?;
                }
                None => members.push((key, member)),
            }
        }
        Ok(members.into_iter().map(|(_, member)| member).collect())
    }
}

impl MemberLock {
    /// Returns the form that serves both locks, which have the same path.
    fn merge(&self, other: &MemberLock) -> Result<Form> {
        let (mine, theirs) = (self.form, other.form);
        let handle = |member: &MemberLock| member.lock_node.client().core().handle();
        if handle(self) != handle(other) {
            let message = "two handles use this path, perhaps on two ensembles; use one handle";
            return Err(Error::new(ErrorKind::InvalidArgument, message).on(self.lock_node.node()?));
        }
        let same_threads = match (&self.reentrant, &other.reentrant) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        let form = match (mine.kind, theirs.kind) {
            _ if mine.naming != theirs.naming || !same_threads => None,
            (ContenderKind::Mutex, ContenderKind::Mutex)
            | (ContenderKind::Read | ContenderKind::Write, ContenderKind::Read) => Some(mine),
            (ContenderKind::Read | ContenderKind::Write, ContenderKind::Write) => Some(theirs),
            (ContenderKind::Permits, ContenderKind::Permits) if mine.permits == theirs.permits => {
                // A sum that overflows exceeds every semaphore.
                let Some(weight) = mine.weight.checked_add(theirs.weight) else {
                    let message = format!("the permits add up to more than {}", mine.permits);
                    return Err(Error::new(ErrorKind::InvalidArgument, message)
                        .on(self.lock_node.node()?));
                };
                Some(Form { weight, ..mine })
            }
            _ => None,
        };
        let refused = || {
            let message = "locks of one path must agree in kind, naming and number of permits, and \
                           reentrant ones must be clones";
            Error::new(ErrorKind::InvalidArgument, message)
        };
        match form {
            Some(form) => Ok(form),
            None => Err(refused().on(self.lock_node.node()?)),
        }
    }

    fn acquire(
        &self,
        limits: Limits<'_>,
        others: &OthersSeen,
        begin: Instant,
    ) -> Result<Option<MemberGuard>> {
        match &self.reentrant {
            Some(lock) => Ok(lock.acquire(limits)?.map(MemberGuard::Entered)),
            None => {
                let hold = self.lock_node.acquire_after(self.form, limits, others, begin)?;
                Ok(hold.map(|hold| MemberGuard::Hold(hold, self.form.kind)))
            }
        }
    }

    /// Returns the result of a call whose time is over when it reaches this lock.
    fn out_of_time<T>(&self, others: &OthersSeen, begin: Instant) -> Result<Option<T>> {
        others.or_unanswered(None, begin, self.lock_node.client().core(), self.lock_node.node()?)
    }
}

impl MemberGuard {
    fn hold(&self) -> &Hold {
        match self {
            MemberGuard::Hold(hold, _) => hold,
            MemberGuard::Entered(guard) => guard,
        }
    }

    fn release_within(self, wait: &Wait) -> Result<bool> {
        match self {
            MemberGuard::Hold(hold, _) => hold.release_within(wait),
            MemberGuard::Entered(guard) => guard.unlock_within(wait),
        }
    }

    fn let_go(self, until: Deadline) {
        match self {
            MemberGuard::Hold(hold, _) => hold.let_go(until),
            MemberGuard::Entered(guard) => guard.let_go(until),
        }
    }
}

/// Holds all locks of a [`MultiLock`]; dropping the guard releases them in reverse order.
///
/// Dropping takes at most half a second for all of them; the background releases the rest.
///
/// It dereferences to a [`Hold`] on all of them: held as long as all are, lost with the first. Its
/// [transaction](Hold::transaction) takes effect only if all are still held, and needs clients that
/// are clones of one. Its [`lease_left`](Hold::lease_left) is the least;
/// [`ensure_held`](Hold::ensure_held) asks lock by lock.
///
/// The guard cannot leave its thread, as it may contain a [`ReentrantGuard`].
#[must_use = "if unused the locks are released immediately"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct MultiGuard {
    parts: Vec<MemberGuard>,
    /// Tells of all of them.
    hold: Hold,
    /// The thread may keep holding a reentrant lock, whose later loss must not be reported through
    /// this guard.
    released: Arc<JointRelease>,
}

impl MultiGuard {
    fn new(parts: Vec<MemberGuard>) -> Result<MultiGuard> {
        let released = Arc::default();
        match Hold::joint(parts.iter().map(MemberGuard::hold), &released) {
            Some(hold) => Ok(MultiGuard { parts, hold, released }),
            None => {
                let message = "no lock was added to this `MultiLock`";
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn seems_held(&self) -> bool {
        self.parts.iter().all(|part| part.hold().seems_held())
    }

    /// Returns the path of this guard's node in each lock, with the fencing token.
    ///
    /// In the order in which the locks were acquired, without permits, which have no token.
    pub fn fencing_tokens(&self) -> Vec<(&str, FencingToken)> {
        let token = |part| match part {
            &MemberGuard::Hold(_, ContenderKind::Permits) => None,
            MemberGuard::Hold(hold, _) => Some((hold.path(), hold.token())),
            MemberGuard::Entered(guard) => Some((guard.path(), guard.fencing_token())),
        };
        self.parts.iter().filter_map(token).collect()
    }

    /// Releases all locks in reverse order, waits until the servers have confirmed it, and returns
    /// an error if any of that fails.
    ///
    /// After a failure it still releases the others.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock): the first error, with those of the other
    /// locks in its [`others`](Error::others).
    pub fn unlock(self) -> Result<()> {
        self.unlock_within(Wait::FOREVER).map(drop)
    }

    /// Releases all locks as [`unlock`](MultiGuard::unlock) does, waiting at most `wait` in total.
    ///
    /// Returns false if an answer was missing then: the background goes on.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled): the background goes on. Otherwise as
    /// [`unlock`](MultiGuard::unlock).
    pub fn unlock_within(mut self, wait: impl Into<Wait>) -> Result<bool> {
        let wait = wait.into();
        let mut all = true;
        let mut failed = Vec::new();
        for part in self.part().into_iter().rev() {
            match part.release_within(&wait) {
                Ok(done) => all &= done,
                Err(error) => failed.push(error),
            }
        }
        Error::gather(failed).map_or(Ok(all), Err)
    }

    fn part(&mut self) -> Vec<MemberGuard> {
        // A loss before the release is still reported.
        let loss = self.parts.iter().find_map(|part| part.hold().held_node().loss());
        if self.parts.iter().any(|part| part.hold().client().core().is_elsewhere()) {
            // In a forked process, a thread that has locked it may not exist.
            self.released = Arc::default();
        }
        self.released.note(loss);
        std::mem::take(&mut self.parts)
    }
}

fn let_all_go(parts: Vec<MemberGuard>, until: Deadline) {
    let until = until.earlier(Deadline::after(DROP_LIMIT));
    parts.into_iter().rev().for_each(|part| part.let_go(until));
}

impl Deref for MultiGuard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        let_all_go(self.part(), Deadline::NEVER);
    }
}
