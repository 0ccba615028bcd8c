//! Those of one process who want the same lock: they share one contender's node, which goes from
//! thread to thread without a request.
//!
//! One of them contends at the ensemble, for all; the others wait here, in the order in which they
//! came. Whoever lets go hands the node to the first of them. That ends when somebody else contends,
//! too: once such a one was seen, only those have their turn who were waiting here before, and of
//! those no more than the [`HandOver`] says; then the node is deleted, and the next one here queues
//! anew, behind the others.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::acquire::{Contention, Limits, PausedAcquisition, acquire, cancelled, pursue};
use super::hold::{HeldNode, Hold};
use super::ticket::NodeNaming;
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::End;
use crate::rt::{self, Deadline, Mutex};
use crate::session::client::{Client, ClientCore, SessionState};
use crate::session::notify::{Cancel, Signal, Waiter};
use crate::session::session::ended;

/// How threads of one process that want the same lock pass it on among themselves.
///
/// Those who use equal locks of one client — the same path, ACL, naming, data and settings — share
/// one contender's node. Whoever releases the lock hands the node to the next thread of the process
/// that waits, in the order in which they came, and no request is made for that: it is about a
/// hundred times as fast as to ask the ensemble. Each holder has its own
/// [turn](crate::FencingToken::turn) in the token.
///
/// Other processes get their share: the holder watches the lock node for other contenders, and once
/// one was seen, only those threads have their turn yet that were waiting before that; and of those
/// no more than `turns`, and none later than `time` after it was seen. Then the node is deleted,
/// and the process queues anew, at the end.
///
/// ```no_run
/// use std::time::Duration;
/// use zklock::{Client, DistributedLock, HandOver};
///
/// let zk = Client::connect("localhost")?;
/// let strict = DistributedLock::builder(&zk, "/locks", "nightly").hand_over(HandOver::Off).build();
/// let brief = HandOver::Within { turns: 8, time: Duration::from_millis(20) };
/// let lock = DistributedLock::builder(&zk, "/locks", "nightly").hand_over(brief).build();
/// # drop((strict, lock));
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandOver {
    /// One node for each acquisition: threads of one process are in the ensemble's queue like
    /// anybody else, in strict order.
    Off,
    /// Within these limits, once somebody else contends.
    Within {
        /// To how many threads more it may be handed.
        turns: u32,
        /// Until when it may be. A thread that has the lock by then keeps it for as long as it
        /// likes.
        time: Duration,
    },
}

impl Default for HandOver {
    /// Within 64 turns and a second.
    fn default() -> HandOver {
        HandOver::Within { turns: 64, time: Duration::from_secs(1) }
    }
}

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
type Members = Mutex<HashMap<Key, Weak<Sharer>>>;

/// How a node is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Policy {
    pub(crate) hand_over: HandOver,
    /// For how long a node is kept that nobody has a use for.
    pub(crate) keep: Option<Duration>,
}

impl Policy {
    /// Whether anything is ever shared.
    pub(crate) fn shares(&self) -> bool {
        self.hand_over != HandOver::Off || self.keep.is_some()
    }
}

/// A lock value's or a guard's part in a group. With the last one a node that is kept is let go.
pub(crate) struct Sharer {
    key: Key,
    core: Weak<ClientCore>,
    group: Arc<SharedNode>,
}

/// See the module. It owns no client, so that it can end on any thread.
pub(crate) struct SharedNode {
    policy: Policy,
    state: Mutex<SharedNodeState>,
}

struct SharedNodeState {
    phase: NodePhase,
    /// Those who wait here, in the order in which they came.
    seats: VecDeque<Arc<WaitingThread>>,
    /// Counts those who ever took a seat.
    arrivals: u64,
    /// Counts the nodes that were held.
    held_nodes: u64,
    contest: Option<Contest>,
    /// The session in which the end of keeping is going to be looked after, as long as it lasts.
    timed: Option<i64>,
}

enum NodePhase {
    /// Nobody wants it.
    Free,
    /// One of us is about to get it, or to let it go, and sees to it that others follow.
    Sought,
    /// One of us has it.
    Held(u64, Weak<HeldNode>),
    /// None of us has it, and the node is there.
    Kept { number: u64, held_node: Arc<HeldNode>, turn: u32, since: Instant },
}

