//! `zklock show`, `test` and `leader`: one lock, once.

use serde_json::{Value, json};
use zklock::{Client, Contender, ContenderKind, LeaderElection, LockKind};

use super::contender_json_and_kinds::{
    as_json, is_orphan, kind_and_recipe, lock_kind, lock_on, permits, warn_of_the_clock,
};
use super::path_without_contenders::{NO_SUCH_NODE, PathWithoutContenders};
use crate::args::{Global, OneLock, Test};
use crate::exit::{Exit, Failure};
use crate::output::print_table;
use crate::output::{complain, print, print_json, say};
use crate::words::{Ages, held, held_by, node, number, quoted, who};

pub(crate) fn show(global: &Global, options: &OneLock) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let client = global.connect()?;
    let looked_at = lock_on(&client, &lock);
    let all = looked_at.contenders()?;
    let room = those_who_wait(looked_at.waiting_room()?, &all);
    let without = without_contenders(&client, &lock.path, &all)?;
    if global.json {
        let [contenders, waiting_room] =
            [&all, &room].map(|some| some.iter().map(as_json).collect::<Vec<_>>());
        let kind = LockKind::of(&all);
        let (permits, taken) = kind.map_or((None, None), permits);
        print_json(&json!({
            "lock": lock.path,
            "exists": is_there(without.as_ref()),
            "leader_node": leader_node(without.as_ref()),
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
    let _ = print(&heading(&lock.path, &all, without.as_ref(), &room))?
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

/// What is at the path, if nobody contends there.
fn without_contenders(
    client: &Client,
    path: &str,
    all: &[Contender],
) -> Result<Option<PathWithoutContenders>, Failure> {
    all.is_empty().then(|| PathWithoutContenders::at(client, path)).transpose()
}

fn is_there(without: Option<&PathWithoutContenders>) -> bool {
    without.is_none_or(PathWithoutContenders::is_there)
}

fn leader_node(without: Option<&PathWithoutContenders>) -> Option<Value> {
    Some(without?.leader_node()?.as_json())
}

fn heading(
    path: &str,
    all: &[Contender],
    without: Option<&PathWithoutContenders>,
    room: &[Contender],
) -> String {
    let room = match room.len() {
        0 => String::new(),
        count => format!(", {count} in the waiting room"),
    };
    let Some(kind) = LockKind::of(all) else {
        let what = without.map_or_else(|| "free".to_owned(), PathWithoutContenders::in_words);
        return format!("{path}  {what}{room}");
    };
    let taken = match kind {
        LockKind::Semaphore { permits, taken } => format!(", {taken} of {permits} permits taken"),
        _ => String::new(),
    };
    let holders = all.iter().filter(|one| one.holds).count();
    let too = all.iter().filter(|one| one.may_hold_too()).count();
    let waiters = all.len() - holders - too;
    let held = match all.iter().find(|one| one.holds && one.maintenance().is_some()) {
        Some(hold) => format!("{};", held(hold)),
        None => format!("held by {holders},"),
    };
    let too = if too == 0 { String::new() } else { format!(", {too} may hold it too") };
    format!("{path}  {}{taken}: {held} waited for by {waiters}{too}{room}", lock_kind(kind))
}

fn row(one: &Contender, ages: Ages) -> Vec<String> {
    vec![
        match (one.holds, one.patience()) {
            (true, None) => "holds".to_owned(),
            (false, None) if one.may_hold_too() => "may hold".to_owned(),
            (false, None) => format!("behind {}", one.position),
            (_, Some(patience)) => format!("in the room ({patience})"),
        },
        match (one.kind, one.weight) {
            (ContenderKind::Permits, 1) => "1 permit".to_owned(),
            (ContenderKind::Permits, more) => format!("{more} permits"),
            _ if one.maintenance().is_some() => "maintenance".to_owned(),
            _ => kind_and_recipe(one),
        },
        who(one),
        ages.in_short(one.held_since()),
        ages.in_short(one.since),
        one.session.map(|id| id.to_string()).unwrap_or_default(),
        number(one),
    ]
}

pub(crate) fn test(global: &Global, options: &Test) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let client = global.connect()?;
    let all = lock_on(&client, &lock).contenders()?;
    let without = without_contenders(&client, &lock.path, &all)?;
    let (is_there, leader_node) = (is_there(without.as_ref()), leader_node(without.as_ref()));
    if !is_there && options.must_exist {
        return Err(Failure::new(Exit::Failed, NO_SUCH_NODE));
    }
    let is_held = all.iter().any(|one| one.holds) || leader_node.is_some();
    if global.json {
        print_json(&json!({
            "lock": lock.path,
            "held": is_held,
            "exists": is_there,
            "leader_node": leader_node,
        }))?;
    } else if global.verbose > 0 || !is_there {
        let text = match &without {
            Some(without) => without.in_words(),
            None if is_held => held_by(&all),
            None => "free".to_owned(),
        };
        say(&options.lock, &text);
    }
    Ok(if is_held { Exit::Success } else { Exit::No })
}

pub(crate) fn leader(global: &Global, options: &OneLock) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let client = global.connect()?;
    let election = LeaderElection::new(&client, &lock.base, &lock.name);
    let Some(leader) = election.leader()? else {
        return one_without_a_queue(
            global,
            &lock.path,
            &PathWithoutContenders::at(&client, &lock.path)?,
        );
    };
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

/// Prints the leader of an election by one ephemeral node, if that is there.
fn one_without_a_queue(
    global: &Global,
    path: &str,
    without: &PathWithoutContenders,
) -> Result<Exit, Failure> {
    let Some(node) = without.leader_node() else { return Ok(Exit::No) };
    match global.json {
        true => print_json(&json!({
            "election": path,
            "leader": node.data(),
            "node": node.path,
            "session": node.session.to_string(),
        })),
        false => print(&node.label()),
    }?;
    Ok(Exit::Success)
}
