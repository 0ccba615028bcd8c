//! Sessions: [`client`] is the public face, [`retry`] its patience, [`session`] one session,
//! [`verbs`] what it can be asked for, by a connection as [`connection`] describes it, with threads that
//! wait by [`oneshot`], for as long as a [`time_limit`] allows; [`linked`] is that of a real ensemble;
//! `adopted` how one is asked by a handle of the program's; [`status`] and [`notify`] how others learn
//! of changes, [`single_flight`] how they share an answer; [`deadline_pool`], on a handle of the program's, and
//! [`callbacks`], both on [`workers`], and [`reaper`] the threads that work on behalf of others;
//! [`late_items`] keeps what came too late for who had asked; [`create_parents`] how nodes are made together with those above,
//! [`watch_loop`] how a caller asks and looks, over lost connections and sessions.

#[cfg(feature = "zookeeper")]
pub(crate) mod adopted;
pub(crate) mod callbacks;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod create_parents;
pub(crate) mod deadline_pool;
pub(crate) mod late_items;
mod linked;
pub(crate) mod notify;
pub(crate) mod oneshot;
pub(crate) mod reaper;
pub(crate) mod retry;
#[expect(clippy::module_inception, reason = "the one session among what serves sessions")]
pub(crate) mod session;
pub(crate) mod single_flight;
pub(crate) mod status;
pub(crate) mod time_limit;
pub(crate) mod verbs;
pub(crate) mod watch_loop;
pub(crate) mod workers;
