//! Distributed locks on ZooKeeper for programs with threads: `lock()` blocks and returns a guard,
//! and dropping the guard releases the lock.
//!
//! ```no_run
//! use std::time::Duration;
//! use zklock::{Client, DistributedLock};
//!
//! let zk = Client::connect("zk1:2181,zk2:2181,zk3:2181")?;
//! let lock = DistributedLock::new(&zk, "/locks", "nightly");
//! match lock.try_lock_for(Duration::from_secs(5)) {
//!     Ok(Some(guard)) => {
//!         println!("we hold it, with fencing token {}", guard.fencing_token());
//!         guard.unlock()?; // or drop it
//!     }
//!     Ok(None) => println!("others hold it"),
//!     Err(error) if error.is_outage() => println!("ZooKeeper is down: {error}"),
//!     Err(error) => return Err(error),
//! }
//! # Ok::<(), zklock::Error>(())
//! ```
//!
//! Bind a guard to a name: `let _ = lock.lock()?;` unlocks at once, as does `lock.try_lock()?;`.
//!
//! The module [`guide`] says which recipe to use when, and how sure each call is. The folder `docs`
//! of the repository has the exact guarantees, and pages on faults, async programs, Curator and
//! kazoo.
//!
//! # Locks
//!
//! | Type | What it is | Its guard |
//! |---|---|---|
//! | [`DistributedLock`] | one holder; [threads of a process share it](HandOver) | [`LockGuard`] |
//! | [`ReentrantLock`] | a mutex that its thread may take again | [`ReentrantGuard`] |
//! | [`DistributedRwLock`] | many readers or one writer | [`ReadGuard`], [`WriteGuard`] |
//! | [`DistributedSemaphore`] | a fixed number of permits | [`Permit`] |
//! | [`MultiLock`] | several of these, all or none | [`MultiGuard`] |
//! | [`LeaderElection`] | one leader of many candidates | [`Leadership`] |
//!
//! Each can be acquired without a limit, tried, tried for some time, and cancelled ([`Cancel`]).
//! All guards have the methods of [`Hold`], and a [`FencingToken`] where holders have an order. All
//! locks but [`MultiLock`] have those of [`LockNode`], which list and observe contenders, ask
//! holders to release, and break locks. [`NodeNaming`] decides which clients in other languages can
//! share a lock, [`Acl`] which clients may use it.
//!
//! # Other recipes
//!
//! [`Once`], [`DistributedQueue`], [`PriorityQueue`], [`Barrier`], [`DoubleBarrier`],
//! [`TwoPhaseCommit`], [`Group`], [`SharedValue`] and [`SharedCounter`]: the [`guide`] says what each is for.
//!
//! # Client
//!
//! [`Client`] is one session, kept over lost connections. [`ClientBuilder`] has its settings, and
//! [`on_event`](ClientBuilder::on_event) reports each [`Event`]. The client also reads and writes a
//! program's own nodes on that session ([`znode`](Client::znode),
//! [`transaction`](Client::transaction)).
//!
//! # Errors
//!
//! All calls return [`Error`]; [`kind`](Error::kind) is for programs, the message for people.
//!
//! | [`ErrorKind`] | What it is | What to do |
//! |---|---|---|
//! | [`Connect`](ErrorKind::Connect) | [outage](Error::is_outage), [retryable](Error::is_retryable) | retry later, alert |
//! | [`ConnectionLoss`](ErrorKind::ConnectionLoss) | outage, [**may have taken effect**](Error::may_have_taken_effect) | look what happened before you repeat it |
//! | [`SessionLost`](ErrorKind::SessionLost) | outage, retryable | stop the work, acquire again |
//! | [`NodeDeleted`](ErrorKind::NodeDeleted) | retryable | stop the work, acquire again |
//! | [`HeldTooLong`](ErrorKind::HeldTooLong) | retryable | stop the work, acquire again; allow more time if the work needs it |
//! | [`Taken`](ErrorKind::Taken) | retryable | retry later, or choose another name |
//! | [`Full`](ErrorKind::Full) | retryable | retry in the next round of the double barrier |
//! | [`SequenceExhausted`](ErrorKind::SequenceExhausted) | retryable | retry when the lock path is empty |
//! | [`System`](ErrorKind::System) | retryable | raise the process's limits of threads and sockets |
//! | [`Conflict`](ErrorKind::Conflict) | | use the same number of permits or participants, or the same vote |
//! | [`NotFound`](ErrorKind::NotFound) | | create what is missing |
//! | [`AlreadyExists`](ErrorKind::AlreadyExists) | | use what exists |
//! | [`NotEmpty`](ErrorKind::NotEmpty) | | delete the znode's children first |
//! | [`VersionMismatch`](ErrorKind::VersionMismatch) | | read the znode again |
//! | [`Unsupported`](ErrorKind::Unsupported) | | use [`Client::connect`], not a program's own handle; or change the servers' setting that the message names |
//! | [`InvalidName`](ErrorKind::InvalidName) | | correct the path, name or connect string |
//! | [`InvalidArgument`](ErrorKind::InvalidArgument) | | correct the argument |
//! | [`TooLarge`](ErrorKind::TooLarge) | | store less, or raise the limit |
//! | [`QuotaExceeded`](ErrorKind::QuotaExceeded) | | delete what is no longer needed, or raise the quota |
//! | [`NotAuthorized`](ErrorKind::NotAuthorized) | | change the ACL or the credentials |
//! | [`AuthFailed`](ErrorKind::AuthFailed) | | correct the credentials |
//! | [`Cancelled`](ErrorKind::Cancelled) | | stop |
//! | [`Closed`](ErrorKind::Closed) | | make a new client |
//! | [`Server`](ErrorKind::Server) | | read the message and the server's log |
//!
//! **`Ok(None)` is no error.** A call that tries a lock returns it if others have the lock:
//! [exactly when](guide#none-or-an-error). If no server answered in time, it fails with
//! [`Connect`](ErrorKind::Connect). Calls without a limit keep trying during an outage.
//!
//! # Guarantees
//!
//! - **One holder at a time** among all clients of the ensemble, provided that each stops when its
//!   guard says that the lock is lost. A guard says so by this machine's own clock, before the
//!   ensemble passes the lock on.
//! - **First come, first served**: the release of a mutex wakes one waiter.
//! - **No stray nodes**, however a call ends; **no false grant** by a node that is not the
//!   caller's.
//! - **Limits are kept**, to within 50 ms, whatever the network does.
//! - **Tokens grow** from holder to holder, within the life of one ensemble's data.
//!
//! No lock can stop a holder that is paused between a look at its guard and the write that follows:
//! use its [`FencingToken`], or for ZooKeeper's own data its [`transaction`](Hold::transaction).
//! `docs/guarantees.md` in the repository has the exact terms and exceptions.
//!
//! # Heartbeat and lease
//!
//! The *lease* is the time for which the client may trust that its session lives. Heartbeats that
//! only the ensemble's leader can answer renew it, at most nine in a session timeout while all is
//! well. While its server answers at once, an idle or busy client has [`Client::outage_limit`]
//! left: locks survive every outage below that, and none longer than the [session
//! timeout](ClientBuilder::session_timeout). When the lease ends, the session is
//! [`Lost`](SessionState::Lost), before the ensemble can expire it, provided that no server's tick
//! is longer than [stated](ClientBuilder::tick_time) or assumed. A crashed holder blocks the others
//! for the session timeout.
//!
//! # The connection
//!
//! [`Client::connect`] opens a connection of its own: one socket, one thread, nothing that listens.
//! A program that already has a handle of the [`zookeeper`](https://docs.rs/zookeeper) crate can
//! lock [with it](Client#impl-From<Arc<ZooKeeper>>-for-Client), within its limits.
//!
//! A connected [`Client`] has one thread, `zklock-link`, or `zklock-handle` on a program's handle.
//! Others start on demand, end by themselves, and have names that begin with `zklock-`;
//! [`Client::stats`] counts them. Callbacks run on `zklock-event`, and may block and call the
//! library.
//!
//! # Logging
//!
//! The crate logs events with [`log`](https://docs.rs/log), never single requests or credentials.
//! An [`Event`] is logged as the line that it prints as. `docs/faults.md` has the lines of an
//! outage. The targets:
//!
//! - `zklock::link`, `zklock::client`, `zklock::session`: connections, outages, changes of the state,
//!   pauses of the process, what old servers cannot do
//! - `zklock::contend`: contenders of incompatible clients, broken locks, deadlocks; at level `info`,
//!   waits of more than five seconds, at most one line a second; at level `debug`, each lock that is waited
//!   for, acquired or released
//! - `zklock::hold`: lost locks, requests to release
//! - `zklock::election`, `zklock::group`, `zklock::queue`, `zklock::reaper`, `zklock::events`:
//!   errors of background work
//!
//! # Features
//!
//! - `zookeeper`, on by default: locks on a program's own handle of the `zookeeper` crate. Without
//!   it (`default-features = false`), neither that crate, which future compilers may refuse, nor
//!   its `mio` of 2018 is built.
//! - `tls`: encrypted connections (rustls with ring), by
//!   [`ClientBuilder::tls`](ClientBuilder#method.tls).
//! - `sasl`: authentication by name and password (DIGEST-MD5), by
//!   [`ClientBuilder::sasl`](ClientBuilder#method.sasl).
//!
//! ZooKeeper servers for tests are in a crate of their own, `zklock-testing`.
//!
//! # Versions
//!
//! - Programs that build with 0.1.0 build with every 0.1.x. **0.2 may change anything.** The kinds
//!   of errors, states and reasons may grow in any version.
//! - **The `zookeeper` crate**, version 0.8, is exported as `zklock::zookeeper`, with the feature
//!   of that name. Only its handle is part of the public interface. Another 0.x of it is a new
//!   major version here.
//! - **Rust 1.85** or newer. Only a minor version may require a newer compiler.
//! - **Unix only.**
//! - **Servers:** tested with ZooKeeper 3.4.14, 3.6.2, 3.8.0 and 3.9.5.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(unix))]
compile_error!(
    "zklock supports Unix only: its connection needs poll(2) and its lease a clock that counts suspend. \
     On Windows, build for WSL, or leave it out with [target.'cfg(unix)'.dependencies]"
);

