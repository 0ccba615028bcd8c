//! Checks that all participants learn the same decision, and that a commit takes a yes from each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::commit::{Decision, Vote};
use crate::rt::Mutex;
use crate::rt::schedule::current;
use crate::session::NodeKind;
use crate::sim::harness::{Play, Role, Stage, Tally};
use crate::sim::world::Operation;
use crate::{Client, Error, ErrorKind, TwoPhaseCommit};

const ROUNDS: usize = 2;
/// How often a call may retry a request that keeps failing for the same reason.
const MOST_TIMES: u64 = 20;

struct Committing {
    names: Vec<String>,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// The decisions learnt, by round.
    learnt: BTreeMap<usize, BTreeSet<&'static str>>,
    /// Rounds with a no vote.
    refused: BTreeSet<usize>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        // The first actor coordinates.
        let mut actors: Vec<usize> = (0..chance.below(3)).map(|_| 1 + chance.below(2)).collect();
        actors.insert(0, 2);
        let names = (1..actors.iter().sum()).map(|number| format!("p{number}")).collect();
        (actors, Arc::new(Committing { names, books: Mutex::default() }))
    })
}

fn round(client: &Client, number: usize) -> TwoPhaseCommit {
    TwoPhaseCommit::new(client, "/commits", format!("round-{number}"))
}

fn known(stage: &Stage, error: &Error) {
    use ErrorKind::{
        AlreadyExists, Connect, ConnectionLoss, NodeDeleted, NotFound, SessionLost, Taken,
    };
    let kinds = [AlreadyExists, Connect, ConnectionLoss, NodeDeleted, NotFound, SessionLost, Taken];
    if !kinds.contains(&error.kind()) {
        stage.accuse(format!("unexpected error: {error}"));
    }
}

impl Committing {
    fn learn(&self, stage: &Stage, number: usize, decision: Decision) {
        let mut books = self.books.lock();
        let learnt = books.learnt.entry(number).or_default();
        learnt.insert(if decision == Decision::Commit { "commit" } else { "abort" });
        if learnt.len() > 1 {
            stage.accuse(format!("round {number} was decided both ways"));
        }
        stage.count(true);
    }

    fn coordinate(&self, stage: &Stage, role: Role<'_>, number: usize) {
        let Some(schedule) = current() else { return };
        let limit = schedule.some(stage.habits.session_timeout * 2);
        let coordinator = match round(role.client, number).begin(&self.names) {
            Ok(coordinator) => coordinator,
            Err(error) => return known(stage, &error),
        };
        if schedule.chance(20) {
            // The coordinator dies before the decision.
            return;
        }
        match coordinator.decide_or_abort_within(limit) {
            Ok(decision) => self.learn(stage, number, decision),
            Err(error) => known(stage, &error),
        }
    }

    /// Checks that forgetting a round fails soon if a stranger left a node there, which the library
    /// must not delete.
    fn check_forgetting_with_a_stranger(
        &self,
        stage: &Stage,
        round: &TwoPhaseCommit,
        number: usize,
        decision: Decision,
    ) {
        let Some(schedule) = current() else { return };
        if !schedule.chance(30) {
            return;
        }
        let mark = if decision == Decision::Commit { "commit" } else { "abort" };
        let path = format!("/commits/round-{number}/{mark}/litter");
        let left = stage.world.act(|world| world.litter(&path, NodeKind::Persistent, false));
        let asked = || stage.world.look(|world| world.asked(Operation::Transact));
        let before = asked();
        match round.forget() {
            // With a high latency there may be no time for the few round trips that this takes.
            Err(error)
                if error.kind() == ErrorKind::ConnectionLoss
                    && stage.habits.latency * 20 < stage.habits.connect_timeout =>
            {
                stage.accuse(format!("error without a connection problem: {error}"));
            }
            Ok(_) => stage.accuse(format!("round {number} was forgotten, but {path} exists")),
            Err(_) => {}
        }
        let times = asked() - before;
        if times > MOST_TIMES {
            stage.accuse(format!("forgetting round {number} was tried {times} times"));
        }
        stage.world.act(|world| {
            left.iter().for_each(|path| {
                world.delete(path);
            })
        });
    }

    fn take_part(&self, stage: &Stage, role: Role<'_>, number: usize, name: &str) {
        let Some(schedule) = current() else { return };
        let round = round(role.client, number);
        schedule.pause(schedule.some(stage.habits.session_timeout / 2));
        let participant = match round.join(name) {
            Ok(participant) => participant,
            Err(error) => {
                stage.count(false);
                return known(stage, &error);
            }
        };
        let vote = if schedule.chance(90) { Vote::Yes } else { Vote::No };
        match participant.vote(vote) {
            Ok(true) if vote == Vote::No => drop(self.books.lock().refused.insert(number)),
            Ok(_) => {}
            Err(error) => known(stage, &error),
        }
        if schedule.chance(20) {
            return;
        }
        match participant.decision_within(schedule.some(stage.habits.session_timeout * 3)) {
            Ok(Some(decision)) => self.learn(stage, number, decision),
            Ok(None) => {}
            Err(error) => known(stage, &error),
        }
    }
}

impl Play for Committing {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        for number in 0..ROUNDS {
            match role.number.checked_sub(1) {
                None => self.coordinate(stage, role, number),
                Some(index) => self.take_part(stage, role, number, &self.names[index]),
            }
        }
    }

    /// Checks that each round can be recovered and decided without its coordinator, and then
    /// removed.
    fn end(&self, stage: &Stage, client: &Client) {
        for number in 0..ROUNDS {
            let round = round(client, number);
            // This round never began.
            let gone = |error: &Error| error.kind() == ErrorKind::NotFound;
            let mut decision = None;
            stage.eventually("a decision", || match round.recover() {
                Ok(coordinator) => {
                    decision = coordinator.abort().ok();
                    decision.is_some()
                }
                Err(error) => gone(&error),
            });
            let Some(decision) = decision else { continue };
            self.learn(stage, number, decision);
            if decision == Decision::Commit && self.books.lock().refused.contains(&number) {
                stage.accuse(format!("round {number} was committed against a vote"));
            }
            stage.eventually("the state of the round", || match round.state() {
                Ok(state) => {
                    if state.clone().is_none_or(|state| state.decision != Some(decision)) {
                        stage.accuse(format!("decided {decision}, but the state is {state:?}"));
                    }
                    true
                }
                Err(_) => false,
            });
            self.check_forgetting_with_a_stranger(stage, &round, number, decision);
            stage.eventually("the round to be forgotten", || match round.forget() {
                Ok(forgotten) => forgotten,
                Err(error) => gone(&error),
            });
        }
    }
}
