//! Bytes of the protocol (jute): big-endian numbers, strings and lists with their lengths before them.

use crate::core::{Acl, Mode, Request, Restored, Stat, Step, WatchMode, Watched};

/// The numbers of requests.
pub(super) mod op {
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
    pub(crate) const CHECK_WATCHES: i32 = 17;
    pub(crate) const REMOVE_WATCHES: i32 = 18;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    /// Of servers among themselves.
    pub(crate) const DELETE_CONTAINER: i32 = 20;
    pub(crate) const CREATE_TTL: i32 = 21;
    pub(crate) const MULTI_READ: i32 = 22;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SET_WATCHES: i32 = 101;
    pub(crate) const EPHEMERALS: i32 = 103;
    pub(crate) const COUNT_BELOW: i32 = 104;
    pub(crate) const SET_WATCHES2: i32 = 105;
    pub(crate) const ADD_WATCH: i32 = 106;
    pub(crate) const WHO_AM_I: i32 = 107;
    pub(crate) const CLOSE: i32 = -11;

    /// Whether a request gets the number of a transaction, even if it is refused.
    pub(crate) fn is_write(op: i32) -> bool {
        matches!(op, CREATE | DELETE | SET_DATA | SET_ACL | CHECK | MULTI | CREATE2)
            || matches!(op, CREATE_CONTAINER | DELETE_CONTAINER | CREATE_TTL)
    }
}

/// The bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

type Read<T> = Result<T, Malformed>;

