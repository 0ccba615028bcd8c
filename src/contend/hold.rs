//! What a guard owns: its node, its token, and the knowledge of whether the lock is still held.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{fmt, mem};

use uuid::Uuid;

use super::core::GrantedNode;
use super::errors::refusal;
use super::ticket::Ticket;
use super::watchdog::{
    HolderCallbacks, Lost, NodeListener, OnLost, OnRequest, ReleasedParts, Watchdog,
};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::fencing::FencingToken;
use crate::loss_reason::LossReason;
use crate::path;
use crate::rt::{self, Deadline, Mutex};
use crate::session::client::Client;
use crate::session::client_core::ClientCore;
use crate::session::connection::{Answer, Fault};
use crate::session::notify::{Subscription, Waiter};
use crate::session::session::{Session, ended};
use crate::session::status::Usable;
use crate::session_notice::End;

/// How long dropping a guard waits for its node's deletion to be under way, and for callbacks that
/// must end first.
pub(crate) const DROP_LIMIT: Duration = Duration::from_millis(500);

/// See the module. Dropping it hands the node to the next thread that shares it, or releases it.
pub(crate) struct Hold {
    client: Client,
    held_node: Arc<HeldNode>,
    turn: u32,
    /// The threads that share the node, and its number among the nodes that they have held.
    shared: Option<(Arc<dyn Sharing>, u64)>,
    contested: bool,
    /// Since when a caller holds it, if its release is to be reported.
    since: Option<Instant>,
    over: bool,
}

/// The node with which a lock is held: by one guard, or by several, one after another.
pub(crate) struct HeldNode {
    core: Arc<ClientCore>,
    pub(super) session: Arc<Session>,
    pub(super) watchdog: Arc<Watchdog>,
    /// The node as the client names it.
    path: String,
    zxid: u64,
    subscriptions: Mutex<Vec<Subscription>>,
    /// How many transactions are under way or had no answer.
    pub(super) unanswered: AtomicUsize,
}

/// The data of a contender's node, or the creation of a node under a name that other sessions may take.
type DataOrName = (Option<Vec<u8>>, Option<i64>);

impl Hold {
    pub(crate) fn new(
        client: &Client,
        session: Arc<Session>,
        lock_node: &str,
        place: &GrantedNode,
        noun: &'static str,
        data: &[u8],
    ) -> Hold {
        let zxid = u64::try_from(place.czxid).unwrap_or_default();
        let made = (zxid, noun, (Some(data.to_vec()), None));
        let mut hold = Hold::make(client, session, lock_node, &place.name, made);
        hold.contested = place.contested;
        hold
    }

    /// A hold on a node of the session under a name that other sessions may take.
    pub(crate) fn on_named(
        client: &Client,
        session: Arc<Session>,
        (parent, name): (&str, &str),
        noun: &'static str,
        czxid: i64,
    ) -> Hold {
        let zxid = u64::try_from(czxid).unwrap_or_default();
        Hold::make(client, session, parent, name, (zxid, noun, (None, Some(czxid))))
    }

