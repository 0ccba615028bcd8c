use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zklock::{
    Cancel, Changes, Contender, ContenderKind, DistributedLock, DistributedRwLock,
    DistributedSemaphore, ErrorKind, Hold, LeaderElection, LockKind, LockList, LockNode,
    ReentrantLock, SessionState, UnlistedReason,
};

use crate::support::proxy::opcode;
use crate::support::raw::{ALL, Acl, Kind, Raw};
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    QUIET, eventually, kind, mutex, skip_without_server, skip_without_zookeeper, strict, waiting,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);
/// What the machine may add to a limit.
const OVERSHOOT: Duration = Duration::from_millis(500);

/// The paths of the holders, once they have changed.
fn next(observer: &mut Changes<Vec<Contender>>) -> Vec<String> {
    let holders = observer.next_within(SOON).unwrap().expect("a change");
    holders.into_iter().map(|one: Contender| one.path).collect()
}

fn assert_unchanged(observer: &mut Changes<Vec<Contender>>) {
    assert_eq!(observer.next_within(BRIEF).unwrap(), None);
}

#[test]
fn changes_of_the_holder_are_seen_in_order() {
    skip_without_zookeeper!();
    let site = Site::shared("observe");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| strict(zk, &site.base, "a"));
    let mut observer = theirs.observe();
    // Neither the lock node nor its parent exists.
    assert_eq!(next(&mut observer), [""; 0]);
    assert_unchanged(&mut observer);
    for round in 0..4 {
        let guard = ours.lock().unwrap();
        let holders = observer.next_within(SOON).unwrap().expect("a holder");
        assert_eq!(holders.len(), 1, "{round}");
        assert_eq!(holders[0].path, guard.path());
        assert_eq!(holders[0].kind, ContenderKind::Mutex);
        assert_eq!(holders[0].session, clients[0].session_id());
        assert!(holders[0].label().contains("pid="), "{holders:?}");
        assert_unchanged(&mut observer);
        drop(guard);
        assert_eq!(next(&mut observer), [""; 0]);
        assert_unchanged(&mut observer);
    }
    // The lock passes from one holder to the next.
    let first = ours.lock().unwrap();
    assert_eq!(next(&mut observer), [first.path()]);
    thread::scope(|scope| {
        let second = scope.spawn(|| ours.lock().unwrap());
        site.wait_for_children("a", 2);
        assert_unchanged(&mut observer);
        drop(first);
        let second = second.join().unwrap();
        assert_eq!(next(&mut observer), [second.path()]);
        // A write to the holder's node is not a change of holders.
        theirs.request_release().unwrap();
        assert_unchanged(&mut observer);
        drop(second);
    });
    assert_eq!(next(&mut observer), [""; 0]);
    // A new observer sees the present holders at once.
    let guard = ours.lock().unwrap();
    assert_eq!(next(&mut theirs.observe()), [guard.path()]);
    drop((guard, observer, ours, theirs));
    site.finish(clients);
}

#[test]
fn an_observer_is_an_iterator_that_waits() {
    skip_without_zookeeper!();
    let site = Site::shared("iterator");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| mutex(zk, &site.base, "a"));
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let observer = theirs.observe();
        scope.spawn(move || {
            for holders in observer.take(4) {
                let paths: Vec<_> = holders.unwrap().into_iter().map(|one| one.path).collect();
                tell.send(paths).unwrap();
            }
        });
        let nobody = Vec::<String>::new();
        assert_eq!(told.recv_timeout(SOON).unwrap(), nobody);
        let guard = ours.lock().unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap(), [guard.path()]);
        drop(guard);
        assert_eq!(told.recv_timeout(SOON).unwrap(), nobody);
        let guard = ours.lock().unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap(), [guard.path()]);
        drop(guard);
    });
    drop((ours, theirs));
    site.finish(clients);
}

