//! Checks that no thread passes a barrier while it stays raised, and that all pass once it is
//! lifted.

use std::sync::Arc;
use std::time::Duration;

use crate::Barrier;
use crate::Client;
use crate::ErrorKind;
use crate::Result;
use crate::rt::Mutex;
use crate::rt::schedule::current;
use crate::sim::harness::{Play, Role, Stage, Tally};

const NODE: &str = "/barriers/one";

#[derive(Default)]
struct Raising {
    /// When the barrier's node was last seen to be missing.
    open: Mutex<Duration>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(2)).collect();
        (actors, Arc::new(Raising::default()))
    })
}

fn barrier(client: &Client) -> Barrier {
    Barrier::new(client, "/barriers", "one")
}

/// Counts the result, and returns its value if the call succeeded.
fn done<T>(stage: &Stage, result: Result<T>) -> Option<T> {
    stage.count(result.is_ok());
    result
        .map_err(|error| {
            use ErrorKind::{Connect, ConnectionLoss, SessionLost};
            if !matches!(error.kind(), ConnectionLoss | Connect | SessionLost) {
                stage.accuse(format!("unexpected error: {error}"));
            }
        })
        .ok()
}

fn lift(stage: &Stage, barrier: &Barrier) {
    match barrier.lift() {
        // A stranger's node below it is in the way.
        Err(error) if error.kind() == ErrorKind::Server && stage.littered => stage.count(false),
        lifted => drop(done(stage, lifted)),
    }
}

impl Play for Raising {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        let barrier = barrier(role.client);
        for _ in 0..5 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 4));
            match schedule.below(4) {
                0 => drop(done(stage, barrier.raise())),
                1 => lift(stage, &barrier),
                _ => {
                    let (began, limit) =
                        (schedule.time(), schedule.some(stage.habits.session_timeout));
                    let through = done(stage, barrier.wait_within(limit));
                    stage.check_on_time(role.process, began, limit);
                    self.look(stage);
                    if through == Some(true) && *self.open.lock() < began {
                        stage.accuse(format!("passed a barrier that was raised since {began:?}"));
                    }
                }
            }
        }
        // In the end the last waiters must pass. Requests of failed calls that are still under way
        // take effect first.
        schedule.pause(stage.habits.session_timeout);
        stage.eventually("the barrier to be lifted", || barrier.lift().is_ok());
        if barrier.wait().is_err() {
            stage.accuse("wait() failed although it has no time limit".to_owned());
        }
    }

    fn look(&self, stage: &Stage) {
        if let Some(schedule) = current()
            && !stage.world.look(|world| world.contains(NODE))
        {
            *self.open.lock() = schedule.time();
        }
    }
}
