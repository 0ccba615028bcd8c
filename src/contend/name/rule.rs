//! Which contenders block me: the one rule of every recipe, a function of the lock node's children.

use std::collections::BinaryHeap;

use super::ticket::{ContenderKind, Ticket, is_contender};

/// Above this, one watch on the list of children costs the server less than one for each node.
const MAX_WATCHED_NODES: usize = 16;

/// Up to so many contenders ahead are all watched. With more, the last list would cost less.
const MAX_AHEAD: usize = 3;

/// How much may be held at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    permits: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admitted,
    Blocked(Watch),
    /// By the first contender's name the semaphore has this many permits, by my own name another
    /// number.
    Disagreed(u32),
    /// The own node is not there, which must never be taken for being first.
    Missing,
}

/// What to wait for before it makes sense to ask again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// As long as all of these contenders are there, nothing else can get me admitted.
    Nodes(Vec<String>),
    Children,
}

impl Rule {
    pub(crate) fn permits(permits: u32) -> Rule {
        Rule { permits }
    }

    /// Decides by place alone: the caller checks whether the own ticket is exhausted.
    #[cfg(test)]
    pub(crate) fn decide<'a>(
        self,
        own: &str,
        children: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>,
    ) -> Verdict {
        self.decide_but_for(own, children, |_| false)
    }

    /// Decides by place alone: the caller checks whether the own ticket is exhausted. `passes` is whether a
    /// child whose name is not certain is known not to come before: see
    /// [`child_origin`](super::child_origin).
    pub(crate) fn decide_but_for<'a>(
        self,
        own: &str,
        children: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>,
        passes: impl Fn(&Ticket<'_>) -> bool,
    ) -> Verdict {
        let Some(mine) = Ticket::parse(own) else {
            return Verdict::Missing;
        };
        let (mut is_there, mut blockers) = (false, Vec::new());
        for theirs in tickets_up_to(mine.last_ahead(), children) {
            is_there |= theirs == mine;
            if theirs.is_before(&mine) && excludes(theirs.kind(), mine.kind()) && !passes(&theirs) {
                blockers.push(theirs);
            }
        }
        if !is_there {
            return Verdict::Missing;
        }
        match disagreement(&mine, &blockers) {
            Some(verdict) => verdict,
            None => self.weigh(&mine, &blockers),
        }
    }

    fn weigh(self, mine: &Ticket<'_>, blockers: &[Ticket<'_>]) -> Verdict {
        let weight = |theirs: &Ticket<'_>| match mine.kind() == ContenderKind::Permits {
            // A lock on a semaphore's node leaves no permit.
            true if theirs.kind() != ContenderKind::Permits => u64::MAX,
            _ => u64::from(theirs.weight()),
        };
        let taken = blockers.iter().fold(weight(mine), |sum, t| sum.saturating_add(weight(t)));
        if self.has_room_for(taken) {
            return Verdict::Admitted;
        }
        let mut latest_first: BinaryHeap<_> = blockers.iter().collect();
        let mut run = Vec::new();
        let mut taken = weight(mine);
        while self.has_room_for(taken) && run.len() <= MAX_WATCHED_NODES {
            let Some(blocker) = latest_first.pop() else { break };
            taken = taken.saturating_add(weight(blocker));
            run.push(blocker.name().to_owned());
        }
        // Empty when I alone ask for more than there is: no contender's leaving can help.
        if run.is_empty() || run.len() > MAX_WATCHED_NODES {
            return Verdict::Blocked(Watch::Children);
        }
        Verdict::Blocked(Watch::Nodes(run))
    }

    /// All contenders ahead of `own`, the latest first, if they are few and `own` is admitted as soon as they
    /// are gone, whoever comes by then. Only a writer that becomes a reader can give its place to another
    /// node; in a waiting room, later ones may come ahead. One whose name is not certain cannot come in ahead
    /// later: it would be made after `own`.
    pub(crate) fn all_ahead_but_for<'a>(
        self,
        own: &str,
        children: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>,
        passes: impl Fn(&Ticket<'_>) -> bool,
    ) -> Option<Vec<String>> {
        let mine =
            Ticket::parse(own).filter(|mine| self.permits == 1 && mine.patience().is_none())?;
        let holds_up = |theirs: &Ticket<'_>| {
            let leaves_nobody = mine.kind() == ContenderKind::Read || !theirs.may_be_a_writer();
            excludes(theirs.kind(), mine.kind()) && leaves_nobody
        };
        let mut ahead = Vec::with_capacity(MAX_AHEAD);
        let is_ahead = |theirs: &Ticket<'_>| theirs.is_before(&mine) && !passes(theirs);
        for theirs in tickets_up_to(mine.sequence(), children).filter(is_ahead) {
            if ahead.len() == MAX_AHEAD || !holds_up(&theirs) {
                return None;
            }
            ahead.push(theirs);
        }
        ahead.sort_unstable_by(|one, other| other.cmp(one));
        Some(ahead.iter().map(|theirs| theirs.name().to_owned()).collect())
    }

    fn has_room_for(self, weight: u64) -> bool {
        weight <= u64::from(self.permits)
    }
}

