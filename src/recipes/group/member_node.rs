//! The node of a member: creates it, and deletes it again if nobody wants it.

use std::sync::Arc;

use crate::connection_notice::End;
use crate::contend::Hold;
use crate::error::{ErrorKind, Result};
use crate::loss_reason::LossReason;
use crate::path;
use crate::recipes::data::NodeConfig;
use crate::session::Purpose;
use crate::session::{
    Answer, Call, ClaimedName, Created, Fault, NodeKind, OnAnswer, Reaper, Session, StillMeant,
    Stop, Wait, WatchLoop, ended, make_below,
};

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
    /// A node that it has created belongs to it as long as it lives.
    pub(super) meant: StillMeant,
}

/// The outcome of an attempt to join.
pub(super) enum Joined {
    Standing(Hold),
    /// Another member's node is in the way.
    Taken,
    NotYet,
}

impl MemberNode {
    /// Creates the node, as soon as there is no other one of that name; `None` if there was one when
    /// the time was over. `unsure` is a session in which it may have been created, without an answer
    /// that says so.
    pub(super) fn join(
        &self,
        watch_loop: &mut WatchLoop,
        unsure: &mut Option<Arc<Session>>,
    ) -> Result<Option<Hold>, Stop> {
        loop {
            let joined = self.attempt(watch_loop, unsure, |call, session| {
                let late = || self.withdraw_late(session);
                call.ask_in(session, |session| self.make(session, late))
            });
            match joined? {
                Joined::Standing(hold) => return Ok(Some(hold)),
                Joined::Taken => match watch_loop.until_changed() {
                    Err(Stop::TimeOver) => return Ok(None),
                    changed => changed?,
                },
                Joined::NotYet => {}
            }
        }
    }

    /// Tries once to create the node again; as `join`, but waits neither while there is another one
    /// nor for another connection. It waits for the answer to a creation, even if the call is
    /// cancelled: to leave, it must be known whether there is a node.
    pub(super) fn rejoin(
        &self,
        watch_loop: &mut WatchLoop,
        unsure: &mut Option<Arc<Session>>,
    ) -> Result<Joined, Stop> {
        self.attempt(watch_loop, unsure, |call, session| match call.is_cancelled() {
            true => Err(Stop::Cancelled),
            false => Ok(self.make(session, || Box::new(drop))),
        })
    }

    /// Looks whose the node is, and watches it; has it made if there is none.
    fn attempt(
        &self,
        watch_loop: &mut WatchLoop,
        unsure: &mut Option<Arc<Session>>,
        make: impl FnOnce(&mut Call, &Arc<Session>) -> Result<Answer<Option<i64>>, Stop>,
    ) -> Result<Joined, Stop> {
        let session = watch_loop.call.session()?;
        let is_unsure = unsure.as_ref().is_some_and(|one| Arc::ptr_eq(one, &session));
        match watch_loop.look(&session, |view| view.watch_node(&self.whole))? {
            Ok(None) => {}
            // Because of the claim, no other call has created one in this session.
            Ok(Some((_, stat))) if stat.ephemeral_owner == session.id() && is_unsure => {
                return Ok(Joined::Standing(self.stand(session, stat.czxid)));
            }
            Ok(Some(_)) => return Ok(Joined::Taken),
            Err(fault) if fault.is_loss() => return Ok(Joined::NotYet),
            Err(fault) => return Err(self.target.refused(&fault, JOIN).into()),
        }
        let made = make(&mut watch_loop.call, &session)?;
        Ok(self.judge(made, session, unsure)?)
    }

    /// Has the node deleted that is created too late. Holds the claim until then, but no client: the
    /// last one would be closed on the thread that brings the answer.
    fn withdraw_late(&self, session: &Arc<Session>) -> OnAnswer<Created> {
        let (reaper, of_session) =
            (Arc::clone(self.target.client.core().reaper()), Arc::downgrade(session));
        let (whole, claim) = (self.whole.clone(), Arc::clone(&self.claim));
        Box::new(move |made| {
            let may_exist = matches!(made, Ok(_) | Err(Fault::ConnectionLoss));
            if let Some(session) = of_session.upgrade().filter(|_| may_exist) {
                withdraw(&reaper, &session, whole, claim);
            }
        })
    }

