//! Finding a server that serves the session: names, connections, handshakes.
//!
//! It runs on threads of its own, so that neither a name server nor a silent host can
//! hold up the link.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use super::core::Granted;
use super::frame::{ConnectRequest, ConnectResponse, Fields, Frame, ReplyHeader};
use super::outage_log::OutageLog;
use super::sasl::Sasl;
use super::server_stream::ServerStream;
use super::tls::Tls;
use crate::connect_string::Host;
use crate::error::{self, Error, ErrorKind};
use crate::logging;
use crate::rt::{self, Deadline, Moment, Mutex, Receiver, RecvTimeoutError, Sender, bounded};
use crate::wire_values::{code, op, xid};

/// Credentials to present on every connection.
#[derive(Clone)]
pub(crate) struct Auth {
    pub(crate) scheme: String,
    pub(crate) credentials: Vec<u8>,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// How a client is let in: what it shows on every connection, and whether that is by TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) tls: Option<Tls>,
    pub(crate) sasl: Option<Sasl>,
    pub(crate) auth: Vec<Auth>,
}

impl Access {
    /// # Errors
    ///
    /// Fails with `InvalidArgument` if no server can let the client in with this, or a file of it cannot be used.
    pub(crate) fn check(&self) -> error::Result<()> {
        self.tls.as_ref().map_or(Ok(()), Tls::check)?;
        self.sasl.as_ref().map_or(Ok(()), Sasl::check)?;
        let why = |auth: &Auth| {
            if auth.scheme.is_empty() || auth.scheme.contains('\0') {
                Some("the scheme of credentials must be a name such as \"digest\"")
            } else if auth.scheme.len() + auth.credentials.len() > 64 * 1024 {
                Some("a scheme and its credentials must be at most 64 KiB together")
            } else {
                None
            }
        };
        match self.auth.iter().find_map(why) {
            Some(why) => Err(Error::new(ErrorKind::InvalidArgument, why)),
            None => Ok(()),
        }
    }

    /// # Errors
    ///
    /// Fails with `InvalidArgument` if no certificate can be for one of the hosts, and there has to be one.
    pub(crate) fn check_hosts(&self, hosts: &[Host]) -> error::Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        hosts.iter().try_for_each(|host| tls.check_host(&host.name))
    }
}

/// Resolves host names anew each time, and uses the last known addresses as long as that fails.
#[derive(Debug)]
pub(crate) struct Resolver {
    hosts: Mutex<Vec<Host>>,
    known: Mutex<HashMap<Host, Known>>,
    pub(super) outage: OutageLog,
    /// The greatest zxid that any session of these servers has seen.
    last_zxid: AtomicI64,
}

#[derive(Debug, Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    asking: bool,
    /// Why the last attempt to resolve the name failed, if it did.
    failure: Option<String>,
}

impl Resolver {
    pub(crate) fn new(hosts: Vec<Host>) -> Arc<Resolver> {
        let outage = OutageLog::default();
        let (hosts, known) = (Mutex::new(hosts), Mutex::new(HashMap::new()));
        Arc::new(Resolver { hosts, known, outage, last_zxid: AtomicI64::new(0) })
    }

    /// Notes the zxid that a session has seen, its `first` one or a later one, and warns if an earlier session
    /// has seen a greater one. To open a session is a change, too, so that means that changes were lost.
    pub(super) fn note_zxid(&self, zxid: i64, is_first: bool) {
        let before = self.last_zxid.fetch_max(zxid, Ordering::AcqRel);
        if is_first && zxid < before {
            self.last_zxid.store(zxid, Ordering::Release);
            logging::warning!(
                target: "zklock::link",
                "the ensemble has lost data, or was made anew: its last change is 0x{zxid:x}, and an earlier \
                 session has seen 0x{before:x}; fencing tokens begin anew, too"
            );
        }
    }

    /// Why the last search found no server, in an outage.
    pub(crate) fn why_no_server(&self) -> Option<String> {
        self.outage.why()
    }

    /// From its next round on, a search uses these hosts.
    pub(crate) fn set_hosts(&self, hosts: Vec<Host>) {
        self.known.lock().retain(|host, _| hosts.contains(host));
        *self.hosts.lock() = hosts;
    }

