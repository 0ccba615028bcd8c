//! Several locks at once: all of them, in time, or none.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use zklock::{
    Cancel, DistributedSemaphore, ErrorKind, LossReason, MultiGuard, MultiLock, ReentrantGuard,
    ReentrantLock, SessionState,
};

use super::{BRIEF, SOON};
use crate::support::proxy::opcode;
use crate::support::raw::{Acl, Kind};
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    QUIET, eventually, got_nothing, kind, last, mutex, reentrant, skip_without_server,
    skip_without_zookeeper, waiting,
};

/// What the machine may add to a limit.
const OVERSHOOT: Duration = Duration::from_millis(500);

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
