//! What became of each lock since the first look: who has held it, and how often another one came to hold.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, SystemTime};

use zklock::LockKind;

use super::seen_in_one_look::{Seen, SeenContender, SeenLock};

/// So many holders that have let go are remembered of each lock.
const MOST_PAST: usize = 20;

/// A lock that nobody holds or waits for is remembered for this long, and at most so many are.
const FREE_FOR: Duration = Duration::from_secs(600);
const MOST_FREE: usize = 2_000;

#[derive(Debug, Default)]
pub(crate) struct History {
    locks: BTreeMap<String, Past>,
    /// How often another contender came to hold any lock.
    pub(crate) hand_overs: u64,
    /// The nodes of the deadlocks that were certain.
    certain: HashSet<Vec<String>>,
}

/// The past of one lock.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) kind: LockKind,
    /// How often another contender came to hold, as far as looks saw.
    pub(crate) hand_overs: u64,
    /// The last ones, the latest last.
    pub(crate) let_go: VecDeque<Held>,
    /// By node: who holds, and since when.
    holders: HashMap<String, (String, SystemTime)>,
    /// When somebody was last seen to contend for it.
    used_at: SystemTime,
    is_free: bool,
}

/// A holder that has let go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) who: String,
    pub(crate) node: String,
    pub(crate) from: SystemTime,
    /// When it was first seen to hold no more.
    pub(crate) until: SystemTime,
}

impl History {
    /// Takes what was seen next.
    pub(crate) fn note(&mut self, seen: &Seen) {
        for past in self.locks.values_mut() {
            past.is_free = true;
        }
        for lock in &seen.locks {
            let past = self.locks.entry(lock.path.clone()).or_insert_with(|| Past::of(lock, seen));
            self.hand_overs += past.note(lock, seen);
        }
        for past in self.locks.values_mut().filter(|past| past.is_free) {
            past.let_go(|_| false, seen.clock);
        }
        self.forget(seen.taken_at);
        let certain = seen.deadlocks.iter().filter(|one| one.is_certain);
        let nodes: HashSet<_> = seen.deadlocks.iter().map(|one| &one.nodes).collect();
        self.certain.retain(|one| nodes.contains(one));
        self.certain.extend(certain.map(|one| one.nodes.clone()));
    }

    /// Whether these nodes were in a certain deadlock that has been seen ever since: it is one still, even if
    /// a look comes before all of them have said once more that they wait.
    pub(crate) fn is_certain(&self, nodes: &[String]) -> bool {
        self.certain.contains(nodes)
    }

    pub(crate) fn of(&self, lock: &str) -> Option<&Past> {
        self.locks.get(lock)
    }

    /// The locks that nobody holds or waits for.
    pub(crate) fn free(&self) -> impl Iterator<Item = (&String, &Past)> {
        self.locks.iter().filter(|(_, past)| past.is_free)
    }

    fn forget(&mut self, now: SystemTime) {
        let age = |past: &Past| now.duration_since(past.used_at).unwrap_or_default();
        self.locks.retain(|_, past| !past.is_free || age(past) < FREE_FOR);
        let mut free: Vec<(SystemTime, String)> =
            self.free().map(|(path, past)| (past.used_at, path.clone())).collect();
        free.sort_unstable();
        for (_, path) in free.iter().rev().skip(MOST_FREE) {
            self.locks.remove(path);
        }
    }
}

impl Past {
    /// A lock that was not seen before.
    fn of(lock: &SeenLock, seen: &Seen) -> Past {
        let mut past = Past {
            kind: lock.kind,
            hand_overs: 0,
            let_go: VecDeque::new(),
            holders: HashMap::new(),
            used_at: seen.taken_at,
            is_free: false,
        };
        past.take_holders(lock, seen);
        past
    }

    /// How many contenders came to hold.
    fn note(&mut self, lock: &SeenLock, seen: &Seen) -> u64 {
        (self.kind, self.used_at, self.is_free) = (lock.kind, seen.taken_at, false);
        let nodes: HashSet<&str> = holders(lock).map(|one| &*one.node).collect();
        self.let_go(|node| nodes.contains(node), seen.clock);
        let came = self.take_holders(lock, seen);
        self.hand_overs += came;
        came
    }

    fn take_holders(&mut self, lock: &SeenLock, seen: &Seen) -> u64 {
        let mut came = 0;
        for one in holders(lock) {
            match self.holders.get_mut(&one.node) {
                // It may tell only later when its wait ended.
                Some((_, from)) => *from = one.held_since.unwrap_or(*from),
                None => {
                    // Of a holder that tells nothing it is only known that it did not hold before.
                    let from = one.held_since.unwrap_or(seen.clock);
                    self.holders.insert(one.node.clone(), (one.who.clone(), from));
                    came += 1;
                }
            }
        }
        came
    }