    /// The addresses of all hosts with the hosts' names, sorted; waits up to `limit` for name servers.
    fn addresses(self: &Arc<Self>, limit: Duration) -> Vec<(SocketAddr, String)> {
        let hosts = self.hosts.lock().clone();
        let (done, answers) = bounded(hosts.len());
        let mut asked = 0;
        let mut found: Vec<(SocketAddr, String)> = Vec::new();
        let mut names = Vec::new();
        for host in hosts {
            if let Some(address) = host.literal() {
                found.push((address, host.name));
            } else if !names.contains(&host) {
                asked += usize::from(self.ask(&host, done.clone()));
                names.push(host);
            }
        }
        let deadline = Deadline::after(limit);
        for _ in 0..asked {
            let Some(end) = deadline.instant() else { break };
            if answers.recv_deadline(end).is_err() {
                break;
            }
        }
        let known = self.known.lock();
        for host in &names {
            let addresses = known.get(host).into_iter().flat_map(|known| &known.addresses);
            found.extend(addresses.map(|address| (*address, host.name.clone())));
        }
        drop(known);
        found.sort_unstable();
        found.dedup();
        found
    }

    fn ask(self: &Arc<Self>, host: &Host, done: Sender<()>) -> bool {
        let mut known = self.known.lock();
        let entry = known.entry(host.clone()).or_default();
        if entry.asking {
            return false;
        }
        entry.asking = true;
        drop(known);
        let (resolver, asked) = (Arc::clone(self), host.clone());
        let started = rt::spawn("zklock-resolve", move || {
            let answer = (asked.name.as_str(), asked.port).to_socket_addrs();
            resolver.learn(&asked, answer.map(Iterator::collect));
            let _ = done.try_send(());
        });
        if started.is_err() {
            self.known.lock().entry(host.clone()).or_default().asking = false;
        }
        started.is_ok()
    }

    fn learn(&self, host: &Host, answer: io::Result<Vec<SocketAddr>>) {
        let mut known = self.known.lock();
        // It may no longer be one of the hosts.
        let Some(entry) = known.get_mut(host) else { return };
        entry.asking = false;
        match answer {
            Ok(addresses) => {
                entry.addresses = addresses;
                entry.failure = None;
            }
            Err(cause) => {
                let is_new = entry.failure.replace(cause.to_string()).is_none();
                drop(known);
                if is_new {
                    logging::warning!(
                        target: "zklock::link",
                        "the host {host} cannot be resolved: {cause}"
                    );
                }
            }
        }
    }

    /// Why there are no addresses of some hosts, a reason for each.
    fn failures(&self) -> Vec<String> {
        let known = self.known.lock();
        let without = |host: &&Host| known.get(host).is_none_or(|known| known.addresses.is_empty());
        let reason = |host: &Host| match known.get(host).and_then(|known| known.failure.as_ref()) {
            Some(failure) => format!("{host}: {failure}"),
            None => format!("{host}: its name is not resolved yet"),
        };
        let hosts = self.hosts.lock();
        hosts.iter().filter(|host| host.literal().is_none()).filter(without).map(reason).collect()
    }
}

impl std::fmt::Display for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hosts: Vec<String> = self.hosts.lock().iter().map(Host::to_string).collect();
        f.write_str(&hosts.join(", "))
    }
}

/// What to ask a server for, and how to search for one.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) access: Access,
    /// The session timeout to ask for.
    pub(crate) timeout: Duration,
    /// The session to continue; without one, a new session is asked for.
    pub(crate) session: Option<Granted>,
    pub(crate) last_zxid: i64,
    /// The server that was just lost; it is tried last.
    pub(crate) avoid: Option<SocketAddr>,
    /// How long the last reply took.
    pub(crate) round_trip: Duration,
    /// How long the caller waits for a new session.
    pub(crate) patience: Duration,
    /// How many connections in a row were lost soon after they were made.
    pub(crate) futile: u32,
}

impl Wanted {
    /// How long the first attempt at each address may take: long enough for the handshakes, short
    /// enough to try all `addresses` in time.
    fn first_attempt(&self, timeout: Duration, addresses: u32) -> Duration {
        let handshakes =
            1 + u32::from(self.access.tls.is_some()) + u32::from(self.access.sasl.is_some());
        let share = (timeout / 6 / addresses)
            .clamp(Duration::from_millis(150) * handshakes, Duration::from_secs(1))
            .max(self.round_trip * 4);
        match self.session {
            Some(_) => share,
            None => share.min(self.patience / addresses.saturating_add(1)),
        }
    }
}

