//! `zklock run` and `zklock lead`: a command that lives only while a lock is held.
//!
//! Three processes: zklock, which has the session; the guard process (`guard`), which starts and ends the
//! command; and the command, in a group of its own. `supervise` is what zklock does meanwhile, `waiting` what
//! it does before, `held_lock` the locks, `run_settings` what there is to do.

mod boot_clock;
mod event_lines;
mod first_ahead;
mod guard;
mod held_lock;
mod run_settings;
mod signals;
mod supervise;
mod waiting;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use zklock::once::OnceOutcome;
use zklock::{Client, ErrorKind, ForeignContenders, Once};

use self::boot_clock::{after, now};
use self::event_lines::Events;
use self::first_ahead::FirstAhead;
use self::guard::{GuardProcess, Plan};
use self::held_lock::Held;
use self::run_settings::{Mode, RunSettings};
use self::signals::Terminal;
use self::supervise::Stayed;
use self::supervise::{Outcome, Supervisor, lost_before_end};
use self::waiting::Waiting;
use crate::args::OnLoss;
use crate::args::{Global, IfUnavailable, Lead, Run};
use crate::exit::{Exit, Failure};
use crate::lease_budget::{USUAL_GRACE, spare, usual_grace};
use crate::output::{self, complain, say};
use crate::words::{at_least, lasting};

pub(crate) fn run(global: &Global, run: Run) -> Result<Exit, Failure> {
    let mode = match run.permits {
        Some(of) => Mode::Permits { of, take: run.take },
        None if run.lead => Mode::Leader,
        None if run.shared => Mode::Shared,
        None if run.exclusive => Mode::Exclusive,
        None => Mode::Mutex,
    };
    let (under, is_limited) = held_lock::those_around();
    let also = run.also.iter().map(|lock| global.path(lock)).collect::<Result<_, _>>()?;
    let settings = RunSettings {
        hosts: global.hosts.clone(),
        lock: global.path(&run.lock)?,
        subject: run.lock,
        also,
        mode,
        kazoo: run.kazoo,
        create: run.create,
        data: with_facts(
            &description(&run.supervision.command)?,
            run.how_to_wait.wait.is_none() && !is_limited,
            &under,
            run.label.as_deref(),
        )?,
        acl: global.acl(),
        once: run.once,
        forget_after: run.forget_after,
        hold_at_least: run.hold_at_least,
        is_verbose: global.verbose > 0,
        how_to_wait: run.how_to_wait,
        patience: run.patience,
        supervision: run.supervision,
    };
    carry_out(global, &settings)
}

pub(crate) fn lead(global: &Global, lead: Lead) -> Result<Exit, Failure> {
    let data = match lead.id {
        Some(id) => id,
        None => description(&lead.supervision.command)?,
    };
    let settings = RunSettings {
        hosts: global.hosts.clone(),
        lock: global.path(&lead.lock)?,
        subject: lead.lock,
        also: Vec::new(),
        mode: Mode::Leader,
        kazoo: false,
        create: true,
        data,
        acl: global.acl(),
        once: None,
        forget_after: None,
        hold_at_least: None,
        is_verbose: global.verbose > 0,
        how_to_wait: lead.how_to_wait,
        patience: None,
        supervision: lead.supervision,
    };
    carry_out(global, &settings)
}

/// What a contender says about itself: as the library does, with the command as the program.
fn description(command: &[OsString]) -> Result<String, Failure> {
    let host = nix::unistd::gethostname()?;
    let program = command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join("_");
    Ok(format!(
        "host={} pid={} program={} thread=zklock",
        one_line(&host.to_string_lossy()),
        std::process::id(),
        one_line(&program.to_string_lossy()),
    ))
}

