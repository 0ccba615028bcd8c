//! What calls that share one acquisition know about others ahead of it.

use std::sync::Arc;
use std::time::Instant;

use crate::contend::hold::KeptWaiting;
use crate::error::Result;
use crate::rt::{self, Mutex, Signal};
use crate::session::{ClientCore, unanswered};

/// Whether others are ahead, as lists have shown: evidence for each call that waits for this
/// acquisition, if the list was asked for after the call had begun.
#[derive(Default)]
pub(crate) struct OthersSeen {
    state: Mutex<OthersState>,
    /// What the threads hold that wait behind the one that contends; `None` if none can.
    pub(crate) kept_waiting: Option<Arc<KeptWaiting>>,
}

#[derive(Default)]
struct OthersState {
    /// When the latest list was asked for that showed others ahead.
    seen: Option<Instant>,
    /// Whether a call has begun since the latest list was asked for.
    is_wanted: bool,
    /// Wakes the thread that can list.
    bell: Option<Signal>,
}

impl OthersSeen {
    /// For an acquisition behind which other threads wait.
    pub(crate) fn shared() -> OthersSeen {
        OthersSeen { kept_waiting: Some(Arc::default()), ..OthersSeen::default() }
    }

    /// Notes that others were ahead, or one of this process held the lock, at that time.
    pub(crate) fn note(&self, at: Instant) {
        let mut state = self.state.lock();
        state.seen = state.seen.max(Some(at));
    }

    /// Whether that was so since then.
    pub(crate) fn since(&self, begin: Instant) -> bool {
        self.state.lock().seen >= Some(begin)
    }

    /// What a call gives that began then: that it got nothing, only if others were ahead since.
    pub(crate) fn or_unanswered<T>(
        &self,
        got: Option<T>,
        begin: Instant,
        core: &ClientCore,
        node: &str,
    ) -> Result<Option<T>> {
        if got.is_none() && !self.since(begin) {
            return Err(unanswered(core, rt::now().saturating_duration_since(begin), node));
        }
        Ok(got)
    }

    /// Has the thread that contends look again.
    pub(crate) fn look_again(&self) {
        let mut state = self.state.lock();
        state.is_wanted = true;
        let bell = state.bell.clone();
        drop(state);
        if let Some(bell) = bell {
            bell();
        }
    }

    pub(super) fn found_by(&self, bell: Signal) {
        self.state.lock().bell = Some(bell);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.state.lock().is_wanted
    }

    /// A list is asked for now.
    pub(super) fn listing(&self) -> Instant {
        self.state.lock().is_wanted = false;
        rt::now()
    }
}
