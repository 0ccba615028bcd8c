//! Who waits for whom, and what waits for ever: `Client::waits`, the warnings, and the line of a long wait.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use log::LevelFilter;
use zklock::{
    Cancel, Client, Deadlock, DistributedRwLock, DistributedSemaphore, ErrorKind, Event, LockGuard,
    Result, Waits,
};

use crate::support::logs::logs;
use crate::support::site::Site;
use crate::support::{Raise, eventually, mutex, setting, skip_without_server, strict, waiting};

/// Enough for anything, however busy the machine is.
const SOON: Duration = Duration::from_secs(60);

const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

fn look(site: &Site, zk: &Client) -> Waits {
    zk.waits(&site.base).unwrap().expect("a base node")
}

fn pass(time: Duration) {
    let begun = Instant::now();
    eventually(SOON, "a while", || begun.elapsed() > time);
}

/// What the first pair of looks shows that shows anything certain.
fn certain(site: &Site, zk: &Client) -> Vec<Deadlock> {
    let begun = Instant::now();
    eventually(SOON, "a base node", || zk.waits(&site.base).unwrap().is_some());
    let mut earlier = look(site, zk);
    loop {
        pass(BETWEEN_LOOKS);
        let later = look(site, zk);
        let found = later.deadlocks(Some(&earlier));
        if found.iter().any(|one| one.is_certain) {
            return found;
        }
        assert!(begun.elapsed() < SOON, "nothing certain: {found:?}");
        earlier = later;
    }
}

/// What each holder waits for, by name, beginning with the least.
fn circle(deadlock: &Deadlock) -> String {
    let name = |path: &String| path.rsplit('/').next().unwrap().to_owned();
    let mut all: Vec<String> = deadlock.holders.iter().map(|one| name(&one.waits_for)).collect();
    let least = (0..all.len()).min_by_key(|place| all[*place].clone()).unwrap_or(0);
    all.rotate_left(least);
    all.join(" ")
}

/// A thread that takes one lock, and when all have done so waits for another one, and why it has not got that.
fn takes_two<G, H>(
    all_hold: &Arc<Barrier>,
    first: impl FnOnce() -> Result<G> + Send + 'static,
    then: impl FnOnce() -> Result<H> + Send + 'static,
) -> JoinHandle<Option<ErrorKind>>
where
    G: 'static,
    H: 'static,
{
    let all_hold = Arc::clone(all_hold);
    waiting(move || {
        let held = first().unwrap();
        all_hold.wait();
        let got = then();
        drop(held);
        got.err().map(|error| error.kind())
    })
}

/// Ends the test: the first client that is closed ends the wait of its thread, and lets others go on.
fn end(site: Site, clients: Vec<Client>, threads: Vec<JoinHandle<Option<ErrorKind>>>) {
    clients.iter().for_each(Client::close);
    for thread in threads {
        assert!(matches!(thread.join().unwrap(), None | Some(ErrorKind::Closed)));
    }
    drop(clients);
    site.finish([]);
}

/// Clients, each of which holds one lock and waits for the next one's.
fn in_a_circle(size: usize, expected: &str) {
    let site = Site::own("deadlocks-circle");
    let (zk, all_hold) = (site.client(), Arc::new(Barrier::new(size)));
    let clients: Vec<Client> = (0..size).map(|_| site.quiet_client()).collect();
    let thread = |(place, client): (usize, &Client)| {
        let name = |place: usize| format!("l{}", place % size);
        let first = strict(client, &site.base, name(place));
        let then = strict(client, &site.base, name(place + 1));
        takes_two(&all_hold, move || first.lock(), move || then.lock())
    };
    let threads = clients.iter().enumerate().map(thread).collect();
    let found = certain(&site, &zk);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].is_certain && circle(&found[0]) == expected, "{}", found[0]);
    for one in &found[0].holders {
        assert!(one.holder.holds && !one.waiter.as_ref().unwrap().holds);
        assert!(one.holder.held_since().is_some());
    }
    zk.close();
    end(site, clients, threads);
}

