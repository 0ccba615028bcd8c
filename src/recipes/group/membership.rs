//! A membership, which rejoins after a loss.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::member_node::{JoinOutcome, MemberNode, leave};
use crate::contend::errors::cancelled;
use crate::contend::held_node::DROP_LIMIT;
use crate::contend::hold::Hold;
use crate::contend::lost::Lost;
use crate::error::{ErrorKind, Result};
use crate::logging;
use crate::loss_reason::LossReason;
use crate::path;
use crate::rt::{Condvar, Deadline, Mutex};
use crate::session::callbacks::InOrder;
use crate::session::cancel::Cancel;
use crate::session::notify::{Signal, Subscription};
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
    /// A membership of which the hold is the first node.
    pub(super) fn start(node: Arc<MemberNode>, hold: Hold) -> Membership {
        let callbacks = InOrder::new(node.target.client.core().events());
        let seat = Arc::new(SharedMembership {
            node,
            leaving: Cancel::new(),
            part: Mutex::new(MembershipState {
                lost: hold.lost(),
                standing: Standing::Left(Ok(())),
                away: None,
                on_lost: Vec::new(),
                on_rejoined: Vec::new(),
            }),
            changed: Condvar::new(),
            turn: Mutex::default(),
            callbacks,
        });
        seat.take_place(&mut seat.part.lock(), hold);
        Membership { seat }
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
            && matches!(&self.seat.part.lock().standing, Standing::Member(hold, _) if hold.is_held())
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

/// What a membership shares with the threads that rejoin.
struct SharedMembership {
    node: Arc<MemberNode>,
    leaving: Cancel,
    part: Mutex<MembershipState>,
    changed: Condvar,
    turn: Mutex<Turn>,
    callbacks: Arc<InOrder>,
}

struct MembershipState {
    standing: Standing,
    /// The loss handle of the present hold, or of the last one.
    lost: Lost,
    /// Why the hold was lost, if it was.
    away: Option<LossReason>,
    on_lost: Vec<LossCallback>,
    on_rejoined: Vec<OnRejoined>,
}

enum Standing {
    /// With the hold on the present node, whose loss may not have been noticed yet.
    Member(Hold, LossSignal),
    Away(Box<Away>),
    /// A thread is about to rejoin, or to leave.
    Busy,
    /// With the outcome of leaving; or it cannot rejoin.
    Left(Result<()>),
}

/// Has a thread look after the membership when the hold is lost.
type LossSignal = (Cancel, Subscription);

type LossCallback = Arc<Mutex<Box<dyn FnMut(LossReason) + Send>>>;
type OnRejoined = Arc<Mutex<Box<dyn FnMut() + Send>>>;

/// A membership between its loss and its return.
struct Away {
    watch_loop: WatchLoop,
    /// The session in which the node may have been created, without an answer that says so.
    unsure: Option<Arc<Session>>,
    /// What leaving comes to: an error if the server may not know of the loss yet.
    gone: Result<()>,
    /// Whether it was logged that it cannot rejoin.
    complained: bool,
}

/// Whether a thread looks after the membership, and whether it is to look again.
#[derive(Default)]
struct Turn {
    is_taken: bool,
    is_due: bool,
}

enum Return {
    Standing(Hold),
    /// Another member has the id; its node is watched.
    Taken,
    Refused,
    Never,
}

impl SharedMembership {
    /// Has a thread look after the membership, now or when the present look is over.
    fn wake(self: &Arc<Self>) {
        let mut turn = self.turn.lock();
        turn.is_due = true;
        if !std::mem::replace(&mut turn.is_taken, true) {
            drop(turn);
            self.submit();
        }
    }

    fn submit(self: &Arc<Self>) {
        let seat = Arc::clone(self);
        self.node.target.client.core().rejoining().dispatch(move || {
            seat.turn.lock().is_due = false;
            seat.look_after();
            let mut turn = seat.turn.lock();
            turn.is_taken = turn.is_due;
            let is_due = turn.is_due;
            drop(turn);
            // Behind the other memberships.
            if is_due {
                seat.submit();
            }
        });
    }

    fn signal(self: &Arc<Self>) -> Signal {
        let seat = Arc::downgrade(self);
        Arc::new(move || {
            if let Some(seat) = seat.upgrade() {
                seat.wake();
            }
        })
    }

    /// Rejoins if the node is lost, as soon as that is possible; leaves what was created too late.
    fn look_after(self: &Arc<Self>) {
        let mut part = self.part.lock();
        let mut away = match std::mem::replace(&mut part.standing, Standing::Busy) {
            Standing::Away(away) => {
                drop(part);
                away
            }
            Standing::Member(hold, (token, _)) if token.is_cancelled() => {
                drop(part);
                self.note_lost(hold)
            }
            standing => {
                part.standing = standing;
                return;
            }
        };
        let outcome = self.come_back(&mut away);
        let mut part = self.part.lock();
        let is_leaving = self.leaving.is_cancelled();
        part.standing = match outcome {
            Return::Standing(hold) if !is_leaving => {
                self.take_place(&mut part, hold);
                part.away = None;
                for callback in &part.on_rejoined {
                    let callback = Arc::clone(callback);
                    self.tell(move || (callback.lock())());
                }
                return;
            }
            Return::Taken if !is_leaving => {
                part.standing = Standing::Away(away);
                return;
            }
            Return::Refused if !is_leaving => {
                part.standing = Standing::Away(away);
                drop(part);
                self.wake();
                return;
            }
            outcome => {
                drop(part);
                let left = match (outcome, away.unsure) {
                    (Return::Standing(hold), _) => leave(hold, &Wait::FOREVER).map(drop),
                    (_, Some(session)) => self.node.retract(&session),
                    (_, None) => away.gone,
                };
                part = self.part.lock();
                Standing::Left(left)
            }
        };
        self.changed.notify_all();
    }

    /// Notes the loss.
    fn note_lost(self: &Arc<Self>, hold: Hold) -> Box<Away> {
        let why = hold.lost().reason().unwrap_or(LossReason::NodeDeleted);
        let mut part = self.part.lock();
        part.away = Some(why);
        for callback in &part.on_lost {
            let callback = Arc::clone(callback);
            self.tell(move || (callback.lock())(why));
        }
        drop(part);
        let gone = match why {
            LossReason::NodeDeleted | LossReason::SessionExpired => Ok(()),
            _ => Err(hold.lost_error(why)),
        };
        let client = &self.node.target.client;
        let watch_loop = WatchLoop::telling(client, Some(&self.leaving), self.signal());
        Box::new(Away { watch_loop, unsure: None, gone, complained: false })
    }

    /// Rejoins, unless the group is left meanwhile.
    fn come_back(&self, away: &mut Away) -> Return {
        // The node of the other member is still there.
        if away.watch_loop.is_current() {
            return Return::Taken;
        }
        if away.watch_loop.is_cancelled() {
            return Return::Never;
        }
        let error = match self.node.settle(&mut away.watch_loop, None, &mut away.unsure) {
            Ok(JoinOutcome::Standing(hold)) => return Return::Standing(hold),
            Ok(JoinOutcome::Taken | JoinOutcome::NotInTime) => return Return::Taken,
            Err(error) => error,
        };
        let group = self.node.target.node().unwrap_or_default();
        if matches!(error.kind(), ErrorKind::Closed | ErrorKind::AuthFailed) {
            logging::warning!(
                target: "zklock::group",
                "group {group}: cannot rejoin, giving up: {error}"
            );
            return Return::Never;
        }
        if !std::mem::replace(&mut away.complained, true) {
            logging::warning!(
                target: "zklock::group",
                "group {group}: cannot rejoin, retrying every {REST:?}: {error}"
            );
        }
        away.watch_loop.rest(Deadline::after(REST));
        Return::Refused
    }

    /// Makes this the present hold.
    fn take_place(self: &Arc<Self>, part: &mut MembershipState, hold: Hold) {
        let lost = hold.lost();
        let token = Cancel::from(lost.clone());
        let subscription = token.subscribe(self.signal());
        let is_lost = token.is_cancelled();
        (part.lost, part.standing) = (lost, Standing::Member(hold, (token, subscription)));
        if is_lost {
            self.wake();
        }
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
        match std::mem::replace(&mut part.standing, Standing::Left(Ok(()))) {
            Standing::Member(hold, _) => {
                drop(part);
                return release(hold);
            }
            Standing::Away(away) if away.unsure.is_none() => {
                drop(part);
                return away.gone.map(|()| true);
            }
            standing => part.standing = standing,
        }
        drop(part);
        // There may be a node: a thread finds out and deletes it.
        self.wake();
        let mut part = self.part.lock();
        loop {
            if let Standing::Left(left) = &part.standing {
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
