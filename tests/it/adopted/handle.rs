//! The handle itself: who closes it, its watchers, and the program's own nodes.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use zklock::zookeeper::{Acl, CreateMode, WatchedEvent, ZkState, ZooKeeper};
use zklock::{Client, ErrorKind, LockGuard, LossReason, znode};

use super::{LONG, Rig, T, losses, plain, waits};
use crate::support::site::Site;
use crate::support::{
    eventually, mutex, nodes_of, skip_before, skip_without_server, skip_without_zookeeper,
};

#[test]
fn s22_a_handle_that_the_program_closes_ends_all() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s22");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let (lost, also) = (losses(&guard), lock.clone());
    let waiter = waits(move || also.lock());
    rig.wait_for_contenders(nodes_of(2));
    rig.handle.close().unwrap();
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::ClientClosed));
    assert!(!guard.is_held());
    let error = waiter.recv_timeout(LONG).expect("an end of the wait").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.try_lock().unwrap_err().kind(), ErrorKind::Closed);
    // Closed before the lock was first used.
    let late = mutex(&rig.handle, &rig.site.base, "a");
    assert_eq!(late.lock().unwrap_err().kind(), ErrorKind::Closed);
    rig.wait_for_contenders(0);
    drop((guard, lock, late));
    rig.finish();
}

/// A panic in the program's listener ends the crate's thread, without notice.
#[test]
fn h14_a_handle_that_has_died_is_closed() {
    skip_without_server!();
    let rig = Rig::new("borrowed-h14");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let lost = losses(&guard);
    rig.handle.add_listener(|state| assert_ne!(state, ZkState::Connecting, "on purpose"));
    rig.proxy.cut();
    // The crate reports nothing; only a request finds out.
    let error = guard.ensure_held().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::ClientClosed));
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Closed);
    drop((guard, lock));
    let Rig { site, proxy: _proxy, handle, zk } = rig;
    drop((handle, zk));
    eventually(LONG, "the session to expire", || site.children("a").is_empty());
    site.finish([]);
}

#[test]
fn s22_closing_the_client_deletes_its_nodes_and_leaves_the_handle() {
    skip_without_server!();
    let rig = Rig::new("borrowed-closed");
    let (lock, other) = (rig.lock(), rig.site.client());
    let guard = lock.lock().unwrap();
    let (lost, also) = (losses(&guard), lock.clone());
    let waiter = waits(move || also.lock());
    rig.wait_for_contenders(nodes_of(2));
    let node = format!("{}/of-the-program", rig.site.base);
    let acl = Acl::open_unsafe().clone();
    let mode = CreateMode::Ephemeral;
    rig.handle.create(&node, Vec::new(), acl, mode).unwrap();

    rig.zk.close();
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::ClientClosed));
    assert_eq!(waiter.recv_timeout(LONG).unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Closed);
    let successor = mutex(&other, &rig.site.base, "a").lock().unwrap();
    assert!(rig.handle.exists(&node, false).unwrap().is_some(), "the handle's session goes on");
    successor.unlock().unwrap();
    // Another client of the same handle.
    let again = mutex(&rig.handle, &rig.site.base, "a");
    again.lock().unwrap().unlock().unwrap();
    rig.handle.delete(&node, None).unwrap();
    drop((guard, lock, again, other));
    rig.finish();
}

#[test]
fn the_last_owner_closes_the_handle() {
    skip_without_server!();
    let site = Site::own("borrowed-last");
    let handle = Arc::into_inner(plain(site.hosts())).expect("the only reference");
    let lock = mutex(handle, &site.base, "a");
    let guard = lock.lock().unwrap();
    drop(lock);
    guard.ensure_held().unwrap();
    drop(guard);
    eventually(LONG, "the session to end", || {
        let mut raw = site.raw();
        let ephemerals = site.server().counter("zk_ephemerals_count");
        raw.ping().unwrap();
        ephemerals == 0
    });
    site.finish([]);
}

