//! Those who give up, and those who lose the lock, disturb no other.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use zklock::{Cancel, DistributedLock, ErrorKind, LockGuard, LossReason, SessionState};

use super::{LONG, Line, PROMPTLY, Rig, SOON, losses};
use crate::support::proxy::opcode;
use crate::support::raw::{self, Kind};
use crate::support::stopwatch::{Moment, Stopwatch};
use crate::support::{
    eventually, got_nothing, is_unanswered, kind, last, skip_without_server, timed, waiting,
};

/// How long after its deadline a call may return, at most.
const LATE: Duration = Duration::from_millis(100);

#[test]
fn s15_limits_are_kept_while_a_sibling_holds_on_time() {
    skip_without_server!();
    let rig = Rig::new("limits");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    rig.settle();
    limits_are_kept(&lock);
    rig.assert_one_look();
    drop(guard);
    drop(lock.try_lock().unwrap().expect("it is free"));
    drop(lock);
    rig.finish();
}

fn limits_are_kept(lock: &DistributedLock) {
    let (result, took) = timed(|| lock.try_lock().unwrap());
    assert!(result.is_none() && took.within(LATE), "{took:?}");
    for limit in [0, 1, 20, 150].map(Duration::from_millis) {
        let (result, took) = timed(|| lock.try_lock_for(limit));
        assert!(
            got_nothing(result) && took.at_least(limit) && took.within(limit + LATE),
            "{limit:?}: {took:?}"
        );
        let start = Stopwatch::start();
        let result = lock.lock_within(start.instant() + limit);
        let took = start.took();
        assert!(
            got_nothing(result) && took.at_least(limit) && took.within(limit + LATE),
            "{limit:?}: {took:?}"
        );
    }
    let cancel = Cancel::new();
    let (theirs, stop) = (lock.clone(), cancel.clone());
    let waiter = waiting(move || (kind(theirs.lock_within(&stop)), Moment::now()));
    let start = Stopwatch::start();
    cancel.cancel();
    let (kind, end) = waiter.join().unwrap();
    let took = start.took_until(end);
    assert_eq!(kind, ErrorKind::Cancelled);
    assert!(took.within(LATE), "{took:?}");
    let (error, took) = timed(|| lock.lock_within(&cancel).unwrap_err());
    assert!(error.kind() == ErrorKind::Cancelled && took.within(LATE), "{error}: {took:?}");
}

#[test]
fn s17_limits_are_kept_while_a_sibling_holds_and_the_server_is_down_on_time() {
    skip_without_server!();
    let rig = Rig::with_session("limits-down", Duration::from_secs(30));
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let line = Line::new();
    line.join(1, &lock);
    rig.site.server().kill();
    eventually(SOON, "the outage", || rig.zk.state() == SessionState::Suspended);
    limits_are_kept(&lock);
    // Nor does a handover need a server.
    let ((), took) = timed(|| drop(guard));
    assert!(took.within(LATE), "{took:?}");
    let guard = line.next(1);
    assert_eq!(guard.fencing_token().turn(), 1);
    limits_are_kept(&lock);
    rig.site.server().start_again();
    guard.unlock().unwrap();
    drop(lock);
    rig.finish();
}

#[test]
fn s18_limits_are_kept_while_a_sibling_waits_for_another_client_on_time() {
    skip_without_server!();
    let rig = Rig::with_session("limits-waiting", Duration::from_secs(30));
    let held = rig.theirs().lock().unwrap();
    let (lock, line) = (rig.lock(), Line::new());
    line.join(1, &lock);
    rig.site.wait_for_children("a", 2);
    limits_are_kept(&lock);
    assert_eq!(rig.children().len(), 2);
    rig.proxy.black_hole();
    for limit in [0, 1, 20, 150].map(Duration::from_millis) {
        let (result, took) = timed(|| lock.try_lock_for(limit));
        assert!(is_unanswered(result) && took.at_least(limit) && took.within(limit + LATE));
    }
    rig.proxy.pass();
    drop(held);
    drop(line.next(1));
    drop(lock);
    rig.finish();
}

