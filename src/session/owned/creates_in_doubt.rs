//! Creates of ephemeral nodes that got no answer, and when to look for their nodes. Without IO.
//!
//! A server whose link to the leader stalls may have passed a create on, and may then have asked for the
//! session again, for a client that came back to it. When the link recovers, the leader takes that server to
//! serve the session, and carries out the create, though the client has used another server since. So a
//! create without an answer can be carried out at any time until its session has ended, after any number of
//! newer requests: no list and no `sync` proves that it will not be.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How many are remembered of one parent, and of all; beyond that, the oldest of a parent is forgotten.
const MOST_OF_PARENT: usize = 1_000;
const MOST: usize = 10_000;

/// For how long a node is looked for once each session timeout, and then once each second one.
const OFTEN: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);

/// After a new connection it is looked for at once, but no more often than this.
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// As long as this lives, its call may still take the node of a create in doubt for its own.
#[derive(Debug, Default)]
pub(crate) struct StillMeant(OnceLock<Arc<()>>);

impl StillMeant {
    fn held(&self) -> Weak<()> {
        Arc::downgrade(self.0.get_or_init(Arc::default))
    }
}

/// What the name says that a create was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoubtKind {
    /// It begins the node's name, and is a guid's; the server adds a number.
    Numbered,
    /// It is the node's name, which another session's node may have, too.
    Named,
    /// The program has chosen it: only the program knows whether it wants the node.
    OfTheProgram,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CreatesInDoubt {
    by_parent: BTreeMap<Box<str>, ParentInDoubt>,
    count: usize,
}

/// The creates in doubt of one parent's children.
#[derive(Debug)]
struct ParentInDoubt {
    by_name: HashMap<Box<str>, CreateInDoubt>,
    /// When the last of them arose.
    since: Instant,
    /// The last look at the parent, and on which connection.
    looked: Instant,
    looked_on: u64,
    /// The number of the next one.
    next: u64,
}

#[derive(Debug)]
struct CreateInDoubt {
    number: u64,
    kind: DoubtKind,
    bytes: usize,
    meant: Weak<()>,
    /// How many requests of this name got no answer: each of them may still make a node, also when that of
    /// another one was found and deleted.
    requests: usize,
    /// The transaction that made the node by which one of them was settled last: it may be seen again until
    /// it is deleted.
    found: Option<i64>,
}

