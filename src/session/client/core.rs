//! What all clones of a client share: one live session at a time, opened again on demand, and the
//! listeners of its state.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::connect_string::{ConnectString, Host};
use crate::connection_notice::{End, Notice};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, LogAs};
use crate::foreign_contenders::ForeignContenders;
use crate::loss_reason::LossReason;
use crate::rt::{self, Deadline, Mutex};
use crate::session::connection::{Ensemble, SessionPhase, SessionState};
use crate::session::owned::OnDoubt;
use crate::session::requests::{Reaper, Session, Strays};
use crate::session::threads::{Callbacks, InOrder, OnReport, Reports};
use crate::session::wait::{Signals, Waiter};
use crate::session_id::SessionId;
use crate::{logging, path};

/// How long closing a client may wait for the server.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// How many members of a client rejoin at once, at most.
const MOST_REJOINING: usize = 32;

/// How many bytes of paths servers can carry at a session's end by default: twice their `jute.maxbuffer`.
const PATHS_LIMIT: usize = 2 * 1_048_575;

/// How many nodes with a logged warning are remembered, at most.
const MOST_WARNED: usize = 1024;

/// What a client is made of. Background work holds no `Client`, only parts of this.
pub(crate) struct ClientCore {
    /// The process that connected: see [`is_elsewhere`](ClientCore::is_elsewhere).
    process: u32,
    pub(super) hosts: String,
    pub(super) chroot: String,
    /// After how much waiting a call looks for a deadlock, if it does.
    deadlock_warning: OnceLock<Duration>,
    /// How many bytes of paths the servers can carry at a session's end, if that was stated.
    paths_limit: OnceLock<usize>,
    foreign: OnceLock<Arc<ForeignContenders>>,
    /// Nodes about which a warning was logged recently.
    warned: Mutex<BTreeSet<String>>,
    pub(super) ensemble: Box<dyn Ensemble>,
    pub(super) events: Callbacks,
    /// Runs what members do to rejoin their groups.
    rejoining: Callbacks,
    reports: Arc<Reports>,
    pub(super) reaper: Arc<Reaper>,
    strays: Arc<Strays>,
    timer: Arc<Reaper>,
    pub(super) slot: Mutex<SessionSlot>,
    changed: Arc<Signals>,
    pub(super) listeners: Mutex<Vec<Arc<StateListener>>>,
    /// See [`claim`](ClientCore::claim).
    claimed: Mutex<BTreeSet<String>>,
    /// See [`extension`](ClientCore::extension).
    extensions: Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

#[derive(Default)]
pub(super) struct SessionSlot {
    pub(crate) session: Option<Arc<Session>>,
    /// Lost sessions that the server is not yet known to have ended.
    retired: Vec<Arc<Session>>,
    pub(super) closed: bool,
    opening: bool,
    /// Counts the attempts to open a session that have ended.
    attempts: u64,
    /// The number and the error of the last attempt that failed.
    failure: Option<(u64, Error)>,
    /// The state that listeners were told last; `None` before the first session.
    pub(super) told: Option<SessionState>,
    /// Since when there has been no connection.
    suspended: Option<Instant>,
}

pub(super) struct StateListener {
    callback: Mutex<Box<dyn FnMut(SessionState) + Send>>,
    calls: Arc<InOrder>,
}

/// The id of a session, unless it is unknown, as on a handle without any node of the client's yet.
pub(super) fn known(session: i64) -> Option<SessionId> {
    (session != 0).then_some(SessionId::from(session))
}

/// Whether to go on after an attempt to open a session has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    OneAttempt,
    UntilDeadline,
}

