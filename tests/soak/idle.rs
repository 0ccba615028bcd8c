//! A session that only holds a lock: nothing but heartbeats renews its lease.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Client, DistributedLock, LockGuard};

use super::history::{Journal, Who, now, word};
use super::worker::BASE;

/// How often the holder looks whether it still holds.
const LOOK: Duration = Duration::from_millis(50);

/// The thread that holds it.
pub(crate) struct Idle {
    zk: Client,
    /// Nobody else uses it.
    lock: DistributedLock,
    name: String,
    who: Who,
    journal: Arc<Journal>,
}

impl Idle {
    pub(crate) fn new(zk: Client, who: Who, journal: Arc<Journal>) -> Idle {
        let name = format!("idle-{}.{}", who.slot, who.generation);
        let lock = DistributedLock::new(&zk, BASE, &name);
        Idle { zk, lock, name, who, journal }
    }

    /// Holds the lock until the end, and acquires it again whenever it is lost.
    pub(crate) fn work(&self, ending: &AtomicBool) {
        while !ending.load(Ordering::SeqCst) {
            self.note(format_args!("want {} lock - alone", self.name));
            match self.lock.lock() {
                Ok(guard) => self.hold(guard, ending),
                Err(error) => self.note(format_args!("failed {:?} {}", error.kind(), word(&error))),
            }
        }
    }

    fn hold(&self, guard: LockGuard, ending: &AtomicBool) {
        let session = self.zk.session_id().map_or(0, i64::from);
        self.note(format_args!("got {} {session:x} {}", guard.fencing_token(), guard.path()));
        let (journal, who, path) = (Arc::clone(&self.journal), self.who, guard.path().to_owned());
        guard.on_lost(move |why| {
            journal.note(who, format_args!("lost {path} {}", word(why)));
        });
        loop {
            let asked = now();
            let held = guard.is_held();
            self.note(format_args!("{} {asked}", if held { "held" } else { "unheld" }));
            if !held || ending.load(Ordering::SeqCst) {
                break;
            }
            thread::sleep(LOOK);
        }
        self.note("release drop");
        drop(guard);
        self.note("released ok");
    }

    fn note(&self, what: impl Display) {
        self.journal.note(self.who, what);
    }
}
