//! What each thread holds, as far as it has taken it itself. A guard that was given to another thread still
//! counts as the first one's, until one of that lock was [dropped by another
//! thread](super::guards_given_away).

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::{mem, ptr};

use super::guards_given_away::GuardsGivenAway;
use super::watchdog::Watchdog;
use crate::contend::name::MOST_NAMED;
use crate::path;
use crate::rt::{self, ThreadId};
use crate::session::ClientCore;

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
    /// The watchdog, while this turn of its node lasts and is this thread's.
    fn live(&self, process: u32) -> Option<Arc<Watchdog>> {
        let watchdog = self.watchdog.upgrade()?;
        let is_own = watchdog.given_away.is_kept(&watchdog.node, process);
        (is_own && watchdog.is_held_in(self.turn)).then_some(watchdog)
    }
}

/// This thread has taken what this watchdog watches, in this turn.
pub(super) fn note_taken(watchdog: &Arc<Watchdog>, turn: u32) {
    let entry = Entry { thread: rt::thread_id(), watchdog: Arc::downgrade(watchdog), turn };
    with_entries(|entries, most| {
        entries.push(entry);
        if entries.len() > FEW.max(*most) {
            let process = std::process::id();
            entries.retain(|entry| entry.live(process).is_some());
            *most = 2 * entries.len();
        }
    });
}

/// This thread has let go of it. What is not noted, as it was long ago or by another thread, is found to be
/// over later.
pub(super) fn note_left(watchdog: &Arc<Watchdog>, turn: u32) {
    with_entries(|entries, _| {
        let is_it = |entry: &Entry| {
            entry.turn == turn && ptr::eq(entry.watchdog.as_ptr(), Arc::as_ptr(watchdog))
        };
        let latest = entries.len().saturating_sub(FEW);
        if let Some(place) = entries[latest..].iter().rposition(is_it) {
            drop(entries.remove(latest + place));
        }
    });
}

/// The nodes that this thread has taken and holds, as the server knows them: the latest first, and not too
/// many.
pub(crate) fn held_by_this_thread() -> Vec<String> {
    let mut held = Vec::new();
    look_at_live(|watchdog| held.push(watchdog.node.clone()));
    held
}

/// The node by which this thread holds this lock of this client.
pub(crate) fn own_hold_of(core: &ClientCore, lock: &str) -> Option<String> {
    let (mut client, mut own) = (None, None);
    look_at_live(|watchdog| {
        let client: &Arc<GuardsGivenAway> = client.get_or_insert_with(|| core.extension());
        let is_same = Arc::ptr_eq(&watchdog.given_away, client);
        if is_same && path::parent(&watchdog.node) == lock {
            own = Some(watchdog.node.clone());
        }
    });
    own
}

/// Looks at the latest that are live, and takes those out that are not.
fn look_at_live(mut look: impl FnMut(&Watchdog)) {
    let own = rt::thread_id();
    with_entries(|entries, _| {
        let (mut place, mut found) = (entries.len(), 0);
        let process = if entries.is_empty() { 0 } else { std::process::id() };
        while place > 0 && found < MOST_NAMED {
            place -= 1;
            if entries[place].thread != own {
                continue;
            }
            match entries[place].live(process) {
                Some(watchdog) => {
                    look(&watchdog);
                    found += 1;
                }
                None => drop(entries.remove(place)),
            }
        }
    });
}

/// Does this with the entries of this thread while the table is not borrowed: what drops the last reference
/// to something of the user's may get here again.
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
