//! ZooKeeper servers for the tests of programs that use this crate.
//!
//! Each has a directory and a port of its own. The features are for
//! development only; `docs/testing.md` in the repository says how to install what they need:
//!
//! - `testing-local` starts servers from a local installation of ZooKeeper. It adds nine small
//!   crates.
//! - `testing` starts them in Docker, too. It adds an async runtime and two hundred crates.
//!
//! ```no_run
//! use std::time::Duration;
//! use zklock::testing::ZooKeeperServer;
//! use zklock::{DistributedLock, LossReason};
//!
//! # fn main() -> zklock::Result<()> {
//! let server = ZooKeeperServer::start()?;
//! let zk = server.client()?;
//! let guard = DistributedLock::new(&zk, "/locks", "nightly").lock()?;
//!
//! server.expire(&zk)?;
//! let reason = guard.lost().wait_within(Duration::from_secs(10));
//! assert_eq!(reason, Some(Err(LossReason::SessionExpired)));
//! # Ok(())
//! # }
//! ```
//!
//! # One server for many tests
//!
//! Tests of one process can share a server in a `static`: it ends with the process. Each test works
//! below a *chroot* of its own, the path in its connect string, which the first lock creates. A
//! test that stops or pauses its server starts one of its own.
//!
//! ```no_run
//! use std::sync::LazyLock;
//! use zklock::Client;
//! use zklock::testing::ZooKeeperServer;
//!
//! static SERVER: LazyLock<ZooKeeperServer> =
//!     LazyLock::new(|| ZooKeeperServer::start().expect("a ZooKeeper server"));
//!
//! #[test]
//! fn reports_are_written_once() {
//!     let zk = Client::connect(&format!("{}/reports", SERVER.hosts())).expect("a client");
//!     // ...
//! }
//! ```
//!
//! Runners that start a process for each test, such as cargo-nextest, start a server for each test,
//! too. To test losses in little time, connect with a shorter
//! [`session_timeout`](crate::ClientBuilder::session_timeout).
//!
//! # Docker, or a local installation
//!
//! With the feature `testing`, the server is a container, started by the
//! [`testcontainers`](https://docs.rs/testcontainers) crate. If no Docker engine answers, or a
//! missing image cannot be pulled, a server from a local installation replaces it, and a line in
//! the log (target `zklock::testing`, level `info`) says why. If that is impossible, too, the error
//! names both causes.
//!
//! - The environment variable `ZKLOCK_TESTING_SERVER` forces one or the other: `docker` or `local`. So do
#![cfg_attr(feature = "testing", doc = "[`docker`](ZooKeeperServerBuilder::docker)")]
#![cfg_attr(not(feature = "testing"), doc = "`docker`")]
//!   and [`local_server`](ZooKeeperServerBuilder::local) of the builder.
//! - `ZKLOCK_TESTING_IMAGE`, as `name:tag`, names another image. A local server does not replace an
//!   image that is named like this, or by the builder.
//! - `ZKLOCK_ZOOKEEPER_JARS` names a directory with `zookeeper.jar` and `slf4j-simple.jar` for the
//!   local installation.
//!
//! # `testcontainers.toml`
//!
//! This file in the root of the package under test (`CARGO_MANIFEST_DIR`, which cargo sets) changes
//! the settings. Every key is optional; these are the defaults:
//!
//! ```toml
#![doc = include_str!("../../testcontainers.toml")]
//! ```
//!
//! A table `[env]` replaces the whole default table. It has to allow the command `srvr`. A local
//! server has no admin server and ignores all variables except for `ZOO_TICK_TIME`,
//! `ZOO_INIT_LIMIT`, `ZOO_SYNC_LIMIT`, `ZOO_MAX_CLIENT_CNXNS`, `ZOO_4LW_COMMANDS_WHITELIST` and
//! `ZOO_CFG_EXTRA`.
//!
//! # Cleaning up
//!
//! The server, its data and its log are gone when the [`ZooKeeperServer`] is dropped, and soon after
//! the process has ended in any other way, `SIGKILL` included. For a container of a process that was
//! killed, this needs the command `docker` on the `PATH`. With `TESTCONTAINERS_COMMAND=keep`,
//! containers are kept.
//!
//! Files in `zklock-ports-<user id>`, below the directory for temporary files, reserve ports.
//!
//! To reach a Docker engine with TLS, depend on `testcontainers` with its feature `ring` or
//! `aws-lc-rs`.

