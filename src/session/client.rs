//! The public `Client` and its builder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::client_core::{ClientCore, Interrupted, Patience};
use super::connection::Ensemble;
use super::linked::LinkEnsemble;
use super::notify::Waiter;
use super::retry::Retry;
use super::status::SessionState;
use crate::connect_string::ConnectString;
use crate::error::{Error, ErrorKind, Result};
use crate::link::dial::{Auth, Resolver};
use crate::link::messages::LinkConfig;
use crate::rt::{self, Deadline};

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
        self.owner.core.listen(Box::new(callback));
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
        let core = ClientCore::new(ensemble, hosts, chroot, retry);
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
