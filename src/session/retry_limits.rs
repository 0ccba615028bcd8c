//! How many lost connections and how long an outage a call puts up with.

use std::time::Duration;

/// Limits how many lost replies, and how long an outage, a call that acquires a lock tolerates.
/// Default: no limit.
///
/// Without limits, a call repeats a request that had no answer on the next connection, waits for a
/// server, queues again, at the end, when its session is lost or another client has deleted its
/// node, and creates a lock path that does not exist. Other faults
/// [end the call](crate::guide#what-ends-every-wait).
///
/// Requests without an answer and lost sessions are *losses*; the time without a connection is an
/// *outage*. A call that ends without the lock deletes its nodes. Guards are not affected:
/// releasing and confirming a lock go on until the session is resumed or lost.
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
    /// Limits how many lost replies and lost sessions, counted together, one call tolerates.
    ///
    /// The next one fails the call with [`Connect`](crate::ErrorKind::Connect) or
    /// [`SessionLost`](crate::ErrorKind::SessionLost). With 0, nothing is retried.
    pub const fn losses(self, most: u32) -> Retry {
        Retry { losses: Some(most), ..self }
    }

    /// Limits how long at a stretch one call goes on without a connection, whether or not the session
    /// ends meanwhile.
    ///
    /// After that, the call fails with [`Connect`](crate::ErrorKind::Connect). Zero tolerates no
    /// outage at all.
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
