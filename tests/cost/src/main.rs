//! One workload so many times, for scripts/cost: `zklock-cost WORKLOAD COUNT HOSTS`.

use std::env;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zklock::{Client, DistributedLock, DistributedQueue, DistributedSemaphore, LockGuard};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [workload, count, hosts] = &arguments[..] else { return Err("three arguments".into()) };
    let count: usize = count.parse()?;
    // Longer than a run, so that heartbeats are few.
    let zk = Client::builder(hosts).session_timeout(Duration::from_secs(60)).connect()?;
    let base = format!("/cost-{workload}-{}", std::process::id());
    let lock = DistributedLock::new(&zk, &base, "lock");
    match workload.as_str() {
        "one" => (0..count).try_for_each(|_| lock.lock().map(drop))?,
        "try" => (0..count).try_for_each(|_| lock.try_lock().map(drop))?,
        "limited" => {
            let limit = Duration::from_secs(30);
            (0..count).try_for_each(|_| lock.try_lock_for(limit).map(drop))?;
        }
        "hand-over" => hand_over(&lock, count)?,
        "contended" => {
            let other = Client::builder(hosts).session_timeout(Duration::from_secs(60)).connect()?;
            let theirs = DistributedLock::new(&other, &base, "lock");
            contend(&lock, &theirs, count)?;
        }
        "semaphore" => {
            let semaphore = DistributedSemaphore::new(&zk, &base, "semaphore", 3);
            (0..count).try_for_each(|_| semaphore.acquire().map(drop))?;
        }
        "queue" => {
            let queue = DistributedQueue::new(&zk, &base, "queue");
            for _ in 0..count {
                queue.offer("item")?;
                queue.take()?;
            }
        }
        other => return Err(format!("unknown workload: {other}").into()),
    }
    zk.close();
    Ok(())
}

/// Two threads of a client hold the lock in turns.
fn hand_over(lock: &DistributedLock, count: usize) -> zklock::Result<()> {
    let own = lock.clone();
    let other = thread::spawn(move || (0..count / 2).try_for_each(|_| own.lock().map(drop)));
    (0..count / 2).try_for_each(|_| lock.lock().map(drop))?;
    other.join().expect("no panic")
}

/// Two clients hold the lock in turns; each waits while the other holds.
fn contend(ours: &DistributedLock, theirs: &DistributedLock, count: usize) -> zklock::Result<()> {
    let (give, given) = mpsc::channel::<LockGuard>();
    let theirs = theirs.clone();
    let mut held = ours.lock()?;
    let (begin, begun) = mpsc::channel::<()>();
    let other = thread::spawn(move || -> zklock::Result<()> {
        for () in begun {
            give.send(theirs.lock()?).expect("the other thread");
        }
        Ok(())
    });
    for _ in 0..count / 2 {
        begin.send(()).expect("the other thread");
        // It is in the queue.
        while ours.contenders()?.len() < 2 {
            thread::yield_now();
        }
        drop(held);
        drop(given.recv().expect("a guard"));
        held = ours.lock()?;
    }
    drop((held, begin));
    other.join().expect("no panic")
}
