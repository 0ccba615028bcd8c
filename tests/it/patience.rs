//! Locks whose contenders have patience: more urgent ones come first.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use zklock::maintenance::MaintenanceEnd;
use zklock::{
    Cancel, Client, DistributedLock, DistributedRwLock, ErrorKind, Event, LockGuard, MultiLock,
    ReentrantLock, Wait,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{QUIET, connecting, eventually, kind, skip_without_server, strict, waiting};

const SOON: Duration = Duration::from_secs(60);
const BRIEFLY: Duration = Duration::from_millis(300);
const ROOM: &str = "_zklock_room_a";

fn lock(zk: &Client, site: &Site, patience: u32) -> DistributedLock {
    DistributedLock::new(zk, &site.base, "a").patience(patience)
}

/// Contenders one after another, each as soon as the one before it is in the room or contends; and what each of them sends
/// when it holds: its number, and its guard.
struct Queue<'a> {
    site: &'a Site,
    granted: Receiver<(usize, LockGuard)>,
    tell: std::sync::mpsc::Sender<(usize, LockGuard)>,
    asked: usize,
}

impl<'a> Queue<'a> {
    fn new(site: &'a Site) -> Queue<'a> {
        let (tell, granted) = channel();
        Queue { site, granted, tell, asked: 0 }
    }

    /// The next one, which waits behind so many others in the room, and as so many for the lock, itself included.
    fn ask(&mut self, lock: &DistributedLock, in_room: usize, contend: usize) {
        let (lock, tell, number) = (lock.clone(), self.tell.clone(), self.asked);
        self.asked += 1;
        drop(waiting(move || {
            let _ = tell.send((number, lock.try_lock_for(QUIET).unwrap().expect("the lock")));
        }));
        self.site.wait_for_children(ROOM, in_room);
        self.site.wait_for_children("a", contend);
    }

    /// The numbers of all that asked, in the order of their grants.
    fn order(&self) -> Vec<usize> {
        let mut order = Vec::new();
        for _ in 0..self.asked {
            let (number, guard) = self.granted.recv_timeout(QUIET).unwrap();
            order.push(number);
            drop(guard);
        }
        order
    }
}

#[test]
fn a_more_urgent_one_comes_before_those_who_do_not_contend_yet() {
    skip_without_server!();
    let site = Site::shared("patience-urgent");
    let zk = site.quiet_client();
    let (patient, urgent) = (lock(&zk, &site, 100), lock(&zk, &site, 0));
    let guard = patient.lock().unwrap();
    site.wait_for_children(ROOM, 0);
    let mut queue = Queue::new(&site);
    queue.ask(&patient, 1, 2);
    queue.ask(&patient, 2, 2);
    queue.ask(&patient, 3, 2);
    // Contends at once, behind the first.
    queue.ask(&urgent, 4, 3);
    queue.ask(&urgent, 5, 3);
    guard.unlock().unwrap();
    assert_eq!(queue.order(), [0, 3, 4, 1, 2]);
    drop((patient, urgent, queue));
    site.finish([zk]);
}

#[test]
fn nobody_is_passed_by_more_than_its_patience() {
    skip_without_server!();
    let site = Site::shared("patience-bound");
    let zk = site.quiet_client();
    let urgent = lock(&zk, &site, 0);
    let guard = urgent.lock().unwrap();
    site.wait_for_children(ROOM, 0);
    let mut queue = Queue::new(&site);
    // Contends, so the others wait in the room.
    queue.ask(&urgent, 1, 2);
    // Of those that come later, two have a place before its own, or an equal one of a higher number.
    queue.ask(&lock(&zk, &site, 3), 2, 2);
    for asked in 3..7 {
        queue.ask(&urgent, asked, 2);
    }
    guard.unlock().unwrap();
    assert_eq!(queue.order(), [0, 2, 3, 1, 4, 5]);
    drop((urgent, queue));
    site.finish([zk]);
}

#[test]
fn contenders_without_patience_are_safe_and_wait_for_nobody_in_the_room() {
    skip_without_server!();
    let site = Site::shared("patience-plain");
    let (zk, other) = (site.quiet_client(), site.quiet_client());
    let (patient, plain) = (lock(&zk, &site, 7), strict(&other, &site.base, "a"));
    let guard = patient.lock().unwrap();
    site.wait_for_children(ROOM, 0);
    assert!(plain.try_lock().unwrap().is_none());
    let mut queue = Queue::new(&site);
    queue.ask(&patient, 1, 2);
    queue.ask(&patient, 2, 2);
    queue.ask(&plain, 2, 3);
    let token = guard.fencing_token();
    guard.unlock().unwrap();
    let (number, next) = queue.granted.recv_timeout(QUIET).unwrap();
    assert!(number == 0 && next.fencing_token() > token);
    queue.asked = 2;
    drop(next);
    assert_eq!(queue.order(), [2, 1]);
    drop((patient, plain, queue));
    site.finish([zk, other]);
}

#[test]
fn readers_share_and_an_urgent_writer_comes_before_patient_readers() {
    skip_without_server!();
    let site = Site::shared("patience-rw");
    let zk = site.quiet_client();
    let new = |patience| DistributedRwLock::new(&zk, &site.base, "a").patience(patience);
    let one = new(9).read().unwrap();
    let other = new(9).try_read().unwrap().expect("readers share");
    site.wait_for_children(ROOM, 0);
    let (tell, granted) = channel();
    let ask = |patience, writes: bool, name: &'static str| {
        let (lock, tell) = (new(patience), tell.clone());
        drop(waiting(move || {
            if writes {
                let guard = lock.write().unwrap();
                tell.send(name).unwrap();
                // No writer comes in between.
                drop(guard.downgrade().unwrap());
            } else {
                let _guard = lock.read().unwrap();
                tell.send(name).unwrap();
            }
        }));
    };
    ask(9, true, "contends");
    site.wait_for_children("a", 3);
    ask(9, true, "waits");
    site.wait_for_children(ROOM, 2);
    ask(9, false, "reads");
    site.wait_for_children(ROOM, 3);
    ask(0, true, "urgent");
    site.wait_for_children("a", 4);
    drop((one, other));
    let order = [(); 4].map(|()| granted.recv_timeout(QUIET).unwrap());
    assert_eq!(order, ["contends", "urgent", "waits", "reads"]);
    // Readers do not wait for readers, in the room neither.
    site.wait_for_children("a", 0);
    let guard = new(0).write().unwrap();
    ask(9, false, "reads");
    site.wait_for_children("a", 2);
    ask(9, false, "reads");
    site.wait_for_children("a", 3);
    drop(guard);
    let order = [(); 2].map(|()| granted.recv_timeout(QUIET).unwrap());
    assert_eq!(order, ["reads"; 2]);
    site.finish([zk]);
}

