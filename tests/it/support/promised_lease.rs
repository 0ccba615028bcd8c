//! What the library promises of the lease, in numbers: tests choose their faults by it, and check
//! that nothing is lost in those that the lease must survive.

use std::time::Duration;

use zklock::ClientBuilder;

/// A session whose lease is promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromisedLease {
    pub(crate) timeout: Duration,
    /// The servers' `tickTime`, if the client was told.
    pub(crate) tick: Option<Duration>,
    pub(crate) round_trip: Duration,
}

impl PromisedLease {
    pub(crate) fn new(timeout: Duration, tick: Option<Duration>) -> PromisedLease {
        PromisedLease { timeout, tick, round_trip: Duration::from_millis(2) }
    }

    /// How long the leader may take to learn of a request that was answered.
    pub(crate) fn settle_time(self) -> Duration {
        /// ZooKeeper's own default.
        const USUAL_TICK: Duration = Duration::from_secs(3);
        let tick = self.tick.unwrap_or(USUAL_TICK.min(self.timeout / 2));
        let some = self.timeout / 32;
        (tick + some).max((tick * 3 / 2).min(self.timeout / 2 + some))
    }

    /// The pause between two heartbeats, and how much of the lease is left at any moment without a
    /// fault, for idle and for busy clients.
    fn rhythm(self) -> (Duration, Duration) {
        let PromisedLease { timeout, round_trip, .. } = self;
        let left = |intervals: u32| {
            let interval = (timeout / 9).max((self.settle_time() + round_trip) / intervals);
            let used = interval * (intervals + 1) + round_trip;
            (timeout.saturating_sub(used), interval)
        };
        let (left, interval) = (1..=9).map(left).max().unwrap_or_default();
        (interval, left)
    }

    pub(crate) fn heartbeat_interval(self) -> Duration {
        self.rhythm().0
    }

    /// The longest outage that surely costs nothing, with the time to connect again.
    pub(crate) fn least_left(self) -> Duration {
        self.rhythm().1
    }

    /// How much is left at any moment after a server that answered nothing for `pause` is back.
    ///
    /// What was sent before the pause counts until the settle time after it.
    pub(crate) fn least_left_after(self, pause: Duration) -> Duration {
        let used = pause + self.settle_time() + self.heartbeat_interval() + self.round_trip * 2;
        self.timeout.saturating_sub(used).min(self.least_left())
    }

    /// The settings of a client with this lease.
    pub(crate) fn set(self, builder: ClientBuilder) -> ClientBuilder {
        let builder = builder.session_timeout(self.timeout);
        match self.tick {
            Some(tick) => builder.tick_time(tick),
            None => builder,
        }
    }
}

#[test]
fn the_promised_lease_is_that_of_the_documentation() {
    let left = |timeout, tick: Option<u64>| {
        let lease = PromisedLease {
            round_trip: Duration::ZERO,
            ..PromisedLease::new(Duration::from_secs(timeout), tick.map(Duration::from_secs))
        };
        lease.least_left().as_millis()
    };
    assert_eq!([left(4, None), left(10, None), left(30, None)], [1343, 4375, 21_000]);
    assert_eq!([left(10, Some(2)), left(30, Some(2))], [5555, 23_333]);
    let paused = PromisedLease::new(Duration::from_secs(30), None);
    assert!(paused.least_left_after(Duration::from_millis(9300)) >= Duration::from_secs(11));
}
