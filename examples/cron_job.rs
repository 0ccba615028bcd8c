//! A job that cron starts on several hosts, and that only one of them runs.
//!
//! ```sh
//! cargo run --example cron_job -- localhost:2181 2025-01-31
//! ```
//!
//! In a crontab the second argument is `$(date +\%F)`. The exit code is 0 only if the job is done,
//! here or elsewhere; 75 (try again later) if ZooKeeper cannot be reached; 1 if another host has not
//! ended in time, and for any other error. An outage is never mistaken for another host.
//!
//! A lock alone is not enough: a host whose clock is late finds the lock free, and runs the job again.
//! `Once` leaves a mark for each day. The other hosts wait until they find it, and one of them takes
//! over if the job fails or its host dies. With `run` instead of `run_within` they would give up at
//! once, and nobody would do the job then.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use zklock::once::OnceOutcome::{Busy, Done, DoneByOther};
use zklock::{Client, LockGuard, Once};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let hosts = arguments.next().unwrap_or_else(|| "localhost:2181".to_owned());
    // Without an argument, the number of the day since 1970, in UTC on every host.
    let today = || UNIX_EPOCH.elapsed().unwrap_or_default().as_secs() / DAY.as_secs();
    let day = arguments.next().unwrap_or_else(|| today().to_string());

    let Err(error) = run_once(&hosts, &day) else { return ExitCode::SUCCESS };
    // Before the job, or while it ran: the message says what failed.
    if error.downcast_ref::<zklock::Error>().is_some_and(zklock::Error::is_outage) {
        eprintln!("report of day {day}: ZooKeeper is down: {error}");
        return ExitCode::from(75);
    }
    eprintln!("report of day {day}: {error}");
    ExitCode::FAILURE
}

fn run_once(hosts: &str, day: &str) -> Result<(), Box<dyn Error>> {
    let zk = Client::connect(hosts)?;
    let report = Once::new(&zk, "/zklock-example", "report");
    match report.run_within(6 * HOUR, day, |guard| write_report(day, guard))? {
        Done(()) => println!("report of day {day}: done here"),
        DoneByOther(mark) => println!("report of day {day}: done before, by {}", mark.by),
        Busy(holder) => {
            return Err(format!("not done after six hours of {}", holder.label()).into());
        }
    }
    if let Err(error) = report.prune(90 * DAY) {
        eprintln!("old marks stay until the next run: {error}");
    }
    Ok(())
}

fn write_report(day: &str, guard: &LockGuard) -> Result<(), Box<dyn Error>> {
    for part in ["users", "orders"] {
        guard.ensure_held()?; // asks the ensemble: stop if another host may have begun
        println!("day {day}: {part}, with fencing token {}", guard.fencing_token());
    }
    Ok(())
}
