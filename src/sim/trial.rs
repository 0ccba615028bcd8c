//! One run from one seed: clients contend for a lock while things go wrong, and after
//! every step it is checked that nothing is so that must not be.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::plan::{Fault, Plan};
use super::wire::Servers;
use super::world::{Inner, Operation, World};
use crate::acl::Permissions;
use crate::contend::hold::LossReason;
use crate::contend::ticket::Ticket;
use crate::path;
use crate::rt::schedule::{Process, Schedule, Stuck, current};
use crate::rt::{self, Mutex};
use crate::{Cancel, Client, DistributedLock, Error, ErrorKind, FencingToken, LockGuard};

const BASE: &str = "/locks";
const NODE: &str = "/locks/one";
/// Beyond a deadline, for a request that is under way.
const GRACE: Duration = Duration::from_millis(50);
/// The most that dropping a guard, or cleaning up after a cancel, may take.
const PARTING: Duration = Duration::from_millis(500);
/// The longest pause of the reaper.
const REAPER: Duration = Duration::from_secs(6);
/// What no trial needs.
const MOST_STEPS: u64 = 400_000;

/// What happened in a trial.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) granted: u64,
    pub(super) lost: u64,
    pub(super) refused: u64,
    pub(super) faults: u64,
}

/// What went wrong.
pub(super) type Violation = String;

struct Trial {
    world: Arc<World>,
    plan: Plan,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Vec<Held>,
    latest: Option<FencingToken>,
    /// Who is first and does not hold, and since when.
    idle: Option<(String, Duration)>,
    /// Nodes that somebody else has deleted, and when.
    deleted: HashMap<String, Duration>,
    /// Whose client was closed.
    closed: Vec<Process>,
    /// How many reasons there are for threads not to be had.
    poor: usize,
    /// Threads that have not done their rounds.
    busy: usize,
    clean: bool,
    violation: Option<Violation>,
    tally: Tally,
}

#[derive(Clone)]
struct Held {
    guard: Arc<LockGuard>,
    session: i64,
    process: Process,
    /// When its loss was known.
    lost_at: Option<Duration>,
}

/// Runs the trial that the seed draws.
pub(super) fn run(seed: u64, verbose: bool) -> Result<Tally, Violation> {
    run_as(seed, verbose, |plan| plan)
}

/// Runs a trial that is what the seed draws only as far as `plan` leaves it so.
pub(super) fn run_as(
    seed: u64,
    verbose: bool,
    plan: impl FnOnce(Plan) -> Plan,
) -> Result<Tally, Violation> {
    let (schedule, running) = Schedule::begin(seed, verbose);
    let plan = plan(Plan::draw(&schedule));
    if verbose {
        schedule.say(&format!("{plan:#?}"));
    }
    schedule.set_lag(plan.lag);
    let trial = Arc::new(Trial { world: World::new(plan.habits), plan, state: Mutex::default() });
    trial.prepare(&schedule);
    let result = trial.run(&schedule);
    let tally = trial.state.lock().tally;
    if let Err(violation) = result {
        // Whoever stands in the middle of something does not go on.
        std::mem::forget(trial);
        drop(running);
        return Err(violation);
    }
    drop(running);
    Ok(tally)
}

impl Trial {
    fn prepare(self: &Arc<Self>, schedule: &Schedule) {
        if self.plan.first_number != 0 || self.plan.hidden {
            let all = Plan::acl(Some(Permissions::ALL));
            self.world.act(|world| {
                world.make(BASE, &all, 0);
                world.make(NODE, &all, self.plan.first_number);
            });
        }
        let mut clients = Vec::new();
        for (process, threads) in self.plan.threads.iter().enumerate() {
            let servers = Box::new(Servers(Arc::clone(&self.world)));
            let client = Client::with(servers, "simulated".to_owned(), String::new());
            let acl = match process {
                0 if self.plan.hidden => Permissions::CREATE | Permissions::DELETE,
                _ => Permissions::ALL,
            };
            for thread in 0..*threads {
                self.state.lock().busy += 1;
                let name = format!("contender-{process}-{thread}");
                let lock = |name: &str| {
                    let lock = DistributedLock::builder(&client, BASE, "one").data(name);
                    lock.acl(Plan::acl(Some(acl))).build()
                };
                let (trial, lock, spare) = (Arc::clone(self), lock(&name), lock(""));
                let title = name.clone();
                let body = move || trial.contend(process, &name, &lock, &spare);
                let _ = schedule.within(process, || schedule.start(&title, body));
            }
            clients.push(client);
        }
        for (time, fault) in &self.plan.faults {
            let (trial, clients, fault) = (Arc::clone(self), clients.clone(), fault.clone());
            schedule.at(*time, move || trial.harm(&fault, &clients));
        }
        let trial = Arc::clone(self);
        let end = move || trial.finish(clients);
        let _ = schedule.within(usize::MAX, || schedule.start("end", end));
    }

