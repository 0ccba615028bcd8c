use std::thread;
use std::time::Duration;

use zklock::{
    Cancel, Client, ContenderKind, DistributedLock, DistributedRwLock, DistributedSemaphore,
    ErrorKind, NodeNaming,
};

use crate::support::proxy::{Seen, opcode};
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::{
    got_nothing, last, mutex, skip_before, skip_without_server, skip_without_zookeeper,
};

/// Whether the name is a guid between `before` and `after`, and ten digits.
fn is_named(path: &str, before: &str, guid: usize, after: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-'));
    let rest = last(path).strip_prefix(before).and_then(|rest| rest.split_at_checked(guid));
    let Some((guid, rest)) = rest else { return false };
    let digits = rest.strip_prefix(after).unwrap_or_default();
    hex(guid) && digits.len() == 10 && digits.bytes().all(|b| b.is_ascii_digit())
}

fn locks(
    zk: &Client,
    site: &Site,
    naming: NodeNaming,
) -> (DistributedLock, DistributedRwLock, DistributedSemaphore) {
    (
        mutex(zk, &site.base, "a").naming(naming),
        DistributedRwLock::new(zk, &site.base, "b").naming(naming),
        DistributedSemaphore::new(zk, &site.base, "c", 3),
    )
}

#[test]
fn contenders_are_named_as_documented() {
    skip_without_server!();
    skip_before!(3, 5, "know no containers");
    let cases = [
        (
            NodeNaming::Curator,
            ["_c_", "-lock-", "-__WRIT__", "-__READ__"],
            36,
            opcode::CREATE_CONTAINER,
        ),
        (NodeNaming::Kazoo, ["", "__lock__", "__lock__", "__rlock__"], 32, opcode::CREATE),
    ];
    for (naming, [before, mutex, writer, reader], guid, kind) in cases {
        let site = Site::own("named");
        let (proxy, zk) = site.proxied(Duration::from_secs(10));
        let (lock, shared, permits) = locks(&zk, &site, naming);
        let guard = lock.lock().unwrap();
        assert!(is_named(guard.path(), before, guid, mutex), "{guard:?}");
        let write = shared.write().unwrap();
        assert!(is_named(write.path(), before, guid, writer), "{write:?}");
        let downgraded = write.downgrade().unwrap();
        assert!(is_named(downgraded.path(), before, guid, reader), "{downgraded:?}");
        let read = shared.read().unwrap();
        assert!(is_named(read.path(), before, guid, reader), "{read:?}");
        let many = permits.acquire_many(2).unwrap();
        assert!(is_named(many.path(), "_c_", 36, "-lease-2-of-3-"), "{many:?}");
        // A server does not reveal that a node is a container.
        for name in ["a", "b"] {
            let node = format!("{}/{name}", site.base);
            let made = |seen: &Seen| seen.path.as_ref() == Some(&node) && seen.opcode == kind;
            assert!(proxy.requests().iter().any(made), "{naming:?} {:?}", proxy.requests());
        }
        drop((guard, downgraded, read, many, lock, shared, permits));
        site.finish([zk]);
    }
}

/// Whichever names a client writes, it recognises all: clients that share a lock node by mistake
/// exclude each other here.
#[test]
fn those_of_one_naming_respect_those_of_another() {
    skip_without_zookeeper!();
    let site = Site::shared("mixed");
    let zk = site.client();
    let (lock, shared, _) = locks(&zk, &site, NodeNaming::Curator);
    let (their_lock, their_shared, _) = locks(&zk, &site, NodeNaming::Kazoo);
    for (ours, theirs) in [(&lock, &their_lock), (&their_lock, &lock)] {
        let guard = ours.lock().unwrap();
        assert!(theirs.try_lock().unwrap().is_none());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| theirs.lock().unwrap());
            site.wait_for_children("a", 2);
            drop(guard);
            waiter.join().unwrap().unlock().unwrap();
        });
    }
    for (ours, theirs) in [(&shared, &their_shared), (&their_shared, &shared)] {
        let writer = ours.write().unwrap();
        assert!(theirs.try_read().unwrap().is_none());
        assert!(theirs.try_write().unwrap().is_none());
        let reader = writer.downgrade().unwrap();
        let both = theirs.try_read().unwrap();
        assert!(both.is_some());
        assert!(theirs.try_write().unwrap().is_none());
        drop((reader, both));
    }
    // A writer in kazoo's style looks like a mutex to other clients.
    let writer = their_shared.write().unwrap();
    assert_eq!(shared.contenders().unwrap()[0].kind, ContenderKind::Mutex);
    drop(writer);
    drop((lock, shared, their_lock, their_shared));
    site.finish([zk]);
}

