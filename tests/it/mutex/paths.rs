//! Where the lock is: names, parents, chroots, data.

use std::thread;
use std::time::Duration;

use zklock::{Cancel, Client, ErrorKind};

use super::{SOON, quiet_client};
use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{
    eventually, kind, mutex, nodes_of, skip_before, skip_without_server, skip_without_zookeeper,
    waiting,
};

#[test]
fn s11_missing_parents_are_made_and_made_again() {
    skip_without_server!();
    skip_before!(3, 5, "know no containers");
    let site = Site::own("s11");
    let proxy = Proxy::start(site.server().addr());
    let zk = quiet_client(&proxy);
    let deep = format!("{}/some/levels/deep", site.base);
    let lock = mutex(&zk, &deep, "a");
    let mut raw = site.raw();
    lock.lock().unwrap().unlock().unwrap();
    assert!(raw.exists(&format!("{deep}/a")).unwrap().is_some());

    // Deleted between two calls.
    raw.delete_recursive(&site.base).unwrap();
    lock.lock().unwrap().unlock().unwrap();

    // Deleted during a call, after the call has made them.
    raw.delete(&format!("{deep}/a")).unwrap();
    proxy.reset_counts();
    proxy.stall_reply(opcode::CREATE_CONTAINER);
    thread::scope(|scope| {
        let locking = scope.spawn(|| lock.lock().unwrap());
        assert!(proxy.wait_for_request(opcode::CREATE_CONTAINER, SOON));
        eventually(SOON, "the lock node", || raw.exists(&format!("{deep}/a")).unwrap().is_some());
        raw.delete_recursive(&site.base).unwrap();
        proxy.release();
        let guard = locking.join().unwrap();
        assert!(raw.exists(guard.path()).unwrap().is_some());
        guard.ensure_held().unwrap();
    });
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s12_under_a_chroot_that_exists_paths_are_the_clients_own() {
    under_a_chroot("s12", true);
}

#[test]
fn s12_a_missing_chroot_is_made_with_the_first_lock() {
    under_a_chroot("s12-missing", false);
}

fn under_a_chroot(test: &str, exists: bool) {
    skip_without_zookeeper!();
    let site = Site::shared(test);
    let mut raw = site.raw();
    if exists {
        raw.create_all(&site.base).unwrap();
    }
    let zk = Client::connect(&format!("{}{}", site.hosts(), site.base)).unwrap();
    let lock = mutex(&zk, "/locks", "a");
    assert!(lock.contenders().unwrap().is_empty());
    let guard = lock.lock().unwrap();
    assert!(guard.path().starts_with("/locks/a/"), "{guard:?}");
    let stat = raw.exists(&format!("{}{}", site.base, guard.path())).unwrap().expect("the node");
    assert_eq!(guard.fencing_token().zxid(), stat.czxid as u64);
    guard.ensure_held().unwrap();
    assert_eq!(lock.contenders().unwrap()[0].path, guard.path());

    let cancel = Cancel::new();
    let theirs = lock.clone();
    let waiter = waiting(move || theirs.lock_within(&cancel).unwrap().unwrap());
    eventually(SOON, "the waiter", || lock.contenders().unwrap().len() == nodes_of(2));
    drop(guard);
    let guard = waiter.join().unwrap();
    let lost = guard.lost();
    raw.delete(&format!("{}{}", site.base, guard.path())).unwrap();
    assert!(matches!(lost.wait_within(SOON), Some(Err(_))), "the watch is on another path");
    drop(guard);
    // At the root of the chroot.
    let at_root = mutex(&zk, "/", "b");
    let guard = at_root.lock().unwrap();
    assert!(guard.path().starts_with("/b/"), "{guard:?}");
    drop(guard);
    raw.close().unwrap();
    drop((lock, at_root));
    site.finish([zk]);
}

#[test]
fn s13a_two_names_under_one_base_are_independent() {
    skip_without_zookeeper!();
    let site = Site::shared("s13a");
    let zk = site.client();
    let [a, b] = ["a", "b"].map(|name| mutex(&zk, &site.base, name));
    // Also if one name is the beginning of another.
    let longer = mutex(&zk, &site.base, "ab");
    let guards = [&a, &b, &longer].map(|lock| lock.try_lock().unwrap());
    assert!(guards.iter().all(Option::is_some), "{guards:?}");
    assert!([&a, &b, &longer].iter().all(|lock| lock.try_lock().unwrap().is_none()));
    drop(guards);
    drop((a, b, longer));
    site.finish([zk]);
}

#[test]
fn bad_names_are_refused_before_anything_is_asked() {
    skip_without_server!();
    let site = Site::own("names");
    let proxy = Proxy::start(site.server().addr());
    let zk = quiet_client(&proxy);
    let long = "n".repeat(1_025);
    let refused = [
        ("", "a"),
        ("locks", "a"),
        ("/locks/", "a"),
        ("//", "a"),
        ("/lo//cks", "a"),
        ("/./locks", "a"),
        ("/locks/..", "a"),
        ("/lo\0cks", "a"),
        ("/lo\u{1f}cks", "a"),
        ("/zookeeper", "a"),
        ("/zookeeper/quota", "a"),
        ("/", "zookeeper"),
        ("/locks", ""),
        ("/locks", "."),
        ("/locks", ".."),
        ("/locks", "a/b"),
        ("/locks", "/a"),
        ("/locks", "a\0"),
        ("/locks", "a\n"),
        ("/locks", "\u{7f}"),
        ("/locks", "\u{e000}"),
        ("/locks", "\u{fffd}"),
        ("/locks", "😀"),
        ("/locks", &long),
    ];
    for (base, name) in refused {
        let lock = mutex(&zk, base, name);
        let cancel = Cancel::new();
        let kinds = [
            kind(lock.lock()),
            kind(lock.lock_within(&cancel)),
            kind(lock.try_lock()),
            kind(lock.try_lock_for(Duration::from_secs(1))),
            kind(lock.lock_within(std::time::Instant::now())),
            kind(lock.contenders()),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidName; 6], "{base:?} {name:?}");
        assert!(!lock.lock().unwrap_err().is_retryable());
    }
    assert_eq!(proxy.requests(), []);
    site.finish([zk]);
}

