//! Checks locks whose contenders have patience, by rules of its own: that one holds at a time, or readers only; that
//! nobody is passed by more later ones than its patience; that nobody contends past an earlier one whose place is before
//! its own; that tokens grow; and that everybody gets the lock in the end.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::Client;
use crate::DistributedLock;
use crate::DistributedRwLock;
use crate::FencingToken;
use crate::Hold;
use crate::rt::schedule::{Schedule, current};
use crate::sim::harness::{Play, Role, Stage, Tally};

const LOCK: &str = "/locks/one";
const ROOM: &str = "/locks/_zklock_room_one";

thread_local! {
    /// The holds of this thread's play, and whether each is a reader's.
    static HOLDS: RefCell<Vec<(Rc<dyn AsHold>, bool)>> = const { RefCell::new(Vec::new()) };
    static LATEST: Cell<Option<FencingToken>> = const { Cell::new(None) };
    static SEEN: RefCell<Grants> = RefCell::default();
}

/// What the reference rule knows. Nodes go by the transactions that made them, calls by their data.
#[derive(Default)]
struct Grants {
    /// Of each contender for the lock that was ever in the room: that place.
    places: BTreeMap<i64, Place>,
    /// The calls that were granted the lock, as far as the ensemble knows.
    granted: BTreeSet<Vec<u8>>,
    /// How often each member of the room was passed by a later one.
    passed: BTreeMap<i64, u32>,
}

/// A place in the room, as its node's name tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    made: i64,
    number: i64,
    patience: i64,
    reads: bool,
    of: Vec<u8>,
}

/// Begins the data of a call that does not give up.
const INSISTS: &[u8] = b"insists";

trait AsHold {
    fn hold(&self) -> &Hold;
}

impl<T: std::ops::Deref<Target = Hold>> AsHold for T {
    fn hold(&self) -> &Hold {
        self
    }
}

struct Patient {
    shares: bool,
    workers: usize,
}

pub(super) fn perform(seed: u64, verbose: bool) -> Result<Tally, String> {
    std::mem::forget((HOLDS.take(), SEEN.take()));
    LATEST.set(None);
    super::perform(seed, verbose, |chance| {
        let workers: Vec<usize> = (0..1 + chance.below(3)).map(|_| 1 + chance.below(3)).collect();
        let all = workers.iter().sum();
        (workers, Arc::new(Patient { shares: chance.chance(40), workers: all }))
    })
}

impl Place {
    /// Whether it keeps the other one waiting, if both are in the room.
    fn is_before(&self, other: &Place) -> bool {
        let key = |one: &Place| (one.number + one.patience, one.number);
        key(self) < key(other) && !(self.reads && other.reads)
    }

    /// Whether both calls are of one process: that knows earlier who has left.
    fn is_of_same_process(&self, other: &Place) -> bool {
        let process = |one: &Place| one.of.split(|byte| *byte == b' ').nth(1).map(<[u8]>::to_vec);
        process(self) == process(other)
    }

    /// Whether its call neither gives up nor has had the lock, so that it does not leave the room.
    fn stays(&self, seen: &Grants) -> bool {
        self.of.starts_with(INSISTS) && !seen.granted.contains(&self.of)
    }

    fn is_kept_waiting_by(&self, later: &Place, seen: &Grants) -> bool {
        let is_beside = self.reads && later.reads || self.is_of_same_process(later);
        // Numbers begin anew when the room was empty.
        self.made < later.made && !is_beside && self.stays(seen)
    }

    fn read(made: i64, name: &str, data: &[u8]) -> Option<Place> {
        let of = first_line(data);
        let (front, number) = name.split_at(name.len().checked_sub(10)?);
        let rest = front.split_once("-patience-")?.1;
        let (patience, kind) = rest.split_once('-')?;
        let (number, patience) = (number.parse().ok()?, patience.parse().ok()?);
        Some(Place { made, number, patience, reads: kind.contains("READ"), of })
    }
}

