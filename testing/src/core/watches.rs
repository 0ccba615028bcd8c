//! The watches of one connection.

use std::collections::BTreeMap;

use super::{Error, Event, Identity, Tree, Trigger, Watched, path};

/// The watches that a server keeps for one connection.
///
/// As real servers do, it has one table for nodes and one for children, and at each path at most one watch
/// in each: a newer one of another kind takes the place of an older one. Those that stay are in both.
#[derive(Clone, Debug, Default)]
pub struct Watches {
    /// On nodes, also on such as are not there.
    nodes: Table,
    /// On children.
    children: Table,
}

#[derive(Clone, Debug, Default)]
struct Table(BTreeMap<String, Kind>);

/// How long a watch stays, and how far it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It is gone once it has told of something.
    Once,
    Persistent,
    /// It stays, and sees all below the node, too, but no children as such.
    Recursive,
}

impl Table {
    fn set(&mut self, path: &str, kind: Kind) {
        self.0.insert(path.to_owned(), kind);
    }

    /// Whether the client is told; a watch that has told is gone, if it is of that kind.
    fn fire(&mut self, path: &str, event: Event) -> bool {
        let is_told = match self.0.get(path) {
            Some(Kind::Once) => self.0.remove(path).is_some(),
            Some(Kind::Persistent) => true,
            Some(Kind::Recursive) | None => false,
        };
        is_told || event != Event::ChildrenChanged && self.has_recursive(path)
    }

    fn has_recursive(&self, mut path: &str) -> bool {
        if self.0.is_empty() {
            return false;
        }
        loop {
            if self.0.get(path) == Some(&Kind::Recursive) {
                return true;
            }
            if path == "/" {
                return false;
            }
            path = path::parent(path);
        }
    }
}

impl Watches {
    /// How many there are, as servers count them: one that stays counts twice.
    pub fn len(&self) -> usize {
        self.nodes.0.len() + self.children.0.len()
    }

    /// The paths of those on nodes.
    pub fn of_nodes(&self) -> impl Iterator<Item = &String> {
        self.nodes.0.keys()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Watches a node, or the place where it could be.
    pub fn watch_node(&mut self, path: &str) {
        self.nodes.set(path, Kind::Once);
    }

    /// Watches a node's children.
    pub fn watch_children(&mut self, path: &str) {
        self.children.set(path, Kind::Once);
    }

    /// Watches a node and its children, until it is told to stop.
    pub fn watch_persistently(&mut self, path: &str) {
        self.stay(path, Kind::Persistent);
    }

    /// Watches a node and all below it, until it is told to stop.
    pub fn watch_recursively(&mut self, path: &str) {
        self.stay(path, Kind::Recursive);
    }

    fn stay(&mut self, path: &str, kind: Kind) {
        self.nodes.set(path, kind);
        self.children.set(path, kind);
    }

    /// Whether the client is told of this. A client with several watches that fire gets one event.
    pub fn fire(&mut self, trigger: &Trigger, who: &[Identity], hides_events: bool) -> bool {
        let (path, event) = (&trigger.path, trigger.event);
        let is_told = match event {
            Event::Created | Event::DataChanged => self.nodes.fire(path, event),
            Event::ChildrenChanged => self.children.fire(path, event),
            Event::Deleted => self.nodes.fire(path, event) | self.children.fire(path, event),
        };
        is_told && (!hides_events || trigger.is_readable(who))
    }

    /// Whether there is such a watch of a path.
    pub fn has(&self, path: &str, which: Watched) -> bool {
        let has = |table: &Table| table.0.contains_key(path);
        match which {
            Watched::Node => has(&self.nodes),
            Watched::Children => has(&self.children),
            Watched::Any => has(&self.nodes) || has(&self.children),
        }
    }

    /// Removes watches of a path, or only looks for them.
    pub(super) fn remove(
        &mut self,
        path: &str,
        which: Watched,
        only_look: bool,
    ) -> Result<(), Error> {
        let is_there = self.has(path, which);
        if !only_look && which != Watched::Children {
            self.nodes.0.remove(path);
        }
        if !only_look && which != Watched::Node {
            self.children.0.remove(path);
        }
        if is_there { Ok(()) } else { Err(Error::NoWatcher) }
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
        persistent.iter().for_each(|path| self.watch_persistently(path));
        recursive.iter().for_each(|path| self.watch_recursively(path));
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
