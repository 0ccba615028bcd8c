//! Tells from a node's stat whether children were created since.

use crate::wire_values::Stat;

/// Identifies all children that a node has had so far: as long as it stays the same, there are no new
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation {
    node: i64,
    /// Twice the number of children created.
    made: i32,
}

impl Generation {
    pub(crate) fn of(node: &Stat) -> Generation {
        // Changes = created + deleted, and children = created - deleted.
        let made = node.child_changes.wrapping_add(node.children);
        Generation { node: node.czxid, made }
    }

    /// Whether both are of the same node, which may have been deleted and created again.
    pub(crate) fn is_of_same_node(self, other: Generation) -> bool {
        self.node == other.node
    }

    /// Whether exactly so many children were created since an earlier generation.
    pub(crate) fn is_later_by(self, children: usize, earlier: Generation) -> bool {
        let twice = i32::try_from(children).ok().and_then(|children| children.checked_mul(2));
        self.is_of_same_node(earlier) && Some(self.made.wrapping_sub(earlier.made)) == twice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(czxid: i64, child_changes: i32, children: i32) -> Generation {
        Generation::of(&Stat { czxid, child_changes, children, ..Stat::default() })
    }

    #[test]
    fn children_that_were_created_are_counted() {
        let before = node(7, 5, 3);
        // One more; one more and one less; one was deleted and created again.
        assert!(node(7, 6, 4).is_later_by(1, before) && node(7, 7, 3).is_later_by(1, before));
        assert!(!node(7, 7, 3).is_later_by(0, before));
        assert!(node(7, 6, 2).is_later_by(0, before) && !node(8, 6, 2).is_later_by(0, before));
        assert!(node(7, i32::MIN, 4).is_later_by(1, node(7, i32::MAX, 3)));
    }
}