#[test]
fn who_asks_worse_ones_asks_each_that_holds_and_no_waiter() {
    skip_without_server!();
    let site = Site::own("patience-asks");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let (patient, urgent) = (lock(&other, &site, 5), lock(&zk, &site, 0).ask_worse(true));
    let guard = patient.lock().unwrap();
    site.wait_for_children(ROOM, 0);
    let (tell, told) = channel();
    guard.on_release_requested(move || tell.send(()).unwrap());
    let mut queue = Queue::new(&site);
    queue.ask(&patient, 1, 2);
    queue.ask(&urgent, 2, 3);
    told.recv_timeout(QUIET).unwrap();
    // It has asked when it watches those that are ahead.
    assert!(proxy.wait_for_requests(opcode::GET_CHILDREN2, 2, SOON));
    assert_eq!(proxy.count(opcode::SET_DATA), 1);
    let waits = &patient.contenders().unwrap()[1];
    assert!(!waits.holds && waits.data != b"__REVOKE__");
    guard.unlock().unwrap();
    let (number, next) = queue.granted.recv_timeout(QUIET).unwrap();
    assert_eq!(number, 0);
    eventually(SOON, "the request to the next holder", || next.release_requested());
    assert_eq!(proxy.count(opcode::SET_DATA), 2);
    next.unlock().unwrap();
    let (number, last) = queue.granted.recv_timeout(QUIET).unwrap();
    assert!(number == 1 && !last.release_requested());
    drop((last, patient, urgent, queue));
    site.finish([zk, other]);
    drop(proxy);
}

