//! What a guard owns: a node, its token, and the knowledge of whether it is still held.

use std::fmt;
use std::mem;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::acquire::refusal;
use super::handover::{Baton, Passed, SharedNode, Sharer};
use super::protocol::{GrantedNode, others};
use super::revoke::is_request;
use super::ticket::Ticket;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::End;
use crate::logging;
use crate::path;
use crate::rt::{self, AtomicU64, Condvar, Deadline, Mutex, ThreadId};
use crate::session::callbacks::Callbacks;
use crate::session::client::{Client, ClientCore};
use crate::session::connection::{Answer, Fault, Names, Stat};
use crate::session::notify::{Signal, Subscription, Waiter};
use crate::session::reaper::Reaper;
use crate::session::session::{Session, ended};
use crate::session::status::Usable;

/// How long dropping a guard waits for its node's deletion to be under way, and for callbacks that
/// have to be over.
pub(crate) const DROP_LIMIT: Duration = Duration::from_millis(500);
/// After so long a request about the node is repeated that the server has refused.
const PAUSE: Duration = Duration::from_millis(200);

/// A number that grows from holder to holder of one lock, for stores to refuse what a
/// former holder sends late.
///
/// It is the `czxid` of the holder's node: the number of the transaction that made it, in
/// the order of the whole ensemble. So it goes on growing when the lock node is deleted
/// and made anew, where sequence numbers start again. The second part, the turn, tells
/// apart successive holders that share one node; it is 0 otherwise.
///
/// Its text form is of fixed width and sorts as the tokens do:
///
/// ```
/// use zklock::FencingToken;
///
/// let token: FencingToken = "00000001000000a7-00000000".parse().unwrap();
/// assert_eq!(token.zxid(), 0x1_0000_00a7);
/// assert_eq!(token.to_string(), "00000001000000a7-00000000");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken {
    zxid: u64,
    turn: u32,
}

impl FencingToken {
    /// The transaction that made the holder's node. Between processes it alone is enough.
    pub fn zxid(&self) -> u64 {
        self.zxid
    }

    /// Which of the successive holders that share the node this is, from 0.
    pub fn turn(&self) -> u32 {
        self.turn
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:08x}", self.zxid, self.turn)
    }
}

impl FromStr for FencingToken {
    type Err = Error;

    /// # Errors
    ///
    /// [`InvalidData`](ErrorKind::InvalidData) for anything that `Display` does not write.
    fn from_str(text: &str) -> Result<FencingToken> {
        let parse = || {
            let (zxid, turn) = text.split_once('-')?;
            let hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if zxid.len() != 16 || turn.len() != 8 || !hex(zxid) || !hex(turn) {
                return None;
            }
            let zxid = u64::from_str_radix(zxid, 16).ok()?;
            Some(FencingToken { zxid, turn: u32::from_str_radix(turn, 16).ok()? })
        };
        parse().ok_or_else(|| {
            Error::new(ErrorKind::InvalidData, format!("{text:?} is not a fencing token"))
        })
    }
}

/// Why a lock is no longer held though its guard was not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The server expired the session.
    SessionExpired,
    /// No server could confirm the session before its lease ran out by this machine's
    /// clock; the ensemble may or may not have expired it yet.
    LeaseExpired,
    /// Somebody deleted the contender's node.
    NodeDeleted,
    /// The client was closed.
    ClientClosed,
    /// The server rejected the client's credentials on reconnecting.
    AuthFailed,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::SessionExpired => "the session expired",
            LossReason::LeaseExpired => "the session's lease ran out by the local clock",
            LossReason::NodeDeleted => "the contender's node was deleted",
            LossReason::ClientClosed => "the client was closed",
            LossReason::AuthFailed => "the credentials were rejected",
        })
    }
}

impl From<End> for LossReason {
    fn from(end: End) -> LossReason {
        match end {
            End::Expired => LossReason::SessionExpired,
            End::Lapsed => LossReason::LeaseExpired,
            End::AuthFailed => LossReason::AuthFailed,
            End::Closed => LossReason::ClientClosed,
        }
    }
}

/// See the module. Dropped, it goes to the next of those who share the node, or is released.
pub(crate) struct Hold {
    client: Client,
    held_node: Arc<HeldNode>,
    turn: u32,
    /// With whom the node is shared, and which tenure of theirs it is.
    shared: Option<(Arc<Sharer>, u64)>,
    contested: bool,
    over: bool,
}

/// The node by which a lock is held: by one guard, or by one after another.
pub(crate) struct HeldNode {
    core: Arc<ClientCore>,
    session: Arc<Session>,
    watchdog: Arc<Watchdog>,
    /// The node as the client names it.
    path: String,
    zxid: u64,
    subscriptions: Mutex<Vec<Subscription>>,
}

