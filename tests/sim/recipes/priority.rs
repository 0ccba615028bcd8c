//! Checks that items with the lowest number come first, the oldest of them ahead, and that each is
//! taken once.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::Client;
use crate::ErrorKind;
use crate::PriorityQueue;
use crate::path;
use crate::rt::Mutex;
use crate::rt::schedule::{Process, current};
use crate::sim::harness::{Play, Role, Stage, Tally};

const NODE: &str = "/queues/urgent";

#[derive(Default)]
struct Urging {
    next: Mutex<u32>,
    taken: Mutex<BTreeSet<String>>,
    /// Processes in which a call may have taken an item after its time limit.
    late: Mutex<BTreeSet<Process>>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(2)).collect();
        (actors, Arc::new(Urging::default()))
    })
}

/// An item's priority, the transaction that made it, and its name.
type Item = (u32, i64, String);

/// Returns the items in the queue. Their names alone do not identify them: numbers are used again
/// after the queue's node was removed.
fn items(stage: &Stage) -> BTreeSet<Item> {
    let children = stage.world.look(|world| world.children_by_age(NODE));
    let of = |(made, (name, data)): (i64, (String, Vec<u8>))| Some((priority(&data)?, made, name));
    children.into_iter().filter_map(of).collect()
}

/// Returns whether the item never had a child: takers skip an item that has one.
fn was_free(stage: &Stage, (_, made, name): &Item) -> bool {
    !stage.world.look(|world| world.had_children_since(&path::join(NODE, name), *made))
}

fn priority(data: &[u8]) -> Option<u32> {
    std::str::from_utf8(data).ok()?.split_once('/')?.0.parse().ok()
}

impl Play for Urging {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        let queue = PriorityQueue::new(role.client, "/queues", "urgent");
        for _ in 0..8 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 8));
            if schedule.chance(60) {
                *self.next.lock() += 1;
                let (priority, number) = (schedule.below(3) as u32, *self.next.lock());
                let offered = queue.offer(priority, format!("{priority}/{number}"));
                stage.count(offered.is_ok());
                continue;
            }
            let before = items(stage);
            let limit = schedule.some(stage.habits.session_timeout / 2);
            let taken = queue.take_within(limit);
            stage.count(matches!(taken, Ok(Some(_))));
            let after = items(stage);
            match taken {
                Ok(Some(data)) => {
                    let text = String::from_utf8_lossy(&data).into_owned();
                    // More urgent items that were there throughout the call had to come first. But
                    // a call may return an item that an earlier call of its client took too late.
                    let in_time = !self.late.lock().contains(&role.process);
                    let taken = priority(&data).filter(|_| in_time);
                    let urgent = taken.and_then(|taken| {
                        let mut more_urgent =
                            before.intersection(&after).filter(|(other, ..)| *other < taken);
                        more_urgent.find(|item| was_free(stage, item))
                    });
                    if let Some(other) = urgent {
                        stage.accuse(format!("{text} was taken instead of {other:?}"));
                    }
                    if !self.taken.lock().insert(text.clone()) {
                        stage.accuse(format!("{text} was taken twice"));
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    if error.may_have_taken_effect() {
                        self.late.lock().insert(role.process);
                    }
                    use ErrorKind::{Connect, ConnectionLoss, SessionLost};
                    if !matches!(error.kind(), ConnectionLoss | Connect | SessionLost) {
                        stage.accuse(format!("unexpected error: {error}"));
                    }
                }
            }
        }
    }

    fn end(&self, stage: &Stage, client: &Client) {
        let queue = PriorityQueue::new(client, "/queues", "urgent");
        let there = items(stage);
        let (mut order, mut unsure) = (Vec::new(), 0);
        stage.eventually("the rest of the items", || {
            loop {
                match queue.try_take() {
                    Ok(Some(data)) => order.extend(priority(&data)),
                    Ok(None) => return true,
                    Err(error) if error.kind() == ErrorKind::Connect => return false,
                    Err(_) => unsure += 1,
                }
            }
        });
        // An item whose deletion was in doubt may come late, and so out of turn.
        let is_out_of_turn = unsure == 0 && !order.is_sorted();
        if order.len() + unsure < there.len() || is_out_of_turn {
            stage.accuse(format!("{there:?} came in this order of priorities: {order:?}"));
        }
    }
}