// The examples in these pages are tested, too.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/stopping.md")]
    struct Stopping;
}

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

// The ground: values, errors, names, and where threads, channels, locks and time come from.
mod acl;
mod connect_string;
mod connection_notice;
mod error;
mod event;
mod fencing;
mod foreign_contenders;
mod logging;
mod loss_reason;
mod path;
mod rt;
mod session_id;
mod wire_values;

// Tests: all of the above but the link, in virtual time, on an ensemble in memory.
#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "../tests/sim/mod.rs"]
mod sim;

// Tests, with `--cfg shuttle`: the places where threads meet, switched wherever they do.
#[cfg(test)]
#[cfg(shuttle)]
#[path = "../tests/models/mod.rs"]
mod models;

// What every program uses.
pub use acl::{Acl, Permissions};
pub use contend::Contender;
pub use contend::HandOver;
pub use contend::Hold;
pub use contend::Lost;
pub use contend::{ContenderKind, NodeNaming};
pub use contend::{Deadlock, WaitingHolder, Waits};
pub use contend::{ListedLock, LockKind, LockList, UnlistedReason};
pub use error::{Error, ErrorKind, Result};
pub use event::Event;
pub use fencing::FencingToken;
pub use foreign_contenders::ForeignContenders;
#[cfg(feature = "sasl")]
pub use link::Sasl;
#[cfg(feature = "tls")]
pub use link::Tls;
pub use loss_reason::LossReason;
pub use recipes::Barrier;
pub use recipes::DistributedQueue;
pub use recipes::DoubleBarrier;
pub use recipes::Group;
pub use recipes::LockNode;
pub use recipes::Once;
pub use recipes::PriorityQueue;
pub use recipes::SharedCounter;
pub use recipes::SharedValue;
pub use recipes::Transaction;
pub use recipes::TwoPhaseCommit;
pub use recipes::Znode;
pub use recipes::{DistributedLock, LockGuard};
pub use recipes::{DistributedRwLock, ReadGuard, WriteGuard};
pub use recipes::{DistributedSemaphore, Permit};
pub use recipes::{LeaderElection, Leadership};
pub use recipes::{MultiGuard, MultiLock};
pub use recipes::{ReentrantGuard, ReentrantLock};
pub use session::Cancel;
pub use session::Changes;
pub use session::SessionState;
pub use session::Subscription;
pub use session::Wait;
pub use session::{Client, ClientBuilder, ClientStats};
pub use session_id::SessionId;
#[cfg(feature = "zookeeper")]
pub use zookeeper;

