//! What the command exits with, and why.

use std::process::ExitCode;

use nix::sys::signal::Signal;
use zklock::ErrorKind;

/// The exit codes of zklock's own; a command that ran to its end has its own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Success,
    /// What was asked for is not so: `test` found the lock free, `leader` no leader.
    No,
    Usage,
    Unavailable,
    NotPermitted,
    /// The command has not ended within `--max-run`.
    RanTooLong,
    LockLost,
    Conflict(u8),
    /// What was found by a subcommand that has exit codes of its own.
    Found(u8),
    Failed,
    CannotRun,
    NotFound,
    Signal(i32),
    /// That of the command.
    Command(u8),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::No => 1,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::NotPermitted => 77,
            Exit::RanTooLong => 122,
            Exit::LockLost => 123,
            Exit::Conflict(code) | Exit::Command(code) | Exit::Found(code) => code,
            Exit::Failed => 125,
            Exit::CannotRun => 126,
            Exit::NotFound => 127,
            Exit::Signal(number) => 128_u8.saturating_add(u8::try_from(number).unwrap_or(127)),
        }
    }

    /// The end of this process. After INT and TERM it ends as all programs do, by the signal. Otherwise,
    /// after Ctrl-C, a shell's loop around it would go on, and systemd would take what it has stopped for
    /// failed.
    pub(crate) fn end(self) -> ExitCode {
        self.end_by_signal();
        ExitCode::from(self.code())
    }

    /// As `end`, from any thread.
    pub(crate) fn end_now(self) -> ! {
        self.end_by_signal();
        std::process::exit(self.code().into())
    }

    fn end_by_signal(self) {
        let by_itself = [Signal::SIGINT, Signal::SIGTERM].map(|signal| signal as i32);
        match self {
            // The first process of a container cannot end by a signal.
            Exit::Signal(number) if by_itself.contains(&number) && std::process::id() != 1 => {
                let _ = signal_hook::low_level::emulate_default_handler(number);
            }
            _ => {}
        }
    }
}

/// The signals that this process was started to ignore, a bit for each, as by `nohup`.
pub(crate) fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default()
}

/// Why zklock ends without having done what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// What is said on standard error; nothing if it is empty.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// It ends without a word.
    pub(crate) fn silent(exit: Exit) -> Failure {
        Failure::new(exit, "")
    }

    /// The same, with what was tried in front of the message.
    pub(crate) fn during(self, what: &str) -> Failure {
        Failure { message: format!("{what}: {}", self.message), ..self }
    }
}

impl From<zklock::Error> for Failure {
    fn from(error: zklock::Error) -> Failure {
        let exit = match error.kind() {
            _ if error.is_outage() => Exit::Unavailable,
            ErrorKind::AuthFailed | ErrorKind::NotAuthorized => Exit::NotPermitted,
            ErrorKind::InvalidName | ErrorKind::InvalidArgument => Exit::Usage,
            _ => Exit::Failed,
        };
        Failure::new(exit, error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(Exit::Failed, error.to_string())
    }
}

impl From<nix::Error> for Failure {
    fn from(error: nix::Error) -> Failure {
        Failure::new(Exit::Failed, error.desc())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_table() {
        let all = [
            (Exit::Unavailable, 69),
            (Exit::Conflict(124), 124),
            (Exit::Signal(15), 143),
            (Exit::Signal(1000), 255),
            (Exit::Command(7), 7),
        ];
        for (exit, code) in all {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }
}
