//! The connection with an ensemble, as all higher layers see it: requests, replies, and how a
//! connection is opened. It is our own link, a program's handle, or a simulated one.

mod names;
mod status;
mod watches;

pub(crate) use names::Names;
pub use status::SessionState;
pub(crate) use status::{SessionPhase, Status};
pub(crate) use watches::{WatchKind, Watches};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acl::Acl;
use crate::connect_string::Host;
use crate::connection_notice::{End, Notice};
use crate::error::{Error, ErrorKind, Result};
use crate::link::{AwaitsServer, UnsupportedOperations};
use crate::rt::Deadline;
use crate::session::wait::Waiter;
use crate::wire_values::{MAX_REQUEST, REQUEST_HEADER, RawReply, code};

use crate::connection_notice::Info;
use crate::wire_values::Stat;

/// How many bytes of data a node at this path can be created with: a server accepts no longer
/// request.
pub(crate) fn room_for_data(path: &str, acl: &[Acl]) -> usize {
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
    /// An ephemeral node under a name that no other client knows.
    Ephemeral,
    /// An ephemeral node under a name that others may want, too.
    Named,
    PersistentSequential,
    EphemeralSequential,
    /// As `EphemeralSequential`, of a node with which its client is to hold something.
    Contender,
}

impl NodeKind {
    /// Whether such a node goes with its session.
    pub(crate) fn is_ephemeral(self) -> bool {
        use NodeKind::{
            Container, Contender, Ephemeral, EphemeralSequential, Named, Persistent,
            PersistentSequential,
        };
        match self {
            Ephemeral | Named | EphemeralSequential | Contender => true,
            Persistent | Container | PersistentSequential => false,
        }
    }
}

/// One part of a transaction. A version is that of the node's data; `None` means any version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The node exists.
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
        version: Option<i32>,
    },
    Write {
        path: String,
        data: Vec<u8>,
        version: Option<i32>,
    },
}

impl Step {
    /// Deletes the node, whatever its version.
    pub(crate) fn delete(path: String) -> Step {
        Step::Delete { path, version: None }
    }
}

/// The outcome of a transaction: the reply to each step; or nothing was done, and this step failed.
pub(crate) type Transacted = Result<Vec<Reply>, (usize, Fault)>;

/// A node that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) path: String,
    /// The zxid of its creation, if known.
    pub(crate) czxid: Option<i64>,
}

/// A contender that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Enqueued {
    pub(crate) made: Created,
    /// The children of its parent, and that one's stat if it was asked for, requested right after the create
    /// on the same connection; `None` if that request was not answered.
    pub(crate) siblings: Option<(Names, Option<Stat>)>,
}

/// How a verb may fail.
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
    /// Says which entry may be to blame, where that is known.
    InvalidAcl(String),
    /// A quota on the path or above it is used up.
    QuotaExceeded,
    /// The session is a local one, which can own no ephemeral node, and the servers must not upgrade it.
    LocalSession,
    /// The node above is ephemeral, and can have no children.
    BelowEphemeral,
    /// Says what is too large, and for what.
    TooLarge(String),
    /// The server does not know the operation. It may also close the connection.
    Unknown,
    /// Anything else the server said.
    Refused(String),
    /// Says what this machine could not do.
    #[cfg_attr(
        not(feature = "zookeeper"),
        expect(dead_code, reason = "of connections other than the link")
    )]
    System(String),
    /// The server was too busy and has not carried out the request: repeat it in a moment.
    Busy,
}

impl Fault {
    /// Whether it says nothing of what the server has done.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Fault::ConnectionLoss | Fault::SessionEnded)
    }

    /// For use where the sizes are not known.
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
            Fault::NodeExists => f.write_str("the node already exists"),
            Fault::NotEmpty => f.write_str("the node has children"),
            Fault::BadVersion => f.write_str("the node's data has a different version"),
            Fault::NoAuth => f.write_str("an ACL forbids it"),
            Fault::InvalidAcl(why) => write!(f, "the server does not accept the ACL{why}"),
            Fault::QuotaExceeded => {
                f.write_str("a quota (count or bytes) on the path or above it is used up")
            }
            Fault::LocalSession => f.write_str(
                "the session is a local one, which can own no lock: set localSessionsUpgradingEnabled=true on all \
                 servers",
            ),
            Fault::BelowEphemeral => f.write_str(
                "a node above it is ephemeral, and can have no children: if that is the lock path, it is no lock \
                 of a queue, and whoever made it leads as long as it is there",
            ),
            Fault::TooLarge(why) | Fault::Refused(why) | Fault::System(why) => f.write_str(why),
            Fault::Unknown => f.write_str("the server does not know the operation"),
            Fault::Busy => f.write_str("the server is too busy"),
        }
    }
}

