//! The read/write lock: scenarios 46 to 54.

mod downgrade;
mod sharing;
mod stress;

use std::time::Duration;

use zklock::{ContenderKind, DistributedRwLock};

const SOON: Duration = Duration::from_secs(15);

fn kinds(lock: &DistributedRwLock) -> Vec<ContenderKind> {
    lock.contenders().unwrap().iter().map(|one| one.kind).collect()
}
