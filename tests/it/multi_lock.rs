use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use zklock::{
    Cancel, ContenderKind, DistributedRwLock, DistributedSemaphore, ErrorKind, LossReason,
    MultiGuard, MultiLock, NodeNaming, ReentrantGuard, ReentrantLock, SessionState,
};

use crate::support::proxy::{Seen, opcode};
use crate::support::raw::{Acl, Kind};
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    QUIET, connecting, eventually, got_nothing, kind, last, mutex, nodes_of, own_task, reentrant,
    skip_without_server, skip_without_zookeeper, wait_until_asleep, waiting,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);
/// What the machine may add to a limit.
const OVERSHOOT: Duration = Duration::from_millis(500);

// ----- reentrant

#[test]
fn s05_n_locks_need_n_drops() {
    skip_without_server!();
    let site = Site::own("s05");
    let (proxy, zk) = site.proxied(QUIET);
    let lock = reentrant(&zk, &site.base, "a");
    let is_free = || {
        let lock = lock.clone();
        thread::spawn(move || lock.try_lock().unwrap().is_some()).join().unwrap()
    };
    assert!(is_free());
    // The guards end in any order, by `unlock` or drop.
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let mut guards = vec![Some(lock.lock().unwrap())];
        // Once this is answered, no earlier request of the first guard is counted any more.
        guards[0].as_ref().unwrap().ensure_held().unwrap();
        proxy.reset_counts();
        guards.push(lock.try_lock().unwrap());
        guards.push(lock.try_lock_for(BRIEF).unwrap());
        guards.push(lock.lock_within(&Cancel::new()).unwrap());
        // The request that watches the first guard's node may still arrive.
        let is_watch = |seen: &Seen| seen.opcode == opcode::GET_DATA;
        let asked: Vec<_> = proxy.requests().into_iter().filter(|seen| !is_watch(seen)).collect();
        assert_eq!(asked, [], "a request for a reentrant lock");
        let token = guards[0].as_ref().unwrap().fencing_token();
        assert!(guards.iter().flatten().all(|guard| guard.fencing_token() == token));
        assert_eq!(site.children("a").len(), 1);
        for (dropped, place) in order.into_iter().enumerate() {
            assert!(!is_free(), "{order:?}: free after {dropped}");
            let guard = guards[place].take().expect("each is dropped once");
            assert!(guard.is_held());
            if place % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
        }
        site.wait_for_children("a", 0);
        assert!(is_free());
    }
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s05_other_threads_wait_until_the_last_guard_is_dropped() {
    skip_without_zookeeper!();
    let site = Site::shared("s05-threads");
    let zk = site.client();
    let lock = reentrant(&zk, &site.base, "a");
    let outer = lock.lock().unwrap();
    // A clone is the same lock, and another value of the same path is another.
    let inner = lock.clone().lock().unwrap();
    assert!(reentrant(&zk, &site.base, "a").try_lock().unwrap().is_none());
    assert!(mutex(&zk, &site.base, "a").try_lock().unwrap().is_none());
    let inside = AtomicUsize::new(2);
    thread::scope(|scope| {
        let (tell, tasks) = mpsc::channel();
        for _ in 0..2 {
            let (tell, lock, inside) = (tell.clone(), &lock, &inside);
            scope.spawn(move || {
                tell.send(own_task()).unwrap();
                assert!(lock.clone().try_lock().unwrap().is_none());
                let guard = lock.lock().unwrap();
                assert_eq!(inside.fetch_add(2, Ordering::SeqCst), 0, "two holders at once");
                let again = lock.lock().unwrap();
                drop(guard);
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(again.is_held());
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(again);
            });
        }
        tasks.iter().take(2).for_each(wait_until_asleep);
        let waiters = || lock.contenders().unwrap().len() == nodes_of(3);
        eventually(SOON, "the waiters", waiters);
        inside.fetch_sub(1, Ordering::SeqCst);
        drop(outer);
        inner.ensure_held().unwrap();
        inside.fetch_sub(1, Ordering::SeqCst);
        drop(inner);
    });
    site.wait_for_children("a", 0);
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s05_a_lock_lost_inside_is_an_error_until_all_its_guards_are_dropped() {
    skip_without_server!();
    let site = Site::own("s05-lost");
    let (proxy, zk) = site.proxied(Duration::from_secs(3));
    let lock = reentrant(&zk, &site.base, "a");
    for (reason, expected) in [
        (LossReason::NodeDeleted, ErrorKind::NodeDeleted),
        (LossReason::LeaseExpired, ErrorKind::SessionLost),
    ] {
        let outer = lock.lock().unwrap();
        let inner = lock.lock().unwrap();
        match reason {
            LossReason::NodeDeleted => site.raw().delete(outer.path()).unwrap(),
            _ => proxy.black_hole(),
        }
        assert_eq!(outer.lost().wait_within(SOON), Some(Err(reason)));
        proxy.pass();
        assert!(!outer.is_held() && !inner.is_held());
        assert_eq!(kind(lock.lock()), expected);
        assert_eq!(kind(lock.try_lock()), expected);
        assert_eq!(kind(lock.try_lock_for(SOON)), expected);
        assert_eq!(kind(MultiLock::new().with_reentrant(&lock).lock()), expected);
        // Only the release of the last guard sends a request.
        outer.unlock().unwrap();
        assert_eq!(kind(lock.lock()), expected);
        assert_eq!(kind(inner.unlock()), expected);
        let again = lock.lock().unwrap();
        again.ensure_held().unwrap();
        again.unlock().unwrap();
    }
    drop(lock);
    site.finish([zk]);
}

/// Guards may be dropped after the thread's table of guards.
#[test]
fn s05_a_guard_may_end_with_its_thread() {
    skip_without_zookeeper!();
    thread_local! {
        static KEPT: RefCell<Vec<ReentrantGuard>> = const { RefCell::new(Vec::new()) };
    }
    let site = Site::shared("s05-thread");
    let zk = site.client();
    let lock = reentrant(&zk, &site.base, "a");
    for kept_first in [false, true] {
        let theirs = lock.clone();
        let ended = thread::spawn(move || {
            // Thread locals are dropped in an order that depends on which is used first.
            if kept_first {
                KEPT.with_borrow_mut(Vec::clear);
            }
            let guards = [theirs.lock().unwrap(), theirs.lock().unwrap()];
            KEPT.with_borrow_mut(|kept| kept.extend(guards));
        });
        ended.join().unwrap();
        let guard = lock.try_lock_for(SOON).unwrap().expect("released with the thread");
        drop(guard);
    }
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s05_a_thread_may_lock_at_its_end() {
    skip_without_zookeeper!();
    struct Last(ReentrantLock, mpsc::Sender<bool>);
    impl Drop for Last {
        fn drop(&mut self) {
            let locked = self.0.try_lock().is_ok_and(|guard| guard.is_some());
            self.1.send(locked).unwrap();
        }
    }
    thread_local! {
        static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    let site = Site::shared("s05-end");
    let zk = site.client();
    let lock = reentrant(&zk, &site.base, "a");
    for last_first in [false, true] {
        let (theirs, (tell, told)) = (lock.clone(), mpsc::channel());
        let ended = thread::spawn(move || {
            // Thread locals are dropped in an order that depends on which is used first.
            let locks = || drop(theirs.lock().unwrap());
            if !last_first {
                locks();
            }
            LAST.set(Some(Last(theirs.clone(), tell)));
            if last_first {
                locks();
            }
        });
        ended.join().unwrap();
        assert_eq!(told.recv(), Ok(true), "{last_first}");
        site.wait_for_children("a", 0);
    }
    drop(lock);
    site.finish([zk]);
}

// ----- several at once

#[test]
fn s64_when_one_fails_those_before_are_released_and_those_behind_are_not_tried() {
    skip_without_server!();
    let site = Site::own("s64");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.client();
    let lock = |name: &str| mutex(&zk, &site.base, name);
    for name in ["a", "b", "c", "d"] {
        site.raw().create_all(&format!("{}/{name}", site.base)).unwrap();
    }
    // Named in an order that differs from that of their nodes.
    let all = MultiLock::new().with(&lock("d")).with(&lock("b")).with(&lock("c")).with(&lock("a"));
    let holder = mutex(&other, &site.base, "c").lock().unwrap();
    let asked = |name: &str, operation: i32| {
        let node = format!("{}/{name}/", site.base);
        let requests = proxy.requests();
        requests.iter().position(|one| {
            one.opcode == operation && one.path.as_ref().is_some_and(|path| path.starts_with(&node))
        })
    };
    let check = |case: &str, in_time: bool| {
        let made = ["a", "b", "c"].map(|name| asked(name, opcode::CREATE));
        assert!(made.iter().all(Option::is_some) && made.is_sorted(), "{case}: {made:?}");
        assert_eq!(asked("d", opcode::CREATE), None, "{case}: d was tried");
        let gone = || ["c", "b", "a"].map(|name| asked(name, opcode::DELETE));
        eventually(SOON, "all to be released", || gone().iter().all(Option::is_some));
        // After the deadline they are released in the background, in any order.
        assert!(!in_time || gone().is_sorted(), "{case}: {:?}", gone());
        for (name, count) in [("a", 0), ("b", 0), ("c", 1), ("d", 0)] {
            site.wait_for_children(name, count);
        }
        proxy.reset_counts();
    };
    proxy.reset_counts();
    assert!(all.try_lock().unwrap().is_none());
    check("try_lock", true);
    assert!(got_nothing(all.try_lock_for(Duration::from_secs(1))));
    check("try_lock_for", false);
    assert!(all.lock_within(Instant::now() + Duration::from_secs(1)).unwrap().is_none());
    check("lock_within", false);
    let cancel = Cancel::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            site.wait_for_children("c", 2);
            cancel.cancel();
        });
        assert_eq!(kind(all.lock_within(&cancel)), ErrorKind::Cancelled);
    });
    check("lock_within", true);
    holder.unlock().unwrap();
    let guard = all.lock().unwrap();
    let taken: Vec<String> = guard.fencing_tokens().iter().map(|one| one.0.to_owned()).collect();
    let nodes = ["a", "b", "c", "d"].map(|name| format!("{}/{name}/", site.base));
    assert!(taken.iter().zip(&nodes).all(|(path, node)| path.starts_with(node)), "{taken:?}");
    guard.ensure_held().unwrap();
    proxy.reset_counts();
    guard.unlock().unwrap();
    let gone = ["d", "c", "b", "a"].map(|name| asked(name, opcode::DELETE));
    assert!(gone.iter().all(Option::is_some) && gone.is_sorted(), "{gone:?}");
    drop(all);
    site.finish([zk, other]);
}

