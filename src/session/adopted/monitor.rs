//! Finds out which session a program's handle is in and whether it is connected, and reports it as
//! a link would.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::handle_trait::{Handle, HandleEvent};
use super::watchers::WatcherTable;
use crate::connection_notice::{End, Notice};
use crate::rt::{self, Deadline, Mutex, Signal};
use crate::session::connection::{Answer, Fault, SessionRecords};
use crate::session::wait::Waiter;
use crate::wire_values::Stat;
use crate::{logging, path};

/// After this many failed attempts, each further one checks whether the handle is dead.
const DOUBTS: u32 = 3;

/// The pause between two looks whether the root has changed, if its watches tell nothing.
const LOOK_AT_ROOT: Duration = Duration::from_secs(1);

fn is_unchanged(before: &Stat, now: &Stat) -> bool {
    let what = |stat: &Stat| (stat.czxid, stat.mzxid, stat.children_zxid);
    what(before) == what(now)
}

/// Work that the session's own thread does for callers that do not wait.
type MonitorJob = Box<dyn FnOnce() + Send>;

/// See the module.
pub(super) struct Monitor {
    pub(super) handle: Arc<dyn Handle>,
    pub(super) watchers: Arc<WatcherTable>,
    /// A path under the root that no client ever creates.
    nowhere: String,
    state: Mutex<MonitorState>,
    telling: Mutex<Telling>,
    bell: Signal,
}

#[derive(Default)]
struct MonitorState {
    attached: bool,
    /// Counts how often it became attached.
    connection: u64,
    /// Counts the crate's reports.
    changes: u64,
    ended: Option<End>,
    /// The session has ended, and nothing of it is left to delete.
    over: bool,
    /// The handle is closed for good.
    shut: bool,
    /// No connection and no call uses the session any more.
    left: bool,
    /// The session's id, once it is known.
    owner: i64,
    /// The nodes that end with the session.
    mine: HashSet<String>,
    /// The path prefixes, as requested, of nodes that may exist and end with the session.
    doubtful: BTreeSet<String>,
    /// Nodes to delete even though the session has ended.
    strays: Vec<Stray>,
    jobs: VecDeque<MonitorJob>,
    /// The root as a call that waits for its next change has seen it, and when to look again.
    root: Option<(Stat, Instant)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stray {
    Node(String),
    /// All nodes whose paths begin like this.
    Marked(String),
}

/// What was reported last, and what else to call beside the status.
struct Telling {
    attached: bool,
    connection: u64,
    ended: bool,
    over: bool,
    records: SessionRecords,
}

impl Monitor {
    /// The waiter is for [`run`](Monitor::run).
    pub(super) fn new(handle: Arc<dyn Handle>, records: SessionRecords) -> (Arc<Monitor>, Waiter) {
        let waiter = Waiter::new();
        let watches = Arc::clone(&records.watches);
        let telling =
            Telling { attached: false, connection: 0, ended: false, over: false, records };
        let monitor = Monitor {
            handle,
            watchers: Arc::new(WatcherTable::new(watches)),
            nowhere: format!("/zklock-{}", Uuid::from_u128(rt::random())),
            state: Mutex::default(),
            telling: Mutex::new(telling),
            bell: waiter.bell(),
        };
        (Arc::new(monitor), waiter)
    }

    /// Makes a call if the session is connected. The answer to a call during which the session
    /// ended is dropped: it may be about the handle's next session.
    pub(super) fn call<T>(&self, ask: impl FnOnce(&dyn Handle) -> Answer<T>) -> Answer<T> {
        self.settle();
        let state = self.state.lock();
        let before = state.connection;
        if state.ended.is_some() {
            return Err(Fault::SessionEnded);
        }
        if !state.attached {
            return Err(Fault::ConnectionLoss);
        }
        drop(state);
        let answer = ask(&*self.handle);
        let mut state = self.state.lock();
        match &answer {
            // The crate also loses requests on connections that go on.
            Err(Fault::ConnectionLoss) if state.connection == before => state.attached = false,
            Err(Fault::SessionEnded) => state.end(End::Expired),
            _ => {}
        }
        let (ended, attached) = (state.ended.is_some(), state.attached);
        drop(state);
        self.settle();
        if ended || !attached {
            (self.bell)();
        }
        if ended { Err(Fault::SessionEnded) } else { answer }
    }

