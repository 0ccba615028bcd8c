//! Calls that are bounded by a `Wait`: by a time, by a token, or by both.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use zklock::commit::{Decision, Vote};
use zklock::{
    Cancel, Client, DistributedLock, DistributedQueue, DistributedRwLock, DistributedSemaphore,
    DoubleBarrier, ErrorKind, Group, LeaderElection, MultiLock, ReentrantLock, Result,
    TwoPhaseCommit, Wait,
};

use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::{
    eventually, got_nothing, in_background, kind, skip_without_server, skip_without_zookeeper,
    strict, timed, waiting,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(200);
/// For callbacks and for what the call does beside waiting.
const SLACK: Duration = Duration::from_secs(1);
/// A connection that is silent for a third of it is given up.
const LONG_SESSION: Duration = Duration::from_secs(60);

/// Calls that release something in their own way, after they have acquired it.
type Release = Box<dyn FnOnce(Wait) -> Result<bool>>;

fn releases(zk: &Client, base: &str) -> Vec<(&'static str, &'static str, Release)> {
    let mutex = DistributedLock::new(zk, base, "mutex").lock().unwrap();
    let reentrant = ReentrantLock::new(zk, base, "reentrant").lock().unwrap();
    let read = DistributedRwLock::new(zk, base, "read").read().unwrap();
    let write = DistributedRwLock::new(zk, base, "write").write().unwrap();
    let permit = DistributedSemaphore::new(zk, base, "permit", 2).acquire().unwrap();
    let several = MultiLock::new().with(&DistributedLock::new(zk, base, "several"));
    let several = several.lock().unwrap();
    let leadership = LeaderElection::new(zk, base, "election").campaign().unwrap();
    let member = Group::new(zk, base, "group").join("me", "").unwrap();
    vec![
        ("mutex", "unlock", Box::new(move |wait| mutex.unlock_within(wait))),
        ("reentrant", "unlock", Box::new(move |wait| reentrant.unlock_within(wait))),
        ("read", "unlock", Box::new(move |wait| read.unlock_within(wait))),
        ("write", "unlock", Box::new(move |wait| write.unlock_within(wait))),
        ("permit", "release", Box::new(move |wait| permit.release_within(wait))),
        ("several", "unlock", Box::new(move |wait| several.unlock_within(wait))),
        ("election", "resign", Box::new(move |wait| leadership.resign_within(wait))),
        ("group", "leave", Box::new(move |wait| member.leave_within(wait))),
    ]
}

/// A release that is not confirmed in time goes on in the background, and leaves no node.
#[test]
fn a_release_keeps_its_limit_and_the_background_ends_it() {
    skip_without_server!();
    let site = Site::own("release-within");
    let (proxy, zk) = site.proxied(LONG_SESSION);
    for round in ["in time", "time over", "cancelled"] {
        let releases = releases(&zk, &site.base);
        if round != "in time" {
            proxy.hold();
        }
        let mut names = Vec::new();
        for (name, call, release) in releases {
            let token = Cancel::new();
            let wait = match round {
                "in time" => Wait::from(SOON),
                "time over" => Wait::from(BRIEF),
                _ => {
                    token.cancel();
                    Wait::from((SOON, &token))
                }
            };
            let (released, took) = timed(|| release(wait));
            match round {
                "in time" => assert!(released.unwrap(), "{call} of {name}"),
                "time over" => assert!(!released.unwrap(), "{call} of {name}"),
                _ => assert_eq!(kind(released), ErrorKind::Cancelled, "{call} of {name}"),
            }
            assert!(took.within(BRIEF + SLACK), "{call} of {name}, {round}: {took:?}");
            names.push(name);
        }
        proxy.pass();
        for name in names {
            site.wait_for_children(name, 0);
        }
    }
    site.finish([zk]);
}

#[test]
fn asking_whether_it_is_held_keeps_its_limit() {
    skip_without_server!();
    let site = Site::own("ensure-within");
    let (proxy, zk) = site.proxied(LONG_SESSION);
    let guard = DistributedLock::new(&zk, &site.base, "a").lock().unwrap();
    let lock = DistributedLock::new(&zk, &site.base, "b");
    let several = MultiLock::new().with(&lock).lock().unwrap();
    drop(lock);
    guard.ensure_held_within(SOON).unwrap();
    several.ensure_held_within(SOON).unwrap();
    proxy.hold();
    let (asked, took) = timed(|| kind(guard.ensure_held_within(BRIEF)));
    assert_eq!(asked, ErrorKind::Connect);
    assert!(took.within(BRIEF + SLACK), "{took:?}");
    assert_eq!(kind(several.ensure_held_within(BRIEF)), ErrorKind::Connect);
    let token = Cancel::new();
    let asks = {
        let token = token.clone();
        waiting(move || {
            let asked = kind(guard.ensure_held_within(&token));
            (asked, guard)
        })
    };
    token.cancel();
    let (asked, guard) = asks.join().unwrap();
    assert_eq!(asked, ErrorKind::Cancelled);
    assert!(guard.is_held() && several.is_held(), "no answer is no loss");
    proxy.pass();
    guard.ensure_held().unwrap();
    several.ensure_held().unwrap();
    drop((guard, several));
    site.finish([zk]);
}

#[test]
fn what_may_have_been_done_when_the_time_was_over_is_in_doubt() {
    skip_without_server!();
    let site = Site::own("doubt-within");
    let (proxy, zk) = site.proxied(LONG_SESSION);
    let queue = DistributedQueue::new(&zk, &site.base, "queue");
    assert_eq!(queue.offer("a").unwrap(), 0);
    assert_eq!(queue.offer("b").unwrap(), 1);
    let item = queue.lease_within(SOON).unwrap().expect("an item");
    assert!(item.item_path().ends_with("-0000000000"), "{item:?}");
    let round = TwoPhaseCommit::new(&zk, &site.base, "round");
    let coordinator = round.begin(&["a"]).unwrap();
    let participant = round.join_within("a", SOON).unwrap();
    proxy.hold();
    let acked = item.ack_within(BRIEF).unwrap_err();
    assert_eq!(acked.kind(), ErrorKind::ConnectionLoss, "{acked}");
    assert!(acked.may_have_taken_effect());
    let voted = participant.vote_within(Vote::Yes, BRIEF).unwrap_err();
    assert!(matches!(voted.kind(), ErrorKind::ConnectionLoss | ErrorKind::Connect), "{voted}");
    let token = Cancel::new();
    let votes = {
        let token = token.clone();
        waiting(move || (participant.vote_within(Vote::Yes, &token).unwrap_err(), participant))
    };
    token.cancel();
    let (voted, participant) = votes.join().unwrap();
    assert_eq!(voted.kind(), ErrorKind::Cancelled);
    assert!(voted.may_have_taken_effect(), "{voted}: a request of the vote was sent");
    assert_eq!(kind(participant.vote_within(Vote::Yes, &token)), ErrorKind::Cancelled);
    proxy.pass();
    // Held up, not lost: the item is gone, or it is back.
    eventually(SOON, "the acknowledgement", || queue.len().unwrap() == 1);
    assert!(participant.vote(Vote::Yes).unwrap());
    assert_eq!(coordinator.decide_within(SOON).unwrap(), Some(Decision::Commit));
    drop((participant, queue, coordinator));
    assert!(round.forget().unwrap());
    drop(round);
    site.finish([zk]);
}

/// A time and a token at once: whichever comes first says how the call ends.
#[test]
fn a_wait_ends_with_its_time_or_with_its_token() {
    skip_without_zookeeper!();
    let site = Site::shared("wait-within");
    let (zk, other) = (site.client(), site.client());
    let (base, token) = (&site.base, Cancel::new());
    let theirs = (
        DistributedLock::new(&other, base, "mutex").lock().unwrap(),
        DistributedRwLock::new(&other, base, "rw").write().unwrap(),
        DistributedSemaphore::new(&other, base, "permits", 1).acquire().unwrap(),
        LeaderElection::new(&other, base, "election").campaign().unwrap(),
        Group::new(&other, base, "group").join("me", "").unwrap(),
    );
    let mutex = DistributedLock::new(&zk, base, "mutex");
    let lock = DistributedRwLock::new(&zk, base, "rw");
    let permits = DistributedSemaphore::new(&zk, base, "permits", 1);
    let election = LeaderElection::new(&zk, base, "election");
    let group = Group::new(&zk, base, "group");
    let double = DoubleBarrier::new(&zk, base, "double", 2);
    let queue = DistributedQueue::new(&zk, base, "queue");
    let several = MultiLock::new().with(&mutex).with_write(&lock);
    let leads = |wait: Wait| election.lead_within::<()>(wait, |_| panic!("it leads"));
    let calls = |wait: &Wait| {
        [
            ("lock", mutex.lock_within(wait).map(|got| got.is_none())),
            ("read", lock.read_within(wait).map(|got| got.is_none())),
            ("write", lock.write_within(wait).map(|got| got.is_none())),
            ("acquire", permits.acquire_within(wait).map(|got| got.is_none())),
            ("several", several.lock_within(wait).map(|got| got.is_none())),
            ("campaign", election.campaign_within(wait).map(|got| got.is_none())),
            ("lead", leads(wait.clone()).map(|got| got.is_none())),
            ("take", queue.take_within(wait).map(|got| got.is_none())),
            ("lease", queue.lease_within(wait).map(|got| got.is_none())),
        ]
    };
    for (name, call) in calls(&Wait::from((BRIEF, &token))) {
        // The server may not answer in so little time.
        assert!(call.unwrap_or_else(|error| error.is_outage()), "{name}");
    }
    match double.enter_within((BRIEF, &token)) {
        Ok(entered) => assert!(entered.is_none()),
        // The node may not be deleted in the little time that is left.
        Err(error) => assert!(error.is_outage(), "{error}"),
    }
    assert_eq!(kind(group.join_within("me", "", (BRIEF, &token))), ErrorKind::Taken);
    let ends = theirs.0.lost();
    assert_eq!(ends.wait_within((BRIEF, &token)), None);
    let mut holders = mutex.observe();
    assert_eq!(holders.latest().unwrap().len(), 1);
    assert_eq!(holders.next_within((BRIEF, &token)).unwrap(), None);
    token.cancel();
    let cancelled = Wait::from((SOON, &token));
    for (name, call) in calls(&cancelled) {
        assert_eq!(kind(call), ErrorKind::Cancelled, "{name}");
    }
    assert_eq!(kind(double.enter_within(&cancelled)), ErrorKind::Cancelled);
    assert_eq!(kind(group.join_within("me", "", &cancelled)), ErrorKind::Cancelled);
    assert_eq!(kind(holders.next_within(&cancelled)), ErrorKind::Cancelled);
    assert_eq!(ends.wait_within(&cancelled), None);
    drop(theirs);
    assert_eq!(ends.wait_within(&cancelled), Some(Ok(())));
    // The token of an earlier call ends no later one.
    let now = holders.next_within(SOON).unwrap();
    assert_eq!(now.map(|holders| holders.len()), Some(0));
    drop((mutex, lock, permits, election, group, double, queue, several, holders));
    site.finish([zk, other]);
}

/// A token wakes calls that sleep, each in its own way.
#[test]
fn a_token_wakes_who_waits_for_the_end_of_a_hold_or_for_a_change() {
    skip_without_zookeeper!();
    let site = Site::shared("woken-within");
    let zk = site.client();
    let guard = DistributedLock::new(&zk, &site.base, "a").lock().unwrap();
    let token = Cancel::new();
    let ends = {
        let (lost, token) = (guard.lost(), token.clone());
        waiting(move || lost.wait_within(&token))
    };
    let mut holders = DistributedLock::new(&zk, &site.base, "a").observe();
    assert_eq!(holders.latest().unwrap()[0].path, guard.path());
    let changes = {
        let token = token.clone();
        waiting(move || (kind(holders.next_within(&token)), holders))
    };
    token.cancel();
    assert_eq!(ends.join().unwrap(), None);
    let (ended, mut holders) = changes.join().unwrap();
    assert_eq!(ended, ErrorKind::Cancelled);
    drop(guard);
    assert_eq!(holders.next_within(SOON).unwrap(), Some(Vec::new()));
    drop(holders);
    site.finish([zk]);
}

/// What a release that was not confirmed leaves to the background is not in the way of the client's next
/// call, which may reach the server first: no other client has the lock.
#[test]
fn a_release_in_the_background_is_no_other_holder() {
    skip_without_server!();
    let site = Site::own("release-next");
    let (proxy, zk) = site.proxied(LONG_SESSION);
    let lock = strict(&zk, &site.base, "a");
    for round in 0..3 {
        let guard = lock.lock().unwrap();
        // The node stays for most of a second.
        proxy.throttle(opcode::DELETE, 8);
        assert!(!guard.unlock_within(Duration::ZERO).unwrap(), "there is no time to ask");
        let next = lock.try_lock().unwrap();
        assert!(next.is_some(), "round {round}: its own node was taken for another holder's");
    }
    drop(lock);
    site.finish([zk]);
    drop(proxy);
}

/// The loop of an election ends with its time: it begins no further term, nor does it go round.
#[test]
fn a_loop_that_leads_ends_with_its_time() {
    skip_without_server!();
    let site = Site::own("lead-within");
    let (proxy, zk) = site.proxied(LONG_SESSION);
    let election = LeaderElection::new(&zk, &site.base, "election");
    let end = Instant::now() + BRIEF;
    let mut late = 0;
    let led = election.lead_within::<()>(end, |_| {
        late += u32::from(Instant::now() >= end);
        assert!(late < 3, "terms go on after the end");
        Ok(ControlFlow::Continue(()))
    });
    assert!(got_nothing(led));
    proxy.hold();
    let led = election.lead_within::<()>(BRIEF, |_| panic!("it leads without a server"));
    assert_eq!(kind(led), ErrorKind::Connect);
    proxy.pass();
    drop(election);
    site.finish([zk]);
}

/// A token ends waits that clean up after themselves, also if their time is long and no server answers.
#[test]
fn a_token_ends_a_wait_in_an_outage_though_its_time_is_long() {
    skip_without_server!();
    let site = Site::own("token-outage");
    let (proxy, zk) = site.proxied(LONG_SESSION);
    let token = Cancel::new();
    let hour = Duration::from_secs(3600);
    let enters = {
        let (double, token) = (DoubleBarrier::new(&zk, &site.base, "double", 2), token.clone());
        in_background(move || kind(double.enter_within((hour, &token))))
    };
    site.wait_for_children("double", 1);
    proxy.hold();
    let joins = {
        let (group, token) = (Group::new(&zk, &site.base, "group"), token.clone());
        waiting(move || kind(group.join_within("me", "", &token)))
    };
    token.cancel();
    assert_eq!(enters.recv_timeout(SOON).unwrap(), ErrorKind::Cancelled);
    assert_eq!(joins.join().unwrap(), ErrorKind::Cancelled);
    proxy.pass();
    site.wait_for_children("double", 0);
    site.wait_for_children("group", 0);
    site.finish([zk]);
}
