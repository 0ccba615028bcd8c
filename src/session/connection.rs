//! The connection with an ensemble, as everything above sees it: requests, replies, and who opens one.
//! It is a real one, a program's handle, or a simulated one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::notify::Waiter;
use super::status::Status;
use super::watches::Watches;
use super::workers::Workers;
use crate::acl::Acl;
use crate::error::Result;
use crate::rt::Deadline;
use crate::session_notice::{End, Notice};
use crate::wire_values::{MAX_REQUEST, REQUEST_HEADER, RawReply, code};

pub(crate) use crate::session_notice::Info;
pub(crate) use crate::wire_values::Stat;

/// With how many bytes of data a node can be made at this path: a server takes no longer requests.
pub(crate) fn room(path: &str, acl: &[Acl]) -> usize {
    let entries: usize = acl.iter().map(|acl| 12 + acl.scheme.len() + acl.id.len()).sum();
    // The lengths of the path and the data, the number of entries, and the flags.
    MAX_REQUEST.saturating_sub(REQUEST_HEADER + 16 + path.len() + entries)
}

/// Which kind of node to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Persistent,
    /// Removed by the server when it has been empty for long; a plain persistent node on
    /// servers that know no containers.
    Container,
    /// Under a name that nobody else knows.
    Ephemeral,
    /// An ephemeral node under a name that others may want, too.
    Named,
    PersistentSequential,
    EphemeralSequential,
}

/// One part of a transaction. A version is that of the node's data, and stands for any where there
/// is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The node is there.
    Check {
        path: String,
        version: Option<i32>,
    },
    Create {
        path: String,
        data: Vec<u8>,
        acl: Vec<Acl>,
        kind: NodeKind,
    },
    Delete {
        path: String,
    },
    Write {
        path: String,
        data: Vec<u8>,
        version: Option<i32>,
    },
}

/// A node that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) path: String,
    /// The zxid of its making, where that is known.
    pub(crate) czxid: Option<i64>,
}

/// A contender that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Enqueued {
    pub(crate) made: Created,
    /// The children of its parent, asked for behind it on the same connection; `None` where no
    /// answer has come to that.
    pub(crate) siblings: Option<Names>,
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
    /// The node's data have changed.
    BadVersion,
    NoAuth,
    InvalidAcl,
    /// What is, and for what.
    TooLarge(String),
    /// The server does not know what it is asked for. It closes the connection, too.
    Unknown,
    /// Anything else the server said.
    Refused(String),
    /// The server has too much to do and has not done it: to be asked again in a moment.
    Busy,
}

impl Fault {
    /// Where nothing is known of the sizes.
    pub(crate) fn too_large() -> Fault {
        Fault::TooLarge("the request or its reply is too large".to_owned())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::ConnectionLoss => f.write_str("the connection was lost before the answer came"),
            Fault::SessionEnded => f.write_str("the session is over"),
            Fault::NoNode => f.write_str("the node does not exist"),
            Fault::NodeExists => f.write_str("the node exists"),
            Fault::NotEmpty => f.write_str("the node has children"),
            Fault::BadVersion => f.write_str("the node's data have another version"),
            Fault::NoAuth => f.write_str("an ACL forbids it"),
            Fault::InvalidAcl => f.write_str("the server does not accept the ACL"),
            Fault::TooLarge(why) | Fault::Refused(why) => f.write_str(why),
            Fault::Unknown => f.write_str("the server does not know the operation"),
            Fault::Busy => f.write_str("the server is too busy"),
        }
    }
}

/// A node's data and stat, if there is such a node.
pub(crate) type Found = Option<(Vec<u8>, Stat)>;

/// Children's names, in no order.
pub(crate) type Names = Arc<Vec<String>>;

pub(crate) type Answer<T> = Result<T, Fault>;

/// `None` where there is no such node.
pub(crate) fn or_none<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Fault::NoNode) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// What comes back from a request that nobody waits for.
pub(crate) type OnAnswer<T> = Box<dyn FnOnce(Answer<T>) + Send>;

/// Whether a request that was put off is still of use to somebody.
pub(crate) type IsWanted = Box<dyn Fn() -> bool + Send>;

/// What a server is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Create {
        path: String,
        data: Vec<u8>,
        acl: Vec<Acl>,
        kind: NodeKind,
    },
    /// Of any version.
    Delete {
        path: String,
    },
    /// Replaces the data, of this version or of any.
    Write {
        path: String,
        data: Vec<u8>,
        version: Option<i32>,
    },
    Transact(Vec<Step>),
    /// The node's data and stat. A watch is set only on a node that is there.
    Data {
        path: String,
        watch: bool,
    },
    /// The node's stat. A watch on a node that is not there waits for its making.
    Exists {
        path: String,
        watch: bool,
    },
    Children {
        path: String,
        watch: bool,
    },
    ChildrenAndStat {
        path: String,
        watch: bool,
    },
    /// Answered when this connection's server has seen all that the leader had committed.
    Sync,
    /// Removes all watches of this connection on a node.
    Unwatch {
        path: String,
    },
}

