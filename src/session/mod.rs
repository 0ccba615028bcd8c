//! Sessions: [`client`] is the public face, [`retry`] its patience, [`session`] one session,
//! [`store`] what it can be asked for, [`patient`] asks again what the server was too busy for, [`wire`] how a real ensemble is, by [`handle`], the
//! `zookeeper` crate, and by requests of its own, for which threads wait by [`pending`]; [`borrowed`] how one is by a handle of the program's, which [`lookout`] and
//! [`fuses`] look after; [`status`] and [`wake`] how others learn of changes, [`together`] how they
//! share an answer; [`calls`] and [`events`], on [`workers`],
//! and [`reaper`] the threads that work on behalf of others; [`late`] keeps what they brought too late; [`make`] how nodes are made
//! together with those above, [`follow`] how a caller asks and looks,
//! over lost connections and sessions.

mod borrowed;
pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod events;
pub(crate) mod follow;
mod fuses;
pub(crate) mod handle;
pub(crate) mod late;
mod lookout;
pub(crate) mod make;
mod patient;
mod pending;
pub(crate) mod reaper;
pub(crate) mod retry;
#[expect(clippy::module_inception, reason = "the one session among what serves sessions")]
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod together;
pub(crate) mod wake;
mod wire;
pub(crate) mod workers;
