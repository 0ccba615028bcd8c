use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use zklock::{
    Cancel, Client, DistributedLock, Error, ErrorKind, LockGuard, LossReason, Result, SessionState,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::stopwatch::{Moment, Stopwatch, Took};
use crate::support::{
    QUIET, eventually, got_nothing, in_background, is_unanswered, kind, mutex, nodes_of, own_task,
    skip_without_server, skip_without_zookeeper, strict, timed, wait_until_asleep, waiting,
};

const SOON: Duration = Duration::from_secs(20);
/// How long a client may take to connect, even on a busy machine.
const CONNECTING: Duration = Duration::from_secs(4);
/// How long after its deadline a call may return, at most.
const LATE: Duration = Duration::from_millis(100);
/// How long a call that ends at a deadline still waits until its node is deleted.
const GRACE: Duration = Duration::from_millis(50);
/// More than the clean-up may take when there is no deadline.
const PARTING: Duration = Duration::from_millis(700);
/// The same on a busy machine, and far below any timeout.
const PROMPTLY: Duration = Duration::from_secs(2);

/// A server behind a proxy. The client under test connects through the proxy; the client that holds
/// the lock, and those that inspect it, connect directly.
struct Rig {
    site: Site,
    proxy: Proxy,
    zk: Client,
    holder: Client,
}

impl Rig {
    fn new(test: &str) -> Rig {
        Rig::with_session(test, Duration::from_secs(4))
    }

    fn with_session(test: &str, timeout: Duration) -> Rig {
        let _ = env_logger::builder().is_test(true).format_timestamp_millis().try_init();
        let site = Site::own(test);
        let proxy = Proxy::start(site.server().addr());
        let builder = Client::builder(&proxy.hosts()).session_timeout(timeout);
        let zk = builder.connect_timeout(CONNECTING).connect().unwrap();
        let holder = site.builder().session_timeout(Duration::from_secs(30)).connect().unwrap();
        Rig { site, proxy, zk, holder }
    }

    fn lock(&self) -> DistributedLock {
        mutex(&self.zk, &self.site.base, "a")
    }

    /// Takes the lock with the other client.
    fn held(&self) -> LockGuard {
        mutex(&self.holder, &self.site.base, "a").try_lock().unwrap().expect("free")
    }

    fn contenders(&self) -> usize {
        self.site.children("a").len()
    }

    fn wait_for_contenders(&self, count: usize) {
        eventually(SOON, "the contenders", || self.contenders() == count);
    }

    /// Waits until nothing is left of the client's attempts, in the session in which it made them.
    fn wait_until_clean(&self, others: usize, after: &str) {
        eventually(SOON, &format!("the end of cleaning up after {after}"), || {
            self.zk.stats().pending_deletes == 0 && self.contenders() == others
        });
    }

    /// Waits for a session. If the old one was lost, only a call opens a new one.
    fn wait_until_connected(&self) {
        let lock = self.lock();
        eventually(SOON, "a session", || lock.contenders().is_ok());
    }

    fn wait_for(&self, state: SessionState) {
        eventually(SOON, "the state of the session", || self.zk.state() == state);
    }

    fn finish(self) {
        self.proxy.pass();
        let Rig { site, zk, holder, proxy } = self;
        site.finish([zk, holder]);
        drop(proxy);
    }
}

#[test]
fn s14_to_try_a_held_lock_gives_none_and_leaves_no_node() {
    skip_without_zookeeper!();
    let site = Site::shared("s14");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    for _ in 0..20 {
        assert!(lock.try_lock().unwrap().is_none());
        assert_eq!(site.children("a").len(), 1, "its node was left");
    }
    drop(guard);
    assert!(lock.try_lock().unwrap().is_some());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s14_a_lock_that_was_dropped_is_held_for_other_clients_until_the_server_knows() {
    skip_without_server!();
    let rig = Rig::with_session("s14-dropped", QUIET);
    let (lock, theirs) = (rig.lock(), mutex(&rig.holder, &rig.site.base, "a"));
    rig.proxy.stall_request(opcode::DELETE);
    drop(lock.lock().unwrap());
    assert!(theirs.try_lock().unwrap().is_none());
    rig.proxy.release();
    rig.wait_until_clean(0, "the release");
    assert!(theirs.try_lock().unwrap().is_some());
    drop((lock, theirs));
    rig.finish();
}

#[test]
fn s15_a_wait_for_a_held_lock_ends_on_time() {
    skip_without_zookeeper!();
    let site = Site::shared("s15");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    // A call that returns before its grace is over has waited until its node was deleted.
    let grace_ends = |limit| if limit < GRACE { GRACE } else { limit + GRACE };
    let assert_gone = |took: Took, limit| match took.time() < grace_ends(limit) {
        true => assert_eq!(site.children("a").len(), 1, "its node was left"),
        false => site.wait_for_children("a", 1),
    };
    for limit in [1, 20, 150].map(Duration::from_millis) {
        let (result, took) = timed(|| lock.try_lock_for(limit).unwrap());
        assert!(
            result.is_none() && took.at_least(limit) && took.within(limit + LATE),
            "{limit:?}: {took:?}"
        );
        assert_gone(took, limit);
        let start = Stopwatch::start();
        assert!(lock.lock_within(start.instant() + limit).unwrap().is_none());
        let took = start.took();
        assert!(took.at_least(limit) && took.within(limit + LATE), "{limit:?}: {took:?}");
        assert_gone(took, limit);
    }
    drop(guard);
    let (result, took) = timed(|| lock.try_lock_for(Duration::from_secs(5)).unwrap());
    assert!(result.is_some() && took.within(Duration::from_secs(1)), "{took:?} for a free lock");
    drop((result, lock));
    site.finish([zk]);
}

/// Releases the lock `a` while a call waits for it with this limit, and checks that it gets it.
fn released_to_a_waiter(site: &Site, lock: &DistributedLock, guard: LockGuard, limit: Duration) {
    let theirs = lock.clone();
    let waiter = waiting(move || theirs.try_lock_for(limit).unwrap());
    eventually(SOON, "the waiter", || site.children("a").len() == nodes_of(2));
    drop(guard);
    waiter.join().unwrap().expect("the lock").unlock().unwrap();
}

#[test]
fn s15_a_release_within_the_time_is_noticed() {
    skip_without_zookeeper!();
    let site = Site::shared("s15-release");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    released_to_a_waiter(&site, &lock, guard, SOON);
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s16_those_who_leave_meanwhile_do_not_prolong_a_wait_on_time() {
    skip_without_server!();
    let rig = Rig::new("s16");
    let guard = rig.held();
    let mut raw = rig.site.raw();
    let between: Vec<String> = (0..100)
        .map(|_| {
            let path = format!("{}/a/lock-", rig.site.base);
            raw.create(&path, b"", Kind::EphemeralSequential).unwrap()
        })
        .collect();
    let limit = Duration::from_secs(2);
    let lock = rig.lock();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| timed(|| lock.try_lock_for(limit).unwrap()));
        // Each predecessor leaves as soon as it is watched.
        let mut left = 0;
        while !waiter.is_finished() {
            let watched = rig.proxy.wait_for_requests(
                opcode::GET_CHILDREN2,
                left as u64 + 1,
                Duration::from_millis(20),
            );
            if watched && left < between.len() {
                raw.delete(&between[between.len() - 1 - left]).unwrap();
                left += 1;
                thread::sleep(Duration::from_millis(10));
            }
        }
        let (result, took) = waiter.join().unwrap();
        assert!(result.is_none() && took.at_least(limit) && took.within(limit + LATE), "{took:?}");
        assert!(left > 10, "only {left} have left meanwhile");
        assert_eq!(rig.contenders(), 1 + between.len() - left);
    });
    raw.close().unwrap();
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s17_a_server_that_is_down_ends_no_wait_late_and_keeps_no_node_on_time() {
    skip_without_server!();
    let rig = Rig::with_session("s17", Duration::from_secs(30));
    let (lock, guard) = (rig.lock(), rig.held());
    let session = rig.zk.session_id();
    // Long enough for all steps of the test on a busy machine.
    let limit = Duration::from_millis(2_500);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| timed(|| lock.try_lock_for(limit).unwrap()));
        rig.wait_for_contenders(2);
        // A list has shown the holder: otherwise the call must not say that another has the lock.
        assert!(rig.proxy.wait_for_request(opcode::GET_DATA, SOON));
        rig.site.server().kill();
        let (result, took) = waiter.join().unwrap();
        assert!(result.is_none() && took.at_least(limit) && took.within(limit + LATE), "{took:?}");
    });
    assert_eq!(rig.zk.stats().pending_deletes, 1);
    rig.site.server().start_again();
    rig.wait_until_clean(1, "the outage");
    assert_eq!(rig.zk.session_id(), session, "the node went with its session");
    guard.ensure_held().unwrap();
    // After a drop the other client's request may reach the server before the deletion does.
    guard.unlock().unwrap();
    assert!(lock.try_lock().unwrap().is_some());
    drop(lock);
    rig.finish();
}

