//! A contender's node that threads of one process share: which thread has it, which ones wait for
//! it, and which one contends next.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::policy::{HandOver, Policy};
use crate::contend::acquire::{OthersSeen, PausedAcquisition};
use crate::contend::hold::{HeldNode, Hold, ReleasedParts, Sharing};
use crate::error::Error;
use crate::rt::{self, Mutex, MutexGuard, Signal};
use crate::session::Client;

/// See the module. It owns no client, so that it can end on any thread.
pub(crate) struct SharedNode {
    pub(super) policy: Policy,
    pub(super) state: Mutex<SharedNodeState>,
    /// What the thread that contends has seen, for all who wait here.
    pub(super) others: OthersSeen,
}

pub(super) struct SharedNodeState {
    pub(super) phase: NodePhase,
    /// The threads that wait here, in the order in which they came.
    pub(super) waiting: VecDeque<Arc<WaitingThread>>,
    /// Counts the threads that have ever waited here.
    arrivals: u64,
    /// Counts the nodes that were held.
    pub(super) nodes_held: u64,
    pub(super) contest: Option<Contest>,
    /// The session in which a background job is due that ends the keeping of a node.
    timed: Option<i64>,
}

pub(super) enum NodePhase {
    /// No thread wants it.
    Free,
    /// One thread is about to get it, or to release it, and makes sure that the others follow.
    Sought,
    /// One thread has it.
    Held(u64, Weak<HeldNode>),
    /// No thread has it, and the node is there.
    Kept { number: u64, held_node: Arc<HeldNode>, turn: u32, since: Instant },
}

/// Another contender wants the lock: how far the node may still be handed on.
#[derive(Clone, Copy)]
pub(super) struct Contest {
    /// The number of the last thread that was waiting here when that was seen.
    last: u64,
    /// How many of the threads up to that one may still get a turn, and until when.
    left: u32,
    until: Instant,
}

/// A thread that waits here.
pub(super) struct WaitingThread {
    number: u64,
    pub(super) offer: Mutex<Option<Offer>>,
    bell: Signal,
}

/// What is offered to a waiting thread.
pub(super) enum Offer {
    /// It holds the lock.
    Hold(Hold),
    /// It must contend next; with a place in the ensemble's queue, if there is one.
    Lead(Option<Box<PausedAcquisition>>),
    /// The thread that contended for all has failed, and this one would fail as well.
    Failed(Error),
}

/// The duty to let the next thread follow. Dropping it does so, however the call has ended.
pub(crate) struct Baton(pub(super) Option<Arc<SharedNode>>);

impl SharedNode {
    pub(super) fn new(policy: Policy) -> SharedNode {
        let state = SharedNodeState {
            phase: NodePhase::Free,
            waiting: VecDeque::new(),
            arrivals: 0,
            nodes_held: 0,
            contest: None,
            timed: None,
        };
        SharedNode { policy, state: Mutex::new(state), others: OthersSeen::shared() }
    }

    /// See [`Sharing::pass`].
    pub(crate) fn pass(
        self: &Arc<Self>,
        client: &Client,
        sharer: Arc<dyn Sharing>,
        held_node: &Arc<HeldNode>,
        number: u64,
    ) -> Option<ReleasedParts> {
        let mut state = self.state.lock();
        if !matches!(state.phase, NodePhase::Held(current, _) if current == number) {
            // That loss is dealt with elsewhere.
            drop(state);
            return Some(held_node.leave());
        }
        if held_node.is_in_doubt() || !held_node.may_go_on() || !state.may_pass() {
            return Some(self.give_up(state, held_node));
        }
        if let Some(queued) = state.waiting.pop_front() {
            if let Some(contest) = &mut state.contest {
                contest.left = contest.left.saturating_sub(1);
            }
            self.others.note(rt::now());
            let (turn, left) = held_node.next_turn(false);
            let hold = Hold::shared(client, Arc::clone(held_node), turn, sharer, number);
            // Under the mutex, so that a thread that leaves the queue finds its offer.
            queued.offer(Offer::Hold(hold));
            drop(state);
            // Dropping callbacks may run code of the user that takes this very lock.
            drop(left);
            return None;
        }
        let Some(keep) = self.policy.keep else { return Some(self.give_up(state, held_node)) };
        let (turn, left) = held_node.next_turn(true);
        let since = rt::now();
        state.phase = NodePhase::Kept { number, held_node: Arc::clone(held_node), turn, since };
        let session = held_node.session_id;
        let untimed = state.timed.replace(session) != Some(session);
        drop(state);
        if let Some(end) = since.checked_add(keep).filter(|_| untimed) {
            let node = Arc::downgrade(self);
            held_node.later(end, move || node.upgrade()?.expire(session));
        }
        held_node.watch_for_others();
        // Dropping callbacks may run code of the user that takes the kept lock.
        drop(left);
        None
    }

    /// Leaves the node, which must be released; then the next thread may contend.
    fn give_up(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, SharedNodeState>,
        held_node: &HeldNode,
    ) -> ReleasedParts {
        state.phase = NodePhase::Sought;
        drop(state);
        let baton = Baton(Some(Arc::clone(self)));
        ReleasedParts { next: Some(Box::new(baton)), ..held_node.leave() }
    }

    /// The limits of a contest that begins now.
    pub(super) fn contest(&self, state: &SharedNodeState) -> Contest {
        let (left, time) = match self.policy.hand_over {
            HandOver::Off => (0, Duration::ZERO),
            HandOver::Within { turns, time } => (turns, time),
        };
        let now = rt::now();
        // A time too long for the clock: by then there are no turns left.
        let until = now.checked_add(time).unwrap_or(now + Duration::from_secs(1 << 30));
        Contest { last: state.arrivals, left, until }
    }

