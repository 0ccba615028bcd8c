//! Group membership: the members, how to join, and how to observe them.

mod member_node;
mod rejoining_membership;

pub use rejoining_membership::Membership;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use crate::contend::{HIDDEN, created_at};
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::recipes::data::{Generation, NodeConfig, placed};
use crate::rt::{self, Mutex};
use crate::session::Purpose;
use crate::session::{
    Answer, Call, Changes, ClaimedName, ClientCore, Fault, Names, Session, StillMeant, Stop, View,
    Wait, WatchLoop, cancelled,
};
use crate::session_id::SessionId;
use crate::wire_values::Stat;
use member_node::{JOIN, MemberNode};

/// A group of programs that can all see which of them are alive.
///
/// Each member has an ephemeral node, named by its id, below `base/name`, as with Curator's
/// `GroupMember`. The node of a member that dies is deleted at the end of its session. The value is
/// cheap to make and to clone, and not tied to a session.
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

/// A member of a [`Group`], as the group lists it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its id: the name of its node.
    pub id: String,
    /// What it says about itself; empty if an ACL hides it, or if it is too large for this client.
    pub data: Vec<u8>,
    /// The id of the session that owns its node; `None` if the node is not ephemeral, or if an ACL
    /// hides it.
    pub session: Option<SessionId>,
    /// When it joined in its present session, by the ensemble's clock; `None` if an ACL hides that. Since
    /// ZooKeeper 3.7.3, 3.8.4 and 3.9.2, an ACL that hides the data does.
    pub since: Option<SystemTime>,
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

const LOOK: Purpose = Purpose::to_read("list the group's members", "READ on its node");

placed!(Group, "Returns a handle of the group at the node `base/name`");

impl Group {
    /// Joins the group under `id`, with data that describe the member.
    ///
    /// The id is one component of a path. When the call returns, others can see the member. From
    /// then on it rejoins by itself: after its session is lost, as soon as a new one can be opened;
    /// after another client deletes its node, as soon as the id is free. If the system has no
    /// thread for that, it waits for the next change of the session, or the next call.
    ///
    /// If the id is in use, by the session of a killed process, say, or another membership of this
    /// client, the call waits for that to end, at most the [connect
    /// timeout](crate::ClientBuilder::connect_timeout), which should therefore be longer than the
    /// session timeout.
    ///
    /// # Errors
    ///
    /// [`Taken`](ErrorKind::Taken) if the id was in use all that time;
    /// [`InvalidName`](ErrorKind::InvalidName) for an id that cannot be a node's name; otherwise as
    /// for [`Znode`](crate::Znode#errors).
    pub fn join(&self, id: impl AsRef<str>, data: impl Into<Vec<u8>>) -> Result<Membership> {
        self.join_within(id, data, self.target.client.core().connect_timeout())
    }

    /// Joins as [`join`](Group::join) does, waiting at most `wait` instead of the connect timeout.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled); otherwise as [`join`](Group::join).
    pub fn join_within(
        &self,
        id: impl AsRef<str>,
        data: impl Into<Vec<u8>>,
        wait: impl Into<Wait>,
    ) -> Result<Membership> {
        let path = path::lock_path(self.target.node()?, id.as_ref())?;
        let (core, wait, begin) = (self.target.client.core(), wait.into(), rt::now());
        let whole = core.whole(&path);
        let refuse = |path: &str| Err(taken(rt::now().saturating_duration_since(begin), path));
        let mut watch_loop = WatchLoop::new(self.target.call(&wait));
        let Some(claim) = claim(&whole, &watch_loop.call) else {
            return if wait.is_cancelled() { Err(cancelled(&path)) } else { refuse(&path) };
        };
        watch_loop.call.allow_grace();
        let (target, claim) = (self.target.clone(), Arc::new(claim));
        let node = Arc::new(MemberNode {
            target,
            path,
            whole,
            data: data.into(),
            claim,
            meant: StillMeant::default(),
        });
        let mut unsure = None;
        let joined = node.join(&mut watch_loop, &mut unsure);
        let was_asked = unsure.is_some();
        if let Some(session) = unsure.filter(|_| !matches!(joined, Ok(Some(_)))) {
            node.withdraw(&session);
        }
        match joined {
            Ok(Some(hold)) => Ok(Membership::start(node, hold)),
            Ok(None) => refuse(&node.path),
            // If the node was created, it is being deleted.
            Err(Stop::TimeOver) => Err(JOIN.unanswered(core, was_asked, &node.path)),
            Err(Stop::Cancelled) => Err(cancelled(&node.path)),
            Err(stop) => Err(JOIN.stopped(stop, &watch_loop.call, &node.path)),
        }
    }