#[test]
fn s18_a_black_hole_ends_no_wait_late_on_time() {
    skip_without_server!();
    // The limits end before the client notices, and after the end of its session.
    let rig = Rig::with_session("s18", Duration::from_secs(2));
    let (lock, guard) = (rig.lock(), rig.held());
    for limit in [100, 3_000].map(Duration::from_millis) {
        thread::scope(|scope| {
            let waiter = scope.spawn(|| timed(|| lock.try_lock_for(limit)));
            if limit > LATE {
                rig.wait_for_contenders(2);
            }
            rig.proxy.black_hole();
            let (result, took) = waiter.join().unwrap();
            assert!(
                got_nothing(result) && took.at_least(limit) && took.within(limit + LATE),
                "{took:?}"
            );
        });
        // The same for a call that begins in the black hole.
        let (result, took) = timed(|| lock.try_lock_for(limit));
        assert!(is_unanswered(result) && took.at_least(limit) && took.within(limit + LATE));
        rig.proxy.pass();
        rig.wait_until_clean(1, "the black hole");
    }
    drop(guard);
    assert!(lock.try_lock_for(SOON).unwrap().is_some());
    drop(lock);
    rig.finish();
}

#[test]
fn s19_no_duration_and_no_instant_is_too_short_or_too_long() {
    skip_without_zookeeper!();
    let site = Site::shared("s19");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let now = Instant::now();
    let past = now.checked_sub(Duration::from_secs(3600)).unwrap_or(now);
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX)] {
        drop(lock.try_lock_for(limit).unwrap().expect("it is free"));
    }
    // Even the shortest limit allows one attempt, which may fail on a busy machine.
    let is_got = |got: Result<Option<LockGuard>>| got.is_ok_and(|guard| guard.is_some());
    eventually(SOON, "a free lock", || is_got(lock.try_lock_for(Duration::ZERO)));
    eventually(SOON, "a free lock", || is_got(lock.lock_within(past)));
    let guard = lock.lock().unwrap();
    assert!(got_nothing(lock.try_lock_for(Duration::ZERO)));
    assert!(got_nothing(lock.try_lock_for(Duration::from_nanos(1))));
    assert!(lock.lock_within(past).unwrap().is_none());
    assert!(lock.lock_within(now).unwrap().is_none());
    released_to_a_waiter(&site, &lock, guard, Duration::MAX);
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s20_a_cancelled_waiter_leaves_no_node_and_the_next_one_proceeds_on_time() {
    skip_without_zookeeper!();
    let site = Site::shared("s20");
    let zk = site.client();
    let lock = strict(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let leaves = scope.spawn(|| {
            let error = lock.lock_within(&cancel).unwrap_err();
            (error, Moment::now())
        });
        eventually(SOON, "the waiter", || site.children("a").len() == 2);
        let stays = scope.spawn(|| lock.lock().unwrap());
        eventually(SOON, "the next waiter", || site.children("a").len() == 3);
        let start = Stopwatch::start();
        cancel.cancel();
        let (error, end) = leaves.join().unwrap();
        let took = start.took_until(end);
        assert!(took.within(LATE), "{took:?}");
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert_eq!(error.path(), Some(&*format!("{}/a", site.base)));
        assert!(!error.is_retryable());
        assert_eq!(site.children("a").len(), 2, "its node was left");
        assert!(!stays.is_finished());
        drop(guard);
        stays.join().unwrap().unlock().unwrap();
    });
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s21_a_cancel_before_or_after_touches_no_other_acquisition() {
    skip_without_server!();
    let rig = Rig::with_session("s21", Duration::from_secs(60));
    let lock = rig.lock();
    let cancel = Cancel::new();
    cancel.clone().cancel();
    assert!(cancel.is_cancelled());
    for _ in 0..2 {
        assert_eq!(kind(lock.lock_within(&cancel)), ErrorKind::Cancelled);
    }
    assert_eq!(rig.proxy.count(opcode::CREATE), 0, "it fails before the first request");
    assert_eq!(rig.contenders(), 0);
    drop(lock.lock().unwrap());

    let cancel = Cancel::new();
    let guard = lock.lock_within(&cancel).unwrap().unwrap();
    cancel.cancel();
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
    drop(lock.lock_within(&Cancel::new()).unwrap());
    drop(lock.try_lock().unwrap().expect("free"));
    drop(lock);
    rig.finish();
}

