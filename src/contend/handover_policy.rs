//! How threads of one process pass a lock on among themselves, and for how long they keep it.

use std::time::Duration;

/// How threads of one process that want the same lock pass it on among themselves.
///
/// Those who use equal locks of one client — the same path, ACL, naming, data and settings — share
/// one contender's node. Whoever releases the lock hands the node to the next thread of the process
/// that waits, in the order in which they came, and no request is made for that: it is about a
/// hundred times as fast as to ask the ensemble. Each holder has its own
/// [turn](crate::FencingToken::turn) in the token.
///
/// Other processes get their share: the holder watches the lock node for other contenders, and once
/// one was seen, only those threads have their turn yet that were waiting before that; and of those
/// no more than `turns`, and none later than `time` after it was seen. Then the node is deleted,
/// and the process queues anew, at the end.
///
/// ```no_run
/// use std::time::Duration;
/// use zklock::{Client, DistributedLock, HandOver};
///
/// let zk = Client::connect("localhost")?;
/// let strict = DistributedLock::builder(&zk, "/locks", "nightly").hand_over(HandOver::Off).build();
/// let brief = HandOver::Within { turns: 8, time: Duration::from_millis(20) };
/// let lock = DistributedLock::builder(&zk, "/locks", "nightly").hand_over(brief).build();
/// # drop((strict, lock));
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandOver {
    /// One node for each acquisition: threads of one process are in the ensemble's queue like
    /// anybody else, in strict order.
    Off,
    /// Within these limits, once somebody else contends.
    Within {
        /// To how many threads more it may be handed.
        turns: u32,
        /// Until when it may be. A thread that has the lock by then keeps it for as long as it
        /// likes.
        time: Duration,
    },
}

impl Default for HandOver {
    /// Within 64 turns and a second.
    fn default() -> HandOver {
        HandOver::Within { turns: 64, time: Duration::from_secs(1) }
    }
}

/// How a node is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Policy {
    pub(crate) hand_over: HandOver,
    /// For how long a node is kept that nobody has a use for.
    pub(crate) keep: Option<Duration>,
}

impl Policy {
    /// Whether anything is ever shared.
    pub(crate) fn shares(&self) -> bool {
        self.hand_over != HandOver::Off || self.keep.is_some()
    }
}
