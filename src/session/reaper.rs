//! Deletes that must happen later: nodes whose owner could not wait for the delete, and
//! nodes that may or may not have been made. A task goes on until the server says that
//! there is nothing left, or that the session is over.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::session::Session;
use super::store::{Answer, Fault, Store};
use super::wake::Waiter;
use crate::path;
use crate::rt::{self, Condvar, Deadline, Mutex};

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
    tasks: VecDeque<Task>,
    /// Being worked on.
    busy: usize,
    running: bool,
}

struct Task {
    session: Weak<Session>,
    what: What,
    tries: u32,
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
        state.tasks.len() + state.busy
    }

    fn add(&self, session: &Arc<Session>, what: What) {
        let mut state = self.shared.state.lock();
        state.tasks.push_back(Task { session: Arc::downgrade(session), what, tries: 0 });
        self.shared.work.notify_one();
        drop(state);
        self.retry();
    }

    /// Tries again to start the thread, should that have failed.
    pub(crate) fn retry(&self) {
        let mut state = self.shared.state.lock();
        if state.running || state.tasks.is_empty() {
            return;
        }
        state.running = true;
        drop(state);
        let shared = Arc::clone(&self.shared);
        if let Err(error) = rt::spawn("zklock-reaper", move || shared.work()) {
            self.shared.state.lock().running = false;
            log::error!(target: "zklock::reaper", "a node stays for now: {error}");
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if state.tasks.is_empty() {
                let waited = self.work.wait_for(&mut state, LINGER);
                if waited.timed_out() && state.tasks.is_empty() {
                    state.running = false;
                    return;
                }
                continue;
            }
            let mut tasks = std::mem::take(&mut state.tasks);
            state.busy = tasks.len();
            drop(state);
            tasks.retain_mut(|task| {
                let done = task.attempt();
                if done {
                    let mut state = self.state.lock();
                    state.busy = state.busy.saturating_sub(1);
                }
                !done
            });
            let pause = tasks.iter().map(Task::pause).min();
            let later = tasks.iter().find_map(|task| task.session.upgrade());
            state = self.state.lock();
            state.tasks.extend(tasks);
            state.busy = 0;
            if let Some(pause) = pause {
                drop(state);
                Self::rest(later.as_deref(), pause);
                state = self.state.lock();
            }
        }
    }

    /// Until the session changes, or for so long.
    fn rest(session: Option<&Session>, pause: Duration) {
        let waiter = Waiter::new();
        let _subscription = session.map(|session| session.status().subscribe(waiter.bell()));
        waiter.wait(Deadline::after(pause));
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
