use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use log::LevelFilter;
use zklock::{Acl, Client, Error, ErrorKind, Group, LossReason, SessionState};

use crate::support::logs::logs;
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::NO_AUTH;
use crate::support::server::{Server, free_port};
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    eventually, mutex, skip_before, skip_unless_alone, skip_without_server, skip_without_zookeeper,
    strict, threads_named, waiting,
};

const LONG: Duration = Duration::from_secs(15);
/// How late an answer may be.
const OVERSHOOT: Duration = Duration::from_millis(100);

/// A server that is not ZooKeeper: it runs `serve` on each connection, on a thread of its own.
struct Impostor {
    address: SocketAddr,
    visits: Arc<AtomicUsize>,
    closing: mpsc::Sender<()>,
    acceptor: Option<thread::JoinHandle<()>>,
}

impl Impostor {
    fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Impostor {
        Impostor::at("127.0.0.1:0", serve).expect("a port")
    }

    fn at(
        address: &str,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> std::io::Result<Impostor> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let visits = Arc::new(AtomicUsize::new(0));
        let (closing, closed) = mpsc::channel::<()>();
        let (seen, serve) = (Arc::clone(&visits), Arc::new(serve));
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming() {
                if closed.try_recv().is_ok() {
                    return;
                }
                let Ok(stream) = stream else { continue };
                seen.fetch_add(1, Ordering::SeqCst);
                let serve = Arc::clone(&serve);
                thread::spawn(move || serve(stream));
            }
        });
        Ok(Impostor { address, visits, closing, acceptor: Some(acceptor) })
    }

    /// Passes everything on to a real server.
    fn forwarding(address: &str, target: SocketAddr) -> std::io::Result<Impostor> {
        Impostor::at(address, move |client| {
            let server = TcpStream::connect(target).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || pump(back.0, back.1));
            pump(client, server);
        })
    }

    fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = self.closing.send(());
        let _ = TcpStream::connect(self.address);
        let _ = self.acceptor.take().unwrap().join();
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Reads until the other side closes the connection.
fn keep_silent(mut stream: TcpStream) {
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

fn host_and_port(hosts: &str) -> (&str, &str) {
    hosts.rsplit_once(':').unwrap()
}

fn works(zk: &Client, site: &Site) {
    let guard = mutex(zk, &site.base, "works").lock().unwrap();
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
}

fn refused(hosts: &str) -> Error {
    Client::connect(hosts).err().unwrap_or_else(|| panic!("{hosts:?} was accepted"))
}

// ----- connect strings

#[test]
fn malformed_connect_strings_name_the_offending_part() {
    let cases = [
        ("", "no host"),
        ("   ", "no host"),
        ("/app", "no host"),
        ("zk1:2181,,zk2", "between commas"),
        ("zk1,", "between commas"),
        (":2181", "\":2181\""),
        ("zk1:0", "\"zk1:0\""),
        ("zk1:65536", "\"zk1:65536\""),
        ("zk1:+1", "\"zk1:+1\""),
        ("zk1:", "\"zk1:\""),
        ("zk1:port,zk2", "\"zk1:port\""),
        ("zk1,zk 2", "\"zk 2\""),
        ("zk1,zk2!,zk3", "\"zk2!\""),
        ("::1:2181", "[::1]:2181"),
        ("[::1", "\"[::1\""),
        ("[::1]2181", "\"[::1]2181\""),
        ("[fe80::1%eth0]:2181", "zone"),
        ("[zk1]:2181", "\"zk1\""),
        ("zk1/app/", "chroot"),
        ("zk1/app,zk2/app", "chroot"),
        ("zk1/app//x", "chroot"),
        ("zk1/app/../x", "chroot"),
        ("zk1/a\0b", "chroot"),
    ];
    for (hosts, part) in cases {
        let error = refused(hosts);
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{hosts:?}: {error}");
        assert!(error.to_string().contains(part), "{hosts:?}: {error}");
        assert!(!error.is_retryable());
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let builder = || Client::builder("127.0.0.1:1");
    let cases = [
        ("no session", builder().session_timeout(Duration::ZERO)),
        ("too short a session", builder().session_timeout(Duration::from_micros(999))),
        ("too long a session", builder().session_timeout(Duration::from_millis(1 << 31))),
        ("an endless session", builder().session_timeout(Duration::MAX)),
        ("no time to connect", builder().connect_timeout(Duration::ZERO)),
        ("no scheme", builder().auth("", b"user:password")),
        ("no scheme's name", builder().auth("dig\0est", b"user:password")),
        ("too long credentials", builder().auth("digest", vec![b'x'; 65 * 1024])),
    ];
    for (what, builder) in cases {
        let error = builder.connect().expect_err(what);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{what}: {error}");
    }
    // A connect timeout of any length is valid: other limits may be shorter.
    let error = builder().connect_timeout(Duration::from_millis(50)).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect);
}

#[test]
fn several_hosts_of_which_one_serves() {
    skip_without_zookeeper!();
    let site = Site::shared("hosts");
    let dead = free_port();
    let list = format!(" 127.0.0.1:{dead} , {} ,127.0.0.1:{dead}", site.hosts());
    let zk = Client::connect(&list).unwrap();
    works(&zk, &site);
    site.finish([zk]);
}

#[test]
fn a_chroot_goes_before_every_path_and_is_made() {
    skip_without_zookeeper!();
    let site = Site::shared("chroot");
    let zk = Client::connect(&format!("{}{}/root", site.hosts(), site.base)).unwrap();
    let lock = mutex(&zk, "/locks", "a");
    let guard = lock.lock().unwrap();
    assert!(guard.path().starts_with("/locks/a/"), "{}", guard.path());
    assert_eq!(lock.contenders().unwrap()[0].path, guard.path());
    let whole = format!("{}/root{}", site.base, guard.path());
    assert!(site.raw().exists(&whole).unwrap().is_some());
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();

    let top = mutex(&zk, "/", "top").lock().unwrap();
    assert_eq!(site.children("root/top").len(), 1);
    drop((top, lock));
    // A single slash is not a chroot.
    let plain = Client::connect(&format!("{}/", site.hosts())).unwrap();
    works(&plain, &site);
    site.finish([zk, plain]);
}

#[test]
fn an_ipv6_address_is_written_in_brackets() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("ipv6");
    let Ok(forward) = Impostor::forwarding("[::1]:0", site.server().addr()) else {
        println!("SKIPPED: no IPv6 loopback here");
        return;
    };
    let hosts = forward.address.to_string();
    assert!(hosts.starts_with("[::1]:"), "{hosts}");
    let zk = Client::connect(&hosts).unwrap();
    works(&zk, &site);
    assert_eq!(forward.visits(), 1);
    site.finish([zk]);
}