    /// The crate has no `sync`. Deleting a node that does not exist has the same effect: it goes
    /// through the leader like any write.
    pub(super) fn sync(&self) -> Answer<()> {
        self.call(|handle| self.ask_leader(handle))
    }

    fn ask_leader(&self, handle: &dyn Handle) -> Answer<()> {
        match handle.delete(&self.nowhere, None) {
            Ok(()) | Err(Fault::NoNode | Fault::NoAuth) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Runs `make`, which creates an ephemeral node whose path begins with `prefix`, and remembers
    /// the node.
    pub(super) fn make(
        &self,
        prefix: &str,
        make: impl FnOnce(&dyn Handle) -> Answer<String>,
    ) -> Answer<String> {
        self.state.lock().doubtful.insert(prefix.to_owned());
        let mut outcome = None;
        let answer = self.call(|handle| {
            let made = make(handle);
            outcome = Some(made.clone());
            made
        });
        let mut state = self.state.lock();
        match (&answer, outcome) {
            (Ok(made), _) => drop(state.mine.insert(made.clone())),
            // Still in doubt.
            (Err(Fault::ConnectionLoss), Some(_)) => return answer,
            // The node may belong to the handle's next session.
            (Err(Fault::SessionEnded), Some(Ok(made))) => state.strays.push(Stray::Node(made)),
            (Err(Fault::SessionEnded), Some(Err(Fault::ConnectionLoss))) => {
                state.strays.push(Stray::Marked(prefix.to_owned()));
            }
            _ => {}
        }
        state.doubtful.remove(prefix);
        drop(state);
        if answer.is_err() {
            (self.bell)();
        }
        answer
    }

    /// Learns the session's id from one of our nodes.
    pub(super) fn learn(&self, path: &str, stat: &Stat) -> Answer<()> {
        let mut state = self.state.lock();
        if !state.mine.contains(path) || state.owner == stat.ephemeral_owner {
            return Ok(());
        }
        if state.owner == 0 {
            state.owner = stat.ephemeral_owner;
            return Ok(());
        }
        // The handle is in another session than before, and has not reported it.
        state.strays.push(Stray::Node(path.to_owned()));
        state.end(End::Expired);
        drop(state);
        self.settle();
        (self.bell)();
        Err(Fault::SessionEnded)
    }

    /// Learns the session's id, if it is not known yet, from a node that was created just now, even
    /// if other sessions may use its name later.
    pub(super) fn meet(&self, stat: &Stat) {
        let mut state = self.state.lock();
        if state.owner == 0 && state.ended.is_none() {
            state.owner = stat.ephemeral_owner;
        }
    }

    pub(super) fn owner(&self) -> i64 {
        self.state.lock().owner
    }

    pub(super) fn is_mine(&self, path: &str) -> bool {
        self.state.lock().mine.contains(path)
    }

    pub(super) fn note_gone(&self, path: &str) {
        self.state.lock().mine.remove(path);
    }

    /// How the session has ended, if that was seen.
    pub(super) fn end(&self) -> Option<End> {
        self.state.lock().ended
    }

    pub(super) fn later(&self, job: impl FnOnce() + Send + 'static) {
        self.state.lock().jobs.push_back(Box::new(job));
        (self.bell)();
    }

    /// Ends the session for the client, not for the handle.
    pub(super) fn close(&self) {
        self.state.lock().close();
        self.settle();
        (self.bell)();
    }

    /// Closes, and ends the thread when everything is done. The caller may be a thread of the crate
    /// that dropped the last reference, so this only signals.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.close();
        state.left = true;
        drop(state);
        (self.bell)();
    }

    /// Reports what has changed, in order, on whichever thread comes first.
    fn settle(&self) {
        let mut telling = self.telling.lock();
        loop {
            let state = self.state.lock();
            let notice = match state.ended {
                Some(end) if !telling.ended => {
                    telling.ended = true;
                    Notice::Ended(end)
                }
                Some(_) if state.over && !telling.over => {
                    telling.over = true;
                    Notice::Over
                }
                Some(_) => return,
                None if telling.attached
                    && !(state.attached && state.connection == telling.connection) =>
                {
                    telling.attached = false;
                    Notice::Suspended
                }
                None if state.attached && !telling.attached => {
                    (telling.attached, telling.connection) = (true, state.connection);
                    Notice::Attached
                }
                None => return,
            };
            drop(state);
            telling.records.note(notice);
        }
    }

    /// Notes a report of the crate. This runs on the crate's own thread, so it does nothing else.
    fn heard(&self, line: HandleEvent) {
        let mut state = self.state.lock();
        state.changes += 1;
        match line {
            HandleEvent::Connected => state.attach(),
            HandleEvent::Lost => state.attached = false,
            HandleEvent::Expired => state.end(End::Expired),
            HandleEvent::AuthFailed => state.end(End::AuthFailed),
            HandleEvent::Closed => state.shut(),
        }
        drop(state);
        if line != HandleEvent::Connected {
            self.watchers.void();
        }
        (self.bell)();
    }

    /// Runs the session's own thread. `opening` is dropped when the handle has answered.
    pub(super) fn run<T>(self: &Arc<Self>, waiter: &Waiter, opening: T) {
        let monitor: Weak<Monitor> = Arc::downgrade(self);
        let unlisten = self.handle.listen(Box::new(move |line| {
            if let Some(monitor) = monitor.upgrade() {
                monitor.heard(line);
            }
        }));
        if unlisten.is_none() {
            self.state.lock().shut();
        }
        let (mut tries, mut due, mut seen) = (0, rt::now(), 0);
        let mut opening = Some(opening);
        loop {
            self.settle();
            let mut state = self.state.lock();
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                continue;
            }
            if state.changes != seen {
                (seen, tries, due) = (state.changes, 0, rt::now());
            }
            let (ended, left) = (state.ended.is_some(), state.left);
            if ended || state.attached {
                drop(opening.take());
            }
            let idle = if ended { state.strays.is_empty() } else { state.attached };
            if idle && ended && !state.over {
                state.over = true;
                continue;
            }
            drop(state);
            if idle && left {
                break;
            }
            if idle {
                tries = 0;
                if ended || self.call(|handle| self.watchers.tidy(handle)).is_ok() {
                    waiter.wait(if ended { Deadline::NEVER } else { self.look_at_root() });
                }
            } else if rt::now() < due {
                waiter.wait(Deadline::at(due));
            } else if !if ended { self.sweep() } else { self.probe() } {
                tries += 1;
                if tries > DOUBTS && self.handle.is_dead(&self.nowhere) {
                    self.state.lock().shut();
                }
                due = rt::now() + pause(tries);
            }
        }
        if let Some(unlisten) = unlisten {
            unlisten();
        }
    }