/// How a search for a server ended.
#[derive(Debug)]
pub(crate) enum Dialed {
    Server {
        stream: ServerStream,
        address: SocketAddr,
        granted: Granted,
    },
    Expired,
    /// No server lets the client in with what it shows, or the client trusts none; with the reasons.
    AuthFailed(String),
}

impl Dialed {
    /// Closes a new session that is no longer wanted, rather than leaving it to expire.
    pub(super) fn abandon(self) {
        if let Dialed::Server { mut stream, .. } = self {
            let _ = stream.send_all(&Frame::request(1, op::CLOSE_SESSION).finish());
        }
    }
}

/// Why an address does not serve the session.
#[derive(Debug)]
enum Failure {
    /// One side does not trust the other's certificate.
    Distrust(String),
    /// Of the kind [`PermissionDenied`](io::ErrorKind::PermissionDenied) if the server may have rejected
    /// the client.
    Other(io::Error),
}

impl From<io::Error> for Failure {
    fn from(cause: io::Error) -> Failure {
        Failure::Other(cause)
    }
}

const AFTER_A_PANIC: Duration = Duration::from_millis(100);

/// A search for a server; it goes on until it succeeds or this is dropped.
#[derive(Debug)]
pub(crate) struct Dial {
    _stop: Sender<()>,
}

impl Dial {
    /// Starts a search; `trouble` is called with each reason why no server is found yet.
    pub(crate) fn start(
        wanted: Wanted,
        found: impl FnOnce(Dialed) + Send + 'static,
        trouble: impl Fn(&str) + Send + 'static,
    ) -> error::Result<Dial> {
        let (stop, stopped) = bounded(0);
        rt::spawn("zklock-dial", move || {
            let result = loop {
                // What is called here, such as a logger, may panic: that must not cost the session.
                match catch_unwind(AssertUnwindSafe(|| search(&wanted, &stopped, &trouble))) {
                    Ok(result) => break result,
                    Err(_) if rest(&stopped, AFTER_A_PANIC).is_none() => break None,
                    Err(_) => {}
                }
            };
            if let Some(result) = result {
                if !is_stopped(&stopped) {
                    found(result);
                } else if wanted.session.is_none() {
                    result.abandon();
                }
            }
        })?;
        Ok(Dial { _stop: stop })
    }
}

fn is_stopped(stopped: &Receiver<()>) -> bool {
    stopped.try_recv() == Err(rt::TryRecvError::Disconnected)
}

