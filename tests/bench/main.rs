//! Compares the speed of these locks with other clients' locks, and with the least requests that a
//! lock needs: all on one server, in one run, one after another in each round.
//!
//! ```text
//! scripts/bench
//! ```
//!
//! It is an example, not a `[[bench]]`: that has either a test harness or a `main`, and this needs
//! both, to have tests and to start workers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a measurement with a command line"
)]

mod campaign; // a whole run
mod contestant; // the clients that are measured
mod crew; // the worker processes
mod fixed_name; // a worker that makes a lock node of a fixed name
mod floor; // a worker that sends only the requests that a lock needs
mod goals; // the goals, and whether they are met
mod json;
mod machine; // what processes use, and other load on the machine
mod network; // a network between clients and server
mod obey; // a worker's main loop: reads orders, and answers them
mod one_connection; // the same, by threads that share a connection
mod options;
mod our_recipes; // the recipes beside the locks
mod ours; // a worker that uses our own locks
mod plot;
mod results; // medians and ratios
#[path = "../it/support/mod.rs"]
mod support;
mod table;
mod workload; // what the workers do

use std::env;
use std::error::Error;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use contestant::Contestant;
use fixed_name::FixedName;
use one_connection::OneConnection;
use options::{Options, USAGE};
use results::Results;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

fn main() -> ExitCode {
    // A panic means that the run itself failed, such as a server that did not start. It ends the
    // workers, too.
    let outcome = catch_unwind(AssertUnwindSafe(run));
    match outcome.unwrap_or_else(|_| Err("the run panicked, see above".into())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let options =
        Options::parse(env::args().skip(1)).map_err(|reason| format!("{reason}\n\n{USAGE}"))?;
    if options.help {
        println!("{USAGE}");
        return Ok(());
    }
    if let Some(worker) = options.worker {
        return work(worker);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let results = campaign::campaign(&options, &stop)?;
    write(&results, &options)
}

fn work(worker: Contestant) -> Result<(), Box<dyn Error>> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let worked = match worker {
        Contestant::Raw => obey::obey(floor::Floor::waiting()),
        Contestant::RawUnwaited => obey::obey(floor::Floor::default()),
        Contestant::RawAlone => obey::obey(floor::Floor::alone()),
        Contestant::RawFixedName => obey::obey(FixedName::default()),
        Contestant::RawOneConnectionReader => obey::obey(OneConnection::with_reader()),
        Contestant::RawOneConnectionLeader => obey::obey(OneConnection::default()),
        ours => obey::obey(ours::Ours::new(ours)),
    };
    worked.map_err(|error| -> Box<dyn Error> { error })
}

/// Writes the results to files.
fn write(results: &Results, options: &Options) -> Result<(), Box<dyn Error>> {
    let verdicts = goals::verdicts(results);
    let pictures = plot::pictures(results);
    let names: Vec<String> = pictures.iter().map(|(name, _)| name.clone()).collect();
    let text = table::table(results, &verdicts, &names);
    let out = &options.out;
    fs::create_dir_all(out)?;
    fs::write(out.join("README.md"), &text)?;
    let json = serde_json::to_string_pretty(&json::json(results, &verdicts))?;
    fs::write(out.join("results.json"), json + "\n")?;
    for (name, picture) in &pictures {
        fs::write(out.join(name), picture)?;
    }
    println!("\n{text}");
    println!("README.md, results.json and {} are in {}", names.join(", "), out.display());
    Ok(())
}
