//! Acquires a lock whose contenders have patience: each waits in a room beside the lock until it is its turn
//! to contend, and leaves the room when it holds.
//!
//! The room only decides who may contend next; that there is one holder at a time is the lock's own affair. A
//! member's place is its number plus its patience, fixed when its node is made: at most so many later ones
//! come before it. All agree on that by the names alone.
//!
//! Who contends stays there, so a member that comes later waits for those who contend already: of each kind
//! of patience that is at most one, as the next one like it comes in only when that one holds.

use std::sync::Arc;
use std::time::Instant;

use crate::contend::acquire::{Contention, Limits, OthersSeen, pursue};
use crate::contend::hold::{DROP_LIMIT, Hold};
use crate::error::Result;
use crate::path;
use crate::rt::Deadline;
use crate::session::Call;

/// Begins the name of the room, which is beside the lock: as its child it would be taken for a contender.
const ROOM: &str = "_zklock_room_";

/// Whether the path is that of a room, so that no lock can be there.
pub(crate) fn is_room(path: &str) -> bool {
    path::last(path).starts_with(ROOM)
}

/// The room of the lock at this path.
pub(crate) fn room_of(lock: &str) -> String {
    path::join(path::parent(lock), &format!("{ROOM}{}", path::last(lock)))
}

/// Contends in the room, and then for the lock, in the session of its place in the room: if that ends, it
/// begins anew. `None` as for other acquisitions.
pub(crate) fn acquire_in_turn(
    room: &Contention<'_>,
    lock: &Contention<'_>,
    limits: Limits<'_>,
    others: &OthersSeen,
    begin: Instant,
) -> Result<Option<Hold>> {
    let core = lock.client.core();
    let mut call = Call::new(core, limits.wait);
    loop {
        let Some(mut place) = pursue(room, &mut call, limits.patient, others, None, Some)? else {
            return others.or_unanswered(None, begin, core, lock.node);
        };
        // What is acquired, and may be lost, is the lock. But who waits in the room waits for what this one
        // waits for.
        place.held_node().report_no_loss();
        place.note_taken();
        let session = Arc::clone(&place.held_node().session);
        call.stay_in(&session);
        let got = pursue(lock, &mut call, limits.patient, others, None, Some);
        call.stay_no_more();
        let is_over = session.status().now().ended.is_some();
        place.let_go(Deadline::after(DROP_LIMIT).earlier(limits.wait.late()));
        match got? {
            None if is_over && !limits.wait.until().has_passed() => {}
            got => return others.or_unanswered(got, begin, core, lock.node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_beside_its_lock() {
        assert_eq!(room_of("/locks/a"), "/locks/_zklock_room_a");
        assert_eq!(room_of("/a"), "/_zklock_room_a");
        assert!(is_room(&room_of("/a")) && !is_room("/_zklock_room_a/b"));
    }
}
