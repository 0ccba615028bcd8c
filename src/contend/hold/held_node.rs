//! The node with which a lock is held: by one guard, or by several, one after another.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::hold_limit::HoldLimit;
use super::watchdog::{HolderCallbacks, ReleasedParts, Watchdog};
use crate::loss_reason::LossReason;
use crate::rt::{self, AtomicUsize, Deadline, Mutex};
use crate::session::{Answer, Client, ClientCore, Fault, Session, Subscription};
use crate::wire_values::Stat;

/// How long dropping a guard waits for its node's deletion to be under way, and for callbacks that
/// must end first.
pub(crate) const DROP_LIMIT: Duration = Duration::from_millis(500);

/// The node with which a lock is held: by one guard, or by several, one after another.
pub(crate) struct HeldNode {
    pub(super) core: Arc<ClientCore>,
    pub(crate) session: Arc<Session>,
    pub(crate) session_id: i64,
    pub(crate) watchdog: Arc<Watchdog>,
    /// The node as the client names it.
    pub(super) path: String,
    /// What its token is made of: of the node that had its place first.
    pub(super) zxid: i64,
    pub(super) subscriptions: Mutex<Vec<Subscription>>,
    /// How many transactions are under way or had no answer.
    pub(super) unanswered: AtomicUsize,
}

