//! Servers that are away for a moment, or not there yet.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::Duration;

use zklock::{Acl, ErrorKind, LockGuard, LossReason, SessionState};

use super::{
    AMPLE, expect_states, lock_in_background, losses, proxy, states, through, wait_for_contenders,
};
use crate::keeper;
use crate::support::proxy::{Proxy, opcode};
use crate::support::server::free_port;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::transport::Transport;
use crate::support::{Raise, connecting, eventually, mutex, skip_without_server};

/// Waits until a contender behind the proxy watches its predecessor.
fn wait_for_watch(proxy: &Proxy, predecessor: &LockGuard) {
    eventually(AMPLE, "a watch on the predecessor", || {
        proxy.requests().iter().any(|seen| seen.path.as_deref() == Some(predecessor.path()))
    });
}

#[test]
fn s23_a_blip_while_holding_changes_nothing() {
    skip_without_server!();
    if !Transport::wanted().keeps_sessions() {
        return keeper::s23_a_blip_is_a_lost_lock_where_sessions_end_with_their_connections();
    }
    let site = Site::own("s23");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let (session, token) = (zk.session_id(), guard.fencing_token());
    let (lost, told) = (losses(&guard), states(&zk));
    let mut raw = site.raw();
    for _ in 0..5 {
        proxy.cut();
        expect_states(&told, &[SessionState::Suspended, SessionState::Connected]);
        assert!(guard.is_held());
        guard.ensure_held().unwrap();
        assert_eq!(zk.session_id(), session);
        assert_eq!(guard.fencing_token(), token);
        let stat = raw.exists(guard.path()).unwrap().expect("the same node");
        assert_eq!(Some(stat.ephemeral_owner.into()), session);
        assert_eq!(u64::try_from(stat.czxid), Ok(token.zxid()));
    }
    guard.unlock().unwrap();
    assert_eq!(lost.recv(), Err(std::sync::mpsc::RecvError), "on_lost was called");
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    site.finish([zk]);
}

#[test]
fn s23_blips_under_a_busy_client_lose_nothing() {
    skip_without_server!();
    if !Transport::wanted().keeps_sessions() {
        return keeper::s23_a_lost_lock_is_acquired_again_when_the_server_has_ended_its_session();
    }
    let site = Site::own("s23-busy");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let guard = mutex(&zk, &site.base, "held").lock().unwrap();
    let (session, lost) = (zk.session_id(), losses(&guard));
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _at_the_end = Raise(&stop);
        for worker in 0..3 {
            let lock = mutex(&zk, &site.base, format!("busy-{worker}"));
            let (stop, rounds) = (&stop, &rounds);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let guard = lock.lock().unwrap();
                    assert!(guard.is_held());
                    guard.unlock().unwrap();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..10 {
            let before = rounds.load(Ordering::Relaxed);
            proxy.cut();
            eventually(AMPLE, "the workers to go on", || {
                rounds.load(Ordering::Relaxed) >= before + 10
            });
        }
    });
    guard.ensure_held().unwrap();
    assert_eq!(zk.session_id(), session);
    drop(guard);
    assert!(lost.recv().is_err(), "on_lost was called");
    site.finish([zk]);
}

/// Round trips of a tenth of the session timeout from the start, or suddenly of an eighth.
#[test]
fn a_slow_connection_keeps_its_session() {
    skip_without_server!();
    let site = Site::own("slow");
    // An answer may take at most a third of it.
    let timeout = Duration::from_secs(6);
    for (from_the_start, round_trip) in [(true, timeout / 10), (false, timeout / 8)] {
        let proxy = proxy(&site);
        let delay = || proxy.delay_replies(round_trip);
        if from_the_start {
            delay();
        }
        let zk = through(&proxy, timeout);
        let guard = mutex(&zk, &site.base, "a").lock().unwrap();
        let (session, lost, told) = (zk.session_id(), losses(&guard), states(&zk));
        if !from_the_start {
            delay();
        }
        proxy.reset_counts();
        assert!(proxy.wait_for_requests(opcode::SYNC, 6, timeout * 10), "heartbeats went on");
        assert!(guard.is_held());
        assert_eq!(zk.session_id(), session);
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty), "the connection was given up");
        proxy.pass();
        guard.unlock().unwrap();
        assert!(lost.recv().is_err(), "on_lost was called");
        drop(zk);
    }
    site.finish([]);
}

#[test]
fn s24_the_predecessor_goes_during_a_blip() {
    skip_without_server!();
    if !Transport::wanted().keeps_sessions() {
        return keeper::s24_a_waiter_queues_again_where_sessions_end_with_their_connections();
    }
    let site = Site::own("s24");
    let proxy = proxy(&site);
    let holder = site.client();
    let waiter = through(&proxy, Duration::from_secs(4));
    let faults: [fn(&Proxy); 2] = [Proxy::refuse, Proxy::black_hole];
    for fault in faults {
        let guard = mutex(&holder, &site.base, "a").lock().unwrap();
        let (session, told) = (waiter.session_id(), states(&waiter));
        let acquired = lock_in_background(&mutex(&waiter, &site.base, "a"));
        wait_for_watch(&proxy, &guard);
        fault(&proxy);
        guard.unlock().unwrap();
        expect_states(&told, &[SessionState::Suspended]);
        assert_eq!(acquired.try_recv().err(), Some(TryRecvError::Empty));
        proxy.pass();
        let guard = acquired.recv_timeout(AMPLE).expect("the lock");
        guard.ensure_held().unwrap();
        assert_eq!(waiter.session_id(), session);
    }
    site.finish([holder, waiter]);
}

