//! What must always be so, whoever holds.

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
use super::reference_rule::{ContenderKind, Mark, entitled, may_share};
use crate::FencingToken;
use crate::LockGuard;
use crate::contend::loss_reason::LossReason;
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
        // What stops by itself may do so later.
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

    /// Whoever is lost is so for a reason, and told.
    fn check_losses(&self, schedule: &Schedule, held: &mut [Held]) -> Result<(), Violation> {
        for one in held.iter_mut().filter(|one| one.lost_at.is_none()) {
            let ended = self.world.look(|world| world.has_ended(one.session));
            let paths = &one.paths;
            let Some(lost) = one.guard.lost() else {
                let known = !one.guard.seems_held();
                one.lost_at = known.then(|| schedule.time());
                if ended && !known {
                    return Err(format!("the session of {paths:?} has ended, and all are held"));
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
                Some(_) => ended || self.world.look(|world| world.has_lapsed(one.session)),
            };
            if !caused {
                return Err(format!("{paths:?} is lost for nothing: {reason:?}"));
            }
            if !known && ended {
                return Err(format!("the session of {paths:?} has ended, and its guard not told"));
            }
        }
        Ok(())
    }

    /// Those who say that they hold may do so at once, and their nodes are there.
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
                        return Err(format!("a writer came in before {path}, a downgraded reader"));
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

    /// Its node is gone, and it does not know.
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
            return Err(format!("{path} is gone, and its guard says that it is held"));
        };
        if schedule.time() > self.known_by(one, when) && schedule.stopped(one.process).is_none() {
            return Err(format!("{path} was deleted at {when:?}, and its holder never knew"));
        }
        Ok(())
    }

    /// By when a holder has heard of what happened to its node.
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
        // Or it takes a reminder.
        known_by + if self.plan.habits.reminds { timeout * 4 } else { Duration::ZERO }
    }

    /// Who is asked to let go is told, and nobody else.
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
                None if told => return Err(format!("nobody has asked {path} to let go")),
                // Who may not read its own node does not learn of it.
                Some(when) if !(told || self.plan.hidden && one.process == 0) => {
                    let known_by = self.known_by(one, one.since.max(*when));
                    let there = self.world.look(|world| world.contains(path));
                    let stopped = schedule.stopped(one.process).is_some();
                    if there && !stopped && schedule.time() > known_by && one.guard.seems_held() {
                        return Err(format!("{path} was asked to let go at {when:?}: not told"));
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
            let marks = Mark::all(&names);
            let entitled: HashSet<_> = entitled(&marks).map(|mark| mark.name.clone()).collect();
            let of_node =
                |mark: &Mark| (path::join(node, &mark.name), entitled.contains(&mark.name));
            all.extend(marks.iter().map(of_node));
        }
        // Who waits for another of several has something to wait for.
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

    /// What the contender of a multi-lock is called at all its nodes.
    fn whose(&self, path: &str) -> Option<Vec<u8>> {
        if !matches!(self.plan.recipe, Recipe::Multi { .. }) {
            return None;
        }
        let said = |(_, data): (i64, &[u8])| data.to_vec();
        self.world.look(|world| world.making(path).map(said)).filter(|data| !data.is_empty())
    }

    /// Where nothing goes wrong, whoever may hold does so or leaves, and soon.
    fn check_prompt(
        &self,
        schedule: &Schedule,
        state: &mut State,
        held: &[Held],
    ) -> Result<(), Violation> {
        let habits = self.plan.habits;
        let soon = DROP_LIMIT + habits.latency * 12 + habits.hesitation * 4 + habits.lag * 4;
        // What could not be deleted before is tried again after this at the latest; or it takes
        // a reminder.
        let soon = if self.plan.faults.is_empty() { soon } else { soon + REAPER };
        let soon = if habits.reminds { soon + habits.session_timeout * 4 } else { soon };
        // What is kept may be so for long, and again when it was held for a moment that nobody saw;
        // but not while others wait: then it counts anew.
        let takes = self.plan.rounds * self.plan.threads.iter().sum::<usize>();
        let alone = state.since.len() <= 1;
        let kept = if alone { self.plan.keep() * takes as u32 } else { Duration::ZERO };
        let holds = |path: &String| held.iter().any(|one| one.paths.contains(path));
        let State { entitled: (_, entitled), idle, .. } = state;
        idle.retain(|one, _| entitled.contains(one) && !holds(&one.0));
        for one in entitled.iter().filter(|one| !holds(&one.0)) {
            let since = *idle.entry(one.clone()).or_insert(schedule.time());
            if schedule.time() > since + soon + kept {
                return Err(format!("{} may hold since {since:?}, and sleeps", one.0));
            }
        }
        Ok(())
    }

    /// The most that it takes, while all is well, until a client has heard of a change.
    pub(super) fn notification(&self) -> Duration {
        GRACE + self.plan.habits.latency * 6 + self.plan.habits.lag * 2
    }

    /// Whoever is granted the lock may hold it, and its token is above all that it has to be.
    pub(super) fn check_grant(&self, guard: &Guard) {
        if !guard.seems_held() {
            self.accuse(format!("{:?} was granted when it was lost already", guard.paths()));
        }
        if let (Some(sharing), Guard::Mutex(mine)) = (self.plan.sharing, guard) {
            self.check_share(sharing, mine);
        }
        for (path, token) in guard.tokens() {
            let (node, own) = (path::parent(path), path::last(path));
            let children = self.world.look(|world| world.children(node));
            if !children.iter().any(|child| child == own) {
                // Lost already; `check` knows whether that may be.
                continue;
            }
            let marks = Mark::all(&children);
            let Some(mine) = marks.iter().find(|mark| mark.name == own) else {
                self.accuse(format!("{own} has no number"));
                continue;
            };
            if mine.number > i64::from(i32::MAX - (1 << 16)) {
                self.accuse(format!("{own} was granted, at the end of the numbers"));
            }
            // Who was a writer, and has lost that, may try in vain to become a reader meanwhile.
            let born = |name: &str| {
                self.world.look(|world| world.making(&path::join(node, name)).map(|made| made.0))
            };
            let mine_born = born(own);
            let before = marks.iter().filter(|mark| mark.number < mine.number);
            // Nobody of a session waits for what the session has let go.
            let before = before.filter(|mark| !self.was_left(path, &path::join(node, &mark.name)));
            let before: Vec<_> = before.filter(|mark| born(&mark.name) < mine_born).collect();
            if !mine.may_hold(&before) {
                self.accuse(format!("{own} was granted with these before it: {before:?}"));
            }
            if let Some(token) = token {
                self.check_token(node, mine, token);
            }
        }
    }

    /// A node goes on among its process's threads only for so long while others wait.
    fn check_share(&self, sharing: Sharing, mine: &LockGuard) {
        let Some(now) = current().map(|schedule| schedule.time()) else { return };
        if mine.fencing_token().turn() == 0 || !self.plan.faults.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.handed.push((mine.path().to_owned(), now));
        // By then its holders have known that others wait.
        let soon = self.notification() * 2 + self.plan.habits.hesitation * 4;
        let theirs = state.since.iter().filter(|(path, _)| *path != mine.path());
        let Some(known) = theirs.map(|(_, since)| *since + soon).min() else { return };
        let after = |(path, when): &&(String, Duration)| path == mine.path() && *when > known;
        let turns = state.handed.iter().filter(after).count();
        // Some may have come between the others and the holder's first look at them.
        let threads = self.plan.threads.iter().max().copied().unwrap_or_default();
        let allowed = threads + (sharing.turns as usize).min(threads);
        drop(state);
        if turns > allowed {
            let path = mine.path();
            self.accuse(format!("{path} went to {turns} of its process while others waited"));
        }
    }

    /// Since when those have been there that are.
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

    /// Whether the other node is of the same session, which has let it go.
    fn was_left(&self, path: &str, other: &str) -> bool {
        let owner = self.world.look(|world| world.owner(path));
        let cores = self.state.lock().cores.clone();
        let sessions = cores.iter().filter_map(|core| core.upgrade()?.present_session());
        let mut own = sessions.filter(|session| Some(session.id()) == owner);
        let left = own.any(|session| session.has_left(other));
        let is_held = |one: &Held| one.paths.iter().any(|held| held == other);
        if left && HELD.with_borrow(|held| held.iter().any(is_held)) {
            self.accuse(format!("{other} is held, and said to belong to nobody"));
        }
        left
    }

    fn check_token(&self, node: &str, mine: &Mark, token: FencingToken) {
        let mut state = self.state.lock();
        let granted = state.granted.entry(node.to_owned()).or_default();
        let below = match mine.kind {
            ContenderKind::Reader => granted.alone,
            ContenderKind::Alone | ContenderKind::Permits { .. } => granted.token,
        };
        granted.token = granted.token.max(Some(token));
        if mine.kind == ContenderKind::Alone {
            granted.alone = Some(token);
            granted.writers += 1;
        }
        if let Some(latest) = below.filter(|latest| *latest >= token) {
            drop(state);
            self.accuse(format!("the token {token} was granted after {latest}"));
        }
    }

    /// How many have held the node of this path alone so far.
    pub(super) fn writers(&self, path: &str) -> u64 {
        let state = self.state.lock();
        state.granted.get(path::parent(path)).map_or(0, |granted| granted.writers)
    }

    /// That a node is gone is somebody's doing.
    pub(super) fn check_deleted(&self, path: &str, session: i64) {
        let deleted = self.state.lock().deleted.contains_key(path);
        if !deleted && !self.world.look(|world| world.is_murdered(session)) {
            self.accuse(format!("nobody has deleted {path}, and it is said to be gone"));
        }
    }

    /// Who looks on knows who holds.
    fn check_observed(&self, schedule: &Schedule, state: &mut State) -> Result<(), Violation> {
        // Of a multi-lock's parts one may be held while another is waited for.
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
            return Err(format!("{truth:?} hold since {since:?}, and who looks on sees {seen:?}"));
        }
        state.truth = Some((truth, since));
        Ok(())
    }
}
