//! Callers that do not contend: those that ask holders to release, and observers.

use std::sync::Arc;
use std::time::Duration;

use super::Trial;
use super::any_lock::{Locks, NODE};
use super::reference_rule::Mark;
use crate::Error;
use crate::ErrorKind;
use crate::path;
use crate::rt::schedule::{Process, Schedule, current};
use crate::sim::plan::{Ask, Whom};

impl Trial {
    pub(super) fn look_on(self: &Arc<Self>, schedule: &Schedule, onlookers: &[Locks]) {
        for (time, ask) in &self.plan.asks {
            let (trial, ask) = (Arc::clone(self), *ask);
            let locks = onlookers[ask.process].clone();
            // The trial must not end before the request: dropping the last client takes a task.
            self.state.lock().busy += 1;
            schedule.at(*time, move || trial.ask(ask, locks));
        }
        if let Some(process) = self.plan.observer {
            self.state.lock().observed.at_work = true;
            let (trial, locks) = (Arc::clone(self), onlookers[process].clone());
            let observe = move || trial.observe(process, &locks);
            let _ = schedule.within(process, || schedule.start("observer", observe));
        }
    }

    fn ask(self: &Arc<Self>, ask: Ask, locks: Locks) {
        let Some(schedule) = current() else { return };
        self.state.lock().tally.asked += 1;
        if let Whom::OneByPeer = ask.of {
            let children = self.world.look(|world| world.children(NODE));
            if let Some(mark) = Mark::all(&children).get(schedule.below(children.len())) {
                let path = path::join(NODE, &mark.name);
                self.world.act(|world| world.write(&path, b"unlock"));
            }
            drop(locks);
            self.state.lock().busy -= 1;
            return;
        }
        let trial = Arc::clone(self);
        let body = move || {
            let Some(schedule) = current() else { return };
            let asked = match ask.of {
                Whom::Holders => locks.request_release().map(drop),
                Whom::One | Whom::OneByPeer => locks.contenders().and_then(|contenders| {
                    match contenders.get(schedule.below(contenders.len())) {
                        // A stranger's node that belongs to no session is left alone.
                        Some(one) if one.session.is_some() => {
                            locks.request_release_of(one).map(drop)
                        }
                        Some(_) => Ok(()),
                        None => Ok(()),
                    }
                }),
            };
            if let Err(error) = asked
                && !trial.may_fail_looking(&error)
            {
                trial.accuse(format!("requesting a release failed: {error:?}"));
            }
            drop(locks);
            trial.state.lock().busy -= 1;
        };
        // Threads may be unavailable.
        if schedule.within(ask.process, || schedule.start("asker", body)).is_err() {
            self.state.lock().busy -= 1;
        }
    }

    fn observe(&self, process: Process, locks: &Locks) {
        let mut observer = locks.observe();
        let limit = self.plan.habits.session_timeout;
        loop {
            let over = self.state.lock().observed.over;
            match observer.next_within(limit) {
                Ok(Some(holders)) => {
                    let paths = holders.into_iter().map(|holder| holder.path).collect();
                    self.state.lock().observed.latest = Some(paths);
                }
                Ok(None) if over => break,
                Ok(None) => {}
                Err(error) => {
                    if !self.may_fail_looking(&error) {
                        self.accuse(format!("process {process} cannot observe: {error:?}"));
                    }
                    break;
                }
            }
        }
        drop(observer);
        self.state.lock().observed.at_work = false;
    }

    /// Returns whether a fault that outlasts the call explains the error.
    fn may_fail_looking(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Connect | ErrorKind::ConnectionLoss | ErrorKind::SessionLost => true,
            ErrorKind::NotAuthorized => self.plan.hidden || self.expected(error, false),
            _ => self.expected(error, false),
        }
    }

    /// Ends the observation, when no contender holds any more.
    pub(super) fn end_observation(&self, schedule: &Schedule) {
        let mut state = self.state.lock();
        if state.observed.at_work && state.observed.latest.as_deref() != Some(&[]) {
            let seen = format!("{:?}", state.observed.latest);
            drop(state);
            return self.accuse(format!("there is no holder, but the observer sees {seen}"));
        }
        state.observed.over = true;
        drop(state);
        while self.state.lock().observed.at_work {
            schedule.pause(Duration::from_millis(50));
        }
        if self.plan.observer.is_some() {
            // The last request may still be under way.
            schedule.pause(self.plan.habits.session_timeout);
        }
    }
}
