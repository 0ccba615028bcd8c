//! Limits are kept, whatever the fault.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Cancel, Error, SessionState};

use super::{ALWAYS, CONNECTING, Fault, LATE, Rig, SOON, of_the_proxy};
use crate::support::proxy::{Proxy, opcode};
use crate::support::stopwatch::Stopwatch;
use crate::support::{eventually, got_nothing, is_unanswered, mutex, skip_without_server, timed};

/// More than the clean-up may take when there is no deadline.
const PARTING: Duration = Duration::from_millis(700);

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
