//! The one file that names the `zookeeper` crate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ThreadId, current};
use std::time::Duration;

use zookeeper::{
    CreateMode, Permission, Subscription, WatchedEvent, WatcherType, ZkError, ZkResult, ZkState,
};

pub(crate) use zookeeper::ZooKeeper;

use super::store::{Answer, Fault, Kind, Names, Stat, or_none};
use crate::acl::{Acl, Permissions};
use crate::error::{Error, ErrorKind, Result};
use crate::link::Link;
use crate::link::loopback::Door;
use crate::rt::{self, Mutex};

/// A handle of the crate: one connected to nothing but its link, or one that belongs to the
/// program, and is shared with it.
pub(crate) struct Handle {
    /// `None` only while it is being dropped.
    inner: Option<Arc<ZooKeeper>>,
}

/// What the crate says of the connection of a handle that is not on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A server serves the session.
    Connected,
    /// None does.
    Lost,
    /// The session has expired; the handle is about to take another one.
    Expired,
    /// The handle was closed, or has closed itself, and stays so.
    Closed,
    AuthFailed,
}

/// Ends with [`Handle::unlisten`].
pub(crate) struct Listening(Subscription);

impl Handle {
    /// Makes a handle and has the link serve it, unless `give_up` says so first. It is told of
    /// no watch that fires: the link tells of them.
    pub(crate) fn open(link: &Link, give_up: impl Fn() -> bool) -> Result<Handle> {
        Parked::retry();
        let system = |what: &str, cause: std::io::Error| {
            Error::new(ErrorKind::System, format!("{what}: {cause}")).caused_by(cause)
        };
        let mut door =
            Door::open().map_err(|cause| system("could not open a loopback port", cause))?;
        let address =
            door.address().map_err(|cause| system("could not name the loopback port", cause))?;
        let nonce = door.nonce();
        // The crate panics where the system refuses it a socket.
        let made = AssertUnwindSafe(|| ZooKeeper::connect(&address.to_string(), nonce, |_| {}));
        let inner = match catch_unwind(made) {
            Ok(Ok(inner)) => inner,
            Ok(Err(cause)) => {
                return Err(Error::new(ErrorKind::System, "could not start a ZooKeeper handle")
                    .caused_by(cause));
            }
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::System,
                    "could not start a ZooKeeper handle: out of sockets or threads",
                ));
            }
        };
        match door.admit(give_up) {
            Ok(stream) => {
                link.serve(stream);
                Ok(Handle { inner: Some(Arc::new(inner)) })
            }
            Err(cause) => {
                Parked { inner, door: Some(door) }.put_away();
                Err(system("the loopback port does not work", cause))
            }
        }
    }

    /// Tries again to close handles that no thread could be had for.
    pub(crate) fn retry() {
        Parked::retry();
    }

    fn call<T>(&self, call: impl FnOnce(&ZooKeeper) -> ZkResult<T>) -> Answer<T> {
        let Some(inner) = &self.inner else { return Err(Fault::SessionEnded) };
        match catch_unwind(AssertUnwindSafe(|| call(inner))) {
            Ok(result) => result.map_err(fault),
            // Its decoder trusts what the link has checked; this is not to be reached.
            Err(_) => Err(Fault::ConnectionLoss),
        }
    }

    pub(crate) fn create(
        &self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        kind: Kind,
    ) -> Answer<String> {
        let mode = match kind {
            Kind::Persistent => CreateMode::Persistent,
            Kind::Container => CreateMode::Container,
            Kind::Ephemeral | Kind::Named => CreateMode::Ephemeral,
            Kind::PersistentSequential => CreateMode::PersistentSequential,
            Kind::EphemeralSequential => CreateMode::EphemeralSequential,
        };
        let acl: Vec<_> = acl.iter().map(of_crate).collect();
        self.call(|zk| zk.create(path, data.to_vec(), acl, mode))
    }

    pub(crate) fn delete(&self, path: &str) -> Answer<()> {
        self.call(|zk| zk.delete(path, None))
    }

    pub(crate) fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<()> {
        self.call(|zk| zk.set_data(path, data.to_vec(), version)).map(drop)
    }

    pub(crate) fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        let read = self.call(|zk| zk.get_data(path, watch));
        or_none(read.map(|(data, stat)| (data, stat_of(&stat))))
    }

    pub(crate) fn exists(&self, path: &str, watch: bool) -> Answer<Option<Stat>> {
        self.call(|zk| zk.exists(path, watch)).map(|stat| stat.as_ref().map(stat_of))
    }

    pub(crate) fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        or_none(self.call(|zk| zk.get_children(path, watch)).map(Arc::new))
    }
}

/// For handles that belong to the program.
impl Handle {
    pub(crate) fn shared(inner: Arc<ZooKeeper>) -> Handle {
        Handle { inner: Some(inner) }
    }

    /// No two that live have the same.
    pub(crate) fn address(&self) -> Option<usize> {
        self.inner.as_ref().map(|inner| Arc::as_ptr(inner).addr())
    }