#[test]
fn s64_an_error_of_one_is_the_error_of_all() {
    skip_without_zookeeper!();
    const READ_ONLY: i32 = 1;
    let site = Site::shared("s64-error");
    let zk = site.client();
    let lock = |name: &str| mutex(&zk, &site.base, name);
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let node = format!("{}/b", site.base);
    let acl = [Acl::new(READ_ONLY, "world", "anyone")];
    raw.create_with_acl(&node, b"", Kind::Persistent, &acl).unwrap();
    let all = MultiLock::new().with(&lock("a")).with(&lock("b")).with(&lock("c"));
    for error in
        [all.lock().unwrap_err(), all.try_lock().unwrap_err(), all.try_lock_for(SOON).unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
        assert_eq!(error.path(), Some(&*node));
        assert_eq!(site.children("a").len(), 0);
    }
    // Not even its lock node was made.
    assert!(raw.exists(&format!("{}/c", site.base)).unwrap().is_none());
    let bad = MultiLock::new().with(&lock("a")).with(&lock("x/y"));
    assert_eq!(kind(bad.lock()), ErrorKind::InvalidName);
    let few = DistributedSemaphore::new(&zk, &site.base, "s", 2);
    let many = MultiLock::new().with(&lock("a")).with_permits(&few, 1).with_permits(&few, 2);
    assert_eq!(kind(many.lock()), ErrorKind::InvalidArgument, "three of two");
    assert_eq!(site.children("a").len(), 0);
    raw.close().unwrap();
    drop((all, bad, few, many));
    site.finish([zk]);
}

