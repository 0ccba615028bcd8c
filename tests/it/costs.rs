use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use zklock::{
    Cancel, Client, DistributedLock, DistributedSemaphore, Event, LockGuard, SessionState,
};

use crate::support::logs::{Entry, logs};
use crate::support::proxy::{Proxy, opcode};
use crate::support::server;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    QUIET, eventually, got_nothing, mutex, processor_time, setting, skip_in_memory,
    skip_unless_alone, skip_without_server, strict,
};

const SOON: Duration = Duration::from_secs(30);

fn quiet_client(proxy: &Proxy) -> Client {
    Client::builder(&proxy.hosts()).session_timeout(QUIET).connect().unwrap()
}

/// How many requests there were of each kind.
fn by_kind(proxy: &Proxy) -> BTreeMap<i32, u64> {
    let mut counts = BTreeMap::new();
    for request in proxy.requests() {
        *counts.entry(request.opcode).or_default() += 1;
    }
    counts
}

/// A number from /proc/self/status.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn an_idle_holder_sends_nine_heartbeats_in_a_session_timeout_on_time() {
    skip_without_server!();
    let site = Site::own("idle");
    let proxy = Proxy::start(site.server().addr());
    let timeout = Duration::from_millis(2_400);
    let zk = Client::builder(&proxy.hosts()).session_timeout(timeout).connect().unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    assert!(proxy.wait_for_request(opcode::GET_DATA, SOON), "no watch on the lock's own node");
    proxy.reset_counts();
    site.server().stat_reset();
    let next = |count| {
        assert!(proxy.wait_for_requests(opcode::SYNC, count, SOON), "no heartbeat");
    };
    let start = Stopwatch::start();
    next(1);
    let first = start.elapsed();
    next(5);
    let took = start.took();
    // Both the first and the fifth may have been noticed late.
    let (four, held_up) = (took.time() - first, took.held_up());
    println!("four heartbeats in {four:?} at a session timeout of {timeout:?}; {took:?}");
    assert!(four + held_up >= timeout / 9 * 4 - Duration::from_millis(80), "{four:?}; {took:?}");
    assert!(four <= timeout / 9 * 4 + Duration::from_millis(200) + held_up, "{four:?}; {took:?}");
    assert_eq!(by_kind(&proxy), BTreeMap::from([(opcode::SYNC, 5)]));
    assert!(guard.is_held());
    drop((guard, lock));
    site.finish([zk]);
}

#[test]
fn an_uncontended_lock_costs_three_requests_and_one_to_watch_it() {
    skip_without_server!();
    const ROUNDS: u64 = 50;
    let site = Site::own("uncontended");
    let proxy = Proxy::start(site.server().addr());
    let zk = quiet_client(&proxy);
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    eventually(SOON, "the watch on a lock that is held for a while", || {
        by_kind(&proxy).get(&opcode::GET_DATA) == Some(&1)
    });
    drop(guard);
    eventually(SOON, "the delete", || by_kind(&proxy).get(&opcode::DELETE) == Some(&1));
    assert_eq!(by_kind(&proxy).get(&opcode::GET_DATA), Some(&1), "watched more than once");
    proxy.reset_counts();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        drop(lock.lock().unwrap());
    }
    println!("{:?} for lock and release, through the proxy", start.elapsed() / ROUNDS as u32);
    eventually(SOON, "the last delete", || proxy.count(opcode::DELETE) >= ROUNDS);
    let mut counts = by_kind(&proxy);
    // A lock that is held longer, as happens on a busy processor, also sets a watch.
    assert!(counts.remove(&opcode::GET_DATA).unwrap_or_default() <= ROUNDS);
    let expected = [opcode::CREATE, opcode::DELETE, opcode::GET_CHILDREN];
    assert_eq!(counts, BTreeMap::from(expected.map(|opcode| (opcode, ROUNDS))));
    drop(lock);
    site.finish([zk]);
}