/// While the holder stays, waiters that come and go cost an observer nothing.
#[test]
fn an_observer_is_not_woken_by_those_who_wait() {
    skip_without_server!();
    let site = Site::own("herd");
    let zk = site.client();
    let (proxy, looking) = site.proxied(QUIET);
    let lock = mutex(&zk, &site.base, "a");
    let holder = lock.lock().unwrap();
    let mut observer = mutex(&looking, &site.base, "a").observe();
    assert_eq!(next(&mut observer), [holder.path()]);
    assert_unchanged(&mut observer);
    assert_eq!(proxy.total_requests(), 3, "a sync, a list and a read: {:?}", proxy.requests());
    let mut raw = site.raw();
    let prefix = format!("{}/a/_c_11111111-2222-3333-4444-555555555555-lock-", site.base);
    let waiters: Vec<String> =
        (0..20).map(|_| raw.create(&prefix, b"", Kind::EphemeralSequential).unwrap()).collect();
    assert_unchanged(&mut observer);
    for waiter in &waiters[..19] {
        raw.delete(waiter).unwrap();
    }
    assert_unchanged(&mut observer);
    assert_eq!(proxy.total_requests(), 3, "{:?}", proxy.requests());
    // A change of the holder costs a list and a read.
    drop(holder);
    assert_eq!(next(&mut observer), [&*waiters[19]]);
    assert_eq!(proxy.total_requests(), 5, "{:?}", proxy.requests());
    raw.delete(&waiters[19]).unwrap();
    assert_eq!(next(&mut observer), [""; 0]);
    raw.close().unwrap();
    drop((observer, lock));
    site.finish([zk, looking]);
}

#[test]
fn all_who_read_and_all_who_have_permits_are_seen() {
    skip_without_zookeeper!();
    let site = Site::shared("several-hold");
    let clients = [site.client(), site.client()];
    let shared = clients.each_ref().map(|zk| DistributedRwLock::new(zk, &site.base, "a"));
    let mut observer = shared[1].observe();
    assert_eq!(next(&mut observer), [""; 0]);
    let one = shared[0].read().unwrap();
    assert_eq!(next(&mut observer), [one.path()]);
    let two = shared[0].read().unwrap();
    assert_eq!(next(&mut observer), [one.path(), two.path()]);
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let writer = scope.spawn(|| shared[0].write_within(&cancel).unwrap().unwrap());
        site.wait_for_children("a", 3);
        assert_unchanged(&mut observer);
        let late = scope.spawn(|| shared[0].read().unwrap());
        site.wait_for_children("a", 4);
        assert_unchanged(&mut observer);
        drop(one);
        assert_eq!(next(&mut observer), [two.path()]);
        drop(two);
        let writer = writer.join().unwrap();
        assert_eq!(next(&mut observer), [writer.path()]);
        let reader = writer.downgrade().unwrap();
        let late = late.join().unwrap();
        // The observer may have seen them come one after the other.
        let mut seen = next(&mut observer);
        if seen == [reader.path()] {
            seen = next(&mut observer);
        }
        assert_eq!(seen, [reader.path(), late.path()]);
        drop(reader);
        assert_eq!(next(&mut observer), [late.path()]);
        drop(late);
    });
    assert_eq!(next(&mut observer), [""; 0]);

    let permits = clients.each_ref().map(|zk| DistributedSemaphore::new(zk, &site.base, "b", 3));
    drop(observer);
    let mut observer = permits[1].observe();
    assert_eq!(next(&mut observer), [""; 0]);
    let two = permits[0].acquire_many(2).unwrap();
    assert_eq!(next(&mut observer), [two.path()]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| permits[0].acquire_many(2).unwrap());
        site.wait_for_children("b", 2);
        // A smaller request that would fit waits behind it.
        let small = scope.spawn(|| permits[0].acquire().unwrap());
        site.wait_for_children("b", 3);
        assert_unchanged(&mut observer);
        drop(two);
        let (waiter, small) = (waiter.join().unwrap(), small.join().unwrap());
        assert_eq!(next(&mut observer), [waiter.path(), small.path()]);
        let holders = permits[1].contenders().unwrap();
        assert_eq!(holders.iter().map(|one| one.weight).sum::<u32>(), 3);
        drop((waiter, small));
    });
    eventually(SOON, "no holder", || {
        observer.next_within(BRIEF).unwrap().is_some_and(|holders| holders.is_empty())
    });
    drop((shared, permits));
    drop(observer);
    site.finish(clients);
}

