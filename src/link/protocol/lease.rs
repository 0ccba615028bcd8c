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
//! later) there are two such hops, each with pings of its own. A leader that has been deposed, and
//! does not know it yet, still answers for up to one and a half ticks. The lease therefore runs for
//! *T* from when an earlier request was sent: the latest one whose reply had arrived at least
//! [`settle_time`](Terms::settle_time) before the renewing request was sent.
//!
//! **The timeout that counts** is the least that any server has granted the session: the leader
//! takes the last report of it, whichever server that is from.
//!
//! **The condition**: no server's tick is longer than the one that is reckoned with.

use std::collections::VecDeque;
use std::time::Duration;

use crate::rt::Moment;

/// What a lease is reckoned with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The session timeout.
    pub(crate) timeout: Duration,
    /// The longest tick of any server.
    pub(crate) tick: Duration,
}

impl Terms {
    /// What the network and busy machines may add to a tick.
    pub(crate) fn margin(self) -> Duration {
        self.timeout / 32
    }

    /// How long the leader may take to learn of a request that the client's server has answered.
    pub(crate) fn settle_time(self) -> Duration {
        let (Terms { timeout, tick }, margin) = (self, self.margin());
        (tick + margin).max((tick * 3 / 2).min(timeout / 2 + margin))
    }

    /// How often a heartbeat is sent, at most nine times in a session timeout. Of the intervals after
    /// which a number of heartbeats lets the earliest of them count, it is the one that leaves the most
    /// of the lease.
    pub(crate) fn heartbeat_interval(self, round_trip: Duration) -> Duration {
        let shortest = self.timeout / 9;
        // A heartbeat that is a little late must not cost an interval.
        let counts_after = self.settle_time() + round_trip + self.timeout / 256;
        let every = |count: u32| shortest.max(counts_after / count);
        let spent = |count: &u32| every(*count) * (*count + 1);
        every((1..=9).min_by_key(spent).unwrap_or(9))
    }

    /// How long an outage surely costs no lock; zero if no heartbeat could renew the lease in time.
    pub(crate) fn outage_limit(self) -> Duration {
        if self.are_usable() { self.least_left(Duration::ZERO) } else { Duration::ZERO }
    }

    /// What is left of the lease at least, at any moment, as long as a server answers in this time.
    pub(crate) fn least_left(self, round_trip: Duration) -> Duration {
        let interval = self.heartbeat_interval(round_trip);
        let counts_after = self.settle_time() + round_trip;
        let count = counts_after.as_nanos().div_ceil(interval.as_nanos().max(1));
        let spent = interval * (u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1));
        self.timeout.saturating_sub(spent + round_trip)
    }

    /// Whether a connection whose opening took so long can hardly renew the lease in time: that takes a
    /// heartbeat on it, and another one that counts the first.
    pub(crate) fn is_slow(self, took: Duration) -> bool {
        took + self.settle_time() + self.heartbeat_interval(Duration::ZERO) * 2 > self.timeout
    }

    fn are_usable(self) -> bool {
        self.settle_time() + self.timeout * 2 / 9 < self.timeout
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    terms: Terms,
    end: Moment,
    /// Its end once the heartbeats that are under way are answered.
    pledged: Moment,
    /// Requests that have reached the client's server: when they were sent, when they were answered.
    touches: VecDeque<Touch>,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    sent: Moment,
    answered: Moment,
    is_heartbeat: bool,
}

impl Lease {
    pub(crate) fn end(&self) -> Moment {
        self.end
    }

    pub(crate) fn terms(&self) -> Terms {
        self.terms
    }

    /// The answer to connecting counts from its own send: a majority has confirmed that it came through
    /// the leader, by the session's creation or by a write on the connection (see `handshake`).
    pub(crate) fn restart(&mut self, terms: Terms, sent: Moment, now: Moment) {
        self.terms = terms;
        self.end = sent.plus(terms.timeout);
        self.pledged = self.end;
        self.touches.clear();
        self.touches.push_back(Touch { sent, answered: now, is_heartbeat: true });
    }

    /// The leader may count with less than the session timeout from now on.
    pub(crate) fn end_by(&mut self, end: Moment) {
        self.end = self.end.min(end);
        self.pledged = self.pledged.min(end);
    }

