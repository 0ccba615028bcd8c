//! The link: it owns the connection to the ensemble.
//!
//! One thread, one session, one socket, and nothing that listens. A caller whose request finds
//! nobody at the line sends it by itself; what comes in, and what must be waited for, is the
//! thread's. Every request is answered once, in bounded time: by the server, or with a lost
//! connection or session. [`core`] is the protocol, [`lease`] what is known of the session's life,
//! [`request_limit`] how large requests may be, [`dial`] the way to a server, [`frame`] the bytes. Callers have a
//! [`handle`]; [`runner`] is the thread, with which they share the [`locked_connection`]; [`messages`] are what
//! they tell each other.

pub(crate) mod core;
pub(crate) mod dial;
pub(crate) mod frame;
pub(crate) mod handle;
mod lease;
mod locked_connection;
pub(crate) mod messages;
pub(crate) mod request_limit;
mod runner;

#[cfg(test)]
#[cfg(not(shuttle))]
mod panic_and_fork_tests;
