//! The lease of a session that moves between servers with different limits, against what the leader has
//! been told last: a session's timeout is the one of the last report, whichever server that is from.

use proptest::prelude::*;

use super::granted::tick_shown;
use super::tests::*;
use super::*;
use crate::link::search::Attempts;

/// All times in milliseconds.
const SETTLE: u64 = 4_500;
const ASKED: u64 = 10_000;

/// What the leader knows of the session.
struct Leader {
    expiry: u64,
    is_over: bool,
}

impl Leader {
    /// A report of the session at that time, with the timeout that its server has granted.
    fn told(&mut self, at: u64, timeout: u64) {
        self.is_over |= at >= self.expiry;
        if !self.is_over {
            self.expiry = at + timeout;
        }
    }
}

/// How an attempt to continue the session at a server went.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// The leader has heard of it, and the answer was lost.
    Lost,
    /// The leader has heard of it only after the next attempt was made; its answer is taken for that to
    /// the next one, of which the leader never hears.
    MixedUp,
}

#[derive(Clone, Debug)]
struct Attempt {
    fate: Fate,
    /// The limits of its server, in milliseconds.
    limits: (u64, u64),
    /// Until it is answered or given up.
    took: u64,
}

/// A time at one server, after the attempts that led there.
#[derive(Clone, Debug)]
struct Stay {
    attempts: Vec<Attempt>,
    length: u64,
    /// When in that time the last report of the server before comes, if it does.
    late_report: Option<u64>,
}

fn at(time: u64) -> Moment {
    Moment::ZERO.plus(Duration::from_millis(time))
}

fn grant(asked: u64, by_server: u64, sent: Moment) -> Granted {
    let [asked, by_server_now] = [asked, by_server].map(Duration::from_millis);
    Granted {
        timeout: by_server_now.min(Duration::from_secs(40)),
        by_server: by_server_now,
        stated: None,
        shown: tick_shown(asked, by_server_now),
        ..granted(sent)
    }
}

/// Lets the client live through these times; returns for how long it trusted its lease after the leader
/// had ended the session.
fn overlap(first: (u64, u64), stays: &[Stay]) -> u64 {
    let mut core = Rig::new();
    let attempts = Attempts::new(drop);
    let mut now = 100_000;
    let mut granted_here = ASKED.clamp(first.0, first.1);
    core.attach(grant(ASKED, granted_here, at(now)), at(now));
    let mut leader = Leader { expiry: now + granted_here, is_over: false };
    let mut lease_end = 0;
    for stay in stays {
        let before = granted_here;
        core.detach(at(now));
        let mut is_mixed_up = None;
        for attempt in &stay.attempts {
            let asked = core.granted().unwrap().timeout.as_millis() as u64;
            let by_server = asked.clamp(attempt.limits.0, attempt.limits.1);
            let (sent, until) = (now, now + attempt.took);
            now = until + 1;
            match (attempt.fate, is_mixed_up.take()) {
                (Fate::Answered, None) => leader.told(sent, by_server),
                (Fate::Answered, Some(())) => {}
                (Fate::Lost, _) => {
                    leader.told(sent, by_server);
                    attempts.note(at(sent), at(until), Duration::from_secs(10));
                    continue;
                }
                (Fate::MixedUp, _) => {
                    leader.told(sent, by_server);
                    attempts.note(at(sent), at(until), Duration::from_secs(10));
                    is_mixed_up = Some(());
                    continue;
                }
            }
            if core.ended().is_some() || leader.is_over {
                break;
            }
            granted_here = by_server;
            let sent = attempts.earliest(at(sent), Duration::from_millis(SETTLE));
            core.attach(grant(asked, by_server, sent), at(until));
        }
        if !core.is_attached() {
            break;
        }
        // The server reports at the last moment that the settle time allows.
        let end = now + stay.length;
        let mut report = now + SETTLE;
        let mut late = stay.late_report.map(|share| now + stay.length / 1000 * share);
        let mut is_touched = true;
        while now < end && core.ended().is_none() {
            for seen in sent(&mut core) {
                is_touched = true;
                if seen.operation == op::SYNC {
                    answer(&mut core, seen.xid, 5, 0, &text("/"), at(now)).unwrap();
                }
            }
            lease_end = core.lease_end().as_nanos() / 1_000_000;
            now += 10;
            core.tick(at(now)).unwrap();
            if late.is_some_and(|late| late <= now) {
                leader.told(now, before);
                late = None;
            }
            if report <= now {
                if is_touched {
                    leader.told(now, granted_here);
                }
                (is_touched, report) = (false, now + SETTLE);
            }
        }
        told(&mut core);
        core.take_notices();
        if core.ended().is_some() {
            break;
        }
    }
    if core.ended().is_none() {
        lease_end = core.lease_end().as_nanos() / 1_000_000;
    }
    lease_end.saturating_sub(leader.expiry)
}

/// Servers of which all grant what the client asks for first, or some only more, or also less.
fn limits(least: u64, most: u64) -> impl Strategy<Value = (u64, u64)> {
    let minimum = prop_oneof![2 => Just(1_000), 2 => 1_000..=least];
    let maximum = prop_oneof![1 => Just(60_000), 2 => most..=60_000];
    (minimum, maximum).prop_map(|(least, most)| (least, most.max(least)))
}

/// An answer is lost, or mixed up, only of servers that grant all that other servers do.
fn stays(least: u64, most: u64) -> impl Strategy<Value = Vec<Stay>> {
    let lost = (prop_oneof![Just(Fate::Lost), Just(Fate::MixedUp)], 5u64..1_500)
        .prop_map(|(fate, took)| Attempt { fate, limits: (1_000, 60_000), took });
    let answered = (limits(least, most), 5u64..1_500).prop_map(|(limits, took)| Attempt {
        fate: Fate::Answered,
        limits,
        took,
    });
    let attempts = (prop::collection::vec(lost, 0..3), answered)
        .prop_map(|(lost, answered)| lost.into_iter().chain([answered]).collect());
    let stay = (attempts, 100u64..20_000, prop::option::of(0u64..1000));
    let stay =
        stay.prop_map(|(attempts, length, late_report)| Stay { attempts, length, late_report });
    prop::collection::vec(stay, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_session_that_moves_is_never_trusted_longer_than_the_least_that_a_server_granted(
        first in limits(20_000, 9_000),
        stays in stays(40_000, 9_000),
    ) {
        prop_assert_eq!(overlap(first, &stays), 0, "milliseconds for which two could hold");
    }
}

/// The set-up in which two clients held for 14 s: a server has a higher minimum than the others, and the
/// last report of the one before comes late.
#[test]
fn a_late_report_of_the_server_before_shortens_no_session_that_the_lease_relies_on() {
    let higher = Attempt { fate: Fate::Answered, limits: (20_000, 60_000), took: 5 };
    for late in 0..10 {
        let late_report = Some(late * 100);
        let stay = Stay { attempts: vec![higher.clone()], length: 4_400, late_report };
        assert_eq!(overlap((1_000, 60_000), &[stay]), 0, "{late}");
    }
}
