//! Clients that use a program's own handle of the `zookeeper` crate: what they guarantee without
//! the library's own connection.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use zklock::commit::{Decision, Vote};
use zklock::maintenance::MaintenanceEnd;
use zklock::zookeeper::{Acl, CreateMode, WatchedEvent, ZkState, ZooKeeper};
use zklock::{
    Barrier, Cancel, Client, DistributedLock, DistributedQueue, ErrorKind, Group, LockGuard,
    LossReason, SessionState, SharedValue, TwoPhaseCommit, znode,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    eventually, got_nothing, in_background, is_unanswered, mutex, nodes_of, skip_before,
    skip_without_server, skip_without_zookeeper, strict, waiting,
};

const T: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(20);

fn plain(hosts: &str) -> Arc<ZooKeeper> {
    plain_for(hosts, T)
}

fn plain_for(hosts: &str, timeout: Duration) -> Arc<ZooKeeper> {
    let handle = ZooKeeper::connect(hosts, timeout, |_: WatchedEvent| ()).expect("a handle");
    handle.exists("/", false).expect("a connection");
    Arc::new(handle)
}

/// A plain handle behind a faulty network, connected to the test's own server.
struct Rig {
    site: Site,
    proxy: Proxy,
    handle: Arc<ZooKeeper>,
    zk: Client,
}

impl Rig {
    fn new(test: &str) -> Rig {
        Rig::with(test, T)
    }

    fn with(test: &str, timeout: Duration) -> Rig {
        let site = Site::own(test);
        let proxy = Proxy::start(site.server().addr());
        let handle = plain_for(&proxy.hosts(), timeout);
        let zk = Client::from(&handle);
        Rig { site, proxy, handle, zk }
    }

    fn lock(&self) -> DistributedLock {
        mutex(&self.zk, &self.site.base, "a")
    }

    fn wait_for_contenders(&self, count: usize) {
        eventually(LONG, "contenders", || self.site.children("a").len() == count);
    }

    fn finish(self) {
        let Rig { site, proxy: _proxy, handle, zk } = self;
        zk.close();
        drop((handle, zk));
        site.finish([]);
    }
}

/// Like `in_background`, but returns only once the job waits.
fn waits<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (tell, told) = mpsc::channel();
    drop(waiting(move || tell.send(job())));
    told
}

fn losses(guard: &LockGuard) -> Receiver<LossReason> {
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |why| {
        let _ = tell.send(why);
    });
    told
}

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

#[test]
fn s22_a_handle_that_the_program_closes_ends_all() {
    skip_without_server!();
    let rig = Rig::new("borrowed-s22");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let (lost, also) = (losses(&guard), lock.clone());
    let waiter = waits(move || also.lock());
    rig.wait_for_contenders(nodes_of(2));
    rig.handle.close().unwrap();
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::ClientClosed));
    assert!(!guard.is_held());
    let error = waiter.recv_timeout(LONG).expect("an end of the wait").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.try_lock().unwrap_err().kind(), ErrorKind::Closed);
    // Closed before the lock was first used.
    let late = mutex(&rig.handle, &rig.site.base, "a");
    assert_eq!(late.lock().unwrap_err().kind(), ErrorKind::Closed);
    rig.wait_for_contenders(0);
    drop((guard, lock, late));
    rig.finish();
}

/// A panic in the program's listener ends the crate's thread, without notice.
#[test]
fn h14_a_handle_that_has_died_is_closed() {
    skip_without_server!();
    let rig = Rig::new("borrowed-h14");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let lost = losses(&guard);
    rig.handle.add_listener(|state| assert_ne!(state, ZkState::Connecting, "on purpose"));
    rig.proxy.cut();
    // The crate reports nothing; only a request finds out.
    let error = guard.ensure_held().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::ClientClosed));
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Closed);
    drop((guard, lock));
    let Rig { site, proxy: _proxy, handle, zk } = rig;
    drop((handle, zk));
    eventually(LONG, "the session to expire", || site.children("a").is_empty());
    site.finish([]);
}

