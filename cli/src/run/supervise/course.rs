//! What zklock does while the command runs: a state machine without IO. It is given what has happened and
//! what is seen then, and says what to do; `supervise` does it.

use std::mem;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::args::Supervision;
use crate::args::{OnAsk, OnLoss};
use crate::exit::Exit;
use crate::run::boot_clock::{BootTime, after, nanoseconds};
use crate::run::guard::{Ended, Happening, Order, Report};
use crate::run::signals::ASKING_TO_END;
use crate::words::lasting;

/// How long the guard may take to start the command and to say so, unless it is stopped.
const START_TAKES: Duration = Duration::from_secs(5);

/// How long the guard may take to kill the command after a loss that came without warning.
const GUARD_TAKES: Duration = Duration::from_millis(200);

/// If the guard has not done it by then, because it is stopped, zklock does.
const FORCE_BEFORE_END: Duration = Duration::from_millis(50);

/// Why the lock counts as lost if it was only about to be, or if no other reason is known yet.
const NOT_RENEWED: &str = "no answer of a server has renewed its lease in time";

/// What is seen when something has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) now: BootTime,
    /// Until when the lock is certain to be held; `None` if it is not held.
    pub(crate) held_until: Option<BootTime>,
    /// Whether neither zklock's group nor the command's has the terminal.
    pub(crate) is_terminal_elsewhere: bool,
}

/// What to do, in this order.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// Tell the guard.
    Tell(Order),
    Say(String),
    Complain(String),
    /// Write an event of this name, with these fields.
    Write(&'static str, Value),
    /// Tell the service manager that the command runs.
    Ready,
    /// Tell it that the command is being ended.
    Stopping,
    /// Reap what the command has started and left to this process.
    Reap,
    /// Give the terminal to this group, if zklock's has it.
    GiveTerminal(Pid),
}

/// What to do afterwards, unless it is to wait for what happens next.
#[derive(Debug, PartialEq)]
pub(crate) enum Then {
    /// Stop this process, as a shell's job. When it goes on, it is as if CONT had come: there may be no
    /// shell.
    Stop,
    /// End with this exit code: the command could not be run.
    NotStarted(Exit),
    /// End with this exit code; `lost` says why the lock counts as lost, if it does. With force, if something
    /// of the command may be left.
    End { force: Option<Force>, lost: Option<String>, exit: Exit },
}

/// Why zklock has to end the command itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Force {
    GuardEnded,
    /// The guard was told to kill it, and has not. If it is not stopped, but has ended, the news is on its
    /// way.
    GuardIsLate,
    /// The same at the end of the lock, which cannot be kept until nothing is left.
    LockEnds,
}

/// The course of a command, from its start to its end.
pub(crate) struct Course<'a> {
    plan: &'a Supervision,
    pub(crate) program: String,
    grace: Duration,
    has_terminal: bool,
    has_lock: bool,
    /// Its first process.
    pub(crate) command: Option<Pid>,
    /// Why the lock counts as lost, if it does.
    lost: Option<String>,
    /// When the command has run long enough.
    run_ends: Option<BootTime>,
    has_run_too_long: bool,
    /// When the command has to be gone, whatever the guard does.
    force_at: Option<BootTime>,
    ending_signals: u32,
    /// Another client wants the lock, and the command was asked to end for that.
    is_release_wanted: bool,
    /// After a second signal that was to end it, or after it has run long enough.
    kill_at: Option<BootTime>,
    is_kill_wanted: bool,
    /// When the guard, which was told to kill it, has to have done that.
    killed_by: Option<BootTime>,
    actions: Vec<Action>,
    then: Option<Then>,
}