/// Types for the phases of a [`LeaderElection`], as [`progress`](LeaderElection::progress) returns them.
pub mod election {
    pub use crate::recipes::{ElectionPhase, ElectionProgress};
}

/// Types for locks that are [held for maintenance](LockNode::hold_for_maintenance).
pub mod maintenance {
    pub use crate::contend::{MaintenanceEnd, MaintenanceHold};
}

/// The guard of a participant inside a [`DoubleBarrier`].
pub mod barrier {
    pub use crate::recipes::Entered;
}

/// Types for the items of a [`DistributedQueue`] and a [`PriorityQueue`].
pub mod queue {
    pub use crate::recipes::Items;
    pub use crate::recipes::LeasedItem;
}

/// The coordinator and the participants of a [`TwoPhaseCommit`], with their votes and decisions.
pub mod commit {
    pub use crate::recipes::Coordinator;
    pub use crate::recipes::Participant;
    pub use crate::recipes::{Decision, ParticipantState, RoundState, Vote};
}

/// Types for the members of a [`Group`].
pub mod group {
    pub use crate::recipes::Member;
    pub use crate::recipes::Membership;
}

/// Data with its version, as a [`SharedValue`] and a [`Znode`] return them.
pub mod value {
    pub use crate::recipes::{Version, Versioned};
}

