//! What the integration tests use: real servers, a faulty network, an independent client.

#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "test code; a build may use only a part of it"
)]

pub(crate) mod certificates;
pub(crate) mod ensemble;
pub(crate) mod keeper;
pub(crate) mod logs;
pub(crate) mod promised_lease;
pub(crate) mod proxy;
pub(crate) mod raw;
pub(crate) mod server;
pub(crate) mod site;
pub(crate) mod stopwatch;
pub(crate) mod transport;
pub(crate) mod wire;

use std::env;
use std::fs;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use zklock::{Client, ClientBuilder, DistributedLock, HandOver, ReentrantLock};

use server::Server;
use site::Site;
use stopwatch::{Stopwatch, Took};
use transport::Transport;

/// The connect string of a server that tests share and do not disturb: the one in `ZKLOCK_HOSTS`,
/// or one that this process starts once and that ends with it.
pub(crate) fn shared_hosts() -> &'static str {
    static SERVER: OnceLock<Server> = OnceLock::new();
    static HOSTS: OnceLock<String> = OnceLock::new();
    let start = || Site::start(&Server::builder());
    HOSTS.get_or_init(|| given_hosts().unwrap_or_else(|| SERVER.get_or_init(start).hosts()))
}

fn given_hosts() -> Option<String> {
    env::var("ZKLOCK_HOSTS").ok().filter(|hosts| !hosts.is_empty())
}

/// A number that the environment may set.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The settings of a client of these hosts, over the transport that the environment asks for.
pub(crate) fn connecting(hosts: &str) -> ClientBuilder {
    Transport::wanted().client(hosts)
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

/// The mutex `base/name` as tests make it: with the default settings, or with one node for each
/// acquisition if `ZKLOCK_HAND_OVER=off`. A test that depends on either sets it explicitly.
pub(crate) fn mutex(
    zk: impl Into<Client>,
    base: impl AsRef<str>,
    name: impl AsRef<str>,
) -> DistributedLock {
    let mut lock = DistributedLock::new(zk, base, name);
    if let Some(acl) = Transport::wanted().acl() {
        lock = lock.acl(acl);
    }
    if hands_over() { lock } else { lock.hand_over(HandOver::Off) }
}

/// A mutex that makes a new node for each acquisition, whatever the environment says.
pub(crate) fn strict(
    zk: impl Into<Client>,
    base: impl AsRef<str>,
    name: impl AsRef<str>,
) -> DistributedLock {
    mutex(zk, base, name).hand_over(HandOver::Off)
}

/// Like [`mutex`], but reentrant.
pub(crate) fn reentrant(
    zk: impl Into<Client>,
    base: impl AsRef<str>,
    name: impl AsRef<str>,
) -> ReentrantLock {
    ReentrantLock::from(mutex(zk, base, name))
}

/// How many nodes `threads` threads of one client make if they all use equal mutexes.
pub(crate) fn nodes_of(threads: usize) -> usize {
    if hands_over() { threads.min(1) } else { threads }
}

/// Whether threads of one client share a node when their mutex does not set it explicitly.
fn hands_over() -> bool {
    match env::var("ZKLOCK_HAND_OVER").as_deref() {
        Ok("off") => false,
        Ok("on") | Err(env::VarError::NotPresent) => true,
        other => panic!("ZKLOCK_HAND_OVER must be on or off, not {other:?}"),
    }
}

/// A session timeout so long that no heartbeat is sent while a test runs: tests count requests.
pub(crate) const QUIET: Duration = Duration::from_secs(600);

/// Makes a change whose reply is lost, and does something else before the client has another
/// connection.
pub(crate) fn unanswered<T: Send>(
    proxy: &proxy::Proxy,
    opcode: i32,
    change: impl FnOnce() -> T + Send,
    has_taken_effect: impl Fn() -> bool,
    meanwhile: impl FnOnce(),
) -> T {
    proxy.stall_reply(opcode);
    thread::scope(|scope| {
        let changed = scope.spawn(change);
        eventually(Duration::from_secs(15), "the change", has_taken_effect);
        proxy.refuse();
        meanwhile();
        proxy.pass();
        changed.join().unwrap()
    })
}

/// The kind of the error in `result`, which must be one.
pub(crate) fn kind<T>(result: zklock::Result<T>) -> zklock::ErrorKind {
    result.err().expect("an error").kind()
}

/// Whether a call got nothing because no server answered it in time.
pub(crate) fn is_unanswered<T>(result: zklock::Result<Option<T>>) -> bool {
    result.is_err_and(|error| error.kind() == zklock::ErrorKind::Connect)
}

/// Whether a call got nothing: because others were ahead or, if it had little time, because no
/// server answered it.
pub(crate) fn got_nothing<T>(result: zklock::Result<Option<T>>) -> bool {
    match result {
        Ok(got) => got.is_none(),
        Err(error) => error.kind() == zklock::ErrorKind::Connect,
    }
}

/// The last component of a path.
pub(crate) fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

/// Returns the result of `call`, and how long it took.
pub(crate) fn timed<T>(call: impl FnOnce() -> T) -> (T, Took) {
    let watch = Stopwatch::start();
    let result = call();
    (result, watch.took())
}

/// Runs `call` on a new thread; the receiver gets its result.
pub(crate) fn in_background<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> mpsc::Receiver<T> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(call()));
    told
}

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within `limit`, plus what a busy machine adds; the message names `what`.
pub(crate) fn eventually(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    if condition() {
        return;
    }
    let (end, watch) = (Instant::now() + limit, Stopwatch::start());
    // The wait must end even on a machine that is always busy.
    let last = end + limit * 3;
    while !condition() {
        let now = Instant::now();
        let waits = now < end || now < last && watch.took().within(limit);
        assert!(waits, "timed out after {:?} waiting for {what}", watch.took());
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

/// Raises a flag when dropped, so that the threads of a scope end even if the test fails.
pub(crate) struct Raise<'a>(pub(crate) &'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A holder at work: it checks that it is the only one, and ends even if the test fails there, so that it
/// is not taken for another one.
pub(crate) struct Inside<'a>(&'a AtomicBool);

impl Inside<'_> {
    pub(crate) fn enter(inside: &AtomicBool) -> Inside<'_> {
        assert!(!inside.swap(true, Ordering::SeqCst), "two holders at once");
        Inside(inside)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Runs `call` on a new thread, and returns once that thread waits for another one or the server.
pub(crate) fn waiting<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        tell.send(own_task()).unwrap();
        call()
    });
    wait_until_asleep(told.recv().unwrap());
    thread
}