    /// From now on looks whether the root is still as a call has seen it, until it is not.
    pub(super) fn poll_root(&self, seen: Stat) {
        let due = rt::now() + LOOK_AT_ROOT;
        let before = self.state.lock().root.replace((seen, due));
        // Another call may wait for just this change.
        if before.is_some_and(|(before, _)| !is_unchanged(&before, &seen)) {
            self.watchers.tell_of("/");
        }
        (self.bell)();
    }

    /// Tells the calls that wait for a change of the root, if it is time; returns when to look again.
    fn look_at_root(&self) -> Deadline {
        let root = self.state.lock().root;
        let Some((seen, due)) = root.filter(|_| self.watchers.is_awaited("/")) else {
            return Deadline::NEVER;
        };
        if rt::now() < due {
            return Deadline::at(due);
        }
        let found = self.call(|handle| handle.exists("/"));
        let is_known = match found {
            Ok(stat) => stat.is_some_and(|stat| is_unchanged(&seen, &stat)),
            // The calls look again when there is a connection.
            Err(fault) => fault.is_loss(),
        };
        if is_known {
            // A call may have seen it again meanwhile, and is told of what came before that.
            let mut state = self.state.lock();
            state.root.iter_mut().for_each(|(_, due)| *due = rt::now() + LOOK_AT_ROOT);
        } else {
            self.state.lock().root = None;
            self.watchers.tell_of("/");
        }
        Deadline::at(rt::now())
    }