/// What each way to wait comes to when the client is closed, and how long after it.
fn close_while_waiting(rig: &Rig, hurt: impl FnOnce()) -> [(ErrorKind, Took); 4] {
    let lock = rig.lock();
    let cancel = Cancel::new();
    let waits: [&(dyn Fn() -> Result<Option<LockGuard>> + Sync); 4] = [
        &|| lock.lock().map(Some),
        &|| lock.lock_within(&cancel),
        &|| lock.try_lock_for(SOON),
        &|| lock.lock_within(Instant::now() + SOON),
    ];
    thread::scope(|scope| {
        let (tell, tasks) = mpsc::channel();
        let waiters = waits.map(|wait| {
            let tell = tell.clone();
            scope.spawn(move || {
                tell.send(own_task()).unwrap();
                (kind(wait()), Moment::now())
            })
        });
        tasks.iter().take(waiters.len()).for_each(wait_until_asleep);
        rig.wait_for_contenders(1 + nodes_of(4));
        hurt();
        let start = Stopwatch::start();
        rig.zk.close();
        waiters.map(|waiter| {
            let (kind, end) = waiter.join().unwrap();
            (kind, start.took_until(end))
        })
    })
}

#[test]
fn s22_to_close_the_client_ends_every_wait_on_time() {
    skip_without_server!();
    let rig = Rig::new("s22");
    let guard = rig.held();
    for (kind, took) in close_while_waiting(&rig, || {}) {
        assert_eq!(kind, ErrorKind::Closed);
        assert!(took.within(LATE), "{took:?}");
    }
    // The session is closed, so its nodes are gone.
    assert_eq!(rig.contenders(), 1);
    drop(guard);
    rig.finish();
}

