//! Asking one address for a session: the connection, and the handshakes of TLS, of the session and of
//! the credentials.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::access::Access;
use super::attempts::{Attempts, News};
use super::frame::{ConnectRequest, ConnectResponse, Fields, Frame, ReplyHeader};
use super::granted::{Granted, tick_shown};
use super::reattachment::ends_with_its_connection;
use super::server_stream::ServerStream;
use crate::rt::{self, Moment, Receiver, RecvTimeoutError};
use crate::wire_values::{code, op, xid};

/// What to ask a server for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) access: Access,
    /// The session timeout of a new session. An open one keeps its own, which every server can grant
    /// whose limits contain it.
    pub(crate) timeout: Duration,
    /// The servers' tick, if it is stated.
    pub(crate) tick: Option<Duration>,
    /// The session to continue; without one, a new session is asked for.
    pub(crate) session: Option<Granted>,
    pub(crate) last_zxid: i64,
    /// Attempts to continue the session.
    pub(crate) attempts: Arc<Attempts>,
}

/// How a search for a server ended.
#[derive(Debug)]
pub(crate) enum Dialed {
    Server {
        stream: ServerStream,
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
pub(super) enum Failure {
    /// The server has answered with another session, which is closed.
    AnotherSession,
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

pub(super) fn try_address(
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
    found.map_err(|failure| {
        let Failure::Other(cause) = failure else { return failure };
        match tls.and_then(|tls| tls.explain(&cause)) {
            Some((why, true)) => Failure::Distrust(why),
            Some((why, false)) => io::Error::new(cause.kind(), why).into(),
            None => cause.into(),
        }
    })
}

/// The handshakes: TLS's, that of the session, and the credentials.
fn greet(
    wanted: &Wanted,
    (mut stream, address): (ServerStream, SocketAddr),
    deadline: Instant,
    stopped: &Receiver<()>,
) -> Result<Dialed, Failure> {
    while !patiently(&mut stream, deadline, stopped, ServerStream::shake_hands)? {}
    let none = [0; 16];
    let asked = wanted.session.as_ref().map_or(wanted.timeout, |session| session.timeout);
    let request = ConnectRequest {
        last_zxid: wanted.last_zxid,
        timeout: i32::try_from(asked.as_millis()).unwrap_or(i32::MAX),
        session: wanted.session.as_ref().map_or(0, |session| session.session),
        password: wanted.session.as_ref().map_or(&none[..], |session| &session.password),
    };
    let sent = Moment::now();
    if wanted.session.is_some() {
        wanted.attempts.tell(News::Sending(sent));
    }
    let answer = stream
        .send_all(&request.encode())
        .and_then(|()| read_frame(&mut stream, deadline, stopped))
        .map_err(|cause| unanswered(cause, sent, wanted));
    let response = answer.and_then(|frame| ConnectResponse::read(&frame).map_err(invalid))?;
    // The rest of such an answer has no meaning: its timeout does not say that the session has expired.
    if response.version != 0 {
        let why = format!("the server serves nobody now (protocol version {})", response.version);
        return Err(io::Error::other(why).into());
    }
    let Some(timeout) = u64::try_from(response.timeout).ok().filter(|timeout| *timeout > 0) else {
        return if wanted.session.is_some() {
            Ok(Dialed::Expired)
        } else {
            Err(io::Error::other("the server refused a new session").into())
        };
    };
    if let Some(before) = wanted.session.as_ref().filter(|it| it.session != response.session) {
        close_another_session(&mut stream);
        return match ends_with_its_connection(&before.password) {
            true => Ok(Dialed::Expired),
            false => Err(Failure::AnotherSession),
        };
    }
    if response.read_only {
        return Err(io::Error::other("the server is read-only").into());
    }
    let by_server = Duration::from_millis(timeout);
    if wanted.session.as_ref().is_some_and(|before| before.by_server != by_server) {
        // The leader counts with it already, whatever becomes of the connection.
        wanted.attempts.tell(News::Heard(sent, by_server));
    }
    let exchange = |stream: &mut ServerStream, request: Vec<u8>| {
        stream.send_all(&request)?;
        read_frame(stream, deadline, stopped)
    };
    let shown = show(&wanted.access, &mut |request| exchange(&mut stream, request));
    if !matches!(shown, Ok(Ok(()))) && wanted.session.is_none() {
        // Servers that reject credentials may leave the session open.
        let _ = stream.send_all(&Frame::request(1, op::CLOSE_SESSION).finish());
    }
    if let Err(why) = shown? {
        return Ok(Dialed::AuthFailed(why));
    }
    if wanted.session.is_some() {
        let is_led = is_still_led(&mut |request| exchange(&mut stream, request), deadline, stopped);
        if !is_led.map_err(|cause| unanswered(cause, sent, wanted))? {
            return Ok(Dialed::Expired);
        }
    }
    // A node with the owner 0 belongs to no session.
    if response.session == 0 {
        return Err(io::Error::other("the server granted a session with the number 0").into());
    }
    let mut granted = Granted {
        session: response.session,
        password: response.password,
        timeout: believable(by_server, wanted.timeout),
        by_server,
        stated: wanted.tick,
        shown: tick_shown(asked, by_server),
        server: address,
        sent,
    };
    granted.sent = wanted.attempts.earliest(sent, granted.terms().settle_time());
    Ok(Dialed::Server { stream, granted })
}

/// Closes a session that the server has opened in place of the one that was asked for, rather than
/// leaving one behind at each attempt.
fn close_another_session(stream: &mut ServerStream) {
    const LIMIT: Duration = Duration::from_millis(100);
    let _ = stream.tcp().set_write_timeout(Some(LIMIT));
    let _ = stream.send_all(&Frame::request(1, op::CLOSE_SESSION).finish());
}

/// Has a majority of the servers confirm that the leader which has continued the session is still the
/// leader. Without them, a new session cannot be opened; but one that is deposed, and does not know it
/// yet, continues sessions, while a new leader may have counted their time for longer.
///
/// What it takes is a write, also one that fails: it concerns a node that is not there, and a version that
/// no node has. False if the session has expired.
fn is_still_led(
    ask: &mut dyn FnMut(Vec<u8>) -> io::Result<Vec<u8>>,
    deadline: Instant,
    stopped: &Receiver<()>,
) -> io::Result<bool> {
    const NOWHERE: &[u8] = b"/zklock-nowhere/nothing";
    const ALL: i32 = 31;
    const PAUSE: Duration = Duration::from_millis(50);
    loop {
        let request = Frame::request(xid::HANDSHAKE, op::SET_ACL).buffer(NOWHERE);
        let for_anyone = request.int(1).int(ALL).buffer(b"world").buffer(b"anyone");
        let reply = ask(for_anyone.int(i32::MAX).finish())?;
        let header = ReplyHeader::read(&mut Fields(&reply)).map_err(invalid)?;
        if header.xid != xid::HANDSHAKE && header.error != code::SESSION_EXPIRED {
            return Err(io::Error::other("the server answered a write with another reply"));
        }
        match header.error {
            // All of them are the leader's, and were confirmed by a majority.
            code::NO_NODE | code::NO_AUTH | code::BAD_VERSION | code::INVALID_ACL => {
                return Ok(true);
            }
            code::SESSION_EXPIRED => return Ok(false),
            // It has too much to do.
            code::THROTTLED if rt::now() < deadline => pause(stopped, PAUSE)?,
            error => {
                let why = format!("the server could not confirm who leads: error {error}");
                return Err(io::Error::other(why));
            }
        }
    }
}

/// Sleeps for this time, unless the search is to end.
pub(super) fn pause(stopped: &Receiver<()>, time: Duration) -> io::Result<()> {
    match stopped.recv_timeout(time) {
        Err(RecvTimeoutError::Timeout) => Ok(()),
        _ => Err(search_has_ended()),
    }
}

fn search_has_ended() -> io::Error {
    io::Error::other("the search has ended")
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
            |token: &[u8]| ask(Frame::request(xid::HANDSHAKE, op::SASL).buffer(token).finish());
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

/// Notes that an attempt to continue a session is given up, and says what it may mean that a server
/// closes the connection when it is asked for a session.
fn unanswered(cause: io::Error, sent: Moment, wanted: &Wanted) -> io::Error {
    if let Some(session) = &wanted.session {
        wanted.attempts.note(sent, Moment::now(), session.timeout);
    }
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
                    return Err(search_has_ended());
                }
            }
            result => return result,
        }
    }
}

pub(super) fn is_stopped(stopped: &Receiver<()>) -> bool {
    stopped.try_recv() == Err(rt::TryRecvError::Disconnected)
}

#[cfg(test)]
#[path = "tests/handshake_properties.rs"]
pub(super) mod properties;
