//! How long locks stay certain: never longer than the ensemble keeps the session, and as long as
//! `docs/lease.md` promises, in outages, behind servers that pause, open sessions slowly or throttle
//! heartbeats, and with servers that grant different session timeouts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Client, LockGuard, SessionState};

use crate::ensemble::{Trio, connect};
use crate::support::ensemble::{Options, Unequal};
use crate::support::promised_lease::PromisedLease;
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::Raw;
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    connecting, eventually, in_background, mutex, skip_before, skip_without_server,
};

/// Ample time for steps whose duration a test does not check.
const AMPLE: Duration = Duration::from_secs(30);
/// The servers' tick, where a test does not set another one.
const TICK: Duration = Duration::from_millis(200);
/// How often a guard is looked at.
const LOOK: Duration = Duration::from_millis(20);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

// ----- servers that grant different session timeouts

/// Ticks of ensembles whose servers grant different session timeouts.
const LONG_TICK: Duration = Duration::from_secs(1);

/// Three servers. One follower, the odd one, grants other session timeouts than the others.
struct Unequals {
    trio: Trio,
    /// In front of the odd follower.
    odd: Proxy,
    /// In front of the other follower.
    even: Proxy,
    even_follower: usize,
    leader: usize,
}

impl Unequals {
    fn start(test: &str, odd: Unequal) -> Unequals {
        let tick = u32::try_from(LONG_TICK.as_millis()).unwrap();
        // An election that has to be repeated costs as much as that.
        let init_limit = 10;
        let options = Options { tick, init_limit, unequal: vec![odd], ..Options::default() };
        let trio = Trio::start(test, &options);
        let followers = trio.servers.all_followers();
        // Of servers without data, the one with the lowest number is not elected.
        assert!(followers.contains(&odd.member), "the odd server leads: the test proves nothing");
        let even = followers.into_iter().find(|follower| *follower != odd.member).unwrap();
        let proxy = |member| Proxy::start(trio.servers.node(member).addr());
        let (odd, leader) = (proxy(odd.member), trio.servers.leader());
        Unequals { odd, even: proxy(even), even_follower: even, leader, trio }
    }

    /// Grants at least this.
    fn with_more(test: &str, least: Duration) -> Unequals {
        let min_session = u32::try_from(least.as_millis()).unwrap();
        Unequals::start(test, Unequal { member: 0, min_session, max_session: 600_000 })
    }

    /// Grants at most this.
    fn with_less(test: &str, most: Duration) -> Unequals {
        let max_session = u32::try_from(most.as_millis()).unwrap();
        Unequals::start(test, Unequal { member: 0, min_session: 200, max_session })
    }

    fn hosts(&self) -> String {
        format!("{},{}", self.odd.hosts(), self.even.hosts())
    }

    fn refuse(&self) {
        self.odd.refuse();
        self.even.refuse();
    }

    /// A client of the leader that waits for the lock.
    fn successor(&self) -> (Client, Receiver<LockGuard>) {
        let zk = connect(&self.trio.servers.node(self.leader).hosts(), seconds(4));
        let lock = self.trio.lock(&zk, "a");
        let granted = in_background(move || lock.lock().unwrap());
        let mut raw = self.trio.raw(self.leader);
        let node = lock_node(&self.trio);
        eventually(AMPLE, "the waiter", || raw.get_children(&node).unwrap().len() == 2);
        raw.close().unwrap();
        (zk, granted)
    }

    /// Lets a server that can be reached answer the client's request to connect, and loses the answer.
    /// Before that, waits until the server that the client had before has reported the session for the
    /// last time.
    fn lose_an_answer(&self, zk: &Client, by: &Proxy) {
        let session = i64::from(zk.session_id().unwrap());
        thread::sleep(LONG_TICK);
        by.slow_opening(AMPLE * 10);
        by.release();
        eventually(AMPLE, "the answer", || by.sessions().iter().any(|(id, _)| *id == session));
        by.refuse();
        by.slow_opening(Duration::ZERO);
    }

