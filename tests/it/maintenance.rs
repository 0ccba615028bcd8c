//! Locks that are held for maintenance, with no process that stays.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use zklock::maintenance::{MaintenanceEnd, MaintenanceHold};
use zklock::{
    Cancel, Client, Contender, DistributedLock, DistributedRwLock, DistributedSemaphore, ErrorKind,
    LeaderElection, LockNode, NodeNaming, ReentrantLock, Wait,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::{
    QUIET, connecting, eventually, in_background, kind, last, mutex, skip_without_zookeeper,
    strict, waiting,
};

/// How long anything may take on a busy machine.
const LONG: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(15);
const BRIEFLY: Duration = Duration::from_millis(300);
/// The data of a raw hold that ends a moment after it is made.
const OVER: &[u8] = b"maintenance: over\nv=1 maintenance=held ends=after:1\nmade by a test";

fn hold(lock: &LockNode, end: MaintenanceEnd) -> Contender {
    lock.hold_for_maintenance("disk", end, SOON).unwrap().expect("a lock that nobody has")
}

fn told(hold: &Contender) -> MaintenanceHold {
    hold.maintenance().expect("a maintenance hold")
}

fn the_hold(lock: &LockNode) -> Contender {
    let mut holds = lock.contenders().unwrap();
    holds.retain(|one| one.maintenance().is_some());
    assert_eq!(holds.len(), 1, "{holds:?}");
    holds.remove(0)
}

/// What the ensemble's clock says now.
fn ensemble_clock(site: &Site) -> SystemTime {
    let (mut raw, path) = (site.raw(), format!("{}/clock", site.base));
    raw.create_all(&site.base).unwrap();
    raw.create(&path, b"", Kind::Ephemeral).unwrap();
    let stat = raw.exists(&path).unwrap().expect("the node");
    raw.delete(&path).unwrap();
    raw.close().unwrap();
    SystemTime::UNIX_EPOCH + Duration::from_millis(stat.ctime.unsigned_abs())
}

#[test]
fn a_hold_keeps_everybody_out_and_says_why_until_it_is_released() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-all");
    let (operator, zk) = (site.client(), site.quiet_client());
    let new = |zk: &Client, name: &str| strict(zk, &site.base, name).data("ops@host\nmore");
    let mut releases = Vec::new();
    for name in ["mutex", "semaphore", "rw", "reentrant", "election"] {
        let lock = new(&operator, name);
        let held = hold(&lock, MaintenanceEnd::Never);
        let MaintenanceHold { reason, made_by, is_asked_for, ends, .. } = told(&held);
        assert_eq!((&*reason, &*made_by, is_asked_for, ends), ("disk", "ops@host", false, None));
        assert!(held.holds && held.session.is_none() && held.held_since() >= held.since);
        assert_eq!(the_hold(&lock).path, held.path);
        assert_eq!(held.label(), "maintenance: disk");
        releases.push((lock, held));
    }
    assert!(mutex(&zk, &site.base, "mutex").try_lock().unwrap().is_none());
    let semaphore = DistributedSemaphore::new(&zk, &site.base, "semaphore", 3);
    assert!(semaphore.try_acquire().unwrap().is_none());
    // A read/write lock of ours respects a mutex's name, too.
    let rw = DistributedRwLock::new(&zk, &site.base, "rw");
    assert!(rw.try_read().unwrap().is_none() && rw.try_write().unwrap().is_none());
    let reentrant = ReentrantLock::new(&zk, &site.base, "reentrant");
    assert!(reentrant.try_lock().unwrap().is_none());
    let election = LeaderElection::new(&zk, &site.base, "election");
    assert!(election.try_campaign().unwrap().is_none());
    assert!(election.leader().unwrap().is_none(), "nobody leads during a hold");
    assert!(election.observe().next().unwrap().unwrap().is_none());
    for (lock, held) in &releases {
        assert!(lock.release_maintenance(held).unwrap());
        assert!(!lock.release_maintenance(held).unwrap(), "it is gone");
    }
    assert!(mutex(&zk, &site.base, "mutex").try_lock().unwrap().is_some());
    assert!(semaphore.try_acquire_many(3).unwrap().is_some());
    assert!(rw.try_write().unwrap().is_some());
    drop((releases, semaphore, rw, reentrant, election));
    site.finish([operator, zk]);
}

