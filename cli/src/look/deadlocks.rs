//! `zklock deadlocks`: holders that wait for each other.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use zklock::{Client, Deadlock, WaitingHolder, Waits};

use super::contender_json_and_kinds::{as_json, why_unlisted};
use crate::args::{Deadlocks, Global};
use crate::exit::{Exit, Failure};
use crate::output::{complain, print, print_json, say};
use crate::words::{Ages, as_arguments, lasting, parent, visible, who};

/// Two looks this far apart tell a deadlock from waits that go on.
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_millis(3_050);

pub(crate) fn deadlocks(global: &Global, options: &Deadlocks) -> Result<Exit, Failure> {
    let base = global.base(options.path.as_deref());
    let client = global.connect()?;
    let Some((waits, found)) = look_for_deadlocks(&client, &base)? else {
        return Err(Failure::new(Exit::Failed, format!("{base} does not exist")));
    };
    let ages = Ages::of_all(&waits.contenders);
    for deadlock in &found {
        let is_read = match global.json {
            true => print_json(&deadlock_as_json(deadlock))?,
            false => print_deadlock(deadlock, ages)?,
        };
        if !is_read {
            break;
        }
    }
    let left_out = say_what_was_left_out(&waits);
    if found.is_empty() && left_out == 0 && !global.json {
        say("", &format!("no deadlock at or below {base}"));
    }
    Ok(match found.iter().map(|one| one.is_certain).max() {
        Some(true) => Exit::No,
        Some(false) => Exit::Found(2),
        None if left_out > 0 => Exit::Found(3),
        None => Exit::Success,
    })
}

/// Looks once, and a second time if the first look shows any; `None` if there is no such node.
pub(crate) fn look_for_deadlocks(
    client: &Client,
    base: &str,
) -> Result<Option<(Waits, Vec<Deadlock>)>, Failure> {
    let Some(first) = client.waits(base)? else { return Ok(None) };
    if first.deadlocks(None).is_empty() {
        return Ok(Some((first, Vec::new())));
    }
    sleep(BETWEEN_LOOKS);
    let Some(second) = client.waits(base)? else { return Ok(None) };
    let found = second.deadlocks(Some(&first));
    Ok(Some((second, found)))
}

/// Says which locks and contenders the look did not see, and returns how many there are.
pub(crate) fn say_what_was_left_out(waits: &Waits) -> usize {
    for (path, reason) in &waits.unlisted {
        complain("", &visible(&format!("{path} {}", why_unlisted(*reason))));
    }
    waits.unlisted.len()
}

fn print_deadlock(deadlock: &Deadlock, ages: Ages) -> Result<bool, Failure> {
    let heading = match deadlock.is_certain {
        true => {
            "DEADLOCK, unless a guard is with another thread, or something else ends one of them:"
        }
        false => {
            "SUSPECTED, as these waits may end by themselves, or be those of different threads:"
        }
    };
    let lines = deadlock.holders.iter().map(|one| format!("  {}", holds_and_waits(one, ages)));
    for line in [heading.to_owned()].into_iter().chain(lines).chain(what_to_do(deadlock)) {
        if !print(&line)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `web1 (pid 4711, sh) holds /locks/a, for 4 min, and waits for /locks/b, queued 3 min 50 s ago`. It has
/// held for long enough to have told since when.
fn holds_and_waits(one: &WaitingHolder, ages: Ages) -> String {
    let held = ages.of(one.holder.held_since()).map(|age| format!(", for {}", lasting(age)));
    let queued = match &one.waiter {
        Some(waiter) => ages.after_comma(waiter),
        None => ", in the process that holds it".to_owned(),
    };
    format!(
        "{} holds {}{}, and waits for {}{queued}",
        who(&one.holder),
        parent(&one.holder),
        held.unwrap_or_else(|| ages.after_comma(&one.holder)),
        one.waits_for
    )
}

fn what_to_do(deadlock: &Deadlock) -> Vec<String> {
    let Some([ask, break_it]) = what_ends(deadlock) else { return Vec::new() };
    vec![
        format!("  to end it, ask the last of them: {ask}"),
        format!("  or, when that does nothing any more: {break_it}"),
    ]
}

/// The commands that end it: the second one when the first does nothing any more. `None` if it is only
/// suspected.
pub(crate) fn what_ends(deadlock: &Deadlock) -> Option<[String; 2]> {
    last(deadlock).map(|last| [format!("zklock ask {last}"), format!("zklock break {last}")])
}

/// The holder whose release ends it and costs the least: the one that has held for the least time. `None` if
/// the deadlock is only suspected.
fn last(deadlock: &Deadlock) -> Option<String> {
    let holders = deadlock.holders.iter().map(|one| &one.holder);
    let last = holders.max_by_key(|one| one.held_since().or(one.since)).map(as_arguments);
    last.filter(|_| deadlock.is_certain)
}

/// The deadlock in one sentence, for a list of findings, with the command that ends it.
pub(crate) fn in_a_sentence(deadlock: &Deadlock, ages: Ages) -> String {
    let next = what_ends(deadlock).map(|[ask, _]| format!(" ({ask})")).unwrap_or_default();
    format!("{}{next}", in_words(deadlock, ages))
}

/// The same without the command.
pub(crate) fn in_words(deadlock: &Deadlock, ages: Ages) -> String {
    let word = if deadlock.is_certain { "deadlock" } else { "suspected deadlock" };
    let all: Vec<String> = deadlock.holders.iter().map(|one| holds_and_waits(one, ages)).collect();
    format!("{word}: {}", all.join(", "))
}

fn deadlock_as_json(deadlock: &Deadlock) -> Value {
    let holders = deadlock.holders.iter().map(|one| {
        json!({
            "lock": parent(&one.holder),
            "holder": as_json(&one.holder),
            "waits_for": one.waits_for,
            "waiter": one.waiter.as_ref().map(as_json),
        })
    });
    json!({ "certain": deadlock.is_certain, "holders": holders.collect::<Vec<_>>() })
}
