//! Sessions: [`client`] is the public face, [`retry`] its patience, [`session`] one session,
//! [`verbs`] what it can be asked for, by a connection as [`store`] describes it, with threads that
//! wait by [`pending`], for as long as a [`time_limit`] allows; [`wire`] is that of a real ensemble;
//! `adopted` how one is asked by a handle of the program's; [`status`] and [`wake`] how others learn
//! of changes, [`together`] how they share an answer; [`calls`], on a handle of the program's, and
//! [`events`], both on [`workers`], and [`reaper`] the threads that work on behalf of others;
//! [`late`] keeps what came too late for who had asked; [`make`] how nodes are made together with those above,
//! [`follow`] how a caller asks and looks, over lost connections and sessions.

#[cfg(feature = "zookeeper")]
pub(crate) mod adopted;
pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod events;
pub(crate) mod follow;
pub(crate) mod late;
pub(crate) mod make;
pub(crate) mod pending;
pub(crate) mod reaper;
pub(crate) mod retry;
#[expect(clippy::module_inception, reason = "the one session among what serves sessions")]
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod time_limit;
pub(crate) mod together;
pub(crate) mod verbs;
pub(crate) mod wake;
mod wire;
pub(crate) mod workers;
