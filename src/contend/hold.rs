//! What a guard owns: a node, its token, and the knowledge of whether it is still held.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::acquire::{delete_within, refusal};
use super::queue::Place;
use super::revoke::is_request;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::End;
use crate::path;
use crate::rt::{AtomicU64, Condvar, Deadline, Mutex};
use crate::session::client::Client;
use crate::session::events::Events;
use crate::session::session::{Session, ended};
use crate::session::status::Usable;
use crate::session::store::{Answer, Fault};
use crate::session::wake::{Signal, Subscription, Waiter};

/// How long dropping a guard waits for its node's deletion.
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

/// See the module. Dropped, it releases.
pub(crate) struct Hold {
    client: Client,
    session: Arc<Session>,
    standing: Arc<Standing>,
    /// The node as the client names it.
    path: String,
    token: FencingToken,
    subscriptions: Vec<Subscription>,
}

/// What becomes of a hold; shared with those who want to know.
struct Standing {
    session: Weak<Session>,
    /// The node as the server knows it.
    node: String,
    /// The connection on which the node is watched.
    watched_on: AtomicU64,
    events: Events,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lost: Option<LossReason>,
    released: bool,
    callbacks: Vec<Box<dyn FnOnce(LossReason) + Send>>,
    /// Somebody asks to let go.
    requested: bool,
    request_callbacks: Vec<Box<dyn FnOnce() + Send>>,
    /// Only where the node itself may not be read.
    siblings: Option<Subscription>,
}

impl Hold {
    pub(crate) fn new(
        client: &Client,
        session: Arc<Session>,
        lock_node: &str,
        place: &Place,
    ) -> Hold {
        let zxid = u64::try_from(place.czxid).unwrap_or_default();
        Hold::on(client, session, lock_node, &place.name, FencingToken { zxid, turn: 0 })
    }

