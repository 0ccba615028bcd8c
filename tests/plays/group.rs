//! A group: members join, are seen by others, leave, and join again in a new session.
//!
//! ```text
//! cargo run --example group
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! everything was as it should be, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use support::{Checks, Result, find, say, unique};
use zklock::group::Member;
use zklock::{Changes, Client, Group};

const BASE: &str = "/zklock-examples";
const SOON: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

/// Waits until there are `count` members, prints each change, and returns their ids.
fn seen(changes: &mut Changes<Vec<Member>>, count: usize) -> Result<Vec<String>> {
    let end = Instant::now() + SOON;
    while let Some(members) = changes.next_within(end.saturating_duration_since(Instant::now()))? {
        let at = |one: &Member| format!("{} at {}", one.id, String::from_utf8_lossy(&one.data));
        say(format!("there are: {:?}", members.iter().map(at).collect::<Vec<_>>()));
        if members.len() == count {
            return Ok(members.into_iter().map(|one| one.id).collect());
        }
    }
    Err(format!("no {count} members within {SOON:?}").into())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let (name, mut checks) = (unique("workers"), Checks::default());
    let watcher = Client::connect(zookeeper.hosts())?;
    let group = Group::new(&watcher, BASE, &name);
    let mut changes = group.observe();
    seen(&mut changes, 0)?;

    let clients = [Client::connect(zookeeper.hosts())?, Client::connect(zookeeper.hosts())?];
    let [first, second] = clients.each_ref().map(|zk| Group::new(zk, BASE, &name));
    let one = first.join("worker-1", "10.0.0.1:8080")?;
    let two = second.join("worker-2", "10.0.0.2:8080")?;
    checks.that("both are seen", seen(&mut changes, 2)? == ["worker-1", "worker-2"]);
    checks.that("and know that they are members", one.is_member() && two.is_member());

    two.leave()?;
    checks.that("one leaves, and is gone", seen(&mut changes, 1)? == ["worker-1"]);
    clients[0].close();
    checks.that("one whose session ends is gone, too", seen(&mut changes, 0)?.is_empty());
    checks.that("and knows that it is no member", !one.is_member());
    let back = second.join("worker-1", "10.0.0.2:8081")?;
    checks.that("the id is free for another", seen(&mut changes, 1)? == ["worker-1"]);
    drop(back);
    Ok(checks.all_passed)
}