/// Somebody else wants the lock.
#[derive(Clone, Copy)]
struct Contest {
    /// The last of those who were waiting here when that was seen.
    last: u64,
    /// How many of them may have their turn yet, and until when.
    left: u32,
    until: Instant,
}

/// One who waits here.
struct WaitingThread {
    number: u64,
    offer: Mutex<Option<Offer>>,
    bell: Signal,
}

/// What is offered to one who waits.
enum Offer {
    /// It is his.
    Hold(Hold),
    /// It is up to him to contend; with a place in the ensemble's queue, if there is one.
    Lead(Option<Box<PausedAcquisition>>),
    /// The one who contended for all has failed, and so would he.
    Failed(Error),
}

/// Whose task it is that the next one follows. However it ends, one does.
pub(crate) struct Baton(Option<Arc<SharedNode>>);

/// What becomes of a node whose holder lets go.
pub(crate) enum Passed {
    /// Another has it, or it is kept.
    On,
    /// It is to be released; then the next one may contend.
    Nowhere(Baton),
    /// It was lost before; others see to that.
    Lost,
}

impl Sharer {
    /// The group of all on this client that have the same key.
    pub(crate) fn of(client: &Client, key: Key) -> Arc<Sharer> {
        let core = client.core();
        let mut members = core.upper::<Members>().map(Mutex::lock);
        let known = members.as_ref().and_then(|members| members.get(&key)?.upgrade());
        if let Some(member) = known {
            return member;
        }
        let state = SharedNodeState {
            phase: NodePhase::Free,
            seats: VecDeque::new(),
            arrivals: 0,
            held_nodes: 0,
            contest: None,
            timed: None,
        };
        let group = Arc::new(SharedNode { policy: key.policy, state: Mutex::new(state) });
        let member = Arc::new(Sharer { key: key.clone(), core: Arc::downgrade(core), group });
        if let Some(members) = &mut members {
            members.insert(key, Arc::downgrade(&member));
        }
        member
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
            let mut state = self.group.state.lock();
            match std::mem::replace(&mut state.phase, NodePhase::Sought) {
                NodePhase::Free => {}
                NodePhase::Kept { number, held_node, turn, .. } if held_node.may_be_granted() => {
                    state.phase = NodePhase::Held(number, Arc::downgrade(&held_node));
                    drop(state);
                    held_node.resume();
                    return Ok(Some(Hold::shared(
                        client,
                        held_node,
                        turn,
                        Arc::clone(self),
                        number,
                    )));
                }
                NodePhase::Kept { held_node, .. } => {
                    drop(state);
                    let baton = Baton(Some(Arc::clone(&self.group)));
                    held_node.release_soon();
                    return self.lead(baton, &contention(), limits, None);
                }
                phase @ (NodePhase::Sought | NodePhase::Held(..)) => {
                    state.phase = phase;
                    if self.group.policy.hand_over == HandOver::Off {
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
                    let seat = state.sit_down(waiter.bell());
                    let watch = state.others_matter();
                    drop(state);
                    if let Some(held_node) = watch {
                        held_node.watch_for_others();
                    }
                    match self.wait(&waiter, &seat, client, limits, &contention)? {
                        // It was lost on the way.
                        Some(hold) if !hold.is_held() && !limits.deadline.has_passed() => continue,
                        Some(hold) if !hold.is_held() => return Ok(None),
                        waited => return Ok(waited),
                    }
                }
            }
            drop(state);
            let baton = Baton(Some(Arc::clone(&self.group)));
            return self.lead(baton, &contention(), limits, None);
        }
    }

