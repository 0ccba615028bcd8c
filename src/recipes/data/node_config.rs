//! What the recipes that are not locks have in common: path and ACL of their node, and how they
//! send requests about it.

use std::fmt;

use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::session::Purpose;
use crate::session::{Answer, Call, Changes, Client, Fault, Session, Stop, View, Wait, WatchLoop};

/// See the module.
#[derive(Clone)]
pub(crate) struct NodeConfig {
    pub(crate) client: Client,
    /// As the client names it; a bad name is reported by the first call that needs it.
    node: Result<String>,
    /// The same for error texts, even if ZooKeeper does not allow the path.
    shown: String,
    pub(crate) acl: Vec<Acl>,
}

impl NodeConfig {
    pub(crate) fn new(client: Client, base: &str, name: &str) -> NodeConfig {
        let shown = path::join(base, name);
        NodeConfig { client, node: path::lock_path(base, name), shown, acl: vec![Acl::open()] }
    }

    /// Describes the node with this absolute path.
    pub(crate) fn at(client: Client, path: &str) -> NodeConfig {
        let node = path::check_absolute(path).map(|()| path.to_owned());
        NodeConfig { client, node, shown: path.to_owned(), acl: vec![Acl::open()] }
    }

    /// The path as the client names it, even if ZooKeeper does not allow it.
    pub(crate) fn path(&self) -> &str {
        &self.shown
    }

    pub(crate) fn node(&self) -> Result<&str> {
        self.node.as_deref().map_err(Error::clone)
    }

    /// The node as the server knows it.
    pub(crate) fn whole(&self) -> Result<String> {
        Ok(self.client.core().whole(self.node()?))
    }

    /// Asks until there is an answer, within the connect timeout. A request without an answer may
    /// have taken effect.
    pub(crate) fn ask<T>(
        &self,
        purpose: Purpose,
        mut question: impl FnMut(&Session, &str) -> Answer<T>,
    ) -> Result<T> {
        let (core, whole) = (self.client.core(), self.whole()?);
        purpose.ask(core, self.node()?, |session| question(session, &whole))
    }

    /// A call that waits as long as this.
    pub(crate) fn call(&self, wait: &Wait) -> Call {
        Call::new(self.client.core(), wait)
    }

    /// Looks until it finds something, again after each change of what the look watches. `None` if
    /// the time was over first, and a look was answered but found nothing; without such a look it
    /// is an error.
    pub(crate) fn find<T>(
        &self,
        purpose: Purpose,
        call: Call,
        look: impl FnMut(&mut View<'_>, &str) -> Answer<Option<T>>,
    ) -> Result<Option<T>> {
        let is_known = |watch_loop: &WatchLoop| {
            watch_loop.was_answered() && !purpose.is_in_doubt(watch_loop.call.is_unanswered())
        };
        self.find_by(purpose, call, is_known, look)
    }

    /// Looks as `find` does, but returns `None` also if no look was answered in time.
    pub(crate) fn find_or_none<T>(
        &self,
        purpose: Purpose,
        call: Call,
        look: impl FnMut(&mut View<'_>, &str) -> Answer<Option<T>>,
    ) -> Result<Option<T>> {
        self.find_by(purpose, call, |_| true, look)
    }

    fn find_by<T>(
        &self,
        purpose: Purpose,
        call: Call,
        is_nothing: impl Fn(&WatchLoop) -> bool,
        mut look: impl FnMut(&mut View<'_>, &str) -> Answer<Option<T>>,
    ) -> Result<Option<T>> {
        let (node, whole) = (self.node()?, self.whole()?);
        let mut watch_loop = WatchLoop::new(call);
        match watch_loop.find(|view| look(view, &whole)) {
            Ok(found) => found.map(Some).map_err(|fault| self.refused(&fault, purpose)),
            Err(Stop::TimeOver) if is_nothing(&watch_loop) => Ok(None),
            Err(stop) => Err(purpose.stopped(stop, &watch_loop.call, node)),
        }
    }

    /// Observes what `look` reads about the node, and watches.
    pub(crate) fn observe<T: Clone + PartialEq + Send + 'static>(
        &self,
        purpose: Purpose,
        look: impl Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync + 'static,
    ) -> Changes<T> {
        Changes::new(&self.client, self.node.clone(), purpose, T::eq, look)
    }

    /// An error about this node.
    pub(crate) fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, message).on(self.node.as_deref().unwrap_or_default())
    }

    /// The error for a request that the server refuses, or that had no answer.
    pub(crate) fn refused(&self, fault: &Fault, purpose: Purpose) -> Error {
        purpose.refused(fault, self.node.as_deref().unwrap_or_default())
    }
}

impl fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeConfig")
            .field("node", &self.node)
            .field("acl", &self.acl)
            .field("client", &self.client)
            .finish()
    }
}

/// Makes a recipe's `new`, and its settings. The recipe has its `NodeConfig` in the field `target`.
macro_rules! placed {
    ($recipe:ident, $what:literal $(, $needs:literal)?) => {
        impl $recipe {
            #[doc = concat!($what, ".")]
            ///
            /// Names are checked as by [`DistributedLock::new`](crate::DistributedLock::new).
            pub fn new(
                zk: impl Into<crate::Client>,
                base: impl AsRef<str>,
                name: impl AsRef<str>,
            ) -> $recipe {
                let (base, name) = (base.as_ref(), name.as_ref());
                let target = $crate::recipes::data::NodeConfig::new(zk.into(), base, name);
                $recipe { target }
            }

            /// Returns the path `base/name`.
            pub fn path(&self) -> &str {
                self.target.path()
            }

            /// Sets the ACL of every new node, including missing parents. Default
            /// [`Acl::open`](crate::Acl::open).
            $(
                ///
                #[doc = $needs]
            )?
            #[must_use = "the value is changed, and returned"]
            pub fn acl(mut self, acl: impl Into<Vec<crate::Acl>>) -> $recipe {
                self.target.acl = acl.into();
                self
            }
        }
    };
}

pub(crate) use placed;
