//! What a client has learned of operations that not every server knows: creating a container and
//! removing watches, both since ZooKeeper 3.5.
//!
//! Some servers answer such a request with an error, and some answer later requests only. Others close
//! the connection, as a server does that stops or crashes. So one closed connection proves nothing: the
//! operation is tried again, and is unknown if a second connection is closed on it that had answered
//! another request before, at least a third of the session timeout later, and the next connection
//! answers another request. A wrong guess costs little: it is forgotten after an hour.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use log::Level;

use crate::link::log_thread::write_soon;
use crate::rt::{AtomicBool, Moment, Mutex};
use crate::wire_values::op;

/// How long it is remembered what the servers do not know, or may not know.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// How often an operation may be tried before the pause between two tries that count.
const TRIES: u32 = 2;

/// Whether servers of some versions do not know this operation, of those that a client needs.
pub(crate) fn is_newer(operation: i32) -> bool {
    matches!(operation, op::CREATE_CONTAINER | op::REMOVE_WATCHES)
}

/// See the module. All sessions of a client share one.
#[derive(Debug, Default)]
pub(crate) struct UnsupportedOperations {
    /// Whether an operation is suspected; without one, most replies need no lock.
    suspicious: AtomicBool,
    verdicts: Mutex<BTreeMap<i32, Verdict>>,
}

/// Of an operation that the servers do not know, or may not know.
#[derive(Clone, Copy, Debug, Default)]
struct Verdict {
    is_unknown: bool,
    /// Since when it is unknown, or when a connection was closed on it for the first time.
    since: Moment,
    /// How many connections were closed on it that had answered another request before.
    closings: u32,
    /// From when a further closing counts.
    counts_from: Moment,
    /// Whether only another request's answer is missing.
    is_closed_again: bool,
}

impl UnsupportedOperations {
    /// Whether the servers do not know the operation.
    pub(crate) fn is_unknown(&self, operation: i32, now: Moment) -> bool {
        self.verdict(operation, now).is_some_and(|it| it.is_unknown)
    }

    /// How long to wait before the operation is tried again, if it is suspected. Another request must
    /// be answered on the same connection before.
    pub(crate) fn suspected(&self, operation: i32, now: Moment) -> Option<Duration> {
        let it = self.verdict(operation, now).filter(|it| !it.is_unknown)?;
        let is_tried_at_once = it.is_closed_again || it.closings < TRIES;
        Some(if is_tried_at_once { Duration::ZERO } else { it.counts_from.since(now) })
    }

    fn verdict(&self, operation: i32, now: Moment) -> Option<Verdict> {
        let verdict = *self.verdicts.lock().get(&operation)?;
        (now.since(verdict.since) < REMEMBERED).then_some(verdict)
    }

    /// A server has said that it does not know the operation, or has answered a later request.
    pub(crate) fn learn(&self, operation: i32, now: Moment) {
        let mut verdicts = self.verdicts.lock();
        let unknown = Verdict { is_unknown: true, since: now, ..Verdict::default() };
        let before = verdicts.insert(operation, unknown);
        self.note_suspicions(&verdicts);
        drop(verdicts);
        if before.is_none_or(|it| !it.is_unknown) {
            announce(operation);
        }
    }

    /// A server has answered a request, other than that it does not know the operation.
    pub(super) fn answered(&self, operation: i32, now: Moment) {
        if !self.suspicious.load(Ordering::Acquire) {
            return;
        }
        let mut verdicts = self.verdicts.lock();
        let guilty = verdicts.iter().filter(|(_, it)| it.is_closed_again && !is_newer(operation));
        let guilty: Vec<i32> = guilty.map(|(operation, _)| *operation).collect();
        verdicts.retain(|suspect, it| *suspect != operation || it.is_unknown);
        self.note_suspicions(&verdicts);
        drop(verdicts);
        guilty.into_iter().for_each(|operation| self.learn(operation, now));
    }

    /// A server has closed a connection on which this operation was the oldest without an answer;
    /// `has_answered` says whether it had answered another request on that connection.
    pub(super) fn closed(
        &self,
        operation: i32,
        has_answered: bool,
        timeout: Duration,
        now: Moment,
    ) {
        if !is_newer(operation) {
            return;
        }
        let mut verdicts = self.verdicts.lock();
        let before = verdicts.get(&operation).copied();
        let before = before.filter(|before| now.since(before.since) < REMEMBERED);
        let counts_from = now.plus(timeout / 3);
        let verdict = match before {
            Some(it) if it.is_unknown || !has_answered => it,
            Some(it) if it.closings > 0 => Verdict {
                closings: it.closings.saturating_add(1),
                is_closed_again: it.is_closed_again || now >= it.counts_from,
                ..it
            },
            _ => {
                let closings = u32::from(has_answered);
                Verdict { since: now, closings, counts_from, ..Verdict::default() }
            }
        };
        verdicts.insert(operation, verdict);
        self.note_suspicions(&verdicts);
    }

    /// A server has closed a connection on which it had answered nothing: it stops rather than that it
    /// does not know an operation.
    pub(super) fn closed_without_an_answer(&self) {
        if !self.suspicious.load(Ordering::Acquire) {
            return;
        }
        for verdict in self.verdicts.lock().values_mut() {
            verdict.is_closed_again = false;
        }
    }

    /// The servers are others now.
    pub(crate) fn forget(&self) {
        self.verdicts.lock().clear();
        self.suspicious.store(false, Ordering::Release);
    }

