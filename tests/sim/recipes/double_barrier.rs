//! Checks that all participants enter or none, that those that gave up do not count, and that dead
//! ones block no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Client;
use crate::DoubleBarrier;
use crate::ErrorKind;
use crate::rt::Mutex;
use crate::rt::schedule::current;
use crate::sim::harness::{Play, Role, Stage, Tally};

const NODE: &str = "/barriers/two";

struct Gathering {
    participants: u32,
    /// The participants that entered, by the data that decided their round.
    rounds: Mutex<BTreeMap<Vec<u8>, BTreeSet<String>>>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors: Vec<usize> = (0..1 + chance.below(3)).map(|_| 1 + chance.below(2)).collect();
        let all = actors.iter().sum::<usize>();
        // The number may be one too low or one too high.
        let participants = (all + chance.below(3)).saturating_sub(1).max(1) as u32;
        (actors, Arc::new(Gathering { participants, rounds: Mutex::default() }))
    })
}

impl Gathering {
    fn barrier(&self, client: &Client) -> DoubleBarrier {
        DoubleBarrier::new(client, "/barriers", "two", self.participants)
    }
}

impl Play for Gathering {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        let (barrier, timeout) = (self.barrier(role.client), stage.habits.session_timeout);
        for _ in 0..4 {
            schedule.pause(schedule.some(timeout / 4));
            let (began, limit) = (schedule.time(), schedule.some(timeout * 2));
            let entered = barrier.enter_within(limit);
            stage.check_on_time(role.process, began, limit);
            stage.count(matches!(entered, Ok(Some(_))));
            match entered {
                Ok(Some(entered)) => {
                    let own = entered.path().to_owned();
                    let own = crate::path::last(&own).to_owned();
                    let round = stage.world.look(|world| world.written_with(NODE, &own));
                    match round {
                        Some(round) => {
                            self.rounds.lock().entry(round).or_default().insert(own);
                        }
                        None => stage.accuse(format!("{own} has entered, but no round names it")),
                    }
                    schedule.pause(schedule.some(timeout / 4));
                    let began = schedule.time();
                    match schedule.below(4) {
                        0 => drop(entered),
                        1 => {
                            let _ = entered.leave_within(limit);
                            stage.check_on_time(role.process, began, limit);
                        }
                        _ => {
                            // A lost place is an error; otherwise the call ends when all have left.
                            if let Err(error) = entered.leave() {
                                let kinds = [ErrorKind::SessionLost, ErrorKind::NodeDeleted];
                                if !kinds.contains(&error.kind()) {
                                    stage.accuse(format!("leaving: {error}"));
                                }
                            }
                        }
                    }
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Full || error.is_outage() => {}
                Err(error) => stage.accuse(format!("entering: {error}")),
            }
        }
    }

    /// Checks that each round names the right number of participants, and that no others entered.
    fn end(&self, stage: &Stage, _client: &Client) {
        for (round, entered) in self.rounds.lock().iter() {
            let text = String::from_utf8_lossy(round);
            let mut lines = text.lines();
            if lines.next() != Some("format 1") {
                stage.accuse(format!("a round has no format: {text:?}"));
            }
            let named: BTreeSet<&str> = lines.collect();
            let strangers = entered.iter().any(|one| !named.contains(one.as_str()));
            if named.len() != self.participants as usize || strangers {
                stage.accuse(format!("{entered:?} entered a round that names {named:?}"));
            }
        }
    }
}
