//! Permits: a transaction that deletes one takes effect once at most, and a lost reply leaves no doubt.
//!
//! A request without an answer may be carried out after newer ones, until its session has ended. So each
//! attempt creates a permit, an ephemeral node under a name of its own, and deletes it in its transaction,
//! in the permit's first version. After a lost reply the permit is voided by a write. If that is answered,
//! the transaction has changed nothing, and never will. If the permit is gone, the transaction has been
//! carried out, or the permit has ended with its session. A call that fails without knowing leaves its
//! permit to the client's next call about the same node, which voids it first.

use std::collections::VecDeque;
use std::sync::Arc;

use uuid::Uuid;

use crate::acl::Acl;
use crate::path;
use crate::rt::{self, Deadline, Mutex};
use crate::session::{Answer, ClientCore, Fault, Reply, Session, Step, StillMeant};

/// How many permits of failed calls a client remembers, at most.
const MOST_LEFT: usize = 1_000;

/// The permits of one call. When it is dropped, those that are left are deleted in the background: then a
/// transaction without an answer can no longer take effect.
pub(crate) struct Permits {
    core: Arc<ClientCore>,
    /// Whether those of earlier calls are void.
    is_alone: bool,
    /// That of the latest transaction, if it had no answer.
    in_doubt: Option<Permit>,
    /// They may exist, and no transaction deletes them.
    unused: Vec<Permit>,
    /// As long as it lasts, permits that it may have created are its own.
    meant: StillMeant,
}

struct Permit {
    /// The node that its transaction changes.
    node: String,
    path: String,
    session: i64,
}

/// The permits of failed calls of a client whose transactions may still be carried out: the node and the
/// permit.
#[derive(Default)]
struct LeftInDoubt(Mutex<VecDeque<(String, String)>>);

/// What became of the latest transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has changed nothing, and never will.
    NotMade,
    Made,
    /// Its session has ended, before it or after it.
    Unknown,
}

impl Permits {
    pub(crate) fn new(core: &Arc<ClientCore>) -> Permits {
        let (core, meant) = (Arc::clone(core), StillMeant::default());
        Permits { core, is_alone: false, in_doubt: None, unused: Vec::new(), meant }
    }

    /// Finds out what became of the latest transaction, as often as it is called; `NotMade` if there was
    /// none.
    pub(crate) fn settle(&mut self, session: &Session, node: &str) -> Answer<Outcome> {
        if !self.is_alone {
            self.void_earlier(session, node)?;
            self.is_alone = true;
        }
        let Some(permit) = &self.in_doubt else { return Ok(Outcome::NotMade) };
        if void(session, &permit.path)? {
            self.unused.extend(self.in_doubt.take());
            return Ok(Outcome::NotMade);
        }
        Ok(if permit.session == session.id() { Outcome::Made } else { Outcome::Unknown })
    }

    /// Without it, a transaction of an earlier call of this client could undo what this one does.
    fn void_earlier(&self, session: &Session, node: &str) -> Answer<()> {
        let left: Arc<LeftInDoubt> = self.core.extension();
        let all = left.0.lock().clone();
        for earlier in all.iter().filter(|(of, _)| of == node) {
            void(session, &earlier.1)?;
            left.0.lock().retain(|one| one != earlier);
        }
        Ok(())
    }

    /// Carries out a step that changes the node, and returns the reply to it. `settle` comes before it.
    pub(crate) fn spend(&mut self, session: &Session, node: &str, step: &Step) -> Answer<Reply> {
        loop {
            let path = path::join(path::parent(node), &name());
            let permit =
                Permit { node: node.to_owned(), path: path.clone(), session: session.id() };
            match session.create_unique(&path, b"", &[Acl::open()], &self.meant) {
                Ok(_) => {}
                Err(lost) if lost.is_loss() => {
                    self.unused.push(permit);
                    return Err(lost);
                }
                Err(fault) => return Err(fault),
            }
            let steps = [Step::Delete { path, version: Some(0) }, step.clone()];
            match session.commit(&steps) {
                Ok(Ok(done)) => return Ok(done.into_iter().next_back().unwrap_or(Reply::Done)),
                // Somebody has deleted the permit.
                Ok(Err((0, Fault::NoNode))) => {}
                // It cannot be deleted, and ends with its session.
                Ok(Err((0, fault))) => return Err(fault),
                Ok(Err((_, fault))) => {
                    self.unused.push(permit);
                    return Err(fault);
                }
                Err(lost) => {
                    self.in_doubt = Some(permit);
                    return Err(lost);
                }
            }
        }
    }
}

/// Keeps the permit's transaction from taking effect; false if the permit is gone.
fn void(session: &Session, permit: &str) -> Answer<bool> {
    match session.write_version(permit, b"void", Some(0)) {
        // An earlier attempt of this write had no answer.
        Ok(_) | Err(Fault::BadVersion) => Ok(true),
        Err(Fault::NoNode) => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// The name of a new permit. No contender's name ends so.
fn name() -> String {
    format!("_zklock_{}_permit", Uuid::from_u128(rt::random()).simple())
}

impl Drop for Permits {
    fn drop(&mut self) {
        // In a forked process, a lock of the client's may be held for ever; but there are no permits.
        if self.unused.is_empty() && self.in_doubt.is_none() {
            return;
        }
        if let Some(Permit { node, path, .. }) = &self.in_doubt {
            let left: Arc<LeftInDoubt> = self.core.extension();
            let mut left = left.0.lock();
            left.truncate(MOST_LEFT - 1);
            left.push_front((node.clone(), path.clone()));
        }
        // Those of other sessions end with them.
        let Some(session) = self.core.live_session() else { return };
        for permit in self.unused.drain(..).chain(self.in_doubt.take()) {
            if permit.session == session.id() {
                self.core.reaper().let_go(&session, &permit.path, Deadline::at(rt::now()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contend::Ticket;

    #[test]
    fn a_permit_is_no_contender() {
        assert!((0..1_000).all(|_| Ticket::parse(&name()).is_none()));
    }
}