/// Whether a contender of kind `theirs`, if it is earlier, stands in the way of `mine`.
pub(crate) fn excludes(theirs: ContenderKind, mine: ContenderKind) -> bool {
    match theirs {
        ContenderKind::Read => mine != ContenderKind::Read,
        _ => true,
    }
}

/// The verdict if contenders disagree about a semaphore's number of permits. The first one's number
/// counts: a contender that agrees with it waits until those that do not agree have left, as they
/// do by themselves.
fn disagreement(mine: &Ticket<'_>, blockers: &[Ticket<'_>]) -> Option<Verdict> {
    let is_semaphore = |theirs: &&Ticket<'_>| theirs.kind() == ContenderKind::Permits;
    let others = || blockers.iter().filter(is_semaphore);
    let first = others().min().filter(|_| is_semaphore(&mine))?;
    if first.permits() != mine.permits() {
        return Some(Verdict::Disagreed(first.permits()));
    }
    let odd = others().filter(|theirs| theirs.permits() != mine.permits()).max()?;
    Some(Verdict::Blocked(Watch::Nodes(vec![odd.name().to_owned()])))
}

/// How many of the contenders of a lock node, in the order of grants, hold; each by the number of permits in
/// its own name: the caller may be wrong about that number.
pub(crate) fn count_holders(in_grant_order: &[impl AsRef<str>]) -> usize {
    let mut ahead: Vec<Ticket<'_>> = Vec::new();
    for name in in_grant_order {
        let Some(one) = Ticket::parse(name.as_ref()) else { break };
        let blocks = |other: &&Ticket<'_>| excludes(other.kind(), one.kind());
        let blockers: Vec<_> = ahead.iter().filter(blocks).cloned().collect();
        let agrees = disagreement(&one, &blockers).is_none();
        if !agrees || Rule::permits(one.permits()).weigh(&one, &blockers) != Verdict::Admitted {
            break;
        }
        ahead.push(one);
    }
    ahead.len()
}

/// The numbered ones among `children`, the first to be granted first.
pub(crate) fn in_grant_order<'a>(
    children: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>,
) -> Vec<Ticket<'a>> {
    in_grant_order_by(children, |_| None)
}

/// The same. `made_by` is which transaction has made one, if that is known: one whose name is not certain
/// comes after those that were there before it, whatever its number says.
pub(crate) fn in_grant_order_by<'a>(
    children: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>,
    made_by: impl Fn(&str) -> Option<i64>,
) -> Vec<Ticket<'a>> {
    let mut tickets: Vec<_> = tickets_up_to(i32::MAX, children).collect();
    tickets.sort_unstable();
    for place in (0..tickets.len()).rev() {
        let one = &tickets[place];
        let Some(made) = made_by(one.name()).filter(|_| !one.is_certain()) else { continue };
        let was_there = |other: &Ticket<'_>| {
            other.is_certain() && made_by(other.name()).is_some_and(|czxid| czxid < made)
        };
        if let Some(after) = tickets[place..].iter().rposition(was_there) {
            tickets[place..=place + after].rotate_left(1);
        }
    }
    tickets
}