    /// Waits until the successor has the lock; by then the guard must not be held. Returns how long
    /// that took.
    fn never_held_twice(
        self,
        zk: Client,
        guard: LockGuard,
        next: (Client, Receiver<LockGuard>),
    ) -> Duration {
        let (start, limit) = (Instant::now(), AMPLE * 2);
        let next_guard = loop {
            let granted = next.1.try_recv().ok();
            let held = guard.is_held();
            if let Some(granted) = granted {
                let overlap = Instant::now();
                if held {
                    eventually(AMPLE, "the end of the lease", || !guard.is_held());
                    panic!("two holders for {:.1?}", overlap.elapsed());
                }
                break granted;
            }
            assert!(start.elapsed() < limit, "nobody else got the lock");
            thread::sleep(Duration::from_millis(1));
        };
        let took = start.elapsed();
        assert!(next_guard.fencing_token() > guard.fencing_token());
        drop((guard, next_guard));
        self.odd.pass();
        self.even.pass();
        self.trio.finish([zk, next.0]);
        took
    }
}

fn lock_node(trio: &Trio) -> String {
    format!("{}/a", trio.base())
}

/// A client moves from a follower that stops reporting to one that grants five times as much, and is
/// cut off. Then the first follower reports the session late, with the shorter timeout.
fn moves_to_a_server_that_grants_more(
    test: &str,
    harm: impl Fn(&Unequals),
    heal: impl Fn(&Unequals),
) {
    let (asked, more) = (seconds(4), seconds(20));
    let servers = Unequals::with_more(test, more);
    servers.odd.refuse();
    let zk = connect(&servers.hosts(), asked);
    let guard = servers.trio.lock(&zk, "a").lock().unwrap();
    assert_eq!(zk.session_timeout(), Some(asked));
    let successor = servers.successor();
    let (tell, states) = channel();
    zk.on_state_change(move |state| tell.send(state).unwrap_or_default()).detach();
    harm(&servers);
    servers.odd.release();
    for expected in [SessionState::Suspended, SessionState::Connected] {
        assert_eq!(states.recv_timeout(AMPLE), Ok(expected));
    }
    assert_eq!(servers.odd.live_connections(), 1);
    servers.refuse();
    assert!(guard.is_held(), "lost before the late report: the test proves nothing");
    // Until the follower that grants more has reported the session for the last time.
    thread::sleep(LONG_TICK);
    heal(&servers);
    let took = servers.never_held_twice(zk, guard, successor);
    // The leader has counted the shorter timeout from the late report on.
    assert!(took < more - LONG_TICK * 4, "no late report: the test proves nothing");
}

#[test]
fn s28a_a_late_report_of_a_paused_server_that_grants_less_leaves_no_two_holders() {
    skip_without_server!();
    skip_before!(3, 5, "do not shorten a session by what another server reports");
    moves_to_a_server_that_grants_more(
        "mixed-paused",
        |servers| servers.trio.servers.node(servers.even_follower).pause(),
        |servers| servers.trio.servers.node(servers.even_follower).resume(),
    );
}

#[test]
fn s28a_a_late_report_of_a_cut_off_server_that_grants_less_leaves_no_two_holders() {
    skip_without_server!();
    skip_before!(3, 5, "do not shorten a session by what another server reports");
    moves_to_a_server_that_grants_more(
        "mixed-cut-off",
        |servers| servers.trio.servers.hold_up_from_leader(servers.even_follower),
        |servers| servers.trio.servers.heal(servers.even_follower),
    );
}

/// The session was opened at a server that grants more than was asked for. The next server must not
/// be asked for less: if its answer is lost, the client does not know what the leader counts.
#[test]
fn s28a_a_lost_answer_of_a_server_that_would_grant_less_leaves_no_two_holders() {
    skip_without_server!();
    let (asked, more) = (seconds(4), seconds(12));
    let servers = Unequals::with_more("mixed-more", more);
    servers.even.refuse();
    let zk = connect(&servers.hosts(), asked);
    let guard = servers.trio.lock(&zk, "a").lock().unwrap();
    assert_eq!(zk.session_timeout(), Some(more));
    let successor = servers.successor();
    servers.odd.refuse();
    servers.lose_an_answer(&zk, &servers.even);
    servers.never_held_twice(zk, guard, successor);
}

