//! What the name of an item's node says: the item's priority and number.

use std::collections::BTreeSet;

use crate::contend::SEQUENCE_MARGIN;
use crate::session::Names;

/// How a queue names its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `qn-<sequence number>`, as ZooKeeper's own recipe and Curator's `SimpleDistributedQueue`.
    ByAge,
    /// `pn-<priority>-<sequence number>`, the priority with ten digits.
    ByPriority,
}

/// An item; items compare in the order in which they are taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Item {
    /// Created after the numbers were used up: its place in the order is unknown.
    beyond: bool,
    priority: u32,
    sequence: i32,
    name: String,
}

impl Layout {
    /// The name to create an item with; the server appends the number.
    pub(crate) fn prefix(self, priority: u32) -> String {
        match self {
            Layout::ByAge => "qn-".to_owned(),
            Layout::ByPriority => format!("pn-{priority:010}-"),
        }
    }

    /// Parses a child's name; `None` if the child is not an item.
    pub(crate) fn parse(self, name: &str) -> Option<Item> {
        let (priority, number) = match self {
            Layout::ByAge => (0, name.strip_prefix("qn-")?),
            Layout::ByPriority => {
                let (priority, number) = name.strip_prefix("pn-")?.split_at_checked(10)?;
                let is_written = |value: &u32| format!("{value:010}") == priority;
                (priority.parse().ok().filter(is_written)?, number.strip_prefix('-')?)
            }
        };
        // Only as the server's `%010d` writes it.
        let is_written = |value: &i32| format!("{value:010}") == number;
        let sequence = number.parse().ok().filter(is_written)?;
        // After its last number a server begins at the lowest one, and repeats itself soon. It never
        // gets to the numbers above, so another program has made up such a name.
        if (i32::MIN + SEQUENCE_MARGIN..0).contains(&sequence) {
            return None;
        }
        Some(Item { beyond: sequence < 0, priority, sequence, name: name.to_owned() })
    }

    /// The items among a queue's children, and the number of children that are not items.
    pub(crate) fn sort(self, children: &Names) -> (BTreeSet<Item>, usize) {
        let items: BTreeSet<Item> = children.iter().filter_map(|name| self.parse(name)).collect();
        let others = children.len() - items.len();
        (items, others)
    }
}

impl Item {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn sequence(&self) -> i32 {
        self.sequence
    }

    /// Whether it was created after the numbers were used up, so that its number says nothing.
    pub(crate) fn is_beyond(&self) -> bool {
        self.beyond
    }

    /// Whether its number is too close to the last one for a client to leave the item in the queue:
    /// after the last one the server repeats numbers, and other clients may have used up the rest.
    pub(crate) fn is_at_the_end(&self) -> bool {
        self.beyond || self.sequence > i32::MAX - SEQUENCE_MARGIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(layout: Layout, children: &[&str]) -> Vec<String> {
        let children = children.iter().collect::<Names>();
        let (items, others) = layout.sort(&children);
        assert_eq!(items.len() + others, children.len());
        items.into_iter().map(|item| item.name).collect()
    }

    #[test]
    fn the_first_number_comes_first_and_what_is_beyond_the_last_one_comes_last() {
        let children = ["qn-2147483647", "qn--2147483648", "qn-0000000010", "qn-0000000009"];
        assert_eq!(
            names(Layout::ByAge, &children),
            ["qn-0000000009", "qn-0000000010", "qn-2147483647", "qn--2147483648"]
        );
        let beyond = Layout::ByAge.parse("qn--2147483648").unwrap();
        assert!(beyond.is_beyond() && beyond.is_at_the_end());
        let last = Layout::ByAge.parse("qn-2147483647").unwrap();
        assert!(!last.is_beyond() && last.is_at_the_end());
        assert!(!Layout::ByAge.parse("qn-2147418111").unwrap().is_at_the_end());
    }

    #[test]
    fn the_lowest_priority_number_comes_first_and_within_one_the_eldest() {
        let children = [
            "pn-0000000010-0000000000",
            "pn-4294967295-0000000001",
            "pn-0000000009-0000000003",
            "pn-0000000000--2147483647",
            "pn-0000000009-0000000002",
        ];
        let expected = [children[4], children[2], children[0], children[1], children[3]];
        assert_eq!(names(Layout::ByPriority, &children), expected);
    }

    #[test]
    fn no_name_is_read_loosely() {
        for name in [
            "",
            "qn-",
            "qn-1",
            "qn-000000001",
            "qn-00000000001",
            "qn-+000000001",
            "qn- 00000001",
            "qn-2147483648",
            "qn--0000000001",
            "qn--000000001",
            "qn--2147418112",
            "qn-000000000a",
            "qn-0000000001 ",
            "QN-0000000001",
            "lock-0000000001",
            "qn-٠٠٠٠٠",
            "entry-000-0000000001",
            "pn-0000000001-0000000001",
        ] {
            assert_eq!(Layout::ByAge.parse(name), None, "{name:?}");
        }
        for name in [
            "pn-",
            "pn-1-0000000001",
            "pn-4294967296-0000000001",
            "pn-0000000001-",
            "pn-0000000001",
            "pn-0000000001-1",
            "pn--000000001-0000000001",
            "pn-+000000001-0000000001",
            "pn-000000000é-0000000001",
            "qn-0000000001",
        ] {
            assert_eq!(Layout::ByPriority.parse(name), None, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(priority: u32, sequence: i32) {
            for layout in [Layout::ByAge, Layout::ByPriority] {
                let name = format!("{}{sequence:010}", layout.prefix(priority));
                let Some(item) = layout.parse(&name) else {
                    prop_assert!((i32::MIN + SEQUENCE_MARGIN..0).contains(&sequence));
                    continue;
                };
                let of_layout = if layout == Layout::ByAge { 0 } else { priority };
                prop_assert_eq!((item.priority, item.sequence), (of_layout, sequence));
                prop_assert_eq!(item.name(), name.as_str());
            }
        }

        #[test]
        fn any_text_is_read_without_a_panic(name in "\\PC*") {
            let _ = (Layout::ByAge.parse(&name), Layout::ByPriority.parse(&name));
        }
    }
}
