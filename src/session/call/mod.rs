//! One blocking call of the program: how long it may take, what may end it before, and the session
//! that it asks.

mod changes;
mod purpose;
mod watch_loop;

pub use changes::Changes;
pub(crate) use purpose::{Purpose, cancelled, unanswered};
pub(crate) use watch_loop::{View, WatchLoop};

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::connection_notice::End;
use crate::error::{Error, Result};
use crate::link::AwaitsServer;
use crate::rt::{self, Deadline, Signal};
use crate::session::client::{ClientCore, Patience};
use crate::session::connection::{Answer, Fault};
use crate::session::requests::{Session, rejected};
use crate::session::wait::{Subscription, Wait, Waiter};

/// Why a call ends without what it was made for.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The time is over.
    TimeOver,
    Cancelled,
    /// The session has ended, and the call asks no other one.
    SessionEnded(End),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// See the module. Everything that may end a wait of the call rings its bell.
pub(crate) struct Call {
    core: Arc<ClientCore>,
    wait: Wait,
    /// How long it waits for the answers to requests.
    ask_wait: Wait,
    /// Of the token that cancels the call.
    _cancel: Option<Subscription>,
    waiter: Waiter,
    bell: Signal,
    session: Option<(Arc<Session>, Subscription)>,
    /// Whether it asks no other session when this one has ended.
    stays: bool,
    is_unanswered: bool,
    has_lost_answers: bool,
    /// When a wait ends though the bell was not rung.
    alarm: Option<Instant>,
}

impl Call {
    /// A call that waits as long as this, and asks any session of the client. A request may take up
    /// to 50 ms more.
    pub(crate) fn new(core: &Arc<ClientCore>, wait: &Wait) -> Call {
        let call = Call::strict(core, wait);
        Call { ask_wait: wait.worth_asking(), ..call }
    }

    /// A call whose requests take no longer than `wait`.
    pub(crate) fn strict(core: &Arc<ClientCore>, wait: &Wait) -> Call {
        let waiter = Waiter::new();
        let bell = waiter.bell();
        Call::with(core, wait, waiter, bell)
    }

    /// One that also gives this signal whenever something changes, also while nobody waits.
    pub(crate) fn telling(core: &Arc<ClientCore>, wait: &Wait, also: Signal) -> Call {
        let waiter = Waiter::new();
        let ring = waiter.bell();
        let bell: Signal = Arc::new(move || {
            ring();
            also();
        });
        Call::with(core, wait, waiter, bell)
    }

    /// A call that asks this session only.
    pub(crate) fn in_session(core: &Arc<ClientCore>, session: &Arc<Session>, wait: &Wait) -> Call {
        Call::strict(core, wait).staying_in(session)
    }

    /// The same, but it asks this session only.
    pub(crate) fn staying_in(mut self, session: &Arc<Session>) -> Call {
        self.stay_in(session);
        self
    }

    /// From here on it asks this session only.
    pub(crate) fn stay_in(&mut self, session: &Arc<Session>) {
        self.use_session(Arc::clone(session));
        self.stays = true;
    }

    /// From here on it asks any session of the client.
    pub(crate) fn stay_no_more(&mut self) {
        self.stays = false;
    }

    /// The same, but it also waits as long as a request may take.
    pub(crate) fn with_grace(self) -> Call {
        Call { wait: self.ask_wait.clone(), ..self }
    }

    fn with(core: &Arc<ClientCore>, wait: &Wait, waiter: Waiter, bell: Signal) -> Call {
        Call {
            core: Arc::clone(core),
            wait: wait.clone(),
            _cancel: wait.cancel().map(|cancel| cancel.subscribe(Arc::clone(&bell))),
            ask_wait: wait.clone(),
            waiter,
            bell,
            session: None,
            stays: false,
            is_unanswered: false,
            has_lost_answers: false,
            alarm: None,
        }
    }

    /// Another call with the same limits.
    pub(crate) fn again(&self) -> Call {
        Call { ask_wait: self.ask_wait.clone(), ..Call::strict(&self.core, &self.wait) }
    }

    /// The same, but it waits no longer than this.
    pub(crate) fn earlier(self, until: Deadline) -> Call {
        Call { wait: self.wait.earlier(until), ask_wait: self.ask_wait.clone(), ..self }
    }

