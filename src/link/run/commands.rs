//! What callers and the link's thread tell each other: requests and commands.

use std::time::Duration;

use crate::connection_notice::{End, Notice};
use crate::link::protocol::OnReply;
use crate::link::search::{Dialed, News};
use crate::rt::{Sender, Signal};
use crate::wire_values::NodeEvent;

/// Called with each notice about the session, on the link's thread; it may only signal.
pub(crate) type OnNotice = Box<dyn Fn(Notice) + Send>;

/// Called when a watch fires, with what happened and the node's path, on the link's thread or that of any
/// caller; it may only signal. What it returns is called when all else has been told that came with the
/// event.
pub(crate) type OnEvent = Box<dyn Fn(NodeEvent, &str) -> Vec<Signal> + Send + Sync>;

/// A request, and the callback that gets the reply.
pub(crate) struct Outgoing {
    pub(crate) operation: i32,
    pub(crate) body: Vec<u8>,
    pub(crate) on_answer: OnReply,
}

/// A request that can wait for a moment, and may no longer be needed then.
pub(crate) struct DeferredRequest {
    pub(crate) verb: Outgoing,
    pub(crate) is_wanted: Box<dyn Fn() -> bool + Send>,
}

/// How long such a request waits at least.
pub(super) const MOMENT: Duration = Duration::from_millis(3);

/// How long the link's thread sleeps at most after it has passed something on: a caller that then
/// defers a request need not wake the thread.
pub(super) const NAP: Duration = Duration::from_millis(5);

pub(super) enum Command {
    /// Requests that are sent back to back.
    Verbs(Vec<Outgoing>),
    /// To be dropped when every earlier request has been written to the server's socket, or when there
    /// is no connection to write to.
    FlushMark(Sender<()>),
    /// Of the search for a server that continues the session.
    News(News),
    /// Make the connection anew, if nothing waits for an answer.
    Reconnect,
    /// What the search of this number has found.
    Dialed(u64, Dialed),
    /// Close the session for that reason, and give up after that time.
    Close(End, Duration),
    Dropped,
}
