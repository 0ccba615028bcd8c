//! What is done about a wait that has become long: a line in the log that names the holder, and, for a
//! program that wants it, a look whether the wait can end at all. And the warning of a wait that cannot.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::contend::hold::{held_by_this_thread, own_hold_of};
use crate::contend::name::{ContenderKind, Ticket};
use crate::contend::observe::{BETWEEN_LOOKS, Contender, Waits, look_at_waits, look_for_first};
use crate::event::{Event, LogAs};
use crate::rt::{self, Mutex};
use crate::session::{Call, ClientCore, Session};
use crate::{logging, path};

/// A wait of more than this is long.
const LONG: Duration = Duration::from_secs(5);

/// After so much waiting it is told that a contender of an unknown recipe is ahead.
const FOREIGN: Duration = Duration::from_secs(1);

/// How often it is told again that threads of the process wait: more than once between two looks.
const TOLD_AGAIN: Duration = Duration::from_secs(2);

/// A client looks for deadlocks so often, at most.
const BETWEEN_PAIRS_OF_LOOKS: Duration = Duration::from_secs(10);

const TARGET: &str = "zklock::contend";

/// See the module. Its steps are due when the call's alarm rings.
#[derive(Default)]
pub(crate) struct LongWait {
    begun: Option<Instant>,
    /// Whether it waits behind another thread of its process.
    is_here: bool,
    /// Whether it may have to be told again and again who waits.
    is_retold: bool,
    is_told: bool,
    has_looked: bool,
    /// A contender ahead of an unknown recipe, by its path, until that is told.
    foreign: Option<String>,
}

impl LongWait {
    /// The call begins to wait for this lock behind another thread.
    pub(crate) fn begin_here(call: &mut Call, lock: &str) -> LongWait {
        let is_retold = !call.limit().may_end() && !held_by_this_thread().is_empty();
        let wait = LongWait { is_here: true, is_retold, ..LongWait::default() };
        wait.begin_for(call, lock, ContenderKind::Mutex)
    }

    /// The call begins to wait for this lock, by a node of its own or one that threads share.
    pub(super) fn begin(
        call: &mut Call,
        lock: &str,
        kind: ContenderKind,
        is_retold: bool,
        foreign: Option<String>,
    ) -> LongWait {
        LongWait { is_retold, foreign, ..LongWait::default() }.begin_for(call, lock, kind)
    }

    fn begin_for(mut self, call: &mut Call, lock: &str, kind: ContenderKind) -> LongWait {
        if kind != ContenderKind::Permits && !call.limit().may_end() {
            warn_of_own_hold(call.core(), lock);
        }
        let now = rt::now();
        self.begun = Some(now);
        call.set_alarm(self.next(call, now));
        self
    }

    /// Does what is due, and returns whether it is to be told who waits.
    pub(crate) fn go_on(&mut self, call: &mut Call, lock: &str) -> bool {
        let now = rt::now();
        let waited = self.begun.map(|begun| now.saturating_duration_since(begun));
        let waited = waited.unwrap_or_default();
        let is_time = waited >= FOREIGN;
        if let Some(foreign) = is_time.then(|| self.foreign.take()).flatten() {
            tell_of_foreign(call.core(), lock, foreign);
        }
        if waited >= LONG && !std::mem::replace(&mut self.is_told, true) {
            tell_of_holder(call, lock, waited, self.is_here);
        }
        let is_time = self.looks_after(call).is_some_and(|after| waited >= after);
        if is_time && !std::mem::replace(&mut self.has_looked, true) {
            look_for_deadlock(call.core(), lock);
        }
        call.set_alarm(self.next(call, now));
        self.is_retold && self.is_told
    }

    /// When the next step is due.
    fn next(&self, call: &Call, now: Instant) -> Option<Instant> {
        let begun = self.begun?;
        let told = (!self.is_told).then_some(LONG);
        let looked = self.looks_after(call).filter(|_| !self.has_looked);
        let foreign = self.foreign.as_ref().map(|_| FOREIGN);
        let once = told
            .into_iter()
            .chain(looked)
            .chain(foreign)
            .filter_map(|after| begun.checked_add(after));
        let again = now.checked_add(TOLD_AGAIN).filter(|_| self.is_retold && self.is_told);
        once.chain(again).min()
    }

    /// After how much waiting the call looks for a deadlock, if it does: behind another thread, only when
    /// what that thread's node tells can be seen.
    fn looks_after(&self, call: &Call) -> Option<Duration> {
        let after = call.core().deadlock_warning().filter(|_| !call.limit().may_end())?;
        Some(if self.is_here { after.max(LONG + TOLD_AGAIN) } else { after })
    }
}

fn warn_of_own_hold(core: &ClientCore, lock: &str) {
    if let Some(own) = own_hold_of(core, &core.whole(lock)) {
        let thread = std::thread::current();
        logging::warning!(
            target: TARGET,
            "thread {:?} waits without a limit for {lock:?}, which it has locked itself (node {:?}): unless that \
             guard was given to another thread, it waits for ever",
            thread.name().unwrap_or("unnamed"),
            core.shown(&own)
        );
    }
}

/// When a client has done something last that is not done too often: there may be thousands of waiters.
#[derive(Default)]
struct LastTime(Mutex<[Option<Instant>; 2]>);

#[derive(Clone, Copy)]
enum Seldom {
    Line,
    Look,
}

