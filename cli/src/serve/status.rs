//! What is known of the ensemble at this moment: it changes between looks, too.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use zklock::SessionState;

/// The state of the client's session, as readers are told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnsembleState {
    /// There was no session yet.
    Connecting,
    Connected,
    Suspended,
    Lost,
}

pub(crate) const STATES: [EnsembleState; 4] = [
    EnsembleState::Connecting,
    EnsembleState::Connected,
    EnsembleState::Suspended,
    EnsembleState::Lost,
];

impl EnsembleState {
    pub(crate) fn word(self) -> &'static str {
        match self {
            EnsembleState::Connecting => "connecting",
            EnsembleState::Connected => "connected",
            EnsembleState::Suspended => "suspended",
            EnsembleState::Lost => "lost",
        }
    }

    fn of(session: SessionState) -> EnsembleState {
        match session {
            SessionState::Connected => EnsembleState::Connected,
            SessionState::Suspended => EnsembleState::Suspended,
            _ => EnsembleState::Lost,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Ensemble {
    pub(crate) state: EnsembleState,
    /// Since when it is in that state.
    pub(crate) since: SystemTime,
    /// Why the last look failed.
    pub(crate) error: Option<String>,
    /// How many requests were sent.
    pub(crate) requests: u64,
}

/// Written by the threads of the client and of the looks, read for each reply.
#[derive(Debug)]
pub(crate) struct Status(Mutex<Ensemble>);

impl Status {
    pub(crate) fn new(now: SystemTime) -> Status {
        let state = EnsembleState::Connecting;
        Status(Mutex::new(Ensemble { state, since: now, error: None, requests: 0 }))
    }

    pub(crate) fn now(&self) -> Ensemble {
        self.lock().clone()
    }

    /// The session has changed its state.
    pub(crate) fn note_session(&self, session: SessionState, now: SystemTime) {
        let mut ensemble = self.lock();
        let state = EnsembleState::of(session);
        if ensemble.state != state {
            (ensemble.state, ensemble.since) = (state, now);
        }
    }

    /// So many requests were sent for a look that succeeded, or failed for this reason.
    pub(crate) fn note_look(&self, requests: usize, error: Option<String>) {
        let mut ensemble = self.lock();
        ensemble.requests += requests as u64;
        ensemble.error = error;
    }

    fn lock(&self) -> MutexGuard<'_, Ensemble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::looks::at;
    use super::*;

    #[test]
    fn a_state_counts_from_its_begin() {
        let status = Status::new(at(0));
        assert_eq!((status.now().state.word(), status.now().since), ("connecting", at(0)));
        for (second, session, since) in [
            (1, SessionState::Connected, 1),
            (2, SessionState::Connected, 1),
            (3, SessionState::Suspended, 3),
            (4, SessionState::Lost, 4),
        ] {
            status.note_session(session, at(second));
            assert_eq!(status.now().since, at(since));
        }
        status.note_look(3, Some("why".to_owned()));
        status.note_look(4, None);
        assert_eq!((status.now().requests, status.now().error), (7, None));
    }
}