/// What is known of the tenure. The guard's user may keep it longer than the guard.
struct Watchdog {
    /// Whoever waits for the loss of the lock is not to keep its session.
    session: Weak<Session>,
    /// The node as the server knows it.
    node: String,
    /// What the node says, where a request to let go is to be written over with it.
    data: Option<Vec<u8>>,
    /// The transaction that made the node, where other sessions may take its name: only that very
    /// node is deleted.
    named: Option<i64>,
    /// The connection that the node was last watched on.
    watched_on: AtomicU64,
    events: Callbacks,
    reaper: Reaper,
    state: Mutex<WatchdogState>,
    changed: Condvar,
}

type OnLost = Box<dyn FnOnce(LossReason) + Send>;
type OnRequest = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct WatchdogState {
    /// Whose time it is: it counts those who have had the node.
    turn: u32,
    /// It is nobody's time: the node is kept.
    idle: bool,
    lost: Option<LossReason>,
    released: bool,
    callbacks: Vec<OnLost>,
    /// Somebody asks to let go.
    requested: bool,
    request_callbacks: Vec<OnRequest>,
    /// How many callbacks have to be over before a release is, and which threads run some of them.
    due: usize,
    running: Vec<ThreadId>,
    node_watch: OneAtATime,
    /// The server has refused to set the last watch on the node.
    unwatched: bool,
    /// That was logged.
    complained: bool,
    /// Only where the node itself may not be read.
    siblings: Option<Subscription>,
    sibling_watch: OneAtATime,
    /// Only where the node is shared, and none was seen yet: for others who contend.
    arrivals: Option<Subscription>,
    arrival_watch: OneAtATime,
    group: Option<(Weak<SharedNode>, u64)>,
}

/// Keeps requests of one kind to one at a time, however many events ask for them.
#[derive(Debug, Default)]
struct OneAtATime {
    under_way: bool,
    again: bool,
}

impl OneAtATime {
    /// Whether to ask now; otherwise the request that is under way will be followed by another.
    fn begin(&mut self) -> bool {
        self.again = self.under_way;
        !mem::replace(&mut self.under_way, true)
    }

    /// The request was answered. Whether another is to follow.
    fn end(&mut self) -> bool {
        self.under_way = false;
        mem::take(&mut self.again)
    }
}

impl Hold {
    pub(crate) fn new(
        client: &Client,
        session: Arc<Session>,
        lock_node: &str,
        place: &GrantedNode,
        data: &[u8],
    ) -> Hold {
        let zxid = u64::try_from(place.czxid).unwrap_or_default();
        let data = Some(data.to_vec());
        let mut hold = Hold::on(client, session, lock_node, &place.name, zxid, data);
        hold.contested = place.contested;
        hold
    }

    /// On a node that the session has, of whatever kind. With `data`, which only a node is given
    /// that nobody else knows the name of, requests to let go are written over with it.
    pub(crate) fn on(
        client: &Client,
        session: Arc<Session>,
        lock_node: &str,
        name: &str,
        zxid: u64,
        data: Option<Vec<u8>>,
    ) -> Hold {
        Hold::make(client, session, lock_node, name, zxid, (data, None))
    }

    /// On a node of the session's under a name that other sessions may take.
    pub(crate) fn on_named(
        client: &Client,
        session: Arc<Session>,
        parent: &str,
        name: &str,
        czxid: i64,
    ) -> Hold {
        let zxid = u64::try_from(czxid).unwrap_or_default();
        Hold::make(client, session, parent, name, zxid, (None, Some(czxid)))
    }