#[test]
fn the_lock_node_may_go_and_come_again() {
    skip_without_zookeeper!();
    let site = Site::shared("node");
    let zk = site.client();
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    let lock = mutex(&zk, &site.base, "a");
    let mut observer = lock.observe();
    assert_eq!(next(&mut observer), [""; 0]);
    for exists in [false, true, false] {
        if exists {
            raw.create_all(&node).unwrap();
        }
        assert_unchanged(&mut observer);
        // Nodes that are not contenders do not matter.
        raw.create_all(&node).unwrap();
        raw.create(&format!("{node}/foo"), b"", Kind::Persistent).unwrap();
        assert_unchanged(&mut observer);
        raw.delete_recursive(&site.base).unwrap();
        assert_unchanged(&mut observer);
        let guard = lock.lock().unwrap();
        assert_eq!(next(&mut observer), [guard.path()]);
        raw.delete_recursive(&site.base).unwrap();
        assert_eq!(next(&mut observer), [""; 0]);
        drop(guard);
    }
    raw.close().unwrap();
    drop((lock, observer));
    site.finish([zk]);
}

#[test]
fn a_holder_whose_session_dies_is_seen_to_go() {
    skip_without_server!();
    let site = Site::own("dies");
    let (proxy, dying) = site.proxied(Duration::from_secs(3));
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let mut observer = lock.observe();
    let guard = mutex(&dying, &site.base, "a").lock().unwrap();
    assert_eq!(next(&mut observer), [guard.path()]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().unwrap());
        site.wait_for_children("a", 2);
        proxy.black_hole();
        let seen = next(&mut observer);
        assert!(!guard.is_held(), "the observer saw the loss before the holder");
        let next_one = waiter.join().unwrap();
        assert_eq!(seen, [next_one.path()]);
        drop(next_one);
    });
    assert_eq!(next(&mut observer), [""; 0]);
    proxy.pass();
    drop((guard, lock, observer));
    site.finish([zk, dying]);
}

#[test]
fn an_observer_goes_on_over_lost_connections_and_sessions() {
    skip_without_server!();
    let site = Site::own("reconnect");
    let zk = site.client();
    let (proxy, looking) = site.proxied(Duration::from_secs(3));
    let lock = mutex(&zk, &site.base, "a");
    let mut observer = mutex(&looking, &site.base, "a").observe();
    assert_eq!(next(&mut observer), [""; 0]);
    for outage in ["cut", "refused", "lost"] {
        let guard = lock.lock().unwrap();
        assert_eq!(next(&mut observer), [guard.path()], "{outage}");
        match outage {
            "cut" => proxy.cut(),
            "refused" => {
                proxy.refuse();
                eventually(SOON, "the suspension", || looking.state() != SessionState::Connected);
                assert_unchanged(&mut observer);
            }
            _ => {
                proxy.black_hole();
                eventually(SOON, "the loss", || looking.state() == SessionState::Lost);
                assert_unchanged(&mut observer);
            }
        }
        drop(guard);
        let guard = lock.lock().unwrap();
        proxy.pass();
        // The observer may also have seen the lock free in between.
        let seen = loop {
            let seen = next(&mut observer);
            if !seen.is_empty() {
                break seen;
            }
        };
        assert_eq!(seen, [guard.path()], "{outage}");
        drop(guard);
        assert_eq!(next(&mut observer), [""; 0], "{outage}");
    }
    // The observer survives a restart of the server.
    site.server().restart();
    let guard = lock.lock().unwrap();
    assert_eq!(next(&mut observer), [guard.path()]);
    // Requests whose answers are lost are repeated.
    proxy.drop_reply(opcode::GET_CHILDREN, 2);
    drop(guard);
    assert_eq!(next(&mut observer), [""; 0]);
    drop((lock, observer));
    site.finish([zk, looking]);
}

