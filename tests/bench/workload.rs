//! The workloads, and the clients that are measured with each.

use std::time::Duration;

use super::contestant::Contestant::{
    self, Curator, Kazoo, Raw, RawAlone, RawFixedName, RawOneConnectionLeader,
    RawOneConnectionReader, RawUnwaited, Zklock, ZklockCrate, ZklockKept, ZklockOff,
    ZklockPatience, ZklockTls, ZookeeperClient,
};
use ServerKind::{WithFsync, WithTls, WithoutFsync};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) group: Group,
    pub(crate) server: ServerKind,
    /// How long the network takes in each direction; otherwise it is the loopback alone.
    pub(crate) network: Option<Duration>,
    pub(crate) processes: usize,
    pub(crate) work: Work,
    pub(crate) contestants: &'static [Contestant],
}

/// The servers, of which each runs at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerKind {
    /// It forces its log to the disk, as by default.
    WithFsync,
    WithoutFsync,
    /// It speaks TLS on a second port, and so needs Netty for both.
    WithTls,
}

/// Workloads that are shown in one picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Uncontended,
    Contended,
    Processes,
    Network,
    Queued,
    Held,
    Recipes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Threads of one client acquire and release, again and again.
    Loop { threads: usize, locks: usize },
    /// Waiters queue behind a holder, which then releases; over when each has held once.
    Queue { waiters: usize, clients: usize, repeats: usize },
    /// One thread of one client acquires many locks, and holds them all.
    Hold { locks: usize },
    /// Clients carry out so many operations of a recipe beside the locks.
    Recipe { recipe: &'static str, clients: usize, count: usize },
}

const fn threads(threads: usize) -> Work {
    Work::Loop { threads, locks: 1 }
}

const CONTENDED: &[Contestant] = &[
    Zklock,
    ZklockOff,
    Curator,
    Kazoo,
    ZookeeperClient,
    RawOneConnectionReader,
    RawOneConnectionLeader,
];
const PROCESSES: &[Contestant] = &[
    Zklock,
    ZklockOff,
    ZklockPatience,
    Curator,
    Kazoo,
    ZookeeperClient,
    Raw,
    RawUnwaited,
    RawFixedName,
];
const FAR: &[Contestant] = &[Zklock, Curator, Kazoo, ZookeeperClient, Raw, RawUnwaited];
const QUEUED: &[Contestant] = &[
    Zklock,
    ZklockOff,
    Curator,
    Kazoo,
    ZookeeperClient,
    Raw,
    RawOneConnectionReader,
    RawOneConnectionLeader,
];

const CLIENTS: &[Contestant] = &[Zklock, Curator, Kazoo];
/// Curator has no queue whose items are leased one by one.
const WITH_LEASES: &[Contestant] = &[Zklock, Kazoo];

/// One way, so that a round trip takes 1 ms.
const HALF_MS: Option<Duration> = Some(Duration::from_micros(500));

