//! Who reads what the server sends: the link's thread, or a caller that waits for it alone, which saves
//! waking two threads.
//!
//! Bytes are read, and what they say is told, under other locks: if two threads read for a moment, that is
//! only in vain. If nobody reads while a caller waits, the caller waits until the link's thread looks again,
//! a few milliseconds later; the models switch that off.

use std::sync::Arc;
use std::time::Duration;

use crate::rt::{Moment, Mutex};

/// How long a caller reads at most.
pub(super) const LONGEST_READING: Duration = Duration::from_millis(20);
/// After so long, the link's thread takes the reading over from a caller.
const LONGEST_TURN: Duration = Duration::from_millis(25);
/// For how long the link's thread leaves the reading to the next caller, if nobody waits.
const REST: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug)]
pub(crate) struct ReadingTurn {
    state: Mutex<TurnState>,
}

#[derive(Debug)]
struct TurnState {
    reader: Reader,
    /// How many callers have read.
    turns: u64,
    /// How many callers wait for something that the server is to send.
    waiting: usize,
    /// When a caller last began to read.
    begun: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Nobody,
    LinkThread,
    /// The caller with this turn.
    Caller(u64),
}

/// The connection, as a caller that reads uses it.
pub(crate) trait Readable {
    /// Waits until there is something to read; false if there is nothing by then, or no connection.
    fn wait_for_server(&self, until: Moment) -> bool;

    /// Reads once and tells what that says; false if the link's thread has to go on.
    fn read_and_tell(&self) -> bool;

    /// Has the link's thread look at everything again.
    fn wake(&self);
}

/// A caller waits for something that the server is to send, until this is dropped.
#[derive(Debug)]
pub(crate) struct AwaitsServer(Arc<ReadingTurn>);

impl Drop for AwaitsServer {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

impl ReadingTurn {
    pub(crate) fn new() -> Arc<ReadingTurn> {
        let state =
            TurnState { reader: Reader::LinkThread, turns: 0, waiting: 0, begun: Moment::ZERO };
        Arc::new(ReadingTurn { state: Mutex::new(state) })
    }

    /// Counts a caller that is about to wait, and calls [`read`](Self::read) before it sleeps.
    pub(crate) fn count(self: &Arc<Self>) -> AwaitsServer {
        self.state.lock().waiting += 1;
        AwaitsServer(Arc::clone(self))
    }

    /// Counts a caller that is about to sleep, and has the link's thread read if nobody does.
    pub(crate) fn count_sleeper(self: &Arc<Self>, connection: &impl Readable) -> AwaitsServer {
        let sleeper = self.count();
        if self.must_wake() {
            connection.wake();
        }
        sleeper
    }

    /// If nobody else reads or waits, reads until it `is_done`, or then. Before that, the caller is
    /// counted. Where several wait, the link's thread reads: they would hand the reading on all the time.
    pub(crate) fn read(
        &self,
        connection: &impl Readable,
        now: Moment,
        until: Moment,
        is_done: impl Fn() -> bool,
    ) {
        if let Some(turn) = self.take(now) {
            while !is_done() && connection.wait_for_server(until) && connection.read_and_tell() {}
            self.give_up(turn);
        }
        if self.must_wake() {
            connection.wake();
        }
    }

    fn take(&self, now: Moment) -> Option<u64> {
        let mut state = self.state.lock();
        if state.reader != Reader::Nobody || state.waiting > 1 {
            return None;
        }
        state.turns += 1;
        state.reader = Reader::Caller(state.turns);
        state.begun = now;
        Some(state.turns)
    }

    /// Whether the link's thread has to read.
    fn must_wake(&self) -> bool {
        let state = self.state.lock();
        state.reader == Reader::Nobody && state.waiting > 0
    }

    /// Ends a caller's turn, unless it was taken over.
    fn give_up(&self, turn: u64) {
        let mut state = self.state.lock();
        if state.reader == Reader::Caller(turn) {
            state.reader = Reader::Nobody;
        }
    }