#[test]
fn who_asks_worse_ones_does_not_ask_those_that_are_not_or_do_not_tell() {
    skip_without_server!();
    let site = Site::own("patience-not-asked");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let urgent = lock(&zk, &site, 3).ask_worse(true);
    for holder in [
        lock(&other, &site, 3),
        lock(&other, &site, 9).data("own"),
        strict(&other, &site.base, "a"),
    ] {
        proxy.reset_counts();
        let guard = holder.lock().unwrap();
        site.wait_for_children(ROOM, 0);
        let mut queue = Queue::new(&site);
        queue.ask(&urgent, 1, 2);
        assert!(proxy.wait_for_requests(opcode::GET_CHILDREN2, 1, SOON));
        assert_eq!(proxy.count(opcode::SET_DATA), 0);
        guard.unlock().unwrap();
        assert_eq!(queue.order(), [0]);
        site.wait_for_children("a", 0);
    }
    drop(urgent);
    site.finish([zk, other]);
    drop(proxy);
}

#[test]
fn a_writer_asks_each_reader_that_is_worse() {
    skip_without_server!();
    let site = Site::shared("patience-asks-readers");
    let zk = site.quiet_client();
    let new = |patience| DistributedRwLock::new(&zk, &site.base, "a").patience(patience);
    let readers = [new(0), new(7), new(9)].map(|lock| lock.read().unwrap());
    site.wait_for_children(ROOM, 0);
    let urgent = new(3).ask_worse(true);
    let writes = thread::spawn(move || drop(urgent.write().unwrap()));
    for asked in &readers[1..] {
        eventually(SOON, "the request", || asked.release_requested());
    }
    assert!(!readers[0].release_requested());
    drop(readers);
    writes.join().unwrap();
    site.finish([zk]);
}

#[test]
fn a_writer_that_became_a_reader_is_asked_as_any_other() {
    skip_without_server!();
    let site = Site::shared("patience-downgraded");
    let zk = site.quiet_client();
    let new = |patience| DistributedRwLock::new(&zk, &site.base, "a").patience(patience);
    let reader = new(9).write().unwrap().downgrade().unwrap();
    let urgent = new(0).ask_worse(true);
    let writes = thread::spawn(move || drop(urgent.write().unwrap()));
    eventually(SOON, "the request", || reader.release_requested());
    drop(reader);
    writes.join().unwrap();
    site.finish([zk]);
}

#[test]
fn readers_that_leave_one_by_one_cost_who_asked_them_nothing() {
    skip_without_server!();
    const READERS: usize = 10;
    let site = Site::own("patience-many-readers");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let reads = DistributedRwLock::new(&other, &site.base, "a").patience(9);
    let mut readers: Vec<_> = (0..READERS).map(|_| reads.read().unwrap()).collect();
    site.wait_for_children(ROOM, 0);
    let urgent = DistributedRwLock::new(&zk, &site.base, "a").patience(0).ask_worse(true);
    let writes = thread::spawn(move || drop(urgent.write().unwrap()));
    for reader in &readers {
        eventually(SOON, "the request", || reader.release_requested());
    }
    // It has asked all when it watches its predecessor.
    assert!(proxy.wait_for_requests(opcode::GET_CHILDREN2, 1, SOON));
    proxy.reset_counts();
    while readers.len() > 1 {
        drop(readers.remove(0));
        site.wait_for_children("a", 1 + readers.len());
    }
    let codes = [opcode::GET_CHILDREN, opcode::GET_CHILDREN2, opcode::GET_DATA, opcode::EXISTS];
    assert_eq!(codes.map(|code| proxy.count(code)), [0; 4]);
    drop((readers, reads));
    writes.join().unwrap();
    site.finish([zk, other]);
    drop(proxy);
}

/// What is told of the lock and its room: the lock's path, and what happened.
fn told(event: &Event) -> Option<(String, &'static str)> {
    match event {
        Event::Waiting { lock, .. } => Some((lock.clone(), "waiting")),
        Event::Acquired { lock, .. } => Some((lock.clone(), "acquired")),
        Event::NotAcquired { lock, .. } => Some((lock.clone(), "not acquired")),
        Event::Released { lock, .. } => Some((lock.clone(), "released")),
        Event::HoldLost { lock, .. } => Some((lock.clone(), "lost")),
        _ => None,
    }
}

