//! The one file that names the `zookeeper` crate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{ThreadId, current};

use zookeeper::{CreateMode, Permission, WatchedEvent, WatcherType, ZkError, ZkResult, ZkState};

pub(super) use zookeeper::ZooKeeper;

use super::handle_trait::{Handle, HandleEvent, Unlisten, Watcher};
use crate::acl::{Acl, Permissions};
use crate::rt::{self, AtomicBool, Mutex};
use crate::session::connection::{Answer, Fault, Found, Names, NodeKind, or_none};
use crate::wire_values::Stat;

/// A handle of the crate that belongs to the program, and is shared with it.
pub(super) struct CrateHandle {
    /// `None` only while it is being dropped.
    inner: Option<Arc<ZooKeeper>>,
}

impl CrateHandle {
    pub(super) fn new(inner: Arc<ZooKeeper>) -> CrateHandle {
        CrateHandle { inner: Some(inner) }
    }

    fn call<T>(&self, call: impl FnOnce(&ZooKeeper) -> ZkResult<T>) -> Answer<T> {
        let Some(inner) = &self.inner else { return Err(Fault::SessionEnded) };
        match catch_unwind(AssertUnwindSafe(|| call(inner))) {
            Ok(result) => result.map_err(fault),
            // The crate's decoder trusts what servers say, and may panic.
            Err(_) => Err(Fault::ConnectionLoss),
        }
    }
}

impl Handle for CrateHandle {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: NodeKind) -> Answer<String> {
        let mode = match kind {
            NodeKind::Persistent => CreateMode::Persistent,
            NodeKind::Container => CreateMode::Container,
            NodeKind::Ephemeral | NodeKind::Named => CreateMode::Ephemeral,
            NodeKind::PersistentSequential => CreateMode::PersistentSequential,
            NodeKind::EphemeralSequential | NodeKind::Contender => CreateMode::EphemeralSequential,
        };
        let acl: Vec<_> = acl.iter().map(of_crate).collect();
        self.call(|zk| zk.create(path, data.to_vec(), acl, mode))
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Answer<()> {
        self.call(|zk| zk.delete(path, version))
    }

    fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<Stat> {
        self.call(|zk| zk.set_data(path, data.to_vec(), version)).map(|stat| stat_of(&stat))
    }

    fn acl(&self, path: &str) -> Answer<Vec<Acl>> {
        let (all, _) = self.call(|zk| zk.get_acl(path))?;
        Ok(all.iter().map(from_crate).collect())
    }

    fn set_acl(&self, path: &str, acl: &[Acl]) -> Answer<Stat> {
        let acl = acl.iter().map(of_crate).collect();
        self.call(|zk| zk.set_acl(path, acl, None)).map(|stat| stat_of(&stat))
    }

    fn read(&self, path: &str) -> Answer<Found> {
        let read = self.call(|zk| zk.get_data(path, false));
        or_none(read.map(|(data, stat)| (data, stat_of(&stat))))
    }

    fn exists(&self, path: &str) -> Answer<Option<Stat>> {
        self.call(|zk| zk.exists(path, false)).map(|stat| stat.as_ref().map(stat_of))
    }

    fn children(&self, path: &str) -> Answer<Option<Names>> {
        or_none(self.call(|zk| zk.get_children(path, false)).map(Names::from_iter))
    }

    fn address(&self) -> Option<usize> {
        self.inner.as_ref().map(|inner| Arc::as_ptr(inner).addr())
    }