#[test]
fn next_for_keeps_its_limit_on_time() {
    skip_without_server!();
    let site = Site::own("limit");
    let (proxy, zk) = site.proxied(Duration::from_secs(20));
    let lock = mutex(&zk, &site.base, "a");
    let mut observer = lock.observe();
    // Even a limit of zero allows one request.
    let nobody = observer.next_within(Duration::ZERO).unwrap().map(|holders| holders.len());
    assert!(nobody.is_none_or(|count| count == 0));
    if nobody.is_none() {
        assert_eq!(next(&mut observer), [""; 0]);
    }
    let waits = |observer: &mut Changes<Vec<Contender>>, limit: Duration, case: &str| {
        let start = Stopwatch::start();
        assert_eq!(observer.next_within(limit).unwrap(), None, "{case}");
        let took = start.took();
        assert!(took.at_least(limit) && took.within(limit + OVERSHOOT), "{case}: {took:?}");
    };
    let limit = Duration::from_millis(300);
    waits(&mut observer, Duration::ZERO, "quiet");
    waits(&mut observer, limit, "quiet");
    proxy.black_hole();
    waits(&mut observer, limit, "in a black hole");
    // An observer that has not seen anything yet.
    waits(&mut lock.observe(), limit, "in a black hole, from the start");
    proxy.refuse();
    eventually(SOON, "the suspension", || zk.state() != SessionState::Connected);
    waits(&mut observer, limit, "suspended");
    waits(&mut lock.observe(), Duration::ZERO, "suspended, from the start");
    proxy.pass();
    let guard = lock.lock().unwrap();
    assert_eq!(next(&mut observer), [guard.path()]);
    // `Duration::MAX` is no limit.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| observer.next_within(Duration::MAX).unwrap());
        drop(guard);
        assert_eq!(waiting.join().unwrap(), Some(Vec::new()));
    });
    drop((lock, observer));
    site.finish([zk]);
}

#[test]
fn when_the_client_is_closed_an_observer_ends_with_an_error() {
    skip_without_zookeeper!();
    let site = Site::shared("closed");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let (tell, told) = mpsc::channel();
    let mut observer = lock.observe();
    let ended = thread::spawn(move || {
        tell.send(observer.next().unwrap().unwrap().len()).unwrap();
        let error = observer.next().expect("an error").unwrap_err();
        assert!(observer.next().is_none() && observer.next().is_none());
        (error.kind(), observer.next_within(SOON).unwrap_err().kind())
    });
    assert_eq!(told.recv_timeout(SOON), Ok(0));
    eventually(SOON, "its watch", || zk.stats().watches == 1);
    zk.close();
    assert_eq!(ended.join().unwrap(), (ErrorKind::Closed, ErrorKind::Closed));
    let mut bad = mutex(&zk, &site.base, "x/y").observe();
    assert_eq!(bad.next().unwrap().unwrap_err().kind(), ErrorKind::InvalidName);
    assert!(bad.next().is_none());
    drop((lock, bad));
    site.finish([zk]);
}

/// Servers send no event for a change to a node that the watching client may not read.
#[test]
fn a_holder_that_may_not_be_read_is_seen_to_come_and_go() {
    skip_without_zookeeper!();
    let site = Site::shared("hidden");
    let zk = site.client();
    let node = format!("{}/a", site.base);
    let mut raw = site.raw();
    raw.create_all(&node).unwrap();
    let nobody = [Acl::new(ALL, "digest", "nobody:nothing")];
    let prefix = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    let mut make = || raw.create_with_acl(&prefix, b"secret", Kind::EphemeralSequential, &nobody);
    let [theirs, behind] = [(); 2].map(|()| make().unwrap());
    let lock = mutex(&zk, &site.base, "a");
    let mut observer = lock.observe();
    let seen = observer.next_within(SOON).unwrap().expect("the holder");
    assert_eq!((seen.len(), &*seen[0].path, &*seen[0].data), (1, &*theirs, &b""[..]));
    for (leaves, holders) in [(theirs, vec![behind.clone()]), (behind, vec![])] {
        raw.delete(&leaves).unwrap();
        assert_eq!(next(&mut observer), holders);
    }
    raw.close().unwrap();
    drop((lock, observer));
    site.finish([zk]);
}