    fn make(
        client: &Client,
        session: Arc<Session>,
        lock_node: &str,
        name: &str,
        zxid: u64,
        (data, named): (Option<Vec<u8>>, Option<i64>),
    ) -> Hold {
        let core = Arc::clone(client.core());
        let path = path::join(lock_node, name);
        let watchdog = Arc::new(Watchdog {
            session: Arc::downgrade(&session),
            node: core.whole(&path),
            data,
            named,
            watched_on: AtomicU64::new(0),
            events: core.events().clone(),
            reaper: core.reaper().clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let subscriptions = vec![
            session.watches().subscribe(&watchdog.node, watchdog.signal(Watchdog::watch)),
            session.status().subscribe(watchdog.signal(Watchdog::look)),
        ];
        watchdog.look();
        let subscriptions = Mutex::new(subscriptions);
        let held_node = Arc::new(HeldNode { core, session, watchdog, path, zxid, subscriptions });
        Hold {
            client: client.clone(),
            held_node,
            turn: 0,
            shared: None,
            contested: false,
            over: false,
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.held_node.path
    }

    pub(crate) fn token(&self) -> FencingToken {
        FencingToken { zxid: self.held_node.zxid, turn: self.turn }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held_node.is_held()
    }

    pub(crate) fn held_node(&self) -> &Arc<HeldNode> {
        &self.held_node
    }

    /// Whether others were seen to wait when it was granted.
    pub(crate) fn is_contested(&self) -> bool {
        self.contested
    }

    /// Has the node shared with a group, as a tenure of that number; and says whether it is lost
    /// already, of which the group would not be told any more.
    pub(crate) fn share(&mut self, member: &Arc<Sharer>, number: u64) -> bool {
        self.shared = Some((Arc::clone(member), number));
        let mut state = self.held_node.watchdog.state.lock();
        state.group = Some((Arc::downgrade(member.group()), number));
        state.lost.is_some()
    }

    /// Of a node that another has had before.
    pub(crate) fn shared(
        client: &Client,
        held_node: Arc<HeldNode>,
        turn: u32,
        member: Arc<Sharer>,
        number: u64,
    ) -> Hold {
        let shared = Some((member, number));
        Hold { client: client.clone(), held_node, turn, shared, contested: false, over: false }
    }

    /// As `is_held`, with an error that says why not.
    pub(crate) fn check(&self) -> Result<()> {
        self.held_node.loss().map_or(Ok(()), |why| Err(self.lost_error(why)))
    }

    pub(crate) fn ensure_held(&self) -> Result<()> {
        let waiter = Waiter::new();
        let _subscription = self.held_node.session.status().subscribe(waiter.bell());
        loop {
            self.check()?;
            if let Err(end) = self.until_usable(&waiter) {
                self.held_node.watchdog.lose(end.into());
                return Err(self.lost_error(end.into()));
            }
            self.check()?;
            match self.held_node.session.confirm(&self.held_node.watchdog.node) {
                Ok(Some(stat)) if stat.ephemeral_owner == self.held_node.session.id() => {
                    return self.check();
                }
                Ok(_) => {
                    self.held_node.watchdog.lose(LossReason::NodeDeleted);
                    return Err(self.lost_error(LossReason::NodeDeleted));
                }
                // The node is there, and nobody else makes one of this name.
                Err(Fault::NoAuth) if self.has_guid() => return self.check(),
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => {}
                Err(fault) => {
                    return Err(refusal(
                        &fault,
                        "confirm the lock",
                        "READ on the node",
                        &self.held_node.path,
                    ));
                }
            }
        }
    }

    /// Whether the node's name has a guid, and so is known to nobody who makes nodes but its owner.
    fn has_guid(&self) -> bool {
        let ticket = Ticket::parse(path::last(&self.held_node.watchdog.node));
        ticket.is_some_and(|ticket| Uuid::parse_str(ticket.guid()).is_ok())
    }

    pub(crate) fn lost_error(&self, why: LossReason) -> Error {
        let kind = match why {
            LossReason::NodeDeleted => ErrorKind::LockLost,
            LossReason::ClientClosed => ErrorKind::Closed,
            LossReason::AuthFailed => ErrorKind::AuthFailed,
            LossReason::SessionExpired | LossReason::LeaseExpired => ErrorKind::SessionLost,
        };
        Error::new(kind, format!("the lock is no longer held: {why}")).on(&self.held_node.path)
    }

    pub(crate) fn lost(&self) -> Lost {
        Lost { watchdog: Arc::clone(&self.held_node.watchdog), turn: self.turn }
    }

    pub(crate) fn on_lost(&self, callback: OnLost) {
        let mut state = self.held_node.watchdog.state.lock();
        match state.lost {
            None => state.callbacks.push(callback),
            Some(why) => {
                state.due += 1;
                drop(state);
                self.held_node.watchdog.tell_of_loss(callback, why);
            }
        }
    }

    pub(crate) fn release_requested(&self) -> bool {
        self.held_node.watchdog.state.lock().requested
    }

    pub(crate) fn on_release_requested(&self, callback: OnRequest) {
        let mut state = self.held_node.watchdog.state.lock();
        if state.requested {
            drop(state);
            self.held_node.watchdog.tell_of_request(self.turn, callback);
        } else {
            state.request_callbacks.push(callback);
        }
    }

    /// Releases, waits for it, and tells of it.
    pub(crate) fn release(mut self) -> Result<()> {
        self.held_node.core.check_process()?;
        let until = Deadline::after(DROP_LIMIT);
        let (baton, left) = match self.part() {
            ReleaseOutcome::Passed => return Ok(()),
            ReleaseOutcome::Lost(why, left) => {
                left.settle(until);
                return Err(self.lost_error(why));
            }
            ReleaseOutcome::Ours(baton, left) => (baton, left),
        };
        let deleted = self.delete();
        drop(baton);
        left.settle(until);
        deleted
    }

    /// Deletes the node, however often that must be repeated over lost connections.
    fn delete(&self) -> Result<()> {
        let waiter = Waiter::new();
        let _subscription = self.held_node.session.status().subscribe(waiter.bell());
        let mut unanswered = false;
        loop {
            if let Err(end) = self.until_usable(&waiter) {
                return Err(ended(end).on(&self.held_node.path));
            }
            match self.held_node.delete() {
                Ok(()) => return Ok(()),
                // An earlier attempt of ours took effect.
                Err(Fault::NoNode) if unanswered => return Ok(()),
                Err(Fault::NoNode) => return Err(self.lost_error(LossReason::NodeDeleted)),
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => unanswered = true,
                Err(fault) => {
                    self.held_node.insist();
                    let needs = "DELETE on the lock node";
                    return Err(refusal(
                        &fault,
                        "delete the contender",
                        needs,
                        &self.held_node.path,
                    ));
                }
            }
        }
    }

    /// Has a verb answered, however often it must be repeated over lost connections. It is given
    /// what makes a path whole. An error says that the session has ended.
    pub(crate) fn persist<T>(
        &self,
        verb: impl Fn(&Session, &dyn Fn(&str) -> String) -> Answer<T>,
    ) -> Result<Answer<T>> {
        let waiter = Waiter::new();
        let _subscription = self.held_node.session.status().subscribe(waiter.bell());
        loop {
            if let Err(end) = self.until_usable(&waiter) {
                return Err(self.lost_error(end.into()));
            }
            match verb(&self.held_node.session, &|path| self.held_node.core.whole(path)) {
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => {}
                answer => return Ok(answer),
            }
        }
    }

    /// Is done with it, and leaves the node to the caller, who has it deleted. An error says that
    /// it was lost before.
    pub(crate) fn leave(&mut self) -> Result<Option<ReleasedParts>> {
        self.held_node.core.check_process()?;
        match self.part() {
            ReleaseOutcome::Lost(why, left) => {
                left.settle(Deadline::after(DROP_LIMIT));
                Err(self.lost_error(why))
            }
            ReleaseOutcome::Passed => Ok(None),
            ReleaseOutcome::Ours(_, left) => Ok(Some(left)),
        }
    }

    /// A hold of the same session with the same token, on another node that says this.
    pub(crate) fn beside(&self, lock_node: &str, name: &str, data: Option<Vec<u8>>) -> Hold {
        let session = Arc::clone(&self.held_node.session);
        Hold::on(&self.client, session, lock_node, name, self.held_node.zxid, data)
    }

    /// Has another node of the session deleted in the background, if it is there.
    pub(crate) fn discard(&self, path: &str) {
        let core = &self.held_node.core;
        core.reaper().delete(&self.held_node.session, core.whole(path));
    }

    fn until_usable(&self, waiter: &Waiter) -> Result<(), End> {
        if self.held_node.core.is_elsewhere() {
            return Err(End::Closed);
        }
        match self.held_node.session.status().until_usable(waiter, Deadline::NEVER, || false) {
            Usable::Never(end) => Err(end),
            Usable::Now | Usable::NotInTime => Ok(()),
        }
    }

    /// Gives up the node, to the next one that shares it if there is one.
    fn part(&mut self) -> ReleaseOutcome {
        self.over = true;
        let mut baton = None;
        if let Some((member, number)) = self.shared.take() {
            match member.group().pass(&self.client, &member, &self.held_node, number) {
                Passed::On => return ReleaseOutcome::Passed,
                Passed::Nowhere(next) => baton = Some(next),
                Passed::Lost => {}
            }
        }
        let left = self.held_node.leave();
        match left.lost {
            Some(why) => ReleaseOutcome::Lost(why, left),
            None => ReleaseOutcome::Ours(baton, left),
        }
    }

    /// A hold of the same node, for who has left it (see [`HeldNode::leave`]) and comes to keep it.
    pub(crate) fn again(mut self) -> Hold {
        self.over = true;
        let path = &self.held_node.path;
        self.beside(path::parent(path), path::last(path), self.held_node.watchdog.data.clone())
    }

    /// The node is deleted already, by its owner.
    pub(crate) fn has_gone(mut self) {
        self.over = true;
        drop(self.held_node.leave());
    }

    /// As dropping does, but no longer than that.
    pub(crate) fn let_go(mut self, until: Deadline) {
        self.release_by(until);
    }

    fn release_by(&mut self, until: Deadline) {
        if self.over || self.held_node.core.is_elsewhere() {
            return;
        }
        match self.part() {
            ReleaseOutcome::Passed => {}
            ReleaseOutcome::Lost(_, left) => left.settle(until),
            ReleaseOutcome::Ours(baton, left) => {
                self.held_node.delete_by(until);
                // The next one here contends when our delete is on its way.
                drop(baton);
                left.settle(until);
            }
        }
    }
}

/// What becomes of a node when its holder lets go.
enum ReleaseOutcome {
    /// Another has it.
    Passed,
    Lost(LossReason, ReleasedParts),
    /// It is to be deleted; then the next one here may contend.
    Ours(Option<Baton>, ReleasedParts),
}

/// A wait for callbacks is cut into so many parts: a process that is stopped meanwhile loses one of
/// them, and when it goes on, so do its callbacks.
const WAIT_PARTS: u32 = 10;

/// What a holder that lets go leaves behind: to be dropped when its node's deletion is under way and
/// no lock is held, as what callbacks own may do whatever its user likes when it is dropped.
#[must_use = "callbacks that it owns may take this very lock when they are dropped"]
pub(crate) struct ReleasedParts {
    watchdog: Arc<Watchdog>,
    lost: Option<LossReason>,
    callbacks: HolderCallbacks,
}

impl ReleasedParts {
    /// Waits for the callbacks that have begun, and for those that tell of a loss before the
    /// release: none runs after it. One that lets go itself waits for the others only.
    fn settle(self, until: Deadline) {
        let own = rt::thread_id();
        let is_due = |state: &WatchdogState| {
            state.due > state.running.iter().filter(|thread| **thread == own).count()
        };
        let mut state = self.watchdog.state.lock();
        if is_due(&state)
            && let Some(until) = until.instant()
        {
            let part = until.saturating_duration_since(rt::now()) / WAIT_PARTS;
            for _ in 0..WAIT_PARTS {
                let end = rt::now() + part;
                while is_due(&state)
                    && !self.watchdog.changed.wait_until(&mut state, end).timed_out()
                {
                }
            }
        }
        drop(state);
        drop(self.callbacks);
    }
}

impl HeldNode {
    pub(crate) fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// As `is_held`, without recording anything: for those who check.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn seems_held(&self) -> bool {
        self.watchdog.state.lock().lost.is_none() && self.session.is_trusted()
    }

    /// Why it is lost, if it is. Whoever finds the lease over records and tells the loss before it
    /// answers; so no lock may be held here.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        if self.core.is_elsewhere() {
            // In a forked process nobody may be left to unlock the state.
            return Some(LossReason::ClientClosed);
        }
        let lost = self.watchdog.state.lock().lost;
        lost.or_else(|| self.watchdog.look_at_lease(&self.session))
    }

