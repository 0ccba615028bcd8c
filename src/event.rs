//! What a client reports to the program: the one hook for logs, metrics and alerts.

use std::fmt;
use std::net::SocketAddr;
use std::thread::ThreadId;
use std::time::Duration;

use crate::error::ErrorKind;
use crate::fencing::FencingToken;
use crate::logging;
use crate::loss_reason::LossReason;
use crate::session_id::SessionId;

/// Something that happened to a client, its session or one of its locks: see
/// [`ClientBuilder::on_event`](crate::ClientBuilder::on_event).
///
/// It prints as one line for people, which is also in the [log](crate#logging). A `lock` is the
/// path of the lock node, as the program named it. What is not known is `None`: on a handle of the
/// `zookeeper` crate the timeout, the server and the lease, and until that handle has created a
/// node the session's id.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A session was opened: the first one, the next one after a loss, or one [in place of
    /// another](crate::Client) in which nothing was held.
    #[non_exhaustive]
    Connected {
        /// The session's id.
        session: Option<SessionId>,
        /// The session timeout that the server granted.
        timeout: Option<Duration>,
        /// The server that the session is connected to.
        server: Option<SocketAddr>,
    },
    /// The connection is lost. The session and its locks are kept for now.
    #[non_exhaustive]
    Suspended {
        /// The session's id.
        session: Option<SessionId>,
        /// How long the locks are certain to be held if no server answers again.
        lease_left: Option<Duration>,
    },
    /// A server serves the session again; its locks were kept. Or another session, which a `Connected` has
    /// told of, serves in its place, as nothing was held in it.
    #[non_exhaustive]
    Resumed {
        /// The session's id.
        session: Option<SessionId>,
        /// How long there was no connection.
        outage: Duration,
    },
    /// The session is lost, and with it all locks that were held in it.
    #[non_exhaustive]
    SessionLost {
        /// The session's id.
        session: Option<SessionId>,
        /// Why it was lost.
        reason: LossReason,
        /// How it was lost, as far as is known, such as which server was silent since when.
        details: Option<String>,
    },
    /// The client was closed.
    Closed,
    /// This process was not running for a while: it was paused, the machine slept, or had no time
    /// for it. A gap of more than the lease costs the session.
    #[non_exhaustive]
    Paused {
        /// How long the process was not running, at least.
        gap: Duration,
    },
    /// A call waits for a lock because others are ahead. If it then waits for other threads of its process,
    /// or for those that contend when it has left the [waiting room](crate::LockNode::waiting_room) behind,
    /// it reports that again.
    #[non_exhaustive]
    Waiting {
        /// The lock path.
        lock: String,
        /// How many contenders are ahead; 0 if only threads of this process are.
        ahead: usize,
        /// The node of the first contender ahead, or of the first in the waiting room; `None` if the
        /// call waits for another thread of this process, which may hand the lock over within
        /// microseconds.
        holder: Option<String>,
        /// The thread that waits, until an `Acquired` or a `NotAcquired` of this lock and thread. (Neither
        /// comes if the call panics, as a logger may.)
        thread: ThreadId,
    },
    /// A call has waited for a second behind a contender of a recipe that this library does not know. Told
    /// once about each such node: see [`foreign_contenders`](crate::ClientBuilder::foreign_contenders).
    #[non_exhaustive]
    WaitingForForeign {
        /// The lock path.
        lock: String,
        /// The foreign contender's node.
        node: String,
        /// The session that it belongs to; `None` if an ACL hides it.
        session: Option<SessionId>,
        /// How old the node is, by the clocks of the ensemble and of this host; `None` if an ACL hides it.
        age: Option<Duration>,
        /// The first line of its data.
        data: String,
    },
    /// A lock, permits or a leadership was acquired. Exactly one event ends that: a `Released`, or a
    /// `HoldLost` that tells how long it was held.
    #[non_exhaustive]
    Acquired {
        /// The lock path.
        lock: String,
        /// What was acquired: `lock`, `permit` or `leadership`.
        what: &'static str,
        /// How long the call took to acquire it.
        waited: Duration,
        /// The fencing token of the hold.
        token: FencingToken,
        /// Whether another thread of this process handed the lock over.
        is_local: bool,
        /// The thread that has acquired it.
        thread: ThreadId,
    },
    /// A call has ended without the lock that it wanted. Not reported of arguments that are refused before
    /// the ensemble is asked.
    #[non_exhaustive]
    NotAcquired {
        /// The lock path.
        lock: String,
        /// What was wanted: `lock`, `permit` or `leadership`.
        what: &'static str,
        /// How long the call took.
        waited: Duration,
        /// The kind of error that it ended with; `None` if others have the lock.
        error: Option<ErrorKind>,
        /// The thread of the call.
        thread: ThreadId,
    },
    /// A call waits for a lock for ever: holders wait for each other, unless a guard was given to another
    /// thread. See [`warn_of_deadlock_after`](crate::ClientBuilder::warn_of_deadlock_after).
    #[non_exhaustive]
    Deadlock {
        /// The path of the lock that the call waits for.
        lock: String,
        /// Which holders wait for which locks, in a sentence.
        deadlock: String,
    },
    /// A holder of this client has released what it held.
    #[non_exhaustive]
    Released {
        /// The lock path.
        lock: String,
        /// What was released: `lock`, `permit` or `leadership`.
        what: &'static str,
        /// How long it was held.
        held: Duration,
    },
    /// A node that is no longer wanted could not be deleted at once: the library retries in the
    /// background, until the session ends.
    #[non_exhaustive]
    CleanupPending {
        /// The node.
        path: String,
    },
    /// The library no longer tries to delete a node of which it reported a `CleanupPending`: the node is
    /// gone, or its session is over, or the client is.
    #[non_exhaustive]
    CleanupEnded {
        /// The node.
        path: String,
    },
    /// A lock, permits, a leadership, an item's lease, a membership or a place in a barrier was lost
    /// before its release.
    #[non_exhaustive]
    HoldLost {
        /// The lock path, or what else is the parent of `node`.
        lock: String,
        /// The path of the node by which it was held.
        node: String,
        /// What was lost, such as `lock`, `permit` or `leadership`.
        what: &'static str,
        /// How long it was held, if this ends what an `Acquired` told of.
        held: Option<Duration>,
        /// Why it was lost.
        reason: LossReason,
        /// How it was lost, as far as is known, such as which server was silent since when.
        details: Option<String>,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Connected { session, timeout, server } => {
                write!(f, "{} opened", Named(session))?;
                if let Some(server) = server {
                    write!(f, " at {server}")?;
                }
                match timeout {
                    Some(timeout) => write!(f, ", with a timeout of {timeout:?}"),
                    None => Ok(()),
                }
            }
            Event::Suspended { session, lease_left } => {
                write!(f, "{} has no connection; its locks are held ", Named(session))?;
                match lease_left {
                    Some(left) => write!(f, "for at least {left:.1?} more"),
                    None => f.write_str("until the session ends"),
                }
            }
            Event::Resumed { session, outage } => {
                write!(f, "{} is connected again after {outage:.1?}", Named(session))
            }
            Event::SessionLost { session, reason, details } => {
                let why = Because(*reason, details.as_deref());
                write!(f, "{} is lost, and its locks with it: {why}", Named(session))
            }
            Event::Closed => f.write_str("the client is closed"),
            Event::Paused { gap } => write!(
                f,
                "this process was not running for {gap:.1?}: it was paused, or the machine slept or \
                 was overloaded"
            ),
            Event::Waiting { lock, ahead, holder, .. } => match holder {
                Some(holder) => {
                    write!(f, "waiting for {lock}: {ahead} ahead, the first is {holder}")
                }
                None => write!(f, "waiting for {lock}: another thread of this process has it"),
            },
            Event::WaitingForForeign { lock, node, session, age, data } => {
                write!(
                    f,
                    "waiting for {lock} behind {node}, which is not of zklock or a recipe that it knows"
                )?;
                if let Some(session) = session {
                    write!(f, ", of session {session}")?;
                }
                if let Some(age) = age {
                    write!(f, ", made {age:.0?} ago")?;
                }
                write!(f, ", with the data {data:?}: until that node is gone, nobody gets the lock")
            }
            Event::Acquired { lock, waited, .. } => write!(f, "acquired {lock} after {waited:.1?}"),
            Event::NotAcquired { lock, waited, error, .. } => {
                write!(f, "did not acquire {lock} after {waited:.1?}: ")?;
                match error {
                    None => f.write_str("others have it"),
                    Some(kind) => write!(f, "{kind:?}"),
                }
            }
            Event::Deadlock { lock, deadlock } => write!(f, "waiting for {lock}: {deadlock}"),
            Event::Released { lock, held, .. } => write!(f, "released {lock} after {held:.1?}"),
            Event::CleanupPending { path } => {
                write!(f, "{path} could not be deleted yet; trying on in the background")
            }
            Event::CleanupEnded { path } => {
                write!(f, "{path} is deleted, or its session is over")
            }
            Event::HoldLost { what, reason, node, details, .. } => {
                write!(f, "{what} lost: {} (node {node:?})", Because(*reason, details.as_deref()))
            }
        }
    }
}

