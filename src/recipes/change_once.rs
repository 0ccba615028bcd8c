//! Sends a change to the ensemble, within the connect timeout, and says how certain its outcome is.

use super::node_config::Purpose;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Deadline;
use crate::session::client::Client;
use crate::session::connection::{Answer, Fault};
use crate::session::session::Session;
use crate::session::watch_loop::WatchLoop;

/// The outcome of a change.
pub(super) enum ChangeOutcome<T> {
    Done(T),
    /// The change was certainly not made.
    Refused(Fault),
    /// This attempt was refused; an earlier one, whose reply was lost, may have made it.
    InDoubt(Fault),
}

/// Makes a change of the node. With `repeats`, it is sent again after a lost reply: only one of the
/// attempts can succeed. Otherwise it is sent once.
pub(super) fn make<T: Send + 'static>(
    client: &Client,
    node: &str,
    purpose: Purpose,
    repeats: bool,
    change: impl Fn(&Session) -> Answer<T> + Clone + Send + 'static,
) -> Result<ChangeOutcome<T>> {
    let until = Deadline::after(client.core().connect_timeout());
    let mut watch_loop = WatchLoop::new(client, None);
    let mut lost = false;
    loop {
        let session = match watch_loop.session(until) {
            Ok(Some(session)) => session,
            Ok(None) => return Err(purpose.unanswered(client.core(), lost, node)),
            Err(error) if lost => return Err(unknown(node).caused_by(error)),
            Err(error) => return Err(error),
        };
        let answer = match watch_loop.ask(&session, until, change.clone(), drop) {
            Err(error) if lost => return Err(unknown(node).caused_by(error)),
            answer => answer?,
        };
        match answer {
            Some(Ok(done)) => return Ok(ChangeOutcome::Done(done)),
            None | Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => {
                lost = true;
                if !repeats || until.has_passed() {
                    return Err(unknown(node));
                }
            }
            Some(Err(fault)) if lost => return Ok(ChangeOutcome::InDoubt(fault)),
            Some(Err(fault)) => return Ok(ChangeOutcome::Refused(fault)),
        }
    }
}

/// The error of a change that may have been made.
pub(super) fn unknown(node: &str) -> Error {
    let message = "the connection was lost before the reply came: the change may have been made";
    Error::new(ErrorKind::ConnectionLoss, message).on(node)
}