#[test]
fn a_circle_through_a_waiting_room_is_a_deadlock() {
    skip_without_server!();
    let site = Site::own("deadlocks-room");
    let (zk, all_hold) = (site.client(), Arc::new(Barrier::new(2)));
    let clients: Vec<Client> = (0..3).map(|_| site.quiet_client()).collect();
    let patient = |place: usize| strict(&clients[place], &site.base, "a").patience(5);
    let plain = |place: usize| strict(&clients[place], &site.base, "b");
    let (go, may_go) = mpsc::channel();
    let (holds, bystander, waits) = (patient(0), patient(1), patient(2));
    let (then, first) = (plain(0), plain(2));
    let mut threads = vec![
        takes_two(&all_hold, move || holds.lock(), move || then.lock()),
        takes_two(
            &all_hold,
            move || first.lock(),
            move || {
                may_go.recv().unwrap();
                waits.lock()
            },
        ),
    ];
    site.wait_for_children("b", 2);
    // It contends, so the last one waits in the room, behind one that holds nothing else.
    threads.push(waiting(move || bystander.lock().err().map(|error| error.kind())));
    site.wait_for_children("a", 2);
    go.send(()).unwrap();
    let found = certain(&site, &zk);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].is_certain && circle(&found[0]) == "_zklock_room_a a b", "{}", found[0]);
    zk.close();
    end(site, clients, threads);
}

#[test]
fn looks_that_refresh_others_find_what_first_looks_do() {
    skip_without_server!();
    const MOST: u32 = 200;
    let site = Site::own("deadlocks-refresh");
    let (zk, all_hold) = (site.client(), Arc::new(Barrier::new(2)));
    let clients: Vec<Client> = (0..2).map(|_| site.quiet_client()).collect();
    let lock = |client: &Client, name: &str| strict(client, &site.base, name);
    let (a, b) = (lock(&clients[0], "a"), lock(&clients[0], "b"));
    let (theirs, ours) = (lock(&clients[1], "b"), lock(&clients[1], "a"));
    let threads = vec![
        takes_two(&all_hold, move || a.lock(), move || b.lock()),
        takes_two(&all_hold, move || theirs.lock(), move || ours.lock()),
    ];
    site.wait_for_children("a", 2);
    site.wait_for_children("b", 2);
    let again = |look: &Waits| look.refresh(&zk, MOST).unwrap().expect("a base node");
    let mut first = again(&Waits::empty(&*site.base));
    eventually(SOON, "a circle", || {
        first = again(&first);
        first.edges().len() == 2
    });
    // One in between, as there is if looks follow each other at once.
    let between = again(&first);
    pass(BETWEEN_LOOKS);
    let later = again(&between);
    for earlier in [&first, &between] {
        let found = later.deadlocks(Some(earlier));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].is_certain && circle(&found[0]) == "a b", "{}", found[0]);
    }
    zk.close();
    end(site, clients, threads);
}

#[test]
fn two_clients_that_lock_in_opposite_order() {
    skip_without_server!();
    in_a_circle(2, "l0 l1");
}

#[test]
fn five_clients_in_a_circle() {
    skip_without_server!();
    in_a_circle(5, "l0 l1 l2 l3 l4");
}

#[test]
fn threads_of_one_client_that_wait_within_their_process() {
    skip_without_server!();
    let site = Site::own("deadlocks-threads");
    let (zk, client, all_hold) = (site.client(), site.quiet_client(), Arc::new(Barrier::new(2)));
    let lock = |name: &str| mutex(&client, &site.base, name);
    let (one, other) = ((lock("a"), lock("b")), (lock("b"), lock("a")));
    let threads = vec![
        takes_two(&all_hold, move || one.0.lock(), move || one.1.lock()),
        takes_two(&all_hold, move || other.0.lock(), move || other.1.lock()),
    ];
    let found = certain(&site, &zk);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].is_certain && circle(&found[0]) == "a b", "{}", found[0]);
    zk.close();
    end(site, vec![client], threads);
}

