//! The connection: blips, restarts, expiry, silence, and what the `zookeeper` crate does wrong.

mod blips;
mod expiry;
mod hazards;
mod told;

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use zklock::{Client, DistributedLock, LockGuard, LossReason, SessionState};

use crate::support::proxy::Proxy;
use crate::support::site::Site;
use crate::support::{connecting, eventually};

/// Ample time for steps whose duration a test does not check.
const AMPLE: Duration = Duration::from_secs(15);
const SHORT: Duration = Duration::from_secs(3);

fn proxy(site: &Site) -> Proxy {
    Proxy::start(site.server().addr())
}

fn through(proxy: &Proxy, session: Duration) -> Client {
    connecting(&proxy.hosts()).session_timeout(session).connect().expect("a client")
}

/// Receives what the guard's `on_lost` is called with; disconnected once the callback has run or
/// was dropped.
fn losses(guard: &LockGuard) -> Receiver<LossReason> {
    let (tell, told) = channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    told
}

fn states(zk: &Client) -> Receiver<SessionState> {
    let (tell, told) = channel();
    zk.on_state_change(move |state| tell.send(state).unwrap_or_default()).detach();
    told
}

/// Checks that the next states are these.
fn expect_states(told: &Receiver<SessionState>, expected: &[SessionState]) {
    for state in expected {
        assert_eq!(told.recv_timeout(AMPLE), Ok(*state));
    }
}

fn lock_in_background(lock: &DistributedLock) -> Receiver<LockGuard> {
    let (lock, (tell, told)) = (lock.clone(), channel());
    thread::spawn(move || tell.send(lock.lock().unwrap()));
    told
}

fn wait_for_contenders(site: &Site, name: &str, count: usize) {
    let mut raw = site.raw();
    let node = format!("{}/{name}", site.base);
    eventually(AMPLE, &format!("{count} contenders"), || {
        raw.get_children(&node).is_ok_and(|children| children.len() == count)
    });
}
