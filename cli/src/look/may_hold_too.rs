//! Contenders whose programs wait for none of those ahead, so that they may hold the lock beside the holders:
//! what to do.

use zklock::{Contender, ContenderKind};

use crate::words::{node, visible, who};

/// Whether a contender's node is named as kazoo names those of its locks.
pub(crate) fn is_named_by_kazoo(node: &str) -> bool {
    let head = node.trim_end_matches(|last: char| last.is_ascii_digit());
    head.ends_with("__lock__") || head.ends_with("__rlock__")
}

/// `web9 (kazoo.py) may hold it too: …`, with what makes both respect each other.
pub(crate) fn why_and_what_to_do(one: &Contender, all: &[Contender]) -> String {
    let recipe = one.recipe();
    let why = match one.kind {
        _ if is_named_by_kazoo(&one.path) => {
            "kazoo ignores the nodes ahead of it, unless its locks are made with extra_lock_patterns; kazoo's names are \
             respected by both: run --kazoo, NodeNaming::Kazoo in programs"
        }
        ContenderKind::Other if recipe == "latch" => {
            "Curator's LeaderLatch waits for other latches only: use a path of its own for the lock"
        }
        _ if recipe.starts_with("LOCK-") => {
            "Hive's locks wait for other locks of Hive only: use a path of its own for the lock"
        }
        _ if all.iter().any(|other| is_named_by_kazoo(&other.path)) => {
            "its program ignores nodes named in kazoo's style; the default names are respected by both: run without \
             --kazoo, NodeNaming::Curator in programs"
        }
        _ => "its program ignores the nodes ahead of it: use a path of its own for the lock",
    };
    format!("{} (node {}) may hold it too: {why}", who(one), visible(node(one)))
}