    /// Requests may take 50 ms from now, even if the time is over before.
    pub(crate) fn allow_grace(&mut self) {
        self.ask_wait = self.wait.worth_asking();
    }

    /// Begins anew, with another limit.
    pub(crate) fn renew(&mut self, wait: &Wait) {
        self._cancel = wait.cancel().map(|cancel| cancel.subscribe(self.bell()));
        (self.wait, self.ask_wait) = (wait.clone(), wait.worth_asking());
    }

    pub(crate) fn core(&self) -> &Arc<ClientCore> {
        &self.core
    }

    /// How long it waits.
    pub(crate) fn limit(&self) -> &Wait {
        &self.wait
    }

    pub(crate) fn until(&self) -> Deadline {
        self.wait.until()
    }

    // ----- waiting

    pub(crate) fn is_cancelled(&self) -> bool {
        self.wait.is_cancelled()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.wait.is_over()
    }

    /// Fails if the call is over.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        if self.is_over() { Err(self.over()) } else { Ok(()) }
    }

    /// Fails if the time for answers is over.
    pub(crate) fn check_asking(&self) -> Result<(), Stop> {
        if self.ask_wait.is_over() { Err(self.over()) } else { Ok(()) }
    }

    /// Why the call ends now.
    fn over(&self) -> Stop {
        if self.is_cancelled() { Stop::Cancelled } else { Stop::TimeOver }
    }

    /// The bell to ring when a condition of the caller's own may have come true.
    pub(crate) fn bell(&self) -> Signal {
        Arc::clone(&self.bell)
    }

    /// Returns when the bell was rung since the last wait.
    pub(crate) fn wait(&self) -> Result<(), Stop> {
        self.check()?;
        self.sleep(self.until());
        Ok(())
    }

    /// Waits as `wait` does; without a connection, no alarm ends it.
    pub(crate) fn wait_if(&mut self, is_connected: bool) -> Result<(), Stop> {
        self.check()?;
        let alarm = if is_connected { self.alarm() } else { Deadline::NEVER };
        self.waiter.wait(self.until().earlier(alarm));
        Ok(())
    }

    /// The same, for an event that the server is to send. The call may read it itself, for some
    /// milliseconds in which nothing else ends the wait; not if there is a `Cancel`.
    pub(crate) fn wait_for_event(&mut self, is_connected: bool) -> Result<(), Stop> {
        self.check()?;
        if is_connected && self.wait.cancel().is_none() {
            let until = self.until().earlier(self.alarm());
            self.read(until);
            if self.waiter.is_rung() {
                self.waiter.wait(until);
                return Ok(());
            }
        }
        let _waits = self.count_sleeper();
        self.wait_if(is_connected)
    }

    /// Reads what the server sends, if nobody else does, until the bell is rung.
    fn read(&self, until: Deadline) {
        let Some((session, _)) = &self.session else { return };
        let Some(waits) = session.await_server(true) else { return };
        let waits = Cell::new(Some(waits));
        session.read_until(until, &|| {
            let is_rung = self.waiter.is_rung();
            if is_rung {
                drop(waits.take());
            }
            is_rung
        });
    }

    fn sleep(&self, until: Deadline) {
        let _waits = self.count_sleeper();
        self.waiter.wait(until);
    }

    /// Until this is dropped, what the server sends is read at once.
    fn count_sleeper(&self) -> Option<AwaitsServer> {
        let (session, _) = self.session.as_ref().filter(|_| !self.waiter.is_rung())?;
        session.await_server(false)
    }

    fn alarm(&self) -> Deadline {
        self.alarm.map_or(Deadline::NEVER, Deadline::at)
    }

    /// Has a later `wait_if` return at this time, if not before.
    pub(crate) fn set_alarm(&mut self, at: Option<Instant>) {
        self.alarm = at;
    }

    /// Has it return by this time.
    pub(crate) fn set_alarm_by(&mut self, at: Option<Instant>) {
        self.alarm = self.alarm.into_iter().chain(at).min();
    }

    /// Whether it is time for the alarm, which is over then.
    pub(crate) fn alarm_rings(&mut self) -> bool {
        self.alarm.take_if(|at| rt::now() >= *at).is_some()
    }

    /// Waits until a condition of the caller's own is true, for which the bell is rung.
    pub(crate) fn wait_for(&self, has_come: impl FnMut() -> bool) -> Result<(), Stop> {
        if self.has_come(self.until(), has_come) { Ok(()) } else { Err(self.over()) }
    }

    /// Waits, until then, for such a condition; false if that was not in time.
    pub(crate) fn has_come(&self, until: Deadline, mut has_come: impl FnMut() -> bool) -> bool {
        loop {
            if has_come() {
                return true;
            }
            if self.is_cancelled() || until.has_passed() {
                return false;
            }
            self.sleep(until);
        }
    }

    // ----- asking

    /// The session to ask, as soon as a server serves it.
    pub(crate) fn session(&mut self) -> Result<Arc<Session>, Stop> {
        loop {
            let session = self.open()?;
            match self.until_served(&session) {
                Ok(()) => return Ok(session),
                Err(Stop::SessionEnded(_)) => {}
                Err(stop) => return Err(stop),
            }
        }
    }

    /// The session to ask, whether or not a server serves it just now.
    pub(crate) fn open(&mut self) -> Result<Arc<Session>, Stop> {
        if let Some((session, _)) = &self.session {
            match session.status().now().ended {
                None => return Ok(Arc::clone(session)),
                Some(end) if self.stays => return Err(Stop::SessionEnded(end)),
                // Each further session would end in the same way.
                Some(End::AuthFailed) => {
                    let rejection = rejected(session.info().trouble);
                    self.session = None;
                    return Err(rejection.into());
                }
                Some(_) => self.session = None,
            }
        }
        let until = self.ask_wait.until();
        let is_cancelled = || self.is_cancelled();
        match self.core.session(&self.waiter, until, is_cancelled, Patience::UntilDeadline)? {
            Some(session) => Ok(self.use_session(session)),
            None => Err(self.over()),
        }
    }

    /// The session to ask, if it has not ended.
    pub(crate) fn live_session(&self) -> Option<Arc<Session>> {
        let (session, _) = self.session.as_ref()?;
        session.status().now().ended.is_none().then(|| Arc::clone(session))
    }

    /// Asks this session from now on.
    pub(crate) fn use_session(&mut self, session: Arc<Session>) -> Arc<Session> {
        let subscription = session.status().subscribe(self.bell());
        self.session = Some((Arc::clone(&session), subscription));
        session
    }

    /// Waits until a server serves the session: earlier requests would be in vain.
    pub(crate) fn until_served(&mut self, session: &Session) -> Result<(), Stop> {
        loop {
            let phase = session.status().now();
            if let Some(end) = phase.ended {
                return Err(Stop::SessionEnded(end));
            }
            self.check_asking()?;
            if phase.attached {
                return Ok(());
            }
            self.waiter.wait(self.ask_wait.until());
        }
    }

    /// Asks once, as soon as a server serves the session.
    pub(crate) fn ask<T>(
        &mut self,
        question: impl FnOnce(&Session) -> Answer<T>,
    ) -> Result<Answer<T>, Stop> {
        let session = self.session()?;
        self.ask_in(&session, question)
    }

    /// Asks once, in this session: see [`Session::ask`].
    pub(crate) fn ask_in<T>(
        &mut self,
        session: &Session,
        question: impl FnOnce(&Session) -> Answer<T>,
    ) -> Result<Answer<T>, Stop> {
        self.is_unanswered = true;
        let answer = session.ask(&self.ask_wait, question);
        let answer = answer.ok_or_else(|| self.over())?;
        self.is_unanswered = answer.as_ref().is_err_and(Fault::is_loss);
        self.has_lost_answers |= self.is_unanswered;
        Ok(answer)
    }

    /// Asks until there is an answer, over lost connections and, unless the call stays in one, lost
    /// sessions. The requests of a question may be made several times.
    pub(crate) fn insist<T>(
        &mut self,
        mut question: impl FnMut(&Session) -> Answer<T>,
    ) -> Result<Answer<T>, Stop> {
        loop {
            let answer = self.ask(&mut question)?;
            if !self.is_unanswered {
                return Ok(answer);
            }
        }
    }

    /// Whether the latest request had no answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.is_unanswered
    }

    /// Whether any request had no answer.
    pub(crate) fn has_lost_answers(&self) -> bool {
        self.has_lost_answers
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Call")
    }
}
