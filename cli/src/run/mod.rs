//! `zklock run` and `zklock lead`: a command that lives only while a lock is held.
//!
//! Three processes: zklock, which has the session; the guard process (`guard`), which starts and ends the
//! command; and the command, in a group of its own. `supervise` is what zklock does meanwhile, `waiting` what
//! it does before, `held` the locks.

mod events;
mod guard;
mod held;
mod messages;
mod notify;
mod processes;
mod signals;
mod supervise;
mod terminal;
mod waiting;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use zklock::once::OnceOutcome;
use zklock::{Acl, Client, ErrorKind, Once};

use self::events::Events;
use self::guard::{GuardProcess, Plan};
use self::held::Held;
use self::supervise::Supervisor;
use self::terminal::Terminal;
use self::waiting::Waiting;
use crate::connect::Lock;
use crate::exit::{Exit, Failure};
use crate::options::{Global, IfUnavailable, Lead, Patience, Run, Supervision};
use crate::words::{self, complain, lasting, say};

/// The guard kills the command this long before the lock ends.
const KILL_BEFORE_END: Duration = Duration::from_millis(150);

/// If the guard has not done it by then, because it is stopped, zklock does.
const FORCE_BEFORE_END: Duration = Duration::from_millis(50);

/// How long the command has from TERM to KILL, unless it is said or the session timeout is too short for that.
const USUAL_GRACE: Duration = Duration::from_secs(2);

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
        let name = text.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        match name {
            "WARN" => Ok(OnLoss::Warn),
            "KILL" => Ok(OnLoss::Kill),
            "STOP" => Err("a stopped command could work on later".to_owned()),
            _ => Signal::from_str(&format!("SIG{name}"))
                .map(OnLoss::Signal)
                .map_err(|_| "neither term, kill, warn nor the name of a signal".to_owned()),
        }
    }
}

/// How it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Mutex,
    Shared,
    Exclusive,
    Permits { of: u32, take: u32 },
    Leader,
}

/// What `run` and `lead` have in common.
struct Job {
    lock: Lock,
    also: Vec<Lock>,
    mode: Mode,
    patience: Patience,
    /// What the contender's node says.
    data: String,
    acl: Vec<Acl>,
    once: Option<String>,
    forget_after: Option<Duration>,
    supervision: Supervision,
}

pub(crate) fn run(global: &Global, run: Run) -> Result<Exit, Failure> {
    let mode = match run.permits {
        Some(of) => Mode::Permits { of, take: run.take },
        None if run.lead => Mode::Leader,
        None if run.shared => Mode::Shared,
        None if run.exclusive => Mode::Exclusive,
        None => Mode::Mutex,
    };
    let also = run.also.iter().map(|lock| global.path(lock)).collect::<Result<_, _>>()?;
    let job = Job {
        lock: global.path(&run.lock)?,
        also,
        mode,
        data: description(&run.supervision.command, run.label.as_deref())?,
        acl: global.acl(),
        once: run.once,
        forget_after: run.forget_after,
        patience: run.patience,
        supervision: run.supervision,
    };
    carry_out(global, job, &run.lock)
}

pub(crate) fn lead(global: &Global, lead: Lead) -> Result<Exit, Failure> {
    let data = match lead.id {
        Some(id) => id,
        None => description(&lead.supervision.command, None)?,
    };
    let job = Job {
        lock: global.path(&lead.lock)?,
        also: Vec::new(),
        mode: Mode::Leader,
        data,
        acl: global.acl(),
        once: None,
        forget_after: None,
        patience: lead.patience,
        supervision: lead.supervision,
    };
    carry_out(global, job, &lead.lock)
}

/// What a contender says about itself: as the library does, with the command as the program.
fn description(command: &[OsString], label: Option<&str>) -> Result<String, Failure> {
    let host = nix::unistd::gethostname()?;
    let program = command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join("_");
    let mut text = format!(
        "host={} pid={} program={} thread=zklock",
        one_line(&host.to_string_lossy()),
        std::process::id(),
        one_line(&program.to_string_lossy()),
    );
    if let Some(label) = label {
        if label.contains('\n') {
            return Err(Failure::usage("a label is one line"));
        }
        text.push_str(&format!("\nlabel={label}"));
    }
    Ok(text)
}

