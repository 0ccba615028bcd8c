//! The hazards of the `zookeeper` crate that the link answers for: the same steps with a plain
//! handle of the crate, which shows the hazard, and through the link, which does not.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use zklock::{Acl, Client, ErrorKind, LossReason, SessionState};
use zookeeper::{CreateMode, WatchedEvent, ZkError, ZooKeeper};

use crate::support::logs::{Logs, logs};
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::Kind;
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    eventually, in_background, mutex, mutex_builder, processor_time, shared_hosts,
    skip_without_server, skip_without_zookeeper, threads_named, unique_base,
};

const LONG: Duration = Duration::from_secs(15);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A handle of the crate, connected.
fn plain(hosts: &str, timeout: Duration) -> ZooKeeper {
    let handle = ZooKeeper::connect(hosts, timeout, |_: WatchedEvent| ()).expect("a handle");
    handle.exists("/", false).expect("a connection");
    handle
}

fn open_acl() -> Vec<zookeeper::Acl> {
    zookeeper::Acl::open_unsafe().clone()
}

fn linked(hosts: &str, timeout: Duration) -> Client {
    Client::builder(hosts).session_timeout(timeout).connect().expect("a client")
}

/// Runs the calling test again in a process of its own, in a role: what a plain handle does to
/// its process does not touch this one, and what is measured there is nobody else's.
fn play(test: &str, role: &str, hosts: &str) -> Child {
    Command::new(env::current_exe().expect("this program"))
        .args([&format!("hazards::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .envs([("ZKLOCK_TEST_ROLE", role), ("ZKLOCK_TEST_ROLE_HOSTS", hosts)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child process")
}

/// The role that this process plays, and the servers it plays it with.
fn role() -> Option<(String, String)> {
    Some((env::var("ZKLOCK_TEST_ROLE").ok()?, env::var("ZKLOCK_TEST_ROLE_HOSTS").ok()?))
}

/// What a child says in a line that begins with `word`.
fn says(lines: &mut impl BufRead, word: &str) -> String {
    let mut line = String::new();
    while lines.read_line(&mut line).expect("a child that speaks") > 0 {
        // The test harness does not end its own line.
        if let Some((_, rest)) = line.split_once(word) {
            return rest.trim().to_owned();
        }
        line.clear();
    }
    panic!("the child ended without saying {word}");
}

#[test]
fn h01_watches_are_not_set_again() {
    skip_without_server!();
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
    eventually(LONG, "the plain handle to be back", || {
        matches!(handle.exists(&node, false), Ok(None))
    });
    assert!(told.recv_timeout(ms(300)).is_err(), "the crate has learnt to set watches again");
    drop(handle);

    let holder = site.client();
    let guard = mutex(&holder, &site.base, "a").lock().unwrap();
    let zk = linked(&proxy.hosts(), ms(10_000));
    let session = zk.session_id();
    let lock = mutex(&zk, &site.base, "a");
    proxy.reset_counts();
    let waiter = in_background(move || lock.lock().unwrap());
    assert!(proxy.wait_for_request(opcode::GET_DATA, LONG), "no watch was set");
    proxy.refuse();
    eventually(LONG, "the loss to be noticed", || zk.state() == SessionState::Suspended);
    drop(guard);
    eventually(LONG, "the predecessor to go", || site.children("a").len() == 1);
    proxy.release();
    let guard = waiter.recv_timeout(LONG).expect("a waiter that nobody woke");
    assert!(guard.is_held());
    assert_eq!(zk.session_id(), session);
    drop(guard);
    drop(raw);
    site.finish([holder, zk]);
}

#[test]
fn h02_nothing_comes_back_from_a_black_hole() {
    skip_without_server!();
    let site = Site::own("h02");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();

    let proxy = Proxy::start(site.server().addr());
    let handle = Arc::new(plain(&proxy.hosts(), ms(1200)));
    let states = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&states);
    handle.add_listener(move |state| seen.lock().unwrap().push(state));
    let own = format!("{}/own", site.base);
    handle.create(&own, vec![], open_acl(), CreateMode::Ephemeral).unwrap();
    proxy.black_hole();
    let (one, two) = (Arc::clone(&handle), Arc::clone(&handle));
    let call = in_background(move || one.exists("/", false).is_ok());
    let close = in_background(move || two.close().is_ok());
    eventually(LONG, "the server to expire it", || raw.exists(&own).unwrap().is_none());
    assert!(call.recv_timeout(ms(500)).is_err(), "a call came back");
    assert!(close.try_recv().is_err(), "closing came back");
    assert!(states.lock().unwrap().is_empty(), "the handle noticed");
    proxy.pass();
    call.recv_timeout(LONG).expect("a call back from the dead");
    close.recv_timeout(LONG).expect("closing, back from the dead");
    // Dropped while it reconnects, it would go on for ever.
    eventually(LONG, "the plain handle to be back, or dead", || {
        handle.exists("/", false).is_ok() || threads_named("io").is_empty()
    });
    drop(handle);

    let zk = Client::builder(&proxy.hosts())
        .session_timeout(ms(1200))
        .connect_timeout(ms(1500))
        .connect()
        .unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    proxy.black_hole();
    let other = lock.clone();
    let call = in_background(move || other.contenders());
    eventually(ms(3000), "the silence to be noticed", || zk.state() != SessionState::Connected);
    assert!(lock.try_lock_for(ms(100)).unwrap().is_none());
    let failed = call.recv_timeout(LONG).expect("a call that hangs").unwrap_err();
    assert!(failed.is_retryable(), "{failed}");
    let start = Stopwatch::start();
    drop(guard);
    zk.close();
    drop((lock, zk));
    assert!(start.took().within(ms(5000)), "{:?}", start.took());
    proxy.pass();
    drop(raw);
    site.finish([]);
}

#[test]
fn h03_h06_a_busy_handle_is_closed_for_ever_by_a_blip() {
    skip_without_server!();
    let site = Site::own("h03");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let proxy = Proxy::start(site.server().addr());
    let timeout = ms(2900);
    let handle = plain(&proxy.hosts(), timeout);
    let own = format!("{}/own", site.base);
    handle.create(&own, vec![], open_acl(), CreateMode::Ephemeral).unwrap();
    let zk = linked(&proxy.hosts(), timeout);
    let session = zk.session_id();
    assert!(session.is_some());
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let token = guard.fencing_token();

    let start = Instant::now();
    // The crate counts whole seconds.
    eventually(LONG, "a while of work", || {
        handle.exists("/", false).unwrap();
        guard.ensure_held().unwrap();
        start.elapsed() > ms(3100)
    });
    proxy.cut();
    guard.ensure_held().unwrap();
    assert_eq!((zk.session_id(), guard.fencing_token()), (session, token));
    eventually(LONG, "the plain handle to end", || handle.exists("/", false).is_err());
    for _ in 0..50 {
        assert_eq!(handle.exists("/", false).err(), Some(ZkError::ConnectionLoss));
    }
    assert!(raw.exists(&own).unwrap().is_some(), "the orphan blocks others");
    drop(handle);
    eventually(LONG, "the orphan to expire", || raw.exists(&own).unwrap().is_none());
    drop((guard, raw));
    site.finish([zk]);
}

#[test]
fn h03_h06_a_busy_client_goes_on_over_a_restart() {
    skip_without_server!();
    let site = Site::own("h06");
    let zk = linked(site.hosts(), ms(20_000));
    let session = zk.session_id();
    let guard = Arc::new(mutex(&zk, &site.base, "a").lock().unwrap());
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (held, until, counted) = (Arc::clone(&guard), Arc::clone(&stop), Arc::clone(&rounds));
    let busy = thread::spawn(move || {
        while !until.load(Ordering::SeqCst) {
            held.ensure_held().unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let work = |what| {
        let before = rounds.load(Ordering::SeqCst);
        eventually(LONG, what, || rounds.load(Ordering::SeqCst) > before + 20);
    };
    work("work before");
    site.server().restart();
    work("work after");
    stop.store(true, Ordering::SeqCst);
    busy.join().expect("no call fails");
    assert!(guard.is_held());
    assert_eq!(zk.session_id(), session);
    drop(guard);
    site.finish([zk]);
}

#[test]
fn h04_events_put_off_the_ping() {
    skip_without_server!();
    let site = Site::own("h04");
    let mut raw = site.raw();
    let watched: Vec<String> = (0..100).map(|n| format!("{}/w{n}", site.base)).collect();
    raw.create_all(&site.base).unwrap();
    for path in &watched {
        raw.create(path, b"", Kind::Persistent).unwrap();
    }
    let proxy = Proxy::start(site.server().addr());
    let zk = linked(&proxy.hosts(), ms(2400));
    let session = zk.session_id();
    let changes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&changes);
    zk.on_state_change(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();

    let handle = plain(site.hosts(), ms(2400));
    for path in &watched {
        handle.exists(path, true).unwrap();
    }
    let own = format!("{}/own", site.base);
    handle.create(&own, vec![], open_acl(), CreateMode::Ephemeral).unwrap();
    proxy.reset_counts();
    let start = Instant::now();
    let mut paths = watched.iter();
    while raw.exists(&own).unwrap().is_some() {
        let path = paths.next().expect("the plain handle still lives");
        raw.set_data(path, b"news").unwrap();
        raw.set_data(guard.path(), b"news").unwrap();
        thread::sleep(ms(150));
    }
    assert!(start.elapsed() > ms(2000), "it expired for another reason");

    eventually(LONG, "more than the session time-out to pass", || start.elapsed() > ms(3600));
    guard.ensure_held().unwrap();
    assert!(proxy.count(opcode::SYNC) >= 3, "{:?}", proxy.requests());
    assert_eq!((zk.session_id(), changes.load(Ordering::SeqCst)), (session, 0));
    drop(handle);
    drop((guard, raw));
    site.finish([zk]);
}

#[test]
fn h05_a_new_session_comes_silently() {
    skip_without_server!();
    let site = Site::own("h05");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let timeout = ms(2900);
    let proxy = Proxy::start(site.server().addr());
    let handle = plain(&proxy.hosts(), timeout);
    let own = format!("{}/own", site.base);
    handle.create(&own, vec![], open_acl(), CreateMode::Ephemeral).unwrap();
    let old = raw.exists(&own).unwrap().unwrap().ephemeral_owner;

    let zk = linked(&proxy.hosts(), timeout);
    let session = zk.session_id();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |why| tell.send(why).unwrap());

    proxy.black_hole();
    eventually(LONG, "the server to expire both", || {
        raw.exists(&own).unwrap().is_none() && raw.exists(guard.path()).unwrap().is_none()
    });
    proxy.pass();
    let mut errors = Vec::new();
    eventually(LONG, "the plain handle to go on as if nothing had happened", || {
        let made = handle.create(&own, vec![], open_acl(), CreateMode::Ephemeral);
        errors.extend(made.as_ref().err().copied());
        made.is_ok()
    });
    assert!(!errors.contains(&ZkError::SessionExpired), "the crate has learnt to tell");
    assert_ne!(raw.exists(&own).unwrap().unwrap().ephemeral_owner, old);

    let why = told.recv_timeout(LONG).unwrap();
    assert!(matches!(why, LossReason::SessionExpired | LossReason::LeaseExpired), "{why}");
    let again = lock.lock().unwrap();
    assert!(again.is_held());
    assert!(!guard.is_held(), "the new session came under an old guard");
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::SessionLost);
    assert_ne!(zk.session_id(), session);
    assert!(told.try_recv().is_err(), "told twice");
    drop((guard, again, lock));
    drop((handle, raw));
    site.finish([zk]);
}

#[test]
fn h07_a_server_that_is_down_keeps_a_processor_busy() {
    const WINDOW: Duration = Duration::from_secs(1);

    fn measure(logs: &Logs) {
        println!("READY");
        let _ = std::io::stdin().read(&mut [0]);
        logs.take();
        let time = processor_time();
        thread::sleep(WINDOW);
        let (time, records) = (processor_time() - time, logs.take().len());
        println!("USED {} {records}", time.as_millis());
        std::process::exit(0);
    }

    if let Some((role, hosts)) = role() {
        let logs = logs(LevelFilter::Info);
        if role == "plain" {
            let _handle = plain(&hosts, ms(20_000));
            measure(logs);
        } else {
            let zk = linked(&hosts, ms(20_000));
            let lock = mutex(&zk, unique_base("h07"), "a");
            let _guard = lock.lock().unwrap();
            let waiting = in_background(move || lock.try_lock_for(LONG));
            measure(logs);
            drop(waiting);
        }
    }

    skip_without_zookeeper!();
    let target = shared_hosts().parse().expect("one address");
    let proxy = Proxy::start(target);
    let used = |role| {
        let mut child =
            play("h07_a_server_that_is_down_keeps_a_processor_busy", role, &proxy.hosts());
        let mut output = BufReader::new(child.stdout.take().unwrap());
        says(&mut output, "READY");
        proxy.refuse();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let used = says(&mut output, "USED ");
        proxy.release();
        child.wait().unwrap();
        let (time, records) = used.split_once(' ').expect("two numbers");
        (time.parse::<u64>().unwrap(), records.parse::<u64>().unwrap())
    };
    let (plain, linked) = (used("plain"), used("linked"));
    println!(
        "milliseconds of processor time and log records in {WINDOW:?}: plain {plain:?}, linked {linked:?}"
    );
    assert!(plain.0 > linked.0 && plain.1 > 1_000, "the crate has learnt to wait: {plain:?}");
    assert!(linked.0 <= 50 && linked.1 < 20, "{linked:?}");
}

#[test]
fn h08_a_host_that_hangs_is_waited_for_for_ever() {
    skip_without_zookeeper!();
    let site = Site::shared("h08");
    // The kernel accepts, nobody answers.
    let hung = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let hosts = format!("{},{}", hung.local_addr().unwrap(), site.hosts());

    // The hosts come in random order.
    for _ in 0..4 {
        let start = Stopwatch::start();
        drop(linked(&hosts, ms(4000)));
        assert!(start.took().within(ms(5000)), "{:?}", start.took());
    }

    let call = in_background(move || plain_call(&hosts));
    // Longer than the crate's own connect time-out of two seconds.
    assert!(call.recv_timeout(ms(2500)).is_err(), "the crate has learnt to go on");
    drop(hung);
    call.recv_timeout(LONG).expect("the second host, once the first is gone");
    site.finish([]);
}

fn plain_call(hosts: &str) -> bool {
    let handle = ZooKeeper::connect(hosts, ms(4000), |_: WatchedEvent| ()).expect("a handle");
    handle.exists("/", false).is_ok()
}

#[test]
fn h09_one_bad_host_spoils_all_and_an_unreachable_one_panics() {
    skip_without_zookeeper!();
    let site = Site::shared("h09");
    let unknown = format!("no-such-host.invalid:2181,{}", site.hosts());
    // No TCP connection goes to a broadcast address, and the system says so at once.
    let unreachable = format!("255.255.255.255:2181,{}", site.hosts());

    let refused = ZooKeeper::connect(&unknown, ms(4000), |_: WatchedEvent| ());
    assert_eq!(refused.err(), Some(ZkError::BadArguments));
    let hosts = unreachable.clone();
    let panicked = catch_unwind(AssertUnwindSafe(move || plain_call(&hosts)));
    assert!(panicked.is_err(), "the crate has learnt not to panic");

    for hosts in [&unknown, &unreachable] {
        let zk = linked(hosts, ms(4000));
        let lock = mutex(&zk, &site.base, "a");
        drop(lock.lock().unwrap());
    }
    let error = Client::builder("255.255.255.255:2181")
        .connect_timeout(ms(300))
        .connect()
        .expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::Connect);
    site.finish([]);
}

/// Calls that have one right answer each, beside calls of `add_auth`, until a wrong one comes.
fn ask_beside_auth(hosts: &str) {
    let handle = Arc::new(plain(hosts, ms(2000)));
    let base = unique_base("h10");
    let mut made = String::new();
    for part in base.split('/').skip(1) {
        made = format!("{made}/{part}");
        let _ = handle.create(&made, vec![], open_acl(), CreateMode::Persistent);
    }
    for asker in 0..4 {
        let (handle, base) = (Arc::clone(&handle), base.clone());
        thread::spawn(move || {
            for number in 0.. {
                let path = format!("{base}/{asker}-{number}");
                // A wrong answer may also be one that the crate cannot read.
                let wrong = catch_unwind(AssertUnwindSafe(|| {
                    let made = handle.create(&path, vec![], open_acl(), CreateMode::Ephemeral);
                    let other = made.ok().filter(|made| *made != path);
                    other
                        .map(|other| format!("create gave {other}"))
                        .or_else(|| {
                            let found = handle.exists("/not/there", false).ok().flatten();
                            found.map(|_| "exists found nothing".to_owned())
                        })
                        .or_else(|| {
                            let deleted = handle.delete("/not/there", None);
                            deleted.is_ok().then(|| "delete deleted nothing".to_owned())
                        })
                }));
                if let Ok(Some(what)) = wrong {
                    println!("WRONG {what}");
                    std::process::exit(0);
                }
            }
        });
    }
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        let _ = handle.add_auth("digest", b"user:password".to_vec());
    }
    println!("WRONG never");
    std::process::exit(0);
}

