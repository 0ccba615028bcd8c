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
}

/// What the client must learn of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A connection serves the session: the first one, or again.
    Attached,
    /// It still does. Said every now and then, by the link.
    Alive,
    /// The connection is lost; the session may live on.
    Suspended,
    /// The session is over for the client. Said once.
    Ended(End),
    /// The server has said so too, or there is nobody left to care.
    Over,
}

/// What is known of the session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info {
    pub(crate) session: i64,
    /// What the server has granted.
    pub(crate) timeout: Duration,
    /// The server it is connected to, if it is.
    pub(crate) server: Option<SocketAddr>,
    /// Why no server could be had when last tried.
    pub(crate) trouble: Option<String>,
}
