//! Threads of one process that want the same lock share one contender's node, which goes from thread to
//! thread without a request.
//!
//! One of them contends at the ensemble, for all; the others wait here, in the order in which they
//! came. Whoever lets go hands the node to the first of them. That ends when somebody else contends,
//! too: once such a one was seen, only those have their turn who were waiting here before, and of
//! those no more than the [`HandOver`] says; then the node is deleted, and the next one here queues
//! anew, behind the others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::acquire::{Contention, Limits, PausedAcquisition, acquire, pursue};
use super::errors::cancelled;
use super::handover_policy::{HandOver, Policy};
use super::hold::{HeldNode, Hold, Passed, Sharing};
use super::shared_node::{Baton, NodePhase, Offer, SharedNode, WaitingThread};
use super::ticket::NodeNaming;
use super::watchdog::NodeListener;
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::{self, Deadline, Mutex};
use crate::session::cancel::Cancel;
use crate::session::client::Client;
use crate::session::client_core::ClientCore;
use crate::session::notify::Waiter;
use crate::session::session::ended;
use crate::session::status::SessionState;
use crate::session_notice::End;

/// What has to be equal for a node to be shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) node: String,
    pub(crate) naming: NodeNaming,
    pub(crate) acl: Vec<Acl>,
    /// The default data say who contends, but count as equal.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) policy: Policy,
}

/// A client's, by what has to be equal.
type Sharers = Mutex<HashMap<Key, Weak<Sharer>>>;

/// A lock value's or a guard's part in a group. With the last one a node that is kept is let go.
pub(crate) struct Sharer {
    key: Key,
    core: Weak<ClientCore>,
    node: Arc<SharedNode>,
}

impl Sharer {
    /// The group of all on this client that have the same key.
    pub(crate) fn of(client: &Client, key: Key) -> Arc<Sharer> {
        let core = client.core();
        let mut sharers = core.extension::<Sharers>().map(Mutex::lock);
        let known = sharers.as_ref().and_then(|sharers| sharers.get(&key)?.upgrade());
        if let Some(sharer) = known {
            return sharer;
        }
        let node = Arc::new(SharedNode::new(key.policy));
        let sharer = Arc::new(Sharer { key: key.clone(), core: Arc::downgrade(core), node });
        if let Some(sharers) = &mut sharers {
            sharers.insert(key, Arc::downgrade(&sharer));
        }
        sharer
    }

