//! Who is there.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use super::changes::Changes;
use super::place::{Aim, Place, Wait, placed};
use crate::contend::hold::PARTING;
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::rt::{self, Condvar, Deadline, Mutex};
use crate::session::follow::{Follower, View, worth_asking};
use crate::session::make::make_parents;
use crate::session::session::Session;
use crate::session::status::Usable;
use crate::session::store::{Answer, Fault, Kind};
use crate::session::wake::{Cancel, Waiter};

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
    place: Place,
}

/// One of a [`Group`].
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its id, which is its node's name.
    pub id: String,
    /// What it says of itself.
    pub data: Vec<u8>,
    /// The id of its session, as servers name it in their logs (in hexadecimal). 0 is a node of no
    /// session, which nobody will clean up.
    pub session: i64,
    /// Since when it has been there in this session, by the ensemble's clock.
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

const JOIN: Aim = Aim { tried: "join the group", needs: "CREATE on the group's node, and READ" };
const LOOK: Aim = Aim { tried: "look who is in the group", needs: "READ on it and its members" };

placed!(Group, GroupBuilder, "The group at the node `base/name`");

impl Group {
    /// Joins under an id, which is one component of a path, with something to say of itself.
    ///
    /// When it returns, others can see the member. From then on it comes back by itself: when its
    /// session is lost, as soon as a new one can be had; and when somebody deletes its node. A thread
    /// of this library, `zklock-member`, sees to that, and ends with the membership.
    ///
    /// Where another session has the id, such as that of an earlier run of this program that was
    /// killed, it waits for that to end, up to the
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
        let path = path::lock_path(self.place.node()?, id.as_ref())?;
        let core = self.place.client.core();
        let until = Deadline::after(core.connect_timeout());
        let (whole, data) = (core.whole(&path), data.into());
        let (leaving, part) = (Cancel::new(), Mutex::default());
        let place = self.place.clone();
        let seat =
            Arc::new(Seat { place, path, whole, data, leaving, part, changed: Condvar::new() });
        match seat.settle(&mut self.place.follower(Wait::FOREVER), until)? {
            Settled::Standing(session) => seat.part.lock().standing = Arc::downgrade(&session),
            Settled::Taken => {
                let message = format!(
                    "another session has had this id for {:?}: choose another id, or wait longer",
                    core.connect_timeout()
                );
                return Err(Error::new(ErrorKind::Taken, message).on(&seat.path));
            }
            Settled::NotInTime => return Err(self.place.refused(&Fault::ConnectionLoss, JOIN)),
        }
        let keeper = Arc::clone(&seat);
        match rt::spawn("zklock-member", move || keeper.keep()) {
            Ok(()) => Ok(Membership { seat }),
            Err(error) => {
                let standing = seat.part.lock().standing.upgrade();
                standing.iter().for_each(|session| seat.withdraw(session));
                Err(error)
            }
        }
    }

    /// Who is there, by id, as this client's server knows it. Takes one request, and one more for
    /// each member.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without READ on the group's node and each
    /// member's; [`Connect`](ErrorKind::Connect) or [`ConnectionLoss`](ErrorKind::ConnectionLoss)
    /// when the ensemble does not answer within the
    /// [connect time-out](crate::ClientBuilder::connect_timeout); what waiting cannot mend else.
    pub fn members(&self) -> Result<Vec<Member>> {
        self.place.ask(LOOK, |session, node| {
            let ids = session.children(node, false)?.unwrap_or_default();
            members(session, node, &ids)
        })
    }

    /// Who is there, whenever that changes, and at first as it is. Who comes or goes costs each
    /// observer what [`members`](Group::members) does.
    pub fn observe(&self) -> Changes<Vec<Member>> {
        Changes::new(&self.place, LOOK, |view: &mut View<'_>, node: &str| {
            let ids = view.list_or_making(node)?.unwrap_or_default();
            members(view, node, &ids)
        })
    }
}

