//! Deletes the node of a contender that gives up: at once if that is quick, otherwise in the
//! background.

use std::sync::Arc;
use std::time::Duration;

use crate::rt::Deadline;
use crate::session::client_core::ClientCore;
use crate::session::connection::{Answer, Fault};
use crate::session::session::Session;

/// How long cleaning up may take where there is no deadline to keep.
pub(super) const CLEANUP_LIMIT: Duration = Duration::from_millis(500);

/// Deletes a node by `until`, see `delete_within`; otherwise leaves it to the reaper.
pub(super) fn put_away(
    core: &ClientCore,
    session: &Arc<Session>,
    path: String,
    until: Deadline,
    then: Option<String>,
) -> Answer<()> {
    let deleted = delete_within(session, &path, until, then);
    match &deleted {
        Ok(()) => {}
        Err(Fault::ConnectionLoss) => core.reaper().delete(session, path),
        Err(_) => core.reaper().insist(session, path),
    }
    deleted
}

/// Deletes a node. `Ok` means that it is certain to be gone; `ConnectionLoss` may also mean that
/// there was no time. With `then`, the lock node is deleted as well if it is empty, so that its
/// numbers start anew.
fn delete_within(
    session: &Session,
    path: &str,
    until: Deadline,
    then: Option<String>,
) -> Answer<()> {
    if !session.status().now().is_usable() {
        return Err(Fault::ConnectionLoss);
    }
    let delete = |session: &Session| {
        let deleted = session.delete(path);
        if let (Some(node), Ok(()) | Err(Fault::NoNode)) = (then, &deleted) {
            // If it is not empty, the next contender that is refused a number tries again.
            let _ = session.delete(&node);
        }
        deleted
    };
    match session.ask(until, None, delete) {
        Some(Ok(()) | Err(Fault::NoNode | Fault::SessionEnded)) => Ok(()),
        None | Some(Err(Fault::System(_))) => Err(Fault::ConnectionLoss),
        Some(Err(fault)) => Err(fault),
    }
}
