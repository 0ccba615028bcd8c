//! A znode of the program's own, read and written on the locks' session.

use super::change_at_most_once::{FindOut, LostChange, change_at_most_once, unknown};
use super::create_options::CreateOptions;
use super::node_config::NodeConfig;
use super::version::{Version, Versioned, ZnodeStat};
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::session::Purpose;
use crate::session::{
    Answer, Call, Changes, Client, Created, Fault, NodeKind, Session, View, make_parents,
};

/// A handle of a znode, which need not exist, on the session of the client's locks.
/// [`Client::znode`] creates the value.
///
/// The value is cheap to create and to clone, and not tied to a session: after a loss it works on a
/// new one.
///
/// # Guarantees
///
/// - Every call ends within the client's [connect timeout](crate::ClientBuilder::connect_timeout),
///   whatever the network does.
/// - Reads are repeated after lost connections and sessions.
/// - No call takes effect twice. A change is repeated only if the first attempt has changed nothing
///   so far, and cannot do so after the repeated one: because of the version, or because the node
///   exists by then. (A node that is created so and deleted at once may be created again.)
/// - After [`ConnectionLoss`](ErrorKind::ConnectionLoss) a change may also be made
///   [later](crate::Error::may_have_taken_effect), until the session has ended: a `write` or `delete`
///   may then undo newer ones, also of this client. With a version it does not, as long as the node is
///   not deleted and created again.
///
/// # Errors
///
/// All methods share these errors:
///
/// | Kind | Meaning |
/// |---|---|
/// | [`InvalidName`](ErrorKind::InvalidName) | ZooKeeper does not allow such a path |
/// | [`Connect`](ErrorKind::Connect) | no server answered in time, and the call has changed nothing |
/// | [`ConnectionLoss`](ErrorKind::ConnectionLoss) | the reply to a change was lost: the change may have been made, or may still be |
/// | [`NotAuthorized`](ErrorKind::NotAuthorized) | an ACL forbids it; the message says which permission is missing |
/// | [`TooLarge`](ErrorKind::TooLarge) | the request is larger than the server allows; by default 1 MiB |
/// | [`QuotaExceeded`](ErrorKind::QuotaExceeded) | a quota on the path or above it is used up; nothing was changed |
/// | [`AuthFailed`](ErrorKind::AuthFailed), [`Closed`](ErrorKind::Closed), [`System`](ErrorKind::System), [`Server`](ErrorKind::Server) | retrying does not help |
///
/// ```no_run
/// use zklock::znode::CreateMode;
/// use zklock::Client;
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let config = zk.znode("/app/config");
/// config.create_with_parents(CreateMode::Persistent, "v1")?;
/// if let Some(old) = config.read()? {
///     match config.write_if_unchanged(old.version, "v2")? {
///         Some(version) => println!("version {} is ours", version.number),
///         None => println!("another client has changed it"),
///     }
/// }
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Znode {
    target: NodeConfig,
}

impl Client {
    /// Returns a handle of the znode at this absolute path, without a request.
    ///
    /// A path that ZooKeeper does not allow fails the first call that needs it, as
    /// [`InvalidName`](ErrorKind::InvalidName). What is below `/zookeeper` can be read, such as quotas, and
    /// only that.
    pub fn znode(&self, path: impl AsRef<str>) -> Znode {
        Znode { target: NodeConfig::at(self.clone(), path.as_ref()) }
    }

    /// Waits until what this client reads from now on includes everything that any client has done
    /// before this call.
    ///
    /// The client's server may lag behind the others, usually by milliseconds. This matters before
    /// reads of a [`Znode`]; the recipes ask the ensemble's leader where it does.
    ///
    /// # Errors
    ///
    /// As for [`Znode`](Znode#errors).
    pub fn sync(&self) -> Result<()> {
        SYNC.ask(self.core(), "/", |session| session.sync())
    }
}

const SYNC: Purpose = Purpose::to_read("catch up with the ensemble's leader", "nothing");

const READ: Purpose = Purpose::to_read("read the node", "READ on it");
const STAT: Purpose = Purpose::to_read("read the node's stat", "READ on it");
const LIST: Purpose = Purpose::to_read("list the node's children", "READ on it");
const READ_ACL: Purpose = Purpose::to_read("read the node's ACL", "READ or ADMIN on it");
const SET_ACL: Purpose = Purpose::to_change("set the node's ACL", "ADMIN on it");
pub(super) const WRITE: Purpose = Purpose::to_change("write the node", "WRITE on it");
pub(super) const CREATE: Purpose = Purpose::to_change("create the node", "CREATE on its parent");
pub(super) const DELETE: Purpose = Purpose::to_change("delete the node", "DELETE on its parent");