/// The crate keeps a watcher forever if its event was lost with a connection.
#[test]
fn h16_watchers_that_nothing_will_call_are_cleared_away() {
    skip_before!(3, 5, "cannot remove watches");
    const REMOVE_WATCHES: i32 = 18;
    skip_without_server!();
    // A cut closes a handle that was busy for longer than its timeout.
    let rig = Rig::with("borrowed-h16", T * 4);
    let hold = |name: usize| mutex(&rig.zk, &rig.site.base, name.to_string());
    let guards: Vec<_> = (0..260).map(|name| hold(name).lock().unwrap()).collect();
    eventually(LONG, "all watches", || rig.site.server().counter("zk_watch_count") == 260);
    let mut raw = rig.site.raw();
    // The events are lost with the connection. The next connection is made at once: an outage would
    // end the handle.
    rig.proxy.black_hole();
    raw.delete_together(guards.iter().map(|guard| guard.path())).unwrap();
    rig.proxy.cut();
    assert!(rig.proxy.wait_for_requests(REMOVE_WATCHES, 256, LONG));
    eventually(LONG, "all losses", || !guards.iter().any(|guard| guard.is_held()));
    drop(guards);

    // Nothing else was lost.
    let (guard, lock) = (hold(0).lock().unwrap(), hold(0));
    let waiter = waits(move || lock.lock());
    eventually(LONG, "two contenders", || rig.site.children("0").len() == nodes_of(2));
    guard.unlock().unwrap();
    waiter.recv_timeout(LONG).expect("the waiter's turn").unwrap().unlock().unwrap();
    rig.finish();
}

/// The crate tells it only of events for which there is no other watcher.
#[test]
fn the_handles_default_watcher_hears_of_the_programs_own_nodes() {
    skip_without_zookeeper!();
    let site = Site::shared("borrowed-default");
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let watcher = move |event: WatchedEvent| {
        let _ = tell.lock().unwrap().send(event.path);
    };
    let handle = Arc::new(ZooKeeper::connect(site.hosts(), T, watcher).unwrap());
    let zk = Client::from(&handle);
    let node = zk.znode(format!("{}/node-", site.base));
    let made = node.create_with_parents(znode::CreateMode::EphemeralSequential, "").unwrap();
    handle.get_data(made.path(), true).unwrap();
    site.raw().delete(made.path()).unwrap();
    assert_eq!(told.recv_timeout(LONG), Ok(Some(made.path().to_owned())));
    drop((node, made));
    zk.close();
    drop((handle, zk));
    site.finish([]);
}

/// Data beside the locks; what needs a transaction is refused before anything is done.
#[test]
fn nodes_are_read_and_written_and_transactions_are_refused() {
    skip_without_zookeeper!();
    let site = Site::shared("adopted-znode");
    let handle = plain(site.hosts());
    let zk = Client::from(&handle);
    let node = zk.znode(format!("{}/node", site.base));
    node.create_with_parents(znode::CreateMode::Persistent, "one").unwrap();
    let first = node.read().unwrap().unwrap();
    let second = node.write_if_unchanged(first.version, "two").unwrap().expect("unchanged");
    assert_eq!(node.write_if_unchanged(first.version, "three").unwrap(), None);
    assert!(!node.delete_if_unchanged(first.version).unwrap());
    let acl = node.acl().unwrap().unwrap();
    node.set_acl(acl.clone()).unwrap();
    assert_eq!(acl, [zklock::Acl::open()]);
    assert_eq!(node.stat().unwrap().unwrap().version, second);
    let kind = |error: zklock::Error| error.kind();
    let commit = zk.transaction().delete(node.path()).commit();
    assert_eq!(commit.map_err(kind).err(), Some(ErrorKind::Unsupported));
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let commit = guard.transaction().delete(node.path()).commit();
    assert_eq!(commit.map_err(kind).err(), Some(ErrorKind::Unsupported));
    let once = zklock::Once::new(&zk, &site.base, "job");
    let job = |_: &LockGuard| -> zklock::Result<()> { panic!("it was not to run") };
    assert_eq!(once.run("a", job).map_err(kind).err(), Some(ErrorKind::Unsupported));
    assert!(node.delete_if_unchanged(second).unwrap());
    drop((guard, once, node));
    zk.close();
    drop((handle, zk));
    site.finish([]);
}