    fn wait(
        self: &Arc<Self>,
        waiter: &Waiter,
        seat: &Arc<WaitingThread>,
        client: &Client,
        limits: Limits<'_>,
        contention: &impl Fn() -> Contention,
    ) -> Result<Option<Hold>> {
        let baton = || Baton(Some(Arc::clone(&self.group)));
        match self.wait_for_offer(waiter, seat, client, limits) {
            Ok(Some(Offer::Hold(hold))) => Ok(Some(hold)),
            Ok(Some(Offer::Lead(paused))) => self.lead(baton(), &contention(), limits, paused),
            Ok(Some(Offer::Failed(error))) => Err(error),
            // What came at the last moment is not lost: it is taken, or goes to the next one.
            given_up => match self.group.stand_up(seat) {
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
        seat: &WaitingThread,
        client: &Client,
        limits: Limits<'_>,
    ) -> Result<Option<Offer>> {
        let _cancel = limits.cancel.map(|cancel| cancel.subscribe(waiter.bell()));
        let core = client.core();
        let longest_outage = core.retry_policy().longest_outage();
        let _changes = core.changes().subscribe(waiter.bell());
        let mut cut_off = None;
        loop {
            if let Some(offer) = seat.offer.lock().take() {
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
        let mut state = self.group.state.lock();
        state.held_nodes += 1;
        let number = state.held_nodes;
        state.phase = NodePhase::Held(number, Arc::downgrade(hold.held_node()));
        state.contest = None;
        if hold.is_contested() {
            state.contest = Some(self.group.contest(&state));
        }
        let watch = if state.seats.is_empty() { None } else { state.others_matter() };
        // Under the lock, so that nothing of it is told before it is known whom to tell.
        let is_lost = hold.share(self, number);
        drop(state);
        if is_lost {
            self.group.lost(number);
        } else if let Some(held_node) = watch {
            held_node.watch_for_others();
        }
        hold
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn group(&self) -> &Arc<SharedNode> {
        &self.group
    }
}

/// Whether what is wrong for one is so for all who share its node. Not the end of its own patience,
/// with the connection or with waiting, nor that there was no thread for it.
fn is_everybodys(error: &Error) -> bool {
    use ErrorKind::{Cancelled, Connect, ConnectionLoss, SessionLost, System};
    !matches!(error.kind(), Cancelled | Connect | ConnectionLoss | SessionLost | System)
}

impl Drop for Sharer {
    fn drop(&mut self) {
        let core = self.core.upgrade();
        if let Some(members) = core.as_ref().and_then(|core| core.upper::<Members>()) {
            let mut members = members.lock();
            // Another may have taken its place already.
            if members.get(&self.key).is_some_and(|member| member.strong_count() == 0) {
                members.remove(&self.key);
            }
        }
        self.group.dissolve();
    }
}

impl SharedNode {
    /// What becomes of the node, now that its holder lets go.
    pub(crate) fn pass(
        self: &Arc<Self>,
        client: &Client,
        member: &Arc<Sharer>,
        held_node: &Arc<HeldNode>,
        number: u64,
    ) -> Passed {
        let mut state = self.state.lock();
        if !matches!(state.phase, NodePhase::Held(current, _) if current == number) {
            return Passed::Lost;
        }
        if !held_node.may_go_on() || !state.may_pass() {
            state.phase = NodePhase::Sought;
            return Passed::Nowhere(Baton(Some(Arc::clone(self))));
        }
        if let Some(seat) = state.seats.pop_front() {
            if let Some(contest) = &mut state.contest {
                contest.left = contest.left.saturating_sub(1);
            }
            let (turn, left) = held_node.next_turn(false);
            let hold =
                Hold::shared(client, Arc::clone(held_node), turn, Arc::clone(member), number);
            // Under the lock, so that who stands up finds what was offered.
            seat.offer(Offer::Hold(hold));
            drop(state);
            // It may take the lock that another has now.
            drop(left);
            return Passed::On;
        }
        let Some(keep) = self.policy.keep else {
            state.phase = NodePhase::Sought;
            return Passed::Nowhere(Baton(Some(Arc::clone(self))));
        };
        let (turn, left) = held_node.next_turn(true);
        let since = rt::now();
        state.phase = NodePhase::Kept { number, held_node: Arc::clone(held_node), turn, since };
        let session = held_node.session_id();
        let untimed = state.timed.replace(session) != Some(session);
        drop(state);
        if untimed && let Some(end) = since.checked_add(keep) {
            let group = Arc::downgrade(self);
            held_node.later(end, move || group.upgrade()?.expire(session));
        }
        held_node.watch_for_others();
        // It may take what is kept.
        drop(left);
        Passed::On
    }

    /// Others want the lock, as is known from this moment.
    fn contest(&self, state: &SharedNodeState) -> Contest {
        let (left, time) = match self.policy.hand_over {
            HandOver::Off => (0, Duration::ZERO),
            HandOver::Within { turns, time } => (turns, time),
        };
        let now = rt::now();
        // A time too long for the clock: by then there are no turns left.
        let until = now.checked_add(time).unwrap_or(now + Duration::from_secs(1 << 30));
        Contest { last: state.arrivals, left, until }
    }

    /// Others contend for the lock that this tenure has, or ask for it.
    pub(crate) fn contested(self: &Arc<Self>, number: u64) {
        let mut state = self.state.lock();
        match &state.phase {
            NodePhase::Held(current, _) if *current == number && state.contest.is_none() => {
                state.contest = Some(self.contest(&state));
            }
            NodePhase::Kept { number: current, .. } if *current == number => {
                if let Some(held_node) = state.take_kept() {
                    drop(state);
                    let _leading = Baton(Some(Arc::clone(self)));
                    held_node.release_soon();
                }
            }
            _ => {}
        }
    }

    /// The node of this tenure is gone, or nobody knows: those who wait are not to wait for its
    /// holder.
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

    /// Lets go what was kept for long enough; or says when to look again.
    fn expire(self: &Arc<Self>, session: i64) -> Option<Instant> {
        let keep = self.policy.keep?;
        let mut state = self.state.lock();
        if state.timed != Some(session) {
            // There is a later session.
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
                // It may have been taken meanwhile.
                let held_node = state.take_kept()?;
                // From here on nobody holds it, nor waits for it.
                held_node.announce_release();
                state.phase = NodePhase::Free;
                drop(state);
                held_node.release_soon();
                None
            }
        }
    }

    /// Whoever sat here waits no longer. What was offered and not taken, is his.
    fn stand_up(&self, seat: &Arc<WaitingThread>) -> Option<Offer> {
        self.state.lock().seats.retain(|other| !Arc::ptr_eq(other, seat));
        seat.offer.lock().take()
    }

    /// Nobody is left who could take what is kept.
    fn dissolve(self: &Arc<Self>) {
        let Some(held_node) = self.state.lock().take_kept() else { return };
        held_node.release();
    }
}

impl SharedNodeState {
    fn sit_down(&mut self, bell: Signal) -> Arc<WaitingThread> {
        self.arrivals += 1;
        let seat = Arc::new(WaitingThread { number: self.arrivals, offer: Mutex::new(None), bell });
        self.seats.push_back(Arc::clone(&seat));
        seat
    }

    /// Whether the first of those who wait may have it, or it may be kept.
    fn may_pass(&self) -> bool {
        let Some(contest) = &self.contest else { return true };
        let Some(first) = self.seats.front() else { return false };
        first.number <= contest.last && contest.left > 0 && rt::now() < contest.until
    }

    /// The tenure of whose holder it is to be known whether others wait, now that one does here.
    fn others_matter(&self) -> Option<Arc<HeldNode>> {
        match &self.phase {
            NodePhase::Held(_, held_node) if self.contest.is_none() => held_node.upgrade(),
            _ => None,
        }
    }

    /// The tenure that is kept, which is then nobody's.
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
    /// The next one's, with the place in the ensemble's queue, which comes back if there is none.
    fn pass(
        mut self,
        paused: impl Into<Option<Box<PausedAcquisition>>>,
    ) -> Option<Box<PausedAcquisition>> {
        self.relay(paused.into())
    }

    fn relay(&mut self, paused: Option<Box<PausedAcquisition>>) -> Option<Box<PausedAcquisition>> {
        let Some(group) = self.0.take() else { return paused };
        let mut state = group.state.lock();
        match state.seats.pop_front() {
            Some(seat) => {
                seat.offer(Offer::Lead(paused));
                None
            }
            None => {
                state.phase = NodePhase::Free;
                paused
            }
        }
    }

    /// Nobody's: all who wait fail with this error.
    fn fail(mut self, error: &Error) {
        let Some(group) = self.0.take() else { return };
        let mut state = group.state.lock();
        state.phase = NodePhase::Free;
        for seat in std::mem::take(&mut state.seats) {
            seat.offer(Offer::Failed(error.clone()));
        }
    }
}

impl Drop for Baton {
    fn drop(&mut self) {
        let _ = self.relay(None);
    }
}

impl fmt::Debug for Sharer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("node", &self.key.node).finish_non_exhaustive()
    }
}
