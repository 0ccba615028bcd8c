//! Locks that may be held for some time at most.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{
    Cancel, Client, DistributedLock, DistributedRwLock, DistributedSemaphore, ErrorKind, Event,
    Hold, LeaderElection, LossReason, MultiLock, ReentrantLock, Result, SessionState,
};

use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::transport::secure_hosts;
use crate::support::{
    QUIET, alone, connecting, eventually, kind, last, skip_without_server, strict, threads_named,
    waiting,
};

/// Over while a test waits for it.
const SHORT: Duration = Duration::from_secs(1);
/// Not over before the test is.
const LONG: Duration = Duration::from_secs(3_600);
const SOON: Duration = Duration::from_secs(120);

fn losses(hold: &Hold) -> Receiver<LossReason> {
    let (tell, told) = channel();
    hold.on_lost(move |why| {
        let _ = tell.send(why);
    });
    told
}

fn locks(zk: &Client, site: &Site, limit: Duration) -> DistributedLock {
    DistributedLock::new(zk, &site.base, "a").hold_at_most(limit)
}

/// Checks that the program is told before the next contender holds, and what its guard says then.
fn check_told_first<T: Send + 'static>(
    what: &str,
    hold: &Hold,
    next: impl FnOnce() -> Result<T> + Send + 'static,
) -> T {
    let order = Arc::new(Mutex::new(Vec::new()));
    let (told, held) = (Arc::clone(&order), Arc::clone(&order));
    hold.on_lost(move |why| told.lock().unwrap().push(Some(why)));
    let token = Cancel::from(hold.lost());
    let (tell, granted) = channel();
    thread::spawn(move || {
        let next = next().unwrap();
        held.lock().unwrap().push(None);
        let _ = tell.send(next);
    });
    assert_eq!(hold.lost().wait_within(SOON), Some(Err(LossReason::HeldTooLong)), "{what}");
    assert!(!hold.is_held(), "{what}");
    assert_eq!(hold.lease_left(), Duration::ZERO, "{what}");
    assert_eq!(kind(hold.ensure_held()), ErrorKind::HeldTooLong, "{what}");
    let next = granted.recv_timeout(SOON).expect("the next one holds");
    assert!(token.is_cancelled(), "{what}");
    assert_eq!(*order.lock().unwrap(), [Some(LossReason::HeldTooLong), None], "{what}");
    next
}

#[test]
fn the_program_is_told_before_the_next_one_holds_whatever_the_guard() {
    skip_without_server!();
    let site = Site::shared("told-first");
    let [zk, other] = [(); 2].map(|()| site.quiet_client());
    let mutex = |zk: &Client, name: &str| DistributedLock::new(zk, &site.base, name);
    let shared = |zk: &Client, name: &str| DistributedRwLock::new(zk, &site.base, name);
    let permits = |zk: &Client| DistributedSemaphore::new(zk, &site.base, "permits", 2);
    let election = |zk: &Client| LeaderElection::new(zk, &site.base, "leader");

    let guard = mutex(&zk, "mutex").hold_at_most(SHORT).lock().unwrap();
    let next = mutex(&other, "mutex");
    drop(check_told_first("mutex", &guard, move || next.lock()));
    assert_eq!(kind(guard.unlock()), ErrorKind::HeldTooLong);

    let guard = shared(&zk, "read").hold_at_most(SHORT).read().unwrap();
    let next = shared(&other, "read");
    drop(check_told_first("read", &guard, move || next.write()));
    assert_eq!(kind(guard.unlock()), ErrorKind::HeldTooLong);

    let guard = shared(&zk, "write").hold_at_most(SHORT).write().unwrap();
    let next = shared(&other, "write");
    drop(check_told_first("write", &guard, move || next.read()));
    assert_eq!(kind(guard.downgrade()), ErrorKind::HeldTooLong);

    let permit = permits(&zk).hold_at_most(SHORT).acquire().unwrap();
    let next = permits(&other);
    drop(check_told_first("permits", &permit, move || next.acquire_many(2)));
    assert_eq!(kind(permit.release()), ErrorKind::HeldTooLong);

    let leader = election(&zk).hold_at_most(SHORT).campaign().unwrap();
    let next = election(&other);
    drop(check_told_first("leadership", &leader, move || next.campaign()));
    assert_eq!(kind(leader.resign()), ErrorKind::HeldTooLong);

    let lock = ReentrantLock::from(mutex(&zk, "reentrant").hold_at_most(SHORT));
    let outer = lock.lock().unwrap();
    let next = mutex(&other, "reentrant");
    drop(check_told_first("reentrant", &outer, move || next.lock()));
    assert_eq!(kind(lock.lock()), ErrorKind::HeldTooLong, "it is not locked anew");
    assert_eq!(kind(outer.unlock()), ErrorKind::HeldTooLong);

    let [free, limited] = [mutex(&zk, "one"), mutex(&zk, "two").hold_at_most(SHORT)];
    let guard = MultiLock::new().with(&free).with(&limited).lock().unwrap();
    let next = mutex(&other, "two");
    drop(check_told_first("several", &guard, move || next.lock()));
    assert_eq!(site.children("one").len(), 1, "the other lock goes with the guard");
    assert_eq!(kind(guard.unlock()), ErrorKind::HeldTooLong);
    drop((lock, free, limited));
    site.finish([zk, other]);
}

