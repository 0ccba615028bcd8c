//! All learn the same decision; to commit it takes the yes of all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Client;
use crate::Decision;
use crate::Error;
use crate::ErrorKind;
use crate::TwoPhaseCommit;
use crate::rt::Mutex;
use crate::rt::schedule::current;
use crate::session::connection::NodeKind;
use crate::sim::harness::{Play, Role, Stage, Tally};
use crate::sim::world::Operation;

const ROUNDS: usize = 2;
/// How often it is worth trying what fails for the same reason again.
const MOST_TIMES: u64 = 20;

struct Committing {
    names: Vec<String>,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// By round.
    learnt: BTreeMap<usize, BTreeSet<&'static str>>,
    /// Rounds in which a no counts.
    refused: BTreeSet<usize>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        // The first one coordinates.
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
        AlreadyExists, Connect, ConnectionLoss, LockLost, NotFound, SessionLost, Taken,
    };
    let kinds = [AlreadyExists, Connect, ConnectionLoss, LockLost, NotFound, SessionLost, Taken];
    if !kinds.contains(&error.kind()) {
        stage.accuse(format!("{error}"));
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
            // It dies on the way.
            return;
        }
        match coordinator.decide_for(limit) {
            Ok(decision) => self.learn(stage, number, decision),
            Err(error) => known(stage, &error),
        }
    }

    /// What a stranger has left is not for us to delete: to forget the round fails, and soon.
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
            // It takes a few round trips, for which there may be no time.
            Err(error)
                if error.kind() == ErrorKind::ConnectionLoss
                    && stage.habits.latency * 20 < stage.habits.connect_timeout =>
            {
                stage.accuse(format!("nothing is wrong with the connection: {error}"));
            }
            Ok(_) => stage.accuse(format!("round {number} was forgotten, and {path} is there")),
            Err(_) => {}
        }
        let times = asked() - before;
        if times > MOST_TIMES {
            stage.accuse(format!("to forget round {number} was tried {times} times in vain"));
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
        let yes = schedule.chance(90);
        match participant.vote(yes) {
            Ok(true) if !yes => drop(self.books.lock().refused.insert(number)),
            Ok(_) => {}
            Err(error) => known(stage, &error),
        }
        if schedule.chance(20) {
            return;
        }
        match participant.decision_for(schedule.some(stage.habits.session_timeout * 3)) {
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

    /// A round whose coordinator has gone is recovered, and then all is known, and can be removed.
    fn end(&self, stage: &Stage, client: &Client) {
        for number in 0..ROUNDS {
            let round = round(client, number);
            // It never began.
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
                        stage.accuse(format!("{decision}, and then {state:?}"));
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
