//! Deletes nodes in the background: those whose owner has gone on or could not wait, and those that
//! may or may not have been created. A task goes on until the server says that nothing is left, or
//! that the session is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::session::Session;
use crate::error::Result;
use crate::rt::{self, Condvar, Deadline, Mutex};
use crate::session::connection::{Answer, Fault};
use crate::session::wait::Subscription;
use crate::wire_values::Stat;
use crate::{logging, path};

/// How long the thread waits for more work before it ends.
const LINGER: Duration = Duration::from_secs(1);
/// How long to wait before a node that may be ours is looked for again.
const PAUSE: Duration = Duration::from_millis(500);

/// See the module.
pub(crate) struct Reaper {
    /// The name of its thread.
    thread: &'static str,
    state: Mutex<ReaperState>,
    work: Condvar,
    /// Told of a node whose deletion has to go on in the background, and that this is over.
    tell: Arc<TellPending>,
    /// There is another reference for each node that was let go and whose deletion has no answer yet.
    unanswered: Arc<()>,
}

#[derive(Default)]
struct ReaperState {
    tasks: Vec<Task>,
    /// Deletes being worked on, at most one.
    busy: usize,
    running: bool,
    /// Counts the changes of sessions: each makes another attempt worth while.
    changes: u64,
    /// Counts the tasks; and which of them is tried now, if it may be tried again.
    added: u64,
    at_work: Option<u64>,
}

struct Task {
    number: u64,
    session: Weak<Session>,
    what: TaskKind,
    tries: u32,
    due: Instant,
    /// The number of changes when it was last tried.
    seen: u64,
    _subscription: Subscription,
}

/// Called with a node, as the server knows it, and whether its deletion still has to go on.
type TellPending = dyn Fn(&str, bool) + Send + Sync;

/// A node to delete, of which the program is told, and when that is over.
struct PendingNode {
    path: String,
    tell: Arc<TellPending>,
}

impl PendingNode {
    fn new(path: String, tell: &Arc<TellPending>) -> PendingNode {
        tell(&path, true);
        PendingNode { path, tell: Arc::clone(tell) }
    }
}

impl Drop for PendingNode {
    fn drop(&mut self) {
        (self.tell)(&self.path, false);
    }
}

enum TaskKind {
    /// The node at this path.
    Node(PendingNode),
    /// The node that transaction `czxid` created, and no later one of the same name.
    Named { path: String, czxid: i64 },
    /// Work for a given time; it returns when to run it again, if at all.
    Chore(Box<dyn FnMut() -> Option<Instant> + Send>),
    /// All children of this node whose names begin with one of these markers.
    Marked { parent: String, markers: Vec<String> },
}

impl Reaper {
    /// Has `tell` called with each node, as the server knows it, whose deletion has to go on in the
    /// background: with true when that begins, and with false when it is over.
    pub(crate) fn new(
        thread: &'static str,
        tell: impl Fn(&str, bool) + Send + Sync + 'static,
    ) -> Arc<Reaper> {
        let (state, work, unanswered) = (Mutex::default(), Condvar::new(), Arc::default());
        Arc::new(Reaper { thread, state, work, tell: Arc::new(tell), unanswered })
    }

    /// Deletes a node that is no longer needed. With a connection, this returns once the request is
    /// on its way, or at the deadline (see [`Verbs::let_go`](super::Verbs::let_go)).
    /// Whatever goes wrong, the node is deleted in the end.
    pub(crate) fn let_go(self: &Arc<Self>, session: &Arc<Session>, path: &str, until: Deadline) {
        if !session.status().now().is_usable() {
            return self.delete(session, path.to_owned());
        }
        session.leaves(path);
        let (unanswered, reaper) = (Arc::clone(&self.unanswered), Arc::clone(self));
        // Once the session is dropped, nothing is left to delete.
        let (owner, node) = (Arc::downgrade(session), path.to_owned());
        let on_answer = move |answer: Answer<()>| {
            if let Some(session) = owner.upgrade() {
                session.owned().note_delete(&node, &answer);
                match answer {
                    Ok(()) | Err(Fault::NoNode | Fault::SessionEnded) => {}
                    Err(Fault::ConnectionLoss | Fault::Busy) => reaper.delete(&session, node),
                    Err(_) => reaper.insist(&session, node),
                }
            }
            drop(unanswered);
        };
        session.let_go(path, until, Box::new(on_answer));
    }

