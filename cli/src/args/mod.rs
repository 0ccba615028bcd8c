//! What zklock is told: the command line, its defaults from files, and the manual that is made of both.

mod config;
mod manual;
#[cfg(target_os = "linux")]
mod on_loss_and_on_ask;
mod options;

pub(crate) use self::config::definition;
pub(crate) use self::manual::{page_of, write_all};
#[cfg(target_os = "linux")]
pub(crate) use self::on_loss_and_on_ask::{OnAsk, OnLoss};
pub(crate) use self::options::{
    Action, Ask, Break, Check, Deadlocks, Doctor, Global, Graph, Hold, Ls, Man, OneLock, Options,
    Release, Serve, Test, Token, TokenCheck, Top, WaitFor, Watch,
};
#[cfg(target_os = "linux")]
pub(crate) use self::options::{HowToWait, IfUnavailable, Lead, Linger, Run, Supervision};
