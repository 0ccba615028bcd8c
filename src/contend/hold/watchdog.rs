//! Watches a holder's node and its session, and reports that the lock is lost, that its release is
//! requested, or that others contend.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::guards_given_away::GuardsGivenAway;
use super::hold_limit::HoldLimit;
use super::kept_waiting::KeptWaiting;
use crate::connection_notice::End;
use crate::contend::name::{facts, has_others, is_request, with_held_for, with_kept_waiting};
use crate::event::{Event, LogAs};
use crate::loss_reason::LossReason;
use crate::rt::{self, AtomicBool, AtomicU64, Condvar, Deadline, Moment, Mutex, Signal, ThreadId};
use crate::session::{
    Answer, Callbacks, Cancel, CancelState, ClientCore, Fault, Names, Reaper, Reports, Session,
    Subscription,
};
use crate::wire_values::Stat;
use crate::{logging, path};

/// How long to wait before repeating a request about the node that the server has refused.
const PAUSE: Duration = Duration::from_millis(200);

/// What is known of the held node. The guard's user may keep it longer than the guard.
pub(crate) struct Watchdog {
    /// Weak, as waiting for the loss of the lock must not keep its session alive.
    pub(crate) session: Weak<Session>,
    /// The node as the server knows it.
    pub(super) node: String,
    /// The length of the chroot in front of it.
    chroot: usize,
    /// What is held, for messages: such as "lock" or "permit".
    pub(super) noun: &'static str,
    reports: Arc<Reports>,
    /// What its client knows of guards that change threads.
    pub(super) given_away: Arc<GuardsGivenAway>,
    /// The data that the node was made with, if a request to release is to be overwritten with them.
    pub(super) data: Option<Vec<u8>>,
    /// The transaction that made the node, if other sessions may take its name: only that very
    /// node is deleted.
    pub(super) named: Option<i64>,
    /// The connection that the node was last watched on.
    watched_on: AtomicU64,
    events: Callbacks,
    reaper: Arc<Reaper>,
    timer: Arc<Reaper>,
    pub(super) state: Mutex<WatchdogState>,
    pub(super) changed: Condvar,
}

pub(super) type OnLost = Box<dyn FnOnce(LossReason) + Send>;

pub(super) type OnRequest = Box<dyn FnOnce() + Send>;

/// A token that the loss trips.
pub(super) struct LossToken {
    token: Weak<CancelState>,
    /// Set when the loss no longer matters, though this node is not released.
    released: Option<Arc<AtomicBool>>,
}

impl LossToken {
    pub(super) fn new(token: &Cancel, released: Option<Arc<AtomicBool>>) -> LossToken {
        LossToken { token: token.downgrade(), released }
    }

    fn is_released(&self) -> bool {
        self.released.as_ref().is_some_and(|released| released.load(Ordering::SeqCst))
    }

    pub(super) fn is_wanted(&self) -> bool {
        !self.is_released() && self.token.strong_count() > 0
    }

    fn trip(&self) {
        if let Some(token) = self.token.upgrade().filter(|_| !self.is_released()) {
            token.trip();
        }
    }
}

