//! Holders that lose their lock by their own clock, many at once, and how long before the next client
//! gets it: each by a fault that keeps the leader from learning what their server knows.
//!
//! Each test adds rows to a table, which `scripts/test` prints. By default, few locks are lost, and with
//! short session timeouts. `ZKLOCK_LOSSES=1000 scripts/test lease_losses` loses about a thousand, with
//! ticks of 0.5, 1 and 2 s and session timeouts of 4, 10 and 30 s.

use std::collections::BTreeMap;
use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Client, DistributedLock, LockGuard, LossReason, SessionState};

use crate::support::ensemble::{Ensemble, Options, Unequal};
use crate::support::proxy::Proxy;
use crate::support::raw::Raw;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    Raise, connecting, eventually, mutex, skip_before, skip_without_server, unique_base,
};

/// Ample time for steps whose duration a test does not check.
const AMPLE: Duration = Duration::from_secs(60);
/// How long a server that is cut off goes on before it notices; a leader notices sooner.
const UNNOTICED: Duration = Duration::from_secs(120);
/// The first member, to which holders move, if it grants 20 s to those who ask for less.
const MORE: Unequal = Unequal { member: 0, min_session: 20_000, max_session: 600_000 };
/// How many tests share the losses that are asked for.
const TESTS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The follower that serves the holders is cut off from the leader, and goes on serving them.
    CutFollower,
    /// An observer serves the holders. In turn, it is cut off from its observer master, and that from
    /// the leader.
    CutObserver,
    /// The holders move to another server and are then cut off from all, and the last report of the
    /// server before comes late.
    LateReport,
    /// The same, and the other server grants 20 s to those who ask for less.
    HigherMinimum,
    /// The leader serves the holders, and is cut off from the others, which choose another one.
    DeposedLeader,
}

impl Fault {
    fn options(self, tick: Duration) -> Options {
        let tick = u32::try_from(tick.as_millis()).unwrap();
        let ticks = |time: Duration| u32::try_from(time.as_millis()).unwrap() / tick;
        let observer = self == Fault::CutObserver;
        Options {
            tick,
            sync_limit: match (self, losses()) {
                (Fault::DeposedLeader, None) => 5,
                // It is deposed long before it knows, if its many short waits come late.
                (Fault::DeposedLeader, Some(_)) => 50,
                _ => ticks(UNNOTICED),
            },
            init_limit: ticks(AMPLE / 3),
            unequal: (self == Fault::HigherMinimum).then_some(MORE).into_iter().collect(),
            observer,
            observer_master: observer,
            election_proxies: self == Fault::DeposedLeader,
            ..Options::default()
        }
    }

    fn servers(self) -> usize {
        if self == Fault::CutObserver { 4 } else { 3 }
    }

    fn moves(self) -> bool {
        matches!(self, Fault::LateReport | Fault::HigherMinimum)
    }

    /// Whether the lease promises anything, and the fault does what it is for.
    fn concerns(self, tick: Duration, timeout: Duration) -> bool {
        match self {
            Fault::DeposedLeader => timeout >= tick * 3,
            Fault::HigherMinimum => timeout < Duration::from_secs(20),
            _ => true,
        }
    }

    /// Each write that is under way keeps a deposed leader from confirming anything.
    fn loads(self, round: u32) -> &'static [Load] {
        match self {
            Fault::DeposedLeader if round % 2 == 0 => &[Load::Idle, Load::Reads],
            _ => &[Load::Idle, Load::Reads, Load::Writes],
        }
    }
}

/// What a holder's client does meanwhile.
#[derive(Clone, Copy, Debug)]
enum Load {
    Idle,
    Reads,
    Writes,
}

/// What a holder's client knows when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Terms {
    timeout: Duration,
    /// Whether the servers' tick is stated.
    is_stated: bool,
}

impl Terms {
    fn stated(self) -> &'static str {
        if self.is_stated { "stated" } else { "unstated" }
    }
}

/// A client that holds a lock of its own.
struct Holder {
    zk: Client,
    guard: LockGuard,
    name: String,
    terms: Terms,
    load: Load,
    told: Arc<OnceLock<(Instant, LossReason)>>,
    /// When its lease ends, as it has last said.
    lease_end: Mutex<Instant>,
}

