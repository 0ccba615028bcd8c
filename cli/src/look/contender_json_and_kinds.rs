//! How contenders and locks are called and shown.

use std::time::SystemTime;

use humantime::format_rfc3339_millis;
use serde_json::{Value, json};
use zklock::{Client, Contender, ContenderKind, DistributedRwLock, LockKind, UnlistedReason};

use crate::connect::Lock;
use crate::output::complain;
use crate::words::{Ages, lasting, visible};

/// The lock of this path, of whatever kind its contenders are.
///
/// As a read/write lock, because its observers look at all holders; those of a mutex look at the first.
pub(crate) fn lock_on(client: &Client, lock: &Lock) -> DistributedRwLock {
    DistributedRwLock::new(client, &lock.base, &lock.name)
}

/// A contender for programs.
pub(crate) fn as_json(one: &Contender) -> Value {
    json!({
        "node": one.path,
        "holds": one.holds,
        "position": one.position,
        "kind": kind(one.kind),
        "recipe": one.recipe(),
        "may_hold_too": one.may_hold_too(),
        "weight": one.weight,
        "host": one.host,
        "pid": one.process,
        "program": one.program,
        "label": crate::words::note(one),
        "maintenance": one.maintenance().map(|hold| json!({
            "reason": hold.reason,
            "made_by": hold.made_by,
            "asked_for": hold.is_asked_for,
            "ends": hold.ends.map(time),
        })),
        "data": String::from_utf8_lossy(&one.data),
        "session": one.session.map(|id| id.to_string()),
        "queued_since": one.since.map(time),
        "held_since": one.held_since().map(time),
        "patience": one.patience(),
    })
}

fn time(at: SystemTime) -> String {
    format_rfc3339_millis(at).to_string()
}

/// Whether it belongs to no session and is no hold for maintenance, so nothing will remove it. If an ACL
/// hides the node, that is not known.
pub(crate) fn is_orphan(one: &Contender) -> bool {
    one.session.is_none() && one.since.is_some() && one.maintenance().is_none()
}

/// Says that the ages that were printed are too short, if that is known.
pub(crate) fn warn_of_the_clock(ages: Ages) {
    if let Some(behind) = ages.clock_is_behind() {
        let text = format!(
            "this host's clock is at least {} behind the ensemble's, so QUEUED is too short",
            lasting(behind)
        );
        complain("", &text);
    }
}

/// Why locks below a node may be missing in a list.
pub(crate) fn why_unlisted(reason: UnlistedReason) -> String {
    match reason {
        UnlistedReason::NotAuthorized => "cannot be read: not permitted (READ)".to_owned(),
        UnlistedReason::TooLarge => "has more children than can be read at once".to_owned(),
        UnlistedReason::TooMany(count) => {
            format!("has {count} children that were not looked at: there are too many nodes")
        }
        _ => "was not looked at".to_owned(),
    }
}

/// The kind of a contender's node in a word.
pub(crate) fn kind(of: ContenderKind) -> &'static str {
    match of {
        ContenderKind::Mutex => "mutex",
        ContenderKind::Read => "read",
        ContenderKind::Write => "write",
        ContenderKind::Permits => "permits",
        _ => "other",
    }
}

/// The same for people, with the recipe of one that another program has made: `other (latch)`.
pub(crate) fn kind_and_recipe(of: &Contender) -> String {
    match (of.kind, visible(of.recipe())) {
        (ContenderKind::Other, recipe) if !recipe.is_empty() => format!("other ({recipe})"),
        _ => kind(of.kind).to_owned(),
    }
}

/// The kind of a lock in a word.
///
/// An election is a mutex: their nodes look alike.
pub(crate) fn lock_kind(of: LockKind) -> &'static str {
    match of {
        LockKind::Mutex => "mutex",
        LockKind::ReadWrite => "read/write",
        LockKind::Semaphore { .. } => "semaphore",
        LockKind::Room => "room",
        _ => "other",
    }
}

/// How many permits a semaphore has, and how many of them are taken.
pub(crate) fn permits(of: LockKind) -> (Option<u32>, Option<u32>) {
    match of {
        LockKind::Semaphore { permits, taken } => (Some(permits), Some(taken)),
        _ => (None, None),
    }
}
