//! The one protocol engine. [`ticket`]: what a contender's node name says; [`rule`]: who
//! blocks whom; [`queue`]: the way to the front, a state machine without IO; [`acquire`]
//! carries out what it says; [`hold`]: what a guard owns; [`contenders`]: looking on.

pub(crate) mod acquire;
pub(crate) mod contenders;
pub(crate) mod hold;
pub(crate) mod queue;
pub(crate) mod rule;
pub(crate) mod ticket;
