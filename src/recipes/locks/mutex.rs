//! The mutex, `DistributedLock`.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::lock_node::{LockNode, guard, naming_setting, patience_setting, settings};
use crate::acl::Acl;
use crate::contend::{
    ContenderKind, HandOver, Hold, Key, Limits, NodeNaming, Policy, Sharer, insist, insist_within,
    report_end,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fencing::FencingToken;
use crate::recipes::data::NodeConfig;
use crate::session::{Client, Wait};

/// A lock with one holder at a time among all programs that use the same lock path.
///
/// Each contender creates an ephemeral sequential node below the lock path `base/name`. The lowest
/// number holds the lock; a release wakes one waiter. This is the lock of ZooKeeper's "Recipes and
/// Solutions", with the node names of Curator's `InterProcessMutex`, which can share a path with
/// it.
///
/// The value is a description: cheap to make, to clone and to share between threads, and not tied
/// to a session. After a session is lost, the same value works again on a new one. Settings are
/// methods that take the value and return it; its clones, and guards that it has returned, keep
/// theirs.
///
/// # Guarantees
///
/// Those [of the crate](crate#guarantees). A process that is paused at the wrong moment does not
/// learn of a loss in time: only the receiver of its late writes can refuse them, by the
/// [`fencing_token`](LockGuard::fencing_token).
///
/// # Fairness
///
/// First come, first served. Threads of one process that use equal locks of one client share a
/// place in that order, within limits: see [`HandOver`], which can also turn this off.
///
/// # Reentrancy
///
/// None. A thread that holds the lock and locks it again waits for itself: for ever with
/// [`lock`](DistributedLock::lock), in vain with the other calls. A
/// [`ReentrantLock`](crate::ReentrantLock) can be locked again.
///
/// ```no_run
/// use zklock::{Client, DistributedLock};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let lock = DistributedLock::new(&zk, "/locks", "nightly");
/// {
///     let guard = lock.lock()?;
///     println!("it is our turn, with token {}", guard.fencing_token());
/// } // released here
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone)]
pub struct DistributedLock {
    lock_node: LockNode,
    policy: Policy,
    /// Set by the first use, unless the policy shares nothing.
    sharer: OnceLock<Arc<Sharer>>,
}

