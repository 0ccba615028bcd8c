//! Attempts to continue a session, which the leader may have heard of though no answer has come.
//!
//! - The server may have granted another session timeout, with which the leader then counts. So each
//!   attempt is announced when it is sent.
//! - A server keeps the attempts that it has passed on to the leader by their session only. So the
//!   answer to one that was given up may be taken for the answer to the next one, which the leader has
//!   not heard of yet.

use std::collections::VecDeque;
use std::time::Duration;

use crate::link::protocol::Granted;
use crate::rt::{Moment, Mutex};

/// What the link has to know of attempts while the search goes on.
#[derive(Debug)]
pub(crate) enum News {
    /// A server is asked to continue the session, at that time.
    Sending(Moment),
    /// A server has answered the attempt of that time with another session timeout than the one before.
    Heard(Moment, Duration),
    /// A server has granted it, and is asked for it again.
    Granted(Granted),
}

/// The attempts of one session, at any address.
pub(crate) struct Attempts {
    /// When each was sent that was given up, and when that was. The last one is never forgotten.
    given_up: Mutex<VecDeque<(Moment, Moment)>>,
    on_news: Box<dyn Fn(News) + Send + Sync>,
}

impl Attempts {
    /// Has a function called with the news.
    pub(crate) fn new(on_news: impl Fn(News) + Send + Sync + 'static) -> Attempts {
        Attempts { given_up: Mutex::default(), on_news: Box::new(on_news) }
    }

    pub(super) fn tell(&self, news: News) {
        (self.on_news)(news);
    }

    /// Notes an attempt that is given up now. Those that were given up more than `kept` ago no longer count.
    pub(crate) fn note(&self, sent: Moment, now: Moment, kept: Duration) {
        let mut all = self.given_up.lock();
        while all.front().is_some_and(|(_, given_up)| given_up.plus(kept) < now) {
            all.pop_front();
        }
        all.push_back((sent, now));
    }

    /// Whether the leader may hear of an attempt that was given up, even much later: its server may have
    /// been frozen.
    pub(crate) fn are_in_doubt(&self) -> bool {
        !self.given_up.lock().is_empty()
    }

    /// When the request was sent at the earliest that is answered by the answer to an attempt sent at
    /// that time: an answer may be as late as the settle time.
    pub(crate) fn earliest(&self, sent: Moment, settle_time: Duration) -> Moment {
        let all = self.given_up.lock();
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
        let (all, settle_time) = (Attempts::new(drop), Duration::from_secs(3));
        assert_eq!((all.earliest(at(9), settle_time), all.are_in_doubt()), (at(9), false));
        all.note(at(1), at(2), Duration::from_secs(10));
        all.note(at(4), at(5), Duration::from_secs(10));
        for (sent, earliest) in [(4, 1), (5, 4), (7, 4), (8, 8)] {
            assert_eq!(all.earliest(at(sent), settle_time), at(earliest), "sent at {sent}");
        }
        all.note(at(20), at(21), Duration::from_secs(10));
        assert_eq!(all.given_up.lock().len(), 1, "those of long ago are forgotten");
        assert!(all.are_in_doubt());
    }
}
