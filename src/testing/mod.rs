//! A ZooKeeper server for the tests of programs that use this crate.
//!
//! With the feature `testing`, which is for development only: it brings an async runtime and some
//! two hundred crates along.
//!
//! ```toml
//! [dev-dependencies]
//! zklock = { version = "0.1", features = ["testing"] }
//! ```
//!
//! ```no_run
//! use zklock::DistributedLock;
//! use zklock::testing::ZooKeeperServer;
//!
//! # fn main() -> zklock::Result<()> {
//! let server = ZooKeeperServer::start()?;
//! let zk = server.client()?;
//! let guard = DistributedLock::new(&zk, "/locks", "nightly").lock()?;
//! assert!(guard.is_held());
//! # Ok(())
//! # }
//! ```
//!
//! # Docker, or a local installation
//!
//! If a Docker engine answers, the server is a container, by the
//! [`testcontainers`](https://docs.rs/testcontainers) crate, which pulls the image if it is not
//! there. Otherwise it is a child process, from the packages `default-jre-headless`,
//! `libzookeeper-java` and `libslf4j-java` of Debian and Ubuntu, or from the jars in the directory
//! that `ZKLOCK_ZOOKEEPER_JARS` names. If neither is possible, the error says what to install.
//! [`docker`](ZooKeeperServerBuilder::docker) and [`local`](ZooKeeperServerBuilder::local) force
//! the choice; so does the environment variable `ZKLOCK_TESTING_SERVER`, which is `docker` or
//! `local`.
//!
//! # `testcontainers.toml`
//!
//! Read from the root of the package whose tests run (`CARGO_MANIFEST_DIR`, which cargo sets), if
//! it is there. Each key may be left out; these are the defaults:
//!
//! ```toml
#![doc = include_str!("../../testcontainers.toml")]
//! ```
//!
//! A table `[env]` replaces the default one as a whole. A local installation takes those of its
//! variables that stand for lines of `zoo.cfg` (`ZOO_TICK_TIME`, `ZOO_INIT_LIMIT`,
//! `ZOO_SYNC_LIMIT`, `ZOO_MAX_CLIENT_CNXNS`, `ZOO_4LW_COMMANDS_WHITELIST`, `ZOO_CFG_EXTRA`), and
//! leaves out the others; it has no admin server. The word `srvr` has to be allowed. The
//! environment variable `ZKLOCK_TESTING_IMAGE`, as `name:tag`, takes the place of the file's image
//! and tag, for example to run the same tests with several versions.
//!
//! # What is left behind
//!
//! Nothing but an empty file for each port that was used, in `zklock-ports-<user id>` of the
//! directory for temporary files: the server, its data and its log are gone when the [`ZooKeeperServer`] is dropped, and
//! soon after the process has ended in any other way, `SIGKILL` included; so it may be in a
//! `static` too. For a container this needs the command `docker` on the `PATH`; without it only the
//! drop removes it. With `TESTCONTAINERS_COMMAND=keep` containers are kept.
//!
//! An engine that is reached with TLS needs a feature of the `testcontainers` crate: depend on it,
//! with `ring` or `aws-lc-rs`.

mod child;
mod docker;
mod local;
mod testcontainers_toml;

use std::env;
use std::time::{Duration, Instant};

use log::info;

use self::docker::Docker;
use self::local::Local;
use self::testcontainers_toml::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::session::client::Client;

/// The pause between two looks at a server that is starting.
const POLL: Duration = Duration::from_millis(20);

/// A running ZooKeeper server, which ends when this is dropped.
///
/// Dropping waits until it is gone.
#[derive(Debug)]
pub struct ZooKeeperServer {
    hosts: String,
    kind: Kind,
    // Ends the server when dropped.
    _running: Running,
}

#[derive(Debug)]
enum Running {
    Docker(#[expect(dead_code, reason = "for its drop")] Box<Docker>),
    Local(#[expect(dead_code, reason = "for its drop")] Local),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Docker,
    Local,
}

impl ZooKeeperServer {
    /// Starts a server with what `testcontainers.toml` says, and waits until it serves clients.
    ///
    /// An image is pulled first if it is not there; the start-up time-out begins after that.
    ///
    /// # Errors
    /// [`InvalidData`](ErrorKind::InvalidData) for a setting that cannot be accepted,
    /// [`System`](ErrorKind::System) when there is neither a Docker engine nor an installation, or
    /// when the server did not start; then the message ends in its log.
    pub fn start() -> Result<ZooKeeperServer> {
        ZooKeeperServer::builder().start()
    }

    /// For a server with other settings.
    pub fn builder() -> ZooKeeperServerBuilder {
        ZooKeeperServerBuilder { kind: None, image: None, env: Vec::new(), startup_timeout: None }
    }

    /// The connect string, for [`Client::connect`].
    pub fn hosts(&self) -> &str {
        &self.hosts
    }

    /// A new client, connected to this server, with the default settings.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.hosts)
    }

    /// Whether it runs in a container, rather than as a child process.
    pub fn is_docker(&self) -> bool {
        self.kind == Kind::Docker
    }
}

/// What a [`ZooKeeperServer`] is started with. What is said here goes before the environment
/// variables, and these before `testcontainers.toml`.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct ZooKeeperServerBuilder {
    kind: Option<Kind>,
    image: Option<String>,
    env: Vec<(String, String)>,
    startup_timeout: Option<Duration>,
}

