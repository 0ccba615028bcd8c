//! Waiting. Whatever the cause (a watch, a change of the session, a cancel), a waiter's
//! bell is rung, and the waiter looks again at everything. A cause sets its flag before
//! it rings, and a waiter subscribes before it looks, so no wake-up is lost.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::rt::{self, AtomicBool, Bell, Deadline, Mutex, Rung};

/// What is called when something happens; it may do no more than signal.
pub(crate) type Signal = Arc<dyn Fn() + Send + Sync>;

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

    /// Returns when the bell was rung since the last wait, or at the deadline.
    pub(crate) fn wait(&self, until: Deadline) {
        self.rung.wait(until);
    }
}

/// Who is to be told.
#[derive(Default)]
pub(crate) struct Signals {
    entries: Mutex<(u64, Entries)>,
}

/// By the subscription's number, and so told in their order.
type Entries = BTreeMap<u64, Signal>;

impl Signals {
    pub(crate) fn subscribe(self: &Arc<Self>, signal: Signal) -> Subscription {
        let mut entries = self.entries.lock();
        entries.0 += 1;
        let id = entries.0;
        entries.1.insert(id, signal);
        drop(entries);
        let signals = Arc::clone(self);
        Subscription(Some(Box::new(move || drop(signals.entries.lock().1.remove(&id)))))
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

/// Ends when dropped.
#[must_use = "the subscription ends when this is dropped"]
pub(crate) struct Subscription(Option<Box<dyn FnOnce() + Send + Sync>>);

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

/// Who waits for which node's watch. The server tells each connection once; here that
/// is passed on to all who are registered for the node.
#[derive(Default)]
pub(crate) struct Watches {
    entries: Mutex<(u64, BTreeMap<String, Entries>)>,
}

impl Watches {
    pub(crate) fn subscribe(self: &Arc<Self>, path: &str, signal: Signal) -> Subscription {
        let mut entries = self.entries.lock();
        entries.0 += 1;
        let id = entries.0;
        entries.1.entry(path.to_owned()).or_default().insert(id, signal);
        drop(entries);
        let (watches, path) = (Arc::clone(self), path.to_owned());
        Subscription(Some(Box::new(move || watches.unsubscribe(&path, id))))
    }

    fn unsubscribe(&self, path: &str, id: u64) {
        let mut entries = self.entries.lock();
        if let Some(of_path) = entries.1.get_mut(path) {
            of_path.remove(&id);
            if of_path.is_empty() {
                entries.1.remove(path);
            }
        }
    }

    pub(crate) fn tell(&self, path: &str) {
        let of_path: Vec<Signal> = match self.entries.lock().1.get(path) {
            Some(of_path) => of_path.values().cloned().collect(),
            None => return,
        };
        for signal in of_path {
            signal();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.lock().1.values().map(BTreeMap::len).sum()
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.lock().1.keys()).finish()
    }
}

/// Lets any thread end a wait: see [`DistributedLock::lock_with`](crate::DistributedLock::lock_with).
///
/// Clones share one state. A token that was tripped stays so: whatever waits on it, now
/// or later, ends with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). Acquisitions
/// that do not use it never notice.
#[derive(Clone, Default)]
pub struct Cancel {
    shared: Arc<CancelShared>,
}

#[derive(Default)]
struct CancelShared {
    tripped: AtomicBool,
    signals: Arc<Signals>,
}

impl Cancel {
    /// A token that has not been tripped.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Trips the token and wakes all who wait on it.
    pub fn cancel(&self) {
        self.shared.tripped.store(true, Ordering::SeqCst);
        self.shared.signals.tell();
    }

    /// Whether the token was tripped.
    pub fn is_cancelled(&self) -> bool {
        self.shared.tripped.load(Ordering::SeqCst)
    }

    pub(crate) fn subscribe(&self, signal: Signal) -> Subscription {
        self.shared.signals.subscribe(signal)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_cancelled", &self.is_cancelled()).finish()
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

    #[test]
    fn a_watch_reaches_all_who_wait_for_its_node_and_leaves_nothing_behind() {
        let watches = Arc::new(Watches::default());
        let (one, two, other) = (Waiter::new(), Waiter::new(), Waiter::new());
        let subscriptions = [
            watches.subscribe("/a", one.bell()),
            watches.subscribe("/a", two.bell()),
            watches.subscribe("/b", other.bell()),
        ];
        watches.tell("/a");
        one.wait(Deadline::NEVER);
        two.wait(Deadline::NEVER);
        assert!(!other.rung.is_rung());
        assert_eq!(watches.len(), 3);
        drop(subscriptions);
        assert_eq!(watches.len(), 0);
    }
}