#[test]
fn s65_one_deadline_is_for_all_on_time() {
    skip_without_zookeeper!();
    let site = Site::shared("s65");
    let zk = site.client();
    let locks = ["a", "b", "c"].map(|name| mutex(&zk, &site.base, name));
    let all = locks.iter().fold(MultiLock::new(), MultiLock::with);
    // Long enough for all steps of the test on a busy machine.
    let limit = Duration::from_secs(3);
    let [a, b, c] = locks.each_ref().map(|lock| lock.lock().unwrap());
    let start = Stopwatch::start();
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let answer = all.try_lock_for(limit).unwrap();
            (answer.is_none(), start.took())
        });
        // The call has to wait for each lock; with a limit for each one it would end too late.
        site.wait_for_children("a", 2);
        thread::sleep((limit / 3).saturating_sub(start.elapsed()));
        drop(a);
        site.wait_for_children("b", 2);
        thread::sleep((limit / 3 * 2).saturating_sub(start.elapsed()));
        drop(b);
        site.wait_for_children("c", 2);
        let (none, took) = caller.join().unwrap();
        assert!(none);
        assert!(took.at_least(limit) && took.within(limit + OVERSHOOT), "{took:?}");
    });
    c.ensure_held().unwrap();
    // Nodes that are released after the deadline may be deleted in the background.
    for (name, count) in [("a", 0), ("b", 0), ("c", 1)] {
        site.wait_for_children(name, count);
    }
    drop((c, all, locks));
    site.finish([zk]);
}

