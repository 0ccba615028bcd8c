//! The signals that zklock takes care of, blocked in all its threads and read from a descriptor.

use std::fs;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// These end a program, and are passed on to the command.
pub(super) const ENDING: [Signal; 4] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Programs that get one of these end; HUP often means something else to them.
pub(super) const ASKING_TO_END: [Signal; 3] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// These are passed on to the command, too.
const OTHERS: [Signal; 3] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];

/// Blocks the signals in this thread and in all that it starts, and those that a terminal sends to a process
/// in the background.
///
/// A signal that zklock was started to ignore, as by `nohup`, it ignores.
pub(super) fn block() -> nix::Result<SigSet> {
    let ignored = ignored();
    let mut set = SigSet::empty();
    let own = [Signal::SIGCONT, Signal::SIGTSTP, Signal::SIGCHLD];
    for signal in ENDING.into_iter().chain(OTHERS).chain(own) {
        if ignored & (1 << (signal as u32 - 1)) == 0 {
            set.add(signal);
        }
    }
    let mut blocked = set;
    blocked.add(Signal::SIGTTOU);
    blocked.add(Signal::SIGTTIN);
    blocked.thread_block()?;
    Ok(set)
}

/// The signals to read.
pub(super) fn source(set: &SigSet) -> nix::Result<SignalFd> {
    SignalFd::with_flags(set, SfdFlags::SFD_CLOEXEC)
}

/// The next signal.
pub(super) fn next(of: &SignalFd) -> nix::Result<Option<Signal>> {
    let Some(info) = of.read_signal()? else { return Ok(None) };
    Ok(i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok()))
}

/// The signals that this process ignores, one bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default()
}
