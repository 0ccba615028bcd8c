//! Servers that speak ZooKeeper's protocol and are not ZooKeeper, as [`support::keeper`] imitates them.
//!
//! Scenarios that rest on a session that outlives its connection are those here with
//! `ZKLOCK_TESTS_TRANSPORT=keeper`.
//!
//! [`support::keeper`]: crate::support::keeper

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use zklock::znode::CreateMode;
use zklock::{Client, DistributedLock, ErrorKind, LockGuard, LossReason, SharedValue};

use crate::support::ensemble::{Ensemble, Options};
use crate::support::keeper::{Habits, Keeper, Unknown};
use crate::support::proxy::{Proxy, opcode};
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::{
    Inside, eventually, in_background, skip_before, skip_unless_alone, skip_without_server, strict,
    threads_named, timed, unique_base,
};

/// Ample time for steps whose duration a test does not check.
const AMPLE: Duration = Duration::from_secs(30);
/// The session timeout of most tests: a lost session's nodes stay that long.
const T: Duration = Duration::from_secs(3);
/// Far longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

/// Where `scripts/zookeeper-jars` puts the jars of this version, if they are there.
fn jars_of(version: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    let directory = target.join("zookeeper").join(version);
    directory.join("slf4j-simple.jar").is_file().then_some(directory)
}

fn connect(hosts: &str, timeout: Duration) -> Client {
    Client::builder(hosts).session_timeout(timeout).connect_timeout(AMPLE).connect().unwrap()
}

/// A server of the test's own, behind a proxy with these habits, and a client.
fn rig(test: &str, habits: Habits, timeout: Duration) -> (Site, Keeper, Client) {
    let site = Site::own(test);
    let keeper = Keeper::start(site.server().addr(), habits);
    let zk = connect(&keeper.hosts(), timeout);
    (site, keeper, zk)
}

/// Receives why the guard's lock was lost.
fn losses(guard: &LockGuard) -> Receiver<LossReason> {
    let (tell, told) = channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    told
}

fn lock_in_background(lock: &DistributedLock) -> Receiver<LockGuard> {
    let lock = lock.clone();
    in_background(move || lock.lock().unwrap())
}

fn ends(site: Site, clients: impl IntoIterator<Item = Client>) {
    // Nobody can close a session whose connection is lost: its nodes stay for its timeout.
    let server = site.server();
    drop(clients.into_iter().collect::<Vec<_>>());
    eventually(AMPLE, "the last ephemeral node", || server.counter("zk_ephemerals_count") == 0);
    site.finish([]);
}

/// A lock whose connection is lost is told as lost long before its lease ends, and acquired again when
/// the server has ended the lost session; no other session is left behind.
#[test]
pub(crate) fn s23_a_blip_is_a_lost_lock_where_sessions_end_with_their_connections() {
    skip_without_server!();
    skip_before!(3, 5, "know no containers, which costs one more connection");
    let (site, keeper, zk) = rig("keeper-blip", Habits::newest(), T * 3);
    for round in 1..=2 {
        let guard = strict(&zk, &site.base, format!("a-{round}")).lock().unwrap();
        let (lost, session) = (losses(&guard), zk.session_id());
        keeper.cut();
        let (why, took) = timed(|| lost.recv_timeout(AMPLE));
        assert_eq!(why, Ok(LossReason::SessionExpired), "{round}");
        assert!(took.within(T), "{took:?} of a lease of {:?}", T * 3);
        assert!(!guard.is_held());
        drop(guard);
        strict(&zk, &site.base, "b").lock().unwrap().unlock().unwrap();
        assert_ne!(zk.session_id(), session);
        // The lost ones, and the one that is open.
        assert_eq!(keeper.left_open(), round + 1);
    }
    let again = strict(&zk, &site.base, "a-2").lock().unwrap();
    assert!(again.is_held());
    drop(again);
    ends(site, [zk]);
}

/// Holds the lock for a moment, until told to stop; counts how often, and that no other holds it.
fn hold_again_and_again(
    lock: &DistributedLock,
    inside: &AtomicBool,
    stop: &AtomicBool,
    rounds: &AtomicU64,
) {
    while !stop.load(Ordering::SeqCst) {
        let guard = lock.lock().unwrap();
        let alone = Inside::enter(inside);
        thread::yield_now();
        drop(alone);
        rounds.fetch_add(1, Ordering::SeqCst);
        drop(guard);
    }
}

