//! A program like those in tests/peers that takes our own locks: this test binary again.

use std::env;
use std::fs;
use std::io;
use std::process::Command;
use std::thread;
use std::time::Duration;

use zklock::{
    Client, DistributedLock, DistributedRwLock, LeaderElection, Leadership, LockGuard, NodeNaming,
    ReadGuard, Result, WriteGuard,
};

use crate::support::connecting;
use crate::support::mutex;

const TEST: &str = "interop::ours::the_program_of_our_own_locks";
const HOSTS: &str = "ZKLOCK_TEST_PEER_OF";
const NAME: &str = "zklock";

pub(super) fn command(hosts: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args([TEST, "--exact", "--nocapture", "--test-threads=1"]).env(HOSTS, hosts);
    command
}

/// Not a test but a program, when another test starts it.
#[test]
fn the_program_of_our_own_locks() {
    if let Ok(hosts) = env::var(HOSTS) {
        Ours { zk: connecting(&hosts).connect().unwrap(), held: None }.listen();
    }
}

struct Ours {
    zk: Client,
    held: Option<Guard>,
}

enum Guard {
    Mutex(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Leader(Leadership),
}

impl Guard {
    fn unlock(self) -> Result<()> {
        match self {
            Guard::Mutex(guard) => guard.unlock(),
            Guard::Read(guard) => guard.unlock(),
            Guard::Write(guard) => guard.unlock(),
            Guard::Leader(leadership) => leadership.resign(),
        }
    }
}

enum Lock {
    Mutex(DistributedLock),
    Read(DistributedRwLock),
    Write(DistributedRwLock),
    Leader(LeaderElection),
}

impl Lock {
    fn lock(&self) -> Result<Guard> {
        match self {
            Lock::Mutex(lock) => lock.lock().map(Guard::Mutex),
            Lock::Read(lock) => lock.read().map(Guard::Read),
            Lock::Write(lock) => lock.write().map(Guard::Write),
            Lock::Leader(election) => election.campaign().map(Guard::Leader),
        }
    }

    fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
        Ok(match self {
            Lock::Mutex(lock) => lock.try_lock_for(limit)?.map(Guard::Mutex),
            Lock::Read(lock) => lock.try_read_for(limit)?.map(Guard::Read),
            Lock::Write(lock) => lock.try_write_for(limit)?.map(Guard::Write),
            Lock::Leader(election) => election.campaign_within(limit)?.map(Guard::Leader),
        })
    }
}

impl Ours {
    fn listen(mut self) {
        // The test harness has begun a line.
        println!("\npeer: ready");
        for order in io::stdin().lines() {
            let order = order.unwrap();
            let words: Vec<&str> = order.split(' ').collect();
            println!("peer: {}", self.obey(&words));
        }
        drop(self.held);
        self.zk.close();
    }

    fn obey(&mut self, words: &[&str]) -> String {
        match *words {
            ["lock", path, kind] => {
                self.held = Some(self.lock(path, kind).lock().unwrap());
                "held".to_owned()
            }
            ["try", path, kind, millis] => {
                let limit = Duration::from_millis(millis.parse().unwrap());
                self.held = self.lock(path, kind).try_lock_for(limit).unwrap();
                if self.held.is_some() { "held" } else { "not" }.to_owned()
            }
            ["release"] => {
                self.held.take().expect("a guard").unlock().unwrap();
                "released".to_owned()
            }
            ["work", path, kind, rounds, counter] => {
                self.work(path, kind, rounds.parse().unwrap(), counter)
            }
            _ => panic!("unknown order: {words:?}"),
        }
    }

    fn lock(&self, path: &str, kind: &str) -> Lock {
        let (base, name) = path.rsplit_once('/').expect("a path");
        let (class, naming) = match kind.strip_suffix("-kazoo") {
            Some(class) => (class, NodeNaming::Kazoo),
            None => (kind, NodeNaming::Curator),
        };
        let rw = || DistributedRwLock::new(&self.zk, base, name).naming(naming);
        match class {
            "mutex" => Lock::Mutex(mutex(&self.zk, base, name).naming(naming)),
            "read" => Lock::Read(rw()),
            "write" => Lock::Write(rw()),
            "leader" => {
                let builder = LeaderElection::new(&self.zk, base, name).naming(naming);
                Lock::Leader(builder.id(NAME))
            }
            other => panic!("no such kind: {other}"),
        }
    }

    fn work(&self, path: &str, kind: &str, rounds: usize, counter: &str) -> String {
        let write = self.lock(path, &kind.replace("mixed", "write"));
        let read =
            kind.starts_with("mixed").then(|| self.lock(path, &kind.replace("mixed", "read")));
        let mut taken = 0;
        for round in 0..rounds {
            if let Some(lock) = read.as_ref().filter(|_| round % 5 != 0) {
                let _guard = lock.lock().unwrap();
                let before = fs::read_to_string(counter).unwrap();
                thread::yield_now();
                if fs::read_to_string(counter).unwrap() != before {
                    return "torn".to_owned();
                }
                continue;
            }
            let _guard = write.lock().unwrap();
            let before = fs::read_to_string(counter).unwrap();
            let (count, last) = before.split_once(' ').expect("a number and a name");
            taken += usize::from(last != NAME);
            fs::write(counter, format!("{} {NAME}", count.parse::<u64>().unwrap() + 1)).unwrap();
        }
        format!("done {taken}")
    }
}
