//! Tries to break the locks on a real ensemble: worker processes contend for them while servers are
//! killed, stopped and cut off from each other, connections vanish, replies are lost, and nodes are
//! deleted. Every process writes a history; afterwards the histories are checked for violations.
//!
//! ```text
//! scripts/soak --minutes 2
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test with a command line"
)]

mod check; // finds violations in a run
#[cfg(test)]
mod check_tests;
mod growth; // how much a worker's memory grows
mod history; // the lines that are written
mod idle; // a session that only holds a lock
mod leftovers; // what is left in the recipes' nodes at the end
mod linear; // whether calls fit one order
mod model; // a whole run, as read from the histories
mod nemesis; // causes faults, and heals them
mod network; // servers in namespaces, or on loopback
mod options;
mod order; // whether locks with patience were granted in their order
mod parse; // reads histories into a run
mod plan; // which faults, and when
mod recipe_check; // violations by the recipes that are not locks
#[cfg(test)]
mod recipe_tests;
mod recipes; // uses these recipes
mod register; // what the locks protect
mod rng;
mod run; // starts everything, and ends it
mod stranger; // another client that takes the same locks
mod summary;
#[path = "../it/support/mod.rs"]
mod support;
mod timeline;
mod transactions; // what the servers' logs say of the locks' nodes
mod unexplained_losses; // locks that were lost though nothing was broken
mod views; // what each server shows of the locks
mod work; // the locks, and the calls that take them
mod worker; // a worker process: takes a lock, uses it, releases it
mod workers; // starts, pauses and kills worker processes

use std::env;
use std::error::Error;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use model::Run;
use options::{Options, USAGE};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

fn main() -> ExitCode {
    // A panic means that the run itself failed, such as a server that did not restart; it is no
    // verdict on the locks.
    let outcome = catch_unwind(AssertUnwindSafe(run));
    match outcome.unwrap_or_else(|_| Err("the run panicked, see above".into())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, Box<dyn Error>> {
    let options =
        Options::parse(env::args().skip(1)).map_err(|reason| format!("{reason}\n\n{USAGE}"))?;
    if options.help {
        println!("{USAGE}");
        return Ok(true);
    }
    if let Some(worker) = &options.worker {
        worker::work(worker, &options)?;
        return Ok(true);
    }
    if let Some(directory) = &options.check {
        return judge(directory);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let directory = run::whole(&options, &stop)?;
    judge(&directory)
}

/// Checks the histories in a directory, and writes a summary and a timeline beside them.
fn judge(directory: &Path) -> Result<bool, Box<dyn Error>> {
    let run = Run::read(&parse::files(directory)?)?;
    let verdict = check::check(&run);
    let text = summary::summary(&run, &verdict);
    fs::write(directory.join("summary.txt"), &text)?;
    fs::write(directory.join("timeline.svg"), timeline::timeline(&run))?;
    println!("\n{text}");
    println!("histories, summary.txt and timeline.svg are in {}", directory.display());
    Ok(verdict.violations.is_empty())
}
