//! Items that were taken too late for the calls that had asked for them: the client keeps them for
//! later calls.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;

use crate::rt::{Mutex, Signal};
use crate::session::{Signals, Subscription};
use crate::{logging, path};

/// The late items of each queue, by the path that the queue's item nodes begin with.
#[derive(Default)]
pub(crate) struct LateItems {
    kept: Mutex<BTreeMap<String, VecDeque<Vec<u8>>>>,
    arrivals: Arc<Signals>,
}

impl LateItems {
    pub(crate) fn put(&self, prefix: &str, came: Vec<u8>) {
        self.kept.lock().entry(prefix.to_owned()).or_default().push_back(came);
        self.arrivals.tell();
    }

    /// Takes the item that came first.
    pub(crate) fn take(&self, prefix: &str) -> Option<Vec<u8>> {
        let mut kept = self.kept.lock();
        let came = kept.get_mut(prefix)?.pop_front();
        if kept.get(prefix).is_some_and(VecDeque::is_empty) {
            kept.remove(prefix);
        }
        came
    }

    pub(crate) fn has(&self, prefix: &str) -> bool {
        self.kept.lock().contains_key(prefix)
    }

    /// Rings the bell whenever an item comes, for any queue.
    pub(crate) fn subscribe(&self, bell: Signal) -> Subscription {
        self.arrivals.subscribe(bell)
    }
}

impl Drop for LateItems {
    fn drop(&mut self) {
        for (prefix, came) in mem::take(&mut *self.kept.lock()) {
            logging::warning!(
                target: "zklock::queue",
                "queue {:?}: {} items are lost: they were taken after their calls had timed out, and \
                 this client has neither taken from the queue since nor called `late_items`",
                path::parent(&prefix),
                came.len()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Waiter;

    #[test]
    fn what_came_late_is_given_once_and_to_its_own_queue() {
        let late = LateItems::default();
        assert!(!late.has("/q/qn-") && late.take("/q/qn-").is_none());
        let _bell = late.subscribe(Waiter::new().bell());
        for data in ["a", "b"] {
            late.put("/q/qn-", data.into());
        }
        assert!(late.has("/q/qn-") && !late.has("/p/qn-") && late.take("/p/qn-").is_none());
        assert_eq!(late.take("/q/qn-").unwrap(), b"a");
        assert_eq!(late.take("/q/qn-").unwrap(), b"b");
        assert!(!late.has("/q/qn-") && late.take("/q/qn-").is_none());
        // An item that no call takes does no harm.
        late.put("/q/qn-", Vec::new());
    }
}