impl Holder {
    fn lease_end(&self) -> Instant {
        *self.lease_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_lease(&self, is_cut: &AtomicBool) {
        /// Looking at a lease that has ended would report the loss, which the client has to do itself.
        const SPARE: Duration = Duration::from_millis(50);
        let now = Instant::now();
        if !is_cut.load(Ordering::Relaxed) || self.lease_end() > now + SPARE {
            let left = self.guard.lease_left();
            if !left.is_zero() {
                *self.lease_end.lock().unwrap() = now + left;
            }
        }
    }

    fn is_served_or_lost(&self) -> bool {
        self.zk.state() == SessionState::Connected || !self.guard.is_held()
    }
}

/// A lock whose holder held it until the fault.
struct Loss {
    terms: Terms,
    /// From the end of the lease until the next client held, in seconds.
    margin: f64,
    /// The same, from when the holder's `on_lost` was called.
    reported: f64,
    /// The lease ended late, or its end was reported late, and not for want of a processor.
    is_wrong: bool,
}

/// The way from the holders to the servers.
struct Route {
    /// The server that the holders use at first, which is cut off or reports late.
    server: usize,
    /// In front of that server and the one that the holders move to, if they move.
    doors: Vec<Proxy>,
    holders: String,
    /// What the clients that wait for the locks connect to.
    others: String,
}

/// An ensemble whose clients suffer a fault.
struct Scene {
    fault: Fault,
    tick: Duration,
    terms: Vec<Terms>,
    servers: Ensemble,
    base: String,
}

impl Scene {
    fn start(fault: Fault, tick: Duration, timeouts: &[Duration]) -> Scene {
        let servers = Ensemble::start(fault.servers(), &fault.options(tick)).expect("an ensemble");
        let timeouts = timeouts.iter().filter(|one| fault.concerns(tick, **one));
        let stated_or_not =
            |one: &Duration| [false, true].map(|is_stated| Terms { timeout: *one, is_stated });
        let terms = timeouts.flat_map(stated_or_not).collect();
        Scene { fault, tick, terms, servers, base: unique_base(&format!("{fault:?}")) }
    }

    fn route(&self) -> Route {
        let leader = self.servers.leader();
        let followers = self.servers.all_followers();
        let hosts = |node: usize| self.servers.node(node).hosts();
        let (server, doors) = match self.fault {
            Fault::CutFollower => (followers[0], Vec::new()),
            Fault::CutObserver => (self.fault.servers() - 1, Vec::new()),
            Fault::DeposedLeader => (leader, Vec::new()),
            Fault::LateReport | Fault::HigherMinimum => {
                let before = *followers.last().unwrap();
                let doors =
                    [before, 0].map(|node| Proxy::start(self.servers.node(node).addr())).into();
                (before, doors)
            }
        };
        let others = if server == leader { followers } else { vec![leader] };
        let others = others.into_iter().map(hosts).collect::<Vec<_>>().join(",");
        let holders = match &doors[..] {
            [] => hosts(server),
            doors => doors.iter().map(Proxy::hosts).collect::<Vec<_>>().join(","),
        };
        Route { server, doors, holders, others }
    }

    /// Opens clients that each hold a lock: some for each load, session timeout, and the tick stated or
    /// not.
    fn hold(&self, hosts: &str, round: u32, copies: usize) -> Vec<Holder> {
        thread::scope(|scope| {
            let mut opening = Vec::new();
            let loads = self.fault.loads(round).iter();
            for (load, copy) in loads.flat_map(|load| (0..copies).map(move |copy| (*load, copy))) {
                for terms in &self.terms {
                    let name =
                        format!("{round}-{load:?}-{copy}-{:?}-{}", terms.timeout, terms.stated());
                    opening.push(scope.spawn(move || self.hold_one(hosts, name, *terms, load)));
                }
            }
            opening.into_iter().map(|one| one.join().unwrap()).collect()
        })
    }

    fn hold_one(&self, hosts: &str, name: String, terms: Terms, load: Load) -> Holder {
        let mut builder = connecting(hosts).session_timeout(terms.timeout).connect_timeout(AMPLE);
        if terms.is_stated {
            builder = builder.tick_time(self.tick);
        }
        let zk = builder.connect().unwrap();
        let guard = mutex(&zk, &self.base, &name).lock().unwrap();
        let told = Arc::new(OnceLock::new());
        let tell = Arc::clone(&told);
        guard.on_lost(move |why| tell.set((Instant::now(), why)).unwrap());
        let lease_end = Mutex::new(Instant::now() + guard.lease_left());
        Holder { zk, guard, name, terms, load, told, lease_end }
    }

