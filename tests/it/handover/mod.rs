//! Threads of one client share a contender's node and hand it over among themselves; a node may be
//! kept after the release.

mod keeping;
mod leaving;
mod many;
mod turns;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use zklock::{Client, DistributedLock, HandOver, LockGuard, LossReason};

use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{QUIET, waiting};

const SOON: Duration = Duration::from_secs(15);

/// Far below any timeout, even on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(2);

/// A client whose requests are counted, and another one that competes with it.
struct Rig {
    site: Site,
    proxy: Proxy,
    zk: Client,
    other: Client,
}

impl Rig {
    /// A rig without heartbeats, which would be counted.
    fn new(test: &str) -> Rig {
        Rig::with_session(test, QUIET)
    }

    fn with_session(test: &str, timeout: Duration) -> Rig {
        let site = Site::own(test);
        let (proxy, zk) = site.proxied(timeout);
        let other = site.builder().session_timeout(QUIET).connect().unwrap();
        Rig { site, proxy, zk, other }
    }

    fn lock(&self) -> DistributedLock {
        DistributedLock::new(&self.zk, &self.site.base, "a")
    }

    fn within(&self, turns: u32, time: Duration) -> DistributedLock {
        self.lock().hand_over(HandOver::Within { turns, time })
    }

    fn keeping(&self, limit: Duration) -> DistributedLock {
        self.lock().keep_for(limit)
    }

    /// The same lock, with the other client.
    fn theirs(&self) -> DistributedLock {
        DistributedLock::new(&self.other, &self.site.base, "a")
    }

    fn children(&self) -> Vec<String> {
        self.site.children("a")
    }

    /// Waits for the last request of the acquisition, and restarts the count.
    fn settle(&self) {
        assert!(self.proxy.wait_for_request(opcode::GET_DATA, SOON), "no watch on its node");
        self.proxy.reset_counts();
    }

    /// Waits until the client has listed the contenders `count` times, and has the answers.
    fn wait_for_looks(&self, count: u64, guard: &LockGuard) {
        assert!(self.proxy.wait_for_requests(opcode::GET_CHILDREN, count, SOON), "no list");
        // The answer to this request comes later than the list.
        guard.ensure_held().unwrap();
    }

    /// Checks that there was only one request: since a sibling waits, one list of other contenders.
    fn assert_one_look(&self) {
        assert!(self.proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
        assert_eq!(self.by_kind(), BTreeMap::from([(opcode::GET_CHILDREN, 1)]));
    }

    fn by_kind(&self) -> BTreeMap<i32, usize> {
        let mut counts = BTreeMap::new();
        for request in self.proxy.requests() {
            *counts.entry(request.opcode).or_default() += 1;
        }
        counts
    }

    fn finish(self) {
        self.proxy.pass();
        let Rig { site, zk, other, proxy } = self;
        site.finish([zk, other]);
        drop(proxy);
    }
}

/// The threads that wait for a lock, each with a number.
struct Line {
    tell: Sender<(u32, LockGuard)>,
    told: Receiver<(u32, LockGuard)>,
}

impl Line {
    fn new() -> Line {
        let (tell, told) = channel();
        Line { tell, told }
    }

    /// Adds a thread, and returns when it waits. [`next`](Line::next) returns its guard.
    fn join(&self, number: u32, lock: &DistributedLock) {
        let (lock, tell) = (lock.clone(), self.tell.clone());
        drop(waiting(move || {
            let guard = lock.lock().unwrap();
            drop(lock);
            let _ = tell.send((number, guard));
        }));
    }

    fn next(&self, number: u32) -> LockGuard {
        let (granted, guard) = self.told.recv_timeout(SOON).expect("a waiter gets the lock");
        assert_eq!(granted, number, "out of turn");
        guard
    }

    fn assert_nobody(&self) {
        assert!(self.told.try_recv().is_err(), "two holders at once");
    }
}

fn node_and_turn(guard: &LockGuard) -> (String, u64, u32) {
    let token = guard.fencing_token();
    (guard.path().to_owned(), token.zxid(), token.turn())
}

/// Receives what the guard's `on_lost` is called with; disconnected once the callback has run or
/// was dropped.
fn losses(guard: &LockGuard) -> Receiver<LossReason> {
    let (tell, told) = channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    told
}

const LONG: Duration = Duration::from_secs(600);
