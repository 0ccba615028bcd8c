//! Notices when the command begins to wait behind a contender that is named as kazoo names its own: such
//! clients ignore nodes with our default names. The library has seen that name anyway, so it costs no
//! request.

use std::sync::{Arc, Mutex, PoisonError};

use zklock::{Cancel, Event};

use crate::look::is_named_by_kazoo;

#[derive(Clone, Default)]
pub(crate) struct FirstAhead(Arc<Mutex<Option<Cancel>>>);

impl FirstAhead {
    /// From now on, that trips this token.
    pub(crate) fn trip(&self, cancel: &Cancel) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(cancel.clone());
    }

    pub(crate) fn note(&self, event: &Event) {
        let Event::Waiting { holder: Some(node), .. } = event else { return };
        if !is_named_by_kazoo(node) {
            return;
        }
        let armed = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(cancel) = armed {
            cancel.cancel();
        }
    }
}
