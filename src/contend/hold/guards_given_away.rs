//! The locks of a client whose guards threads give to each other: what a thread has taken of them need not be
//! its own any more.

use std::collections::HashSet;

use crate::path;
use crate::rt::Mutex;

/// So many locks are remembered.
const MOST: usize = 1_000;

/// See the module.
pub(super) struct GuardsGivenAway {
    /// A forked process has what its parent's threads knew, and holds none of it.
    process: u32,
    /// Their nodes, as the server knows them.
    locks: Mutex<HashSet<String>>,
}

impl Default for GuardsGivenAway {
    fn default() -> GuardsGivenAway {
        GuardsGivenAway { process: std::process::id(), locks: Mutex::default() }
    }
}

impl GuardsGivenAway {
    /// A guard with this node was dropped by another thread than the one that had taken it.
    pub(super) fn note(&self, node: &str) {
        let mut locks = self.locks.lock();
        if locks.len() < MOST {
            locks.insert(path::parent(node).to_owned());
        }
    }

    /// Whether what a thread of this process has taken by this node is its own, as far as is known.
    pub(super) fn is_kept(&self, node: &str, process: u32) -> bool {
        self.process == process && !self.locks.lock().contains(path::parent(node))
    }
}