    /// Notes the reply to a request that was sent at that time.
    pub(crate) fn answered(
        &mut self,
        sent: Moment,
        now: Moment,
        by_leader: bool,
        is_heartbeat: bool,
    ) {
        if by_leader {
            while self.touches.get(1).is_some_and(|second| self.is_settled(second, sent)) {
                self.touches.pop_front();
            }
            self.end = self.end.max(self.renewed_by(sent));
            self.pledged = self.pledged.max(self.end);
        }
        let touch = Touch { sent, answered: now, is_heartbeat };
        // Thinned out behind the newest, so that the answer to a heartbeat is always there to count.
        let grain = self.terms.margin();
        let mut latest = self.touches.iter().rev();
        let is_last_spare = latest.next().is_some_and(|last| !last.is_heartbeat)
            && latest.next().is_some_and(|before| before.answered.plus(grain) > now);
        if is_last_spare {
            self.touches.pop_back();
        }
        self.touches.push_back(touch);
    }

    /// Expects an answer of the leader to a heartbeat that is sent now.
    pub(crate) fn pledge(&mut self, now: Moment) {
        self.pledged = self.pledged.max(self.renewed_by(now));
    }

    /// The answer that was expected was not the leader's.
    pub(crate) fn withdraw_pledges(&mut self) {
        self.pledged = self.end;
    }

    /// When the lease would end without another heartbeat.
    pub(crate) fn pledged(&self) -> Moment {
        self.pledged
    }

    /// The first moment at which a heartbeat would renew the lease for longer than is pledged.
    pub(crate) fn next_gain(&self) -> Option<Moment> {
        let is_counted = |touch: &Touch| touch.sent.plus(self.terms.timeout) <= self.pledged;
        let first = self.touches.get(self.touches.partition_point(is_counted))?;
        Some(first.answered.plus(self.terms.settle_time()))
    }

    fn is_settled(&self, touch: &Touch, sent: Moment) -> bool {
        touch.answered.plus(self.terms.settle_time()) <= sent
    }

