//! A membership, and the thread that rejoins after a loss.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::member_node::{JoinOutcome, MemberNode, leave};
use crate::contend::errors::cancelled;
use crate::contend::held_node::DROP_LIMIT;
use crate::contend::hold::Hold;
use crate::contend::lost::{HoldEnd, Lost};
use crate::error::{ErrorKind, Result};
use crate::logging;
use crate::loss_reason::LossReason;
use crate::path;
use crate::rt::{self, Condvar, Deadline, Mutex};
use crate::session::callbacks::InOrder;
use crate::session::cancel::Cancel;
use crate::session::session::Session;
use crate::session::wait::Wait;
use crate::session::watch_loop::WatchLoop;

/// How long a member that the server refuses waits before it tries to rejoin.
const REST: Duration = Duration::from_secs(1);

/// A membership in a [`Group`](crate::Group), which rejoins by itself after a loss; dropping it
/// leaves the group.
///
/// Dropping returns when the node's deletion is under way, within half a second.
///
/// A membership is lost with its session, or when another client deletes its node. Unlike a
/// [`LockGuard`](crate::LockGuard) it does not end then: it rejoins as soon as it can, in a new
/// session, or when the id is free again. These methods report that:
///
/// | | |
/// |---|---|
/// | [`is_member`](Membership::is_member) | the present state |
/// | [`lost`](Membership::lost) | a handle to wait for the next loss; after a rejoin, ask for another one |
/// | [`on_lost`](Membership::on_lost), [`on_rejoined`](Membership::on_rejoined) | call back each time |
///
/// May change until 0.2: see [Versions](crate#versions).
#[must_use = "if unused the group is left immediately"]
#[clippy::has_significant_drop]
pub struct Membership {
    seat: Arc<SharedMembership>,
}

impl Membership {
    /// A membership of which the hold is the first node; the thread that rejoins is started.
    pub(super) fn start(node: Arc<MemberNode>, hold: Hold) -> Result<Membership> {
        let callbacks = InOrder::new(node.target.client.core().events());
        let seat = Arc::new(SharedMembership {
            node,
            leaving: Cancel::new(),
            part: Mutex::new(MembershipState::new(hold)),
            changed: Condvar::new(),
            callbacks,
        });
        let keeper = Arc::clone(&seat);
        match rt::spawn("zklock-member", move || keeper.keep()) {
            Ok(()) => Ok(Membership { seat }),
            Err(error) => {
                let hold = seat.part.lock().hold.take();
                drop(hold);
                Err(error)
            }
        }
    }

    /// The member's node, as the client names it.
    pub fn path(&self) -> &str {
        &self.seat.node.path
    }

    /// The id under which others see it.
    pub fn id(&self) -> &str {
        path::last(&self.seat.node.path)
    }

    /// Whether others can see it, as far as is known here.
    ///
    /// `false` from the loss of its session or its node until it has rejoined. Sends no request.
    pub fn is_member(&self) -> bool {
        !self.seat.node.target.client.core().is_elsewhere()
            && self.seat.part.lock().hold.as_ref().is_some_and(Hold::is_held)
    }

    /// Returns a handle with which any thread can wait until the membership is lost.
    ///
    /// If it is lost just now, the handle is for that loss. It does not report that the membership
    /// has rejoined.
    pub fn lost(&self) -> Lost {
        self.seat.part.lock().lost.clone()
    }

    /// Calls `callback` each time the membership is lost, even if it rejoins a moment later.
    ///
    /// At once if it is lost just now; never after the group was left. Callbacks registered here
    /// and with [`on_rejoined`](Membership::on_rejoined) run in the order of the events, one at a
    /// time, on a thread of their own, and may call this library. After a panic, which is caught and
    /// logged, a callback is called the next time as before.
    pub fn on_lost(&self, callback: impl FnMut(LossReason) + Send + 'static) {
        let callback: LossCallback = Arc::new(Mutex::new(Box::new(callback)));
        let mut part = self.seat.part.lock();
        part.on_lost.push(Arc::clone(&callback));
        if let Some(why) = part.away {
            self.seat.tell(move || (callback.lock())(why));
        }
    }

