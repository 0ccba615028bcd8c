//! What asks holders to release, and what takes a lock away.

use std::io::{IsTerminal, Write, stderr, stdin};

use serde_json::json;
use zklock::Contender;

use crate::contenders_in_words::{
    Ages, as_arguments, held, held_by, is_at, lasting, visible, what_releases, who,
};
use crate::exit::{Exit, Failure};
use crate::look::contender_json_and_kinds::{as_json, is_orphan, lock_at};
use crate::look::wait_until;
use crate::options::{Ask, Break, Global};
use crate::output::{print_json, say};

pub(crate) fn ask(global: &Global, options: &Ask) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let lock = lock_at(global, &lock)?;
    let is_meant = |one: &Contender| options.node.as_ref().is_none_or(|node| is_at(one, node));
    let all = lock.contenders()?.into_iter();
    let found = all.filter(|one| one.holds && is_meant(one));
    // Nobody would read what is asked of those without a session.
    let (deaf, asked): (Vec<Contender>, Vec<Contender>) =
        found.partition(|one| one.maintenance().is_some() || is_orphan(one));
    for one in &deaf {
        say(&options.lock, &why_not_asked(one));
    }
    let mut count = 0;
    for holder in &asked {
        count += usize::from(lock.request_release_of(holder)?);
    }
    if global.json {
        let all: Vec<_> = asked.iter().map(as_json).collect();
        print_json(&json!({ "asked": all }))?;
    }
    if count == 0 {
        if deaf.is_empty() {
            say(&options.lock, "nobody holds it");
        }
        return Ok(Exit::No);
    }
    say(&options.lock, &format!("asked for its release; {}", held_by(&asked)));
    let Some(limit) = options.wait else { return Ok(Exit::Success) };
    let are_gone =
        |now: &[Contender]| now.iter().all(|one| asked.iter().all(|old| old.path != one.path));
    let left = wait_until(&lock, Some(limit), |holders| Ok(are_gone(holders)))?;
    if are_gone(&left) {
        return Ok(Exit::Success);
    }
    let message = format!("not released within {}", lasting(limit));
    Err(Failure::new(Exit::Conflict(124), message))
}

fn why_not_asked(one: &Contender) -> String {
    let next = match one.maintenance() {
        Some(_) => what_releases(one),
        None => format!("zklock break {}", as_arguments(one)),
    };
    format!("{}; that belongs to no session, so nobody can be asked: {next}", held(one))
}

pub(crate) fn break_lock(global: &Global, options: &Break) -> Result<Exit, Failure> {
    let place = global.path(&options.lock)?;
    let lock = lock_at(global, &place)?;
    let all = lock.contenders()?;
    let is_meant = |one: &&Contender| match (&options.session, &options.node) {
        (Some(id), _) => one.session.is_some_and(|session| session.to_string() == *id),
        (None, Some(name)) => is_at(one, name),
        (None, None) => false,
    };
    let found: Vec<&Contender> = all.iter().filter(is_meant).collect();
    let [contender] = found[..] else {
        let message = match found.len() {
            0 => "no contender is like that; see zklock show".to_owned(),
            more => format!(
                "{more} contenders are like that; name one by --node, as zklock --json show does"
            ),
        };
        return Err(Failure::new(Exit::No, message));
    };
    if !options.yes {
        confirm(&options.lock, contender)?;
    }
    let was_there = lock.break_lock(contender)?;
    let what = match (was_there, contender.holds) {
        (false, _) => "had gone by itself",
        (true, true) => "was removed",
        (true, false) if contender.maintenance().is_some() => "was removed",
        // It has lost nothing yet, and goes on waiting.
        (true, false) => "no longer waits; it may queue again, as zklock run does",
    };
    say(&options.lock, &format!("{} {what}", who(contender)));
    Ok(Exit::Success)
}

/// Has the name of the lock typed by a person.
fn confirm(name: &str, contender: &Contender) -> Result<(), Failure> {
    if !stdin().is_terminal() {
        return Err(Failure::usage("nobody can confirm this at a terminal; in a script: --yes"));
    }
    let what = if contender.holds { "holds it" } else { "waits for it" };
    let queued = Ages::of_all([contender]).in_words(contender);
    let queued = queued.map(|text| format!(", {text}")).unwrap_or_default();
    let outcome = match contender.holds {
        true => "may still be at work when the next one gets it",
        false => "may queue again",
    };
    let outcome = match contender.maintenance() {
        Some(_) => "whoever works meanwhile may still be at it when the next one gets the lock",
        None => outcome,
    };
    let text = format!(
        "{} {what}{queued}, and {outcome}.\nType {} to remove it: ",
        who(contender),
        visible(name)
    );
    stderr().write_all(text.as_bytes())?;
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    match line.trim() == name {
        true => Ok(()),
        false => Err(Failure::new(Exit::No, "nothing was removed")),
    }
}
