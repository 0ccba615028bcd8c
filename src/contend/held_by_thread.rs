//! What each thread holds, as far as it has taken it itself. A guard that was given to another thread still counts
//! as the first one's until it is dropped there; from then on, no hold of that lock counts.

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
}

/// The lock nodes, as the server knows them, of guards that were dropped on other threads than those that had
/// taken them.
#[derive(Default)]
pub(super) struct GivenAway(Mutex<HashSet<String>>);

impl GivenAway {
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
        let watchdog = self.watchdog.upgrade()?;
        (self.process == std::process::id() && watchdog.is_held_in(self.turn)).then_some(watchdog)
    }
}

/// This thread has taken what this watchdog watches, in this turn.
pub(super) fn note_taken(watchdog: &Arc<Watchdog>, turn: u32) {
    let (process, thread) = (std::process::id(), rt::thread_id());
    let entry = Entry { process, thread, watchdog: Arc::downgrade(watchdog), turn };
    with_entries(|entries, most| {
        entries.push(entry);
        if entries.len() > FEW.max(*most) {
            entries.retain(|entry| entry.live().is_some());
            *most = 2 * entries.len();
        }
    });
}

/// The nodes that this thread has taken and holds, as the server knows them: the latest first, and not too many.
pub(super) fn held_by_this_thread(core: &ClientCore) -> Vec<String> {
    let own = rt::thread_id();
    let mut held: Vec<String> = Vec::new();
    with_entries(|entries, _| {
        let own = entries.iter().rev().filter(|entry| entry.thread == own);
        let nodes = own.filter_map(Entry::live).map(|watchdog| watchdog.node.clone());
        held.extend(nodes.take(MOST_NAMED));
    });
    if !held.is_empty() {
        let given: Arc<GivenAway> = core.extension();
        let given = given.0.lock();
        held.retain(|node| !given.contains(path::parent(node)));
    }
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