/// The session was opened at a server that grants less than was asked for. The next server must not be
/// asked for more: if its answer is lost, the leader would keep the session for longer than its client.
#[test]
fn s28a_a_lost_answer_of_a_server_that_would_grant_more_keeps_the_lock_no_longer() {
    skip_without_server!();
    let (asked, less) = (seconds(20), seconds(4));
    let servers = Unequals::with_less("mixed-less", less);
    servers.even.refuse();
    let zk = connect(&servers.hosts(), asked);
    let guard = servers.trio.lock(&zk, "a").lock().unwrap();
    assert_eq!(zk.session_timeout(), Some(less));
    let successor = servers.successor();
    servers.odd.refuse();
    servers.lose_an_answer(&zk, &servers.even);
    let took = servers.never_held_twice(zk, guard, successor);
    assert!(took < asked / 2, "the leader kept the session for {took:.1?}");
}

/// One server's maximum is below what the others grant, and the client has met that once. In its next
/// session, the answer of that server is lost.
#[test]
fn s28a_a_lost_answer_of_a_server_with_a_smaller_maximum_leaves_no_two_holders() {
    skip_without_server!();
    skip_before!(3, 5, "do not shorten a session by what another server reports");
    let (asked, less) = (seconds(20), seconds(4));
    let servers = Unequals::with_less("mixed-less", less);
    servers.odd.refuse();
    let zk = connect(&servers.hosts(), asked);
    let (tell, states) = channel();
    zk.on_state_change(move |state| tell.send(state).unwrap_or_default()).detach();
    let expect = |expected| {
        assert_eq!(states.recv_timeout(AMPLE), Ok(expected));
    };
    servers.odd.release();
    servers.even.refuse();
    expect(SessionState::Suspended);
    expect(SessionState::Connected);
    assert_eq!(zk.session_timeout(), Some(less));
    // The next session, at a server that grants what is asked for.
    servers.odd.refuse();
    expect(SessionState::Suspended);
    let (session, password) = servers.odd.session();
    let leader = servers.trio.servers.node(servers.leader).hosts();
    Raw::resume(&leader, AMPLE * 4, session, &password).and_then(Raw::close).unwrap();
    servers.even.release();
    expect(SessionState::Lost);
    let guard = servers.trio.lock(&zk, "a").lock().unwrap();
    assert_eq!(zk.session_timeout(), Some(asked));
    let successor = servers.successor();
    servers.even.refuse();
    servers.lose_an_answer(&zk, &servers.odd);
    let took = servers.never_held_twice(zk, guard, successor);
    assert!(took < asked - LONG_TICK * 4, "the leader counted {asked:?}: the test proves nothing");
}

// ----- what is left of the lease

/// A client that holds a lock, behind a proxy of its own.
struct Holder {
    lease: PromisedLease,
    guard: LockGuard,
    zk: Client,
    // Dropped last: the others need it to leave.
    proxy: Proxy,
}

impl Holder {
    fn start(server: &Server, base: &str, name: &str, lease: PromisedLease) -> Holder {
        Holder::behind(Proxy::start(server.addr()), base, name, lease)
    }

    fn behind(proxy: Proxy, base: &str, name: &str, lease: PromisedLease) -> Holder {
        let builder = lease.set(connecting(&proxy.hosts())).connect_timeout(AMPLE);
        let zk = builder.connect().unwrap();
        let guard = mutex(&zk, base, name).lock().unwrap();
        Holder { lease, guard, zk, proxy }
    }

    /// Ends the test.
    fn finish(site: Site, holders: impl IntoIterator<Item = Holder>) {
        let parts = holders.into_iter().map(|holder| (holder.zk, holder.proxy));
        let (clients, _proxies): (Vec<Client>, Vec<Proxy>) = parts.unzip();
        site.finish(clients);
    }

    /// The least that is left of the lease during that time.
    fn least_left(&self, time: Duration) -> Duration {
        let end = Instant::now() + time;
        let mut least = Duration::MAX;
        while Instant::now() < end {
            least = least.min(self.guard.lease_left());
            thread::sleep(LOOK);
        }
        least
    }

    /// How far from its formula a lease may be, since every heartbeat is a little late.
    fn slack(&self) -> Duration {
        self.lease.timeout / 50
    }

