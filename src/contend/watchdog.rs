//! Watches a holder's node and its session, and tells whoever wants to know that the lock is lost, that
//! somebody asks to let go, or that others contend.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, mem};

use super::core::others;
use super::loss_reason::LossReason;
use super::revoke::is_request;
use crate::logging;
use crate::path;
use crate::rt::{self, AtomicU64, Condvar, Deadline, Mutex, ThreadId};
use crate::session::callbacks::Callbacks;
use crate::session::client_core::ClientCore;
use crate::session::connection::{Answer, Fault, Names, Stat};
use crate::session::notify::{Signal, Subscription};
use crate::session::reaper::Reaper;
use crate::session::session::Session;

/// After so long a request about the node is repeated that the server has refused.
const PAUSE: Duration = Duration::from_millis(200);

/// What is known of the held node. The guard's user may keep it longer than the guard.
pub(super) struct Watchdog {
    /// Whoever waits for the loss of the lock is not to keep its session.
    session: Weak<Session>,
    /// The node as the server knows it.
    pub(super) node: String,
    /// What the node says, where a request to let go is to be written over with it.
    pub(super) data: Option<Vec<u8>>,
    /// The transaction that made the node, where other sessions may take its name: only that very
    /// node is deleted.
    pub(super) named: Option<i64>,
    /// The connection that the node was last watched on.
    watched_on: AtomicU64,
    events: Callbacks,
    reaper: Reaper,
    pub(super) state: Mutex<WatchdogState>,
    pub(super) changed: Condvar,
}

pub(super) type OnLost = Box<dyn FnOnce(LossReason) + Send>;

