use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::{explore, join, threads};
use crate::rt::{AtomicBool, AtomicU64, Deadline, Mutex, Signal};
use crate::session::{Cancel, Signals, Waiter, Watches};
use crate::wire_values::NodeEvent;

#[test]
fn who_subscribes_before_looking_misses_nothing() {
    explore(|| {
        let (signals, changes) = (Arc::<Signals>::default(), Arc::new(AtomicU64::new(0)));
        let (told, seen) = (Arc::clone(&signals), Arc::clone(&changes));
        let waiters = threads(2, move |_| {
            let waiter = Waiter::new();
            let _subscription = told.subscribe(waiter.bell());
            while seen.load(SeqCst) < 2 {
                waiter.wait(Deadline::NEVER);
            }
        });
        let telling = Arc::clone(&signals);
        let tellers = threads(2, move |_| {
            changes.fetch_add(1, SeqCst);
            telling.tell();
        });
        // This subscription comes and goes while others are woken.
        drop(signals.subscribe(Arc::new(|| ())));
        join(waiters);
        join(tellers);
        move || assert_eq!(format!("{signals:?}"), "Signals(0)")
    });
}

/// A node on one server, which reports its deletion once.
#[derive(Default)]
struct Node {
    gone: bool,
    watched: bool,
}

#[test]
fn every_waiter_of_a_node_hears_of_its_end() {
    explore(|| {
        let watches = Arc::<Watches>::default();
        let nodes = Arc::new([Mutex::new(Node::default()), Mutex::new(Node::default())]);
        let paths = ["/a", "/b"];
        let (table, server) = (Arc::clone(&watches), Arc::clone(&nodes));
        let waiters = threads(3, move |number| {
            // In the engine's order: an entry in the table, then the watch, then the wait.
            let (waiter, which) = (Waiter::new(), number % 2);
            let fired = Arc::new(AtomicBool::new(false));
            let (flag, bell) = (Arc::clone(&fired), waiter.bell());
            let signal: Signal = Arc::new(move || {
                flag.store(true, SeqCst);
                bell();
            });
            let _subscription = table.subscribe(paths[which], signal);
            let gone = {
                let mut node = server[which].lock();
                node.watched |= !node.gone;
                node.gone
            };
            while !gone && !fired.load(SeqCst) {
                waiter.wait(Deadline::NEVER);
            }
        });
        let table = Arc::clone(&watches);
        let server = threads(2, move |which| {
            let tell = {
                let mut node = nodes[which].lock();
                node.gone = true;
                node.watched
            };
            if tell {
                table.tell(NodeEvent::Deleted, paths[which]);
            }
        });
        drop(watches.subscribe("/a", Arc::new(|| ())));
        join(waiters);
        join(server);
        move || assert_eq!(watches.len(), 0)
    });
}

#[test]
fn a_cancel_ends_every_wait_that_began_or_will() {
    explore(|| {
        let cancel = Cancel::new();
        let waiting = cancel.clone();
        let waits = threads(3, move |_| {
            let waiter = Waiter::new();
            let _subscription = waiting.subscribe(waiter.bell());
            while !waiting.is_cancelled() {
                waiter.wait(Deadline::NEVER);
            }
        });
        let other = cancel.clone();
        let cancels = threads(2, move |_| {
            other.cancel();
            assert!(other.is_cancelled());
        });
        join(waits);
        join(cancels);
        || ()
    });
}

/// Subscriptions are woken in order, and each has its own number.
#[test]
fn subscriptions_end_each_for_itself() {
    explore(|| {
        let signals = Arc::<Signals>::default();
        let told = Arc::new(Mutex::new(BTreeSet::new()));
        let (table, note) = (Arc::clone(&signals), Arc::clone(&told));
        let kept = join(threads(3, move |number| {
            let note = Arc::clone(&note);
            let signal: Signal = Arc::new(move || {
                note.lock().insert(number);
            });
            let subscription = table.subscribe(signal);
            (number != 1).then_some(subscription)
        }));
        signals.tell();
        assert_eq!(*told.lock(), BTreeSet::from([0, 2]));
        drop(kept);
        move || assert_eq!(format!("{signals:?}"), "Signals(0)")
    });
}