#[derive(Default)]
pub(super) struct WatchdogState {
    /// The present turn: counts the node's holders, and the idle turns between them.
    pub(super) turn: u32,
    /// No thread has the node: it is kept.
    pub(super) idle: bool,
    /// How long it may be held, if that is limited.
    pub(super) limit: Option<HoldLimit>,
    pub(crate) lost: Option<LossReason>,
    pub(super) released: bool,
    /// Since when a caller holds it, if that was reported and its end was not.
    pub(super) reported_since: Option<Instant>,
    /// The release of the lock was requested.
    pub(super) requested: bool,
    pub(crate) callbacks: HolderCallbacks,
    /// How many callbacks must end before a release does, and which threads run some of them.
    pub(super) due: usize,
    running: Vec<ThreadId>,
    node_watch: OneAtATime,
    /// Since when the lock is held, if the node is to tell that.
    held_since: Option<Moment>,
    /// Who waits for the node in this process, if it is to tell that.
    kept_waiting: Option<Arc<KeptWaiting>>,
    /// Whether it is to be written soon, whatever it tells then, and when that was done last.
    is_to_be_written: bool,
    written: Option<Instant>,
    /// Whether the server has refused to have it read or written: that is not tried again.
    is_refused: bool,
    /// The server has refused to set the last watch on the node.
    unwatched: bool,
    /// That was logged.
    complained: bool,
    /// Only if the node itself may not be read.
    pub(super) siblings: Option<Subscription>,
    sibling_watch: OneAtATime,
    /// For other contenders: only if the node is shared, and until one is seen.
    pub(super) arrivals: Option<Subscription>,
    arrival_watch: OneAtATime,
    /// Tells the threads that share the node that others contend, or its release is requested.
    pub(super) on_contest: Option<Signal>,
    /// Tells them that the node is gone, or may be.
    pub(super) on_loss: Option<Signal>,
}

/// Keeps requests of one kind to one at a time, however many events ask for them.
#[derive(Debug, Default)]
struct OneAtATime {
    under_way: bool,
    again: bool,
}

impl OneAtATime {
    /// Whether to ask now; otherwise the request that is under way will be followed by another.
    fn begin(&mut self) -> bool {
        self.again = self.under_way;
        !mem::replace(&mut self.under_way, true)
    }

    /// The request was answered. Whether another is to follow.
    fn end(&mut self) -> bool {
        self.under_way = false;
        mem::take(&mut self.again)
    }
}

/// Each of the threads that wait for a node in its process has it tell that, and it does so no more often.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

/// How long a node stays for callbacks that have begun to tell that its holder's time is over: so many looks.
/// A process that is stopped meanwhile loses only one of them.
const LOOKS_TO_TELL: u32 = 50;
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// How many parts a wait for callbacks has. A process that is stopped meanwhile loses only one of
/// them, so its callbacks still have time when it goes on.
const WAIT_PARTS: u32 = 10;

/// What a holder leaves behind when it releases. It must be dropped when the node's deletion is
/// under way and no mutex is held: dropping callbacks may run any code of the user.
#[must_use = "callbacks that it owns may take this very lock when they are dropped"]
pub(crate) struct ReleasedParts {
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) lost: Option<LossReason>,
    /// Dropped when the node's deletion is on its way: the next thread here may contend then.
    pub(crate) next: Option<Box<dyn Send>>,
    pub(crate) callbacks: HolderCallbacks,
}

impl ReleasedParts {
    /// Lets the next thread contend. Then waits for the callbacks that have begun, and for those that
    /// report a loss from before the release, so that none runs after it. A callback that releases
    /// waits only for the others.
    pub(super) fn settle(self, until: Deadline) {
        drop(self.next);
        let own = rt::thread_id();
        let is_due = |state: &WatchdogState| {
            state.due > state.running.iter().filter(|thread| **thread == own).count()
        };
        let mut state = self.watchdog.state.lock();
        if let Some(until) = until.instant().filter(|_| is_due(&state)) {
            let part = until.saturating_duration_since(rt::now()) / WAIT_PARTS;
            for _ in 0..WAIT_PARTS {
                let end = rt::now() + part;
                while is_due(&state)
                    && !self.watchdog.changed.wait_until(&mut state, end).timed_out()
                {
                }
            }
        }
        drop(state);
        drop(self.callbacks);
    }
}

/// What a holder has registered.
#[derive(Default)]
pub(crate) struct HolderCallbacks {
    pub(crate) lost: Vec<OnLost>,
    /// Tokens that the loss trips.
    pub(super) tokens: Vec<LossToken>,
    pub(super) requested: Vec<OnRequest>,
}

impl WatchdogState {
    /// Whether the holder of this turn has released.
    pub(super) fn is_over(&self, turn: u32) -> bool {
        self.released || self.turn != turn
    }

