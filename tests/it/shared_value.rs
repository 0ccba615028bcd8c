use std::error::Error as StdError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use zklock::value::Versioned;
use zklock::{Acl, Error, ErrorKind, Permissions, SharedCounter, SharedValue};

use crate::support::proxy::opcode;
use crate::support::raw::{self, ALL};
use crate::support::site::Site;
use crate::support::{QUIET, kind, skip_without_server, skip_without_zookeeper};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);

fn text(value: Option<Versioned>) -> Option<String> {
    value.map(|value| String::from_utf8(value.data).unwrap())
}

#[test]
fn a_value_is_what_was_set_last() {
    skip_without_zookeeper!();
    let site = Site::shared("value");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| SharedValue::new(zk, &site.base, "a"));
    assert_eq!(ours.get().unwrap(), None);
    ours.set("one").unwrap();
    assert_eq!(text(theirs.get().unwrap()).as_deref(), Some("one"));
    theirs.set("").unwrap();
    let empty = ours.get().unwrap().unwrap();
    assert_eq!((&*empty.data, empty.version.number), (&b""[..], 1));
    // The node contains just the bytes, as any other client would write them.
    let mut raw = site.raw();
    raw.set_data(&format!("{}/a", site.base), b"from elsewhere").unwrap();
    assert_eq!(text(ours.get().unwrap()).as_deref(), Some("from elsewhere"));
    raw.close().unwrap();
    drop((ours, theirs));
    site.finish(clients);
}

#[test]
fn only_the_version_that_was_read_is_replaced() {
    skip_without_zookeeper!();
    let site = Site::shared("value-versions");
    let zk = site.client();
    let value = SharedValue::new(&zk, &site.base, "a");
    let made = value.set_if_absent("one").unwrap().expect("there was none");
    assert_eq!(value.set_if_absent("two").unwrap(), None);
    let first = value.get().unwrap().unwrap();
    assert_eq!(first.version, made);
    let second = value.compare_and_set(first.version, "two").unwrap().expect("the same version");
    assert_eq!(value.compare_and_set(first.version, "three").unwrap(), None);
    assert_eq!(value.get().unwrap().unwrap().version, second);
    let third = value.compare_and_set(second, "three").unwrap().expect("the returned version");
    assert_eq!(text(value.get().unwrap()).as_deref(), Some("three"));
    // No version matches a node that does not exist.
    let mut raw = site.raw();
    raw.delete(&format!("{}/a", site.base)).unwrap();
    assert_eq!(value.compare_and_set(third, "four").unwrap(), None);
    assert_eq!(value.get().unwrap(), None);
    let shown = |old: Option<&[u8]>| Ok::<_, Error>(Some(format!("{old:?}")));
    let first = value.update(shown).unwrap().expect("a change");
    assert_eq!(text(value.get().unwrap()).as_deref(), Some("None"));
    assert_eq!(value.get().unwrap().unwrap().version, first);
    let second = value.set("another").unwrap();
    assert_eq!(value.get().unwrap().unwrap().version, second);
    let declined = |_: Option<&[u8]>| Ok::<Option<Vec<u8>>, Error>(None);
    assert_eq!(value.update(declined).unwrap(), None);
    let failed = value.update(|_| Err::<Option<Vec<u8>>, Box<dyn StdError>>("no".into()));
    assert_eq!(failed.unwrap_err().to_string(), "no");
    assert_eq!(value.get().unwrap().unwrap().version, second);
    raw.close().unwrap();
    drop(value);
    site.finish([zk]);
}

#[test]
fn s80_a_counter_of_ten_writers_is_exact() {
    skip_without_zookeeper!();
    const WRITERS: usize = 10;
    const TIMES: i64 = 50;
    let site = Site::shared("s80-counter");
    let clients = [site.client(), site.client()];
    let sums: Vec<i64> = thread::scope(|scope| {
        let count = |index: usize| {
            let counter = SharedCounter::new(&clients[index % 2], &site.base, "a");
            move || (0..TIMES).map(|_| counter.add(1).unwrap()).collect::<Vec<_>>()
        };
        let writers: Vec<_> = (0..WRITERS).map(|index| scope.spawn(count(index))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let mut sorted = sums.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=WRITERS as i64 * TIMES).collect::<Vec<_>>());
    let counter = SharedCounter::new(&clients[0], &site.base, "a");
    assert_eq!(counter.get().unwrap(), WRITERS as i64 * TIMES);
    drop(counter);
    site.finish(clients);
}

/// A call that succeeded has counted; a call that failed may have counted.
#[test]
fn s80_a_counter_loses_nothing_when_answers_are_lost() {
    skip_without_server!();
    let site = Site::own("s80-lost");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    let other = site.client();
    let (counted, unsure) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for zk in [&zk, &zk, &other] {
            let counter = SharedCounter::new(zk, &site.base, "a");
            let (counted, unsure) = (&counted, &unsure);
            scope.spawn(move || {
                for _ in 0..60 {
                    match counter.add(1) {
                        Ok(_) => counted.fetch_add(1, Ordering::SeqCst),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::ConnectionLoss, "{error}");
                            unsure.fetch_add(1, Ordering::SeqCst)
                        }
                    };
                }
            });
        }
        for _ in 0..10 {
            let before = proxy.count(opcode::SET_DATA);
            proxy.drop_reply(opcode::SET_DATA, 1);
            assert!(proxy.wait_for_requests(opcode::SET_DATA, before + 2, SOON));
        }
    });
    let (counted, unsure) = (counted.into_inner() as i64, unsure.into_inner() as i64);
    assert_eq!(counted + unsure, 180);
    let counter = SharedCounter::new(&other, &site.base, "a");
    let sum = counter.get().unwrap();
    assert!((counted..=counted + unsure).contains(&sum), "{counted} + {unsure}, not {sum}");
    drop(counter);
    site.finish([zk, other]);
}

