//! Sessions: their timeouts and states, their end, and the one after.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use log::LevelFilter;
use zklock::{Client, Error, ErrorKind, Group, LossReason, SessionState};

use super::{LONG, sessions, works};
use crate::support::logs::logs;
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    eventually, mutex, skip_before, skip_unless_alone, skip_without_server, strict, waiting,
};

#[test]
fn the_session_timeout_is_the_one_that_the_server_grants() {
    skip_without_server!();
    let limits = Server::builder().min_session(400).max_session(5000);
    let site = Site::with("granted", &limits);
    let granted = |asked: u64| {
        let builder = Client::builder(site.hosts());
        let zk = builder.session_timeout(Duration::from_millis(asked)).connect().unwrap();
        zk.session_timeout().unwrap().as_millis()
    };
    assert_eq!(granted(1), 400);
    assert_eq!(granted(1234), 1234);
    assert_eq!(granted(600_000), 5000);
    assert_eq!(granted(i32::MAX as u64), 5000);
    let default = Client::connect(site.hosts()).unwrap();
    assert_eq!(default.session_timeout(), Some(Duration::from_secs(5)));
    default.close();
    assert_eq!(default.session_timeout(), None);
    assert_eq!(Client::builder(site.hosts()).lazy().unwrap().session_timeout(), None);
    site.finish([default]);
    // More than the client trusts its session for.
    let site = Site::with("granted-more", &Server::builder().min_session(50_000));
    let zk = Client::connect(site.hosts()).unwrap();
    assert_eq!(zk.session_timeout(), Some(Duration::from_secs(50)));
    site.finish([zk]);
}

#[test]
fn a_session_timeout_below_the_round_trip_is_said_and_opens_no_storm_of_sessions() {
    skip_without_server!();
    let site = Site::with("stillborn", &Server::builder().min_session(1));
    let proxy = Proxy::start(site.server().addr());
    proxy.delay_replies(Duration::from_millis(300));
    let builder = Client::builder(&proxy.hosts()).session_timeout(Duration::from_millis(100));
    let error = builder.connect_timeout(Duration::from_secs(5)).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect);
    let text = error.to_string();
    assert!(text.contains("session timeout of 100ms is below the round trip"), "{text}");
    assert!((1..=8).contains(&proxy.connections()), "{} sessions", proxy.connections());
    site.finish([]);
}

#[test]
fn a_forked_process_can_neither_use_nor_harm_the_sessions_of_its_parent() {
    skip_unless_alone!();
    skip_without_server!();
    let site = Site::own("fork");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let lost = guard.lost();
    let unlocked = mutex(&zk, &site.base, "c").lock().unwrap();
    let member = Group::new(&zk, &site.base, "group").join("me", "").unwrap();
    let mut members = Group::new(&zk, &site.base, "group").observe();
    assert!(members.latest().unwrap().len() == 1 && members.is_current());
    let child = match fork::fork().unwrap() {
        fork::Fork::Child => {
            let is_closed = |error: Option<Error>| {
                error.is_some_and(|error| {
                    error.kind() == ErrorKind::Closed && error.to_string().contains("fork")
                })
            };
            let is_as_promised = !guard.is_held()
                && lost.reason() == Some(LossReason::ClientClosed)
                && matches!(lost.wait_within(LONG), Some(Err(LossReason::ClientClosed)))
                && is_closed(lock.lock().err())
                && is_closed(mutex(&zk, &site.base, "b").try_lock_for(LONG).err())
                && is_closed(lock.contenders().err())
                && is_closed(unlocked.unlock().err())
                && !member.is_member()
                && is_closed(member.leave().err())
                && !members.is_current()
                && is_closed(members.latest().err())
                && is_closed(members.next_within(LONG).err())
                && is_closed(members.next().and_then(Result::err))
                && is_closed(zk.wait_connected(LONG).err())
                && zk.state() == SessionState::Closed;
            drop((guard, lock, zk));
            std::process::exit(if is_as_promised { 0 } else { 1 });
        }
        fork::Fork::Parent(child) => rustix::process::Pid::from_raw(child).unwrap(),
    };
    let mut ended = None;
    eventually(LONG, "the child's end", || {
        ended =
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::NOHANG).unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().1.exit_status(), Some(0));
    guard.ensure_held().unwrap();
    unlocked.ensure_held().unwrap();
    assert!(member.is_member() && members.is_current());
    drop(members);
    for path in [guard.path(), unlocked.path(), member.path()] {
        assert!(site.raw().exists(path).unwrap().is_some(), "{path}");
    }
    let mut children = site.raw().get_children(&site.base).unwrap();
    children.sort();
    assert_eq!(children, ["a", "c", "group"]);
    drop((guard, unlocked, member, lock));
    site.finish([zk]);
}

