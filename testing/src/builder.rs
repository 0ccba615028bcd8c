//! The settings of a server, and which kind of server it is.

use std::env;
use std::time::Duration;

use log::info;

use crate::core::Rules;
#[cfg(feature = "docker")]
use crate::docker::{self, DockerServer};
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "local")]
use crate::local::LocalServer;
use crate::memory::{self, MemoryServer};
#[cfg(feature = "local")]
use crate::testcontainers_toml::Settings;
use crate::zookeeper::{Backend, ZooKeeper};

/// The settings of a [`ZooKeeper`].
///
/// They override the environment variables, which override `testcontainers.toml`.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `start`"]
pub struct ZooKeeperBuilder {
    kind: Option<Kind>,
    port: u16,
    memory: memory::Settings,
    #[cfg(feature = "local")]
    env: Vec<(String, String)>,
    #[cfg(feature = "local")]
    startup_timeout: Option<Duration>,
    #[cfg(feature = "docker")]
    image: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Memory,
    #[cfg(feature = "local")]
    Local,
    #[cfg(feature = "docker")]
    Docker,
}

impl ZooKeeperBuilder {
    pub(crate) fn new() -> ZooKeeperBuilder {
        ZooKeeperBuilder::default()
    }

    /// Starts the server in this process.
    pub fn in_memory(mut self) -> ZooKeeperBuilder {
        self.kind = Some(Kind::Memory);
        self
    }

    /// Starts the server from a local installation: Java and ZooKeeper's jars.
    #[cfg(feature = "local")]
    pub fn local(mut self) -> ZooKeeperBuilder {
        self.kind = Some(Kind::Local);
        self
    }

    /// Starts the server in Docker.
    #[cfg(feature = "docker")]
    pub fn docker(mut self) -> ZooKeeperBuilder {
        self.kind = Some(Kind::Docker);
        self
    }

    /// Sets the image, as `name:tag`; without a tag, `latest`. The server is started in Docker, unless
    /// `ZKLOCK_TESTING_SERVER` or the builder names another kind.
    #[cfg(feature = "docker")]
    pub fn image(mut self, image: impl Into<String>) -> ZooKeeperBuilder {
        self.image = Some(image.into());
        self
    }

    /// Sets one environment variable of the server, as the table `[env]` of `testcontainers.toml` does. A server in memory
    /// has none.
    #[cfg(feature = "local")]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> ZooKeeperBuilder {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets how long the server may take until it serves clients: at most an hour, by default 60 s.
    ///
    /// The time to pull an image is not part of it. A server in memory serves at once.
    #[cfg(feature = "local")]
    pub fn startup_timeout(mut self, timeout: Duration) -> ZooKeeperBuilder {
        self.startup_timeout = Some(timeout);
        self
    }

    /// Sets the tick of a server in memory, 200 ms by default: it ends sessions at whole ticks.
    pub fn tick_time(mut self, tick: Duration) -> ZooKeeperBuilder {
        self.memory.tick = tick;
        self
    }

    /// Sets the shortest and the longest session timeout of a server in memory, by default 200 ms and 60 s.
    pub fn session_timeouts(mut self, shortest: Duration, longest: Duration) -> ZooKeeperBuilder {
        self.memory.timeouts = (shortest, longest);
        self
    }

    /// Sets how often a server in memory looks for containers to remove, and nodes whose time is over: by default each
    /// 60 s.
    pub fn check_interval(mut self, interval: Duration) -> ZooKeeperBuilder {
        self.memory.check_interval = interval;
        self
    }

    /// Allows nodes with a time to live in memory, as `zookeeper.extendedTypesEnabled` does.
    pub fn time_to_live(mut self) -> ZooKeeperBuilder {
        self.memory.rules.has_ttl = true;
        self
    }

    /// Sets the port of a server in memory; by default any that is free.
    pub fn port(mut self, port: u16) -> ZooKeeperBuilder {
        self.port = port;
        self
    }

    /// Sets where the behaviour in memory differs from that of 3.8.
    #[doc(hidden)]
    pub fn rules(mut self, rules: Rules) -> ZooKeeperBuilder {
        self.memory.rules = rules;
        self
    }

    /// Makes a node in memory, below which numbers begin with `next`.
    #[doc(hidden)]
    pub fn sequence(mut self, path: impl Into<String>, next: i32) -> ZooKeeperBuilder {
        self.memory.nodes.push((path.into(), next));
        self
    }

    /// Starts the server, and waits until it serves clients.
    ///
    /// # Errors
    ///
    /// Those of [`ZooKeeper::start`].
    pub fn start(self) -> Result<ZooKeeper> {
        let server: Box<dyn Backend> = match self.kind()? {
            Kind::Memory => Box::new(self.start_in_memory()?),
            #[cfg(feature = "local")]
            Kind::Local => Box::new(LocalServer::start(&self.settings()?)?),
            #[cfg(feature = "docker")]
            Kind::Docker => {
                let settings = self.settings()?;
                docker::check(&settings).map_err(|cause| no_docker(&cause))?;
                Box::new(DockerServer::start(&settings)?)
            }
        };
        info!("started a ZooKeeper server at {} ({})", server.hosts(), server.what());
        Ok(ZooKeeper::new(server))
    }

