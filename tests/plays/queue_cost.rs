//! Measures what taking an item costs, for queues of several lengths: one consumer takes all items.
//!
//! ```text
//! cargo run --release --example queue_cost [LENGTH...]
//! ```
//!
//! It starts a ZooKeeper in memory unless `ZKLOCK_HOSTS` names one, whose answers to `mntr` count the requests: of all
//! its clients. The exit code is 0 if all items were taken, 1 if not, 2 if it could not
//! run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::env;
use std::io::{self, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use support::{Result, find, unique};
use zklock::{Client, DistributedQueue, PriorityQueue};

const LENGTHS: [usize; 3] = [100, 1_000, 10_000];
const PRODUCERS: usize = 8;
/// Longer than a measurement, so that no heartbeat is counted.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    env_logger::init();
    support::exit(table())
}

fn table() -> Result<bool> {
    let lengths: Vec<usize> =
        env::args().skip(1).map(|length| length.parse()).collect::<Result<_, _>>()?;
    let lengths = if lengths.is_empty() { LENGTHS.to_vec() } else { lengths };
    let zookeeper = find()?;
    let zk = Client::builder(zookeeper.hosts()).session_timeout(TIMEOUT).connect()?;
    println!("{:<26}{:>8}{:>16}{:>18}", "", "items", "ms per item", "requests per item");
    let mut all_taken = true;
    for length in lengths {
        for how in ["take", "try_take", "lease and ack", "by priority"] {
            all_taken &= measure(zookeeper.hosts(), &zk, length, how)?;
        }
    }
    Ok(all_taken)
}

fn measure(hosts: &str, zk: &Client, length: usize, how: &str) -> Result<bool> {
    let name = unique("cost");
    let queue = DistributedQueue::new(zk, "/zklock-examples", &name);
    let jobs = PriorityQueue::new(zk, "/zklock-examples", format!("{name}-p"));
    let by_priority = how == "by priority";
    let offer = |producer: usize| -> zklock::Result<()> {
        for number in (producer..length).step_by(PRODUCERS) {
            let data = number.to_string();
            let priority = (number % 10) as u32;
            if by_priority { jobs.offer(priority, data) } else { queue.offer(data) }?;
        }
        Ok(())
    };
    thread::scope(|scope| -> Result<()> {
        let offer = &offer;
        let producers: Vec<_> = (0..PRODUCERS).map(|n| scope.spawn(move || offer(n))).collect();
        for producer in producers {
            producer.join().map_err(|_| "a producer panicked")??;
        }
        Ok(())
    })?;

    let before = received(hosts);
    let begin = Instant::now();
    let mut taken = 0;
    while taken < length {
        let is_there = match how {
            "take" => !queue.take()?.is_empty(),
            "try_take" => queue.try_take()?.is_some(),
            "lease and ack" => queue.lease()?.ack().is_ok(),
            _ => !jobs.take()?.is_empty(),
        };
        if !is_there {
            break;
        }
        taken += 1;
    }
    let each = begin.elapsed().as_secs_f64() * 1e3 / length as f64;
    let requests = match (before, received(hosts)) {
        (Some(before), Some(after)) => format!("{:.2}", (after - before) as f64 / length as f64),
        _ => "-".to_owned(),
    };
    println!("{how:<26}{length:>8}{each:>16.3}{requests:>18}");
    Ok(taken == length && queue.len()? == 0 && jobs.len()? == 0)
}

/// How many packets the server has received, if it is one and tells.
fn received(hosts: &str) -> Option<u64> {
    let mut socket = TcpStream::connect(hosts).ok()?;
    socket.write_all(b"mntr").ok()?;
    let said = io::read_to_string(socket).ok()?;
    said.lines().find_map(|line| line.strip_prefix("zk_packets_received\t")?.parse().ok())
}