impl Patient {
    fn acquire(&self, schedule: &Schedule, stage: &Stage, role: Role<'_>, round: usize) {
        let how = schedule.below(3);
        let insists = if how < 2 { "tries" } else { "insists" };
        // With facts below, so that it tells its patience.
        let data = format!("{insists} {} {} {round}\nv=1", role.process, role.number);
        let lock = DistributedLock::new(role.client, "/locks", "one").data(&*data);
        let shared = DistributedRwLock::new(role.client, "/locks", "one").data(&*data);
        let patience = [0, 1, 3, 100][schedule.below(4)];
        // Some contend as all others do.
        let (lock, shared) = match schedule.chance(90) {
            true => {
                let asks = schedule.chance(30);
                let lock = lock.patience(patience).ask_worse(asks);
                (lock, shared.patience(patience).ask_worse(asks))
            }
            false => (lock.data("other").hand_over(crate::HandOver::Off), shared.data("other")),
        };
        let reads = self.shares && schedule.chance(50);
        let limit = schedule.some(stage.habits.session_timeout * 2);
        let got: Option<Rc<dyn AsHold>> = match (how, self.shares, reads) {
            (0, false, _) => lock.try_lock().ok().flatten().map(hold),
            (1, false, _) => lock.try_lock_for(limit).ok().flatten().map(hold),
            (_, false, _) => lock.lock().ok().map(hold),
            (0, true, true) => shared.try_read().ok().flatten().map(hold),
            (1, true, true) => shared.try_read_for(limit).ok().flatten().map(hold),
            (_, true, true) => shared.read().ok().map(hold),
            (0, true, false) => shared.try_write().ok().flatten().map(hold),
            (1, true, false) => shared.try_write_for(limit).ok().flatten().map(hold),
            (_, true, false) => shared.write().ok().map(hold),
        };
        stage.count(got.is_some());
        let Some(got) = got else { return };
        if !self.shares && stage.is_held(got.hold()) {
            let token = got.hold().token();
            if LATEST.replace(Some(token)).is_some_and(|latest| latest >= token) {
                stage.accuse(format!("token {token} is not above {:?}", LATEST.get()));
            }
        }
        HOLDS.with_borrow_mut(|all| all.push((Rc::clone(&got), reads)));
        schedule.pause(schedule.some(stage.habits.session_timeout / 8));
        HOLDS.with_borrow_mut(|all| all.retain(|(one, _)| !Rc::ptr_eq(one, &got)));
    }

    /// One of them alone, or readers only.
    fn check_holders(&self, stage: &Stage) {
        let is_held = |one: &&(Rc<dyn AsHold>, bool)| stage.is_held(one.0.hold());
        let (held, readers) = HOLDS.with_borrow(|all| {
            let held: Vec<_> = all.iter().filter(is_held).map(|(_, reads)| *reads).collect();
            (held.len(), held.iter().filter(|reads| **reads).count())
        });
        if held > 1 && readers < held {
            stage.accuse(format!("{held} hold, of them {readers} readers"));
        }
    }

    fn check_order(&self, stage: &Stage, seen: &mut Grants) {
        let (room, lock) =
            stage.world.look(|world| (world.children_by_age(ROOM), world.children_by_age(LOCK)));
        let room =
            room.into_iter().filter_map(|(made, (name, data))| Place::read(made, &name, &data));
        let room: Vec<Place> = room.collect();
        let mut only_readers = true;
        for (at, (made, (name, data))) in lock.iter().enumerate() {
            if !seen.places.contains_key(made) {
                self.contends(stage, seen, &room, (*made, &first_line(data)));
            }
            // A request may stand there instead of the data now.
            let of =
                seen.places.get(made).map_or_else(|| first_line(data), |place| place.of.clone());
            let reads = name.contains("READ");
            let is_granted = at == 0 || only_readers && reads;
            only_readers &= reads;
            if is_granted && seen.granted.insert(of) {
                let Some(place) = seen.places.get(made) else { continue };
                let is_passed = |one: &&Place| one.is_kept_waiting_by(place, seen);
                let all_passed: Vec<&Place> = room.iter().filter(is_passed).collect();
                for one in all_passed {
                    let passed = seen.passed.entry(one.made).or_default();
                    *passed += 1;
                    if i64::from(*passed) > one.patience {
                        stage.accuse(format!("{one:?} was passed by {passed}, also {place:?}"));
                    }
                }
            }
        }
    }

    /// Somebody contends for the lock, with a node that was made then.
    fn contends(&self, stage: &Stage, seen: &mut Grants, room: &[Place], (made, of): (i64, &[u8])) {
        let own = room.iter().rfind(|place| place.of == *of && place.made < made);
        let Some(place) = own else { return };
        let is_before = |one: &&Place| one.is_kept_waiting_by(place, seen) && one.is_before(place);
        if let Some(before) = room.iter().find(is_before) {
            stage.accuse(format!("{place:?} contends past {before:?}"));
        }
        seen.places.insert(made, place.clone());
    }
}

fn first_line(data: &[u8]) -> Vec<u8> {
    data.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec()
}

fn hold<T: std::ops::Deref<Target = Hold> + 'static>(guard: T) -> Rc<dyn AsHold> {
    Rc::new(guard)
}

impl Play for Patient {
    fn act(&self, stage: &Stage, role: Role<'_>) {
        let Some(schedule) = current() else { return };
        for round in 0..1 + 8 / self.workers {
            schedule.pause(schedule.some(stage.habits.session_timeout / 4));
            self.acquire(&schedule, stage, role, round);
        }
    }

    fn look(&self, stage: &Stage) {
        self.check_holders(stage);
        SEEN.with_borrow_mut(|seen| self.check_order(stage, seen));
    }

    fn end(&self, stage: &Stage, client: &Client) {
        let lock = DistributedLock::new(client, "/locks", "one").patience(0);
        match lock.try_lock_for(Duration::from_secs(60)) {
            Ok(Some(_)) => {}
            other => stage.accuse(format!("the lock is not free at the end: {other:?}")),
        }
    }
}
