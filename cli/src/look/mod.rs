//! What shows locks and changes nothing. `contender_json_and_kinds` is how their parts are called and shown.

pub(crate) mod check;
pub(crate) mod contender_json_and_kinds;
pub(crate) mod deadlocks;
pub(crate) mod doctor;
pub(crate) mod doctor_all_locks;
pub(crate) mod doctor_clock;
pub(crate) mod doctor_one_lock;
pub(crate) mod doctor_quota;
pub(crate) mod doctor_server_settings;
pub(crate) mod findings;
pub(crate) mod four_letter_words;
pub(crate) mod graph;
pub(crate) mod hold_times_by_client;
pub(crate) mod ls;
pub(crate) mod may_hold_too;
pub(crate) mod path_without_contenders;
pub(crate) mod show_test_leader;
pub(crate) mod top;
pub(crate) mod watch_and_wait;