/// One lock is behind a black hole, and the lock taken before it is released in time, too.
#[test]
fn s65_one_deadline_is_for_all_in_a_black_hole_too_on_time() {
    skip_without_server!();
    let site = Site::own("s65-hole");
    let zk = site.client();
    let (proxy, silent) = site.proxied(Duration::from_secs(20));
    let a = mutex(&zk, &site.base, "a");
    let b = mutex(&silent, &site.base, "b");
    drop(b.lock().unwrap());
    let limit = Duration::from_millis(600);
    for both in [false, true] {
        let mut all = MultiLock::new().with(&a).with(&b);
        if both {
            // The call takes `b`, waits for `c`, and cannot release `b` in the black hole.
            all = all.with(&mutex(&zk, &site.base, "c"));
        }
        let other = both.then(|| mutex(&zk, &site.base, "c").lock().unwrap());
        if both {
            let start = Stopwatch::start();
            thread::scope(|scope| {
                let caller = scope.spawn(|| {
                    let none = got_nothing(all.try_lock_for(limit));
                    (none, start.took())
                });
                site.wait_for_children("c", 2);
                proxy.black_hole();
                let (none, took) = caller.join().unwrap();
                assert!(none);
                assert!(took.within(limit + OVERSHOOT), "{took:?}");
            });
        } else {
            proxy.black_hole();
            let start = Stopwatch::start();
            assert!(got_nothing(all.try_lock_for(limit)));
            let took = start.took();
            assert!(took.at_least(limit) && took.within(limit + OVERSHOOT), "{took:?}");
        }
        // The node that can be reached is deleted almost at once.
        eventually(SOON, "a to be released", || site.children("a").is_empty());
        proxy.pass();
        eventually(SOON, "b to be released", || site.children("b").is_empty());
        drop(other);
    }
    drop((a, b));
    site.finish([zk, silent]);
}