/// How a [`Znode`] is created, what the server knows about it, and the results of a
/// [`Transaction`].
pub mod znode {
    pub use crate::recipes::StepResult;
    pub use crate::recipes::ZnodeStat;
    pub use crate::recipes::{CreateMode, CreateOptions};
}

/// The results of a [`Once`].
pub mod once {
    pub use crate::recipes::{OnceMark, OnceOutcome};
}

// What can be sent to other threads, and used by several at once. The guards of reentrant locks stay on
// their thread: see ReentrantGuard and MultiGuard.
const _: () = {
    const fn sent<T: Send>() {}
    const fn shared<T: Send + Sync>() {}
    shared::<(Client, ClientBuilder, ClientStats, Subscription)>();
    shared::<(SessionState, SessionId, Event, Cancel, Wait)>();
    shared::<(Error, ErrorKind, Result<()>, Acl, Permissions, FencingToken)>();
    shared::<(DistributedLock, DistributedRwLock, DistributedSemaphore)>();
    shared::<(ReentrantLock, MultiLock)>();
    #[cfg(feature = "tls")]
    shared::<Tls>();
    #[cfg(feature = "sasl")]
    shared::<Sasl>();
    shared::<(LockGuard, ReadGuard, WriteGuard, Permit, Hold, Lost, LossReason)>();
    shared::<(Contender, ContenderKind, ListedLock, LockKind, NodeNaming, HandOver)>();
    shared::<(LockList, UnlistedReason)>();
    shared::<(LockNode, LeaderElection, Leadership)>();
    shared::<(election::ElectionProgress, election::ElectionPhase)>();
    shared::<Barrier>();
    shared::<(DoubleBarrier, barrier::Entered)>();
    shared::<(DistributedQueue, queue::Items, queue::LeasedItem)>();
    shared::<PriorityQueue>();
    shared::<TwoPhaseCommit>();
    shared::<(commit::Coordinator, commit::Participant, commit::RoundState)>();
    shared::<(commit::ParticipantState, commit::Decision, commit::Vote)>();
    shared::<(Group, group::Membership, group::Member)>();
    shared::<(SharedValue, value::Versioned, value::Version)>();
    shared::<SharedCounter>();
    shared::<(Znode, znode::CreateMode, znode::CreateOptions)>();
    shared::<(znode::ZnodeStat, znode::StepResult)>();
    shared::<(Once, once::OnceMark, once::OnceOutcome<()>)>();
    sent::<(Changes<Vec<Contender>>, Transaction<'_>)>();

    // What `new` and `builder` take as their client.
    const fn client_from<T: Into<Client>>() {}
    client_from::<Client>();
    client_from::<&Client>();
    #[cfg(feature = "zookeeper")]
    {
        client_from::<zookeeper::ZooKeeper>();
        client_from::<std::sync::Arc<zookeeper::ZooKeeper>>();
        client_from::<&std::sync::Arc<zookeeper::ZooKeeper>>();
    }
};