impl Znode {
    pub(crate) fn of(target: &NodeConfig) -> Znode {
        Znode { target: target.clone() }
    }

    /// Returns the path, without the client's chroot.
    pub fn path(&self) -> &str {
        self.target.path()
    }

    // ----- calls that read

    /// Asks about the node, which may be one of ZooKeeper's own.
    fn ask<T>(
        &self,
        purpose: Purpose,
        mut question: impl FnMut(&Session, &str) -> Answer<T>,
    ) -> Result<T> {
        path::check_readable(self.path())?;
        let core = self.target.client.core();
        let whole = core.whole(self.path());
        purpose.ask(core, self.path(), |session| question(session, &whole))
    }

    /// Reads the node's data; `None` if the node does not exist.
    ///
    /// It includes everything that this client has written in this session or has already seen;
    /// after [`Client::sync`](crate::Client::sync), every client's earlier writes, too.
    ///
    /// # Errors
    ///
    /// As for [`Znode`].
    pub fn read(&self) -> Result<Option<Versioned>> {
        self.ask(READ, read)
    }

    /// Reads the node's data, including every client's earlier writes.
    pub(crate) fn read_synced(&self) -> Result<Option<Versioned>> {
        self.target.ask(READ, |session, node| {
            session.sync()?;
            read(session, node)
        })
    }

    /// Reads what the server knows about the node besides its data; `None` if the node does not
    /// exist.
    ///
    /// # Errors
    ///
    /// As for [`Znode`].
    pub fn stat(&self) -> Result<Option<ZnodeStat>> {
        self.ask(STAT, |session, node| Ok(session.exists(node, false)?.map(ZnodeStat::new)))
    }

    /// Lists the names of the node's children, sorted; `None` if the node does not exist.
    ///
    /// # Errors
    ///
    /// As for [`Znode`].
    pub fn children(&self) -> Result<Option<Vec<String>>> {
        self.ask(LIST, |session, node| Ok(session.names(node, false)?.map(|names| names.sorted())))
    }

    /// Reads the node's ACL; `None` if the node does not exist.
    ///
    /// # Errors
    ///
    /// As for [`Znode`].
    pub fn acl(&self) -> Result<Option<Vec<Acl>>> {
        self.ask(READ_ACL, |session, node| session.acl(node))
    }

