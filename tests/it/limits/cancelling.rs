//! Waits that are cancelled, or whose client is closed.

use std::sync::Barrier;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Cancel, Error, ErrorKind, LockGuard, LossReason, Result, SessionState};

use super::{ALWAYS, Fault, LATE, Rig, SOON, of_the_proxy};
use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::stopwatch::{Moment, Stopwatch, Took};
use crate::support::{
    eventually, got_nothing, kind, mutex, nodes_of, own_task, skip_without_server,
    skip_without_zookeeper, strict, wait_until_asleep,
};

/// The same on a busy machine, and far below any timeout.
const PROMPTLY: Duration = Duration::from_secs(2);

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
