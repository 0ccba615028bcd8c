//! What a program's handle can be asked for: one of the `zookeeper` crate, or a simulated one.

use std::fmt;

use crate::acl::Acl;
use crate::session::connection::{Answer, Found, Names, NodeKind, Stat};

/// What the crate says of the handle's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleEvent {
    /// A server serves the session.
    Connected,
    /// None does.
    Lost,
    /// The session has expired; the handle is about to take another one.
    Expired,
    /// The handle was closed, or has closed itself, and stays so.
    Closed,
    AuthFailed,
}

/// What is called on the node's event. It may also be dropped without one, or kept and never called.
pub(crate) type Watcher = Box<dyn Fn() + Send>;

/// Ends the listening.
pub(crate) type Unlisten = Box<dyn FnOnce()>;

/// See the module. A call may take for as long as it likes.
pub(crate) trait Handle: fmt::Debug + Send + Sync {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: NodeKind) -> Answer<String>;

    fn delete(&self, path: &str) -> Answer<()>;

    fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<()>;

    fn read(&self, path: &str) -> Answer<Found>;

    fn exists(&self, path: &str) -> Answer<Option<Stat>>;

    fn children(&self, path: &str) -> Answer<Option<Names>>;

    /// As `read`, with a watch of its own: the default watcher belongs to the program. It is kept
    /// by the crate when there is no such node, too.
    fn read_with(&self, path: &str, watcher: Watcher) -> Answer<(Vec<u8>, Stat)>;

    /// As `children`, with a watch of its own.
    fn children_with(&self, path: &str, watcher: Watcher) -> Answer<Names>;

    /// Has the crate forget the watches by `read_with` on a node that is gone: nothing else would
    /// ever make it.
    fn forget(&self, path: &str) -> Answer<()>;

    /// Tells of every change of the connection, on the crate's own thread, under its lock.
    fn listen(&self, tell: Box<dyn Fn(HandleEvent) + Send>) -> Option<Unlisten>;

    /// Whether nothing in the handle takes requests any more, for good. There is no node at this path.
    fn is_dead(&self, path: &str) -> bool;

    /// Whether the program has let go of it: it is kept for nobody but us.
    fn is_orphan(&self) -> bool;

    /// No two that live have the same.
    fn address(&self) -> Option<usize>;

    /// Tries again to close handles that no thread could be had for.
    fn retry(&self) {}
}
