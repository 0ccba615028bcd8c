//! What one client adds to the gauges, which it takes off again when it ends.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use metrics::{SharedString, counter, gauge};

/// The state of a session that has no connection.
pub(crate) const SUSPENDED: &str = "suspended";

/// See the module.
#[derive(Default)]
pub(crate) struct ClientGauges {
    added: Mutex<Added>,
}

#[derive(Default)]
struct Added {
    /// The label of the lock that each thread waits for, at its path.
    waiting: HashMap<(ThreadId, String), SharedString>,
    held: HashMap<(SharedString, &'static str), f64>,
    cleanups: f64,
    state: Option<&'static str>,
    suspended_since: Option<Instant>,
    /// Less than a second that was not counted yet.
    rest: Duration,
}

impl ClientGauges {
    fn added(&self) -> MutexGuard<'_, Added> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread waits for the lock at this path; it may say so again.
    pub(crate) fn waits(&self, thread: ThreadId, path: &str, label: SharedString) {
        let before = self.added().waiting.insert((thread, path.to_owned()), label.clone());
        if before.is_none() {
            gauge!("zklock_waiting", "lock" => label).increment(1.0);
        }
    }

    pub(crate) fn waits_no_more(&self, thread: ThreadId, path: &str) {
        let label = self.added().waiting.remove(&(thread, path.to_owned()));
        if let Some(label) = label {
            gauge!("zklock_waiting", "lock" => label).decrement(1.0);
        }
    }

    /// So many more are held.
    pub(crate) fn held(&self, label: SharedString, what: &'static str, more: f64) {
        let gauge = gauge!("zklock_held", "lock" => label.clone(), "what" => what);
        *self.added().held.entry((label, what)).or_default() += more;
        gauge.increment(more);
    }

    /// So many more nodes are to be deleted.
    pub(crate) fn cleanups(&self, more: f64) {
        self.added().cleanups += more;
        gauge!("zklock_cleanups_pending").increment(more);
    }

    /// The session is in this state, perhaps after an outage that lasted so long; `None` if there will be no
    /// other session.
    pub(crate) fn session_is(&self, state: Option<&'static str>, outage: Option<Duration>) {
        let mut added = self.added();
        let before = mem::replace(&mut added.state, state);
        let (since, mut seconds) = (added.suspended_since.take(), 0);
        if state == Some(SUSPENDED) {
            added.suspended_since = since.or_else(|| Some(Instant::now()));
        } else if let Some(since) = since {
            let suspended = added.rest + outage.unwrap_or_else(|| since.elapsed());
            added.rest = Duration::from_nanos(suspended.subsec_nanos().into());
            seconds = suspended.as_secs();
        }
        drop(added);
        if seconds > 0 {
            counter!("zklock_suspended_seconds_total").increment(seconds);
        }
        if let Some(state) = before {
            gauge!("zklock_session_state", "state" => state).decrement(1.0);
        }
        if let Some(state) = state {
            gauge!("zklock_session_state", "state" => state).increment(1.0);
        }
    }
}

impl Drop for ClientGauges {
    fn drop(&mut self) {
        self.session_is(None, None);
        let Added { waiting, held, cleanups, .. } = mem::take(&mut *self.added());
        for label in waiting.into_values() {
            gauge!("zklock_waiting", "lock" => label).decrement(1.0);
        }
        for ((label, what), count) in held {
            gauge!("zklock_held", "lock" => label, "what" => what).decrement(count);
        }
        gauge!("zklock_cleanups_pending").decrement(cleanups);
    }
}
