//! Until when the server is bound to keep the session, by this machine's clock.
//!
//! What a server promises is known only through the leader: a follower that is cut off
//! goes on answering reads while the leader expires the session. So only a reply that
//! came through the leader (`sync`, a write, the answer to connecting) renews the lease.
//! And the leader learns of what a client sends to a follower up to half a tick later,
//! so the renewed lease runs not from the answered frame but from an earlier one, whose
//! own reply had arrived a good while before the answered one was sent. The shortest
//! session a server grants by default is two ticks long: half a tick is at most a
//! quarter of the session time-out; a little more is allowed for the way.

use std::collections::VecDeque;
use std::time::Duration;

use crate::rt::Moment;

/// See the module.
#[derive(Debug)]
pub(crate) struct Lease {
    timeout: Duration,
    end: Moment,
    /// Frames that renewed the session: when they were sent, when they were answered.
    touches: VecDeque<Touch>,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    sent: Moment,
    answered: Moment,
}

impl Lease {
    pub(crate) fn new() -> Lease {
        Lease { timeout: Duration::ZERO, end: Moment::ZERO, touches: VecDeque::new() }
    }

    pub(crate) fn end(&self) -> Moment {
        self.end
    }

    /// The answer to connecting came through the leader and counts from its own send.
    pub(crate) fn restart(&mut self, timeout: Duration, sent: Moment, now: Moment) {
        self.timeout = timeout;
        self.end = sent.plus(timeout);
        self.touches.clear();
        self.touches.push_back(Touch { sent, answered: now });
    }

    /// Notes the reply to a frame that renews the session at the server.
    pub(crate) fn answered(&mut self, sent: Moment, now: Moment, by_leader: bool) {
        if by_leader {
            let settled = self.timeout / 4 + self.timeout / 32;
            while let [first, second, ..] = self.touches.make_contiguous()
                && second.answered.plus(settled) <= sent
            {
                debug_assert!(first.sent <= second.sent);
                self.touches.pop_front();
            }
            if let Some(touch) = self.touches.front()
                && touch.answered.plus(settled) <= sent
            {
                self.end = self.end.max(touch.sent.plus(self.timeout));
            }
        }
        let grain = self.timeout / 32;
        if self.touches.back().is_none_or(|last| last.answered.plus(grain) <= now) {
            self.touches.push_back(Touch { sent, answered: now });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(12);

    fn at(seconds: u64) -> Moment {
        Moment::ZERO.plus(Duration::from_secs(seconds))
    }

    #[test]
    fn connecting_counts_from_its_own_send() {
        let mut lease = Lease::new();
        lease.restart(T, at(10), at(11));
        assert_eq!(lease.end(), at(22));
    }

    #[test]
    fn a_heartbeat_renews_from_the_one_before() {
        let mut lease = Lease::new();
        lease.restart(T, at(0), at(0));
        lease.answered(at(4), at(4), true);
        assert_eq!(lease.end(), at(12));
        lease.answered(at(8), at(8), true);
        assert_eq!(lease.end(), at(16));
        lease.answered(at(12), at(12), true);
        assert_eq!(lease.end(), at(20));
    }

    #[test]
    fn a_read_renews_nothing_by_itself_but_counts_for_the_next_sync() {
        let mut lease = Lease::new();
        lease.restart(T, at(0), at(0));
        lease.answered(at(5), at(5), false);
        assert_eq!(lease.end(), at(12));
        lease.answered(at(9), at(9), true);
        assert_eq!(lease.end(), at(17));
    }

    #[test]
    fn a_touch_answered_too_lately_does_not_count() {
        let mut lease = Lease::new();
        lease.restart(T, at(0), at(0));
        lease.answered(at(5), at(6), false);
        lease.answered(at(9), at(9), true);
        assert_eq!(lease.end(), at(12), "the read's touch may not be with the leader yet");
    }

    #[test]
    fn a_busy_connection_keeps_few_touches_and_a_long_lease() {
        let mut lease = Lease::new();
        lease.restart(T, at(0), at(0));
        let mut now = at(0);
        for _ in 0..100_000 {
            now = now.plus(Duration::from_millis(1));
            lease.answered(now, now, true);
            assert!(lease.touches.len() < 40);
            assert!(lease.end() >= now.plus(T / 2));
            assert!(lease.end() <= at(12).max(now.plus(T * 3 / 4)));
        }
    }
}
