//! Ends a session at the server.
//!
//! No request of ZooKeeper's protocol expires another client's session. But a server makes the password of a
//! session from its id alone, so that each member of an ensemble can check it. With this password another
//! connection takes the session over and closes it.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::{POLL, end_after};
use crate::core::password;
use crate::error::{Error, Result};
use crate::memory::{close_request, connect_request};
use crate::zookeeper::no_session;

/// How long the server may take.
const LIMIT: Duration = Duration::from_secs(10);
const CLOSE_XID: i32 = 1;
/// The largest frame that a server would send here.
const LARGEST: usize = 1 << 20;

/// Returns when the session is over and its ephemeral znodes are gone.
pub(crate) fn expire_session(hosts: &str, session: i64) -> Result<()> {
    let end = end_after(LIMIT);
    let mut was_asked = false;
    loop {
        let asked_before = was_asked;
        let cause = match attempt(hosts, session, end, &mut was_asked) {
            Ok(Closed::Now) => return Ok(()),
            // An earlier attempt closed it, and lost the session to the client before the answer came.
            // Requests after this answer are carried out after the close.
            Ok(Closed::Before) if asked_before => return Ok(()),
            Ok(Closed::Before) => return Err(no_session(hosts, session)),
            Err(cause) => cause,
        };
        // The client takes its session back when it connects again, which breaks this connection.
        if Instant::now() >= end {
            return Err(Error::system(format!(
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
    let mut request = connect_request(session, &password(session));
    request.extend(close_request(CLOSE_XID));
    stream.write_all(&request)?;
    *was_asked = true;

    let int = |frame: &[u8], at: usize| {
        let bytes = frame.get(at..at + 4).and_then(|four| four.try_into().ok());
        bytes.map(i32::from_be_bytes).ok_or(io::ErrorKind::InvalidData)
    };
    // After the version comes the timeout, which is 0 if there is no such session.
    let response = read_frame(&mut stream, end)?;
    if int(&response, 4)? <= 0 {
        return Ok(Closed::Before);
    }
    loop {
        if int(&read_frame(&mut stream, end)?, 0)? == CLOSE_XID {
            return Ok(Closed::Now);
        }
    }
}

fn read_frame(stream: &mut TcpStream, end: Instant) -> io::Result<Vec<u8>> {
    let mut size = [0; 4];
    read_exactly(stream, &mut size, end)?;
    let size = usize::try_from(i32::from_be_bytes(size)).ok().filter(|size| *size <= LARGEST);
    let mut frame = vec![0; size.ok_or(io::ErrorKind::InvalidData)?];
    read_exactly(stream, &mut frame, end)?;
    Ok(frame)
}

fn read_exactly(stream: &mut TcpStream, mut rest: &mut [u8], end: Instant) -> io::Result<()> {
    while !rest.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => rest = &mut rest[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
