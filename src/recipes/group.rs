//! Group membership.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use super::node_config::{NodeConfig, Purpose, WaitLimits, placed};
use crate::contend::changes::Changes;
use crate::contend::errors::cancelled;
use crate::contend::held_node::DROP_LIMIT;
use crate::contend::hold::Hold;
use crate::contend::list_contenders::HIDDEN;
use crate::contend::watchdog::HoldEnd;
use crate::contend::watchdog::Lost;
use crate::error::{Error, ErrorKind, Result};
use crate::logging;
use crate::loss_reason::LossReason;
use crate::path;
use crate::rt::{self, Condvar, Deadline, Mutex};
use crate::session::callbacks::InOrder;
use crate::session::cancel::Cancel;
use crate::session::client_core::{ClaimedName, ClientCore};
use crate::session::connection::{Answer, Fault, NodeKind, Stat};
use crate::session::create_parents::make_parents;
use crate::session::notify::Waiter;
use crate::session::session::Session;
use crate::session::status::Usable;
use crate::session::wait::Wait;
use crate::session::watch_loop::{View, WatchLoop, worth_asking};
use crate::session_id::SessionId;

/// How long a member that the server refuses waits before it tries to rejoin.
const REST: Duration = Duration::from_secs(1);

/// A group of programs, in which all can see which of them are alive.
///
/// It is ZooKeeper's group membership: each member has an ephemeral node of its own, named by its
/// id, under the node `base/name`, as with Curator's `GroupMember`. The node of a member that dies
/// is deleted at the end of its session.
///
/// The value is a description: cheap to make and to clone, and not tied to a session.
///
/// ```no_run
/// use zklock::{Client, Group};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let workers = Group::new(&zk, "/groups", "workers");
/// let membership = workers.join("worker-7", "10.0.0.7:8080")?;
/// for member in workers.members()? {
///     println!("{} at {}", member.id, String::from_utf8_lossy(&member.data));
/// }
/// membership.leave()?;
/// # Ok::<(), zklock::Error>(())
/// ```
///
/// May change until 0.2: see [Versions](crate#versions).
#[derive(Clone, Debug)]
pub struct Group {
    target: NodeConfig,
}

/// A member of a [`Group`].
///
/// May change until 0.2: see [Versions](crate#versions).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its id, which is its node's name.
    pub id: String,
    /// What it says about itself. Empty if an ACL hides it.
    pub data: Vec<u8>,
    /// The id of its session, as servers name it in their logs (in hexadecimal). 0 means that the
    /// node belongs to no session, so that no session's end deletes it. -1 means unknown: since
    /// ZooKeeper 3.7.3, 3.8.4 and 3.9.2, an ACL that hides the data hides this, too.
    pub session: SessionId,
    /// When it joined in this session, by the ensemble's clock;
    /// [`UNIX_EPOCH`](SystemTime::UNIX_EPOCH) if an ACL hides that.
    pub since: SystemTime,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("id", &self.id)
            .field("data", &String::from_utf8_lossy(&self.data))
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

const JOIN: Purpose = Purpose::to_change("join the group", "CREATE on the group's node, and READ");
const LOOK: Purpose = Purpose::to_read("list the group's members", "READ on its node");

placed!(Group, GroupBuilder, "Returns the group at the node `base/name`");

impl Group {
    /// Joins under an id, with data by which the member describes itself.
    ///
    /// The id is one component of a path. When the call returns, others can see the member. From
    /// then on it rejoins by itself: after its session is lost, as soon as a new one can be opened;
    /// after another client deletes its node, as soon as the id is free. A thread of this library,
    /// `zklock-member`, does that, and ends with the membership.
    ///
    /// If the id is in use, by the session of an earlier run of this program that was killed, say,
    /// or by another membership of this client, the call waits for that to end, at most the
    /// [connect timeout](crate::ClientBuilder::connect_timeout), which should therefore be longer
    /// than the session timeout.
    ///
    /// # Errors
    ///
    /// [`Taken`](ErrorKind::Taken) if the id was in use all that time;
    /// [`InvalidName`](ErrorKind::InvalidName) for an id that cannot be a node's name;
    /// [`NotAuthorized`](ErrorKind::NotAuthorized); [`TooLarge`](ErrorKind::TooLarge);
    /// [`Connect`](ErrorKind::Connect) if the ensemble does not answer within the connect timeout;
    /// [`System`](ErrorKind::System) if no thread can be started; otherwise only what waiting does
    /// not resolve.
    pub fn join(&self, id: impl AsRef<str>, data: impl Into<Vec<u8>>) -> Result<Membership> {
        self.join_within(id, data, self.target.client.core().connect_timeout())
    }