    /// A hold on a node of the session, of whatever kind. With `data`, a request to release the
    /// lock is overwritten with it; only for a node whose name no other client knows.
    fn make(
        client: &Client,
        session: Arc<Session>,
        lock_node: &str,
        name: &str,
        (zxid, noun, (data, named)): (u64, &'static str, DataOrName),
    ) -> Hold {
        let core = Arc::clone(client.core());
        let path = path::join(lock_node, name);
        let watchdog = Arc::new(Watchdog::new(
            &core,
            &session,
            (core.whole(&path), lock_node, noun),
            data,
            named,
        ));
        let subscriptions = vec![
            session.watches().subscribe(&watchdog.node, watchdog.signal(Watchdog::watch)),
            session.status().subscribe(watchdog.signal(Watchdog::look)),
        ];
        watchdog.look();
        let subscriptions = Mutex::new(subscriptions);
        let unanswered = AtomicUsize::new(0);
        let held_node = HeldNode { core, session, watchdog, path, zxid, subscriptions, unanswered };
        let held_node = Arc::new(held_node);
        Hold {
            client: client.clone(),
            held_node,
            turn: 0,
            shared: None,
            contested: false,
            since: None,
            over: false,
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
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

    /// For how long it is certain to be held, without another answer.
    pub(crate) fn lease_left(&self) -> Duration {
        let left = || self.held_node.session.trusted().unwrap_or_default();
        if self.is_held() { left() } else { Duration::ZERO }
    }

    pub(crate) fn held_node(&self) -> &Arc<HeldNode> {
        &self.held_node
    }

    /// Whether other contenders were seen when it was granted.
    pub(crate) fn is_contested(&self) -> bool {
        self.contested
    }

    /// Shares the node, which gets this number, among threads. Returns whether it is lost already:
    /// `told` does not hear of such a loss.
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

    /// A hold on a node that another thread has had before.
    pub(crate) fn shared(
        client: &Client,
        held_node: Arc<HeldNode>,
        turn: u32,
        sharer: Arc<dyn Sharing>,
        number: u64,
    ) -> Hold {
        let shared = Some((sharer, number));
        let client = client.clone();
        Hold { client, held_node, turn, shared, contested: false, since: None, over: false }
    }

    /// Fails if the lock is not held; the error says why.
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
                // The node is there, and no other client makes one of this name.
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

    /// Whether the node's name has a guid, so that only its owner makes a node of this name.
    fn has_guid(&self) -> bool {
        let ticket = Ticket::parse(path::last(&self.held_node.watchdog.node));
        ticket.is_some_and(|ticket| Uuid::parse_str(ticket.guid()).is_ok())
    }

    pub(crate) fn lost_error(&self, why: LossReason) -> Error {
        let kind = match why {
            LossReason::NodeDeleted => ErrorKind::Lost,
            LossReason::ClientClosed => ErrorKind::Closed,
            LossReason::AuthFailed => ErrorKind::AuthFailed,
            LossReason::SessionExpired | LossReason::LeaseExpired => ErrorKind::SessionLost,
        };
        let noun = self.held_node.watchdog.noun;
        Error::new(kind, format!("the {noun} is no longer held: {why}")).on(&self.held_node.path)
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

    /// Releases the lock, waits until that is done, and returns the outcome.
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

    /// Repeats a verb over lost connections until it is answered. The verb is given a function that
    /// returns a path as the server knows it. An error means that the session has ended.
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

    /// Ends the hold and leaves the node's deletion to the caller; `None` if another thread has the
    /// node, or it is kept. An error means that it was lost before.
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

    /// A hold of the same session with the same token, on another node with this data.
    pub(crate) fn beside(&self, lock_node: &str, name: &str, data: Option<Vec<u8>>) -> Hold {
        let session = Arc::clone(&self.held_node.session);
        let made = (self.held_node.zxid, self.held_node.watchdog.noun, (data, None));
        Hold::make(&self.client, session, lock_node, name, made)
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

    /// Reports that a call which began then has acquired it, and later its release; for a program
    /// that wants to know.
    pub(crate) fn acquired_since(mut self, begin: Option<Instant>) -> Hold {
        let Some(begin) = begin else { return self };
        let now = rt::now();
        self.since = Some(now);
        self.held_node.core.report(|| Event::Acquired {
            lock: path::parent(&self.held_node.path).to_owned(),
            waited: now.saturating_duration_since(begin),
            token: self.token(),
            is_local: self.turn > 0,
        });
        self
    }

    /// Reports the release as one of both, which hold on after each other.
    pub(crate) fn is_held_since(&mut self, before: &mut Hold) {
        self.since = before.since.take();
    }

    /// Gives up the node, to the next thread that shares it if there is one.
    fn part(&mut self) -> ReleaseOutcome {
        // Before the next holder can report that it has acquired it.
        let since = self.since.take().filter(|_| self.held_node.is_held());
        if let Some(since) = since {
            self.held_node.core.report(|| Event::Released {
                lock: path::parent(&self.held_node.path).to_owned(),
                held: rt::now().saturating_duration_since(since),
            });
        }
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

    /// A new hold of the same node, for a caller that has left it (see [`HeldNode::leave`]) but
    /// keeps it after all.
    pub(crate) fn again(mut self) -> Hold {
        self.over = true;
        let path = &self.held_node.path;
        self.beside(path::parent(path), path::last(path), self.held_node.watchdog.data.clone())
    }

    /// Ends the hold of a node that its owner has deleted already.
    pub(crate) fn has_gone(mut self) {
        self.over = true;
        drop(self.held_node.leave());
    }

    /// Releases the lock as dropping does, but waits no longer than `until`.
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
                // The next thread here contends when our delete is on its way.
                drop(baton);
                left.settle(until);
            }
        }
    }
}

/// What becomes of a node when its holder lets go.
enum ReleaseOutcome {
    /// Another thread has it, or it is kept.
    Passed,
    Lost(LossReason, ReleasedParts),
    /// It must be deleted; then the next thread here may contend.
    Ours(Option<NextInLine>, ReleasedParts),
}

impl HeldNode {
    pub(crate) fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Whether it is held, without recording a loss: for the checks of tests.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn seems_held(&self) -> bool {
        self.watchdog.state.lock().lost.is_none() && self.session.is_trusted()
    }

    /// Why it is lost, if it is. If the lease has ended, the loss is recorded and reported before
    /// this returns, so the caller must not hold any mutex.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        if self.core.is_elsewhere() {
            // In a forked process the thread that has locked the state may not exist.
            return Some(LossReason::ClientClosed);
        }
        let lost = self.watchdog.state.lock().lost;
        lost.or_else(|| self.watchdog.look_at_lease(&self.session))
    }

    /// Whether a thread that has not held it before may get it: if the session has no known lease,
    /// only while there is a connection. Records nothing, so the caller may hold mutexes.
    pub(crate) fn may_be_granted(&self) -> bool {
        let is_sure = || self.session.may_adopt() || self.session.status().now().is_usable();
        self.watchdog.state.lock().lost.is_none() && self.session.is_trusted() && is_sure()
    }

    /// Whether a transaction without an answer may still take effect, as long as the node exists.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.unanswered.load(Ordering::SeqCst) > 0
    }

