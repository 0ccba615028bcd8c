//! Attempts to continue a session that were given up before the server answered.
//!
//! A server keeps the attempts that it has passed on to the leader by their session only. So the answer
//! to one that was given up may be taken for the answer to the next one, which the leader has not heard
//! of yet.

use std::collections::VecDeque;
use std::time::Duration;

use crate::rt::{Moment, Mutex};

/// The attempts of one session, at any address: when each was sent, and when it was given up.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(Mutex<VecDeque<(Moment, Moment)>>);

impl Unanswered {
    /// Notes an attempt that is given up now. Those that were given up more than `kept` ago no longer count.
    pub(super) fn note(&self, sent: Moment, now: Moment, kept: Duration) {
        let mut all = self.0.lock();
        while all.front().is_some_and(|(_, given_up)| given_up.plus(kept) < now) {
            all.pop_front();
        }
        all.push_back((sent, now));
    }

    /// When the request was sent at the earliest that is answered by the answer to an attempt sent at
    /// that time: an answer may be as late as the settle time.
    pub(super) fn earliest(&self, sent: Moment, settle_time: Duration) -> Moment {
        let all = self.0.lock();
        let may_be_answered = |(_, given_up): &&(Moment, Moment)| given_up.plus(settle_time) > sent;
        all.iter().filter(may_be_answered).map(|(earlier, _)| *earlier).fold(sent, Moment::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::ZERO.plus(Duration::from_secs(seconds))
    }

    #[test]
    fn an_answer_may_be_that_to_an_attempt_given_up_shortly_before() {
        let (all, settle_time) = (Unanswered::default(), Duration::from_secs(3));
        assert_eq!(all.earliest(at(9), settle_time), at(9));
        all.note(at(1), at(2), Duration::from_secs(10));
        all.note(at(4), at(5), Duration::from_secs(10));
        for (sent, earliest) in [(4, 1), (5, 4), (7, 4), (8, 8)] {
            assert_eq!(all.earliest(at(sent), settle_time), at(earliest), "sent at {sent}");
        }
        all.note(at(20), at(21), Duration::from_secs(10));
        assert_eq!(all.0.lock().len(), 1, "those of long ago are forgotten");
    }
}
