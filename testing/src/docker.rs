//! A server in a container: the one file that names the `testcontainers` crate.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, Write};
use std::net::ToSocketAddrs;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use log::warn;
use testcontainers::bollard;
use testcontainers::bollard::query_parameters::{
    RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
};
use testcontainers::core::IntoContainerPort;
use testcontainers::core::client::{ClientError, docker_client_instance};
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, GenericImage, ImageExt, TestcontainersError};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::local::{self, POLL, Port, end_after, expire_session};
use crate::testcontainers_toml::Settings;
use crate::zookeeper::Backend;

const CLIENT_PORT: u16 = 2181;
/// How long an engine may take to answer whether it is there.
const PING: Duration = Duration::from_secs(5);
/// How long an engine may take to pull an image.
const PULL: Duration = Duration::from_secs(600);
/// How long an engine may take to start, stop, pause or resume a container.
const OPERATION: Duration = Duration::from_secs(30);
/// How long a drop waits for a container to be removed, by the engine and then by the remover. They go on
/// without us.
const REMOVAL: Duration = Duration::from_secs(30);
/// How often a start is repeated with another port, when another process was quicker to take the port.
const ATTEMPTS: u32 = 3;

/// Fails if no engine answers, or if it neither has the image nor can pull it.
pub(crate) fn check(settings: &Settings) -> Result<()> {
    // Why an image could not be pulled. It is not tried again in this process: without a network, each
    // attempt may take long. Locked during a pull, so that servers that start at the same time wait for one
    // pull.
    static NOT_PULLED: Mutex<BTreeMap<String, Error>> = Mutex::new(BTreeMap::new());

    ask_engine(PING, |engine| async move { engine.ping().await })
        .map_err(|why| Error::system(format!("no Docker engine answers ({why})")))?;
    let image = settings.image_and_tag();
    let mut not_pulled = NOT_PULLED.lock().unwrap_or_else(PoisonError::into_inner);
    let name = image.clone();
    if ask_engine(OPERATION, |engine| async move { engine.inspect_image(&name).await }).is_ok() {
        return Ok(());
    }
    if let Some(error) = not_pulled.get(&image) {
        return Err(error.clone());
    }
    let request = GenericImage::new(&settings.image, &settings.tag);
    let pulled = match aside(PULL, || request.pull_image()) {
        Ok(pulled) => pulled.map(drop).map_err(|cause| reason(&cause)),
        Err(error) => Err(error.to_string()),
    };
    pulled.map_err(|why| {
        let error =
            Error::system(format!("the image {image} is missing and cannot be pulled ({why})"));
        not_pulled.insert(image, error.clone());
        error
    })
}

pub(crate) struct DockerServer {
    hosts: String,
    image: String,
    name: String,
    startup_timeout: Duration,
    // `None` only in `drop`.
    container: Option<Arc<Container<GenericImage>>>,
    remover: Option<Remover>,
    // Dropped after the container is removed.
    port: Port,
}

impl DockerServer {
    /// Starts a server of an image that the engine has: see [`check`].
    pub(crate) fn start(settings: &Settings) -> Result<DockerServer> {
        let mut attempt = 1;
        loop {
            let server = DockerServer::launch(settings);
            match server {
                Err(TestcontainersError::Client(ClientError::StartContainer(_)))
                    if attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(cause) => {
                    let image = settings.image_and_tag();
                    let why = reason(&cause);
                    let text =
                        format!("Docker cannot start a container of the image {image} ({why})");
                    return Err(Error::system(text).caused_by(cause));
                }
                Ok(mut server) => {
                    server.hosts = server.wait_ready()?;
                    return Ok(server);
                }
            }
        }
    }

