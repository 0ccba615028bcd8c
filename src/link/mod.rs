//! The link: it owns the real connection to the ensemble and stands between it and the
//! `zookeeper` crate's handle, which is connected to it over loopback.
//!
//! One thread, one session. The handle never sees a connection come or go; it gets one
//! reply to every request, in order and in bounded time. [`core`] is the protocol,
//! [`lease`] what is known of the session's life, [`dial`] the way to a server,
//! [`loopback`] the handle's side, [`frame`] the bytes; this file is the sockets.

pub(crate) mod core;
pub(crate) mod dial;
pub(crate) mod frame;
mod lease;
pub(crate) mod loopback;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use self::core::{Core, Notice, OnAnswer};
use self::dial::{Auth, Dial, Found, Resolver, Wanted};
use crate::error::{Error, ErrorKind, Result};
use crate::rt::{self, Moment, Mutex, Receiver, Sender, unbounded};

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

/// What is known of the session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info {
    pub(crate) session: i64,
    pub(crate) timeout: Duration,
    /// The server it is connected to, if it is.
    pub(crate) server: Option<SocketAddr>,
    /// Why no server could be had when last tried.
    pub(crate) trouble: Option<String>,
}

/// A session with the ensemble. Dropped, the session is closed in the background.
pub(crate) struct Link {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    waker: Arc<Waker>,
}

/// For the end of a lease: it has come, or has not begun.
const LAPSED: u64 = 0;

struct Shared {
    /// In nanoseconds of a [`Moment`]. The link moves it forward, whoever finds it in the
    /// past puts [`LAPSED`] in its place.
    lease_end: AtomicU64,
    info: Mutex<Info>,
    created: Mutex<HashMap<String, i64>>,
}

enum Command {
    Handle(TcpStream),
    Verb { operation: i32, body: Vec<u8>, on_answer: OnAnswer },
    Found { dial: u64, found: Found },
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
    pub(crate) fn open(config: LinkConfig, on_notice: OnNotice) -> Result<Link> {
        let system = |cause: io::Error| {
            Error::new(ErrorKind::System, format!("could not make a socket pair: {cause}"))
                .caused_by(cause)
        };
        let (near, far) = UnixStream::pair().map_err(system)?;
        near.set_nonblocking(true).map_err(system)?;
        far.set_nonblocking(true).map_err(system)?;
        let waker = Arc::new(Waker { stream: near, pending: AtomicBool::new(false) });
        let (commands, received) = unbounded();
        let shared = Arc::new(Shared {
            lease_end: AtomicU64::new(LAPSED),
            info: Mutex::new(Info::default()),
            created: Mutex::new(HashMap::new()),
        });
        let runner = Runner {
            core: Core::new(config.max_reply),
            config,
            shared: Arc::clone(&shared),
            on_notice,
            commands: received,
            to_self: (commands.clone(), Arc::clone(&waker)),
            waker: Arc::clone(&waker),
            woken: far,
            server: None,
            handle: None,
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
            dropped: false,
        };
        rt::spawn("zklock-link", move || runner.run())?;
        Ok(Link { shared, commands, waker })
    }

