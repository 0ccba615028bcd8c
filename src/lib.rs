//! Distributed locks on ZooKeeper for programs with threads: `lock()` blocks and returns a guard,
//! and dropping the guard releases the lock.
//!
//! A guard knows when its lock is lost, every wait can have a limit, and a call says that others have
//! the lock only if it has seen them: not when ZooKeeper is down. The other recipes of ZooKeeper stand
//! on the same engine and sessions.
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
//! Bind a guard to a name: `let _ = lock.lock()?;` unlocks at once, as does `lock.try_lock()?;`, and
//! no lint that is on by default warns of it.
//!
//! The module [`guide`] says which recipe to use when, and how sure each call is. The
//! pages in the folder `docs` of the repository have the exact guarantees, all faults, stopping a program,
//! async programs, and the calls of Curator and kazoo beside ours.
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
//! Each can be acquired without a limit, tried, tried for some time, and cancelled ([`Cancel`]). A
//! guard says whether it holds (`is_held`, `ensure_held`, [`lost`](Hold::lost),
//! [`on_lost`](Hold::on_lost)), for how long that is certain
//! ([`lease_left`](Hold::lease_left)), and has a [`FencingToken`] where holders have an order.
//!
//! `contenders` lists who holds and who waits ([`Contender`]), `observe` reports changes
//! ([`Changes`]), `request_release` asks a holder to release, and `break_lock` removes one by force.
//! [`NodeNaming`] decides which clients in other languages can share a lock, [`Acl`] who may touch it.
//!
//! [`Once`], a job that runs once for each key on any of many hosts, is built on a lock.
//!
//! # Queues
//!
//! | Type | What it is |
//! |---|---|
//! | [`DistributedQueue`] | items in order: [taken](queue::Items::take) at most once, or [leased](DistributedQueue::lease) at least once ([`LeasedItem`](crate::queue::LeasedItem)) |
//! | [`PriorityQueue`] | items by priority, taken at most once |
//!
//! # Coordination
//!
//! | Type | What it is |
//! |---|---|
//! | [`Barrier`] | blocks all who wait until it is lifted |
//! | [`DoubleBarrier`] | a fixed number of participants begin together and end together |
//! | [`TwoPhaseCommit`] | named participants vote, and all learn the same decision |
//! | [`Group`] | who is there; a [`Membership`](crate::group::Membership) comes back by itself in a new session |
//! | [`SharedValue`], [`SharedCounter`] | settings that all clients see; a counter that loses no addition |
//!
//! # Client
//!
//! [`Client`] is one session, kept over lost connections; [`ClientBuilder`] has its settings,
//! [`Retry`] the limits for trouble, [`SessionState`] its states. The client also reads and writes a
//! program's own nodes on that session ([`znode`](Client::znode),
//! [`transaction`](Client::transaction)); a guard's [`transaction`](Hold::transaction) takes effect
//! only while the guard holds. [`on_event`](ClientBuilder::on_event) reports each [`Event`]. The feature `testing` starts servers for tests.
//!
//! # Errors
//!
//! All calls return [`Error`]; [`kind`](Error::kind) is for programs, the message for people.
//!
//! | [`ErrorKind`] | What it means | [outage](Error::is_outage) | [retryable](Error::is_retryable) | [may have taken effect](Error::may_have_taken_effect) | What to do |
//! |---|---|---|---|---|---|
//! | [`Connect`](ErrorKind::Connect) | no server answered in time; nothing was changed | yes | yes | | retry later, alert |
//! | [`ConnectionLoss`](ErrorKind::ConnectionLoss) | the request was sent, the reply lost | yes | | **yes** | look what happened before you repeat it |
//! | [`SessionLost`](ErrorKind::SessionLost) | the session ended, and with it what was held | yes | yes | | stop the work, acquire again |
//! | [`Lost`](ErrorKind::Lost) | what was held was lost although the session lives: its node was deleted | | yes | | stop the work, acquire again |
//! | [`Taken`](ErrorKind::Taken) | another client uses the name | | yes | | retry later, or choose another name |
//! | [`Full`](ErrorKind::Full) | a double barrier has all its participants | | yes | | retry in the next round |
//! | [`SequenceExhausted`](ErrorKind::SequenceExhausted) | the sequence numbers of the path are used up | | yes | | retry when the path is empty |
//! | [`System`](ErrorKind::System) | this process got no thread or socket | | yes | | raise its limits |
//! | [`Conflict`](ErrorKind::Conflict) | other clients use another number of permits or participants, or another vote was cast | | | | make them agree |
//! | [`NotFound`](ErrorKind::NotFound) | what the call needs does not exist | | | | create it |
//! | [`AlreadyExists`](ErrorKind::AlreadyExists) | what the call was to create exists | | | | use what exists |
//! | [`NotEmpty`](ErrorKind::NotEmpty) | a znode with children cannot be deleted | | | | delete them first |
//! | [`VersionMismatch`](ErrorKind::VersionMismatch) | a transaction asked for another version of a znode | | | | read it again |
//! | [`Unsupported`](ErrorKind::Unsupported) | a program's own handle cannot do it: transactions | | | | use [`Client::connect`] |
//! | [`InvalidName`](ErrorKind::InvalidName) | a path, name or connect string is malformed | | | | correct it |
//! | [`InvalidArgument`](ErrorKind::InvalidArgument) | a count, duration, ACL or data cannot be accepted | | | | correct it |
//! | [`TooLarge`](ErrorKind::TooLarge) | a request or reply is over a limit | | | | store less, or raise the limit |
//! | [`NotAuthorized`](ErrorKind::NotAuthorized) | an ACL forbids the operation | | | | change the ACL or the credentials |
//! | [`AuthFailed`](ErrorKind::AuthFailed) | the server rejected the credentials | | | | correct them |
//! | [`Cancelled`](ErrorKind::Cancelled) | a [`Cancel`] was tripped | | | | end |
//! | [`Closed`](ErrorKind::Closed) | the client was closed, or the process was forked | | | | make a new client |
//! | [`Server`](ErrorKind::Server) | the server gave an unexpected answer | | | | read the message and the server's log |
//!
//! **`Ok(None)` is no error, and never an outage.** It means that others have it: in this call a
//! server said that others hold the lock or that the queue is empty, or another thread of this
//! process holds the lock. So does `false` of [`Barrier::wait_within`]. If no server answered in time,
//! the call fails with [`Connect`](ErrorKind::Connect) at the moment at which it would have returned
//! `Ok(None)`. Calls without a limit keep trying during an outage.
//!
//! # Guarantees
//!
//! - **One holder at a time** among all clients of the ensemble, provided that each stops when its
//!   guard says that the lock is lost. A guard says so by this machine's own clock, before the
//!   ensemble passes the lock on.
//! - **First come, first served**: the release of a mutex wakes one waiter, and the ensemble sends
//!   the news of it to at most three.
//! - **No stray nodes**, however a call ends; **no false grant** by a node that is not the caller's.
//! - **Limits are kept**, to within 50 ms, whatever the network does.
//! - **Tokens grow** from holder to holder, within the life of one ensemble's data.
//!
//! No lock can stop a holder that is paused between a look at its guard and the write that follows.
//! A receiver that remembers the highest [`FencingToken`] and refuses lower ones closes that gap.
//! If the receiver is ZooKeeper itself, use a guard's [`transaction`](Hold::transaction).
//!
//! # Heartbeat and lease
//!
//! The *lease* is the time for which the client may trust that its session lives. Heartbeats that only
//! the ensemble's leader can answer renew it, at most nine in a session timeout while all is well. Idle
//! or busy, a client always has [`Client::outage_limit`] left: locks survive every outage below that, and
//! none longer than the [session timeout](ClientBuilder::session_timeout). When the lease ends, the
//! session is [`Lost`](SessionState::Lost), before the ensemble can expire it, provided that no server's
//! tick (`tickTime`) is longer than the one that [is stated](ClientBuilder::tick_time) or reckoned with.
//! A crashed holder blocks the others for the session timeout. After a lost session the same [`Client`]
//! and locks work again, on a new one.
//!
//! # The connection
//!
//! [`Client::connect`] has a connection of its own: one socket, one thread, nothing that listens.
//! That of the [`zookeeper`](https://docs.rs/zookeeper) crate cannot carry a lock: it sets no watches again after a reconnection, has no
//! timeout for a silent server, and fails no call when a session has expired and another one begins. A program that has a
//! handle of that crate already can lock [with it](Client#impl-From<Arc<ZooKeeper>>-for-Client),
//! with these limits.
//!
//! # Threads
//!
//! A connected [`Client`] has the thread `zklock-link`, or `zklock-handle` if it uses a program's
//! handle. Other threads start on demand and end by themselves:
//!
//! - `zklock-open`, `zklock-dial` and `zklock-resolve` while connecting
//! - `zklock-reaper` for deletes in the background, and for the end of what is
//!   [kept](DistributedLock::keep_for)
//! - `zklock-event` for callbacks, which may block and may call the library
//! - `zklock-member`, at most 32 for a client, for each [`Membership`](crate::group::Membership) that
//!   was lost and rejoins
//! - on a program's handle, `zklock-call`, at most 16 for a client, for calls with a deadline or a
//!   [`Cancel`]; and `zklock-drop` when the last use of the handle ends
//!
//! [`Client::stats`] counts them. A forked child cannot use its parent's client.
//!
//! # Logging
//!
//! The crate logs with [`log`](https://docs.rs/log): events, never single requests, and never
//! credentials. What is an [`Event`], too, is logged as the line that it prints as. An outage is two lines at level `warn` at its start (the connection is lost, no server
//! can be reached), one a minute, and a line at level `info` at its end. A session that is lost in it is
//! one line more at level `warn`, and so is each lock.
//!
//! | Target | What it logs |
//! |---|---|
//! | `zklock::link` | connections, outages |
//! | `zklock::client`, `zklock::session` | changes of the state, pauses of the process; what old servers cannot do |
//! | `zklock::contend` | contenders of incompatible clients, locks that were broken; at level `debug`, each lock that is waited for, acquired or released |
//! | `zklock::hold` | lost locks, requests to release |
//! | `zklock::election`, `zklock::group`, `zklock::queue` | campaigning again after errors; members that cannot rejoin; lost items |
//! | `zklock::reaper`, `zklock::events` | nodes that cannot be deleted; callbacks that panicked |
//! | `zklock::testing` | servers for tests |
//!
//! # Features
//!
//! - `zookeeper`, on by default: locks on a program's own handle of the `zookeeper` crate, by
//!   [`From<Arc<ZooKeeper>>`](Client#impl-From<Arc<ZooKeeper>>-for-Client). Without it
//!   (`default-features = false`) that crate is not built, nor what it brings along: a `mio` of 2018,
//!   which future compilers may refuse.
//! - `tls` adds [`ClientBuilder::tls`](ClientBuilder#method.tls): encrypted connections, with certificates
//!   (rustls with ring).
//! - `sasl` adds [`ClientBuilder::sasl`](ClientBuilder#method.sasl): authentication by name and password
//!   (DIGEST-MD5).
//! - `testing-local` adds the module `testing`, for development: ZooKeeper servers for tests, from a local
//!   installation, which can be stopped, started again and paused, and expire sessions.
//! - `testing` starts these servers in Docker, too. Only this feature brings an async runtime.
//!
//! # Versions
//!
//! Semantic versioning: programs that build with 0.1.0 build with every 0.1.x.
//!
//! - **0.2 may change anything.** The kinds of errors, states and reasons may grow in any version.
//! - **The `zookeeper` crate**, version 0.8: only its handle is part of the public interface, with the
//!   feature of that name. The crate is exported as `zklock::zookeeper`. Another 0.x of it is a new major
//!   version here.
//! - **Rust 1.85** or newer; 1.89 with the feature `testing`. Only a minor version may require a newer
//!   compiler.
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
    #[doc = include_str!("../docs/hand-over.md")]
    struct HandOver;
    #[doc = include_str!("../docs/stopping.md")]
    struct Stopping;
    #[cfg(feature = "testing")]
    #[doc = include_str!("../docs/testing.md")]
    struct Testing;
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