    fn keep_busy(&self, holder: &Holder, stop: &AtomicBool) {
        let lock = mutex(&holder.zk, &self.base, format!("{}-busy", holder.name));
        until(stop, holder.terms.timeout / 60, || match holder.load {
            Load::Idle => {}
            // Their results do not matter: they will fail.
            Load::Reads => drop(lock.contenders()),
            Load::Writes => drop(lock.try_lock_for(Duration::from_millis(100))),
        });
    }

    /// Has many clients lose their locks by the fault.
    fn lose(&self, round: u32, copies: usize) -> Vec<Loss> {
        let route = self.route();
        route.doors.iter().skip(1).for_each(Proxy::refuse);
        let holders = self.hold(&route.holders, round, copies);
        let next = connecting(&route.others).session_timeout(AMPLE).connect().unwrap();
        let (stop, is_cut) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let losses = thread::scope(|scope| {
            let _at_the_end = Raise(stop);
            let note_leases = || holders.iter().for_each(|one| one.note_lease(is_cut));
            scope.spawn(move || until(stop, Duration::from_millis(10), note_leases));
            let mut waiting = Vec::new();
            for holder in &holders {
                scope.spawn(|| self.keep_busy(holder, stop));
                let lock = mutex(&next, &self.base, &holder.name);
                waiting.push(scope.spawn(move || Grant::wait(&lock, holder)));
            }
            self.wait_for_waiters(&route, &holders);
            // Lets most leases no longer count from the opening of the session.
            thread::sleep(self.longest().min(Duration::from_secs(15)));
            let watch = Stopwatch::start();
            let cut = self.cut(&route, &holders, round);
            is_cut.store(true, Ordering::Relaxed);
            self.report_late(&route, round);
            let grants = waiting.into_iter().map(|one| one.join().unwrap());
            let losses = holders
                .iter()
                .zip(grants)
                .filter_map(|(holder, grant)| self.judge(holder, &grant, cut, &watch));
            let losses: Vec<Loss> = losses.collect();
            self.check_that_the_server_has_not_learned_of(&losses, &route);
            // Ends the calls that are under way.
            self.servers.heal_all();
            route.doors.iter().for_each(Proxy::pass);
            losses
        });
        drop((holders, next, route));
        self.wait_until_nothing_is_left();
        losses
    }

    fn longest(&self) -> Duration {
        self.terms.iter().map(|terms| terms.timeout).max().unwrap()
    }

    fn wait_until_nothing_is_left(&self) {
        let is_clean = |node: usize| {
            // A server that is catching up does not tell.
            let answer = self.servers.node(node).four_letter("mntr");
            answer.is_ok_and(|all| all.contains("zk_ephemerals_count\t0\n"))
        };
        eventually(AMPLE, "the last ephemeral node", || {
            (0..self.servers.nodes().len()).all(is_clean)
        });
    }

    fn wait_for_waiters(&self, route: &Route, holders: &[Holder]) {
        let mut raw = Raw::connect(&route.others, AMPLE).unwrap();
        for holder in holders {
            let lock = format!("{}/{}", self.base, holder.name);
            eventually(AMPLE, "a client that waits", || {
                !holder.guard.is_held() || raw.get_children(&lock).is_ok_and(|all| all.len() == 2)
            });
        }
        raw.close().unwrap();
    }

    /// Lets the fault happen, and returns when it did.
    fn cut(&self, route: &Route, holders: &[Holder], round: u32) -> Instant {
        match self.fault {
            Fault::CutFollower => self.servers.cut_from_leader(route.server),
            Fault::CutObserver => {
                let master = self.servers.all_followers()[0];
                let observers = self.servers.node(master).counter("zk_synced_observers");
                assert_eq!(observers, 1, "the observer has another master");
                self.servers.cut_from_leader(if round % 2 == 0 { route.server } else { master });
            }
            Fault::DeposedLeader => assert_eq!(self.servers.cut_off_the_leader(), route.server),
            Fault::LateReport | Fault::HigherMinimum => self.move_and_cut(route, holders, round),
        }
        Instant::now()
    }