pub(super) type OnRequest = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct WatchdogState {
    /// Whose time it is: it counts those who have had the node.
    pub(super) turn: u32,
    /// It is nobody's time: the node is kept.
    pub(super) idle: bool,
    pub(super) lost: Option<LossReason>,
    pub(super) released: bool,
    pub(super) callbacks: Vec<OnLost>,
    /// Somebody asks to let go.
    pub(super) requested: bool,
    pub(super) request_callbacks: Vec<OnRequest>,
    /// How many callbacks have to be over before a release is, and which threads run some of them.
    pub(super) due: usize,
    running: Vec<ThreadId>,
    node_watch: OneAtATime,
    /// The server has refused to set the last watch on the node.
    unwatched: bool,
    /// That was logged.
    complained: bool,
    /// Only where the node itself may not be read.
    pub(super) siblings: Option<Subscription>,
    sibling_watch: OneAtATime,
    /// Only where the node is shared, and none was seen yet: for others who contend.
    pub(super) arrivals: Option<Subscription>,
    arrival_watch: OneAtATime,
    pub(super) listener: Option<(Weak<dyn NodeListener>, u64)>,
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

/// A wait for callbacks is cut into so many parts: a process that is stopped meanwhile loses one of
/// them, and when it goes on, so do its callbacks.
const WAIT_PARTS: u32 = 10;

/// What a holder that lets go leaves behind: to be dropped when its node's deletion is under way and
/// no lock is held, as what callbacks own may do whatever its user likes when it is dropped.
#[must_use = "callbacks that it owns may take this very lock when they are dropped"]
pub(crate) struct ReleasedParts {
    pub(super) watchdog: Arc<Watchdog>,
    pub(super) lost: Option<LossReason>,
    pub(super) callbacks: HolderCallbacks,
}

impl ReleasedParts {
    /// Waits for the callbacks that have begun, and for those that tell of a loss before the
    /// release: none runs after it. One that lets go itself waits for the others only.
    pub(super) fn settle(self, until: Deadline) {
        let own = rt::thread_id();
        let is_due = |state: &WatchdogState| {
            state.due > state.running.iter().filter(|thread| **thread == own).count()
        };
        let mut state = self.watchdog.state.lock();
        if is_due(&state)
            && let Some(until) = until.instant()
        {
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

/// What a holder wants to have called.
pub(crate) struct HolderCallbacks {
    _lost: Vec<OnLost>,
    _requested: Vec<OnRequest>,
}

impl WatchdogState {
    pub(super) fn take_callbacks(&mut self) -> HolderCallbacks {
        HolderCallbacks {
            _lost: mem::take(&mut self.callbacks),
            _requested: mem::take(&mut self.request_callbacks),
        }
    }

    /// Whether this holder has let go.
    fn is_over(&self, turn: u32) -> bool {
        self.released || self.turn != turn
    }

    /// What this holder has lost it by.
    fn loss(&self, turn: u32) -> Option<LossReason> {
        self.lost.filter(|_| self.turn == turn)
    }
}

/// Those who share a node, one after another: each holder's time has a number.
pub(crate) trait NodeListener: Send + Sync {
    /// Others contend for the lock that this holder has, or ask it to let go.
    fn contested(self: Arc<Self>, number: u64);

    /// The node is gone, or nobody knows.
    fn lost(self: Arc<Self>, number: u64);
}

impl Watchdog {
    pub(super) fn new(
        core: &ClientCore,
        session: &Arc<Session>,
        node: String,
        data: Option<Vec<u8>>,
        named: Option<i64>,
    ) -> Watchdog {
        Watchdog {
            session: Arc::downgrade(session),
            node,
            data,
            named,
            watched_on: AtomicU64::new(0),
            events: core.events().clone(),
            reaper: core.reaper().clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn signal(self: &Arc<Self>, act: fn(&Arc<Watchdog>)) -> Signal {
        let watchdog = Arc::downgrade(self);
        Arc::new(move || {
            if let Some(watchdog) = watchdog.upgrade() {
                act(&watchdog);
            }
        })
    }

    /// After any change of the session.
    pub(super) fn look(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let phase = session.status().now();
        if let Some(end) = phase.ended {
            self.lose(end.into());
        } else if phase.attached
            && let before = self.watched_on.swap(phase.connection, Ordering::SeqCst)
            && before != phase.connection
        {
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
            // A watch on the children is spent for nothing while the lock node is hidden.
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

    /// Looks whether the node is still there, and has that watched.
    pub(super) fn watch(self: &Arc<Self>) {
        self.have_watched(false);
    }

    /// A lock that is held for a moment only needs no watch, so the first can wait for one.
    fn have_watched(self: &Arc<Self>, can_wait: bool) {
        let Some(session) = self.session.upgrade() else { return };
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
            // Of data that are too large nothing is known, but they are watched.
            if matches!(answer, Ok(_) | Err(Fault::TooLarge(_))) {
                state.unwatched = false;
            }
            drop(state);
            match answer {
                Ok(data) if is_request(&data) => watchdog.request(),
                Ok(_) | Err(Fault::TooLarge(_)) => {}
                Err(Fault::NoNode) => watchdog.lose(LossReason::NodeDeleted),
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
        if matches!(fault, Fault::ConnectionLoss | Fault::SessionEnded) {
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
                "the server does not watch the holder's node {:?} ({fault}); asking again, and \
                 until then nothing tells of its deletion or of a request to let go",
                self.node
            );
        }
    }

    /// Has something done in the background, unless the lock was released before; it says when to
    /// do it again.
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
            self.reaper.later(session, due, Box::new(chore));
        }
    }

    /// Who may not read his own node is told of its siblings' changes, and looks each time.
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
                Err(Fault::NoNode) => watchdog.lose(LossReason::NodeDeleted),
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

    /// Somebody came or went. Who only tries would be gone again before a look: what is kept is
    /// let go for him as well.
    fn others_may_be_there(self: &Arc<Self>) {
        if self.state.lock().idle {
            self.contest();
        } else {
            self.watch_for_others();
        }
    }

    /// Has the group told when others contend; looks each time that the children change, until
    /// there is one.
    pub(super) fn watch_for_others(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state.lock();
        if state.released || !state.arrival_watch.begin() {
            return;
        }
        let lock_node = path::parent(&self.node);
        if state.arrivals.is_none() {
            let look = self.signal(Watchdog::others_may_be_there);
            state.arrivals = Some(session.watches().subscribe(lock_node, look));
        }
        drop(state);
        let watchdog = Arc::downgrade(self);
        let on_answer = move |answer: Answer<Names>| {
            let Some(watchdog) = watchdog.upgrade() else { return };
            let again = watchdog.state.lock().arrival_watch.end();
            let contested = match &answer {
                Ok(names) => others(path::last(&watchdog.node), names),
                // There will be another connection.
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => false,
                // Who cannot look does not go on as if there were nobody.
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

    /// Others want the lock: the group is told, once.
    fn contest(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let (arrivals, listener) = (state.arrivals.take(), state.listener.clone());
        drop(state);
        drop(arrivals);
        if let Some((listener, number)) = listener
            && let Some(listener) = listener.upgrade()
        {
            listener.contested(number);
        }
    }

    /// Calls back about a loss, which counts as due already: it came before a release, if there has
    /// been one since.
    pub(super) fn tell_of_loss(self: &Arc<Self>, callback: OnLost, why: LossReason) {
        let call = DueCallback::new(Arc::clone(self));
        self.events.dispatch(move || call.run(move || callback(why)));
    }

    /// Calls back about a request to let go, unless this holder has done so.
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

    /// Somebody asks to let go.
    fn request(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.released {
            return;
        }
        let is_first = !mem::replace(&mut state.requested, true);
        let callbacks = mem::take(&mut state.request_callbacks);
        let turn = state.turn;
        drop(state);
        self.write_data_back();
        if !is_first {
            return;
        }
        for callback in callbacks {
            self.tell_of_request(turn, callback);
        }
        // The request is for the node: none of ours is to have it after this holder.
        self.contest();
        logging::info!(target: "zklock::hold", "somebody asks the holder {:?} to let go", self.node);
    }

    /// The request stands where the holder had said something of itself, which others look for.
    fn write_data_back(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade().filter(|_| self.data.is_some()) else { return };
        self.later(&session, Duration::ZERO, |watchdog, session| {
            let data = watchdog.data.as_deref().unwrap_or_default();
            let written = session.write(&watchdog.node, data);
            (written == Err(Fault::ConnectionLoss)).then_some(PAUSE)
        });
    }

    /// Records that the lease is over, if it is, and says why.
    pub(super) fn look_at_lease(self: &Arc<Self>, session: &Session) -> Option<LossReason> {
        let end = session.trusted().err()?;
        self.lose(end.into());
        // Another loss may have come first; after a release none is recorded.
        Some(self.state.lock().lost.unwrap_or(end.into()))
    }

    pub(super) fn lose(self: &Arc<Self>, why: LossReason) {
        let mut state = self.state.lock();
        if state.released || state.lost.is_some() {
            return;
        }
        state.lost = Some(why);
        let callbacks = mem::take(&mut state.callbacks);
        state.due += callbacks.len();
        let (idle, listener) = (state.idle, state.listener.clone());
        self.changed.notify_all();
        drop(state);
        for callback in callbacks {
            self.tell_of_loss(callback, why);
        }
        if let Some((listener, number)) = listener
            && let Some(listener) = listener.upgrade()
        {
            listener.lost(number);
        }
        if !idle {
            logging::warning!(target: "zklock::hold", "the lock held by {:?} is lost: {why}", self.node);
        }
    }
}

/// A callback that is due, until this is dropped: also when it panics, or never runs.
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

/// The node of a name that others may take is gone if it is another one.
fn own_only(named: Option<i64>, stat: &Stat) -> Answer<()> {
    if named.is_none_or(|czxid| czxid == stat.czxid) { Ok(()) } else { Err(Fault::NoNode) }
}

/// Waits for the loss of a lock: see [`LockGuard::lost`](crate::LockGuard::lost).
#[derive(Clone)]
pub struct Lost {
    watchdog: Arc<Watchdog>,
    /// Whose loss: the node may have others as holders later.
    turn: u32,
}

impl Lost {
    pub(super) fn of(watchdog: &Arc<Watchdog>, turn: u32) -> Lost {
        Lost { watchdog: Arc::clone(watchdog), turn }
    }

    /// Blocks until the lock is lost, and says why; or until it is released: `None`.
    pub fn wait(&self) -> Option<LossReason> {
        self.wait_until(Deadline::NEVER)
    }

    /// As [`wait`](Lost::wait), for so long at the most: `None` also when the time is over.
    pub fn wait_for(&self, limit: Duration) -> Option<LossReason> {
        self.wait_until(Deadline::after(limit))
    }

    fn wait_until(&self, deadline: Deadline) -> Option<LossReason> {
        self.look();
        let mut state = self.watchdog.state.lock();
        while state.lost.is_none() && !state.is_over(self.turn) {
            match deadline.instant() {
                None => self.watchdog.changed.wait(&mut state),
                Some(end) => {
                    if self.watchdog.changed.wait_until(&mut state, end).timed_out() {
                        break;
                    }
                }
            }
        }
        state.loss(self.turn)
    }

    /// Why the lock was lost, if it was.
    pub fn reason(&self) -> Option<LossReason> {
        self.look();
        self.watchdog.state.lock().loss(self.turn)
    }

    /// As `reason`, without looking for a loss that nobody has found yet: for those who check.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn recorded(&self) -> Option<LossReason> {
        self.watchdog.state.lock().loss(self.turn)
    }

    /// Records a loss that nobody has found yet.
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

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.watchdog.state.lock();
        f.debug_struct("Lost")
            .field("lost", &state.loss(self.turn))
            .field("released", &state.is_over(self.turn))
            .finish_non_exhaustive()
    }
}
