//! Sends a change to the ensemble, within a time limit, and says how certain its outcome is.

use std::sync::Arc;

use super::node_config::Purpose;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Deadline;
use crate::session::client::Client;
use crate::session::connection::{Answer, Fault};
use crate::session::session::Session;
use crate::session::watch_loop::WatchLoop;

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
    client: &Client,
    node: &str,
    purpose: Purpose,
    until: Deadline,
    find_out: Option<FindOut<'_>>,
    mut change: impl FnMut(&Session) -> Answer<T>,
) -> Result<Answer<T>> {
    let mut watch_loop = WatchLoop::new(client, None);
    // The session of the attempt without a reply, and what it had seen before.
    let mut lost: Option<(Arc<Session>, i64)> = None;
    loop {
        let session = match watch_loop.session(until) {
            Ok(Some(session)) => session,
            Ok(None) => return Err(purpose.unanswered(client.core(), lost.is_some(), node)),
            Err(error) if lost.is_some() => return Err(unknown(node).caused_by(error)),
            Err(error) => return Err(error),
        };
        if let Some((asked, seen)) = &lost {
            let Some(find_out) = find_out.filter(|_| Arc::ptr_eq(asked, &session)) else {
                return Err(unknown(node));
            };
            match watch_loop.ask(&session, until, |session| find_out(session, *seen)) {
                Some(Ok(LostChange::NotMade)) => {}
                Some(Ok(LostChange::Refused(fault))) => return Ok(Err(fault)),
                Some(Err(Fault::ConnectionLoss)) if !until.has_passed() => continue,
                _ => return Err(unknown(node)),
            }
        }
        let seen = session.seen_zxid();
        match watch_loop.ask(&session, until, &mut change) {
            None | Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => {
                if find_out.is_none() || until.has_passed() {
                    return Err(unknown(node));
                }
                lost = Some((session, seen));
            }
            Some(answer) => return Ok(answer),
        }
    }
}

/// The error of a change that may have been made.
pub(super) fn unknown(node: &str) -> Error {
    let message = "the connection was lost before the reply came: the change may have been made";
    Error::new(ErrorKind::ConnectionLoss, message).on(node)
}
