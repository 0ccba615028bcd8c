//! Locks that are kept between two uses.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Cancel, ErrorKind, FencingToken, HandOver, SessionState};

use super::{LONG, Line, PROMPTLY, Rig, SOON, node_and_turn};
use crate::support::proxy::opcode;
use crate::support::stopwatch::Stopwatch;
use crate::support::{QUIET, eventually, kind, last, skip_without_server, timed};

#[test]
fn s09_to_take_a_kept_lock_again_costs_no_request() {
    skip_without_server!();
    let rig = Rig::new("keep");
    let lock = rig.keeping(LONG);
    let guard = lock.lock().unwrap();
    rig.settle();
    let (path, zxid, _) = node_and_turn(&guard);
    drop(guard);
    // From now on the client watches for other contenders.
    assert!(rig.proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
    rig.proxy.reset_counts();
    let mut turn = 0;
    for round in 0..30 {
        let guard = match round % 3 {
            0 => lock.lock().unwrap(),
            1 => lock.try_lock().unwrap().expect("it is kept"),
            _ => rig.keeping(LONG).try_lock_for(Duration::ZERO).unwrap().expect("it is kept"),
        };
        let now = node_and_turn(&guard);
        assert_eq!((&*now.0, now.1), (&*path, zxid));
        assert!(now.2 > turn, "{} after {turn}", now.2);
        turn = now.2;
        assert!(guard.is_held());
        if round % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
    }
    assert_eq!(rig.proxy.requests(), []);
    assert_eq!(rig.children(), [last(&path)]);
    drop(lock);
    // The node is deleted with the last value.
    rig.site.wait_for_children("a", 0);
    rig.finish();
}

#[test]
fn s09_a_kept_lock_goes_to_another_client_as_soon_as_that_comes() {
    skip_without_server!();
    let rig = Rig::new("keep-other");
    let (lock, theirs) = (rig.keeping(LONG), rig.theirs());
    for _ in 0..5 {
        let mine = lock.lock().unwrap();
        let before = mine.fencing_token();
        drop(mine);
        assert_eq!(rig.children().len(), 1);
        let (guard, took) = timed(|| theirs.lock().unwrap());
        assert!(took.within(PROMPTLY), "{took:?}");
        assert!(guard.fencing_token() > before);
        assert!(lock.try_lock().unwrap().is_none());
        drop(guard);
    }
    // A `try_lock` may find it held, but makes the client release it.
    drop(lock.lock().unwrap());
    eventually(SOON, "the lock to be let go", || theirs.try_lock().unwrap().is_some());
    drop((lock, theirs));
    rig.finish();
}

#[test]
fn a_kept_lock_is_let_go_when_its_time_is_over() {
    skip_without_server!();
    let rig = Rig::new("keep-time");
    let limit = Duration::from_millis(1_500);
    let lock = rig.keeping(limit);
    drop(lock.lock().unwrap());
    drop(lock.lock().unwrap());
    // While the lock is held, the end of the keeping time does not release it.
    let guard = lock.lock().unwrap();
    let zxid = guard.fencing_token().zxid();
    eventually(SOON, "more than its time", {
        let start = Instant::now();
        move || start.elapsed() > limit * 2
    });
    guard.ensure_held().unwrap();
    let start = Stopwatch::start();
    drop(guard);
    assert_eq!(rig.children().len(), 1);
    eventually(SOON, "the end of keeping", || rig.children().is_empty());
    let took = start.took();
    println!("kept for {took:?} of {limit:?}");
    assert!(took.at_least(limit) && took.within(limit + PROMPTLY), "{took:?}");
    let guard = lock.lock().unwrap();
    assert!(guard.fencing_token().zxid() > zxid);
    drop(guard);
    eventually(SOON, "the end of keeping", || rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn a_lock_that_is_kept_for_no_time_at_all_is_one_lock_all_the_same() {
    skip_without_server!();
    let rig = Rig::new("keep-zero");
    let lock = rig.keeping(Duration::ZERO);
    // Makes the missing part of the path.
    drop(rig.theirs().lock().unwrap());
    let mut nodes = BTreeSet::new();
    for round in 0..300 {
        let guard = lock.lock().unwrap();
        nodes.insert(guard.path().to_owned());
        if round % 2 == 0 {
            thread::yield_now();
        }
        assert!(lock.try_lock().unwrap().is_none());
        drop(guard);
    }
    assert_eq!(rig.proxy.count(opcode::CREATE), nodes.len() as u64, "a create without a holder");
    eventually(SOON, "the end of keeping", || rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn a_kept_lock_goes_with_the_last_of_its_values() {
    skip_without_server!();
    let rig = Rig::new("keep-values");
    let lock = rig.keeping(LONG);
    let (twin, anew) = (lock.clone(), rig.keeping(LONG));
    drop(lock.lock().unwrap());
    // A value shares the kept node only from its first use on.
    drop(twin.lock().unwrap());
    drop(anew.lock().unwrap());
    assert_eq!(rig.children().len(), 1);
    drop(lock);
    drop(anew);
    assert_eq!(rig.children().len(), 1);
    drop(twin);
    rig.site.wait_for_children("a", 0);

    // A guard may outlive all values.
    let guard = rig.keeping(LONG).lock().unwrap();
    assert_eq!(rig.children().len(), 1);
    drop(guard);
    rig.site.wait_for_children("a", 0);
    rig.finish();
}

#[test]
fn s22_a_kept_lock_goes_with_its_client() {
    skip_without_server!();
    let rig = Rig::new("keep-close");
    let lock = rig.keeping(LONG);
    drop(lock.lock().unwrap());
    assert_eq!(rig.children().len(), 1);
    rig.zk.close();
    assert!(rig.children().is_empty());
    assert_eq!(kind(lock.lock()), ErrorKind::Closed);
    drop(lock);
    rig.finish();
}

#[test]
fn s69_a_kept_lock_is_held_as_far_as_others_see() {
    skip_without_server!();
    let rig = Rig::new("keep-seen");
    let (lock, theirs) = (rig.keeping(LONG), rig.theirs());
    let guard = lock.lock().unwrap();
    let path = guard.path().to_owned();
    drop(guard);
    let seen = theirs.contenders().unwrap();
    assert_eq!(seen.iter().map(|one| &*one.path).collect::<Vec<_>>(), [&*path]);
    assert_eq!(theirs.observe().next_within(SOON).unwrap(), Some(seen.clone()));
    assert_eq!(theirs.contenders().unwrap(), seen, "to look is not to ask");
    drop((lock, theirs));
    rig.finish();
}

#[test]
fn s26_a_session_that_is_lost_while_a_lock_is_kept_harms_nothing() {
    skip_without_server!();
    let timeout = Duration::from_millis(1_500);
    let rig = Rig::with_session("keep-expired", timeout);
    let keep = timeout * 2;
    let lock = rig.keeping(keep);
    let mut before = None;
    for round in 0..2 {
        let guard = lock.lock().unwrap();
        assert!(before < Some(guard.fencing_token()));
        assert_eq!(guard.fencing_token().turn(), 0);
        before = Some(guard.fencing_token());
        drop(guard);
        assert_eq!(rig.children().len(), 1);
        if round == 0 {
            rig.proxy.black_hole();
            eventually(SOON, "the loss", || rig.zk.state() == SessionState::Lost);
            rig.proxy.pass();
        }
    }
    // In the new session, too, it is released in time.
    eventually(SOON, "the end of keeping", || rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn a_client_that_vanishes_while_it_keeps_a_lock_holds_others_up_for_its_session_on_time() {
    skip_without_server!();
    let timeout = Duration::from_millis(1_500);
    let rig = Rig::with_session("keep-killed", timeout);
    let (lock, theirs) = (rig.keeping(LONG), rig.theirs());
    drop(lock.lock().unwrap());
    assert!(rig.proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
    rig.proxy.black_hole();
    let (guard, took) = timed(|| theirs.lock().unwrap());
    println!("the other client waited {took:?}, with a session timeout of {timeout:?}");
    assert!(took.within(timeout + Duration::from_secs(1)), "{took:?}");
    rig.proxy.pass();
    let line = Line::new();
    line.join(1, &lock);
    rig.site.wait_for_children("a", 2);
    let token = guard.fencing_token();
    drop(guard);
    assert!(line.next(1).fencing_token() > token);
    drop((lock, theirs));
    rig.finish();
}

#[test]
fn s68_a_kept_lock_can_be_asked_for_and_taken_away() {
    skip_without_server!();
    let rig = Rig::new("keep-request");
    let (lock, theirs) = (rig.keeping(LONG), rig.theirs());
    let mut tokens = Vec::new();
    let mut take = || {
        eventually(SOON, "a lock that is held", || {
            let guard = lock.lock().unwrap();
            assert!(!guard.release_requested());
            // The client may notice a moment later that its node was deleted by force.
            match guard.ensure_held() {
                Ok(()) => tokens.push(guard.fencing_token()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NodeDeleted),
            }
            guard.is_held()
        });
    };
    take();
    assert_eq!(theirs.request_release().unwrap(), 1);
    eventually(SOON, "its release", || rig.children().is_empty());
    take();
    let kept = theirs.contenders().unwrap();
    assert!(theirs.break_lock(&kept[0]).unwrap());
    take();
    rig.site.raw().delete(&theirs.contenders().unwrap()[0].path).unwrap();
    take();
    assert!(tokens.iter().map(FencingToken::zxid).is_sorted_by(|a, b| a < b), "{tokens:?}");
    drop((lock, theirs));
    rig.finish();
}

#[test]
fn s25_a_kept_lock_outlasts_a_blip() {
    skip_without_server!();
    let rig = Rig::new("keep-blip");
    let lock = rig.keeping(LONG);
    let guard = lock.lock().unwrap();
    let path = guard.path().to_owned();
    drop(guard);
    let session = rig.zk.session_id();
    for _ in 0..3 {
        rig.proxy.reset_counts();
        rig.proxy.cut();
        // The client looks for other contenders again.
        assert!(rig.proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
        let guard = lock.lock().unwrap();
        guard.ensure_held().unwrap();
        assert_eq!(guard.path(), path);
    }
    assert_eq!(rig.zk.session_id(), session);
    let theirs = rig.theirs();
    let (guard, took) = timed(|| theirs.lock().unwrap());
    assert!(took.within(PROMPTLY), "{took:?}");
    drop((guard, lock, theirs));
    rig.finish();
}

#[test]
fn a_lock_that_is_kept_but_not_handed_over_is_in_the_ensembles_order() {
    skip_without_server!();
    let rig = Rig::new("keep-strict");
    let lock = rig.lock().hand_over(HandOver::Off).keep_for(LONG);
    let guard = lock.lock().unwrap();
    let first = guard.path().to_owned();
    drop(guard);
    let guard = lock.lock().unwrap();
    assert_eq!(guard.path(), first);
    let line = Line::new();
    let theirs = rig.theirs();
    for (number, lock) in (1..).zip([&lock, &theirs, &lock]) {
        line.join(number, lock);
        rig.site.wait_for_children("a", 1 + number as usize);
    }
    drop(guard);
    (1..=3).for_each(|number| drop(line.next(number)));
    drop((lock, theirs));
    eventually(SOON, "the last node", || rig.children().is_empty());
    rig.finish();
}

#[test]
fn s20_a_token_that_was_tripped_before_takes_no_kept_lock() {
    skip_without_server!();
    let rig = Rig::new("keep-cancelled");
    let lock = rig.keeping(QUIET);
    drop(lock.lock().unwrap());
    let cancel = Cancel::new();
    cancel.cancel();
    assert_eq!(kind(lock.lock_within(&cancel)), ErrorKind::Cancelled);
    drop(lock.lock_within(&Cancel::new()).unwrap());
    drop(lock);
    rig.finish();
}