    /// Deletes the node of a contender that gives up: by `until` if that is quick, otherwise in the
    /// background. `Ok` means that it is certain to be gone; `ConnectionLoss` may also mean that there
    /// was no time. With `then`, the lock node is deleted as well if it is empty, so that its numbers
    /// start anew.
    pub(crate) fn put_away(
        self: &Arc<Self>,
        session: &Arc<Session>,
        path: String,
        until: Deadline,
        then: Option<&str>,
    ) -> Answer<()> {
        let delete = |session: &Session| {
            let deleted = session.delete(&path);
            if let (Some(node), Ok(()) | Err(Fault::NoNode)) = (then, &deleted) {
                // If it is not empty, the next contender that is refused a number tries again.
                let _ = session.delete(node);
            }
            deleted
        };
        let is_usable = session.status().now().is_usable();
        match is_usable.then(|| session.ask(&until.into(), delete)).flatten() {
            Some(Ok(()) | Err(Fault::NoNode | Fault::SessionEnded)) => Ok(()),
            None | Some(Err(Fault::ConnectionLoss | Fault::System(_))) => {
                self.delete(session, path);
                Err(Fault::ConnectionLoss)
            }
            Some(Err(fault)) => {
                self.insist(session, path);
                Err(fault)
            }
        }
    }

    pub(crate) fn delete(self: &Arc<Self>, session: &Arc<Session>, path: String) {
        session.leaves(&path);
        self.add(session, TaskKind::Node(PendingNode::new(path, &self.tell)), rt::now());
    }

    /// Deletes a node whose deletion the server refused before: as long as it exists, it is in the
    /// way of all other contenders.
    pub(crate) fn insist(self: &Arc<Self>, session: &Arc<Session>, path: String) {
        session.owned().stay(&path);
        self.add(session, TaskKind::Node(PendingNode::new(path, &self.tell)), rt::now());
    }

    /// Deletes a node under a name that other sessions may take: only the one that transaction
    /// `czxid` created.
    pub(crate) fn delete_named(self: &Arc<Self>, session: &Arc<Session>, path: String, czxid: i64) {
        self.add(session, TaskKind::Named { path, czxid }, rt::now());
    }

    pub(crate) fn sweep(
        self: &Arc<Self>,
        session: &Arc<Session>,
        parent: String,
        markers: Vec<String>,
    ) {
        if !markers.is_empty() {
            self.add(session, TaskKind::Marked { parent, markers }, rt::now());
        }
    }

    /// Runs `chore` on the reaper's thread at `due`, or sooner, unless the session ends before. If
    /// no thread can be started for it, it runs late.
    pub(crate) fn later(
        self: &Arc<Self>,
        session: &Arc<Session>,
        due: Instant,
        chore: impl FnMut() -> Option<Instant> + Send + 'static,
    ) {
        self.add(session, TaskKind::Chore(Box::new(chore)), due);
    }

    /// Runs `chore` as `later` does, until what this returns is dropped.
    pub(crate) fn until_dropped(
        self: &Arc<Self>,
        session: &Arc<Session>,
        due: Instant,
        chore: impl FnMut() -> Option<Instant> + Send + 'static,
    ) -> Subscription {
        let number = self.add(session, TaskKind::Chore(Box::new(chore)), due);
        let reaper = Arc::downgrade(self);
        Subscription::until(move || {
            if let Some(reaper) = reaper.upgrade() {
                reaper.forget(number);
            }
        })
    }

    fn forget(&self, number: u64) {
        let mut state = self.state.lock();
        let place = state.tasks.iter().position(|task| task.number == number);
        let forgotten = place.map(|place| state.tasks.swap_remove(place));
        state.at_work = state.at_work.filter(|at_work| *at_work != number);
        if state.tasks.is_empty() {
            // The thread may sleep until that task would have been due.
            self.work.notify_one();
        }
        drop(state);
        // What it owns may take locks when it is dropped.
        drop(forgotten);
    }

    /// Deletes a node that may have been created, if it exists and is ours: others may have one of
    /// the same name.
    pub(crate) fn disown(
        self: &Arc<Self>,
        session: &Arc<Session>,
        path: String,
        is_ours: impl Fn(&Session, &[u8], &Stat) -> bool + Send + 'static,
    ) {
        let owner = Arc::downgrade(session);
        let chore = move || {
            let session = owner.upgrade()?;
            let found = session.sync().and_then(|()| session.read(&path, false));
            let left = match found {
                Ok(Some((data, stat))) if is_ours(&session, &data, &stat) => session.delete(&path),
                Ok(_) => Ok(()),
                Err(fault) => Err(fault),
            };
            match left {
                Ok(()) | Err(Fault::NoNode | Fault::SessionEnded) => None,
                Err(_) => rt::now().checked_add(PAUSE),
            }
        };
        self.later(session, rt::now(), chore);
    }

    /// How many deletes are left.
    pub(crate) fn backlog(&self) -> usize {
        // Looked at first: what such a deletion leaves is a task before the reference is dropped.
        let unanswered = Arc::strong_count(&self.unanswered) - 1;
        let state = self.state.lock();
        let busy = state.busy;
        let deletes = state.tasks.iter().filter(|task| !task.what.is_chore());
        let owners: Vec<Weak<Session>> = deletes.map(|task| Weak::clone(&task.session)).collect();
        drop(state);
        // A session's nodes end with it. The session may be dropped here, so not under the lock.
        let lives = |owner: &Weak<Session>| {
            owner.upgrade().is_some_and(|session| session.status().now().ended.is_none())
        };
        owners.iter().filter(|owner| lives(owner)).count() + busy + unanswered
    }

