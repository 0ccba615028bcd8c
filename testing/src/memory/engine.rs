//! The server without sockets and clocks: bytes of connections and the time in, bytes for connections out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use base64::Engine as _;
use sha1::{Digest as _, Sha1};

use super::answers::{Answered, Look, event, has_data, write_reply};
use super::wire::{Malformed, Reader, Said, Write, op};
use super::words::{self, Counts};
use crate::core::{
    ALL, Acl, Asker, Change, Error, Event, Identity, Mode, Reply, Request, Rules, Step,
    Transaction, Tree, Trigger, Watches, decide, password,
};

/// The largest request; a server closes the connection on larger ones.
const LARGEST: usize = 0xf_ffff;
/// So many bytes may wait for a client before further requests of it do.
const MOST_WAITING: usize = 4 << 20;
/// A client that leaves so many bytes of events unread is hung up on.
const MOST_UNREAD: usize = 64 << 20;
/// The answer of a server that is too busy, which leaves the request undone.
const THROTTLED: i32 = -127;

/// The settings of a server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) tick: Duration,
    /// The shortest and the longest session timeout.
    pub(crate) timeouts: (Duration, Duration),
    pub(crate) rules: Rules,
    /// How often it looks for containers and nodes whose time is over.
    pub(crate) check_interval: Duration,
    /// Nodes to make at the start, with the number of the next child.
    pub(crate) nodes: Vec<(String, i32)>,
}

impl Default for Settings {
    fn default() -> Settings {
        // As in testcontainers.toml, so that all servers for tests are alike.
        let tick = Duration::from_millis(200);
        let timeouts = (tick, Duration::from_secs(60));
        let check_interval = Duration::from_secs(60);
        Settings { tick, timeouts, rules: Rules::default(), check_interval, nodes: Vec::new() }
    }
}

/// Identifies a connection.
pub(crate) type ConnectionId = u64;

/// See the module. Times are since the server was made.
#[derive(Debug)]
pub(crate) struct Engine {
    settings: Settings,
    tree: Tree,
    /// The nodes that were given no data, which is not the same as empty data.
    without_data: BTreeSet<String>,
    zxid: i64,
    /// When it was made, in milliseconds since 1970.
    since: i64,
    sessions: BTreeMap<i64, Session>,
    next_session: i64,
    connections: BTreeMap<ConnectionId, Connection>,
    next_check: Duration,
    /// Requests whose connections were closed, and which are carried out all the same.
    late: VecDeque<Late>,
    pub(crate) faults: Faults,
    counts: Counts,
}

/// What is to go wrong.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// How many of the next requests are carried out, and their connections closed instead of an answer.
    pub(crate) drop_replies: u32,
    /// How many of the next requests are carried out so much later, and their connections closed at once.
    pub(crate) delay: Option<(u32, Duration)>,
    /// Which share of the requests is refused as if the server was too busy.
    pub(crate) throttle: f64,
    /// What has come together of it.
    throttled: f64,
}

impl Faults {
    /// From now on, this share of the requests is refused.
    pub(crate) fn throttle(&mut self, share: f64) {
        (self.throttle, self.throttled) = (share, 0.0);
    }

    /// Whether the next request is refused as if the server was too busy.
    fn throttles(&mut self) -> bool {
        self.throttled += self.throttle;
        let is = self.throttled >= 1.0;
        if is {
            self.throttled -= 1.0;
        }
        is
    }

    /// How much later the next request is carried out, if it is.
    fn delays(&mut self) -> Option<Duration> {
        let (left, after) = self.delay.as_mut().filter(|(left, _)| *left > 0)?;
        *left -= 1;
        Some(*after)
    }

    fn drops_reply(&mut self) -> bool {
        let is_dropped = self.drop_replies > 0;
        self.drop_replies -= u32::from(is_dropped);
        is_dropped
    }
}

#[derive(Debug)]
struct Session {
    password: [u8; 16],
    timeout: Duration,
    /// When it ends if its client is not heard before.
    ends: Duration,
}