#[test]
fn s22_closing_the_client_deletes_its_nodes_and_leaves_the_handle() {
    skip_without_server!();
    let rig = Rig::new("borrowed-closed");
    let (lock, other) = (rig.lock(), rig.site.client());
    let guard = lock.lock().unwrap();
    let (lost, also) = (losses(&guard), lock.clone());
    let waiter = waits(move || also.lock());
    rig.wait_for_contenders(nodes_of(2));
    let node = format!("{}/of-the-program", rig.site.base);
    let acl = Acl::open_unsafe().clone();
    let mode = CreateMode::Ephemeral;
    rig.handle.create(&node, Vec::new(), acl, mode).unwrap();

    rig.zk.close();
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::ClientClosed));
    assert_eq!(waiter.recv_timeout(LONG).unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Closed);
    let successor = mutex(&other, &rig.site.base, "a").lock().unwrap();
    assert!(rig.handle.exists(&node, false).unwrap().is_some(), "the handle's session goes on");
    successor.unlock().unwrap();
    // Another client of the same handle.
    let again = mutex(&rig.handle, &rig.site.base, "a");
    again.lock().unwrap().unlock().unwrap();
    rig.handle.delete(&node, None).unwrap();
    drop((guard, lock, again, other));
    rig.finish();
}

#[test]
fn the_last_owner_closes_the_handle() {
    skip_without_server!();
    let site = Site::own("borrowed-last");
    let handle = Arc::into_inner(plain(site.hosts())).expect("the only reference");
    let lock = mutex(handle, &site.base, "a");
    let guard = lock.lock().unwrap();
    drop(lock);
    guard.ensure_held().unwrap();
    drop(guard);
    eventually(LONG, "the session to end", || {
        let mut raw = site.raw();
        let ephemerals = site.server().counter("zk_ephemerals_count");
        raw.ping().unwrap();
        ephemerals == 0
    });
    site.finish([]);
}

#[test]
fn s12_a_handle_with_a_chroot() {
    skip_without_server!();
    let site = Site::own("borrowed-chroot");
    let mut raw = site.raw();
    raw.create_all(&format!("{}/root", site.base)).unwrap();
    raw.create(&format!("{}/root/x", site.base), b"", Kind::Persistent).unwrap();
    let handle =
        ZooKeeper::connect(&format!("{}{}/root", site.hosts(), site.base), T, |_: WatchedEvent| ());
    let zk = Client::from(Arc::new(handle.unwrap()));
    let guard = mutex(&zk, "/x", "a").lock().unwrap();
    assert!(guard.path().starts_with("/x/a/_c_"), "{}", guard.path());
    let also = mutex(&zk, "/x", "a");
    let waiter = waits(move || also.lock());
    eventually(LONG, "two contenders", || site.children("root/x/a").len() == nodes_of(2));
    let lost = losses(&guard);
    raw.delete(&format!("{}/root{}", site.base, guard.path())).unwrap();
    assert_eq!(lost.recv_timeout(LONG), Ok(LossReason::NodeDeleted));
    waiter.recv_timeout(LONG).unwrap().unwrap().unlock().unwrap();
    drop(guard);
    site.finish([zk]);
}

/// A client of a handle whose chroot is `base` + `chroot`, through this proxy.
fn below(site: &Site, proxy: &Proxy, chroot: &str) -> Client {
    site.raw().create_all(&site.base).unwrap();
    let hosts = format!("{}{}{chroot}", proxy.hosts(), site.base);
    let handle = ZooKeeper::connect(&hosts, T, |_: WatchedEvent| ()).expect("a handle");
    handle.exists("/", false).expect("a connection");
    Client::from(handle)
}

#[test]
fn a_chroot_that_is_missing_is_made_with_the_first_node() {
    skip_without_server!();
    let site = Site::own("adopted-no-chroot");
    let proxy = Proxy::start(site.server().addr());
    for made in ["lock", "node"] {
        let zk = below(&site, &proxy, &format!("/{made}"));
        match made {
            "lock" => {
                mutex(&zk, "/locks", "a").try_lock().unwrap().expect("free").unlock().unwrap()
            }
            _ => {
                let node = zk.znode("/locks");
                node.create_with_parents(znode::CreateMode::Persistent, "").unwrap();
            }
        }
        assert_eq!(site.children(made), ["locks"]);
        zk.close();
    }
    site.finish([]);
}

