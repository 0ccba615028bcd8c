//! Threads of one client share a contender's node and hand it over among themselves; a node may be
//! kept after the release.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{
    Acl, Cancel, Client, DistributedLock, ErrorKind, FencingToken, HandOver, LockGuard, LossReason,
    MultiLock, NodeNaming, Permissions, ReentrantLock, SessionState,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{self, Kind};
use crate::support::site::Site;
use crate::support::stopwatch::{Moment, Stopwatch};
use crate::support::{
    QUIET, Raise, eventually, got_nothing, is_unanswered, kind, last, own_task,
    skip_without_server, strict, timed, wait_until_asleep, waiting,
};

const SOON: Duration = Duration::from_secs(15);
/// How long after its deadline a call may return, at most.
const LATE: Duration = Duration::from_millis(100);
/// Far below any timeout, even on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(2);

/// A client whose requests are counted, and another one that competes with it.
struct Rig {
    site: Site,
    proxy: Proxy,
    zk: Client,
    other: Client,
}

impl Rig {
    /// A rig without heartbeats, which would be counted.
    fn new(test: &str) -> Rig {
        Rig::with_session(test, QUIET)
    }

    fn with_session(test: &str, timeout: Duration) -> Rig {
        let site = Site::own(test);
        let (proxy, zk) = site.proxied(timeout);
        let other = site.builder().session_timeout(QUIET).connect().unwrap();
        Rig { site, proxy, zk, other }
    }

    fn lock(&self) -> DistributedLock {
        DistributedLock::new(&self.zk, &self.site.base, "a")
    }

    fn within(&self, turns: u32, time: Duration) -> DistributedLock {
        self.lock().hand_over(HandOver::Within { turns, time })
    }

    fn keeping(&self, limit: Duration) -> DistributedLock {
        self.lock().keep_for(limit)
    }

    /// The same lock, with the other client.
    fn theirs(&self) -> DistributedLock {
        DistributedLock::new(&self.other, &self.site.base, "a")
    }

    fn children(&self) -> Vec<String> {
        self.site.children("a")
    }

    /// Waits for the last request of the acquisition, and restarts the count.
    fn settle(&self) {
        assert!(self.proxy.wait_for_request(opcode::GET_DATA, SOON), "no watch on its node");
        self.proxy.reset_counts();
    }

    /// Waits until the client has listed the contenders `count` times, and has the answers.
    fn wait_for_looks(&self, count: u64, guard: &LockGuard) {
        assert!(self.proxy.wait_for_requests(opcode::GET_CHILDREN, count, SOON), "no list");
        // The answer to this request comes later than the list.
        guard.ensure_held().unwrap();
    }

    /// Checks that there was only one request: since a sibling waits, one list of other contenders.
    fn assert_one_look(&self) {
        assert!(self.proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
        assert_eq!(self.by_kind(), BTreeMap::from([(opcode::GET_CHILDREN, 1)]));
    }

    fn by_kind(&self) -> BTreeMap<i32, usize> {
        let mut counts = BTreeMap::new();
        for request in self.proxy.requests() {
            *counts.entry(request.opcode).or_default() += 1;
        }
        counts
    }

    fn finish(self) {
        self.proxy.pass();
        let Rig { site, zk, other, proxy } = self;
        site.finish([zk, other]);
        drop(proxy);
    }
}

/// The threads that wait for a lock, each with a number.
struct Line {
    tell: Sender<(u32, LockGuard)>,
    told: Receiver<(u32, LockGuard)>,
}

impl Line {
    fn new() -> Line {
        let (tell, told) = channel();
        Line { tell, told }
    }

    /// Adds a thread, and returns when it waits. [`next`](Line::next) returns its guard.
    fn join(&self, number: u32, lock: &DistributedLock) {
        let (lock, tell) = (lock.clone(), self.tell.clone());
        drop(waiting(move || {
            let guard = lock.lock().unwrap();
            drop(lock);
            let _ = tell.send((number, guard));
        }));
    }

    fn next(&self, number: u32) -> LockGuard {
        let (granted, guard) = self.told.recv_timeout(SOON).expect("a waiter gets the lock");
        assert_eq!(granted, number, "out of turn");
        guard
    }