/// The client warns although the tick is short enough here, since it cannot know the tick.
#[test]
fn a_session_timeout_below_two_usual_ticks_is_warned_of_once() {
    skip_unless_alone!();
    skip_without_server!();
    let logs = logs(LevelFilter::Warn);
    let site = Site::own("short");
    let connect = |timeout| {
        Client::builder(site.hosts()).session_timeout(Duration::from_secs(timeout)).connect()
    };
    let warnings = || logs.warnings().iter().filter(|one| one.contains("tickTime")).count();
    let long_enough = connect(4).unwrap();
    assert_eq!(warnings(), 0, "{:?}", logs.warnings());
    let clients = [connect(3).unwrap(), connect(2).unwrap()];
    eventually(LONG, "the warning", || warnings() > 0);
    // Lines are written in their order, and a loss comes after all of this.
    drop(mutex(&clients[1], &site.base, "a").lock().unwrap());
    site.server().restart();
    eventually(LONG, "a later line", || {
        logs.warnings().iter().any(|one| one.contains("lost its connection"))
    });
    assert_eq!(warnings(), 1, "{:?}", logs.warnings());
    site.finish(clients.into_iter().chain([long_enough]));
}

/// A client behind a proxy, connected to the test's own server.
fn proxied(test: &str, timeout: Duration) -> (Site, Proxy, Client) {
    let site = Site::own(test);
    let proxy = Proxy::start(site.server().addr());
    let zk = Client::builder(&proxy.hosts()).session_timeout(timeout).connect().unwrap();
    (site, proxy, zk)
}

#[test]
fn states_are_told_in_their_order() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    use SessionState::*;
    let (site, proxy, zk) = proxied("states", Duration::from_secs(3));
    assert_eq!(zk.state(), Connected);
    let (tell, told) = mpsc::channel();
    let client = zk.clone();
    zk.on_state_change(move |state| tell.send((state, client.state())).unwrap()).detach();
    // A second listener gets the same states, and a slow one misses none.
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let (release, released) = mpsc::channel::<()>();
    zk.on_state_change(move |state| {
        let _ = released.recv();
        hears.lock().unwrap().push(state);
    })
    .detach();
    let next = || told.recv_timeout(LONG).expect("a change of state");

    proxy.refuse();
    assert_eq!(next(), (Suspended, Suspended));
    assert_eq!(zk.state(), Suspended);
    proxy.pass();
    assert_eq!(next().0, Connected);
    proxy.refuse();
    assert_eq!(next().0, Suspended);
    assert_eq!(next(), (Lost, Lost));
    assert_eq!(zk.session_id(), None);
    proxy.pass();
    works(&zk, &site);
    assert_eq!(next().0, Connected);
    zk.close();
    assert_eq!(next(), (Closed, Closed));
    drop(release);
    let all = [Suspended, Connected, Suspended, Lost, Connected, Closed];
    eventually(LONG, "the slow listener", || heard.lock().unwrap().len() == all.len());
    assert_eq!(*heard.lock().unwrap(), all);
    assert!(told.try_recv().is_err());
    site.finish([zk]);
}