#[test]
fn through_a_semaphore_and_a_read_write_lock() {
    skip_without_server!();
    let site = Site::own("deadlocks-kinds");
    let (zk, all_hold) = (site.client(), Arc::new(Barrier::new(3)));
    let clients: Vec<Client> = (0..3).map(|_| site.quiet_client()).collect();
    let [one, other, third] = [0, 1, 2].map(|place| clients[place].clone());
    let semaphore = |zk: &Client| DistributedSemaphore::new(zk, &site.base, "s", 2);
    let rw = |zk: &Client| DistributedRwLock::new(zk, &site.base, "rw");
    let (s1, s2, s3) = (semaphore(&one), semaphore(&other), semaphore(&third));
    let (rw1, rw2, rw3) = (rw(&one), rw(&other), rw(&third));
    let threads = vec![
        takes_two(&all_hold, move || s1.acquire(), move || rw1.write()),
        takes_two(&all_hold, move || s2.acquire(), move || rw2.write()),
        takes_two(&all_hold, move || rw3.read(), move || s3.acquire()),
    ];
    let found = certain(&site, &zk);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].is_certain && circle(&found[0]) == "rw s", "{}", found[0]);
    zk.close();
    end(site, clients, threads);
}

/// Why a wait in a circle may end by itself, or is not known to belong to it.
#[derive(Clone, Copy, PartialEq)]
enum Doubt {
    Limited,
    Cancellable,
    Silent,
}

#[test]
fn waits_with_a_limit_and_holders_that_tell_nothing_are_only_suspected() {
    skip_without_server!();
    for doubt in [Doubt::Limited, Doubt::Cancellable, Doubt::Silent] {
        let site = Site::own("deadlocks-suspected");
        let (zk, all_hold) = (site.client(), Arc::new(Barrier::new(2)));
        let clients = vec![site.quiet_client(), site.quiet_client()];
        let lock = |client: &Client, name: &str| match doubt {
            Doubt::Silent => strict(client, &site.base, name).data("one of Curator's"),
            Doubt::Limited | Doubt::Cancellable => strict(client, &site.base, name),
        };
        let (a, b) = (lock(&clients[0], "a"), lock(&clients[0], "b"));
        let (theirs, ours) =
            (strict(&clients[1], &site.base, "b"), strict(&clients[1], &site.base, "a"));
        let cancel = Cancel::new();
        let then = move || match doubt {
            Doubt::Limited => b.try_lock_for(Duration::from_secs(600)).map(drop),
            Doubt::Cancellable => b.lock_within(&cancel).map(drop),
            Doubt::Silent => b.lock().map(drop),
        };
        let threads = vec![
            takes_two(&all_hold, move || a.lock(), then),
            takes_two(&all_hold, move || theirs.lock(), move || ours.lock()),
        ];
        let shows =
            || zk.waits(&site.base).unwrap().is_some_and(|waits| !waits.deadlocks(None).is_empty());
        eventually(SOON, "a circle", shows);
        let first = look(&site, &zk);
        pass(BETWEEN_LOOKS);
        let found = look(&site, &zk).deadlocks(Some(&first));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(!found[0].is_certain && circle(&found[0]) == "a b", "{}", found[0]);
        zk.close();
        end(site, clients, threads);
    }
}

