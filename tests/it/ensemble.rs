use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Client, DistributedLock, FencingToken, LockGuard, LossReason, SessionState};

use crate::keeper;
use crate::support::ensemble::{Ensemble, Options};
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::Raw;
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::stopwatch::{Moment, Stopwatch};
use crate::support::transport::Transport;
use crate::support::{
    Inside, Raise, alone, connecting, eventually, mutex, skip_without_server, threads_named,
    unique_base,
};

/// Ample time for steps whose duration a test does not check.
const AMPLE: Duration = Duration::from_secs(30);

/// Three servers, and a base path of the test's own.
pub(crate) struct Trio {
    pub(crate) servers: Ensemble,
    base: String,
}

impl Trio {
    pub(crate) fn start(test: &str, options: &Options) -> Trio {
        Trio { servers: Ensemble::start(3, options).expect("an ensemble"), base: unique_base(test) }
    }

    fn client(&self, session: Duration) -> Client {
        connect(&self.servers.hosts(), session)
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn lock(&self, zk: &Client, name: &str) -> DistributedLock {
        mutex(zk, &self.base, name)
    }

    pub(crate) fn raw(&self, node: usize) -> Raw {
        Raw::connect(&self.servers.node(node).hosts(), Duration::from_secs(60)).unwrap()
    }

    /// Like `Site::finish`, with all three servers up.
    pub(crate) fn finish(self, clients: impl IntoIterator<Item = Client>) {
        const SOON: Duration = Duration::from_secs(15);
        self.servers.wait_ready();
        let clients: Vec<Client> = clients.into_iter().collect();
        for client in &clients {
            eventually(SOON, "an empty table of watches", || client.stats().watches == 0);
            eventually(SOON, "the last delete", || client.stats().pending_deletes == 0);
        }
        drop(clients);
        if alone() {
            for prefix in ["zklock-", "io", "event"] {
                eventually(SOON, "the last thread to end", || threads_named(prefix).is_empty());
            }
        }
        for node in 0..3 {
            for counter in ["zk_ephemerals_count", "zk_watch_count"] {
                eventually(AMPLE, counter, || self.servers.node(node).counter(counter) == 0);
            }
        }
    }
}

pub(crate) fn connect(hosts: &str, session: Duration) -> Client {
    connecting(hosts).session_timeout(session).connect_timeout(AMPLE).connect().unwrap()
}

/// Receives what the guard's `on_lost` is called with, and when; disconnected once the callback has
/// run or was dropped.
fn losses(guard: &LockGuard) -> Receiver<(Instant, LossReason)> {
    let (tell, told) = channel();
    guard.on_lost(move |why| tell.send((Instant::now(), why)).unwrap());
    told
}

/// A number in the ensemble that only the lock's holder may change, in two steps.
struct Tally<'a> {
    trio: &'a Trio,
    inside: AtomicBool,
    shared: AtomicU64,
    rounds: AtomicU64,
    last_token: Mutex<Option<FencingToken>>,
}

impl Tally<'_> {
    fn new(trio: &Trio) -> Tally<'_> {
        Tally {
            trio,
            inside: AtomicBool::new(false),
            shared: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            last_token: Mutex::new(None),
        }
    }

    fn work(&self, zk: &Client, stop: &AtomicBool) {
        let lock = self.trio.lock(zk, "tally");
        while !stop.load(Ordering::Relaxed) {
            let guard = lock.lock().unwrap();
            let inside = Inside::enter(&self.inside);
            let before = self.shared.load(Ordering::SeqCst);
            let token = guard.fencing_token();
            assert!(self.last_token.lock().unwrap().replace(token) < Some(token));
            thread::yield_now();
            assert!(guard.is_held(), "lost while at work");
            self.shared.store(before + 1, Ordering::SeqCst);
            drop(inside);
            self.rounds.fetch_add(1, Ordering::SeqCst);
            // Both ways to release are used in turn.
            if before.is_multiple_of(2) {
                guard.unlock().unwrap();
            }
        }
    }

    fn wait_for_rounds(&self, more: u64) {
        let goal = self.rounds.load(Ordering::SeqCst) + more;
        eventually(AMPLE, &format!("{more} rounds"), || self.rounds.load(Ordering::SeqCst) >= goal);
    }
}

