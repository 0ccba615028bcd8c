//! The recipes. Locks: each a form for the engine, and a guard; [`lock_config`] and [`guard_macro`]: what they
//! have in common. The others stand on [`node_config`]; queues have [`queue`]'s items in common.

pub(crate) mod barrier;
pub(crate) mod changes;
pub(crate) mod double_barrier;
pub(crate) mod election;
pub(crate) mod group;
mod guard_macro;
mod lock_config;
pub(crate) mod multi;
pub(crate) mod mutex;
mod node_config;
pub(crate) mod priority_queue;
pub(crate) mod queue;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod shared_counter;
pub(crate) mod shared_value;
pub(crate) mod two_phase_commit;