// For the tests of those who use this crate: a server.
#[cfg(feature = "testing-local")]
pub mod testing;

// The ground: values, errors, names, and where threads, channels, locks and time come from.
mod acl;
mod connect_string;
mod error;
mod event;
mod fencing;
mod logging;
mod loss_reason;
mod path;
mod rt;
mod session_id;
mod session_notice;
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

// For this crate's own benchmarks: not part of the interface.
#[cfg(feature = "_bench")]
#[doc(hidden)]
#[path = "../tests/sim/grants_at_once.rs"]
pub mod bench_only;

// What every program uses.
pub use acl::{Acl, Permissions};
pub use contend::handover_policy::HandOver;
pub use contend::hold::Hold;
pub use contend::hold_end::Lost;
pub use contend::list_contenders::Contender;
pub use contend::list_locks::{ListedLock, LockKind, LockList, UnlistedReason};
pub use contend::ticket::{ContenderKind, NodeNaming};
pub use error::{Error, ErrorKind, Result};
pub use event::Event;
pub use fencing::FencingToken;
#[cfg(feature = "sasl")]
pub use link::sasl::Sasl;
#[cfg(feature = "tls")]
pub use link::tls::Tls;
pub use loss_reason::LossReason;
pub use recipes::barrier::Barrier;
pub use recipes::common_to_locks::LockNode;
pub use recipes::double_barrier::DoubleBarrier;
pub use recipes::election::{LeaderElection, Leadership};
pub use recipes::group::Group;
pub use recipes::multi::{MultiGuard, MultiLock};
pub use recipes::mutex::{DistributedLock, LockGuard};
pub use recipes::once::Once;
pub use recipes::priority_queue::PriorityQueue;
pub use recipes::queue::DistributedQueue;
pub use recipes::reentrant::{ReentrantGuard, ReentrantLock};
pub use recipes::rwlock::{DistributedRwLock, ReadGuard, WriteGuard};
pub use recipes::semaphore::{DistributedSemaphore, Permit};
pub use recipes::shared_counter::SharedCounter;
pub use recipes::shared_value::SharedValue;
pub use recipes::transaction::Transaction;
pub use recipes::two_phase_commit::TwoPhaseCommit;
pub use recipes::znode::Znode;
pub use session::cancel::Cancel;
pub use session::client::{Client, ClientBuilder, ClientStats};
pub use session::notify::Subscription;
pub use session::observed_changes::Changes;
pub use session::retry_limits::Retry;
pub use session::status::SessionState;
pub use session::wait_limit::Wait;
pub use session_id::SessionId;
#[cfg(feature = "zookeeper")]
pub use zookeeper;