#[test]
fn s66_two_who_name_them_in_opposite_order_do_not_wait_for_each_other() {
    skip_without_zookeeper!();
    const ROUNDS: usize = 30;
    let site = Site::shared("s66");
    let clients = [site.client(), site.client()];
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (number, zk) in clients.iter().enumerate() {
            let [a, b] = ["a", "b"].map(|name| mutex(zk, &site.base, name));
            let inside = &inside;
            scope.spawn(move || {
                let both = match number {
                    0 => MultiLock::new().with(&a).with(&b),
                    _ => MultiLock::new().with(&b).with(&a),
                };
                for _ in 0..ROUNDS {
                    let guard = both.try_lock_for(SOON * 2).unwrap().expect("no deadlock");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                    assert!(guard.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    });
    site.finish(clients);
}

#[test]
fn s67_when_one_release_fails_the_rest_are_released_and_the_errors_gathered() {
    skip_without_zookeeper!();
    let site = Site::shared("s67");
    let zk = site.client();
    let names = ["a", "b", "c", "d"];
    let locks = names.map(|name| mutex(&zk, &site.base, name));
    let all = locks.iter().fold(MultiLock::new(), MultiLock::with);
    let mut raw = site.raw();
    for broken in [&["b"][..], &["a", "c"], &["a", "b", "c", "d"]] {
        let guard = all.lock().unwrap();
        let (tell, told) = mpsc::channel();
        guard.on_lost(move |why| tell.send(why).unwrap());
        let (lost, token) = (guard.lost(), Cancel::from(guard.lost()));
        assert_eq!((lost.reason(), lost.wait_within(Duration::ZERO)), (None, None));
        let waits = {
            let lost = lost.clone();
            waiting(move || lost.wait())
        };
        for name in broken {
            let child = site.children(name).remove(0);
            raw.delete(&format!("{}/{name}/{child}", site.base)).unwrap();
        }
        // Called once, even if several locks are lost.
        assert_eq!(told.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
        assert!(told.recv_timeout(SOON).is_err(), "on_lost was called twice, or not dropped");
        assert!(!guard.is_held());
        assert_eq!(waits.join().unwrap(), Err(LossReason::NodeDeleted));
        assert!(token.is_cancelled());
        assert_eq!(kind(guard.ensure_held()), ErrorKind::NodeDeleted);
        let error = guard.unlock().unwrap_err();
        assert_eq!(lost.wait(), Err(LossReason::NodeDeleted));
        assert_eq!(lost.reason(), Some(LossReason::NodeDeleted));
        let errors: Vec<_> = std::iter::once(&error).chain(error.others()).collect();
        assert!(errors.iter().all(|one| one.kind() == ErrorKind::NodeDeleted), "{error}");
        let mut nodes: Vec<_> = errors
            .iter()
            .map(|one| one.path().unwrap().rsplit('/').nth(1).unwrap().to_owned())
            .collect();
        // Errors come in the order of release, which is reversed.
        nodes.reverse();
        assert_eq!(nodes, broken);
        assert!(names.iter().all(|name| site.children(name).is_empty()), "{broken:?}");
    }
    raw.close().unwrap();
    drop((all, locks));
    site.finish([zk]);
}

#[test]
fn what_is_named_twice_is_taken_once() {
    skip_without_server!();
    let site = Site::own("merged");
    let (proxy, zk) = site.proxied(QUIET);
    let same = site.proxied(QUIET);
    let lock = mutex(&zk, &site.base, "a");
    let by_reader = DistributedRwLock::new(&zk, &site.base, "b");
    let permits = DistributedSemaphore::new(&zk, &site.base, "c", 5);
    let entered = reentrant(&zk, &site.base, "d");
    let all = MultiLock::new()
        .with(&lock)
        .with_read(&by_reader)
        .with_permits(&permits, 2)
        .with_reentrant(&entered)
        .with(&lock.clone())
        .with_write(&by_reader)
        .with_read(&by_reader)
        .with_permits(&permits, 1)
        .with_reentrant(&entered.clone());
    let guard = all.lock().unwrap();
    assert_eq!(["a", "b", "c", "d"].map(|name| site.children(name).len()), [1; 4]);
    assert_eq!(by_reader.contenders().unwrap()[0].kind, ContenderKind::Write);
    assert_eq!(permits.contenders().unwrap()[0].weight, 3);
    assert_eq!(guard.fencing_tokens().len(), 3, "permits have none");
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
    assert_eq!(["a", "b", "c", "d"].map(|name| site.children(name).len()), [0; 4]);

    // Readers stay readers.
    let readers = MultiLock::new().with_read(&by_reader).with_read(&by_reader);
    let guard = readers.lock().unwrap();
    assert!(by_reader.try_read().unwrap().is_some());
    drop(guard);

    // Clients with different connect strings may belong to different ensembles.
    let (_, other) = &same;
    assert!(
        MultiLock::new()
            .with(&lock)
            .with(&mutex(other, &site.base, "z"))
            .try_lock()
            .unwrap()
            .is_some()
    );
    // Two clients with the same connect string belong to one ensemble.
    let twin = connecting(&proxy.hosts()).connect().unwrap();
    let twice = MultiLock::new().with(&lock).with(&mutex(&twin, &site.base, "a"));
    drop(twice.try_lock().unwrap().expect("it is one lock"));

    // What cannot be merged is refused before anything is taken.
    site.wait_for_children("a", 0);
    proxy.reset_counts();
    let kazoo = mutex(&zk, &site.base, "a").naming(NodeNaming::Kazoo);
    let of = |name: &str| DistributedSemaphore::new(&zk, &site.base, name, 4);
    for (case, odd) in [
        ("mutex and reader", MultiLock::new().with(&lock).with_read(&rw(&zk, &site, "a"))),
        ("mutex and permits", MultiLock::new().with(&lock).with_permits(&of("a"), 1)),
        ("writer and permits", MultiLock::new().with_write(&by_reader).with_permits(&of("b"), 1)),
        (
            "permits of 4 and 5",
            MultiLock::new().with_permits(&permits, 1).with_permits(&of("c"), 1),
        ),
        ("two namings", MultiLock::new().with(&lock).with(&kazoo)),
        (
            "reentrant and not",
            MultiLock::new().with(&mutex(&zk, &site.base, "d")).with_reentrant(&entered),
        ),
    ] {
        assert_eq!(kind(odd.lock()), ErrorKind::InvalidArgument, "{case}");
        assert_eq!(kind(odd.try_lock()), ErrorKind::InvalidArgument, "{case}");
    }
    assert_eq!(proxy.requests(), []);
    drop((lock, by_reader, permits, entered, all, readers, twice, kazoo));
    site.finish([zk, same.1, twin]);
}

fn rw(zk: &zklock::Client, site: &Site, name: &str) -> DistributedRwLock {
    DistributedRwLock::new(zk, &site.base, name)
}

#[test]
fn a_reentrant_lock_among_others_is_entered_again() {
    skip_without_zookeeper!();
    let site = Site::shared("entered");
    let zk = site.client();
    let entered = reentrant(&zk, &site.base, "b");
    let lock = mutex(&zk, &site.base, "a");
    let both = MultiLock::new().with_reentrant(&entered).with(&lock);
    let outer = entered.lock().unwrap();
    let guard = both.try_lock().unwrap().expect("this thread has one, and the other is free");
    let again = entered.lock().unwrap();
    assert_eq!(site.children("b").len(), 1);
    // It cannot be taken by another thread.
    thread::scope(|scope| {
        assert!(scope.spawn(|| both.try_lock().unwrap().is_none()).join().unwrap());
    });
    assert_eq!(site.children("a").len(), 1);
    guard.unlock().unwrap();
    assert_eq!(site.children("a").len(), 0);
    outer.unlock().unwrap();
    again.ensure_held().unwrap();
    // A failure does not release what was held before.
    let held = lock.lock().unwrap();
    assert!(got_nothing(both.try_lock_for(BRIEF)));
    again.ensure_held().unwrap();
    drop(held);
    let guard = both.lock().unwrap();
    drop(again);
    guard.ensure_held().unwrap();
    drop(guard);
    site.wait_for_children("b", 0);
    drop((entered, lock, both));
    site.finish([zk]);
}

/// If a session is lost while the call waits for the rest, locks taken with it are taken anew.
#[test]
fn s27_a_session_lost_on_the_way_lets_all_be_taken_anew() {
    skip_without_server!();
    let site = Site::own("anew");
    let zk = site.client();
    let (proxy, flaky) = site.proxied(Duration::from_secs(3));
    let a = mutex(&flaky, &site.base, "a");
    let b = mutex(&zk, &site.base, "b");
    let both = MultiLock::new().with(&a).with(&b);
    let holder = b.lock().unwrap();
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let guard = both.lock().unwrap();
            guard.ensure_held().unwrap();
            let tokens = guard.fencing_tokens();
            assert!(
                tokens
                    .iter()
                    .zip(["a", "b"])
                    .all(|(one, name)| { one.0.starts_with(&format!("{}/{name}/", site.base)) })
            );
            let path = tokens[0].0.to_owned();
            guard.unlock().unwrap();
            path
        });
        site.wait_for_children("b", 2);
        let lost = site.children("a").remove(0);
        proxy.black_hole();
        eventually(SOON, "the loss", || flaky.state() == SessionState::Lost);
        proxy.pass();
        holder.unlock().unwrap();
        assert_ne!(last(&caller.join().unwrap()), lost, "the guard has a lost lock");
    });
    assert_eq!(["a", "b"].map(|name| site.children(name).len()), [0, 0]);
    drop((a, b, both));
    site.finish([zk, flaky]);
}

