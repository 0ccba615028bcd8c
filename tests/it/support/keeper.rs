//! A proxy in front of a ZooKeeper server that makes it behave as other servers that speak its
//! protocol: ClickHouse Keeper and RaftKeeper, as their sources say.
//!
//! Each connection gets a new session, with a password of zeros, and nobody can go on with a session or
//! close it later: the real server keeps it until its timeout.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::proxy::opcode;
use super::server::free_port;

/// What a server does with a request that it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// As ClickHouse Keeper.
    Closes,
    /// As RaftKeeper: it goes on with the next one.
    Ignored,
    /// As ZooKeeper before 3.5, but the connection stays open.
    Refused,
}

/// What such a server does.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// What happens to which kinds of requests.
    pub(crate) unknown: HashMap<i32, Unknown>,
    /// Without a leader, a handshake is answered with this session timeout and no session.
    pub(crate) leaderless: Option<i32>,
    pub(crate) has_passwords: bool,
}

impl Habits {
    /// ClickHouse Keeper, as most that are in use.
    pub(crate) fn usual() -> Habits {
        let unknown = [opcode::CREATE_CONTAINER, opcode::REMOVE_WATCHES, opcode::SASL];
        Habits {
            unknown: unknown.map(|opcode| (opcode, Unknown::Closes)).into(),
            leaderless: None,
            has_passwords: false,
        }
    }

    /// It knows all that a client needs.
    pub(crate) fn newest() -> Habits {
        Habits { unknown: HashMap::new(), ..Habits::usual() }
    }

    pub(crate) fn with(mut self, opcode: i32, unknown: Unknown) -> Habits {
        self.unknown.insert(opcode, unknown);
        self
    }
}

/// A running proxy. Its connections and threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    habits: Habits,
    closing: bool,
    next: usize,
    live: HashMap<usize, [TcpStream; 2]>,
    /// How many sessions were opened, and closed by their clients.
    opened: usize,
    closed: usize,
    seen: HashMap<i32, usize>,
}

impl Keeper {
    pub(crate) fn start(target: SocketAddr, habits: Habits) -> Keeper {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let listener = TcpListener::bind(address).expect("a port");
        let (live, seen) = (HashMap::new(), HashMap::new());
        let state = State { habits, closing: false, next: 0, live, opened: 0, closed: 0, seen };
        let shared = Arc::new(Shared { target, state: Mutex::new(state) });
        let accepting = Arc::clone(&shared);
        spawn(move || accepting.accept_all(&listener));
        Keeper { address, shared }
    }

