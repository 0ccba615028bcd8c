//! Checks of what must hold after every step and for every grant.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::DROP_LIMIT;
use super::GRACE;
use super::HELD;
use super::Held;
use super::State;
use super::Trial;
use super::Violation;
use super::any_lock::{Guard, NODE};
use super::reference_rule::{Mark, ReferenceKind, entitled, may_share};
use crate::FencingToken;
use crate::LockGuard;
use crate::loss_reason::LossReason;
use crate::path;
use crate::rt::schedule::{Schedule, current};
use crate::sim::plan::{Recipe, Sharing};

/// The longest pause of the reaper.
const REAPER: Duration = Duration::from_secs(6);

impl Trial {
    pub(super) fn check(&self, schedule: &Schedule) -> Result<(), Violation> {
        let mut state = self.state.lock();
        let timeout = self.plan.habits.session_timeout;
        let (written, searched) = self.world.look(|world| world.written_since(state.searched));
        state.searched = searched;
        for path in written {
            state.asked.entry(path).or_insert(schedule.time());
        }
        self.check_fenced(&mut state)?;
        // A trap may stop a process later than the last planned fault.
        self.note_contenders(schedule, &mut state);
        let resumed = |process| self.world.look(|world| world.resumed_at(process));
        let resumed = (0..self.plan.threads.len()).map(resumed).max().unwrap_or_default();
        let settled = self.plan.calm.max(resumed) + timeout;
        let calm = self.plan.faults.is_empty() || schedule.time() > settled;
        HELD.with_borrow_mut(|held| {
            if calm
                && self.plan.first_number == 0
                && self.world.look(|world| world.breaks().is_some())
            {
                self.look_who_is_entitled(&mut state);
                self.check_prompt(schedule, &mut state, held)?;
                self.check_observed(schedule, &mut state)?;
            } else {
                state.idle.clear();
                state.truth = None;
            }
            self.check_losses(schedule, held)?;
            self.check_claims(schedule, &state, held)?;
            self.check_asked(schedule, &state, held)
        })
    }

    /// Checks that each loss has a cause, and that guards know of it.
    fn check_losses(&self, schedule: &Schedule, held: &mut [Held]) -> Result<(), Violation> {
        for one in held.iter_mut().filter(|one| one.lost_at.is_none()) {
            let ended = self.world.look(|world| world.has_ended(one.session));
            let paths = &one.paths;
            let Some(lost) = one.guard.lost() else {
                let known = !one.guard.seems_held();
                one.lost_at = known.then(|| schedule.time());
                if ended && !known {
                    return Err(format!("the session of {paths:?} has ended, but all are held"));
                }
                continue;
            };
            let reason = lost.recorded();
            let known = reason.is_some();
            one.lost_at = known.then(|| schedule.time());
            let exists = || self.world.look(|world| paths.iter().all(|path| world.contains(path)));
            let caused = match reason {
                None => true,
                Some(LossReason::NodeDeleted) => !exists(),
                Some(LossReason::HeldTooLong) => self.plan.hold_at_most.is_some(),
                Some(_) => ended || self.world.look(|world| world.has_lapsed(one.session)),
            };
            if !caused {
                return Err(format!("{paths:?} is lost without a cause: {reason:?}"));
            }
            if !known && ended {
                return Err(format!("the session of {paths:?} has ended, unknown to its guard"));
            }
        }
        Ok(())
    }

    /// Checks that all guards that claim to hold may do so at once, and that their nodes exist.
    fn check_claims(
        &self,
        schedule: &Schedule,
        state: &State,
        held: &[Held],
    ) -> Result<(), Violation> {
        let mut claims: BTreeMap<&str, Vec<Mark>> = BTreeMap::new();
        for one in held.iter().filter(|one| one.guard.seems_held()) {
            for path in &one.paths {
                if self.world.look(|world| world.contains(path)) {
                    let node = path::parent(path);
                    claims.entry(node).or_default().extend(Mark::read(path::last(path)));
                    let writers = state.granted.get(node).map(|granted| granted.writers);
                    if one.downgraded.is_some() && one.downgraded != writers {
                        return Err(format!("a writer overtook {path}, a downgraded reader"));
                    }
                } else {
                    self.check_knows_soon(schedule, state, one, path)?;
                }
            }
        }
        for (node, marks) in claims {
            if !may_share(&marks) {
                return Err(format!("these may not hold {node} at once: {marks:?}"));
            }
        }
        Ok(())
    }

