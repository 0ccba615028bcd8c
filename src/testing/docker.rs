//! A server in a container, by the `testcontainers` crate: the one file that names it.

use std::io::{self, Write};
use std::net::ToSocketAddrs;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fmt, thread};

use log::warn;
use testcontainers::core::IntoContainerPort;
use testcontainers::core::client::docker_client_instance;
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, GenericImage, ImageExt};
use uuid::Uuid;

use super::POLL;
use super::child;
use super::end_after;
use super::system;
use super::testcontainers_toml::Settings;
use crate::error::Result;
use crate::rt::{self, bounded};

const CLIENT_PORT: u16 = 2181;
/// How long an engine may take to answer a ping.
const PING: Duration = Duration::from_secs(5);
/// How long a drop waits for the engine to remove the container, which then goes on without us.
const REMOVAL: Duration = Duration::from_secs(30);

/// Whether an engine answers where `testcontainers` looks for one.
pub(super) fn engine() -> Result<()> {
    let answer = aside(None, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|cause| cause.to_string())?;
        let answer = runtime.block_on(async {
            let ping = async {
                let client = docker_client_instance().await.map_err(|cause| cause.to_string())?;
                client.ping().await.map_err(|cause| cause.to_string())
            };
            // It asks for the runtime's clock at once.
            tokio::time::timeout(PING, ping).await
        });
        // It may be resolving a name, which cannot be interrupted.
        runtime.shutdown_background();
        answer.unwrap_or_else(|_| Err(format!("it said nothing for {PING:?}"))).map(drop)
    })?;
    answer.map_err(|why| system(format!("no Docker engine answers ({why})")))
}

pub(super) struct Docker {
    hosts: String,
    // None in `drop` only.
    container: Option<Container<GenericImage>>,
    remover: Option<Remover>,
}

// That of `Container` asks the engine.
impl fmt::Debug for Docker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Docker").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl Docker {
    pub(super) fn start(settings: &Settings) -> Result<Docker> {
        engine()?;
        let name = format!("zklock-testing-{}", Uuid::new_v4());
        let image = format!("{}:{}", settings.image, settings.tag);
        let mut request = GenericImage::new(&settings.image, &settings.tag)
            .with_exposed_port(CLIENT_PORT.tcp())
            .with_container_name(&name)
            .with_startup_timeout(settings.startup_timeout);
        for (name, value) in &settings.env {
            request = request.with_env_var(name, value);
        }

        // Before there is a container: it is removed also when we are killed right after.
        let remover = Remover::spawn(&name);
        let started = aside(None, || request.start())?;
        let container = started.map_err(|cause| {
            let text = format!(
                "cannot start the image {image} in Docker ({cause}); name another one in \
                 testcontainers.toml or in ZKLOCK_TESTING_IMAGE, or set \
                 ZKLOCK_TESTING_SERVER=local to use a local installation"
            );
            system(text).caused_by(cause)
        })?;
        let mut server = Docker { hosts: String::new(), container: Some(container), remover };
        let end = end_after(settings.startup_timeout);
        server.hosts = server.with_container(move |container| {
            serving(container, end).map_err(|why| {
                system(format!("the image {image} {why}; its log ended in:\n{}", log_of(container)))
            })
        })??;
        Ok(server)
    }

    pub(super) fn hosts(&self) -> String {
        self.hosts.clone()
    }

    /// What blocks on an async runtime does so on a thread of its own, because this one may belong
    /// to the user's runtime.
    fn with_container<T: Send + 'static>(
        &mut self,
        job: impl FnOnce(&Container<GenericImage>) -> T + Send + 'static,
    ) -> Result<T> {
        let container = self.container.take().ok_or_else(|| system("the container is gone"))?;
        let (container, done) = aside(None, move || {
            let done = job(&container);
            (container, done)
        })?;
        self.container = Some(container);
        Ok(done)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let Some(container) = self.container.take() else { return };
        let Some(remover) = self.remover.take() else {
            // `testcontainers` knows whether to keep it.
            let _ = aside(Some(REMOVAL), || drop(container));
            return;
        };
        match aside(Some(REMOVAL), || container.rm()) {
            Ok(Ok(())) => remover.nothing_to_do(),
            // Then the remover does it.
            Ok(Err(why)) => warn!(target: "zklock::testing", "container not removed: {why}"),
            Err(why) => warn!(target: "zklock::testing", "container not removed: {why}"),
        }
    }
}