#[test]
fn looks_that_are_repeated_show_an_end_that_was_moved() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-looks");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let held = hold(&lock, MaintenanceEnd::Never);
    let list = zk.locks(&site.base).unwrap().expect("the base");
    let waits = zk.waits(&site.base).unwrap().expect("the base");
    let has_end = |one: &Contender| told(one).ends.is_some();
    assert!(!has_end(list.locks[0].first.as_ref().unwrap()) && !has_end(&waits.contenders[0]));
    let end = MaintenanceEnd::After(Duration::from_secs(3_600));
    assert!(lock.change_maintenance(&held, end).unwrap());
    let list = list.refresh(&zk).unwrap().expect("the base");
    assert!(has_end(list.locks[0].first.as_ref().unwrap()));
    let waits = waits.refresh(&zk, 500).unwrap().expect("the base");
    assert!(has_end(&waits.contenders[0]));
    assert!(lock.release_maintenance(&held).unwrap());
    drop((lock, waits));
    site.finish([zk]);
}

#[test]
fn a_hold_is_asked_for_until_those_ahead_have_left_and_later_ones_wait_behind_it() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-asked");
    let (operator, zk) = (site.quiet_client(), site.quiet_client());
    let (lock, theirs) = (mutex(&operator, &site.base, "a"), strict(&zk, &site.base, "a"));
    let guard = theirs.lock().unwrap();
    let asks = lock.clone();
    let asked = in_background(move || asks.hold_for_maintenance("x", MaintenanceEnd::Never, LONG));
    eventually(SOON, "the hold", || lock.contenders().unwrap().len() == 2);
    let found = the_hold(&lock);
    assert!(told(&found).is_asked_for && told(&found).ends.is_some() && !found.holds);
    assert_eq!(
        kind(lock.change_maintenance(&found, MaintenanceEnd::Never)),
        ErrorKind::InvalidArgument
    );
    let later = strict(&zk, &site.base, "a");
    let waiter = waiting(move || later.lock().unwrap());
    eventually(SOON, "the later contender", || lock.contenders().unwrap().len() == 3);
    drop(guard);
    let held = asked.recv_timeout(LONG).unwrap().unwrap().expect("the lock");
    assert_eq!((&held.path, told(&held).is_asked_for, held.holds), (&found.path, false, true));
    assert!(!waiter.is_finished());
    assert!(lock.release_maintenance(&held).unwrap());
    drop(waiter.join().unwrap());
    drop((lock, theirs));
    site.finish([operator, zk]);
}

#[test]
fn a_hold_that_does_not_get_the_lock_leaves_nothing() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-in-vain");
    let (operator, zk) = (site.quiet_client(), site.quiet_client());
    let (lock, theirs) = (mutex(&operator, &site.base, "a"), mutex(&zk, &site.base, "a"));
    let guard = theirs.lock().unwrap();
    assert!(lock.hold_for_maintenance("x", MaintenanceEnd::Never, BRIEFLY).unwrap().is_none());
    site.wait_for_only("a", guard.path());
    // Its own time is over.
    let past = MaintenanceEnd::At(SystemTime::now() - Duration::from_secs(60));
    assert!(lock.hold_for_maintenance("x", past, LONG).unwrap().is_none());
    site.wait_for_only("a", guard.path());
    let cancel = Cancel::new();
    let (asks, wait) = (lock.clone(), Wait::from(&cancel));
    let asked = in_background(move || asks.hold_for_maintenance("x", MaintenanceEnd::Never, wait));
    site.wait_for_children("a", 2);
    cancel.cancel();
    assert_eq!(kind(asked.recv_timeout(LONG).unwrap()), ErrorKind::Cancelled);
    site.wait_for_only("a", guard.path());
    // Another client releases what is asked for.
    let asks = lock.clone();
    let asked = in_background(move || asks.hold_for_maintenance("x", MaintenanceEnd::Never, LONG));
    site.wait_for_children("a", 2);
    assert!(theirs.release_maintenance(&the_hold(&theirs)).unwrap());
    assert_eq!(kind(asked.recv_timeout(LONG).unwrap()), ErrorKind::NodeDeleted);
    site.wait_for_only("a", guard.path());
    drop((guard, lock, theirs));
    site.finish([operator, zk]);
}

