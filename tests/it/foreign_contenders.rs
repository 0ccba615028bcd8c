//! Lock nodes in which other programs have children with numbers: contenders of recipes that the library does not know,
//! registrations, and whatever else.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use zklock::{
    Client, ContenderKind, DistributedLock, DistributedRwLock, DistributedSemaphore, ErrorKind,
    Event, ForeignContenders,
};

use crate::support::proxy::{Proxy, Seen, opcode};
use crate::support::raw::{Kind, Raw};
use crate::support::site::Site;
use crate::support::{QUIET, eventually, mutex, skip_without_server, strict, waiting};

const SOON: Duration = Duration::from_secs(30);
const HEX: &str = "0f8fad5bd9cb469fa16570867728950e";
const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

/// Makes the lock node, so that a stranger can be there first.
fn lock_node(site: &Site, raw: &mut Raw) -> String {
    let node = format!("{}/a", site.base);
    raw.create_all(&node).unwrap();
    node
}

fn requests(proxy: &Proxy, code: i32) -> usize {
    proxy.requests().iter().filter(|seen| seen.opcode == code).count()
}

/// As the programs name them: Spark's and Flink's latches, aiozk, ZooKeeper's C recipe and WriteLock, Hive, Accumulo,
/// Solr, and one whose name says nothing.
fn of_other_programs() -> Vec<String> {
    vec![
        format!("_c_{UUID}-latch-"),
        format!("lock-{HEX}-"),
        format!("read-{HEX}-"),
        format!("write-{HEX}-"),
        "x-010000afe6420002-".into(),
        "x-72057594037927936-".into(),
        "LOCK-SHARED-".into(),
        "LOCK-EXCLUSIVE-".into(),
        format!("zlock#{UUID}#"),
        "72057594037927936-core_node3-n_".into(),
        "ex".into(),
        String::new(),
    ]
}

#[test]
fn every_other_program_s_contender_is_waited_for_and_shown() {
    skip_without_server!();
    let site = Site::shared("foreign-all");
    let (mut raw, zk) = (site.raw(), site.client());
    let node = lock_node(&site, &mut raw);
    let lock = strict(&zk, &site.base, "a");
    for name in of_other_programs() {
        let made = raw.create(&format!("{node}/{name}"), b"n1", Kind::EphemeralSequential).unwrap();
        assert!(lock.try_lock().unwrap().is_none(), "{name}");
        let readers = DistributedRwLock::new(&zk, &site.base, "a");
        let is_read = name.starts_with("read-") || name == "LOCK-SHARED-";
        assert_eq!(readers.try_read().unwrap().is_some(), is_read, "{name}");
        assert!(readers.try_write().unwrap().is_none(), "{name}");
        let permits = DistributedSemaphore::new(&zk, &site.base, "a", 5);
        assert!(permits.try_acquire().unwrap().is_none(), "{name}");
        let shown = lock.contenders().unwrap();
        let [one] = &shown[..] else { panic!("{shown:?}") };
        assert!(one.holds && one.path == made, "{one:?}");
        assert_eq!(lock.holder().unwrap().as_ref(), Some(one));
        let waiter = {
            let lock = lock.clone();
            waiting(move || lock.lock().unwrap().unlock().unwrap())
        };
        eventually(SOON, "the waiter's node", || site.children("a").len() == 2);
        raw.delete(&made).unwrap();
        waiter.join().unwrap();
    }
    drop(lock);
    site.finish([zk]);
}

