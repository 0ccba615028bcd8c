use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use log::LevelFilter;
use zklock::{Acl, Client, DistributedLock, ErrorKind, Event, LockGuard, LossReason, SessionState};

use crate::keeper;
use crate::support::logs::logs;
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{Kind, Raw};
use crate::support::server::{Server, free_port};
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::transport::{Transport, secure_hosts};
use crate::support::{
    Raise, connecting, eventually, got_nothing, in_background, mutex, nodes_of, processor_time,
    skip_before, skip_unless_alone, skip_without_server, skip_without_zookeeper, waiting,
};

/// Ample time for steps whose duration a test does not check.
const AMPLE: Duration = Duration::from_secs(15);
const SHORT: Duration = Duration::from_secs(3);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn proxy(site: &Site) -> Proxy {
    Proxy::start(site.server().addr())
}

fn through(proxy: &Proxy, session: Duration) -> Client {
    connecting(&proxy.hosts()).session_timeout(session).connect().expect("a client")
}

/// Receives what the guard's `on_lost` is called with; disconnected once the callback has run or
/// was dropped.
fn losses(guard: &LockGuard) -> Receiver<LossReason> {
    let (tell, told) = channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    told
}

fn states(zk: &Client) -> Receiver<SessionState> {
    let (tell, told) = channel();
    zk.on_state_change(move |state| tell.send(state).unwrap_or_default()).detach();
    told
}

/// Checks that the next states are these.
fn expect_states(told: &Receiver<SessionState>, expected: &[SessionState]) {
    for state in expected {
        assert_eq!(told.recv_timeout(AMPLE), Ok(*state));
    }
}

fn lock_in_background(lock: &DistributedLock) -> Receiver<LockGuard> {
    let (lock, (tell, told)) = (lock.clone(), channel());
    thread::spawn(move || tell.send(lock.lock().unwrap()));
    told
}

fn wait_for_contenders(site: &Site, name: &str, count: usize) {
    let mut raw = site.raw();
    let node = format!("{}/{name}", site.base);
    eventually(AMPLE, &format!("{count} contenders"), || {
        raw.get_children(&node).is_ok_and(|children| children.len() == count)
    });
}

/// Waits until a contender behind the proxy watches its predecessor.
fn wait_for_watch(proxy: &Proxy, predecessor: &LockGuard) {
    eventually(AMPLE, "a watch on the predecessor", || {
        proxy.requests().iter().any(|seen| seen.path.as_deref() == Some(predecessor.path()))
    });
}

#[test]
fn s23_a_blip_while_holding_changes_nothing() {
    skip_without_server!();
    if !Transport::wanted().keeps_sessions() {
        return keeper::s23_a_blip_is_a_lost_lock_where_sessions_end_with_their_connections();
    }
    let site = Site::own("s23");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let (session, token) = (zk.session_id(), guard.fencing_token());
    let (lost, told) = (losses(&guard), states(&zk));
    let mut raw = site.raw();
    for _ in 0..5 {
        proxy.cut();
        expect_states(&told, &[SessionState::Suspended, SessionState::Connected]);
        assert!(guard.is_held());
        guard.ensure_held().unwrap();
        assert_eq!(zk.session_id(), session);
        assert_eq!(guard.fencing_token(), token);
        let stat = raw.exists(guard.path()).unwrap().expect("the same node");
        assert_eq!(Some(stat.ephemeral_owner.into()), session);
        assert_eq!(u64::try_from(stat.czxid), Ok(token.zxid()));
    }
    guard.unlock().unwrap();
    assert_eq!(lost.recv(), Err(std::sync::mpsc::RecvError), "on_lost was called");
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    site.finish([zk]);
}

#[test]
fn s23_blips_under_a_busy_client_lose_nothing() {
    skip_without_server!();
    if !Transport::wanted().keeps_sessions() {
        return keeper::s23_a_lost_lock_is_acquired_again_when_the_server_has_ended_its_session();
    }
    let site = Site::own("s23-busy");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let guard = mutex(&zk, &site.base, "held").lock().unwrap();
    let (session, lost) = (zk.session_id(), losses(&guard));
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _at_the_end = Raise(&stop);
        for worker in 0..3 {
            let lock = mutex(&zk, &site.base, format!("busy-{worker}"));
            let (stop, rounds) = (&stop, &rounds);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let guard = lock.lock().unwrap();
                    assert!(guard.is_held());
                    guard.unlock().unwrap();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..10 {
            let before = rounds.load(Ordering::Relaxed);
            proxy.cut();
            eventually(AMPLE, "the workers to go on", || {
                rounds.load(Ordering::Relaxed) >= before + 10
            });
        }
    });
    guard.ensure_held().unwrap();
    assert_eq!(zk.session_id(), session);
    drop(guard);
    assert!(lost.recv().is_err(), "on_lost was called");
    site.finish([zk]);
}

