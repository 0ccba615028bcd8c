//! The public `Client`: one live session at a time, opened anew on demand.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::callbacks::{Callbacks, InOrder};
use super::connection::Ensemble;
use super::late_items::LateItems;
use super::linked::LinkEnsemble;
use super::notify::{Signals, Waiter};
use super::reaper::Reaper;
use super::retry::Retry;
use super::session::{Session, ended};
use super::status::SessionPhase;
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{ConnectString, Host};
use crate::link::LinkConfig;
use crate::link::core::{End, Notice};
use crate::link::dial::{Auth, Resolver};
use crate::logging;
use crate::rt::{self, Deadline, Mutex};

/// How long closing a client may wait for the server.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// So many lock nodes that were warned of are remembered.
const MOST_WARNED: usize = 1024;

/// The state of a client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionState {
    /// A server serves the session.
    Connected,
    /// The connection is lost, the session is not: locks are still held, and nothing is
    /// asked of the ensemble until a server takes the session up again, or it is lost.
    Suspended,
    /// The session is over: it expired, or its lease ran out by this machine's clock. All
    /// locks that were held in it are lost. The next call opens a new session.
    Lost,
    /// The client was closed.
    Closed,
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SessionState::Connected => "connected",
            SessionState::Suspended => "suspended",
            SessionState::Lost => "lost",
            SessionState::Closed => "closed",
        })
    }
}

/// A client of a ZooKeeper ensemble.
///
/// It keeps one session alive over lost connections, restarts and elections, and opens a
/// new one, on the next call, when that was lost. Clones are cheap and share it all; so do
/// locks and guards made from it. The last one dropped closes the session, within a second.
///
/// A process that is forked from the one that connected has no use of it: calls fail there with
/// [`Closed`](ErrorKind::Closed), no guard is held, and dropping clients and guards does nothing. So the
/// parent keeps its session and its locks. Connect another client in the child.
///
/// ```no_run
/// use zklock::Client;
///
/// let zk = Client::connect("zk1:2181,zk2:2181,zk3:2181/app")?;
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// Closes the session when the last client is gone.
struct Owner {
    core: Arc<ClientCore>,
}

/// What a client is made of. Background work holds no `Client`, only parts of this.
pub(crate) struct ClientCore {
    /// The process that it belongs to: see [`is_elsewhere`](Core::is_elsewhere).
    process: u32,
    hosts: String,
    chroot: String,
    retry: Retry,
    /// Lock nodes that a warning was logged about, lately.
    warned: Mutex<BTreeSet<String>>,
    ensemble: Box<dyn Ensemble>,
    events: Callbacks,
    reaper: Reaper,
    late: Arc<LateItems>,
    slot: Mutex<SessionSlot>,
    changed: Arc<Signals>,
    listeners: Mutex<Vec<Arc<Listener>>>,
    /// See [`claim`](Core::claim).
    claimed: Mutex<BTreeSet<String>>,
    /// What the floors above keep with a client: see [`upper`](Core::upper).
    upper: OnceLock<Box<dyn Any + Send + Sync>>,
}

#[derive(Default)]
struct SessionSlot {
    session: Option<Arc<Session>>,
    /// Sessions that are lost but not yet known to the server as closed.
    retired: Vec<Arc<Session>>,
    closed: bool,
    opening: bool,
    /// Counts the attempts to open a session that have ended.
    attempts: u64,
    /// How the last of them that failed did, and which it was.
    failure: Option<(u64, Error)>,
    /// What the state listeners were told last; nothing before the first session.
    told: Option<SessionState>,
}

struct Listener {
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

impl Client {
    /// Connects with the default settings: see [`ClientBuilder`].
    ///
    /// The connect string is a comma-separated list of `host:port`, tried in random order.
    /// The port defaults to 2181; an IPv6 address stands in brackets; a path after the last
    /// host is the chroot, under which all of this client's paths lie, and which is made
    /// with the first lock if it does not exist. A host whose name cannot be resolved is
    /// only a warning in the log as long as another can be reached.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](ErrorKind::InvalidName) names the part of the connect string that is
    /// malformed, [`Connect`](ErrorKind::Connect) says what went wrong with the last server
    /// tried in the connect time-out.
    pub fn connect(hosts: &str) -> Result<Client> {
        Client::builder(hosts).connect()
    }

    /// Settings for a client of these hosts; see [`Client::connect`] for their form.
    pub fn builder(hosts: &str) -> ClientBuilder {
        ClientBuilder {
            hosts: hosts.to_owned(),
            session_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(15),
            auth: Vec::new(),
            max_reply: 64 << 20,
            retry: Retry::default(),
        }
    }

    /// The state of the session at this moment.
    pub fn state(&self) -> SessionState {
        self.owner.core.state()
    }

