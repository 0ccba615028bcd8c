//! `zklock ls`: the locks below a path.

use serde_json::json;
use zklock::{ListedLock, LockKind};

use super::as_json;
use crate::exit::{Exit, Failure};
use crate::options::{Global, Ls};
use crate::table::print_table;
use crate::words::{lasting, print_raw, say, who};

pub(crate) fn ls(global: &Global, options: &Ls) -> Result<Exit, Failure> {
    let base = global.base(options.path.as_deref());
    let locks = global.connect()?.locks(&base)?;
    if global.json {
        for lock in &locks {
            let (permits, taken) = match lock.kind {
                LockKind::Semaphore { permits, taken } => (Some(permits), Some(taken)),
                _ => (None, None),
            };
            let line = json!({
                "lock": lock.path,
                "kind": kind(lock.kind),
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
    let _ = print_table(&["LOCK", "KIND", "HELD BY", "SINCE", "WAITING"], &rows, 2);
    Ok(Exit::Success)
}

fn row(lock: &ListedLock) -> Vec<String> {
    let since = lock.first.as_ref().and_then(|first| first.age()).map(lasting).unwrap_or_default();
    vec![lock.path.clone(), kind(lock.kind), held_by(lock), since, lock.waiters.to_string()]
}

/// The holders in a few words.
pub(super) fn held_by(lock: &ListedLock) -> String {
    match (lock.holders, lock.kind) {
        (_, LockKind::Semaphore { permits, taken }) => format!("{taken} of {permits}"),
        (0, _) => "nobody now".to_owned(),
        (1, _) => lock.first.as_ref().map(who).unwrap_or_default(),
        (more, _) => format!("{more} readers"),
    }
}

pub(super) fn kind(of: LockKind) -> String {
    match of {
        LockKind::Mutex => "mutex".to_owned(),
        LockKind::ReadWrite => "read/write".to_owned(),
        LockKind::Semaphore { .. } => "semaphore".to_owned(),
        _ => "other".to_owned(),
    }
}
