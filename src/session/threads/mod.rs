//! Threads that start on demand and end by themselves: callbacks, reports of events, other work.

mod callbacks;
mod reports;
mod workers;

pub(crate) use callbacks::{Callbacks, InOrder, run_callback};
pub(crate) use reports::{OnReport, Reports};
#[cfg(feature = "zookeeper")]
pub(crate) use workers::Workers;