#[test]
fn odd_names_that_are_accepted_work() {
    skip_without_server!();
    let site = Site::own("odd");
    let zk = site.client();
    let mut raw = site.raw();
    let longest = "n".repeat(1_024 - site.base.len() - 1);
    let accepted = [
        ("", "Ümläute ß"),
        ("", " "),
        ("/a b", "c d"),
        ("/日本", "鍵"),
        ("", "..."),
        ("", ".a"),
        ("", "~!@#$%^&*()+=[]{}|\\:;\"'<>,?`"),
        ("", "zookeeper"),
        ("", "lock-0000000000"),
        ("", "\u{d7ff}\u{f900}\u{ffef}"),
        ("", &longest),
    ];
    let bases = accepted.map(|(below, name)| (format!("{}{below}", site.base), name));
    for (base, name) in
        bases.iter().map(|(base, name)| (&**base, *name)).chain([("/", "at the root")])
    {
        let lock = mutex(&zk, base, name);
        let guard = lock.lock().unwrap();
        assert!(raw.exists(guard.path()).unwrap().is_some(), "{base:?} {name:?}");
        assert!(lock.try_lock().unwrap().is_none(), "{base:?} {name:?}");
        assert_eq!(lock.contenders().unwrap()[0].path, guard.path());
        guard.unlock().unwrap();
    }
    assert_eq!(raw.get_children("/at the root").unwrap(), [""; 0]);
    raw.close().unwrap();
    site.finish([zk]);
}

#[test]
fn data_that_is_too_large_is_refused_and_harms_nothing() {
    skip_without_server!();
    let site = Site::own("large");
    let proxy = Proxy::start(site.server().addr());
    let zk = quiet_client(&proxy);
    let session = zk.session_id();
    let good = mutex(&zk, &site.base, "good");
    let guard = good.lock().unwrap();
    let connections = proxy.connections();
    for size in [1_048_575, 1 << 20, 3 << 20] {
        let lock = mutex(&zk, &site.base, "a").data(vec![b'x'; size]);
        let failures = [
            lock.lock().unwrap_err(),
            lock.try_lock().unwrap_err(),
            lock.try_lock_for(Duration::from_secs(5)).unwrap_err(),
        ];
        for error in failures {
            assert!(
                matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::InvalidArgument),
                "{size}: {error:?}"
            );
            assert_eq!(error.path(), Some(&*format!("{}/a", site.base)), "{error}");
        }
        guard.ensure_held().unwrap();
    }
    let large = mutex(&zk, &site.base, "a").data(vec![b'x'; 1_000_000]);
    let held = large.lock().unwrap();
    assert_eq!(large.contenders().unwrap()[0].data.len(), 1_000_000);
    drop(held);
    guard.unlock().unwrap();
    drop(good.lock().unwrap());
    assert_eq!(zk.session_id(), session);
    assert_eq!(proxy.connections(), connections, "the connection did not survive it");
    drop((good, large));
    site.finish([zk]);
}