/// Never two hold it.
#[test]
pub(crate) fn s23_a_lost_lock_is_acquired_again_when_the_server_has_ended_its_session() {
    skip_without_server!();
    let (site, keeper, zk) = rig("keeper-again", Habits::newest(), T);
    let rounds = AtomicU64::new(0);
    let (inside, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let clients = [zk, connect(&keeper.hosts(), T)];
    thread::scope(|scope| {
        for zk in &clients {
            let (lock, inside, stop, rounds) =
                (strict(zk, &site.base, "a"), &inside, &stop, &rounds);
            scope.spawn(move || hold_again_and_again(&lock, inside, stop, rounds));
        }
        for _ in 0..3 {
            let before = rounds.load(Ordering::SeqCst);
            eventually(AMPLE, "more rounds", || rounds.load(Ordering::SeqCst) > before + 50);
            keeper.cut();
        }
        stop.store(true, Ordering::SeqCst);
    });
    ends(site, clients);
}

#[test]
pub(crate) fn s24_a_waiter_queues_again_where_sessions_end_with_their_connections() {
    skip_without_server!();
    let (site, keeper, waiter) = rig("keeper-waiter", Habits::newest(), T);
    let holder = site.client();
    let guard = strict(&holder, &site.base, "a").lock().unwrap();
    let acquired = lock_in_background(&strict(&waiter, &site.base, "a"));
    site.wait_for_children("a", 2);
    let session = waiter.session_id();
    keeper.cut();
    guard.unlock().unwrap();
    let guard = acquired.recv_timeout(AMPLE).expect("the lock");
    guard.ensure_held().unwrap();
    assert_ne!(waiter.session_id(), session);
    guard.unlock().unwrap();
    ends(site, [holder, waiter]);
}

#[test]
pub(crate) fn s25_a_restart_is_a_lost_lock_where_sessions_end_with_their_connections() {
    skip_without_server!();
    let (site, keeper, holder) = rig("keeper-restart", Habits::newest(), T);
    let waiter = connect(&keeper.hosts(), T);
    let guard = strict(&holder, &site.base, "a").lock().unwrap();
    let (lost, token) = (losses(&guard), guard.fencing_token());
    let acquired = lock_in_background(&strict(&waiter, &site.base, "a"));
    site.wait_for_children("a", 2);
    site.server().restart();
    lost.recv_timeout(AMPLE).expect("a loss");
    let next = acquired.recv_timeout(AMPLE).expect("the lock");
    assert!(!guard.is_held() && next.fencing_token() > token);
    drop(guard);
    next.unlock().unwrap();
    ends(site, [holder, waiter]);
}

/// Three servers, one after the other.
#[test]
pub(crate) fn s34a_in_a_rolling_restart_locks_are_lost_and_never_two_hold_one() {
    skip_without_server!();
    let servers = Ensemble::start(3, &Options::default()).expect("an ensemble");
    let start = |node: &Server| Keeper::start(node.addr(), Habits::newest());
    let keepers: Vec<Keeper> = servers.nodes().iter().map(start).collect();
    let hosts = keepers.iter().map(Keeper::hosts).collect::<Vec<_>>().join(",");
    let base = unique_base("keeper-rolling");
    let clients = [(); 2].map(|()| connect(&hosts, T));
    let (rounds, inside) = (AtomicU64::new(0), AtomicBool::new(false));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for zk in &clients {
            let lock = strict(zk, &base, "a");
            let (rounds, inside, stop) = (&rounds, &inside, &stop);
            scope.spawn(move || hold_again_and_again(&lock, inside, stop, rounds));
        }
        for node in 0..3 {
            servers.node(node).restart();
            servers.wait_ready();
            let before = rounds.load(Ordering::SeqCst);
            eventually(AMPLE, "more rounds", || rounds.load(Ordering::SeqCst) > before + 10);
        }
        stop.store(true, Ordering::SeqCst);
    });
}

