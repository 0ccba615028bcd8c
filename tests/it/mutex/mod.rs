//! Scenarios 1 to 13b: the mutex.

mod contenders;
mod holding;
mod paths;

use std::time::Duration;

use zklock::Client;

use crate::support::proxy::Proxy;
use crate::support::site::Site;
use crate::support::{QUIET, connecting, eventually};

const SOON: Duration = Duration::from_secs(10);

fn quiet_client(proxy: &Proxy) -> Client {
    connecting(&proxy.hosts()).session_timeout(QUIET).connect().unwrap()
}

fn wait_for_contenders(site: &Site, name: &str, count: usize) {
    let mut raw = site.raw();
    let node = format!("{}/{name}", site.base);
    eventually(SOON, "a contender", || raw.get_children(&node).unwrap_or_default().len() == count);
    raw.close().unwrap();
}