impl LastTime {
    /// Whether it is time again, and then that it is done now.
    fn allows(core: &ClientCore, what: Seldom) -> bool {
        let (place, pause) = match what {
            Seldom::Line => (0, Duration::from_secs(1)),
            Seldom::Look => (1, BETWEEN_PAIRS_OF_LOOKS),
        };
        let times: Arc<LastTime> = core.extension();
        let mut times = times.0.lock();
        let now = rt::now();
        let is_soon = times[place].is_some_and(|at| now.saturating_duration_since(at) < pause);
        if !is_soon {
            times[place] = Some(now);
        }
        !is_soon
    }
}

fn tell_of_holder(call: &Call, lock: &str, waited: Duration, is_here: bool) {
    let core = call.core();
    if !logging::is_on(log::Level::Info, TARGET) || !LastTime::allows(core, Seldom::Line) {
        return;
    }
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed").to_owned();
    let waits = format!("thread {thread:?} has waited {waited:.1?} for {lock:?}");
    if is_here {
        logging::info!(target: TARGET, "{waits}, behind another thread of this process");
        return;
    }
    let (whole, lock) = (core.whole(lock), lock.to_owned());
    in_background(core, rt::now(), move |session| {
        if let Ok(Some(first)) = look_for_first(session, &whole, &lock) {
            let what = if first.holds { "held by" } else { "the first in the queue is" };
            let node = path::last(&first.path);
            logging::info!(target: TARGET, "{waits}: {what} {:?} (node {node:?})", first.label());
        }
    });
}

/// Tells who a contender is that is of no known recipe.
fn tell_of_foreign(core: &Arc<ClientCore>, lock: &str, node: String) {
    if !core.is_first_warning(&node) {
        return;
    }
    let (reports, lock) = (Arc::clone(core.reports()), lock.to_owned());
    let whole = core.whole(path::parent(&node));
    in_background(core, rt::now(), move |session| {
        let Some(ticket) = Ticket::parse(path::last(&node)) else { return };
        let found = Contender::read(session, &whole, path::parent(&node), &ticket);
        // If it is gone, there is nothing to tell.
        let Ok(Some(one)) = found else { return };
        let (session, age, data) = (one.session, one.age(), one.label());
        let told = || Event::WaitingForForeign { lock, node, session, age, data };
        reports.report(LogAs::FOREIGN, told);
    });
}

/// The locks of a client whose waiters want to know of a deadlock and were not looked at yet, and the session
/// in which a look is due.
#[derive(Default)]
struct Wanted(Mutex<(Vec<String>, Option<i64>)>);

/// Has all that wait for a lock and want to know of a deadlock looked at together.
fn look_for_deadlock(core: &Arc<ClientCore>, lock: &str) {
    let Some(session) = core.live_session() else { return };
    let wanted: Arc<Wanted> = core.extension();
    let mut state = wanted.0.lock();
    if !state.0.iter().any(|other| other == lock) {
        state.0.push(lock.to_owned());
    }
    let is_due = state.1.replace(session.id()) == Some(session.id());
    drop(state);
    if !is_due {
        let is_time = LastTime::allows(core, Seldom::Look);
        let pause = if is_time { Duration::ZERO } else { BETWEEN_PAIRS_OF_LOOKS };
        look_later(core, pause, None);
    }
}

/// Locks, and what a look at their bases showed.
type Looked = (Vec<String>, Vec<Waits>);

/// Looks, and again a while after the first look: what both show is told.
fn look_later(core: &Arc<ClientCore>, pause: Duration, first: Option<Looked>) {
    let Some(due) = rt::now().checked_add(pause) else { return };
    let client: Weak<ClientCore> = Arc::downgrade(core);
    in_background(core, due, move |session| {
        let Some(core) = client.upgrade() else { return };
        let locks = match &first {
            Some((locks, _)) => locks.clone(),
            None => {
                let wanted: Arc<Wanted> = core.extension();
                std::mem::take(&mut *wanted.0.lock()).0
            }
        };
        let mut bases: Vec<&str> = locks.iter().map(|lock| path::parent(lock)).collect();
        bases.sort_unstable();
        bases.dedup();
        let look = |base: &&str| look_at_waits(session, &core, base).ok().flatten();
        let looks: Vec<Waits> = bases.iter().filter_map(look).collect();
        let Some((_, earlier)) = &first else {
            return look_later(&core, BETWEEN_LOOKS, Some((locks, looks)));
        };
        for later in &looks {
            let earlier = earlier.iter().find(|one| one.base == later.base);
            for deadlock in later.deadlocks(earlier).iter().filter(|one| one.is_certain) {
                let has_part = |lock: &&String| {
                    deadlock.holders.iter().any(|holder| holder.waits_for == **lock)
                };
                for lock in locks.iter().filter(has_part) {
                    let (lock, deadlock) = (lock.clone(), deadlock.to_string());
                    core.reports().report(LogAs::DEADLOCK, || Event::Deadlock { lock, deadlock });
                }
            }
        }
    });
}

/// Runs a job at that time, on a thread of its own: the one that deletes nodes must not wait for it.
fn in_background(
    core: &Arc<ClientCore>,
    due: Instant,
    job: impl FnOnce(&Session) + Send + 'static,
) {
    let Some(session) = core.live_session() else { return };
    let (owner, events) = (Arc::downgrade(&session), core.events().clone());
    let mut job = Some(job);
    core.reaper().later(&session, due, move || {
        if let (Some(session), Some(job)) = (owner.upgrade(), job.take()) {
            events.dispatch(move || job(&session));
        }
        None
    });
}
