//! Shares one contender's node among the threads of a process that want the same lock: it goes from
//! thread to thread without a request.
//!
//! One of them contends at the ensemble, for all; the others wait here, in the order in which they
//! came. A holder that releases the lock hands the node to the first of them. That ends when
//! another contender is seen at the ensemble: then only threads that were already waiting here get
//! a turn, and no more of them than [`HandOver`] allows; then the node is deleted, and the next
//! thread here queues anew, behind the other contenders.

mod policy;
mod shared_node;

pub use policy::HandOver;
pub(crate) use policy::Policy;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{fmt, mem};

use crate::acl::Acl;
use crate::connection_notice::End;
use crate::contend::acquire::{Contention, Limits, LongWait, PausedAcquisition, acquire, pursue};
use crate::contend::hold::{
    HeldNode, Hold, ReleasedParts, Sharing, held_by_this_thread, tell_kept_waiting,
};
use crate::contend::name::NodeNaming;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::rt::{self, Deadline, Mutex, MutexGuard, Signal};
use crate::session::{
    Call, Client, ClientCore, GRACE, SessionState, Stop, Subscription, cancelled, ended,
};
use shared_node::{Baton, NodePhase, Offer, SharedNode, SharedNodeState, WaitingThread};

/// What must be equal for a node to be shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) node: String,
    pub(crate) naming: NodeNaming,
    pub(crate) acl: Vec<Acl>,
    /// `None` for the default data, which differ by thread but count as equal.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) policy: Policy,
    pub(crate) hold_at_most: Option<Duration>,
}

/// What all lock values and guards with an equal key have in common. Dropping the last reference
/// releases a kept node.
pub(crate) struct Sharer {
    key: Key,
    core: Weak<ClientCore>,
    node: Arc<SharedNode>,
}

impl Sharer {
    /// The one sharer of this client for this key.
    pub(crate) fn of(client: &Client, key: Key) -> Arc<Sharer> {
        let core = client.core();
        let sharers = Sharer::all(core);
        let mut sharers = sharers.lock();
        if let Some(sharer) = sharers.get(&key).and_then(Weak::upgrade) {
            return sharer;
        }
        let node = Arc::new(SharedNode::new(key.policy));
        let sharer = Arc::new(Sharer { key: key.clone(), core: Arc::downgrade(core), node });
        sharers.insert(key, Arc::downgrade(&sharer));
        sharer
    }

    fn all(core: &ClientCore) -> Arc<Mutex<HashMap<Key, Weak<Sharer>>>> {
        core.extension()
    }

