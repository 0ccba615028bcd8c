//! The node of a member: creates it, and deletes it again if nobody wants it.

use std::sync::Arc;

use crate::contend::hold::Hold;
use crate::error::{ErrorKind, Result};
use crate::loss_reason::LossReason;
use crate::path;
use crate::recipes::node_config::{NodeConfig, Purpose};
use crate::rt::Deadline;
use crate::session::client_core::ClaimedName;
use crate::session::connection::{Answer, Created, Fault, NodeKind, OnAnswer};
use crate::session::create_parents::make_parents;
use crate::session::notify::Waiter;
use crate::session::session::{Session, ended};
use crate::session::status::Usable;
use crate::session::wait::Wait;
use crate::session::watch_loop::{WatchLoop, worth_asking};
use crate::session_notice::End;

pub(super) const JOIN: Purpose =
    Purpose::to_change("join the group", "CREATE on the group's node, and READ");

/// The node of a member.
pub(super) struct MemberNode {
    pub(super) target: NodeConfig,
    pub(super) path: String,
    /// The node as the server knows it.
    pub(super) whole: String,
    pub(super) data: Vec<u8>,
    /// Kept as long as a node that this client has created may exist.
    pub(super) claim: Arc<ClaimedName>,
}

/// The outcome of an attempt to join.
pub(super) enum JoinOutcome {
    Standing(Hold),
    /// Another member's node was in the way, in the end.
    Taken,
    /// Or the connection was lost.
    NotInTime,
}

