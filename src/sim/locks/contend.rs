//! Those who contend: how they ask, and what they do with what they get.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::DROP_LIMIT;
use super::GRACE;
use super::HELD;
use super::Held;
use super::Trial;
use super::any_lock::{Guard, Locks, Patience, Wanted};
use super::reference_rule::{ContenderKind, Mark};
use crate::Cancel;
use crate::Error;
use crate::ErrorKind;
use crate::WriteGuard;
use crate::contend::loss_reason::LossReason;
use crate::path;
use crate::rt;
use crate::rt::schedule::{Process, Schedule, current};
use crate::sim::plan::{PlannedFault, Recipe};

/// What a holder was told by callbacks.
#[derive(Clone, Default)]
struct Told {
    losses: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    /// The guard was released.
    over: Arc<AtomicBool>,
}

impl Trial {
    pub(super) fn contend(
        self: &Arc<Self>,
        process: Process,
        name: &str,
        locks: &Locks,
        spare: &Locks,
    ) {
        if let Some(schedule) = current() {
            let mut all_granted = true;
            for _ in 0..self.plan.rounds {
                schedule.pause(schedule.some(self.plan.hold));
                let before = self.world.look(|world| world.transactions());
                match self.acquire(&schedule, process, locks) {
                    Some(guard) => {
                        // Where a place is shared, it is another's first.
                        if all_granted && self.plan.sharing.is_none() {
                            self.check_places(&guard, before, name.as_bytes());
                        }
                        self.check_grant(&guard);
                        self.hold(&schedule, process, spare, guard, None);
                    }
                    // It may have left something that takes effect later.
                    None => all_granted = false,
                }
            }
        }
        self.state.lock().busy -= 1;
    }

    /// Nobody gives up a place that he has: the first that a call has made is the one granted.
    fn check_places(&self, guard: &Guard, before: usize, name: &[u8]) {
        let state = self.state.lock();
        // Who has lost one of several, or its session, begins anew.
        let of_session = |session| {
            self.world.look(|world| {
                let mut made = world.made_since(before);
                made.all(|(_, owner, said)| said != name || owner == session)
            })
        };
        if let Guard::Several(_) = guard {
            let paths = guard.paths();
            let session = self.world.look(|world| world.owner(paths.first()?));
            if !state.deleted.is_empty() || !session.is_some_and(of_session) {
                return;
            }
        }
        // Without a look at a node's stat, it cannot be adopted.
        if self.plan.hidden && self.plan.habits.hides_stat {
            return;
        }
        let given_up = |path: &String| {
            self.world.look(|world| {
                let session = world.owner(path)?;
                let mut made = world.made_since(before);
                let mine = |made: &(&str, i64, &[u8])| {
                    made.1 == session
                        && made.2 == name
                        && path::parent(made.0) == path::parent(path)
                };
                let (first, ..) =
                    made.find(|made| mine(made) && !state.deleted.contains_key(made.0))?;
                (first != path && !world.is_murdered(session)).then(|| first.to_owned())
            })
        };
        let lost = guard.paths().iter().find_map(given_up);
        drop(state);
        if let Some(first) = lost {
            self.accuse(format!("{first} was given up, and {:?} granted", guard.paths()));
        }
    }

