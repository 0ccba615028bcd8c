//! What clients do while a link is held up, and what is right afterwards.

use std::sync;

use zklock::maintenance::MaintenanceEnd;
use zklock::{
    Barrier, Client, DistributedLock, DistributedQueue, DistributedRwLock, DistributedSemaphore,
    ErrorKind, Group, LeaderElection, LockGuard, Once, Result, SharedValue,
};

use super::AMPLE;
use crate::support::raw::{Failure, NO_NODE, Raw};
use crate::support::{mutex, strict};

/// What a node has to be like, also after late requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Right {
    /// A late node may be there for a while, and has to be deleted.
    NoChild,
    /// At no time may it be otherwise: what is undone was acknowledged.
    OnlyChild(&'static str),
    /// The same.
    Data(&'static str),
    /// A call that may have taken effect said so.
    OneChildAtMost,
}

impl Right {
    pub(super) fn is_lasting(self) -> bool {
        !matches!(self, Right::NoChild)
    }

    /// What is wrong with the node.
    pub(super) fn what_is_wrong(self, raw: &mut Raw, node: &str) -> Option<String> {
        if let Right::Data(right) = self {
            let found = raw.get_data(node).map(|(data, _)| data);
            let is_right = found.as_ref().is_ok_and(|data| data == right.as_bytes());
            let found = found.map(|data| String::from_utf8_lossy(&data).into_owned());
            return (!is_right).then(|| format!("{node} is {found:?}, not {right}"));
        }
        let children = match raw.get_children(node) {
            Err(Failure::Server(NO_NODE)) => Vec::new(),
            children => children.unwrap(),
        };
        let is_right = match self {
            Right::OnlyChild(name) => children == [name],
            Right::OneChildAtMost => children.len() <= 1,
            _ => children.is_empty(),
        };
        (!is_right).then(|| format!("{node} has {children:?}"))
    }
}

/// Where all clients wait for each other before they send what comes late.
pub(super) struct Gate(sync::Barrier);

impl Gate {
    pub(super) fn of(clients: usize) -> Gate {
        Gate(sync::Barrier::new(clients + 1))
    }

    fn pass(&self) {
        self.0.wait();
        self.0.wait();
    }

    /// Does this when all are there, then lets them pass.
    pub(super) fn open<T>(&self, first: impl FnOnce() -> T) -> T {
        self.0.wait();
        let done = first();
        self.0.wait();
        done
    }
}

/// What one client does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// Makes what has to be there before, and returns the nodes to look at.
    pub(super) prepare: fn(&Spot) -> Result<Vec<String>>,
    /// The request that it sends after the gate is the one that comes late.
    pub(super) act: fn(&Spot, &Gate) -> Result<()>,
    pub(super) right: Right,
}

/// Where one client does it.
pub(super) struct Spot {
    pub(super) zk: Client,
    pub(super) base: String,
}

impl Spot {
    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }

    fn mutex(&self) -> DistributedLock {
        mutex(&self.zk, &self.base, "x")
    }

    fn patient(&self) -> DistributedLock {
        strict(&self.zk, &self.base, "x").patience(3)
    }

    fn semaphore(&self) -> DistributedSemaphore {
        DistributedSemaphore::new(&self.zk, &self.base, "x", 2)
    }

    fn election(&self) -> LeaderElection {
        LeaderElection::new(&self.zk, &self.base, "x").id("one")
    }

    fn read_write(&self) -> DistributedRwLock {
        DistributedRwLock::new(&self.zk, &self.base, "x")
    }

    fn group(&self) -> Group {
        Group::new(&self.zk, &self.base, "x")
    }

    fn queue(&self) -> DistributedQueue {
        DistributedQueue::new(&self.zk, &self.base, "x")
    }

    fn barrier(&self) -> Barrier {
        Barrier::new(&self.zk, self.at("in"), "x")
    }

    fn value(&self) -> SharedValue {
        SharedValue::new(&self.zk, &self.base, "x")
    }

    fn once(&self) -> Once {
        Once::new(&self.zk, &self.base, "x")
    }

    /// Holds a lock until the end of the test.
    pub(super) fn keep(&self) -> LockGuard {
        mutex(&self.zk, &self.base, "kept").lock().unwrap()
    }

    fn run_once(&self, job: impl FnOnce()) -> Result<()> {
        let run = || -> Result<()> {
            job();
            Ok(())
        };
        let guard = mutex(&self.zk, &self.base, "once").lock()?;
        let _ = self.once().run_holding(&guard, "k", run)?;
        guard.unlock()
    }
}

