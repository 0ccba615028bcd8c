//! The recipes. Locks: each a form for the engine, and a guard; [`site`] and [`guard`]: what they
//! have in common. The others stand on [`place`]; queues have [`queue`]'s items in common.

mod guard;
pub(crate) mod multi;
pub(crate) mod mutex;
mod place;
pub(crate) mod priority_queue;
pub(crate) mod queue;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
mod site;
