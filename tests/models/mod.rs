//! Small models of the code that threads share, each run by shuttle under many schedules. Shuttle
//! switches threads at every lock, bell and atomic operation; the simulation does so only where
//! threads wait.
//!
//! ```text
//! scripts/simulate --threads                       # all models
//! scripts/simulate --threads --only reaper::       # some
//! scripts/simulate --threads --only reaper::NAME --schedule SCHEDULE   # replays a printed one
//! ```

mod client;
mod connection;
mod ensemble;
mod handover;
mod lock;
mod notify;
mod reading;
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

/// How many schedules of each kind a run tries by default.
const SCHEDULES: usize = 1_000;
/// A model that takes more steps than this is taken to loop for ever.
const PATIENCE: usize = 50_000;
/// How often a schedule of the second kind changes the thread it prefers.
const DEPTH: usize = 3;

/// Tries a model under many schedules. The model returns the final check, which runs when all its
/// threads have ended; a thread that never ends is a failure.
///
/// `ZKLOCK_SEEDS` sets how many schedules of each kind to try, `ZKLOCK_FIRST_SEED` the seed they
/// are drawn from, and `ZKLOCK_SCHEDULE` a single schedule to replay.
fn explore<F, E>(model: F)
where
    F: Fn() -> E + Clone + Send + Sync + 'static,
    E: FnOnce(),
{
    let name = std::any::type_name::<F>().replace("zklock::models::", "");
    let name = name.replace("::{{closure}}", "");
    if let Ok(schedule) = std::env::var("ZKLOCK_SCHEDULE") {
        // Shuttle prints a schedule in several lines.
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

/// Runs the model under the scheduler and returns the number of steps taken.
fn run<F, E>(model: &F, scheduler: impl Scheduler + 'static) -> usize
where
    F: Fn() -> E + Clone + Send + Sync + 'static,
    E: FnOnce(),
{
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.max_steps = MaxSteps::FailAfter(PATIENCE);
    // Shuttle warns that it does not explore weaker atomic orderings; the models use none.
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

/// Starts `count` threads that run `body` with their numbers; the caller joins them.
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

/// Lets other threads run until the condition holds.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        shuttle::thread::yield_now();
    }
}