impl ZooKeeperServerBuilder {
    /// In Docker, or not at all.
    pub fn docker(mut self) -> ZooKeeperServerBuilder {
        self.kind = Some(Kind::Docker);
        self
    }

    /// From a local installation, or not at all.
    pub fn local(mut self) -> ZooKeeperServerBuilder {
        self.kind = Some(Kind::Local);
        self
    }

    /// The image, as `name:tag`; without a tag, `latest`.
    pub fn image(mut self, image: impl Into<String>) -> ZooKeeperServerBuilder {
        self.image = Some(image.into());
        self
    }

    /// Sets one variable of `[env]`.
    pub fn env(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> ZooKeeperServerBuilder {
        self.env.push((name.into(), value.into()));
        self
    }

    /// How long the server may take to serve clients, up to an hour; 60 s by default.
    pub fn startup_timeout(mut self, timeout: Duration) -> ZooKeeperServerBuilder {
        self.startup_timeout = Some(timeout);
        self
    }

    /// Starts the server, and waits until it serves clients.
    ///
    /// # Errors
    /// Those of [`ZooKeeperServer::start`].
    pub fn start(self) -> Result<ZooKeeperServer> {
        let settings = self.settings()?;
        let kind = match self.kind {
            Some(kind) => kind,
            None => match given("ZKLOCK_TESTING_SERVER")? {
                Some(name) => Kind::named(&name)?,
                None => Kind::possible()?,
            },
        };
        let (hosts, running) = match kind {
            Kind::Docker => {
                let docker = Docker::start(&settings)?;
                (docker.hosts(), Running::Docker(Box::new(docker)))
            }
            Kind::Local => {
                let local = Local::start(&settings)?;
                (local.hosts(), Running::Local(local))
            }
        };
        info!(target: "zklock::testing", "started a ZooKeeper server at {hosts} ({kind:?})");
        Ok(ZooKeeperServer { hosts, kind, _running: running })
    }

    fn settings(&self) -> Result<Settings> {
        let package = env::var_os("CARGO_MANIFEST_DIR");
        let mut settings = Settings::of_package(package.as_deref().map(AsRef::as_ref))?;
        let given_image = given("ZKLOCK_TESTING_IMAGE")?;
        if let Some(image) = self.image.as_ref().or(given_image.as_ref()) {
            settings.set_image(image);
        }
        settings.env.extend(self.env.iter().cloned());
        if let Some(timeout) = self.startup_timeout {
            settings.startup_timeout = timeout;
        }
        settings.checked()
    }
}

impl Kind {
    fn named(name: &str) -> Result<Kind> {
        match name {
            "docker" => Ok(Kind::Docker),
            "local" => Ok(Kind::Local),
            _ => Err(Error::new(
                ErrorKind::InvalidData,
                format!("ZKLOCK_TESTING_SERVER is {name:?}; it can be \"docker\" or \"local\""),
            )),
        }
    }

    fn possible() -> Result<Kind> {
        let Err(no_engine) = docker::engine() else { return Ok(Kind::Docker) };
        match child::Installation::find() {
            Ok(_) => Ok(Kind::Local),
            Err(no_installation) => Err(Error::new(
                ErrorKind::System,
                format!("{no_engine}; start one, or install ZooKeeper: {no_installation}"),
            )),
        }
    }
}

/// An environment variable that is set and not empty.
fn given(name: &str) -> Result<Option<String>> {
    match env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(value)) => Err(Error::new(
            ErrorKind::InvalidData,
            format!("{name} is {value:?}, which is no text"),
        )),
    }
}

fn system(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::System, message)
}

/// When a server that is starting now must serve. The time-out is within bounds, or the end is now.
fn end_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_one_of_two() {
        assert_eq!(Kind::named("docker").unwrap(), Kind::Docker);
        assert_eq!(Kind::named("local").unwrap(), Kind::Local);
        let error = Kind::named("podman").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("podman"), "{error}");
    }
}
