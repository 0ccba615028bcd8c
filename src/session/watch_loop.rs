//! Looks at nodes, watches what it saw, and looks again when something changes, over lost
//! connections and sessions.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::cancel::Cancel;
use super::client::Client;
use super::client_core::{Interrupted, Patience};
use super::connection::{Answer, Fault, Names, Stat};
use super::notify::{Signal, Subscription, Waiter};
use super::session::{Session, rejected};
use super::status::Usable;
use crate::error::Result;
use crate::rt::{AtomicBool, Deadline};
use crate::session_notice::End;

/// A request may exceed a deadline by this much, so that even a very short time limit allows an
/// attempt, and so that most of what an attempt leaves behind is deleted when it returns.
pub(crate) const GRACE: Duration = Duration::from_millis(50);

/// By when requests must be answered, so that everything is over by the deadline, or by [`GRACE`]
/// from now if that is later.
pub(crate) fn worth_asking(deadline: Deadline) -> Deadline {
    match (deadline.instant(), Deadline::after(GRACE).instant()) {
        (Some(end), Some(soon)) => Deadline::at(end.max(soon)),
        _ => deadline,
    }
}

/// See the module. `None` from a method means that the time was over, or that the wait was
/// cancelled.
pub(crate) struct WatchLoop {
    client: Client,
    waiter: Waiter,
    /// Given with whatever ends a wait.
    bell: Signal,
    cancel: Option<(Cancel, Subscription)>,
    session: Option<(Arc<Session>, Subscription)>,
    seen: Option<LastLook>,
    /// Whether a look of [`find`](WatchLoop::find) was answered; and whether the latest was not.
    was_answered: bool,
    is_unanswered: bool,
}

/// What has been seen, until it changes.
struct LastLook {
    connection: u64,
    review: u64,
    changed: Arc<AtomicBool>,
    _watches: Vec<Subscription>,
}

impl WatchLoop {
    pub(crate) fn new(client: &Client, cancel: Option<&Cancel>) -> WatchLoop {
        let waiter = Waiter::new();
        let bell = waiter.bell();
        WatchLoop::with(client, cancel, waiter, bell)
    }

    /// One that also gives this signal whenever something changes, also while nobody waits.
    pub(crate) fn telling(client: &Client, cancel: Option<&Cancel>, also: Signal) -> WatchLoop {
        let waiter = Waiter::new();
        let ring = waiter.bell();
        let bell: Signal = Arc::new(move || {
            ring();
            also();
        });
        WatchLoop::with(client, cancel, waiter, bell)
    }

    fn with(client: &Client, cancel: Option<&Cancel>, waiter: Waiter, bell: Signal) -> WatchLoop {
        let mut watch_loop = WatchLoop {
            client: client.clone(),
            waiter,
            bell,
            cancel: None,
            session: None,
            seen: None,
            was_answered: false,
            is_unanswered: false,
        };
        watch_loop.heed(cancel);
        watch_loop
    }

    /// Lets this token, and no other one, end the waits from now on.
    pub(crate) fn heed(&mut self, cancel: Option<&Cancel>) {
        let heed = |cancel: &Cancel| (cancel.clone(), cancel.subscribe(self.bell()));
        self.cancel = cancel.map(heed);
    }

    pub(crate) fn cancel(&self) -> Option<&Cancel> {
        self.cancel.as_ref().map(|(cancel, _)| cancel)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel().is_some_and(Cancel::is_cancelled)
    }

    /// Whether any look of [`find`](WatchLoop::find) was answered.
    pub(crate) fn was_answered(&self) -> bool {
        self.was_answered
    }