#[test]
fn the_default_port_is_2181() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("port");
    // An address of the loopback network that is hardly ever used.
    let Ok(forward) = Impostor::forwarding("127.77.21.81:2181", site.server().addr()) else {
        println!("SKIPPED: port 2181 is taken on every address");
        return;
    };
    let zk = Client::connect("127.77.21.81").unwrap();
    works(&zk, &site);
    assert_eq!(forward.visits(), 1);
    site.finish([zk]);
}

#[test]
fn names_are_resolved() {
    skip_without_zookeeper!();
    let site = Site::shared("names");
    let (_, port) = host_and_port(site.hosts());
    if site.hosts() != format!("127.0.0.1:{port}") {
        println!("SKIPPED: the given server is elsewhere");
        return;
    }
    // `localhost` may also be [::1], where nothing listens.
    let zk = Client::connect(&format!("localhost:{port}")).unwrap();
    works(&zk, &site);
    site.finish([zk]);
}

#[test]
fn an_unknown_host_among_good_ones_is_only_a_warning() {
    skip_without_zookeeper!();
    skip_unless_alone!();
    let logs = logs(LevelFilter::Trace);
    let site = Site::shared("unknown");
    let zk = Client::connect(&format!("nowhere.invalid:2181,{}", site.hosts())).unwrap();
    works(&zk, &site);
    eventually(LONG, "the warning", || {
        logs.warnings().iter().any(|warning| warning.contains("nowhere.invalid:2181"))
    });
    site.finish([zk]);
}

#[test]
fn hosts_that_are_all_unknown_fail_on_time() {
    let limit = Duration::from_millis(700);
    let started = Stopwatch::start();
    let hosts = "nowhere.invalid,neither.invalid:2182";
    let error = Client::builder(hosts).connect_timeout(limit).connect().unwrap_err();
    let took = started.took();
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    assert!(error.is_retryable());
    assert!(error.to_string().contains("nowhere.invalid"), "{error}");
    assert!(took.within(limit + OVERSHOOT), "{took:?}");
}

#[test]
fn nothing_listening_is_a_connect_error_that_names_the_address_on_time() {
    let address = format!("127.0.0.1:{}", free_port());
    for limit in [1, 50, 600].map(Duration::from_millis) {
        let started = Stopwatch::start();
        let error = Client::builder(&address).connect_timeout(limit).connect().unwrap_err();
        let took = started.took();
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        assert!(error.to_string().contains(&address), "{limit:?}: {error}");
        assert!(took.within(limit + OVERSHOOT), "{limit:?}: {took:?}");
        assert!(took.at_least(limit), "{limit:?}: gave up after {took:?}");
    }
}

#[test]
fn a_silent_host_alone_is_a_connect_error_that_names_it_on_time() {
    let silent = Impostor::new(keep_silent);
    let address = silent.address.to_string();
    for limit in [300, 1500].map(Duration::from_millis) {
        let started = Stopwatch::start();
        let error = Client::builder(&address).connect_timeout(limit).connect().unwrap_err();
        let took = started.took();
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        assert!(error.to_string().contains(&address), "{limit:?}: {error}");
        assert!(took.within(limit + OVERSHOOT), "{limit:?}: {took:?}");
    }
}

