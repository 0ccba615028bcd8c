//! The one protocol engine. [`ticket`]: what a contender's node name says; [`rule`]: who
//! blocks whom; [`queue`]: the way to the front, a state machine without IO; [`acquire`]
//! carries out what it says; [`hold`]: what a guard owns; [`local`]: those of one process, who share
//! a node; [`downgrade`]: from one class to
//! another without a gap; [`neighbours`]: those who do not respect us. From outside: [`ask`]: one question; [`contenders`]: looking on;
//! [`observe`]: going on looking; [`revoke`]: asking holders to let go.

pub(crate) mod acquire;
pub(crate) mod ask;
pub(crate) mod contenders;
pub(crate) mod downgrade;
pub(crate) mod hold;
pub(crate) mod local;
pub(crate) mod neighbours;
pub(crate) mod observe;
pub(crate) mod queue;
pub(crate) mod revoke;
pub(crate) mod rule;
pub(crate) mod ticket;
