//! Handles with a chroot.

use std::sync::Arc;
use std::time::Duration;

use zklock::maintenance::MaintenanceEnd;
use zklock::zookeeper::{WatchedEvent, ZooKeeper};
use zklock::{Barrier, Client, DistributedQueue, Group, LossReason, SharedValue, znode};

use super::{LONG, T, losses, waits};
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{eventually, mutex, nodes_of, skip_without_server};

#[test]
fn s12_a_handle_with_a_chroot() {
    skip_without_server!();
    let site = Site::own("borrowed-chroot");
    let mut raw = site.raw();
    raw.create_all(&format!("{}/root", site.base)).unwrap();
    raw.create(&format!("{}/root/x", site.base), b"", Kind::Persistent).unwrap();
    let handle =
        ZooKeeper::connect(&format!("{}{}/root", site.hosts(), site.base), T, |_: WatchedEvent| ());
    let zk = Client::from(Arc::new(handle.unwrap()));
    let guard = mutex(&zk, "/x", "a").lock().unwrap();
    assert!(guard.path().starts_with("/x/a/_c_"), "{}", guard.path());
    let also = mutex(&zk, "/x", "a");
    let waiter = waits(move || also.lock());
    eventually(LONG, "two contenders", || site.children("root/x/a").len() == nodes_of(2));
    let lost = losses(&guard);
    raw.delete(&format!("{}/root{}", site.base, guard.path())).unwrap();
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::NodeDeleted));
    waiter.recv_timeout(LONG).unwrap().unwrap().unlock().unwrap();
    drop(guard);
    site.finish([zk]);
}

/// A client of a handle whose chroot is `base` + `chroot`, through this proxy.
fn below(site: &Site, proxy: &Proxy, chroot: &str) -> Client {
    site.raw().create_all(&site.base).unwrap();
    let hosts = format!("{}{}{chroot}", proxy.hosts(), site.base);
    let handle = ZooKeeper::connect(&hosts, T, |_: WatchedEvent| ()).expect("a handle");
    handle.exists("/", false).expect("a connection");
    Client::from(handle)
}

#[test]
fn a_chroot_that_is_missing_is_made_with_the_first_node() {
    skip_without_server!();
    let site = Site::own("adopted-no-chroot");
    let proxy = Proxy::start(site.server().addr());
    for made in ["lock", "node"] {
        let zk = below(&site, &proxy, &format!("/{made}"));
        match made {
            "lock" => {
                mutex(&zk, "/locks", "a").try_lock().unwrap().expect("free").unlock().unwrap()
            }
            _ => {
                let node = zk.znode("/locks");
                node.create_with_parents(znode::CreateMode::Persistent, "").unwrap();
            }
        }
        assert_eq!(site.children(made), ["locks"]);
        zk.close();
    }
    site.finish([]);
}

/// The crate puts the chroot in front of every path, so it cannot make what is above it.
#[test]
fn a_chroot_that_cannot_be_made_is_an_error_at_once() {
    skip_without_server!();
    let site = Site::own("adopted-deep-chroot");
    let proxy = Proxy::start(site.server().addr());
    let zk = below(&site, &proxy, "/missing/chroot");
    proxy.reset_counts();
    let lock = mutex(&zk, "/locks", "a");
    let stopwatch = Stopwatch::start();
    let refused = |made: zklock::Result<()>| {
        let error = made.expect_err("no node can be made");
        let text = error.to_string();
        assert!(!error.is_outage() && !error.is_retryable(), "{text}");
        assert!(text.contains("the handle's chroot"), "{text}");
    };
    refused(lock.try_lock().map(drop));
    refused(lock.lock().map(drop));
    refused(lock.hold_for_maintenance("disk", MaintenanceEnd::Never, LONG).map(drop));
    for (path, mode) in
        [("/a/b", znode::CreateMode::Ephemeral), ("/a", znode::CreateMode::Persistent)]
    {
        refused(zk.znode(path).create_with_parents(mode, "").map(drop));
    }
    refused(Group::new(&zk, "/groups", "g").join("me", "").map(drop));
    refused(DistributedQueue::new(&zk, "/queues", "q").offer("item").map(drop));
    refused(Barrier::new(&zk, "/barriers", "b").raise().map(drop));
    refused(SharedValue::new(&zk, "/values", "v").set("value").map(drop));
    let took = stopwatch.took();
    assert!(took.within(Duration::from_secs(5)), "{took:?}");
    let requests = proxy.total_requests();
    assert!(requests < 100, "{requests} requests");
    assert!(lock.contenders().unwrap().is_empty());
    // When somebody has made it, all works.
    site.raw().create_all(&format!("{}/missing/chroot", site.base)).unwrap();
    lock.try_lock().unwrap().expect("free").unlock().unwrap();
    drop(lock);
    site.finish([zk]);
}

/// The crate cuts the chroot off the events' paths, and looks for the watchers of "", not of "/".
#[test]
fn below_a_chroot_who_observes_the_root_sees_each_change() {
    skip_without_server!();
    let site = Site::own("adopted-root");
    let proxy = Proxy::start(site.server().addr());
    let mut raw = site.raw();
    let root = format!("{}/root", site.base);
    raw.create_all(&root).unwrap();
    let zk = below(&site, &proxy, "/root");
    let (mut data, mut names) = (zk.znode("/").observe(), zk.znode("/").observe_children());
    assert!(data.next_within(LONG).unwrap().expect("the first").expect("a node").data.is_empty());
    assert_eq!(names.next_within(LONG).unwrap(), Some(Some(vec![])));
    for round in ["1", "2", "3"] {
        raw.set_data(&root, round.as_bytes()).unwrap();
        // A look that comes first.
        assert!(zk.znode("/").observe_children().next_within(LONG).unwrap().is_some());
        let seen = data.next_within(LONG).unwrap().expect("the change").expect("a node");
        assert_eq!(seen.data, round.as_bytes());
        raw.create(&format!("{root}/{round}"), b"", Kind::Persistent).unwrap();
        let seen = names.next_within(LONG).unwrap().expect("the change").expect("a node");
        assert_eq!(seen.last().map(String::as_str), Some(round));
    }
    // No other look comes first: these two are up to date.
    assert!(data.next_within(Duration::from_millis(50)).unwrap().is_none());
    assert!(names.next_within(Duration::from_millis(50)).unwrap().is_none());
    raw.set_data(&root, b"last").unwrap();
    let seen = data.next_within(LONG).unwrap().expect("the change").expect("a node");
    assert_eq!(seen.data, b"last");
    raw.delete(&format!("{root}/2")).unwrap();
    let seen = names.next_within(LONG).unwrap().expect("the change").expect("a node");
    assert_eq!(seen, ["1", "3"]);
    drop((data, names));
    // Nobody observes it any more, so nobody asks for it.
    let mut other = zk.znode("/1").observe();
    assert!(other.next_within(LONG).unwrap().is_some());
    proxy.reset_counts();
    assert!(other.next_within(Duration::from_secs(3)).unwrap().is_none());
    let looks = proxy.count(opcode::EXISTS);
    assert!(looks <= 1, "{looks} looks");
    drop(other);
    site.finish([zk]);
}