    /// Contends, for oneself or for all, or waits for one who does; `None` when it was not to be
    /// had within the limits.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        client: &Client,
        limits: Limits<'_>,
        contention: impl Fn() -> Contention,
    ) -> Result<Option<Hold>> {
        loop {
            if limits.cancel.is_some_and(Cancel::is_cancelled) {
                return Err(cancelled(&self.key.node));
            }
            let mut state = self.node.state.lock();
            match std::mem::replace(&mut state.phase, NodePhase::Sought) {
                NodePhase::Free => {}
                NodePhase::Kept { number, held_node, turn, .. } if held_node.may_be_granted() => {
                    state.phase = NodePhase::Held(number, Arc::downgrade(&held_node));
                    drop(state);
                    held_node.resume();
                    return Ok(Some(Hold::shared(client, held_node, turn, self.sharing(), number)));
                }
                NodePhase::Kept { held_node, .. } => {
                    drop(state);
                    let baton = Baton(Some(Arc::clone(&self.node)));
                    held_node.release_soon();
                    return self.lead(baton, &contention(), limits, None);
                }
                phase @ (NodePhase::Sought | NodePhase::Held(..)) => {
                    state.phase = phase;
                    if self.node.policy.hand_over == HandOver::Off {
                        drop(state);
                        return acquire(&contention(), limits);
                    }
                    if client.core().is_closed() {
                        return Err(ended(End::Closed).on(&self.key.node));
                    }
                    if !limits.patient {
                        return Ok(None);
                    }
                    let waiter = Waiter::new();
                    let queued = state.enqueue(waiter.bell());
                    let watch = state.others_matter();
                    drop(state);
                    if let Some(held_node) = watch {
                        held_node.watch_for_others();
                    }
                    match self.wait(&waiter, &queued, client, limits, &contention)? {
                        // It was lost on the way.
                        Some(hold) if !hold.is_held() && !limits.deadline.has_passed() => continue,
                        Some(hold) if !hold.is_held() => return Ok(None),
                        waited => return Ok(waited),
                    }
                }
            }
            drop(state);
            let baton = Baton(Some(Arc::clone(&self.node)));
            return self.lead(baton, &contention(), limits, None);
        }
    }

    fn wait(
        self: &Arc<Self>,
        waiter: &Waiter,
        queued: &Arc<WaitingThread>,
        client: &Client,
        limits: Limits<'_>,
        contention: &impl Fn() -> Contention,
    ) -> Result<Option<Hold>> {
        let baton = || Baton(Some(Arc::clone(&self.node)));
        match self.wait_for_offer(waiter, queued, client, limits) {
            Ok(Some(Offer::Hold(hold))) => Ok(Some(hold)),
            Ok(Some(Offer::Lead(paused))) => self.lead(baton(), &contention(), limits, paused),
            Ok(Some(Offer::Failed(error))) => Err(error),
            // What came at the last moment is not lost: it is taken, or goes to the next one.
            given_up => match self.node.leave_queue(queued) {
                Some(Offer::Hold(hold)) if given_up.is_ok() => Ok(Some(hold)),
                Some(Offer::Lead(paused)) => {
                    if let Some(paused) = baton().pass(paused) {
                        paused.withdraw(limits);
                    }
                    given_up.map(|_| None)
                }
                Some(Offer::Hold(_) | Offer::Failed(_)) | None => given_up.map(|_| None),
            },
        }
    }

    /// Until there is an offer; `None` at the deadline.
    fn wait_for_offer(
        &self,
        waiter: &Waiter,
        queued: &WaitingThread,
        client: &Client,
        limits: Limits<'_>,
    ) -> Result<Option<Offer>> {
        let _cancel = limits.cancel.map(|cancel| cancel.subscribe(waiter.bell()));
        let core = client.core();
        let longest_outage = core.retry_policy().longest_outage();
        let _changes = core.changes().subscribe(waiter.bell());
        let mut cut_off = None;
        loop {
            if let Some(offer) = queued.offer.lock().take() {
                return Ok(Some(offer));
            }
            if limits.cancel.is_some_and(Cancel::is_cancelled) {
                return Err(cancelled(&self.key.node));
            }
            if core.is_closed() {
                return Err(ended(End::Closed).on(&self.key.node));
            }
            if limits.deadline.has_passed() {
                return Ok(None);
            }
            let mut until = limits.deadline;
            if let Some(longest) = longest_outage {
                match client.state() {
                    SessionState::Connected => cut_off = None,
                    _ => drop(cut_off.get_or_insert_with(rt::now)),
                }
                let end = cut_off.and_then(|since: Instant| since.checked_add(longest));
                if let Some(end) = end.map(Deadline::at) {
                    if end.has_passed() {
                        let message =
                            format!("there was no connection to the ensemble for {longest:?}");
                        return Err(
                            Error::new(ErrorKind::ConnectionLoss, message).on(&self.key.node)
                        );
                    }
                    until = until.earlier(end);
                }
            }
            waiter.wait(until);
        }
    }

    /// Contends at the ensemble, for all who wait here.
    fn lead(
        self: &Arc<Self>,
        baton: Baton,
        contention: &Contention,
        limits: Limits<'_>,
        paused: Option<Box<PausedAcquisition>>,
    ) -> Result<Option<Hold>> {
        let mut baton = Some(baton);
        // The place in the ensemble's queue goes to the next one, rather than being lost.
        let pass = |paused| match baton.take() {
            Some(baton) => baton.pass(Some(paused)),
            None => Some(paused),
        };
        let pursued = pursue(contention, limits, paused, pass);
        let Some(baton) = baton else { return pursued };
        match pursued {
            Ok(Some(hold)) => Ok(Some(self.adopt(baton, hold))),
            Ok(None) => Ok(None),
            Err(error) => {
                if is_everybodys(&error) {
                    baton.fail(&error);
                }
                Err(error)
            }
        }
    }

    /// From here on the node is all of ours.
    fn adopt(self: &Arc<Self>, mut baton: Baton, mut hold: Hold) -> Hold {
        baton.0 = None;
        let mut state = self.node.state.lock();
        state.nodes_held += 1;
        let number = state.nodes_held;
        state.phase = NodePhase::Held(number, Arc::downgrade(hold.held_node()));
        state.contest = None;
        if hold.is_contested() {
            state.contest = Some(self.node.contest(&state));
        }
        let watch = if state.waiting.is_empty() { None } else { state.others_matter() };
        // Under the lock, so that nothing of it is told before it is known whom to tell.
        let told = Arc::downgrade(&self.node);
        let is_lost = hold.share(self.sharing(), told, number);
        drop(state);
        if is_lost {
            Arc::clone(&self.node).lost(number);
        } else if let Some(held_node) = watch {
            held_node.watch_for_others();
        }
        hold
    }

    fn sharing(self: &Arc<Self>) -> Arc<dyn Sharing> {
        Arc::<Sharer>::clone(self)
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }
}

/// Whether what is wrong for one is so for all who share its node. Not the end of its own patience,
/// with the connection or with waiting, nor that there was no thread for it.
fn is_everybodys(error: &Error) -> bool {
    use ErrorKind::{Cancelled, Connect, ConnectionLoss, SessionLost, System};
    !matches!(error.kind(), Cancelled | Connect | ConnectionLoss | SessionLost | System)
}

impl Sharing for Sharer {
    fn pass(self: Arc<Self>, client: &Client, held_node: &Arc<HeldNode>, number: u64) -> Passed {
        let node = Arc::clone(&self.node);
        node.pass(client, self, held_node, number)
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        let core = self.core.upgrade();
        if let Some(sharers) = core.as_ref().and_then(|core| core.extension::<Sharers>()) {
            let mut sharers = sharers.lock();
            // Another may have taken its place already.
            if sharers.get(&self.key).is_some_and(|sharer| sharer.strong_count() == 0) {
                sharers.remove(&self.key);
            }
        }
        self.node.dissolve();
    }
}

impl fmt::Debug for Sharer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharer").field("node", &self.key.node).finish_non_exhaustive()
    }
}
