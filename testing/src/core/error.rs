//! Why a server refuses a request, as the protocol numbers it.

/// Why a server refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// A step of a transaction was not tried, as another failed.
    RuntimeInconsistency,
    /// The request could not be read.
    Marshalling,
    /// The server does not know the request, or has it switched off.
    Unimplemented,
    /// A path, a mode or a number makes no sense.
    BadArguments,
    /// There is no node at the path.
    NoNode,
    /// The node's ACL forbids it.
    NoAuth,
    /// The node has another version.
    BadVersion,
    /// An ephemeral node cannot have children.
    NoChildrenForEphemerals,
    /// There is a node at the path.
    NodeExists,
    /// The node has children.
    NotEmpty,
    /// The session has ended.
    SessionExpired,
    /// The ACL is empty, or has an entry that no client could meet.
    InvalidAcl,
    /// The credentials were refused.
    AuthFailed,
    /// The session was moved to another server.
    SessionMoved,
    /// There is no such watch.
    NoWatcher,
}

impl Error {
    /// The number of the protocol.
    pub fn code(self) -> i32 {
        match self {
            Error::RuntimeInconsistency => -2,
            Error::Marshalling => -5,
            Error::Unimplemented => -6,
            Error::BadArguments => -8,
            Error::NoNode => -101,
            Error::NoAuth => -102,
            Error::BadVersion => -103,
            Error::NoChildrenForEphemerals => -108,
            Error::NodeExists => -110,
            Error::NotEmpty => -111,
            Error::SessionExpired => -112,
            Error::InvalidAcl => -114,
            Error::AuthFailed => -115,
            Error::SessionMoved => -118,
            Error::NoWatcher => -121,
        }
    }
}