    fn run(&self, schedule: &Schedule) -> Result<(), Violation> {
        let timeout = self.plan.habits.session_timeout;
        // Who waits longest waits for everybody else's every round.
        let rounds = self.plan.rounds * self.plan.threads.iter().sum::<usize>();
        let patience =
            self.plan.calm + timeout * 20 + (self.plan.hold + timeout) * rounds as u32 * 4;
        for step in 1.. {
            match schedule.step() {
                Ok(()) => {}
                Err(Stuck::Panicked { task, why }) => {
                    return Err(format!("{task} panicked: {why}"));
                }
                Err(Stuck::Quiet) => break,
            }
            let mut state = self.state.lock();
            state.tally.steps = step;
            if let Some(violation) = state.violation.take() {
                return Err(violation);
            }
            drop(state);
            self.check(schedule)?;
            if step > MOST_STEPS {
                return Err(format!("still going on after {step} steps: {:?}", schedule.names()));
            }
            if schedule.time() > patience && !self.state.lock().clean {
                return Err(format!("not done after {patience:?}: {:?}", schedule.names()));
            }
        }
        if schedule.alive() > 0 {
            return Err(format!("these would wait for ever: {:?}", schedule.names()));
        }
        let left = self.world.look(|world| world.ephemerals());
        if !left.is_empty() {
            return Err(format!("left for ever: {left:?}"));
        }
        Ok(())
    }

    // ----- what must always be so

    fn check(&self, schedule: &Schedule) -> Result<(), Violation> {
        let mut state = self.state.lock();
        let timeout = self.plan.habits.session_timeout;
        // What stops by itself may do so later.
        let resumed = |process| self.world.look(|world| world.resumed_at(process));
        let resumed = (0..self.plan.threads.len()).map(resumed).max().unwrap_or_default();
        let settled = self.plan.calm.max(resumed) + timeout;
        let calm = self.plan.faults.is_empty() || schedule.time() > settled;
        if calm && self.plan.first_number == 0 && self.world.look(|world| world.breaks().is_some())
        {
            self.check_prompt(schedule, &mut state)?;
        } else {
            state.idle = None;
        }
        if state.held.is_empty() {
            return Ok(());
        }
        for one in state.held.iter_mut().filter(|one| one.lost_at.is_none()) {
            let reason = one.guard.lost().reason();
            let known = reason.is_some();
            one.lost_at = known.then(|| schedule.time());
            let (exists, ended) = self
                .world
                .look(|world| (world.contains(one.guard.path()), world.has_ended(one.session)));
            let caused = match reason {
                None => true,
                Some(LossReason::NodeDeleted) => !exists,
                Some(_) => ended,
            };
            if !caused {
                return Err(format!("{} is lost for nothing: {reason:?}", one.guard.path()));
            }
            if !known && self.world.look(|world| world.has_ended(one.session)) {
                let path = one.guard.path();
                return Err(format!("the session of {path} has ended, and its guard is not told"));
            }
        }
        let held = state.held.clone();
        let deleted = |path: &str| state.deleted.get(path).copied();
        let mut claims = Vec::new();
        for one in held.iter().filter(|one| one.guard.is_held()) {
            let path = one.guard.path();
            let (exists, murdered, connected) = self.world.look(|world| {
                let session = one.session;
                let connected = world.connected_since(session);
                (world.contains(path), world.is_murdered(session), connected)
            });
            if exists {
                claims.push(path);
                continue;
            }
            let Some(when) = deleted(path).or(murdered.then_some(self.plan.calm)) else {
                return Err(format!("{path} is gone, and its guard says that it is held"));
            };
            let resumed = self.world.look(|world| world.resumed_at(one.process));
            let known_by = when.max(self.plan.calm).max(resumed);
            let known_by = match connected {
                Some(since) => known_by.max(since) + self.notification(),
                None => known_by + self.plan.habits.session_timeout * 3,
            };
            // Or it takes a reminder.
            let reminder = if self.plan.habits.reminds { timeout * 4 } else { Duration::ZERO };
            let known_by = known_by + reminder;
            if schedule.time() > known_by && schedule.stopped(one.process).is_none() {
                return Err(format!("{path} was deleted at {when:?}, and its holder never knew"));
            }
        }
        if claims.len() > 1 {
            return Err(format!("more than one holds the lock: {claims:?}"));
        }
        Ok(())
    }

