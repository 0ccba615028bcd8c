//! The floor: only the requests that a lock needs, in frames that one thread writes directly to one
//! socket. A client that is faster does not ask the server for each acquisition.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::obey::{Done, Hand, Outcome, Waits};
use super::support::raw::{Kind, Raw};

const SESSION: Duration = Duration::from_secs(30);
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) const CREATE: i32 = 1;
pub(crate) const DELETE: i32 = 2;
const EXISTS: i32 = 3;
pub(crate) const READ: i32 = 4;
pub(crate) const LIST: i32 = 8;
pub(crate) const CLOSE: i32 = -11;
/// The request number in events.
pub(crate) const EVENT: i32 = -1;
pub(crate) const NO_NODE: i32 = -101;

#[derive(Default)]
pub(crate) struct Floor {
    hosts: String,
    /// Whether it waits for the reply to a release.
    waits: bool,
    /// Whether an acquisition is a create alone, as if the number of the node had shown that nobody
    /// else has come.
    is_alone: bool,
}

impl Floor {
    pub(crate) fn waiting() -> Floor {
        Floor { waits: true, ..Floor::default() }
    }

    pub(crate) fn alone() -> Floor {
        Floor { is_alone: true, ..Floor::default() }
    }

    /// Opens a connection for each run, because nothing sends heartbeats between runs.
    fn socket(&self, path: &str) -> Outcome<Socket> {
        create_paths(&self.hosts, &[path.to_owned()])?;
        Ok(Socket::connect(&self.hosts)?)
    }

    fn acquire_and_release(&self, path: &str, length: Duration, waits: Waits) -> Outcome<Done> {
        let mut socket = self.socket(path)?;
        let (create, list) = (create(path), on_path(path, Some(false)));
        let begin = Instant::now();
        let (mut operations, mut deleting, mut waits) = (0, None, waits);
        while begin.elapsed() < length {
            let node = waits.note(|| -> Outcome<String> {
                let created = socket.send(CREATE, &create);
                let listed = (!self.is_alone).then(|| socket.send(LIST, &list));
                socket.flush()?;
                // Replies come in the order of the requests.
                if let Some(deleted) = deleting.take() {
                    socket.answer(deleted)?;
                }
                let node = string(socket.answer(created)?)?.to_owned();
                if let Some(listed) = listed {
                    let ahead = ahead_of(last(&node), socket.answer(listed)?)?;
                    if !ahead.is_empty() {
                        socket.until_gone(path, &ahead, &node)?;
                    }
                }
                Ok(node)
            })?;
            let deleted = socket.send(DELETE, &delete(&node));
            socket.flush()?;
            if self.waits {
                socket.answer(deleted)?;
            } else {
                deleting = Some(deleted);
            }
            operations += 1;
        }
        let time = begin.elapsed();
        if let Some(deleted) = deleting {
            socket.answer(deleted)?;
        }
        socket.close()?;
        Ok(Done { operations, time, waits })
    }
}

impl Hand for Floor {
    fn connect(&mut self, hosts: &str, _: usize) -> Outcome<()> {
        hosts.clone_into(&mut self.hosts);
        Ok(())
    }

