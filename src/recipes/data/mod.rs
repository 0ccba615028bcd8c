//! Znodes, shared values and counters, transactions, and what recipes without contenders are built on.

mod change_at_most_once;
mod create_options;
mod generation;
mod node_config;
mod permit;
mod shared_counter;
mod shared_value;
mod transaction;
mod version;
mod znode;

pub(crate) use change_at_most_once::{Attempts, make_once};
pub use create_options::{CreateMode, CreateOptions};
pub(crate) use generation::Generation;
pub(crate) use node_config::{NodeConfig, placed};
pub(crate) use permit::{Outcome, Permits};
pub use shared_counter::SharedCounter;
pub use shared_value::SharedValue;
pub use transaction::{StepResult, Transaction};
pub use version::{Version, Versioned, ZnodeStat};
pub use znode::Znode;
