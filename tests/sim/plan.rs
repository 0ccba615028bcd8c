//! The plan of a trial, all drawn from its seed: clients, threads, habits, faults.

use std::time::Duration;

use super::world::{Habits, Operation, RequestStage, Trap};
use crate::NodeNaming;
use crate::acl::{Acl, Permissions};
use crate::rt::schedule::{Process, Schedule};

/// A request limit in bytes that only the contenders of the first process exceed.
const LARGEST: usize = 70_000;

/// The kind of lock that a trial uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    Mutex,
    ReadWrite,
    Semaphore {
        permits: u32,
        /// Whether one contender assumes one permit more.
        disagreed: bool,
    },
    Multi {
        nodes: usize,
    },
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) recipe: Recipe,
    pub(super) naming: NodeNaming,
    pub(super) habits: Habits,
    /// The longest time that a thread takes to go on.
    pub(super) lag: Duration,
    /// How many threads each process has.
    pub(super) threads: Vec<usize>,
    pub(super) rounds: usize,
    /// The longest pause of a thread, with or without a lock.
    pub(super) hold: Duration,
    pub(super) faults: Vec<(Duration, PlannedFault)>,
    /// When the last fault is over.
    pub(super) calm: Duration,
    /// The first sequence number at the lock node.
    pub(super) first_number: i32,
    /// Whether no client may read the contenders of the first process.
    pub(super) hidden: bool,
    /// When contenders are asked to release, and which.
    pub(super) asks: Vec<(Duration, Ask)>,
    /// Which process's client observes the lock.
    pub(super) observer: Option<Process>,
    /// How the threads of a process share a node, if they do.
    pub(super) sharing: Option<Sharing>,
    /// For how long a lock may be held.
    pub(super) hold_at_most: Option<Duration>,
}

/// How a process's threads that want a mutex share a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharing {
    pub(super) turns: u32,
    pub(super) time: Duration,
    pub(super) keep: Option<Duration>,
}

/// A request to release, sent by the client of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) process: Process,
    pub(super) of: Whom,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Whom {
    Holders,
    /// Any one contender.
    One,
    /// Any one contender, asked by a client of another kind.
    OneByPeer,
}

#[derive(Clone, Debug)]
pub(super) enum PlannedFault {
    /// A connection is lost; that is noticed and mended after these times.
    Cut {
        process: Process,
        notice: Duration,
        mend: Duration,
    },
    Trap {
        process: Process,
        trap: Trap,
    },
    Stop {
        process: Process,
        lasts: Duration,
    },
    Down {
        notice: Duration,
        lasts: Duration,
    },
    Stall {
        server: usize,
        lasts: Duration,
    },
    /// An outsider deletes the first contender, or any.
    Delete {
        first: bool,
    },
    DeleteLockNode,
    /// An outsider ends a session.
    Murder {
        process: Process,
    },
    Close {
        process: Process,
    },
    Forbid {
        left: Option<Permissions>,
        lasts: Duration,
    },
    /// A client of another kind contends for this long.
    Peer {
        lasts: Duration,
    },
    /// An outsider creates a node that stays for this long and, if `deep`, one below it: as a
    /// contender, or under a name without a meaning.
    Litter {
        contends: bool,
        deep: bool,
        lasts: Duration,
    },
    /// Another program's session has a node of this number among the contenders, under a name that it has chosen.
    Registration {
        number: u32,
        lasts: Duration,
    },
    /// Threads cannot be started.
    Poverty {
        percent: u64,
        lasts: Duration,
    },
}

