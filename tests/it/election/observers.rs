//! Those who want to know who leads.

use std::thread;

use zklock::{Changes, Contender};

use super::{BRIEF, SOON, election, named};
use crate::support::proxy::opcode;
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::{QUIET, eventually, skip_without_server};

/// The id of the leader, once it has changed.
fn next(observer: &mut Changes<Option<Contender>>) -> Option<String> {
    observer.next_within(SOON).unwrap().expect("a change").map(|leader| leader.label())
}

fn ids(candidates: &[Contender]) -> Vec<String> {
    candidates.iter().map(Contender::label).collect()
}

fn assert_unchanged(observer: &mut Changes<Option<Contender>>) {
    assert_eq!(observer.next_within(BRIEF).unwrap(), None);
}

#[test]
fn leader_and_candidates_are_told_with_their_ids() {
    skip_without_server!();
    let site = Site::own("candidates");
    let clients = [site.client(), site.client()];
    let (proxy, looking) = site.proxied(QUIET);
    let follower = election(&looking, &site);
    assert_eq!(follower.leader().unwrap(), None);
    assert_eq!(follower.contenders().unwrap(), []);
    let elections = [named(&clients[0], &site, "node-ä"), named(&clients[1], &site, "node-b")];
    let leadership = elections[0].campaign().unwrap();
    let leader = follower.leader().unwrap().expect("a leader");
    assert_eq!((leader.label().as_str(), &*leader.path), ("node-ä", leadership.path()));
    assert_eq!(leader.data, "node-ä".as_bytes());
    assert_eq!(leader.session, clients[0].session_id());
    assert!(leader.path.contains("-lock-") && leader.path.ends_with(&leader.sequence.to_string()));
    assert!(leader.age().unwrap() < 4 * SOON, "{leader:?}");
    thread::scope(|scope| {
        let mut waiters = Vec::new();
        for number in 0..4 {
            waiters.push(scope.spawn(|| elections[1].campaign().unwrap().resign().unwrap()));
            site.wait_for_children("a", 2 + number);
        }
        proxy.reset_counts();
        assert_eq!(follower.leader().unwrap().as_ref(), Some(&leader));
        assert_eq!(proxy.total_requests(), 3, "a sync, a list and a read: {:?}", proxy.requests());
        let candidates = follower.contenders().unwrap();
        assert_eq!(candidates[0], leader);
        assert_eq!(ids(&candidates), ["node-ä", "node-b", "node-b", "node-b", "node-b"]);
        assert!(candidates.is_sorted_by_key(|one| one.sequence), "{candidates:?}");
        assert_eq!(proxy.total_requests(), 10, "{:?}", proxy.requests());
        leadership.resign().unwrap();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
    // By default the id consists of host, process and thread.
    let leadership = election(&clients[0], &site).campaign().unwrap();
    let id = follower.leader().unwrap().expect("a leader").label();
    assert!(id.contains("host=") && id.contains("pid="), "{id}");
    drop((leadership, elections, follower));
    site.finish(clients.into_iter().chain([looking]));
}

/// The first candidate is in the list, but gone before it is read.
#[test]
fn when_the_leader_goes_meanwhile_the_next_one_is_told() {
    skip_without_server!();
    let site = Site::own("goes");
    let (proxy, zk) = site.proxied(QUIET);
    let election = election(&zk, &site);
    let (mut raw, node) = (site.raw(), format!("{}/a", site.base));
    raw.create_all(&node).unwrap();
    let prefix = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    for ids in [&["first", "second"][..], &["alone"]] {
        let mut paths: Vec<String> = Vec::new();
        for id in ids {
            let kind = Kind::EphemeralSequential;
            paths.push(raw.create(&prefix, id.as_bytes(), kind).unwrap());
        }
        proxy.reset_counts();
        let sent = site.server().counter("zk_packets_sent");
        proxy.stall_reply(opcode::GET_CHILDREN);
        thread::scope(|scope| {
            let leader = scope.spawn(|| election.leader().unwrap());
            assert!(proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
            eventually(SOON, "the list", || site.server().counter("zk_packets_sent") > sent);
            raw.delete(&paths[0]).unwrap();
            proxy.release();
            let leader = leader.join().unwrap().map(|leader| leader.label());
            assert_eq!(leader.as_deref(), ids.get(1).copied());
        });
        for path in &paths[1..] {
            raw.delete(path).unwrap();
        }
    }
    raw.close().unwrap();
    drop(election);
    site.finish([zk]);
}

/// While the leader stays, waiting candidates that come and go cost an observer nothing.
#[test]
fn changes_of_the_leader_are_observed_without_a_herd() {
    skip_without_server!();
    let site = Site::own("observe-leader");
    let zk = site.client();
    let (proxy, looking) = site.proxied(QUIET);
    let mut observer = election(&looking, &site).observe();
    assert_eq!(next(&mut observer), None);
    assert_unchanged(&mut observer);
    let first = named(&zk, &site, "first").campaign().unwrap();
    assert_eq!(next(&mut observer).as_deref(), Some("first"));
    assert_unchanged(&mut observer);
    proxy.reset_counts();
    let (mut raw, node) = (site.raw(), format!("{}/a", site.base));
    let prefix = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    let kind = Kind::EphemeralSequential;
    let waiters: Vec<String> =
        (0..20).map(|_| raw.create(&prefix, b"late", kind).unwrap()).collect();
    raw.delete(&waiters[7]).unwrap();
    assert_unchanged(&mut observer);
    assert_eq!(proxy.requests(), []);
    first.resign().unwrap();
    assert_eq!(next(&mut observer).as_deref(), Some("late"));
    assert_eq!(proxy.total_requests(), 2, "a list and a read: {:?}", proxy.requests());
    // Candidates with the same id are still different candidates.
    raw.delete(&waiters[0]).unwrap();
    assert_eq!(next(&mut observer).as_deref(), Some("late"));
    for waiter in waiters[1..].iter().filter(|waiter| **waiter != waiters[7]) {
        raw.delete(waiter).unwrap();
    }
    while next(&mut observer).is_some() {}
    // The observer's iterator waits for each change.
    let mut changes = election(&looking, &site).observe();
    assert_eq!(changes.next().unwrap().unwrap(), None);
    thread::scope(|scope| {
        let change = scope.spawn(move || changes.next().unwrap().unwrap());
        let leadership = named(&zk, &site, "again").campaign().unwrap();
        let leader = change.join().unwrap().expect("a leader");
        assert_eq!((leader.label().as_str(), &*leader.path), ("again", leadership.path()));
    });
    raw.close().unwrap();
    drop(observer);
    site.finish([zk, looking]);
}
