//! Transactions of guards: they take effect only while the guard holds.

use std::time::Duration;

use zklock::znode::CreateMode;
use zklock::{
    Client, DistributedQueue, DistributedRwLock, DistributedSemaphore, Error, ErrorKind,
    LeaderElection, MultiLock, SessionState, Transaction,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{
    connecting, eventually, kind, last, mutex, skip_without_server, skip_without_zookeeper, waiting,
};

const T: Duration = Duration::from_secs(20);
/// Shorter than a link waits for an answer.
const LIMIT: Duration = Duration::from_secs(2);

fn target(zk: &Client, site: &Site) -> String {
    let path = format!("{}/target", site.base);
    zk.znode(&path).create_with_parents(CreateMode::Persistent, "nobody's").unwrap();
    path
}

fn read(zk: &Client, path: &str) -> String {
    let now = zk.znode(path).read().unwrap().expect("the node");
    String::from_utf8(now.data).unwrap()
}

/// A server of its own, a faulty network, and a client with a short connect timeout.
fn impatient(test: &str) -> (Site, Proxy, Client, Client) {
    let site = Site::own(test);
    let proxy = Proxy::start(site.server().addr());
    let builder = connecting(&proxy.hosts()).session_timeout(T);
    let zk = builder.connect_timeout(LIMIT).connect().unwrap();
    let other = site.client();
    (site, proxy, zk, other)
}

/// A holder writes, and can no longer write once its node is deleted.
fn check<'a>(what: &str, zk: &Client, node: &str, path: &str, begin: &dyn Fn() -> Transaction<'a>) {
    let text = |then: &str| format!("{what} {then}");
    let done = begin().write(path, text("holds")).commit();
    assert_eq!(done.unwrap_or_else(|error| panic!("{what}: {error}")).len(), 1);
    assert_eq!(read(zk, path), text("holds"));
    // A refused step does not mean that the hold is lost.
    let none = format!("{path}/none");
    let refused: Error = begin().write(path, "never").delete(&none).commit().unwrap_err();
    assert_eq!((refused.kind(), refused.path()), (ErrorKind::NotFound, Some(&*none)), "{what}");
    assert!(begin().commit().unwrap().is_empty(), "{what}");
    zk.znode(node).delete().unwrap();
    // Whether the holder has noticed or not.
    let late: Error = begin().write(path, text("is late")).commit().unwrap_err();
    assert_eq!((late.kind(), late.path()), (ErrorKind::NodeDeleted, Some(node)), "{what}: {late}");
    assert_eq!(read(zk, path), text("holds"));
}

#[test]
fn a_holder_writes_and_a_deposed_one_does_not() {
    skip_without_zookeeper!();
    let site = Site::shared("fenced");
    let (zk, other) = (site.client(), site.client());
    let path = target(&zk, &site);
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    check("a mutex", &other, guard.path(), &path, &|| guard.transaction());
    assert!(!guard.is_held());
    drop(guard);
    let guard = DistributedRwLock::new(&zk, &site.base, "b").write().unwrap();
    check("a writer", &other, guard.path(), &path, &|| guard.transaction());
    drop(guard);
    let permit = DistributedSemaphore::new(&zk, &site.base, "c", 2).acquire().unwrap();
    check("a permit", &other, permit.path(), &path, &|| permit.transaction());
    drop(permit);
    let leader = LeaderElection::new(&zk, &site.base, "d").campaign().unwrap();
    check("a leader", &other, leader.path(), &path, &|| leader.transaction());
    drop(leader);
    let queue = DistributedQueue::new(&zk, &site.base, "e");
    queue.offer("item").unwrap();
    let item = queue.lease().unwrap();
    let leases = other.znode(item.item_path()).children().unwrap().unwrap();
    let lease = format!("{}/{}", item.item_path(), leases[0]);
    check("a lease", &other, &lease, &path, &|| item.transaction());
    drop((item, queue));
    let locks = ["f", "g"].map(|name| mutex(&zk, &site.base, name));
    for place in 0..2 {
        let several = locks.iter().fold(MultiLock::new(), MultiLock::with).lock().unwrap();
        let node = several.fencing_tokens()[place].0.to_owned();
        check("several locks", &other, &node, &path, &|| several.transaction());
        assert!(!several.is_held());
        drop(several);
    }
    // A transaction belongs to one session.
    let both = MultiLock::new().with(&locks[0]).with(&mutex(&other, &site.base, "h"));
    let guard = both.lock().unwrap();
    let refused = guard.transaction().write(&path, "never").commit();
    assert_eq!(kind(refused), ErrorKind::InvalidArgument);
    drop(guard);
    drop((locks, both));
    site.finish([zk, other]);
}

