//! How a program waits for the end of a hold.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::watchdog::{LossToken, Watchdog};
use crate::loss_reason::LossReason;
use crate::rt::AtomicBool;
use crate::session::{Cancel, Signals, Wait, Waiter};

/// A handle with which any thread can wait until a lock is lost or released.
///
/// [`Hold::lost`](crate::Hold::lost) returns it.
#[derive(Clone)]
pub struct Lost {
    /// One hold, or several, of which the first loss counts.
    holds: Arc<[LostHold]>,
    /// What ends several together; one ends by itself.
    release: Option<Arc<JointRelease>>,
}

impl Lost {
    pub(super) fn of(watchdog: &Arc<Watchdog>, turn: u32) -> Lost {
        let hold = LostHold { watchdog: Arc::clone(watchdog), turn };
        Lost { holds: Arc::new([hold]), release: None }
    }

    /// Of several holds, which are released together.
    pub(crate) fn of_several(
        holds: impl IntoIterator<Item = Lost>,
        release: &Arc<JointRelease>,
    ) -> Lost {
        let holds = holds.into_iter().flat_map(|lost| lost.holds.to_vec()).collect();
        Lost { holds, release: Some(Arc::clone(release)) }
    }

    /// Blocks until the hold ends: `Ok` if it was released, and otherwise the reason of the loss.
    pub fn wait(&self) -> Result<(), LossReason> {
        loop {
            if let Some(end) = self.wait_within(Wait::FOREVER) {
                return end;
            }
        }
    }

    /// Blocks until the hold ends, at most `wait`; `None` if it had not ended then.
    ///
    /// Otherwise as [`wait`](Lost::wait).
    pub fn wait_within(&self, wait: impl Into<Wait>) -> Option<Result<(), LossReason>> {
        let wait = wait.into();
        match &self.release {
            None => self.holds.iter().find_map(|hold| hold.wait_within(&wait)),
            Some(release) => release.wait_within(&self.holds, &wait),
        }
    }

    /// Returns why the lock was lost, if it was; with several locks, the reason of the first loss.
    pub fn reason(&self) -> Option<LossReason> {
        match &self.release {
            None => self.holds.iter().find_map(LostHold::reason),
            Some(release) => release.loss(&self.holds),
        }
    }

    /// Why the lock was lost, if that is recorded already.
    pub(crate) fn recorded(&self) -> Option<LossReason> {
        let recorded = |hold: &LostHold| hold.watchdog.state.lock().loss(hold.turn);
        let first = self.release.as_ref().and_then(|release| release.lost.get().copied());
        first.or_else(|| self.holds.iter().find_map(recorded))
    }

    /// Whether the guard was dropped or unlocked.
    fn is_released(&self) -> bool {
        match &self.release {
            None => self.holds.iter().all(|hold| hold.watchdog.state.lock().is_over(hold.turn)),
            Some(release) => release.is_over(),
        }
    }
}

/// A hold that may be lost.
#[derive(Clone)]
struct LostHold {
    watchdog: Arc<Watchdog>,
    /// Whose loss: the node may have other holders later.
    turn: u32,
}

impl LostHold {
    fn wait_within(&self, wait: &Wait) -> Option<Result<(), LossReason>> {
        self.look();
        wait.until_found(
            &self.watchdog,
            |watchdog| (&watchdog.state, &watchdog.changed),
            |state| match state.loss(self.turn) {
                Some(why) => Some(Err(why)),
                None => state.is_over(self.turn).then_some(Ok(())),
            },
        )
    }

    fn reason(&self) -> Option<LossReason> {
        self.look();
        self.watchdog.state.lock().loss(self.turn)
    }

    /// Records a loss that was not found before.
    fn look(&self) {
        if let Some(session) = self.watchdog.session.upgrade() {
            self.watchdog.look_at_clocks(&session, session.trusted());
        }
    }

    /// Has the loss trip a token, unless the release comes first.
    fn trip(&self, token: &Cancel, release: Option<&JointRelease>) {
        self.look();
        let mut state = self.watchdog.state.lock();
        if state.loss(self.turn).is_some() {
            token.cancel();
        } else if !state.is_over(self.turn) {
            // A program may make a token for each wait of a hold that lasts for months.
            state.callbacks.tokens.retain(LossToken::is_wanted);
            let released = release.map(|release| Arc::clone(&release.released));
            state.callbacks.tokens.push(LossToken::new(token, released));
        }
    }
}

/// The release of several holds together: one of them may last longer, as a reentrant lock that its
/// thread has locked before, and its later loss does not count.
#[derive(Debug, Default)]
pub(crate) struct JointRelease {
    /// The loss that was found first.
    lost: OnceLock<LossReason>,
    released: Arc<AtomicBool>,
    changed: Arc<Signals>,
}

impl JointRelease {
    /// Notes the release, after this loss if there was one.
    pub(crate) fn note(&self, loss: Option<LossReason>) {
        if let (Some(why), false) = (loss, self.came_first()) {
            let _ = self.lost.set(why);
        }
        if !self.released.swap(true, Ordering::SeqCst) {
            self.changed.tell();
        }
    }

    /// Whether they were released before a loss: none counts any more.
    pub(crate) fn came_first(&self) -> bool {
        self.is_over() && self.lost.get().is_none()
    }

    pub(super) fn is_over(&self) -> bool {
        self.released.load(Ordering::SeqCst)
    }

    fn loss(&self, holds: &[LostHold]) -> Option<LossReason> {
        if self.lost.get().is_none() && !self.came_first() {
            let found = holds.iter().find_map(LostHold::reason)?;
            let _ = self.lost.set(found);
        }
        self.lost.get().copied()
    }

    fn wait_within(&self, holds: &[LostHold], wait: &Wait) -> Option<Result<(), LossReason>> {
        let (waiter, token) = (Waiter::new(), Cancel::new());
        let _release = self.changed.subscribe(waiter.bell());
        let _cancel = wait.cancel().map(|cancel| cancel.subscribe(waiter.bell()));
        let _loss = token.subscribe(waiter.bell());
        holds.iter().for_each(|hold| hold.trip(&token, Some(self)));
        loop {
            if let Some(why) = self.loss(holds) {
                return Some(Err(why));
            }
            if self.came_first() {
                return Some(Ok(()));
            }
            if wait.is_cancelled() || wait.until().has_passed() {
                return None;
            }
            waiter.wait(wait.until());
        }
    }
}

impl From<Lost> for Cancel {
    /// Returns a token that is tripped when the lock is lost, to end calls that wait with it.
    ///
    /// A release does not trip it.
    fn from(lost: Lost) -> Cancel {
        let token = Cancel::new();
        let release = lost.release.as_deref();
        if release.is_some_and(|release| release.loss(&lost.holds).is_some()) {
            token.cancel();
        } else if !release.is_some_and(JointRelease::came_first) {
            lost.holds.iter().for_each(|hold| hold.trip(&token, release));
        }
        token
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost")
            .field("lost", &self.recorded())
            .field("released", &self.is_released())
            .finish_non_exhaustive()
    }
}