    /// Where nothing goes wrong, whoever is first holds or leaves, and soon.
    fn check_prompt(&self, schedule: &Schedule, state: &mut State) -> Result<(), Violation> {
        let habits = self.plan.habits;
        let soon = PARTING + habits.latency * 12 + habits.hesitation * 4 + habits.lag * 4;
        // What could not be deleted before is tried again after this at the latest; or it takes
        // a reminder.
        let soon = if self.plan.faults.is_empty() { soon } else { soon + REAPER };
        let soon = if habits.reminds { soon + habits.session_timeout * 4 } else { soon };
        self.world.look(|world| {
            let first = world.first_child(NODE);
            let holds =
                |name: &&str| state.held.iter().any(|one| path::last(one.guard.path()) == *name);
            match (first.filter(|name| !holds(name)), &state.idle) {
                (None, _) => state.idle = None,
                (Some(first), Some((name, since))) if first == name => {
                    if schedule.time() > *since + soon {
                        return Err(format!("{first} is first since {since:?}, and sleeps"));
                    }
                }
                (Some(first), _) => state.idle = Some((first.to_owned(), schedule.time())),
            }
            Ok(())
        })
    }

    /// The most that it takes, while all is well, until a client has heard of a change.
    fn notification(&self) -> Duration {
        GRACE + self.plan.habits.latency * 6 + self.plan.habits.lag * 2
    }

    fn accuse(&self, violation: String) {
        let mut state = self.state.lock();
        state.violation.get_or_insert(violation);
    }

    // ----- what goes wrong

    fn harm(self: &Arc<Self>, fault: &Fault, clients: &[Client]) {
        let Some(schedule) = current() else { return };
        let now = schedule.time();
        if schedule.verbose {
            schedule.say(&format!("{fault:?}"));
        }
        self.state.lock().tally.faults += 1;
        match fault {
            Fault::Cut { process, notice, mend } => {
                self.world.act(|world| world.cut_all(*process, *notice, *mend));
            }
            Fault::Trap { process, trap } => {
                self.world.act(|world| world.set_trap(*process, *trap));
            }
            Fault::Stop { process, lasts } => {
                self.world.act(|world| world.stop(*process, now + *lasts));
            }
            Fault::Down { notice, lasts } => {
                self.world.act(|world| world.go_down(*notice, now + *lasts));
            }
            Fault::Stall { server, lasts } => {
                self.world.act(|world| world.stall(*server, now + *lasts));
            }
            Fault::Delete { first } => self.delete_one(&schedule, *first),
            Fault::DeleteLockNode => {
                self.world.act(|world| world.delete(NODE));
            }
            Fault::Murder { process } => self.world.act(|world| world.murder(*process)),
            Fault::Close { process } => {
                let (trial, client, process) =
                    (Arc::clone(self), clients[*process].clone(), *process);
                let close = move || {
                    client.close();
                    trial.state.lock().closed.push(process);
                    if let Some(schedule) = current() {
                        trial.check_on_time(&schedule, process, now, PARTING * 2);
                    }
                };
                let _ = schedule.within(process, || schedule.start("closer", close));
            }
            Fault::Peer { lasts } => self.contend_as_peer(&schedule, *lasts),
            Fault::Poverty { percent, lasts } => self.be_poor(&schedule, *percent, *lasts),
            Fault::Forbid { left, lasts } => {
                if self.world.look(|world| world.contains(NODE)) {
                    self.world.act(|world| world.set_acl(NODE, &Plan::acl(*left)));
                    let world = Arc::clone(&self.world);
                    let all = Plan::acl(Some(Permissions::ALL));
                    schedule.after(*lasts, move || world.act(|world| world.set_acl(NODE, &all)));
                }
            }
        }
    }