/// Each is a round trip. The crate's create returns only a path: what owns the node, and the token,
/// takes another request, which also watches the node.
#[cfg(feature = "zookeeper")]
#[test]
fn over_a_programs_handle_an_uncontended_lock_costs_four_requests() {
    use zklock::zookeeper::{WatchedEvent, ZooKeeper};

    skip_without_server!();
    const ROUNDS: u64 = 50;
    let site = Site::own("uncontended-handle");
    let proxy = Proxy::start(site.server().addr());
    let handle = ZooKeeper::connect(&proxy.hosts(), QUIET, |_: WatchedEvent| ()).unwrap();
    let zk = Client::from(handle);
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    site.wait_for_children("a", 0);
    proxy.reset_counts();
    for _ in 0..ROUNDS {
        let guard = lock.lock().unwrap();
        guard.unlock().unwrap();
    }
    let expected = [opcode::CREATE, opcode::EXISTS, opcode::GET_CHILDREN, opcode::DELETE];
    assert_eq!(by_kind(&proxy), BTreeMap::from(expected.map(|opcode| (opcode, ROUNDS))));
    drop(lock);
    zk.close();
    drop(zk);
    site.finish([]);
}

#[test]
fn a_hand_over_wakes_one_waiter_of_many() {
    skip_without_server!();
    const WAITERS: u64 = 10;
    /// So many contenders ahead are all watched.
    const ALL_AHEAD: u64 = 3;
    let site = Site::own("hand-over");
    let proxy = Proxy::start(site.server().addr());
    let clients = [(); 2].map(|()| quiet_client(&proxy));
    let locks = clients.each_ref().map(|zk| strict(zk, &site.base, "a"));
    let holder = locks[0].lock().unwrap();
    thread::scope(|scope| {
        let (granted, grants) = mpsc::channel();
        let mut turns = Vec::new();
        // The holder's watch on its own node.
        let mut watches = 1;
        for number in 0..WAITERS {
            let (lock, granted) = (&locks[number as usize % 2], granted.clone());
            let (release, turn) = mpsc::channel::<()>();
            turns.push(release);
            scope.spawn(move || {
                let guard = lock.lock().unwrap();
                granted.send(number).unwrap();
                turn.recv().unwrap();
                guard.unlock().unwrap();
            });
            // The first ones watch all who are ahead of them, and their own nodes; later ones
            // watch the node before theirs.
            watches += if number < ALL_AHEAD { number + 2 } else { 1 };
            assert!(proxy.wait_for_watches(watches, SOON), "no watch");
        }
        let server = site.server();
        assert_eq!(server.counter("zk_ephemerals_count"), WAITERS + 1);
        drop(holder);
        for (number, release) in (0..).zip(turns) {
            if number == 0 {
                assert_eq!(grants.recv_timeout(SOON), Ok(0));
                proxy.reset_counts();
            }
            release.send(()).unwrap();
            if number + 1 < WAITERS {
                assert_eq!(grants.recv_timeout(SOON), Ok(number + 1));
                let listed = (number + 2).saturating_sub(ALL_AHEAD);
                assert!(proxy.wait_for_requests(opcode::GET_DATA, listed, SOON));
            }
        }
    });
    // Who has watched all ahead of it goes on without a request. Of the others, one woken waiter,
    // and no other, lists the contenders and watches its own node.
    let (hand_overs, listed) = (WAITERS - 1, WAITERS - ALL_AHEAD);
    let counts = by_kind(&proxy);
    println!("{hand_overs} hand-overs with up to {WAITERS} contenders: {counts:?} (by opcode)");
    let expected = BTreeMap::from([
        (opcode::DELETE, hand_overs + 1),
        (opcode::GET_CHILDREN, listed),
        (opcode::GET_DATA, listed),
    ]);
    assert_eq!(counts, expected);
    drop(locks);
    site.finish(clients);
}