    /// Contends, for this thread or for all, or waits for the thread that does; `None` if others
    /// have the lock when the time is over: see [`acquire`].
    pub(crate) fn acquire<'c>(
        self: &Arc<Self>,
        client: &Client,
        limits: Limits<'_>,
        contention: impl Fn() -> Contention<'c>,
    ) -> Result<Option<Hold>> {
        let begin = rt::now();
        let mut call = Call::new(client.core(), limits.wait);
        let got = self.find(client, &mut call, limits.patient, begin, &contention)?;
        if got.is_none() {
            let holder = self.node.state.lock().holder();
            self.note_if_held(holder.as_ref());
        }
        self.node.others.or_unanswered(got, begin, client.core(), &self.key.node)
    }

    fn find<'c>(
        self: &Arc<Self>,
        client: &Client,
        call: &mut Call,
        patient: bool,
        begin: Instant,
        contention: &impl Fn() -> Contention<'c>,
    ) -> Result<Option<Hold>> {
        loop {
            if call.is_cancelled() {
                return Err(cancelled(&self.key.node));
            }
            let mut state = self.node.state.lock();
            let lost = match mem::replace(&mut state.phase, NodePhase::Sought) {
                NodePhase::Free => None,
                NodePhase::Kept { number, held_node, turn, .. } if held_node.may_be_granted() => {
                    state.phase = NodePhase::Held(number, Arc::downgrade(&held_node));
                    drop(state);
                    held_node.resume();
                    return Ok(Some(Hold::shared(client, held_node, turn, self.sharing(), number)));
                }
                NodePhase::Kept { held_node, .. } => Some(held_node),
                phase @ (NodePhase::Sought | NodePhase::Held(..)) => {
                    state.phase = phase;
                    match self.follow(state, client, call, patient, begin, contention)? {
                        ControlFlow::Break(got) => return Ok(got),
                        ControlFlow::Continue(()) => continue,
                    }
                }
            };
            drop(state);
            let baton = Baton(Some(Arc::clone(&self.node)));
            if let Some(held_node) = lost {
                held_node.release_soon();
            }
            return self.lead(baton, &contention(), call, patient, None);
        }
    }

    /// Waits behind the thread that has the node or contends for it, or contends apart from it.
    fn follow<'c>(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, SharedNodeState>,
        client: &Client,
        call: &mut Call,
        patient: bool,
        begin: Instant,
        contention: &impl Fn() -> Contention<'c>,
    ) -> Result<ControlFlow<Option<Hold>>> {
        if self.node.policy.hand_over == HandOver::Off {
            drop(state);
            return self.acquire_apart(&contention(), call, patient, begin);
        }
        if client.core().is_closed() {
            return Err(ended(End::Closed).on(&self.key.node));
        }
        let holder = state.holder();
        let is_held = self.note_if_held(holder.as_ref());
        // That another thread waits for the lock says nothing of who holds it.
        if !patient || !is_held && has_no_time_to_queue(call.until()) {
            drop(state);
            if is_held {
                return Ok(ControlFlow::Break(None));
            }
            return self.acquire_apart(&contention(), call, patient, begin);
        }
        let queued = state.enqueue(call.bell());
        let watch = state.others_matter();
        drop(state);
        drop(holder);
        if !call.until().is_never() && !is_held {
            self.node.others.look_again();
        }
        if let Some(held_node) = watch {
            held_node.watch_for_others();
        }
        let lock = self.key.node.clone();
        let thread = rt::program_thread();
        client.core().report(|| Event::Waiting { lock, ahead: 0, holder: None, thread });
        let long_wait = LongWait::begin_here(call, &self.key.node);
        Ok(match self.wait(&queued, client, (call, long_wait), contention)? {
            // It was lost while it was handed over.
            Some(hold) if !hold.is_held() => match call.until().has_passed() {
                true => ControlFlow::Break(None),
                false => ControlFlow::Continue(()),
            },
            waited => ControlFlow::Break(waited),
        })
    }

    /// Contends with a node of its own, which is not shared.
    fn acquire_apart(
        &self,
        contention: &Contention<'_>,
        call: &Call,
        patient: bool,
        begin: Instant,
    ) -> Result<ControlFlow<Option<Hold>>> {
        let got = acquire(contention, Limits { wait: call.limit(), patient })?;
        if got.is_none() {
            self.node.others.note(begin);
        }
        Ok(ControlFlow::Break(got))
    }

    /// Notes that a thread of this process holds the lock, if one does, with a hold that is certain.
    fn note_if_held(&self, holder: Option<&Arc<HeldNode>>) -> bool {
        let is_held = holder.is_some_and(|held_node| held_node.may_be_granted());
        if is_held {
            self.node.others.note(rt::now());
        }
        is_held
    }

    fn wait<'c>(
        self: &Arc<Self>,
        queued: &Arc<WaitingThread>,
        client: &Client,
        (call, long_wait): (&mut Call, LongWait),
        contention: &impl Fn() -> Contention<'c>,
    ) -> Result<Option<Hold>> {
        let baton = || Baton(Some(Arc::clone(&self.node)));
        match self.wait_for_offer(queued, client, call, long_wait) {
            Ok(Some(Offer::Hold(hold))) => Ok(Some(hold)),
            Ok(Some(Offer::Lead(paused))) => self.lead(baton(), &contention(), call, true, paused),
            Ok(Some(Offer::Failed(error))) => Err(error),
            // An offer at the last moment is not lost: it is taken, or goes to the next thread.
            given_up => match self.node.leave_queue(queued) {
                Some(Offer::Hold(hold)) if given_up.is_ok() => Ok(Some(hold)),
                Some(Offer::Lead(paused)) => {
                    if let Some(paused) = baton().pass(paused) {
                        paused.withdraw(client.core(), &self.key.node, call.limit());
                    }
                    given_up.map(|_| None)
                }
                Some(Offer::Hold(_) | Offer::Failed(_)) | None => given_up.map(|_| None),
            },
        }
    }

    /// Waits for an offer; `None` at the deadline.
    fn wait_for_offer(
        &self,
        queued: &WaitingThread,
        client: &Client,
        call: &mut Call,
        long_wait: LongWait,
    ) -> Result<Option<Offer>> {
        let core = client.core();
        let _changes = core.changes().subscribe(call.bell());
        let mut told = None;
        let offered = self.wait_while_telling(queued, client, call, long_wait, &mut told);
        if told.take().is_some() {
            self.tell_who_waits(client, true);
        }
        offered
    }

    fn wait_while_telling(
        &self,
        queued: &WaitingThread,
        client: &Client,
        call: &mut Call,
        mut long_wait: LongWait,
        told: &mut Option<Subscription>,
    ) -> Result<Option<Offer>> {
        let core = client.core();
        loop {
            if let Some(offer) = queued.offer.lock().take() {
                return Ok(Some(offer));
            }
            if core.is_closed() && !call.is_cancelled() {
                return Err(ended(End::Closed).on(&self.key.node));
            }
            if call.alarm_rings() && long_wait.go_on(call, &self.key.node) {
                let is_new = told.is_none();
                // Anew each time, as a guard may have been given away meanwhile.
                let kept = self.node.others.kept_waiting.as_ref();
                *told = kept.map(|kept| kept.note(held_by_this_thread()));
                self.tell_who_waits(client, is_new);
            }
            match call.wait_if(client.state() == SessionState::Connected) {
                Ok(()) => {}
                Err(Stop::TimeOver) => return Ok(None),
                Err(Stop::Failed(error)) => return Err(error.on(&self.key.node)),
                Err(_) => return Err(cancelled(&self.key.node)),
            }
        }
    }

    /// Has the held node tell what threads hold that wait here. While none holds it, the thread that contends
    /// does that on its own node.
    fn tell_who_waits(&self, client: &Client, is_new: bool) {
        let holder = self.node.state.lock().holder();
        if let (Some(held), Some(kept)) = (holder, &self.node.others.kept_waiting) {
            tell_kept_waiting(client.core(), &held, kept, is_new);
        }
    }

    /// Contends at the ensemble, for all threads that wait here.
    fn lead(
        self: &Arc<Self>,
        baton: Baton,
        contention: &Contention<'_>,
        call: &mut Call,
        patient: bool,
        paused: Option<Box<PausedAcquisition>>,
    ) -> Result<Option<Hold>> {
        let mut baton = Some(baton);
        // The place in the ensemble's queue is not lost, but goes to the next thread.
        let pass = |paused| match baton.take() {
            Some(baton) => baton.pass(Some(paused)),
            None => Some(paused),
        };
        let pursued = pursue(contention, call, patient, &self.node.others, paused, pass);
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

    /// Shares the acquired node with all threads here.
    fn adopt(self: &Arc<Self>, mut baton: Baton, mut hold: Hold) -> Hold {
        baton.0 = None;
        let mut state = self.node.state.lock();
        self.node.others.note(rt::now());
        state.nodes_held += 1;
        let number = state.nodes_held;
        state.phase = NodePhase::Held(number, Arc::downgrade(hold.held_node()));
        state.contest = None;
        let contested = hold.contested;
        if contested == Some(true) {
            state.contest = Some(self.node.contest(&state));
        }
        // The node may stay here after its release: a thread waits for it, or it is kept.
        let is_unknown = contested.is_none() && self.node.policy.keep.is_some();
        let may_stay = is_unknown || !state.waiting.is_empty();
        let watch = if may_stay { state.others_matter() } else { None };
        // Under the lock: the signals are set before any thread here can watch for others.
        let signal = |act| self.signal(act, number);
        let (on_contest, on_loss) = (signal(SharedNode::contested), signal(SharedNode::lost));
        let is_lost = hold.share(self.sharing(), number, on_contest, on_loss);
        drop(state);
        if is_lost {
            self.node.lost(number);
        } else if let Some(held_node) = watch {
            held_node.watch_for_others();
        }
        hold
    }

    /// Keeps only a weak reference to the node, so any thread may give it or drop it.
    fn signal(&self, act: fn(&Arc<SharedNode>, u64), number: u64) -> Signal {
        let node = Arc::downgrade(&self.node);
        Arc::new(move || {
            if let Some(node) = node.upgrade() {
                act(&node, number);
            }
        })
    }

    fn sharing(self: &Arc<Self>) -> Arc<dyn Sharing> {
        Arc::<Sharer>::clone(self)
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }
}

/// Whether an error of one thread is one of all that share its node. Not if the call only reached
/// its own limits, for lost connections or for waiting, or could not get a thread.
fn is_everybodys(error: &Error) -> bool {
    use ErrorKind::{Cancelled, Connect, ConnectionLoss, SessionLost, System};
    !matches!(error.kind(), Cancelled | Connect | ConnectionLoss | SessionLost | System)
}

/// Whether there is too little time for the thread that contends to look for another one.
fn has_no_time_to_queue(until: Deadline) -> bool {
    let soon = rt::now() + GRACE * 2;
    until.instant().is_some_and(|end| end <= soon)
}

impl Sharing for Sharer {
    fn pass(
        self: Arc<Self>,
        client: &Client,
        held_node: &Arc<HeldNode>,
        number: u64,
    ) -> Option<ReleasedParts> {
        let node = Arc::clone(&self.node);
        node.pass(client, self, held_node, number)
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            if core.is_elsewhere() {
                // In a forked process, a thread that does not exist may have locked these.
                return mem::forget(Arc::clone(&self.node));
            }
            let sharers = Sharer::all(&core);
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
