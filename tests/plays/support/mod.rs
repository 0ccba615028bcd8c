//! What these programs share: a ZooKeeper, which is the one that `ZKLOCK_HOSTS` names or a server
//! started for the program; checks, and output.

#![allow(dead_code, reason = "each program uses a part")]

pub(crate) mod paused;

use std::error::Error;
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Instant;

use zklock_examples::Ensemble;

pub(crate) type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// The ZooKeeper that `ZKLOCK_HOSTS` names, or one in memory.
pub(crate) fn find() -> Result<Ensemble> {
    let found = zklock_examples::ensemble(None)?;
    if let Ensemble::Named(hosts) = &found {
        println!("using the ZooKeeper at {hosts} (ZKLOCK_HOSTS)");
    }
    Ok(found)
}

/// The exit code: 0 if all checks passed, 1 if not, 2 if the example could not run.
pub(crate) fn exit(outcome: Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// A lock name that no other run uses.
pub(crate) fn unique(name: &str) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!("{name}-{}-{:x}", std::process::id(), now.as_millis())
}

/// Prints a line with the seconds since the first one.
pub(crate) fn say(what: impl Display) {
    static START: OnceLock<Instant> = OnceLock::new();
    let since = START.get_or_init(Instant::now).elapsed();
    println!("{:6.2} s  {what}", since.as_secs_f64());
}

/// Checks what an example shows, and prints the results.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) all_passed: bool,
}

impl Default for Checks {
    fn default() -> Checks {
        Checks { all_passed: true }
    }
}

impl Checks {
    pub(crate) fn that(&mut self, what: impl AsRef<str>, holds: bool) {
        self.all_passed &= holds;
        say(format!("{}  {}", if holds { "yes" } else { "NO " }, what.as_ref()));
    }
}
