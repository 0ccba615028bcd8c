//! Transactions that take effect only while a hold's node exists.
//!
//! The server checks the node in the same transaction. A commit without an answer may take effect as
//! long as the node exists. So such a node is neither handed to another holder nor kept: it is deleted,
//! and the server deletes it after the commit.

use std::sync::atomic::Ordering;

use super::hold::Hold;
use crate::error::{Error, ErrorKind, Result};
use crate::loss_reason::LossReason;
use crate::session::blocking_call::Stop;
use crate::session::connection::{Fault, Step, Transacted};
use crate::session::request_purpose::Purpose;

pub(crate) const COMMIT: Purpose =
    Purpose::to_change("commit the transaction", "other permissions on the nodes of its steps");
const CHECK: Purpose =
    Purpose::to_change("check the holder's node in the transaction", "READ on the node");

/// The error of a transaction on a connection that has none.
pub(crate) fn no_transactions(path: &str) -> Error {
    let message = "the zookeeper crate has no transactions: connect with `Client::connect`";
    Error::new(ErrorKind::Unsupported, message).on(path)
}

impl Hold {
    /// Commits all steps, or none, in the hold's session, and only if the hold's node exists, within the
    /// connect timeout. The places of failed steps do not count the check of the hold's node.
    pub(crate) fn commit(&self, steps: &[Step]) -> Result<Transacted> {
        let node = self.held_node();
        self.check()?;
        if !node.session.has_transactions() {
            return Err(no_transactions(self.path()));
        }
        let core = self.client().core();
        let mut call = self.call(&core.connect_timeout().into());
        let session = call.session().map_err(|stop| match stop {
            Stop::SessionEnded(end) => {
                node.watchdog.lose(end.into());
                self.lost_error(end.into())
            }
            stop => COMMIT.stopped(stop, &call, self.path()),
        })?;
        self.check()?;
        let fence = Step::Check { path: node.watchdog.node.clone(), version: None };
        let steps: Vec<Step> = [fence].into_iter().chain(steps.iter().cloned()).collect();
        node.unanswered.fetch_add(1, Ordering::SeqCst);
        let transacted = match call.ask_in(&session, |session| session.commit(&steps)) {
            Ok(Ok(transacted)) => transacted,
            // It stays in doubt, so `unanswered` still counts it.
            Ok(Err(Fault::ConnectionLoss | Fault::SessionEnded)) | Err(_) => {
                let message = "the connection was lost before the reply came: the transaction may \
                               have been committed";
                return Err(Error::new(ErrorKind::ConnectionLoss, message).on(self.path()));
            }
            Ok(Err(fault)) => {
                node.unanswered.fetch_sub(1, Ordering::SeqCst);
                return Err(COMMIT.refused(&fault, self.path()));
            }
        };
        node.unanswered.fetch_sub(1, Ordering::SeqCst);
        match transacted {
            Err((0, Fault::NoNode)) => {
                node.watchdog.lose(LossReason::NodeDeleted);
                Err(self.lost_error(LossReason::NodeDeleted))
            }
            Err((0, fault)) => Err(CHECK.refused(&fault, self.path())),
            Err((place, fault)) => Ok(Err((place - 1, fault))),
            Ok(mut done) => {
                if !done.is_empty() {
                    done.remove(0);
                }
                Ok(Ok(done))
            }
        }
    }
}
