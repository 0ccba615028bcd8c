//! The terminal, which the command's group gets when it is in the foreground.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::signal::killpg;
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal of this session, if it has one.
#[derive(Clone, Debug)]
pub(crate) struct Terminal(Option<Arc<File>>);

impl Terminal {
    pub(crate) fn new() -> Terminal {
        let file = OpenOptions::new().read(true).write(true).open("/dev/tty");
        Terminal(file.ok().map(Arc::new))
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Whether zklock's group has it.
    pub(crate) fn is_ours(&self) -> bool {
        self.group() == Some(getpgrp())
    }

    /// Whether neither zklock's group nor the command's has it. The command may have got it only after it
    /// asked.
    pub(crate) fn is_elsewhere(&self, command: Option<Pid>) -> bool {
        !self.is_ours() && self.group() != command
    }

    /// Whether the command is to have it from the start. In a pipeline, others may need it; then the command
    /// gets it when it asks for it.
    pub(crate) fn is_for_the_command(&self) -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal() && self.is_ours()
    }

    pub(crate) fn give_to(&self, group: Pid) {
        if let Some(file) = &self.0 {
            // A terminal that is gone is no reason not to run.
            let _ = tcsetpgrp(file, group);
        }
    }

    /// Takes it back from the command, or from what it had given it to, which has ended.
    pub(crate) fn take_from(&self, command: Option<Pid>) {
        let is_gone = |group| killpg(group, None) == Err(Errno::ESRCH);
        if self.group().is_some_and(|group| command == Some(group) || is_gone(group)) {
            self.give_to(getpgrp());
        }
    }

    /// The group that has it.
    fn group(&self) -> Option<Pid> {
        tcgetpgrp(self.0.as_ref()?).ok()
    }
}
