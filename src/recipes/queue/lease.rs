//! An item that is taken out of the queue only when its consumer acknowledges it.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use super::item_cache::Reservation;
use crate::contend::errors::refusal;
use crate::contend::hold::Hold;
use crate::contend::loss_reason::LossReason;
use crate::contend::ticket::Ticket;
use crate::contend::watchdog::Lost;
use crate::error::{Error, Result};
use crate::path;
use crate::session::connection::{Answer, Fault, Step};
use crate::session::session::Session;

/// After so many attempts in which other contenders have come or gone, an acknowledgement fails.
const ATTEMPTS: usize = 100;

/// The first item of a [`DistributedQueue`](crate::DistributedQueue), which stays there until it is
/// [acknowledged](LeasedItem::ack).
///
/// As long as this lives, nobody else is given the item. Dropped, it lets the item return to its
/// place in the queue, as the death of its process does, or the loss of its session. So each item
/// is delivered **at least once**: whoever was at work on it when the lease was lost may have done
/// all of it.
///
/// It holds what a [`LockGuard`](crate::LockGuard) holds, of a lock that the item's own node is, and
/// knows of a loss in the same way.
#[must_use = "if unused the item returns to the queue immediately"]
#[clippy::has_significant_drop]
pub struct LeasedItem {
    // In this order: who of ours looks for the item next finds no lease.
    hold: Hold,
    claim: Arc<Reservation>,
    path: String,
    data: Vec<u8>,
}

impl LeasedItem {
    pub(crate) fn new(
        hold: Hold,
        claim: Arc<Reservation>,
        path: String,
        data: Vec<u8>,
    ) -> LeasedItem {
        let lost = Arc::clone(&claim);
        // For the others of this process, who would else leave it to us.
        hold.on_lost(Box::new(move |_| lost.give_back()));
        LeasedItem { hold, claim, path, data }
    }

    /// What was offered.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The item's number in the queue. An item that returns keeps its own.
    pub fn sequence(&self) -> i32 {
        self.claim.item().sequence()
    }

    /// The item's node, as the client names it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the item is ours for all that is known here, as
    /// [`LockGuard::is_held`](crate::LockGuard::is_held).
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// Asks the ensemble whether the item is ours, as
    /// [`LockGuard::ensure_held`](crate::LockGuard::ensure_held).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn ensure_held(&self) -> Result<()> {
        self.hold.ensure_held()
    }

    /// A handle by which any thread can wait for the loss of the lease.
    pub fn lost(&self) -> Lost {
        self.hold.lost()
    }

    /// Calls `callback`, once, when the lease is lost, as
    /// [`LockGuard::on_lost`](crate::LockGuard::on_lost).
    pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        self.hold.on_lost(Box::new(callback));
    }

    /// Takes the item out of the queue for good, if it is still ours: one transaction deletes the
    /// lease and the item, or neither. Waits for the outcome, over lost connections, until the
    /// session is lost.
    ///
    /// # Errors
    ///
    /// Whatever the error, others may be given the item, or may have been.
    /// [`LockLost`](crate::ErrorKind::LockLost) if somebody has deleted the lease;
    /// [`SessionLost`](crate::ErrorKind::SessionLost), [`Closed`](crate::ErrorKind::Closed) or
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed) if the session was lost, perhaps after the item
    /// had been deleted: the message says so;
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without DELETE on the queue's node and on
    /// the item, and [`Server`](crate::ErrorKind::Server) if the item has a child that cannot be
    /// deleted with it, which the message names; after both the item returns.
    pub fn ack(mut self) -> Result<()> {
        let _left = self.hold.leave()?;
        let unanswered = Cell::new(false);
        let acked = self.hold.persist(|session, whole| {
            let acked = settle(session, &whole(self.hold.path()), &whole(&self.path), &unanswered);
            unanswered.set(unanswered.get() || acked == Err(Fault::ConnectionLoss));
            acked
        });
        let refused = match acked {
            Ok(Ok(())) => {
                self.claim.is_gone();
                return Ok(());
            }
            Ok(Err(Fault::NoNode)) => return Err(self.hold.lost_error(LossReason::NodeDeleted)),
            Ok(Err(fault)) => {
                let needs = "DELETE on the queue's node and on the item";
                refusal(&fault, "acknowledge an item", needs, &self.path)
            }
            Err(lost) if unanswered.get() => {
                return Err(Error::new(
                    lost.kind(),
                    "there was no answer to the acknowledgement of an item before the session \
                     was lost: it may be gone from the queue, or return",
                )
                .on(&self.path)
                .caused_by(lost));
            }
            Err(lost) => return Err(lost),
        };
        self.hold.discard(self.hold.path());
        Err(refused)
    }
}

/// Deletes lease and item; `NoNode` if the lease was lost.
fn settle(session: &Session, lease: &str, item: &str, unanswered: &Cell<bool>) -> Answer<()> {
    let mut others = Vec::new();
    for _ in 0..ATTEMPTS {
        // The lease comes first: without it, nothing else is to go.
        let paths = [lease.to_owned()].into_iter().chain(others.clone()).chain([item.to_owned()]);
        let steps: Vec<Step> = paths.map(|path| Step::Delete { path }).collect();
        match session.transact(&steps) {
            // Those who have contended in vain, and have not gone yet. Without the item they get
            // nothing anyway.
            Err(Fault::NotEmpty) => {
                let children = session.children(item, false)?.ok_or(Fault::NoNode)?;
                // A stranger's nodes are not ours to delete.
                if let Some(name) = children.iter().find(|name| Ticket::parse(name).is_none()) {
                    return Err(stuck(&format!("it has a child that is no contender, {name:?}")));
                }
                let others_of = children.iter().map(|name| path::join(item, name));
                let now: Vec<String> = others_of.filter(|path| path != lease).collect();
                if now == others {
                    refuse_parents(session, &others)?;
                }
                others = now;
            }
            Err(Fault::NoNode) if session.confirm(lease)?.is_some() => others = Vec::new(),
            Err(Fault::NoNode) if unanswered.get() && session.confirm(item)?.is_none() => {
                return Ok(());
            }
            // Also that of asking what has become of it.
            answer => {
                unanswered.set(unanswered.get() || answer == Err(Fault::ConnectionLoss));
                return answer;
            }
        }
    }
    Err(stuck(&format!("other contenders came and went in {ATTEMPTS} attempts")))
}

/// A contender that has a child is never deleted with the item.
fn refuse_parents(session: &Session, contenders: &[String]) -> Answer<()> {
    for contender in contenders {
        if session.children(contender, false)?.is_some_and(|children| !children.is_empty()) {
            let name = path::last(contender);
            return Err(stuck(&format!("its child {name:?} has children of its own")));
        }
    }
    Ok(())
}

fn stuck(why: &str) -> Fault {
    Fault::Refused(format!("the item cannot be deleted: {why}"))
}

impl fmt::Debug for LeasedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedItem")
            .field("path", &self.path)
            .field("bytes", &self.data.len())
            .field("is_held", &self.is_held())
            .finish()
    }
}
