//! The watches of one connection.

use std::collections::BTreeSet;

use super::{Error, Event, Identity, Tree, Trigger, Watched, path};

/// The watches that a server keeps for one connection.
#[derive(Clone, Debug, Default)]
pub struct Watches {
    /// On nodes, also on such as are not there.
    nodes: BTreeSet<String>,
    /// On children.
    children: BTreeSet<String>,
    persistent: BTreeSet<String>,
    recursive: BTreeSet<String>,
}

impl Watches {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.nodes.len() + self.children.len() + self.persistent.len() + self.recursive.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Watches a node, or the place where it could be.
    pub fn watch_node(&mut self, path: &str) {
        self.nodes.insert(path.to_owned());
    }

    /// Watches a node's children.
    pub fn watch_children(&mut self, path: &str) {
        self.children.insert(path.to_owned());
    }

    /// Watches a node and its children, until it is told to stop.
    pub fn watch_persistently(&mut self, path: &str) {
        self.persistent.insert(path.to_owned());
    }

    /// Watches a node and all below it, until it is told to stop.
    pub fn watch_recursively(&mut self, path: &str) {
        self.recursive.insert(path.to_owned());
    }

    /// Whether the client is told of this. A client with several watches that fire gets one event.
    pub fn fire(&mut self, trigger: &Trigger, who: &[Identity], hides_events: bool) -> bool {
        let path = &trigger.path;
        let fired = match trigger.event {
            Event::Created | Event::DataChanged => self.nodes.remove(path),
            Event::ChildrenChanged => self.children.remove(path),
            Event::Deleted => self.nodes.remove(path) | self.children.remove(path),
        };
        let is_told = fired
            || self.persistent.contains(path)
            || trigger.event != Event::ChildrenChanged && self.has_recursive(path);
        is_told && (!hides_events || trigger.is_readable(who))
    }

    fn has_recursive(&self, mut path: &str) -> bool {
        if self.recursive.is_empty() {
            return false;
        }
        loop {
            if self.recursive.contains(path) {
                return true;
            }
            if path == "/" {
                return false;
            }
            path = path::parent(path);
        }
    }

    /// Removes watches of a path, or only looks for them.
    pub(super) fn remove(
        &mut self,
        path: &str,
        which: Watched,
        only_look: bool,
    ) -> Result<(), Error> {
        let mut sets: Vec<&mut BTreeSet<String>> = match which {
            Watched::Node => vec![&mut self.nodes],
            Watched::Children => vec![&mut self.children],
            Watched::Any => {
                vec![&mut self.nodes, &mut self.children, &mut self.persistent, &mut self.recursive]
            }
        };
        let has = |set: &mut &mut BTreeSet<String>| {
            if only_look { set.contains(path) } else { set.remove(path) }
        };
        match sets.iter_mut().filter_map(|set| has(set).then_some(())).count() {
            0 => Err(Error::NoWatcher),
            _ => Ok(()),
        }
    }

    /// Sets the watches of a client that was out of touch after transaction `seen`; returns what it is told at once, as it
    /// has missed that.
    pub fn restore(&mut self, restored: Restored, seen: i64, tree: &Tree) -> Vec<(Event, String)> {
        let Restored { data, exists, children, persistent, recursive } = restored;
        let mut missed = Vec::new();
        for path in data {
            match tree.stat(&path) {
                None => missed.push((Event::Deleted, path)),
                Some(stat) if stat.mzxid > seen => missed.push((Event::DataChanged, path)),
                Some(_) => self.watch_node(&path),
            }
        }
        for path in exists {
            match tree.contains(&path) {
                true => missed.push((Event::Created, path)),
                false => self.watch_node(&path),
            }
        }
        for path in children {
            match tree.stat(&path) {
                None => missed.push((Event::Deleted, path)),
                Some(stat) if stat.pzxid > seen => missed.push((Event::ChildrenChanged, path)),
                Some(_) => self.watch_children(&path),
            }
        }
        self.persistent.extend(persistent);
        self.recursive.extend(recursive);
        missed
    }
}

/// The watches that a client had on its former connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the protocol's own names")]
pub struct Restored {
    pub data: Vec<String>,
    pub exists: Vec<String>,
    pub children: Vec<String>,
    pub persistent: Vec<String>,
    pub recursive: Vec<String>,
}
