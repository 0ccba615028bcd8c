//! Cancelling a wait from another thread.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::notify::{Signal, Signals, Subscription};
use crate::rt::{AtomicBool, Mutex};

/// Lets any thread end a wait, such as that of [`lock_within`](crate::DistributedLock::lock_within).
///
/// Clones share one state. A tripped token stays tripped: every call that waits on it, now or
/// later, ends with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). Calls that do not use it
/// are not affected.
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
    /// A token that has not been tripped.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// A token that is tripped with this one, but can also be tripped alone.
    ///
    /// For one part of what a program stops as a whole.
    ///
    /// ```
    /// let program = zklock::Cancel::new();
    /// let job = program.child();
    /// job.cancel();
    /// assert!(!program.is_cancelled());
    /// assert!(!program.child().is_cancelled());
    /// program.cancel();
    /// assert!(program.child().is_cancelled());
    /// ```
    pub fn child(&self) -> Cancel {
        Cancel::any([self])
    }

    /// A token that is tripped as soon as one of these is, and can also be tripped alone.
    ///
    /// For calls that several things may end, such as the end of the program and the loss of a lock
    /// (a token comes [from](Cancel#impl-From<Lost>-for-Cancel) a [`Lost`](crate::Lost), too).
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

    /// Whether the token was tripped.
    pub fn is_cancelled(&self) -> bool {
        if self.state.tripped.load(Ordering::SeqCst) {
            return true;
        }
        // One that is being tripped may not have told this one yet.
        self.state.parents.lock().iter().any(|(parent, _)| parent.is_cancelled())
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
    use super::*;
    use crate::rt::Deadline;
    use crate::session::notify::Waiter;

    #[test]
    fn a_token_of_several_is_tripped_by_each_and_wakes_those_that_wait() {
        let (one, other) = (Cancel::new(), Cancel::new());
        let any = Cancel::any([&one, &other]);
        let grandchild = any.child();
        let waiter = Waiter::new();
        let _subscription = grandchild.subscribe(waiter.bell());
        assert!(!any.is_cancelled() && !grandchild.is_cancelled());
        other.cancel();
        waiter.wait(Deadline::NEVER);
        assert!(any.is_cancelled() && grandchild.is_cancelled() && !one.is_cancelled());
        assert!(Cancel::any([&one, &other]).is_cancelled(), "tripped before");
        let alone = one.child();
        alone.cancel();
        assert!(alone.is_cancelled() && !one.is_cancelled());
    }

    #[test]
    fn a_child_is_not_kept_by_its_parent() {
        let parent = Cancel::new();
        let child = parent.child();
        let state = child.downgrade();
        drop(child);
        assert!(state.upgrade().is_none());
    }
}
