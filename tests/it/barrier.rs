use std::thread;
use std::time::Duration;

use zklock::{Acl, Barrier, Cancel, ErrorKind};

use crate::support::proxy::opcode;
use crate::support::raw::{self, Kind};
use crate::support::site::Site;
use crate::support::{
    QUIET, eventually, kind, skip_without_server, skip_without_zookeeper, timed, waiting,
};

const T: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);

#[test]
fn whoever_waits_is_held_up_until_the_barrier_is_lifted() {
    skip_without_zookeeper!();
    let site = Site::shared("barrier");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| Barrier::new(zk, &site.base, "a"));
    assert!(!ours.is_raised().unwrap());
    ours.wait().unwrap();
    assert!(!ours.lift().unwrap(), "it was not up");
    assert!(ours.raise().unwrap());
    assert!(!theirs.raise().unwrap(), "it was up already");
    assert!(theirs.is_raised().unwrap());

    let waiters: Vec<_> = [&ours, &theirs, &theirs]
        .map(|barrier| {
            let barrier = barrier.clone();
            waiting(move || barrier.wait())
        })
        .into();
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    assert!(theirs.lift().unwrap());
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
    assert!(!ours.is_raised().unwrap());
    drop((ours, theirs));
    site.finish(clients);
}

#[test]
fn waiting_ends_in_time_and_when_it_is_cancelled() {
    skip_without_zookeeper!();
    let site = Site::shared("barrier-limits");
    let zk = site.client();
    let barrier = Barrier::new(&zk, &site.base, "a");
    assert!(barrier.wait_within(SOON).unwrap());
    barrier.raise().unwrap();
    for limit in [Duration::ZERO, BRIEF] {
        let (passed, took) = timed(|| barrier.wait_within(limit));
        // With so little time, an answer may be missing.
        assert!(!passed.map_err(|error| assert!(error.is_outage())).unwrap_or(false));
        assert!(took.at_least(limit) && took.within(SOON), "{took:?}");
    }
    let cancel = Cancel::new();
    let waiter = {
        let (barrier, cancel) = (barrier.clone(), cancel.clone());
        waiting(move || barrier.wait_within(&cancel))
    };
    cancel.cancel();
    assert_eq!(kind(waiter.join().unwrap()), ErrorKind::Cancelled);
    assert_eq!(kind(barrier.wait_within(&cancel)), ErrorKind::Cancelled);
    barrier.lift().unwrap();
    drop(barrier);
    site.finish([zk]);
}

#[test]
fn the_first_look_goes_through_the_leader_and_waiting_costs_nothing() {
    skip_without_server!();
    let site = Site::own("barrier-costs");
    let (proxy, zk) = site.proxied(QUIET);
    let barrier = Barrier::new(&zk, &site.base, "a");
    barrier.raise().unwrap();
    proxy.reset_counts();
    let waiter = {
        let barrier = barrier.clone();
        thread::spawn(move || barrier.wait())
    };
    assert!(proxy.wait_for_request(opcode::GET_DATA, SOON));
    let asked: Vec<i32> = proxy.requests().iter().map(|seen| seen.opcode).collect();
    assert_eq!(asked, [opcode::SYNC, opcode::EXISTS, opcode::GET_DATA]);
    site.raw().delete(&format!("{}/a", site.base)).unwrap();
    waiter.join().unwrap().unwrap();
    drop(barrier);
    site.finish([zk]);
}

#[test]
fn lost_answers_raise_and_lift_it_once() {
    skip_without_server!();
    let site = Site::own("barrier-ambiguous");
    let (proxy, zk) = site.proxied(T);
    let barrier = Barrier::new(&zk, &site.base, "a");
    let lose = |reply| match reply {
        true => proxy.drop_reply(opcode::MULTI, 1),
        false => proxy.drop_request(opcode::MULTI, 1),
    };
    for reply in [true, false] {
        let before = proxy.connections();
        lose(reply);
        assert!(barrier.raise().unwrap());
        assert!(barrier.is_raised().unwrap());
        assert!(!barrier.raise().unwrap());
        lose(reply);
        assert!(barrier.lift().unwrap());
        assert!(!barrier.is_raised().unwrap());
        assert!(!barrier.lift().unwrap());
        assert_eq!(proxy.connections(), before + 2, "nothing was lost");
    }
    drop(barrier);
    site.finish([zk]);
}

