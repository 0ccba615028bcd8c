//! Who holds, in which order, and for how long.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zklock::{
    Cancel, Client, Contender, DistributedLock, Error, ErrorKind, FencingToken, LockGuard, Lost,
    Result, SessionId,
};

use super::{SOON, quiet_client, wait_for_contenders};
use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{
    eventually, got_nothing, kind, last, mutex, nodes_of, own_task, skip_without_server,
    skip_without_zookeeper, strict, wait_until_asleep,
};

#[test]
fn s01_uncontended_lock_makes_one_node_and_leaves_none() {
    skip_without_zookeeper!();
    let site = Site::shared("s01");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    assert!(guard.is_held());
    assert_eq!(site.children("a"), [last(guard.path())]);
    drop(guard);
    site.wait_for_children("a", 0);
    assert!(lock.try_lock_for(Duration::from_secs(1)).unwrap().is_some());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s02_contenders_are_granted_the_lock_in_the_order_of_their_creation() {
    skip_without_zookeeper!();
    let site = Site::shared("s02");
    let clients = [site.client(), site.client()];
    let locks = clients.each_ref().map(|zk| strict(zk, &site.base, "a"));
    let first = locks[0].lock().unwrap();
    let (granted, grants) = mpsc::channel();
    thread::scope(|scope| {
        for number in 1..5 {
            let (lock, granted) = (&locks[number % 2], granted.clone());
            scope.spawn(move || {
                let guard = lock.lock().unwrap();
                granted.send((number, guard.fencing_token())).unwrap();
            });
            wait_for_contenders(&site, "a", number + 1);
        }
        granted.send((0, first.fencing_token())).unwrap();
        drop(first);
    });
    drop(granted);
    let grants: Vec<(usize, FencingToken)> = grants.iter().collect();
    assert_eq!(grants.iter().map(|grant| grant.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(grants.is_sorted_by(|a, b| a.1 < b.1), "{grants:?}");
    drop(locks);
    site.finish(clients);
}

#[test]
fn s03_of_many_threads_never_are_two_inside() {
    skip_without_zookeeper!();
    const THREADS: usize = 20;
    const ROUNDS: usize = 100;
    let site = Site::shared("s03");
    let clients = [site.client(), site.client()];
    let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let last_token = std::sync::Mutex::new(None);
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let lock = mutex(&clients[number % 2], &site.base, "a");
            let (inside, rounds, last_token, start) = (&inside, &rounds, &last_token, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..ROUNDS {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                    let token = guard.fencing_token();
                    let before = last_token.lock().unwrap().replace(token);
                    assert!(before < Some(token), "{before:?} came before {token}");
                    thread::yield_now();
                    rounds.fetch_add(1, Ordering::SeqCst);
                    assert!(guard.is_held());
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two holders at once");
                    drop(guard);
                }
            });
        }
    });
    assert_eq!(rounds.into_inner(), THREADS * ROUNDS);
    site.finish(clients);
}

