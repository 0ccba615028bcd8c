//! Calls with a deadline. A verb cannot be abandoned, so one that has a
//! deadline runs on a worker thread while its caller waits.

use std::sync::Arc;

use super::wake::{Signal, Waiter};
use super::workers::Workers;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::{Deadline, Mutex};

/// The most worker threads of a client whose calls may hang for as long as they like: one of a
/// handle of the program's. Elsewhere every call is answered in bounded time, and there is a worker
/// for each thread that waits for one.
pub(crate) const MOST: usize = 16;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    workers: Workers,
}

enum Slot<T> {
    Pending,
    Done(T),
    /// It will never be done: there was no thread for it, or it panicked.
    Failed,
    Abandoned,
}

/// The job's end of a slot; dropped without a result, the call has failed.
struct Promise<T> {
    slot: Arc<Mutex<Slot<T>>>,
    bell: Signal,
}

impl Calls {
    /// With so many workers at the most.
    pub(crate) fn new(most: usize) -> Calls {
        Calls { workers: Workers::new("zklock-call", most) }
    }

    /// Runs `job` and returns its result, or `None` if `give_up` said so first; it is
    /// asked at the deadline and whenever the waiter's bell is rung. A job that has
    /// not begun by then never runs; the result of one that has goes to `late`.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        waiter: &Waiter,
        until: Deadline,
        give_up: impl Fn() -> bool,
        job: impl FnOnce() -> T + Send + 'static,
        late: impl FnOnce(T) + Send + 'static,
    ) -> Result<Option<T>> {
        let slot = Arc::new(Mutex::new(Slot::Pending));
        let promise = Promise { slot: Arc::clone(&slot), bell: waiter.bell() };
        let job = move || {
            if promise.is_wanted()
                && let Some(result) = promise.keep(job())
            {
                late(result);
            }
        };
        // Dropped, the stranded jobs tell their callers. This one need not be among them: a thread
        // that has ended since may have run it.
        let refused = self.workers.submit(Box::new(job)).err().map(|(error, _stranded)| error);
        loop {
            let mut state = slot.lock();
            if !matches!(*state, Slot::Pending) || until.has_passed() || give_up() {
                return match std::mem::replace(&mut *state, Slot::Abandoned) {
                    Slot::Done(result) => Ok(Some(result)),
                    Slot::Failed => Err(refused.unwrap_or_else(|| {
                        Error::new(
                            ErrorKind::System,
                            "a thread for the call could not be started, or ended early",
                        )
                    })),
                    Slot::Pending | Slot::Abandoned => Ok(None),
                };
            }
            drop(state);
            waiter.wait(until);
        }
    }
}

impl<T> Promise<T> {
    fn is_wanted(&self) -> bool {
        matches!(*self.slot.lock(), Slot::Pending)
    }

    /// Gives the result back if nobody wants it any more.
    fn keep(&self, result: T) -> Option<T> {
        let mut slot = self.slot.lock();
        if !matches!(*slot, Slot::Pending) {
            return Some(result);
        }
        *slot = Slot::Done(result);
        drop(slot);
        (self.bell)();
        None
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let mut slot = self.slot.lock();
        if matches!(*slot, Slot::Pending) {
            *slot = Slot::Failed;
            drop(slot);
            (self.bell)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::bounded;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[test]
    fn a_call_in_time_gives_its_result() {
        let (calls, waiter) = (Calls::new(MOST), Waiter::new());
        let result = calls.run(&waiter, Deadline::NEVER, || false, || 7, |_| panic!("late"));
        assert_eq!(result.unwrap(), Some(7));
    }

    #[test]
    fn a_late_result_is_not_lost() {
        let (calls, waiter) = (Calls::new(MOST), Waiter::new());
        let (release, released) = bounded::<()>(0);
        let (told, late) = bounded(1);
        let has_begun = Arc::new(AtomicBool::new(false));
        let (begun, bell) = (Arc::clone(&has_begun), waiter.bell());
        let job = move || {
            begun.store(true, Ordering::SeqCst);
            bell();
            let _ = released.recv();
            7
        };
        let give_up = || has_begun.load(Ordering::SeqCst);
        let tell = move |late| told.send(late).unwrap();
        let result = calls.run(&waiter, Deadline::NEVER, give_up, job, tell);
        assert_eq!(result.unwrap(), None);
        drop(release);
        assert_eq!(late.recv(), Ok(7));
    }

    #[test]
    fn with_all_workers_stuck_a_call_still_ends_in_time_and_never_runs() {
        let (calls, waiter) = (Calls::new(MOST), Waiter::new());
        let (release, released) = bounded::<()>(0);
        let (begin, begun) = bounded(MOST);
        let soon = || Deadline::after(Duration::from_millis(5));
        for _ in 0..MOST {
            let (begin, released) = (begin.clone(), released.clone());
            let job = move || {
                begin.send(()).unwrap();
                let _ = released.recv();
            };
            assert!(calls.workers.submit(Box::new(job)).is_ok());
        }
        for _ in 0..MOST {
            begun.recv().unwrap();
        }
        let ran = Arc::new(Mutex::new(false));
        let sees = Arc::clone(&ran);
        let job = move || *sees.lock() = true;
        assert_eq!(calls.run(&waiter, soon(), || false, job, drop).unwrap(), None);
        drop(release);
        assert_eq!(calls.run(&waiter, Deadline::NEVER, || false, || 1, drop).unwrap(), Some(1));
        assert!(!*ran.lock());
    }

    #[test]
    fn a_call_that_panics_fails_and_leaves_nobody_waiting() {
        let (calls, waiter) = (Calls::new(MOST), Waiter::new());
        let job = || panic!("this one panics");
        let result: Result<Option<()>> = calls.run(&waiter, Deadline::NEVER, || false, job, drop);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::System);
        assert_eq!(calls.run(&waiter, Deadline::NEVER, || false, || 1, drop).unwrap(), Some(1));
    }
}