fn members(session: &Session, node: &str, ids: &[String]) -> Answer<Vec<Member>> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        // Whoever has gone meanwhile is not there.
        if let Some((data, stat)) = session.data(&path::join(node, id), false)? {
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

/// A place in a [`Group`], which comes back by itself; dropped, it is left.
///
/// Dropping returns when the node's deletion is under way, within half a second.
#[must_use = "if unused the group is left immediately"]
#[clippy::has_significant_drop]
pub struct Membership {
    seat: Arc<Seat>,
}

impl Membership {
    /// The member's node, as the client names it.
    pub fn path(&self) -> &str {
        &self.seat.path
    }

    /// The id, under which others see it.
    pub fn id(&self) -> &str {
        path::last(&self.seat.path)
    }

    /// Whether others can see it, for all that is known here: false from the end of a session until
    /// it is back in the next one. Asks nobody.
    pub fn is_member(&self) -> bool {
        let standing = self.seat.part.lock().standing.upgrade();
        standing
            .is_some_and(|session| session.status().now().ended.is_none() && session.is_trusted())
    }

    /// Leaves as dropping does, but waits until the server has confirmed it.
    ///
    /// While the connection is lost it waits until the session is resumed or lost.
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
        let _ = self.seat.leave(Deadline::after(PARTING));
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

/// What a membership and its thread share.
struct Seat {
    place: Place,
    path: String,
    /// The node as the server knows it.
    whole: String,
    data: Vec<u8>,
    leaving: Cancel,
    part: Mutex<Part>,
    changed: Condvar,
}

#[derive(Default)]
struct Part {
    /// In which session the node was seen last, or may be.
    standing: Weak<Session>,
    /// How the leaving has ended.
    left: Option<Result<()>>,
}

/// How trying to stand has ended.
enum Settled {
    /// The node is there, of this session's, and watched.
    Standing(Arc<Session>),
    /// There was no time, and another session's node was in the way.
    Taken,
    NotInTime,
}

impl Seat {
    /// Makes the node, as soon as nobody else has one of that name.
    fn settle(self: &Arc<Self>, follower: &mut Follower, until: Deadline) -> Result<Settled> {
        let mut unsure = None;
        let settled = self.try_to_settle(follower, until, &mut unsure);
        if !matches!(settled, Ok(Settled::Standing(_)))
            && let Some(session) = unsure
        {
            self.withdraw(&session);
        }
        settled
    }

    /// `unsure` is a session in which the node may have been made, and was not seen.
    fn try_to_settle(
        self: &Arc<Self>,
        follower: &mut Follower,
        until: Deadline,
        unsure: &mut Option<Arc<Session>>,
    ) -> Result<Settled> {
        let ask_until = worth_asking(until);
        loop {
            let Some(session) = follower.session(ask_until)? else { return Ok(Settled::NotInTime) };
            let whole = self.whole.clone();
            let found = follower.look(&session, ask_until, move |view| view.node(&whole))?;
            match found {
                // One that this client has for somebody else is another's.
                Some(Ok(Some((_, stat))))
                    if stat.ephemeral_owner == session.id() && self.may_stand(&session, unsure) =>
                {
                    return Ok(Settled::Standing(session));
                }
                Some(Ok(Some(_))) => {
                    if !follower.changed(until)? {
                        return Ok(Settled::Taken);
                    }
                    continue;
                }
                Some(Ok(None)) => {}
                Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => continue,
                Some(Err(fault)) => return Err(self.place.refused(&fault, JOIN)),
                None => return Ok(Settled::NotInTime),
            }
            let (seat, owner, late) = (Arc::clone(self), Arc::clone(&session), Arc::clone(self));
            let make = move |session: &Session| seat.make(session);
            let made = follower.ask(&session, ask_until, make, move |made| match made {
                Ok(()) | Err(Fault::ConnectionLoss) => late.withdraw(&owner),
                Err(_) => {}
            })?;
            match made {
                None => return Ok(Settled::NotInTime),
                Some(Err(Fault::NodeExists | Fault::NoNode | Fault::SessionEnded)) => {}
                Some(Ok(()) | Err(Fault::ConnectionLoss)) => *unsure = Some(session),
                Some(Err(fault)) => return Err(self.place.refused(&fault, JOIN)),
            }
        }
    }

    /// Whether this seat has asked for a node in this session.
    fn may_stand(&self, session: &Arc<Session>, unsure: &Option<Arc<Session>>) -> bool {
        unsure.as_ref().is_some_and(|one| Arc::ptr_eq(one, session))
            || self.part.lock().standing.ptr_eq(&Arc::downgrade(session))
    }

    fn make(&self, session: &Session) -> Answer<()> {
        let create = || session.create(&self.whole, &self.data, &self.place.acl, Kind::Named);
        match create() {
            Err(Fault::NoNode) => {
                let group = path::parent(&self.whole);
                make_parents(session, group, Kind::Container, &self.place.acl)?;
                create().map(drop)
            }
            made => made.map(drop),
        }
    }

    /// The life of the thread: whenever the node has gone, it is made again.
    fn keep(self: &Arc<Self>) {
        let mut follower = Follower::new(&self.place.client, Some(&self.leaving));
        let mut complained = false;
        let error = loop {
            match self.settle(&mut follower, Deadline::NEVER) {
                Ok(Settled::Standing(session)) => {
                    complained = false;
                    self.part.lock().standing = Arc::downgrade(&session);
                    drop(session);
                    if !matches!(follower.changed(Deadline::NEVER), Ok(true)) {
                        break None;
                    }
                }
                Ok(Settled::Taken | Settled::NotInTime) => break None,
                Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::AuthFailed) => {
                    break Some(error);
                }
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        log::warn!(target: "zklock::group", "out of the group for now: {error}");
                    }
                    follower.rest(Deadline::after(REST));
                }
            }
            if follower.is_cancelled() {
                break None;
            }
        };
        drop(follower);
        if let Some(error) = error {
            log::warn!(target: "zklock::group", "out of the group for good: {error}");
        }
        self.go();
    }

    /// Has the thread end, and waits for it until then.
    fn leave(&self, until: Deadline) -> Result<()> {
        self.leaving.cancel();
        let mut part = self.part.lock();
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

    /// Deletes the node, if it is there.
    fn go(&self) {
        let standing = self.part.lock().standing.upgrade();
        let left = standing.map_or(Ok(()), |session| self.delete(&session));
        self.part.lock().left = Some(left);
        self.changed.notify_all();
    }

    /// However often it must be asked over lost connections; with the session, the node ends.
    fn delete(&self, session: &Arc<Session>) -> Result<()> {
        let waiter = Waiter::new();
        let _subscription = session.status().subscribe(waiter.bell());
        loop {
            if session.status().until_usable(&waiter, Deadline::NEVER, || false) != Usable::Now {
                return Ok(());
            }
            match session.delete(&self.whole) {
                Ok(()) | Err(Fault::NoNode | Fault::SessionEnded) => return Ok(()),
                Err(Fault::ConnectionLoss) => {}
                Err(fault) => {
                    let core = self.place.client.core();
                    core.reaper().insist(session, self.whole.clone());
                    let aim = Aim { tried: "leave the group", needs: "DELETE on its node" };
                    return Err(self.place.refused(&fault, aim));
                }
            }
        }
    }

    /// Deletes in the background what a request that nobody waits for may have made.
    fn withdraw(&self, session: &Arc<Session>) {
        let reaper = self.place.client.core().reaper();
        reaper.disown(session, self.whole.clone(), |session, _, stat| {
            stat.ephemeral_owner == session.id()
        });
    }
}
