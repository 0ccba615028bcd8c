//! One run from one seed: clients contend for a lock while faults occur, and every step is
//! checked.

mod any_lock;
mod checks;
mod contend;
mod faults;
mod fenced_writes;
mod reference_rule;
mod revoke_and_observe;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use any_lock::{BASE, Guard, Locks, Patience, Wanted};

use super::connection::SimulatedEnsemble;
use super::plan::{Plan, PlannedFault, Recipe};
use super::world::{Operation, World};
use crate::acl::Permissions;
use crate::rt::Mutex;
use crate::rt::schedule::{Process, Schedule, Stuck, current};
use crate::session::ClientCore;
use crate::{Client, FencingToken};

/// How long a request that is under way may last beyond a deadline.
const GRACE: Duration = Duration::from_millis(50);
/// The longest time for dropping a guard, or for cleaning up after a cancel.
const DROP_LIMIT: Duration = Duration::from_millis(500);
/// More steps than any trial needs.
const MOST_STEPS: u64 = 400_000;

/// Counts of what happened in a trial.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) granted: u64,
    pub(super) lost: u64,
    pub(super) refused: u64,
    pub(super) downgraded: u64,
    pub(super) asked: u64,
    pub(super) faults: u64,
}

/// The description of a broken promise.
pub(super) type Violation = String;

struct Trial {
    world: Arc<World>,
    plan: Plan,
    nodes: Vec<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What was granted, by lock node.
    granted: HashMap<String, Granted>,
    /// The contenders that may hold, and after how many transactions that was worked out.
    entitled: (usize, Vec<Entitled>),
    /// Those of them that do not hold, and since when.
    idle: HashMap<Entitled, Duration>,
    /// Nodes that an outsider has deleted, and when.
    deleted: HashMap<String, Duration>,
    /// Nodes whose holders were asked to release, and when.
    asked: HashMap<String, Duration>,
    /// How much of the log was searched for such requests.
    searched: usize,
    fenced: fenced_writes::Fenced,
    /// The holders of the first node's lock, and since when.
    truth: Option<(Vec<String>, Duration)>,
    /// The present contenders of the first node, and since when they have been there.
    since: HashMap<String, Duration>,
    /// The paths of nodes that were handed on within a process, and when.
    handed: Vec<(String, Duration)>,
    observed: Observed,
    /// Processes whose clients were closed.
    closed: Vec<Process>,
    cores: Vec<Weak<ClientCore>>,
    /// How many faults currently prevent threads from starting.
    poor: usize,
    /// How many threads have not finished their rounds.
    busy: usize,
    clean: bool,
    violation: Option<Violation>,
    tally: Tally,
}

/// The grants at a lock node so far.
#[derive(Clone, Copy, Default)]
struct Granted {
    /// The latest token of any holder, and that of the latest exclusive holder.
    token: Option<FencingToken>,
    alone: Option<FencingToken>,
    /// How many exclusive grants there were.
    writers: u64,
}

/// A contender that may hold; for a multi-lock, also at how many nodes it contends.
type Entitled = (String, usize);

/// The state of the observer.
#[derive(Default)]
struct Observed {
    at_work: bool,
    /// Whether the observer must end.
    over: bool,
    latest: Option<Vec<String>>,
}

struct Held {
    guard: Rc<Guard>,
    paths: Vec<String>,
    session: i64,
    process: Process,
    /// When it was granted.
    since: Duration,
    /// When its loss was known.
    lost_at: Option<Duration>,
    /// For a downgraded reader: how many exclusive grants there were then.
    downgraded: Option<u64>,
}

thread_local! {
    /// The held guards of this thread's trial. They are not in the shared state because a
    /// multi-lock's guard cannot be shared with other threads.
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

/// Runs the trial drawn from the seed.
pub(super) fn run(seed: u64, verbose: bool) -> Result<Tally, Violation> {
    run_as(seed, verbose, |plan| plan)
}

/// Runs the trial drawn from the seed, as changed by `plan`.
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
    let (world, nodes) = (World::new(plan.habits), any_lock::nodes(plan.recipe));
    let trial = Arc::new(Trial { world, plan, nodes, state: Mutex::default() });
    trial.prepare(&schedule);
    let result = trial.run(&schedule);
    let tally = trial.state.lock().tally;
    if let Err(violation) = result {
        // Tasks that are in the middle of something must not go on.
        std::mem::forget((HELD.take(), trial));
        drop(running);
        return Err(violation);
    }
    drop(running);
    Ok(tally)
}

impl Trial {
    fn prepare(self: &Arc<Self>, schedule: &Schedule) {
        let all = Plan::acl(Some(Permissions::ALL));
        self.world.act(|world| world.make(fenced_writes::TARGET, &all, 0));
        if self.plan.first_number != 0 || self.plan.hidden {
            let all = Plan::acl(Some(Permissions::ALL));
            self.world.act(|world| {
                world.make(BASE, &all, 0);
                self.nodes.iter().for_each(|node| world.make(node, &all, self.plan.first_number));
            });
        }
        let mut clients = Vec::new();
        let mut onlookers = Vec::new();
        for (process, threads) in self.plan.threads.iter().enumerate() {
            let client = self.client();
            let acl = match process {
                0 if self.plan.hidden => Permissions::CREATE | Permissions::DELETE,
                _ => Permissions::ALL,
            };
            let acl = Plan::acl(Some(acl));
            for index in 0..*threads {
                self.state.lock().busy += 1;
                let thread = if self.plan.sharing.is_some() { "any" } else { &index.to_string() };
                let name = format!("contender-{process}-{thread}");
                let odd = (process, index) == (0, 0);
                let locks = |name: &str| Locks::new(&client, &self.plan, name, &acl, odd);
                let data = self.plan.data(process, &name);
                let (trial, lock, spare) = (Arc::clone(self), locks(&data), locks(""));
                let title = name.clone();
                let body = move || trial.contend(process, &name, &lock, &spare);
                let _ = schedule.within(process, || schedule.start(&title, body));
            }
            onlookers.push(Locks::new(&client, &self.plan, "", &acl, false));
            self.state.lock().cores.push(Arc::downgrade(client.core()));
            clients.push(client);
        }
        for (time, fault) in &self.plan.faults {
            let (trial, clients, fault) = (Arc::clone(self), clients.clone(), fault.clone());
            schedule.at(*time, move || trial.harm(&fault, &clients));
        }
        self.look_on(schedule, &onlookers);
        let trial = Arc::clone(self);
        let end = move || trial.finish(clients);
        let _ = schedule.within(usize::MAX, || schedule.start("end", end));
    }