/// Round trips of a tenth of the session timeout from the start, or suddenly of an eighth.
#[test]
fn a_slow_connection_keeps_its_session() {
    skip_without_server!();
    let site = Site::own("slow");
    // An answer may take at most a third of it.
    let timeout = Duration::from_secs(6);
    for (from_the_start, round_trip) in [(true, timeout / 10), (false, timeout / 8)] {
        let proxy = proxy(&site);
        let delay = || proxy.delay_replies(round_trip);
        if from_the_start {
            delay();
        }
        let zk = through(&proxy, timeout);
        let guard = mutex(&zk, &site.base, "a").lock().unwrap();
        let (session, lost, told) = (zk.session_id(), losses(&guard), states(&zk));
        if !from_the_start {
            delay();
        }
        proxy.reset_counts();
        assert!(proxy.wait_for_requests(opcode::SYNC, 6, timeout * 10), "heartbeats went on");
        assert!(guard.is_held());
        assert_eq!(zk.session_id(), session);
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty), "the connection was given up");
        proxy.pass();
        guard.unlock().unwrap();
        assert!(lost.recv().is_err(), "on_lost was called");
        drop(zk);
    }
    site.finish([]);
}

#[test]
fn s24_the_predecessor_goes_during_a_blip() {
    skip_without_server!();
    if !Transport::wanted().keeps_sessions() {
        return keeper::s24_a_waiter_queues_again_where_sessions_end_with_their_connections();
    }
    let site = Site::own("s24");
    let proxy = proxy(&site);
    let holder = site.client();
    let waiter = through(&proxy, Duration::from_secs(4));
    let faults: [fn(&Proxy); 2] = [Proxy::refuse, Proxy::black_hole];
    for fault in faults {
        let guard = mutex(&holder, &site.base, "a").lock().unwrap();
        let (session, told) = (waiter.session_id(), states(&waiter));
        let acquired = lock_in_background(&mutex(&waiter, &site.base, "a"));
        wait_for_watch(&proxy, &guard);
        fault(&proxy);
        guard.unlock().unwrap();
        expect_states(&told, &[SessionState::Suspended]);
        assert_eq!(acquired.try_recv().err(), Some(TryRecvError::Empty));
        proxy.pass();
        let guard = acquired.recv_timeout(AMPLE).expect("the lock");
        guard.ensure_held().unwrap();
        assert_eq!(waiter.session_id(), session);
    }
    site.finish([holder, waiter]);
}

#[test]
fn s25_a_server_restart_with_a_holder_and_a_waiter() {
    skip_without_server!();
    if !Transport::wanted().keeps_sessions() {
        return keeper::s25_a_restart_is_a_lost_lock_where_sessions_end_with_their_connections();
    }
    let site = Site::own("s25");
    let client = || site.builder().session_timeout(Duration::from_secs(30)).connect().unwrap();
    let (holder, waiter) = (client(), client());
    let guard = mutex(&holder, &site.base, "a").lock().unwrap();
    let (sessions, token) = ([holder.session_id(), waiter.session_id()], guard.fencing_token());
    let lost = losses(&guard);
    let acquired = lock_in_background(&mutex(&waiter, &site.base, "a"));
    wait_for_contenders(&site, "a", 2);
    site.server().restart();
    guard.ensure_held().unwrap();
    assert_eq!(guard.fencing_token(), token);
    assert_eq!(acquired.try_recv().err(), Some(TryRecvError::Empty));
    guard.unlock().unwrap();
    assert!(lost.recv().is_err(), "on_lost was called");
    let guard = acquired.recv_timeout(AMPLE).expect("the lock");
    assert!(guard.fencing_token() > token);
    guard.unlock().unwrap();
    assert_eq!([holder.session_id(), waiter.session_id()], sessions);
    site.finish([holder, waiter]);
}

#[test]
fn s26_the_session_expires_while_holding() {
    skip_without_server!();
    let site = Site::own("s26");
    let proxy = proxy(&site);
    let (zk, other) = (through(&proxy, SHORT), site.client());
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let (session, token, calls) = (zk.session_id(), guard.fencing_token(), Arc::default());
    let counted: Arc<AtomicU64> = Arc::clone(&calls);
    guard.on_lost(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let lost = losses(&guard);
    let successor = lock_in_background(&mutex(&other, &site.base, "a"));
    wait_for_contenders(&site, "a", 2);

    proxy.black_hole();
    let next = successor.recv_timeout(AMPLE).expect("the successor's turn");
    assert!(!guard.is_held());
    assert!(next.fencing_token() > token);
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::LeaseExpired));
    assert_eq!(zk.state(), SessionState::Lost);
    assert_eq!(zk.session_id(), None);
    proxy.pass();
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::SessionLost);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::SessionLost);
    next.ensure_held().unwrap();

    let again = lock_in_background(&lock);
    wait_for_contenders(&site, "a", 2);
    let token = next.fencing_token();
    next.unlock().unwrap();
    let again = again.recv_timeout(AMPLE).expect("the lock on a new session");
    assert!(again.fencing_token() > token);
    assert_ne!(zk.session_id(), session);
    drop(again);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    drop(lock);
    site.finish([zk, other]);
}

