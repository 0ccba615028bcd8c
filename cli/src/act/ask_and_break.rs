//! What asks holders to release, and what takes a lock away.

use std::io::{IsTerminal, Write, stderr, stdin};

use serde_json::json;
use zklock::znode::ZnodeStat;
use zklock::{Client, Contender, Znode};

use crate::args::{Ask, Break, Global};
use crate::connect::Lock;
use crate::exit::{Exit, Failure};
use crate::look::wait_until;
use crate::look::{LeaderNode, PathWithoutContenders};
use crate::look::{as_json, is_orphan, lock_on};
use crate::output::{print_json, say};
use crate::words::{
    Ages, as_arguments, held, held_by, is_at, lasting, node, visible, what_releases, who,
};

/// The numbers that servers append to names have so many digits.
const DIGITS: usize = 10;

pub(crate) fn ask(global: &Global, options: &Ask) -> Result<Exit, Failure> {
    let place = global.path(&options.lock)?;
    let client = global.connect()?;
    let lock = lock_on(&client, &place);
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
            let without = PathWithoutContenders::at(&client, &place.path)?;
            let leader = without.leader_node().map(LeaderNode::in_words);
            say(&options.lock, leader.as_deref().unwrap_or("nobody holds it"));
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
    let client = global.connect()?;
    let lock = lock_on(&client, &place);
    let all = lock.contenders()?;
    let is_meant = |one: &&Contender| match (&options.session, &options.node) {
        (Some(id), _) => one.session.is_some_and(|session| session.to_string() == *id),
        (None, Some(name)) => is_at(one, name),
        (None, None) => false,
    };
    let found: Vec<&Contender> = all.iter().filter(is_meant).collect();
    let [contender] = found[..] else {
        let name = options.node.as_deref().filter(|_| found.is_empty());
        if let Some(node) =
            name.map(|name| no_contender(&client, &place, name)).transpose()?.flatten()
        {
            return delete_no_contender(options, &node);
        }
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

/// A child with a number that belongs to no session and so contends for nothing, and its version.
fn no_contender(
    client: &Client,
    lock: &Lock,
    name: &str,
) -> Result<Option<(Znode, ZnodeStat)>, Failure> {
    let names = client.znode(&lock.path).children()?.unwrap_or_default();
    let path = |child: &str| format!("{}/{child}", lock.path);
    let number = |child: &str| child.get(child.len().saturating_sub(DIGITS)..).map(str::to_owned);
    let has_number = |child: &str| {
        number(child).is_some_and(|number| number.len() == DIGITS && is_all_digits(&number))
    };
    let is_meant = |child: &&String| {
        has_number(child)
            && (**child == name
                || path(child) == name
                || number(child).is_some_and(|one| one == name))
    };
    let found: Vec<&String> = names.iter().filter(is_meant).collect();
    let [child] = found[..] else { return Ok(None) };
    let node = client.znode(path(child));
    let stat = node.stat()?;
    Ok(stat.filter(|stat| stat.owner.is_none()).map(|stat| (node, stat)))
}

fn is_all_digits(text: &str) -> bool {
    text.bytes().all(|one| one.is_ascii_digit())
}

/// Deletes such a node, if that is forced and confirmed.
fn delete_no_contender(
    options: &Break,
    (node, stat): &(Znode, ZnodeStat),
) -> Result<Exit, Failure> {
    let what = format!(
        "{} belongs to no session and has no recipe's name, so nobody waits for it, and it may be anything",
        visible(node.path())
    );
    if !options.force {
        return Err(Failure::usage(format!("{what}: it is deleted only with --force")));
    }
    if !options.yes {
        typed(&options.lock, &what)?;
    }
    let text = match node.delete_if_unchanged(stat.version)? {
        true => "was deleted",
        false => "was not deleted: it has changed, or is gone",
    };
    say(&options.lock, &format!("{} {text}", visible(node.path())));
    Ok(Exit::Success)
}

/// Has the name of the lock typed by a person, who is told whose node it is.
fn confirm(name: &str, contender: &Contender) -> Result<(), Failure> {
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
    let session = match contender.session {
        Some(session) => format!("its session is {session}"),
        None => "it belongs to no session".to_owned(),
    };
    let node = visible(node(contender));
    let text = format!("{} {what}{queued}, and {outcome}.\n{node}: {session}", who(contender));
    typed(name, &text)
}

/// Has it typed after this text.
fn typed(name: &str, what: &str) -> Result<(), Failure> {
    if !stdin().is_terminal() {
        return Err(Failure::usage("nobody can confirm this at a terminal; in a script: --yes"));
    }
    let text = format!("{what}.\nType {} to remove it: ", visible(name));
    stderr().write_all(text.as_bytes())?;
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    match line.trim() == name {
        true => Ok(()),
        false => Err(Failure::new(Exit::No, "nothing was removed")),
    }
}
