//! The public `Client` and its builder.

mod core;

pub(crate) use core::{ClaimedName, ClientCore, Patience};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::connect_string::ConnectString;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::foreign_contenders::ForeignContenders;
#[cfg(feature = "sasl")]
use crate::link::Sasl;
#[cfg(feature = "tls")]
use crate::link::Tls;
use crate::link::{Access, Auth, LinkConfig, Resolver};
use crate::rt::{self, Deadline};
use crate::session::connection::{Ensemble, SessionState};
use crate::session::threads::OnReport;
use crate::session::wait::{Subscription, Wait, Waiter};
use crate::session_id::SessionId;
use core::known;

/// A client of a ZooKeeper ensemble.
///
/// It keeps one session alive over lost connections, server restarts and leader elections. After the session
/// is lost, the next call opens a new one. If a request for a node of the session, such as a lock's, gets no
/// answer, and the client owns nothing in the session, the client ends it and opens another one, at most once
/// in two session timeouts: [otherwise the node could still be made](crate::guide#how-sure-a-call-is). The
/// state is [`Suspended`](SessionState::Suspended) meanwhile. Clones are cheap and share everything, as do
/// locks and guards made from the client. Dropping the last of them closes the session, within a second.
///
/// A forked child process has to connect its own client. Calls of its parent's client fail there
/// with [`Closed`](ErrorKind::Closed), no guard is held, and drops do nothing, so the parent keeps
/// its session and locks.
#[derive(Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// Closes the session when the last client is gone.
struct Owner {
    core: Arc<ClientCore>,
}

impl Client {
    /// Connects with the default settings of [`ClientBuilder`].
    ///
    /// The connect string is a comma-separated list of `host:port`, tried in random order, such as
    /// `zk1:2181,zk2:2181,zk3:2181/app`. The port defaults to 2181; an IPv6 address is written in
    /// brackets; a path after the last host is the chroot, under which all of this client's paths
    /// lie, and which is created with the first lock if it does not exist. A host whose name cannot
    /// be resolved only causes a warning in the log as long as another host can be reached.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](ErrorKind::InvalidName) names the malformed part of the connect string;
    /// [`Connect`](ErrorKind::Connect) says what went wrong with each server when the connect
    /// timeout is over.
    pub fn connect(hosts: &str) -> Result<Client> {
        Client::builder(hosts).connect()
    }

    /// Returns a builder for a client of `hosts`, a connect string as for [`Client::connect`].
    pub fn builder(hosts: &str) -> ClientBuilder {
        ClientBuilder {
            hosts: hosts.to_owned(),
            session_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(15),
            tick_time: None,
            access: Access::default(),
            deadlock_warning: None,
            foreign: ForeignContenders::Wait,
            paths_limit: None,
            on_event: None,
        }
    }

    /// Returns the current state of the session.
    pub fn state(&self) -> SessionState {
        self.owner.core.state()
    }

    /// Calls `callback` after each change of [`state`](Client::state), until the returned
    /// subscription is dropped or the client is closed.
    ///
    /// The callback runs on its own thread and may block and call this library. It gets all changes
    /// in order, one at a time. A panic in it is caught and logged, and the next change calls it as
    /// before.
    ///
    /// A callback that owns a clone of its client keeps the session open until
    /// [`close`](Client::close) or the end of the subscription.
    pub fn on_state_change(
        &self,
        callback: impl FnMut(SessionState) + Send + 'static,
    ) -> Subscription {
        let listener = self.owner.core.listen(Box::new(callback));
        let core = Arc::downgrade(&self.owner.core);
        Subscription::until(move || {
            // A forked process may not have the thread that has locked the listeners.
            if let Some(core) = core.upgrade().filter(|core| !core.is_elsewhere()) {
                core.unlisten(&listener);
            }
        })
    }