#[test]
fn s26_the_server_says_that_the_session_has_expired() {
    skip_without_server!();
    let site = Site::own("s26-said");
    // A server that has never had the session answers like one that has expired it, provided
    // that its last transaction number is high enough.
    let stranger = Site::start(&Server::builder());
    let mut raw = Raw::connect(&stranger.hosts(), AMPLE).unwrap();
    for number in 0..50 {
        raw.create(&format!("/{number}"), b"", Kind::Persistent).unwrap();
    }
    raw.close().unwrap();
    let (proxy, zk) = site.proxied(Duration::from_secs(30));
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let (lost, told) = (losses(&guard), states(&zk));
    proxy.set_target(stranger.addr());
    proxy.cut();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::SessionExpired));
    assert!(lost.recv().is_err(), "on_lost was called twice");
    assert!(!guard.is_held());
    expect_states(&told, &[SessionState::Suspended, SessionState::Lost]);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::SessionLost);
    lock.lock().unwrap().unlock().unwrap();
    expect_states(&told, &[SessionState::Connected]);
    drop(lock);
    zk.close();
    // No client can close the session on the first server any more.
    site.server().kill();
    eventually(AMPLE, "the session to be closed", || {
        stranger.counter("zk_ephemerals_count") == 0 && stranger.counter("zk_watch_count") == 0
    });
    drop(zk);
}

#[test]
fn s27_the_session_expires_while_waiting() {
    skip_without_server!();
    let site = Site::own("s27");
    let proxy = proxy(&site);
    let (holder, waiter) = (site.client(), through(&proxy, SHORT));
    let guard = mutex(&holder, &site.base, "a").lock().unwrap();
    let lock = mutex(&waiter, &site.base, "a");
    let endless = lock_in_background(&lock);
    wait_for_contenders(&site, "a", 2);
    let (tell, bounded) = channel();
    let until = Instant::now() + Duration::from_secs(40);
    let also = lock.clone();
    let second = waiting(move || tell.send(also.lock_within(until).unwrap().expect("in time")));
    drop(second);
    wait_for_contenders(&site, "a", 1 + nodes_of(2));
    let session = waiter.session_id();

    proxy.black_hole();
    wait_for_contenders(&site, "a", 1);
    assert_eq!(waiter.state(), SessionState::Lost);
    proxy.pass();
    wait_for_contenders(&site, "a", 1 + nodes_of(2));
    assert!(waiter.session_id().is_some() && waiter.session_id() != session);
    assert_eq!(endless.try_recv().err(), Some(TryRecvError::Empty));
    assert_eq!(bounded.try_recv().err(), Some(TryRecvError::Empty));

    guard.unlock().unwrap();
    // Both queued anew at the same time; either may be first.
    for _ in 0..2 {
        let mut next = None;
        eventually(AMPLE, "the next holder", || {
            next = endless.try_recv().or_else(|_| bounded.try_recv()).ok();
            next.is_some()
        });
        next.unwrap().unlock().unwrap();
    }
    drop(lock);
    site.finish([holder, waiter]);
}

/// What a session does until the network falls silent.
#[derive(Clone, Copy, Debug)]
enum Load {
    Idle,
    /// Silent from the moment at which a heartbeat reaches the proxy.
    AtHeartbeat,
    /// Silent this long after a heartbeat.
    After(Duration),
    Writes,
    ReadsOnly,
    /// Each direction is delayed.
    Slow,
    /// At first only the replies are withheld.
    Deaf,
}

#[test]
fn s28_in_a_silent_partition_the_own_clock_is_first() {
    skip_without_server!();
    let site = Site::own("s28");
    let loads = [
        Load::Idle,
        Load::AtHeartbeat,
        Load::After(SHORT / 6),
        Load::After(SHORT / 4),
        Load::Writes,
        Load::ReadsOnly,
        Load::Slow,
        Load::Deaf,
    ];
    thread::scope(|scope| {
        for (number, load) in loads.into_iter().enumerate() {
            let site = &site;
            scope.spawn(move || lose_by_own_clock(site, load, &number.to_string()));
        }
    });
    site.finish([]);
}