#[test]
fn a_silent_host_delays_connecting_but_little() {
    skip_without_zookeeper!();
    let site = Site::shared("silent");
    let silent = Impostor::new(keep_silent);
    let list = format!("{},{}", silent.address, site.hosts());
    let mut clients = Vec::new();
    // Hosts are tried in random order.
    while silent.visits() < 2 {
        assert!(clients.len() < 100, "the hosts are not shuffled");
        let started = Stopwatch::start();
        let builder = Client::builder(&list).session_timeout(Duration::from_secs(4));
        clients.push(builder.connect().unwrap());
        let took = started.took();
        assert!(took.within(Duration::from_secs(2)), "{took:?}");
    }
    works(&clients[0], &site);
    site.finish(clients);
}

#[test]
fn hosts_that_are_not_zookeeper_are_passed_over() {
    skip_without_zookeeper!();
    let site = Site::shared("impostors");
    let says = |bytes: &[u8]| {
        let bytes = bytes.to_vec();
        Impostor::new(move |mut stream: TcpStream| {
            let _ = stream.read(&mut [0; 256]);
            let _ = stream.write_all(&bytes);
            keep_silent(stream);
        })
    };
    let mut absurd = [0; 40];
    absurd[3] = 36;
    absurd[10] = 16; // a timeout
    absurd[19] = 7; // a session
    absurd[20] = 0x7f; // the length of its password
    let impostors = [
        ("closes", Impostor::new(drop)),
        ("answers HTTP", says(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")),
        ("says 2 GiB", says(b"\x7f\xff\xff\xff")),
        ("says a negative length", says(b"\xff\xff\xff\xff")),
        ("says nothing in a frame", says(b"\0\0\0\0")),
        ("sends a short answer", says(b"\0\0\0\x10\0\0\0\0\0\0\x10\0")),
        ("sends an answer cut short", says(&[0, 0, 0, 0x25, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0])),
        ("sends an absurd password", says(&absurd)),
    ];
    let mut clients = Vec::new();
    for (what, impostor) in &impostors {
        let list = format!("{},{}", impostor.address, site.hosts());
        let mut tries = 0;
        while impostor.visits() == 0 {
            tries += 1;
            assert!(tries < 100, "{what}: the hosts are not shuffled");
            let started = Stopwatch::start();
            let builder = Client::builder(&list).session_timeout(Duration::from_secs(4));
            let zk = builder.connect().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(started.took().within(Duration::from_secs(3)), "{what}: {:?}", started.took());
            if impostor.visits() > 0 {
                works(&zk, &site);
            }
            clients.push(zk);
        }
        let alone = Client::builder(&impostor.address.to_string());
        let error = alone.connect_timeout(Duration::from_millis(400)).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect, "{what}: {error}");
        assert!(error.to_string().contains(&impostor.address.to_string()), "{what}: {error}");
    }
    site.finish(clients);
}

// ----- sessions

#[test]
fn the_session_timeout_is_the_one_that_the_server_grants() {
    skip_without_server!();
    let limits = Server::builder().min_session(400).max_session(5000);
    let site = Site::with("granted", &limits);
    let granted = |asked: u64| {
        let builder = Client::builder(site.hosts());
        let zk = builder.session_timeout(Duration::from_millis(asked)).connect().unwrap();
        zk.session_timeout().unwrap().as_millis()
    };
    assert_eq!(granted(1), 400);
    assert_eq!(granted(1234), 1234);
    assert_eq!(granted(600_000), 5000);
    assert_eq!(granted(i32::MAX as u64), 5000);
    let default = Client::connect(site.hosts()).unwrap();
    assert_eq!(default.session_timeout(), Some(Duration::from_secs(5)));
    default.close();
    assert_eq!(default.session_timeout(), None);
    assert_eq!(Client::builder(site.hosts()).lazy().unwrap().session_timeout(), None);
    site.finish([default]);
    // More than the client trusts its session for.
    let site = Site::with("granted-more", &Server::builder().min_session(50_000));
    let zk = Client::connect(site.hosts()).unwrap();
    assert_eq!(zk.session_timeout(), Some(Duration::from_secs(50)));
    site.finish([zk]);
}

#[test]
fn a_session_timeout_below_the_round_trip_is_said_and_opens_no_storm_of_sessions() {
    skip_without_server!();
    let site = Site::with("stillborn", &Server::builder().min_session(1));
    let proxy = Proxy::start(site.server().addr());
    proxy.delay_replies(Duration::from_millis(300));
    let builder = Client::builder(&proxy.hosts()).session_timeout(Duration::from_millis(100));
    let error = builder.connect_timeout(Duration::from_secs(5)).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect);
    let text = error.to_string();
    assert!(text.contains("session timeout of 100ms is below the round trip"), "{text}");
    assert!((1..=8).contains(&proxy.connections()), "{} sessions", proxy.connections());
    site.finish([]);
}

