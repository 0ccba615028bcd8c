//! Who is told what: of nodes that others delete, and by which callbacks.

use std::sync::mpsc::{RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use zklock::{ErrorKind, LossReason, SessionState};

use super::{AMPLE, SHORT, expect_states, lock_in_background, losses, states, wait_for_contenders};
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{eventually, mutex, skip_before, skip_without_server, skip_without_zookeeper};

#[test]
fn s30_the_holders_node_is_deleted_from_outside() {
    skip_without_server!();
    let site = Site::own("s30");
    let (zk, other) = (site.client(), site.client());
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let lost = losses(&guard);
    let successor = lock_in_background(&mutex(&other, &site.base, "a"));
    wait_for_contenders(&site, "a", 2);
    site.raw().delete(guard.path()).unwrap();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::NodeDeleted));
    assert!(lost.recv().is_err(), "on_lost was called twice");
    assert!(!guard.is_held());
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::NodeDeleted);
    assert_eq!(zk.state(), SessionState::Connected);
    let next = successor.recv_timeout(AMPLE).expect("the successor's turn");
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::NodeDeleted);
    next.ensure_held().unwrap();
    next.unlock().unwrap();
    lock.lock().unwrap().unlock().unwrap();
    drop(lock);
    site.finish([zk, other]);
}

/// The holder has not noticed yet, and the next contender may hold the lock already.
#[test]
fn s30_unlocking_tells_that_the_node_was_deleted() {
    skip_without_zookeeper!();
    let site = Site::shared("s30-unlock");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let mut raw = site.raw();
    for _ in 0..100 {
        let guard = lock.lock().unwrap();
        raw.delete(guard.path()).unwrap();
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::NodeDeleted);
    }
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s30_a_node_deleted_during_a_blip_is_noticed_afterwards() {
    skip_without_server!();
    let site = Site::own("s30-blip");
    let (proxy, zk) = site.proxied(Duration::from_secs(6));
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let lost = losses(&guard);
    proxy.refuse();
    site.raw().delete(guard.path()).unwrap();
    assert!(guard.is_held());
    proxy.pass();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::NodeDeleted));
    assert!(!guard.is_held());
    drop(guard);
    site.finish([zk]);
}

#[test]
fn s31_a_waiters_node_is_deleted_from_outside() {
    skip_without_server!();
    let site = Site::own("s31");
    let clients = [site.client(), site.client(), site.client()];
    let [holder, waiter, last] = clients.each_ref().map(|zk| mutex(zk, &site.base, "a"));
    let guard = holder.lock().unwrap();
    let second = lock_in_background(&waiter);
    wait_for_contenders(&site, "a", 2);
    let victim = holder.contenders().unwrap()[1].path.clone();
    let third = lock_in_background(&last);
    wait_for_contenders(&site, "a", 3);

    site.raw().delete(&victim).unwrap();
    // Its owner learns of it, and takes a new place at the end.
    eventually(AMPLE, "a new place", || {
        let children = site.children("a");
        children.len() == 3 && !children.iter().any(|name| victim.ends_with(name.as_str()))
    });
    guard.ensure_held().unwrap();
    for waiting in [&second, &third] {
        assert_eq!(waiting.try_recv().err(), Some(TryRecvError::Empty));
    }
    guard.unlock().unwrap();
    // The one whose node was deleted has lost its turn.
    let guard = third.recv_timeout(AMPLE).expect("the third's turn");
    wait_for_contenders(&site, "a", 2);
    assert_eq!(second.try_recv().err(), Some(TryRecvError::Empty));
    guard.unlock().unwrap();
    let guard = second.recv_timeout(AMPLE).expect("a new turn");
    assert_ne!(guard.path(), victim);
    guard.ensure_held().unwrap();
    drop((guard, holder, waiter, last));
    site.finish(clients);
}

#[test]
fn s31_the_last_waiters_node_and_the_holders_go_together() {
    skip_without_server!();
    let site = Site::own("s31-both");
    let (zk, other) = (site.client(), site.client());
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let waiter = mutex(&other, &site.base, "a");
    let acquired = lock_in_background(&waiter);
    wait_for_contenders(&site, "a", 2);
    let victim = waiter.contenders().unwrap()[1].path.clone();
    let mut raw = site.raw();
    raw.delete(&victim).unwrap();
    raw.delete(guard.path()).unwrap();
    let next = acquired.recv_timeout(AMPLE).expect("the lock");
    assert_ne!(next.path(), victim);
    next.ensure_held().unwrap();
    drop((guard, next, waiter));
    site.finish([zk, other]);
}