fn lose_by_own_clock(site: &Site, load: Load, name: &str) {
    let proxy = proxy(site);
    // A call that gets no answer ends soon.
    let zk = connecting(&proxy.hosts())
        .session_timeout(SHORT)
        .connect_timeout(Duration::from_secs(2))
        .connect()
        .unwrap();
    let guard = mutex(&zk, &site.base, name).lock().unwrap();
    let (tell, lost) = channel();
    guard.on_lost(move |why| tell.send((Instant::now(), why)).unwrap());
    let mut raw = site.raw();
    let (mut held_since, mut gone) = (Instant::now(), None);
    let mut silent = Instant::now();
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _at_the_end = Raise(stop);
        for worker in 0..2 {
            let busy = mutex(&zk, &site.base, format!("busy-{name}-{worker}"));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match load {
                        // Their results do not matter: the network will fail.
                        Load::Writes => drop(busy.try_lock_for(Duration::from_millis(100))),
                        Load::ReadsOnly => drop(busy.contenders()),
                        _ => return,
                    }
                    // The proxy remembers every request, so there should not be too many.
                    thread::sleep(Duration::from_millis(2));
                }
            });
        }
        if matches!(load, Load::Slow) {
            proxy.delay(SHORT / 32);
        }
        // Lets the load settle, for more than the session timeout.
        proxy.reset_counts();
        let settled = Instant::now() + SHORT;
        if matches!(load, Load::Writes) {
            eventually(AMPLE, "writes", || {
                proxy.count(opcode::CREATE) > 30 && Instant::now() > settled
            });
        } else {
            assert!(proxy.wait_for_requests(opcode::SYNC, 4, AMPLE), "{load:?}");
        }
        if let Load::After(pause) = load {
            thread::sleep(pause);
        }
        if matches!(load, Load::Deaf) {
            let before = proxy.connections();
            proxy.delay_replies(Duration::from_secs(60));
            eventually(AMPLE, "another connection", || proxy.connections() > before);
        }
        assert!(guard.is_held(), "{load:?}");
        proxy.black_hole();
        silent = Instant::now();
        while gone.is_none() {
            let (asked, held) = (Instant::now(), guard.is_held());
            if raw.exists(guard.path()).unwrap().is_none() {
                assert!(!held, "{load:?}: held when the server had expired it");
                gone = Some(Instant::now());
            } else if held {
                held_since = asked;
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let gone = gone.unwrap();
    let (told, why) = lost.recv_timeout(AMPLE).unwrap();
    assert_eq!(why, LossReason::LeaseExpired, "{load:?}");
    assert!(told <= gone, "{load:?}: on_lost was called {:?} too late", told - gone);
    assert!(!guard.is_held());
    println!(
        "{load:?}: held for {:?}, told after {:?}, expired after {:?}",
        held_since - silent,
        told - silent,
        gone - silent
    );
    proxy.pass();
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::SessionLost);
    let stats = || zk.stats();
    eventually(AMPLE, "nothing to be left", || {
        stats().watches == 0 && stats().pending_deletes == 0
    });
}

/// This test binary again, with [`helper_that_holds_a_lock`] only.
struct Helper {
    child: Child,
    orders: ChildStdin,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

const HELPER: &str = "connection::helper_that_holds_a_lock";
const HELPER_BASE: &str = "ZKLOCK_TEST_HELPER_BASE";
const TOLD: &str = "connection::helper_that_is_told_of_its_loss";
const HELPER_HOSTS: &str = "ZKLOCK_TEST_HELPER_HOSTS";

impl Helper {
    fn start(hosts: &str, base: &str) -> Helper {
        Helper::start_as(HELPER, hosts, base)
    }

