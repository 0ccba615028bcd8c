//! The near side: the one connection from the `zookeeper` crate's handle.
//!
//! Anyone on this machine can connect to a loopback port. The handle proves itself by a
//! nonce, which it passes on in its handshake as the session time-out. Strangers are
//! told nothing and delay nobody.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::frame::{
    ConnectRequest, ConnectResponse, Frame, MAX_REQUEST, REQUEST_HEADER, Splitter, code,
};
use crate::logging;
use crate::rt::Moment;

/// How long a stranger may keep a connection without a handshake.
const PATIENCE: Duration = Duration::from_millis(100);
/// How many may be waiting at once.
const CROWD: usize = 128;
/// How many of those keep their place for all of their time, and are not pushed out by a
/// crowd: the first ones, as the handle knocks as soon as there is a door.
const SEATED: usize = CROWD / 2;
/// How many may be waiting to be waiting. Were it as few as they are by default, a flood of
/// strangers would have the kernel drop the handle's knock, which is not repeated for a second.
const QUEUE: i32 = 4096;
/// The length of a handshake as the handle sends it, with its prefix.
const HANDSHAKE: usize = 4 + 45;

/// A port on which the handle, and nobody else, is served.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    nonce: i32,
    candidates: Vec<Candidate>,
    strangers: u32,
    /// A descriptor to give up for the handle, should the process run out of them.
    spare: Option<TcpListener>,
}

#[derive(Debug)]
struct Candidate {
    stream: TcpStream,
    since: Moment,
    bytes: Vec<u8>,
}

enum Heard {
    Nothing,
    Handle,
    Stranger,
}

