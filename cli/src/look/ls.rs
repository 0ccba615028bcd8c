//! `zklock ls`: the locks below a path.

use serde_json::json;
use zklock::{ListedLock, LockKind};

use super::{as_json, lock_kind, permits, queued};
use crate::exit::{Exit, Failure};
use crate::options::{Global, Ls};
use crate::table::print_table;
use crate::words::{print_raw, say, who};

pub(crate) fn ls(global: &Global, options: &Ls) -> Result<Exit, Failure> {
    let base = global.base(options.path.as_deref());
    let locks = global.connect()?.locks(&base)?;
    if global.json {
        for lock in &locks {
            let (permits, taken) = permits(lock.kind);
            let line = json!({
                "lock": lock.path,
                "kind": lock_kind(lock.kind),
                "holders": lock.holders,
                "waiters": lock.waiters,
                "permits": permits,
                "taken": taken,
                "first": lock.first.as_ref().map(as_json),
            });
            if !print_raw(&line.to_string()) {
                break;
            }
        }
        return Ok(Exit::Success);
    }
    if locks.is_empty() {
        say("", &format!("nobody holds or waits for a lock below {base}"));
        return Ok(Exit::Success);
    }
    let rows: Vec<Vec<String>> = locks.iter().map(row).collect();
    let _ = print_table(&["LOCK", "KIND", "HELD BY", "QUEUED", "WAITING"], &rows, &[2, 0]);
    Ok(Exit::Success)
}

/// The cells of a table that `ls` and `top` have in common.
pub(super) fn row(lock: &ListedLock) -> Vec<String> {
    vec![
        lock.path.clone(),
        lock_kind(lock.kind).to_owned(),
        held_by(lock),
        queued(lock.first.as_ref()),
        lock.waiters.to_string(),
    ]
}

/// The holders in a few words.
fn held_by(lock: &ListedLock) -> String {
    match (lock.holders, lock.kind) {
        (_, LockKind::Semaphore { permits, taken }) => format!("{taken} of {permits}"),
        (0, _) => "nobody now".to_owned(),
        (1, _) => lock.first.as_ref().map(who).unwrap_or_default(),
        (more, _) => format!("{more} readers"),
    }
}
