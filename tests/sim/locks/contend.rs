//! The contending threads: how they acquire locks, and what they do with them.

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
use super::reference_rule::{Mark, ReferenceKind};
use crate::Cancel;
use crate::Error;
use crate::ErrorKind;
use crate::WriteGuard;
use crate::loss_reason::LossReason;
use crate::path;
use crate::rt;
use crate::rt::schedule::{Process, Schedule, current};
use crate::sim::plan::{PlannedFault, Recipe};

/// How often a holder's callbacks were called.
#[derive(Clone, Default)]
struct Told {
    losses: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    /// Whether the guard was released.
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
                        // A shared node may have been created for another thread.
                        if all_granted && self.plan.sharing.is_none() {
                            self.check_places(&guard, before, name.as_bytes());
                        }
                        self.check_grant(&guard);
                        self.hold(&schedule, process, spare, guard, None);
                    }
                    // The call may have left a request that takes effect later.
                    None => all_granted = false,
                }
            }
        }
        self.state.lock().busy -= 1;
    }

    /// Checks that a call keeps its place: the first node that it created is the one granted.
    fn check_places(&self, guard: &Guard, before: usize, name: &[u8]) {
        let state = self.state.lock();
        // A call that has lost its session, or one node of a multi-lock, starts again.
        let of_session = |session| {
            self.world.look(|world| {
                let mut made = world.made_since(before);
                made.all(|(_, owner, said)| said != name || owner == session)
            })
        };
        if let Guard::Several(_) = guard {
            let paths = guard.paths();
            let session = self.world.look(|world| world.owner(paths.first()?));
            // The time of its first lock may be over before it has the last one.
            let restarts = self.plan.hold_at_most.is_some() || !state.deleted.is_empty();
            if restarts || !session.is_some_and(of_session) {
                return;
            }
        }
        // A node whose stat cannot be read cannot be adopted.
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
            self.accuse(format!("{first} was given up, but {:?} granted", guard.paths()));
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
        let way = schedule.below(10);
        let is_limited = (4..=8).contains(&way);
        let result = match way {
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
        // With siblings a call may be refused because one of them is about to get the lock.
        let calm = self.plan.faults.is_empty() && self.plan.first_number == 0;
        // Servers that close connections are faults, too.
        let calm = calm && !habits.is_old && habits.largest.is_none();
        // One contender on each node is this call's own.
        let alone = || {
            self.world.look(|world| {
                let mut nodes = BTreeSet::new();
                let mut contenders = world.made_since(before).filter(|(_, owner, _)| *owner != 0);
                contenders.all(|(path, ..)| nodes.insert(path::parent(path)))
            })
        };
        // A contender without a session holds the lock, too.
        let litter = |fault: &PlannedFault| matches!(fault, PlannedFault::Litter { .. });
        let shared = self.plan.sharing.is_some() || self.plan.has(litter);
        if matches!(result, Ok(None)) && !shared && was_free && alone() {
            self.accuse(format!("process {process} was refused a lock that was free"));
        }
        let is_unanswered = |error: &Error| error.kind() == ErrorKind::Connect;
        if calm && patience > ample && result.as_ref().is_err_and(is_unanswered) {
            self.accuse(format!("process {process} got no answer without any fault"));
        }
        if closed && !matches!(&result, Err(error) if error.kind() == ErrorKind::Closed) {
            let result = result.as_ref().map(|guard| guard.as_ref().map(Guard::paths));
            self.accuse(format!("process {process} closed its client, but got {result:?}"));
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
                let is_expected =
                    is_limited && is_unanswered(&error) || self.expected(&error, cancelled);
                if !is_expected || is_too_large && process != 0 {
                    drop(state);
                    self.accuse(format!("process {process} got an unexpected error: {error:?}"));
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
            ErrorKind::HeldTooLong => self.plan.hold_at_most.is_some(),
            ErrorKind::System => self.is_poor(),
            ErrorKind::SequenceExhausted => self.plan.first_number != 0,
            ErrorKind::Conflict => {
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
        // The calling thread sends its requests itself, and may be delayed once before it does.
        let held_up = self.plan.habits.hesitation;
        let allowed = began + limit.max(GRACE) + GRACE + held_up + self.plan.lag * 20;
        let resumed = self.world.look(|world| world.resumed_at(process));
        if now > allowed && (resumed.is_zero() || resumed < began) {
            self.accuse(format!(
                "process {process} had until {:?} but returned at {now:?}",
                began + limit
            ));
        }
    }

    /// Holds the lock for a while. For a downgraded reader, `downgraded` is how many exclusive
    /// grants there were when it was a writer.
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
                let _ = lost.wait();
            });
        }

        let mut was_lost = false;
        for _ in 0..schedule.below(4) {
            let some = schedule.some(self.plan.hold);
            match guard.lost() {
                Some(lost) if !was_lost && schedule.chance(50) => {
                    let began = schedule.time();
                    if matches!(lost.wait_within(some), Some(Err(_))) {
                        self.check_woken(schedule, process, &guard, began);
                    }
                }
                _ => schedule.pause(some),
            }
            if was_lost && guard.is_held() {
                self.accuse(format!("{path} was lost, but is held again"));
            }
            was_lost |= !guard.is_held();
            let is_late = |limit| schedule.time() > since + limit;
            if !was_lost && self.plan.hold_at_most.is_some_and(is_late) {
                self.accuse(format!("{path} is held for too long"));
            }
            if schedule.chance(30) {
                self.confirm(&guard, &paths, session, &mut was_lost);
            }
            if schedule.chance(50) {
                self.write_fenced(process, &guard, session);
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
            return self.accuse("the guard is still in use elsewhere".to_owned());
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
            self.accuse(format!("{path} was not held any more, but no reason is recorded"));
        }
        if let Some(is_lost) = loss.map(|loss| loss.recorded().is_some()) {
            if is_told && !is_lost {
                self.accuse(format!("{path} was not lost, but on_lost was called"));
            }
            // If another task releases it, that may not have happened yet.
            if is_lost && !is_told && told.over.load(Ordering::SeqCst) && !self.lacks_threads() {
                self.accuse(format!("{path} was lost and then released without a call of on_lost"));
            }
        }
        if told.losses.load(Ordering::SeqCst) > 1 {
            self.accuse(format!("the loss of {path} was reported more than once"));
        }
        let requests = told.requests.load(Ordering::SeqCst);
        let asked = self.state.lock().asked.contains_key(&path);
        if requests > usize::from(asked) {
            self.accuse(format!("{path} got {requests} release requests; asked: {asked}"));
        }
    }

    fn lacks_threads(&self) -> bool {
        self.plan.faults.iter().any(|(_, fault)| matches!(fault, PlannedFault::Poverty { .. }))
    }

    fn listen(self: &Arc<Self>, schedule: &Schedule, guard: &Guard, spare: &Locks, told: &Told) {
        let paths = guard.paths();
        let again = schedule.chance(20).then(|| (spare.clone(), spare.wanted(schedule)));
        let (trial, heard, what) = (Arc::clone(self), told.clone(), paths.clone());
        let (session, path) = (self.told_of_limit(guard), paths.first().cloned());
        guard.on_lost(move |why| {
            heard.losses.fetch_add(1, Ordering::SeqCst);
            if let (Some(session), Some(path), LossReason::HeldTooLong) = (session, path, why) {
                trial.check_told_first(&path, session);
            }
            // A release waits for its callbacks, unless there is no thread for them.
            if heard.over.load(Ordering::SeqCst) && !trial.lacks_threads() {
                trial.accuse(format!("the loss of {what:?} was reported after its release"));
            }
            if let Some((spare, wanted)) = again {
                let _ = spare.take(&wanted, Patience::For(GRACE));
            }
        });
        let (trial, heard) = (Arc::clone(self), told.clone());
        guard.on_release_requested(move || {
            heard.requests.fetch_add(1, Ordering::SeqCst);
            if heard.over.load(Ordering::SeqCst) {
                trial.accuse(format!("{paths:?} got a release request after its release"));
            }
        });
    }

    /// The session of a guard's node that has to be there until callbacks that are registered now were told of the
    /// end of its time.
    fn told_of_limit(&self, guard: &Guard) -> Option<i64> {
        if matches!(guard, Guard::Several(_)) || !guard.seems_held() {
            return None;
        }
        let path = guard.paths().into_iter().next()?;
        self.world.look(|world| world.owner(&path))
    }

    /// Checks that a holder is told of the end of its time before its node is deleted, unless the servers have ended its
    /// session: a process that is stopped learns of both afterwards.
    fn check_told_first(&self, path: &str, session: i64) {
        let is_gone = self.world.look(|world| {
            !world.contains(path) && !world.has_ended(session) && !world.is_closed(session)
        });
        if is_gone && !self.state.lock().deleted.contains_key(path) {
            self.accuse(format!("{path} was deleted before its holder was told"));
        }
    }

    fn confirm(&self, guard: &Guard, paths: &[String], session: i64, was_lost: &mut bool) {
        let exist = || self.world.look(|world| paths.iter().all(|path| world.contains(path)));
        let existed = exist();
        let confirmed = guard.ensure_held();
        if confirmed.is_ok() && (!existed || *was_lost) {
            self.accuse(format!("{paths:?} was gone, but is confirmed as held"));
        }
        let ended = self.world.look(|world| world.has_ended(session));
        if let Err(error) = &confirmed
            && exist()
            && !ended
            && guard.is_held()
        {
            self.accuse(format!("{paths:?} is held, but not confirmed: {error}"));
        }
        *was_lost |= confirmed.is_err() && !guard.is_held();
    }

    /// Downgrades a writer and returns the reader, unless that fails.
    fn downgrade(&self, writer: WriteGuard, session: i64) -> Option<Guard> {
        let (path, token) = (writer.path().to_owned(), writer.fencing_token());
        let number = |path: &str| Mark::read(path::last(path)).map(|mark| mark.number);
        match writer.downgrade() {
            Ok(reader) => {
                self.state.lock().tally.downgraded += 1;
                let kind = Mark::read(path::last(reader.path())).map(|mark| mark.kind);
                if kind != Some(ReferenceKind::Reader) || number(reader.path()) != number(&path) {
                    self.accuse(format!("the writer {path} has become {}", reader.path()));
                }
                if reader.fencing_token() != token {
                    self.accuse(format!("{path} had the token {token}, its reader: {reader:?}"));
                }
                if self.world.look(|world| world.contains(&path)) {
                    self.accuse(format!("{path} was downgraded, but its node still exists"));
                }
                Some(Guard::Read(reader))
            }
            Err(error) => {
                let fits = match error.kind() {
                    ErrorKind::NodeDeleted => {
                        self.check_deleted(&path, session);
                        true
                    }
                    ErrorKind::SessionLost => !self.plan.faults.is_empty(),
                    _ => self.expected(&error, false),
                };
                if !fits {
                    self.accuse(format!("{path} could not be downgraded: {error:?}"));
                }
                None
            }
        }
    }

    /// Drops the guard, or returns it to be unlocked.
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
                // If no thread can be started, the guard is dropped here.
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
            && error.kind() == ErrorKind::NodeDeleted
        {
            self.check_deleted(error.path().unwrap_or(&paths[0]), session);
        }
        // Handing a node on sends no request.
        if self.plan.sharing.is_some() {
            return;
        }
        if unlocked.is_ok() && exist > 0 {
            self.accuse(format!("{paths:?} was unlocked, but its nodes still exist"));
        }
        // If the first delete had no answer, it may itself have deleted the node.
        if unlocked.is_ok() && existed < paths.len() && before.is_some() && breaks == before {
            self.accuse(format!("{paths:?} was gone, but unlock succeeded"));
        }
    }

    /// Checks that a thread that waits for a loss is woken in time.
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
        if guard.lost().is_some_and(|lost| !matches!(lost.wait_within(limit), Some(Err(_)))) {
            return self.accuse(format!("the loss of {:?} is not reported", guard.paths()));
        }
        let until = schedule.time() + limit;
        if self.is_poor() {
            // Callbacks without a thread wait for a reminder, which needs a session: open one.
            let calm = self.plan.calm + GRACE;
            schedule.pause(calm.saturating_sub(schedule.time()));
            let _ = spare.take(&spare.wanted(schedule), Patience::Until(rt::now()));
        }
        while told.losses.load(Ordering::SeqCst) == 0 {
            if schedule.time() > until {
                return self.accuse(format!("on_lost was not called for {:?}", guard.paths()));
            }
            schedule.pause(Duration::from_millis(10));
        }
    }

    fn check_told_of_request(&self, schedule: &Schedule, path: &str, told: &Told) {
        let until = schedule.time() + self.plan.calm + self.plan.habits.session_timeout * 3;
        while told.requests.load(Ordering::SeqCst) == 0 {
            if schedule.time() > until {
                return self.accuse(format!("on_release_requested was not called for {path}"));
            }
            schedule.pause(Duration::from_millis(10));
        }
    }
}