    fn acquire(&self, schedule: &Schedule, process: Process, locks: &Locks) -> Option<Guard> {
        let timeout = self.plan.habits.session_timeout;
        let began = schedule.time();
        let closed = self.state.lock().closed.contains(&process);
        let free = || self.children().values().all(Vec::is_empty);
        let (was_free, before) = (free(), self.world.look(|world| world.transactions()));
        let wanted = locks.wanted(schedule);
        let limited = |limit: Duration| {
            let result = locks.take(&wanted, Patience::For(limit));
            self.check_on_time(schedule, process, began, limit);
            result
        };
        let (mut cancelled, mut patience) = (None, Duration::ZERO);
        let result = match schedule.below(10) {
            0..=3 => locks.take(&wanted, Patience::Forever),
            4 | 5 => {
                patience = schedule.some(timeout * 2);
                limited(patience)
            }
            6 => limited(schedule.some(Duration::from_millis(60))),
            7 => locks.take(&wanted, Patience::Until(rt::now())),
            8 => {
                patience = self.plan.habits.connect_timeout;
                let result = locks.take(&wanted, Patience::None);
                self.check_on_time(schedule, process, began, patience);
                result
            }
            _ => {
                let cancel = Cancel::new();
                let (token, patience) = (cancel.clone(), schedule.some(timeout));
                schedule.after(patience, move || token.cancel());
                let result = locks.take(&wanted, Patience::Unless(&cancel));
                let parting =
                    if let Wanted::Several(..) = wanted { DROP_LIMIT * 2 } else { DROP_LIMIT };
                self.check_on_time(schedule, process, began, patience + parting);
                cancelled = Some(cancel);
                result
            }
        };
        let habits = self.plan.habits;
        let places = if let Wanted::Several(_, count) = &wanted { *count } else { 1 };
        let ample = DROP_LIMIT + habits.latency * 12 + habits.hesitation * 8 + self.plan.lag * 40;
        let ample = ample * places as u32;
        // Who has siblings is refused if one of them is about to get it.
        let calm = self.plan.faults.is_empty() && self.plan.first_number == 0;
        // Servers that close connections are no less in the way.
        let calm = calm && !habits.is_old && habits.largest.is_none();
        if calm && self.plan.sharing.is_none() && patience > ample {
            // One place on each node is this call's own.
            let alone = self.world.look(|world| {
                let mut nodes = BTreeSet::new();
                let mut contenders = world.made_since(before).filter(|(_, owner, _)| *owner != 0);
                contenders.all(|(path, ..)| nodes.insert(path::parent(path)))
            });
            if matches!(result, Ok(None)) && was_free && free() && alone {
                self.accuse(format!("process {process} could have had the lock, and has not"));
            }
        }
        if closed && !matches!(&result, Err(error) if error.kind() == ErrorKind::Closed) {
            let result = result.as_ref().map(|guard| guard.as_ref().map(Guard::paths));
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
                let is_too_large = error.kind() == ErrorKind::TooLarge;
                if !self.expected(&error, cancelled) || is_too_large && process != 0 {
                    drop(state);
                    self.accuse(format!("process {process} was not to get this: {error:?}"));
                }
            }
        }
        None
    }

    pub(super) fn expected(&self, error: &Error, cancelled: bool) -> bool {
        match error.kind() {
            ErrorKind::Cancelled => cancelled,
            ErrorKind::Closed => self.plan.has(|fault| matches!(fault, PlannedFault::Close { .. })),
            ErrorKind::NotAuthorized => {
                self.plan.has(|fault| matches!(fault, PlannedFault::Forbid { .. }))
            }
            ErrorKind::TooLarge => self.plan.habits.largest.is_some(),
            ErrorKind::System => self.is_poor(),
            ErrorKind::SequenceExhausted => self.plan.first_number != 0,
            ErrorKind::Disagreement => {
                matches!(self.plan.recipe, Recipe::Semaphore { disagreed: true, .. })
            }
            _ => false,
        }
    }

    pub(super) fn check_on_time(
        &self,
        schedule: &Schedule,
        process: Process,
        began: Duration,
        limit: Duration,
    ) {
        let now = schedule.time();
        // The caller asks by itself, and may be held up once when it is about to.
        let held_up = self.plan.habits.hesitation;
        let allowed = began + limit.max(GRACE) + GRACE + held_up + self.plan.lag * 20;
        let resumed = self.world.look(|world| world.resumed_at(process));
        if now > allowed && (resumed.is_zero() || resumed < began) {
            self.accuse(format!(
                "process {process} had until {:?} and came back at {now:?}",
                began + limit
            ));
        }
    }

    /// `downgraded` is how many had written before a writer became this reader.
    fn hold(
        self: &Arc<Self>,
        schedule: &Schedule,
        process: Process,
        spare: &Locks,
        guard: Guard,
        downgraded: Option<u64>,
    ) {
        let (paths, guard) = (guard.paths(), Rc::new(guard));
        let path = paths.first().cloned().unwrap_or_default();
        let session = self.world.look(|world| world.owner(&path)).unwrap_or_default();
        let (since, writers) = (schedule.time(), self.writers(&path));
        let held = Held {
            guard: Rc::clone(&guard),
            paths: paths.clone(),
            session,
            process,
            since,
            lost_at: None,
            downgraded,
        };
        HELD.with_borrow_mut(|all| all.push(held));
        let told = Told::default();
        let early = schedule.chance(70);
        if early {
            self.listen(schedule, &guard, spare, &told);
        }
        if schedule.chance(20)
            && let Some(lost) = guard.lost()
        {
            let _ = schedule.start("watcher", move || {
                lost.wait();
            });
        }

        let mut was_lost = false;
        for _ in 0..schedule.below(4) {
            let some = schedule.some(self.plan.hold);
            match guard.lost() {
                Some(lost) if !was_lost && schedule.chance(50) => {
                    let began = schedule.time();
                    if lost.wait_for(some).is_some() {
                        self.check_woken(schedule, process, &guard, began);
                    }
                }
                _ => schedule.pause(some),
            }
            if was_lost && guard.is_held() {
                self.accuse(format!("{path} was lost and is held again"));
            }
            was_lost |= !guard.is_held();
            if schedule.chance(30) {
                self.confirm(&guard, &paths, session, &mut was_lost);
            }
        }
        if !early {
            self.listen(schedule, &guard, spare, &told);
        }
        if was_lost && schedule.chance(50) {
            self.check_told(schedule, spare, &guard, &told);
        }
        if guard.release_requested() && !self.is_poor() && schedule.chance(50) {
            self.check_told_of_request(schedule, &path, &told);
        }
        if guard.lost().and_then(|lost| lost.reason()) == Some(LossReason::NodeDeleted) {
            self.check_deleted(&path, session);
        }

        HELD.with_borrow_mut(|all| all.retain(|other| !Rc::ptr_eq(&other.guard, &guard)));
        let (was_held, loss) = (guard.is_held(), guard.lost());
        self.state.lock().tally.lost += u64::from(!was_held);
        let Some(guard) = Rc::into_inner(guard) else {
            return self.accuse("the guard is shared".to_owned());
        };
        let guard = match guard {
            Guard::Write(writer) if schedule.chance(40) => {
                let reader = self.downgrade(writer, session);
                told.over.store(true, Ordering::SeqCst);
                if let Some(reader) = reader {
                    self.hold(schedule, process, spare, reader, Some(writers));
                }
                None
            }
            guard => self.drop_at_times(schedule, process, guard, &told),
        };
        if let Some(guard) = guard {
            self.unlock(guard, &paths, session);
            told.over.store(true, Ordering::SeqCst);
        }
        let is_told = told.losses.load(Ordering::SeqCst) > 0;
        if !was_held && loss.as_ref().is_some_and(|loss| loss.recorded().is_none()) {
            self.accuse(format!("{path} was not held any more, and there is no reason for that"));
        }
        if let Some(is_lost) = loss.map(|loss| loss.recorded().is_some()) {
            if is_told && !is_lost {
                self.accuse(format!("{path} was not lost, and is said to be"));
            }
            // It was released, if not by another task.
            if is_lost && !is_told && told.over.load(Ordering::SeqCst) && !self.lacks_threads() {
                self.accuse(format!("{path} was lost and then released, and nobody was told"));
            }
        }
        if told.losses.load(Ordering::SeqCst) > 1 {
            self.accuse(format!("the loss of {path} was told more than once"));
        }
        let requests = told.requests.load(Ordering::SeqCst);
        let asked = self.state.lock().asked.contains_key(&path);
        if requests > usize::from(asked) {
            self.accuse(format!("{path} was told {requests} times to let go; asked: {asked}"));
        }
    }

    fn lacks_threads(&self) -> bool {
        self.plan.faults.iter().any(|(_, fault)| matches!(fault, PlannedFault::Poverty { .. }))
    }

    fn listen(self: &Arc<Self>, schedule: &Schedule, guard: &Guard, spare: &Locks, told: &Told) {
        let paths = guard.paths();
        let again = schedule.chance(20).then(|| (spare.clone(), spare.wanted(schedule)));
        let (trial, heard, what) = (Arc::clone(self), told.clone(), paths.clone());
        guard.on_lost(move |_| {
            heard.losses.fetch_add(1, Ordering::SeqCst);
            // A release waits for that, unless there is no thread for it.
            if heard.over.load(Ordering::SeqCst) && !trial.lacks_threads() {
                trial.accuse(format!("the loss of {what:?} was told after its release"));
            }
            if let Some((spare, wanted)) = again {
                let _ = spare.take(&wanted, Patience::For(GRACE));
            }
        });
        let (trial, heard) = (Arc::clone(self), told.clone());
        guard.on_release_requested(move || {
            heard.requests.fetch_add(1, Ordering::SeqCst);
            if heard.over.load(Ordering::SeqCst) {
                trial.accuse(format!("{paths:?} was asked to let go after its release"));
            }
        });
    }

    fn confirm(&self, guard: &Guard, paths: &[String], session: i64, was_lost: &mut bool) {
        let exist = || self.world.look(|world| paths.iter().all(|path| world.contains(path)));
        let existed = exist();
        let confirmed = guard.ensure_held();
        if confirmed.is_ok() && (!existed || *was_lost) {
            self.accuse(format!("{paths:?} was gone, and is said to be held"));
        }
        let ended = self.world.look(|world| world.has_ended(session));
        if let Err(error) = &confirmed
            && exist()
            && !ended
            && guard.is_held()
        {
            self.accuse(format!("{paths:?} is held, and is said not to be: {error}"));
        }
        *was_lost |= confirmed.is_err() && !guard.is_held();
    }

    /// What is left of a writer.
    fn downgrade(&self, writer: WriteGuard, session: i64) -> Option<Guard> {
        let (path, token) = (writer.path().to_owned(), writer.fencing_token());
        let number = |path: &str| Mark::read(path::last(path)).map(|mark| mark.number);
        match writer.downgrade() {
            Ok(reader) => {
                self.state.lock().tally.downgraded += 1;
                let kind = Mark::read(path::last(reader.path())).map(|mark| mark.kind);
                if kind != Some(ContenderKind::Reader) || number(reader.path()) != number(&path) {
                    self.accuse(format!("{path} has become {}", reader.path()));
                }
                if reader.fencing_token() != token {
                    self.accuse(format!("{path} has lost its token {token}: {reader:?}"));
                }
                if self.world.look(|world| world.contains(&path)) {
                    self.accuse(format!("{path} is a reader's now, and still there"));
                }
                Some(Guard::Read(reader))
            }
            Err(error) => {
                let fits = match error.kind() {
                    ErrorKind::LockLost => {
                        self.check_deleted(&path, session);
                        true
                    }
                    ErrorKind::SessionLost => !self.plan.faults.is_empty(),
                    _ => self.expected(&error, false),
                };
                if !fits {
                    self.accuse(format!("{path} could not become a reader's: {error:?}"));
                }
                None
            }
        }
    }

    /// Or gives it back, to be unlocked.
    fn drop_at_times(
        &self,
        schedule: &Schedule,
        process: Process,
        guard: Guard,
        told: &Told,
    ) -> Option<Guard> {
        if schedule.chance(50) {
            let began = schedule.time();
            drop(guard);
            self.check_on_time(schedule, process, began, DROP_LIMIT);
            told.over.store(true, Ordering::SeqCst);
            return None;
        }
        if !schedule.chance(20) {
            return Some(guard);
        }
        match guard.into_sendable() {
            Ok(guard) => {
                // Should that not be possible, it is dropped here.
                let over = Arc::clone(&told.over);
                let _ = schedule.start("dropper", move || {
                    drop(guard);
                    over.store(true, Ordering::SeqCst);
                });
                None
            }
            Err(guard) => Some(*guard),
        }
    }

    fn unlock(&self, guard: Guard, paths: &[String], session: i64) {
        let look = || {
            self.world.look(|world| {
                let there = paths.iter().filter(|path| world.contains(path)).count();
                (there, world.breaks())
            })
        };
        let (existed, before) = look();
        let unlocked = guard.unlock();
        let (exist, breaks) = look();
        if let Err(error) = &unlocked
            && error.kind() == ErrorKind::LockLost
        {
            self.check_deleted(error.path().unwrap_or(&paths[0]), session);
        }
        // Who hands it on asks nobody.
        if self.plan.sharing.is_some() {
            return;
        }
        if unlocked.is_ok() && exist > 0 {
            self.accuse(format!("{paths:?} was unlocked, and is still there"));
        }
        // Without an answer to the first attempt nobody knows who it was.
        if unlocked.is_ok() && existed < paths.len() && before.is_some() && breaks == before {
            self.accuse(format!("{paths:?} was gone, and could be unlocked"));
        }
    }

    /// Whoever waits for a loss is woken by it.
    fn check_woken(
        &self,
        schedule: &Schedule,
        process: Process,
        guard: &Rc<Guard>,
        began: Duration,
    ) {
        let of_guard = |one: &&Held| Rc::ptr_eq(&one.guard, guard);
        let lost_at = HELD.with_borrow(|all| all.iter().find(of_guard).and_then(|one| one.lost_at));
        if let Some(lost_at) = lost_at {
            self.check_on_time(schedule, process, lost_at.max(began), Duration::ZERO);
        }
    }

    fn check_told(&self, schedule: &Schedule, spare: &Locks, guard: &Guard, told: &Told) {
        let limit = self.plan.calm + self.plan.habits.session_timeout * 3;
        if guard.lost().is_some_and(|lost| lost.wait_for(limit).is_none()) {
            return self.accuse(format!("the loss of {:?} is not told of", guard.paths()));
        }
        let until = schedule.time() + limit;
        if self.is_poor() {
            // Without a session nothing happens any more, and so nothing reminds of it.
            let calm = self.plan.calm + GRACE;
            schedule.pause(calm.saturating_sub(schedule.time()));
            let _ = spare.take(&spare.wanted(schedule), Patience::Until(rt::now()));
        }
        while told.losses.load(Ordering::SeqCst) == 0 {
            if schedule.time() > until {
                return self.accuse(format!("nobody called back for {:?}", guard.paths()));
            }
            schedule.pause(Duration::from_millis(10));
        }
    }

    fn check_told_of_request(&self, schedule: &Schedule, path: &str, told: &Told) {
        let until = schedule.time() + self.plan.calm + self.plan.habits.session_timeout * 3;
        while told.requests.load(Ordering::SeqCst) == 0 {
            if schedule.time() > until {
                return self.accuse(format!("nobody called back for the request to {path}"));
            }
            schedule.pause(Duration::from_millis(10));
        }
    }
}
