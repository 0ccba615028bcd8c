//! A mutex over programs' own handles. Checks that there is one holder at a time while its node
//! exists, that grants come in order, losses are reported and time limits kept, and that nothing is
//! left while the handles live.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::rt::schedule::{Schedule, current};
use crate::rt::{AtomicU64, Mutex};
use crate::session::Adopted;
use crate::sim::adopted_handle::SimulatedHandle;
use crate::sim::harness::{Play, Role, Stage, Tally};
use crate::{Client, DistributedLock, Error, ErrorKind, FencingToken, LockGuard};

/// The time limits of a release and of a close.
const DROP_LIMIT: Duration = Duration::from_millis(500);
const CLOSING: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Holding {
    /// The handles by process. They live to the end of the run, as in programs.
    handles: Mutex<BTreeMap<usize, Arc<SimulatedHandle>>>,
    /// Whether clients are closed while calls are under way.
    closes: bool,
    /// The highest token granted so far.
    highest: Mutex<Option<FencingToken>>,
    /// The holders' nodes.
    held: Mutex<BTreeMap<FencingToken, String>>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(3)).collect();
        let closes = chance.chance(30);
        (actors, Arc::new(Holding { closes, ..Holding::default() }))
    })
}

fn lock(client: &Client) -> DistributedLock {
    DistributedLock::new(client, "/locks", "one")
}

fn client_of(handle: &Arc<SimulatedHandle>) -> Client {
    let handle = Adopted::new(Arc::<SimulatedHandle>::clone(handle));
    Client::with(Box::new(handle), "a handle".to_owned(), String::new())
}

impl Holding {
    /// Acquires the lock; `None` if it was not granted in time.
    fn acquire(
        &self,
        stage: &Stage,
        schedule: &Schedule,
        role: Role<'_>,
    ) -> Result<Option<LockGuard>, Error> {
        if schedule.below(4) == 0 {
            return lock(role.client).lock().map(Some);
        }
        let (began, limit) = (schedule.time(), schedule.some(stage.habits.session_timeout));
        let got = lock(role.client).try_lock_for(limit);
        stage.check_on_time(role.process, began, limit);
        match got {
            // No server answered in time.
            Err(error) if error.kind() == ErrorKind::Connect => Ok(None),
            got => got,
        }
    }

    /// Checks that the token is above all earlier ones, unless the session has ended without the
    /// handle knowing.
    fn check_order(&self, stage: &Stage, guard: &LockGuard) {
        let (mut highest, token) = (self.highest.lock(), Some(guard.fencing_token()));
        let is_there = stage.world.look(|world| world.contains(guard.path()));
        if token <= *highest && is_there {
            stage.accuse(format!("{token:?} was granted after {highest:?}"));
        }
        *highest = token.max(*highest);
    }

    fn hold(&self, stage: &Stage, schedule: &Schedule, role: Role<'_>, guard: LockGuard) {
        let handle = self.handles.lock().get(&role.process).cloned();
        let sessions = || handle.as_ref().map(|handle| handle.sessions());
        let (token, before) = (guard.fencing_token(), sessions());
        self.held.lock().insert(token, guard.path().to_owned());
        let (told, heard) = (Arc::new(AtomicU64::new(0)), guard.lost());
        let counted = Arc::clone(&told);
        guard.on_lost(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        schedule.pause(schedule.some(stage.habits.session_timeout / 2));
        if sessions() != before && guard.is_held() {
            stage.accuse(format!("{:?} is held, but the handle's session changed", guard.path()));
        }
        let was = stage.world.look(|world| world.contains(guard.path()));
        let is_confirmed = schedule.chance(50) && guard.ensure_held().is_ok();
        if is_confirmed && !was {
            stage.accuse(format!("{:?} was gone, but is confirmed as held", guard.path()));
        }
        let is_lost = !guard.is_held();
        if is_lost && heard.recorded().is_none() {
            stage.accuse(format!("{:?} is lost without a reason", guard.path()));
        }
        self.held.lock().remove(&token);
        let began = schedule.time();
        match schedule.below(2) {
            0 => {
                drop(guard);
                stage.check_on_time(role.process, began, DROP_LIMIT);
            }
            _ => drop(guard.unlock()),
        }
        if is_lost && told.load(Ordering::SeqCst) != 1 {
            stage.accuse(format!("on_lost was called {} times", told.load(Ordering::SeqCst)));
        }
    }

    /// Injects the most typical faults of handles, more often than the harness does.
    fn harm(&self, stage: &Stage, schedule: &Schedule, role: Role<'_>) {
        if schedule.time() > stage.calm {
            return;
        }
        let timeout = stage.habits.session_timeout;
        match schedule.below(10) {
            0 => stage.world.act(|world| world.murder(role.process)),
            1 => stage.world.act(|world| {
                world.cut_all(role.process, Duration::ZERO, schedule.some(timeout * 2));
            }),
            _ => {}
        }
    }
}

impl Play for Holding {
    fn client(&self, stage: &Stage) -> Client {
        let handle = SimulatedHandle::new(&stage.world);
        let client = client_of(&handle);
        let mut handles = self.handles.lock();
        let process = handles.len();
        handles.insert(process, handle);
        client
    }

    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        for _ in 0..4 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 2));
            self.harm(stage, &schedule, role);
            match self.acquire(stage, &schedule, role) {
                Ok(Some(guard)) => {
                    stage.count(true);
                    self.check_order(stage, &guard);
                    self.hold(stage, &schedule, role, guard);
                }
                Ok(None) => stage.count(false),
                Err(error) => {
                    stage.count(false);
                    if error.kind() != ErrorKind::Closed || !self.closes {
                        stage.accuse(format!("unexpected error: {error:?}"));
                    }
                }
            }
            if self.closes && schedule.chance(5) {
                let began = schedule.time();
                role.client.close();
                stage.check_on_time(role.process, began, CLOSING);
            }
        }
    }

    fn look(&self, stage: &Stage) {
        let held = self.held.lock();
        let there = held.values().filter(|path| stage.world.look(|world| world.contains(path)));
        if there.count() > 1 {
            stage.accuse(format!("several nodes hold the lock at once: {held:?}"));
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        let Some(schedule) = current() else { return };
        // By then all calls that hang have ended.
        schedule.pause(stage.habits.session_timeout * 20);
        // New ones may hang, one after the other.
        let limit = Duration::from_secs(600);
        let handles: Vec<Arc<SimulatedHandle>> = self.handles.lock().values().cloned().collect();
        for handle in &handles {
            let client = client_of(handle);
            match lock(&client).try_lock_for(limit) {
                Ok(Some(guard)) => {
                    let heard = guard.lost();
                    stage.world.act(|world| world.delete(guard.path()));
                    stage.eventually("the loss to be reported", || heard.recorded().is_some());
                }
                other => stage.accuse(format!("no lock although all others finished: {other:?}")),
            }
        }
        match lock(client).try_lock_for(limit) {
            Ok(Some(_)) => {}
            other => stage.accuse(format!("no lock although all others finished: {other:?}")),
        }
    }
}
