//! Checks that no acknowledged change of a client is undone by an older one of the same client that the
//! ensemble carries out late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Barrier;
use crate::Client;
use crate::DistributedLock;
use crate::Error;
use crate::ErrorKind;
use crate::LockGuard;
use crate::Once;
use crate::Result;
use crate::SharedValue;
use crate::once::OnceOutcome;
use crate::rt::Mutex;
use crate::rt::schedule::current;
use crate::sim::harness::{Play, Role, Stage, perform_in_peace, perform_with_late_requests};
use crate::sim::setting;
use crate::sim::world::{Operation, RequestStage, Trap};

/// How many seeds of each play a run tries by default.
const SEEDS: u64 = 300;
/// How many changes an actor makes.
const CHANGES: usize = 12;

/// Performs the play with all seeds.
fn try_all<P: Play + Default>(actors: &[usize]) {
    let seeds = setting("ZKLOCK_SEEDS").unwrap_or(SEEDS);
    let (mut late, mut deeds) = (0, 0);
    for seed in 0..seeds {
        let run = perform_with_late_requests(seed, actors.to_vec(), Arc::new(P::default()));
        let tally = run.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        late += tally.late;
        deeds += tally.deeds;
    }
    println!(
        "{seeds} seeds, {deeds} calls that succeeded, {late} of their requests carried out late"
    );
    assert!(deeds > seeds, "only {deeds} calls succeeded");
}

/// Has the next request of one of these kinds lost on its way, in most cases; pauses before.
fn endanger(stage: &Stage, role: Role<'_>, kinds: &[Operation]) {
    let Some(schedule) = current() else { return };
    schedule.pause(schedule.some(stage.habits.session_timeout / 2));
    let times = schedule.below(3);
    let (on, when) = (kinds[schedule.below(kinds.len())], RequestStage::Arrived);
    // Some calls end before there is a connection again; their sessions live on.
    let mend = stage.habits.session_timeout * [0, 0, 5][schedule.below(3)] / 8;
    let trap = Trap { on, when, mend, times };
    stage.world.act(|world| world.set_trap(role.process, trap));
}

/// Counts the result, and returns its value if the call succeeded.
fn done<T>(stage: &Stage, result: Result<T>) -> Option<T> {
    stage.count(result.is_ok());
    if let Err(error) = &result {
        use ErrorKind::{Connect, ConnectionLoss, SessionLost};
        if !matches!(error.kind(), ConnectionLoss | Connect | SessionLost) {
            stage.accuse(format!("unexpected error: {error}"));
        }
    }
    result.ok()
}

/// What the last change has left, if it was acknowledged, and nothing was changed since.
struct Left<T>(Mutex<Option<T>>);

impl<T> Default for Left<T> {
    fn default() -> Left<T> {
        Left(Mutex::new(None))
    }
}

impl<T: PartialEq + std::fmt::Debug> Left<T> {
    fn check(&self, stage: &Stage, found: Result<T>) {
        let left = self.0.lock();
        if let (Some(left), Ok(found)) = (&*left, found)
            && found != *left
        {
            stage.accuse(format!("acknowledged {left:?}, and found {found:?} later"));
        }
    }

    fn set(&self, left: Option<T>) {
        *self.0.lock() = left;
    }
}

// ----- a value, set by one client

#[derive(Default)]
struct Setting {
    left: Left<Option<String>>,
}

fn value(client: &Client) -> SharedValue {
    SharedValue::new(client, "/values", "one")
}

fn text(client: &Client) -> Result<Option<String>> {
    let found = value(client).get()?;
    Ok(found.map(|found| String::from_utf8_lossy(&found.data).into_owned()))
}

impl Play for Setting {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        for number in 0..CHANGES {
            endanger(stage, role, &[Operation::Write, Operation::Create]);
            self.left.check(stage, text(role.client));
            let data = format!("value {number}");
            let set = done(stage, value(role.client).set(&*data));
            self.left.set(set.map(|_| Some(data)));
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        self.left.check(stage, text(client));
    }
}

#[test]
fn a_value_that_was_set_stays() {
    try_all::<Setting>(&[1]);
}

// ----- a value, set by many

#[derive(Default)]
struct Competing {
    /// The numbers of versions, and what they were set to.
    set: Mutex<Vec<(i32, String)>>,
    failed: AtomicUsize,
}