    /// As `is_held`, for one who has not held it before: where nobody knows of a lease, only while
    /// there is a connection. Nothing is recorded: it may be asked under locks.
    pub(crate) fn may_be_granted(&self) -> bool {
        let is_sure = || self.session.may_adopt() || self.session.status().now().is_usable();
        self.watchdog.state.lock().lost.is_none() && self.session.is_trusted() && is_sure()
    }

    /// Whether it may be handed to another holder.
    pub(crate) fn may_go_on(&self) -> bool {
        let state = self.watchdog.state.lock();
        let wanted = !state.requested && state.turn < u32::MAX;
        drop(state);
        wanted && self.may_be_granted()
    }

    /// Begins another holder's time, or one in which the node is nobody's, and says its number.
    /// What the last one has left behind is for the caller to drop, without any lock: it may do
    /// whatever its user likes.
    pub(crate) fn next_turn(&self, idle: bool) -> (u32, HolderCallbacks) {
        let mut state = self.watchdog.state.lock();
        state.turn = state.turn.saturating_add(1);
        state.idle = idle;
        let left = state.take_callbacks();
        self.watchdog.changed.notify_all();
        (state.turn, left)
    }

    /// The node that was nobody's has a holder.
    pub(crate) fn resume(&self) {
        self.watchdog.state.lock().idle = false;
    }

