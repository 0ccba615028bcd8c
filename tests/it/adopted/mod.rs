//! Clients that use a program's own handle of the `zookeeper` crate: what they guarantee without
//! the library's own connection.

mod chroot;
mod faults;
mod handle;
mod locks;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use zklock::zookeeper::{WatchedEvent, ZooKeeper};
use zklock::{Client, DistributedLock, LockGuard, LossReason};

use crate::support::proxy::Proxy;
use crate::support::site::Site;
use crate::support::{eventually, mutex, waiting};

const T: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(20);

fn plain(hosts: &str) -> Arc<ZooKeeper> {
    plain_for(hosts, T)
}

fn plain_for(hosts: &str, timeout: Duration) -> Arc<ZooKeeper> {
    let handle = ZooKeeper::connect(hosts, timeout, |_: WatchedEvent| ()).expect("a handle");
    handle.exists("/", false).expect("a connection");
    Arc::new(handle)
}

/// A plain handle behind a faulty network, connected to the test's own server.
struct Rig {
    site: Site,
    proxy: Proxy,
    handle: Arc<ZooKeeper>,
    zk: Client,
}

impl Rig {
    fn new(test: &str) -> Rig {
        Rig::with(test, T)
    }

    fn with(test: &str, timeout: Duration) -> Rig {
        let site = Site::own(test);
        let proxy = Proxy::start(site.server().addr());
        let handle = plain_for(&proxy.hosts(), timeout);
        let zk = Client::from(&handle);
        Rig { site, proxy, handle, zk }
    }

    fn lock(&self) -> DistributedLock {
        mutex(&self.zk, &self.site.base, "a")
    }

    fn wait_for_contenders(&self, count: usize) {
        eventually(LONG, "contenders", || self.site.children("a").len() == count);
    }

    fn finish(self) {
        let Rig { site, proxy: _proxy, handle, zk } = self;
        zk.close();
        drop((handle, zk));
        site.finish([]);
    }
}

/// Like `in_background`, but returns only once the job waits.
fn waits<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (tell, told) = mpsc::channel();
    drop(waiting(move || tell.send(job())));
    told
}

fn losses(guard: &LockGuard) -> Receiver<LossReason> {
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |why| {
        let _ = tell.send(why);
    });
    told
}