#[test]
fn a_hold_ends_at_its_time_by_the_ensemble_s_clock_while_somebody_waits() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-ends");
    let (operator, zk) = (site.client(), site.quiet_client());
    let lock = mutex(&operator, &site.base, "a");
    let soon = Duration::from_secs(2);
    for is_time in [false, true] {
        let end = match is_time {
            true => MaintenanceEnd::At(ensemble_clock(&site) + soon),
            false => MaintenanceEnd::After(soon),
        };
        let held = hold(&lock, end);
        let ends = told(&held).ends.expect("an end");
        let waiters = [(), ()].map(|()| {
            let theirs = strict(&zk, &site.base, "a");
            thread::spawn(move || drop(theirs.lock().unwrap()))
        });
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert!(ensemble_clock(&site) >= ends, "it has ended too early");
        assert!(!lock.release_maintenance(&held).unwrap());
    }
    drop(lock);
    site.finish([operator, zk]);
}

#[test]
fn a_call_that_does_not_wait_ends_a_hold_that_is_over() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-over");
    let zk = site.client();
    let (lock, rw) = (mutex(&zk, &site.base, "a"), DistributedRwLock::new(&zk, &site.base, "b"));
    let held = hold(&lock, MaintenanceEnd::After(Duration::from_millis(1)));
    let read = hold(&rw, MaintenanceEnd::After(Duration::from_millis(1)));
    assert!(last(&read.path).contains("-maintenance-__WRIT__"));
    eventually(SOON, "the end", || lock.try_lock().unwrap().is_some());
    eventually(SOON, "the end", || rw.try_read().unwrap().is_some());
    // One that nobody has ended keeps the next hold waiting for nothing.
    let over = hold(&lock, MaintenanceEnd::After(Duration::from_millis(1)));
    let next = hold(&lock, MaintenanceEnd::Never);
    assert!(over.sequence < next.sequence && !lock.release_maintenance(&over).unwrap());
    assert!(lock.release_maintenance(&next).unwrap() && !lock.release_maintenance(&held).unwrap());
    drop((lock, rw));
    site.finish([zk]);
}

#[test]
fn an_end_that_is_moved_is_kept_be_it_later_or_earlier() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-moved");
    let (operator, zk) = (site.client(), site.quiet_client());
    let lock = mutex(&operator, &site.base, "a");
    let held = hold(&lock, MaintenanceEnd::After(Duration::from_secs(2)));
    let theirs = strict(&zk, &site.base, "a");
    let waiter = waiting(move || drop(theirs.lock().unwrap()));
    let listed = operator.locks(&site.base).unwrap().expect("the locks");
    let later = ensemble_clock(&site) + Duration::from_secs(4);
    assert!(lock.change_maintenance(&held, MaintenanceEnd::At(later)).unwrap());
    assert_eq!(told(&the_hold(&lock)).ends, Some(floor(later)));
    let again = listed.refresh(&operator).unwrap().expect("the locks");
    let first = again.locks[0].first.as_ref().expect("the hold");
    assert_eq!(told(first).ends, Some(floor(later)), "a list that is refreshed tells the new end");
    let since = the_hold(&lock).held_since();
    waiter.join().unwrap();
    assert!(ensemble_clock(&site) >= floor(later), "it has ended at its former end");
    assert!(!lock.change_maintenance(&held, MaintenanceEnd::Never).unwrap(), "it is gone");
    assert_eq!(since, held.held_since(), "moving the end changes no beginning");

    let held = hold(&lock, MaintenanceEnd::Never);
    let (tell, told) = mpsc::channel();
    let theirs = strict(&zk, &site.base, "a");
    let waiter = waiting(move || {
        drop(theirs.lock().unwrap());
        tell.send(()).unwrap();
    });
    assert!(told.try_recv().is_err());
    let now = MaintenanceEnd::After(Duration::from_millis(1));
    assert!(lock.change_maintenance(&held, now).unwrap());
    waiter.join().unwrap();
    drop(lock);
    site.finish([operator, zk]);
}