    /// Until when an answer of the leader to a request sent at that time renews the lease.
    fn renewed_by(&self, sent: Moment) -> Moment {
        let settled = self.touches.partition_point(|touch| self.is_settled(touch, sent));
        let latest = settled.checked_sub(1).and_then(|last| self.touches.get(last));
        latest.map_or(Moment::ZERO, |touch| touch.sent.plus(self.terms.timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::super::granted::USUAL_TICK;
    use super::*;

    const T: Duration = Duration::from_secs(12);
    /// With a settle time of 6.375 s.
    const TERMS: Terms = Terms { timeout: T, tick: Duration::from_secs(6) };

    fn at(seconds: u64) -> Moment {
        Moment::ZERO.plus(Duration::from_secs(seconds))
    }

    fn restarted(sent: u64, now: u64) -> Lease {
        let mut lease = Lease::default();
        lease.restart(TERMS, at(sent), at(now));
        lease
    }

    fn seconds(all: f64) -> Duration {
        Duration::from_secs_f64(all)
    }

    #[test]
    fn connecting_counts_from_its_own_send() {
        assert_eq!(restarted(10, 11).end(), at(22));
    }

    /// Session timeout, tick, settle time, heartbeat interval, what is left, in seconds.
    #[test]
    fn the_leader_is_given_a_tick_and_a_half_as_far_as_the_session_timeout_allows() {
        for (timeout, tick, settle, interval, left) in [
            (4.0, 2.0, 2.125, 0.444, 1.333),
            (10.0, 3.0, 4.5, 1.135, 4.326),
            (20.0, 3.0, 4.5, 2.289, 13.133),
            (20.0, 2.0, 3.0, 3.078, 13.844),
            (40.0, 3.0, 4.5, 4.656, 30.688),
            (40.0, 2.0, 3.25, 4.444, 31.111),
            (10.0, 2.0, 3.0, 1.111, 5.556),
            (30.0, 3.0, 4.5, 4.617, 20.766),
            (30.0, 2.0, 3.0, 3.333, 23.333),
            (10.0, 6.0, 6.3125, 1.270, 2.378),
        ] {
            let terms = Terms { timeout: seconds(timeout), tick: seconds(tick) };
            let close = |a: Duration, b: f64| (a.as_secs_f64() - b).abs() < 0.001;
            let interval_now = terms.heartbeat_interval(Duration::ZERO);
            let left_now = terms.least_left(Duration::ZERO);
            assert!(close(terms.settle_time(), settle), "{terms:?}: {:?}", terms.settle_time());
            assert!(close(interval_now, interval), "{terms:?}: {interval_now:?}");
            assert!(close(left_now, left), "{terms:?}: {left_now:?}");
        }
    }

    /// Its table has the session timeout, and what is survived with the tick unstated and stated as 2 s.
    #[test]
    fn the_readme_tells_what_is_left() {
        let number = |cell: &str| cell.trim().trim_matches('*').strip_suffix(" s")?.parse().ok();
        let mut rows = 0;
        for line in include_str!("../../../README.md").lines() {
            let cells: Vec<f64> = line.split('|').filter_map(number).collect();
            let [timeout, unstated, stated, _] = cells[..] else { continue };
            let usual = USUAL_TICK.as_secs_f64().min(timeout / 2.0);
            for (told, tick) in [(unstated, usual), (stated, 2.0)] {
                let terms = Terms { timeout: seconds(timeout), tick: seconds(tick) };
                let left = terms.least_left(Duration::ZERO).as_secs_f64();
                assert!((left - told) >= 0.0 && left - told < 0.1, "{line}: {left}");
            }
            rows += 1;
        }
        assert_eq!(rows, 5);
    }

    #[test]
    fn terms_that_no_heartbeat_could_keep_are_not_usable() {
        for (tick, usable) in [(1.0, true), (6.0, true), (8.0, true), (8.9, true), (9.1, false)] {
            assert_eq!(Terms { timeout: T, tick: seconds(tick) }.are_usable(), usable, "{tick}");
        }
    }

    #[test]
    fn a_heartbeat_renews_from_an_earlier_one() {
        let mut lease = restarted(0, 0);
        lease.answered(at(4), at(4), true, true);
        lease.answered(at(6), at(6), true, true);
        assert_eq!(lease.end(), at(12));
        lease.answered(at(11), at(11), true, true);
        assert_eq!(lease.end(), at(16));
        lease.answered(at(13), at(13), true, true);
        assert_eq!(lease.end(), at(18));
    }

    #[test]
    fn a_read_renews_nothing_by_itself_but_counts_for_a_later_sync() {
        let mut lease = restarted(0, 0);
        lease.answered(at(2), at(2), false, false);
        lease.answered(at(9), at(9), false, false);
        assert_eq!(lease.end(), at(12));
        lease.answered(at(10), at(10), true, true);
        assert_eq!(lease.end(), at(14));
    }

    #[test]
    fn a_request_answered_too_recently_does_not_count() {
        let mut lease = restarted(0, 0);
        lease.answered(at(3), at(4), false, false);
        lease.answered(at(10), at(10), true, true);
        assert_eq!(lease.end(), at(12), "the leader may not know of the read yet");
        lease.answered(at(11), at(11), true, true);
        assert_eq!(lease.end(), at(15));
    }

    #[test]
    fn what_is_pledged_is_what_the_answer_will_give() {
        let mut lease = restarted(0, 0);
        lease.answered(at(4), at(5), true, true);
        let gain = at(5).plus(TERMS.settle_time());
        assert_eq!(lease.next_gain(), Some(gain));
        lease.pledge(gain);
        assert_eq!((lease.pledged(), lease.end(), lease.next_gain()), (at(16), at(12), None));
        lease.withdraw_pledges();
        assert_eq!((lease.pledged(), lease.next_gain()), (at(12), Some(gain)));
        lease.pledge(gain);
        lease.answered(gain, at(12), true, true);
        assert_eq!(lease.end(), at(16));
    }

    #[test]
    fn the_answer_to_a_heartbeat_is_there_to_count_whatever_else_was_answered() {
        let mut lease = restarted(0, 0);
        let grain = Duration::from_millis(100);
        for number in 1..40 {
            let now = Moment::ZERO.plus(grain * number);
            lease.answered(now, now, false, number == 20);
        }
        let heartbeat = Moment::ZERO.plus(grain * 20);
        lease.answered(heartbeat.plus(TERMS.settle_time()), at(9), true, true);
        assert_eq!(lease.end(), heartbeat.plus(T));
    }

    #[test]
    fn a_busy_connection_keeps_few_touches_and_a_long_lease() {
        let mut lease = restarted(0, 0);
        let mut now = at(0);
        for _ in 0..100_000 {
            now = now.plus(Duration::from_millis(1));
            lease.answered(now, now, true, false);
            assert!(lease.touches.len() < 40);
            assert!(lease.end() >= now.plus(T * 3 / 8));
            assert!(lease.end() <= at(12).max(now.plus(T / 2)));
        }
    }
}
