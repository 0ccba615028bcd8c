//! Cancelling a wait from another thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::notify::{Signal, Signals, Subscription};
use crate::rt::AtomicBool;

/// Lets any thread end a wait: see [`DistributedLock::lock_with`](crate::DistributedLock::lock_with).
///
/// Clones share one state. A token that was tripped stays so: whatever waits on it, now
/// or later, ends with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). Acquisitions
/// that do not use it never notice.
#[derive(Clone, Default)]
pub struct Cancel {
    shared: Arc<CancelShared>,
}

#[derive(Default)]
struct CancelShared {
    tripped: AtomicBool,
    signals: Arc<Signals>,
}

impl Cancel {
    /// A token that has not been tripped.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Trips the token and wakes all who wait on it.
    pub fn cancel(&self) {
        self.shared.tripped.store(true, Ordering::SeqCst);
        self.shared.signals.tell();
    }

    /// Whether the token was tripped.
    pub fn is_cancelled(&self) -> bool {
        self.shared.tripped.load(Ordering::SeqCst)
    }

    pub(crate) fn subscribe(&self, signal: Signal) -> Subscription {
        self.shared.signals.subscribe(signal)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_cancelled", &self.is_cancelled()).finish()
    }
}