    /// Calls `callback` each time the membership has rejoined after a loss: others can see it
    /// again.
    ///
    /// Runs as the callbacks of [`on_lost`](Membership::on_lost) do.
    pub fn on_rejoined(&self, callback: impl FnMut() + Send + 'static) {
        self.seat.part.lock().on_rejoined.push(Arc::new(Mutex::new(Box::new(callback))));
    }

    /// Leaves the group as dropping does, but waits until the server has confirmed it.
    ///
    /// While the connection is lost it waits until the session is resumed or lost. If this
    /// membership was lost and another member has taken the id since, that one keeps it.
    ///
    /// # Errors
    ///
    /// [`SessionLost`](ErrorKind::SessionLost), [`Closed`](ErrorKind::Closed) or
    /// [`AuthFailed`](ErrorKind::AuthFailed) if the session was lost before the server has confirmed it:
    /// others may see the member until the server ends the session, for up to a session timeout more
    /// while servers run.
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) if an ACL on the group's node does not allow to
    /// delete; [`Server`](ErrorKind::Server) if the server refuses for another reason. The delete
    /// is then retried in the background.
    pub fn leave(self) -> Result<()> {
        self.leave_within(Wait::FOREVER).map(drop)
    }

    /// Leaves the group, waiting at most `wait` until the server has confirmed it: see
    /// [`leave`](Membership::leave).
    ///
    /// Returns false if there was no answer when the time was over: the background goes on.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the wait is cancelled: the background goes on.
    /// Otherwise as [`leave`](Membership::leave).
    pub fn leave_within(self, wait: impl Into<Wait>) -> Result<bool> {
        let wait = wait.into();
        self.seat.leave(&wait, |hold| leave(hold, &wait))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.seat.leaving.is_cancelled() {
            return;
        }
        let until = Deadline::after(DROP_LIMIT);
        let _ = self.seat.leave(&Wait::from(until), |hold| {
            hold.let_go(until);
            Ok(true)
        });
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("path", &self.path())
            .field("is_member", &self.is_member())
            .finish_non_exhaustive()
    }
}

/// What a membership and its thread share.
struct SharedMembership {
    node: Arc<MemberNode>,
    leaving: Cancel,
    part: Mutex<MembershipState>,
    changed: Condvar,
    callbacks: Arc<InOrder>,
}

struct MembershipState {
    /// The hold on the present node, until its loss is noticed.
    hold: Option<Hold>,
    /// The loss handle of the present hold, or of the last one.
    lost: Lost,
    /// Why the hold was lost, if it was.
    away: Option<LossReason>,
    on_lost: Vec<LossCallback>,
    on_rejoined: Vec<OnRejoined>,
    /// The outcome of leaving, once the thread has ended.
    left: Option<Result<()>>,
}

type LossCallback = Arc<Mutex<Box<dyn FnMut(LossReason) + Send>>>;
type OnRejoined = Arc<Mutex<Box<dyn FnMut() + Send>>>;

impl MembershipState {
    fn new(hold: Hold) -> MembershipState {
        MembershipState {
            lost: hold.lost(),
            hold: Some(hold),
            away: None,
            on_lost: Vec::new(),
            on_rejoined: Vec::new(),
            left: None,
        }
    }
}

impl SharedMembership {
    /// Runs the thread: creates the node again whenever it is lost.
    fn keep(&self) {
        let mut watch_loop = WatchLoop::new(&self.node.target.client, Some(&self.leaving));
        let mut unsure = None;
        let left = loop {
            let lost = self.part.lock().lost.clone();
            // Without a reason, the group was left.
            let HoldEnd::Lost(why) = lost.wait() else { break Ok(()) };
            let gone = self.note_lost(why);
            let Some(hold) = self.come_back(&mut watch_loop, &mut unsure) else {
                break unsure.map_or(gone, |session| self.node.retract(&session));
            };
            unsure = None;
            if let Some(hold) = self.has_rejoined(hold) {
                break leave(hold, &Wait::FOREVER).map(drop);
            }
        };
        self.part.lock().left = Some(left);
        self.changed.notify_all();
    }

