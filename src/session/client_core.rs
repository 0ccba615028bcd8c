//! What all clones of a client share: one live session at a time, opened again on demand, and the
//! listeners of its state.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::callbacks::{Callbacks, InOrder};
use super::connection::Ensemble;
use super::late_queue_items::LateItems;
use super::notify::{Signals, Waiter};
use super::reaper::Reaper;
use super::retry::Retry;
use super::session::{Session, ended};
use super::status::{SessionPhase, SessionState};
use crate::connect_string::{ConnectString, Host};
use crate::error::{Error, ErrorKind, Result};
use crate::logging;
use crate::rt::{self, Deadline, Mutex};
use crate::session_notice::{End, Notice};

/// How long closing a client may wait for the server.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// So many lock nodes that were warned of are remembered.
const MOST_WARNED: usize = 1024;

/// What a client is made of. Background work holds no `Client`, only parts of this.
pub(crate) struct ClientCore {
    /// The process that it belongs to: see [`is_elsewhere`](ClientCore::is_elsewhere).
    process: u32,
    pub(super) hosts: String,
    pub(super) chroot: String,
    retry: Retry,
    /// Lock nodes that a warning was logged about, lately.
    warned: Mutex<BTreeSet<String>>,
    pub(super) ensemble: Box<dyn Ensemble>,
    pub(super) events: Callbacks,
    pub(super) reaper: Reaper,
    late: Arc<LateItems>,
    pub(super) slot: Mutex<SessionSlot>,
    changed: Arc<Signals>,
    pub(super) listeners: Mutex<Vec<Arc<Listener>>>,
    /// See [`claim`](ClientCore::claim).
    claimed: Mutex<BTreeSet<String>>,
    /// See [`extension`](ClientCore::extension).
    extension: OnceLock<Box<dyn Any + Send + Sync>>,
}

#[derive(Default)]
pub(super) struct SessionSlot {
    pub(super) session: Option<Arc<Session>>,
    /// Sessions that are lost but not yet known to the server as closed.
    retired: Vec<Arc<Session>>,
    pub(super) closed: bool,
    opening: bool,
    /// Counts the attempts to open a session that have ended.
    attempts: u64,
    /// How the last of them that failed did, and which it was.
    failure: Option<(u64, Error)>,
    /// What the state listeners were told last; nothing before the first session.
    told: Option<SessionState>,
}

pub(super) struct Listener {
    callback: Mutex<Box<dyn FnMut(SessionState) + Send>>,
    calls: Arc<InOrder>,
}

/// How a wait for something of the client's may end early.
pub(crate) enum Interrupted {
    /// The deadline passed, or the caller's own condition came true.
    GaveUp,
    /// Waiting cannot mend it.
    Failed(Error),
}

/// Whether to go on after an attempt to open a session has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    OneAttempt,
    UntilDeadline,
}

impl ClientCore {
    pub(super) fn new(
        ensemble: Box<dyn Ensemble>,
        hosts: String,
        chroot: String,
        retry: Retry,
    ) -> ClientCore {
        ClientCore {
            process: std::process::id(),
            hosts,
            chroot,
            retry,
            warned: Mutex::default(),
            ensemble,
            events: Callbacks::default(),
            reaper: Reaper::default(),
            late: Arc::default(),
            slot: Mutex::default(),
            changed: Arc::default(),
            listeners: Mutex::default(),
            claimed: Mutex::default(),
            extension: OnceLock::new(),
        }
    }

    /// The one value that a module above keeps with this client, made when it is first asked for;
    /// `None` for another type than the first. (A table of the whole process could be locked for ever in
    /// a process that is forked while another thread has it.)
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Option<&T> {
        self.extension.get_or_init(|| Box::<T>::default()).downcast_ref()
    }

    /// Has each change of the state told, in their order; a closed client has no more to tell.
    pub(super) fn listen(&self, callback: Box<dyn FnMut(SessionState) + Send>) {
        let slot = self.slot.lock();
        if !slot.closed {
            self.listeners.lock().push(Arc::new(Listener {
                callback: Mutex::new(callback),
                calls: InOrder::new(&self.events),
            }));
        }
    }

    pub(crate) fn events(&self) -> &Callbacks {
        &self.events
    }

    pub(crate) fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    pub(crate) fn late(&self) -> &Arc<LateItems> {
        &self.late
    }

    /// Logs a warning about a lock node, if there is one to give and it is the first.
    pub(crate) fn warn_once(&self, node: &str, warning: impl FnOnce() -> Option<String>) {
        if self.warned.lock().contains(node) {
            return;
        }
        let Some(warning) = warning() else { return };
        let mut warned = self.warned.lock();
        if warned.len() >= MOST_WARNED {
            warned.clear();
        }
        let first = warned.insert(node.to_owned());
        drop(warned);
        if first {
            logging::warning!(target: "zklock::contend", "on the node {node:?} {warning}");
        }
    }

    /// Claims the name of a node, unless another call of this client has claimed it. The end of a
    /// claim is told as a [change](ClientCore::changes).
    ///
    /// A node that was made by a request without an answer can be told from those of other sessions
    /// by its owner, and from those of the same session only if nobody else there makes one.
    pub(crate) fn claim(self: &Arc<Self>, path: &str) -> Option<ClaimedName> {
        let first = self.claimed.lock().insert(path.to_owned());
        first.then(|| ClaimedName { core: Arc::downgrade(self), path: path.to_owned() })
    }

    /// Told whenever the state of the session changes.
    pub(crate) fn changes(&self) -> &Arc<Signals> {
        &self.changed
    }

