//! The nodes that a waiting call watches, and what it has heard of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::acquisition::{Input, Trouble, Watched};
use crate::contend::hold::{Heard, News, OwnWatch, ToDo};
use crate::rt::{Mutex, Signal};
use crate::session::{Subscription, WatchKind, Watches};
use crate::wire_values::NodeEvent;

/// See the module.
pub(super) struct WatchedNodes {
    /// Rung when it is time to look again.
    bell: Signal,
    /// The connection that the watches were set on.
    on: u64,
    /// By the node's name, which all that know it share: there may be many nodes, and many waiters.
    subscriptions: HashMap<Arc<str>, Subscription>,
    heard: Arc<Mutex<Heard>>,
}

impl WatchedNodes {
    pub(super) fn new(bell: Signal) -> WatchedNodes {
        WatchedNodes { bell, on: 0, subscriptions: HashMap::new(), heard: Arc::default() }
    }

    /// The connection that the watches were set on.
    pub(super) fn on(&self) -> u64 {
        self.on
    }

    pub(super) fn clear(&mut self) {
        self.retain(|_| false);
    }

    /// Keeps the watches that were set on this connection, have not fired, and are wanted.
    pub(super) fn keep(&mut self, connection: u64, wanted: impl Fn(&str) -> bool) {
        let is_same = self.on == connection;
        self.on = connection;
        self.retain(|name| is_same && wanted(name));
    }

    fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        let mut heard = self.heard.lock();
        (heard.successor, heard.is_gone, heard.is_hidden) = (None, false, false);
        heard.nodes.retain(|name, news| matches!(news, News::Nothing) && wanted(name));
        let all = std::mem::take(&mut self.subscriptions).into_iter();
        let (kept, ended): (HashMap<_, _>, HashMap<_, _>) =
            all.partition(|(name, _)| heard.nodes.contains_key(name));
        drop(heard);
        self.subscriptions = kept;
        // While nothing is locked.
        drop(ended);
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.subscriptions.contains_key(name)
    }

    /// From here on, hears of the node. Call this before its watch of this kind is requested.
    pub(super) fn subscribe(
        &mut self,
        watches: &Arc<Watches>,
        kind: WatchKind,
        name: &str,
        path: &str,
    ) {
        let name: Arc<str> = name.into();
        self.heard.lock().nodes.insert(Arc::clone(&name), News::Nothing);
        let (heard, bell, of) =
            (Arc::clone(&self.heard), Arc::clone(&self.bell), Arc::clone(&name));
        let on_event = move |event| {
            // Only a watch on the data fires at a write; one on the children stays in force.
            let is_anothers = kind == WatchKind::Children && event == NodeEvent::Written;
            if is_anothers { None } else { heard.lock().note(&of, event, &bell) }
        };
        let subscription = watches.subscribe_to_events(path, Arc::new(on_event));
        self.subscriptions.insert(name, subscription);
    }

    fn forget(&mut self, name: &str) {
        self.heard.lock().nodes.remove(name);
        self.subscriptions.remove(name);
    }

    /// Notes the answer to the request for a watch; `None` if there was none, or it is another node.
    pub(super) fn note_answer(&mut self, name: &str, answer: Option<Watched>) {
        let mut heard = self.heard.lock();
        match (answer, heard.nodes.get_mut(name)) {
            (Some(Watched::Gone), Some(news)) => {
                *news = News::Gone;
                heard.is_gone = true;
            }
            (Some(Watched::Set | Watched::Gone), _) => {}
            (answer, _) => {
                heard.is_hidden |= answer == Some(Watched::Hidden);
                drop(heard);
                self.forget(name);
            }
        }
    }

    /// What follows from the answers, now that this is the connection. With an own node that is
    /// watched and stands, the lock is taken once all others are gone.
    pub(super) fn judge(&mut self, connection: u64, own: Option<&str>) -> Input {
        if connection != self.on {
            return Input::Watched(Err(Trouble::Unanswered));
        }
        let (is_gone, is_hidden) = {
            let heard = self.heard.lock();
            (heard.is_gone, heard.is_hidden)
        };
        if is_hidden {
            return Input::Watched(Ok(Watched::Hidden));
        }
        let is_successor = own.is_some_and(|own| self.admit(own));
        match self.to_do(connection) {
            ToDo::Succeed => Input::Succeeded,
            _ if is_gone && !is_successor => Input::Watched(Ok(Watched::Gone)),
            _ => Input::Watched(Ok(Watched::Set)),
        }
    }

    /// From here on, the own node is admitted once all others are gone; unless something was heard
    /// of it, or it is not watched.
    fn admit(&mut self, own: &str) -> bool {
        let mut heard = self.heard.lock();
        let Some((own, News::Nothing)) = heard.nodes.get_key_value(own) else { return false };
        heard.successor = Some(Arc::clone(own));
        true
    }

    /// What to do, now that this is the connection.
    pub(super) fn to_do(&self, connection: u64) -> ToDo {
        if connection == self.on { self.heard.lock().to_do() } else { ToDo::Look }
    }

    /// Hands the watch of the own node over to its holder.
    pub(super) fn take(&mut self, name: &str) -> Option<OwnWatch> {
        let (name, subscription) = self.subscriptions.remove_entry(name)?;
        let (on, heard) = (self.on, Arc::clone(&self.heard));
        Some(OwnWatch::new(on, subscription, heard, name))
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::rt::AtomicU64;
    use NodeEvent::{ChildrenChanged, Deleted, Written};
    use std::sync::atomic::Ordering::SeqCst;

    /// Watches on connection 1, and how often the bell was rung.
    fn rig(names: &[&str]) -> (WatchedNodes, Arc<Watches>, Arc<AtomicU64>) {
        let rings = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&rings);
        let bell: Signal = Arc::new(move || {
            counted.fetch_add(1, SeqCst);
        });
        let (mut watched, watches) = (WatchedNodes::new(bell), Arc::<Watches>::default());
        watched.keep(1, |_| true);
        for name in names {
            let is_own = *name == "own";
            let kind = if is_own { WatchKind::Node } else { WatchKind::Children };
            watched.subscribe(&watches, kind, name, &format!("/{name}"));
            watches.note_set(&format!("/{name}"), kind, true);
        }
        (watched, watches, rings)
    }

    #[test]
    fn only_the_last_of_all_ahead_to_go_wakes_the_successor() {
        let (mut watched, watches, rings) = rig(&["a", "b", "own"]);
        watched.admit("own");
        watches.tell(Deleted, "/b");
        assert_eq!((watched.to_do(1), rings.load(SeqCst)), (ToDo::Wait, 0));
        watches.tell(Deleted, "/a");
        assert_eq!((watched.to_do(1), rings.load(SeqCst)), (ToDo::Succeed, 1));
        assert_eq!(watched.to_do(2), ToDo::Look, "on another connection, the own node may be gone");
    }

    /// Of which the call may hear by another watch of its session.
    #[test]
    fn a_write_to_a_node_ahead_is_nothing() {
        let (mut watched, watches, rings) = rig(&["a", "own"]);
        watches.tell(Written, "/a");
        watched.admit("own");
        watches.tell(Written, "/a");
        assert_eq!((watched.to_do(1), rings.load(SeqCst)), (ToDo::Wait, 0));
        watches.tell(Deleted, "/a");
        assert_eq!((watched.to_do(1), rings.load(SeqCst)), (ToDo::Succeed, 1));
    }

    #[test]
    fn anything_but_a_deletion_ahead_has_the_call_look() {
        for (path, event) in [("/a", ChildrenChanged), ("/own", Written), ("/own", Deleted)] {
            for gone_first in [false, true] {
                let (mut watched, watches, rings) = rig(&["a", "own"]);
                watched.admit("own");
                if gone_first {
                    watches.tell(Deleted, "/a");
                }
                watches.tell(event, path);
                let looks = (watched.to_do(1), rings.load(SeqCst) > 0);
                assert_eq!(looks, (ToDo::Look, true), "{path} {event:?}");
            }
        }
    }

    /// As when one transaction deletes both.
    #[test]
    fn the_bell_is_rung_when_all_is_noted_that_came_together() {
        let (mut watched, watches, rings) = rig(&["a", "own"]);
        watched.admit("own");
        let signals = ["/a", "/own"].map(|path| watches.note(Deleted, path));
        assert_eq!(rings.load(SeqCst), 0);
        signals.iter().flatten().for_each(|signal| signal());
        assert_eq!((watched.to_do(1), rings.load(SeqCst)), (ToDo::Look, 2));
    }

    #[test]
    fn an_event_before_the_answer_is_no_proof() {
        let (mut watched, watches, _) = rig(&["own"]);
        watched.subscribe(&watches, WatchKind::Children, "a", "/a");
        watches.tell(Deleted, "/a");
        watches.note_set("/a", WatchKind::Children, true);
        watched.admit("own");
        assert_eq!(watched.to_do(1), ToDo::Look, "nothing else may ever come");
        watched.note_answer("a", Some(Watched::Gone));
        assert_eq!(watched.to_do(1), ToDo::Succeed, "the answer says that it is gone");
        watches.note_set("/a", WatchKind::Children, false);
        assert_eq!(watched.to_do(1), ToDo::Succeed, "only a later node's making is awaited");
        // What the own node was asked for is not forgotten.
        watches.tell(Written, "/own");
        watches.note_set("/own", WatchKind::Node, true);
        assert_eq!(watched.to_do(1), ToDo::Look);
    }

    #[test]
    fn the_answers_decide_what_follows() {
        use Watched::{Gone, Hidden, Set};
        let judged = |a: Watched, own: Option<Watched>, connection: u64| {
            let (mut watched, ..) = rig(&["a", "own"]);
            watched.note_answer("a", Some(a));
            watched.note_answer("own", own);
            match watched.judge(connection, Some("own")) {
                Input::Watched(Ok(watched)) => Some(watched),
                Input::Watched(Err(Trouble::Unanswered)) => None,
                Input::Succeeded => panic!("the lock is taken"),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(judged(Set, Some(Set), 1), Some(Set));
        assert_eq!(judged(Set, None, 1), Some(Set));
        assert_eq!(judged(Set, Some(Set), 2), None, "the watches went with their connection");
        assert_eq!(judged(Gone, None, 1), Some(Gone), "the own node is another");
        assert_eq!(judged(Hidden, Some(Set), 1), Some(Hidden));
        let (mut watched, ..) = rig(&["a"]);
        watched.note_answer("a", Some(Gone));
        assert!(matches!(watched.judge(1, None), Input::Watched(Ok(Gone))), "no own node");
        // The only node ahead is gone, and the own one stands.
        let (mut watched, watches, _) = rig(&["a", "own"]);
        watched.note_answer("a", Some(Gone));
        assert!(matches!(watched.judge(1, Some("own")), Input::Succeeded));
        // What was heard of the own node meanwhile must be read.
        watches.tell(Written, "/own");
        assert!(matches!(watched.judge(1, Some("own")), Input::Watched(Ok(Gone))));
    }

    #[test]
    fn without_a_successor_every_event_has_the_call_look() {
        let (mut watched, watches, rings) = rig(&["a", "b"]);
        watches.tell(Deleted, "/b");
        assert_eq!((watched.to_do(1), rings.load(SeqCst)), (ToDo::Look, 1));
        // What has fired must be watched again, and on another connection all must.
        watched.keep(1, |_| true);
        assert!(watched.contains("a") && !watched.contains("b"));
        watched.keep(2, |_| true);
        assert!(!watched.contains("a"));
        assert_eq!((watches.len(), watched.to_do(2)), (0, ToDo::Wait));
    }

    #[test]
    fn the_holder_hears_of_its_node_without_a_gap() {
        for early in [false, true] {
            let (mut watched, watches, _) = rig(&["own"]);
            let own = watched.take("own").unwrap();
            if early {
                watches.tell(Deleted, "/own");
            }
            let told = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&told);
            let (subscription, before) = own.tell(Arc::new(move || {
                counted.fetch_add(1, SeqCst);
            }));
            assert_eq!(before, early);
            drop(watched);
            watches.note_set("/own", WatchKind::Node, true);
            watches.tell(Written, "/own");
            assert_eq!(told.load(SeqCst), 1);
            drop(subscription);
            assert_eq!(watches.len(), 0);
        }
    }
}
