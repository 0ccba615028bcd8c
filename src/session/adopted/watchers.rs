//! Watches of a program's handle. The handle's default watcher belongs to the program, so each
//! watch has its own watcher in the crate's table, which keeps it until the node's event comes. So
//! that these do not accumulate, there is one watcher for a node and a connection, and its event is
//! passed on to all calls that wait for the node. Watchers for which no event will come any more
//! are removed.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use super::handle_trait::Handle;
use crate::rt::{Condvar, Mutex};
use crate::session::connection::{Answer, Fault, WatchKind, Watches};
use crate::wire_values::{NodeEvent, Stat};

/// How many watchers that may never be called are left in the crate.
const LITTER: usize = if cfg!(test) { 4 } else { 256 };

/// See the module.
#[derive(Debug)]
pub(super) struct WatcherTable {
    watches: Arc<Watches>,
    table: Mutex<ArmedWatchers>,
    /// Nodes whose turn is taken.
    busy: Mutex<BTreeSet<String>>,
    free: Condvar,
}

#[derive(Debug)]
struct ArmedWatchers {
    /// The watches that are in force.
    armed: HashMap<(WatchKind, String), InForce>,
    next: u64,
    /// Nodes with watchers in the crate that may never be called.
    litter: Vec<String>,
    /// How many of them are removed together, at least.
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct InForce {
    /// That of its watcher.
    number: u64,
    /// The node has not changed from its creation until the watch was set.
    since_made: bool,
}

impl ArmedWatchers {
    fn is_in_force(&self, key: &(WatchKind, String), number: u64) -> bool {
        self.armed.get(key).is_some_and(|watch| watch.number == number)
    }
}

/// A watcher. However it ends, even if the crate drops it, the calls that rely on it are woken.
pub(super) struct ArmedWatcher {
    watchers: Weak<WatcherTable>,
    what: WatchKind,
    path: String,
    number: u64,
}

impl WatcherTable {
    pub(super) fn new(watches: Arc<Watches>) -> WatcherTable {
        let table =
            ArmedWatchers { armed: HashMap::new(), next: 0, litter: Vec::new(), most: LITTER };
        WatcherTable {
            watches,
            table: Mutex::new(table),
            busy: Mutex::default(),
            free: Condvar::new(),
        }
    }

    /// Sets a watch with `ask`; if one is in force, relies on that and reads with `plain`. Only for
    /// callers that have a connection: every call that learns of a lost watch sets another one.
    pub(super) fn watch<T>(
        self: &Arc<Self>,
        what: WatchKind,
        path: &str,
        plain: impl FnOnce() -> Answer<T>,
        ask: impl FnOnce(ArmedWatcher) -> Answer<T>,
    ) -> Answer<T> {
        let key = (what, path.to_owned());
        let mut table = self.table.lock();
        if table.armed.contains_key(&key) {
            drop(table);
            return plain();
        }
        table.next += 1;
        let number = table.next;
        table.armed.insert(key.clone(), InForce { number, since_made: false });
        drop(table);
        let armed =
            ArmedWatcher { watchers: Arc::downgrade(self), what, path: path.to_owned(), number };
        let answer = ask(armed);
        if let Err(fault) = &answer {
            let mut table = self.table.lock();
            if table.is_in_force(&key, number) {
                table.armed.remove(&key);
            }
            // An answered request leaves its watcher in the crate, whatever the answer was.
            if !fault.is_loss() {
                table.litter.push(key.1);
            }
        }
        answer
    }

    /// As `watch`, on a node that was created just now.
    pub(super) fn watch_made(
        self: &Arc<Self>,
        path: &str,
        plain: impl FnOnce() -> Answer<Stat>,
        ask: impl FnOnce(ArmedWatcher) -> Answer<Stat>,
    ) -> Answer<Stat> {
        let mut number = None;
        let stat = self.watch(WatchKind::Node, path, plain, |armed| {
            number = Some(armed.number);
            ask(armed)
        })?;
        let mut table = self.table.lock();
        let watch = table.armed.get_mut(&(WatchKind::Node, path.to_owned()));
        if let Some(watch) = watch.filter(|watch| Some(watch.number) == number) {
            watch.since_made = stat.version == 0;
        }
        Ok(stat)
    }

    /// Whether a watch on the node is in force that was set before anything happened to it.
    pub(super) fn is_watched_since_made(&self, path: &str) -> bool {
        let table = self.table.lock();
        let watch = table.armed.get(&(WatchKind::Node, path.to_owned()));
        watch.is_some_and(|watch| watch.since_made)
    }

    /// Waits for the turn of a node: only the call that has it deletes the node, or sets a watch that
    /// is not to be left on a missing node.
    pub(super) fn turn(&self, path: &str) -> WatcherTurn<'_> {
        let mut busy = self.busy.lock();
        while !busy.insert(path.to_owned()) {
            self.free.wait(&mut busy);
        }
        WatcherTurn { watchers: self, path: path.to_owned() }
    }

    /// Notes that the connection is lost, and with it the events of its watches.
    pub(super) fn void(&self) {
        let mut table = self.table.lock();
        let void = std::mem::take(&mut table.armed);
        table.litter.extend(void.into_keys().map(|(_, path)| path));
    }

