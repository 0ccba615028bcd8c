//! Acquires a lock, and asks for it a second time while it is held.
//!
//! ```sh
//! cargo run --example quickstart
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

use std::error::Error;

use zklock::{Client, DistributedLock};

fn main() -> Result<(), Box<dyn Error>> {
    // What the first argument or ZKLOCK_HOSTS names; otherwise one in memory, for trying.
    let zookeeper = zklock_examples::ensemble(std::env::args().nth(1))?;
    let hosts = zookeeper.hosts();
    let zk = Client::connect(hosts)?; // fails if no server answers within 15 s
    let lock = DistributedLock::new(&zk, "/zklock-example", "quickstart");

    // Waits until nobody else holds the lock. Bind the guard to a name: `let _ = lock.lock()?` would
    // unlock at once.
    let guard = lock.lock()?;
    println!("locked, with fencing token {}", guard.fencing_token());

    for contender in lock.contenders()? {
        let does = if contender.holds { "holds" } else { "waits" };
        println!("{} {does}: {}", contender.path, contender.label());
    }

    // Another client stands for another program here. It does not wait for the lock.
    let other = DistributedLock::new(Client::connect(hosts)?, "/zklock-example", "quickstart");
    match other.try_lock() {
        Ok(Some(guard)) => println!("free, and locked with {}", guard.fencing_token()),
        Ok(None) => println!("taken: a server said that others hold the lock"),
        Err(error) if error.is_outage() => eprintln!("down: no server said anything: {error}"),
        Err(error) => return Err(error.into()), // a wrong name, a missing permission, ...
    }

    guard.unlock()?; // as dropping it does, but an error says that the lock was lost before
    println!("unlocked; contenders now: {}", lock.contenders()?.len());
    Ok(())
}