#[test]
fn a_closed_client_among_them_is_an_error_and_no_hang() {
    skip_without_zookeeper!();
    let site = Site::shared("closed");
    let clients = [site.client(), site.client()];
    let a = mutex(&clients[0], &site.base, "a");
    let b = mutex(&clients[1], &site.base, "b");
    let both = MultiLock::new().with(&a).with(&b);
    let holder = mutex(&clients[0], &site.base, "b").lock().unwrap();
    thread::scope(|scope| {
        let caller = scope.spawn(|| kind(both.lock()));
        site.wait_for_children("b", 2);
        clients[1].close();
        assert_eq!(caller.join().unwrap(), ErrorKind::Closed);
    });
    assert_eq!(site.children("a").len(), 0);
    drop((a, b, both, holder));
    site.finish(clients);
}

/// Half a second for all together, not for each.
#[test]
fn letting_go_of_all_in_silence_takes_half_a_second_on_time() {
    skip_without_server!();
    let site = Site::own("parting");
    let (proxy, zk) = site.proxied(Duration::from_secs(20));
    let names = ["a", "b", "c", "d", "e"];
    let locks = names.map(|name| reentrant(&zk, &site.base, name));
    let all = locks.iter().fold(MultiLock::new(), MultiLock::with_reentrant);
    let plain =
        names.iter().fold(MultiLock::new(), |all, name| all.with(&mutex(&zk, &site.base, name)));
    for several in [&all, &plain] {
        let guard = several.lock().unwrap();
        proxy.black_hole();
        let start = Stopwatch::start();
        drop(guard);
        let took = start.took();
        assert!(took.within(Duration::from_millis(500) + OVERSHOOT), "{took:?}");
        proxy.pass();
        eventually(SOON, "all to go", || names.iter().all(|name| site.children(name).is_empty()));
    }
    drop((all, plain, locks));
    site.finish([zk]);
}

