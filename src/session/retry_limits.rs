//! How many lost connections and how long an outage a call puts up with.

use std::time::Duration;

/// How many lost replies and sessions, and how long an outage, a call that acquires a lock
/// tolerates before it fails: see [`ClientBuilder::retry`](crate::ClientBuilder::retry). By
/// default, any.
///
/// What a call does about each kind of fault:
///
/// | Fault | What the call does |
/// |---|---|
/// | no answer to a create | after a `sync`, it searches the children for its own node, and adopts it or creates a new one |
/// | no answer to anything else | it repeats the request on the next connection |
/// | no connection | it waits for one |
/// | no server can be reached, no session can be opened | it retries |
/// | the session is lost | it queues again, at the end, in a new session |
/// | another client deleted the call's node | it queues again, at the end |
/// | the lock path, or a parent of it, does not exist | it creates what is missing |
/// | no room, no permission, an ACL or data that the server does not accept, rejected credentials, a closed client | it fails |
///
/// The first two and the loss of a session are *losses*; the time without a connection is an
/// *outage*. Both can be limited here. The `try_` methods limit the time of a call as a whole, and
/// a [`Cancel`](crate::Cancel) ends it. If a call ends without the lock, its nodes are deleted.
///
/// Guards are not affected: releasing and confirming a lock go on until the session is resumed or
/// lost.
///
/// ```no_run
/// use std::time::Duration;
/// use zklock::{Client, Retry};
///
/// let zk = Client::builder("zk1:2181,zk2:2181")
///     .retry(Retry::default().losses(5).outage(Duration::from_secs(30)))
///     .connect()?;
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "it has no effect until it is given to `ClientBuilder::retry`"]
pub struct Retry {
    losses: Option<u32>,
    outage: Option<Duration>,
}

impl Retry {
    /// Tolerates at most this many losses in one call: requests without an answer, and lost
    /// sessions. The next loss fails the call with
    /// [`Connect`](crate::ErrorKind::Connect) or
    /// [`SessionLost`](crate::ErrorKind::SessionLost). With 0, nothing is retried.
    pub const fn losses(self, most: u32) -> Retry {
        Retry { losses: Some(most), ..self }
    }

    /// Tolerates at most this long without a connection at a stretch, even if the session ends
    /// meanwhile; zero tolerates no outage at all. After that, the call fails with
    /// [`Connect`](crate::ErrorKind::Connect).
    pub const fn outage(self, longest: Duration) -> Retry {
        Retry { outage: Some(longest), ..self }
    }

    /// Whether so many losses are too many.
    pub(crate) fn is_exceeded_by(&self, losses: u32) -> bool {
        self.losses.is_some_and(|most| losses > most)
    }

    pub(crate) fn longest_outage(&self) -> Option<Duration> {
        self.outage
    }
}
