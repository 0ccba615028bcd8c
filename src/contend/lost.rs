//! How a program waits for the end of a hold.

use std::fmt;
use std::sync::Arc;

use super::watchdog::Watchdog;
use crate::loss_reason::LossReason;
use crate::session::cancel::Cancel;
use crate::session::wait::Wait;

/// How a hold has ended: see [`Lost::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldEnd {
    /// The guard was dropped, or released otherwise.
    Released,
    /// It was lost before that.
    Lost(LossReason),
}

/// A handle with which any thread can wait until a lock is lost or released: see [`Hold::lost`](crate::Hold::lost).
#[derive(Clone)]
pub struct Lost {
    watchdog: Arc<Watchdog>,
    /// Whose loss: the node may have other holders later.
    turn: u32,
}

impl Lost {
    pub(super) fn of(watchdog: &Arc<Watchdog>, turn: u32) -> Lost {
        Lost { watchdog: Arc::clone(watchdog), turn }
    }

    /// Blocks until the hold ends, and returns how.
    pub fn wait(&self) -> HoldEnd {
        loop {
            if let Some(end) = self.wait_within(Wait::FOREVER) {
                return end;
            }
        }
    }

    /// Blocks until the hold ends, at most `wait`, and returns how; `None` if the time was over or
    /// the wait was cancelled first.
    pub fn wait_within(&self, wait: impl Into<Wait>) -> Option<HoldEnd> {
        let wait = wait.into();
        self.look();
        let woken = Arc::downgrade(&self.watchdog);
        let wake = move || {
            if let Some(watchdog) = woken.upgrade() {
                let _state = watchdog.state.lock();
                watchdog.changed.notify_all();
            }
        };
        let _cancel = wait.cancel().map(|cancel| cancel.subscribe(Arc::new(wake)));
        let mut state = self.watchdog.state.lock();
        loop {
            if let Some(why) = state.loss(self.turn) {
                return Some(HoldEnd::Lost(why));
            }
            if state.is_over(self.turn) {
                return Some(HoldEnd::Released);
            }
            match wait.until().instant() {
                _ if wait.is_cancelled() || wait.until().has_passed() => return None,
                None => self.watchdog.changed.wait(&mut state),
                Some(end) => drop(self.watchdog.changed.wait_until(&mut state, end)),
            }
        }
    }

    /// Why the lock was lost, if it was.
    pub fn reason(&self) -> Option<LossReason> {
        self.look();
        self.watchdog.state.lock().loss(self.turn)
    }

    /// Why the lock was lost, if that is recorded already: for the checks of tests.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn recorded(&self) -> Option<LossReason> {
        self.watchdog.state.lock().loss(self.turn)
    }

    /// Records a loss that was not found before.
    fn look(&self) {
        if let Some(session) = self.watchdog.session.upgrade() {
            self.watchdog.look_at_lease(&session);
        }
    }

    /// Whether the guard was dropped or unlocked.
    pub fn is_released(&self) -> bool {
        self.watchdog.state.lock().is_over(self.turn)
    }
}

impl From<Lost> for Cancel {
    /// A token that is tripped when the lock is lost: it ends the calls that its holder waits in.
    ///
    /// A release does not trip it.
    fn from(lost: Lost) -> Cancel {
        let token = Cancel::new();
        lost.look();
        let mut state = lost.watchdog.state.lock();
        if state.loss(lost.turn).is_some() {
            token.cancel();
        } else if !state.is_over(lost.turn) {
            // A program may make a token for each wait of a hold that lasts for months.
            state.tokens.retain(|token| token.upgrade().is_some());
            state.tokens.push(token.downgrade());
        }
        drop(state);
        token
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.watchdog.state.lock();
        f.debug_struct("Lost")
            .field("lost", &state.loss(self.turn))
            .field("released", &state.is_over(self.turn))
            .finish_non_exhaustive()
    }
}
