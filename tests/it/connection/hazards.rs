//! What the `zookeeper` crate's connection does wrong; the program in tests/peers/zookeeper-crate
//! shows each fault on a plain handle.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use zklock::{Acl, ErrorKind, LossReason, SessionState};

use super::{AMPLE, expect_states, losses, proxy, states, through};
use crate::support::logs::logs;
use crate::support::proxy::{Proxy, opcode};
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    connecting, eventually, got_nothing, in_background, mutex, processor_time, skip_before,
    skip_unless_alone, skip_without_server, skip_without_zookeeper, waiting,
};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn h01_a_watch_is_set_again_after_a_blip() {
    skip_without_server!();
    let site = Site::own("h01");
    let proxy = proxy(&site);
    let holder = site.client();
    let guard = mutex(&holder, &site.base, "a").lock().unwrap();
    let zk = through(&proxy, ms(10_000));
    let session = zk.session_id();
    let lock = mutex(&zk, &site.base, "a");
    proxy.reset_counts();
    let waiter = in_background(move || lock.lock().unwrap());
    assert!(proxy.wait_for_request(opcode::GET_DATA, AMPLE), "no watch was set");
    proxy.refuse();
    eventually(AMPLE, "the loss to be noticed", || zk.state() == SessionState::Suspended);
    drop(guard);
    eventually(AMPLE, "the predecessor to go", || site.children("a").len() == 1);
    proxy.release();
    let guard = waiter.recv_timeout(AMPLE).expect("the waiter is woken");
    assert!(guard.is_held());
    assert_eq!(zk.session_id(), session);
    drop(guard);
    site.finish([holder, zk]);
}

#[test]
fn h02_calls_come_back_from_a_black_hole() {
    skip_without_server!();
    let site = Site::own("h02");
    let proxy = proxy(&site);
    let zk = connecting(&proxy.hosts())
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
    assert!(got_nothing(lock.try_lock_for(ms(100))));
    let failed = call.recv_timeout(AMPLE).expect("the call does not hang").unwrap_err();
    assert!(failed.is_retryable(), "{failed}");
    let start = Stopwatch::start();
    drop(guard);
    zk.close();
    drop((lock, zk));
    assert!(start.took().within(ms(5000)), "{:?}", start.took());
    proxy.pass();
    site.finish([]);
}

#[test]
fn h03_h06_a_busy_session_goes_on_after_a_blip() {
    skip_without_server!();
    let site = Site::own("h03");
    let (proxy, zk) = site.proxied(ms(2900));
    let session = zk.session_id();
    assert!(session.is_some());
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let token = guard.fencing_token();
    let start = Instant::now();
    eventually(AMPLE, "a while of work", || {
        guard.ensure_held().unwrap();
        start.elapsed() > ms(3100)
    });
    proxy.cut();
    guard.ensure_held().unwrap();
    assert_eq!((zk.session_id(), guard.fencing_token()), (session, token));
    drop(guard);
    site.finish([zk]);
}

#[test]
fn h03_h06_a_busy_client_goes_on_over_a_restart() {
    skip_without_server!();
    let site = Site::own("h06");
    let zk = site.builder().session_timeout(ms(20_000)).connect().unwrap();
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
        eventually(AMPLE, what, || rounds.load(Ordering::SeqCst) > before + 20);
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
fn h04_events_put_off_no_heartbeat() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("h04");
    let mut raw = site.raw();
    let (proxy, zk) = site.proxied(ms(2400));
    let session = zk.session_id();
    let changes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&changes);
    zk.on_state_change(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .detach();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    proxy.reset_counts();
    let start = Instant::now();
    // Occasional events, for longer than the session timeout.
    while start.elapsed() < ms(3600) {
        raw.set_data(guard.path(), b"news").unwrap();
        thread::sleep(ms(150));
    }
    guard.ensure_held().unwrap();
    assert!(proxy.count(opcode::SYNC) >= 3, "{:?}", proxy.requests());
    assert_eq!((zk.session_id(), changes.load(Ordering::SeqCst)), (session, 0));
    drop((guard, raw));
    site.finish([zk]);
}