    /// Checks that a guard whose node is gone may still be unaware of it.
    fn check_knows_soon(
        &self,
        schedule: &Schedule,
        state: &State,
        one: &Held,
        path: &str,
    ) -> Result<(), Violation> {
        let murdered = self.world.look(|world| world.is_murdered(one.session));
        let deleted = state.deleted.get(path).copied();
        let Some(when) = deleted.or(murdered.then_some(self.plan.calm)) else {
            return Err(format!("{path} is gone, but its guard claims to hold"));
        };
        if schedule.time() > self.known_by(one, when) && schedule.stopped(one.process).is_none() {
            return Err(format!("{path} was deleted at {when:?}, but its holder does not know"));
        }
        Ok(())
    }

    /// Returns by when a holder must know what happened to its node.
    fn known_by(&self, one: &Held, when: Duration) -> Duration {
        let timeout = self.plan.habits.session_timeout;
        let (resumed, connected) = self
            .world
            .look(|world| (world.resumed_at(one.process), world.connected_since(one.session)));
        let known_by = when.max(self.plan.calm).max(resumed);
        let known_by = match connected {
            Some(since) => known_by.max(since) + self.notification(),
            None => known_by + timeout * 3,
        };
        // It may need a reminder.
        known_by + if self.plan.habits.reminds { timeout * 4 } else { Duration::ZERO }
    }

