//! How the candidates of the lead loop are doing.

use std::error::Error as StdError;
use std::sync::Arc;

/// What [`LeaderElection::lead`](crate::LeaderElection::lead) was doing at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ElectionProgress {
    /// The present phase.
    pub phase: ElectionPhase,
    /// How many terms of this candidate have begun.
    pub terms: u64,
    /// The last error of a term or of campaigning, including one that ended `lead`, except for a
    /// cancellation. Errors of campaigning are [`Error`](crate::Error)s.
    pub last_error: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The phases of [`LeaderElection::lead`](crate::LeaderElection::lead).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElectionPhase {
    /// `lead` was not called, or has ended.
    Idle,
    /// Pausing after an error, before the next attempt.
    Resting,
    /// Waiting for a connection to the ensemble.
    Connecting,
    /// Waiting for its turn: other candidates are ahead.
    Campaigning,
    /// This candidate leads. Its [`Leadership`](crate::Leadership) says whether it still leads.
    Leading,
}

/// What `progress` reports.
#[derive(Debug, Default)]
pub(super) struct ProgressBoard {
    /// The phase of each running call of `lead`.
    pub(super) phases: Vec<ElectionPhase>,
    pub(super) terms: u64,
    pub(super) last_error: Option<Failure>,
}

pub(super) type Failure = Arc<dyn StdError + Send + Sync>;
