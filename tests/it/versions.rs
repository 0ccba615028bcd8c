//! Servers that are older, or have smaller limits, than ours. The proxy imitates the older ones.

use std::time::Duration;

use zklock::{DistributedQueue, ErrorKind, Group, LeaderElection, SharedValue};

use crate::support::proxy::opcode;
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::{QUIET, eventually, got_nothing, mutex, skip_before, skip_without_server};

const LONG: Duration = Duration::from_secs(30);

/// A server before 3.5 answers that the request is unknown, and closes the connection.
#[test]
fn a_server_that_knows_no_containers_makes_plain_nodes_and_is_asked_for_one_only_once() {
    skip_without_server!();
    let site = Site::own("no-containers");
    let (proxy, zk) = site.proxied(QUIET);
    proxy.unknown(opcode::CREATE_CONTAINER);
    let lock = mutex(&zk, &site.base, "lock");
    lock.try_lock_for(LONG).unwrap().expect("a lock").unlock().unwrap();
    assert_eq!((proxy.count(opcode::CREATE_CONTAINER), proxy.connections()), (1, 2));
    lock.lock().unwrap().unlock().unwrap();
    let queue = DistributedQueue::new(&zk, &site.base, "queue");
    queue.offer("item").unwrap();
    assert_eq!(queue.try_take().unwrap().as_deref(), Some(&b"item"[..]));
    let group = Group::new(&zk, &site.base, "group");
    let member = group.join("member", "").unwrap();
    let election = LeaderElection::new(&zk, &site.base, "election");
    let leadership = election.campaign_within(LONG).unwrap().expect("to lead");
    assert_eq!((proxy.count(opcode::CREATE_CONTAINER), proxy.connections()), (1, 2));
    let mut raw = site.raw();
    for name in ["lock", "queue", "group", "election"] {
        let node = raw.exists(&format!("{}/{name}", site.base)).unwrap().expect("a node");
        assert_eq!(node.ephemeral_owner, 0, "{name} is a container");
    }
    leadership.resign().unwrap();
    member.leave().unwrap();
    raw.close().unwrap();
    drop((lock, queue, group, election));
    site.finish([zk]);
}

/// A server closes a connection on which a request is larger than the server's limit.
#[test]
fn a_request_that_is_too_large_for_the_server_costs_a_few_connections_and_then_says_so() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::with("small-buffer", &Server::builder().property("jute.maxbuffer=70000"));
    let (proxy, zk) = site.proxied(QUIET);
    let guard = mutex(&zk, &site.base, "other").lock().unwrap();
    let large = vec![b'x'; 80_000];
    let lock = mutex(&zk, &site.base, "a").data(&*large);
    for limit in [LONG * 4, LONG] {
        let error = lock.try_lock_for(limit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        let text = error.to_string();
        assert!(text.contains("the request has 80") && text.contains("jute.maxbuffer"), "{text}");
        assert_eq!(proxy.connections(), 4, "{text}");
    }
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::TooLarge);
    // After one such request the client refuses all that are not smaller.
    let value = SharedValue::new(&zk, &site.base, "value");
    let queue = DistributedQueue::new(&zk, &site.base, "queue");
    let larger = vec![b'x'; 90_000];
    value.set("small").unwrap();
    let now = value.get().unwrap().expect("a value");
    for error in [
        value.set(&*larger).unwrap_err(),
        value.compare_and_set(now.version, &*larger).unwrap_err(),
        queue.offer(&*larger).unwrap_err(),
        Group::new(&zk, &site.base, "group").join("member", &*larger).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    }
    assert_eq!(proxy.connections(), 4);
    assert_eq!(site.children("a"), [""; 0]);
    assert_eq!(value.get().unwrap().expect("a value").data, b"small");
    guard.ensure_held().unwrap();
    drop(mutex(&zk, &site.base, "a").data(&large[..60_000]).lock().unwrap());
    guard.unlock().unwrap();
    drop((lock, value, queue));
    site.finish([zk]);
}