    /// Checks that exactly the holders that were asked to release know of it.
    fn check_asked(
        &self,
        schedule: &Schedule,
        state: &State,
        held: &[Held],
    ) -> Result<(), Violation> {
        for one in held.iter().filter(|one| !matches!(&*one.guard, Guard::Several(_))) {
            let path = &one.paths[0];
            let (asked, told) = (state.asked.get(path), one.guard.release_requested());
            match asked {
                None if told => return Err(format!("{path} was never asked to release")),
                // A holder that may not read its own node does not learn of the request.
                Some(when) if !(told || self.plan.hidden && one.process == 0) => {
                    let known_by = self.known_by(one, one.since.max(*when));
                    let there = self.world.look(|world| world.contains(path));
                    let stopped = schedule.stopped(one.process).is_some();
                    if there && !stopped && schedule.time() > known_by && one.guard.seems_held() {
                        return Err(format!("{path} missed the release request of {when:?}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn look_who_is_entitled(&self, state: &mut State) {
        let now = self.world.look(|world| world.transactions());
        if state.entitled.0 == now {
            return;
        }
        let mut all: Vec<(String, bool)> = Vec::new();
        for (node, names) in self.children() {
            let marks = self.marks(node, &names);
            let born = |mark: &Mark| self.born(&path::join(node, &mark.name));
            let entitled: HashSet<_> =
                entitled(&marks, born).map(|mark| mark.name.clone()).collect();
            let of_node =
                |mark: &Mark| (path::join(node, &mark.name), entitled.contains(&mark.name));
            all.extend(marks.iter().map(of_node));
        }
        // A multi-lock that waits at one node is not expected to hold at its others yet.
        let whose: Vec<_> = all.iter().map(|(path, _)| self.whose(path)).collect();
        let contested = state.since.len() > 1;
        let place = |(index, (path, _)): (usize, &(String, bool))| {
            let owner = whose[index].as_ref();
            let others = all
                .iter()
                .zip(&whose)
                .filter(|(_, other)| owner.is_some() && other.as_ref() == owner);
            let (places, waits) = others
                .fold((0, false), |(places, waits), ((_, may), _)| (places + 1, waits || !may));
            (!waits).then(|| (path.clone(), places + usize::from(contested)))
        };
        let found = all.iter().enumerate().filter(|(_, (_, may))| *may).filter_map(place).collect();
        state.entitled = (now, found);
    }

    /// Returns the transaction that made a node.
    fn born(&self, path: &str) -> Option<i64> {
        self.world.look(|world| world.made_last(path).map(|made| made.0))
    }

    /// Returns the contenders among a node's children: those that say it by their names, and others if they have a session.
    fn marks(&self, node: &str, children: &[String]) -> Vec<Mark> {
        let mut marks = Mark::all(children);
        marks.retain_mut(|mark| {
            if mark.says_it() {
                return true;
            }
            let path = path::join(node, &mark.name);
            mark.doubtful_since = self.born(&path);
            self.world.look(|world| world.owner(&path)).is_some_and(|owner| owner != 0)
        });
        marks
    }

    /// Returns the data by which a multi-lock's contenders are known at all its nodes.
    fn whose(&self, path: &str) -> Option<Vec<u8>> {
        if !matches!(self.plan.recipe, Recipe::Multi { .. }) {
            return None;
        }
        let said = |(_, data): (i64, &[u8])| data.to_vec();
        self.world.look(|world| world.made_last(path).map(said)).filter(|data| !data.is_empty())
    }

    /// Checks, while nothing goes wrong, that contenders that may hold soon do so or leave.
    fn check_prompt(
        &self,
        schedule: &Schedule,
        state: &mut State,
        held: &[Held],
    ) -> Result<(), Violation> {
        let habits = self.plan.habits;
        let soon = DROP_LIMIT + habits.latency * 12 + habits.hesitation * 4 + habits.lag * 4;
        // Failed deletes are retried after at most this time, or need a reminder.
        let soon = if self.plan.faults.is_empty() { soon } else { soon + REAPER };
        let soon = if habits.reminds { soon + habits.session_timeout * 4 } else { soon };
        // A node that was made late stays until it is looked for.
        let soon =
            if habits.late.is_some() { soon + habits.session_timeout * 2 + REAPER } else { soon };
        // A node whose holder's time is over stays until callbacks have begun to tell.
        let soon = if self.plan.hold_at_most.is_some() { soon + DROP_LIMIT * 2 } else { soon };
        // A node may be kept for long, and again after a short hold between two checks. But while
        // others wait it is not kept.
        let takes = self.plan.rounds * self.plan.threads.iter().sum::<usize>();
        let alone = state.since.len() <= 1;
        let kept = if alone { self.plan.keep() * takes as u32 } else { Duration::ZERO };
        let holds = |path: &String| held.iter().any(|one| one.paths.contains(path));
        let State { entitled: (_, entitled), idle, .. } = state;
        idle.retain(|one, _| entitled.contains(one) && !holds(&one.0));
        for one in entitled.iter().filter(|one| !holds(&one.0)) {
            let since = *idle.entry(one.clone()).or_insert(schedule.time());
            if schedule.time() > since + soon + kept {
                return Err(format!("{} may hold since {since:?}, but does not", one.0));
            }
        }
        Ok(())
    }

    /// Returns the longest time until a client hears of a change, while nothing goes wrong.
    pub(super) fn notification(&self) -> Duration {
        GRACE + self.plan.habits.latency * 6 + self.plan.habits.lag * 2
    }

    /// Checks that the contender that is granted the lock may hold it, and that its token grows.
    pub(super) fn check_grant(&self, guard: &Guard) {
        if !guard.seems_held() {
            self.accuse(format!("{:?} was granted after it was lost", guard.paths()));
        }
        if let (Some(sharing), Guard::Mutex(mine)) = (self.plan.sharing, guard) {
            self.check_share(sharing, mine);
        }
        self.check_not_in_doubt(&guard.paths());
        for (path, token) in guard.tokens() {
            let (node, own) = (path::parent(path), path::last(path));
            let children = self.world.look(|world| world.children(node));
            if !children.iter().any(|child| child == own) {
                // Lost already; `check` decides whether that is right.
                continue;
            }
            let marks = self.marks(node, &children);
            let Some(mine) = marks.iter().find(|mark| mark.name == own) else {
                self.accuse(format!("{own} has no number"));
                continue;
            };
            if mine.number > i64::from(i32::MAX - (1 << 16)) {
                self.accuse(format!("{own} was granted with a number at the end of the range"));
            }
            // A writer that has lost its lock may still try, in vain, to become a reader: it reuses
            // its old number, so its node counts by when it was created.
            let born = |name: &str| self.born(&path::join(node, name));
            let mine_born = born(own);
            let before = marks.iter().filter(|mark| mark.is_before(mine, mine_born));
            // Contenders do not wait for a node that their own session is deleting.
            let before = before.filter(|mark| !self.was_left(path, &path::join(node, &mark.name)));
            let before: Vec<_> = before.filter(|mark| born(&mark.name) < mine_born).collect();
            if !mine.may_hold(&before) {
                self.accuse(format!("{own} was granted with these ahead of it: {before:?}"));
            }
            if let Some(token) = token {
                self.check_token(node, mine, token);
            }
        }
    }

    /// Checks that a process hands its node on only a limited number of times while others wait.
    fn check_share(&self, sharing: Sharing, mine: &LockGuard) {
        let Some(now) = current().map(|schedule| schedule.time()) else { return };
        if mine.fencing_token().turn() == 0 || !self.plan.faults.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.handed.push((mine.path().to_owned(), now));
        // By then the node's holders must know that others wait.
        let soon = self.notification() * 2 + self.plan.habits.hesitation * 4;
        let theirs = state.since.iter().filter(|(path, _)| *path != mine.path());
        let Some(known) = theirs.map(|(_, since)| *since + soon).min() else { return };
        let after = |(path, when): &&(String, Duration)| path == mine.path() && *when > known;
        let turns = state.handed.iter().filter(after).count();
        // Threads may have queued after the others, but before the holder first saw these.
        let threads = self.plan.threads.iter().max().copied().unwrap_or_default();
        let allowed = threads + (sharing.turns as usize).min(threads);
        drop(state);
        if turns > allowed {
            let path = mine.path();
            self.accuse(format!("{path} was handed on {turns} times while others waited"));
        }
    }

    /// Notes since when each present contender has been there.
    fn note_contenders(&self, schedule: &Schedule, state: &mut State) {
        if self.plan.sharing.is_none() {
            return;
        }
        let children = self.world.look(|world| world.children(NODE));
        let paths: Vec<_> = children.iter().map(|name| path::join(NODE, name)).collect();
        state.since.retain(|path, _| paths.contains(path));
        for path in paths {
            state.since.entry(path).or_insert(schedule.time());
        }
    }

    /// Returns whether the other node is of the same session, which is deleting it.
    fn was_left(&self, path: &str, other: &str) -> bool {
        let owner = self.world.look(|world| world.owner(path));
        let cores = self.state.lock().cores.clone();
        let sessions = cores.iter().filter_map(|core| core.upgrade()?.present_session());
        let mut own = sessions.filter(|session| Some(session.id()) == owner);
        let left = own.any(|session| session.has_left(other));
        // One whose time is over has been told, and its node is being deleted.
        let is_held =
            |one: &Held| one.guard.seems_held() && one.paths.iter().any(|held| held == other);
        if left && HELD.with_borrow(|held| held.iter().any(is_held)) {
            self.accuse(format!("{other} is held, but its session counts it as released"));
        }
        left
    }

    fn check_token(&self, node: &str, mine: &Mark, token: FencingToken) {
        let mut state = self.state.lock();
        let granted = state.granted.entry(node.to_owned()).or_default();
        let below = match mine.kind {
            ReferenceKind::Reader => granted.alone,
            ReferenceKind::Alone | ReferenceKind::Permits { .. } => granted.token,
        };
        granted.token = granted.token.max(Some(token));
        if mine.kind == ReferenceKind::Alone {
            granted.alone = Some(token);
            granted.writers += 1;
        }
        if let Some(latest) = below.filter(|latest| *latest >= token) {
            drop(state);
            self.accuse(format!("the token {token} was granted after {latest}"));
        }
    }

    /// Returns how often the lock node of this path was granted exclusively so far.
    pub(super) fn writers(&self, path: &str) -> u64 {
        let state = self.state.lock();
        state.granted.get(path::parent(path)).map_or(0, |granted| granted.writers)
    }

    /// Checks that a node reported as deleted was indeed deleted from outside.
    pub(super) fn check_deleted(&self, path: &str, session: i64) {
        let deleted = self.state.lock().deleted.contains_key(path);
        if !deleted && !self.world.look(|world| world.is_murdered(session)) {
            self.accuse(format!("{path} is reported as deleted, but was not"));
        }
    }

    /// Checks that the observer knows the holders.
    fn check_observed(&self, schedule: &Schedule, state: &mut State) -> Result<(), Violation> {
        // A multi-lock may hold one part while it waits for another.
        if !state.observed.at_work || matches!(self.plan.recipe, Recipe::Multi { .. }) {
            return Ok(());
        }
        let now = schedule.time();
        let of_node = state.entitled.1.iter().filter(|(path, _)| path::parent(path) == NODE);
        let truth: Vec<String> = of_node.map(|(path, _)| path.clone()).collect();
        let since = match &state.truth {
            Some((before, since)) if *before == truth => *since,
            _ => now,
        };
        let habits = self.plan.habits;
        let soon = (habits.latency * 6 + habits.hesitation * 4 + habits.lag * 3) * 4;
        let soon = soon + DROP_LIMIT + self.plan.lag * 40;
        let soon = if habits.reminds { soon + habits.session_timeout * 4 } else { soon };
        if now > since + soon && state.observed.latest.as_ref() != Some(&truth) {
            let seen = &state.observed.latest;
            return Err(format!("{truth:?} hold since {since:?}, but the observer sees {seen:?}"));
        }
        state.truth = Some((truth, since));
        Ok(())
    }
}
