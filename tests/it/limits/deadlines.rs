//! Tries, and waits that end on time.

use std::thread;
use std::time::{Duration, Instant};

use zklock::{DistributedLock, LockGuard, Result};

use super::{LATE, Rig, SOON};
use crate::support::proxy::opcode;
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::stopwatch::{Stopwatch, Took};
use crate::support::{
    QUIET, eventually, got_nothing, in_background, mutex, nodes_of, skip_without_server,
    skip_without_zookeeper, strict, timed, waiting,
};

/// How long a call that ends at a deadline still waits until its node is deleted.
const GRACE: Duration = Duration::from_millis(50);

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
