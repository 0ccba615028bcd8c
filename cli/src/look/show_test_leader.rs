//! `zklock show`, `test` and `leader`: one lock, once.

use serde_json::json;
use zklock::{Contender, ContenderKind, LeaderElection, LockKind};

use super::contender_json_and_kinds::{
    as_json, is_orphan, kind, lock_at, lock_kind, permits, warn_of_the_clock,
};
use crate::contenders_in_words::{Ages, held, held_by, node, number, quoted, who};
use crate::exit::{Exit, Failure};
use crate::options::{Global, OneLock};
use crate::output::{complain, print, print_json, say};
use crate::table::print_table;

pub(crate) fn show(global: &Global, options: &OneLock) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let looked_at = lock_at(global, &lock)?;
    let all = looked_at.contenders()?;
    let room = those_who_wait(looked_at.waiting_room()?, &all);
    if global.json {
        let [contenders, waiting_room] =
            [&all, &room].map(|some| some.iter().map(as_json).collect::<Vec<_>>());
        let kind = LockKind::of(&all);
        let (permits, taken) = kind.map_or((None, None), permits);
        print_json(&json!({
            "lock": lock.path,
            "kind": kind.map(lock_kind),
            "permits": permits,
            "taken": taken,
            "contenders": contenders,
            "waiting_room": waiting_room,
        }))?;
        return Ok(Exit::Success);
    }
    let ages = Ages::of_all(&all);
    let rows: Vec<Vec<String>> = all.iter().chain(&room).map(|one| row(one, ages)).collect();
    let headings = ["STATE", "KIND", "WHO", "HELD", "QUEUED", "SESSION", "NODE"];
    let _ = print(&heading(&lock.path, &all, &room))?
        && (rows.is_empty() || print_table(&headings, &rows, &[2])?);
    warn_of_the_clock(ages);
    for one in all.iter().filter(|one| is_orphan(one)) {
        complain(
            &options.lock,
            &format!(
                "warning: {} belongs to no session, so nothing will remove it: zklock break {} --node {0}",
                node(one),
                quoted(&options.lock)
            ),
        );
    }
    Ok(Exit::Success)
}

/// The members of the room without those who contend for the lock already, and are in both.
fn those_who_wait(mut room: Vec<Contender>, all: &[Contender]) -> Vec<Contender> {
    let who = |one: &Contender| (one.session, one.label());
    let mut contend: Vec<_> = all.iter().map(who).collect();
    room.retain(|one| match contend.iter().position(|other| *other == who(one)) {
        Some(place) => {
            contend.swap_remove(place);
            false
        }
        None => true,
    });
    room
}

fn heading(path: &str, all: &[Contender], room: &[Contender]) -> String {
    let room = match room.len() {
        0 => String::new(),
        count => format!(", {count} in the waiting room"),
    };
    let Some(kind) = LockKind::of(all) else { return format!("{path}  free{room}") };
    let taken = match kind {
        LockKind::Semaphore { permits, taken } => format!(", {taken} of {permits} permits taken"),
        _ => String::new(),
    };
    let holders = all.iter().filter(|one| one.holds).count();
    let waiters = all.len() - holders;
    let held = match all.iter().find(|one| one.holds && one.maintenance().is_some()) {
        Some(hold) => format!("{};", held(hold)),
        None => format!("held by {holders},"),
    };
    format!("{path}  {}{taken}: {held} waited for by {waiters}{room}", lock_kind(kind))
}

fn row(one: &Contender, ages: Ages) -> Vec<String> {
    vec![
        match (one.holds, one.patience()) {
            (true, None) => "holds".to_owned(),
            (false, None) => format!("behind {}", one.position),
            (_, Some(patience)) => format!("in the room ({patience})"),
        },
        match (one.kind, one.weight) {
            (ContenderKind::Permits, 1) => "1 permit".to_owned(),
            (ContenderKind::Permits, more) => format!("{more} permits"),
            _ if one.maintenance().is_some() => "maintenance".to_owned(),
            (other, _) => kind(other).to_owned(),
        },
        who(one),
        ages.in_short(one.held_since()),
        ages.in_short(one.since),
        one.session.map(|id| id.to_string()).unwrap_or_default(),
        number(one),
    ]
}

pub(crate) fn test(global: &Global, options: &OneLock) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let all = lock_at(global, &lock)?.contenders()?;
    let is_held = all.iter().any(|one| one.holds);
    if global.json {
        print_json(&json!({ "lock": lock.path, "held": is_held }))?;
    } else if global.verbose > 0 {
        say(&options.lock, &if is_held { held_by(&all) } else { "free".to_owned() });
    }
    Ok(if is_held { Exit::Success } else { Exit::No })
}

pub(crate) fn leader(global: &Global, options: &OneLock) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let election = LeaderElection::new(&global.connect()?, &lock.base, &lock.name);
    let Some(leader) = election.leader()? else { return Ok(Exit::No) };
    match global.json {
        true => print_json(&json!({
            "election": lock.path,
            "leader": String::from_utf8_lossy(&leader.data),
            "node": leader.path,
            "session": leader.session.map(|id| id.to_string()),
        })),
        false => print(&leader.label()),
    }?;
    Ok(Exit::Success)
}
