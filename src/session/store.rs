//! What a session can be asked for, and who opens one: the floor that everything above
//! stands on, be it a real ensemble or a simulated one. Paths are whole: the chroot is part
//! of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::status::Status;
use super::wake::{Waiter, Watches};
use crate::acl::Acl;
use crate::error::Result;
pub(crate) use crate::link::Info;
use crate::link::core::{End, Notice};
pub(crate) use crate::link::frame::Stat;
use crate::link::frame::{MAX_REQUEST, REQUEST_HEADER};
use crate::rt::Deadline;

/// With how many bytes of data a node can be made at this path: a server takes no longer requests.
pub(crate) fn room(path: &str, acl: &[Acl]) -> usize {
    let entries: usize = acl.iter().map(|acl| 12 + acl.scheme.len() + acl.id.len()).sum();
    // The lengths of the path and the data, the number of entries, and the flags.
    MAX_REQUEST.saturating_sub(REQUEST_HEADER + 16 + path.len() + entries)
}

/// Which kind of node to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
        kind: Kind,
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
pub(crate) struct Entered {
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

/// One session's verbs. Every call answers in bounded time. Dropped, it ends the session.
pub(crate) trait Store: fmt::Debug + Send + Sync {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: Kind) -> Answer<Created>;

    /// Makes an ephemeral sequential node and lists the children of its parent, in one round trip
    /// where that can be done.
    fn enter(&self, path: &str, data: &[u8], acl: &[Acl]) -> Answer<Entered>;

    fn delete(&self, path: &str) -> Answer<()>;

    /// Replaces the node's data.
    fn write(&self, path: &str, data: &[u8]) -> Answer<()>;

    /// Takes all of these steps, as one, or none of them; then it is the fault of the first that
    /// cannot be taken.
    fn transact(&self, steps: &[Step]) -> Answer<()>;

    /// The node's data and stat, or `None` if there is no such node. A watch is set only
    /// on a node that exists, so that none is left behind.
    fn data(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>>;

    /// As `data`, but neither an ACL that hides the data nor their size hides whether the node
    /// exists: there are none then. `NoAuth` says that the node is there, but that the server
    /// tells nothing else of it: servers from 3.7.3, 3.8.4 and 3.9.2 on want READ for the stat, too.
    /// It also answers who wants to watch a node without READ on it: the server would tell nothing.
    fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>>;

    /// As `read` without a watch, of many nodes, in as few round trips as can be.
    fn read_each(&self, paths: &[String]) -> Vec<Answer<Found>> {
        paths.iter().map(|path| self.read(path, false)).collect()
    }

    /// Whether the node is there; if not, a watch is set that its making fires. It stays with the
    /// server until then, or until the session or its connection ends.
    fn await_making(&self, path: &str) -> Answer<bool>;

    /// `None` if there is no such node.
    fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>>;

    /// The names of the node's children, and its stat; one after the other by default, the stat
    /// first.
    fn list(&self, path: &str, watch: bool) -> Answer<Option<(Names, Stat)>> {
        let Some((_, stat)) = self.data(path, false)? else { return Ok(None) };
        Ok(self.children(path, watch)?.map(|names| (names, stat)))
    }

    /// As `children`, of many nodes: in one round trip, where that can be done.
    fn children_each(&self, paths: &[String], watch: bool) -> Vec<Answer<Option<Names>>> {
        paths.iter().map(|path| self.children(path, watch)).collect()
    }

    /// Answered when this connection's server has seen all that the leader had committed.
    fn sync(&self) -> Answer<()>;

    /// Asks, in one round trip, for the leader's word and for the node; `NoAuth` as with `read`.
    fn confirm(&self, path: &str) -> Answer<Option<Stat>>;

    /// Reads the node's data and sets a watch on it without waiting; `NoAuth` as with `read`.
    fn watch_soon(&self, path: &str, on_answer: OnAnswer<(Vec<u8>, Stat)>);

    /// As `watch_soon`, but may be a few milliseconds late, and does nothing if it is not wanted
    /// any more then. Of a connection that is lost before, nothing may be heard.
    fn watch_later(&self, path: &str, is_wanted: IsWanted, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        if is_wanted() {
            self.watch_soon(path, on_answer);
        }
    }

    /// Sets a watch on the children of the node's parent without waiting, and answers whether
    /// the node is there; `NoAuth` as with `read`.
    fn watch_siblings_soon(&self, path: &str, on_answer: OnAnswer<Stat>);

    /// Lists a node's children and sets a watch on them without waiting.
    fn watch_children_soon(&self, path: &str, on_answer: OnAnswer<Names>);

    /// Has all watches of this connection on a node removed, without waiting. What is asked for
    /// afterwards comes after it. Not every store can.
    fn unwatch_soon(&self, _path: &str) {}

    /// Deletes the node that this transaction has made; `NoNode` if it is gone, also where another
    /// session has made one of the same name since. Who may not read it cannot tell the two apart.
    fn delete_named(&self, path: &str, czxid: i64) -> Answer<()> {
        match self.confirm(path) {
            Ok(Some(stat)) if stat.czxid == czxid => self.delete(path),
            Ok(_) => Err(Fault::NoNode),
            Err(Fault::NoAuth) => self.delete(path),
            Err(fault) => Err(fault),
        }
    }

    /// Asks for a node's deletion, and returns when the request is certain to reach the server
    /// if the connection lasts, when there is none, or at the deadline. What is asked afterwards
    /// comes after it. The answer, which comes on another thread, may be lost with the session.
    fn let_go(&self, path: &str, until: Deadline, on_answer: OnAnswer<()>);

    /// Asks for a node's deletion without waiting.
    fn delete_soon(&self, path: &str);

    /// Whether a holder in this session may believe that its nodes exist; if not, why the session
    /// is over. Once an error, always one, also where nobody has been told yet.
    fn lease(&self) -> Result<(), End>;

    /// Whether a node that may be ours can be told to be of this session, and so be kept.
    fn may_adopt(&self) -> bool {
        true
    }

    fn info(&self) -> Info;

    /// Ends the session, and stops trying to after so long.
    fn close(&self, give_up_after: Duration);
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
    ) -> Result<Box<dyn Store>>;

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