fn search(wanted: &Wanted, stopped: &Receiver<()>, trouble: &impl Fn(&str)) -> Option<Dialed> {
    let timeout = wanted.session.as_ref().map_or(wanted.timeout, |session| session.timeout);
    let mut longest_pause =
        (timeout / 16).clamp(Duration::from_millis(50), Duration::from_millis(500));
    // A new session is no worse if it comes late, and each attempt that is given up leaves one.
    let least = if wanted.session.is_some() { 250 } else { 5000 };
    let longest_attempt = (timeout * 2 / 3).max(Duration::from_millis(least));
    let mut pause = Duration::from_millis(10) * 2u32.pow(wanted.futile.min(8));
    // Counts only rounds in which a server was too slow: more time helps with nothing else.
    let mut slow_rounds = 0u32;
    // Since when each round has met a server that may have rejected the client, and the first one's reason.
    let mut rejection: Option<(Moment, String)> = None;
    // Later rounds leave the reasons of the one before to be reported.
    let mut is_first = true;
    let unknown = format!("no address is known yet for {}", wanted.resolver);
    trouble(&unknown);
    if wanted.futile > 0 {
        rest(stopped, pause.min(longest_pause))?;
    }
    loop {
        let mut addresses = wanted.resolver.addresses(Duration::from_secs(1).min(timeout / 4));
        if wanted.access.tls.is_none() {
            // Under which of its names a server is asked matters only to its certificate.
            addresses.dedup_by_key(|(address, _)| *address);
        }
        shuffle(&mut addresses);
        if let Some(avoid) = wanted.avoid {
            addresses.sort_by_key(|(address, _)| *address == avoid);
        }
        let count = u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let attempt = wanted.first_attempt(timeout, count);
        let attempt = (attempt * 2u32.pow(slow_rounds.min(8))).min(longest_attempt);
        let (mut slow, mut rejected, mut distrusted, mut unsure) = (false, 0, 0, 0);
        let mut causes = wanted.resolver.failures();
        let all_are_asked = causes.is_empty();
        for (address, name) in addresses {
            if is_stopped(stopped) {
                return None;
            }
            // Silent servers do not put off what another one has said.
            let attempt = match rejection.as_ref().filter(|_| wanted.session.is_none()) {
                None => attempt,
                Some((since, _)) => {
                    attempt.min(since.plus(wanted.patience / 2).since(Moment::now()))
                }
            };
            if attempt.is_zero() {
                break;
            }
            if is_first {
                trouble(&format!("{address} has not answered yet"));
            }
            match try_address(wanted, address, &name, attempt, stopped) {
                // Another server may accept them.
                Ok(Dialed::AuthFailed(why)) => {
                    rejected += 1;
                    let cause = format!("{address}: {why}");
                    rejection.get_or_insert_with(|| (Moment::now(), cause.clone()));
                    causes.push(cause);
                }
                Ok(Dialed::Server { mut stream, granted, .. })
                    if wanted.session.is_none()
                        && granted.sent.plus(granted.timeout) <= Moment::now() =>
                {
                    let _ = stream.send_all(&Frame::request(1, op::CLOSE_SESSION).finish());
                    causes.push(format!(
                        "{address}: the session timeout of {:?} is below the round trip of {:.1?}",
                        granted.timeout,
                        Moment::now().since(granted.sent)
                    ));
                    // Each attempt makes the ensemble open a session, and close it.
                    pause = pause.max(Duration::from_millis(250));
                    longest_pause = Duration::from_secs(5);
                }
                Ok(found) => return Some(found),
                Err(_) if is_stopped(stopped) => return None,
                Err(Failure::Distrust(why)) => {
                    distrusted += 1;
                    let cause = format!("{name} ({address}): {why}");
                    rejection.get_or_insert_with(|| (Moment::now(), cause.clone()));
                    causes.push(cause);
                }
                Err(Failure::Other(cause)) => {
                    slow |= cause.kind() == io::ErrorKind::TimedOut;
                    let is_rejection = cause.kind() == io::ErrorKind::PermissionDenied;
                    let cause = format!("{address}: {cause}");
                    if is_rejection {
                        unsure += 1;
                        rejection.get_or_insert_with(|| (Moment::now(), cause.clone()));
                    }
                    causes.push(cause);
                }
            }
        }
        // An existing session is given up only if all servers reject the credentials; certificates may be
        // replaced before it ends. For a new one, a server that lets nobody in stands for those that do
        // not answer if they do not for long: others may be about to start.
        let refused = rejected + distrusted;
        let is_old = |since: Moment| Moment::now().since(since) >= wanted.patience / 2;
        let lasting = rejection.take_if(|(since, _)| is_old(*since) && wanted.session.is_none());
        if let Some((_, cause)) = &lasting {
            // The round may have ended before that server was asked.
            if !causes.contains(cause) {
                causes.push(cause.clone());
            }
        }
        let is_refused = match wanted.session {
            Some(_) => rejected == count && all_are_asked,
            None => refused == count && all_are_asked || lasting.is_some(),
        };
        if is_refused {
            return Some(Dialed::AuthFailed(causes.join("; ")));
        }
        if refused + unsure == 0 {
            rejection = None;
        }
        slow_rounds += u32::from(slow);
        is_first = false;
        let why = if causes.is_empty() { unknown.clone() } else { causes.join("; ") };
        trouble(&why);
        wanted.resolver.outage.no_server(Moment::now(), &why);
        pause = (pause * 2).min(longest_pause);
        rest(stopped, pause)?;
    }
}

/// Sleeps for about `pause`; `None` when the search is to end.
fn rest(stopped: &Receiver<()>, pause: Duration) -> Option<()> {
    let jittered = pause / 2 + pause.mul_f64(random_fraction());
    match stopped.recv_timeout(jittered) {
        Err(RecvTimeoutError::Timeout) => Some(()),
        _ => None,
    }
}

