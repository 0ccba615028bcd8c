use std::thread;
use std::time::{Duration, Instant, SystemTime};

use zklock::{
    Acl, Client, Contender, DistributedLock, DistributedRwLock, DistributedSemaphore,
    LeaderElection, LockGuard, NodeNaming, Permissions,
};

use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::{QUIET, eventually, mutex, skip_without_server, strict, waiting};

const SOON: Duration = Duration::from_secs(15);

/// Longer than a holder must have waited to tell since when it holds.
const LONG: Duration = Duration::from_millis(1_300);

/// Longer after the grant than a holder tells it, or tries again.
const LATER: Duration = Duration::from_millis(2_500);

fn pass(time: Duration) {
    let begun = Instant::now();
    eventually(SOON, "a while", || begun.elapsed() > time);
}

/// Waits until a contender has waited for long.
fn wait_long(looks: &DistributedLock) {
    eventually(SOON, "a long wait", || {
        let all = looks.contenders().unwrap();
        all.iter().any(|one| !one.holds && one.age().unwrap() > LONG)
    });
}

fn first(looks: &DistributedLock) -> Contender {
    looks.contenders().unwrap().remove(0)
}

/// The guard of a call of this lock that has waited long for `held`, and when that was released.
fn after_a_long_wait(
    site: &Site,
    lock: &DistributedLock,
    held: LockGuard,
) -> (LockGuard, SystemTime) {
    let (looks, waiter) = (lock.clone(), lock.clone());
    let waiter = waiting(move || waiter.lock().unwrap());
    site.wait_for_children("a", 2);
    wait_long(&looks);
    let released = SystemTime::now();
    held.unlock().unwrap();
    (waiter.join().unwrap(), released)
}

/// Whether the lock is told to be held since this time or a moment later: to the millisecond, as the
/// server's times are.
fn is_since(looks: &DistributedLock, released: SystemTime) -> bool {
    let since = first(looks).held_since().unwrap();
    since + Duration::from_millis(2) >= released && since <= SystemTime::now()
}

#[test]
fn who_has_waited_tells_since_when_it_holds_and_others_need_not() {
    skip_without_server!();
    let site = Site::own("held-since");
    let [(first_proxy, one), (proxy, other)] = [(); 2].map(|()| site.proxied(QUIET));
    let looks = strict(site.client(), &site.base, "a");
    let held = strict(&one, &site.base, "a").lock().unwrap();
    assert_eq!(first(&looks).held_since(), first(&looks).since);
    let waits = strict(&other, &site.base, "a");
    let (held, released) = after_a_long_wait(&site, &waits, held);
    eventually(SOON, "what the holder tells", || is_since(&looks, released));
    assert_eq!(proxy.count(opcode::SET_DATA), 1);
    assert!(first(&looks).thread.is_some(), "its first line is as it was");
    // It stays when a request to release has stood in its place.
    assert_eq!(looks.request_release().unwrap(), 1);
    assert!(proxy.wait_for_requests(opcode::SET_DATA, 2, SOON));
    eventually(SOON, "the data", || first(&looks).thread.is_some());
    assert!(is_since(&looks, released));
    assert!(held.release_requested());
    held.unlock().unwrap();
    assert_eq!(first_proxy.count(opcode::SET_DATA), 0, "it has not waited");
    drop((looks, waits));
    site.finish([one, other]);
}

#[test]
fn a_request_to_release_is_not_overwritten_by_what_a_holder_tells() {
    skip_without_server!();
    let site = Site::own("held-since-request");
    let (proxy, zk) = site.proxied(QUIET);
    let (looks, lock) = (strict(site.client(), &site.base, "a"), strict(&zk, &site.base, "a"));
    let held = lock.lock().unwrap();
    let (held, released) = after_a_long_wait(&site, &lock, held);
    proxy.stall_request(opcode::SET_DATA);
    assert!(proxy.wait_for_requests(opcode::SET_DATA, 1, SOON));
    assert_eq!(looks.request_release().unwrap(), 1);
    proxy.release();
    eventually(SOON, "the request", || held.release_requested());
    // And it is told all the same.
    eventually(SOON, "what the holder tells", || {
        first(&looks).thread.is_some() && is_since(&looks, released)
    });
    held.unlock().unwrap();
    drop((looks, lock));
    site.finish([zk]);
}

#[test]
fn a_lock_that_is_released_soon_is_not_written_to() {
    skip_without_server!();
    let site = Site::own("held-since-soon");
    let (proxy, zk) = site.proxied(QUIET);
    let lock = strict(&zk, &site.base, "a");
    let held = lock.lock().unwrap();
    let (held, _) = after_a_long_wait(&site, &lock, held);
    held.unlock().unwrap();
    pass(LATER);
    assert_eq!(proxy.count(opcode::SET_DATA), 0);
    drop(lock);
    site.finish([zk]);
}