#[test]
fn h05_a_new_session_is_told_of() {
    skip_without_server!();
    let site = Site::own("h05");
    let mut raw = site.raw();
    let (proxy, zk) = site.proxied(ms(2900));
    let session = zk.session_id();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let told = losses(&guard);
    proxy.black_hole();
    eventually(AMPLE, "the server to expire it", || raw.exists(guard.path()).unwrap().is_none());
    proxy.pass();
    let why = told.recv_timeout(AMPLE).unwrap();
    assert!(matches!(why, LossReason::SessionExpired | LossReason::LeaseExpired), "{why}");
    let again = lock.lock().unwrap();
    assert!(again.is_held());
    assert!(!guard.is_held(), "an old guard is held by the new session");
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::SessionLost);
    assert_ne!(zk.session_id(), session);
    assert!(told.try_recv().is_err(), "on_lost was called twice");
    drop((guard, again, lock));
    drop(raw);
    site.finish([zk]);
}

#[test]
fn h07_a_server_that_is_down_costs_next_to_nothing() {
    const WINDOW: Duration = Duration::from_secs(1);
    skip_without_server!();
    skip_unless_alone!();
    let site = Site::own("h07");
    let proxy = proxy(&site);
    let logs = logs(LevelFilter::Info);
    let zk = through(&proxy, ms(20_000));
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let trier = waiting(move || lock.try_lock_for(AMPLE));
    proxy.refuse();
    eventually(AMPLE, "the loss to be noticed", || zk.state() == SessionState::Suspended);
    logs.take();
    let time = processor_time();
    thread::sleep(WINDOW);
    let (time, records) = (processor_time() - time, logs.take().len());
    println!("in {WINDOW:?}: {time:?} of processor time, {records} log records");
    assert!(time <= ms(50) && records < 20, "{time:?}, {records} log records");
    proxy.release();
    drop(guard);
    assert!(trier.join().unwrap().unwrap().is_some());
    site.finish([zk]);
}

#[test]
fn h08_a_host_that_hangs_is_given_up() {
    skip_without_zookeeper!();
    let site = Site::shared("h08");
    // The kernel accepts connections, but nothing answers.
    let hung = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let hosts = format!("{},{}", hung.local_addr().unwrap(), site.hosts());
    // The hosts come in random order.
    for _ in 0..4 {
        let start = Stopwatch::start();
        drop(connecting(&hosts).session_timeout(ms(4000)).connect().unwrap());
        assert!(start.took().within(ms(5000)), "{:?}", start.took());
    }
    site.finish([]);
}

#[test]
fn h09_one_bad_host_spoils_nothing() {
    skip_without_zookeeper!();
    let site = Site::shared("h09");
    let unknown = format!("no-such-host.invalid:2181,{}", site.hosts());
    // A TCP connection to a broadcast address fails at once.
    let unreachable = format!("255.255.255.255:2181,{}", site.hosts());
    for hosts in [&unknown, &unreachable] {
        let zk = connecting(hosts).session_timeout(ms(4000)).connect().unwrap();
        drop(mutex(&zk, &site.base, "a").lock().unwrap());
    }
    let error = connecting("255.255.255.255:2181")
        .connect_timeout(ms(300))
        .connect()
        .expect_err("no server is there");
    assert_eq!(error.kind(), ErrorKind::Connect);
    site.finish([]);
}

