//! What there is to tell of one look: each lock with its state and its past, the worst first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use zklock::LockKind;

use super::history::{Held, History};
use super::seen_in_one_look::{Edge, Seen, SeenContender, SeenDeadlock};

/// How badly a lock is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Deadlock,
    Suspected,
    WaitedFor,
    Held,
    Free,
}

#[derive(Debug)]
pub(crate) struct Model<'a> {
    pub(crate) seen: &'a Seen,
    /// The worst first.
    pub(crate) locks: Vec<Lock<'a>>,
    pub(crate) deadlocks: Vec<(bool, &'a SeenDeadlock)>,
    pub(crate) hand_overs: u64,
    /// For which locks each holder waits, by its node.
    pub(crate) waits_for: HashMap<&'a str, Vec<&'a str>>,
}

#[derive(Debug)]
pub(crate) struct Lock<'a> {
    pub(crate) path: &'a str,
    pub(crate) kind: LockKind,
    pub(crate) state: State,
    pub(crate) holders: Vec<&'a SeenContender>,
    pub(crate) waiters: Vec<&'a SeenContender>,
    /// Of those that wait now.
    pub(crate) oldest_wait: Option<Duration>,
    pub(crate) hand_overs: u64,
    pub(crate) past: Option<&'a VecDeque<Held>>,
}

impl<'a> Model<'a> {
    /// Of this look, which the history has taken.
    pub(crate) fn of(seen: &'a Seen, history: &'a History) -> Model<'a> {
        let is_certain = |one: &SeenDeadlock| one.is_certain || history.is_certain(&one.nodes);
        let deadlocks: Vec<_> = seen.deadlocks.iter().map(|one| (is_certain(one), one)).collect();
        let mut stuck: HashMap<&str, State> = HashMap::new();
        for (is_certain, deadlock) in &deadlocks {
            let state = if *is_certain { State::Deadlock } else { State::Suspected };
            for lock in &deadlock.locks {
                let before = stuck.entry(lock).or_insert(state);
                *before = state.min(*before);
            }
        }
        let listed = seen.locks.iter().map(|lock| {
            let (holders, waiters): (Vec<_>, Vec<_>) =
                lock.contenders.iter().partition(|one| one.holds);
            let state = match stuck.get(&*lock.path) {
                Some(state) => *state,
                None if waiters.is_empty() => State::Held,
                None => State::WaitedFor,
            };
            let past = history.of(&lock.path);
            Lock {
                path: &lock.path,
                kind: lock.kind,
                state,
                oldest_wait: longest(&waiters, seen.clock),
                holders,
                waiters,
                hand_overs: past.map_or(0, |past| past.hand_overs),
                past: past.map(|past| &past.let_go),
            }
        });
        let free = history.free().map(|(path, past)| Lock {
            path,
            kind: past.kind,
            state: State::Free,
            holders: Vec::new(),
            waiters: Vec::new(),
            oldest_wait: None,
            hand_overs: past.hand_overs,
            past: Some(&past.let_go),
        });
        let mut locks: Vec<Lock<'a>> = listed.chain(free).collect();
        locks.sort_by(|one, other| {
            let key = |lock: &Lock<'a>| (lock.state, Reverse(lock.oldest_wait), lock.path);
            key(one).cmp(&key(other))
        });
        let waits_for = waits_for(&seen.edges);
        Model { seen, locks, deadlocks, hand_overs: history.hand_overs, waits_for }
    }
}

fn longest(waiters: &[&SeenContender], now: SystemTime) -> Option<Duration> {
    let first = waiters.iter().filter_map(|one| one.queued_at).min()?;
    Some(now.duration_since(first).unwrap_or_default())
}

fn waits_for(edges: &[Edge]) -> HashMap<&str, Vec<&str>> {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Edge { holder, waits_by } in edges {
        let lock = waits_by.rsplit_once('/').map_or("", |(lock, _)| lock);
        let locks = all.entry(holder).or_default();
        if !locks.contains(&lock) {
            locks.push(lock);
        }
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::example_looks::{at, deadlock, lock, look};
    use super::*;

    #[test]
    fn the_worst_locks_come_first() {
        let mut history = History::default();
        history.note(&look(0, [lock("/free", &["1"], &[])]));
        let mut seen = look(
            100,
            [
                lock("/b-held", &["1"], &[]),
                lock("/a-held", &["1"], &[]),
                lock("/waited", &["1"], &["90"]),
                lock("/waited-longer", &["1"], &["95", "2"]),
                lock("/suspected", &["1"], &["2"]),
                lock("/deadlock", &["1"], &["99"]),
            ],
        );
        seen.deadlocks =
            vec![deadlock(true, &["/deadlock"]), deadlock(false, &["/suspected", "/deadlock"])];
        history.note(&seen);
        let model = Model::of(&seen, &history);
        let all: Vec<_> = model.locks.iter().map(|one| (one.path, one.state)).collect();
        assert_eq!(
            all,
            [
                ("/deadlock", State::Deadlock),
                ("/suspected", State::Suspected),
                ("/waited-longer", State::WaitedFor),
                ("/waited", State::WaitedFor),
                ("/a-held", State::Held),
                ("/b-held", State::Held),
                ("/free", State::Free),
            ]
        );
        assert_eq!(model.locks[2].oldest_wait, Some(Duration::from_secs(98)));
        assert_eq!(model.locks[6].past.unwrap()[0].until, at(100));
    }

    #[test]
    fn a_holder_waits_for_each_lock_once() {
        let edge = |by: &str| Edge { holder: "/a/1".to_owned(), waits_by: by.to_owned() };
        let edges = [edge("/b/1"), edge("/b/2"), edge("/c/7")];
        assert_eq!(waits_for(&edges)["/a/1"], ["/b", "/c"]);
    }
}
