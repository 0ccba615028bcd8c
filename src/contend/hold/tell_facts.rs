//! Has the nodes of holders tell what became known after they were made: since when the lock is held, and who
//! waits for it in the same process. In the background, one after another, and not too many at once.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::held_node::HeldNode;
use super::kept_waiting::KeptWaiting;
use super::watchdog::Watchdog;
use crate::contend::name::{differ_in_facts_only, with_kept_waiting};
use crate::rt::{self, Moment, Mutex};
use crate::session::{Answer, ClientCore, Fault, Session};

/// How long after the grant a node tells it: a lock that was released by then is not worth a write.
const UNTIL_TOLD: Duration = Duration::from_secs(1);

/// A client's nodes tell it at most twenty times a second.
const BETWEEN: Duration = Duration::from_millis(50);

/// How often it is tried when a connection is lost meanwhile, and how long after.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// The nodes of a client that are to tell it, in the order in which they are due.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Entry>,
    /// The session whose background job works through it.
    worked_by: Option<i64>,
    /// When the next one may be written, at the earliest.
    next: Option<Instant>,
}

struct Entry {
    watchdog: Weak<Watchdog>,
    due: Instant,
    tries_left: u32,
}

#[derive(Default)]
struct Queues(Mutex<Queue>);

/// Has a node that was just granted tell since when it is held, in a second, if it is held until then.
pub(super) fn tell_held_since(core: &ClientCore, session: &Arc<Session>, watchdog: &Arc<Watchdog>) {
    if watchdog.note_facts(Some(Moment::now()), None, true) {
        tell(core, session, watchdog, UNTIL_TOLD);
    }
}

/// Has the node of a holder tell soon who waits for it in this process, be that new or what it told before.
pub(crate) fn tell_kept_waiting(
    core: &ClientCore,
    held: &HeldNode,
    kept: &Arc<KeptWaiting>,
    is_new: bool,
) {
    let HeldNode { session, watchdog, .. } = held;
    if watchdog.note_facts(None, Some(kept), is_new) {
        tell(core, session, watchdog, Duration::ZERO);
    }
}

/// Has a waiter's node tell this, and what threads of its process hold that wait behind it.
pub(crate) fn tell_own_wait(
    core: &ClientCore,
    node: String,
    told: Vec<u8>,
    kept: Arc<KeptWaiting>,
) {
    let Some(session) = core.live_session() else { return };
    let (owner, mut tries_left) = (Arc::downgrade(&session), TRIES);
    core.reaper().later(&session, rt::now(), move || {
        let session = owner.upgrade()?;
        let nodes = kept.nodes();
        let new = with_kept_waiting(&told, &nodes).unwrap_or_else(|| told.clone());
        // What is told again shows by its time that it is still so.
        let is_wanted = |data: &[u8]| data != new || !nodes.is_empty();
        let wrote = rewrite(&session, &node, &told, |data| is_wanted(data).then(|| new.clone()));
        tries_left -= 1;
        let again = wrote == Err(Fault::ConnectionLoss) && tries_left > 0;
        if again { rt::now().checked_add(PAUSE) } else { None }
    });
}

/// Has the node of a holder tell what it is to tell now.
fn tell_now(watchdog: &Watchdog) -> Answer<()> {
    watchdog.note_written();
    let Some(session) = watchdog.session.upgrade() else { return Ok(()) };
    let own = watchdog.data.as_deref().unwrap_or_default();
    let told = rewrite(&session, &watchdog.node, own, |_| Some(watchdog.present_data()));
    if matches!(told, Err(Fault::NoAuth)) {
        watchdog.note_refused();
    }
    told
}

/// Writes other facts to a node with these data. What another client has written meanwhile stays, such as a
/// request to release.
fn rewrite(
    session: &Session,
    node: &str,
    own: &[u8],
    new: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
) -> Answer<()> {
    let Some((data, stat)) = session.read(node, false)? else { return Ok(()) };
    match new(&data).filter(|_| differ_in_facts_only(own, &data)) {
        Some(data) => session.write_version(node, &data, Some(stat.version)).map(drop),
        None => Ok(()),
    }
}

/// That is for people who look: what the server refuses is not repeated.
fn tell(core: &ClientCore, session: &Arc<Session>, watchdog: &Arc<Watchdog>, pause: Duration) {
    let Some(due) = rt::now().checked_add(pause) else { return };
    let queue: Arc<Queues> = core.extension();
    let entry = Entry { watchdog: Arc::downgrade(watchdog), due, tries_left: TRIES };
    let mut state = queue.0.lock();
    let place = state.waiting.partition_point(|waiting| waiting.due <= due);
    state.waiting.insert(place, entry);
    // A job that is there looks again when the first of those before is due: within a second.
    let is_worked = state.worked_by.replace(session.id()) == Some(session.id());
    drop(state);
    if !is_worked {
        core.reaper().later(session, due, move || queue.work());
    }
}

impl Queues {
    /// Has the nodes that are due tell it, and returns when to go on; `None` if none is left.
    fn work(&self) -> Option<Instant> {
        let mut state = self.0.lock();
        loop {
            let Some(entry) = state.waiting.front() else {
                state.worked_by = None;
                return None;
            };
            let due = state.next.map_or(entry.due, |next| next.max(entry.due));
            let watchdog = entry.watchdog.upgrade().filter(|watchdog| watchdog.is_of_a_hold());
            let now = rt::now();
            if watchdog.is_some() && due > now {
                return Some(due);
            }
            let (Some(mut entry), Some(watchdog)) = (state.waiting.pop_front(), watchdog) else {
                continue;
            };
            state.next = now.checked_add(BETWEEN);
            drop(state);
            let told = tell_now(&watchdog);
            drop(watchdog);
            state = self.0.lock();
            entry.tries_left -= 1;
            if told == Err(Fault::ConnectionLoss) && entry.tries_left > 0 {
                entry.due = rt::now().checked_add(PAUSE)?;
                state.waiting.push_back(entry);
            }
        }
    }
}