/// The crate puts the chroot in front of every path, so it cannot make what is above it.
#[test]
fn a_chroot_that_cannot_be_made_is_an_error_at_once() {
    skip_without_server!();
    let site = Site::own("adopted-deep-chroot");
    let proxy = Proxy::start(site.server().addr());
    let zk = below(&site, &proxy, "/missing/chroot");
    proxy.reset_counts();
    let lock = mutex(&zk, "/locks", "a");
    let stopwatch = Stopwatch::start();
    let refused = |made: zklock::Result<()>| {
        let error = made.expect_err("no node can be made");
        let text = error.to_string();
        assert!(!error.is_outage() && !error.is_retryable(), "{text}");
        assert!(text.contains("the handle's chroot"), "{text}");
    };
    refused(lock.try_lock().map(drop));
    refused(lock.lock().map(drop));
    refused(lock.hold_for_maintenance("disk", MaintenanceEnd::Never, LONG).map(drop));
    for (path, mode) in
        [("/a/b", znode::CreateMode::Ephemeral), ("/a", znode::CreateMode::Persistent)]
    {
        refused(zk.znode(path).create_with_parents(mode, "").map(drop));
    }
    refused(Group::new(&zk, "/groups", "g").join("me", "").map(drop));
    refused(DistributedQueue::new(&zk, "/queues", "q").offer("item").map(drop));
    refused(Barrier::new(&zk, "/barriers", "b").raise().map(drop));
    refused(SharedValue::new(&zk, "/values", "v").set("value").map(drop));
    let took = stopwatch.took();
    assert!(took.within(Duration::from_secs(5)), "{took:?}");
    let requests = proxy.total_requests();
    assert!(requests < 100, "{requests} requests");
    assert!(lock.contenders().unwrap().is_empty());
    // When somebody has made it, all works.
    site.raw().create_all(&format!("{}/missing/chroot", site.base)).unwrap();
    lock.try_lock().unwrap().expect("free").unlock().unwrap();
    drop(lock);
    site.finish([zk]);
}

/// The crate cuts the chroot off the events' paths, and looks for the watchers of "", not of "/".
#[test]
fn below_a_chroot_who_observes_the_root_sees_each_change() {
    skip_without_server!();
    let site = Site::own("adopted-root");
    let proxy = Proxy::start(site.server().addr());
    let mut raw = site.raw();
    let root = format!("{}/root", site.base);
    raw.create_all(&root).unwrap();
    let zk = below(&site, &proxy, "/root");
    let (mut data, mut names) = (zk.znode("/").observe(), zk.znode("/").observe_children());
    assert!(data.next_within(LONG).unwrap().expect("the first").expect("a node").data.is_empty());
    assert_eq!(names.next_within(LONG).unwrap(), Some(Some(vec![])));
    for round in ["1", "2", "3"] {
        raw.set_data(&root, round.as_bytes()).unwrap();
        // A look that comes first.
        assert!(zk.znode("/").observe_children().next_within(LONG).unwrap().is_some());
        let seen = data.next_within(LONG).unwrap().expect("the change").expect("a node");
        assert_eq!(seen.data, round.as_bytes());
        raw.create(&format!("{root}/{round}"), b"", Kind::Persistent).unwrap();
        let seen = names.next_within(LONG).unwrap().expect("the change").expect("a node");
        assert_eq!(seen.last().map(String::as_str), Some(round));
    }
    // No other look comes first: these two are up to date.
    assert!(data.next_within(Duration::from_millis(50)).unwrap().is_none());
    assert!(names.next_within(Duration::from_millis(50)).unwrap().is_none());
    raw.set_data(&root, b"last").unwrap();
    let seen = data.next_within(LONG).unwrap().expect("the change").expect("a node");
    assert_eq!(seen.data, b"last");
    raw.delete(&format!("{root}/2")).unwrap();
    let seen = names.next_within(LONG).unwrap().expect("the change").expect("a node");
    assert_eq!(seen, ["1", "3"]);
    drop((data, names));
    // Nobody observes it any more, so nobody asks for it.
    let mut other = zk.znode("/1").observe();
    assert!(other.next_within(LONG).unwrap().is_some());
    proxy.reset_counts();
    assert!(other.next_within(Duration::from_secs(3)).unwrap().is_none());
    let looks = proxy.count(opcode::EXISTS);
    assert!(looks <= 1, "{looks} looks");
    drop(other);
    site.finish([zk]);
}

