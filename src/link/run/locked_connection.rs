//! The connection that callers share with the link's thread: a thread that has locked it may send.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Mutex as Lock, MutexGuard};
use rustix::event::{PollFd, PollFlags};

use super::commands::{Command, DeferredRequest, OnEvent, Outgoing};
use super::reading_turn::{Readable, ReadingTurn};
use crate::connection_notice::{End, Info, Notice};
use crate::link::protocol::{LinkCore, ToTell};
use crate::link::transport::ServerStream;
use crate::rt::{AtomicBool, AtomicU64, Moment, Mutex, Sender};

/// How long a caller waits for the connection: a signal handler may hold up the thread that has it locked.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);

/// A thread that wakes up so much too late was paused.
const PAUSE: Duration = Duration::from_secs(1);

/// The value of `lease_end` when the lease has run out or has not begun.
pub(super) const LAPSED: u64 = 0;

/// How a session has ended, by the value that `lease_end` has then: no clock shows so early a time.
const ENDS: [End; 5] = [End::Lapsed, End::Expired, End::AuthFailed, End::Closed, End::Replaced];

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
    pub(super) turn: Arc<ReadingTurn>,
    pub(super) on_event: OnEvent,
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

    /// Publishes the lease, which goes before everything that is told.
    pub(super) fn publish_lease(&self, connection: &mut LockedConnection) {
        let core = &mut connection.core;
        let end = core.ended().map_or_else(|| core.lease_end().as_nanos(), code_of);
        let before = std::mem::replace(&mut connection.published_lease, end);
        let lease_end = &self.lease_end;
        if lease_end.compare_exchange(before, end, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // A caller was told that the lease has run out, so it has run out for all.
            connection.published_lease = LAPSED;
            self.note_trouble(connection);
            connection.core.lapse(Moment::now());
        }
    }

    /// Why there is no connection, for the reason why the lease runs out.
    pub(super) fn note_trouble(&self, connection: &mut LockedConnection) {
        if !connection.core.is_attached() {
            connection.core.no_server(self.info.lock().trouble.clone());
        }
    }

    /// Tells answers and events, in their order; with `on_notice` notices, too, and what comes meanwhile.
    ///
    /// Unlocked, as callers that are told may send at once. Only one thread tells at a time: what
    /// another one finds to be told meanwhile is left to it.
    pub(super) fn tell_all(
        &self,
        connection: &mut MutexGuard<'_, LockedConnection>,
        mut on_notice: Option<&mut dyn FnMut(Notice)>,
    ) {
        if std::mem::replace(&mut connection.is_telling, true) {
            return;
        }
        loop {
            let core = &mut connection.core;
            let mut all =
                if on_notice.is_some() { core.take_all() } else { core.take_until_notice() };
            if all.is_empty() {
                break;
            }
            MutexGuard::unlocked(connection, || {
                let mut after = Vec::new();
                for one in all.drain(..) {
                    survive(|| match one {
                        ToTell::Notice(notice) => {
                            on_notice.iter_mut().for_each(|on_notice| on_notice(notice));
                        }
                        ToTell::Answer(on_answer, answer) => on_answer(answer),
                        ToTell::Event(event, path) => after.extend((self.on_event)(event, &path)),
                    });
                }
                after.iter().for_each(|call| survive(|| call()));
            });
            connection.core.use_again(all);
            if on_notice.is_none() {
                break;
            }
        }
        connection.is_telling = false;
    }

    fn read_for_caller(&self) -> bool {
        let Some(mut connection) = self.connection.try_lock_for(PATIENCE) else { return false };
        connection.note_pause(Moment::now());
        match connection.read() {
            Ok(_) => {
                self.publish_lease(&mut connection);
                self.tell_all(&mut connection, None);
            }
            Err(why) => connection.broken = Some(Broken { why, is_read: true }),
        }
        let goes_on = connection.broken.is_none() && !connection.core.is_over();
        let is_left = connection.needs_the_thread();
        drop(connection);
        if is_left {
            self.wake();
        }
        goes_on
    }

    /// After a panic of a thread that may have been telling, the session is over.
    pub(super) fn end_after_panic(&self) {
        let mut connection = self.connection.lock();
        connection.is_telling = false;
        connection.core.end_at_once(End::Lapsed);
    }
}