#[test]
fn s22_to_close_the_client_ends_every_wait_in_an_outage_too() {
    skip_without_server!();
    type Fault = fn(&Rig);
    let faults: [(&str, Fault); 3] = [
        ("s22-hole", |rig| rig.proxy.black_hole()),
        ("s22-refuse", |rig| {
            rig.proxy.refuse();
            rig.wait_for(SessionState::Suspended);
        }),
        ("s22-paused", |rig| rig.site.server().pause()),
    ];
    for (name, fault) in faults {
        let rig = Rig::with_session(name, Duration::from_secs(3));
        let guard = rig.held();
        for (kind, took) in close_while_waiting(&rig, || fault(&rig)) {
            assert_eq!(kind, ErrorKind::Closed, "{name}");
            assert!(took.within(PROMPTLY), "{name}: {took:?}");
        }
        rig.site.server().resume();
        rig.proxy.pass();
        rig.wait_for_contenders(1);
        drop(guard);
        rig.finish();
    }
}

#[test]
fn s22_once_closed_every_call_says_so() {
    skip_without_zookeeper!();
    let site = Site::shared("s22-closed");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let [guard, other] = ["a", "b"].map(|name| mutex(&zk, &site.base, name).lock().unwrap());
    let (told, tells) = mpsc::channel();
    guard.on_lost(move |why| told.send(why).unwrap());
    zk.close();
    zk.close();
    assert_eq!(zk.state(), SessionState::Closed);
    assert_eq!(zk.session_id(), None);
    assert_eq!(site.children("a").len(), 0, "close has returned before the node was gone");
    assert!(!guard.is_held());
    assert_eq!(tells.recv_timeout(SOON), Ok(LossReason::ClientClosed));
    assert_eq!(guard.lost().wait(), Err(LossReason::ClientClosed));
    let kinds = [
        kind(guard.ensure_held()),
        kind(guard.unlock()),
        kind(lock.lock()),
        kind(lock.lock_within(&Cancel::new())),
        kind(lock.try_lock()),
        kind(lock.try_lock_for(Duration::ZERO)),
        kind(lock.try_lock_for(Duration::from_secs(1))),
        kind(lock.lock_within(Instant::now())),
        kind(lock.contenders()),
    ];
    assert_eq!(kinds, [ErrorKind::Closed; 9]);
    drop((other, lock));
    site.finish([zk]);
}

