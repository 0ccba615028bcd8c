//! The server in memory beside ZooKeeper on Java without fsync: the requests of a lock as bare frames, and zklock's lock, in
//! pairs that take turns; how long a start takes; and the processor time of a request.
//!
//! ```sh
//! cargo bench --package zklock-testing --features local
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a measurement")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use zklock::{Client, DistributedLock};
use zklock_testing::ZooKeeper;

const PAIRS: usize = 20;
const EACH: Duration = Duration::from_millis(400);

fn main() {
    // `cargo test --benches` only wants to know that it compiles.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let starts: Vec<f64> =
        (0..200).map(|_| milliseconds(|| drop(ZooKeeper::in_memory().unwrap()))).collect();
    println!("start and end in memory: {} ms", spread(starts));
    let java = ZooKeeper::builder().local().start().unwrap();
    let memory = InMemory::start();
    let (mut frames, mut locks, mut cost) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let kinds = if pair % 2 == 0 { [true, false] } else { [false, true] };
        let [mut bare, mut lock] = [[0.0; 2]; 2];
        for in_memory in kinds {
            let hosts = if in_memory { &memory.hosts } else { java.hosts() };
            let (before, mut requests) = (memory.processor_time(), 0.0);
            bare[usize::from(in_memory)] = Bare::connect(hosts).rate(&mut requests);
            if in_memory {
                cost.push((memory.processor_time() - before) * 1e6 / requests);
            }
            lock[usize::from(in_memory)] = rate_of_locks(hosts);
        }
        frames.push(bare[1] / bare[0]);
        locks.push(lock[1] / lock[0]);
    }
    println!("bare frames of a lock, in memory to Java without fsync: {}", spread(frames));
    println!("zklock's lock and drop, likewise: {}", spread(locks));
    println!("processor time of a request in memory: {} µs", spread(cost));
}

fn milliseconds(act: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    act();
    begun.elapsed().as_secs_f64() * 1e3
}

/// The median, and the least and the largest.
fn spread(mut figures: Vec<f64>) -> String {
    figures.sort_by(f64::total_cmp);
    format!(
        "{:.2} ({:.2}–{:.2})",
        figures[figures.len() / 2],
        figures[0],
        figures[figures.len() - 1]
    )
}

fn rate_of_locks(hosts: &str) -> f64 {
    let zk = Client::connect(hosts).unwrap();
    let lock = DistributedLock::new(&zk, "/bench", "lock");
    drop(lock.lock().unwrap());
    let (begun, mut count) = (Instant::now(), 0_u32);
    while begun.elapsed() < EACH {
        drop(lock.lock().unwrap());
        count += 1;
    }
    let rate = f64::from(count) / begun.elapsed().as_secs_f64();
    zk.close();
    rate
}

/// The program, as a process of its own.
struct InMemory {
    process: Child,
    hosts: String,
}

impl InMemory {
    fn start() -> InMemory {
        let program = env!("CARGO_BIN_EXE_zookeeper-in-memory");
        let mut process = Command::new(program).stdout(Stdio::piped()).spawn().unwrap();
        let mut hosts = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut hosts).unwrap();
        InMemory { process, hosts: hosts.trim().to_owned() }
    }

    /// In seconds, with ticks of ten milliseconds.
    fn processor_time(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace().collect::<Vec<_>>();
        let ticks: f64 =
            [fields[11], fields[12]].map(|one| one.parse::<f64>().unwrap()).iter().sum();
        ticks / 100.0
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A client that sends only what a lock needs: a create and a list, together, and a delete.
struct Bare(TcpStream);

impl Bare {
    fn connect(hosts: &str) -> Bare {
        let mut bare = Bare(TcpStream::connect(hosts).unwrap());
        bare.0.set_nodelay(true).unwrap();
        let mut hello = Vec::new();
        hello.extend([0; 4 + 8]);
        hello.extend(10_000_i32.to_be_bytes());
        hello.extend([0; 8 + 4]);
        bare.send(&[hello]);
        bare.receive();
        // Of an earlier one, if there was one.
        bare.send(&[create(1, "/bare", b"", 0)]);
        bare.receive();
        bare
    }

    fn rate(mut self, requests: &mut f64) -> f64 {
        let (begun, mut count) = (Instant::now(), 0_u32);
        while begun.elapsed() < EACH {
            self.send(&[create(2, "/bare/x-", b"a contender", 3), list(3, "/bare")]);
            let created = self.receive();
            self.receive();
            let path = std::str::from_utf8(&created[20..]).unwrap();
            self.send(&[delete(4, path)]);
            self.receive();
            count += 1;
        }
        *requests = f64::from(count) * 3.0;
        f64::from(count) / begun.elapsed().as_secs_f64()
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        let mut bytes = Vec::new();
        for frame in frames {
            bytes.extend(i32::try_from(frame.len()).unwrap().to_be_bytes());
            bytes.extend(frame);
        }
        self.0.write_all(&bytes).unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut size = [0; 4];
        self.0.read_exact(&mut size).unwrap();
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(size)).unwrap()];
        self.0.read_exact(&mut frame).unwrap();
        frame
    }
}

fn request(xid: i32, op: i32) -> Vec<u8> {
    [xid.to_be_bytes(), op.to_be_bytes()].concat()
}

fn text(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend(i32::try_from(bytes.len()).unwrap().to_be_bytes());
    into.extend(bytes);
}

fn create(xid: i32, path: &str, data: &[u8], flags: i32) -> Vec<u8> {
    let mut frame = request(xid, 1);
    text(&mut frame, path.as_bytes());
    text(&mut frame, data);
    frame.extend([1_i32, 31].map(i32::to_be_bytes).concat());
    text(&mut frame, b"world");
    text(&mut frame, b"anyone");
    frame.extend(flags.to_be_bytes());
    frame
}

fn list(xid: i32, path: &str) -> Vec<u8> {
    let mut frame = request(xid, 8);
    text(&mut frame, path.as_bytes());
    frame.push(0);
    frame
}

fn delete(xid: i32, path: &str) -> Vec<u8> {
    let mut frame = request(xid, 2);
    text(&mut frame, path.as_bytes());
    frame.extend((-1_i32).to_be_bytes());
    frame
}
