//! The coordinator of a two-phase commit.

use std::collections::BTreeSet;

use super::round::{
    Decision, ParticipantState, Round, RoundState, Vote, find_round, here, no_round, vote,
};
use crate::acl::Acl;
use crate::contend::{insist, insist_within};
use crate::error::Result;
use crate::path;
use crate::recipes::data::NodeConfig;
use crate::rt::Mutex;
use crate::session::{Answer, Fault, NodeKind, Purpose, Step, View, Wait};

/// Decides a round of a [`TwoPhaseCommit`](crate::TwoPhaseCommit) that this client has begun or
/// recovered.
///
/// Dropping it decides nothing: the round waits until a client
/// [recovers](crate::TwoPhaseCommit::recover) it.
#[derive(Debug)]
#[must_use = "dropping it decides nothing: the round waits until it is recovered"]
pub struct Coordinator {
    target: NodeConfig,
    round: Round,
    /// The participants that were seen here: one that is no longer here has died.
    seen: Mutex<BTreeSet<String>>,
}

const DECIDE: Purpose =
    Purpose::to_change("decide the round", "READ, WRITE and CREATE on its node");

/// How the coordinator decides.
#[derive(Clone, Copy)]
enum Plan {
    AsVoted,
    Abort,
}

impl Coordinator {
    pub(super) fn new(target: NodeConfig, round: Round) -> Coordinator {
        Coordinator { target, round, seen: Mutex::default() }
    }

    /// Returns all participants' names, joined or not.
    pub fn participants(&self) -> &[String] {
        &self.round.participants
    }

    /// Waits for the votes, decides to commit or to abort, and returns the decision.
    ///
    /// Commits when all participants have voted yes. Aborts when one has voted no, or was seen here
    /// and has died. Keeps waiting for participants that never come, and, if the round was
    /// recovered, for those that had died before without a vote. If the round is already decided,
    /// returns that decision.
    ///
    /// # Errors
    ///
    /// As [`Participant::decision`](crate::commit::Participant::decision). After an error the round
    /// may be decided or not.
    pub fn decide(&self) -> Result<Decision> {
        insist(|| self.settle(Plan::AsVoted, &Wait::FOREVER))
    }

    /// Waits at most `wait` for the votes, and decides; `None` if it is still undecided
    /// then.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) or
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) at the end of `wait` if there was no
    /// answer; [`Cancelled`](crate::ErrorKind::Cancelled), which
    /// [says](crate::Error::may_have_taken_effect) whether the decision may have been written:
    /// check the [state](crate::TwoPhaseCommit::state); otherwise as
    /// [`decide`](Coordinator::decide).
    pub fn decide_within(&self, wait: impl Into<Wait>) -> Result<Option<Decision>> {
        let wait = wait.into();
        insist_within(&wait, || self.settle(Plan::AsVoted, &wait))
    }

    /// Waits at most `wait` for the votes, and decides; **aborts the round** if it is not decided
    /// by then.
    ///
    /// To abort takes one more round trip: at most the connect timeout. A cancelled wait aborts
    /// nothing.
    ///
    /// # Errors
    ///
    /// As [`decide_within`](Coordinator::decide_within): the round may be decided or not. Call it
    /// again, or recover the round later.
    pub fn decide_or_abort_within(&self, wait: impl Into<Wait>) -> Result<Decision> {
        match self.decide_within(wait)? {
            Some(decision) => Ok(decision),
            None => self.abort(),
        }
    }

    /// Aborts the round, whatever the votes, unless it is already decided; returns the decision.
    ///
    /// # Errors
    ///
    /// As [`decide_or_abort_within`](Coordinator::decide_or_abort_within).
    pub fn abort(&self) -> Result<Decision> {
        let limit = self.target.client.core().connect_timeout();
        let decision = self.settle(Plan::Abort, &limit.into())?;
        decision.ok_or_else(|| self.target.refused(&Fault::ConnectionLoss, DECIDE))
    }

    fn settle(&self, plan: Plan, wait: &Wait) -> Result<Option<Decision>> {
        let look = |view: &mut View<'_>, whole: &str| {
            settle(view, whole, &self.round.id, plan, &self.seen, &self.target.acl)
        };
        match self.target.find(DECIDE, self.target.call(wait), look)? {
            None => Ok(None),
            Some(Some(decision)) => Ok(Some(decision)),
            Some(None) => Err(no_round(&self.target)),
        }
    }
}