/// Reads what stands at the beginning.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bool(&mut self) -> Read<bool> {
        Ok(self.take(1)? != [0])
    }

    pub(super) fn int(&mut self) -> Read<i32> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into().map_err(|_| Malformed)?))
    }

    pub(super) fn long(&mut self) -> Read<i64> {
        Ok(i64::from_be_bytes(self.take(8)?.try_into().map_err(|_| Malformed)?))
    }

    /// A length of -1 is none.
    pub(super) fn bytes(&mut self) -> Read<Option<&'a [u8]>> {
        match self.int()? {
            -1 => Ok(None),
            length => self.take(usize::try_from(length).map_err(|_| Malformed)?).map(Some),
        }
    }

    pub(super) fn string(&mut self) -> Read<String> {
        // As Java does, which then refuses a path with the character that stands for what is no text.
        Ok(String::from_utf8_lossy(self.bytes()?.ok_or(Malformed)?).into_owned())
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Reader<'a>) -> Read<T>) -> Read<Vec<T>> {
        // No room is made for what only a number promises.
        (0..self.int()?.max(0)).map(|_| item(self)).collect()
    }

    fn acl(&mut self) -> Read<Vec<Acl>> {
        self.list(|one| Ok(Acl { permissions: one.int()?, scheme: one.text()?, id: one.text()? }))
    }

    /// A string, or nothing, which is refused as it would be if it were empty.
    fn text(&mut self) -> Read<String> {
        Ok(String::from_utf8_lossy(self.bytes()?.unwrap_or_default()).into_owned())
    }

    fn strings(&mut self) -> Read<Vec<String>> {
        match self.0 {
            [0xff, 0xff, 0xff, 0xff, ..] => Err(Malformed),
            _ => self.list(Reader::string),
        }
    }

    /// The request of that number, and what else was said of its steps; `Ok(None)` if this server does not know
    /// it.
    pub(super) fn request(&mut self, op: i32) -> Read<Option<(Request, Vec<Said>)>> {
        let (steps, said) = match op {
            op::MULTI => self.steps()?.into_iter().unzip(),
            op => match self.step(op)? {
                Some((step, said)) => return Ok(Some((Request::One(step), vec![said]))),
                None => return Ok(self.read(op)?.map(|request| (request, Vec::new()))),
            },
        };
        Ok(Some((Request::Multi(steps), said)))
    }

    fn read(&mut self, op: i32) -> Read<Option<Request>> {
        Ok(Some(match op {
            op::EXISTS => Request::Exists { path: self.string()?, watch: self.bool()? },
            op::GET_DATA => Request::GetData { path: self.string()?, watch: self.bool()? },
            op::GET_CHILDREN | op::GET_CHILDREN2 => {
                Request::GetChildren { path: self.string()?, watch: self.bool()? }
            }
            op::GET_ACL => Request::GetAcl { path: self.string()? },
            op::SET_ACL => {
                Request::SetAcl { path: self.string()?, acl: self.acl()?, version: self.int()? }
            }
            op::SYNC => Request::Sync { path: self.string()? },
            op::ADD_WATCH => {
                let path = self.string()?;
                let mode = match self.int()? {
                    0 => WatchMode::Persistent,
                    1 => WatchMode::PersistentRecursive,
                    _ => return Err(Malformed),
                };
                Request::AddWatch { path, mode }
            }
            op::CHECK_WATCHES | op::REMOVE_WATCHES => {
                let path = self.string()?;
                let which = match self.int()? {
                    1 => Watched::Children,
                    2 => Watched::Node,
                    3 => Watched::Any,
                    _ => return Err(Malformed),
                };
                Request::RemoveWatches { path, which, only_check: op == op::CHECK_WATCHES }
            }
            _ => return Ok(None),
        }))
    }

    fn steps(&mut self) -> Read<Vec<(Step, Said)>> {
        self.parts(|one, op| {
            let (step, said) = one.step(op)?.ok_or(Malformed)?;
            let op = said.op_in_transaction(&step);
            Ok((step, Said { op, ..said }))
        })
    }

    /// The reads of a request that has several, with their numbers.
    pub(super) fn reads(&mut self) -> Read<Vec<(i32, Request)>> {
        self.parts(|one, op| match op {
            op::GET_DATA | op::GET_CHILDREN => Ok((op, one.read(op)?.ok_or(Malformed)?)),
            _ => Err(Malformed),
        })
    }

    /// What stands in a request with several parts: each with its number, up to one that says that it is the
    /// last.
    fn parts<T>(&mut self, mut part: impl FnMut(&mut Reader<'a>, i32) -> Read<T>) -> Read<Vec<T>> {
        let mut parts = Vec::new();
        loop {
            let (op, is_end, _) = (self.int()?, self.bool()?, self.int()?);
            if is_end {
                return Ok(parts);
            }
            parts.push(part(self, op)?);
        }
    }

    fn step(&mut self, op: i32) -> Read<Option<(Step, Said)>> {
        let mut has_data = true;
        let mut data = |data: Option<&[u8]>| {
            has_data = data.is_some();
            data.unwrap_or_default().to_vec()
        };
        let step = match op {
            op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => {
                let (mut path, data, acl) = (self.string()?, data(self.bytes()?), self.acl()?);
                let flags = self.int()?;
                let ttl = if op == op::CREATE_TTL { self.long()? } else { 0 };
                let mode = mode(op, flags, ttl).unwrap_or_else(|| {
                    // It is refused as a path is that makes no sense.
                    path.clear();
                    Mode::Persistent
                });
                Step::Create { path, data, acl, mode }
            }
            op::DELETE => Step::Delete { path: self.string()?, version: self.int()? },
            op::SET_DATA => {
                let (path, data) = (self.string()?, data(self.bytes()?));
                Step::SetData { path, data, version: self.int()? }
            }
            op::CHECK => Step::Check { path: self.string()?, version: self.int()? },
            _ => return Ok(None),
        };
        Ok(Some((step, Said { op, has_data })))
    }

    /// The watches to restore, and after which transaction.
    pub(super) fn watches(&mut self, op: i32) -> Read<(Restored, i64)> {
        let seen = self.long()?;
        let mut restored = Restored {
            data: self.strings()?,
            exists: self.strings()?,
            children: self.strings()?,
            ..Restored::default()
        };
        if op == op::SET_WATCHES2 {
            (restored.persistent, restored.recursive) = (self.strings()?, self.strings()?);
        }
        Ok((restored, seen))
    }
}

