//! The nodes that one server knows, which follow from the transactions that it has applied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::acl::allows;
use super::{ALL, Acl, Error, Identity, Mode, READ, Stat, path};

/// Where servers tell of their ensemble.
const CONFIG: &str = "/zookeeper/config";

/// Where servers differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Servers before 3.5 know neither containers nor the removal of watches, look for a node before they look at the ACL
    /// above it, and let sequence numbers wrap around.
    pub is_old: bool,
    /// Whether asking for a node's stat requires READ on it, as from 3.8.4 and 3.9.2 on.
    pub hides_stat: bool,
    /// Whether clients get no events of nodes that they may not read, as from 3.8.4 and 3.9.2 on.
    pub hides_events: bool,
    /// Whether nodes may have a time to live: `zookeeper.extendedTypesEnabled`.
    pub has_ttl: bool,
}

/// One server's state.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
    /// The nodes of each session.
    owned: BTreeMap<i64, BTreeSet<String>>,
    rules: Rules,
}

#[derive(Clone, Debug)]
struct Node {
    czxid: i64,
    mzxid: i64,
    ctime: i64,
    mtime: i64,
    owner: i64,
    data: Vec<u8>,
    version: i32,
    aversion: i32,
    acl: Arc<[Acl]>,
    children: BTreeSet<String>,
    /// How many children it has beside those: not 0 only in a [part](Tree::part) of a tree.
    unnamed: usize,
    /// The last transaction that created or deleted a child.
    pzxid: i64,
    /// The sequence number of the next child: how many were made so far.
    next: i32,
    /// Whether the server removes the node when it has outlived its children.
    is_container: bool,
    /// After how many milliseconds without a change the server removes it.
    ttl: Option<i64>,
}

/// A change that the leader has decided on. Applying it cannot fail.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the protocol's own names")]
pub enum Change {
    Create {
        path: String,
        data: Vec<u8>,
        acl: Vec<Acl>,
        owner: i64,
        mode: Mode,
        time: i64,
    },
    Delete {
        path: String,
    },
    SetData {
        path: String,
        data: Vec<u8>,
        time: i64,
    },
    SetAcl {
        path: String,
        acl: Vec<Acl>,
    },
    /// Several changes in one transaction.
    Several(Vec<Change>),
    /// Closes a session and deletes all nodes that it owns.
    CloseSession(i64),
    /// Not in the protocol: sets the sequence number of the next child.
    SetNext {
        path: String,
        next: i32,
    },
}

/// A change with its number.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the protocol's own names")]
pub struct Transaction {
    pub zxid: i64,
    pub change: Change,
}

/// What happened to a node, as clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the protocol's own names")]
pub enum Event {
    Created,
    Deleted,
    DataChanged,
    ChildrenChanged,
}

/// What may fire watches.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// Where it happened.
    pub path: String,
    /// What clients are told.
    pub event: Event,
    /// Who may know, by [`Rules::hides_events`].
    acl: Arc<[Acl]>,
}

impl Trigger {
    /// Whether the client may read the node.
    pub fn is_readable(&self, who: &[Identity]) -> bool {
        allows(&self.acl, READ, who)
    }
}

impl Node {
    fn new(zxid: i64, time: i64) -> Node {
        Node {
            czxid: zxid,
            mzxid: zxid,
            ctime: time,
            mtime: time,
            owner: 0,
            data: Vec::new(),
            version: 0,
            aversion: 0,
            acl: Arc::new([Acl::world(ALL)]),
            children: BTreeSet::new(),
            unnamed: 0,
            pzxid: zxid,
            next: 0,
            is_container: false,
            ttl: None,
        }
    }

    /// The same, which knows only how many children it has.
    fn without_names(&self) -> Node {
        let Node { czxid, mzxid, ctime, mtime, owner, version, aversion, .. } = *self;
        let Node { pzxid, next, is_container, ttl, unnamed, .. } = *self;
        let (data, acl) = (self.data.clone(), Arc::clone(&self.acl));
        let (children, unnamed) = (BTreeSet::new(), unnamed + self.children.len());
        Node {
            czxid,
            mzxid,
            ctime,
            mtime,
            owner,
            data,
            version,
            aversion,
            acl,
            children,
            unnamed,
            pzxid,
            next,
            is_container,
            ttl,
        }
    }

    fn trigger(&self, path: &str, event: Event) -> Trigger {
        Trigger { path: path.to_owned(), event, acl: Arc::clone(&self.acl) }
    }

