//! What is done about a wait that has become long: a line in the log that names the holder, and, for a program that
//! wants it, a look whether the wait can end at all. And the warning of a wait that cannot.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::held_by_thread::own_hold_of;
use super::list_contenders::look_for_first;
use super::list_locks::look_at_waits;
use super::ticket::ContenderKind;
use super::wait_graph::{BETWEEN_LOOKS, Waits};
use crate::event::{Event, LogAs};
use crate::logging;
use crate::path;
use crate::rt::{self, Mutex};
use crate::session::client_core::ClientCore;
use crate::session::retrying_call::Call;
use crate::session::session::Session;

/// A wait of more than this is long.
pub(super) const LONG: Duration = Duration::from_secs(5);

const TARGET: &str = "zklock::contend";

/// See the module. Its steps are due when the call's alarm rings.
#[derive(Default)]
pub(super) struct LongWait {
    begun: Option<Instant>,
    is_told: bool,
    has_looked: bool,
}

/// When a client has logged a long wait last: there may be thousands of waiters.
#[derive(Default)]
struct LastLine(Mutex<Option<Instant>>);

impl LongWait {
    /// The call begins to wait for this lock.
    pub(super) fn begin(call: &mut Call, lock: &str, kind: ContenderKind) -> LongWait {
        if kind != ContenderKind::Permits && !call.limit().may_end() {
            warn_of_own_hold(call.core(), lock);
        }
        let wait = LongWait { begun: Some(rt::now()), ..LongWait::default() };
        call.set_alarm(wait.next(call));
        wait
    }

    /// Does what is due. Behind another thread of this process, no server is asked who holds the lock.
    pub(super) fn go_on(&mut self, call: &mut Call, lock: &str, is_behind_thread: bool) {
        let waited = self.begun.map(|begun| rt::now().saturating_duration_since(begun));
        let waited = waited.unwrap_or_default();
        let core = call.core();
        if waited >= LONG && !std::mem::replace(&mut self.is_told, true) {
            tell_of_holder(call, lock, waited, is_behind_thread);
        }
        let is_time = looks_after(call).is_some_and(|after| waited >= after);
        if is_time && !std::mem::replace(&mut self.has_looked, true) {
            if let Some(session) = core.live_session() {
                look_for_deadlock(core, &session, lock);
            }
        }
        call.set_alarm(self.next(call));
    }

    /// When the next step is due.
    fn next(&self, call: &Call) -> Option<Instant> {
        let told = (!self.is_told).then_some(LONG);
        let looked = looks_after(call).filter(|_| !self.has_looked);
        self.begun?.checked_add(told.into_iter().chain(looked).min()?)
    }
}

/// After how much waiting the call looks for a deadlock, if it does.
fn looks_after(call: &Call) -> Option<Duration> {
    call.core().deadlock_warning().filter(|_| !call.limit().may_end())
}

fn warn_of_own_hold(core: &ClientCore, lock: &str) {
    if let Some(own) = own_hold_of(&core.whole(lock)) {
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

fn tell_of_holder(call: &Call, lock: &str, waited: Duration, is_behind_thread: bool) {
    if !logging::is_on(log::Level::Info, TARGET) {
        return;
    }
    let last: Arc<LastLine> = call.core().extension();
    let mut last = last.0.lock();
    let now = rt::now();
    let is_soon = |at: Instant| now.saturating_duration_since(at) < Duration::from_secs(1);
    if last.is_some_and(is_soon) {
        return;
    }
    *last = Some(now);
    drop(last);
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed").to_owned();
    let waits = format!("thread {thread:?} has waited {waited:.1?} for {lock:?}");
    if is_behind_thread {
        logging::info!(target: TARGET, "{waits}, behind another thread of this process");
        return;
    }
    let Some(session) = call.live_session() else { return };
    let (whole, lock) = (call.core().whole(lock), lock.to_owned());
    in_background(call.core(), &session, move |session| {
        if let Ok(Some(first)) = look_for_first(session, &whole, &lock) {
            let what = if first.holds { "held by" } else { "the first in the queue is" };
            let node = path::last(&first.path);
            logging::info!(target: TARGET, "{waits}: {what} {:?} (node {node:?})", first.label());
        }
        None
    });
}

/// Looks twice, in the background, and warns of a deadlock that has a part in this lock.
fn look_for_deadlock(core: &Arc<ClientCore>, session: &Arc<Session>, lock: &str) {
    let (base, lock) = (path::parent(lock).to_owned(), lock.to_owned());
    let (client, mut earlier): (Weak<ClientCore>, Option<Waits>) = (Arc::downgrade(core), None);
    in_background(core, session, move |session| {
        let core = client.upgrade()?;
        let waits = look_at_waits(session, &core, &base).ok()??;
        let found = waits.deadlocks(earlier.as_ref());
        let has_part = |lock: &str| {
            found.iter().find(|one| one.holders.iter().any(|holder| holder.waits_for == lock))
        };
        match (has_part(&lock), &earlier) {
            (Some(deadlock), Some(_)) if deadlock.is_certain => {
                let (lock, deadlock) = (lock.clone(), deadlock.to_string());
                core.reports().report(LogAs::DEADLOCK, || Event::Deadlock { lock, deadlock });
                None
            }
            (Some(_), None) => {
                earlier = Some(waits);
                rt::now().checked_add(BETWEEN_LOOKS)
            }
            _ => None,
        }
    });
}

/// Runs a job on a background thread; it returns when to run it again.
fn in_background(
    core: &ClientCore,
    session: &Arc<Session>,
    mut job: impl FnMut(&Session) -> Option<Instant> + Send + 'static,
) {
    let owner = Arc::downgrade(session);
    core.reaper().later(session, rt::now(), move || job(&*owner.upgrade()?));
}