#[derive(Debug, Default)]
struct Connection {
    session: Option<i64>,
    /// What has come and is not a whole frame yet.
    input: Vec<u8>,
    out: Vec<u8>,
    watches: Watches,
    who: Vec<Identity>,
    /// It is to be closed once `out` is sent.
    is_over: bool,
    /// Whole frames may be left in `input`, as too much waits to be sent.
    is_held: bool,
}

#[derive(Debug)]
struct Late {
    at: Duration,
    session: i64,
    who: Vec<Identity>,
    request: Request,
    said: Vec<Said>,
}

/// A request with the number that it must be answered with.
struct Asked<'a> {
    xid: i32,
    op: i32,
    body: Reader<'a>,
}

impl Engine {
    /// A server that was made at this time, in milliseconds since 1970.
    pub(crate) fn new(settings: Settings, since: i64) -> Engine {
        let mut tree = Tree::with_system_nodes(settings.rules);
        let mut zxid = 0;
        let mut changes = Vec::new();
        for (path, next) in &settings.nodes {
            for (at, _) in path.match_indices('/').skip(1).chain([(path.len(), "")]) {
                let (path, data, acl) = (path[..at].to_owned(), Vec::new(), vec![Acl::world(ALL)]);
                let mode = Mode::Persistent;
                changes.push(Change::Create { path, data, acl, owner: 0, mode, time: since });
            }
            changes.push(Change::SetNext { path: path.clone(), next: *next });
        }
        for change in changes {
            // Nodes share what is above them.
            if !matches!(&change, Change::Create { path, .. } if tree.contains(path)) {
                zxid += 1;
                tree.apply(&Transaction { zxid, change });
            }
        }
        Engine {
            next_check: settings.check_interval,
            settings,
            tree,
            without_data: BTreeSet::new(),
            zxid,
            since,
            sessions: BTreeMap::new(),
            // As real servers begin: the time in the upper bytes.
            next_session: (since << 24 & i64::MAX) >> 8,
            connections: BTreeMap::new(),
            late: VecDeque::new(),
            faults: Faults::default(),
            counts: Counts::default(),
        }
    }

    // ----- connections

    /// A client has connected from this machine.
    pub(crate) fn connect(&mut self, id: ConnectionId) {
        let who = vec![Identity { scheme: "ip".to_owned(), id: "127.0.0.1".to_owned() }];
        self.connections.insert(id, Connection { who, ..Connection::default() });
    }

    /// The client has closed it, or it is closed for another reason.
    pub(crate) fn disconnect(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
    }

    /// What is to be sent, and whether the connection is to be closed after it.
    pub(crate) fn output(&mut self, id: ConnectionId) -> (&mut Vec<u8>, bool) {
        let connection = self
            .connections
            .entry(id)
            .or_insert_with(|| Connection { is_over: true, ..Connection::default() });
        (&mut connection.out, connection.is_over)
    }

    /// The connections for which there is something to send, or which are to be closed.
    pub(crate) fn with_output(&self) -> Vec<ConnectionId> {
        let with = self.connections.iter().filter(|(_, one)| one.is_over || !one.out.is_empty());
        with.map(|(id, _)| *id).collect()
    }

