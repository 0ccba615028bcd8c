//! `zklock check`: one line and an exit code, as monitoring plugins have them.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use serde_json::json;
use zklock::{Client, Contender};

use super::contender_json_and_kinds::lock_on;
use super::deadlocks::{in_a_sentence, look_for_deadlocks};
use super::may_hold_too::{is_named_by_kazoo, why_and_what_to_do};
use super::path_without_contenders::{LeaderNode, NO_SUCH_NODE, PathWithoutContenders};
use crate::args::{Check, Global};
use crate::exit::{Exit, Failure};
use crate::output::{print, print_json};
use crate::words::{Ages, as_arguments, held, lasting, parent, quoted, what_releases, who};

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
    let found = match look(global, options) {
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
    let list = || -> Result<Vec<Vec<Contender>>, zklock::Error> {
        locks.iter().map(|lock| lock_on(&client, lock).contenders()).collect()
    };
    let mut listed = list()?;
    if listed.iter().any(|all| held_too_long(options, all).is_some()) {
        sleep(TOLD);
        listed = list()?;
    }
    for (lock, all) in locks.iter().zip(&listed) {
        match all.is_empty() {
            true => {
                let without = PathWithoutContenders::at(&client, &lock.path)?;
                found.push(without_contenders(options, &lock.path, &without));
            }
            false => in_contenders(options, &lock.path, all, &mut found),
        }
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

/// The one of these for whom that is longest ago, and how long, if it is longer than the most.
fn too_long<'a>(
    of: &[&'a Contender],
    now: Ages,
    since: impl Fn(&Contender) -> Option<SystemTime>,
    most: Option<Duration>,
) -> Option<(&'a Contender, Duration)> {
    let ages = of.iter().filter_map(|one| Some((*one, now.of(since(one))?)));
    let longest = ages.max_by_key(|(_, age)| *age);
    longest.filter(|(_, age)| most.is_some_and(|most| *age > most))
}

/// The holder that has held for too long, and how long; it may not have told yet that it had waited.
fn held_too_long<'a>(options: &Check, all: &'a [Contender]) -> Option<(&'a Contender, Duration)> {
    let each: Vec<&Contender> = all.iter().collect();
    too_long(&each, Ages::of_all(all), Contender::held_since, options.max_held)
}

fn in_contenders(options: &Check, lock: &str, all: &[Contender], found: &mut Vec<Finding>) {
    let now = Ages::of_all(all);
    let (holders, others): (Vec<&Contender>, Vec<&Contender>) =
        all.iter().partition(|one| one.holds);
    let (too, waiters): (Vec<&Contender>, Vec<&Contender>) =
        others.into_iter().partition(|one| one.may_hold_too());
    let maintenance = holders.iter().find(|one| one.maintenance().is_some());
    let before = found.len();
    if let Some((one, age)) = held_too_long(options, all) {
        // It is meant to be so.
        let (state, next) = match one.maintenance() {
            Some(_) => (State::Warning, what_releases(one)),
            None => (State::Critical, format!("zklock ask {}", as_arguments(one))),
        };
        found.push((state, format!("{lock} is {} for {} ({next})", held(one), lasting(age))));
    }
    // Who tells nothing may have waited for most of that time.
    let silent_since = |one: &Contender| one.since.filter(|_| one.held_since().is_none());
    if let Some((one, age)) = too_long(&holders, now, silent_since, options.max_held) {
        let (who, age, next) = (who(one), lasting(age), quoted(parent(one)));
        let text =
            format!("{lock} is held or was waited for by {who} for {age} (zklock show {next})");
        found.push((State::Warning, text));
    }
    if let Some((one, age)) = too_long(&waiters, now, |one| one.since, options.max_waiting) {
        let (who, age) = (who(one), lasting(age));
        let next = format!("zklock watch {} --for 1m", quoted(lock));
        let text = match maintenance {
            Some(hold) => format!("{who} has waited {age} for {lock}, which is {}", held(hold)),
            None => format!("{who} has waited {age} for {lock} (who takes it: {next})"),
        };
        found.push((State::Critical, text));
    }
    for one in too {
        // Its node does not show whether it is set to respect ours.
        let is_certain = options.kazoo_as_it_comes && is_named_by_kazoo(&one.path);
        let state = if is_certain { State::Critical } else { State::Warning };
        found.push((state, format!("{lock}: {}", why_and_what_to_do(one, all))));
    }
    if options.max_waiters.is_some_and(|most| waiters.len() > most) {
        found.push((State::Critical, format!("{} wait for {lock}", waiters.len())));
    }
    if all.iter().any(|one| one.since.is_none()) {
        let text = format!("contenders of {lock} cannot be read: not permitted (READ)");
        found.push((State::Unknown, text));
    }
    if found.len() == before {
        let held_by = match maintenance {
            Some(hold) => held(hold),
            None => format!("{} hold it", holders.len()),
        };
        let text = format!("{lock}: {held_by}, {} wait", waiters.len());
        found.push((State::Ok, text));
    }
}

/// What is to be said of a lock for which nobody contends.
fn without_contenders(options: &Check, lock: &str, without: &PathWithoutContenders) -> Finding {
    let held_for = |node: &LeaderNode| Ages::among([Some(node.since())]).of(Some(node.since()));
    match without {
        PathWithoutContenders::Free => (State::Ok, format!("{lock}: 0 hold it, 0 wait")),
        PathWithoutContenders::NotThere => {
            let state = if options.must_exist { State::Critical } else { State::Ok };
            (state, format!("{lock}: {NO_SUCH_NODE}"))
        }
        PathWithoutContenders::OfALeader(node) => {
            let is_too_long =
                options.max_held.zip(held_for(node)).is_some_and(|(most, age)| age > most);
            let state = if is_too_long { State::Critical } else { State::Ok };
            (state, format!("{lock}: {}", node.in_words()))
        }
    }
}

fn in_waits(client: &Client, base: &str, found: &mut Vec<Finding>) -> Result<(), Failure> {
    let Some((waits, deadlocks)) = look_for_deadlocks(client, base)? else { return Ok(()) };
    let ages = Ages::of_all(&waits.contenders);
    for deadlock in &deadlocks {
        let state = if deadlock.is_certain { State::Critical } else { State::Warning };
        found.push((state, in_a_sentence(deadlock, ages)));
    }
    let left_out: Vec<&str> = waits.unlisted.iter().map(|(path, _)| path.as_str()).collect();
    if !left_out.is_empty() {
        let text = format!("not all could be read below {base}: {}", left_out.join(", "));
        found.push((State::Unknown, text));
    }
    Ok(())
}