#[test]
fn s20_one_who_gives_up_waiting_for_a_sibling_disturbs_no_other() {
    skip_without_server!();
    let rig = Rig::new("gives-up");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    rig.settle();
    let (cancel, line) = (Cancel::new(), Line::new());
    let (theirs, stop) = (lock.clone(), cancel.clone());
    let first = waiting(move || kind(theirs.lock_within(&stop)));
    let theirs = lock.clone();
    let second = waiting(move || theirs.try_lock_for(PROMPTLY).unwrap().is_none());
    line.join(1, &lock);
    cancel.cancel();
    assert_eq!(first.join().unwrap(), ErrorKind::Cancelled);
    assert!(second.join().unwrap());
    line.assert_nobody();
    rig.assert_one_look();
    drop(guard);
    let guard = line.next(1);
    assert_eq!(guard.fencing_token().turn(), 1, "threads that gave up were given a turn");
    drop((guard, lock));
    rig.finish();
}

/// Three siblings wait for another client, and the first two give up, one after the other.
fn the_place_is_left_to_the_next(test: &str, wait: fn(&DistributedLock, &Cancel) -> bool) {
    let rig = Rig::new(test);
    let held = rig.theirs().lock().unwrap();
    let (lock, line) = (rig.lock(), Line::new());
    let cancels = [Cancel::new(), Cancel::new()];
    let leavers = cancels.clone().map(|cancel| {
        let lock = lock.clone();
        let leaver = waiting(move || wait(&lock, &cancel));
        // The first one contends for all of them.
        rig.site.wait_for_children("a", 2);
        leaver
    });
    line.join(1, &lock);
    let third = rig.site.client();
    line.join(2, &DistributedLock::new(&third, &rig.site.base, "a"));
    rig.site.wait_for_children("a", 3);
    let queue = rig.theirs().contenders().unwrap();
    for (leaver, cancel) in leavers.into_iter().zip(&cancels) {
        cancel.cancel();
        assert!(leaver.join().unwrap(), "it did not give up");
        assert_eq!(rig.theirs().contenders().unwrap(), queue);
    }
    line.assert_nobody();
    drop(held);
    let guard = line.next(1);
    assert_eq!((guard.path(), guard.fencing_token().turn()), (&*queue[1].path, 0));
    assert_eq!(rig.proxy.count(opcode::CREATE), 1);
    assert_eq!(rig.proxy.count(opcode::DELETE), 0);
    drop(guard);
    drop(line.next(2));
    drop((lock, third));
    rig.finish();
}

#[test]
fn s20_who_contends_for_all_and_is_cancelled_leaves_its_place_to_the_next() {
    skip_without_server!();
    the_place_is_left_to_the_next("place-cancel", |lock, cancel| {
        kind(lock.lock_within(cancel)) == ErrorKind::Cancelled
    });
}

#[test]
fn s15_who_contends_for_all_until_its_time_is_over_leaves_its_place_to_the_next() {
    skip_without_server!();
    the_place_is_left_to_the_next("place-limit", |lock, _| {
        lock.try_lock_for(Duration::from_secs(4)).unwrap().is_none()
    });
}

#[test]
fn s20_who_contends_for_all_and_gives_up_last_leaves_no_node() {
    skip_without_server!();
    let rig = Rig::new("last");
    let held = rig.theirs().lock().unwrap();
    let lock = rig.lock();
    let cancels = [Cancel::new(), Cancel::new()];
    let leavers = cancels.clone().map(|cancel| {
        let lock = lock.clone();
        waiting(move || kind(lock.lock_within(&cancel)))
    });
    rig.site.wait_for_children("a", 2);
    for (leaver, cancel) in leavers.into_iter().zip(&cancels) {
        // The second leaver has taken the place of the first, or has made its own.
        rig.site.wait_for_children("a", 2);
        cancel.cancel();
        assert_eq!(leaver.join().unwrap(), ErrorKind::Cancelled);
    }
    assert_eq!(rig.children(), [last(held.path())], "its node was left");
    drop((held, lock));
    rig.finish();
}