#[test]
fn a_forked_process_can_neither_use_nor_harm_the_sessions_of_its_parent() {
    skip_unless_alone!();
    skip_without_server!();
    let site = Site::own("fork");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let lost = guard.lost();
    let unlocked = mutex(&zk, &site.base, "c").lock().unwrap();
    let member = Group::new(&zk, &site.base, "group").join("me", "").unwrap();
    let mut members = Group::new(&zk, &site.base, "group").observe();
    assert!(members.latest().unwrap().len() == 1 && members.is_current());
    let child = match fork::fork().unwrap() {
        fork::Fork::Child => {
            let is_closed = |error: Option<Error>| {
                error.is_some_and(|error| {
                    error.kind() == ErrorKind::Closed && error.to_string().contains("fork")
                })
            };
            let is_as_promised = !guard.is_held()
                && lost.reason() == Some(LossReason::ClientClosed)
                && matches!(lost.wait_within(LONG), Some(Err(LossReason::ClientClosed)))
                && is_closed(lock.lock().err())
                && is_closed(mutex(&zk, &site.base, "b").try_lock_for(LONG).err())
                && is_closed(lock.contenders().err())
                && is_closed(unlocked.unlock().err())
                && !member.is_member()
                && is_closed(member.leave().err())
                && !members.is_current()
                && is_closed(members.latest().err())
                && is_closed(members.next_within(LONG).err())
                && is_closed(members.next().and_then(Result::err))
                && is_closed(zk.wait_connected(LONG).err())
                && zk.state() == SessionState::Closed;
            drop((guard, lock, zk));
            std::process::exit(if is_as_promised { 0 } else { 1 });
        }
        fork::Fork::Parent(child) => rustix::process::Pid::from_raw(child).unwrap(),
    };
    let mut ended = None;
    eventually(LONG, "the child's end", || {
        ended =
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::NOHANG).unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().1.exit_status(), Some(0));
    guard.ensure_held().unwrap();
    unlocked.ensure_held().unwrap();
    assert!(member.is_member() && members.is_current());
    drop(members);
    for path in [guard.path(), unlocked.path(), member.path()] {
        assert!(site.raw().exists(path).unwrap().is_some(), "{path}");
    }
    let mut children = site.raw().get_children(&site.base).unwrap();
    children.sort();
    assert_eq!(children, ["a", "c", "group"]);
    drop((guard, unlocked, member, lock));
    site.finish([zk]);
}

/// The client warns although the tick is short enough here, since it cannot know the tick.
#[test]
fn a_session_timeout_below_two_usual_ticks_is_warned_of_once() {
    skip_unless_alone!();
    skip_without_server!();
    let logs = logs(LevelFilter::Warn);
    let site = Site::own("short");
    let connect = |timeout| {
        Client::builder(site.hosts()).session_timeout(Duration::from_secs(timeout)).connect()
    };
    let warnings = || logs.warnings().iter().filter(|one| one.contains("tickTime")).count();
    let long_enough = connect(4).unwrap();
    assert_eq!(warnings(), 0, "{:?}", logs.warnings());
    let clients = [connect(3).unwrap(), connect(2).unwrap()];
    eventually(LONG, "the warning", || warnings() > 0);
    // Lines are written in their order, and a loss comes after all of this.
    drop(mutex(&clients[1], &site.base, "a").lock().unwrap());
    site.server().restart();
    eventually(LONG, "a later line", || {
        logs.warnings().iter().any(|one| one.contains("lost its connection"))
    });
    assert_eq!(warnings(), 1, "{:?}", logs.warnings());
    site.finish(clients.into_iter().chain([long_enough]));
}

/// A client behind a proxy, connected to the test's own server.
fn proxied(test: &str, timeout: Duration) -> (Site, Proxy, Client) {
    let site = Site::own(test);
    let proxy = Proxy::start(site.server().addr());
    let zk = Client::builder(&proxy.hosts()).session_timeout(timeout).connect().unwrap();
    (site, proxy, zk)
}

fn sessions(site: &Site) -> u64 {
    site.server().sessions()
}

#[test]
fn states_are_told_in_their_order() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    use SessionState::*;
    let (site, proxy, zk) = proxied("states", Duration::from_secs(3));
    assert_eq!(zk.state(), Connected);
    let (tell, told) = mpsc::channel();
    let client = zk.clone();
    zk.on_state_change(move |state| tell.send((state, client.state())).unwrap()).detach();
    // A second listener gets the same states, and a slow one misses none.
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let (release, released) = mpsc::channel::<()>();
    zk.on_state_change(move |state| {
        let _ = released.recv();
        hears.lock().unwrap().push(state);
    })
    .detach();
    let next = || told.recv_timeout(LONG).expect("a change of state");

    proxy.refuse();
    assert_eq!(next(), (Suspended, Suspended));
    assert_eq!(zk.state(), Suspended);
    proxy.pass();
    assert_eq!(next().0, Connected);
    proxy.refuse();
    assert_eq!(next().0, Suspended);
    assert_eq!(next(), (Lost, Lost));
    assert_eq!(zk.session_id(), None);
    proxy.pass();
    works(&zk, &site);
    assert_eq!(next().0, Connected);
    zk.close();
    assert_eq!(next(), (Closed, Closed));
    drop(release);
    let all = [Suspended, Connected, Suspended, Lost, Connected, Closed];
    eventually(LONG, "the slow listener", || heard.lock().unwrap().len() == all.len());
    assert_eq!(*heard.lock().unwrap(), all);
    assert!(told.try_recv().is_err());
    site.finish([zk]);
}

