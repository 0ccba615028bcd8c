//! Acquires locks as an earlier version of zklock does. ../README.md lists the orders.

use std::fs;
use std::io;
use std::time::Duration;

use zklock::{Client, DistributedLock, DistributedRwLock, LockGuard, ReadGuard, Result, WriteGuard};

enum Held {
    Mutex(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Held {
    fn unlock(self) -> Result<()> {
        match self {
            Held::Mutex(guard) => guard.unlock(),
            Held::Read(guard) => guard.unlock(),
            Held::Write(guard) => guard.unlock(),
        }
    }
}

struct Peer {
    zk: Client,
    held: Option<Held>,
}

impl Peer {
    fn acquire(&self, path: &str, kind: &str, limit: Duration) -> Option<Held> {
        let (base, name) = path.rsplit_once('/').expect("a path");
        let lock = DistributedRwLock::new(&self.zk, base, name);
        match kind {
            "read" => lock.try_read_for(limit).unwrap().map(Held::Read),
            "write" => lock.try_write_for(limit).unwrap().map(Held::Write),
            _ => {
                let lock = DistributedLock::new(&self.zk, base, name);
                lock.try_lock_for(limit).unwrap().map(Held::Mutex)
            }
        }
    }

    fn obey(&mut self, words: &[&str]) -> String {
        const LONG: Duration = Duration::from_secs(3_600);
        match *words {
            ["lock", path, kind] => {
                self.held = self.acquire(path, kind, LONG);
                "held".to_owned()
            }
            ["try", path, kind, millis] => {
                let limit = Duration::from_millis(millis.parse().unwrap());
                self.held = self.acquire(path, kind, limit);
                if self.held.is_some() { "held" } else { "not" }.to_owned()
            }
            ["release"] => {
                self.held.take().expect("a guard").unlock().unwrap();
                "released".to_owned()
            }
            ["work", path, kind, rounds, counter] => {
                let mut taken = 0;
                for _ in 0..rounds.parse().unwrap() {
                    let held = self.acquire(path, kind, LONG).expect("the lock");
                    let before = fs::read_to_string(counter).unwrap();
                    let (count, last) = before.split_once(' ').expect("a number and a name");
                    taken += usize::from(last != "before");
                    let count = count.parse::<u64>().unwrap() + 1;
                    fs::write(counter, format!("{count} before")).unwrap();
                    held.unlock().unwrap();
                }
                format!("done {taken}")
            }
            _ => panic!("unknown order: {words:?}"),
        }
    }
}

fn main() {
    let hosts = std::env::args().nth(1).expect("a connect string");
    let zk = Client::connect(&hosts).unwrap();
    let mut peer = Peer { zk, held: None };
    println!("peer: ready");
    for order in io::stdin().lines() {
        let order = order.unwrap();
        println!("peer: {}", peer.obey(&order.split(' ').collect::<Vec<_>>()));
    }
    drop(peer.held);
    peer.zk.close();
}