    /// Has the group told of others who contend, from here on.
    pub(crate) fn watch_for_others(&self) {
        if self.watchdog.state.lock().arrivals.is_none() {
            self.watchdog.watch_for_others();
        }
    }

    pub(crate) fn session_id(&self) -> i64 {
        self.session.id()
    }

    /// Has something done in the background while the session lasts, which says when to do it again.
    pub(crate) fn later(
        &self,
        due: Instant,
        job: impl FnMut() -> Option<Instant> + Send + 'static,
    ) {
        self.core.reaper().later(&self.session, due, Box::new(job));
    }

    /// From here on it is neither watched nor told of; a loss that came before is told.
    pub(crate) fn leave(&self) -> ReleasedParts {
        self.loss();
        let mut state = self.watchdog.state.lock();
        state.released = true;
        let callbacks = state.take_callbacks();
        let subscriptions = (state.siblings.take(), state.arrivals.take());
        let lost = state.lost;
        self.watchdog.changed.notify_all();
        drop(state);
        drop(subscriptions);
        let subscriptions = mem::take(&mut *self.subscriptions.lock());
        drop(subscriptions);
        ReleasedParts { watchdog: Arc::clone(&self.watchdog), lost, callbacks }
    }

    /// Lets go of what is nobody's.
    pub(crate) fn release(&self) {
        let left = self.leave();
        if left.lost.is_none() {
            self.delete_by(Deadline::after(DROP_LIMIT));
        }
    }

    /// As `release`, without waiting for anything.
    pub(crate) fn release_soon(&self) {
        let left = self.leave();
        match left.lost {
            None => self.delete_by(Deadline::after(Duration::ZERO)),
            Some(_) => self.session.leaves_no_more(&self.watchdog.node),
        }
    }

    /// Nobody of ours is to wait for the node any more. Its release follows.
    pub(crate) fn announce_release(&self) {
        self.session.leaves(&self.watchdog.node);
    }

    fn delete_by(&self, until: Deadline) {
        let Some(czxid) = self.watchdog.named else {
            return self.core.reaper().let_go(&self.session, &self.watchdog.node, until);
        };
        let node = self.watchdog.node.clone();
        let delete = move |session: &Session| session.delete_named(&node, czxid);
        let deleted = match self.session.status().now().is_usable() {
            true => self.session.ask(until, None, delete, drop),
            false => Ok(None),
        };
        if !matches!(deleted, Ok(Some(Ok(()) | Err(Fault::NoNode | Fault::SessionEnded)))) {
            self.insist();
        }
    }

