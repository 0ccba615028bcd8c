//! Ends a session at the server.
//!
//! No request of ZooKeeper's protocol expires another client's session. But a server makes the password of a
//! session from its id alone, so that each member of an ensemble can check it. With this password another
//! connection takes the session over and closes it.

use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::{POLL, end_after, system};
use crate::error::{Error, ErrorKind, Result};
use crate::link::{
    ConnectRequest, ConnectResponse, Conversation, Fields, Frame, ReplyHeader, ServerStream,
};
use crate::rt::bounded;
use crate::wire_values::op;

/// How long the server may take.
const LIMIT: Duration = Duration::from_secs(10);
const CLOSE_XID: i32 = 1;

/// Returns when the session is over and its ephemeral znodes are gone.
pub(super) fn expire_session(hosts: &str, session: i64) -> Result<()> {
    let end = end_after(LIMIT);
    let mut was_asked = false;
    loop {
        let asked_before = was_asked;
        let cause = match attempt(hosts, session, end, &mut was_asked) {
            Ok(Closed::Now) => return Ok(()),
            // An earlier attempt closed it, and lost the session to the client before the answer came.
            // Requests after this answer are carried out after the close.
            Ok(Closed::Before) if asked_before => return Ok(()),
            Ok(Closed::Before) => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "the ZooKeeper server at {hosts} has no session 0x{session:x}: it has ended \
                         already, or is another server's"
                    ),
                ));
            }
            Err(cause) => cause,
        };
        // The client takes its session back when it connects again, which breaks this connection.
        if Instant::now() >= end {
            return Err(system(format!(
                "cannot expire session 0x{session:x} at {hosts} within {LIMIT:?}: {cause}"
            ))
            .caused_by(cause));
        }
        thread::sleep(POLL);
    }
}

/// When the session was closed.
enum Closed {
    Now,
    Before,
}

fn attempt(hosts: &str, session: i64, end: Instant, was_asked: &mut bool) -> io::Result<Closed> {
    let left = || end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let address = hosts
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, left())?;
    stream.set_write_timeout(Some(left()))?;
    // Together, so that the client has no time to take its session back in between.
    let mut request =
        ConnectRequest { last_zxid: 0, timeout: 10_000, session, password: &password(session) }
            .encode();
    request.extend(Frame::request(CLOSE_XID, op::CLOSE_SESSION).finish());
    stream.write_all(&request)?;
    *was_asked = true;

    let stream = ServerStream::new(stream, None);
    // Nothing but the end of the time stops the reading.
    let (_stop, never_stopped) = bounded(1);
    let mut server = Conversation { stream, deadline: end, stopped: &never_stopped };
    let malformed = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let response = ConnectResponse::read(&server.read_frame()?).map_err(malformed)?;
    if response.timeout <= 0 {
        return Ok(Closed::Before);
    }
    loop {
        let reply = ReplyHeader::read(&mut Fields(&server.read_frame()?)).map_err(malformed)?;
        if reply.xid == CLOSE_XID {
            return Ok(Closed::Now);
        }
    }
}

/// A session's password: sixteen bytes from Java's `Random`, whose seed is made of the session's id.
fn password(session: i64) -> [u8; 16] {
    const MASK: u64 = (1 << 48) - 1;
    let step = |state: u64| state.wrapping_mul(0x5_deec_e66d).wrapping_add(11) & MASK;
    let mut state = ((session ^ 0xb341_5c00) as u64 ^ 0x5_deec_e66d) & MASK;
    let mut password = [0; 16];
    for four in password.chunks_exact_mut(4) {
        state = step(state);
        four.copy_from_slice(&((state >> 16) as u32).to_le_bytes());
    }
    password
}