fn try_address(
    wanted: &Wanted,
    address: SocketAddr,
    name: &str,
    limit: Duration,
    stopped: &Receiver<()>,
) -> Result<Dialed, Failure> {
    let tls = wanted.access.tls.as_ref();
    let encryption = tls.map(|tls| tls.encrypt(name)).transpose().map_err(io::Error::other)?;
    let deadline = rt::now() + limit;
    let tcp = TcpStream::connect_timeout(&address, limit)?;
    tcp.set_nodelay(true)?;
    tcp.set_write_timeout(Some(limit))?;
    let stream = match encryption {
        None => ServerStream::plain(tcp),
        Some(encryption) => ServerStream::encrypted(tcp, encryption),
    };
    let found = greet(wanted, (stream, address), deadline, stopped);
    found.map_err(|cause| match tls.and_then(|tls| tls.explain(&cause)) {
        Some((why, true)) => Failure::Distrust(why),
        Some((why, false)) => io::Error::new(cause.kind(), why).into(),
        None => cause.into(),
    })
}

/// The handshakes: TLS's, that of the session, and the credentials.
fn greet(
    wanted: &Wanted,
    (mut stream, address): (ServerStream, SocketAddr),
    deadline: Instant,
    stopped: &Receiver<()>,
) -> io::Result<Dialed> {
    while !patiently(&mut stream, deadline, stopped, ServerStream::shake_hands)? {}
    let none = [0; 16];
    let request = ConnectRequest {
        last_zxid: wanted.last_zxid,
        timeout: i32::try_from(wanted.timeout.as_millis()).unwrap_or(i32::MAX),
        session: wanted.session.as_ref().map_or(0, |session| session.session),
        password: wanted.session.as_ref().map_or(&none[..], |session| &session.password),
    };
    let sent = Moment::now();
    stream.send_all(&request.encode())?;
    let response = read_frame(&mut stream, deadline, stopped)
        .map_err(|cause| unanswered(cause, wanted))
        .and_then(|frame| ConnectResponse::read(&frame).map_err(invalid))?;
    let Some(timeout) = u64::try_from(response.timeout).ok().filter(|timeout| *timeout > 0) else {
        return if wanted.session.is_some() {
            Ok(Dialed::Expired)
        } else {
            Err(io::Error::other("the server refused a new session"))
        };
    };
    if wanted.session.as_ref().is_some_and(|session| session.session != response.session) {
        return Err(io::Error::other("the server answered with another session"));
    }
    if response.read_only {
        return Err(io::Error::other("the server is read-only"));
    }
    let mut ask = |request: Vec<u8>| {
        stream.send_all(&request)?;
        read_frame(&mut stream, deadline, stopped)
    };
    let shown = show(&wanted.access, &mut ask);
    if !matches!(shown, Ok(Ok(()))) && wanted.session.is_none() {
        // Servers that reject credentials may leave the session open.
        let _ = stream.send_all(&Frame::request(1, op::CLOSE_SESSION).finish());
    }
    if let Err(why) = shown? {
        return Ok(Dialed::AuthFailed(why));
    }
    // A node with the owner 0 belongs to no session.
    if response.session == 0 {
        return Err(io::Error::other("the server granted a session with the number 0"));
    }
    let granted = Granted {
        session: response.session,
        password: response.password,
        timeout: believable(Duration::from_millis(timeout), wanted.timeout),
        by_server: Duration::from_millis(timeout),
        sent,
    };
    Ok(Dialed::Server { stream, address, granted })
}

