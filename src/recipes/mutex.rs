//! The mutex, `DistributedLock`.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::guard_macro::guard;
use super::lock_config::{LockConfig, looking_on, settings};
use crate::acl::Acl;
use crate::contend::acquire::{Limits, insist};
use crate::contend::fencing::FencingToken;
use crate::contend::handover::{Key, Sharer};
use crate::contend::handover_policy::{HandOver, Policy};
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

/// A lock of which there is one in the whole ensemble.
///
/// Whoever contends makes an ephemeral sequential child of the lock node `base/name`; the
/// lowest number holds, each other waits for the one before it, so that a release wakes
/// one waiter. This is the lock of ZooKeeper's "Recipes and Solutions". Node names are
/// those of Curator's `InterProcessMutex`, with which it can share a path.
///
/// The value is a description: cheap to make, to clone, to share between threads, and not
/// tied to a session. After a session is lost, the same value works again on a new one.
///
/// # Guarantees
///
/// Mutual exclusion among all clients of the ensemble as long as each stops when its guard
/// says that the lock is lost. A process that is paused at the wrong moment cannot be told
/// in time: what it sends late can only be refused by who receives it, by the
/// [`fencing_token`](LockGuard::fencing_token).
///
/// # Fairness
///
/// First come, first served, by the sequence numbers. Threads of one process that use equal locks
/// of one client share a place in that order, and pass the lock on among themselves, first come,
/// first served, without asking the ensemble, in limits that leave others their share: see
/// [`HandOver`], which can also turn that off.
///
/// # Re-entrance
///
/// None. A thread that holds the lock and locks it again waits for itself: for ever with
/// [`lock`](DistributedLock::lock), in vain with the others.
///
/// # Example
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
    pub(crate) config: LockConfig,
    policy: Policy,
    /// Found at the first use; unless nothing is shared.
    sharer: OnceLock<Arc<Sharer>>,
}

