//! A TCP proxy that injects faults between a client and a ZooKeeper server.
//!
//! It understands ZooKeeper's frames, so a fault can be limited to the reply to one kind of
//! request, and it records the requests it has seen. [`Proxy::raw`] forwards bytes of any protocol.
//!
//! Each connection has a reader and a writer for each direction. A reader takes bytes as soon as
//! they arrive; its writer passes every piece through [`Shared::admit`], where the faults happen.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::server::{free_port, secure_addr};
use super::wire::Wire;

/// The opcodes of requests.
pub(crate) mod opcode {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_ACL: i32 = 6;
    pub(crate) const SET_ACL: i32 = 7;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const PING: i32 = 11;
    pub(crate) const GET_CHILDREN2: i32 = 12;
    pub(crate) const CHECK: i32 = 13;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE2: i32 = 15;
    pub(crate) const REMOVE_WATCHES: i32 = 18;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const CREATE_TTL: i32 = 21;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SASL: i32 = 102;
    pub(crate) const CLOSE_SESSION: i32 = -11;

    /// Whether a request of this kind begins with a path.
    pub(super) fn has_path(opcode: i32) -> bool {
        matches!(
            opcode,
            CREATE..=SYNC | GET_CHILDREN2 | CHECK | CREATE2 | CREATE_CONTAINER | CREATE_TTL
        )
    }
}

/// How long the proxy may take to carry out a command.
const LIMIT: Duration = Duration::from_secs(20);
/// The pause between two tries to connect.
const RETRY: Duration = Duration::from_millis(10);
/// Longer frames are not ZooKeeper's.
const LONGEST_FRAME: usize = 256 << 20;

/// The requests that watch contenders: the own one by its data, those ahead by their children.
const WATCHES: [i32; 2] = [opcode::GET_DATA, opcode::GET_CHILDREN2];

/// A request that the proxy has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) opcode: i32,
    pub(crate) xid: i32,
    pub(crate) path: Option<String>,
    /// After it was sent, and before it was passed on.
    pub(crate) at: Instant,
}