#[test]
fn h10_auth_beside_other_calls_mixes_up_their_answers() {
    if let Some((_, hosts)) = role() {
        ask_beside_auth(&hosts);
    }
    skip_without_server!();
    let site = Site::own("h10");
    let mut child =
        play("h10_auth_beside_other_calls_mixes_up_their_answers", "plain", site.hosts());
    let wrong = says(&mut BufReader::new(child.stdout.take().unwrap()), "WRONG ");
    child.wait().unwrap();
    assert_ne!(wrong, "never", "the crate has learnt to look at its answers");

    let proxy = Proxy::start(site.server().addr());
    let zk = Client::builder(&proxy.hosts())
        .session_timeout(ms(10_000))
        .auth("digest", b"user:password")
        .connect()
        .unwrap();
    let session = zk.session_id();
    let stop = Arc::new(AtomicBool::new(false));
    let askers: Vec<_> = (0..4)
        .map(|asker| {
            let name = format!("n{asker}");
            let lock = mutex_builder(&zk, &site.base, &name)
                .data(name.clone())
                .acl(Acl::creator_only())
                .build();
            let (stop, node) = (Arc::clone(&stop), format!("{}/{name}/", site.base));
            thread::spawn(move || {
                let (mut rounds, mut last) = (0, None);
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().unwrap();
                    assert!(guard.path().starts_with(&node), "{:?}", guard.path());
                    let contenders = lock.contenders().unwrap();
                    let [own] = &contenders[..] else { panic!("{contenders:?}") };
                    assert_eq!((own.path.as_str(), own.label()), (guard.path(), name.clone()));
                    assert_eq!(Some(own.session), session);
                    let token = Some(guard.fencing_token());
                    assert!(token > last, "{token:?} after {last:?}");
                    last = token;
                    guard.unlock().unwrap();
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    for _ in 0..8 {
        let before = (proxy.connections(), proxy.count(opcode::CREATE));
        proxy.cut();
        eventually(LONG, "work on the next connection", || {
            proxy.connections() > before.0 && proxy.count(opcode::CREATE) > before.1 + 8
        });
    }
    stop.store(true, Ordering::SeqCst);
    for asker in askers {
        assert!(asker.join().expect("nothing but right answers") > 2);
    }
    assert_eq!(zk.session_id(), session);
    site.finish([zk]);
}

#[test]
fn h11_auth_is_forgotten_with_the_connection() {
    skip_without_server!();
    let site = Site::own("h11");
    site.raw().create_all(&site.base).unwrap();
    let proxy = Proxy::start(site.server().addr());

    let handle = plain(&proxy.hosts(), ms(10_000));
    handle.add_auth("digest", b"user:password".to_vec()).unwrap();
    let own = format!("{}/own", site.base);
    let acl = zookeeper::Acl::creator_all().clone();
    handle.create(&own, vec![], acl, CreateMode::Ephemeral).unwrap();
    handle.get_data(&own, false).unwrap();
    proxy.cut();
    // Not by its own node, of which a server may show it nothing now.
    eventually(LONG, "the plain handle to be back", || handle.exists(&site.base, false).is_ok());
    assert_eq!(handle.get_data(&own, false).err(), Some(ZkError::NoAuth));
    drop(handle);

    let zk = Client::builder(&proxy.hosts())
        .session_timeout(ms(10_000))
        .auth("digest", b"user:password")
        .connect()
        .unwrap();
    let session = zk.session_id();
    let lock = mutex_builder(&zk, &site.base, "a").acl(Acl::creator_only()).build();
    let guard = lock.lock().unwrap();
    proxy.cut();
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
    assert_eq!(lock.contenders().unwrap(), []);
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(zk.session_id(), session);
    drop(lock);
    site.finish([zk]);
}

#[test]
fn h15_the_first_state_is_missed() {
    skip_without_server!();
    let site = Site::own("h15");
    let (tell, told) = mpsc::channel();
    let watched = tell.clone();
    // An event of the session would have no path.
    let watcher = move |event: WatchedEvent| watched.send(event.path.is_none()).unwrap();
    let handle = ZooKeeper::connect(site.hosts(), ms(10_000), watcher).unwrap();
    handle.exists("/", false).unwrap();
    handle.add_listener(move |_| tell.send(true).unwrap());
    assert!(told.recv_timeout(ms(300)).is_err(), "the crate has learnt to tell of the past");
    drop(handle);

    let proxy = Proxy::start(site.server().addr());
    for _ in 0..20 {
        let zk = linked(&proxy.hosts(), ms(10_000));
        assert_eq!(zk.state(), SessionState::Connected);
    }
    let zk = linked(&proxy.hosts(), ms(10_000));
    let (tell, told) = mpsc::channel();
    zk.on_state_change(move |state| tell.send(state).unwrap());
    proxy.cut();
    let states = [told.recv_timeout(LONG), told.recv_timeout(LONG)];
    assert_eq!(states, [Ok(SessionState::Suspended), Ok(SessionState::Connected)]);
    zk.close();
    assert_eq!(told.recv_timeout(LONG), Ok(SessionState::Closed));
    site.finish([zk]);
}

#[test]
fn h18_a_container_is_none() {
    skip_without_server!();
    let server = Server::builder().property("znode.container.checkIntervalMs=100");
    let site = Site::with("h18", &server);
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();

    let handle = plain(site.hosts(), ms(4000));
    let fake = format!("{}/fake", site.base);
    handle.create(&fake, vec![], open_acl(), CreateMode::Container).unwrap();
    assert_eq!(raw.exists(&fake).unwrap().unwrap().ephemeral_owner, 0);
    let child = format!("{fake}/child");
    handle.create(&child, vec![], open_acl(), CreateMode::Ephemeral).unwrap();
    handle.delete(&child, None).unwrap();
    drop(handle);

    let proxy = Proxy::start(site.server().addr());
    let zk = linked(&proxy.hosts(), ms(4000));
    let lock = mutex(&zk, &site.base, "a");
    let node = format!("{}/a", site.base);
    let guard = lock.lock().unwrap();
    assert_eq!(proxy.count(opcode::CREATE_CONTAINER), 1);
    drop(guard);
    eventually(LONG, "the server to remove the lock node", || raw.exists(&node).unwrap().is_none());
    assert!(raw.exists(&fake).unwrap().is_some(), "the crate has learnt to make containers");
    drop(lock.lock().unwrap());
    drop((lock, raw));
    site.finish([zk]);
}

/// How long a second request takes to leave while the first is unanswered; the median.
fn second_leaves_after(proxy: &Proxy, ask: &(impl Fn(&str) + Sync)) -> Duration {
    let mut times: Vec<Duration> = (0..15)
        .map(|_| {
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
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// The crate leaves TCP_NODELAY unset: the kernel keeps a small request back until what was
/// sent before is acknowledged.
#[test]
fn h22_a_second_request_is_held_back_unless_it_leaves_on_time() {
    skip_without_zookeeper!();
    let site = Site::shared("h22");
    let proxy = Proxy::start(site.hosts().parse().expect("one address"));

    let handle = plain(&proxy.hosts(), ms(10_000));
    let plain = second_leaves_after(&proxy, &|name| {
        let _ = handle.get_children(&format!("/no-{name}"), false);
    });
    drop(handle);

    let zk = linked(&proxy.hosts(), ms(10_000));
    let linked = second_leaves_after(&proxy, &|name| {
        mutex(&zk, &site.base, name).contenders().unwrap();
    });
    println!("a second request leaves after {plain:?} (plain), {linked:?} (linked)");
    assert!(plain > 4 * linked, "plain {plain:?}, linked {linked:?}");
    site.finish([zk]);
}