impl fmt::Debug for DistributedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedLock")
            .field("config", &self.config)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl DistributedLock {
    /// The lock `name` under the path `base`, with the default settings.
    ///
    /// Never fails: a name that ZooKeeper cannot have is reported by the first call that
    /// needs it, as [`InvalidName`](crate::ErrorKind::InvalidName). `base` is an absolute
    /// path, `name` one component of a path; together at most 1,024 bytes. What is missing
    /// of the path is made with the first lock.
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> DistributedLock {
        DistributedLock::builder(zk, base, name).build()
    }

    /// As [`new`](DistributedLock::new), with settings.
    pub fn builder(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> DistributedLockBuilder {
        let config = LockConfig::new(zk.into(), base.as_ref(), name.as_ref());
        let policy = Policy { hand_over: HandOver::default(), keep: None };
        DistributedLockBuilder { lock: DistributedLock { config, policy, sharer: OnceLock::new() } }
    }

    /// Blocks until the lock is held.
    ///
    /// It outlasts lost connections and lost sessions: with a new session it queues anew.
    /// While no server can be reached it goes on trying.
    ///
    /// Bind the guard to a name: `let _ = lock.lock()?;` unlocks at once, and no lint that is
    /// on by default says so.
    ///
    /// # Errors
    ///
    /// What waiting cannot mend: [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized),
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed),
    /// [`InvalidData`](crate::ErrorKind::InvalidData) for an ACL that the server does not accept,
    /// or data that ask a holder to let go,
    /// [`TooLarge`](crate::ErrorKind::TooLarge),
    /// [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted),
    /// [`Closed`](crate::ErrorKind::Closed), [`System`](crate::ErrorKind::System),
    /// [`Server`](crate::ErrorKind::Server). Where the client has a limit for trouble with the
    /// connection, a [`Retry`](crate::Retry), also what is beyond it:
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss), [`Connect`](crate::ErrorKind::Connect),
    /// [`SessionLost`](crate::ErrorKind::SessionLost). No node of ours is left in any case.
    pub fn lock(&self) -> Result<LockGuard> {
        self.wait(None)
    }

    /// As [`lock`](DistributedLock::lock), until any thread trips `cancel`.
    ///
    /// Cleaning up takes up to half a second more while the server does not answer; what is
    /// left then goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled), at once if the token was tripped before;
    /// else as [`lock`](DistributedLock::lock).
    ///
    /// ```no_run
    /// use zklock::{Cancel, Client, DistributedLock};
    ///
    /// let zk = Client::connect("localhost")?;
    /// let lock = DistributedLock::new(&zk, "/locks", "nightly");
    /// let cancel = Cancel::new();
    /// let stop = cancel.clone(); // for the thread that handles signals
    /// let guard = lock.lock_with(&cancel)?;
    /// # drop((stop, guard));
    /// # Ok::<(), zklock::Error>(())
    /// ```
    pub fn lock_with(&self, cancel: &Cancel) -> Result<LockGuard> {
        self.wait(Some(cancel))
    }

    /// Takes the lock if nobody holds it or waits for it; else `None`, and no node is left.
    ///
    /// It does not wait for other contenders, but does for the ensemble: up to the
    /// [connect time-out](crate::ClientBuilder::connect_timeout), after which the answer is
    /// `None`, with a warning in the log.
    ///
    /// # Errors
    ///
    /// As [`lock`](DistributedLock::lock).
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        let deadline = Deadline::after(self.config.client.core().connect_timeout());
        self.acquire(Limits { deadline, patient: false, cancel: None })
    }

    /// Waits for the lock for so long at the most; `None` when it was not to be had.
    ///
    /// The time bounds everything, connecting and cleaning up included, whatever the
    /// network does; only a request that is under way may take up to 50 ms more. Giving up
    /// for want of a connection is `None` too, with a warning in the log. With
    /// [`Duration::ZERO`] it is [`try_lock`](DistributedLock::try_lock) with hardly any
    /// patience for the ensemble; a duration too long for the clock is no limit.
    ///
    /// # Errors
    ///
    /// As [`lock`](DistributedLock::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<LockGuard>> {
        self.try_by(Deadline::after(limit))
    }

    /// As [`try_lock_for`](DistributedLock::try_lock_for), until an instant.
    ///
    /// # Errors
    ///
    /// As [`lock`](DistributedLock::lock).
    pub fn try_lock_until(&self, end: Instant) -> Result<Option<LockGuard>> {
        self.try_by(Deadline::at(end))
    }

    fn wait(&self, cancel: Option<&Cancel>) -> Result<LockGuard> {
        let limits = Limits { deadline: Deadline::NEVER, patient: true, cancel };
        insist(|| self.acquire(limits))
    }

    pub(crate) fn try_by(&self, deadline: Deadline) -> Result<Option<LockGuard>> {
        self.acquire(Limits { deadline, patient: true, cancel: None })
    }

    pub(crate) fn acquire(&self, limits: Limits<'_>) -> Result<Option<LockGuard>> {
        self.config.client.core().check_process()?;
        let hold = match self.sharer()? {
            None => self.config.acquire(self.form(), limits)?,
            Some(sharer) => {
                let node = &sharer.key().node;
                let contention = || self.config.contention(node, self.form());
                sharer.acquire(&self.config.client, limits, contention)?
            }
        };
        Ok(hold.map(LockGuard::new))
    }

    /// This lock's part in a group that shares a node, if it is to.
    fn sharer(&self) -> Result<Option<&Arc<Sharer>>> {
        if let Some(sharer) = self.sharer.get() {
            return Ok(Some(sharer));
        }
        if !self.policy.shares() {
            return Ok(None);
        }
        // What does not pass is reported by each call.
        self.config.check(self.form())?;
        let LockConfig { client, naming, acl, data, .. } = &self.config;
        let (node, policy) = (self.config.node()?.to_owned(), self.policy);
        let key = Key { node, naming: *naming, acl: acl.clone(), data: data.clone(), policy };
        Ok(Some(self.sharer.get_or_init(|| Sharer::of(client, key))))
    }

    pub(crate) fn form(&self) -> Form {
        self.config.form(Class::Mutex)
    }
}