/// After a lost answer the client finds out what happened if it can, and otherwise reports doubt.
#[test]
fn a_change_whose_answer_was_lost_is_not_made_twice() {
    skip_without_server!();
    let site = Site::own("value-lost");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    let value = SharedValue::new(&zk, &site.base, "a");
    value.set("one").unwrap();
    let version = value.get().unwrap().unwrap().version;
    // The request never reached the server, so it is repeated.
    proxy.drop_request(opcode::SET_DATA, 1);
    let version = value.compare_and_set(version, "two").unwrap().expect("the same version");
    // The request reached the server: the client cannot tell who wrote the present value.
    proxy.drop_reply(opcode::SET_DATA, 1);
    assert_eq!(kind(value.compare_and_set(version, "three")), ErrorKind::ConnectionLoss);
    let now = value.get().unwrap().unwrap();
    assert_eq!((&*now.data, now.version.number), (&b"three"[..], version.number + 1));
    drop(value);
    site.finish([zk]);
}

#[test]
fn changes_are_observed_over_lost_sessions() {
    skip_without_server!();
    let site = Site::own("value-observed");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    let other = site.client();
    let [ours, theirs] = [&zk, &other].map(|zk| SharedValue::new(zk, &site.base, "a"));
    let mut changes = ours.observe();
    assert_eq!(changes.next_within(SOON).unwrap(), Some(None));
    assert_eq!(changes.next_within(BRIEF).unwrap(), None);
    theirs.set("one").unwrap();
    assert_eq!(changes.next_within(SOON).unwrap().map(text), Some(Some("one".to_owned())));
    assert_eq!(changes.next_within(BRIEF).unwrap(), None);
    // A change during an outage is seen afterwards.
    proxy.refuse();
    theirs.set("two").unwrap();
    site.expire(&proxy);
    assert_eq!(changes.next_within(SOON).unwrap().map(text), Some(Some("two".to_owned())));
    let mut raw = site.raw();
    raw.delete(&format!("{}/a", site.base)).unwrap();
    assert_eq!(changes.next_within(SOON).unwrap(), Some(None));
    theirs.set("three").unwrap();
    assert_eq!(text(changes.next().unwrap().unwrap()).as_deref(), Some("three"));
    zk.close();
    assert_eq!(changes.next().map(kind), Some(ErrorKind::Closed));
    assert!(changes.next().is_none());
    raw.close().unwrap();
    drop((changes, ours, theirs));
    site.finish([zk, other]);
}

