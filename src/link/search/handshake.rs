//! Asking one address for a session: the connection, and the handshakes of TLS, of the session and of
//! the credentials.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::reconnects_in_doubt::News;
use super::rounds::Search;
use crate::link::protocol::{
    ConnectRequest, ConnectResponse, DEMANDS_SASL, Fields, Frame, Granted, ReplyHeader,
    ends_with_its_connection, tick_shown,
};
use crate::link::transport::{Access, Auth, Failure, ServerStream, is_closed};
use crate::rt::{self, Moment, Receiver, RecvTimeoutError};
use crate::wire_values::{NOWHERE, code, op, xid};

/// Connects to an address of the host of this name, and asks there for the session.
pub(super) fn try_address(
    wanted: &Search,
    address: SocketAddr,
    name: &str,
    limit: Duration,
    stopped: &Receiver<()>,
) -> Result<(ServerStream, Granted), Failure> {
    let tls = wanted.config.access.tls.as_ref();
    let encryption = tls.map(|tls| tls.encrypt(name)).transpose().map_err(io::Error::other)?;
    let deadline = rt::now() + limit;
    let tcp = TcpStream::connect_timeout(&address, limit)?;
    tcp.set_nodelay(true)?;
    tcp.set_write_timeout(Some(limit))?;
    let stream = ServerStream::new(tcp, encryption);
    let mut server = Conversation { stream, deadline, stopped };
    match (server.greet(wanted, address), tls) {
        (Ok(granted), _) => Ok((server.stream, granted)),
        (Err(Failure::Other(cause)), Some(tls)) => Err(tls.explain(cause)),
        (Err(failure), _) => Err(failure),
    }
}

/// A stream on which to wait for the server, until the deadline or until nobody wants its answer any more.
pub(crate) struct Conversation<'a> {
    pub(crate) stream: ServerStream,
    pub(crate) deadline: Instant,
    pub(crate) stopped: &'a Receiver<()>,
}

