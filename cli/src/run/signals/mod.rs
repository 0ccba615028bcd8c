//! Signals that zklock receives, and the terminal from which some of them come.

mod received;
mod terminal;

pub(crate) use self::received::{ASKING_TO_END, ENDING, block, next, source, stop_job};
pub(crate) use self::terminal::Terminal;