    /// Creates the node, and returns the transaction that created it, if that is known.
    fn make(&self, session: &Session, late: impl Fn() -> OnAnswer<Created>) -> Answer<Option<i64>> {
        let acl = &self.target.acl;
        let create = || session.create_named(&self.whole, &self.data, acl, &self.meant, late());
        let group = path::parent(&self.whole);
        let made = make_below(session, group, NodeKind::Container, acl, create)?;
        Ok(made.czxid)
    }

    /// What the answer to the creation means.
    fn judge(
        &self,
        made: Answer<Option<i64>>,
        session: Arc<Session>,
        unsure: &mut Option<Arc<Session>>,
    ) -> Result<Joined> {
        match made {
            Ok(Some(czxid)) => return Ok(Joined::Standing(self.stand(session, czxid))),
            Ok(None) | Err(Fault::ConnectionLoss) => *unsure = Some(session),
            Err(Fault::NodeExists | Fault::NoNode | Fault::SessionEnded) => {}
            Err(fault) => return Err(self.target.refused(&fault, JOIN)),
        }
        Ok(Joined::NotYet)
    }

    fn stand(&self, session: Arc<Session>, czxid: i64) -> Hold {
        let (group, id) = (path::parent(&self.path), path::last(&self.path));
        Hold::on_named(&self.target.client, session, (group, id), "membership", czxid)
    }

    /// Deletes in the background the node that a request without an answer may have created.
    pub(super) fn withdraw(&self, session: &Arc<Session>) {
        let reaper = self.target.client.core().reaper();
        withdraw(reaper, session, self.whole.clone(), Arc::clone(&self.claim));
    }

    /// Deletes the same node and waits for that. If the session ends, the node ends with it, but perhaps
    /// later.
    pub(super) fn retract(&self, session: &Arc<Session>) -> Result<()> {
        let mut call = Call::in_session(self.target.client.core(), session, &Wait::FOREVER);
        match call.insist(|session| session.confirm(&self.whole)) {
            Ok(Ok(Some(stat))) if stat.ephemeral_owner == session.id() => {
                leave(self.stand(Arc::clone(session), stat.czxid), &Wait::FOREVER).map(drop)
            }
            Ok(Ok(_)) | Err(Stop::SessionEnded(End::Expired)) => Ok(()),
            // The client itself has it ended.
            Err(Stop::SessionEnded(End::Replaced)) => {
                let over = call.wait_for(|| session.status().now().over);
                over.map_err(|stop| JOIN.stopped(stop, &call, &self.path))
            }
            Ok(Err(fault)) => {
                let purpose = Purpose::to_change("leave the group", "READ on the group's node");
                Err(self.target.refused(&fault, purpose))
            }
            Err(Stop::SessionEnded(end)) => Err(ended(end).on(&self.path)),
            Err(stop) => Err(JOIN.stopped(stop, &call, &self.path)),
        }
    }
}

fn withdraw(reaper: &Arc<Reaper>, session: &Arc<Session>, whole: String, claim: Arc<ClaimedName>) {
    reaper.disown(session, whole, move |session, _, stat| {
        // Holds the claim until then, so that no other call of this client creates the node.
        let _ = &claim;
        stat.ephemeral_owner == session.id()
    });
}

/// Releases the hold. If its node or its session has ended at the server already, there is nothing to
/// leave.
pub(super) fn leave(hold: Hold, wait: &Wait) -> Result<bool> {
    let lost = hold.lost();
    hold.release_within(wait).or_else(|error| match (error.kind(), lost.recorded()) {
        (ErrorKind::NodeDeleted, _) | (_, Some(LossReason::SessionExpired)) => Ok(true),
        _ => Err(error),
    })
}