/// The kernel's number for the calling thread.
pub(crate) fn own_task() -> u32 {
    let task = fs::read_link("/proc/thread-self").expect("a /proc file system");
    task.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number")
}

/// Waits until a thread of this process sleeps, for more than a moment.
///
/// # Panics
/// When the thread ends instead.
pub(crate) fn wait_until_asleep(task: u32) {
    let look = || {
        let status = fs::read_to_string(format!("/proc/self/task/{task}/status"));
        let status = status.expect("a thread that waits, and has not ended");
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let sleeps = field("State:").is_some_and(|state| state.trim_start().starts_with('S'));
        (sleeps, field("voluntary_ctxt_switches:").map(str::to_owned))
    };
    let (mut before, mut same) = (look(), 0);
    eventually(Duration::from_secs(10), "a thread to wait", || {
        let now = look();
        same = if now.0 && now == before { same + 1 } else { 0 };
        before = now;
        same == 3
    });
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

/// Whether this test is alone in its process, so that whatever the process does is its own doing.
pub(crate) fn alone() -> bool {
    env::var_os("NEXTEST").is_some()
}

/// Returns from the test, and prints a line about it, if tests share a process.
macro_rules! skip_unless_alone {
    () => {
        if !$crate::support::alone() {
            eprintln!("SKIPPED: tests that share a process; run them with nextest");
            return;
        }
    };
}

/// Returns from the test, and prints a line about it, if servers are in this process, of which the test measures
/// something, or whose logger it breaks.
macro_rules! skip_in_memory {
    () => {
        if $crate::support::server::is_in_memory() {
            eprintln!("SKIPPED: the server is in this process");
            return;
        }
    };
}

/// Returns from the test, and prints a line about it, if there is no ZooKeeper to run it on:
/// neither `ZKLOCK_HOSTS` nor an installation. With `ZKLOCK_TESTS_MUST_RUN` set it panics instead.
macro_rules! skip_without_zookeeper {
    () => {
        if $crate::support::skips(true) {
            return;
        }
    };
}

/// Like [`skip_without_zookeeper!`], for a test that needs servers of its own to disturb:
/// `ZKLOCK_HOSTS` does not help.
macro_rules! skip_without_server {
    () => {
        if $crate::support::skips(false) {
            return;
        }
    };
}

/// Returns from the test, and prints why, if the servers are older than version 3 and this number,
/// and so lack something.
macro_rules! skip_before {
    (3, $minor:literal, $lacks:literal) => {
        if $crate::support::server::is_before((3, $minor)) {
            eprintln!("SKIPPED: servers before 3.{} {}", $minor, $lacks);
            return;
        }
    };
}

pub(crate) use {
    skip_before, skip_in_memory, skip_unless_alone, skip_without_server, skip_without_zookeeper,
};

/// Whether a test has no ZooKeeper to run on; prints why. The macros call it.
pub(crate) fn skips(given_hosts_will_do: bool) -> bool {
    if given_hosts_will_do && given_hosts().is_some() {
        return false;
    }
    match server::can_start() {
        Ok(()) => false,
        Err(why) if why.kind() != io::ErrorKind::NotFound => panic!("{why}"),
        Err(why) if env::var_os("ZKLOCK_TESTS_MUST_RUN").is_some() => panic!("{why}"),
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            true
        }
    }
}