    /// Observes the node's data: first the present data, then the data after each change; `None`
    /// while the node does not exist.
    ///
    /// Of several changes in a row, only the last may be seen.
    pub fn observe(&self) -> Changes<Option<Versioned>> {
        self.target.observe(READ, |view: &mut View<'_>, node: &str| {
            let found = view.watch_node_or_making(node)?;
            Ok(found.map(|(data, stat)| Versioned::new(data, &stat)))
        })
    }

    /// Observes the names of the node's children, sorted: first the present ones, then those after
    /// each change; `None` while the node does not exist.
    pub fn observe_children(&self) -> Changes<Option<Vec<String>>> {
        self.target.observe(LIST, |view: &mut View<'_>, node: &str| {
            Ok(view.watch_names_or_making(node)?.map(|(names, _)| names.sorted()))
        })
    }

    // ----- calls that change something

    /// Creates the node, and returns it: a sequential one has its number in its
    /// [`path`](Znode::path).
    ///
    /// After a lost reply it is created again only if nothing was created or deleted below its
    /// parent since the call began. On a handle of the `zookeeper` crate, and for sequential nodes,
    /// a lost reply is always an error.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](ErrorKind::AlreadyExists); if a reply was lost before, the node may be created
    /// [later](crate::Error::may_have_taken_effect) all the same, once the one that exists is deleted.
    /// [`NotFound`](ErrorKind::NotFound) if the parent
    /// does not exist; [`InvalidArgument`](ErrorKind::InvalidArgument) for an ACL that the server
    /// does not accept; otherwise as for [`Znode`].
    pub fn create(
        &self,
        options: impl Into<CreateOptions>,
        data: impl Into<Vec<u8>>,
    ) -> Result<Znode> {
        self.create_as(&options.into(), data.into(), false).map(|made| self.made(&made))
    }

    /// Creates the node, and its missing parents as persistent nodes with the same ACL.
    ///
    /// # Errors
    ///
    /// As [`create`](Znode::create), except for `NotFound`.
    pub fn create_with_parents(
        &self,
        options: impl Into<CreateOptions>,
        data: impl Into<Vec<u8>>,
    ) -> Result<Znode> {
        self.create_as(&options.into(), data.into(), true).map(|made| self.made(&made))
    }

    /// Creates the node and its missing parents, and returns the version of its data.
    pub(crate) fn create_version(&self, how: &CreateOptions, data: Vec<u8>) -> Result<Version> {
        let made = self.create_as(how, data, true)?;
        match made.czxid {
            Some(czxid) => Ok(Version::first(czxid)),
            None => {
                let look = |session: &Session, node: &str| first_version(session, node, &made);
                // It was created: that must not be taken for a call without effect.
                self.target.ask(READ, look).map_err(|error| self.unknown().caused_by(error))
            }
        }
    }

    fn made(&self, made: &Created) -> Znode {
        self.target.client.znode(self.target.client.core().shown(&made.path))
    }

    fn create_as(&self, how: &CreateOptions, data: Vec<u8>, parents: bool) -> Result<Created> {
        let (kind, whole) = (how.kind(), self.target.whole()?);
        let mut call = self.call();
        let find_out = |session: &Session, seen| find_created(session, &whole, seen);
        // Each attempt would create a node with another number.
        let find_out = (!how.mode.is_sequential()).then_some(&find_out as FindOut<'_>);
        loop {
            let create =
                |session: &Session, node: &str| session.create(node, &data, &how.acl, kind);
            match self.change(&mut call, CREATE, find_out, create)? {
                // It has no time for the parents any more.
                Err(Fault::NoNode) if parents && call.is_over() => {
                    return Err(CREATE.unanswered(call.core(), false, self.path()));
                }
                Err(Fault::NoNode) if parents => {}
                made => return made.map_err(|fault| refused(&fault, CREATE, self.path())),
            }
            let make = |session: &Session, node: &str| {
                make_parents(session, path::parent(node), NodeKind::Persistent, &how.acl)
            };
            let not_made = |_: &Session, _| Ok(LostChange::NotMade);
            match self.change(&mut call, CREATE, Some(&not_made), make)? {
                // One of them was deleted meanwhile.
                Ok(()) | Err(Fault::NoNode) => {}
                Err(fault) => return Err(refused(&fault, CREATE, self.path())),
            }
        }
    }

    /// Replaces the node's data, whatever its version, and returns the new version.
    ///
    /// Not repeated after a lost reply.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the node does not exist; otherwise as for [`Znode`].
    pub fn write(&self, data: impl Into<Vec<u8>>) -> Result<Version> {
        let data = data.into();
        self.once(WRITE, |session, node| session.write_version(node, &data, None))
            .map(|stat| Version::of(&stat))
    }

    /// Replaces the node's data if it still has the given version, and returns the new version;
    /// `None` if it has another version, or if the node does not exist.
    ///
    /// If several clients write with the same version, exactly one succeeds. The server compares
    /// only the version's number, which starts from 0 again when the node is deleted and created
    /// again.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) if a reply was lost, and the data was changed
    /// or the node deleted since, by this call or by another client: the library could not tell.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for the version number −1, which comes after
    /// 2³² changes: the server takes it for any version. Otherwise as for [`Znode`].
    pub fn write_if_unchanged(
        &self,
        version: Version,
        data: impl Into<Vec<u8>>,
    ) -> Result<Option<Version>> {
        let number = version.checked().map_err(|error| error.on(self.path()))?;
        let (data, whole) = (data.into(), self.target.whole()?);
        let find_out =
            |session: &Session, seen| find_written(session, &whole, seen, version, &data);
        let write =
            |session: &Session, node: &str| session.write_version(node, &data, Some(number));
        match self.change(&mut self.call(), WRITE, Some(&find_out), write)? {
            Ok(stat) => Ok(Some(Version::of(&stat))),
            Err(Fault::BadVersion | Fault::NoNode) => Ok(None),
            Err(fault) => Err(refused(&fault, WRITE, self.path())),
        }
    }

    /// Deletes the node, whatever its version.
    ///
    /// Not repeated after a lost reply.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the node does not exist,
    /// [`NotEmpty`](ErrorKind::NotEmpty) if it has children; otherwise as for [`Znode`].
    pub fn delete(&self) -> Result<()> {
        self.once(DELETE, |session, node| session.delete(node))
    }

    /// Deletes the node if its data still has the given version; `false` if it has another version,
    /// or if the node does not exist.
    ///
    /// Not repeated after a lost reply.
    ///
    /// # Errors
    ///
    /// As [`delete`](Znode::delete), except for `NotFound`, and
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) as with
    /// [`write_if_unchanged`](Znode::write_if_unchanged).
    pub fn delete_if_unchanged(&self, version: Version) -> Result<bool> {
        let number = version.checked().map_err(|error| error.on(self.path()))?;
        let delete =
            |session: &Session, node: &str| match session.delete_version(node, Some(number)) {
                Ok(()) => Ok(true),
                Err(Fault::BadVersion | Fault::NoNode) => Ok(false),
                Err(fault) => Err(fault),
            };
        self.once(DELETE, delete)
    }

    /// Replaces the node's ACL.
    ///
    /// Not repeated after a lost reply.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the node does not exist,
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an ACL that the server does not accept;
    /// otherwise as for [`Znode`].
    pub fn set_acl(&self, acl: impl Into<Vec<Acl>>) -> Result<()> {
        let acl = acl.into();
        self.once(SET_ACL, |session, node| session.set_acl(node, &acl))
    }

    // ----- common parts

    /// A call that takes at most the connect timeout.
    fn call(&self) -> Call {
        let core = self.target.client.core();
        Call::strict(core, &core.connect_timeout().into())
    }

    /// Makes a change that must be sent at most once.
    fn once<T>(&self, purpose: Purpose, change: impl Fn(&Session, &str) -> Answer<T>) -> Result<T> {
        self.change(&mut self.call(), purpose, None, change)?
            .map_err(|fault| refused(&fault, purpose, self.path()))
    }

    fn change<T>(
        &self,
        call: &mut Call,
        purpose: Purpose,
        find_out: Option<FindOut<'_>>,
        change: impl Fn(&Session, &str) -> Answer<T>,
    ) -> Result<Answer<T>> {
        let whole = self.target.whole()?;
        let change = |session: &Session| change(session, &whole);
        change_at_most_once(call, self.path(), purpose, find_out, change)
    }

    fn unknown(&self) -> Error {
        unknown(self.path())
    }
}

