//! Who contends, as what, and who blocks whom: all that the children of a lock node tell.
//!
//! Functions without IO, except for the stats of children whose names do not tell ([`child_origin`]).

mod child_origin;
mod facts;
mod maintenance;
mod program;
mod rule;
mod ticket;

pub(crate) use child_origin::{
    ChildOrigin, LastingChildren, ask_origins, children_made, contenders_in_order, is_ignored,
    is_uncertain,
};
pub(crate) use facts::{
    Facts, MOST_NAMED, REQUEST, differ_in_facts_only, facts, is_request, patience_of, with_facts,
    with_facts_of, with_held_for, with_kept_waiting, with_patience, with_wait,
};
pub(crate) use maintenance::{
    EnsembleClock, asked_for, end_of, fitting, held, held_since, is_held,
};
pub use maintenance::{MaintenanceEnd, MaintenanceHold};
pub(crate) use program::{interop_warning, those_who_may_hold_too};
pub(crate) use rule::{
    Rule, Verdict, Watch, count_holders, excludes, has_others, in_grant_order, in_grant_order_by,
};
pub use ticket::{ContenderKind, NodeNaming};
pub(crate) use ticket::{Form, MOST_PATIENCE, SEQUENCE_MARGIN, Ticket, is_contender};