    /// Whether the latest look of [`find`](WatchLoop::find) had no answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.is_unanswered
    }

    /// Waits for a session that a server serves.
    pub(crate) fn session(&mut self, until: Deadline) -> Result<Option<Arc<Session>>> {
        let cancel = self.cancel.as_ref().map(|(cancel, _)| cancel);
        let is_cancelled = || cancel.is_some_and(Cancel::is_cancelled);
        loop {
            if let Some((session, _)) = &self.session {
                match session.status().until_usable(&self.waiter, until, is_cancelled) {
                    Usable::Now => return Ok(Some(Arc::clone(session))),
                    Usable::NotInTime => return Ok(None),
                    Usable::Never(end) => {
                        // Each further session would end in the same way.
                        let rejection =
                            (end == End::AuthFailed).then(|| rejected(session.info().trouble));
                        (self.session, self.seen) = (None, None);
                        if let Some(rejection) = rejection {
                            return Err(rejection);
                        }
                    }
                }
            }
            let core = self.client.core();
            match core.session(&self.waiter, until, is_cancelled, Patience::UntilDeadline) {
                Ok(session) => {
                    let subscription = session.status().subscribe(Arc::clone(&self.bell));
                    self.session = Some((session, subscription));
                }
                Err(Interrupted::GaveUp) => return Ok(None),
                Err(Interrupted::Failed(error)) => return Err(error),
            }
        }
    }

    /// Asks once, in this session: see [`Session::ask`].
    pub(crate) fn ask<T>(
        &self,
        session: &Session,
        until: Deadline,
        question: impl FnOnce(&Session) -> Answer<T>,
    ) -> Option<Answer<T>> {
        session.ask(until, self.cancel(), question)
    }

    /// Looks once, in this session. The watches that this sets last until the next look.
    pub(crate) fn look<T>(
        &mut self,
        session: &Session,
        until: Deadline,
        look: impl FnOnce(&mut View<'_>) -> Answer<T>,
    ) -> Option<Answer<T>> {
        let (changed, bell) = (Arc::new(AtomicBool::new(false)), self.bell());
        let flag = Arc::clone(&changed);
        let signal: Signal = Arc::new(move || {
            flag.store(true, Ordering::SeqCst);
            bell();
        });
        // A change of the connection tells that watches were lost.
        let phase = session.status().now();
        let answer = self.ask(session, until, |session| {
            let mut view = View { session, signal, watches: Vec::new() };
            look(&mut view).map(|found| (found, view.watches))
        });
        answer.map(|answer| {
            answer.map(|(found, watches)| {
                let (connection, review) = (phase.connection, phase.review());
                self.seen = Some(LastLook { connection, review, changed, _watches: watches });
                found
            })
        })
    }

    /// Looks, and again after each change of what it watches, until `look` finds something. Waits
    /// for changes until `until`, and for answers until `ask_until`.
    pub(crate) fn find<T>(
        &mut self,
        until: Deadline,
        ask_until: Deadline,
        mut look: impl FnMut(&mut View<'_>) -> Answer<Option<T>>,
    ) -> Result<Option<Answer<T>>> {
        loop {
            let Some(session) = self.session(ask_until)? else { return Ok(None) };
            self.is_unanswered = true;
            match self.look(&session, ask_until, &mut look) {
                None => return Ok(None),
                Some(Ok(Some(found))) => return Ok(Some(Ok(found))),
                Some(Ok(None)) => {
                    (self.was_answered, self.is_unanswered) = (true, false);
                    if !self.changed(until)? {
                        return Ok(None);
                    }
                }
                Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => {
                    if self.is_over(ask_until) {
                        return Ok(None);
                    }
                }
                Some(Err(fault)) => return Ok(Some(Err(fault))),
            }
        }
    }

    /// Waits until what was seen last may have changed; false when that was not in time.
    pub(crate) fn changed(&mut self, until: Deadline) -> Result<bool> {
        loop {
            // Without a session it is unknown whether something has changed.
            let Some(session) = self.session(until)? else { return Ok(false) };
            if !self.is_up_to_date(&session) {
                return Ok(true);
            }
            if self.is_over(until) {
                return Ok(false);
            }
            self.waiter.wait(until);
        }
    }

    /// Waits until then, or until it is cancelled.
    pub(crate) fn rest(&self, until: Deadline) {
        self.has_come(until, || false);
    }

    /// The bell to ring when a condition of the caller's own may have come true: see `has_come`.
    pub(crate) fn bell(&self) -> Signal {
        Arc::clone(&self.bell)
    }

    /// Waits until a condition of the caller's own is true, for which the bell is rung; false if
    /// that was not in time.
    pub(crate) fn has_come(&self, until: Deadline, mut has_come: impl FnMut() -> bool) -> bool {
        loop {
            if has_come() {
                return true;
            }
            if self.is_over(until) {
                return false;
            }
            self.waiter.wait(until);
        }
    }

    pub(crate) fn is_over(&self, until: Deadline) -> bool {
        self.is_cancelled() || until.has_passed()
    }

    /// Whether a connected server would have reported a change of what was seen.
    pub(crate) fn is_current(&self) -> bool {
        let session = self.session.as_ref().map(|(session, _)| session);
        session.is_some_and(|session| {
            session.status().now().is_usable() && self.is_up_to_date(session)
        })
    }

    pub(crate) fn is_up_to_date(&self, session: &Session) -> bool {
        let phase = session.status().now();
        self.seen.as_ref().is_some_and(|seen| {
            !seen.changed.load(Ordering::SeqCst)
                && (seen.connection, seen.review) == (phase.connection, phase.review())
        })
    }
}

impl fmt::Debug for WatchLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchLoop")
    }
}

/// What one look can read. Its methods watch what they read; the session's verbs do not.
pub(crate) struct View<'a> {
    pub(crate) session: &'a Session,
    signal: Signal,
    watches: Vec<Subscription>,
}

impl View<'_> {
    fn watch(&mut self, path: &str) {
        self.watches.push(self.session.watches().subscribe(path, Arc::clone(&self.signal)));
    }

    /// Reads a node's data and watches the node. A missing node is not watched.
    pub(crate) fn watch_node(&mut self, path: &str) -> Answer<Option<(Vec<u8>, Stat)>> {
        self.watch(path);
        self.session.data(path, true)
    }

    /// Reads a node's data and watches the node; if it is missing, watches for its creation.
    pub(crate) fn watch_node_or_making(&mut self, path: &str) -> Answer<Option<(Vec<u8>, Stat)>> {
        loop {
            if let Some(found) = self.watch_node(path)? {
                return Ok(Some(found));
            }
            if !self.session.await_making(path)? {
                return Ok(None);
            }
        }
    }

    /// Reads the names of a node's children and watches them. A missing node is not watched.
    pub(crate) fn watch_names(&mut self, path: &str) -> Answer<Option<Names>> {
        self.watch(path);
        self.session.names(path, true)
    }

    /// Reads the names of a node's children, with its stat, and watches them; if the node is missing,
    /// watches for its creation.
    pub(crate) fn watch_names_or_making(&mut self, path: &str) -> Answer<Option<(Names, Stat)>> {
        loop {
            self.watch(path);
            if let Some(found) = self.session.names_and_stat(path, true)? {
                return Ok(Some(found));
            }
            if !self.session.await_making(path)? {
                return Ok(None);
            }
        }
    }
}