#[test]
fn a_limit_that_is_too_short_is_refused() {
    skip_without_server!();
    let site = Site::shared("too-short");
    let zk = site.quiet_client();
    for limit in [Duration::ZERO, Duration::from_millis(9)] {
        let lock = locks(&zk, &site, limit);
        let error = lock.lock().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(&format!("hold_at_most({limit:?}) is too short")));
        assert_eq!(kind(MultiLock::new().with(&lock).lock()), ErrorKind::InvalidArgument);
        assert_eq!(kind(ReentrantLock::from(lock).try_lock()), ErrorKind::InvalidArgument);
        let lock = DistributedRwLock::new(&zk, &site.base, "a").hold_at_most(limit);
        assert_eq!(kind(lock.try_write()), ErrorKind::InvalidArgument);
        let lock = LeaderElection::new(&zk, &site.base, "a").hold_at_most(limit);
        assert_eq!(kind(lock.try_campaign()), ErrorKind::InvalidArgument);
    }
    // Too long for the clock.
    drop(locks(&zk, &site, Duration::MAX).lock().unwrap());
    site.finish([zk]);
}

#[test]
fn the_event_tells_the_limit() {
    skip_without_server!();
    let site = Site::shared("limit-event");
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let zk = site.builder().session_timeout(QUIET).on_event(move |event| {
        if let Event::HoldLost { .. } = event {
            let _ = tell.lock().unwrap().send(event.clone());
        }
    });
    let zk = zk.connect().unwrap();
    let guard = locks(&zk, &site, SHORT).lock().unwrap();
    let event = told.recv_timeout(SOON).unwrap();
    let Event::HoldLost { reason, details: Some(details), held: Some(held), .. } = &event else {
        panic!("{event:?}")
    };
    assert_eq!((*reason, details.as_str()), (LossReason::HeldTooLong, "at most 1s"));
    assert!(*held > Duration::ZERO);
    let text = event.to_string();
    assert!(text.contains("held for longer than allowed: at most 1s"), "{text}");
    drop(guard);
    site.finish([zk]);
}

#[test]
fn a_callback_that_hangs_does_not_keep_the_next_one_waiting() {
    skip_without_server!();
    let site = Site::shared("hangs");
    let [zk, other] = [(); 2].map(|()| site.quiet_client());
    let guard = locks(&zk, &site, SHORT).lock().unwrap();
    let ((go_on, hangs), (begin, begun)) = (channel::<()>(), channel());
    guard.on_lost(move |_| {
        begin.send(()).unwrap();
        let _ = hangs.recv();
    });
    let next = DistributedLock::new(&other, &site.base, "a").lock_within(SOON).unwrap();
    assert!(next.is_some(), "the next one waits for the callback");
    // It had begun when the next one was granted the lock.
    assert_eq!(begun.try_recv(), Ok(()));
    go_on.send(()).unwrap();
    drop((guard, next));
    site.finish([zk, other]);
}