impl Play for Competing {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let (mut last, value) = (-1, value(role.client));
        for number in 0..3 {
            if stage.habits.late.is_some() {
                endanger(stage, role, &[Operation::Write]);
            }
            let data = format!("actor {} value {number}", role.number);
            let Some(version) = done(stage, value.set(&*data)) else {
                self.failed.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            if version.number <= last {
                stage.accuse(format!("version {} after {last}", version.number));
            }
            last = version.number;
            self.set.lock().push((last, data));
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        let failed = self.failed.load(Ordering::Relaxed);
        // Each of its requests, and what it waits for, takes up to two latencies.
        let has_time = stage.habits.connect_timeout > stage.habits.latency * 16;
        if stage.habits.late.is_none() && has_time && failed > 0 {
            stage.accuse(format!("{failed} calls failed by competition"));
        }
        let mut set = std::mem::take(&mut *self.set.lock());
        set.sort();
        if set.windows(2).any(|two| two[0].0 == two[1].0) {
            stage.accuse(format!("two calls have set the same version: {set:?}"));
        }
        let (Ok(Some(found)), Some((number, data))) = (value(client).get(), set.last()) else {
            return;
        };
        if found.version.number == *number && found.data != data.as_bytes() {
            stage.accuse(format!("version {number} was {data:?}, and is {found:?}"));
        }
    }
}

#[test]
fn sixteen_writers_come_through() {
    for seed in 0..SEEDS / 3 {
        let run = perform_in_peace(seed, vec![8, 8], Arc::new(Competing::default()));
        run.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    // Each has a connection of its own: no permit is on its way when it is lost.
    try_all::<Competing>(&[1; 16]);
}

// ----- a barrier

#[derive(Default)]
struct Raising {
    is_up: Left<bool>,
}

fn barrier(client: &Client) -> Barrier {
    Barrier::new(client, "/barriers", "one")
}

impl Play for Raising {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        let barrier = barrier(role.client);
        for _ in 0..CHANGES {
            endanger(stage, role, &[Operation::Create, Operation::Transact, Operation::Write]);
            self.is_up.check(stage, barrier.is_raised());
            let raises = schedule.chance(50);
            let changed = done(stage, if raises { barrier.raise() } else { barrier.lift() });
            let was_up = *self.is_up.0.lock();
            if let (Some(was_up), Some(changed)) = (was_up, changed)
                && (was_up == raises) == changed
            {
                stage.accuse(format!("it was up: {was_up}; raise {raises} said {changed}"));
            }
            self.is_up.set(changed.map(|_| raises));
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        self.is_up.check(stage, barrier(client).is_raised());
    }
}

#[test]
fn a_barrier_stays_raised_or_lifted() {
    try_all::<Raising>(&[1]);
}

// ----- marks of jobs

#[derive(Default)]
struct Marking {
    is_marked: Left<bool>,
}

fn once(client: &Client) -> Once {
    Once::new(client, "/jobs", "one")
}

fn is_marked(client: &Client) -> Result<bool> {
    Ok(once(client).mark("day")?.is_some())
}

impl Play for Marking {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        let (once, lock) = (once(role.client), DistributedLock::new(role.client, "/locks", "one"));
        // A mark is written only while its guard's node exists, so this one stays.
        let mut held = None;
        for _ in 0..CHANGES {
            held = held.filter(|guard: &LockGuard| guard.is_held()).or_else(|| lock.lock().ok());
            let Some(guard) = &held else { continue };
            endanger(stage, role, &[Operation::Create, Operation::Transact]);
            self.is_marked.check(stage, is_marked(role.client));
            let runs = schedule.chance(50);
            let changed = match runs {
                true => once
                    .run_holding(guard, "day", || Ok::<_, Error>(()))
                    .map(|outcome| matches!(outcome, OnceOutcome::Done(()))),
                false => once.forget("day").map(|_| true),
            };
            match done(stage, changed) {
                Some(true) => self.is_marked.set(Some(runs)),
                // It has found the mark, and changed nothing: an earlier call may still remove it.
                Some(false) => {}
                None => self.is_marked.set(None),
            }
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        self.is_marked.check(stage, is_marked(client));
    }
}

#[test]
fn a_mark_stays_left_or_forgotten() {
    try_all::<Marking>(&[1]);
}