/// What a [`LeaderElection`] returns.
pub mod election {
    pub use crate::recipes::election::progress::{ElectionPhase, ElectionProgress};
}

/// What a [`Barrier`] and a [`DoubleBarrier`] return.
pub mod barrier {
    pub use crate::recipes::double_barrier::Entered;
}

/// What a [`DistributedQueue`] and a [`PriorityQueue`] return.
pub mod queue {
    pub use crate::recipes::queue::Items;
    pub use crate::recipes::queue::lease::LeasedItem;
}

/// The coordinator and the participants of a [`TwoPhaseCommit`], and what they say.
pub mod commit {
    pub use crate::recipes::two_phase_commit::coordinator::Coordinator;
    pub use crate::recipes::two_phase_commit::participant::Participant;
    pub use crate::recipes::two_phase_commit::round::{
        Decision, ParticipantState, RoundState, Vote,
    };
}

/// The members of a [`Group`].
pub mod group {
    pub use crate::recipes::group::Member;
    pub use crate::recipes::group::rejoining_membership::Membership;
}

/// Data with their version, as a [`SharedValue`] and a [`Znode`] return them.
pub mod value {
    pub use crate::recipes::version_and_stat::{Version, Versioned};
}

/// How a [`Znode`] is created, what the server knows about it, and the results of a
/// [`Transaction`].
pub mod znode {
    pub use crate::recipes::create_options::{CreateMode, CreateOptions};
    pub use crate::recipes::transaction::StepResult;
    pub use crate::recipes::version_and_stat::ZnodeStat;
}

/// The results of a [`Once`].
pub mod once {
    pub use crate::recipes::once::{OnceMark, OnceOutcome};
}

// What can be sent to other threads, and used by several at once. The guards of reentrant locks stay on
// their thread: see ReentrantGuard and MultiGuard.
const _: () = {
    const fn sent<T: Send>() {}
    const fn shared<T: Send + Sync>() {}
    shared::<(Client, ClientBuilder, ClientStats, Subscription)>();
    shared::<(SessionState, SessionId, Event, Cancel, Wait, Retry)>();
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
    #[cfg(feature = "testing-local")]
    shared::<(testing::ZooKeeperServer, testing::ZooKeeperServerBuilder)>();

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