#[test]
fn a_dropped_subscription_ends_and_drops_what_its_callback_owns() {
    skip_without_server!();
    let (site, proxy, zk) = proxied("subscription", Duration::from_secs(30));
    let (tell, told) = mpsc::channel();
    let (owned, kept) = (zk.clone(), tell.clone());
    let subscription = zk.on_state_change(move |state| tell.send((state, owned.state())).unwrap());
    // One that goes on in spite of a panic.
    let kept = zk.on_state_change(move |state| {
        kept.send((state, state)).unwrap();
        panic!("this callback panics");
    });
    proxy.refuse();
    let next = || told.recv_timeout(LONG).expect("a change of state").0;
    assert_eq!([next(), next()], [SessionState::Suspended; 2]);
    drop(subscription);
    proxy.pass();
    assert_eq!(next(), SessionState::Connected);
    drop(kept);
    // Both senders are gone.
    assert_eq!(told.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
    // Nor does a detached one keep the client, unless it owns one.
    zk.on_state_change(|_| {}).detach();
    let before = sessions(&site);
    drop(zk);
    eventually(LONG, "the session to be closed", || sessions(&site) < before);
    drop(proxy);
    site.finish([]);
}

#[test]
fn closing_ends_everything_at_once() {
    skip_without_server!();
    let site = Site::own("close");
    let zk = site.client();
    let lock = strict(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let lost = guard.lost();
    let waiters: Vec<_> = (0..3)
        .map(|which| {
            let lock = lock.clone();
            thread::spawn(move || match which {
                0 => lock.lock().map(Some),
                1 => lock.try_lock_for(LONG),
                _ => lock.lock_within(&zklock::Cancel::new()),
            })
        })
        .collect();
    // The holder's own node; for each waiter all nodes ahead, and its own.
    eventually(LONG, "the waiters", || zk.stats().watches == 1 + 2 + 3 + 4);
    assert_eq!(site.server().counter("zk_ephemerals_count"), 4);
    let started = Stopwatch::start();
    zk.close();
    let took = started.took();
    // Checked without waiting: when `close` returns, the server has ended the session.
    assert_eq!(site.server().counter("zk_ephemerals_count"), 0);
    assert_eq!(sessions(&site), 0);
    assert!(took.within(Duration::from_secs(1)), "{took:?}");
    assert_eq!(zk.state(), SessionState::Closed);
    assert_eq!(zk.session_id(), None);
    assert!(!guard.is_held());
    assert_eq!(lost.wait(), Err(LossReason::ClientClosed));
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
    assert!(started.took().within(Duration::from_secs(3)));
    zk.close();
    assert_eq!(zk.state(), SessionState::Closed);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.try_lock().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.contenders().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::Closed);
    eventually(LONG, "the connection's end", || {
        site.server().counter("zk_num_alive_connections") <= 1
    });
    drop(lock);
    site.finish([zk]);
}

#[test]
fn closing_without_a_server_takes_a_second_at_most() {
    skip_without_server!();
    for outage in ["refused", "silent"] {
        let (site, proxy, zk) = proxied("close-outage", Duration::from_secs(3));
        let lock = mutex(&zk, &site.base, "a");
        let guard = lock.lock().unwrap();
        let waiter = waiting(move || lock.lock().map(drop));
        eventually(LONG, "the waiter", || zk.stats().watches == 2);
        if outage == "refused" {
            proxy.refuse()
        } else {
            proxy.black_hole()
        }
        let started = Stopwatch::start();
        zk.close();
        let took = started.took();
        assert!(took.within(Duration::from_millis(1500)), "{outage}: {took:?}");
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        drop(guard);
        proxy.pass();
        // The server expires what could not be closed.
        eventually(LONG, "the session's end", || sessions(&site) == 0);
        site.finish([zk]);
    }
}

#[test]
fn the_last_client_dropped_closes_the_session() {
    skip_without_server!();
    let site = Site::own("last");
    let zk = Client::builder(site.hosts()).session_timeout(Duration::from_secs(30)).connect();
    let zk = zk.unwrap();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let (other, lock) = (zk.clone(), mutex(&zk, &site.base, "a"));
    drop(zk);
    drop(lock);
    drop(other);
    // The guard keeps it open.
    guard.ensure_held().unwrap();
    assert_eq!(sessions(&site), 1);
    let started = Stopwatch::start();
    drop(guard);
    assert!(started.took().within(Duration::from_secs(1)), "{:?}", started.took());
    eventually(Duration::from_secs(1), "the session's end", || sessions(&site) == 0);

    let zk = site.client();
    let lock = mutex(zk, &site.base, "a");
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(sessions(&site), 1);
    drop(lock);
    eventually(Duration::from_secs(1), "the session's end", || sessions(&site) == 0);
    site.finish([]);
}

#[test]
fn a_lost_session_is_followed_by_one_new_one_for_all_callers() {
    skip_without_server!();
    const CALLERS: usize = 16;
    let (site, proxy, zk) = proxied("one", Duration::from_secs(3));
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let first = zk.session_id().unwrap();
    proxy.black_hole();
    assert_eq!(guard.lost().wait_within(LONG), Some(Err(LossReason::LeaseExpired)));
    proxy.pass();
    eventually(LONG, "the old session's end", || sessions(&site) == 0);
    eventually(LONG, "the old connection's end", || proxy.live_connections() == 0);
    assert_eq!(zk.state(), SessionState::Lost);

    let before = proxy.connections();
    let start = Barrier::new(CALLERS);
    let most = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                start.wait();
                let guard = lock.lock().unwrap();
                most.fetch_max(sessions(&site) as usize, Ordering::SeqCst);
                guard.unlock().unwrap();
            });
        }
    });
    assert_eq!(most.into_inner(), 1);
    assert_eq!(proxy.connections(), before + 1);
    assert_ne!(zk.session_id(), Some(first));
    assert_eq!(zk.state(), SessionState::Connected);
    drop((guard, lock));
    site.finish([zk]);
}