    fn start_in_memory(self) -> Result<MemoryServer> {
        let memory::Settings { tick, timeouts: (shortest, longest), check_interval, .. } =
            &self.memory;
        if *tick < Duration::from_millis(1) || check_interval.is_zero() || shortest > longest {
            let text = "a tick takes at least a millisecond, there is time between two checks, and no session timeout is \
                        shorter than the shortest";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        MemoryServer::start(self.memory, self.port).map_err(|cause| {
            Error::system(format!("cannot start a ZooKeeper in memory: {cause}")).caused_by(cause)
        })
    }

    #[cfg(feature = "local")]
    fn settings(&self) -> Result<Settings> {
        let package = env::var_os("CARGO_MANIFEST_DIR");
        let mut settings = Settings::of_package(package.as_deref().map(AsRef::as_ref))?;
        #[cfg(feature = "docker")]
        if let Some(image) = self.named_image()? {
            settings.set_image(&image);
        }
        settings.env.extend(self.env.iter().cloned());
        if let Some(timeout) = self.startup_timeout {
            settings.startup_timeout = timeout;
        }
        settings.checked()
    }

    fn kind(&self) -> Result<Kind> {
        if let Some(kind) = self.kind {
            return Ok(kind);
        }
        if let Some(name) = variable("ZKLOCK_TESTING_SERVER")? {
            return Kind::named(&name);
        }
        // A test that names an image would pass without it.
        #[cfg(feature = "docker")]
        if self.named_image()?.is_some() {
            return Ok(Kind::Docker);
        }
        #[cfg(not(feature = "docker"))]
        if variable("ZKLOCK_TESTING_IMAGE")?.is_some() {
            let text =
                "ZKLOCK_TESTING_IMAGE names an image: this needs zklock-testing's feature `docker`";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(Kind::Memory)
    }

    /// The image that the test or the run names, rather than the package.
    #[cfg(feature = "docker")]
    fn named_image(&self) -> Result<Option<String>> {
        match &self.image {
            Some(image) => Ok(Some(image.clone())),
            None => variable("ZKLOCK_TESTING_IMAGE"),
        }
    }
}

impl Kind {
    fn named(name: &str) -> Result<Kind> {
        #[cfg(not(feature = "docker"))]
        let without = |feature: &str| {
            let text = format!(
                "ZKLOCK_TESTING_SERVER is {name:?}: this needs zklock-testing's feature `{feature}`"
            );
            Err(Error::new(ErrorKind::Unsupported, text))
        };
        match name {
            "memory" => Ok(Kind::Memory),
            #[cfg(feature = "local")]
            "local" => Ok(Kind::Local),
            #[cfg(feature = "docker")]
            "docker" => Ok(Kind::Docker),
            #[cfg(not(feature = "local"))]
            "local" => without(name),
            #[cfg(not(feature = "docker"))]
            "docker" => without(name),
            _ => {
                let text = format!(
                    "ZKLOCK_TESTING_SERVER is {name:?}; set it to \"memory\", \"local\" or \"docker\""
                );
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        }
    }
}

#[cfg(feature = "docker")]
fn no_docker(cause: &Error) -> Error {
    let text = format!(
        "cannot start a ZooKeeper server in Docker: {cause}; start an engine that has the image or can pull it, or set \
         ZKLOCK_TESTING_SERVER to memory or local"
    );
    Error::system(text).caused_by(cause.clone())
}

/// The value of an environment variable that is set and not empty.
fn variable(name: &str) -> Result<Option<String>> {
    match env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(value)) => {
            let text = format!("the environment variable {name} is {value:?}, which is not UTF-8");
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_of_server_is_refused() {
        assert_eq!(Kind::named("memory").unwrap(), Kind::Memory);
        #[cfg(feature = "local")]
        assert_eq!(Kind::named("local").unwrap(), Kind::Local);
        #[cfg(feature = "docker")]
        assert_eq!(Kind::named("docker").unwrap(), Kind::Docker);
        #[cfg(not(feature = "docker"))]
        assert!(Kind::named("docker").unwrap_err().to_string().contains("feature `docker`"));
        let error = Kind::named("podman").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("podman"), "{error}");
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        for builder in [
            ZooKeeperBuilder::new().tick_time(Duration::ZERO),
            ZooKeeperBuilder::new().check_interval(Duration::ZERO),
            ZooKeeperBuilder::new()
                .session_timeouts(Duration::from_secs(2), Duration::from_secs(1)),
        ] {
            let error = builder.in_memory().start().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }

    #[cfg(feature = "docker")]
    #[test]
    fn an_image_that_a_test_names_is_in_docker() {
        let builder = ZooKeeperBuilder::new().image("zookeeper:3.9");
        assert_eq!(builder.clone().local().kind().unwrap(), Kind::Local);
        if variable("ZKLOCK_TESTING_SERVER").unwrap().is_none() {
            assert_eq!(builder.kind().unwrap(), Kind::Docker);
        }
    }
}