/// Shows the server who the client is; `ask` sends a request and returns the reply. The inner error says
/// why the server does not accept the client.
fn show(
    access: &Access,
    ask: &mut dyn FnMut(Vec<u8>) -> io::Result<Vec<u8>>,
) -> io::Result<Result<(), String>> {
    // First, as the server proves who it is by it.
    if let Some(sasl) = &access.sasl {
        let mut ask =
            |token: &[u8]| ask(Frame::request(xid::SASL, op::SASL).buffer(token).finish());
        if let Err(why) = sasl.authenticate(&mut ask)? {
            return Ok(Err(why));
        }
    }
    for auth in &access.auth {
        let request = Frame::request(xid::AUTH, op::AUTH)
            .int(0)
            .buffer(auth.scheme.as_bytes())
            .buffer(&auth.credentials);
        let reply = ask(request.finish())?;
        let header = ReplyHeader::read(&mut Fields(&reply)).map_err(invalid)?;
        if header.xid != xid::AUTH {
            return Err(io::Error::other("the server answered auth with another reply"));
        }
        if header.error == code::AUTH_FAILED {
            let scheme = &auth.scheme;
            return Ok(Err(format!("the server rejected the credentials of the scheme {scheme}")));
        }
        if header.error != code::OK {
            return Err(io::Error::other(format!("auth failed with error {}", header.error)));
        }
    }
    Ok(Ok(()))
}

fn invalid(malformed: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed)
}

/// Says what it may mean that a server closes the connection when it is asked for a session.
fn unanswered(cause: io::Error, wanted: &Wanted) -> io::Error {
    let is_closed = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
    if !is_closed.contains(&cause.kind()) {
        return cause;
    }
    let about_tls = match wanted.access.tls {
        None => "speak only TLS on this port",
        Some(_) => "demand another certificate of the client",
    };
    let about_data = match wanted.session {
        None => "",
        Some(_) => ", or lack changes that the session has seen",
    };
    let why = format!(
        "the server closed the connection; it may have no quorum, or limit the connections from this \
         host (maxClientCnxns), or {about_tls}{about_data}"
    );
    io::Error::new(cause.kind(), why)
}

/// The session timeout to use when this one was granted. Servers grant more than was asked for if
/// that is below their minimum. But if a server grants days, the client would wait for days for its
/// answers, and trust its lease for as long. So this is at most 40 s, the most that a server with
/// default settings grants, or what was asked for, if that is more. It is safe to end the lease
/// sooner than the server ends the session.
fn believable(granted: Duration, asked: Duration) -> Duration {
    granted.min(asked.max(Duration::from_secs(40)))
}

/// Reads a frame of the handshake. These are small: anything else is not a ZooKeeper server.
pub(crate) fn read_frame(
    stream: &mut ServerStream,
    deadline: Instant,
    stopped: &Receiver<()>,
) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 4];
    read_exact(stream, &mut prefix, deadline, stopped)?;
    let length = i32::from_be_bytes(prefix);
    let length = usize::try_from(length).ok().filter(|length| (16..=4096).contains(length));
    let length = length.ok_or_else(|| {
        let why = match prefix {
            [0x15, 3, ..] => "the server speaks only TLS on this port",
            _ => "the server does not speak ZooKeeper's protocol",
        };
        io::Error::new(io::ErrorKind::InvalidData, why)
    })?;
    let mut frame = vec![0; length];
    read_exact(stream, &mut frame, deadline, stopped)?;
    Ok(frame)
}

fn read_exact(
    stream: &mut ServerStream,
    mut buffer: &mut [u8],
    deadline: Instant,
    stopped: &Receiver<()>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        match patiently(stream, deadline, stopped, |stream| stream.read(buffer))? {
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ));
            }
            read => buffer = &mut buffer[read..],
        }
    }
    Ok(())
}

/// Repeats what waits for a byte of the server until that has come.
fn patiently<T>(
    stream: &mut ServerStream,
    deadline: Instant,
    stopped: &Receiver<()>,
    mut step: impl FnMut(&mut ServerStream) -> io::Result<T>,
) -> io::Result<T> {
    // How long to wait for a byte before looking whether the search is still wanted.
    const SLICE: Duration = Duration::from_millis(100);
    loop {
        let left = deadline.saturating_duration_since(rt::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer"));
        }
        stream.tcp().set_read_timeout(Some(left.min(SLICE)))?;
        match step(stream) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if is_stopped(stopped) {
                    return Err(io::Error::other("the search has ended"));
                }
            }
            result => return result,
        }
    }
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}

/// In 0..1.
fn random_fraction() -> f64 {
    (random() & 0xffff) as f64 / 65_536.0
}

fn shuffle<T>(items: &mut [T]) {
    for end in (1..items.len()).rev() {
        let other = (random() & 0xffff_ffff) as usize % (end + 1);
        items.swap(end, other);
    }
}

#[cfg(test)]
#[path = "dial_properties.rs"]
mod properties;