/// The contenders among `children`, without those that have a number after this one.
fn tickets_up_to<'a>(
    last: i32,
    children: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>,
) -> impl Iterator<Item = Ticket<'a>> {
    children.into_iter().filter_map(move |child| Ticket::parse_up_to(last, child.as_ref()))
}

/// Whether there is a contender besides this one, of a known recipe: another one cannot be told from other
/// nodes.
pub(crate) fn has_others<'a>(own: &str, children: impl IntoIterator<Item = &'a str>) -> bool {
    children.into_iter().any(|name| name != own && is_contender(name))
}

#[cfg(test)]
mod tests {
    use super::super::ticket::{Form, NodeNaming};
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;
    use uuid::Uuid;

    const KINDS: [ContenderKind; 4] =
        [ContenderKind::Mutex, ContenderKind::Read, ContenderKind::Write, ContenderKind::Other];

    fn name(kind: ContenderKind, sequence: i32) -> String {
        let marker = match kind {
            ContenderKind::Mutex => "lock-",
            ContenderKind::Read => "__READ__",
            ContenderKind::Write => "__WRIT__",
            ContenderKind::Permits => "lease-1-of-1-",
            ContenderKind::Other => "latch-",
        };
        // The text in front runs against the numbers, so that an order by name would be noticed.
        let front = (b'a' + (25 - sequence.rem_euclid(26)) as u8) as char;
        format!("{front}-{marker}{sequence:010}")
    }

    fn mutexes(count: i32) -> Vec<String> {
        (0..count).map(|sequence| name(ContenderKind::Mutex, sequence)).collect()
    }

    impl Rule {
        fn all_ahead(self, own: &str, children: &[String]) -> Option<Vec<String>> {
            self.all_ahead_but_for(own, children, |_| false)
        }
    }

    fn nodes(names: &[String]) -> Verdict {
        Verdict::Blocked(Watch::Nodes(names.to_vec()))
    }

    #[test]
    fn exactly_the_first_permits_mutexes_are_admitted() {
        for permits in 1..=3 {
            for count in 1..=8 {
                let children = mutexes(count);
                for (place, own) in children.iter().enumerate() {
                    let verdict = Rule::permits(permits).decide(own, &children);
                    let permits = permits as usize;
                    if place < permits {
                        assert_eq!(verdict, Verdict::Admitted);
                    } else {
                        let mut latest = children[place - permits..place].to_vec();
                        latest.reverse();
                        assert_eq!(verdict, nodes(&latest));
                    }
                }
            }
        }
    }

    #[test]
    fn a_missing_own_node_is_never_a_grant() {
        let own = name(ContenderKind::Mutex, 1);
        assert_eq!(Rule::permits(1).decide(&own, &mutexes(0)), Verdict::Missing);
        assert_eq!(Rule::permits(9).decide(&own, &mutexes(1)), Verdict::Missing);
        assert_eq!(Rule::permits(1).decide("foo", ["foo"]), Verdict::Missing);
    }

    #[test]
    fn readers_share_and_everyone_else_excludes() {
        for theirs in KINDS {
            for mine in KINDS {
                let both_read = theirs == ContenderKind::Read && mine == ContenderKind::Read;
                assert_eq!(excludes(theirs, mine), !both_read);
            }
        }
    }

    #[test]
    fn a_reader_waits_for_the_latest_earlier_writer_only() {
        use ContenderKind::{Read, Write};
        let children: Vec<_> =
            [(Write, 0), (Read, 1), (Write, 2), (Read, 3), (Read, 4), (Write, 5)]
                .map(|(kind, sequence)| name(kind, sequence))
                .into();
        let decide = |own: &str| Rule::permits(1).decide(own, &children);
        assert_eq!(decide(&children[4]), nodes(&children[2..3]));
        assert_eq!(decide(&children[1]), nodes(&children[0..1]));
        assert_eq!(decide(&children[5]), nodes(&children[4..5]));
        assert_eq!(decide(&children[0]), Verdict::Admitted);
    }

