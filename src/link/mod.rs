//! The link: it owns the connection to the ensemble.
//!
//! One thread, one session, one socket, and nothing that listens. A caller whose request finds
//! nobody at the line sends it by itself; what comes in, and what must be waited for, is the
//! thread's. Every request is answered once, in bounded time: by the server, or with a lost
//! connection or session. [`core`] is the protocol, [`lease`] what is known of the session's life,
//! [`dial`] the way to a server, [`frame`] the bytes; this file is the sockets.

pub(crate) mod core;
pub(crate) mod dial;
pub(crate) mod frame;
mod lease;
pub(crate) mod size;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex as Lock, MutexGuard};
use rustix::event::{PollFd, PollFlags};

use self::core::{End, FlushMark, Incoming, LinkCore, Notice, OnAnswer};
use self::dial::{Auth, Dial, Dialed, Resolver, Wanted};
use self::frame::code::SESSION_EXPIRED;
use crate::error::{Error, ErrorKind, Result};
use crate::logging;
use crate::rt::{self, Deadline, Moment, Mutex, Receiver, Sender, bounded, unbounded};

/// What a link needs to know.
#[derive(Clone, Debug)]
pub(crate) struct LinkConfig {
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) auth: Vec<Auth>,
    pub(crate) session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_reply: usize,
}

/// Told of the session's fate on the link's thread; may do no more than signal.
pub(crate) type OnNotice = Box<dyn Fn(Notice) + Send>;

/// Told, on the link's thread, which node a watch has fired on; may do no more than signal.
pub(crate) type OnEvent = Box<dyn Fn(&str) + Send>;

/// What is known of the session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info {
    pub(crate) session: i64,
    /// What the server has granted.
    pub(crate) timeout: Duration,
    /// The server it is connected to, if it is.
    pub(crate) server: Option<SocketAddr>,
    /// Why no server could be had when last tried.
    pub(crate) trouble: Option<String>,
}

/// A session with the ensemble. Dropped, the session is closed in the background.
pub(crate) struct Link {
    /// The process that has opened it, and has its thread. In a forked one nothing is done: the
    /// connection is not its own, and locks and channels may be left as another thread had them.
    process: u32,
    shared: Arc<LinkShared>,
    commands: Sender<Command>,
    waker: Arc<Waker>,
}

/// A request, and who is to have its answer.
pub(crate) struct Outgoing {
    pub(crate) operation: i32,
    pub(crate) body: Vec<u8>,
    pub(crate) on_answer: OnAnswer,
}

/// A request that can wait for a moment, and may not be needed then.
pub(crate) struct DeferredRequest {
    pub(crate) verb: Outgoing,
    pub(crate) is_wanted: Box<dyn Fn() -> bool + Send>,
}

/// How long such a request waits at the least.
const MOMENT: Duration = Duration::from_millis(3);
/// How long the link's thread sleeps at the most after it has passed something on: what is put off
/// by those who have heard it needs no wake-up of the thread then.
const NAP: Duration = Duration::from_millis(5);

/// For the end of a lease: it has come, or has not begun.
const LAPSED: u64 = 0;

/// What stands for the end of a session in the place of its lease's end: no clock is that early.
fn code_of(end: End) -> u64 {
    match end {
        End::Lapsed => LAPSED,
        End::Expired => 1,
        End::AuthFailed => 2,
        End::Closed => 3,
    }
}

fn end_of(code: u64) -> Option<End> {
    let all = [End::Lapsed, End::Expired, End::AuthFailed, End::Closed];
    all.into_iter().find(|end| code_of(*end) == code)
}

struct LinkShared {
    /// In nanoseconds of a [`Moment`]. The link moves it forward, whoever finds it in the
    /// past puts [`LAPSED`] in its place. Once the session is over, the code of how it ended.
    lease_end: AtomicU64,
    info: Mutex<Info>,
    line: Lock<SharedConnection>,
    put_off: Lock<Deferred>,
    /// The link's thread has nothing to do with the line any more, and only answers its commands.
    stopped: AtomicBool,
}

/// What callers share with the link's thread. Whoever has it may send; to pass on what the server
/// has said, and to find another one, is for the thread alone.
struct SharedConnection {
    core: LinkCore,
    server: Option<Arc<TcpStream>>,
    /// Why the connection is of no use any more, if a caller has found that.
    broken: Option<String>,
    /// Until when the link's thread means to sleep.
    asleep_until: Moment,
}