    /// Whether calls wait for an event of the node.
    pub(super) fn is_awaited(&self, path: &str) -> bool {
        self.watches.is_awaited(path)
    }

    /// Tells the calls that wait for the node that it may have changed.
    pub(super) fn tell_of(&self, path: &str) {
        self.watches.tell(NodeEvent::Other, path);
    }

    /// Makes the crate drop watchers on nodes that are gone, if there are many.
    pub(super) fn tidy(&self, handle: &dyn Handle) -> Answer<()> {
        let mut table = self.table.lock();
        if table.litter.len() < table.most {
            return Ok(());
        }
        let mut litter = std::mem::take(&mut table.litter);
        drop(table);
        litter.sort_unstable();
        litter.dedup();
        let mut left = Vec::new();
        let mut result = Ok(());
        for path in litter {
            match handle.exists(&path) {
                Ok(None) if result.is_ok() => {
                    // The expected answer is that the server knows no such watch.
                    if handle.forget(&path) == Err(Fault::ConnectionLoss) {
                        result = Err(Fault::ConnectionLoss);
                    }
                }
                Err(Fault::ConnectionLoss) => {
                    result = Err(Fault::ConnectionLoss);
                    left.push(path);
                }
                _ => left.push(path),
            }
        }
        let mut table = self.table.lock();
        table.litter.extend(left);
        table.most = LITTER.max(2 * table.litter.len());
        result
    }
}

/// The turn ends when this is dropped.
pub(super) struct WatcherTurn<'a> {
    watchers: &'a WatcherTable,
    path: String,
}

impl Drop for WatcherTurn<'_> {
    fn drop(&mut self) {
        self.watchers.busy.lock().remove(&self.path);
        self.watchers.free.notify_all();
    }
}

impl ArmedWatcher {
    /// Called on the node's event.
    pub(super) fn blow(&self) {
        let Some(watchers) = self.watchers.upgrade() else { return };
        self.disarm(&watchers);
        self.tell(&watchers);
    }

    fn tell(&self, watchers: &WatcherTable) {
        // The calls that watch the node's children are told of its end by their own watcher.
        let event = match self.what {
            WatchKind::Node => NodeEvent::Written,
            WatchKind::Children => NodeEvent::Other,
        };
        // A panic would end the crate's thread for events.
        let _ = catch_unwind(AssertUnwindSafe(|| watchers.watches.tell(event, &self.path)));
    }

    /// Takes the watcher out of force before any call is woken, so that those calls set a new one.
    fn disarm(&self, watchers: &WatcherTable) -> bool {
        let mut table = watchers.table.lock();
        let key = (self.what, self.path.clone());
        let own = table.is_in_force(&key, self.number);
        if own {
            table.armed.remove(&key);
        }
        own
    }
}

impl Drop for ArmedWatcher {
    fn drop(&mut self) {
        let Some(watchers) = self.watchers.upgrade() else { return };
        if self.disarm(&watchers) {
            self.tell(&watchers);
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::session::wait::{Subscription, Waiter};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A table, and how often the calls that wait for "/a" were woken.
    fn rig() -> (Arc<WatcherTable>, Arc<AtomicUsize>, Subscription) {
        let watches = Arc::new(Watches::default());
        let (told, waiter) = (Arc::new(AtomicUsize::new(0)), Waiter::new());
        let (count, bell) = (Arc::clone(&told), waiter.bell());
        let signal = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            bell();
        });
        let subscription = watches.subscribe("/a", signal);
        (Arc::new(WatcherTable::new(watches)), told, subscription)
    }

    fn set(watchers: &Arc<WatcherTable>) -> Option<ArmedWatcher> {
        watchers.watch(WatchKind::Node, "/a", || Ok(None), |armed| Ok(Some(armed))).unwrap()
    }

    #[test]
    fn a_node_has_one_watcher_for_as_long_as_it_is_in_force() {
        let (watchers, told, _subscription) = rig();
        let armed = set(&watchers).expect("the first");
        for _ in 0..1000 {
            assert!(set(&watchers).is_none());
        }
        assert!(watchers.watch(WatchKind::Children, "/a", || Ok(false), |_| Ok(true)).unwrap());
        let before = told.load(Ordering::SeqCst);
        armed.blow();
        assert_eq!(told.load(Ordering::SeqCst), before + 1);
        assert!(set(&watchers).is_some(), "it has been called");
    }

    #[test]
    fn a_watcher_that_the_crate_drops_is_told_like_one_that_it_calls() {
        let (watchers, told, _subscription) = rig();
        drop(set(&watchers).expect("the first"));
        assert_eq!(told.load(Ordering::SeqCst), 1);
        let armed = set(&watchers).expect("a new one");
        armed.blow();
        drop(armed);
        assert_eq!(told.load(Ordering::SeqCst), 2, "called, it is spent");
    }