    /// Joins, waiting at most `wait` instead of the connect timeout: see [`join`](Group::join).
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the wait is cancelled; otherwise as
    /// [`join`](Group::join).
    pub fn join_within(
        &self,
        id: impl AsRef<str>,
        data: impl Into<Vec<u8>>,
        wait: impl Into<Wait>,
    ) -> Result<Membership> {
        let path = path::lock_path(self.target.node()?, id.as_ref())?;
        let (core, wait, begin) = (self.target.client.core(), wait.into(), rt::now());
        let until = wait.until();
        let whole = core.whole(&path);
        let limits = WaitLimits::from(&wait);
        let taken = |path: &str| match limits.over::<()>(path) {
            Err(cancelled) => cancelled,
            Ok(_) => taken(rt::now().saturating_duration_since(begin), path),
        };
        let mut watch_loop = self.target.watch_loop(limits);
        let Some(claim) = claim(core, &whole, &watch_loop, until) else {
            return Err(taken(&path));
        };
        let (target, claim) = (self.target.clone(), Arc::new(claim));
        let node = Arc::new(MemberNode { target, path, whole, data: data.into(), claim });
        let mut unsure = None;
        let settled = node.settle(&mut watch_loop, Some(until), &mut unsure);
        let was_asked = unsure.is_some();
        match unsure {
            Some(session) if !matches!(settled, Ok(JoinOutcome::Standing(_))) => {
                node.withdraw(&session);
            }
            _ => {}
        }
        let hold = match settled? {
            JoinOutcome::Standing(hold) => hold,
            JoinOutcome::Taken => return Err(taken(&node.path)),
            // If the node was created, it is being deleted.
            JoinOutcome::NotInTime => {
                limits.over::<()>(&node.path)?;
                return Err(JOIN.unanswered(core, was_asked, &node.path));
            }
        };
        let seat = Arc::new(SharedMembership {
            node,
            leaving: Cancel::new(),
            part: Mutex::new(MembershipState::new(hold)),
            changed: Condvar::new(),
            callbacks: InOrder::new(core.events()),
        });
        let keeper = Arc::clone(&seat);
        match rt::spawn("zklock-member", move || keeper.keep()) {
            Ok(()) => Ok(Membership { seat }),
            Err(error) => {
                let hold = seat.part.lock().hold.take();
                drop(hold);
                Err(error)
            }
        }
    }

    /// Lists the members, sorted by id, as this client's server knows them.
    ///
    /// That server may lag behind the others, so that a member may be missing whose
    /// [`join`](Group::join) has returned: use [`latest_members`](Group::latest_members) to see
    /// all. Takes one request, and one more for each member.
    ///
    /// A member whose node an ACL hides is listed without its data; the first time, the log says
    /// so.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without READ on the group's node;
    /// [`Connect`](ErrorKind::Connect) or [`ConnectionLoss`](ErrorKind::ConnectionLoss) if the
    /// ensemble does not answer within the
    /// [connect timeout](crate::ClientBuilder::connect_timeout); otherwise only what waiting does
    /// not resolve.
    pub fn members(&self) -> Result<Vec<Member>> {
        self.look(false)
    }

    /// Lists the members, including all that had joined before this call.
    ///
    /// Asks the ensemble's leader first, in one more request than [`members`](Group::members).
    ///
    /// # Errors
    ///
    /// As [`members`](Group::members).
    pub fn latest_members(&self) -> Result<Vec<Member>> {
        self.look(true)
    }

    fn look(&self, synced: bool) -> Result<Vec<Member>> {
        let core = Arc::downgrade(self.target.client.core());
        self.target.ask(LOOK, move |session, node| {
            if synced {
                session.sync()?;
            }
            let ids = session.children(node, false)?.unwrap_or_default();
            members(&core, session, node, &ids)
        })
    }

