//! One session with the ensemble: its verbs, and what its connection reports to.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use super::status::Status;
use super::store::{Answer, Ensemble, Names, Reports, Stat};
use super::together::Together;
use super::verbs::Verbs;
use super::wake::{Waiter, Watches};
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::{End, Notice};
use crate::path;
use crate::rt::{Deadline, Mutex};

/// See the module. It never comes back once it has ended.
#[derive(Debug)]
pub(crate) struct Session {
    verbs: Verbs,
    status: Arc<Status>,
    watches: Arc<Watches>,
    listings: Together<Answer<Option<Names>>>,
    lists: Together<Answer<Option<(Names, Stat)>>>,
    leaving: Mutex<BTreeSet<String>>,
    /// All that have ever been among these, for those who check.
    #[cfg(test)]
    left: Mutex<BTreeSet<String>>,
}

impl Session {
    /// Connects, within the connect time-out; `stop` is asked whenever the waiter's bell is rung.
    pub(crate) fn open(
        ensemble: &dyn Ensemble,
        waiter: &Waiter,
        stop: impl Fn() -> bool,
        on_notice: impl Fn(Notice) + Send + 'static,
    ) -> Result<Session> {
        let (status, watches) = (Arc::<Status>::default(), Arc::<Watches>::default());
        let _subscription = status.subscribe(waiter.bell());
        let void = Arc::clone(&watches);
        let reports = Reports {
            status: Arc::clone(&status),
            watches: Arc::clone(&watches),
            on_notice: Box::new(move |notice| {
                if matches!(notice, Notice::Suspended | Notice::Ended(_)) {
                    void.are_void();
                }
                on_notice(notice);
            }),
        };
        let verbs = Verbs::new(ensemble.open(reports, waiter, &stop)?, Arc::clone(&watches));
        Ok(Session {
            verbs,
            status,
            watches,
            listings: Together::default(),
            lists: Together::default(),
            leaving: Mutex::default(),
            #[cfg(test)]
            left: Mutex::default(),
        })
    }

    pub(crate) fn status(&self) -> &Status {
        &self.status
    }

    /// For whoever is about to wait for something.
    pub(crate) fn watches(&self) -> &Arc<Watches> {
        self.watches.tidy(|path| self.verbs.unwatch_soon(path));
        &self.watches
    }

    /// Whether its lease still runs.
    pub(crate) fn is_trusted(&self) -> bool {
        self.verbs.trusted().is_ok()
    }

    pub(crate) fn id(&self) -> i64 {
        self.verbs.info().session
    }

    /// As the verb of that name, but callers may be given one common answer to a request that was sent
    /// after each of them had called.
    pub(crate) fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        self.listings.get(&key(path, watch), || self.verbs.children(path, watch))
    }

    /// As the verb of that name, with a common answer as with `children`.
    pub(crate) fn list(&self, path: &str, watch: bool) -> Answer<Option<(Names, Stat)>> {
        self.lists.get(&key(path, watch), || self.verbs.list(path, watch))
    }

    /// Notes that a node of the session's belongs to nobody any more, and is about to go: no call
    /// will ever take it for its own place, and no guard stands on it.
    pub(crate) fn leaves(&self, path: &str) {
        #[cfg(test)]
        self.left.lock().insert(path.to_owned());
        self.leaving.lock().insert(path.to_owned());
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn has_left(&self, path: &str) -> bool {
        self.left.lock().contains(path)
    }

    /// It has gone, or cannot go.
    pub(crate) fn leaves_no_more(&self, path: &str) {
        self.leaving.lock().remove(path);
    }

    /// The names of such nodes among the children of this one.
    pub(crate) fn leaving(&self, parent: &str) -> Vec<String> {
        let leaving = self.leaving.lock();
        let inside = leaving.iter().filter(|path| path::parent(path) == parent);
        inside.map(|path| path::last(path).to_owned()).collect()
    }
}

/// What callers have to ask alike to be given a common answer. No path begins as one with a watch.
fn key(path: &str, watch: bool) -> Cow<'_, str> {
    if watch { format!("watched {path}").into() } else { path.into() }
}

impl Deref for Session {
    type Target = Verbs;

    fn deref(&self) -> &Verbs {
        &self.verbs
    }
}

/// Waits for a server to serve a session that is being opened. `stop` is asked whenever the bell is
/// rung, which the status must ring. False when that was not in time.
pub(crate) fn until_attached(
    status: &Status,
    waiter: &Waiter,
    until: Deadline,
    stop: &dyn Fn() -> bool,
) -> Result<bool> {
    loop {
        let phase = status.now();
        if let Some(end) = phase.ended {
            return Err(ended(end));
        }
        // A session that is there is not thrown away for what is left of the time.
        if phase.attached {
            return Ok(true);
        }
        if stop() {
            return Err(ended(End::Closed));
        }
        if until.has_passed() {
            return Ok(false);
        }
        waiter.wait(until);
    }
}

/// The error for those who needed a session that has ended.
pub(crate) fn ended(end: End) -> Error {
    match end {
        End::Expired => Error::new(ErrorKind::SessionLost, "the server expired the session"),
        End::Lapsed => Error::new(
            ErrorKind::SessionLost,
            "the session's lease ran out before the ensemble could be reached again",
        ),
        End::AuthFailed => Error::new(
            ErrorKind::AuthFailed,
            "the server rejected the client's credentials; check the scheme and the credentials",
        ),
        End::Closed => Error::new(ErrorKind::Closed, "the client is closed"),
    }
}
