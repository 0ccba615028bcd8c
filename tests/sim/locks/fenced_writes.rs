//! Holders write with transactions of their guards. No write may take effect after that of a later
//! holder, and no node may be granted again while such a transaction is in doubt.

use std::collections::HashSet;

use super::State;
use super::Trial;
use super::Violation;
use super::any_lock::Guard;
use crate::ErrorKind;
use crate::FencingToken;
use crate::rt::schedule::Process;

/// The node that the holders write to.
pub(super) const TARGET: &str = "/fenced";

#[derive(Default)]
pub(super) struct Fenced {
    /// How much of the log was searched for writes.
    searched: usize,
    /// The token of the last write.
    latest: Option<FencingToken>,
    /// Nodes whose holders had a transaction without an answer.
    in_doubt: HashSet<String>,
}

impl Trial {
    /// Writes the guard's token, if the guard excludes all other holders.
    pub(super) fn write_fenced(&self, process: Process, guard: &Guard, session: i64) {
        let (transaction, path, token) = match guard {
            Guard::Mutex(guard) => (guard.transaction(), guard.path(), guard.fencing_token()),
            Guard::Write(guard) => (guard.transaction(), guard.path(), guard.fencing_token()),
            Guard::Read(_) | Guard::Permits(_) | Guard::Several(_) => return,
        };
        let existed = self.world.look(|world| world.contains(path));
        let Err(error) = transaction.write(TARGET, token.to_string()).commit() else {
            if !existed {
                self.accuse(format!("{path} was gone, and its holder could write"));
            }
            return;
        };
        let fits = match error.kind() {
            ErrorKind::NodeDeleted => {
                self.check_deleted(path, session);
                true
            }
            ErrorKind::ConnectionLoss => {
                self.state.lock().fenced.in_doubt.insert(path.to_owned());
                true
            }
            ErrorKind::Connect | ErrorKind::SessionLost => {
                !self.plan.faults.is_empty() || self.plan.habits.is_old
            }
            // The server hides the node even from the session that created it.
            ErrorKind::NotAuthorized => self.plan.hidden && process == 0,
            _ => self.expected(&error, false),
        };
        if !fits {
            self.accuse(format!("{path} could not write: {error:?}"));
        }
    }

    /// Checks that no token was written after a greater one.
    pub(super) fn check_fenced(&self, state: &mut State) -> Result<(), Violation> {
        let fenced = &mut state.fenced;
        self.world.look(|world| {
            let (written, searched) = world.transacted_since(TARGET, fenced.searched);
            fenced.searched = searched;
            for text in written {
                let text = String::from_utf8_lossy(text);
                let token: FencingToken = text.parse().map_err(|_| format!("written: {text}"))?;
                if fenced.latest > Some(token) {
                    return Err(format!("{token} has written after {:?}", fenced.latest));
                }
                fenced.latest = Some(token);
            }
            Ok(())
        })
    }

    pub(super) fn check_not_in_doubt(&self, paths: &[String]) {
        let in_doubt = |path: &&String| self.state.lock().fenced.in_doubt.contains(*path);
        if let Some(path) = paths.iter().find(in_doubt) {
            self.accuse(format!("{path} was granted again, with a transaction in doubt"));
        }
    }
}
