use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use zklock::{
    Client, Contender, ContenderKind, DistributedLock, DistributedRwLock, DistributedSemaphore,
    ErrorKind, LeaderElection, LossReason, SessionState,
};

use crate::support::proxy::opcode;
use crate::support::raw::{Kind, Raw};
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    QUIET, connecting, eventually, kind, mutex, skip_without_server, skip_without_zookeeper,
    strict, waiting,
};

const SOON: Duration = Duration::from_secs(15);

/// A counter, and a callback that adds one to it.
fn counter() -> (Arc<AtomicUsize>, impl Fn() + Clone + Send + 'static) {
    let count = Arc::new(AtomicUsize::new(0));
    let adds = Arc::clone(&count);
    (count, move || {
        adds.fetch_add(1, Ordering::SeqCst);
    })
}

#[test]
fn s68_a_request_is_told_to_the_holder_once() {
    skip_without_zookeeper!();
    let site = Site::shared("s68");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| mutex(zk, &site.base, "a"));
    assert_eq!(theirs.request_release().unwrap(), 0, "a lock that was never used has no holder");
    let guard = ours.lock().unwrap();
    assert!(!guard.release_requested());
    let (count, add) = counter();
    let (tell, told) = mpsc::channel();
    let told_once = add.clone();
    guard.on_release_requested(move || {
        told_once();
        tell.send(()).unwrap();
    });
    thread::scope(|scope| {
        let waiter = scope.spawn(|| theirs.lock().unwrap());
        site.wait_for_children("a", 2);
        for _ in 0..3 {
            assert_eq!(theirs.request_release().unwrap(), 1);
        }
        told.recv_timeout(SOON).unwrap();
        assert!(guard.release_requested());
        // Once the holder has seen the request, it writes its own data to the node again.
        eventually(SOON, "the holder's data", || {
            theirs.contenders().unwrap()[0].label().starts_with("host=")
        });
        // A callback that is set late is called at once, and each callback once.
        let (tell, late) = mpsc::channel();
        guard.on_release_requested(move || tell.send(()).unwrap());
        late.recv_timeout(SOON).unwrap();
        assert!(late.recv().is_err());
        // A request does not take the lock away.
        guard.ensure_held().unwrap();
        assert!(!waiter.is_finished());
        guard.unlock().unwrap();
        let next = waiter.join().unwrap();
        assert!(!next.release_requested(), "the request was for the previous holder");
        drop(next);
    });
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert_eq!(ours.request_release().unwrap(), 0);
    drop((ours, theirs));
    site.finish(clients);
}

#[test]
fn s68_consent_is_to_drop_the_guard() {
    skip_without_zookeeper!();
    let site = Site::shared("s68-consent");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| mutex(zk, &site.base, "a"));
    thread::scope(|scope| {
        let (held, holds) = mpsc::channel();
        scope.spawn(move || {
            let guard = ours.lock().unwrap();
            let (tell, told) = mpsc::channel();
            guard.on_release_requested(move || tell.send(()).unwrap());
            held.send(()).unwrap();
            told.recv_timeout(SOON).unwrap();
            drop(guard);
        });
        holds.recv_timeout(SOON).unwrap();
        assert_eq!(theirs.request_release().unwrap(), 1);
        let guard = theirs.try_lock_for(SOON).unwrap();
        assert!(guard.is_some());
    });
    drop(theirs);
    site.finish(clients);
}

