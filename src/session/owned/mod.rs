//! The ephemeral nodes of one session: those that it owns, those that are being created or deleted, and
//! those that requests without an answer may still create.
//!
//! - A request of a connection that was given up can be carried out later than newer ones of the same
//!   session, until the session has ended: see [`creates_in_doubt`].
//! - A session's end is one transaction with the paths of all its nodes. Beyond a size, released servers
//!   write it and cannot read it again.

mod creates_in_doubt;

pub(crate) use creates_in_doubt::{BETWEEN_LOOKS, StillMeant};

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::rt::{self, AtomicBool, Mutex, MutexGuard};
use crate::session::connection::{Answer, Created, Fault, Names, NodeKind, Status};
use crate::{logging, path};
use creates_in_doubt::{CreatesInDoubt, DoubtKind};

/// The bytes of each path in the transaction, besides its own.
const PER_PATH: usize = 4;
/// The digits that the server adds to a sequential node's name.
const DIGITS: usize = 10;

/// What to do about a create without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnDoubt {
    /// The session owns nothing: end it, and nothing of it can be carried out any more.
    EndSession,
    /// Begin to look for the node.
    Look,
}

/// See the module.
pub(crate) struct OwnedNodes {
    state: Mutex<OwnedState>,
    /// Whether there are creates in doubt, for callers that need not know more.
    has_doubts: AtomicBool,
    /// How many bytes of paths the servers can carry at the session's end.
    limit: usize,
    /// From when on the session can be ended if it owns nothing, if ever.
    may_end_from: Option<Instant>,
    status: Arc<Status>,
    on_doubt: OnceLock<Box<dyn Fn(OnDoubt) + Send + Sync>>,
}

#[derive(Default)]
struct OwnedState {
    /// Nodes that somebody in this process relies on.
    live: HashSet<Box<str>>,
    /// Nodes that are about to be deleted.
    leaving: BTreeSet<Box<str>>,
    /// How many creates are under way, and those of them whose names others may want, too.
    making: usize,
    named: Vec<Box<str>>,
    /// How many calls can find out only in this session what has become of a change.
    needed: usize,
    /// Nodes may depend on the session that are not known here.
    may_own_more: bool,
    /// The size of all these, of those that are being created and of those in doubt.
    bytes: usize,
    has_warned: bool,
    doubts: CreatesInDoubt,
    is_looked_for: bool,
    /// No node is created in this session any more.
    is_ending: bool,
}

impl OwnedNodes {
    pub(super) fn new(
        limit: usize,
        may_end_from: Option<Instant>,
        status: Arc<Status>,
    ) -> OwnedNodes {
        OwnedNodes {
            state: Mutex::default(),
            has_doubts: AtomicBool::new(false),
            limit,
            may_end_from,
            status,
            on_doubt: OnceLock::new(),
        }
    }

    /// Has `act` called when something is to be done, once, on a thread that has just lost an answer.
    pub(super) fn on_doubt(&self, act: impl Fn(OnDoubt) + Send + Sync + 'static) {
        let _ = self.on_doubt.set(Box::new(act));
    }

    // ----- creating

    /// Notes that an ephemeral node is about to be created; `path` is without the number of a sequential one.
    /// Of a node that the program has named itself, `is_ours` is false. Fails if the session would own too
    /// much, or is about to end.
    pub(super) fn begin(
        self: &Arc<Self>,
        path: &str,
        node: NodeKind,
        is_ours: bool,
    ) -> Result<NodeInMaking, Fault> {
        let is_numbered = matches!(node, NodeKind::Contender | NodeKind::EphemeralSequential);
        let kind = match node {
            _ if !is_ours => DoubtKind::OfTheProgram,
            _ if is_numbered => DoubtKind::Numbered,
            _ => DoubtKind::Named,
        };
        let bytes = size(path) + if is_numbered { DIGITS } else { 0 };
        let mut state = self.state.lock();
        if state.is_ending {
            return Err(Fault::SessionEnded);
        }
        let sum = state.bytes + bytes;
        if sum > self.most() {
            return Err(self.too_large(sum));
        }
        let warns = sum > self.limit / 4 && !std::mem::replace(&mut state.has_warned, true);
        state.bytes = sum;
        state.making += 1;
        if kind == DoubtKind::Named {
            state.named.push(path.into());
        }
        drop(state);
        if warns {
            logging::warning!(
                target: "zklock::session",
                "the paths of the session's ephemeral nodes have {sum} bytes, and servers can carry {} at its end: at {} \
                 no more are created; use several clients",
                self.limit,
                self.most()
            );
        }
        let (owned, path) = (Arc::clone(self), path.into());
        Ok(NodeInMaking { owned, path, kind, bytes, is_settled: AtomicBool::new(false) })
    }

