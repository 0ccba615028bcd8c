//! What state a session is in, and who wants to know.

use std::sync::Arc;

use super::wake::{Signal, Signals, Subscription};
use crate::link::core::{End, Notice};
use crate::rt::Mutex;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Status {
    phase: Mutex<Phase>,
    signals: Arc<Signals>,
}

/// A snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) attached: bool,
    /// Counts the connections that have served the session.
    pub(crate) connection: u64,
    pub(crate) ended: Option<End>,
    /// The server knows that the session is over, or nobody cares any more.
    pub(crate) over: bool,
}

impl Phase {
    pub(crate) fn is_usable(&self) -> bool {
        self.attached && self.ended.is_none()
    }
}

impl Status {
    pub(crate) fn now(&self) -> Phase {
        *self.phase.lock()
    }

    pub(crate) fn subscribe(&self, signal: Signal) -> Subscription {
        self.signals.subscribe(signal)
    }

    pub(crate) fn note(&self, notice: Notice) {
        let mut phase = self.phase.lock();
        match notice {
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
