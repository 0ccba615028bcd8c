//! What a server has granted, and what that shows of the servers' settings.

use std::cmp::Ordering;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use log::Level;

use super::lease::Terms;
use crate::link::log_thread::write_soon;
use crate::rt::{AtomicBool, Moment};

/// The `tickTime` that is reckoned with if none is stated: ZooKeeper's own default.
pub(crate) const USUAL_TICK: Duration = Duration::from_secs(3);

/// What a successful handshake gave.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
    /// The session timeout that the link uses.
    pub(crate) timeout: Duration,
    /// The session timeout that the server granted, which may be longer.
    pub(crate) by_server: Duration,
    /// The servers' tick, if it is stated.
    pub(crate) stated: Option<Duration>,
    /// The longest tick that a grant has shown: see [`tick_shown`].
    pub(crate) shown: Duration,
    pub(crate) server: SocketAddr,
    /// When the connect request was sent, or an earlier one that this may be the answer to.
    pub(crate) sent: Moment,
}

impl Granted {
    /// What the lease is reckoned with. By default, servers grant at least two ticks; with a longer tick,
    /// a lease that is the ensemble's own limit could never be renewed.
    pub(crate) fn terms(&self) -> Terms {
        let most = self.timeout / 2;
        let expected = self.stated.unwrap_or(USUAL_TICK.min(most));
        Terms { timeout: self.timeout, tick: expected.max(self.shown.min(most)) }
    }

    /// As if no more had been granted: the leader may have been told of less, or may still be.
    pub(crate) fn at_most(self, least: Duration) -> Granted {
        let (timeout, by_server) = (self.timeout.min(least), self.by_server.min(least));
        Granted { timeout, by_server, ..self }
    }

    /// What holds after the session has been granted anew. The leader takes the last report of its
    /// timeout, whichever server that is from, so the least counts.
    pub(crate) fn since(self, before: &Granted) -> Granted {
        Granted {
            timeout: self.timeout.min(before.timeout),
            by_server: self.by_server.min(before.by_server),
            shown: self.shown.max(before.shown),
            ..self
        }
    }
}

/// The tick that a grant of another session timeout than was asked for shows: a server that grants more
/// has a minimum, by default two ticks; one that grants less has a maximum, by default twenty.
pub(crate) fn tick_shown(asked: Duration, by_server: Duration) -> Duration {
    // A server is asked for whole milliseconds.
    match by_server.as_millis().cmp(&asked.as_millis()) {
        Ordering::Greater => by_server / 2,
        Ordering::Less => by_server / 20,
        Ordering::Equal => Duration::ZERO,
    }
}

/// Logs what may make the lease too long, or shorter than it need be, each once in a process.
///
/// `granted` is what counts for the session now, `by_server` what the server has granted this time and
/// `before` the time before, `asked` what the program asks for.
pub(crate) fn warn_of_granted(
    granted: &Granted,
    (before, by_server): (Option<Duration>, Duration),
    asked: Duration,
) {
    static LOGGED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    let warnings = [
        short_timeout(granted.timeout).filter(|_| before.is_none() && granted.stated.is_none()),
        longer_ticks(granted.terms().tick, granted.stated.unwrap_or(USUAL_TICK), asked),
        before.and_then(|before| unequal_grants(before, by_server)),
    ];
    for (warning, logged) in warnings.into_iter().zip(&LOGGED) {
        if let Some(warning) = warning.filter(|_| !logged.swap(true, Relaxed)) {
            write_soon(Level::Warn, format_args!("{warning}"));
        }
    }
}

fn short_timeout(timeout: Duration) -> Option<String> {
    /// That of the example in ZooKeeper's documentation, which most ensembles have.
    const TICK_OF_MOST: Duration = Duration::from_secs(2);
    let longest_tick = timeout / 2;
    (longest_tick < TICK_OF_MOST).then(|| {
        format!(
            "the session timeout is {timeout:?}: make sure that the servers' tickTime is at most \
             {longest_tick:?} (it is {TICK_OF_MOST:?} in most ensembles), otherwise a lock may be \
             reported as held after the ensemble has passed it on"
        )
    })
}