/// What the node cannot tell costs nobody the lock.
#[test]
fn a_holder_that_may_not_write_its_node_holds_on() {
    skip_without_server!();
    let site = Site::own("held-since-acl");
    let (proxy, zk) = site.proxied(QUIET);
    let permissions = Permissions::READ | Permissions::CREATE | Permissions::DELETE;
    let lock = |zk: &Client| strict(zk, &site.base, "a").acl([Acl::world(permissions)].as_slice());
    let (looks, waits) = (lock(&site.client()), lock(&zk));
    let held = waits.lock().unwrap();
    let (held, _) = after_a_long_wait(&site, &waits, held);
    assert!(proxy.wait_for_requests(opcode::SET_DATA, 1, SOON));
    held.ensure_held().unwrap();
    assert_eq!(first(&looks).held_since(), first(&looks).since);
    pass(LATER);
    held.unlock().unwrap();
    assert_eq!(proxy.count(opcode::SET_DATA), 1, "a refused write is not repeated");
    drop((looks, waits));
    site.finish([zk]);
}

#[test]
fn data_of_the_programs_own_are_not_added_to() {
    skip_without_server!();
    let site = Site::own("held-since-own");
    let (proxy, zk) = site.proxied(QUIET);
    let lock = strict(&zk, &site.base, "a");
    for lock in [lock.clone().data("mine"), lock.naming(NodeNaming::Kazoo)] {
        let held = lock.lock().unwrap();
        assert_eq!(first(&lock).held_since(), None);
        let (held, _) = after_a_long_wait(&site, &lock, held);
        let before = first(&lock).data;
        pass(LATER);
        assert_eq!(first(&lock).data, before);
        held.unlock().unwrap();
    }
    let election = LeaderElection::new(&zk, &site.base, "e");
    let leads = election.try_campaign().unwrap().unwrap();
    assert_eq!(election.contenders().unwrap()[0].held_since(), None);
    leads.resign().unwrap();
    assert_eq!(proxy.count(opcode::SET_DATA), 0);
    drop(election);
    site.finish([zk]);
}

/// The place in the ensemble's queue counts, not the call that has it in the end.
#[test]
fn who_takes_over_a_place_tells_when_the_wait_for_it_ended() {
    skip_without_server!();
    let site = Site::own("held-since-place");
    let (zk, other) = (site.builder().connect().unwrap(), site.builder().connect().unwrap());
    let looks = strict(site.client(), &site.base, "a");
    let held = strict(&other, &site.base, "a").lock().unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let leader = lock.clone();
    let leader = waiting(move || leader.try_lock_for(LONG).unwrap().is_none());
    site.wait_for_children("a", 2);
    let follower = lock.clone();
    let named = thread::Builder::new().name("another".to_owned());
    let follower = named.spawn(move || follower.lock().unwrap()).unwrap();
    assert!(leader.join().unwrap());
    let released = SystemTime::now();
    held.unlock().unwrap();
    let held = follower.join().unwrap();
    eventually(SOON, "what the holder tells", || is_since(&looks, released));
    held.unlock().unwrap();
    drop((lock, looks));
    site.finish([zk, other]);
}

#[test]
fn permits_and_writers_tell_it_too() {
    skip_without_server!();
    let site = Site::own("held-since-others");
    let zk = site.builder().connect().unwrap();
    let looks = strict(site.client(), &site.base, "a");
    let semaphore = DistributedSemaphore::new(&zk, &site.base, "a", 1);
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let permit = semaphore.acquire().unwrap();
    let waiter = waiting(move || semaphore.acquire().unwrap());
    site.wait_for_children("a", 2);
    wait_long(&looks);
    let released = SystemTime::now();
    permit.release().unwrap();
    let permit = waiter.join().unwrap();
    eventually(SOON, "what the permit tells", || is_since(&looks, released));
    let waiter = waiting(move || lock.write().unwrap());
    site.wait_for_children("a", 2);
    wait_long(&looks);
    let released = SystemTime::now();
    permit.release().unwrap();
    let writer = waiter.join().unwrap();
    eventually(SOON, "what the writer tells", || is_since(&looks, released));
    let downgraded = SystemTime::now();
    let reader = writer.downgrade().unwrap();
    assert!(is_since(&looks, downgraded), "a reader since then");
    reader.unlock().unwrap();
    drop(looks);
    site.finish([zk]);
}
