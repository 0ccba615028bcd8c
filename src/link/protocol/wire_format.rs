//! ZooKeeper's wire format, as far as the link must understand it. All that comes in
//! is untrusted: no length is believed before it has been checked.

use std::{fmt, io};

use crate::wire_values::{NodeEvent, REQUEST_HEADER, Stat, op};

/// Bytes that are not what the protocol allows here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, malformed)
    }
}

/// Cuts a byte stream into length-prefixed frames. It never holds more than it was
/// given, and of a frame beyond its limit only the head.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    buffer: Vec<u8>,
    start: usize,
    skip: usize,
    limit: usize,
    head: usize,
}

/// A frame without its length.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) bytes: &'a [u8],
    /// The length of a frame beyond the limit. There are only its first bytes; the rest is thrown away as it
    /// comes.
    pub(crate) oversized: Option<usize>,
}

impl Splitter {
    /// `limit` is the length of the longest frame, `head` of the shortest.
    pub(crate) fn new(limit: usize, head: usize) -> Splitter {
        Splitter { buffer: Vec::new(), start: 0, skip: 0, limit, head }
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        bytes = &bytes[skipped..];
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            if self.buffer.capacity() > 256 * 1024 {
                self.buffer = Vec::new();
            }
        } else if self.start > 64 * 1024 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self) -> Result<Option<Piece<'_>>, Malformed> {
        let bytes = &self.buffer[self.start..];
        let Some((prefix, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let Ok(length) = usize::try_from(i32::from_be_bytes(*prefix)) else {
            return Err(Malformed("a frame of negative length"));
        };
        if length < self.head {
            return Err(Malformed("a frame shorter than its header"));
        }
        let oversized = (length > self.limit).then_some(length);
        let needed = oversized.map_or(length, |_| self.head);
        if rest.len() < needed {
            return Ok(None);
        }
        let (from, present) = (self.start + 4, rest.len().min(length));
        self.skip = length - present;
        self.start = from + present;
        Ok(Some(Piece { bytes: &self.buffer[from..from + needed], oversized }))
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.buffer.capacity()
    }

    /// Whether a frame has begun and is not complete.
    pub(crate) fn in_the_middle(&self) -> bool {
        self.skip > 0 || self.start < self.buffer.len()
    }
}

