//! How long it takes from the start of `zklock run` to that of its command, and to list 2,000 locks.
//!
//! ```sh
//! cargo bench --package zklock-cli
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use zklock::{Client, DistributedLock};
use zklock_testing::ZooKeeper;

const RUNS: usize = 200;
const LOCKS: usize = 2_000;

fn main() {
    let server = ZooKeeper::builder().local().start().expect("a ZooKeeper server");
    let hosts = server.hosts();
    let alone = measured(|| began(Command::new("date")));
    let zklock = measured(|| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zklock"));
        command.args(["--hosts", hosts, "--session-timeout", "10s", "run", "-n", "start", "date"]);
        began(command)
    });
    // What the ensemble takes of that: a new session, the lock, and no process.
    let round_trips = measured(|| {
        let begun = Instant::now();
        let zk = Client::connect(hosts).unwrap();
        let guard = DistributedLock::new(&zk, "/locks", "round-trips").lock().unwrap();
        let taken = begun.elapsed();
        guard.unlock().unwrap();
        zk.close();
        taken
    });
    println!("from the start of date to its first instruction:            {alone}");
    println!("from the start of `zklock run start date` to the same:      {zklock}");
    println!("a session and a lock of this process, which is the servers' part: {round_trips}");

    let zk = Client::connect(hosts).unwrap();
    let guards: Vec<_> = (0..LOCKS)
        .map(|number| DistributedLock::new(&zk, "/many", format!("job-{number}")).lock().unwrap())
        .collect();
    let listed = measured(|| {
        let begun = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_zklock"));
        command.args(["--hosts", hosts, "ls", "/many"]).stdout(Stdio::null());
        assert!(command.status().unwrap().success());
        begun.elapsed()
    });
    println!("`zklock ls` of {LOCKS} locks:                                    {listed}");
    drop(guards);
}

/// How long it takes until the command, which is `date`, tells the time.
fn began(mut command: Command) -> Duration {
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let output = command.arg("+%s%N").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    Duration::from_nanos(told).saturating_sub(before)
}

/// The median, and the range without the 5 % at both ends.
fn measured(mut once: impl FnMut() -> Duration) -> String {
    let mut all: Vec<Duration> = (0..RUNS).map(|_| once()).collect();
    all.sort_unstable();
    let [least, median, greatest] =
        [RUNS / 20, RUNS / 2, RUNS - 1 - RUNS / 20].map(|at| all[at].as_secs_f64() * 1000.0);
    format!("{median:.1} ms ({least:.1} to {greatest:.1})")
}