/// What was put off. With a lock of its own: it is asked for just when the link's thread, which has
/// told the caller something, is busy with its line.
#[derive(Default)]
struct Deferred {
    /// And until when.
    all: VecDeque<(Moment, DeferredRequest)>,
    /// Until when the link's thread means to sleep, in nanoseconds.
    asleep_until: u64,
}

impl SharedConnection {
    /// Whether the system has taken all there is.
    fn write(&mut self) -> bool {
        if let (Some(server), None) = (&self.server, &self.broken)
            && let Err(error) = write_out(&mut &**server, self.core.for_server())
        {
            self.broken = Some(error.to_string());
        }
        self.core.pass_marks();
        self.core.for_server().is_empty()
    }

    fn ask(&mut self, verbs: Both) {
        let now = Moment::now();
        for Outgoing { operation, body, on_answer } in verbs.into_iter().flatten() {
            self.core.verb(operation, &body, on_answer, now);
        }
    }

    /// Whether something is left to do for the link's thread before it would wake by itself.
    fn needs_the_thread(&mut self) -> bool {
        self.broken.is_some()
            || self.core.has_news()
            || !self.core.for_server().is_empty()
            || self.core.next_tick() < self.asleep_until
    }
}

/// One or two, which go out back to back.
type Both = [Option<Outgoing>; 2];

enum Command {
    Verbs(Both),
    FlushMark(FlushMark),
    Dialed { dial: u64, found: Dialed },
    Close { give_up_after: Duration },
    Dropped,
}

struct Waker {
    stream: UnixStream,
    pending: AtomicBool,
}

impl Waker {
    fn wake(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            // A full pipe wakes as well as one more byte would.
            let _ = (&self.stream).write(&[1]);
        }
    }
}

impl Link {
    /// Starts to connect; the notices tell how it goes.
    pub(crate) fn open(config: LinkConfig, on_notice: OnNotice, on_event: OnEvent) -> Result<Link> {
        let system = |cause: io::Error| {
            Error::new(ErrorKind::System, format!("could not make a socket pair: {cause}"))
                .caused_by(cause)
        };
        let (near, far) = UnixStream::pair().map_err(system)?;
        near.set_nonblocking(true).map_err(system)?;
        far.set_nonblocking(true).map_err(system)?;
        let waker = Arc::new(Waker { stream: near, pending: AtomicBool::new(false) });
        let (commands, received) = unbounded();
        let shared = Arc::new(LinkShared {
            lease_end: AtomicU64::new(LAPSED),
            info: Mutex::new(Info::default()),
            put_off: Lock::default(),
            stopped: AtomicBool::new(false),
            line: Lock::new(SharedConnection {
                core: LinkCore::new(config.max_reply),
                server: None,
                broken: None,
                asleep_until: Moment::ZERO,
            }),
        });
        let runner = Runner {
            config,
            shared: Arc::clone(&shared),
            on_notice,
            on_event,
            commands: received,
            to_self: (commands.clone(), Arc::clone(&waker)),
            waker: Arc::clone(&waker),
            woken: far,
            server: None,
            dial: None,
            dials: 0,
            dialled_zxid: 0,
            redial_at: Moment::ZERO,
            futile: 0,
            rounds: Arc::default(),
            attached_at: Moment::ZERO,
            alive_at: Moment::ZERO,
            lease_end: LAPSED,
            avoid: None,
            give_up_at: Moment::NEVER,
            nap_until: Moment::ZERO,
            dropped: false,
        };
        rt::spawn("zklock-link", move || runner.run())?;
        Ok(Link { process: std::process::id(), shared, commands, waker })
    }

    fn is_elsewhere(&self) -> bool {
        self.process != std::process::id()
    }

    fn tell(&self, command: Command) {
        if !self.is_elsewhere() && self.commands.send(command).is_ok() {
            self.waker.wake();
        }
    }

    /// Sends one or two requests, back to back: by the caller itself, if nobody else is at it, as
    /// that takes no other thread's wake-up. What comes after something that is queued is queued behind
    /// it. Whether all is written.
    pub(crate) fn send(&self, verbs: Both) -> bool {
        if self.is_elsewhere() {
            return true;
        }
        let is_free = || self.commands.is_empty() && !self.shared.stopped.load(Ordering::SeqCst);
        let Some(mut line) = self.shared.line.try_lock().filter(|_| is_free()) else {
            self.tell(Command::Verbs(verbs));
            return false;
        };
        line.ask(verbs);
        let written = line.write();
        let needs_the_thread = line.needs_the_thread();
        drop(line);
        if needs_the_thread {
            self.waker.wake();
        }
        written
    }