#[test]
fn what_is_refused_changes_nothing() {
    skip_without_server!();
    let site = Site::own("value-refused");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    for (base, name) in [("", "a"), (&*site.base, ""), (&site.base, "a/b"), ("/zookeeper", "a")] {
        let value = SharedValue::new(&zk, base, name);
        assert_eq!(kind(value.get()), ErrorKind::InvalidName);
        assert_eq!(kind(value.set("x")), ErrorKind::InvalidName);
        assert_eq!(kind(value.update(|_| Ok::<_, Error>(Some("x")))), ErrorKind::InvalidName);
        assert_eq!(kind(value.observe().next_within(BRIEF)), ErrorKind::InvalidName);
    }
    let value = SharedValue::new(&zk, &site.base, "a");
    value.set("one").unwrap();
    let version = value.get().unwrap().unwrap().version;
    let writes = proxy.count(opcode::SET_DATA);
    let endless = vec![b'x'; 1 << 20];
    assert_eq!(kind(value.set(endless.clone())), ErrorKind::TooLarge);
    assert_eq!(kind(value.compare_and_set(version, endless)), ErrorKind::TooLarge);
    assert_eq!(proxy.count(opcode::SET_DATA), writes);
    assert_eq!(text(value.get().unwrap()).as_deref(), Some("one"));

    // A counter is eight bytes long, and does not overflow.
    let counter = SharedCounter::new(&zk, &site.base, "a");
    assert_eq!(kind(counter.get()), ErrorKind::InvalidArgument);
    assert_eq!(kind(counter.add(1)), ErrorKind::InvalidArgument);
    let set = counter.set(i64::MAX).unwrap();
    assert_eq!(counter.value().get().unwrap().unwrap().version, set);
    assert_eq!(kind(counter.add(1)), ErrorKind::InvalidArgument);
    assert_eq!(counter.compare_and_set(7, 8).unwrap(), None);
    let changed = counter.compare_and_set(i64::MAX, -8).unwrap().expect("the number expected");
    assert_eq!(counter.value().get().unwrap().unwrap().version, changed);
    assert_eq!(counter.add(-1).unwrap(), -9);

    // A client that may not read gets an error, not an absent value.
    let mut raw = site.raw();
    raw.add_auth("digest", b"me:secret").unwrap();
    let path = format!("{}/a", site.base);
    let owner = raw::Acl::new(ALL, "auth", "");
    raw.set_acl(&path, &[raw::Acl::new(2, "world", "anyone"), owner]).unwrap();
    assert_eq!(kind(value.get()), ErrorKind::NotAuthorized);
    assert_eq!(kind(value.observe().next_within(SOON)), ErrorKind::NotAuthorized);
    value.set("unseen").unwrap();
    let owner = raw::Acl::new(ALL, "auth", "");
    raw.set_acl(&path, &[raw::Acl::new(1, "world", "anyone"), owner]).unwrap();
    assert_eq!(kind(value.set("two")), ErrorKind::NotAuthorized);
    assert_eq!(kind(value.compare_and_set(version, "two")), ErrorKind::NotAuthorized);
    assert_eq!(text(value.get().unwrap()).as_deref(), Some("unseen"));
    raw.delete(&path).unwrap();
    // Nodes are made with the builder's ACL.
    let acl = [Acl::new(Permissions::READ, "world", "anyone")];
    let readable = SharedValue::new(&zk, &site.base, "a").acl(acl);
    readable.set("for good").unwrap();
    assert_eq!(kind(readable.set("again")), ErrorKind::NotAuthorized);
    assert_eq!(text(readable.get().unwrap()).as_deref(), Some("for good"));
    raw.close().unwrap();
    drop((value, readable, counter));
    site.finish([zk]);
}

/// Like Curator's `DistributedAtomicLong`.
#[test]
fn a_counter_whose_node_is_empty_is_at_0() {
    skip_without_zookeeper!();
    let site = Site::shared("counter-empty");
    let (zk, mut raw) = (site.client(), site.raw());
    let [added, set] = ["added", "set"].map(|name| SharedCounter::new(&zk, &site.base, name));
    for name in ["added", "set"] {
        raw.create_all(&format!("{}/{name}", site.base)).unwrap();
    }
    assert_eq!((added.get().unwrap(), added.add(3).unwrap(), added.get().unwrap()), (0, 3, 3));
    assert_eq!(set.compare_and_set(1, 7).unwrap(), None);
    assert!(set.compare_and_set(0, 7).unwrap().is_some());
    assert_eq!(set.get().unwrap(), 7);
    raw.close().unwrap();
    drop((added, set));
    site.finish([zk]);
}

#[test]
fn a_lone_writer_sets_with_one_request() {
    skip_without_server!();
    let site = Site::own("value-costs");
    let (proxy, zk) = site.proxied(QUIET);
    let value = SharedValue::new(&zk, &site.base, "a");
    value.set("first").unwrap();
    proxy.reset_counts();
    for number in 0..3 {
        value.set(format!("{number}")).unwrap();
    }
    let asked: Vec<i32> = proxy.requests().iter().map(|seen| seen.opcode).collect();
    assert_eq!(asked, [opcode::SET_DATA; 3]);
    // Another client is first: beside the value, a permit is made and used.
    let mut raw = site.raw();
    raw.set_data(&format!("{}/a", site.base), b"theirs").unwrap();
    proxy.reset_counts();
    value.set("last").unwrap();
    let asked: Vec<i32> = proxy.requests().iter().map(|seen| seen.opcode).collect();
    assert_eq!(asked, [opcode::SET_DATA, opcode::CREATE, opcode::MULTI]);
    assert_eq!(text(value.get().unwrap()).as_deref(), Some("last"));
    raw.close().unwrap();
    drop(value);
    site.finish([zk]);
}
