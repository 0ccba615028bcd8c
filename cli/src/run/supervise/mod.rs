//! What zklock does while the command runs: it waits for what happens, and does what `course` decides.

mod course;
mod hold_at_least;
mod systemd;

pub(crate) use self::hold_at_least::Stayed;

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde_json::json;
use zklock::{Client, Error, ErrorKind};

use self::course::{Action, Course, Force, Seen, Then};
use self::hold_at_least::{Next, Stay};
use self::systemd::Manager;
use crate::exit::{Exit, Failure};
use crate::lease_budget::{USUAL_GRACE, look_interval};
use crate::output::{complain, say};
use crate::run::boot_clock::{BootTime, after, nanoseconds, now};
use crate::run::event_lines::Events;
use crate::run::guard::GuardProcess;
use crate::run::guard::{Happening, Lines, Order, send};
use crate::run::guard::{adopt_descendants, children, end_all, reap, runs, some_are_left};
use crate::run::held_lock::Held;
use crate::run::run_settings::RunSettings;
use crate::run::signals::Terminal;
use crate::run::signals::stop_job;
use crate::words::lasting;

/// How long processes may take to end after KILL; those in an uninterruptible sleep take longer.
const KILL_TAKES: Duration = Duration::from_secs(10);

/// How long a server may take to say whether the lock is held.
const CHECK_TAKES: Duration = Duration::from_secs(5);

/// How it went.
pub(crate) struct Outcome {
    pub(crate) exit: Exit,
    pub(crate) stayed: Stayed,
}