    /// Rejoins; `None` if the group is left, or the member cannot rejoin.
    fn come_back(
        &self,
        watch_loop: &mut WatchLoop,
        unsure: &mut Option<Arc<Session>>,
    ) -> Option<Hold> {
        let group = self.node.target.node().unwrap_or_default();
        let mut complained = false;
        while !watch_loop.is_cancelled() {
            match self.node.settle(watch_loop, None, unsure) {
                Ok(JoinOutcome::Standing(hold)) => return Some(hold),
                Ok(JoinOutcome::Taken | JoinOutcome::NotInTime) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::AuthFailed) => {
                    logging::warning!(
                        target: "zklock::group",
                        "group {group}: cannot rejoin, giving up: {error}"
                    );
                    return None;
                }
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        logging::warning!(
                            target: "zklock::group",
                            "group {group}: cannot rejoin, retrying every {REST:?}: {error}"
                        );
                    }
                    watch_loop.rest(Deadline::after(REST));
                }
            }
        }
        None
    }

    /// Notes the loss, and returns an error if the server may not know of it yet.
    fn note_lost(&self, why: LossReason) -> Result<()> {
        let mut part = self.part.lock();
        part.away = Some(why);
        let hold = part.hold.take();
        for callback in &part.on_lost {
            let callback = Arc::clone(callback);
            self.tell(move || (callback.lock())(why));
        }
        drop(part);
        match (why, hold) {
            (LossReason::NodeDeleted | LossReason::SessionExpired, _) | (_, None) => Ok(()),
            (_, Some(hold)) => Err(hold.lost_error(why)),
        }
    }

    /// Stores the new hold and calls the callbacks. Returns the hold if the group was left
    /// meanwhile.
    fn has_rejoined(&self, hold: Hold) -> Option<Hold> {
        let mut part = self.part.lock();
        if self.leaving.is_cancelled() {
            return Some(hold);
        }
        (part.away, part.lost, part.hold) = (None, hold.lost(), Some(hold));
        for callback in &part.on_rejoined {
            let callback = Arc::clone(callback);
            self.tell(move || (callback.lock())());
        }
        None
    }

    /// Schedules a callback, unless the group is left before it runs.
    fn tell(&self, callback: impl FnOnce() + Send + 'static) {
        let leaving = self.leaving.clone();
        self.callbacks.dispatch(move || {
            if !leaving.is_cancelled() {
                callback();
            }
        });
    }

    fn leave(
        self: &Arc<Self>,
        wait: &Wait,
        release: impl FnOnce(Hold) -> Result<bool>,
    ) -> Result<bool> {
        self.node.target.client.core().check_process()?;
        self.leaving.cancel();
        let woken = Arc::clone(self);
        let wake = move || {
            let _part = woken.part.lock();
            woken.changed.notify_all();
        };
        let _cancel = wait.cancel().map(|cancel| cancel.subscribe(Arc::new(wake)));
        let mut part = self.part.lock();
        if let Some(hold) = part.hold.take() {
            drop(part);
            return release(hold);
        }
        // The thread may be creating a node: wait until it has ended.
        loop {
            if let Some(left) = &part.left {
                return left.clone().map(|()| true);
            }
            if wait.is_cancelled() {
                return Err(cancelled(&self.node.path));
            }
            match wait.until().instant() {
                _ if wait.until().has_passed() => return Ok(false),
                None => self.changed.wait(&mut part),
                Some(end) => drop(self.changed.wait_until(&mut part, end)),
            }
        }
    }
}