impl<'a> Course<'a> {
    /// Of a command that is to be started now, under a lock if that is seen to be held.
    pub(crate) fn new(
        plan: &'a Supervision,
        grace: Duration,
        has_terminal: bool,
        seen: Seen,
    ) -> Course<'a> {
        let program = plan.command.first().map(|one| one.to_string_lossy().into_owned());
        let mut course = Course {
            plan,
            program: program.unwrap_or_default(),
            grace,
            has_terminal,
            has_lock: seen.held_until.is_some(),
            command: None,
            lost: None,
            // If the guard cannot say that it has started the command.
            run_ends: plan.max_run.map(|limit| after(seen.now, limit.saturating_add(START_TAKES))),
            has_run_too_long: false,
            force_at: None,
            ending_signals: 0,
            is_release_wanted: false,
            kill_at: None,
            is_kill_wanted: false,
            killed_by: None,
            actions: Vec::new(),
            then: None,
        };
        course.note_lock(seen.held_until);
        course
    }

    /// When there is something to do though nothing happens.
    pub(crate) fn wakes_at(&self) -> Option<BootTime> {
        [self.run_ends, self.force_at, self.kill_at, self.killed_by].into_iter().flatten().min()
    }

    /// Whether the lock may be kept now that the command has ended: if it was started, and nobody wanted an
    /// end of both.
    pub(crate) fn may_stay(&self) -> bool {
        self.command.is_some() && self.ending_signals == 0 && !self.is_release_wanted
    }

    /// What to do now that this has happened, or nothing has.
    pub(crate) fn step(
        &mut self,
        happening: Option<Happening>,
        seen: Seen,
    ) -> (Vec<Action>, Option<Then>) {
        if let Some(happening) = happening {
            self.take(happening, seen);
        }
        // A stop may take long: what is seen now is of no use afterwards.
        if self.then.is_none() {
            self.look_at_lock(seen.held_until);
            self.look_at_time(seen.now);
        }
        (mem::take(&mut self.actions), self.then.take())
    }

    fn take(&mut self, happening: Happening, seen: Seen) {
        match happening {
            Happening::Signal(Signal::SIGCHLD) => self.actions.push(Action::Reap),
            Happening::Signal(Signal::SIGTSTP) => {
                self.pass_on(Signal::SIGSTOP);
                self.then = Some(Then::Stop);
            }
            Happening::Signal(Signal::SIGCONT) => self.go_on(seen),
            Happening::Signal(signal) => {
                self.pass_on(signal);
                if ASKING_TO_END.contains(&signal) {
                    self.ending_signals += 1;
                    if self.ending_signals == 2 {
                        self.kill_after_grace(seen.now);
                    }
                }
            }
            Happening::Reported(report) => self.take_report(report, seen),
            Happening::GuardEnded => {
                self.complain("the guard process was killed, so the command is, too".to_owned());
                self.end(Some(Force::GuardEnded), Exit::Failed);
            }
            Happening::Lost(reason) => {
                self.lost = Some(reason.to_string());
                if self.plan.on_loss == OnLoss::Warn {
                    self.tell(Order::Lost);
                    let what = "the command goes on (--on-loss warn)";
                    self.complain(format!("LOCK LOST: {reason}; {what}"));
                } else {
                    self.tell(Order::Kill);
                    self.force_at = earliest(self.force_at, after(seen.now, GUARD_TAKES));
                }
            }
            Happening::ReleaseRequested => self.ask_for_release(),
        }
    }

    fn take_report(&mut self, report: Report, seen: Seen) {
        match report {
            Report::Started { process } => {
                self.command = Some(Pid::from_raw(process));
                if !self.has_run_too_long {
                    self.run_ends = self.plan.max_run.map(|limit| after(seen.now, limit));
                }
                self.actions.push(Action::Ready);
                self.actions.push(Action::Write("started", json!({ "pid": process })));
            }
            Report::NotStarted { process, error } => {
                let error = Errno::from_raw(error);
                self.complain(format!("cannot run {}: {}", self.program, error.desc()));
                // It may have got as far as to take the terminal.
                self.command = Some(Pid::from_raw(process));
                let exit = if error == Errno::ENOENT { Exit::NotFound } else { Exit::CannotRun };
                self.then = Some(Then::NotStarted(exit));
            }
            Report::Stopped { .. } if !self.has_terminal => {}
            Report::Stopped { signal } => match Signal::try_from(signal) {
                Ok(Signal::SIGTTIN | Signal::SIGTTOU) if !seen.is_terminal_elsewhere => {
                    self.go_on(seen);
                }
                Ok(Signal::SIGTTIN | Signal::SIGTTOU | Signal::SIGTSTP) => {
                    self.then = Some(Then::Stop);
                }
                _ => {}
            },
            Report::Warned => self.warn(),
            Report::Ended(ended) => self.judge(ended, seen.held_until.is_some()),
        }
    }

    /// The guard has told the command to end.
    fn warn(&mut self) {
        self.note_end_of_lease();
        self.actions.push(Action::Stopping);
        let signal = match self.plan.on_loss {
            OnLoss::Signal(signal) => name_of(signal),
            OnLoss::Kill | OnLoss::Warn => "KILL",
        };
        let group = self.command.map(|group| format!(" (group {group})")).unwrap_or_default();
        self.complain(format!(
            "the lock is about to be LOST: {NOT_RENEWED}; {signal} to {}{group}, KILL within {}",
            self.program,
            lasting(self.grace)
        ));
    }

    fn ask_for_release(&mut self) {
        self.actions.push(Action::Write("release_requested", json!({})));
        let what = match self.plan.on_ask {
            OnAsk::Ignore => "the command goes on (--on-ask ignore)".to_owned(),
            OnAsk::Signal(signal) => {
                self.is_release_wanted = true;
                self.ask_to_end(signal);
                format!("{} to {}", name_of(signal), self.program)
            }
        };
        let text = format!("another client asks for its release; {what}");
        self.actions.push(Action::Say(text));
    }

    /// Lets the command go on after a stop, if the lock is still held.
    fn go_on(&mut self, seen: Seen) {
        if self.has_lock && seen.held_until.is_none() && self.plan.on_loss != OnLoss::Warn {
            self.note_end_of_lease();
            return self.tell(Order::Kill);
        }
        self.actions.extend(self.command.map(Action::GiveTerminal));
        self.pass_on(Signal::SIGCONT);
    }

    /// Tells the guard how long the lock is held now.
    fn look_at_lock(&mut self, held_until: Option<BootTime>) {
        if let Some(until) = held_until.filter(|_| self.lost.is_none()) {
            self.note_lock(held_until);
            self.tell(Order::Held { until });
        }
    }

    fn note_lock(&mut self, held_until: Option<BootTime>) {
        let until = held_until.filter(|_| self.plan.on_loss != OnLoss::Warn);
        self.force_at = until.map(|until| until.saturating_sub(nanoseconds(FORCE_BEFORE_END)));
    }

    fn look_at_time(&mut self, now: BootTime) {
        let is_over = |time: &mut Option<BootTime>| time.take_if(|time| now >= *time).is_some();
        if is_over(&mut self.force_at) {
            return self.end(Some(Force::LockEnds), Exit::LockLost);
        }
        if is_over(&mut self.run_ends) {
            self.end_run(now);
        }
        if is_over(&mut self.kill_at) {
            (self.killed_by, self.is_kill_wanted) = (Some(after(now, GUARD_TAKES)), true);
            self.tell(Order::Kill);
        }
        if is_over(&mut self.killed_by) {
            let own = self.exit_or(Exit::Signal(Signal::SIGKILL as i32));
            self.end(Some(Force::GuardIsLate), own);
        }
    }

    /// Has the command end, since it has run for as long as it may.
    fn end_run(&mut self, now: BootTime) {
        self.has_run_too_long = true;
        self.kill_after_grace(now);
        let has_run = match self.command {
            Some(_) => "has run for".to_owned(),
            None => format!("has not been started within {} and", lasting(START_TAKES)),
        };
        self.complain(format!(
            "{} {has_run} {} (--max-run); TERM, KILL after {}",
            self.program,
            lasting(self.plan.max_run.unwrap_or_default()),
            lasting(self.grace)
        ));
        self.ask_to_end(Signal::SIGTERM);
    }

    /// What is to happen earlier is not put off.
    fn kill_after_grace(&mut self, now: BootTime) {
        self.kill_at = earliest(self.kill_at, after(now, self.grace));
    }

    /// Has the command sent this signal.
    fn ask_to_end(&mut self, signal: Signal) {
        self.pass_on(signal);
        // If it is stopped, it could not act on the signal.
        self.pass_on(Signal::SIGCONT);
    }

    fn pass_on(&mut self, signal: Signal) {
        self.tell(Order::Signal { number: signal as i32 });
    }

    fn tell(&mut self, order: Order) {
        self.actions.push(Action::Tell(order));
    }

    fn complain(&mut self, text: String) {
        self.actions.push(Action::Complain(text));
    }

    fn note_end_of_lease(&mut self) {
        self.lost.get_or_insert_with(|| NOT_RENEWED.to_owned());
    }

    /// What the end of the command means: 123 if the lock did not last until then.
    fn judge(&mut self, ended: Ended, is_held: bool) {
        // What a signal has ended may not have had the time to end the rest itself.
        if ended.had_left_some && ended.signal.is_none() {
            let left = format!("{} had left processes running; they were ended", self.program);
            self.actions.push(Action::Say(left));
        }
        // The guard may know the end of the lock's time before this process, which was stopped.
        if self.has_lock && !is_held || ended.by_guard && !self.is_kill_wanted {
            self.note_end_of_lease();
        }
        let own = match ended.code {
            Some(code) => Exit::Command(u8::try_from(code).unwrap_or(255)),
            None => Exit::Signal(ended.signal.unwrap_or(127)),
        };
        self.end(None, self.exit_or(own));
    }

    /// The exit code of a command that was not ended by its lock.
    fn exit_or(&self, own: Exit) -> Exit {
        if self.has_run_too_long { Exit::RanTooLong } else { own }
    }

    /// Ends with this exit code, unless the lock is lost.
    fn end(&mut self, force: Option<Force>, own: Exit) {
        let at_lock_end = (force == Some(Force::LockEnds)).then(|| NOT_RENEWED.to_owned());
        let lost = self.lost.clone().or(at_lock_end);
        let exit = if lost.is_some() { Exit::LockLost } else { own };
        self.then = Some(Then::End { force, lost, exit });
    }
}

