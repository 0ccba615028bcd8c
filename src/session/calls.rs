//! Calls with a deadline. A call of the handle cannot be abandoned, so one that has a
//! deadline runs on a worker thread while its caller waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::wake::Waiter;
use crate::error::Result;
use crate::rt::{self, Condvar, Deadline, Mutex};

/// The most worker threads of one client.
const MOST: usize = 16;
/// How long a worker waits for more work before it ends.
const LINGER: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// Worker threads, started on demand.
#[derive(Clone, Default)]
pub(crate) struct Calls {
    pool: Arc<Pool>,
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    idle: usize,
    threads: usize,
}

enum Slot<T> {
    Pending,
    Done(T),
    Abandoned,
}

impl Calls {
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
        let (shared, bell) = (Arc::clone(&slot), waiter.bell());
        self.submit(Box::new(move || {
            if matches!(*shared.lock(), Slot::Abandoned) {
                return;
            }
            let result = job();
            let mut slot = shared.lock();
            if matches!(*slot, Slot::Abandoned) {
                drop(slot);
                late(result);
            } else {
                *slot = Slot::Done(result);
                drop(slot);
                bell();
            }
        }))?;
        loop {
            let mut state = slot.lock();
            if matches!(*state, Slot::Done(_)) || until.has_passed() || give_up() {
                return Ok(match std::mem::replace(&mut *state, Slot::Abandoned) {
                    Slot::Done(result) => Some(result),
                    _ => None,
                });
            }
            drop(state);
            waiter.wait(until);
        }
    }

    fn submit(&self, job: Job) -> Result<()> {
        let mut state = self.pool.state.lock();
        state.queue.push_back(job);
        if state.idle >= state.queue.len() || state.threads >= MOST {
            self.pool.work.notify_one();
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        let pool = Arc::clone(&self.pool);
        let started = rt::spawn("zklock-call", move || pool.work());
        if let Err(error) = started {
            let mut state = self.pool.state.lock();
            state.threads -= 1;
            // Those that there are will come to it.
            if state.threads == 0 {
                state.queue.clear();
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Pool {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.work.wait_for(&mut state, LINGER);
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.pool.state.lock();
        f.debug_struct("Calls")
            .field("threads", &state.threads)
            .field("queued", &state.queue.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::bounded;

    #[test]
    fn a_call_in_time_gives_its_result() {
        let (calls, waiter) = (Calls::default(), Waiter::new());
        let result = calls.run(&waiter, Deadline::NEVER, || false, || 7, |_| panic!("late"));
        assert_eq!(result.unwrap(), Some(7));
    }

    #[test]
    fn a_late_result_is_not_lost() {
        let (calls, waiter) = (Calls::default(), Waiter::new());
        let (release, released) = bounded::<()>(0);
        let (told, late) = bounded(1);
        let until = Deadline::after(Duration::from_millis(5));
        let job = move || {
            let _ = released.recv();
            7
        };
        let result = calls.run(&waiter, until, || false, job, move |late| told.send(late).unwrap());
        assert_eq!(result.unwrap(), None);
        drop(release);
        assert_eq!(late.recv(), Ok(7));
    }

    #[test]
    fn with_all_workers_stuck_a_call_still_ends_in_time_and_never_runs() {
        let (calls, waiter) = (Calls::default(), Waiter::new());
        let (release, released) = bounded::<()>(0);
        let soon = || Deadline::after(Duration::from_millis(5));
        for _ in 0..MOST {
            let released = released.clone();
            let job = move || {
                let _ = released.recv();
            };
            assert_eq!(calls.run(&waiter, soon(), || false, job, drop).unwrap(), None);
        }
        let ran = Arc::new(Mutex::new(false));
        let sees = Arc::clone(&ran);
        let job = move || *sees.lock() = true;
        assert_eq!(calls.run(&waiter, soon(), || false, job, drop).unwrap(), None);
        drop(release);
        assert_eq!(calls.run(&waiter, Deadline::NEVER, || false, || 1, drop).unwrap(), Some(1));
        assert!(!*ran.lock());
    }
}