/// A callback may release the lock: it runs on a thread of its own.
#[test]
fn s68_a_callback_may_drop_the_guard() {
    skip_without_zookeeper!();
    let site = Site::shared("s68-callback");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = Arc::new(std::sync::Mutex::new(None));
    let theirs = Arc::clone(&guard);
    let held = lock.lock().unwrap();
    held.on_release_requested(move || drop(theirs.lock().unwrap().take()));
    *guard.lock().unwrap() = Some(held);
    assert_eq!(lock.request_release().unwrap(), 1);
    assert!(lock.try_lock_for(SOON).unwrap().is_some());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s68_curators_and_the_recipes_words_are_understood_and_no_others() {
    skip_without_server!();
    let site = Site::own("s68-words");
    let (proxy, zk) = site.proxied(QUIET);
    let lock = mutex(&zk, &site.base, "a");
    let mut raw = site.raw();
    for word in [&b"__REVOKE__"[..], b"unlock"] {
        // Requests of the previous guard do not count.
        proxy.reset_counts();
        let guard = lock.lock().unwrap();
        let (tell, told) = mpsc::channel();
        guard.on_release_requested(move || tell.send(()).unwrap());
        let others = [
            &b""[..],
            b"unlock ",
            b"UNLOCK",
            b"__REVOKE__\n",
            b"__REVOKE_",
            b"\xff\xfe",
            b"holder",
        ];
        for other in others {
            // The first read returns the data with which the node was made.
            assert!(proxy.wait_for_request(opcode::GET_DATA, SOON));
            guard.ensure_held().unwrap();
            proxy.reset_counts();
            raw.set_data(guard.path(), other).unwrap();
            assert!(proxy.wait_for_request(opcode::GET_DATA, SOON), "it did not read {other:?}");
            // This answer comes after that to the read.
            guard.ensure_held().unwrap();
            assert!(!guard.release_requested(), "{other:?}");
        }
        raw.set_data(guard.path(), word).unwrap();
        told.recv_timeout(SOON).unwrap();
        assert!(guard.release_requested());
        // A request cannot be withdrawn.
        raw.set_data(guard.path(), b"never mind").unwrap();
        guard.ensure_held().unwrap();
        assert!(guard.release_requested() && guard.is_held());
        guard.unlock().unwrap();
    }
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

/// Waiters watch the nodes ahead for their end only: they list and watch as often as if nobody had
/// written to those.
#[test]
fn s68_a_request_wakes_no_waiter() {
    skip_without_zookeeper!();
    type Acquire = fn(&Client, &Site) -> Box<dyn Send>;
    let of_mutex: Acquire = |zk, site| Box::new(strict(zk, &site.base, "a").lock().unwrap());
    let of_semaphore: Acquire =
        |zk, site| Box::new(DistributedSemaphore::new(zk, &site.base, "a", 2).acquire().unwrap());
    let site = Site::own("s68-wakes");
    for (holders, acquire) in [(1, of_mutex), (2, of_semaphore)] {
        let lists = [0, 3].map(|requests| {
            let (asker, waiters) = (site.proxied(QUIET), [(); 3].map(|()| site.proxied(QUIET)));
            thread::scope(|scope| {
                // In here, so that a failure ends the waiters, too.
                let mut held: Vec<_> = (0..holders).map(|_| acquire(&asker.1, &site)).collect();
                let (granted, grants) = mpsc::channel();
                for (number, (proxy, zk)) in waiters.iter().enumerate() {
                    let (granted, site) = (granted.clone(), &site);
                    scope.spawn(move || granted.send((number, acquire(zk, site))).unwrap());
                    let watches = if holders == 1 { number as u64 + 1 } else { 2 };
                    assert!(proxy.wait_for_requests(opcode::GET_CHILDREN2, watches, SOON));
                }
                let lock = mutex(&asker.1, &site.base, "a");
                for _ in 0..requests {
                    asker.0.reset_counts();
                    assert_eq!(lock.request_release().unwrap(), holders);
                    // Each holder sees the request, and writes its own data again.
                    let writes = 2 * holders as u64;
                    assert!(asker.0.wait_for_requests(opcode::SET_DATA, writes, SOON));
                }
                // What the waiters are told of it, they have been told.
                for (_, zk) in &waiters {
                    zk.sync().unwrap();
                }
                for number in 0..waiters.len() {
                    drop(held.remove(0));
                    let (who, guard) = grants.recv_timeout(SOON).unwrap();
                    assert_eq!(who, number);
                    held.push(guard);
                }
            });
            site.wait_for_children("a", 0);
            asker.1.close();
            waiters.map(|(proxy, zk)| {
                zk.close();
                [opcode::GET_CHILDREN, opcode::GET_CHILDREN2].map(|code| proxy.count(code))
            })
        });
        assert_eq!(lists[0], lists[1], "with {holders} holders");
    }
    site.finish([]);
}

#[test]
fn s68_one_contender_can_be_asked_and_one_who_waits_learns_of_it_when_it_holds() {
    skip_without_zookeeper!();
    let site = Site::shared("s68-one");
    let zk = site.client();
    let lock = strict(&zk, &site.base, "a");
    let holder = lock.lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().unwrap());
        site.wait_for_children("a", 2);
        let queue = lock.contenders().unwrap();
        assert!(lock.request_release_of(&queue[1]).unwrap());
        holder.ensure_held().unwrap();
        assert!(!holder.release_requested(), "the wrong one was asked");
        drop(holder);
        let guard = waiter.join().unwrap();
        let (tell, told) = mpsc::channel();
        guard.on_release_requested(move || tell.send(()).unwrap());
        told.recv_timeout(SOON).unwrap();
        assert!(guard.release_requested());
        assert!(lock.request_release_of(&queue[1]).unwrap(), "it is there still");
        // A contender that is gone cannot be asked.
        assert!(!lock.request_release_of(&queue[0]).unwrap());
        drop(guard);
        assert!(!lock.request_release_of(&queue[1]).unwrap());
    });
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s68_nobody_is_told_after_the_release() {
    skip_without_zookeeper!();
    let site = Site::shared("s68-after");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    for unlocks in [false, true] {
        let guard = lock.lock().unwrap();
        let (tell, told) = mpsc::channel();
        guard.on_release_requested(move || tell.send(()).unwrap());
        if unlocks {
            guard.unlock().unwrap()
        } else {
            drop(guard)
        }
        assert_eq!(lock.request_release().unwrap(), 0);
        // The callback was dropped, and not called.
        assert!(told.recv().is_err());
    }
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s68_all_who_hold_are_asked_and_none_who_waits() {
    skip_without_zookeeper!();
    let site = Site::shared("s68-all");
    let zk = site.client();
    let shared = DistributedRwLock::new(&zk, &site.base, "a");
    let readers = [(); 3].map(|()| shared.read().unwrap());
    let permits = DistributedSemaphore::new(&zk, &site.base, "b", 3);
    let holders = [2, 1].map(|weight| permits.acquire_many(weight).unwrap());
    thread::scope(|scope| {
        let writer = scope.spawn(|| shared.write().unwrap());
        site.wait_for_children("a", 4);
        let late = scope.spawn(|| shared.read().unwrap());
        site.wait_for_children("a", 5);
        let waiter = scope.spawn(|| permits.acquire().unwrap());
        site.wait_for_children("b", 3);
        assert_eq!(shared.request_release().unwrap(), 3);
        assert_eq!(permits.request_release().unwrap(), 2);
        eventually(SOON, "all to be told", || {
            readers.iter().all(|one| one.release_requested())
                && holders.iter().all(|one| one.release_requested())
        });
        drop((readers, holders));
        let writer = writer.join().unwrap();
        writer.ensure_held().unwrap();
        assert!(!writer.release_requested());
        assert_eq!(shared.request_release().unwrap(), 1, "a writer holds alone");
        eventually(SOON, "the writer to be told", || writer.release_requested());
        drop(writer);
        let late = late.join().unwrap();
        late.ensure_held().unwrap();
        assert!(!late.release_requested());
        let permit = waiter.join().unwrap();
        permit.ensure_held().unwrap();
        assert!(!permit.release_requested());
    });
    drop((shared, permits));
    site.finish([zk]);
}

#[test]
fn s68_a_request_made_while_the_holder_was_away_is_told_afterwards() {
    skip_without_server!();
    let site = Site::own("s68-away");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let other = site.client();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_release_requested(move || tell.send(()).unwrap());
    proxy.refuse();
    eventually(SOON, "the suspension", || zk.state() == SessionState::Suspended);
    let theirs = mutex(&other, &site.base, "a");
    assert_eq!(theirs.request_release().unwrap(), 1);
    assert!(!guard.release_requested());
    proxy.pass();
    told.recv_timeout(SOON).unwrap();
    guard.ensure_held().unwrap();
    drop((guard, theirs));
    site.finish([zk, other]);
}

#[test]
fn s68_a_request_is_made_over_lost_replies_and_connections() {
    skip_without_server!();
    let site = Site::own("s68-lost");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let other = site.client();
    let ours = mutex(&zk, &site.base, "a");
    let theirs = mutex(&other, &site.base, "a");
    let guard = theirs.lock().unwrap();
    let before = proxy.connections();
    proxy.drop_reply(opcode::SET_DATA, 1);
    assert_eq!(ours.request_release().unwrap(), 1);
    eventually(SOON, "the holder to be told", || guard.release_requested());
    proxy.drop_request(opcode::SET_DATA, 1);
    assert!(ours.request_release_of(&ours.contenders().unwrap()[0]).unwrap());
    proxy.drop_request(opcode::DELETE, 1);
    assert!(ours.break_lock(&ours.contenders().unwrap()[0]).unwrap());
    assert!(proxy.connections() >= before + 3);
    assert_eq!(guard.lost().wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
    drop((guard, ours, theirs));
    site.finish([zk, other]);
}

#[test]
fn to_ask_ends_with_the_connect_time_out() {
    skip_without_server!();
    let site = Site::own("ask-limit");
    let (proxy, _gone) = site.proxied(QUIET);
    let zk = connecting(&proxy.hosts())
        .session_timeout(QUIET)
        .connect_timeout(Duration::from_millis(1_500))
        .connect()
        .unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let contender = lock.contenders().unwrap().remove(0);
    proxy.black_hole();
    let start = Stopwatch::start();
    for failed in [
        kind(lock.request_release()),
        kind(lock.request_release_of(&contender)),
        kind(lock.break_lock(&contender)),
        kind(lock.contenders()),
    ] {
        assert!(matches!(failed, ErrorKind::ConnectionLoss | ErrorKind::Connect), "{failed:?}");
    }
    assert!(start.took().within(Duration::from_secs(10)), "{:?}", start.took());
    proxy.pass();
    zk.close();
    assert_eq!(kind(lock.request_release()), ErrorKind::Closed);
    assert_eq!(kind(lock.break_lock(&contender)), ErrorKind::Closed);
    drop((guard, lock));
    site.finish([zk, _gone]);
}

#[test]
fn a_broken_lock_is_lost_and_the_next_one_has_it() {
    skip_without_zookeeper!();
    let site = Site::shared("broken");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| mutex(zk, &site.base, "a"));
    let guard = ours.lock().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| theirs.lock().unwrap());
        site.wait_for_children("a", 2);
        let queue = theirs.contenders().unwrap();
        assert!(theirs.break_lock(&queue[0]).unwrap());
        assert_eq!(told.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
        assert!(told.recv().is_err(), "on_lost was called twice");
        assert!(!guard.is_held());
        let next = waiter.join().unwrap();
        assert_eq!(next.path(), queue[1].path);
        assert!(next.fencing_token() > guard.fencing_token());
        // The node is gone already.
        assert!(!theirs.break_lock(&queue[0]).unwrap());
        assert_eq!(kind(guard.unlock()), ErrorKind::NodeDeleted);
        next.ensure_held().unwrap();
    });
    // A reader and a permit, too.
    let shared = DistributedRwLock::new(&clients[0], &site.base, "b");
    let readers = [(); 2].map(|()| shared.read().unwrap());
    assert!(shared.break_lock(&shared.contenders().unwrap()[0]).unwrap());
    eventually(SOON, "the first to be lost", || !readers[0].is_held());
    readers[1].ensure_held().unwrap();
    let permits = DistributedSemaphore::new(&clients[0], &site.base, "c", 1);
    let permit = permits.acquire().unwrap();
    assert!(permits.break_lock(&permits.contenders().unwrap()[0]).unwrap());
    assert_eq!(permit.lost().wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
    drop((readers, shared, permit, permits, ours, theirs));
    site.finish(clients);
}