/// A fault that makes the ensemble hard to reach, and its end.
struct Fault {
    name: &'static str,
    strike: fn(&Rig),
    heal: fn(&Rig),
}

fn of_the_proxy(name: &'static str, strike: fn(&Rig)) -> Fault {
    Fault { name, strike, heal: |rig| rig.proxy.pass() }
}

const ALWAYS: usize = usize::MAX;

/// Checks that calls end on time, and that their nodes are gone once the fault is over.
fn calls_are_on_time(test: &str, faults: impl IntoIterator<Item = Fault>) {
    // Longer than a server takes to start on a busy machine.
    let rig = Rig::with_session(test, Duration::from_secs(15));
    let session = rig.zk.session_id();
    let (lock, guard) = (rig.lock(), rig.held());
    let free = mutex(&rig.zk, &rig.site.base, "b");
    drop(free.lock().unwrap());
    // Otherwise the client would replace its session after a request without an answer.
    let kept = mutex(&rig.zk, &rig.site.base, "kept").lock().unwrap();
    for fault in faults {
        (fault.strike)(&rig);
        for limit in [0, 1, 300].map(Duration::from_millis) {
            let (result, took) = timed(|| lock.try_lock_for(limit));
            println!("{}: {limit:?} took {took:?}", fault.name);
            assert!(got_nothing(result), "{}: {limit:?}", fault.name);
            assert!(took.within(limit + LATE), "{}: {limit:?} took {took:?}", fault.name);
        }
        let past = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let (result, took) = timed(|| lock.lock_within(past));
        assert!(got_nothing(result), "{}: in the past", fault.name);
        assert!(took.within(LATE), "{}: in the past took {took:?}", fault.name);
        // A free lock may be acquired or not.
        for limit in [0, 60].map(Duration::from_millis) {
            let (result, took) = timed(|| free.try_lock_for(limit));
            assert!(result.as_ref().map_or_else(Error::is_outage, |_| true), "{}", fault.name);
            assert!(took.within(limit + LATE), "{}: {limit:?} took {took:?}", fault.name);
            let ((), took) = timed(|| drop(result));
            assert!(took.within(PARTING), "{}: took {took:?} to drop", fault.name);
        }
        (fault.heal)(&rig);
        let ((), took) = timed(|| rig.wait_until_clean(1, fault.name));
        println!("{}: clean {took:?} after its end", fault.name);
        rig.wait_until_connected();
        assert_eq!(
            rig.zk.session_id(),
            session,
            "{}: the nodes went with their session",
            fault.name
        );
        eventually(SOON, "the release of the free lock", || rig.site.children("b").is_empty());
    }
    guard.unlock().unwrap();
    lock.lock().unwrap().unlock().unwrap();
    drop((lock, free, kept));
    rig.finish();
}

#[test]
fn s18_in_every_fault_of_the_network_calls_are_on_time() {
    skip_without_server!();
    calls_are_on_time(
        "matrix-network",
        [
            of_the_proxy("no fault", |_| {}),
            of_the_proxy("black hole", |rig| rig.proxy.black_hole()),
            of_the_proxy("hold", |rig| rig.proxy.hold()),
            of_the_proxy("refuse", |rig| rig.proxy.refuse()),
            of_the_proxy("delay", |rig| rig.proxy.delay(Duration::from_millis(200))),
            of_the_proxy("delayed replies", |rig| {
                rig.proxy.delay_replies(Duration::from_millis(60));
            }),
        ],
    );
}

