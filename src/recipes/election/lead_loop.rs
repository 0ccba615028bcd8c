//! The loop that campaigns, runs a term, and campaigns again.

use std::error::Error as StdError;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::candidates_progress::{ElectionPhase, ElectionProgress, Failure, ProgressBoard};
use super::{LeaderElection, Leadership};
use crate::contend::insist;
use crate::error::{ErrorKind, Result};
use crate::logging;
use crate::rt::{self, Deadline, Mutex};
use crate::session::{Call, SessionState, Wait, cancelled};

/// How a term ends.
type TermResult<T> = Result<ControlFlow<T>, Box<dyn StdError + Send + Sync>>;

impl LeaderElection {
    /// Campaigns, runs `term` whenever this candidate leads, and campaigns again, until `term`
    /// returns `Break`.
    ///
    /// Everything runs on the calling thread.
    ///
    /// | `term` ends with | What `lead` does |
    /// |---|---|
    /// | `Ok(ControlFlow::Break(value))` | resigns, and returns the value |
    /// | `Ok(ControlFlow::Continue(()))` | resigns, and campaigns again, behind the others |
    /// | an error, when the leadership is lost | campaigns again at once |
    /// | any other error | resigns, [pauses](crate::LeaderElection::back_off), and campaigns again |
    /// | a panic | resigns, and passes the panic on to the caller |
    ///
    /// It also pauses after a [retryable](crate::Error::is_retryable) error of campaigning. No
    /// error of `term` ends `lead`: return it as the value of `Break` for that.
    ///
    /// **`term` must end when the leadership is lost**, because others lead then. It can check
    /// [`is_held`](crate::Hold::is_held) between its steps, or use
    /// [`on_lost`](crate::Hold::on_lost) or [`lost`](crate::Hold::lost). Nothing can end it from
    /// outside.
    ///
    /// # Errors
    ///
    /// As [`campaign`](LeaderElection::campaign), except for
    /// [retryable](crate::Error::is_retryable) errors.
    ///
    /// ```no_run
    /// use std::ops::ControlFlow::{Break, Continue};
    /// use zklock::{Cancel, Client, LeaderElection};
    ///
    /// # fn schedule() -> std::io::Result<bool> { Ok(true) }
    /// let zk = Client::connect("zk1:2181,zk2:2181")?;
    /// let election = LeaderElection::new(&zk, "/elections", "scheduler");
    /// election.lead(|leadership| {
    ///     while leadership.is_held() {
    ///         if schedule()? {
    ///             return Ok(Break(()));
    ///         }
    ///     }
    ///     Ok(Continue(()))
    /// })?;
    /// # Ok::<(), zklock::Error>(())
    /// ```
    pub fn lead<T>(&self, mut term: impl FnMut(&Leadership) -> TermResult<T>) -> Result<T> {
        insist(|| self.supervise(&Wait::FOREVER, &mut term))
    }

    /// Campaigns and runs `term` again and again as [`lead`](LeaderElection::lead) does, and
    /// begins no campaign or term once `wait` is over.
    ///
    /// The end of `wait` ends campaigning and pausing at once, but interrupts no term. If the term
    /// that runs then returns `Break`, the call returns its value. `None` when the time is over.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled); otherwise as [`lead`](LeaderElection::lead).
    pub fn lead_within<T>(
        &self,
        wait: impl Into<Wait>,
        term: impl FnMut(&Leadership) -> TermResult<T>,
    ) -> Result<Option<T>> {
        self.supervise(&wait.into(), term)
    }

    /// Returns what [`lead`](LeaderElection::lead) is doing now; of several calls at once on this
    /// value and its clones, what the most advanced one does.
    pub fn progress(&self) -> ElectionProgress {
        let is_connected = self.lock_node.client().state() == SessionState::Connected;
        let progress = self.progress.lock();
        let phases = progress.phases.iter().copied();
        let phase = phases.max_by_key(|phase| *phase as u8).unwrap_or(ElectionPhase::Idle);
        ElectionProgress {
            phase: match phase {
                ElectionPhase::Campaigning if !is_connected => ElectionPhase::Connecting,
                phase => phase,
            },
            terms: progress.terms,
            last_error: progress.last_error.clone(),
        }
    }

