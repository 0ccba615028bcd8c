//! What a client reports to the program: the one hook for logs, metrics and alerts.

use std::time::Duration;

use crate::fencing::FencingToken;
use crate::loss_reason::LossReason;
use crate::session_id::SessionId;

/// Something that happened to a client, its session or one of its locks: see
/// [`ClientBuilder::on_event`](crate::ClientBuilder::on_event).
///
/// A `lock` is the path of the lock node, as the program named it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A session was opened: the first one, or the next one after a loss.
    Connected {
        /// The session's id.
        session: SessionId,
        /// The session timeout that the server granted; zero if it is not known.
        timeout: Duration,
    },
    /// The connection is lost. The session and its locks are kept for now.
    Suspended {
        /// How long the locks are certain to be held without another answer.
        lease_left: Duration,
    },
    /// A server serves the session again; its locks were kept.
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
    Paused {
        /// At least how long.
        gap: Duration,
    },
    /// A call waits for a lock because others are ahead. A call that goes on waiting for other threads
    /// of its process, too, reports it again.
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
    Released {
        /// The path of the lock node.
        lock: String,
        /// For how long it was held.
        held: Duration,
    },
    /// A node that is no longer wanted could not be deleted at once: that goes on in the background,
    /// until the session ends.
    CleanupPending {
        /// The node.
        path: String,
    },
    /// A lock, permits, a leadership, an item's lease, a membership or a place in a barrier was lost
    /// before its release.
    Lost {
        /// The path of the lock node.
        lock: String,
        /// Why.
        reason: LossReason,
    },
}
