//! What each thread holds, as far as it has taken it itself. A guard that was given to another thread still counts
//! as the first one's. Once one was dropped by another thread, what is held of that lock by that client counts no
//! more.

use std::cell::RefCell;
use std::collections::HashSet;
use std::mem;
use std::sync::{Arc, Weak};

use super::contender_facts::MOST_NAMED;
use super::held_node_watchdog::Watchdog;
use crate::path;
use crate::rt::{self, Mutex, ThreadId};
use crate::session::client_core::ClientCore;

/// Up to so many entries, none is looked at for being over.
const FEW: usize = 16;

/// So many locks whose guards are given to other threads are remembered.
const MOST_GIVEN: usize = 1_000;

thread_local! {
    static TAKEN: RefCell<Taken> = RefCell::default();
}

#[derive(Default)]
struct Taken {
    /// The latest last.
    entries: Vec<Entry>,
    /// With more entries than this, those that are over are taken out.
    most: usize,
}

struct Entry {
    /// A forked process has the thread's entries, and none of what they are about.
    process: u32,
    thread: ThreadId,
    watchdog: Weak<Watchdog>,
    turn: u32,
    /// Those of its client.
    given: Arc<GivenAway>,
}

/// The lock nodes, as the server knows them, of guards that were dropped on other threads than those that had
/// taken them.
#[derive(Default)]
pub(super) struct GivenAway(Mutex<HashSet<String>>);

impl GivenAway {
    fn has(&self, node: &str) -> bool {
        self.0.lock().contains(path::parent(node))
    }

    /// A guard of this node was dropped on another thread.
    pub(super) fn note(&self, node: &str) {
        let mut locks = self.0.lock();
        if locks.len() < MOST_GIVEN {
            locks.insert(path::parent(node).to_owned());
        }
    }
}

impl Entry {
    /// The watchdog, while this turn of its node lasts.
    fn live(&self) -> Option<Arc<Watchdog>> {
        if self.process != std::process::id() {
            return None;
        }
        self.watchdog.upgrade().filter(|watchdog| watchdog.is_held_in(self.turn))
    }
}

/// This thread has taken what this watchdog watches, in this turn.
pub(super) fn note_taken(core: &ClientCore, watchdog: &Arc<Watchdog>, turn: u32) {
    let (process, thread, given) = (std::process::id(), rt::thread_id(), core.extension());
    let entry = Entry { process, thread, watchdog: Arc::downgrade(watchdog), turn, given };
    with_entries(|entries, most| {
        entries.push(entry);
        if entries.len() > FEW.max(*most) {
            entries.retain(|entry| entry.live().is_some());
            *most = 2 * entries.len();
        }
    });
}

/// The nodes that this thread has taken and holds, as the server knows them: the latest first, and not too many.
pub(super) fn held_by_this_thread() -> Vec<String> {
    held(|_| true)
}

/// The node by which this thread holds this lock of this client.
pub(super) fn own_hold_of(core: &ClientCore, lock: &str) -> Option<String> {
    let given: Arc<GivenAway> = core.extension();
    let held = held(|entry| Arc::ptr_eq(&entry.given, &given));
    held.into_iter().find(|node| path::parent(node) == lock)
}

fn held(is_meant: impl Fn(&Entry) -> bool) -> Vec<String> {
    let own = rt::thread_id();
    let mut held = Vec::new();
    with_entries(|entries, _| {
        let own = entries.iter().rev().filter(|entry| entry.thread == own && is_meant(entry));
        let nodes = own.filter_map(|entry| {
            let watchdog = entry.live()?;
            (!entry.given.has(&watchdog.node)).then(|| watchdog.node.clone())
        });
        held.extend(nodes.take(MOST_NAMED));
    });
    held
}

/// Does this with the entries of this thread while the table is not borrowed: what drops the last reference to
/// something of the user's may get here again.
fn with_entries(act: impl FnOnce(&mut Vec<Entry>, &mut usize)) {
    // In the destructors of thread-local values, the table may be gone.
    let Ok(mut taken) = TAKEN.try_with(RefCell::take) else { return };
    act(&mut taken.entries, &mut taken.most);
    let _ = TAKEN.try_with(|table| {
        let mut table = table.borrow_mut();
        let meanwhile = mem::replace(&mut *table, taken);
        table.entries.extend(meanwhile.entries);
    });
}
