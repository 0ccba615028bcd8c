//! The lock protocol. Locks, semaphores and elections differ in their rule and in their guard only.
//!
//! - Decides, without IO: [`ticket`] (what a contender's node name says), [`contender_facts`] (what
//!   its data say), [`rule`] (which contender blocks which), [`acquisition_steps`] (from the request to
//!   the grant), [`wait_graph`] (what waits for ever).
//! - Carries that out: [`acquire`] with its [`watched_nodes`] and [`proof_that_others_are_ahead`]; [`downgrade`] from
//!   one kind to another without a gap; [`long_wait`]: what is done about one.
//! - Lets more urgent contenders come first: [`waiting_room`]; [`ask_worse`]: they ask holders that are less so.
//! - Holds without a session: [`maintenance`] (what their nodes say), [`hold_for_maintenance`], and how waiters end them
//!   ([`maintenance_ahead`]).
//! - Shares a node among threads of one process: [`acquire_among_threads`], [`node_shared_by_threads`],
//!   [`handover_among_threads_policy`]; [`kept_waiting`] (what those hold that wait for it).
//! - Holds: [`hold`] (what a guard owns), its [`held_node`] and [`held_node_watchdog`], for how long at most ([`hold_limit`]), what its node
//!   tells later ([`tell_facts`]), what a thread holds ([`held_by_thread`], [`guards_given_away`]), how programs wait for its end ([`wait_until_lost`]);
//!   [`fenced_commit`]: transactions that take effect only while the hold's node exists.
//! - Looks on or interferes: [`list_contenders`], [`list_locks`], [`list_waits`], [`refresh_waits`], [`observe_holders`],
//!   [`ask_and_break`];
//!   how looks send many requests ([`ask_each`], [`pace`]), which lists need not be asked for ([`kept_lists`]), and which of them a repeated look needs ([`which_to_read`]);
//!   [`interop_warning`] about clients that do not respect our contenders.

pub(crate) mod acquire;
pub(crate) mod acquire_among_threads;
pub(crate) mod acquisition_steps;
pub(crate) mod ask_and_break;
mod ask_each;
mod ask_worse;
pub(crate) mod contender_facts;
pub(crate) mod downgrade;
pub(crate) mod fenced_commit;
mod guards_given_away;
pub(crate) mod handover_among_threads_policy;
mod held_by_thread;
pub(crate) mod held_node;
pub(crate) mod held_node_watchdog;
pub(crate) mod hold;
pub(crate) mod hold_for_maintenance;
pub(crate) mod hold_limit;
pub(crate) mod interop_warning;
mod kept_lists;
mod kept_waiting;
pub(crate) mod list_contenders;
pub(crate) mod list_locks;
mod list_waits;
mod long_wait;
pub(crate) mod maintenance;
mod maintenance_ahead;
mod node_shared_by_threads;
pub(crate) mod observe_holders;
mod pace;
pub(crate) mod proof_that_others_are_ahead;
mod refresh_waits;
pub(crate) mod rule;
mod tell_facts;
pub(crate) mod ticket;
pub(crate) mod wait_graph;
pub(crate) mod wait_until_lost;
pub(crate) mod waiting_room;
mod watched_nodes;
mod which_to_read;
