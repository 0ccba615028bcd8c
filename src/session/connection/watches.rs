//! Watches: which calls wait for events of which node. The server sends an event once to each
//! connection; here it is passed on to all calls that wait for the node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::rt::{Mutex, Signal};
use crate::session::wait::Subscription;
use crate::wire_values::NodeEvent;

/// How many watches for which no call waits any more may stay at the server.
const LITTER: usize = if cfg!(test) { 4 } else { 64 };

/// How many of them may stay at a server that cannot remove them, before the connection is made anew.
const TOO_MANY: usize = if cfg!(test) { 40 } else { 10_000 };

/// Called with what has happened to a node, and when a watch is set on it, in the order of the
/// server's answers and events; it may only note that, or signal. The signal that it returns is given
/// when all events are noted that came together: those of one transaction often do.
pub(crate) type OnNodeEvent = Arc<dyn Fn(NodeEvent) -> Option<Signal> + Send + Sync>;

/// What a watch at the server fires at, besides the node's deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WatchKind {
    /// Writes to the node's data, and its creation.
    Node,
    /// Children that come or go.
    Children,
}

/// The watches at the server on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SetWatches {
    node: bool,
    children: bool,
}

impl SetWatches {
    fn add(&mut self, kind: WatchKind) {
        match kind {
            WatchKind::Node => self.node = true,
            WatchKind::Children => self.children = true,
        }
    }

