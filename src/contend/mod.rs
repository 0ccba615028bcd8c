//! The lock protocol. Locks, semaphores and elections differ in their rule and in their guard only.
//!
//! What decides, without IO: [`ticket`] (what a contender's node name says), [`rule`] (who blocks whom),
//! [`core`] (from the request to the grant). What carries that out: [`acquire`], with [`cleanup`] after
//! giving up; [`handover`] and [`shared_node`] for threads of one process, by a [`handover_policy`]; [`hold`] (what a
//! guard owns) with its [`watchdog`]; [`fencing`] tokens, reasons of a [`loss_reason`], [`errors`]; [`downgrade`] from
//! one class to another without a gap. What looks on or interferes: [`list_contenders`], [`observer`], [`revoke`],
//! each by a [`ask_until_answered`]; [`interop_warning`] about clients that do not respect ours.

pub(crate) mod acquire;
pub(crate) mod ask_until_answered;
mod cleanup;
pub(crate) mod core;
pub(crate) mod downgrade;
pub(crate) mod errors;
pub(crate) mod fencing;
pub(crate) mod handover;
pub(crate) mod handover_policy;
pub(crate) mod hold;
pub(crate) mod interop_warning;
pub(crate) mod list_contenders;
pub(crate) mod loss_reason;
pub(crate) mod observer;
pub(crate) mod revoke;
pub(crate) mod rule;
mod shared_node;
pub(crate) mod ticket;
pub(crate) mod watchdog;
