//! Watches: which calls wait for events of which node. The server sends an event once to each
//! connection; here it is passed on to all calls that wait for the node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::notify::{Entries, Signal, Subscription};
use crate::rt::Mutex;

/// How many watches for which no call waits any more may stay at the server.
const LITTER: usize = if cfg!(test) { 4 } else { 64 };

/// See the module.
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
    /// Those of them for which no call is registered.
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

    /// Notes that the server has set a watch. Call this in the order of the server's answers and
    /// events.
    pub(crate) fn is_set(&self, path: &str) {
        let mut table = self.table.lock();
        table.set.insert(path.to_owned());
        if !table.entries.contains_key(path) {
            table.litter.insert(path.to_owned());
        }
    }

    /// Notes that the connection is lost, and the server's watches with it.
    pub(crate) fn are_void(&self) {
        let mut table = self.table.lock();
        table.set.clear();
        table.litter.clear();
    }

    /// Removes watches for which no call is registered, if there are many.
    ///
    /// Under the lock: a call registers for one of these nodes either before this or after it, and
    /// only then requests a watch. So its request follows the removal on the connection, and no
    /// watch is removed that a call relies on.
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

    /// How many registrations there are.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rt::Deadline;
    use crate::session::notify::Waiter;

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

    /// What is removed now.
    fn removed(watches: &Watches) -> Vec<String> {
        let mut all = Vec::new();
        watches.tidy(|path| all.push(path.to_owned()));
        all
    }

    /// A table with just enough unused watches for their removal.
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
        // Watches that have fired, that were never set, or for which a call waits are not removed.
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

    /// Otherwise a request for a watch could overtake the removal of the one before.
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
                assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "not kept out");
            }
        });
        told.recv().unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
    }
}