    /// Blocks until there is a session and it is connected to a server, at most `wait`.
    ///
    /// Other calls wait for the connection by themselves.
    ///
    /// # Errors
    ///
    /// [`Connect`](ErrorKind::Connect) when the time is over, saying why no server could be
    /// reached; [`Cancelled`](ErrorKind::Cancelled) if the wait is cancelled;
    /// [`Closed`](ErrorKind::Closed); [`AuthFailed`](ErrorKind::AuthFailed);
    /// [`System`](ErrorKind::System) when this process is out of threads or sockets.
    pub fn wait_connected(&self, wait: impl Into<Wait>) -> Result<()> {
        let begun = rt::now();
        let (core, wait, waiter) = (&self.owner.core, wait.into(), Waiter::new());
        core.check_process()?;
        let _changes = core.changes().subscribe(waiter.bell());
        let _cancel = wait.cancel().map(|cancel| cancel.subscribe(waiter.bell()));
        let is_cancelled = || wait.is_cancelled();
        loop {
            if wait.is_cancelled() {
                let message = "waiting for the connection was cancelled";
                return Err(Error::new(ErrorKind::Cancelled, message));
            }
            let session =
                core.session(&waiter, wait.until(), is_cancelled, Patience::UntilDeadline)?;
            if session.is_some() && core.state() == SessionState::Connected {
                return Ok(());
            }
            if wait.until().has_passed() {
                return Err(core.not_connected_since(begun));
            }
            waiter.wait(wait.until());
        }
    }

    /// Ends the session, waiting at most a second for the server to confirm it.
    ///
    /// The server releases the locks held in the session, their guards report the loss, and waiting
    /// calls fail with [`Closed`](ErrorKind::Closed). Closing twice does nothing.
    pub fn close(&self) {
        self.owner.core.close();
    }

    /// Sets the hosts among which the client looks for a server from now on.
    ///
    /// For ensembles whose servers are replaced while programs run. The present connection stays
    /// until it ends, even if its server is not in the new list. The list is written as in a
    /// connect string; its chroot may be left out, and otherwise has to be the client's.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](ErrorKind::InvalidName) names the malformed part of the text, or another
    /// chroot; [`Unsupported`](ErrorKind::Unsupported) for a client of a program's own handle. Then
    /// nothing changes.
    pub fn set_hosts(&self, hosts: &str) -> Result<()> {
        let core = &self.owner.core;
        core.check_process()?;
        let ConnectString { hosts, chroot } = hosts.parse()?;
        if !chroot.is_empty() && chroot != core.chroot {
            let message = format!(
                "the client's chroot is {:?}, and stays so; the new hosts have {chroot:?}",
                core.chroot
            );
            return Err(Error::new(ErrorKind::InvalidName, message));
        }
        core.ensemble.set_hosts(hosts)
    }

    /// Returns the session timeout that the server granted; after a loss, that of the lost session.
    ///
    /// `None` if there was no session yet, after [`close`](Client::close), and for a client of a
    /// [handle](#impl-From<Arc<ZooKeeper>>-for-Client), which does not report its timeout.
    pub fn session_timeout(&self) -> Option<Duration> {
        let granted = self.owner.core.slot.lock().session.as_ref().map(|one| one.info().timeout);
        granted.filter(|timeout| !timeout.is_zero())
    }

    /// Returns how long an outage may last without costing a lock, be this client idle or busy.
    ///
    /// This is what a session's lease has left at least while its server answers at once. An outage
    /// counts until a server serves the session again. `None` whenever the [session
    /// timeout](Client::session_timeout) is.
    pub fn outage_limit(&self) -> Option<Duration> {
        let info = self.owner.core.slot.lock().session.as_ref().map(|one| one.info())?;
        (!info.timeout.is_zero()).then_some(info.outage_limit)
    }

    /// Returns the largest `tickTime` that the client assumes a server to have.
    ///
    /// The [stated](ClientBuilder::tick_time) one, the default, or a longer one that a granted session
    /// timeout implies.
    ///
    /// `None` whenever the [session timeout](Client::session_timeout) is.
    pub fn tick_time(&self) -> Option<Duration> {
        let info = self.owner.core.slot.lock().session.as_ref().map(|one| one.info())?;
        (!info.timeout.is_zero()).then_some(info.tick)
    }

    /// Returns the session's id, or `None` if there is no session.
    ///
    /// It is another one after a loss, and after the client has [opened another session](Client) in place of
    /// one in which it owned nothing.
    pub fn session_id(&self) -> Option<SessionId> {
        let slot = self.owner.core.slot.lock();
        slot.session
            .as_ref()
            .filter(|session| session.status().now().ended.is_none())
            // On a program's handle it is unknown until the client has created a node.
            .and_then(|session| known(session.id()))
    }

    /// Returns how many watches, threads and pending deletions there are now, to find leaks.
    pub fn stats(&self) -> ClientStats {
        let core = &self.owner.core;
        let session = core.slot.lock().session.clone();
        let watches = session.map(|session| Arc::clone(session.watches()));
        ClientStats {
            watches: watches.as_ref().map_or(0, |watches| watches.len()),
            watches_at_server: match core.handle() {
                None => Some(watches.as_ref().map_or(0, |watches| watches.at_the_server())),
                Some(_) => None,
            },
            pending_deletes: core.reaper.backlog(),
            threads: rt::live_threads(),
            strays: core.strays().found(),
        }
    }