impl CreatesInDoubt {
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds one; returns for how many bytes those counted that are forgotten.
    pub(super) fn add(
        &mut self,
        (parent, name): (&str, &str),
        kind: DoubtKind,
        bytes: usize,
        meant: Option<&StillMeant>,
        (now, connection): (Instant, u64),
    ) -> usize {
        let all_are_many = self.count >= MOST;
        let of_parent = self.by_parent.entry(parent.into()).or_insert_with(|| ParentInDoubt {
            by_name: HashMap::new(),
            since: now,
            looked: now,
            looked_on: connection,
            next: 0,
        });
        let mut forgotten = 0;
        let is_full = of_parent.by_name.len() >= MOST_OF_PARENT || all_are_many;
        if is_full && !of_parent.by_name.contains_key(name) {
            let oldest = of_parent.by_name.iter().min_by_key(|(_, one)| one.number);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                forgotten = of_parent.by_name.remove(&oldest).map_or(0, |one| one.bytes);
                self.count -= 1;
            }
        }
        if of_parent.by_name.is_empty() {
            of_parent.looked = now;
        }
        of_parent.since = now;
        of_parent.next += 1;
        let number = of_parent.next;
        let meant = meant.map_or_else(Weak::new, StillMeant::held);
        let one = CreateInDoubt { number, kind, bytes, meant, requests: 1, found: None };
        match of_parent.by_name.entry(name.into()) {
            Entry::Vacant(entry) => {
                entry.insert(one);
                self.count += 1;
            }
            Entry::Occupied(mut entry) => {
                // Counted once.
                forgotten += entry.get().bytes;
                let (requests, found) = (entry.get().requests + 1, entry.get().found);
                entry.insert(CreateInDoubt { requests, found, ..one });
            }
        }
        forgotten
    }

    /// Takes out those that made nodes among these children, and that no call may still take for its own.
    /// Returns the nodes' names, and for how many bytes they counted. Not those whose names others may have,
    /// too.
    pub(super) fn take_strays<'a>(
        &mut self,
        parent: &str,
        children: impl Iterator<Item = &'a str>,
    ) -> (Vec<String>, usize) {
        let (mut strays, mut bytes) = (Vec::new(), 0);
        let Some(of_parent) = self.by_parent.get_mut(parent) else { return (strays, bytes) };
        for name in children {
            let Some((key, one)) = of_parent.maker_of(name) else { continue };
            if one.kind == DoubtKind::Numbered && !one.is_meant() {
                if let Some(settled) = of_parent.settle(key, None) {
                    bytes += settled;
                    self.count -= 1;
                }
                strays.push(name.to_owned());
            }
        }
        self.tidy(parent);
        (strays, bytes)
    }

    /// Those of the children that have the names of such creates, and that no call may still take for its
    /// own.
    pub(super) fn named<'a>(
        &self,
        parent: &str,
        children: impl Iterator<Item = &'a str>,
    ) -> Vec<String> {
        let Some(of_parent) = self.by_parent.get(parent) else { return Vec::new() };
        let is_one = |name: &&str| {
            of_parent
                .maker_of(name)
                .is_some_and(|(_, one)| one.kind == DoubtKind::Named && !one.is_meant())
        };
        children.filter(is_one).map(str::to_owned).collect()
    }

    /// A create of that node is no longer in doubt, as the node was found. Returns for how many bytes it
    /// counted, if no other one of this name is in doubt. A node that others may have made tells nothing of
    /// it, unless it is certain to be one of these: made by this transaction.
    pub(super) fn settle(&mut self, parent: &str, name: &str, czxid: Option<i64>) -> usize {
        let Some(of_parent) = self.by_parent.get_mut(parent) else { return 0 };
        let is_told = |one: &CreateInDoubt| czxid.is_some() || one.kind == DoubtKind::Numbered;
        let made = of_parent.maker_of(name).filter(|(_, one)| is_told(one));
        let Some((key, _)) = made else { return 0 };
        let Some(bytes) = of_parent.settle(key, czxid) else { return 0 };
        self.count -= 1;
        self.tidy(parent);
        bytes
    }

    /// Whether a request of that name is in doubt, and was not settled by this node, made by that
    /// transaction.
    pub(super) fn may_have_made(&self, parent: &str, name: &str, czxid: i64) -> bool {
        let one = self.by_parent.get(parent).and_then(|one| one.by_name.get(name));
        one.is_some_and(|one| one.found != Some(czxid))
    }

    fn tidy(&mut self, parent: &str) {
        if self.by_parent.get(parent).is_some_and(|one| one.by_name.is_empty()) {
            self.by_parent.remove(parent);
        }
    }

    /// The parents to look at now.
    pub(super) fn due(&self, now: Instant, connection: u64, timeout: Duration) -> Vec<String> {
        let is_due =
            |one: &ParentInDoubt| one.due(connection, timeout).is_some_and(|due| due <= now);
        let due = self.by_parent.iter().filter(|(_, one)| is_due(one));
        due.map(|(parent, _)| parent.to_string()).collect()
    }

    /// When to look next, if ever.
    pub(super) fn next_look(&self, connection: u64, timeout: Duration) -> Option<Instant> {
        self.by_parent.values().filter_map(|one| one.due(connection, timeout)).min()
    }

    /// The parent was looked at, and what was found there is taken out.
    pub(super) fn note_look(&mut self, parent: &str, now: Instant, connection: u64) {
        if let Some(one) = self.by_parent.get_mut(parent) {
            (one.looked, one.looked_on) = (now, connection);
        }
    }
}

