//! The state of a session, and the signals of its changes.

use std::fmt;
use std::sync::Arc;

use crate::connection_notice::{End, Notice};
use crate::rt::{Mutex, Signal};
use crate::session::wait::{Signals, Subscription};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Status {
    phase: Mutex<SessionPhase>,
    signals: Arc<Signals>,
}

/// A snapshot of a session's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionPhase {
    pub(crate) attached: bool,
    /// Counts the connections that have served the session.
    pub(crate) connection: u64,
    pub(crate) ended: Option<End>,
    /// Counts how often the link reported that the session is alive.
    alive: u64,
    /// The server knows that the session is over, or that no longer matters.
    pub(crate) over: bool,
}

/// After at least this many thirds of the session timeout, every call that waits for a watch looks
/// again: a server uses up a watch without sending its event if the client may not read the node at
/// that moment.
const REVIEW: u64 = 6;

impl SessionPhase {
    /// Counts how often all waiting calls have to look again although no change was reported.
    pub(crate) fn review(&self) -> u64 {
        self.alive / REVIEW
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.attached && self.ended.is_none()
    }
}

impl Status {
    pub(crate) fn now(&self) -> SessionPhase {
        *self.phase.lock()
    }

    pub(crate) fn subscribe(&self, signal: Signal) -> Subscription {
        self.signals.subscribe(signal)
    }

    pub(crate) fn note(&self, notice: Notice) {
        let mut phase = self.phase.lock();
        match notice {
            Notice::Alive => {
                phase.alive += 1;
                if phase.alive % REVIEW != 0 {
                    return;
                }
            }
            Notice::Attached => {
                phase.attached = true;
                phase.connection += 1;
            }
            Notice::Paused(_) => return,
            Notice::Suspended => phase.attached = false,
            Notice::Ended(why) => {
                phase.ended = phase.ended.or(Some(why));
            }
            Notice::Over => phase.over = true,
        }
        drop(phase);
        self.signals.tell();
    }
}

/// The state of a client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionState {
    /// The session is connected to a server.
    Connected,
    /// The connection is lost, but not yet the session: its locks are still held.
    ///
    /// The client sends no requests until a server serves the session again, or it is lost. Also while
    /// another session is opened [in place of one](crate::Client) in which nothing was held.
    Suspended,
    /// The session is over: it expired, or the client had no answer for so long that it may have; or
    /// nothing was held in it, and no other one could be opened in its place. All
    /// locks that were held in it are lost. The next call opens a new session.
    Lost,
    /// The client was closed.
    Closed,
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SessionState::Connected => "connected",
            SessionState::Suspended => "suspended",
            SessionState::Lost => "lost",
            SessionState::Closed => "closed",
        })
    }
}
