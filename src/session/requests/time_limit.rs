//! How long a caller waits: until a deadline, or until it is cancelled.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::rt::{AtomicBool, Deadline, Signal};
use crate::session::wait::{Subscription, Wait, Waiter};

/// By when a caller wants its answers, and what may end its wait earlier.
#[derive(Debug)]
pub(crate) struct TimeLimit {
    wait: Wait,
    /// Of the token that cancels the wait.
    _cancel: Option<Subscription>,
    waiter: Waiter,
    was_over: AtomicBool,
}

impl TimeLimit {
    pub(crate) fn new(wait: &Wait) -> TimeLimit {
        let waiter = Waiter::new();
        let _cancel = wait.cancel().map(|cancel| cancel.subscribe(waiter.bell()));
        TimeLimit { wait: wait.clone(), _cancel, waiter, was_over: AtomicBool::new(false) }
    }

    /// Whether the caller must stop waiting. Once true, it stays true.
    pub(crate) fn is_over(&self) -> bool {
        if self.wait.is_over() {
            self.was_over.store(true, Ordering::Relaxed);
        }
        self.was_over()
    }

    pub(super) fn may_be_cancelled(&self) -> bool {
        self.wait.cancel().is_some()
    }

    pub(super) fn until(&self) -> Deadline {
        self.wait.until()
    }

    /// Whether [`is_over`](TimeLimit::is_over) has told the caller to stop waiting.
    pub(crate) fn was_over(&self) -> bool {
        self.was_over.load(Ordering::Relaxed)
    }

    /// The bell to ring when what the caller waits for has come.
    pub(crate) fn bell(&self) -> Signal {
        self.waiter.bell()
    }

    /// Returns when the bell was rung since the last wait, or when the limit is over.
    pub(crate) fn wait(&self) {
        self.waiter.wait(self.wait.until());
    }

    /// Waits for `duration`, or until the limit is over.
    pub(crate) fn pause(&self, duration: Duration) {
        let end = Deadline::after(duration).earlier(self.wait.until());
        while !end.has_passed() && !self.is_over() {
            self.waiter.wait(end);
        }
    }
}