/// Neither a strange server nor one without a leader costs a session of the others.
#[test]
fn a_wrong_address_among_three_right_ones_costs_nothing() {
    skip_without_server!();
    let habits = [
        Habits::newest(),
        Habits { has_passwords: true, ..Habits::newest() },
        Habits { leaderless: Some(10_000), ..Habits::newest() },
        Habits { leaderless: Some(-1), ..Habits::newest() },
    ];
    let site = Site::own("one-wrong");
    let other = Server::start();
    for habits in habits {
        let grants = habits.leaderless.is_none();
        let wrong = Keeper::start(other.addr(), habits);
        let right = [(); 3].map(|()| Proxy::start(site.server().addr()));
        let mut hosts: Vec<String> = right.iter().map(Proxy::hosts).collect();
        let zk = connect(&hosts.join(","), Duration::from_secs(10));
        let guard = strict(&zk, &site.base, "a").lock().unwrap();
        let session = zk.session_id();
        hosts.push(wrong.hosts());
        zk.set_hosts(&hosts.join(",")).unwrap();
        // Each time, any of the others may be asked first.
        for round in 0..100 {
            if round >= 10 && (!grants || wrong.opened() > 0) {
                break;
            }
            let connections = || right.iter().map(Proxy::connections).sum::<usize>();
            let before = connections();
            right.iter().for_each(Proxy::cut);
            eventually(AMPLE, "another connection", || connections() > before);
            guard.ensure_held().unwrap();
        }
        assert_eq!(zk.session_id(), session);
        assert!(!grants || wrong.opened() > 0, "it was never asked");
        eventually(AMPLE, "its sessions to be closed", || wrong.left_open() == 0);
        guard.unlock().unwrap();
        drop(zk);
    }
    site.finish([]);
}

#[test]
fn a_server_that_has_no_leader_is_not_taken_for_a_new_session() {
    skip_without_server!();
    let site = Site::own("no-leader");
    for timeout in [10_000, -1] {
        let leaderless = Habits { leaderless: Some(timeout), ..Habits::newest() };
        let keeper = Keeper::start(site.server().addr(), leaderless);
        let builder = || Client::builder(&keeper.hosts()).session_timeout(T);
        let error = builder().connect_timeout(Duration::from_secs(1)).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        assert!(error.to_string().contains("serves nobody now"), "{error}");
        let zk = builder().lazy().unwrap();
        let lock = strict(&zk, &site.base, "a");
        let acquired = lock_in_background(&lock);
        keeper.set(Habits::newest());
        acquired.recv_timeout(AMPLE).expect("the lock").unlock().unwrap();
    }
    site.finish([]);
}

#[test]
fn a_session_that_is_closed_without_a_reply_is_not_searched_for() {
    skip_without_server!();
    skip_before!(3, 5, "know no containers, which costs one more connection");
    let (site, keeper, zk) = rig("keeper-close", Habits::newest(), LONG);
    strict(&zk, &site.base, "a").lock().unwrap().unlock().unwrap();
    zk.close();
    assert_eq!((keeper.opened(), keeper.left_open()), (1, 0));
    site.finish([zk]);
}

/// A server that ends a session says so by a reply to no request.
#[test]
fn a_session_that_the_server_ends_is_told_as_expired() {
    skip_without_server!();
    let (site, keeper, zk) = rig("keeper-expire", Habits::newest(), LONG);
    let guard = strict(&zk, &site.base, "a").lock().unwrap();
    let lost = losses(&guard);
    let opened = keeper.opened();
    keeper.expire();
    assert_eq!(lost.recv_timeout(AMPLE), Ok(LossReason::SessionExpired));
    drop(guard);
    strict(&zk, &site.base, "a").lock().unwrap().unlock().unwrap();
    assert_eq!(keeper.opened(), opened + 1, "the lost session was searched for");
    ends(site, [zk]);
}

/// Where only the second session in a row shows that none goes on.
#[test]
fn lost_sessions_with_passwords_like_zookeepers_are_not_searched_for_for_ever() {
    skip_without_server!();
    skip_before!(3, 5, "know no containers, which costs one more connection");
    skip_unless_alone!();
    let habits = Habits { has_passwords: true, ..Habits::newest() };
    let (site, keeper, zk) = rig("keeper-passwords", habits, T);
    let mut told = Vec::new();
    for _ in 0..3 {
        let guard = strict(&zk, &site.base, "a").lock().unwrap();
        let lost = losses(&guard);
        keeper.cut();
        told.push(lost.recv_timeout(AMPLE).expect("a loss"));
        drop(guard);
    }
    assert_eq!(told[0], LossReason::LeaseExpired, "one wrong address could look like that");
    assert_eq!(told[1..], [LossReason::SessionExpired; 2]);
    strict(&zk, &site.base, "a").lock().unwrap().unlock().unwrap();
    eventually(T * 5, "the lost sessions to be given up", || {
        threads_named("zklock-dial").is_empty() && threads_named("zklock-link").len() == 1
    });
    assert_eq!(keeper.left_open(), 4, "sessions were left behind");
    ends(site, [zk]);
}

// ----- operations that a server does not know