    fn supervise<T>(
        &self,
        wait: &Wait,
        mut term: impl FnMut(&Leadership) -> TermResult<T>,
    ) -> Result<Option<T>> {
        let mut part = Candidacy::new(&self.progress);
        loop {
            part.enter(ElectionPhase::Campaigning);
            let leadership = match self.campaign_within(wait) {
                Ok(Some(leadership)) => leadership,
                Ok(None) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                Err(error) => {
                    part.note(&(Arc::new(error.clone()) as Failure));
                    if !error.is_retryable() || wait.until().has_passed() {
                        return Err(error);
                    }
                    self.rest(&mut part, wait, &error)?;
                    continue;
                }
            };
            part.enter(ElectionPhase::Leading);
            let began = rt::now();
            let ended = term(&leadership);
            let was_lost = !leadership.is_held();
            part.enter(ElectionPhase::Campaigning);
            drop(leadership);
            match ended {
                Ok(ControlFlow::Break(value)) => return Ok(Some(value)),
                Ok(ControlFlow::Continue(())) => part.errors = 0,
                Err(error) => {
                    let error = Failure::from(error);
                    part.note(&error);
                    if was_lost || rt::now().duration_since(began) > self.back_off.longest {
                        part.errors = 0;
                    }
                    if !was_lost {
                        self.rest(&mut part, wait, &*error)?;
                    }
                }
            }
            // The lock may be free, and then acquired in less time than campaigning has at least.
            if wait.is_cancelled() {
                return Err(cancelled(self.lock_node.node()?));
            }
            if wait.until().has_passed() {
                return Ok(None);
            }
        }
    }

    /// Pauses after an error. Ends early if the client is closed: the next campaign reports that.
    fn rest(&self, part: &mut Candidacy<'_>, wait: &Wait, error: &dyn StdError) -> Result<()> {
        let (node, limit) = (self.lock_node.node()?, self.back_off.after(part.errors));
        part.errors = part.errors.saturating_add(1);
        logging::warning!(
            target: "zklock::election",
            "election {node:?}: campaigning again in {limit:.1?}: {error}"
        );
        let core = self.lock_node.client().core();
        let call = Call::strict(core, &wait.earlier(Deadline::after(limit)));
        let _changes = core.changes().subscribe(call.bell());
        part.enter(ElectionPhase::Resting);
        let is_closed = call.has_come(call.until(), || core.is_closed());
        if !is_closed && call.is_cancelled() { Err(cancelled(node)) } else { Ok(()) }
    }
}

/// A running call of `lead`, until dropped.
struct Candidacy<'a> {
    progress: &'a Mutex<ProgressBoard>,
    phase: Option<ElectionPhase>,
    /// How many errors there were in a row.
    errors: u32,
}

impl Candidacy<'_> {
    fn new(progress: &Mutex<ProgressBoard>) -> Candidacy<'_> {
        Candidacy { progress, phase: None, errors: 0 }
    }

    fn enter(&mut self, phase: ElectionPhase) {
        self.go_to(Some(phase));
    }

    fn go_to(&mut self, phase: Option<ElectionPhase>) {
        let mut state = self.progress.lock();
        if let Some(target) = state.phases.iter().position(|one| Some(*one) == self.phase) {
            state.phases.swap_remove(target);
        }
        state.phases.extend(phase);
        state.terms += u64::from(phase == Some(ElectionPhase::Leading));
        self.phase = phase;
    }

    fn note(&self, error: &Failure) {
        let last = self.progress.lock().last_error.replace(Arc::clone(error));
        // Dropping the error may run code of the program: not under the lock.
        drop(last);
    }
}

impl Drop for Candidacy<'_> {
    fn drop(&mut self) {
        self.go_to(None);
    }
}