    fn close(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn run(&mut self, path: &str, locks: usize, threads: usize, length: Duration) -> Outcome<Done> {
        if locks != threads {
            return Err("each thread of the floor has a connection and a lock of its own".into());
        }
        if threads == 1 {
            return self.acquire_and_release(path, length, Waits::of_one_of(1));
        }
        thread::scope(|scope| {
            let floor = &*self;
            let work = |own| {
                let path = format!("{path}/{own}");
                let waits = Waits::of_one_of(threads);
                scope.spawn(move || floor.acquire_and_release(&path, length, waits))
            };
            joined((0..threads).map(work).collect(), length)
        })
    }

    /// One connection creates all nodes and sets all watches beforehand, as if each waiter were in
    /// the queue. A hand-over is a delete, its event, and the list by which the next contender sees
    /// that it is the first.
    fn queue(&mut self, path: &str, waiters: usize, repeats: usize) -> Outcome<Done> {
        let mut socket = self.socket(path)?;
        let (create, list) = (create(path), on_path(path, Some(false)));
        let mut done = Done { operations: 0, time: Duration::ZERO, waits: Waits::none() };
        for _ in 0..repeats {
            let mut nodes: Vec<String> = Vec::new();
            for _ in 0..=waiters {
                let created = socket.send(CREATE, &create);
                socket.flush()?;
                nodes.push(string(socket.answer(created)?)?.to_owned());
            }
            for node in &nodes[..waiters] {
                let watched = socket.send(EXISTS, &on_path(node, Some(true)));
                socket.flush()?;
                socket.answer(watched)?;
            }
            let begin = Instant::now();
            for index in 0..waiters {
                let deleted = socket.send(DELETE, &delete(&nodes[index]));
                socket.flush()?;
                socket.event()?;
                let listed = socket.send(LIST, &list);
                socket.flush()?;
                socket.answer(deleted)?;
                if first(socket.answer(listed)?)? != last(&nodes[index + 1]) {
                    return Err("the first contender is not the next one in line".into());
                }
            }
            let deleted = socket.send(DELETE, &delete(&nodes[waiters]));
            socket.flush()?;
            socket.answer(deleted)?;
            done.time += begin.elapsed();
            done.operations += waiters as u64;
        }
        socket.close()?;
        Ok(done)
    }
}

/// Creates lock paths.
pub(crate) fn create_paths(hosts: &str, paths: &[String]) -> Outcome<()> {
    let mut raw = Raw::connect(hosts, SESSION)?;
    paths.iter().try_for_each(|path| raw.create_all(path))?;
    Ok(raw.close()?)
}

/// What the threads have done together in a time of `length`.
pub(crate) fn joined(
    working: Vec<ScopedJoinHandle<'_, Outcome<Done>>>,
    length: Duration,
) -> Outcome<Done> {
    let mut all = Done { operations: 0, time: length, waits: Waits::none() };
    for thread in working {
        let done = thread.join().map_err(|_| "a thread panicked")??;
        all.operations += done.operations;
        all.waits.noted.extend(done.waits.noted);
    }
    Ok(all)
}

pub(crate) struct Socket {
    stream: BufReader<TcpStream>,
    unsent: Vec<u8>,
    xid: i32,
    pub(crate) answer: Vec<u8>,
}

impl Socket {
    pub(crate) fn connect(hosts: &str) -> io::Result<Socket> {
        let stream = TcpStream::connect(hosts)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut socket = Socket::of(stream);
        let mut hello = Vec::new();
        hello.extend(0_i32.to_be_bytes()); // protocol version
        hello.extend(0_i64.to_be_bytes()); // last zxid seen
        hello.extend((SESSION.as_millis() as i32).to_be_bytes());
        hello.extend(0_i64.to_be_bytes()); // session
        put(&mut hello, &[0; 16]); // password
        hello.push(0); // no read-only server
        put(&mut socket.unsent, &hello);
        socket.flush()?;
        socket.receive()?;
        Ok(socket)
    }

    fn of(stream: TcpStream) -> Socket {
        let stream = BufReader::with_capacity(1 << 16, stream);
        Socket { stream, unsent: Vec::new(), xid: 0, answer: Vec::new() }
    }

    /// The end at which one thread sends while another one receives at this end.
    pub(crate) fn other_end(&self) -> io::Result<Socket> {
        Ok(Socket::of(self.stream.get_ref().try_clone()?))
    }

    /// Lets all reading and writing fail, at both ends.
    pub(crate) fn shut_down(&self) {
        let _ = self.stream.get_ref().shutdown(Shutdown::Both);
    }

    /// Adds a request to what the next flush sends.
    pub(crate) fn send(&mut self, opcode: i32, body: &[u8]) -> i32 {
        self.xid += 1;
        self.unsent.extend((body.len() as u32 + 8).to_be_bytes());
        self.unsent.extend(self.xid.to_be_bytes());
        self.unsent.extend(opcode.to_be_bytes());
        self.unsent.extend(body);
        self.xid
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(&self.unsent)?;
        self.unsent.clear();
        Ok(())
    }

    pub(crate) fn receive(&mut self) -> io::Result<()> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        self.answer.resize(u32::from_be_bytes(length) as usize, 0);
        self.stream.read_exact(&mut self.answer)
    }

    /// Reads the next reply, which has to be the one to request `xid`. An event before it is about
    /// the own node, which was watched until it was deleted.
    pub(crate) fn answer(&mut self, xid: i32) -> io::Result<&[u8]> {
        self.receive()?;
        while int(&self.answer, 0)? == EVENT {
            self.receive()?;
        }
        let (answered, code) = (int(&self.answer, 0)?, int(&self.answer, 12)?);
        if answered != xid || code != 0 {
            let text = format!("expected a reply to {xid}, got one to {answered}, code {code}");
            return Err(io::Error::other(text));
        }
        Ok(&self.answer[16..])
    }

    /// Reads an event. It comes before the reply to the request that caused it.
    fn event(&mut self) -> io::Result<()> {
        self.receive()?;
        match int(&self.answer, 0)? {
            EVENT => Ok(()),
            other => Err(io::Error::other(format!("expected an event, got a reply to {other}"))),
        }
    }