#[test]
fn a_compare_and_set_that_is_too_large_for_the_server_is_known_not_to_be_done() {
    skip_without_server!();
    let site = Site::with("small-value", &Server::builder().property("jute.maxbuffer=70000"));
    let (proxy, zk) = site.proxied(QUIET);
    let value = SharedValue::new(&zk, &site.base, "value");
    value.set("small").unwrap();
    let now = value.get().unwrap().expect("a value");
    let error = value.compare_and_set(now.version, vec![b'x'; 80_000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert_eq!((value.get().unwrap(), proxy.connections()), (Some(now), 4));
    drop(value);
    site.finish([zk]);
}

/// No server is blamed for a connection that breaks again and again.
#[test]
fn a_request_that_any_server_takes_is_asked_again_however_many_connections_it_costs() {
    skip_without_server!();
    let site = Site::own("not-too-large");
    let (proxy, zk) = site.proxied(QUIET);
    for size in [2_000, 65_000] {
        let lock = mutex(&zk, &site.base, "a").data(vec![b'x'; size]);
        proxy.drop_request_on(opcode::CREATE, "-lock-", 4);
        drop(lock.lock().unwrap());
    }
    site.finish([zk]);
}

/// Its connection is cut twice, as by servers that restart.
#[test]
fn a_large_request_without_an_answer_is_asked_again() {
    skip_without_server!();
    let site = Site::own("large-again");
    let (proxy, zk) = site.proxied(QUIET);
    let lock = mutex(&zk, &site.base, "a").data([b'x'; 80_000]);
    for round in 1..=3 {
        proxy.drop_reply_on(opcode::CREATE, "-lock-", 1);
        proxy.drop_request_on(opcode::CREATE, "-lock-", 1);
        let guard = lock.lock().unwrap();
        assert_eq!(site.children("a").len(), 1, "{round}");
        guard.unlock().unwrap();
    }
    drop(lock);
    site.finish([zk]);
}

/// The cuts look like those of a server's small limit, but the first came after the change was
/// done.
#[test]
fn a_change_that_may_have_been_done_is_not_said_to_be_too_large() {
    skip_without_server!();
    let site = Site::own("large-done");
    let (proxy, zk) = site.proxied(QUIET);
    let value = SharedValue::new(&zk, &site.base, "value");
    value.set("small").unwrap();
    let now = value.get().unwrap().expect("a value");
    proxy.drop_reply(opcode::SET_DATA, 1);
    proxy.drop_request(opcode::SET_DATA, 2);
    let error = value.compare_and_set(now.version, vec![b'x'; 80_000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLoss, "{error}");
    assert_eq!(value.get().unwrap().expect("a value").data.len(), 80_000);
    // If the client cannot tell whether the first request was done, the error says so.
    let (second, another) = site.proxied(QUIET);
    let other = SharedValue::new(&another, &site.base, "value");
    second.drop_reply(opcode::SET_DATA, 1);
    second.drop_request(opcode::SET_DATA, 2);
    let error = other.set(vec![b'x'; 90_000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert!(error.to_string().contains("it may have been done"), "{error}");
    assert_eq!(value.get().unwrap().expect("a value").data.len(), 90_000);
    drop((value, other));
    site.finish([zk, another]);
}

/// Observers and calls that end before any event leave watches behind.
#[test]
fn watches_that_nobody_waits_for_do_not_pile_up_at_the_server() {
    skip_without_server!();
    skip_before!(3, 5, "cannot remove watches");
    let site = Site::own("watches");
    let (proxy, zk) = site.proxied(QUIET);
    let holder = site.quiet_client();
    let guard = mutex(&holder, &site.base, "a").lock().unwrap();
    let waits = |number: u32| {
        let value = SharedValue::new(&zk, &site.base, format!("value-{number}"));
        assert!(value.observe().next_within(LONG).unwrap().is_some());
    };
    (0..300).for_each(waits);
    assert!(got_nothing(mutex(&zk, &site.base, "a").try_lock_for(Duration::from_millis(10))));
    let most = 80;
    assert!(zk.stats().watches_at_server.unwrap() < most, "{:?}", zk.stats());
    eventually(LONG, "the server to forget", || {
        site.server().counter("zk_watch_count") < most as u64
    });
    assert!(proxy.count(opcode::REMOVE_WATCHES) > 200);
    // An ordinary lock needs no request to remove watches.
    proxy.reset_counts();
    let lock = mutex(&zk, &site.base, "b");
    for _ in 0..200 {
        lock.lock().unwrap().unlock().unwrap();
    }
    assert_eq!(proxy.count(opcode::REMOVE_WATCHES), 0);
    guard.unlock().unwrap();
    drop(lock);
    site.finish([zk, holder]);
}

/// Each further attempt would cost another connection.
#[test]
fn a_server_that_cannot_remove_watches_is_asked_for_it_only_once() {
    skip_without_server!();
    let site = Site::own("old-watches");
    let (proxy, zk) = site.proxied(QUIET);
    proxy.unknown(opcode::REMOVE_WATCHES);
    for number in 0..300 {
        let value = SharedValue::new(&zk, &site.base, format!("value-{number}"));
        assert!(value.observe().next_within(LONG).unwrap().is_some());
    }
    assert_eq!(proxy.connections(), 2);
    site.finish([zk]);
}