#[test]
fn a_dropped_subscription_ends_and_drops_what_its_callback_owns() {
    skip_without_server!();
    let (site, proxy, zk) = proxied("subscription", Duration::from_secs(30));
    let (tell, told) = mpsc::channel();
    let (owned, kept) = (zk.clone(), tell.clone());
    let subscription = zk.on_state_change(move |state| tell.send((state, owned.state())).unwrap());
    // One that goes on in spite of a panic.
    let kept = zk.on_state_change(move |state| {
        kept.send((state, state)).unwrap();
        panic!("this callback panics");
    });
    proxy.refuse();
    let next = || told.recv_timeout(LONG).expect("a change of state").0;
    assert_eq!([next(), next()], [SessionState::Suspended; 2]);
    drop(subscription);
    proxy.pass();
    assert_eq!(next(), SessionState::Connected);
    drop(kept);
    // Both senders are gone.
    assert_eq!(told.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
    // Nor does a detached one keep the client, unless it owns one.
    zk.on_state_change(|_| {}).detach();
    let before = sessions(&site);
    drop(zk);
    eventually(LONG, "the session to be closed", || sessions(&site) < before);
    drop(proxy);
    site.finish([]);
}

#[test]
fn closing_ends_everything_at_once() {
    skip_without_server!();
    let site = Site::own("close");
    let zk = site.client();
    let lock = strict(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let lost = guard.lost();
    let waiters: Vec<_> = (0..3)
        .map(|which| {
            let lock = lock.clone();
            thread::spawn(move || match which {
                0 => lock.lock().map(Some),
                1 => lock.try_lock_for(LONG),
                _ => lock.lock_within(&zklock::Cancel::new()),
            })
        })
        .collect();
    // The holder's own node; for each waiter all nodes ahead, and its own.
    eventually(LONG, "the waiters", || zk.stats().watches == 1 + 2 + 3 + 4);
    assert_eq!(site.server().counter("zk_ephemerals_count"), 4);
    let started = Stopwatch::start();
    zk.close();
    let took = started.took();
    // Checked without waiting: when `close` returns, the server has ended the session.
    assert_eq!(site.server().counter("zk_ephemerals_count"), 0);
    assert_eq!(sessions(&site), 0);
    assert!(took.within(Duration::from_secs(1)), "{took:?}");
    assert_eq!(zk.state(), SessionState::Closed);
    assert_eq!(zk.session_id(), None);
    assert!(!guard.is_held());
    assert_eq!(lost.wait(), Err(LossReason::ClientClosed));
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
    assert!(started.took().within(Duration::from_secs(3)));
    zk.close();
    assert_eq!(zk.state(), SessionState::Closed);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.try_lock().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.contenders().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Closed);
    eventually(LONG, "the connection's end", || {
        site.server().counter("zk_num_alive_connections") <= 1
    });
    drop(lock);
    site.finish([zk]);
}

#[test]
fn closing_without_a_server_takes_a_second_at_most() {
    skip_without_server!();
    for outage in ["refused", "silent"] {
        let (site, proxy, zk) = proxied("close-outage", Duration::from_secs(3));
        let lock = mutex(&zk, &site.base, "a");
        let guard = lock.lock().unwrap();
        let waiter = waiting(move || lock.lock().map(drop));
        eventually(LONG, "the waiter", || zk.stats().watches == 2);
        if outage == "refused" {
            proxy.refuse()
        } else {
            proxy.black_hole()
        }
        let started = Stopwatch::start();
        zk.close();
        let took = started.took();
        assert!(took.within(Duration::from_millis(1500)), "{outage}: {took:?}");
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        drop(guard);
        proxy.pass();
        // The server expires what could not be closed.
        eventually(LONG, "the session's end", || sessions(&site) == 0);
        site.finish([zk]);
    }
}

#[test]
fn the_last_client_dropped_closes_the_session() {
    skip_without_server!();
    let site = Site::own("last");
    let zk = Client::builder(site.hosts()).session_timeout(Duration::from_secs(30)).connect();
    let zk = zk.unwrap();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let (other, lock) = (zk.clone(), mutex(&zk, &site.base, "a"));
    drop(zk);
    drop(lock);
    drop(other);
    // The guard keeps it open.
    guard.ensure_held().unwrap();
    assert_eq!(sessions(&site), 1);
    let started = Stopwatch::start();
    drop(guard);
    assert!(started.took().within(Duration::from_secs(1)), "{:?}", started.took());
    eventually(Duration::from_secs(1), "the session's end", || sessions(&site) == 0);

    let zk = site.client();
    let lock = mutex(zk, &site.base, "a");
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(sessions(&site), 1);
    drop(lock);
    eventually(Duration::from_secs(1), "the session's end", || sessions(&site) == 0);
    site.finish([]);
}

#[test]
fn a_lost_session_is_followed_by_one_new_one_for_all_callers() {
    skip_without_server!();
    const CALLERS: usize = 16;
    let (site, proxy, zk) = proxied("one", Duration::from_secs(3));
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let first = zk.session_id().unwrap();
    proxy.black_hole();
    assert_eq!(guard.lost().wait_within(LONG), Some(Err(LossReason::LeaseExpired)));
    proxy.pass();
    eventually(LONG, "the old session's end", || sessions(&site) == 0);
    eventually(LONG, "the old connection's end", || proxy.live_connections() == 0);
    assert_eq!(zk.state(), SessionState::Lost);

    let before = proxy.connections();
    let start = Barrier::new(CALLERS);
    let most = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                start.wait();
                let guard = lock.lock().unwrap();
                most.fetch_max(sessions(&site) as usize, Ordering::SeqCst);
                guard.unlock().unwrap();
            });
        }
    });
    assert_eq!(most.into_inner(), 1);
    assert_eq!(proxy.connections(), before + 1);
    assert_ne!(zk.session_id(), Some(first));
    assert_eq!(zk.state(), SessionState::Connected);
    drop((guard, lock));
    site.finish([zk]);
}

