//! The places where threads meet, each as a small model that shuttle runs under many schedules:
//! it switches threads at every lock, bell and atomic operation, where the simulation does only
//! where they wait.
//!
//! ```text
//! scripts/simulate --threads                       # all models
//! scripts/simulate --threads --only reaper::       # some
//! scripts/simulate --threads --only reaper::NAME --schedule SCHEDULE   # as it was printed
//! ```

mod client;
mod connection;
mod ensemble;
mod handover;
mod lock;
mod notify;
mod reaper;
mod single_flight;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use shuttle::current::context_switches;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::thread::{JoinHandle, spawn};
use shuttle::{Config, MaxSteps, Runner};

use crate::rt::shuttled::{begin, join_all};

/// How many schedules of each kind a plain run tries.
const SCHEDULES: usize = 1_000;
/// A model that takes more steps goes round and round.
const PATIENCE: usize = 50_000;
/// In how many places a schedule of the second kind prefers another thread.
const DEPTH: usize = 3;

/// Tries a model under many schedules. It returns what is to hold when all its threads have ended;
/// that they do is part of what is tried.
///
/// `ZKLOCK_SEEDS` says how many schedules of each kind, `ZKLOCK_FIRST_SEED` where they are
/// drawn from; `ZKLOCK_SCHEDULE` is one to replay.
fn explore<F, E>(model: F)
where
    F: Fn() -> E + Clone + Send + Sync + 'static,
    E: FnOnce(),
{
    let name = std::any::type_name::<F>().replace("zklock::models::", "");
    let name = name.replace("::{{closure}}", "");
    if let Ok(schedule) = std::env::var("ZKLOCK_SCHEDULE") {
        // It is printed in lines.
        let schedule: String = schedule.split_whitespace().collect();
        run(&model, ReplayScheduler::new_from_encoded(&schedule));
        return;
    }
    let setting = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let count = setting("ZKLOCK_SEEDS").unwrap_or(SCHEDULES);
    let seed = setting("ZKLOCK_FIRST_SEED").unwrap_or(0) as u64;
    let began = Instant::now();
    let steps = run(&model, RandomScheduler::new_from_seed(seed, count))
        + run(&model, PctScheduler::new_from_seed(seed, DEPTH, count));
    println!(
        "{name}: {count} schedules at random and {count} by priorities; {steps} steps, {:.1} s",
        began.elapsed().as_secs_f64()
    );
}

/// How many steps were taken.
fn run<F, E>(model: &F, scheduler: impl Scheduler + 'static) -> usize
where
    F: Fn() -> E + Clone + Send + Sync + 'static,
    E: FnOnce(),
{
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.max_steps = MaxSteps::FailAfter(PATIENCE);
    // It warns that weaker orderings of atomics are not explored; what is tried here uses none.
    config.silence_warnings = true;
    let (model, steps) = (model.clone(), Arc::new(AtomicUsize::new(0)));
    let taken = Arc::clone(&steps);
    Runner::new(scheduler, config).run(move || {
        begin();
        let in_the_end = model();
        join_all();
        in_the_end();
        taken.fetch_add(context_switches(), Relaxed);
    });
    steps.load(Relaxed)
}

/// So many threads that do the same, by number; to be joined.
#[must_use]
fn threads<T: Send + 'static>(
    count: usize,
    body: impl Fn(usize) -> T + Clone + Send + 'static,
) -> Vec<JoinHandle<T>> {
    let start = |number| {
        let body = body.clone();
        spawn(move || body(number))
    };
    (0..count).map(start).collect()
}

fn join<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Lets others go on until it is so.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        shuttle::thread::yield_now();
    }
}