    fn is_orphan(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| Arc::strong_count(inner) == 1)
    }

    fn read_with(&self, path: &str, watcher: Watcher) -> Answer<(Vec<u8>, Stat)> {
        let read = self.call(|zk| zk.get_data_w(path, move |_: WatchedEvent| watcher()));
        read.map(|(data, stat)| (data, stat_of(&stat)))
    }

    fn exists_with(&self, path: &str, watcher: Watcher) -> Answer<Option<Stat>> {
        let found = self.call(|zk| zk.exists_w(path, move |_: WatchedEvent| watcher()));
        found.map(|stat| stat.as_ref().map(stat_of))
    }

    fn children_with(&self, path: &str, watcher: Watcher) -> Answer<Names> {
        self.call(|zk| zk.get_children_w(path, move |_: WatchedEvent| watcher()))
            .map(Names::from_iter)
    }

    /// Asked to remove the watches of one kind, the crate drops all others.
    fn forget(&self, path: &str) -> Answer<()> {
        let forgotten = self.call(|zk| zk.remove_watches(path, WatcherType::Children));
        if forgotten == Err(Fault::ConnectionLoss) {
            return forgotten;
        }
        self.call(|zk| zk.remove_watches(path, WatcherType::Data))
    }

    fn listen(&self, tell: Box<dyn Fn(HandleEvent) + Send>) -> Option<Unlisten> {
        let told = move |state| {
            #[expect(deprecated, reason = "the crate still says so when a session has expired")]
            let line = match state {
                ZkState::Connected => HandleEvent::Connected,
                ZkState::NotConnected => HandleEvent::Expired,
                ZkState::Closed => HandleEvent::Closed,
                ZkState::AuthFailed => HandleEvent::AuthFailed,
                ZkState::Connecting | ZkState::ConnectedReadOnly | ZkState::Associating => {
                    HandleEvent::Lost
                }
            };
            // A panic would end the handle.
            let _ = catch_unwind(AssertUnwindSafe(|| tell(line)));
        };
        let inner = self.inner.as_ref()?;
        // It panics if another listener has panicked.
        let listening = catch_unwind(AssertUnwindSafe(|| inner.add_listener(told))).ok()?;
        let inner = Arc::downgrade(inner);
        Some(Box::new(move || {
            if let Some(inner) = inner.upgrade() {
                let _ = catch_unwind(AssertUnwindSafe(|| inner.remove_listener(listening)));
            }
        }))
    }

    /// A dead handle drops a watcher that is offered to it on the thread that offers it.
    fn is_dead(&self, path: &str) -> bool {
        let refused = Arc::new(AtomicBool::new(false));
        let offer = OfferedWatcher { by: current().id(), refused: Arc::clone(&refused) };
        let _ = self.call(|zk| {
            zk.exists_w(path, move |_: WatchedEvent| {
                let _ = &offer;
            })
        });
        refused.load(Ordering::SeqCst)
    }

    fn retry(&self) {
        close_parked();
    }
}

struct OfferedWatcher {
    by: ThreadId,
    refused: Arc<AtomicBool>,
}

impl Drop for OfferedWatcher {
    fn drop(&mut self) {
        self.refused.fetch_or(current().id() == self.by, Ordering::SeqCst);
    }
}

impl Drop for CrateHandle {
    /// Closes the handle on a thread of its own: the crate tells the server, which may take long.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take().and_then(Arc::into_inner) {
            PARKED.lock().push(inner);
            close_parked();
        }
    }
}

/// Handles to be closed for which no thread could be started yet.
static PARKED: Mutex<Vec<ZooKeeper>> = Mutex::new(Vec::new());

fn close_parked() {
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

impl std::fmt::Debug for CrateHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CrateHandle")
    }
}

fn stat_of(stat: &zookeeper::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        ctime: stat.ctime,
        mtime: stat.mtime,
        version: stat.version,
        child_changes: stat.cversion,
        data_length: stat.data_length,
        children: stat.num_children,
        children_zxid: stat.pzxid,
        ephemeral_owner: stat.ephemeral_owner,
    }
}

const PERMISSIONS: [(Permissions, Permission); 5] = [
    (Permissions::READ, Permission::READ),
    (Permissions::WRITE, Permission::WRITE),
    (Permissions::CREATE, Permission::CREATE),
    (Permissions::DELETE, Permission::DELETE),
    (Permissions::ADMIN, Permission::ADMIN),
];

fn from_crate(acl: &zookeeper::Acl) -> Acl {
    let granted = PERMISSIONS.into_iter().filter(|(_, theirs)| acl.perms.can(*theirs));
    let permissions = granted.fold(Permissions::NONE, |all, (ours, _)| all | ours);
    Acl::new(permissions, &acl.scheme, &acl.id)
}

fn of_crate(acl: &Acl) -> zookeeper::Acl {
    let permissions = PERMISSIONS
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
        ZkError::InvalidACL => Fault::InvalidAcl(String::new()),
        ZkError::EphemeralOnLocalSession => Fault::LocalSession,
        ZkError::MarshallingError => Fault::too_large(),
        other => Fault::Refused(format!("the server refused the request: {other:?}")),
    }
}
