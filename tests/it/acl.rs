use std::thread;
use std::time::Duration;

use zklock::{
    Acl, Barrier, Client, DistributedRwLock, DistributedSemaphore, Error, ErrorKind, Group,
    LeaderElection, LossReason, MultiLock, Permissions, Result,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{self, Kind, NO_AUTH, Raw};
use crate::support::site::Site;
use crate::support::{eventually, mutex, reentrant, skip_without_server, skip_without_zookeeper};

const SOON: Duration = Duration::from_secs(15);
const READ: i32 = 1;
const WRITE: i32 = 2;
const CREATE: i32 = 4;
const DELETE: i32 = 8;

/// A lock node on which all other clients have only `permissions`.
fn owned(site: &Site, permissions: i32) -> (Raw, String) {
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    raw.add_auth("digest", b"owner:secret").unwrap();
    let node = format!("{}/a", site.base);
    let mut acl = vec![raw::Acl::new(raw::ALL, "auth", "")];
    if permissions != 0 {
        acl.push(raw::Acl::new(permissions, "world", "anyone"));
    }
    raw.create_with_acl(&node, b"", Kind::Persistent, &acl).unwrap();
    (raw, node)
}

fn assert_refused<T>(case: &str, result: Result<T>, node: &str, needs: &str) {
    let error: Error = result.err().unwrap_or_else(|| panic!("{case} was not refused"));
    assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{case}: {error}");
    assert_eq!(error.path(), Some(node), "{case}: {error}");
    let text = error.to_string();
    assert!(text.contains(node) && text.contains(needs), "{case}: {text}");
    assert!(!error.is_retryable());
}

/// Every way to contend.
fn contend(zk: &Client, site: &Site) -> Vec<(&'static str, Result<()>)> {
    let lock = mutex(zk, &site.base, "a");
    let shared = DistributedRwLock::new(zk, &site.base, "a");
    let permits = DistributedSemaphore::new(zk, &site.base, "a", 3);
    let entered = reentrant(zk, &site.base, "a");
    vec![
        ("lock", lock.lock().map(drop)),
        ("read", shared.read().map(drop)),
        ("try_read", shared.try_read().map(drop)),
        ("try_read_for", shared.try_read_for(SOON).map(drop)),
        ("write", shared.write().map(drop)),
        ("try_write", shared.try_write().map(drop)),
        ("try_write_for", shared.try_write_for(SOON).map(drop)),
        ("acquire", permits.acquire().map(drop)),
        ("acquire_many", permits.acquire_many(3).map(drop)),
        ("try_acquire", permits.try_acquire().map(drop)),
        ("try_acquire_for", permits.try_acquire_for(SOON).map(drop)),
        ("reentrant", entered.lock().map(drop)),
        ("multi", MultiLock::new().with(&lock).lock().map(drop)),
        ("multi read", MultiLock::new().with_read(&shared).try_lock().map(drop)),
    ]
}

#[test]
fn s70_a_lock_node_that_refuses_to_create_is_an_error_that_says_so() {
    skip_without_zookeeper!();
    for permissions in [0, READ, READ | WRITE | DELETE] {
        let site = Site::shared("s70-create");
        let (mut raw, node) = owned(&site, permissions);
        let zk = site.client();
        for (case, result) in contend(&zk, &site) {
            assert_refused(case, result, &node, "CREATE");
        }
        assert_eq!(raw.get_children(&node).unwrap(), [""; 0]);
        raw.delete(&node).unwrap();
        raw.close().unwrap();
        site.finish([zk]);
    }
}

#[test]
fn s70_a_lock_node_that_refuses_to_list_is_an_error_that_says_so() {
    skip_without_zookeeper!();
    let site = Site::shared("s70-list");
    let (mut raw, node) = owned(&site, CREATE | DELETE);
    let zk = site.client();
    for (case, result) in contend(&zk, &site) {
        assert_refused(case, result, &node, "READ");
    }
    let lock = mutex(&zk, &site.base, "a");
    let shared = DistributedRwLock::new(&zk, &site.base, "a");
    let permits = DistributedSemaphore::new(&zk, &site.base, "a", 3);
    assert_refused("contenders", lock.contenders(), &node, "READ");
    assert_refused("contenders", shared.contenders(), &node, "READ");
    assert_refused("contenders", permits.contenders(), &node, "READ");
    assert_refused("observe", lock.observe().next_within(SOON), &node, "READ");
    assert_refused("observe", shared.observe().next().unwrap(), &node, "READ");
    assert_refused("observe", permits.observe().next_within(SOON), &node, "READ");
    assert_refused("request_release", lock.request_release(), &node, "READ");
    assert_refused("request_release", shared.request_release(), &node, "READ");
    assert_refused("request_release", permits.request_release(), &node, "READ");
    assert_eq!(raw.get_children(&node).unwrap(), [""; 0], "a node is left");
    raw.delete(&node).unwrap();
    raw.close().unwrap();
    drop((lock, shared, permits));
    site.finish([zk]);
}

#[test]
fn s70_a_lock_node_that_cannot_be_made_is_an_error_that_says_so() {
    skip_without_zookeeper!();
    let site = Site::shared("s70-parent");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let base = format!("{}/theirs", site.base);
    let acl = [raw::Acl::new(READ, "world", "anyone")];
    raw.create_with_acl(&base, b"", Kind::Persistent, &acl).unwrap();
    let zk = site.client();
    let shared = DistributedRwLock::new(&zk, &base, "a");
    let permits = DistributedSemaphore::new(&zk, &base, "a", 3);
    let node = format!("{base}/a");
    assert_refused("read", shared.read(), &node, "CREATE");
    assert_refused("write", shared.try_write_for(SOON), &node, "CREATE");
    assert_refused("acquire", permits.acquire(), &node, "CREATE");
    // A lock node that does not exist has no contenders.
    assert_eq!(shared.contenders().unwrap(), []);
    assert_eq!(shared.observe().next_within(SOON).unwrap(), Some(Vec::new()));
    assert_eq!(permits.request_release().unwrap(), 0);
    raw.close().unwrap();
    drop((shared, permits));
    site.finish([zk]);
}

#[test]
fn s70_to_ask_and_to_break_take_what_the_error_says() {
    skip_without_zookeeper!();
    let site = Site::shared("s70-break");
    let (mut raw, node) = owned(&site, READ | WRITE | CREATE);
    let owner = site.builder().auth("digest", b"owner:secret").connect().unwrap();
    let zk = site.client();
    let theirs = mutex(&owner, &site.base, "a")
        .acl([Acl::creator_only(), Acl::new(Permissions::READ, "world", "anyone")].as_slice());
    let guard = theirs.lock().unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let shared = DistributedRwLock::new(&zk, &site.base, "a");
    let permits = DistributedSemaphore::new(&zk, &site.base, "a", 3);
    let contender = lock.contenders().unwrap().remove(0);
    assert_eq!(contender.path, guard.path());

    assert_refused("request_release", lock.request_release(), &node, "WRITE");
    assert_refused("request_release", shared.request_release(), &node, "WRITE");
    assert_refused("request_release", permits.request_release(), &node, "WRITE");
    for (case, asked) in [
        ("mutex", lock.request_release_of(&contender)),
        ("shared", shared.request_release_of(&contender)),
        ("permits", permits.request_release_of(&contender)),
    ] {
        assert_refused(case, asked, &contender.path, "WRITE");
    }
    // WRITE on the contender is not enough: to break the lock takes DELETE on the lock node.
    for (case, broken) in [
        ("mutex", lock.break_lock(&contender)),
        ("shared", shared.break_lock(&contender)),
        ("permits", permits.break_lock(&contender)),
    ] {
        assert_refused(case, broken, &contender.path, "DELETE");
    }
    guard.ensure_held().unwrap();
    assert!(!guard.release_requested());

    // A client with the credentials may.
    assert_eq!(theirs.request_release().unwrap(), 1);
    assert!(theirs.request_release_of(&contender).unwrap());
    assert!(theirs.break_lock(&contender).unwrap());
    assert!(matches!(guard.lost().wait_within(SOON), Some(Err(_))));
    assert_eq!(raw.get_children(&node).unwrap(), [""; 0]);
    raw.delete(&node).unwrap();
    raw.close().unwrap();
    drop((guard, theirs, lock, shared, permits));
    site.finish([owner, zk]);
}

#[test]
fn s70_a_release_that_an_acl_forbids_says_so() {
    skip_without_zookeeper!();
    let site = Site::shared("s70-release");
    let (mut raw, node) = owned(&site, READ | WRITE | CREATE);
    let zk = site.client();
    let shared = DistributedRwLock::new(&zk, &site.base, "a");
    let reader = shared.read().unwrap();
    let path = reader.path().to_owned();
    assert_refused("unlock", reader.unlock(), &path, "DELETE");
    raw.delete(&path).unwrap();
    // The second node is there, and the first cannot be deleted.
    let writer = shared.write().unwrap();
    let path = writer.path().to_owned();
    assert_refused("downgrade", writer.downgrade(), &path, "DELETE");
    raw.delete(&path).unwrap();
    for child in raw.get_children(&node).unwrap() {
        raw.delete(&format!("{node}/{child}")).unwrap();
    }
    let permits = DistributedSemaphore::new(&zk, &site.base, "a", 3);
    let permit = permits.acquire().unwrap();
    let path = permit.path().to_owned();
    assert_refused("release", permit.release(), &path, "DELETE");
    raw.delete(&path).unwrap();
    drop((shared, permits));
    raw.delete_recursive(&node).unwrap();
    raw.close().unwrap();
    site.finish([zk]);
}

/// The nodes that these locks make have the ACL that the locks were given.
#[test]
fn s70_an_acl_covers_lock_node_and_contenders() {
    skip_without_zookeeper!();
    let site = Site::shared("s70-all");
    let owner = site.builder().auth("digest", b"owner:secret").connect().unwrap();
    let zk = site.client();
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let shared = DistributedRwLock::new(&owner, &site.base, "a").acl(Acl::creator_only());
    let permits = DistributedSemaphore::new(&owner, &site.base, "b", 3).acl(Acl::creator_only());
    let writer = shared.write().unwrap();
    let permit = permits.acquire_many(2).unwrap();
    for path in [&format!("{}/a", site.base), writer.path(), permit.path()] {
        assert_eq!(raw.get_data(path).unwrap_err().code(), Some(NO_AUTH), "{path}");
    }
    let reader = writer.downgrade().unwrap();
    assert_eq!(raw.get_data(reader.path()).unwrap_err().code(), Some(NO_AUTH));
    let stranger = DistributedRwLock::new(&zk, &site.base, "a");
    assert_refused("read", stranger.read(), &format!("{}/a", site.base), "CREATE");
    thread::scope(|scope| {
        let next = scope.spawn(|| shared.write().unwrap());
        while shared.contenders().unwrap().len() < 2 {
            thread::yield_now();
        }
        reader.unlock().unwrap();
        next.join().unwrap().unlock().unwrap();
    });
    permit.release().unwrap();
    raw.add_auth("digest", b"owner:secret").unwrap();
    raw.delete_recursive(&site.base).unwrap();
    raw.close().unwrap();
    drop((shared, permits, stranger));
    site.finish([owner, zk]);
}

/// Servers from 3.7.3, 3.8.4 and 3.9.2 on require READ for the stat, too; the proxy imitates that.
fn with_hidden_stats(site: &Site, part: &str) -> (Proxy, Client) {
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    proxy.deny(opcode::EXISTS, part, NO_AUTH);
    (proxy, zk)
}

#[test]
fn s30_a_holder_that_is_shown_nothing_of_its_node_but_that_it_is_there_holds_until_its_end() {
    skip_without_server!();
    let site = Site::own("hidden-stat");
    let (proxy, zk) = with_hidden_stats(&site, "-lock-");
    let mut raw = site.raw();
    raw.create_all(&format!("{}/a", site.base)).unwrap();
    raw.add_auth("digest", b"owner:secret").unwrap();
    let owner = Acl::new(Permissions::ALL, "digest", "owner:Vj++wdU3sMAbt+g9TyKj1BT+usI=");
    let lock = mutex(&zk, &site.base, "a").acl([owner]);
    let guard = lock.lock().unwrap();
    guard.ensure_held().unwrap();
    raw.delete(guard.path()).unwrap();
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::NodeDeleted);
    assert_eq!(guard.lost().wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
    drop(guard);
    // A node whose create has no answer is replaced by another one: its token cannot be read.
    proxy.drop_reply(opcode::CREATE, 1);
    let guard = lock.lock().unwrap();
    let made = raw.exists(guard.path()).unwrap().expect("its node").czxid;
    assert_eq!(guard.fencing_token().zxid(), made as u64);
    assert_eq!(site.children("a").len(), 1);
    guard.unlock().unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn a_member_whose_stat_is_hidden_is_listed_all_the_same() {
    skip_without_server!();
    let site = Site::own("hidden-member");
    let (_proxy, zk) = with_hidden_stats(&site, "/theirs");
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    raw.create_all(&node).unwrap();
    let nobody = [raw::Acl::new(raw::ALL, "digest", "nobody:nothing")];
    let theirs = format!("{node}/theirs");
    raw.create_with_acl(&theirs, b"secret", Kind::Ephemeral, &nobody).unwrap();
    let members = Group::new(&zk, &site.base, "a").members().unwrap();
    let [one] = &members[..] else { panic!("{members:?}") };
    assert_eq!((&*one.id, &*one.data, one.session), ("theirs", &b""[..], None));
    assert_eq!(one.since, None);
    raw.delete(&theirs).unwrap();
    site.finish([zk]);
}

#[test]
fn a_contender_of_which_nothing_is_shown_is_listed_and_observed() {
    skip_without_server!();
    let site = Site::own("hidden-others");
    let (_proxy, zk) = with_hidden_stats(&site, "-lock-");
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    raw.create_all(&node).unwrap();
    let nobody = [raw::Acl::new(raw::ALL, "digest", "nobody:nothing")];
    let name = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    let theirs = raw.create_with_acl(&name, b"secret", Kind::EphemeralSequential, &nobody).unwrap();
    let lock = mutex(&zk, &site.base, "a");
    assert!(lock.try_lock().unwrap().is_none());
    let contenders = lock.contenders().unwrap();
    let mut observer = lock.observe();
    let seen = observer.next_within(SOON).unwrap().expect("the holder");
    let election = LeaderElection::new(&zk, &site.base, "a");
    let leader = election.leader().unwrap().expect("the leader");
    for one in contenders.iter().chain(&seen) {
        assert_eq!((&*one.path, &*one.data, one.session), (&*theirs, &b""[..], None));
        assert_eq!((one.since, one.age()), (None, None));
    }
    assert_eq!((contenders.len(), seen.len()), (1, 1));
    assert_eq!((&*leader.path, leader.session), (&*theirs, None));
    raw.delete(&theirs).unwrap();
    assert_eq!(observer.next_within(SOON).unwrap().expect("a change"), []);
    drop((lock, observer, election));
    site.finish([zk]);
}

#[test]
fn a_barrier_of_which_nothing_is_shown_is_up() {
    skip_without_server!();
    let site = Site::own("hidden-barrier");
    let (proxy, zk) = with_hidden_stats(&site, "/theirs");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let nobody = raw::Acl::new(raw::ALL, "digest", "nobody:nothing");
    let base = format!("{}/theirs", site.base);
    let blind = [nobody.clone(), raw::Acl::new(CREATE | DELETE, "world", "anyone")];
    raw.create_with_acl(&base, b"", Kind::Persistent, &blind).unwrap();
    raw.create_with_acl(&format!("{base}/a"), b"", Kind::Persistent, &[nobody]).unwrap();
    let theirs = Barrier::new(&zk, &base, "a");
    assert!(theirs.is_raised().unwrap());
    assert!(!theirs.raise().unwrap());
    assert_refused("wait", theirs.wait_within(SOON), &format!("{base}/a"), "READ");
    // After a lost session, a retry could not tell whether this is the barrier that it was to delete.
    assert_refused("lift", theirs.lift(), &format!("{base}/a"), "READ");
    // To raise a barrier below a node that may not be read, CREATE and DELETE are enough.
    let other = Barrier::new(&zk, &base, "b");
    assert!(other.raise().unwrap());
    raw.delete(&format!("{base}/b")).unwrap();
    // A lost request is found out all the same.
    proxy.drop_request(opcode::MULTI, 1);
    assert!(other.raise().unwrap());
    raw.delete(&format!("{base}/b")).unwrap();
    raw.delete(&format!("{base}/a")).unwrap();
    // What found it out is deleted without being waited for.
    eventually(SOON, "nothing to be left", || raw.delete(&base).is_ok());
    drop((theirs, other));
    site.finish([zk]);
}