/// Watches over the guard process and the command.
pub(crate) struct Supervisor<'a> {
    settings: &'a RunSettings,
    guard: Pid,
    orders: File,
    terminal: Terminal,
    /// From the signal that is to end the command to KILL.
    pub(crate) grace: Duration,
    /// Until when the lock is kept though the command has ended.
    pub(crate) stays_until: Option<BootTime>,
    events: Events,
    /// Is told what happens.
    pub(crate) manager: Manager,
    to_self: Sender<Happening>,
    happenings: Receiver<Happening>,
    /// Children that this process had before: it may have been another program.
    not_ours: Vec<Pid>,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        settings: &'a RunSettings,
        guard: GuardProcess,
        terminal: Terminal,
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
        Ok(Supervisor {
            settings,
            guard: guard.process,
            orders: guard.orders,
            terminal,
            grace: settings.supervision.grace.unwrap_or(USUAL_GRACE),
            stays_until: None,
            events,
            manager: Manager::new(settings.supervision.notify),
            to_self,
            happenings,
            not_ours,
        })
    }

    /// Runs the command while the lock is held.
    pub(crate) fn supervise(mut self, client: &Client, held: &Held) -> Result<Outcome, Failure> {
        let to = self.to_self.clone();
        held.on_lost(move |reason| {
            let _ = to.send(Happening::Lost(reason));
        });
        let to = self.to_self.clone();
        held.on_release_requested(move || {
            let _ = to.send(Happening::ReleaseRequested);
        });
        let timeout = client.session_timeout().unwrap_or(Duration::from_secs(10));
        let variables = held.variables(client, self.settings);
        let interval = look_interval(timeout);
        let (exit, may_stay) = self.watch(Some(held), variables, interval)?;
        match self.stays_until.map(|until| Stay::new(until, self.settings.supervision.on_ask)) {
            Some(stay) if may_stay && stay.left(now()).is_some() => {
                self.stay(&stay, exit, held, interval)
            }
            _ => Ok(Outcome { exit, stayed: Stayed::No }),
        }
    }

    /// Runs it although nothing is held.
    pub(crate) fn supervise_without_lock(mut self) -> Result<Exit, Failure> {
        let variables = vec![("ZKLOCK_LOCK".to_owned(), self.settings.lock.path.clone())];
        Ok(self.watch(None, variables, Duration::from_secs(3600))?.0)
    }

    /// The exit code, and whether the lock may be kept now.
    fn watch(
        &mut self,
        held: Option<&Held>,
        variables: Vec<(String, String)>,
        interval: Duration,
    ) -> Result<(Exit, bool), Failure> {
        let begun = Instant::now();
        let seen = self.see(held, None);
        if held.is_some() && seen.held_until.is_none() {
            let message = "the lock was lost before the command could start";
            return Err(Failure::new(Exit::LockLost, message));
        }
        let start = Order::Start {
            variables,
            lock_ends: seen.held_until,
            grace: nanoseconds(self.grace),
            takes_terminal: self.terminal.is_for_the_command(),
        };
        send(&mut self.orders, &start).map_err(|_| {
            let message = "the guard process was killed before the command could start";
            Failure::new(Exit::Failed, message)
        })?;
        // If the guard is stopped, the pipe fills up; this process must go on.
        fcntl(&self.orders, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut course =
            Course::new(&self.settings.supervision, self.grace, self.terminal.is_there(), seen);
        let mut next = None;
        loop {
            let happening = next.take().or_else(|| self.wait(course.wakes_at(), interval));
            let (actions, then) = course.step(happening, self.see(held, course.command));
            for action in actions {
                self.carry_out(action);
            }
            match then {
                None => {}
                Some(Then::Stop) => {
                    // The guard process goes on, and with it the lock's time.
                    self.terminal.take_from(course.command);
                    stop_job(self.terminal.is_there());
                    next = Some(Happening::Signal(Signal::SIGCONT));
                }
                Some(Then::NotStarted(exit)) => {
                    self.terminal.take_from(course.command);
                    return Ok((exit, false));
                }
                Some(Then::End { force, lost, exit }) => {
                    if !self.end(force, &course, held) {
                        continue;
                    }
                    let may_stay = lost.is_none() && course.may_stay();
                    self.tell_of_end(lost, exit, begun.elapsed());
                    return Ok((exit, may_stay));
                }
            }
        }
    }

    /// Keeps the lock for the rest of its time.
    fn stay(
        &mut self,
        stay: &Stay,
        exit: Exit,
        held: &Held,
        interval: Duration,
    ) -> Result<Outcome, Failure> {
        // A loss from now on is none of the command's. The news of an earlier one may come late.
        if let Err(error) = held.ensure_held_within(CHECK_TAKES) {
            if error.kind() == ErrorKind::NodeDeleted {
                return Err(lost_before_end(&error));
            }
        }
        self.tell_of_stay(stay);
        let mut happening = None;
        loop {
            let (actions, next) = stay.step(happening.take(), now());
            for action in actions {
                self.carry_out(action);
            }
            match next {
                Next::Wait => {}
                Next::Stop => stop_job(self.terminal.is_there()),
                Next::End(stayed) => return Ok(Outcome { exit, stayed }),
            }
            happening = self.wait(Some(stay.until), interval);
        }
    }

    fn tell_of_stay(&self, stay: &Stay) {
        let left = stay.left(now()).unwrap_or_default();
        self.manager.stays();
        self.events.write("still_held", &json!({ "left_ms": left.as_millis() as u64 }));
        if self.settings.is_verbose || io::stderr().is_terminal() {
            let text = format!(
                "the command has ended; held for another {} (--hold-at-least)",
                lasting(left)
            );
            say(&self.settings.subject, &text);
        }
    }

    /// What happens next, if something does in this time.
    fn wait(&self, wakes_at: Option<u64>, interval: Duration) -> Option<Happening> {
        let until = wakes_at.map(|at| Duration::from_nanos(at.saturating_sub(now())));
        self.happenings.recv_timeout(until.unwrap_or(interval).min(interval)).ok()
    }

    fn see(&self, held: Option<&Held>, command: Option<Pid>) -> Seen {
        // The clock first: otherwise a pause in between would make the lock's time longer.
        let now = now();
        let held = held.filter(|held| held.is_held());
        Seen {
            now,
            held_until: held.map(|held| after(now, held.lease_left())),
            is_terminal_elsewhere: self.terminal.is_elsewhere(command),
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            // If the guard is stopped, or has ended, the course's times and its last report count.
            Action::Tell(order) => drop(send(&mut self.orders, &order)),
            Action::Say(text) => say(&self.settings.subject, &text),
            Action::Complain(text) => complain(&self.settings.subject, &text),
            Action::Write(event, fields) => self.events.write(event, &fields),
            Action::Ready => self.manager.ready(),
            Action::Stopping => self.manager.stopping(),
            Action::Reap => reap(&[&self.not_ours[..], &[self.guard]].concat()),
            Action::GiveTerminal(group) if self.terminal.is_ours() => self.terminal.give_to(group),
            Action::GiveTerminal(_) => {}
        }
    }

    /// Ends what is left of the guard and the command. False if there may be news of them first.
    fn end(&self, force: Option<Force>, course: &Course<'_>, held: Option<&Held>) -> bool {
        match force {
            None => {
                self.terminal.take_from(course.command);
                // It has nothing more to do, and may have been stopped.
                let _ = kill(self.guard, Signal::SIGKILL);
                let _ = waitpid(self.guard, None);
            }
            // This process was stopped meanwhile. By now, others may have the number of the command's group.
            Some(Force::GuardIsLate | Force::LockEnds) if !runs(self.guard) => return false,
            Some(Force::GuardIsLate | Force::GuardEnded) => self.end_by_force(course, held),
            Some(Force::LockEnds) => self.end_by_force(course, None),
        }
        true
    }

    /// Ends the guard, the command, and all that the command has started; if the lock is held, however long
    /// that takes.
    fn end_by_force(&self, course: &Course<'_>, held: Option<&Held>) {
        // The guard, which would have reaped it and reported its end, is stopped or has ended.
        if let Some(group) = course.command {
            let _ = killpg(group, Signal::SIGKILL);
        }
        let _ = kill(self.guard, Signal::SIGKILL);
        let ended = end_all(course.command, &self.not_ours, Some(KILL_TAKES));
        self.terminal.take_from(course.command);
        if !some_are_left(&self.not_ours) {
            return;
        }
        let is_held = held.is_some_and(Held::is_held);
        let rest = match is_held {
            true => "; the lock is kept until it ends",
            false => ", and work on afterwards",
        };
        let text = format!(
            "{} was killed, and has not ended within {}: it may be in an uninterruptible sleep{rest}",
            course.program,
            lasting(KILL_TAKES)
        );
        complain(&self.settings.subject, &text);
        if is_held {
            end_all(course.command.filter(|_| ended.is_none()), &self.not_ours, None);
        }
    }

    fn tell_of_end(&self, lost: Option<String>, exit: Exit, took: Duration) {
        if let Some(why) = lost {
            complain(&self.settings.subject, &format!("LOCK LOST after {}: {why}", lasting(took)));
        }
        let fields = json!({ "exit": exit.code(), "ran_ms": took.as_millis() as u64 });
        self.events.write("ended", &fields);
    }
}

/// The news of it may come after the end of the command.
pub(crate) fn lost_before_end(error: &Error) -> Failure {
    Failure::new(Exit::LockLost, format!("LOCK LOST before the end of the command: {error}"))
}
