//! Checks that an item is taken once, that leased items are acknowledged in the end, and that no
//! other items appear.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Client;
use crate::DistributedQueue;
use crate::Error;
use crate::ErrorKind;
use crate::path;
use crate::rt::Mutex;
use crate::rt::schedule::{Schedule, current};
use crate::session::connection::NodeKind;
use crate::sim::harness::{Play, Role, Stage, Tally};
use crate::sim::world::Operation;

const NODE: &str = "/queues/one";
/// More transactions than all actors together send while one of them acknowledges an item.
const MOST_TIMES: u64 = 100;

struct Queueing {
    leased: bool,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// The number of the latest item.
    next: u32,
    /// Items that were certainly in the queue, and items that may have been.
    offered: BTreeSet<String>,
    perhaps: BTreeSet<String>,
    /// Items that were taken or acknowledged.
    done: BTreeSet<String>,
    /// How many items may have been taken or acknowledged without the caller knowing.
    unsure: usize,
    /// Items below which strangers have put nodes that cannot be deleted.
    littered: BTreeSet<String>,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    super::perform(seed, verbose, |chance| {
        let actors = (0..1 + chance.below(3)).map(|_| 1 + chance.below(3)).collect();
        let leased = chance.chance(50);
        (actors, Arc::new(Queueing { leased, books: Mutex::default() }))
    })
}

fn queue(client: &Client) -> DistributedQueue {
    DistributedQueue::new(client, "/queues", "one")
}

impl Queueing {
    fn offer(&self, stage: &Stage, queue: &DistributedQueue) {
        let mut books = self.books.lock();
        books.next += 1;
        let item = format!("item-{}", books.next);
        books.perhaps.insert(item.clone());
        drop(books);
        let offered = queue.offer(item.as_bytes());
        stage.count(offered.is_ok());
        match offered {
            Ok(_) => drop(self.books.lock().offered.insert(item)),
            Err(error) => known(stage, &error),
        }
    }

    /// Takes an item. `in_time` is whether every call so far got an item: one that comes too late
    /// goes to the next call, out of turn.
    fn take(
        &self,
        stage: &Stage,
        schedule: &Schedule,
        role: Role<'_>,
        queue: &DistributedQueue,
        in_time: &mut bool,
    ) {
        let (began, limit) = (schedule.time(), schedule.some(stage.habits.session_timeout));
        let before = items(stage);
        let taken = match schedule.below(3) {
            0 => queue.try_take(),
            _ => {
                let taken = queue.take_within(limit);
                stage.check_on_time(role.process, began, limit);
                taken
            }
        };
        stage.count(matches!(taken, Ok(Some(_))));
        let was_in_time = std::mem::replace(in_time, *in_time && matches!(taken, Ok(Some(_))));
        match taken {
            Ok(Some(data)) => {
                if was_in_time {
                    check_turn(stage, &before, &data);
                }
                self.note(stage, &data);
            }
            // An item that comes too late goes to the next call on this queue value, if any.
            Ok(None) => self.books.lock().unsure += 1,
            Err(error) => {
                self.books.lock().unsure += 1;
                known(stage, &error);
            }
        }
    }

    fn note(&self, stage: &Stage, data: &[u8]) {
        let (item, mut books) = (String::from_utf8_lossy(data).into_owned(), self.books.lock());
        if !books.perhaps.contains(&item) {
            stage.accuse(format!("{item:?} was never offered"));
        }
        if !books.done.insert(item.clone()) && !self.leased {
            stage.accuse(format!("{item:?} was taken twice"));
        }
    }

