//! A small ZooKeeper client over a plain socket, independent of the code under test.
//!
//! It stands for another process that contends, inspects or interferes. It sends one request at a
//! time and has no watches and no thread. The session expires one timeout after the last request,
//! so ask for a long timeout, or [`ping`](Raw::ping).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const NO_NODE: i32 = -101;
pub(crate) const NO_AUTH: i32 = -102;
pub(crate) const BAD_VERSION: i32 = -103;
pub(crate) const NODE_EXISTS: i32 = -110;
pub(crate) const NOT_EMPTY: i32 = -111;
pub(crate) const SESSION_EXPIRED: i32 = -112;

/// Every permission: read, write, create, delete, admin.
pub(crate) const ALL: i32 = 31;

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered with this code.
    Server(i32),
    /// The connection failed, or the answer took too long.
    Io(io::Error),
}

impl Failure {
    pub(crate) fn code(&self) -> Option<i32> {
        match self {
            Failure::Server(code) => Some(*code),
            Failure::Io(_) => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Server(code) => write!(f, "the server answered {code}"),
            Failure::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// What kind of node to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Persistent = 0,
    Ephemeral = 1,
    PersistentSequential = 2,
    EphemeralSequential = 3,
    Container = 4,
}

/// One entry of an access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    pub(crate) permissions: i32,
    pub(crate) scheme: String,
    pub(crate) id: String,
}

impl Acl {
    pub(crate) fn new(permissions: i32, scheme: &str, id: &str) -> Acl {
        Acl { permissions, scheme: scheme.to_owned(), id: id.to_owned() }
    }

    /// Everything to anyone.
    pub(crate) fn open() -> Vec<Acl> {
        vec![Acl::new(ALL, "world", "anyone")]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    pub(crate) cversion: i32,
    pub(crate) aversion: i32,
    pub(crate) ephemeral_owner: i64,
    pub(crate) data_length: i32,
    pub(crate) num_children: i32,
    pub(crate) pzxid: i64,
}

/// A session. Dropping it closes the socket only; [`close`](Raw::close) ends the session.
#[derive(Debug)]
pub(crate) struct Raw {
    stream: TcpStream,
    next_xid: i32,
    session: i64,
    password: Vec<u8>,
    timeout: Duration,
}

impl Raw {
    /// A new session at the first of `hosts` (`host:port,host:port`) that answers.
    pub(crate) fn connect(hosts: &str, timeout: Duration) -> Result<Raw> {
        Raw::resume(hosts, timeout, 0, &[0; 16])
    }

    /// Resumes a session. Fails with [`SESSION_EXPIRED`] if it is over.
    pub(crate) fn resume(
        hosts: &str,
        timeout: Duration,
        session: i64,
        password: &[u8],
    ) -> Result<Raw> {
        let mut failure = Failure::Io(io::Error::other("no hosts"));
        for host in hosts.split(',') {
            match Raw::attach(host, timeout, session, password) {
                Err(Failure::Io(error)) => failure = Failure::Io(error),
                answered => return answered,
            }
        }
        Err(failure)
    }

    fn attach(host: &str, timeout: Duration, session: i64, password: &[u8]) -> Result<Raw> {
        let address = host
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other(format!("{host} has no address")))?;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;

        let mut hello = Writer::default();
        hello.int(0); // protocol version
        hello.long(0); // last zxid seen
        hello.int(timeout.as_millis() as i32);
        hello.long(session);
        hello.buffer(password);
        hello.bool(false); // read-only server accepted
        send(&mut stream, &hello.0)?;

        let answer = receive(&mut stream)?;
        let mut answer = Reader(&answer);
        answer.int()?; // protocol version
        let granted = answer.int()?;
        let session = answer.long()?;
        let password = answer.buffer()?;
        if granted <= 0 {
            return Err(Failure::Server(SESSION_EXPIRED));
        }
        let timeout = Duration::from_millis(granted as u64);
        Ok(Raw { stream, next_xid: 1, session, password, timeout })
    }

    pub(crate) fn session(&self) -> i64 {
        self.session
    }

    pub(crate) fn password(&self) -> &[u8] {
        &self.password
    }

    /// The timeout that the server granted.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Creates a node open to anyone, and returns its path.
    pub(crate) fn create(&mut self, path: &str, data: &[u8], kind: Kind) -> Result<String> {
        self.create_with_acl(path, data, kind, &Acl::open())
    }