    fn assert_nobody(&self) {
        assert!(self.told.try_recv().is_err(), "two holders at once");
    }
}

fn node_and_turn(guard: &LockGuard) -> (String, u64, u32) {
    let token = guard.fencing_token();
    (guard.path().to_owned(), token.zxid(), token.turn())
}

/// Receives what the guard's `on_lost` is called with; disconnected once the callback has run or
/// was dropped.
fn losses(guard: &LockGuard) -> Receiver<LossReason> {
    let (tell, told) = channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    told
}

// ----- which locks share a node, and what it costs

#[test]
fn s02_a_node_goes_from_thread_to_thread_in_turn_and_without_a_request() {
    skip_without_server!();
    const WAITERS: u32 = 6;
    let rig = Rig::new("share");
    let lock = rig.lock();
    let mut guard = lock.lock().unwrap();
    rig.settle();
    let (path, zxid, turn) = node_and_turn(&guard);
    assert_eq!(turn, 0);
    let line = Line::new();
    for number in 1..=WAITERS {
        line.join(number, &lock);
    }
    rig.assert_one_look();
    rig.proxy.reset_counts();
    assert_eq!(rig.children(), [last(&path)]);
    for number in 1..=WAITERS {
        line.assert_nobody();
        drop(guard);
        guard = line.next(number);
        assert_eq!(node_and_turn(&guard), (path.clone(), zxid, number));
        assert!(guard.is_held());
        assert_eq!(rig.children(), [last(&path)]);
    }
    assert_eq!(rig.proxy.requests(), [], "to hand it on");
    guard.unlock().unwrap();
    assert_eq!(rig.by_kind(), BTreeMap::from([(opcode::DELETE, 1)]));
    assert!(rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn s06_equal_locks_share_a_node_and_no_others_do() {
    skip_without_server!();
    let rig = Rig::new("equal");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    rig.settle();
    let equal = [
        lock.clone(),
        rig.lock(),
        rig.lock().hand_over(HandOver::default()),
        rig.lock().acl(Acl::open()),
        rig.lock().naming(NodeNaming::Curator),
        DistributedLock::new(rig.zk.clone(), &rig.site.base, "a"),
    ];
    let line = Line::new();
    for (number, lock) in (1..).zip(&equal) {
        assert!(lock.try_lock().unwrap().is_none(), "{number}");
        line.join(number, lock);
    }
    rig.assert_one_look();
    assert_eq!(rig.children().len(), 1);

    let brief = HandOver::Within { turns: 64, time: Duration::from_millis(999) };
    let all_but_admin =
        Permissions::READ | Permissions::WRITE | Permissions::CREATE | Permissions::DELETE;
    let unlike = [
        rig.lock().hand_over(HandOver::Off),
        rig.lock().hand_over(brief),
        rig.lock().keep_for(SOON),
        rig.lock().data("mine"),
        rig.lock().acl([Acl::new(all_but_admin, "world", "anyone")]),
        rig.lock().naming(NodeNaming::Kazoo),
        rig.theirs(),
    ];
    let cancel = Cancel::new();
    let mut others = Vec::new();
    for (number, lock) in (1..).zip(&unlike) {
        let (lock, cancel) = (lock.clone(), cancel.clone());
        others.push(thread::spawn(move || kind(lock.lock_within(&cancel))));
        rig.site.wait_for_children("a", 1 + number);
    }
    cancel.cancel();
    for other in others {
        assert_eq!(other.join().unwrap(), ErrorKind::Cancelled);
    }
    eventually(SOON, "the others to go", || rig.children() == [last(guard.path())]);
    let mut guard = guard;
    for number in 1..=6 {
        drop(guard);
        guard = line.next(number);
    }
    drop((guard, equal, unlike, lock));
    rig.finish();
}

#[test]
fn s02_without_handing_over_each_has_its_node_and_its_place_among_all() {
    skip_without_server!();
    let rig = Rig::new("off");
    let lock = rig.lock().hand_over(HandOver::Off);
    let mut guard = lock.lock().unwrap();
    let line = Line::new();
    let theirs = strict(&rig.other, &rig.site.base, "a");
    for (number, lock) in (1..).zip([&lock, &theirs, &lock, &theirs, &lock]) {
        line.join(number, lock);
        rig.site.wait_for_children("a", 1 + number as usize);
    }
    let mut nodes = vec![guard.path().to_owned()];
    for number in 1..=5 {
        drop(guard);
        guard = line.next(number);
        assert_eq!(guard.fencing_token().turn(), 0);
        nodes.push(guard.path().to_owned());
    }
    nodes.dedup();
    assert_eq!(nodes.len(), 6, "{nodes:?}");
    drop((guard, lock, theirs));
    rig.finish();
}

#[test]
fn unlock_hands_on_without_a_request_and_tells_of_a_loss() {
    skip_without_server!();
    let rig = Rig::new("unlock");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    rig.settle();
    let line = Line::new();
    (1..=3).for_each(|number| line.join(number, &lock));
    guard.unlock().unwrap();
    let guard = line.next(1);
    rig.wait_for_looks(1, &guard);
    rig.proxy.reset_counts();
    guard.unlock().unwrap();
    let guard = line.next(2);
    assert_eq!(rig.proxy.requests(), []);
    let told = losses(&guard);
    rig.site.raw().delete(guard.path()).unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
    let next = line.next(3);
    assert_eq!(kind(guard.unlock()), ErrorKind::NodeDeleted);
    next.ensure_held().unwrap();
    next.unlock().unwrap();
    drop(lock);
    rig.finish();
}

#[test]
fn s08_a_panic_hands_on() {
    skip_without_server!();
    let rig = Rig::new("panic");
    let lock = rig.lock();
    let line = Line::new();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _guard = lock.lock().unwrap();
        line.join(1, &lock);
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    let guard = line.next(1);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s07_a_guard_dropped_on_another_thread_hands_on() {
    skip_without_server!();
    let rig = Rig::new("elsewhere");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let line = Line::new();
    line.join(1, &lock);
    thread::spawn(move || drop(guard)).join().unwrap();
    let guard = line.next(1);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock));
    rig.finish();
}

// ----- others get their share

#[test]
fn s02_another_client_comes_after_those_who_were_waiting_before_it() {
    skip_without_server!();
    let rig = Rig::new("before");
    // The limit must not pass during the test.
    let (lock, theirs, line) = (rig.within(64, LONG), rig.theirs(), Line::new());
    let guard = lock.lock().unwrap();
    rig.settle();
    (1..=3).for_each(|number| line.join(number, &lock));
    drop(guard);
    let guard = line.next(1);
    rig.wait_for_looks(1, &guard);
    line.join(4, &theirs);
    rig.wait_for_looks(2, &guard);
    line.join(5, &lock);
    line.join(6, &lock);
    assert_eq!(rig.children().len(), 2);
    let shared = guard.path().to_owned();
    drop(guard);
    let guard = line.next(2);
    assert_eq!(guard.path(), shared);
    drop(guard);
    let guard = line.next(3);
    assert_eq!(guard.path(), shared);
    drop(guard);
    let guard = line.next(4);
    // Waits until our next thread has a node behind it.
    rig.site.wait_for_children("a", 2);
    let before = guard.fencing_token();
    drop(guard);
    let guard = line.next(5);
    assert!(guard.path() != shared && guard.fencing_token() > before);
    assert_eq!(guard.fencing_token().turn(), 0);
    drop(guard);
    let guard = line.next(6);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock, theirs));
    rig.finish();
}

/// The order in which a lock is granted if another client comes while the first of five holds it.
fn order_with_another(rig: &Rig, lock: &DistributedLock) -> Vec<u32> {
    const THEIRS: u32 = 100;
    let (theirs, line) = (rig.theirs(), Line::new());
    let guard = lock.lock().unwrap();
    rig.settle();
    (1..=5).for_each(|number| line.join(number, lock));
    drop(guard);
    let mut guard = line.next(1);
    rig.wait_for_looks(1, &guard);
    line.join(THEIRS, &theirs);
    rig.wait_for_looks(2, &guard);
    let mut order = Vec::new();
    for _ in 0..5 {
        drop(guard);
        let (number, next) = line.told.recv_timeout(SOON).expect("a waiter gets the lock");
        if number == THEIRS && order.len() < 4 {
            // Waits until our next thread has a node behind it.
            rig.site.wait_for_children("a", 2);
        }
        order.push(number);
        guard = next;
    }
    order
}