    /// Calls `callback` after each change of [`state`](Client::state), until the client is
    /// gone. It runs on a thread of its own and may call this library, also blocking parts
    /// of it; it is told all changes in their order, one at a time. A panic in it is caught
    /// and logged.
    ///
    /// A callback that owns a clone of its client keeps that, and so the session, open
    /// until [`close`](Client::close).
    pub fn on_state_change(&self, callback: impl FnMut(SessionState) + Send + 'static) {
        let core = &self.owner.core;
        // A closed client has no more to tell.
        let slot = core.slot.lock();
        if !slot.closed {
            core.listeners.lock().push(Arc::new(Listener {
                callback: Mutex::new(Box::new(callback)),
                calls: InOrder::new(&core.events),
            }));
        }
    }

    /// Ends the session: locks that are held in it are released by the server, their guards
    /// learn of it, and whoever waits gets [`Closed`](ErrorKind::Closed). Waits up to a
    /// second for the server to confirm it. Closing twice does nothing.
    pub fn close(&self) {
        self.owner.core.close();
    }

    /// The session time-out that the server granted: after so long without the client, the
    /// server ends the session and passes its locks on. The default, or what was asked for,
    /// where there is no session; zero for a client of a [handle](#impl-From<Arc<ZooKeeper>>-for-Client),
    /// which does not tell.
    pub fn session_timeout(&self) -> Duration {
        let core = &self.owner.core;
        let granted = core.slot.lock().session.as_ref().map(|one| one.info().timeout);
        granted.unwrap_or_else(|| core.ensemble.session_timeout())
    }

    /// The session's id, as servers name it in their logs (in hexadecimal); `None` when
    /// there is no session.
    pub fn session_id(&self) -> Option<i64> {
        let slot = self.owner.core.slot.lock();
        slot.session
            .as_ref()
            .filter(|session| session.status().now().ended.is_none())
            .map(|s| s.id())
            // A handle of the program's does not tell before something was made by it.
            .filter(|id| *id != 0)
    }

    /// What this client keeps busy at this moment, to find leaks with.
    pub fn stats(&self) -> ClientStats {
        let core = &self.owner.core;
        let session = core.slot.lock().session.clone();
        let watches = session.map(|session| Arc::clone(session.watches()));
        ClientStats {
            watches: watches.as_ref().map_or(0, |watches| watches.len()),
            watches_at_server: watches.as_ref().map_or(0, |watches| watches.at_the_server()),
            pending_deletes: core.reaper.backlog(),
            threads: rt::live_threads(),
        }
    }

    #[cfg(any(test, feature = "_bench"))]
    pub(crate) fn with(ensemble: Box<dyn Ensemble>, hosts: String, chroot: String) -> Client {
        Client::assemble(ensemble, hosts, chroot, Retry::default())
    }

    /// A client that has no session yet.
    pub(crate) fn assemble(
        ensemble: Box<dyn Ensemble>,
        hosts: String,
        chroot: String,
        retry: Retry,
    ) -> Client {
        let core = ClientCore {
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
            upper: OnceLock::new(),
        };
        Client { owner: Arc::new(Owner { core: Arc::new(core) }) }
    }

    pub(crate) fn core(&self) -> &Arc<ClientCore> {
        &self.owner.core
    }
}

/// What a [`Client`] keeps busy: see [`Client::stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Entries in the table of watches: one for each node that is held or kept, one for each call
    /// that waits at the ensemble, and one for each shared or kept node whose holder looks out for
    /// others.
    pub watches: usize,
    /// Nodes that the server watches for this client's session, as far as is known; 0 over a handle
    /// of the program's. Up to 64 of them may be left over from waits that have ended: watches are
    /// removed together. Servers before 3.5 cannot remove them; there they stay until the node
    /// changes or the connection ends.
    pub watches_at_server: usize,
    /// Nodes still to be deleted in the background.
    pub pending_deletes: usize,
    /// Threads of this library in this process, of all clients.
    pub threads: usize,
}

impl From<&Client> for Client {
    fn from(client: &Client) -> Client {
        client.clone()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = &self.owner.core;
        let info = core.slot.lock().session.as_ref().map(|session| session.info());
        let mut out = f.debug_struct("Client");
        out.field("hosts", &core.hosts).field("chroot", &core.chroot).field("state", &self.state());
        if let Some(info) = info {
            out.field("session", &format_args!("0x{:x}", info.session))
                .field("session_timeout", &info.timeout)
                .field("server", &info.server);
        }
        out.field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.core.is_elsewhere() {
            // What it owns would wait for threads that this process does not have.
            std::mem::forget(Arc::clone(&self.core));
        } else {
            self.core.close();
        }
    }
}

/// Settings of a [`Client`].
#[derive(Clone)]
#[must_use = "nothing happens before `connect`"]
pub struct ClientBuilder {
    hosts: String,
    session_timeout: Duration,
    connect_timeout: Duration,
    auth: Vec<Auth>,
    max_reply: usize,
    retry: Retry,
}

