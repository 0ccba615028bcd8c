//! One run of any recipe from one seed: programs use it while faults occur. The play checks its
//! recipe's promises; the harness checks that everything ends and nothing is left.

use std::sync::Arc;
use std::time::Duration;

use super::connection::SimulatedEnsemble;
use super::plan::{Plan, PlannedFault};
use super::world::{Habits, World};
use crate::rt::Mutex;
use crate::rt::schedule::{Process, Schedule, Stuck, current};
use crate::session::NodeKind;
use crate::{Client, Hold, path};

/// How long a request that is under way may last beyond a deadline.
const GRACE: Duration = Duration::from_millis(50);
/// The names of nodes that strangers leave: one without a meaning, and one of a contender.
const LITTER: [&str; 2] = ["litter", "_c_-lock-"];
/// More steps than any play needs.
const MOST_STEPS: u64 = 600_000;

/// A recipe and the actors that use it.
pub(super) trait Play: Send + Sync + 'static {
    /// Makes a client for the running process.
    fn client(&self, stage: &Stage) -> Client {
        stage.client()
    }

    /// Runs one actor.
    fn act(&self, stage: &Stage, role: Role<'_>);

    /// Checks what must hold after each step.
    fn look(&self, _stage: &Stage) {}

    /// Checks what must hold at the end, when all faults are over and all actors have finished.
    fn end(&self, _stage: &Stage, _client: &Client) {}
}

/// One actor.
#[derive(Clone, Copy)]
pub(super) struct Role<'a> {
    pub(super) process: Process,
    /// The actor's number among all actors.
    pub(super) number: usize,
    pub(super) client: &'a Client,
}

/// Counts of what happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) deeds: u64,
    pub(super) failures: u64,
    pub(super) faults: u64,
    /// How many requests were carried out after newer ones of their sessions.
    pub(super) late: u64,
}

pub(super) struct Stage {
    pub(super) world: Arc<World>,
    pub(super) habits: Habits,
    /// How many times as long as others the play may last.
    times: u32,
    /// When the last fault is over.
    pub(super) calm: Duration,
    /// Whether strangers create nodes below others, which then cannot be deleted.
    pub(super) littered: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    busy: usize,
    over: bool,
    violation: Option<String>,
    tally: Tally,
}

/// Performs a play; `cast` draws the number of actors of each process, and the play.
pub(super) fn perform(
    seed: u64,
    verbose: bool,
    cast: impl FnOnce(&Schedule) -> (Vec<usize>, Arc<dyn Play>),
) -> Result<Tally, String> {
    perform_with(seed, verbose, Some(Faults::Planned), cast)
}

/// Performs a play in which requests of connections that were given up are carried out late, after newer
/// ones. It has no other faults than those that the play makes itself.
pub(super) fn perform_with_late_requests(
    seed: u64,
    actors: Vec<usize>,
    play: Arc<dyn Play>,
) -> Result<Tally, String> {
    perform_with(seed, false, Some(Faults::LateRequests), |_| (actors, play))
}

/// The same, of a play that lasts for hours.
pub(super) fn perform_for_hours_with_late_requests(
    seed: u64,
    actors: Vec<usize>,
    play: Arc<dyn Play>,
) -> Result<Tally, String> {
    perform_with(seed, false, Some(Faults::LateRequestsForHours), |_| (actors, play))
}

/// Performs a play without any faults.
pub(super) fn perform_in_peace(
    seed: u64,
    actors: Vec<usize>,
    play: Arc<dyn Play>,
) -> Result<Tally, String> {
    perform_with(seed, false, None, |_| (actors, play))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    Planned,
    LateRequests,
    LateRequestsForHours,
}