/// Runs `harm` during the work of six busy contenders of two clients, while these and a third client hold
/// a lock of their own throughout; none may lose its lock or session.
fn nobody_loses_anything(test: &str, session: Duration, harm: impl Fn(&Trio, &Tally<'_>)) {
    let trio = Trio::start(test, &Options::default());
    let clients = [(); 3].map(|()| trio.client(session));
    let sessions = clients.each_ref().map(Client::session_id);
    let names = ["held-0", "held-1", "held-2"];
    let locks = clients.iter().zip(names).map(|(zk, name)| trio.lock(zk, name));
    let held: Vec<LockGuard> = locks.map(|lock| lock.lock().unwrap()).collect();
    let tokens: Vec<FencingToken> = held.iter().map(LockGuard::fencing_token).collect();
    let lost: Vec<_> = held.iter().map(losses).collect();
    let (tally, stop) = (Tally::new(&trio), AtomicBool::new(false));
    thread::scope(|scope| {
        let _at_the_end = Raise(&stop);
        for worker in 0..6 {
            let (zk, tally, stop) = (&clients[worker % 2], &tally, &stop);
            scope.spawn(move || {
                let _even_if_it_fails = Raise(stop);
                tally.work(zk, stop);
            });
        }
        tally.wait_for_rounds(50);
        harm(&trio, &tally);
        tally.wait_for_rounds(50);
    });
    let rounds = tally.rounds.load(Ordering::SeqCst);
    assert_eq!(tally.shared.load(Ordering::SeqCst), rounds, "a lost update");
    held.iter().for_each(|held| held.ensure_held().unwrap());
    assert_eq!(held.iter().map(LockGuard::fencing_token).collect::<Vec<_>>(), tokens);
    assert_eq!(clients.each_ref().map(Client::session_id), sessions, "a session was lost");
    held.into_iter().for_each(|held| held.unlock().unwrap());
    assert!(lost.iter().all(|lost| lost.recv().is_err()), "on_lost was called");
    println!("{rounds} rounds");
    trio.finish(clients);
}

#[test]
fn s34_the_leader_is_killed() {
    skip_without_server!();
    nobody_loses_anything("s34", Duration::from_secs(8), |trio, tally| {
        let leader = trio.servers.leader();
        let killed = Instant::now();
        trio.servers.node(leader).kill();
        tally.wait_for_rounds(10);
        println!("at work again after {:?}", killed.elapsed());
        trio.servers.node(leader).start_again();
    });
}

#[test]
fn s34a_a_rolling_restart() {
    skip_without_server!();
    if !Transport::wanted().keeps_sessions() {
        return keeper::s34a_in_a_rolling_restart_locks_are_lost_and_never_two_hold_one();
    }
    nobody_loses_anything("s34a", Duration::from_secs(10), |trio, tally| {
        for node in 0..3 {
            trio.servers.node(node).restart();
            trio.servers.wait_ready();
            tally.wait_for_rounds(10);
        }
    });
}

/// A client of an observer, and one of a member with a vote.
#[test]
fn an_observer_serves_as_any_other_server() {
    skip_without_server!();
    let trio = Trio::start("observer", &Options { observer: true, ..Options::default() });
    assert_eq!(trio.servers.node(2).mode().as_deref(), Some("observer"));
    let clients = [2, 0].map(|node| connect(&trio.servers.node(node).hosts(), AMPLE));
    let locks = clients.each_ref().map(|zk| trio.lock(zk, "a"));
    let (mut token, mut holder) = (None, locks[0].lock().unwrap());
    for round in 1..=10 {
        let next = locks[round % 2].clone();
        let waits = crate::support::waiting(move || next.lock().unwrap());
        assert!(token < Some(holder.fencing_token()));
        token = Some(holder.fencing_token());
        holder.unlock().unwrap();
        holder = waits.join().unwrap();
    }
    trio.servers.node(2).restart();
    holder.ensure_held().unwrap();
    holder.unlock().unwrap();
    drop(locks);
    trio.finish(clients);
}

/// Alone, a server would serve those who only read; a lock needs the others.
#[test]
fn a_server_that_is_read_only_is_not_taken_for_a_session() {
    skip_without_server!();
    let trio = Trio::start("read-only", &Options { read_only: true, ..Options::default() });
    let follower = trio.servers.all_followers()[0];
    let others: Vec<usize> = (0..3).filter(|node| *node != follower).collect();
    others.iter().for_each(|node| trio.servers.node(*node).kill());
    let alone = trio.servers.node(follower);
    eventually(AMPLE, "a read-only server", || alone.mode().as_deref() == Some("read-only"));
    let builder = || connecting(&alone.hosts()).connect_timeout(Duration::from_secs(2));
    let error = builder().connect().unwrap_err();
    assert_eq!(error.kind(), zklock::ErrorKind::Connect, "{error}");
    let zk = builder().lazy().unwrap();
    let lock = trio.lock(&zk, "a");
    let waits = crate::support::waiting(move || lock.lock().unwrap());
    assert_eq!(alone.mode().as_deref(), Some("read-only"));
    others.iter().for_each(|node| trio.servers.node(*node).launch());
    waits.join().unwrap().unlock().unwrap();
    trio.finish([zk]);
}

const OUTLIVED: Duration = Duration::from_secs(6);

/// Loses a session by its own clock while no server is up, and checks that the old node does not
/// block the client once they are: they then keep the old session for its whole timeout.
fn is_not_in_its_own_way(zk: &Client, lock: &DistributedLock, kill: impl Fn(), start: impl Fn()) {
    let guard = lock.lock().unwrap();
    let (session, lost) = (zk.session_id(), losses(&guard));
    kill();
    let (_, why) = lost.recv_timeout(AMPLE).unwrap();
    assert_eq!(why, LossReason::LeaseExpired);
    assert_eq!(zk.state(), SessionState::Lost);
    let (tell, told) = channel();
    let again = lock.clone();
    thread::spawn(move || {
        let _ = tell.send((again.lock().unwrap(), Moment::now()));
    });
    start();
    let ready = Stopwatch::start();
    let (next, acquired) = told.recv_timeout(AMPLE).expect("the lock");
    let took = ready.took_until(acquired);
    println!("held again {took:?} after the start");
    assert!(took.within(OUTLIVED / 2), "blocked by its own old node for {took:?}");
    assert_ne!(zk.session_id(), session);
    assert!(next.fencing_token() > guard.fencing_token());
    drop(guard);
    next.unlock().unwrap();
}

#[test]
fn s43b_after_a_restart_the_old_session_is_not_in_the_way() {
    skip_without_server!();
    let site = Site::own("s43b");
    let zk = connect(site.hosts(), OUTLIVED);
    let lock = mutex(&zk, &site.base, "a");
    is_not_in_its_own_way(&zk, &lock, || site.server().kill(), || site.server().start_again());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s43b_after_a_restart_of_all_the_old_session_is_not_in_the_way() {
    skip_without_server!();
    let trio = Trio::start("s43b-all", &Options::default());
    let zk = trio.client(OUTLIVED);
    let lock = trio.lock(&zk, "a");
    let nodes = || (0..3).map(|node| trio.servers.node(node));
    is_not_in_its_own_way(
        &zk,
        &lock,
        || nodes().for_each(Server::kill),
        || {
            nodes().for_each(Server::launch);
            trio.servers.wait_ready();
        },
    );
    drop(lock);
    trio.finish([zk]);
}

/// A proxy in front of each of these servers, and their connect string.
fn proxies(trio: &Trio, nodes: &[usize]) -> (Vec<Proxy>, String) {
    let proxies: Vec<Proxy> =
        nodes.iter().map(|node| Proxy::start(trio.servers.node(*node).addr())).collect();
    let hosts = proxies.iter().map(Proxy::hosts).collect::<Vec<_>>().join(",");
    (proxies, hosts)
}

/// The proxy that the only client of the proxies is connected to.
fn serving(proxies: &[Proxy]) -> usize {
    let mut found = None;
    eventually(AMPLE, "a connection", || {
        let live: Vec<usize> =
            (0..proxies.len()).filter(|node| proxies[*node].live_connections() > 0).collect();
        found = <[usize; 1]>::try_from(live).ok();
        found.is_some()
    });
    found.unwrap()[0]
}

#[test]
fn s43a_a_create_without_a_reply_is_found_from_another_server() {
    skip_without_server!();
    let trio = Trio::start("s43a", &Options::default());
    let (proxies, hosts) = proxies(&trio, &[0, 1, 2]);
    let zk = connect(&hosts, Duration::from_secs(8));
    let lock = trio.lock(&zk, "a");
    lock.lock().unwrap().unlock().unwrap();
    // Otherwise the client would open another session.
    let kept = trio.lock(&zk, "kept").lock().unwrap();
    let session = zk.session_id();
    let leader = trio.servers.leader();
    let mut from_a_laggard = 0;
    for round in 0..8 {
        let first = serving(&proxies);
        let second = (first + 1 + round % 2) % 3;
        let third = 3 - first - second;
        proxies[third].refuse();
        // A paused follower learns of the create only when it serves the client.
        let lags = second != leader;
        if lags {
            trio.servers.node(second).pause();
            from_a_laggard += 1;
        }
        proxies[first].reset_counts();
        proxies[first].drop_reply_on(opcode::CREATE, "-lock-", 1);
        let asked = lock.clone();
        let acquiring = thread::spawn(move || asked.lock().unwrap());
        assert!(proxies[first].wait_for_request(opcode::CREATE, AMPLE));
        eventually(AMPLE, "the reply to be dropped", || proxies[first].live_connections() == 0);
        proxies[first].refuse();
        if lags {
            eventually(AMPLE, "another connection", || proxies[second].live_connections() > 0);
            trio.servers.node(second).resume();
        }
        let resumed = Stopwatch::start();
        let guard = acquiring.join().unwrap();
        let took = resumed.took();
        assert!(took.within(Duration::from_secs(4)), "the client waited {took:?} for its own node");
        guard.ensure_held().unwrap();
        assert_eq!(serving(&proxies), second);
        assert_eq!(zk.session_id(), session);
        let mut raw = trio.raw(second);
        raw.sync("/").unwrap();
        let children = raw.get_children(&format!("{}/a", trio.base)).unwrap();
        assert_eq!(children.len(), 1, "{children:?}");
        assert!(guard.path().ends_with(&children[0]));
        raw.close().unwrap();
        guard.unlock().unwrap();
        proxies.iter().for_each(Proxy::pass);
    }
    assert!(from_a_laggard > 0);
    kept.unlock().unwrap();
    drop(lock);
    trio.finish([zk]);
}

#[test]
fn a_silent_server_is_left_in_time_to_keep_the_session() {
    skip_without_server!();
    let trio = Trio::start("silent-server", &Options::default());
    let followers = trio.servers.all_followers();
    let timeout = Duration::from_secs(4);
    // How long after a heartbeat the server falls silent.
    for pause in [Duration::ZERO, timeout * 7 / 24] {
        let (proxies, hosts) = proxies(&trio, &followers);
        let zk = connect(&hosts, timeout);
        let guard = trio.lock(&zk, "a").lock().unwrap();
        let (session, lost, (tell, told)) = (zk.session_id(), losses(&guard), channel());
        zk.on_state_change(move |state| tell.send((Instant::now(), state)).unwrap_or_default())
            .detach();
        let serving = serving(&proxies);
        proxies[serving].reset_counts();
        assert!(proxies[serving].wait_for_requests(opcode::SYNC, 2, AMPLE));
        thread::sleep(pause);
        let silent = trio.servers.node(followers[serving]);
        silent.pause();
        let paused = Instant::now();
        let mut after = Vec::new();
        for expected in [SessionState::Suspended, SessionState::Connected] {
            let (when, state) = told.recv_timeout(AMPLE).unwrap();
            assert_eq!(state, expected);
            after.push(when.saturating_duration_since(paused));
        }
        println!("silent {pause:?} after a heartbeat: suspended, connected after {after:?}");
        guard.ensure_held().unwrap();
        assert_eq!(zk.session_id(), session);
        silent.resume();
        drop(guard);
        assert!(lost.recv().is_err(), "on_lost was called");
        eventually(AMPLE, "an empty table of watches", || zk.stats().watches == 0);
        drop(zk);
        trio.servers.wait_ready();
    }
    trio.finish([]);
}