#[test]
fn s02_another_client_waits_for_so_many_turns_and_no_more() {
    skip_without_server!();
    let rig = Rig::new("turns");
    let hour = Duration::from_secs(3600);
    for (turns, order) in [(0, [100, 2, 3, 4, 5]), (2, [2, 3, 100, 4, 5]), (64, [2, 3, 4, 5, 100])]
    {
        rig.proxy.reset_counts();
        assert_eq!(order_with_another(&rig, &rig.within(turns, hour)), order, "{turns} turns");
        eventually(SOON, "the lock to be free", || rig.children().is_empty());
    }
    rig.finish();
}

#[test]
fn s02_another_client_waits_for_so_long_and_no_longer() {
    skip_without_server!();
    let rig = Rig::new("time");
    for (time, order) in [(Duration::ZERO, [100, 2, 3, 4, 5]), (Duration::MAX, [2, 3, 4, 5, 100])] {
        rig.proxy.reset_counts();
        assert_eq!(order_with_another(&rig, &rig.within(64, time)), order, "{time:?}");
        eventually(SOON, "the lock to be free", || rig.children().is_empty());
    }
    rig.finish();
}

#[test]
fn s02_who_locks_in_a_loop_lets_its_siblings_pass() {
    skip_without_server!();
    let rig = Rig::new("loop");
    let lock = rig.lock();
    let mut guard = lock.lock().unwrap();
    let (path, zxid, _) = node_and_turn(&guard);
    let task = own_task();
    for round in 0..30 {
        let theirs = lock.clone();
        let sibling = waiting(move || {
            let guard = theirs.lock().unwrap();
            wait_until_asleep(task);
            guard.fencing_token()
        });
        drop(guard);
        guard = lock.lock().unwrap();
        assert_eq!(sibling.join().unwrap().turn(), 2 * round + 1);
        assert_eq!(node_and_turn(&guard), (path.clone(), zxid, 2 * round + 2));
    }
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s02_threads_that_lock_in_a_loop_do_not_starve_another_client() {
    skip_without_server!();
    let rig = Rig::new("starve");
    let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    let theirs = rig.theirs();
    thread::scope(|scope| {
        let _at_the_end = Raise(&stop);
        for _ in 0..4 {
            let (lock, stop, turns) = (rig.lock(), &stop, &turns);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    drop(lock.lock().unwrap());
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut most = Duration::ZERO;
        for _ in 0..20 {
            let before = turns.load(Ordering::Relaxed);
            eventually(SOON, "the loop", || turns.load(Ordering::Relaxed) > before + 100);
            let (guard, took) = timed(|| theirs.lock().unwrap());
            // By default the other client is let in at most a second after it was seen.
            assert!(took.within(PROMPTLY), "{took:?}");
            most = most.max(took.time());
            // The threads wait for the other client now.
            guard.ensure_held().unwrap();
        }
        println!("the other client waited at most {most:?}");
    });
    drop(theirs);
    rig.finish();
}

// ----- limits

#[test]
fn s15_limits_are_kept_while_a_sibling_holds_on_time() {
    skip_without_server!();
    let rig = Rig::new("limits");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    rig.settle();
    limits_are_kept(&lock);
    rig.assert_one_look();
    drop(guard);
    drop(lock.try_lock().unwrap().expect("it is free"));
    drop(lock);
    rig.finish();
}

fn limits_are_kept(lock: &DistributedLock) {
    let (result, took) = timed(|| lock.try_lock().unwrap());
    assert!(result.is_none() && took.within(LATE), "{took:?}");
    for limit in [0, 1, 20, 150].map(Duration::from_millis) {
        let (result, took) = timed(|| lock.try_lock_for(limit));
        assert!(
            got_nothing(result) && took.at_least(limit) && took.within(limit + LATE),
            "{limit:?}: {took:?}"
        );
        let start = Stopwatch::start();
        let result = lock.lock_within(start.instant() + limit);
        let took = start.took();
        assert!(
            got_nothing(result) && took.at_least(limit) && took.within(limit + LATE),
            "{limit:?}: {took:?}"
        );
    }
    let cancel = Cancel::new();
    let (theirs, stop) = (lock.clone(), cancel.clone());
    let waiter = waiting(move || (kind(theirs.lock_within(&stop)), Moment::now()));
    let start = Stopwatch::start();
    cancel.cancel();
    let (kind, end) = waiter.join().unwrap();
    let took = start.took_until(end);
    assert_eq!(kind, ErrorKind::Cancelled);
    assert!(took.within(LATE), "{took:?}");
    let (error, took) = timed(|| lock.lock_within(&cancel).unwrap_err());
    assert!(error.kind() == ErrorKind::Cancelled && took.within(LATE), "{error}: {took:?}");
}

#[test]
fn s17_limits_are_kept_while_a_sibling_holds_and_the_server_is_down_on_time() {
    skip_without_server!();
    let rig = Rig::with_session("limits-down", Duration::from_secs(30));
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let line = Line::new();
    line.join(1, &lock);
    rig.site.server().kill();
    eventually(SOON, "the outage", || rig.zk.state() == SessionState::Suspended);
    limits_are_kept(&lock);
    // Nor does a handover need a server.
    let ((), took) = timed(|| drop(guard));
    assert!(took.within(LATE), "{took:?}");
    let guard = line.next(1);
    assert_eq!(guard.fencing_token().turn(), 1);
    limits_are_kept(&lock);
    rig.site.server().start_again();
    guard.unlock().unwrap();
    drop(lock);
    rig.finish();
}

#[test]
fn s18_limits_are_kept_while_a_sibling_waits_for_another_client_on_time() {
    skip_without_server!();
    let rig = Rig::with_session("limits-waiting", Duration::from_secs(30));
    let held = rig.theirs().lock().unwrap();
    let (lock, line) = (rig.lock(), Line::new());
    line.join(1, &lock);
    rig.site.wait_for_children("a", 2);
    limits_are_kept(&lock);
    assert_eq!(rig.children().len(), 2);
    rig.proxy.black_hole();
    for limit in [0, 1, 20, 150].map(Duration::from_millis) {
        let (result, took) = timed(|| lock.try_lock_for(limit));
        assert!(is_unanswered(result) && took.at_least(limit) && took.within(limit + LATE));
    }
    rig.proxy.pass();
    drop(held);
    drop(line.next(1));
    drop(lock);
    rig.finish();
}

#[test]
fn s20_one_who_gives_up_waiting_for_a_sibling_disturbs_no_other() {
    skip_without_server!();
    let rig = Rig::new("gives-up");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    rig.settle();
    let (cancel, line) = (Cancel::new(), Line::new());
    let (theirs, stop) = (lock.clone(), cancel.clone());
    let first = waiting(move || kind(theirs.lock_within(&stop)));
    let theirs = lock.clone();
    let second = waiting(move || theirs.try_lock_for(PROMPTLY).unwrap().is_none());
    line.join(1, &lock);
    cancel.cancel();
    assert_eq!(first.join().unwrap(), ErrorKind::Cancelled);
    assert!(second.join().unwrap());
    line.assert_nobody();
    rig.assert_one_look();
    drop(guard);
    let guard = line.next(1);
    assert_eq!(guard.fencing_token().turn(), 1, "threads that gave up were given a turn");
    drop((guard, lock));
    rig.finish();
}

/// Three siblings wait for another client, and the first two give up, one after the other.
fn the_place_is_left_to_the_next(test: &str, wait: fn(&DistributedLock, &Cancel) -> bool) {
    let rig = Rig::new(test);
    let held = rig.theirs().lock().unwrap();
    let (lock, line) = (rig.lock(), Line::new());
    let cancels = [Cancel::new(), Cancel::new()];
    let leavers = cancels.clone().map(|cancel| {
        let lock = lock.clone();
        let leaver = waiting(move || wait(&lock, &cancel));
        // The first one contends for all of them.
        rig.site.wait_for_children("a", 2);
        leaver
    });
    line.join(1, &lock);
    let third = rig.site.client();
    line.join(2, &DistributedLock::new(&third, &rig.site.base, "a"));
    rig.site.wait_for_children("a", 3);
    let queue = rig.theirs().contenders().unwrap();
    for (leaver, cancel) in leavers.into_iter().zip(&cancels) {
        cancel.cancel();
        assert!(leaver.join().unwrap(), "it did not give up");
        assert_eq!(rig.theirs().contenders().unwrap(), queue);
    }
    line.assert_nobody();
    drop(held);
    let guard = line.next(1);
    assert_eq!((guard.path(), guard.fencing_token().turn()), (&*queue[1].path, 0));
    assert_eq!(rig.proxy.count(opcode::CREATE), 1);
    assert_eq!(rig.proxy.count(opcode::DELETE), 0);
    drop(guard);
    drop(line.next(2));
    drop((lock, third));
    rig.finish();
}

#[test]
fn s20_who_contends_for_all_and_is_cancelled_leaves_its_place_to_the_next() {
    skip_without_server!();
    the_place_is_left_to_the_next("place-cancel", |lock, cancel| {
        kind(lock.lock_within(cancel)) == ErrorKind::Cancelled
    });
}

#[test]
fn s15_who_contends_for_all_until_its_time_is_over_leaves_its_place_to_the_next() {
    skip_without_server!();
    the_place_is_left_to_the_next("place-limit", |lock, _| {
        lock.try_lock_for(Duration::from_secs(4)).unwrap().is_none()
    });
}

#[test]
fn s20_who_contends_for_all_and_gives_up_last_leaves_no_node() {
    skip_without_server!();
    let rig = Rig::new("last");
    let held = rig.theirs().lock().unwrap();
    let lock = rig.lock();
    let cancels = [Cancel::new(), Cancel::new()];
    let leavers = cancels.clone().map(|cancel| {
        let lock = lock.clone();
        waiting(move || kind(lock.lock_within(&cancel)))
    });
    rig.site.wait_for_children("a", 2);
    for (leaver, cancel) in leavers.into_iter().zip(&cancels) {
        // The second leaver has taken the place of the first, or has made its own.
        rig.site.wait_for_children("a", 2);
        cancel.cancel();
        assert_eq!(leaver.join().unwrap(), ErrorKind::Cancelled);
    }
    assert_eq!(rig.children(), [last(held.path())], "its node was left");
    drop((held, lock));
    rig.finish();
}

// ----- losses

#[test]
fn s30_when_the_shared_node_is_deleted_the_siblings_do_not_wait_for_its_holder() {
    skip_without_server!();
    let rig = Rig::new("deleted");
    let (lock, line) = (rig.lock(), Line::new());
    let guard = lock.lock().unwrap();
    let (told, lost) = (losses(&guard), guard.lost());
    line.join(1, &lock);
    line.join(2, &lock);
    rig.site.raw().delete(guard.path()).unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
    assert_eq!(lost.reason(), Some(LossReason::NodeDeleted));
    assert!(!guard.is_held());
    let next = line.next(1);
    assert!(next.path() != guard.path() && next.fencing_token() > guard.fencing_token());
    assert_eq!(next.fencing_token().turn(), 0);
    // The former holder's end is nobody else's.
    assert_eq!(kind(guard.unlock()), ErrorKind::NodeDeleted);
    next.ensure_held().unwrap();
    line.assert_nobody();
    assert_eq!(rig.children(), [last(next.path())]);
    drop(next);
    let guard = line.next(2);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s26_when_the_session_is_lost_the_siblings_do_not_wait_for_the_holder() {
    skip_without_server!();
    let rig = Rig::with_session("expired", Duration::from_secs(3));
    let (lock, line) = (rig.lock(), Line::new());
    let guard = lock.lock().unwrap();
    let told = losses(&guard);
    line.join(1, &lock);
    line.join(2, &lock);
    rig.proxy.black_hole();
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::LeaseExpired));
    // The next one needs the ensemble to expire the session, too.
    rig.proxy.pass();
    let next = line.next(1);
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(next.fencing_token().turn(), 0);
    assert_eq!(kind(guard.ensure_held()), ErrorKind::SessionLost);
    assert_eq!(kind(guard.unlock()), ErrorKind::SessionLost);
    next.unlock().unwrap();
    drop(line.next(2));
    drop(lock);
    rig.finish();
}

#[test]
fn s28_when_the_lease_has_run_out_nothing_is_handed_on() {
    skip_without_server!();
    let rig = Rig::with_session("lease", Duration::from_secs(3));
    let lock = rig.lock();
    let b = DistributedLock::new(&rig.zk, &rig.site.base, "b").keep_for(LONG);
    drop(b.lock().unwrap());
    let guard = lock.lock().unwrap();
    let before = guard.fencing_token();
    let line = Line::new();
    line.join(1, &lock);
    rig.proxy.black_hole();
    eventually(SOON, "the end of the lease", || rig.zk.state() == SessionState::Lost);
    drop(guard);
    assert!(is_unanswered(lock.try_lock_for(Duration::from_millis(300))));
    assert!(is_unanswered(b.try_lock_for(Duration::from_millis(300))), "what was kept");
    line.assert_nobody();
    rig.proxy.pass();
    let guard = line.next(1);
    assert!(guard.fencing_token().zxid() > before.zxid());
    guard.ensure_held().unwrap();
    b.lock().unwrap().ensure_held().unwrap();
    drop((guard, lock, b));
    rig.finish();
}

#[test]
fn s22_when_the_client_is_closed_all_who_wait_are_told() {
    skip_without_server!();
    let rig = Rig::new("closed");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let told = losses(&guard);
    type Wait = fn(&DistributedLock) -> zklock::Result<Option<LockGuard>>;
    let waits: [Wait; 3] = [
        |lock| lock.lock().map(Some),
        |lock| lock.lock_within(&Cancel::new()),
        |lock| lock.try_lock_for(SOON),
    ];
    let waiters = waits.map(|wait| {
        let lock = lock.clone();
        waiting(move || kind(wait(&lock)))
    });
    let ((), took) = timed(|| rig.zk.close());
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), ErrorKind::Closed);
    }
    assert!(took.within(PROMPTLY), "{took:?}");
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::ClientClosed));
    assert_eq!(kind(guard.unlock()), ErrorKind::Closed);
    assert_eq!(kind(lock.try_lock()), ErrorKind::Closed);
    assert!(rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn a_holder_hears_nothing_of_later_turns_of_its_node() {
    skip_without_server!();
    let rig = Rig::new("earlier");
    let (lock, line) = (rig.lock(), Line::new());
    let guard = lock.lock().unwrap();
    let (told, lost) = (losses(&guard), guard.lost());
    let (ask, asked) = channel();
    guard.on_release_requested(move || ask.send(()).unwrap());
    let waiter = waiting({
        let lost = lost.clone();
        move || lost.wait()
    });
    line.join(1, &lock);
    drop(guard);
    let guard = line.next(1);
    assert_eq!(waiter.join().unwrap(), Ok(()));
    assert!(lost.wait_within(Duration::ZERO) == Some(Ok(())));
    assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    assert_eq!(asked.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));

    // The present holder's callbacks are called.
    let (ask, asked) = channel();
    guard.on_release_requested(move || ask.send(()).unwrap());
    assert_eq!(rig.theirs().request_release().unwrap(), 1);
    assert_eq!(asked.recv_timeout(SOON), Ok(()));
    let now = (losses(&guard), guard.lost());
    assert_eq!(now.1.wait_within(Duration::ZERO), None);
    rig.site.raw().delete(guard.path()).unwrap();
    assert_eq!(now.0.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
    assert_eq!(now.1.wait(), Err(LossReason::NodeDeleted));
    assert!(lost.wait_within(Duration::ZERO) == Some(Ok(())));
    assert_eq!(lost.wait(), Ok(()));
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s68_a_node_that_is_asked_for_is_released_rather_than_handed_on() {
    skip_without_server!();
    let rig = Rig::new("requested");
    let (lock, theirs, line) = (rig.lock(), rig.theirs(), Line::new());
    let guard = lock.lock().unwrap();
    line.join(2, &lock);
    line.join(3, &lock);
    line.join(1, &theirs);
    rig.site.wait_for_children("a", 2);
    let (ask, asked) = channel();
    guard.on_release_requested(move || ask.send(()).unwrap());
    assert_eq!(theirs.request_release().unwrap(), 1);
    assert_eq!(asked.recv_timeout(SOON), Ok(()));
    let first = guard.path().to_owned();
    drop(guard);
    let guard = line.next(1);
    rig.site.wait_for_children("a", 2);
    drop(guard);
    let guard = line.next(2);
    assert!(guard.path() != first && !guard.release_requested());
    assert_eq!(guard.fencing_token().turn(), 0);
    drop(guard);
    let guard = line.next(3);
    assert_eq!(guard.fencing_token().turn(), 1);
    drop((guard, lock, theirs));
    rig.finish();
}

// ----- errors

#[test]
fn s70_what_one_may_not_do_none_of_those_who_wait_with_it_may() {
    skip_without_server!();
    let rig = Rig::new("refused");
    let mut raw = rig.site.raw();
    raw.create_all(&rig.site.base).unwrap();
    let nobody = [raw::Acl::new(raw::ALL, "digest", "nobody:nothing")];
    let node = format!("{}/a", rig.site.base);
    raw.create_with_acl(&node, b"", Kind::Persistent, &nobody).unwrap();
    rig.proxy.stall_reply(opcode::CREATE);
    let lock = rig.lock();
    let waiters = [(); 4].map(|()| {
        let lock = lock.clone();
        let waiter = waiting(move || lock.lock().unwrap_err());
        assert!(rig.proxy.wait_for_request(opcode::CREATE, SOON));
        waiter
    });
    rig.proxy.release();
    for waiter in waiters {
        let error = waiter.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
        assert_eq!(error.path(), Some(&*node));
    }
    assert_eq!(rig.proxy.count(opcode::CREATE), 1);
    rig.proxy.pass();
    // Each new call asks the server again.
    assert_eq!(kind(lock.lock()), ErrorKind::NotAuthorized);
    assert_eq!(rig.proxy.count(opcode::CREATE), 2);
    raw.close().unwrap();
    drop(lock);
    rig.finish();
}

// ----- other recipes over it

#[test]
fn s05_a_reentrant_lock_is_handed_on_with_the_last_of_its_guards() {
    skip_without_server!();
    let rig = Rig::new("reentrant");
    let lock = ReentrantLock::from(rig.lock());
    let outer = lock.lock().unwrap();
    let token = outer.fencing_token();
    rig.settle();
    let (tell, told) = channel();
    let theirs = lock.clone();
    let sibling = waiting(move || {
        let outer = theirs.lock().unwrap();
        let inner = theirs.lock().unwrap();
        assert_eq!(outer.fencing_token(), inner.fencing_token());
        tell.send(outer.fencing_token()).unwrap();
    });
    let inner = lock.lock().unwrap();
    assert_eq!(inner.fencing_token(), token);
    drop(inner);
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    drop(lock.try_lock().unwrap().expect("it is ours"));
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    rig.assert_one_look();
    drop(outer);
    let theirs = told.recv_timeout(SOON).unwrap();
    assert_eq!((theirs.zxid(), theirs.turn()), (token.zxid(), 1));
    sibling.join().unwrap();
    drop(lock);
    rig.finish();
}

#[test]
fn s66_a_multi_lock_has_a_node_of_its_own_and_its_turn() {
    skip_without_server!();
    let rig = Rig::new("multi");
    let (lock, line) = (rig.lock(), Line::new());
    let b = DistributedLock::new(&rig.zk, &rig.site.base, "b");
    let guard = lock.lock().unwrap();
    rig.settle();
    line.join(1, &lock);
    line.join(2, &lock);
    drop(guard);
    let guard = line.next(1);
    rig.wait_for_looks(1, &guard);
    let both = MultiLock::new().with(&lock).with(&b);
    let before = rig.proxy.count(opcode::GET_CHILDREN);
    let ((granted, grant), (release, turn)) = (channel(), channel::<()>());
    let multi = waiting(move || {
        let guard = both.lock().unwrap();
        granted.send(()).unwrap();
        turn.recv().unwrap();
        guard.unlock().unwrap();
    });
    rig.site.wait_for_children("a", 2);
    // The multi-lock lists those before it; the holder's group lists other contenders.
    rig.wait_for_looks(before + 2, &guard);
    line.join(3, &lock);
    drop(guard);
    drop(line.next(2));
    grant.recv_timeout(SOON).unwrap();
    rig.site.wait_for_children("a", 2);
    line.assert_nobody();
    release.send(()).unwrap();
    multi.join().unwrap();
    drop(line.next(3));
    drop((lock, b));
    rig.finish();
}

// ----- keeping

const LONG: Duration = Duration::from_secs(600);

#[test]
fn s09_to_take_a_kept_lock_again_costs_no_request() {
    skip_without_server!();
    let rig = Rig::new("keep");
    let lock = rig.keeping(LONG);
    let guard = lock.lock().unwrap();
    rig.settle();
    let (path, zxid, _) = node_and_turn(&guard);
    drop(guard);
    // From now on the client watches for other contenders.
    assert!(rig.proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
    rig.proxy.reset_counts();
    let mut turn = 0;
    for round in 0..30 {
        let guard = match round % 3 {
            0 => lock.lock().unwrap(),
            1 => lock.try_lock().unwrap().expect("it is kept"),
            _ => rig.keeping(LONG).try_lock_for(Duration::ZERO).unwrap().expect("it is kept"),
        };
        let now = node_and_turn(&guard);
        assert_eq!((&*now.0, now.1), (&*path, zxid));
        assert!(now.2 > turn, "{} after {turn}", now.2);
        turn = now.2;
        assert!(guard.is_held());
        if round % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
    }
    assert_eq!(rig.proxy.requests(), []);
    assert_eq!(rig.children(), [last(&path)]);
    drop(lock);
    // The node is deleted with the last value.
    rig.site.wait_for_children("a", 0);
    rig.finish();
}

#[test]
fn s09_a_kept_lock_goes_to_another_client_as_soon_as_that_comes() {
    skip_without_server!();
    let rig = Rig::new("keep-other");
    let (lock, theirs) = (rig.keeping(LONG), rig.theirs());
    for _ in 0..5 {
        let mine = lock.lock().unwrap();
        let before = mine.fencing_token();
        drop(mine);
        assert_eq!(rig.children().len(), 1);
        let (guard, took) = timed(|| theirs.lock().unwrap());
        assert!(took.within(PROMPTLY), "{took:?}");
        assert!(guard.fencing_token() > before);
        assert!(lock.try_lock().unwrap().is_none());
        drop(guard);
    }
    // A `try_lock` may find it held, but makes the client release it.
    drop(lock.lock().unwrap());
    eventually(SOON, "the lock to be let go", || theirs.try_lock().unwrap().is_some());
    drop((lock, theirs));
    rig.finish();
}

#[test]
fn a_kept_lock_is_let_go_when_its_time_is_over() {
    skip_without_server!();
    let rig = Rig::new("keep-time");
    let limit = Duration::from_millis(1_500);
    let lock = rig.keeping(limit);
    drop(lock.lock().unwrap());
    drop(lock.lock().unwrap());
    // While the lock is held, the end of the keeping time does not release it.
    let guard = lock.lock().unwrap();
    let zxid = guard.fencing_token().zxid();
    eventually(SOON, "more than its time", {
        let start = Instant::now();
        move || start.elapsed() > limit * 2
    });
    guard.ensure_held().unwrap();
    let start = Stopwatch::start();
    drop(guard);
    assert_eq!(rig.children().len(), 1);
    eventually(SOON, "the end of keeping", || rig.children().is_empty());
    let took = start.took();
    println!("kept for {took:?} of {limit:?}");
    assert!(took.at_least(limit) && took.within(limit + PROMPTLY), "{took:?}");
    let guard = lock.lock().unwrap();
    assert!(guard.fencing_token().zxid() > zxid);
    drop(guard);
    eventually(SOON, "the end of keeping", || rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn a_lock_that_is_kept_for_no_time_at_all_is_one_lock_all_the_same() {
    skip_without_server!();
    let rig = Rig::new("keep-zero");
    let lock = rig.keeping(Duration::ZERO);
    // Makes the missing part of the path.
    drop(rig.theirs().lock().unwrap());
    let mut nodes = BTreeSet::new();
    for round in 0..300 {
        let guard = lock.lock().unwrap();
        nodes.insert(guard.path().to_owned());
        if round % 2 == 0 {
            thread::yield_now();
        }
        assert!(lock.try_lock().unwrap().is_none());
        drop(guard);
    }
    assert_eq!(rig.proxy.count(opcode::CREATE), nodes.len() as u64, "a create without a holder");
    eventually(SOON, "the end of keeping", || rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn a_kept_lock_goes_with_the_last_of_its_values() {
    skip_without_server!();
    let rig = Rig::new("keep-values");
    let lock = rig.keeping(LONG);
    let (twin, anew) = (lock.clone(), rig.keeping(LONG));
    drop(lock.lock().unwrap());
    // A value shares the kept node only from its first use on.
    drop(twin.lock().unwrap());
    drop(anew.lock().unwrap());
    assert_eq!(rig.children().len(), 1);
    drop(lock);
    drop(anew);
    assert_eq!(rig.children().len(), 1);
    drop(twin);
    rig.site.wait_for_children("a", 0);

    // A guard may outlive all values.
    let guard = rig.keeping(LONG).lock().unwrap();
    assert_eq!(rig.children().len(), 1);
    drop(guard);
    rig.site.wait_for_children("a", 0);
    rig.finish();
}

#[test]
fn s22_a_kept_lock_goes_with_its_client() {
    skip_without_server!();
    let rig = Rig::new("keep-close");
    let lock = rig.keeping(LONG);
    drop(lock.lock().unwrap());
    assert_eq!(rig.children().len(), 1);
    rig.zk.close();
    assert!(rig.children().is_empty());
    assert_eq!(kind(lock.lock()), ErrorKind::Closed);
    drop(lock);
    rig.finish();
}

#[test]
fn s69_a_kept_lock_is_held_as_far_as_others_see() {
    skip_without_server!();
    let rig = Rig::new("keep-seen");
    let (lock, theirs) = (rig.keeping(LONG), rig.theirs());
    let guard = lock.lock().unwrap();
    let path = guard.path().to_owned();
    drop(guard);
    let seen = theirs.contenders().unwrap();
    assert_eq!(seen.iter().map(|one| &*one.path).collect::<Vec<_>>(), [&*path]);
    assert_eq!(theirs.observe().next_within(SOON).unwrap(), Some(seen.clone()));
    assert_eq!(theirs.contenders().unwrap(), seen, "to look is not to ask");
    drop((lock, theirs));
    rig.finish();
}

#[test]
fn s26_a_session_that_is_lost_while_a_lock_is_kept_harms_nothing() {
    skip_without_server!();
    let timeout = Duration::from_millis(1_500);
    let rig = Rig::with_session("keep-expired", timeout);
    let keep = timeout * 2;
    let lock = rig.keeping(keep);
    let mut before = None;
    for round in 0..2 {
        let guard = lock.lock().unwrap();
        assert!(before < Some(guard.fencing_token()));
        assert_eq!(guard.fencing_token().turn(), 0);
        before = Some(guard.fencing_token());
        drop(guard);
        assert_eq!(rig.children().len(), 1);
        if round == 0 {
            rig.proxy.black_hole();
            eventually(SOON, "the loss", || rig.zk.state() == SessionState::Lost);
            rig.proxy.pass();
        }
    }
    // In the new session, too, it is released in time.
    eventually(SOON, "the end of keeping", || rig.children().is_empty());
    drop(lock);
    rig.finish();
}

#[test]
fn a_client_that_vanishes_while_it_keeps_a_lock_holds_others_up_for_its_session_on_time() {
    skip_without_server!();
    let timeout = Duration::from_millis(1_500);
    let rig = Rig::with_session("keep-killed", timeout);
    let (lock, theirs) = (rig.keeping(LONG), rig.theirs());
    drop(lock.lock().unwrap());
    assert!(rig.proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
    rig.proxy.black_hole();
    let (guard, took) = timed(|| theirs.lock().unwrap());
    println!("the other client waited {took:?}, with a session timeout of {timeout:?}");
    assert!(took.within(timeout + Duration::from_secs(1)), "{took:?}");
    rig.proxy.pass();
    let line = Line::new();
    line.join(1, &lock);
    rig.site.wait_for_children("a", 2);
    let token = guard.fencing_token();
    drop(guard);
    assert!(line.next(1).fencing_token() > token);
    drop((lock, theirs));
    rig.finish();
}

#[test]
fn s68_a_kept_lock_can_be_asked_for_and_taken_away() {
    skip_without_server!();
    let rig = Rig::new("keep-request");
    let (lock, theirs) = (rig.keeping(LONG), rig.theirs());
    let mut tokens = Vec::new();
    let mut take = || {
        eventually(SOON, "a lock that is held", || {
            let guard = lock.lock().unwrap();
            assert!(!guard.release_requested());
            // The client may notice a moment later that its node was deleted by force.
            match guard.ensure_held() {
                Ok(()) => tokens.push(guard.fencing_token()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NodeDeleted),
            }
            guard.is_held()
        });
    };
    take();
    assert_eq!(theirs.request_release().unwrap(), 1);
    eventually(SOON, "its release", || rig.children().is_empty());
    take();
    let kept = theirs.contenders().unwrap();
    assert!(theirs.break_lock(&kept[0]).unwrap());
    take();
    rig.site.raw().delete(&theirs.contenders().unwrap()[0].path).unwrap();
    take();
    assert!(tokens.iter().map(FencingToken::zxid).is_sorted_by(|a, b| a < b), "{tokens:?}");
    drop((lock, theirs));
    rig.finish();
}

#[test]
fn s25_a_kept_lock_outlasts_a_blip() {
    skip_without_server!();
    let rig = Rig::new("keep-blip");
    let lock = rig.keeping(LONG);
    let guard = lock.lock().unwrap();
    let path = guard.path().to_owned();
    drop(guard);
    let session = rig.zk.session_id();
    for _ in 0..3 {
        rig.proxy.reset_counts();
        rig.proxy.cut();
        // The client looks for other contenders again.
        assert!(rig.proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
        let guard = lock.lock().unwrap();
        guard.ensure_held().unwrap();
        assert_eq!(guard.path(), path);
    }
    assert_eq!(rig.zk.session_id(), session);
    let theirs = rig.theirs();
    let (guard, took) = timed(|| theirs.lock().unwrap());
    assert!(took.within(PROMPTLY), "{took:?}");
    drop((guard, lock, theirs));
    rig.finish();
}

#[test]
fn a_lock_that_is_kept_but_not_handed_over_is_in_the_ensembles_order() {
    skip_without_server!();
    let rig = Rig::new("keep-strict");
    let lock = rig.lock().hand_over(HandOver::Off).keep_for(LONG);
    let guard = lock.lock().unwrap();
    let first = guard.path().to_owned();
    drop(guard);
    let guard = lock.lock().unwrap();
    assert_eq!(guard.path(), first);
    let line = Line::new();
    let theirs = rig.theirs();
    for (number, lock) in (1..).zip([&lock, &theirs, &lock]) {
        line.join(number, lock);
        rig.site.wait_for_children("a", 1 + number as usize);
    }
    drop(guard);
    (1..=3).for_each(|number| drop(line.next(number)));
    drop((lock, theirs));
    eventually(SOON, "the last node", || rig.children().is_empty());
    rig.finish();
}

// ----- many

struct Ring {
    inside: AtomicBool,
    rounds: AtomicU64,
    last: Mutex<Option<FencingToken>>,
}

impl Ring {
    fn new() -> Ring {
        Ring { inside: AtomicBool::new(false), rounds: AtomicU64::new(0), last: Mutex::new(None) }
    }

    fn pass_through(&self, guard: LockGuard) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two holders at once");
        let token = guard.fencing_token();
        let before = self.last.lock().unwrap().replace(token);
        assert!(before < Some(token), "{before:?} came before {token}");
        thread::yield_now();
        assert!(guard.is_held());
        assert!(self.inside.swap(false, Ordering::SeqCst), "two holders at once");
        self.rounds.fetch_add(1, Ordering::SeqCst);
        drop(guard);
    }
}

#[test]
fn s03_of_many_threads_of_many_clients_never_are_two_inside() {
    skip_without_server!();
    const THREADS: usize = 8;
    const ROUNDS: u64 = 50;
    let site = Site::own("many");
    let clients = [(); 4].map(|()| site.client());
    let (ring, start) = (Ring::new(), Barrier::new(THREADS * clients.len()));
    thread::scope(|scope| {
        for (number, zk) in clients.iter().enumerate() {
            for thread in 0..THREADS {
                // Some threads keep the lock, some do not, and one client does not hand over.
                let builder = DistributedLock::new(zk, &site.base, "a");
                let lock = match number {
                    0 => builder.hand_over(HandOver::Off),
                    1 if thread % 2 == 0 => builder.keep_for(SOON),
                    2 => builder
                        .hand_over(HandOver::Within { turns: 2, time: Duration::from_millis(1) }),
                    _ => builder,
                };
                let (ring, start) = (&ring, &start);
                scope.spawn(move || {
                    start.wait();
                    (0..ROUNDS).for_each(|_| ring.pass_through(lock.lock().unwrap()));
                });
            }
        }
    });
    assert_eq!(ring.rounds.into_inner(), (THREADS * clients.len()) as u64 * ROUNDS);
    site.finish(clients);
}

#[test]
fn s23_of_many_threads_whose_connections_are_cut_never_are_two_inside() {
    skip_without_server!();
    const THREADS: usize = 6;
    let site = Site::own("many-cut");
    let [(one, first), (two, second)] = [(); 2].map(|()| site.proxied(Duration::from_secs(20)));
    let (ring, stop) = (Ring::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _at_the_end = Raise(&stop);
        for (number, zk) in [&first, &second].into_iter().enumerate() {
            for _ in 0..THREADS {
                let builder = DistributedLock::new(zk, &site.base, "a");
                let lock = if number == 0 { builder.keep_for(SOON) } else { builder };
                let (ring, stop) = (&ring, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        ring.pass_through(lock.lock().unwrap());
                    }
                });
            }
        }
        for proxy in [&one, &two].into_iter().cycle().take(20) {
            let before = ring.rounds.load(Ordering::SeqCst);
            proxy.cut();
            eventually(SOON, "the threads to go on", || {
                ring.rounds.load(Ordering::SeqCst) >= before + 200
            });
        }
    });
    println!("{} turns", ring.rounds.into_inner());
    site.finish([first, second]);
    drop((one, two));
}

/// Many threads come and give up, at every possible moment.
#[test]
fn s20_of_many_who_give_up_none_takes_the_lock_with_it() {
    skip_without_server!();
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 200;
    let rig = Rig::new("leavers");
    let ring = Ring::new();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let lock = if number == 0 { rig.theirs() } else { rig.lock() };
            let ring = &ring;
            scope.spawn(move || {
                let mut random = number + 1;
                for _ in 0..ROUNDS {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let limit = Duration::from_micros((random >> 33) % 3_000);
                    let result = match (random >> 60) % 4 {
                        0 => Ok(Some(lock.lock().unwrap())),
                        1 => lock.try_lock(),
                        2 => lock.try_lock_for(limit),
                        _ => cancelled_after(&lock, limit),
                    };
                    match result {
                        Ok(Some(guard)) => ring.pass_through(guard),
                        Ok(None) => {}
                        Err(error) => assert!(
                            matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Connect),
                            "{error}"
                        ),
                    }
                }
            });
        }
    });
    println!("{} turns in {} rounds", ring.rounds.into_inner(), THREADS * ROUNDS);
    drop(rig.lock().lock().unwrap());
    rig.finish();
}

fn cancelled_after(lock: &DistributedLock, limit: Duration) -> zklock::Result<Option<LockGuard>> {
    let cancel = Cancel::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(limit);
            cancel.cancel();
        });
        lock.lock_within(&cancel)
    })
}

