//! What each server shows of the locks. If a lock is free for long, it tells why: the servers still
//! show a contender ahead of those that wait, or the waiters have missed that it is gone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::history::{Journal, Nanos, SECOND, now};
use super::support::raw::{self, Raw};
use super::work::{NODES, by_sequence};
use super::worker::BASE;

const SESSION: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(500);
/// A first contender is noted once it has been the first for this long.
const LONG: Nanos = 3 * SECOND;

/// The first contender of a lock, since when, and whether it is in the history.
type First = (String, Nanos, bool);

/// Looks at this one server, until `over`.
pub(crate) fn look(server: usize, host: &str, over: &AtomicBool, journal: &Journal) {
    let mut connection = None;
    let mut known = HashMap::new();
    while !over.load(Ordering::SeqCst) {
        if connection.is_none() {
            connection = Raw::connect(host, SESSION).ok();
        }
        if let Some(raw) = &mut connection
            && note(raw, server, &mut known, journal).is_err()
        {
            connection = None;
            known.clear();
        }
        thread::sleep(PAUSE);
    }
    if let Some(raw) = connection {
        // Otherwise the server ends the session in time.
        let _ = raw.close();
    }
}

fn note(
    raw: &mut Raw,
    server: usize,
    known: &mut HashMap<&str, First>,
    journal: &Journal,
) -> raw::Result<()> {
    for lock in NODES {
        let node = format!("{BASE}/{lock}");
        let names = match raw.get_children(&node) {
            Err(failure) if failure.code() == Some(raw::NO_NODE) => Vec::new(),
            names => names?,
        };
        let Some(first) = names.iter().min_by(|one, other| by_sequence(one, other)) else {
            known.remove(lock);
            continue;
        };
        match known.get_mut(lock) {
            Some((name, since, noted)) if name == first => {
                if !*noted && now() > *since + LONG {
                    *noted = true;
                    let owner = raw.exists(&format!("{node}/{first}"))?;
                    let owner = owner.map_or(0, |stat| stat.ephemeral_owner);
                    let count = names.len();
                    let what = format!("shows {lock} {first} {owner:x} {since} {count}");
                    journal.note(format_args!("server-{server}"), what);
                }
            }
            _ => drop(known.insert(lock, (first.clone(), now(), false))),
        }
    }
    Ok(())
}