#[test]
fn multi_locks_can_be_shared_and_sent() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<MultiLock>();
    anywhere::<ReentrantLock>();
    fn shown<T: std::fmt::Debug>() {}
    shown::<MultiGuard>();
    shown::<ReentrantGuard>();
}

/// If they counted as two locks, the second would wait for the first.
#[test]
fn one_host_is_one_host_however_it_is_written() {
    skip_without_server!();
    let site = Site::own("written");
    let address = site.server().addr();
    let zk = connecting(&address.to_string()).connect().unwrap();
    for written in [format!("{address}/"), format!(" {address} ,{address}")] {
        let other = connecting(&written).connect().unwrap();
        let lock = |zk| mutex(zk, &site.base, "a");
        let all = MultiLock::new().with(&lock(&zk)).with(&lock(&other));
        assert!(all.try_lock().unwrap().is_some(), "{written:?}");
        drop(all);
        other.close();
    }
    site.finish([zk]);
}

/// The library cannot know which servers a program's handle is connected to.
#[cfg(feature = "zookeeper")]
#[test]
fn locks_of_different_handles_are_not_taken_for_one() {
    use zklock::zookeeper::{WatchedEvent, ZooKeeper};

    skip_without_server!();
    let (here, there) = (Site::own("handles-here"), Site::own("handles-there"));
    let [one, other] = [&here, &there].map(|site| {
        let ignore = |_: WatchedEvent| ();
        let timeout = Duration::from_secs(10);
        let handle = ZooKeeper::connect(site.hosts(), timeout, ignore);
        std::sync::Arc::new(handle.unwrap())
    });
    let lock = |handle| mutex(handle, "/locks", "a");
    let twice = MultiLock::new().with(&lock(&one)).with(&lock(&one));
    drop(twice.try_lock().unwrap().expect("it is one lock"));
    let both = MultiLock::new().with(&lock(&one)).with(&lock(&other));
    assert_eq!(kind(both.try_lock()), ErrorKind::InvalidArgument);
    let apart = MultiLock::new().with(&lock(&one)).with(&mutex(&other, "/locks", "b"));
    drop(apart.try_lock().unwrap().expect("they are free"));
}

