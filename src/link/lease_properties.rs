//! The lease against a model of what the leader knows: the client's server learns of a request,
//! and passes that on in its answer to the next ping, hop by hop; the leader rounds the end of a
//! session up to whole ticks.

use proptest::prelude::*;

use super::tests::*;
use super::*;

/// All times in nanoseconds.
const START: u64 = 100_000_000_000;

/// The way from the client's server to the leader: one hop from a follower, two from an observer
/// that has its updates from an observer master.
#[derive(Clone, Debug)]
struct Ensemble {
    tick: u64,
    timeout: u64,
    /// How long bytes are on their way from one machine to the next.
    way: u64,
    /// When each hop has its pings, which come every half tick.
    pings: Vec<u64>,
    /// When the leader's ticks begin.
    bucket: u64,
    /// At this moment, this hop stops carrying anything.
    cut: (u64, usize),
}

/// Requests: the pause before each, and whether it is a write.
type Traffic = Vec<(u64, bool)>;

/// What came of a client's life.
struct Outcome {
    /// Until when the client trusted its lease.
    lease_end: u64,
    /// When the leader ends the session.
    expiry: u64,
    /// The least that was left of the lease before the cut.
    reach: u64,
    heartbeats: usize,
    /// When answers of the leader have passed the hop that is to be cut.
    passed: Vec<u64>,
}

impl Ensemble {
    fn hops(&self) -> u64 {
        self.pings.len() as u64
    }

    /// How long a request is on its way to the leader.
    fn up(&self) -> u64 {
        self.way * (1 + self.hops())
    }

    /// When the leader's answer to a request sent at `sent` has passed the hop that is cut.
    fn back_across_the_cut(&self, sent: u64) -> u64 {
        sent + self.up() + self.way * (self.hops() - self.cut.1 as u64)
    }

    /// When that answer arrives, if it does.
    fn answer_by_leader(&self, sent: u64) -> Option<u64> {
        (self.back_across_the_cut(sent) <= self.cut.0).then_some(sent + 2 * self.up())
    }

    /// When the leader learns of a request that reached the client's server at `at`, if it does.
    fn known_to_leader(&self, mut at: u64) -> Option<u64> {
        let (cut, cut_hop) = self.cut;
        for (hop, phase) in self.pings.iter().enumerate() {
            let every = self.tick / 2;
            at = phase + (at - phase).div_ceil(every) * every + self.way;
            if hop == cut_hop && at > cut {
                return None;
            }
        }
        Some(at)
    }

    fn expiry(&self, known: u64) -> u64 {
        let end = known + self.timeout;
        self.bucket + ((end - self.bucket) / self.tick + 1) * self.tick
    }

    /// A client's life until its lease ends.
    fn outlast(&self, traffic: &Traffic) -> Outcome {
        let moment = Moment::from_nanos;
        let timeout = Duration::from_nanos(self.timeout);
        let mut core = Rig::new();
        let mut now = START + 2 * self.up();
        core.attach(Granted { timeout, ..granted(moment(START)) }, moment(now));
        // The request to connect goes through the leader.
        let mut known = START + self.up();
        let mut answers: VecDeque<(u64, Seen)> = VecDeque::new();
        let (mut is_silent, mut last_answer) = (false, now);
        let (mut lease_end, mut reach, mut heartbeats) = (0, u64::MAX, 0);
        let mut passed = Vec::new();
        let mut traffic = traffic.iter().cycle().peekable();
        let mut next_call = traffic.peek().map_or(u64::MAX, |(pause, _)| now + pause);
        loop {
            for seen in sent(&mut core) {
                heartbeats += usize::from(seen.operation == op::SYNC && now < self.cut.0);
                let touched = self.known_to_leader(now + self.way);
                known = known.max(touched.unwrap_or_default());
                let answer = match seen.operation {
                    op::EXISTS => Some(now + 2 * self.way),
                    _ => {
                        passed.push(self.back_across_the_cut(now));
                        self.answer_by_leader(now)
                    }
                };
                is_silent |= answer.is_none();
                if let Some(at) = answer
                    && !is_silent
                {
                    last_answer = last_answer.max(at);
                    answers.push_back((last_answer, seen));
                }
            }
            let end = core.lease_end().as_nanos();
            if end == 0 {
                return Outcome {
                    lease_end,
                    expiry: self.expiry(known),
                    reach,
                    heartbeats,
                    passed,
                };
            }
            lease_end = lease_end.max(end);
            let answer = answers.front().map_or(u64::MAX, |(at, _)| *at);
            let then = core.next_tick().as_nanos().min(answer).min(next_call).max(now);
            if then < self.cut.0 {
                reach = reach.min(end.saturating_sub(then));
            }
            now = then;
            if now == answer
                && let Some((_, seen)) = answers.pop_front()
            {
                let body = match seen.operation {
                    op::SYNC => text("/"),
                    op::EXISTS => vec![0; 68],
                    _ => Vec::new(),
                };
                tests::answer(&mut core, seen.xid, 5, 0, &body, moment(now)).unwrap();
            } else if now == next_call
                && let Some((_, is_write)) = traffic.next()
            {
                next_call = traffic.peek().map_or(u64::MAX, |(pause, _)| now + pause);
                let operation = if *is_write { op::DELETE } else { op::EXISTS };
                core.verb(operation, &text("/a"), Box::new(drop), moment(now));
            } else if core.tick(moment(now)).is_err() {
                core.detach(moment(now));
                answers.clear();
                next_call = u64::MAX;
            }
            told(&mut core);
        }
    }
}