/// A node's data and stat, if the node exists.
pub(crate) type Found = Option<(Vec<u8>, Stat)>;

pub(crate) type Answer<T> = Result<T, Fault>;

/// `None` if the node does not exist.
pub(crate) fn or_none<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Fault::NoNode) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Called with the answer to a request that no thread waits for.
pub(crate) type OnAnswer<T> = Box<dyn FnOnce(Answer<T>) + Send>;

/// Whether a deferred request, or an answer that a thread waits for, is still wanted.
pub(crate) type IsWanted = Box<dyn Fn() -> bool + Send>;

/// A request to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// What can be a part of a transaction, alone.
    One(Step),
    Transact(Vec<Step>),
    Acl {
        path: String,
    },
    SetAcl {
        path: String,
        acl: Vec<Acl>,
    },
    /// The node's data and stat. A watch is set only if the node exists.
    Data {
        path: String,
        watch: bool,
    },
    /// The node's stat. If the node does not exist, a watch waits for its creation.
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

/// A server's answer to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done,
    Created(Created),
    Data(Vec<u8>, Stat),
    Stat(Stat),
    Names(Names),
    NamesAndStat(Names, Stat),
    Acl(Vec<Acl>),
    Transacted(Transacted),
}

/// Decodes an answer's bytes.
pub(crate) type ReadRaw = fn(&RawReply) -> Answer<Reply>;

/// An answer as it arrived. The thread that waits for it decodes it, not the thread that receives
/// it.
#[derive(Debug)]
pub(crate) enum Answered {
    #[cfg_attr(
        not(any(test, feature = "zookeeper")),
        expect(dead_code, reason = "of connections other than the link")
    )]
    Read(Answer<Reply>),
    Unread(RawReply, ReadRaw),
}

impl Answered {
    /// Whether the node exists, if the answer tells.
    pub(crate) fn finds(&self) -> Option<bool> {
        match self {
            Answered::Read(Ok(_)) => Some(true),
            Answered::Read(Err(Fault::NoNode)) => Some(false),
            Answered::Unread(raw, _) if raw.error == code::OK => Some(true),
            Answered::Unread(raw, _) if raw.error == code::NO_NODE => Some(false),
            _ => None,
        }
    }

    /// Whether the server was too busy.
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

/// Called once with the answer, on a thread on which it may only signal; dropped uncalled if no
/// answer will come.
pub(crate) type OnReply = Box<dyn FnOnce(Answered) + Send>;

/// A request, and what to call with its answer.
pub(crate) struct Submission {
    pub(crate) request: Request,
    pub(crate) on_reply: OnReply,
}

/// Who waits for the answers to requests that are submitted.
pub(crate) enum Waits {
    /// The calling thread, however long it takes.
    Here,
    /// The calling thread, as long as it wants the answers.
    #[cfg_attr(
        not(feature = "zookeeper"),
        expect(dead_code, reason = "for connections other than the link")
    )]
    Within(IsWanted),
    /// No thread.
    NotAtAll,
}

/// One session's connection with the ensemble: a link, a program's handle, or a simulated one.
/// [`Verbs`](crate::session::requests::Verbs) builds all of a session's requests on this. Dropping it ends
/// the session.
pub(crate) trait Connection: fmt::Debug + Send + Sync {
    /// Sends the requests, with nothing in between. Each is answered in bounded time: by the
    /// server, in the order of all requests and events; with a lost connection or session; or at
    /// once, if it is too large or there are too many. A program's handle may take for ever instead:
    /// so whoever waits there with a limit must say so, and requests that are not begun when the
    /// limit is over are not made. Returns whether all requests so far are certain to reach the
    /// server if the connection lasts.
    fn submit(&self, requests: Vec<Submission>, waits: Waits) -> bool;