impl MemberNode {
    /// Creates the node, as soon as there is no other one of that name. `unsure` is a session in
    /// which it may have been created, without an answer that says so. Without `until`, it waits neither
    /// while there is another one nor for another connection, but it waits for the answer to a creation,
    /// even if the wait is cancelled: to leave, it must be known whether there is a node.
    pub(super) fn settle(
        self: &Arc<Self>,
        watch_loop: &mut WatchLoop,
        until: Option<Deadline>,
        unsure: &mut Option<Arc<Session>>,
    ) -> Result<JoinOutcome> {
        let waits_for_answer = until.is_none();
        let until = until.unwrap_or(Deadline::NEVER);
        let ask_until = worth_asking(until);
        loop {
            let Some(session) = watch_loop.session(ask_until)? else {
                return Ok(JoinOutcome::NotInTime);
            };
            match watch_loop.look(&session, ask_until, |view| view.watch_node(&self.whole)) {
                // Because of the claim, no other call has created one in this session.
                Some(Ok(Some((_, stat))))
                    if stat.ephemeral_owner == session.id()
                        && unsure.as_ref().is_some_and(|one| Arc::ptr_eq(one, &session)) =>
                {
                    return Ok(JoinOutcome::Standing(self.stand(session, stat.czxid)));
                }
                Some(Ok(Some(_))) => {
                    if waits_for_answer || !watch_loop.changed(until)? {
                        return Ok(JoinOutcome::Taken);
                    }
                    continue;
                }
                Some(Ok(None)) => {}
                Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) if waits_for_answer => {
                    return Ok(JoinOutcome::NotInTime);
                }
                Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => continue,
                Some(Err(fault)) => return Err(self.target.refused(&fault, JOIN)),
                None => return Ok(JoinOutcome::NotInTime),
            }
            match self.ask_for_node(watch_loop, &session, ask_until, waits_for_answer) {
                Some(Ok(Some(czxid))) => {
                    return Ok(JoinOutcome::Standing(self.stand(session, czxid)));
                }
                Some(Ok(None) | Err(Fault::ConnectionLoss)) => {
                    *unsure = Some(session);
                    if waits_for_answer {
                        return Ok(JoinOutcome::NotInTime);
                    }
                }
                Some(Err(Fault::SessionEnded)) if waits_for_answer => {
                    return Ok(JoinOutcome::NotInTime);
                }
                Some(Err(Fault::NodeExists | Fault::NoNode | Fault::SessionEnded)) => {}
                Some(Err(fault)) => return Err(self.target.refused(&fault, JOIN)),
                None => return Ok(JoinOutcome::NotInTime),
            }
        }
    }

    /// Creates the node; `None` if there was no answer in time, or the membership was left before
    /// the request.
    fn ask_for_node(
        self: &Arc<Self>,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        until: Deadline,
        waits_for_answer: bool,
    ) -> Option<Answer<Option<i64>>> {
        let late = || -> OnAnswer<Created> {
            let (node, of_session) = (Arc::clone(self), Arc::downgrade(session));
            Box::new(move |made| {
                let may_exist = matches!(made, Ok(_) | Err(Fault::ConnectionLoss));
                if let Some(session) = of_session.upgrade().filter(|_| may_exist) {
                    node.withdraw(&session);
                }
            })
        };
        if waits_for_answer {
            return (!watch_loop.is_cancelled()).then(|| self.make(session, late));
        }
        watch_loop.ask(session, until, |session| self.make(session, late))
    }

    /// Creates the node, and returns the transaction that created it, if that is known.
    fn make(&self, session: &Session, late: impl Fn() -> OnAnswer<Created>) -> Answer<Option<i64>> {
        let acl = &self.target.acl;
        let create = || session.create_named(&self.whole, &self.data, acl, late());
        let made = match create() {
            Err(Fault::NoNode) => {
                let group = path::parent(&self.whole);
                make_parents(session, group, NodeKind::Container, acl)?;
                create()
            }
            made => made,
        };
        made.map(|made| made.czxid)
    }

    fn stand(&self, session: Arc<Session>, czxid: i64) -> Hold {
        let (group, id) = (path::parent(&self.path), path::last(&self.path));
        Hold::on_named(&self.target.client, session, (group, id), "membership", czxid)
    }

    /// Deletes in the background the node that a request without an answer may have created.
    pub(super) fn withdraw(&self, session: &Arc<Session>) {
        let (reaper, claim) = (self.target.client.core().reaper(), Arc::clone(&self.claim));
        reaper.disown(session, self.whole.clone(), move |session, _, stat| {
            // Holds the claim until then, so that no other call of this client creates the node.
            let _ = &claim;
            stat.ephemeral_owner == session.id()
        });
    }

    /// Deletes the same node and waits for that. If the session ends, the node ends with it, but perhaps
    /// later.
    pub(super) fn retract(&self, session: &Arc<Session>) -> Result<()> {
        let waiter = Waiter::new();
        let _subscription = session.status().subscribe(waiter.bell());
        loop {
            match session.status().until_usable(&waiter, Deadline::NEVER, || false) {
                Usable::Now => {}
                Usable::Never(End::Expired) => return Ok(()),
                Usable::Never(end) => return Err(ended(end).on(&self.path)),
                Usable::NotInTime => return Ok(()),
            }
            match session.confirm(&self.whole) {
                Ok(Some(stat)) if stat.ephemeral_owner == session.id() => {
                    return leave(self.stand(Arc::clone(session), stat.czxid), &Wait::FOREVER)
                        .map(drop);
                }
                Ok(_) => return Ok(()),
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => {}
                Err(fault) => {
                    let purpose = Purpose::to_change("leave the group", "READ on the group's node");
                    return Err(self.target.refused(&fault, purpose));
                }
            }
        }
    }
}

/// Releases the hold. If its node or its session has ended at the server already, there is nothing to
/// leave.
pub(super) fn leave(hold: Hold, wait: &Wait) -> Result<bool> {
    let lost = hold.lost();
    hold.release_within(wait).or_else(|error| match (error.kind(), lost.recorded()) {
        (ErrorKind::Lost, _) | (_, Some(LossReason::SessionExpired)) => Ok(true),
        _ => Err(error),
    })
}
