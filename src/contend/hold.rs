//! What a guard owns: a node, its token, and the knowledge of whether it is still held.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::acquire::refusal;
use super::local::{Group, Leading, Member, Passed};
use super::queue::{Place, others};
use super::revoke::is_request;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::End;
use crate::path;
use crate::rt::{AtomicU64, Condvar, Deadline, Mutex};
use crate::session::client::{Client, Core};
use crate::session::events::Events;
use crate::session::session::{Session, ended};
use crate::session::status::Usable;
use crate::session::store::{Answer, Fault, Names};
use crate::session::wake::{Signal, Subscription, Waiter};

/// How long dropping a guard waits for its node's deletion to be under way.
pub(crate) const PARTING: Duration = Duration::from_millis(500);

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
    tenure: Arc<Tenure>,
    turn: u32,
    /// With whom the node is shared, and which tenure of theirs it is.
    shared: Option<(Arc<Member>, u64)>,
    contested: bool,
    over: bool,
}

/// The node by which a lock is held: by one guard, or by one after another.
pub(crate) struct Tenure {
    core: Arc<Core>,
    session: Arc<Session>,
    standing: Arc<Standing>,
    /// The node as the client names it.
    path: String,
    zxid: u64,
    subscriptions: Mutex<Vec<Subscription>>,
}

/// What is known of the tenure. The guard's user may keep it longer than the guard.
struct Standing {
    /// Whoever waits for the loss of the lock is not to keep its session.
    session: Weak<Session>,
    /// The node as the server knows it.
    node: String,
    /// The connection that the node was last watched on.
    watched_on: AtomicU64,
    events: Events,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whose time it is: it counts those who have had the node.
    turn: u32,
    /// It is nobody's time: the node is kept.
    idle: bool,
    lost: Option<LossReason>,
    released: bool,
    callbacks: Vec<Box<dyn FnOnce(LossReason) + Send>>,
    /// Somebody asks to let go.
    requested: bool,
    request_callbacks: Vec<Box<dyn FnOnce() + Send>>,
    /// Only where the node itself may not be read.
    siblings: Option<Subscription>,
    /// Only where the node is shared, and none was seen yet: for others who contend.
    arrivals: Option<Subscription>,
    group: Option<(Weak<Group>, u64)>,
}

impl Hold {
    pub(crate) fn new(
        client: &Client,
        session: Arc<Session>,
        lock_node: &str,
        place: &Place,
    ) -> Hold {
        let zxid = u64::try_from(place.czxid).unwrap_or_default();
        let mut hold = Hold::on(client, session, lock_node, &place.name, zxid);
        hold.contested = place.contested;
        hold
    }