    /// Whether the node has been watched since it was created, and has not changed. A caller that has
    /// subscribed to its events before needs no other watch.
    fn is_watched(&self, _path: &str) -> bool {
        false
    }

    /// Sends one request, possibly a few milliseconds late, and only if it is still wanted then. If
    /// the connection is lost before, there may be no answer.
    fn later(&self, asked: Submission, is_wanted: IsWanted) {
        if is_wanted() {
            self.submit(vec![asked], Waits::NotAtAll);
        }
    }

    /// Counts a caller that is about to wait for something from the server, until this is dropped: so
    /// that it is read at once. With `reads`, the caller calls `read_until` before it sleeps.
    fn await_server(&self, _reads: bool) -> Option<AwaitsServer> {
        None
    }

    /// May read what the server sends, on the calling thread, until it `is_done`, then, or for some
    /// milliseconds. The caller looks once more when this returns.
    fn read_until(&self, _then: Deadline, _is_done: &dyn Fn() -> bool) {}

    /// Returns when all requests so far are certain to reach the server if the connection lasts,
    /// when there is no connection, or at the deadline.
    fn flushed_by(&self, until: Deadline);

    /// Whether a holder in this session may trust that its nodes exist; if not, why the session is
    /// over. Once an error, it stays one. It may come before any notice of the end. `Ok` says for how
    /// long that is certain without another answer: zero where no lease is known.
    fn trusted(&self) -> Result<Duration, End>;

    /// The same, for a caller that knows that the process is not a forked one.
    fn trusted_here(&self) -> Result<Duration, End> {
        self.trusted()
    }

    /// Why the lease has run out, as far as that is known.
    fn why_lapsed(&self) -> Option<String> {
        None
    }

    /// Whether it is a program's handle: its session may be unknown, it manages its watches itself,
    /// and has no transactions.
    fn is_handle(&self) -> bool {
        false
    }

    /// The last transaction that the server is known to have made: every request that has not been sent
    /// yet gets a greater zxid. Zero if that is not known.
    fn seen_zxid(&self) -> i64 {
        0
    }

    /// Lets a simulation hold up a thread that is about to send a request.
    #[cfg(test)]
    fn hesitate(&self) {}

    fn info(&self) -> Info;

    /// Makes the connection anew, unless a request waits for its answer: the server then forgets the
    /// watches that were set on it.
    fn reconnect(&self) {}

    /// Ends the session for that reason; stops trying after `give_up_after`.
    fn close(&self, why: End, give_up_after: Duration);
}

/// Where a session records what happens to it.
pub(crate) struct SessionRecords {
    pub(crate) status: Arc<Status>,
    pub(crate) watches: Arc<Watches>,
    /// Called after the status was updated.
    pub(crate) on_notice: Box<dyn Fn(Notice) + Send>,
}

impl SessionRecords {
    /// The status first: whoever is told by `on_notice` finds it there.
    pub(crate) fn note(&self, notice: Notice) {
        self.status.note(notice);
        (self.on_notice)(notice);
    }
}

/// Opens sessions with an ensemble.
pub(crate) trait Ensemble: fmt::Debug + Send + Sync {
    /// Opens a session and returns once a server serves it. `stop` is called whenever the status
    /// rings the waiter's bell.
    fn open(
        &self,
        records: SessionRecords,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Connection>>;

    /// The servers, if they are known: those of a program's handle are not.
    fn hosts(&self) -> Option<String> {
        None
    }

    /// What is known of operations that not every server knows; by default, it is forgotten with each
    /// session.
    fn unsupported_operations(&self) -> Arc<UnsupportedOperations> {
        Arc::default()
    }

    /// Why the last search found no server, in an outage, as far as is known.
    fn why_no_server(&self) -> Option<String> {
        None
    }

    /// From now on, looks for a server among these.
    fn set_hosts(&self, _hosts: Vec<Host>) -> Result<()> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "the servers of a program's own ZooKeeper handle cannot be changed here",
        ))
    }

    /// How long opening may take.
    fn connect_timeout(&self) -> Duration;

    /// The address of the program's handle, if that is how the ensemble is reached: which ensemble
    /// that is cannot be known.
    fn handle(&self) -> Option<usize> {
        None
    }

    /// Retries to start the work for which no thread could be started.
    fn retry(&self) {}
}