#[test]
fn waits_in_the_room_are_reported_as_waits_for_the_lock() {
    skip_without_server!();
    let site = Site::own("patience-events");
    let (tell, events) = channel();
    let tell = Mutex::new(tell);
    let proxy = Proxy::start(site.server().addr());
    let zk = connecting(&proxy.hosts())
        .session_timeout(SOON)
        .on_event(move |event| drop(told(event).map(|told| tell.lock().unwrap().send(told))))
        .connect()
        .unwrap();
    let other = site.quiet_client();
    let (theirs, mine) = (lock(&other, &site, 5), lock(&zk, &site, 5));
    let guard = theirs.lock().unwrap();
    site.wait_for_children(ROOM, 0);
    let mut queue = Queue::new(&site);
    queue.ask(&mine, 1, 2);
    queue.ask(&theirs, 2, 2);
    // The loss of a place in the room, from which it contends, is no lost lock; and then it waits in the room.
    site.expire(&proxy);
    eventually(SOON, "the other one's turn", || {
        site.children(ROOM).len() == 2 && site.children("a").len() == 2
    });
    guard.unlock().unwrap();
    assert_eq!(queue.order(), [1, 0]);
    let mut seen: Vec<_> = std::iter::from_fn(|| {
        let (path, what) = events.recv_timeout(SOON).unwrap();
        assert_eq!(path, mine.path(), "{what}");
        (what != "released").then_some(what)
    })
    .collect();
    seen.dedup();
    assert_eq!(seen, ["waiting", "acquired"]);
    drop((theirs, mine, queue));
    site.finish([zk, other]);
    drop(proxy);
}

#[test]
fn calls_that_give_up_leave_nothing() {
    skip_without_server!();
    let site = Site::shared("patience-in-vain");
    let zk = site.quiet_client();
    let patient = lock(&zk, &site, 3);
    let guard = patient.lock().unwrap();
    site.wait_for_children(ROOM, 0);
    assert!(patient.try_lock().unwrap().is_none());
    assert!(lock(&zk, &site, 0).try_lock_for(BRIEFLY).unwrap().is_none());
    site.wait_for_only("a", guard.path());
    let mut queue = Queue::new(&site);
    queue.ask(&patient, 1, 2);
    // One that waits in the room.
    assert!(patient.try_lock_for(BRIEFLY).unwrap().is_none());
    let cancel = Cancel::new();
    let (asks, wait) = (patient.clone(), Wait::from(&cancel));
    let asked = thread::spawn(move || asks.lock_within(wait).expect_err("it was cancelled"));
    site.wait_for_children(ROOM, 2);
    cancel.cancel();
    let error = asked.join().unwrap();
    assert_eq!((error.kind(), error.path()), (ErrorKind::Cancelled, Some(patient.path())));
    site.wait_for_children(ROOM, 1);
    guard.unlock().unwrap();
    assert_eq!(queue.order(), [0]);
    drop((patient, queue));
    site.finish([zk]);
}

#[test]
fn what_cannot_be_is_refused() {
    skip_without_server!();
    let site = Site::shared("patience-bad");
    let zk = site.client();
    assert_eq!(kind(lock(&zk, &site, 1_000_001).lock()), ErrorKind::InvalidArgument);
    let kept = lock(&zk, &site, 1).keep_for(BRIEFLY);
    assert_eq!(kind(kept.try_lock()), ErrorKind::InvalidArgument);
    let asks = DistributedLock::new(&zk, &site.base, "a").ask_worse(true);
    assert_eq!(kind(asks.try_lock()), ErrorKind::InvalidArgument);
    drop(asks);
    let asks = lock(&zk, &site, 1);
    drop(asks.try_lock().unwrap().expect("a free lock"));
    site.wait_for_children(ROOM, 0);
    let plain = DistributedLock::new(&zk, &site.base, "a");
    drop(plain.try_lock().unwrap().expect("a free lock"));
    assert_eq!(kind(plain.ask_worse(true).try_lock()), ErrorKind::InvalidArgument);
    let room = DistributedLock::new(&zk, &site.base, ROOM);
    assert_eq!(kind(room.try_lock()), ErrorKind::InvalidArgument);
    let hold = room.queue_for_maintenance("repairs", MaintenanceEnd::Never);
    assert_eq!(kind(hold), ErrorKind::InvalidArgument);
    drop((asks, room));
    drop(lock(&zk, &site, 1_000_000).try_lock().unwrap().expect("a free lock"));
    site.wait_for_children("a", 0);
    drop(kept);
    site.finish([zk]);
}