/// Prints a reason with its details, if there are any.
pub(crate) struct Because<'a>(pub(crate) LossReason, pub(crate) Option<&'a str>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(details) => write!(f, "{}: {details}", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Prints a session by its id, if that is known.
struct Named<'a>(&'a Option<SessionId>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "session {id}"),
            None => f.write_str("the session"),
        }
    }
}

/// How events are logged, each as the line that it prints as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogAs {
    level: log::Level,
    target: &'static str,
}

impl LogAs {
    /// That a lock is waited for, acquired, released.
    pub(crate) const CONTENTION: LogAs = LogAs::new(log::Level::Debug, "zklock::contend");
    pub(crate) const FOREIGN: LogAs = LogAs::new(log::Level::Warn, "zklock::contend");
    pub(crate) const DEADLOCK: LogAs = LogAs::new(log::Level::Warn, "zklock::contend");
    pub(crate) const LOSS: LogAs = LogAs::new(log::Level::Warn, "zklock::hold");
    pub(crate) const PAUSE: LogAs = LogAs::new(log::Level::Warn, "zklock::client");
    pub(crate) const CLEANUP: LogAs = LogAs::new(log::Level::Debug, "zklock::reaper");
    /// What the link logs, too, with more detail.
    pub(crate) const SESSION_OF_LINK: LogAs = LogAs::new(log::Level::Debug, "zklock::client");
    pub(crate) const SESSION: LogAs = LogAs::new(log::Level::Info, "zklock::client");
    pub(crate) const SESSION_TROUBLE: LogAs = LogAs::new(log::Level::Warn, "zklock::client");

    const fn new(level: log::Level, target: &'static str) -> LogAs {
        LogAs { level, target }
    }

    pub(crate) fn is_on(self) -> bool {
        logging::is_on(self.level, self.target)
    }

    pub(crate) fn write(self, event: &Event) {
        logging::line!(self.level, target: self.target, "{event}");
    }
}