    fn contend_as_peer(&self, schedule: &Schedule, lasts: Duration) {
        let names = ["/a1b2__lock__", "/x-99-", "/_c_00000000-0000-0000-0000-000000000000-lock-"];
        let prefix = format!("{NODE}{}", names[schedule.below(names.len())]);
        let made = self.world.act(|world| world.contend(&prefix));
        if let Some(path) = made {
            let world = Arc::clone(&self.world);
            schedule.after(lasts, move || {
                world.act(|world| world.delete(&path));
            });
        }
    }

    fn be_poor(self: &Arc<Self>, schedule: &Schedule, percent: u64, lasts: Duration) {
        self.state.lock().poor += 1;
        schedule.set_poverty(percent);
        let trial = Arc::clone(self);
        schedule.after(lasts, move || {
            trial.state.lock().poor -= 1;
            if let (0, Some(schedule)) = (trial.state.lock().poor, current()) {
                schedule.set_poverty(0);
            }
        });
    }

    fn delete_one(&self, schedule: &Schedule, first: bool) {
        let children = self.world.look(|world| world.children(NODE));
        let mut tickets: Vec<_> = children.iter().filter_map(|name| Ticket::parse(name)).collect();
        tickets.sort();
        let chosen = if first { 0 } else { schedule.below(tickets.len()) };
        let Some(ticket) = tickets.get(chosen) else { return };
        let path = path::join(NODE, ticket.name());
        self.state.lock().deleted.insert(path.clone(), schedule.time());
        self.world.act(|world| world.delete(&path));
    }

    // ----- those who contend

    fn contend(
        self: &Arc<Self>,
        process: Process,
        name: &str,
        lock: &DistributedLock,
        spare: &DistributedLock,
    ) {
        if let Some(schedule) = current() {
            let mut all_granted = true;
            for _ in 0..self.plan.rounds {
                schedule.pause(schedule.some(self.plan.hold));
                let before = self.world.look(|world| world.transactions());
                match self.acquire(&schedule, process, lock) {
                    Some(guard) => {
                        if all_granted {
                            self.check_place(&guard, before, name.as_bytes());
                        }
                        self.hold(&schedule, process, spare, guard);
                    }
                    // It may have left something that takes effect later.
                    None => all_granted = false,
                }
            }
        }
        self.state.lock().busy -= 1;
    }

    /// Nobody gives up a place that he has: the first that a call has made is the one granted.
    fn check_place(&self, guard: &LockGuard, before: usize, name: &[u8]) {
        let state = self.state.lock();
        let lost = self.world.look(|world| {
            let session = world.owner(guard.path())?;
            let mut made = world.made_since(before);
            let mine = |made: &(&str, i64, &[u8])| made.1 == session && made.2 == name;
            let (first, ..) =
                made.find(|made| mine(made) && !state.deleted.contains_key(made.0))?;
            (first != guard.path() && !world.is_murdered(session)).then(|| first.to_owned())
        });
        drop(state);
        if let Some(first) = lost {
            self.accuse(format!("{first} was given up, and {} is granted", guard.path()));
        }
    }

