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

/// What is right below a node, also after late requests. Other nodes may be there for a while.
#[derive(Clone, Copy, Debug)]
pub(super) enum Right {
    Nothing,
    /// This child, with these data, at any time: what is undone was acknowledged.
    Only(&'static str, Option<&'static str>),
    /// A call that may have taken effect said so.
    OneAtMost,
}

/// What is wrong below a node.
pub(super) struct Wrong {
    pub(super) what: String,
    pub(super) may_be_mended: bool,
}

impl Right {
    pub(super) fn what_is_wrong(self, raw: &mut Raw, node: &str) -> Option<Wrong> {
        let mut children = match raw.get_children(node) {
            Err(Failure::Server(NO_NODE)) => Vec::new(),
            children => children.unwrap(),
        };
        let wrong = |what: String, may_be_mended| {
            Some(Wrong { what: format!("{node} has {what}"), may_be_mended })
        };
        match self {
            Right::Only(name, _) if !children.iter().any(|child| child == name) => {
                return wrong(format!("{children:?}, not {name}"), false);
            }
            Right::Only(name, Some(data)) => {
                let (found, _) = raw.get_data(&format!("{node}/{name}")).unwrap();
                if found != data.as_bytes() {
                    return wrong(
                        format!("{}, not {data}", String::from_utf8_lossy(&found)),
                        false,
                    );
                }
            }
            Right::OneAtMost if children.len() == 1 => children.clear(),
            _ => {}
        }
        children.retain(|child| !matches!(self, Right::Only(name, _) if child == name));
        if children.is_empty() { None } else { wrong(format!("{children:?}"), true) }
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
    pub(super) has_transaction: bool,
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
        SharedValue::new(&self.zk, self.at("in"), "x")
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
        right: Right::Nothing,
        has_transaction: false,
    },
    Kind {
        name: "semaphore",
        prepare: |spot| spot.semaphore().acquire()?.release().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.semaphore().acquire()?.release()
        },
        right: Right::Nothing,
        has_transaction: false,
    },
    Kind {
        name: "election",
        prepare: |spot| spot.election().campaign()?.resign().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.election().campaign()?.resign()
        },
        right: Right::Nothing,
        has_transaction: false,
    },
    Kind {
        name: "reader",
        prepare: |spot| spot.read_write().read()?.unlock().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.read_write().read()?.unlock()
        },
        right: Right::Nothing,
        has_transaction: false,
    },
    Kind {
        name: "writer",
        prepare: |spot| spot.read_write().write()?.unlock().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.read_write().write()?.unlock()
        },
        right: Right::Nothing,
        has_transaction: false,
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
        right: Right::Nothing,
        has_transaction: false,
    },
    Kind {
        name: "group member",
        prepare: |spot| spot.group().join("m", "")?.leave().map(|()| vec![spot.at("x")]),
        act: |spot, gate| {
            gate.pass();
            spot.group().join("m", "")?.leave()
        },
        right: Right::Nothing,
        has_transaction: false,
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
        right: Right::Nothing,
        has_transaction: false,
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
        right: Right::OneAtMost,
        has_transaction: false,
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
        right: Right::Nothing,
        has_transaction: true,
    },
    Kind {
        name: "barrier lifted",
        prepare: |spot| spot.barrier().raise().map(|_| vec![spot.at("in")]),
        act: |spot, gate| {
            gate.pass();
            insist(|| spot.barrier().lift())?;
            insist(|| spot.barrier().raise()).map(drop)
        },
        right: Right::Only("x", None),
        has_transaction: true,
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
        right: Right::Nothing,
        has_transaction: true,
    },
    Kind {
        name: "once forgotten",
        prepare: |spot| spot.run_once(|| {}).map(|()| vec![spot.at("x/done")]),
        act: |spot, gate| {
            gate.pass();
            insist(|| spot.once().forget("k"))?;
            insist(|| spot.run_once(|| {}))
        },
        right: Right::Only("k", None),
        has_transaction: true,
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
        right: Right::Nothing,
        has_transaction: false,
    },
    Kind {
        name: "value",
        prepare: |spot| spot.value().set("0").map(|_| vec![spot.at("in")]),
        act: |spot, gate| {
            gate.pass();
            spot.value().set("A")?;
            spot.value().set("B").map(drop)
        },
        right: Right::Only("x", Some("B")),
        has_transaction: false,
    },
];
