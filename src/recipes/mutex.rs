//! The mutex.

use std::fmt;
use std::time::{Duration, Instant};

use crate::acl::Acl;
use crate::contend::acquire::{Contention, Limits, acquire};
use crate::contend::contenders::{self, Contender};
use crate::contend::hold::{FencingToken, Hold, LossReason, Lost};
use crate::contend::rule::Rule;
use crate::contend::ticket::Class;
use crate::error::{Error, Result};
use crate::path;
use crate::rt::Deadline;
use crate::session::client::Client;
use crate::session::wake::Cancel;

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
/// First come, first served, by the sequence numbers.
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
    client: Client,
    /// The lock node; a bad name is reported by the first call that needs it.
    node: Result<String>,
    data: Option<Vec<u8>>,
    acl: Vec<Acl>,
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
        DistributedLockBuilder {
            lock: DistributedLock {
                client: zk.into(),
                node: path::lock_path(base.as_ref(), name.as_ref()),
                data: None,
                acl: vec![Acl::open()],
            },
        }
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
    /// [`TooLarge`](crate::ErrorKind::TooLarge),
    /// [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted),
    /// [`Closed`](crate::ErrorKind::Closed), [`System`](crate::ErrorKind::System),
    /// [`Server`](crate::ErrorKind::Server). No node of ours is left in any case.
    pub fn lock(&self) -> Result<LockGuard> {
        self.acquire_or_fail(None)
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
        self.acquire_or_fail(Some(cancel))
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
        let deadline = Deadline::after(self.client.core().connect_timeout());
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
        self.acquire(Limits { deadline: Deadline::after(limit), patient: true, cancel: None })
    }

    /// As [`try_lock_for`](DistributedLock::try_lock_for), until an instant.
    ///
    /// # Errors
    ///
    /// As [`lock`](DistributedLock::lock).
    pub fn try_lock_until(&self, end: Instant) -> Result<Option<LockGuard>> {
        self.acquire(Limits { deadline: Deadline::at(end), patient: true, cancel: None })
    }

    /// All who hold or wait for the lock, in the order in which they are granted it: the
    /// first one holds it. For people and logs; a decision taken by it is out of date.
    ///
    /// Takes one request, and one more for each contender.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) or
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) when the ensemble does not answer
    /// within the [connect time-out](crate::ClientBuilder::connect_timeout); else as
    /// [`lock`](DistributedLock::lock).
    pub fn contenders(&self) -> Result<Vec<Contender>> {
        contenders::contenders(&self.client, self.node.as_ref().map_err(Error::clone)?)
    }

    fn acquire_or_fail(&self, cancel: Option<&Cancel>) -> Result<LockGuard> {
        loop {
            let limits = Limits { deadline: Deadline::NEVER, patient: true, cancel };
            // Without a deadline there is no giving up.
            if let Some(guard) = self.acquire(limits)? {
                return Ok(guard);
            }
        }
    }

    fn acquire(&self, limits: Limits<'_>) -> Result<Option<LockGuard>> {
        let contention = Contention {
            client: self.client.clone(),
            node: self.node.clone()?,
            data: self.data.clone().unwrap_or_else(default_data),
            acl: self.acl.clone(),
            class: Class::Mutex,
            rule: Rule::exclusive(),
        };
        Ok(acquire(&contention, limits)?.map(|hold| LockGuard { hold }))
    }
}

/// Host, process and thread, so that who looks at the node sees whose it is.
fn default_data() -> Vec<u8> {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    format!("host={host} pid={} thread={thread}", std::process::id()).into_bytes()
}

impl fmt::Debug for DistributedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedLock")
            .field("node", &self.node)
            .field("acl", &self.acl)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// Settings of a [`DistributedLock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct DistributedLockBuilder {
    lock: DistributedLock,
}

impl DistributedLockBuilder {
    /// What a contender's node says of it, for people who look. Default: host, process id
    /// and thread name, as text; `b""` for nothing. Keep it to UTF-8 and below 1 MiB.
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> DistributedLockBuilder {
        self.lock.data = Some(data.into());
        self
    }

    /// The ACL of every node that this lock makes: missing parents, the lock node, and
    /// contenders. Default [`Acl::open`].
    ///
    /// To delete a contender takes DELETE on the lock node, so an ACL on contenders alone
    /// would protect nothing.
    pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> DistributedLockBuilder {
        self.lock.acl = acl.into();
        self
    }

    /// The lock with these settings.
    pub fn build(self) -> DistributedLock {
        self.lock
    }
}

/// A held [`DistributedLock`]; dropped, it releases it.
///
/// Dropping deletes the guard's own node, nobody else's, and waits for that up to half a
/// second; beyond that, and when there is no connection, the delete goes on in the
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
    /// The number to send along with whatever the lock protects, so that its receiver can
    /// refuse what a former holder sends late.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Whether the lock is held for all that is known here: no loss was seen, and the
    /// session's lease has not run out by this machine's clock, which counts the time that
    /// the machine or the process slept. Asks nobody; once false, always false.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// Asks the ensemble, through its leader, whether the lock is held, in one round trip.
    ///
    /// While the connection is lost it waits for the outcome: at most until the session is
    /// resumed or lost.
    ///
    /// # Errors
    ///
    /// [`SessionLost`](crate::ErrorKind::SessionLost),
    /// [`LockLost`](crate::ErrorKind::LockLost), [`Closed`](crate::ErrorKind::Closed) or
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed) if it is not held any more;
    /// [`Server`](crate::ErrorKind::Server) if the server refuses to say.
    pub fn ensure_held(&self) -> Result<()> {
        self.hold.ensure_held()
    }

    /// A handle by which any thread can wait for the loss of this lock.
    pub fn lost(&self) -> Lost {
        self.hold.lost()
    }

    /// Calls `callback`, once, when the lock is lost; at once if it is already; never after
    /// it was released: a loss that is noticed before the release, and not yet told, is not
    /// told any more. It runs on a thread of its own and may call this library; where the system
    /// has no thread for it, it has to wait for the next change of the session, or the next call.
    pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        self.hold.on_lost(Box::new(callback));
    }

    /// The contender's node, as the client names it.
    pub fn path(&self) -> &str {
        self.hold.path()
    }

    /// Releases the lock as dropping does, but waits until the server has confirmed it, and
    /// tells if it could not be.
    ///
    /// While the connection is lost it waits until the session is resumed or lost.
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

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("path", &self.path())
            .field("fencing_token", &format_args!("{}", self.fencing_token()))
            .field("is_held", &self.is_held())
            .finish()
    }
}
