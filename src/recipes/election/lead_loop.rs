//! The loop that campaigns, runs a term, and campaigns again.

use std::error::Error as StdError;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::LeaderElection;
use super::Leadership;
use super::progress::{ElectionPhase, ElectionProgress, Failure, ProgressBoard};
use crate::contend::errors::cancelled;
use crate::error::{ErrorKind, Result};
use crate::logging;
use crate::rt::{self, Deadline};
use crate::session::cancel::Cancel;
use crate::session::notify::Waiter;

/// How a term ends: see [`LeaderElection::lead`]. Any error will do for `?`.
pub type TermResult<T> = Result<ControlFlow<T>, Box<dyn StdError + Send + Sync>>;

impl LeaderElection {
    /// Campaigns, has `term` do the leader's work whenever this candidate leads, and stands again,
    /// until `term` says that it is enough. All on the calling thread.
    ///
    /// | `term` ends with | What is done |
    /// |---|---|
    /// | `Ok(ControlFlow::Break(value))` | it resigns, and gives the value |
    /// | `Ok(ControlFlow::Continue(()))` | it resigns, and stands again, behind the others |
    /// | an error, when the leadership is lost | it stands again at once |
    /// | any other error | it resigns, [rests](crate::LeaderElectionBuilder::back_off), and stands again |
    /// | a panic | it resigns, and the panic goes on to the caller |
    ///
    /// An error of campaigning that [trying again](crate::Error::is_retryable) may mend is rested
    /// after, too. So no error of `term` ends it; one that is to goes into the value.
    ///
    /// **`term` has to end when the leadership is lost**, since others lead then: by asking
    /// [`is_leader`](Leadership::is_leader) between its steps, or as [`on_lost`](Leadership::on_lost)
    /// and [`lost`](Leadership::lost) tell it. Nobody can end it from outside.
    ///
    /// What it is about, any clone of the election tells: [`progress`](LeaderElection::progress).
    ///
    /// # Errors
    ///
    /// What waiting cannot mend: as [`campaign`](LeaderElection::campaign), but for what is
    /// retryable. It ends so with a closed client.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use std::ops::ControlFlow::{Break, Continue};
    /// use zklock::{Cancel, Client, LeaderElection};
    ///
    /// # fn schedule() -> std::io::Result<bool> { Ok(true) }
    /// let zk = Client::connect("zk1:2181,zk2:2181")?;
    /// let election = LeaderElection::new(&zk, "/elections", "scheduler");
    /// election.lead(|leadership| {
    ///     while leadership.is_leader() {
    ///         if schedule()? {
    ///             return Ok(Break(()));
    ///         }
    ///     }
    ///     Ok(Continue(()))
    /// })?;
    /// # Ok::<(), zklock::Error>(())
    /// ```
    pub fn lead<T>(&self, term: impl FnMut(&Leadership) -> TermResult<T>) -> Result<T> {
        self.supervise(None, term)
    }

    /// As [`lead`](LeaderElection::lead), until any thread trips `cancel`: that ends campaigning
    /// and resting at once. A term is not interrupted, but can look at the token itself, as at the
    /// leadership; unless it gives a value, it is the last.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled); else as [`lead`](LeaderElection::lead).
    pub fn lead_with<T>(
        &self,
        cancel: &Cancel,
        term: impl FnMut(&Leadership) -> TermResult<T>,
    ) -> Result<T> {
        self.supervise(Some(cancel), term)
    }

    /// What [`lead`](LeaderElection::lead) is about just now, on whichever threads this value and
    /// its clones do that; where several do, what the furthest of them is about.
    pub fn progress(&self) -> ElectionProgress {
        let progress = self.progress.0.lock();
        let phases = progress.phases.iter().copied();
        ElectionProgress {
            phase: phases.max_by_key(|phase| *phase as u8).unwrap_or(ElectionPhase::Idle),
            terms: progress.terms,
            last_error: progress.last_error.clone(),
        }
    }

    fn supervise<T>(
        &self,
        cancel: Option<&Cancel>,
        mut term: impl FnMut(&Leadership) -> TermResult<T>,
    ) -> Result<T> {
        let mut part = Candidacy::new(&self.progress);
        loop {
            part.enter(ElectionPhase::Campaigning);
            let leadership = match self.stand(cancel) {
                Ok(leadership) => leadership,
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                Err(error) => {
                    part.note(&(Arc::new(error.clone()) as Failure));
                    if !error.is_retryable() {
                        return Err(error);
                    }
                    self.rest(&mut part, cancel, &error)?;
                    continue;
                }
            };
            part.enter(ElectionPhase::Leading);
            let began = rt::now();
            let ended = term(&leadership);
            let was_lost = !leadership.is_leader();
            part.enter(ElectionPhase::Campaigning);
            drop(leadership);
            match ended {
                Ok(ControlFlow::Break(value)) => return Ok(value),
                Ok(ControlFlow::Continue(())) => part.errors = 0,
                Err(error) => {
                    let error = Failure::from(error);
                    part.note(&error);
                    if was_lost || rt::now().duration_since(began) > self.back_off.longest {
                        part.errors = 0;
                    }
                    if !was_lost {
                        self.rest(&mut part, cancel, &*error)?;
                    }
                }
            }
        }
    }

    /// After an error. A closed client is for the next campaign to tell.
    fn rest(
        &self,
        part: &mut Candidacy<'_>,
        cancel: Option<&Cancel>,
        error: &dyn StdError,
    ) -> Result<()> {
        let (node, limit) = (self.config.node()?, self.back_off.after(part.errors));
        part.errors = part.errors.saturating_add(1);
        logging::warning!(target: "zklock::election", "election {node:?}: campaigning again in {limit:?}: {error}");
        let (waiter, core) = (Waiter::new(), self.config.client.core());
        let _changes = core.changes().subscribe(waiter.bell());
        let _cancel = cancel.map(|cancel| cancel.subscribe(waiter.bell()));
        part.enter(ElectionPhase::Resting);
        let end = Deadline::after(limit);
        while !end.has_passed() && !core.is_closed() {
            if cancel.is_some_and(Cancel::is_cancelled) {
                return Err(cancelled(node));
            }
            waiter.wait(end);
        }
        Ok(())
    }
}

/// One that is at it, until dropped.
struct Candidacy<'a> {
    progress: &'a ProgressBoard,
    phase: Option<ElectionPhase>,
    /// In a row.
    errors: u32,
}

impl Candidacy<'_> {
    fn new(progress: &ProgressBoard) -> Candidacy<'_> {
        Candidacy { progress, phase: None, errors: 0 }
    }

    fn enter(&mut self, phase: ElectionPhase) {
        self.go_to(Some(phase));
    }

    fn go_to(&mut self, phase: Option<ElectionPhase>) {
        let mut state = self.progress.0.lock();
        if let Some(target) = state.phases.iter().position(|one| Some(*one) == self.phase) {
            state.phases.swap_remove(target);
        }
        state.phases.extend(phase);
        state.terms += u64::from(phase == Some(ElectionPhase::Leading));
        self.phase = phase;
    }

    fn note(&self, error: &Failure) {
        let last = self.progress.0.lock().last_error.replace(Arc::clone(error));
        // It may do whatever its maker likes when it is dropped: not under the lock.
        drop(last);
    }
}

impl Drop for Candidacy<'_> {
    fn drop(&mut self) {
        self.go_to(None);
    }
}
