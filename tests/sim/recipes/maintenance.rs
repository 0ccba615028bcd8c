//! Checks that nobody holds a lock while an operator holds it for maintenance; that such a hold stays until it is
//! released, or its end by the ensemble's clock; that an end that was moved counts; and that everybody gets the lock
//! afterwards.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::Client;
use crate::Contender;
use crate::DistributedLock;
use crate::ErrorKind;
use crate::LockGuard;
use crate::maintenance::MaintenanceEnd;
use crate::rt::schedule::{Schedule, current};
use crate::sim::harness::{Play, Role, Stage, Tally};

thread_local! {
    /// The guards that are held in this thread's play.
    static GUARDS: RefCell<Vec<Rc<LockGuard>>> = const { RefCell::new(Vec::new()) };
    /// The holds that an operator believes in, by their paths, and until when.
    static HOLDS: RefCell<Vec<(String, Option<Duration>)>> = const { RefCell::new(Vec::new()) };
}

struct Maintaining {
    operators: usize,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    std::mem::forget((GUARDS.take(), HOLDS.take()));
    super::perform(seed, verbose, |chance| {
        let operators = 1 + chance.below(2);
        let workers = (0..1 + chance.below(2)).map(|_| 1 + chance.below(2));
        let actors = [operators].into_iter().chain(workers).collect();
        (actors, Arc::new(Maintaining { operators }))
    })
}

fn lock(client: &Client) -> DistributedLock {
    DistributedLock::new(client, "/locks", "one")
}

/// Repeats a call that is sure to succeed some time.
fn insist<T>(stage: &Stage, what: &str, mut call: impl FnMut() -> crate::Result<T>) -> Option<T> {
    let mut got = None;
    stage.eventually(what, || {
        got = call().ok();
        got.is_some()
    });
    got
}

fn since_start(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// By the hold's own node, when it ends.
fn ends(hold: &Contender) -> Option<Duration> {
    hold.maintenance()?.ends.map(since_start)
}

fn believe(path: &str, ends: Option<Duration>) {
    HOLDS.with_borrow_mut(|all| all.push((path.to_owned(), ends)));
}

fn doubt(path: &str) {
    HOLDS.with_borrow_mut(|all| all.retain(|(one, _)| one != path));
}

impl Maintaining {
    fn operate(&self, stage: &Stage, schedule: &Schedule, role: Role<'_>) {
        let lock = lock(role.client).data(format!("operator-{}", role.number));
        schedule.pause(schedule.some(stage.habits.session_timeout / 4));
        // Some waits are so long that they do more than wait.
        let longest = if schedule.chance(20) {
            Duration::from_secs(20)
        } else {
            stage.habits.session_timeout
        };
        let while_held = schedule.some(longest);
        let end = match schedule.below(3) {
            0 => MaintenanceEnd::Never,
            1 => MaintenanceEnd::After(while_held + Duration::from_millis(1)),
            _ => MaintenanceEnd::At(SystemTime::UNIX_EPOCH + schedule.time() + while_held),
        };
        let wait = schedule.some(stage.habits.session_timeout * 20);
        let held = match schedule.chance(20) {
            true => lock.queue_for_maintenance("night", end).map(Some),
            false => lock.hold_for_maintenance("night", end, wait),
        };
        match held {
            Ok(Some(hold)) => {
                stage.count(true);
                if hold.holds {
                    believe(&hold.path, ends(&hold));
                }
                schedule.pause(schedule.some(while_held));
                self.end(stage, schedule, &lock, &hold);
            }
            Ok(None) => stage.count(false),
            Err(error) => {
                stage.count(false);
                use ErrorKind::{Connect, ConnectionLoss, NodeDeleted, SessionLost};
                let has_passed = error.kind() == ErrorKind::InvalidArgument
                    && matches!(end, MaintenanceEnd::At(time) if since_start(time) < schedule.time());
                let may_be =
                    matches!(error.kind(), Connect | ConnectionLoss | NodeDeleted | SessionLost);
                if !may_be && !has_passed {
                    stage.accuse(format!("holding: {error}"));
                }
            }
        }
        self.put_away(stage, &lock, role);
    }

    /// Moves the end of the hold, or releases it, or leaves it to its end.
    fn end(&self, stage: &Stage, schedule: &Schedule, lock: &DistributedLock, hold: &Contender) {
        let was_believed = hold.holds;
        if schedule.chance(50) {
            doubt(&hold.path);
            let later = schedule.time() + schedule.some(stage.habits.session_timeout);
            let end = MaintenanceEnd::At(SystemTime::UNIX_EPOCH + later);
            let moved = insist(stage, "moving an end", || lock.change_maintenance(hold, end));
            if was_believed && moved == Some(true) && later > schedule.time() {
                believe(&hold.path, Some(Duration::from_millis(later.as_millis() as u64)));
            }
            schedule.pause(schedule.some(stage.habits.session_timeout / 2));
        }
        if schedule.chance(50) {
            doubt(&hold.path);
            insist(stage, "releasing", || lock.release_maintenance(hold));
        }
    }

    /// Releases what has no end, or was made by a call that failed.
    fn put_away(&self, stage: &Stage, lock: &DistributedLock, role: Role<'_>) {
        let own = format!("operator-{}", role.number);
        let Some(all) = insist(stage, "listing", || lock.contenders()) else { return };
        for hold in all {
            if hold.maintenance().is_some_and(|hold| hold.made_by == own && hold.ends.is_none()) {
                doubt(&hold.path);
                insist(stage, "releasing", || lock.release_maintenance(&hold));
            }
        }
    }

    fn work(&self, stage: &Stage, schedule: &Schedule, role: Role<'_>) {
        let lock = lock(role.client);
        for _ in 0..3 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 4));
            let got = match schedule.below(3) {
                0 => lock.try_lock(),
                1 => lock.try_lock_for(schedule.some(stage.habits.session_timeout)),
                _ => lock.lock().map(Some),
            };
            stage.count(matches!(got, Ok(Some(_))));
            let Ok(Some(guard)) = got else { continue };
            let guard = Rc::new(guard);
            GUARDS.with_borrow_mut(|all| all.push(Rc::clone(&guard)));
            schedule.pause(schedule.some(stage.habits.session_timeout / 8));
            GUARDS.with_borrow_mut(|all| all.retain(|one| !Rc::ptr_eq(one, &guard)));
        }
    }
}

impl Play for Maintaining {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        if role.number < self.operators {
            self.operate(stage, &schedule, role);
        } else {
            self.work(stage, &schedule, role);
        }
    }

    fn look(&self, stage: &Stage) {
        let Some(schedule) = current() else { return };
        let now = schedule.time();
        let holds: Vec<String> = HOLDS.with_borrow_mut(|all| {
            all.retain(|(_, ends)| ends.is_none_or(|ends| now < ends));
            all.iter().map(|(path, _)| path.clone()).collect()
        });
        let is_held = |one: &&Rc<LockGuard>| stage.is_held(one);
        let held = GUARDS.with_borrow(|all| all.iter().filter(is_held).count());
        if holds.len() + held > 1 {
            stage.accuse(format!("{held} guards are held, and these holds: {holds:?}"));
        }
        for hold in holds {
            if !stage.world.look(|world| world.contains(&hold)) {
                stage.accuse(format!("{hold} was ended before its time"));
            }
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        // What is asked for, and whose maker has ended, goes half a minute later.
        match lock(client).try_lock_for(Duration::from_secs(120)) {
            Ok(Some(_)) => {}
            other => stage.accuse(format!("the lock is not free at the end: {other:?}")),
        }
    }
}
