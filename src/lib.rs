//! Blocking distributed locks on ZooKeeper, with RAII guards.
//!
//! ```no_run
//! use zklock::{Client, DistributedLock};
//!
//! let zk = Client::connect("zk1:2181,zk2:2181/app")?;
//! let lock = DistributedLock::new(&zk, "/locks", "nightly");
//! let guard = lock.lock()?; // blocks until it is ours
//! println!("at work with token {}", guard.fencing_token());
//! drop(guard); // or `guard.unlock()?` to be told
//! # Ok::<(), zklock::Error>(())
//! ```

// The map: each floor uses only those below it.

mod acl; // ground
mod contend; // the protocol engine: tickets, the rule, the queue, holds
mod error;
mod hosts;
mod link; // the real connection, behind the `zookeeper` crate's handle
mod path;
mod recipes; // the mutex, and what else is made of the engine
mod rt;
mod session; // the client: sessions, waiting, background work

pub use acl::{Acl, Permissions};
pub use contend::contenders::Contender;
pub use contend::hold::{FencingToken, LossReason, Lost};
pub use contend::ticket::Class;
pub use error::{Error, ErrorKind, Result};
pub use recipes::mutex::{DistributedLock, DistributedLockBuilder, LockGuard};
pub use session::client::{Client, ClientBuilder, ClientStats, SessionState};
pub use session::wake::Cancel;
