//! Group membership.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use super::changes::Changes;
use super::node_config::{NodeConfig, Purpose, Wait, placed};
use crate::contend::hold::{DROP_LIMIT, Hold};
use crate::contend::list_contenders::HIDDEN;
use crate::contend::loss_reason::LossReason;
use crate::contend::watchdog::Lost;
use crate::error::{Error, ErrorKind, Result};
use crate::logging;
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
use crate::session::watch_loop::{View, WatchLoop, worth_asking};

/// How long a member that the server refuses waits before it tries to come back again.
const REST: Duration = Duration::from_secs(1);

/// Who is there: programs that join, and are seen by all for as long as they live.
///
/// It is ZooKeeper's group membership: each member has an ephemeral node of its own, named by its
/// id, under the node `base/name`, as with Curator's `GroupMember`. A member that dies goes with
/// its session.
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
#[derive(Clone, Debug)]
pub struct Group {
    target: NodeConfig,
}

/// One of a [`Group`].
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its id, which is its node's name.
    pub id: String,
    /// What it says of itself. Empty when an ACL hides it.
    pub data: Vec<u8>,
    /// The id of its session, as servers name it in their logs (in hexadecimal). 0 is a node of no
    /// session, which nobody will clean up; -1 is unknown: since ZooKeeper 3.7.3, 3.8.4 and 3.9.2,
    /// an ACL that hides the data hides this, too.
    pub session: i64,
    /// Since when it has been there in this session, by the ensemble's clock;
    /// [`UNIX_EPOCH`](SystemTime::UNIX_EPOCH) where an ACL hides that.
    pub since: SystemTime,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("id", &self.id)
            .field("data", &String::from_utf8_lossy(&self.data))
            .field("session", &format_args!("0x{:x}", self.session))
            .finish_non_exhaustive()
    }
}

const JOIN: Purpose =
    Purpose { tried: "join the group", needs: "CREATE on the group's node, and READ" };
const LOOK: Purpose = Purpose { tried: "look who is in the group", needs: "READ on its node" };

placed!(Group, GroupBuilder, "The group at the node `base/name`");

