//! Sessions on a program's own handle of the `zookeeper` crate: without a link, and so without what only a
//! link knows. [`connection`] makes the requests of such a session, those of a caller with a limit as
//! [`calls_on_worker`] on other threads; [`monitor`] finds out which session the handle is in, [`watchers`]
//! keeps its watches, [`handle_trait`] says what a handle can do, and [`zookeeper_crate`] is the one file
//! that names the crate.

mod calls_on_worker;
mod connection;
mod handle_trait;
mod monitor;
mod watchers;
mod zookeeper_crate;

#[cfg(all(test, shuttle))]
pub(crate) use calls_on_worker::Calls;
pub(crate) use handle_trait::Handle;
#[cfg(all(test, not(shuttle)))]
pub(crate) use handle_trait::{HandleEvent, Unlisten, Watcher};

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::rt::{self, AtomicUsize, Deadline};
use crate::session::client::Client;
use crate::session::connection::{Connection, Ensemble, SessionRecords};
use crate::session::requests::until_attached;
use crate::session::threads::Workers;
use crate::session::wait::Waiter;
use connection::HandleConnection;
use monitor::Monitor;
use zookeeper_crate::{CrateHandle, ZooKeeper};

/// Makes a client of a ZooKeeper handle that the program has already, in the handle's own session.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
/// use zklock::zookeeper::{WatchedEvent, ZooKeeper};
/// use zklock::{Client, DistributedLock};
///
/// let handle = ZooKeeper::connect("zk1:2181", Duration::from_secs(10), |_: WatchedEvent| ())?;
/// let handle = Arc::new(handle);
/// let lock = DistributedLock::new(&handle, "/locks", "nightly");
/// let guard = lock.lock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Make one client of a handle, and keep it: each has its own table of watches. Making it never
/// fails. Paths are relative to the handle's chroot. If the chroot is missing, it is made with the first
/// node, as long as the node above it exists; the crate cannot make that one, so calls that create
/// nodes then fail with [`Server`](crate::ErrorKind::Server), at once, and say so.
///
/// One holder at a time, the order, time limits and tokens are the same as with
/// [`Client::connect`]; both kinds of clients can share a lock. No contender is left behind while
/// the handle lives. But the connection is the crate's, with its limits:
///
/// - **No lease.** [`is_held`](crate::Hold::is_held) means that no loss was *seen*: the handle has
///   reported neither its expiry or closing, nor the deletion of the node, which it does only when
///   it has a connection again. While it has none, or its server is silent, or after a pause of the
///   process, another client may hold the lock, perhaps for minutes. To be sure, call
///   [`ensure_held`](crate::Hold::ensure_held), and use the
///   [`FencingToken`](crate::FencingToken).
/// - **Calls can hang**, as the crate's do: it has no timeout for a silent server. Calls with a
///   time limit or a [`Cancel`](crate::Cancel) still return in time, but each leaves a thread
///   waiting: at most 16, after which calls get no answer. [`lock`](crate::DistributedLock::lock),
///   [`unlock`](crate::LockGuard::unlock), `ensure_held` and an [observer](crate::Changes) without
///   a limit do hang.
/// - **Hand-over** among threads, and taking a kept lock, is refused while the handle says that it
///   has no connection. The handle does not notice a silent server.
/// - **A short interruption can end the handle.** The crate closes a handle for good when a
///   connection breaks in a busy session (and after an outage of about the session timeout). Locks
///   are then lost, and calls fail with [`Closed`](crate::ErrorKind::Closed): make a new handle and
///   client. The server may keep the old session's locks for another session timeout.
/// - **Credentials first.** If `add_auth` is called while other threads use the handle, the crate
///   gives answers to the wrong callers: two might then hold the lock. Add all credentials before
///   the first call here. The crate does not present them again on its next connection, where ACLs
///   may then refuse even a lock's release, with
///   [`NotAuthorized`](crate::ErrorKind::NotAuthorized).
/// - **A place in the queue can be lost.** If the creation of a node was not confirmed, that node
///   is deleted and another one queued at the end.
/// - **Costs**: while the server is down, the crate uses most of a core. Acquiring a free lock and
///   releasing it takes four requests, each a round trip, where our own connection sends three, in
///   two. The crate's create returns only a path. So one more request reads the node's stat, which is
///   the token and the proof that the node is this session's; it also watches the node. (Curator,
///   which has no token, does without.) A wait takes one more, too. A lock path that it creates stays.
/// - **Watches** are the crate's: at most one for a node and a connection. A program that itself
///   watches contenders' nodes, with its handle's default watcher, gets no events for nodes that
///   this client also watches. If a watcher or listener of the program panics, the handle ends. If
///   the handle has a chroot, the crate passes on no events of `/`: while something observes that
///   node, this client looks at it once a second.
/// - **No waiting for a node's creation**: observers of a lock path, value or group, and consumers
///   of a queue, fail with [`Server`](crate::ErrorKind::Server) if the node does not exist yet.
/// - **Quotas**: the crate does not know the server's answer that one is used up, which is
///   [`Server`](crate::ErrorKind::Server), too.
/// - **No transactions**: what the recipes other than locks do in one transaction (acknowledging a
///   leased item, deciding a double barrier's round, or a commit) is done step by step; a client
///   that dies in between leaves it half done.
/// - **Not known**: the [session timeout](Client::session_timeout); the [session's
///   id](Client::session_id), until the first contender is created; and until the first call, the
///   [state](Client::state), reported as [`Lost`](crate::SessionState::Lost).
/// - **The handle is the program's.** [`close`](Client::close) and dropping the client delete the
///   client's nodes, in the background if need be, and leave the handle and its session open,
///   unless the client's `Arc` of the handle is the last one. Closing the handle ends the client's
///   locks, with [`LossReason::ClientClosed`](crate::LossReason::ClientClosed).
/// - [`ClientBuilder`](crate::ClientBuilder)'s settings do not apply: the handle's credentials,
///   servers and session timeout do, and 15 seconds to open a session.
impl From<Arc<ZooKeeper>> for Client {
    fn from(handle: Arc<ZooKeeper>) -> Client {
        let ensemble = Box::new(Adopted::new(Arc::new(CrateHandle::new(handle))));
        let hosts = "the program's ZooKeeper handle".to_owned();
        Client::assemble(ensemble, hosts, String::new())
    }
}

