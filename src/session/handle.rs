//! The one file that names the `zookeeper` crate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zookeeper::{CreateMode, Permission, WatchedEvent, ZkError, ZkResult, ZooKeeper};

use super::store::{Answer, Created, Fault, Kind, Names, Stat};
use super::wake::Watches;
use crate::acl::{Acl, Permissions};
use crate::error::{Error, ErrorKind, Result};
use crate::link::Link;
use crate::link::loopback::Door;
use crate::rt::{self, Mutex};

/// A handle of the crate, connected to nothing but its link.
pub(crate) struct Handle {
    /// `None` only while it is being dropped.
    inner: Option<ZooKeeper>,
}

impl Handle {
    /// Makes a handle and has the link serve it, unless `give_up` says so first. Watches
    /// that fire are told to `watches`.
    pub(crate) fn open(
        link: &Link,
        watches: &Arc<Watches>,
        give_up: impl Fn() -> bool,
    ) -> Result<Handle> {
        Parked::retry();
        let system = |what: &str, cause: std::io::Error| {
            Error::new(ErrorKind::System, format!("{what}: {cause}")).caused_by(cause)
        };
        let mut door =
            Door::open().map_err(|cause| system("could not open a loopback port", cause))?;
        let address =
            door.address().map_err(|cause| system("could not name the loopback port", cause))?;
        let (watches, nonce) = (Arc::clone(watches), door.nonce());
        let watcher = move |event: WatchedEvent| {
            if let Some(path) = event.path {
                watches.tell(&path);
            }
        };
        // The crate panics where the system refuses it a socket.
        let made = AssertUnwindSafe(|| ZooKeeper::connect(&address.to_string(), nonce, watcher));
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
                Ok(Handle { inner: Some(inner) })
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
        link: &Link,
    ) -> Answer<Created> {
        let mode = match kind {
            Kind::Persistent => CreateMode::Persistent,
            Kind::Container => CreateMode::Container,
            Kind::Ephemeral => CreateMode::Ephemeral,
            Kind::EphemeralSequential => CreateMode::EphemeralSequential,
        };
        let acl: Vec<_> = acl.iter().map(of_crate).collect();
        let path = self.call(|zk| zk.create(path, data.to_vec(), acl, mode))?;
        let czxid = link.take_created(&path);
        Ok(Created { path, czxid })
    }

    pub(crate) fn delete(&self, path: &str) -> Answer<()> {
        self.call(|zk| zk.delete(path, None))
    }

    pub(crate) fn write(&self, path: &str, data: &[u8]) -> Answer<()> {
        self.call(|zk| zk.set_data(path, data.to_vec(), None)).map(drop)
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

impl Drop for Handle {
    /// The link answers the crate's goodbye at once; even so nobody is made to wait for it.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
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

fn or_none<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Fault::NoNode) => Ok(None),
        Err(fault) => Err(fault),
    }
}

fn stat_of(stat: &zookeeper::Stat) -> Stat {
    Stat { czxid: stat.czxid, ctime: stat.ctime, ephemeral_owner: stat.ephemeral_owner }
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
        ZkError::NoAuth => Fault::NoAuth,
        ZkError::InvalidACL => Fault::InvalidAcl,
        ZkError::MarshallingError => Fault::TooLarge,
        other => Fault::Refused(format!("the server refused it: {other:?}")),
    }
}
