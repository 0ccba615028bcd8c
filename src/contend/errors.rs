//! The errors of requests that the server refuses, and of waits that are cancelled.

use crate::error::{Error, ErrorKind};
use crate::session::connection::Fault;

/// The error of a call that was cancelled.
pub(crate) fn cancelled(node: &str) -> Error {
    Error::new(ErrorKind::Cancelled, "the wait was cancelled").on(node)
}

/// The error for a request that the server will not have.
pub(crate) fn refusal(fault: &Fault, tried: &str, needs: &str, node: &str) -> Error {
    match fault {
        Fault::NoAuth => Error::new(
            ErrorKind::NotAuthorized,
            format!("the node's ACL forbids to {tried}; that needs {needs}"),
        ),
        Fault::InvalidAcl => Error::new(
            ErrorKind::InvalidData,
            format!(
                "could not {tried}: the server does not accept the ACL; an entry for the \
                 creator needs a client with credentials"
            ),
        ),
        Fault::TooLarge(why) => {
            Error::new(ErrorKind::TooLarge, format!("could not {tried}: {why}"))
        }
        Fault::ConnectionLoss => {
            Error::new(ErrorKind::ConnectionLoss, format!("could not {tried}: {fault}"))
        }
        Fault::SessionEnded => {
            Error::new(ErrorKind::SessionLost, format!("could not {tried}: {fault}"))
        }
        fault => Error::new(ErrorKind::Server, format!("could not {tried}: {fault}")),
    }
    .on(node)
}
