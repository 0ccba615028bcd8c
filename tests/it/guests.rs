//! Uninvited guests on the loopback port: another process of this machine, which connects to
//! whatever port this one opens, and afterwards takes the port for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use zklock::Client;

use crate::support::proxy::Proxy;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{eventually, mutex, skip_without_zookeeper};

const TEST: &str = "guests::guests_learn_nothing_harm_nobody_and_are_not_called";
const HOST_PROCESS: &str = "ZKLOCK_TEST_GUESTS_OF";
const LONG: Duration = Duration::from_secs(15);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ----- the guests' process

/// The loopback ports that the process listens on.
fn doors(process: &str) -> BTreeSet<u16> {
    // Sockets that listen come first, and a door is not open for long.
    let mut table = vec![0; 32 * 1024];
    let read = fs::File::open("/proc/net/tcp").and_then(|mut file| file.read(&mut table));
    table.truncate(read.expect("a table of sockets"));
    let mut found: Vec<(u16, String)> = String::from_utf8_lossy(&table)
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let port = u16::from_str_radix(fields.get(1)?.strip_prefix("0100007F:")?, 16).ok()?;
            let listens = *fields.get(3)? == "0A";
            listens.then(|| Some((port, format!("socket:[{}]", fields.get(9)?)))).flatten()
        })
        .collect();
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let own: Vec<_> = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    found.retain(|(_, socket)| own.iter().any(|link| link.as_os_str() == socket.as_str()));
    found.into_iter().map(|(port, _)| port).collect()
}

