//! A queue: each item is taken by one consumer only. A consumer that leases an item instead has to
//! acknowledge it, or the item comes back.
//!
//! ```text
//! cargo run --example queue
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! everything was as it should be, 1 if not, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use support::{Checks, Result, find, say, unique};
use zklock::{Client, DistributedQueue};

const BASE: &str = "/zklock-examples";
const SOON: Duration = Duration::from_secs(10);
const MAILS: usize = 12;

fn main() -> ExitCode {
    env_logger::init();
    support::exit(story())
}

fn story() -> Result<bool> {
    let zookeeper = find()?;
    let zk = Client::connect(zookeeper.hosts())?;
    let mut checks = Checks::default();
    taken(&zk, &mut checks)?;
    leased(&zk, zookeeper.hosts(), &mut checks)?;
    Ok(checks.all_passed)
}

/// At most once: four threads share the items.
fn taken(zk: &Client, checks: &mut Checks) -> Result<()> {
    let mails = DistributedQueue::new(zk, BASE, unique("mails"));
    checks.that("an unused queue is empty", mails.try_take()?.is_none());
    for number in 0..MAILS {
        mails.offer(format!("mail {number:02}"))?;
    }
    checks
        .that("what was offered first comes first", mails.peek()?.is_some_and(|m| m == b"mail 00"));

    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let mails = mails.clone();
            thread::spawn(move || -> zklock::Result<Vec<String>> {
                let mut sent = Vec::new();
                while let Some(mail) = mails.take_within(Duration::from_millis(300))? {
                    sent.push(String::from_utf8_lossy(&mail).into_owned());
                }
                say(format!("  worker {worker} has sent {}", sent.join(", ")));
                Ok(sent)
            })
        })
        .collect();
    let mut sent = Vec::new();
    for worker in workers {
        sent.extend(worker.join().map_err(|_| "a worker panicked")??);
    }
    let different: BTreeSet<_> = sent.iter().collect();
    checks.that("each mail was sent", different.len() == MAILS);
    checks.that("and none of them twice", sent.len() == MAILS);
    Ok(())
}

/// At least once: what a consumer does not acknowledge comes back.
fn leased(zk: &Client, hosts: &str, checks: &mut Checks) -> Result<()> {
    let name = unique("payments");
    let payments = DistributedQueue::new(zk, BASE, &name);
    payments.offer("to Alice")?;
    payments.offer("to Bob")?;

    let other = Client::connect(hosts)?;
    let careless = DistributedQueue::new(&other, BASE, &name);
    let first = careless.lease()?;
    say(format!("a consumer is at work on {:?}", String::from_utf8_lossy(first.data())));
    let second = payments.lease()?;
    checks.that("another one is given the next payment", second.data() == b"to Bob");
    checks.that("and a third one none", payments.try_lease()?.is_none());
    second.ack()?;

    let waiting = {
        let payments = payments.clone();
        thread::spawn(move || payments.lease_within(SOON))
    };
    // As if its process had died.
    other.close();
    let again = waiting.join().map_err(|_| "a consumer panicked")??;
    checks.that("when a consumer dies, its payment comes back", again.is_some());
    checks.that("the first consumer knows of that", !first.is_held() && first.ack().is_err());
    if let Some(again) = again {
        checks.that("it is the same payment", again.data() == b"to Alice");
        again.ack()?;
    }
    checks.that("what was acknowledged is gone", payments.len()? == 0);
    Ok(())
}
