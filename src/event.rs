//! What a client reports to the program: the one hook for logs, metrics and alerts.

use std::time::Duration;

use crate::fencing::FencingToken;
use crate::loss_reason::LossReason;

/// Something that happened to a client, its session or one of its locks: see
/// [`ClientBuilder::on_event`](crate::ClientBuilder::on_event).
///
/// A `lock` is the path of the lock node, as the program named it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A session was opened: the first one, or the next one after a loss.
    Connected {
        /// The session's id, which servers log in hexadecimal.
        session: i64,
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
    /// A call waits for a lock because others are ahead. A call that goes on waiting for other threads
    /// of its process, too, reports it again.
    Waiting {
        /// The path of the lock node.
        lock: String,
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
    /// A lock, permits, a leadership, an item's lease, a membership or a place in a barrier was lost
    /// before its release.
    Lost {
        /// The path of the lock node.
        lock: String,
        /// Why.
        reason: LossReason,
    },
}
