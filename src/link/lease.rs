//! The lease: until when, by this machine's clock, the ensemble is bound to keep the session.
//!
//! Only the leader ends sessions. It ends one when it has not heard of it for the session timeout
//! *T*, rounded up to whole ticks (`tickTime`). A server that is cut off from the leader still
//! answers pings and reads, so only an answer that came through the leader (to a `sync`, a write or
//! the request to connect) renews the lease.
//!
//! Nor does the answered request count itself: the leader does not learn from a `sync` or a write
//! that the session is alive. It learns that from the client's server, in that server's answers to
//! the leader's pings, which come every half tick. Behind an observer master (ZooKeeper 3.6 and
//! later) there are two such hops, each with pings of its own. So the leader knows of a request,
//! one tick after the client's server had it. The lease therefore runs for *T* from when an earlier
//! request was sent: the latest one whose reply had arrived at least [`settle_time`] before the
//! renewing request was sent.
//!
//! **The condition**: *T* is at least two ticks, and what the network and a busy server add to a
//! tick is less than *T*/32. Two ticks is the least that a server grants unless its
//! `minSessionTimeout` is set to less. With no observer master, *T* may be as little as one tick.

use std::collections::VecDeque;
use std::time::Duration;

use crate::rt::Moment;

/// How long the leader may take to learn of a request that the client's server has answered: one
/// tick, which is at most half the session timeout, and some time for the network.
fn settle_time(timeout: Duration) -> Duration {
    timeout / 2 + timeout / 32
}

/// A warning about a session timeout that may be too short for the condition above. The client
/// cannot know the tick; 2 s is the usual one.
pub(crate) fn warning(timeout: Duration) -> Option<String> {
    const USUAL_TICK: Duration = Duration::from_secs(2);
    let longest_tick = timeout / 2;
    (longest_tick < USUAL_TICK).then(|| {
        format!(
            "the session timeout is {timeout:?}: make sure that the servers' tickTime is at most \
             {longest_tick:?} (its default is {USUAL_TICK:?}), otherwise a lock may be reported as \
             held after the ensemble has passed it on"
        )
    })
}

/// How often something must be sent that the leader answers. Five such intervals are a little longer
/// than the [`settle_time`]: at any moment, the latest request that counts is at most six intervals
/// old, which leaves at least a third of the session timeout. On a slow connection the answers take
/// a part of the interval.
pub(crate) fn heartbeat_interval(timeout: Duration, round_trip: Duration) -> Duration {
    if round_trip > timeout / 48 { timeout / 18 } else { timeout / 9 }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Lease {
    timeout: Duration,
    end: Moment,
    /// Requests that have reached the client's server: when they were sent, when they were answered.
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

    /// Notes the reply to a request that was sent at that time.
    pub(crate) fn answered(&mut self, sent: Moment, now: Moment, by_leader: bool) {
        if by_leader {
            let settled = settle_time(self.timeout);
            let is_settled = |touch: &&Touch| touch.answered.plus(settled) <= sent;
            while let Some(second) = self.touches.get(1).filter(is_settled) {
                debug_assert!(self.touches[0].sent <= second.sent);
                self.touches.pop_front();
            }
            if let Some(touch) = self.touches.front().filter(is_settled) {
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
    fn a_session_timeout_below_two_usual_ticks_is_warned_of() {
        assert_eq!(warning(Duration::from_secs(4)), None);
        let warning = warning(Duration::from_secs(3)).unwrap();
        assert!(warning.contains("tickTime is at most 1.5s"), "{warning}");
    }

    #[test]
    fn a_heartbeat_renews_from_an_earlier_one() {
        let mut lease = Lease::new();
        lease.restart(T, at(0), at(0));
        lease.answered(at(4), at(4), true);
        lease.answered(at(6), at(6), true);
        assert_eq!(lease.end(), at(12));
        lease.answered(at(11), at(11), true);
        assert_eq!(lease.end(), at(16));
        lease.answered(at(13), at(13), true);
        assert_eq!(lease.end(), at(18));
    }

    #[test]
    fn a_read_renews_nothing_by_itself_but_counts_for_a_later_sync() {
        let mut lease = Lease::new();
        lease.restart(T, at(0), at(0));
        lease.answered(at(2), at(2), false);
        lease.answered(at(9), at(9), false);
        assert_eq!(lease.end(), at(12));
        lease.answered(at(10), at(10), true);
        assert_eq!(lease.end(), at(14));
    }

    #[test]
    fn a_request_answered_too_recently_does_not_count() {
        let mut lease = Lease::new();
        lease.restart(T, at(0), at(0));
        lease.answered(at(3), at(4), false);
        lease.answered(at(10), at(10), true);
        assert_eq!(lease.end(), at(12), "the leader may not know of the read yet");
        lease.answered(at(11), at(11), true);
        assert_eq!(lease.end(), at(15));
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
            assert!(lease.end() >= now.plus(T * 3 / 8));
            assert!(lease.end() <= at(12).max(now.plus(T / 2)));
        }
    }
}
