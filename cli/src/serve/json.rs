//! `/locks.json`: what changes with each reply, and what one look has shown, which is written once.

use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_millis;
use serde_json::{Value, json};
use zklock::LockKind;

use super::looks::Held;
use super::looks::{Lock, Model, State};
use super::looks::{Seen, SeenContender};
use super::status::Ensemble;
use crate::look::permits;

/// Changes if a reader of an earlier version would misunderstand it.
const SCHEMA: u32 = 1;

/// So many holders, and as many waiters, of a lock are listed.
const MOST_CONTENDERS: usize = 50;

/// What does not depend on a look.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) hosts: String,
    pub(crate) bases: Vec<String>,
}

/// When the look was, as replies tell it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) at: SystemTime,
    pub(crate) took: Duration,
    pub(crate) requests: usize,
}

/// A look that began longer ago than this is old.
const OLD: Duration = Duration::from_secs(5);

/// The first part of the reply, up to what a look has shown.
pub(crate) fn head(
    place: &Place,
    ensemble: &Ensemble,
    taken: Option<Taken>,
    now: SystemTime,
) -> String {
    let snapshot = taken.map(|taken| {
        json!({
            "taken_at": time(taken.at),
            "took_ms": millis(taken.took),
            "requests": taken.requests,
            "is_old": now.duration_since(taken.at).is_ok_and(|age| age > OLD),
        })
    });
    let head = json!({
        "schema": SCHEMA,
        "bases": place.bases,
        "ensemble": {
            "hosts": place.hosts,
            "state": ensemble.state.word(),
            "since": time(ensemble.since),
            "error": ensemble.error,
        },
        "snapshot": snapshot,
        "now": time(now),
    });
    let mut text = head.to_string();
    text.pop();
    text
}

/// The rest of the reply.
pub(crate) fn rest(model: &Model<'_>) -> String {
    let Seen { edges, not_seen, .. } = model.seen;
    let not_seen = not_seen.iter().map(|(path, why)| json!({ "path": path, "why": why }));
    let edges = edges.iter().map(|one| json!({ "holder": one.holder, "waits_by": one.waits_by }));
    let deadlocks = model.deadlocks.iter().map(|(is_certain, one)| {
        json!({
            "is_certain": is_certain,
            "text": one.text,
            "locks": one.locks,
            "nodes": one.nodes,
            "commands": one.commands,
        })
    });
    let locks = model.locks.iter().map(|lock| lock_as_json(lock, model));
    let rest = json!({
        "not_seen": not_seen.collect::<Vec<_>>(),
        "deadlocks": deadlocks.collect::<Vec<_>>(),
        "edges": edges.collect::<Vec<_>>(),
        "locks": locks.collect::<Vec<_>>(),
    });
    let mut text = rest.to_string();
    // It follows the head.
    text.replace_range(..1, ",");
    text
}

fn lock_as_json(lock: &Lock<'_>, model: &Model<'_>) -> Value {
    let (permits, taken) = permits(lock.kind);
    let some = |all: &[&SeenContender]| -> Vec<Value> {
        all.iter().take(MOST_CONTENDERS).map(|one| contender_as_json(one, model)).collect()
    };
    json!({
        "path": lock.path,
        "name": lock.path.rsplit('/').next(),
        "kind": kind(lock.kind),
        "permits": permits,
        "taken": taken,
        "state": state(lock.state),
        "holders": some(&lock.holders),
        "waiters": some(&lock.waiters),
        "holders_total": lock.holders.len(),
        "waiters_total": lock.waiters.len(),
        "oldest_wait_ms": lock.oldest_wait.map(millis),
        "hand_overs": lock.hand_overs,
        "past": lock.past.into_iter().flatten().map(held_as_json).collect::<Vec<_>>(),
    })
}

fn contender_as_json(one: &SeenContender, model: &Model<'_>) -> Value {
    json!({
        "node": one.node,
        "sequence": one.sequence,
        "who": one.who,
        "host": one.host,
        "pid": one.pid,
        "program": one.program,
        "thread": one.thread,
        "label": one.label,
        "maintenance": one.maintenance.as_ref().map(|hold| json!({
            "reason": hold.reason,
            "made_by": hold.made_by,
            "asked_for": hold.is_asked_for,
            "ends": hold.ends.map(time),
        })),
        "queued_at": one.queued_at.map(time),
        "held_since": one.held_since.map(time),
        "waits_for": model.waits_for.get(&*one.node).map_or(&[][..], |locks| &locks[..]),
    })
}

fn held_as_json(one: &Held) -> Value {
    let Held { who, node, from, until } = one;
    json!({ "who": who, "node": node, "from": time(*from), "until": time(*until) })
}

fn kind(of: LockKind) -> &'static str {
    match of {
        LockKind::Mutex => "mutex",
        LockKind::ReadWrite => "read_write",
        LockKind::Semaphore { .. } => "semaphore",
        LockKind::Room => "room",
        _ => "other",
    }
}

fn state(of: State) -> &'static str {
    match of {
        State::Deadlock => "deadlock",
        State::Suspected => "suspected",
        State::WaitedFor => "waited_for",
        State::Held => "held",
        State::Free => "free",
    }
}