    /// Has the holders move to another server while the one before reports nothing, then cuts them off
    /// from both.
    fn move_and_cut(&self, route: &Route, holders: &[Holder], round: u32) {
        if round % 2 == 0 {
            self.servers.node(route.server).pause();
        } else {
            self.servers.hold_up_from_leader(route.server);
        }
        // Heartbeats reach the server meanwhile, for it to report.
        thread::sleep(Duration::from_millis(200));
        route.doors[1].pass();
        route.doors[0].refuse();
        eventually(AMPLE, "all to have moved", || {
            let held = holders.iter().filter(|one| one.guard.is_held()).count();
            route.doors[1].live_connections() >= held
                && holders.iter().all(Holder::is_served_or_lost)
        });
        thread::sleep(Duration::from_millis(300 + u64::from(round % 3) * 600));
        route.doors[1].refuse();
    }

    /// Lets the server before report, after the other one has.
    fn report_late(&self, route: &Route, round: u32) {
        if !self.fault.moves() {
            return;
        }
        thread::sleep(self.tick * (1 + round % 2));
        if round % 2 == 0 {
            self.servers.node(route.server).resume();
        } else {
            self.servers.heal(route.server);
        }
    }

    /// Otherwise the fault was over before the locks were lost.
    fn check_that_the_server_has_not_learned_of(&self, losses: &[Loss], route: &Route) {
        let is_cut_off = matches!(self.fault, Fault::CutFollower | Fault::CutObserver);
        if is_cut_off && !losses.is_empty() {
            let nodes = self.servers.node(route.server).counter("zk_ephemerals_count");
            assert!(nodes > 0, "the server has learned of the losses");
        }
    }

