//! Transactions that take effect only while a hold's node exists.
//!
//! The server checks the node in the same transaction. A commit without an answer may take effect as
//! long as the node exists. So such a node is neither handed to another holder nor kept: it is deleted,
//! and the server deletes it after the commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Hold;
use crate::error::{Error, ErrorKind, Result};
use crate::loss_reason::LossReason;
use crate::session::{Fault, Purpose, Step, Stop, Transacted};

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
    /// Commits all steps, or none, in the hold's session, and only if the nodes of the hold exist, within the
    /// connect timeout. The places of failed steps do not count the checks of the hold's nodes.
    pub(crate) fn commit(&self, steps: &[Step]) -> Result<Transacted> {
        let node = self.held_node();
        self.each().try_for_each(Hold::check)?;
        self.check_fence()?;
        if !node.session.has_transactions() {
            return Err(no_transactions(self.path()));
        }
        let core = self.client().core();
        let mut call = self.call(&core.connect_timeout().into());
        let session = call.session().map_err(|stop| match stop {
            Stop::SessionEnded(end) => self.lose_all(end.into()),
            stop => COMMIT.stopped(stop, &call, self.path()),
        })?;
        self.each().try_for_each(Hold::check)?;
        let fence = |hold: &Hold| Step::Check {
            path: hold.held_node().watchdog.node.clone(),
            version: None,
        };
        let steps: Vec<Step> = self.each().map(fence).chain(steps.iter().cloned()).collect();
        for hold in self.each() {
            hold.held_node().unanswered.fetch_add(1, Ordering::SeqCst);
        }
        let transacted = match call.ask_in(&session, |session| session.commit(&steps)) {
            Ok(Ok(transacted)) => Ok(transacted),
            // It stays in doubt, so `unanswered` still counts it.
            Ok(Err(Fault::ConnectionLoss | Fault::SessionEnded)) | Err(_) => {
                let message = "the connection was lost before the reply came: the transaction may \
                               have been committed";
                return Err(Error::new(ErrorKind::ConnectionLoss, message).on(self.path()));
            }
            Ok(Err(fault)) => Err(COMMIT.refused(&fault, self.path())),
        };
        for hold in self.each() {
            hold.held_node().unanswered.fetch_sub(1, Ordering::SeqCst);
        }
        match transacted? {
            Err((place, fault)) => match (self.each().nth(place), fault) {
                (Some(hold), Fault::NoNode) => Err(hold.lose(LossReason::NodeDeleted)),
                (Some(hold), fault) => Err(CHECK.refused(&fault, hold.path())),
                (None, fault) => Ok(Err((place - self.each().count(), fault))),
            },
            Ok(done) => Ok(Ok(done.into_iter().skip(self.each().count()).collect())),
        }
    }

    /// Refuses a hold whose nodes one transaction cannot check.
    fn check_fence(&self) -> Result<()> {
        let session = &self.held_node().session;
        let why = if self.each().any(|hold| !Arc::ptr_eq(&hold.held_node().session, session)) {
            "these locks belong to several sessions, and a transaction to one"
        } else if self.each().any(|hold| hold.held_node().watchdog.named.is_some()) {
            "another session may take the name of this node, so no transaction can check whose it is"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, why).on(self.path()))
    }

    fn lose_all(&self, why: LossReason) -> Error {
        for hold in self.each() {
            hold.held_node().watchdog.lose(why);
        }
        self.lose(why)
    }
}
