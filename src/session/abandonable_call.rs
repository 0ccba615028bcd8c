//! Runs a call on a program's handle, which cannot be interrupted, on a worker thread, so that a
//! caller with a timeout can stop waiting for it.

use std::mem;
use std::sync::Arc;

use super::notify::Signal;
use super::time_limit::TimeLimit;
use super::workers::Workers;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Mutex;

enum ResultSlot<T> {
    Pending,
    Done(T),
    /// There will be no result: no thread could be started for the job, or the job panicked.
    Failed,
    Abandoned,
}

/// The job's end of a slot. If it is dropped without a result, the call fails.
struct ResultPromise<T> {
    slot: Arc<Mutex<ResultSlot<T>>>,
    bell: Signal,
}

/// Runs `job` and returns its result, or `None` if the limit was over first. A job that has not
/// begun by then never runs; if it has begun, its result goes to `late`.
pub(crate) fn run<T: Send + 'static>(
    workers: &Workers,
    limit: &TimeLimit,
    job: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> Result<Option<T>> {
    let slot = Arc::new(Mutex::new(ResultSlot::Pending));
    let promise = ResultPromise { slot: Arc::clone(&slot), bell: limit.bell() };
    let job = move || {
        if !promise.is_wanted() {
            return;
        }
        if let Some(result) = promise.keep(job()) {
            late(result);
        }
    };
    // Dropping the stranded jobs makes their callers' calls fail. This job may not be among them: a
    // thread that has ended since may have run it.
    let refused = workers.submit(Box::new(job)).err().map(|(error, _stranded)| error);
    loop {
        let mut state = slot.lock();
        if !matches!(*state, ResultSlot::Pending) || limit.is_over() {
            return match mem::replace(&mut *state, ResultSlot::Abandoned) {
                ResultSlot::Done(result) => Ok(Some(result)),
                ResultSlot::Failed => Err(refused.unwrap_or_else(|| {
                    Error::new(
                        ErrorKind::System,
                        "no thread could be started for the call, or the call panicked",
                    )
                })),
                ResultSlot::Pending | ResultSlot::Abandoned => Ok(None),
            };
        }
        drop(state);
        limit.wait();
    }
}

impl<T> ResultPromise<T> {
    fn is_wanted(&self) -> bool {
        matches!(*self.slot.lock(), ResultSlot::Pending)
    }

    /// Gives the result back if the caller no longer waits for it.
    fn keep(&self, result: T) -> Option<T> {
        let mut slot = self.slot.lock();
        if !matches!(*slot, ResultSlot::Pending) {
            return Some(result);
        }
        *slot = ResultSlot::Done(result);
        drop(slot);
        (self.bell)();
        None
    }
}

impl<T> Drop for ResultPromise<T> {
    fn drop(&mut self) {
        let mut slot = self.slot.lock();
        if matches!(*slot, ResultSlot::Pending) {
            *slot = ResultSlot::Failed;
            drop(slot);
            (self.bell)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{Deadline, bounded};
    use crate::session::cancel::Cancel;
    use std::time::Duration;

    const MOST: usize = 3;

    fn workers() -> Workers {
        Workers::new("zklock-call", MOST)
    }

    fn unlimited() -> TimeLimit {
        TimeLimit::new(Deadline::NEVER, None)
    }

    #[test]
    fn a_call_in_time_gives_its_result() {
        let result = run(&workers(), &unlimited(), || 7, |_| panic!("late"));
        assert_eq!(result.unwrap(), Some(7));
    }

    #[test]
    fn a_late_result_is_not_lost() {
        let (release, released) = bounded::<()>(0);
        let (told, late) = bounded(1);
        let cancel = Cancel::new();
        let limit = TimeLimit::new(Deadline::NEVER, Some(&cancel));
        let job = move || {
            // It has begun.
            cancel.cancel();
            let _ = released.recv();
            7
        };
        let tell = move |late| told.send(late).unwrap();
        assert_eq!(run(&workers(), &limit, job, tell).unwrap(), None);
        drop(release);
        assert_eq!(late.recv(), Ok(7));
    }

    #[test]
    fn with_all_workers_stuck_a_call_still_ends_in_time_and_never_runs() {
        let workers = workers();
        let (release, released) = bounded::<()>(0);
        let (begin, begun) = bounded(MOST);
        for _ in 0..MOST {
            let (begin, released) = (begin.clone(), released.clone());
            let job = move || {
                begin.send(()).unwrap();
                let _ = released.recv();
            };
            assert!(workers.submit(Box::new(job)).is_ok());
        }
        for _ in 0..MOST {
            begun.recv().unwrap();
        }
        let ran = Arc::new(Mutex::new(false));
        let sees = Arc::clone(&ran);
        let job = move || *sees.lock() = true;
        let soon = TimeLimit::new(Deadline::after(Duration::from_millis(5)), None);
        assert_eq!(run(&workers, &soon, job, drop).unwrap(), None);
        drop(release);
        assert_eq!(run(&workers, &unlimited(), || 1, drop).unwrap(), Some(1));
        assert!(!*ran.lock());
    }

    #[test]
    fn a_call_that_panics_fails_and_leaves_nobody_waiting() {
        let workers = workers();
        let job = || panic!("this one panics");
        let result: Result<Option<()>> = run(&workers, &unlimited(), job, drop);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::System);
        assert_eq!(run(&workers, &unlimited(), || 1, drop).unwrap(), Some(1));
    }
}