    /// Whether the program has let go of it: it is kept for nobody but us.
    pub(crate) fn is_orphan(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| Arc::strong_count(inner) == 1)
    }

    /// As `read`, with a watch of its own: the default watcher belongs to the program. It is kept
    /// by the crate when there is no such node, too.
    pub(crate) fn read_with(
        &self,
        path: &str,
        watch: impl Fn() + Send + 'static,
    ) -> Answer<(Vec<u8>, Stat)> {
        let read = self.call(|zk| zk.get_data_w(path, move |_: WatchedEvent| watch()));
        read.map(|(data, stat)| (data, stat_of(&stat)))
    }

    /// As `children`, with a watch of its own.
    pub(crate) fn children_with(
        &self,
        path: &str,
        watch: impl Fn() + Send + 'static,
    ) -> Answer<Names> {
        self.call(|zk| zk.get_children_w(path, move |_: WatchedEvent| watch())).map(Arc::new)
    }

    /// Has the crate forget the watches by `read_with` on a node that is gone: nothing else would
    /// ever make it. Asked for those on children, of which there are none, it drops all others.
    pub(crate) fn forget(&self, path: &str) -> Answer<()> {
        self.call(|zk| zk.remove_watches(path, WatcherType::Children))
    }

    /// Tells of every change of the connection, on the crate's own thread, under its lock.
    pub(crate) fn listen(&self, tell: impl Fn(Line) + Send + 'static) -> Option<Listening> {
        let told = move |state| {
            #[expect(deprecated, reason = "the crate still says so when a session has expired")]
            let line = match state {
                ZkState::Connected => Line::Connected,
                ZkState::NotConnected => Line::Expired,
                ZkState::Closed => Line::Closed,
                ZkState::AuthFailed => Line::AuthFailed,
                ZkState::Connecting | ZkState::ConnectedReadOnly | ZkState::Associating => {
                    Line::Lost
                }
            };
            // A panic would end the handle.
            let _ = catch_unwind(AssertUnwindSafe(|| tell(line)));
        };
        // It panics where another's listener has.
        let inner = self.inner.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| inner.add_listener(told))).ok().map(Listening)
    }

    pub(crate) fn unlisten(&self, listening: Listening) {
        if let Some(inner) = &self.inner {
            let _ = catch_unwind(AssertUnwindSafe(|| inner.remove_listener(listening.0)));
        }
    }

    /// Whether nothing in the handle takes requests any more, for good: what is then offered to
    /// it is dropped by the thread that offers it.
    pub(crate) fn is_dead(&self, path: &str) -> bool {
        let refused = Arc::new(AtomicBool::new(false));
        let offer = Offer { by: current().id(), refused: Arc::clone(&refused) };
        let _ = self.call(|zk| {
            zk.exists_w(path, move |_: WatchedEvent| {
                let _ = &offer;
            })
        });
        refused.load(Ordering::SeqCst)
    }
}

struct Offer {
    by: ThreadId,
    refused: Arc<AtomicBool>,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.refused.fetch_or(current().id() == self.by, Ordering::SeqCst);
    }
}

impl Drop for Handle {
    /// The link answers the crate's goodbye at once; even so nobody is made to wait for it, nor
    /// for a server's where there is no link.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take().and_then(Arc::into_inner) {
            Parked { inner, door: None }.put_away();
        }
    }
}

/// A handle to be closed, and the port that it may still be trying to reach.
struct Parked {
    inner: ZooKeeper,
    door: Option<Door>,
}

/// Those for which no thread could be had yet.
static PARKED: Mutex<Vec<Parked>> = Mutex::new(Vec::new());

impl Parked {
    fn put_away(self) {
        PARKED.lock().push(self);
        Parked::retry();
    }

    fn retry() {
        let waiting = PARKED.lock().len();
        for _ in 0..waiting {
            let started = rt::spawn("zklock-drop", || {
                let parked = PARKED.lock().pop();
                if let Some(parked) = parked {
                    parked.close();
                }
            });
            if started.is_err() {
                return;
            }
        }
    }

    fn close(self) {
        let Some(door) = self.door else { return drop(self.inner) };
        let (inner, closed) = (Mutex::new(Some(self.inner)), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let closing = || {
                let _closed = OnDrop(|| closed.store(true, Ordering::Release));
                let Some(inner) = inner.lock().take() else { return };
                // A goodbye is lost with a connection that is lost; an IO thread that has
                // died answers none.
                for _ in 0..50 {
                    if inner.close().is_ok() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            };
            let thread = || std::thread::Builder::new().name("zklock-drop".to_owned());
            // Without a thread for it, the handle at least finds its port open.
            while thread().spawn_scoped(scope, closing).is_err() {
                std::thread::sleep(Duration::from_millis(100));
            }
            door.dismiss(|| closed.load(Ordering::Acquire));
        });
    }
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

fn stat_of(stat: &zookeeper::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        ctime: stat.ctime,
        version: stat.version,
        child_changes: stat.cversion,
        children: stat.num_children,
        children_zxid: stat.pzxid,
        ephemeral_owner: stat.ephemeral_owner,
    }
}

fn of_crate(acl: &Acl) -> zookeeper::Acl {
    let known = [
        (Permissions::READ, Permission::READ),
        (Permissions::WRITE, Permission::WRITE),
        (Permissions::CREATE, Permission::CREATE),
        (Permissions::DELETE, Permission::DELETE),
        (Permissions::ADMIN, Permission::ADMIN),
    ];
    let permissions = known
        .into_iter()
        .filter(|(ours, _)| acl.permissions.contains(*ours))
        .fold(Permission::NONE, |all, (_, theirs)| all | theirs);
    zookeeper::Acl::new(permissions, &acl.scheme, &acl.id)
}

fn fault(error: ZkError) -> Fault {
    match error {
        ZkError::ConnectionLoss | ZkError::SessionMoved | ZkError::OperationTimeout => {
            Fault::ConnectionLoss
        }
        ZkError::SessionExpired => Fault::SessionEnded,
        ZkError::NoNode => Fault::NoNode,
        ZkError::NodeExists => Fault::NodeExists,
        ZkError::NotEmpty => Fault::NotEmpty,
        ZkError::BadVersion => Fault::BadVersion,
        ZkError::NoAuth => Fault::NoAuth,
        ZkError::InvalidACL => Fault::InvalidAcl,
        ZkError::MarshallingError => Fault::too_large(),
        other => Fault::Refused(format!("the server refused it: {other:?}")),
    }
}