#[test]
fn s04_a_thread_that_locks_twice_waits_for_itself() {
    skip_without_zookeeper!();
    let site = Site::shared("s04");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    assert!(got_nothing(lock.try_lock_for(Duration::from_millis(50))));
    let cancel = Cancel::new();
    let task = own_task();
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_until_asleep(task);
            wait_for_contenders(&site, "a", nodes_of(2));
            cancel.cancel();
        });
        assert_eq!(kind(lock.lock_within(&cancel)), ErrorKind::Cancelled);
    });
    assert!(guard.is_held());
    drop(guard);
    drop(lock.lock().unwrap());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s06_threads_that_share_one_lock_value_exclude_each_other() {
    skip_without_zookeeper!();
    let site = Site::shared("s06");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let (holds, inside) = (Barrier::new(2), AtomicBool::new(false));
    let task = own_task();
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = lock.lock().unwrap();
            inside.store(true, Ordering::SeqCst);
            holds.wait();
            // A thread that only tries is a contender for a moment, too.
            holds.wait();
            wait_until_asleep(task);
            wait_for_contenders(&site, "a", nodes_of(2));
            inside.store(false, Ordering::SeqCst);
            drop(guard);
        });
        holds.wait();
        assert!(lock.try_lock().unwrap().is_none());
        holds.wait();
        let guard = lock.lock().unwrap();
        assert!(!inside.load(Ordering::SeqCst), "two holders at once");
        drop(guard);
    });
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s07_a_guard_dropped_on_another_thread_releases() {
    skip_without_zookeeper!();
    let site = Site::shared("s07");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    thread::spawn(move || drop(guard)).join().unwrap();
    let guard = lock.try_lock().unwrap().expect("released");
    thread::spawn(move || guard.unlock()).join().unwrap().unwrap();
    assert_eq!(site.children("a").len(), 0);
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s08_a_panic_while_held_releases() {
    skip_without_zookeeper!();
    let site = Site::shared("s08");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _guard = lock.lock().unwrap();
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    site.wait_for_children("a", 0);
    let theirs = lock.clone();
    let ended = thread::spawn(move || {
        let _guard = theirs.lock().unwrap();
        panic!("on purpose");
    })
    .join();
    assert!(ended.is_err());
    assert!(lock.try_lock().unwrap().is_some());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s09_one_value_locks_again_and_again() {
    skip_without_zookeeper!();
    let site = Site::shared("s09");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let mut tokens = Vec::new();
    for round in 0..100 {
        let guard = lock.lock().unwrap();
        tokens.push(guard.fencing_token());
        match round % 2 {
            0 => drop(guard),
            _ => guard.unlock().unwrap(),
        }
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(tokens.iter().map(ToString::to_string).is_sorted_by(|a, b| a < b));
    assert_eq!(site.children("a").len(), 0);
    drop(lock);
    site.finish([zk]);
}

/// The first three waiters watch all who are ahead of them; the later ones, the node before theirs.
#[test]
fn s10_when_a_middle_waiter_leaves_only_the_next_one_wakes_and_watches_the_right_node() {
    skip_without_server!();
    let site = Site::own("s10");
    let proxies = [(); 4].map(|()| Proxy::start(site.server().addr()));
    let clients = proxies.each_ref().map(quiet_client);
    let zk = site.client();
    let lock = strict(&zk, &site.base, "a");
    let holder = lock.lock().unwrap();
    let leaves = Cancel::new();
    let (granted, grants) = mpsc::channel();
    thread::scope(|scope| {
        let wait = |number: usize| {
            let (lock, granted) = (mutex(&clients[number], &site.base, "a"), granted.clone());
            scope.spawn(move || {
                let guard = lock.lock().unwrap();
                granted.send(number).unwrap();
                drop(guard);
            });
            // All who are ahead and its own node, or the node before.
            let watches = [2, 3, 1, 1][number];
            assert!(proxies[number].wait_for_watches(watches, SOON), "no watch");
        };
        (0..2).for_each(wait);
        let middle = scope.spawn(|| kind(lock.lock_within(&leaves)));
        wait_for_contenders(&site, "a", 4);
        (2..4).for_each(wait);
        let paths: Vec<_> =
            lock.contenders().unwrap().into_iter().map(|contender| contender.path).collect();
        let ahead = |count: usize| paths[..count].iter().rev().map(String::as_str);
        leaves.cancel();
        assert_eq!(middle.join().unwrap(), ErrorKind::Cancelled);
        // It sees that three are left, and watches them all.
        assert!(proxies[2].wait_for_watches(5, SOON), "no new watch");
        let again = [&*paths[3]].into_iter().chain(ahead(3)).chain([&*paths[4]]);
        assert_eq!(proxies[2].watched(), again.collect::<Vec<_>>());
        for (number, own) in [(0, 1), (1, 2)] {
            let expected: Vec<_> = ahead(own).chain([&*paths[own]]).collect();
            assert_eq!(proxies[number].watched(), expected);
        }
        assert_eq!(proxies[3].watched(), [&*paths[4]]);
        drop(holder);
        for number in 0..4 {
            assert_eq!(grants.recv_timeout(SOON), Ok(number));
        }
    });
    // Only who has not watched all ahead of it lists again.
    for (proxy, lists) in proxies.iter().zip([1, 1, 2, 2]) {
        eventually(SOON, "the delete", || proxy.count(opcode::DELETE) == 1);
        assert_eq!(proxy.count(opcode::GET_CHILDREN), lists, "lists");
        assert_eq!(proxy.count(opcode::CREATE), 1);
    }
    drop(lock);
    site.finish(clients.into_iter().chain([zk]));
}

#[test]
fn s13b_the_whole_chain_is_one_expression_and_holds() -> Result<()> {
    if crate::support::skips(true) {
        return Ok(());
    }
    let site = Site::shared("s13b");
    let zk = site.client();
    let guard = mutex(&zk, &site.base, "a").lock()?;
    guard.ensure_held()?;
    assert!(
        DistributedLock::new(zk.clone(), site.base.clone(), String::from("a"))
            .try_lock()?
            .is_none()
    );
    guard.unlock()?;
    site.finish([zk]);
    Ok(())
}

#[test]
fn a_guard_says_what_the_server_says() {
    skip_without_zookeeper!();
    let site = Site::shared("guard");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let mut raw = site.raw();
    let stat = raw.exists(guard.path()).unwrap().expect("the node of the guard");
    let token = guard.fencing_token();
    assert_eq!((token.zxid(), token.turn()), (stat.czxid as u64, 0));
    assert_eq!(token.to_string().parse::<FencingToken>().unwrap(), token);
    assert_eq!(Some(stat.ephemeral_owner.into()), zk.session_id());
    let shown = format!("{guard:?}");
    assert!(shown.contains(guard.path()) && shown.contains("is_held: true"), "{shown}");

    let (told, tells) = mpsc::channel();
    guard.on_lost(move |why| told.send(why).unwrap());
    let lost = guard.lost();
    assert!(lost.reason().is_none() && lost.wait_within(Duration::ZERO).is_none());
    let waiting = {
        let lost = lost.clone();
        thread::spawn(move || lost.wait())
    };
    guard.unlock().unwrap();
    assert_eq!(waiting.join().unwrap(), Ok(()));
    assert_eq!(lost.wait_within(Duration::ZERO), Some(Ok(())));
    // The callback was dropped, and never called.
    assert!(tells.recv().is_err());
    raw.close().unwrap();
    drop((lock, lost));
    site.finish([zk]);
}

#[test]
fn a_guard_outlives_the_client_and_the_lock_it_came_from() {
    skip_without_zookeeper!();
    let site = Site::shared("outlives");
    let zk = site.client();
    let session = zk.session_id().unwrap();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    drop(zk);
    guard.ensure_held().unwrap();
    let contender = site.raw().exists(guard.path()).unwrap().unwrap();
    assert_eq!(SessionId::from(contender.ephemeral_owner), session);
    drop(guard);
    site.wait_for_children("a", 0);
    site.finish([]);
}

#[test]
fn values_can_be_shared_and_sent_and_a_guard_cannot_be_cloned() {
    trait CloneOrNot<Answer> {
        fn ask() {}
    }
    struct Clones;
    impl<T> CloneOrNot<()> for T {}
    impl<T: Clone> CloneOrNot<Clones> for T {}
    // Ambiguous, so that it does not compile, for a type that is `Clone`.
    <LockGuard as CloneOrNot<_>>::ask();

    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<LockGuard>();
    anywhere::<Lost>();
    anywhere::<Client>();
    anywhere::<DistributedLock>();
    anywhere::<Cancel>();
    anywhere::<Error>();
    anywhere::<Contender>();
    fn token<T: Copy + Ord + std::hash::Hash + Send + Sync + 'static>() {}
    token::<FencingToken>();
}