    fn start_as(test: &str, hosts: &str, base: &str) -> Helper {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(HELPER_BASE, base)
            .env(HELPER_HOSTS, secure_hosts(hosts))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Helper { child, orders, lines }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// The helper's next line; the test harness around it prints others.
    fn answer(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the helper goes on").unwrap();
            if let Some((_, answer)) = line.split_once("helper: ") {
                return answer.to_owned();
            }
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    fn stop(&self) {
        self.signal("STOP");
        let stat = format!("/proc/{}/stat", self.child.id());
        eventually(AMPLE, "the helper to stop", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        });
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless another test has started it.
#[test]
fn helper_that_is_told_of_its_loss() {
    let (Ok(hosts), Ok(base)) = (std::env::var(HELPER_HOSTS), std::env::var(HELPER_BASE)) else {
        return;
    };
    let zk = connecting(&hosts).session_timeout(SHORT).connect().unwrap();
    let mut orders = std::io::stdin().lines();
    let guard = mutex(&zk, &base, "a").lock().unwrap();
    let (told, lost) = (losses(&guard), guard.lost());
    println!("helper: {}", guard.fencing_token());
    let order = orders.next().unwrap().unwrap();
    match &order[..] {
        "ask" => assert!(!guard.is_held()),
        "confirm" => assert!(guard.ensure_held().is_err()),
        "give the reason" => {}
        "unlock" => assert!(guard.unlock().is_err()),
        _ => drop(guard),
    }
    // The reason is there at once, without waiting.
    println!("helper: {:?}", lost.reason());
    println!("helper: {:?}", told.recv_timeout(AMPLE));
    println!("helper: {:?}", told.recv());
}

fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

/// Does nothing unless another test has started it.
#[test]
fn helper_that_holds_a_lock() {
    let (Ok(hosts), Ok(base)) = (std::env::var(HELPER_HOSTS), std::env::var(HELPER_BASE)) else {
        return;
    };
    let (tell, paused) = channel();
    let report = move |event: &Event| {
        if let Event::Paused { gap, .. } = event {
            tell.send(*gap).unwrap();
        }
    };
    let builder = connecting(&hosts).session_timeout(SHORT).on_event(report);
    let zk = builder.connect().unwrap();
    let lock = mutex(&zk, &base, "a");
    let guard = lock.lock().unwrap();
    println!("helper: {}", guard.fencing_token());
    let (done, last_held) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut orders = std::io::stdin().lines();
    thread::scope(|scope| {
        let _at_the_end = Raise(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let asked = wall_clock();
                if guard.is_held() {
                    last_held.store(asked, Ordering::Relaxed);
                }
            }
        });
        orders.next().unwrap().unwrap();
        println!("helper: {}", guard.is_held());
    });
    let gap: Duration = paused.recv_timeout(AMPLE).expect("the pause is reported");
    println!("helper: {}", gap.as_millis());
    println!("helper: {}", last_held.load(Ordering::Relaxed));
    println!("helper: {:?}", guard.unlock().map_err(|error| error.kind()));
    let guard = lock.lock().unwrap();
    println!("helper: {}", guard.fencing_token());
    guard.unlock().unwrap();
}

#[test]
fn s29_a_process_stopped_past_its_session_knows_when_it_goes_on() {
    skip_without_server!();
    let site = Site::own("s29");
    let mut helper = Helper::start(site.hosts(), &site.base);
    let token = helper.answer();
    let zk = site.client();
    let successor = lock_in_background(&mutex(&zk, &site.base, "a"));
    wait_for_contenders(&site, "a", 2);
    helper.stop();
    let stopped = wall_clock();
    let guard = successor.recv_timeout(AMPLE).expect("the successor's turn");
    assert!(guard.fencing_token().to_string() > token);
    helper.order("is it held?");
    helper.signal("CONT");
    assert_eq!(helper.answer(), "false");
    let gap = Duration::from_millis(helper.answer().parse().unwrap());
    assert!(gap >= Duration::from_secs(1) && gap < AMPLE, "a pause of {gap:?}");
    let last_held: u64 = helper.answer().parse().unwrap();
    assert!(last_held > 0 && last_held <= stopped, "held {} ns too long", last_held - stopped);
    assert_eq!(helper.answer(), "Err(SessionLost)");
    guard.ensure_held().unwrap();
    wait_for_contenders(&site, "a", 2);
    let token = guard.fencing_token().to_string();
    drop(guard);
    assert!(helper.answer() > token);
    assert!(helper.child.wait().unwrap().success());
    site.finish([zk]);
}

#[test]
fn s29_a_loss_by_a_pause_is_told_whoever_finds_it() {
    skip_without_server!();
    let site = Site::own("s29-told");
    let zk = site.client();
    for order in ["ask", "confirm", "give the reason", "unlock", "drop"] {
        let mut helper = Helper::start_as(TOLD, site.hosts(), &site.base);
        helper.answer();
        let successor = lock_in_background(&mutex(&zk, &site.base, "a"));
        wait_for_contenders(&site, "a", 2);
        helper.stop();
        drop(successor.recv_timeout(AMPLE).expect("the successor's turn"));
        helper.order(order);
        helper.signal("CONT");
        let reason = helper.answer();
        let lost = reason.strip_prefix("Some(").and_then(|reason| reason.strip_suffix(')'));
        let lost = lost.unwrap_or_else(|| panic!("{order}: unexpected reason {reason}"));
        assert!(["LeaseExpired", "SessionExpired"].contains(&lost), "{order}: {lost}");
        assert_eq!(helper.answer(), format!("Ok({lost})"), "{order}: the reason given to on_lost");
        assert_eq!(helper.answer(), "Err(RecvError)", "{order}: on_lost is called once");
        assert!(helper.child.wait().unwrap().success(), "{order}");
    }
    site.finish([zk]);
}

#[test]
fn s30_the_holders_node_is_deleted_from_outside() {
    skip_without_server!();
    let site = Site::own("s30");
    let (zk, other) = (site.client(), site.client());
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let lost = losses(&guard);
    let successor = lock_in_background(&mutex(&other, &site.base, "a"));
    wait_for_contenders(&site, "a", 2);
    site.raw().delete(guard.path()).unwrap();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::NodeDeleted));
    assert!(lost.recv().is_err(), "on_lost was called twice");
    assert!(!guard.is_held());
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::NodeDeleted);
    assert_eq!(zk.state(), SessionState::Connected);
    let next = successor.recv_timeout(AMPLE).expect("the successor's turn");
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::NodeDeleted);
    next.ensure_held().unwrap();
    next.unlock().unwrap();
    lock.lock().unwrap().unlock().unwrap();
    drop(lock);
    site.finish([zk, other]);
}

