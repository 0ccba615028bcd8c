//! Reports the state of a node whenever it changes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::node_config::{NodeConfig, Purpose};
use crate::error::Result;
use crate::rt::Deadline;
use crate::session::connection::Answer;
use crate::session::watch_loop::View;
use crate::session::watched_changes::WatchedChanges;

type Look<T> = Arc<dyn Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync>;

/// Reports a state whenever it changes: see
/// [`SharedValue::observe`](crate::SharedValue::observe).
///
/// As an iterator it blocks until there is a change, and ends after an error, which is always one
/// that waiting does not resolve. It has no thread: each call looks up what has happened since the
/// one before, and of several changes only the last is seen.
pub struct Changes<T> {
    target: NodeConfig,
    purpose: Purpose,
    look: Look<T>,
    observation: WatchedChanges<T>,
    over: bool,
}

impl<T: Clone + PartialEq + Send + 'static> Changes<T> {
    /// `look` reads the state, and watches it.
    pub(crate) fn new(
        target: &NodeConfig,
        purpose: Purpose,
        look: impl Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync + 'static,
    ) -> Changes<T> {
        Changes {
            target: target.clone(),
            purpose,
            look: Arc::new(look),
            observation: WatchedChanges::new(&target.client, true, T::eq),
            over: false,
        }
    }

    /// Waits at most `limit` for another state than at the last call, and returns it.
    ///
    /// The first call returns the state at once. `None` if nothing has changed within `limit`. A
    /// request that is under way may take up to 50 ms more.
    ///
    /// Lost connections and sessions do not end the wait. A server that lags behind the others
    /// reports changes late, but the reported states never go back in time.
    ///
    /// # Errors
    ///
    /// Only what waiting does not resolve: [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ,
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed), [`Closed`](crate::ErrorKind::Closed),
    /// [`System`](crate::ErrorKind::System), [`Server`](crate::ErrorKind::Server).
    pub fn next_for(&mut self, limit: Duration) -> Result<Option<T>> {
        self.next_until(Deadline::after(limit))
    }

    /// Whether what the last call returned still holds, as far as the connected server knows.
    ///
    /// False before the first call, after a change that the next call will return, and without a
    /// connection: what was returned last may be out of date then. Sends no request; a broken
    /// connection is noticed after a third of the session timeout at the latest.
    pub fn is_current(&self) -> bool {
        self.observation.is_current()
    }

    fn next_until(&mut self, deadline: Deadline) -> Result<Option<T>> {
        let (whole, look) = (self.target.whole()?, Arc::clone(&self.look));
        let look = move |view: &mut View<'_>| look(view, &whole);
        let next = self.observation.next_until(deadline, look)?;
        next.transpose().map_err(|fault| self.target.refused(&fault, self.purpose))
    }
}

impl<T: Clone + PartialEq + Send + 'static> Iterator for Changes<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.over {
            return None;
        }
        let next = self.next_until(Deadline::NEVER);
        self.over = next.is_err();
        // Without a deadline there is no giving up.
        next.transpose()
    }
}

impl<T> fmt::Debug for Changes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("target", &self.target).finish_non_exhaustive()
    }
}
