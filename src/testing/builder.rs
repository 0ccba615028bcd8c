//! The settings of a server, and the choice between Docker and a local installation.

use std::env;
use std::time::Duration;

use log::info;

#[cfg(feature = "testing")]
use super::docker::{self, DockerServer};
use super::local_server::LocalServer;
use super::testcontainers_toml::Settings;
use super::{Backend, ZooKeeperServer};
use crate::error::{Error, ErrorKind, Result};

/// The settings of a [`ZooKeeperServer`].
///
/// They override the environment variables, which override `testcontainers.toml`.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct ZooKeeperServerBuilder {
    kind: Option<Kind>,
    #[cfg(feature = "testing")]
    image: Option<String>,
    env: Vec<(String, String)>,
    startup_timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Local,
    #[cfg(feature = "testing")]
    Docker,
    #[cfg(feature = "testing")]
    DockerOrLocal,
}

impl ZooKeeperServerBuilder {
    pub(super) fn new() -> ZooKeeperServerBuilder {
        ZooKeeperServerBuilder {
            kind: None,
            #[cfg(feature = "testing")]
            image: None,
            env: Vec::new(),
            startup_timeout: None,
        }
    }

    /// Starts the server in Docker, never from a local installation.
    #[cfg(feature = "testing")]
    pub fn docker(mut self) -> ZooKeeperServerBuilder {
        self.kind = Some(Kind::Docker);
        self
    }

    /// Makes `start` use a local installation, never Docker.
    pub fn local(mut self) -> ZooKeeperServerBuilder {
        self.kind = Some(Kind::Local);
        self
    }

    /// Sets the image, as `name:tag`; without a tag, `latest`.
    ///
    /// A local installation does not replace an image that is named here, except with
    /// `ZKLOCK_TESTING_SERVER=local` or [`local_server`](ZooKeeperServerBuilder::local).
    #[cfg(feature = "testing")]
    pub fn image(mut self, image: impl Into<String>) -> ZooKeeperServerBuilder {
        self.image = Some(image.into());
        self
    }

    /// Sets one environment variable of the server, as the table `[env]` of
    /// [`testcontainers.toml`](crate::testing#testcontainerstoml) does.
    pub fn env(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> ZooKeeperServerBuilder {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets how long the server may take until it serves clients: at most an hour, by default 60 s.
    ///
    /// The time to pull an image is not part of it.
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
        let started: (Box<dyn Backend>, String) = match self.kind()? {
            Kind::Local => (Box::new(LocalServer::start(&settings)?), "local".to_owned()),
            #[cfg(feature = "testing")]
            Kind::Docker => {
                docker::check(&settings).map_err(|cause| only_docker(&cause))?;
                (Box::new(DockerServer::start(&settings)?), "in Docker".to_owned())
            }
            #[cfg(feature = "testing")]
            Kind::DockerOrLocal => match docker::check(&settings) {
                Ok(()) => (Box::new(DockerServer::start(&settings)?), "in Docker".to_owned()),
                Err(not_docker) => {
                    let server = LocalServer::start(&settings)
                        .map_err(|not_local| neither(&not_docker, not_local))?;
                    (Box::new(server), format!("local, not in Docker: {not_docker}"))
                }
            },
        };
        let (server, how) = started;
        let hosts = server.hosts();
        info!(target: "zklock::testing", "started a ZooKeeper server at {hosts} ({how})");
        Ok(ZooKeeperServer::new(server))
    }

    fn settings(&self) -> Result<Settings> {
        let package = env::var_os("CARGO_MANIFEST_DIR");
        let mut settings = Settings::of_package(package.as_deref().map(AsRef::as_ref))?;
        #[cfg(feature = "testing")]
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
        #[cfg(not(feature = "testing"))]
        return Ok(Kind::Local);
        // A test that names an image would pass with another version.
        #[cfg(feature = "testing")]
        Ok(if self.named_image()?.is_some() { Kind::Docker } else { Kind::DockerOrLocal })
    }

    /// The image that the test or the run names, rather than the package.
    #[cfg(feature = "testing")]
    fn named_image(&self) -> Result<Option<String>> {
        match &self.image {
            Some(image) => Ok(Some(image.clone())),
            None => variable("ZKLOCK_TESTING_IMAGE"),
        }
    }
}

impl Kind {
    fn named(name: &str) -> Result<Kind> {
        match name {
            "local" => Ok(Kind::Local),
            #[cfg(feature = "testing")]
            "docker" => Ok(Kind::Docker),
            #[cfg(not(feature = "testing"))]
            "docker" => Err(Error::new(
                ErrorKind::InvalidArgument,
                "ZKLOCK_TESTING_SERVER is \"docker\": this needs zklock's feature `testing` instead of \
                 `testing-local`",
            )),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("ZKLOCK_TESTING_SERVER is {name:?}; set it to \"docker\" or \"local\""),
            )),
        }
    }
}

#[cfg(feature = "testing")]
fn only_docker(cause: &Error) -> Error {
    super::system(format!(
        "cannot start a ZooKeeper server in Docker: {cause}; start an engine that has the image or can \
         pull it, or set ZKLOCK_TESTING_SERVER=local to use a local installation"
    ))
    .caused_by(cause.clone())
}

#[cfg(feature = "testing")]
fn neither(not_docker: &Error, not_local: Error) -> Error {
    super::system(format!(
        "cannot start a ZooKeeper server. Docker: {not_docker}; start an engine that has the image or can \
         pull it. Local installation: {not_local}"
    ))
    .caused_by(not_local)
}

/// The value of an environment variable that is set and not empty.
fn variable(name: &str) -> Result<Option<String>> {
    match env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(value)) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("the environment variable {name} is {value:?}, which is not UTF-8"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_of_server_is_refused() {
        assert_eq!(Kind::named("local").unwrap(), Kind::Local);
        #[cfg(feature = "testing")]
        assert_eq!(Kind::named("docker").unwrap(), Kind::Docker);
        #[cfg(not(feature = "testing"))]
        assert!(Kind::named("docker").unwrap_err().to_string().contains("feature `testing`"));
        let error = Kind::named("podman").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("podman"), "{error}");
    }

    #[cfg(feature = "testing")]
    #[test]
    fn a_local_server_does_not_replace_an_image_that_a_test_names() {
        let builder = ZooKeeperServerBuilder::new().image("zookeeper:3.9");
        assert_eq!(builder.clone().local().kind().unwrap(), Kind::Local);
        if variable("ZKLOCK_TESTING_SERVER").unwrap().is_none() {
            assert_eq!(builder.kind().unwrap(), Kind::Docker);
        }
    }
}