    fn stat(&self) -> Stat {
        let count = self.children.len() + self.unnamed;
        let num_children = i32::try_from(count).unwrap_or(i32::MAX);
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            // How many were made, and how many of these are gone. Nobody has made the server's own nodes.
            cversion: self.next.wrapping_mul(2).wrapping_sub(num_children),
            aversion: self.aversion,
            ephemeral_owner: self.owner,
            data_length: i32::try_from(self.data.len()).unwrap_or(i32::MAX),
            num_children,
            pzxid: self.pzxid,
        }
    }
}

impl Tree {
    /// A tree with only the root.
    pub fn new(rules: Rules) -> Tree {
        let nodes = BTreeMap::from([("/".to_owned(), Node::new(0, 0))]);
        Tree { nodes, owned: BTreeMap::new(), rules }
    }

    /// The same with the nodes that each server has, and of which no transaction tells.
    pub fn with_system_nodes(rules: Rules) -> Tree {
        let mut tree = Tree::new(rules);
        let readable: Arc<[Acl]> = Arc::new([Acl::world(READ)]);
        for path in ["/zookeeper", "/zookeeper/quota", CONFIG] {
            let mut node = Node::new(0, 0);
            if path == CONFIG {
                (node.acl, node.aversion) = (Arc::clone(&readable), -1);
            }
            tree.nodes.insert(path.to_owned(), node);
            if let Some(parent) = tree.nodes.get_mut(path::parent(path)) {
                parent.children.insert(path::last(path).to_owned());
            }
        }
        tree
    }

    /// Where servers differ, and what this one does.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns an error if there is no such node, or its ACL does not allow this to the client.
    pub(super) fn may(&self, path: &str, needed: i32, who: &[Identity]) -> Result<(), Error> {
        let node = self.node(path).ok_or(Error::NoNode)?;
        if allows(&node.acl, needed, who) { Ok(()) } else { Err(Error::NoAuth) }
    }

    /// The sequence number of the next child.
    pub(super) fn next(&self, path: &str) -> i32 {
        self.nodes.get(path).map_or(0, |node| node.next)
    }

