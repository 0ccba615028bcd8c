//! What signals do before the command, where they end the wait, and the command never starts; and after it.

use std::io::{self, IsTerminal};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use zklock::{Cancel, Client, DistributedLock};

use super::guard::Happening;
use super::run_settings::RunSettings;
use super::signals;
use crate::exit::Exit;
use crate::output::say;
use crate::words::held_by;

/// After this long, a person at a terminal is told who has the lock.
const UNTIL_TOLD: Duration = Duration::from_secs(1);

/// The wait for the lock.
pub(crate) struct Waiting {
    cancel: Cancel,
    state: Arc<Mutex<State>>,
}

struct State {
    phase: Phase,
    interrupted_by: Option<Signal>,
    /// What a signal closes.
    client: Option<Client>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Waiting,
    /// The command runs: signals are passed on to it.
    Running,
    /// It has ended, and what is left to do may be interrupted.
    Ending,
}

impl Waiting {
    /// Begins to take signals: during the wait they end it, afterwards they are passed on.
    pub(crate) fn begin(
        set: &SigSet,
        has_terminal: bool,
        to: Sender<Happening>,
    ) -> io::Result<Waiting> {
        let source = signals::source(set)?;
        let state = State { phase: Phase::Waiting, interrupted_by: None, client: None };
        let waiting = Waiting { cancel: Cancel::new(), state: Arc::new(Mutex::new(state)) };
        let (cancel, state) = (waiting.cancel.clone(), Arc::clone(&waiting.state));
        let thread = thread::Builder::new().name("zklock-signals".to_owned());
        thread.spawn(move || {
            while let Ok(signal) = signals::next(&source) {
                if let Some(signal) = signal {
                    take(signal, has_terminal, &cancel, &state, &to);
                }
            }
        })?;
        Ok(waiting)
    }

    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// From now on, a signal also closes this client: calls that cannot be cancelled end by that.
    pub(crate) fn note_client(&self, client: &Client) {
        let mut state = lock(&self.state);
        match state.interrupted_by {
            None => state.client = Some(client.clone()),
            Some(_) => client.close(),
        }
    }

    /// Says who has the lock, on a terminal, if that takes some time.
    pub(crate) fn tell_of_others(&self, client: &Client, settings: &RunSettings) {
        if settings.how_to_wait.nonblock || !io::stderr().is_terminal() {
            return;
        }
        let (client, subject) = (client.clone(), settings.subject.clone());
        let (base, name) = (settings.lock.base.clone(), settings.lock.name.clone());
        let state = Arc::clone(&self.state);
        // Without a thread, it is not said.
        let _ = thread::Builder::new().name("zklock-tell".to_owned()).spawn(move || {
            thread::sleep(UNTIL_TOLD);
            if lock(&state).phase != Phase::Waiting {
                return;
            }
            let contenders = DistributedLock::new(&client, base, name).contenders();
            drop(client);
            if let Ok(all) = contenders {
                if all.iter().any(|one| one.holds) && lock(&state).phase == Phase::Waiting {
                    say(&subject, &format!("{}; waiting", held_by(&all)));
                }
            }
        });
    }

    /// Ends the wait. The end by the signal that has interrupted it, if one has; later ones are passed on.
    pub(crate) fn end(&self) -> Option<Exit> {
        let mut state = lock(&self.state);
        state.phase = Phase::Running;
        state.client = None;
        state.interrupted_by.map(|signal| Exit::Signal(signal as i32))
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        lock(&self.state).interrupted_by.is_some()
    }

    /// The command has ended: from now on, a signal that ends programs closes this client again.
    pub(crate) fn note_end_of_command(&self, client: &Client) {
        let mut state = lock(&self.state);
        (state.phase, state.client) = (Phase::Ending, Some(client.clone()));
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(
    signal: Signal,
    has_terminal: bool,
    cancel: &Cancel,
    state: &Mutex<State>,
    to: &Sender<Happening>,
) {
    let mut state = lock(state);
    if state.phase == Phase::Running {
        // The channel ends with the process.
        let _ = to.send(Happening::Signal(signal));
    } else if signals::ENDING.contains(&signal) {
        state.interrupted_by = Some(signal);
        cancel.cancel();
        // At most a second; the nodes of this process's contenders go with it.
        if let Some(client) = state.client.take() {
            client.close();
        }
    } else if signal == Signal::SIGTSTP {
        drop(state);
        signals::stop_job(has_terminal);
    }
}
