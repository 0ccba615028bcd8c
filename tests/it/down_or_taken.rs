//! Whether a call that gets nothing tells an outage from other holders: see scenarios 17 and 18.

use std::ops::ControlFlow::Break;
use std::sync::Arc;
use std::time::Duration;

use zklock::commit::{Coordinator, Decision, Participant};
use zklock::election::ElectionPhase;
use zklock::{
    Barrier, Cancel, Client, DistributedLock, DistributedQueue, DistributedRwLock,
    DistributedSemaphore, DoubleBarrier, Error, ErrorKind, Group, HandOver, LeaderElection,
    MultiLock, Once, PriorityQueue, ReentrantLock, Result, SessionState, TwoPhaseCommit,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{
    QUIET, eventually, is_unanswered, kind, skip_without_server, timed, wait_until_asleep, waiting,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(200);

/// A call that ended without what it was for: `true` if it says that nothing is to be had.
type Call = (&'static str, Box<dyn Fn() -> Result<bool>>);

fn call<T>(name: &'static str, call: impl Fn() -> Result<Option<T>> + 'static) -> Call {
    (name, Box::new(move || call().map(|got| got.is_none())))
}

/// A round of two participants, of which one is here and none has voted.
type Begun = (Arc<Coordinator>, Arc<Participant>);

fn begin(zk: &Client, base: &str) -> Begun {
    let round = TwoPhaseCommit::new(zk, base, "begun");
    let coordinator = round.begin(&["a", "b"]).unwrap();
    (Arc::new(coordinator), Arc::new(round.join("a").unwrap()))
}

/// Every call of every recipe that may return nothing.
fn calls(zk: &Client, base: &str, (coordinator, participant): &Begun) -> Vec<Call> {
    let mutex = DistributedLock::new(zk, base, "a");
    let apart = DistributedLock::new(zk, base, "a").hand_over(HandOver::Off);
    let reentrant = ReentrantLock::new(zk, base, "a");
    let lock = DistributedRwLock::new(zk, base, "rw");
    let permits = DistributedSemaphore::new(zk, base, "permits", 2);
    let election = LeaderElection::new(zk, base, "election");
    let several = MultiLock::new().with(&mutex).with_write(&lock);
    let queue = DistributedQueue::new(zk, base, "queue");
    let urgent = PriorityQueue::new(zk, base, "urgent");
    let barrier = Barrier::new(zk, base, "barrier");
    let double = DoubleBarrier::new(zk, base, "double", 2);
    let round = TwoPhaseCommit::new(zk, base, "round");
    let once = Once::new(zk, base, "once");
    macro_rules! of {
        ($value:ident.$method:ident($($argument:expr),*)) => {{
            let value = $value.clone();
            let name = concat!(stringify!($value), ".", stringify!($method));
            call(name, move || value.$method($($argument),*))
        }};
    }
    vec![
        of!(mutex.try_lock()),
        of!(mutex.try_lock_for(BRIEF)),
        of!(mutex.try_lock_for(Duration::ZERO)),
        of!(apart.try_lock()),
        of!(apart.try_lock_for(BRIEF)),
        of!(reentrant.try_lock()),
        of!(reentrant.try_lock_for(BRIEF)),
        of!(lock.try_read()),
        of!(lock.try_read_for(BRIEF)),
        of!(lock.try_write()),
        of!(lock.try_write_for(BRIEF)),
        of!(permits.try_acquire()),
        of!(permits.try_acquire_many(2)),
        of!(permits.try_acquire_for(BRIEF)),
        of!(permits.acquire_many_within(2, BRIEF)),
        of!(election.try_campaign()),
        of!(election.campaign_within(BRIEF)),
        of!(several.try_lock()),
        of!(several.try_lock_for(BRIEF)),
        of!(queue.try_take()),
        of!(queue.take_within(BRIEF)),
        of!(queue.try_lease()),
        of!(queue.lease_within(BRIEF)),
        of!(urgent.try_take()),
        of!(urgent.take_within(BRIEF)),
        of!(double.enter_within(BRIEF)),
        of!(election.lead_within(BRIEF, |_| if true { panic!("it leads") } else { Ok(Break(())) })),
        of!(coordinator.decide_within(BRIEF)),
        of!(participant.decision_within(BRIEF)),
        (
            "once.run",
            Box::new(move || {
                once.run("job", |_| -> Result<()> { panic!("it runs") }).map(|_| true)
            }),
        ),
        ("barrier.wait_for", Box::new(move || barrier.wait_within(BRIEF).map(|passed| !passed))),
        ("round.state", Box::new(move || round.state().map(|state| state.is_none()))),
    ]
}

fn assert_unknown(calls: &[Call], fault: &str) {
    for (name, call) in calls {
        let (result, took) = timed(call);
        let error = result.expect_err(&format!("{name}, {fault}: says that others have it"));
        assert_eq!(error.kind(), ErrorKind::Connect, "{name}, {fault}: {error}");
        assert!(error.is_outage() && error.is_retryable() && !error.may_have_taken_effect());
        assert!(took.within(SOON), "{name}, {fault}: {took:?}");
    }
}

/// Checks that a call that joins says that it had no answer, and not that its name is taken. Its
/// request may have been sent, so that what came of it is unknown.
fn assert_not_taken(zk: &Client, base: &str, fault: &str) {
    let group = Group::new(zk, base, "group");
    let round = TwoPhaseCommit::new(zk, base, "begun");
    let errors = [group.join("me", "").err(), round.join("b").err()];
    for error in errors {
        let error: Error = error.unwrap_or_else(|| panic!("{fault}: it has joined"));
        assert!(error.is_outage() && error.kind() != ErrorKind::SessionLost, "{fault}: {error}");
    }
}

fn in_each_fault(site: &Site, proxy: &Proxy, zk: &Client, calls: &[Call]) {
    let assert_unknown = |fault| {
        assert_unknown(calls, fault);
        assert_not_taken(zk, &site.base, fault);
    };
    proxy.hold();
    assert_unknown("silence");
    proxy.pass();
    proxy.refuse();
    assert_unknown("refused");
    eventually(SOON, "the loss", || zk.state() == SessionState::Lost);
    assert_unknown("refused, without a session");
    proxy.pass();
    site.server().pause();
    assert_unknown("a server that is stopped");
    site.server().resume();
}

#[test]
fn s17_s18_nothing_is_never_said_to_be_taken_in_an_outage() {
    skip_without_server!();
    let site = Site::own("down-or-taken");
    let proxy = Proxy::start(site.server().addr());
    let builder = Client::builder(&proxy.hosts()).session_timeout(Duration::from_secs(4));
    let zk = builder.connect_timeout(BRIEF * 2).connect().unwrap();
    let begun = begin(&zk, &site.base);
    let calls = calls(&zk, &site.base, &begun);
    in_each_fault(&site, &proxy, &zk, &calls);
    // Also if the nodes, and what this client knows of them, are there already.
    drop(DistributedLock::new(&zk, &site.base, "a").try_lock_for(SOON).unwrap().expect("a lock"));
    let queue = DistributedQueue::new(&zk, &site.base, "queue");
    assert_eq!(queue.try_take().unwrap(), None);
    assert_eq!(queue.take_within(BRIEF * 5).unwrap(), None, "empty");
    in_each_fault(&site, &proxy, &zk, &calls);
    drop((queue, calls));
    let (coordinator, participant) = begun;
    assert_eq!(coordinator.abort().unwrap(), Decision::Abort);
    assert_eq!(participant.decision_within(SOON).unwrap(), Some(Decision::Abort));
    drop((coordinator, participant));
    assert!(TwoPhaseCommit::new(&zk, &site.base, "begun").forget().unwrap());
    eventually(SOON, "the last delete", || zk.stats().pending_deletes == 0);
    site.finish([zk]);
}

/// One that has left does not know whether the others have.
#[test]
fn s17_a_participant_that_leaves_in_an_outage_does_not_say_that_others_are_inside() {
    skip_without_server!();
    let site = Site::own("leaves-in-outage");
    let (proxy, zk) = site.proxied(QUIET);
    let barrier = DoubleBarrier::new(&zk, &site.base, "alone", 1);
    let entered = barrier.enter().unwrap();
    proxy.hold();
    let error = entered.leave_within(BRIEF).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    proxy.pass();
    drop(barrier);
    eventually(SOON, "the last delete", || zk.stats().pending_deletes == 0);
    site.finish([zk]);
}

/// What was seen before the outage counts: the lock is taken, as far as anybody knows.
#[test]
fn s17_a_holder_that_was_seen_before_the_outage_counts() {
    skip_without_server!();
    let site = Site::own("seen-before");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let guard = DistributedLock::new(&other, &site.base, "a").lock().unwrap();
    let ours = DistributedLock::new(&zk, &site.base, "a");
    let waits = {
        let ours = ours.clone();
        waiting(move || ours.try_lock_for(Duration::from_secs(3)))
    };
    site.wait_for_children("a", 2);
    proxy.hold();
    assert!(waits.join().unwrap().unwrap().is_none());
    proxy.pass();
    drop(guard);
    drop(ours);
    site.finish([zk, other]);
}

/// A thread of the process that waits for the lock is no evidence; one that holds it is.
#[test]
fn s18_a_sibling_that_waits_is_no_evidence_and_one_that_holds_is() {
    skip_without_server!();
    let site = Site::own("sibling");
    let proxy = Proxy::start(site.server().addr());
    let builder = Client::builder(&proxy.hosts()).session_timeout(QUIET);
    let zk = builder.connect_timeout(BRIEF * 2).connect().unwrap();
    let other = site.quiet_client();
    let lock = DistributedLock::new(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    proxy.hold();
    assert!(lock.try_lock().unwrap().is_none(), "a thread holds it");
    assert!(lock.try_lock_for(BRIEF).unwrap().is_none(), "a thread holds it");
    proxy.pass();
    drop(guard);

    let guard = DistributedLock::new(&other, &site.base, "a").lock().unwrap();
    let cancel = Cancel::new();
    let (waits, stop) = (lock.clone(), cancel.clone());
    let sibling = waiting(move || kind(waits.lock_within(&stop)));
    site.wait_for_children("a", 2);
    // In peace a sibling that waits has the list asked for anew, for each call that needs it.
    proxy.reset_counts();
    assert!(lock.try_lock_for(Duration::from_secs(2)).unwrap().is_none());
    assert!(proxy.count(opcode::CREATE) == 0 && proxy.count(opcode::GET_CHILDREN) == 1);
    assert!(lock.try_lock().unwrap().is_none());
    proxy.hold();
    assert!(is_unanswered(lock.try_lock()));
    assert!(is_unanswered(lock.try_lock_for(BRIEF)));
    proxy.pass();
    cancel.cancel();
    assert_eq!(sibling.join().unwrap(), ErrorKind::Cancelled);
    drop((guard, lock));
    eventually(SOON, "the last delete", || zk.stats().pending_deletes == 0);
    site.finish([zk, other]);
}

#[test]
fn an_election_and_an_observer_say_that_they_wait_for_a_connection() {
    skip_without_server!();
    let site = Site::own("connecting");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let leadership = LeaderElection::new(&other, &site.base, "a").campaign().unwrap();
    let election = LeaderElection::new(&zk, &site.base, "a");
    let mut observer = election.observe();
    assert!(!observer.is_current());
    assert!(observer.next_within(SOON).unwrap().is_some_and(|leader| leader.is_some()));
    assert!(observer.is_current());
    let cancel = Cancel::new();
    let (campaigns, stop) = (election.clone(), cancel.clone());
    let candidate =
        waiting(move || kind(campaigns.lead_within::<()>(&stop, |_| panic!("it leads"))));
    site.wait_for_children("a", 2);
    assert_eq!(election.progress().phase, ElectionPhase::Campaigning);
    proxy.refuse();
    eventually(SOON, "the suspension", || zk.state() != SessionState::Connected);
    assert_eq!(election.progress().phase, ElectionPhase::Connecting);
    assert!(!observer.is_current());
    proxy.pass();
    eventually(SOON, "a connection", || {
        election.progress().phase == ElectionPhase::Campaigning
            && (observer.is_current()
                || observer.next_within(BRIEF).is_ok_and(|_| observer.is_current()))
    });
    cancel.cancel();
    assert_eq!(candidate.join().unwrap(), ErrorKind::Cancelled);
    drop((leadership, observer, election));
    site.finish([zk, other]);
}

/// The time for which a hold is certain runs down in an outage; the loss trips a token.
#[test]
fn a_holder_knows_how_long_it_is_certain_and_its_loss_ends_what_it_waits_in() {
    skip_without_server!();
    const T: Duration = Duration::from_secs(4);
    let site = Site::own("lease-left");
    let (proxy, zk) = site.proxied(T);
    let guard = DistributedLock::new(&zk, &site.base, "a").lock().unwrap();
    let left = guard.lease_left();
    assert!(left > Duration::ZERO && Some(left) <= zk.session_timeout(), "{left:?}");
    let other = site.quiet_client();
    let theirs = DistributedLock::new(&other, &site.base, "b");
    let blocker = theirs.lock().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let token = Cancel::from(guard.lost());
    let waits = {
        let (theirs, token) = (theirs.clone(), token.clone());
        std::thread::spawn(move || {
            tell.send(crate::support::own_task()).unwrap();
            kind(theirs.lock_within(&token))
        })
    };
    wait_until_asleep(told.recv().unwrap());
    proxy.hold();
    let before = guard.lease_left();
    eventually(SOON, "the lease to run down", || guard.lease_left() < before);
    assert_eq!(waits.join().unwrap(), ErrorKind::Cancelled);
    assert!(token.is_cancelled() && !guard.is_held());
    assert_eq!(guard.lease_left(), Duration::ZERO);
    proxy.pass();
    let unlocked = guard.unlock().unwrap_err();
    assert_eq!(unlocked.kind(), ErrorKind::SessionLost);
    assert!(unlocked.to_string().contains("the lock is no longer held"), "{unlocked}");
    // A release is no loss.
    let guard = DistributedLock::new(&zk, &site.base, "a").lock().unwrap();
    let token = Cancel::from(guard.lost());
    guard.unlock().unwrap();
    assert!(!token.is_cancelled());
    drop((blocker, theirs));
    site.finish([zk, other]);
}

/// A queue that was empty is watched from then on. Whether it still is empty, the next call asks all
/// the same: in an outage that nobody has noticed, the watch reports nothing, either.
#[test]
fn a_watch_that_reports_nothing_is_no_empty_queue() {
    skip_without_server!();
    let site = Site::own("watched-queue");
    let (proxy, zk) = site.proxied(Duration::from_secs(60));
    let queue = DistributedQueue::new(&zk, &site.base, "queue");
    for _ in 0..2 {
        assert_eq!(queue.take_within(SOON / 10).unwrap(), None);
    }
    proxy.hold();
    assert!(is_unanswered(queue.take_within(BRIEF)));
    proxy.pass();
    drop(queue);
    site.finish([zk]);
}
