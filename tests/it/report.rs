//! What a client reports to the program, and how a client starts.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use log::LevelFilter;
use zklock::{
    Cancel, Client, DistributedLock, DistributedRwLock, ErrorKind, Event, LossReason, SessionState,
};

use crate::support::logs::logs;
use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{
    eventually, is_unanswered, kind, skip_before, skip_unless_alone, skip_without_server,
    skip_without_zookeeper, waiting,
};

const SOON: Duration = Duration::from_secs(15);
const T: Duration = Duration::from_secs(4);

fn reporting(hosts: &str) -> (Client, Receiver<Event>) {
    let (tell, told) = mpsc::channel();
    let builder = Client::builder(hosts).session_timeout(T);
    let zk = builder.on_event(move |event| tell.send(event.clone()).unwrap()).connect().unwrap();
    (zk, told)
}

fn next(told: &Receiver<Event>) -> Event {
    told.recv_timeout(SOON).expect("an event")
}

#[test]
fn the_life_of_a_lock_is_reported_in_order() {
    skip_without_zookeeper!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::shared("events");
    let (zk, told) = reporting(site.hosts());
    let path = format!("{}/a", site.base);
    let connected = next(&told);
    let Event::Connected { session, timeout, server, .. } = connected else {
        panic!("{connected}")
    };
    assert_eq!((session, timeout), (zk.session_id(), zk.session_timeout()));
    let session = session.unwrap();
    assert_eq!(server.unwrap().to_string(), site.hosts());
    let line = format!(
        "session {session} opened at {}, with a timeout of {:?}",
        site.hosts(),
        timeout.unwrap()
    );
    assert_eq!(connected.to_string(), line);
    let lock = DistributedLock::new(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let acquired = next(&told);
    let Event::Acquired { lock: name, token, is_local: false, what: "lock", thread, .. } =
        &acquired
    else {
        panic!("{acquired:?}")
    };
    assert_eq!((name, *token), (&path, guard.fencing_token()));
    assert_eq!(*thread, thread::current().id());
    let sibling = {
        let lock = lock.clone();
        waiting(move || drop(lock.lock().unwrap()))
    };
    let Event::Waiting { lock: waited_for, ahead: 0, holder: None, thread, .. } = next(&told)
    else {
        panic!("a thread of this process is waited for")
    };
    assert_eq!((waited_for, thread), (path.clone(), sibling.thread().id()));
    drop(guard);
    sibling.join().unwrap();
    let (released, acquired) = match (next(&told), next(&told)) {
        (released @ Event::Released { .. }, acquired) => (released, acquired),
        // The sibling may report first.
        (acquired, released) => (released, acquired),
    };
    assert!(matches!(&released, Event::Released { lock, .. } if *lock == path), "{released:?}");
    assert!(matches!(acquired, Event::Acquired { is_local: true, .. }), "{acquired:?}");
    assert!(matches!(next(&told), Event::Released { .. }));
    // Another client's lock is waited for.
    let other = site.client();
    let theirs = DistributedLock::new(&other, &site.base, "a").lock().unwrap();
    assert!(lock.try_lock_for(Duration::from_secs(1)).unwrap().is_none());
    let Event::Waiting { lock: waited_for, ahead: 1, holder, .. } = next(&told) else {
        panic!("another client's lock is waited for")
    };
    assert_eq!((waited_for, holder.as_deref()), (path.clone(), Some(theirs.path())));
    let not_acquired = next(&told);
    let Event::NotAcquired { lock: wanted, what: "lock", error: None, thread, waited, .. } =
        &not_acquired
    else {
        panic!("{not_acquired:?}")
    };
    assert_eq!((wanted, *thread), (&path, thread::current().id()));
    assert!(*waited >= Duration::from_secs(1), "{waited:?}");
    assert!(not_acquired.to_string().ends_with(": others have it"), "{not_acquired}");
    let cancel = Cancel::new();
    cancel.cancel();
    assert_eq!(kind(lock.lock_within(&cancel)), ErrorKind::Cancelled);
    let cancelled = next(&told);
    let Event::NotAcquired { error: Some(ErrorKind::Cancelled), .. } = cancelled else {
        panic!("{cancelled:?}")
    };
    drop(theirs);
    drop(lock);
    zk.close();
    assert_eq!(next(&told), Event::Closed);
    site.finish([zk, other]);
}

#[test]
fn an_outage_and_a_loss_are_reported() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("events-outage");
    let proxy = Proxy::start(site.server().addr());
    let (zk, told) = reporting(&proxy.hosts());
    assert!(matches!(next(&told), Event::Connected { .. }));
    let lock = DistributedLock::new(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    assert!(matches!(next(&told), Event::Acquired { .. }));
    proxy.cut();
    let suspended = next(&told);
    let Event::Suspended { lease_left: Some(left), session, .. } = suspended else {
        panic!("{suspended:?}")
    };
    assert!(left > Duration::ZERO && left <= T, "{left:?}");
    assert!(session.is_some() && session == zk.session_id());
    assert!(matches!(next(&told), Event::Resumed { .. }));
    assert!(guard.is_held());
    proxy.refuse();
    assert!(matches!(next(&told), Event::Suspended { .. }));
    // The loss of the session and that of its lock, in either order.
    let mut lost = [next(&told), next(&told)];
    lost.sort_by_key(|event| matches!(event, Event::HoldLost { .. }));
    let [session_lost, lock_lost] = lost;
    let Event::SessionLost { session: of, reason: LossReason::LeaseExpired, .. } = session_lost
    else {
        panic!("{session_lost:?}")
    };
    assert_eq!(of, session);
    let Event::HoldLost { lock: name, node, what: "lock", reason, held: Some(_), .. } = &lock_lost
    else {
        panic!("{lock_lost:?}")
    };
    assert_eq!(node, guard.path());
    assert_eq!((name, *reason), (&format!("{}/a", site.base), LossReason::LeaseExpired));
    let text = lock_lost.to_string();
    assert!(text.starts_with(&format!("lock lost: {reason}: the connection to ")), "{text}");
    assert!(text.ends_with(&format!(" (node {node:?})")), "{text}");
    drop(guard);
    proxy.pass();
    drop(lock.lock().unwrap());
    assert!(matches!(next(&told), Event::Connected { .. }));
    let mut acquired = next(&told);
    // The old session's node may still be in the way.
    if matches!(acquired, Event::Waiting { .. }) {
        acquired = next(&told);
    }
    assert!(matches!(acquired, Event::Acquired { .. }), "{acquired:?}");
    assert!(matches!(next(&told), Event::Released { .. }), "the lost hold is not released");
    drop(lock);
    site.finish([zk]);
}

/// A server that answers, but passes no heartbeat on.
#[test]
fn a_loss_by_refused_heartbeats_is_told_as_that_and_warned_of_once() {
    skip_without_server!();
    skip_unless_alone!();
    let logs = logs(LevelFilter::Warn);
    let site = Site::own("events-refused");
    let proxy = Proxy::start(site.server().addr());
    let (zk, told) = reporting(&proxy.hosts());
    let lock = DistributedLock::new(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    proxy.throttle_share(opcode::SYNC, 100);
    let lost = std::iter::from_fn(|| Some(next(&told)))
        .find(|event| matches!(event, Event::HoldLost { .. }))
        .expect("a loss");
    let cause = format!("{} has refused all heartbeats since ", proxy.addr());
    assert!(lost.to_string().contains(&cause), "{lost}");
    let error = guard.ensure_held().unwrap_err().to_string();
    assert!(error.contains(&cause), "{error}");
    let is_of_this = |text: &String| text.contains("refuses to pass");
    let warned = || logs.warnings().iter().filter(|text| is_of_this(text)).count();
    eventually(SOON, "the warning", || warned() > 0);
    assert_eq!(warned(), 1);
    assert!(proxy.throttled() > 1, "{} heartbeats were refused", proxy.throttled());
    drop((guard, lock));
    site.finish([zk]);
}

#[test]
fn the_log_says_what_the_program_is_told() {
    skip_without_server!();
    skip_unless_alone!();
    let logs = logs(LevelFilter::Debug);
    let site = Site::own("events-log");
    let proxy = Proxy::start(site.server().addr());
    let (zk, told) = reporting(&proxy.hosts());
    let lock = DistributedLock::new(&zk, &site.base, "a");
    lock.lock().unwrap().unlock().unwrap();
    let guard = lock.lock().unwrap();
    proxy.cut();
    let mut events = vec![];
    while !matches!(events.last(), Some(Event::Resumed { .. })) {
        events.push(next(&told));
    }
    site.raw().delete(guard.path()).unwrap();
    while !matches!(events.last(), Some(Event::HoldLost { .. })) {
        events.push(next(&told));
    }
    drop((guard, lock));
    zk.close();
    site.finish([zk]);
    events.extend(told.iter());
    let mut events: Vec<_> = events.iter().map(Event::to_string).collect();
    let of_events = ["zklock::contend", "zklock::hold", "zklock::client", "zklock::reaper"];
    let logged = logs.take().into_iter().filter(|entry| of_events.contains(&&*entry.target));
    let mut lines: Vec<_> = logged.map(|entry| entry.text).collect();
    // Two threads may log two events in either order.
    events.sort();
    lines.sort();
    assert_eq!(lines, events);
}

#[test]
fn a_lazy_client_connects_with_its_first_call() {
    skip_without_server!();
    let site = Site::own("lazy");
    let proxy = Proxy::start(site.server().addr());
    proxy.refuse();
    let builder = Client::builder(&proxy.hosts()).connect_timeout(Duration::from_millis(300));
    let zk = builder.lazy().unwrap();
    assert_eq!((zk.session_id(), zk.state()), (None, SessionState::Lost));
    let lock = DistributedLock::new(&zk, &site.base, "a");
    assert!(is_unanswered(lock.try_lock()));
    proxy.pass();
    drop(lock.lock().unwrap());
    assert_eq!(zk.state(), SessionState::Connected);
    assert_eq!(kind(Client::builder("").lazy()), ErrorKind::InvalidName);
    // A call whose time is over before an attempt has failed says what went wrong with it so far.
    let refused = Client::builder("127.0.0.1:1").connect_within(Duration::from_secs(1));
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("there is no session (127.0.0.1:1: "), "{error}");
    let never = Duration::ZERO;
    let refused = Client::builder("localhost").session_timeout(never).lazy();
    assert_eq!(kind(refused), ErrorKind::InvalidArgument);
    drop(lock);
    site.finish([zk]);
}

#[test]
fn connecting_can_be_cancelled() {
    skip_without_server!();
    let site = Site::own("connect-cancel");
    let proxy = Proxy::start(site.server().addr());
    proxy.hold();
    let (cancel, hosts) = (Cancel::new(), proxy.hosts());
    let connects = {
        let cancel = cancel.clone();
        waiting(move || kind(Client::builder(&hosts).connect_within(&cancel)))
    };
    assert!(!connects.is_finished());
    cancel.cancel();
    assert_eq!(connects.join().unwrap(), ErrorKind::Cancelled);
    proxy.pass();
    let zk = Client::builder(&proxy.hosts()).connect_within(&Cancel::new()).unwrap();
    assert_eq!(zk.state(), SessionState::Connected);
    assert_eq!(proxy.count(opcode::CREATE), 0);
    site.finish([zk]);
}

/// Waiting for the connection ends with it, with the reason why there is none, or with the token.
#[test]
fn a_program_waits_for_the_connection() {
    skip_without_server!();
    let site = Site::own("wait-connected");
    let proxy = Proxy::start(site.server().addr());
    proxy.refuse();
    let zk = Client::builder(&proxy.hosts()).session_timeout(SOON).lazy().unwrap();
    let cancel = Cancel::new();
    let waits = || {
        let (zk, cancel) = (zk.clone(), cancel.clone());
        waiting(move || zk.wait_connected(&cancel))
    };
    for state in [SessionState::Lost, SessionState::Suspended] {
        assert_eq!(zk.state(), state);
        let error = zk.wait_connected(Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        assert!(error.to_string().contains(&proxy.hosts()), "{error}");
        let waits = waits();
        proxy.pass();
        waits.join().unwrap().unwrap();
        assert_eq!(zk.state(), SessionState::Connected);
        zk.wait_connected(Duration::ZERO).unwrap();
        let tripped = Cancel::new();
        tripped.cancel();
        assert_eq!(kind(zk.wait_connected(&tripped)), ErrorKind::Cancelled);
        proxy.refuse();
        eventually(SOON, "the loss of the connection", || zk.state() == SessionState::Suspended);
    }
    let cancelled = waits();
    cancel.cancel();
    assert_eq!(kind(cancelled.join().unwrap()), ErrorKind::Cancelled);
    proxy.pass();
    zk.close();
    assert_eq!(kind(zk.wait_connected(SOON)), ErrorKind::Closed);
    site.finish([]);
}

/// A release that the server does not answer goes on in the background, and the program is told.
#[test]
fn a_deletion_that_goes_on_in_the_background_is_reported() {
    skip_without_server!();
    let site = Site::own("pending");
    let proxy = Proxy::start(site.server().addr());
    let (zk, told) = reporting(&proxy.hosts());
    let guard = DistributedLock::new(&zk, &site.base, "a").lock().unwrap();
    let path = guard.path().to_owned();
    proxy.hold();
    assert!(!guard.unlock_within(Duration::from_millis(100)).unwrap());
    let mut pending = std::iter::repeat_with(|| match next(&told) {
        Event::CleanupPending { path, .. } => Some(path),
        _ => None,
    });
    assert_eq!(pending.find_map(|path| path).as_ref(), Some(&path));
    proxy.pass();
    site.wait_for_children("a", 0);
    let mut ended = std::iter::repeat_with(|| match next(&told) {
        Event::CleanupEnded { path, .. } => Some(path),
        _ => None,
    });
    assert_eq!(ended.find_map(|path| path), Some(path));
    site.finish([zk]);
}

/// What is to be deleted when the session ends is no longer pending.
#[test]
fn a_deletion_that_is_pending_ends_with_the_session() {
    skip_without_server!();
    let site = Site::own("pending-lost");
    let proxy = Proxy::start(site.server().addr());
    let (zk, told) = reporting(&proxy.hosts());
    let guard = DistributedLock::new(&zk, &site.base, "a").lock().unwrap();
    let path = guard.path().to_owned();
    proxy.refuse();
    eventually(SOON, "the loss of the connection", || zk.state() != SessionState::Connected);
    drop(guard);
    let mut events = std::iter::repeat_with(|| next(&told));
    let pending = events.find(|event| matches!(event, Event::CleanupPending { .. }));
    assert_eq!(pending.map(|event| event.to_string().starts_with(&path)), Some(true));
    let ended = events.find(|event| matches!(event, Event::CleanupEnded { .. }));
    assert_eq!(ended.map(|event| event.to_string().starts_with(&path)), Some(true));
    site.finish([zk]);
}

/// Threads take a lock from each other while others delete its nodes: each hold that is reported ends once, by its
/// release or its loss.
#[test]
fn each_hold_that_is_reported_ends_exactly_once() {
    skip_without_zookeeper!();
    let site = Site::shared("events-once");
    let (zk, told) = reporting(site.hosts());
    let other = site.client();
    let lock = DistributedLock::new(&zk, &site.base, "a").keep_for(Duration::from_millis(5));
    let seen = DistributedLock::new(&other, &site.base, "a");
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| (0..100).for_each(|_| drop(lock.lock().unwrap()))))
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            if let Some(holder) = seen.holder().unwrap() {
                seen.break_lock(&holder).unwrap();
            }
        }
    });
    let shared = DistributedRwLock::new(&zk, &site.base, "b");
    let read = shared.write().unwrap().downgrade().unwrap();
    other.znode(read.path()).delete().unwrap();
    eventually(SOON, "the loss of the reader's node", || !read.is_held());
    drop(read);
    drop(shared.write().unwrap().downgrade().unwrap());
    drop(lock);
    zk.close();
    let (mut acquired, mut ended, mut lost) = (0, 0, 0);
    loop {
        match next(&told) {
            Event::Acquired { .. } => acquired += 1,
            Event::Released { .. } => ended += 1,
            Event::HoldLost { held: Some(_), .. } => (ended, lost) = (ended + 1, lost + 1),
            Event::Closed => break,
            _ => {}
        }
        assert!(ended <= acquired, "{ended} of {acquired} have ended");
    }
    assert_eq!((acquired, ended), (302, 302));
    assert!(lost > 0);
    drop((seen, shared));
    site.finish([zk, other]);
}