impl fmt::Debug for DistributedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedLock")
            .field("lock_node", &self.lock_node)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl DistributedLock {
    /// Returns the lock `name` under the path `base`, with the default settings.
    ///
    /// Never fails: if ZooKeeper does not allow the name, the first call that needs it fails with
    /// [`InvalidName`](crate::ErrorKind::InvalidName). `base` is an absolute path, `name` one
    /// component of a path; together at most 1,024 bytes. The first acquisition creates the missing
    /// parts of the path.
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> DistributedLock {
        let place = (base.as_ref(), name.as_ref());
        let lock_node = LockNode::new(zk.into(), place, ContenderKind::Mutex, "lock");
        let policy = Policy { hand_over: HandOver::default(), keep: None };
        DistributedLock { lock_node, policy, sharer: OnceLock::new() }
    }

    /// Blocks until the lock is held.
    ///
    /// It goes on through lost connections, lost sessions and outages; in a new session it queues
    /// anew.
    ///
    /// Bind the guard to a name: `let _ = lock.lock()?;` unlocks at once.
    ///
    /// # Errors
    ///
    /// Those that [end every wait](crate::guide#what-ends-every-wait):
    /// [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized),
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed),
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an ACL that the server does not
    /// accept, or data that ask a holder to release, [`TooLarge`](crate::ErrorKind::TooLarge),
    /// [`QuotaExceeded`](crate::ErrorKind::QuotaExceeded), [`Unsupported`](crate::ErrorKind::Unsupported),
    /// [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted),
    /// [`Closed`](crate::ErrorKind::Closed), [`System`](crate::ErrorKind::System),
    /// [`Server`](crate::ErrorKind::Server). No error leaves a node behind.
    pub fn lock(&self) -> Result<LockGuard> {
        insist(|| self.acquire(Limits::patient(&Wait::FOREVER)))
    }

    /// Acquires the lock, waiting at most `wait`: for a time, until an instant, or until cancelled.
    ///
    /// `None` when the time is over, as with [`try_lock_for`](DistributedLock::try_lock_for); never
    /// without a time.
    ///
    /// When the wait is cancelled, cleaning up takes up to half a second more while the server does
    /// not answer; the background does the rest.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled) if the wait is cancelled, at once if the token
    /// was tripped before; otherwise as [`try_lock_for`](DistributedLock::try_lock_for).
    pub fn lock_within(&self, wait: impl Into<Wait>) -> Result<Option<LockGuard>> {
        let wait = wait.into();
        insist_within(&wait, || self.acquire(Limits::patient(&wait)))
    }

    /// Acquires the lock if no other contender is there; otherwise returns `None` and leaves no
    /// node behind.
    ///
    /// `None` means that others have it: a server said so in this call, or another thread of this
    /// process holds the lock. The call waits only for the ensemble, at most the [connect
    /// timeout](crate::ClientBuilder::connect_timeout).
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) if no server answered within the connect timeout;
    /// otherwise as [`lock`](DistributedLock::lock).
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        let wait = self.lock_node.client().core().connect_timeout().into();
        self.acquire(Limits::impatient(&wait))
    }

    /// Acquires the lock, waiting at most `limit`; otherwise returns `None` and leaves no node
    /// behind.
    ///
    /// `None` means the same as for [`try_lock`](DistributedLock::try_lock), even if the server
    /// that said so cannot be reached any more.
    ///
    /// The limit includes connecting and cleaning up, whatever the network does; only a request
    /// that is under way may take up to 50 ms more. [`Duration::ZERO`] works like `try_lock`, but
    /// hardly waits for the ensemble; a duration too long for the clock is no limit.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) at the end of `limit` if no server answered in this
    /// call; otherwise as [`lock`](DistributedLock::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<LockGuard>> {
        self.lock_within(limit)
    }

    pub(crate) fn acquire(&self, limits: Limits<'_>) -> Result<Option<LockGuard>> {
        self.lock_node.client().core().check_process()?;
        self.check_patience()?;
        let hold = match self.sharer()? {
            None => self.lock_node.acquire(self.form(ContenderKind::Mutex), limits)?,
            Some(sharer) => {
                let node = &sharer.key().node;
                let contention =
                    || self.lock_node.contention(node, self.form(ContenderKind::Mutex));
                let begin = self.lock_node.client().core().time_for_report();
                let got = sharer.acquire(self.client(), limits, contention);
                report_end(self.client(), (node, self.noun), limits, begin, got)?
            }
        };
        Ok(hold.map(LockGuard::new))
    }

    fn check_patience(&self) -> Result<()> {
        if self.lock_node.patience.is_none() || self.policy.keep.is_none() {
            return Ok(());
        }
        let message =
            "a lock with patience cannot be kept: without patience() or without keep_for()";
        Err(Error::new(ErrorKind::InvalidArgument, message).on(self.lock_node.node()?))
    }

    /// What this lock shares with equal locks of its client; `None` if the policy shares nothing.
    fn sharer(&self) -> Result<Option<&Arc<Sharer>>> {
        if let Some(sharer) = self.sharer.get() {
            return Ok(Some(sharer));
        }
        if !self.policy.shares() || self.lock_node.patience.is_some() {
            return Ok(None);
        }
        // Not stored if the check fails, so that each call reports the error.
        self.lock_node.check(self.form(ContenderKind::Mutex))?;
        let LockNode { node: NodeConfig { client, acl, .. }, naming, data, .. } = &self.lock_node;
        let (node, policy) = (self.lock_node.node()?.to_owned(), self.policy);
        let (naming, hold_at_most) = (*naming, self.lock_node.hold_at_most);
        let (acl, data) = (acl.clone(), data.clone());
        let key = Key { node, naming, acl, data, policy, hold_at_most };
        Ok(Some(self.sharer.get_or_init(|| Sharer::of(client, key))))
    }
}

settings!(DistributedLock, sharer);
naming_setting!(DistributedLock, sharer);
patience_setting!(DistributedLock, sharer);

