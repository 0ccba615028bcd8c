//! Who contends, and who may not be read.

use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use zklock::{
    Acl, Cancel, Contender, ContenderKind, DistributedLock, ErrorKind, LossReason, Permissions,
    SessionId,
};

use super::{SOON, quiet_client, wait_for_contenders};
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{self, Kind, Raw};
use crate::support::site::Site;
use crate::support::{
    QUIET, connecting, eventually, last, mutex, skip_without_server, skip_without_zookeeper, strict,
};

fn names(contenders: &[Contender]) -> Vec<&str> {
    contenders.iter().map(|one| one.path.rsplit('/').next().unwrap()).collect()
}

/// Makes a contender as another client would.
fn intrude(raw: &mut Raw, node: &str, prefix: &str, data: &[u8]) -> String {
    raw.create(&format!("{node}/{prefix}"), data, Kind::EphemeralSequential).unwrap()
}

#[test]
fn s13_children_that_do_not_contend_are_ignored() {
    skip_without_zookeeper!();
    let site = Site::shared("s13");
    let zk = site.client();
    let lock = strict(&zk, &site.base, "a");
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    raw.create_all(&node).unwrap();
    let strangers = ["foo", "0", "leases", "lock-", "lock-1", "0000000000", "participant"];
    for name in strangers {
        raw.create(&format!("{node}/{name}"), b"", Kind::Persistent).unwrap();
    }
    raw.create(&format!("{node}/node-"), b"", Kind::PersistentSequential).unwrap();
    let guard = lock.try_lock().unwrap().expect("there is no contender");
    assert_eq!(names(&lock.contenders().unwrap()), [last(guard.path())]);
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock_within(&cancel));
        wait_for_contenders(&site, "a", strangers.len() + 3);
        drop(guard);
        waiter.join().unwrap().unwrap().unwrap().unlock().unwrap();
    });
    assert_eq!(site.children("a").len(), strangers.len() + 1);
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s13_contenders_of_other_libraries_are_waited_for() {
    skip_without_zookeeper!();
    let site = Site::shared("s13-peers");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    raw.create_all(&node).unwrap();
    let prefixes = [
        "0f8fad5bd9cb469fa16570867728950e__lock__".to_owned(),
        "0f8fad5bd9cb469fa16570867728950e__rlock__".to_owned(),
        "_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-".to_owned(),
        "_c_0f8fad5b-d9cb-469f-a165-70867728950e-__READ__".to_owned(),
        "_c_0f8fad5b-d9cb-469f-a165-70867728950e-__WRIT__".to_owned(),
        "lock-".to_owned(),
        format!("x-{}-", raw.session()),
        format!("x-{}-", i64::MIN),
    ];
    for prefix in &prefixes {
        let theirs = intrude(&mut raw, &node, prefix, b"");
        assert!(lock.try_lock().unwrap().is_none(), "{prefix} was ignored");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| lock.lock().unwrap());
            eventually(SOON, "the waiter", || lock.contenders().unwrap().len() == 2);
            assert_eq!(lock.contenders().unwrap()[0].path, theirs);
            raw.delete(&theirs).unwrap();
            let guard = waiter.join().unwrap();
            // A later contender does not block the holder.
            let later = intrude(&mut raw, &node, prefix, b"");
            guard.ensure_held().unwrap();
            assert_eq!(names(&lock.contenders().unwrap()), [last(guard.path()), last(&later)]);
            raw.delete(&later).unwrap();
        });
    }
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s69_contenders_are_listed_in_grant_order_with_all_that_is_known() {
    skip_without_zookeeper!();
    let site = Site::shared("s69");
    let zk = site.client();
    let node = format!("{}/a", site.base);
    let lock = mutex(&zk, &site.base, "a").data(b"me");
    assert_eq!(lock.contenders().unwrap(), [], "of a lock that was never used");
    let guard = lock.lock().unwrap();
    let (mut one, mut two) = (site.raw(), site.raw());
    // Sorted by name they would be in another order than by number.
    let z = intrude(&mut one, &node, "zz__lock__", b"z");
    let read = intrude(&mut two, &node, "b__READ__", b"b");
    let write = intrude(&mut one, &node, "a__WRIT__", &[0xff, b'a']);
    let ours = intrude(&mut two, &node, "lock-", b"");

    let listed = lock.contenders().unwrap();
    let paths: Vec<&str> = listed.iter().map(|one| &*one.path).collect();
    assert_eq!(paths, [guard.path(), &z, &read, &write, &ours]);
    let sequences: Vec<i32> = listed.iter().map(|one| one.sequence).collect();
    assert_eq!(sequences, [0, 1, 2, 3, 4]);
    let kinds: Vec<ContenderKind> = listed.iter().map(|one| one.kind).collect();
    assert_eq!(
        kinds,
        [
            ContenderKind::Mutex,
            ContenderKind::Mutex,
            ContenderKind::Read,
            ContenderKind::Write,
            ContenderKind::Mutex
        ]
    );
    let data: Vec<&[u8]> = listed.iter().map(|one| &*one.data).collect();
    assert_eq!(data, [&b"me"[..], b"z", b"b", &[0xff, b'a'], b""]);
    assert_eq!(listed[3].label(), "\u{fffd}a");
    let (first, second): (SessionId, SessionId) = (one.session().into(), two.session().into());
    let sessions: Vec<SessionId> = listed.iter().filter_map(|one| one.session).collect();
    let own = zk.session_id().unwrap();
    assert_eq!(sessions, [own, first, second, first, second]);
    for contender in &listed {
        let stat = one.exists(&contender.path).unwrap().unwrap();
        let since = contender.since.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since.as_millis(), stat.ctime as u128);
        assert!(contender.age().unwrap() < Duration::from_secs(60), "{contender:?}");
    }
    assert!(format!("{:?}", listed[0]).contains("label: \"me\""), "{listed:?}");
    one.close().unwrap();
    two.close().unwrap();
    drop((guard, lock));
    site.finish([zk]);
}

