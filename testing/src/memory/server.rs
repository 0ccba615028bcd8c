//! One thread that reads, has the engine decide, and writes.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::engine::{ConnectionId, Engine, Settings};

/// What a caller has the thread do.
type Order = Box<dyn FnOnce(&mut Loop) + Send>;

/// A server in memory, which ends when this is dropped.
pub(crate) struct MemoryServer {
    address: SocketAddr,
    orders: Sender<Order>,
    bell: OwnedFd,
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
    is_over: bool,
    buffer: Vec<u8>,
}

impl MemoryServer {
    /// Starts a server on a port of 127.0.0.1; 0 is any that is free.
    pub(crate) fn start(settings: Settings, port: u16) -> io::Result<MemoryServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (rung, bell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
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
            is_over: false,
            buffer: vec![0; 16 * 1024],
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
        // If the pipe is full, the thread wakes up all the same.
        let _ = rustix::io::write(&self.bell, &[0]);
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
        self.paused.unwrap_or_else(|| self.since.elapsed() + self.advanced)
    }

    pub(crate) fn pause(&mut self) {
        self.paused = Some(self.now());
    }

    /// Time has passed meanwhile.
    pub(crate) fn resume(&mut self) {
        self.paused = None;
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.advanced += by;
        match &mut self.paused {
            Some(paused) => *paused += by,
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

    fn run(&mut self, rung: &OwnedFd, ordered: &Receiver<Order>) {
        while !self.is_over {
            self.wait(rung);
            // The bytes only wake up.
            while rustix::io::read(rung, &mut [0; 64][..]).is_ok_and(|count| count == 64) {}
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
    fn wait(&mut self, rung: &OwnedFd) {
        let is_paused = self.paused.is_some();
        let left = match is_paused {
            true => Duration::from_secs(3600),
            false if self.is_stopped => Duration::from_secs(3600),
            false => self.engine.next().saturating_sub(self.now()),
        };
        let ids: Vec<ConnectionId> = self.sockets.keys().copied().collect();
        let mut wanted = Vec::with_capacity(ids.len() + 2);
        wanted.push(PollFd::new(rung, PollFlags::IN));
        if !is_paused {
            wanted.push(PollFd::new(&self.listener, PollFlags::IN));
            for (id, socket) in &self.sockets {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, !self.engine.output(*id).0.is_empty());
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
        let mut happened = wanted
            .iter()
            .map(|one| !one.revents().is_empty())
            .collect::<Vec<_>>()
            .into_iter()
            .skip(1);
        if is_paused {
            return;
        }
        let has_come = happened.next() == Some(true);
        for (id, is_ready) in ids.into_iter().zip(happened) {
            if is_ready {
                self.read(id);
            }
        }
        if has_come {
            self.accept();
        }
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            if self.refuses || socket.set_nonblocking(true).is_err() {
                continue;
            }
            let _ = socket.set_nodelay(true);
            self.connections += 1;
            self.sockets.insert(self.connections, socket);
            self.engine.connect(self.connections);
        }
    }

    fn read(&mut self, id: ConnectionId) {
        let now = self.now();
        loop {
            let Some(socket) = self.sockets.get_mut(&id) else { return };
            match socket.read(&mut self.buffer) {
                Ok(0) => return self.close(id),
                Ok(count) => {
                    self.engine.input(id, &self.buffer[..count], now);
                    self.flush(id);
                    if count < self.buffer.len() {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.close(id),
            }
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
        let Some(socket) = self.sockets.get_mut(&id) else { return self.engine.disconnect(id) };
        let (out, is_over) = self.engine.output(id);
        while !out.is_empty() {
            match socket.write(out) {
                Ok(count) if count == out.len() => out.clear(),
                Ok(count) => drop(out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !is_over => return,
                Err(_) => return self.close(id),
            }
        }
        if is_over {
            self.close(id);
        }
    }
}