    /// Sends pairs of requests through the leader, so often that no heartbeat is due in between, and
    /// never at the right moment to renew the lease from one that is not much older.
    fn keep_busy(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            for pause in [self.lease.timeout / 40, self.lease.timeout * 39 / 400] {
                // It may fail in the outage.
                let _ = self.guard.ensure_held_within(Duration::from_millis(100));
                thread::sleep(pause);
            }
        }
    }

    /// Cuts everything for just less than the lease must survive, when least of it is left.
    fn survives_an_outage(&self) -> Result<(), String> {
        let promised = self.lease.least_left().saturating_sub(self.slack());
        let limit = self.zk.outage_limit().unwrap();
        assert!((promised..promised + self.slack() * 2).contains(&limit), "told: {limit:.2?}");
        // Meanwhile, the opening of the session becomes too old to renew it.
        let least = self.least_left(self.lease.timeout * 3 / 4);
        let watch = Stopwatch::start();
        eventually(AMPLE, "a moment at which little is left", || {
            self.guard.lease_left() <= least + self.lease.timeout / 50
        });
        // How long the search for a server may pause, and what connecting takes.
        let reconnect = (self.lease.timeout / 16).min(Duration::from_millis(500)) * 3 / 2;
        let outage = promised - reconnect - Duration::from_millis(50);
        let cut = Instant::now();
        self.proxy.refuse();
        thread::sleep(outage);
        self.proxy.release();
        eventually(AMPLE, "the end of the outage", || {
            self.zk.state() == SessionState::Connected || !self.guard.is_held()
        });
        let (took, held_up) = (cut.elapsed(), watch.took().held_up());
        let told = format!(
            "at least {least:.2?} of the lease were left (promised: {promised:.2?}), an outage of \
             {outage:.2?}, after {took:.2?} held: {} (the machine added at most {held_up:.2?})",
            self.guard.is_held()
        );
        println!("{told}");
        let kept = self.guard.is_held() || took + held_up > promised;
        if kept && least + held_up + LOOK >= promised { Ok(()) } else { Err(told) }
    }
}

#[test]
fn s23_an_outage_that_the_lease_must_survive_costs_no_lock_on_time() {
    skip_without_server!();
    let site = Site::own("survived");
    let more = std::env::var("ZKLOCK_SESSION_SECONDS").ok();
    let more = more.map(|text| text.parse().expect("ZKLOCK_SESSION_SECONDS is a number"));
    let mut cases = Vec::new();
    for timeout in [4, 10].into_iter().chain(more) {
        for tick in [None, Some(TICK)] {
            let lease = PromisedLease::new(seconds(timeout), tick);
            cases.extend([(lease, "idle"), (lease, "busy")]);
        }
    }
    let survive = |(lease, load): (PromisedLease, &str)| {
        let name = format!("{load}-{:?}-{:?}", lease.timeout, lease.tick);
        let holder = Holder::start(site.server(), &site.base, &name, lease);
        let stop = AtomicBool::new(false);
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                if load == "busy" {
                    holder.keep_busy(&stop)
                }
            });
            let outcome = holder.survives_an_outage();
            stop.store(true, Ordering::Relaxed);
            outcome
        });
        (holder, outcome.map_err(|told| format!("{name}: {told}")))
    };
    let (holders, outcomes): (Vec<Holder>, Vec<_>) = thread::scope(|scope| {
        let all = cases.iter().map(|case| scope.spawn(|| survive(*case))).collect::<Vec<_>>();
        all.into_iter().map(|one| one.join().unwrap()).unzip()
    });
    let wrong: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    Holder::finish(site, holders);
}