#[test]
fn what_lasts_or_came_later_is_nobody_s_predecessor() {
    skip_without_server!();
    let site = Site::shared("foreign-passed");
    let (mut raw, zk) = (site.raw(), site.client());
    let node = lock_node(&site, &mut raw);
    for name in ["data-", "etl-lock-", "a__lock__", "x-5-"] {
        raw.create(&format!("{node}/{name}"), b"", Kind::PersistentSequential).unwrap();
    }
    raw.create(&format!("{node}/etl-lock-2024010112"), b"", Kind::Persistent).unwrap();
    raw.create(&format!("{node}/host-2024010112"), b"", Kind::Ephemeral).unwrap();
    let lock = strict(&zk, &site.base, "a");
    let guard = lock.try_lock().unwrap().expect("nobody is before it");
    // Registered under a low number, after this one was there.
    let late = format!("{node}/worker-0000000001");
    raw.create(&late, b"", Kind::Ephemeral).unwrap();
    guard.ensure_held().unwrap();
    let shown = lock.contenders().unwrap();
    let paths: Vec<&str> = shown.iter().map(|one| &*one.path).collect();
    assert_eq!(paths, [guard.path(), &late], "{shown:?}");
    assert_eq!(shown.iter().filter(|one| one.holds).count(), 1);
    // Whoever comes now comes after both.
    assert!(lock.try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    let waiter = {
        let lock = lock.clone();
        waiting(move || lock.lock().unwrap())
    };
    eventually(SOON, "its event", || lock.contenders().unwrap().len() == 2);
    raw.delete(&late).unwrap();
    waiter.join().unwrap().unlock().unwrap();
    raw.delete_recursive(&node).unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn a_wait_behind_an_unknown_recipe_is_told_with_all_that_is_known() {
    skip_without_server!();
    let site = Site::shared("foreign-told");
    let mut raw = site.raw();
    let node = lock_node(&site, &mut raw);
    let name = format!("{node}/zlock#{UUID}#");
    let made = raw.create(&name, b"tserver1\nmore", Kind::EphemeralSequential).unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&events);
    let zk = site
        .builder()
        .on_event(move |event| {
            if let Event::WaitingForForeign { lock, node, session, age, data, .. } = event {
                let facts = (lock.clone(), node.clone(), *session, age.is_some(), data.clone());
                told.lock().unwrap().push(facts);
            }
        })
        .connect()
        .unwrap();
    let lock = strict(&zk, &site.base, "a");
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let lock = lock.clone();
            waiting(move || lock.lock().unwrap().unlock().unwrap())
        })
        .collect();
    eventually(SOON, "the event", || !events.lock().unwrap().is_empty());
    raw.delete(&made).unwrap();
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    let told = events.lock().unwrap().clone();
    let session = Some(raw.session().into());
    assert_eq!(told, [(node, made, session, true, "tserver1".to_owned())]);
    drop(lock);
    site.finish([zk]);
}

#[test]
fn thousands_of_children_that_last_cost_a_client_one_look() {
    skip_without_server!();
    const CROWD: usize = 3_000;
    const WAITERS: usize = 50;
    let site = Site::own("foreign-crowd");
    let (proxy, zk) = site.proxied(QUIET);
    let mut raw = site.raw();
    let node = lock_node(&site, &mut raw);
    for _ in 0..CROWD {
        raw.create(&format!("{node}/a-"), b"", Kind::PersistentSequential).unwrap();
    }
    proxy.reset_counts();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    // Lists of the lock node itself tell its stat, too.
    let of_child = |seen: &Seen| seen.path.as_deref().is_some_and(|path| path != node);
    let asked = |seen: &Seen| [opcode::EXISTS, opcode::GET_CHILDREN2].contains(&seen.opcode);
    let stats = proxy.requests().iter().filter(|seen| asked(seen) && of_child(seen)).count();
    assert!(stats <= CROWD, "{stats} requests about {CROWD} nodes");
    // The others know that from the client.
    let threads: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = strict(&zk, &site.base, "a");
            waiting(move || lock.lock().unwrap().unlock().unwrap())
        })
        .collect();
    eventually(SOON, "all to queue", || site.children("a").len() == CROWD + 1 + WAITERS);
    guard.unlock().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let after = requests(&proxy, opcode::EXISTS);
    assert!(after <= CROWD, "{after} requests for stats");
    proxy.reset_counts();
    let guard = strict(&zk, &site.base, "a").try_lock().unwrap().expect("free");
    assert_eq!(requests(&proxy, opcode::EXISTS), 0);
    guard.unlock().unwrap();
    site.finish([zk]);
}

#[test]
fn locks_whose_names_look_like_contenders_are_listed_and_do_not_block_their_base() {
    skip_without_server!();
    let site = Site::shared("foreign-names");
    let zk = site.client();
    let base = format!("{}/jobs", site.base);
    let names = [
        "etl-lock-2024010112",
        "db-lock-0000000000",
        "job-lock-1700000000",
        "a__lock__0000000001",
        "x-5-0000000002",
        "host-2024010112",
        "0000000003",
        "report-2024010112",
    ];
    let guards: Vec<_> =
        names.iter().map(|name| strict(&zk, &base, name).try_lock().unwrap().unwrap()).collect();
    let mut expected: Vec<String> = names.iter().map(|name| format!("{base}/{name}")).collect();
    expected.sort();
    let list = zk.locks(&base).unwrap().unwrap();
    let found: Vec<String> = list.locks.iter().map(|lock| lock.path.clone()).collect();
    assert_eq!(found, expected);
    let waits = zk.waits(&base).unwrap().unwrap();
    assert_eq!(waits.contenders.len(), names.len());
    // The base is a lock, too, and free.
    let of_base = DistributedLock::new(&zk, &site.base, "jobs");
    assert_eq!(of_base.contenders().unwrap().len(), 0);
    of_base.try_lock().unwrap().expect("nobody holds it").unlock().unwrap();
    guards.into_iter().for_each(|guard| assert!(guard.unlock().is_ok()));
    drop(of_base);
    site.finish([zk]);
}

