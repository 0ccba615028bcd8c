//! Why a lock is no longer held.

use std::fmt;

use crate::connection_notice::End;

/// Why a lock is no longer held although its guard was not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The server expired the session.
    SessionExpired,
    /// The session's lease ran out by this machine's clock, before an answer of the ensemble had
    /// renewed it; the ensemble may or may not have expired the session yet.
    /// [`Event::HoldLost`](crate::Event::HoldLost) and the log say how.
    LeaseExpired,
    /// The contender's node was deleted, but not by its holder.
    NodeDeleted,
    /// The client, or the program's ZooKeeper handle that it uses, was closed.
    ClientClosed,
    /// The server rejected the client's credentials on reconnecting.
    AuthFailed,
    /// It was held for as long as its [`hold_at_most`](crate::DistributedLock::hold_at_most) allows.
    HeldTooLong,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::SessionExpired => "the session expired",
            LossReason::LeaseExpired => "the session's lease ran out by this machine's clock",
            LossReason::NodeDeleted => "the contender's node was deleted",
            LossReason::ClientClosed => "the client or its ZooKeeper handle was closed",
            LossReason::AuthFailed => "the credentials were rejected",
            LossReason::HeldTooLong => "it was held for longer than allowed",
        })
    }
}

impl From<End> for LossReason {
    fn from(end: End) -> LossReason {
        match end {
            End::Expired => LossReason::SessionExpired,
            End::Lapsed => LossReason::LeaseExpired,
            End::AuthFailed => LossReason::AuthFailed,
            End::Closed => LossReason::ClientClosed,
            // Only a session without nodes is replaced: that of a guard was deleted before.
            End::Replaced => LossReason::NodeDeleted,
        }
    }
}