/// The holder has not noticed yet, and the next contender may hold the lock already.
#[test]
fn s30_unlocking_tells_that_the_node_was_deleted() {
    skip_without_zookeeper!();
    let site = Site::shared("s30-unlock");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let mut raw = site.raw();
    for _ in 0..100 {
        let guard = lock.lock().unwrap();
        raw.delete(guard.path()).unwrap();
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::NodeDeleted);
    }
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s30_a_node_deleted_during_a_blip_is_noticed_afterwards() {
    skip_without_server!();
    let site = Site::own("s30-blip");
    let (proxy, zk) = site.proxied(Duration::from_secs(6));
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let lost = losses(&guard);
    proxy.refuse();
    site.raw().delete(guard.path()).unwrap();
    assert!(guard.is_held());
    proxy.pass();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::NodeDeleted));
    assert!(!guard.is_held());
    drop(guard);
    site.finish([zk]);
}

#[test]
fn s31_a_waiters_node_is_deleted_from_outside() {
    skip_without_server!();
    let site = Site::own("s31");
    let clients = [site.client(), site.client(), site.client()];
    let [holder, waiter, last] = clients.each_ref().map(|zk| mutex(zk, &site.base, "a"));
    let guard = holder.lock().unwrap();
    let second = lock_in_background(&waiter);
    wait_for_contenders(&site, "a", 2);
    let victim = holder.contenders().unwrap()[1].path.clone();
    let third = lock_in_background(&last);
    wait_for_contenders(&site, "a", 3);

    site.raw().delete(&victim).unwrap();
    // Its owner learns of it, and takes a new place at the end.
    eventually(AMPLE, "a new place", || {
        let children = site.children("a");
        children.len() == 3 && !children.iter().any(|name| victim.ends_with(name.as_str()))
    });
    guard.ensure_held().unwrap();
    for waiting in [&second, &third] {
        assert_eq!(waiting.try_recv().err(), Some(TryRecvError::Empty));
    }
    guard.unlock().unwrap();
    // The one whose node was deleted has lost its turn.
    let guard = third.recv_timeout(AMPLE).expect("the third's turn");
    wait_for_contenders(&site, "a", 2);
    assert_eq!(second.try_recv().err(), Some(TryRecvError::Empty));
    guard.unlock().unwrap();
    let guard = second.recv_timeout(AMPLE).expect("a new turn");
    assert_ne!(guard.path(), victim);
    guard.ensure_held().unwrap();
    drop((guard, holder, waiter, last));
    site.finish(clients);
}

#[test]
fn s31_the_last_waiters_node_and_the_holders_go_together() {
    skip_without_server!();
    let site = Site::own("s31-both");
    let (zk, other) = (site.client(), site.client());
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let waiter = mutex(&other, &site.base, "a");
    let acquired = lock_in_background(&waiter);
    wait_for_contenders(&site, "a", 2);
    let victim = waiter.contenders().unwrap()[1].path.clone();
    let mut raw = site.raw();
    raw.delete(&victim).unwrap();
    raw.delete(guard.path()).unwrap();
    let next = acquired.recv_timeout(AMPLE).expect("the lock");
    assert_ne!(next.path(), victim);
    next.ensure_held().unwrap();
    drop((guard, next, waiter));
    site.finish([zk, other]);
}

#[test]
fn s32_a_drop_after_the_loss_deletes_nobodys_node() {
    skip_without_server!();
    let site = Site::own("s32");
    let (proxy, zk) = site.proxied(SHORT);
    let other = site.client();
    let mut raw = site.raw();

    let guard = mutex(&zk, &site.base, "deleted").lock().unwrap();
    let (lost, path) = (losses(&guard), guard.path().to_owned());
    raw.delete(&path).unwrap();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::NodeDeleted));
    raw.create(&path, b"somebody else's", Kind::Persistent).unwrap();
    drop(guard);
    zk.session_id().expect("the session goes on");

    let guard = mutex(&zk, &site.base, "expired").lock().unwrap();
    let lost = losses(&guard);
    proxy.black_hole();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::LeaseExpired));
    let next = mutex(&other, &site.base, "expired").lock().unwrap();
    let before = Stopwatch::start();
    drop(guard);
    assert!(before.took().within(Duration::from_millis(400)), "took {:?}", before.took());
    proxy.pass();
    // Opens a new session for the client that lost its own: whatever it had to delete is deleted
    // now.
    mutex(&zk, &site.base, "again").lock().unwrap().unlock().unwrap();
    eventually(AMPLE, "no pending deletes", || zk.stats().pending_deletes == 0);
    next.ensure_held().unwrap();
    assert_eq!(site.children("expired").len(), 1);
    assert!(raw.exists(&path).unwrap().is_some());
    next.unlock().unwrap();
    site.finish([zk, other]);
}

#[test]
fn s33_started_before_the_server() {
    skip_without_server!();
    let site = Site::own("s33");
    site.server().kill();
    let builder = site.builder().connect_timeout(Duration::from_secs(40));
    thread::scope(|scope| {
        let connecting = scope.spawn(move || builder.connect());
        let early = site.builder().connect_timeout(Duration::from_millis(300)).connect();
        assert_eq!(early.unwrap_err().kind(), ErrorKind::Connect);
        assert!(!connecting.is_finished());
        site.server().start_again();
        let zk = connecting.join().unwrap().unwrap();
        mutex(&zk, &site.base, "a").lock().unwrap().unlock().unwrap();
        drop(zk);
    });
    site.finish([]);
}

