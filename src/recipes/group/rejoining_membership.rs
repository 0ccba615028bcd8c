//! A membership, which rejoins after a loss.

use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, mem};

use super::member_node::{Joined, MemberNode, leave};
use crate::connection_notice::End;
use crate::contend::{DROP_LIMIT, Hold, Lost};
use crate::error::{ErrorKind, Result};
use crate::logging;
use crate::loss_reason::LossReason;
use crate::rt::{Condvar, Deadline, Mutex, Signal};
use crate::session::{
    Call, Callbacks, Cancel, ClaimedName, InOrder, Session, SessionState, Stop, Subscription, Wait,
    WatchLoop, cancelled,
};

/// How long a member that the server refuses waits before it tries to rejoin.
const REST: Duration = Duration::from_secs(1);

/// What the membership of a client claims that waits for a session: no node has this path.
const OPENING: &str = "open";

/// A membership in a [`Group`](crate::Group), which rejoins by itself after a loss; dropping it
/// leaves the group.
///
/// Dropping returns when the node's deletion is under way, within half a second.
///
/// A membership is lost with its session, or when another client deletes its node. Unlike a
/// [`LockGuard`](crate::LockGuard) it rejoins then, in a new session, or when the id is free again.
#[must_use = "if unused the group is left immediately"]
#[clippy::has_significant_drop]
pub struct Membership {
    shared: Arc<SharedMembership>,
}

impl Membership {
    /// A membership of which the hold is the first node.
    pub(super) fn start(node: Arc<MemberNode>, hold: Hold) -> Membership {
        let core = node.target.client.core();
        let (callbacks, threads) = (InOrder::new(core.events()), core.rejoining().clone());
        let shared = Arc::new_cyclic(|shared| SharedMembership {
            leaving: Cancel::new(),
            state: Mutex::new(MembershipState {
                lost: hold.lost(),
                standing: Standing::Left(Ok(())),
                away: None,
                on_lost: Vec::new(),
                on_rejoined: Vec::new(),
            }),
            changed: Condvar::new(),
            caretaker: Arc::new(Caretaker {
                process: std::process::id(),
                shared: Weak::clone(shared),
                threads,
                turn: Mutex::default(),
            }),
            callbacks,
            node,
        });
        shared.take_place(hold, |_, _| ());
        Membership { shared }
    }

    /// Returns the path of the member's node, without the chroot; it ends with the id.
    pub fn path(&self) -> &str {
        &self.shared.node.path
    }

    /// Returns whether others can see the member, as far as this process knows.
    ///
    /// `false` from the loss of its session or its node until it has rejoined. Sends no request.
    pub fn is_member(&self) -> bool {
        if self.shared.node.target.client.core().is_elsewhere() {
            return false;
        }
        let state = self.shared.state.lock();
        let is_standing = matches!(state.standing, Standing::Member(..));
        let lost = state.lost.clone();
        // Without the lock: a loss that is found now is logged.
        drop(state);
        is_standing && lost.reason().is_none()
    }

    /// Returns a handle with which any thread can wait for the loss of the membership, which may
    /// have happened already.
    pub fn lost(&self) -> Lost {
        self.shared.state.lock().lost.clone()
    }

    /// Calls `callback` each time the membership is lost, even if it rejoins a moment later.
    ///
    /// At once if it is lost just now; never after the group was left. These callbacks and those of
    /// [`on_rejoined`](Membership::on_rejoined) run in the order of the events, one at a time, on a
    /// thread of their own, and may call this library. A callback that panics is called again the
    /// next time; the panic is logged.
    pub fn on_lost(&self, callback: impl FnMut(LossReason) + Send + 'static) {
        let callback: LossCallback = Arc::new(Mutex::new(Box::new(callback)));
        let mut state = self.shared.state.lock();
        state.on_lost.push(Arc::clone(&callback));
        if let Some(why) = state.away {
            self.shared.tell(move || (callback.lock())(why));
        }
    }

    /// Calls `callback`, as [`on_lost`](Membership::on_lost) does, each time others can see the
    /// membership again after a loss.
    pub fn on_rejoined(&self, callback: impl FnMut() + Send + 'static) {
        self.shared.state.lock().on_rejoined.push(Arc::new(Mutex::new(Box::new(callback))));
    }

    /// Leaves the group as dropping does, but waits until the server has confirmed it.
    ///
    /// While the connection is lost it waits until the session is resumed or lost. If another
    /// member has taken the id since a loss, that one keeps it.
    ///
    /// # Errors
    ///
    /// [`SessionLost`](ErrorKind::SessionLost), [`Closed`](ErrorKind::Closed) or
    /// [`AuthFailed`](ErrorKind::AuthFailed) if the session was lost before the server has
    /// confirmed it: others may see the member until the server ends the session, for up to a
    /// session timeout more while servers run. [`NotAuthorized`](ErrorKind::NotAuthorized) without
    /// DELETE on the group's node; [`Server`](ErrorKind::Server) if the server refuses for another
    /// reason. The delete is then retried in the background.
    pub fn leave(self) -> Result<()> {
        self.leave_within(Wait::FOREVER).map(drop)
    }

