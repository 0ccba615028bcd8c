//! The link's interface for callers: open, send, close.

mod commands;
mod locked_connection;
mod reading_turn;
mod runner;

pub(crate) use commands::{DeferredRequest, Outgoing};
#[cfg(all(test, shuttle))]
pub(crate) use reading_turn::Readable;
pub(crate) use reading_turn::{AwaitsServer, ReadingTurn};

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{fmt, io};

use parking_lot::{Mutex as Lock, MutexGuard};

use crate::connection_notice::{End, Info};
use crate::error::{Error, ErrorKind, Result};
use crate::link::protocol::LinkCore;
use crate::link::search::LinkConfig;
use crate::rt::{self, AtomicBool, AtomicU64, Deadline, Moment, Mutex, bounded, unbounded};
use commands::{Command, MOMENT, NAP, OnEvent, OnNotice};
use locked_connection::{LAPSED, LinkShared, LockedConnection, PATIENCE, end_of};
use reading_turn::LONGEST_READING;
use runner::Runner;

/// A session with the ensemble, closed in the background when this is dropped.
pub(crate) struct Link {
    /// The process that opened the link and has its thread. In a forked process no call does
    /// anything: the connection belongs to the parent, and the fork may have happened while another
    /// thread held locks or changed channels.
    pub(super) process: u32,
    shared: Arc<LinkShared>,
}

/// The largest reply that a client accepts, in bytes: a larger one fails its request only.
const MAX_REPLY: usize = 64 << 20;

impl Link {
    /// Starts to connect, and reports the progress by notices.
    pub(crate) fn open(config: LinkConfig, on_notice: OnNotice, on_event: OnEvent) -> Result<Link> {
        let system = |cause: io::Error| {
            Error::new(ErrorKind::System, format!("could not make a socket pair: {cause}"))
                .caused_by(cause)
        };
        let (near, far) = UnixStream::pair().map_err(system)?;
        near.set_nonblocking(true).map_err(system)?;
        far.set_nonblocking(true).map_err(system)?;
        let (commands, received) = unbounded();
        let unsupported_operations = Arc::clone(&config.resolver.unsupported_operations);
        let core = LinkCore::new(MAX_REPLY, unsupported_operations);
        let shared = Arc::new(LinkShared {
            lease_end: AtomicU64::new(LAPSED),
            info: Mutex::default(),
            deferred: Lock::default(),
            stopped: AtomicBool::new(false),
            commands,
            waker: near,
            is_woken: AtomicBool::new(false),
            connection: Lock::new(LockedConnection::new(core)),
            turn: ReadingTurn::new(),
            on_event,
        });
        let runner = Runner::new(config, &shared, on_notice, received, far);
        rt::spawn("zklock-link", move || runner.run())?;
        Ok(Link { process: std::process::id(), shared })
    }

    fn is_elsewhere(&self) -> bool {
        self.process != std::process::id()
    }

    fn tell(&self, command: Command) {
        if !self.is_elsewhere() {
            self.shared.tell(command);
        }
    }

