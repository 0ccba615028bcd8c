//! Looks at contenders, locks and waits, once or again and again; asks holders to release, and breaks locks.

mod ask_each;
mod contender;
mod holders;
mod kept_lists;
mod lock_list;
mod look;
mod pace;
mod reading;
mod refresh;
mod revoke;
mod waits;

pub use contender::Contender;
pub(crate) use contender::{HIDDEN, contenders, created_at, first_contender, look_for_first};
pub(crate) use holders::observe;
pub use lock_list::{ListedLock, LockKind, LockList, UnlistedReason};
pub(crate) use look::look_at_waits;
pub(crate) use revoke::{ask_contender, ask_holders, break_off, delete_contender};
pub(crate) use waits::BETWEEN_LOOKS;
pub use waits::{Deadlock, WaitingHolder, Waits};