impl PlannedFault {
    fn lasts(&self) -> Duration {
        match self {
            PlannedFault::Cut { notice, mend, .. } => (*notice).max(*mend),
            PlannedFault::Stop { lasts, .. }
            | PlannedFault::Down { lasts, .. }
            | PlannedFault::Stall { lasts, .. }
            | PlannedFault::Forbid { lasts, .. }
            | PlannedFault::Peer { lasts }
            | PlannedFault::Litter { lasts, .. }
            | PlannedFault::Registration { lasts, .. }
            | PlannedFault::Poverty { lasts, .. } => *lasts,
            _ => Duration::ZERO,
        }
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl Plan {
    pub(super) fn draw(chance: &Schedule) -> Plan {
        let pick = |from: &[Duration]| from[chance.below(from.len())];
        let timeout = pick(&[ms(2_000), ms(4_000), ms(10_000)]);
        let habits = Habits {
            servers: [1, 3, 3][chance.below(3)],
            latency: pick(&[ms(0), ms(1), ms(1), ms(20), ms(200)]),
            lag: pick(&[ms(0), ms(2), ms(50), ms(500), ms(500)]),
            hesitation: pick(&[ms(0), ms(0), ms(2), ms(50)]),
            session_timeout: timeout,
            connect_timeout: pick(&[timeout / 2, timeout * 3]),
            reminds: false,
            forgetful: 10,
            discreet: false,
            hides_stat: false,
            is_old: false,
            largest: None,
            tidies: [None, None, Some(ms(5)), Some(timeout / 4)][chance.below(4)],
            late: [None, None, None, Some(timeout * 2)][chance.below(4)],
        };
        let version = chance.below(100);
        let habits = Habits {
            discreet: version < 50,
            hides_stat: version < 25,
            is_old: version >= 95,
            largest: (90..95).contains(&version).then_some(LARGEST),
            ..habits
        };
        let processes = 1 + chance.below(3);
        let threads: Vec<usize> = (0..processes).map(|_| 1 + chance.below(3)).collect();
        let rounds = 1 + chance.below(3);
        let hold = pick(&[ms(0), ms(2), timeout / 8, timeout / 8, timeout]);
        // About as long as all threads are busy, so that most faults hit one.
        let turns = (rounds * threads.iter().sum::<usize>()) as u32;
        let busy = (hold * 3 / 4 + habits.latency * 6) * turns + ms(1);
        let horizon = if chance.chance(80) { busy.min(timeout * 6) } else { timeout * 3 };
        let horizon = chance.some(horizon) + ms(1);
        let count = [0, 1, 1, 2, 2, 3, 4, 6][chance.below(8)];
        let mut faults: Vec<_> = (0..count)
            .map(|_| (chance.some(horizon), Plan::fault(chance, processes, &habits)))
            .collect();
        faults.sort_by_key(|(time, _)| *time);
        let first_number = match chance.below(30) {
            0 => i32::MAX - 2,
            1 => i32::MAX - (1 << 16) - 2,
            _ => 0,
        };
        // A process that hides its contenders must not create the lock node: the others could not
        // list it.
        let hidden = first_number == 0 && chance.chance(10);
        faults.retain(|(_, fault)| !hidden || !matches!(fault, PlannedFault::DeleteLockNode));
        let recipe = Plan::recipe(chance);
        let asks = [0, 0, 0, 1, 2, 4][chance.below(6)];
        let whom = [Whom::Holders, Whom::Holders, Whom::One, Whom::OneByPeer];
        let ask = || Ask { process: chance.below(processes), of: whom[chance.below(4)] };
        let asks = (0..asks).map(|_| (chance.some(horizon), ask())).collect();
        let disagreed = matches!(recipe, Recipe::Semaphore { disagreed: true, .. });
        let observed = !disagreed && chance.chance(25);
        let habits =
            Habits { reminds: Plan::needs_reminders(&faults, hidden || observed), ..habits };
        let sharing = (recipe == Recipe::Mutex && chance.chance(60)).then(|| Sharing {
            turns: [0, 1, 2, 64][chance.below(4)],
            time: pick(&[ms(0), hold, timeout]),
            keep: [None, Some(chance.some(timeout))][chance.below(2)],
        });
        let rest = habits.latency * 20 + ms(10);
        let hold_at_most = chance.chance(20).then(|| rest + chance.some(hold * 2));
        Plan {
            sharing,
            hold_at_most,
            recipe,
            asks,
            observer: observed.then(|| chance.below(processes)),
            lag: pick(&[ms(0), Duration::from_micros(100), ms(2)]),
            rounds,
            hold,
            calm: Plan::end_of(&faults),
            first_number,
            hidden,
            habits,
            threads,
            faults,
            naming: if chance.chance(25) { NodeNaming::Kazoo } else { NodeNaming::Curator },
        }
    }

    fn recipe(chance: &Schedule) -> Recipe {
        match chance.below(6) {
            0 => Recipe::ReadWrite,
            1 => Recipe::Semaphore {
                permits: 1 + chance.below(4) as u32,
                disagreed: chance.chance(20),
            },
            2 => Recipe::Multi { nodes: 2 + chance.below(2) },
            _ => Recipe::Mutex,
        }
    }

    fn fault(chance: &Schedule, processes: usize, habits: &Habits) -> PlannedFault {
        let timeout = habits.session_timeout;
        let process = chance.below(processes);
        // Hardly any time, part of the session timeout, or more than that.
        let some = || match chance.below(4) {
            0 => chance.some(ms(20)),
            1 | 2 => chance.some(timeout * 3 / 4),
            _ => timeout * 3 / 4 + chance.some(timeout),
        };
        match chance.below(20) {
            0..=3 => PlannedFault::Cut {
                process,
                notice: if chance.chance(50) { ms(0) } else { chance.some(timeout / 3) },
                mend: some(),
            },
            4..=7 => {
                use Operation::{Children, Create, Delete, Read, Sync, Transact};
                let (when, on) = match chance.below(10) {
                    0..=2 => {
                        (RequestStage::Arrived, [Create, Transact, Delete, Children, Read, Sync])
                    }
                    3..=5 => (RequestStage::Done, [Create, Create, Create, Transact, Delete, Sync]),
                    6 | 7 => (RequestStage::Answered, [Create, Delete, Children, Read, Read, Sync]),
                    _ => (
                        RequestStage::Unseen(some()),
                        [Create, Delete, Children, Children, Read, Sync],
                    ),
                };
                let on = on[chance.below(6)];
                let mend = if chance.chance(70) { habits.latency * 4 } else { timeout * 4 / 3 };
                let times = 1 + chance.below(3);
                PlannedFault::Trap { process, trap: Trap { on, when, mend, times } }
            }
            8 | 9 => PlannedFault::Stop { process, lasts: some() },
            10 => PlannedFault::Down { notice: chance.some(timeout / 3), lasts: some() },
            11 => PlannedFault::Stall { server: chance.below(habits.servers), lasts: some() },
            12 | 13 => PlannedFault::Delete { first: chance.chance(50) },
            14 => match chance.below(2) {
                0 => PlannedFault::DeleteLockNode,
                _ => PlannedFault::Murder { process },
            },
            15 if chance.chance(40) => PlannedFault::Close { process },
            15 => PlannedFault::Murder { process },
            16 => match chance.below(3) {
                0 => PlannedFault::Registration { number: chance.below(30) as u32, lasts: some() },
                _ => PlannedFault::Peer { lasts: some() },
            },
            17 => PlannedFault::Poverty { percent: [30, 100][chance.below(2)], lasts: some() },
            18 => PlannedFault::Litter {
                contends: chance.chance(50),
                deep: chance.chance(70),
                lasts: some(),
            },
            _ => {
                let left = [
                    None,
                    Some(Permissions::READ | Permissions::DELETE),
                    Some(Permissions::READ | Permissions::CREATE),
                    Some(Permissions::CREATE | Permissions::DELETE),
                ];
                PlannedFault::Forbid { left: left[chance.below(4)], lasts: some() }
            }
        }
    }

    /// Replaces the plan's faults.
    pub(super) fn with(self, faults: Vec<(Duration, PlannedFault)>) -> Plan {
        let reminds = Plan::needs_reminders(&faults, self.hidden || self.observer.is_some());
        let habits = Habits { reminds, ..self.habits };
        Plan { calm: Plan::end_of(&faults), habits, faults, ..self }
    }

    /// Returns whether some work may need a reminder: work that finds no thread, and a watch that
    /// fires while the lock node may not be read.
    fn needs_reminders(faults: &[(Duration, PlannedFault)], lists_watched: bool) -> bool {
        faults.iter().any(|(_, fault)| match fault {
            PlannedFault::Poverty { .. } => true,
            PlannedFault::Forbid { .. } => lists_watched,
            _ => false,
        })
    }

    fn end_of(faults: &[(Duration, PlannedFault)]) -> Duration {
        let ends = faults.iter().map(|(time, fault)| *time + fault.lasts());
        ends.max().unwrap_or_default()
    }

    /// Returns the data of a process's contenders. For the first process it is longer than some
    /// servers accept.
    pub(super) fn data(&self, process: Process, name: &str) -> String {
        match self.habits.largest {
            Some(largest) if process == 0 => name.to_owned() + &" ".repeat(largest),
            _ => name.to_owned(),
        }
    }

    pub(super) fn acl(permissions: Option<Permissions>) -> Vec<Acl> {
        permissions.map(|some| Acl::new(some, "world", "anyone")).into_iter().collect()
    }

    /// Returns how long a node may be kept without a holder while no other contender waits.
    pub(super) fn keep(&self) -> Duration {
        self.sharing.and_then(|sharing| sharing.keep).unwrap_or_default()
    }

    pub(super) fn has(&self, kind: impl Fn(&PlannedFault) -> bool) -> bool {
        self.faults.iter().any(|(_, fault)| kind(fault))
    }
}