#[test]
fn s35a_while_the_server_is_down_the_processor_rests_and_the_log_stays_short() {
    skip_without_server!();
    skip_unless_alone!();
    let logs = logs(LevelFilter::Trace);
    let outage = Duration::from_secs(setting("ZKLOCK_OUTAGE_SECONDS", 10));
    let site = Site::own("outage");
    // While the server is down, the first client's connections are refused; the second one's are
    // accepted by the proxy and then closed.
    let proxy = Proxy::start(site.server().addr());
    let clients = [site.hosts().to_owned(), proxy.hosts()].map(|hosts| {
        Client::builder(&hosts).session_timeout(Duration::from_secs(4)).connect().unwrap()
    });
    let locks = clients.each_ref().map(|zk| strict(zk, &site.base, "a"));
    let guard = locks[0].lock().unwrap();
    let (took, used, lines, warnings) = thread::scope(|scope| {
        let waiters = locks.each_ref().map(|lock| scope.spawn(|| lock.lock().unwrap().unlock()));
        eventually(SOON, "the waiters", || site.children("a").len() == 3);
        // Their last requests and the log lines about them must not be counted.
        eventually(SOON, "the waiters to wait", || logs.are_quiet());
        logs.take();
        site.server().kill();
        for zk in &clients {
            eventually(SOON, "the outage", || zk.state() == SessionState::Suspended);
        }
        let first_warnings = logs.warnings();
        logs.take();
        let (start, before) = (Instant::now(), processor_time());
        // Sleeps, since there is nothing to wait for: the outage should last this long.
        thread::sleep(outage);
        let used = processor_time() - before;
        let warnings = [first_warnings, logs.warnings()].concat();
        let measured = (start.elapsed(), used, logs.take(), warnings);
        site.server().start_again();
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
        measured
    });
    let share = used.as_secs_f64() / took.as_secs_f64();
    let rate = lines.len() as f64 * 60.0 / took.as_secs_f64() / clients.len() as f64;
    let log: Vec<String> = lines.iter().map(Entry::to_string).collect();
    println!(
        "down for {took:?}: {:.2} % of a processor, {rate:.0} lines a minute from each client:\n{}",
        share * 100.0,
        log.join("\n")
    );
    assert!(share < 0.02, "{share}");
    assert!(rate < 100.0, "{rate} lines a minute");
    // Of each client: the connection, the servers, the session, and one more after a minute. Of the
    // one hold: its loss.
    let minutes = took.as_secs() as usize / 60;
    let of_outage = warnings.iter().filter(|line| !line.contains("was not running")).count();
    assert!(of_outage <= (3 + minutes) * clients.len() + 1, "{warnings:#?}");
    assert!(!guard.is_held());
    drop((guard, locks));
    site.finish(clients);
    drop(proxy);
}

#[test]
fn polling_a_held_lock_accumulates_nothing() {
    skip_without_server!();
    skip_unless_alone!();
    const POLLERS: u64 = 4;
    // Each poll waits for two writes.
    let polls = setting("ZKLOCK_POLLS", if server::has_slow_log() { 4_000 } else { 20_000 });
    let site = Site::own("polling");
    let server = site.server();
    let zk = Client::builder(site.hosts()).session_timeout(QUIET).connect().unwrap();
    let holder = site.builder().session_timeout(QUIET).connect().unwrap();
    let guard = mutex(&holder, &site.base, "a").lock().unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let poll = |times: u64| {
        thread::scope(|scope| {
            for _ in 0..POLLERS {
                scope.spawn(|| {
                    for round in 0..times / POLLERS {
                        let limit = Duration::from_millis(round % 2);
                        assert!(got_nothing(lock.try_lock_for(limit)));
                    }
                });
            }
        });
    };
    let measure = || {
        eventually(SOON, "the last delete", || zk.stats().pending_deletes == 0);
        eventually(SOON, "the last contender", || server.counter("zk_ephemerals_count") == 1);
        (status("VmRSS"), server.counter("zk_watch_count"), zk.stats())
    };
    let threads = zk.stats().threads;
    poll(polls / 10);
    let (memory, watches, stats) = measure();
    let start = Instant::now();
    poll(polls - polls / 10);
    let took = start.elapsed();
    let most_threads = status("Threads");
    let (memory_then, watches_then, stats_then) = measure();
    println!(
        "{polls} polls: {:?} each; resident {memory} kB, then {memory_then} kB; watches of the \
         server {watches}, then {watches_then}; {stats:?}, then {stats_then:?}; {most_threads} threads",
        took / (polls - polls / 10) as u32
    );
    assert!(memory_then < memory + 3_000, "{memory} kB, then {memory_then} kB");
    // The holder's own watch, and one of the pollers' session.
    assert!(watches_then <= 2, "{watches_then} watches");
    assert_eq!(stats_then.watches, 0);
    assert!(most_threads < 40, "{most_threads} threads");
    eventually(SOON, "the end of idle threads", || zk.stats().threads <= threads);
    drop((guard, lock));
    site.finish([zk, holder]);
}