fn with_length(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

fn ints(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// What guests say when they come; the first says nothing, and stays.
fn openings() -> Vec<Vec<u8>> {
    let handshake = |nonce: i32, session: i32| {
        let head = ints(&[0, 0, 0, nonce, 0, session, 16]);
        with_length(&[&head[..], &[0; 16], &[0]].concat())
    };
    vec![
        Vec::new(),
        vec![0],
        b"GET / HTTP/1.1\r\n\r\n".repeat(10),
        vec![0xff; 4096],
        ints(&[i32::MAX, 0, 0]),
        handshake(4000, 0)[..20].to_vec(),
        handshake(4000, 0),
        handshake(0, 0),
        handshake(-1, 0),
        handshake(i32::MAX, 0),
        // What the handle would say when it came again.
        handshake(i32::MAX, 1),
    ]
}

/// What the guests have found out.
#[derive(Default)]
struct Loot {
    ports: Mutex<BTreeSet<u16>>,
    visits: AtomicUsize,
    told: AtomicU64,
    kept_waiting: AtomicUsize,
    rest: AtomicBool,
}

impl Loot {
    fn visit(&self, host: &str, known: &BTreeSet<u16>) {
        let openings = openings();
        let mut openings = openings.iter().cycle();
        while !self.rest.load(Ordering::SeqCst) {
            let mut guests: Vec<TcpStream> = Vec::new();
            for port in doors(host).difference(known) {
                for opening in openings.by_ref().take(100) {
                    let limit = Duration::from_millis(200);
                    let Ok(mut guest) = TcpStream::connect_timeout(&address(*port), limit) else {
                        break;
                    };
                    let _ = guest.write_all(opening);
                    guests.push(guest);
                    lock(&self.ports).insert(*port);
                    self.visits.fetch_add(1, Ordering::SeqCst);
                }
            }
            for mut guest in guests {
                // Their patience is longer than the door's.
                let _ = guest.set_read_timeout(Some(Duration::from_secs(2)));
                let mut told = Vec::new();
                let end = guest.read_to_end(&mut told);
                let waits = end.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
                self.kept_waiting.fetch_add(usize::from(waits), Ordering::SeqCst);
                self.told.fetch_add(told.len() as u64, Ordering::SeqCst);
            }
        }
    }
}

fn address(port: u16) -> std::net::SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Does as it is told, a line at a time, until nobody tells it anything any more.
fn be_guests(host: &str) {
    let (known, loot) = (doors(host), Loot::default());
    let mut taken: BTreeMap<u16, TcpListener> = BTreeMap::new();
    thread::scope(|scope| {
        let mut visitors: Vec<_> =
            (0..3).map(|_| scope.spawn(|| loot.visit(host, &known))).collect();
        for order in io::stdin().lines() {
            let order = order.expect("an order");
            let answer = match order.as_str() {
                "visits" => [loot.visits.load(Ordering::SeqCst), lock(&loot.ports).len()],
                "rest" => {
                    loot.rest.store(true, Ordering::SeqCst);
                    visitors.drain(..).for_each(|visitor| visitor.join().expect("a visitor"));
                    let told = loot.told.load(Ordering::SeqCst) as usize;
                    [told, loot.kept_waiting.load(Ordering::SeqCst)]
                }
                "take" => {
                    for port in lock(&loot.ports).iter() {
                        if let Ok(taker) = TcpListener::bind(address(*port)) {
                            taker.set_nonblocking(true).expect("a socket");
                            taken.insert(*port, taker);
                        }
                    }
                    [taken.len(), lock(&loot.ports).len()]
                }
                "callers" => [taken.values().filter(|one| one.accept().is_ok()).count(), 0],
                other => panic!("{other}"),
            };
            println!("guests: {} {}", answer[0], answer[1]);
        }
        loot.rest.store(true, Ordering::SeqCst);
    });
}

// ----- their host

struct Guests {
    child: Child,
    orders: ChildStdin,
    lines: io::Lines<BufReader<ChildStdout>>,
}

impl Guests {
    fn invite_nobody() -> Guests {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
            .env(HOST_PROCESS, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child process");
        let orders = child.stdin.take().expect("its input");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Guests { child, orders, lines }
    }

    fn order(&mut self, order: &str) -> [usize; 2] {
        writeln!(self.orders, "{order}").expect("the guests listen");
        loop {
            let line = self.lines.next().expect("the guests go on").expect("a line");
            if let Some((_, answer)) = line.split_once("guests: ") {
                let mut numbers = answer.split(' ').map(|number| number.parse().expect("a number"));
                return [numbers.next().expect("one"), numbers.next().expect("two")];
            }
        }
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the kernel has of this process: descriptors and threads.
fn possessions() -> [usize; 2] {
    ["fd", "task"].map(|what| fs::read_dir(format!("/proc/self/{what}")).expect("/proc").count())
}

/// A session is opened within the time that its handle has to knock, 2 s, and what it takes
/// without guests.
const OPENED_WITHIN: Duration = Duration::from_secs(3);

#[test]
fn guests_learn_nothing_harm_nobody_and_are_not_called() {
    if let Ok(host) = std::env::var(HOST_PROCESS) {
        return be_guests(&host);
    }
    skip_without_zookeeper!();
    let site = Site::shared("guests");
    let proxy = Proxy::start(site.hosts().parse().expect("one address"));
    let open = || {
        let start = Stopwatch::start();
        let client = Client::builder(&proxy.hosts())
            .session_timeout(Duration::from_secs(8))
            .auth("digest", b"user:password")
            .connect()
            .expect("a session in spite of all");
        (client, start.took())
    };
    let (first, alone) = open();
    drop(mutex(&first, &site.base, "a").lock().unwrap());
    first.close();
    drop(first);
    let mut guests = Guests::invite_nobody();
    let settled = possessions();

    // They come while sessions are opened, and locks are taken and given back.
    let (mut clients, mut slowest, mut opened) = (Vec::new(), Duration::ZERO, 0);
    let end = Instant::now() + 2 * LONG;
    loop {
        let [visits, ports] = guests.order("visits");
        if visits >= 200 && ports >= 5 {
            println!(
                "{visits} visits at {ports} doors of {opened}; alone {alone:?}, slowest {slowest:?}"
            );
            break;
        }
        assert!(Instant::now() < end, "{visits} visits at {ports} doors of {opened}");
        let (client, took) = open();
        assert!(took.within(OPENED_WITHIN), "{took:?}");
        slowest = slowest.max(took.time());
        opened += 1;
        mutex(&client, &site.base, "a").lock().unwrap().unlock().unwrap();
        clients.push(client);
        if clients.len() > 4 {
            clients.remove(0);
        }
    }
    let [told, kept_waiting] = guests.order("rest");
    assert_eq!(told, 0, "bytes that guests were told");
    assert_eq!(kept_waiting, 0, "guests were not shown the door");

    // They take the ports, which are free again, and wait to be called.
    let [taken, ports] = guests.order("take");
    assert!(taken > ports / 2, "{taken} of {ports} ports could be taken");
    for zk in &clients {
        let lock = mutex(zk, &site.base, "a");
        let guard = lock.lock().unwrap();
        proxy.cut();
        guard.ensure_held().unwrap();
        guard.unlock().unwrap();
    }
    let [callers, _] = guests.order("callers");
    assert_eq!(callers, 0, "a session that lives called one of the guests");
    for zk in &clients {
        zk.close();
    }
    drop(clients);
    eventually(LONG, "descriptors and threads to be given back", || {
        // Tests that share a process cannot tell whose they see.
        let [descriptors, threads] = possessions();
        descriptors <= settled[0] && threads <= settled[1] || std::env::var_os("NEXTEST").is_none()
    });
    let [callers, _] = guests.order("callers");
    assert_eq!(callers, 0, "a session that is over called one of the guests");
    drop(guests);
    site.finish([]);
}

/// A child that had the handle's socket, or the link's, could speak in its stead.
#[test]
fn a_child_process_inherits_no_socket() {
    skip_without_zookeeper!();
    let site = Site::shared("child");
    let zk = site.client();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let running = format!("/proc/{}/comm", child.id());
    eventually(LONG, "the child to be another program", || {
        fs::read_to_string(&running).is_ok_and(|name| name.trim_end() == "sleep")
    });
    let inherited: Vec<_> = fs::read_dir(format!("/proc/{}/fd", child.id()))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(inherited, Vec::<std::path::PathBuf>::new());
    guard.unlock().unwrap();
    site.finish([zk]);
}