#[test]
fn callers_during_the_outage_share_the_new_session_too() {
    skip_without_server!();
    const CALLERS: usize = 16;
    let (site, proxy, zk) = proxied("one-outage", Duration::from_secs(3));
    let lock = mutex(&zk, &site.base, "a");
    works(&zk, &site);
    proxy.refuse();
    eventually(LONG, "the loss", || zk.state() == SessionState::Lost);
    let most = AtomicUsize::new(0);
    thread::scope(|scope| {
        let call = || {
            let guard = lock.lock().unwrap();
            most.fetch_max(sessions(&site) as usize, Ordering::SeqCst);
            guard.unlock().unwrap();
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
        eventually(LONG, "the old session's end", || sessions(&site) == 0);
        let before = proxy.connections();
        proxy.pass();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(most.load(Ordering::SeqCst), 1);
        // One connection for the new session, and at most one by which the old link learns that its
        // session is over.
        let made = proxy.connections() - before;
        assert!((1..=2).contains(&made), "{made} connections");
    });
    drop(lock);
    site.finish([zk]);
}

/// In milliseconds: the tick that is stated, and for how long an outage is survived; the session timeout is
/// 10 s, and the servers tick every 200 ms.
#[test]
fn an_outage_limit_follows_from_the_tick_that_is_stated() {
    skip_without_server!();
    let site = Site::own("outage-limit");
    let builder = || site.builder().session_timeout(Duration::from_secs(10));
    let unstated = builder().connect().unwrap();
    assert_eq!(unstated.tick_time(), Some(Duration::from_secs(3)));
    let mut clients = vec![unstated];
    for (tick, limit) in [(3_000, 4_326), (2_000, 5_555), (200, 7_777)] {
        let stated = Duration::from_millis(tick);
        let zk = builder().tick_time(stated).connect().unwrap();
        assert_eq!(zk.tick_time(), Some(stated));
        assert_eq!(zk.outage_limit().unwrap().as_millis(), limit);
        clients.push(zk);
    }
    assert_eq!(clients[0].outage_limit(), clients[1].outage_limit());
    site.finish(clients);
}

#[test]
fn a_tick_that_is_too_long_for_the_session_timeout_is_no_outage() {
    skip_without_server!();
    let site = Site::own("too-long-a-tick");
    let timeout = Duration::from_secs(4);
    let zk = site.builder().session_timeout(timeout).tick_time(timeout).lazy().unwrap();
    let error = mutex(&zk, &site.base, "a").lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("tickTime is 4s, as is stated"), "{error}");
    assert!(!error.is_outage());
    drop(zk);
    site.finish([]);
}