fn carry_out(global: &Global, job: Job, subject: &str) -> Result<Exit, Failure> {
    let event_file = job.supervision.events.as_deref().map(events::open).transpose()?;
    let builder = global.builder()?;
    // Up to here, and until the guard process is forked, there is one thread.
    let cannot = |what: &'static str| {
        move |why: io::Error| Failure::new(Exit::Failed, format!("cannot {what}: {why}"))
    };
    let set = signals::block().map_err(cannot("take signals"))?;
    let terminal = Terminal::new();
    let guard = GuardProcess::fork(Plan {
        command: job.supervision.command.clone(),
        on_loss: job.supervision.on_loss,
        linger: job.supervision.linger,
        signals: set,
        terminal: terminal.clone(),
    })
    .map_err(cannot("start the guard process"))?;
    words::write_in_background().map_err(cannot("start a thread"))?;
    let events = Events::to(event_file, &job.lock.path).map_err(cannot("start a thread"))?;
    let (sender, happenings) = mpsc::channel();
    let waiting = Waiting::begin(&set, terminal.is_there(), sender.clone())
        .map_err(cannot("start a thread"))?;
    let supervisor =
        Supervisor::new(subject, guard, terminal, &job, events.clone(), sender, happenings)
            .map_err(cannot("watch over processes"))?;
    supervisor.manager().waits(&job.lock.path);
    let found = builder
        .on_event({
            let events = events.clone();
            move |event| events.library(event)
        })
        .connect_within(waiting.cancel())
        .map_err(Failure::from);
    let exit = match found {
        Ok(client) => {
            let exit = hold(&client, &job, &waiting, supervisor, (subject, global.verbose));
            client.close();
            exit
        }
        Err(failure) => not_run(failure, &job, &waiting, supervisor, subject),
    };
    events.flush();
    exit
}

/// Waits for the lock, and runs the command while it is held.
fn hold(
    client: &Client,
    job: &Job,
    waiting: &Waiting,
    supervisor: Supervisor<'_>,
    (subject, verbosity): (&str, u8),
) -> Result<Exit, Failure> {
    let begun = Instant::now();
    waiting.has_client(client);
    let supervisor = supervisor.with_grace(grace(client, job)?);
    waiting.tell_of_others(client, subject, job);
    let held = match Held::acquire(client, job, waiting.cancel()) {
        Ok(Some(held)) => held,
        Ok(None) => {
            let failure = conflict(client, job);
            if failure.exit.code() == 0 {
                supervisor.manager().not_needed();
            }
            return waiting.end().map_or(Err(failure), |signal| Ok(Exit::Signal(signal as i32)));
        }
        Err(error) => return not_run(error.into(), job, waiting, supervisor, subject),
    };
    if verbosity > 0 {
        say(subject, &format!("held, after {}", lasting(begun.elapsed())));
    }
    let exit = match &job.once {
        None => supervise(client, &held, job, waiting, supervisor)?,
        Some(key) => once(client, &held, job, key, waiting, supervisor, subject)?,
    };
    let was_held = held.is_held();
    let released = held.release();
    let is_unconfirmed = match &released {
        Ok(is_confirmed) => !is_confirmed,
        // In an outage, the session may end meanwhile.
        Err(error) => was_held && error.kind() == ErrorKind::SessionLost,
    };
    if is_unconfirmed {
        say(subject, "the release was not confirmed: it goes with the session, at its timeout");
        return Ok(exit);
    }
    match released {
        Ok(_) => Ok(exit),
        // A signal has closed the client, and thereby released it.
        Err(error) if error.kind() == ErrorKind::Closed => Ok(exit),
        Err(_) if exit == Exit::LockLost => Ok(exit),
        // The news of it may come after the end of the command.
        Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::SessionLost) => {
            complain(subject, &format!("LOCK LOST before the end of the command: {error}"));
            Ok(Exit::LockLost)
        }
        Err(error) => {
            say(subject, &format!("could not be released: {error}"));
            Ok(exit)
        }
    }
}

