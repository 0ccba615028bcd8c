//! Blocking distributed locks on ZooKeeper, with RAII guards.
//!
//! For programs with threads: [`lock`](DistributedLock::lock) waits until the lock is held and
//! gives a [`LockGuard`], which releases it when dropped. The session outlives its connections,
//! every wait can have an end, and a guard knows whether it still holds.
//!
//! ```no_run
//! use std::time::Duration;
//! use zklock::{Client, DistributedLock};
//!
//! let zk = Client::connect("zk1:2181,zk2:2181,zk3:2181")?;
//! let lock = DistributedLock::new(&zk, "/locks", "nightly");
//! {
//!     let guard = lock.lock()?; // waits until it is ours
//!     println!("at work, with the fencing token {}", guard.fencing_token());
//! } // released here
//! match lock.try_lock_for(Duration::from_secs(5))? {
//!     Some(guard) => guard.unlock()?, // released, and told whether it was still ours
//!     None => println!("somebody else has it"),
//! }
//! # Ok::<(), zklock::Error>(())
//! ```
//!
//! Bind a guard to a name: `let _ = lock.lock()?;` unlocks at once, as does `lock.try_lock()?;`, and
//! no lint that is on by default says so.
//!
//! # Guarantees
//!
//! - **One holder at a time** among all clients of the ensemble, as long as each stops when its
//!   guard says that the lock is lost. When the session is in doubt, the guard says so by this
//!   machine's own clock, before the ensemble passes the lock on.
//! - **First come, first served**, and a release wakes one waiter. Threads of one process share a
//!   place in that order, and pass the lock on among themselves: see [`HandOver`].
//! - **No stray nodes.** However a call ends, its node is deleted, in the background if need be,
//!   until the server has confirmed it or the session is over.
//! - **No false grant** by a node that is missing, of another session, or numbered at the end of
//!   the range.
//! - **Limits are kept**, but for 50 ms, whatever the network does. "Not acquired in time" is
//!   `Ok(None)`, not an error.
//! - **Tokens grow** from holder to holder.
//!
//! No lock can stop a holder that is paused, by its system or a hypervisor, between a look at its
//! guard and the write that follows. The lease supposes, too, that this machine's clock runs about
//! as fast as the servers', and that a leader of the ensemble that is deposed soon knows it. What a
//! holder sends late can only be refused by whoever receives it, by the [`FencingToken`]: a
//! receiver that remembers the highest token and refuses lower ones makes the guarantee whole.
//!
//! # Which recipe
//!
//! [`DistributedLock`] for one holder; [`DistributedRwLock`] for many readers or one writer;
//! [`DistributedSemaphore`] for so many at once; [`ReentrantLock`] where code that holds a lock calls
//! code that takes it; [`MultiLock`] for several at once; [`LeaderElection`] for a task that one
//! process of many is to do. All stand on one engine, and what is said here of locks holds for each.
//! To see who holds: `contenders` and `observe`; to have a holder let go: `request_release`, and
//! `break_lock` by force. Clients in other languages: [`NodeNaming`].
//!
//! Beside the locks: [`Barrier`] and [`DoubleBarrier`], [`DistributedQueue`] and [`PriorityQueue`],
//! [`TwoPhaseCommit`], [`Group`], [`SharedValue`] and [`SharedCounter`]. The [`guide`] says which to
//! use when, and how sure their calls are.
//!
//! # Faults
//!
//! | Fault | What happens |
//! |---|---|
//! | the connection breaks, a server restarts | the session goes on at another server, or the same one; locks are kept, waiters keep their place |
//! | silence; a server that is cut off from its leader | other servers are tried; the lock is lost when the lease ends, if none answers |
//! | the session expires | its locks are lost; calls that wait queue anew, in a new session |
//! | the process is paused for too long | the first [`is_held`](LockGuard::is_held) afterwards is false |
//! | a holder's node is deleted by somebody | the lock is lost, with [`LossReason::NodeDeleted`] |
//! | a reply is lost | a create is looked for and adopted, a delete is repeated |
//! | no server can be reached | [`connect`](Client::connect) fails in time, `try_` calls give `None` in time, [`lock`](DistributedLock::lock) goes on trying |
//! | the sequence numbers end | [`ErrorKind::SequenceExhausted`], and numbering starts anew |
//!
//! After a lost session the same [`Client`] and [`DistributedLock`] work again, on a new one.
//!
//! # Heartbeat and lease
//!
//! Whenever nothing was sent that goes through the ensemble's leader for a ninth of the session
//! timeout (an eighteenth on a slow connection), a `sync` is sent, which only the leader can answer.
//! A held lock costs nothing else, except for the request that watches its node.
//!
//! The *lease* is the time for which the client may trust that its session lives. An answer that
//! came through the leader renews it: it then runs for the session timeout from when an earlier
//! request was sent, the latest one whose reply had arrived at least 17/32 of the session timeout
//! before the renewing request was sent. The leader has certainly heard of that one.
//! When the lease ends, the session is [`Lost`](SessionState::Lost) here, which is before the
//! ensemble can expire it, provided that the session timeout is at least two ticks of the ensemble
//! (`tickTime`). Servers grant no less unless their `minSessionTimeout` says so; a session timeout
//! below 4 s, which is two ticks of the usual 2 s, is warned of in the log, once. The lease's clock is
//! monotonic, and on Linux counts the time that the machine sleeps.
//!
//! So the locks of an idle client survive an outage well below a third of the session timeout, those
//! of a busy one at least a fifth of it; choose [that](ClientBuilder::session_timeout) accordingly.
//!
//! # The connection
//!
//! [`Client::connect`] has a connection of its own: one socket, one thread, nothing that listens.
//! That of the [`zookeeper`](https://docs.rs/zookeeper) crate cannot carry a lock: it sets no watches again after a reconnect, has no
//! time-out for a silent server, and fails no call when a session has expired and another one begins. A program that has a
//! handle of that crate already can lock [with it](Client#impl-From<Arc<ZooKeeper>>-for-Client),
//! with these limits.
//!
//! # Threads
//!
//! A connected [`Client`] has the thread `zklock-link`, or `zklock-handle` where it is of a program's
//! handle. Others come on demand and end by themselves: `zklock-open`, `zklock-dial` and `zklock-resolve` while
//! connecting; on a program's handle `zklock-call`, up to 16 for a client, for calls with a deadline or
//! a [`Cancel`]; `zklock-reaper` for deletes in the background, and for the end of what is
//! [kept](DistributedLockBuilder::keep_for); `zklock-event` for callbacks; `zklock-member`,
//! one for each [`Membership`]; `zklock-drop` when the last of a program's handle is put away. [`Client::stats`] counts them.
//!
//! Callbacks may block and may call the library.
//!
//! # Logging
//!
//! By the [`log`](https://docs.rs/log) crate, with the targets `zklock::link` (connections and
//! sessions), `zklock::client` (changes of the state), `zklock::contend`, `zklock::hold` (lost
//! locks), `zklock::election` (rests after errors), `zklock::group` (members that cannot come back),
//! `zklock::queue`, `zklock::reaper`, `zklock::events` and `zklock::testing`. Events, never single requests; never credentials.
//!
//! # Features
//!
//! - `zookeeper`, on by default: locks on a program's own handle of the `zookeeper` crate, by
//!   [`From<Arc<ZooKeeper>>`](Client#impl-From<Arc<ZooKeeper>>-for-Client). Without it
//!   (`default-features = false`) that crate is not built, nor what it brings along: a `mio` of 2018,
//!   which future compilers may refuse.
//! - `testing` adds the module `testing`, which starts a ZooKeeper server for tests, in Docker or from
//!   a local installation; it alone brings an async runtime along.
//!
//! # Versions
//!
//! Semantic versioning; the kinds of errors, states and reasons may grow. Of the `zookeeper` crate,
//! version 0.8, only the handle is part of the public interface, by the feature of that name; the
//! crate is exported as `zklock::zookeeper`. Another 0.x of it is a new major version here. Rust 1.95
//! or newer, which is what continuous integration runs; a newer compiler is asked for in a minor
//! version at the least. Unix only.
//!
//! Servers: tested with ZooKeeper 3.8.