#[test]
fn s18_in_every_fault_of_one_request_calls_are_on_time() {
    skip_without_server!();
    calls_are_on_time(
        "matrix-requests",
        [
            of_the_proxy("no reply to create", |rig| rig.proxy.drop_reply(opcode::CREATE, ALWAYS)),
            of_the_proxy("no reply to list", |rig| {
                rig.proxy.drop_reply(opcode::GET_CHILDREN, ALWAYS);
            }),
            of_the_proxy("no reply to delete", |rig| rig.proxy.drop_reply(opcode::DELETE, ALWAYS)),
            of_the_proxy("no reply to sync", |rig| rig.proxy.drop_reply(opcode::SYNC, ALWAYS)),
            of_the_proxy("one lost reply to create", |rig| {
                rig.proxy.drop_reply(opcode::CREATE, 1);
            }),
            of_the_proxy("one lost reply to delete", |rig| {
                rig.proxy.drop_reply(opcode::DELETE, 1);
            }),
            of_the_proxy("no create", |rig| rig.proxy.drop_request(opcode::CREATE, ALWAYS)),
            of_the_proxy("no list", |rig| rig.proxy.drop_request(opcode::GET_CHILDREN, ALWAYS)),
            of_the_proxy("no watch", |rig| rig.proxy.drop_request(opcode::GET_CHILDREN2, ALWAYS)),
            of_the_proxy("no delete", |rig| rig.proxy.drop_request(opcode::DELETE, ALWAYS)),
            of_the_proxy("create stalls", |rig| rig.proxy.stall_reply(opcode::CREATE)),
            of_the_proxy("list stalls", |rig| rig.proxy.stall_reply(opcode::GET_CHILDREN)),
            of_the_proxy("watch stalls", |rig| rig.proxy.stall_reply(opcode::GET_DATA)),
            of_the_proxy("delete stalls", |rig| rig.proxy.stall_reply(opcode::DELETE)),
        ],
    );
}

#[test]
fn s17_in_every_fault_of_the_server_calls_are_on_time() {
    skip_without_server!();
    calls_are_on_time(
        "matrix-server",
        [
            Fault {
                name: "paused",
                strike: |rig| rig.site.server().pause(),
                heal: |rig| rig.site.server().resume(),
            },
            Fault {
                name: "killed",
                strike: |rig| rig.site.server().kill(),
                heal: |rig| rig.site.server().start_again(),
            },
        ],
    );
}