    /// Releases a node that was kept for long enough; or returns when to look again.
    fn expire(self: &Arc<Self>, session: i64) -> Option<Instant> {
        let keep = self.policy.keep?;
        let mut state = self.state.lock();
        if state.timed != Some(session) {
            // A later session has its own job.
            return None;
        }
        let now = rt::now();
        let since = match &state.phase {
            NodePhase::Kept { since, .. } => *since,
            NodePhase::Held(..) => now,
            NodePhase::Free | NodePhase::Sought => {
                state.timed = None;
                return None;
            }
        };
        match since.checked_add(keep) {
            Some(end) if end > now => Some(end),
            _ => {
                state.timed = None;
                // A thread may have taken it meanwhile.
                let held_node = state.take_kept()?;
                // From here on no thread holds it or may wait for it.
                held_node.announce_release();
                state.phase = NodePhase::Free;
                drop(state);
                held_node.release_soon();
                None
            }
        }
    }

    /// Ends the thread's wait. Returns an offer that it has not taken, which is then its own.
    pub(super) fn leave_queue(&self, queued: &Arc<WaitingThread>) -> Option<Offer> {
        self.state.lock().waiting.retain(|other| !Arc::ptr_eq(other, queued));
        queued.offer.lock().take()
    }

    /// Releases a kept node, as no thread is left that could take it.
    pub(super) fn dissolve(self: &Arc<Self>) {
        let Some(held_node) = self.state.lock().take_kept() else { return };
        held_node.release();
    }

    /// Others contend for the lock, or its release is requested, which the node of this number holds.
    pub(super) fn contested(self: &Arc<Self>, number: u64) {
        let mut state = self.state.lock();
        match &state.phase {
            NodePhase::Held(current, _) if *current == number && state.contest.is_none() => {
                state.contest = Some(self.contest(&state));
            }
            NodePhase::Kept { number: current, .. } if *current == number => {
                if let Some(held_node) = state.take_kept() {
                    drop(state);
                    let _baton = Baton(Some(Arc::clone(self)));
                    held_node.release_soon();
                }
            }
            _ => {}
        }
    }

    /// The node of this number is gone, or may be.
    pub(crate) fn lost(self: &Arc<Self>, number: u64) {
        let mut state = self.state.lock();
        let held_node = match &state.phase {
            NodePhase::Held(current, _) if *current == number => {
                state.phase = NodePhase::Sought;
                None
            }
            NodePhase::Kept { number: current, .. } if *current == number => state.take_kept(),
            _ => return,
        };
        drop(state);
        drop(Baton(Some(Arc::clone(self))));
        if let Some(held_node) = held_node {
            drop(held_node.leave());
        }
    }
}

impl SharedNodeState {
    pub(super) fn enqueue(&mut self, bell: Signal) -> Arc<WaitingThread> {
        self.arrivals += 1;
        let queued =
            Arc::new(WaitingThread { number: self.arrivals, offer: Mutex::new(None), bell });
        self.waiting.push_back(Arc::clone(&queued));
        queued
    }

    /// The node that a thread holds.
    pub(super) fn holder(&self) -> Option<Arc<HeldNode>> {
        match &self.phase {
            NodePhase::Held(_, held_node) => held_node.upgrade(),
            _ => None,
        }
    }

    /// Whether the first waiting thread may have the node or, if none waits, it may be kept.
    fn may_pass(&self) -> bool {
        let Some(contest) = &self.contest else { return true };
        let Some(first) = self.waiting.front() else { return false };
        first.number <= contest.last && contest.left > 0 && rt::now() < contest.until
    }

    /// The held node, if other contenders must be watched for, now that a thread waits here.
    pub(super) fn others_matter(&self) -> Option<Arc<HeldNode>> {
        if self.contest.is_none() { self.holder() } else { None }
    }

    /// Takes out the kept node, if there is one: no thread can get it any more.
    fn take_kept(&mut self) -> Option<Arc<HeldNode>> {
        match std::mem::replace(&mut self.phase, NodePhase::Sought) {
            NodePhase::Kept { held_node, .. } => Some(held_node),
            phase => {
                self.phase = phase;
                None
            }
        }
    }
}

impl WaitingThread {
    fn offer(&self, offer: Offer) {
        *self.offer.lock() = Some(offer);
        (self.bell)();
    }
}

impl Baton {
    /// Goes to the next thread, with the place in the ensemble's queue, which is returned if no
    /// thread waits.
    pub(super) fn pass(
        mut self,
        paused: impl Into<Option<Box<PausedAcquisition>>>,
    ) -> Option<Box<PausedAcquisition>> {
        self.relay(paused.into())
    }

    fn relay(&mut self, paused: Option<Box<PausedAcquisition>>) -> Option<Box<PausedAcquisition>> {
        let Some(node) = self.0.take() else { return paused };
        let mut state = node.state.lock();
        match state.waiting.pop_front() {
            Some(queued) => {
                queued.offer(Offer::Lead(paused));
                None
            }
            None => {
                state.phase = NodePhase::Free;
                paused
            }
        }
    }

    /// Goes to no thread: all that wait fail with this error.
    pub(super) fn fail(mut self, error: &Error) {
        let Some(node) = self.0.take() else { return };
        let mut state = node.state.lock();
        state.phase = NodePhase::Free;
        for queued in std::mem::take(&mut state.waiting) {
            queued.offer(Offer::Failed(error.clone()));
        }
    }
}

impl Drop for Baton {
    fn drop(&mut self) {
        let _ = self.relay(None);
    }
}
