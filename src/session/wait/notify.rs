//! Waiting. Whatever the cause (a watch, a change of the session, a cancel), a waiter's
//! bell is rung, and the waiter looks again at everything. A cause sets its flag before
//! it rings, and a waiter subscribes before it looks, so no wake-up is lost.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::rt::Signal;
use crate::rt::{self, Bell, Deadline, Mutex, Rung};

/// One waiting thread's end of its bell.
#[derive(Debug)]
pub(crate) struct Waiter {
    bell: Bell,
    rung: Rung,
}

impl Waiter {
    pub(crate) fn new() -> Waiter {
        let (bell, rung) = rt::bell();
        Waiter { bell, rung }
    }

    pub(crate) fn bell(&self) -> Signal {
        let bell = self.bell.clone();
        Arc::new(move || bell.ring())
    }

    /// Whether the bell was rung since the last wait.
    pub(crate) fn is_rung(&self) -> bool {
        self.rung.is_rung()
    }

    /// Returns when the bell was rung since the last wait, or at the deadline.
    pub(crate) fn wait(&self, until: Deadline) {
        self.rung.wait(until);
    }
}

/// The signals to give when something happens.
#[derive(Default)]
pub(crate) struct Signals {
    /// By the subscription's number, and so given in that order.
    entries: Mutex<(u64, BTreeMap<u64, Signal>)>,
}

impl Signals {
    pub(crate) fn subscribe(self: &Arc<Self>, signal: Signal) -> Subscription {
        let mut entries = self.entries.lock();
        entries.0 += 1;
        let id = entries.0;
        entries.1.insert(id, signal);
        drop(entries);
        let signals = Arc::clone(self);
        Subscription::until(move || drop(signals.entries.lock().1.remove(&id)))
    }

    pub(crate) fn tell(&self) {
        let signals: Vec<Signal> = self.entries.lock().1.values().cloned().collect();
        for signal in signals {
            signal();
        }
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signals").field(&self.entries.lock().1.len()).finish()
    }
}

/// Keeps a callback registered until it is dropped: see
/// [`Client::on_state_change`](crate::Client::on_state_change) and
/// [`Cancel::on_cancel`](crate::Cancel::on_cancel).
///
/// The drop does not wait for a call that is under way. What the callback owns is dropped after its
/// last call.
#[must_use = "the subscription ends when this is dropped: keep it, or call `detach`"]
pub struct Subscription(Option<End>);

/// What ends a subscription.
pub(super) type End = Box<dyn FnOnce() + Send + Sync>;

impl Subscription {
    /// A subscription that this function ends.
    pub(crate) fn until(end: impl FnOnce() + Send + Sync + 'static) -> Subscription {
        Subscription(Some(Box::new(end)))
    }

    /// The same, whose end this function gets.
    pub(super) fn ending(mut self, how: impl FnOnce(End) + Send + Sync + 'static) -> Subscription {
        let end = self.0.take();
        Subscription(end.map(|end| -> End { Box::new(move || how(end)) }))
    }

    /// Drops this value, but leaves the callback registered.
    ///
    /// It goes with what it is about: a [`Client`](crate::Client) when that is closed, a
    /// [`Cancel`](crate::Cancel) when that is tripped, either when its last clone is dropped.
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_ring_before_the_wait_is_not_lost_and_many_rings_are_one() {
        let waiter = Waiter::new();
        let signals = Arc::new(Signals::default());
        let subscription = signals.subscribe(waiter.bell());
        signals.tell();
        signals.tell();
        waiter.wait(Deadline::NEVER);
        drop(subscription);
        signals.tell();
        let end = std::time::Instant::now() + Duration::from_millis(5);
        waiter.wait(Deadline::at(end));
        assert!(std::time::Instant::now() >= end, "a subscription outlived its drop");
    }
}
