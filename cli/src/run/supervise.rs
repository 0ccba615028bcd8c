//! What zklock does while the command runs: it passes on signals and the lock's time, and judges the end.

use std::fs::File;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde_json::json;
use zklock::{Client, LossReason};

use super::events::Events;
use super::guard::GuardProcess;
use super::held::Held;
use super::job::Job;
use super::messages::{Ended, Happening, Lines, Order, Report, send};
use super::notify::Manager;
use super::processes::{
    adopt_descendants, children, end_all, nanoseconds, now, reap, runs, some_are_left,
};
use super::signals::{ASKING_TO_END, stop_job};
use super::terminal::Terminal;
use crate::connect::Lock;
use crate::exit::{Exit, Failure};
use crate::grace::{USUAL_GRACE, look_interval};
use crate::reactions::{OnAsk, OnLoss};
use crate::words::{complain, lasting, say};

/// How long the guard may take to start the command and to say so, unless it is stopped.
const START_TAKES: Duration = Duration::from_secs(5);

/// How long the guard may take to kill the command after a loss that came without warning.
const GUARD_TAKES: Duration = Duration::from_millis(200);

/// How long processes may take to end after KILL; those in an uninterruptible sleep take longer.
const KILL_TAKES: Duration = Duration::from_secs(10);

/// If the guard has not done it by then, because it is stopped, zklock does.
const FORCE_BEFORE_END: Duration = Duration::from_millis(50);

/// Watches over the guard process and the command.
pub(super) struct Supervisor<'a> {
    subject: &'a str,
    program: String,
    guard: Pid,
    orders: File,
    terminal: Terminal,
    on_loss: OnLoss,
    on_ask: OnAsk,
    max_run: Option<Duration>,
    grace: Duration,
    events: Events,
    manager: Manager,
    to_self: Sender<Happening>,
    happenings: Receiver<Happening>,
    /// Children that this process had before: it may have been another program.
    not_ours: Vec<Pid>,
}

/// What is known of the command.
#[derive(Default)]
struct Progress {
    command: Option<Pid>,
    lost: Option<Loss>,
    /// When the command has run long enough.
    run_ends: Option<u64>,
    has_run_too_long: bool,
    /// When the command has to be gone, whatever the guard does.
    force_at: Option<u64>,
    ending_signals: u32,
    /// After a second signal that was to end it, or after it has run long enough.
    kill_at: Option<u64>,
    is_kill_wanted: bool,
    /// When the guard, which was told to kill it, has to have done that.
    killed_by: Option<u64>,
}

impl Progress {
    /// What is to happen earlier is not put off.
    fn kill_within(&mut self, grace: Duration) {
        self.kill_at = Some(at_the_latest(grace, self.kill_at));
    }

    /// The exit code of a command that was not ended by its lock.
    fn exit_or(&self, own: Exit) -> Exit {
        if self.has_run_too_long { Exit::RanTooLong } else { own }
    }
}

