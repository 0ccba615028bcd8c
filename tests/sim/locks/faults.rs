//! The faults that a trial injects.

use std::sync::Arc;
use std::time::Duration;

use super::any_lock::NODE;
use super::reference_rule::Mark;
use super::{DROP_LIMIT, Trial};
use crate::acl::Permissions;
use crate::rt::schedule::{Schedule, current};
use crate::session::NodeKind;
use crate::sim::plan::{Plan, PlannedFault, Recipe};
use crate::{Client, path};

impl Trial {
    pub(super) fn harm(self: &Arc<Self>, fault: &PlannedFault, clients: &[Client]) {
        let Some(schedule) = current() else { return };
        let now = schedule.time();
        if schedule.verbose {
            schedule.say(&format!("{fault:?}"));
        }
        self.state.lock().tally.faults += 1;
        match fault {
            PlannedFault::Cut { process, notice, mend } => {
                self.world.act(|world| world.cut_all(*process, *notice, *mend));
            }
            PlannedFault::Trap { process, trap } => {
                self.world.act(|world| world.set_trap(*process, *trap));
            }
            PlannedFault::Stop { process, lasts } => {
                self.world.act(|world| world.stop(*process, now + *lasts));
            }
            PlannedFault::Down { notice, lasts } => {
                self.world.act(|world| world.go_down(*notice, now + *lasts));
            }
            PlannedFault::Stall { server, lasts } => {
                self.world.act(|world| world.stall(*server, now + *lasts));
            }
            PlannedFault::Delete { first } => self.delete_one(&schedule, *first),
            PlannedFault::DeleteLockNode => {
                self.world.act(|world| world.delete(NODE));
            }
            PlannedFault::Murder { process } => self.world.act(|world| world.murder(*process)),
            PlannedFault::Close { process } => {
                let (trial, client, process) =
                    (Arc::clone(self), clients[*process].clone(), *process);
                let close = move || {
                    client.close();
                    trial.state.lock().closed.push(process);
                    if let Some(schedule) = current() {
                        trial.check_on_time(&schedule, process, now, DROP_LIMIT * 2);
                    }
                };
                let _ = schedule.within(process, || schedule.start("closer", close));
            }
            PlannedFault::Peer { lasts } => {
                let prefix = self.peer_prefix(&schedule);
                let made = self.world.act(|world| world.contend(&prefix));
                self.take_away(&schedule, made.into_iter().collect(), *lasts);
            }
            PlannedFault::Litter { contends, deep, lasts } => {
                let (path, kind) = match contends {
                    true => (self.peer_prefix(&schedule), NodeKind::PersistentSequential),
                    false => (path::join(self.node(&schedule), "litter"), NodeKind::Persistent),
                };
                let made = self.world.act(|world| world.litter(&path, kind, *deep));
                self.take_away(&schedule, made, *lasts);
            }
            PlannedFault::Registration { number, lasts } => {
                let path = path::join(self.node(&schedule), &format!("worker-{number:010}"));
                let made = self.world.act(|world| world.register(&path));
                self.take_away(&schedule, made.into_iter().collect(), *lasts);
            }
            PlannedFault::Poverty { percent, lasts } => self.be_poor(&schedule, *percent, *lasts),
            PlannedFault::Forbid { left, lasts } => {
                if self.world.look(|world| world.contains(NODE)) {
                    self.world.act(|world| world.set_acl(NODE, &Plan::acl(*left)));
                    let world = Arc::clone(&self.world);
                    let all = Plan::acl(Some(Permissions::ALL));
                    schedule.after(*lasts, move || world.act(|world| world.set_acl(NODE, &all)));
                }
            }
        }
    }

    /// Draws one of the lock nodes.
    fn node(&self, schedule: &Schedule) -> &str {
        &self.nodes[schedule.below(self.nodes.len())]
    }

    /// Draws the start of a contender's path as another kind of client writes it.
    fn peer_prefix(&self, schedule: &Schedule) -> String {
        let permits = match self.plan.recipe {
            Recipe::Semaphore { permits, .. } => permits,
            _ => 1,
        };
        let lease = format!("a-lease-1-of-{permits}-");
        let names = match self.plan.recipe {
            Recipe::ReadWrite => ["a1b2__rlock__", "a1b2__lock__", "_c_b2-__READ__"],
            Recipe::Semaphore { .. } => [&*lease, &*lease, "a1b2__lock__"],
            _ => ["worker-", "x-99-", "_c_00000000-0000-0000-0000-000000000000-lock-"],
        };
        path::join(self.node(schedule), names[schedule.below(names.len())])
    }

    /// Deletes nodes, in this order, after a time.
    fn take_away(&self, schedule: &Schedule, made: Vec<String>, lasts: Duration) {
        let world = Arc::clone(&self.world);
        schedule.after(lasts, move || {
            for path in made {
                world.act(|world| world.delete(&path));
            }
        });
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
        let node = self.node(schedule);
        let children = self.world.look(|world| world.children(node));
        let marks = Mark::all(&children);
        let chosen = if first { 0 } else { schedule.below(marks.len()) };
        let Some(mark) = marks.get(chosen) else { return };
        let path = path::join(node, &mark.name);
        self.state.lock().deleted.insert(path.clone(), schedule.time());
        self.world.act(|world| world.delete(&path));
    }
}