    fn tell(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.waker.wake();
        }
    }

    /// Hands over the handle's end of the loopback connection.
    pub(crate) fn serve(&self, handle: TcpStream) {
        self.tell(Command::Handle(handle));
    }

    /// Sends a request that the handle never sees.
    pub(crate) fn verb(&self, operation: i32, body: Vec<u8>, on_answer: OnAnswer) {
        self.tell(Command::Verb { operation, body, on_answer });
    }

    /// Ends the session; without a server for so long, without the server's word.
    pub(crate) fn close(&self, give_up_after: Duration) {
        self.tell(Command::Close { give_up_after });
    }

    /// Whether the lease runs. Once false, always false: who finds it run out ends it for
    /// all, also if a renewal is on its way.
    pub(crate) fn is_trusted(&self) -> bool {
        let lease_end = &self.shared.lease_end;
        let mut end = lease_end.load(Ordering::Acquire);
        while end != LAPSED {
            if Moment::now() < Moment::from_nanos(end) {
                return true;
            }
            match lease_end.compare_exchange(end, LAPSED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.waker.wake();
                    return false;
                }
                Err(renewed) => end = renewed,
            }
        }
        false
    }

    pub(crate) fn info(&self) -> Info {
        self.shared.info.lock().clone()
    }

    /// The zxid at which an ephemeral sequential node was made, told once.
    pub(crate) fn take_created(&self, path: &str) -> Option<i64> {
        self.shared.created.lock().remove(path)
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

/// How long a session that nobody owns any more may take to be closed.
const PARTING: Duration = Duration::from_secs(1);

struct Runner {
    core: Core,
    config: LinkConfig,
    shared: Arc<Shared>,
    on_notice: OnNotice,
    commands: Receiver<Command>,
    to_self: (Sender<Command>, Arc<Waker>),
    waker: Arc<Waker>,
    woken: UnixStream,
    server: Option<(TcpStream, SocketAddr)>,
    handle: Option<TcpStream>,
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
    dropped: bool,
}

impl Runner {
    fn run(mut self) {
        // Nothing here panics, but what is called might: a logger, for one.
        while catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            self.core.collapse();
        }
    }

    fn serve(&mut self) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            self.keep_connected();
            self.publish();
            self.remind();
            self.write();
            self.publish();
            if self.dropped && self.handle.is_none() && self.core.is_over() {
                return;
            }
            let [woken, from_handle, from_server] = self.wait();
            if woken {
                self.obey();
            }
            if from_handle {
                self.read_handle(&mut buffer);
            }
            if from_server {
                self.read_server(&mut buffer);
            }
            let now = Moment::now();
            if let Err(broken) = self.core.tick(now) {
                self.lose_server(&broken.0);
            }
            if now >= self.give_up_at && !self.core.is_over() {
                log::debug!(target: "zklock::link", "gave up closing the session: no server");
                self.core.give_up();
            }
        }
    }

    fn keep_connected(&mut self) {
        if self.core.is_over() {
            self.dial = None;
            self.server = None;
            return;
        }
        let (now, last_zxid) = (Moment::now(), self.core.last_zxid());
        if self.dialled_zxid != last_zxid {
            // The session has ended meanwhile: any server will do from here on.
            self.dial = None;
        }
        if self.core.is_attached() || self.dial.is_some() || now < self.redial_at {
            return;
        }
        let wanted = Wanted {
            resolver: Arc::clone(&self.config.resolver),
            auth: self.config.auth.clone(),
            timeout: self.config.session_timeout,
            session: self.core.granted().cloned(),
            last_zxid,
            avoid: self.avoid,
            round_trip: self.core.round_trip(),
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
                if commands.send(Command::Found { dial: id, found }).is_ok() {
                    waker.wake();
                }
            },
            move |why| shared.info.lock().trouble = Some(why.to_owned()),
        );
        match started {
            Ok(dial) => self.dial = Some(dial),
            Err(error) => {
                log::error!(target: "zklock::link", "{error}");
                self.redial_at = now.plus(Duration::from_millis(500));
            }
        }
    }

    /// Makes known what the core has to say, in the order that nobody is misled by:
    /// the lease, the state, and only then the answers that depend on it.
    fn publish(&mut self) {
        let created = self.core.take_created();
        if !created.is_empty() {
            self.shared.created.lock().extend(created);
        }
        self.publish_lease();
        let notices = self.core.take_notices();
        for notice in &notices {
            (self.on_notice)(*notice);
        }
        for notice in notices {
            match notice {
                Notice::Ended(why) => {
                    log::log!(
                        target: "zklock::link",
                        if why == core::End::Closed { log::Level::Debug } else { log::Level::Warn },
                        "session {} is over: {why:?}",
                        self.session()
                    );
                }
                Notice::Suspended | Notice::Over => self.shared.info.lock().server = None,
                Notice::Attached => self.alive_at = Moment::now(),
                Notice::Alive => {}
            }
        }
        for (on_answer, answer) in self.core.take_answers() {
            on_answer(answer);
        }
    }

    /// For those who have something left to do and nobody else to remind them of it.
    fn remind(&mut self) {
        let timeout = self.core.granted().map_or(Duration::MAX, |granted| granted.timeout);
        let now = Moment::now();
        if self.core.is_attached() && now.since(self.alive_at) >= timeout / 3 {
            self.alive_at = now;
            (self.on_notice)(Notice::Alive);
        }
    }

    fn publish_lease(&mut self) {
        let end = self.core.lease_end().as_nanos();
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
            self.core.lapse(Moment::now());
        }
    }

    fn session(&self) -> String {
        let session = self.core.granted().map_or(0, |granted| granted.session);
        format!("0x{session:x}")
    }

    fn wait(&mut self) -> [bool; 3] {
        let mut next = self.core.next_tick();
        if !self.core.is_over() {
            next = next.min(self.give_up_at);
            if !self.core.is_attached() && self.dial.is_none() {
                next = next.min(self.redial_at);
            }
        }
        let limit = (next != Moment::NEVER).then(|| next.since(Moment::now()));
        let interest = |unsent: bool| {
            if unsent { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
        };
        let server_unsent = !self.core.for_server().is_empty();
        let handle_unsent = !self.core.for_handle().is_empty();
        let mut sockets = Vec::with_capacity(3);
        sockets.push(PollFd::new(&self.woken, PollFlags::IN));
        let handle_at = self.handle.as_ref().map(|handle| {
            sockets.push(PollFd::new(handle, interest(handle_unsent)));
            sockets.len() - 1
        });
        let server_at = self.server.as_ref().map(|(server, _)| {
            sockets.push(PollFd::new(server, interest(server_unsent)));
            sockets.len() - 1
        });
        if let Err(error) = poll(&mut sockets, limit) {
            // Nothing that can be helped here; do not spin on it.
            log::error!(target: "zklock::link", "poll failed: {error}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let readable = |at: Option<usize>| {
            at.is_some_and(|at| {
                let events = sockets[at].revents();
                events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
            })
        };
        [readable(Some(0)), readable(handle_at), readable(server_at)]
    }

    fn obey(&mut self) {
        let mut sink = [0; 64];
        while matches!((&self.woken).read(&mut sink), Ok(64)) {}
        self.waker.pending.swap(false, Ordering::AcqRel);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Handle(stream) => self.handle = Some(stream),
                Command::Verb { operation, body, on_answer } => {
                    self.core.verb(operation, &body, on_answer, Moment::now());
                }
                Command::Found { dial, found } => {
                    if dial == self.dials && self.dial.take().is_some() {
                        self.found(found);
                    }
                }
                Command::Close { give_up_after } => self.part(give_up_after),
                Command::Dropped => {
                    self.dropped = true;
                    self.part(PARTING);
                }
            }
        }
    }

    fn part(&mut self, give_up_after: Duration) {
        let now = Moment::now();
        self.give_up_at = self.give_up_at.min(now.plus(give_up_after));
        self.core.close(now);
    }

    fn found(&mut self, found: Found) {
        match found {
            Found::Server { stream, address, granted } => {
                if let Err(cause) = stream.set_nonblocking(true) {
                    log::warn!(target: "zklock::link", "a connection was unusable: {cause}");
                    return;
                }
                let now = Moment::now();
                let first = self.core.granted().is_none();
                self.shared.info.lock().clone_from(&Info {
                    session: granted.session,
                    timeout: granted.timeout,
                    server: Some(address),
                    trouble: None,
                });
                self.server = Some((stream, address));
                self.attached_at = now;
                self.rounds.store(0, Ordering::Relaxed);
                self.core.attach(granted, now);
                log::log!(
                    target: "zklock::link",
                    if first { log::Level::Debug } else { log::Level::Info },
                    "session {} is served by {address}",
                    self.session()
                );
            }
            Found::Expired => self.core.expired(),
            Found::AuthFailed => self.core.auth_failed(),
        }
    }

    fn lose_server(&mut self, why: &str) {
        let Some((_, address)) = self.server.take() else { return };
        let now = Moment::now();
        let lived = now.since(self.attached_at);
        self.futile =
            if lived < Duration::from_secs(1) { self.futile.saturating_add(1) } else { 0 };
        self.avoid = Some(address);
        if self.futile == 0 || self.futile.is_power_of_two() {
            log::warn!(
                target: "zklock::link",
                "session {} lost its connection to {address}: {why}",
                self.session()
            );
        }
        self.core.detach(now);
    }

    fn read_handle(&mut self, buffer: &mut [u8]) {
        let Some(handle) = &mut self.handle else { return };
        let gone = match handle.read(buffer) {
            Ok(0) => true,
            Ok(read) => {
                acknowledge(handle);
                match self.core.heard_handle(&buffer[..read], Moment::now()) {
                    Ok(()) => false,
                    Err(broken) => {
                        log::error!(target: "zklock::link", "{}", broken.0);
                        true
                    }
                }
            }
            Err(error) => !is_passing(&error),
        };
        if gone {
            self.lose_handle();
        }
    }

    fn lose_handle(&mut self) {
        if !self.core.is_handle_closed() {
            log::error!(target: "zklock::link", "the handle went away without a goodbye");
            self.part(PARTING);
        }
        self.handle = None;
        self.core.for_handle().clear();
    }

    fn read_server(&mut self, buffer: &mut [u8]) {
        let Some((server, _)) = &mut self.server else { return };
        let broken = match server.read(buffer) {
            Ok(0) => Some("the server closed it".to_owned()),
            Ok(read) => {
                let result = self.core.heard_server(&buffer[..read], Moment::now());
                result.err().map(|broken| broken.0)
            }
            Err(error) => (!is_passing(&error)).then(|| error.to_string()),
        };
        if let Some(why) = broken {
            self.lose_server(&why);
        }
    }

    fn write(&mut self) {
        if let Some((server, _)) = &mut self.server
            && let Err(error) = write_out(server, self.core.for_server())
        {
            self.lose_server(&error.to_string());
            self.publish();
        }
        if let Some(handle) = &mut self.handle
            && write_out(handle, self.core.for_handle()).is_err()
        {
            self.lose_handle();
        }
    }
}

/// The handle leaves TCP_NODELAY unset, so its kernel keeps a request back until what was
/// sent before is acknowledged, which ours would put off for 40 ms. Linux forgets this
/// setting, so it is made anew after each read; failing, it costs time only.
fn acknowledge(handle: &TcpStream) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = rustix::net::sockopt::set_tcp_quickack(handle, true);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = handle;
}

fn write_out(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
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