fn longer_ticks(tick: Duration, expected: Duration, asked: Duration) -> Option<String> {
    (tick > expected).then(|| {
        format!(
            "a server has not granted the session timeout of {asked:?}, so its tickTime may be {tick:?}, \
             and locks survive shorter outages: ask for a session timeout that every server grants"
        )
    })
}

fn unequal_grants(before: Duration, now: Duration) -> Option<String> {
    (before != now).then(|| {
        format!(
            "servers have granted the same session timeouts of {before:?} and of {now:?}; the shorter \
             one counts. Give all servers the same tickTime, minSessionTimeout and maxSessionTimeout, or \
             ask for a session timeout that all of them grant: otherwise a lock may be reported as held \
             after the ensemble has passed it on"
        )
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// A session of 12 s whose servers have ticks of 6 s.
    pub(crate) fn granted_at(sent: Moment) -> Granted {
        let timeout = Duration::from_secs(12);
        Granted {
            session: 0x77,
            password: vec![9; 16],
            timeout,
            by_server: timeout,
            stated: Some(timeout / 2),
            shown: Duration::ZERO,
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, 2181)),
            sent,
        }
    }

    /// In seconds: the tick that is stated, session timeout that is asked for, granted; the tick to reckon
    /// with.
    #[test]
    fn a_grant_can_only_show_that_ticks_are_longer() {
        for (stated, asked, by_server, tick) in [
            (None, 10, 10, 3.0),
            (None, 4, 4, 2.0),
            (Some(1), 10, 10, 1.0),
            (Some(8), 10, 10, 8.0),
            // Less than a minimum.
            (None, 4, 20, 10.0),
            (Some(1), 4, 20, 10.0),
            (Some(12), 4, 20, 12.0),
            // More than a maximum.
            (None, 200, 40, 3.0),
            (None, 200, 120, 6.0),
            (Some(1), 60, 20, 1.0),
        ] {
            let seconds = Duration::from_secs;
            let (asked, timeout) = (seconds(asked), seconds(by_server));
            let (stated, shown) = (stated.map(seconds), tick_shown(asked, timeout));
            let granted =
                Granted { timeout, by_server: timeout, stated, shown, ..granted_at(Moment::ZERO) };
            let found = granted.terms().tick.as_secs_f64();
            assert!((found - tick).abs() < 1e-9, "{stated:?} {asked:?} {timeout:?}: {found}");
        }
    }

    #[test]
    fn the_least_grant_and_the_longest_tick_count() {
        let seconds = Duration::from_secs;
        let grant = |timeout: u64, shown: u64| Granted {
            timeout: seconds(timeout),
            by_server: seconds(timeout),
            shown: seconds(shown),
            ..granted_at(Moment::ZERO)
        };
        for (before, now) in [(grant(4, 2), grant(20, 10)), (grant(20, 10), grant(4, 0))] {
            let granted = now.since(&before);
            assert_eq!((granted.timeout, granted.by_server), (seconds(4), seconds(4)));
            assert_eq!(granted.shown, seconds(10));
            assert_eq!(granted.terms().tick, seconds(6), "as it was stated");
        }
    }

    #[test]
    fn no_more_counts_than_what_the_leader_may_be_told() {
        let seconds = Duration::from_secs;
        for (least, counts) in [(4, 4), (20, 12)] {
            let granted = granted_at(Moment::ZERO).at_most(seconds(least));
            assert_eq!((granted.timeout, granted.by_server), (seconds(counts), seconds(counts)));
        }
    }

    #[test]
    fn what_may_harm_a_lease_is_warned_of() {
        let seconds = Duration::from_secs;
        assert_eq!(short_timeout(seconds(4)), None);
        let warning = short_timeout(seconds(3)).unwrap();
        assert!(warning.contains("tickTime is at most 1.5s"), "{warning}");
        assert_eq!(longer_ticks(seconds(3), seconds(3), seconds(10)), None);
        let warning = longer_ticks(seconds(10), seconds(3), seconds(4)).unwrap();
        assert!(
            warning.contains("the session timeout of 4s, so its tickTime may be 10s"),
            "{warning}"
        );
        assert_eq!(unequal_grants(seconds(4), seconds(4)), None);
        let warning = unequal_grants(seconds(4), seconds(20)).unwrap();
        assert!(warning.contains("timeouts of 4s and of 20s; the shorter one counts"), "{warning}");
    }
}