/// In whole milliseconds, as the ensemble counts.
fn floor(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    SystemTime::UNIX_EPOCH + Duration::from_millis(since.as_millis().try_into().unwrap())
}

#[test]
fn what_is_asked_for_and_not_written_anew_ends_and_what_others_wrote_does_not() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-left");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    let (mut raw, node) = (site.raw(), format!("{}/a", site.base));
    let prefix = format!("{node}/_c_{}-maintenance-lock-", uuid(1));
    let asked = OVER.to_vec();
    raw.create(&prefix, &asked, Kind::PersistentSequential).unwrap();
    eventually(SOON, "the end", || lock.try_lock().unwrap().is_some());
    // An older client has asked it to release, and so has overwritten what it said.
    let made = raw.create(&prefix, b"__REVOKE__", Kind::PersistentSequential).unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    let found = the_hold(&lock);
    let MaintenanceHold { reason, made_by, is_asked_for, ends, .. } = told(&found);
    assert_eq!((&*reason, &*made_by, is_asked_for, ends), ("", "", false, None));
    assert_eq!(last(&found.path), last(&made));
    // It can be given an end again.
    assert!(lock.change_maintenance(&found, MaintenanceEnd::After(BRIEFLY)).unwrap());
    assert!(told(&the_hold(&lock)).ends.is_some());
    eventually(SOON, "the end", || lock.try_lock().unwrap().is_some());
    // One that belongs to a session is no hold, whatever its data say.
    let made = raw.create(&prefix, OVER, Kind::EphemeralSequential).unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    let found = lock.contenders().unwrap().remove(0);
    assert!(found.maintenance().is_none());
    assert_eq!(kind(lock.release_maintenance(&found)), ErrorKind::InvalidArgument);
    raw.delete(&made).unwrap();
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

/// A waiter of ours would end a hold that was not written anew for half a minute.
#[test]
fn what_is_asked_for_is_kept_as_long_as_its_maker_waits() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-renewed");
    let (operator, zk) = (site.quiet_client(), site.quiet_client());
    let (lock, theirs) = (mutex(&operator, &site.base, "a"), strict(&zk, &site.base, "a"));
    let guard = theirs.lock().unwrap();
    let asks = lock.clone();
    let asked = in_background(move || asks.hold_for_maintenance("x", MaintenanceEnd::Never, LONG));
    site.wait_for_children("a", 2);
    let ends = told(&the_hold(&lock)).ends;
    eventually(LONG, "the hold to be written anew", || told(&the_hold(&lock)).ends > ends);
    drop(guard);
    let held = asked.recv_timeout(LONG).unwrap().unwrap().expect("the lock");
    assert!(lock.release_maintenance(&held).unwrap());
    drop((lock, theirs));
    site.finish([operator, zk]);
}

fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

#[test]
fn asking_for_release_leaves_a_hold_as_it_is() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-ask");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let held = hold(&lock, MaintenanceEnd::Never);
    assert_eq!(lock.request_release().unwrap(), 0);
    let error = lock.request_release_of(&held).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("belongs to no session"), "{error}");
    assert_eq!(told(&the_hold(&lock)).reason, "disk");
    assert!(lock.break_lock(&held).unwrap(), "by force it goes");
    drop(lock);
    site.finish([zk]);
}

