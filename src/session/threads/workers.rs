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
pub(crate) struct Workers {
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
    pub(crate) fn new(name: &'static str, most: usize) -> Arc<Workers> {
        Arc::new(Workers { name, most, state: Mutex::default(), work: Condvar::new() })
    }

    /// Runs the job on a thread, now or when one is free. If there is no thread at all and none can
    /// be started, all waiting jobs are given back with the reason.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> Result<(), (Error, VecDeque<Job>)> {
        let mut state = self.state.lock();
        state.queue.push_back(job);
        if state.idle >= state.queue.len() || state.threads >= self.most {
            self.work.notify_one();
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        let workers = Arc::clone(self);
        let Err(error) = rt::spawn(self.name, move || workers.work()) else { return Ok(()) };
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads > 0 {
            // The existing threads will run it.
            return Ok(());
        }
        Err((error, std::mem::take(&mut state.queue)))
    }

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
        let state = self.state.lock();
        f.debug_struct("Workers")
            .field("name", &self.name)
            .field("threads", &state.threads)
            .field("queued", &state.queue.len())
            .finish_non_exhaustive()
    }
}