    fn most(&self) -> usize {
        self.limit / 4 * 3
    }

    fn too_large(&self, sum: usize) -> Fault {
        Fault::TooLarge(format!(
            "with it the paths of the session's ephemeral nodes would have {sum} bytes, and at most {} may be: servers \
             can carry {} at the session's end; use several clients, or state the servers' limit by \
             ClientBuilder::session_paths_limit",
            self.most(),
            self.limit
        ))
    }

    fn settle(&self, one: &NodeInMaking, outcome: &Answer<Created>, meant: Option<&StillMeant>) {
        let mut state = self.state.lock();
        state.making -= 1;
        state.bytes = state.bytes.saturating_sub(one.bytes);
        if let Some(at) = state.named.iter().position(|name| *name == one.path) {
            state.named.swap_remove(at);
        }
        match outcome {
            Ok(made) => state.own(&made.path),
            // The program may find it, and rely on it.
            Err(Fault::ConnectionLoss) if one.kind == DoubtKind::OfTheProgram => {
                state.may_own_more = true;
            }
            Err(Fault::ConnectionLoss) => self.doubt(state, one, meant),
            Err(_) => {}
        }
    }

    fn doubt(
        &self,
        mut state: MutexGuard<'_, OwnedState>,
        one: &NodeInMaking,
        meant: Option<&StillMeant>,
    ) {
        let may_end = self.may_end_from.is_some_and(|begin| rt::now() >= begin);
        if !may_end || !state.owns_nothing() {
            return self.look_for(state, &one.path, (one.kind, one.bytes), meant);
        }
        state.is_ending = true;
        drop(state);
        if let Some(act) = self.on_doubt.get() {
            act(OnDoubt::EndSession);
        }
    }

    /// A create is in doubt of a numbered node that outlives the session: only looks find it.
    pub(super) fn doubt_lasting(&self, path: &str, meant: &StillMeant) {
        let kind = DoubtKind::Numbered;
        let mut state = self.state.lock();
        state.may_own_more = true;
        self.look_for(state, path, (kind, 0), Some(meant));
    }

    /// Until this is dropped, the session is not ended for a doubt: its caller finds out only here what has
    /// become of a change.
    pub(crate) fn need(self: &Arc<Self>) -> SessionNeed {
        self.state.lock().needed += 1;
        SessionNeed(Arc::clone(self))
    }

    fn look_for(
        &self,
        mut state: MutexGuard<'_, OwnedState>,
        path: &str,
        (kind, bytes): (DoubtKind, usize),
        meant: Option<&StillMeant>,
    ) {
        let place = (path::parent(path), path::last(path));
        let since = (rt::now(), self.status.now().connection);
        let forgotten = state.doubts.add(place, kind, bytes, meant, since);
        state.bytes = (state.bytes + bytes).saturating_sub(forgotten);
        self.has_doubts.store(true, Ordering::SeqCst);
        let is_first = !std::mem::replace(&mut state.is_looked_for, true);
        drop(state);
        if let Some(act) = self.on_doubt.get().filter(|_| is_first) {
            act(OnDoubt::Look);
        }
    }

    // ----- what becomes of the nodes

    /// The node is found to be this session's own, and somebody relies on it.
    pub(crate) fn own(&self, path: &str) {
        let mut state = self.state.lock();
        state.settle_doubt(path, None);
        state.own(path);
    }

    /// The node is no longer needed and is about to be deleted: no call will ever adopt it, and no guard
    /// relies on it.
    pub(super) fn leave(&self, path: &str) {
        let mut state = self.state.lock();
        match state.live.take(path) {
            Some(path) => {
                state.leaving.insert(path);
            }
            None if state.leaving.insert(path.into()) => state.bytes += size(path),
            None => {}
        }
    }

