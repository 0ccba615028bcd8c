//! The link: it owns the connection to the ensemble.
//!
//! A link has one thread, one session and one socket, and no listening socket. A caller writes its
//! request itself if the connection is not locked, and may read the answer itself; the link's thread does
//! all else. Every request is answered once, in bounded time: by the server, or with a lost connection or
//! session.
//!
//! - [`protocol`]: bytes and time in, bytes and notices out, without sockets; and the lease.
//! - [`transport`]: the bytes, perhaps encrypted, and who the client is.
//! - [`search`]: finds a server that serves the session.
//! - [`run`]: the thread, and what callers share with it.
//! - [`log_thread`]: writes the link's lines to the program's log.

mod log_thread;
mod protocol;
mod run;
mod search;
mod transport;

#[cfg(all(test, not(shuttle)))]
pub(crate) use protocol::Sizes;
pub(crate) use protocol::{Fields, Frame, Malformed, UnsupportedOperations};
#[cfg(all(test, shuttle))]
pub(crate) use run::Readable;
#[cfg(test)]
pub(crate) use run::ReadingTurn;
pub(crate) use run::{AwaitsServer, DeferredRequest, Link, Outgoing};
pub(crate) use search::{LinkConfig, Resolver};
#[cfg(feature = "sasl")]
pub use transport::Sasl;
#[cfg(feature = "tls")]
pub use transport::Tls;
pub(crate) use transport::{Access, Auth};
