//! Which faults happen, in which order. A seed decides, so that a plan can be repeated.

use std::time::Duration;

use super::rng::Rng;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    KillLeader,
    KillFollower,
    KillAll,
    Rolling,
    StopLeader,
    StopFollower,
    IsolateLeader,
    IsolateFollower,
    Mute,
    Unplug,
    PauseWorker,
    FreezeWorker,
    KillWorker,
    Cut,
    BlackHole,
    BlackHoleThenCut,
    Delay,
    LoseCreateReply,
    LoseDeleteReply,
    LoseWriteReply,
    LoseRequest,
    CloseSession,
    DeleteHolder,
    DeleteWaiter,
    SlowOpening,
    SlowReopening,
    BriefStop,
    Throttle,
    StallLink,
    StallThenMove,
    MoveFront,
}

/// What a fault harms. Faults of one round are of different groups. Faults on data come alone: they
/// need servers that answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Servers,
    Workers,
    Connections,
    Data,
}

/// What a fault needs to be possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Ensemble,
    Namespaces,
}

type Entry = (Kind, &'static str, Group, Needs, u64, u64);

/// Each kind with its name, its group, what it needs, and its shortest and longest duration: in
/// milliseconds, or in thousandths of the session timeout if that [decides](Kind::has_times_of_a_session).
const KINDS: [Entry; 31] = {
    use Group::*;
    use Kind::*;
    use Needs::*;
    [
        (KillLeader, "kill-leader", Servers, Nothing, 100, 2500),
        (KillFollower, "kill-follower", Servers, Ensemble, 100, 2500),
        (KillAll, "kill-all", Servers, Ensemble, 0, 1500),
        (Rolling, "rolling-restart", Servers, Ensemble, 0, 500),
        (StopLeader, "stop-leader", Servers, Nothing, 100, 3500),
        (StopFollower, "stop-follower", Servers, Ensemble, 100, 3500),
        (IsolateLeader, "isolate-leader", Servers, Ensemble, 500, 5000),
        (IsolateFollower, "isolate-follower", Servers, Ensemble, 500, 5000),
        (Mute, "mute-server", Servers, Namespaces, 500, 4000),
        (Unplug, "unplug-server", Servers, Namespaces, 300, 4000),
        (PauseWorker, "pause-worker", Workers, Nothing, 50, 1200),
        (FreezeWorker, "freeze-worker", Workers, Nothing, 2300, 4500),
        (KillWorker, "kill-worker", Workers, Nothing, 0, 1500),
        (Cut, "cut", Connections, Nothing, 0, 600),
        (BlackHole, "black-hole", Connections, Nothing, 200, 4000),
        (BlackHoleThenCut, "black-hole-then-cut", Connections, Nothing, 200, 2500),
        (Delay, "delay", Connections, Nothing, 500, 3000),
        (LoseCreateReply, "lose-create-reply", Connections, Nothing, 500, 1500),
        (LoseDeleteReply, "lose-delete-reply", Connections, Nothing, 500, 1500),
        (LoseWriteReply, "lose-write-reply", Connections, Nothing, 500, 1500),
        (LoseRequest, "lose-request", Connections, Nothing, 500, 1500),
        (CloseSession, "close-session", Data, Nothing, 0, 500),
        (DeleteHolder, "delete-holder", Data, Nothing, 0, 300),
        (DeleteWaiter, "delete-waiter", Data, Nothing, 0, 300),
        (SlowOpening, "slow-opening", Workers, Nothing, 300, 600),
        (SlowReopening, "slow-reopening", Connections, Nothing, 300, 600),
        (BriefStop, "brief-stop", Servers, Nothing, 250, 315),
        (Throttle, "throttle", Connections, Nothing, 500, 2000),
        (StallLink, "stall-link", Servers, Ensemble, 300, 750),
        // Longer than a client waits for an answer before it gives its connection up, and not as long
        // as a session lives on without its client.
        (StallThenMove, "stall-then-move", Servers, Ensemble, 450, 750),
        (MoveFront, "move-front", Connections, Ensemble, 0, 300),
    ]
};

impl Kind {
    fn entry(self) -> &'static Entry {
        KINDS.iter().find(|entry| entry.0 == self).expect("all kinds are listed")
    }

    pub(crate) fn name(self) -> &'static str {
        self.entry().1
    }

    /// Whether a fault of this kind alone must cost no lock and no session, if the lease had time to
    /// recover from the one before.
    pub(crate) fn costs_nothing(self) -> bool {
        use Kind::*;
        matches!(self, SlowOpening | SlowReopening | BriefStop | Throttle)
    }

    /// Whether requests of a connection that was given up may be carried out late.
    fn is_late(self) -> bool {
        matches!(self, Kind::StallLink | Kind::StallThenMove | Kind::MoveFront)
    }

    fn has_times_of_a_session(self) -> bool {
        self.costs_nothing() || matches!(self, Kind::StallLink | Kind::StallThenMove)
    }

    pub(crate) fn named(name: &str) -> Option<Kind> {
        KINDS.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
    }
}

/// A planned fault. The server or worker that it harms is chosen when it happens.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) length: Duration,
    pub(crate) node: usize,
    pub(crate) worker: usize,
    pub(crate) count: usize,
    pub(crate) choice: u64,
}