fn perform_with(
    seed: u64,
    verbose: bool,
    with: Option<Faults>,
    cast: impl FnOnce(&Schedule) -> (Vec<usize>, Arc<dyn Play>),
) -> Result<Tally, String> {
    let (schedule, running) = Schedule::begin(seed, verbose);
    let plan = Plan::draw(&schedule);
    let (actors, play) = cast(&schedule);
    let mut faults = if with == Some(Faults::Planned) { plan.faults } else { Vec::new() };
    faults.retain_mut(|(_, fault)| suits(fault, actors.len()));
    if verbose {
        schedule.say(&format!("{:#?} {faults:#?}", plan.habits));
    }
    schedule.set_lag(plan.lag);
    let lasts_hours = with == Some(Faults::LateRequestsForHours);
    let is_late = lasts_hours || with == Some(Faults::LateRequests);
    let late = is_late.then_some(plan.habits.session_timeout * 3);
    let habits = Habits { reminds: false, late, ..plan.habits };
    let stage = Arc::new(Stage {
        world: World::new(habits),
        habits,
        times: if lasts_hours { 40 } else { 1 },
        calm: plan.calm,
        littered: faults.iter().any(|(_, fault)| matches!(fault, PlannedFault::Litter { .. })),
        state: Mutex::default(),
    });
    let mut clients = Vec::new();
    let mut number = 0;
    for (process, count) in actors.iter().enumerate() {
        let client = schedule.within(process, || play.client(&stage));
        for _ in 0..*count {
            stage.state.lock().busy += 1;
            let (stage, play, client) = (Arc::clone(&stage), Arc::clone(&play), client.clone());
            let act = move || {
                play.act(&stage, Role { process, number, client: &client });
                drop(client);
                stage.state.lock().busy -= 1;
            };
            let title = format!("actor-{process}-{number}");
            let _ = schedule.within(process, || schedule.start(&title, act));
            number += 1;
        }
        clients.push(client);
    }
    for (time, fault) in faults {
        let stage = Arc::clone(&stage);
        schedule.at(time, move || stage.harm(&fault));
    }
    let (ending, playing) = (Arc::clone(&stage), Arc::clone(&play));
    let end = move || ending.finish(&*playing, clients);
    let _ = schedule.within(usize::MAX, || schedule.start("end", end));
    let result = stage.run(&schedule, &*play);
    let late = stage.world.look(|world| world.carried_out_late());
    let tally = Tally { late, ..stage.state.lock().tally };
    if let Err(violation) = result {
        // Tasks that are in the middle of something must not go on.
        std::mem::forget((stage, play));
        drop(running);
        return Err(violation);
    }
    drop(running);
    Ok(tally)
}

/// Returns whether a fault also applies without locks, and maps it to an existing process.
fn suits(fault: &mut PlannedFault, processes: usize) -> bool {
    match fault {
        PlannedFault::Cut { process, .. }
        | PlannedFault::Trap { process, .. }
        | PlannedFault::Stop { process, .. }
        | PlannedFault::Murder { process } => {
            *process %= processes;
            true
        }
        PlannedFault::Down { .. } | PlannedFault::Stall { .. } | PlannedFault::Litter { .. } => {
            true
        }
        _ => false,
    }
}

impl Stage {
    pub(super) fn client(&self) -> Client {
        let servers = Box::new(SimulatedEnsemble(Arc::clone(&self.world)));
        Client::with(servers, "simulated".to_owned(), String::new())
    }

    /// Reports a violation, which ends the run.
    pub(super) fn accuse(&self, violation: String) {
        self.state.lock().violation.get_or_insert(violation);
    }

    /// Whether it is held. One whose session was ended from outside does not count, as it cannot know.
    pub(super) fn is_held(&self, hold: &Hold) -> bool {
        hold.seems_held() && self.world.look(|world| world.contains(hold.path()))
    }

    /// Counts a success or a failure.
    pub(super) fn count(&self, done: bool) {
        let tally = &mut self.state.lock().tally;
        *if done { &mut tally.deeds } else { &mut tally.failures } += 1;
    }

    /// Waits until the condition holds, as it soon must: only late traps can still cause faults.
    pub(super) fn eventually(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let Some(schedule) = current() else { return };
        for _ in 0..40 {
            if condition() {
                return;
            }
            schedule.pause(self.habits.session_timeout / 4);
        }
        self.accuse(format!("waited in vain for {what}"));
    }