    #[cfg(test)]
    pub(crate) fn with(ensemble: Box<dyn Ensemble>, hosts: String, chroot: String) -> Client {
        Client::assemble(ensemble, hosts, chroot)
    }

    /// A client that has no session yet.
    pub(crate) fn assemble(ensemble: Box<dyn Ensemble>, hosts: String, chroot: String) -> Client {
        let core = ClientCore::new(ensemble, hosts, chroot);
        Client { owner: Arc::new(Owner { core: Arc::new(core) }) }
    }

    pub(crate) fn core(&self) -> &Arc<ClientCore> {
        &self.owner.core
    }
}

/// The resources that a [`Client`] uses: see [`Client::stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// How many watches the client's calls, guards and [`Changes`](crate::Changes) use.
    ///
    /// Two on one node count twice.
    pub watches: usize,
    /// How many nodes the server watches for this session, as far as the client knows.
    ///
    /// `None` over a program's own `zookeeper` handle. Watches are removed in batches, so up to 64
    /// may be left over from ended waits. Servers before 3.5 cannot remove them: they stay until the
    /// node changes or the connection ends.
    pub watches_at_server: Option<usize>,
    /// Nodes still to be deleted in the background.
    pub pending_deletes: usize,
    /// How many threads this library runs in this process, for all clients.
    pub threads: usize,
    /// How many nodes were found, and deleted, that the ensemble had created late: for a request of a
    /// connection that was given up, whose call had ended without it.
    pub strays: u64,
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
        let hosts = core.ensemble.hosts().unwrap_or_else(|| core.hosts.clone());
        out.field("hosts", &hosts).field("chroot", &core.chroot).field("state", &self.state());
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
            // Dropping the core would wait for threads that this process does not have.
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
    tick_time: Option<Duration>,
    access: Access,
    deadlock_warning: Option<Duration>,
    foreign: ForeignContenders,
    paths_limit: Option<usize>,
    on_event: Option<OnReport>,
}

