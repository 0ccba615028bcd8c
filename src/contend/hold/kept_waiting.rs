//! What threads hold that wait, within their process, for a node of it: they have no node of their own that
//! could tell it.

use std::sync::Arc;

use crate::contend::name::MOST_NAMED;
use crate::rt::Mutex;
use crate::session::Subscription;

/// See the module. Nodes are named as the server knows them.
#[derive(Default)]
pub(crate) struct KeptWaiting(Mutex<State>);

#[derive(Default)]
struct State {
    waits: u64,
    /// By the number of the wait.
    held: Vec<(u64, Vec<String>)>,
}

impl KeptWaiting {
    /// A thread that holds these nodes waits, until this value is dropped.
    pub(crate) fn note(self: &Arc<Self>, nodes: Vec<String>) -> Subscription {
        let mut state = self.0.lock();
        state.waits += 1;
        let number = state.waits;
        state.held.push((number, nodes));
        drop(state);
        let kept = Arc::clone(self);
        Subscription::until(move || kept.0.lock().held.retain(|(other, _)| *other != number))
    }

    /// The nodes that are held by threads that wait now: not too many.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let state = self.0.lock();
        let mut nodes: Vec<String> = Vec::new();
        for node in state.held.iter().flat_map(|(_, nodes)| nodes) {
            if nodes.len() < MOST_NAMED && !nodes.contains(node) {
                nodes.push(node.clone());
            }
        }
        nodes
    }
}