    fn on(
        client: &Client,
        session: Arc<Session>,
        lock_node: &str,
        name: &str,
        token: FencingToken,
    ) -> Hold {
        let path = path::join(lock_node, name);
        let standing = Arc::new(Standing {
            session: Arc::downgrade(&session),
            node: client.core().whole(&path),
            watched_on: AtomicU64::new(0),
            events: client.core().events().clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let subscriptions = vec![
            session.watches().subscribe(&standing.node, standing.signal(Standing::watch)),
            session.status().subscribe(standing.signal(Standing::look)),
        ];
        standing.look();
        Hold { client: client.clone(), session, standing, path, token, subscriptions }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.token
    }

    pub(crate) fn is_held(&self) -> bool {
        self.standing.state.lock().lost.is_none() && self.session.is_trusted()
    }

    /// As `is_held`, with an error that says why not.
    pub(crate) fn check(&self) -> Result<()> {
        let lost = self.standing.state.lock().lost;
        let lapsed = || (!self.session.is_trusted()).then_some(LossReason::LeaseExpired);
        lost.or_else(lapsed).map_or(Ok(()), |why| Err(self.lost_error(why)))
    }

    pub(crate) fn ensure_held(&self) -> Result<()> {
        let waiter = Waiter::new();
        let _subscription = self.session.status().subscribe(waiter.bell());
        loop {
            if let Some(why) = self.standing.state.lock().lost {
                return Err(self.lost_error(why));
            }
            if let Err(end) = self.until_usable(&waiter) {
                return Err(self.lost_error(end.into()));
            }
            if !self.session.is_trusted() {
                return Err(self.lost_error(LossReason::LeaseExpired));
            }
            match self.session.confirm(&self.standing.node) {
                Ok(Some(stat)) if stat.ephemeral_owner == self.session.id() => {
                    return if self.is_held() {
                        Ok(())
                    } else {
                        Err(self.lost_error(LossReason::LeaseExpired))
                    };
                }
                Ok(_) => {
                    self.standing.lose(LossReason::NodeDeleted);
                    return Err(self.lost_error(LossReason::NodeDeleted));
                }
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => {}
                Err(fault) => {
                    return Err(refusal(
                        &fault,
                        "confirm the lock",
                        "READ on the node",
                        &self.path,
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
        Error::new(kind, format!("the lock is no longer held: {why}")).on(&self.path)
    }

    pub(crate) fn lost(&self) -> Lost {
        Lost { standing: Arc::clone(&self.standing) }
    }

    pub(crate) fn on_lost(&self, callback: Box<dyn FnOnce(LossReason) + Send>) {
        let mut state = self.standing.state.lock();
        match state.lost {
            None => state.callbacks.push(callback),
            Some(why) => {
                drop(state);
                self.standing.tell(move || callback(why));
            }
        }
    }

    pub(crate) fn release_requested(&self) -> bool {
        self.standing.state.lock().requested
    }

    pub(crate) fn on_release_requested(&self, callback: Box<dyn FnOnce() + Send>) {
        let mut state = self.standing.state.lock();
        if state.requested {
            drop(state);
            self.standing.tell(callback);
        } else {
            state.request_callbacks.push(callback);
        }
    }

    /// Releases, waits for it, and tells of it.
    pub(crate) fn release(mut self) -> Result<()> {
        let lost = self.leave();
        if let Some(why) = lost {
            return Err(self.lost_error(why));
        }
        let waiter = Waiter::new();
        let _subscription = self.session.status().subscribe(waiter.bell());
        let mut unanswered = false;
        loop {
            if let Err(end) = self.until_usable(&waiter) {
                return Err(ended(end).on(&self.path));
            }
            match self.session.delete(&self.standing.node) {
                Ok(()) => return Ok(()),
                // An earlier attempt of ours took effect.
                Err(Fault::NoNode) if unanswered => return Ok(()),
                Err(Fault::NoNode) => return Err(self.lost_error(LossReason::NodeDeleted)),
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => unanswered = true,
                Err(fault) => {
                    self.client.core().reaper().delete(&self.session, self.standing.node.clone());
                    let needs = "DELETE on the lock node";
                    return Err(refusal(&fault, "delete the contender", needs, &self.path));
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
        let _subscription = self.session.status().subscribe(waiter.bell());
        loop {
            if let Err(end) = self.until_usable(&waiter) {
                return Err(self.lost_error(end.into()));
            }
            match verb(&self.session, &|path| self.client.core().whole(path)) {
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => {}
                answer => return Ok(answer),
            }
        }
    }

    /// A hold of the same session with the same token, on another node.
    pub(crate) fn beside(&self, lock_node: &str, name: &str) -> Hold {
        Hold::on(&self.client, Arc::clone(&self.session), lock_node, name, self.token)
    }

    /// Has another node of the session deleted in the background, if it is there.
    pub(crate) fn discard(&self, path: &str) {
        let core = self.client.core();
        core.reaper().delete(&self.session, core.whole(path));
    }

    fn until_usable(&self, waiter: &Waiter) -> Result<(), End> {
        match self.session.status().until_usable(waiter, Deadline::NEVER, || false) {
            Usable::Never(end) => Err(end),
            Usable::Now | Usable::NotInTime => Ok(()),
        }
    }

    /// From here on the hold is neither watched nor told of.
    fn leave(&mut self) -> Option<LossReason> {
        let mut state = self.standing.state.lock();
        state.released = true;
        let callbacks = std::mem::take(&mut state.callbacks);
        let request_callbacks = std::mem::take(&mut state.request_callbacks);
        let siblings = state.siblings.take();
        let lost = state.lost;
        self.standing.changed.notify_all();
        drop(state);
        drop((callbacks, request_callbacks, siblings));
        self.subscriptions.clear();
        lost
    }

    fn is_released(&self) -> bool {
        self.standing.state.lock().released
    }
}

impl Hold {
    /// As dropping does, but no longer than that.
    pub(crate) fn let_go(mut self, until: Deadline) {
        self.release_by(until);
    }

    fn release_by(&mut self, until: Deadline) {
        if self.is_released() || self.leave().is_some() {
            return;
        }
        let core = self.client.core();
        let node = &self.standing.node;
        if delete_within(core, &Waiter::new(), &self.session, node, until, None).is_err() {
            core.reaper().delete(&self.session, node.clone());
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release_by(Deadline::after(PARTING));
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("path", &self.path)
            .field("token", &format_args!("{}", self.token))
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
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
            && self.watched_on.swap(phase.connection, Ordering::SeqCst) != phase.connection
        {
            self.watch();
        } else if phase.is_usable() && self.state.lock().siblings.is_some() {
            // A watch on the siblings is spent for nothing while the lock node is hidden as well.
            self.watch_siblings();
        }
    }

    /// Looks whether the node is still there, and has that watched.
    fn watch(self: &Arc<Self>) {
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
        session.watch_soon(&self.node, Box::new(on_answer));
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

    /// A release that came first is told of by nothing.
    fn tell(self: &Arc<Self>, callback: impl FnOnce() + Send + 'static) {
        let standing = Arc::clone(self);
        self.events.dispatch(move || {
            if !standing.state.lock().released {
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
        drop(state);
        log::info!(target: "zklock::hold", "somebody asks the holder {:?} to let go", self.node);
        for callback in callbacks {
            self.tell(callback);
        }
    }

    fn lose(self: &Arc<Self>, why: LossReason) {
        let mut state = self.state.lock();
        if state.released || state.lost.is_some() {
            return;
        }
        state.lost = Some(why);
        let callbacks = std::mem::take(&mut state.callbacks);
        self.changed.notify_all();
        drop(state);
        log::warn!(target: "zklock::hold", "the lock held by {:?} is lost: {why}", self.node);
        for callback in callbacks {
            self.tell(move || callback(why));
        }
    }
}

/// Waits for the loss of a lock: see [`LockGuard::lost`](crate::LockGuard::lost).
#[derive(Clone)]
pub struct Lost {
    standing: Arc<Standing>,
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
        while state.lost.is_none() && !state.released {
            match deadline.instant() {
                None => self.standing.changed.wait(&mut state),
                Some(end) => {
                    if self.standing.changed.wait_until(&mut state, end).timed_out() {
                        break;
                    }
                }
            }
        }
        state.lost
    }

    /// Why the lock was lost, if it was.
    pub fn reason(&self) -> Option<LossReason> {
        self.standing.state.lock().lost
    }

    /// Whether the guard was dropped or unlocked.
    pub fn is_released(&self) -> bool {
        self.standing.state.lock().released
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.standing.state.lock();
        f.debug_struct("Lost")
            .field("lost", &state.lost)
            .field("released", &state.released)
            .finish_non_exhaustive()
    }
}