impl ClientBuilder {
    /// Sets how long the ensemble keeps the session, and so its locks, without hearing from the
    /// client.
    ///
    /// Default 10 seconds; between a millisecond and 24 days. The server may grant less or more (by
    /// default between 2 and 20 of its ticks, see [`Client::session_timeout`]). If it grants more,
    /// the client trusts its session for at most 40 seconds, or for the requested timeout if that
    /// is longer.
    ///
    /// With a shorter timeout, a dead holder's lock passes on sooner; with a longer one, locks
    /// survive longer [outages](Client::outage_limit), but none longer than the timeout. It should
    /// be at least ten times the round trip to a server, and within the limits of every server
    /// (`minSessionTimeout`, `maxSessionTimeout`), so that all grant the same.
    pub fn session_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.session_timeout = timeout;
        self
    }

    /// Tells the client the servers' longest `tickTime`, so that it need not assume a longer one,
    /// and locks survive longer outages.
    ///
    /// With a session timeout of 10 s and ticks of 2 s, they survive 5.5 s instead of 4.3 s.
    /// Default 3 seconds, as in ZooKeeper, or half of the granted session timeout if that is less.
    /// If a server's grant shows that its ticks may be longer, the client assumes the longer ones,
    /// and logs one warning.
    ///
    /// **If a server's tick is longer than stated here**, two clients may hold a lock at once: see
    /// `docs/lease.md` in the repository. If it is so long that no heartbeat could renew the
    /// session in time, opening a session fails with
    /// [`InvalidArgument`](ErrorKind::InvalidArgument).
    pub fn tick_time(mut self, tick: Duration) -> ClientBuilder {
        self.tick_time = Some(tick);
        self
    }

    /// Sets how long [`connect`](ClientBuilder::connect) tries in total to reach any server.
    ///
    /// Default 15 seconds. The limit also applies to later calls that neither wait for others nor
    /// have a time limit, such as `try_lock` and `contenders`. A call that waits without a limit,
    /// such as [`lock`](crate::DistributedLock::lock), keeps trying.
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.connect_timeout = timeout;
        self
    }

    /// Adds credentials to present on every connection, such as `"digest"` and `b"user:password"`.
    ///
    /// Default none; may be called several times. They never appear in `Debug` or logs.
    pub fn auth(
        mut self,
        scheme: impl Into<String>,
        credentials: impl Into<Vec<u8>>,
    ) -> ClientBuilder {
        self.access.auth.push(Auth { scheme: scheme.into(), credentials: credentials.into() });
        self
    }

    /// Connects to all servers by TLS, with these settings. Default: plain text.
    ///
    /// # Errors of the connection
    ///
    /// [`connect`](ClientBuilder::connect) fails with
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if a file cannot be used. It fails with
    /// [`AuthFailed`](ErrorKind::AuthFailed) as soon as every server was found to have a
    /// certificate that the client does not trust, or not to trust the client's; if some servers do
    /// not answer, after half of the [connect timeout](ClientBuilder::connect_timeout). An open
    /// session keeps trying until it ends: meanwhile, the certificates may be replaced.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> ClientBuilder {
        self.access.tls = Some(tls);
        self
    }

    /// Authenticates on every connection by SASL. Default: no SASL.
    ///
    /// Nodes with an ACL of the scheme [`sasl`](crate::Acl::sasl) are then open to this client. If
    /// all servers reject it, [`connect`](ClientBuilder::connect) fails with
    /// [`AuthFailed`](ErrorKind::AuthFailed) at once; if some do not answer, after half of the
    /// [connect timeout](ClientBuilder::connect_timeout).
    #[cfg(feature = "sasl")]
    pub fn sasl(mut self, sasl: Sasl) -> ClientBuilder {
        self.access.sasl = Some(sasl);
        self
    }

    /// Has calls that have waited without a limit for this long look whether they wait for ever.
    ///
    /// Such a call has all [waits](Client::waits) below the base path of its lock looked at, once and in the
    /// background, and again three seconds later. If both looks show a certain
    /// [deadlock](crate::Waits::deadlocks) in which a holder waits for that lock, that is a warning in the
    /// log and an [`Event::Deadlock`]; the call goes on waiting. Locks below other bases are not seen, and a
    /// client looks every ten seconds at most. At least a second. Default: no look.
    pub fn warn_of_deadlock_after(mut self, wait: Duration) -> ClientBuilder {
        self.deadlock_warning = Some(wait);
        self
    }

    /// Sets whether locks wait for contenders of recipes that this library does not know.
    ///
    /// Default [`Wait`](ForeignContenders::Wait). **All clients of a lock need the same**: one that passes
    /// such a contender may hold the lock beside it. Over a program's own handle they are always waited for.
    pub fn foreign_contenders(mut self, how: ForeignContenders) -> ClientBuilder {
        self.foreign = how;
        self
    }

    /// States how many bytes of paths the servers can carry at a session's end.
    ///
    /// A session that ends takes all its ephemeral nodes (contenders, members, permits) with it, in one
    /// transaction with all their paths. If that is larger than twice the servers' `jute.maxbuffer`, released
    /// versions from 3.6 on write it, and cannot read it again: the ensemble does not start any more. So from
    /// three quarters of the limit on, this client creates no further ephemeral node in the session: the call
    /// fails with [`TooLarge`](ErrorKind::TooLarge). At a quarter there is one warning in the log, and above
    /// it [`close`](Client::close) deletes nodes before it ends the session, as many as its time allows.
    ///
    /// Default 2,097,150 bytes, for servers with the default `jute.maxbuffer`; three quarters of that are
    /// about 14,000 contenders. At least 4,096. If the servers set `jute.maxbuffer.extrasize`, it is the sum
    /// of the two. Several clients have a limit each.
    ///
    /// Over a program's own handle, nodes that the program has created itself are not known here.
    pub fn session_paths_limit(mut self, bytes: usize) -> ClientBuilder {
        self.paths_limit = Some(bytes);
        self
    }

    /// Calls `function` with each [`Event`], for metrics, alerts, or a log of the program's own.
    ///
    /// The calls come one at a time, in order, on a thread of this library, so the function may
    /// block and call the library; while it blocks, later events wait. A panic in it is caught and
    /// logged, and the next event calls it as before.
    ///
    /// Default: no function. Each event is also a line of the [log](crate#logging); without a
    /// function and a logger that wants that line, it costs nothing.
    ///
    /// ```no_run
    /// use zklock::{Client, Event};
    ///
    /// let builder = Client::builder("zk1:2181,zk2:2181").on_event(|event| match event {
    ///     Event::HoldLost { lock, reason, .. } => eprintln!("ALERT: {lock} lost: {reason}"),
    ///     _ => {}
    /// });
    /// let zk = builder.connect()?;
    /// # Ok::<(), zklock::Error>(())
    /// ```
    pub fn on_event(mut self, function: impl Fn(&Event) + Send + Sync + 'static) -> ClientBuilder {
        self.on_event = Some(Arc::new(function));
        self
    }

    /// Makes a client without connecting: the first call that needs a session opens it.
    ///
    /// For services that may start before ZooKeeper. Sends nothing and starts no thread.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](ErrorKind::InvalidName) for a malformed connect string,
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for settings out of range.
    pub fn lazy(self) -> Result<Client> {
        let client = self.unconnected()?;
        // Its first session is a change of the state that the program can see before.
        client.core().slot.lock().told = Some(SessionState::Lost);
        Ok(client)
    }

    /// Opens a session, waiting at most `wait`, and never longer than the connect timeout.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the wait is cancelled, otherwise as
    /// [`connect`](ClientBuilder::connect).
    pub fn connect_within(self, wait: impl Into<Wait>) -> Result<Client> {
        let (wait, begun) = (wait.into(), rt::now());
        let connect_timeout = self.connect_timeout;
        let client = self.unconnected()?;
        let waiter = Waiter::new();
        let _cancel = wait.cancel().map(|cancel| cancel.subscribe(waiter.bell()));
        // The attempt itself fails at the timeout, and its error says why.
        let margin = Duration::from_millis(50);
        let deadline =
            Deadline::after(connect_timeout.saturating_add(margin)).earlier(wait.until());
        let is_cancelled = || wait.is_cancelled();
        match client.core().session(&waiter, deadline, is_cancelled, Patience::OneAttempt) {
            Ok(Some(_)) => Ok(client),
            Err(error) => Err(error),
            Ok(None) if wait.is_cancelled() => {
                Err(Error::new(ErrorKind::Cancelled, "connecting was cancelled"))
            }
            Ok(None) => Err(client.core().not_connected_since(begun)),
        }
    }

    /// Opens a session, and returns the client once it is connected.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`]; [`AuthFailed`](ErrorKind::AuthFailed) when the server rejects the
    /// credentials, [`InvalidArgument`](ErrorKind::InvalidArgument) for settings out of range,
    /// [`System`](ErrorKind::System) when this process is out of threads or sockets.
    pub fn connect(self) -> Result<Client> {
        self.connect_within(Wait::FOREVER)
    }

    fn unconnected(self) -> Result<Client> {
        let hosts: ConnectString = self.hosts.parse()?;
        let setting = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, what));
        let longest = Duration::from_millis(i32::MAX.unsigned_abs().into());
        if self.session_timeout < Duration::from_millis(1) || self.session_timeout > longest {
            return setting("the session timeout must be between a millisecond and 24 days");
        }
        if self.connect_timeout.is_zero() {
            return setting("the connect timeout must be more than zero");
        }
        if self.tick_time.is_some_and(|tick| tick.is_zero() || tick > longest) {
            return setting("the tick time must be between a nanosecond and 24 days");
        }
        if self.deadlock_warning.is_some_and(|wait| wait < Duration::from_secs(1)) {
            return setting("a wait before a look for deadlocks must be at least a second");
        }
        if self.foreign.passes("", false) && self.foreign != ForeignContenders::Warn {
            return setting("names of contenders to ignore must not be empty: that would be all");
        }
        if self.paths_limit.is_some_and(|bytes| bytes < 4_096) {
            return setting("the limit of a session's paths must be at least 4096 bytes");
        }
        self.access.check()?;
        self.access.check_hosts(&hosts.hosts)?;
        let servers = LinkConfig {
            resolver: Resolver::new(hosts.hosts),
            access: self.access,
            session_timeout: self.session_timeout,
            tick: self.tick_time,
            connect_timeout: self.connect_timeout,
        };
        let client = Client::assemble(Box::new(servers), self.hosts, hosts.chroot);
        if let Some(wait) = self.deadlock_warning {
            client.core().warn_of_deadlock_after(wait);
        }
        client.core().treat_foreign(self.foreign);
        if let Some(bytes) = self.paths_limit {
            client.core().limit_paths_of_session(bytes);
        }
        if let Some(function) = self.on_event {
            client.core().report_to(function);
        }
        Ok(client)
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("hosts", &self.hosts)
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("tick_time", &self.tick_time)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