impl Readable for LinkShared {
    fn wait_for_server(&self, until: Moment) -> bool {
        let patience = until.since(Moment::now()).min(PATIENCE);
        let Some(connection) = self.connection.try_lock_for(patience) else { return false };
        // What is told just now may be what the caller waits for.
        let is_quiet =
            connection.broken.is_none() && !connection.is_telling && !connection.core.has_news();
        let server = connection.server.as_ref().filter(|_| is_quiet);
        let Some(server) = server.map(|server| Arc::clone(server.tcp())) else { return false };
        drop(connection);
        let left = until.since(Moment::now());
        if left.is_zero() {
            return false;
        }
        let mut sockets = [PollFd::new(&server, PollFlags::IN)];
        poll(&mut sockets, Some(left)).is_ok() && !sockets[0].revents().is_empty()
    }

    fn read_and_tell(&self) -> bool {
        let read = catch_unwind(AssertUnwindSafe(|| self.read_for_caller()));
        read.unwrap_or_else(|_| {
            self.end_after_panic();
            self.wake();
            false
        })
    }

    fn wake(&self) {
        LinkShared::wake(self);
    }
}

/// What callers share with the link's thread. Any thread that has locked it may send, and read; only
/// the link's thread finds another server.
pub(super) struct LockedConnection {
    pub(super) core: LinkCore,
    pub(super) server: Option<ServerStream>,
    /// Set if a caller has found out that the connection no longer works.
    pub(super) broken: Option<Broken>,
    /// Until when the link's thread intends to sleep.
    pub(super) asleep_until: Moment,
    /// The value of `lease_end` that was last published.
    published_lease: u64,
    /// Whether a thread tells what has come.
    is_telling: bool,
    buffer: Vec<u8>,
}

/// How a caller has found out that the connection no longer works.
pub(super) struct Broken {
    pub(super) why: String,
    /// Whether all was read that came before.
    pub(super) is_read: bool,
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
    pub(super) fn new(core: LinkCore) -> LockedConnection {
        LockedConnection {
            core,
            server: None,
            broken: None,
            asleep_until: Moment::ZERO,
            published_lease: LAPSED,
            is_telling: false,
            buffer: vec![0; 64 * 1024],
        }
    }

    /// Reads once, and says whether there may be more to read; an error says why the connection is lost.
    pub(super) fn read(&mut self) -> Result<bool, String> {
        let Some(server) = &mut self.server else { return Ok(false) };
        match server.receive(&mut self.buffer) {
            Ok(0) => {
                self.core.server_has_hung_up(Moment::now());
                if self.core.is_over() { Ok(false) } else { Err("the server closed it".to_owned()) }
            }
            Ok(read) => self.core.heard_server(&self.buffer[..read], Moment::now()).map(|()| true),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(error) => {
                self.core.server_has_closed(Moment::now());
                Err(error.to_string())
            }
        }
    }

    /// Ends the connection, also for a caller that waits for the server; says whether there was one.
    pub(super) fn hang_up(&mut self) -> bool {
        self.broken = None;
        let Some(server) = self.server.take() else { return false };
        // It may be closed already.
        let _ = server.tcp().shutdown(Shutdown::Both);
        true
    }

    /// Writes what is queued, and says whether the operating system has taken all of it.
    pub(super) fn write(&mut self) -> bool {
        if let (Some(server), None) = (&mut self.server, &self.broken) {
            if let Err(error) = server.send(self.core.for_server()) {
                self.broken = Some(Broken { why: error.to_string(), is_read: false });
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

/// Runs what may panic; the panic itself is reported by the process's panic hook.
pub(super) fn survive(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

/// Waits until one of the sockets is ready or the time is over.
pub(super) fn poll(sockets: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.map(|limit| rustix::event::Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match rustix::event::poll(sockets, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