/// How often a server is asked for a container before the client knows that it has none.
fn asks_for_containers(unknown: Unknown) -> usize {
    let habits = Habits::newest().with(opcode::CREATE_CONTAINER, unknown);
    let (site, keeper, zk) = rig("no-containers", habits, T);
    let acquired = lock_in_background(&strict(&zk, &site.base, "a"));
    let guard = acquired.recv_timeout(AMPLE).expect("a lock");
    let asked = keeper.count(opcode::CREATE_CONTAINER);
    if unknown != Unknown::Closes {
        assert_eq!(keeper.opened(), 1, "a connection was lost");
    }
    guard.unlock().unwrap();
    // Also other sessions of the client know it.
    keeper.cut();
    for name in ["b", "c"] {
        strict(&zk, &site.base, name).lock().unwrap().unlock().unwrap();
    }
    assert_eq!(keeper.count(opcode::CREATE_CONTAINER), asked);
    ends(site, [zk]);
    asked
}

#[test]
fn a_fresh_lock_path_can_be_locked_where_containers_are_unknown() {
    skip_without_server!();
    assert_eq!(asks_for_containers(Unknown::Refused), 1);
    assert_eq!(asks_for_containers(Unknown::Ignored), 1);
    // Twice at once, and once more later.
    assert_eq!(asks_for_containers(Unknown::Closes), 3);
}

/// Though that is the first request of each session.
#[test]
fn a_program_can_create_a_container_where_containers_are_unknown() {
    skip_without_server!();
    let habits = Habits::newest().with(opcode::CREATE_CONTAINER, Unknown::Closes);
    let (site, keeper, zk) = rig("own-container", habits, T);
    site.raw().create_all(&site.base).unwrap();
    let node = zk.znode(format!("{}/a", site.base));
    eventually(AMPLE, "a node", || node.create(CreateMode::Container, "").is_ok());
    // It takes one more if nothing was answered before the first: a heartbeat may have been.
    let asked = keeper.count(opcode::CREATE_CONTAINER);
    assert!((3..=4).contains(&asked), "{asked}");
    drop(node);
    ends(site, [zk]);
}

/// Leaves a watch behind on a node of its own, for each of these numbers.
fn litter(zk: &Client, base: &str, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let value = SharedValue::new(zk, base, format!("value-{number}"));
        let _ = value.observe().next_within(AMPLE);
    }
}

#[test]
fn a_server_that_closes_the_connection_instead_of_removing_watches_is_soon_spared() {
    skip_without_server!();
    let habits = Habits::newest().with(opcode::REMOVE_WATCHES, Unknown::Closes);
    let (site, keeper, zk) = rig("no-removal", habits, T);
    let removals = || keeper.count(opcode::REMOVE_WATCHES);
    for round in 1..=2 {
        let end = Instant::now() + AMPLE;
        let mut number = 0;
        while removals() < round {
            assert!(Instant::now() < end, "watches are not removed");
            litter(&zk, &site.base, number..number + 10);
            number += 10;
        }
    }
    // From now on, nothing is lost.
    strict(&zk, &site.base, "a").lock().unwrap().unlock().unwrap();
    let guard = strict(&zk, &site.base, "a").lock().unwrap();
    litter(&zk, &site.base, 1000..1200);
    guard.ensure_held().unwrap();
    assert_eq!(removals(), 2);
    guard.unlock().unwrap();
    ends(site, [zk]);
}

/// Where watches cannot be removed, another connection does it, but only when nothing is held.
#[test]
fn unused_watches_are_bounded_where_they_cannot_be_removed() {
    skip_without_server!();
    skip_before!(3, 5, "know no containers, which costs one more connection");
    const MOST: u32 = 10_000;
    let habits = Habits::newest().with(opcode::REMOVE_WATCHES, Unknown::Refused);
    let (site, keeper, zk) = rig("many-watches", habits, LONG);
    let guard = strict(&zk, &site.base, "a").lock().unwrap();
    let watches = || zk.stats().watches_at_server.unwrap();
    litter(&zk, &site.base, 0..MOST + 200);
    guard.ensure_held().unwrap();
    assert!(watches() > MOST as usize, "{:?}", zk.stats());
    assert_eq!(keeper.opened(), 1);
    guard.unlock().unwrap();
    eventually(AMPLE, "another connection", || {
        litter(&zk, &site.base, 0..1);
        watches() < 100
    });
    assert_eq!(keeper.opened(), 3, "one for the other session, one to ask for the old one");
    ends(site, [zk]);
}