    #[test]
    fn strangers_are_ignored_and_negative_numbers_come_first() {
        let own = name(ContenderKind::Mutex, 0);
        let mut children: Vec<String> = ["0", "foo", "leases"].map(Into::into).into();
        children.push(own.clone());
        assert_eq!(Rule::permits(1).decide(&own, &children), Verdict::Admitted);
        children.push(name(ContenderKind::Mutex, i32::MAX));
        assert_eq!(Rule::permits(1).decide(&own, &children), Verdict::Admitted);
        children.push(name(ContenderKind::Mutex, -7));
        assert_eq!(Rule::permits(1).decide(&own, &children), nodes(&children[5..]));
        let order: Vec<_> = in_grant_order(&children).iter().map(Ticket::sequence).collect();
        assert_eq!(order, [-7, 0, i32::MAX]);
    }

    #[test]
    fn more_than_sixteen_nodes_to_watch_become_one_child_watch() {
        let children = mutexes(18);
        let own = &children[17];
        let mut latest = children[1..17].to_vec();
        latest.reverse();
        assert_eq!(Rule::permits(16).decide(own, &children), nodes(&latest));
        let verdict = Rule::permits(17).decide(own, &children);
        assert_eq!(verdict, Verdict::Blocked(Watch::Children));
    }

    #[test]
    fn all_ahead_are_named_if_they_are_few_and_leave_their_places_to_nobody() {
        use ContenderKind::{Mutex, Read, Write};
        let all_ahead = |kinds: &[ContenderKind]| {
            let names: Vec<_> = (0..).zip(kinds).map(|(at, kind)| name(*kind, at)).collect();
            let (own, ahead) = names.split_last().unwrap();
            let found = Rule::permits(1).all_ahead(own, &names);
            let mut ahead = ahead.to_vec();
            ahead.reverse();
            found.map(|found| assert_eq!(found, ahead)).is_some()
        };
        for kinds in [&[Mutex, Mutex][..], &[Mutex; 4], &[Read, Read, Write], &[Write, Write, Read]]
        {
            assert!(all_ahead(kinds), "{kinds:?}");
        }
        // Too many; a writer may become a reader; a reader does not wait for readers.
        for kinds in [&[Mutex; 5][..], &[Write, Write], &[Write, Mutex], &[Write, Read, Read]] {
            assert!(!all_ahead(kinds), "{kinds:?}");
        }
        let semaphore = [lease(1, 2, 0), lease(2, 2, 1)];
        assert_eq!(Rule::permits(2).all_ahead(&semaphore[1], &semaphore), None);
        // In kazoo's naming a writer cannot be told from a mutex.
        let (kazoo, mine) = ("a__lock__0000000001".to_owned(), name(Mutex, 2));
        let both = [kazoo.clone(), mine.clone()];
        assert_eq!(Rule::permits(1).all_ahead(&mine, &both), None);
        let reader = "b__rlock__0000000002".to_owned();
        let both = [kazoo.clone(), reader.clone()];
        assert_eq!(Rule::permits(1).all_ahead(&reader, &both), Some(vec![kazoo]));
    }

    #[test]
    fn asking_for_more_than_there_is_waits_for_any_change() {
        let children = mutexes(1);
        let verdict = Rule::permits(0).decide(&children[0], &children);
        assert_eq!(verdict, Verdict::Blocked(Watch::Children));
    }

    #[test]
    fn ten_thousand_contenders_leave_one_node_to_watch() {
        let mut children = mutexes(10_000);
        let (own, predecessor) = (children[9_999].clone(), children[9_998].clone());
        children.reverse();
        assert_eq!(Rule::permits(1).decide(&own, &children), nodes(&[predecessor]));
    }

