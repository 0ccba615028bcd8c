//! The recipes. Locks: each a form for the engine, and a guard; [`site`] and [`guard`]: what they
//! have in common. The others stand on [`place`].

pub(crate) mod barrier;
pub(crate) mod double_barrier;
mod guard;
pub(crate) mod multi;
pub(crate) mod mutex;
mod place;
pub(crate) mod reentrant;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
mod site;
pub(crate) mod two_phase_commit;
