//! Whether a numbered child of a lock node contends whose name does not tell: by the session that it belongs
//! to, and by when it was made.
//!
//! A sequential node gets its number as it is made: so a real contender that has a lower number than another
//! one was also made before it. A node to which a program has given such a name may have any number, and
//! comes before nobody who was there first. This is what [`rule`](super::rule) needs for its proof that
//! nobody comes in ahead.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::rule::{in_grant_order, in_grant_order_by};
use super::ticket::Ticket;
use crate::foreign_contenders::ForeignContenders;
use crate::path;
use crate::rt::{self, Mutex};
use crate::session::{Answer, Fault, Found, Names, Session};
use crate::session_id::SessionId;
use crate::wire_values::Stat;

/// How many names of nodes that do not contend a client remembers, and for how long.
const MOST_REMEMBERED: usize = 10_000;
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// What a child's stat tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildOrigin {
    /// A session's, made by this transaction.
    OfSession { czxid: i64 },
    /// It stays without its maker: nobody knows when to go on. Made by this transaction.
    Lasting { czxid: i64 },
    /// An ACL hides it.
    Hidden,
}

impl ChildOrigin {
    pub(crate) fn of(stat: &Stat) -> ChildOrigin {
        match SessionId::of_owner(stat.ephemeral_owner) {
            Some(_) => ChildOrigin::OfSession { czxid: stat.czxid },
            None => ChildOrigin::Lasting { czxid: stat.czxid },
        }
    }

    /// Whether such a child with a lower number comes before a contender that this transaction has made; if
    /// it is not known which, it may.
    pub(crate) fn is_before(self, mine: Option<i64>) -> bool {
        match self {
            ChildOrigin::OfSession { czxid } => mine.is_none_or(|mine| czxid < mine),
            ChildOrigin::Lasting { .. } => false,
            ChildOrigin::Hidden => true,
        }
    }
}

/// The children of lock nodes that are known to last, by the lock node, as the server knows it, each with the
/// transaction that has made it: those who contend need not ask for them each time.
#[derive(Debug, Default)]
pub(crate) struct LastingChildren(Mutex<HashMap<String, Remembered>>);

#[derive(Debug)]
struct Remembered {
    since: Instant,
    made_by: HashMap<String, i64>,
}

impl Remembered {
    fn is_old(&self) -> bool {
        rt::now().saturating_duration_since(self.since) > REMEMBERED_FOR
    }
}

impl LastingChildren {
    pub(crate) fn note(&self, lock_node: &str, children: impl IntoIterator<Item = (String, i64)>) {
        let mut all = self.0.lock();
        let count = |one: &Remembered| one.made_by.len();
        let mut room = MOST_REMEMBERED.saturating_sub(all.values().map(count).sum());
        if room == 0 {
            // Perhaps of lock nodes that nobody lists any more.
            all.retain(|_, one| !one.is_old());
            room = MOST_REMEMBERED.saturating_sub(all.values().map(count).sum());
        }
        for (name, czxid) in children {
            if room == 0 {
                return;
            }
            let known = all
                .entry(lock_node.to_owned())
                .or_insert_with(|| Remembered { since: rt::now(), made_by: HashMap::new() });
            room -= usize::from(known.made_by.insert(name, czxid).is_none());
        }
    }

    /// Whether any of the lock node's are known. Then a list is of use only with the lock node's stat.
    pub(crate) fn has_any_of(&self, lock_node: &str) -> bool {
        self.0.lock().contains_key(lock_node)
    }

    /// Those of the children that last, as the list with the lock node's stat shows them.
    ///
    /// A lock node that is made anew begins its numbers anew: a contender may then have the very name of a
    /// node that has lasted before. But it is younger than the new lock node, and what has lasted is older;
    /// or, if the whole ensemble was made anew, younger than any child was made or deleted. (Nobody contends
    /// under a name that a server has not numbered.) What a list does not show is forgotten, and everything
    /// after a while.
    pub(crate) fn among(&self, lock_node: &str, stat: &Stat, children: &Names) -> Vec<String> {
        let mut all = self.0.lock();
        let Some(known) = all.get_mut(lock_node) else { return Vec::new() };
        let fits = |czxid: &i64| *czxid > stat.czxid && *czxid <= stat.children_zxid;
        let is_known = |name: &&str| known.made_by.get(*name).is_some_and(fits);
        let found: Vec<String> = children.iter().filter(is_known).map(str::to_owned).collect();
        if found.is_empty() || known.is_old() {
            all.remove(lock_node);
            return Vec::new();
        }
        if found.len() < known.made_by.len() {
            let shown: HashSet<&String> = found.iter().collect();
            known.made_by.retain(|name, _| shown.contains(name));
        }
        found
    }
}

