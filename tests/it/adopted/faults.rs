//! Reconnects, lost sessions, lost answers and silence.

use std::time::Duration;

use zklock::{ErrorKind, LossReason, SessionState};

use super::{LONG, Rig, losses, waits};
use crate::support::proxy::opcode;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    eventually, in_background, is_unanswered, mutex, nodes_of, skip_without_server,
};

/// The watch on the holder's own node is lost with the connection, and must be set again.
#[test]
fn s30_a_deletion_after_a_reconnect_or_during_one_is_told() {
    skip_without_server!();
    for during in [false, true] {
        let rig = Rig::new("borrowed-s30-again");
        let guard = rig.lock().lock().unwrap();
        let lost = losses(&guard);
        guard.ensure_held().unwrap();
        rig.proxy.refuse();
        eventually(LONG, "the loss to be noticed", || rig.zk.state() == SessionState::Suspended);
        assert!(guard.is_held(), "lost when only suspended");
        if during {
            rig.site.raw().delete(guard.path()).unwrap();
        }
        rig.proxy.release();
        if !during {
            guard.ensure_held().unwrap();
            eventually(LONG, "the watch", || rig.site.server().counter("zk_watch_count") > 0);
            rig.site.raw().delete(guard.path()).unwrap();
        }
        assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::NodeDeleted));
        drop(guard);
        rig.finish();
    }
}

#[test]
fn s24_a_waiter_is_not_stranded_by_a_reconnect() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s24");
    let other = rig.site.client();
    let holder = mutex(&other, &rig.site.base, "a").lock().unwrap();
    let lock = rig.lock();
    let waiter = in_background(move || lock.lock());
    rig.wait_for_contenders(2);
    // The list, and the watch on the holder's node.
    assert!(rig.proxy.wait_for_requests(opcode::GET_CHILDREN, 2, LONG), "no watch was set");
    rig.proxy.refuse();
    eventually(LONG, "the loss to be noticed", || rig.zk.state() == SessionState::Suspended);
    // The crate's watches are lost now.
    holder.unlock().unwrap();
    rig.proxy.release();
    let guard = waiter.recv_timeout(LONG).expect("the waiter's turn").unwrap();
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
    drop(other);
    rig.finish();
}

#[test]
fn s26_an_expired_session_is_told_and_the_next_one_works() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s26");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let (session, token) = (rig.zk.session_id(), guard.fencing_token());
    let (lost, also) = (losses(&guard), lock.clone());
    let waiter = waits(move || also.lock());
    rig.wait_for_contenders(nodes_of(2));

    rig.site.expire(&rig.proxy);
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::SessionExpired));
    assert!(lost.recv().is_err(), "on_lost was called twice");
    assert!(!guard.is_held());
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::SessionLost);
    // s27: the waiter queues anew, in the handle's next session.
    let next = waiter.recv_timeout(LONG).expect("a place in the new session").unwrap();
    assert!(next.fencing_token() > token);
    assert_ne!(rig.zk.session_id(), session);
    next.ensure_held().unwrap();
    // s32: the lost guard does not delete the new holder's node.
    drop(guard);
    next.ensure_held().unwrap();
    assert_eq!(rig.site.children("a").len(), 1);
    next.unlock().unwrap();
    rig.wait_for_contenders(0);
    drop(lock);
    rig.finish();
}

#[test]
fn s36_a_node_whose_making_was_not_confirmed_is_deleted_and_another_one_made() {
    skip_without_server!();
    for (lost_reply, timed) in [(true, false), (true, true), (false, false), (false, true)] {
        let rig = Rig::new("borrowed-s36");
        // Lets the client learn its session id. To adopt a node, that alone would be enough.
        rig.lock().lock().unwrap().unlock().unwrap();
        rig.proxy.reset_counts();
        match lost_reply {
            true => rig.proxy.drop_reply_on(opcode::CREATE, "_c_", 1),
            false => rig.proxy.drop_request_on(opcode::CREATE, "_c_", 1),
        }
        let lock = rig.lock();
        let guard = match timed {
            true => lock.try_lock_for(LONG).unwrap().expect("in time"),
            false => lock.lock().unwrap(),
        };
        let prefixes: Vec<String> = rig
            .proxy
            .requests()
            .into_iter()
            .filter(|seen| seen.opcode == opcode::CREATE)
            .filter_map(|seen| seen.path)
            .collect();
        assert_eq!(prefixes.len(), 2, "{prefixes:?}");
        assert_ne!(prefixes[0], prefixes[1]);
        let children = rig.site.children("a");
        assert_eq!(children.len(), 1, "{children:?}");
        assert!(guard.path().starts_with(&prefixes[1]) && guard.path().ends_with(&children[0]));
        guard.ensure_held().unwrap();
        guard.unlock().unwrap();
        rig.wait_for_contenders(0);
        drop(lock);
        rig.finish();
    }
}

#[test]
fn s39_a_delete_whose_reply_is_lost_is_a_release() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s39");
    let guard = rig.lock().lock().unwrap();
    rig.proxy.drop_reply_on(opcode::DELETE, "_c_", 1);
    guard.unlock().unwrap();
    rig.wait_for_contenders(0);
    let guard = rig.lock().lock().unwrap();
    rig.proxy.drop_request_on(opcode::DELETE, "_c_", 1);
    drop(guard);
    rig.wait_for_contenders(0);
    rig.finish();
}

#[test]
fn s42_giving_up_during_an_outage_leaves_no_node() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s42");
    rig.lock().lock().unwrap().unlock().unwrap();
    rig.proxy.stall_reply(opcode::CREATE);
    let start = Stopwatch::start();
    assert!(is_unanswered(rig.lock().try_lock_for(Duration::from_millis(300))));
    assert!(start.took().within(LONG));
    rig.wait_for_contenders(1);
    rig.proxy.pass();
    rig.wait_for_contenders(0);
    rig.finish();
}

#[test]
fn s18_a_silent_server_does_not_hold_up_calls_with_a_limit() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s18");
    let guard = rig.lock().lock().unwrap();
    rig.proxy.black_hole();
    for limit in [0, 100, 300] {
        // This client holds `a`: its threads wait for that without a request, but for `b` with one.
        for name in ["a", "b"] {
            let (start, limit) = (Stopwatch::start(), Duration::from_millis(limit));
            let lock = mutex(&rig.zk, &rig.site.base, name);
            let result = lock.try_lock_for(limit);
            assert_eq!(is_unanswered(result), name == "b", "{name}");
            assert!(start.took().within(limit + Duration::from_secs(2)), "{:?}", start.took());
        }
    }
    // As documented: the handle has not reported a loss.
    assert!(guard.is_held());
    rig.proxy.pass();
    rig.proxy.cut();
    drop(guard);
    rig.wait_for_contenders(0);
    rig.finish();
}