    /// Whether the holder of this turn has held it for as long as it may.
    pub(super) fn is_held_too_long(&self) -> bool {
        self.limit.is_some_and(HoldLimit::is_over)
    }

    /// Whether callbacks of a loss have been told: all have begun, and they have ended or `had_time`.
    fn has_told(&self, had_time: bool) -> bool {
        self.due == 0 || self.due <= self.running.len() && had_time
    }

    /// Why the holder of this turn has lost the lock, if it has.
    pub(super) fn loss(&self, turn: u32) -> Option<LossReason> {
        self.lost.filter(|_| self.turn == turn)
    }
}

impl Watchdog {
    pub(super) fn new(
        core: &ClientCore,
        session: &Arc<Session>,
        (node, noun): (String, &'static str),
        data: Option<Vec<u8>>,
        named: Option<i64>,
    ) -> Watchdog {
        Watchdog {
            session: Arc::downgrade(session),
            chroot: node.len() - core.shown(&node).len(),
            node,
            noun,
            reports: Arc::clone(core.reports()),
            given_away: core.extension(),
            data,
            named,
            watched_on: AtomicU64::new(0),
            events: core.events().clone(),
            reaper: Arc::clone(core.reaper()),
            timer: Arc::clone(core.timer()),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The node as the client names it.
    fn shown(&self) -> &str {
        self.node.get(self.chroot..).unwrap_or(&self.node)
    }

    pub(super) fn signal(self: &Arc<Self>, act: fn(&Arc<Watchdog>)) -> Signal {
        let watchdog = Arc::downgrade(self);
        Arc::new(move || {
            if let Some(watchdog) = watchdog.upgrade() {
                act(&watchdog);
            }
        })
    }

    /// Notes that the node is watched, by that connection.
    pub(super) fn note_watched_on(&self, connection: u64) {
        self.watched_on.store(connection, Ordering::SeqCst);
    }

    /// Acts on any change of the session.
    pub(super) fn look(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let phase = session.status().now();
        let new_connection = || {
            let before = self.watched_on.swap(phase.connection, Ordering::SeqCst);
            (before != phase.connection).then_some(before)
        };
        if let Some(end) = phase.ended {
            self.lose(end.into());
        } else if let Some(before) = phase.attached.then(new_connection).flatten() {
            let mut state = self.state.lock();
            // What was under way went with its connection.
            (state.node_watch, state.sibling_watch, state.arrival_watch) = Default::default();
            let arrivals = state.arrivals.is_some();
            drop(state);
            self.have_watched(before == 0);
            if arrivals {
                self.watch_for_others();
            }
        } else if phase.is_usable() {
            // While an ACL hides the lock node, the server drops watches on its children unfired.
            let state = self.state.lock();
            let (siblings, arrivals) = (state.siblings.is_some(), state.arrivals.is_some());
            let unwatched = state.unwatched;
            drop(state);
            if unwatched {
                self.watch();
            }
            if siblings {
                self.watch_siblings();
            }
            if arrivals {
                self.watch_for_others();
            }
        }
    }

    /// Checks whether the node is still there, and watches it.
    pub(super) fn watch(self: &Arc<Self>) {
        self.have_watched(false);
    }

    /// Watches the node. The first watch `can_wait` a moment: a lock released by then needs none, and
    /// neither does a node that is watched since it was created.
    fn have_watched(self: &Arc<Self>, can_wait: bool) {
        let Some(session) = self.session.upgrade() else { return };
        if can_wait && session.is_watched(&self.node) {
            return;
        }
        let mut state = self.state.lock();
        if state.released || !state.node_watch.begin() {
            return;
        }
        drop(state);
        let watchdog = Arc::downgrade(self);
        let on_answer = move |answer: Answer<Vec<u8>>| {
            let Some(watchdog) = watchdog.upgrade() else { return };
            let mut state = watchdog.state.lock();
            let again = state.node_watch.end();
            // Data that are too large are not read, but they are watched.
            if matches!(answer, Ok(_) | Err(Fault::TooLarge(_))) {
                state.unwatched = false;
            }
            drop(state);
            match answer {
                Ok(data) if is_request(&data) => watchdog.request(),
                Ok(_) | Err(Fault::TooLarge(_)) => {}
                Err(Fault::NoNode) => {
                    watchdog.lose(LossReason::NodeDeleted);
                }
                Err(Fault::NoAuth) => watchdog.watch_siblings(),
                Err(fault) => watchdog.not_watched(&fault, Watchdog::watch),
            }
            if again {
                watchdog.watch();
            }
        };
        let named = self.named;
        let on_answer = move |answer: Answer<(Vec<u8>, Stat)>| {
            on_answer(answer.and_then(|(data, stat)| own_only(named, &stat).map(|()| data)));
        };
        if !can_wait {
            return session.watch_soon(&self.node, Box::new(on_answer));
        }
        let watchdog = Arc::downgrade(self);
        let is_wanted = move || watchdog.upgrade().is_some_and(|one| !one.state.lock().released);
        session.watch_later(&self.node, Box::new(is_wanted), Box::new(on_answer));
    }

    /// The server has not set a watch: it is asked again in a moment, and at each review.
    fn not_watched(self: &Arc<Self>, fault: &Fault, ask: fn(&Arc<Watchdog>)) {
        // After a lost connection there will be another one.
        if fault.is_loss() {
            return;
        }
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state.lock();
        state.unwatched = true;
        let is_first = !mem::replace(&mut state.complained, true);
        drop(state);
        self.later(&session, PAUSE, move |watchdog, _| {
            ask(watchdog);
            None
        });
        if is_first {
            logging::warning!(
                target: "zklock::hold",
                "cannot watch the holder's node {:?}: {fault}; retrying. Until that succeeds, \
                 its deletion or a request to release the lock may go unnoticed",
                self.shown()
            );
        }
    }

    /// Runs a job in the background, unless the lock was released before; the job returns when to
    /// run it again.
    fn later(
        self: &Arc<Self>,
        session: &Arc<Session>,
        pause: Duration,
        mut job: impl FnMut(&Arc<Watchdog>, &Session) -> Option<Duration> + Send + 'static,
    ) {
        let (watchdog, owner) = (Arc::downgrade(self), Arc::downgrade(session));
        let chore = move || {
            let (watchdog, session) = (watchdog.upgrade()?, owner.upgrade()?);
            if watchdog.state.lock().released {
                return None;
            }
            rt::now().checked_add(job(&watchdog, &session)?)
        };
        if let Some(due) = rt::now().checked_add(pause) {
            self.reaper.later(session, due, chore);
        }
    }

    /// Watches the siblings of a node that an ACL hides, and looks for the node at each change.
    fn watch_siblings(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state.lock();
        if state.released || !state.sibling_watch.begin() {
            return;
        }
        if state.siblings.is_none() {
            let parent = path::parent(&self.node);
            let look = self.signal(Watchdog::watch_siblings);
            state.siblings = Some(session.watches().subscribe(parent, look));
        }
        drop(state);
        let watchdog = Arc::downgrade(self);
        let on_answer = move |answer: Answer<()>| {
            let Some(watchdog) = watchdog.upgrade() else { return };
            let again = watchdog.state.lock().sibling_watch.end();
            match answer {
                Err(Fault::NoNode) => {
                    watchdog.lose(LossReason::NodeDeleted);
                }
                Err(fault @ (Fault::Busy | Fault::Refused(_))) => {
                    watchdog.not_watched(&fault, Watchdog::watch_siblings);
                }
                Ok(()) | Err(_) => {}
            }
            if again {
                watchdog.watch_siblings();
            }
        };
        let named = self.named;
        let on_answer =
            move |answer: Answer<Stat>| on_answer(answer.and_then(|stat| own_only(named, &stat)));
        session.watch_siblings_soon(&self.node, Box::new(on_answer));
    }

    /// Acts on a change of the children. A contender that does not wait could be gone before a
    /// look, so a kept node is released without one.
    fn others_may_be_there(self: &Arc<Self>) {
        if self.state.lock().idle {
            self.contest();
        } else {
            self.watch_for_others();
        }
    }

    /// Reports to the threads that share the node when others contend: looks at each change of the
    /// children until there is another contender.
    pub(super) fn watch_for_others(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state.lock();
        if state.released || !state.arrival_watch.begin() {
            return;
        }
        let lock_node = path::parent(&self.node);
        if state.arrivals.is_none() {
            let look = self.signal(Watchdog::others_may_be_there);
            let arrivals = session.watches().subscribe(lock_node, look);
            // The others wait for what this event leads to.
            let waits = session.await_server(false);
            state.arrivals = Some(Subscription::until(move || drop((arrivals, waits))));
        }
        drop(state);
        let watchdog = Arc::downgrade(self);
        let on_answer = move |answer: Answer<Names>| {
            let Some(watchdog) = watchdog.upgrade() else { return };
            let again = watchdog.state.lock().arrival_watch.end();
            let contested = match &answer {
                Ok(names) => has_others(path::last(&watchdog.node), names.iter()),
                // There will be another connection.
                Err(fault) if fault.is_loss() => false,
                // If the children cannot be listed, others may contend.
                Err(_) => true,
            };
            if contested {
                watchdog.contest();
            } else if again {
                watchdog.watch_for_others();
            }
        };
        session.watch_children_soon(lock_node, Box::new(on_answer));
    }

    /// Reports, once, to the threads that share the node that others want the lock.
    fn contest(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let (arrivals, tell) = (state.arrivals.take(), state.on_contest.clone());
        drop(state);
        drop(arrivals);
        if let Some(tell) = tell {
            tell();
        }
    }

    /// Runs a callback about a loss. It is counted as due already: the loss came before a release,
    /// if there has been one since.
    pub(super) fn tell_of_loss(self: &Arc<Self>, callback: OnLost, why: LossReason) {
        let call = DueCallback::new(Arc::clone(self));
        self.events.dispatch(move || call.run(move || callback(why)));
    }

    /// Runs a callback about a request to release, unless the holder of this turn has released.
    pub(super) fn tell_of_request(self: &Arc<Self>, turn: u32, callback: OnRequest) {
        let watchdog = Arc::clone(self);
        self.events.dispatch(move || {
            let mut state = watchdog.state.lock();
            if state.is_over(turn) {
                return;
            }
            state.due += 1;
            drop(state);
            DueCallback::new(watchdog).run(callback);
        });
    }

    /// Records and reports a request to release the lock.
    fn request(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.released {
            return;
        }
        let is_first = !mem::replace(&mut state.requested, true);
        let callbacks = mem::take(&mut state.callbacks.requested);
        let turn = state.turn;
        drop(state);
        self.write_data_back();
        if !is_first {
            return;
        }
        for callback in callbacks {
            self.tell_of_request(turn, callback);
        }
        // The request is for the node: no other thread here may have it after this holder.
        self.contest();
        logging::info!(target: "zklock::hold", "{:?} was asked to release its lock", self.shown());
    }

    /// Writes the holder's data back, which the request has overwritten and which others read.
    fn write_data_back(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade().filter(|_| self.data.is_some()) else { return };
        self.later(&session, Duration::ZERO, |watchdog, session| {
            let written = session.write(&watchdog.node, &watchdog.present_data());
            (written == Err(Fault::ConnectionLoss)).then_some(PAUSE)
        });
    }

    /// The node's data with what it is to tell now.
    pub(super) fn present_data(&self) -> Vec<u8> {
        let mut data = self.data.clone().unwrap_or_default();
        let state = self.state.lock();
        let held_for = state.held_since.map(|since| Moment::now().since(since));
        if let Some(told) = held_for.and_then(|held_for| with_held_for(&data, held_for)) {
            data = told;
        }
        let kept = state.kept_waiting.as_ref().map(|kept| kept.nodes()).unwrap_or_default();
        with_kept_waiting(&data, &kept).unwrap_or(data)
    }

    /// From here on, whatever is written to the node tells since when the lock is held, or who waits for it
    /// here. False if it is to be written soon anyway; or was just now, and tells the same again.
    pub(super) fn note_facts(
        &self,
        held_since: Option<Moment>,
        kept_waiting: Option<&Arc<KeptWaiting>>,
        is_new: bool,
    ) -> bool {
        let mut state = self.state.lock();
        state.held_since = held_since.or(state.held_since);
        if let Some(kept) = kept_waiting {
            state.kept_waiting = Some(Arc::clone(kept));
        }
        let can_tell = self.data.as_deref().is_some_and(|data| facts(data).is_some());
        let is_fresh = |at: Instant| rt::now().saturating_duration_since(at) < BETWEEN_WRITES;
        if !can_tell || state.is_refused || !is_new && state.written.is_some_and(is_fresh) {
            return false;
        }
        !mem::replace(&mut state.is_to_be_written, true)
    }

    /// Whether some thread holds the lock by this node, or it is kept.
    pub(super) fn is_of_a_hold(&self) -> bool {
        let state = self.state.lock();
        !state.released && state.lost.is_none()
    }

    /// Whether the holder of this turn holds the lock, as far as is known.
    pub(super) fn is_held_in(&self, turn: u32) -> bool {
        let state = self.state.lock();
        !state.is_over(turn) && state.lost.is_none()
    }

    /// What is to be told is being written.
    pub(super) fn note_written(&self) {
        let mut state = self.state.lock();
        (state.is_to_be_written, state.written) = (false, Some(rt::now()));
    }

    /// The server has refused to have the node read or written.
    pub(super) fn note_refused(&self) {
        self.state.lock().is_refused = true;
    }

    /// Records that the lease, of which that is left, or the holder's time has ended, if so, and returns why
    /// it is lost.
    pub(super) fn look_at_clocks(
        self: &Arc<Self>,
        session: &Arc<Session>,
        lease: Result<Duration, End>,
    ) -> Option<LossReason> {
        match lease {
            Ok(_) => self.end_turn(session),
            // Another loss may have come first.
            Err(end) => Some(self.lose(end.into())),
        }
    }

    /// Ends the hold of a holder whose time is over, if it is: tells of the loss, and then has the node
    /// deleted.
    fn end_turn(self: &Arc<Self>, session: &Arc<Session>) -> Option<LossReason> {
        let so = WatchdogState::is_held_too_long;
        let (is_first, why) = self.lose_if(LossReason::HeldTooLong, so)?;
        if is_first {
            self.delete_when_told(session);
        }
        Some(why)
    }

    /// Has the node deleted when the program was told of the loss: until then, nobody else can hold.
    fn delete_when_told(self: &Arc<Self>, session: &Arc<Session>) {
        let (watchdog, owner, mut looks) = (Arc::clone(self), Arc::downgrade(session), 0);
        let chore = move || {
            let session = owner.upgrade()?;
            if !watchdog.state.lock().has_told(looks >= LOOKS_TO_TELL) {
                looks += 1;
                // There may have been no thread for them.
                watchdog.events.retry();
                return rt::now().checked_add(BETWEEN_LOOKS);
            }
            watchdog.reaper.let_go(&session, &watchdog.node, Deadline::at(rt::now()));
            None
        };
        self.timer.later(session, rt::now(), chore);
    }

    /// Ends the hold if its holder's time is over, and returns when to look again.
    pub(super) fn look_at_limit(self: &Arc<Self>, session: &Arc<Session>) -> Option<Instant> {
        self.look_at_clocks(session, session.trusted());
        let state = self.state.lock();
        let limit = state.limit.filter(|_| !state.released && state.lost.is_none())?;
        rt::now().checked_add(limit.until_next_look())
    }

    /// What is known of the loss.
    pub(super) fn details(&self, why: LossReason) -> Option<String> {
        if why == LossReason::HeldTooLong {
            return self.state.lock().limit.map(HoldLimit::details);
        }
        self.session.upgrade()?.details(why)
    }

    /// Records and reports a loss, unless there was one before. Returns why it is lost.
    pub(super) fn lose(self: &Arc<Self>, why: LossReason) -> LossReason {
        self.lose_if(why, |_| true).map_or(why, |(_, why)| why)
    }

    /// Records and reports a loss if this is so. Returns whether it has done that, and why it is lost.
    fn lose_if(
        self: &Arc<Self>,
        why: LossReason,
        is_so: impl FnOnce(&WatchdogState) -> bool,
    ) -> Option<(bool, LossReason)> {
        let mut state = self.state.lock();
        if !is_so(&state) {
            return None;
        }
        if state.released || state.lost.is_some() {
            // After a release none is recorded.
            return Some((false, state.lost.unwrap_or(why)));
        }
        state.lost = Some(why);
        let callbacks = mem::take(&mut state.callbacks.lost);
        state.due += callbacks.len();
        let (idle, tell) = (state.idle, state.on_loss.clone());
        let since = state.reported_since.take();
        let tokens = mem::take(&mut state.callbacks.tokens);
        self.changed.notify_all();
        drop(state);
        if let Some(session) = self.session.upgrade().filter(|_| why == LossReason::NodeDeleted) {
            session.owned().forget(&self.node);
        }
        tokens.iter().for_each(LossToken::trip);
        for callback in callbacks {
            self.tell_of_loss(callback, why);
        }
        if let Some(tell) = tell {
            tell();
        }
        if !idle {
            let (node, what) = (self.shown().to_owned(), self.noun);
            let lock = path::parent(&node).to_owned();
            self.reports.report(LogAs::LOSS, || {
                let details = self.details(why);
                let held = since.map(|since| rt::now().saturating_duration_since(since));
                Event::HoldLost { lock, node, what, held, reason: why, details }
            });
        }
        Some((true, why))
    }
}

/// A callback that counts as due until this is dropped, even if it panics or never runs.
struct DueCallback {
    watchdog: Arc<Watchdog>,
    thread: Option<ThreadId>,
}

impl DueCallback {
    fn new(watchdog: Arc<Watchdog>) -> DueCallback {
        DueCallback { watchdog, thread: None }
    }

    fn run(mut self, callback: impl FnOnce()) {
        let thread = rt::thread_id();
        self.thread = Some(thread);
        self.watchdog.state.lock().running.push(thread);
        callback();
    }
}

impl Drop for DueCallback {
    fn drop(&mut self) {
        let mut state = self.watchdog.state.lock();
        state.due = state.due.saturating_sub(1);
        let ran = state.running.iter().position(|thread| Some(*thread) == self.thread);
        if let Some(place) = ran {
            state.running.swap_remove(place);
        }
        self.watchdog.changed.notify_all();
    }
}

/// `NoNode` if the node of a name that others may take is not the one that we have made.
fn own_only(named: Option<i64>, stat: &Stat) -> Answer<()> {
    if named.is_none_or(|czxid| czxid == stat.czxid) { Ok(()) } else { Err(Fault::NoNode) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_when_all_callbacks_have_begun_and_had_their_time() {
        let mut state = WatchdogState { due: 2, ..WatchdogState::default() };
        assert!(!state.has_told(true), "none has begun, as when there is no thread for them");
        state.running.push(rt::thread_id());
        assert!(!state.has_told(true), "one has not begun");
        state.running.push(rt::thread_id());
        assert!(!state.has_told(false), "they are still telling");
        assert!(state.has_told(true), "callbacks that hang keep nobody waiting");
        state.due = 0;
        assert!(state.has_told(false), "all have ended");
    }
}
