//! Tries to break the lock on a real ensemble: worker processes contend for it while servers are
//! killed, stopped and parted, connections vanish, replies are lost, and nodes are deleted. All is
//! written down, and read with suspicion afterwards.
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
    reason = "a test that talks to people"
)]

mod check; // what must not have been
#[cfg(test)]
mod check_tests;
mod growth; // what a worker's memory grows by
mod history; // what happened, line by line
mod leftovers; // what is left in the recipes' nodes
mod model; // what happened, as a whole
mod nemesis; // does the harm, and mends it
mod network; // servers in namespaces, or on loopback
mod options;
mod parse; // makes a run of histories
mod plan; // which harm, and when
mod recipe_check; // what must not have been with the recipes beside the locks
#[cfg(test)]
mod recipe_tests;
mod recipes; // does something with them
mod register; // what the lock protects
mod rng;
mod run; // a whole run
mod summary;
#[path = "../it/support/mod.rs"]
mod support;
mod timeline;
mod unexplained_losses; // locks that were lost though nothing was broken
mod work; // what there is to take
mod worker; // takes the lock, uses it, releases it
mod workers; // the worker processes

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
    // A panic is a server that did not come back, or the like: nothing about the lock.
    let outcome = catch_unwind(AssertUnwindSafe(run));
    match outcome.unwrap_or_else(|_| Err("it came to nothing".into())) {
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

/// Reads the histories in a directory, and writes summary and timeline beside them.
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