    /// The connection, unless another thread has it locked for long.
    fn look(&self) -> Option<MutexGuard<'_, LockedConnection>> {
        if self.is_elsewhere() { None } else { self.shared.connection.try_lock_for(PATIENCE) }
    }

    /// Sends requests back to back, and says whether all bytes are written.
    ///
    /// The calling thread writes them itself if the connection is not locked, which saves waking
    /// the link's thread. If commands are queued, the requests are queued behind them.
    pub(crate) fn send(&self, verbs: Vec<Outgoing>) -> bool {
        if self.is_elsewhere() {
            return true;
        }
        let shared = &self.shared;
        let is_free = || shared.commands.is_empty() && !shared.stopped.load(Ordering::SeqCst);
        let Some(mut connection) = shared.connection.try_lock().filter(|_| is_free()) else {
            self.tell(Command::Verbs(verbs));
            return false;
        };
        connection.ask(verbs);
        let written = connection.write();
        let needs_the_thread = connection.needs_the_thread();
        drop(connection);
        if needs_the_thread {
            self.shared.wake();
        }
        written
    }

    /// Counts a caller that is about to wait for something from the server; with `reads`, it calls
    /// `read_until` before it sleeps.
    pub(crate) fn await_server(&self, reads: bool) -> Option<AwaitsServer> {
        let turn = &self.shared.turn;
        match reads {
            _ if self.is_elsewhere() => None,
            true => Some(turn.count()),
            false => Some(turn.count_sleeper(&*self.shared)),
        }
    }

    /// Reads what the server sends, on the calling thread, if nobody else does: until it `is_done`,
    /// then, or for 20 ms. The caller was counted, and looks once more when this returns.
    pub(crate) fn read_until(&self, then: Deadline, is_done: impl Fn() -> bool) {
        let left = then.instant().map(|end| end.saturating_duration_since(rt::now()));
        let longest = LONGEST_READING.min(left.unwrap_or(LONGEST_READING));
        let now = Moment::now();
        self.shared.turn.read(&*self.shared, now, now.plus(longest), is_done);
    }

    /// Sends a request a few milliseconds from now, if it is still wanted then.
    pub(crate) fn later(&self, later: DeferredRequest) {
        if self.is_elsewhere() {
            return;
        }
        let now = Moment::now();
        let mut deferred = self.shared.deferred.lock();
        if self.shared.stopped.load(Ordering::SeqCst) {
            return self.tell(Command::Verbs(vec![later.verb]));
        }
        deferred.all.push_back((now.plus(MOMENT), later));
        let is_asleep = Moment::from_nanos(deferred.asleep_until) > now.plus(NAP);
        drop(deferred);
        if is_asleep {
            self.shared.wake();
        }
    }

    /// Returns when the operating system has taken every request so far, when there is no
    /// connection, or at the deadline.
    pub(crate) fn flushed_by(&self, until: Deadline) {
        let (mark, written) = bounded(0);
        self.tell(Command::FlushMark(mark));
        // Dropping the mark ends the wait; nothing is ever sent.
        let _ = match until.instant() {
            Some(end) => written.recv_deadline(end).is_ok(),
            None => written.recv().is_ok(),
        };
    }

    /// Makes the connection anew, unless a request waits for its answer: the server then forgets the
    /// watches that were set on it.
    pub(crate) fn reconnect(&self) {
        self.tell(Command::Reconnect);
    }

    /// Starts to close the session for that reason; the link gives up if no server confirms it within
    /// `give_up_after`.
    pub(crate) fn close(&self, why: End, give_up_after: Duration) {
        self.tell(Command::Close(why, give_up_after));
    }

    /// For how long the lease still runs; otherwise how the session has ended. After an error there are
    /// only errors: a call that finds the lease run out ends it for all, even if a renewal is on
    /// its way.
    pub(crate) fn lease(&self) -> Result<Duration, End> {
        if self.is_elsewhere() { Err(End::Closed) } else { self.lease_here() }
    }

    /// The same, for a caller that knows that the process is not a forked one.
    pub(crate) fn lease_here(&self) -> Result<Duration, End> {
        let lease_end = &self.shared.lease_end;
        let mut end = lease_end.load(Ordering::Acquire);
        loop {
            if let Some(why) = end_of(end) {
                return Err(why);
            }
            let left = Moment::from_nanos(end).since(Moment::now());
            if left > Duration::ZERO {
                return Ok(left);
            }
            match lease_end.compare_exchange(end, LAPSED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.shared.wake();
                    return Err(End::Lapsed);
                }
                Err(renewed) => end = renewed,
            }
        }
    }

    /// Why the lease has run out, if it has, and if that can be found out at once.
    pub(crate) fn why_lapsed(&self) -> Option<String> {
        let mut connection = self.look()?;
        if self.shared.lease_end.load(Ordering::Acquire) == LAPSED {
            // A caller may have found that out before the link's thread.
            connection.note_pause(Moment::now());
            self.shared.note_trouble(&mut connection);
            connection.core.lapse(Moment::now());
        }
        connection.core.why_lapsed().map(str::to_owned)
    }

    /// The greatest zxid that a reply of the session's servers has told; zero if it has ended, or if that
    /// cannot be found out at once.
    pub(crate) fn seen_zxid(&self) -> i64 {
        self.look().map_or(0, |connection| connection.core.last_zxid())
    }

    pub(crate) fn info(&self) -> Info {
        if self.is_elsewhere() { Info::default() } else { self.shared.info.lock().clone() }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tell(Command::Dropped);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("info", &self.info()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "../../../tests/link/panic_and_fork_tests.rs"]
mod panic_and_fork_tests;

#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "../../../tests/link/runner_tests.rs"]
mod runner_tests;