    /// Makes a request; returns whether the handle answers again, or the session has ended.
    fn probe(&self) -> bool {
        let before = self.state.lock().changes;
        let answer = self.ask_leader(&*self.handle);
        let mut state = self.state.lock();
        match answer {
            Ok(()) if state.changes == before => state.attach(),
            Err(Fault::SessionEnded) => state.end(End::Expired),
            _ => {}
        }
        state.attached || state.ended.is_some()
    }

    /// Deletes what is left, in whatever session the handle has; returns whether nothing is left.
    fn sweep(&self) -> bool {
        let mut state = self.state.lock();
        if state.shut || self.handle.is_orphan() {
            // All of it ends with the handle's session.
            state.strays.clear();
            return true;
        }
        let strays = state.strays.clone();
        drop(state);
        for stray in strays {
            match self.remove(&stray) {
                Ok(()) | Err(Fault::NoNode) => {}
                Err(fault) if fault.is_loss() => return false,
                Err(fault) => {
                    logging::error!(target: "zklock::reaper", "{stray:?} cannot be deleted: {fault}");
                }
            }
            self.state.lock().strays.retain(|other| *other != stray);
        }
        true
    }

    fn remove(&self, stray: &Stray) -> Answer<()> {
        let prefix = match stray {
            Stray::Node(path) => return self.handle.delete(path, None),
            Stray::Marked(prefix) => prefix,
        };
        let before = self.state.lock().changes;
        self.ask_leader(&*self.handle)?;
        let parent = path::parent(prefix);
        let children = self.handle.children(parent)?.unwrap_or_default();
        for child in children.iter().filter(|child| child.starts_with(path::last(prefix))) {
            match self.handle.delete(&path::join(parent, child), None) {
                Ok(()) | Err(Fault::NoNode) => {}
                Err(fault) => return Err(fault),
            }
        }
        let same = self.state.lock().changes == before;
        if same { Ok(()) } else { Err(Fault::ConnectionLoss) }
    }
}

impl MonitorState {
    fn attach(&mut self) {
        if !self.attached && self.ended.is_none() {
            self.attached = true;
            self.connection += 1;
        }
    }

    fn end(&mut self, end: End) {
        self.attached = false;
        self.ended.get_or_insert(end);
    }

    fn close(&mut self) {
        if self.ended.is_none() {
            self.end(End::Closed);
            let (mine, doubtful) =
                (std::mem::take(&mut self.mine), std::mem::take(&mut self.doubtful));
            self.strays.extend(mine.into_iter().map(Stray::Node));
            self.strays.extend(doubtful.into_iter().map(Stray::Marked));
        }
    }