/// `fraction` of a whole, in thousandths.
fn of(whole: u64, fraction: u64) -> u64 {
    whole / 1000 * fraction
}

fn ensembles() -> impl Strategy<Value = Ensemble> {
    let half = 0u64..1000;
    // In thousandths, beyond the shortest session timeout for that many hops.
    let more = prop_oneof![3 => Just(0u64), 1 => 0u64..4000];
    let shape = (more, 1usize..=2, half.clone(), half.clone(), 0u64..5);
    let harm = (0u64..1000, 2000u64..4000, any::<bool>());
    (shape, harm).prop_map(|((more, hops, first, second, way), (bucket, cut, upper))| {
        let tick = 2_000_000_000;
        let timeout = of(tick, 1000 * hops as u64 + more);
        let pings = [first, second].map(|phase| of(tick / 2, phase));
        Ensemble {
            tick,
            timeout,
            way: of(timeout, way),
            pings: pings[..hops].to_vec(),
            bucket: of(tick, bucket),
            cut: (START + of(timeout, cut), if upper { hops - 1 } else { 0 }),
        }
    })
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let call = (10_000_000u64..2_000_000_000, any::<bool>());
    prop_oneof![1 => Just(Vec::new()), 1 => prop::collection::vec(call, 1..6)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_lease_ends_before_the_leader_ends_the_session_at_two_ticks_over_an_observer_master_too(
        ensemble in ensembles(),
        traffic in traffic(),
    ) {
        let outcome = ensemble.outlast(&traffic);
        let late = outcome.lease_end.saturating_sub(outcome.expiry);
        prop_assert_eq!(late, 0, "nanoseconds for which a lost lock was reported as held");
        // The client learns nothing more after the last answer that passes the cut, so the cut may
        // as well come just behind it.
        let passed = outcome.passed.iter().rev().find(|at| **at <= ensemble.cut.0);
        let cut = (*passed.unwrap_or(&ensemble.cut.0), ensemble.cut.1);
        let outcome = Ensemble { cut, ..ensemble }.outlast(&traffic);
        let late = outcome.lease_end.saturating_sub(outcome.expiry);
        prop_assert_eq!(late, 0, "the same, cut just behind an answer");
    }

    /// How long an outage may last without the loss of a lock, less the time to reach another
    /// server.
    #[test]
    fn a_lease_has_a_fifth_of_the_session_timeout_left_whatever_is_asked(
        traffic in traffic(),
    ) {
        let outcome = near(4).outlast(&traffic);
        prop_assert!(outcome.reach >= near(4).timeout / 5, "{}", outcome.reach);
    }
}

/// An ensemble with a follower beside the client, and a cut after `timeouts` session timeouts.
fn near(timeouts: u64) -> Ensemble {
    let timeout = 9_000_000_000;
    let cut = (START + timeouts * timeout - 1, 0);
    Ensemble { tick: 2_000_000_000, timeout, way: 0, pings: vec![0], bucket: 0, cut }
}

#[test]
fn an_idle_holder_s_lease_has_a_third_of_the_session_timeout_left_for_nine_heartbeats() {
    let outcome = near(20).outlast(&Vec::new());
    assert_eq!(outcome.reach, near(20).timeout / 3);
    assert_eq!(outcome.heartbeats, 20 * 9 - 1);
}
