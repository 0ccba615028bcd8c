//! Sends a change to the ensemble, within a time limit, and says how certain its outcome is.

use std::sync::Arc;

use super::node_config::Purpose;
use crate::error::{Error, ErrorKind, Result};
use crate::session::call::{Call, Stop};
use crate::session::connection::{Answer, Fault};
use crate::session::session::Session;

/// What is known of a change whose reply was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LostChange {
    /// It was not made, and can be repeated.
    NotMade,
    /// It was not made, and would be refused.
    Refused(Fault),
    Unknown,
}

/// Finds out whether a change was made whose reply was lost. Gets the zxid that the session had seen
/// before it sent the change: if it was made, then in a later transaction.
pub(super) type FindOut<'a> = &'a dyn Fn(&Session, i64) -> Answer<LostChange>;

/// Makes a change of the node; an inner error says that it was certainly not made.
///
/// After a lost reply it is repeated only if `find_out` says that it was not made, and only in the same
/// session: a request of a session that was given up may still arrive. (In the same session none can,
/// once a later one was answered on a new connection.)
pub(super) fn make<T>(
    call: &mut Call,
    node: &str,
    purpose: Purpose,
    find_out: Option<FindOut<'_>>,
    mut change: impl FnMut(&Session) -> Answer<T>,
) -> Result<Answer<T>> {
    // The session of the attempt without a reply, and what it had seen before.
    let mut lost: Option<(Arc<Session>, i64)> = None;
    loop {
        let session = match call.session() {
            Ok(session) => session,
            Err(Stop::Failed(error)) if lost.is_some() => {
                return Err(unknown(node).caused_by(error));
            }
            Err(Stop::TimeOver) => {
                return Err(purpose.unanswered(call.core(), lost.is_some(), node));
            }
            Err(stop) => return Err(purpose.stopped(stop, call, node)),
        };
        if let Some((asked, seen)) = &lost {
            let Some(find_out) = find_out.filter(|_| Arc::ptr_eq(asked, &session)) else {
                return Err(unknown(node));
            };
            match call.ask_in(&session, |session| find_out(session, *seen)) {
                Ok(Ok(LostChange::NotMade)) => {}
                Ok(Ok(LostChange::Refused(fault))) => return Ok(Err(fault)),
                Ok(Err(Fault::ConnectionLoss)) if !call.is_over() => continue,
                _ => return Err(unknown(node)),
            }
        }
        let seen = session.seen_zxid();
        match call.ask_in(&session, &mut change) {
            Ok(answer) if !call.is_unanswered() => return Ok(answer),
            _ if find_out.is_none() || call.is_over() => return Err(unknown(node)),
            _ => lost = Some((session, seen)),
        }
    }
}

/// The error of a change that may have been made.
pub(super) fn unknown(node: &str) -> Error {
    let message = "the connection was lost before the reply came: the change may have been made";
    Error::new(ErrorKind::ConnectionLoss, message).on(node)
}