    /// Observes the members: first the present ones, then those after each change.
    ///
    /// Each change costs each observer as many requests as [`members`](Group::members).
    pub fn observe(&self) -> Changes<Vec<Member>> {
        let core = Arc::downgrade(self.target.client.core());
        self.target.observe(LOOK, move |view: &mut View<'_>, node: &str| {
            let ids = view.list_or_making(node)?.unwrap_or_default();
            members(&core, view, node, &ids)
        })
    }
}

fn members(
    core: &Weak<ClientCore>,
    session: &Session,
    node: &str,
    ids: &[String],
) -> Answer<Vec<Member>> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let path = path::join(node, id);
        let read = match session.data(&path, false) {
            Err(Fault::NoAuth) => {
                if let Some(core) = core.upgrade() {
                    let hidden = "an ACL hides the data: the member is listed without them";
                    core.warn_once(&path, || Some(hidden.to_owned()));
                }
                match session.read(&path, false) {
                    // The ACL hides its stat, too.
                    Err(Fault::NoAuth) => {
                        Some((Vec::new(), Stat { ephemeral_owner: HIDDEN, ..Stat::default() }))
                    }
                    read => read?,
                }
            }
            read => read?,
        };
        // A member that has gone meanwhile is not listed.
        if let Some((data, stat)) = read {
            let since = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or_default());
            found.push(Member {
                id: id.clone(),
                data,
                session: stat.ephemeral_owner.into(),
                since: SystemTime::UNIX_EPOCH + since,
            });
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

/// Reserves the name among the calls of one client, waiting until then if another call has it.
fn claim(
    core: &Arc<ClientCore>,
    whole: &str,
    watch_loop: &WatchLoop,
    until: Deadline,
) -> Option<ClaimedName> {
    let _subscription = core.changes().subscribe(watch_loop.bell());
    let mut claim = None;
    watch_loop.has_come(until, || {
        claim = core.claim(whole);
        claim.is_some()
    });
    claim
}

fn taken(waited: Duration, path: &str) -> Error {
    let message = format!("the id was in use for {waited:.1?}: choose another id, or wait longer");
    Error::new(ErrorKind::Taken, message).on(path)
}

/// A membership in a [`Group`], which rejoins by itself after a loss; dropping it leaves the group.
///
/// Dropping returns when the node's deletion is under way, within half a second.
///
/// A membership is lost with its session, or when another client deletes its node. Unlike a
/// [`LockGuard`](crate::LockGuard) it does not end then: it rejoins as soon as it can, in a new
/// session, or when the id is free again. These methods report that:
///
/// | | |
/// |---|---|
/// | [`is_member`](Membership::is_member) | the present state |
/// | [`lost`](Membership::lost) | a handle to wait for the next loss; after a rejoin, ask for another one |
/// | [`on_lost`](Membership::on_lost), [`on_rejoined`](Membership::on_rejoined) | call back each time |
///
/// May change until 0.2: see [Versions](crate#versions).
#[must_use = "if unused the group is left immediately"]
#[clippy::has_significant_drop]
pub struct Membership {
    seat: Arc<SharedMembership>,
}

impl Membership {
    /// The member's node, as the client names it.
    pub fn path(&self) -> &str {
        &self.seat.node.path
    }

    /// The id under which others see it.
    pub fn id(&self) -> &str {
        path::last(&self.seat.node.path)
    }

    /// Whether others can see it, as far as is known here.
    ///
    /// `false` from the loss of its session or its node until it has rejoined. Sends no request.
    pub fn is_member(&self) -> bool {
        !self.seat.node.target.client.core().is_elsewhere()
            && self.seat.part.lock().hold.as_ref().is_some_and(Hold::is_held)
    }

    /// Returns a handle with which any thread can wait until the membership is lost.
    ///
    /// If it is lost just now, the handle is for that loss. It does not report that the membership
    /// has rejoined.
    pub fn lost(&self) -> Lost {
        self.seat.part.lock().lost.clone()
    }

    /// Calls `callback` each time the membership is lost, even if it rejoins a moment later.
    ///
    /// At once if it is lost just now; never after the group was left. Callbacks registered here
    /// and with [`on_rejoined`](Membership::on_rejoined) run in the order of the events, one at a
    /// time, on a thread of their own, and may call this library.
    pub fn on_lost(&self, callback: impl FnMut(LossReason) + Send + 'static) {
        let callback: LossCallback = Arc::new(Mutex::new(Box::new(callback)));
        let mut part = self.seat.part.lock();
        part.on_lost.push(Arc::clone(&callback));
        if let Some(why) = part.away {
            self.seat.tell(move || (callback.lock())(why));
        }
    }

