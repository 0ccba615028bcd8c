//! What shows locks and changes nothing. `contender_json_and_kinds` is how their parts are called and shown.

mod check;
mod contender_json_and_kinds;
mod deadlocks;
mod graph;
mod hold_times_by_client;
mod ls;
mod may_hold_too;
mod path_without_contenders;
mod show_test_leader;
mod watch_and_wait;

pub(crate) use self::check::check;
pub(crate) use self::contender_json_and_kinds::{
    as_json, is_orphan, lock_on, permits, why_unlisted,
};
pub(crate) use self::deadlocks::{
    BETWEEN_LOOKS, deadlocks, in_a_sentence, in_words, look_for_deadlocks, what_ends,
};
pub(crate) use self::graph::graph;
pub(crate) use self::ls::{Row, ages, ls};
#[cfg(target_os = "linux")]
pub(crate) use self::may_hold_too::is_named_by_kazoo;
pub(crate) use self::may_hold_too::why_and_what_to_do;
pub(crate) use self::path_without_contenders::{LeaderNode, PathWithoutContenders};
pub(crate) use self::show_test_leader::{leader, show, test};
pub(crate) use self::watch_and_wait::{wait, wait_until, watch};