#[test]
fn after_a_lost_reply_there_is_one_hold() {
    skip_without_zookeeper!();
    let site = Site::own("maintenance-lost");
    let (proxy, zk) = site.proxied(SOON);
    let lock = strict(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    for code in [opcode::CREATE, opcode::SET_DATA, opcode::EXISTS] {
        proxy.drop_reply(code, 1);
        let held = hold(&lock, MaintenanceEnd::Never);
        assert_eq!(the_hold(&lock).path, held.path, "after a lost reply to {code}");
        assert!(!told(&the_hold(&lock)).is_asked_for);
        proxy.drop_reply(opcode::DELETE, 1);
        assert!(lock.release_maintenance(&held).unwrap());
        assert!(lock.contenders().unwrap().is_empty());
    }
    drop(lock);
    site.finish([zk]);
    drop(proxy);
}

#[test]
fn an_outage_while_a_hold_waits_is_ridden_out() {
    skip_without_zookeeper!();
    let site = Site::own("maintenance-outage");
    let (proxy, operator) = site.proxied(Duration::from_secs(4));
    let zk = site.quiet_client();
    let (lock, theirs) = (strict(&operator, &site.base, "a"), mutex(&zk, &site.base, "a"));
    let guard = theirs.lock().unwrap();
    let asks = lock.clone();
    let asked = in_background(move || asks.hold_for_maintenance("x", MaintenanceEnd::Never, LONG));
    site.wait_for_children("a", 2);
    site.expire(&proxy);
    drop(guard);
    let held = asked.recv_timeout(LONG).unwrap().unwrap().expect("the lock");
    assert_eq!(the_hold(&theirs).path, held.path);
    assert!(theirs.release_maintenance(&held).unwrap());
    drop((lock, theirs));
    site.finish([operator, zk]);
    drop(proxy);
}

#[test]
fn holds_may_be_queued_one_behind_the_other() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-queued");
    let zk = site.quiet_client();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let queued = lock.queue_for_maintenance("first", MaintenanceEnd::Never).unwrap();
    assert!(!told(&queued).is_asked_for && queued.since.is_some());
    let second = MaintenanceEnd::After(Duration::from_millis(1));
    let second = lock.queue_for_maintenance("second", second).unwrap();
    drop(guard);
    let holders = lock.contenders().unwrap();
    assert_eq!((holders.len(), holders[0].holds, &holders[0].path), (2, true, &queued.path));
    // A call that passes by ends the second one, whose millisecond may not be over yet.
    eventually(SOON, "the end of the second", || {
        lock.try_lock().unwrap().is_none() && lock.contenders().unwrap().len() == 1
    });
    assert!(!lock.release_maintenance(&second).unwrap(), "it has ended");
    assert!(lock.release_maintenance(&queued).unwrap());
    assert!(lock.try_lock().unwrap().is_some());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn a_name_fits_the_contenders_that_are_there() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-names");
    let zk = site.quiet_client();
    let name_beside = |name: &str, held: &LockNode| {
        let lock = mutex(&zk, &site.base, name);
        let queued = lock.queue_for_maintenance("x", MaintenanceEnd::Never).unwrap();
        assert_eq!(held.contenders().unwrap().len(), 2);
        assert!(lock.release_maintenance(&queued).unwrap());
        last(&queued.path).to_owned()
    };
    let rw = DistributedRwLock::new(&zk, &site.base, "rw");
    let guard = rw.read().unwrap();
    assert!(name_beside("rw", &rw).contains("-maintenance-__WRIT__"));
    drop(guard);
    let kazoo = mutex(&zk, &site.base, "kazoo").naming(NodeNaming::Kazoo);
    let guard = kazoo.lock().unwrap();
    assert!(name_beside("kazoo", &kazoo).contains("-maintenance__lock__"));
    drop(guard);
    let semaphore = DistributedSemaphore::new(&zk, &site.base, "permits", 2);
    let guard = semaphore.acquire().unwrap();
    assert!(name_beside("permits", &semaphore).contains("-maintenance-lock-"));
    drop(guard);
    let queued = semaphore.queue_for_maintenance("x", MaintenanceEnd::Never).unwrap();
    assert!(last(&queued.path).contains("-maintenance-lock-"));
    assert!(semaphore.release_maintenance(&queued).unwrap());
    let queued = kazoo.queue_for_maintenance("x", MaintenanceEnd::Never).unwrap();
    assert!(last(&queued.path).contains("-maintenance__lock__"));
    assert!(kazoo.release_maintenance(&queued).unwrap());
    drop((rw, kazoo, semaphore));
    site.finish([zk]);
}

