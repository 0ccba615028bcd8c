//! What a guard owns: its node, its token, and the knowledge of whether the lock is still held.

mod fenced_commit;
mod guards_given_away;
mod held_node;
mod hold_limit;
mod kept_waiting;
mod lost;
mod own_watch;
mod taken;
mod tell_facts;
mod watchdog;

pub(crate) use fenced_commit::{COMMIT, no_transactions};
pub(crate) use held_node::{DROP_LIMIT, HeldNode, Sharing};
pub(crate) use hold_limit::SHORTEST;
pub(crate) use kept_waiting::KeptWaiting;
pub(crate) use lost::JointRelease;
pub use lost::Lost;
pub(crate) use own_watch::{Heard, News, OwnWatch, ToDo};
pub(crate) use taken::{held_by_this_thread, own_hold_of};
pub(crate) use tell_facts::{tell_kept_waiting, tell_own_wait};
pub(crate) use watchdog::ReleasedParts;

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, mem};

use uuid::Uuid;

use crate::contend::name::Ticket;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Because, Event};
use crate::fencing::FencingToken;
use crate::loss_reason::LossReason;
use crate::path;
use crate::rt::{self, AtomicUsize, Condvar, Deadline, Mutex, Signal, ThreadId};
use crate::session::{Answer, Call, Client, Fault, Purpose, Session, Stop, Wait, cancelled, ended};
use hold_limit::HoldLimit;
use taken::{note_left, note_taken};
use tell_facts::tell_held_since;
use watchdog::{BETWEEN_LOOKS, OnLost, OnRequest, Watchdog};

const CONFIRM: Purpose = Purpose::to_read("confirm what is held", "READ on the node");
const DELETE: Purpose = Purpose::to_change("delete the contender", "DELETE on the lock node");

/// What a guard holds (a lock, permits, a leadership, a queue's item or a place in a barrier), and
/// whether it still does.
///
/// The methods call each of these *the lock*.
///
/// These guards dereference to `Hold`: [`LockGuard`](crate::LockGuard),
/// [`ReentrantGuard`](crate::ReentrantGuard), [`ReadGuard`](crate::ReadGuard),
/// [`WriteGuard`](crate::WriteGuard), [`Permit`](crate::Permit), [`Leadership`](crate::Leadership),
/// [`LeasedItem`](crate::queue::LeasedItem), [`Entered`](crate::barrier::Entered),
/// [`Participant`](crate::commit::Participant), and [`MultiGuard`](crate::MultiGuard), which holds
/// as long as it holds all of its locks. A [`Membership`](crate::group::Membership) does not: it
/// survives the loss of its node. A function that must stop when a hold of any kind is lost takes a
/// `&Hold`:
///
/// ```no_run
/// use zklock::{Client, DistributedLock, Hold};
///
/// fn work(hold: &Hold) {
///     while hold.is_held() {
///         // one more step
///         # break;
///     }
/// }
///
/// let zk = Client::connect("localhost")?;
/// work(&*DistributedLock::new(&zk, "/locks", "nightly").lock()?);
/// # Ok::<(), zklock::Error>(())
/// ```
// Dropping it hands the node to the next thread that shares it, or releases it.
pub struct Hold {
    client: Client,
    held_node: Arc<HeldNode>,
    turn: u32,
    /// The threads that share the node, and its number among the nodes that they have held.
    shared: Option<(Arc<dyn Sharing>, u64)>,
    /// Whether there were other contenders when it was granted; `None` if that is not known.
    pub(super) contested: Option<bool>,
    over: bool,
    /// The thread that has taken it, if that is known.
    taken_by: Option<ThreadId>,
    joint: Option<Box<Joint>>,
}

/// What a hold needs that stands for several, of which it is the first.
struct Joint {
    others: Vec<Hold>,
    release: Arc<JointRelease>,
}

impl Hold {
    /// A hold on a contender's node, by the names of its parent and itself.
    pub(crate) fn new(
        client: &Client,
        session: Arc<Session>,
        place: (&str, &str),
        czxid: i64,
        watch: Option<OwnWatch>,
        noun: &'static str,
        data: Vec<u8>,
    ) -> Hold {
        Hold::make(client, session, place, watch, (czxid, noun), Some(data), None)
    }

    /// A hold on a node of the session under a name that other sessions may take.
    pub(crate) fn on_named(
        client: &Client,
        session: Arc<Session>,
        place: (&str, &str),
        noun: &'static str,
        czxid: i64,
    ) -> Hold {
        let hold = Hold::make(client, session, place, None, (czxid, noun), None, Some(czxid));
        hold.own();
        hold
    }