    /// Calls `callback` each time the membership has rejoined after a loss: others can see it
    /// again.
    ///
    /// Runs as the callbacks of [`on_lost`](Membership::on_lost) do.
    pub fn on_rejoined(&self, callback: impl FnMut() + Send + 'static) {
        self.seat.part.lock().on_rejoined.push(Arc::new(Mutex::new(Box::new(callback))));
    }

    /// Leaves the group as dropping does, but waits until the server has confirmed it.
    ///
    /// While the connection is lost it waits until the session is resumed or lost. If this
    /// membership was lost and another member has taken the id since, that one keeps it.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) if an ACL on the group's node does not allow to
    /// delete; [`Server`](ErrorKind::Server) if the server refuses for another reason. The delete
    /// is then retried in the background.
    pub fn leave(self) -> Result<()> {
        self.leave_within(Wait::FOREVER).map(drop)
    }

    /// Leaves the group, waiting at most `wait` until the server has confirmed it: see
    /// [`leave`](Membership::leave).
    ///
    /// Returns false if there was no answer when the time was over: the background goes on.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the wait is cancelled: the background goes on.
    /// Otherwise as [`leave`](Membership::leave).
    pub fn leave_within(self, wait: impl Into<Wait>) -> Result<bool> {
        let wait = wait.into();
        self.seat.leave(&wait, |hold| leave(hold, &wait))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.seat.leaving.is_cancelled() {
            return;
        }
        let until = Deadline::after(DROP_LIMIT);
        let _ = self.seat.leave(&Wait::from(until), |hold| {
            hold.let_go(until);
            Ok(true)
        });
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("path", &self.path())
            .field("is_member", &self.is_member())
            .finish_non_exhaustive()
    }
}

/// The node of a member.
struct MemberNode {
    target: NodeConfig,
    path: String,
    /// The node as the server knows it.
    whole: String,
    data: Vec<u8>,
    /// Kept as long as a node that this client has created may exist.
    claim: Arc<ClaimedName>,
}

/// What a membership and its thread share.
struct SharedMembership {
    node: Arc<MemberNode>,
    leaving: Cancel,
    part: Mutex<MembershipState>,
    changed: Condvar,
    callbacks: Arc<InOrder>,
}

struct MembershipState {
    /// The hold on the present node, until its loss is noticed.
    hold: Option<Hold>,
    /// The loss handle of the present hold, or of the last one.
    lost: Lost,
    /// Why the hold was lost, if it was.
    away: Option<LossReason>,
    on_lost: Vec<LossCallback>,
    on_rejoined: Vec<OnRejoined>,
    /// The outcome of leaving, once the thread has ended.
    left: Option<Result<()>>,
}

type LossCallback = Arc<Mutex<Box<dyn FnMut(LossReason) + Send>>>;
type OnRejoined = Arc<Mutex<Box<dyn FnMut() + Send>>>;

/// The outcome of an attempt to join.
enum JoinOutcome {
    Standing(Hold),
    /// The time was over, and another member's node was in the way.
    Taken,
    NotInTime,
}

impl MemberNode {
    /// Creates the node, as soon as there is no other one of that name. `unsure` is a session in
    /// which it may have been created, without an answer that says so. Without `until`, it waits for
    /// the answer to a creation, even if the wait is cancelled: to leave, it must be known whether
    /// there is a node.
    fn settle(
        self: &Arc<Self>,
        watch_loop: &mut WatchLoop,
        until: Option<Deadline>,
        unsure: &mut Option<Arc<Session>>,
    ) -> Result<JoinOutcome> {
        let waits_for_answer = until.is_none();
        let until = until.unwrap_or(Deadline::NEVER);
        let ask_until = worth_asking(until);
        loop {
            let Some(session) = watch_loop.session(ask_until)? else {
                return Ok(JoinOutcome::NotInTime);
            };
            let whole = self.whole.clone();
            match watch_loop.look(&session, ask_until, move |view| view.node(&whole))? {
                // Because of the claim, no other call has created one in this session.
                Some(Ok(Some((_, stat))))
                    if stat.ephemeral_owner == session.id()
                        && unsure.as_ref().is_some_and(|one| Arc::ptr_eq(one, &session)) =>
                {
                    return Ok(JoinOutcome::Standing(self.stand(session, stat.czxid)));
                }
                Some(Ok(Some(_))) => {
                    if !watch_loop.changed(until)? {
                        return Ok(JoinOutcome::Taken);
                    }
                    continue;
                }
                Some(Ok(None)) => {}
                Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => continue,
                Some(Err(fault)) => return Err(self.target.refused(&fault, JOIN)),
                None => return Ok(JoinOutcome::NotInTime),
            }
            match self.ask_for_node(watch_loop, &session, ask_until, waits_for_answer)? {
                Some(Ok(Some(czxid))) => {
                    return Ok(JoinOutcome::Standing(self.stand(session, czxid)));
                }
                Some(Ok(None) | Err(Fault::ConnectionLoss)) => *unsure = Some(session),
                Some(Err(Fault::NodeExists | Fault::NoNode | Fault::SessionEnded)) => {}
                Some(Err(fault)) => return Err(self.target.refused(&fault, JOIN)),
                None => return Ok(JoinOutcome::NotInTime),
            }
        }
    }