#[test]
fn s32_a_drop_after_the_loss_deletes_nobodys_node() {
    skip_without_server!();
    let site = Site::own("s32");
    let (proxy, zk) = site.proxied(SHORT);
    let other = site.client();
    let mut raw = site.raw();

    let guard = mutex(&zk, &site.base, "deleted").lock().unwrap();
    let (lost, path) = (losses(&guard), guard.path().to_owned());
    raw.delete(&path).unwrap();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::NodeDeleted));
    raw.create(&path, b"somebody else's", Kind::Persistent).unwrap();
    drop(guard);
    zk.session_id().expect("the session goes on");

    let guard = mutex(&zk, &site.base, "expired").lock().unwrap();
    let lost = losses(&guard);
    proxy.black_hole();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::LeaseExpired));
    let next = mutex(&other, &site.base, "expired").lock().unwrap();
    let before = Stopwatch::start();
    drop(guard);
    assert!(before.took().within(Duration::from_millis(400)), "took {:?}", before.took());
    proxy.pass();
    // Opens a new session for the client that lost its own: whatever it had to delete is deleted
    // now.
    mutex(&zk, &site.base, "again").lock().unwrap().unlock().unwrap();
    eventually(AMPLE, "no pending deletes", || zk.stats().pending_deletes == 0);
    next.ensure_held().unwrap();
    assert_eq!(site.children("expired").len(), 1);
    assert!(raw.exists(&path).unwrap().is_some());
    next.unlock().unwrap();
    site.finish([zk, other]);
}

#[test]
fn s35_callbacks_may_call_the_library_and_block() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("s35");
    let (proxy, zk) = site.proxied(SHORT);
    let lock = mutex(&zk, &site.base, "a");

    // Blocks in `Suspended` until the session is lost and another one is opened.
    let (tell_state, states) = channel();
    let (own, inner) = (zk.clone(), mutex(&zk, &site.base, "b"));
    zk.on_state_change(move |state| {
        let _ = (own.state(), own.session_id(), own.stats(), format!("{own:?}"));
        if state == SessionState::Suspended {
            let guard = inner.lock().unwrap();
            inner.contenders().unwrap();
            guard.unlock().unwrap();
        }
        tell_state.send(state).unwrap();
    })
    .detach();

    let guard = lock.lock().unwrap();
    let (tell, told) = channel();
    let again = lock.clone();
    let late = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&late);
    guard.on_lost(move |why| {
        // The lost guard still exists, and perhaps its node too.
        let guard = again.lock().unwrap();
        *seen.lock().unwrap() = Some(guard.is_held());
        tell.send((why, guard)).unwrap();
    });
    proxy.black_hole();
    assert_eq!(guard.lost().wait_within(AMPLE), Some(Err(LossReason::LeaseExpired)));
    proxy.pass();
    let (why, next) = told.recv_timeout(AMPLE).expect("the callback's lock");
    assert_eq!(why, LossReason::LeaseExpired);
    assert_eq!(*late.lock().unwrap(), Some(true));
    assert!(next.fencing_token() > guard.fencing_token());
    expect_states(&states, &[SessionState::Suspended, SessionState::Lost, SessionState::Connected]);
    drop((guard, next, lock));
    zk.close();
    expect_states(&states, &[SessionState::Closed]);
    // The callback owns a client, so it must be dropped with the session, not with the client.
    assert_eq!(states.recv_timeout(AMPLE), Err(RecvTimeoutError::Disconnected));
    site.finish([zk]);
}