    /// Those that are left after an event.
    fn after(self, event: NodeEvent) -> SetWatches {
        match event {
            NodeEvent::Created | NodeEvent::Written => SetWatches { node: false, ..self },
            NodeEvent::ChildrenChanged => SetWatches { children: false, ..self },
            NodeEvent::Deleted | NodeEvent::Other => SetWatches::default(),
            NodeEvent::Watched => self,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Watches {
    table: Mutex<Table>,
}

/// Paths are shared with the subscriptions: thousands of calls may wait for many nodes each.
#[derive(Default)]
struct Table {
    next: u64,
    /// By the subscription's number.
    entries: BTreeMap<Arc<str>, BTreeMap<u64, OnNodeEvent>>,
    /// Nodes with watches at the server, as far as its answers say.
    set: BTreeMap<Arc<str>, SetWatches>,
    /// Those of them for which no call is registered.
    litter: BTreeSet<Arc<str>>,
}

impl Table {
    /// The path as calls that wait for the node have it, if there are any.
    fn shared(&self, path: &str) -> Arc<str> {
        self.entries.get_key_value(path).map_or_else(|| path.into(), |(path, _)| Arc::clone(path))
    }

    fn listeners(&self, path: &str) -> Vec<OnNodeEvent> {
        let of_path = self.entries.get(path);
        of_path.map(|all| all.values().cloned().collect()).unwrap_or_default()
    }
}

impl Watches {
    /// Has the signal given at each event of the node.
    pub(crate) fn subscribe(self: &Arc<Self>, path: &str, signal: Signal) -> Subscription {
        let on_event = move |event| {
            if event != NodeEvent::Watched {
                signal();
            }
            None
        };
        self.subscribe_to_events(path, Arc::new(on_event))
    }

    /// As `subscribe`, for a call to which it matters what has happened.
    pub(crate) fn subscribe_to_events(
        self: &Arc<Self>,
        path: &str,
        on_event: OnNodeEvent,
    ) -> Subscription {
        let mut table = self.table.lock();
        table.next += 1;
        let id = table.next;
        let shared = table.shared(path);
        table.entries.entry(Arc::clone(&shared)).or_default().insert(id, on_event);
        table.litter.remove(path);
        drop(table);
        let (watches, path) = (Arc::clone(self), shared);
        Subscription::until(move || watches.unsubscribe(&path, id))
    }

    fn unsubscribe(&self, path: &str, id: u64) {
        let mut table = self.table.lock();
        if let Some(of_path) = table.entries.get_mut(path) {
            of_path.remove(&id);
            if of_path.is_empty() {
                table.entries.remove(path);
                if let Some((path, _)) = table.set.get_key_value(path) {
                    let path = Arc::clone(path);
                    table.litter.insert(path);
                }
            }
        }
    }

    /// Passes an event on that came alone.
    #[cfg_attr(
        not(any(test, feature = "zookeeper")),
        expect(dead_code, reason = "of connections other than the link")
    )]
    pub(crate) fn tell(&self, event: NodeEvent, path: &str) {
        self.note(event, path).iter().for_each(|signal| signal());
    }

    /// Passes an event on; returns the signals to give when the events are passed on that came with
    /// it.
    pub(crate) fn note(&self, event: NodeEvent, path: &str) -> Vec<Signal> {
        let mut table = self.table.lock();
        if let Some(set) = table.set.get_mut(path) {
            *set = set.after(event);
            if *set == SetWatches::default() {
                table.set.remove(path);
                table.litter.remove(path);
            }
        }
        let all = table.listeners(path);
        drop(table);
        all.iter().filter_map(|on_event| on_event(event)).collect()
    }

    /// Notes that the server has set a watch, on a node that `is_there` or is to come. Call this in
    /// the order of the server's answers and events.
    pub(crate) fn note_set(&self, path: &str, kind: WatchKind, is_there: bool) {
        let mut table = self.table.lock();
        let shared = table.shared(path);
        table.set.entry(Arc::clone(&shared)).or_default().add(kind);
        let all = table.listeners(path);
        if all.is_empty() {
            table.litter.insert(shared);
        }
        drop(table);
        if is_there {
            let signals = all.iter().filter_map(|on_event| on_event(NodeEvent::Watched));
            signals.for_each(|signal| signal());
        }
    }

    /// Notes that the connection is lost, and the server's watches with it.
    pub(crate) fn forget_all(&self) {
        let mut table = self.table.lock();
        table.set.clear();
        table.litter.clear();
    }

    /// Removes watches for which no call is registered.
    ///
    /// Under the lock: a call registers for one of these nodes either before this or after it, and
    /// only then requests a watch. So its request follows the removal on the connection, and no
    /// watch is removed that a call relies on.
    pub(crate) fn tidy(&self, mut remove: impl FnMut(&str)) {
        let mut table = self.table.lock();
        for path in std::mem::take(&mut table.litter) {
            remove(&path);
            table.set.remove(&path);
        }
    }

    /// Whether any call waits for the node.
    #[cfg_attr(
        not(feature = "zookeeper"),
        expect(dead_code, reason = "for connections other than the link")
    )]
    pub(crate) fn is_awaited(&self, path: &str) -> bool {
        self.table.lock().entries.contains_key(path)
    }

    /// Whether no call waits for any node, and so no lock is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().entries.is_empty()
    }

    pub(crate) fn are_many_unused(&self) -> bool {
        self.table.lock().litter.len() >= LITTER
    }

    /// Whether there are too many unused watches for a server that cannot remove them.
    pub(crate) fn are_too_many_unused(&self) -> bool {
        self.table.lock().litter.len() >= TOO_MANY
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
    use crate::session::wait::Waiter;

    #[test]
    fn a_watch_reaches_all_who_wait_for_its_node_and_leaves_nothing_behind() {
        let watches = Arc::new(Watches::default());
        let (one, two, other) = (Waiter::new(), Waiter::new(), Waiter::new());
        let subscriptions = [
            watches.subscribe("/a", one.bell()),
            watches.subscribe("/a", two.bell()),
            watches.subscribe("/b", other.bell()),
        ];
        watches.tell(NodeEvent::Deleted, "/a");
        one.wait(Deadline::NEVER);
        two.wait(Deadline::NEVER);
        assert!(!other.is_rung());
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
        if watches.are_many_unused() {
            watches.tidy(|path| all.push(path.to_owned()));
        }
        all
    }

    /// A table with just enough unused watches for their removal.
    fn littered() -> Arc<Watches> {
        let watches = Arc::new(Watches::default());
        for number in 0..LITTER {
            let subscription = watches.subscribe(&format!("/{number}"), nobody());
            watches.note_set(&format!("/{number}"), WatchKind::Node, true);
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
        watches.tell(NodeEvent::Deleted, "/0");
        assert!(removed(&watches).is_empty());
        drop(watches.subscribe("/never set", nobody()));
        assert!(removed(&watches).is_empty());
        let _one = watches.subscribe("/1", nobody());
        watches.note_set("/late", WatchKind::Node, true); // when its waiter has gone
        watches.note_set("/later", WatchKind::Node, true);
        let removed = removed(&watches);
        assert_eq!(removed.len(), LITTER);
        assert!(!removed.contains(&"/1".to_owned()) && removed.contains(&"/late".to_owned()));
        let watches = littered();
        watches.forget_all();
        assert!(removed_none(&watches));
    }

    #[test]
    fn a_watch_stays_at_the_server_until_its_own_event() {
        use NodeEvent::{ChildrenChanged, Created, Deleted, Other, Written};
        let left = |kinds: &[WatchKind], event| {
            let watches = Watches::default();
            kinds.iter().for_each(|kind| watches.note_set("/a", *kind, true));
            watches.tell(event, "/a");
            let mut unused = 0;
            watches.tidy(|_| unused += 1);
            unused
        };
        let both = [WatchKind::Node, WatchKind::Children];
        for (event, kept) in [(Written, 1), (Created, 1), (ChildrenChanged, 0)] {
            let alone = both.map(|kind| left(&[kind], event));
            assert_eq!((alone, left(&both, event)), ([1 - kept, kept], 1), "{event:?}");
        }
        for event in [Deleted, Other] {
            assert_eq!((both.map(|kind| left(&[kind], event)), left(&both, event)), ([0, 0], 0));
        }
    }

    #[test]
    fn only_unused_watches_are_too_many() {
        let watches = littered();
        let used: Vec<_> = (0..TOO_MANY)
            .map(|number| {
                watches.note_set(&format!("/used/{number}"), WatchKind::Node, true);
                watches.subscribe(&format!("/used/{number}"), nobody())
            })
            .collect();
        assert_eq!((watches.are_too_many_unused(), watches.is_empty()), (false, false));
        drop(used);
        assert_eq!((watches.are_too_many_unused(), watches.is_empty()), (true, true));
        watches.forget_all();
        assert!(!watches.are_too_many_unused());
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
