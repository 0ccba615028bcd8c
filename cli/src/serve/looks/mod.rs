//! What was seen in the looks so far, and what that says of each lock: without IO.

#[cfg(test)]
mod example_looks;
mod history;
mod lock_states;
mod seen_in_one_look;

#[cfg(test)]
pub(crate) use self::example_looks::{at, deadlock, lock, look};
pub(crate) use self::history::{Held, History};
pub(crate) use self::lock_states::{Lock, Model, State};
#[cfg(test)]
pub(crate) use self::seen_in_one_look::{Edge, SeenLock};
pub(crate) use self::seen_in_one_look::{Seen, SeenContender};
