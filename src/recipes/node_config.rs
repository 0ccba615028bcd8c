//! What the recipes that are not locks have in common: path and ACL of their node, and how they
//! send requests about it.

use std::fmt;
use std::time::Instant;

use crate::acl::Acl;
pub(crate) use crate::contend::ask_until_answered::Purpose;
use crate::contend::ask_until_answered::ask;
use crate::contend::changes::Changes;
use crate::contend::errors::cancelled;
use crate::contend::held_node::DROP_LIMIT;
use crate::error::{Error, Result};
use crate::path;
use crate::rt::Deadline;
use crate::session::cancel::Cancel;
use crate::session::client::Client;
use crate::session::connection::{Answer, Fault};
use crate::session::session::Session;
use crate::session::wait::Wait;
use crate::session::watch_loop::{GRACE, View, WatchLoop, worth_asking};

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

/// How long a call may take, with the requests that it makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimits<'a> {
    pub(crate) until: Deadline,
    /// By when all requests must be answered, however many there are.
    pub(crate) ask_until: Deadline,
    pub(crate) cancel: Option<&'a Cancel>,
}

impl<'a> From<&'a Wait> for WaitLimits<'a> {
    fn from(wait: &'a Wait) -> WaitLimits<'a> {
        let until = wait.until();
        WaitLimits { until, ask_until: worth_asking(until), cancel: wait.cancel() }
    }
}

impl WaitLimits<'_> {
    pub(crate) const FOREVER: WaitLimits<'static> =
        WaitLimits { until: Deadline::NEVER, ask_until: Deadline::NEVER, cancel: None };

    pub(crate) fn until(until: Deadline) -> WaitLimits<'static> {
        WaitLimits { until, ask_until: worth_asking(until), cancel: None }
    }

    /// The limit for cleaning up after a wait like this one.
    pub(crate) fn parting(self) -> WaitLimits<'static> {
        let grace = |end: Instant| end.checked_add(GRACE).map_or(Deadline::NEVER, Deadline::at);
        let until = self.until.instant().map_or(Deadline::NEVER, grace);
        let until = until.earlier(Deadline::after(DROP_LIMIT));
        WaitLimits { until, ask_until: until, cancel: None }
    }

    /// Fails if the wait is cancelled.
    pub(crate) fn check(self, node: &str) -> Result<()> {
        if self.cancel.is_some_and(Cancel::is_cancelled) { Err(cancelled(node)) } else { Ok(()) }
    }

    /// What a call returns if it found nothing before the time was over.
    pub(crate) fn over<T>(self, node: &str) -> Result<Option<T>> {
        self.check(node).map(|()| None)
    }
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
        let whole = self.whole()?;
        ask(&self.client, self.node()?, purpose, |session| question(session, &whole))
    }

    /// Looks until it finds something, again after each change of what the look watches. `None` if
    /// the time was over first, and a look was answered but found nothing; without such a look it
    /// is an error.
    pub(crate) fn find<T>(
        &self,
        purpose: Purpose,
        wait: WaitLimits<'_>,
        look: impl FnMut(&mut View<'_>, &str) -> Answer<Option<T>>,
    ) -> Result<Option<T>> {
        let mut watch_loop = self.watch_loop(wait);
        let found = self.find_by(&mut watch_loop, purpose, wait, look)?;
        let is_unanswered = watch_loop.is_unanswered();
        let is_known = watch_loop.was_answered() && !purpose.is_in_doubt(is_unanswered);
        if found.is_none() && !is_known {
            return Err(purpose.unanswered(self.client.core(), is_unanswered, self.node()?));
        }
        Ok(found)
    }

    /// Looks as `find` does, but returns `None` also if no look was answered in time.
    pub(crate) fn find_or_none<T>(
        &self,
        purpose: Purpose,
        wait: WaitLimits<'_>,
        look: impl FnMut(&mut View<'_>, &str) -> Answer<Option<T>>,
    ) -> Result<Option<T>> {
        self.find_by(&mut self.watch_loop(wait), purpose, wait, look)
    }

    fn find_by<T>(
        &self,
        watch_loop: &mut WatchLoop,
        purpose: Purpose,
        wait: WaitLimits<'_>,
        mut look: impl FnMut(&mut View<'_>, &str) -> Answer<Option<T>>,
    ) -> Result<Option<T>> {
        let whole = self.whole()?;
        match watch_loop.find(wait.until, wait.ask_until, |view| look(view, &whole))? {
            Some(found) => found.map(Some).map_err(|fault| self.refused(&fault, purpose)),
            None => {
                let was_asked = watch_loop.is_unanswered();
                let in_doubt = |error| purpose.in_doubt_if(was_asked, error);
                wait.over(self.node()?).map_err(in_doubt)
            }
        }
    }

    pub(crate) fn watch_loop(&self, wait: WaitLimits<'_>) -> WatchLoop {
        WatchLoop::new(&self.client, wait.cancel)
    }

    /// Observes what `look` reads about the node, and watches.
    pub(crate) fn observe<T: Clone + PartialEq + Send + 'static>(
        &self,
        purpose: Purpose,
        look: impl Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync + 'static,
    ) -> Changes<T> {
        Changes::new(&self.client, self.node.clone(), purpose, T::eq, look)
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

/// Makes a recipe's `new` and builder. The recipe has its `NodeConfig` in the field `target`.
macro_rules! placed {
    ($recipe:ident, $builder:ident, $what:literal $(, $needs:literal)?) => {
        impl $recipe {
            #[doc = concat!($what, ", with the default settings.")]
            ///
            /// Never fails: the first call that needs the name reports one that ZooKeeper does not
            /// allow, as [`InvalidName`](crate::ErrorKind::InvalidName). `base` is an absolute
            /// path, `name` one component of a path; together at most 1,024 bytes.
            pub fn new(
                zk: impl Into<crate::Client>,
                base: impl AsRef<str>,
                name: impl AsRef<str>,
            ) -> $recipe {
                $recipe::builder(zk, base, name).build()
            }

            /// Returns a builder, to change the settings: see `new`.
            pub fn builder(
                zk: impl Into<crate::Client>,
                base: impl AsRef<str>,
                name: impl AsRef<str>,
            ) -> $builder {
                let target =
                    $crate::recipes::node_config::NodeConfig::new(zk.into(), base.as_ref(), name.as_ref());
                $builder { recipe: $recipe { target } }
            }
        }

        #[doc = concat!("Settings of a [`", stringify!($recipe), "`].")]
        #[derive(Clone, Debug)]
        #[must_use = "a builder does nothing before `build`"]
        pub struct $builder {
            recipe: $recipe,
        }

        impl $builder {
            /// Sets the ACL of every node that is created, also of missing parents. Default
            /// [`Acl::open`](crate::Acl::open).
            $(
                ///
                #[doc = $needs]
            )?
            pub fn acl(mut self, acl: impl Into<Vec<crate::Acl>>) -> $builder {
                self.recipe.target.acl = acl.into();
                self
            }

            /// Builds the recipe with these settings.
            pub fn build(self) -> $recipe {
                self.recipe
            }
        }
    };
}

pub(crate) use placed;