    /// On a node that the session has, of whatever kind.
    pub(crate) fn on(
        client: &Client,
        session: Arc<Session>,
        lock_node: &str,
        name: &str,
        zxid: u64,
    ) -> Hold {
        let core = Arc::clone(client.core());
        let path = path::join(lock_node, name);
        let standing = Arc::new(Standing {
            session: Arc::downgrade(&session),
            node: core.whole(&path),
            watched_on: AtomicU64::new(0),
            events: core.events().clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let subscriptions = vec![
            session.watches().subscribe(&standing.node, standing.signal(Standing::watch)),
            session.status().subscribe(standing.signal(Standing::look)),
        ];
        standing.look();
        let subscriptions = Mutex::new(subscriptions);
        let tenure = Arc::new(Tenure { core, session, standing, path, zxid, subscriptions });
        Hold {
            client: client.clone(),
            tenure,
            turn: 0,
            shared: None,
            contested: false,
            over: false,
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.tenure.path
    }

    pub(crate) fn token(&self) -> FencingToken {
        FencingToken { zxid: self.tenure.zxid, turn: self.turn }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.tenure.is_held()
    }

    pub(crate) fn tenure(&self) -> &Arc<Tenure> {
        &self.tenure
    }

    /// Whether others were seen to wait when it was granted.
    pub(crate) fn is_contested(&self) -> bool {
        self.contested
    }

    /// Has the node shared with a group, as a tenure of that number; and says whether it is lost
    /// already, of which the group would not be told any more.
    pub(crate) fn share(&mut self, member: &Arc<Member>, number: u64) -> bool {
        self.shared = Some((Arc::clone(member), number));
        let mut state = self.tenure.standing.state.lock();
        state.group = Some((Arc::downgrade(member.group()), number));
        state.lost.is_some()
    }

    /// Of a node that another has had before.
    pub(crate) fn shared(
        client: &Client,
        tenure: Arc<Tenure>,
        turn: u32,
        member: Arc<Member>,
        number: u64,
    ) -> Hold {
        let shared = Some((member, number));
        Hold { client: client.clone(), tenure, turn, shared, contested: false, over: false }
    }

    /// As `is_held`, with an error that says why not.
    pub(crate) fn check(&self) -> Result<()> {
        let lost = self.tenure.standing.state.lock().lost;
        let lapsed = || (!self.tenure.session.is_trusted()).then_some(LossReason::LeaseExpired);
        lost.or_else(lapsed).map_or(Ok(()), |why| Err(self.lost_error(why)))
    }

    pub(crate) fn ensure_held(&self) -> Result<()> {
        let waiter = Waiter::new();
        let _subscription = self.tenure.session.status().subscribe(waiter.bell());
        loop {
            if let Some(why) = self.tenure.standing.state.lock().lost {
                return Err(self.lost_error(why));
            }
            if let Err(end) = self.until_usable(&waiter) {
                return Err(self.lost_error(end.into()));
            }
            if !self.tenure.session.is_trusted() {
                return Err(self.lost_error(LossReason::LeaseExpired));
            }
            match self.tenure.session.confirm(&self.tenure.standing.node) {
                Ok(Some(stat)) if stat.ephemeral_owner == self.tenure.session.id() => {
                    return if self.is_held() {
                        Ok(())
                    } else {
                        Err(self.lost_error(LossReason::LeaseExpired))
                    };
                }
                Ok(_) => {
                    self.tenure.standing.lose(LossReason::NodeDeleted);
                    return Err(self.lost_error(LossReason::NodeDeleted));
                }
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => {}
                Err(fault) => {
                    return Err(refusal(
                        &fault,
                        "confirm the lock",
                        "READ on the node",
                        &self.tenure.path,
                    ));
                }
            }
        }
    }

    pub(crate) fn lost_error(&self, why: LossReason) -> Error {
        let kind = match why {
            LossReason::NodeDeleted => ErrorKind::LockLost,
            LossReason::ClientClosed => ErrorKind::Closed,
            LossReason::AuthFailed => ErrorKind::AuthFailed,
            LossReason::SessionExpired | LossReason::LeaseExpired => ErrorKind::SessionLost,
        };
        Error::new(kind, format!("the lock is no longer held: {why}")).on(&self.tenure.path)
    }

    pub(crate) fn lost(&self) -> Lost {
        Lost { standing: Arc::clone(&self.tenure.standing), turn: self.turn }
    }

    pub(crate) fn on_lost(&self, callback: Box<dyn FnOnce(LossReason) + Send>) {
        let mut state = self.tenure.standing.state.lock();
        match state.lost {
            None => state.callbacks.push(callback),
            Some(why) => {
                drop(state);
                self.tenure.standing.tell(self.turn, move || callback(why));
            }
        }
    }

    pub(crate) fn release_requested(&self) -> bool {
        self.tenure.standing.state.lock().requested
    }

    pub(crate) fn on_release_requested(&self, callback: Box<dyn FnOnce() + Send>) {
        let mut state = self.tenure.standing.state.lock();
        if state.requested {
            drop(state);
            self.tenure.standing.tell(self.turn, callback);
        } else {
            state.request_callbacks.push(callback);
        }
    }

    /// Releases, waits for it, and tells of it.
    pub(crate) fn release(mut self) -> Result<()> {
        let _leading = match self.part() {
            Parting::Passed => return Ok(()),
            Parting::Lost(why) => return Err(self.lost_error(why)),
            Parting::Ours(leading) => leading,
        };
        let waiter = Waiter::new();
        let _subscription = self.tenure.session.status().subscribe(waiter.bell());
        let mut unanswered = false;
        loop {
            if let Err(end) = self.until_usable(&waiter) {
                return Err(ended(end).on(&self.tenure.path));
            }
            match self.tenure.session.delete(&self.tenure.standing.node) {
                Ok(()) => return Ok(()),
                // An earlier attempt of ours took effect.
                Err(Fault::NoNode) if unanswered => return Ok(()),
                Err(Fault::NoNode) => return Err(self.lost_error(LossReason::NodeDeleted)),
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => unanswered = true,
                Err(fault) => {
                    let node = self.tenure.standing.node.clone();
                    self.tenure.core.reaper().insist(&self.tenure.session, node);
                    let needs = "DELETE on the lock node";
                    return Err(refusal(&fault, "delete the contender", needs, &self.tenure.path));
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
        let _subscription = self.tenure.session.status().subscribe(waiter.bell());
        loop {
            if let Err(end) = self.until_usable(&waiter) {
                return Err(self.lost_error(end.into()));
            }
            match verb(&self.tenure.session, &|path| self.tenure.core.whole(path)) {
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => {}
                answer => return Ok(answer),
            }
        }
    }

    /// Is done with it, and leaves the node to the caller, who has it deleted. An error says that
    /// it was lost before.
    pub(crate) fn leave(&mut self) -> Result<()> {
        match self.part() {
            Parting::Lost(why) => Err(self.lost_error(why)),
            Parting::Passed | Parting::Ours(_) => Ok(()),
        }
    }

    /// A hold of the same session with the same token, on another node.
    pub(crate) fn beside(&self, lock_node: &str, name: &str) -> Hold {
        Hold::on(&self.client, Arc::clone(&self.tenure.session), lock_node, name, self.tenure.zxid)
    }

    /// Has another node of the session deleted in the background, if it is there.
    pub(crate) fn discard(&self, path: &str) {
        let core = &self.tenure.core;
        core.reaper().delete(&self.tenure.session, core.whole(path));
    }

    fn until_usable(&self, waiter: &Waiter) -> Result<(), End> {
        match self.tenure.session.status().until_usable(waiter, Deadline::NEVER, || false) {
            Usable::Never(end) => Err(end),
            Usable::Now | Usable::NotInTime => Ok(()),
        }
    }

    /// Gives up the node, to the next one that shares it if there is one.
    fn part(&mut self) -> Parting {
        self.over = true;
        let mut leading = None;
        if let Some((member, number)) = self.shared.take() {
            match member.group().pass(&self.client, &member, &self.tenure, number) {
                Passed::On => return Parting::Passed,
                Passed::Nowhere(next) => leading = Some(next),
                Passed::Lost => {}
            }
        }
        match self.tenure.leave() {
            Some(why) => Parting::Lost(why),
            None => Parting::Ours(leading),
        }
    }

    /// A hold of the same node, for who has left it (see [`Tenure::leave`]) and comes to keep it.
    pub(crate) fn again(mut self) -> Hold {
        self.over = true;
        let path = &self.tenure.path;
        self.beside(path::parent(path), path::last(path))
    }

    /// The node is deleted already, by its owner.
    pub(crate) fn has_gone(mut self) {
        self.over = true;
        self.tenure.leave();
    }

    /// As dropping does, but no longer than that.
    pub(crate) fn let_go(mut self, until: Deadline) {
        self.release_by(until);
    }

    fn release_by(&mut self, until: Deadline) {
        if self.over {
            return;
        }
        // The next one here contends when our delete is on its way.
        if let Parting::Ours(_leading) = self.part() {
            self.tenure.delete_by(until);
        }
    }
}

/// What becomes of a node when its holder lets go.
enum Parting {
    /// Another has it.
    Passed,
    Lost(LossReason),
    /// It is to be deleted; then the next one here may contend.
    Ours(Option<Leading>),
}

impl Tenure {
    pub(crate) fn is_held(&self) -> bool {
        // In this order: in a forked process nobody may be left to unlock the state.
        self.session.is_trusted() && self.standing.state.lock().lost.is_none()
    }

    /// As `is_held`, for one who has not held it before: where nobody knows of a lease, only while
    /// there is a connection.
    pub(crate) fn may_be_granted(&self) -> bool {
        let is_sure = || self.session.may_adopt() || self.session.status().now().is_usable();
        self.is_held() && is_sure()
    }

    /// Whether it may be handed to another holder.
    pub(crate) fn may_go_on(&self) -> bool {
        let state = self.standing.state.lock();
        let wanted = !state.requested && state.turn < u32::MAX;
        drop(state);
        wanted && self.may_be_granted()
    }

    /// Begins another holder's time, or one in which the node is nobody's, and says its number.
    /// What the last one has left behind is for the caller to drop, without any lock: it may do
    /// whatever its user likes.
    pub(crate) fn next_turn(&self, idle: bool) -> (u32, Callbacks) {
        let mut state = self.standing.state.lock();
        state.turn = state.turn.saturating_add(1);
        state.idle = idle;
        let left = state.take_callbacks();
        self.standing.changed.notify_all();
        (state.turn, left)
    }

    /// The node that was nobody's has a holder.
    pub(crate) fn resume(&self) {
        self.standing.state.lock().idle = false;
    }

    /// Has the group told of others who contend, from here on.
    pub(crate) fn watch_for_others(&self) {
        if self.standing.state.lock().arrivals.is_none() {
            self.standing.watch_for_others();
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

    /// From here on it is neither watched nor told of.
    pub(crate) fn leave(&self) -> Option<LossReason> {
        let mut state = self.standing.state.lock();
        state.released = true;
        let callbacks = state.take_callbacks();
        let subscriptions = (state.siblings.take(), state.arrivals.take());
        let lost = state.lost;
        self.standing.changed.notify_all();
        drop(state);
        drop((callbacks, subscriptions));
        let subscriptions = std::mem::take(&mut *self.subscriptions.lock());
        drop(subscriptions);
        lost
    }

    /// Lets go of what is nobody's.
    pub(crate) fn release(&self) {
        if self.leave().is_none() {
            self.delete_by(Deadline::after(PARTING));
        }
    }

    /// As `release`, without waiting for anything.
    pub(crate) fn release_soon(&self) {
        match self.leave() {
            None => self.delete_by(Deadline::after(Duration::ZERO)),
            Some(_) => self.session.leaves_no_more(&self.standing.node),
        }
    }

    /// Nobody of ours is to wait for the node any more. Its release follows.
    pub(crate) fn announce_release(&self) {
        self.session.leaves(&self.standing.node);
    }

    fn delete_by(&self, until: Deadline) {
        self.core.reaper().let_go(&self.session, &self.standing.node, until);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.tenure.core.is_elsewhere() {
            return;
        }
        self.release_by(Deadline::after(PARTING));
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("path", &self.tenure.path)
            .field("token", &format_args!("{}", self.token()))
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// What a holder wants to have called.
pub(crate) struct Callbacks {
    _lost: Vec<Box<dyn FnOnce(LossReason) + Send>>,
    _requested: Vec<Box<dyn FnOnce() + Send>>,
}

impl State {
    fn take_callbacks(&mut self) -> Callbacks {
        Callbacks {
            _lost: std::mem::take(&mut self.callbacks),
            _requested: std::mem::take(&mut self.request_callbacks),
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

impl Standing {
    fn signal(self: &Arc<Self>, act: fn(&Arc<Standing>)) -> Signal {
        let standing = Arc::downgrade(self);
        Arc::new(move || {
            if let Some(standing) = standing.upgrade() {
                act(&standing);
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
            self.have_watched(before == 0);
            if self.state.lock().arrivals.is_some() {
                self.watch_for_others();
            }
        } else if phase.is_usable() {
            // A watch on the children is spent for nothing while the lock node is hidden.
            let state = self.state.lock();
            let (siblings, arrivals) = (state.siblings.is_some(), state.arrivals.is_some());
            drop(state);
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
        if self.state.lock().released {
            return;
        }
        let Some(session) = self.session.upgrade() else { return };
        let standing = Arc::downgrade(self);
        let on_answer = move |answer: Answer<Vec<u8>>| {
            let Some(standing) = standing.upgrade() else { return };
            match answer {
                Ok(data) if is_request(&data) => standing.request(),
                Err(Fault::NoNode) => standing.lose(LossReason::NodeDeleted),
                Err(Fault::NoAuth) => standing.watch_siblings(),
                Ok(_) | Err(_) => {}
            }
        };
        if !can_wait {
            return session.watch_soon(&self.node, Box::new(on_answer));
        }
        let standing = Arc::downgrade(self);
        let is_wanted = move || standing.upgrade().is_some_and(|one| !one.state.lock().released);
        session.watch_later(&self.node, Box::new(is_wanted), Box::new(on_answer));
    }

    /// Who may not read his own node is told of its siblings' changes, and looks each time.
    fn watch_siblings(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state.lock();
        if state.released {
            return;
        }
        if state.siblings.is_none() {
            let parent = path::parent(&self.node);
            let look = self.signal(Standing::watch_siblings);
            state.siblings = Some(session.watches().subscribe(parent, look));
        }
        drop(state);
        let standing = Arc::downgrade(self);
        let on_answer = move |answer| {
            if let (Err(Fault::NoNode), Some(standing)) = (answer, standing.upgrade()) {
                standing.lose(LossReason::NodeDeleted);
            }
        };
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
        if state.released {
            return;
        }
        let lock_node = path::parent(&self.node);
        if state.arrivals.is_none() {
            let look = self.signal(Standing::others_may_be_there);
            state.arrivals = Some(session.watches().subscribe(lock_node, look));
        }
        drop(state);
        let standing = Arc::downgrade(self);
        let on_answer = move |answer: Answer<Names>| {
            let Some(standing) = standing.upgrade() else { return };
            let contested = match &answer {
                Ok(names) => others(path::last(&standing.node), names),
                // There will be another connection.
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => false,
                // Who cannot look does not go on as if there were nobody.
                Err(_) => true,
            };
            if contested {
                standing.contest();
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

    /// A release that came first is told of by nothing.
    fn tell(self: &Arc<Self>, turn: u32, callback: impl FnOnce() + Send + 'static) {
        let standing = Arc::clone(self);
        self.events.dispatch(move || {
            let state = standing.state.lock();
            let over = state.released || state.turn != turn;
            drop(state);
            if !over {
                callback();
            }
        });
    }

    /// Somebody asks to let go.
    fn request(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.released || std::mem::replace(&mut state.requested, true) {
            return;
        }
        let callbacks = std::mem::take(&mut state.request_callbacks);
        let turn = state.turn;
        drop(state);
        log::info!(target: "zklock::hold", "somebody asks the holder {:?} to let go", self.node);
        for callback in callbacks {
            self.tell(turn, callback);
        }
        // The request is for the node: none of ours is to have it after this holder.
        self.contest();
    }

    fn lose(self: &Arc<Self>, why: LossReason) {
        let mut state = self.state.lock();
        if state.released || state.lost.is_some() {
            return;
        }
        state.lost = Some(why);
        let callbacks = std::mem::take(&mut state.callbacks);
        let (turn, idle, group) = (state.turn, state.idle, state.group.clone());
        self.changed.notify_all();
        drop(state);
        if !idle {
            log::warn!(target: "zklock::hold", "the lock held by {:?} is lost: {why}", self.node);
        }
        for callback in callbacks {
            self.tell(turn, move || callback(why));
        }
        if let Some((group, number)) = group
            && let Some(group) = group.upgrade()
        {
            group.lost(number);
        }
    }
}

/// Waits for the loss of a lock: see [`LockGuard::lost`](crate::LockGuard::lost).
#[derive(Clone)]
pub struct Lost {
    standing: Arc<Standing>,
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
        let mut state = self.standing.state.lock();
        while state.lost.is_none() && !state.is_over(self.turn) {
            match deadline.instant() {
                None => self.standing.changed.wait(&mut state),
                Some(end) => {
                    if self.standing.changed.wait_until(&mut state, end).timed_out() {
                        break;
                    }
                }
            }
        }
        state.loss(self.turn)
    }

    /// Why the lock was lost, if it was.
    pub fn reason(&self) -> Option<LossReason> {
        self.standing.state.lock().loss(self.turn)
    }

    /// Whether the guard was dropped or unlocked.
    pub fn is_released(&self) -> bool {
        self.standing.state.lock().is_over(self.turn)
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.standing.state.lock();
        f.debug_struct("Lost")
            .field("lost", &state.loss(self.turn))
            .field("released", &state.is_over(self.turn))
            .finish_non_exhaustive()
    }
}