    /// Watches all contenders that are ahead, and the own node besides, and waits until all of the
    /// others are gone: with few ahead, no list is needed after that.
    fn until_gone(&mut self, path: &str, ahead: &[String], own: &str) -> io::Result<()> {
        let others = ahead.iter().map(|name| format!("{path}/{name}"));
        let asked: Vec<(i32, String)> = others
            .chain([own.to_owned()])
            .map(|node| (self.send(READ, &on_path(&node, Some(true))), node))
            .collect();
        self.flush()?;
        let (mut answered, mut left) = (0, ahead.len());
        while answered < asked.len() || left > 0 {
            self.receive()?;
            let (number, code) = (int(&self.answer, 0)?, int(&self.answer, 12)?);
            match asked.get(answered) {
                _ if number == EVENT => left -= 1,
                Some((xid, node)) if number == *xid && (code == 0 || node != own) => {
                    left -= usize::from(code == NO_NODE);
                    answered += 1;
                }
                _ => {
                    let text = format!("unexpected: a reply to {number}, code {code}");
                    return Err(io::Error::other(text));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn close(mut self) -> io::Result<()> {
        let closed = self.send(CLOSE, &[]);
        self.flush()?;
        self.answer(closed).map(drop)
    }
}

/// A request for an ephemeral sequential node, with an ACL that permits everything to anyone.
pub(crate) fn create(path: &str) -> Vec<u8> {
    let name = "_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-";
    create_as(&format!("{path}/{name}"), Kind::EphemeralSequential)
}

/// A request for a node of this kind, with the same ACL.
pub(crate) fn create_as(path: &str, kind: Kind) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, path.as_bytes());
    put(&mut body, b"");
    body.extend(1_i32.to_be_bytes());
    body.extend(31_i32.to_be_bytes());
    put(&mut body, b"world");
    put(&mut body, b"anyone");
    body.extend((kind as i32).to_be_bytes());
    body
}

pub(crate) fn delete(path: &str) -> Vec<u8> {
    let mut body = on_path(path, None);
    body.extend((-1_i32).to_be_bytes());
    body
}

pub(crate) fn on_path(path: &str, watch: Option<bool>) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, path.as_bytes());
    body.extend(watch.map(u8::from));
    body
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_be_bytes());
    out.extend(bytes);
}

pub(crate) fn int(bytes: &[u8], at: usize) -> io::Result<i32> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or_else(short)?;
    Ok(i32::from_be_bytes(*bytes))
}

pub(crate) fn string(bytes: &[u8]) -> io::Result<&str> {
    let length = int(bytes, 0)?.max(0) as usize;
    let text = bytes.get(4..4 + length).ok_or_else(short)?;
    str::from_utf8(text).map_err(io::Error::other)
}

/// The sequence number, which has ten digits.
fn number(name: &str) -> &[u8] {
    &name.as_bytes()[name.len().saturating_sub(10)..]
}

fn children(list: &[u8]) -> io::Result<Vec<&str>> {
    let mut rest = list.get(4..).ok_or_else(short)?;
    let mut all = Vec::new();
    for _ in 0..int(list, 0)? {
        let name = string(rest)?;
        rest = &rest[4 + name.len()..];
        all.push(name);
    }
    Ok(all)
}

/// The child with the lowest sequence number.
fn first(list: &[u8]) -> io::Result<&str> {
    children(list)?.into_iter().min_by_key(|name| number(name)).ok_or_else(short)
}

/// The last one of the children with lower sequence numbers.
pub(crate) fn predecessor<'a>(own: &str, list: &'a [u8]) -> io::Result<Option<&'a str>> {
    let ahead = children(list)?.into_iter().filter(|name| number(name) < number(own));
    Ok(ahead.max_by_key(|name| number(name)))
}

/// The children with lower sequence numbers.
fn ahead_of(own: &str, list: &[u8]) -> io::Result<Vec<String>> {
    let ahead = children(list)?.into_iter().filter(|name| number(name) < number(own));
    Ok(ahead.map(str::to_owned).collect())
}

pub(crate) fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the reply is too short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_the_one_with_the_lowest_number() {
        let mut list = 3_u32.to_be_bytes().to_vec();
        for name in ["a-lock-0000000012", "z-lock-0000000009", "b-lock-0000000010"] {
            put(&mut list, name.as_bytes());
        }
        assert_eq!(ahead_of("b-lock-0000000010", &list).unwrap(), ["z-lock-0000000009"]);
        assert_eq!(first(&list).unwrap(), "z-lock-0000000009");
        assert_eq!(predecessor("a-lock-0000000012", &list).unwrap(), Some("b-lock-0000000010"));
        assert_eq!(predecessor("z-lock-0000000009", &list).unwrap(), None);
        assert!(first(&0_u32.to_be_bytes()).is_err());
    }
}