#[test]
fn s18_while_the_connection_is_cut_again_and_again_calls_are_on_time() {
    skip_without_server!();
    let rig = Rig::new("matrix-cut");
    let (lock, guard) = (rig.lock(), rig.held());
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::SeqCst) {
                rig.proxy.cut();
                thread::sleep(Duration::from_millis(7));
            }
        });
        for limit in [0, 1, 50, 300, 0, 1].map(Duration::from_millis) {
            let (result, took) = timed(|| lock.try_lock_for(limit));
            println!("cut: {limit:?} took {took:?}");
            assert!(got_nothing(result) && took.within(limit + LATE), "{limit:?} took {took:?}");
        }
        enough.store(true, Ordering::SeqCst);
    });
    rig.wait_until_clean(1, "the cuts");
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s18_with_no_session_to_be_had_calls_are_on_time() {
    skip_without_server!();
    let rig = Rig::with_session("matrix-lost", Duration::from_secs(2));
    let (lock, guard) = (rig.lock(), rig.held());
    let outages: [fn(&Proxy); 2] = [Proxy::black_hole, Proxy::refuse];
    for outage in outages {
        outage(&rig.proxy);
        rig.wait_for(SessionState::Lost);
        for limit in [0, 1, 2_500].map(Duration::from_millis) {
            let (result, took) = timed(|| lock.try_lock_for(limit));
            println!("lost: {limit:?} took {took:?}");
            assert!(
                is_unanswered(result) && took.at_least(limit) && took.within(limit + LATE),
                "{took:?}"
            );
        }
        // The limit of `try_lock` is the connect timeout.
        let (result, took) = timed(|| lock.try_lock());
        assert!(is_unanswered(result) && took.within(CONNECTING + LATE), "{took:?}");
        rig.proxy.pass();
        assert_eq!(lock.contenders().unwrap().len(), 1);
        rig.wait_until_clean(1, "the loss of the session");
        assert_eq!(rig.zk.state(), SessionState::Connected);
    }
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s18_try_lock_waits_for_an_ensemble_that_is_silent_no_longer_than_for_connecting_on_time() {
    skip_without_server!();
    let rig = Rig::new("s18-try");
    let (lock, guard) = (rig.lock(), rig.held());
    rig.proxy.black_hole();
    let (result, took) = timed(|| lock.try_lock());
    assert!(is_unanswered(result) && took.within(CONNECTING + LATE), "{took:?}");
    rig.proxy.pass();
    rig.wait_until_clean(1, "the black hole");
    drop((guard, lock));
    rig.finish();
}

/// Cancels a wait that began before a fault, and one that began during it.
fn a_cancel_ends_a_wait_in(rig: &Rig, fault: &Fault) {
    let lock = rig.lock();
    let cancels = [Cancel::new(), Cancel::new()];
    let begun = Barrier::new(2);
    let wait = |cancel: &Cancel| (kind(lock.lock_within(cancel)), Moment::now());
    thread::scope(|scope| {
        let early = scope.spawn(|| wait(&cancels[0]));
        rig.wait_for_contenders(2);
        (fault.strike)(rig);
        let late = scope.spawn(|| {
            begun.wait();
            wait(&cancels[1])
        });
        begun.wait();
        // Leaves the waits time to block wherever the fault makes them block.
        let tried = lock.try_lock_for(Duration::from_millis(200));
        let ends = cancels.each_ref().into_iter().zip([early, late]).map(|(cancel, waiter)| {
            let start = Stopwatch::start();
            cancel.cancel();
            let (kind, end) = waiter.join().unwrap();
            (kind, start.took_until(end))
        });
        let ends: Vec<(ErrorKind, Took)> = ends.collect();
        (fault.heal)(rig);
        assert!(got_nothing(tried), "{}", fault.name);
        println!("{}: cancelled in {ends:?}", fault.name);
        for (kind, took) in ends {
            assert_eq!(kind, ErrorKind::Cancelled, "{}", fault.name);
            assert!(took.within(PROMPTLY), "{}: {took:?}", fault.name);
        }
    });
    rig.wait_until_clean(1, fault.name);
    rig.wait_until_connected();
}

#[test]
fn s20_a_cancel_ends_a_wait_promptly_whatever_the_fault() {
    skip_without_server!();
    let rig = Rig::new("s20-faults");
    let guard = rig.held();
    for fault in [
        of_the_proxy("black hole", |rig| rig.proxy.black_hole()),
        of_the_proxy("refuse", |rig| rig.proxy.refuse()),
        of_the_proxy("delay", |rig| rig.proxy.delay(Duration::from_millis(200))),
        of_the_proxy("create stalls", |rig| rig.proxy.stall_reply(opcode::CREATE)),
        of_the_proxy("list stalls", |rig| rig.proxy.stall_reply(opcode::GET_CHILDREN)),
        of_the_proxy("watch stalls", |rig| rig.proxy.stall_reply(opcode::GET_DATA)),
        of_the_proxy("no list", |rig| rig.proxy.drop_request(opcode::GET_CHILDREN, ALWAYS)),
        of_the_proxy("no reply to create", |rig| rig.proxy.drop_reply(opcode::CREATE, ALWAYS)),
        Fault {
            name: "paused",
            strike: |rig| rig.site.server().pause(),
            heal: |rig| rig.site.server().resume(),
        },
        Fault {
            name: "killed",
            strike: |rig| rig.site.server().kill(),
            heal: |rig| rig.site.server().start_again(),
        },
    ] {
        a_cancel_ends_a_wait_in(&rig, &fault);
    }
    drop(guard);
    rig.finish();
}

/// Brings the client, after several attempts that failed at once, to a server that has accepted its
/// connection and never answers, as one does that is starting.
fn await_a_silent_server(rig: &Rig) -> (TcpListener, TcpStream) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    // A port on which nothing listens, so that every connection is closed at once.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let before = rig.proxy.connections();
    rig.proxy.set_target(nobody);
    rig.proxy.cut();
    eventually(SOON, "seven attempts", || rig.proxy.connections() >= before + 7);
    rig.proxy.set_target(address);
    let (accepted, _) = silent.accept().unwrap();
    (silent, accepted)
}