#[test]
fn s20_a_token_that_was_tripped_before_takes_no_kept_lock() {
    skip_without_server!();
    let rig = Rig::new("keep-cancelled");
    let lock = rig.keeping(QUIET);
    drop(lock.lock().unwrap());
    let cancel = Cancel::new();
    cancel.cancel();
    assert_eq!(kind(lock.lock_within(&cancel)), ErrorKind::Cancelled);
    drop(lock.lock_within(&Cancel::new()).unwrap());
    drop(lock);
    rig.finish();
}

/// Whatever a holder's callbacks own is dropped where its drop may take the same lock.
#[test]
fn what_a_callback_owns_may_use_the_lock_when_it_is_dropped() {
    struct TakesIt(DistributedLock, Sender<bool>);
    impl Drop for TakesIt {
        fn drop(&mut self) {
            let taken = self.0.try_lock_for(Duration::ZERO).unwrap().is_some();
            let _ = self.1.send(taken);
        }
    }

    skip_without_server!();
    let rig = Rig::new("callback-drop");
    let lock = rig.lock();
    let guard = lock.lock().unwrap();
    let (tell, told) = channel();
    let owned = TakesIt(lock.clone(), tell);
    guard.on_lost(move |_| drop(owned));
    let theirs = lock.clone();
    let waiter = waiting(move || {
        let guard = theirs.lock().unwrap();
        // The first holder's callback is dropped while this guard is held.
        let taken = told.recv_timeout(SOON);
        drop(guard);
        taken
    });
    drop(guard);
    assert_eq!(waiter.join().unwrap(), Ok(false));
    drop(lock);
    rig.finish();
}