    /// A tree that knows only what a transaction with these paths needs to know.
    pub(super) fn part<'a>(&self, paths: impl Iterator<Item = &'a str>) -> Tree {
        let mut part = Tree { nodes: BTreeMap::new(), owned: BTreeMap::new(), rules: self.rules };
        for one in paths.flat_map(|path| [path, path::parent(path)]) {
            if let Some(node) = self.nodes.get(one).filter(|_| !part.nodes.contains_key(one)) {
                part.nodes.insert(one.to_owned(), node.without_names());
            }
        }
        part
    }

    /// Knows of this node, too, as `whole` does.
    pub(super) fn adopt(&mut self, whole: &Tree, path: &str) {
        if let Some(node) = whole.nodes.get(path).filter(|_| !self.nodes.contains_key(path)) {
            self.nodes.insert(path.to_owned(), node.without_names());
        }
    }

    /// Carries a transaction out; returns what it may have fired.
    pub fn apply(&mut self, transaction: &Transaction) -> Vec<Trigger> {
        self.change(transaction.zxid, &transaction.change)
    }

    pub(super) fn change(&mut self, zxid: i64, change: &Change) -> Vec<Trigger> {
        match change {
            Change::Create { path, data, acl, owner, mode, time } => {
                let mut node = Node::new(zxid, *time);
                node.owner = *owner;
                node.data.clone_from(data);
                node.acl = acl.as_slice().into();
                node.is_container = *mode == Mode::Container;
                node.ttl = mode.ttl();
                let made = node.trigger(path, Event::Created);
                self.nodes.insert(path.clone(), node);
                if *owner != 0 {
                    self.owned.entry(*owner).or_default().insert(path.clone());
                }
                let next = if self.rules.is_old { i32::wrapping_add } else { i32::saturating_add };
                let children = self.change_children(zxid, path, |node, name| {
                    node.children.insert(name.to_owned());
                    node.next = next(node.next, 1);
                });
                [made].into_iter().chain(children).collect()
            }
            Change::Delete { path } => self.remove(zxid, path),
            Change::SetData { path, data, time } => {
                let set = self.nodes.get_mut(path).map(|node| {
                    node.data.clone_from(data);
                    node.mtime = *time;
                    node.mzxid = zxid;
                    node.version = node.version.wrapping_add(1);
                    node.trigger(path, Event::DataChanged)
                });
                set.into_iter().collect()
            }
            Change::Several(changes) => {
                changes.iter().flat_map(|change| self.change(zxid, change)).collect()
            }
            Change::CloseSession(session) => {
                let owned = self.owned.remove(session).unwrap_or_default();
                owned.iter().flat_map(|path| self.remove(zxid, path)).collect()
            }
            Change::SetAcl { path, acl } => {
                if let Some(node) = self.nodes.get_mut(path) {
                    node.acl = acl.as_slice().into();
                    node.aversion = node.aversion.wrapping_add(1);
                }
                Vec::new()
            }
            Change::SetNext { path, next } => {
                if let Some(node) = self.nodes.get_mut(path) {
                    node.next = *next;
                }
                Vec::new()
            }
        }
    }

    fn remove(&mut self, zxid: i64, path: &str) -> Vec<Trigger> {
        let Some(node) = self.nodes.remove(path) else { return Vec::new() };
        if let Some(owned) = self.owned.get_mut(&node.owner) {
            owned.remove(path);
        }
        let gone = node.trigger(path, Event::Deleted);
        let children = self.change_children(zxid, path, |node, name| {
            if !node.children.remove(name) {
                node.unnamed = node.unnamed.saturating_sub(1);
            }
        });
        [gone].into_iter().chain(children).collect()
    }

    fn change_children(
        &mut self,
        zxid: i64,
        path: &str,
        change: impl FnOnce(&mut Node, &str),
    ) -> Option<Trigger> {
        let parent = path::parent(path);
        self.nodes.get_mut(parent).map(|node| {
            change(node, path::last(path));
            node.pzxid = zxid;
            node.trigger(parent, Event::ChildrenChanged)
        })
    }

    // ----- reading

    /// Servers know the root by the empty path, too.
    fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(if path.is_empty() { "/" } else { path })
    }

    /// The node's numbers.
    pub fn stat(&self, path: &str) -> Option<Stat> {
        self.node(path).map(Node::stat)
    }

    /// The node's data.
    pub fn data(&self, path: &str) -> Option<&[u8]> {
        self.node(path).map(|node| &node.data[..])
    }

    /// The node's ACL.
    pub fn acl(&self, path: &str) -> Option<&[Acl]> {
        self.node(path).map(|node| &node.acl[..])
    }

    /// The names of the node's children.
    pub fn children(&self, path: &str) -> impl Iterator<Item = &String> {
        self.node(path).into_iter().flat_map(|node| &node.children)
    }

    /// Whether there is such a node.
    pub fn contains(&self, path: &str) -> bool {
        self.node(path).is_some()
    }

    /// How many nodes are below the node, children and all.
    pub fn count_below(&self, path: &str) -> usize {
        match path {
            "/" => self.nodes.len() - 1,
            path => self
                .nodes
                .keys()
                .filter(|one| one.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
                .count(),
        }
    }

    /// The nodes of a session whose paths begin so.
    pub fn owned_by(&self, session: i64, beginning: &str) -> Vec<String> {
        let owned = self.owned.get(&session).into_iter().flatten();
        owned.filter(|path| path.starts_with(beginning)).cloned().collect()
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is a root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many bytes of data and paths there are.
    pub fn bytes(&self) -> usize {
        self.nodes.iter().map(|(path, node)| path.len() + node.data.len()).sum()
    }

    /// Whether the node is a container without children.
    pub fn is_empty_container(&self, path: &str) -> bool {
        self.nodes.get(path).is_some_and(|node| node.is_container && node.children.is_empty())
    }

    /// Whether the node is a container that has had children and has none now.
    pub fn has_outlived_its_children(&self, path: &str) -> bool {
        self.is_empty_container(path) && self.next(path) > 0
    }

    /// The nodes that the server is to remove by itself.
    pub fn overdue(&self, time: i64) -> Vec<String> {
        let is_over = |node: &Node| {
            let is_left = node.is_container && node.next > 0;
            let is_late = node.ttl.is_some_and(|ttl| node.mtime.saturating_add(ttl) < time);
            node.children.is_empty() && (is_left || is_late)
        };
        let nodes = self.nodes.iter().filter(|(_, node)| is_over(node));
        nodes.map(|(path, _)| path.clone()).collect()
    }

    /// All nodes that can have children, except for the root.
    pub fn possible_parents(&self) -> impl Iterator<Item = &String> {
        let parents = self.nodes.iter().filter(|(path, node)| node.owner == 0 && *path != "/");
        parents.map(|(path, _)| path)
    }

    /// All nodes that sessions own.
    pub fn ephemerals(&self) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|(_, node)| node.owner != 0);
        nodes.map(|(path, _)| path.clone()).collect()
    }
}