#[test]
fn to_have_broken_a_lock_is_told_though_the_answer_was_lost() {
    skip_without_server!();
    let site = Site::own("broken-lost");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.client();
    let [ours, theirs] = [&zk, &other].map(|zk| mutex(zk, &site.base, "a"));
    let guard = theirs.lock().unwrap();
    let holder = ours.contenders().unwrap().remove(0);
    proxy.drop_reply(opcode::DELETE, 1);
    assert!(ours.break_lock(&holder).unwrap(), "this call broke the lock");
    assert_eq!(guard.lost().wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
    assert!(!ours.break_lock(&holder).unwrap());
    drop((guard, ours, theirs));
    site.finish([zk, other]);
}

fn moved(contender: &Contender, path: String) -> Contender {
    let mut moved = contender.clone();
    moved.path = path;
    moved
}

#[test]
fn what_is_no_contender_of_this_lock_is_neither_asked_nor_deleted() {
    skip_without_zookeeper!();
    let site = Site::shared("another");
    let zk = site.client();
    let [a, b, longer] = ["a", "b", "ab"].map(|name| mutex(&zk, &site.base, name));
    let guards = [&a, &b, &longer].map(|lock| lock.lock().unwrap());
    let mut raw = site.raw();
    let node = format!("{}/a", site.base);
    let stranger = format!("{node}/precious");
    raw.create(&stranger, b"data", Kind::Persistent).unwrap();
    let own = a.contenders().unwrap().remove(0);
    let name = own.path.rsplit('/').next().unwrap();
    for path in [
        b.contenders().unwrap()[0].path.clone(),
        longer.contenders().unwrap()[0].path.clone(),
        stranger.clone(),
        node.clone(),
        format!("{node}/"),
        format!("{node}//{name}"),
        format!("{node}/../b/{name}"),
        format!("{node}/deeper/{name}"),
        site.base.clone(),
        "/".to_owned(),
        String::new(),
        name.to_owned(),
    ] {
        let odd = moved(&own, path.clone());
        assert_eq!(kind(a.break_lock(&odd)), ErrorKind::InvalidArgument, "{path:?}");
        assert_eq!(kind(a.request_release_of(&odd)), ErrorKind::InvalidArgument, "{path:?}");
    }
    assert_eq!(raw.get_data(&stranger).unwrap().0, b"data");
    for guard in &guards {
        guard.ensure_held().unwrap();
        assert!(!guard.release_requested());
    }
    let bad = mutex(&zk, &site.base, "x/y");
    assert_eq!(kind(bad.request_release()), ErrorKind::InvalidName);
    assert_eq!(kind(bad.request_release_of(&own)), ErrorKind::InvalidName);
    assert_eq!(kind(bad.break_lock(&own)), ErrorKind::InvalidName);
    raw.delete(&stranger).unwrap();
    raw.close().unwrap();
    drop((guards, a, b, longer, bad));
    site.finish([zk]);
}

#[test]
fn under_a_chroot_the_right_node_is_asked_and_deleted() {
    skip_without_zookeeper!();
    let site = Site::shared("chroot");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let zk = Client::connect(&format!("{}{}", site.hosts(), site.base)).unwrap();
    let lock = mutex(&zk, "/locks", "a");
    let guard = lock.lock().unwrap();
    assert_eq!(lock.request_release().unwrap(), 1);
    eventually(SOON, "the request", || guard.release_requested());
    let contender = lock.contenders().unwrap().remove(0);
    assert_eq!(contender.path, guard.path());
    assert!(lock.request_release_of(&contender).unwrap());
    assert!(lock.break_lock(&contender).unwrap());
    assert_eq!(guard.lost().wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
    raw.close().unwrap();
    drop((guard, lock));
    site.finish([zk]);
}

/// Otherwise a holder would take its own data for a request to release.
#[test]
fn the_words_of_a_request_are_refused_as_data() {
    skip_without_zookeeper!();
    let site = Site::shared("words");
    let zk = site.client();
    for word in ["unlock", "__REVOKE__"] {
        let lock = mutex(&zk, &site.base, "a").data(word);
        let shared = DistributedRwLock::new(&zk, &site.base, "a").data(word);
        let permits = DistributedSemaphore::new(&zk, &site.base, "a", 2).data(word);
        for kind in [
            kind(lock.lock()),
            kind(lock.try_lock()),
            kind(shared.read()),
            kind(shared.write()),
            kind(permits.acquire()),
        ] {
            assert_eq!(kind, ErrorKind::InvalidArgument, "{word}");
        }
        assert_eq!(site.children("a").len(), 0);
    }
    // Similar data is accepted.
    let lock = mutex(&zk, &site.base, "a").data("unlocked");
    let guard = lock.lock().unwrap();
    guard.ensure_held().unwrap();
    assert!(!guard.release_requested());
    drop((guard, lock));
    site.finish([zk]);
}

/// A holder that uses another library gets the request in that library's words.
#[test]
fn s68_a_strangers_holder_is_asked_in_curators_words() {
    skip_without_zookeeper!();
    let site = Site::shared("s68-stranger");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let mut raw: Raw = site.raw();
    let node = format!("{}/a", site.base);
    raw.create_all(&node).unwrap();
    let prefix = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    let theirs = raw.create(&prefix, b"10.0.0.1", Kind::EphemeralSequential).unwrap();
    assert_eq!(lock.contenders().unwrap()[0].kind, ContenderKind::Mutex);
    assert_eq!(lock.request_release().unwrap(), 1);
    assert_eq!(raw.get_data(&theirs).unwrap().0, b"__REVOKE__");
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

/// A request to resign does not hide the leader's id.
#[test]
fn s68_a_leader_that_is_asked_to_let_go_keeps_its_id() {
    skip_without_zookeeper!();
    let site = Site::shared("s68-id");
    let zk = site.client();
    let election = LeaderElection::new(&zk, &site.base, "a").id("unlocked:8080");
    let leadership = election.campaign().unwrap();
    let (tell, told) = mpsc::channel();
    leadership.on_release_requested(move || tell.send(()).unwrap());
    let mut raw = site.raw();
    for word in [&b"__REVOKE__"[..], b"unlock"] {
        raw.set_data(leadership.path(), word).unwrap();
        let shown = || election.leader().unwrap().expect("a leader").label();
        eventually(SOON, "the leader's id", || {
            let id = shown();
            // The text of the request never appears as the id.
            assert!(["", "unlocked:8080"].contains(&&id[..]), "{id:?}");
            id == "unlocked:8080"
        });
        assert!(leadership.release_requested());
    }
    told.recv_timeout(SOON).unwrap();
    assert!(told.try_recv().is_err(), "the callback was called twice");
    leadership.resign().unwrap();
    drop(election);
    site.finish([zk]);
}

/// Whatever a callback uses must stay until the callback has ended.
#[test]
fn a_release_waits_for_callbacks_that_run_and_for_those_of_a_loss() {
    skip_without_zookeeper!();
    let site = Site::shared("callbacks-end");
    let zk = site.quiet_client();
    for deleted in [true, false] {
        let guard = mutex(&zk, &site.base, "a").lock().unwrap();
        let (begin, begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let callback = move || {
            begin.send(()).unwrap();
            let _ = may_go_on.recv();
            end.store(true, Ordering::SeqCst);
        };
        if deleted {
            guard.on_lost(move |_| callback());
            site.raw().delete(guard.path()).unwrap();
        } else {
            guard.on_release_requested(callback);
            site.raw().set_data(guard.path(), b"unlock").unwrap();
        }
        begun.recv_timeout(SOON).unwrap();
        let seen = Arc::clone(&ended);
        let dropper = waiting(move || {
            let began = Instant::now();
            drop(guard);
            // It waits for at most half a second.
            seen.load(Ordering::SeqCst) || began.elapsed() >= Duration::from_millis(500)
        });
        go_on.send(()).unwrap();
        assert!(dropper.join().unwrap(), "released before its callback had ended; {deleted}");
    }
    site.finish([zk]);
}

#[test]
fn what_a_callback_owns_may_take_the_lock_when_it_is_dropped() {
    struct Locks(DistributedLock, mpsc::Sender<bool>);
    impl Drop for Locks {
        fn drop(&mut self) {
            let got = self.0.try_lock_for(SOON).is_ok_and(|guard| guard.is_some());
            self.1.send(got).unwrap();
        }
    }
    skip_without_zookeeper!();
    let site = Site::shared("callbacks-own");
    let zk = site.quiet_client();
    let kept = DistributedLock::new(&zk, &site.base, "kept").keep_for(SOON);
    for lock in [strict(&zk, &site.base, "strict"), mutex(&zk, &site.base, "shared"), kept] {
        let guard = lock.lock().unwrap();
        let (tell, told) = mpsc::channel();
        let (owned, owned_too) = (Locks(lock.clone(), tell.clone()), Locks(lock.clone(), tell));
        guard.on_lost(move |_| drop(owned));
        guard.on_release_requested(move || drop(owned_too));
        drop(guard);
        assert_eq!(told.iter().collect::<Vec<_>>(), [true, true], "{lock:?}");
    }
    site.finish([zk]);
}