#[test]
fn s36_a_create_whose_reply_is_lost_is_adopted_under_every_name() {
    skip_without_server!();
    let site = Site::own("s36-naming");
    let mut raw = site.raw();
    for name in ["a", "b", "c"] {
        raw.create_all(&format!("{}/{name}", site.base)).unwrap();
    }
    for naming in [NodeNaming::Curator, NodeNaming::Kazoo] {
        for count in [1, 3] {
            let (proxy, zk) = site.proxied(Duration::from_secs(4));
            // Otherwise the client would open another session.
            let kept = mutex(&zk, &site.base, "kept").lock().unwrap();
            let (lock, shared, permits) = locks(&zk, &site, naming);
            let (reading, writing) = (shared.clone(), shared);
            let calls: [(&str, &dyn Fn() -> zklock::Result<()>); 4] = [
                ("a", &|| lock.lock()?.unlock()),
                ("b", &|| writing.write()?.unlock()),
                ("b", &|| reading.read_within(&Cancel::new())?.unwrap().unlock()),
                ("c", &|| permits.acquire_many(2)?.release()),
            ];
            for (at, (name, call)) in calls.into_iter().enumerate() {
                proxy.reset_counts();
                proxy.drop_reply_on(opcode::CREATE, &site.base, count);
                let before = proxy.connections();
                call().unwrap();
                assert!(proxy.connections() > before, "{naming:?} {at}: nothing was lost");
                assert_eq!(proxy.count(opcode::CREATE), 1, "{naming:?} {at}: made again");
                assert_eq!(site.children(name).len(), 0, "{naming:?} {at}");
                proxy.pass();
            }
            kept.unlock().unwrap();
            zk.close();
        }
    }
    raw.close().unwrap();
    site.finish([]);
}

#[test]
fn s42_giving_up_leaves_no_ghost_under_any_name() {
    skip_without_server!();
    let site = Site::own("s42-naming");
    let mut raw = site.raw();
    for name in ["a", "b", "c"] {
        raw.create_all(&format!("{}/{name}", site.base)).unwrap();
    }
    for naming in [NodeNaming::Curator, NodeNaming::Kazoo] {
        let (proxy, zk) = site.proxied(Duration::from_secs(10));
        let (lock, shared, permits) = locks(&zk, &site, naming);
        let limit = Duration::from_millis(400);
        let calls: [(&str, &dyn Fn() -> bool); 4] = [
            ("a", &|| got_nothing(lock.try_lock_for(limit))),
            ("b", &|| got_nothing(shared.try_write_for(limit))),
            ("b", &|| got_nothing(shared.try_read_for(limit))),
            ("c", &|| got_nothing(permits.acquire_many_within(2, limit))),
        ];
        for (name, call) in calls {
            proxy.stall_reply(opcode::CREATE);
            assert!(call(), "{naming:?} {name}: not given up");
            site.wait_for_children(name, 1);
            proxy.refuse();
            proxy.pass();
            site.wait_for_children(name, 0);
        }
        zk.close();
    }
    raw.close().unwrap();
    site.finish([]);
}

#[test]
fn s44_the_first_of_kazoos_and_ours_by_number_is_the_first() {
    skip_without_zookeeper!();
    let site = Site::shared("order");
    let zk = site.client();
    let mut raw = site.raw();
    let node = format!("{}/a", site.base);
    raw.create_all(&node).unwrap();
    // Sorted by name it would be the last.
    let first = raw
        .create(
            &format!("{node}/ffffffffffffffffffffffffffffffff__lock__"),
            b"",
            Kind::EphemeralSequential,
        )
        .unwrap();
    let (lock, _, _) = locks(&zk, &site, NodeNaming::Kazoo);
    assert!(lock.try_lock().unwrap().is_none());
    assert_eq!(lock.contenders().unwrap()[0].path, first);
    raw.delete(&first).unwrap();
    drop(lock.lock().unwrap());
    let bad = DistributedSemaphore::new(&zk, &site.base, "a", 0);
    assert_eq!(bad.acquire().unwrap_err().kind(), ErrorKind::InvalidArgument);
    raw.close().unwrap();
    drop((lock, bad));
    site.finish([zk]);
}

/// The path is told without a request, and even if ZooKeeper does not allow it.
#[test]
fn a_recipe_of_any_kind_tells_its_path() {
    let zk = Client::builder("127.0.0.1:1").lazy().unwrap();
    for (base, path) in [("/a", "/a/x"), ("/", "/x"), ("no path", "no path/x")] {
        assert_eq!(DistributedLock::new(&zk, base, "x").path(), path);
        assert_eq!(zklock::DistributedQueue::new(&zk, base, "x").path(), path);
        assert_eq!(zklock::PriorityQueue::new(&zk, base, "x").path(), path);
        assert_eq!(zklock::Barrier::new(&zk, base, "x").path(), path);
        assert_eq!(zklock::DoubleBarrier::new(&zk, base, "x", 2).path(), path);
        assert_eq!(zklock::TwoPhaseCommit::new(&zk, base, "x").path(), path);
        assert_eq!(zklock::Group::new(&zk, base, "x").path(), path);
        assert_eq!(zklock::SharedValue::new(&zk, base, "x").path(), path);
        assert_eq!(zklock::SharedCounter::new(&zk, base, "x").path(), path);
        assert_eq!(zklock::Once::new(&zk, base, "x").path(), path);
    }
}
