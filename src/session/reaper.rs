//! Deletes that must happen later: nodes whose owner could not wait for the delete, and
//! nodes that may or may not have been made. A task goes on until the server says that
//! there is nothing left, or that the session is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::session::Session;
use super::store::{Answer, Fault};
use super::wake::Subscription;
use crate::error::Result;
use crate::path;
use crate::rt::{self, Condvar, Mutex};

/// How long the thread waits for more work before it ends.
const LINGER: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Reaper {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    tasks: Vec<Task>,
    /// Tasks that are being worked on, one at the most.
    busy: usize,
    running: bool,
    /// Counts the changes of sessions: each makes another attempt worth while.
    changes: u64,
}

struct Task {
    session: Weak<Session>,
    what: What,
    tries: u32,
    due: Instant,
    /// The changes that had been seen when it was last tried.
    seen: u64,
    _subscription: Subscription,
}

enum What {
    /// This very node.
    Node(String),
    /// Whichever children of this node these markers begin the names of.
    Marked { parent: String, markers: Vec<String> },
}

impl Reaper {
    pub(crate) fn delete(&self, session: &Arc<Session>, path: String) {
        self.add(session, What::Node(path));
    }

    pub(crate) fn sweep(&self, session: &Arc<Session>, parent: String, markers: Vec<String>) {
        if !markers.is_empty() {
            self.add(session, What::Marked { parent, markers });
        }
    }

    /// How many tasks are left.
    pub(crate) fn backlog(&self) -> usize {
        let state = self.shared.state.lock();
        let (busy, tasks) = (state.busy, state.tasks.iter().map(|task| Weak::clone(&task.session)));
        let owners: Vec<Weak<Session>> = tasks.collect();
        drop(state);
        // What a session has made ends with it. It may be dropped here, so not under the lock.
        let lives = |owner: &Weak<Session>| {
            owner.upgrade().is_some_and(|session| session.status().now().ended.is_none())
        };
        owners.iter().filter(|owner| lives(owner)).count() + busy
    }

    fn add(&self, session: &Arc<Session>, what: What) {
        let shared = Arc::downgrade(&self.shared);
        let signal = Arc::new(move || {
            if let Some(shared) = shared.upgrade() {
                shared.state.lock().changes += 1;
                shared.work.notify_one();
            }
        });
        let _subscription = session.status().subscribe(signal);
        let node = if let What::Node(path) = &what { Some(path.clone()) } else { None };
        let owner = Arc::downgrade(session);
        let mut state = self.shared.state.lock();
        let (due, seen) = (rt::now(), state.changes);
        state.tasks.push(Task { session: owner, what, tries: 0, due, seen, _subscription });
        self.shared.work.notify_one();
        drop(state);
        if let Err(error) = self.retry() {
            log::error!(target: "zklock::reaper", "a node may stay for now: {error}");
            // Nobody sees to it before the next change; this takes no thread.
            if let Some(path) = node {
                session.delete_soon(&path);
            }
        }
    }

    /// Tries again to start the thread, should that have failed.
    pub(crate) fn retry(&self) -> Result<()> {
        let mut state = self.shared.state.lock();
        if state.running || state.tasks.is_empty() {
            return Ok(());
        }
        // Under the lock, lest somebody rely on a thread that cannot be had.
        let shared = Arc::clone(&self.shared);
        rt::spawn("zklock-reaper", move || shared.work())?;
        state.running = true;
        Ok(())
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let now = rt::now();
            if let Some(mut task) = state.take_due(now) {
                task.seen = state.changes;
                state.busy = 1;
                drop(state);
                // What a logger may do is not to stop all the others.
                let done = catch_unwind(AssertUnwindSafe(|| task.attempt())).unwrap_or(false);
                task.due = rt::now() + task.pause();
                let task = (!done).then_some(task);
                state = self.state.lock();
                state.busy = 0;
                state.tasks.extend(task);
                continue;
            }
            let next = state.tasks.iter().map(|task| task.due).min();
            let waited = self.work.wait_until(&mut state, next.unwrap_or(now + LINGER));
            if waited.timed_out() && state.tasks.is_empty() {
                state.running = false;
                return;
            }
        }
    }
}

impl State {
    fn take_due(&mut self, now: Instant) -> Option<Task> {
        let changes = self.changes;
        let due = |task: &Task| task.due <= now || task.seen != changes;
        let index = self.tasks.iter().position(due)?;
        Some(self.tasks.swap_remove(index))
    }
}

impl Task {
    fn pause(&self) -> Duration {
        (Duration::from_millis(10) * 2u32.pow(self.tries.min(9))).min(Duration::from_secs(5))
    }

    /// Whether nothing is left to be done.
    fn attempt(&mut self) -> bool {
        let Some(session) = self.session.upgrade() else { return true };
        let phase = session.status().now();
        if phase.ended.is_some() {
            return true;
        }
        self.tries = self.tries.saturating_add(1);
        if !phase.attached {
            return false;
        }
        let result = match &self.what {
            What::Node(path) => delete(&session, path),
            What::Marked { parent, markers } => sweep(&session, parent, markers),
        };
        match result {
            Ok(()) => true,
            Err(Fault::SessionEnded) => true,
            Err(Fault::ConnectionLoss) => false,
            Err(fault) => {
                if self.tries.is_power_of_two() {
                    log::error!(target: "zklock::reaper", "{} cannot be deleted: {fault}", self.what);
                }
                false
            }
        }
    }
}

fn delete(session: &Session, path: &str) -> Answer<()> {
    match session.delete(path) {
        Err(Fault::NoNode) => Ok(()),
        result => result,
    }
}

fn sweep(session: &Session, parent: &str, markers: &[String]) -> Answer<()> {
    // Only what is listed after a sync of the same connection is certain to be all.
    let connection = session.status().now().connection;
    session.sync()?;
    let children = session.children(parent, false)?.unwrap_or_default();
    if session.status().now().connection != connection {
        return Err(Fault::ConnectionLoss);
    }
    for child in children.iter() {
        if markers.iter().any(|marker| child.starts_with(marker.as_str())) {
            delete(session, &path::join(parent, child))?;
        }
    }
    Ok(())
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            What::Node(path) => write!(f, "{path:?}"),
            What::Marked { parent, .. } => write!(f, "a contender under {parent:?}"),
        }
    }
}

impl std::fmt::Debug for Reaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reaper").field("backlog", &self.backlog()).finish()
    }
}
