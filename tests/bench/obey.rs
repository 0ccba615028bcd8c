//! A worker's main loop: reads orders as lines from standard input, and answers with lines of JSON.
//! Other clients' workers are in tests/peers, whose README has the orders.

use std::error::Error;
use std::io;
use std::process::exit;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Operations, and the time that they took.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) operations: u64,
    pub(crate) time: Duration,
    /// When the first of them happened, in a loop.
    pub(crate) waits: Waits,
}

/// When a thread asked for the lock and when it had it, each time until there are enough:
/// nanoseconds of the system's clock, which all processes share.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) noted: Vec<[u64; 2]>,
    most: usize,
}

impl Waits {
    /// Of how many acquisitions the threads of a process note together when they happened.
    const MOST: usize = 2_000;

    pub(crate) fn of_one_of(threads: usize) -> Waits {
        Waits { noted: Vec::new(), most: Waits::MOST / threads }
    }

    /// For work whose waits are not of interest.
    pub(crate) fn none() -> Waits {
        Waits { noted: Vec::new(), most: 0 }
    }

    pub(crate) fn note<T>(&mut self, acquire: impl FnOnce() -> T) -> T {
        if self.noted.len() == self.most {
            return acquire();
        }
        let asked = now();
        let acquired = acquire();
        self.noted.push([asked, now()]);
        acquired
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) trait Hand {
    fn connect(&mut self, hosts: &str, clients: usize) -> Outcome<()>;
    fn close(&mut self) -> Outcome<()>;
    /// Acquires and releases for a time of `length`.
    fn run(&mut self, path: &str, locks: usize, threads: usize, length: Duration) -> Outcome<Done>;
    /// Has waiters queue, until each has held the lock once.
    fn queue(&mut self, path: &str, waiters: usize, repeats: usize) -> Outcome<Done>;
    /// Acquires many locks, and releases them when it has all. Only for our own clients.
    fn hold(&mut self, _path: &str, _locks: usize) -> Outcome<Done> {
        Err("only zklock is measured with many locks that are held".into())
    }
    /// Carries out operations of a recipe beside the locks.
    fn recipe(&mut self, _recipe: &str, _path: &str, _count: usize) -> Outcome<Done> {
        Err("bare frames have no recipes".into())
    }
}

pub(crate) fn obey(mut hand: impl Hand) -> Outcome<()> {
    let (tell, orders) = mpsc::channel();
    thread::spawn(move || {
        for order in io::stdin().lines().map_while(io::Result::ok) {
            let _ = tell.send(order);
        }
        // The parent is gone: ends at once, even while an order is carried out.
        exit(0);
    });
    println!("peer: ready");
    for order in orders {
        let words: Vec<&str> = order.split(' ').collect();
        println!("peer: {}", carry_out(&mut hand, &words)?);
    }
    Ok(())
}

fn carry_out(hand: &mut impl Hand, words: &[&str]) -> Outcome<Value> {
    let before = switches()?;
    let done = match *words {
        ["connect", hosts, clients] => {
            hand.connect(hosts, clients.parse()?)?;
            return Ok(json!({}));
        }
        ["close"] => {
            hand.close()?;
            return Ok(json!({}));
        }
        ["loop", path, locks, threads, millis] => {
            let length = Duration::from_millis(millis.parse()?);
            hand.run(path, locks.parse()?, threads.parse()?, length)?
        }
        ["queue", path, waiters, repeats] => {
            hand.queue(path, waiters.parse()?, repeats.parse()?)?
        }
        ["hold", path, locks] => hand.hold(path, locks.parse()?)?,
        ["recipe", recipe, path, count] => hand.recipe(recipe, path, count.parse()?)?,
        _ => return Err(format!("unknown order: {words:?}").into()),
    };
    let Done { operations, time, waits } = done;
    Ok(json!({
        "operations": operations,
        "seconds": time.as_secs_f64(),
        "waits": waits.noted,
        "switches": switches()? - before,
    }))
}

/// How often threads of this process have left a processor. /proc forgets those that have ended.
fn switches() -> Outcome<i64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok(usage.voluntary_context_switches() + usage.involuntary_context_switches())
}
