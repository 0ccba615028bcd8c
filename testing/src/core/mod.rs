//! What a ZooKeeper server decides, without IO, threads and clocks: a request, a session and a time in; an answer, a change
//! and watches out.
//!
//! The server in memory drives it by sockets, zklock's simulation in virtual time with several servers that lag behind their
//! leader. It has the behaviour of ZooKeeper 3.8, and by [`Rules`] that of older and newer servers where locks meet it.

mod acl;
mod decide;
mod error;
mod password;
mod path;
mod request;
mod tree;
mod watches;

pub use acl::{ADMIN, ALL, Acl, CREATE, DELETE, Identity, READ, WRITE};
pub use decide::{Asker, Decision, decide};
pub use error::Error;
pub use password::password;
pub use path::{join, last, parent};
pub use request::{Mode, Reply, Request, Stat, Step, WatchMode, Watched};
pub use tree::{Change, Event, Rules, Transaction, Tree, Trigger};
pub use watches::{Restored, Watches};