/// Waits until the server in the container answers; its address.
fn serving(container: &Container<GenericImage>, end: Instant) -> Result<String, String> {
    let error = |cause: testcontainers::TestcontainersError| {
        let ended = matches!(container.is_running(), Ok(false));
        if ended { "ended while it was starting".to_owned() } else { format!("failed ({cause})") }
    };
    let host = match container.get_host().map_err(error)?.to_string() {
        // Docker may publish the port at the IPv4 address only.
        host if host == "localhost" => "127.0.0.1".to_owned(),
        host => host,
    };
    let port = container.get_host_port_ipv4(CLIENT_PORT).map_err(error)?;
    let hosts = format!("{host}:{port}");
    // The port is open before the server is there: only its answer tells.
    loop {
        let mut addresses = hosts.to_socket_addrs().into_iter().flatten();
        if addresses.any(|address| child::mode(address).is_some()) {
            return Ok(hosts);
        }
        if !container.is_running().map_err(error)? {
            return Err("ended while it was starting".to_owned());
        }
        if Instant::now() >= end {
            return Err("did not serve in time".to_owned());
        }
        thread::sleep(POLL);
    }
}

fn log_of(container: &Container<GenericImage>) -> String {
    let mut log = container.stdout_to_vec().unwrap_or_default();
    log.extend(container.stderr_to_vec().unwrap_or_default());
    child::tail(&log)
}

/// Runs a job on a thread of its own, and waits for it.
fn aside<T: Send + 'static>(
    limit: Option<Duration>,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (send, receive) = bounded(1);
    rt::spawn("zklock-testing", move || {
        // Nobody waits for it any more: there was a limit.
        let _ = send.send(job());
    })?;
    match limit {
        None => receive.recv().map_err(|_| system("the thread for Docker has panicked")),
        Some(limit) => receive
            .recv_timeout(limit)
            .map_err(|why| system(format!("no result of the thread for Docker: {why}"))),
    }
}

/// A shell that removes a container when this process is gone.
#[derive(Debug)]
struct Remover {
    shell: Child,
    /// Its end is the order.
    orders: Option<ChildStdin>,
}

const REMOVER: &str = r#"
trap '' HUP INT PIPE TERM
read -r order && exit
docker rm --force --volumes "$1"
"#;

impl Remover {
    /// None if containers are to be kept, or if there is no shell.
    fn spawn(container: &str) -> Option<Remover> {
        if env::var_os("TESTCONTAINERS_COMMAND").is_some_and(|command| command == "keep") {
            return None;
        }
        let spawned = Command::new("sh")
            .args(["-c", REMOVER, "zookeeper-remover", container])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of a signal to our whole group.
            .process_group(0)
            .spawn();
        match spawned {
            Ok(mut shell) => Some(Remover { orders: shell.stdin.take(), shell }),
            Err(cause) => {
                warn!(target: "zklock::testing", "only a drop will remove the server: {cause}");
                None
            }
        }
    }

    fn nothing_to_do(mut self) {
        if let Some(orders) = &mut self.orders {
            // If it is gone there is nothing to tell.
            let _: io::Result<()> = writeln!(orders, "done");
        }
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        self.orders = None;
        let end = end_after(REMOVAL);
        // It goes on without us if its engine hangs.
        while matches!(self.shell.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(POLL);
        }
    }
}