mod builder;
mod claimed_ports;
#[cfg(feature = "testing")]
mod docker;
mod expire_session;
mod local_server;
mod server_process;
mod testcontainers_toml;

use std::fmt;
use std::time::{Duration, Instant};

pub use self::builder::ZooKeeperServerBuilder;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Mutex;
use crate::session::Client;
use crate::session_id::SessionId;

/// The pause between two looks at something that is about to change.
const POLL: Duration = Duration::from_millis(20);

/// A ZooKeeper server for tests.
///
/// Dropping it waits until the server and its data are gone: some milliseconds for a local server,
/// about a second for a container, and never more than a minute. Several threads can call its
/// methods; each call waits for the one before.
pub struct ZooKeeperServer {
    hosts: String,
    is_docker: bool,
    controlled: Mutex<Controlled>,
}

struct Controlled {
    condition: Condition,
    server: Box<dyn Backend>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Running,
    Paused,
    Stopped,
}

/// A server in a container, or as a child process. It ends when dropped.
trait Backend: Send {
    fn hosts(&self) -> String;
    fn is_docker(&self) -> bool;
    fn stop(&mut self) -> Result<()>;
    /// Starts a stopped server, which stays stopped if this fails.
    fn start_again(&mut self) -> Result<()>;
    fn pause(&mut self) -> Result<()>;
    fn resume(&mut self) -> Result<()>;
}

impl ZooKeeperServer {
    /// Starts a server with the settings of your package's `testcontainers.toml`, and waits until it
    /// serves clients.
    ///
    /// A missing image is pulled first, for at most ten minutes. After that the start-up timeout
    /// limits the wait, 60 s by default.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a setting that cannot be accepted,
    /// [`System`](ErrorKind::System) if there is neither an engine with the image nor a local
    /// installation, or if the server did not start; then the message contains the end of its log.
    pub fn start() -> Result<ZooKeeperServer> {
        ZooKeeperServer::builder().start()
    }

    /// Returns a builder, for a server with settings of the test's own.
    pub fn builder() -> ZooKeeperServerBuilder {
        ZooKeeperServerBuilder::new()
    }

    fn new(server: Box<dyn Backend>) -> ZooKeeperServer {
        ZooKeeperServer {
            hosts: server.hosts(),
            is_docker: server.is_docker(),
            controlled: Mutex::new(Controlled { condition: Condition::Running, server }),
        }
    }

    /// Returns the connect string, `host:port`, for [`Client::connect`]. It never changes.
    pub fn hosts(&self) -> &str {
        &self.hosts
    }