#[test]
fn what_others_do_while_an_answer_is_lost_is_not_undone() {
    skip_without_server!();
    let site = Site::own("barrier-doubt");
    let (proxy, zk) = site.proxied(T);
    let barrier = Barrier::new(&zk, &site.base, "a");
    let (mut raw, node) = (site.raw(), format!("{}/a", site.base));
    raw.create_all(&site.base).unwrap();

    // Raised, then lifted by another client.
    proxy.stall_reply(opcode::MULTI);
    let call = {
        let barrier = barrier.clone();
        thread::spawn(move || barrier.raise())
    };
    eventually(SOON, "the barrier", || raw.exists(&node).unwrap().is_some());
    proxy.refuse();
    raw.delete(&node).unwrap();
    proxy.pass();
    assert!(call.join().unwrap().unwrap());
    assert!(raw.exists(&node).unwrap().is_none(), "it was raised twice");

    // Lifted, then raised by another client.
    assert!(barrier.raise().unwrap());
    proxy.stall_reply(opcode::MULTI);
    let call = {
        let barrier = barrier.clone();
        thread::spawn(move || barrier.lift())
    };
    eventually(SOON, "no barrier", || raw.exists(&node).unwrap().is_none());
    proxy.refuse();
    raw.create(&node, b"", Kind::Persistent).unwrap();
    proxy.pass();
    assert!(call.join().unwrap().unwrap());
    assert!(raw.exists(&node).unwrap().is_some(), "another client's barrier was lifted");
    drop((barrier, raw));
    site.finish([zk]);
}

#[test]
fn a_barrier_with_a_node_below_it_stays_raised() {
    skip_without_zookeeper!();
    let site = Site::shared("barrier-below");
    let zk = site.client();
    let barrier = Barrier::new(&zk, &site.base, "a");
    barrier.raise().unwrap();
    let (mut raw, below) = (site.raw(), format!("{}/a/below", site.base));
    raw.create(&below, b"", Kind::Persistent).unwrap();
    assert_eq!(kind(barrier.lift()), ErrorKind::Server);
    assert!(barrier.is_raised().unwrap());
    raw.delete(&below).unwrap();
    assert!(barrier.lift().unwrap());
    drop((barrier, raw));
    site.finish([zk]);
}

#[test]
fn waiting_goes_on_over_lost_connections_and_sessions() {
    skip_without_server!();
    let site = Site::own("barrier-lost");
    let (proxy, zk) = site.proxied(T);
    let barrier = Barrier::new(&zk, &site.base, "a");
    barrier.raise().unwrap();
    let waiter = {
        let barrier = barrier.clone();
        waiting(move || barrier.wait())
    };
    proxy.reset_counts();
    proxy.cut();
    // After the reconnect the waiter checks again.
    assert!(proxy.wait_for_request(opcode::GET_DATA, SOON));
    proxy.reset_counts();
    site.expire(&proxy);
    assert!(proxy.wait_for_request(opcode::GET_DATA, SOON));
    assert!(!waiter.is_finished());
    // Lifted while the waiter is disconnected.
    proxy.refuse();
    site.raw().delete(&format!("{}/a", site.base)).unwrap();
    proxy.pass();
    waiter.join().unwrap().unwrap();
    drop(barrier);
    site.finish([zk]);
}

#[test]
fn bad_names_and_refusals_are_clear_errors() {
    skip_without_zookeeper!();
    let site = Site::shared("barrier-refused");
    let zk = site.client();
    for (base, name) in [("relative", "a"), (&*site.base, "a/b"), (&*site.base, "")] {
        let barrier = Barrier::new(&zk, base, name);
        assert_eq!(kind(barrier.raise()), ErrorKind::InvalidName);
        assert_eq!(kind(barrier.lift()), ErrorKind::InvalidName);
        assert_eq!(kind(barrier.is_raised()), ErrorKind::InvalidName);
        assert_eq!(kind(barrier.wait_within(BRIEF)), ErrorKind::InvalidName);
    }
    let nobodys = Barrier::new(&zk, &site.base, "a").acl(Acl::creator_only());
    assert_eq!(kind(nobodys.raise()), ErrorKind::InvalidArgument, "a client without credentials");

    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    raw.add_auth("digest", b"owner:secret").unwrap();
    let base = format!("{}/theirs", site.base);
    let acl = [raw::Acl::new(raw::ALL, "auth", ""), raw::Acl::new(1, "world", "anyone")];
    raw.create_with_acl(&base, b"", Kind::Persistent, &acl).unwrap();
    raw.create_with_acl(&format!("{base}/a"), b"", Kind::Persistent, &acl[..1]).unwrap();
    let theirs = Barrier::new(&zk, &base, "a");
    assert!(theirs.is_raised().unwrap());
    assert_eq!(kind(theirs.lift()), ErrorKind::NotAuthorized);
    let error = theirs.wait_within(SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized);
    assert!(error.to_string().contains("READ") && error.path() == Some(&format!("{base}/a")));
    let error = Barrier::new(&zk, &base, "b").raise().unwrap_err();
    assert!(error.kind() == ErrorKind::NotAuthorized && error.to_string().contains("CREATE"));

    // With credentials, the new node belongs to the owner.
    let owner = site.builder().auth("digest", b"owner:secret").connect().unwrap();
    let owned = Barrier::new(&owner, &site.base, "b").acl(Acl::creator_only());
    assert!(owned.raise().unwrap());
    assert_eq!(kind(Barrier::new(&zk, &site.base, "b").wait()), ErrorKind::NotAuthorized);
    assert!(owned.lift().unwrap());
    raw.delete_recursive(&base).unwrap();
    drop((nobodys, owned, theirs, raw));
    site.finish([zk, owner]);
}
