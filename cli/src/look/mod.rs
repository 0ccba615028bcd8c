//! What shows locks and changes nothing. `describe_contenders` is how their parts are called and shown.

mod all_locks_check;
mod check;
mod clock_check;
pub(crate) use clock_check::time_of_ensemble;
pub(crate) mod deadlocks;
pub(crate) mod describe_contenders;
mod doctor;
mod findings;
mod four_letter_words;
mod graph;
mod hold_times_by_client;
mod lock_check;
mod ls;
mod server_settings_check;
mod show_test_leader;
mod top;
mod watch_and_wait;

pub(crate) use self::check::check;
pub(crate) use self::deadlocks::deadlocks;
pub(crate) use self::doctor::doctor;
pub(crate) use self::graph::graph;
pub(crate) use self::ls::ls;
pub(crate) use self::show_test_leader::{leader, show, test};
pub(crate) use self::top::top;
pub(crate) use self::watch_and_wait::{wait, wait_until, watch};
