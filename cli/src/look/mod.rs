//! What shows locks and changes nothing.

mod doctor;
mod ls;
mod one_lock;
mod top;
mod watch;

use serde_json::{Value, json};
use zklock::{Contender, ContenderKind, DistributedLock};

pub(crate) use self::doctor::doctor;
pub(crate) use self::ls::ls;
pub(crate) use self::one_lock::{leader, show, test};
pub(crate) use self::top::top;
pub(crate) use self::watch::{wait, watch};
use crate::connect::Lock;
use crate::exit::Failure;
use crate::options::Global;

/// The lock of this path, of whatever kind its contenders are.
pub(crate) fn lock_at(global: &Global, lock: &Lock) -> Result<DistributedLock, Failure> {
    Ok(DistributedLock::new(&global.connect()?, &lock.base, &lock.name))
}

/// A contender for programs.
pub(crate) fn as_json(one: &Contender) -> Value {
    json!({
        "node": one.path,
        "holds": one.holds,
        "position": one.position,
        "kind": kind(one.kind),
        "weight": one.weight,
        "host": one.host(),
        "pid": one.process(),
        "program": one.program(),
        "label": crate::words::note(one),
        "data": String::from_utf8_lossy(&one.data),
        "session": one.session.map(|id| id.to_string()),
        "age_ms": one.age().map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
    })
}

/// The kind of a contender in a word.
pub(crate) fn kind(of: ContenderKind) -> &'static str {
    match of {
        ContenderKind::Mutex => "mutex",
        ContenderKind::Read => "read",
        ContenderKind::Write => "write",
        ContenderKind::Permits => "permits",
        _ => "other",
    }
}
