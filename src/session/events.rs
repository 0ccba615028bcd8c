//! Where the user's callbacks run: off every lock and every IO thread, so that they may
//! call the library.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::rt::{self, Condvar, Mutex};

/// How long the thread waits for more work before it ends.
const LINGER: Duration = Duration::from_secs(1);
/// The most threads that callbacks may keep busy at once.
const MOST: usize = 32;

type Job = Box<dyn FnOnce() + Send>;

/// One dispatcher thread, and while callbacks keep that busy, further ones.
#[derive(Clone, Default)]
pub(crate) struct Events {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    idle: usize,
    threads: usize,
}

impl Events {
    pub(crate) fn dispatch(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.queue.push_back(Box::new(job));
        if state.idle >= state.queue.len() {
            self.shared.work.notify_one();
            return;
        }
        if state.threads >= MOST {
            log::warn!(target: "zklock::events", "{MOST} callbacks are running; one more waits");
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        if let Err(error) = rt::spawn("zklock-event", move || shared.work()) {
            self.shared.state.lock().threads -= 1;
            log::error!(target: "zklock::events", "a callback has to wait: {error}");
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    log::error!(target: "zklock::events", "a callback panicked");
                }
                state = self.state.lock();
                continue;
            }
            // Only one thread lingers.
            if state.idle > 0 {
                state.threads -= 1;
                return;
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

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("Events").field("threads", &state.threads).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::bounded;

    #[test]
    fn a_blocked_or_panicking_callback_holds_up_no_other() {
        let events = Events::default();
        let (release, released) = bounded::<()>(0);
        let (told, heard) = bounded(1);
        events.dispatch(move || {
            let _ = released.recv();
        });
        events.dispatch(|| panic!("this one panics"));
        events.dispatch(move || told.send(()).unwrap());
        heard.recv().unwrap();
        drop(release);
    }
}
