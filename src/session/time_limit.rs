//! How long a caller waits: until a deadline, or until it is cancelled.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::cancel::Cancel;
use super::notify::{Signal, Subscription, Waiter};
use crate::rt::{AtomicBool, Deadline};

/// By when a caller wants its answers, and what may end its wait earlier.
#[derive(Debug)]
pub(crate) struct TimeLimit {
    until: Deadline,
    cancel: Option<(Cancel, Subscription)>,
    waiter: Waiter,
    was_over: AtomicBool,
}

impl TimeLimit {
    pub(crate) fn new(until: Deadline, cancel: Option<&Cancel>) -> TimeLimit {
        let waiter = Waiter::new();
        let heed = |cancel: &Cancel| (cancel.clone(), cancel.subscribe(waiter.bell()));
        let cancel = cancel.map(heed);
        TimeLimit { until, cancel, waiter, was_over: AtomicBool::new(false) }
    }

    /// Whether the caller must stop waiting. Once true, it stays true.
    pub(crate) fn is_over(&self) -> bool {
        let is_cancelled = || self.cancel.as_ref().is_some_and(|(cancel, _)| cancel.is_cancelled());
        if self.until.has_passed() || is_cancelled() {
            self.was_over.store(true, Ordering::Relaxed);
        }
        self.was_over()
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
        self.waiter.wait(self.until);
    }

    /// Waits for `duration`, or until the limit is over.
    pub(crate) fn pause(&self, duration: Duration) {
        let end = Deadline::after(duration).earlier(self.until);
        while !end.has_passed() && !self.is_over() {
            self.waiter.wait(end);
        }
    }
}
