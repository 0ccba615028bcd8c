//! The one protocol engine. [`ticket`]: what a contender's node name says; [`rule`]: who
//! blocks whom; [`protocol`]: the way to the front, a state machine without IO; [`acquire`]
//! carries out what it says; [`hold`]: what a guard owns; [`handover`]: those of one process, who share
//! a node; [`downgrade`]: from one class to
//! another without a gap; [`interop_warning`]: those who do not respect us. From outside: [`request`]: one question; [`contenders`]: looking on;
//! [`observe`]: going on looking; [`revoke`]: asking holders to let go.

pub(crate) mod acquire;
pub(crate) mod contenders;
pub(crate) mod downgrade;
pub(crate) mod handover;
pub(crate) mod hold;
pub(crate) mod interop_warning;
pub(crate) mod observe;
pub(crate) mod protocol;
pub(crate) mod request;
pub(crate) mod revoke;
pub(crate) mod rule;
pub(crate) mod ticket;