#[test]
fn s33_no_server_is_an_error_that_names_the_address_on_time() {
    let refused = format!("127.0.0.1:{}", free_port());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    for hosts in [&refused, &silent, &format!("{silent},{silent}")] {
        let limit = Duration::from_millis(700);
        let before = Stopwatch::start();
        let error = connecting(hosts).connect_timeout(limit).connect().unwrap_err();
        let took = before.took();
        assert_eq!(error.kind(), ErrorKind::Connect);
        let address = hosts.split(',').next().unwrap();
        assert!(error.to_string().contains(address), "{error}");
        assert!(
            took.at_least(limit) && took.within(limit + Duration::from_millis(150)),
            "took {took:?}"
        );
    }
}

#[test]
fn s35_callbacks_may_call_the_library_and_block() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("s35");
    let (proxy, zk) = site.proxied(SHORT);
    let lock = mutex(&zk, &site.base, "a");

    // Blocks in `Suspended` until the session is lost and another one is opened.
    let (tell_state, states) = channel();
    let (own, inner) = (zk.clone(), mutex(&zk, &site.base, "b"));
    zk.on_state_change(move |state| {
        let _ = (own.state(), own.session_id(), own.stats(), format!("{own:?}"));
        if state == SessionState::Suspended {
            let guard = inner.lock().unwrap();
            inner.contenders().unwrap();
            guard.unlock().unwrap();
        }
        tell_state.send(state).unwrap();
    })
    .detach();

    let guard = lock.lock().unwrap();
    let (tell, told) = channel();
    let again = lock.clone();
    let late = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&late);
    guard.on_lost(move |why| {
        // The lost guard still exists, and perhaps its node too.
        let guard = again.lock().unwrap();
        *seen.lock().unwrap() = Some(guard.is_held());
        tell.send((why, guard)).unwrap();
    });
    proxy.black_hole();
    assert_eq!(guard.lost().wait_within(AMPLE), Some(Err(LossReason::LeaseExpired)));
    proxy.pass();
    let (why, next) = told.recv_timeout(AMPLE).expect("the callback's lock");
    assert_eq!(why, LossReason::LeaseExpired);
    assert_eq!(*late.lock().unwrap(), Some(true));
    assert!(next.fencing_token() > guard.fencing_token());
    expect_states(&states, &[SessionState::Suspended, SessionState::Lost, SessionState::Connected]);
    drop((guard, next, lock));
    zk.close();
    expect_states(&states, &[SessionState::Closed]);
    // The callback owns a client, so it must be dropped with the session, not with the client.
    assert_eq!(states.recv_timeout(AMPLE), Err(RecvTimeoutError::Disconnected));
    site.finish([zk]);
}

#[test]
fn s35_states_are_told_in_order() {
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    use SessionState::{Closed, Connected, Lost, Suspended};
    skip_without_server!();
    let site = Site::own("s35-order");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let (told, seen_by_another) = (states(&zk), states(&zk));
    let lock = mutex(&zk, &site.base, "a");
    assert_eq!(zk.state(), Connected);
    for _ in 0..20 {
        proxy.cut();
        expect_states(&told, &[Suspended, Connected]);
    }
    proxy.black_hole();
    expect_states(&told, &[Suspended, Lost]);
    assert_eq!(zk.state(), Lost);
    proxy.pass();
    lock.lock().unwrap().unlock().unwrap();
    expect_states(&told, &[Connected]);
    zk.close();
    expect_states(&told, &[Closed]);
    assert_eq!(zk.state(), Closed);
    let mut all = [Suspended, Connected].repeat(20);
    all.extend([Suspended, Lost, Connected, Closed]);
    expect_states(&seen_by_another, &all);
    for told in [told, seen_by_another] {
        assert_eq!(told.recv_timeout(AMPLE), Err(RecvTimeoutError::Disconnected));
    }
    drop(lock);
    site.finish([zk]);
}

/// `on_lost` is called for a loss before the release even if all callback threads are busy.
#[test]
fn s35_a_loss_before_the_release_is_told_whatever_other_callbacks_do() {
    const BUSY: usize = 40;
    skip_without_zookeeper!();
    let site = Site::shared("s35-release");
    let zk = site.client();
    let lock = |name: &str| mutex(&zk, &site.base, name).lock().unwrap();
    let [busy, guard] = ["busy", "a"].map(lock);
    let mut raw = site.raw();
    let (begin, begun) = channel();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    for _ in 0..BUSY {
        let (begin, gate) = (begin.clone(), Arc::clone(&gate));
        busy.on_lost(move |_| {
            begin.send(()).unwrap();
            drop(gate.lock());
        });
    }
    raw.delete(busy.path()).unwrap();
    for _ in 0..BUSY {
        begun.recv_timeout(AMPLE).unwrap();
    }
    let called = losses(&guard);
    raw.delete(guard.path()).unwrap();
    assert_eq!(guard.lost().wait(), Err(LossReason::NodeDeleted));
    drop(guard);
    assert_eq!(called.recv_timeout(AMPLE), Ok(LossReason::NodeDeleted));
    drop(closed);
    drop(busy);
    site.finish([zk]);
}

