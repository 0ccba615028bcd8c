//! Waiting. Whatever the cause (a watch, a change of the session, a cancel), a waiter's
//! bell is rung, and the waiter looks again at everything. A cause sets its flag before
//! it rings, and a waiter subscribes before it looks, so no wake-up is lost.

use std::collections::{BTreeMap, BTreeSet};
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

/// So many watches may stay with the server for which nobody waits any more.
const LITTER: usize = if cfg!(test) { 4 } else { 64 };

/// Who waits for which node's watch. The server tells each connection once; here that
/// is passed on to all who are registered for the node.
#[derive(Default)]
pub(crate) struct Watches {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    entries: BTreeMap<String, Entries>,
    /// Nodes with a watch at the server, as far as its answers say.
    set: BTreeSet<String>,
    /// Those of them for which nobody is registered.
    litter: BTreeSet<String>,
}

impl Watches {
    pub(crate) fn subscribe(self: &Arc<Self>, path: &str, signal: Signal) -> Subscription {
        let mut table = self.table.lock();
        table.next += 1;
        let id = table.next;
        table.entries.entry(path.to_owned()).or_default().insert(id, signal);
        table.litter.remove(path);
        drop(table);
        let (watches, path) = (Arc::clone(self), path.to_owned());
        Subscription(Some(Box::new(move || watches.unsubscribe(&path, id))))
    }

    fn unsubscribe(&self, path: &str, id: u64) {
        let mut table = self.table.lock();
        if let Some(of_path) = table.entries.get_mut(path) {
            of_path.remove(&id);
            if of_path.is_empty() {
                table.entries.remove(path);
                if table.set.contains(path) {
                    table.litter.insert(path.to_owned());
                }
            }
        }
    }

    pub(crate) fn tell(&self, path: &str) {
        let mut table = self.table.lock();
        table.set.remove(path);
        table.litter.remove(path);
        let of_path: Vec<Signal> = match table.entries.get(path) {
            Some(of_path) => of_path.values().cloned().collect(),
            None => return,
        };
        drop(table);
        for signal in of_path {
            signal();
        }
    }

    /// The server has set a watch: to be said in the order of its answers and events.
    pub(crate) fn is_set(&self, path: &str) {
        let mut table = self.table.lock();
        table.set.insert(path.to_owned());
        if !table.entries.contains_key(path) {
            table.litter.insert(path.to_owned());
        }
    }

    /// The connection is gone, and the server's watches with it.
    pub(crate) fn are_void(&self) {
        let mut table = self.table.lock();
        table.set.clear();
        table.litter.clear();
    }

    /// Has watches removed for which nobody is registered, should there be many.
    ///
    /// Under the lock: whoever registers for one of these nodes does so before or after, and asks
    /// the server for a watch only then. So that request follows the removal on the connection, and
    /// no watch is removed that somebody relies on.
    pub(crate) fn tidy(&self, mut remove: impl FnMut(&str)) {
        let mut table = self.table.lock();
        if table.litter.len() < LITTER {
            return;
        }
        for path in std::mem::take(&mut table.litter) {
            remove(&path);
            table.set.remove(&path);
        }
    }

    /// How many are registered.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().entries.values().map(BTreeMap::len).sum()
    }

    /// How many nodes the server watches, as far as is known.
    pub(crate) fn at_the_server(&self) -> usize {
        self.table.lock().set.len()
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.table.lock().entries.keys()).finish()
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

    fn nobody() -> Signal {
        Arc::new(|| ())
    }

    /// What would be removed now.
    fn removed(watches: &Watches) -> Vec<String> {
        let mut all = Vec::new();
        watches.tidy(|path| all.push(path.to_owned()));
        all
    }

    /// As many as are too many, for which nobody waits.
    fn littered() -> Arc<Watches> {
        let watches = Arc::new(Watches::default());
        for number in 0..LITTER {
            let subscription = watches.subscribe(&format!("/{number}"), nobody());
            watches.is_set(&format!("/{number}"));
            drop(subscription);
        }
        watches
    }

    #[test]
    fn watches_that_nobody_waits_for_are_removed_when_there_are_many() {
        let watches = littered();
        assert_eq!(watches.at_the_server(), LITTER);
        assert_eq!(removed(&watches).len(), LITTER);
        assert_eq!((removed(&watches).len(), watches.at_the_server()), (0, 0));
        // Of those that have fired, that were never set, or that somebody waits for, none.
        let watches = littered();
        watches.tell("/0");
        assert!(removed(&watches).is_empty());
        drop(watches.subscribe("/never set", nobody()));
        assert!(removed(&watches).is_empty());
        let _one = watches.subscribe("/1", nobody());
        watches.is_set("/late"); // when its waiter has gone
        watches.is_set("/later");
        let removed = removed(&watches);
        assert_eq!(removed.len(), LITTER);
        assert!(!removed.contains(&"/1".to_owned()) && removed.contains(&"/late".to_owned()));
        let watches = littered();
        watches.are_void();
        assert!(removed_none(&watches));
    }

    fn removed_none(watches: &Watches) -> bool {
        removed(watches).is_empty() && watches.at_the_server() == 0
    }

    /// Else a request for a watch could overtake the removal of the one before.
    #[test]
    fn nobody_registers_while_watches_are_being_removed() {
        let watches = littered();
        let (tell, told) = std::sync::mpsc::channel();
        let mut others = Vec::new();
        watches.tidy(|path| {
            if others.is_empty() {
                let (watches, path, tell) = (Arc::clone(&watches), path.to_owned(), tell.clone());
                others.push(std::thread::spawn(move || {
                    drop(watches.subscribe(&path, nobody()));
                    tell.send(()).unwrap();
                }));
                assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "it was let in");
            }
        });
        told.recv().unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
    }
}
