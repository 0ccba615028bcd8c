//! Loggers of programs: one that panics, like one that prints to a pipe without a reader, and ones that use the
//! client, or block.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use zklock::{Client, LossReason, SessionState};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::stopwatch::{Stopwatch, Took};
use crate::support::{
    QUIET, connecting, eventually, skip_in_memory, skip_unless_alone, skip_without_server, strict,
};

const SOON: Duration = Duration::from_secs(15);

struct Panics;

static LINES: AtomicUsize = AtomicUsize::new(0);

impl Log for Panics {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.target().starts_with("zklock") {
            LINES.fetch_add(1, Ordering::SeqCst);
            panic!("failed printing to stderr");
        }
    }

    fn flush(&self) {}
}

#[test]
fn a_logger_that_panics_ends_neither_session_nor_call_and_keeps_no_loss_secret() {
    skip_without_server!();
    skip_in_memory!();
    skip_unless_alone!();
    // Keeps the intended panics out of the output.
    std::panic::set_hook(Box::new(|_| {}));
    log::set_logger(&Panics).unwrap();
    log::set_max_level(LevelFilter::Trace);
    let site = Site::own("logger");
    let (proxy, zk) = site.proxied(QUIET);
    let [kept, lost] = ["kept", "lost"].map(|name| strict(&zk, &site.base, name).lock().unwrap());

    // A lost lock.
    let (tell, told) = mpsc::channel();
    lost.on_lost(move |why| tell.send(why).unwrap());
    site.raw().delete(lost.path()).unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
    drop(lost);

    // An outage, in which the link searches for a server.
    let before = LINES.load(Ordering::SeqCst);
    proxy.refuse();
    eventually(SOON, "the loss of the connection", || zk.state() == SessionState::Suspended);
    eventually(SOON, "the search for a server", || LINES.load(Ordering::SeqCst) > before + 2);
    proxy.release();
    eventually(SOON, "the connection", || zk.state() == SessionState::Connected);
    kept.ensure_held().unwrap();

    // A call that logs a warning: a contender that does not wait for ours.
    let kazoo = format!("{}/odd/0f8fad5bd9cb469fa16570867728950e__lock__", site.base);
    site.raw().create_all(&format!("{}/odd", site.base)).unwrap();
    let mut raw = site.raw();
    raw.create(&kazoo, b"", Kind::EphemeralSequential).unwrap();
    let odd = strict(&zk, &site.base, "odd");
    assert!(odd.try_lock().unwrap().is_none());
    raw.close().unwrap();
    drop(odd.try_lock_for(SOON).unwrap().expect("the lock"));

    assert!(LINES.load(Ordering::SeqCst) < 1_000, "too many log lines: a busy loop");
    drop((kept, odd));
    site.finish([zk]);
}

/// A program's logger that uses the client itself, as one that adds the lock's holder to each line.
struct Asks;

static ASKED: Mutex<Option<(Client, String)>> = Mutex::new(None);
/// Each line with how long the logger's own request took and whether it was answered.
static SEEN: Mutex<Vec<(String, Took, bool)>> = Mutex::new(Vec::new());

impl Log for Asks {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let asked = ASKED.lock().unwrap().clone();
        let Some((zk, path)) = asked.filter(|_| record.target() == "zklock::link") else { return };
        let watch = Stopwatch::start();
        let is_answered = zk.znode(&path).stat().is_ok();
        let line = record.args().to_string();
        SEEN.lock().unwrap().push((line, watch.took(), is_answered));
    }

    fn flush(&self) {}
}

#[test]
fn a_logger_that_uses_the_client_holds_nobody_up() {
    skip_without_server!();
    skip_unless_alone!();
    log::set_logger(&Asks).unwrap();
    log::set_max_level(LevelFilter::Trace);
    let site = Site::own("asks");
    let proxy = Proxy::start(site.server().addr());
    let builder = connecting(&proxy.hosts()).session_timeout(Duration::from_secs(12));
    let zk = builder.connect().unwrap();
    let session = zk.session_id();
    let guard = strict(&zk, &site.base, "kept").lock().unwrap();
    *ASKED.lock().unwrap() = Some((zk.clone(), guard.path().to_owned()));
    let is_seen = |part: &str| SEEN.lock().unwrap().iter().any(|(line, ..)| line.contains(part));

    // Heartbeats that are refused.
    proxy.throttle(opcode::SYNC, 1);
    eventually(SOON, "the line of a refused heartbeat", || is_seen("refuses to pass heartbeats"));
    // A lost connection, and another one.
    proxy.cut();
    eventually(SOON, "the line of the loss", || is_seen("lost its connection"));
    eventually(SOON, "the line of the connection", || is_seen("is served again"));

    guard.ensure_held().unwrap();
    assert_eq!(zk.session_id(), session);
    for (line, took, is_answered) in SEEN.lock().unwrap().iter() {
        assert!(*is_answered && took.within(Duration::from_secs(2)), "{line}: {took:?}");
    }
    *ASKED.lock().unwrap() = None;
    drop(guard);
    site.finish([zk]);
}
