//! The one file that names the `zookeeper` crate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ThreadId, current};

use zookeeper::{
    CreateMode, Permission, Subscription, WatchedEvent, WatcherType, ZkError, ZkResult, ZkState,
};

pub(crate) use zookeeper::ZooKeeper;

use crate::acl::{Acl, Permissions};
use crate::rt::{self, Mutex};
use crate::session::store::{Answer, Fault, Kind, Names, Stat, or_none};

/// A handle of the crate that belongs to the program, and is shared with it.
pub(crate) struct Handle {
    /// `None` only while it is being dropped.
    inner: Option<Arc<ZooKeeper>>,
}

/// What the crate says of the handle's connection.
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
    pub(crate) fn shared(inner: Arc<ZooKeeper>) -> Handle {
        Handle { inner: Some(inner) }
    }

    /// Tries again to close handles that no thread could be had for.
    pub(crate) fn retry() {
        let waiting = PARKED.lock().len();
        for _ in 0..waiting {
            let started = rt::spawn("zklock-drop", || {
                let parked = PARKED.lock().pop();
                drop(parked);
            });
            if started.is_err() {
                return;
            }
        }
    }

    fn call<T>(&self, call: impl FnOnce(&ZooKeeper) -> ZkResult<T>) -> Answer<T> {
        let Some(inner) = &self.inner else { return Err(Fault::SessionEnded) };
        match catch_unwind(AssertUnwindSafe(|| call(inner))) {
            Ok(result) => result.map_err(fault),
            // Its decoder trusts what servers say.
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
    /// The crate says goodbye to the server, which may take its time; nobody is made to wait for it.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take().and_then(Arc::into_inner) {
            PARKED.lock().push(inner);
            Handle::retry();
        }
    }
}

/// Those to be closed for which no thread could be had yet.
static PARKED: Mutex<Vec<ZooKeeper>> = Mutex::new(Vec::new());

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
