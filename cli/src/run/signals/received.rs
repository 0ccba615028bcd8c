//! The signals that zklock takes care of, blocked in all its threads and read from a descriptor.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::exit::ignored_signals;
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpgid, getpgrp, getpid};

/// These end a program, and are passed on to the command.
pub(crate) const ENDING: [Signal; 4] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Programs that get one of these end; HUP often means something else to them.
pub(crate) const ASKING_TO_END: [Signal; 3] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// These are passed on to the command, too: those that would end zklock, and mean something to the command.
const OTHERS: [Signal; 8] = [
    Signal::SIGALRM,
    Signal::SIGIO,
    Signal::SIGPROF,
    Signal::SIGPWR,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGVTALRM,
    Signal::SIGWINCH,
];

/// Blocks the signals in this thread and in all that it starts, and those that a terminal sends to a process
/// in the background.
///
/// A signal that zklock was started to ignore, as by `nohup`, it ignores; but not those of children, which
/// would end without telling how.
pub(crate) fn block() -> io::Result<SigSet> {
    signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::new(AtomicBool::new(false)))?;
    let ignored = ignored_signals();
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

/// Stops this process as Ctrl-Z does: with its whole job, if that has a terminal. Without a shell that could
/// let it go on, nothing happens.
pub(crate) fn stop_job(has_terminal: bool) {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTSTP);
    if has_terminal {
        // Not to the group as a whole: this process would read its own signal, and stop once more.
        for other in group_without_this() {
            let _ = kill(other, Signal::SIGTSTP);
        }
    }
    // To this thread only, which nobody reads from a descriptor; before it is let through, so that another
    // one that has come meanwhile stops it only once.
    let _ = raise(Signal::SIGTSTP);
    if stop.thread_unblock().is_ok() {
        let _ = stop.thread_block();
    }
}

/// The other processes of this one's group, as the other commands of a pipeline are.
fn group_without_this() -> Vec<Pid> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|one| one.file_name());
    let all = names.filter_map(|name| name.to_str()?.parse().ok()).map(Pid::from_raw);
    all.filter(|one| *one != getpid() && getpgid(Some(*one)) == Ok(getpgrp())).collect()
}

/// The signals to read.
pub(crate) fn source(set: &SigSet) -> nix::Result<SignalFd> {
    SignalFd::with_flags(set, SfdFlags::SFD_CLOEXEC)
}

/// The next signal.
pub(crate) fn next(of: &SignalFd) -> nix::Result<Option<Signal>> {
    let Some(info) = of.read_signal()? else { return Ok(None) };
    Ok(i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok()))
}
