//! A door that another process floods.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::*;

const TEST: &str =
    "link::loopback::flood::a_flood_from_another_process_delays_the_handle_little_on_time";
const ROLE: &str = "ZKLOCK_TEST_FLOOD";

fn handshake(nonce: i32) -> Vec<u8> {
    ConnectRequest { last_zxid: 0, timeout: nonce, session: 0, password: &[0; 16] }.encode()
}

// ----- the strangers' process

/// Floods the ports that it is given, one a line, each until the next.
fn flood() {
    let (port, visits, told) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..4u32 {
            let (port, visits, told, stop) = (&port, &visits, &told, &stop);
            scope.spawn(move || strangers(number, port, visits, told, stop));
        }
        for line in io::stdin().lines() {
            let Ok(number) = line.unwrap().parse() else { break };
            let before = visits.load(Ordering::SeqCst);
            port.store(number, Ordering::SeqCst);
            // The handle's patience is less than the door's.
            let end = Instant::now() + PATIENCE / 3;
            while visits.load(Ordering::SeqCst) < before + 300 && Instant::now() < end {
                std::thread::yield_now();
            }
            println!("stranger: {}", visits.load(Ordering::SeqCst));
        }
        stop.store(true, Ordering::SeqCst);
    });
    println!("stranger: {} {}", visits.into_inner(), told.into_inner());
}

fn strangers(
    number: u32,
    port: &AtomicU64,
    visits: &AtomicU64,
    told: &AtomicU64,
    stop: &AtomicBool,
) {
    let openings = [
        Vec::new(),
        vec![0],
        vec![0xff; 400],
        handshake(4000),
        handshake(i32::MAX),
        handshake(7)[..30].to_vec(),
    ];
    let mut guests = std::collections::VecDeque::new();
    for opening in openings.iter().cycle().skip(number as usize) {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let port = port.load(Ordering::SeqCst) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let Ok(mut guest) = TcpStream::connect_timeout(&address, Duration::from_millis(50)) else {
            continue;
        };
        visits.fetch_add(1, Ordering::SeqCst);
        let _ = guest.write_all(opening);
        guest.set_nonblocking(true).unwrap();
        guests.push_back(guest);
        if guests.len() > 100
            && let Some(mut oldest) = guests.pop_front()
        {
            let said = oldest.read(&mut [0; 100]).unwrap_or(0);
            told.fetch_add(said as u64, Ordering::SeqCst);
        }
    }
}

// ----- ours

struct Strangers {
    child: Child,
    ports: ChildStdin,
    lines: io::Lines<BufReader<ChildStdout>>,
}

impl Strangers {
    fn start() -> Strangers {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let ports = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Strangers { child, ports, lines }
    }

    fn order(&mut self, order: &str) -> String {
        writeln!(self.ports, "{order}").unwrap();
        loop {
            let line = self.lines.next().expect("the strangers go on").unwrap();
            if let Some((_, answer)) = line.split_once("stranger: ") {
                return answer.to_owned();
            }
        }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As the crate's handle does it: again and again, without a pause.
fn knock(first: TcpStream, nonce: i32) -> (TcpStream, u32) {
    let address = first.peer_addr().unwrap();
    let mut handle = Ok(first);
    for attempts in 1..10_000 {
        let mut answer = [0; 4 + 37];
        if let Ok(mut stream) = handle
            && stream.write_all(&handshake(nonce)).is_ok()
            && stream.read_exact(&mut answer).is_ok()
        {
            return (stream, attempts);
        }
        handle = TcpStream::connect(address);
    }
    panic!("it is never admitted")
}

/// What the kernel has of this process: descriptors and threads.
fn possessions() -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    (count("fd"), count("task"))
}

/// Connected before the flood, the handle is slow to speak.
#[test]
fn a_flood_from_another_process_delays_the_handle_little_on_time() {
    if std::env::var_os(ROLE).is_some() {
        return flood();
    }
    let mut strangers = Strangers::start();
    let before = possessions();
    let (mut dropped, mut prompt) = (0, 0);
    for _ in 0..10 {
        let mut door = Door::open().unwrap();
        let (address, nonce) = (door.address().unwrap(), door.nonce);
        let admitted = std::thread::spawn(move || {
            let end = Instant::now() + Duration::from_secs(30);
            let stream = door.admit(|| Instant::now() > end).unwrap();
            (stream, door.strangers)
        });
        let handle = TcpStream::connect(address).unwrap();
        strangers.order(&address.port().to_string());
        let start = Instant::now();
        let (handle, attempts) = knock(handle, nonce);
        let (stream, strangers) = admitted.join().unwrap();
        let delay = start.elapsed();
        println!("{strangers} strangers, {attempts} attempts, {delay:?}");
        // What a session allows for it. Where the processor is so busy that the handle was
        // silent for too long, it knocks again, at the end of the queue.
        assert!(delay < Duration::from_secs(2) || attempts > 1, "{delay:?}");
        prompt += u32::from(attempts == 1);
        assert_eq!(stream.peer_addr().unwrap(), handle.local_addr().unwrap());
        dropped += strangers;
    }
    assert!(prompt >= 5, "admitted at once {prompt} times of 10");
    assert!(dropped > 100, "{dropped} strangers are no flood");
    let loot = strangers.order("");
    assert!(loot.ends_with(" 0"), "strangers were told something: visits, bytes: {loot}");
    // Other tests have a part in it where they share a process.
    let alone = std::env::var_os("NEXTEST").is_some();
    let end = Instant::now() + Duration::from_secs(5);
    // A thread that was joined may still be in the kernel's list.
    while alone && possessions() != before {
        assert!(Instant::now() < end, "{:?}, before {before:?}", possessions());
        std::thread::yield_now();
    }
}

#[test]
fn a_crowd_does_not_push_out_a_handle_that_is_slow_to_speak() {
    let mut door = Door::open().unwrap();
    let (address, nonce) = (door.address().unwrap(), door.nonce);
    let mut handle = TcpStream::connect(address).unwrap();
    // More than the default queue takes, none of them heard yet.
    let crowd: Vec<_> = (0..2 * CROWD + 10)
        .map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(500)).unwrap())
        .collect();
    for _ in 0..4 {
        door.accept().unwrap();
        assert!(door.candidates.len() <= CROWD);
    }
    handle.write_all(&handshake(nonce)).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let served = door.admit(|| Instant::now() > end).unwrap();
    assert_eq!(served.peer_addr().unwrap(), handle.local_addr().unwrap());
    drop(crowd);
}

/// The last come have a chance too: the seats are not theirs who came first for ever.
#[test]
fn a_handle_that_comes_after_the_crowd_is_heard() {
    let mut door = Door::open().unwrap();
    let (address, nonce) = (door.address().unwrap(), door.nonce);
    let crowd: Vec<_> = (0..2 * CROWD).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut handle = TcpStream::connect(address).unwrap();
    handle.write_all(&handshake(nonce)).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let served = door.admit(|| Instant::now() > end).unwrap();
    assert_eq!(served.peer_addr().unwrap(), handle.local_addr().unwrap());
    drop(crowd);
}