#[test]
fn a_call_that_waits_in_a_deadlock_warns_once_if_that_is_wanted() {
    skip_without_server!();
    let site = Site::own("deadlocks-warning");
    let all_hold = Arc::new(Barrier::new(2));
    let events: Arc<Mutex<Vec<Event>>> = Arc::default();
    let told = Arc::clone(&events);
    let warned = site
        .builder()
        .warn_of_deadlock_after(Duration::from_secs(1))
        .on_event(move |event| told.lock().unwrap().push(event.clone()))
        .connect()
        .unwrap();
    let clients = vec![warned, site.quiet_client()];
    let lock = |client: &Client, name: &str| strict(client, &site.base, name);
    let (a, b) = (lock(&clients[0], "a"), lock(&clients[0], "b"));
    let (theirs, ours) = (lock(&clients[1], "b"), lock(&clients[1], "a"));
    let threads = vec![
        takes_two(&all_hold, move || a.lock(), move || b.lock()),
        takes_two(&all_hold, move || theirs.lock(), move || ours.lock()),
    ];
    let warnings = || {
        let events = events.lock().unwrap();
        let text = |event: &Event| match event {
            Event::Deadlock { lock, deadlock, .. } => Some((lock.clone(), deadlock.clone())),
            _ => None,
        };
        events.iter().filter_map(text).collect::<Vec<_>>()
    };
    eventually(SOON, "the warning", || !warnings().is_empty());
    let [(lock, text)] = &warnings()[..] else { panic!("{:?}", warnings()) };
    assert_eq!(*lock, format!("{}/b", site.base));
    let (a, b) =
        (format!("holds {}/a and waits for {0}/b", site.base), format!("holds {}/b", site.base));
    assert!(text.starts_with("deadlock: ") && text.contains(&a) && text.contains(&b), "{text}");
    end(site, clients, threads);
}

#[test]
fn a_thread_that_locks_twice_is_warned_at_once() {
    skip_without_server!();
    let kept = logs(LevelFilter::Warn);
    for hands_over in [false, true] {
        let site = Site::shared("deadlocks-twice");
        let client = site.quiet_client();
        let lock = if hands_over {
            mutex(&client, &site.base, "a")
        } else {
            strict(&client, &site.base, "a")
        };
        let again = lock.clone();
        let path = format!("{}/a", site.base);
        let of_this = move |line: &String| line.contains("locked itself") && line.contains(&path);
        let (own, others) = (lock.lock().unwrap(), lock.clone());
        // With a limit, and on another thread, nothing is wrong.
        assert!(lock.try_lock_for(Duration::from_millis(100)).unwrap().is_none());
        let others = waiting(move || others.lock().map(drop).map_err(|error| error.kind()));
        assert_eq!(kept.warnings().iter().filter(|line| of_this(line)).count(), 0);
        own.unlock().unwrap();
        others.join().unwrap().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let tells = Arc::clone(&ended);
        let thread = waiting(move || {
            let held = again.lock().unwrap();
            let kind = again.lock().err().map(|error| error.kind());
            tells.store(true, Ordering::SeqCst);
            drop(held);
            kind
        });
        eventually(SOON, "the warning", || kept.warnings().iter().any(&of_this));
        assert!(!ended.load(Ordering::SeqCst));
        client.close();
        assert_eq!(thread.join().unwrap(), Some(ErrorKind::Closed));
        drop((lock, client));
        site.finish([]);
    }
}

/// The thread that took a guard waits for the lock again, as one that gives work to others does.
#[test]
fn guards_that_are_given_to_other_threads_are_no_deadlock() {
    skip_without_server!();
    let kept = logs(LevelFilter::Warn);
    for hands_over in [false, true] {
        let site = Site::shared("deadlocks-given");
        let (zk, client) = (site.client(), site.quiet_client());
        let lock = match hands_over {
            true => mutex(&client, &site.base, "a"),
            false => strict(&client, &site.base, "a"),
        };
        let warnings = || {
            let of_this =
                |line: &&String| line.contains("locked itself") && line.contains(&site.base);
            kept.warnings().iter().filter(of_this).count()
        };
        for round in 0..2 {
            let guard = lock.lock().unwrap();
            let before = warnings();
            let (release, released) = mpsc::channel::<()>();
            let worker = waiting(move || {
                let _ = released.recv();
                drop(guard);
            });
            let found = thread::scope(|scope| {
                let looks = scope.spawn(|| {
                    // Within the process, that somebody waits is told after five seconds, and then again.
                    pass(if hands_over { 2 * BETWEEN_LOOKS } else { Duration::ZERO });
                    eventually(SOON, "the waiter", || {
                        hands_over || look(&site, &zk).contenders.len() == 2
                    });
                    let first = look(&site, &zk);
                    pass(BETWEEN_LOOKS + Duration::from_secs(if hands_over { 2 } else { 0 }));
                    let found = look(&site, &zk).deadlocks(Some(&first));
                    drop(release);
                    found
                });
                lock.lock().unwrap().unlock().unwrap();
                looks.join().unwrap()
            });
            worker.join().unwrap();
            assert!(found.iter().all(|one| !one.is_certain), "{found:?}");
            // Once it is known that guards of this lock are given away, nothing is said.
            assert!(round == 0 || found.is_empty() && warnings() == before, "{found:?}");
        }
        drop((lock, zk));
        site.finish([client]);
    }
}

