//! `zklock ls`: the locks below a path.

use std::time::SystemTime;

use serde_json::json;
use zklock::{Contender, ContenderKind, ListedLock, LockKind, LockList};

use super::contender_json_and_kinds::{
    as_json, kind_and_recipe, lock_kind, permits, warn_of_the_clock, why_unlisted,
};
use crate::args::{Global, Ls};
use crate::exit::{Exit, Failure};
use crate::output::print_table;
use crate::output::{complain, print_json, say};
use crate::words::{Ages, visible, who};

pub(crate) fn ls(global: &Global, options: &Ls) -> Result<Exit, Failure> {
    let base = global.base(options.path.as_deref());
    let Some(list) = global.connect()?.locks(&base)? else {
        return Err(Failure::new(Exit::No, format!("{base} does not exist")));
    };
    if global.json {
        print_list(&list)?;
    } else {
        let rows: Vec<Row> = list.locks.iter().map(Row::from).collect();
        let ages = Ages::of_all(list.locks.iter().filter_map(|lock| lock.first.as_ref()));
        let cells: Vec<Vec<String>> = list
            .locks
            .iter()
            .zip(&rows)
            .map(|(lock, row)| {
                let mut cells = row.cells(ages);
                let held = lock.first.as_ref().and_then(Contender::held_since);
                cells.insert(3, ages.in_short(held));
                cells
            })
            .collect();
        if !cells.is_empty() {
            print_table(
                &["LOCK", "KIND", "HELD BY", "HELD", "QUEUED", "WAITING"],
                &cells,
                &[2, 0],
            )?;
        }
        warn_of_the_clock(ages);
    }
    for (path, reason) in &list.unlisted {
        complain("", &visible(&format!("{path} {}", why_unlisted(*reason))));
    }
    if list.locks.is_empty() && list.unlisted.is_empty() && !global.json {
        say("", &format!("nobody holds or waits for a lock below {base}"));
    }
    Ok(Exit::Success)
}

fn print_list(list: &LockList) -> Result<(), Failure> {
    let locks = list.locks.iter().map(|lock| {
        let (permits, taken) = permits(lock.kind);
        json!({
            "lock": lock.path,
            "kind": lock_kind(lock.kind),
            "holders": lock.holders,
            "waiters": lock.waiters,
            "permits": permits,
            "taken": taken,
            "first": lock.first.as_ref().map(as_json),
        })
    });
    let unlisted = list.unlisted.iter();
    let unlisted =
        unlisted.map(|(path, reason)| json!({ "unlisted": path, "why": why_unlisted(*reason) }));
    for line in locks.chain(unlisted) {
        if !print_json(&line)? {
            break;
        }
    }
    Ok(())
}

/// A lock in a table.
pub(crate) struct Row {
    pub(crate) path: String,
    pub(crate) kind: String,
    pub(crate) held_by: String,
    /// The node of the first holder, if it is known.
    pub(crate) holder: Option<String>,
    /// When the first contender queued, if it is known.
    pub(crate) since: Option<SystemTime>,
    pub(crate) waiters: usize,
}

impl From<&ListedLock> for Row {
    fn from(lock: &ListedLock) -> Row {
        let holder = lock.first.as_ref().filter(|first| first.holds);
        Row {
            path: lock.path.clone(),
            kind: kind_in_words(lock),
            held_by: held_by(lock),
            holder: holder.map(|first| first.path.clone()),
            since: lock.first.as_ref().and_then(|first| first.since),
            waiters: lock.waiters,
        }
    }
}

impl Row {
    pub(crate) fn cells(&self, ages: Ages) -> Vec<String> {
        vec![
            self.path.clone(),
            self.kind.clone(),
            self.held_by.clone(),
            ages.in_short(self.since),
            self.waiters.to_string(),
        ]
    }
}

pub(crate) fn ages(rows: &[Row]) -> Ages {
    Ages::among(rows.iter().map(|row| row.since))
}

/// The kind of a lock; of one that another program's recipe holds, that recipe.
fn kind_in_words(lock: &ListedLock) -> String {
    match &lock.first {
        Some(first) if first.kind == ContenderKind::Other => kind_and_recipe(first),
        _ => lock_kind(lock.kind).to_owned(),
    }
}

/// The holders in a few words.
fn held_by(lock: &ListedLock) -> String {
    match (lock.holders, lock.kind) {
        (_, LockKind::Semaphore { permits, taken }) => format!("{taken} of {permits}"),
        (0, _) => "nobody now".to_owned(),
        (_, LockKind::Room) => {
            let first = lock.first.as_ref().map_or_else(|| "left just now".to_owned(), who);
            format!("first {first}")
        }
        (1, _) => lock.first.as_ref().map_or_else(|| "released just now".to_owned(), who),
        (more, _) => format!("{more} readers"),
    }
}
