//! The errors of requests that the server refuses, and of waits that are cancelled.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::session::client_core::ClientCore;
use crate::session::connection::Fault;

/// The error of a call that was cancelled.
pub(crate) fn cancelled(node: &str) -> Error {
    Error::new(ErrorKind::Cancelled, "the wait was cancelled").on(node)
}

/// The error of a call that has had no connection for longer than the client's limit for that.
pub(crate) fn outage_too_long(longest: Duration) -> Error {
    let message = format!(
        "gave up: no connection to the ensemble for longer than Retry::outage allows ({longest:?})"
    );
    Error::new(ErrorKind::Connect, message)
}

/// The error of a call that ran out of time, which was this long, before the ensemble told it anything.
pub(crate) fn unanswered(core: &ClientCore, waited: Duration, node: &str) -> Error {
    let why = core.why_unreachable();
    let message =
        format!("the time was over before any server answered, after {waited:.1?}: {why}");
    Error::new(ErrorKind::Connect, message).on(node)
}

/// The error for a request that failed with `fault`.
pub(crate) fn refusal(fault: &Fault, tried: &str, needs: &str, node: &str) -> Error {
    match fault {
        Fault::NoAuth => Error::new(
            ErrorKind::NotAuthorized,
            format!("not authorized to {tried}: requires {needs}"),
        ),
        Fault::InvalidAcl => Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "could not {tried}: the server does not accept the ACL; an entry for the \
                 creator needs a client with credentials"
            ),
        ),
        Fault::TooLarge(why) => {
            Error::new(ErrorKind::TooLarge, format!("could not {tried}: {why}"))
        }
        Fault::System(why) => Error::new(ErrorKind::System, format!("could not {tried}: {why}")),
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