    /// Creates the node; `None` if there was no answer in time, or the membership was left before
    /// the request.
    fn ask_for_node(
        self: &Arc<Self>,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        until: Deadline,
        waits_for_answer: bool,
    ) -> Result<Option<Answer<Option<i64>>>> {
        if waits_for_answer {
            let is_over = watch_loop.is_cancelled();
            return Ok((!is_over).then(|| self.make(session)));
        }
        let (node, late, owner) = (Arc::clone(self), Arc::clone(self), Arc::clone(session));
        let make = move |session: &Session| node.make(session);
        watch_loop.ask(session, until, make, move |made| {
            if matches!(made, Ok(_) | Err(Fault::ConnectionLoss)) {
                late.withdraw(&owner);
            }
        })
    }

    /// Creates the node, and returns the transaction that created it, if that is known.
    fn make(&self, session: &Session) -> Answer<Option<i64>> {
        let create = || session.create(&self.whole, &self.data, &self.target.acl, NodeKind::Named);
        let made = match create() {
            Err(Fault::NoNode) => {
                let group = path::parent(&self.whole);
                make_parents(session, group, NodeKind::Container, &self.target.acl)?;
                create()
            }
            made => made,
        };
        made.map(|made| made.czxid)
    }

    fn stand(&self, session: Arc<Session>, czxid: i64) -> Hold {
        let (group, id) = (path::parent(&self.path), path::last(&self.path));
        Hold::on_named(&self.target.client, session, (group, id), "membership", czxid)
    }

    /// Deletes in the background the node that a request without an answer may have created.
    fn withdraw(&self, session: &Arc<Session>) {
        let (reaper, claim) = (self.target.client.core().reaper(), Arc::clone(&self.claim));
        reaper.disown(session, self.whole.clone(), move |session, _, stat| {
            // Holds the claim until then, so that no other call of this client creates the node.
            let _ = &claim;
            stat.ephemeral_owner == session.id()
        });
    }

    /// Deletes the same node and waits for that. If the session ends, the node ends with it.
    fn retract(&self, session: &Arc<Session>) -> Result<()> {
        let waiter = Waiter::new();
        let _subscription = session.status().subscribe(waiter.bell());
        loop {
            if session.status().until_usable(&waiter, Deadline::NEVER, || false) != Usable::Now {
                return Ok(());
            }
            match session.confirm(&self.whole) {
                Ok(Some(stat)) if stat.ephemeral_owner == session.id() => {
                    return leave(self.stand(Arc::clone(session), stat.czxid), &Wait::FOREVER)
                        .map(drop);
                }
                Ok(_) => return Ok(()),
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => {}
                Err(fault) => {
                    let purpose = Purpose::to_change("leave the group", "READ on the group's node");
                    return Err(self.target.refused(&fault, purpose));
                }
            }
        }
    }
}

/// Releases the hold. If it is lost already, there is nothing to leave.
fn leave(hold: Hold, wait: &Wait) -> Result<bool> {
    use ErrorKind::{AuthFailed, Closed, Lost, SessionLost};
    hold.release_within(wait).or_else(|error| match error.kind() {
        Lost | SessionLost | Closed | AuthFailed => Ok(true),
        _ => Err(error),
    })
}