#[test]
fn s25_a_server_restart_with_a_holder_and_a_waiter() {
    skip_without_server!();
    if !Transport::wanted().keeps_sessions() {
        return keeper::s25_a_restart_is_a_lost_lock_where_sessions_end_with_their_connections();
    }
    let site = Site::own("s25");
    let client = || site.builder().session_timeout(Duration::from_secs(30)).connect().unwrap();
    let (holder, waiter) = (client(), client());
    let guard = mutex(&holder, &site.base, "a").lock().unwrap();
    let (sessions, token) = ([holder.session_id(), waiter.session_id()], guard.fencing_token());
    let lost = losses(&guard);
    let acquired = lock_in_background(&mutex(&waiter, &site.base, "a"));
    wait_for_contenders(&site, "a", 2);
    site.server().restart();
    guard.ensure_held().unwrap();
    assert_eq!(guard.fencing_token(), token);
    assert_eq!(acquired.try_recv().err(), Some(TryRecvError::Empty));
    guard.unlock().unwrap();
    assert!(lost.recv().is_err(), "on_lost was called");
    let guard = acquired.recv_timeout(AMPLE).expect("the lock");
    assert!(guard.fencing_token() > token);
    guard.unlock().unwrap();
    assert_eq!([holder.session_id(), waiter.session_id()], sessions);
    site.finish([holder, waiter]);
}

#[test]
fn s33_started_before_the_server() {
    skip_without_server!();
    let site = Site::own("s33");
    site.server().kill();
    let builder = site.builder().connect_timeout(Duration::from_secs(40));
    thread::scope(|scope| {
        let connecting = scope.spawn(move || builder.connect());
        let early = site.builder().connect_timeout(Duration::from_millis(300)).connect();
        assert_eq!(early.unwrap_err().kind(), ErrorKind::Connect);
        assert!(!connecting.is_finished());
        site.server().start_again();
        let zk = connecting.join().unwrap().unwrap();
        mutex(&zk, &site.base, "a").lock().unwrap().unlock().unwrap();
        drop(zk);
    });
    site.finish([]);
}

#[test]
fn s33_no_server_is_an_error_that_names_the_address_on_time() {
    let refused = format!("127.0.0.1:{}", free_port());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    for hosts in [&refused, &silent, &format!("{silent},{silent}")] {
        let limit = Duration::from_millis(700);
        let before = Stopwatch::start();
        let error = connecting(hosts).connect_timeout(limit).connect().unwrap_err();
        let took = before.took();
        assert_eq!(error.kind(), ErrorKind::Connect);
        let address = hosts.split(',').next().unwrap();
        assert!(error.to_string().contains(address), "{error}");
        assert!(
            took.at_least(limit) && took.within(limit + Duration::from_millis(150)),
            "took {took:?}"
        );
    }
}

#[test]
fn s35a_after_an_outage_sessions_go_on_or_begin_anew() {
    skip_without_server!();
    let site = Site::own("s35a");
    let client = |seconds| site.builder().session_timeout(Duration::from_secs(seconds));
    let (patient, hasty) = (client(25).connect().unwrap(), client(2).connect().unwrap());
    let kept = mutex(&patient, &site.base, "kept").lock().unwrap();
    let lost = mutex(&hasty, &site.base, "lost").lock().unwrap();
    let told = [states(&patient), states(&hasty)];

    site.server().kill();
    let again = lock_in_background(&mutex(&hasty, &site.base, "lost"));
    assert_eq!(lost.lost().wait_within(AMPLE), Some(Err(LossReason::LeaseExpired)));
    assert!(kept.is_held());
    assert_eq!(patient.state(), SessionState::Suspended);

    site.server().start_again();
    expect_states(&told[0], &[SessionState::Suspended, SessionState::Connected]);
    kept.ensure_held().unwrap();
    expect_states(
        &told[1],
        &[SessionState::Suspended, SessionState::Lost, SessionState::Connected],
    );
    let again = again.recv_timeout(AMPLE).expect("the lock on a new session");
    assert!(again.fencing_token() > lost.fencing_token());
    drop((kept, lost, again));
    site.finish([patient, hasty]);
}

#[test]
fn credentials_are_presented_again_after_a_cut() {
    skip_without_server!();
    let site = Site::own("auth-replay");
    let proxy = proxy(&site);
    let zk = connecting(&proxy.hosts())
        .session_timeout(Duration::from_secs(4))
        .auth("digest", b"user:password")
        .connect()
        .unwrap();
    let lock = mutex(&zk, &site.base, "a").acl(Acl::creator_only());
    let told = states(&zk);
    let guard = lock.lock().unwrap();
    assert!(site.raw().get_children(&format!("{}/a", site.base)).is_err(), "the ACL is in effect");
    for _ in 0..3 {
        proxy.cut();
        expect_states(&told, &[SessionState::Suspended, SessionState::Connected]);
        guard.ensure_held().unwrap();
        assert_eq!(lock.contenders().unwrap().len(), 1);
    }
    guard.unlock().unwrap();
    proxy.cut();
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(lock.contenders().unwrap().len(), 0);
    drop(lock);
    site.finish([zk]);
}