impl ClientCore {
    pub(super) fn new(ensemble: Box<dyn Ensemble>, hosts: String, chroot: String) -> ClientCore {
        let reports = Arc::<Reports>::default();
        let (prefix, pending, process) = (chroot.clone(), Arc::clone(&reports), std::process::id());
        let reaper = Reaper::new("zklock-reaper", move |path, is_pending| {
            // In a forked process, the threads that are told of it do not exist.
            if process != std::process::id() {
                return;
            }
            let path = path::shown(&prefix, path).to_owned();
            pending.report(LogAs::CLEANUP, || match is_pending {
                true => Event::CleanupPending { path },
                false => Event::CleanupEnded { path },
            });
        });
        let strays = Strays::new(Arc::clone(&reaper), chroot.clone());
        ClientCore {
            process: std::process::id(),
            hosts,
            chroot,
            deadlock_warning: OnceLock::new(),
            paths_limit: OnceLock::new(),
            foreign: OnceLock::new(),
            warned: Mutex::default(),
            ensemble,
            events: Callbacks::of_program(),
            rejoining: Callbacks::new("zklock-member", MOST_REJOINING),
            reports,
            reaper,
            strays: Arc::new(strays),
            timer: Reaper::new("zklock-timer", |_, _| ()),
            slot: Mutex::default(),
            changed: Arc::default(),
            listeners: Mutex::default(),
            claimed: Mutex::default(),
            extensions: Mutex::default(),
        }
    }