impl ParentInDoubt {
    /// One request of this name is no longer in doubt: it made the node of that transaction, if that is
    /// known. If it was the last one, returns for how many bytes they counted.
    fn settle(&mut self, name: &str, czxid: Option<i64>) -> Option<usize> {
        let one = self.by_name.get_mut(name)?;
        one.found = czxid;
        one.requests -= 1;
        if one.requests > 0 {
            return None;
        }
        self.by_name.remove(name).map(|one| one.bytes)
    }

    /// The create that may have made the node of this name, and what it was given.
    fn maker_of<'a>(&self, name: &'a str) -> Option<(&'a str, &CreateInDoubt)> {
        let given = |end: Option<usize>, kind: DoubtKind| {
            let given = name.get(..end?)?;
            let one = self.by_name.get(given).filter(|one| one.kind == kind)?;
            Some((given, one))
        };
        // A number has ten digits; a negative one has a sign in front.
        given(name.len().checked_sub(10), DoubtKind::Numbered)
            .or_else(|| given(name.len().checked_sub(11), DoubtKind::Numbered))
            .or_else(|| given(Some(name.len()), DoubtKind::Named))
    }

    /// When to look at it next: a third of the session timeout after the last look in the first timeout, then
    /// each timeout for a minute, and each second one for ten. After that, only other lists can show the
    /// nodes.
    fn due(&self, connection: u64, timeout: Duration) -> Option<Instant> {
        let age = self.looked.saturating_duration_since(self.since);
        let gap = match age {
            age if age >= LONG.max(timeout) => return None,
            _ if self.looked_on != connection => BETWEEN_LOOKS.min(timeout / 3),
            age if age < timeout / 10 * 9 => timeout / 3,
            age if age < OFTEN => timeout,
            _ => timeout * 2,
        };
        self.looked.checked_add(gap)
    }
}

