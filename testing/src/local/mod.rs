//! A server from a local installation, as a child process.

mod claimed_ports;
mod expire_session;
mod server_process;

pub(crate) use self::claimed_ports::Port;
pub(crate) use self::expire_session::expire_session;
pub(crate) use self::server_process::{mode, tail};

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use self::server_process::{Installation, Keeper};
use crate::error::{Error, Result};
use crate::testcontainers_toml::Settings;
use crate::zookeeper::Backend;

/// The pause between two looks at something that is about to change.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// How often a start is repeated with another port, when another process was quicker to take the port.
const ATTEMPTS: u32 = 3;
/// How long the kernel may take to pause a process.
const PAUSE_LIMIT: Duration = Duration::from_secs(10);

/// The variables of the official image for lines of `zoo.cfg`, and the values that its entry point takes
/// for those that are missing.
const LINES: [(&str, &str, &str); 5] = [
    ("ZOO_TICK_TIME", "tickTime", "2000"),
    ("ZOO_INIT_LIMIT", "initLimit", "5"),
    ("ZOO_SYNC_LIMIT", "syncLimit", "2"),
    ("ZOO_MAX_CLIENT_CNXNS", "maxClientCnxns", "60"),
    ("ZOO_4LW_COMMANDS_WHITELIST", "4lw.commands.whitelist", "srvr"),
];

#[derive(Debug)]
pub(crate) struct LocalServer {
    address: SocketAddr,
    log: PathBuf,
    startup_timeout: Duration,
    keeper: Keeper,
    // Dropped after the keeper has ended the server.
    _port: Port,
}

impl LocalServer {
    pub(crate) fn start(settings: &Settings) -> Result<LocalServer> {
        let end = end_after(settings.startup_timeout);
        let installation =
            Installation::find().map_err(|why| Error::system(why.to_string()).caused_by(why))?;
        let mut attempt = 1;
        loop {
            let server = LocalServer::launch(settings, &installation).map_err(|cause| {
                Error::system(format!("cannot start a local ZooKeeper server: {cause}"))
                    .caused_by(cause)
            })?;
            let Err(why) = server.wait_ready(end) else { return Ok(server) };
            let log = server.log_tail();
            if attempt == ATTEMPTS || !log.contains("already in use") {
                return Err(server.failure(why));
            }
            attempt += 1;
        }
    }

    fn launch(settings: &Settings, installation: &Installation) -> io::Result<LocalServer> {
        let mut command = installation.java_command();
        let port = Port::claim_free()?;
        let directory = server_process::fresh_directory()?;
        let (log, config) = (directory.join("log"), directory.join("zoo.cfg"));
        // The data of a test need not survive the machine.
        command.push("-Dzookeeper.forceSync=no".to_owned());
        command.extend([server_process::MAIN_CLASS.to_owned(), config.display().to_string()]);
        // The keeper removes the directory, once there is one.
        let mut keeper = Keeper::spawn(&log, &directory, &command).inspect_err(|_| {
            let _ = fs::remove_dir_all(&directory);
        })?;
        fs::write(&config, zoo_cfg(settings, &directory.join("data"), port.0))?;
        keeper.launch()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.0));
        let startup_timeout = settings.startup_timeout;
        Ok(LocalServer { address, log, startup_timeout, keeper, _port: port })
    }

    fn wait_ready(&self, end: Instant) -> Result<(), &'static str> {
        while mode(self.address).is_none() {
            if self.keeper.has_ended() {
                return Err("ended while it was starting");
            }
            if Instant::now() >= end {
                return Err("did not serve clients within the start-up timeout");
            }
            thread::sleep(POLL);
        }
        // The answer may come from another server, which was quicker to take the port.
        if self.keeper.has_ended() { Err("ended while it was starting") } else { Ok(()) }
    }

    fn failure(&self, why: &str) -> Error {
        Error::system(format!(
            "the local ZooKeeper server {why}; its log ends with:\n{}",
            self.log_tail()
        ))
    }

    fn log_tail(&self) -> String {
        tail(&fs::read(&self.log).unwrap_or_default())
    }

    /// Sends a signal to the server.
    fn signal(&mut self, name: &str) -> Result<()> {
        if self.keeper.has_ended() {
            return Err(self.failure("has ended by itself"));
        }
        self.keeper.signal(name).map_err(not_done)
    }
}

