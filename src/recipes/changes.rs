//! Going on looking at something.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::node::{Node, Purpose};
use crate::error::Result;
use crate::rt::Deadline;
use crate::session::connection::{Answer, Fault};
use crate::session::watch_loop::{View, WatchLoop, worth_asking};

type Look<T> = Arc<dyn Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync>;

/// What something is, whenever that changes: see [`SharedValue::observe`](crate::SharedValue::observe).
///
/// As an iterator it blocks until there is a change, and ends after an error, which is one that
/// waiting cannot mend. It has no thread: what happens between two calls is looked up by the next
/// one, and of several changes only the last is seen.
pub struct Changes<T> {
    place: Node,
    purpose: Purpose,
    look: Look<T>,
    watch_loop: WatchLoop,
    /// In which it was looked at last.
    session: i64,
    told: Option<T>,
    over: bool,
}

impl<T: Clone + PartialEq + Send + 'static> Changes<T> {
    /// `look` says what there is, and has it watched.
    pub(crate) fn new(
        place: &Node,
        purpose: Purpose,
        look: impl Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync + 'static,
    ) -> Changes<T> {
        Changes {
            place: place.clone(),
            purpose,
            look: Arc::new(look),
            watch_loop: WatchLoop::new(&place.client, None),
            session: 0,
            told: None,
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
        let (whole, ask_until) = (self.place.whole()?, worth_asking(deadline));
        loop {
            let Some(session) = self.watch_loop.session(ask_until)? else { return Ok(None) };
            if self.watch_loop.is_up_to_date(&session) && !self.watch_loop.changed(deadline)? {
                return Ok(None);
            }
            let (look, whole) = (Arc::clone(&self.look), whole.clone());
            // Another session's server may lag behind the one that was asked last.
            let is_new = self.session != session.id();
            let look = move |view: &mut View<'_>| {
                if is_new {
                    view.sync()?;
                }
                look(view, &whole)
            };
            match self.watch_loop.look(&session, ask_until, look)? {
                None => return Ok(None),
                Some(Ok(found)) => {
                    self.session = session.id();
                    if self.told.as_ref() != Some(&found) {
                        self.told = Some(found.clone());
                        return Ok(Some(found));
                    }
                }
                // Something has vanished just now, or the connection has.
                Some(Err(Fault::NoNode | Fault::ConnectionLoss | Fault::SessionEnded)) => {}
                Some(Err(fault)) => return Err(self.place.refused(&fault, self.purpose)),
            }
        }
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
        f.debug_struct("Changes").field("place", &self.place).finish_non_exhaustive()
    }
}