impl DistributedLock {
    /// Sets how threads of this process pass the lock on among themselves. Default
    /// [`HandOver::default`]: without limits while there is no other contender, then within 64
    /// turns and a second.
    #[must_use = "the value is changed, and returned"]
    pub fn hand_over(mut self, hand_over: HandOver) -> DistributedLock {
        self.policy.hand_over = hand_over;
        self.sharer = OnceLock::new();
        self
    }

    /// Sets for how long this client keeps a released lock, to acquire it again fast, unless another
    /// contender asks for it. Default: not kept.
    ///
    /// Acquiring it again in this time costs no request. As soon as another contender comes, or a
    /// client [requests the release](LockNode::request_release), the node is deleted; also when the
    /// last of the lock's values and guards is dropped, and with the client. Other clients see a
    /// kept lock as held: [`contenders`](LockNode::contenders) and observers show its node, and
    /// another client's [`try_lock`](DistributedLock::try_lock) may return `None`, as does that of
    /// a [`MultiLock`](crate::MultiLock) of this process. If its session is lost, nothing is
    /// reported: the next call contends anew.
    ///
    /// The price: a process that dies while it *keeps* a lock, or ends without dropping the lock or
    /// closing the client, blocks the others for the [session timeout](Client::session_timeout).
    /// One that is paused or cut off blocks them for as long as that lasts, at most the session
    /// timeout.
    #[must_use = "the value is changed, and returned"]
    pub fn keep_for(mut self, limit: Duration) -> DistributedLock {
        self.policy.keep = Some(limit);
        self.sharer = OnceLock::new();
        self
    }
}

/// Holds a [`DistributedLock`]; dropping the guard releases the lock.
///
/// Dropping does the first of these that applies:
///
/// - It hands the lock to the next waiting thread of this process, unless it is another contender's
///   turn (see [`HandOver`]).
/// - It [keeps](DistributedLock::keep_for) the node, if the lock is set to do so and there is no
///   other contender.
/// - It deletes the guard's own node, never another one, and returns within half a second, when the
///   request is on its way: for other clients the lock is held until the server has carried it out.
///   Without a connection, or if the connection is lost before the reply, the delete is retried in
///   the background until the server has deleted the node or ended the session.
///
/// The guard can be dropped on another thread. It keeps the client's session open.
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    hold: Hold,
}

impl LockGuard {
    fn new(hold: Hold) -> LockGuard {
        LockGuard { hold }
    }

    pub(crate) fn into_hold(self) -> Hold {
        self.hold
    }

    /// Fails if this process knows that the lock is lost.
    pub(crate) fn check(&self) -> Result<()> {
        self.hold.check()
    }

    /// Returns the number to send with each write, so that its receiver can refuse late writes of a
    /// former holder.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Releases the lock as dropping does, waits until the server has confirmed it, and returns
    /// an error if that fails.
    ///
    /// While the connection is lost it waits until the session is resumed or lost. If the lock goes
    /// to another thread of this process, or is [kept](DistributedLock::keep_for), it sends no
    /// request: it reports a loss only if this process knows of it.
    ///
    /// # Errors
    ///
    /// [`SessionLost`](crate::ErrorKind::SessionLost), [`NodeDeleted`](crate::ErrorKind::NodeDeleted),
    /// [`Closed`](crate::ErrorKind::Closed) or [`AuthFailed`](crate::ErrorKind::AuthFailed) if the
    /// lock was lost before: another client may have held it since.
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) if the lock node's ACL does not allow
    /// deleting, [`Server`](crate::ErrorKind::Server) if the server refuses for another reason; the
    /// delete is then retried in the background.
    pub fn unlock(self) -> Result<()> {
        self.hold.release()
    }

    /// Releases the lock as [`unlock`](LockGuard::unlock) does, waiting at most `wait`.
    ///
    /// Returns false if there was no answer by then: the background goes on.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled): the background goes on. Otherwise as
    /// [`unlock`](LockGuard::unlock).
    pub fn unlock_within(self, wait: impl Into<Wait>) -> Result<bool> {
        self.hold.release_within(&wait.into())
    }
}

guard!(LockGuard);