#[test]
fn s35_after_the_release_nobody_is_told_and_after_the_loss_at_once() {
    skip_without_server!();
    let site = Site::own("s35-late");
    let (proxy, zk) = site.proxied(SHORT);
    let lock = |name: &str| mutex(&zk, &site.base, name).lock().unwrap();
    let [dropped, unlocked, held] = ["dropped", "unlocked", "held"].map(lock);
    let quiet = [losses(&dropped), losses(&unlocked)];
    let handles = [dropped.lost(), unlocked.lost()];
    let waiting = handles.clone().map(|lost| thread::spawn(move || lost.wait()));
    let of_held = held.lost();
    let limited = {
        let lost = held.lost();
        thread::spawn(move || lost.wait_within(AMPLE))
    };
    let unlimited = {
        let lost = held.lost();
        thread::spawn(move || lost.wait())
    };
    assert_eq!(of_held.wait_within(Duration::from_millis(50)), None);

    drop(dropped);
    unlocked.unlock().unwrap();
    for (waiting, lost) in waiting.into_iter().zip(&handles) {
        assert_eq!(waiting.join().unwrap(), Ok(()));
        assert_eq!(lost.wait_within(Duration::ZERO), Some(Ok(())));
        assert_eq!(lost.wait_within(AMPLE), Some(Ok(())));
    }
    proxy.black_hole();
    assert_eq!(unlimited.join().unwrap(), Err(LossReason::LeaseExpired));
    assert_eq!(limited.join().unwrap(), Some(Err(LossReason::LeaseExpired)));
    assert_eq!(of_held.reason(), Some(LossReason::LeaseExpired));
    assert_eq!(losses(&held).recv_timeout(AMPLE), Ok(LossReason::LeaseExpired));
    for (quiet, lost) in quiet.iter().zip(&handles) {
        assert_eq!(quiet.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Disconnected));
        assert_eq!(lost.reason(), None);
    }
    proxy.pass();
    drop(held);
    assert_eq!(of_held.wait(), Err(LossReason::LeaseExpired));
    site.finish([zk]);
}

#[test]
fn s35a_after_an_outage_sessions_go_on_or_begin_anew() {
    skip_without_server!();
    let site = Site::own("s35a");
    let client = |seconds| site.builder().session_timeout(Duration::from_secs(seconds));
    let (patient, hasty) = (client(25).connect().unwrap(), client(2).connect().unwrap());
    let kept = mutex(&patient, &site.base, "kept").lock().unwrap();
    let lost = mutex(&hasty, &site.base, "lost").lock().unwrap();
    let told = [states(&patient), states(&hasty)];

    site.server().kill();
    let again = lock_in_background(&mutex(&hasty, &site.base, "lost"));
    assert_eq!(lost.lost().wait_within(AMPLE), Some(Err(LossReason::LeaseExpired)));
    assert!(kept.is_held());
    assert_eq!(patient.state(), SessionState::Suspended);

    site.server().start_again();
    expect_states(&told[0], &[SessionState::Suspended, SessionState::Connected]);
    kept.ensure_held().unwrap();
    expect_states(
        &told[1],
        &[SessionState::Suspended, SessionState::Lost, SessionState::Connected],
    );
    let again = again.recv_timeout(AMPLE).expect("the lock on a new session");
    assert!(again.fencing_token() > lost.fencing_token());
    drop((kept, lost, again));
    site.finish([patient, hasty]);
}

#[test]
fn credentials_are_presented_again_after_a_cut() {
    skip_without_server!();
    let site = Site::own("auth-replay");
    let proxy = proxy(&site);
    let zk = connecting(&proxy.hosts())
        .session_timeout(Duration::from_secs(4))
        .auth("digest", b"user:password")
        .connect()
        .unwrap();
    let lock = mutex(&zk, &site.base, "a").acl(Acl::creator_only());
    let told = states(&zk);
    let guard = lock.lock().unwrap();
    assert!(site.raw().get_children(&format!("{}/a", site.base)).is_err(), "the ACL is in effect");
    for _ in 0..3 {
        proxy.cut();
        expect_states(&told, &[SessionState::Suspended, SessionState::Connected]);
        guard.ensure_held().unwrap();
        assert_eq!(lock.contenders().unwrap().len(), 1);
    }
    guard.unlock().unwrap();
    proxy.cut();
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(lock.contenders().unwrap().len(), 0);
    drop(lock);
    site.finish([zk]);
}

// ----- what the `zookeeper` crate's connection does wrong; the program in
// tests/peers/zookeeper-crate shows each fault on a plain handle

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