#[test]
fn a_wait_within_the_process_that_is_over_is_not_told_any_more() {
    skip_without_server!();
    let site = Site::own("deadlocks-over");
    let (zk, client) = (site.client(), site.quiet_client());
    let lock = |name: &str| mutex(&client, &site.base, name);
    let (x, y, held) = (lock("x"), lock("y"), lock("y").lock().unwrap());
    let (release, released) = mpsc::channel::<()>();
    let waiter = waiting(move || {
        let kept = x.lock().unwrap();
        y.lock().unwrap().unlock().unwrap();
        let _ = released.recv();
        drop(kept);
    });
    eventually(SOON, "what the node tells", || look(&site, &zk).edges().len() == 1);
    // The node goes on to the waiter, and from there to another thread, and does not end.
    let node = held.path().to_owned();
    let next = lock("y");
    let next = waiting(move || next.lock().unwrap());
    held.unlock().unwrap();
    let next = next.join().unwrap();
    assert_eq!(next.path(), node);
    eventually(SOON, "what the node tells", || look(&site, &zk).edges().is_empty());
    drop(release);
    waiter.join().unwrap();
    next.unlock().unwrap();
    drop(zk);
    site.finish([client]);
}

/// A thread that holds one of two locks waits behind another thread, which waits for a client that waits for it.
#[test]
fn behind_a_thread_that_contends_for_all() {
    skip_without_server!();
    let site = Site::own("deadlocks-behind");
    let zk = site.client();
    let clients = vec![site.quiet_client(), site.quiet_client()];
    let lock = |client: &Client, name: &str| mutex(client, &site.base, name);
    let (all_hold, alone) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(1)));
    let (y_theirs, z_theirs) = (lock(&clients[1], "y"), lock(&clients[1], "z"));
    let others_hold = Arc::clone(&all_hold);
    let then = move || {
        others_hold.wait();
        z_theirs.lock()
    };
    let theirs = takes_two(&alone, move || y_theirs.lock(), then);
    site.wait_for_children("y", 1);
    // It holds nothing, and contends for y.
    let leads = lock(&clients[0], "y");
    let leads = waiting(move || leads.lock().err().map(|error| error.kind()));
    site.wait_for_children("y", 2);
    let (z, y) = (lock(&clients[0], "z"), lock(&clients[0], "y"));
    let ours = takes_two(&all_hold, move || z.lock(), move || y.lock());
    let found = certain(&site, &zk);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].is_certain && circle(&found[0]) == "y z", "{}", found[0]);
    zk.close();
    end(site, clients, vec![theirs, leads, ours]);
}