#[test]
fn permits_that_cannot_be_had_are_refused_before_anything_is_taken() {
    skip_without_zookeeper!();
    let site = Site::shared("multi-permits");
    let zk = site.client();
    let held = mutex(&zk, &site.base, "a");
    let guard = held.lock().unwrap();
    let most = DistributedSemaphore::new(&zk, &site.base, "b", u32::MAX);
    let few = DistributedSemaphore::new(&zk, &site.base, "b", 2);
    let with = || MultiLock::new().with(&held);
    for (case, all) in [
        ("none", with().with_permits(&few, 0)),
        ("none and some", with().with_permits(&few, 0).with_permits(&few, 1)),
        ("too many", with().with_permits(&few, 2).with_permits(&few, 1)),
        ("too many for the type", with().with_permits(&most, u32::MAX).with_permits(&most, 1)),
    ] {
        // It would wait for the first.
        assert_eq!(kind(all.try_lock_for(BRIEF)), ErrorKind::InvalidArgument, "{case}");
    }
    drop(guard);
    drop((held, most, few));
    site.finish([zk]);
}

#[test]
fn a_multi_guard_that_was_released_tells_of_no_loss_though_a_thread_still_holds_one_of_its_locks() {
    skip_without_zookeeper!();
    let site = Site::shared("multi-told");
    let zk = site.client();
    let lock = reentrant(&zk, &site.base, "a");
    let outer = lock.lock().unwrap();
    let (tell, told) = mpsc::channel();
    let all = MultiLock::new().with_reentrant(&lock);
    let mut ends = Vec::new();
    for by_drop in [true, false] {
        let guard = all.lock().unwrap();
        let tell = tell.clone();
        guard.on_lost(move |why| tell.send(why).unwrap());
        ends.push((guard.lost(), Cancel::from(guard.lost())));
        let lost = guard.lost();
        let (end, ended) = mpsc::channel();
        let _waits = waiting(move || end.send(lost.wait()));
        if by_drop {
            drop(guard)
        } else {
            guard.unlock().unwrap()
        }
        assert_eq!(ended.recv_timeout(SOON), Ok(Ok(())));
    }
    drop(tell);
    let (last, lost) = mpsc::channel();
    outer.on_lost(move |why| last.send(why).unwrap());
    site.raw().delete(outer.path()).unwrap();
    assert_eq!(lost.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
    drop(outer);
    // Ends once no callback is left that could report a loss.
    assert_eq!(told.iter().collect::<Vec<_>>(), []);
    for (lost, token) in ends {
        assert!(lost.wait_within(Duration::ZERO) == Some(Ok(())) && !token.is_cancelled());
        assert_eq!((lost.reason(), lost.wait()), (None, Ok(())));
    }
    drop((all, lock));
    site.finish([zk]);
}

#[test]
fn a_multi_lock_of_no_lock_is_refused() {
    let none = MultiLock::new();
    assert_eq!(kind(none.lock()), ErrorKind::InvalidArgument);
    assert_eq!(kind(none.try_lock()), ErrorKind::InvalidArgument);
    assert_eq!(kind(none.try_lock_for(SOON)), ErrorKind::InvalidArgument);
}

/// A request to release one of several locks is told once, and not after the release.
#[test]
fn a_request_to_release_one_of_several_is_told() {
    skip_without_zookeeper!();
    let site = Site::shared("multi-request");
    let (zk, other) = (site.client(), site.client());
    let locks = ["a", "b"].map(|name| mutex(&zk, &site.base, name));
    let guard = locks.iter().fold(MultiLock::new(), MultiLock::with).lock().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_release_requested(move || tell.send(()).unwrap());
    assert!(!guard.release_requested());
    for name in ["b", "a"] {
        assert_eq!(mutex(&other, &site.base, name).request_release().unwrap(), 1);
        eventually(SOON, "the request", || guard.release_requested());
    }
    told.recv_timeout(SOON).unwrap();
    guard.unlock().unwrap();
    assert!(told.recv().is_err(), "told twice");
    drop(locks);
    site.finish([zk, other]);
}
