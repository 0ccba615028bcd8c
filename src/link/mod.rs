//! The link: it owns the connection to the ensemble.
//!
//! A link has one thread, one session and one socket, and no listening socket. A caller writes its
//! request itself if the connection is not locked, and may read the answer itself; the link's thread does
//! all else.
//! Every request is answered once, in bounded time: by the server, or with a lost connection or
//! session.
//!
//! [`core`] is the protocol, [`lease`] says until when the session is sure to live, [`heartbeat_times`]
//! when it is renewed, [`granted_timeouts`] on which terms, [`explain_lease_end`] why it was not;
//! [`too_large_requests`] how large requests may be, [`unsupported_operations`] which of them servers do
//! not know. [`search_thread`] finds a server: [`resolver`] has the addresses, [`search_rounds`] says
//! which of them to ask when, [`handshake`] asks one, [`address_failure`] says why it does not serve the
//! session, [`reconnects_in_doubt`] notes those without answer, [`servers_that_replace_sessions`] what
//! another session means; [`credentials_and_tls`] and [`sasl`] show who the client is (`no_sasl` without that
//! feature). [`wire_format`] is the wire format, [`server_stream`] the bytes, perhaps in [`tls`]
//! (`no_tls`). Callers open a [`handle`] with a [`config`]; [`link_thread`] is the thread, with which they share the
//! [`locked_connection`] and exchange [`link_commands`]; [`reading_turn`] says which of them reads. [`outage_log`] keeps the log short in an outage, and the
//! [`log_thread`] writes it.

mod address_failure;
pub(crate) mod config;
pub(crate) mod core;
pub(crate) mod credentials_and_tls;
mod explain_lease_end;
mod granted_timeouts;
pub(crate) mod handle;
pub(crate) mod handshake;
mod heartbeat_times;
mod lease;
pub(crate) mod link_commands;
mod link_thread;
mod locked_connection;
mod log_thread;
mod outage_log;
pub(crate) mod reading_turn;
mod reconnects_in_doubt;
pub(crate) mod resolver;
#[cfg_attr(not(feature = "sasl"), path = "no_sasl.rs")]
pub(crate) mod sasl;
mod search_rounds;
mod search_thread;
pub(crate) mod server_stream;
mod servers_that_replace_sessions;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub(crate) mod tls;
pub(crate) mod too_large_requests;
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