    /// A hold on a node of the session, of whatever kind. With `data`, a request to release the
    /// lock is overwritten with it; only for a node whose name no other client knows. With a
    /// `watch`, the node is watched already. `named` is the creation of a node whose name other
    /// sessions may take.
    fn make(
        client: &Client,
        session: Arc<Session>,
        (parent, name): (&str, &str),
        watch: Option<OwnWatch>,
        (zxid, noun): (i64, &'static str),
        data: Option<Vec<u8>>,
        named: Option<i64>,
    ) -> Hold {
        let core = Arc::clone(client.core());
        let path = path::join(parent, name);
        let watchdog =
            Arc::new(Watchdog::new(&core, &session, (core.whole(&path), noun), data, named));
        let signal = watchdog.signal(Watchdog::watch);
        let (on_node, is_due) = match watch {
            Some(watch) => {
                watchdog.note_watched_on(watch.on);
                watch.tell(signal)
            }
            None => (session.watches().subscribe(&watchdog.node, signal), false),
        };
        let on_status = session.status().subscribe(watchdog.signal(Watchdog::look));
        let subscriptions = vec![on_node, on_status];
        watchdog.look();
        if is_due {
            watchdog.watch();
        }
        let subscriptions = Mutex::new(subscriptions);
        let unanswered = AtomicUsize::new(0);
        let session_id = session.id();
        let held_node =
            HeldNode { core, session, session_id, watchdog, path, zxid, subscriptions, unanswered };
        Hold::of(client, Arc::new(held_node), 0, None)
    }

    fn of(
        client: &Client,
        held_node: Arc<HeldNode>,
        turn: u32,
        shared: Option<(Arc<dyn Sharing>, u64)>,
    ) -> Hold {
        let client = client.clone();
        Hold {
            client,
            held_node,
            turn,
            shared,
            contested: None,
            over: false,
            taken_by: None,
            joint: None,
        }
    }

    /// What tells of all these holds as of one; it owns and releases nothing. `None` without any hold.
    pub(crate) fn joint<'a>(
        holds: impl IntoIterator<Item = &'a Hold>,
        release: &Arc<JointRelease>,
    ) -> Option<Hold> {
        let tells = |hold: &Hold| {
            let mut told = Hold::of(&hold.client, Arc::clone(&hold.held_node), hold.turn, None);
            told.over = true;
            told
        };
        let mut holds = holds.into_iter().map(tells);
        let mut first = holds.next()?;
        first.joint =
            Some(Box::new(Joint { others: holds.collect(), release: Arc::clone(release) }));
        Some(first)
    }

    /// The holds that it stands for; mostly one.
    pub(super) fn each(&self) -> impl Iterator<Item = &Hold> {
        [self].into_iter().chain(self.joint.iter().flat_map(|joint| &joint.others))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the path of the contender's node, without the chroot; with several locks, of the
    /// first.
    pub fn path(&self) -> &str {
        &self.held_node.path
    }

    pub(crate) fn token(&self) -> FencingToken {
        FencingToken::new(u64::try_from(self.held_node.zxid).unwrap_or_default(), self.turn)
    }

    /// Returns whether the lock is still held, as far as this process knows.
    ///
    /// True if no loss was seen, and neither the session's lease nor the time that the lock may be
    /// [held at most](crate::DistributedLock::hold_at_most) has run out by this machine's clock,
    /// which counts the time that the machine or the process slept. Sends no request; once false,
    /// always false.
    pub fn is_held(&self) -> bool {
        self.each().all(|hold| hold.held_node.is_held())
    }

    /// Returns how long the lock is certain to be held without another reply of the ensemble.
    ///
    /// Replies extend this time while the client is connected. In an outage it runs down to zero,
    /// and then the loss is reported: see [the lease](crate#heartbeat-and-lease). Zero also after a
    /// loss, and always on a program's own ZooKeeper handle, whose lease is not known. At most what
    /// is left of the time that the lock may be [held at
    /// most](crate::DistributedLock::hold_at_most). Sends no request.
    ///
    /// Compare it with the time that a step takes before you begin the step. It runs down while
    /// the machine sleeps, too.
    pub fn lease_left(&self) -> Duration {
        let left = |hold: &Hold| match hold.held_node.is_held() {
            true => hold.held_node.time_left(),
            false => Duration::ZERO,
        };
        self.each().map(left).min().unwrap_or_default()
    }

    /// Whether it is held, without recording a loss: for the checks of tests.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn seems_held(&self) -> bool {
        let state = self.held_node.watchdog.state.lock();
        state.lost.is_none() && !state.is_held_too_long() && self.held_node.session.is_trusted()
    }

