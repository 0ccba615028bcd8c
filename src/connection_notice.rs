//! What a connection reports of its session: connected, suspended, or ended and why.

use std::net::SocketAddr;
use std::time::Duration;

/// Why a session is over for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The server said that the session has expired.
    Expired,
    /// The lease ran out by this machine's own clock.
    Lapsed,
    /// The server refused the credentials.
    AuthFailed,
    /// The client was closed.
    Closed,
    /// A request had no answer and nothing was held: the client has ended it, as such a request can be
    /// carried out until then, and opens another one.
    Replaced,
}

/// What a connection reports to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A connection serves the session: the first one, or a new one.
    Attached,
    /// The connection still serves the session. The link repeats this now and then.
    Alive,
    /// This process was not running for at least so long.
    Paused(Duration),
    /// The connection is lost; the session may live on.
    Suspended,
    /// The session is over for the client. Reported once.
    Ended(End),
    /// The server has confirmed the end, or the link no longer waits for that.
    Over,
}

/// What is known of the session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info {
    pub(crate) session: i64,
    /// The session timeout that the server granted.
    pub(crate) timeout: Duration,
    /// The longest tick of the servers, as it is reckoned with.
    pub(crate) tick: Duration,
    /// How long an outage surely loses no lock; zero if the session cannot last.
    pub(crate) outage_limit: Duration,
    /// The server that serves the session, if one does.
    pub(crate) server: Option<SocketAddr>,
    /// Why the last attempt found no server.
    pub(crate) trouble: Option<String>,
}