#[test]
fn a_transaction_after_the_end_is_refused() {
    skip_without_server!();
    let site = Site::shared("late-transaction");
    let zk = site.quiet_client();
    let guard = locks(&zk, &site, SHORT).lock().unwrap();
    let lost = guard.lost();
    let transaction = guard.transaction().delete(format!("{}/late", site.base));
    assert_eq!(lost.wait_within(SOON), Some(Err(LossReason::HeldTooLong)));
    assert_eq!(kind(transaction.commit()), ErrorKind::HeldTooLong);
    drop(guard);
    site.finish([zk]);
}

// ----- threads that share a node

/// Threads that wait for a lock, and send the guards that they get.
fn waiter(lock: &DistributedLock) -> Receiver<zklock::LockGuard> {
    let (lock, (tell, told)) = (lock.clone(), channel());
    drop(waiting(move || {
        let _ = tell.send(lock.lock().unwrap());
    }));
    told
}

#[test]
fn each_turn_of_a_shared_node_has_its_own_time() {
    skip_without_server!();
    let limit = Duration::from_secs(4);
    let site = Site::shared("turns");
    let zk = site.quiet_client();
    let lock = locks(&zk, &site, limit);
    // On a busy machine, the first turn may end too late.
    let is_done = (0..20).any(|_| {
        let first = lock.lock().unwrap();
        let next = waiter(&lock);
        eventually(SOON, "half of the time", || first.lease_left() < limit / 2);
        let (before, path) = (Instant::now(), first.path().to_owned());
        let unlocked = first.unlock();
        let next = next.recv_timeout(SOON).unwrap();
        if unlocked.is_err() || next.path() != path {
            return false;
        }
        assert_eq!(next.fencing_token().turn(), 1);
        assert_eq!(next.lost().wait_within(SOON), Some(Err(LossReason::HeldTooLong)));
        assert!(before.elapsed() >= limit, "counted from the first one's grant");
        true
    });
    assert!(is_done, "the node is never handed on");
    drop(lock);
    site.finish([zk]);
}

#[test]
fn when_a_turn_has_ended_the_next_thread_queues_anew() {
    skip_without_server!();
    let site = Site::shared("queues-anew");
    let zk = site.quiet_client();
    let lock = locks(&zk, &site, SHORT);
    let guard = lock.lock().unwrap();
    let told = losses(&guard);
    let next = waiter(&lock).recv_timeout(SOON).unwrap();
    assert_eq!(told.try_recv(), Ok(LossReason::HeldTooLong));
    assert!(next.path() != guard.path() && next.fencing_token() > guard.fencing_token());
    assert_eq!(next.fencing_token().turn(), 0);
    assert_eq!(kind(guard.unlock()), ErrorKind::HeldTooLong);
    drop((next, lock));
    site.finish([zk]);
}

#[test]
fn the_time_in_which_a_node_is_kept_does_not_count() {
    skip_without_server!();
    let site = Site::shared("kept-time");
    let zk = site.quiet_client();
    let lock = locks(&zk, &site, SHORT * 2).keep_for(LONG);
    // On a busy machine, the first turn may end too late.
    let is_done = (0..20).any(|round| {
        let first = lock.lock().unwrap();
        let path = first.path().to_owned();
        if first.unlock().is_err() {
            return false;
        }
        // The same time passes for another lock.
        let name = format!("clock-{round}");
        let clock = DistributedLock::new(&zk, &site.base, name).hold_at_most(SHORT * 3);
        let clock = clock.lock().unwrap();
        assert_eq!(clock.lost().wait_within(SOON), Some(Err(LossReason::HeldTooLong)));
        let before = Instant::now();
        let next = lock.lock().unwrap();
        if next.path() != path {
            return false;
        }
        assert_eq!(next.lost().wait_within(SOON), Some(Err(LossReason::HeldTooLong)));
        assert!(before.elapsed() >= SHORT * 2, "counted from before");
        true
    });
    assert!(is_done, "the kept node is never taken again");
    drop(lock);
    site.finish([zk]);
}

// ----- other guards