    fn launch(settings: &Settings) -> Result<DockerServer, TestcontainersError> {
        let name = format!("zklock-testing-{}", Uuid::new_v4());
        // Not one that Docker chooses: after a stop it would choose another.
        let port = Port::claim_free()?;
        let mut request = GenericImage::new(&settings.image, &settings.tag)
            .with_mapped_port(port.0, CLIENT_PORT.tcp())
            .with_container_name(&name)
            .with_startup_timeout(settings.startup_timeout);
        for (name, value) in &settings.env {
            request = request.with_env_var(name, value);
        }

        // First, so that the container is removed even if this process is killed right after the start.
        let remover = Remover::spawn(&name);
        let limit = settings.startup_timeout + OPERATION;
        let started = aside(limit, || request.start()).map_err(TestcontainersError::other)?;
        let container = started.inspect_err(|_| {
            // What was created and not started is nobody's.
            let name = name.clone();
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let _ = ask_engine(REMOVAL, |engine| async move {
                engine.remove_container(&name, Some(options)).await
            });
        })?;
        Ok(DockerServer {
            hosts: String::new(),
            image: settings.image_and_tag(),
            name,
            startup_timeout: settings.startup_timeout,
            container: Some(Arc::new(container)),
            remover,
            port,
        })
    }

    /// Waits until the server answers; its address.
    fn wait_ready(&self) -> Result<String> {
        let container =
            self.container.clone().ok_or_else(|| Error::system("the container is gone"))?;
        let (port, end) = (self.port.0, end_after(self.startup_timeout));
        let ready = aside(self.startup_timeout + OPERATION, move || {
            wait_ready(&container, port, end)
                .map_err(|why| format!("{why}; its log ends with:\n{}", log_of(&container)))
        })?;
        ready.map_err(|why| {
            Error::system(format!("the container of the image {} {why}", self.image))
        })
    }

    /// Asks the engine to do something with the container.
    fn control<T, F>(
        &self,
        what: &str,
        job: impl FnOnce(bollard::Docker, String) -> F + Send + 'static,
    ) -> Result<()>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, bollard::errors::Error>>,
    {
        let name = self.name.clone();
        ask_engine(OPERATION, |engine| job(engine, name)).map(drop).map_err(|why| {
            Error::system(format!("Docker cannot {what} the container {} ({why})", self.name))
        })
    }
}

impl Backend for DockerServer {
    fn hosts(&self) -> String {
        self.hosts.clone()
    }

    fn what(&self) -> &'static str {
        "in Docker"
    }

    fn stop(&mut self) -> Result<()> {
        self.control("stop", |engine, name| async move {
            let at_once = StopContainerOptionsBuilder::new().t(0).build();
            engine.stop_container(&name, Some(at_once)).await
        })
    }

    fn start_again(&mut self) -> Result<()> {
        self.control(
            "start",
            |engine, name| async move { engine.start_container(&name, None).await },
        )?;
        let ready = self.wait_ready().map(drop);
        if ready.is_err() {
            // It stays stopped, so that the call can be repeated.
            let _ = self.stop();
        }
        ready
    }

    fn pause(&mut self) -> Result<()> {
        self.control("pause", |engine, name| async move { engine.pause_container(&name).await })
    }

    fn resume(&mut self) -> Result<()> {
        self.control("resume", |engine, name| async move { engine.unpause_container(&name).await })
    }

    fn expire(&mut self, session: i64) -> Result<()> {
        expire_session(&self.hosts, session)
    }
}

impl Drop for DockerServer {
    fn drop(&mut self) {
        // If a call that took too long still has it, the remover removes it.
        let Some(container) = self.container.take().and_then(Arc::into_inner) else { return };
        let Some(remover) = self.remover.take() else {
            // `testcontainers` knows whether to keep it.
            let _ = aside(REMOVAL, || drop(container));
            return;
        };
        let removed = match aside(REMOVAL, || container.rm()) {
            Ok(removed) => removed.map_err(|cause| reason(&cause)),
            Err(error) => Err(error.to_string()),
        };
        match removed {
            Ok(()) => remover.nothing_to_do(),
            Err(why) => {
                let name = &self.name;
                warn!("container {name}: not removed, removing it by the command docker: {why}");
            }
        }
    }
}

