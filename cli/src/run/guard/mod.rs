//! The guard process, which stands between zklock and the command.
//!
//! It is a fork of zklock, made before there are threads. It starts the command in a group of its own, and
//! ends it with all that it has started when the lock ends, by what zklock has told it last, or when zklock
//! itself ends: also if zklock is stopped or killed. It is stopped or killed itself? Then zklock does the
//! same (see `supervise`), and the kernel kills the command's first process.
//!
//! While the command runs, it waits for nothing but its descriptors and its clock: not for zklock to read its
//! reports, nor for the forked process to become the command. However it ends, the command ends first.

mod descendants;
mod messages;

pub(crate) use self::descendants::{
    adopt_descendants, children, end_all, reap, runs, some_are_left,
};
pub(crate) use self::messages::{Ended, Happening, Lines, Order, Report, send};

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{self, Command};
use std::time::Duration;

use fork::Fork;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::{Pid, getpgid, getpid, getppid, pipe2, setpgid};
use rustix::process::{WaitIdOptions, WaitIdStatus};

use self::descendants::look;
use crate::args::Linger;
use crate::args::OnLoss;
use crate::lease_budget::KILL_BEFORE_END;
use crate::run::boot_clock::{BootTime, nanoseconds, now};
use crate::run::held_lock::HELD;
use crate::run::signals::Terminal;
use crate::run::signals::{self, ASKING_TO_END, ENDING};

/// What the command is told of its lock by; those of another zklock around it are not its own.
const VARIABLES: [&str; 7] = [
    HELD,
    "ZKLOCK_LOCK",
    "ZKLOCK_NODE",
    "ZKLOCK_SESSION",
    "ZKLOCK_TOKEN",
    "ZKLOCK_ZXID",
    "ZKLOCK_LOST_FD",
];

/// What the guard has to know before it is told to start the command.
pub(crate) struct Plan {
    pub(crate) command: Vec<OsString>,
    pub(crate) on_loss: OnLoss,
    pub(crate) linger: Linger,
    pub(crate) signals: SigSet,
    pub(crate) terminal: Terminal,
}

/// zklock's side of the guard process.
pub(crate) struct GuardProcess {
    pub(crate) process: Pid,
    pub(crate) orders: File,
    pub(crate) reports: File,
}

impl GuardProcess {
    /// Forks. This process must have one thread.
    pub(crate) fn fork(plan: Plan) -> io::Result<GuardProcess> {
        let (read_orders, write_orders) = pipe2(OFlag::O_CLOEXEC)?;
        let (read_reports, write_reports) = pipe2(OFlag::O_CLOEXEC)?;
        match fork()? {
            Fork::Parent(process) => Ok(GuardProcess {
                process: Pid::from_raw(process),
                orders: write_orders.into(),
                reports: read_reports.into(),
            }),
            Fork::Child => {
                drop((write_orders, read_reports));
                let result = Guard::new(plan, read_orders.into(), write_reports.into())
                    .and_then(Guard::serve);
                // zklock sees the end of the pipe, and says that the guard has failed.
                process::exit(i32::from(result.is_err()));
            }
        }
    }
}

struct Guard {
    plan: Plan,
    orders: File,
    lines: Lines,
    reports: File,
    signals: SignalFd,
    timer: TimerFd,
    command: Option<Pid>,
    /// Ends when the forked process has become the command, or tells why it could not.
    starting: Option<File>,
    /// Until when the lock is certain to be held; `None` if there is no such time.
    lock_ends: Option<BootTime>,
    /// From the signal that is to end the command to KILL, in nanoseconds.
    grace: u64,
    is_warned: bool,
    /// It is to be killed, whatever the time.
    must_end: bool,
    /// It was sent a signal that asks programs to end.
    is_told_to_end: bool,
    /// When to kill what the command has left running.
    leftovers_end: Option<BootTime>,
    /// It has left processes running that were told to end.
    had_left_some: bool,
    /// Its end tells the command that the lock is lost.
    lost_pipe: Option<OwnedFd>,
}

