//! A participant of a two-phase commit.

use std::sync::Arc;

use uuid::Uuid;

use super::round::{Decision, Round, RoundState, Vote, find_round, here, no_round, read, vote};
use crate::contend::{Hold, insist, insist_within};
use crate::error::{Error, ErrorKind, Result};
use crate::loss_reason::LossReason;
use crate::path;
use crate::recipes::data::NodeConfig;
use crate::recipes::locks::{default_data, guard};
use crate::rt::{self, Deadline};
use crate::session::Purpose;
use crate::session::{
    Answer, ClientCore, Created, Fault, NodeKind, OnAnswer, Session, Step, StillMeant, Stop, View,
    Wait, WatchLoop, cancelled,
};

/// Votes in a round of a [`TwoPhaseCommit`](crate::TwoPhaseCommit) that this client has joined.
///
/// Dropping it has the same effect as its death: keep it until the decision is known.
///
/// It dereferences to a [`Hold`] on the node that shows that it is here. Its
/// [transactions](Hold::transaction) are refused, with
/// [`InvalidArgument`](ErrorKind::InvalidArgument), because another session may take its name.
#[must_use = "if unused the participant is gone immediately"]
#[clippy::has_significant_drop]
pub struct Participant {
    target: NodeConfig,
    hold: Hold,
    name: String,
    round: String,
}

const JOIN: Purpose = Purpose::to_change("join the round", "READ, CREATE and DELETE on its node");
const VOTE: Purpose = Purpose::to_change("vote", "READ, CREATE and DELETE on the round's node");
const LEARN: Purpose = Purpose::to_read("learn the decision", "READ on the round's node");

impl Participant {
    pub(super) fn join(target: &NodeConfig, name: &str, wait: &Wait) -> Result<Participant> {
        let (node, core) = (target.node()?, target.client.core());
        path::lock_path(node, name)?;
        let own = core.whole(&path::lock_path(node, &here(name))?);
        // The data that only this call writes.
        let mut data = default_data();
        data.extend(format!(" entry={}", Uuid::from_u128(rt::random())).bytes());
        let mut place = Place {
            target,
            name,
            whole: target.whole()?,
            own,
            data,
            unsure: None,
            meant: StillMeant::default(),
        };
        let (begin, mut watch_loop) = (rt::now(), WatchLoop::new(target.call(wait)));
        let joined = place.take(&mut watch_loop);
        let was_asked = place.unsure.is_some();
        if let (Some(session), Err(_) | Ok(None)) = (&place.unsure, &joined) {
            discard(core, session, place.own, place.data);
        }
        match joined {
            Ok(Some(participant)) => Ok(participant),
            Ok(None) => {
                let message = format!(
                    "the name {name:?} was in use for {:.1?}, or an earlier session has not ended: \
                     use another name, or wait longer",
                    rt::now().saturating_duration_since(begin)
                );
                Err(Error::new(ErrorKind::Taken, message).on(node))
            }
            Err(Stop::TimeOver) => Err(JOIN.unanswered(core, was_asked, node)),
            // If the node was created, it is being deleted.
            Err(Stop::Cancelled) => Err(cancelled(node)),
            Err(stop) => Err(JOIN.stopped(stop, &watch_loop.call, node)),
        }
    }

    /// Votes, and returns whether the vote counts: `false` if the round was already decided, which
    /// can only be to abort.
    ///
    /// A participant that votes yes must be able to commit from then on, whatever happens, and must
    /// not commit before the [decision](Participant::decision). To vote the same again is no error,
    /// not even after a restart.
    ///
    /// # Errors
    ///
    /// [`Conflict`](ErrorKind::Conflict) if it has voted the other way before;
    /// [`SessionLost`](ErrorKind::SessionLost) or [`NodeDeleted`](ErrorKind::NodeDeleted) if it is no longer
    /// here: join again to learn whether the vote counts; otherwise as
    /// [`decision`](Participant::decision).
    pub fn vote(&self, vote: Vote) -> Result<bool> {
        self.vote_within(vote, Wait::FOREVER)
    }

    /// Votes as [`vote`](Participant::vote) does, waiting at most `wait` for the answer.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) or [`Connect`](ErrorKind::Connect) at the end
    /// of `wait`, and [`Cancelled`](ErrorKind::Cancelled): except for `Connect`, the vote may
    /// count. Otherwise as [`vote`](Participant::vote).
    pub fn vote_within(&self, vote: Vote, wait: impl Into<Wait>) -> Result<bool> {
        let wait = wait.into();
        self.cast(vote, &wait).map_err(|error| match error.kind() {
            // Its node was deleted together with the round's.
            ErrorKind::NodeDeleted if self.is_forgotten(&wait) => no_round(&self.target),
            _ => error,
        })
    }