/// The origins of these children; `None` of one that is gone.
pub(crate) fn ask_origins(
    session: &Session,
    lock_node: &str,
    names: &[String],
) -> Answer<Vec<Option<ChildOrigin>>> {
    let paths: Vec<String> = names.iter().map(|name| path::join(lock_node, name)).collect();
    let origin = |found: Answer<Found>| match found {
        Ok(found) => Ok(found.map(|(_, stat)| ChildOrigin::of(&stat))),
        Err(Fault::NoAuth) => Ok(Some(ChildOrigin::Hidden)),
        Err(fault) => Err(fault),
    };
    session.stat_each(&paths).into_iter().map(origin).collect()
}

/// The contenders among the children of a lock node, as the server knows it, in the order of grants. Where
/// all names are certain, that takes no request.
pub(crate) fn contenders_in_order(
    session: &Session,
    lock_node: &str,
    children: &Names,
) -> Answer<Vec<String>> {
    let names = owned(in_grant_order(children.iter()));
    if !names.iter().any(|name| is_uncertain(name)) {
        return Ok(names);
    }
    let (mut there, mut made_by) = (Vec::new(), HashMap::new());
    for (name, origin) in names.iter().zip(ask_origins(session, lock_node, &names)?) {
        match origin {
            None => continue,
            Some(ChildOrigin::Lasting { .. }) if is_uncertain(name) => continue,
            Some(ChildOrigin::OfSession { czxid }) => {
                made_by.insert(&**name, czxid);
            }
            Some(ChildOrigin::Lasting { .. } | ChildOrigin::Hidden) => {}
        }
        there.push(&**name);
    }
    Ok(owned(in_grant_order_by(there, |name| made_by.get(name).copied())))
}

fn owned(tickets: Vec<Ticket<'_>>) -> Vec<String> {
    tickets.iter().map(|one| one.name().to_owned()).collect()
}

/// How many children were ever made below the node with this stat: sequence numbers are less.
pub(crate) fn children_made(stat: &Stat) -> i32 {
    // Creates and deletes of children are counted together, and the count may wrap.
    let twice = stat.child_changes.checked_add(stat.children).filter(|sum| *sum >= 0);
    twice.map_or(i32::MAX, |twice| twice / 2)
}

/// Whether that child is not waited for, if it contends, as the client's settings want it.
pub(crate) fn is_ignored(child: &Ticket<'_>, foreign: &ForeignContenders) -> bool {
    foreign.passes(child.name(), child.is_of_a_known_recipe()) && !child.is_certain()
}

