//! Sessions with the ensemble, and what supports them: waiting and background work.
//!
//! - [`client`]: the public client, whose clones share one live session at a time.
//! - [`call`]: what blocks the program: until when, what ends it, and which session it asks.
//! - [`requests`]: the requests of a session, and what deletes its nodes in the background.
//! - [`owned`]: the ephemeral nodes of a session, and creates of them that got no answer.
//! - [`connection`]: what a session needs of a connection; [`over_link`] is our own, `adopted` that of a
//!   program's handle.
//! - [`wait`]: limits of time, tokens that cancel, and bells.
//! - [`threads`]: where callbacks run and events are reported.

#[cfg(feature = "zookeeper")]
mod adopted;
mod call;
mod client;
mod connection;
mod over_link;
mod owned;
mod requests;
mod threads;
mod wait;

#[cfg(feature = "zookeeper")]
#[cfg(all(test, shuttle))]
pub(crate) use adopted::Calls;
#[cfg(feature = "zookeeper")]
#[cfg(all(test, not(shuttle)))]
pub(crate) use adopted::{Adopted, Handle, HandleEvent, Unlisten, Watcher};
pub use call::Changes;
pub(crate) use call::{Call, Purpose, Stop, View, WatchLoop, cancelled, unanswered};
#[cfg(test)]
pub(crate) use client::Patience;
pub(crate) use client::{ClaimedName, ClientCore};
pub use client::{Client, ClientBuilder, ClientStats};
pub use connection::SessionState;
#[cfg(all(test, not(shuttle), feature = "zookeeper"))]
pub(crate) use connection::or_none;
pub(crate) use connection::{
    Answer, Created, Enqueued, Fault, Found, Names, NodeKind, OnAnswer, Reply, Step, Transacted,
    WatchKind, Watches, room_for_data,
};
#[cfg(test)]
pub(crate) use connection::{
    Answered, Connection, Ensemble, OnReply, Request, SessionRecords, Submission, Waits,
};
#[cfg(all(test, not(shuttle)))]
pub(crate) use connection::{IsWanted, SessionPhase};
pub(crate) use owned::{SessionNeed, StillMeant};
#[cfg(all(test, any(shuttle, feature = "zookeeper")))]
pub(crate) use requests::PendingReply;
pub(crate) use requests::{
    Reaper, Session, ended, make_below, make_container, make_parents, read_each_by, stat,
};
#[cfg(all(test, shuttle))]
pub(crate) use requests::{SingleFlight, TimeLimit, until_attached};
#[cfg(all(test, not(shuttle), feature = "zookeeper"))]
pub(crate) use requests::{created, data, names};
#[cfg(all(test, shuttle))]
pub(crate) use threads::Workers;
pub(crate) use threads::{Callbacks, InOrder, Reports};
pub use wait::{Cancel, Subscription, Wait};
pub(crate) use wait::{CancelState, GRACE, Signals, Waiter, worth_asking};