/// What a server does that is killed is not taken for not knowing an operation.
#[test]
fn a_server_that_is_killed_behind_a_request_is_not_taken_for_one_that_does_not_know_it() {
    skip_without_server!();
    skip_before!(3, 5, "know no containers and cannot remove watches");
    let site = Site::own("killed");
    let (proxy, zk) = site.proxied(LONG);
    let kill_behind = |operation| {
        assert!(proxy.wait_for_request(operation, AMPLE));
        site.server().kill();
        proxy.release();
        site.server().start_again();
    };
    proxy.stall_request(opcode::CREATE_CONTAINER);
    let acquired = lock_in_background(&strict(&zk, &site.base, "a"));
    kill_behind(opcode::CREATE_CONTAINER);
    acquired.recv_timeout(AMPLE).expect("the lock").unlock().unwrap();
    strict(&zk, &site.base, "b").lock().unwrap().unlock().unwrap();
    let is_lock_node = |path: &str| path.ends_with("/a") || path.ends_with("/b");
    for made in
        proxy.requests().iter().filter(|seen| seen.path.as_deref().is_some_and(is_lock_node))
    {
        assert_ne!(made.opcode, opcode::CREATE, "not as a container");
    }

    proxy.stall_request(opcode::REMOVE_WATCHES);
    let (littering, base) = (zk.clone(), site.base.clone());
    let littered = in_background(move || litter(&littering, &base, 0..70));
    kill_behind(opcode::REMOVE_WATCHES);
    littered.recv_timeout(AMPLE).unwrap();
    proxy.reset_counts();
    litter(&zk, &site.base, 100..200);
    assert!(proxy.count(opcode::REMOVE_WATCHES) > 0, "watches are no longer removed");

    // The session is not closed: it takes the whole limit to give that up.
    proxy.stall_request(opcode::CLOSE_SESSION);
    let closing = zk.clone();
    let closed = in_background(move || timed(|| closing.close()).1);
    assert!(proxy.wait_for_request(opcode::CLOSE_SESSION, AMPLE));
    site.server().kill();
    proxy.release();
    let took = closed.recv_timeout(AMPLE).unwrap();
    assert!(took.time() >= Duration::from_millis(900), "told as confirmed after {took:?}");
    site.server().start_again();
    drop(zk);
}

/// As in a rolling upgrade: the leader does not know containers, and drops a follower that passes a
/// request for one on, with all its clients.
#[test]
fn a_fresh_lock_path_can_be_locked_where_only_the_leader_knows_no_containers() {
    skip_without_server!();
    let (Some(old), Some(new)) = (jars_of("3.4.14"), jars_of("3.6.2")) else {
        eprintln!("SKIPPED: an ensemble of 3.4.14 and 3.6.2; scripts/zookeeper-jars fetches them");
        return;
    };
    // The member with the greatest number leads.
    let jars = vec![new, old.clone(), old];
    let options = Options { jars, ..Options::default() };
    let servers = Ensemble::start(3, &options).expect("an ensemble");
    assert_ne!(servers.leader(), 0);
    let proxy = Proxy::start(servers.node(0).addr());
    let base = unique_base("mixed");
    let zk = connect(&proxy.hosts(), Duration::from_secs(8));
    let acquired = lock_in_background(&strict(&zk, &base, "a"));
    acquired.recv_timeout(LONG).expect("the lock").unlock().unwrap();
    println!(
        "{} connections, {} requests for a container",
        proxy.connections(),
        proxy.count(opcode::CREATE_CONTAINER)
    );
    proxy.reset_counts();
    let connections = proxy.connections();
    strict(&zk, &base, "b").lock().unwrap().unlock().unwrap();
    assert_eq!((proxy.count(opcode::CREATE_CONTAINER), proxy.connections()), (0, connections));
}

// ----- credentials, transactions

#[test]
fn what_such_a_server_does_not_know_is_a_clear_error() {
    skip_without_server!();
    let habits = Habits::usual().with(opcode::MULTI, Unknown::Refused);
    let site = Site::own("keeper-errors");
    let keeper = Keeper::start(site.server().addr(), habits);
    let builder = || Client::builder(&keeper.hosts()).session_timeout(T);
    let zk = builder().auth("digest", "user:secret").connect().unwrap();
    let error = zk.transaction().check("/").commit().unwrap_err();
    assert!(error.to_string().contains("does not know the operation"), "{error}");
    #[cfg(feature = "sasl")]
    {
        let sasl = zklock::Sasl::digest_md5("ann", "secret");
        let error = builder().sasl(sasl).connect_timeout(T).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    }
    ends(site, [zk]);
}
