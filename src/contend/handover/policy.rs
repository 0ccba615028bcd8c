//! How threads of one process pass a lock on among themselves, and for how long they keep it.

use std::time::Duration;

/// Decides how threads of one process that want the same lock pass it on among themselves.
///
/// Threads that use equal locks of one client (the same path, ACL, naming, data and settings) share
/// one contender's node. A release hands the node to the next waiting thread of the process, in the
/// order in which they came, without a request. Each holder has its own
/// [turn](crate::FencingToken::turn) in the token.
///
/// Once the holder has seen another contender, only threads that were already waiting get a turn:
/// at most `turns` of them, and none later than `time` after that. Then the node is deleted, and
/// the process queues anew, at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandOver {
    /// Gives each acquisition its own node: threads of one process queue at the ensemble like any
    /// other contender, in strict order.
    Off,
    /// Lets threads of this client pass the lock on to each other: without limits until another
    /// contender is seen, then within the limits given here.
    Within {
        /// How many more threads of this process may take over the lock once another contender waits.
        turns: u32,
        /// For how long threads of this process may go on taking over the lock once another contender
        /// waits. The last one keeps it as long as it likes.
        time: Duration,
    },
}

impl Default for HandOver {
    /// Returns [`Within`](HandOver::Within) with 64 `turns` and a `time` of one second.
    fn default() -> HandOver {
        HandOver::Within { turns: 64, time: Duration::from_secs(1) }
    }
}

/// How a node is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Policy {
    pub(crate) hand_over: HandOver,
    /// How long a node is kept that no thread wants.
    pub(crate) keep: Option<Duration>,
}

impl Policy {
    /// Whether anything is ever shared.
    pub(crate) fn shares(&self) -> bool {
        self.hand_over != HandOver::Off || self.keep.is_some()
    }
}