/// Whether that name leaves open whether its node contends.
pub(crate) fn is_uncertain(name: &str) -> bool {
    Ticket::parse(name).is_some_and(|ticket| !ticket.is_certain())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
    const HEX: &str = "0f8fad5bd9cb469fa16570867728950e";

    fn ticket(name: &str) -> Ticket<'_> {
        Ticket::parse(name).unwrap_or_else(|| panic!("{name:?} has no number"))
    }

    /// By place, by name, and by what the stat says: of all combinations.
    #[test]
    fn a_child_comes_before_by_its_number_and_by_its_name_or_its_making() {
        let (mine, made) = (format!("_c_{UUID}-lock-0000000005"), Some(100));
        let session = |czxid| ChildOrigin::OfSession { czxid };
        let (before, after) = (session(99), session(101));
        let (lasting, hidden) = (ChildOrigin::Lasting { czxid: 99 }, ChildOrigin::Hidden);
        let letter = format!("{HEX}__lock__");
        for (front, by_origin) in [
            (&*letter, [true; 4]),
            ("lock-", [true; 4]),
            ("etl-lock-", [true, false, false, true]),
            ("x-5-", [true, false, false, true]),
            ("worker-", [true, false, false, true]),
            ("", [true, false, false, true]),
        ] {
            for (number, is_lower) in [(4, true), (6, false), (2_024_010_112, false)] {
                let name = format!("{front}{number:010}");
                let theirs = ticket(&name);
                let origins = [before, after, lasting, hidden];
                for (origin, expected) in origins.into_iter().zip(by_origin) {
                    let is_before = theirs.is_before(&ticket(&mine))
                        && (theirs.is_certain() || origin.is_before(made));
                    assert_eq!(is_before, is_lower && expected, "{name} {origin:?}");
                }
            }
        }
        // Only a downgraded reader shares a number, and its name is known.
        assert!(!ticket("a0000000005").is_before(&ticket(&mine)));
    }

    #[test]
    fn a_number_that_the_server_cannot_have_given_is_no_contender_s() {
        // Seven were made, and two of them deleted.
        let parent = Stat { child_changes: 9, children: 5, ..Stat::default() };
        let made = children_made(&parent);
        assert!(ticket("host-0000000006").may_be_of(made));
        assert!(!ticket("host-0000000007").may_be_of(made));
        assert!(!ticket("etl-lock-2024010112").may_be_of(made));
        assert!(ticket(&format!("_c_{UUID}-lock-2024010112")).may_be_of(made));
        let wrapped = Stat { child_changes: i32::MAX, children: 5, ..Stat::default() };
        assert!(ticket("host-2024010112").may_be_of(children_made(&wrapped)));
    }

    #[test]
    fn only_a_session_s_node_that_was_made_before_comes_before() {
        let of = |ephemeral_owner, czxid| {
            ChildOrigin::of(&Stat { ephemeral_owner, czxid, ..Stat::default() })
        };
        let (container, ttl) = (i64::MIN, -1_i64 << 56 | 60_000);
        for (owner, czxid, mine, is_before) in [
            (7, 5, Some(6), true),
            (7, 6, Some(5), false),
            (7, 5, None, true),
            (0, 5, Some(6), false),
            (container, 5, Some(6), false),
            (ttl, 5, Some(6), false),
            (0, 5, None, false),
        ] {
            assert_eq!(of(owner, czxid).is_before(mine), is_before, "{owner:x} {czxid} {mine:?}");
        }
        assert!(ChildOrigin::Hidden.is_before(Some(1)));
    }

    /// A lock node that was made by that transaction.
    fn of(czxid: i64) -> Stat {
        Stat { czxid, children_zxid: 100, ..Stat::default() }
    }

    #[test]
    fn what_is_known_to_last_is_remembered_while_lists_show_it() {
        let known = LastingChildren::default();
        let names = |names: &[&str]| names.iter().copied().collect::<Names>();
        known.note("/a", [("x-0000000001".to_owned(), 11), ("y-0000000002".to_owned(), 12)]);
        assert!(known.has_any_of("/a") && !known.has_any_of("/b"));
        let both = names(&["x-0000000001", "y-0000000002"]);
        assert_eq!(known.among("/a", &of(10), &both).len(), 2);
        assert_eq!(known.among("/b", &of(10), &both).len(), 0);
        assert_eq!(known.among("/a", &of(10), &names(&["x-0000000001"])), ["x-0000000001"]);
        assert_eq!(known.among("/a", &of(10), &both), ["x-0000000001"], "it may be another one");
        assert_eq!(known.among("/a", &of(10), &names(&[])).len(), 0);
        assert!(!known.has_any_of("/a"));
    }

    #[test]
    fn nothing_is_known_of_a_lock_node_that_was_made_anew() {
        let known = LastingChildren::default();
        let children: Names = ["x-0000000001"].into_iter().collect();
        known.note("/a", [("x-0000000001".to_owned(), 11)]);
        assert_eq!(known.among("/a", &of(12), &children).len(), 0);
        assert!(!known.has_any_of("/a"));
        // Nor of one in an ensemble that was made anew.
        known.note("/a", [("x-0000000001".to_owned(), 101)]);
        assert_eq!(known.among("/a", &of(1), &children).len(), 0);
    }

    #[test]
    fn no_more_is_remembered_than_that() {
        let known = LastingChildren::default();
        let many: Vec<String> =
            (0..2 * MOST_REMEMBERED).map(|number| format!("a-{number:010}")).collect();
        known.note("/a", many.iter().map(|name| (name.clone(), 11)));
        known.note("/b", many.iter().map(|name| (name.clone(), 11)));
        let children: Names = many.iter().collect();
        assert_eq!(known.among("/a", &of(10), &children).len(), MOST_REMEMBERED);
        assert_eq!(known.among("/b", &of(10), &children).len(), 0);
    }
}
