//! The recipes: each a form for the engine, and a guard. [`site`] and [`guard`]: what they have in
//! common.

pub(crate) mod candidates;
pub(crate) mod election;
mod guard;
pub(crate) mod lead;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
mod site;