    fn shut(&mut self) {
        self.shut = true;
        self.end(End::Closed);
    }
}

fn pause(tries: u32) -> Duration {
    (Duration::from_millis(10) * 2u32.pow(tries.min(7))).min(Duration::from_secs(1))
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Monitor")
            .field("attached", &state.attached)
            .field("ended", &state.ended)
            .field("mine", &state.mine)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::super::handle_trait::{Unlisten, Watcher};
    use super::*;
    use crate::acl::Acl;
    use crate::session::connection::{Found, Names, NodeKind};

    /// Creates nodes, and does nothing else.
    #[derive(Debug)]
    struct Maker;

    impl Handle for Maker {
        fn create(&self, path: &str, _: &[u8], _: &[Acl], _: NodeKind) -> Answer<String> {
            Ok(format!("{path}0000000000"))
        }

        fn delete(&self, _: &str, _: Option<i32>) -> Answer<()> {
            Err(Fault::NoNode)
        }

        fn write(&self, _: &str, _: &[u8], _: Option<i32>) -> Answer<Stat> {
            Err(Fault::NoNode)
        }

        fn acl(&self, _: &str) -> Answer<Vec<Acl>> {
            unreachable!()
        }

        fn set_acl(&self, _: &str, _: &[Acl]) -> Answer<Stat> {
            unreachable!()
        }

        fn read(&self, _: &str) -> Answer<Found> {
            Ok(None)
        }

        fn exists(&self, _: &str) -> Answer<Option<Stat>> {
            Ok(None)
        }

        fn children(&self, _: &str) -> Answer<Option<Names>> {
            Ok(None)
        }

        fn read_with(&self, _: &str, _: Watcher) -> Answer<(Vec<u8>, Stat)> {
            Err(Fault::NoNode)
        }

        fn exists_with(&self, _: &str, _: Watcher) -> Answer<Option<Stat>> {
            Ok(None)
        }

        fn children_with(&self, _: &str, _: Watcher) -> Answer<Names> {
            Err(Fault::NoNode)
        }

        fn forget(&self, _: &str) -> Answer<()> {
            Ok(())
        }

        fn listen(&self, _: Box<dyn Fn(HandleEvent) + Send>) -> Option<Unlisten> {
            None
        }

        fn is_dead(&self, _: &str) -> bool {
            false
        }

        fn is_orphan(&self) -> bool {
            false
        }

        fn address(&self) -> Option<usize> {
            None
        }
    }

    fn monitor() -> (Arc<Monitor>, Waiter) {
        let reports = SessionRecords {
            status: Arc::default(),
            watches: Arc::default(),
            on_notice: Box::new(drop),
        };
        Monitor::new(Arc::new(Maker), reports)
    }

    #[test]
    fn what_may_have_been_made_is_looked_for_after_the_close() {
        let (monitor, _waiter) = monitor();
        monitor.heard(HandleEvent::Connected);
        let answer = monitor.make("/a-", |_| Err(Fault::ConnectionLoss));
        assert_eq!(answer, Err(Fault::ConnectionLoss));
        monitor.close();
        assert_eq!(monitor.state.lock().strays, [Stray::Marked("/a-".to_owned())]);
    }

    #[test]
    fn a_node_of_another_session_than_before_ends_the_session_and_is_deleted() {
        let (monitor, _waiter) = monitor();
        let of = |owner| Stat { ephemeral_owner: owner, ..Stat::default() };
        monitor.heard(HandleEvent::Connected);
        let make = |prefix: &str| {
            monitor.make(prefix, |handle| {
                handle.create(prefix, b"", &[], NodeKind::EphemeralSequential)
            })
        };
        let (first, second) = (make("/a-").unwrap(), make("/b-").unwrap());
        assert_eq!(monitor.learn(&first, &of(7)), Ok(()));
        assert_eq!(monitor.owner(), 7);
        assert_eq!(monitor.learn("/of-a-stranger", &of(9)), Ok(()));
        assert_eq!(monitor.learn(&second, &of(7)), Ok(()));
        assert_eq!(monitor.end(), None);
        assert_eq!(monitor.learn(&second, &of(9)), Err(Fault::SessionEnded));
        assert_eq!(monitor.end(), Some(End::Expired));
        assert_eq!(monitor.state.lock().strays, [Stray::Node(second)]);
    }
}