    fn is_forgotten(&self, wait: &Wait) -> bool {
        let limit = Deadline::after(self.target.client.core().connect_timeout());
        let look = |view: &mut View<'_>, whole: &str| read(view.session, whole).map(Some);
        let found = self.target.find_or_none(LEARN, self.target.call(&wait.earlier(limit)), look);
        let is_other =
            |found: Option<(Round, i32)>| found.is_none_or(|(round, _)| round.id != self.round);
        found.is_ok_and(|found| found.is_some_and(is_other))
    }

    fn cast(&self, vote: Vote, wait: &Wait) -> Result<bool> {
        self.hold.check()?;
        let whole = self.target.whole()?;
        let cast = |session: &Session| self.cast_in(session, &whole, vote);
        let answer = self.hold.persist(wait, VOTE, cast)?;
        answer.map_err(|fault| self.target.refused(&fault, VOTE))?
    }

    /// Whether the vote counts: `false` if the round was decided before.
    fn cast_in(&self, session: &Session, whole: &str, voted: Vote) -> Answer<Result<bool>> {
        let (name, path) = (&self.name, |child: String| path::join(whole, &child));
        loop {
            let found = read(session, whole)?.filter(|(round, _)| round.id == self.round);
            let Some((round, version)) = found else { return Ok(Err(no_round(&self.target))) };
            let children = session.names(whole, false)?.unwrap_or_default();
            let own = Round { participants: vec![name.clone()], ..round.clone() };
            let state = RoundState::new(&own, &children).participants;
            // An earlier attempt, or an earlier process, has voted.
            if let Some(earlier) = state.iter().find_map(|one| one.vote) {
                if earlier == voted {
                    return Ok(Ok(true));
                }
                let message = format!("{name:?} has already voted the other way");
                return Ok(Err(self.target.error(ErrorKind::Conflict, message)));
            }
            if round.decision.is_some() {
                return Ok(Ok(false));
            }
            let create = |child: String| Step::Create {
                path: path(child),
                data: Vec::new(),
                acl: self.target.acl.clone(),
                kind: NodeKind::Persistent,
            };
            // Creates and deletes the other vote, which fails if it exists: so two threads cannot
            // cast different votes.
            let steps = [
                Step::Check { path: whole.to_owned(), version: Some(version) },
                Step::Check { path: path(here(name)), version: None },
                create(vote(name, voted.other())),
                Step::delete(path(vote(name, voted.other()))),
                create(vote(name, voted)),
            ];
            match session.transact(&steps) {
                Ok(()) => return Ok(Ok(true)),
                Err(Fault::BadVersion | Fault::NodeExists) => {}
                Err(Fault::NoNode) => {
                    return Ok(Err(self.hold.lost_error(LossReason::NodeDeleted)));
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Blocks until the round is decided, and returns the decision.
    ///
    /// Lost sessions do not end the wait: the decision holds for this participant even if it counts
    /// as gone.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the round is forgotten; others that [end every
    /// wait](crate::guide#what-ends-every-wait).
    pub fn decision(&self) -> Result<Decision> {
        insist(|| self.decided(&Wait::FOREVER))
    }

    /// Waits for the decision, at most `wait`; `None` if there is still none then.
    ///
    /// # Errors
    ///
    /// [`Connect`](ErrorKind::Connect) if no server answered in time;
    /// [`Cancelled`](ErrorKind::Cancelled); otherwise as [`decision`](Participant::decision).
    pub fn decision_within(&self, wait: impl Into<Wait>) -> Result<Option<Decision>> {
        let wait = wait.into();
        insist_within(&wait, || self.decided(&wait))
    }

    fn decided(&self, wait: &Wait) -> Result<Option<Decision>> {
        let decision = self.target.find(LEARN, self.target.call(wait), |view, whole| {
            // If the round does not exist, that is an answer, too.
            Ok(match find_round(view, whole, &self.round)? {
                None => Some(None),
                Some((round, _)) => round.decision.map(Some),
            })
        })?;
        match decision {
            None => Ok(None),
            Some(Some(decision)) => Ok(Some(decision)),
            Some(None) => Err(no_round(&self.target)),
        }
    }
}

/// A participant's place in the round, for one that joins.
struct Place<'a> {
    target: &'a NodeConfig,
    name: &'a str,
    /// The round's node, and the participant's, as the server knows them.
    whole: String,
    own: String,
    data: Vec<u8>,
    /// The session in which the node may have been created without an answer that says so.
    unsure: Option<Arc<Session>>,
    meant: StillMeant,
}

impl Place<'_> {
    /// Takes it as soon as it is free; `None` if it was taken when the time was over.
    fn take(&mut self, watch_loop: &mut WatchLoop) -> Result<Option<Participant>, Stop> {
        let &mut Place { target, name, .. } = self;
        let node = target.node()?;
        loop {
            let session = watch_loop.call.session()?;
            let joined = watch_loop
                .call
                .ask_in(&session, |asked| self.join(asked, || self.discard_late(&session)));
            if !matches!(joined, Ok(Ok(_))) {
                self.unsure = Some(Arc::clone(&session));
            }
            match joined? {
                Ok(Ok(Some((round, czxid)))) => {
                    let (place, noun) = ((node, &*here(name)), "participant's place");
                    let hold = Hold::on_named(&target.client, session, place, noun, czxid);
                    let (target, name) = (target.clone(), name.to_owned());
                    return Ok(Some(Participant { target, hold, name, round }));
                }
                Ok(Err(error)) => return Err(error.into()),
                Ok(Ok(None)) => match self.until_free(watch_loop, &session) {
                    Err(Stop::TimeOver) => return Ok(None),
                    free => free?,
                },
                Err(fault) if fault.is_loss() => {}
                Err(fault) => return Err(target.refused(&fault, JOIN).into()),
            }
        }
    }

    /// Makes the participant's node, or finds the one that an earlier attempt has made. Returns the
    /// round's id and the node's czxid; `None` if the name is taken.
    fn join(
        &self,
        session: &Session,
        late: impl Fn() -> OnAnswer<Created>,
    ) -> Answer<Result<Option<(String, i64)>>> {
        let Place { target, name, whole, own, data, .. } = self;
        let Some((round, _)) = read(session, whole)? else { return Ok(Err(no_round(target))) };
        if !round.participants.iter().any(|one| one == name) {
            let message = format!("{name:?} is no participant of this round");
            return Ok(Err(target.error(ErrorKind::InvalidName, message)));
        }
        loop {
            match session.read(own, false)? {
                Some((found, stat)) if found == *data && stat.ephemeral_owner == session.id() => {
                    return Ok(Ok(Some((round.id, stat.czxid))));
                }
                // Left by an earlier session of ours, which has not ended on the server yet.
                Some((found, _)) if found == *data => match session.delete(own) {
                    Ok(()) | Err(Fault::NoNode) => {}
                    Err(fault) => return Err(fault),
                },
                Some(_) => return Ok(Ok(None)),
                None => match session.create_named(own, data, &target.acl, &self.meant, late()) {
                    Ok(_) | Err(Fault::NodeExists) => {}
                    Err(Fault::NoNode) => return Ok(Err(no_round(target))),
                    Err(fault) => return Err(fault),
                },
            }
        }
    }

    /// Waits until the name may be free. The server deletes the node of an earlier process at the end
    /// of its session.
    fn until_free(&self, watch_loop: &mut WatchLoop, session: &Arc<Session>) -> Result<(), Stop> {
        watch_loop.call.allow_grace();
        let is_taken = watch_loop.look(session, |view| {
            let names = view.watch_names(&self.whole)?;
            Ok(names.is_some_and(|names| names.contains(&here(self.name))))
        })?;
        match is_taken {
            Ok(true) => watch_loop.until_changed(),
            Err(fault) if !fault.is_loss() => Err(self.target.refused(&fault, JOIN).into()),
            _ => watch_loop.call.check(),
        }
    }

    fn discard_late(&self, session: &Arc<Session>) -> OnAnswer<Created> {
        let core = Arc::downgrade(self.target.client.core());
        let (of_session, own, data) =
            (Arc::downgrade(session), self.own.clone(), self.data.clone());
        Box::new(move |_| {
            if let (Some(core), Some(session)) = (core.upgrade(), of_session.upgrade()) {
                discard(&core, &session, own, data);
            }
        })
    }
}

/// Deletes the node in the background, if it is there and it is ours.
fn discard(core: &ClientCore, session: &Arc<Session>, own: String, data: Vec<u8>) {
    core.reaper().disown(session, own, move |_, found, _| found == data);
}

guard!(Participant);