/// The call is cut off while it does not know yet whether it has made a node.
#[test]
fn a_hold_that_is_cancelled_in_doubt_leaves_nothing() {
    skip_without_zookeeper!();
    let site = Site::own("maintenance-in-doubt");
    let (proxy, operator) = site.proxied(QUIET);
    let (lock, zk) = (strict(&operator, &site.base, "a"), site.quiet_client());
    let theirs = mutex(&zk, &site.base, "a");
    let guard = theirs.lock().unwrap();
    let cancel = Cancel::new();
    let (asks, wait) = (lock.clone(), Wait::from(&cancel));
    proxy.stall_reply(opcode::EXISTS);
    let asked = in_background(move || asks.hold_for_maintenance("x", MaintenanceEnd::Never, wait));
    site.wait_for_children("a", 2);
    cancel.cancel();
    assert_eq!(kind(asked.recv_timeout(LONG).unwrap()), ErrorKind::Cancelled);
    proxy.cut();
    proxy.pass();
    site.wait_for_only("a", guard.path());
    drop((guard, lock, theirs));
    site.finish([operator, zk]);
    drop(proxy);
}

/// Whatever the maker has done before it is gone, its hold ends at its time, or half a minute after it was asked for.
#[test]
fn a_hold_whose_maker_is_gone_at_any_step_ends_while_somebody_waits() {
    skip_without_zookeeper!();
    let site = Site::own("maintenance-gone");
    let zk = site.quiet_client();
    let steps = [
        ("before it asks", opcode::GET_CHILDREN, 0),
        ("when it has asked", opcode::CREATE, 1),
        ("when it knows its node", opcode::EXISTS, 1),
        ("as it begins", opcode::SET_DATA, 1),
        ("when it has begun", opcode::GET_DATA, 1),
    ];
    let makers = steps.map(|(step, code, made)| {
        drop(mutex(&zk, &site.base, step).lock().unwrap());
        site.wait_for_children(step, 0);
        let (proxy, operator) = site.proxied(SOON);
        let (lock, cancel) = (strict(&operator, &site.base, step), Cancel::new());
        proxy.stall_reply(code);
        let wait = Wait::from(&cancel);
        let end = MaintenanceEnd::After(Duration::from_secs(1));
        let asked = in_background(move || lock.hold_for_maintenance("x", end, wait));
        assert!(proxy.wait_for_request(code, LONG), "{step}");
        site.wait_for_children(step, made);
        let is_asked_for = || told(&the_hold(&mutex(&zk, &site.base, step))).is_asked_for;
        if code == opcode::SET_DATA {
            eventually(SOON, "the beginning", || !is_asked_for());
        }
        proxy.refuse();
        (step, proxy, operator, cancel, asked)
    });
    let waiters = steps.map(|(step, ..)| {
        let theirs = strict(&zk, &site.base, step);
        (step, thread::spawn(move || theirs.try_lock_for(LONG).map(|got| got.is_some())))
    });
    for (step, waiter) in waiters {
        assert!(waiter.join().unwrap().unwrap(), "gone {step}");
    }
    let (mut clients, mut proxies) = (vec![zk], Vec::new());
    for (step, proxy, operator, cancel, asked) in makers {
        proxy.pass();
        cancel.cancel();
        let end = asked.recv_timeout(LONG).unwrap();
        assert!(!matches!(end, Ok(None)), "{step}: nobody else was ahead");
        clients.push(operator);
        proxies.push(proxy);
    }
    site.finish(clients);
    drop(proxies);
}

