//! Reports what something is whenever that changes.

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

/// What something is, whenever that changes: see [`SharedValue::observe`](crate::SharedValue::observe).
///
/// As an iterator it blocks until there is a change, and ends after an error, which is one that
/// waiting cannot mend. It has no thread: what happens between two calls is looked up by the next
/// one, and of several changes only the last is seen.
pub struct Changes<T> {
    target: NodeConfig,
    purpose: Purpose,
    look: Look<T>,
    observation: WatchedChanges<T>,
    over: bool,
}

impl<T: Clone + PartialEq + Send + 'static> Changes<T> {
    /// `look` says what there is, and has it watched.
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

    /// What there is now, as soon as it is not what the last call gave; at the first call at once.
    /// `None` when nothing has changed for so long. A request that is under way may take up to
    /// 50 ms more.
    ///
    /// It goes on over lost connections and sessions. A server that lags behind the others is slow
    /// to tell, but what it tells never goes back in time.
    ///
    /// # Errors
    ///
    /// What waiting cannot mend: [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ,
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed), [`Closed`](crate::ErrorKind::Closed),
    /// [`System`](crate::ErrorKind::System), [`Server`](crate::ErrorKind::Server).
    pub fn next_for(&mut self, limit: Duration) -> Result<Option<T>> {
        self.next_until(Deadline::after(limit))
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