/// Why the lock counts as lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Reason(LossReason),
    /// The command was told to end, or killed, since the lock was about to end.
    Near,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        subject: &'a str,
        guard: GuardProcess,
        terminal: Terminal,
        job: &Job,
        events: Events,
        to_self: Sender<Happening>,
        happenings: Receiver<Happening>,
    ) -> io::Result<Supervisor<'a>> {
        adopt_descendants()?;
        let not_ours = children().into_iter().filter(|one| *one != guard.process).collect();
        let (mut reports, to) = (guard.reports, to_self.clone());
        thread::Builder::new().name("zklock-reports".to_owned()).spawn(move || {
            let (mut lines, mut bytes) = (Lines::default(), [0; 512]);
            while let Ok(count @ 1..) = reports.read(&mut bytes) {
                lines.add(&bytes[..count]);
                while let Some(report) = lines.next() {
                    let _ = to.send(Happening::Reported(report));
                }
            }
            let _ = to.send(Happening::GuardEnded);
        })?;
        let program = job.supervision.command.first().map(|one| one.to_string_lossy().into_owned());
        Ok(Supervisor {
            subject,
            program: program.unwrap_or_default(),
            guard: guard.process,
            orders: guard.orders,
            terminal,
            on_loss: job.supervision.on_loss,
            on_ask: job.supervision.on_ask,
            max_run: job.supervision.max_run,
            grace: job.supervision.grace.unwrap_or(USUAL_GRACE),
            events,
            manager: Manager::new(job.supervision.notify),
            to_self,
            happenings,
            not_ours,
        })
    }

    /// For the service manager, which is told what happens.
    pub(super) fn manager(&self) -> &Manager {
        &self.manager
    }

    /// The same, with this time from TERM to KILL.
    pub(super) fn with_grace(self, grace: Duration) -> Supervisor<'a> {
        Supervisor { grace, ..self }
    }

    /// Runs the command while the lock is held.
    pub(super) fn supervise(
        self,
        client: &Client,
        held: &Held,
        lock: &Lock,
    ) -> Result<Exit, Failure> {
        let to = self.to_self.clone();
        held.on_lost(move |reason| {
            let _ = to.send(Happening::Lost(reason));
        });
        let to = self.to_self.clone();
        held.on_release_requested(move || {
            let _ = to.send(Happening::ReleaseRequested);
        });
        let timeout = client.session_timeout().unwrap_or(Duration::from_secs(10));
        self.watch(Some(held), held.variables(client, lock), look_interval(timeout))
    }

    /// Runs it although nothing is held.
    pub(super) fn supervise_without_lock(self, lock: &Lock) -> Result<Exit, Failure> {
        let variables = vec![("ZKLOCK_LOCK".to_owned(), lock.path.clone())];
        self.watch(None, variables, Duration::from_secs(3600))
    }

    fn watch(
        mut self,
        held: Option<&Held>,
        variables: Vec<(String, String)>,
        interval: Duration,
    ) -> Result<Exit, Failure> {
        let begun = Instant::now();
        let lock_ends = self.lock_ends(held);
        if held.is_some_and(|held| !held.is_held()) {
            return Err(Failure::new(
                Exit::LockLost,
                "the lock was lost before the command could start",
            ));
        }
        let takes_terminal = self.terminal.is_for_the_command();
        let grace = nanoseconds(self.grace);
        let start = Order::Start { variables, lock_ends, grace, takes_terminal };
        send(&mut self.orders, &start).map_err(|_| {
            let message = "the guard process was killed before the command could start";
            Failure::new(Exit::Failed, message)
        })?;
        // If the guard is stopped, the pipe fills up; this process must go on.
        fcntl(&self.orders, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut progress = Progress {
            force_at: self.force_at(lock_ends),
            // If the guard cannot say that it has started the command.
            run_ends: self.max_run.map(|limit| now_and(limit.saturating_add(START_TAKES))),
            ..Progress::default()
        };
        loop {
            let times =
                [progress.run_ends, progress.force_at, progress.kill_at, progress.killed_by];
            let wake_at = times.into_iter().flatten().min();
            let until = wake_at.map(|at| Duration::from_nanos(at.saturating_sub(now())));
            let happening =
                self.happenings.recv_timeout(until.unwrap_or(interval).min(interval)).ok();
            let step = match happening {
                Some(Happening::Reported(Report::NotStarted { process, error })) => {
                    // It may have got that far.
                    self.terminal.take_from(Some(Pid::from_raw(process)));
                    return Ok(self.not_started(error));
                }
                Some(Happening::Reported(Report::Ended(ended))) => Some(ended),
                Some(Happening::GuardEnded) => {
                    complain(self.subject, "the guard process was killed, so the command is, too");
                    self.end_by_force(&progress, held);
                    return Ok(self.end(progress.lost, Exit::Failed, begun));
                }
                Some(other) => {
                    self.take(other, &mut progress, held);
                    None
                }
                None => None,
            };
            if let Some(ended) = step {
                self.terminal.take_from(progress.command);
                // It has nothing more to do, and may have been stopped.
                let _ = kill(self.guard, Signal::SIGKILL);
                let _ = waitpid(self.guard, None);
                return Ok(self.judge(held, &progress, ended, begun));
            }
            self.look_at_lock(held, &mut progress);
            if progress.force_at.is_some_and(|at| now() >= at) {
                if !runs(self.guard) {
                    // This process was stopped meanwhile: the news is on its way. By now, others may have the
                    // number of the command's group.
                    progress.force_at = None;
                    continue;
                }
                self.end_by_force(&progress, None);
                let loss = progress.lost.unwrap_or(Loss::Near);
                return Ok(self.end(Some(loss), Exit::LockLost, begun));
            }
            if progress.run_ends.is_some_and(|at| now() >= at) {
                self.end_run(&mut progress);
            }
            if progress.kill_at.is_some_and(|at| now() >= at) {
                (progress.kill_at, progress.killed_by) = (None, Some(now_and(GUARD_TAKES)));
                progress.is_kill_wanted = true;
                self.order(&Order::Kill);
            }
            if progress.killed_by.is_some_and(|at| now() >= at) {
                if !runs(self.guard) {
                    progress.killed_by = None;
                    continue;
                }
                // It is stopped.
                self.end_by_force(&progress, held);
                let own = progress.exit_or(Exit::Signal(Signal::SIGKILL as i32));
                return Ok(self.end(progress.lost, own, begun));
            }
        }
    }

    /// Until when the lock is certain to be held.
    fn lock_ends(&self, held: Option<&Held>) -> Option<u64> {
        // The clock first: otherwise a pause in between would make it longer.
        let now = now();
        held.map(|held| now.saturating_add(nanoseconds(held.lease_left())))
    }

    fn force_at(&self, lock_ends: Option<u64>) -> Option<u64> {
        let end = lock_ends.filter(|_| self.on_loss != OnLoss::Warn)?;
        Some(end.saturating_sub(nanoseconds(FORCE_BEFORE_END)))
    }

    /// Tells the guard how long the lock is held now.
    fn look_at_lock(&mut self, held: Option<&Held>, progress: &mut Progress) {
        let Some(held) = held.filter(|_| progress.lost.is_none()) else { return };
        if held.is_held() {
            let until = self.lock_ends(Some(held));
            progress.force_at = self.force_at(until);
            if let Some(until) = until {
                self.order(&Order::Held { until });
            }
        }
    }

    fn take(&mut self, happening: Happening, progress: &mut Progress, held: Option<&Held>) {
        match happening {
            Happening::Signal(Signal::SIGCHLD) => {
                let mut spared = self.not_ours.clone();
                spared.push(self.guard);
                reap(&spared);
            }
            Happening::Signal(Signal::SIGTSTP) => {
                self.order(&Order::Signal { number: Signal::SIGSTOP as i32 });
                self.stop(progress, held);
            }
            Happening::Signal(Signal::SIGCONT) => self.go_on(progress, held),
            Happening::Signal(signal) => {
                self.order(&Order::Signal { number: signal as i32 });
                if ASKING_TO_END.contains(&signal) {
                    progress.ending_signals += 1;
                    if progress.ending_signals == 2 {
                        progress.kill_within(self.grace);
                    }
                }
            }
            Happening::Reported(Report::Started { process }) => {
                progress.command = Some(Pid::from_raw(process));
                if !progress.has_run_too_long {
                    progress.run_ends = self.max_run.map(now_and);
                }
                self.manager.ready();
                self.events.write("started", &json!({ "pid": process }));
            }
            Happening::Reported(Report::Stopped { signal }) => {
                let is_asked_for = [Signal::SIGTTIN, Signal::SIGTTOU].map(|one| one as i32);
                if !self.terminal.is_there() {
                } else if is_asked_for.contains(&signal)
                    && !self.terminal.is_elsewhere(progress.command)
                {
                    self.go_on(progress, held);
                } else if is_asked_for.contains(&signal) || signal == Signal::SIGTSTP as i32 {
                    self.stop(progress, held);
                }
            }
            Happening::Reported(Report::Warned) => {
                self.manager.stopping();
                progress.lost.get_or_insert(Loss::Near);
                let group = progress.command.map(|group| format!(" (group {group})"));
                complain(
                    self.subject,
                    &format!(
                        "the lock is about to be LOST: no answer of a server has renewed its lease in time; {} to {}{}, \
                         KILL within {}",
                        self.signal_name(),
                        self.program,
                        group.unwrap_or_default(),
                        lasting(self.grace)
                    ),
                );
            }
            Happening::Lost(reason) => {
                progress.lost = Some(Loss::Reason(reason));
                if self.on_loss == OnLoss::Warn {
                    self.order(&Order::Lost);
                    complain(
                        self.subject,
                        &format!("LOCK LOST: {reason}; the command goes on (--on-loss warn)"),
                    );
                } else {
                    self.order(&Order::Kill);
                    progress.force_at = Some(at_the_latest(GUARD_TAKES, progress.force_at));
                }
            }
            Happening::ReleaseRequested => {
                self.events.write("release_requested", &json!({}));
                let what = match self.on_ask {
                    OnAsk::Ignore => "the command goes on (--on-ask ignore)".to_owned(),
                    OnAsk::Signal(signal) => {
                        self.ask_to_end(signal);
                        format!("{} to {}", name_of(signal), self.program)
                    }
                };
                say(self.subject, &format!("another client asks for its release; {what}"));
            }
            Happening::Reported(Report::NotStarted { .. } | Report::Ended(_))
            | Happening::GuardEnded => {}
        }
    }

    /// Has the command end, since it has run for as long as it may.
    fn end_run(&mut self, progress: &mut Progress) {
        (progress.run_ends, progress.has_run_too_long) = (None, true);
        progress.kill_within(self.grace);
        let has_run = match progress.command {
            Some(_) => "has run for".to_owned(),
            None => format!("has not been started within {} and", lasting(START_TAKES)),
        };
        complain(
            self.subject,
            &format!(
                "{} {has_run} {} (--max-run); TERM, KILL after {}",
                self.program,
                lasting(self.max_run.unwrap_or_default()),
                lasting(self.grace)
            ),
        );
        self.ask_to_end(Signal::SIGTERM);
    }

    /// Has the command sent this signal.
    fn ask_to_end(&mut self, signal: Signal) {
        self.order(&Order::Signal { number: signal as i32 });
        // If it is stopped, it could not act on the signal.
        self.order(&Order::Signal { number: Signal::SIGCONT as i32 });
    }

    fn signal_name(&self) -> &'static str {
        match self.on_loss {
            OnLoss::Signal(signal) => name_of(signal),
            OnLoss::Kill | OnLoss::Warn => "KILL",
        }
    }

    /// Stops this process, as a shell's job; the guard process goes on, and with it the lock's time.
    fn stop(&mut self, progress: &mut Progress, held: Option<&Held>) {
        self.terminal.take_from(progress.command);
        stop_job(self.terminal.is_there());
        self.go_on(progress, held);
    }

    /// Lets the command go on after a stop, if the lock is still held.
    fn go_on(&mut self, progress: &mut Progress, held: Option<&Held>) {
        if held.is_some_and(|held| !held.is_held()) && self.on_loss != OnLoss::Warn {
            progress.lost.get_or_insert(Loss::Near);
            self.order(&Order::Kill);
            return;
        }
        self.look_at_lock(held, progress);
        if let Some(group) = progress.command.filter(|_| self.terminal.is_ours()) {
            self.terminal.give_to(group);
        }
        self.order(&Order::Signal { number: Signal::SIGCONT as i32 });
    }

    /// Tells the guard something. If it is stopped, or has ended, `force_at` and its last report count.
    fn order(&mut self, order: &Order) {
        let _ = send(&mut self.orders, order);
    }

    /// Ends the guard, the command, and all that the command has started; if the lock is held, however long that
    /// takes.
    fn end_by_force(&self, progress: &Progress, held: Option<&Held>) {
        // The guard, which would have reaped it and reported its end, is stopped or has ended.
        if let Some(group) = progress.command {
            let _ = killpg(group, Signal::SIGKILL);
        }
        let _ = kill(self.guard, Signal::SIGKILL);
        let ended = end_all(progress.command, &self.not_ours, Some(KILL_TAKES));
        self.terminal.take_from(progress.command);
        if !some_are_left(&self.not_ours) {
            return;
        }
        let is_held = held.is_some_and(Held::is_held);
        complain(
            self.subject,
            &format!(
                "{} was killed, and has not ended within {}: it may be in an uninterruptible sleep{}",
                self.program,
                lasting(KILL_TAKES),
                if is_held {
                    "; the lock is kept until it ends"
                } else {
                    ", and work on afterwards"
                }
            ),
        );
        if is_held {
            end_all(progress.command.filter(|_| ended.is_none()), &self.not_ours, None);
        }
    }

    fn not_started(&self, error: i32) -> Exit {
        let error = Errno::from_raw(error);
        complain(self.subject, &format!("cannot run {}: {}", self.program, error.desc()));
        match error {
            Errno::ENOENT => Exit::NotFound,
            _ => Exit::CannotRun,
        }
    }

    /// What the end of the command means: 123 if the lock did not last until then.
    fn judge(
        &self,
        held: Option<&Held>,
        progress: &Progress,
        ended: Ended,
        begun: Instant,
    ) -> Exit {
        // What a signal has ended may not have had the time to end the rest itself.
        if ended.had_left_some && ended.signal.is_none() {
            let left = format!("{} had left processes running; they were ended", self.program);
            say(self.subject, &left);
        }
        let own = match ended {
            Ended { code: Some(code), .. } => Exit::Command(u8::try_from(code).unwrap_or(255)),
            Ended { signal, .. } => Exit::Signal(signal.unwrap_or(127)),
        };
        let is_lost = held.is_some_and(|held| !held.is_held());
        // The guard may know the end of the lock's time before this process, which was stopped.
        let loss = match progress.lost {
            None if is_lost || (ended.by_guard && !progress.is_kill_wanted) => Some(Loss::Near),
            known => known,
        };
        self.end(loss, progress.exit_or(own), begun)
    }

    /// The exit code, which a loss determines.
    fn end(&self, loss: Option<Loss>, own: Exit, begun: Instant) -> Exit {
        let exit = match loss {
            None => own,
            Some(loss) => {
                let why = match loss {
                    Loss::Reason(reason) => reason.to_string(),
                    Loss::Near => "no answer of a server has renewed its lease in time".to_owned(),
                };
                complain(
                    self.subject,
                    &format!("LOCK LOST after {}: {why}", lasting(begun.elapsed())),
                );
                Exit::LockLost
            }
        };
        self.events.write(
            "ended",
            &json!({ "exit": exit.code(), "ran_ms": begun.elapsed().as_millis() as u64 }),
        );
        exit
    }
}

/// When this time has passed from now on.
fn now_and(time: Duration) -> u64 {
    now().saturating_add(nanoseconds(time))
}

/// When this time has passed from now on, or at the time that was due before, if that is earlier.
fn at_the_latest(within: Duration, before: Option<u64>) -> u64 {
    let at = now_and(within);
    before.map_or(at, |before| before.min(at))
}

/// As people say it: `TERM`.
fn name_of(signal: Signal) -> &'static str {
    signal.as_str().trim_start_matches("SIG")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_reason_to_kill_puts_nothing_off() {
        let mut progress = Progress::default();
        let mut kill_at = |seconds| {
            progress.kill_within(Duration::from_secs(seconds));
            progress.kill_at
        };
        let first = kill_at(1000);
        assert_eq!(kill_at(2000), first);
        assert!(kill_at(0) < first);
    }
}
