//! Cancelling a wait from another thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::{fmt, mem};

use super::notify::{Signals, Subscription};
use crate::logging;
use crate::rt::{self, AtomicBool, Mutex, Signal};
use crate::session::threads::run_callback;

/// Lets any thread end a wait, such as that of
/// [`lock_within`](crate::DistributedLock::lock_within).
///
/// Clones share one state. A tripped token stays tripped: every call that waits on it, now or
/// later, ends with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
#[derive(Clone, Default)]
pub struct Cancel {
    state: Arc<CancelState>,
}

/// What all clones of a token share.
#[derive(Default)]
pub(crate) struct CancelState {
    tripped: AtomicBool,
    signals: Arc<Signals>,
    /// The tokens that trip this one, too.
    parents: Mutex<Vec<(Cancel, Subscription)>>,
}

impl Cancel {
    /// Returns a token that has not been tripped.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Returns a token that is tripped as soon as one of `tokens` is, and can also be tripped on
    /// its own.
    ///
    /// For calls that several things may end, such as the end of the program and the loss of a lock
    /// (a token comes [from](Cancel#impl-From<Lost>-for-Cancel) a [`Lost`](crate::Lost), too). Made
    /// from one token, it stops a part of what that token stops as a whole.
    ///
    /// ```
    /// use zklock::Cancel;
    ///
    /// let program = Cancel::new();
    /// let (one, other) = (Cancel::any([&program]), Cancel::any([&program]));
    /// one.cancel();
    /// assert!(!program.is_cancelled() && !other.is_cancelled());
    /// program.cancel();
    /// assert!(other.is_cancelled());
    /// ```
    pub fn any<'a>(tokens: impl IntoIterator<Item = &'a Cancel>) -> Cancel {
        let any = Cancel::new();
        let mut parents = Vec::new();
        for token in tokens {
            let child = any.downgrade();
            let trip: Signal = Arc::new(move || {
                if let Some(child) = child.upgrade() {
                    child.trip();
                }
            });
            parents.push((token.clone(), token.subscribe(trip)));
        }
        // It may have been tripped before the subscription.
        if parents.iter().any(|(token, _)| token.is_cancelled()) {
            any.cancel();
        }
        *any.state.parents.lock() = parents;
        any
    }

    /// Trips the token and wakes all calls that wait on it.
    pub fn cancel(&self) {
        self.state.trip();
    }

    /// Returns whether the token was tripped.
    pub fn is_cancelled(&self) -> bool {
        if self.state.tripped.load(Ordering::SeqCst) {
            return true;
        }
        // One that is being tripped may not have told this one yet.
        self.state.parents.lock().iter().any(|(parent, _)| parent.is_cancelled())
    }

    /// Calls `callback` once, when the token is tripped, or immediately if it already is; dropping
    /// the returned subscription removes the callback.
    ///
    /// It runs on a thread of this library, and may block and call the library. A panic in it is
    /// caught and logged. If the system has no thread for it, it is not called, and the log says
    /// so. With a token [from](Cancel#impl-From<Lost>-for-Cancel) a [`Lost`](crate::Lost), it
    /// reports the loss of a lock and, unlike [`on_lost`](crate::Hold::on_lost), can be removed. The
    /// subscription keeps the token; after [`detach`](Subscription::detach), keep a clone of it.
    pub fn on_cancel(&self, callback: impl FnOnce() + Send + 'static) -> Subscription {
        let callback = Arc::new(Mutex::new(Some(callback)));
        let due = Arc::clone(&callback);
        let call: Signal = Arc::new(move || {
            let Some(callback) = due.lock().take() else { return };
            if let Err(error) = rt::spawn("zklock-event", || run_callback(callback)) {
                logging::error!(
                    target: "zklock::events",
                    "no thread for the callback of a token, which is not called: {error}"
                );
            }
        });
        let subscription = self.subscribe(Arc::clone(&call));
        if self.is_cancelled() {
            call();
        }
        let (token, process) = (self.clone(), std::process::id());
        subscription.ending(move |end| {
            if std::process::id() != process {
                // In a forked process, a thread that has locked one of these may not exist.
                return mem::forget((end, token, callback));
            }
            end();
            // Without the lock: it drops what belongs to the program.
            let callback = callback.lock().take();
            drop(callback);
        })
    }

    /// A reference that does not keep the token.
    pub(crate) fn downgrade(&self) -> Weak<CancelState> {
        Arc::downgrade(&self.state)
    }

    pub(crate) fn subscribe(&self, signal: Signal) -> Subscription {
        self.state.signals.subscribe(signal)
    }
}

impl CancelState {
    /// Trips the token, and wakes all calls that wait on it.
    pub(crate) fn trip(&self) {
        self.tripped.store(true, Ordering::SeqCst);
        self.signals.tell();
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_cancelled", &self.is_cancelled()).finish()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::notify::Waiter;
    use super::*;
    use crate::rt::Deadline;

    #[test]
    fn a_token_of_several_is_tripped_by_each_and_wakes_those_that_wait() {
        let (one, other) = (Cancel::new(), Cancel::new());
        let any = Cancel::any([&one, &other]);
        let grandchild = Cancel::any([&any]);
        let waiter = Waiter::new();
        let _subscription = grandchild.subscribe(waiter.bell());
        assert!(!any.is_cancelled() && !grandchild.is_cancelled());
        other.cancel();
        waiter.wait(Deadline::NEVER);
        assert!(any.is_cancelled() && grandchild.is_cancelled() && !one.is_cancelled());
        assert!(Cancel::any([&one, &other]).is_cancelled(), "tripped before");
        let alone = Cancel::any([&one]);
        alone.cancel();
        assert!(alone.is_cancelled() && !one.is_cancelled());
    }

    #[test]
    fn a_callback_is_called_once_and_not_after_its_subscription() {
        let (token, (tell, told)) = (Cancel::new(), std::sync::mpsc::channel());
        let called = |what: &'static str| {
            let tell = tell.clone();
            move || tell.send(what).unwrap()
        };
        let kept = token.on_cancel(called("kept"));
        token.on_cancel(called("detached")).detach();
        drop(token.on_cancel(called("dropped")));
        let panics = token.on_cancel(|| panic!("a callback's own"));
        token.cancel();
        token.cancel();
        let after = token.on_cancel(called("after"));
        drop(tell);
        // Each of the senders is gone when its callback has run or was dropped.
        let mut all: Vec<_> = told.iter().collect();
        all.sort_unstable();
        assert_eq!(all, ["after", "detached", "kept"]);
        drop((kept, panics, after));
        // The subscription keeps a token that nobody else has.
        let (tell, told) = std::sync::mpsc::channel();
        let parent = Cancel::new();
        let kept = Cancel::any([&parent]).on_cancel(move || tell.send(()).unwrap());
        parent.cancel();
        let soon = std::time::Duration::from_secs(10);
        assert_eq!(told.recv_timeout(soon), Ok(()));
        drop(kept);
    }

    #[test]
    fn a_child_is_not_kept_by_its_parent() {
        let parent = Cancel::new();
        let child = Cancel::any([&parent]);
        let state = child.downgrade();
        drop(child);
        assert!(state.upgrade().is_none());
    }
}