    fn client(&self) -> Client {
        let servers = Box::new(SimulatedEnsemble(Arc::clone(&self.world)));
        Client::with(servers, "simulated".to_owned(), String::new())
    }

    fn run(&self, schedule: &Schedule) -> Result<(), Violation> {
        let timeout = self.plan.habits.session_timeout;
        // The longest wait is for every round of all other threads.
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
                return Err(format!("still running after {step} steps: {:?}", schedule.names()));
            }
            if schedule.time() > patience && !self.state.lock().clean {
                return Err(format!("not done after {patience:.1?}: {:?}", schedule.names()));
            }
        }
        if schedule.alive() > 0 {
            return Err(format!("these tasks wait for ever: {:?}", schedule.names()));
        }
        let left = self.world.look(|world| world.ephemerals());
        if !left.is_empty() {
            return Err(format!("nodes left after all clients closed: {left:?}"));
        }
        Ok(())
    }

    fn accuse(&self, violation: String) {
        let mut state = self.state.lock();
        state.violation.get_or_insert(violation);
    }

    // ----- the end

    /// Checks that nothing is left once all faults are over and all threads have finished.
    fn finish(&self, clients: Vec<Client>) {
        let Some(schedule) = current() else { return };
        while self.state.lock().busy > 0 {
            schedule.pause(Duration::from_millis(50));
        }
        let timeout = self.plan.habits.session_timeout;
        let late_until = self.world.look(|world| world.late_until());
        let settled = schedule.time().max(self.plan.calm) + timeout * 4;
        // By then a node that was made so late has been found and deleted.
        let settled = settled.max(late_until + timeout * 3);
        schedule.pause(settled - schedule.time());
        let left: Vec<_> = self.children().into_values().flatten().collect();
        if !left.is_empty() {
            self.accuse(format!("nodes left after all threads finished: {left:?}"));
        }
        self.end_observation(&schedule);
        for client in &clients {
            let stats = client.stats();
            if (stats.watches, stats.pending_deletes) != (0, 0) {
                self.accuse(format!("a client is still busy: {stats:?}"));
            }
        }
        let closed = self.state.lock().closed.clone();
        for process in closed {
            if self.world.look(|world| world.has_session(process)) {
                self.accuse(format!("process {process} closed its client, but a session is open"));
            }
        }
        for (process, client) in clients.into_iter().enumerate() {
            schedule.within(process, || drop(client));
        }
        let looked_on = self.plan.observer.is_some() || !self.plan.asks.is_empty();
        if self.plan.faults.is_empty() && !self.plan.hidden && !looked_on {
            self.check_costs();
        }
        if self.plan.first_number != 0 {
            self.check_begun_anew();
        }
        self.state.lock().clean = true;
    }

    /// Returns the names of all contenders, by lock node.
    fn children(&self) -> BTreeMap<&str, Vec<String>> {
        let of = |node: &str| self.world.look(|world| world.children(node));
        self.nodes.iter().map(|node| (node.as_str(), of(node))).collect()
    }

    /// Checks that the requests per contender do not grow with the number of other contenders: a
    /// release must only wake those that may go on.
    fn check_costs(&self) {
        let asked = |operation| self.world.look(|world| world.asked(operation));
        let places = asked(Operation::Create);
        let (lists, reads) = (asked(Operation::Children), asked(Operation::Read));
        // The release of one of a semaphore's holders may wake a contender that cannot go on yet.
        let each = match self.plan.recipe {
            Recipe::Semaphore { permits, .. } => u64::from(permits + 2).pow(2),
            _ => 3,
        };
        if lists.max(reads) > places * each + 6 {
            self.accuse(format!("{places} creates took {lists} lists and {reads} reads"));
        }
    }

    /// Checks that numbering starts anew after the sequence numbers were used up.
    fn check_begun_anew(&self) {
        let acl = Plan::acl(Some(Permissions::ALL));
        let locks = Locks::new(&self.client(), &self.plan, "", &acl, false);
        let wanted = match self.plan.recipe {
            Recipe::ReadWrite => Wanted::Writing,
            Recipe::Semaphore { .. } => Wanted::Permits(1),
            Recipe::Mutex | Recipe::Multi { .. } => Wanted::Alone,
        };
        let patience = Patience::For(Duration::from_secs(60));
        if !(0..3).any(|_| matches!(locks.take(&wanted, patience), Ok(Some(_)))) {
            self.accuse("the sequence numbers stay used up".to_owned());
        }
    }

    fn is_poor(&self) -> bool {
        self.plan.has(|fault| matches!(fault, PlannedFault::Poverty { .. }))
    }
}