/// A pause of nearly a third of the session timeout, in which no connection has to be given up. What
/// was not answered in time must not be missing from the lease later.
#[test]
fn s23_a_pause_of_a_server_leaves_no_hole_in_the_lease_on_time() {
    skip_without_server!();
    let site = Site::own("hole");
    let timeout = seconds(10);
    let mut holders = Vec::new();
    for number in 0..4 {
        for tick in [None, Some(TICK)] {
            let lease = PromisedLease::new(timeout, tick);
            let name = format!("{number}-{tick:?}");
            holders.push(Holder::start(site.server(), &site.base, &name, lease));
        }
        // So that the pause begins at another moment between two heartbeats.
        thread::sleep(timeout / 9 / 4);
    }
    thread::sleep(timeout / 5);
    let watch = Stopwatch::start();
    let paused = Instant::now();
    site.server().pause();
    thread::sleep(timeout / 3 - Duration::from_millis(200));
    site.server().resume();
    let (pause, back) = (paused.elapsed(), Instant::now());
    thread::sleep(seconds(2));
    let mut least = vec![Duration::MAX; holders.len()];
    while back.elapsed() < timeout * 20 / 32 + timeout / 9 {
        for (holder, least) in holders.iter().zip(&mut least) {
            *least = (*least).min(holder.guard.lease_left());
        }
        thread::sleep(LOOK);
    }
    let held_up = watch.took().held_up();
    println!(
        "paused for {pause:.2?}; the machine added at most {held_up:.2?}; least left: {least:.2?}"
    );
    for (holder, least) in holders.iter().zip(least) {
        // With the tick stated, the hole is closed by now.
        let promised = match holder.lease.tick {
            None => holder.lease.least_left_after(pause),
            Some(_) => holder.lease.least_left(),
        };
        let tick = holder.lease.tick;
        assert!(
            least + held_up + holder.slack() >= promised,
            "tick {tick:?}: {least:.2?} of the lease were left, {promised:.2?} are promised"
        );
    }
    Holder::finish(site, holders);
}

/// The answer to the request to connect comes late, then everything is healthy.
#[test]
fn a_session_that_opens_slowly_is_as_good_as_any() {
    skip_without_server!();
    let site = Site::own("slow-opening");
    let timeout = seconds(4);
    let hold_on = |slow: Duration| {
        let proxy = Proxy::start(site.server().addr());
        proxy.slow_opening(slow);
        let lease = PromisedLease::new(timeout, None);
        let holder = Holder::behind(proxy, &site.base, &format!("{slow:?}"), lease);
        let (session, opened, watch) = (holder.zk.session_id(), Instant::now(), Stopwatch::start());
        while opened.elapsed() < timeout * 3 / 2 {
            let held_up = watch.took().held_up();
            assert!(
                holder.guard.is_held() || held_up > holder.lease.least_left(),
                "lost {:.1?} after an opening of {slow:?} (the machine added at most {held_up:.1?})",
                opened.elapsed()
            );
            thread::sleep(LOOK);
        }
        assert_eq!(holder.zk.session_id(), session);
        holder
    };
    let holders = thread::scope(|scope| {
        let all = [35, 50].map(|percent| scope.spawn(move || hold_on(timeout * percent / 100)));
        all.map(|one| one.join())
    });
    Holder::finish(site, holders.map(Result::unwrap));
}

/// The `sync`s of idle clients are their heartbeats.
#[test]
fn throttled_heartbeats_cost_no_lock_on_time() {
    const CLIENTS: usize = 8;
    skip_without_server!();
    skip_before!(3, 5, "know no containers, which costs one more connection");
    let site = Site::own("throttled");
    let timeout = seconds(4);
    let lease = PromisedLease::new(timeout, None);
    let mut groups = Vec::new();
    for percent in [25, 50, 75] {
        let proxy = Proxy::start(site.server().addr());
        let clients: Vec<(Client, LockGuard)> = (0..CLIENTS)
            .map(|client| {
                let zk = lease.set(connecting(&proxy.hosts())).connect().unwrap();
                let guard = mutex(&zk, &site.base, format!("{percent}-{client}")).lock().unwrap();
                (zk, guard)
            })
            .collect();
        groups.push((percent, clients, proxy));
    }
    for (percent, _, proxy) in &groups {
        proxy.throttle_share(opcode::SYNC, *percent);
    }
    thread::sleep(timeout * 3);
    let mut wrong = Vec::new();
    for (percent, clients, proxy) in &groups {
        let lost = clients.iter().filter(|(_, guard)| !guard.is_held()).count();
        let (throttled, connections) = (proxy.throttled(), proxy.connections());
        let told = format!(
            "{percent} %: {throttled} syncs throttled, {lost} of {CLIENTS} locks lost, {connections} \
             connections made by {CLIENTS} clients"
        );
        println!("{told}");
        assert!(throttled > 0, "the test proves nothing");
        if lost > 0 || connections != CLIENTS {
            wrong.push(told);
        }
        proxy.pass();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let (clients, _proxies): (Vec<_>, Vec<_>) =
        groups.into_iter().map(|(_, clients, proxy)| (clients, proxy)).unzip();
    site.finish(clients.into_iter().flatten().map(|(zk, _)| zk));
}
