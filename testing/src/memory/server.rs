//! One thread that reads, has the engine decide, and writes.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::engine::{ConnectionId, Engine, Settings};

/// How much of a connection is read before the others have their turn.
const READ_AT_ONCE: usize = 32 * 1024;
/// How long no connection is accepted when there is no descriptor for one.
const WITHOUT_DESCRIPTORS: Duration = Duration::from_millis(50);

/// What a caller has the thread do.
type Order = Box<dyn FnOnce(&mut Loop) + Send>;

/// A server in memory, which ends when this is dropped.
pub(crate) struct MemoryServer {
    address: SocketAddr,
    orders: Sender<Order>,
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// What the thread has.
pub(crate) struct Loop {
    pub(crate) engine: Engine,
    listener: TcpListener,
    sockets: BTreeMap<ConnectionId, TcpStream>,
    connections: ConnectionId,
    since: Instant,
    /// How far the server's clock is ahead.
    advanced: Duration,
    /// Since when the server does nothing, though its connections stay.
    paused: Option<Duration>,
    /// Whether new connections are closed at once.
    refuses: bool,
    /// Whether it does nothing but that.
    is_stopped: bool,
    /// Until when none is accepted, as this process has no descriptor for one.
    accepts_from: Option<Instant>,
    is_over: bool,
    buffer: Vec<u8>,
}

impl MemoryServer {
    /// Starts a server on a port of 127.0.0.1; 0 is any that is free.
    pub(crate) fn start(settings: Settings, port: u16) -> io::Result<MemoryServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (rung, bell) = UnixStream::pair()?;
        rung.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let (orders, ordered) = channel();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_millis()).unwrap_or_default();
        // The ids of sessions begin with it: no two servers of a process have the same.
        static LATEST: AtomicI64 = AtomicI64::new(0);
        let before = LATEST
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |before| Some(now.max(before + 1)));
        let since = before.map_or(now, |before| now.max(before + 1));
        let mut server = Loop {
            engine: Engine::new(settings, since),
            listener,
            sockets: BTreeMap::new(),
            connections: 0,
            since: Instant::now(),
            advanced: Duration::ZERO,
            paused: None,
            refuses: false,
            is_stopped: false,
            accepts_from: None,
            is_over: false,
            buffer: vec![0; READ_AT_ONCE],
        };
        let thread = thread::Builder::new()
            .name("zookeeper-memory".to_owned())
            .spawn(move || server.run(&rung, &ordered))?;
        Ok(MemoryServer { address, orders, bell, thread: Some(thread) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has the thread do this between two requests, and returns what comes of it.
    pub(crate) fn order<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Loop) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = channel();
        let order: Order = Box::new(move |server| {
            let _ = tell.send(act(server));
        });
        self.orders.send(order).ok()?;
        self.ring();
        told.recv().ok()
    }

    fn ring(&self) {
        // If there is no room, the thread wakes up all the same.
        let _ = (&self.bell).write(&[0]);
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        let order: Order = Box::new(|server| server.is_over = true);
        let _ = self.orders.send(order);
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Loop {
    /// The server's time, which stands still while it is paused.
    fn now(&self) -> Duration {
        self.paused.unwrap_or_else(|| self.since.elapsed().saturating_add(self.advanced))
    }

    pub(crate) fn pause(&mut self) {
        self.paused = Some(self.now());
    }

    /// Time has passed meanwhile.
    pub(crate) fn resume(&mut self) {
        self.paused = None;
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.advanced = self.advanced.saturating_add(by);
        match &mut self.paused {
            Some(paused) => *paused = paused.saturating_add(by),
            None if self.is_stopped => {}
            None => self.engine.tick(self.now()),
        }
    }

    /// Closes all connections, and each new one at once.
    pub(crate) fn refuse(&mut self) {
        self.engine.end_all();
        self.refuses = true;
    }

    pub(crate) fn accept_again(&mut self) {
        self.refuses = false;
    }

    /// Its sessions and nodes stay, and do not age meanwhile.
    pub(crate) fn stop(&mut self) {
        self.refuse();
        self.is_stopped = true;
        self.paused = None;
    }

    pub(crate) fn start_again(&mut self) {
        self.is_stopped = false;
        self.refuses = false;
        let now = self.now();
        self.engine.renew_sessions(now);
    }

    fn run(&mut self, rung: &UnixStream, ordered: &Receiver<Order>) {
        while !self.is_over {
            self.wait(rung);
            // The bytes only wake up.
            while { rung }.read(&mut [0; 64]).is_ok_and(|count| count == 64) {}
            for order in ordered.try_iter() {
                order(self);
            }
            if self.paused.is_none() && !self.is_stopped {
                let now = self.now();
                self.engine.tick(now);
            }
            self.flush_all();
        }
    }

    /// Waits until there is something to do, and reads what has come.
    fn wait(&mut self, rung: &UnixStream) {
        let is_paused = self.paused.is_some();
        let mut left = match is_paused || self.is_stopped {
            true => Duration::from_secs(3600),
            false => self.engine.next().saturating_sub(self.now()),
        };
        let now = Instant::now();
        self.accepts_from = self.accepts_from.filter(|from| *from > now);
        let accepts = !is_paused && self.accepts_from.is_none();
        if let Some(from) = self.accepts_from {
            left = left.min(from - now);
        }
        let mut ids = Vec::with_capacity(self.sockets.len());
        let mut wanted = Vec::with_capacity(self.sockets.len() + 2);
        wanted.push(PollFd::new(rung, PollFlags::IN));
        if accepts {
            wanted.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        if !is_paused {
            for (id, socket) in &self.sockets {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, self.engine.may_hear(*id));
                flags.set(PollFlags::OUT, !self.engine.output(*id).0.is_empty());
                ids.push(*id);
                wanted.push(PollFd::from_borrowed_fd(socket.as_fd(), flags));
            }
        }
        // Never too early, or it would go round until it is time.
        let left = left.saturating_add(Duration::from_micros(50));
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(3600).min(3600),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        if poll(&mut wanted, Some(&timeout)).is_err() {
            return;
        }
        let happened: Vec<PollFlags> = wanted.iter().skip(1).map(PollFd::revents).collect();
        let (listener, connections) = happened.split_at(usize::from(accepts));
        for (id, events) in ids.into_iter().zip(connections) {
            if events.contains(PollFlags::IN) {
                self.read(id);
            } else if events.intersects(PollFlags::HUP | PollFlags::ERR) {
                self.close(id);
            }
        }
        if listener.iter().any(|events| !events.is_empty()) {
            self.accept();
        }
    }

    fn accept(&mut self) {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                    // The connection stays in the queue, which would be ready again at once.
                    _ => {
                        self.accepts_from = Instant::now().checked_add(WITHOUT_DESCRIPTORS);
                        return;
                    }
                },
            };
            if self.refuses || self.is_stopped || socket.set_nonblocking(true).is_err() {
                continue;
            }
            let _ = socket.set_nodelay(true);
            self.connections += 1;
            self.sockets.insert(self.connections, socket);
            self.engine.connect(self.connections);
        }
    }

    /// Reads once: the others have their turn, too, before more is read.
    fn read(&mut self, id: ConnectionId) {
        let now = self.now();
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        match socket.read(&mut self.buffer) {
            Ok(0) => self.close(id),
            Ok(count) => {
                self.engine.input(id, &self.buffer[..count], now);
                self.flush(id);
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.close(id),
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.sockets.remove(&id);
        self.engine.disconnect(id);
    }

    fn flush_all(&mut self) {
        for id in self.engine.with_output() {
            self.flush(id);
        }
    }

    fn flush(&mut self, id: ConnectionId) {
        loop {
            let Some(socket) = self.sockets.get_mut(&id) else { return self.engine.disconnect(id) };
            let (out, is_over) = self.engine.output(id);
            if out.is_empty() {
                if is_over {
                    self.close(id);
                } else if self.engine.is_held(id) {
                    // There is room for further answers.
                    let now = self.now();
                    self.engine.input(id, &[], now);
                    continue;
                }
                return;
            }
            match socket.write(out) {
                Ok(count) => drop(out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The rest is sent when there is room, also if the connection is to be closed then.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.close(id),
            }
        }
    }
}
