//! A mutex over handles of the programs' own, which promise little: it is granted in order, calls with
//! a limit keep it, and nothing is left while the handles live.

use std::sync::Arc;
use std::time::Duration;

use super::super::handle::Simulated;
use super::super::stage::{Play, Role, Stage, Tally};
use crate::rt::Mutex;
use crate::rt::schedule::{Schedule, current};
use crate::session::adopted::Adopted;
use crate::{Client, DistributedLock, Error, ErrorKind, FencingToken, LockGuard};

const NODE: &str = "/locks/one";

#[derive(Default)]
struct Holding {
    /// They live to the end, as programs do.
    handles: Mutex<Vec<Arc<Simulated>>>,
    /// Whether clients are closed while they are at work.
    closes: bool,
    /// What was granted last.
    highest: Mutex<Option<FencingToken>>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(3)).collect();
        let closes = chance.chance(30);
        (actors, Arc::new(Holding { closes, ..Holding::default() }))
    })
}

impl Holding {
    /// `None` where it was not to be had.
    fn acquire(
        &self,
        stage: &Stage,
        schedule: &Schedule,
        role: Role<'_>,
    ) -> Result<Option<LockGuard>, Error> {
        let lock = DistributedLock::new(role.client, "/locks", "one");
        let (began, limit) = (schedule.time(), schedule.some(stage.habits.session_timeout));
        match schedule.below(4) {
            0 => lock.lock().map(Some),
            _ => {
                let got = lock.try_lock_for(limit);
                stage.check_on_time(role.process, began, limit);
                got
            }
        }
    }

    /// Whoever is granted the lock has come later than all who were before, unless its session is over
    /// and the handle does not know.
    fn is_granted(&self, stage: &Stage, guard: &LockGuard) {
        let (mut highest, token) = (self.highest.lock(), Some(guard.fencing_token()));
        let is_there = stage.world.look(|world| world.contains(guard.path()));
        if token <= *highest && is_there {
            stage.accuse(format!("{token:?} was granted after {highest:?}"));
        }
        *highest = token.max(*highest);
    }

    fn hold(&self, stage: &Stage, schedule: &Schedule, guard: LockGuard) {
        schedule.pause(schedule.some(stage.habits.session_timeout / 2));
        let was = stage.world.look(|world| world.contains(guard.path()));
        let is_confirmed = schedule.chance(50) && guard.ensure_held().is_ok();
        if is_confirmed && !was {
            stage.accuse(format!("{:?} was gone, and is said to be held", guard.path()));
        }
        if is_confirmed && guard.lost().reason().is_some() {
            stage.accuse(format!("{:?} is held and lost", guard.path()));
        }
        match schedule.below(2) {
            0 => drop(guard),
            _ => drop(guard.unlock()),
        }
    }
}

impl Play for Holding {
    fn client(&self, stage: &Stage) -> Client {
        let Some(handle) = Simulated::new(&stage.world) else { return stage.client() };
        self.handles.lock().push(Arc::clone(&handle));
        Client::with(Box::new(Adopted::new(handle)), "a handle".to_owned(), String::new())
    }

    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        for _ in 0..4 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 2));
            match self.acquire(stage, &schedule, role) {
                Ok(Some(guard)) => {
                    stage.count(true);
                    self.is_granted(stage, &guard);
                    self.hold(stage, &schedule, guard);
                }
                Ok(None) => stage.count(false),
                Err(error) => {
                    stage.count(false);
                    use ErrorKind::{Closed, Connect, ConnectionLoss, SessionLost};
                    let is_known = match error.kind() {
                        Connect | ConnectionLoss | SessionLost => true,
                        Closed => self.closes,
                        _ => false,
                    };
                    if !is_known {
                        stage.accuse(format!("{error:?}"));
                    }
                }
            }
            if self.closes && schedule.chance(5) {
                role.client.close();
            }
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        let Some(schedule) = current() else { return };
        // What has hung comes to an end.
        schedule.pause(stage.habits.session_timeout * 20);
        let lock = DistributedLock::new(client, "/locks", "one");
        match lock.try_lock_for(Duration::from_secs(60)) {
            Ok(Some(_)) => {}
            other => {
                let left = stage.world.look(|world| world.children(NODE));
                stage.accuse(format!("nobody is at work, and yet {other:?}: {left:?}"));
            }
        }
    }
}
