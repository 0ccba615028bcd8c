//! What each thread holds, as far as it has taken it itself: a guard that was given to another thread still
//! counts as the first one's.

use std::cell::RefCell;
use std::mem;
use std::sync::{Arc, Weak};

use super::contender_facts::MOST_NAMED;
use super::held_node_watchdog::Watchdog;
use crate::path;
use crate::rt::{self, ThreadId};

/// Up to so many entries, none is looked at for being over.
const FEW: usize = 16;

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
    thread: ThreadId,
    watchdog: Weak<Watchdog>,
    turn: u32,
}

impl Entry {
    /// The watchdog, while this turn of its node lasts.
    fn live(&self) -> Option<Arc<Watchdog>> {
        self.watchdog.upgrade().filter(|watchdog| watchdog.is_held_in(self.turn))
    }
}

/// This thread has taken what this watchdog watches, in this turn.
pub(super) fn note_taken(watchdog: &Arc<Watchdog>, turn: u32) {
    let entry = Entry { thread: rt::thread_id(), watchdog: Arc::downgrade(watchdog), turn };
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
    let own = rt::thread_id();
    let mut held = Vec::new();
    with_entries(|entries, _| {
        let own = entries.iter().rev().filter(|entry| entry.thread == own);
        let nodes = own.filter_map(Entry::live).map(|watchdog| watchdog.node.clone());
        held.extend(nodes.take(MOST_NAMED));
    });
    held
}

/// The node by which this thread holds that lock itself.
pub(super) fn own_hold_of(lock_node: &str) -> Option<String> {
    held_by_this_thread().into_iter().find(|node| path::parent(node) == lock_node)
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