#[test]
fn observers_can_be_sent_to_other_threads() {
    fn anywhere<T: Send + 'static>() {}
    anywhere::<Changes<Vec<Contender>>>();
}

#[test]
fn the_locks_below_a_base_are_listed_with_their_kinds() {
    skip_without_zookeeper!();
    let site = Site::shared("list-locks");
    let (zk, other, mut raw) = (site.client(), site.client(), site.raw());
    assert_eq!(zk.locks(&site.base).unwrap(), None);
    let held = mutex(&zk, &site.base, "nightly").lock().unwrap();
    let read = DistributedRwLock::new(&zk, &site.base, "files").read().unwrap();
    let permits = DistributedSemaphore::new(&zk, &site.base, "downloads", 3);
    let permit = permits.acquire_many(2).unwrap();
    raw.create_all(&format!("{}/other", site.base)).unwrap();
    let waits = {
        let lock = mutex(&other, &site.base, "nightly");
        waiting(move || drop(lock.lock().unwrap()))
    };
    site.wait_for_children("nightly", 2);
    let locks = || zk.locks(&site.base).unwrap().unwrap().locks;
    let seen = locks();
    let first = seen[2].first.as_ref().unwrap();
    assert_eq!((first.path.as_str(), first.holds), (held.path(), true));
    assert_eq!(first.process, Some(std::process::id()));
    let seen: Vec<_> =
        seen.iter().map(|one| (&*one.name, one.kind, one.holders, one.waiters)).collect();
    let semaphore = LockKind::Semaphore { permits: 3, taken: 2 };
    let of = |name: &str| LockKind::of(&mutex(&zk, &site.base, name).contenders().unwrap());
    assert_eq!(of("downloads"), Some(semaphore));
    assert_eq!((of("files"), of("nightly")), (Some(LockKind::ReadWrite), Some(LockKind::Mutex)));
    assert_eq!(of("other"), None);
    assert_eq!(
        seen,
        [
            ("downloads", semaphore, 1, 0),
            ("files", LockKind::ReadWrite, 1, 0),
            ("nightly", LockKind::Mutex, 1, 1),
        ]
    );
    assert_eq!(locks()[2].path, format!("{}/nightly", site.base));
    assert_eq!(kind(zk.locks("no/path")), ErrorKind::InvalidName);
    drop((held, read, permit, permits));
    waits.join().unwrap();
    raw.close().unwrap();
    site.finish([zk, other]);
}

#[test]
fn locks_are_listed_at_any_depth_and_what_is_hidden_is_named() {
    skip_without_server!();
    let site = Site::own("deep-locks");
    let zk = site.client();
    let (proxy, looking) = site.proxied(QUIET);
    let deep = format!("{}/a/b/c", site.base);
    let held = [(&*site.base, "a"), (&*deep, "d"), (&*deep, "e")]
        .map(|(base, name)| mutex(&zk, base, name).lock().unwrap());
    let mut raw = site.raw();
    let nobody = [Acl::new(ALL, "digest", "nobody:nothing")];
    let hidden = format!("{deep}/hidden");
    raw.create_with_acl(&hidden, b"", Kind::Persistent, &nobody).unwrap();
    // Three of /…/a, b and c, and two of the locks d and e; what is hidden; three contenders.
    let listed = looking.locks(&site.base).unwrap().unwrap();
    assert_eq!((listed.requests as u64, proxy.total_requests()), (10, 10));
    let paths = |list: &LockList| list.locks.iter().map(|one| one.path.clone()).collect::<Vec<_>>();
    assert_eq!(
        paths(&listed),
        [format!("{}/a", site.base), format!("{deep}/d"), format!("{deep}/e")]
    );
    let firsts = listed.locks.iter().map(|one| one.first.clone().unwrap().path);
    assert!(firsts.eq(held.iter().map(|guard| guard.path().to_owned())));
    let unlisted: Vec<_> =
        listed.unlisted.iter().map(|(path, reason)| (&**path, *reason)).collect();
    assert_eq!(unlisted, [(&*hidden, UnlistedReason::NotAuthorized)]);
    // Again, without a look at contenders that are known.
    let [first, second, third] = held;
    second.unlock().unwrap();
    proxy.reset_counts();
    let listed = listed.refresh(&looking).unwrap().unwrap();
    assert_eq!(paths(&listed), [format!("{}/a", site.base), format!("{deep}/e")]);
    assert_eq!(listed.locks[1].first.as_ref().unwrap().path, third.path());
    assert_eq!(proxy.count(opcode::GET_DATA), 0);
    drop((first, third));
    raw.delete(&hidden).unwrap();
    raw.close().unwrap();
    site.finish([zk, looking]);
}

