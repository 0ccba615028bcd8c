//! Scenarios 14 to 22: trying, timeouts, cancelling.

mod cancelling;
mod deadlines;
mod outages;

use std::time::Duration;

use zklock::{Client, DistributedLock, LockGuard, SessionState};

use crate::support::proxy::Proxy;
use crate::support::site::Site;
use crate::support::{eventually, mutex};

const SOON: Duration = Duration::from_secs(20);
/// How long a client may take to connect, even on a busy machine.
const CONNECTING: Duration = Duration::from_secs(4);
/// How long after its deadline a call may return, at most.
const LATE: Duration = Duration::from_millis(100);

/// A server behind a proxy. The client under test connects through the proxy; the client that holds
/// the lock, and those that inspect it, connect directly.
struct Rig {
    site: Site,
    proxy: Proxy,
    zk: Client,
    holder: Client,
}

impl Rig {
    fn new(test: &str) -> Rig {
        Rig::with_session(test, Duration::from_secs(4))
    }

    fn with_session(test: &str, timeout: Duration) -> Rig {
        let _ = env_logger::builder().is_test(true).format_timestamp_millis().try_init();
        let site = Site::own(test);
        let proxy = Proxy::start(site.server().addr());
        let builder = Client::builder(&proxy.hosts()).session_timeout(timeout);
        let zk = builder.connect_timeout(CONNECTING).connect().unwrap();
        let holder = site.builder().session_timeout(Duration::from_secs(30)).connect().unwrap();
        Rig { site, proxy, zk, holder }
    }

    fn lock(&self) -> DistributedLock {
        mutex(&self.zk, &self.site.base, "a")
    }

    /// Takes the lock with the other client.
    fn held(&self) -> LockGuard {
        mutex(&self.holder, &self.site.base, "a").try_lock().unwrap().expect("free")
    }

    fn contenders(&self) -> usize {
        self.site.children("a").len()
    }

    fn wait_for_contenders(&self, count: usize) {
        eventually(SOON, "the contenders", || self.contenders() == count);
    }

    /// Waits until nothing is left of the client's attempts, in the session in which it made them.
    fn wait_until_clean(&self, others: usize, after: &str) {
        eventually(SOON, &format!("the end of cleaning up after {after}"), || {
            self.zk.stats().pending_deletes == 0 && self.contenders() == others
        });
    }

    /// Waits for a session. If the old one was lost, only a call opens a new one.
    fn wait_until_connected(&self) {
        let lock = self.lock();
        eventually(SOON, "a session", || lock.contenders().is_ok());
    }

    fn wait_for(&self, state: SessionState) {
        eventually(SOON, "the state of the session", || self.zk.state() == state);
    }

    fn finish(self) {
        self.proxy.pass();
        let Rig { site, zk, holder, proxy } = self;
        site.finish([zk, holder]);
        drop(proxy);
    }
}

/// A fault that makes the ensemble hard to reach, and its end.
struct Fault {
    name: &'static str,
    strike: fn(&Rig),
    heal: fn(&Rig),
}

fn of_the_proxy(name: &'static str, strike: fn(&Rig)) -> Fault {
    Fault { name, strike, heal: |rig| rig.proxy.pass() }
}

const ALWAYS: usize = usize::MAX;
