//! Looks at nodes, watches what it saw, and looks again when something changes, over lost
//! connections and sessions.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{Call, Stop};
use crate::error::Result;
use crate::rt::{AtomicBool, Signal};
use crate::session::connection::{Answer, Names};
use crate::session::requests::Session;
use crate::session::wait::Subscription;
use crate::wire_values::Stat;

/// See the module.
pub(crate) struct WatchLoop {
    pub(crate) call: Call,
    seen: Option<LastLook>,
    was_answered: bool,
}

/// What has been seen, until it changes.
struct LastLook {
    session: Weak<Session>,
    connection: u64,
    review: u64,
    changed: Arc<AtomicBool>,
    _watches: Vec<Subscription>,
}

impl WatchLoop {
    pub(crate) fn new(call: Call) -> WatchLoop {
        WatchLoop { call, seen: None, was_answered: false }
    }

    /// Whether any look of [`find`](WatchLoop::find) was answered.
    pub(crate) fn was_answered(&self) -> bool {
        self.was_answered
    }

    /// Looks once, in this session. The watches that this sets last until the next look.
    pub(crate) fn look<T>(
        &mut self,
        session: &Arc<Session>,
        look: impl FnOnce(&mut View<'_>) -> Answer<T>,
    ) -> Result<Answer<T>, Stop> {
        let (changed, bell) = (Arc::new(AtomicBool::new(false)), self.call.bell());
        let flag = Arc::clone(&changed);
        let signal: Signal = Arc::new(move || {
            flag.store(true, Ordering::SeqCst);
            bell();
        });
        // A change of the connection tells that watches were lost.
        let phase = session.status().now();
        let answer = self.call.ask_in(session, |session| {
            let mut view = View { session, signal, watches: Vec::new() };
            look(&mut view).map(|found| (found, view.watches))
        })?;
        Ok(answer.map(|(found, watches)| {
            self.seen = Some(LastLook {
                session: Arc::downgrade(session),
                connection: phase.connection,
                review: phase.review(),
                changed,
                _watches: watches,
            });
            found
        }))
    }

    /// Looks, and again after each change of what it watches, until `look` finds something.
    pub(crate) fn find<T>(
        &mut self,
        mut look: impl FnMut(&mut View<'_>) -> Answer<Option<T>>,
    ) -> Result<Answer<T>, Stop> {
        loop {
            let session = self.call.session()?;
            match self.look(&session, &mut look)? {
                Ok(Some(found)) => return Ok(Ok(found)),
                Ok(None) => {
                    self.was_answered = true;
                    self.until_changed()?;
                }
                Err(fault) if fault.is_loss() => {}
                Err(fault) => return Ok(Err(fault)),
            }
        }
    }

    /// Waits until what was seen last may have changed.
    pub(crate) fn until_changed(&mut self) -> Result<(), Stop> {
        loop {
            // Without a session it is unknown whether something has changed.
            let session = self.call.session()?;
            if !self.is_up_to_date(&session) {
                return Ok(());
            }
            self.call.wait()?;
        }
    }

    /// Whether a connected server would have reported a change of what was seen.
    pub(crate) fn is_current(&self) -> bool {
        let session = self.seen.as_ref().and_then(|seen| seen.session.upgrade());
        session.is_some_and(|session| {
            session.status().now().is_usable() && self.is_up_to_date(&session)
        })
    }

    pub(crate) fn is_up_to_date(&self, session: &Arc<Session>) -> bool {
        let phase = session.status().now();
        self.seen.as_ref().is_some_and(|seen| {
            Weak::ptr_eq(&seen.session, &Arc::downgrade(session))
                && !seen.changed.load(Ordering::SeqCst)
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
