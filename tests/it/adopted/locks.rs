//! Locks and other recipes without a fault of the network.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use zklock::commit::{Decision, Vote};
use zklock::maintenance::MaintenanceEnd;
use zklock::{Cancel, Client, ErrorKind, Group, LossReason, SessionState, TwoPhaseCommit};

use super::{LONG, Rig, losses, plain, waits};
use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::{
    eventually, got_nothing, in_background, mutex, skip_without_server, skip_without_zookeeper,
    strict,
};

#[test]
fn s01_a_node_a_guard_and_its_release() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s01");
    assert_eq!(rig.zk.state(), SessionState::Lost);
    let lock = rig.lock();
    let mut last = None;
    for round in 0..20 {
        let guard = lock.lock().unwrap();
        assert!(guard.is_held());
        guard.ensure_held().unwrap();
        let stat = rig.site.raw().exists(guard.path()).unwrap().unwrap();
        assert_eq!(Some(stat.ephemeral_owner.into()), rig.zk.session_id());
        assert_eq!(stat.czxid as u64, guard.fencing_token().zxid());
        assert!(last < Some(guard.fencing_token()));
        last = Some(guard.fencing_token());
        if round % 2 == 0 {
            guard.unlock().unwrap()
        } else {
            drop(guard)
        }
        rig.wait_for_contenders(0);
    }
    assert_eq!(rig.zk.state(), SessionState::Connected);
    assert_eq!(rig.zk.session_timeout(), None);
    assert_eq!(rig.zk.stats().watches_at_server, None);
    drop(lock);
    rig.finish();
}

#[test]
fn s03_both_kinds_of_clients_never_hold_at_once() {
    skip_without_zookeeper!();
    let site = Site::shared("borrowed-s03");
    let handles = [plain(site.hosts()), plain(site.hosts())];
    let clients = [Client::from(&handles[0]), Client::from(handles[1].clone()), site.client()];
    let (inside, entered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let last = Mutex::new(None);
    thread::scope(|scope| {
        for thread in 0..9 {
            let lock = mutex(&clients[thread % 3], &site.base, "a");
            let (inside, entered, last) = (&inside, &entered, &last);
            scope.spawn(move || {
                for _ in 0..20 {
                    let guard = match thread % 2 {
                        0 => lock.lock().unwrap(),
                        _ => lock.try_lock_for(3 * LONG).unwrap().expect("in time"),
                    };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders at once");
                    let token = Some(guard.fencing_token());
                    let before = std::mem::replace(&mut *last.lock().unwrap(), token);
                    assert!(before < token, "{before:?} {token:?}");
                    entered.fetch_add(1, Ordering::SeqCst);
                    assert!(inside.swap(false, Ordering::SeqCst));
                    drop(guard);
                }
            });
        }
    });
    assert_eq!(entered.load(Ordering::SeqCst), 180);
    drop(handles);
    site.finish(clients);
}

#[test]
fn s02_first_come_first_served() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s02");
    let linked = rig.site.client();
    let first = strict(&rig.zk, &rig.site.base, "a").lock().unwrap();
    let (tell, told) = mpsc::channel();
    for number in 0..6 {
        let zk = if number % 2 == 0 { &rig.zk } else { &linked };
        let lock = strict(zk, &rig.site.base, "a");
        let tell = tell.clone();
        thread::spawn(move || {
            let guard = lock.lock().unwrap();
            tell.send(number).unwrap();
            guard.unlock().unwrap();
        });
        rig.wait_for_contenders(number + 2);
    }
    drop(first);
    let order: Vec<_> = (0..6).map(|_| told.recv_timeout(LONG).unwrap()).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    rig.wait_for_contenders(0);
    drop(linked);
    rig.finish();
}

#[test]
fn s14_s15_s20_trying_leaves_no_node_and_no_watch_for_each_try() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s14");
    let other = rig.site.client();
    let holder = mutex(&other, &rig.site.base, "a").lock().unwrap();
    let lock = rig.lock();
    assert!(lock.try_lock().unwrap().is_none());
    let start = Instant::now();
    assert!(got_nothing(lock.try_lock_for(Duration::from_millis(200))));
    assert!(start.elapsed() >= Duration::from_millis(200) && start.elapsed() < LONG);
    let cancel = Cancel::new();
    let (also, token) = (lock.clone(), cancel.clone());
    let waiter = in_background(move || also.lock_within(&token));
    rig.wait_for_contenders(2);
    cancel.cancel();
    let error = waiter.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    rig.wait_for_contenders(1);

    rig.proxy.reset_counts();
    // Long enough to make a node and to wait, even on a server with slow writes.
    for _ in 0..40 {
        assert!(got_nothing(lock.try_lock_for(Duration::from_millis(60))));
    }
    eventually(LONG, "the last delete", || rig.zk.stats().pending_deletes == 0);
    assert_eq!(rig.zk.stats().watches, 0);
    let on_holder: Vec<_> = rig.proxy.requests();
    let on_holder = on_holder.iter().filter(|seen| seen.path.as_deref() == Some(holder.path()));
    assert!(on_holder.count() >= 10, "too few calls waited");
    let watches = rig.site.server().counter("zk_watch_count");
    assert!(watches <= 4, "{watches} watches");
    holder.unlock().unwrap();
    lock.try_lock().unwrap().expect("free").unlock().unwrap();
    drop((lock, other));
    rig.finish();
}