    /// Sends one a few milliseconds from now, if it is still wanted then.
    pub(crate) fn later(&self, later: DeferredRequest) {
        if self.is_elsewhere() {
            return;
        }
        let now = Moment::now();
        let mut put_off = self.shared.put_off.lock();
        if self.shared.stopped.load(Ordering::SeqCst) {
            return self.tell(Command::Verbs([Some(later.verb), None]));
        }
        put_off.all.push_back((now.plus(MOMENT), later));
        let is_asleep = Moment::from_nanos(put_off.asleep_until) > now.plus(NAP);
        drop(put_off);
        if is_asleep {
            self.waker.wake();
        }
    }

    /// Returns when the system has on the way to the server what was asked so far, when there is no
    /// connection, or at the deadline.
    pub(crate) fn flushed_by(&self, until: Deadline) {
        let (mark, written) = bounded(0);
        self.tell(Command::FlushMark(mark));
        // The mark is dropped.
        let _ = match until.instant() {
            Some(end) => written.recv_deadline(end).is_ok(),
            None => written.recv().is_ok(),
        };
    }

    /// Ends the session; without a server for so long, without the server's word.
    pub(crate) fn close(&self, give_up_after: Duration) {
        self.tell(Command::Close { give_up_after });
    }

    /// Whether the lease runs, or how the session has ended. Once an error, always one: who finds
    /// the lease run out ends it for all, also if a renewal is on its way.
    pub(crate) fn lease(&self) -> Result<(), End> {
        if self.is_elsewhere() {
            return Err(End::Closed);
        }
        let lease_end = &self.shared.lease_end;
        let mut end = lease_end.load(Ordering::Acquire);
        loop {
            if let Some(why) = end_of(end) {
                return Err(why);
            }
            if Moment::now() < Moment::from_nanos(end) {
                return Ok(());
            }
            match lease_end.compare_exchange(end, LAPSED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.waker.wake();
                    return Err(End::Lapsed);
                }
                Err(renewed) => end = renewed,
            }
        }
    }

    pub(crate) fn info(&self) -> Info {
        if self.is_elsewhere() {
            return Info::default();
        }
        self.shared.info.lock().clone()
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

/// Whether this process was warned of a short session timeout.
static WARNED: AtomicBool = AtomicBool::new(false);

/// How long a session that nobody owns any more may take to be closed.
const ORPHAN_CLOSE_LIMIT: Duration = Duration::from_secs(1);

struct Runner {
    config: LinkConfig,
    shared: Arc<LinkShared>,
    on_notice: OnNotice,
    on_event: OnEvent,
    commands: Receiver<Command>,
    to_self: (Sender<Command>, Arc<Waker>),
    waker: Arc<Waker>,
    woken: UnixStream,
    server: Option<(Arc<TcpStream>, SocketAddr)>,
    dial: Option<Dial>,
    dials: u64,
    /// What the servers that are dialled must have seen.
    dialled_zxid: i64,
    redial_at: Moment,
    futile: u32,
    rounds: Arc<AtomicU32>,
    attached_at: Moment,
    /// When it was last said that the connection stands.
    alive_at: Moment,
    /// What was last made known of it.
    lease_end: u64,
    avoid: Option<SocketAddr>,
    give_up_at: Moment,
    /// Until when something may be put off by those who were told something last.
    nap_until: Moment,
    dropped: bool,
}

impl Runner {
    fn run(mut self) {
        // Nothing here panics, but what is called might: a logger, for one. After a panic the session
        // is over, and what is asked is answered; after another one, by as little as that takes.
        for _ in 0..2 {
            if catch_unwind(AssertUnwindSafe(|| self.serve())).is_ok() {
                return;
            }
            self.shared.line.lock().core.collapse();
        }
        self.answer_the_rest();
    }

    /// Tells everybody who asks that the session is over, until the link is dropped. Nothing in here
    /// can panic, and it only runs when it is told something.
    fn answer_the_rest(mut self) {
        let shared = Arc::clone(&self.shared);
        shared.lease_end.store(LAPSED, Ordering::Release);
        shared.stopped.store(true, Ordering::SeqCst);
        let mut line = shared.line.lock();
        (line.server, self.server, self.dial) = (None, None, None);
        let (notices, all_said) = (line.core.take_notices(), line.core.take_said());
        line.core.pass_marks();
        drop(line);
        self.tell(&notices, all_said);
        let put_off = std::mem::take(&mut shared.put_off.lock().all);
        let expired = |verb: Outgoing| {
            let answer = core::Answer { zxid: 0, error: SESSION_EXPIRED, body: Vec::new() };
            survive(|| (verb.on_answer)(answer));
        };
        put_off.into_iter().for_each(|(_, later)| expired(later.verb));
        for command in &self.commands {
            match command {
                Command::Verbs(verbs) => verbs.into_iter().flatten().for_each(expired),
                Command::Dropped => return,
                _ => {}
            }
        }
    }

    fn serve(&mut self) {
        let mut buffer = vec![0; 64 * 1024];
        let shared = Arc::clone(&self.shared);
        let mut line = shared.line.lock();
        loop {
            self.keep_connected(&mut line);
            self.publish(&mut line);
            self.remind(&mut line);
            self.catch_up(&mut line);
            self.write(&mut line);
            self.publish(&mut line);
            if self.dropped && line.core.is_over() {
                return;
            }
            let [woken, from_server] = self.wait(&mut line);
            if woken {
                self.obey(&mut line);
            }
            if from_server {
                self.read_server(&mut line, &mut buffer);
            }
            if let Some(why) = line.broken.take() {
                line.core.server_has_closed(Moment::now());
                self.lose_server(&mut line, &why);
            }
            let now = Moment::now();
            if let Err(broken) = line.core.tick(now) {
                self.lose_server(&mut line, &broken.0);
            }
            if now >= self.give_up_at && !line.core.is_over() {
                logging::debug!(target: "zklock::link", "gave up closing the session: no server");
                line.core.give_up();
            }
        }
    }

    fn keep_connected(&mut self, line: &mut SharedConnection) {
        if line.core.is_over() {
            self.dial = None;
            (self.server, line.server) = (None, None);
            return;
        }
        let (now, last_zxid) = (Moment::now(), line.core.last_zxid());
        if self.dialled_zxid != last_zxid {
            // The session has ended meanwhile: any server will do from here on.
            self.dial = None;
        }
        if line.core.is_attached() || self.dial.is_some() || now < self.redial_at {
            return;
        }
        let wanted = Wanted {
            resolver: Arc::clone(&self.config.resolver),
            auth: if line.core.is_rejected() { Vec::new() } else { self.config.auth.clone() },
            timeout: self.config.session_timeout,
            session: line.core.granted().cloned(),
            last_zxid,
            avoid: self.avoid,
            round_trip: line.core.round_trip(),
            patience: self.config.connect_timeout,
            futile: self.futile,
            rounds: Arc::clone(&self.rounds),
        };
        self.dials += 1;
        self.dialled_zxid = last_zxid;
        let (id, (commands, waker)) = (self.dials, self.to_self.clone());
        let shared = Arc::clone(&self.shared);
        let started = Dial::start(
            wanted,
            move |found| {
                if commands.send(Command::Dialed { dial: id, found }).is_ok() {
                    waker.wake();
                }
            },
            move |why| shared.info.lock().trouble = Some(why.to_owned()),
        );
        match started {
            Ok(dial) => self.dial = Some(dial),
            Err(error) => {
                logging::error!(target: "zklock::link", "{error}");
                self.redial_at = now.plus(Duration::from_millis(500));
            }
        }
    }

    /// Makes known what the core has to say, in the order that nobody is misled by:
    /// the lease, the state, and only then the answers and events that depend on it.
    fn publish(&mut self, line: &mut MutexGuard<'_, SharedConnection>) {
        self.publish_lease(line);
        if !line.core.has_news() {
            return;
        }
        self.nap_until = Moment::now().plus(NAP);
        let (notices, all_said) = (line.core.take_notices(), line.core.take_said());
        let session = self.session(line);
        // Whoever hears of it may send at once.
        MutexGuard::unlocked(line, || self.pass_on(notices, all_said, session));
    }

    fn pass_on(&mut self, notices: Vec<Notice>, all_said: Vec<Incoming>, session: i64) {
        self.tell(&notices, all_said);
        for notice in notices {
            if let Notice::Ended(why) = notice {
                logging::line!(
                if why == End::Closed { log::Level::Debug } else { log::Level::Warn },
                target: "zklock::link",
                                    "session 0x{session:x} is over: {why:?}"
                                );
            }
        }
    }

    /// A panic in what one of them does costs the others nothing.
    fn tell(&mut self, notices: &[Notice], all_said: Vec<Incoming>) {
        for notice in notices {
            match notice {
                Notice::Suspended | Notice::Over => self.shared.info.lock().server = None,
                Notice::Attached => self.alive_at = Moment::now(),
                Notice::Ended(_) | Notice::Alive => {}
            }
            survive(|| (self.on_notice)(*notice));
        }
        for said in all_said {
            match said {
                Incoming::Answer(on_answer, answer) => survive(|| on_answer(answer)),
                Incoming::Event(path) => survive(|| (self.on_event)(&path)),
            }
        }
    }

    /// Asks what was put off, as far as it is still wanted.
    fn catch_up(&mut self, line: &mut SharedConnection) {
        let mut put_off = self.shared.put_off.lock();
        if put_off.all.is_empty() {
            return;
        }
        let now = Moment::now();
        let due = put_off.all.partition_point(|(due, _)| *due <= now);
        let due: Vec<DeferredRequest> = put_off.all.drain(..due).map(|(_, later)| later).collect();
        drop(put_off);
        if !due.is_empty() && !self.commands.is_empty() {
            // What was asked for before goes before: it may remove the watch that is set here.
            self.obey(line);
        }
        for DeferredRequest { verb, is_wanted } in due {
            if is_wanted() {
                line.core.verb(verb.operation, &verb.body, verb.on_answer, now);
            }
        }
    }

    /// For those who have something left to do and nobody else to remind them of it.
    fn remind(&mut self, line: &mut MutexGuard<'_, SharedConnection>) {
        let timeout = line.core.granted().map_or(Duration::MAX, |granted| granted.timeout);
        let now = Moment::now();
        if line.core.is_attached() && now.since(self.alive_at) >= timeout / 3 {
            self.alive_at = now;
            MutexGuard::unlocked(line, || (self.on_notice)(Notice::Alive));
        }
    }

    fn publish_lease(&mut self, line: &mut SharedConnection) {
        let end = line.core.ended().map_or_else(|| line.core.lease_end().as_nanos(), code_of);
        let exchanged = self.shared.lease_end.compare_exchange(
            self.lease_end,
            end,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        self.lease_end = end;
        if exchanged.is_err() {
            // A holder was told that the lease has run out: so it has, for everybody.
            self.lease_end = LAPSED;
            line.core.lapse(Moment::now());
        }
    }

    fn session(&self, line: &SharedConnection) -> i64 {
        line.core.granted().map_or(0, |granted| granted.session)
    }

    fn wait(&mut self, line: &mut MutexGuard<'_, SharedConnection>) -> [bool; 2] {
        let mut next = line.core.next_tick();
        if !line.core.is_over() {
            next = next.min(self.give_up_at);
            if !line.core.is_attached() && self.dial.is_none() {
                next = next.min(self.redial_at);
            }
        }
        let now = Moment::now();
        let mut put_off = self.shared.put_off.lock();
        if let Some((due, _)) = put_off.all.front() {
            next = next.min(*due);
        } else if now < self.nap_until {
            next = next.min(self.nap_until);
        }
        put_off.asleep_until = next.as_nanos();
        drop(put_off);
        let limit = (next != Moment::NEVER).then(|| next.since(now));
        let interest = match line.core.for_server().is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        };
        let mut sockets = Vec::with_capacity(2);
        sockets.push(PollFd::new(&self.woken, PollFlags::IN));
        sockets.extend(self.server.iter().map(|(server, _)| PollFd::new(server, interest)));
        line.asleep_until = next;
        let polled = MutexGuard::unlocked(line, || poll(&mut sockets, limit));
        if let Err(error) = polled {
            // Nothing that can be helped here; do not spin on it.
            logging::error!(target: "zklock::link", "poll failed: {error}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let is_readable = |at: usize| {
            sockets.get(at).is_some_and(|socket| {
                socket.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
            })
        };
        [is_readable(0), is_readable(1)]
    }

    fn obey(&mut self, line: &mut SharedConnection) {
        let mut sink = [0; 64];
        while matches!((&self.woken).read(&mut sink), Ok(64)) {}
        self.waker.pending.swap(false, Ordering::AcqRel);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Verbs(verbs) => line.ask(verbs),
                Command::FlushMark(mark) => line.core.mark(mark),
                Command::Dialed { dial, found } => {
                    if dial == self.dials && self.dial.take().is_some() {
                        self.found(line, found);
                    }
                }
                Command::Close { give_up_after } => self.part(line, give_up_after),
                Command::Dropped => {
                    self.dropped = true;
                    self.part(line, ORPHAN_CLOSE_LIMIT);
                }
            }
        }
    }

    fn part(&mut self, line: &mut SharedConnection, give_up_after: Duration) {
        let now = Moment::now();
        self.give_up_at = self.give_up_at.min(now.plus(give_up_after));
        line.core.close(now);
    }

    fn found(&mut self, line: &mut SharedConnection, found: Dialed) {
        match found {
            Dialed::Server { stream, address, granted } => {
                if let Err(cause) = stream.set_nonblocking(true) {
                    logging::warning!(target: "zklock::link", "a connection was unusable: {cause}");
                    return;
                }
                let now = Moment::now();
                let (first, timeout) = (line.core.granted().is_none(), granted.timeout);
                self.shared.info.lock().clone_from(&Info {
                    session: granted.session,
                    timeout: granted.by_server,
                    server: Some(address),
                    trouble: None,
                });
                let stream = Arc::new(stream);
                (line.server, line.broken) = (Some(Arc::clone(&stream)), None);
                self.server = Some((stream, address));
                self.attached_at = now;
                self.rounds.store(0, Ordering::Relaxed);
                line.core.attach(granted, now);
                logging::line!(
                if first { log::Level::Debug } else { log::Level::Info },
                target: "zklock::link",
                                    "session 0x{:x} is served by {address}",
                                    self.session(line)
                                );
                if first
                    && let Some(warning) = lease::warning(timeout)
                    && !WARNED.swap(true, Ordering::Relaxed)
                {
                    logging::warning!(target: "zklock::link", "{warning}");
                }
            }
            Dialed::Expired => line.core.expired(),
            Dialed::AuthFailed => {
                // It is still to be closed, but that may need credentials, too.
                let patience =
                    line.core.granted().map_or(ORPHAN_CLOSE_LIMIT, |granted| granted.timeout);
                self.give_up_at = self.give_up_at.min(Moment::now().plus(patience));
                line.core.credentials_rejected();
            }
        }
    }

    fn lose_server(&mut self, line: &mut SharedConnection, why: &str) {
        (line.server, line.broken) = (None, None);
        let Some((_, address)) = self.server.take() else { return };
        let now = Moment::now();
        let lived = now.since(self.attached_at);
        self.futile =
            if lived < Duration::from_secs(1) { self.futile.saturating_add(1) } else { 0 };
        self.avoid = Some(address);
        if self.futile == 0 || self.futile.is_power_of_two() {
            logging::warning!(
                target: "zklock::link",
                "session 0x{:x} lost its connection to {address}: {why}",
                self.session(line)
            );
        }
        line.core.detach(now);
    }

    fn read_server(&mut self, line: &mut SharedConnection, buffer: &mut [u8]) {
        let Some((server, _)) = &self.server else { return };
        let broken = match (&**server).read(buffer) {
            Ok(0) => Some(("the server closed it".to_owned(), true)),
            Ok(read) => {
                let result = line.core.heard_server(&buffer[..read], Moment::now());
                result.err().map(|broken| (broken.0, false))
            }
            Err(error) => (!is_passing(&error)).then(|| (error.to_string(), true)),
        };
        if let Some((why, closed)) = broken {
            if closed {
                line.core.server_has_closed(Moment::now());
            }
            self.lose_server(line, &why);
        }
    }

    fn write(&mut self, line: &mut SharedConnection) {
        line.write();
        if let Some(why) = line.broken.take() {
            line.core.server_has_closed(Moment::now());
            self.lose_server(line, &why);
        }
    }
}

/// Runs what may panic; the panic itself is reported by the process's panic hook.
fn survive(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

fn write_out(stream: &mut impl Write, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut written = 0;
    let result = loop {
        if written == bytes.len() {
            break Ok(());
        }
        match stream.write(&bytes[written..]) {
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    bytes.drain(..written);
    if bytes.is_empty() && bytes.capacity() > 256 * 1024 {
        *bytes = Vec::new();
    }
    result
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Waits until one of the sockets is ready or the time is over.
fn poll(sockets: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.map(|limit| rustix::event::Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match rustix::event::poll(sockets, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