#[test]
fn s25_a_server_that_accepts_before_it_answers_holds_nobody_up() {
    skip_without_server!();
    let rig = Rig::with_session("s25-silent", Duration::from_secs(15));
    let session = rig.zk.session_id();
    let silent = await_a_silent_server(&rig);
    rig.proxy.set_target(rig.site.server().addr());
    let start = Stopwatch::start();
    rig.wait_for(SessionState::Connected);
    println!("served again after {:?}", start.elapsed());
    assert!(start.took().within(Duration::from_secs(5)), "{:?}", start.took());
    assert_eq!(rig.zk.session_id(), session);
    drop(silent);
    rig.finish();
}

#[test]
fn s25_a_client_that_is_gone_waits_for_no_silent_server() {
    skip_without_server!();
    let rig = Rig::with_session("s25-gone", Duration::from_secs(30));
    let silent = await_a_silent_server(&rig);
    rig.zk.close();
    // This also checks that no thread is left.
    rig.finish();
    drop(silent);
}

/// Checks calls that begin during an outage and end after it.
fn lock_through_an_outage(test: &str, timeout: Duration, state: SessionState) {
    for (name, strike, heal) in [
        ("refuse", (|rig| rig.proxy.refuse()) as fn(&Rig), (|rig| rig.proxy.pass()) as fn(&Rig)),
        ("hole", |rig| rig.proxy.black_hole(), |rig| rig.proxy.pass()),
        ("killed", |rig| rig.site.server().kill(), |rig| rig.site.server().start_again()),
    ] {
        let rig = Rig::with_session(&format!("{test}-{name}"), timeout);
        strike(&rig);
        rig.wait_for(state);
        let lock = rig.lock();
        let cancel = Cancel::new();
        thread::scope(|scope| {
            let plain = scope.spawn(|| drop(lock.lock().unwrap()));
            let cancellable = scope.spawn(|| drop(lock.lock_within(&cancel).unwrap()));
            assert!(is_unanswered(lock.try_lock_for(Duration::from_millis(50))));
            assert!(!plain.is_finished() && !cancellable.is_finished());
            heal(&rig);
            plain.join().unwrap();
            cancellable.join().unwrap();
        });
        rig.wait_until_clean(0, name);
        drop(lock);
        rig.finish();
    }
}

#[test]
fn s17_a_lock_without_a_limit_outlasts_a_suspended_session() {
    skip_without_server!();
    lock_through_an_outage("s17-suspended", Duration::from_secs(4), SessionState::Suspended);
}

#[test]
fn s17_a_lock_without_a_limit_outlasts_a_lost_session() {
    skip_without_server!();
    lock_through_an_outage("s17-lost", Duration::from_millis(600), SessionState::Lost);
}

/// Each call with a timeout has a thread to send its requests, however many calls there are.
#[test]
fn s15_no_call_waits_for_the_calls_of_others() {
    const CALLS: usize = 40;
    skip_without_server!();
    let site = Site::own("s15-calls");
    let (proxy, zk) = site.proxied(QUIET);
    let locks: Vec<_> = (0..CALLS).map(|i| strict(&zk, &site.base, i.to_string())).collect();
    locks.iter().for_each(|lock| drop(lock.lock().unwrap()));
    proxy.hold();
    proxy.reset_counts();
    let calls: Vec<_> = locks
        .iter()
        .cloned()
        .map(|lock| in_background(move || lock.try_lock_for(QUIET).unwrap().is_some()))
        .collect();
    assert!(
        proxy.wait_for_requests(opcode::CREATE, CALLS as u64, Duration::from_secs(30)),
        "only {} of {CALLS} calls have sent a request",
        proxy.count(opcode::CREATE)
    );
    proxy.release();
    assert!(calls.into_iter().all(|call| call.recv().unwrap()));
    drop(locks);
    site.finish([zk]);
}

#[test]
fn s22_an_error_of_a_closed_client_says_what_it_is_about() {
    skip_without_zookeeper!();
    let site = Site::shared("s22-error");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    zk.close();
    let error: Error = lock.lock().unwrap_err();
    assert_eq!(error.path(), Some(&*format!("{}/a", site.base)), "{error}");
    assert!(!error.is_retryable() && error.to_string().contains("closed"), "{error}");
    drop(lock);
    site.finish([zk]);
}
