//! Runs a command with a ZooKeeper server of the kind that `ZKLOCK_TESTING_SERVER` names:
//!
//! ```sh
//! ZKLOCK_TESTING_SERVER=local cargo run --package zklock-testing --features local --example with_zookeeper -- zkCli.sh
//! ```
//!
//! The command finds the server's connect string in `ZKLOCK_HOSTS`. The exit code is the command's,
//! or 2 if it could not be run.

#![allow(clippy::print_stderr, reason = "examples talk to people")]

use std::env;
use std::error::Error;
use std::process::{Command, ExitCode};

use zklock_testing::ZooKeeper;

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<u8, Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1);
    let program = arguments.next().ok_or("no command given. Usage: with_zookeeper COMMAND...")?;
    let server = ZooKeeper::start()?;
    eprintln!("started a ZooKeeper server at {}", server.hosts());
    let status = Command::new(&program)
        .args(arguments)
        .env("ZKLOCK_HOSTS", server.hosts())
        .status()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