    fn acquire(
        &self,
        schedule: &Schedule,
        process: Process,
        lock: &DistributedLock,
    ) -> Option<LockGuard> {
        let timeout = self.plan.habits.session_timeout;
        let began = schedule.time();
        let closed = self.state.lock().closed.contains(&process);
        let free = |world: &Inner| world.first_child(NODE).is_none();
        let (was_free, before) = self.world.look(|world| (free(world), world.transactions()));
        let limited = |limit: Duration| {
            let result = lock.try_lock_for(limit);
            self.check_on_time(schedule, process, began, limit);
            result
        };
        let (mut cancelled, mut patience) = (None, Duration::ZERO);
        let result = match schedule.below(10) {
            0..=3 => lock.lock().map(Some),
            4 | 5 => {
                patience = schedule.some(timeout * 2);
                limited(patience)
            }
            6 => limited(schedule.some(Duration::from_millis(60))),
            7 => lock.try_lock_until(rt::now()),
            8 => {
                patience = self.plan.habits.connect_timeout;
                let result = lock.try_lock();
                self.check_on_time(schedule, process, began, patience);
                result
            }
            _ => {
                let cancel = Cancel::new();
                let (token, patience) = (cancel.clone(), schedule.some(timeout));
                schedule.after(patience, move || token.cancel());
                let result = lock.lock_with(&cancel).map(Some);
                self.check_on_time(schedule, process, began, patience + PARTING);
                cancelled = Some(cancel);
                result
            }
        };
        let habits = self.plan.habits;
        let ample = PARTING + habits.latency * 12 + habits.hesitation * 8 + self.plan.lag * 40;
        if self.plan.faults.is_empty() && self.plan.first_number == 0 && patience > ample {
            let (free, made) =
                self.world.look(|world| (free(world), world.made_since(before).count()));
            if matches!(result, Ok(None)) && was_free && free && made <= 1 {
                self.accuse(format!("process {process} could have had the lock, and has not"));
            }
        }
        if closed && !matches!(&result, Err(error) if error.kind() == ErrorKind::Closed) {
            self.accuse(format!("process {process} has closed its client, and got {result:?}"));
        }
        let mut state = self.state.lock();
        match result {
            Ok(Some(guard)) => {
                state.tally.granted += 1;
                return Some(guard);
            }
            Ok(None) => state.tally.refused += 1,
            Err(error) => {
                state.tally.refused += 1;
                let cancelled = cancelled.is_some_and(|cancel| cancel.is_cancelled());
                if !self.expected(&error, cancelled) {
                    drop(state);
                    self.accuse(format!("process {process} was not to get this: {error:?}"));
                }
            }
        }
        None
    }

    fn expected(&self, error: &Error, cancelled: bool) -> bool {
        match error.kind() {
            ErrorKind::Cancelled => cancelled,
            ErrorKind::Closed => self.plan.has(|fault| matches!(fault, Fault::Close { .. })),
            ErrorKind::NotAuthorized => {
                self.plan.has(|fault| matches!(fault, Fault::Forbid { .. }))
            }
            ErrorKind::System => self.plan.has(|fault| matches!(fault, Fault::Poverty { .. })),
            ErrorKind::SequenceExhausted => self.plan.first_number != 0,
            _ => false,
        }
    }

    fn check_on_time(
        &self,
        schedule: &Schedule,
        process: Process,
        began: Duration,
        limit: Duration,
    ) {
        let now = schedule.time();
        let allowed = began + limit.max(GRACE) + GRACE + self.plan.lag * 20;
        let resumed = self.world.look(|world| world.resumed_at(process));
        if now > allowed && (resumed.is_zero() || resumed < began) {
            self.accuse(format!(
                "process {process} had until {:?} and came back at {now:?}",
                began + limit
            ));
        }
    }