/// The earlier of these.
fn earliest(before: Option<BootTime>, at: BootTime) -> Option<BootTime> {
    before.into_iter().chain([at]).min()
}

/// As people say it: `TERM`.
fn name_of(signal: Signal) -> &'static str {
    signal.as_str().trim_start_matches("SIG")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use zklock::LossReason;

    use super::*;
    use crate::args::{self, Options};

    const MILLISECOND: u64 = 1_000_000;
    const SECOND: u64 = 1_000 * MILLISECOND;

    /// When the command is to be started.
    const BEGIN: BootTime = 1_000 * SECOND;

    const GROUP: i32 = 4711;

    /// What `zklock run` with these options, and a grace of two seconds, is told.
    fn plan(options: &[&str]) -> Supervision {
        let line = [&["zklock", "run"], options, &["a", "job"]].concat();
        match Options::try_parse_from(line).unwrap().action {
            args::Action::Run(run) => run.supervision,
            other => panic!("{other:?}"),
        }
    }

    /// At this time, with a lock that is held for this long from then on.
    fn seen(now: BootTime, held_for: Option<u64>) -> Seen {
        let held_until = held_for.map(|time| now + time);
        Seen { now, held_until, is_terminal_elsewhere: false }
    }

    fn held(now: BootTime) -> Seen {
        seen(now, Some(30 * SECOND))
    }

    /// A command in a terminal, which the lock is held for.
    fn begun(plan: &Supervision) -> Course<'_> {
        Course::new(plan, Duration::from_secs(2), true, held(BEGIN))
    }

    fn started(plan: &Supervision) -> Course<'_> {
        let mut course = begun(plan);
        let report = Happening::Reported(Report::Started { process: GROUP });
        let (actions, then) = take(&mut course, report, held(BEGIN));
        let event = Action::Write("started", json!({ "pid": GROUP }));
        assert_eq!((actions, then), (vec![Action::Ready, event], None));
        course
    }

    /// The decision, without what the guard is told of the lock's time.
    fn decided(
        course: &mut Course<'_>,
        happening: Option<Happening>,
        seen: Seen,
    ) -> (Vec<Action>, Option<Then>) {
        let (mut actions, then) = course.step(happening, seen);
        actions.retain(|one| !matches!(one, Action::Tell(Order::Held { .. })));
        (actions, then)
    }

    fn take(
        course: &mut Course<'_>,
        happening: Happening,
        seen: Seen,
    ) -> (Vec<Action>, Option<Then>) {
        decided(course, Some(happening), seen)
    }

    fn at(course: &mut Course<'_>, seen: Seen) -> (Vec<Action>, Option<Then>) {
        decided(course, None, seen)
    }

    fn signals(all: &[Signal]) -> Vec<Action> {
        let order = |one: &Signal| Action::Tell(Order::Signal { number: *one as i32 });
        all.iter().map(order).collect()
    }

    fn kill() -> Vec<Action> {
        vec![Action::Tell(Order::Kill)]
    }

    fn goes_on() -> Vec<Action> {
        let mut actions = signals(&[Signal::SIGCONT]);
        actions.insert(0, Action::GiveTerminal(Pid::from_raw(GROUP)));
        actions
    }

    fn said(actions: &[Action]) -> Vec<&str> {
        let texts = actions.iter().filter_map(|one| match one {
            Action::Say(text) | Action::Complain(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    fn ended(force: Option<Force>, lost: Option<&str>, exit: Exit) -> Option<Then> {
        Some(Then::End { force, lost: lost.map(str::to_owned), exit })
    }

    #[test]
    fn the_guard_is_told_of_the_lock_s_time_and_is_not_waited_for_at_its_end() {
        let plan = plan(&[]);
        let mut course = started(&plan);
        let later = BEGIN + 10 * SECOND;
        let held = Action::Tell(Order::Held { until: later + 9 * SECOND });
        assert_eq!(course.step(None, seen(later, Some(9 * SECOND))), (vec![held], None));
        let force_at = later + 9 * SECOND - 50 * MILLISECOND;
        assert_eq!(course.wakes_at(), Some(force_at));
        // An outage that the command survives, if it does not last.
        assert_eq!(course.step(None, seen(force_at - 1, None)), (vec![], None));
        let end = ended(Some(Force::LockEnds), Some(NOT_RENEWED), Exit::LockLost);
        assert_eq!(course.step(None, seen(force_at, None)), (vec![], end));
        // The guard has ended: the command had done so itself, in time.
        let report = Report::Ended(Ended { code: Some(3), ..Ended::default() });
        let end = ended(None, None, Exit::Command(3));
        assert_eq!(
            take(&mut course, Happening::Reported(report), self::held(force_at)),
            (vec![], end)
        );
    }

    #[test]
    fn without_a_lock_there_is_no_time() {
        let plan = plan(&[]);
        let mut course = Course::new(&plan, Duration::ZERO, true, seen(BEGIN, None));
        assert_eq!(course.wakes_at(), None);
        assert_eq!(course.step(None, seen(BEGIN + 1_000 * SECOND, None)), (vec![], None));
        let on = take(&mut course, Happening::Signal(Signal::SIGCONT), seen(BEGIN, None));
        assert_eq!(on, (signals(&[Signal::SIGCONT]), None));
        let report = Report::Ended(Ended { code: Some(0), ..Ended::default() });
        let (_, then) = take(&mut course, Happening::Reported(report), seen(BEGIN, None));
        assert_eq!(then, ended(None, None, Exit::Command(0)));
    }

    #[test]
    fn after_max_run_the_command_is_told_to_end_then_killed_by_the_guard_then_by_zklock() {
        let plan = plan(&["--max-run", "10s"]);
        let mut course = started(&plan);
        let end = BEGIN + 10 * SECOND;
        assert_eq!(course.wakes_at(), Some(end));
        let (actions, then) = at(&mut course, held(end));
        assert_eq!(said(&actions), ["job has run for 10 s (--max-run); TERM, KILL after 2.0 s"]);
        assert_eq!(actions[1..], signals(&[Signal::SIGTERM, Signal::SIGCONT]));
        assert_eq!((then, course.wakes_at()), (None, Some(end + 2 * SECOND)));
        let killed_at = end + 2 * SECOND;
        assert_eq!(at(&mut course, held(killed_at)), (kill(), None));
        let late = killed_at + 200 * MILLISECOND;
        assert_eq!(at(&mut course, held(late - 1)), (vec![], None));
        let force = ended(Some(Force::GuardIsLate), None, Exit::RanTooLong);
        assert_eq!(at(&mut course, held(late)), (vec![], force));
        // The guard has killed it meanwhile, though not at the end of the lock.
        let report = Report::Ended(Ended { signal: Some(9), by_guard: true, ..Ended::default() });
        let end = ended(None, None, Exit::RanTooLong);
        assert_eq!(take(&mut course, Happening::Reported(report), held(late)), (vec![], end));
    }

    #[test]
    fn max_run_counts_from_the_start_or_from_when_it_should_have_been() {
        let plan = plan(&["--max-run", "10s"]);
        let mut course = begun(&plan);
        let end = BEGIN + 15 * SECOND;
        assert_eq!(course.wakes_at(), Some(end));
        let (actions, _) = at(&mut course, held(end));
        let text =
            "job has not been started within 5.0 s and 10 s (--max-run); TERM, KILL after 2.0 s";
        assert_eq!(said(&actions), [text]);
        // The guard goes on after all: that gives no more time.
        let report = Happening::Reported(Report::Started { process: GROUP });
        take(&mut course, report, held(end + SECOND));
        assert_eq!(course.wakes_at(), Some(end + 2 * SECOND));
    }

    #[test]
    fn a_second_signal_kills_after_the_grace_and_a_later_one_puts_nothing_off() {
        let plan = plan(&["--max-run", "11s"]);
        let mut course = started(&plan);
        for signal in [Signal::SIGHUP, Signal::SIGHUP, Signal::SIGTERM] {
            let passed = take(&mut course, Happening::Signal(signal), held(BEGIN));
            assert_eq!(passed, (signals(&[signal]), None));
        }
        assert_eq!(course.kill_at, None);
        let second = BEGIN + 10 * SECOND;
        take(&mut course, Happening::Signal(Signal::SIGINT), held(second));
        assert_eq!(course.kill_at, Some(second + 2 * SECOND));
        take(&mut course, Happening::Signal(Signal::SIGINT), held(second + SECOND));
        // --max-run is over.
        assert!(course.has_run_too_long);
        assert_eq!(course.kill_at, Some(second + 2 * SECOND));
    }

    #[test]
    fn a_lost_lock_ends_the_command_at_once() {
        let plan = plan(&[]);
        let mut course = started(&plan);
        let lost = Happening::Lost(LossReason::NodeDeleted);
        assert_eq!(take(&mut course, lost, seen(BEGIN, None)), (kill(), None));
        let late = BEGIN + 200 * MILLISECOND;
        assert_eq!(course.wakes_at(), Some(late));
        let why = Some("the contender's node was deleted");
        let force = ended(Some(Force::LockEnds), why, Exit::LockLost);
        assert_eq!(at(&mut course, seen(late, None)), (vec![], force));
        let report = Report::Ended(Ended { signal: Some(9), by_guard: true, ..Ended::default() });
        let end = ended(None, why, Exit::LockLost);
        let reported = take(&mut course, Happening::Reported(report), seen(late, None));
        assert_eq!(reported, (vec![], end));
    }

    #[test]
    fn a_lost_lock_is_only_told_if_a_warning_is_all() {
        let plan = plan(&["--on-loss", "warn"]);
        let mut course = started(&plan);
        let lost = Happening::Lost(LossReason::SessionExpired);
        let (actions, then) = take(&mut course, lost, seen(BEGIN, None));
        assert_eq!(actions[0], Action::Tell(Order::Lost));
        let text = "LOCK LOST: the session expired; the command goes on (--on-loss warn)";
        assert_eq!((said(&actions), then, course.wakes_at()), (vec![text], None, None));
        let on = take(&mut course, Happening::Signal(Signal::SIGCONT), seen(BEGIN, None));
        assert_eq!(on, (goes_on(), None));
    }

    #[test]
    fn a_command_that_was_told_of_the_end_of_its_lock_gets_no_more_time() {
        let plan = plan(&["--on-loss", "usr1"]);
        let mut course = started(&plan);
        let warned = Happening::Reported(Report::Warned);
        let (actions, then) = course.step(Some(warned), held(BEGIN));
        assert_eq!((actions.len(), &actions[0], then), (2, &Action::Stopping, None));
        let text = format!(
            "the lock is about to be LOST: {NOT_RENEWED}; USR1 to job (group 4711), KILL within 2.0 s"
        );
        assert_eq!(said(&actions), [text]);
        assert_eq!(course.step(None, held(BEGIN)), (vec![], None));
        let report = Report::Ended(Ended { code: Some(0), ..Ended::default() });
        let (_, then) = take(&mut course, Happening::Reported(report), held(BEGIN));
        assert_eq!(then, ended(None, Some(NOT_RENEWED), Exit::LockLost));
    }

    #[test]
    fn zklock_stops_with_its_command_and_goes_on_if_the_lock_is_held() {
        let plan = plan(&["--max-run", "10s"]);
        let mut course = started(&plan);
        // Nothing else is decided before it goes on: that may be much later.
        let over = BEGIN + 10 * SECOND;
        let stop = course.step(Some(Happening::Signal(Signal::SIGTSTP)), held(over));
        assert_eq!(stop, (signals(&[Signal::SIGSTOP]), Some(Then::Stop)));
        let on = |course: &mut Course<'_>, seen| {
            take(course, Happening::Signal(Signal::SIGCONT), seen).0
        };
        let actions = on(&mut course, held(over));
        assert_eq!(actions[..2], goes_on());
        assert!(course.has_run_too_long);
        assert_eq!(on(&mut course, seen(over, None)), kill());
        let report = Report::Ended(Ended { signal: Some(9), ..Ended::default() });
        let (_, then) = take(&mut course, Happening::Reported(report), held(over));
        assert_eq!(then, ended(None, Some(NOT_RENEWED), Exit::LockLost));
    }

    #[test]
    fn a_command_gets_the_terminal_if_zklock_has_it_and_otherwise_both_stop() {
        let plan = plan(&[]);
        let mut with_terminal = started(&plan);
        let mut without = Course { has_terminal: false, ..started(&plan) };
        let goes_on = (goes_on(), None);
        let stops = (vec![], Some(Then::Stop));
        let nothing = (vec![], None);
        for (signal, is_terminal_elsewhere, decision) in [
            (Signal::SIGTTIN, false, &goes_on),
            (Signal::SIGTTOU, false, &goes_on),
            (Signal::SIGTTIN, true, &stops),
            (Signal::SIGTSTP, false, &stops),
            (Signal::SIGSTOP, true, &nothing),
        ] {
            let stopped = || Happening::Reported(Report::Stopped { signal: signal as i32 });
            let seen = Seen { is_terminal_elsewhere, ..held(BEGIN) };
            assert_eq!(take(&mut with_terminal, stopped(), seen), *decision, "{signal}");
            assert_eq!(take(&mut without, stopped(), seen), nothing, "{signal}");
        }
    }

    #[test]
    fn the_exit_code_is_the_command_s_unless_the_lock_was_lost() {
        let plan = plan(&[]);
        let ended_by =
            |code, signal, by_guard| Ended { code, signal, by_guard, had_left_some: false };
        for (report, is_held, exit) in [
            (ended_by(Some(7), None, false), true, Exit::Command(7)),
            (ended_by(None, Some(15), false), true, Exit::Signal(15)),
            (ended_by(None, None, false), true, Exit::Signal(127)),
            (ended_by(Some(0), None, false), false, Exit::LockLost),
            // The guard knew it before zklock, which was stopped.
            (ended_by(None, Some(9), true), true, Exit::LockLost),
        ] {
            let lost = (exit == Exit::LockLost).then_some(NOT_RENEWED);
            let seen = seen(BEGIN, is_held.then_some(SECOND));
            let reported =
                take(&mut started(&plan), Happening::Reported(Report::Ended(report)), seen);
            assert_eq!(reported, (vec![], ended(None, lost, exit)), "{report:?}");
        }
        let left = Ended { had_left_some: true, ..ended_by(Some(0), None, false) };
        let left = Happening::Reported(Report::Ended(left));
        let (actions, _) = take(&mut started(&plan), left, held(BEGIN));
        assert_eq!(said(&actions), ["job had left processes running; they were ended"]);
    }

    #[test]
    fn a_command_that_cannot_be_run_says_why() {
        let plan = plan(&[]);
        for (error, exit, why) in [
            (Errno::ENOENT, Exit::NotFound, "No such file or directory"),
            (Errno::EACCES, Exit::CannotRun, "Permission denied"),
        ] {
            let mut course = begun(&plan);
            let report = Report::NotStarted { process: GROUP, error: error as i32 };
            let (actions, then) = take(&mut course, Happening::Reported(report), held(BEGIN));
            assert_eq!(said(&actions), [format!("cannot run job: {why}")]);
            assert_eq!(then, Some(Then::NotStarted(exit)));
            // It may have the terminal.
            assert_eq!(course.command, Some(Pid::from_raw(GROUP)));
        }
    }

    #[test]
    fn the_end_of_the_guard_is_that_of_the_command() {
        let plan = plan(&[]);
        let (actions, then) = take(&mut started(&plan), Happening::GuardEnded, held(BEGIN));
        assert_eq!(said(&actions), ["the guard process was killed, so the command is, too"]);
        assert_eq!(then, ended(Some(Force::GuardEnded), None, Exit::Failed));
    }

    #[test]
    fn a_command_is_told_that_its_release_is_asked_for_also_if_it_is_stopped() {
        for (on_ask, told, what) in [
            ("term", &[Signal::SIGTERM, Signal::SIGCONT][..], "TERM to job"),
            ("usr1", &[Signal::SIGUSR1, Signal::SIGCONT], "USR1 to job"),
            ("ignore", &[], "the command goes on (--on-ask ignore)"),
        ] {
            let plan = plan(&["--on-ask", on_ask]);
            let (mut actions, then) =
                take(&mut started(&plan), Happening::ReleaseRequested, held(BEGIN));
            let text = format!("another client asks for its release; {what}");
            assert_eq!((actions.pop(), then), (Some(Action::Say(text)), None));
            assert_eq!(actions.remove(0), Action::Write("release_requested", json!({})));
            assert_eq!(actions, signals(told));
        }
    }

    #[test]
    fn the_lock_may_be_kept_unless_somebody_wanted_the_end_of_both() {
        let plan = plan(&["--max-run", "10s"]);
        assert!(!begun(&plan).may_stay());
        let told = |happening| {
            let mut course = started(&plan);
            take(&mut course, happening, held(BEGIN));
            course.may_stay()
        };
        assert!(told(Happening::Signal(Signal::SIGHUP)));
        assert!(told(Happening::Signal(Signal::SIGUSR1)));
        for signal in ASKING_TO_END {
            assert!(!told(Happening::Signal(signal)), "{signal}");
        }
        assert!(!told(Happening::ReleaseRequested));
        let ignoring = self::plan(&["--on-ask", "ignore"]);
        let mut course = started(&ignoring);
        take(&mut course, Happening::ReleaseRequested, held(BEGIN));
        assert!(course.may_stay());
        let mut course = started(&plan);
        at(&mut course, held(BEGIN + 10 * SECOND));
        assert!(course.has_run_too_long && course.may_stay());
    }
}