    /// Returns the value of this type that a higher layer keeps with this client, created on the first
    /// call. (A process-wide table would not do: if the process forked while another thread had it
    /// locked, it would stay locked in the child for ever.)
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut all = self.extensions.lock();
        let kept = all.entry(TypeId::of::<T>()).or_insert_with(|| Arc::<T>::default());
        Arc::clone(kept).downcast().unwrap_or_default()
    }

    /// Calls `callback` with each change of the state, in order; does nothing if the client is
    /// closed.
    pub(super) fn listen(
        &self,
        callback: Box<dyn FnMut(SessionState) + Send>,
    ) -> Weak<StateListener> {
        let slot = self.slot.lock();
        if slot.closed {
            return Weak::new();
        }
        let calls = InOrder::new(&self.events);
        let listener = Arc::new(StateListener { callback: Mutex::new(callback), calls });
        self.listeners.lock().push(Arc::clone(&listener));
        Arc::downgrade(&listener)
    }

    /// Calls that callback no more.
    pub(super) fn unlisten(&self, listener: &Weak<StateListener>) {
        let mut listeners = self.listeners.lock();
        let found = listeners.iter().position(|one| Weak::ptr_eq(&Arc::downgrade(one), listener));
        let removed = found.map(|at| listeners.remove(at));
        drop(listeners);
        // Without the lock: it drops what belongs to the program.
        drop(removed);
    }

    /// Has events reported to the program, from here on.
    pub(crate) fn report_to(&self, function: OnReport) {
        self.reports.tell_to(function, &self.events);
    }

    /// Reports what happened to a contender, if anybody wants to know.
    pub(crate) fn report(&self, event: impl FnOnce() -> Event) {
        self.reports.report(LogAs::CONTENTION, event);
    }

    /// The time, if something that takes time is to be reported.
    pub(crate) fn time_for_report(&self) -> Option<Instant> {
        self.reports.are_wanted(LogAs::CONTENTION).then(rt::now)
    }

    pub(crate) fn reports(&self) -> &Arc<Reports> {
        &self.reports
    }

    pub(crate) fn events(&self) -> &Callbacks {
        &self.events
    }

    pub(crate) fn rejoining(&self) -> &Callbacks {
        &self.rejoining
    }

    pub(crate) fn reaper(&self) -> &Arc<Reaper> {
        &self.reaper
    }

    /// Nodes that were made late.
    pub(crate) fn strays(&self) -> &Strays {
        &self.strays
    }

    /// For what is due at some time and asks the server nothing: requests of others do not delay it.
    pub(crate) fn timer(&self) -> &Arc<Reaper> {
        &self.timer
    }

    /// Logs the warning about a node, if `warning` returns one and none was logged about it
    /// recently.
    pub(crate) fn warn_once(&self, node: &str, warning: impl FnOnce() -> Option<String>) {
        if self.warned.lock().contains(node) {
            return;
        }
        let Some(warning) = warning() else { return };
        if self.is_first_warning(node) {
            logging::warning!(target: "zklock::contend", "node {node:?}: {warning}");
        }
    }

    /// Whether none was logged about the node recently; from now on there was.
    pub(crate) fn is_first_warning(&self, node: &str) -> bool {
        let mut warned = self.warned.lock();
        if warned.len() >= MOST_WARNED {
            warned.clear();
        }
        warned.insert(node.to_owned())
    }

    /// Claims the name of a node, unless another call of this client has claimed it. The end of a
    /// claim is signalled as a [change](ClientCore::changes).
    ///
    /// After a create without an answer, the caller has to find out whether a node is its own. The
    /// node's owner distinguishes sessions; within one session this works only if no other call
    /// creates a node of that name.
    pub(crate) fn claim(self: &Arc<Self>, path: &str) -> Option<ClaimedName> {
        let first = self.claimed.lock().insert(path.to_owned());
        first.then(|| ClaimedName { core: Arc::downgrade(self), path: path.to_owned() })
    }

    /// Signalled whenever the state of the session changes.
    pub(crate) fn changes(&self) -> &Arc<Signals> {
        &self.changed
    }

    pub(super) fn limit_paths_of_session(&self, bytes: usize) {
        let _ = self.paths_limit.set(bytes);
    }

    pub(super) fn warn_of_deadlock_after(&self, wait: Duration) {
        let _ = self.deadlock_warning.set(wait);
    }

    /// Sets, once, which contenders of recipes that are not known are waited for.
    pub(super) fn treat_foreign(&self, how: ForeignContenders) {
        let _ = self.foreign.set(Arc::new(how));
    }

    pub(crate) fn foreign_contenders(&self) -> Arc<ForeignContenders> {
        Arc::clone(self.foreign.get_or_init(Arc::default))
    }

    /// After how much waiting a call looks for a deadlock, if it does.
    pub(crate) fn deadlock_warning(&self) -> Option<Duration> {
        self.deadlock_warning.get().copied()
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.ensemble.connect_timeout()
    }

    /// The hosts of the connect string, sorted, which identify the ensemble as far as that is
    /// possible.
    pub(crate) fn ensemble(&self) -> Vec<String> {
        // Only a client of a program's handle has no valid connect string.
        let Ok(ConnectString { hosts, .. }) = self.hosts.parse() else {
            return vec![self.hosts.clone()];
        };
        let named = |host: Host| format!("{}:{}", host.name.to_ascii_lowercase(), host.port);
        let mut hosts: Vec<_> = hosts.into_iter().map(named).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }

    /// See [`Ensemble::handle`].
    pub(crate) fn handle(&self) -> Option<usize> {
        self.ensemble.handle()
    }

    /// The path as the server knows it.
    pub(crate) fn whole(&self, path: &str) -> String {
        match path {
            "/" if !self.chroot.is_empty() => self.chroot.clone(),
            _ => format!("{}{path}", self.chroot),
        }
    }

    /// The session that there is, if it has not ended.
    pub(crate) fn live_session(&self) -> Option<Arc<Session>> {
        let session = self.slot.lock().session.clone();
        session.filter(|session| session.status().now().ended.is_none())
    }

    /// Turns the server's path into the path as the client names it.
    pub(crate) fn shown<'a>(&self, whole: &'a str) -> &'a str {
        path::shown(&self.chroot, whole)
    }

    /// Whether this is a forked process, in which the client has no threads, and whose session is
    /// the parent's. Check this before taking any lock: a thread that does not exist here may hold
    /// it.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.process != std::process::id()
    }

    /// # Errors
    ///
    /// The process that connected.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Fails with `Closed` in any process other than the one that connected.
    pub(crate) fn check_process(&self) -> Result<()> {
        if !self.is_elsewhere() {
            return Ok(());
        }
        let message = format!(
            "the client was connected by process {}, and this process is its fork; connect another \
             client here",
            self.process
        );
        Err(Error::new(ErrorKind::Closed, message))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.slot.lock().closed
    }

    /// The present session, for checks in tests.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn present_session(&self) -> Option<Arc<Session>> {
        self.slot.lock().session.clone()
    }

    pub(super) fn state(&self) -> SessionState {
        if self.is_elsewhere() {
            return SessionState::Closed;
        }
        let slot = self.slot.lock();
        slot.state()
    }

    /// Returns the live session, and opens one if there is none; `None` if that was not in time.
    /// `give_up` is called whenever the waiter's bell has been rung.
    pub(crate) fn session(
        self: &Arc<Self>,
        waiter: &Waiter,
        deadline: Deadline,
        give_up: impl Fn() -> bool,
        patience: Patience,
    ) -> Result<Option<Arc<Session>>> {
        self.check_process()?;
        self.retry();
        // Most often there is one, and nothing is waited for.
        let slot = self.slot.lock();
        if let Some(session) = slot.live().filter(|_| !slot.closed) {
            return Ok(Some(session));
        }
        drop(slot);
        let _subscription = self.changed.subscribe(waiter.bell());
        let mut seen = None;
        loop {
            let mut slot = self.slot.lock();
            if slot.closed {
                let message = "the client is closed";
                return Err(Error::new(ErrorKind::Closed, message));
            }
            if let Some(session) = slot.live() {
                return Ok(Some(session));
            }
            let failed = slot.failure.as_ref().filter(|(attempt, failure)| {
                seen.is_some_and(|seen| seen < *attempt)
                    && (patience == Patience::OneAttempt
                        || !matches!(failure.kind(), ErrorKind::Connect | ErrorKind::SessionLost))
            });
            if let Some((_, failure)) = failed {
                return Err(failure.clone());
            }
            seen = Some(slot.attempts);
            if deadline.has_passed() || give_up() {
                return Ok(None);
            }
            if !slot.opening {
                slot.opening = true;
                drop(slot);
                let opening = Opening(Arc::clone(self));
                rt::spawn("zklock-open", move || opening.attempt())?;
            } else {
                drop(slot);
            }
            waiter.wait(deadline);
        }
    }

    fn open(self: &Arc<Self>) {
        let waiter = Waiter::new();
        let subscription = self.changed.subscribe(waiter.bell());
        let core = Arc::downgrade(self);
        let limit = self.paths_limit.get().copied().unwrap_or(PATHS_LIMIT);
        let before = self.slot.lock().replaced().cloned();
        let result = Session::open(
            &*self.ensemble,
            (limit, before.is_some()),
            &waiter,
            || self.is_closed(),
            move |notice| {
                if let Some(core) = Weak::upgrade(&core) {
                    core.noticed(notice);
                }
            },
        );
        if let (Ok(_), Some(before)) = (&result, &before) {
            self.until_over(before, &waiter);
        }
        drop(subscription);
        let mut slot = self.slot.lock();
        match result {
            // The client was closed meanwhile; dropping the session closes it.
            Ok(_) if slot.closed => {}
            Ok(session) => {
                slot.failure = None;
                let info = session.info();
                let session = Arc::new(session);
                self.settle_doubts_of(&session);
                let before = slot.session.replace(session);
                let opened = Event::Connected {
                    session: known(info.session),
                    timeout: (!info.timeout.is_zero()).then_some(info.timeout),
                    server: info.server,
                };
                self.reports.tell(opened.clone());
                // Listeners are told only of changes after the very first connection.
                slot.told.get_or_insert(SessionState::Connected);
                slot.retired.extend(before);
                drop(slot);
                self.log_as(false).write(&opened);
                self.bury();
                self.noticed_change();
            }
            Err(error) => {
                slot.failure = Some((slot.attempts + 1, error));
                drop(slot);
                self.noticed_change();
            }
        }
    }

    /// Waits until a server has confirmed the end of a session that was replaced. Until then, a contender of
    /// the next one could be behind a node that the client itself has left there.
    fn until_over(&self, session: &Session, waiter: &Waiter) {
        let _subscription = session.status().subscribe(waiter.bell());
        let _waits = session.await_server(false);
        while !session.status().now().over && !self.is_closed() {
            waiter.wait(Deadline::NEVER);
        }
    }

    /// Has it seen to what becomes of creates that got no answer in this session.
    fn settle_doubts_of(self: &Arc<Self>, session: &Arc<Session>) {
        let (core, of_doubt) = (Arc::downgrade(self), Arc::downgrade(session));
        session.owned().on_doubt(move |what| {
            if let (Some(core), Some(session)) = (core.upgrade(), of_doubt.upgrade()) {
                match what {
                    OnDoubt::EndSession => core.replace(&session),
                    OnDoubt::Look => core.strays.look_in(&session),
                }
            }
        });
    }

    /// What keeps a call from being answered, as far as is known.
    pub(crate) fn why_unreachable(&self) -> String {
        let because = |what: &str| match self.ensemble.why_no_server() {
            Some(why) => format!("{what} ({why})"),
            None => what.to_owned(),
        };
        let slot = self.slot.lock();
        match (slot.state(), &slot.failure) {
            (SessionState::Connected, _) => "the server does not answer".to_owned(),
            (SessionState::Suspended, _) => because("the connection is lost"),
            // Its text names the limit of another call.
            (_, Some((_, error))) if error.kind() != ErrorKind::Connect => error.to_string(),
            _ => because("there is no session"),
        }
    }

    /// The error of a call that has waited for a connection since then.
    pub(super) fn not_connected_since(&self, begun: Instant) -> Error {
        let hosts = self.ensemble.hosts().unwrap_or_else(|| self.hosts.clone());
        let (waited, why) = (rt::now().saturating_duration_since(begun), self.why_unreachable());
        let message = format!("could not connect to {hosts:?} within {waited:.1?}: {why}");
        Error::new(ErrorKind::Connect, message)
    }

    /// Retries to start the work for which no thread could be started. If that fails again, the
    /// next call or notice retries.
    fn retry(&self) {
        let _ = self.reaper.retry();
        let _ = self.timer.retry();
        self.events.retry();
        self.rejoining.retry();
        self.ensemble.retry();
    }

    fn noticed(&self, notice: Notice) {
        self.retry();
        match notice {
            Notice::Alive => {}
            Notice::Paused(gap) => {
                self.reports.report(LogAs::PAUSE, || Event::Paused { gap });
            }
            Notice::Over => self.bury(),
            _ => self.noticed_change(),
        }
    }

    /// Ends a session in which nothing is held, and opens another one in its place, for calls to come.
    fn replace(self: &Arc<Self>, session: &Arc<Session>) {
        let mut slot = self.slot.lock();
        let is_present = slot.session.as_ref().is_some_and(|one| Arc::ptr_eq(one, session));
        // Noted before the session has ended: listeners are told of no loss.
        let opens = is_present && !slot.closed && !std::mem::replace(&mut slot.opening, true);
        drop(slot);
        session.replace();
        self.noticed_change();
        if opens {
            let opening = Opening(Arc::clone(self));
            if rt::spawn("zklock-open", move || opening.attempt()).is_err() {
                // The next call tries again.
                self.noticed_change();
            }
        }
    }

    /// Drops the lost sessions that the server has ended.
    fn bury(&self) {
        let mut slot = self.slot.lock();
        let retired = std::mem::take(&mut slot.retired);
        let (over, left) = retired.into_iter().partition(|one| one.status().now().over);
        slot.retired = left;
        drop(slot);
        let over: Vec<Arc<Session>> = over;
        drop(over);
    }

    /// Tells listeners the state if it differs from the one told last.
    fn noticed_change(&self) {
        let mut changed = None;
        let mut slot = self.slot.lock();
        let state = slot.state();
        if let Some(before) = slot.told.filter(|told| *told != state) {
            slot.told = Some(state);
            changed = self.change(&mut slot, before, state);
            if let Some(event) = &changed {
                self.reports.tell(event.clone());
            }
            // Under the lock, so that all listeners get changes in order.
            for listener in self.listeners.lock().iter() {
                let told = Arc::clone(listener);
                listener.calls.dispatch(move || (told.callback.lock())(state));
            }
        }
        drop(slot);
        self.changed.tell();
        // Without the lock: a logger may ask for the state.
        if let Some(event) = changed {
            let is_trouble = matches!(event, Event::Suspended { .. } | Event::SessionLost { .. });
            self.log_as(is_trouble).write(&event);
        }
    }

    /// How a change of the session is logged.
    fn log_as(&self, is_trouble: bool) -> LogAs {
        match self.handle() {
            None => LogAs::SESSION_OF_LINK,
            Some(_) if is_trouble => LogAs::SESSION_TROUBLE,
            Some(_) => LogAs::SESSION,
        }
    }

    /// The event that a change of the state is; of a new session, the opening was reported.
    fn change(
        &self,
        slot: &mut SessionSlot,
        before: SessionState,
        state: SessionState,
    ) -> Option<Event> {
        let now = rt::now();
        let session = slot.session.clone();
        let id = session.as_ref().and_then(|session| known(session.id()));
        Some(match state {
            SessionState::Suspended => {
                slot.suspended = Some(now);
                let left = session.and_then(|session| session.trusted().ok());
                let lease_left = left.filter(|_| self.handle().is_none());
                Event::Suspended { session: id, lease_left }
            }
            SessionState::Connected if before == SessionState::Suspended => {
                let since = slot.suspended.take().unwrap_or(now);
                Event::Resumed { session: id, outage: now.saturating_duration_since(since) }
            }
            SessionState::Connected => return None,
            SessionState::Lost => {
                // If its end was not reported yet, its lease is over.
                let end = session.as_ref().and_then(|session| session.status().now().ended);
                let (reason, details) = match end.unwrap_or(End::Lapsed) {
                    End::Replaced => {
                        let why = "nothing was held in it, and no other session could be opened";
                        (LossReason::LeaseExpired, Some(why.to_owned()))
                    }
                    end => {
                        let reason = end.into();
                        (reason, session.and_then(|session| session.details(reason)))
                    }
                };
                Event::SessionLost { session: id, reason, details }
            }
            SessionState::Closed => Event::Closed,
        })
    }

    pub(super) fn close(&self) {
        if self.is_elsewhere() {
            return;
        }
        let mut slot = self.slot.lock();
        let first = !std::mem::replace(&mut slot.closed, true);
        let mut sessions = std::mem::take(&mut slot.retired);
        sessions.extend(slot.session.clone());
        drop(slot);
        if !first {
            return;
        }
        self.noticed_change();
        let (waiter, deadline) = (Waiter::new(), Deadline::after(CLOSE_LIMIT));
        let half = Deadline::after(CLOSE_LIMIT / 2);
        for session in &sessions {
            session.delete_many_owned(half);
            let left = deadline.instant().map(|end| end.saturating_duration_since(rt::now()));
            session.close(End::Closed, left.unwrap_or(CLOSE_LIMIT));
        }
        for session in sessions {
            let _subscription = session.status().subscribe(waiter.bell());
            let _waits = session.await_server(false);
            while !session.status().now().over && !deadline.has_passed() {
                waiter.wait(deadline);
            }
        }
        self.slot.lock().session = None;
        // Listeners may own clients, and each would keep the other alive for ever.
        let listeners = std::mem::take(&mut *self.listeners.lock());
        drop(listeners);
    }
}