pub(crate) const ALL: [Workload; 22] = [
    Workload {
        name: "one",
        what: "1 thread, 1 lock",
        group: Group::Uncontended,
        server: WithFsync,
        network: None,
        processes: 1,
        work: threads(1),
        contestants: &[
            Zklock,
            ZklockCrate,
            ZklockKept,
            ZklockPatience,
            Curator,
            Kazoo,
            ZookeeperClient,
            Raw,
            RawUnwaited,
            RawAlone,
            RawFixedName,
        ],
    },
    Workload {
        name: "one-nofsync",
        what: "1 thread, 1 lock, a server that does not wait for its disk",
        group: Group::Uncontended,
        server: WithoutFsync,
        network: None,
        processes: 1,
        work: threads(1),
        contestants: &[
            Zklock,
            ZklockCrate,
            Curator,
            Kazoo,
            ZookeeperClient,
            Raw,
            RawUnwaited,
            RawAlone,
        ],
    },
    Workload {
        name: "one-netty",
        what: "1 thread, 1 lock, a server with Netty, in plain text and by TLS",
        group: Group::Uncontended,
        server: WithTls,
        network: None,
        processes: 1,
        work: threads(1),
        contestants: &[Zklock, ZklockTls],
    },
    Workload {
        name: "own",
        what: "8 threads of one client, each with a lock of its own",
        group: Group::Uncontended,
        server: WithFsync,
        network: None,
        processes: 1,
        work: Work::Loop { threads: 8, locks: 8 },
        contestants: &[
            Zklock,
            ZklockCrate,
            Curator,
            Kazoo,
            ZookeeperClient,
            RawUnwaited,
            RawAlone,
            RawOneConnectionReader,
            RawOneConnectionLeader,
        ],
    },
    Workload {
        name: "shared-8",
        what: "8 threads of one client, 1 lock",
        group: Group::Contended,
        server: WithFsync,
        network: None,
        processes: 1,
        work: threads(8),
        contestants: CONTENDED,
    },
    Workload {
        name: "shared-8-nofsync",
        what: "8 threads of one client, 1 lock, a server that does not wait for its disk",
        group: Group::Contended,
        server: WithoutFsync,
        network: None,
        processes: 1,
        work: threads(8),
        contestants: CONTENDED,
    },
    Workload {
        name: "shared-32",
        what: "32 threads of one client, 1 lock",
        group: Group::Contended,
        server: WithFsync,
        network: None,
        processes: 1,
        work: threads(32),
        contestants: CONTENDED,
    },
    Workload {
        name: "processes-2",
        what: "2 processes of 1 thread, 1 lock",
        group: Group::Processes,
        server: WithFsync,
        network: None,
        processes: 2,
        work: threads(1),
        contestants: PROCESSES,
    },
    Workload {
        name: "processes-4",
        what: "4 processes of 1 thread, 1 lock",
        group: Group::Processes,
        server: WithFsync,
        network: None,
        processes: 4,
        work: threads(1),
        contestants: PROCESSES,
    },
    Workload {
        name: "processes-4x8",
        what: "4 processes of 8 threads, 1 lock",
        group: Group::Processes,
        server: WithFsync,
        network: None,
        processes: 4,
        work: threads(8),
        contestants: CONTENDED,
    },
    Workload {
        name: "one-1ms",
        what: "1 thread, 1 lock, a network with a round trip of 1 ms",
        group: Group::Network,
        server: WithFsync,
        network: HALF_MS,
        processes: 1,
        work: threads(1),
        contestants: FAR,
    },
    Workload {
        name: "processes-2-1ms",
        what: "2 processes of 1 thread, 1 lock, a network with a round trip of 1 ms",
        group: Group::Network,
        server: WithFsync,
        network: HALF_MS,
        processes: 2,
        work: threads(1),
        contestants: FAR,
    },
    Workload {
        name: "processes-4-1ms",
        what: "4 processes of 1 thread, 1 lock, a network with a round trip of 1 ms",
        group: Group::Network,
        server: WithFsync,
        network: HALF_MS,
        processes: 4,
        work: threads(1),
        contestants: FAR,
    },
    Workload {
        name: "queued-200",
        what: "200 waiters of 4 clients, from the gate's opening until each has held once",
        group: Group::Queued,
        server: WithFsync,
        network: None,
        processes: 1,
        work: Work::Queue { waiters: 200, clients: 4, repeats: 3 },
        contestants: QUEUED,
    },
    Workload {
        name: "queued-1000",
        what: "1,000 waiters of 4 clients, from the gate's opening until each has held once",
        group: Group::Queued,
        server: WithFsync,
        network: None,
        processes: 1,
        work: Work::Queue { waiters: 1000, clients: 4, repeats: 1 },
        contestants: QUEUED,
    },
    Workload {
        name: "held-10000",
        what: "10,000 locks, which one client takes and holds",
        group: Group::Held,
        server: WithFsync,
        network: None,
        processes: 1,
        work: Work::Hold { locks: 10_000 },
        contestants: &[Zklock],
    },
    Workload {
        name: "recipe-take",
        what: "3,000 items, which 30 clients offer and then take",
        group: Group::Recipes,
        server: WithoutFsync,
        network: None,
        processes: 1,
        work: Work::Recipe { recipe: "take", clients: 30, count: 3000 },
        contestants: CLIENTS,
    },
    Workload {
        name: "recipe-lease",
        what: "1,000 items, which 10 clients offer, and then lease and acknowledge",
        group: Group::Recipes,
        server: WithoutFsync,
        network: None,
        processes: 1,
        work: Work::Recipe { recipe: "lease", clients: 10, count: 1000 },
        contestants: WITH_LEASES,
    },
    Workload {
        name: "recipe-meet",
        what: "a double barrier, which 50 threads of 10 clients enter and leave",
        group: Group::Recipes,
        server: WithoutFsync,
        network: None,
        processes: 1,
        work: Work::Recipe { recipe: "meet", clients: 10, count: 50 },
        contestants: CLIENTS,
    },
    Workload {
        name: "recipe-add",
        what: "320 additions to a counter by 16 clients",
        group: Group::Recipes,
        server: WithoutFsync,
        network: None,
        processes: 1,
        work: Work::Recipe { recipe: "add", clients: 16, count: 320 },
        contestants: CLIENTS,
    },
    Workload {
        name: "recipe-join",
        what: "200 members, which join a group by 10 clients",
        group: Group::Recipes,
        server: WithoutFsync,
        network: None,
        processes: 1,
        work: Work::Recipe { recipe: "join", clients: 10, count: 200 },
        contestants: CLIENTS,
    },
    Workload {
        name: "recipe-permits",
        what: "a semaphore of 3 permits, which 100 threads of 10 clients acquire and release",
        group: Group::Recipes,
        server: WithoutFsync,
        network: None,
        processes: 1,
        work: Work::Recipe { recipe: "permits", clients: 10, count: 100 },
        contestants: CLIENTS,
    },
];