/// Runs the command, unless a signal has come before it.
fn supervise(
    client: &Client,
    held: &Held,
    job: &Job,
    waiting: &Waiting,
    supervisor: Supervisor<'_>,
) -> Result<Exit, Failure> {
    if let Some(signal) = waiting.end() {
        return Ok(Exit::Signal(signal as i32));
    }
    let exit = supervisor.supervise(client, held, &job.lock);
    waiting.command_has_ended(client);
    exit
}

/// Others hold it.
fn conflict(client: &Client, job: &Job) -> Failure {
    let exit = Exit::Conflict(job.patience.conflict_exit_code);
    if job.patience.conflict_exit_code == 0 {
        return Failure::silent(exit);
    }
    let others = held::others(client, &job.lock);
    let why = match job.patience.wait {
        Some(limit) => format!("not free within {}", lasting(limit)),
        None => "not waiting (-n)".to_owned(),
    };
    Failure::new(exit, format!("{others}; {why}"))
}

/// There is no lock, for this reason, and nothing was run.
fn not_run(
    failure: Failure,
    job: &Job,
    waiting: &Waiting,
    supervisor: Supervisor<'_>,
    subject: &str,
) -> Result<Exit, Failure> {
    if let Some(signal) = waiting.end() {
        return Ok(Exit::Signal(signal as i32));
    }
    if failure.exit != Exit::Unavailable {
        return Err(failure);
    }
    let what = failure.during("ZooKeeper cannot be reached");
    match job.supervision.if_unavailable {
        IfUnavailable::Fail => {
            Err(Failure::new(what.exit, format!("{}. The command was NOT run", what.message)))
        }
        IfUnavailable::Skip => {
            say(subject, &format!("{}. The command was not run", what.message));
            supervisor.manager().not_needed();
            Ok(Exit::Success)
        }
        IfUnavailable::Run => {
            say(subject, &format!("{}. The command runs WITHOUT the lock", what.message));
            supervisor.supervise_without_lock(&job.lock)
        }
    }
}

/// How often zklock looks at the lock, and tells the guard until when it is held.
fn look_interval(session_timeout: Duration) -> Duration {
    (session_timeout / 20).clamp(Duration::from_millis(50), Duration::from_secs(1))
}

/// What a grace and an outage may take together; `None` if there is no time to end a command at all.
///
/// An outage may begin when as little is left of the lease as the library promises, and the guard may know
/// only until when it lasted one look before.
fn spare(session_timeout: Duration, outage_limit: Duration) -> Option<Duration> {
    outage_limit.checked_sub(KILL_BEFORE_END + look_interval(session_timeout))
}

/// The grace unless it is stated. At least half of what there is remains for an outage: otherwise the
/// command would be told to end at the smallest delay.
fn usual_grace(spare: Duration) -> Duration {
    USUAL_GRACE.min(spare / 2)
}

/// How long an outage surely ends no command that has the usual grace, if it loses no lock of the library's
/// within `outage_limit`; `None` if `run` refuses the session timeout.
pub(crate) fn survives(session_timeout: Duration, outage_limit: Duration) -> Option<Duration> {
    spare(session_timeout, outage_limit).map(|spare| spare - usual_grace(spare))
}

/// How long the command has from TERM to KILL. It needs that time also when all is well.
fn grace(client: &Client, job: &Job) -> Result<Duration, Failure> {
    let wanted = job.supervision.grace;
    let (Some(timeout), Some(limit)) = (client.session_timeout(), client.outage_limit()) else {
        return Ok(wanted.unwrap_or(USUAL_GRACE));
    };
    match (job.supervision.on_loss, wanted, spare(timeout, limit)) {
        (OnLoss::Warn, ..) | (OnLoss::Kill, _, Some(_)) => Ok(wanted.unwrap_or(USUAL_GRACE)),
        (OnLoss::Signal(_), None, Some(spare)) => Ok(usual_grace(spare)),
        (OnLoss::Signal(_), Some(grace), Some(spare)) if grace < spare => Ok(grace),
        (_, Some(grace), Some(spare)) => Err(Failure::usage(format!(
            "with a session timeout of {}, the grace must be less than {}, and is {}: the command would be ended \
             without an outage",
            lasting(timeout),
            words::at_least(spare),
            lasting(grace)
        ))),
        (_, _, None) => Err(Failure::usage(format!(
            "a session timeout of {} is too short to end a command in time",
            lasting(timeout)
        ))),
    }
}

