//! Reports events, from one source: to the program's function, and to its log.

use std::sync::{Arc, OnceLock};

use super::callbacks::{Callbacks, InOrder};
use crate::event::{Event, LogAs};

/// The program's function for events.
pub(crate) type OnReport = Arc<dyn Fn(&Event) + Send + Sync>;

/// See the module. A client and its background work share one.
#[derive(Default)]
pub(crate) struct Reports {
    /// The function, which is called with one event after the other, in their order.
    function: OnceLock<(OnReport, Arc<InOrder>)>,
}

impl Reports {
    /// Has events told to the program, from here on.
    pub(crate) fn tell_to(&self, function: OnReport, threads: &Callbacks) {
        let _ = self.function.set((function, InOrder::new(threads)));
    }

    /// Whether anybody wants to know of such an event.
    pub(crate) fn are_wanted(&self, log_as: LogAs) -> bool {
        self.function.get().is_some() || log_as.is_on()
    }

    /// Logs an event and tells the program, if anybody wants to know.
    pub(crate) fn report(&self, log_as: LogAs, event: impl FnOnce() -> Event) {
        if self.are_wanted(log_as) {
            let event = event();
            log_as.write(&event);
            self.tell(event);
        }
    }

    /// Tells the program an event that is logged elsewhere.
    pub(crate) fn tell(&self, event: Event) {
        if let Some((function, calls)) = self.function.get() {
            let function = Arc::clone(function);
            calls.dispatch(move || function(&event));
        }
    }
}
