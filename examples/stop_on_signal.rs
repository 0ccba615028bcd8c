//! Releases its lock on SIGTERM and Ctrl-C, so that others get it at once.
//!
//! ```sh
//! cargo run --example stop_on_signal
//! ```
//!
//! Start it twice, and stop the first one with Ctrl-C: the second one has the lock at once. After
//! `kill -9` it has to wait until the session of the first one ends, ten seconds.

#![allow(clippy::print_stdout, reason = "examples talk to people")]

use std::error::Error;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use zklock::{Cancel, Client, DistributedLock, ErrorKind};

fn main() -> Result<(), Box<dyn Error>> {
    // What the first argument or ZKLOCK_HOSTS names; otherwise one in memory, for trying.
    let zookeeper = zklock_examples::ensemble(std::env::args().nth(1))?;
    let hosts = zookeeper.hosts();
    let stop = Cancel::new();
    let on_signal = stop.clone();
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::spawn(move || signals.forever().for_each(|_| on_signal.cancel()));

    match run(hosts, &stop) {
        // A signal ended a wait: nothing is held.
        Err(error) if error.kind() == ErrorKind::Cancelled => println!("stopped while waiting"),
        ended => ended?,
    }
    Ok(())
}

/// Every wait in here gets `stop`, and ends with `Cancelled` when a signal comes.
fn run(hosts: &str, stop: &Cancel) -> zklock::Result<()> {
    let zk = Client::builder(hosts).connect_within(stop)?;
    let lock = DistributedLock::new(&zk, "/zklock-example", "stop_on_signal");
    println!("process {} waits for the lock", std::process::id());
    let Some(guard) = lock.lock_within(stop)? else { return Ok(()) };
    println!("locked; stop with Ctrl-C, or with: kill {}", std::process::id());
    while guard.is_held() && !stop.is_cancelled() {
        thread::sleep(Duration::from_millis(100)); // one step of the work
    }
    guard.unlock()?; // an error says that the lock was lost before
    println!("unlocked");
    zk.close(); // also releases what other threads hold; without it the session ends with `zk`
    Ok(())
}
