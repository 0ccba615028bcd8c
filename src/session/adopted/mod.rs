//! Sessions of a handle of the `zookeeper` crate that belongs to the program: no link, and so none of
//! what it knows. [`connection`] is how such a session is asked, [`monitor`] which session the handle is in,
//! [`watchers`] its watches, [`handle_trait`] what it can be asked for, and [`zookeeper_crate`] the one file that names the
//! crate.

mod connection;
pub(crate) mod handle_trait;
mod monitor;
mod watchers;
mod zookeeper_crate;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use self::connection::HandleConnection;
use self::handle_trait::Handle;
use self::monitor::Monitor;
use self::zookeeper_crate::{CrateHandle, ZooKeeper};
use super::client::Client;
use super::connection::{Connection, Ensemble, Reports};
use super::notify::Waiter;
use super::retry::Retry;
use super::session::until_attached;
use super::workers::Workers;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::{self, Deadline};

/// A client of a handle that the program has already, in the handle's own session.
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
/// Make one client of a handle, and keep it: each has its own table of what it watches. It never
/// fails here; the handle is first asked by the first call. Paths are relative to the handle's
/// chroot.
///
/// One holder at a time, the order of grants, time limits and tokens are the same as with
/// [`Client::connect`], and both kinds of clients can share a lock. No node is left while the handle lives.
/// But the connection is the crate's, and with it its limits:
///
/// - **No lease.** [`is_held`](crate::LockGuard::is_held) means that no loss was *seen*: the
///   handle has not said that its session expired, nor that it is closed, and nobody has deleted
///   the node. It says so only when it has a connection again. While it has none, and when a
///   server is silent, somebody else may hold the lock for as long as that goes on, which can
///   be many minutes, and a process that was paused may find `is_held` true. Whoever needs to
///   know asks [`ensure_held`](crate::LockGuard::ensure_held), which takes a write through the
///   leader and a read; and uses the [`FencingToken`](crate::FencingToken).
/// - **Calls can hang** for as long as the crate's do: it has no time-out for a server that does
///   not answer. Calls with a time limit, or a [`Cancel`](crate::Cancel), return in time even so, but
///   keep a thread waiting, 16 at the most, after which they get no answer;
///   [`lock`](crate::DistributedLock::lock), [`unlock`](crate::LockGuard::unlock), `ensure_held` and
///   an [`Observer`](crate::Observer) without a limit do not.
/// - **Hand-over** among threads, and taking what was kept, is refused while the handle says that
///   it has no connection; a server that is silent, it does not notice.
/// - **A blip can end it.** The crate closes a handle for good when a connection breaks in a busy
///   session (and after an outage of about the session time-out). Locks are then lost, and calls
///   fail with [`Closed`](crate::ErrorKind::Closed): make a new handle and a new client. The
///   server may keep the old session's nodes, and so its locks, for another session time-out.
/// - **Credentials first.** `add_auth` while other threads use the handle makes the crate give
///   answers to the wrong callers: two might then hold the lock. Add all before the first
///   call here. The crate does not present them again on its next connection, where ACLs may then
///   refuse, [`NotAuthorized`](crate::ErrorKind::NotAuthorized), even a lock's release.
/// - **A place in the queue can be lost.** A node whose making was not confirmed is deleted, and
///   another one queued at the end; through a link it would be kept.
/// - **No mercy on the machine**: while the server is down, the crate takes most of a core.
/// - **More requests**: two more for each acquisition, one more for each wait; a `sync` is a
///   delete of a node that is not there. A lock node that it makes is no container, and stays.
/// - **Watches** are the crate's: at most one for a node and a connection. Those that a lost
///   connection takes along are cleared away by the hundreds, with a request that servers before
///   3.5 do not know. A program that watches contenders' nodes itself, by its handle's
///   default watcher, is not told where this client watches too. A watcher or listener of the
///   program's that panics ends the handle.
/// - **An [observer](crate::Observer) needs a lock node** that is there: without one it fails with
///   [`Server`](crate::ErrorKind::Server). So does whatever else waits for a node to be made:
///   observers of values and groups, and consumers of a queue that is not there yet.
/// - **No transactions**: what the recipes beside the locks do as one (acknowledging a leased item,
///   deciding a double barrier's round, or a commit) is done step by step; who dies in between leaves it
///   half done.
/// - **Not known**: the [session time-out](Client::session_timeout), which is zero; the [session's
///   id](Client::session_id), before the first contender was made; and before the first call,
///   the [state](Client::state), which is [`Lost`](crate::SessionState::Lost).
/// - **The handle is the program's.** [`close`](Client::close) and dropping the client delete the
///   client's nodes, in the background if need be, and leave the handle and its session as they
///   are. The client keeps its `Arc`: a handle whose last `Arc` is the client's is closed
///   with it. Closing the handle ends the client's locks, with
///   [`LossReason::ClientClosed`](crate::LossReason::ClientClosed).
/// - [`ClientBuilder`](crate::ClientBuilder)'s settings do not apply: the handle's credentials, servers and session
///   time-out do, and 15 seconds to open a session.
impl From<Arc<ZooKeeper>> for Client {
    fn from(handle: Arc<ZooKeeper>) -> Client {
        let ensemble = Box::new(Adopted::new(Arc::new(CrateHandle::new(handle))));
        let hosts = "a handle of the program's".to_owned();
        Client::assemble(ensemble, hosts, String::new(), Retry::default())
    }
}

/// As [`From<Arc<ZooKeeper>>`](#impl-From<Arc<ZooKeeper>>-for-Client), which see.
impl From<ZooKeeper> for Client {
    fn from(handle: ZooKeeper) -> Client {
        Client::from(Arc::new(handle))
    }
}

/// As [`From<Arc<ZooKeeper>>`](#impl-From<Arc<ZooKeeper>>-for-Client), which see.
impl From<&Arc<ZooKeeper>> for Client {
    fn from(handle: &Arc<ZooKeeper>) -> Client {
        Client::from(Arc::clone(handle))
    }
}

/// How long opening a session may take: the default of clients that have settings.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The most threads that the crate may keep waiting, of attempts to open a session.
const MOST: usize = 2;
/// The most threads that it may keep waiting, of calls with a time limit.
const MOST_CALLS: usize = 16;

/// A handle of the program's, with whatever session it has.
#[derive(Debug)]
pub(crate) struct Adopted {
    handle: Arc<dyn Handle>,
    threads: Arc<AtomicUsize>,
    workers: Workers,
}

impl Adopted {
    pub(crate) fn new(handle: Arc<dyn Handle>) -> Adopted {
        let workers = Workers::new("zklock-call", MOST_CALLS);
        Adopted { handle, threads: Arc::default(), workers }
    }
}

/// An attempt that may go on when nobody waits for it any more.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ensemble for Adopted {
    fn open(
        &self,
        reports: Reports,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Connection>> {
        let deadline = Deadline::after(CONNECT_TIMEOUT);
        let status = Arc::clone(&reports.status);
        let (monitor, rung) = Monitor::new(Arc::clone(&self.handle), reports);
        let connection =
            HandleConnection { monitor: Arc::clone(&monitor), workers: self.workers.clone() };
        self.threads.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(Arc::clone(&self.threads));
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
            format!("the handle has not answered within {CONNECT_TIMEOUT:?}"),
        ))
    }

    /// The crate does not tell.
    fn session_timeout(&self) -> Duration {
        Duration::ZERO
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