    fn hold(
        self: &Arc<Self>,
        schedule: &Schedule,
        process: Process,
        lock: &DistributedLock,
        guard: LockGuard,
    ) {
        let guard = Arc::new(guard);
        let path = guard.path().to_owned();
        self.check_grant(&guard);
        let session = self.world.look(|world| world.owner(&path)).unwrap_or_default();
        let held = Held { guard: Arc::clone(&guard), session, process, lost_at: None };
        self.state.lock().held.push(held);
        let (told, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let listen = || {
            let (trial, count, over) = (Arc::clone(self), Arc::clone(&told), Arc::clone(&over));
            let (path, again) = (path.clone(), schedule.chance(20).then(|| lock.clone()));
            guard.on_lost(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
                if over.load(Ordering::SeqCst) {
                    trial.accuse(format!("the loss of {path} was told after its release"));
                }
                if let Some(lock) = again {
                    let _ = lock.try_lock_for(GRACE);
                }
            });
        };
        let early = schedule.chance(70);
        if early {
            listen();
        }
        if schedule.chance(20) {
            let lost = guard.lost();
            let _ = schedule.start("watcher", move || {
                lost.wait();
            });
        }

        let mut was_lost = false;
        for _ in 0..schedule.below(4) {
            let some = schedule.some(self.plan.hold);
            if was_lost || schedule.chance(50) {
                schedule.pause(some);
            } else {
                let began = schedule.time();
                if guard.lost().wait_for(some).is_some() {
                    self.check_woken(schedule, process, &guard, began);
                }
            }
            if was_lost && guard.is_held() {
                self.accuse(format!("{path} was lost and is held again"));
            }
            was_lost |= !guard.is_held();
            if schedule.chance(30) {
                let existed = self.world.look(|world| world.contains(&path));
                let confirmed = guard.ensure_held();
                if confirmed.is_ok() && (!existed || was_lost) {
                    self.accuse(format!("{path} was gone, and is said to be held"));
                }
                let (exists, ended) =
                    self.world.look(|world| (world.contains(&path), world.has_ended(session)));
                if let Err(error) = &confirmed
                    && exists
                    && !ended
                    && guard.is_held()
                {
                    self.accuse(format!("{path} is held, and is said not to be: {error}"));
                }
                was_lost |= confirmed.is_err() && !guard.is_held();
            }
        }
        if !early {
            listen();
        }
        if was_lost && schedule.chance(50) {
            self.check_told(schedule, lock, &guard, &told);
        }
        if guard.lost().reason() == Some(LossReason::NodeDeleted) {
            self.check_deleted(&path, session);
        }

        self.state.lock().held.retain(|other| !Arc::ptr_eq(&other.guard, &guard));
        let (was_held, loss) = (guard.is_held(), guard.lost());
        self.state.lock().tally.lost += u64::from(!was_held);
        let Some(guard) = Arc::into_inner(guard) else {
            return self.accuse("the guard is shared".to_owned());
        };
        if schedule.chance(50) {
            let began = schedule.time();
            drop(guard);
            self.check_on_time(schedule, process, began, PARTING);
        } else if schedule.chance(20) {
            // Should that not be possible, it is dropped here.
            let over = Arc::clone(&over);
            let _ = schedule.start("dropper", move || {
                drop(guard);
                over.store(true, Ordering::SeqCst);
            });
            return;
        } else {
            let look = || self.world.look(|world| (world.contains(&path), world.breaks()));
            let (existed, before) = look();
            let unlocked = guard.unlock();
            let (exists, breaks) = look();
            if unlocked.as_ref().is_err_and(|error| error.kind() == ErrorKind::LockLost) {
                self.check_deleted(&path, session);
            }
            if unlocked.is_ok() && exists {
                self.accuse(format!("{path} was unlocked, and is still there"));
            }
            // Without an answer to the first attempt nobody knows who it was.
            if unlocked.is_ok() && !existed && before.is_some() && breaks == before {
                self.accuse(format!("{path} was gone, and could be unlocked"));
            }
        }
        over.store(true, Ordering::SeqCst);
        if told.load(Ordering::SeqCst) > 0 && loss.reason().is_none() {
            self.accuse(format!("{path} was not lost, and is said to be"));
        }
        if told.load(Ordering::SeqCst) > 1 {
            self.accuse(format!("the loss of {path} was told more than once"));
        }
    }

    /// Whoever is granted the lock is first, and its token the largest so far.
    fn check_grant(&self, guard: &LockGuard) {
        let children = self.world.look(|world| world.children(NODE));
        let own = path::last(guard.path());
        if !guard.is_held() {
            self.accuse(format!("{own} was granted when it was lost already"));
        }
        if !children.iter().any(|child| child == own) {
            // Lost already; `check` knows whether that may be.
            return;
        }
        if Ticket::parse(own).is_none_or(|ticket| ticket.sequence() > i32::MAX - (1 << 16)) {
            self.accuse(format!("{own} was granted, at the end of the numbers"));
        }
        let earliest = children.iter().filter_map(|name| Ticket::parse(name)).min();
        if earliest.as_ref().is_none_or(|first| first.name() != own) {
            self.accuse(format!("{own} was granted before {earliest:?}"));
        }
        let token = guard.fencing_token();
        let mut state = self.state.lock();
        if let Some(latest) = state.latest.replace(token)
            && latest >= token
        {
            drop(state);
            self.accuse(format!("the token {token} was granted after {latest}"));
        }
    }

