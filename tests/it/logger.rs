//! A program's logger that panics, like one that prints to a pipe without a reader.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use zklock::{LossReason, SessionState};

use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::{QUIET, eventually, skip_unless_alone, skip_without_server, strict};

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