impl ClientBuilder {
    /// How long the ensemble keeps the session, and so its locks, without hearing of the
    /// client. Default 10 seconds; the server may grant less or more (by default between 2
    /// and 20 of its ticks, see [`Client::session_timeout`]). Between a millisecond and 24 days.
    /// If the server grants more than was asked for, the client trusts its session for at most 40
    /// seconds, or for what was asked for if that is more.
    ///
    /// Shorter means that a dead holder's lock passes on sooner; longer, that more of an
    /// outage is survived with the locks kept. It must be at least two ticks of the ensemble
    /// (`tickTime`), the shortest that servers grant by default, for a guard to learn of a loss before
    /// the ensemble passes the lock on; and should be at least ten times the round trip to
    /// a server.
    pub fn session_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.session_timeout = timeout;
        self
    }

    /// How long [`connect`](ClientBuilder::connect), and any later call that neither waits for others
    /// nor has a time limit of its own, tries to reach a server before it gives up. Default 15
    /// seconds. Such calls are `try_lock` and `contenders`; a call that waits without a limit, such as
    /// [`lock`](crate::DistributedLock::lock), goes on trying.
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.connect_timeout = timeout;
        self
    }

    /// Credentials to present on every connection, such as `"digest"` and `b"user:password"`.
    /// Default none; may be called several times. They never appear in `Debug` or logs.
    pub fn auth(
        mut self,
        scheme: impl Into<String>,
        credentials: impl Into<Vec<u8>>,
    ) -> ClientBuilder {
        self.auth.push(Auth { scheme: scheme.into(), credentials: credentials.into() });
        self
    }

    /// The largest reply, in bytes, that is taken from a server; a larger one fails its call
    /// with [`TooLarge`](ErrorKind::TooLarge). Default 64 MiB; between 64 KiB and 1 GiB.
    pub fn max_reply(mut self, bytes: usize) -> ClientBuilder {
        self.max_reply = bytes;
        self
    }

    /// How much trouble with the connection a call that acquires a lock puts up with before it
    /// fails. Default [`Retry::unlimited`].
    pub fn retry(mut self, retry: Retry) -> ClientBuilder {
        self.retry = retry;
        self
    }

    /// Opens a session and returns once a server serves it.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`]; [`AuthFailed`](ErrorKind::AuthFailed) when the server rejects
    /// the credentials, [`InvalidData`](ErrorKind::InvalidData) for settings out of range,
    /// [`System`](ErrorKind::System) when this process is out of threads or sockets.
    pub fn connect(self) -> Result<Client> {
        let hosts: ConnectString = self.hosts.parse()?;
        let setting = |what: &str| Err(Error::new(ErrorKind::InvalidData, what));
        let longest = Duration::from_millis(i32::MAX.unsigned_abs().into());
        if self.session_timeout < Duration::from_millis(1) || self.session_timeout > longest {
            return setting("the session time-out must be between a millisecond and 24 days");
        }
        if self.connect_timeout.is_zero() {
            return setting("the connect time-out must be more than zero");
        }
        if !(64 << 10..=1 << 30).contains(&self.max_reply) {
            return setting("the largest reply must be between 64 KiB and 1 GiB");
        }
        for auth in &self.auth {
            if auth.scheme.is_empty() || auth.scheme.contains('\0') {
                return setting("the scheme of credentials must be a name such as \"digest\"");
            }
            if auth.scheme.len() + auth.credentials.len() > 64 * 1024 {
                return setting("credentials of more than 64 KiB");
            }
        }
        let servers = LinkEnsemble(LinkConfig {
            resolver: Resolver::new(hosts.hosts),
            auth: self.auth,
            session_timeout: self.session_timeout,
            connect_timeout: self.connect_timeout,
            max_reply: self.max_reply,
        });
        let client = Client::assemble(Box::new(servers), self.hosts, hosts.chroot, self.retry);
        let waiter = Waiter::new();
        // The attempt itself fails at the time-out, and knows why.
        let margin = Duration::from_millis(50);
        let deadline = Deadline::after(self.connect_timeout.saturating_add(margin));
        match client.core().session(&waiter, deadline, || false, Patience::OneAttempt) {
            Ok(_) => Ok(client),
            Err(Interrupted::Failed(error)) => Err(error),
            Err(Interrupted::GaveUp) => Err(Error::new(
                ErrorKind::Connect,
                format!(
                    "could not connect to {:?} within {:?}",
                    client.core().hosts,
                    self.connect_timeout
                ),
            )),
        }
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("hosts", &self.hosts)
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("retry", &self.retry)
            .field("auth", &self.auth)
            .finish_non_exhaustive()
    }
}

/// Whether to go on after an attempt to open a session has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    OneAttempt,
    UntilDeadline,
}

impl ClientCore {
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
    /// claim is told as a [change](Core::changes).
    ///
    /// A node that was made by a request without an answer can be told from those of other sessions
    /// by its owner, and from those of the same session only if nobody else there makes one.
    pub(crate) fn claim(self: &Arc<Self>, path: &str) -> Option<ClaimedName> {
        let first = self.claimed.lock().insert(path.to_owned());
        first.then(|| ClaimedName { core: Arc::downgrade(self), path: path.to_owned() })
    }

    /// What the floors above keep with this client, made when it is first asked for; `None` for
    /// another type than the first.
    pub(crate) fn upper<T: Default + Send + Sync + 'static>(&self) -> Option<&T> {
        self.upper.get_or_init(|| Box::<T>::default()).downcast_ref()
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

    fn state(&self) -> SessionState {
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

    fn close(&self) {
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
