//! What a client reports to the program: the one hook for logs, metrics and alerts.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::fencing::FencingToken;
use crate::loss_reason::LossReason;
use crate::session_id::SessionId;

/// Something that happened to a client, its session or one of its locks: see
/// [`ClientBuilder::on_event`](crate::ClientBuilder::on_event).
///
/// A `lock` is the path of the lock node, as the program named it. It prints as one line for people.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A session was opened: the first one, or the next one after a loss.
    #[non_exhaustive]
    Connected {
        /// The session's id.
        session: SessionId,
        /// The session timeout that the server granted; zero if it is not known.
        timeout: Duration,
        /// The server that serves it; `None` if it is not known, as with a handle of the `zookeeper`
        /// crate.
        server: Option<SocketAddr>,
    },
    /// The connection is lost. The session and its locks are kept for now.
    #[non_exhaustive]
    Suspended {
        /// How long the locks are certain to be held without another answer.
        lease_left: Duration,
    },
    /// A server serves the session again; its locks were kept.
    #[non_exhaustive]
    Resumed {
        /// How long there was no connection.
        outage: Duration,
    },
    /// The session is lost, and with it all locks that were held in it.
    SessionLost,
    /// The client was closed.
    Closed,
    /// This process was not running for a while: it was paused, the machine slept, or had no time for
    /// it. A gap of more than the lease costs the session.
    #[non_exhaustive]
    Paused {
        /// The shortest time that the process was not running.
        gap: Duration,
    },
    /// A call waits for a lock because others are ahead. A call that goes on waiting for other threads
    /// of its process, too, reports it again.
    #[non_exhaustive]
    Waiting {
        /// The path of the lock node.
        lock: String,
        /// How many contenders were ahead, as far as was seen.
        ahead: usize,
        /// The node of the first of them; `None` if the call waits for another thread of this process,
        /// which may hand the lock over within microseconds.
        holder: Option<String>,
    },
    /// A lock, permits or a leadership was acquired.
    #[non_exhaustive]
    Acquired {
        /// The path of the lock node.
        lock: String,
        /// How long the call took.
        waited: Duration,
        /// The fencing token of the hold.
        token: FencingToken,
        /// Whether another thread of this process handed it over, without a request.
        is_local: bool,
    },
    /// A holder has released.
    #[non_exhaustive]
    Released {
        /// The path of the lock node.
        lock: String,
        /// For how long it was held.
        held: Duration,
    },
    /// A node that is no longer wanted could not be deleted at once: that goes on in the background,
    /// until the session ends.
    #[non_exhaustive]
    CleanupPending {
        /// The node.
        path: String,
    },
    /// A lock, permits, a leadership, an item's lease, a membership or a place in a barrier was lost
    /// before its release.
    #[non_exhaustive]
    Lost {
        /// The path of the lock node.
        lock: String,
        /// Why it was lost.
        reason: LossReason,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Connected { session, timeout, server } => {
                write!(f, "session {session} opened")?;
                if let Some(server) = server {
                    write!(f, " at {server}")?;
                }
                write!(f, ", with a timeout of {timeout:?}")
            }
            Event::Suspended { lease_left } => {
                write!(
                    f,
                    "the connection is lost; locks are held for {lease_left:.1?} more at least"
                )
            }
            Event::Resumed { outage } => write!(f, "connected again after {outage:.1?}"),
            Event::SessionLost => f.write_str("the session is lost, and its locks with it"),
            Event::Closed => f.write_str("the client is closed"),
            Event::Paused { gap } => write!(
                f,
                "this process was not running for {gap:.1?}: it was paused, or the machine slept or \
                 was overloaded"
            ),
            Event::Waiting { lock, ahead, holder } => match holder {
                Some(holder) => {
                    write!(f, "waiting for {lock}: {ahead} ahead, the first is {holder}")
                }
                None => write!(f, "waiting for {lock}: another thread of this process has it"),
            },
            Event::Acquired { lock, waited, .. } => write!(f, "acquired {lock} after {waited:.1?}"),
            Event::Released { lock, held } => write!(f, "released {lock} after {held:.1?}"),
            Event::CleanupPending { path } => {
                write!(f, "{path} could not be deleted yet; trying on in the background")
            }
            Event::Lost { lock, reason } => write!(f, "{lock} is lost: {reason}"),
        }
    }
}
