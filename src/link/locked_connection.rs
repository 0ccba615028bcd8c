//! The connection that callers share with the link's thread: a thread that has locked it may send.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex as Lock;

use super::core::LinkCore;
use super::link_commands::{Command, DeferredRequest, Outgoing};
use super::server_stream::ServerStream;
use crate::connection_notice::{End, Info};
use crate::rt::{AtomicBool, AtomicU64, Moment, Mutex, Sender};

/// A thread that wakes up so much too late was paused.
const PAUSE: Duration = Duration::from_secs(1);

/// The value of `lease_end` when the lease has run out or has not begun.
pub(super) const LAPSED: u64 = 0;

/// How a session has ended, by the value that `lease_end` has then: no clock shows so early a time.
const ENDS: [End; 4] = [End::Lapsed, End::Expired, End::AuthFailed, End::Closed];

pub(super) fn code_of(end: End) -> u64 {
    ENDS.iter().position(|one| *one == end).map_or(LAPSED, |code| code as u64)
}

pub(super) fn end_of(code: u64) -> Option<End> {
    ENDS.get(usize::try_from(code).ok()?).copied()
}

pub(super) struct LinkShared {
    /// In nanoseconds of a [`Moment`]. The link moves it forward; a caller that finds it in the
    /// past replaces it with [`LAPSED`]. Once the session is over, the code of how it ended.
    pub(super) lease_end: AtomicU64,
    pub(super) info: Mutex<Info>,
    pub(super) connection: Lock<LockedConnection>,
    pub(super) deferred: Lock<Deferred>,
    /// The link's thread no longer uses `connection`, and only answers commands.
    pub(super) stopped: AtomicBool,
    pub(super) commands: Sender<Command>,
    /// What the link's thread waits for, besides the server.
    pub(super) waker: UnixStream,
    /// Whether it has been woken, and has not looked yet.
    pub(super) is_woken: AtomicBool,
}

impl LinkShared {
    /// Has the link's thread do something, unless it has ended.
    pub(super) fn tell(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            // A full pipe wakes as well as one more byte would.
            let _ = (&self.waker).write(&[1]);
        }
    }
}

/// What callers share with the link's thread. Any thread that has locked it may send; only the
/// link's thread passes on what the server sent, and finds another server.
#[derive(Default)]
pub(super) struct LockedConnection {
    pub(super) core: LinkCore,
    pub(super) server: Option<ServerStream>,
    /// Why the connection no longer works, if a caller has found that out.
    pub(super) broken: Option<String>,
    /// Until when the link's thread intends to sleep.
    pub(super) asleep_until: Moment,
}

/// Deferred requests. They have a lock of their own: callers defer a request just after the link's
/// thread has told them something, and that thread then has `connection` locked.
#[derive(Default)]
pub(super) struct Deferred {
    /// Each with the time when it is due.
    pub(super) all: VecDeque<(Moment, DeferredRequest)>,
    /// Until when the link's thread intends to sleep, in nanoseconds.
    pub(super) asleep_until: u64,
}

impl LockedConnection {
    /// Writes what is queued, and says whether the operating system has taken all of it.
    pub(super) fn write(&mut self) -> bool {
        if let (Some(server), None) = (&mut self.server, &self.broken) {
            if let Err(error) = server.send(self.core.for_server()) {
                self.broken = Some(error.to_string());
            }
        }
        self.core.pass_marks();
        self.core.for_server().is_empty()
    }

    /// Notes that no thread was running if the link's thread has slept far too long.
    pub(super) fn note_pause(&mut self, now: Moment) {
        let late = now.since(self.asleep_until);
        if self.asleep_until != Moment::NEVER && late >= PAUSE {
            self.core.paused(late, now);
            self.asleep_until = Moment::NEVER;
        }
    }

    pub(super) fn ask(&mut self, verbs: Vec<Outgoing>) {
        let now = Moment::now();
        for Outgoing { operation, body, on_answer } in verbs {
            self.core.verb(operation, &body, on_answer, now);
        }
    }

    /// Whether something is to be written that the operating system has not taken yet.
    pub(super) fn wants_to_send(&mut self) -> bool {
        !self.core.for_server().is_empty()
            || self.server.as_ref().is_some_and(ServerStream::wants_to_send)
    }

    /// Whether the link's thread has something to do before it would wake by itself.
    pub(super) fn needs_the_thread(&mut self) -> bool {
        self.broken.is_some()
            || self.core.has_news()
            || self.wants_to_send()
            || self.core.next_tick() < self.asleep_until
    }
}
