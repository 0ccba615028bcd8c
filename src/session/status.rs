//! The state of a session, and who is told of its changes.

use std::fmt;
use std::sync::Arc;

use super::notify::{Signal, Signals, Subscription, Waiter};
use crate::rt::{Deadline, Mutex};
use crate::session_notice::{End, Notice};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Status {
    phase: Mutex<SessionPhase>,
    signals: Arc<Signals>,
}

/// A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionPhase {
    pub(crate) attached: bool,
    /// Counts the connections that have served the session.
    pub(crate) connection: u64,
    pub(crate) ended: Option<End>,
    /// Counts the times that the link said so.
    alive: u64,
    /// The server knows that the session is over, or nobody cares any more.
    pub(crate) over: bool,
}

/// After so many thirds of the session time-out, at the least, whoever waits for a watch looks
/// again: servers spend a watch on a node that may not be read just then, and tell nobody.
const REVIEW: u64 = 6;

impl SessionPhase {
    /// Counts the times that everybody is to look again, though nothing seems to have happened.
    pub(crate) fn review(&self) -> u64 {
        self.alive / REVIEW
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.attached && self.ended.is_none()
    }
}

/// Whether requests are of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usable {
    Now,
    NotInTime,
    Never(End),
}

impl Status {
    pub(crate) fn now(&self) -> SessionPhase {
        *self.phase.lock()
    }

    /// Waits for a server to serve the session: there is no use in asking before. `give_up` is
    /// asked whenever the waiter's bell, which must be subscribed here, is rung.
    pub(crate) fn until_usable(
        &self,
        waiter: &Waiter,
        until: Deadline,
        give_up: impl Fn() -> bool,
    ) -> Usable {
        loop {
            let phase = self.now();
            if let Some(end) = phase.ended {
                return Usable::Never(end);
            }
            if give_up() || until.has_passed() {
                return Usable::NotInTime;
            }
            if phase.attached {
                return Usable::Now;
            }
            waiter.wait(until);
        }
    }

    pub(crate) fn subscribe(&self, signal: Signal) -> Subscription {
        self.signals.subscribe(signal)
    }

    pub(crate) fn note(&self, notice: Notice) {
        let mut phase = self.phase.lock();
        match notice {
            Notice::Alive => {
                phase.alive += 1;
                if !phase.alive.is_multiple_of(REVIEW) {
                    return;
                }
            }
            Notice::Attached => {
                phase.attached = true;
                phase.connection += 1;
            }
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
    /// A server serves the session.
    Connected,
    /// The connection is lost, the session is not: locks are still held, and nothing is
    /// asked of the ensemble until a server takes the session up again, or it is lost.
    Suspended,
    /// The session is over: it expired, or its lease ran out by this machine's clock. All
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
