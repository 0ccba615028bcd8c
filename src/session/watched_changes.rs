//! The changes of something that a caller observes, one call at a time.

use super::client::Client;
use super::connection::{Answer, Fault};
use super::watch_loop::{View, WatchLoop, worth_asking};
use crate::error::Result;
use crate::rt::Deadline;

/// See the module. What changes between two calls is found by the next one.
pub(crate) struct WatchedChanges<T> {
    watch_loop: WatchLoop,
    /// Whether two looks found the same.
    is_same: fn(&T, &T) -> bool,
    /// Whether the first look in a session begins with a `sync`: its server may lag behind the one
    /// that was asked last.
    catches_up: bool,
    /// The session of the last look.
    session: i64,
    told: Option<T>,
}

impl<T: Clone + Send + 'static> WatchedChanges<T> {
    pub(crate) fn new(
        client: &Client,
        catches_up: bool,
        is_same: fn(&T, &T) -> bool,
    ) -> WatchedChanges<T> {
        let watch_loop = WatchLoop::new(client, None);
        WatchedChanges { watch_loop, is_same, catches_up, session: 0, told: None }
    }

    pub(crate) fn client(&self) -> &Client {
        self.watch_loop.client()
    }

    /// Whether the value returned last is the present one, as far as the connected server knows.
    pub(crate) fn is_current(&self) -> bool {
        self.told.is_some() && self.watch_loop.is_current()
    }

    /// Returns the present value as soon as it differs from the one returned last; at the first
    /// call at once. `None` if nothing has changed by the deadline. `look` reads the value and
    /// watches it.
    pub(crate) fn next_until(
        &mut self,
        deadline: Deadline,
        look: impl FnOnce(&mut View<'_>) -> Answer<T> + Clone + Send + 'static,
    ) -> Result<Option<Answer<T>>> {
        let ask_until = worth_asking(deadline);
        loop {
            let Some(session) = self.watch_loop.session(ask_until)? else { return Ok(None) };
            if self.watch_loop.is_up_to_date(&session) && !self.watch_loop.changed(deadline)? {
                return Ok(None);
            }
            let look = look.clone();
            let syncs = self.catches_up && self.session != session.id();
            let look = move |view: &mut View<'_>| {
                if syncs {
                    view.sync()?;
                }
                look(view)
            };
            match self.watch_loop.look(&session, ask_until, look)? {
                None => return Ok(None),
                Some(Ok(found)) => {
                    self.session = session.id();
                    if !self.told.as_ref().is_some_and(|told| (self.is_same)(told, &found)) {
                        self.told = Some(found.clone());
                        return Ok(Some(Ok(found)));
                    }
                }
                // A node has just been deleted, or the connection lost: look again.
                Some(Err(Fault::NoNode | Fault::ConnectionLoss | Fault::SessionEnded)) => {}
                Some(Err(fault)) => return Ok(Some(Err(fault))),
            }
        }
    }
}