    fn add(self: &Arc<Self>, session: &Arc<Session>, what: TaskKind, due: Instant) -> u64 {
        let reaper = Arc::downgrade(self);
        let signal = Arc::new(move || {
            if let Some(reaper) = reaper.upgrade() {
                reaper.state.lock().changes += 1;
                reaper.work.notify_one();
            }
        });
        let _subscription = session.status().subscribe(signal);
        let node = if let TaskKind::Node(node) = &what { Some(node.path.clone()) } else { None };
        let owner = Arc::downgrade(session);
        let mut state = self.state.lock();
        let seen = state.changes;
        state.added += 1;
        let number = state.added;
        state.tasks.push(Task { number, session: owner, what, tries: 0, due, seen, _subscription });
        self.work.notify_one();
        drop(state);
        if let Err(error) = self.retry() {
            logging::error!(target: "zklock::reaper", "could not start the thread {}, so its work is late: {error}", self.thread);
            // No thread tries it before the next change; this request needs no thread.
            if let Some(path) = node {
                session.delete_soon(&path);
            }
        }
        number
    }

    /// Starts the thread if there are tasks and it is not running.
    pub(crate) fn retry(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state.lock();
        if state.running || state.tasks.is_empty() {
            return Ok(());
        }
        // Under the lock: otherwise another call could rely on a thread that cannot be started.
        let reaper = Arc::clone(self);
        rt::spawn(self.thread, move || reaper.work())?;
        state.running = true;
        Ok(())
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let now = rt::now();
            if let Some(mut task) = state.take_due(now) {
                task.seen = state.changes;
                state.busy = usize::from(!task.what.is_chore());
                state.at_work = Some(task.number);
                drop(state);
                // A task or a logger that panics must not stop the others.
                let next = catch_unwind(AssertUnwindSafe(|| task.attempt()));
                let next = next.unwrap_or_else(|_| Some(rt::now() + task.pause()));
                let task = next.map(|due| Task { due, ..task });
                state = self.state.lock();
                state.busy = 0;
                if state.at_work.take().is_some() {
                    state.tasks.extend(task);
                } else {
                    drop(state);
                    drop(task);
                    state = self.state.lock();
                }
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

impl ReaperState {
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

    /// Tries once; returns when to try again, unless nothing is left to do.
    fn attempt(&mut self) -> Option<Instant> {
        let session = self.session.upgrade()?;
        let phase = session.status().now();
        if phase.ended.is_some() {
            return None;
        }
        if let TaskKind::Chore(chore) = &mut self.what {
            return chore();
        }
        (!self.delete(&session, phase.attached)).then(|| rt::now() + self.pause())
    }

    /// Tries once; returns whether nothing is left to delete.
    fn delete(&mut self, session: &Arc<Session>, attached: bool) -> bool {
        self.tries = self.tries.saturating_add(1);
        if !attached {
            return false;
        }
        let result = match &self.what {
            TaskKind::Node(node) => delete(session, &node.path),
            TaskKind::Named { path, czxid } => match session.delete_named(path, *czxid) {
                Err(Fault::NoNode) => Ok(()),
                deleted => deleted,
            },
            TaskKind::Marked { parent, markers } => sweep(session, parent, markers),
            TaskKind::Chore(_) => Ok(()),
        };
        match result {
            Ok(()) => true,
            Err(Fault::SessionEnded) => true,
            Err(Fault::ConnectionLoss) => false,
            Err(fault) => {
                if self.tries.is_power_of_two() {
                    logging::error!(target: "zklock::reaper", "{} cannot be deleted: {fault}", self.what);
                }
                false
            }
        }
    }
}

fn delete(session: &Session, path: &str) -> Answer<()> {
    match session.delete(path) {
        Ok(()) | Err(Fault::NoNode) => Ok(()),
        Err(fault) => {
            if fault != Fault::ConnectionLoss {
                session.owned().stay(path);
            }
            Err(fault)
        }
    }
}

fn sweep(session: &Session, parent: &str, markers: &[String]) -> Answer<()> {
    // Without the `sync`, a server that lags behind might not show them. Those that come later are found by
    // `strays`.
    let connection = session.status().now().connection;
    session.sync()?;
    let children = session.names(parent, false)?.unwrap_or_default();
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

impl TaskKind {
    fn is_chore(&self) -> bool {
        matches!(self, TaskKind::Chore(_))
    }
}

impl std::fmt::Display for TaskKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TaskKind::Node(PendingNode { path, .. }) | TaskKind::Named { path, .. } => {
                write!(f, "{path:?}")
            }
            TaskKind::Marked { parent, .. } => write!(f, "a contender under {parent:?}"),
            TaskKind::Chore(_) => f.write_str("something"),
        }
    }
}
