//! What the doctor finds at all locks below a path.

use std::collections::HashSet;
use std::thread;
use std::time::SystemTime;

use zklock::Client;

use super::findings::{Findings, Level, joined};
use super::one_lock::look_at_lock;
use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::look::why_unlisted;
use crate::look::{in_a_sentence, look_for_deadlocks};
use crate::words::Ages;

/// So many locks are looked at together.
const AT_ONCE: usize = 16;

/// Says what is wrong with them, and in one line how many there are.
pub(crate) fn look_at_all(
    global: &Global,
    client: &Client,
    base: &str,
    now: SystemTime,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let Some(list) = client.locks(base)? else {
        return Err(Failure::new(Exit::No, format!("{base} does not exist")));
    };
    let waiters: usize = list.locks.iter().map(|lock| lock.waiters).sum();
    let text = format!("{} locks, {waiters} contenders wait", list.locks.len());
    findings.add(Level::Ok, base, &text);
    for (path, reason) in &list.unlisted {
        let text = format!("it {}", why_unlisted(*reason));
        findings.add(Level::Warning, path, &text);
    }
    // The nodes above locks.
    let mut parents = HashSet::new();
    for lock in &list.locks {
        let mut rest = lock.path.as_str();
        while let Some((parent, _)) = rest.rsplit_once('/').filter(|_| parents.insert(rest)) {
            rest = parent;
        }
    }
    let look = |path: &str| {
        let has_locks = |name: &str| parents.contains(format!("{path}/{name}").as_str());
        look_at_lock(global, client, &global.path(path)?, now, has_locks)
    };
    for locks in list.locks.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let looks: Vec<_> = locks.iter().map(|one| scope.spawn(|| look(&one.path))).collect();
            for (lock, look) in locks.iter().zip(looks) {
                match joined(look) {
                    Ok(found) => {
                        for (level, text) in found.iter().filter(|(level, _)| *level > Level::Ok) {
                            findings.add(*level, &lock.path, text);
                        }
                    }
                    Err(failure) if failure.exit == Exit::NotPermitted => {
                        findings.add(Level::Warning, &lock.path, &failure.message);
                    }
                    Err(failure) => return Err(failure),
                }
            }
            Ok(())
        })?;
    }
    if let Some((waits, deadlocks)) = look_for_deadlocks(client, base)? {
        for (path, reason) in waits.unlisted.iter().filter(|one| !list.unlisted.contains(one)) {
            let text = format!("it {}, so deadlocks may be missing", why_unlisted(*reason));
            findings.add(Level::Warning, path, &text);
        }
        let ages = Ages::of_all(&waits.contenders);
        for deadlock in &deadlocks {
            let level = if deadlock.is_certain { Level::Error } else { Level::Warning };
            findings.add(level, base, &in_a_sentence(deadlock, ages));
        }
    }
    Ok(())
}