#[test]
fn s35_states_are_told_in_order() {
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    use SessionState::{Closed, Connected, Lost, Suspended};
    skip_without_server!();
    let site = Site::own("s35-order");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let (told, seen_by_another) = (states(&zk), states(&zk));
    let lock = mutex(&zk, &site.base, "a");
    assert_eq!(zk.state(), Connected);
    for _ in 0..20 {
        proxy.cut();
        expect_states(&told, &[Suspended, Connected]);
    }
    proxy.black_hole();
    expect_states(&told, &[Suspended, Lost]);
    assert_eq!(zk.state(), Lost);
    proxy.pass();
    lock.lock().unwrap().unlock().unwrap();
    expect_states(&told, &[Connected]);
    zk.close();
    expect_states(&told, &[Closed]);
    assert_eq!(zk.state(), Closed);
    let mut all = [Suspended, Connected].repeat(20);
    all.extend([Suspended, Lost, Connected, Closed]);
    expect_states(&seen_by_another, &all);
    for told in [told, seen_by_another] {
        assert_eq!(told.recv_timeout(AMPLE), Err(RecvTimeoutError::Disconnected));
    }
    drop(lock);
    site.finish([zk]);
}

/// `on_lost` is called for a loss before the release even if all callback threads are busy.
#[test]
fn s35_a_loss_before_the_release_is_told_whatever_other_callbacks_do() {
    const BUSY: usize = 40;
    skip_without_zookeeper!();
    let site = Site::shared("s35-release");
    let zk = site.client();
    let lock = |name: &str| mutex(&zk, &site.base, name).lock().unwrap();
    let [busy, guard] = ["busy", "a"].map(lock);
    let mut raw = site.raw();
    let (begin, begun) = channel();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    for _ in 0..BUSY {
        let (begin, gate) = (begin.clone(), Arc::clone(&gate));
        busy.on_lost(move |_| {
            begin.send(()).unwrap();
            drop(gate.lock());
        });
    }
    raw.delete(busy.path()).unwrap();
    for _ in 0..BUSY {
        begun.recv_timeout(AMPLE).unwrap();
    }
    let called = losses(&guard);
    raw.delete(guard.path()).unwrap();
    assert_eq!(guard.lost().wait(), Err(LossReason::NodeDeleted));
    drop(guard);
    assert_eq!(called.recv_timeout(AMPLE), Ok(LossReason::NodeDeleted));
    drop(closed);
    drop(busy);
    site.finish([zk]);
}

#[test]
fn s35_after_the_release_nobody_is_told_and_after_the_loss_at_once() {
    skip_without_server!();
    let site = Site::own("s35-late");
    let (proxy, zk) = site.proxied(SHORT);
    let lock = |name: &str| mutex(&zk, &site.base, name).lock().unwrap();
    let [dropped, unlocked, held] = ["dropped", "unlocked", "held"].map(lock);
    let quiet = [losses(&dropped), losses(&unlocked)];
    let handles = [dropped.lost(), unlocked.lost()];
    let waiting = handles.clone().map(|lost| thread::spawn(move || lost.wait()));
    let of_held = held.lost();
    let limited = {
        let lost = held.lost();
        thread::spawn(move || lost.wait_within(AMPLE))
    };
    let unlimited = {
        let lost = held.lost();
        thread::spawn(move || lost.wait())
    };
    assert_eq!(of_held.wait_within(Duration::from_millis(50)), None);

    drop(dropped);
    unlocked.unlock().unwrap();
    for (waiting, lost) in waiting.into_iter().zip(&handles) {
        assert_eq!(waiting.join().unwrap(), Ok(()));
        assert_eq!(lost.wait_within(Duration::ZERO), Some(Ok(())));
        assert_eq!(lost.wait_within(AMPLE), Some(Ok(())));
    }
    proxy.black_hole();
    assert_eq!(unlimited.join().unwrap(), Err(LossReason::LeaseExpired));
    assert_eq!(limited.join().unwrap(), Some(Err(LossReason::LeaseExpired)));
    assert_eq!(of_held.reason(), Some(LossReason::LeaseExpired));
    assert_eq!(losses(&held).recv_timeout(AMPLE), Ok(LossReason::LeaseExpired));
    for (quiet, lost) in quiet.iter().zip(&handles) {
        assert_eq!(quiet.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Disconnected));
        assert_eq!(lost.reason(), None);
    }
    proxy.pass();
    drop(held);
    assert_eq!(of_held.wait(), Err(LossReason::LeaseExpired));
    site.finish([zk]);
}
