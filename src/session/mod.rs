//! Sessions with the ensemble, and what supports them: waiting and background work.
//!
//! - [`client`] is public; its clones share one [`client_shared_state`], which has one live session ([`one_session`])
//!   at a time and opens another on demand. [`status`]: what state a
//!   session is in.
//! - [`requests`]: the requests of a session, built on a [`connection`]; [`connection_over_link`] is our own
//!   connection, `adopted` that of a program's handle.
//! - A [`blocking_call`] is what blocks the program: until when, what ends it, and which session it asks; its
//!   [`request_purpose`] words its errors. [`watch_loop`] looks again whenever something changes, over lost
//!   connections and sessions; [`changes_iterator`] reports each change of a state.
//! - Waiting: [`notify`] (bells and subscriptions), [`watch_dispatch`], [`cancel`], [`wait_limit`], [`time_limit`],
//!   [`pending_reply`] (the answer to a request), [`single_flight`] (one request for all callers
//!   that ask the same).
//! - In the background: [`reaper`] (deletes), [`callback_threads`] and [`event_reports`] (of events), on [`thread_pool`].
//! - [`owned_nodes`]: the ephemeral nodes of a session, and creates of them that got no answer
//!   ([`creates_in_doubt`]), whose nodes [`look_for_strays`] finds.
//! - [`child_names`]: lists of children. [`create_parents`]: creates nodes and their missing parents.

#[cfg(feature = "zookeeper")]
pub(crate) mod adopted;
pub(crate) mod blocking_call;
pub(crate) mod callback_threads;
pub(crate) mod cancel;
pub(crate) mod changes_iterator;
pub(crate) mod child_names;
pub(crate) mod client;
pub(crate) mod client_shared_state;
pub(crate) mod connection;
mod connection_over_link;
pub(crate) mod create_parents;
pub(crate) mod creates_in_doubt;
pub(crate) mod event_reports;
mod look_for_strays;
pub(crate) mod notify;
pub(crate) mod one_session;
pub(crate) mod owned_nodes;
pub(crate) mod pending_reply;
pub(crate) mod reaper;
pub(crate) mod request_purpose;
pub(crate) mod requests;
pub(crate) mod single_flight;
pub(crate) mod status;
pub(crate) mod thread_pool;
pub(crate) mod time_limit;
pub(crate) mod wait_limit;
pub(crate) mod watch_dispatch;
pub(crate) mod watch_loop;
