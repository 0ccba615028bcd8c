//! Reentrant locks.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zklock::{Cancel, ErrorKind, LossReason, MultiLock, ReentrantGuard, ReentrantLock};

use super::{BRIEF, SOON};
use crate::support::proxy::{Seen, opcode};
use crate::support::site::Site;
use crate::support::{
    QUIET, eventually, kind, mutex, nodes_of, own_task, reentrant, skip_without_server,
    skip_without_zookeeper, wait_until_asleep,
};

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