#[test]
fn after_a_lost_session_it_begins_again_in_the_room() {
    skip_without_server!();
    let site = Site::own("patience-session");
    let (proxy, zk) = site.proxied(SOON);
    let other = site.quiet_client();
    let (theirs, mine) = (lock(&other, &site, 5), lock(&zk, &site, 5));
    let guard = theirs.lock().unwrap();
    site.wait_for_children(ROOM, 0);
    let mut queue = Queue::new(&site);
    // The first contends, the second waits in the room; both lose their session, and queue behind the third.
    queue.ask(&mine, 1, 2);
    queue.ask(&mine, 2, 2);
    queue.ask(&theirs, 3, 2);
    site.expire(&proxy);
    eventually(SOON, "both in the room again", || {
        site.children(ROOM).len() == 3 && site.children("a").len() == 2
    });
    guard.unlock().unwrap();
    let order = queue.order();
    assert_eq!(order[0], 2, "{order:?}");
    drop((theirs, mine, queue));
    site.finish([zk, other]);
    drop(proxy);
}

#[test]
fn an_acquisition_without_others_costs_twice_as_much() {
    skip_without_server!();
    const ROUNDS: u64 = 20;
    let site = Site::own("patience-costs");
    let (proxy, zk) = site.proxied(QUIET);
    let lock = lock(&zk, &site, 1);
    drop(lock.lock().unwrap());
    eventually(SOON, "the deletes", || proxy.count(opcode::DELETE) == 2);
    proxy.reset_counts();
    for _ in 0..ROUNDS {
        lock.lock().unwrap().unlock().unwrap();
    }
    eventually(SOON, "the deletes", || proxy.count(opcode::DELETE) == 2 * ROUNDS);
    for code in [opcode::CREATE, opcode::GET_CHILDREN, opcode::DELETE] {
        assert_eq!(proxy.count(code), 2 * ROUNDS, "requests of kind {code}");
    }
    drop(lock);
    site.finish([zk]);
    drop(proxy);
}

#[test]
fn locks_made_of_it_have_its_patience() {
    skip_without_server!();
    let site = Site::shared("patience-parts");
    let zk = site.quiet_client();
    let patient = lock(&zk, &site, 9);
    let several = MultiLock::new().with(&patient).with(&strict(&zk, &site.base, "b"));
    let guard = patient.lock().unwrap();
    site.wait_for_children(ROOM, 0);
    assert!(several.try_lock().unwrap().is_none());
    let mut queue = Queue::new(&site);
    queue.ask(&patient, 1, 2);
    let both = thread::spawn(move || drop(several.lock().unwrap()));
    site.wait_for_children(ROOM, 2);
    // Of some with the same path, the one with the least patience counts.
    let twice = MultiLock::new().with(&strict(&zk, &site.base, "a")).with(&patient);
    let twice = twice.with(&lock(&zk, &site, 3));
    let least = thread::spawn(move || drop(twice.lock().unwrap()));
    site.wait_for_children(ROOM, 3);
    let names = site.children(ROOM);
    assert!(names.iter().any(|name| name.contains("-patience-3-")), "{names:?}");
    guard.unlock().unwrap();
    assert_eq!(queue.order(), [0]);
    both.join().unwrap();
    least.join().unwrap();
    let reentrant = ReentrantLock::new(&zk, &site.base, "a");
    drop(reentrant.lock().unwrap());
    drop((patient, queue, reentrant));
    site.finish([zk]);
}
