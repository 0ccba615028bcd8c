//! What the integration tests stand on: real servers, a faulty network, a stranger's client.

#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "test code, of which a build may use a part only"
)]

pub(crate) mod ensemble;
pub(crate) mod logs;
pub(crate) mod proxy;
pub(crate) mod raw;
pub(crate) mod server;
pub(crate) mod site;

use std::env;
use std::fs;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use server::{Installation, Server};

/// The connect string of a server that tests share and do no harm to: the one that `ZKLOCK_HOSTS`
/// names, or one that this process starts once and that ends with it.
pub(crate) fn shared_hosts() -> &'static str {
    static SERVER: OnceLock<Server> = OnceLock::new();
    static HOSTS: OnceLock<String> = OnceLock::new();
    HOSTS.get_or_init(|| given_hosts().unwrap_or_else(|| SERVER.get_or_init(Server::start).hosts()))
}

fn given_hosts() -> Option<String> {
    env::var("ZKLOCK_HOSTS").ok().filter(|hosts| !hosts.is_empty())
}

/// A path that no other test, run or process uses.
pub(crate) fn unique_base(test_name: &str) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!(
        "/zklock-test/{test_name}-{}-{}-{:x}",
        std::process::id(),
        COUNTER.fetch_add(1, Ordering::Relaxed),
        now.as_nanos()
    )
}

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within `limit`; the message says `what` was waited for.
pub(crate) fn eventually(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < end, "waited {limit:?} in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The user and system time that this process has used.
pub(crate) fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").expect("a /proc file system");
    let (_, after_name) = stat.rsplit_once(") ").expect("a stat line");
    let ticks = after_name.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap());
    // In hundredths of a second, on every Linux.
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// The names of this process's threads that begin with `prefix`. The kernel keeps the first 15
/// bytes of a name.
pub(crate) fn threads_named(prefix: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir("/proc/self/task")
        .expect("a /proc file system")
        .flatten()
        // A thread may end while we look.
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names
}

/// Whether this test has its process to itself: what is seen of a whole process is its own doing.
pub(crate) fn alone() -> bool {
    env::var_os("NEXTEST").is_some()
}

/// Returns from the test, with a line that says so, where tests share a process.
macro_rules! skip_unless_alone {
    () => {
        if !$crate::support::alone() {
            eprintln!("SKIPPED: tests that share a process; run them with nextest");
            return;
        }
    };
}

/// Returns from the test, with a line that says so, when there is no ZooKeeper to run it on:
/// neither `ZKLOCK_HOSTS` nor an installation. With `ZKLOCK_TESTS_MUST_RUN` set it panics instead.
macro_rules! skip_without_zookeeper {
    () => {
        if $crate::support::skips(true) {
            return;
        }
    };
}

/// Like [`skip_without_zookeeper!`], for a test that needs servers of its own to harm:
/// `ZKLOCK_HOSTS` does not help.
macro_rules! skip_without_server {
    () => {
        if $crate::support::skips(false) {
            return;
        }
    };
}

pub(crate) use {skip_unless_alone, skip_without_server, skip_without_zookeeper};

/// Whether there is no ZooKeeper for a test, which is printed; what the macros do.
pub(crate) fn skips(given_hosts_will_do: bool) -> bool {
    if given_hosts_will_do && given_hosts().is_some() {
        return false;
    }
    match Installation::find() {
        Ok(_) => false,
        Err(why) if env::var_os("ZKLOCK_TESTS_MUST_RUN").is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            true
        }
    }
}