    /// When the link's thread is to ask again, as it leaves the reading to callers; `None` if it reads.
    /// It does so until `rest_until` at least, if nobody waits.
    pub(crate) fn rest(&self, now: Moment, rest_until: Moment) -> Option<Moment> {
        let mut state = self.state.lock();
        let (reader, until) = match state.reader {
            Reader::Caller(turn) => (Reader::Caller(turn), state.begun.plus(LONGEST_TURN)),
            _ if state.waiting == 0 => (Reader::Nobody, rest_until.max(state.begun.plus(REST))),
            _ => (Reader::LinkThread, Moment::ZERO),
        };
        let rests = now < until;
        state.reader = if rests { reader } else { Reader::LinkThread };
        rests.then(|| until.min(now.plus(REST)))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::rt::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    const NOW: Moment = Moment::from_nanos(1 << 40);

    /// A connection that always has something to read, and counts what is done with it.
    #[derive(Default)]
    struct Endless {
        reads: AtomicUsize,
        wakes: AtomicUsize,
    }

    impl Readable for Endless {
        fn wait_for_server(&self, _until: Moment) -> bool {
            true
        }

        fn read_and_tell(&self) -> bool {
            self.reads.fetch_add(1, SeqCst);
            true
        }

        fn wake(&self) {
            self.wakes.fetch_add(1, SeqCst);
        }
    }

    /// Has a caller read once, and says whether it did.
    fn read_once(turn: &ReadingTurn, connection: &Endless, now: Moment) -> bool {
        let before = connection.reads.load(SeqCst);
        let is_done = || connection.reads.load(SeqCst) > before;
        turn.read(connection, now, now, is_done);
        is_done()
    }

    #[test]
    fn callers_read_while_the_links_thread_rests() {
        let (turn, connection) = (ReadingTurn::new(), Endless::default());
        assert!(!read_once(&turn, &connection, NOW), "the link's thread reads until it rests");
        let until = NOW.plus(REST);
        assert_eq!(turn.rest(NOW, until), Some(until));
        assert!(read_once(&turn, &connection, until));
        assert!(read_once(&turn, &connection, until));
        assert_eq!(turn.rest(until, until), Some(until.plus(REST)), "it rests once more");
        let later = until.plus(REST);
        assert_eq!(turn.rest(later, until), None);
        assert!(!read_once(&turn, &connection, later));
        assert_eq!(connection.wakes.load(SeqCst), 0, "nobody waited");
    }

    #[test]
    fn while_a_caller_sleeps_the_links_thread_reads() {
        let (turn, connection) = (ReadingTurn::new(), Endless::default());
        turn.rest(NOW, Moment::NEVER);
        let sleeper = turn.count_sleeper(&connection);
        assert_eq!(connection.wakes.load(SeqCst), 1);
        assert_eq!(turn.rest(NOW, Moment::NEVER), None);
        let another = turn.count_sleeper(&connection);
        assert_eq!(connection.wakes.load(SeqCst), 1, "it reads already");
        drop((sleeper, another));
        assert!(turn.rest(NOW, Moment::NEVER).is_some());
    }

    #[test]
    fn a_reader_that_leaves_has_the_links_thread_read_for_those_who_wait() {
        let (turn, connection) = (ReadingTurn::new(), Endless::default());
        turn.rest(NOW, Moment::NEVER);
        let own = turn.count();
        assert!(read_once(&turn, &connection, NOW));
        assert_eq!(connection.wakes.load(SeqCst), 1, "without its answer, it sleeps itself");
        drop(own);
        assert!(read_once(&turn, &connection, NOW));
        assert_eq!(connection.wakes.load(SeqCst), 1);
    }

    #[test]
    fn where_several_wait_the_links_thread_reads() {
        let (turn, connection) = (ReadingTurn::new(), Endless::default());
        turn.rest(NOW, Moment::NEVER);
        let waits = (turn.count(), turn.count());
        assert!(!read_once(&turn, &connection, NOW));
        assert_eq!(connection.wakes.load(SeqCst), 1);
        drop(waits);
    }

    #[test]
    fn the_links_thread_takes_over_from_a_caller_that_is_held_up() {
        let turn = ReadingTurn::new();
        turn.rest(NOW, Moment::NEVER);
        let held_up = turn.take(NOW).unwrap();
        assert_eq!(turn.take(NOW), None, "two would read");
        let almost = NOW.plus(LONGEST_TURN - Duration::from_millis(1));
        let end = NOW.plus(LONGEST_TURN);
        assert_eq!(turn.rest(almost, Moment::NEVER), Some(end));
        assert_eq!(turn.rest(end, Moment::NEVER), None);
        turn.give_up(held_up);
        assert_eq!(turn.take(NOW), None, "it was no longer its turn");
    }
}
