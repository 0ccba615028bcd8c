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
    pub(crate) const CREATE_TTL: i32 = 21;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SET_WATCHES: i32 = 101;
    pub(crate) const SET_WATCHES2: i32 = 105;
    pub(crate) const ADD_WATCH: i32 = 106;
    pub(crate) const CLOSE: i32 = -11;
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

    /// A length of -1 is none, and nothing.
    pub(super) fn bytes(&mut self) -> Read<&'a [u8]> {
        match self.int()? {
            -1 => Ok(&[]),
            length => self.take(usize::try_from(length).map_err(|_| Malformed)?),
        }
    }

    pub(super) fn string(&mut self) -> Read<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Malformed)
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Reader<'a>) -> Read<T>) -> Read<Vec<T>> {
        // No room is made for what only a number promises.
        (0..self.int()?.max(0)).map(|_| item(self)).collect()
    }

    fn acl(&mut self) -> Read<Vec<Acl>> {
        self.list(|one| {
            Ok(Acl { permissions: one.int()?, scheme: one.string()?, id: one.string()? })
        })
    }

    fn strings(&mut self) -> Read<Vec<String>> {
        self.list(Reader::string)
    }

    /// The request of that number; `Ok(None)` if this server does not know it.
    pub(super) fn request(&mut self, op: i32) -> Read<Option<Request>> {
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
            op::MULTI => Request::Multi(self.steps()?.into_iter().map(|(_, step)| step).collect()),
            op => match self.step(op)? {
                Some(step) => Request::One(step),
                None => return Ok(None),
            },
        }))
    }

    /// The steps of a transaction, with their numbers.
    pub(super) fn steps(&mut self) -> Read<Vec<(i32, Step)>> {
        let mut steps = Vec::new();
        loop {
            let (op, is_end, _) = (self.int()?, self.bool()?, self.int()?);
            if is_end {
                return Ok(steps);
            }
            steps.push((op, self.step(op)?.ok_or(Malformed)?));
        }
    }

    fn step(&mut self, op: i32) -> Read<Option<Step>> {
        Ok(Some(match op {
            op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => {
                let (path, data, acl) = (self.string()?, self.bytes()?.to_vec(), self.acl()?);
                let flags = self.int()?;
                let ttl = if op == op::CREATE_TTL { self.long()? } else { 0 };
                let mode = match flags {
                    0 => Mode::Persistent,
                    1 => Mode::Ephemeral,
                    2 => Mode::PersistentSequential,
                    3 => Mode::EphemeralSequential,
                    4 => Mode::Container,
                    5 => Mode::Ttl(ttl),
                    6 => Mode::SequentialTtl(ttl),
                    _ => return Err(Malformed),
                };
                Step::Create { path, data, acl, mode }
            }
            op::DELETE => Step::Delete { path: self.string()?, version: self.int()? },
            op::SET_DATA => {
                let (path, data) = (self.string()?, self.bytes()?.to_vec());
                Step::SetData { path, data, version: self.int()? }
            }
            op::CHECK => Step::Check { path: self.string()?, version: self.int()? },
            _ => return Ok(None),
        }))
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

/// Appends to what is to be sent.
pub(super) trait Write {
    fn bool(&mut self, value: bool);
    fn int(&mut self, value: i32);
    fn long(&mut self, value: i64);
    fn bytes(&mut self, value: &[u8]);
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
