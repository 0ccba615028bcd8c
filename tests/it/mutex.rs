use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use zklock::{
    Acl, Cancel, Client, Contender, ContenderKind, DistributedLock, Error, ErrorKind, FencingToken,
    LockGuard, LossReason, Lost, Permissions, Result, SessionId,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{self, Kind, Raw};
use crate::support::site::Site;
use crate::support::{
    QUIET, connecting, eventually, got_nothing, kind, last, mutex, nodes_of, own_task, skip_before,
    skip_without_server, skip_without_zookeeper, strict, wait_until_asleep, waiting,
};

const SOON: Duration = Duration::from_secs(10);

fn quiet_client(proxy: &Proxy) -> Client {
    connecting(&proxy.hosts()).session_timeout(QUIET).connect().unwrap()
}

fn wait_for_contenders(site: &Site, name: &str, count: usize) {
    let mut raw = site.raw();
    let node = format!("{}/{name}", site.base);
    eventually(SOON, "a contender", || raw.get_children(&node).unwrap_or_default().len() == count);
    raw.close().unwrap();
}

fn names(contenders: &[Contender]) -> Vec<&str> {
    contenders.iter().map(|one| one.path.rsplit('/').next().unwrap()).collect()
}

/// Makes a contender as another client would.
fn intrude(raw: &mut Raw, node: &str, prefix: &str, data: &[u8]) -> String {
    raw.create(&format!("{node}/{prefix}"), data, Kind::EphemeralSequential).unwrap()
}

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
