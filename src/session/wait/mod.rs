//! How long a blocking call waits.

mod cancel;
mod notify;

pub use cancel::Cancel;
pub(crate) use cancel::CancelState;
pub use notify::Subscription;
pub(crate) use notify::{Signals, Waiter};

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rt::{Condvar, Deadline, Mutex, Signal};

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

/// How long a call waits: until an instant, until any thread trips a [`Cancel`], or until the first
/// of both.
///
/// Calls whose names end in `_within` take one, or anything that converts into one. When the time
/// is over, they return what their documentation says; when the token is tripped, they fail with
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), except for
/// those of [`Lost`](crate::Lost) and [`Cancel`], which cannot fail.
///
/// ```no_run
/// use std::time::{Duration, Instant};
/// use zklock::{Cancel, Client, DistributedLock};
///
/// let zk = Client::connect("localhost")?;
/// let lock = DistributedLock::new(&zk, "/locks", "nightly");
/// let half_an_hour = Duration::from_secs(1800);
/// let stop = Cancel::new(); // tripped by the thread that handles signals
///
/// let guard = lock.lock_within(half_an_hour)?; // or `Instant::now() + half_an_hour`, or `&stop`
/// # drop(guard);
/// let guard = lock.lock_within((half_an_hour, &stop))?;
/// # drop(guard);
/// # Ok::<(), zklock::Error>(())
/// ```
///
/// A duration begins when the `Wait` is made, so one `Wait` ends several calls at the same instant.
/// A duration too long for the clock is no limit.
#[derive(Clone, Debug)]
pub struct Wait {
    until: Deadline,
    cancel: Option<Cancel>,
}

impl Wait {
    pub(crate) const FOREVER: Wait = Wait { until: Deadline::NEVER, cancel: None };

    pub(crate) fn until(&self) -> Deadline {
        self.until
    }

    /// Whether it may end before what it waits for.
    pub(crate) fn may_end(&self) -> bool {
        !self.until.is_never() || self.cancel.is_some()
    }

    pub(crate) fn cancel(&self) -> Option<&Cancel> {
        self.cancel.as_ref()
    }

    /// The same, but no longer than this.
    pub(crate) fn earlier(&self, until: Deadline) -> Wait {
        Wait { until: self.until.earlier(until), cancel: self.cancel.clone() }
    }

    /// By when requests must be answered, so that everything is over when the wait is, or [`GRACE`]
    /// from now if that is later.
    pub(crate) fn worth_asking(&self) -> Wait {
        Wait { until: worth_asking(self.until), cancel: self.cancel.clone() }
    }

    /// By when everything has to be over that may take a little longer than the wait.
    pub(crate) fn late(&self) -> Deadline {
        let late = self.until.instant().and_then(|end| end.checked_add(GRACE));
        late.map_or(Deadline::NEVER, Deadline::at)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_cancelled() || self.until.has_passed()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel().is_some_and(Cancel::is_cancelled)
    }

    /// Waits until `look` finds something in what the mutex of `owner` guards: whoever changes that
    /// notifies the condition. `None` if the wait is over first.
    pub(crate) fn until_found<O, T, R>(
        &self,
        owner: &Arc<O>,
        parts: fn(&O) -> (&Mutex<T>, &Condvar),
        mut look: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R>
    where
        O: Send + Sync + 'static,
        T: 'static,
    {
        let woken = Arc::downgrade(owner);
        let wake: Signal = Arc::new(move || {
            if let Some(owner) = woken.upgrade() {
                let (state, changed) = parts(&owner);
                let _state = state.lock();
                changed.notify_all();
            }
        });
        let _cancel = self.cancel().map(|cancel| cancel.subscribe(wake));
        let (state, changed) = parts(owner);
        let mut state = state.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            match self.until.instant() {
                _ if self.is_over() => return None,
                None => changed.wait(&mut state),
                Some(end) => drop(changed.wait_until(&mut state, end)),
            }
        }
    }
}

impl Cancel {
    /// Blocks until the token is tripped, at most `wait`, and returns whether it is.
    ///
    /// So a loop can pause between two rounds, and stop at once.
    pub fn wait_within(&self, wait: impl Into<Wait>) -> bool {
        let (wait, waiter) = (wait.into(), Waiter::new());
        let _tripped = self.subscribe(waiter.bell());
        let _cancel = wait.cancel().map(|cancel| cancel.subscribe(waiter.bell()));
        loop {
            if self.is_cancelled() || wait.is_over() {
                return self.is_cancelled();
            }
            waiter.wait(wait.until());
        }
    }
}

impl From<Deadline> for Wait {
    fn from(until: Deadline) -> Wait {
        Wait { until, cancel: None }
    }
}

impl From<Duration> for Wait {
    fn from(limit: Duration) -> Wait {
        Wait::from(Deadline::after(limit))
    }
}

impl From<Instant> for Wait {
    fn from(end: Instant) -> Wait {
        Wait::from(Deadline::at(end))
    }
}

impl From<&Cancel> for Wait {
    fn from(cancel: &Cancel) -> Wait {
        Wait { until: Deadline::NEVER, cancel: Some(cancel.clone()) }
    }
}

impl From<(Duration, &Cancel)> for Wait {
    fn from((limit, cancel): (Duration, &Cancel)) -> Wait {
        Wait { until: Deadline::after(limit), cancel: Some(cancel.clone()) }
    }
}

impl From<(Instant, &Cancel)> for Wait {
    fn from((end, cancel): (Instant, &Cancel)) -> Wait {
        Wait { until: Deadline::at(end), cancel: Some(cancel.clone()) }
    }
}

impl From<&Wait> for Wait {
    fn from(wait: &Wait) -> Wait {
        wait.clone()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_with_the_token_or_with_its_time() {
        let (token, other) = (Cancel::new(), Cancel::new());
        assert!(!token.wait_within(Duration::ZERO));
        other.cancel();
        assert!(!token.wait_within(&other));
        let trips = token.clone();
        std::thread::spawn(move || trips.cancel());
        assert!(token.wait_within(Wait::FOREVER));
        assert!(token.wait_within(&other), "it is tripped, though the other one is, too");
    }
}