    pub(crate) fn hosts(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn set(&self, habits: Habits) {
        self.shared.lock().habits = habits;
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.shared.lock().cut();
    }

    /// Ends all sessions, and says so by a reply to no request.
    pub(crate) fn expire(&self) {
        const EXPIRED: i32 = -112;
        let mut state = self.shared.lock();
        for [client, server] in state.live.values() {
            let close = [&1_i32.to_be_bytes()[..], &opcode::CLOSE_SESSION.to_be_bytes()].concat();
            // First, or the client could see the answer to a request that it has not made.
            let _ = write_frame(&mut &*client, &header(0, EXPIRED));
            let _ = write_frame(&mut &*server, &close);
        }
        state.cut();
    }

    /// How many connections were granted a session.
    pub(crate) fn opened(&self) -> usize {
        self.shared.lock().opened
    }

    /// How many of those sessions their clients have not closed.
    pub(crate) fn left_open(&self) -> usize {
        let state = self.shared.lock();
        state.opened - state.closed
    }

    /// How many requests of this kind have come.
    pub(crate) fn count(&self, opcode: i32) -> usize {
        self.shared.lock().seen.get(&opcode).copied().unwrap_or_default()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closing = true;
        state.cut();
        drop(state);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(self.address);
    }
}

/// The hosts of a connect string, each behind such a proxy. Tests that ask for the same server get the
/// same proxy, which stays as long as the process.
pub(crate) fn behind_keepers(hosts: &str) -> String {
    static ALL: OnceLock<Mutex<HashMap<SocketAddr, Keeper>>> = OnceLock::new();
    let mut all = ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let (hosts, chroot) = hosts.split_at(hosts.find('/').unwrap_or(hosts.len()));
    let mut behind = |host: &str| match host.trim().parse() {
        Ok(address) => {
            all.entry(address).or_insert_with(|| Keeper::start(address, Habits::newest())).hosts()
        }
        Err(_) => host.to_owned(),
    };
    hosts.split(',').map(&mut behind).collect::<Vec<_>>().join(",") + chroot
}

fn spawn(body: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name("keeper".to_owned()).spawn(body).expect("a thread");
}

impl State {
    fn cut(&mut self) {
        for stream in self.live.drain().flat_map(|(_, both)| both) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What becomes of a request.
enum Fate {
    Passed,
    Answered(i32),
    Ignored,
    Closed,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            if self.lock().closing {
                return;
            }
            let shared = Arc::clone(self);
            spawn(move || {
                let _ = shared.serve(&client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    }

    fn serve(self: &Arc<Self>, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let request = read_frame(&mut &*client)?;
        if let Some(timeout) = self.lock().habits.leaderless {
            let no_session = (42, timeout, -1);
            return write_frame(&mut &*client, &handshake(no_session, &[0; 16]));
        }
        let server = TcpStream::connect(self.target)?;
        server.set_nodelay(true)?;
        // Whatever session the client asks for, it gets another one.
        let timeout = int_at(&request, 12)?;
        let password = [&16_i32.to_be_bytes()[..], &[0; 16], &[0]].concat();
        let fresh = [&[0; 12][..], &timeout.to_be_bytes(), &[0; 8], &password].concat();
        write_frame(&mut &server, &fresh)?;
        let mut answer = read_frame(&mut &server)?;
        let id = {
            let mut state = self.lock();
            if !state.habits.has_passwords {
                answer[20..36].fill(0);
            }
            state.next += 1;
            state.opened += 1;
            let id = state.next;
            state.live.insert(id, [client.try_clone()?, server.try_clone()?]);
            id
        };
        write_frame(&mut &*client, &answer)?;
        let (replies, from, shared) = (client.try_clone()?, server.try_clone()?, Arc::clone(self));
        let closing = Arc::new(Mutex::new(None));
        let close = Arc::clone(&closing);
        spawn(move || {
            let _ = pass_replies(&from, &replies, &close);
            shared.close(id);
        });
        let result = self.pass_requests(client, &server, &closing, timeout);
        if result.is_ok() {
            // The answer to the last request is still to come.
            return Ok(());
        }
        self.close(id);
        result
    }

    fn close(&self, id: usize) {
        for stream in self.lock().live.remove(&id).into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn pass_requests(
        &self,
        mut client: &TcpStream,
        mut server: &TcpStream,
        closing: &Mutex<Option<i32>>,
        timeout: i32,
    ) -> io::Result<()> {
        // Reads do not refresh a session.
        let timeout = Duration::from_millis(timeout.try_into().unwrap_or_default());
        let mut refreshed = Instant::now();
        loop {
            let request = read_frame(&mut client)?;
            let (xid, opcode) = (int_at(&request, 0)?, int_at(&request, 4)?);
            let reads = [opcode::EXISTS, opcode::GET_DATA, opcode::GET_CHILDREN];
            if !reads.contains(&opcode) && opcode != opcode::GET_CHILDREN2 {
                refreshed = Instant::now();
            }
            if refreshed.elapsed() > timeout {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.fate(opcode) {
                Fate::Passed => {}
                Fate::Answered(error) => {
                    write_frame(&mut client, &header(xid, error))?;
                    continue;
                }
                Fate::Ignored => continue,
                Fate::Closed => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
            if opcode == opcode::CLOSE_SESSION {
                *closing.lock().unwrap_or_else(PoisonError::into_inner) = Some(xid);
                self.lock().closed += 1;
            }
            write_frame(&mut server, &request)?;
            if opcode == opcode::CLOSE_SESSION {
                return Ok(());
            }
        }
    }

    fn fate(&self, opcode: i32) -> Fate {
        const UNIMPLEMENTED: i32 = -6;
        let mut state = self.lock();
        *state.seen.entry(opcode).or_default() += 1;
        match state.habits.unknown.get(&opcode) {
            None => Fate::Passed,
            Some(Unknown::Closes) => Fate::Closed,
            Some(Unknown::Ignored) => Fate::Ignored,
            Some(Unknown::Refused) => Fate::Answered(UNIMPLEMENTED),
        }
    }
}

/// Passes everything on but the answer to the request to close the session: the connection ends instead.
fn pass_replies(
    mut server: &TcpStream,
    mut client: &TcpStream,
    closing: &Mutex<Option<i32>>,
) -> io::Result<()> {
    loop {
        let reply = read_frame(&mut server)?;
        let closing = *closing.lock().unwrap_or_else(PoisonError::into_inner);
        if closing == Some(int_at(&reply, 0)?) {
            return Ok(());
        }
        write_frame(&mut client, &reply)?;
    }
}

fn handshake((version, timeout, session): (i32, i32, i64), password: &[u8; 16]) -> Vec<u8> {
    let numbers = [version.to_be_bytes(), timeout.to_be_bytes()].concat();
    let length = 16_i32.to_be_bytes();
    [&numbers[..], &session.to_be_bytes(), &length, password, &[0]].concat()
}

/// A reply without a body.
fn header(xid: i32, error: i32) -> Vec<u8> {
    [&xid.to_be_bytes()[..], &0_i64.to_be_bytes(), &error.to_be_bytes()].concat()
}

/// Reads a frame, without its length.
fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = usize::try_from(i32::from_be_bytes(length)).map_err(io::Error::other)?;
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

fn write_frame(to: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let length = i32::try_from(frame.len()).map_err(io::Error::other)?;
    to.write_all(&[&length.to_be_bytes()[..], frame].concat())
}

fn int_at(frame: &[u8], at: usize) -> io::Result<i32> {
    let bytes = frame.get(at..).and_then(|rest| rest.first_chunk());
    Ok(i32::from_be_bytes(*bytes.ok_or(io::ErrorKind::InvalidData)?))
}
