//! A server from a local installation, as a child process.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io, thread};

use super::POLL;
use super::child::{self, Installation, Keeper};
use super::end_after;
use super::system;
use super::testcontainers_toml::Settings;
use crate::error::Result;

/// How often a port that somebody else was quicker to take is replaced.
const ATTEMPTS: u32 = 3;

/// The variables of the official image that stand for lines of `zoo.cfg`, and what its entry point
/// sets where they are missing.
const LINES: [(&str, &str, &str); 5] = [
    ("ZOO_TICK_TIME", "tickTime", "2000"),
    ("ZOO_INIT_LIMIT", "initLimit", "5"),
    ("ZOO_SYNC_LIMIT", "syncLimit", "2"),
    ("ZOO_MAX_CLIENT_CNXNS", "maxClientCnxns", "60"),
    ("ZOO_4LW_COMMANDS_WHITELIST", "4lw.commands.whitelist", "srvr"),
];

#[derive(Debug)]
pub(super) struct Local {
    address: SocketAddr,
    log: PathBuf,
    keeper: Keeper,
    // Given back when the keeper has ended the server.
    _port: Port,
}

/// One that is this server's.
#[derive(Debug)]
struct Port(u16);

impl Drop for Port {
    fn drop(&mut self) {
        child::release(self.0);
    }
}

impl Local {
    pub(super) fn start(settings: &Settings) -> Result<Local> {
        let end = end_after(settings.startup_timeout);
        let mut attempt = 1;
        loop {
            let server = Local::launch(settings).map_err(|cause| {
                system(format!("no local ZooKeeper server: {cause}")).caused_by(cause)
            })?;
            let Err(why) = server.wait_ready(end) else { return Ok(server) };
            let log = server.log_tail();
            if attempt == ATTEMPTS || !log.contains("already in use") {
                return Err(system(format!(
                    "the local ZooKeeper server {why}; its log ended in:\n{log}"
                )));
            }
            attempt += 1;
        }
    }

    pub(super) fn hosts(&self) -> String {
        self.address.to_string()
    }

    fn launch(settings: &Settings) -> io::Result<Local> {
        let mut command = Installation::find()?.java_command();
        let claimed = Port(child::free_port()?);
        let port = claimed.0;
        let directory = child::fresh_directory()?;
        let (log, config) = (directory.join("log"), directory.join("zoo.cfg"));
        // Data that nobody needs after the test need not reach the disk.
        command.push("-Dzookeeper.forceSync=no".to_owned());
        command.extend([child::MAIN_CLASS.to_owned(), config.display().to_string()]);
        // From here on the directory is the keeper's to remove.
        let mut keeper = Keeper::spawn(&log, &directory, &command)?;
        fs::write(&config, zoo_cfg(settings, &directory.join("data"), port))?;
        keeper.launch()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Local { address, log, keeper, _port: claimed })
    }

    fn wait_ready(&self, end: Instant) -> Result<(), &'static str> {
        while child::mode(self.address).is_none() {
            if self.keeper.has_ended() {
                return Err("ended while it was starting");
            }
            if Instant::now() >= end {
                return Err("did not serve in time");
            }
            thread::sleep(POLL);
        }
        // What answers may be the server of the one who was quicker to take the port.
        if self.keeper.has_ended() { Err("ended while it was starting") } else { Ok(()) }
    }

    fn log_tail(&self) -> String {
        child::tail(&fs::read(&self.log).unwrap_or_default())
    }
}

fn zoo_cfg(settings: &Settings, data: &Path, port: u16) -> String {
    let mut config = String::new();
    for (variable, key, default) in LINES {
        let value = settings.env.get(variable).map_or(default, String::as_str);
        // Writing to a string does not fail.
        let _ = writeln!(config, "{key}={value}");
    }
    let extra = settings.env.get("ZOO_CFG_EXTRA").map_or("", String::as_str);
    for line in extra.split_whitespace() {
        let _ = writeln!(config, "{line}");
    }
    // The last word is ours.
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
    fn a_port_can_be_claimed_again_once_it_was_given_back() {
        let port = Port(child::free_port().unwrap());
        let number = port.0;
        assert!(!child::claim(number).unwrap());
        drop(port);
        assert!(child::claim(number).unwrap());
        child::release(number);
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