/// A running proxy. Its connections and threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy in front of a ZooKeeper server.
    ///
    /// A connection to the server is made when the client sends its first bytes.
    pub(crate) fn start(target: SocketAddr) -> Proxy {
        Proxy::new(target, true, Duration::ZERO)
    }

    /// Starts a proxy that does not look at what it forwards: nothing is counted, and faults
    /// limited to an opcode have no effect.
    ///
    /// It retries for up to `patience` to connect to a target that does not listen yet. Meanwhile
    /// its client sees an open connection; without the proxy it would be refused, and retry.
    pub(crate) fn raw(target: SocketAddr, patience: Duration) -> Proxy {
        Proxy::new(target, false, patience)
    }

    fn new(target: SocketAddr, framed: bool, patience: Duration) -> Proxy {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let shared = Arc::new(Shared {
            address,
            framed,
            patience,
            state: Mutex::new(State::new(target)),
            changed: Condvar::new(),
        });
        shared.spawn("proxy-accept", Shared::accept_all);
        shared.wait(|state| state.listening);
        Proxy { shared }
    }

    /// The connect string of the proxy.
    pub(crate) fn hosts(&self) -> String {
        self.shared.address.to_string()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.shared.address
    }

    /// Where connections go from now on.
    pub(crate) fn set_target(&self, target: SocketAddr) {
        self.shared.update(|state| state.target = target);
    }

    /// Ends every fault. Connections that have lost bytes in a black hole are cut, since a TCP
    /// stream has no gaps; what was held is delivered.
    pub(crate) fn pass(&self) {
        self.shared.update(|state| {
            state.rules.clear();
            state.delays = Delays::default();
        });
        self.release();
    }

    /// Closes every connection; new ones pass. Delays and faults limited to an opcode stay.
    pub(crate) fn cut(&self) {
        self.shared.update(|state| {
            state.cut_all();
            state.mode = Mode::Pass;
        });
        self.shared.wait(|state| state.listening);
    }

    /// Closes every connection; new ones are refused.
    pub(crate) fn refuse(&self) {
        self.shared.update(|state| {
            state.cut_all();
            state.mode = Mode::Refuse;
        });
        self.shared.wake_acceptor();
        self.shared.wait(|state| !state.listening);
    }

    /// Swallows everything in both directions, including the end of connections. Connections stay
    /// open, and new ones are accepted.
    pub(crate) fn black_hole(&self) {
        self.set_mode(Mode::BlackHole);
    }

    /// Like a black hole, but [`release`](Proxy::release) delivers what was sent meanwhile; a
    /// [raw](Proxy::raw) proxy delivers it all together.
    pub(crate) fn hold(&self) {
        self.set_mode(Mode::Hold);
    }

    /// Ends [`hold`](Proxy::hold), [`stall_reply`](Proxy::stall_reply),
    /// [`stall_request`](Proxy::stall_request),
    /// [`black_hole`](Proxy::black_hole) and [`refuse`](Proxy::refuse); delays and the other
    /// faults limited to an opcode stay.
    pub(crate) fn release(&self) {
        self.shared.update(|state| {
            let stalls = |fate| matches!(fate, Fate::StallReply { .. } | Fate::StallRequest { .. });
            state.rules.retain(|rule| !stalls(rule.fate));
            state.live.values_mut().for_each(|connection| connection.stalled = false);
            // Ends these stalls also for their requests and replies that are yet to reach a writer.
            state.releases += 1;
        });
        self.set_mode(Mode::Pass);
    }

    /// Delays everything by this much, in each direction.
    pub(crate) fn delay(&self, by: Duration) {
        self.delay_requests(by);
        self.delay_replies(by);
    }

    pub(crate) fn delay_requests(&self, by: Duration) {
        self.shared.update(|state| state.delays.requests = by);
    }

    pub(crate) fn delay_replies(&self, by: Duration) {
        self.shared.update(|state| state.delays.replies = by);
    }

    /// The next `count` requests of this kind take effect, but the connection is cut instead of
    /// delivering the reply.
    pub(crate) fn drop_reply(&self, opcode: i32, count: usize) {
        self.arm(Fate::DropReply, opcode, "", count);
    }

    /// [`drop_reply`](Proxy::drop_reply) for requests whose path contains `part`.
    pub(crate) fn drop_reply_on(&self, opcode: i32, part: &str, count: usize) {
        self.arm(Fate::DropReply, opcode, part, count);
    }

    /// The next `count` requests of this kind never reach the server; the connection is cut.
    pub(crate) fn drop_request(&self, opcode: i32, count: usize) {
        self.arm(Fate::DropRequest, opcode, "", count);
    }

    /// [`drop_request`](Proxy::drop_request) for requests whose path contains `part`.
    pub(crate) fn drop_request_on(&self, opcode: i32, part: &str, count: usize) {
        self.arm(Fate::DropRequest, opcode, part, count);
    }

    /// The next `count` requests of this kind are not carried out, but answered as by an overloaded
    /// server, and the connection stays open.
    pub(crate) fn throttle(&self, opcode: i32, count: usize) {
        self.arm(Fate::Throttle, opcode, "", count);
    }

    /// Like [`throttle`](Proxy::throttle), for so many percent of the requests of this kind, chosen at
    /// random, until [`pass`](Proxy::pass).
    pub(crate) fn throttle_share(&self, opcode: i32, percent: u64) {
        self.arm_share(Fate::Throttle, opcode, "", usize::MAX, percent);
    }

    /// How many requests were throttled since the start.
    pub(crate) fn throttled(&self) -> u64 {
        self.shared.lock().throttled
    }

    /// Holds each answer to a request to connect back for so long, until one of them has reached the
    /// client after that time, or until [`pass`](Proxy::pass), which delivers them.
    pub(crate) fn slow_opening(&self, by: Duration) {
        self.shared.update(|state| state.delays.opening = by);
    }

    /// Whether no answer has been held back for as long as that yet.
    pub(crate) fn opens_slowly(&self) -> bool {
        !self.shared.lock().delays.opening.is_zero()
    }

    /// Withholds requests of this kind, and whatever follows each on its connection, until
    /// [`release`](Proxy::release) or [`pass`](Proxy::pass).
    pub(crate) fn stall_request(&self, opcode: i32) {
        let releases = self.shared.lock().releases;
        self.arm(Fate::StallRequest { releases }, opcode, "", usize::MAX);
    }

    /// Replaces the reply to each successful request of this kind, whose path contains `part`, by
    /// this error, until [`pass`](Proxy::pass).
    pub(crate) fn deny(&self, opcode: i32, part: &str, code: i32) {
        self.arm(Fate::Deny { code }, opcode, part, usize::MAX);
    }

    /// Makes requests of this kind unknown to the server, as newer kinds are to older servers: it
    /// answers so and closes the connection, until [`pass`](Proxy::pass).
    pub(crate) fn unknown(&self, opcode: i32) {
        self.arm(Fate::Unknown, opcode, "", usize::MAX);
    }

    /// Withholds the replies to requests of this kind, and whatever follows each on its connection,
    /// until [`release`](Proxy::release) or [`pass`](Proxy::pass).
    pub(crate) fn stall_reply(&self, opcode: i32) {
        let releases = self.shared.lock().releases;
        self.arm(Fate::StallReply { releases }, opcode, "", usize::MAX);
    }

    /// How many requests of this kind were seen since the start or
    /// [`reset_counts`](Proxy::reset_counts).
    pub(crate) fn count(&self, opcode: i32) -> u64 {
        self.shared.lock().count(opcode)
    }

    pub(crate) fn total_requests(&self) -> u64 {
        self.shared.lock().requests.len() as u64
    }

    /// The requests seen since the start or [`reset_counts`](Proxy::reset_counts), in order,
    /// without handshakes.
    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.shared.lock().requests.clone()
    }

    /// The id and password of the session that was last established here.
    ///
    /// # Panics
    /// If none was.
    pub(crate) fn session(&self) -> (i64, Vec<u8>) {
        self.sessions().swap_remove(0)
    }

    /// The ids and passwords of the sessions that were last established here, the last one first.
    pub(crate) fn sessions(&self) -> Vec<(i64, Vec<u8>)> {
        self.shared.lock().sessions.iter().cloned().collect()
    }

    pub(crate) fn reset_counts(&self) {
        self.shared.lock().requests.clear();
    }

    /// Waits until a request of this kind was seen since the start or
    /// [`reset_counts`](Proxy::reset_counts); false when none was within `timeout`.
    pub(crate) fn wait_for_request(&self, opcode: i32, timeout: Duration) -> bool {
        self.wait_for_requests(opcode, 1, timeout)
    }

    pub(crate) fn wait_for_requests(&self, opcode: i32, count: u64, timeout: Duration) -> bool {
        self.shared.wait_for(timeout, |state| state.count(opcode) >= count)
    }

    /// Waits until this many requests were seen that watch contenders.
    pub(crate) fn wait_for_watches(&self, count: u64, timeout: Duration) -> bool {
        let seen = |state: &State| WATCHES.iter().map(|code| state.count(*code)).sum::<u64>();
        self.shared.wait_for(timeout, |state| seen(state) >= count)
    }

    /// The paths of the contenders that were watched, in the order of the requests.
    pub(crate) fn watched(&self) -> Vec<String> {
        let asked = self.requests().into_iter().filter(|seen| WATCHES.contains(&seen.opcode));
        asked.filter_map(|seen| seen.path).collect()
    }

    /// How many connections were accepted since the start.
    pub(crate) fn connections(&self) -> usize {
        self.shared.lock().accepted
    }

    /// How many connections are open.
    pub(crate) fn live_connections(&self) -> usize {
        self.shared.lock().live.len()
    }

    fn set_mode(&self, mode: Mode) {
        self.shared.update(|state| {
            state.mode = mode;
            if mode != Mode::BlackHole {
                state.cut_where(|connection| connection.gap);
            }
        });
        self.shared.wait(|state| state.listening);
    }

    fn arm(&self, fate: Fate, opcode: i32, part: &str, count: usize) {
        self.arm_share(fate, opcode, part, count, 100);
    }

    fn arm_share(&self, fate: Fate, opcode: i32, part: &str, count: usize, percent: u64) {
        self.shared.update(|state| {
            state.rules.push(Rule { fate, opcode, part: part.to_owned(), left: count, percent });
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.update(|state| {
            state.closing = true;
            state.cut_all();
        });
        self.shared.wake_acceptor();
        let ended = self.shared.wait_for(LIMIT, |state| state.threads == 0);
        assert!(
            ended || thread::panicking(),
            "the proxy at {} is stuck; threads: {}",
            self.shared.address,
            self.shared.lock().threads
        );
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    Refuse,
    BlackHole,
    Hold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

#[derive(Clone, Copy, Debug, Default)]
struct Delays {
    requests: Duration,
    replies: Duration,
    /// Of the answer to the request to connect.
    opening: Duration,
}

/// What happens to a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Deliver,
    Swallow,
    DropRequest,
    DropReply,
    /// The proxy sends the server a harmless request instead, and the client an error.
    Throttle,
    /// The request gets an opcode that no server knows.
    Unknown,
    /// The reply, unless it is an error, is replaced by this error.
    Deny {
        code: i32,
    },
    /// The reply is withheld while the number of releases is still this one.
    StallReply {
        releases: u64,
    },
    StallRequest {
        releases: u64,
    },
}

#[derive(Debug)]
struct Rule {
    fate: Fate,
    opcode: i32,
    part: String,
    left: usize,
    /// Of how many requests in a hundred.
    percent: u64,
}

/// What a reader passes to its writer.
#[derive(Debug)]
struct Piece {
    /// `None` when the connection has ended.
    bytes: Option<Vec<u8>>,
    received: Instant,
    fate: Fate,
    /// Whether it is the request to connect, or the answer to it.
    opens: bool,
}

/// What the writer does with a piece.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Deliver,
    Swallow,
    Cut,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: Option<TcpStream>,
    /// The fates of the replies that are expected, by xid. Requests with the same xid (pings) are
    /// answered in order.
    expected: HashMap<i32, Vec<Fate>>,
    /// Something was swallowed.
    gap: bool,
    /// A reply is being withheld.
    stalled: bool,
    /// The server has been sent a request that it does not know, and ends the connection.
    ends: bool,
}

impl Connection {
    fn shut_down(&self) {
        // A connection that is closed already is fine.
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    mode: Mode,
    delays: Delays,
    rules: Vec<Rule>,
    /// The last random number.
    random: u64,
    throttled: u64,
    releases: u64,
    requests: Vec<Seen>,
    sessions: VecDeque<(i64, Vec<u8>)>,
    accepted: usize,
    live: HashMap<usize, Connection>,
    threads: usize,
    listening: bool,
    closing: bool,
}

impl State {
    fn new(target: SocketAddr) -> State {
        State {
            target,
            mode: Mode::Pass,
            delays: Delays::default(),
            rules: Vec::new(),
            random: u64::from(target.port()),
            throttled: 0,
            releases: 0,
            requests: Vec::new(),
            sessions: VecDeque::new(),
            accepted: 0,
            live: HashMap::new(),
            threads: 0,
            listening: false,
            closing: false,
        }
    }

    /// Whether no connection is accepted.
    fn is_deaf(&self) -> bool {
        self.closing || self.mode == Mode::Refuse
    }

    fn count(&self, opcode: i32) -> u64 {
        self.requests.iter().filter(|seen| seen.opcode == opcode).count() as u64
    }

    fn note_session(&mut self, session: Option<(i64, Vec<u8>)>) {
        const REMEMBERED: usize = 16;
        if let Some(session) = session {
            self.sessions.retain(|known| *known != session);
            self.sessions.push_front(session);
            self.sessions.truncate(REMEMBERED);
        }
    }

    /// Finds the fate of what a reader has just read: a request or a reply if there is a `message`,
    /// otherwise something that no rule applies to.
    fn receive(&mut self, id: usize, direction: Direction, message: Option<&[u8]>) -> Fate {
        let request = message.filter(|_| direction == Direction::Requests).and_then(parse_request);
        self.requests.extend(request.clone());
        let Some(connection) = self.live.get_mut(&id) else { return Fate::Deliver };
        // Checked here as well as in `admit`: a request that was seen in a black hole is lost even
        // if the black hole ends before the request reaches its writer.
        if self.mode == Mode::BlackHole {
            connection.gap = true;
            return Fate::Swallow;
        }
        if let Some(request) = request {
            let fate = fate_of(&mut self.rules, &mut self.random, &request);
            self.throttled += u64::from(fate == Fate::Throttle);
            connection.expected.entry(request.xid).or_default().push(fate);
            return fate;
        }
        // Watch events are not in `expected`.
        message
            .filter(|_| direction == Direction::Replies)
            .and_then(|reply| connection.expected.get_mut(&int_at(reply, 4)?))
            .filter(|fates| !fates.is_empty())
            .map_or(Fate::Deliver, |fates| fates.remove(0))
    }

    fn cut_all(&mut self) {
        self.cut_where(|_| true);
    }

    fn cut_where(&mut self, condition: impl Fn(&Connection) -> bool) {
        self.live.retain(|_, connection| {
            let cut = condition(connection);
            if cut {
                connection.shut_down();
            }
            !cut
        });
    }

    fn cut(&mut self, id: usize) {
        if let Some(connection) = self.live.remove(&id) {
            connection.shut_down();
        }
    }
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    framed: bool,
    /// How long to retry to connect to the target.
    patience: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    fn wait_for(&self, timeout: Duration, condition: impl Fn(&State) -> bool) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.lock(), timeout, |state| !condition(state))
            .unwrap_or_else(PoisonError::into_inner);
        condition(&state)
    }

    fn wait(&self, condition: impl Fn(&State) -> bool) {
        assert!(self.wait_for(LIMIT, condition), "the proxy at {} is stuck", self.address);
    }

    fn spawn(self: &Arc<Self>, name: &str, body: impl FnOnce(&Arc<Shared>) + Send + 'static) {
        self.update(|state| state.threads += 1);
        let shared = Arc::clone(self);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                body(&shared);
                shared.update(|state| state.threads -= 1);
            })
            .expect("a thread for the proxy");
    }

    fn wake_acceptor(&self) {
        // If the acceptor does not listen, this fails, and nothing has to be woken.
        let _ = TcpStream::connect_timeout(&self.address, LIMIT);
    }

    fn accept_all(self: &Arc<Self>) {
        while self.wait_to_listen() {
            let Ok(listener) = TcpListener::bind(self.address) else {
                // Another process took the port for a moment, in search of a free one.
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            self.update(|state| state.listening = true);
            for client in listener.incoming() {
                if self.lock().is_deaf() {
                    break;
                }
                if let Ok(client) = client {
                    self.serve(client);
                }
            }
            drop(listener);
            self.update(|state| state.listening = false);
        }
    }

    /// Waits until connections may be accepted; false when the proxy closes.
    fn wait_to_listen(&self) -> bool {
        let state = self
            .changed
            .wait_while(self.lock(), |state| !state.closing && state.mode == Mode::Refuse)
            .unwrap_or_else(PoisonError::into_inner);
        !state.closing
    }

    fn serve(self: &Arc<Self>, client: TcpStream) {
        let Ok(wire) = client.try_clone().map(Wire::plain) else { return };
        // A failure only costs time.
        let _ = client.set_nodelay(true);
        let connection = Connection {
            client,
            server: None,
            expected: HashMap::new(),
            gap: false,
            stalled: false,
            ends: false,
        };
        let id = self.update(|state| {
            if state.is_deaf() {
                return None;
            }
            state.accepted += 1;
            state.live.insert(state.accepted, connection);
            Some(state.accepted)
        });
        let Some(id) = id else { return };
        let (sender, receiver) = mpsc::channel();
        let reading = wire.clone();
        self.spawn("proxy-client", move |shared| {
            // A handshake that fails ends the connection at the first read.
            let _ = shared.framed && reading.accept().unwrap_or_default();
            shared.read(id, Direction::Requests, reading, &sender);
        });
        self.spawn("proxy-to-server", move |shared| {
            shared.write_requests(id, &receiver, wire);
        });
    }

    /// Reads one direction of a connection until it ends.
    fn read(&self, id: usize, direction: Direction, mut from: Wire, to: &Sender<Piece>) {
        let mut handshake = true;
        loop {
            if !self.framed {
                self.wait_to_read(id);
            }
            let bytes = if self.framed { read_frame(&mut from) } else { read_some(&mut from) }.ok();
            let received = Instant::now();
            let message = bytes.as_deref().filter(|_| self.framed && !handshake);
            let fate = self.update(|state| {
                if self.framed && handshake && direction == Direction::Replies {
                    state.note_session(bytes.as_deref().and_then(parse_session));
                }
                state.receive(id, direction, message)
            });
            let opens = self.framed && std::mem::take(&mut handshake) && bytes.is_some();
            let bytes = match (direction, fate) {
                (Direction::Requests, Fate::Unknown) => bytes.map(estranged),
                (Direction::Replies, Fate::Deny { code }) => bytes.map(|reply| denied(reply, code)),
                _ => bytes,
            };
            let ended = bytes.is_none();
            if to.send(Piece { bytes, received, fate, opens }).is_err() || ended {
                return;
            }
        }
    }

    /// Waits as long as bytes are held, so that they arrive together: a server may do with many at once
    /// what it does not do with one after the other.
    fn wait_to_read(&self, id: usize) {
        let is_held = |state: &mut State| state.mode == Mode::Hold && state.live.contains_key(&id);
        drop(self.changed.wait_while(self.lock(), is_held).unwrap_or_else(PoisonError::into_inner));
    }

    fn write_requests(self: &Arc<Self>, id: usize, pieces: &Receiver<Piece>, client: Wire) {
        let mut server = None;
        let mut client = Some(client);
        self.write(id, Direction::Requests, pieces, |bytes| {
            if let Some(client) = client.take() {
                server = Some(self.dial(id, client)?);
            }
            server.as_mut().map_or(Ok(()), |server| server.write_all(bytes))
        });
    }

    /// Connects to the server, and starts to forward what it sends.
    fn dial(self: &Arc<Self>, id: usize, mut client: Wire) -> io::Result<Wire> {
        let target = self.lock().target;
        let target = if client.is_encrypted() { secure_addr(target) } else { target };
        let server = self.connect(target)?;
        server.set_nodelay(true)?;
        let kept = server.try_clone()?;
        let server = Wire::plain(server);
        let alive = self.update(|state| {
            let connection = state.live.get_mut(&id);
            connection.map(|connection| connection.server = Some(kept)).is_some()
        });
        if !alive {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if client.is_encrypted() {
            server.encrypt(target)?;
        }
        let reading = server.clone();
        let (sender, receiver) = mpsc::channel();
        self.spawn("proxy-server", move |shared| {
            shared.read(id, Direction::Replies, reading, &sender);
        });
        self.spawn("proxy-to-client", move |shared| {
            shared.write(id, Direction::Replies, &receiver, |bytes| client.write_all(bytes));
        });
        Ok(server)
    }

    fn connect(&self, target: SocketAddr) -> io::Result<TcpStream> {
        let start = Instant::now();
        loop {
            match TcpStream::connect_timeout(&target, LIMIT) {
                Err(_) if start.elapsed() < self.patience => thread::sleep(RETRY),
                result => return result,
            }
        }
    }

    /// Delivers the pieces of one direction until the connection ends.
    fn write(
        &self,
        id: usize,
        direction: Direction,
        pieces: &Receiver<Piece>,
        mut deliver: impl FnMut(&[u8]) -> io::Result<()>,
    ) {
        for piece in pieces {
            let delivered = match self.admit(id, direction, &piece) {
                Verdict::Swallow => true,
                Verdict::Cut => false,
                Verdict::Deliver => piece.bytes.is_some_and(|bytes| {
                    let bytes = match (direction, piece.fate) {
                        (Direction::Requests, Fate::Throttle) => harmless(&bytes),
                        (Direction::Replies, Fate::Throttle) => throttled(&bytes),
                        _ => bytes,
                    };
                    deliver(&bytes).is_ok()
                }),
            };
            if !delivered {
                self.update(|state| state.cut(id));
                return;
            }
        }
    }

    /// Waits until it is clear what to do with a piece.
    fn admit(&self, id: usize, direction: Direction, piece: &Piece) -> Verdict {
        let mut state = self.lock();
        let mut stalls = piece.fate == Fate::StallReply { releases: state.releases };
        loop {
            let State { live, mode, delays, releases, .. } = &mut *state;
            let Some(connection) = live.get_mut(&id) else { return Verdict::Cut };
            let delay = match direction {
                Direction::Requests => delays.requests,
                Direction::Replies => {
                    connection.stalled |= std::mem::take(&mut stalls);
                    delays.replies + if piece.opens { delays.opening } else { Duration::ZERO }
                }
            };
            let early = delay.saturating_sub(piece.received.elapsed());
            let stalled = match direction {
                Direction::Requests => piece.fate == Fate::StallRequest { releases: *releases },
                Direction::Replies => connection.stalled,
            };
            let held = *mode == Mode::Hold || stalled;
            if *mode == Mode::BlackHole || piece.fate == Fate::Swallow {
                connection.gap = true;
                return Verdict::Swallow;
            }
            // What it leaves unread would make its side reset the connection, and its answer be lost.
            if connection.ends && direction == Direction::Requests && piece.bytes.is_some() {
                return Verdict::Swallow;
            }
            if held {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else if !early.is_zero() {
                (state, _) =
                    self.changed.wait_timeout(state, early).unwrap_or_else(PoisonError::into_inner);
            } else {
                if piece.opens && direction == Direction::Replies {
                    delays.opening = Duration::ZERO;
                    self.changed.notify_all();
                }
                connection.ends |= direction == Direction::Requests && piece.fate == Fate::Unknown;
                return match (direction, piece.fate) {
                    (Direction::Requests, Fate::DropRequest)
                    | (Direction::Replies, Fate::DropReply) => Verdict::Cut,
                    _ => Verdict::Deliver,
                };
            }
        }
    }
}

/// Uses up one count of the first rule that matches the request, and returns its fate.
fn fate_of(rules: &mut [Rule], random: &mut u64, request: &Seen) -> Fate {
    let path = request.path.as_deref().unwrap_or_default();
    let rule = rules.iter_mut().find(|rule| {
        rule.left > 0
            && rule.opcode == request.opcode
            && path.contains(&rule.part)
            && percentile(random) < rule.percent
    });
    rule.map_or(Fate::Deliver, |rule| {
        rule.left -= 1;
        rule.fate
    })
}

/// A random number from 0 to 99: Knuth's linear congruential generator.
fn percentile(random: &mut u64) -> u64 {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) % 100
}

/// A request with the same xid that asks whether the root exists.
fn harmless(request: &[u8]) -> Vec<u8> {
    let xid = int_at(request, 4).unwrap_or_default();
    let body =
        [&xid.to_be_bytes()[..], &opcode::EXISTS.to_be_bytes(), &1_i32.to_be_bytes(), b"/\0"];
    framed(&body.concat())
}

/// The header of this reply, with the error of an overloaded server.
fn throttled(reply: &[u8]) -> Vec<u8> {
    const THROTTLED: i32 = -127;
    let header = reply.get(4..16).unwrap_or_default();
    framed(&[header, &THROTTLED.to_be_bytes()].concat())
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as i32).to_be_bytes()[..], body].concat()
}