    /// Leaves the group as [`leave`](Membership::leave) does, waiting at most `wait`.
    ///
    /// Returns false if there was no answer by then: the background goes on.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled): the background goes on. Otherwise as
    /// [`leave`](Membership::leave).
    pub fn leave_within(self, wait: impl Into<Wait>) -> Result<bool> {
        let wait = wait.into();
        self.shared.leave(&wait, |hold| leave(hold, &wait))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.shared.leaving.is_cancelled() {
            return;
        }
        if self.shared.node.target.client.core().is_elsewhere() {
            // What it owns has locks that no thread of this process may ever unlock.
            mem::forget(Arc::clone(&self.shared));
            return;
        }
        let until = Deadline::after(DROP_LIMIT);
        let _ = self.shared.leave(&Wait::from(until), |hold| {
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
    state: Mutex<MembershipState>,
    changed: Condvar,
    caretaker: Arc<Caretaker>,
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
    /// Of the client's session.
    _changes: Subscription,
    /// The session in which the node may have been created, without an answer that says so.
    unsure: Option<Arc<Session>>,
    /// What leaving comes to: an error if the server may not know of the loss yet.
    gone: Result<()>,
    /// Another member has the id, and its node is watched.
    is_taken: bool,
    /// The server has refused to let it rejoin: not to be asked again before.
    not_before: Option<Deadline>,
}

/// Has a thread look after a membership, one at a time, whenever something changes.
struct Caretaker {
    process: u32,
    shared: Weak<SharedMembership>,
    threads: Callbacks,
    turn: Mutex<Turn>,
}

#[derive(Default)]
struct Turn {
    is_taken: bool,
    /// To look again.
    is_due: bool,
}

impl Caretaker {
    /// Has a thread look after the membership, now or when the present look is over. Owns nothing of
    /// the program's, so any thread may call it.
    fn wake(self: &Arc<Self>) {
        if self.process != std::process::id() {
            return;
        }
        let mut turn = self.turn.lock();
        turn.is_due = true;
        if !mem::replace(&mut turn.is_taken, true) {
            drop(turn);
            self.submit();
        }
    }

    fn submit(self: &Arc<Self>) {
        let caretaker = Arc::clone(self);
        self.threads.dispatch(move || {
            caretaker.turn.lock().is_due = false;
            if let Some(shared) = caretaker.shared.upgrade() {
                shared.look_after();
            }
            let mut turn = caretaker.turn.lock();
            turn.is_taken = turn.is_due;
            let is_due = turn.is_due;
            drop(turn);
            // Behind the other memberships.
            if is_due {
                caretaker.submit();
            }
        });
    }

    fn signal(self: &Arc<Self>) -> Signal {
        let caretaker = Arc::clone(self);
        Arc::new(move || caretaker.wake())
    }
}

enum Return {
    Standing(Hold),
    /// Something has to change before.
    Waiting,
    Never,
}

impl SharedMembership {
    /// Rejoins if the node is lost, as soon as that is possible; leaves what was created too late.
    /// Waits for answers, but as good as never for anything else: many memberships share few threads.
    fn look_after(&self) {
        let mut state = self.state.lock();
        let mut away = match mem::replace(&mut state.standing, Standing::Busy) {
            Standing::Away(away) => {
                drop(state);
                away
            }
            Standing::Member(hold, (token, _)) if token.is_cancelled() => {
                drop(state);
                self.note_lost(hold)
            }
            standing => {
                state.standing = standing;
                return;
            }
        };
        let outcome = self.come_back(&mut away);
        let hold = match outcome {
            Return::Standing(hold) => match self.take_place(hold, Self::tell_of_return) {
                None => return,
                hold => hold,
            },
            Return::Waiting => {
                let mut state = self.state.lock();
                if !self.leaving.is_cancelled() {
                    state.standing = Standing::Away(away);
                    return;
                }
                None
            }
            Return::Never => None,
        };
        let left = match (hold, away.unsure) {
            (Some(hold), _) => leave(hold, &Wait::FOREVER).map(drop),
            (None, Some(session)) => self.node.retract(&session),
            (None, None) => away.gone,
        };
        self.state.lock().standing = Standing::Left(left);
        self.changed.notify_all();
    }

    /// Notes the loss.
    fn note_lost(&self, hold: Hold) -> Box<Away> {
        let why = hold.lost().reason().unwrap_or(LossReason::NodeDeleted);
        let mut state = self.state.lock();
        state.away = Some(why);
        for callback in &state.on_lost {
            let callback = Arc::clone(callback);
            self.tell(move || (callback.lock())(why));
        }
        drop(state);
        let gone = match why {
            LossReason::NodeDeleted | LossReason::SessionExpired => Ok(()),
            _ => Err(hold.lost_error(why)),
        };
        let (client, signal) = (&self.node.target.client, self.caretaker.signal());
        Box::new(Away {
            _changes: client.core().changes().subscribe(Arc::clone(&signal)),
            watch_loop: WatchLoop::new(Call::telling(
                client.core(),
                &Wait::from(&self.leaving),
                signal,
            )),
            unsure: None,
            gone,
            is_taken: false,
            not_before: None,
        })
    }

    fn tell_of_return(&self, state: &mut MembershipState) {
        state.away = None;
        for callback in &state.on_rejoined {
            let callback = Arc::clone(callback);
            self.tell(move || (callback.lock())());
        }
    }

    /// Rejoins, unless the group is left meanwhile.
    fn come_back(&self, away: &mut Away) -> Return {
        let Some(_opening) = self.may_ask(away) else { return Return::Waiting };
        if away.watch_loop.call.is_cancelled() {
            return Return::Never;
        }
        let rejoined = self.node.rejoin(&mut away.watch_loop, &mut away.unsure);
        away.is_taken = matches!(rejoined, Ok(Joined::Taken));
        let was_refused = away.not_before.take().is_some();
        let error = match rejoined {
            Ok(Joined::Standing(hold)) => return Return::Standing(hold),
            Ok(Joined::Taken) => return Return::Waiting,
            Err(Stop::Failed(error)) => error,
            Ok(Joined::NotYet) | Err(_) => {
                self.caretaker.wake();
                return Return::Waiting;
            }
        };
        let group = self.node.target.node().unwrap_or_default();
        if matches!(error.kind(), ErrorKind::Closed | ErrorKind::AuthFailed) {
            logging::warning!(
                target: "zklock::group",
                "group {group}: cannot rejoin, giving up: {error}"
            );
            return Return::Never;
        }
        if !was_refused {
            logging::warning!(
                target: "zklock::group",
                "group {group}: cannot rejoin, retrying every {REST:?}: {error}"
            );
        }
        away.not_before = Some(Deadline::after(REST));
        self.caretaker.wake();
        Return::Waiting
    }

    /// Whether to ask for the node now. Without a session, one membership of the client waits for it,
    /// until what this returns is dropped; the others go on then.
    fn may_ask(&self, away: &Away) -> Option<Option<ClaimedName>> {
        let (client, watch_loop) = (&self.node.target.client, &away.watch_loop);
        if away.is_taken && watch_loop.is_current() {
            return None;
        }
        if let Some(not_before) = away.not_before {
            // As long as many are refused, it has passed when it is their turn.
            watch_loop.call.has_come(not_before, || false);
        }
        match client.state() {
            SessionState::Suspended => None,
            SessionState::Lost => client.core().claim(OPENING).map(Some),
            _ => Some(None),
        }
    }

    /// Makes this the present hold, unless the group was left meanwhile: then returns it.
    fn take_place(
        &self,
        hold: Hold,
        then: impl FnOnce(&Self, &mut MembershipState),
    ) -> Option<Hold> {
        // Without the lock: a loss that is found now is logged.
        let lost = hold.lost();
        let token = Cancel::from(lost.clone());
        let subscription = token.subscribe(self.caretaker.signal());
        let mut state = self.state.lock();
        if self.leaving.is_cancelled() {
            return Some(hold);
        }
        let is_lost = token.is_cancelled();
        (state.lost, state.standing) = (lost, Standing::Member(hold, (token, subscription)));
        then(self, &mut state);
        drop(state);
        if is_lost {
            self.caretaker.wake();
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
        let mut state = self.state.lock();
        match mem::replace(&mut state.standing, Standing::Left(Ok(()))) {
            Standing::Member(hold, _) => {
                drop(state);
                return release(hold);
            }
            Standing::Away(away) if away.unsure.as_ref().is_none_or(|one| has_ended(one)) => {
                drop(state);
                let left = away.unsure.map_or(away.gone, |session| self.node.retract(&session));
                return left.map(|()| true);
            }
            standing => state.standing = standing,
        }
        drop(state);
        // There may be a node: a thread finds out and deletes it.
        self.caretaker.wake();
        let left = wait.until_found(
            self,
            |shared| (&shared.state, &shared.changed),
            |state| match &state.standing {
                Standing::Left(left) => Some(left.clone()),
                _ => None,
            },
        );
        if let Some(left) = left {
            return left.map(|()| true);
        }
        // A thread that is at it goes on; in place of one that is to come, the background does.
        let mut state = self.state.lock();
        match mem::replace(&mut state.standing, Standing::Left(Ok(()))) {
            Standing::Away(away) => {
                drop(state);
                away.unsure.iter().for_each(|session| self.node.withdraw(session));
            }
            Standing::Left(left) => {
                state.standing = Standing::Left(left.clone());
                return left.map(|()| true);
            }
            standing => state.standing = standing,
        }
        if wait.is_cancelled() { Err(cancelled(&self.node.path)) } else { Ok(false) }
    }
}

/// Whether it is known what has become of the node. A session that was replaced takes it along only when it
/// is over.
fn has_ended(session: &Session) -> bool {
    let phase = session.status().now();
    match phase.ended {
        Some(End::Replaced) => phase.over,
        ended => ended.is_some(),
    }
}