    /// Whoever waits for a loss is woken by it.
    fn check_woken(
        &self,
        schedule: &Schedule,
        process: Process,
        guard: &Arc<LockGuard>,
        began: Duration,
    ) {
        let of_guard = |one: &&Held| Arc::ptr_eq(&one.guard, guard);
        let lost_at = self.state.lock().held.iter().find(of_guard).and_then(|one| one.lost_at);
        if let Some(lost_at) = lost_at {
            self.check_on_time(schedule, process, lost_at.max(began), Duration::ZERO);
        }
    }

    /// That a node is gone is somebody's doing.
    fn check_deleted(&self, path: &str, session: i64) {
        let deleted = self.state.lock().deleted.contains_key(path);
        if !deleted && !self.world.look(|world| world.is_murdered(session)) {
            self.accuse(format!("nobody has deleted {path}, and it is said to be gone"));
        }
    }

    fn check_told(
        &self,
        schedule: &Schedule,
        lock: &DistributedLock,
        guard: &LockGuard,
        told: &AtomicUsize,
    ) {
        let limit = self.plan.calm + self.plan.habits.session_timeout * 3;
        if guard.lost().wait_for(limit).is_none() {
            return self.accuse(format!("the loss of {} is not told of", guard.path()));
        }
        let until = schedule.time() + limit;
        if self.plan.has(|fault| matches!(fault, Fault::Poverty { .. })) {
            // Without a session nothing happens any more, and so nothing reminds of it.
            let calm = self.plan.calm + GRACE;
            schedule.pause(calm.saturating_sub(schedule.time()));
            let _ = lock.try_lock_until(rt::now());
        }
        while told.load(Ordering::SeqCst) == 0 {
            if schedule.time() > until {
                return self.accuse(format!("nobody called back for {}", guard.path()));
            }
            schedule.pause(Duration::from_millis(10));
        }
    }

    // ----- the end

    /// When all is calm and everybody has finished, nothing is left.
    fn finish(&self, clients: Vec<Client>) {
        let Some(schedule) = current() else { return };
        while self.state.lock().busy > 0 {
            schedule.pause(Duration::from_millis(50));
        }
        let timeout = self.plan.habits.session_timeout;
        let settled = schedule.time().max(self.plan.calm) + timeout * 4;
        schedule.pause(settled - schedule.time());
        let left = self.world.look(|world| world.children(NODE));
        if !left.is_empty() {
            self.accuse(format!("left behind: {left:?}"));
        }
        for client in &clients {
            let stats = client.stats();
            if (stats.watches, stats.pending_deletes) != (0, 0) {
                self.accuse(format!("a client is still busy: {stats:?}"));
            }
        }
        let closed = self.state.lock().closed.clone();
        for process in closed {
            if self.world.look(|world| world.has_session(process)) {
                self.accuse(format!("process {process} has closed its client, not its session"));
            }
        }
        for (process, client) in clients.into_iter().enumerate() {
            schedule.within(process, || drop(client));
        }
        if self.plan.faults.is_empty() && !self.plan.hidden {
            self.check_costs();
        }
        if self.plan.first_number != 0 {
            self.check_begun_anew();
        }
        self.state.lock().clean = true;
    }

    /// A release wakes one waiter: what is asked does not grow with their number.
    fn check_costs(&self) {
        let asked = |operation| self.world.look(|world| world.asked(operation));
        let places = asked(Operation::Create);
        let (lists, reads) = (asked(Operation::Children), asked(Operation::Read));
        if lists.max(reads) > places * 3 + 6 {
            self.accuse(format!("{places} places took {lists} lists and {reads} reads"));
        }
    }

    /// Used-up numbers do not stay so.
    fn check_begun_anew(&self) {
        let servers = Box::new(Servers(Arc::clone(&self.world)));
        let client = Client::with(servers, "simulated".to_owned(), String::new());
        let lock = DistributedLock::builder(&client, BASE, "one").data("").build();
        let patience = Duration::from_secs(60);
        if !(0..3).any(|_| matches!(lock.try_lock_for(patience), Ok(Some(_)))) {
            self.accuse("the numbers are used up for ever".to_owned());
        }
    }
}
