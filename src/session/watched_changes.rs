//! The changes of something that a caller observes, one call at a time.

use super::client::Client;
use super::connection::{Answer, Fault};
use super::wait::Wait;
use super::watch_loop::{View, WatchLoop, worth_asking};
use crate::error::Result;

/// See the module. What changes between two calls is found by the next one.
pub(crate) struct WatchedChanges<T> {
    watch_loop: WatchLoop,
    /// Whether two looks found the same.
    is_same: fn(&T, &T) -> bool,
    /// The session of the last look that was answered. The first look in another one begins with a
    /// `sync`: its server may lag behind the one that was asked last.
    session: i64,
    told: Option<T>,
}

impl<T: Clone> WatchedChanges<T> {
    pub(crate) fn new(client: &Client, is_same: fn(&T, &T) -> bool) -> WatchedChanges<T> {
        let watch_loop = WatchLoop::new(client, None);
        WatchedChanges { watch_loop, is_same, session: 0, told: None }
    }

    /// The value returned last.
    pub(crate) fn told(&self) -> Option<&T> {
        self.told.as_ref()
    }

    /// Whether the value returned last is the present one, as far as the connected server knows.
    pub(crate) fn is_current(&self) -> bool {
        self.told.is_some() && self.watch_loop.is_current()
    }

    /// Returns the present value as soon as it differs from the one returned last; at the first
    /// call at once. `None` if nothing has changed when the wait is over. `look` reads the value and
    /// watches it. Without `waits`, it only looks once whether the value is the same.
    pub(crate) fn next_within(
        &mut self,
        wait: &Wait,
        waits: bool,
        look: impl Fn(&mut View<'_>) -> Answer<T>,
    ) -> Result<Option<Answer<T>>> {
        self.watch_loop.heed(wait.cancel());
        let next = self.find_next(wait, waits, look);
        self.watch_loop.heed(None);
        next
    }

    fn find_next(
        &mut self,
        wait: &Wait,
        waits: bool,
        look: impl Fn(&mut View<'_>) -> Answer<T>,
    ) -> Result<Option<Answer<T>>> {
        let deadline = wait.until();
        let ask_until = worth_asking(deadline);
        loop {
            let Some(session) = self.watch_loop.session(ask_until)? else { return Ok(None) };
            if self.watch_loop.is_up_to_date(&session)
                && (!waits || !self.watch_loop.changed(deadline)?)
            {
                return Ok(None);
            }
            let syncs = self.session != session.id();
            let found = self.watch_loop.look(&session, ask_until, |view| {
                if syncs {
                    view.session.sync()?;
                }
                look(view)
            });
            match found {
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
