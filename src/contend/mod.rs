//! The lock protocol. Locks, semaphores and elections differ in their rule and in their guard only.
//!
//! - Decides, without IO: [`contender_node_name`] (what a contender's node name says), [`child_origin`] (who contends, where
//!   a name does not say it), [`contender_facts`] (what its data say), [`rule`] (which contender blocks which), [`acquisition_steps`] (from the request to
//!   the grant), [`wait_graph`] (what waits for ever).
//! - Carries that out: [`acquire`] with its [`watched_nodes`] and [`proof_that_others_are_ahead`]; [`downgrade`] from
//!   one kind to another without a gap; [`report_long_wait`]: what is done about one.
//! - Lets more urgent contenders come first: [`waiting_room`]; [`ask_worse_holders`]: they ask holders that are less so.
//! - Holds without a session: [`maintenance_node`] (what their nodes say), [`hold_for_maintenance`], and how waiters
//!   end them ([`end_overdue_maintenance`]).
//! - Shares a node among threads of one process: [`acquire_among_threads`], [`node_shared_by_threads`],
//!   [`handover_among_threads_policy`]; [`held_by_waiting_threads`] (what those hold that wait for it).
//! - Holds: [`hold`] (what a guard owns), its [`held_node`] and [`held_node_watchdog`], for how long at most
//!   ([`hold_limit`]), what its node tells later ([`tell_facts`]), what a thread holds ([`held_by_thread`],
//!   [`guards_given_away`]), how programs wait for its end ([`wait_until_lost`]); [`fenced_commit`]: transactions that take
//!   effect only while the hold's node exists.
//! - Looks on or interferes: [`list_contenders`], [`list_locks`], [`look_at_all_contenders`], [`look_again_at_all_contenders`],
//!   [`observe_holders`], [`ask_and_break`]; how looks send many requests ([`ask_about_many_nodes`],
//!   [`requests_per_second`]), and what a repeated look asks for again: which lists ([`lists_kept_between_looks`]) and which
//!   contenders ([`contenders_to_read_again`]); [`interop_warning`] about clients that do not respect our contenders.

pub(crate) mod acquire;
pub(crate) mod acquire_among_threads;
pub(crate) mod acquisition_steps;
mod ask_about_many_nodes;
pub(crate) mod ask_and_break;
mod ask_worse_holders;
pub(crate) mod child_origin;
pub(crate) mod contender_facts;
pub(crate) mod contender_node_name;
mod contenders_to_read_again;
pub(crate) mod downgrade;
mod end_overdue_maintenance;
pub(crate) mod fenced_commit;
mod guards_given_away;
pub(crate) mod handover_among_threads_policy;
mod held_by_thread;
mod held_by_waiting_threads;
pub(crate) mod held_node;
pub(crate) mod held_node_watchdog;
pub(crate) mod hold;
pub(crate) mod hold_for_maintenance;
pub(crate) mod hold_limit;
pub(crate) mod interop_warning;
pub(crate) mod list_contenders;
pub(crate) mod list_locks;
mod lists_kept_between_looks;
mod look_again_at_all_contenders;
mod look_at_all_contenders;
pub(crate) mod maintenance_node;
mod node_shared_by_threads;
pub(crate) mod observe_holders;
mod own_watch;
pub(crate) mod proof_that_others_are_ahead;
mod report_long_wait;
mod requests_per_second;
pub(crate) mod rule;
mod tell_facts;
pub(crate) mod wait_graph;
pub(crate) mod wait_until_lost;
pub(crate) mod waiting_room;
mod watched_nodes;