#[test]
fn a_downgraded_guard_has_what_was_left_to_the_writer() {
    skip_without_server!();
    let site = Site::shared("downgraded");
    let [zk, other] = [(); 2].map(|()| site.quiet_client());
    let lock = |limit| DistributedRwLock::new(&zk, &site.base, "a").hold_at_most(limit);
    let writer = lock(SOON).write().unwrap();
    eventually(SOON, "some of the time to pass", || writer.lease_left() < SOON - SHORT);
    let left = writer.lease_left();
    let reader = writer.downgrade().unwrap();
    assert!(reader.lease_left() < left, "counted anew");
    drop(reader);
    // On a busy machine, the writer's time may be over too soon.
    let reader = (0..20).find_map(|_| lock(SHORT * 3).write().unwrap().downgrade().ok()).unwrap();
    let next = DistributedRwLock::new(&other, &site.base, "a");
    drop(check_told_first("downgraded", &reader, move || next.write()));
    drop(reader);
    site.finish([zk, other]);
}

/// It says why, and makes no reader's node.
#[test]
fn what_was_held_too_long_is_not_downgraded() {
    skip_without_server!();
    let site = Site::own("not-downgraded");
    let (proxy, zk) = site.proxied(QUIET);
    let writer = DistributedRwLock::new(&zk, &site.base, "a").hold_at_most(SHORT).write().unwrap();
    eventually(SOON, "the end of the time", || !writer.is_held());
    site.wait_for_children("a", 0);
    proxy.reset_counts();
    assert_eq!(kind(writer.downgrade()), ErrorKind::HeldTooLong);
    let made = |path: &str| path.starts_with(&format!("{}/a/", site.base));
    let seen = proxy.requests();
    assert!(!seen.iter().any(|seen| seen.path.as_deref().is_some_and(made)), "{seen:?}");
    site.finish([zk]);
    drop(proxy);
}

#[test]
fn a_second_reentrant_guard_has_what_is_left_to_the_first() {
    skip_without_server!();
    let site = Site::shared("reentrant-time");
    let zk = site.quiet_client();
    let lock = ReentrantLock::from(locks(&zk, &site, SOON));
    let first = lock.lock().unwrap();
    eventually(SOON, "some of the time to pass", || first.lease_left() < SOON - SHORT);
    let left = first.lease_left();
    assert!(lock.lock().unwrap().lease_left() < left);
    drop((first, lock));
    site.finish([zk]);
}

#[test]
fn of_several_locks_that_share_a_path_the_shorter_time_counts() {
    skip_without_server!();
    let site = Site::shared("shorter-time");
    let zk = site.quiet_client();
    let lock = |limit| locks(&zk, &site, limit);
    for (one, other) in [(SHORT, LONG), (LONG, SHORT)] {
        let guard = MultiLock::new().with(&lock(one)).with(&lock(other)).lock().unwrap();
        assert_eq!(guard.lost().wait_within(SOON), Some(Err(LossReason::HeldTooLong)));
    }
    site.finish([zk]);
}

#[test]
fn a_leader_whose_time_is_over_campaigns_again() {
    skip_without_server!();
    let site = Site::shared("terms");
    let zk = site.quiet_client();
    let election = LeaderElection::new(&zk, &site.base, "a").hold_at_most(SHORT);
    let mut tokens = Vec::new();
    let led = election.lead(|leadership| {
        tokens.push(leadership.fencing_token());
        if tokens.len() == 3 {
            return Ok(ControlFlow::Break(()));
        }
        assert_eq!(leadership.lost().wait_within(SOON), Some(Err(LossReason::HeldTooLong)));
        Ok(ControlFlow::Continue(()))
    });
    led.unwrap();
    assert!(tokens.is_sorted() && election.progress().last_error.is_none());
    drop(election);
    site.finish([zk]);
}

// ----- outages and pauses

#[test]
fn without_a_connection_the_loss_is_told_and_the_node_goes_later() {
    skip_without_server!();
    let site = Site::own("no-connection");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    // On a busy machine, its time may be over before there is no connection.
    let (guard, next) = (0..20)
        .find_map(|_| {
            proxy.pass();
            let guard = locks(&zk, &site, SHORT * 3).lock().unwrap();
            proxy.refuse();
            eventually(SOON, "the outage", || zk.state() == SessionState::Suspended);
            let lock = DistributedLock::new(&other, &site.base, "a");
            let next = guard.is_held().then(|| waiter(&lock))?;
            Some((guard, next))
        })
        .unwrap();
    assert_eq!(losses(&guard).recv_timeout(SOON), Ok(LossReason::HeldTooLong));
    assert_eq!(kind(guard.ensure_held()), ErrorKind::HeldTooLong);
    assert!(site.raw().exists(guard.path()).unwrap().is_some(), "deleted without a connection");
    assert!(next.try_recv().is_err(), "two holders at once");
    proxy.pass();
    drop(next.recv_timeout(SOON).unwrap());
    assert_eq!(kind(guard.unlock()), ErrorKind::HeldTooLong);
    site.finish([zk, other]);
    drop(proxy);
}