#[test]
fn a_holder_that_was_cut_off_for_too_long_writes_nothing() {
    skip_without_server!();
    let site = Site::own("fenced-late");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    let other = site.client();
    let path = target(&zk, &site);
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    guard.transaction().write(&path, "the first").commit().unwrap();
    let next = mutex(&other, &site.base, "a");
    let waits = waiting(move || next.lock().unwrap());
    site.expire(&proxy);
    let second = waits.join().unwrap();
    second.transaction().write(&path, "the second").commit().unwrap();
    let late = guard.transaction().write(&path, "the first").commit();
    assert_eq!(kind(late), ErrorKind::SessionLost);
    assert_eq!(read(&other, &path), "the second");
    drop((lock, guard, second));
    site.finish([zk, other]);
}

/// Otherwise the next thread would hold while the commit may still take effect.
#[test]
fn a_node_with_a_commit_in_doubt_goes_to_nobody_and_is_not_kept() {
    skip_without_server!();
    let (site, proxy, zk, other) = impatient("fenced-doubt");
    let path = target(&zk, &site);
    let lock = mutex(&zk, &site.base, "a").keep_for(T);
    let guard = lock.lock().unwrap();
    let node = guard.path().to_owned();
    let next = lock.clone();
    let waits = waiting(move || next.lock().unwrap());
    proxy.stall_request(opcode::MULTI);
    let lost = guard.transaction().write(&path, "late").commit();
    assert_eq!(kind(lost), ErrorKind::ConnectionLoss);
    assert_eq!(read(&other, &path), "nobody's");
    drop(guard);
    // The server has received neither the commit nor the delete.
    assert!(!waits.is_finished());
    proxy.release();
    let second = waits.join().unwrap();
    assert_ne!(second.path(), node);
    assert_eq!(site.children("a"), [last(second.path())]);
    // The commit arrived before the delete.
    assert_eq!(read(&other, &path), "late");
    let node = second.path().to_owned();
    proxy.drop_reply(opcode::MULTI, 1);
    let lost = second.transaction().write(&path, "later").commit();
    assert_eq!(kind(lost), ErrorKind::ConnectionLoss);
    drop(second);
    site.wait_for_children("a", 0);
    let third = lock.lock().unwrap();
    assert_ne!(third.path(), node);
    // A commit with an answer, also a refusal, leaves no doubt.
    assert_eq!(kind(third.transaction().delete("/none").commit()), ErrorKind::NotFound);
    third.transaction().write(&path, "in time").commit().unwrap();
    let node = third.path().to_owned();
    drop(third);
    assert_eq!(site.children("a"), [last(&node)], "kept");
    drop(lock);
    site.finish([zk, other]);
}

#[test]
fn nothing_is_sent_without_a_connection() {
    skip_without_server!();
    let (site, proxy, zk, other) = impatient("fenced-outage");
    let path = target(&zk, &site);
    let lock = mutex(&zk, &site.base, "a").keep_for(T);
    let guard = lock.lock().unwrap();
    proxy.refuse();
    eventually(T, "the outage", || zk.state() != SessionState::Connected);
    let lost = guard.transaction().write(&path, "late").commit().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Connect, "{lost}");
    proxy.release();
    guard.ensure_held().unwrap();
    // So the node is not in doubt.
    let node = guard.path().to_owned();
    drop(guard);
    assert_eq!(site.children("a"), [last(&node)], "kept");
    assert_eq!(read(&other, &path), "nobody's");
    zk.close();
    drop(lock);
    site.finish([zk, other]);
}
