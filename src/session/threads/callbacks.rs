//! Runs the user's callbacks, and jobs like them, on threads of their own, so that they may block and
//! call the library.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::workers::{Job, Workers};
use crate::logging;
use crate::rt::{AtomicBool, Mutex};

/// Runs callbacks on one thread, and on more while they block, up to a limit.
#[derive(Clone)]
pub(crate) struct Callbacks {
    workers: Arc<Workers>,
    /// Callbacks for which no thread could be started; they are retried with the next one.
    stranded: Arc<Mutex<VecDeque<Job>>>,
    /// Whether the lack of threads has been logged since a thread could last be started.
    short: Arc<AtomicBool>,
}

impl Callbacks {
    /// On at most so many threads of that name.
    pub(crate) fn new(name: &'static str, most: usize) -> Callbacks {
        let workers = Workers::new(name, most);
        Callbacks { workers, stranded: Arc::default(), short: Arc::default() }
    }

    /// Without a limit: a callback that blocks delays no other.
    pub(crate) fn of_program() -> Callbacks {
        Callbacks::new("zklock-event", usize::MAX)
    }

    pub(crate) fn dispatch(&self, job: impl FnOnce() + Send + 'static) {
        self.submit(Box::new(job));
        self.retry();
    }

    /// Retries the callbacks for which no thread could be started, until that fails again.
    pub(crate) fn retry(&self) {
        let mut stranded = std::mem::take(&mut *self.stranded.lock());
        while let Some(job) = stranded.pop_front() {
            if !self.submit(job) {
                self.stranded.lock().extend(stranded);
                return;
            }
        }
    }

    /// Whether there is a thread for it.
    fn submit(&self, job: Job) -> bool {
        let Err((error, stranded)) = self.workers.submit(job) else {
            self.short.store(false, Ordering::SeqCst);
            return true;
        };
        let mut waiting = self.stranded.lock();
        let first = waiting.is_empty() && !self.short.swap(true, Ordering::SeqCst);
        waiting.extend(stranded);
        drop(waiting);
        if first {
            logging::error!(
                target: "zklock::events",
                "no thread for a callback or a member that rejoins, trying again later: {error}"
            );
        }
        false
    }
}

/// Callbacks that run in their order, one at a time.
pub(crate) struct InOrder {
    events: Callbacks,
    /// The callbacks still to run, and whether a job that runs them is under way.
    pending: Mutex<(VecDeque<Job>, bool)>,
}

impl InOrder {
    pub(crate) fn new(events: &Callbacks) -> Arc<InOrder> {
        Arc::new(InOrder { events: events.clone(), pending: Mutex::default() })
    }

    pub(crate) fn dispatch(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut pending = self.pending.lock();
        pending.0.push_back(Box::new(job));
        if std::mem::replace(&mut pending.1, true) {
            return;
        }
        drop(pending);
        let serial = Arc::clone(self);
        self.events.dispatch(move || {
            loop {
                let mut pending = serial.pending.lock();
                let Some(job) = pending.0.pop_front() else {
                    pending.1 = false;
                    return;
                };
                drop(pending);
                run_callback(job);
            }
        });
    }
}

/// Runs a callback of the program: a panic is logged, and ends nothing else.
pub(crate) fn run_callback(callback: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(callback)).is_err() {
        logging::error!(target: "zklock::events", "a callback panicked");
    }
}

impl std::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.workers.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::bounded;

    #[test]
    fn blocked_and_panicking_callbacks_hold_up_no_other() {
        let events = Callbacks::of_program();
        let (release, released) = bounded::<()>(0);
        let (told, heard) = bounded(1);
        // They go on together, when the last has begun.
        let together = Arc::new(std::sync::Barrier::new(101));
        for _ in 0..100 {
            let together = Arc::clone(&together);
            events.dispatch(move || {
                together.wait();
            });
        }
        events.dispatch(move || {
            let _ = released.recv();
        });
        together.wait();
        events.dispatch(|| panic!("this one panics"));
        events.dispatch(move || told.send(()).unwrap());
        heard.recv().unwrap();
        drop(release);
    }
}