#[test]
fn the_unknown_is_passed_only_if_the_client_was_told_so() {
    skip_without_server!();
    let site = Site::shared("foreign-settings");
    let mut raw = site.raw();
    let node = lock_node(&site, &mut raw);
    let with = |how: ForeignContenders| -> Client {
        site.builder().foreign_contenders(how).connect().unwrap()
    };
    let clients = [
        with(ForeignContenders::Wait),
        with(ForeignContenders::Warn),
        with(ForeignContenders::Ignore(vec!["worker-".into(), "etl-lock-".into()])),
    ];
    for (name, passes) in [
        ("worker-", [false, true, true]),
        ("n_", [false, true, false]),
        ("x-5-", [false, false, false]),
        ("etl-lock-", [false, false, true]),
        (&*format!("lock-{HEX}-"), [false, false, false]),
        (&*format!("_c_{UUID}-latch-"), [false, false, false]),
    ] {
        let made = raw.create(&format!("{node}/{name}"), b"", Kind::EphemeralSequential).unwrap();
        for (client, passes) in clients.iter().zip(passes) {
            let got = strict(client, &site.base, "a").try_lock().unwrap();
            assert_eq!(got.is_some(), passes, "{name}");
            drop(got);
            // What a client has left is in the way of the next one until it is gone.
            site.wait_for_children("a", 1);
        }
        raw.delete(&made).unwrap();
    }
    let none = ForeignContenders::Ignore(vec![String::new()]);
    let error = site.builder().foreign_contenders(none).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    site.finish(clients);
}

#[test]
fn only_what_contends_is_broken() {
    skip_without_server!();
    let site = Site::shared("foreign-broken");
    let (mut raw, zk) = (site.raw(), site.client());
    let node = lock_node(&site, &mut raw);
    let lock = strict(&zk, &site.base, "a");
    let made = raw.create(&format!("{node}/n_"), b"", Kind::EphemeralSequential).unwrap();
    let one = lock.contenders().unwrap().remove(0);
    assert_eq!((one.kind, one.recipe()), (ContenderKind::Other, "n"));
    assert!(lock.break_lock(&one).unwrap());
    assert!(raw.exists(&made).unwrap().is_none());
    // By another's hand, a node of the same name that lasts.
    raw.create(&made, b"", Kind::Persistent).unwrap();
    let error = lock.break_lock(&one).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(raw.exists(&made).unwrap().is_some());
    raw.delete(&made).unwrap();
    drop(lock);
    site.finish([zk]);
}

/// Children with numbers, each with a session that lives, in the lock node and beside it.
#[test]
fn other_uses_of_numbers_are_left_alone() {
    skip_without_server!();
    let site = Site::shared("foreign-left");
    let (mut raw, zk) = (site.raw(), site.client());
    // A queue's items, and Curator's leases, have parents of their own.
    let queue = format!("{}/queue", site.base);
    raw.create_all(&queue).unwrap();
    raw.create(&format!("{queue}/qn-"), b"", Kind::PersistentSequential).unwrap();
    let group = format!("{}/group", site.base);
    raw.create_all(&group).unwrap();
    raw.create(&format!("{group}/host-2024010112"), b"", Kind::Ephemeral).unwrap();
    let room = format!("{}/_zklock_room_etl-0000000001", site.base);
    raw.create_all(&room).unwrap();
    let list = zk.locks(&site.base).unwrap().unwrap();
    assert_eq!(list.locks.len(), 0, "{:?}", list.locks);
    // The group's node is taken for a lock's by mistake: whose number no server has given does not contend.
    let held = strict(&zk, &site.base, "group").try_lock().unwrap().expect("free");
    let list = zk.locks(&site.base).unwrap().unwrap();
    let [lock] = &list.locks[..] else { panic!("{list:?}") };
    assert_eq!((lock.holders, lock.waiters), (1, 0));
    held.unlock().unwrap();
    raw.close().unwrap();
    site.finish([zk]);
}
