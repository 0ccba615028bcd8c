//! The rules that decide which contenders may hold, written a second time and differently, for
//! checks. Names are parsed independently, too.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceKind {
    Alone,
    Reader,
    Permits { weight: u64, of: u64 },
}

/// The content of a contender's name.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) name: String,
    pub(super) number: i64,
    pub(super) kind: ReferenceKind,
    /// The transaction that made it, if its name leaves open whether it contends.
    pub(super) doubtful_since: Option<i64>,
}

impl Mark {
    pub(super) fn read(name: &str) -> Option<Mark> {
        let at = name.len().checked_sub(10)?;
        let (head, number) = (name.get(..at)?, name.get(at..)?.parse().ok()?);
        let kind = if head.contains("READ") || head.contains("rlock") {
            ReferenceKind::Reader
        } else if let Some((front, of)) = head.rsplit_once("-of-") {
            let weight = front.rsplit('-').next()?.parse().ok()?;
            ReferenceKind::Permits { weight, of: of.trim_end_matches('-').parse().ok()? }
        } else {
            ReferenceKind::Alone
        };
        Some(Mark { name: name.to_owned(), number, kind, doubtful_since: None })
    }

    /// Returns whether there is more in the name than what anybody could call a node, or nothing but a lock's.
    pub(super) fn says_it(&self) -> bool {
        let front = self.name.trim_start_matches("_c_").replace('-', "");
        front.starts_with("lock")
            || front.chars().take(32).filter(char::is_ascii_hexdigit).count() == 32
    }

    /// Returns whether this one is before `mine`, which that transaction has made.
    pub(super) fn is_before(&self, mine: &Mark, made_by: Option<i64>) -> bool {
        self.number < mine.number
            && self.doubtful_since.is_none_or(|since| made_by.is_none_or(|made_by| since < made_by))
    }

    /// Parses all names, and sorts them by their numbers.
    pub(super) fn all(names: &[String]) -> Vec<Mark> {
        let mut marks: Vec<_> = names.iter().filter_map(|name| Mark::read(name)).collect();
        marks.sort_by_key(|mark| mark.number);
        marks
    }

    /// Returns whether this contender may hold with these ahead of it, which are in order.
    pub(super) fn may_hold(&self, before: &[&Mark]) -> bool {
        match self.kind {
            ReferenceKind::Alone => before.is_empty(),
            ReferenceKind::Reader => before.iter().all(|other| other.kind == ReferenceKind::Reader),
            ReferenceKind::Permits { weight, of } => {
                let mut left = of;
                let leaves = |other: &&Mark| match other.kind {
                    ReferenceKind::Permits { weight, of: theirs }
                        if theirs == of && weight <= left =>
                    {
                        left -= weight;
                        true
                    }
                    _ => false,
                };
                before.iter().all(leaves) && weight <= left
            }
        }
    }
}

/// Returns those of one node's contenders that may hold, which these transactions have made.
pub(super) fn entitled(
    marks: &[Mark],
    made_by: impl Fn(&Mark) -> Option<i64>,
) -> impl Iterator<Item = &Mark> {
    marks.iter().filter(move |own| {
        let born = made_by(own);
        let before: Vec<_> = marks.iter().filter(|other| other.is_before(own, born)).collect();
        own.may_hold(&before)
    })
}

/// Returns whether these may hold at once.
pub(super) fn may_share(holders: &[Mark]) -> bool {
    let Some(first) = holders.first() else { return true };
    match first.kind {
        ReferenceKind::Alone => holders.len() == 1,
        ReferenceKind::Reader => holders.iter().all(|one| one.kind == ReferenceKind::Reader),
        ReferenceKind::Permits { of, .. } => {
            let weight = |one: &Mark| match one.kind {
                ReferenceKind::Permits { weight, of: theirs } if theirs == of => Some(weight),
                _ => None,
            };
            let weights: Option<Vec<u64>> = holders.iter().map(weight).collect();
            weights.is_some_and(|weights| weights.iter().sum::<u64>() <= of)
        }
    }
}

#[test]
fn the_rule_for_checking_is_as_it_is_written_down() {
    let marks = |names: &[&str]| -> Vec<Mark> {
        let names: Vec<_> = (1..).zip(names).map(|(i, name)| format!("{name}{i:010}")).collect();
        Mark::all(&names)
    };
    let entitled = |names: &[&str]| -> Vec<i64> {
        entitled(&marks(names), |_| None).map(|mark| mark.number).collect()
    };
    let (read, write, mutex) = ("a-__READ__", "_c_b-__WRIT__", "x-99-");
    let (one, two, other) = ("a-lease-1-of-3-", "a-lease-2-of-3-", "a-lease-1-of-4-");
    assert_eq!(entitled(&[read, "c__rlock__", write, read]), [1, 2]);
    assert_eq!(entitled(&[write, read]), [1]);
    assert_eq!(entitled(&[mutex, one]), [1]);
    assert_eq!(entitled(&[one, two, one]), [1, 2]);
    assert_eq!(entitled(&[two, two, one]), [1]);
    assert_eq!(entitled(&[one, other, one]), [1]);
    assert!(may_share(&marks(&[read, read])) && may_share(&marks(&[one, two])));
    for many in [[read, write], [write, read], [mutex, mutex], [two, two], [one, other]] {
        assert!(!may_share(&marks(&many)), "{many:?}");
    }
}