/// A holder that goes while its lock is read leaves no waiter that nobody holds up.
#[test]
fn contenders_that_go_meanwhile_leave_a_list_that_is_consistent() {
    skip_without_server!();
    let site = Site::own("gone-meanwhile");
    let (proxy, looking) = site.proxied(QUIET);
    let mut raw = site.raw();
    let node = format!("{}/a", site.base);
    raw.create_all(&node).unwrap();
    let prefix = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-");
    let make = |raw: &mut Raw| raw.create(&prefix, b"", Kind::EphemeralSequential).unwrap();
    let [first, second, third] = [(); 3].map(|()| make(&mut raw));
    // Some have gone; then all have, and another one has come before.
    for (gone, is_new) in [(vec![first], false), (vec![second.clone(), third.clone()], true)] {
        proxy.reset_counts();
        proxy.stall_request(opcode::GET_DATA);
        let lock = mutex(&looking, &site.base, "a");
        let list = thread::spawn(move || lock.contenders().unwrap());
        assert!(proxy.wait_for_request(opcode::GET_DATA, SOON));
        let left = if is_new { vec![make(&mut raw)] } else { vec![second.clone(), third.clone()] };
        for one in &gone {
            raw.delete(one).unwrap();
        }
        proxy.release();
        let seen = list.join().unwrap();
        let seen: Vec<_> = seen.iter().map(|one| (&*one.path, one.position, one.holds)).collect();
        let expected: Vec<_> =
            left.iter().enumerate().map(|(place, one)| (&**one, place, place == 0)).collect();
        assert_eq!(seen, expected);
    }
    raw.close().unwrap();
    site.finish([looking]);
}

/// What all locks share: their path, who holds them, and a request to release.
#[test]
fn a_lock_of_any_kind_is_looked_at_in_one_way() {
    skip_without_zookeeper!();
    let site = Site::shared("lock-node");
    let (zk, other) = (site.client(), site.client());
    let mutex = mutex(&zk, &site.base, "a");
    let reentrant = ReentrantLock::new(&zk, &site.base, "b");
    let files = DistributedRwLock::new(&zk, &site.base, "c");
    let permits = DistributedSemaphore::new(&zk, &site.base, "d", 2);
    let election = LeaderElection::new(&zk, &site.base, "e");
    let nodes: [&LockNode; 5] = [&mutex, &reentrant, &files, &permits, &election];
    for (node, name) in nodes.iter().zip(["a", "b", "c", "d", "e"]) {
        assert_eq!(node.path(), format!("{}/{name}", site.base));
        assert_eq!(node.holder().unwrap(), None);
    }
    let held = (mutex.lock().unwrap(), reentrant.lock().unwrap());
    let (shared, leader) = (files.read().unwrap(), election.campaign().unwrap());
    let permit = permits.acquire().unwrap();
    let holds: [&Hold; 5] = [&held.0, &held.1, &shared, &permit, &leader];
    for (node, hold) in nodes.iter().zip(holds) {
        let holder = node.holder().unwrap().expect("a holder");
        assert!(holder.holds && holder.path == hold.path(), "{holder:?}");
        assert_eq!(node.request_release().unwrap(), 1);
        eventually(SOON, "the request", || hold.release_requested());
    }
    let free = DistributedLock::new(&other, "no path", "a");
    assert_eq!(free.path(), "no path/a");
    assert_eq!(kind(free.holder()), ErrorKind::InvalidName);
    drop((held, shared, leader, permit));
    drop((mutex, reentrant, files, permits, election, free));
    site.finish([zk, other]);
}
