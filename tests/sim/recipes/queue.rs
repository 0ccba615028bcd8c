//! Checks that an item is taken once, that leased items are acknowledged in the end, and that no
//! other items appear.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::rt::Mutex;
use crate::rt::schedule::{Schedule, current};
use crate::session::NodeKind;
use crate::sim::harness::{Play, Role, Stage, Tally};
use crate::sim::world::Operation;
use crate::{Client, DistributedQueue, Error, ErrorKind, SessionId, path};

const NODE: &str = "/queues/one";
/// More transactions than all actors together send while one of them acknowledges an item.
const MOST_TIMES: u64 = 100;

struct Queueing {
    leased: bool,
    /// Whether one actor takes all items, so that none may be overtaken.
    has_one_consumer: bool,
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
        let (leased, has_one_consumer) = (chance.chance(50), chance.chance(40));
        (actors, Arc::new(Queueing { leased, has_one_consumer, books: Mutex::default() }))
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

    /// Takes an item. `in_time` is whether no call so far was too late for an item: then that goes to
    /// the next call, out of turn.
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
        match taken {
            Ok(Some(data)) => {
                if *in_time && self.is_in_order(stage) {
                    check_turn(stage, &before, &data);
                }
                self.note(stage, &data);
            }
            Ok(None) => {}
            Err(error) => {
                if error.may_have_taken_effect() {
                    *in_time = false;
                    self.books.lock().unsure += 1;
                }
                known(stage, &error);
            }
        }
    }

    /// Whether nobody competes for the items. A stranger's node below an item counts as another
    /// consumer's.
    fn is_in_order(&self, stage: &Stage) -> bool {
        self.has_one_consumer && !stage.littered && self.books.lock().littered.is_empty()
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

    /// Leases an item. `session` is the client's first session.
    fn lease(
        &self,
        stage: &Stage,
        schedule: &Schedule,
        role: Role<'_>,
        queue: &DistributedQueue,
        session: &mut Option<SessionId>,
    ) {
        let (began, limit) = (schedule.time(), schedule.some(stage.habits.session_timeout));
        let before = items(stage);
        *session = (*session).or(role.client.session_id());
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
        // So does what an earlier session of the same client has leased.
        if self.is_in_order(stage) && *session == role.client.session_id() {
            check_turn(stage, &before, item.data());
        }
        schedule.pause(schedule.some(stage.habits.session_timeout / 2));
        if schedule.chance(30) {
            return drop(item);
        }
        let (data, path) = (item.data().to_owned(), item.item_path().to_owned());
        // Another item may get this path after the queue's node was removed.
        let made = || stage.world.look(|world| world.made_last(&path).map(|(made, _)| made));
        let before = made();
        // A stranger contends for the item with a node that cannot be deleted, nor be littered itself.
        let stranger = schedule.chance(10).then(|| {
            let prefix = path::join(&path, "x-litter-99-");
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
                let kinds = [ErrorKind::NodeDeleted, ErrorKind::SessionLost];
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
        let (mut in_time, mut session) = (true, None);
        for _ in 0..8 {
            schedule.pause(schedule.some(stage.habits.session_timeout / 8));
            let may_consume = role.number == 0 || !self.has_one_consumer;
            match (may_consume && schedule.chance(50), self.leased) {
                (false, _) => self.offer(stage, &queue),
                (true, false) => self.take(stage, &schedule, role, &queue, &mut in_time),
                (true, true) => self.lease(stage, &schedule, role, &queue, &mut session),
            }
        }
        match queue.late_items() {
            Ok(late) => late.iter().for_each(|data| self.note(stage, data)),
            Err(error) => stage.accuse(format!("late items: {error}")),
        }
    }

    /// Checks that all items that are left can be taken, in order.
    fn end(&self, stage: &Stage, client: &Client) {
        let queue = queue(client);
        let names = stage.world.look(|world| world.children(NODE));
        let (ages, mut latest) = (items(stage), 0);
        // An item whose deletion was in doubt may come late, and so out of turn, or not at all.
        let (mut left, mut in_doubt) = (0, 0);
        stage.eventually("the rest of the items", || {
            loop {
                match queue.try_take() {
                    Ok(Some(data)) => {
                        self.note(stage, &data);
                        let age = ages.iter().find(|(_, (_, said))| *said == data);
                        let made = age.map_or(i64::MAX, |(made, _)| *made);
                        left += 1;
                        if std::mem::replace(&mut latest, made) >= made && in_doubt == 0 {
                            stage.accuse(format!("{:?} came late", String::from_utf8_lossy(&data)));
                        }
                    }
                    Ok(None) => return true,
                    Err(error) if error.kind() == ErrorKind::Connect => return false,
                    Err(error) => {
                        known(stage, &error);
                        in_doubt += 1;
                        self.books.lock().unsure += 1;
                    }
                }
                if left > names.len() {
                    stage.accuse(format!("more items came than there are: {names:?}"));
                    return true;
                }
            }
        });
        let books = self.books.lock();
        let missing: Vec<_> = books.offered.difference(&books.done).collect();
        if left + in_doubt < names.len() || missing.len() > books.unsure {
            let unsure = books.unsure;
            stage.accuse(format!("{left} of {names:?}; {missing:?} are missing, {unsure} unsure"));
        }
    }
}