    /// Checks that a call that began then has ended in time, unless its process was stopped.
    pub(super) fn check_on_time(&self, process: Process, began: Duration, limit: Duration) {
        let Some(schedule) = current() else { return };
        let resumed = self.world.look(|world| world.resumed_at(process));
        let due = (began + limit.max(GRACE)).max(resumed) + GRACE + self.habits.hesitation * 4;
        if schedule.time() > due + Duration::from_millis(20) {
            let now = schedule.time();
            self.accuse(format!(
                "process {process}: limit {limit:?} from {began:?} on, but it is {now:?}"
            ));
        }
    }

    fn harm(&self, fault: &PlannedFault) {
        let Some(schedule) = current() else { return };
        let now = schedule.time();
        if schedule.verbose {
            schedule.say(&format!("{fault:?}"));
        }
        self.state.lock().tally.faults += 1;
        if let PlannedFault::Litter { contends, deep, lasts } = fault {
            return self.litter(&schedule, *contends, *deep, *lasts);
        }
        self.world.act(|world| match fault {
            PlannedFault::Cut { process, notice, mend } => world.cut_all(*process, *notice, *mend),
            PlannedFault::Trap { process, trap } => world.set_trap(*process, *trap),
            PlannedFault::Stop { process, lasts } => world.stop(*process, now + *lasts),
            PlannedFault::Down { notice, lasts } => world.go_down(*notice, now + *lasts),
            PlannedFault::Stall { server, lasts } => world.stall(*server, now + *lasts),
            PlannedFault::Murder { process } => world.murder(*process),
            _ => {}
        });
    }

    /// Has a stranger create a node below any node that can have children.
    fn litter(&self, schedule: &Schedule, contends: bool, deep: bool, lasts: Duration) {
        let mut parents = self.world.look(|world| world.possible_parents());
        parents.retain(|path| !LITTER.iter().any(|name| path.contains(name)));
        let Some(parent) = parents.get(schedule.below(parents.len())) else { return };
        let kind = if contends { NodeKind::PersistentSequential } else { NodeKind::Persistent };
        let path = path::join(parent, LITTER[usize::from(contends)]);
        let made = self.world.act(|world| world.litter(&path, kind, deep));
        let world = Arc::clone(&self.world);
        schedule.after(lasts, move || {
            for path in made {
                world.act(|world| world.delete(&path));
            }
        });
    }

    fn run(&self, schedule: &Schedule, play: &dyn Play) -> Result<(), String> {
        let patience = self.calm + self.habits.session_timeout * 400 * self.times;
        let most_steps = MOST_STEPS * u64::from(self.times);
        for step in 1.. {
            match schedule.step() {
                Ok(()) => {}
                Err(Stuck::Panicked { task, why }) => {
                    return Err(format!("{task} panicked: {why}"));
                }
                Err(Stuck::Quiet) => break,
            }
            play.look(self);
            let mut state = self.state.lock();
            state.tally.steps = step;
            if let Some(violation) = state.violation.take() {
                return Err(violation);
            }
            if step > most_steps || (schedule.time() > patience && !state.over) {
                let (time, names) = (schedule.time(), schedule.names());
                return Err(format!("not done after {step} steps and {time:.1?}: {names:?}"));
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

    fn finish(&self, play: &dyn Play, clients: Vec<Client>) {
        let Some(schedule) = current() else { return };
        while self.state.lock().busy > 0 {
            schedule.pause(Duration::from_millis(50));
        }
        let late_until = self.world.look(|world| world.late_until());
        let settled = schedule.time().max(self.calm) + self.habits.session_timeout * 4;
        // By then a node that was made so late has been found and deleted.
        let settled = settled.max(late_until + self.habits.session_timeout * 3);
        schedule.pause(settled - schedule.time());
        let client = self.client();
        play.end(self, &client);
        drop(client);
        schedule.pause(self.habits.session_timeout * 2);
        let left = self.world.look(|world| world.ephemerals());
        if !left.is_empty() {
            self.accuse(format!("nodes left after all actors finished: {left:?}"));
        }
        for client in &clients {
            let stats = client.stats();
            if (stats.watches, stats.pending_deletes) != (0, 0) {
                self.accuse(format!("a client is still busy: {stats:?}"));
            }
        }
        for (process, client) in clients.into_iter().enumerate() {
            schedule.within(process, || drop(client));
        }
        self.state.lock().over = true;
    }
}