    /// Asks for an ephemeral sequential node, open to anyone, and does not wait for the answer.
    pub(crate) fn begin_create(&mut self, path: &str) -> Result<()> {
        let body = create_body(path, b"", Kind::EphemeralSequential, &Acl::open());
        self.next_xid += 1;
        self.begin(self.next_xid - 1, 1, body)
    }

    pub(crate) fn create_with_acl(
        &mut self,
        path: &str,
        data: &[u8],
        kind: Kind,
        acl: &[Acl],
    ) -> Result<String> {
        let body = create_body(path, data, kind, acl);
        let opcode = if kind == Kind::Container { 19 } else { 1 };
        let answer = self.call(opcode, body)?;
        Reader(&answer).string()
    }

    /// Creates `path` and its missing ancestors, as persistent nodes.
    pub(crate) fn create_all(&mut self, path: &str) -> Result<()> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        for end in ends {
            match self.create(&path[..end], b"", Kind::Persistent) {
                Ok(_) | Err(Failure::Server(NODE_EXISTS)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Deletes a node, whatever its version.
    pub(crate) fn delete(&mut self, path: &str) -> Result<()> {
        let mut body = Writer::default();
        body.string(path);
        body.int(-1);
        self.call(2, body).map(drop)
    }

    /// Deletes all of `paths`, in one transaction.
    pub(crate) fn delete_together<'a>(
        &mut self,
        paths: impl Iterator<Item = &'a str>,
    ) -> Result<()> {
        const MULTI: i32 = 14;
        let mut body = Writer::default();
        let header = |body: &mut Writer, operation, is_end| {
            body.int(operation);
            body.bool(is_end);
            body.int(-1);
        };
        for path in paths {
            header(&mut body, 2, false);
            body.string(path);
            body.int(-1);
        }
        header(&mut body, -1, true);
        self.call(MULTI, body).map(drop)
    }

    /// Deletes a node and all below it; nodes that are gone already are fine.
    pub(crate) fn delete_recursive(&mut self, path: &str) -> Result<()> {
        let children = match self.get_children(path) {
            Err(Failure::Server(NO_NODE)) => return Ok(()),
            children => children?,
        };
        for child in children {
            self.delete_recursive(&format!("{path}/{child}"))?;
        }
        match self.delete(path) {
            Err(Failure::Server(NO_NODE)) => Ok(()),
            result => result,
        }
    }

    pub(crate) fn exists(&mut self, path: &str) -> Result<Option<Stat>> {
        let mut body = Writer::default();
        body.string(path);
        body.bool(false);
        match self.call(3, body) {
            Ok(answer) => Reader(&answer).stat().map(Some),
            Err(Failure::Server(NO_NODE)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    pub(crate) fn get_data(&mut self, path: &str) -> Result<(Vec<u8>, Stat)> {
        let mut body = Writer::default();
        body.string(path);
        body.bool(false);
        let answer = self.call(4, body)?;
        let mut answer = Reader(&answer);
        Ok((answer.buffer()?, answer.stat()?))
    }

    /// Sets a node's data, whatever its version.
    pub(crate) fn set_data(&mut self, path: &str, data: &[u8]) -> Result<Stat> {
        let mut body = Writer::default();
        body.string(path);
        body.buffer(data);
        body.int(-1);
        let answer = self.call(5, body)?;
        Reader(&answer).stat()
    }

    pub(crate) fn get_acl(&mut self, path: &str) -> Result<Vec<Acl>> {
        let mut body = Writer::default();
        body.string(path);
        let answer = self.call(6, body)?;
        let mut answer = Reader(&answer);
        (0..answer.int()?)
            .map(|_| {
                Ok(Acl {
                    permissions: answer.int()?,
                    scheme: answer.string()?,
                    id: answer.string()?,
                })
            })
            .collect()
    }

    /// The names of a node's children, sorted.
    pub(crate) fn set_acl(&mut self, path: &str, acl: &[Acl]) -> Result<()> {
        let mut body = Writer::default();
        body.string(path);
        body.int(acl.len() as i32);
        for entry in acl {
            body.int(entry.permissions);
            body.string(&entry.scheme);
            body.string(&entry.id);
        }
        body.int(-1);
        self.call(7, body).map(drop)
    }

    pub(crate) fn get_children(&mut self, path: &str) -> Result<Vec<String>> {
        let mut body = Writer::default();
        body.string(path);
        body.bool(false);
        let answer = self.call(8, body)?;
        let mut answer = Reader(&answer);
        let mut children =
            (0..answer.int()?).map(|_| answer.string()).collect::<Result<Vec<_>>>()?;
        children.sort();
        Ok(children)
    }

    /// Brings the server that this session is attached to up to date with the leader.
    pub(crate) fn sync(&mut self, path: &str) -> Result<()> {
        let mut body = Writer::default();
        body.string(path);
        self.call(9, body).map(drop)
    }

    pub(crate) fn ping(&mut self) -> Result<()> {
        self.call_as(-2, 11, Writer::default()).map(drop)
    }

    pub(crate) fn add_auth(&mut self, scheme: &str, credentials: &[u8]) -> Result<()> {
        let mut body = Writer::default();
        body.int(0); // unused
        body.string(scheme);
        body.buffer(credentials);
        self.call_as(-4, 100, body).map(drop)
    }

    /// Ends the session: its ephemeral nodes are gone when this returns.
    pub(crate) fn close(mut self) -> Result<()> {
        self.call(-11, Writer::default()).map(drop)
    }

    fn call(&mut self, opcode: i32, body: Writer) -> Result<Vec<u8>> {
        let xid = self.next_xid;
        self.next_xid += 1;
        self.call_as(xid, opcode, body)
    }

    fn begin(&mut self, xid: i32, opcode: i32, body: Writer) -> Result<()> {
        let mut request = Writer::default();
        request.int(xid);
        request.int(opcode);
        request.0.extend(body.0);
        send(&mut self.stream, &request.0)
    }

    fn call_as(&mut self, xid: i32, opcode: i32, body: Writer) -> Result<Vec<u8>> {
        self.begin(xid, opcode, body)?;
        loop {
            let answer = receive(&mut self.stream)?;
            let mut header = Reader(&answer);
            let answered = header.int()?;
            header.long()?; // zxid
            let code = header.int()?;
            if answered != xid {
                // A late answer to a request that timed out.
                continue;
            }
            return if code == 0 { Ok(header.0.to_vec()) } else { Err(Failure::Server(code)) };
        }
    }
}

fn create_body(path: &str, data: &[u8], kind: Kind, acl: &[Acl]) -> Writer {
    let mut body = Writer::default();
    body.string(path);
    body.buffer(data);
    body.int(acl.len() as i32);
    for entry in acl {
        body.int(entry.permissions);
        body.string(&entry.scheme);
        body.string(&entry.id);
    }
    body.int(kind as i32);
    body
}

fn send(stream: &mut TcpStream, body: &[u8]) -> Result<()> {
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend(body);
    Ok(stream.write_all(&frame)?)
}

fn receive(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// Encodes as ZooKeeper does: big-endian numbers, strings and buffers after their length.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn bool(&mut self, value: bool) {
        self.0.push(value.into());
    }

    fn int(&mut self, value: i32) {
        self.0.extend(value.to_be_bytes());
    }

    fn long(&mut self, value: i64) {
        self.0.extend(value.to_be_bytes());
    }

    fn buffer(&mut self, value: &[u8]) {
        self.int(value.len() as i32);
        self.0.extend(value);
    }

    fn string(&mut self, value: &str) {
        self.buffer(value.as_bytes());
    }
}

/// Decodes what [`Writer`] encodes; holds the bytes that are left.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk().ok_or_else(short)?;
        self.0 = rest;
        Ok(*head)
    }

    fn int(&mut self) -> Result<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> Result<i64> {
        self.take().map(i64::from_be_bytes)
    }

    fn buffer(&mut self) -> Result<Vec<u8>> {
        // A length of −1 stands for no buffer at all.
        let length = self.int()?.max(0) as usize;
        let (head, rest) = self.0.split_at_checked(length).ok_or_else(short)?;
        self.0 = rest;
        Ok(head.to_vec())
    }

    fn string(&mut self) -> Result<String> {
        String::from_utf8(self.buffer()?).map_err(|error| io::Error::other(error).into())
    }

    fn stat(&mut self) -> Result<Stat> {
        Ok(Stat {
            czxid: self.long()?,
            mzxid: self.long()?,
            ctime: self.long()?,
            mtime: self.long()?,
            version: self.int()?,
            cversion: self.int()?,
            aversion: self.int()?,
            ephemeral_owner: self.long()?,
            data_length: self.int()?,
            num_children: self.int()?,
            pzxid: self.long()?,
        })
    }
}

fn short() -> Failure {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is too short").into()
}
