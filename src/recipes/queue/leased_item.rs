//! Leased items: they leave the queue only when their consumer acknowledges them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::item_cache::Reservation;
use crate::contend::{Hold, is_contender};
use crate::error::{Error, ErrorKind, Result};
use crate::fencing::FencingToken;
use crate::loss_reason::LossReason;
use crate::path;
use crate::session::{Answer, Fault, Purpose, Session, Step, Wait};

/// After this many attempts in which other contenders came or went, an acknowledgement fails.
const ATTEMPTS: usize = 100;

const ACK: Purpose =
    Purpose::to_change("acknowledge an item", "DELETE on the queue's node and on the item");

/// Holds the lease of an item of a [`DistributedQueue`](crate::DistributedQueue), which stays in
/// the queue until it is [acknowledged](LeasedItem::ack).
///
/// While the lease is held, no other consumer gets the item. If the value is dropped, its process
/// dies, or its session is lost, the item returns to its place in the queue. So each item is
/// delivered **at least once**: a consumer that lost its lease may have done all of the work.
///
/// It reports its loss as a [`LockGuard`](crate::LockGuard) does.
#[must_use = "if unused the item returns to the queue immediately"]
#[clippy::has_significant_drop]
pub struct LeasedItem {
    // Dropped first: the next thread of this process that gets the item must find no lease.
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
        // Other threads of this process would otherwise go on leaving the item to this value.
        hold.on_lost(move |_| lost.give_back());
        LeasedItem { hold, claim, path, data }
    }

    /// Returns the data that was offered.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the path of the item's node, without the chroot.
    ///
    /// It ends with the item's number, which a returned item keeps.
    ///
    /// The node of the [lease](Hold::path) is a child of it.
    pub fn item_path(&self) -> &str {
        &self.path
    }

    /// Returns the number to send with each write, so that its receiver can refuse late writes of a
    /// former holder.
    ///
    /// A later lease of the same item has a greater token.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Deletes the item from the queue, if the lease is still held.
    ///
    /// One transaction deletes the lease and the item, or neither. The call waits for the outcome,
    /// over lost connections, until the session is lost.
    ///
    /// # Errors
    ///
    /// After any error, other consumers may get the item, or may have got it.
    ///
    /// - [`NodeDeleted`](crate::ErrorKind::NodeDeleted) if another client has deleted the lease.
    /// - [`SessionLost`](crate::ErrorKind::SessionLost), [`Closed`](crate::ErrorKind::Closed) or
    ///   [`AuthFailed`](crate::ErrorKind::AuthFailed) if the session was lost. If the item may have
    ///   been deleted before that, the error [says so](crate::Error::may_have_taken_effect).
    /// - [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without DELETE on the queue's node and
    ///   on the item; [`Server`](crate::ErrorKind::Server) if the item has a child that cannot be
    ///   deleted with it, which the message names. The item returns to the queue.
    pub fn ack(self) -> Result<()> {
        self.ack_within(Wait::FOREVER)
    }

    /// Deletes the item from the queue as [`ack`](LeasedItem::ack) does, waiting at most `wait`.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) at the end of `wait`: the item may be
    /// gone from the queue, or return to it. [`Connect`](crate::ErrorKind::Connect) if nothing was
    /// sent by then: it returns to the queue. [`Cancelled`](crate::ErrorKind::Cancelled); if the
    /// request was sent by then, the error [says so](crate::Error::may_have_taken_effect).
    /// Otherwise as [`ack`](LeasedItem::ack).
    pub fn ack_within(mut self, wait: impl Into<Wait>) -> Result<()> {
        let wait = wait.into();
        let _left = self.hold.leave(&wait)?;
        let mut unanswered = false;
        let (lease, item) = (self.hold.whole(self.hold.path()), self.hold.whole(&self.path));
        let acked = self.hold.persist(&wait, ACK, |session| {
            let acked = settle(session, &lease, &item, unanswered);
            unanswered |= acked == Err(Fault::ConnectionLoss);
            acked
        });
        let refused = match acked {
            Ok(Ok(())) => {
                self.claim.note_gone();
                return Ok(());
            }
            Ok(Err(Fault::NoNode)) => return Err(self.hold.lost_error(LossReason::NodeDeleted)),
            Ok(Err(fault)) => ACK.refused(&fault, &self.path),
            // The session may live on: the item may be gone, or returns when its lease is deleted.
            Err(late) if !has_ended(&late) => late,
            Err(lost) if lost.may_have_taken_effect() => {
                return Err(Error::new(
                    lost.kind(),
                    "no reply to the acknowledgement of an item before the session was lost: the \
                     item may be gone from the queue, or return to it",
                )
                .on(&self.path)
                .caused_by(lost)
                .in_doubt());
            }
            Err(lost) => return Err(lost),
        };
        self.hold.discard(self.hold.path());
        Err(refused)
    }
}

/// Deletes the lease and the item; `NoNode` if the lease was lost.
fn settle(session: &Session, lease: &str, item: &str, unanswered: bool) -> Answer<()> {
    let mut others = Vec::new();
    for _ in 0..ATTEMPTS {
        // The lease comes first: without it, nothing else may be deleted.
        let paths = [lease.to_owned()].into_iter().chain(others.clone()).chain([item.to_owned()]);
        let steps: Vec<Step> = paths.map(Step::delete).collect();
        match session.transact(&steps) {
            // Contenders that did not get the lease, and whose nodes are not deleted yet. They are
            // deleted with the item, without which they get nothing anyway.
            Err(Fault::NotEmpty) => {
                let children = session.names(item, false)?.ok_or(Fault::NoNode)?;
                // Nodes that are not contenders belong to others, and are never deleted.
                if let Some(name) = children.iter().find(|name| !is_contender(name)) {
                    return Err(stuck(&format!("its child {name:?} is not a contender")));
                }
                let others_of = children.iter().map(|name| path::join(item, name));
                let now: Vec<String> = others_of.filter(|path| path != lease).collect();
                if now == others {
                    refuse_parents(session, &others)?;
                }
                others = now;
            }
            Err(Fault::NoNode) if session.confirm(lease)?.is_some() => others = Vec::new(),
            // An earlier attempt may have taken effect.
            Err(Fault::NoNode) if unanswered && session.confirm(item)?.is_none() => return Ok(()),
            answer => return answer,
        }
    }
    Err(stuck(&format!("other contenders came and went in {ATTEMPTS} attempts")))
}

/// Refuses contenders that have children: such a node is never deleted with the item.
fn refuse_parents(session: &Session, contenders: &[String]) -> Answer<()> {
    for contender in contenders {
        if session.names(contender, false)?.is_some_and(|children| !children.is_empty()) {
            let name = path::last(contender);
            return Err(stuck(&format!("its child {name:?} has children of its own")));
        }
    }
    Ok(())
}

/// Whether an error tells the end of the lease's session, which deletes the lease.
fn has_ended(error: &Error) -> bool {
    use ErrorKind::{AuthFailed, Closed, NodeDeleted, SessionLost};
    [AuthFailed, Closed, NodeDeleted, SessionLost].contains(&error.kind())
}

fn stuck(why: &str) -> Fault {
    Fault::Refused(format!("the item cannot be deleted: {why}"))
}

impl Deref for LeasedItem {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
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