looking_on!(
    DistributedLock,
    DistributedLock::form,
    "While somebody holds, only its node is watched, so that those who come to wait wake no \
     observer; a change of the holder costs each observer a list and a read. While nobody holds, \
     the list of children is watched."
);

/// Settings of a [`DistributedLock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct DistributedLockBuilder {
    lock: DistributedLock,
}

settings!(DistributedLockBuilder, DistributedLock);

impl DistributedLockBuilder {
    /// How threads of this process pass the lock on among themselves. Default
    /// [`HandOver::default`]: from hand to hand, and within 64 turns and a second once somebody
    /// else contends.
    pub fn hand_over(mut self, hand_over: HandOver) -> DistributedLockBuilder {
        self.lock.policy.hand_over = hand_over;
        self
    }

    /// Keeps the contender's node after the release, for so long at the most, as long as nobody
    /// else asks for the lock. To take it again in this time costs no request. Default: not kept.
    ///
    /// For services that take the same lock again and again. As soon as another contender comes,
    /// or somebody [asks](DistributedLock::request_release) for it, the node is deleted, without
    /// waiting for the end of that time. While the lock is kept it is held as far as others can
    /// see: [`contenders`](DistributedLock::contenders) and observers show its node, and another
    /// client's [`try_lock`](DistributedLock::try_lock) may find it so. It is let go when the last
    /// of the lock's values and guards is dropped, and with the client. What is kept in a session
    /// that is lost is lost quietly: the next call contends anew.
    ///
    /// The price is that of a crash: a process that dies while it *keeps* a lock, without holding it,
    /// holds up the others for the [session time-out](Client::session_timeout), as one that dies
    /// while holding it does; and so does one that ends without dropping the lock, or closing the
    /// client. One that is paused, or cut off, holds them up for as long as that lasts, at the most
    /// the session time-out. A [`MultiLock`](crate::MultiLock) over this lock contends like anybody
    /// else: its `try_lock` is refused by what its own process keeps.
    pub fn keep_for(mut self, limit: Duration) -> DistributedLockBuilder {
        self.lock.policy.keep = Some(limit);
        self
    }
}

/// A held [`DistributedLock`]; dropped, it releases it.
///
/// Dropping hands the lock to the next thread of this process that waits for it, unless there is
/// none or it is somebody else's turn (see [`HandOver`]), or [keeps](DistributedLockBuilder::keep_for)
/// the node, if that is what the lock is to do. Otherwise it deletes the guard's own node,
/// nobody else's, and returns when that is on its way to the server, within half a second; when
/// there is no connection, or it is lost before the answer comes, the delete goes on in the
/// background until the server has done it or has ended the session.
/// [`unlock`](LockGuard::unlock) waits for as long as it takes, and tells.
///
/// The guard can be sent to another thread and dropped there. It keeps the client's
/// session open.
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

    /// Fails if it is known here that the lock is lost.
    pub(crate) fn check(&self) -> Result<()> {
        self.hold.check()
    }

    /// The number to send along with whatever the lock protects, so that its receiver can
    /// refuse what a former holder sends late.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Releases the lock as dropping does, but waits until the server has confirmed it, and
    /// tells if it could not be.
    ///
    /// While the connection is lost it waits until the session is resumed or lost. Where the lock
    /// goes to another thread of this process, or is [kept](DistributedLockBuilder::keep_for),
    /// nobody is asked: it tells what is known here.
    ///
    /// # Errors
    ///
    /// [`SessionLost`](crate::ErrorKind::SessionLost),
    /// [`LockLost`](crate::ErrorKind::LockLost), [`Closed`](crate::ErrorKind::Closed) or
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed) if it was lost before: somebody else may
    /// have held it since.
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) if the lock node's ACL does not
    /// allow to delete, [`Server`](crate::ErrorKind::Server) if the server will not for another
    /// reason; it is then tried again in the background.
    pub fn unlock(self) -> Result<()> {
        self.hold.release()
    }
}

guard!(LockGuard, fencing_token);