/// The crate keeps a watcher forever if its event was lost with a connection.
#[test]
fn h16_watchers_that_nothing_will_call_are_cleared_away() {
    skip_before!(3, 5, "cannot remove watches");
    const REMOVE_WATCHES: i32 = 18;
    skip_without_server!();
    // A cut closes a handle that was busy for longer than its timeout.
    let rig = Rig::with("borrowed-h16", T * 4);
    let hold = |name: usize| mutex(&rig.zk, &rig.site.base, name.to_string());
    let guards: Vec<_> = (0..260).map(|name| hold(name).lock().unwrap()).collect();
    eventually(LONG, "all watches", || rig.site.server().counter("zk_watch_count") == 260);
    let mut raw = rig.site.raw();
    // The events are lost with the connection. The next connection is made at once: an outage would
    // end the handle.
    rig.proxy.black_hole();
    raw.delete_together(guards.iter().map(|guard| guard.path())).unwrap();
    rig.proxy.cut();
    assert!(rig.proxy.wait_for_requests(REMOVE_WATCHES, 256, LONG));
    eventually(LONG, "all losses", || !guards.iter().any(|guard| guard.is_held()));
    drop(guards);

    // Nothing else was lost.
    let (guard, lock) = (hold(0).lock().unwrap(), hold(0));
    let waiter = waits(move || lock.lock());
    eventually(LONG, "two contenders", || rig.site.children("0").len() == nodes_of(2));
    guard.unlock().unwrap();
    waiter.recv_timeout(LONG).expect("the waiter's turn").unwrap().unlock().unwrap();
    rig.finish();
}

/// The crate tells it only of events for which there is no other watcher.
#[test]
fn the_handles_default_watcher_hears_of_the_programs_own_nodes() {
    skip_without_zookeeper!();
    let site = Site::shared("borrowed-default");
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let watcher = move |event: WatchedEvent| {
        let _ = tell.lock().unwrap().send(event.path);
    };
    let handle = Arc::new(ZooKeeper::connect(site.hosts(), T, watcher).unwrap());
    let zk = Client::from(&handle);
    let node = zk.znode(format!("{}/node-", site.base));
    let made = node.create_with_parents(znode::CreateMode::EphemeralSequential, "").unwrap();
    handle.get_data(made.path(), true).unwrap();
    site.raw().delete(made.path()).unwrap();
    assert_eq!(told.recv_timeout(LONG), Ok(Some(made.path().to_owned())));
    drop((node, made));
    zk.close();
    drop((handle, zk));
    site.finish([]);
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

/// Data beside the locks; what needs a transaction is refused before anything is done.
#[test]
fn nodes_are_read_and_written_and_transactions_are_refused() {
    skip_without_zookeeper!();
    let site = Site::shared("adopted-znode");
    let handle = plain(site.hosts());
    let zk = Client::from(&handle);
    let node = zk.znode(format!("{}/node", site.base));
    node.create_with_parents(znode::CreateMode::Persistent, "one").unwrap();
    let first = node.read().unwrap().unwrap();
    let second = node.write_if_unchanged(first.version, "two").unwrap().expect("unchanged");
    assert_eq!(node.write_if_unchanged(first.version, "three").unwrap(), None);
    assert!(!node.delete_if_unchanged(first.version).unwrap());
    let acl = node.acl().unwrap().unwrap();
    node.set_acl(acl.clone()).unwrap();
    assert_eq!(acl, [zklock::Acl::open()]);
    assert_eq!(node.stat().unwrap().unwrap().version, second);
    let kind = |error: zklock::Error| error.kind();
    let commit = zk.transaction().delete(node.path()).commit();
    assert_eq!(commit.map_err(kind).err(), Some(ErrorKind::Unsupported));
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let commit = guard.transaction().delete(node.path()).commit();
    assert_eq!(commit.map_err(kind).err(), Some(ErrorKind::Unsupported));
    let once = zklock::Once::new(&zk, &site.base, "job");
    let job = |_: &LockGuard| -> zklock::Result<()> { panic!("it was not to run") };
    assert_eq!(once.run("a", job).map_err(kind).err(), Some(ErrorKind::Unsupported));
    assert!(node.delete_if_unchanged(second).unwrap());
    drop((guard, once, node));
    zk.close();
    drop((handle, zk));
    site.finish([]);
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
