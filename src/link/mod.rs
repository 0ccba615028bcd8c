//! The link: it owns the connection to the ensemble.
//!
//! A link has one thread, one session and one socket, and no listening socket. A caller writes its
//! request itself if the connection is not locked; the link's thread does all reading and waiting.
//! Every request is answered once, in bounded time: by the server, or with a lost connection or
//! session.
//!
//! [`core`] is the protocol, [`lease`] says until when the session is sure to live, [`heartbeats`]
//! when it is renewed, [`granted`] on which terms, [`lease_end_reason`] why it was not;
//! [`request_limit`] how large requests may be, [`unsupported_operations`] which of them servers do
//! not know. [`search_thread`] finds a server: [`resolver`] has the addresses, [`search_rounds`] says
//! which of them to ask when, [`handshake`] asks one, [`failure`] says why it does not serve the
//! session, [`unanswered_attempts`] notes those without answer, [`session_ends_with_connection`] what
//! another session means; [`access`] and [`sasl`] show who the client is (`no_sasl` without that
//! feature). [`wire_format`] is the wire format, [`server_stream`] the bytes, perhaps in [`tls`]
//! (`no_tls`). Callers open a [`handle`] with a [`config`]; [`runner`] is the thread, with which they share the
//! [`locked_connection`] and exchange [`messages`]. [`outage_log`] keeps the log short in an outage.

pub(crate) mod access;
pub(crate) mod config;
pub(crate) mod core;
mod failure;
mod granted;
pub(crate) mod handle;
pub(crate) mod handshake;
mod heartbeats;
mod lease;
mod lease_end_reason;
mod locked_connection;
pub(crate) mod messages;
mod outage_log;
pub(crate) mod request_limit;
pub(crate) mod resolver;
mod runner;
#[cfg_attr(not(feature = "sasl"), path = "no_sasl.rs")]
pub(crate) mod sasl;
mod search_rounds;
mod search_thread;
pub(crate) mod server_stream;
mod session_ends_with_connection;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub(crate) mod tls;
mod unanswered_attempts;
pub(crate) mod unsupported_operations;
pub(crate) mod wire_format;

#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/panic_and_fork_tests.rs"]
mod panic_and_fork_tests;

#[cfg(test)]
#[cfg(not(shuttle))]
#[path = "tests/runner_tests.rs"]
mod runner_tests;