#[test]
fn s30_when_the_shared_node_is_deleted_the_siblings_do_not_wait_for_its_holder() {
    skip_without_server!();
    let rig = Rig::new("deleted");
    let (lock, line) = (rig.lock(), Line::new());
    let guard = lock.lock().unwrap();
    let (told, lost) = (losses(&guard), guard.lost());
    line.join(1, &lock);
    line.join(2, &lock);
    rig.site.raw().delete(guard.path()).unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
    assert_eq!(lost.reason(), Some(LossReason::NodeDeleted));
    assert!(!guard.is_held());
    let next = line.next(1);
    assert!(next.path() != guard.path() && next.fencing_token() > guard.fencing_token());
    assert_eq!(next.fencing_token().turn(), 0);
    // The former holder's end is nobody else's.
    assert_eq!(kind(guard.unlock()), ErrorKind::NodeDeleted);
    next.ensure_held().unwrap();
    line.assert_nobody();
    assert_eq!(rig.children(), [last(next.path())]);
    drop(next);
    let guard = line.next(2);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s26_when_the_session_is_lost_the_siblings_do_not_wait_for_the_holder() {
    skip_without_server!();
    let rig = Rig::with_session("expired", Duration::from_secs(3));
    let (lock, line) = (rig.lock(), Line::new());
    let guard = lock.lock().unwrap();
    let told = losses(&guard);
    line.join(1, &lock);
    line.join(2, &lock);
    rig.proxy.black_hole();
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::LeaseExpired));
    // The next one needs the ensemble to expire the session, too.
    rig.proxy.pass();
    let next = line.next(1);
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(next.fencing_token().turn(), 0);
    assert_eq!(kind(guard.ensure_held()), ErrorKind::SessionLost);
    assert_eq!(kind(guard.unlock()), ErrorKind::SessionLost);
    next.unlock().unwrap();
    drop(line.next(2));
    drop(lock);
    rig.finish();
}

#[test]
fn s28_when_the_lease_has_run_out_nothing_is_handed_on() {
    skip_without_server!();
    let rig = Rig::with_session("lease", Duration::from_secs(3));
    let lock = rig.lock();
    let b = DistributedLock::new(&rig.zk, &rig.site.base, "b").keep_for(LONG);
    drop(b.lock().unwrap());
    let guard = lock.lock().unwrap();
    let before = guard.fencing_token();
    let line = Line::new();
    line.join(1, &lock);
    rig.proxy.black_hole();
    eventually(SOON, "the end of the lease", || rig.zk.state() == SessionState::Lost);
    drop(guard);
    assert!(is_unanswered(lock.try_lock_for(Duration::from_millis(300))));
    assert!(is_unanswered(b.try_lock_for(Duration::from_millis(300))), "what was kept");
    line.assert_nobody();
    rig.proxy.pass();
    let guard = line.next(1);
    assert!(guard.fencing_token().zxid() > before.zxid());
    guard.ensure_held().unwrap();
    b.lock().unwrap().ensure_held().unwrap();
    drop((guard, lock, b));
    rig.finish();
}