/// Runs the command unless this key has its mark, and leaves the mark.
fn once(
    client: &Client,
    held: &Held,
    job: &Job,
    key: &str,
    waiting: &Waiting,
    supervisor: Supervisor<'_>,
    subject: &str,
) -> Result<Exit, Failure> {
    let Some(guard) = held.mutex() else { return Err(Failure::usage("--once needs a plain lock")) };
    // Beside the lock's node: its children are the contenders.
    let marks = Once::builder(client, &job.lock.base, format!("{}.once", job.lock.name))
        .acl(job.acl.clone())
        .build();
    let (mut exit, mut supervisor) = (None, Some(supervisor));
    let outcome = marks.run_holding(guard, key, || {
        let Some(supervisor) = supervisor.take() else { return Ok(()) };
        let ended = supervise(client, held, job, waiting, supervisor)?;
        exit = Some(ended);
        match ended {
            Exit::Command(0) => Ok(()),
            _ => Err(Failure::silent(ended)),
        }
    });
    match (outcome, supervisor) {
        (Ok(OnceOutcome::Done(())), _) => {}
        // A call that holds the lock is told of no other holder.
        (Ok(_), supervisor) => {
            if let Some(supervisor) = supervisor {
                supervisor.manager().not_needed();
            }
            return Ok(Exit::Success);
        }
        (Err(failure), Some(supervisor)) => {
            return not_run(failure, job, waiting, supervisor, subject);
        }
        (Err(failure), None) if exit == Some(Exit::Command(0)) => {
            // After a signal, the client is closed: that is no loss.
            let lost = !held.is_held() && !waiting.is_interrupted();
            let exit = if lost { Exit::LockLost } else { Exit::Failed };
            return Err(Failure::new(exit, failure.message));
        }
        (Err(failure), None) => return exit.ok_or(failure),
    }
    if let Some(age) = job.forget_after {
        if let Err(error) = marks.prune(age) {
            say(subject, &format!("old keys of --once could not be forgotten: {error}"));
        }
    }
    Ok(Exit::Command(0))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Session timeout and what an outage takes from the lease at most, by the library; grace and outage that a
    /// command survives; in milliseconds.
    #[test]
    fn an_outage_has_its_part_of_the_lease_beside_the_grace() {
        for (timeout, limit, grace, outage) in [
            (30_000, 20_765, 2_000, 17_615),
            (30_000, 23_333, 2_000, 20_183),
            (10_000, 4_326, 1_838, 1_838),
            (10_000, 5_555, 2_000, 2_905),
            (4_000, 1_334, 492, 492),
        ] {
            let [timeout, limit] = [timeout, limit].map(Duration::from_millis);
            assert_eq!(
                usual_grace(spare(timeout, limit).unwrap()).as_millis(),
                grace,
                "{timeout:?}"
            );
            assert_eq!(survives(timeout, limit).unwrap().as_millis(), outage, "{timeout:?}");
        }
        assert_eq!(survives(Duration::from_millis(400), Duration::from_millis(150)), None);
    }

    #[test]
    fn a_contender_is_described_in_one_line_and_a_label() {
        let command = ["/opt/my backup.sh".into(), "-x".into()];
        let text = description(&command, Some("of web1")).unwrap();
        assert!(text.contains(" program=my_backup.sh thread=zklock\nlabel=of web1"), "{text}");
        assert!(description(&command, Some("two\nlines")).is_err());
    }
}
