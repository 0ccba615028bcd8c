//! What is one lock, however it is named.

use std::thread;
#[cfg(feature = "zookeeper")]
use std::time::Duration;

use zklock::{
    ContenderKind, DistributedRwLock, DistributedSemaphore, ErrorKind, MultiLock, NodeNaming,
};

use super::BRIEF;
use crate::support::site::Site;
use crate::support::{
    QUIET, connecting, got_nothing, kind, mutex, reentrant, skip_without_server,
    skip_without_zookeeper,
};

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
