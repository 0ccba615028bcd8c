//! `--hold-at-least`: the lock is kept though the command has ended. A state machine without IO, as `course`
//! is: it says what to do about what happens meanwhile; `supervise` does it.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use super::course::Action;
use crate::args::OnAsk;
use crate::run::boot_clock::BootTime;
use crate::run::guard::Happening;
use crate::run::signals::ENDING;
use crate::words::lasting;

/// Whether the lock was kept after the end of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stayed {
    No,
    Yes,
    /// It was lost then, which has been said.
    UntilLost,
}

/// What to do next while the lock is kept.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    Wait,
    /// Stop this process, as a shell's job.
    Stop,
    /// Release the lock, and end with the command's exit code.
    End(Stayed),
}

/// The time between the end of the command and the release.
#[derive(Debug)]
pub(crate) struct Stay {
    pub(crate) until: BootTime,
    on_ask: OnAsk,
}

impl Stay {
    pub(crate) fn new(until: BootTime, on_ask: OnAsk) -> Stay {
        Stay { until, on_ask }
    }

    /// How much longer the lock is kept; `None` if the time is over.
    pub(crate) fn left(&self, now: BootTime) -> Option<Duration> {
        self.until.checked_sub(now).filter(|left| *left != 0).map(Duration::from_nanos)
    }

    /// What to do now that this has happened, or nothing has.
    pub(crate) fn step(&self, happening: Option<Happening>, now: BootTime) -> (Vec<Action>, Next) {
        let Some(left) = self.left(now) else { return (Vec::new(), Next::End(Stayed::Yes)) };
        match happening {
            Some(Happening::Signal(Signal::SIGCHLD)) => (vec![Action::Reap], Next::Wait),
            Some(Happening::Signal(Signal::SIGTSTP)) => (Vec::new(), Next::Stop),
            Some(Happening::Signal(signal)) if ENDING.contains(&signal) => {
                (Vec::new(), Next::End(Stayed::Yes))
            }
            Some(Happening::Lost(reason)) => {
                let text = format!(
                    "LOCK LOST after the end of the command, {} before --hold-at-least was over: {reason}",
                    lasting(left)
                );
                (vec![Action::Complain(text)], Next::End(Stayed::UntilLost))
            }
            Some(Happening::ReleaseRequested) => self.ask_for_release(),
            // The guard process has ended with the command, and other signals were the command's.
            Some(Happening::Signal(_) | Happening::Reported(_) | Happening::GuardEnded) | None => {
                (Vec::new(), Next::Wait)
            }
        }
    }

    fn ask_for_release(&self) -> (Vec<Action>, Next) {
        let (what, next) = match self.on_ask {
            OnAsk::Ignore => ("it is kept (--on-ask ignore)", Next::Wait),
            OnAsk::Signal(_) => {
                ("the command has ended, so it is released", Next::End(Stayed::Yes))
            }
        };
        let text = format!("another client asks for its release; {what}");
        (vec![Action::Write("release_requested", json!({})), Action::Say(text)], next)
    }
}

#[cfg(test)]
mod tests {
    use zklock::LossReason;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn stay(on_ask: &str) -> Stay {
        Stay::new(100 * SECOND, on_ask.parse().unwrap())
    }

    /// Ten seconds before its time is over.
    fn step(stay: &Stay, happening: Happening) -> (Vec<Action>, Next) {
        stay.step(Some(happening), 90 * SECOND)
    }

    #[test]
    fn it_ends_with_its_time_and_not_before() {
        let stay = stay("term");
        assert_eq!(stay.left(90 * SECOND), Some(Duration::from_secs(10)));
        for (now, next) in [(100 * SECOND - 1, Next::Wait), (100 * SECOND, Next::End(Stayed::Yes))]
        {
            assert_eq!(stay.step(None, now), (vec![], next), "{now}");
        }
        assert_eq!(stay.left(101 * SECOND), None);
    }

    #[test]
    fn signals_that_end_programs_end_it_and_others_were_the_command_s() {
        let stay = stay("term");
        for signal in ENDING {
            let ended = step(&stay, Happening::Signal(signal));
            assert_eq!(ended, (vec![], Next::End(Stayed::Yes)), "{signal}");
        }
        for (happening, actions, next) in [
            (Happening::Signal(Signal::SIGUSR1), vec![], Next::Wait),
            (Happening::Signal(Signal::SIGCONT), vec![], Next::Wait),
            (Happening::Signal(Signal::SIGCHLD), vec![Action::Reap], Next::Wait),
            (Happening::Signal(Signal::SIGTSTP), vec![], Next::Stop),
            (Happening::GuardEnded, vec![], Next::Wait),
        ] {
            assert_eq!(step(&stay, happening), (actions, next));
        }
    }

    #[test]
    fn a_loss_is_said_and_ends_it() {
        let (actions, next) = step(&stay("term"), Happening::Lost(LossReason::SessionExpired));
        let text = "LOCK LOST after the end of the command, 10 s before --hold-at-least was over: \
                    the session expired";
        assert_eq!(actions, [Action::Complain(text.to_owned())]);
        assert_eq!(next, Next::End(Stayed::UntilLost));
    }

    #[test]
    fn a_request_for_the_release_ends_it_unless_requests_are_ignored() {
        for (on_ask, next) in [
            ("term", Next::End(Stayed::Yes)),
            ("usr1", Next::End(Stayed::Yes)),
            ("ignore", Next::Wait),
        ] {
            let (actions, then) = step(&stay(on_ask), Happening::ReleaseRequested);
            assert_eq!(actions[0], Action::Write("release_requested", json!({})));
            assert_eq!((actions.len(), then), (2, next), "{on_ask}");
        }
    }
}