/// What a server answers to it, if it is no fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done,
    Created(Created),
    Data(Vec<u8>, Stat),
    Stat(Stat),
    Names(Names),
    NamesAndStat(Names, Stat),
}

/// How an answer's bytes are read.
pub(crate) type ReadRaw = fn(&RawReply) -> Answer<Reply>;

/// An answer as it has come, to be read by whoever waits for it rather than on the thread that
/// brings it.
#[derive(Debug)]
pub(crate) enum Answered {
    #[cfg_attr(
        not(any(test, feature = "zookeeper", feature = "_bench")),
        expect(dead_code, reason = "of connections other than the link")
    )]
    Read(Answer<Reply>),
    Unread(RawReply, ReadRaw),
}

impl Answered {
    /// Whether the node is there, if the answer says so.
    pub(crate) fn finds(&self) -> Option<bool> {
        match self {
            Answered::Read(Ok(_)) => Some(true),
            Answered::Read(Err(Fault::NoNode)) => Some(false),
            Answered::Unread(raw, _) if raw.error == code::OK => Some(true),
            Answered::Unread(raw, _) if raw.error == code::NO_NODE => Some(false),
            _ => None,
        }
    }

    /// Whether the server had too much to do.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Answered::Read(answer) => *answer == Err(Fault::Busy),
            Answered::Unread(raw, _) => raw.error == code::THROTTLED,
        }
    }

    pub(crate) fn read(self) -> Answer<Reply> {
        match self {
            Answered::Read(answer) => answer,
            Answered::Unread(raw, read) => read(&raw),
        }
    }
}

/// Told once, by a thread that may do no more than signal; or dropped, where nobody answers any more.
pub(crate) type OnReply = Box<dyn FnOnce(Answered) + Send>;

/// A request, and who is to have its answer.
pub(crate) struct Submission {
    pub(crate) request: Request,
    pub(crate) on_reply: OnReply,
}

/// One or two, back to back.
pub(crate) type OneOrTwo<T> = [Option<T>; 2];

/// One session's connection with the ensemble: a link, a handle of the program's, or a simulated one.
/// All that a session can be asked for is written upon this, in [`Verbs`](super::verbs::Verbs).
/// Dropped, it ends the session.
pub(crate) trait Connection: fmt::Debug + Send + Sync {
    /// Sends the requests, with nothing in between. Each is answered in bounded time: by the server,
    /// in the order of all requests and events; with a lost connection or session; or at once, where
    /// it is too large or there are too many. Whether all that was asked so far is certain to reach
    /// the server if the connection lasts.
    fn submit(&self, requests: OneOrTwo<Submission>) -> bool;

    /// As `submit` of one, but may be a few milliseconds late, and does nothing if it is not wanted
    /// any more then. Of a connection that is lost before, nothing may be heard.
    fn later(&self, asked: Submission, is_wanted: IsWanted) {
        if is_wanted() {
            self.submit([Some(asked), None]);
        }
    }

    /// Returns when what was asked so far is certain to reach the server if the connection lasts, when
    /// there is none, or at the deadline.
    fn flushed_by(&self, until: Deadline);

    /// Whether a holder in this session may believe that its nodes exist; if not, why the session
    /// is over. Once an error, always one, also where nobody has been told yet.
    fn trusted(&self) -> Result<(), End>;

    /// Where a thread that wants an answer has to make the call by itself: on a handle of the program's.
    /// Which session that is in may not be known, and its watches are the handle's affair.
    fn blocking(&self) -> Option<&dyn Blocking> {
        None
    }

    /// Where a thread that is about to ask may be held up, in a simulation.
    #[cfg(test)]
    fn hesitate(&self) {}

    fn info(&self) -> Info;

    /// Ends the session, and stops trying to after so long.
    fn close(&self, give_up_after: Duration);
}

/// See [`Connection::blocking`].
pub(crate) trait Blocking {
    /// For as long as it takes.
    fn call(&self, request: Request) -> Answer<Reply>;

    /// On which callers with a time limit have their calls made.
    fn workers(&self) -> &Workers;
}

/// Where a session is to report to.
pub(crate) struct Reports {
    pub(crate) status: Arc<Status>,
    pub(crate) watches: Arc<Watches>,
    /// Told after the status.
    pub(crate) on_notice: Box<dyn Fn(Notice) + Send>,
}

/// Opens sessions with an ensemble.
pub(crate) trait Ensemble: fmt::Debug + Send + Sync {
    /// Returns once a server serves the session. `stop` is asked whenever the waiter's bell,
    /// which the status rings, is rung.
    fn open(
        &self,
        reports: Reports,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Connection>>;

    /// What to ask for, as a session time-out.
    fn session_timeout(&self) -> Duration;

    /// How long opening may take.
    fn connect_timeout(&self) -> Duration;

    /// Which handle of the program's it is reached by, if that is how: nobody knows which ensemble
    /// that is.
    fn handle(&self) -> Option<usize> {
        None
    }

    /// Tries again to start what no thread could be had for.
    fn retry(&self) {}
}