/// The same with a line of facts, as the library's contenders have it and add to it, and the label.
fn with_facts(
    description: &str,
    waits_forever: bool,
    under: &[String],
    label: Option<&str>,
) -> Result<String, Failure> {
    if label.is_some_and(|label| label.contains('\n')) {
        return Err(Failure::usage("a label is one line"));
    }
    // A signal ends it, which the library takes for a limit.
    let wait = if waits_forever { " wait=unlimited" } else { "" };
    let name = |node: &String| node.replace('%', "%25").replace(',', "%2C").replace(' ', "%20");
    let under = match under.iter().map(name).collect::<Vec<_>>().join(",") {
        none if none.is_empty() => none,
        some => format!(" under={some}"),
    };
    let label = label.map(|label| format!("\nlabel={label}")).unwrap_or_default();
    Ok(format!("{description}\nv=1{wait}{under}{label}"))
}

fn carry_out(global: &Global, settings: &RunSettings) -> Result<Exit, Failure> {
    let event_file = settings.supervision.events.as_deref().map(event_lines::open).transpose()?;
    let mut builder = global.builder()?;
    if !settings.how_to_wait.ignore.is_empty() {
        let ignored = ForeignContenders::Ignore(settings.how_to_wait.ignore.clone());
        builder = builder.foreign_contenders(ignored);
    }
    // Up to here, and until the guard process is forked, there is one thread.
    let cannot = |what: &'static str| {
        move |why: io::Error| Failure::new(Exit::Failed, format!("cannot {what}: {why}"))
    };
    let set = signals::block().map_err(cannot("take signals"))?;
    let terminal = Terminal::new();
    let guard = GuardProcess::fork(Plan {
        command: settings.supervision.command.clone(),
        on_loss: settings.supervision.on_loss,
        linger: settings.supervision.linger,
        signals: set,
        terminal: terminal.clone(),
    })
    .map_err(cannot("start the guard process"))?;
    output::write_in_background().map_err(cannot("start a thread"))?;
    let events = Events::to(event_file, &settings.lock.path).map_err(cannot("start a thread"))?;
    let (sender, happenings) = mpsc::channel();
    let waiting = &Waiting::begin(&set, terminal.is_there(), sender.clone())
        .map_err(cannot("start a thread"))?;
    let supervisor = Supervisor::new(settings, guard, terminal, events.clone(), sender, happenings)
        .map_err(cannot("watch over processes"))?;
    supervisor.manager.waits(&settings.lock.path);
    let first_ahead = FirstAhead::default();
    let attempt = Attempt { settings, waiting, supervisor, first_ahead: first_ahead.clone() };
    let told = events.clone();
    let builder = builder.on_event(move |event| {
        told.library(event);
        first_ahead.note(event);
    });
    let exit = match builder.connect_within(waiting.cancel()) {
        Ok(client) => {
            let exit = attempt.hold(&client);
            client.close();
            exit
        }
        Err(error) => attempt.not_run(error.into()),
    };
    events.flush();
    exit
}

/// One attempt to get the lock and to run the command.
struct Attempt<'a> {
    settings: &'a RunSettings,
    waiting: &'a Waiting,
    supervisor: Supervisor<'a>,
    first_ahead: FirstAhead,
}

