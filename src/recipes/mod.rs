//! The recipes.
//!
//! - Locks: [`mutex`], [`rwlock`], [`semaphore`], [`reentrant`], [`multi_lock`]; and [`election`]. Each consists
//!   of a form, which tells the engine what its contenders ask for, and a guard, which dereferences to its
//!   [`Hold`](crate::Hold); they share [`lock_node`].
//! - Others: [`barrier`], [`double_barrier`], [`two_phase_commit`], [`group`]; [`once`], which is a lock and
//!   marks; [`queue`] and [`priority_queue`], which share the items of the first. They use
//!   [`recipe_znode`], some through a [`znode`].
//! - Data: [`znode`], [`shared_value`], [`shared_counter`], [`transaction`], and their [`version_and_stat`] and
//!   [`znode_create_options`]; [`change_at_most_once`] makes a change that may have no answer, [`permit`] a transaction whose
//!   outcome can be found out, [`children_generation`] tells from a stat whether a node has new children.

pub(crate) mod barrier;
mod change_at_most_once;
mod children_generation;
pub(crate) mod double_barrier;
pub(crate) mod election;
pub(crate) mod group;
pub(crate) mod lock_node;
pub(crate) mod multi_lock;
pub(crate) mod mutex;
pub(crate) mod once;
mod permit;
pub(crate) mod priority_queue;
pub(crate) mod queue;
mod recipe_znode;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod shared_counter;
pub(crate) mod shared_value;
pub(crate) mod transaction;
pub(crate) mod two_phase_commit;
pub(crate) mod version_and_stat;
pub(crate) mod znode;
pub(crate) mod znode_create_options;
