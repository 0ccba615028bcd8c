//! The numbers and values of ZooKeeper's wire protocol: operations, error codes, flags, a node's stat,
//! a reply.

/// Operation codes of requests.
pub(crate) mod op {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_ACL: i32 = 6;
    pub(crate) const SET_ACL: i32 = 7;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const GET_CHILDREN_AND_STAT: i32 = 12;
    pub(crate) const CHECK: i32 = 13;
    pub(crate) const MULTI: i32 = 14;
    /// Occurs only in the reply to a transaction that creates a container.
    pub(crate) const CREATE_AND_STAT: i32 = 15;
    pub(crate) const REMOVE_WATCHES: i32 = 18;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SASL: i32 = 102;
    pub(crate) const CLOSE_SESSION: i32 = -11;
}

/// Error codes of replies.
pub(crate) mod code {
    pub(crate) const OK: i32 = 0;
    pub(crate) const CONNECTION_LOSS: i32 = -4;
    pub(crate) const MARSHALLING: i32 = -5;
    pub(crate) const UNIMPLEMENTED: i32 = -6;
    pub(crate) const OPERATION_TIMEOUT: i32 = -7;
    pub(crate) const BAD_ARGUMENTS: i32 = -8;
    pub(crate) const NO_NODE: i32 = -101;
    pub(crate) const NO_AUTH: i32 = -102;
    pub(crate) const BAD_VERSION: i32 = -103;
    pub(crate) const NO_CHILDREN_FOR_EPHEMERALS: i32 = -108;
    pub(crate) const NODE_EXISTS: i32 = -110;
    pub(crate) const NOT_EMPTY: i32 = -111;
    pub(crate) const SESSION_EXPIRED: i32 = -112;
    pub(crate) const INVALID_ACL: i32 = -114;
    pub(crate) const AUTH_FAILED: i32 = -115;
    /// The server serves only clients that have authenticated by SASL.
    pub(crate) const SASL_REQUIRED: i32 = -124;
    pub(crate) const SESSION_MOVED: i32 = -118;
    /// The session is a local one, and the servers must not make it one of the whole ensemble.
    pub(crate) const LOCAL_SESSION: i32 = -120;
    /// The request took too long inside the server, which has given up on it.
    pub(crate) const REQUEST_TIMEOUT: i32 = -122;
    pub(crate) const QUOTA_EXCEEDED: i32 = -125;
    /// The server is overloaded, and has not executed the request.
    pub(crate) const THROTTLED: i32 = -127;
}

/// Transaction ids with a meaning of their own.
pub(crate) mod xid {
    pub(crate) const WATCH: i32 = -1;
    pub(crate) const AUTH: i32 = -4;
    /// Requests of the handshake: servers give this number no meaning, and later requests begin with 1.
    pub(crate) const HANDSHAKE: i32 = 0;
}

/// What has happened to a node that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeEvent {
    Created,
    Deleted,
    /// The node's data were written.
    Written,
    /// Children came or went.
    ChildrenChanged,
    /// Nothing of the node: the watch was removed, or the event is about the session.
    Other,
    /// No event of a server: it has answered that it has set a watch, and that the node is there.
    Watched,
}

/// A node that does not exist: a write to it, in a version that no node has, changes nothing.
pub(crate) const NOWHERE: &str = "/zklock-nowhere/nothing";

/// The body of a sync, which covers the whole server, whatever path it names.
pub(crate) const SYNC_ROOT: &[u8] = &[0, 0, 0, 1, b'/'];

/// The largest request a server takes with its default `jute.maxbuffer`.
pub(crate) const MAX_REQUEST: usize = 0xf_ffff;

/// The bytes of a reply's header: xid, zxid, error code.
pub(crate) const REPLY_HEADER: usize = 16;

/// The bytes of a request's header: xid, operation.
pub(crate) const REQUEST_HEADER: usize = 8;

/// Flags of a create.
pub(crate) const FLAG_EPHEMERAL: i32 = 1;

pub(crate) const FLAG_SEQUENTIAL: i32 = 2;

pub(crate) const FLAG_EPHEMERAL_SEQUENTIAL: i32 = 3;

pub(crate) const FLAG_CONTAINER: i32 = 4;

/// What the link and the verbs read from a node's stat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) czxid: i64,
    /// The transaction that wrote its data last.
    pub(crate) mzxid: i64,
    /// Milliseconds since 1970, by the leader's clock; likewise `mtime`.
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    /// How often its data was overwritten.
    pub(crate) version: i32,
    /// How many children were made and deleted.
    pub(crate) child_changes: i32,
    pub(crate) data_length: i32,
    pub(crate) children: i32,
    /// The transaction that made or deleted a child last.
    pub(crate) children_zxid: i64,
    pub(crate) ephemeral_owner: i64,
}

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawReply {
    pub(crate) zxid: i64,
    /// The server's code, or [`code::CONNECTION_LOSS`], [`code::SESSION_EXPIRED`],
    /// [`code::MARSHALLING`] or [`code::THROTTLED`].
    pub(crate) error: i32,
    pub(crate) body: Vec<u8>,
}
