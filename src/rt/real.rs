//! The machine's own threads and clocks.

use std::io;
use std::time::Instant;

use super::Deadline;
use super::Receiver;
use super::Sender;
use super::bounded;

#[cfg_attr(test, expect(unused_imports, reason = "tests name them elsewhere"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg_attr(test, expect(unused_imports, reason = "tests have a condvar of their own"))]
pub(crate) use parking_lot::{Condvar, Mutex};

pub(super) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

pub(crate) use std::thread::ThreadId;

/// Identifies the calling thread.
pub(crate) fn thread_id() -> ThreadId {
    std::thread::current().id()
}

/// The clock that deadlines are measured by.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A random number that cannot be guessed.
pub(crate) fn random() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}

/// A bell, and the receiver that waits for it.
pub(crate) fn bell() -> (Bell, Rung) {
    let (ring, rung) = bounded(1);
    (Bell(ring), Rung(rung))
}

#[derive(Clone, Debug)]
pub(crate) struct Bell(Sender<()>);

impl Bell {
    /// A bell that has been rung already needs no second ring.
    pub(crate) fn ring(&self) {
        let _ = self.0.try_send(());
    }
}

#[derive(Debug)]
pub(crate) struct Rung(Receiver<()>);

impl Rung {
    /// Returns when the bell was rung since the last wait, or at the deadline.
    pub(crate) fn wait(&self, until: Deadline) {
        match until.instant() {
            None => drop(self.0.recv()),
            Some(end) => drop(self.0.recv_deadline(end)),
        }
    }
}

#[cfg(test)]
impl Rung {
    pub(super) fn is_rung(&self) -> bool {
        !self.0.is_empty()
    }
}
