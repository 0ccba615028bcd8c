//! The recipes: each a rule for the engine, and a guard.

pub(crate) mod mutex;