/// Reads fields off a frame.
#[derive(Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed("a truncated frame"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        self.array::<1>().map(|[byte]| byte != 0)
    }

    pub(crate) fn int(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    /// A buffer; a length of −1 stands for none.
    pub(crate) fn buffer(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.int()?;
        if length == -1 {
            return Ok(&[]);
        }
        let length = usize::try_from(length).map_err(|_| Malformed("a negative length"))?;
        let parts = self.0.split_at_checked(length);
        let (head, rest) = parts.ok_or(Malformed("a length beyond the frame's end"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn string(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.buffer()?).map_err(|_| Malformed("a text that is not UTF-8"))
    }

    pub(crate) fn count(&mut self) -> Result<usize, Malformed> {
        let count =
            usize::try_from(self.int()?).map_err(|_| Malformed("a negative count of items"))?;
        if count > self.0.len() / 4 {
            return Err(Malformed("a count of items beyond the frame's end"));
        }
        Ok(count)
    }

    pub(crate) fn stat(&mut self) -> Result<Stat, Malformed> {
        Ok(Stat {
            czxid: self.long()?,
            mzxid: self.long()?,
            ctime: self.long()?,
            mtime: self.long()?,
            version: self.int()?,
            child_changes: self.int()?,
            ephemeral_owner: self.int().and_then(|_acl_version| self.long())?,
            data_length: self.int()?,
            children: self.int()?,
            children_zxid: self.long()?,
        })
    }
}

/// Builds a frame with its length in front.
#[derive(Debug)]
pub(crate) struct Frame(Vec<u8>);

impl Frame {
    pub(crate) fn new() -> Frame {
        /// Enough for most requests.
        const ROOM: usize = 256;
        let mut bytes = Vec::with_capacity(ROOM);
        bytes.extend([0; 4]);
        Frame(bytes)
    }

    pub(crate) fn request(xid: i32, operation: i32) -> Frame {
        Frame::new().int(xid).int(operation)
    }

    #[cfg(test)]
    pub(crate) fn reply(xid: i32, zxid: i64, error: i32) -> Frame {
        Frame::new().int(xid).long(zxid).int(error)
    }

    pub(crate) fn int(self, value: i32) -> Frame {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn long(self, value: i64) -> Frame {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn flag(self, value: bool) -> Frame {
        self.raw(&[u8::from(value)])
    }

    /// A length over `i32::MAX` cannot be written; callers check for sizes far below that.
    pub(crate) fn buffer(self, bytes: &[u8]) -> Frame {
        let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
        self.int(length).raw(bytes)
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Frame {
        self.0.extend_from_slice(bytes);
        self
    }

    /// The frame without its length.
    pub(crate) fn body(mut self) -> Vec<u8> {
        self.0.drain(..4);
        self.0
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let length = i32::try_from(self.0.len() - 4).unwrap_or(i32::MAX);
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// Adds the frame of a request at the end, and returns its size. A length over `i32::MAX` cannot be
/// written; callers check for sizes far below that.
pub(crate) fn add_request(to: &mut Vec<u8>, xid: i32, operation: i32, body: &[u8]) -> usize {
    let before = to.len();
    let length = i32::try_from(REQUEST_HEADER + body.len()).unwrap_or(i32::MAX);
    for number in [length, xid, operation] {
        to.extend_from_slice(&number.to_be_bytes());
    }
    to.extend_from_slice(body);
    to.len() - before
}

/// The header of a reply or of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyHeader {
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
    pub(crate) error: i32,
}

impl ReplyHeader {
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<ReplyHeader, Malformed> {
        Ok(ReplyHeader { xid: fields.int()?, zxid: fields.long()?, error: fields.int()? })
    }
}

/// The first frame of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectRequest<'a> {
    pub(crate) last_zxid: i64,
    pub(crate) timeout: i32,
    pub(crate) session: i64,
    pub(crate) password: &'a [u8],
}

impl<'a> ConnectRequest<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        Frame::new()
            .int(0)
            .long(self.last_zxid)
            .int(self.timeout)
            .long(self.session)
            .buffer(self.password)
            .flag(false)
            .finish()
    }

    #[cfg(test)]
    pub(crate) fn read(bytes: &'a [u8]) -> Result<ConnectRequest<'a>, Malformed> {
        let mut fields = Fields(bytes);
        let _protocol = fields.int()?;
        let last_zxid = fields.long()?;
        let timeout = fields.int()?;
        let session = fields.long()?;
        let password = fields.buffer()?;
        Ok(ConnectRequest { last_zxid, timeout, session, password })
    }
}

/// The answer to a [`ConnectRequest`]; a timeout of zero or less says that the session has expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectResponse {
    /// The version of the protocol: 0 from servers that serve sessions.
    pub(crate) version: i32,
    pub(crate) timeout: i32,
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
    pub(crate) read_only: bool,
}

impl ConnectResponse {
    #[cfg(test)]
    pub(crate) fn encode(&self) -> Vec<u8> {
        Frame::new()
            .int(self.version)
            .int(self.timeout)
            .long(self.session)
            .buffer(&self.password)
            .flag(self.read_only)
            .finish()
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<ConnectResponse, Malformed> {
        let mut fields = Fields(bytes);
        let version = fields.int()?;
        let timeout = fields.int()?;
        let session = fields.long()?;
        let password = fields.buffer()?.to_vec();
        let read_only = fields.0.first().is_some_and(|flag| *flag != 0);
        Ok(ConnectResponse { version, timeout, session, password, read_only })
    }
}

/// Checks the body of a successful reply: a malformed one breaks the connection, and no caller gets
/// it.
pub(crate) fn check_reply(operation: i32, body: &[u8]) -> Result<(), Malformed> {
    let mut fields = Fields(body);
    match operation {
        op::CREATE | op::CREATE_CONTAINER | op::SYNC => {
            let path = fields.string()?;
            // Bytes that follow a truncated reply must not be taken for the rest of it.
            let is_whole = fields.0.is_empty() || operation == op::CREATE_CONTAINER;
            let is_path = path.starts_with('/') && is_whole;
            return is_path.then_some(()).ok_or(Malformed("a reply that is not a path"));
        }
        op::EXISTS | op::SET_DATA | op::SET_ACL => {}
        op::GET_DATA => drop(fields.buffer()?),
        op::GET_ACL => {
            for _ in 0..fields.count()? {
                fields.int()?;
                fields.string()?;
                fields.string()?;
            }
        }
        op::GET_CHILDREN | op::GET_CHILDREN_AND_STAT => {
            for _ in 0..fields.count()? {
                fields.string()?;
            }
            if operation == op::GET_CHILDREN {
                return Ok(());
            }
        }
        _ => return Ok(()),
    }
    fields.stat().map(drop)
}

/// Whether a transaction has failed with this code, by the body of its reply.
pub(crate) fn has_failed_with(code: i32, body: &[u8]) -> bool {
    let mut fields = Fields(body);
    // Of a transaction that failed, each step has a code, behind the kind of an error.
    while let (Ok(-1), Ok(false), Ok(_), Ok(error)) =
        (fields.int(), fields.flag(), fields.int(), fields.int())
    {
        if error == code {
            return true;
        }
    }
    false
}

/// Reads the body of a watch event: what happened, and the path of the node.
pub(crate) fn read_event(body: &[u8]) -> Result<(NodeEvent, &str), Malformed> {
    let mut fields = Fields(body);
    let event = match fields.int()? {
        1 => NodeEvent::Created,
        2 => NodeEvent::Deleted,
        3 => NodeEvent::Written,
        4 => NodeEvent::ChildrenChanged,
        -1 | 5 | 6 => NodeEvent::Other,
        _ => return Err(Malformed("an event of an unknown kind")),
    };
    if !matches!(fields.int()?, 0 | 3..=6 | -112) {
        return Err(Malformed("an event in an unknown state"));
    }
    Ok((event, fields.string()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(splitter: &mut Splitter) -> Option<Vec<u8>> {
        match splitter.next() {
            Ok(Some(Piece { bytes, oversized: None })) => Some(bytes.to_vec()),
            Ok(None) => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lengths_are_checked_before_they_are_believed() {
        for (bytes, reason) in [
            (&(-1i32).to_be_bytes()[..], "a frame of negative length"),
            (&3i32.to_be_bytes()[..], "a frame shorter than its header"),
        ] {
            let mut splitter = Splitter::new(100, 8);
            splitter.push(bytes);
            assert_eq!(splitter.next(), Err(Malformed(reason)));
        }
    }

    #[test]
    fn an_event_says_what_has_happened_to_which_node() {
        use NodeEvent::{ChildrenChanged, Created, Deleted, Other, Written};
        let kinds = [(1, Created), (2, Deleted), (3, Written), (4, ChildrenChanged)];
        for (kind, event) in kinds.into_iter().chain([-1, 5, 6].map(|kind| (kind, Other))) {
            let body = Frame::new().int(kind).int(3).buffer(b"/a").body();
            assert_eq!(read_event(&body), Ok((event, "/a")));
        }
        let unknown = Frame::new().int(7).int(3).buffer(b"/a").body();
        assert_eq!(read_event(&unknown), Err(Malformed("an event of an unknown kind")));
    }

    #[test]
    fn an_oversized_frame_is_named_and_thrown_away() {
        let mut splitter = Splitter::new(100, 8);
        splitter.push(&1_000_000i32.to_be_bytes());
        splitter.push(&[7; 12]);
        assert_eq!(splitter.next(), Ok(Some(Piece { bytes: &[7; 8], oversized: Some(1_000_000) })));
        for _ in 0..999_988 / 1_000 {
            splitter.push(&[0; 1_000]);
        }
        splitter.push(&[0; 988]);
        assert!(splitter.buffer.capacity() < 10_000);
        assert!(!splitter.in_the_middle());
        splitter.push(&Frame::new().long(5).finish());
        assert_eq!(whole(&mut splitter), Some(5i64.to_be_bytes().to_vec()));
    }

    #[test]
    fn reply_bodies_that_lie_about_lengths_are_refused() {
        let huge = i32::MAX.to_be_bytes();
        let negative = (-2i32).to_be_bytes();
        for operation in
            [op::CREATE, op::GET_DATA, op::GET_CHILDREN, op::GET_CHILDREN_AND_STAT, op::GET_ACL]
        {
            assert!(check_reply(operation, &huge).is_err(), "{operation}");
            assert!(check_reply(operation, &negative).is_err(), "{operation}");
        }
        // A negative length is refused even where all bytes after it are right.
        assert!(check_reply(op::GET_DATA, &[&negative[..], &[0; 68]].concat()).is_err());
        assert!(
            check_reply(op::GET_CHILDREN, &[&1i32.to_be_bytes()[..], &negative].concat()).is_err()
        );
        assert!(check_reply(op::EXISTS, &[0; 67]).is_err());
        assert!(check_reply(op::EXISTS, &[0; 68]).is_ok());
        assert!(check_reply(op::CREATE, &[0, 0, 0, 1, 0xff]).is_err());
    }

    proptest! {
        #[test]
        fn frames_survive_any_split(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 8..200), 0..20),
            cuts in prop::collection::vec(1usize..50, 1..50),
        ) {
            let stream: Vec<u8> =
                frames.iter().flat_map(|frame| Frame::new().raw(frame).finish()).collect();
            let mut splitter = Splitter::new(1_000, 8);
            let mut got = Vec::new();
            let mut rest = &stream[..];
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                rest = later;
                splitter.push(now);
                while let Some(frame) = whole(&mut splitter) {
                    got.push(frame);
                }
            }
            prop_assert_eq!(got, frames);
        }

        #[test]
        fn no_bytes_make_the_readers_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), operation in 0..20i32) {
            let _ = check_reply(operation, &bytes);
            let _ = read_event(&bytes);
            let _ = ConnectRequest::read(&bytes);
            let _ = ConnectResponse::read(&bytes);
            let mut splitter = Splitter::new(100, 8);
            splitter.push(&bytes);
            while let Ok(Some(_)) = splitter.next() {}
        }
    }
}

#[cfg(test)]
#[path = "../../../tests/link/wire_format_properties.rs"]
mod properties;