impl Attempt<'_> {
    /// Waits for the lock, and runs the command while it is held.
    fn hold(mut self, client: &Client) -> Result<Exit, Failure> {
        let begun = Instant::now();
        let settings = self.settings;
        self.waiting.note_client(client);
        self.supervisor.grace = grace(client, settings)?;
        self.waiting.tell_of_others(client, settings);
        if let Err(failure) = held_lock::refuse_those_of_ancestors(client, settings) {
            return self.not_run(failure);
        }
        let acquired =
            held_lock::acquire(client, settings, self.waiting.cancel(), &self.first_ahead);
        let held = match acquired {
            Ok(Some(held)) => held,
            Ok(None) => {
                let failure = conflict(client, settings);
                if failure.exit.code() == 0 {
                    self.supervisor.manager.not_needed();
                }
                return self.waiting.end().ok_or(failure);
            }
            Err(failure) => {
                if failure.exit.code() == 0 {
                    self.supervisor.manager.not_needed();
                }
                return self.not_run(failure);
            }
        };
        self.supervisor.stays_until = settings.hold_at_least.map(|time| after(now(), time));
        if settings.is_verbose {
            say(&settings.subject, &format!("held, after {}", lasting(begun.elapsed())));
        }
        let outcome = match &settings.once {
            None => self.supervise(client, &held)?,
            Some(key) => {
                let exit = self.once(client, &held, key)?;
                Outcome { exit, stayed: Stayed::No }
            }
        };
        release(held, &outcome, &settings.subject)
    }

    /// Runs the command, unless a signal has come before it.
    fn supervise(self, client: &Client, held: &Held) -> Result<Outcome, Failure> {
        if let Some(exit) = self.waiting.end() {
            return Ok(Outcome { exit, stayed: Stayed::No });
        }
        let outcome = self.supervisor.supervise(client, held);
        self.waiting.note_end_of_command(client);
        outcome
    }

    /// There is no lock, for this reason, and nothing was run.
    fn not_run(self, failure: Failure) -> Result<Exit, Failure> {
        if let Some(exit) = self.waiting.end() {
            return Ok(exit);
        }
        if failure.exit != Exit::Unavailable {
            return Err(failure);
        }
        // That is no outage of ZooKeeper's.
        if let Err(why) = can_open_files() {
            let message = format!("{why}. The command was NOT run; {}", failure.message);
            return Err(Failure::new(Exit::Failed, message));
        }
        let Failure { exit, message } = failure.during("ZooKeeper cannot be reached");
        let subject = &self.settings.subject;
        match self.settings.supervision.if_unavailable {
            IfUnavailable::Fail => {
                Err(Failure::new(exit, format!("{message}. The command was NOT run")))
            }
            IfUnavailable::Skip => {
                say(subject, &format!("{message}. The command was not run"));
                self.supervisor.manager.not_needed();
                Ok(Exit::Success)
            }
            IfUnavailable::Run => {
                say(subject, &format!("{message}. The command runs WITHOUT the lock"));
                self.supervisor.supervise_without_lock()
            }
        }
    }

    /// Runs the command unless this key has its mark, and leaves the mark.
    fn once(self, client: &Client, held: &Held, key: &str) -> Result<Exit, Failure> {
        let Some(guard) = held.mutex() else {
            return Err(Failure::usage("--once needs a plain lock"));
        };
        let (settings, waiting) = (self.settings, self.waiting);
        // Beside the lock's node: its children are the contenders.
        let marks = Once::new(client, &settings.lock.base, format!("{}.once", settings.lock.name))
            .acl(settings.acl.clone());
        let (mut exit, mut attempt) = (None, Some(self));
        let outcome = marks.run_holding(guard, key, || {
            let Some(attempt) = attempt.take() else { return Ok(()) };
            let ended = attempt.supervise(client, held)?.exit;
            exit = Some(ended);
            match ended {
                Exit::Command(0) => Ok(()),
                _ => Err(Failure::silent(ended)),
            }
        });
        match (outcome, attempt) {
            (Ok(OnceOutcome::Done(())), _) => {}
            // A call that holds the lock is told of no other holder.
            (Ok(_), attempt) => {
                if let Some(attempt) = attempt {
                    attempt.supervisor.manager.not_needed();
                }
                return Ok(Exit::Success);
            }
            (Err(failure), Some(attempt)) => return attempt.not_run(failure),
            (Err(failure), None) if exit == Some(Exit::Command(0)) => {
                // After a signal, the client is closed: that is no loss.
                let lost = !held.is_held() && !waiting.is_interrupted();
                let exit = if lost { Exit::LockLost } else { Exit::Failed };
                return Err(Failure::new(exit, failure.message));
            }
            (Err(failure), None) => return exit.ok_or(failure),
        }
        if let Some(age) = settings.forget_after {
            if let Err(error) = marks.prune(age) {
                let text = format!("old keys of --once could not be forgotten: {error}");
                say(&settings.subject, &text);
            }
        }
        Ok(Exit::Command(0))
    }
}

