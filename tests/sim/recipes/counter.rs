//! Checks that a counter loses no change and makes none twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::Client;
use crate::ErrorKind;
use crate::SharedCounter;
use crate::rt::Mutex;
use crate::rt::schedule::current;
use crate::sim::harness::{Play, Role, Stage, Tally};

#[derive(Default)]
struct Counting {
    sums: Mutex<BTreeSet<i64>>,
    unsure: Mutex<i64>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(3)).collect();
        (actors, Arc::new(Counting::default()))
    })
}

fn counter(client: &Client) -> SharedCounter {
    SharedCounter::new(client, "/counters", "one")
}

impl Play for Counting {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        for _ in 0..4 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 4));
            let (began, limit) = (schedule.time(), stage.habits.connect_timeout);
            match counter(role.client).add(1) {
                Ok(sum) => {
                    stage.count(true);
                    if !self.sums.lock().insert(sum) {
                        stage.accuse(format!("two calls have counted to {sum}"));
                    }
                }
                Err(error) => {
                    stage.count(false);
                    *self.unsure.lock() += 1;
                    use ErrorKind::{Connect, ConnectionLoss, SessionLost};
                    if !matches!(error.kind(), ConnectionLoss | Connect | SessionLost) {
                        stage.accuse(format!("unexpected error: {error}"));
                    }
                    // The call sends several requests, each with its own time limit.
                    stage.check_on_time(role.process, began, limit * 60 + Duration::from_secs(1));
                }
            }
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        let (counted, unsure) = (self.sums.lock().len() as i64, *self.unsure.lock());
        match counter(client).get() {
            Ok(sum) if (counted..=counted + unsure).contains(&sum) => {}
            other => stage.accuse(format!("{counted} sure and {unsure} unsure adds: {other:?}")),
        }
    }
}