impl Guard {
    fn new(plan: Plan, orders: File, reports: File) -> io::Result<Guard> {
        // Only for those who list processes; whoever stops or kills all that is called zklock spares it.
        let _ = set_name(c"zk-guard");
        // What is sent to zklock's group is zklock's to pass on.
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        adopt_descendants()?;
        // All orders count before the time is looked at: this process may have been stopped.
        fcntl(&orders, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // zklock may be stopped, and then reads nothing.
        fcntl(&reports, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let signals = signals::source(&plan.signals)?;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
        Ok(Guard {
            plan,
            orders,
            lines: Lines::default(),
            reports,
            signals,
            timer,
            command: None,
            starting: None,
            lock_ends: None,
            grace: 0,
            is_warned: false,
            must_end: false,
            is_told_to_end: false,
            leftovers_end: None,
            had_left_some: false,
            lost_pipe: None,
        })
    }

    /// Serves until the command has ended, or zklock has.
    fn serve(mut self) -> io::Result<()> {
        loop {
            self.set_timer()?;
            // The orders twice if nothing is starting.
            let starting = self.starting.as_ref().unwrap_or(&self.orders);
            let [order, signal, timer, has_news] =
                readable([&self.orders, &self.signals, &self.timer, starting])?;
            // What is started by an order has no news yet: a read would wait for it.
            let has_started = has_news && self.starting.is_some();
            if timer {
                self.timer.wait()?;
            }
            if order && self.read_orders()? {
                return Ok(());
            }
            if signal {
                self.take_signal()?;
            }
            if has_started && self.look_at_start()? {
                return Ok(());
            }
            // Also without a timer: after a stop of this process, everything is ready at once.
            if self.look_at_time()? || self.look_at_command()? {
                return Ok(());
            }
        }
    }

    /// Obeys all orders that have come. True when there is nothing more to do.
    fn read_orders(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let has_zklock_ended = loop {
            match self.orders.read(&mut bytes) {
                Ok(0) => break true,
                Ok(count) => self.lines.add(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        let orders: Vec<Order> = std::iter::from_fn(|| self.lines.next()).collect();
        for order in &orders {
            match order {
                Order::Start { lock_ends, grace, .. } => {
                    (self.lock_ends, self.grace) = (*lock_ends, *grace);
                }
                Order::Held { until } => self.lock_ends = Some(*until),
                Order::Kill => self.must_end = true,
                _ => {}
            }
        }
        if has_zklock_ended {
            // With it, the heartbeats of its session have ended.
            self.kill_all();
            return Ok(true);
        }
        for order in orders {
            if self.obey(order)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True when there is nothing more to do.
    fn obey(&mut self, order: Order) -> io::Result<bool> {
        match order {
            Order::Start { variables, takes_terminal, .. } => {
                // This process may have been stopped since.
                if self.must_end || self.due().is_some_and(|(_, kill)| now() >= kill) {
                    self.report_end(&Report::Ended(Ended { by_guard: true, ..ending(None) }));
                    return Ok(true);
                }
                if let Err(error) = self.start(&variables, takes_terminal) {
                    let error = number_of(&error);
                    self.report_end(&Report::NotStarted { process: 0, error });
                    return Ok(true);
                }
            }
            Order::Held { .. } | Order::Kill => {}
            Order::Lost => self.lost_pipe = None,
            Order::Signal { number } => {
                if let Ok(signal) = Signal::try_from(number) {
                    // Not if only what the command has left is running.
                    let is_heard = self.command.is_some_and(runs);
                    self.is_told_to_end |= ASKING_TO_END.contains(&signal) && is_heard;
                    self.pass_on(signal);
                }
            }
        }
        Ok(false)
    }

    /// Starts a process that becomes the command, or says why it could not.
    fn start(&mut self, variables: &[(String, String)], takes_terminal: bool) -> io::Result<()> {
        let (read_lost, write_lost) = pipe2(OFlag::O_CLOEXEC)?;
        let (read_error, write_error) = pipe2(OFlag::O_CLOEXEC)?;
        let guard = getpid();
        match fork()? {
            Fork::Parent(process) => {
                let process = Pid::from_raw(process);
                // As the process itself does: a signal may have to be passed on before it gets that far.
                let _ = setpgid(process, process);
                self.command = Some(process);
            }
            Fork::Child => {
                let error = self.become_command(variables, takes_terminal, &read_lost, guard);
                // If that fails, too, the exit code tells.
                let _ = send(&mut File::from(write_error), &number_of(&error));
                process::exit(126);
            }
        }
        (self.starting, self.lost_pipe) = (Some(read_error.into()), Some(write_lost));
        Ok(())
    }

    /// Whether the command could not be run.
    fn look_at_start(&mut self) -> io::Result<bool> {
        let Some(mut starting) = self.starting.take() else { return Ok(false) };
        let (mut lines, mut bytes) = (Lines::default(), [0; 16]);
        let count = starting.read(&mut bytes)?;
        lines.add(&bytes[..count]);
        let process = self.command.map_or(0, Pid::as_raw);
        match lines.next() {
            None => self.report(&Report::Started { process }),
            Some(error) => {
                end_all(self.command.take(), &[], None);
                self.report_end(&Report::NotStarted { process, error });
            }
        }
        Ok(self.command.is_none())
    }

    /// In the forked child: runs the command, or returns why that failed.
    fn become_command(
        &self,
        variables: &[(String, String)],
        takes_terminal: bool,
        lost: &OwnedFd,
        guard: Pid,
    ) -> io::Error {
        let prepare = || -> nix::Result<()> {
            setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            set_pdeathsig(Signal::SIGKILL)?;
            if getppid() != guard {
                return Err(Errno::ECHILD);
            }
            if takes_terminal {
                self.plan.terminal.give_to(getpid());
            }
            fcntl(lost, FcntlArg::F_SETFD(FdFlag::empty()))?;
            SigSet::empty().thread_set_mask()
        };
        if let Err(error) = prepare() {
            return error.into();
        }
        let Some((program, arguments)) = self.plan.command.split_first() else {
            return Errno::ENOENT.into();
        };
        let mut command = Command::new(program);
        // zklock may run under a zklock itself.
        for name in VARIABLES {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .env("ZKLOCK_LOST_FD", lost.as_raw_fd().to_string())
            .exec()
    }

    fn take_signal(&mut self) -> io::Result<()> {
        if let Some(signal) = signals::next(&self.signals)? {
            if ENDING.contains(&signal) {
                self.pass_on(signal);
            }
        }
        Ok(())
    }

    fn pass_on(&self, signal: Signal) {
        if let Some(group) = self.command {
            let _ = killpg(group, signal);
        }
    }

    /// When the command is to be told that the lock ends, and when KILL is due.
    fn due(&self) -> Option<(BootTime, BootTime)> {
        let kill = self.lock_ends?.saturating_sub(nanoseconds(KILL_BEFORE_END));
        let told = kill.saturating_sub(self.grace);
        Some(match self.plan.on_loss {
            OnLoss::Signal(_) => (told, kill),
            OnLoss::Kill => (kill, kill),
            OnLoss::Warn => (told, BootTime::MAX),
        })
    }

    fn set_timer(&self) -> io::Result<()> {
        let due = self.due().filter(|_| self.command.is_some());
        let next = due.map(|(told, kill)| if self.is_warned { kill } else { told });
        match next.into_iter().chain(self.leftovers_end).min() {
            None | Some(BootTime::MAX) => self.timer.unset()?,
            Some(at) => {
                // Zero would be no timer.
                let at = TimeSpec::from_duration(Duration::from_nanos(at.max(1)));
                let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
                self.timer.set(Expiration::OneShot(at), flags)?;
            }
        }
        Ok(())
    }

    /// Whether the time was over, and the command was killed.
    fn look_at_time(&mut self) -> io::Result<bool> {
        if self.command.is_none() {
            return Ok(false);
        }
        let (told, kill) = self.due().unwrap_or((BootTime::MAX, BootTime::MAX));
        let now = now();
        if now >= kill || self.must_end {
            self.kill_all();
            return Ok(true);
        }
        if now >= told && !self.is_warned {
            (self.is_warned, self.lost_pipe) = (true, None);
            if let OnLoss::Signal(ending) = self.plan.on_loss {
                self.is_told_to_end = true;
                self.pass_on(ending);
                // If it is stopped, it could not act on the signal.
                self.pass_on(Signal::SIGCONT);
                self.report(&Report::Warned);
            }
        }
        Ok(false)
    }

    /// Kills the command and all that it has started, and reports its end.
    fn kill_all(&mut self) {
        self.lost_pipe = None;
        if let Some(command) = self.command.take() {
            let status = end_all(Some(command), &[], None);
            self.report_end(&Report::Ended(Ended { by_guard: true, ..ending(status) }));
        }
    }

    /// Reports something, if zklock reads: it may be stopped. If it has ended, so has the session.
    fn report(&mut self, report: &Report) {
        match send(&mut self.reports, report) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.must_end = true,
            Ok(()) => {}
        }
    }

    /// Reports the end, however long it takes until zklock reads: nothing is left to watch over.
    fn report_end(&mut self, end: &Report) {
        let _ = fcntl(&self.reports, FcntlArg::F_SETFL(OFlag::empty()));
        // zklock may have ended.
        let _ = send(&mut self.reports, end);
    }

    /// Whether the command has ended, and nothing of it is left.
    fn look_at_command(&mut self) -> io::Result<bool> {
        let Some(command) = self.command.filter(|_| self.starting.is_none()) else {
            return Ok(false);
        };
        reap(&[command]);
        let stopped = look(command, WaitIdOptions::STOPPED);
        if let Some(signal) = stopped.ok().flatten().and_then(|status| status.stopping_signal()) {
            self.report(&Report::Stopped { signal });
        }
        let status = look(command, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        if matches!(status, Ok(None)) {
            return Ok(false);
        }
        // It is not reaped yet, so nobody else can have the number of its group.
        let left: Vec<Pid> = children().into_iter().filter(|child| *child != command).collect();
        if !left.is_empty() && !self.leftovers_are_late(command, &left) {
            return Ok(false);
        }
        end_all(self.command.take(), &[], None);
        let ended = Ended { had_left_some: self.had_left_some, ..ending(status.ok().flatten()) };
        self.report_end(&Report::Ended(ended));
        Ok(true)
    }

    /// Whether everything that the command has left running has had its time; tells it to end before.
    fn leftovers_are_late(&mut self, command: Pid, left: &[Pid]) -> bool {
        // Those that were told to end with the command take their time, as it might have done itself.
        let is_told = |child: &Pid| self.is_told_to_end && getpgid(Some(*child)) == Ok(command);
        let others: Vec<Pid> = left.iter().copied().filter(|child| !is_told(child)).collect();
        if self.plan.linger == Linger::Wait || others.is_empty() {
            self.leftovers_end = None;
            return false;
        }
        let signal = match self.leftovers_end {
            None => {
                (self.leftovers_end, self.had_left_some) =
                    (Some(now().saturating_add(self.grace)), true);
                if !self.is_told_to_end {
                    self.pass_on(Signal::SIGTERM);
                }
                Signal::SIGTERM
            }
            Some(end) if now() < end => return false,
            Some(_) if others.len() == left.len() => return true,
            Some(_) => {
                self.leftovers_end = None;
                Signal::SIGKILL
            }
        };
        for child in others {
            let _ = kill(child, signal);
        }
        false
    }
}

impl Drop for Guard {
    /// Whatever has ended it, nothing of the command works on without it.
    fn drop(&mut self) {
        end_all(self.command.take(), &[], None);
    }
}

/// The number of an error, which it has if it is the operating system's.
fn number_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::EINVAL as i32)
}

/// Forks this process, which has one thread.
fn fork() -> io::Result<Fork> {
    fork::fork().map_err(|_| io::Error::last_os_error())
}

fn ending(status: Option<WaitIdStatus>) -> Ended {
    match status {
        Some(status) => Ended {
            code: status.exit_status(),
            signal: status.terminating_signal(),
            ..Ended::default()
        },
        // Somebody else has reaped it.
        None => Ended { signal: Some(127), ..Ended::default() },
    }
}

/// Waits until one of these can be read, and says which. Without a time limit.
fn readable<const N: usize>(of: [&dyn AsFd; N]) -> nix::Result<[bool; N]> {
    let mut asked = of.map(|one| PollFd::new(one.as_fd(), PollFlags::POLLIN));
    loop {
        match poll(&mut asked, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(asked.map(|one| one.any().unwrap_or(false))),
        }
    }
}
