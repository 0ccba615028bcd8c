//! Threads, bells and clocks: simulated within a simulation, and real outside.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::Deadline;
use super::real;
use super::schedule::{self, Sleeper};

pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};

pub(crate) use parking_lot::{Mutex, MutexGuard};

pub(super) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    match schedule::current() {
        None => real::start(name, body),
        Some(schedule) => schedule.start(name, body),
    }
}

/// A task's number stands for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadId {
    Real(real::ThreadId),
    Task(usize),
}

pub(crate) fn thread_id() -> ThreadId {
    let task = schedule::current().and_then(|schedule| schedule.task());
    task.map_or_else(|| ThreadId::Real(real::thread_id()), ThreadId::Task)
}

pub(crate) fn now() -> Instant {
    schedule::current().map_or_else(real::now, |schedule| schedule.instant())
}

pub(crate) fn random() -> u128 {
    schedule::current().map_or_else(real::random, |schedule| schedule.random())
}

/// A condition variable for tasks and real threads. The mutex is the real one for both: a task is
/// switched only where it waits, so no task ever finds a mutex locked that is not meant to be.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    real: parking_lot::Condvar,
    sleepers: Mutex<Vec<Sleeper>>,
}

pub(crate) struct Waited {
    timed_out: bool,
}

impl Waited {
    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out
    }
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if !self.sleep(guard, None) {
            self.real.wait(guard);
        }
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) -> Waited {
        if self.sleep(guard, Some(end)) {
            return Waited { timed_out: now() >= end };
        }
        Waited { timed_out: self.real.wait_until(guard, end).timed_out() }
    }

    pub(crate) fn wait_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: std::time::Duration,
    ) -> Waited {
        self.wait_until(guard, now() + limit)
    }

    /// Sleeps if this is a simulation, and says whether it is.
    fn sleep<T>(&self, guard: &mut MutexGuard<'_, T>, end: Option<Instant>) -> bool {
        let Some(schedule) = schedule::current() else { return false };
        let sleeper = schedule.sleeper();
        self.sleepers.lock().push(sleeper);
        MutexGuard::unlocked(guard, || schedule.sleep(end));
        self.sleepers.lock().retain(|other| *other != sleeper);
        true
    }

    pub(crate) fn notify_one(&self) {
        self.real.notify_one();
        if let Some(schedule) = schedule::current() {
            let mut sleepers = self.sleepers.lock();
            if !sleepers.is_empty() {
                let chosen = schedule.below(sleepers.len());
                schedule.wake(sleepers.swap_remove(chosen));
            }
        }
    }

    pub(crate) fn notify_all(&self) {
        self.real.notify_all();
        if let Some(schedule) = schedule::current() {
            for sleeper in self.sleepers.lock().drain(..) {
                schedule.wake(sleeper);
            }
        }
    }
}

pub(crate) fn bell() -> (Bell, Rung) {
    if schedule::current().is_none() {
        let (bell, rung) = real::bell();
        return (Bell::Real(bell), Rung::Real(rung));
    }
    let shared = Arc::new(Mutex::default());
    (Bell::Simulated(Arc::clone(&shared)), Rung::Simulated(shared))
}

/// Whether the bell was rung, and the task that waits for that.
type Shared = Arc<Mutex<(bool, Option<Sleeper>)>>;

#[derive(Clone, Debug)]
pub(crate) enum Bell {
    Real(real::Bell),
    Simulated(Shared),
}

impl Bell {
    pub(crate) fn ring(&self) {
        match self {
            Bell::Real(bell) => bell.ring(),
            Bell::Simulated(shared) => {
                let mut state = shared.lock();
                state.0 = true;
                if let (Some(sleeper), Some(schedule)) = (state.1.take(), schedule::current()) {
                    schedule.wake(sleeper);
                }
            }
        }
    }
}

#[derive(Debug)]
pub(crate) enum Rung {
    Real(real::Rung),
    Simulated(Shared),
}

impl Rung {
    pub(crate) fn wait(&self, until: Deadline) {
        let shared = match self {
            Rung::Real(rung) => return rung.wait(until),
            Rung::Simulated(shared) => shared,
        };
        let Some(schedule) = schedule::current() else { return };
        if !shared.lock().0 {
            shared.lock().1 = Some(schedule.sleeper());
            schedule.sleep(until.instant());
        }
        *shared.lock() = (false, None);
    }

    pub(crate) fn is_rung(&self) -> bool {
        match self {
            Rung::Real(rung) => rung.is_rung(),
            Rung::Simulated(shared) => shared.lock().0,
        }
    }
}