impl Group {
    /// Joins under an id, which is one component of a path, with something to say of itself.
    ///
    /// When it returns, others can see the member. From then on it comes back by itself: when its
    /// session is lost, as soon as a new one can be had; and when somebody deletes its node, as soon
    /// as nobody else has the id. A thread of this library, `zklock-member`, sees to that, and ends
    /// with the membership.
    ///
    /// Where another has the id, such as the session of an earlier run of this program that was
    /// killed, or another membership of this client, it waits for that to end, up to the
    /// [connect time-out](crate::ClientBuilder::connect_timeout): this should be longer than the
    /// session time-out.
    ///
    /// # Errors
    ///
    /// [`Taken`](ErrorKind::Taken) if another has the id all that time;
    /// [`InvalidName`](ErrorKind::InvalidName) for an id that is none;
    /// [`NotAuthorized`](ErrorKind::NotAuthorized), [`TooLarge`](ErrorKind::TooLarge);
    /// [`Connect`](ErrorKind::Connect) when the ensemble does not answer within the connect
    /// time-out; [`System`](ErrorKind::System) without a thread; what waiting cannot mend else.
    pub fn join(&self, id: impl AsRef<str>, data: impl Into<Vec<u8>>) -> Result<Membership> {
        let path = path::lock_path(self.target.node()?, id.as_ref())?;
        let core = self.target.client.core();
        let until = Deadline::after(core.connect_timeout());
        let whole = core.whole(&path);
        let mut watch_loop = self.target.watch_loop(Wait::FOREVER);
        let Some(claim) = claim(core, &whole, &watch_loop, until) else {
            return Err(taken(core, &path));
        };
        let (target, claim) = (self.target.clone(), Arc::new(claim));
        let node = Arc::new(MemberNode { target, path, whole, data: data.into(), claim });
        let mut unsure = None;
        let settled = node.settle(&mut watch_loop, until, &mut unsure);
        if !matches!(settled, Ok(JoinOutcome::Standing(_)))
            && let Some(session) = unsure
        {
            node.withdraw(&session);
        }
        let hold = match settled? {
            JoinOutcome::Standing(hold) => hold,
            JoinOutcome::Taken => return Err(taken(core, &node.path)),
            JoinOutcome::NotInTime => {
                return Err(self.target.refused(&Fault::ConnectionLoss, JOIN));
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

    /// Who is there, by id, as this client's server knows it. That server may lag behind the others,
    /// so that a member may be missing whose [`join`](Group::join) has returned: use
    /// [`latest_members`](Group::latest_members) to see all. Takes one request, and one more for
    /// each member.
    ///
    /// A member whose node an ACL hides is there without its data; the first time, the log says so.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without READ on the group's node;
    /// [`Connect`](ErrorKind::Connect) or [`ConnectionLoss`](ErrorKind::ConnectionLoss)
    /// when the ensemble does not answer within the
    /// [connect time-out](crate::ClientBuilder::connect_timeout); what waiting cannot mend else.
    pub fn members(&self) -> Result<Vec<Member>> {
        self.look(false)
    }

    /// As [`members`](Group::members), with all who had joined before this call: asks the ensemble's
    /// leader first, in one request more.
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

    /// Who is there, whenever that changes, and at first as it is. Who comes or goes costs each
    /// observer what [`members`](Group::members) does.
    pub fn observe(&self) -> Changes<Vec<Member>> {
        let core = Arc::downgrade(self.target.client.core());
        Changes::new(&self.target, LOOK, move |view: &mut View<'_>, node: &str| {
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
                    // Its stat, too.
                    Err(Fault::NoAuth) => {
                        Some((Vec::new(), Stat { ephemeral_owner: HIDDEN, ..Stat::default() }))
                    }
                    read => read?,
                }
            }
            read => read?,
        };
        // Whoever has gone meanwhile is not there.
        if let Some((data, stat)) = read {
            let since = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or_default());
            found.push(Member {
                id: id.clone(),
                data,
                session: stat.ephemeral_owner,
                since: SystemTime::UNIX_EPOCH + since,
            });
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

/// The name among the calls of one client, which others of them may have until then.
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

fn taken(core: &ClientCore, path: &str) -> Error {
    let message = format!(
        "another has had this id for {:?}: choose another id, or wait longer",
        core.connect_timeout()
    );
    Error::new(ErrorKind::Taken, message).on(path)
}

/// A place in a [`Group`], which comes back by itself; dropped, it is left.
///
/// Dropping returns when the node's deletion is under way, within half a second.
///
/// A membership is lost with its session, or when somebody deletes its node. Unlike a
/// [`LockGuard`](crate::LockGuard) it is not over then: it is back as soon as it can be, in a new
/// session, or when whoever has taken the id has gone. What tells of that:
///
/// | | |
/// |---|---|
/// | [`is_member`](Membership::is_member) | how it is now |
/// | [`lost`](Membership::lost) | a handle to wait for the end of the present stay; once it is back, ask for another one |
/// | [`on_lost`](Membership::on_lost), [`on_rejoined`](Membership::on_rejoined) | are called each time |
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

    /// The id, under which others see it.
    pub fn id(&self) -> &str {
        path::last(&self.seat.node.path)
    }

    /// Whether others can see it, for all that is known here: false from the loss of its session or
    /// its node until it is back. Asks nobody.
    pub fn is_member(&self) -> bool {
        !self.seat.node.target.client.core().is_elsewhere()
            && self.seat.part.lock().hold.as_ref().is_some_and(Hold::is_held)
    }

    /// A handle by which any thread can wait for the loss of the present stay in the group; where it
    /// is lost just now, of the last one. It does not tell that the membership is back.
    pub fn lost(&self) -> Lost {
        self.seat.part.lock().lost.clone()
    }

    /// Calls `callback` each time that the membership is lost, also if it is back a moment later; at
    /// once if it is lost just now; never after it was left. What was registered here and by
    /// [`on_rejoined`](Membership::on_rejoined) is called in the order of what happened, one at a
    /// time, on a thread of its own, and may call this library.
    pub fn on_lost(&self, callback: impl FnMut(LossReason) + Send + 'static) {
        let callback: OnLost = Arc::new(Mutex::new(Box::new(callback)));
        let mut part = self.seat.part.lock();
        part.on_lost.push(Arc::clone(&callback));
        if let Some(why) = part.away {
            self.seat.tell(move || (callback.lock())(why));
        }
    }

    /// Calls `callback` each time that the membership is back after a loss: others can see it again.
    /// As [`on_lost`](Membership::on_lost).
    pub fn on_rejoined(&self, callback: impl FnMut() + Send + 'static) {
        self.seat.part.lock().on_rejoined.push(Arc::new(Mutex::new(Box::new(callback))));
    }

    /// Leaves as dropping does, but waits until the server has confirmed it.
    ///
    /// While the connection is lost it waits until the session is resumed or lost. Whoever has the
    /// id by then, because this membership had been lost, keeps it.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) if an ACL on the group's node does not allow to
    /// delete; [`Server`](ErrorKind::Server) if the server will not for another reason. It is then
    /// tried again in the background.
    pub fn leave(self) -> Result<()> {
        self.seat.leave(Deadline::NEVER)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let _ = self.seat.leave(Deadline::after(DROP_LIMIT));
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

/// How a member appears.
struct MemberNode {
    target: NodeConfig,
    path: String,
    /// The node as the server knows it.
    whole: String,
    data: Vec<u8>,
    /// For as long as a node may be there that this client has made.
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
    /// The present stay, until its loss is noticed.
    hold: Option<Hold>,
    /// Of the present stay, or of the last one.
    lost: Lost,
    /// Why that is over, if it is.
    away: Option<LossReason>,
    on_lost: Vec<OnLost>,
    on_rejoined: Vec<OnRejoined>,
    /// How the leaving has ended, as far as it was the thread's.
    left: Option<Result<()>>,
}

type OnLost = Arc<Mutex<Box<dyn FnMut(LossReason) + Send>>>;
type OnRejoined = Arc<Mutex<Box<dyn FnMut() + Send>>>;

/// How trying to stand has ended.
enum JoinOutcome {
    Standing(Hold),
    /// There was no time, and another's node was in the way.
    Taken,
    NotInTime,
}

impl MemberNode {
    /// Makes the node, as soon as nobody else has one of that name. `unsure` is a session in which
    /// it may have been made, and was not seen.
    fn settle(
        self: &Arc<Self>,
        watch_loop: &mut WatchLoop,
        until: Deadline,
        unsure: &mut Option<Arc<Session>>,
    ) -> Result<JoinOutcome> {
        let ask_until = worth_asking(until);
        loop {
            let Some(session) = watch_loop.session(ask_until)? else {
                return Ok(JoinOutcome::NotInTime);
            };
            let whole = self.whole.clone();
            match watch_loop.look(&session, ask_until, move |view| view.node(&whole))? {
                // By the claim, nobody else has made one in this session.
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
            match self.ask_for_node(watch_loop, &session, ask_until)? {
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

    /// `None` if there was no time for an answer, which only a limit can bring about: whoever leaves
    /// has to know whether there is a node.
    fn ask_for_node(
        self: &Arc<Self>,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        until: Deadline,
    ) -> Result<Option<Answer<Option<i64>>>> {
        if until.is_never() {
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

    /// The transaction that has made the node, where that is known.
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
        Hold::on_named(&self.target.client, session, group, id, czxid)
    }

    /// Deletes in the background what a request without an answer may have made.
    fn withdraw(&self, session: &Arc<Session>) {
        let (reaper, claim) = (self.target.client.core().reaper(), Arc::clone(&self.claim));
        reaper.disown(session, self.whole.clone(), move |session, _, stat| {
            // Until then, nobody else of this client makes one.
            let _ = &claim;
            stat.ephemeral_owner == session.id()
        });
    }

    /// As `withdraw`, and waits for it; with the session, the node ends.
    fn retract(&self, session: &Arc<Session>) -> Result<()> {
        let waiter = Waiter::new();
        let _subscription = session.status().subscribe(waiter.bell());
        loop {
            if session.status().until_usable(&waiter, Deadline::NEVER, || false) != Usable::Now {
                return Ok(());
            }
            match session.confirm(&self.whole) {
                Ok(Some(stat)) if stat.ephemeral_owner == session.id() => {
                    return leave(self.stand(Arc::clone(session), stat.czxid));
                }
                Ok(_) => return Ok(()),
                Err(Fault::ConnectionLoss | Fault::SessionEnded) => {}
                Err(fault) => {
                    let purpose =
                        Purpose { tried: "leave the group", needs: "READ on the group's node" };
                    return Err(self.target.refused(&fault, purpose));
                }
            }
        }
    }
}

/// What is lost already need not be left.
fn leave(hold: Hold) -> Result<()> {
    use ErrorKind::{AuthFailed, Closed, LockLost, SessionLost};
    hold.release().or_else(|error| match error.kind() {
        LockLost | SessionLost | Closed | AuthFailed => Ok(()),
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
    /// The life of the thread: whenever the node has gone, it is made again.
    fn keep(&self) {
        let mut watch_loop = WatchLoop::new(&self.node.target.client, Some(&self.leaving));
        let mut unsure = None;
        let left = loop {
            let lost = self.part.lock().lost.clone();
            // Else it was left.
            let Some(why) = lost.wait() else { break Ok(()) };
            self.is_lost(why);
            let Some(hold) = self.come_back(&mut watch_loop, &mut unsure) else {
                break unsure.map_or(Ok(()), |session| self.node.retract(&session));
            };
            unsure = None;
            if let Some(hold) = self.has_rejoined(hold) {
                break leave(hold);
            }
        };
        self.part.lock().left = Some(left);
        self.changed.notify_all();
    }

    /// `None` when it is left, or cannot come back.
    fn come_back(
        &self,
        watch_loop: &mut WatchLoop,
        unsure: &mut Option<Arc<Session>>,
    ) -> Option<Hold> {
        let group = self.node.target.node().unwrap_or_default();
        let mut complained = false;
        while !watch_loop.is_cancelled() {
            match self.node.settle(watch_loop, Deadline::NEVER, unsure) {
                Ok(JoinOutcome::Standing(hold)) => return Some(hold),
                Ok(JoinOutcome::Taken | JoinOutcome::NotInTime) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::AuthFailed) => {
                    logging::warning!(target: "zklock::group", "group {group}: cannot rejoin: {error}");
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

    /// Gives the hold back if the group is left by now.
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

    /// Has a callback run, unless the group is left before.
    fn tell(&self, callback: impl FnOnce() + Send + 'static) {
        let leaving = self.leaving.clone();
        self.callbacks.dispatch(move || {
            if !leaving.is_cancelled() {
                callback();
            }
        });
    }

    fn leave(&self, until: Deadline) -> Result<()> {
        self.node.target.client.core().check_process()?;
        self.leaving.cancel();
        let mut part = self.part.lock();
        if let Some(hold) = part.hold.take() {
            drop(part);
            if until.is_never() {
                return leave(hold);
            }
            hold.let_go(until);
            return Ok(());
        }
        // The thread may be making one.
        loop {
            if let Some(left) = &part.left {
                return left.clone();
            }
            if until.has_passed() {
                return Ok(());
            }
            match until.instant() {
                None => self.changed.wait(&mut part),
                Some(end) => drop(self.changed.wait_until(&mut part, end)),
            }
        }
    }
}