#[test]
fn the_node_is_deleted_though_the_first_answer_is_lost_or_a_refusal() {
    skip_without_server!();
    let site = Site::own("insists");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    for refused in [false, true] {
        let guard = locks(&zk, &site, SHORT).lock().unwrap();
        match refused {
            true => proxy.deny(opcode::DELETE, last(guard.path()), -102),
            false => proxy.drop_request(opcode::DELETE, 1),
        }
        let lock = DistributedLock::new(&other, &site.base, "a");
        let next = waiter(&lock);
        assert_eq!(losses(&guard).recv_timeout(SOON), Ok(LossReason::HeldTooLong));
        if refused {
            assert!(proxy.wait_for_requests(opcode::DELETE, 2, SOON), "it is not repeated");
            proxy.pass();
        }
        drop(next.recv_timeout(SOON).unwrap());
        drop((guard, lock));
        proxy.reset_counts();
    }
    site.finish([zk, other]);
    drop(proxy);
}

/// This test binary again, with [`helper_that_may_hold_for_a_while`] only.
struct Helper {
    child: Child,
    orders: ChildStdin,
}

const HELPER: &str = "hold_at_most::helper_that_may_hold_for_a_while";
const HELPER_HOSTS: &str = "ZKLOCK_TEST_LIMITED_HOSTS";
const HELPER_BASE: &str = "ZKLOCK_TEST_LIMITED_BASE";
/// The helper makes files whose names begin so: `-held` and `-not-held` when asked, `-told` when it is told.
const HELPER_FILE: &str = "ZKLOCK_TEST_LIMITED_FILE";

