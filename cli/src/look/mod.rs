//! What shows locks and changes nothing. `contender_json_and_kinds` is how their parts are called and shown.

mod check;
mod doctor_all_locks;
mod doctor_clock;
pub(crate) use doctor_clock::time_of_ensemble;
pub(crate) mod contender_json_and_kinds;
pub(crate) mod deadlocks;
mod doctor;
mod doctor_one_lock;
mod doctor_quota;
mod doctor_server_settings;
mod findings;
mod four_letter_words;
mod graph;
mod hold_times_by_client;
mod ls;
pub(crate) mod may_hold_too;
pub(crate) mod path_without_contenders;
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
