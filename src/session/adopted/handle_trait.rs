//! What a program's handle can do, be it of the `zookeeper` crate or simulated.

use std::fmt;

use crate::acl::Acl;
use crate::session::connection::{Answer, Found, Names, NodeKind};
use crate::wire_values::Stat;

/// What the crate reports about the handle's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleEvent {
    /// A server serves the session.
    Connected,
    /// No server serves it.
    Lost,
    /// The session has expired; the handle is about to take another one.
    Expired,
    /// The handle was closed, or has closed itself, for good.
    Closed,
    AuthFailed,
}

/// Called on the node's event. It may also be dropped uncalled, or kept and never called.
pub(crate) type Watcher = Box<dyn Fn() + Send>;

/// Ends the listening.
pub(crate) type Unlisten = Box<dyn FnOnce()>;

/// See the module. A call may take any length of time.
pub(crate) trait Handle: fmt::Debug + Send + Sync {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: NodeKind) -> Answer<String>;

    fn delete(&self, path: &str, version: Option<i32>) -> Answer<()>;

    fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<Stat>;

    fn acl(&self, path: &str) -> Answer<Vec<Acl>>;

    fn set_acl(&self, path: &str, acl: &[Acl]) -> Answer<Stat>;

    fn read(&self, path: &str) -> Answer<Found>;

    fn exists(&self, path: &str) -> Answer<Option<Stat>>;

    fn children(&self, path: &str) -> Answer<Option<Names>>;

    /// As `read`, with a watcher of its own: the default watcher belongs to the program. The crate
    /// keeps the watcher even if the node does not exist.
    fn read_with(&self, path: &str, watcher: Watcher) -> Answer<(Vec<u8>, Stat)>;

    /// As `exists`, with a watcher of its own, which the crate keeps as that of `read_with`.
    fn exists_with(&self, path: &str, watcher: Watcher) -> Answer<Option<Stat>>;

    /// As `children`, with a watcher of its own, which the crate keeps as that of `read_with`.
    fn children_with(&self, path: &str, watcher: Watcher) -> Answer<Names>;

    /// Makes the crate drop the watchers on a node that is gone; otherwise it would keep them for
    /// ever.
    fn forget(&self, path: &str) -> Answer<()>;

    /// Calls `tell` on every change of the connection, on the crate's own thread, under the crate's
    /// lock.
    fn listen(&self, tell: Box<dyn Fn(HandleEvent) + Send>) -> Option<Unlisten>;

    /// Whether the handle takes no more requests, for good. `path` must be one at which no node
    /// exists.
    fn is_dead(&self, path: &str) -> bool;

    /// Whether the program has dropped the handle, and only this client keeps it.
    fn is_orphan(&self) -> bool;

    /// Identifies the handle: no two that exist at the same time have the same address.
    fn address(&self) -> Option<usize>;

    /// Retries to close handles for which no thread could be started.
    fn retry(&self) {}
}