/// Makes a client of a handle: see [`From<Arc<ZooKeeper>>`](#impl-From<Arc<ZooKeeper>>-for-Client).
impl From<ZooKeeper> for Client {
    fn from(handle: ZooKeeper) -> Client {
        Client::from(Arc::new(handle))
    }
}

/// Makes a client of a ZooKeeper handle: see
/// [`From<Arc<ZooKeeper>>`](#impl-From<Arc<ZooKeeper>>-for-Client).
impl From<&Arc<ZooKeeper>> for Client {
    fn from(handle: &Arc<ZooKeeper>) -> Client {
        Client::from(Arc::clone(handle))
    }
}

/// How long opening a session may take: the default of clients that have settings.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How many threads that try to open a session the crate may keep waiting, at most.
const MOST: usize = 2;
/// How many threads of calls with a time limit it may keep waiting, at most.
const MOST_CALLS: usize = 16;

/// A program's handle, with whatever session it has.
#[derive(Debug)]
pub(crate) struct Adopted {
    handle: Arc<dyn Handle>,
    threads: Arc<AtomicUsize>,
    workers: Arc<Workers>,
}

impl Adopted {
    pub(crate) fn new(handle: Arc<dyn Handle>) -> Adopted {
        let workers = Workers::new("zklock-call", MOST_CALLS);
        Adopted { handle, threads: Arc::default(), workers }
    }
}

/// Counts an attempt to open a session, which may go on when its caller no longer waits.
struct OpenAttempt(Arc<AtomicUsize>);

impl Drop for OpenAttempt {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ensemble for Adopted {
    fn open(
        &self,
        records: SessionRecords,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Connection>> {
        let deadline = Deadline::after(CONNECT_TIMEOUT);
        let status = Arc::clone(&records.status);
        let (monitor, rung) = Monitor::new(Arc::clone(&self.handle), records);
        let connection = HandleConnection::new(Arc::clone(&monitor), Arc::clone(&self.workers));
        self.threads.fetch_add(1, Ordering::SeqCst);
        let counted = OpenAttempt(Arc::clone(&self.threads));
        if self.threads.load(Ordering::SeqCst) <= MOST {
            rt::spawn("zklock-handle", move || {
                monitor.run(&rung, counted);
            })?;
        }
        if until_attached(&status, waiter, deadline, stop)? {
            return Ok(Box::new(connection));
        }
        Err(Error::new(
            ErrorKind::Connect,
            format!("the program's ZooKeeper handle has not answered within {CONNECT_TIMEOUT:?}"),
        ))
    }

    fn connect_timeout(&self) -> Duration {
        CONNECT_TIMEOUT
    }

    fn handle(&self) -> Option<usize> {
        self.handle.address()
    }

    fn retry(&self) {
        self.handle.retry();
    }
}
