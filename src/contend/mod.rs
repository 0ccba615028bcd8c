//! The lock protocol. Locks, semaphores and elections differ in their rule and in their guard only.
//!
//! - [`name`]: what the names, stats and data of a lock node's children say, and which of them blocks which.
//! - [`mod@acquire`]: from the request to the grant.
//! - [`hold`]: what a guard owns, and what ends it.
//! - [`handover`]: threads of one process share a node.
//! - [`downgrade`]: from one kind of contender to another without a gap.
//! - [`waiting_room`]: contenders with patience.
//! - [`maintenance_hold`]: holds without a session.
//! - [`mod@observe`]: looks at contenders and locks, asks holders to release, and breaks locks.

mod acquire;
mod downgrade;
mod handover;
mod hold;
mod maintenance_hold;
mod name;
mod observe;
mod waiting_room;

pub(crate) use acquire::{
    Contention, Limits, OthersSeen, acquire, acquire_after, insist, insist_within, pursue,
    report_end,
};
pub use handover::HandOver;
pub(crate) use handover::{Key, Policy, Sharer};
pub(crate) use hold::{COMMIT, DROP_LIMIT, JointRelease, SHORTEST, no_transactions};
pub use hold::{Hold, Lost};
pub(crate) use maintenance_hold::{
    Terms, change_maintenance, hold_for_maintenance, queue_maintenance, release_maintenance,
};
pub use name::{ContenderKind, MaintenanceEnd, MaintenanceHold, NodeNaming};
pub(crate) use name::{
    Form, MOST_PATIENCE, SEQUENCE_MARGIN, Ticket, contenders_in_order, facts, in_grant_order,
    is_contender, is_request, with_facts, with_patience,
};
pub use observe::{
    Contender, Deadlock, ListedLock, LockKind, LockList, UnlistedReason, WaitingHolder, Waits,
};
pub(crate) use observe::{
    HIDDEN, ask_contender, ask_holders, break_off, contenders, created_at, first_contender, observe,
};
pub(crate) use waiting_room::{acquire_in_turn, is_room, room_of};
