//! What changes locks without running a command: asks and breaks, holds and releases, and compares fencing
//! tokens.

mod ask_and_break;
mod beside_other_programs;
mod hold_and_release;
mod token_check;

pub(crate) use self::ask_and_break::{ask, break_lock};
#[cfg(target_os = "linux")]
pub(crate) use self::beside_other_programs::refuse_if_new;
pub(crate) use self::hold_and_release::{hold, release};
pub(crate) use self::token_check::check;