impl MembershipState {
    fn new(hold: Hold) -> MembershipState {
        MembershipState {
            lost: hold.lost(),
            hold: Some(hold),
            away: None,
            on_lost: Vec::new(),
            on_rejoined: Vec::new(),
            left: None,
        }
    }
}

impl SharedMembership {
    /// Runs the thread: creates the node again whenever it is lost.
    fn keep(&self) {
        let mut watch_loop = WatchLoop::new(&self.node.target.client, Some(&self.leaving));
        let mut unsure = None;
        let left = loop {
            let lost = self.part.lock().lost.clone();
            // Without a reason, the group was left.
            let HoldEnd::Lost(why) = lost.wait() else { break Ok(()) };
            self.is_lost(why);
            let Some(hold) = self.come_back(&mut watch_loop, &mut unsure) else {
                break unsure.map_or(Ok(()), |session| self.node.retract(&session));
            };
            unsure = None;
            if let Some(hold) = self.has_rejoined(hold) {
                break leave(hold, &Wait::FOREVER).map(drop);
            }
        };
        self.part.lock().left = Some(left);
        self.changed.notify_all();
    }

    /// Rejoins; `None` if the group is left, or the member cannot rejoin.
    fn come_back(
        &self,
        watch_loop: &mut WatchLoop,
        unsure: &mut Option<Arc<Session>>,
    ) -> Option<Hold> {
        let group = self.node.target.node().unwrap_or_default();
        let mut complained = false;
        while !watch_loop.is_cancelled() {
            match self.node.settle(watch_loop, None, unsure) {
                Ok(JoinOutcome::Standing(hold)) => return Some(hold),
                Ok(JoinOutcome::Taken | JoinOutcome::NotInTime) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::AuthFailed) => {
                    logging::warning!(
                        target: "zklock::group",
                        "group {group}: cannot rejoin, giving up: {error}"
                    );
                    return None;
                }
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        logging::warning!(
                            target: "zklock::group",
                            "group {group}: cannot rejoin, retrying every {REST:?}: {error}"
                        );
                    }
                    watch_loop.rest(Deadline::after(REST));
                }
            }
        }
        None
    }

    fn is_lost(&self, why: LossReason) {
        let mut part = self.part.lock();
        part.away = Some(why);
        let hold = part.hold.take();
        for callback in &part.on_lost {
            let callback = Arc::clone(callback);
            self.tell(move || (callback.lock())(why));
        }
        drop(part);
        drop(hold);
    }

    /// Stores the new hold and calls the callbacks. Returns the hold if the group was left
    /// meanwhile.
    fn has_rejoined(&self, hold: Hold) -> Option<Hold> {
        let mut part = self.part.lock();
        if self.leaving.is_cancelled() {
            return Some(hold);
        }
        (part.away, part.lost, part.hold) = (None, hold.lost(), Some(hold));
        for callback in &part.on_rejoined {
            let callback = Arc::clone(callback);
            self.tell(move || (callback.lock())());
        }
        None
    }

    /// Schedules a callback, unless the group is left before it runs.
    fn tell(&self, callback: impl FnOnce() + Send + 'static) {
        let leaving = self.leaving.clone();
        self.callbacks.dispatch(move || {
            if !leaving.is_cancelled() {
                callback();
            }
        });
    }

    fn leave(
        self: &Arc<Self>,
        wait: &Wait,
        release: impl FnOnce(Hold) -> Result<bool>,
    ) -> Result<bool> {
        self.node.target.client.core().check_process()?;
        self.leaving.cancel();
        let woken = Arc::clone(self);
        let wake = move || {
            let _part = woken.part.lock();
            woken.changed.notify_all();
        };
        let _cancel = wait.cancel().map(|cancel| cancel.subscribe(Arc::new(wake)));
        let mut part = self.part.lock();
        if let Some(hold) = part.hold.take() {
            drop(part);
            return release(hold);
        }
        // The thread may be creating a node: wait until it has ended.
        loop {
            if let Some(left) = &part.left {
                return left.clone().map(|()| true);
            }
            if wait.is_cancelled() {
                return Err(cancelled(&self.node.path));
            }
            match wait.until().instant() {
                _ if wait.until().has_passed() => return Ok(false),
                None => self.changed.wait(&mut part),
                Some(end) => drop(self.changed.wait_until(&mut part, end)),
            }
        }
    }
}