impl Workload {
    pub(crate) fn of_name(name: &str) -> Option<Workload> {
        ALL.into_iter().find(|workload| workload.name == name)
    }

    /// Whether one thread of each process works, so that its latency is that of the lock.
    pub(crate) fn shows_latency(&self) -> bool {
        matches!(self.work, Work::Loop { threads: 1, .. })
    }

    /// How many clients each process has.
    pub(crate) fn clients(&self) -> usize {
        match self.work {
            Work::Loop { .. } | Work::Hold { .. } => 1,
            Work::Queue { clients, .. } | Work::Recipe { clients, .. } => clients,
        }
    }

    /// The order to a worker; `path` is this contestant's own.
    pub(crate) fn order(&self, path: &str, length: Duration) -> String {
        match self.work {
            Work::Loop { threads, locks } => {
                format!("loop {path} {locks} {threads} {}", length.as_millis())
            }
            Work::Queue { waiters, repeats, .. } => format!("queue {path} {waiters} {repeats}"),
            Work::Hold { locks } => format!("hold {path} {locks}"),
            Work::Recipe { recipe, count, .. } => format!("recipe {recipe} {path} {count}"),
        }
    }

    /// The order to warm up, without being measured.
    pub(crate) fn warm_up(&self, path: &str, length: Duration) -> String {
        match self.work {
            Work::Loop { .. } => self.order(path, length),
            Work::Queue { waiters, .. } => format!("queue {path} {} 1", waiters.min(100)),
            Work::Hold { .. } => format!("hold {path} 100"),
            Work::Recipe { recipe, count, .. } => {
                format!("recipe {recipe} {path} {}", count.min(50))
            }
        }
    }
}