fn parse_request(frame: &[u8]) -> Option<Seen> {
    let xid = int_at(frame, 4)?;
    let opcode = int_at(frame, 8)?;
    let path = if opcode::has_path(opcode) { string_at(frame, 12) } else { None };
    Some(Seen { opcode, xid, path, at: Instant::now() })
}

/// The request with an opcode that no server knows.
fn estranged(mut request: Vec<u8>) -> Vec<u8> {
    request[8..12].copy_from_slice(&55_i32.to_be_bytes());
    request
}

/// The reply turned into this error, unless it is an error already.
fn denied(mut reply: Vec<u8>, code: i32) -> Vec<u8> {
    /// The size of a reply without a body: length, xid, zxid and error.
    const WHOLE: usize = 4 + 4 + 8 + 4;
    if int_at(&reply, WHOLE - 4) == Some(0) {
        reply.truncate(WHOLE);
        reply[..4].copy_from_slice(&(WHOLE as i32 - 4).to_be_bytes());
        reply[WHOLE - 4..].copy_from_slice(&code.to_be_bytes());
    }
    reply
}

/// The id and password in the answer to a handshake.
fn parse_session(frame: &[u8]) -> Option<(i64, Vec<u8>)> {
    let id = i64::from_be_bytes(*frame.get(12..)?.first_chunk()?);
    let length = usize::try_from(int_at(frame, 20)?).ok()?;
    let password = frame.get(24..)?.get(..length)?;
    (id != 0).then(|| (id, password.to_vec()))
}

/// Reads a whole frame, with its length field.
fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame)?;
    let length = int_at(&frame, 0).and_then(|length| usize::try_from(length).ok());
    let length = length
        .filter(|length| *length <= LONGEST_FRAME)
        .ok_or_else(|| io::Error::other("not a frame of ZooKeeper"))?;
    frame.resize(4 + length, 0);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}

/// Reads whatever has arrived.
fn read_some(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64 << 10];
    let length = from.read(&mut bytes)?;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(length);
    Ok(bytes)
}

fn int_at(frame: &[u8], at: usize) -> Option<i32> {
    let bytes = frame.get(at..)?.first_chunk()?;
    Some(i32::from_be_bytes(*bytes))
}

fn string_at(frame: &[u8], at: usize) -> Option<String> {
    let length = usize::try_from(int_at(frame, at)?).ok()?;
    let bytes = frame.get(at + 4..)?.get(..length)?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}