#[test]
fn callers_during_the_outage_share_the_new_session_too() {
    skip_without_server!();
    const CALLERS: usize = 16;
    let (site, proxy, zk) = proxied("one-outage", Duration::from_secs(3));
    let lock = mutex(&zk, &site.base, "a");
    works(&zk, &site);
    proxy.refuse();
    eventually(LONG, "the loss", || zk.state() == SessionState::Lost);
    let most = AtomicUsize::new(0);
    thread::scope(|scope| {
        let call = || {
            let guard = lock.lock().unwrap();
            most.fetch_max(sessions(&site) as usize, Ordering::SeqCst);
            guard.unlock().unwrap();
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
        eventually(LONG, "the old session's end", || sessions(&site) == 0);
        let before = proxy.connections();
        proxy.pass();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(most.load(Ordering::SeqCst), 1);
        // One connection for the new session, and at most one by which the old link learns that its
        // session is over.
        let made = proxy.connections() - before;
        assert!((1..=2).contains(&made), "{made} connections");
    });
    drop(lock);
    site.finish([zk]);
}

// ----- credentials

#[test]
fn creator_only_admits_whoever_has_the_credentials() {
    skip_without_zookeeper!();
    let site = Site::shared("creator");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let owner = site.builder().auth("digest", b"me:secret").connect().unwrap();
    let same = site.builder().auth("digest", b"me:secret").connect().unwrap();
    let other = site.builder().auth("digest", b"you:secret").connect().unwrap();
    let nobody = site.client();
    let node = format!("{}/a", site.base);
    let lock = |client: &Client| mutex(client, &site.base, "a").acl(Acl::creator_only());
    let guard = lock(&owner).lock().unwrap();
    guard.ensure_held().unwrap();
    assert_eq!(raw.get_children(&node).unwrap_err().code(), Some(NO_AUTH));
    assert!(lock(&same).try_lock().unwrap().is_none());
    assert_eq!(lock(&same).contenders().unwrap().len(), 1);
    for stranger in [&other, &nobody] {
        let plain = mutex(stranger, &site.base, "a");
        let errors = [
            (plain.lock().unwrap_err(), "CREATE"),
            (plain.try_lock().unwrap_err(), "CREATE"),
            (plain.try_lock_for(LONG).unwrap_err(), "CREATE"),
            (plain.contenders().unwrap_err(), "READ"),
        ];
        for (error, need) in errors {
            assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
            let text = error.to_string();
            assert!(text.contains(&node) && text.contains(need), "{text}");
            assert_eq!(error.path(), Some(node.as_str()));
            assert!(!error.is_retryable());
        }
    }
    guard.unlock().unwrap();
    lock(&same).lock().unwrap().unlock().unwrap();

    raw.add_auth("digest", b"me:secret").unwrap();
    assert!(raw.get_children(&node).unwrap().is_empty());
    raw.delete(&node).unwrap();
    site.finish([owner, same, other, nobody]);
}

#[test]
fn credentials_are_presented_again_after_a_reconnect() {
    skip_without_server!();
    let site = Site::own("again");
    let proxy = Proxy::start(site.server().addr());
    let builder = Client::builder(&proxy.hosts()).session_timeout(Duration::from_secs(4));
    let zk = builder.auth("digest", b"me:one").auth("digest", b"me:two").connect().unwrap();
    site.raw().create_all(&site.base).unwrap();
    let lock = mutex(&zk, &site.base, "a").acl(Acl::creator_only());
    for _ in 0..3 {
        let guard = lock.lock().unwrap();
        let before = proxy.connections();
        proxy.cut();
        eventually(LONG, "the next connection", || proxy.connections() > before);
        guard.ensure_held().unwrap();
        guard.unlock().unwrap();
    }
    assert!(proxy.count(opcode::AUTH) >= 8);
    let mut raw = site.raw();
    raw.add_auth("digest", b"me:two").unwrap();
    assert!(raw.get_children(&format!("{}/a", site.base)).unwrap().is_empty());
    raw.delete_recursive(&site.base).unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn an_unknown_scheme_is_refused_at_once() {
    skip_without_zookeeper!();
    let site = Site::shared("scheme");
    let started = Stopwatch::start();
    let error = site.builder().auth("nonsense", b"me:secret").connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    assert!(!error.is_retryable());
    assert!(!error.to_string().contains("secret"));
    assert!(started.took().within(Duration::from_secs(5)), "{:?}", started.took());
    site.finish([]);
}

/// Serves like a ZooKeeper that grants any session and refuses all credentials.
fn reject_credentials(mut stream: TcpStream) {
    let frame = |stream: &mut TcpStream| {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut body).map(|()| body)
    };
    let Ok(hello) = frame(&mut stream) else { return };
    let mut welcome = vec![0, 0, 0, 36, 0, 0, 0, 0];
    welcome.extend(&hello[12..16]); // the timeout asked for
    welcome.extend(&hello[16..24]); // the session
    welcome.extend([0, 0, 0, 16]);
    welcome.extend([0; 16]);
    let _ = stream.write_all(&welcome);
    if frame(&mut stream).is_ok() {
        let mut refusal = vec![0, 0, 0, 16];
        refusal.extend((-4i32).to_be_bytes());
        refusal.extend([0; 8]);
        refusal.extend((-115i32).to_be_bytes());
        let _ = stream.write_all(&refusal);
    }
}

#[test]
fn credentials_refused_later_end_the_session_and_are_not_tried_in_a_loop() {
    skip_without_server!();
    let site = Site::own("refused");
    let proxy = Proxy::start(site.server().addr());
    let builder = Client::builder(&proxy.hosts()).session_timeout(Duration::from_secs(2));
    let zk = builder.auth("digest", b"me:secret").connect().unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let theirs = lock.clone();
    let waiter = waiting(move || theirs.lock().map(drop));
    eventually(LONG, "the waiter", || zk.stats().watches == 2);

    let impostor = Impostor::new(reject_credentials);
    proxy.set_target(impostor.address);
    proxy.cut();
    assert_eq!(guard.lost().wait_within(LONG), Some(Err(LossReason::AuthFailed)));
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::AuthFailed);
    assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::AuthFailed);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::AuthFailed);
    assert_eq!(lock.try_lock_for(LONG).unwrap_err().kind(), ErrorKind::AuthFailed);
    // One connection for the old session and one to close it, one for each of the three calls that
    // tried to open a new one. On a busy machine, a handshake may be begun twice more.
    eventually(LONG, "the goodbye", || impostor.visits() >= 5);
    assert_eq!(zk.state(), SessionState::Lost);

    proxy.set_target(site.server().addr());
    works(&zk, &site);
    assert!(impostor.visits() <= 15, "{}", impostor.visits());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn credentials_are_neither_shown_nor_logged() {
    skip_without_server!();
    skip_unless_alone!();
    const SECRET: &str = "hunter-of-secrets";
    let logs = logs(LevelFilter::Trace);
    let site = Site::own("secret");
    let proxy = Proxy::start(site.server().addr());
    site.raw().create_all(&site.base).unwrap();
    let credentials = format!("me:{SECRET}");
    let builder = Client::builder(&proxy.hosts())
        .session_timeout(Duration::from_secs(3))
        .auth("digest", credentials.as_bytes());
    let mut shown = vec![format!("{builder:?} {builder:#?}")];
    let refused = builder.clone().auth("nonsense", credentials.as_bytes()).connect().unwrap_err();
    shown.push(format!("{refused} {refused:?}"));
    let zk = builder.connect().unwrap();
    let lock = mutex(&zk, &site.base, "a").acl(Acl::creator_only());
    let guard = lock.lock().unwrap();
    let lost = guard.lost();
    shown.push(format!("{zk:?} {zk:#?} {lock:?} {guard:?} {lost:?} {:?}", zk.stats()));
    proxy.cut();
    guard.ensure_held().unwrap();
    proxy.refuse();
    assert!(matches!(lost.wait_within(LONG), Some(Err(_))));
    proxy.pass();
    drop(guard);
    let guard = lock.lock().unwrap();
    shown.push(format!("{zk:?} {lock:?} {guard:?}"));
    drop((guard, lock));
    zk.close();
    let mut raw = site.raw();
    raw.add_auth("digest", credentials.as_bytes()).unwrap();
    raw.delete_recursive(&site.base).unwrap();
    site.finish([zk]);

    let bytes = format!("{:?}", SECRET.as_bytes());
    let bytes = bytes.trim_matches(['[', ']']);
    let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    let leaks = |text: &str| text.contains(SECRET) || text.contains(bytes) || text.contains(&hex);
    let logged = logs.entries();
    assert!(logged.iter().any(|entry| entry.target.starts_with("zklock")), "nothing was captured");
    for entry in logged {
        assert!(!leaks(&entry.to_string()), "{entry}");
    }
    for text in shown {
        assert!(!leaks(&text), "{text}");
    }
}

