//! Lists of children that need not be asked for again: those of nodes that are watched, and have not changed
//! since.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::rt::AtomicBool;
use crate::session::{Answer, Names, Session, Subscription};
use crate::wire_values::Stat;

/// A node's children, and its stat.
pub(super) type List = (Names, Stat);

/// The lists of one look, by the nodes' paths as the server knows them.
#[derive(Clone, Default)]
pub(super) struct KeptLists(Arc<HashMap<String, Arc<KeptList>>>);

struct KeptList {
    list: List,
    watched_by: WatchedBy,
    has_changed: Arc<AtomicBool>,
    _watch: Subscription,
}

/// What watches end with: the connection, and the time after which a server may have dropped one without a
/// word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WatchedBy {
    session: i64,
    connection: u64,
    review: u64,
}

impl WatchedBy {
    /// `None` on a program's own handle, whose events may come after the answers to later questions.
    fn now(session: &Session) -> Option<WatchedBy> {
        let phase = session.status().now();
        let is_reliable = session.may_adopt() && phase.is_usable();
        let (connection, review) = (phase.connection, phase.review());
        is_reliable.then(|| WatchedBy { session: session.id(), connection, review })
    }
}

/// The lists of a look while it is made, of which those of an earlier one may be used.
#[derive(Default)]
pub(super) struct ListsOfLook {
    earlier: KeptLists,
    lists: RefCell<HashMap<String, Arc<KeptList>>>,
}

impl ListsOfLook {
    pub(super) fn after(earlier: &KeptLists) -> ListsOfLook {
        ListsOfLook { earlier: earlier.clone(), lists: RefCell::default() }
    }

    /// The children of each of these nodes, if they are known to be the same as in the earlier look. The
    /// session must have caught up with the leader since this look began.
    pub(super) fn known(&self, session: &Session, paths: &[String]) -> Vec<Option<List>> {
        let now = WatchedBy::now(session);
        let known = |path: &String| {
            let kept = self.earlier.0.get(path)?;
            let is_same = !kept.has_changed.load(Ordering::SeqCst);
            if !is_same || now.as_ref() != Some(&kept.watched_by) {
                return None;
            }
            self.lists.borrow_mut().insert(path.clone(), Arc::clone(kept));
            Some(kept.list.clone())
        };
        paths.iter().map(known).collect()
    }

    /// Asks for the children of these nodes, and watches them.
    pub(super) fn ask(&self, session: &Session, paths: &[String]) -> Vec<Answer<Option<List>>> {
        let Some(watched_by) = WatchedBy::now(session) else {
            return session.lists_each(paths, false);
        };
        // Before the question, so that no event is missed.
        let watches = paths.iter().map(|path| {
            let has_changed = Arc::new(AtomicBool::new(false));
            let note = Arc::clone(&has_changed);
            let note = Arc::new(move || note.store(true, Ordering::SeqCst));
            (session.watches().subscribe(path, note), has_changed)
        });
        let watches: Vec<_> = watches.collect();
        let answers = session.lists_each(paths, true);
        let mut lists = self.lists.borrow_mut();
        for ((path, answer), (watch, has_changed)) in paths.iter().zip(&answers).zip(watches) {
            if let Ok(Some(list)) = answer {
                let list = list.clone();
                let kept = KeptList { list, watched_by, has_changed, _watch: watch };
                lists.insert(path.clone(), Arc::new(kept));
            }
        }
        answers
    }

    pub(super) fn keep(self) -> KeptLists {
        KeptLists(Arc::new(self.lists.into_inner()))
    }
}

impl fmt::Debug for KeptLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