/// The maker has no answer to its last write, and makes it again after an outage.
#[test]
fn an_end_that_is_moved_before_its_maker_knows_that_it_holds_counts() {
    skip_without_zookeeper!();
    let site = Site::own("maintenance-moved-early");
    let (proxy, operator) = site.proxied(QUIET);
    let (lock, zk) = (strict(&operator, &site.base, "a"), site.client());
    let theirs = mutex(&zk, &site.base, "a");
    proxy.stall_reply(opcode::SET_DATA);
    let asks = lock.clone();
    let end = MaintenanceEnd::After(Duration::from_secs(1));
    let asked = in_background(move || asks.hold_for_maintenance("x", end, LONG));
    let is_held = || theirs.holder().unwrap().is_some_and(|one| !told(&one).is_asked_for);
    eventually(SOON, "the hold", is_held);
    assert!(theirs.change_maintenance(&the_hold(&theirs), MaintenanceEnd::Never).unwrap());
    proxy.cut();
    proxy.pass();
    let held = asked.recv_timeout(LONG).unwrap().unwrap().expect("the lock");
    assert_eq!((told(&held).ends, told(&the_hold(&theirs)).ends), (None, None));
    assert!(theirs.release_maintenance(&held).unwrap());
    drop((lock, theirs));
    site.finish([operator, zk]);
    drop(proxy);
}

/// Those between the hold and the only waiter that can end it are of another library, or have left.
#[test]
fn the_last_of_many_waiters_ends_a_hold_soon() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-last");
    let (operator, zk) = (site.client(), site.quiet_client());
    let lock = mutex(&operator, &site.base, "a");
    let held = hold(&lock, MaintenanceEnd::After(Duration::from_secs(2)));
    let mut raw = site.raw();
    for number in 0..40 {
        let prefix = format!("{}/a/_c_{}-lock-", site.base, uuid(number));
        raw.create(&prefix, b"", Kind::EphemeralSequential).unwrap();
    }
    let theirs = strict(&zk, &site.base, "a");
    let waiter = waiting(move || drop(theirs.lock().unwrap()));
    let end = told(&held).ends.expect("an end");
    eventually(LONG, "the end", || {
        lock.contenders().unwrap().iter().all(|one| one.session.is_some())
    });
    let late = ensemble_clock(&site).duration_since(end).unwrap();
    assert!(
        late < Duration::from_secs(20),
        "one after another they would have needed 38 s: {late:?}"
    );
    raw.close().unwrap();
    waiter.join().unwrap();
    drop(lock);
    site.finish([operator, zk]);
}

/// Held, as far as the server knows, though the call was cancelled before it had the answer.
#[test]
fn a_hold_that_is_cancelled_as_it_begins_is_deleted_or_the_error_says_that_it_may_be_held() {
    skip_without_zookeeper!();
    let site = Site::own("maintenance-in-doubt-held");
    let proxy = Proxy::start(site.server().addr());
    let impatient = connecting(&proxy.hosts()).connect_timeout(Duration::from_secs(10));
    let (operator, zk) = (impatient.session_timeout(QUIET).connect().unwrap(), site.client());
    let (lock, theirs) = (strict(&operator, &site.base, "a"), mutex(&zk, &site.base, "a"));
    let begin = || {
        let cancel = Cancel::new();
        let (asks, wait) = (lock.clone(), Wait::from(&cancel));
        proxy.stall_reply(opcode::SET_DATA);
        let asked =
            in_background(move || asks.hold_for_maintenance("x", MaintenanceEnd::Never, wait));
        let is_held = || theirs.holder().unwrap().is_some_and(|one| !told(&one).is_asked_for);
        eventually(SOON, "the hold", is_held);
        (cancel, asked)
    };
    let (cancel, asked) = begin();
    proxy.pass();
    cancel.cancel();
    // Either is fine here: the answer may have come first.
    match asked.recv_timeout(LONG).unwrap() {
        Ok(held) => assert!(theirs.release_maintenance(&held.expect("the lock")).unwrap()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}"),
    }
    assert!(theirs.contenders().unwrap().is_empty());

    let (cancel, asked) = begin();
    let held = the_hold(&theirs);
    cancel.cancel();
    let error = asked.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLoss, "{error}");
    assert!(error.may_have_taken_effect());
    let says = format!("may be held for maintenance by {:?}", held.path);
    assert!(error.to_string().contains(&says), "{error}");
    assert!(error.others().iter().any(|one| one.kind() == ErrorKind::Cancelled), "{error}");
    assert!(theirs.release_maintenance(&held).unwrap(), "it was still held");
    proxy.pass();
    drop((lock, theirs));
    site.finish([operator, zk]);
    drop(proxy);
}