    /// Every mix of kinds for up to five contenders, every one of them asking.
    #[test]
    fn without_a_watched_node_leaving_nothing_admits_me() {
        for permits in 1..=3 {
            for mix in 0..3_usize.pow(5) {
                let kind = |place: usize| KINDS[mix / 3_usize.pow(place as u32) % 3];
                let all: Vec<_> = (0..5).map(|place| name(kind(place), place as i32)).collect();
                for own in &all {
                    assert_watch_is_necessary_and_shortest(Rule::permits(permits), own, &all);
                }
            }
        }
    }

    fn assert_watch_is_necessary_and_shortest(rule: Rule, own: &str, all: &[String]) {
        let Verdict::Blocked(Watch::Nodes(watched)) = rule.decide(own, all) else {
            return;
        };
        for kept in 0..1_u32 << all.len() {
            let keeps = |place: usize, child: &String| {
                kept & 1 << place != 0 || child == own || watched.contains(child)
            };
            let left: Vec<String> = (all.iter().enumerate())
                .filter(|(place, child)| keeps(*place, child))
                .map(|(_, child)| child.clone())
                .collect();
            let verdict = rule.decide(own, &left);
            assert_eq!(verdict, Verdict::Blocked(Watch::Nodes(watched.clone())), "{left:?}");
        }
        let mut fewer = watched[1..].to_vec();
        fewer.push(own.to_owned());
        assert_eq!(rule.decide(own, &fewer), Verdict::Admitted);
    }

    /// A permit's node, as the library names it.
    fn lease(weight: u32, permits: u32, sequence: i32) -> String {
        let form = Form::of_permits(NodeNaming::Curator, weight, permits);
        // The guid runs against the numbers.
        let guid = Uuid::from_u128(u128::MAX - sequence as u128);
        format!("{}{sequence:010}", form.prefix(guid))
    }

    #[test]
    fn permits_are_admitted_while_their_weights_fit() {
        let children: Vec<_> = (0..).zip([2, 1, 2, 1]).map(|(i, w)| lease(w, 3, i)).collect();
        let decide = |own: &str| Rule::permits(3).decide(own, &children);
        assert_eq!(decide(&children[0]), Verdict::Admitted);
        assert_eq!(decide(&children[1]), Verdict::Admitted);
        let reversed = |range: std::ops::Range<usize>| -> Vec<String> {
            children[range].iter().rev().cloned().collect()
        };
        // Two of three: with the light one alone it would fit.
        assert_eq!(decide(&children[2]), nodes(&reversed(0..2)));
        // One permit is free, but first come, first served.
        assert_eq!(decide(&children[3]), nodes(&reversed(1..3)));
        let one_left = &children[1..];
        assert_eq!(Rule::permits(3).decide(&children[2], one_left), Verdict::Admitted);
    }

    #[test]
    fn a_lock_and_a_permit_on_one_node_exclude_each_other() {
        for permits in [1, 2, u32::MAX] {
            for kind in KINDS {
                let lock_first = [name(kind, 0), lease(1, permits, 1)];
                let verdict = Rule::permits(permits).decide(&lock_first[1], &lock_first);
                assert_eq!(verdict, nodes(&lock_first[..1]), "{kind:?} {permits}");
                let permit_first = [lease(1, permits, 0), name(kind, 1)];
                let verdict = Rule::permits(1).decide(&permit_first[1], &permit_first);
                assert_eq!(verdict, nodes(&permit_first[..1]), "{kind:?} {permits}");
            }
        }
    }