    fn lease(&self, stage: &Stage, schedule: &Schedule, role: Role<'_>, queue: &DistributedQueue) {
        let (began, limit) = (schedule.time(), schedule.some(stage.habits.session_timeout));
        let before = items(stage);
        let leased = match schedule.below(3) {
            0 => queue.try_lease(),
            _ => {
                let leased = queue.lease_within(limit);
                stage.check_on_time(role.process, began, limit);
                leased
            }
        };
        stage.count(matches!(leased, Ok(Some(_))));
        let item = match leased {
            Ok(Some(item)) => item,
            Ok(None) => return,
            Err(error) => return known(stage, &error),
        };
        check_turn(stage, &before, item.data());
        schedule.pause(schedule.some(stage.habits.session_timeout / 2));
        if schedule.chance(30) {
            return drop(item);
        }
        let (data, path) = (item.data().to_owned(), item.item_path().to_owned());
        // Another item may get this path after the queue's node was removed.
        let made = || stage.world.look(|world| world.making(&path).map(|(made, _)| made));
        let before = made();
        // A stranger contends for the item with a node that cannot be deleted.
        let stranger = schedule.chance(10).then(|| {
            let prefix = path::join(&path, "x-99-");
            self.books.lock().littered.insert(path.clone());
            stage.world.act(|world| world.litter(&prefix, NodeKind::PersistentSequential, true))
        });
        let transactions = || stage.world.look(|world| world.asked(Operation::Transact));
        let asked = transactions();
        let acked = item.ack();
        if transactions() - asked > MOST_TIMES {
            stage.accuse(format!("acknowledging {path} was tried again and again"));
        }
        stage.world.act(|world| {
            stranger.into_iter().flatten().for_each(|path| {
                world.delete(&path);
            });
        });
        match acked {
            Ok(()) => {
                self.note(stage, &data);
                if made() == before && stage.world.look(|world| world.contains(&path)) {
                    stage.accuse(format!("{path} was acknowledged, but exists"));
                }
            }
            Err(error) => {
                let mut books = self.books.lock();
                books.unsure += 1;
                let kinds = [ErrorKind::Lost, ErrorKind::SessionLost];
                // A stranger's node below it is in the way; it may have come while another, who
                // has lost its lease since, acknowledged the same item.
                let littered = stage.littered || books.littered.contains(&path);
                let in_the_way = error.kind() == ErrorKind::Server && littered;
                if !kinds.contains(&error.kind()) && !in_the_way {
                    stage.accuse(format!("acknowledging: {error}"));
                }
            }
        }
    }
}

/// Returns the items' names and data by the transactions that created them: sequence numbers begin
/// anew after the queue's node was removed.
fn items(stage: &Stage) -> BTreeMap<i64, (String, Vec<u8>)> {
    let mut items = stage.world.look(|world| world.children_by_age(NODE));
    items.retain(|_, (name, _)| name.starts_with("qn-"));
    items
}

/// Checks that no younger item was given than one that was there before and after the call and was
/// never leased.
fn check_turn(stage: &Stage, before: &BTreeMap<i64, (String, Vec<u8>)>, given: &[u8]) {
    let after = items(stage);
    // The item may have been taken too late by an earlier call, and so be missing from `before`.
    let made = stage.world.look(|world| world.made_with(given));
    let older = before.range(..made.unwrap_or(i64::MAX));
    let mut there = older.filter(|(made, _)| after.contains_key(made));
    let is_free = |made: i64, name: &str| {
        !stage.world.look(|world| world.had_children_since(&path::join(NODE, name), made))
    };
    if let Some((_, (name, data))) = there.find(|(made, (name, _))| is_free(**made, name)) {
        let [given, data] = [given, data].map(String::from_utf8_lossy);
        stage.accuse(format!("{given} was given, but {data} ({name}) was ahead of it"));
    }
}

fn known(stage: &Stage, error: &Error) {
    use ErrorKind::{Connect, ConnectionLoss, SessionLost};
    if !matches!(error.kind(), ConnectionLoss | Connect | SessionLost) {
        stage.accuse(format!("unexpected error: {error}"));
    }
}

impl Play for Queueing {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        let queue = queue(role.client);
        let mut in_time = true;
        for _ in 0..8 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 8));
            match (schedule.chance(50), self.leased) {
                (true, _) => self.offer(stage, &queue),
                (false, false) => self.take(stage, &schedule, role, &queue, &mut in_time),
                (false, true) => self.lease(stage, &schedule, role, &queue),
            }
        }
    }

    /// Checks that all items that are left can be taken, in order.
    fn end(&self, stage: &Stage, client: &Client) {
        let queue = queue(client);
        let names = stage.world.look(|world| world.children(NODE));
        let (ages, mut latest) = (items(stage), 0);
        let mut left = 0;
        stage.eventually("the rest of the items", || {
            loop {
                match queue.try_take() {
                    Ok(Some(data)) => {
                        self.note(stage, &data);
                        let age = ages.iter().find(|(_, (_, said))| *said == data);
                        let made = age.map_or(i64::MAX, |(made, _)| *made);
                        if std::mem::replace(&mut latest, made) >= made {
                            stage.accuse(format!("{:?} came late", String::from_utf8_lossy(&data)));
                        }
                    }
                    Ok(None) => return true,
                    Err(error) if error.kind() == ErrorKind::Connect => return false,
                    Err(error) => {
                        known(stage, &error);
                        self.books.lock().unsure += 1;
                    }
                }
                left += 1;
                if left > names.len() {
                    stage.accuse(format!("more items came than there are: {names:?}"));
                    return true;
                }
            }
        });
        let books = self.books.lock();
        let missing: Vec<_> = books.offered.difference(&books.done).collect();
        if left != names.len() || missing.len() > books.unsure {
            let unsure = books.unsure;
            stage.accuse(format!("{left} of {names:?}; {missing:?} are missing, {unsure} unsure"));
        }
    }
}
