//! The watch of a contender's own node, which its holder takes over from the call that waited, and what was
//! heard of the nodes that this call watched.

use std::collections::HashMap;
use std::sync::Arc;

use crate::rt::{Mutex, Signal};
use crate::session::Subscription;
use crate::wire_values::NodeEvent;

/// The watch of the own node, from before it was admitted.
pub(crate) struct OwnWatch {
    /// The connection that it was set on.
    pub(crate) on: u64,
    subscription: Subscription,
    heard: Arc<Mutex<Heard>>,
    name: Arc<str>,
}

impl OwnWatch {
    pub(crate) fn new(
        on: u64,
        subscription: Subscription,
        heard: Arc<Mutex<Heard>>,
        name: Arc<str>,
    ) -> OwnWatch {
        OwnWatch { on, subscription, heard, name }
    }

    /// Gives this signal at each event from here on, for as long as the subscription lasts. Also
    /// returns whether something was heard before.
    pub(crate) fn tell(self, signal: Signal) -> (Subscription, bool) {
        let before = self.heard.lock().nodes.insert(self.name, News::ForHolder(signal));
        (self.subscription, !matches!(before, Some(News::Nothing)))
    }
}

/// What was heard of the nodes.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) nodes: HashMap<Arc<str>, News>,
    /// The own node, if the other ones are all contenders ahead of it, and it stands as long as
    /// nothing is heard of it: then the call is admitted once all the others are gone.
    pub(crate) successor: Option<Arc<str>>,
    /// Whether one of the answers said that its node is gone, or that an ACL hides it.
    pub(crate) is_gone: bool,
    pub(crate) is_hidden: bool,
}

#[derive(Clone)]
pub(crate) enum News {
    Nothing,
    /// The node is gone.
    Gone,
    /// Something else: what is so now must be read.
    Unclear,
    /// The holder is told instead.
    ForHolder(Signal),
}

/// What a waiting call is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToDo {
    Wait,
    /// Look at the state of affairs.
    Look,
    /// Take the lock: all that were ahead are gone, and the own node stands.
    Succeed,
}

impl Heard {
    /// Notes an event, and returns what to signal when the events are noted that came with it: if a
    /// transaction deletes the own node, too, the waiter must not look in between.
    pub(crate) fn note(&mut self, name: &str, event: NodeEvent, bell: &Signal) -> Option<Signal> {
        let news = self.nodes.get_mut(name)?;
        *news = match (&news, event) {
            // A deletion that was heard before the answer is no proof, but a reason to look.
            (News::Gone, NodeEvent::Watched) => News::Unclear,
            (_, NodeEvent::Watched) => return None,
            (News::ForHolder(signal), _) => return Some(Arc::clone(signal)),
            (News::Nothing, NodeEvent::Deleted) => News::Gone,
            _ => News::Unclear,
        };
        // Of several nodes ahead, all must be gone.
        (self.to_do() != ToDo::Wait).then(|| Arc::clone(bell))
    }

    pub(crate) fn to_do(&self) -> ToDo {
        let of =
            |wanted: fn(&News) -> bool| self.nodes.values().filter(|news| wanted(news)).count();
        let unheard = of(|news| matches!(news, News::Nothing));
        let gone = of(|news| matches!(news, News::Gone));
        let all = self.nodes.len();
        let Some(own) = &self.successor else {
            return if unheard == all { ToDo::Wait } else { ToDo::Look };
        };
        match self.nodes.get(own) {
            Some(News::Nothing) if gone + 1 == all => ToDo::Succeed,
            Some(News::Nothing) if gone + unheard == all => ToDo::Wait,
            _ => ToDo::Look,
        }
    }
}
