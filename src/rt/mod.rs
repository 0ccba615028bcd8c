//! Threads, channels, locks, atomics and time: the rest of the library takes them only from here, so that
//! a simulation can replace them. Except for the link's own two locks, which no simulation has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Count, Ordering};
use std::time::{Duration, Instant};

pub(crate) use crossbeam_channel::{
    Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded,
};

use crate::error::{Error, ErrorKind, Result};

#[cfg(not(all(test, shuttle)))]
mod real;
#[cfg(not(test))]
use real as ground;

// In tests: real as well, except for the threads of a simulation.
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "../../tests/rt/schedule.rs"]
pub(crate) mod schedule;
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "../../tests/rt/simulated.rs"]
mod simulated;
#[cfg(test)]
#[cfg(not(shuttle))]
use simulated as ground;

// With `--cfg shuttle`: shuttle's threads, which are switched wherever they synchronize.
#[cfg(test)]
#[cfg(shuttle)]
#[path = "../../tests/rt/shuttled.rs"]
pub(crate) mod shuttled;
#[cfg(test)]
#[cfg(shuttle)]
use shuttled as ground;

pub(crate) use ground::{
    AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Bell, Condvar, Mutex, MutexGuard, Rung,
    ThreadId, bell, now, random, thread_id,
};

/// The calling thread as the program knows it, also where the threads of a simulation are others.
#[cfg_attr(not(test), expect(unused_qualifications, reason = "tests have another `ThreadId`"))]
pub(crate) fn program_thread() -> std::thread::ThreadId {
    std::thread::current().id()
}

static LIVE: Count = Count::new(0);

struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Starts a named thread that is never joined.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    LIVE.fetch_add(1, Ordering::AcqRel);
    let counted = Counted;
    let body = move || {
        let _counted = counted;
        body();
    };
    ground::start(name, body).map_err(|cause| {
        Error::new(ErrorKind::System, format!("could not start the thread {name:?}: {cause}"))
            .caused_by(cause)
    })
}

/// How many of this library's own threads are alive in this process.
pub(crate) fn live_threads() -> usize {
    LIVE.load(Ordering::Acquire)
}

/// Called when something happens; it may only signal.
pub(crate) type Signal = Arc<dyn Fn() + Send + Sync>;

/// The end of a wait; `None` for a wait without end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Deadline = Deadline(None);

    pub(crate) fn at(instant: Instant) -> Deadline {
        Deadline(Some(instant))
    }

    /// A deadline that never comes, if `duration` is too long for the clock.
    pub(crate) fn after(duration: Duration) -> Deadline {
        Deadline(now().checked_add(duration))
    }

    pub(crate) fn instant(self) -> Option<Instant> {
        self.0
    }

    pub(crate) fn is_never(self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|end| now() >= end)
    }

    pub(crate) fn earlier(self, other: Deadline) -> Deadline {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Deadline(Some(a.min(b))),
            (a, b) => Deadline(a.or(b)),
        }
    }
}

/// A point in time on the lease's clock, in nanoseconds. The clock goes on while the machine
/// sleeps (`CLOCK_BOOTTIME` on Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) const ZERO: Moment = Moment(0);
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    pub(crate) fn now() -> Moment {
        #[cfg(all(test, not(shuttle)))]
        if let Some(schedule) = schedule::current() {
            return Moment(1 << 50).plus(schedule.time());
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(CLOCK);
        Moment(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    pub(crate) fn as_nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn plus(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Zero when `earlier` is the later one.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
