//! `zklock check`: one line and an exit code, as monitoring plugins have them.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use serde_json::json;
use zklock::{Client, Contender};

use super::deadlocks::{holds_and_waits, look_for_deadlocks};
use super::shown::lock_on;
use crate::exit::{Exit, Failure};
use crate::options::{Check, Global};
use crate::output::{print, print_json};
use crate::words::{Ages, lasting, number, parent, quoted, who};

/// In the order of how bad it is, but for what is not known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Ok,
    Warning,
    Unknown,
    Critical,
}

/// What was found, in words.
type Finding = (State, String);

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "OK",
            State::Warning => "WARNING",
            State::Critical => "CRITICAL",
            State::Unknown => "UNKNOWN",
        }
    }

    fn exit(self) -> Exit {
        match self {
            State::Ok => Exit::Success,
            State::Warning => Exit::Found(1),
            State::Critical => Exit::Found(2),
            State::Unknown => Exit::Found(3),
        }
    }
}

/// When a holder has held for so long, it has told since when, if it had waited.
const TOLD: Duration = Duration::from_secs(3);

/// Never fails, but for wrong usage: what keeps it from looking is the state `UNKNOWN`.
pub(crate) fn check(global: &Global, options: &Check) -> Result<Exit, Failure> {
    let mut looked = look(global, options);
    let is_bad = |found: &Vec<Finding>| found.iter().any(|(state, _)| *state == State::Critical);
    if options.max_held.is_some() && looked.as_ref().is_ok_and(is_bad) {
        sleep(TOLD);
        looked = look(global, options);
    }
    let found = match looked {
        Err(failure) if failure.exit == Exit::Usage => return Err(failure),
        Err(failure) => vec![(State::Unknown, failure.message)],
        Ok(found) => found,
    };
    let worst = found.iter().map(|(state, _)| *state).max().unwrap_or(State::Ok);
    let said = found.iter().filter(|(state, _)| *state == worst || *state > State::Ok);
    let text = said.map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("; ");
    match global.json {
        true => print_json(&json!({ "state": worst.word(), "text": text }))?,
        false => print(&format!("ZKLOCK {} - {}", worst.word(), text.replace(['\n', '|'], " ")))?,
    };
    Ok(worst.exit())
}

fn look(global: &Global, options: &Check) -> Result<Vec<Finding>, Failure> {
    let locks =
        options.locks.iter().map(|lock| global.path(lock)).collect::<Result<Vec<_>, _>>()?;
    let client = global.connect()?;
    let mut found = Vec::new();
    let mut bases: Vec<&str> = Vec::new();
    for lock in &locks {
        let all = lock_on(&client, lock).contenders()?;
        in_contenders(options, &lock.path, &all, &mut found);
        if !bases.contains(&lock.base.as_str()) {
            bases.push(&lock.base);
        }
    }
    if options.no_deadlock {
        for base in bases {
            in_waits(&client, base, &mut found)?;
        }
    }
    Ok(found)
}

fn in_contenders<'a>(options: &Check, lock: &str, all: &'a [Contender], found: &mut Vec<Finding>) {
    let now = Ages::of_all(all);
    let age = |since: Option<SystemTime>| since.and_then(|since| now.of(Some(since)));
    let (holders, waiters): (Vec<&Contender>, Vec<&Contender>) =
        all.iter().partition(|one| one.holds);
    let before = found.len();
    let longest = |of: &[&'a Contender], since: fn(&Contender) -> Option<SystemTime>| {
        let ages = of.iter().filter_map(|one| Some((*one, age(since(one))?)));
        ages.max_by_key(|(_, age)| *age)
    };
    let held = longest(&holders, Contender::held_since);
    let silent = longest(&holders, |one| one.since.filter(|_| one.held_since().is_none()));
    fn ask(one: &Contender) -> String {
        format!("ask {} --node {}", quoted(parent(one)), number(one))
    }
    fn show(one: &Contender) -> String {
        format!("show {}", quoted(parent(one)))
    }
    // Who tells nothing may have waited for most of that time.
    let known = held.map(|(one, age)| (State::Critical, "is held", ask as fn(&_) -> _, one, age));
    let unknown = silent.map(|(one, age)| {
        (State::Warning, "is held or was waited for", show as fn(&_) -> _, one, age)
    });
    for (state, what, next, one, age) in known.into_iter().chain(unknown) {
        if options.max_held.is_some_and(|most| age > most) {
            let (who, age) = (who(one), lasting(age));
            let text = format!("{lock} {what} by {who} for {age} (zklock {})", next(one));
            found.push((state, text));
        }
    }
    if let (Some(most), Some((one, age))) =
        (options.max_waiting, longest(&waiters, |one| one.since))
    {
        if age > most {
            let text = format!("{} has waited {} for {lock}", who(one), lasting(age));
            found.push((State::Critical, text));
        }
    }
    if options.max_waiters.is_some_and(|most| waiters.len() > most) {
        found.push((State::Critical, format!("{} wait for {lock}", waiters.len())));
    }
    if all.iter().any(|one| one.since.is_none()) {
        let text = format!("contenders of {lock} cannot be read: not permitted (READ)");
        found.push((State::Unknown, text));
    }
    if found.len() == before {
        let text = format!("{lock}: {} hold it, {} wait", holders.len(), waiters.len());
        found.push((State::Ok, text));
    }
}

fn in_waits(client: &Client, base: &str, found: &mut Vec<Finding>) -> Result<(), Failure> {
    let Some((waits, deadlocks)) = look_for_deadlocks(client, base)? else { return Ok(()) };
    let ages = Ages::of_all(&waits.contenders);
    for deadlock in &deadlocks {
        let (state, word) = match deadlock.is_certain {
            true => (State::Critical, "deadlock"),
            false => (State::Warning, "suspected deadlock"),
        };
        let all: Vec<String> =
            deadlock.holders.iter().map(|one| holds_and_waits(one, ages)).collect();
        found.push((state, format!("{word}: {}", all.join(", "))));
    }
    let left_out: Vec<&str> = waits.unlisted.iter().map(|(path, _)| path.as_str()).collect();
    if !left_out.is_empty() {
        let text = format!("not all could be read below {base}: {}", left_out.join(", "));
        found.push((State::Unknown, text));
    }
    Ok(())
}