    /// Lets each of the node's holders hold it for so long at most, this one from now on.
    pub(super) fn limit_to(&self, at_most: Option<Duration>) {
        if let Some(at_most) = at_most {
            self.held_node.limit(HoldLimit::from_now(at_most));
        }
    }

    /// Has the node tell others, in a second, since when it is held.
    pub(super) fn tell_held_since(&self) {
        let HeldNode { core, session, watchdog, .. } = &*self.held_node;
        tell_held_since(core, session, watchdog);
    }

    pub(crate) fn held_node(&self) -> &Arc<HeldNode> {
        &self.held_node
    }

    /// Shares the node, which gets this number, among threads. Returns whether it is lost already:
    /// such a loss is not told.
    pub(crate) fn share(
        &mut self,
        sharer: Arc<dyn Sharing>,
        number: u64,
        on_contest: Signal,
        on_loss: Signal,
    ) -> bool {
        self.shared = Some((sharer, number));
        let mut state = self.held_node.watchdog.state.lock();
        (state.on_contest, state.on_loss) = (Some(on_contest), Some(on_loss));
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
        Hold::of(client, held_node, turn, Some((sharer, number)))
    }

    /// Fails if the lock is not held; the error says why.
    pub(crate) fn check(&self) -> Result<()> {
        self.held_node.loss().map_or(Ok(()), |why| Err(self.lost_error(why)))
    }

    /// Asks the ensemble, through its leader, whether the lock is held, in one round trip.
    ///
    /// While the connection is lost it waits for the outcome, at most until the session is resumed
    /// or lost.
    ///
    /// # Errors
    ///
    /// [`SessionLost`](ErrorKind::SessionLost), [`NodeDeleted`](ErrorKind::NodeDeleted),
    /// [`HeldTooLong`](ErrorKind::HeldTooLong), [`Closed`](ErrorKind::Closed) or
    /// [`AuthFailed`](ErrorKind::AuthFailed) if it is not held any more; [`Server`](ErrorKind::Server) if the
    /// server refuses the request.
    pub fn ensure_held(&self) -> Result<()> {
        self.ensure_held_within(Wait::FOREVER)
    }

    /// Asks the ensemble whether the lock is held, waiting at most `wait` for the answer.
    ///
    /// # Errors
    ///
    /// [`Connect`](ErrorKind::Connect) when the time is over, and
    /// [`Cancelled`](ErrorKind::Cancelled) if the wait is cancelled: it may be held or not.
    /// Otherwise as [`ensure_held`](Self::ensure_held).
    pub fn ensure_held_within(&self, wait: impl Into<Wait>) -> Result<()> {
        let wait = wait.into();
        self.each().try_for_each(|hold| hold.confirm(&wait))
    }

    fn confirm(&self, wait: &Wait) -> Result<()> {
        let held_node = &self.held_node;
        // In a forked process, before any lock is taken.
        self.check()?;
        let mut call = self.call(wait);
        loop {
            let confirm = |session: &Session| session.confirm(&held_node.watchdog.node);
            let confirmed = match call.session() {
                Ok(session) => {
                    self.check()?;
                    call.ask_in(&session, confirm)
                }
                Err(stop) => Err(stop),
            };
            match confirmed {
                Ok(Ok(Some(stat))) if held_node.is_own(&stat) => return self.check(),
                Ok(Ok(_)) => return Err(self.lose(LossReason::NodeDeleted)),
                // The node is there, and no other client makes one of this name.
                Ok(Err(Fault::NoAuth)) if self.has_guid() => return self.check(),
                Ok(Err(fault)) if fault.is_loss() => self.check()?,
                Ok(Err(fault)) => return Err(CONFIRM.refused(&fault, self.path())),
                Err(Stop::SessionEnded(end)) => return Err(self.lose(end.into())),
                Err(stop) => return Err(CONFIRM.stopped(stop, &call, self.path())),
            }
        }
    }

    /// Whether the node's name has a guid, so that only its owner makes a node of this name.
    fn has_guid(&self) -> bool {
        let ticket = Ticket::parse(path::last(&self.held_node.watchdog.node));
        ticket.is_some_and(|ticket| Uuid::parse_str(ticket.guid()).is_ok())
    }

