//! The recipes.
//!
//! - [`locks`], and [`election`]: each consists of a form, which tells the engine what its contenders ask
//!   for, and a guard, which dereferences to its [`Hold`](crate::Hold).
//! - [`data`]: znodes, values, counters and transactions.
//! - Others: [`barrier`], [`double_barrier`], [`two_phase_commit`], [`group`]; [`once`], which is a lock and
//!   marks; [`queue`] and [`priority_queue`], which share the items of the first.

mod barrier;
mod data;
mod double_barrier;
mod election;
mod group;
mod locks;
mod once;
mod priority_queue;
mod queue;
mod two_phase_commit;

pub use barrier::Barrier;
pub use data::{
    CreateMode, CreateOptions, SharedCounter, SharedValue, StepResult, Transaction, Version,
    Versioned, Znode, ZnodeStat,
};
pub use double_barrier::{DoubleBarrier, Entered};
pub use election::{ElectionPhase, ElectionProgress, LeaderElection, Leadership};
pub use group::{Group, Member, Membership};
pub use locks::{
    DistributedLock, DistributedRwLock, DistributedSemaphore, LockGuard, LockNode, MultiGuard,
    MultiLock, Permit, ReadGuard, ReentrantGuard, ReentrantLock, WriteGuard,
};
pub use once::{Once, OnceMark, OnceOutcome};
pub use priority_queue::PriorityQueue;
pub use queue::{DistributedQueue, Items, LeasedItem};
pub use two_phase_commit::{
    Coordinator, Decision, Participant, ParticipantState, RoundState, TwoPhaseCommit, Vote,
};