pub mod guide;

// The map. Each floor uses only those below it.

// What users see. Locks: each a rule for the engine, and a guard. Beside them, what asks and watches
// by itself.
mod recipes;

// The one protocol engine: tickets, the rule, the queue, holds.
mod contend;

// The client: sessions, waiting, background work.
mod session;

// The real connection.
mod link;

// For the tests of those who use this crate: a server.
#[cfg(feature = "testing")]
pub mod testing;

// The ground: errors, names, and where threads, channels, locks and time come from.
mod acl;
mod connect_string;
mod error;
mod logging;
mod path;
mod rt;
mod session_notice;
mod wire_values;

// Tests: all of the above but the link, in virtual time, on an ensemble in memory.
#[cfg(test)]
#[cfg(not(shuttle))]
mod sim;

// Tests, with `--cfg shuttle`: the places where threads meet, switched wherever they do.
#[cfg(test)]
#[cfg(shuttle)]
mod models;

// For the benchmarks: not part of the interface.
#[cfg(feature = "_bench")]
#[doc(hidden)]
pub mod bench_only;

pub use acl::{Acl, Permissions};
pub use contend::fencing::FencingToken;
pub use contend::handover_policy::HandOver;
pub use contend::list_contenders::Contender;
pub use contend::loss_reason::LossReason;
pub use contend::observer::Observer;
pub use contend::ticket::{Class, NodeNaming};
pub use contend::watchdog::Lost;
pub use error::{Error, ErrorKind, Result};
pub use recipes::barrier::{Barrier, BarrierBuilder};
pub use recipes::changes::Changes;
pub use recipes::double_barrier::{DoubleBarrier, DoubleBarrierBuilder, Entered};
pub use recipes::election::candidates::{Candidate, LeaderObserver};
pub use recipes::election::lead_loop::TermResult;
pub use recipes::election::progress::{ElectionPhase, ElectionProgress};
pub use recipes::election::{LeaderElection, LeaderElectionBuilder, Leadership};
pub use recipes::group::{Group, GroupBuilder, Member, Membership};
pub use recipes::multi::{MultiGuard, MultiLock};
pub use recipes::mutex::{DistributedLock, DistributedLockBuilder, LockGuard};
pub use recipes::priority_queue::{PriorityQueue, PriorityQueueBuilder};
pub use recipes::queue::lease::LeasedItem;
pub use recipes::queue::{DistributedQueue, DistributedQueueBuilder};
pub use recipes::reentrant::{ReentrantGuard, ReentrantLock};
pub use recipes::rwlock::{DistributedRwLock, DistributedRwLockBuilder, ReadGuard, WriteGuard};
pub use recipes::semaphore::{DistributedSemaphore, DistributedSemaphoreBuilder, Permit};
pub use recipes::shared_counter::{SharedCounter, SharedCounterBuilder};
pub use recipes::shared_value::{SharedValue, SharedValueBuilder, Version, Versioned};
pub use recipes::two_phase_commit::coordinator::Coordinator;
pub use recipes::two_phase_commit::participant::Participant;
pub use recipes::two_phase_commit::round::{Decision, ParticipantState, RoundState};
pub use recipes::two_phase_commit::{TwoPhaseCommit, TwoPhaseCommitBuilder};
pub use session::cancel::Cancel;
pub use session::client::{Client, ClientBuilder, ClientStats};
pub use session::retry::Retry;
pub use session::status::SessionState;
#[cfg(feature = "zookeeper")]
pub use zookeeper;
