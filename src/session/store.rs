//! The few verbs that recipes use. Paths are whole: the chroot is part of them.

use std::fmt;
use std::sync::Arc;

use crate::acl::Acl;
pub(crate) use crate::link::frame::Stat;

/// Which kind of node to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Persistent,
    /// Removed by the server when it has been empty for long; a plain persistent node on
    /// servers that know no containers.
    Container,
    EphemeralSequential,
}

/// A node that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) path: String,
    /// The zxid of its making, where that is known.
    pub(crate) czxid: Option<i64>,
}

/// What a verb may end with, beside success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No answer; the request may have taken effect or not.
    ConnectionLoss,
    /// The session is over.
    SessionEnded,
    NoNode,
    NodeExists,
    NotEmpty,
    NoAuth,
    InvalidAcl,
    TooLarge,
    /// Anything else the server said.
    Refused(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::ConnectionLoss => f.write_str("the connection was lost before the answer came"),
            Fault::SessionEnded => f.write_str("the session is over"),
            Fault::NoNode => f.write_str("the node does not exist"),
            Fault::NodeExists => f.write_str("the node exists"),
            Fault::NotEmpty => f.write_str("the node has children"),
            Fault::NoAuth => f.write_str("an ACL forbids it"),
            Fault::InvalidAcl => f.write_str("the server does not accept the ACL"),
            Fault::TooLarge => f.write_str("the request or its reply is too large"),
            Fault::Refused(why) => f.write_str(why),
        }
    }
}

/// Children's names, in no order.
pub(crate) type Names = Arc<Vec<String>>;

pub(crate) type Answer<T> = Result<T, Fault>;

/// The verbs. Every call answers in bounded time.
pub(crate) trait Store: Send + Sync {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: Kind) -> Answer<Created>;

    fn delete(&self, path: &str) -> Answer<()>;

    /// The node's data and stat, or `None` if there is no such node. A watch is set only
    /// on a node that exists, so that none is left behind.
    fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>>;

    /// `None` if there is no such node. Callers may be given one common answer to a request
    /// that was sent after each of them had called.
    fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>>;

    /// Answered when this connection's server has seen all that the leader had committed.
    fn sync(&self) -> Answer<()>;
}