/// Makes the call again as long as it says that it may have taken effect, and does not know.
fn insist<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::ConnectionLoss => {}
            known => return known,
        }
    }
}

pub(super) const KINDS: [Kind; 15] = [
    Kind {
        name: "mutex",
        prepare: |spot| spot.mutex().lock()?.unlock().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.mutex().lock()?.unlock()
        },
        right: Right::NoChild,
    },
    Kind {
        name: "semaphore",
        prepare: |spot| spot.semaphore().acquire()?.release().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.semaphore().acquire()?.release()
        },
        right: Right::NoChild,
    },
    Kind {
        name: "election",
        prepare: |spot| spot.election().campaign()?.resign().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.election().campaign()?.resign()
        },
        right: Right::NoChild,
    },
    Kind {
        name: "reader",
        prepare: |spot| spot.read_write().read()?.unlock().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.read_write().read()?.unlock()
        },
        right: Right::NoChild,
    },
    Kind {
        name: "writer",
        prepare: |spot| spot.read_write().write()?.unlock().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.read_write().write()?.unlock()
        },
        right: Right::NoChild,
    },
    Kind {
        name: "waiting room",
        prepare: |spot| {
            spot.patient().lock()?.unlock()?;
            Ok(vec![spot.at("_zklock_room_x"), spot.at("x")])
        },
        act: |spot, gate| {
            gate.pass();
            spot.patient().lock()?.unlock()
        },
        right: Right::NoChild,
    },
    Kind {
        name: "group member",
        prepare: |spot| spot.group().join("m", "")?.leave().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.group().join("m", "")?.leave()
        },
        right: Right::NoChild,
    },
    Kind {
        name: "queue lease",
        prepare: |spot| {
            spot.queue().offer("item")?;
            Ok(vec![spot.queue().lease()?.item_path().to_owned()])
        },
        act: |spot, gate| {
            gate.pass();
            // Not acknowledged: the item stays.
            spot.queue().lease().map(drop)
        },
        right: Right::NoChild,
    },
    Kind {
        name: "queue item",
        prepare: |spot| {
            spot.queue().offer("item")?;
            spot.queue().lease()?.ack().map(|()| vec![spot.at("x")])
        },
        act: |spot, gate| {
            gate.pass();
            match spot.queue().offer("item") {
                Err(error) if error.kind() != ErrorKind::ConnectionLoss => Err(error),
                _ => Ok(()),
            }
        },
        right: Right::OneChildAtMost,
    },
    Kind {
        name: "barrier raised",
        prepare: |spot| {
            spot.barrier().raise()?;
            spot.barrier().lift().map(|_| vec![spot.at("in")])
        },
        act: |spot, gate| {
            gate.pass();
            insist(|| spot.barrier().raise())?;
            insist(|| spot.barrier().lift()).map(drop)
        },
        right: Right::NoChild,
    },
    Kind {
        name: "barrier lifted",
        prepare: |spot| spot.barrier().raise().map(|_| vec![spot.at("in")]),
        act: |spot, gate| {
            gate.pass();
            insist(|| spot.barrier().lift())?;
            insist(|| spot.barrier().raise()).map(drop)
        },
        right: Right::OnlyChild("x"),
    },
    Kind {
        name: "once marked",
        prepare: |spot| {
            spot.run_once(|| {})?;
            spot.once().forget("k").map(|_| vec![spot.at("x/done")])
        },
        act: |spot, gate| {
            let mut gate = Some(gate);
            insist(|| spot.run_once(|| gate.take().map_or((), Gate::pass)))?;
            insist(|| spot.once().forget("k")).map(drop)
        },
        right: Right::NoChild,
    },
    Kind {
        name: "once forgotten",
        prepare: |spot| spot.run_once(|| {}).map(|()| vec![spot.at("x/done")]),
        act: |spot, gate| {
            gate.pass();
            insist(|| spot.once().forget("k"))?;
            insist(|| spot.run_once(|| {}))
        },
        right: Right::OnlyChild("k"),
    },
    Kind {
        name: "maintenance",
        prepare: |spot| spot.mutex().lock()?.unlock().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            let lock = spot.mutex();
            let held = lock.hold_for_maintenance("test", MaintenanceEnd::Never, AMPLE)?;
            lock.release_maintenance(&held.expect("a lock that nobody has")).map(drop)
        },
        right: Right::NoChild,
    },
    Kind {
        name: "value",
        prepare: |spot| spot.value().set("0").map(|_| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.value().set("A")?;
            spot.value().set("B").map(drop)
        },
        right: Right::Data("B"),
    },
];