    fn delete(&self) -> Answer<()> {
        match self.watchdog.named {
            None => self.session.delete(&self.watchdog.node),
            Some(czxid) => self.session.delete_named(&self.watchdog.node, czxid),
        }
    }

    /// Has the node deleted in the background, though the server would not have it.
    fn insist(&self) {
        let (reaper, node) = (self.core.reaper(), self.watchdog.node.clone());
        match self.watchdog.named {
            None => reaper.insist(&self.session, node),
            Some(czxid) => reaper.delete_named(&self.session, node, czxid),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.held_node.core.is_elsewhere() {
            // Dropping what they own takes locks that nobody may be left to unlock.
            return mem::forget((Arc::clone(&self.held_node), self.shared.take()));
        }
        self.release_by(Deadline::after(DROP_LIMIT));
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("path", &self.held_node.path)
            .field("token", &format_args!("{}", self.token()))
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// What a holder wants to have called.
pub(crate) struct HolderCallbacks {
    _lost: Vec<OnLost>,
    _requested: Vec<OnRequest>,
}

impl WatchdogState {
    fn take_callbacks(&mut self) -> HolderCallbacks {
        HolderCallbacks {
            _lost: mem::take(&mut self.callbacks),
            _requested: mem::take(&mut self.request_callbacks),
        }
    }

    /// Whether this holder has let go.
    fn is_over(&self, turn: u32) -> bool {
        self.released || self.turn != turn
    }

    /// What this holder has lost it by.
    fn loss(&self, turn: u32) -> Option<LossReason> {
        self.lost.filter(|_| self.turn == turn)
    }
}

impl Watchdog {
    fn signal(self: &Arc<Self>, act: fn(&Arc<Watchdog>)) -> Signal {
        let watchdog = Arc::downgrade(self);
        Arc::new(move || {
            if let Some(watchdog) = watchdog.upgrade() {
                act(&watchdog);
            }
        })
    }

    /// After any change of the session.
    fn look(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let phase = session.status().now();
        if let Some(end) = phase.ended {
            self.lose(end.into());
        } else if phase.attached
            && let before = self.watched_on.swap(phase.connection, Ordering::SeqCst)
            && before != phase.connection
        {
            let mut state = self.state.lock();
            // What was under way went with its connection.
            (state.node_watch, state.sibling_watch, state.arrival_watch) = Default::default();
            let arrivals = state.arrivals.is_some();
            drop(state);
            self.have_watched(before == 0);
            if arrivals {
                self.watch_for_others();
            }
        } else if phase.is_usable() {
            // A watch on the children is spent for nothing while the lock node is hidden.
            let state = self.state.lock();
            let (siblings, arrivals) = (state.siblings.is_some(), state.arrivals.is_some());
            let unwatched = state.unwatched;
            drop(state);
            if unwatched {
                self.watch();
            }
            if siblings {
                self.watch_siblings();
            }
            if arrivals {
                self.watch_for_others();
            }
        }
    }

    /// Looks whether the node is still there, and has that watched.
    fn watch(self: &Arc<Self>) {
        self.have_watched(false);
    }

    /// A lock that is held for a moment only needs no watch, so the first can wait for one.
    fn have_watched(self: &Arc<Self>, can_wait: bool) {
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state.lock();
        if state.released || !state.node_watch.begin() {
            return;
        }
        drop(state);
        let watchdog = Arc::downgrade(self);
        let on_answer = move |answer: Answer<Vec<u8>>| {
            let Some(watchdog) = watchdog.upgrade() else { return };
            let mut state = watchdog.state.lock();
            let again = state.node_watch.end();
            // Of data that are too large nothing is known, but they are watched.
            if matches!(answer, Ok(_) | Err(Fault::TooLarge(_))) {
                state.unwatched = false;
            }
            drop(state);
            match answer {
                Ok(data) if is_request(&data) => watchdog.request(),
                Ok(_) | Err(Fault::TooLarge(_)) => {}
                Err(Fault::NoNode) => watchdog.lose(LossReason::NodeDeleted),
                Err(Fault::NoAuth) => watchdog.watch_siblings(),
                Err(fault) => watchdog.not_watched(&fault, Watchdog::watch),
            }
            if again {
                watchdog.watch();
            }
        };
        let named = self.named;
        let on_answer = move |answer: Answer<(Vec<u8>, Stat)>| {
            on_answer(answer.and_then(|(data, stat)| own_only(named, &stat).map(|()| data)));
        };
        if !can_wait {
            return session.watch_soon(&self.node, Box::new(on_answer));
        }
        let watchdog = Arc::downgrade(self);
        let is_wanted = move || watchdog.upgrade().is_some_and(|one| !one.state.lock().released);
        session.watch_later(&self.node, Box::new(is_wanted), Box::new(on_answer));
    }

    /// The server has not set a watch: it is asked again in a moment, and at each review.
    fn not_watched(self: &Arc<Self>, fault: &Fault, ask: fn(&Arc<Watchdog>)) {
        // After a lost connection there will be another one.
        if matches!(fault, Fault::ConnectionLoss | Fault::SessionEnded) {
            return;
        }
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state.lock();
        state.unwatched = true;
        let is_first = !mem::replace(&mut state.complained, true);
        drop(state);
        self.later(&session, PAUSE, move |watchdog, _| {
            ask(watchdog);
            None
        });
        if is_first {
            logging::warning!(
                target: "zklock::hold",
                "the server does not watch the holder's node {:?} ({fault}); asking again, and \
                 until then nothing tells of its deletion or of a request to let go",
                self.node
            );
        }
    }

    /// Has something done in the background, unless the lock was released before; it says when to
    /// do it again.
    fn later(
        self: &Arc<Self>,
        session: &Arc<Session>,
        pause: Duration,
        mut job: impl FnMut(&Arc<Watchdog>, &Session) -> Option<Duration> + Send + 'static,
    ) {
        let (watchdog, owner) = (Arc::downgrade(self), Arc::downgrade(session));
        let chore = move || {
            let (watchdog, session) = (watchdog.upgrade()?, owner.upgrade()?);
            if watchdog.state.lock().released {
                return None;
            }
            rt::now().checked_add(job(&watchdog, &session)?)
        };
        if let Some(due) = rt::now().checked_add(pause) {
            self.reaper.later(session, due, Box::new(chore));
        }
    }

    /// Who may not read his own node is told of its siblings' changes, and looks each time.
    fn watch_siblings(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state.lock();
        if state.released || !state.sibling_watch.begin() {
            return;
        }
        if state.siblings.is_none() {
            let parent = path::parent(&self.node);
            let look = self.signal(Watchdog::watch_siblings);
            state.siblings = Some(session.watches().subscribe(parent, look));
        }
        drop(state);
        let watchdog = Arc::downgrade(self);
        let on_answer = move |answer: Answer<()>| {
            let Some(watchdog) = watchdog.upgrade() else { return };
            let again = watchdog.state.lock().sibling_watch.end();
            match answer {
                Err(Fault::NoNode) => watchdog.lose(LossReason::NodeDeleted),
                Err(fault @ (Fault::Busy | Fault::Refused(_))) => {
                    watchdog.not_watched(&fault, Watchdog::watch_siblings);
                }
                Ok(()) | Err(_) => {}
            }
            if again {
                watchdog.watch_siblings();
            }
        };
        let named = self.named;
        let on_answer =
            move |answer: Answer<Stat>| on_answer(answer.and_then(|stat| own_only(named, &stat)));
        session.watch_siblings_soon(&self.node, Box::new(on_answer));
    }

    /// Somebody came or went. Who only tries would be gone again before a look: what is kept is
    /// let go for him as well.
    fn others_may_be_there(self: &Arc<Self>) {
        if self.state.lock().idle {
            self.contest();
        } else {
            self.watch_for_others();
        }
    }

    /// Has the group told when others contend; looks each time that the children change, until
    /// there is one.
    fn watch_for_others(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state.lock();
        if state.released || !state.arrival_watch.begin() {
            return;
        }
        let lock_node = path::parent(&self.node);
        if state.arrivals.is_none() {
            let look = self.signal(Watchdog::others_may_be_there);
            state.arrivals = Some(session.watches().subscribe(lock_node, look));
        }
        drop(state);
        let watchdog = Arc::downgrade(self);
        let on_answer = move |answer: Answer<Names>| {
            let Some(watchdog) = watchdog.upgrade() else { return };
            let again = watchdog.state.lock().arrival_watch.end();
            let contested = match &answer {
                Ok(names) => others(path::last(&watchdog.node), names),
                // There will be another connection.
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => false,
                // Who cannot look does not go on as if there were nobody.
                Err(_) => true,
            };
            if contested {
                watchdog.contest();
            } else if again {
                watchdog.watch_for_others();
            }
        };
        session.watch_children_soon(lock_node, Box::new(on_answer));
    }

    /// Others want the lock: the group is told, once.
    fn contest(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let (arrivals, group) = (state.arrivals.take(), state.group.clone());
        drop(state);
        drop(arrivals);
        if let Some((group, number)) = group
            && let Some(group) = group.upgrade()
        {
            group.contested(number);
        }
    }

    /// Calls back about a loss, which counts as due already: it came before a release, if there has
    /// been one since.
    fn tell_of_loss(self: &Arc<Self>, callback: OnLost, why: LossReason) {
        let call = DueCallback::new(Arc::clone(self));
        self.events.dispatch(move || call.run(move || callback(why)));
    }

    /// Calls back about a request to let go, unless this holder has done so.
    fn tell_of_request(self: &Arc<Self>, turn: u32, callback: OnRequest) {
        let watchdog = Arc::clone(self);
        self.events.dispatch(move || {
            let mut state = watchdog.state.lock();
            if state.is_over(turn) {
                return;
            }
            state.due += 1;
            drop(state);
            DueCallback::new(watchdog).run(callback);
        });
    }

    /// Somebody asks to let go.
    fn request(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.released {
            return;
        }
        let is_first = !mem::replace(&mut state.requested, true);
        let callbacks = mem::take(&mut state.request_callbacks);
        let turn = state.turn;
        drop(state);
        self.write_data_back();
        if !is_first {
            return;
        }
        for callback in callbacks {
            self.tell_of_request(turn, callback);
        }
        // The request is for the node: none of ours is to have it after this holder.
        self.contest();
        logging::info!(target: "zklock::hold", "somebody asks the holder {:?} to let go", self.node);
    }

    /// The request stands where the holder had said something of itself, which others look for.
    fn write_data_back(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade().filter(|_| self.data.is_some()) else { return };
        self.later(&session, Duration::ZERO, |watchdog, session| {
            let data = watchdog.data.as_deref().unwrap_or_default();
            let written = session.write(&watchdog.node, data);
            (written == Err(Fault::ConnectionLoss)).then_some(PAUSE)
        });
    }

    /// Records that the lease is over, if it is, and says why.
    fn look_at_lease(self: &Arc<Self>, session: &Session) -> Option<LossReason> {
        let end = session.trusted().err()?;
        self.lose(end.into());
        // Another loss may have come first; after a release none is recorded.
        Some(self.state.lock().lost.unwrap_or(end.into()))
    }

    fn lose(self: &Arc<Self>, why: LossReason) {
        let mut state = self.state.lock();
        if state.released || state.lost.is_some() {
            return;
        }
        state.lost = Some(why);
        let callbacks = mem::take(&mut state.callbacks);
        state.due += callbacks.len();
        let (idle, group) = (state.idle, state.group.clone());
        self.changed.notify_all();
        drop(state);
        for callback in callbacks {
            self.tell_of_loss(callback, why);
        }
        if let Some((group, number)) = group
            && let Some(group) = group.upgrade()
        {
            group.lost(number);
        }
        if !idle {
            logging::warning!(target: "zklock::hold", "the lock held by {:?} is lost: {why}", self.node);
        }
    }
}

/// A callback that is due, until this is dropped: also when it panics, or never runs.
struct DueCallback {
    watchdog: Arc<Watchdog>,
    thread: Option<ThreadId>,
}

impl DueCallback {
    fn new(watchdog: Arc<Watchdog>) -> DueCallback {
        DueCallback { watchdog, thread: None }
    }

    fn run(mut self, callback: impl FnOnce()) {
        let thread = rt::thread_id();
        self.thread = Some(thread);
        self.watchdog.state.lock().running.push(thread);
        callback();
    }
}

impl Drop for DueCallback {
    fn drop(&mut self) {
        let mut state = self.watchdog.state.lock();
        state.due = state.due.saturating_sub(1);
        let ran = state.running.iter().position(|thread| Some(*thread) == self.thread);
        if let Some(place) = ran {
            state.running.swap_remove(place);
        }
        self.watchdog.changed.notify_all();
    }
}

/// The node of a name that others may take is gone if it is another one.
fn own_only(named: Option<i64>, stat: &Stat) -> Answer<()> {
    if named.is_none_or(|czxid| czxid == stat.czxid) { Ok(()) } else { Err(Fault::NoNode) }
}

/// Waits for the loss of a lock: see [`LockGuard::lost`](crate::LockGuard::lost).
#[derive(Clone)]
pub struct Lost {
    watchdog: Arc<Watchdog>,
    /// Whose loss: the node may have others as holders later.
    turn: u32,
}

impl Lost {
    /// Blocks until the lock is lost, and says why; or until it is released: `None`.
    pub fn wait(&self) -> Option<LossReason> {
        self.wait_until(Deadline::NEVER)
    }

    /// As [`wait`](Lost::wait), for so long at the most: `None` also when the time is over.
    pub fn wait_for(&self, limit: Duration) -> Option<LossReason> {
        self.wait_until(Deadline::after(limit))
    }

    fn wait_until(&self, deadline: Deadline) -> Option<LossReason> {
        self.look();
        let mut state = self.watchdog.state.lock();
        while state.lost.is_none() && !state.is_over(self.turn) {
            match deadline.instant() {
                None => self.watchdog.changed.wait(&mut state),
                Some(end) => {
                    if self.watchdog.changed.wait_until(&mut state, end).timed_out() {
                        break;
                    }
                }
            }
        }
        state.loss(self.turn)
    }

    /// Why the lock was lost, if it was.
    pub fn reason(&self) -> Option<LossReason> {
        self.look();
        self.watchdog.state.lock().loss(self.turn)
    }

    /// As `reason`, without looking for a loss that nobody has found yet: for those who check.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn recorded(&self) -> Option<LossReason> {
        self.watchdog.state.lock().loss(self.turn)
    }

    /// Records a loss that nobody has found yet.
    fn look(&self) {
        if let Some(session) = self.watchdog.session.upgrade() {
            self.watchdog.look_at_lease(&session);
        }
    }

    /// Whether the guard was dropped or unlocked.
    pub fn is_released(&self) -> bool {
        self.watchdog.state.lock().is_over(self.turn)
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.watchdog.state.lock();
        f.debug_struct("Lost")
            .field("lost", &state.loss(self.turn))
            .field("released", &state.is_over(self.turn))
            .finish_non_exhaustive()
    }
}