#[test]
fn s22_when_the_client_is_closed_all_who_wait_are_told() {
    skip_without_server!();
    let rig = Rig::new("closed");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let told = losses(&guard);
    type Wait = fn(&DistributedLock) -> zklock::Result<Option<LockGuard>>;
    let waits: [Wait; 3] = [
        |lock| lock.lock().map(Some),
        |lock| lock.lock_within(&Cancel::new()),
        |lock| lock.try_lock_for(SOON),
    ];
    let waiters = waits.map(|wait| {
        let lock = lock.clone();
        waiting(move || kind(wait(&lock)))
    });
    let ((), took) = timed(|| rig.zk.close());
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), ErrorKind::Closed);
    }
    assert!(took.within(PROMPTLY), "{took:?}");
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::ClientClosed));
    assert_eq!(kind(guard.unlock()), ErrorKind::Closed);
    assert_eq!(kind(lock.try_lock()), ErrorKind::Closed);
    assert!(rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn a_holder_hears_nothing_of_later_turns_of_its_node() {
    skip_without_server!();
    let rig = Rig::new("earlier");
    let (lock, line) = (rig.lock(), Line::new());
    let guard = lock.lock().unwrap();
    let (told, lost) = (losses(&guard), guard.lost());
    let (ask, asked) = channel();
    guard.on_release_requested(move || ask.send(()).unwrap());
    let waiter = waiting({
        let lost = lost.clone();
        move || lost.wait()
    });
    line.join(1, &lock);
    drop(guard);
    let guard = line.next(1);
    assert_eq!(waiter.join().unwrap(), Ok(()));
    assert!(lost.wait_within(Duration::ZERO) == Some(Ok(())));
    assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    assert_eq!(asked.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));

    // The present holder's callbacks are called.
    let (ask, asked) = channel();
    guard.on_release_requested(move || ask.send(()).unwrap());
    assert_eq!(rig.theirs().request_release().unwrap(), 1);
    assert_eq!(asked.recv_timeout(SOON), Ok(()));
    let now = (losses(&guard), guard.lost());
    assert_eq!(now.1.wait_within(Duration::ZERO), None);
    rig.site.raw().delete(guard.path()).unwrap();
    assert_eq!(now.0.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
    assert_eq!(now.1.wait(), Err(LossReason::NodeDeleted));
    assert!(lost.wait_within(Duration::ZERO) == Some(Ok(())));
    assert_eq!(lost.wait(), Ok(()));
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s68_a_node_that_is_asked_for_is_released_rather_than_handed_on() {
    skip_without_server!();
    let rig = Rig::new("requested");
    let (lock, theirs, line) = (rig.lock(), rig.theirs(), Line::new());
    let guard = lock.lock().unwrap();
    line.join(2, &lock);
    line.join(3, &lock);
    line.join(1, &theirs);
    rig.site.wait_for_children("a", 2);
    let (ask, asked) = channel();
    guard.on_release_requested(move || ask.send(()).unwrap());
    assert_eq!(theirs.request_release().unwrap(), 1);
    assert_eq!(asked.recv_timeout(SOON), Ok(()));
    let first = guard.path().to_owned();
    drop(guard);
    let guard = line.next(1);
    rig.site.wait_for_children("a", 2);
    drop(guard);
    let guard = line.next(2);
    assert!(guard.path() != first && !guard.release_requested());
    assert_eq!(guard.fencing_token().turn(), 0);
    drop(guard);
    let guard = line.next(3);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock, theirs));
    rig.finish();
}

#[test]
fn s70_what_one_may_not_do_none_of_those_who_wait_with_it_may() {
    skip_without_server!();
    let rig = Rig::new("refused");
    let mut raw = rig.site.raw();
    raw.create_all(&rig.site.base).unwrap();
    let nobody = [raw::Acl::new(raw::ALL, "digest", "nobody:nothing")];
    let node = format!("{}/a", rig.site.base);
    raw.create_with_acl(&node, b"", Kind::Persistent, &nobody).unwrap();
    rig.proxy.stall_reply(opcode::CREATE);
    let lock = rig.lock();
    let waiters = [(); 4].map(|()| {
        let lock = lock.clone();
        let waiter = waiting(move || lock.lock().unwrap_err());
        assert!(rig.proxy.wait_for_request(opcode::CREATE, SOON));
        waiter
    });
    rig.proxy.release();
    for waiter in waiters {
        let error = waiter.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
        assert_eq!(error.path(), Some(&*node));
    }
    assert_eq!(rig.proxy.count(opcode::CREATE), 1);
    rig.proxy.pass();
    // Each new call asks the server again.
    assert_eq!(kind(lock.lock()), ErrorKind::NotAuthorized);
    assert_eq!(rig.proxy.count(opcode::CREATE), 2);
    raw.close().unwrap();
    drop(lock);
    rig.finish();
}

/// Whatever a holder's callbacks own is dropped where its drop may take the same lock.
#[test]
fn what_a_callback_owns_may_use_the_lock_when_it_is_dropped() {
    struct TakesIt(DistributedLock, Sender<bool>);
    impl Drop for TakesIt {
        fn drop(&mut self) {
            let taken = self.0.try_lock_for(Duration::ZERO).unwrap().is_some();
            let _ = self.1.send(taken);
        }
    }

    skip_without_server!();
    let rig = Rig::new("callback-drop");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let (tell, told) = channel();
    let owned = TakesIt(lock.clone(), tell);
    guard.on_lost(move |_| drop(owned));
    let theirs = lock.clone();
    let waiter = waiting(move || {
        let guard = theirs.lock().unwrap();
        // The first holder's callback is dropped while this guard is held.
        let taken = told.recv_timeout(SOON);
        drop(guard);
        taken
    });
    drop(guard);
    assert_eq!(waiter.join().unwrap(), Ok(false));
    drop(lock);
    rig.finish();
}
