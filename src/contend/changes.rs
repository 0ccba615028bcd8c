//! Reports the state of something whenever it changes.

use std::fmt;
use std::sync::Arc;

use super::ask_until_answered::Purpose;
use super::errors::cancelled;
use crate::error::Result;
use crate::session::client::Client;
use crate::session::connection::Answer;
use crate::session::wait::Wait;
use crate::session::watch_loop::View;
use crate::session::watched_changes::WatchedChanges;

type Look<T> = Arc<dyn Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync>;

/// Reports a state whenever it changes: who holds a lock or leads, the members of a group, or the
/// data of a node.
///
/// As an iterator it blocks until there is a change, and ends after an error, which is always one
/// that [ends every wait](crate::guide#what-ends-every-wait). It has no thread: each call looks up
/// what has happened since the one before, and of several changes only the last is seen.
///
/// It keeps the client's session open, as a lock does. [`Client::close`] ends a call that waits, with
/// [`Closed`](crate::ErrorKind::Closed): do that, or use a [`Cancel`](crate::Cancel), before you join
/// a thread that observes.
///
/// The reported states never go back in time, though a server that lags behind the others reports
/// changes late. Lost connections and sessions do not end it.
///
/// ```no_run
/// use std::time::Duration;
/// use zklock::{Change, Client, DistributedLock};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let mut holders = DistributedLock::new(&zk, "/locks", "nightly").observe();
/// println!("now {:?}", holders.latest()?);
/// match holders.next_within(Duration::from_secs(60))? {
///     Change::To(holders) => println!("then {holders:?}"),
///     Change::NotInTime => println!("still the same"),
/// }
/// # Ok::<(), zklock::Error>(())
/// ```
#[must_use = "it watches only while it is asked"]
pub struct Changes<T> {
    client: Client,
    node: Result<String>,
    purpose: Purpose,
    look: Look<T>,
    observation: WatchedChanges<T>,
    over: bool,
}

/// A new state, or none in time: the result of [`Changes::next_within`].
///
/// There is no third case, so a `match` needs no other arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// The new state.
    To(T),
    /// Nothing has changed in time.
    NotInTime,
}

impl<T> Change<T> {
    /// Returns the new state, if there is one.
    pub fn changed(self) -> Option<T> {
        match self {
            Change::To(state) => Some(state),
            Change::NotInTime => None,
        }
    }
}

impl<T: Clone + Send + 'static> Changes<T> {
    /// `look` reads the state of the node at this path, and watches it; `is_same` compares two
    /// states.
    pub(crate) fn new(
        client: &Client,
        node: Result<String>,
        purpose: Purpose,
        is_same: fn(&T, &T) -> bool,
        look: impl Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync + 'static,
    ) -> Changes<T> {
        Changes {
            client: client.clone(),
            node,
            purpose,
            look: Arc::new(look),
            observation: WatchedChanges::new(client, is_same),
            over: false,
        }
    }

    /// Waits for another state than at the last call, at most `wait`, and returns it.
    ///
    /// The first call returns the state at once. A request that is under way may take up to 50 ms
    /// more.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled) if the wait is cancelled; otherwise only what
    /// [ends every wait](crate::guide#what-ends-every-wait): [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ,
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed), [`Closed`](crate::ErrorKind::Closed),
    /// [`System`](crate::ErrorKind::System), [`Server`](crate::ErrorKind::Server).
    pub fn next_within(&mut self, wait: impl Into<Wait>) -> Result<Change<T>> {
        Ok(self.next_by(&wait.into(), true)?.map_or(Change::NotInTime, Change::To))
    }

    /// Returns the state, as far as the connected server knows.
    ///
    /// Looks again if what the last call returned is not [current](Changes::is_current), at most for
    /// the [connect timeout](crate::ClientBuilder::connect_timeout). In an outage it returns the state
    /// that was seen last.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) if no state was seen before, and no server answered;
    /// otherwise as [`next_within`](Changes::next_within).
    pub fn latest(&mut self) -> Result<&T> {
        if !self.is_current() {
            let limit = Wait::from(self.client.core().connect_timeout());
            self.next_by(&limit, false)?;
        }
        let (core, node) = (self.client.core(), self.node.as_deref().unwrap_or_default());
        self.observation.told().ok_or_else(|| self.purpose.unanswered(core, false, node))
    }

    /// Whether what the last call returned still holds, as far as the connected server knows.
    ///
    /// False before the first call, in a forked child, after a change that the next call will return, and without a
    /// connection: what was returned last may be out of date then. Sends no request; a broken
    /// connection is noticed after a third of the session timeout at the latest.
    pub fn is_current(&self) -> bool {
        !self.client.core().is_elsewhere() && self.observation.is_current()
    }

    fn next_by(&mut self, wait: &Wait, waits: bool) -> Result<Option<T>> {
        self.client.core().check_process()?;
        let node = self.node.clone()?;
        let (whole, look) = (self.client.core().whole(&node), Arc::clone(&self.look));
        let look = |view: &mut View<'_>| look(view, &whole);
        let next = self.observation.next_within(wait, waits, look)?;
        if next.is_none() && wait.is_cancelled() {
            return Err(cancelled(&node));
        }
        next.transpose().map_err(|fault| self.purpose.refused(&fault, &node))
    }
}

impl<T: Clone + Send + 'static> Iterator for Changes<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.over {
            return None;
        }
        let next = self.next_by(&Wait::FOREVER, true);
        self.over = next.is_err();
        // Without a deadline there is no giving up.
        next.transpose()
    }
}

impl<T> fmt::Debug for Changes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("node", &self.node).finish_non_exhaustive()
    }
}