#[test]
fn s30_a_deletion_from_outside_is_told() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s30");
    let guard = rig.lock().lock().unwrap();
    let lost = losses(&guard);
    rig.site.raw().delete(guard.path()).unwrap();
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::NodeDeleted));
    assert!(!guard.is_held());
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::NodeDeleted);
    drop(guard);
    rig.lock().try_lock().unwrap().expect("free").unlock().unwrap();
    rig.finish();
}

/// A contender's node is watched by a request that follows its creation.
#[test]
fn s30_s68_what_happens_to_a_node_before_it_is_watched_is_noticed() {
    skip_without_server!();
    for is_deleted in [false, true] {
        let rig = Rig::new("borrowed-unwatched");
        let (other, lock) = (rig.site.client(), rig.lock());
        lock.lock().unwrap().unlock().unwrap();
        rig.proxy.stall_reply(opcode::CREATE);
        let acquiring = in_background(move || lock.lock());
        rig.wait_for_contenders(1);
        let first = format!("{}/a/{}", rig.site.base, rig.site.children("a")[0]);
        match is_deleted {
            true => rig.site.raw().delete(&first).unwrap(),
            false => assert_eq!(mutex(&other, &rig.site.base, "a").request_release().unwrap(), 1),
        }
        rig.proxy.pass();
        let guard = acquiring.recv_timeout(LONG).expect("the lock").unwrap();
        assert_eq!(guard.path() != first, is_deleted);
        if !is_deleted {
            eventually(LONG, "the request", || guard.release_requested());
        }
        guard.ensure_held().unwrap();
        guard.unlock().unwrap();
        drop(other);
        rig.finish();
    }
}

#[test]
fn a_holder_whose_time_is_over_is_told_and_its_node_goes() {
    skip_without_server!();
    let rig = Rig::new("borrowed-limited");
    let other = rig.site.client();
    let guard = rig.lock().hold_at_most(Duration::from_secs(1)).lock().unwrap();
    let lost = losses(&guard);
    let next = mutex(&other, &rig.site.base, "a").lock().unwrap();
    assert_eq!(lost.try_recv(), Ok(LossReason::HeldTooLong));
    assert!(!guard.is_held());
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::HeldTooLong);
    drop((next, other));
    rig.finish();
}

/// Members' nodes have fixed names, so two clients may ask for the same one.
#[test]
fn a_member_under_a_name_that_another_has_waits_for_it_and_harms_nobody() {
    skip_without_server!();
    let rig = Rig::new("borrowed-group");
    let other = rig.site.client();
    let [ours, theirs] = [&rig.zk, &other].map(|zk| Group::new(zk, &rig.site.base, "g"));
    let guard = rig.lock().lock().unwrap();
    let them = theirs.join("me", "theirs").unwrap();
    let joining = in_background(move || ours.join("me", "ours"));
    eventually(LONG, "the wait for the id", || rig.zk.stats().watches >= 2);
    assert!(joining.try_recv().is_err());
    assert_eq!(theirs.members().unwrap()[0].data, b"theirs");
    them.leave().unwrap();
    let us = joining.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(theirs.members().unwrap()[0].data, b"ours");
    guard.ensure_held().unwrap();
    us.leave().unwrap();
    assert_eq!(theirs.members().unwrap(), []);
    guard.unlock().unwrap();
    drop((theirs, other));
    rig.finish();
}

/// What our own connection does in one transaction takes several requests here. When only a part is
/// done, others must not take it for a vote against.
#[test]
fn a_vote_in_favour_is_never_seen_as_one_against() {
    skip_without_server!();
    let rig = Rig::new("borrowed-vote");
    let other = rig.site.client();
    for number in 0..5 {
        let round = |zk: &Client| TwoPhaseCommit::new(zk, &rig.site.base, format!("r{number}"));
        let coordinator = round(&other).begin(&["a", "b"]).unwrap();
        let participants = ["a", "b"].map(|name| round(&rig.zk).join(name).unwrap());
        let decides = in_background(move || coordinator.decide());
        for one in &participants {
            assert!(one.vote(Vote::Yes).unwrap());
        }
        assert_eq!(decides.recv_timeout(LONG).unwrap().unwrap(), Decision::Commit, "{number}");
    }
    drop(other);
    rig.finish();
}

/// Both by the handle: the operator's hold, and the waiter that ends it.
#[test]
fn a_lock_is_held_for_maintenance_by_a_handle_and_ended_by_its_waiter() {
    skip_without_zookeeper!();
    let rig = Rig::with("adopted-maintenance", Duration::from_secs(60));
    let lock = rig.lock();
    let held = lock.hold_for_maintenance("disk", MaintenanceEnd::Never, LONG).unwrap();
    let held = held.expect("a lock that nobody has");
    assert!(held.maintenance().is_some_and(|hold| hold.reason == "disk"));
    assert!(lock.try_lock().unwrap().is_none());
    let theirs = lock.clone();
    let got = waits(move || theirs.lock().map(|guard| guard.is_held()));
    assert!(got.try_recv().is_err());
    let now = MaintenanceEnd::After(Duration::from_millis(1));
    assert!(lock.change_maintenance(&held, now).unwrap());
    assert!(got.recv().unwrap().unwrap());
    assert!(!lock.release_maintenance(&held).unwrap());
    drop(lock);
    rig.finish();
}