    #[test]
    fn the_first_says_how_many_permits_there_are() {
        let children = [lease(1, 2, 0), lease(1, 3, 1), lease(1, 2, 2), lease(1, 3, 3)];
        let decide = |own: &str, left: &[String]| {
            let permits = Ticket::parse(own).unwrap().permits();
            Rule::permits(permits).decide(own, left)
        };
        assert_eq!(decide(&children[0], &children), Verdict::Admitted);
        assert_eq!(decide(&children[1], &children), Verdict::Disagreed(2));
        assert_eq!(decide(&children[3], &children), Verdict::Disagreed(2));
        // A wrong number of one contender does not fail one with the right number, which waits.
        assert_eq!(decide(&children[2], &children), nodes(&children[1..2]));
        let without = [children[0].clone(), children[2].clone()];
        assert_eq!(decide(&children[2], &without), Verdict::Admitted);
        // If the first has left before the second has looked, the second's number is right.
        assert_eq!(decide(&children[1], &children[1..]), Verdict::Admitted);
        assert_eq!(decide(&children[2], &children[1..]), Verdict::Disagreed(3));
        // Contenders behind do not matter, nor do the numbers of locks.
        let mixed = [name(ContenderKind::Mutex, 0), lease(1, 2, 1), lease(1, 3, 2)];
        assert_eq!(decide(&mixed[1], &mixed), nodes(&mixed[..1]));
        assert_eq!(decide(&mixed[2], &mixed), Verdict::Disagreed(2));
    }

    /// Every mix of a few contenders: of every weight of up to three permits, of another number of
    /// permits, and locks.
    #[test]
    fn of_a_semaphore_too_a_watched_node_must_leave_first() {
        let kinds: [fn(i32) -> String; 6] = [
            |i| lease(1, 3, i),
            |i| lease(2, 3, i),
            |i| lease(3, 3, i),
            |i| lease(1, 2, i),
            |i| name(ContenderKind::Mutex, i),
            |i| name(ContenderKind::Read, i),
        ];
        for mix in 0..6_usize.pow(4) {
            let all: Vec<_> =
                (0..4).map(|place| kinds[mix / 6_usize.pow(place as u32) % 6](place)).collect();
            for own in &all {
                let permits = Ticket::parse(own).unwrap().permits();
                assert_watched_leave_first(Rule::permits(permits), own, &all);
            }
        }
    }

    fn assert_watched_leave_first(rule: Rule, own: &str, all: &[String]) {
        let Verdict::Blocked(watch) = rule.decide(own, all) else { return };
        let Watch::Nodes(watched) = watch else { panic!("nothing to watch in {all:?}") };
        assert!(!watched.is_empty() && !watched.iter().any(|one| one == own), "{all:?}");
        for kept in 0..1_u32 << all.len() {
            let keeps = |place: usize, child: &String| {
                kept & 1 << place != 0 || child == own || watched.contains(child)
            };
            let left: Vec<String> = (all.iter().enumerate())
                .filter(|(place, child)| keeps(*place, child))
                .map(|(_, child)| child.clone())
                .collect();
            assert_ne!(rule.decide(own, &left), Verdict::Admitted, "{own} of {left:?}");
        }
        // Without the farthest one it would be admitted, so that one must be watched.
        let mut fewer: Vec<_> = watched[..watched.len() - 1].to_vec();
        fewer.push(own.to_owned());
        assert_eq!(rule.decide(own, &fewer), Verdict::Admitted, "{own} of {all:?}");
    }

    fn children() -> impl Strategy<Value = Vec<String>> {
        let contender = (select(&KINDS[..]), 0..40).prop_map(|(kind, number)| name(kind, number));
        let child = prop_oneof![9 => contender, 1 => "[a-z0-9-]{0,6}"];
        prop::collection::hash_set(child, 1..30).prop_map(|set| set.into_iter().collect())
    }