// ----- resources and limits

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn fifty_clients_leave_neither_threads_nor_descriptors() {
    skip_without_server!();
    skip_unless_alone!();
    let site = Site::own("fifty");
    let open = || {
        let clients: Vec<Client> = (0..10).map(|_| site.client()).collect();
        for zk in &clients {
            works(zk, &site);
        }
        for (number, zk) in clients.into_iter().enumerate() {
            if number % 2 == 0 {
                zk.close();
            }
        }
    };
    let quiet = || threads_named("zklock-").is_empty();
    open();
    eventually(LONG, "the first threads to end", quiet);
    let before = descriptors();
    for _ in 0..5 {
        open();
    }
    eventually(LONG, "the last threads to end", quiet);
    eventually(LONG, "the last descriptors to be closed", || descriptors() <= before);
    eventually(LONG, "the last session to end", || sessions(&site) == 0);
    site.finish([]);
}

/// A client has nothing but its connection: no other process on this machine can connect to it.
#[test]
fn a_client_has_one_thread_and_one_connection_and_listens_nowhere() {
    skip_without_zookeeper!();
    skip_unless_alone!();
    let site = Site::shared("possessions");
    let threads = || threads_named("").len();
    let before = (tcp_sockets(), threads());
    let zk = site.client();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let mut after = tcp_sockets();
    after.retain(|socket| !before.0.contains(socket));
    let [state] = &after.iter().map(|(_, state)| state.as_str()).collect::<Vec<_>>()[..] else {
        panic!("{after:?}");
    };
    assert_eq!(*state, "01", "established");
    eventually(LONG, "the threads that connected to end", || threads() == before.1 + 1);
    assert_eq!(threads_named("zklock-"), ["zklock-link"]);
    guard.unlock().unwrap();
    site.finish([zk]);
}