    /// The names of the parent's children that are about to be deleted.
    pub(super) fn leaving(&self, parent: &str) -> Vec<String> {
        let state = self.state.lock();
        let inside = state.leaving.iter().filter(|path| path::parent(path) == parent);
        inside.map(|path| path::last(path).to_owned()).collect()
    }

    /// The node cannot be deleted for now: as long as it exists, it is in the way of all others.
    pub(super) fn stay(&self, path: &str) {
        let mut state = self.state.lock();
        if let Some(path) = state.leaving.take(path) {
            state.live.insert(path);
        }
    }

    /// The node does not exist.
    pub(crate) fn forget(&self, path: &str) {
        let mut state = self.state.lock();
        if state.live.remove(path) | state.leaving.remove(path) {
            state.bytes = state.bytes.saturating_sub(size(path));
        }
    }

    /// What the answer to the node's deletion says of it.
    pub(super) fn note_delete(&self, path: &str, answer: &Answer<()>) {
        match answer {
            Ok(()) => self.deleted(path),
            Err(Fault::NoNode) => self.forget(path),
            Err(_) => {}
        }
    }

    /// The node was found and deleted.
    pub(super) fn deleted(&self, path: &str) {
        self.forget(path);
        self.settle_doubt(path, None);
    }

    // ----- creates in doubt

    /// Takes those of the children that a create in doubt has made, and that nobody wants: the caller has
    /// them deleted.
    pub(super) fn take_strays(&self, parent: &str, children: &Names) -> Vec<String> {
        if !self.has_doubts.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let OwnedState { live, leaving, doubts, .. } = &mut *state;
        let is_known = |path: &str| live.contains(path) || leaving.contains(path);
        let others = children.iter().filter(|name| !is_known(&path::join(parent, name)));
        let (strays, bytes) = doubts.take_strays(parent, others);
        state.bytes = state.bytes.saturating_sub(bytes);
        strays
    }

    /// Those of the children that a create in doubt may have made, if their owner says so.
    pub(super) fn named_in_doubt(&self, parent: &str, children: &Names) -> Vec<String> {
        self.state.lock().doubts.named(parent, children.iter())
    }

    /// The node was found; with the transaction that made it if it is this session's own and nobody relies on
    /// it.
    pub(crate) fn settle_doubt(&self, path: &str, czxid: Option<i64>) {
        if self.has_doubts.load(Ordering::SeqCst) {
            self.state.lock().settle_doubt(path, czxid);
        }
    }

    /// Whether a create in doubt may have made that node, and nobody relies on it or creates one of this
    /// name.
    pub(super) fn is_stray(&self, path: &str, czxid: i64) -> bool {
        let state = self.state.lock();
        let is_wanted = state.live.contains(path) || state.named.iter().any(|name| **name == *path);
        !is_wanted && state.doubts.may_have_made(path::parent(path), path::last(path), czxid)
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn doubts(&self) -> usize {
        self.state.lock().doubts.count()
    }

    /// The parents to look at now.
    pub(super) fn due(&self, now: Instant, timeout: Duration) -> Vec<String> {
        self.state.lock().doubts.due(now, self.status.now().connection, timeout)
    }

    /// The parents were looked at, on this connection.
    pub(super) fn note_looks(&self, parents: &[String], now: Instant, connection: u64) {
        let mut state = self.state.lock();
        parents.iter().for_each(|parent| state.doubts.note_look(parent, now, connection));
    }

    /// When to look next; `None` means that there will be no look, until another create is in doubt.
    pub(super) fn next_look(&self, timeout: Duration) -> Option<Instant> {
        let mut state = self.state.lock();
        let next = state.doubts.next_look(self.status.now().connection, timeout);
        state.is_looked_for = next.is_some();
        if state.doubts.is_empty() {
            self.has_doubts.store(false, Ordering::SeqCst);
        }
        next
    }

    // ----- the end

    /// The nodes to delete before the session ends, so that its end is small: those of later contenders
    /// first, so that none of them is granted what the ones before it hold. Empty if its end is small anyway.
    pub(super) fn to_delete_at_end(&self) -> Vec<String> {
        let state = self.state.lock();
        if state.bytes <= self.limit / 4 {
            return Vec::new();
        }
        let mut all: Vec<String> = state.live.iter().map(|path| path.to_string()).collect();
        drop(state);
        let number = |path: &str| path.get(path.len().saturating_sub(DIGITS)..).map(str::to_owned);
        all.sort_by_cached_key(|path| std::cmp::Reverse((number(path), path.clone())));
        all
    }
}

fn size(path: &str) -> usize {
    path.len() + PER_PATH
}

impl OwnedState {
    /// Whether nobody misses the session if it ends. What is about to be deleted ends with it.
    fn owns_nothing(&self) -> bool {
        self.live.is_empty() && self.making == 0 && self.needed == 0 && !self.may_own_more
    }