/// The error for a request that the server refuses.
pub(super) fn refused(fault: &Fault, purpose: Purpose, path: &str) -> Error {
    let kind = match fault {
        Fault::NoNode if purpose.tried() == CREATE.tried() => {
            let message = "could not create the node: its parent does not exist";
            return Error::new(ErrorKind::NotFound, message).on(path);
        }
        Fault::NoNode => ErrorKind::NotFound,
        Fault::NodeExists => ErrorKind::AlreadyExists,
        Fault::NotEmpty => ErrorKind::NotEmpty,
        Fault::BadVersion => ErrorKind::VersionMismatch,
        _ => return purpose.refused(fault, path),
    };
    Error::new(kind, format!("could not {}: {fault}", purpose.tried())).on(path)
}

/// Whether a lost request has created the node: every creation and deletion of a child shows in the
/// parent's stat, with its zxid.
fn find_created(session: &Session, whole: &str, seen: i64) -> Answer<LostChange> {
    match session.confirm(whole)? {
        Some(stat) if stat.czxid <= seen => return Ok(LostChange::Refused(Fault::NodeExists)),
        Some(_) => return Ok(LostChange::Unknown),
        None => {}
    }
    let parent = session.exists(path::parent(whole), false)?;
    let is_unchanged = parent.is_some_and(|parent| parent.children_zxid <= seen);
    Ok(if is_unchanged { LostChange::NotMade } else { LostChange::Unknown })
}

/// Whether a lost request has replaced data of this version.
fn find_written(
    session: &Session,
    whole: &str,
    seen: i64,
    version: Version,
    data: &[u8],
) -> Answer<LostChange> {
    session.sync()?;
    let Some((now, stat)) = session.data(whole, false)? else { return Ok(LostChange::Unknown) };
    let found = Version::of(&stat);
    // The server compares only the number, so a node of another life counts, too.
    let is_unchanged = stat.mzxid <= seen && found.number == version.number;
    // The node is the same, and another client has made the only change.
    let is_another = found == version.next() && now != data;
    Ok(if found == version || is_unchanged {
        LostChange::NotMade
    } else if is_another || stat.mzxid <= seen {
        LostChange::Refused(Fault::BadVersion)
    } else {
        LostChange::Unknown
    })
}

/// The version of the first data of a node that was created.
pub(super) fn first_version(session: &Session, node: &str, made: &Created) -> Answer<Version> {
    let czxid = match made.czxid {
        Some(czxid) => czxid,
        // A program's own handle does not tell.
        None => session.confirm(node)?.map_or(0, |stat| stat.czxid),
    };
    Ok(Version::first(czxid))
}

fn read(session: &Session, node: &str) -> Answer<Option<Versioned>> {
    Ok(session.data(node, false)?.map(|(data, stat)| Versioned::new(data, &stat)))
}

/// Creates the node; with `parents`, also its missing parents, with that ACL.
pub(super) fn create(
    session: &Session,
    node: &str,
    data: &[u8],
    acl: &[Acl],
    kind: NodeKind,
    parents: Option<&[Acl]>,
) -> Answer<Created> {
    match (session.create(node, data, acl, kind), parents) {
        (Err(Fault::NoNode), Some(above)) => {
            make_parents(session, path::parent(node), NodeKind::Persistent, above)?;
            session.create(node, data, acl, kind)
        }
        (made, _) => made,
    }
}
