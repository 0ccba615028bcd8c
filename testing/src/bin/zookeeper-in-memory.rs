//! `zookeeper-in-memory`: a ZooKeeper for tests in other languages, or for the command after `--`.

#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::thread;

use zklock_testing::ZooKeeper;

const USAGE: &str = "\
Usage: zookeeper-in-memory [--port PORT] [-- COMMAND [ARGUMENT]...]

Starts a ZooKeeper on 127.0.0.1 that holds everything in memory, for tests: not for production. It prints its address and runs
until it is killed. With a command, it runs that, with the address in ZKLOCK_HOSTS and ZK_HOSTS, and ends with it and with its
exit code.

  --port PORT   the port; by default any that is free
";

fn main() -> ExitCode {
    match run() {
        Ok(exit) => exit,
        Err(error) => {
            say(&mut io::stderr(), &format!("zookeeper-in-memory: {error}\n"));
            ExitCode::from(2)
        }
    }
}

fn say(to: &mut impl Write, text: &str) {
    // Nobody is left to tell.
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

fn run() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let (mut port, mut command) = (0, Vec::<OsString>::new());
    let mut arguments = env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--help" | "-h") => {
                say(&mut io::stdout(), USAGE);
                return Ok(ExitCode::SUCCESS);
            }
            Some("--port") => {
                let given = arguments.next().ok_or("--port needs a number")?;
                let given = given.to_string_lossy();
                port = given.parse().map_err(|_| format!("no port: {given}"))?;
            }
            Some("--") => command = arguments.by_ref().collect(),
            _ => {
                return Err(
                    format!("unknown argument: {}\n{USAGE}", argument.to_string_lossy()).into()
                );
            }
        }
    }
    let server = ZooKeeper::builder().in_memory().port(port).start()?;
    let Some((program, rest)) = command.split_first() else {
        say(&mut io::stdout(), &format!("{}\n", server.hosts()));
        loop {
            thread::park();
        }
    };
    let mut command = Command::new(program);
    command.args(rest).env("ZKLOCK_HOSTS", server.hosts()).env("ZK_HOSTS", server.hosts());
    let ended = command
        .status()
        .map_err(|error| format!("cannot run {}: {error}", program.to_string_lossy()))?;
    // As a shell does, for a command that a signal has ended.
    let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal)).unwrap_or(128);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(128)))
}
