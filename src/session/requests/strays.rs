//! Looks for nodes that requests without an answer have made late, and has them deleted.
//!
//! Each look is a write, a `sync` and the lists, on one connection. The write is one that fails. It is there
//! because only a write tells that the leader takes another server to serve the session: the connection is
//! closed then, and the look begins anew on the next one, which serves the session for certain.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::reaper::Reaper;
use super::session::Session;
use crate::rt::{self, AtomicU64};
use crate::session::connection::{Answer, Fault, Names};
use crate::session::owned::BETWEEN_LOOKS;
use crate::{logging, path};

/// Where the session timeout is not known, on a program's handle.
const USUAL_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module. One for all sessions of a client.
pub(crate) struct Strays {
    reaper: Arc<Reaper>,
    chroot: String,
    found: AtomicU64,
}

impl Strays {
    pub(crate) fn new(reaper: Arc<Reaper>, chroot: String) -> Strays {
        Strays { reaper, chroot, found: AtomicU64::new(0) }
    }

    /// How many were found.
    pub(crate) fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// Looks in the background, as long as nodes of the session are looked for.
    pub(crate) fn look_in(self: &Arc<Self>, session: &Arc<Session>) {
        let (strays, of_session) = (Arc::downgrade(self), Arc::downgrade(session));
        let due = rt::now().checked_add(timeout(session) / 3);
        let look = move || strays.upgrade()?.look(&of_session.upgrade()?);
        self.reaper.later(session, due.unwrap_or_else(rt::now), look);
    }

    /// Looks where it is time to; returns when to do that again.
    fn look(&self, session: &Arc<Session>) -> Option<Instant> {
        let (owned, timeout) = (session.owned(), timeout(session));
        let parents = owned.due(rt::now(), timeout);
        if !parents.is_empty() && session.status().now().is_usable() {
            // After a lost connection, the next one is a reason to look again.
            if let Ok((lists, connection)) = list(session, &parents) {
                for (parent, names) in parents.iter().zip(&lists) {
                    self.delete(session, parent, names);
                    self.delete_named(session, parent, names);
                }
                owned.note_looks(&parents, rt::now(), connection);
            }
        }
        let soonest = rt::now().checked_add(BETWEEN_LOOKS.min(timeout / 3))?;
        owned.next_look(timeout).map(|next| next.max(soonest))
    }

    /// Has the children deleted that were made late and that nobody wants; returns their names. No call waits
    /// for them any more.
    pub(crate) fn delete(
        &self,
        session: &Arc<Session>,
        parent: &str,
        children: &Names,
    ) -> Vec<String> {
        let strays = session.owned().take_strays(parent, children);
        for name in &strays {
            let path = path::join(parent, name);
            self.report(&path);
            self.reaper.delete(session, path);
        }
        strays
    }

    /// Of names that others may have, too, the owner tells whose node it is.
    fn delete_named(&self, session: &Arc<Session>, parent: &str, names: &Names) {
        let owned = session.owned();
        for name in owned.named_in_doubt(parent, names) {
            let path = path::join(parent, &name);
            let Ok(Some(stat)) = session.exists(&path, false) else { continue };
            if stat.ephemeral_owner == session.id() && owned.is_stray(&path, stat.czxid) {
                owned.settle_doubt(&path, Some(stat.czxid));
                self.report(&path);
                self.reaper.delete_named(session, path, stat.czxid);
            }
        }
    }

    fn report(&self, path: &str) {
        self.found.fetch_add(1, Ordering::Relaxed);
        logging::warning!(
            target: "zklock::reaper",
            "{:?} was created by a request that got no answer, and that the ensemble has carried out later: deleting it",
            path::shown(&self.chroot, path)
        );
    }
}

fn timeout(session: &Session) -> Duration {
    Some(session.info().timeout).filter(|timeout| !timeout.is_zero()).unwrap_or(USUAL_TIMEOUT)
}

/// The children of the parents, and the connection on which all was answered.
fn list(session: &Session, parents: &[String]) -> Answer<(Vec<Names>, u64)> {
    let connection = session.status().now().connection;
    session.probe()?;
    session.sync()?;
    let mut lists = Vec::with_capacity(parents.len());
    for names in session.children_each(parents, false) {
        match names {
            Err(fault) if fault.is_loss() => return Err(fault),
            // What an ACL hides may show itself later.
            names => lists.push(names.ok().flatten().unwrap_or_default()),
        }
    }
    match session.status().now().connection == connection {
        true => Ok((lists, connection)),
        false => Err(Fault::ConnectionLoss),
    }
}
