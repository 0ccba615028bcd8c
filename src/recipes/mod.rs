//! The recipes. Each lock consists of a form, which tells the engine what its contenders ask for,
//! and a guard, which dereferences to its [`Hold`](crate::Hold); the locks share [`lock_config`].
//! The other recipes use [`node_config`], some through a [`znode`]. All queues share the items of [`queue`].

pub(crate) mod barrier;
mod change_once;
pub(crate) mod create_options;
pub(crate) mod double_barrier;
pub(crate) mod election;
mod generation;
pub(crate) mod group;
mod lock_config;
pub(crate) mod multi;
pub(crate) mod mutex;
mod node_config;
pub(crate) mod once;
pub(crate) mod priority_queue;
pub(crate) mod queue;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod shared_counter;
pub(crate) mod shared_value;
pub(crate) mod transaction;
pub(crate) mod two_phase_commit;
pub(crate) mod version;
pub(crate) mod znode;