    /// Lists the members, sorted by id, including all whose [`join`](Group::join) has returned
    /// before this call.
    ///
    /// Asks the ensemble's leader first. Takes two requests, and one more for each member, a
    /// hundred of them in one round trip. A member whose node an ACL hides is listed without its
    /// data; the first time, the log says so.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without READ on the group's node; otherwise as
    /// for [`Znode`](crate::Znode#errors).
    pub fn members(&self) -> Result<Vec<Member>> {
        let core = Arc::downgrade(self.target.client.core());
        self.target.ask(LOOK, |session, node| {
            session.sync()?;
            let ids = session.names(node, false)?.unwrap_or_default();
            members(&core, session, node, &ids)
        })
    }

    /// Observes the members: first the present ones, then those after each change.
    ///
    /// The first look costs what [`members`](Group::members) costs; each change one request, and
    /// one for each new member. All are read again if a member has left and joined again between
    /// two looks, and always over a handle of the `zookeeper` crate. Later changes of a member's
    /// data are not reported.
    pub fn observe(&self) -> Changes<Vec<Member>> {
        let core = Arc::downgrade(self.target.client.core());
        let known = Mutex::<Option<KnownMembers>>::default();
        // Over a program's handle, the list and the stat may be of different moments.
        let is_handle = self.target.client.core().handle().is_some();
        self.target.observe(LOOK, move |view: &mut View<'_>, node: &str| {
            let Some((ids, group)) = view.watch_names_or_making(node)? else {
                *known.lock() = None;
                return Ok(Vec::new());
            };
            let now = Generation::of(&group);
            let before = known.lock().take().filter(|_| !is_handle);
            let mut members =
                before.and_then(|known| known.still_there(&ids, now)).unwrap_or_default();
            let is_new =
                |id: &&str| members.binary_search_by(|member| member.id.as_str().cmp(id)).is_err();
            let joined: Names = ids.iter().filter(is_new).collect();
            members.extend(self::members(&core, view.session, node, &joined)?);
            members.sort_by(|a, b| a.id.cmp(&b.id));
            *known.lock() = Some(KnownMembers { generation: now, members: members.clone() });
            Ok(members)
        })
    }
}

/// The members that an observer has seen last.
struct KnownMembers {
    generation: Generation,
    /// Sorted by id.
    members: Vec<Member>,
}

impl KnownMembers {
    /// Those that are among these ids; `None` if one of them may have left and joined again since.
    fn still_there(mut self, ids: &Names, now: Generation) -> Option<Vec<Member>> {
        let ids: BTreeSet<&str> = ids.iter().collect();
        self.members.retain(|member| ids.contains(&*member.id));
        let joined = ids.len() - self.members.len();
        now.is_later_by(joined, self.generation).then_some(self.members)
    }
}

fn members(
    core: &Weak<ClientCore>,
    session: &Session,
    node: &str,
    ids: &Names,
) -> Answer<Vec<Member>> {
    let mut found = Vec::with_capacity(ids.len());
    let paths: Vec<String> = ids.iter().map(|id| path::join(node, id)).collect();
    let on_hidden = |path: &str| {
        if let Some(core) = core.upgrade() {
            let hidden = "an ACL hides the data: the member is listed without them";
            core.warn_once(path, || Some(hidden.to_owned()));
        }
    };
    for (id, read) in ids.iter().zip(session.read_each_noting(&paths, on_hidden)) {
        let read = match read {
            // The ACL hides its stat, too.
            Err(Fault::NoAuth) => {
                Some((Vec::new(), Stat { ephemeral_owner: HIDDEN, ..Stat::default() }))
            }
            read => read?,
        };
        // A member that has gone meanwhile is not listed.
        if let Some((data, stat)) = read {
            found.push(Member {
                id: id.to_owned(),
                data,
                session: SessionId::of_owner(stat.ephemeral_owner),
                since: created_at(&stat),
            });
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

/// Reserves the name among the calls of one client, waiting until then if another call has it.
fn claim(whole: &str, call: &Call) -> Option<ClaimedName> {
    let _subscription = call.core().changes().subscribe(call.bell());
    let mut claim = None;
    call.has_come(call.until(), || {
        claim = call.core().claim(whole);
        claim.is_some()
    });
    claim
}

fn taken(waited: Duration, path: &str) -> Error {
    let message = format!("the id was in use for {waited:.1?}: choose another id, or wait longer");
    Error::new(ErrorKind::Taken, message).on(path)
}
