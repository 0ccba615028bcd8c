//! When heartbeats are sent: on a grid of their own, which no traffic puts off; one more when it can
//! close a gap that a silence has left; and again soon when one was refused.

use std::time::Duration;

use super::lease::{Lease, Terms};
use crate::rt::Moment;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Heartbeats {
    /// When the next one is due, in ordinary times.
    next: Moment,
    /// When to ask again because the last one was refused.
    again: Option<Moment>,
    /// How long answers take; more for a while after one that took longer, so that others may, too.
    round_trip: Duration,
    interval: Duration,
    /// For how long the lease has to last from when the next one is due.
    to_last: Duration,
}

impl Heartbeats {
    /// Begins anew with a connection that was asked for at that time.
    pub(super) fn restart(&mut self, terms: Terms, sent: Moment, now: Moment) {
        self.again = None;
        self.round_trip = Duration::ZERO;
        // A server that was slow once, as after a pause, is not far away.
        self.pace(terms, now.since(sent).min(terms.timeout / 9));
        self.next = sent.plus(self.interval);
    }

    /// Notes how long the answer to a heartbeat took.
    pub(super) fn pace(&mut self, terms: Terms, round_trip: Duration) {
        let jittered = (self.round_trip / 8 * 7).min(round_trip + terms.timeout / 64);
        self.round_trip = round_trip.max(jittered);
        self.interval = terms.heartbeat_interval(self.round_trip);
        // Less by a margin, so that small delays cause no further heartbeats.
        let least = self.round_trip + terms.least_left(self.round_trip);
        self.to_last = least.saturating_sub(terms.margin());
    }

    pub(super) fn due(&self, lease: &Lease) -> Moment {
        match (self.again, lease.next_gain()) {
            // What it could gain it could have gained by the one that was refused.
            (Some(again), _) => again.min(self.next),
            // Without one more, the lease would run down after a silence.
            (None, Some(gain)) if gain < self.next && self.falls_short(lease) => gain,
            _ => self.next,
        }
    }

    /// Whether the lease would have less left than it has in ordinary times when the answer to the next
    /// heartbeat comes.
    fn falls_short(&self, lease: &Lease) -> bool {
        lease.pledged() < self.next.plus(self.to_last)
    }

    pub(super) fn sent(&mut self, now: Moment) {
        self.again = None;
        // One that is sent shortly before the next one is due stands for it.
        if self.next <= now.plus(self.interval / 4) {
            let is_late = self.next.plus(self.interval / 16) < now;
            let from = if is_late { now } else { self.next };
            self.next = from.plus(self.interval);
        }
    }

    /// The answer was not the leader's: asks again soon, the sooner the less is left of the lease. Each
    /// client takes another pause, by `chance`, so that an overloaded server is not asked by all at once.
    pub(super) fn refused(&mut self, lease: &Lease, now: Moment, chance: u32) {
        let pause = (lease.end().since(now) / 40).max(lease.terms().timeout / 180);
        let jittered = pause / 2 + pause / 256 * (chance % 256);
        self.again = Some(now.plus(jittered));
    }
}