    /// Connects a new client with the default settings.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.hosts)
    }

    /// Stops the server at once, as a crash does, and keeps its data.
    ///
    /// Nothing that it has acknowledged is lost. Its port stays reserved, and connections to it are
    /// refused. A paused server can be stopped, too. Does nothing if the server is stopped already.
    ///
    /// # Errors
    /// [`System`](ErrorKind::System) if the server has not ended within 30 s.
    pub fn stop(&self) -> Result<()> {
        let mut controlled = self.controlled.lock();
        if controlled.condition != Condition::Stopped {
            controlled.server.stop()?;
            controlled.condition = Condition::Stopped;
        }
        Ok(())
    }

    /// Starts a stopped server with the same port and data, and waits until it serves clients.
    ///
    /// Sessions continue if their clients connect again within the session timeout, which begins
    /// anew with the start. Does nothing if the server is running.
    ///
    /// # Errors
    /// [`System`](ErrorKind::System) if the server did not serve clients within the start-up
    /// timeout; then the message contains the end of its log, the server is stopped, and the call
    /// can be repeated. Also if the server is paused.
    pub fn start_again(&self) -> Result<()> {
        let mut controlled = self.controlled.lock();
        match controlled.condition {
            Condition::Running => Ok(()),
            Condition::Paused => Err(self.refusal("start", "is paused; call `resume`")),
            Condition::Stopped => {
                controlled.server.start_again()?;
                controlled.condition = Condition::Running;
                Ok(())
            }
        }
    }

    /// Pauses the server: connections to it stay open, and it answers nothing.
    ///
    /// A local server gets `SIGSTOP`; the kernel accepts new connections to it, but nothing serves
    /// them. A container is frozen. Does nothing if the server is paused already.
    ///
    /// # Errors
    /// [`System`](ErrorKind::System) if the server is stopped or has ended by itself, or did not
    /// pause in time.
    pub fn pause(&self) -> Result<()> {
        let mut controlled = self.controlled.lock();
        match controlled.condition {
            Condition::Paused => Ok(()),
            Condition::Stopped => Err(self.refusal("pause", "is stopped; call `start_again`")),
            Condition::Running => {
                // If it fails half-way, `resume` and `stop` are still possible.
                controlled.condition = Condition::Paused;
                controlled.server.pause()
            }
        }
    }

    /// Lets a [paused](Self::pause) server go on.
    ///
    /// The server then expires the sessions whose timeout has passed, except for those whose
    /// clients it hears first. Does nothing if the server is running.
    ///
    /// # Errors
    /// [`System`](ErrorKind::System) if the server is stopped or has ended by itself, or did not
    /// resume in time.
    pub fn resume(&self) -> Result<()> {
        let mut controlled = self.controlled.lock();
        match controlled.condition {
            Condition::Running => Ok(()),
            Condition::Stopped => Err(self.refusal("resume", "is stopped; call `start_again`")),
            Condition::Paused => {
                controlled.server.resume()?;
                controlled.condition = Condition::Running;
                Ok(())
            }
        }
    }

    /// Expires the session of a client at the server.
    ///
    /// When this returns, the session's ephemeral znodes are gone, and other clients can take its
    /// locks. The client learns of it as after an expiry in production: its connection breaks, and
    /// when it connects again, some milliseconds later, the server answers that the session has
    /// expired. The client opens a new session for the next call.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if the client has no session, or not at this server,
    /// [`System`](ErrorKind::System) if the server is stopped or paused, or did not end the session
    /// within 10 s.
    pub fn expire(&self, client: &Client) -> Result<()> {
        let session = client.session_id().ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "the client has no session that could be expired")
        })?;
        self.expire_session(session)
    }

    /// Expires a session by its id, as [`Client::session_id`] and the server's log tell it.
    ///
    /// This is for sessions of other processes and other client libraries. Otherwise like
    /// [`expire`](ZooKeeperServer::expire), except that [`NotFound`](ErrorKind::NotFound) means
    /// that the server has no such session.
    pub fn expire_session(&self, id: impl Into<SessionId>) -> Result<()> {
        let controlled = self.controlled.lock();
        let refusal = |why| Err(self.refusal("expire a session of", why));
        match controlled.condition {
            Condition::Running => expire_session::expire_session(&self.hosts, id.into().into()),
            Condition::Paused => refusal("is paused; call `resume`"),
            Condition::Stopped => refusal("is stopped; call `start_again`"),
        }
    }

    fn refusal(&self, what: &str, why: &str) -> Error {
        system(format!("cannot {what} the ZooKeeper server at {}: it {why} first", self.hosts))
    }
}

impl fmt::Debug for ZooKeeperServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperServer")
            .field("hosts", &self.hosts)
            .field("is_docker", &self.is_docker)
            .finish_non_exhaustive()
    }
}

fn system(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::System, message)
}

/// The end of a time limit that is not too long for the clock; otherwise now.
fn end_after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or(now)
}
