//! Shows the hazards of the `zookeeper` crate's connection on a plain handle, because of which
//! zklock has its own connection. The tests named `h01_…` in `tests/it/connection/hazards.rs` take the same
//! steps with zklock's connection. `tests/README.md` lists the hazards.
//!
//! ```text
//! cargo run --example zookeeper_crate           # all, each in its own process
//! cargo run --example zookeeper_crate h07       # one
//! ```
//!
//! It starts its own ZooKeeper servers. The exit code is 0 if all hazards are seen, and 1 if one of
//! them is not, as when the crate is fixed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it prints what it sees, and ends at the first difference"
)]

#[path = "../../it/support/mod.rs"]
mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use zklock::zookeeper::{Acl, CreateMode, WatchedEvent, ZkError, ZooKeeper};

use support::logs::logs;
use support::proxy::{Proxy, opcode};
use support::raw::Kind;
use support::server::Server;
use support::site::Site;
use support::{eventually, in_background, mutex, processor_time};

const LONG: Duration = Duration::from_secs(15);

/// A hazard's name, what a handle does, and the steps that show it.
type Hazard = (&'static str, &'static str, fn());

const HAZARDS: [Hazard; 13] = [
    ("h01", "watches are not set again after a reconnect", h01),
    ("h02", "calls and closing block for as long as the network drops packets", h02),
    ("h03", "a busy handle closes for ever after a short disconnection; its nodes stay", h03),
    ("h04", "events postpone the ping, until the session expires", h04),
    ("h05", "a new session begins without notice", h05),
    ("h07", "while a server is down, a handle keeps a processor busy and fills the log", h07),
    ("h08", "connecting waits for ever for a host that hangs", h08),
    ("h09", "one unknown host makes connecting fail, an unreachable one panics", h09),
    ("h10", "credentials added during other calls mix up their replies", h10),
    ("h11", "credentials are not sent again after a reconnect", h11),
    ("h15", "the first state is not reported", h15),
    ("h18", "a container is a plain persistent node", h18),
    ("h22", "a second request is delayed until the first one's reply", h22),
];

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1);
    if let Some(name) = &wanted {
        let Some((_, _, show)) = HAZARDS.iter().find(|(other, ..)| other == name) else {
            eprintln!("no such hazard: {name}");
            return ExitCode::from(2);
        };
        show();
        // Returning from `main` may hang on a handle's threads.
        std::process::exit(0);
    }
    let mut code = ExitCode::SUCCESS;
    for (name, what, _) in HAZARDS {
        let program = std::env::current_exe().expect("this program");
        let output = Command::new(program)
            .arg(name)
            .stdin(Stdio::null())
            .output()
            .expect("a process of its own");
        if output.status.success() {
            println!("{name}  {what}");
        } else {
            println!("{name}  NOT SEEN: {what}");
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A connected handle.
fn connect(hosts: &str, timeout: Duration) -> ZooKeeper {
    let handle = ZooKeeper::connect(hosts, timeout, |_: WatchedEvent| ()).expect("a handle");
    handle.exists("/", false).expect("a connection");
    handle
}

fn open() -> Vec<Acl> {
    Acl::open_unsafe().clone()
}

fn h01() {
    let site = Site::own("h01");
    let proxy = Proxy::start(site.server().addr());
    let mut raw = site.raw();
    let node = format!("{}/watched", site.base);
    raw.create_all(&node).unwrap();
    let (tell, told) = mpsc::channel();
    let watcher = move |event: WatchedEvent| drop(tell.send(event));
    let handle = ZooKeeper::connect(&proxy.hosts(), ms(10_000), watcher).unwrap();
    assert!(handle.exists(&node, true).unwrap().is_some());
    proxy.refuse();
    raw.delete(&node).unwrap();
    proxy.release();
    eventually(LONG, "the handle to be back", || matches!(handle.exists(&node, false), Ok(None)));
    assert!(told.recv_timeout(ms(300)).is_err(), "a watch fired");
}

fn h02() {
    let site = Site::own("h02");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let proxy = Proxy::start(site.server().addr());
    let handle = Arc::new(connect(&proxy.hosts(), ms(1200)));
    let states = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&states);
    handle.add_listener(move |state| seen.lock().unwrap().push(state));
    let own = format!("{}/own", site.base);
    handle.create(&own, vec![], open(), CreateMode::Ephemeral).unwrap();
    proxy.black_hole();
    let (one, two) = (Arc::clone(&handle), Arc::clone(&handle));
    let call = in_background(move || one.exists("/", false).is_ok());
    let close = in_background(move || two.close().is_ok());
    eventually(LONG, "the server to expire it", || raw.exists(&own).unwrap().is_none());
    assert!(call.recv_timeout(ms(500)).is_err(), "a call came back");
    assert!(close.try_recv().is_err(), "closing came back");
    assert!(states.lock().unwrap().is_empty(), "the handle noticed");
}

fn h03() {
    let site = Site::own("h03");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let proxy = Proxy::start(site.server().addr());
    let handle = connect(&proxy.hosts(), ms(2900));
    let own = format!("{}/own", site.base);
    handle.create(&own, vec![], open(), CreateMode::Ephemeral).unwrap();
    let start = Instant::now();
    // The crate counts whole seconds.
    eventually(LONG, "a while of work", || {
        handle.exists("/", false).unwrap();
        start.elapsed() > ms(3100)
    });
    proxy.cut();
    eventually(LONG, "the handle to end", || handle.exists("/", false).is_err());
    for _ in 0..50 {
        assert_eq!(handle.exists("/", false).err(), Some(ZkError::ConnectionLoss));
    }
    assert!(raw.exists(&own).unwrap().is_some(), "its node is gone");
}

fn h04() {
    let site = Site::own("h04");
    let mut raw = site.raw();
    let watched: Vec<String> = (0..100).map(|n| format!("{}/w{n}", site.base)).collect();
    raw.create_all(&site.base).unwrap();
    for path in &watched {
        raw.create(path, b"", Kind::Persistent).unwrap();
    }
    let handle = connect(site.hosts(), ms(2400));
    for path in &watched {
        handle.exists(path, true).unwrap();
    }
    let own = format!("{}/own", site.base);
    handle.create(&own, vec![], open(), CreateMode::Ephemeral).unwrap();
    let start = Instant::now();
    let mut paths = watched.iter();
    while raw.exists(&own).unwrap().is_some() {
        raw.set_data(paths.next().expect("the session lives"), b"news").unwrap();
        thread::sleep(ms(150));
    }
    assert!(start.elapsed() > ms(2000), "it expired for another reason");
}

fn h05() {
    let site = Site::own("h05");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let proxy = Proxy::start(site.server().addr());
    let handle = connect(&proxy.hosts(), ms(2900));
    let own = format!("{}/own", site.base);
    handle.create(&own, vec![], open(), CreateMode::Ephemeral).unwrap();
    let old = raw.exists(&own).unwrap().unwrap().ephemeral_owner;
    proxy.black_hole();
    eventually(LONG, "the server to expire it", || raw.exists(&own).unwrap().is_none());
    proxy.pass();
    let mut errors = Vec::new();
    eventually(LONG, "the handle to go on as if nothing had happened", || {
        let made = handle.create(&own, vec![], open(), CreateMode::Ephemeral);
        errors.extend(made.as_ref().err().copied());
        made.is_ok()
    });
    assert!(!errors.contains(&ZkError::SessionExpired), "it was told");
    assert_ne!(raw.exists(&own).unwrap().unwrap().ephemeral_owner, old);
}

fn h07() {
    const WINDOW: Duration = Duration::from_secs(1);
    let site = Site::own("h07");
    let proxy = Proxy::start(site.server().addr());
    let logs = logs(LevelFilter::Info);
    let _handle = connect(&proxy.hosts(), ms(20_000));
    proxy.refuse();
    // From here on the handle tries to reconnect.
    eventually(LONG, "the loss to be noticed", || logs.entries().len() > 10);
    logs.take();
    let time = processor_time();
    thread::sleep(WINDOW);
    let (time, records) = (processor_time() - time, logs.take().len());
    assert!(time > ms(100) && records > 1_000, "{time:?}, {records} log records");
}

fn h08() {
    let site = Site::own("h08");
    // The kernel accepts connections, but nothing answers.
    let hung = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // The crate tries the hosts in this order.
    let hosts = format!("{},{}", hung.local_addr().unwrap(), site.hosts());
    let call = in_background(move || ask(&hosts));
    // Longer than the crate's own connect timeout of two seconds.
    assert!(call.recv_timeout(ms(2500)).is_err(), "it went on to the next host");
    drop(hung);
    call.recv_timeout(LONG).expect("the second host, once the first is gone");
}

fn ask(hosts: &str) -> bool {
    let handle = ZooKeeper::connect(hosts, ms(4000), |_: WatchedEvent| ()).expect("a handle");
    handle.exists("/", false).is_ok()
}

fn h09() {
    let site = Site::own("h09");
    let unknown = format!("no-such-host.invalid:2181,{}", site.hosts());
    // Connecting to a broadcast address fails at once.
    let unreachable = format!("255.255.255.255:2181,{}", site.hosts());
    let refused = ZooKeeper::connect(&unknown, ms(4000), |_: WatchedEvent| ());
    assert_eq!(refused.err(), Some(ZkError::BadArguments));
    assert!(catch_unwind(AssertUnwindSafe(move || ask(&unreachable))).is_err(), "no panic");
}

/// Makes calls that have one right answer each, during calls of `add_auth`, until one is wrong.
fn h10() {
    let site = Site::own("h10");
    site.raw().create_all(&site.base).unwrap();
    let handle = Arc::new(connect(site.hosts(), ms(2000)));
    let (tell, told) = mpsc::channel();
    for asker in 0..4 {
        let (handle, base, tell) = (Arc::clone(&handle), site.base.clone(), tell.clone());
        thread::spawn(move || {
            for number in 0.. {
                let path = format!("{base}/{asker}-{number}");
                // The crate may also panic, because it cannot read a wrong reply.
                let wrong = catch_unwind(AssertUnwindSafe(|| {
                    let made = handle.create(&path, vec![], open(), CreateMode::Ephemeral);
                    made.is_ok_and(|made| made != path)
                        || handle.exists("/not/there", false).is_ok_and(|found| found.is_some())
                        || handle.delete("/not/there", None).is_ok()
                }));
                if wrong.is_ok_and(|wrong| wrong) {
                    let _ = tell.send(());
                }
            }
        });
    }
    let end = Instant::now() + LONG;
    while told.try_recv().is_err() {
        assert!(Instant::now() < end, "all answers were right");
        let _ = handle.add_auth("digest", b"user:password".to_vec());
    }
}

fn h11() {
    let site = Site::own("h11");
    site.raw().create_all(&site.base).unwrap();
    let proxy = Proxy::start(site.server().addr());
    let handle = connect(&proxy.hosts(), ms(10_000));
    handle.add_auth("digest", b"user:password".to_vec()).unwrap();
    let own = format!("{}/own", site.base);
    handle.create(&own, vec![], Acl::creator_all().clone(), CreateMode::Ephemeral).unwrap();
    handle.get_data(&own, false).unwrap();
    proxy.cut();
    // Not its own node: the servers now refuse to let the handle read that.
    eventually(LONG, "the handle to be back", || handle.exists(&site.base, false).is_ok());
    assert_eq!(handle.get_data(&own, false).err(), Some(ZkError::NoAuth));
}

fn h15() {
    let site = Site::own("h15");
    let (tell, told) = mpsc::channel();
    let watched = tell.clone();
    // An event of the session has no path.
    let watcher = move |event: WatchedEvent| watched.send(event.path.is_none()).unwrap();
    let handle = ZooKeeper::connect(site.hosts(), ms(10_000), watcher).unwrap();
    handle.exists("/", false).unwrap();
    handle.add_listener(move |_| tell.send(true).unwrap());
    assert!(told.recv_timeout(ms(300)).is_err(), "it was told");
}

fn h18() {
    let server = Server::builder().property("znode.container.checkIntervalMs=100");
    let site = Site::with("h18", &server);
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let handle = connect(site.hosts(), ms(4000));
    let path = format!("{}/container", site.base);
    handle.create(&path, vec![], open(), CreateMode::Container).unwrap();
    let child = format!("{path}/child");
    handle.create(&child, vec![], open(), CreateMode::Ephemeral).unwrap();
    handle.delete(&child, None).unwrap();
    // For comparison, zklock's lock node is a container, and is empty after the release.
    drop(mutex(site.client(), &site.base, "a").lock().unwrap());
    let lock = format!("{}/a", site.base);
    eventually(LONG, "the server to remove a lock node", || raw.exists(&lock).unwrap().is_none());
    assert!(raw.exists(&path).unwrap().is_some(), "it was removed");
}

/// The crate does not set TCP_NODELAY: the kernel delays a small request until the data that was
/// sent before is acknowledged.
fn h22() {
    let site = Site::own("h22");
    let proxy = Proxy::start(site.server().addr());
    let handle = connect(&proxy.hosts(), ms(10_000));
    let ask = |name: &str| drop(handle.get_children(&format!("/no-{name}"), false));
    let second_leaves_after = || {
        proxy.reset_counts();
        proxy.hold();
        thread::scope(|scope| {
            scope.spawn(|| ask("one"));
            let one = proxy.wait_for_request(opcode::GET_CHILDREN, LONG);
            let start = Instant::now();
            scope.spawn(|| ask("two"));
            let two = proxy.wait_for_requests(opcode::GET_CHILDREN, 2, LONG);
            let took = start.elapsed();
            proxy.release();
            assert!(one && two, "{:?}", proxy.requests());
            took
        })
    };
    let mut times: Vec<Duration> = (0..15).map(|_| second_leaves_after()).collect();
    times.sort();
    assert!(times[7] > ms(20), "it left after {:?}", times[7]);
}
