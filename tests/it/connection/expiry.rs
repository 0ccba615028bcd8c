//! Sessions that end, and processes that are stopped until theirs has ended.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use zklock::{ErrorKind, Event, LossReason, SessionState};

use super::{
    AMPLE, SHORT, expect_states, lock_in_background, losses, proxy, states, through,
    wait_for_contenders,
};
use crate::support::proxy::opcode;
use crate::support::raw::{Kind, Raw};
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::transport::secure_hosts;
use crate::support::{
    Raise, connecting, eventually, mutex, nodes_of, skip_without_server, waiting,
};

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

const HELPER: &str = "connection::expiry::helper_that_holds_a_lock";
const HELPER_BASE: &str = "ZKLOCK_TEST_HELPER_BASE";
const TOLD: &str = "connection::expiry::helper_that_is_told_of_its_loss";
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