impl Door {
    pub(crate) fn open() -> io::Result<Door> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        rustix::net::listen(&listener, QUEUE)?;
        listener.set_nonblocking(true)?;
        let random = uuid::Uuid::new_v4().as_u64_pair().0;
        let nonce = i32::try_from(random >> 33).unwrap_or(i32::MAX).max(1);
        let spare = Some(listener.try_clone()?);
        Ok(Door { listener, nonce, candidates: Vec::new(), strangers: 0, spare })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What the handle is to ask for as its session time-out.
    pub(crate) fn nonce(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.nonce).unwrap_or(1))
    }

    /// Waits for the handle and greets it. `give_up` is asked ten times a second.
    ///
    /// A handle whose port is closed before it was admitted tries again and again, without
    /// a pause: see [`dismiss`](Door::dismiss).
    pub(crate) fn admit(&mut self, give_up: impl Fn() -> bool) -> io::Result<TcpStream> {
        while !give_up() {
            self.wait()?;
            self.accept()?;
            let now = Moment::now();
            let mut index = 0;
            while index < self.candidates.len() {
                let candidate = &mut self.candidates[index];
                match candidate.hear(self.nonce) {
                    Heard::Handle => {
                        let Candidate { stream, .. } = self.candidates.remove(index);
                        return greet(stream);
                    }
                    Heard::Nothing if now.since(candidate.since) < PATIENCE => index += 1,
                    Heard::Nothing | Heard::Stranger => {
                        self.candidates.remove(index);
                        self.count_stranger();
                    }
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the handle did not connect"))
    }

    /// Serves a handle that was not admitted in time, only for it to be closed; until
    /// `closed` says that it is.
    pub(crate) fn dismiss(mut self, closed: impl Fn() -> bool) {
        while !closed() {
            match self.admit(&closed) {
                Ok(stream) => say_goodbye(stream, &closed),
                Err(_) => std::thread::sleep(PATIENCE),
            }
        }
    }

    fn count_stranger(&mut self) {
        self.strangers += 1;
        // They could fill a disk with it.
        if self.strangers.is_power_of_two() {
            logging::warning!(
                target: "zklock::link",
                "strangers on the loopback port were dropped: {} so far",
                self.strangers
            );
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut interests = vec![PollFd::new(&self.listener, PollFlags::IN)];
        interests.extend(self.candidates.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)));
        let oldest = self.candidates.iter().map(|one| one.since).min();
        let limit =
            oldest.map_or(PATIENCE, |since| PATIENCE.saturating_sub(Moment::now().since(since)));
        super::poll(&mut interests, Some(limit))
    }

    fn accept(&mut self) -> io::Result<()> {
        // No more at once than leave those alone that were not listened to yet.
        for _ in 0..SEATED {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.candidates.len() >= CROWD {
                        self.candidates.remove(SEATED);
                        self.count_stranger();
                    }
                    let since = Moment::now();
                    self.candidates.push(Candidate { stream, since, bytes: Vec::new() });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Out of descriptors, perhaps: the spare one goes first, as a candidate may
                // be the handle; then the oldest of those.
                Err(error) => {
                    if self.spare.take().is_none() {
                        if self.candidates.is_empty() {
                            return Err(error);
                        }
                        self.candidates.remove(0);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Answers everything with success until the handle has gone; all that it is still asked
/// is to say goodbye.
fn say_goodbye(mut stream: TcpStream, closed: &impl Fn() -> bool) {
    let mut requests = Splitter::new(MAX_REQUEST, REQUEST_HEADER);
    let mut buffer = [0; 1024];
    if stream.set_nonblocking(false).is_err() || stream.set_read_timeout(Some(PATIENCE)).is_err() {
        return;
    }
    while !closed() {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => requests.push(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        while let Ok(Some(_)) = requests.next() {
            if stream.write_all(&Frame::reply(0, 0, code::OK).finish()).is_err() {
                return;
            }
        }
    }
}

impl Candidate {
    fn hear(&mut self, nonce: i32) -> Heard {
        let mut buffer = [0; HANDSHAKE];
        let wanted = HANDSHAKE - self.bytes.len();
        match self.stream.read(&mut buffer[..wanted]) {
            Ok(0) => return Heard::Stranger,
            Ok(read) => self.bytes.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Heard::Nothing,
            Err(_) => return Heard::Stranger,
        }
        if self.bytes.len() < HANDSHAKE {
            return Heard::Nothing;
        }
        let announced = self.bytes[..4] == [0, 0, 0, 45];
        match ConnectRequest::read(&self.bytes[4..]) {
            Ok(request) if announced && request.timeout == nonce => Heard::Handle,
            _ => Heard::Stranger,
        }
    }
}

/// The handle is told of a made-up session, and of a time-out of weeks, so that it
/// neither pings nor knows anything that could be used elsewhere.
fn greet(mut stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(false)?;
    let made_up =
        ConnectResponse { timeout: i32::MAX, session: 1, password: vec![0; 16], read_only: false };
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(&made_up.encode())?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake(nonce: i32) -> Vec<u8> {
        ConnectRequest { last_zxid: 0, timeout: nonce, session: 0, password: &[0; 16] }.encode()
    }

    #[test]
    fn only_the_nonce_is_let_in_and_strangers_are_dropped() {
        let mut door = Door::open().unwrap();
        let (address, nonce) = (door.address().unwrap(), door.nonce);
        let admitted = std::thread::spawn(move || door.admit(|| false));
        let mut silent: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut wrong = TcpStream::connect(address).unwrap();
        wrong.write_all(&handshake(nonce ^ 1)).unwrap();
        let mut garbage = TcpStream::connect(address).unwrap();
        garbage.write_all(&[0xff; 60]).unwrap();
        for stranger in silent.iter_mut().chain([&mut wrong, &mut garbage]) {
            stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut told = Vec::new();
            let _ = stranger.read_to_end(&mut told);
            assert_eq!(told, b"", "a stranger was told something");
        }
        let mut handle = TcpStream::connect(address).unwrap();
        handle.write_all(&handshake(nonce)).unwrap();
        admitted.join().unwrap().unwrap();
        let mut answer = [0; 4 + 37];
        handle.read_exact(&mut answer).unwrap();
        assert_eq!(ConnectResponse::read(&answer[4..]).unwrap().password, [0; 16]);
        assert!(TcpStream::connect(address).is_err(), "the port is still open");
    }
}

#[cfg(test)]
#[path = "flood_tests.rs"]
mod flood;
