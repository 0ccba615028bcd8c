//! A pool of threads that are started when there is work and end when there has been none for a
//! while.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::logging;
use crate::rt::{self, Condvar, Mutex};

/// How long a thread waits for more work before it ends.
const LINGER: Duration = Duration::from_secs(1);

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// See the module.
#[derive(Clone)]
pub(crate) struct Workers {
    shared: Arc<Pool>,
}

struct Pool {
    /// What the threads are called.
    name: &'static str,
    /// How many of them may run at once.
    most: usize,
    state: Mutex<PoolState>,
    work: Condvar,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Job>,
    idle: usize,
    threads: usize,
}

impl Workers {
    pub(crate) fn new(name: &'static str, most: usize) -> Workers {
        let shared = Pool { name, most, state: Mutex::default(), work: Condvar::new() };
        Workers { shared: Arc::new(shared) }
    }

    /// Runs the job on a thread, now or when one is free. If there is no thread at all and none can
    /// be started, all waiting jobs are given back with the reason.
    pub(crate) fn submit(&self, job: Job) -> Result<(), (Error, VecDeque<Job>)> {
        let mut state = self.shared.state.lock();
        state.queue.push_back(job);
        if state.idle >= state.queue.len() || state.threads >= self.shared.most {
            self.shared.work.notify_one();
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let Err(error) = rt::spawn(self.shared.name, move || shared.work()) else { return Ok(()) };
        let mut state = self.shared.state.lock();
        state.threads -= 1;
        if state.threads > 0 {
            // The existing threads will run it.
            return Ok(());
        }
        Err((error, std::mem::take(&mut state.queue)))
    }
}

impl Pool {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    // The thread must survive a logger that panics, as it would still be counted
                    // otherwise.
                    let name = self.name;
                    let say = move || logging::error!(target: "zklock::events", "a job of {name} panicked");
                    let _ = catch_unwind(say);
                }
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

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("Workers")
            .field("name", &self.shared.name)
            .field("threads", &state.threads)
            .field("queued", &state.queue.len())
            .finish_non_exhaustive()
    }
}