    fn note_suspicions(&self, verdicts: &BTreeMap<i32, Verdict>) {
        self.suspicious.store(verdicts.values().any(|it| !it.is_unknown), Ordering::Release);
    }
}

fn announce(operation: i32) {
    let what = match operation {
        op::CREATE_CONTAINER => "make containers: lock nodes and others are plain nodes",
        _ => "remove watches: those that are no longer needed stay",
    };
    write_soon(
        Level::Info,
        format_args!(
            "the servers cannot {what} (ZooKeeper can since 3.5); this is tried again in an hour"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(12);
    const CONTAINER: i32 = op::CREATE_CONTAINER;

    fn at(seconds: f64) -> Moment {
        Moment::ZERO.plus(Duration::from_secs_f64(seconds))
    }

    /// Suspected since 10 s, and closed again at this time.
    fn closed_again_at(seconds: f64) -> UnsupportedOperations {
        let operations = UnsupportedOperations::default();
        operations.closed(CONTAINER, true, T, at(10.));
        operations.closed(CONTAINER, true, T, at(seconds));
        operations
    }

    #[test]
    fn an_operation_is_unknown_after_two_closings_and_an_answer_to_another_one() {
        let operations = closed_again_at(14.);
        assert!(!operations.is_unknown(CONTAINER, at(14.)));
        assert_eq!(operations.suspected(CONTAINER, at(14.)), Some(Duration::ZERO));
        operations.answered(op::REMOVE_WATCHES, at(14.5));
        assert!(!operations.is_unknown(CONTAINER, at(15.)), "no answer to a plain request");
        operations.answered(op::SYNC, at(15.));
        assert!(operations.is_unknown(CONTAINER, at(15.)));
        assert_eq!(operations.suspected(CONTAINER, at(15.)), None);
        assert!(!operations.is_unknown(op::REMOVE_WATCHES, at(15.)));
    }

    #[test]
    fn closings_prove_nothing_if_they_are_near_each_other_or_come_before_any_answer() {
        let operations = closed_again_at(13.9);
        operations.answered(op::SYNC, at(15.));
        assert!(!operations.is_unknown(CONTAINER, at(15.)));
        let operations = UnsupportedOperations::default();
        for seconds in [10., 20., 30.] {
            operations.closed(CONTAINER, false, T, at(seconds));
            operations.answered(op::SYNC, at(seconds + 1.));
            assert!(!operations.is_unknown(CONTAINER, at(seconds + 1.)));
            assert_eq!(operations.suspected(CONTAINER, at(seconds)), Some(Duration::ZERO));
        }
        operations.closed(CONTAINER, true, T, at(40.));
        operations.answered(op::SYNC, at(41.));
        assert!(!operations.is_unknown(CONTAINER, at(41.)), "only one closing counts");
    }

    #[test]
    fn a_server_that_answers_nothing_afterwards_is_about_to_stop() {
        let operations = closed_again_at(14.);
        operations.closed_without_an_answer();
        operations.answered(op::SYNC, at(15.));
        assert!(!operations.is_unknown(CONTAINER, at(15.)));
        operations.closed(CONTAINER, true, T, at(16.));
        operations.answered(op::SYNC, at(17.));
        assert!(operations.is_unknown(CONTAINER, at(17.)));
    }

    #[test]
    fn an_answer_clears_the_operation() {
        let operations = closed_again_at(14.);
        operations.answered(CONTAINER, at(15.));
        operations.answered(op::SYNC, at(15.));
        assert!(!operations.is_unknown(CONTAINER, at(15.)));
        assert_eq!(operations.suspected(CONTAINER, at(15.)), None);
    }

    #[test]
    fn a_suspected_operation_is_tried_twice_and_then_not_before_it_counts() {
        let operations = UnsupportedOperations::default();
        assert_eq!(operations.suspected(CONTAINER, at(10.)), None);
        operations.closed(CONTAINER, true, T, at(10.));
        assert_eq!(operations.suspected(CONTAINER, at(10.)), Some(Duration::ZERO));
        operations.closed(CONTAINER, true, T, at(10.5));
        let left = Duration::from_secs(3);
        assert_eq!(operations.suspected(CONTAINER, at(11.)), Some(left));
        assert_eq!(operations.suspected(CONTAINER, at(14.)), Some(Duration::ZERO));
    }

    #[test]
    fn what_is_unknown_is_forgotten_after_an_hour_or_with_the_hosts() {
        let operations = UnsupportedOperations::default();
        operations.learn(CONTAINER, at(10.));
        assert!(operations.is_unknown(CONTAINER, at(3609.)));
        assert!(!operations.is_unknown(CONTAINER, at(3610.)));
        operations.closed(CONTAINER, true, T, at(3611.));
        assert!(!operations.is_unknown(CONTAINER, at(3612.)));
        assert_eq!(operations.suspected(CONTAINER, at(3612.)), Some(Duration::ZERO));
        operations.learn(CONTAINER, at(3613.));
        operations.forget();
        assert!(!operations.is_unknown(CONTAINER, at(3613.)));
    }

    #[test]
    fn closings_on_what_every_server_knows_are_not_counted() {
        let operations = UnsupportedOperations::default();
        operations.closed(op::CREATE, true, T, at(10.));
        assert_eq!(operations.suspected(op::CREATE, at(10.)), None);
    }
}