fn wait_ready(
    container: &Container<GenericImage>,
    port: u16,
    end: Instant,
) -> Result<String, String> {
    let failed = |cause: TestcontainersError| format!("cannot be examined ({})", reason(&cause));
    let host = match container.get_host().map_err(failed)?.to_string() {
        // Docker may publish the port at the IPv4 address only.
        host if host == "localhost" => "127.0.0.1".to_owned(),
        host => host,
    };
    let hosts = format!("{host}:{port}");
    // The port is open before the server is there: only an answer counts.
    loop {
        let mut addresses = hosts.to_socket_addrs().into_iter().flatten();
        if addresses.any(|address| local::mode(address).is_some()) {
            return Ok(hosts);
        }
        if !container.is_running().map_err(failed)? {
            return Err("ended while it was starting".to_owned());
        }
        if Instant::now() >= end {
            return Err("did not serve clients within the start-up timeout".to_owned());
        }
        thread::sleep(POLL);
    }
}

fn log_of(container: &Container<GenericImage>) -> String {
    let mut log = container.stdout_to_vec().unwrap_or_default();
    log.extend(container.stderr_to_vec().unwrap_or_default());
    local::tail(&log)
}

/// Sends the engine that `testcontainers` finds a request.
fn ask_engine<T, F>(
    limit: Duration,
    request: impl FnOnce(bollard::Docker) -> F + Send + 'static,
) -> Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = Result<T, bollard::errors::Error>>,
{
    let answer = aside(limit + PING, move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|cause| reason(&cause))?;
        let answer = runtime.block_on(async {
            let answer = async {
                let engine = docker_client_instance().await.map_err(|cause| reason(&cause))?;
                request(engine).await.map_err(|cause| reason(&cause))
            };
            // It asks for the runtime's clock at once.
            tokio::time::timeout(limit, answer).await
        });
        // It may be resolving a name, which cannot be interrupted.
        runtime.shutdown_background();
        answer.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
    });
    answer.unwrap_or_else(|error| Err(error.to_string()))
}

/// An error's message with those of its causes, which the crates for Docker leave out.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

/// Runs a job on a thread of its own, and waits for its result. What blocks on an async runtime would panic
/// on the caller's thread if that belongs to a runtime.
fn aside<T: Send + 'static>(
    limit: Duration,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (send, receive) = mpsc::channel();
    let job = move || {
        // After the time limit nobody waits for it.
        let _ = send.send(job());
    };
    thread::Builder::new().name("zklock-testing".to_owned()).spawn(job).map_err(|cause| {
        Error::system(format!("cannot start a thread: {cause}")).caused_by(cause)
    })?;
    receive.recv_timeout(limit).map_err(|why| match why {
        RecvTimeoutError::Timeout => Error::system(format!("Docker was not done within {limit:?}")),
        RecvTimeoutError::Disconnected => Error::system("the thread for Docker has panicked"),
    })
}

/// A shell that removes a container when this process has ended.
#[derive(Debug)]
struct Remover {
    shell: Child,
    /// Closed to tell the shell to remove the container.
    orders: Option<ChildStdin>,
}

const REMOVER: &str = r#"
trap '' HUP INT PIPE TERM
read -r order && exit
docker rm --force --volumes "$1"
"#;

impl Remover {
    /// `None` if containers are to be kept, or if there is no shell.
    fn spawn(container: &str) -> Option<Remover> {
        if env::var_os("TESTCONTAINERS_COMMAND").is_some_and(|command| command == "keep") {
            return None;
        }
        let spawned = Command::new("sh")
            .args(["-c", REMOVER, "zookeeper-remover", container])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to our whole process group would end it before it can clean up.
            .process_group(0)
            .spawn();
        match spawned {
            Ok(mut shell) => Some(Remover { orders: shell.stdin.take(), shell }),
            Err(cause) => {
                warn!(
                    "container {container}: stays if this process is killed, because no shell can be started: {cause}"
                );
                None
            }
        }
    }

    fn nothing_to_do(mut self) {
        if let Some(orders) = &mut self.orders {
            // If the shell has ended there is nothing to tell.
            let _: io::Result<()> = writeln!(orders, "done");
        }
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        self.orders = None;
        let end = end_after(REMOVAL);
        // If the engine hangs, it goes on without us.
        while matches!(self.shell.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(POLL);
        }
    }
}