    fn own(&mut self, path: &str) {
        if !self.live.contains(path) {
            self.live.insert(path.into());
            self.bytes += size(path);
        }
    }

    fn settle_doubt(&mut self, path: &str, czxid: Option<i64>) {
        let bytes = self.doubts.settle(path::parent(path), path::last(path), czxid);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl fmt::Debug for OwnedNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedNodes").finish_non_exhaustive()
    }
}

/// See [`OwnedNodes::need`].
pub(crate) struct SessionNeed(Arc<OwnedNodes>);

impl Drop for SessionNeed {
    fn drop(&mut self) {
        self.0.state.lock().needed -= 1;
    }
}

/// A node that is being created. Without an outcome, it is in doubt.
pub(super) struct NodeInMaking {
    owned: Arc<OwnedNodes>,
    path: Box<str>,
    kind: DoubtKind,
    bytes: usize,
    is_settled: AtomicBool,
}

impl NodeInMaking {
    /// Notes the outcome; only the first one counts. As long as `meant` lives, its call may take the node for
    /// its own.
    pub(super) fn settle(&self, outcome: &Answer<Created>, meant: Option<&StillMeant>) {
        if !self.is_settled.swap(true, Ordering::SeqCst) {
            self.owned.settle(self, outcome, meant);
        }
    }
}

impl Drop for NodeInMaking {
    fn drop(&mut self) {
        self.settle(&Err(Fault::ConnectionLoss), None);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn owned(limit: usize) -> Arc<OwnedNodes> {
        Arc::new(OwnedNodes::new(limit, Some(rt::now()), Arc::default()))
    }

    fn created(path: &str) -> Answer<Created> {
        Ok(Created { path: path.to_owned(), czxid: None })
    }

    /// Has a node made, of 100 bytes with all that counts.
    fn make(owned: &Arc<OwnedNodes>, number: u32) -> Result<String, Fault> {
        let front = format!("/a/{number:083}");
        let path = format!("{front}{number:010}");
        owned.begin(&front, NodeKind::Contender, true)?.settle(&created(&path), None);
        Ok(path)
    }

    fn bytes(owned: &OwnedNodes) -> usize {
        owned.state.lock().bytes
    }

    #[test]
    fn no_session_owns_more_than_three_quarters_of_what_its_end_may_be() {
        let owned = owned(4_000);
        let paths: Vec<String> = (0..30).map(|number| make(&owned, number).unwrap()).collect();
        assert_eq!(bytes(&owned), 3_000);
        assert!(matches!(make(&owned, 30), Err(Fault::TooLarge(_))));
        assert_eq!(bytes(&owned), 3_000);
        // A node that is being deleted counts until it is gone.
        owned.leave(&paths[0]);
        assert!(make(&owned, 31).is_err());
        owned.deleted(&paths[0]);
        assert!(make(&owned, 32).is_ok());
        owned.leave(&paths[1]);
        owned.stay(&paths[1]);
        owned.forget(&paths[1]);
        owned.forget(&paths[1]);
        assert_eq!(bytes(&owned), 2_900);
    }

    #[test]
    fn what_is_in_doubt_counts_until_it_is_settled() {
        let owned = owned(4_000);
        let held = make(&owned, 1).unwrap();
        drop(owned.begin("/a/x", NodeKind::Contender, true));
        assert_eq!(bytes(&owned), 118);
        let names: Names = ["x0000000007", "y"].into_iter().collect();
        assert_eq!(owned.take_strays("/b", &names), [""; 0]);
        assert_eq!(owned.take_strays("/a", &names), ["x0000000007"]);
        assert_eq!((bytes(&owned), owned.take_strays("/a", &names).len()), (100, 0));
        // Nobody knows whether the program wants a node that it has named.
        drop(owned.begin("/a/x", NodeKind::EphemeralSequential, false));
        assert_eq!(owned.take_strays("/a", &names), [""; 0]);
        owned.deleted(&held);
        assert_eq!(bytes(&owned), 0);
    }

    #[test]
    fn a_node_that_somebody_relies_on_is_no_stray() {
        let owned = owned(4_000);
        make(&owned, 1).unwrap();
        drop(owned.begin("/a/x", NodeKind::Contender, true));
        owned.own("/a/y0000000001");
        drop(owned.begin("/a/y", NodeKind::Contender, true));
        let names: Names = ["y0000000001"].into_iter().collect();
        assert_eq!(owned.take_strays("/a", &names), [""; 0]);
    }

    #[test]
    fn a_session_is_ended_for_a_doubt_only_if_it_owns_nothing() {
        let told = |setup: &dyn Fn(&Arc<OwnedNodes>)| {
            let owned = owned(4_000);
            let told = Arc::new(Mutex::new(Vec::new()));
            let tell = Arc::clone(&told);
            owned.on_doubt(move |what| tell.lock().push(what));
            setup(&owned);
            drop(owned.begin("/a/x", NodeKind::Contender, true));
            let may_go_on = owned.begin("/a/z", NodeKind::Contender, true).map(drop).is_ok();
            (std::mem::take(&mut *told.lock()), may_go_on)
        };
        assert_eq!(told(&|_| ()), (vec![OnDoubt::EndSession], false));
        let releases = |owned: &Arc<OwnedNodes>| owned.leave(&make(owned, 1).unwrap());
        assert_eq!(told(&releases), (vec![OnDoubt::EndSession], false));
        let holds = |owned: &Arc<OwnedNodes>| drop(make(owned, 1).unwrap());
        assert_eq!(told(&holds), (vec![OnDoubt::Look], true));
        let under_way = |owned: &Arc<OwnedNodes>| {
            let making = owned.begin("/a/y", NodeKind::Contender, true).unwrap();
            std::mem::forget(making);
        };
        assert_eq!(told(&under_way), (vec![OnDoubt::Look], true));
        // The program may find such a node, and rely on it; if it was refused, there is none.
        let begins = |owned: &Arc<OwnedNodes>| owned.begin("/p", NodeKind::Ephemeral, false);
        let may_be_found = |owned: &Arc<OwnedNodes>| drop(begins(owned));
        assert_eq!(told(&may_be_found), (vec![OnDoubt::Look], true));
        let is_refused = |owned: &Arc<OwnedNodes>| {
            begins(owned).unwrap().settle(&Err(Fault::NodeExists), None);
        };
        assert_eq!(told(&is_refused), (vec![OnDoubt::EndSession], false));
        let lasts = |owned: &Arc<OwnedNodes>| owned.doubt_lasting("/a/y", &StillMeant::default());
        assert_eq!(told(&lasts), (vec![OnDoubt::Look], true));
        let is_needed = |owned: &Arc<OwnedNodes>| std::mem::forget(owned.need());
        assert_eq!(told(&is_needed), (vec![OnDoubt::Look], true));
        let was_needed = |owned: &Arc<OwnedNodes>| drop(owned.need());
        assert_eq!(told(&was_needed), (vec![OnDoubt::EndSession], false));
    }

    #[test]
    fn a_session_in_place_of_another_is_not_ended_for_a_doubt_at_once() {
        for (rest, expected) in [(0, OnDoubt::EndSession), (3_600, OnDoubt::Look)] {
            let from = rt::now() + Duration::from_secs(rest);
            let owned = Arc::new(OwnedNodes::new(4_000, Some(from), Arc::default()));
            let (tell, told) = std::sync::mpsc::channel();
            owned.on_doubt(move |what| tell.send(what).unwrap());
            drop(owned.begin("/a/x", NodeKind::Contender, true));
            assert_eq!(told.try_recv(), Ok(expected));
        }
    }

    #[test]
    fn of_many_nodes_the_last_go_first_at_the_end() {
        let owned = owned(1_200);
        for number in [1, 3, 2] {
            make(&owned, number).unwrap();
        }
        assert_eq!(owned.to_delete_at_end(), [""; 0]);
        make(&owned, 4).unwrap();
        let numbers =
            owned.to_delete_at_end().into_iter().map(|path| path[path.len() - 1..].to_owned());
        assert_eq!(numbers.collect::<String>(), "4321");
    }
}
