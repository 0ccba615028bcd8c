//! Reentrant locks and multi-locks: scenarios 5 and 64 to 67.

mod all_or_none;
mod named_twice;
mod reentrant;

use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);
