//! The machine's own threads and clocks.

use std::io;
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::Instant;

use super::{Deadline, Receiver, Sender, TryRecvError, bounded};

#[cfg_attr(test, expect(unused_imports, reason = "tests name them elsewhere"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};

#[cfg_attr(test, expect(unused_imports, reason = "tests have a condvar of their own"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

pub(super) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

pub(crate) use std::thread::ThreadId;

/// Identifies the calling thread.
pub(crate) fn thread_id() -> ThreadId {
    thread::current().id()
}

/// The clock that deadlines are measured by.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A random number that cannot be guessed.
pub(crate) fn random() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}

/// A bell, and the end of the thread that waits for it: a channel for one message.
pub(crate) fn bell() -> (Bell, Rung) {
    let ((ring, rung), sleeper) = (bounded(1), Arc::default());
    (Bell { ring, sleeper: Arc::clone(&sleeper) }, Rung { rung, sleeper })
}

/// The thread to unpark. The channel's own way to wait spins and yields before it sleeps; with many
/// waiters, that takes most of the processor time.
type Sleeper = Arc<Mutex<Option<Thread>>>;

#[derive(Clone, Debug)]
pub(crate) struct Bell {
    ring: Sender<()>,
    sleeper: Sleeper,
}

impl Bell {
    /// A bell that has been rung already needs no second ring.
    pub(crate) fn ring(&self) {
        if self.ring.try_send(()).is_ok() {
            let sleeper = self.sleeper.lock().take();
            sleeper.iter().for_each(Thread::unpark);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Rung {
    rung: Receiver<()>,
    sleeper: Sleeper,
}

impl Rung {
    pub(crate) fn is_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// Returns when the bell was rung since the last wait, or at the deadline.
    pub(crate) fn wait(&self, until: Deadline) {
        while self.rung.try_recv() == Err(TryRecvError::Empty) && !until.has_passed() {
            *self.sleeper.lock() = Some(thread::current());
            // A ring before that has found nobody to unpark.
            if !self.rung.is_empty() {
                continue;
            }
            match until.instant() {
                None => thread::park(),
                Some(end) => thread::park_timeout(end.saturating_duration_since(now())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_ring_ends_a_wait() {
        let ((ping, pinged), (pong, ponged)) = (bell(), bell());
        let answers = thread::spawn(move || {
            for _ in 0..10_000 {
                pinged.wait(Deadline::NEVER);
                pong.ring();
            }
        });
        for _ in 0..10_000 {
            ping.ring();
            ponged.wait(Deadline::NEVER);
        }
        answers.join().unwrap();
        let (_bell, rung) = bell();
        let end = Deadline::after(Duration::from_millis(1));
        rung.wait(end);
        assert!(end.has_passed());
    }

    #[test]
    fn a_bell_that_was_rung_twice_ends_one_wait() {
        let (bell, rung) = bell();
        bell.ring();
        bell.ring();
        rung.wait(Deadline::NEVER);
        assert!(!rung.is_rung());
    }
}