    pub(crate) fn retry_policy(&self) -> Retry {
        self.retry
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.ensemble.connect_timeout()
    }

    /// Which ensemble it is, as far as the connect string says that.
    pub(crate) fn ensemble(&self) -> Vec<String> {
        // Only a handle of the program's has none that can be read.
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

    /// Whether this is a forked process, in which the client has no threads, and whose session
    /// is the parent's. To be asked before any lock is taken: a thread that is not there may have it.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.process != std::process::id()
    }

    /// # Errors
    ///
    /// In another process than the client's.
    pub(crate) fn check_process(&self) -> Result<()> {
        if !self.is_elsewhere() {
            return Ok(());
        }
        let message = format!(
            "the client was connected by process {}, of which this process is a fork; connect another \
             client here",
            self.process
        );
        Err(Error::new(ErrorKind::Closed, message))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.slot.lock().closed
    }

    /// The session as it is, for those who check.
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

    /// The live session, opened if there is none. `give_up` is asked at the deadline and
    /// whenever the waiter's bell is rung.
    pub(crate) fn session(
        self: &Arc<Self>,
        waiter: &Waiter,
        deadline: Deadline,
        give_up: impl Fn() -> bool,
        patience: Patience,
    ) -> Result<Arc<Session>, Interrupted> {
        self.check_process().map_err(Interrupted::Failed)?;
        self.retry();
        let _subscription = self.changed.subscribe(waiter.bell());
        let mut seen = None;
        loop {
            let mut slot = self.slot.lock();
            if slot.closed {
                return Err(Interrupted::Failed(ended(End::Closed)));
            }
            if let Some(session) = slot.live() {
                return Ok(session);
            }
            if let Some((attempt, failure)) = &slot.failure
                && seen.is_some_and(|seen| seen < *attempt)
                && (patience == Patience::OneAttempt
                    || !matches!(failure.kind(), ErrorKind::Connect | ErrorKind::SessionLost))
            {
                return Err(Interrupted::Failed(failure.clone()));
            }
            seen = Some(slot.attempts);
            if deadline.has_passed() || give_up() {
                return Err(Interrupted::GaveUp);
            }
            if !slot.opening {
                slot.opening = true;
                drop(slot);
                let opening = Opening(Arc::clone(self));
                if let Err(error) = rt::spawn("zklock-open", move || opening.attempt()) {
                    return Err(Interrupted::Failed(error));
                }
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
        let result = Session::open(
            &*self.ensemble,
            &waiter,
            || self.is_closed(),
            move |notice| {
                if let Some(core) = Weak::upgrade(&core) {
                    core.noticed(notice);
                }
            },
        );
        drop(subscription);
        let mut slot = self.slot.lock();
        match result {
            // Nobody wants it any more; dropped, it is closed.
            Ok(_) if slot.closed => {}
            Ok(session) => {
                slot.failure = None;
                let before = slot.session.replace(Arc::new(session));
                // The very first connection is no change to anybody; what comes after it is.
                slot.told.get_or_insert(SessionState::Connected);
                slot.retired.extend(before);
                drop(slot);
                self.bury();
                self.noticed_change();
            }
            Err(error) => slot.failure = Some((slot.attempts + 1, error)),
        }
    }

    /// Starts what no thread could be had for. Without one even now, the next call or notice
    /// may find one.
    fn retry(&self) {
        let _ = self.reaper.retry();
        self.events.retry();
        self.ensemble.retry();
    }

    fn noticed(&self, notice: Notice) {
        self.retry();
        match notice {
            Notice::Alive => {}
            Notice::Over => self.bury(),
            _ => self.noticed_change(),
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

    /// Tells of the state, if it is another than was told last.
    fn noticed_change(&self) {
        let mut changed = None;
        let mut slot = self.slot.lock();
        let state = slot.state();
        if slot.told.is_some_and(|told| told != state) {
            slot.told = Some(state);
            changed = Some(state);
            // Under the lock, so that all listeners hear of changes in their order.
            for listener in self.listeners.lock().iter() {
                let told = Arc::clone(listener);
                listener.calls.dispatch(move || (told.callback.lock())(state));
            }
        }
        drop(slot);
        self.changed.tell();
        // A logger may ask for the state.
        if let Some(state) = changed {
            logging::info!(target: "zklock::client", "the session is {state}");
        }
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
        for session in &sessions {
            session.close(CLOSE_LIMIT);
        }
        for session in sessions {
            let _subscription = session.status().subscribe(waiter.bell());
            while !session.status().now().over && !deadline.has_passed() {
                waiter.wait(deadline);
            }
        }
        self.slot.lock().session = None;
        // They may own clients, which would keep them, and would be kept by them, for ever.
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

/// An attempt to open a session. However it ends, and be it that no thread can be had for it,
/// others are told, and may try.
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
    fn live(&self) -> Option<Arc<Session>> {
        // Nothing is begun in a session whose lease is over, though nobody has said so yet.
        let lives = |session: &&Arc<Session>| {
            session.is_trusted() && session.status().now().ended.is_none()
        };
        self.session.as_ref().filter(lives).cloned()
    }

    fn state(&self) -> SessionState {
        if self.closed {
            return SessionState::Closed;
        }
        // The lease may be over, after a pause, before anybody has said so.
        let trusted = self.session.as_ref().filter(|session| session.is_trusted());
        match trusted.map(|session| session.status().now()) {
            None | Some(SessionPhase { ended: Some(_), .. }) => SessionState::Lost,
            Some(SessionPhase { attached: true, .. }) => SessionState::Connected,
            Some(_) => SessionState::Suspended,
        }
    }
}
