//! What is done to the command of `run` and `lead` when its lock is lost or asked for.

use std::str::FromStr;

use nix::sys::signal::Signal;

/// What is done to the command when the lock is about to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// This signal, and then KILL.
    Signal(Signal),
    Kill,
    /// Nothing: it works on while others may hold the lock.
    Warn,
}

impl FromStr for OnLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<OnLoss, String> {
        match signal_of(text) {
            Err(_) if text.eq_ignore_ascii_case("warn") => Ok(OnLoss::Warn),
            Ok(Signal::SIGKILL) => Ok(OnLoss::Kill),
            Ok(Signal::SIGSTOP) => Err("a stopped command could work on later".to_owned()),
            Ok(signal) => Ok(OnLoss::Signal(signal)),
            Err(_) => Err("neither term, kill, warn nor the name of a signal".to_owned()),
        }
    }
}

/// What is done to the command when another client asks for the lock's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnAsk {
    Signal(Signal),
    Ignore,
}

impl FromStr for OnAsk {
    type Err = String;

    fn from_str(text: &str) -> Result<OnAsk, String> {
        match signal_of(text) {
            Err(_) if text.eq_ignore_ascii_case("ignore") => Ok(OnAsk::Ignore),
            Ok(Signal::SIGSTOP) => Err("a stopped command releases nothing".to_owned()),
            Ok(signal) => Ok(OnAsk::Signal(signal)),
            Err(_) => Err("neither term, ignore nor the name of a signal".to_owned()),
        }
    }
}

/// The signal of this name, such as `term` or `SIGTERM`.
fn signal_of(text: &str) -> nix::Result<Signal> {
    let name = text.to_ascii_uppercase();
    Signal::from_str(&format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_ask_is_a_signal_or_a_word() {
        let all = [
            ("term", OnAsk::Signal(Signal::SIGTERM)),
            ("SIGUSR1", OnAsk::Signal(Signal::SIGUSR1)),
            ("ignore", OnAsk::Ignore),
        ];
        for (text, on_ask) in all {
            assert_eq!(text.parse(), Ok(on_ask), "{text}");
        }
        for wrong in ["", "stop", "9", "warn"] {
            assert!(wrong.parse::<OnAsk>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn on_loss_is_a_signal_or_a_word() {
        let all = [
            ("term", OnLoss::Signal(Signal::SIGTERM)),
            ("SIGUSR1", OnLoss::Signal(Signal::SIGUSR1)),
            ("int", OnLoss::Signal(Signal::SIGINT)),
            ("kill", OnLoss::Kill),
            ("warn", OnLoss::Warn),
        ];
        for (text, on_loss) in all {
            assert_eq!(text.parse(), Ok(on_loss), "{text}");
        }
        for wrong in ["", "stop", "9", "nothing"] {
            assert!(wrong.parse::<OnLoss>().is_err(), "{wrong}");
        }
    }
}