/// The name of a node, claimed until this is dropped: see [`ClientCore::claim`].
pub(crate) struct ClaimedName {
    core: Weak<ClientCore>,
    path: String,
}

impl Drop for ClaimedName {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.claimed.lock().remove(&self.path);
            core.changed.tell();
        }
    }
}

/// An attempt to open a session. However it ends, even if no thread can be started for it, waiting
/// calls are woken and may try.
struct Opening(Arc<ClientCore>);

impl Opening {
    fn attempt(self) {
        self.0.open();
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut slot = self.0.slot.lock();
        slot.opening = false;
        slot.attempts += 1;
        drop(slot);
        self.0.changed.tell();
    }
}

impl SessionSlot {
    /// The session to ask, for a caller that knows that the process is not a forked one.
    fn live(&self) -> Option<Arc<Session>> {
        // No call starts in a session whose lease is over, even before the end was reported.
        let lives = |session: &&Arc<Session>| {
            session.is_trusted_here() && session.status().now().ended.is_none()
        };
        self.session.as_ref().filter(lives).cloned()
    }

    /// The present session, if it has ended because nothing was held in it.
    fn replaced(&self) -> Option<&Arc<Session>> {
        let session = self.session.as_ref();
        session.filter(|session| session.status().now().ended == Some(End::Replaced))
    }

    fn state(&self) -> SessionState {
        if self.closed {
            return SessionState::Closed;
        }
        // Nothing was held in it, and another one is being opened.
        if self.opening && self.failure.is_none() && self.replaced().is_some() {
            return SessionState::Suspended;
        }
        // After a pause of the process, the lease may be over before the end was reported.
        let trusted = self.session.as_ref().filter(|session| session.is_trusted());
        match trusted.map(|session| session.status().now()) {
            None | Some(SessionPhase { ended: Some(_), .. }) => SessionState::Lost,
            Some(SessionPhase { attached: true, .. }) => SessionState::Connected,
            Some(_) => SessionState::Suspended,
        }
    }
}