impl Helper {
    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless another test has started it.
#[test]
fn helper_that_may_hold_for_a_while() {
    let setting = |name| std::env::var(name).ok();
    let (Some(hosts), Some(base)) = (setting(HELPER_HOSTS), setting(HELPER_BASE)) else { return };
    let file = setting(HELPER_FILE).unwrap();
    let zk = connecting(&hosts).session_timeout(QUIET).connect().unwrap();
    let lock = DistributedLock::new(&zk, &base, "a").hold_at_most(SHORT * 3);
    let guard = lock.lock().unwrap();
    let told = format!("{file}-told");
    guard.on_lost(move |_| fs::write(told, "").unwrap());
    println!("helper: holds");
    let _ = std::io::stdin().lines().next();
    let answer = if guard.is_held() { "held" } else { "not-held" };
    fs::write(format!("{file}-{answer}"), "").unwrap();
    let _ = std::io::stdin().lines().next();
}

#[test]
fn a_process_that_was_stopped_is_told_before_the_next_one_holds() {
    skip_without_server!();
    let site = Site::shared("stopped");
    let zk = site.quiet_client();
    let file = std::env::temp_dir().join(format!("zklock-limited-{}", std::process::id()));
    let file = file.to_str().unwrap();
    let is_there = |what: &str| fs::exists(format!("{file}-{what}")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", HELPER, "--nocapture", "--test-threads=1"])
        .env(HELPER_HOSTS, secure_hosts(site.hosts()))
        .env(HELPER_BASE, &site.base)
        .env(HELPER_FILE, file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (orders, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut helper = Helper { child, orders };
    let mut lines = BufReader::new(output).lines();
    assert!(lines.any(|line| line.unwrap().contains("helper: holds")));
    helper.signal("STOP");
    let stat = format!("/proc/{}/stat", helper.child.id());
    eventually(SOON, "the helper to stop", || {
        let stat = fs::read_to_string(&stat).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    });
    let next = waiter(&DistributedLock::new(&zk, &site.base, "a"));
    // Its time passes meanwhile.
    let limited = |name| DistributedLock::new(&zk, &site.base, name).hold_at_most(SHORT * 4);
    let clock = limited("clock").lock().unwrap();
    assert_eq!(clock.lost().wait_within(SOON), Some(Err(LossReason::HeldTooLong)));
    // Unless it was over before the helper was stopped.
    let was_told = is_there("told");
    assert!(was_told || next.try_recv().is_err(), "the next one holds before the first is told");
    writeln!(helper.orders, "is it held?").unwrap();
    helper.signal("CONT");
    let guard = next.recv_timeout(SOON).unwrap();
    assert!(is_there("told"), "the next one holds before the first is told");
    eventually(SOON, "an answer", || is_there("held") || is_there("not-held"));
    assert!(!is_there("held"), "held after its time");
    drop((helper, guard, clock));
    for what in ["told", "not-held"] {
        fs::remove_file(format!("{file}-{what}")).unwrap();
    }
    site.finish([zk]);
}

#[test]
fn of_several_locks_none_goes_on_while_the_program_is_told() {
    skip_without_server!();
    let site = Site::shared("limited-several");
    let (zk, other) = (site.quiet_client(), site.quiet_client());
    let names = ["a", "b", "c"];
    let several = names.iter().fold(MultiLock::new(), |several, name| {
        let lock = strict(&zk, &site.base, name).hold_at_most(SHORT);
        several.with(&lock)
    });
    let guard = several.lock().unwrap();
    let (begun, order) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(Vec::new())));
    let (is_begun, told) = (Arc::clone(&begun), Arc::clone(&order));
    guard.on_lost(move |_| {
        *is_begun.lock().unwrap() = true;
        // Less than the half second that it has.
        thread::sleep(Duration::from_millis(200));
        told.lock().unwrap().push("told");
    });
    let waiters = names.map(|name| {
        let (lock, order) = (strict(&other, &site.base, name), Arc::clone(&order));
        thread::spawn(move || {
            let _guard = lock.lock().unwrap();
            order.lock().unwrap().push(name);
        })
    });
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    let order = order.lock().unwrap().clone();
    assert_eq!((order.len(), order[0]), (4, "told"), "{order:?}");
    assert!(*begun.lock().unwrap());
    drop((guard, several));
    site.finish([zk, other]);
}

#[test]
fn a_deletion_that_gets_no_answer_makes_no_loss_late() {
    skip_without_server!();
    let site = Site::own("limited-busy");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.client();
    let theirs = strict(&other, &site.base, "b").lock().unwrap();
    let guard = locks(&zk, &site, SHORT).lock().unwrap();
    let told = losses(&guard);
    // What this leaves behind is deleted in the background.
    proxy.stall_reply(opcode::DELETE);
    let in_vain = strict(&zk, &site.base, "b");
    assert!(in_vain.try_lock_for(Duration::from_millis(100)).unwrap().is_none());
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::HeldTooLong));
    proxy.pass();
    drop((guard, theirs, in_vain));
    site.finish([zk, other]);
    drop(proxy);
}

// ----- costs

#[test]
fn a_limited_lock_costs_no_further_request_and_leaves_nothing_behind() {
    skip_without_server!();
    const ROUNDS: u64 = 50;
    let site = Site::own("limited-costs");
    let (proxy, zk) = site.proxied(QUIET);
    let lock = strict(&zk, &site.base, "a").hold_at_most(LONG);
    drop(lock.lock().unwrap());
    eventually(SOON, "the delete", || proxy.count(opcode::DELETE) == 1);
    proxy.reset_counts();
    for _ in 0..ROUNDS {
        drop(lock.lock().unwrap());
    }
    eventually(SOON, "the last delete", || proxy.count(opcode::DELETE) >= ROUNDS);
    let mut counts = BTreeMap::new();
    for request in proxy.requests() {
        *counts.entry(request.opcode).or_default() += 1;
    }
    // A lock that is held longer, as happens on a busy processor, also sets a watch.
    assert!(counts.remove(&opcode::GET_DATA).unwrap_or_default() <= ROUNDS);
    let expected = [opcode::CREATE, opcode::DELETE, opcode::GET_CHILDREN];
    assert_eq!(counts, BTreeMap::from(expected.map(|opcode| (opcode, ROUNDS))));
    // Tests that share a process cannot tell which threads are their own.
    if alone() {
        let waits = || !threads_named("zklock-timer").is_empty();
        eventually(SOON, "the thread that waits for the time to be over", || !waits());
    }
    drop(lock);
    site.finish([zk]);
    drop(proxy);
}