fn time(at: SystemTime) -> String {
    format_rfc3339_millis(at).to_string()
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::looks::Edge;
    use super::super::looks::History;
    use super::super::looks::{at, deadlock, lock, look};
    use super::super::status::Status;
    use super::*;

    fn place() -> Place {
        Place { hosts: "zk1:2181".to_owned(), bases: vec!["/locks".to_owned()] }
    }

    fn whole(seen: &Seen, history: &mut History, taken: Option<Taken>) -> Value {
        history.note(seen);
        let head = head(&place(), &Status::new(at(0)).now(), taken, at(9));
        let text = format!("{head}{}", rest(&Model::of(seen, history)));
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
    }

    #[test]
    fn nothing_is_told_apart_from_nothing_seen() {
        let nothing = whole(&look(0, []), &mut History::default(), None);
        assert_eq!(
            nothing,
            json!({
                "schema": 1,
                "bases": ["/locks"],
                "ensemble": {
                    "hosts": "zk1:2181",
                    "state": "connecting",
                    "since": "1970-01-12T13:46:40.000Z",
                    "error": null,
                },
                "snapshot": null,
                "now": "1970-01-12T13:46:49.000Z",
                "not_seen": [],
                "deadlocks": [],
                "edges": [],
                "locks": [],
            })
        );
        let taken = |second| Taken { at: at(second), took: Duration::from_millis(12), requests: 3 };
        for (second, is_old) in [(4, false), (3, true)] {
            let some = whole(&look(0, []), &mut History::default(), Some(taken(second)));
            let snapshot = json!({
                "taken_at": format!("1970-01-12T13:46:4{second}.000Z"),
                "took_ms": 12,
                "requests": 3,
                "is_old": is_old,
            });
            assert_eq!(some["snapshot"], snapshot);
        }
    }

    #[test]
    fn a_lock_tells_its_state_its_contenders_and_its_past() {
        let mut history = History::default();
        history.note(&look(0, [lock("/locks/a", &["0"], &["1", "2"])]));
        let mut seen = look(3, [lock("/locks/a", &["1"], &["2"])]);
        seen.locks[0].contenders[0].held_since = Some(at(2));
        let edge = Edge { holder: "/locks/a/1".to_owned(), waits_by: "/locks/b/1".to_owned() };
        seen.edges.push(edge);
        seen.not_seen.push(("/locks/x".to_owned(), "not permitted".to_owned()));
        seen.deadlocks.push(deadlock(true, &["/locks/a"]));
        let all = whole(&seen, &mut history, None);
        let contender = |number: u32, queued: &str, held_since: Value, waits_for: Value| {
            json!({
                "node": format!("/locks/a/{number}"), "sequence": number,
                "who": number.to_string(), "host": null, "pid": null, "program": null,
                "thread": null, "label": null, "maintenance": null, "queued_at": queued, "held_since": held_since,
                "waits_for": waits_for,
            })
        };
        let first = ["1970-01-12T13:46:41.000Z", "1970-01-12T13:46:42.000Z"];
        assert_eq!(
            all["locks"],
            json!([{
                "path": "/locks/a", "name": "a", "kind": "mutex", "permits": null, "taken": null,
                "state": "deadlock",
                "holders": [contender(1, first[0], json!(first[1]), json!(["/locks/b"]))],
                "waiters": [contender(2, first[1], Value::Null, json!([]))],
                "holders_total": 1, "waiters_total": 1, "oldest_wait_ms": 1000, "hand_overs": 1,
                "past": [{
                    "who": "0", "node": "/locks/a/0",
                    "from": "1970-01-12T13:46:40.000Z", "until": "1970-01-12T13:46:43.000Z",
                }],
            }])
        );
        assert_eq!(all["edges"], json!([{ "holder": "/locks/a/1", "waits_by": "/locks/b/1" }]));
        assert_eq!(all["not_seen"], json!([{ "path": "/locks/x", "why": "not permitted" }]));
        assert_eq!(all["deadlocks"][0]["commands"], json!(["zklock ask"]));
    }

    #[test]
    fn only_the_first_of_very_many_contenders_are_listed() {
        let waiters: Vec<String> = (2..=200).map(|number| number.to_string()).collect();
        let waiters: Vec<&str> = waiters.iter().map(String::as_str).collect();
        let all = whole(&look(0, [lock("/a", &["1"], &waiters)]), &mut History::default(), None);
        let lock = &all["locks"][0];
        assert_eq!(lock["waiters"].as_array().unwrap().len(), MOST_CONTENDERS);
        assert_eq!((&lock["waiters_total"], &lock["holders_total"]), (&json!(199), &json!(1)));
    }

    #[test]
    fn text_of_others_stays_text() {
        let path = "/locks/<img src=x onerror=alert(1)>\"'\n\u{2028}\\";
        let all = whole(&look(0, [lock(path, &["1"], &[])]), &mut History::default(), None);
        assert_eq!(all["locks"][0]["path"], path);
    }
}
