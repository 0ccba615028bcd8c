//! Deterministic simulation: the real code above a session's connection runs in virtual time on an
//! ensemble in memory. One seed decides everything.
//!
//! ```text
//! scripts/simulate --seeds 1000000     # many seeds
//! scripts/simulate --seed 4711         # one seed, with a trace of all its events
//! scripts/simulate --play queue        # one recipe; `adopted` means programs' own handles
//! ```

#[cfg(feature = "zookeeper")]
mod adopted_handle;
mod conform;
mod connection;
mod harness;
mod late_requests;
mod locks;
mod plan;
mod recipes;
mod translation;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use harness::{Play, Role, Stage};
use plan::{PlannedFault, Recipe};
use world::Operation;

use crate::Cancel;
use crate::DistributedLock;
use crate::event::Event;
use crate::rt::schedule::current;
use crate::wire_values::NodeEvent;

/// How many seeds a run tries by default.
const SEEDS: u64 = 5_000;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text:?}")))
}

/// `ZKLOCK_SEED` sets one seed to replay; `ZKLOCK_SEEDS` how many to try, starting at
/// `ZKLOCK_FIRST_SEED`.
#[test]
fn no_seed_breaks_the_lock() {
    if let Some(seed) = setting("ZKLOCK_SEED") {
        match locks::run(seed, true) {
            Ok(tally) => println!("seed {seed}: {tally:?}"),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
        return;
    }
    let count = setting("ZKLOCK_SEEDS").unwrap_or(SEEDS);
    let totals = try_seeds("", count, |seed| {
        let tally = locks::run(seed, false)?;
        Ok([
            tally.steps,
            tally.granted,
            tally.lost,
            tally.refused,
            tally.downgraded,
            tally.asked,
            tally.faults,
        ])
    });
    let [steps, granted, lost, refused, downgraded, asked, faults] = totals.sums;
    println!(
        "{count} schedules from seed {} without a violation: {steps} steps, {granted} locks \
         granted, {lost} of them lost, {refused} not granted, {downgraded} downgraded; {asked} \
         release requests, {faults} faults; {:.1} s",
        totals.first, totals.seconds
    );
}

/// The results of many runs.
struct Totals<const N: usize> {
    first: u64,
    seconds: f64,
    sums: [u64; N],
}

/// Runs `count` seeds on all processors.
///
/// # Panics
/// If a seed breaks something; the message names the lowest such seed.
fn try_seeds<const N: usize>(
    what: &str,
    count: u64,
    run: impl Fn(u64) -> Result<[u64; N], String> + Sync,
) -> Totals<N> {
    let first = setting("ZKLOCK_FIRST_SEED").unwrap_or(0);
    let (began, next, broken) = (Instant::now(), AtomicU64::new(first), AtomicU64::new(u64::MAX));
    let totals = [const { AtomicU64::new(0) }; N];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while broken.load(Ordering::Relaxed) == u64::MAX {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    match run(seed) {
                        Ok(counts) => {
                            for (total, count) in totals.iter().zip(counts) {
                                total.fetch_add(count, Ordering::Relaxed);
                            }
                        }
                        Err(violation) => {
                            eprintln!("seed {seed}: {violation}");
                            broken.fetch_min(seed, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let broken = broken.into_inner();
    assert!(
        broken == u64::MAX,
        "seed {broken} breaks it; replay it with: scripts/simulate{what} --seed {broken}"
    );
    let seconds = began.elapsed().as_secs_f64();
    Totals { first, seconds, sums: totals.map(AtomicU64::into_inner) }
}

/// A release finds no thread, and the one request that needs none is lost with the connection. When
/// the connection is back, there are still no threads.
#[test]
fn a_long_lack_of_threads_leaves_no_node() {
    for seed in 0..300 {
        let result = locks::run_as(seed, false, |plan| {
            let timeout = plan.habits.session_timeout;
            let lacking = PlannedFault::Poverty { percent: 100, lasts: timeout * 3 };
            let down = PlannedFault::Down { notice: timeout / 10, lasts: timeout / 5 };
            plan.with(vec![(timeout / 20, lacking), (timeout / 4, down)])
        });
        assert_eq!(result.map(drop), Ok(()), "seed {seed}");
    }
}

/// A contending thread panics at any of its requests; it leaves no node that blocks others.
#[test]
fn a_panic_in_the_middle_of_a_call_leaves_no_node() {
    struct Panics {
        after: u32,
    }
    impl Play for Panics {
        fn act(&self, stage: &Stage, role: Role<'_>) {
            let lock = DistributedLock::new(role.client, "/locks", "one");
            if role.process == 1 {
                stage.world.act(|world| world.set_panic(role.process, self.after));
                let call = || lock.lock().map(drop);
                stage.count(catch_unwind(AssertUnwindSafe(call)).is_ok());
                stage.world.act(|world| world.set_panic(usize::MAX, 0));
            }
            let limit = stage.habits.session_timeout * 30;
            match lock.try_lock_for(limit) {
                Ok(Some(_)) => {}
                other => stage.accuse(format!("process {} got no lock: {other:?}", role.process)),
            }
        }
    }
    let mut panicked = 0;
    for seed in 0..200 {
        let after = u32::try_from(seed % 8).unwrap();
        let run = harness::perform_in_peace(seed, vec![1, 1], Arc::new(Panics { after }));
        panicked += run.unwrap_or_else(|why| panic!("seed {seed}: {why}")).failures;
    }
    assert!(panicked > 50, "only {panicked} calls panicked");
}

/// A process is stopped for longer than its session lasts, and sometimes again during the release.
/// The loss may be found first by the link, by a query or by the release: in each case it has a
/// reason and is reported.
#[test]
fn a_loss_by_a_pause_is_told_whoever_finds_it_first() {
    #[derive(Clone, Copy)]
    enum Way {
        Ask,
        AskWhy,
        LetGo,
    }
    struct Paused {
        way: Way,
        again: bool,
    }
    impl Play for Paused {
        fn act(&self, stage: &Stage, role: Role<'_>) {
            let (ends, all_ends) = mpsc::channel();
            role.client.core().report_to(Arc::new(move |event| {
                if matches!(event, Event::HoldLost { .. } | Event::Released { .. }) {
                    let _ = ends.send(event.clone());
                }
            }));
            let Ok(guard) = DistributedLock::new(role.client, "/locks", "one").lock() else {
                return stage.accuse("the lock was not granted".to_owned());
            };
            let (told, heard) = (Arc::new(AtomicU64::new(0)), guard.lost());
            let token = Cancel::from(guard.lost());
            let forgotten = Cancel::from(guard.lost()).downgrade();
            if forgotten.upgrade().is_some() {
                stage.accuse("the hold keeps a token that nobody else has".to_owned());
            }
            let counted = Arc::clone(&told);
            guard.on_lost(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
            });
            let Some(schedule) = current() else { return };
            let until = schedule.time() + stage.habits.session_timeout * 2;
            stage.world.act(|world| world.stop(role.process, until));
            // The thread resumes with its process, before or after the link does.
            schedule.pause(Duration::from_nanos(1));
            let is_over = schedule.time() >= until;
            if is_over {
                match self.way {
                    Way::Ask if guard.is_held() => {
                        stage.accuse("is_held() is true, long after the loss".to_owned());
                    }
                    Way::Ask if heard.recorded().is_none() => {
                        stage.accuse("the lock is not held, but no reason is recorded".to_owned());
                    }
                    Way::AskWhy if heard.reason().is_none() => {
                        stage.accuse("the lock is lost, but has no reason".to_owned());
                    }
                    Way::Ask | Way::AskWhy | Way::LetGo => {}
                }
            }
            if self.again {
                let (world, process) = (Arc::clone(&stage.world), role.process);
                let until = schedule.time() + stage.habits.session_timeout * 2;
                schedule.after(Duration::from_nanos(1), move || {
                    world.act(|world| world.stop(process, until));
                });
            }
            drop(guard);
            if is_over && !token.is_cancelled() {
                stage.accuse("the loss has not tripped the token".to_owned());
            }
            if is_over && told.load(Ordering::SeqCst) != 1 {
                stage.accuse(format!("on_lost was called {} times", told.load(Ordering::SeqCst)));
            }
            let mut end = None;
            stage.eventually("the report of the hold's end", || {
                end = all_ends.try_recv().ok();
                end.is_some()
            });
            if is_over && !matches!(end, Some(Event::HoldLost { .. })) {
                stage.accuse(format!("the loss was reported as {end:?}"));
            }
            stage.count(is_over);
        }
    }
    let mut stopped = 0;
    for seed in 0..600 {
        let way = [Way::Ask, Way::AskWhy, Way::LetGo][seed as usize % 3];
        let play = Paused { way, again: seed % 2 == 0 };
        let run = harness::perform_in_peace(seed, vec![1], Arc::new(play));
        let tally = run.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        stopped += tally.deeds;
    }
    assert!(stopped > 200, "only {stopped} threads were stopped");
}

/// A hostile server may send a flood of events; the holder then sends one request at a time.
#[test]
fn a_flood_of_events_has_a_holder_ask_one_at_a_time() {
    struct Flooded;
    impl Play for Flooded {
        fn act(&self, stage: &Stage, role: Role<'_>) {
            let guard = DistributedLock::new(role.client, "/locks", "one").lock();
            let (Ok(guard), Some(session)) = (guard, role.client.core().present_session()) else {
                return stage.accuse("the lock was not granted".to_owned());
            };
            let asked = || stage.world.look(|world| world.asked(Operation::Read));
            stage.eventually("the first watch", || asked() > 0);
            let before = asked();
            for _ in 0..1_000 {
                session.watches().tell(NodeEvent::Written, guard.path());
            }
            let at_once = asked() - before;
            // If the first watch is still under way, or about to be, no request is added.
            let made_up = || asked() > before + at_once;
            stage.eventually("the one request that covers all events", made_up);
            if at_once > 1 {
                stage.accuse(format!("{at_once} requests were under way at once"));
            }
        }
    }
    for seed in 0..20 {
        let run = harness::perform_in_peace(seed, vec![1], Arc::new(Flooded));
        assert_eq!(run.map(drop), Ok(()), "seed {seed}");
    }
}

/// Each lock may be a little late; these delays must not add up.
#[test]
fn several_locks_have_one_limit() {
    for (seed, latency) in (0..200).flat_map(|seed| [(seed, 12), (seed, 20)]) {
        let result = locks::run_as(seed, false, |mut plan| {
            plan.recipe = Recipe::Multi { nodes: 3 };
            plan.habits.latency = Duration::from_millis(latency);
            // With less time than it takes to acquire all, none is ever acquired.
            plan.hold_at_most = None;
            plan
        });
        assert_eq!(result.map(drop), Ok(()), "seed {seed}, latency {latency} ms");
    }
}