    proptest! {
        #[test]
        fn the_order_of_the_list_does_not_matter(
            (given, shuffled) in children().prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle())),
            permits in 0_u32..5,
        ) {
            for own in &given {
                let rule = Rule::permits(permits);
                prop_assert_eq!(rule.decide(own, &given), rule.decide(own, &shuffled));
            }
            prop_assert_eq!(in_grant_order(&given), in_grant_order(&shuffled));
        }

        #[test]
        fn those_admitted_never_exclude_each_other(children in children()) {
            let rule = Rule::permits(1);
            let admitted: Vec<_> = in_grant_order(&children)
                .into_iter()
                .filter(|ticket| rule.decide(ticket.name(), &children) == Verdict::Admitted)
                .collect();
            for (place, mine) in admitted.iter().enumerate() {
                prop_assert!(!admitted[..place].iter().any(|t| excludes(t.kind(), mine.kind())));
            }
        }

        /// Each decides by the number in its name; a contender that is refused leaves.
        #[test]
        fn holders_of_permits_agree_and_never_have_more_than_there_are(
            kinds in prop::collection::vec((1_u32..4, 3_u32..5, 0_u8..4), 1..10),
            turns in prop::collection::vec(any::<prop::sample::Index>(), 40),
        ) {
            let all: Vec<_> = (0..).zip(kinds)
                .map(|(i, (weight, permits, odd))| lease(weight, if odd == 0 { permits } else { 3 }, i))
                .collect();
            let mut left = all.clone();
            let mut holders: Vec<Ticket<'_>> = Vec::new();
            for turn in turns {
                if left.is_empty() {
                    break;
                }
                let own = all.iter().find(|name| *name == turn.get(&left)).unwrap();
                let mine = Ticket::parse(own).unwrap();
                let held = holders.iter().position(|holder| holder.name() == *own);
                if let Some(place) = held {
                    holders.remove(place);
                    left.retain(|child| child != own);
                    continue;
                }
                match Rule::permits(mine.permits()).decide(own, &left) {
                    Verdict::Admitted => holders.push(mine),
                    Verdict::Disagreed(_) => left.retain(|child| child != own),
                    Verdict::Blocked(_) => {}
                    Verdict::Missing => prop_assert!(false),
                }
                let taken: u32 = holders.iter().map(Ticket::weight).sum();
                for holder in &holders {
                    prop_assert_eq!(holder.permits(), holders[0].permits());
                    prop_assert!(taken <= holder.permits(), "{:?}", holders);
                }
            }
            // Whatever is left, the first is never stuck.
            if let Some(first) = in_grant_order(&left).first() {
                let verdict = Rule::permits(first.permits()).decide(first.name(), &left);
                prop_assert_eq!(verdict, Verdict::Admitted);
            }
        }

        #[test]
        fn whoever_leaves_only_after_being_admitted_everyone_gets_a_turn(
            mut children in children(),
            permits in 1_u32..4,
        ) {
            let first = |children: &[String]| {
                in_grant_order(children).first().map(|first| first.name().to_owned())
            };
            while let Some(first) = first(&children) {
                prop_assert_eq!(Rule::permits(permits).decide(&first, &children), Verdict::Admitted);
                children.retain(|child| *child != first);
            }
        }

        #[test]
        fn with_weights_the_watched_alone_keep_me_out_and_no_shorter_run_does(
            weights in prop::collection::vec(1_u32..=u32::MAX, 1..12),
            small in prop::collection::vec(1_u32..4, 1..12),
            permits in prop_oneof![1_u32..12, any::<u32>()],
            mine in 1_u32..4,
        ) {
            for weights in [weights, small] {
                let names: Vec<_> = (0..).zip(&weights).map(|(i, _)| name(ContenderKind::Mutex, i)).collect();
                let tickets: Vec<_> = names.iter().zip(&weights)
                    .filter_map(|(name, weight)| Some(Ticket::parse(name)?.weighing(*weight)))
                    .collect();
                let own = name(ContenderKind::Mutex, 99);
                let own = Ticket::parse(&own).unwrap().weighing(mine);
                let heavy = |run: &[u32]| {
                    u64::from(mine) + run.iter().copied().map(u64::from).sum::<u64>() > u64::from(permits)
                };
                match Rule::permits(permits).weigh(&own, &tickets) {
                    Verdict::Admitted => prop_assert!(!heavy(&weights)),
                    Verdict::Blocked(Watch::Nodes(run)) => {
                        let start = weights.len() - run.len();
                        prop_assert!(heavy(&weights[start..]) && !heavy(&weights[start + 1..]));
                    }
                    Verdict::Blocked(Watch::Children) => prop_assert!(mine > permits),
                    Verdict::Missing | Verdict::Disagreed(_) => prop_assert!(false),
                }
            }
        }
    }
}
