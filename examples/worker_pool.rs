//! Workers that process the items of a queue, a bounded number at once in the whole fleet.
//!
//! ```sh
//! cargo run --example worker_pool
//! ```
//!
//! Start it on several hosts: together, they process no more than two items at once. An item whose
//! worker dies goes to another worker.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

use std::error::Error;
use std::thread;
use std::time::Duration;

use zklock::{Client, DistributedQueue, DistributedSemaphore};

fn main() -> Result<(), Box<dyn Error>> {
    // What the first argument or ZKLOCK_HOSTS names; otherwise one in memory, for trying.
    let zookeeper = zklock_examples::ensemble(std::env::args().nth(1))?;
    let hosts = zookeeper.hosts();
    let zk = Client::connect(hosts)?;
    let pictures = DistributedQueue::new(&zk, "/zklock-example", "pictures");
    let slots = DistributedSemaphore::new(&zk, "/zklock-example", "slots", 2);

    for number in 1..=6 {
        pictures.offer(format!("picture-{number}.png"))?;
    }
    thread::scope(|scope| {
        let start = |worker| {
            let (pictures, slots) = (&pictures, &slots);
            scope.spawn(move || work(worker, pictures, slots))
        };
        let workers: Vec<_> = (1..=3).map(start).collect();
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok(())
    })
}

/// Works until there is no item for a second. A service would wait with `lease_within(&cancel)`.
fn work(
    worker: u32,
    pictures: &DistributedQueue,
    slots: &DistributedSemaphore,
) -> zklock::Result<()> {
    loop {
        // The slot comes first, so that no leased item waits for a slot.
        let _slot = slots.acquire()?;
        let Some(item) = pictures.lease_within(Duration::from_secs(1))? else { return Ok(()) };
        let name = String::from_utf8_lossy(item.data()).into_owned();
        thread::sleep(Duration::from_millis(100)); // the work

        // This deletes the item. Without it, or after an error, the item goes to another worker.
        match item.ack() {
            Ok(()) => println!("worker {worker}: {name}"),
            Err(error) => eprintln!("worker {worker}: {name} may be processed again: {error}"),
        }
    }
}