impl Conversation<'_> {
    /// The handshakes: TLS's, that of the session, and the credentials.
    fn greet(&mut self, wanted: &Search, server: SocketAddr) -> Result<Granted, Failure> {
        while !self.patiently(ServerStream::shake_hands)? {}
        let sent = Moment::now();
        let response = self.ask_for_the_session(wanted, sent)?;
        let by_server = self.granted_by(wanted, &response)?;
        if wanted.session.as_ref().is_some_and(|before| before.by_server != by_server) {
            // The leader counts with it already, whatever becomes of the connection.
            wanted.attempts.tell(News::Heard(sent, by_server));
        }
        let shown = self.show(&wanted.config.access);
        if shown.is_err() && wanted.session.is_none() {
            // Servers that reject credentials may leave the session open.
            close_session(&mut self.stream);
        }
        shown?;
        if wanted.session.is_some() {
            let is_led = self.is_still_led().map_err(|cause| unanswered(wanted, cause, sent))?;
            if !is_led {
                return Err(Failure::Expired);
            }
        }
        // A node with the owner 0 belongs to no session.
        if response.session == 0 {
            return Err(io::Error::other("the server granted a session with the number 0").into());
        }
        let mut granted = Granted {
            session: response.session,
            password: response.password,
            timeout: believable(by_server, wanted.config.session_timeout),
            by_server,
            stated: wanted.config.tick,
            shown: tick_shown(wanted.asked_timeout(), by_server),
            server,
            sent,
        };
        granted.sent = wanted.attempts.earliest(sent, granted.terms().settle_time());
        Ok(granted)
    }

    fn ask_for_the_session(
        &mut self,
        wanted: &Search,
        sent: Moment,
    ) -> Result<ConnectResponse, Failure> {
        let Search { session, last_zxid, attempts, .. } = wanted;
        let none = [0; 16];
        let request = ConnectRequest {
            last_zxid: *last_zxid,
            timeout: i32::try_from(wanted.asked_timeout().as_millis()).unwrap_or(i32::MAX),
            session: session.as_ref().map_or(0, |session| session.session),
            password: session.as_ref().map_or(&none[..], |session| &session.password),
        };
        if session.is_some() {
            attempts.tell(News::Sending(sent));
        }
        let answer = self.exchange(&request.encode());
        let answer = answer.map_err(|cause| unanswered(wanted, cause, sent))?;
        Ok(ConnectResponse::read(&answer)?)
    }

    /// The session timeout that the server has granted by this answer, if it serves the session. Another
    /// session is closed.
    fn granted_by(
        &mut self,
        wanted: &Search,
        response: &ConnectResponse,
    ) -> Result<Duration, Failure> {
        // The rest of such an answer has no meaning: its timeout does not say that the session has expired.
        if response.version != 0 {
            let version = response.version;
            let why = format!("the server serves nobody now (protocol version {version})");
            return Err(io::Error::other(why).into());
        }
        let session = wanted.session.as_ref();
        let Some(timeout) = u64::try_from(response.timeout).ok().filter(|timeout| *timeout > 0)
        else {
            let refused = || io::Error::other("the server refused a new session").into();
            return Err(session.map_or_else(refused, |_| Failure::Expired));
        };
        if let Some(before) = session.filter(|it| it.session != response.session) {
            // Rather than leaving one behind at each attempt, but not at the cost of much time.
            let _ = self.stream.tcp().set_write_timeout(Some(Duration::from_millis(100)));
            close_session(&mut self.stream);
            return Err(match ends_with_its_connection(&before.password) {
                true => Failure::Expired,
                false => Failure::AnotherSession,
            });
        }
        if response.read_only {
            return Err(io::Error::other("the server is read-only").into());
        }
        Ok(Duration::from_millis(timeout))
    }

    /// Shows the server who the client is.
    fn show(&mut self, access: &Access) -> Result<(), Failure> {
        // First, as the server proves who it is by it.
        if let Some(sasl) = &access.sasl {
            let request = |token: &[u8]| Frame::request(xid::HANDSHAKE, op::SASL).buffer(token);
            sasl.authenticate(|token| self.ask("SASL", xid::HANDSHAKE, request(token)))?;
        }
        for Auth { scheme, credentials } in &access.auth {
            let request = Frame::request(xid::AUTH, op::AUTH).int(0).buffer(scheme.as_bytes());
            match self.ask("auth", xid::AUTH, request.buffer(credentials))?.0 {
                code::OK => {}
                code::AUTH_FAILED => {
                    let why = format!("the server rejected the credentials of the scheme {scheme}");
                    return Err(Failure::Rejected(why));
                }
                error => {
                    return Err(io::Error::other(format!("auth failed with error {error}")).into());
                }
            }
        }
        Ok(())
    }

    /// Has a majority of the servers confirm that the leader which has continued the session is still the
    /// leader. Without them, a new session cannot be opened; but one that is deposed, and does not know it
    /// yet, continues sessions, while a new leader may have counted their time for longer.
    ///
    /// What it takes is a write, also one that fails: it concerns a node that is not there, and a version
    /// that no node has. False if the session has expired.
    fn is_still_led(&mut self) -> io::Result<bool> {
        const ALL: i32 = 31;
        const PAUSE: Duration = Duration::from_millis(50);
        loop {
            let request = Frame::request(xid::HANDSHAKE, op::SET_ACL).buffer(NOWHERE.as_bytes());
            let for_anyone = request.int(1).int(ALL).buffer(b"world").buffer(b"anyone");
            match self.ask("a write", xid::HANDSHAKE, for_anyone.int(i32::MAX))?.0 {
                // All of them are the leader's, and were confirmed by a majority.
                code::NO_NODE | code::NO_AUTH | code::BAD_VERSION | code::INVALID_ACL => {
                    return Ok(true);
                }
                code::SESSION_EXPIRED => return Ok(false),
                // It has too much to do.
                code::THROTTLED if rt::now() < self.deadline => {
                    pause(self.stopped, PAUSE)?;
                }
                code::SASL_REQUIRED => {
                    return Err(io::Error::other(DEMANDS_SASL));
                }
                error => {
                    let why = format!("the server could not confirm who leads: error {error}");
                    return Err(io::Error::other(why));
                }
            }
        }
    }
}