/// Decides the round if that is possible now, and returns the decision; `Some(None)` if the round
/// no longer exists.
fn settle(
    view: &mut View<'_>,
    whole: &str,
    id: &str,
    plan: Plan,
    seen: &Mutex<BTreeSet<String>>,
    acl: &[Acl],
) -> Answer<Option<Option<Decision>>> {
    loop {
        let Some((round, version)) = find_round(view, whole, id)? else { return Ok(Some(None)) };
        if let Some(decision) = round.decision {
            return Ok(Some(Some(decision)));
        }
        let children = view.watch_names(whole)?.unwrap_or_default();
        let state = RoundState::new(&round, &children);
        let verdict = match plan {
            Plan::Abort => Some(Decision::Abort),
            Plan::AsVoted => judge(&state.participants, &mut seen.lock()),
        };
        let Some(decision) = verdict else { return Ok(None) };
        let mut steps = match decision {
            Decision::Commit => ready(&round, whole),
            Decision::Abort => Vec::new(),
        };
        steps.push(Step::Write {
            path: whole.to_owned(),
            data: round.decided(decision).write(),
            version: Some(version),
        });
        // A node of that name that another client has created shows the decision as well.
        if !children.iter().any(|name| name == decision.mark()) {
            steps.push(Step::Create {
                path: path::join(whole, decision.mark()),
                data: Vec::new(),
                acl: acl.to_vec(),
                kind: NodeKind::Persistent,
            });
        }
        match view.session.transact(&steps) {
            Ok(()) => return Ok(Some(Some(decision))),
            // Another coordinator has decided, or a participant has gone: look again.
            Err(Fault::BadVersion | Fault::NoNode | Fault::NodeExists) => {}
            Err(fault) => return Err(fault),
        }
    }
}

/// The decision that follows from the votes; `None` while some are missing.
fn judge(participants: &[ParticipantState], seen: &mut BTreeSet<String>) -> Option<Decision> {
    let has_died = |one: &ParticipantState| {
        !one.is_here && (one.vote.is_some() || seen.contains(one.name.as_str()))
    };
    if participants.iter().any(|one| one.vote == Some(Vote::No) || has_died(one)) {
        return Some(Decision::Abort);
    }
    seen.extend(participants.iter().filter(|one| one.is_here).map(|one| one.name.clone()));
    participants.iter().all(|one| one.vote == Some(Vote::Yes)).then_some(Decision::Commit)
}

/// The checks that every participant is alive and has voted yes.
fn ready(round: &Round, whole: &str) -> Vec<Step> {
    let names = round.participants.iter().flat_map(|name| [here(name), vote(name, Vote::Yes)]);
    names.map(|name| Step::Check { path: path::join(whole, &name), version: None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_must_be_here_and_have_voted_yes() {
        let round = Round::new("7".to_owned(), ["a", "b"].into_iter());
        let mut seen = BTreeSet::new();
        let mut judged = |children: &[&str]| {
            let children = children.iter().collect();
            judge(&RoundState::new(&round, &children).participants, &mut seen)
        };
        assert_eq!(judged(&[]), None);
        assert_eq!(judged(&["here-a", "yes-a"]), None);
        assert_eq!(judged(&["here-a", "yes-a", "here-b", "yes-c"]), None);
        let all = ["here-a", "yes-a", "here-b", "yes-b"];
        assert_eq!(judged(&all), Some(Decision::Commit));
        assert_eq!(judged(&all[..3]), None);
        assert_eq!(judged(&["here-a", "yes-a", "here-b", "no-b"]), Some(Decision::Abort));
        assert_eq!(judged(&["here-a", "yes-a", "yes-b"]), Some(Decision::Abort));
        // `b` was here before.
        assert_eq!(judged(&["here-a", "yes-a"]), Some(Decision::Abort));
    }
}
