//! `zklock show`, `test` and `leader`: one lock, once.

use serde_json::json;
use zklock::{Contender, LeaderElection};

use super::{as_json, kind, lock_at};
use crate::exit::{Exit, Failure};
use crate::options::{Global, OneLock};
use crate::table::print_table;
use crate::words::{complain, held_by, lasting, node, print, print_raw, say, who};

pub(crate) fn show(global: &Global, options: &OneLock) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let all = lock_at(global, &lock)?.latest_contenders()?;
    if global.json {
        let contenders: Vec<_> = all.iter().map(as_json).collect();
        let _ = print_raw(&json!({ "lock": lock.path, "contenders": contenders }).to_string());
        return Ok(Exit::Success);
    }
    if all.is_empty() {
        let _ = print(&format!("{}  free", lock.path));
        return Ok(Exit::Success);
    }
    let holders = all.iter().filter(|one| one.holds).count();
    let heading =
        format!("{}  held by {holders}, waited for by {}", lock.path, all.len() - holders);
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let headings = ["#", "STATE", "KIND", "WHO", "SINCE", "SESSION", "NODE"];
    let _ = print(&heading) && print_table(&headings, &rows, 6);
    for one in all.iter().filter(|one| one.session.is_none() && one.since.is_some()) {
        complain(
            &options.lock,
            &format!(
                "warning: {} belongs to no session, so nothing will remove it: zklock break {} --node {0}",
                node(one),
                options.lock
            ),
        );
    }
    Ok(Exit::Success)
}

fn row(one: &Contender) -> Vec<String> {
    vec![
        (one.position + 1).to_string(),
        if one.holds { "holds" } else { "waits" }.to_owned(),
        match one.weight {
            1 => kind(one.kind).to_owned(),
            weight => format!("{weight} {}", kind(one.kind)),
        },
        who(one),
        one.age().map(lasting).unwrap_or_default(),
        one.session.map(|id| id.to_string()).unwrap_or_default(),
        node(one).to_owned(),
    ]
}

pub(crate) fn test(global: &Global, options: &OneLock) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let all = lock_at(global, &lock)?.latest_contenders()?;
    let is_held = all.iter().any(|one| one.holds);
    if global.json {
        let _ = print_raw(&json!({ "lock": lock.path, "held": is_held }).to_string());
    } else if global.verbose > 0 {
        say(&options.lock, &if is_held { held_by(&all) } else { "free".to_owned() });
    }
    Ok(if is_held { Exit::Success } else { Exit::No })
}

pub(crate) fn leader(global: &Global, options: &OneLock) -> Result<Exit, Failure> {
    let lock = global.path(&options.lock)?;
    let election = LeaderElection::new(&global.connect()?, &lock.base, &lock.name);
    let Some(leader) = election.latest_leader()? else { return Ok(Exit::No) };
    let _ = match global.json {
        true => print_raw(
            &json!({
                "election": lock.path,
                "leader": leader.id(),
                "node": leader.path,
                "session": leader.session.map(|id| id.to_string()),
            })
            .to_string(),
        ),
        false => print(leader.id().lines().next().unwrap_or_default()),
    };
    Ok(Exit::Success)
}