impl Fault {
    /// Whether a worker is told beforehand to hold its next lock for longer. Otherwise locks change
    /// hands so fast that few are held for long enough to be lost.
    pub(crate) fn surprises_a_holder(&self) -> bool {
        self.kind.entry().2 != Group::Data && self.choice & 0x300 != 0
    }
}

/// Faults that happen at once, and the quiet time after them.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) faults: Vec<Fault>,
    pub(crate) quiet: Duration,
}

/// An endless plan.
#[derive(Debug)]
pub(crate) struct Plan {
    rng: Rng,
    possible: Vec<Kind>,
    /// Kinds still to come: each possible kind comes once before any comes again.
    bag: Vec<Kind>,
    timeout: Duration,
    /// Between faults that come one at a time: from and to, in thousandths of the session timeout.
    quiet: Option<(u64, u64)>,
}

impl Plan {
    /// All faults. `timeout`: the least session timeout that a server grants.
    pub(crate) fn new(seed: u64, nodes: usize, namespaces: bool, timeout: Duration) -> Plan {
        let possible = |entry: &&Entry| match entry.3 {
            Needs::Nothing => true,
            Needs::Ensemble => nodes > 1,
            Needs::Namespaces => namespaces && nodes > 1,
        };
        let possible = KINDS.iter().filter(possible).map(|entry| entry.0).collect();
        Plan { rng: Rng::new(seed), possible, bag: Vec::new(), timeout, quiet: None }
    }

    /// Only faults that must cost nothing.
    pub(crate) fn mild(seed: u64, timeout: Duration) -> Plan {
        let mut plan = Plan::new(seed, 1, false, timeout);
        plan.possible.retain(|kind| kind.costs_nothing());
        // The lease recovers from one fault before the next one.
        plan.quiet = Some((650, 1000));
        plan
    }

    /// Only faults by which requests come late.
    pub(crate) fn late(seed: u64, nodes: usize, timeout: Duration) -> Plan {
        let mut plan = Plan::new(seed, nodes, false, timeout);
        plan.possible.retain(|kind| kind.is_late());
        // Long enough to see whether a lock stays free that threads wait for.
        plan.quiet = Some((3000, 4000));
        plan
    }

    /// So many thousandths of the session timeout.
    fn share(&mut self, least: u64, most: u64) -> Duration {
        self.timeout.mul_f64(self.rng.milliseconds(least, most).as_secs_f64())
    }

    fn draw(&mut self, fits: impl Fn(Group) -> bool) -> Option<Fault> {
        if self.bag.is_empty() {
            self.bag.clone_from(&self.possible);
            self.rng.shuffle(&mut self.bag);
        }
        let at = self.bag.iter().rposition(|kind| fits(kind.entry().2))?;
        let kind = self.bag.remove(at);
        let (.., shortest, longest) = *kind.entry();
        let length = match kind.has_times_of_a_session() {
            true => self.share(shortest, longest),
            false => self.rng.milliseconds(shortest, longest),
        };
        Some(Fault {
            kind,
            length,
            node: self.rng.below(1000) as usize,
            worker: self.rng.below(1000) as usize,
            count: 1 + self.rng.below(4) as usize,
            choice: self.rng.next(),
        })
    }
}

impl Iterator for Plan {
    type Item = Round;

    fn next(&mut self) -> Option<Round> {
        let first = self.draw(|_| true)?;
        if let Some((least, most)) = self.quiet {
            return Some(Round { faults: vec![first], quiet: self.share(least, most) });
        }
        let group = first.kind.entry().2;
        let mut faults = vec![first];
        if group != Group::Data && self.rng.per_mille(300) {
            faults.extend(self.draw(|other| other != group && other != Group::Data));
        }
        // Some quiet times are long enough to show that nothing is stuck.
        let quiet = match self.rng.per_mille(150) {
            true => self.rng.milliseconds(6000, 9000),
            false => self.rng.milliseconds(800, 3000),
        };
        Some(Round { faults, quiet })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(10);

    fn kinds(plan: Plan, count: usize) -> Vec<Kind> {
        plan.flat_map(|round| round.faults).take(count).map(|fault| fault.kind).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_plan() {
        let text = |seed| format!("{:?}", Plan::new(seed, 3, true, T).take(50).collect::<Vec<_>>());
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn all_kinds_come_and_only_those_that_are_possible() {
        let all = kinds(Plan::new(1, 3, true, T), KINDS.len());
        assert!(KINDS.iter().all(|entry| all.contains(&entry.0)));
        let single = kinds(Plan::new(1, 1, true, T), 200);
        assert!(!single.contains(&Kind::KillFollower) && !single.contains(&Kind::Unplug));
        assert!(single.contains(&Kind::KillLeader));
        assert!(!kinds(Plan::new(1, 3, false, T), 200).contains(&Kind::Mute));
        assert!(kinds(Plan::mild(1, T), 200).into_iter().all(Kind::costs_nothing));
        assert!(kinds(Plan::late(1, 3, T), 200).into_iter().all(Kind::is_late));
    }

    #[test]
    fn mild_faults_come_alone_and_have_times_of_the_session_timeout() {
        for round in Plan::mild(3, T).take(100) {
            let [fault] = &round.faults[..] else { panic!("{round:?}") };
            assert!(round.quiet >= T * 65 / 100);
            if fault.kind == Kind::BriefStop {
                assert!((T / 4..T / 3).contains(&fault.length), "{fault:?}");
            }
        }
    }
}
