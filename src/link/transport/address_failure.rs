//! Why an address does not serve the session.

use std::io;

/// See the module.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The session has expired, says the server.
    Expired,
    /// The server does not let the client in with what it shows, or cannot show by SASL who it is; with the
    /// reason.
    Rejected(String),
    /// One side does not trust the other's certificate; with the reason.
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "only TLS has certificates"))]
    Distrust(String),
    /// The server has answered with another session, which is closed.
    AnotherSession,
    /// Of the kind [`PermissionDenied`](io::ErrorKind::PermissionDenied) if the server may have rejected
    /// the client.
    Other(io::Error),
}

impl Failure {
    /// Whether the server rejects the client, or one side does not trust the other.
    pub(crate) fn is_rejection(&self) -> bool {
        matches!(self, Failure::Rejected(_) | Failure::Distrust(_))
    }

    pub(crate) fn may_be_rejection(&self) -> bool {
        self.is_rejection() || self.is_error(io::ErrorKind::PermissionDenied)
    }

    /// Whether it is an error of this kind.
    pub(crate) fn is_error(&self, kind: io::ErrorKind) -> bool {
        matches!(self, Failure::Other(cause) if cause.kind() == kind)
    }
}

/// Whether the server has closed the connection: which error says so is a matter of moments.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

impl<E: Into<io::Error>> From<E> for Failure {
    fn from(cause: E) -> Failure {
        Failure::Other(cause.into())
    }
}
