//! A nightly rebuild, and a repair that cannot wait, which share a lock.
//!
//! ```sh
//! cargo run --example urgent_and_patient
//! ```
//!
//! Both take the lock with patience: of those that wait, the repair comes first, and it asks the rebuild to make room.

#![allow(clippy::print_stdout, reason = "examples talk to people")]

use std::sync::mpsc::channel;
use std::thread;

use zklock::{Client, DistributedLock};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // What the first argument or ZKLOCK_HOSTS names; otherwise one in memory, for trying.
    let zookeeper = zklock_examples::ensemble(std::env::args().nth(1))?;
    let hosts = zookeeper.hosts();
    let zk = Client::connect(hosts)?;
    let index = DistributedLock::new(&zk, "/zklock-example", "index");
    // At most so many later ones come before each.
    let (rebuild, repair) = (index.clone().patience(100), index.patience(0).ask_worse(true));

    let (begun, has_begun) = channel();
    let nightly = thread::spawn(move || -> zklock::Result<()> {
        let mut shards = 0..8;
        while !shards.is_empty() {
            let guard = rebuild.lock()?;
            println!("rebuild: has the lock, {} shards to go", shards.len());
            begun.send(()).ok();
            for shard in shards.by_ref() {
                thread::sleep(std::time::Duration::from_millis(50)); // builds the shard
                if guard.release_requested() {
                    println!("rebuild: makes room after shard {shard}");
                    break;
                }
            }
        }
        Ok(())
    });
    has_begun.recv()?;
    let guard = repair.lock()?;
    println!("repair: has the lock, with fencing token {}", guard.fencing_token());
    drop(guard);
    nightly.join().map_err(|_| "the rebuild panicked")??;
    Ok(())
}