impl Backend for LocalServer {
    fn hosts(&self) -> String {
        self.address.to_string()
    }

    fn what(&self) -> &'static str {
        "local"
    }

    fn stop(&mut self) -> Result<()> {
        self.keeper.kill().map_err(not_done)
    }

    fn start_again(&mut self) -> Result<()> {
        let end = end_after(self.startup_timeout);
        self.keeper.launch().map_err(not_done)?;
        self.wait_ready(end).map_err(|why| {
            let error = self.failure(why);
            // It stays stopped, so that the call can be repeated.
            let _ = self.keeper.kill();
            error
        })
    }

    fn pause(&mut self) -> Result<()> {
        self.signal("STOP")?;
        let end = end_after(PAUSE_LIMIT);
        while !matches!(self.keeper.process_state(), Some('T' | 't')) {
            if self.keeper.has_ended() {
                return Err(self.failure("has ended by itself"));
            }
            if Instant::now() >= end {
                return Err(self.failure("did not pause"));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<()> {
        self.signal("CONT")
    }

    fn expire(&mut self, session: i64) -> Result<()> {
        expire_session(&self.hosts(), session)
    }
}

fn not_done(cause: io::Error) -> Error {
    Error::system(format!("cannot control the local ZooKeeper server: {cause}")).caused_by(cause)
}

/// The end of a time limit that is not too long for the clock; otherwise now.
pub(crate) fn end_after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or(now)
}

fn zoo_cfg(settings: &Settings, data: &Path, port: u16) -> String {
    let mut config = String::new();
    for (variable, key, default) in LINES {
        let value = settings.env.get(variable).map_or(default, String::as_str);
        // Writing to a string cannot fail.
        let _ = writeln!(config, "{key}={value}");
    }
    let extra = settings.env.get("ZOO_CFG_EXTRA").map_or("", String::as_str);
    for line in extra.split_whitespace() {
        let _ = writeln!(config, "{line}");
    }
    // Of two lines for the same setting, the server takes the last.
    let _ = write!(
        config,
        "dataDir={}\nclientPort={port}\nclientPortAddress={}\nadmin.enableServer=false\n",
        data.display(),
        Ipv4Addr::LOCALHOST,
    );
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_has_ended_by_itself_can_be_started_again() {
        if Installation::find().is_err() {
            return println!("SKIPPED: no local installation");
        }
        let mut server = LocalServer::start(&Settings::of_package(None).unwrap()).unwrap();
        let pid = i32::try_from(server.keeper.pid().unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let end = end_after(Duration::from_secs(60));
        while !server.keeper.has_ended() {
            assert!(Instant::now() < end, "it was killed");
            thread::sleep(POLL);
        }
        for done in [server.pause(), server.resume()] {
            assert!(done.unwrap_err().to_string().contains("has ended by itself"));
        }
        server.stop().unwrap();
        server.start_again().unwrap();
    }

    #[test]
    fn a_variable_is_a_line_and_the_rest_has_defaults() {
        let mut settings = Settings::of_package(None).unwrap();
        settings.env.remove("ZOO_MAX_CLIENT_CNXNS");
        settings.env.insert("ZOO_CFG_EXTRA".to_owned(), "a=1 clientPort=2".to_owned());
        let config = zoo_cfg(&settings, Path::new("/data"), 2181);
        let lines: Vec<&str> = config.lines().collect();
        for line in ["tickTime=200", "syncLimit=2", "maxClientCnxns=60", "a=1", "dataDir=/data"] {
            assert!(lines.contains(&line), "{line} is not in {lines:?}");
        }
        let port = lines.iter().rfind(|line| line.starts_with("clientPort="));
        assert_eq!(port, Some(&"clientPort=2181"), "Java's properties keep the last");
    }
}