impl HeldNode {
    /// Whether that is the node, and not another one of the same name.
    pub(super) fn is_own(&self, stat: &Stat) -> bool {
        stat.ephemeral_owner == self.session_id
            && self.watchdog.named.is_none_or(|czxid| czxid == stat.czxid)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Why it is lost, if it is. If the lease or the holder's time has ended, the loss is recorded and
    /// reported before this returns, so the caller must not hold any mutex.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        if self.core.is_elsewhere() {
            // In a forked process the thread that has locked the state may not exist.
            return Some(LossReason::ClientClosed);
        }
        self.loss_seen()
    }

    /// The same, for a caller that knows that the process is not a forked one.
    pub(super) fn loss_seen(&self) -> Option<LossReason> {
        let lost = self.watchdog.state.lock().lost;
        let session = &self.session;
        lost.or_else(|| self.watchdog.look_at_clocks(session, session.trusted_here()))
    }

    /// Whether a thread that has not held it before may get it: if the session has no known lease,
    /// only while there is a connection. Records nothing, so the caller may hold mutexes; it knows
    /// that the process is not a forked one.
    pub(crate) fn may_be_granted(&self) -> bool {
        let is_sure = || self.session.may_adopt() || self.session.status().now().is_usable();
        let state = self.watchdog.state.lock();
        let may_last = state.lost.is_none() && !state.is_held_too_long();
        drop(state);
        may_last && self.session.trusted_here().is_ok() && is_sure()
    }

    /// How long it is certain to be held.
    pub(super) fn time_left(&self) -> Duration {
        let lease = self.session.trusted().unwrap_or_default();
        let limit = self.watchdog.state.lock().limit;
        limit.map_or(lease, |limit| limit.left().min(lease))
    }

    /// Lets each holder hold it for so long at most, of which the present one has this time left.
    pub(super) fn limit(&self, limit: HoldLimit) {
        self.watchdog.state.lock().limit = Some(limit);
        // A time too long for the clock never ends.
        let Some(due) = rt::now().checked_add(limit.until_next_look()) else { return };
        let (watchdog, owner) = (Arc::downgrade(&self.watchdog), Arc::downgrade(&self.session));
        let look = move || watchdog.upgrade()?.look_at_limit(&owner.upgrade()?);
        let timer = self.core.timer().until_dropped(&self.session, due, look);
        self.subscriptions.lock().push(timer);
    }

    /// Whether a transaction without an answer may still take effect, as long as the node exists.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.unanswered.load(Ordering::SeqCst) > 0
    }

    /// Whether it may be handed to another holder.
    pub(crate) fn may_go_on(&self) -> bool {
        let state = self.watchdog.state.lock();
        let wanted = !state.requested && state.turn < u32::MAX;
        drop(state);
        wanted && self.may_be_granted()
    }

    /// Begins the turn of the next holder, or an `idle` one without a holder. Returns its number
    /// and the last holder's callbacks, which the caller must drop while it holds no mutex:
    /// dropping them may run any code of the user.
    pub(crate) fn next_turn(&self, idle: bool) -> (u32, HolderCallbacks) {
        let mut state = self.watchdog.state.lock();
        state.turn = state.turn.saturating_add(1);
        state.idle = idle;
        state.limit = state.limit.map(|limit| limit.of_next_turn(idle));
        let left = mem::take(&mut state.callbacks);
        self.watchdog.changed.notify_all();
        (state.turn, left)
    }

    /// Notes that the idle node has a holder.
    pub(crate) fn resume(&self) {
        let mut state = self.watchdog.state.lock();
        state.idle = false;
        state.limit = state.limit.map(|limit| limit.of_next_turn(false));
    }

    /// From here on its loss is nobody's: it is not reported.
    pub(crate) fn report_no_loss(&self) {
        self.watchdog.state.lock().idle = true;
    }

    /// From here on, reports other contenders to the threads that share the node.
    pub(crate) fn watch_for_others(&self) {
        if self.watchdog.state.lock().arrivals.is_none() {
            self.watchdog.watch_for_others();
        }
    }

    /// Runs a job in the background while the session lasts; it returns when to run it again.
    pub(crate) fn later(
        &self,
        due: Instant,
        job: impl FnMut() -> Option<Instant> + Send + 'static,
    ) {
        self.core.reaper().later(&self.session, due, job);
    }

    /// Stops watching the node and reporting on it; a loss that came before is still reported.
    pub(crate) fn leave(&self) -> ReleasedParts {
        self.loss_seen();
        let mut state = self.watchdog.state.lock();
        state.released = true;
        let callbacks = mem::take(&mut state.callbacks);
        let subscriptions = (state.siblings.take(), state.arrivals.take());
        let lost = state.lost;
        self.watchdog.changed.notify_all();
        drop(state);
        drop(subscriptions);
        let subscriptions = mem::take(&mut *self.subscriptions.lock());
        drop(subscriptions);
        ReleasedParts { watchdog: Arc::clone(&self.watchdog), lost, next: None, callbacks }
    }

    /// Releases a node that no thread holds.
    pub(crate) fn release(&self) {
        let left = self.leave();
        if left.lost.is_none() {
            self.delete_by(Deadline::after(DROP_LIMIT));
        }
    }

    /// Releases a node that no thread holds, without waiting for anything.
    pub(crate) fn release_soon(&self) {
        let left = self.leave();
        match left.lost {
            None => self.delete_by(Deadline::after(Duration::ZERO)),
            Some(_) => self.session.owned().forget(&self.watchdog.node),
        }
    }

    /// Keeps other calls of this session from waiting for the node. Its release must follow.
    pub(crate) fn announce_release(&self) {
        self.session.leaves(&self.watchdog.node);
    }

    pub(super) fn delete_in(&self, session: &Session) -> Answer<()> {
        match self.watchdog.named {
            None => session.delete(&self.watchdog.node),
            Some(czxid) => session.delete_named(&self.watchdog.node, czxid),
        }
    }

    pub(super) fn delete_by(&self, until: Deadline) {
        if self.watchdog.named.is_none() {
            return self.core.reaper().let_go(&self.session, &self.watchdog.node, until);
        }
        let deleted = match self.session.status().now().is_usable() {
            true => self.session.ask(&until.into(), |session| self.delete_in(session)),
            false => None,
        };
        if !matches!(deleted, Some(Ok(()) | Err(Fault::NoNode | Fault::SessionEnded))) {
            self.insist();
        }
    }

    /// Has the node deleted in the background. Until then, it is not in the way of this client's own
    /// calls.
    pub(super) fn delete_later(&self) {
        let (reaper, node) = (self.core.reaper(), self.watchdog.node.clone());
        match self.watchdog.named {
            None => reaper.delete(&self.session, node),
            Some(czxid) => reaper.delete_named(&self.session, node, czxid),
        }
    }

    /// Has the node deleted in the background, though the server may have refused that.
    pub(super) fn insist(&self) {
        let (reaper, node) = (self.core.reaper(), self.watchdog.node.clone());
        match self.watchdog.named {
            None => reaper.insist(&self.session, node),
            Some(czxid) => reaper.delete_named(&self.session, node, czxid),
        }
    }
}

/// The threads that share a node.
pub(crate) trait Sharing: Send + Sync {
    /// Decides what becomes of the node, now that its holder lets go: `None` if another thread has it,
    /// or it is kept. Otherwise it is left, and must be deleted, unless it was lost before.
    fn pass(
        self: Arc<Self>,
        client: &Client,
        held_node: &Arc<HeldNode>,
        number: u64,
    ) -> Option<ReleasedParts>;
}