impl CreateInDoubt {
    fn is_meant(&self) -> bool {
        self.meant.strong_count() > 0
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(10);
    const GUID: &str = "_c_0123-lock-";

    fn numbered(at: Instant) -> CreatesInDoubt {
        let mut doubts = CreatesInDoubt::default();
        doubts.add(("/a", GUID), DoubtKind::Numbered, 7, None, (at, 1));
        doubts
    }

    fn strays(doubts: &mut CreatesInDoubt, names: &[&str]) -> Vec<String> {
        doubts.take_strays("/a", names.iter().copied()).0
    }

    #[test]
    fn a_node_is_known_by_what_its_create_was_given_and_by_a_number_behind() {
        let now = Instant::now();
        let others =
            ["_c_0123-lock-", "_c_0123-lock-7", "x_c_0123-lock-0000000001", "_c_9-lock-0000000001"];
        let mut doubts = numbered(now);
        assert_eq!(strays(&mut doubts, &others), [""; 0]);
        assert_eq!(
            strays(&mut doubts, &["é", "_c_0123-lock-0000000001"]),
            ["_c_0123-lock-0000000001"]
        );
        assert!(doubts.is_empty());
        assert_eq!(strays(&mut numbered(now), &["_c_0123-lock--0000000001"]).len(), 1);
        let mut named = CreatesInDoubt::default();
        named.add(("/a", "m"), DoubtKind::Named, 7, None, (now, 1));
        assert_eq!(strays(&mut named, &["m0000000001", "m"]), [""; 0]);
        assert_eq!(named.named("/a", ["m0000000001", "mm", "m"].into_iter()), ["m"]);
    }

    #[test]
    fn what_its_call_may_still_take_for_its_own_is_no_stray() {
        let meant = StillMeant::default();
        let mut doubts = CreatesInDoubt::default();
        doubts.add(("/a", GUID), DoubtKind::Numbered, 7, Some(&meant), (Instant::now(), 1));
        let name = format!("{GUID}0000000001");
        assert_eq!(strays(&mut doubts, &[&name]), [""; 0]);
        drop(meant);
        assert_eq!(strays(&mut doubts, &[&name]), [&*name]);
        let mut doubts = numbered(Instant::now());
        assert_eq!([(); 2].map(|()| doubts.settle("/a", &name, None)), [7, 0]);
        assert!(doubts.is_empty());
        doubts.add(("/a", "m"), DoubtKind::Named, 7, None, (Instant::now(), 1));
        assert_eq!([None, Some(9)].map(|czxid| doubts.settle("/a", "m", czxid)), [0, 7]);
    }

    /// A request that is made again under the same name may be carried out once more when the first node was
    /// deleted.
    #[test]
    fn each_request_of_a_name_is_in_doubt_by_itself() {
        let now = (Instant::now(), 1);
        let mut doubts = CreatesInDoubt::default();
        let forgotten = [(); 3].map(|()| doubts.add(("/a", "m"), DoubtKind::Named, 7, None, now));
        assert_eq!((forgotten, doubts.count), ([0, 7, 7], 1));
        assert!(doubts.may_have_made("/a", "m", 9));
        assert_eq!(doubts.settle("/a", "m", Some(9)), 0);
        assert!(!doubts.may_have_made("/a", "m", 9), "until it is deleted");
        assert!(doubts.may_have_made("/a", "m", 10));
        assert_eq!([10, 11, 12].map(|czxid| doubts.settle("/a", "m", Some(czxid))), [0, 7, 0]);
        assert!(doubts.is_empty());
        doubts.add(("/a", GUID), DoubtKind::Numbered, 7, None, now);
        doubts.add(("/a", GUID), DoubtKind::Numbered, 7, None, now);
        let both = [1, 2].map(|number| format!("{GUID}{number:010}"));
        assert_eq!(strays(&mut doubts, &both.each_ref().map(|name| &**name)), both);
        assert!(doubts.is_empty());
    }

    #[test]
    fn the_pauses_between_looks_are_no_longer_than_two_timeouts() {
        let begin = Instant::now();
        let (mut doubts, mut at, mut looks) = (numbered(begin), begin, Vec::new());
        while let Some(next) = doubts.next_look(1, T) {
            assert!(next <= at + T * 2, "{:?} after {:?}", next - begin, at - begin);
            assert_eq!(doubts.due(next - Duration::from_nanos(1), 1, T), [""; 0]);
            assert_eq!(doubts.due(next, 1, T), ["/a"]);
            doubts.note_look("/a", next, 1);
            looks.push((next - begin).as_secs_f64().round() as u64);
            at = next;
        }
        assert_eq!(looks[..6], [3, 7, 10, 20, 30, 40]);
        assert!(at - begin >= LONG && looks.len() < 45, "{looks:?}");
    }

    #[test]
    fn another_connection_is_a_reason_to_look_at_once() {
        let begin = Instant::now();
        let mut doubts = numbered(begin);
        doubts.note_look("/a", begin + T * 3, 1);
        let then = doubts.next_look(2, T).map(|next| next - begin);
        assert_eq!(then, Some(T * 3 + BETWEEN_LOOKS));
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let begin = Instant::now();
        let (mut doubts, mut forgotten) = (CreatesInDoubt::default(), 0);
        for number in 0..3_000 {
            let name = format!("{number:036}-lock-");
            forgotten += doubts.add(("/a", &name), DoubtKind::Numbered, 1, None, (begin, 1));
        }
        assert_eq!((doubts.count, forgotten), (MOST_OF_PARENT, 2_000));
        let first = format!("{:036}-lock-0000000000", 1_999);
        let last = format!("{:036}-lock-0000000000", 2_000);
        assert_eq!(strays(&mut doubts, &[&first, &last]), [last]);
        for number in 0..20_000 {
            let parent = format!("/{}", number % 100);
            doubts.add((&parent, &number.to_string()), DoubtKind::Numbered, 1, None, (begin, 1));
        }
        assert!(doubts.count <= MOST + 100, "{}", doubts.count);
    }
}
