//! Replies for `/locks.json`.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

pub(crate) fn written(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

pub(crate) fn seconds_ago(seconds: u64) -> String {
    written(SystemTime::now() - Duration::from_secs(seconds))
}

/// A reply with these locks, seen at the moment when it is sent.
pub(crate) fn seen(locks: &[Value]) -> Value {
    json!({
        "schema": 1,
        "bases": ["/locks"],
        "ensemble": { "hosts": "zk1:2181,zk2:2181,zk3:2181", "state": "connected", "since": seconds_ago(3_000), "error": null },
        "snapshot": { "taken_at": null, "took_ms": 12, "requests": 321, "is_old": false },
        "not_seen": [],
        "deadlocks": [],
        "edges": [],
        "locks": locks,
    })
}

/// Nothing was seen so far, and the session is in this state, since now or for so many seconds.
pub(crate) fn nothing_seen(state: &str, since: Option<u64>) -> Value {
    let mut reply = seen(&[]);
    reply["snapshot"] = Value::Null;
    reply["ensemble"]["state"] = json!(state);
    reply["ensemble"]["since"] = json!(since.map(seconds_ago));
    reply
}

/// The same in an outage; this was seen that long before.
pub(crate) fn in_outage(mut reply: Value, seconds: u64) -> Value {
    reply["ensemble"]["state"] = json!("lost");
    reply["ensemble"]["since"] = json!(seconds_ago(seconds));
    reply["ensemble"]["error"] = json!("no server has answered for 14 s");
    reply["snapshot"]["taken_at"] = json!(seconds_ago(seconds + 1));
    reply["snapshot"]["is_old"] = json!(seconds > 5);
    reply
}

pub(crate) fn node(lock: &str, sequence: u32) -> String {
    format!("{lock}/_c_6f1c4d1e-lock-{sequence:010}")
}

pub(crate) fn waiter(lock: &str, sequence: u32, queued: u64) -> Value {
    let pid = 4_000 + sequence;
    let host = format!("web{}", sequence % 9 + 1);
    json!({
        "node": node(lock, sequence), "sequence": sequence, "who": format!("{host} (pid {pid}, billing)"),
        "host": host, "pid": pid, "program": "billing", "thread": null, "label": null,
        "queued_at": seconds_ago(queued), "held_since": null, "waits_for": [],
    })
}

pub(crate) fn holder(lock: &str, sequence: u32, held: u64, waits_for: &[&str]) -> Value {
    let mut one = waiter(lock, sequence, held + 2);
    one["held_since"] = json!(seconds_ago(held));
    one["waits_for"] = json!(waits_for);
    one
}

pub(crate) fn lock(path: &str, state: &str, holders: &[Value], waiters: &[Value]) -> Value {
    let longest = waiters.iter().map(|one| one["queued_at"].as_str().unwrap()).min().map(|time| {
        let queued = humantime::parse_rfc3339(time).unwrap();
        u64::try_from(queued.elapsed().unwrap().as_millis()).unwrap()
    });
    json!({
        "path": path, "name": path.rsplit('/').next(), "kind": "mutex", "permits": null, "taken": null, "state": state,
        "holders": holders, "waiters": waiters, "holders_total": holders.len(), "waiters_total": waiters.len(),
        "oldest_wait_ms": longest, "hand_overs": 17, "past": [],
    })
}

fn past(lock: &str, spans: &[(u64, u64)]) -> Value {
    let one = |(number, (from, until)): (usize, &(u64, u64))| {
        let sequence = u32::try_from(number).unwrap() + 1;
        let who = format!("web{} (pid {}, billing)", sequence % 9 + 1, 4_000 + sequence);
        json!({ "who": who, "node": node(lock, sequence), "from": seconds_ago(*from), "until": seconds_ago(*until) })
    };
    spans.iter().enumerate().map(one).collect()
}

/// One that is waited for, with a queue and a past; a semaphore; and one that is only held.
pub(crate) fn three_locks() -> Value {
    let path = "/locks/nightly";
    let waiters: Vec<Value> =
        (0..7).map(|at| waiter(path, 41 + at, 130 - 15 * u64::from(at))).collect();
    let mut nightly = lock(path, "waited_for", &[holder(path, 40, 134, &[])], &waiters);
    let spans = [(980, 900), (899, 870), (869, 600), (599, 590), (589, 350), (350, 135)];
    nightly["past"] = past(path, &spans);
    let path = "/locks/tiles";
    let holders = [holder(path, 7, 20, &[]), holder(path, 9, 3, &[])];
    let mut tiles = lock(path, "held", &holders, &[]);
    tiles["kind"] = json!("semaphore");
    tiles["permits"] = json!(3);
    tiles["taken"] = json!(2);
    let path = "/locks/teams/search/index-rebuild-of-the-european-catalogue";
    let catalogue = lock(path, "held", &[holder(path, 3, 11_100, &[])], &[]);
    seen(&[nightly, tiles, catalogue])
}

/// One that nobody holds any more.
pub(crate) fn a_free_lock() -> Value {
    let mut free = lock("/locks/nightly", "free", &[], &[]);
    free["past"] = past("/locks/nightly", &[(300, 200), (199, 30)]);
    seen(&[free])
}

/// One whose names leave no place to break a line.
pub(crate) fn long_names() -> Value {
    let path = format!("/locks/{}", "Longname".repeat(20));
    let mut holds = holder(&path, 1, 60, &[&path]);
    holds["who"] = json!("holder".repeat(30));
    let mut reply = seen(&[lock(&path, "suspected", &[holds], &[waiter(&path, 2, 50)])]);
    reply["not_seen"] = json!([{ "path": path, "why": "not authorized" }]);
    reply["deadlocks"] = json!([{
        "is_certain": true, "text": path, "locks": [path], "nodes": [node(&path, 1)],
        "commands": [format!("zklock ask {path} --node 0000000001")],
    }]);
    reply
}

pub(crate) fn many_locks(count: u32) -> Value {
    let one = |number: u32| {
        let path = format!("/locks/customers/{number:05}");
        let queue = 40_u32.saturating_sub(number);
        let waiters: Vec<Value> = (0..queue.min(50))
            .map(|at| waiter(&path, 2 + at, u64::from(600 - number - at)))
            .collect();
        let state = if queue > 0 { "waited_for" } else { "held" };
        let mut lock =
            lock(&path, state, &[holder(&path, 1, u64::from(700 + number), &[])], &waiters);
        lock["waiters_total"] = json!(queue * 2);
        lock
    };
    seen(&(0..count).map(one).collect::<Vec<_>>())
}

/// The holders of a, b and c wait for each other's locks; those of d and e wait for a.
pub(crate) fn a_deadlock() -> Value {
    let paths = ["/locks/orders", "/locks/stock", "/locks/billing"];
    let mut edges = Vec::new();
    let mut locks = Vec::new();
    for (at, path) in paths.iter().enumerate() {
        let next = paths[(at + 1) % 3];
        let held = 240 - 10 * u64::try_from(at).unwrap();
        let mut waiters = vec![waiter(path, 12, 230)];
        if at == 0 {
            waiters.extend((13..17).map(|sequence| waiter(path, sequence, 60)));
        }
        locks.push(lock(path, "deadlock", &[holder(path, 11, held, &[next])], &waiters));
        edges.push(json!({ "holder": node(path, 11), "waits_by": node(next, 12) }));
    }
    for (at, path) in ["/locks/reports", "/locks/mail"].iter().enumerate() {
        let by = 13 + u32::try_from(at).unwrap();
        locks.push(lock(path, "held", &[holder(path, 5, 90, &[paths[0]])], &[]));
        edges.push(json!({ "holder": node(path, 5), "waits_by": node(paths[0], by) }));
    }
    locks.push(lock("/locks/quiet", "held", &[holder("/locks/quiet", 1, 5, &[])], &[]));
    let mut reply = seen(&locks);
    reply["edges"] = json!(edges);
    reply["deadlocks"] = json!([{
        "is_certain": true,
        "text": "deadlock: web3 (pid 4011, billing) holds /locks/orders, for 4 min, and waits for /locks/stock, queued \
                 3 min 50 s ago, web3 (pid 4011, billing) holds /locks/stock, for 3 min 50 s, and waits for \
                 /locks/billing, queued 3 min 50 s ago, web3 (pid 4011, billing) holds /locks/billing, for 3 min 40 s, \
                 and waits for /locks/orders, queued 3 min 50 s ago (zklock ask /locks/billing --node 0000000011), unless a \
                 guard was given to another thread",
        "locks": paths,
        "nodes": paths.map(|path| node(path, 11)),
        "commands": ["zklock ask /locks/billing --node 0000000011", "zklock break /locks/billing --node 0000000011"],
    }]);
    reply
}

/// A lock for which the holders of so many others wait, and whose holder waits for the first of a chain of others.
pub(crate) fn a_big_graph(behind: u32, ahead: u32) -> Value {
    let path = "/locks/middle";
    let waiters: Vec<Value> = (0..behind).map(|at| waiter(path, 100 + at, 60)).collect();
    let mut locks =
        vec![lock(path, "waited_for", &[holder(path, 1, 90, &["/locks/ahead-0"])], &waiters)];
    let mut edges = Vec::new();
    for at in 0..behind {
        let from = format!("/locks/behind-{at}");
        locks.push(lock(&from, "held", &[holder(&from, 1, 70, &[path])], &[]));
        edges.push(json!({ "holder": node(&from, 1), "waits_by": node(path, 100 + at) }));
    }
    let mut last = path.to_owned();
    for at in 0..ahead {
        let next = format!("/locks/ahead-{at}");
        locks.push(lock(
            &next,
            "waited_for",
            &[holder(&next, 1, 70, &[])],
            &[waiter(&next, 2, 60)],
        ));
        edges.push(json!({ "holder": node(&last, 1), "waits_by": node(&next, 2) }));
        last = next;
    }
    let mut reply = seen(&locks);
    reply["edges"] = json!(edges);
    reply
}