/// Releases the lock after the command, and says what became of that.
fn release(held: Held, outcome: &Outcome, subject: &str) -> Result<Exit, Failure> {
    let was_held = held.is_held();
    let released = match held.release() {
        // In an outage, the session may end meanwhile.
        Err(error) if was_held && error.kind() == ErrorKind::SessionLost => Ok(false),
        released => released,
    };
    match released {
        Ok(true) => {}
        Ok(false) => {
            let text = "the release was not confirmed: it goes with the session, at its timeout";
            say(subject, text);
        }
        // A signal has closed the client, and thereby released it.
        Err(error) if error.kind() == ErrorKind::Closed => {}
        Err(_) if outcome.exit == Exit::LockLost || outcome.stayed == Stayed::UntilLost => {}
        Err(error) if matches!(error.kind(), ErrorKind::NodeDeleted | ErrorKind::SessionLost) => {
            if outcome.stayed == Stayed::No {
                return Err(lost_before_end(&error));
            }
            complain(subject, &format!("LOCK LOST after the end of the command: {error}"));
        }
        Err(error) => say(subject, &format!("could not be released: {error}")),
    }
    Ok(outcome.exit)
}

/// Others hold it.
fn conflict(client: &Client, settings: &RunSettings) -> Failure {
    let exit = Exit::Conflict(settings.how_to_wait.conflict_exit_code);
    if settings.how_to_wait.conflict_exit_code == 0 {
        return Failure::silent(exit);
    }
    let others = held_lock::others(client, settings);
    let why = match settings.how_to_wait.wait {
        Some(limit) => format!("not free within {}", lasting(limit)),
        None => "not waiting (-n)".to_owned(),
    };
    let foreign = held_lock::foreign(client, settings).map(|text| format!(". {text}"));
    Failure::new(exit, format!("{others}; {why}{}", foreign.unwrap_or_default()))
}

/// Whether this process may open as many files as a connection needs.
fn can_open_files() -> io::Result<()> {
    /// What a connection needs, and to spare.
    const FILES: usize = 6;
    (0..FILES).map(|_| File::open("/dev/null")).collect::<io::Result<Vec<_>>>().map(drop)
}

/// How long the command has from TERM to KILL. It needs that time also when all is well.
fn grace(client: &Client, settings: &RunSettings) -> Result<Duration, Failure> {
    let wanted = settings.supervision.grace;
    let (Some(timeout), Some(limit)) = (client.session_timeout(), client.outage_limit()) else {
        return Ok(wanted.unwrap_or(USUAL_GRACE));
    };
    match (settings.supervision.on_loss, wanted, spare(timeout, limit)) {
        (OnLoss::Warn, ..) | (OnLoss::Kill, _, Some(_)) => Ok(wanted.unwrap_or(USUAL_GRACE)),
        (OnLoss::Signal(_), None, Some(spare)) => Ok(usual_grace(spare)),
        (OnLoss::Signal(_), Some(grace), Some(spare)) if grace < spare => Ok(grace),
        (_, Some(grace), Some(spare)) => Err(Failure::usage(format!(
            "with a session timeout of {}, the grace must be less than {}, and is {}: the command would be ended \
             without an outage",
            lasting(timeout),
            at_least(spare),
            lasting(grace)
        ))),
        (_, _, None) => Err(Failure::usage(format!(
            "a session timeout of {} is too short to end a command in time",
            lasting(timeout)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contender_is_described_in_one_line_and_a_label() {
        let command = ["/opt/my backup.sh".into(), "-x".into()];
        let own = description(&command).unwrap();
        let text = with_facts(&own, false, &[], Some("of web1")).unwrap();
        assert!(text.contains(" program=my_backup.sh thread=zklock\nv=1\nlabel=of web1"), "{text}");
        let under = ["/a b/1,2".to_owned(), "/50%".to_owned()];
        let text = with_facts("own", true, &under, None).unwrap();
        assert_eq!(text, "own\nv=1 wait=unlimited under=/a%20b/1%2C2,/50%25");
        assert!(with_facts("", true, &[], Some("two\nlines")).is_err());
    }
}