/// What a step says that the decision on it does not depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) op: i32,
    /// Whether there is data, be it empty.
    pub(super) has_data: bool,
}

impl Said {
    /// With which number a step is answered: by the kind of the node, not by how the client has asked for it.
    fn op_in_transaction(self, step: &Step) -> i32 {
        match step {
            Step::Create {
                mode: Mode::Container | Mode::Ttl(_) | Mode::SequentialTtl(_), ..
            } => op::CREATE2,
            Step::Create { .. } => op::CREATE,
            _ => self.op,
        }
    }
}

/// What becomes of a node that is created with these flags; `None` if they make no sense.
fn mode(op: i32, flags: i32, ttl: i64) -> Option<Mode> {
    let mode = match flags {
        0 => Mode::Persistent,
        1 => Mode::Ephemeral,
        2 => Mode::PersistentSequential,
        3 => Mode::EphemeralSequential,
        4 => Mode::Container,
        5 => Mode::Ttl(ttl),
        6 => Mode::SequentialTtl(ttl),
        _ => return None,
    };
    let has_ttl = matches!(mode, Mode::Ttl(_) | Mode::SequentialTtl(_));
    (has_ttl || op != op::CREATE_TTL).then_some(mode)
}

/// Appends to what is to be sent.
pub(super) trait Write {
    fn bool(&mut self, value: bool);
    fn int(&mut self, value: i32);
    fn long(&mut self, value: i64);
    fn bytes(&mut self, value: &[u8]);
    fn strings(&mut self, values: &[String]);
    fn stat(&mut self, stat: &Stat);
    fn acl(&mut self, acl: &[Acl]);
    /// Appends what `body` appends, with its length before it.
    fn frame(&mut self, body: impl FnOnce(&mut Vec<u8>));
}

fn length(of: usize) -> i32 {
    i32::try_from(of).unwrap_or(i32::MAX)
}

impl Write for Vec<u8> {
    fn bool(&mut self, value: bool) {
        self.push(u8::from(value));
    }

    fn int(&mut self, value: i32) {
        self.extend(value.to_be_bytes());
    }

    fn long(&mut self, value: i64) {
        self.extend(value.to_be_bytes());
    }

    fn bytes(&mut self, value: &[u8]) {
        self.int(length(value.len()));
        self.extend(value);
    }

    fn strings(&mut self, values: &[String]) {
        self.int(length(values.len()));
        values.iter().for_each(|value| self.bytes(value.as_bytes()));
    }

    fn stat(&mut self, stat: &Stat) {
        for time in [stat.czxid, stat.mzxid, stat.ctime, stat.mtime] {
            self.long(time);
        }
        for version in [stat.version, stat.cversion, stat.aversion] {
            self.int(version);
        }
        self.long(stat.ephemeral_owner);
        self.int(stat.data_length);
        self.int(stat.num_children);
        self.long(stat.pzxid);
    }

    fn acl(&mut self, acl: &[Acl]) {
        self.int(length(acl.len()));
        for entry in acl {
            self.int(entry.permissions);
            self.bytes(entry.scheme.as_bytes());
            self.bytes(entry.id.as_bytes());
        }
    }

    fn frame(&mut self, body: impl FnOnce(&mut Vec<u8>)) {
        let at = self.len();
        self.int(0);
        body(self);
        let size = length(self.len() - at - 4).to_be_bytes();
        self[at..at + 4].copy_from_slice(&size);
    }
}

/// A client's first frame, to resume a session.
#[cfg(feature = "local")]
pub(crate) fn connect_request(session: i64, password: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    request.frame(|out| {
        out.int(0);
        out.long(0);
        out.int(10_000);
        out.long(session);
        out.bytes(password);
    });
    request
}

/// The request that ends a session.
#[cfg(feature = "local")]
pub(crate) fn close_request(xid: i32) -> Vec<u8> {
    let mut request = Vec::new();
    request.frame(|out| {
        out.int(xid);
        out.int(op::CLOSE);
    });
    request
}