    fn let_go(&mut self, holds: impl Fn(&str) -> bool, until: SystemTime) {
        let (kept, gone): (HashMap<_, _>, HashMap<_, _>) =
            self.holders.drain().partition(|(node, _)| holds(node));
        self.holders = kept;
        let mut gone: Vec<Held> =
            gone.into_iter().map(|(node, (who, from))| Held { who, node, from, until }).collect();
        gone.sort_by(|one, other| (one.from, &one.node).cmp(&(other.from, &other.node)));
        self.let_go.extend(gone);
        while self.let_go.len() > MOST_PAST {
            self.let_go.pop_front();
        }
    }
}

fn holders(lock: &SeenLock) -> impl Iterator<Item = &SeenContender> {
    lock.contenders.iter().filter(|one| one.holds)
}

#[cfg(test)]
mod tests {
    use super::super::example_looks::{at, deadlock, lock, look};
    use super::*;

    fn who(past: &Past) -> Vec<&str> {
        past.let_go.iter().map(|one| one.node.as_str()).collect()
    }

    #[test]
    fn a_hand_over_is_another_holder_of_a_lock_that_was_known() {
        let mut history = History::default();
        history.note(&look(0, [lock("/a", &["1"], &["2"])]));
        assert_eq!((history.of("/a").unwrap().hand_overs, history.hand_overs), (0, 0));
        history.note(&look(1, [lock("/a", &["2"], &[]), lock("/b", &["1"], &[])]));
        history.note(&look(2, [lock("/a", &["2"], &[])]));
        let past = history.of("/a").unwrap();
        assert_eq!((past.hand_overs, history.hand_overs), (1, 1));
        assert_eq!(
            past.let_go,
            [Held { who: "1".to_owned(), node: "/a/1".to_owned(), from: at(0), until: at(1) }]
        );
        // Two readers share it, and one of them goes on.
        history.note(&look(3, [lock("/a", &["3", "4"], &[])]));
        history.note(&look(4, [lock("/a", &["4"], &[])]));
        let past = history.of("/a").unwrap();
        assert_eq!((past.hand_overs, who(past)), (3, vec!["/a/1", "/a/2", "/a/3"]));
    }

    #[test]
    fn a_free_lock_keeps_its_past_for_ten_minutes() {
        let mut history = History::default();
        history.note(&look(0, [lock("/a", &["1"], &[])]));
        history.note(&look(1, []));
        let free: Vec<_> = history.free().map(|(path, past)| (path.as_str(), who(past))).collect();
        assert_eq!(free, [("/a", vec!["/a/1"])]);
        history.note(&look(2, [lock("/a", &["2"], &[])]));
        assert_eq!((history.free().count(), history.of("/a").unwrap().hand_overs), (0, 1));
        history.note(&look(601, []));
        assert_eq!(history.free().count(), 1);
        history.note(&look(602, []));
        assert!(history.of("/a").is_none());
    }

    #[test]
    fn neither_the_holders_of_the_past_nor_the_free_locks_grow_without_end() {
        let mut history = History::default();
        for second in 0..30 {
            history.note(&look(second, [lock("/a", &[&second.to_string()], &[])]));
        }
        let past = history.of("/a").unwrap();
        assert_eq!((past.let_go.len(), past.let_go[19].node.as_str()), (MOST_PAST, "/a/28"));
        let many = |from: usize| {
            (from..from + MOST_FREE + 5).map(|number| lock(&format!("/l{number:05}"), &["1"], &[]))
        };
        history.note(&look(31, many(0)));
        history.note(&look(32, []));
        assert_eq!(history.free().count(), MOST_FREE);
    }

    #[test]
    fn a_deadlock_stays_certain_as_long_as_it_is_seen() {
        let mut history = History::default();
        let deadlock = |is_certain| {
            let mut seen = look(0, []);
            seen.deadlocks.push(deadlock(is_certain, &["/a", "/b"]));
            seen
        };
        let nodes = deadlock(true).deadlocks[0].nodes.clone();
        for (seen, is_certain) in [
            (deadlock(false), false),
            (deadlock(true), true),
            (deadlock(false), true),
            (look(1, []), false),
            (deadlock(false), false),
        ] {
            history.note(&seen);
            assert_eq!(history.is_certain(&nodes), is_certain);
        }
    }
}