#[test]
fn h10_credentials_mix_up_no_answers() {
    skip_without_server!();
    let site = Site::own("h10");
    let proxy = proxy(&site);
    let zk = connecting(&proxy.hosts())
        .session_timeout(ms(10_000))
        .auth("digest", b"user:password")
        .connect()
        .unwrap();
    let session = zk.session_id();
    // So that the session is kept, whatever gets no answer.
    let kept = mutex(&zk, &site.base, "kept").lock().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let askers: Vec<_> = (0..4)
        .map(|asker| {
            let name = format!("n{asker}");
            let lock = mutex(&zk, &site.base, &name).data(name.clone()).acl(Acl::creator_only());
            let (stop, node) = (Arc::clone(&stop), format!("{}/{name}/", site.base));
            thread::spawn(move || {
                let (mut rounds, mut last) = (0, None);
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().unwrap();
                    assert!(guard.path().starts_with(&node), "{:?}", guard.path());
                    let contenders = lock.contenders().unwrap();
                    let [own] = &contenders[..] else { panic!("{contenders:?}") };
                    assert_eq!((own.path.as_str(), own.label()), (guard.path(), name.clone()));
                    assert_eq!(own.session, session);
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
        eventually(AMPLE, "work on the next connection", || {
            proxy.connections() > before.0 && proxy.count(opcode::CREATE) > before.1 + 8
        });
    }
    stop.store(true, Ordering::SeqCst);
    for asker in askers {
        assert!(asker.join().expect("every answer is right") > 2);
    }
    assert_eq!(zk.session_id(), session);
    kept.unlock().unwrap();
    site.finish([zk]);
}

#[test]
fn h11_credentials_are_presented_on_every_connection() {
    skip_without_server!();
    let site = Site::own("h11");
    let proxy = proxy(&site);
    let zk = connecting(&proxy.hosts())
        .session_timeout(ms(10_000))
        .auth("digest", b"user:password")
        .connect()
        .unwrap();
    let session = zk.session_id();
    let lock = mutex(&zk, &site.base, "a").acl(Acl::creator_only());
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
fn h15_the_first_state_is_not_missed() {
    skip_without_server!();
    let site = Site::own("h15");
    let proxy = proxy(&site);
    for _ in 0..20 {
        assert_eq!(through(&proxy, ms(10_000)).state(), SessionState::Connected);
    }
    let zk = through(&proxy, ms(10_000));
    let told = states(&zk);
    proxy.cut();
    expect_states(&told, &[SessionState::Suspended, SessionState::Connected]);
    zk.close();
    expect_states(&told, &[SessionState::Closed]);
    site.finish([zk]);
}

#[test]
fn h18_a_lock_node_is_a_container() {
    skip_without_server!();
    skip_before!(3, 5, "know no containers");
    let server = Server::builder().property("znode.container.checkIntervalMs=100");
    let site = Site::with("h18", &server);
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let (proxy, zk) = site.proxied(ms(4000));
    let lock = mutex(&zk, &site.base, "a");
    let node = format!("{}/a", site.base);
    let guard = lock.lock().unwrap();
    assert_eq!(proxy.count(opcode::CREATE_CONTAINER), 1);
    drop(guard);
    eventually(AMPLE, "the server to remove the lock node", || {
        raw.exists(&node).unwrap().is_none()
    });
    drop(lock.lock().unwrap());
    drop((lock, raw));
    site.finish([zk]);
}

/// Without TCP_NODELAY the kernel would hold a small request back until the bytes before it are
/// acknowledged, which takes 40 ms.
#[test]
fn h22_a_second_request_leaves_while_the_first_is_unanswered_on_time() {
    skip_without_zookeeper!();
    let site = Site::shared("h22");
    let proxy = Proxy::start(site.hosts().parse().expect("one address"));
    let zk = through(&proxy, ms(10_000));
    let ask = |name: &str| zk.znode(format!("{}/{name}", site.base)).read().unwrap();
    let leaves_at_once = || {
        proxy.reset_counts();
        proxy.hold();
        thread::scope(|scope| {
            scope.spawn(|| ask("one"));
            let one = proxy.wait_for_request(opcode::GET_DATA, AMPLE);
            let watch = Stopwatch::start();
            scope.spawn(|| ask("two"));
            let two = proxy.wait_for_requests(opcode::GET_DATA, 2, AMPLE);
            let took = watch.took();
            proxy.release();
            assert!(one && two, "{:?}", proxy.requests());
            took.within(ms(20))
        })
    };
    let at_once = (0..15).filter(|_| leaves_at_once()).count();
    assert!(at_once > 7, "{at_once} of 15 left at once");
    site.finish([zk]);
}
