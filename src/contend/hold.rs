//! What a guard owns: its node, its token, and the knowledge of whether the lock is still held.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{fmt, mem};

use uuid::Uuid;

use super::core::GrantedNode;
use super::errors::refusal;
use super::fencing::FencingToken;
use super::loss_reason::LossReason;
use super::ticket::Ticket;
use super::watchdog::{
    HolderCallbacks, Lost, NodeListener, OnLost, OnRequest, ReleasedParts, Watchdog,
};
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::rt::{Deadline, Mutex};
use crate::session::client::Client;
use crate::session::client_core::ClientCore;
use crate::session::connection::{Answer, Fault};
use crate::session::notify::{Subscription, Waiter};
use crate::session::session::{Session, ended};
use crate::session::status::Usable;
use crate::session_notice::End;

/// How long dropping a guard waits for its node's deletion to be under way, and for callbacks that
/// have to be over.
pub(crate) const DROP_LIMIT: Duration = Duration::from_millis(500);

/// See the module. Dropped, it goes to the next of those who share the node, or is released.
pub(crate) struct Hold {
    client: Client,
    held_node: Arc<HeldNode>,
    turn: u32,
    /// The threads that share the node, and the number of its present holder among them.
    shared: Option<(Arc<dyn Sharing>, u64)>,
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
        let watchdog = Arc::new(Watchdog::new(&core, &session, core.whole(&path), data, named));
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
        FencingToken::new(self.held_node.zxid, self.turn)
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

    /// Has the node shared by threads, as the holder of that number; and says whether it is lost
    /// already, of which `told` would not hear any more.
    pub(crate) fn share(
        &mut self,
        sharer: Arc<dyn Sharing>,
        told: Weak<dyn NodeListener>,
        number: u64,
    ) -> bool {
        self.shared = Some((sharer, number));
        let mut state = self.held_node.watchdog.state.lock();
        state.listener = Some((told, number));
        state.lost.is_some()
    }

    /// Of a node that another has had before.
    pub(crate) fn shared(
        client: &Client,
        held_node: Arc<HeldNode>,
        turn: u32,
        sharer: Arc<dyn Sharing>,
        number: u64,
    ) -> Hold {
        let shared = Some((sharer, number));
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
        Lost::of(&self.held_node.watchdog, self.turn)
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
        if let Some((sharer, number)) = self.shared.take() {
            match sharer.pass(&self.client, &self.held_node, number) {
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
    Ours(Option<NextInLine>, ReleasedParts),
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

/// The threads that share a node.
pub(crate) trait Sharing: Send + Sync {
    /// Decides what becomes of the node, now that its holder lets go.
    fn pass(self: Arc<Self>, client: &Client, held_node: &Arc<HeldNode>, number: u64) -> Passed;
}

/// Dropped when the node's deletion is on its way: the next thread here may contend then.
pub(crate) type NextInLine = Box<dyn Send>;

/// What becomes of a node whose holder lets go.
pub(crate) enum Passed {
    /// Another has it, or it is kept.
    On,
    /// It is to be released; then the next one may contend.
    Nowhere(NextInLine),
    /// It was lost before; others see to that.
    Lost,
}