    /// Records a loss, and returns the error of the first one.
    pub(crate) fn lose(&self, why: LossReason) -> Error {
        self.lost_error(self.held_node.watchdog.lose(why))
    }

    pub(crate) fn lost_error(&self, why: LossReason) -> Error {
        let kind = match why {
            LossReason::NodeDeleted => ErrorKind::NodeDeleted,
            LossReason::ClientClosed => ErrorKind::Closed,
            LossReason::AuthFailed => ErrorKind::AuthFailed,
            LossReason::HeldTooLong => ErrorKind::HeldTooLong,
            LossReason::SessionExpired | LossReason::LeaseExpired => ErrorKind::SessionLost,
        };
        let noun = self.held_node.watchdog.noun;
        let details = self.held_node.watchdog.details(why);
        let why = Because(why, details.as_deref());
        Error::new(kind, format!("the {noun} is no longer held: {why}")).on(&self.held_node.path)
    }

    /// Returns a handle with which any thread can wait for the loss.
    pub fn lost(&self) -> Lost {
        let lost = |hold: &Hold| Lost::of(&hold.held_node.watchdog, hold.turn);
        match &self.joint {
            None => lost(self),
            Some(joint) => Lost::of_several(self.each().map(lost), &joint.release),
        }
    }

    /// Calls `callback` once, when the lock is lost; immediately if it already is.
    ///
    /// Every loss before the release is reported, whichever call finds it first, even if the guard
    /// is dropped right afterwards; a loss after the release never is.
    ///
    /// The callback runs on a thread of this library and may call the library and block; other
    /// callbacks get other threads. A panic in it is caught and logged, and affects nothing else.
    /// If the system has no thread for it, it waits for the next change of the session, or the next
    /// call. Releasing waits up to half a second for callbacks that are due or running, except for
    /// the one that releases. What a callback owns is dropped when it has run, or after the
    /// release.
    pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        let Some(joint) = &self.joint else { return self.tell_if_lost(Box::new(callback)) };
        let over = Arc::clone(&joint.release);
        let first = first_call(callback, move || over.is_over());
        for hold in self.each() {
            let (once, release) = (first.clone(), Arc::clone(&joint.release));
            hold.tell_if_lost(Box::new(move |why| {
                if !release.came_first() {
                    once(why);
                }
            }));
        }
    }

    fn tell_if_lost(&self, callback: OnLost) {
        let mut state = self.held_node.watchdog.state.lock();
        match state.lost {
            None => state.callbacks.lost.push(callback),
            Some(why) => {
                state.due += 1;
                drop(state);
                self.held_node.watchdog.tell_of_loss(callback, why);
            }
        }
    }

    /// Returns whether a client has requested the release.
    ///
    /// Requests are zklock's `request_release`, Curator's `__REVOKE__`, and the `unlock` of
    /// ZooKeeper's "Recipes and Solutions", written to the contender's node. Dropping the guard
    /// consents; doing nothing is allowed. Sends no request. A client's request goes unnoticed if
    /// an ACL forbids the holder to read its own node.
    pub fn release_requested(&self) -> bool {
        self.each().any(|hold| hold.held_node.watchdog.state.lock().requested)
    }

    /// Calls `callback` once, when a client requests the release; immediately if one already has.
    ///
    /// The callback never begins after the release. It runs, and may panic, like that of
    /// [`on_lost`](Self::on_lost).
    pub fn on_release_requested(&self, callback: impl FnOnce() + Send + 'static) {
        let Some(joint) = &self.joint else { return self.tell_if_requested(Box::new(callback)) };
        let first = first_call(|()| callback(), || true);
        for hold in self.each() {
            let (once, release) = (first.clone(), Arc::clone(&joint.release));
            hold.tell_if_requested(Box::new(move || {
                if !release.is_over() {
                    once(());
                }
            }));
        }
    }

    fn tell_if_requested(&self, callback: OnRequest) {
        let mut state = self.held_node.watchdog.state.lock();
        if state.requested {
            drop(state);
            self.held_node.watchdog.tell_of_request(self.turn, callback);
        } else {
            state.callbacks.requested.push(callback);
        }
    }

    /// Releases the lock, waits until that is done, and returns the outcome.
    pub(crate) fn release(self) -> Result<()> {
        self.release_within(&Wait::FOREVER).map(drop)
    }

    /// Releases the lock, waiting at most this long until that is done; false if it was not done
    /// then, so that the background does it.
    pub(crate) fn release_within(mut self, wait: &Wait) -> Result<bool> {
        let until = Deadline::after(DROP_LIMIT).earlier(wait.until());
        let Some(left) = self.part_if_held(until)? else { return Ok(true) };
        let deleted = self.delete(wait);
        left.settle(until);
        deleted
    }

    /// Deletes the node, however often that must be repeated over lost connections; false if it was
    /// not deleted in time.
    fn delete(&self, wait: &Wait) -> Result<bool> {
        let held_node = &self.held_node;
        let mut call = self.call(wait);
        match call.insist(|session| held_node.delete_in(session)) {
            Ok(Ok(())) => Ok(true),
            // An earlier attempt of ours took effect.
            Ok(Err(Fault::NoNode)) if call.has_lost_answers() => Ok(true),
            Ok(Err(Fault::NoNode)) => Err(self.lost_error(LossReason::NodeDeleted)),
            Ok(Err(fault)) => {
                match fault {
                    Fault::System(_) => held_node.delete_later(),
                    _ => held_node.insist(),
                }
                Err(DELETE.refused(&fault, self.path()))
            }
            Err(Stop::SessionEnded(end)) => Err(ended(end).on(self.path())),
            Err(stop) => {
                held_node.delete_later();
                match stop {
                    Stop::Cancelled => Err(cancelled(self.path())),
                    _ => Ok(false),
                }
            }
        }
    }

    /// Repeats a request over lost connections until it is answered. An error means that there was
    /// no answer in time, or that the session has ended.
    pub(crate) fn persist<T>(
        &self,
        wait: &Wait,
        purpose: Purpose,
        question: impl FnMut(&Session) -> Answer<T>,
    ) -> Result<Answer<T>> {
        self.held_node.core.check_process()?;
        let mut call = self.call(wait);
        call.insist(question).map_err(|stop| match stop {
            Stop::SessionEnded(end) => {
                // Why it was lost first: a session is replaced after its holds were given up.
                purpose.in_doubt_if(call.is_unanswered(), self.lose(end.into()))
            }
            stop => purpose.stopped(stop, &call, self.path()),
        })
    }

    /// A call in the session of the node.
    pub(super) fn call(&self, wait: &Wait) -> Call {
        Call::in_session(&self.held_node.core, &self.held_node.session, wait)
    }

    /// A path as the server knows it.
    pub(crate) fn whole(&self, path: &str) -> String {
        self.held_node.core.whole(path)
    }

    /// Ends the hold and leaves the node's deletion to the caller; `None` if another thread has the
    /// node, or it is kept. An error means that it was lost before.
    pub(crate) fn leave(&mut self, wait: &Wait) -> Result<Option<ReleasedParts>> {
        self.part_if_held(Deadline::after(DROP_LIMIT).earlier(wait.until()))
    }

    /// As `part`, but fails if it was lost before.
    fn part_if_held(&mut self, until: Deadline) -> Result<Option<ReleasedParts>> {
        self.held_node.core.check_process()?;
        let Some(left) = self.part() else { return Ok(None) };
        let Some(why) = left.lost else { return Ok(Some(left)) };
        left.settle(until);
        Err(self.lost_error(why))
    }

    /// A hold of the same session with the same token and the same time left, on another node with this data.
    pub(crate) fn beside(&self, lock_node: &str, name: &str, data: Option<Vec<u8>>) -> Hold {
        let session = Arc::clone(&self.held_node.session);
        let of_this = (self.held_node.zxid, self.held_node.watchdog.noun);
        let next = Hold::make(&self.client, session, (lock_node, name), None, of_this, data, None);
        next.own();
        let limit = self.held_node.watchdog.state.lock().limit;
        if let Some(limit) = limit {
            next.held_node.limit(limit);
        }
        next
    }

    /// Notes that the node is relied upon, which a create without an answer may have made.
    fn own(&self) {
        self.held_node.session.owned().own(&self.held_node.watchdog.node);
    }

    /// Has another node of the session deleted in the background, if it is there.
    pub(crate) fn discard(&self, path: &str) {
        let core = &self.held_node.core;
        core.reaper().delete(&self.held_node.session, core.whole(path));
    }

    /// Notes that this thread has it, by a call that began then. Reports that, and later its release, for a
    /// program that wants to know.
    pub(crate) fn acquired_since(mut self, begin: Option<Instant>) -> Hold {
        self.note_taken();
        let Some(begin) = begin else { return self };
        let now = rt::now();
        self.held_node.core.report(|| Event::Acquired {
            lock: path::parent(&self.held_node.path).to_owned(),
            what: self.held_node.watchdog.noun,
            waited: now.saturating_duration_since(begin),
            token: self.token(),
            is_local: self.turn > 0,
            thread: rt::program_thread(),
        });
        self.report_end_of(now);
        self
    }

    /// Has the end of a hold reported that was reported to begin then: its loss or its release, whichever
    /// comes first.
    fn report_end_of(&self, since: Instant) {
        let mut state = self.held_node.watchdog.state.lock();
        let is_lost = state.lost.is_some();
        state.reported_since = Some(since).filter(|_| !is_lost);
        drop(state);
        if is_lost {
            // The report of that loss does not tell of it.
            self.report_released(since);
        }
    }

    fn report_released(&self, since: Instant) {
        self.held_node.core.report(|| Event::Released {
            lock: path::parent(&self.held_node.path).to_owned(),
            what: self.held_node.watchdog.noun,
            held: rt::now().saturating_duration_since(since),
        });
    }

    /// Notes that this thread has it.
    pub(super) fn note_taken(&mut self) {
        self.taken_by = Some(rt::thread_id());
        note_taken(&self.held_node.watchdog, self.turn);
    }

    /// Reports the release as one of both, which hold on after each other.
    pub(crate) fn report_as_one_with(&self, before: &Hold) {
        let since = before.held_node.watchdog.state.lock().reported_since.take();
        if let Some(since) = since {
            self.report_end_of(since);
        }
    }

    /// Gives up the node; `None` if another thread has it, or it is kept. Otherwise it must be deleted,
    /// unless it was lost before.
    fn part(&mut self) -> Option<ReleasedParts> {
        let watchdog = &self.held_node.watchdog;
        match self.taken_by {
            Some(thread) if thread == rt::thread_id() => note_left(watchdog, self.turn),
            Some(_) => watchdog.given_away.note(&watchdog.node),
            None => {}
        }
        // Before the next holder can report that it has acquired it.
        self.held_node.loss_seen();
        let since = self.held_node.watchdog.state.lock().reported_since.take();
        if let Some(since) = since {
            self.report_released(since);
        }
        self.over = true;
        match self.shared.take() {
            Some((sharer, number)) => sharer.pass(&self.client, &self.held_node, number),
            None => Some(self.held_node.leave()),
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
    pub(crate) fn forget_node(mut self) {
        self.over = true;
        drop(self.held_node.leave());
    }

    /// Releases the lock as dropping does, but waits no longer than `until`.
    pub(crate) fn let_go(mut self, until: Deadline) {
        if !self.held_node.core.is_elsewhere() {
            self.release_by(until);
        }
    }

    fn release_by(&mut self, until: Deadline) {
        if self.over {
            return;
        }
        let Some(left) = self.part() else { return };
        if left.lost.is_none() {
            self.held_node.delete_by(until);
        }
        left.settle(until);
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

/// A function that calls `callback` the first time, whichever of its clones is called. The other times it
/// waits until that has ended, or nobody cares any more.
fn first_call<T>(
    callback: impl FnOnce(T) + Send + 'static,
    is_over: impl Fn() -> bool + Clone + Send + 'static,
) -> impl Fn(T) + Clone + Send + 'static {
    let first = Arc::new((Mutex::new(Some(callback)), FirstCall::default()));
    move |value| {
        let (callback, call) = &*first;
        let callback = callback.lock().take();
        match callback {
            Some(callback) => {
                let _ends = EndOfCall(call);
                callback(value);
            }
            None => call.wait(&is_over),
        }
    }
}

/// A callback that runs once for several nodes.
#[derive(Default)]
struct FirstCall {
    has_ended: Mutex<bool>,
    ended: Condvar,
}

impl FirstCall {
    fn wait(&self, is_over: &impl Fn() -> bool) {
        let mut has_ended = self.has_ended.lock();
        while !*has_ended && !is_over() {
            self.ended.wait_until(&mut has_ended, rt::now() + BETWEEN_LOOKS);
        }
    }
}

/// Says that the callback has ended, also if it panics.
struct EndOfCall<'a>(&'a FirstCall);

impl Drop for EndOfCall<'_> {
    fn drop(&mut self) {
        *self.0.has_ended.lock() = true;
        self.0.ended.notify_all();
    }
}

impl Hold {
    /// Prints it under the name of the guard that has it.
    pub(crate) fn fmt_as(&self, guard: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(guard)
            .field("path", &self.held_node.path)
            .field("token", &format_args!("{}", self.token()))
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Hold", f)
    }
}
