//! Queues: scenarios 79 and 80, and the documented guarantees on how often an item is delivered.

mod crowd;
mod doubts;
mod late;
mod leased;
mod order;
mod redelivery;
mod refused;
mod storm;
mod waiting;

use std::time::Duration;

use zklock::{Client, DistributedQueue, PriorityQueue};

use crate::support::site::Site;

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);

fn queue(zk: &Client, site: &Site) -> DistributedQueue {
    DistributedQueue::new(zk, &site.base, "q")
}

fn jobs(zk: &Client, site: &Site) -> PriorityQueue {
    PriorityQueue::new(zk, &site.base, "q")
}

fn text(data: Option<Vec<u8>>) -> Option<String> {
    data.map(|data| String::from_utf8(data).unwrap())
}
