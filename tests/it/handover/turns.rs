//! Which locks share a node, and whose turn it is.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;
use std::time::Duration;

use zklock::{
    Acl, Cancel, DistributedLock, ErrorKind, HandOver, LossReason, MultiLock, NodeNaming,
    Permissions, ReentrantLock,
};

use super::{LONG, Line, PROMPTLY, Rig, SOON, losses, node_and_turn};
use crate::support::proxy::opcode;
use crate::support::{
    Raise, eventually, kind, last, own_task, skip_without_server, strict, timed, wait_until_asleep,
    waiting,
};

#[test]
fn s02_a_node_goes_from_thread_to_thread_in_turn_and_without_a_request() {
    skip_without_server!();
    const WAITERS: u32 = 6;
    let rig = Rig::new("share");
    let lock = rig.lock();
    let mut guard = lock.lock().unwrap();
    rig.settle();
    let (path, zxid, turn) = node_and_turn(&guard);
    assert_eq!(turn, 0);
    let line = Line::new();
    for number in 1..=WAITERS {
        line.join(number, &lock);
    }
    rig.assert_one_look();
    rig.proxy.reset_counts();
    assert_eq!(rig.children(), [last(&path)]);
    for number in 1..=WAITERS {
        line.assert_nobody();
        drop(guard);
        guard = line.next(number);
        assert_eq!(node_and_turn(&guard), (path.clone(), zxid, number));
        assert!(guard.is_held());
        assert_eq!(rig.children(), [last(&path)]);
    }
    assert_eq!(rig.proxy.requests(), [], "to hand it on");
    guard.unlock().unwrap();
    assert_eq!(rig.by_kind(), BTreeMap::from([(opcode::DELETE, 1)]));
    assert!(rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn s06_equal_locks_share_a_node_and_no_others_do() {
    skip_without_server!();
    let rig = Rig::new("equal");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    rig.settle();
    let equal = [
        lock.clone(),
        rig.lock(),
        rig.lock().hand_over(HandOver::default()),
        rig.lock().acl(Acl::open()),
        rig.lock().naming(NodeNaming::Curator),
        DistributedLock::new(rig.zk.clone(), &rig.site.base, "a"),
    ];
    let line = Line::new();
    for (number, lock) in (1..).zip(&equal) {
        assert!(lock.try_lock().unwrap().is_none(), "{number}");
        line.join(number, lock);
    }
    rig.assert_one_look();
    assert_eq!(rig.children().len(), 1);

    let brief = HandOver::Within { turns: 64, time: Duration::from_millis(999) };
    let all_but_admin =
        Permissions::READ | Permissions::WRITE | Permissions::CREATE | Permissions::DELETE;
    let unlike = [
        rig.lock().hand_over(HandOver::Off),
        rig.lock().hand_over(brief),
        rig.lock().keep_for(SOON),
        rig.lock().data("mine"),
        rig.lock().acl([Acl::new(all_but_admin, "world", "anyone")]),
        rig.lock().naming(NodeNaming::Kazoo),
        rig.theirs(),
    ];
    let cancel = Cancel::new();
    let mut others = Vec::new();
    for (number, lock) in (1..).zip(&unlike) {
        let (lock, cancel) = (lock.clone(), cancel.clone());
        others.push(thread::spawn(move || kind(lock.lock_within(&cancel))));
        rig.site.wait_for_children("a", 1 + number);
    }
    cancel.cancel();
    for other in others {
        assert_eq!(other.join().unwrap(), ErrorKind::Cancelled);
    }
    eventually(SOON, "the others to go", || rig.children() == [last(guard.path())]);
    let mut guard = guard;
    for number in 1..=6 {
        drop(guard);
        guard = line.next(number);
    }
    drop((guard, equal, unlike, lock));
    rig.finish();
}

#[test]
fn s02_without_handing_over_each_has_its_node_and_its_place_among_all() {
    skip_without_server!();
    let rig = Rig::new("off");
    let lock = rig.lock().hand_over(HandOver::Off);
    let mut guard = lock.lock().unwrap();
    let line = Line::new();
    let theirs = strict(&rig.other, &rig.site.base, "a");
    for (number, lock) in (1..).zip([&lock, &theirs, &lock, &theirs, &lock]) {
        line.join(number, lock);
        rig.site.wait_for_children("a", 1 + number as usize);
    }
    let mut nodes = vec![guard.path().to_owned()];
    for number in 1..=5 {
        drop(guard);
        guard = line.next(number);
        assert_eq!(guard.fencing_token().turn(), 0);
        nodes.push(guard.path().to_owned());
    }
    nodes.dedup();
    assert_eq!(nodes.len(), 6, "{nodes:?}");
    drop((guard, lock, theirs));
    rig.finish();
}

#[test]
fn unlock_hands_on_without_a_request_and_tells_of_a_loss() {
    skip_without_server!();
    let rig = Rig::new("unlock");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    rig.settle();
    let line = Line::new();
    (1..=3).for_each(|number| line.join(number, &lock));
    guard.unlock().unwrap();
    let guard = line.next(1);
    rig.wait_for_looks(1, &guard);
    rig.proxy.reset_counts();
    guard.unlock().unwrap();
    let guard = line.next(2);
    assert_eq!(rig.proxy.requests(), []);
    let told = losses(&guard);
    rig.site.raw().delete(guard.path()).unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
    let next = line.next(3);
    assert_eq!(kind(guard.unlock()), ErrorKind::NodeDeleted);
    next.ensure_held().unwrap();
    next.unlock().unwrap();
    drop(lock);
    rig.finish();
}

#[test]
fn s08_a_panic_hands_on() {
    skip_without_server!();
    let rig = Rig::new("panic");
    let lock = rig.lock();
    let line = Line::new();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _guard = lock.lock().unwrap();
        line.join(1, &lock);
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    let guard = line.next(1);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s07_a_guard_dropped_on_another_thread_hands_on() {
    skip_without_server!();
    let rig = Rig::new("elsewhere");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let line = Line::new();
    line.join(1, &lock);
    thread::spawn(move || drop(guard)).join().unwrap();
    let guard = line.next(1);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s02_another_client_comes_after_those_who_were_waiting_before_it() {
    skip_without_server!();
    let rig = Rig::new("before");
    // The limit must not pass during the test.
    let (lock, theirs, line) = (rig.within(64, LONG), rig.theirs(), Line::new());
    let guard = lock.lock().unwrap();
    rig.settle();
    (1..=3).for_each(|number| line.join(number, &lock));
    drop(guard);
    let guard = line.next(1);
    rig.wait_for_looks(1, &guard);
    line.join(4, &theirs);
    rig.wait_for_looks(2, &guard);
    line.join(5, &lock);
    line.join(6, &lock);
    assert_eq!(rig.children().len(), 2);
    let shared = guard.path().to_owned();
    drop(guard);
    let guard = line.next(2);
    assert_eq!(guard.path(), shared);
    drop(guard);
    let guard = line.next(3);
    assert_eq!(guard.path(), shared);
    drop(guard);
    let guard = line.next(4);
    // Waits until our next thread has a node behind it.
    rig.site.wait_for_children("a", 2);
    let before = guard.fencing_token();
    drop(guard);
    let guard = line.next(5);
    assert!(guard.path() != shared && guard.fencing_token() > before);
    assert_eq!(guard.fencing_token().turn(), 0);
    drop(guard);
    let guard = line.next(6);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock, theirs));
    rig.finish();
}

/// The order in which a lock is granted if another client comes while the first of five holds it.
fn order_with_another(rig: &Rig, lock: &DistributedLock) -> Vec<u32> {
    const THEIRS: u32 = 100;
    let (theirs, line) = (rig.theirs(), Line::new());
    let guard = lock.lock().unwrap();
    rig.settle();
    (1..=5).for_each(|number| line.join(number, lock));
    drop(guard);
    let mut guard = line.next(1);
    rig.wait_for_looks(1, &guard);
    line.join(THEIRS, &theirs);
    rig.wait_for_looks(2, &guard);
    let mut order = Vec::new();
    for _ in 0..5 {
        drop(guard);
        let (number, next) = line.told.recv_timeout(SOON).expect("a waiter gets the lock");
        if number == THEIRS && order.len() < 4 {
            // Waits until our next thread has a node behind it.
            rig.site.wait_for_children("a", 2);
        }
        order.push(number);
        guard = next;
    }
    order
}

#[test]
fn s02_another_client_waits_for_so_many_turns_and_no_more() {
    skip_without_server!();
    let rig = Rig::new("turns");
    let hour = Duration::from_secs(3600);
    for (turns, order) in [(0, [100, 2, 3, 4, 5]), (2, [2, 3, 100, 4, 5]), (64, [2, 3, 4, 5, 100])]
    {
        rig.proxy.reset_counts();
        assert_eq!(order_with_another(&rig, &rig.within(turns, hour)), order, "{turns} turns");
        eventually(SOON, "the lock to be free", || rig.children().is_empty());
    }
    rig.finish();
}

#[test]
fn s02_another_client_waits_for_so_long_and_no_longer() {
    skip_without_server!();
    let rig = Rig::new("time");
    for (time, order) in [(Duration::ZERO, [100, 2, 3, 4, 5]), (Duration::MAX, [2, 3, 4, 5, 100])] {
        rig.proxy.reset_counts();
        assert_eq!(order_with_another(&rig, &rig.within(64, time)), order, "{time:?}");
        eventually(SOON, "the lock to be free", || rig.children().is_empty());
    }
    rig.finish();
}

#[test]
fn s02_who_locks_in_a_loop_lets_its_siblings_pass() {
    skip_without_server!();
    let rig = Rig::new("loop");
    let lock = rig.lock();
    let mut guard = lock.lock().unwrap();
    let (path, zxid, _) = node_and_turn(&guard);
    let task = own_task();
    for round in 0..30 {
        let theirs = lock.clone();
        let sibling = waiting(move || {
            let guard = theirs.lock().unwrap();
            wait_until_asleep(task);
            guard.fencing_token()
        });
        drop(guard);
        guard = lock.lock().unwrap();
        assert_eq!(sibling.join().unwrap().turn(), 2 * round + 1);
        assert_eq!(node_and_turn(&guard), (path.clone(), zxid, 2 * round + 2));
    }
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s02_threads_that_lock_in_a_loop_do_not_starve_another_client() {
    skip_without_server!();
    let rig = Rig::new("starve");
    let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    let theirs = rig.theirs();
    thread::scope(|scope| {
        let _at_the_end = Raise(&stop);
        for _ in 0..4 {
            let (lock, stop, turns) = (rig.lock(), &stop, &turns);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    drop(lock.lock().unwrap());
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut most = Duration::ZERO;
        for _ in 0..20 {
            let before = turns.load(Ordering::Relaxed);
            eventually(SOON, "the loop", || turns.load(Ordering::Relaxed) > before + 100);
            let (guard, took) = timed(|| theirs.lock().unwrap());
            // By default the other client is let in at most a second after it was seen.
            assert!(took.within(PROMPTLY), "{took:?}");
            most = most.max(took.time());
            // The threads wait for the other client now.
            guard.ensure_held().unwrap();
        }
        println!("the other client waited at most {most:?}");
    });
    drop(theirs);
    rig.finish();
}

#[test]
fn s05_a_reentrant_lock_is_handed_on_with_the_last_of_its_guards() {
    skip_without_server!();
    let rig = Rig::new("reentrant");
    let lock = ReentrantLock::from(rig.lock());
    let outer = lock.lock().unwrap();
    let token = outer.fencing_token();
    rig.settle();
    let (tell, told) = channel();
    let theirs = lock.clone();
    let sibling = waiting(move || {
        let outer = theirs.lock().unwrap();
        let inner = theirs.lock().unwrap();
        assert_eq!(outer.fencing_token(), inner.fencing_token());
        tell.send(outer.fencing_token()).unwrap();
    });
    let inner = lock.lock().unwrap();
    assert_eq!(inner.fencing_token(), token);
    drop(inner);
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    drop(lock.try_lock().unwrap().expect("it is ours"));
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    rig.assert_one_look();
    drop(outer);
    let theirs = told.recv_timeout(SOON).unwrap();
    assert_eq!((theirs.zxid(), theirs.turn()), (token.zxid(), 1));
    sibling.join().unwrap();
    drop(lock);
    rig.finish();
}

#[test]
fn s66_a_multi_lock_has_a_node_of_its_own_and_its_turn() {
    skip_without_server!();
    let rig = Rig::new("multi");
    let (lock, line) = (rig.lock(), Line::new());
    let b = DistributedLock::new(&rig.zk, &rig.site.base, "b");
    let guard = lock.lock().unwrap();
    rig.settle();
    line.join(1, &lock);
    line.join(2, &lock);
    drop(guard);
    let guard = line.next(1);
    rig.wait_for_looks(1, &guard);
    let both = MultiLock::new().with(&lock).with(&b);
    let before = rig.proxy.count(opcode::GET_CHILDREN);
    let ((granted, grant), (release, turn)) = (channel(), channel::<()>());
    let multi = waiting(move || {
        let guard = both.lock().unwrap();
        granted.send(()).unwrap();
        turn.recv().unwrap();
        guard.unlock().unwrap();
    });
    rig.site.wait_for_children("a", 2);
    // The multi-lock lists those before it; the holder's group lists other contenders.
    rig.wait_for_looks(before + 2, &guard);
    line.join(3, &lock);
    drop(guard);
    drop(line.next(2));
    grant.recv_timeout(SOON).unwrap();
    rig.site.wait_for_children("a", 2);
    line.assert_nobody();
    release.send(()).unwrap();
    multi.join().unwrap();
    drop(line.next(3));
    drop((lock, b));
    rig.finish();
}
