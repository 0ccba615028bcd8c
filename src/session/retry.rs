//! How many lost connections and how long an outage a call puts up with.

use std::time::Duration;

/// How much trouble with the connection a call that acquires a lock puts up with before it fails:
/// see [`ClientBuilder::retry`](crate::ClientBuilder::retry). By default, any.
///
/// What a call does about each kind of trouble:
///
/// | Trouble | What is done |
/// |---|---|
/// | no answer to a create | after a `sync`, the children are searched for the call's own node; it is adopted or made anew |
/// | no answer to anything else | asked again on the next connection |
/// | no connection | waited for |
/// | no server can be reached, no session can be opened | tried again |
/// | the session is lost | queued anew, at the end, in a new session |
/// | the own node was deleted by somebody | queued anew, at the end |
/// | the lock node, or what is above it, is missing | made |
/// | no room, no permission, an ACL or data that the server does not accept, rejected credentials, a closed client | the call fails |
///
/// The first two and the loss of a session are *losses*; the time without a connection is an
/// *outage*. Both can be limited here; the time of a call as a whole is limited by the `try_`
/// methods, and ended by a [`Cancel`](crate::Cancel). Whatever ends a call, what it has made is
/// deleted.
///
/// Guards are not affected: releasing and confirming go on until the session is resumed or lost.
///
/// ```no_run
/// use std::time::Duration;
/// use zklock::{Client, Retry};
///
/// let zk = Client::builder("zk1:2181,zk2:2181")
///     .retry(Retry::unlimited().losses(5).outage(Duration::from_secs(30)))
///     .connect()?;
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "it is to be given to a client's builder"]
pub struct Retry {
    losses: Option<u32>,
    outage: Option<Duration>,
}

impl Retry {
    /// Puts up with anything; the default.
    pub const fn unlimited() -> Retry {
        Retry { losses: None, outage: None }
    }

    /// So many requests of one call may remain without an answer, or sessions be lost under it;
    /// with the next it fails with [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) or
    /// [`SessionLost`](crate::ErrorKind::SessionLost). With 0, nothing is tried again.
    pub const fn losses(self, most: u32) -> Retry {
        Retry { losses: Some(most), ..self }
    }

    /// A call may be without a connection for so long at a stretch, the end of a session in it
    /// included; zero is no patience at all. Then it fails with
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss), or
    /// [`Connect`](crate::ErrorKind::Connect) where it was still to get a session.
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