/// A waiter remembers who is ahead of it, not the list.
#[test]
fn the_memory_of_a_waiter_does_not_grow_with_the_line() {
    skip_without_server!();
    skip_unless_alone!();
    let count = setting("ZKLOCK_WAITERS", 1_500);
    let few = count / 5;
    let site = Site::own("waiters");
    let (tell, told) = mpsc::channel();
    let report = move |event: &Event| {
        if let Event::Waiting { .. } = event {
            let _ = tell.send(());
        }
    };
    let zk = site.builder().session_timeout(QUIET).on_event(report).connect().unwrap();
    let holder = site.quiet_client();
    let semaphore = |zk: &Client| DistributedSemaphore::new(zk, &site.base, "a", 10);
    let held = semaphore(&holder).acquire_many(10).unwrap();
    let cancel = Cancel::new();
    let empty = status("VmRSS");
    thread::scope(|scope| {
        let (semaphore, cancel) = (&semaphore, &cancel);
        let wait = |from: u64, to: u64| {
            for _ in from..to {
                let semaphore = semaphore(&zk);
                scope.spawn(move || semaphore.acquire_within(cancel).unwrap_err());
                // One after another: how many lists are read at a time is the machine's affair.
                told.recv_timeout(SOON).expect("a waiter");
            }
            status("VmRSS")
        };
        let (first, all) = (wait(0, few), wait(few, count));
        cancel.cancel();
        let (of_the_first, of_the_rest) = ((first - empty) / few, (all - first) / (count - few));
        println!(
            "{count} waiters: {} MB; {of_the_first} kB for each of the first {few}, {of_the_rest} kB for \
             each of the others",
            (all - empty) / 1_000
        );
        // With lists, each further waiter takes half as much again.
        assert!(of_the_rest <= of_the_first * 5 / 4, "{of_the_first} kB, then {of_the_rest} kB");
    });
    held.release().unwrap();
    site.finish([zk, holder]);
}

/// What a node tells of the wait (the locks that its thread holds) is needed no longer once the lock is held.
#[test]
fn the_memory_of_a_held_lock_does_not_grow_with_what_its_thread_holds() {
    skip_without_server!();
    skip_in_memory!();
    skip_unless_alone!();
    let site = Site::own("holder");
    let zk = site.quiet_client();
    // Sixty-four such paths are told.
    let lock =
        |number: u64| DistributedLock::new(&zk, &site.base, format!("{number}{}", "a".repeat(300)));
    let take = |from: u64, to: u64| -> Vec<LockGuard> {
        (from..to).map(|number| lock(number).lock().unwrap()).collect()
    };
    let first = take(0, 100);
    let before = status("VmRSS");
    let others = take(100, 500);
    let each = (status("VmRSS") - before) / 400;
    println!("{each} kB for each lock");
    // What is told takes about 22.
    assert!(each < 12, "{each} kB");
    drop((first, others));
    site.finish([zk]);
}