    /// Whether to read what the client says: not while it reads no answers, or is to be left.
    pub(crate) fn may_hear(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|one| !one.is_over && !one.is_held)
    }

    /// Whether there may be requests that wait for room for their answers.
    pub(crate) fn is_held(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|one| one.is_held)
    }

    /// Bytes have come, or there is room for further answers.
    pub(crate) fn input(&mut self, id: ConnectionId, bytes: &[u8], now: Duration) {
        let Some(connection) = self.connections.get_mut(&id).filter(|one| !one.is_over) else {
            return;
        };
        // Most often a whole frame comes at once.
        let mut input = std::mem::take(&mut connection.input);
        input.extend(bytes);
        connection.is_held = false;
        let mut rest = &input[..];
        while let Some((size, body)) = rest.split_at_checked(4) {
            if self.connections.get(&id).is_none_or(|one| one.is_over) {
                return;
            }
            let word: [u8; 4] = size.try_into().unwrap_or_default();
            if let Some(text) = self.word(id, word, now) {
                return self.end_with(id, text.as_bytes());
            }
            let Some(size) =
                usize::try_from(i32::from_be_bytes(word)).ok().filter(|size| *size <= LARGEST)
            else {
                return self.end(id);
            };
            let Some((frame, after)) = body.split_at_checked(size) else { break };
            let waiting = self.connections.get_mut(&id).filter(|one| one.out.len() > MOST_WAITING);
            if let Some(connection) = waiting {
                connection.is_held = true;
                break;
            }
            rest = after;
            self.counts.received += 1;
            if self.frame(id, frame, now).is_err() {
                return self.end(id);
            }
        }
        let rest = rest.to_vec();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.input = rest;
        }
    }

    fn word(&mut self, id: ConnectionId, word: [u8; 4], now: Duration) -> Option<String> {
        // Only at the beginning.
        self.connections.get(&id)?.session.is_none().then_some(())?;
        words::is_known(word).then_some(())?;
        // As a request and its answer are.
        self.counts.received += 1;
        if &word == words::RESET {
            self.counts = Counts::default();
        }
        let connections = self.connections.len();
        let facts = words::Facts {
            counts: &self.counts,
            connections,
            sessions: self.sessions.len(),
            zxid: self.zxid,
            // Servers count the root twice.
            nodes: self.tree.len() + 1,
            bytes: self.tree.bytes(),
            ephemerals: self.tree.ephemerals().len(),
            watches: self.connections.values().map(|one| one.watches.len()).sum(),
            on_nodes: self.watches_on_nodes(),
            up: now,
        };
        let answer = words::answer(word, &facts);
        self.counts.sent += 1;
        answer
    }

    /// How many watches on nodes there are, at how many paths, of how many connections.
    fn watches_on_nodes(&self) -> [usize; 3] {
        let of = |one: &'_ Connection| one.watches.of_nodes().count();
        let all = self.connections.values().map(of);
        let paths: BTreeSet<&String> =
            self.connections.values().flat_map(|one| one.watches.of_nodes()).collect();
        let connections = all.clone().filter(|count| *count > 0).count();
        [all.sum(), paths.len(), connections]
    }

    fn end(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_over = true;
        }
    }

    fn end_with(&mut self, id: ConnectionId, last: &[u8]) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.out.extend(last);
        }
        self.end(id);
    }

    /// Closes all connections.
    pub(crate) fn end_all(&mut self) {
        for connection in self.connections.values_mut() {
            connection.out.clear();
            connection.is_over = true;
        }
    }

    fn frame(&mut self, id: ConnectionId, frame: &[u8], now: Duration) -> Result<(), Malformed> {
        let Some(session) = self.connections.get(&id).and_then(|one| one.session) else {
            return self.handshake(id, frame, now);
        };
        let mut body = Reader(frame);
        let (xid, op) = (body.int()?, body.int()?);
        self.touch(session, now);
        self.asked(id, session, Asked { xid, op, body }, now)
    }

    // ----- sessions

    fn handshake(
        &mut self,
        id: ConnectionId,
        frame: &[u8],
        now: Duration,
    ) -> Result<(), Malformed> {
        let mut body = Reader(frame);
        let (_version, seen) = (body.int()?, body.long()?);
        let (timeout, asked) = (body.int()?, body.long()?);
        let password = body.bytes()?.unwrap_or_default();
        let knows_read_only = !body.is_empty();
        // It has seen what this server has not: it has lost its data.
        if seen > self.zxid {
            self.end(id);
            return Ok(());
        }
        if asked != 0 {
            self.end_connections_of(asked);
        }
        let (shortest, longest) = self.settings.timeouts;
        let timeout = Duration::from_millis(u64::try_from(timeout).unwrap_or(0));
        let timeout = timeout.min(longest).max(shortest);
        let session = match asked {
            0 => Some(self.open(timeout, now)),
            asked => {
                let is_right =
                    self.sessions.get(&asked).is_some_and(|one| one.password == *password);
                is_right.then_some(asked)
            }
        };
        if let Some(session) = session.and_then(|id| self.sessions.get_mut(&id)) {
            session.timeout = timeout;
        }
        session.into_iter().for_each(|session| self.touch(session, now));
        let password =
            session.and_then(|id| self.sessions.get(&id)).map_or([0; 16], |one| one.password);
        let timeout = if session.is_some() { timeout } else { Duration::ZERO };
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        connection.session = session;
        connection.is_over = session.is_none();
        connection.out.frame(|out| {
            out.int(0);
            out.int(i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX));
            out.long(session.unwrap_or_default());
            out.bytes(&password);
            if knows_read_only {
                out.bool(false);
            }
        });
        Ok(())
    }

    fn open(&mut self, timeout: Duration, now: Duration) -> i64 {
        self.next_session += 1;
        let id = self.next_session;
        let password = password(id);
        self.zxid += 1;
        self.sessions.insert(id, Session { password, timeout, ends: now.saturating_add(timeout) });
        id
    }

    fn touch(&mut self, session: i64, now: Duration) {
        let tick = self.settings.tick.max(Duration::from_millis(1));
        if let Some(session) = self.sessions.get_mut(&session) {
            // Servers end sessions at whole ticks, and never too early.
            let end = now.saturating_add(session.timeout).as_nanos();
            let end = (end / tick.as_nanos() + 1) * tick.as_nanos();
            session.ends = Duration::from_nanos(u64::try_from(end).unwrap_or(u64::MAX));
        }
    }

    /// Whether there is such a session.
    pub(crate) fn has_session(&self, session: i64) -> bool {
        self.sessions.contains_key(&session)
    }

    /// All sessions.
    pub(crate) fn sessions(&self) -> Vec<i64> {
        self.sessions.keys().copied().collect()
    }

    /// Ends a session as if its timeout were over: its nodes go, and its connections are closed.
    pub(crate) fn expire(&mut self, session: i64) -> bool {
        let is_there = self.sessions.remove(&session).is_some();
        if is_there {
            self.commit(Change::CloseSession(session));
            self.end_connections_of(session);
        }
        is_there
    }

    /// A session has one connection: a server closes the former one as soon as a client asks for the session
    /// again, even if that has the wrong password.
    fn end_connections_of(&mut self, session: i64) {
        for connection in self.connections.values_mut().filter(|one| one.session == Some(session)) {
            connection.is_over = true;
        }
    }

    /// Each session has its whole timeout again, as after a start.
    pub(crate) fn renew_sessions(&mut self, now: Duration) {
        self.sessions().into_iter().for_each(|session| self.touch(session, now));
    }

    // ----- time

    /// When something is to be done next, if nothing comes before.
    pub(crate) fn next(&self) -> Duration {
        let ends = self.sessions.values().map(|session| session.ends);
        let late = self.late.iter().map(|late| late.at);
        ends.chain(late).fold(self.next_check, Duration::min)
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Duration) {
        while let Some(at) = self.late.iter().position(|late| late.at <= now) {
            let Some(Late { session, who, request, said, .. }) = self.late.remove(at) else {
                break;
            };
            if self.has_session(session) {
                let _ = self.decide(session, &who, &mut Watches::default(), &request, &said, now);
            }
        }
        let over = self.sessions.iter().filter(|(_, session)| session.ends <= now);
        for session in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.expire(session);
        }
        if self.next_check <= now {
            self.next_check = now.saturating_add(self.settings.check_interval);
            for path in self.tree.overdue(self.time(now)) {
                self.commit(Change::Delete { path });
            }
        }
    }

    fn time(&self, now: Duration) -> i64 {
        self.since + i64::try_from(now.as_millis()).unwrap_or(i64::MAX / 2)
    }

    // ----- requests

    fn commit(&mut self, change: Change) -> i64 {
        self.zxid += 1;
        let transaction = Transaction { zxid: self.zxid, change };
        let triggers = self.tree.apply(&transaction);
        for trigger in &triggers {
            self.fire(trigger);
            if trigger.event == Event::Deleted {
                self.without_data.remove(&trigger.path);
            }
        }
        self.zxid
    }

    fn fire(&mut self, trigger: &Trigger) {
        let hides_events = self.settings.rules.hides_events;
        for connection in self.connections.values_mut().filter(|one| !one.is_over) {
            if connection.watches.fire(trigger, &connection.who, hides_events) {
                event(&mut connection.out, trigger.event, &trigger.path);
                self.counts.sent += 1;
                // It reads nothing, and would only fill the memory.
                if connection.out.len() > MOST_UNREAD {
                    connection.out.clear();
                    connection.is_over = true;
                }
            }
        }
    }

    /// Decides on a request and carries it out; returns the answer and the number of the last transaction.
    fn decide(
        &mut self,
        session: i64,
        who: &[Identity],
        watches: &mut Watches,
        request: &Request,
        said: &[Said],
        now: Duration,
    ) -> (Result<Reply, Error>, i64) {
        let asker = Asker { session, who, zxid: self.zxid + 1, time: self.time(now) };
        let decision = decide(&self.tree, &self.tree, watches, &asker, request);
        match decision.change {
            Some(change) => {
                self.commit(change);
                if let Ok(reply) = &decision.reply {
                    self.note_data(request, said, reply);
                }
            }
            // A refused change has a number, too.
            None if request.is_for_the_leader() && !matches!(request, Request::Sync { .. }) => {
                self.zxid += 1
            }
            None => {}
        }
        (decision.reply, self.zxid)
    }

    /// Notes which nodes have no data now.
    fn note_data(&mut self, request: &Request, said: &[Said], reply: &Reply) {
        let (steps, replies) = match (request, reply) {
            (Request::One(step), reply) => {
                (std::slice::from_ref(step), std::slice::from_ref(reply))
            }
            (Request::Multi(steps), Reply::Multi(Ok(replies))) => (&steps[..], &replies[..]),
            _ => return,
        };
        for ((step, said), reply) in steps.iter().zip(said).zip(replies) {
            let path = match (step, reply) {
                (_, Reply::Created(path, _)) | (Step::SetData { path, .. }, _) => path,
                _ => continue,
            };
            if said.has_data {
                self.without_data.remove(path);
            } else {
                self.without_data.insert(path.clone());
            }
        }
    }

    fn asked(
        &mut self,
        id: ConnectionId,
        session: i64,
        asked: Asked<'_>,
        now: Duration,
    ) -> Result<(), Malformed> {
        let Asked { xid, op, body } = asked;
        match op {
            op::PING => {
                // Whatever number it has.
                self.answer(id, -2, self.zxid, 0, |_| ());
                return Ok(());
            }
            op::AUTH => return self.auth(id, xid, body),
            op::CLOSE => {
                self.expire(session);
                self.answer(id, xid, self.zxid, 0, |_| ());
                self.end(id);
                return Ok(());
            }
            _ => {}
        }
        // Its nodes are gone, but its client does not know.
        if !self.has_session(session) {
            self.answer(id, xid, self.zxid, Error::SessionExpired.code(), |_| ());
            self.end(id);
            return Ok(());
        }
        if self.faults.throttles() {
            self.answer(id, xid, self.zxid, THROTTLED, |_| ());
            return Ok(());
        }
        if self.carry_out(id, session, Asked { xid, op, body }, now).is_err() {
            self.zxid += i64::from(op::is_write(op));
            self.answer(id, xid, self.zxid, Error::Marshalling.code(), |_| ());
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        id: ConnectionId,
        session: i64,
        asked: Asked<'_>,
        now: Duration,
    ) -> Result<(), Malformed> {
        let Asked { xid, op, mut body } = asked;
        if let op::SET_WATCHES | op::SET_WATCHES2 = op {
            let (restored, seen) = body.watches(op)?;
            let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
            for (missed, path) in connection.watches.restore(restored, seen, &self.tree) {
                event(&mut connection.out, missed, &path);
            }
            self.answer(id, xid, self.zxid, 0, |_| ());
            return Ok(());
        }
        if let op::MULTI_READ | op::EPHEMERALS | op::COUNT_BELOW | op::WHO_AM_I = op {
            return self.look(id, session, Asked { xid, op, body });
        }
        if op == op::DELETE_CONTAINER {
            self.zxid += 1;
            self.answer(id, xid, self.zxid, Error::BadArguments.code(), |_| ());
            return Ok(());
        }
        let Some((request, said)) = body.request(op)? else {
            self.answer(id, xid, -1, Error::Unimplemented.code(), |_| ());
            self.end(id);
            return Ok(());
        };
        let is_watched = self.is_watched(&request);
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let who = connection.who.clone();
        if let Some(after) = self.faults.delays() {
            let at = now.saturating_add(after);
            self.late.push_back(Late { at, session, who, request, said });
            self.end(id);
            return Ok(());
        }
        // A change fires the client's own watches, too, before its answer is sent; only what reads sets some.
        let is_read = !request.is_for_the_leader();
        let mut watches =
            if is_read { std::mem::take(&mut connection.watches) } else { Watches::default() };
        let (reply, zxid) = self.decide(session, &who, &mut watches, &request, &said, now);
        if let Some(connection) = self.connections.get_mut(&id).filter(|_| is_read) {
            connection.watches = watches;
        }
        if self.faults.drops_reply() {
            self.end(id);
            return Ok(());
        }
        match reply {
            Err(Error::NoWatcher) if is_watched => self.answer(id, xid, zxid, 0, |_| ()),
            Ok(reply) => {
                let has_data = has_data(&request, &self.without_data);
                let answered = Answered { op, said: &said, request: &request, has_data };
                self.answer(id, xid, zxid, 0, |out| write_reply(out, answered, &reply));
            }
            Err(error) => self.answer(id, xid, zxid, error.code(), |_| ()),
        }
        Ok(())
    }

    /// Whether a request only looks for a watch that any client has: servers do not ask whose it is.
    fn is_watched(&self, request: &Request) -> bool {
        match request {
            Request::RemoveWatches { path, which, only_check: true } => {
                self.connections.values().any(|one| one.watches.has(path, *which))
            }
            _ => false,
        }
    }

    /// Answers what the core knows nothing of, and what changes nothing.
    fn look(&mut self, id: ConnectionId, session: i64, asked: Asked<'_>) -> Result<(), Malformed> {
        let Asked { xid, op, body } = asked;
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        let look = Look {
            tree: &self.tree,
            without_data: &self.without_data,
            session,
            who: &connection.who,
        };
        let (error, answer) = match look.answer(op, body)? {
            Ok(answer) => (0, answer),
            Err(refused) => (refused.code(), Vec::new()),
        };
        self.answer(id, xid, self.zxid, error, |out| out.extend(&answer));
        Ok(())
    }

    fn auth(&mut self, id: ConnectionId, xid: i32, mut body: Reader<'_>) -> Result<(), Malformed> {
        let (_type, scheme) = (body.int()?, body.bytes()?.unwrap_or_default());
        match (scheme, body.bytes()?) {
            (b"digest", Some(said)) => {
                let name = said.split(|byte| *byte == b':').next().unwrap_or_default();
                let hash = base64::engine::general_purpose::STANDARD.encode(Sha1::digest(said));
                let proved = format!("{}:{hash}", String::from_utf8_lossy(name));
                let proved = Identity { scheme: "digest".to_owned(), id: proved };
                if let Some(connection) = self.connections.get_mut(&id) {
                    if !connection.who.contains(&proved) {
                        connection.who.push(proved);
                    }
                }
                self.answer(id, xid, 0, 0, |_| ());
            }
            (b"ip", _) => self.answer(id, xid, 0, 0, |_| ()),
            _ => {
                self.answer(id, xid, 0, Error::AuthFailed.code(), |_| ());
                self.end(id);
            }
        }
        Ok(())
    }

    fn answer(
        &mut self,
        id: ConnectionId,
        xid: i32,
        zxid: i64,
        error: i32,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        self.counts.sent += 1;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.out.frame(|out| {
                out.int(xid);
                out.long(zxid);
                out.int(error);
                body(out);
            });
        }
    }
}