/// Threads of two clients that lock in any order with limits, in one order without, keep what they have, and give
/// guards to each other. ZKLOCK_STORM_SECONDS=3600 is an hour of it.
#[test]
fn nothing_that_ends_is_taken_for_a_deadlock() {
    skip_without_server!();
    let site = Site::own("deadlocks-storm");
    let length = Duration::from_secs(setting("ZKLOCK_STORM_SECONDS", 12));
    let (zk, over) = (site.client(), AtomicBool::new(false));
    let clients = [site.quiet_client(), site.quiet_client()];
    // Guards of the first two locks are kept by the threads that take them.
    let lock = |client: &Client, place: usize| match place % 2 {
        0 => mutex(client, &site.base, format!("l{place}")),
        _ => strict(client, &site.base, format!("l{place}")),
    };
    let (give, given) = mpsc::channel::<(LockGuard, Duration)>();
    let given = Mutex::new(given);
    let wrong: Vec<Deadlock> = thread::scope(|scope| {
        let _ends = Raise(&over);
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let got = given.lock().unwrap().recv();
                    let Ok((guard, time)) = got else { return };
                    thread::park_timeout(time);
                    drop(guard);
                }
            });
        }
        for number in 0..8_u64 {
            let (client, give, over) = (&clients[number as usize % 2], give.clone(), &over);
            scope.spawn(move || {
                let mut random = Random(number + 1);
                // Once a guard of theirs was dropped by another thread, holds of these locks are not counted.
                for place in [2, 3] {
                    let guard = lock(client, place).lock().unwrap();
                    give.send((guard, Duration::ZERO)).unwrap();
                }
                while !over.load(Ordering::SeqCst) {
                    let (first, then) = (random.below(4), random.below(4));
                    let limit = Duration::from_millis(random.below(400) as u64);
                    let Some(held) = lock(client, first).try_lock_for(limit).unwrap_or(None) else {
                        continue;
                    };
                    if first > 1 {
                        // It goes on as one that holds nothing, and may wait for what is before that.
                        give.send((held, Duration::from_millis(random.below(5_000) as u64)))
                            .unwrap();
                        drop(lock(client, random.below(2)).lock().unwrap());
                    } else if then > first {
                        drop(lock(client, then).lock().unwrap());
                    } else {
                        let limit = Duration::from_millis(random.below(4_000) as u64);
                        let _ = lock(client, then).try_lock_for(limit);
                    }
                }
            });
        }
        drop(give);
        let begun = Instant::now();
        let mut wrong = Vec::new();
        let mut earlier: Option<Waits> = None;
        while begun.elapsed() < length {
            pass(BETWEEN_LOOKS);
            let later = zk.waits(&site.base).unwrap();
            let found = later.iter().flat_map(|later| later.deadlocks(earlier.as_ref()));
            wrong.extend(found.filter(|one| one.is_certain));
            earlier = later;
        }
        over.store(true, Ordering::SeqCst);
        wrong
    });
    assert!(wrong.is_empty(), "{}", wrong[0]);
    drop(zk);
    site.finish(clients);
}

/// Numbers that look random, the same ones in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[test]
fn a_long_wait_is_a_line_that_names_the_holder() {
    skip_without_server!();
    let kept = logs(LevelFilter::Info);
    let site = Site::shared("deadlocks-long");
    let (one, other) = (site.quiet_client(), site.quiet_client());
    let held = strict(&one, &site.base, "a").data("the nightly job").lock().unwrap();
    let lock = strict(&other, &site.base, "a");
    let waiter = waiting(move || lock.lock().map(drop));
    let lines = || {
        let of_this = |text: &String| text.contains("has waited") && text.contains(&site.base);
        let texts = kept.entries().into_iter().map(|entry| entry.text);
        texts.filter(of_this).collect::<Vec<_>>()
    };
    eventually(SOON, "the line", || !lines().is_empty());
    let line = &lines()[0];
    assert!(
        line.contains("has waited 5.") && line.contains("held by \"the nightly job\""),
        "{line}"
    );
    assert!(line.contains(held.deref().path().rsplit('/').next().unwrap()), "{line}");
    held.unlock().unwrap();
    waiter.join().unwrap().unwrap();
    assert_eq!(lines().len(), 1);
    site.finish([one, other]);
}