    /// Whether it may be handed to another holder.
    pub(crate) fn may_go_on(&self) -> bool {
        let state = self.watchdog.state.lock();
        let wanted = !state.requested && state.turn < u32::MAX;
        drop(state);
        wanted && self.may_be_granted()
    }

    /// Begins the turn of the next holder, or an `idle` one without a holder. Returns its number
    /// and the last holder's callbacks, which the caller must drop while it holds no mutex:
    /// dropping them may run any code of the user.
    pub(crate) fn next_turn(&self, idle: bool) -> (u32, HolderCallbacks) {
        let mut state = self.watchdog.state.lock();
        state.turn = state.turn.saturating_add(1);
        state.idle = idle;
        let left = state.take_callbacks();
        self.watchdog.changed.notify_all();
        (state.turn, left)
    }

    /// Notes that the idle node has a holder.
    pub(crate) fn resume(&self) {
        self.watchdog.state.lock().idle = false;
    }

    /// From here on, reports other contenders to the threads that share the node.
    pub(crate) fn watch_for_others(&self) {
        if self.watchdog.state.lock().arrivals.is_none() {
            self.watchdog.watch_for_others();
        }
    }

    pub(crate) fn session_id(&self) -> i64 {
        self.session.id()
    }

    /// Runs a job in the background while the session lasts; it returns when to run it again.
    pub(crate) fn later(
        &self,
        due: Instant,
        job: impl FnMut() -> Option<Instant> + Send + 'static,
    ) {
        self.core.reaper().later(&self.session, due, Box::new(job));
    }

    /// Stops watching the node and reporting on it; a loss that came before is still reported.
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

    /// Releases a node that no thread holds.
    pub(crate) fn release(&self) {
        let left = self.leave();
        if left.lost.is_none() {
            self.delete_by(Deadline::after(DROP_LIMIT));
        }
    }

    /// Releases a node that no thread holds, without waiting for anything.
    pub(crate) fn release_soon(&self) {
        let left = self.leave();
        match left.lost {
            None => self.delete_by(Deadline::after(Duration::ZERO)),
            Some(_) => self.session.leaves_no_more(&self.watchdog.node),
        }
    }

    /// Keeps other calls of this session from waiting for the node. Its release must follow.
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

    /// Has the node deleted in the background, though the server may have refused that.
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
            // In a forked process, dropping these may wait for threads that do not exist.
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
    /// Another thread has it, or it is kept.
    On,
    /// It must be released; then the next thread may contend.
    Nowhere(NextInLine),
    /// It was lost before, and that loss is dealt with elsewhere.
    Lost,
}