/// Notes that an attempt to continue a session is given up, and says what it may mean that a server
/// closes the connection when it is asked for a session.
fn unanswered(wanted: &Search, cause: io::Error, sent: Moment) -> io::Error {
    let Search { session, config, attempts, .. } = wanted;
    if let Some(session) = session {
        attempts.note(sent, Moment::now(), session.timeout);
    }
    if !is_closed(&cause) {
        return cause;
    }
    let about_tls = match config.access.tls {
        None => "speak only TLS on this port",
        Some(_) => "demand another certificate of the client",
    };
    let about_data = match session {
        None => "",
        Some(_) => ", or lack changes that the session has seen",
    };
    let why = format!(
        "the server closed the connection; it may have no quorum, or limit the connections from this \
         host (maxClientCnxns), or {about_tls}{about_data}"
    );
    io::Error::new(cause.kind(), why)
}

/// Closes a session that is of no use, rather than leaving it to expire.
pub(super) fn close_session(stream: &mut ServerStream) {
    let _ = stream.send_all(&Frame::request(1, op::CLOSE_SESSION).finish());
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

/// The session timeout to use when this one was granted. Servers grant more than was asked for if
/// that is below their minimum. But if a server grants days, the client would wait for days for its
/// answers, and trust its lease for as long. So this is at most 40 s, the most that a server with
/// default settings grants, or what was asked for, if that is more. It is safe to end the lease
/// sooner than the server ends the session.
fn believable(granted: Duration, asked: Duration) -> Duration {
    granted.min(asked.max(Duration::from_secs(40)))
}

impl Conversation<'_> {
    /// Sends a request, which an error names `what`; returns the error code of the reply, and what the
    /// reply has besides.
    fn ask(&mut self, what: &str, number: i32, request: Frame) -> io::Result<(i32, Vec<u8>)> {
        let reply = self.exchange(&request.finish())?;
        let mut fields = Fields(&reply);
        let header = ReplyHeader::read(&mut fields)?;
        // Servers other than ZooKeeper's end a session by a reply to no request.
        if header.xid != number && header.error != code::SESSION_EXPIRED {
            let why = format!("the server answered {what} with another reply");
            return Err(io::Error::other(why));
        }
        Ok((header.error, fields.0.to_vec()))
    }

    fn exchange(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.stream.send_all(request)?;
        self.read_frame()
    }

    /// Reads a frame of the handshake. These are small: anything else is not a ZooKeeper server.
    pub(crate) fn read_frame(&mut self) -> io::Result<Vec<u8>> {
        let mut prefix = [0; 4];
        self.read_exact(&mut prefix)?;
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
        self.read_exact(&mut frame)?;
        Ok(frame)
    }

    fn read_exact(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.patiently(|stream| stream.read(buffer))? {
                0 => {
                    let why = "the server closed the connection";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                read => buffer = &mut buffer[read..],
            }
        }
        Ok(())
    }

    /// Repeats what waits for a byte of the server until that has come.
    fn patiently<T>(
        &mut self,
        mut step: impl FnMut(&mut ServerStream) -> io::Result<T>,
    ) -> io::Result<T> {
        // How long to wait for a byte before looking whether the search is still wanted.
        const SLICE: Duration = Duration::from_millis(100);
        loop {
            let left = self.deadline.saturating_duration_since(rt::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer"));
            }
            self.stream.tcp().set_read_timeout(Some(left.min(SLICE)))?;
            match step(&mut self.stream) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if is_stopped(self.stopped) {
                        return Err(search_has_ended());
                    }
                }
                result => return result,
            }
        }
    }
}

pub(super) fn is_stopped(stopped: &Receiver<()>) -> bool {
    stopped.try_recv() == Err(rt::TryRecvError::Disconnected)
}

#[cfg(test)]
#[path = "../../../tests/link/handshake_properties.rs"]
pub(super) mod properties;
