//! What clients ask, and what they are answered.

use super::{Acl, Error};

/// What becomes of a node that is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It stays until it is deleted.
    Persistent,
    /// It ends with its session.
    Ephemeral,
    /// As `Persistent`, with a number appended to its name.
    PersistentSequential,
    /// As `Ephemeral`, with a number appended to its name.
    EphemeralSequential,
    /// The server removes it once it has outlived its children.
    Container,
    /// The server removes it when it has had no children and no change for so many milliseconds.
    Ttl(i64),
    /// As `Ttl`, with a number appended to its name.
    SequentialTtl(i64),
}

impl Mode {
    /// Whether a number is appended to its name.
    pub fn is_sequential(self) -> bool {
        matches!(
            self,
            Mode::PersistentSequential | Mode::EphemeralSequential | Mode::SequentialTtl(_)
        )
    }

    /// Whether it ends with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Mode::Ephemeral | Mode::EphemeralSequential)
    }

    pub(super) fn ttl(self) -> Option<i64> {
        match self {
            Mode::Ttl(ttl) | Mode::SequentialTtl(ttl) => Some(ttl),
            _ => None,
        }
    }
}

/// A node's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that created it.
    pub czxid: i64,
    /// The last transaction that set its data.
    pub mzxid: i64,
    /// When it was created, in milliseconds since 1970.
    pub ctime: i64,
    /// When its data was set.
    pub mtime: i64,
    /// How often its data was set.
    pub version: i32,
    /// How often a child was created or deleted.
    pub cversion: i32,
    /// How often its ACL was set.
    pub aversion: i32,
    /// The session that owns it; 0 if none does.
    pub ephemeral_owner: i64,
    /// The length of its data.
    pub data_length: i32,
    /// How many children it has.
    pub num_children: i32,
    /// The last transaction that created or deleted a child.
    pub pzxid: i64,
}

/// A change, alone or in a transaction. A version of -1 is any.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the protocol's own names")]
pub enum Step {
    Create { path: String, data: Vec<u8>, acl: Vec<Acl>, mode: Mode },
    Delete { path: String, version: i32 },
    SetData { path: String, data: Vec<u8>, version: i32 },
    Check { path: String, version: i32 },
}

/// Which watches of a path a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Those on its children.
    Children,
    /// Those on the node itself.
    Node,
    /// All.
    Any,
}

/// A watch that stays when it has told of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMode {
    /// Of the node and its children.
    Persistent,
    /// Of the node and all below it.
    PersistentRecursive,
}

/// What a client asks of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the protocol's own names")]
pub enum Request {
    One(Step),
    Multi(Vec<Step>),
    Exists { path: String, watch: bool },
    GetData { path: String, watch: bool },
    GetChildren { path: String, watch: bool },
    GetAcl { path: String },
    SetAcl { path: String, acl: Vec<Acl>, version: i32 },
    Sync { path: String },
    AddWatch { path: String, mode: WatchMode },
    RemoveWatches { path: String, which: Watched, only_check: bool },
}

impl Request {
    /// Whether the leader has to decide it.
    pub fn is_for_the_leader(&self) -> bool {
        matches!(
            self,
            Request::One(_) | Request::Multi(_) | Request::SetAcl { .. } | Request::Sync { .. }
        )
    }
}

/// What a client is answered if nothing was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the protocol's own names")]
pub enum Reply {
    /// The path, with its number if it is sequential, and the new node's stat.
    Created(String, Stat),
    Done,
    Stat(Stat),
    Data(Vec<u8>, Stat),
    Children(Vec<String>, Stat),
    Acl(Vec<Acl>, Stat),
    /// The answers to the steps, or which one was refused, and why.
    Multi(Result<Vec<Reply>, (usize, Error)>),
}
