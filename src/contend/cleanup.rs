//! Deletes the node of a contender that gives up: at once where that is quickly done, otherwise in the background.

use std::sync::Arc;
use std::time::Duration;

use crate::rt::Deadline;
use crate::session::client_core::ClientCore;
use crate::session::connection::{Answer, Fault};
use crate::session::session::Session;

/// How long cleaning up may take where there is no deadline to keep.
pub(super) const CLEANUP_LIMIT: Duration = Duration::from_millis(500);

/// As `delete_within`; what is not done by then is left to the reaper.
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

/// Success is that the node is certain to be gone; a lost connection is also what there
/// was no time for. With `then`, the lock node is deleted as well if it is empty, so that
/// its numbers start anew.
fn delete_within(
    session: &Arc<Session>,
    path: &str,
    until: Deadline,
    then: Option<String>,
) -> Answer<()> {
    if !session.status().now().is_usable() {
        return Err(Fault::ConnectionLoss);
    }
    let path = path.to_owned();
    let delete = move |session: &Session| {
        let deleted = session.delete(&path);
        if let Some(node) = then
            && matches!(deleted, Ok(()) | Err(Fault::NoNode))
        {
            // Not empty: whoever is refused next will try again.
            let _ = session.delete(&node);
        }
        deleted
    };
    match session.ask(until, None, delete, drop) {
        Ok(Some(Ok(()) | Err(Fault::NoNode | Fault::SessionEnded))) => Ok(()),
        Ok(Some(Err(fault))) => Err(fault),
        Ok(None) | Err(_) => Err(Fault::ConnectionLoss),
    }
}
