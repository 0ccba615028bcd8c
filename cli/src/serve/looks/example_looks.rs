//! Looks for the tests of what follows from them.

use std::time::{Duration, SystemTime};

use zklock::LockKind;

use super::seen_in_one_look::{Seen, SeenContender, SeenDeadlock, SeenLock};

/// So many seconds after some time.
pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

/// A look at that time.
pub(crate) fn look(seconds: u64, locks: impl IntoIterator<Item = SeenLock>) -> Seen {
    Seen { locks: locks.into_iter().collect(), ..Seen::nothing(at(seconds)) }
}

/// A mutex with these holders and waiters; each number is the second in which it queued, too.
pub(crate) fn lock(path: &str, holders: &[&str], waiters: &[&str]) -> SeenLock {
    let contender = |number: &&str, holds| SeenContender {
        node: format!("{path}/{number}"),
        sequence: number.parse().unwrap(),
        holds,
        who: (*number).to_owned(),
        host: None,
        pid: None,
        program: None,
        thread: None,
        label: None,
        maintenance: None,
        queued_at: Some(at(number.parse().unwrap())),
        held_since: None,
    };
    let holders = holders.iter().map(|one| contender(one, true));
    let waiters = waiters.iter().map(|one| contender(one, false));
    let contenders = holders.chain(waiters).collect();
    SeenLock { path: path.to_owned(), kind: LockKind::Mutex, contenders }
}

/// The first holders of these locks wait for each other.
pub(crate) fn deadlock(is_certain: bool, locks: &[&str]) -> SeenDeadlock {
    SeenDeadlock {
        is_certain,
        text: "a deadlock".to_owned(),
        locks: locks.iter().map(|one| (*one).to_owned()).collect(),
        nodes: locks.iter().map(|one| format!("{one}/1")).collect(),
        commands: vec!["zklock ask".to_owned()],
    }
}