/// This process's TCP sockets: their inode numbers and the kernel's codes for their states.
fn tcp_sockets() -> Vec<(String, String)> {
    let own: Vec<String> = fs::read_dir("/proc/self/fd")
        .expect("a /proc file system")
        .filter_map(|entry| {
            fs::read_link(entry.ok()?.path()).ok()?.into_os_string().into_string().ok()
        })
        .collect();
    let tables = ["tcp", "tcp6"]
        .map(|table| fs::read_to_string(format!("/proc/self/net/{table}")).unwrap_or_default());
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (state, inode) = (*fields.get(3)?, *fields.get(9)?);
        let is_ours = own.contains(&format!("socket:[{inode}]"));
        is_ours.then(|| (inode.to_owned(), state.to_owned()))
    };
    tables.iter().flat_map(|table| table.lines()).filter_map(line).collect()
}

/// A child process with the link's socket could send requests in the session's name.
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

#[test]
fn failed_connects_leave_neither_threads_nor_descriptors() {
    skip_unless_alone!();
    let silent = Impostor::new(keep_silent);
    let hosts = format!("{},127.0.0.1:{},nowhere.invalid", silent.address, free_port());
    let fail = || {
        let builder = Client::builder(&hosts).connect_timeout(Duration::from_millis(20));
        assert_eq!(builder.connect().unwrap_err().kind(), ErrorKind::Connect);
    };
    let quiet = || threads_named("zklock-").is_empty();
    fail();
    eventually(LONG, "the first threads to end", quiet);
    let before = descriptors();
    for _ in 0..20 {
        fail();
    }
    eventually(LONG, "the last threads to end", quiet);
    eventually(LONG, "the last descriptors to be closed", || descriptors() <= before);
}

#[test]
fn looking_at_contenders_ends_on_time() {
    skip_without_server!();
    let site = Site::own("look");
    let limit = Duration::from_millis(500);
    let builder = site.builder().session_timeout(Duration::from_secs(20));
    let zk = builder.connect_timeout(limit).connect().unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    site.server().pause();
    let begun = Stopwatch::start();
    let error = lock.contenders().unwrap_err();
    let took = begun.took();
    site.server().resume();
    assert_eq!(error.kind(), ErrorKind::Connect);
    assert!(took.within(limit + OVERSHOOT), "it took {took:?}");
    assert_eq!(lock.contenders().unwrap().len(), 1);
    drop((guard, lock));
    site.finish([zk]);
}

/// In milliseconds: the tick that is stated, and for how long an outage is survived; the session timeout is
/// 10 s, and the servers tick every 200 ms.
#[test]
fn an_outage_limit_follows_from_the_tick_that_is_stated() {
    skip_without_server!();
    let site = Site::own("outage-limit");
    let builder = || site.builder().session_timeout(Duration::from_secs(10));
    let unstated = builder().connect().unwrap();
    assert_eq!(unstated.tick_time(), Some(Duration::from_secs(3)));
    let mut clients = vec![unstated];
    for (tick, limit) in [(3_000, 4_326), (2_000, 5_555), (200, 7_777)] {
        let stated = Duration::from_millis(tick);
        let zk = builder().tick_time(stated).connect().unwrap();
        assert_eq!(zk.tick_time(), Some(stated));
        assert_eq!(zk.outage_limit().unwrap().as_millis(), limit);
        clients.push(zk);
    }
    assert_eq!(clients[0].outage_limit(), clients[1].outage_limit());
    site.finish(clients);
}

#[test]
fn a_tick_that_is_too_long_for_the_session_timeout_is_no_outage() {
    skip_without_server!();
    let site = Site::own("too-long-a-tick");
    let timeout = Duration::from_secs(4);
    let zk = site.builder().session_timeout(timeout).tick_time(timeout).lazy().unwrap();
    let error = mutex(&zk, &site.base, "a").lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("tickTime is 4s, as is stated"), "{error}");
    assert!(!error.is_outage());
    drop(zk);
    site.finish([]);
}