#[test]
fn bad_reasons_and_ends_are_refused_before_anything_is_made() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-bad");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let refused = |reason: &str, end: MaintenanceEnd| {
        let waits = kind(lock.hold_for_maintenance(reason, end, SOON));
        assert_eq!(waits, kind(lock.queue_for_maintenance(reason, end)));
        waits
    };
    let never = MaintenanceEnd::Never;
    for reason in ["", "a\nb", "a\u{1b}b", &"x".repeat(1_001)] {
        assert_eq!(refused(reason, never), ErrorKind::InvalidArgument, "{reason:?}");
    }
    let past = MaintenanceEnd::At(SystemTime::now() - Duration::from_secs(3_600));
    assert_eq!(refused("x", past), ErrorKind::InvalidArgument);
    let no_time = MaintenanceEnd::After(Duration::from_micros(999));
    assert_eq!(refused("x", no_time), ErrorKind::InvalidArgument);
    let bad = DistributedLock::new(&zk, &site.base, "a/b");
    assert_eq!(kind(bad.hold_for_maintenance("x", never, SOON)), ErrorKind::InvalidName);
    assert!(lock.contenders().unwrap().is_empty());
    let far = MaintenanceEnd::After(Duration::MAX);
    let held = hold(&lock, far);
    assert!(lock.try_lock().unwrap().is_none());
    let (one, other) = (mutex(&zk, &site.base, "b"), held);
    assert_eq!(kind(one.release_maintenance(&other)), ErrorKind::InvalidArgument);
    assert_eq!(kind(one.change_maintenance(&other, never)), ErrorKind::InvalidArgument);
    assert!(lock.release_maintenance(&other).unwrap());
    drop((lock, bad, one));
    site.finish([zk]);
}

#[test]
fn below_a_chroot_the_paths_are_the_client_s() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-chroot");
    let zk = connecting(&format!("{}{}", site.hosts(), site.base)).connect().unwrap();
    let lock = DistributedLock::new(&zk, "/locks", "a");
    let held = hold(&lock, MaintenanceEnd::Never);
    assert!(held.path.starts_with("/locks/a/"), "{}", held.path);
    assert!(lock.try_lock().unwrap().is_none());
    assert!(
        lock.change_maintenance(&held, MaintenanceEnd::After(Duration::from_millis(1))).unwrap()
    );
    eventually(SOON, "the end", || lock.try_lock().unwrap().is_some());
    drop(lock);
    site.finish([zk]);
}

/// A wait of more than five seconds has an alarm of its own.
#[test]
fn a_hold_ends_for_a_waiter_that_has_waited_for_long() {
    skip_without_zookeeper!();
    let site = Site::shared("maintenance-long");
    let (operator, zk) = (site.client(), site.quiet_client());
    let lock = mutex(&operator, &site.base, "a");
    let held = hold(&lock, MaintenanceEnd::After(Duration::from_secs(8)));
    assert!(strict(&zk, &site.base, "a").try_lock_for(LONG).unwrap().is_some());
    assert!(ensemble_clock(&site) >= told(&held).ends.expect("an end"));
    drop(lock);
    site.finish([operator, zk]);
}
