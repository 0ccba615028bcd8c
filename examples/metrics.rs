//! Counts what a client reports, and how long its locks were waited for.
//!
//! ```sh
//! cargo run --example metrics
//! ```
//!
//! The counters are plain numbers here. Use those of your metrics library in their place.

#![allow(clippy::print_stdout, reason = "examples talk to people")]

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use zklock::{Client, DistributedLock, Event};

#[derive(Debug, Default)]
struct Metrics {
    outages: AtomicU64,
    losses: AtomicU64,
    /// A histogram: acquired within 1 ms, 10 ms, 100 ms, 1 s, or later.
    waited: [AtomicU64; 5],
}

impl Metrics {
    fn count(&self, event: &Event) {
        let limits = [1, 10, 100, 1_000].map(Duration::from_millis);
        let bucket = |waited| limits.partition_point(|limit| waited > limit);
        match event {
            Event::Suspended { .. } => self.outages.fetch_add(1, Relaxed),
            Event::HoldLost { .. } => self.losses.fetch_add(1, Relaxed), // alert on this one
            Event::Acquired { waited, .. } => self.waited[bucket(waited)].fetch_add(1, Relaxed),
            _ => 0,
        };
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // What the first argument or ZKLOCK_HOSTS names; otherwise one in memory, for trying.
    let zookeeper = zklock_examples::ensemble(std::env::args().nth(1))?;
    let hosts = zookeeper.hosts();
    let metrics = Arc::new(Metrics::default());
    let (closed, is_closed) = mpsc::channel();
    let counted = Arc::clone(&metrics);
    // The library calls this on a thread of its own, with one event after another.
    let builder = Client::builder(hosts).on_event(move |event| {
        counted.count(event);
        if *event == Event::Closed {
            let _ = closed.send(());
        }
    });
    let zk = builder.connect()?;

    // Another client holds the lock for a moment.
    let lock_of = |zk: &Client| DistributedLock::new(zk, "/zklock-example", "metrics");
    let theirs = lock_of(&Client::connect(hosts)?).lock()?;
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(theirs);
    });
    let lock = lock_of(&zk);
    for _ in 0..10 {
        let _guard = lock.lock()?; // the work would come after it
    }
    zk.close();
    is_closed.recv()?; // the last event: all are counted now
    println!("{metrics:?}");
    Ok(())
}