    /// What came of a holder; nothing if it had lost its lock before the fault.
    fn judge(
        &self,
        holder: &Holder,
        grant: &Grant,
        cut: Instant,
        watch: &Stopwatch,
    ) -> Option<Loss> {
        eventually(AMPLE, "the report of the loss", || holder.told.get().is_some());
        let (told, why) = *holder.told.get().unwrap();
        let lease_end =
            if grant.left.is_zero() { holder.lease_end() } else { grant.at + grant.left };
        let late = lease_end.max(told).saturating_duration_since(grant.at);
        let [lease, on_lost, granted] = [lease_end, told, grant.at].map(|at| at - cut);
        if !late.is_zero() {
            println!(
                "{:?}, tick {:?}, {}: after the fault, the lease ended {lease:?}, on_lost was called \
                 {on_lost:?}, another client held {granted:?}",
                self.fault, self.tick, holder.name
            );
        }
        // Only the report needs a processor.
        let is_wrong = lease_end > grant.at || !late.is_zero() && late > watch.took().held_up();
        (is_wrong || lease_end > cut).then(|| {
            assert_eq!(why, LossReason::LeaseExpired);
            let since = |earlier: Duration| granted.as_secs_f64() - earlier.as_secs_f64();
            let (margin, reported) = (since(lease), since(on_lost));
            Loss { terms: holder.terms, margin, reported, is_wrong }
        })
    }
}

/// When another client got the lock, and how much of the holder's lease was left by then.
struct Grant {
    at: Instant,
    left: Duration,
}

impl Grant {
    fn wait(lock: &DistributedLock, holder: &Holder) -> Grant {
        let guard = lock
            .try_lock_for(holder.terms.timeout + UNNOTICED + 2 * AMPLE)
            .unwrap()
            .unwrap_or_else(|| panic!("{}: not granted", holder.name));
        let (at, left) = (Instant::now(), holder.guard.lease_left());
        guard.unlock().unwrap();
        Grant { at, left }
    }
}

fn until(stop: &AtomicBool, pause: Duration, step: impl Fn()) {
    while !stop.load(Ordering::Relaxed) {
        step();
        thread::sleep(pause);
    }
}

/// Session timeouts, in milliseconds, with a tick.
type Case = (u64, &'static [u64]);

/// What is lost if `ZKLOCK_LOSSES` is set.
const ALL: [Case; 3] = [(500, TIMEOUTS), (1_000, TIMEOUTS), (2_000, TIMEOUTS)];
const TIMEOUTS: &[u64] = &[4_000, 10_000, 30_000];

fn losses() -> Option<usize> {
    env::var("ZKLOCK_LOSSES").ok().map(|all| all.parse().expect("a number"))
}

/// Has holders lose their locks by this fault; in these cases, unless `ZKLOCK_LOSSES` is set.
fn none_is_late(fault: Fault, few: &[Case]) {
    let wanted = losses();
    let (cases, copies) = if wanted.is_some() { (&ALL[..], 2) } else { (few, 1) };
    let enough = wanted.map_or(1, |all| all.div_ceil(TESTS * cases.len()));
    let losses: Vec<Vec<Loss>> = thread::scope(|scope| {
        let lose = |case| scope.spawn(move || lose_in(fault, case, copies, enough));
        let all: Vec<_> = cases.iter().map(lose).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let rows = cases.iter().zip(&losses).flat_map(|((tick, _), losses)| rows(fault, *tick, losses));
    let rows: String = rows.collect();
    print!("{rows}");
    let table = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lease_losses");
    let mut table = OpenOptions::new().append(true).create(true).open(table).unwrap();
    // In one write: tests run in parallel.
    table.write_all(rows.as_bytes()).unwrap();
    let wrong = losses.iter().flatten().filter(|one| one.is_wrong).count();
    assert_eq!(wrong, 0, "locks were held, or not yet reported as lost, beside another holder");
}

fn lose_in(fault: Fault, (tick, timeouts): &Case, copies: usize, enough: usize) -> Vec<Loss> {
    let timeouts: Vec<Duration> = timeouts.iter().copied().map(Duration::from_millis).collect();
    let scene = Scene::start(fault, Duration::from_millis(*tick), &timeouts);
    let mut losses = Vec::new();
    for round in 0.. {
        losses.extend(scene.lose(round, copies));
        if losses.len() >= enough {
            break;
        }
    }
    losses
}

/// The rows of the table.
fn rows(fault: Fault, tick: u64, losses: &[Loss]) -> Vec<String> {
    let mut by_terms: BTreeMap<Terms, Vec<&Loss>> = BTreeMap::new();
    losses.iter().for_each(|loss| by_terms.entry(loss.terms).or_default().push(loss));
    let row = |(terms, losses): (Terms, Vec<&Loss>)| {
        let (fault, tick) = (format!("{fault:?}"), tick as f64 / 1000.0);
        let (timeout, stated) = (terms.timeout.as_secs(), terms.stated());
        let (count, late) = (losses.len(), losses.iter().filter(|one| one.margin < 0.0).count());
        let least = |margin: fn(&Loss) -> f64| {
            losses.iter().map(|one| margin(one)).fold(f64::INFINITY, f64::min)
        };
        let (least, reported) = (least(|one| one.margin), least(|one| one.reported));
        format!(
            "{fault:<16}{tick:>5} s{timeout:>5} s  {stated:<10}{count:>6}{late:>6}{least:>9.3} s\
             {reported:>9.3} s\n"
        )
    };
    by_terms.into_iter().map(row).collect()
}

#[test]
fn s28a_cut_off_from_the_leader_the_own_clock_is_first() {
    skip_without_server!();
    skip_before!(3, 5, "notice at once that they are cut off");
    none_is_late(Fault::CutFollower, &[(500, &[2_000]), (1_000, &[2_000])]);
}

#[test]
fn of_clients_of_an_observer_behind_an_observer_master() {
    skip_without_server!();
    skip_before!(3, 6, "have no observer masters");
    none_is_late(Fault::CutObserver, &[(1_000, &[3_000])]);
}

#[test]
fn of_sessions_that_moved_before_a_late_report() {
    skip_without_server!();
    skip_before!(3, 5, "notice at once that they are cut off");
    none_is_late(Fault::LateReport, &[(500, &[3_000])]);
}

#[test]
fn of_sessions_that_moved_to_a_server_that_grants_more() {
    skip_without_server!();
    skip_before!(3, 5, "notice at once that they are cut off");
    none_is_late(Fault::HigherMinimum, &[(500, &[3_000])]);
}

#[test]
fn of_clients_of_a_deposed_leader() {
    skip_without_server!();
    skip_before!(3, 5, "choose no leader if only the higher of two members connects to the other");
    none_is_late(Fault::DeposedLeader, &[(500, &[2_000])]);
}