    /// A waiter has its own watcher on the children of a contender's node.
    #[test]
    fn a_watcher_of_the_data_tells_those_who_watch_the_children_nothing() {
        let watches = Arc::new(Watches::default());
        let watchers = Arc::new(WatcherTable::new(Arc::clone(&watches)));
        let (tell, told) = std::sync::mpsc::channel();
        let on_event = move |event| {
            tell.send(event).unwrap();
            None
        };
        let _subscription = watches.subscribe_to_events("/a", Arc::new(on_event));
        for (kind, event) in
            [(WatchKind::Node, NodeEvent::Written), (WatchKind::Children, NodeEvent::Other)]
        {
            let set = || watchers.watch(kind, "/a", || Ok(None), |armed| Ok(Some(armed))).unwrap();
            set().expect("the first").blow();
            drop(set());
            assert_eq!((told.recv(), told.recv()), (Ok(event), Ok(event)));
        }
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn watchers_of_both_kinds_are_remembered_without_their_connection() {
        let (watchers, ..) = rig();
        for kind in [WatchKind::Node, WatchKind::Children] {
            let armed = watchers.watch(kind, "/a", || Ok(None), |armed| Ok(Some(armed))).unwrap();
            watchers.void();
            drop(armed.expect("the first"));
        }
        assert_eq!(watchers.table.lock().litter, ["/a", "/a"]);
    }

    /// Sets a watch on "/a" as right after its creation. Its data have this version by then.
    fn set_on_made(watchers: &Arc<WatcherTable>, version: i32) -> Option<ArmedWatcher> {
        let (mut set, stat) = (None, Stat { version, ..Stat::default() });
        let ask = |armed| {
            assert!(!watchers.is_watched_since_made("/a"), "the server may find no node");
            set = Some(armed);
            Ok(stat)
        };
        watchers.watch_made("/a", || Ok(stat), ask).unwrap();
        set
    }

    #[test]
    fn a_node_is_watched_since_its_creation_until_an_event_or_the_loss_of_the_connection() {
        let (watchers, ..) = rig();
        let ends: [fn(&WatcherTable, ArmedWatcher); 3] =
            [|_, armed| armed.blow(), |_, armed| drop(armed), |watchers, _armed| watchers.void()];
        for end in ends {
            let armed = set_on_made(&watchers, 0).expect("the only one");
            assert!(watchers.is_watched_since_made("/a"));
            assert!(set(&watchers).is_none());
            end(&watchers, armed);
            assert!(!watchers.is_watched_since_made("/a"));
            let later = set(&watchers).expect("a new one");
            assert!(!watchers.is_watched_since_made("/a"), "nobody knows what has happened before");
            drop(later);
        }
    }

    #[test]
    fn a_node_that_has_changed_or_is_gone_before_its_watch_is_set_is_not_watched_since_its_creation()
     {
        let (watchers, ..) = rig();
        let written = set_on_made(&watchers, 1).expect("the only one");
        assert!(!watchers.is_watched_since_made("/a"));
        assert!(set_on_made(&watchers, 0).is_none(), "the watch may be from before the write");
        assert!(!watchers.is_watched_since_made("/a"));
        drop(written);
        let gone = watchers.watch_made("/a", || unreachable!(), |_| Err(Fault::NoNode));
        assert_eq!(gone, Err(Fault::NoNode));
        assert!(!watchers.is_watched_since_made("/a"));
        assert_eq!(watchers.table.lock().litter, ["/a"]);
    }

    #[test]
    fn another_connection_needs_another_watcher_and_remembers_the_first() {
        let (watchers, told, _subscription) = rig();
        let first = set(&watchers).expect("the first");
        watchers.void();
        let second = set(&watchers).expect("a new one");
        drop(first);
        assert!(set(&watchers).is_none(), "the one that is in force was taken for the other");
        assert_eq!(told.load(Ordering::SeqCst), 0);
        drop(second);
        assert_eq!(watchers.table.lock().litter, ["/a"]);
    }

    #[test]
    fn a_watch_that_was_refused_is_not_relied_on() {
        let (watchers, told, _subscription) = rig();
        let mut kept = Vec::new();
        for fault in [Fault::NoNode, Fault::NoAuth] {
            let ask = |armed| {
                kept.push(armed);
                Err(fault)
            };
            watchers.watch(WatchKind::Node, "/a", || Ok(()), ask).unwrap_err();
        }
        assert_eq!(kept.len(), 2);
        drop(kept);
        assert_eq!(told.load(Ordering::SeqCst), 0, "a refused caller would ask for ever");
        assert_eq!(watchers.table.lock().litter.len(), 2);
    }

    #[test]
    fn who_has_the_turn_of_a_node_has_it_alone_and_holds_up_no_other() {
        let (watchers, _told, _subscription) = rig();
        let turn = watchers.turn("/a");
        drop(watchers.turn("/b"));
        let (has_it, shared) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&watchers));
        let seen = Arc::clone(&has_it);
        let waits = std::thread::spawn(move || {
            let _turn = shared.turn("/a");
            seen.load(Ordering::SeqCst)
        });
        has_it.store(1, Ordering::SeqCst);
        drop(turn);
        assert_eq!(waits.join().unwrap(), 1);
    }
}