#[test]
fn s69_a_contender_that_vanishes_meanwhile_is_left_out() {
    skip_without_server!();
    let site = Site::own("s69-vanishing");
    let proxy = Proxy::start(site.server().addr());
    let zk = quiet_client(&proxy);
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    raw.create_all(&node).unwrap();
    let made = [(); 3].map(|()| intrude(&mut raw, &node, "lock-", b""));
    let lock = mutex(&zk, &site.base, "a");
    // Each contender is read once all are listed.
    proxy.stall_request(opcode::GET_DATA);
    thread::scope(|scope| {
        let listing = scope.spawn(|| lock.contenders().unwrap());
        assert!(proxy.wait_for_request(opcode::GET_DATA, SOON));
        raw.delete(&made[1]).unwrap();
        proxy.release();
        let listed = listing.join().unwrap();
        assert_eq!(names(&listed), [last(&made[0]), last(&made[2])]);
    });
    assert_eq!(proxy.count(opcode::GET_DATA), 3, "it was not in the list to begin with");
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

/// One round trip for each contender would take eight seconds.
#[test]
fn s69_many_contenders_far_away_are_listed_in_time() {
    skip_without_server!();
    let site = Site::own("s69-many");
    let proxy = Proxy::start(site.server().addr());
    let limit = Duration::from_secs(4);
    let builder = connecting(&proxy.hosts()).session_timeout(QUIET).connect_timeout(limit);
    let zk = builder.connect().unwrap();
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    raw.create_all(&node).unwrap();
    let made: Vec<String> = (0..400).map(|_| intrude(&mut raw, &node, "lock-", b"me")).collect();
    let lock = mutex(&zk, &site.base, "a");
    proxy.delay_replies(Duration::from_millis(20));
    let listed = lock.contenders().unwrap();
    assert!(listed.iter().all(|one| one.data == b"me"));
    assert_eq!(listed.into_iter().map(|one| one.path).collect::<Vec<_>>(), made);
    proxy.pass();
    proxy.hold();
    let error = lock.contenders().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect);
    assert!(error.to_string().contains("no server answered in time"), "{error}");
    proxy.release();
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn contenders_say_who_they_are_unless_told_otherwise() {
    skip_without_zookeeper!();
    let site = Site::shared("data");
    let zk = site.client();
    let label_of = |lock: &DistributedLock| {
        let _guard = lock.lock().unwrap();
        lock.contenders().unwrap()[0].label()
    };
    let lock = mutex(&zk, &site.base, "a");
    let label = thread::scope(|scope| {
        let named = thread::Builder::new().name("night shift".to_owned());
        named.spawn_scoped(scope, || label_of(&lock)).unwrap().join().unwrap()
    });
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let (host, pid) = (host.trim(), process::id());
    let path = std::env::args().next().unwrap();
    let program = last(&path);
    assert_eq!(label, format!("host={host} pid={pid} program={program} thread=night shift"));
    let named = lock.lock().unwrap();
    let contender = lock.contenders().unwrap().remove(0);
    assert_eq!((contender.host.as_deref(), contender.process), (Some(host), Some(pid)));
    assert_eq!((contender.program.as_deref(), contender.position), (Some(program), 0));
    assert!(contender.thread.is_some() && contender.holds);
    drop(named);

    let silent = mutex(&zk, &site.base, "a").data(b"");
    assert_eq!(label_of(&silent), "");
    let custom = mutex(&zk, &site.base, "a").data("job 7 — ü");
    assert_eq!(label_of(&custom), "job 7 — ü");
    drop((lock, silent, custom));
    site.finish([zk]);
}

/// Servers from 3.8.4 and 3.9.2 on, and Debian's 3.8.0, send no event for a change to a node that
/// the watching client may not read.
#[test]
fn a_contender_that_may_not_be_read_is_waited_for_all_the_same() {
    skip_without_server!();
    let site = Site::own("hidden");
    let zk = site.client();
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    raw.create_all(&node).unwrap();
    let nobody = [raw::Acl::new(raw::ALL, "digest", "nobody:nothing")];
    let name = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    let theirs = raw.create_with_acl(&name, b"", Kind::EphemeralSequential, &nobody).unwrap();
    let lock = mutex(&zk, &site.base, "a");
    assert!(lock.try_lock().unwrap().is_none());
    let waiter = thread::spawn(move || lock.try_lock_for(Duration::from_secs(10)));
    eventually(Duration::from_secs(5), "a waiter that watches", || {
        site.children("a").len() == 2 && site.server().counter("zk_watch_count") == 2
    });
    raw.delete(&theirs).unwrap();
    let guard = waiter.join().unwrap().unwrap();
    assert!(guard.is_some(), "the lock is free, and the waiter still waits");
    drop(guard);
    site.finish([zk]);
}

#[test]
fn s30_who_may_not_read_his_own_node_learns_of_its_end_all_the_same() {
    skip_without_zookeeper!();
    let site = Site::shared("hidden own");
    let zk = site.client();
    let mut raw = site.raw();
    raw.create_all(&format!("{}/a", site.base)).unwrap();
    let blind = Acl::new(Permissions::CREATE | Permissions::DELETE, "world", "anyone");
    let lock = mutex(&zk, &site.base, "a").acl([blind]);
    let guard = lock.lock().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    // A change of another node makes the client check, but does not affect the guard.
    let other = raw.create(&format!("{}/a/other", site.base), b"", Kind::Persistent).unwrap();
    raw.delete(&other).unwrap();
    guard.ensure_held().unwrap();
    raw.delete(guard.path()).unwrap();
    assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(LossReason::NodeDeleted));
    assert!(!guard.is_held());
    drop((lock, guard));
    site.finish([zk]);
}

/// The server uses up a watch without an event if the node may not be read at that moment.
#[test]
fn a_waiter_whose_watch_was_spent_for_nothing_looks_again() {
    skip_without_server!();
    let site = Site::own("spent");
    let zk = site.builder().session_timeout(Duration::from_secs(2)).connect().unwrap();
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    raw.create_all(&node).unwrap();
    let name = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    let theirs = raw.create(&name, b"", Kind::EphemeralSequential).unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let waiter = thread::spawn(move || lock.try_lock_for(Duration::from_secs(20)));
    eventually(Duration::from_secs(5), "a waiter that watches", || {
        site.children("a").len() == 2 && site.server().counter("zk_watch_count") == 2
    });
    raw.set_acl(&theirs, &[raw::Acl::new(raw::ALL, "digest", "nobody:nothing")]).unwrap();
    raw.delete(&theirs).unwrap();
    let guard = waiter.join().unwrap().unwrap();
    assert!(guard.is_some(), "the lock is free, and the waiter still waits");
    drop(guard);
    site.finish([zk]);
}
