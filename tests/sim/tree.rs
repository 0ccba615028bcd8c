//! The nodes that one server knows, as far as locks need them.

use std::collections::{BTreeMap, BTreeSet};

use crate::acl::{Acl, Permissions};
use crate::path;
use crate::session::{Created, Fault, NodeKind, Reply, Step};
use crate::wire_values::{NodeEvent, Stat};

/// One server's state, which follows from the transactions it has applied.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<String, Node>,
    /// See [`Habits`](super::world::Habits).
    is_old: bool,
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
    /// How many children were made and deleted.
    child_changes: i32,
    /// What every client may do; `None` means nothing.
    permissions: Option<Permissions>,
    children: BTreeSet<String>,
    /// The last transaction that created or deleted a child.
    children_zxid: i64,
    /// The sequence number of the next child: how many were made so far.
    next: i32,
    /// Whether the server removes the node when it has outlived its children.
    container: bool,
}

/// A change that the leader has decided on. Applying it cannot fail.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) zxid: i64,
    pub(super) change: Change,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Create {
        path: String,
        data: Vec<u8>,
        permissions: Option<Permissions>,
        owner: i64,
        container: bool,
        time: i64,
    },
    Delete {
        path: String,
    },
    Write {
        path: String,
        data: Vec<u8>,
        time: i64,
    },
    /// Several changes in one transaction.
    Several(Vec<Change>),
    /// Closes a session and deletes all nodes that it owns.
    CloseSession(i64),
    SetPermissions {
        path: String,
        permissions: Option<Permissions>,
    },
    SetNext {
        path: String,
        next: i32,
    },
}

/// A change that triggers watches on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trigger {
    pub(super) path: String,
    /// What clients are told, and so which watches fire: those on the node, on its children, or both.
    pub(super) event: NodeEvent,
    /// Whether clients may read the node.
    pub(super) readable: bool,
}

/// Returns what an ACL grants to every client: no client has credentials here.
fn of_everyone(acl: &[Acl]) -> Result<Option<Permissions>, Fault> {
    let anyone = |acl: &&Acl| acl.scheme == "world" && acl.id == "anyone";
    let known = |acl: &Acl| anyone(&acl) || acl.scheme == "digest";
    if acl.is_empty() || !acl.iter().all(known) {
        return Err(Fault::InvalidAcl(String::new()));
    }
    let granted = acl.iter().filter(anyone).map(|acl| acl.permissions);
    Ok(granted.reduce(|all, more| all | more))
}

impl Node {
    fn allows(&self, needed: Permissions) -> bool {
        self.permissions.is_some_and(|allowed| allowed.contains(needed))
    }

    fn check(&self, version: Option<i32>) -> Result<(), Fault> {
        match version {
            Some(version) if version != self.version => Err(Fault::BadVersion),
            _ => Ok(()),
        }
    }

    fn trigger(&self, path: &str, event: NodeEvent) -> Trigger {
        Trigger { path: path.to_owned(), event, readable: self.allows(Permissions::READ) }
    }

    fn stat(&self) -> Stat {
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            child_changes: self.child_changes,
            data_length: i32::try_from(self.data.len()).unwrap_or(i32::MAX),
            children: i32::try_from(self.children.len()).unwrap_or(i32::MAX),
            children_zxid: self.children_zxid,
            ephemeral_owner: self.owner,
        }
    }
}

impl Tree {
    pub(super) fn new(is_old: bool) -> Tree {
        let root = Node {
            czxid: 0,
            mzxid: 0,
            ctime: 0,
            mtime: 0,
            owner: 0,
            data: Vec::new(),
            version: 0,
            child_changes: 0,
            permissions: Some(Permissions::ALL),
            children: BTreeSet::new(),
            children_zxid: 0,
            next: 0,
            container: false,
        };
        Tree { nodes: BTreeMap::from([("/".to_owned(), root)]), is_old }
    }

    fn may(&self, path: &str, needed: Permissions) -> Result<&Node, Fault> {
        let node = self.nodes.get(path).ok_or(Fault::NoNode)?;
        if node.allows(needed) { Ok(node) } else { Err(Fault::NoAuth) }
    }

    // ----- what the leader decides

    pub(super) fn create(
        &self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        kind: NodeKind,
        session: i64,
        time: i64,
    ) -> Result<Change, Fault> {
        let permissions = of_everyone(acl)?;
        let parent = self.may(path::parent(path), Permissions::CREATE)?;
        let path = match kind {
            NodeKind::EphemeralSequential
            | NodeKind::Contender
            | NodeKind::PersistentSequential => {
                format!("{path}{:010}", parent.next)
            }
            _ => path.to_owned(),
        };
        if self.nodes.contains_key(&path) {
            return Err(Fault::NodeExists);
        }
        if parent.owner != 0 {
            return Err(Fault::BelowEphemeral);
        }
        let owner = match kind {
            NodeKind::Ephemeral
            | NodeKind::Named
            | NodeKind::EphemeralSequential
            | NodeKind::Contender => session,
            NodeKind::Persistent | NodeKind::PersistentSequential | NodeKind::Container => 0,
        };
        let container = kind == NodeKind::Container;
        Ok(Change::Create { path, data: data.to_vec(), permissions, owner, container, time })
    }

    pub(super) fn delete(&self, path: &str, version: Option<i32>) -> Result<Change, Fault> {
        let node = self.nodes.get(path).ok_or(Fault::NoNode);
        // Old servers look for the node before they look at the ACL.
        if self.is_old {
            node.clone()?;
        }
        self.may(path::parent(path), Permissions::DELETE)?;
        let node = node?;
        node.check(version)?;
        if !node.children.is_empty() {
            return Err(Fault::NotEmpty);
        }
        Ok(Change::Delete { path: path.to_owned() })
    }

    pub(super) fn write(
        &self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
        time: i64,
    ) -> Result<Change, Fault> {
        self.may(path, Permissions::WRITE)?.check(version)?;
        Ok(Change::Write { path: path.to_owned(), data: data.to_vec(), time })
    }

    pub(super) fn set_acl(&self, path: &str, acl: &[Acl]) -> Result<Change, Fault> {
        let permissions = of_everyone(acl)?;
        self.may(path, Permissions::ADMIN)?;
        Ok(Change::SetPermissions { path: path.to_owned(), permissions })
    }

    /// Decides on a transaction of several steps; each sees the results of those before it.
    pub(super) fn transact(
        &self,
        steps: &[Step],
        session: i64,
        zxid: i64,
        time: i64,
    ) -> Result<(Change, Vec<Reply>), (usize, Fault)> {
        let (mut then, mut changes, mut done) = (self.clone(), Vec::new(), Vec::new());
        for (place, step) in steps.iter().enumerate() {
            let change = then.step(step, session, time).map_err(|fault| (place, fault))?;
            let Some(change) = change else {
                done.push(Reply::Done);
                continue;
            };
            then.change(zxid, &change);
            done.push(match &change {
                Change::Create { path, .. } => {
                    Reply::Created(Created { path: path.clone(), czxid: Some(zxid) })
                }
                Change::Write { path, .. } => {
                    Reply::Stat(then.nodes.get(path).map(Node::stat).unwrap_or_default())
                }
                _ => Reply::Done,
            });
            changes.push(change);
        }
        Ok((Change::Several(changes), done))
    }

    fn step(&self, step: &Step, session: i64, time: i64) -> Result<Option<Change>, Fault> {
        Ok(Some(match step {
            Step::Check { path, version } => {
                self.may(path, Permissions::READ)?.check(*version)?;
                return Ok(None);
            }
            Step::Create { path, data, acl, kind } => {
                self.create(path, data, acl, *kind, session, time)?
            }
            Step::Delete { path, version } => self.delete(path, *version)?,
            Step::Write { path, data, version } => self.write(path, data, *version, time)?,
        }))
    }

    // ----- what every server does

    pub(super) fn apply(&mut self, transaction: &Transaction) -> Vec<Trigger> {
        self.change(transaction.zxid, &transaction.change)
    }

    fn change(&mut self, zxid: i64, change: &Change) -> Vec<Trigger> {
        match change {
            Change::Create { path, data, permissions, owner, container, time } => {
                let node = Node {
                    czxid: zxid,
                    mzxid: zxid,
                    ctime: *time,
                    mtime: *time,
                    owner: *owner,
                    data: data.clone(),
                    version: 0,
                    child_changes: 0,
                    permissions: *permissions,
                    children: BTreeSet::new(),
                    children_zxid: zxid,
                    next: 0,
                    container: *container,
                };
                let made = node.trigger(path, NodeEvent::Created);
                self.nodes.insert(path.clone(), node);
                let (parent, is_old) = (path::parent(path), self.is_old);
                let children = self.nodes.get_mut(parent).map(|node| {
                    node.children.insert(path::last(path).to_owned());
                    // On old servers the numbers wrap around to the lowest one.
                    let next = if is_old { i32::wrapping_add } else { i32::saturating_add };
                    node.next = next(node.next, 1);
                    node.child_changes += 1;
                    node.children_zxid = zxid;
                    node.trigger(parent, NodeEvent::ChildrenChanged)
                });
                [made].into_iter().chain(children).collect()
            }
            Change::Delete { path } => self.remove(zxid, path),
            Change::Write { path, data, time } => {
                let written = self.nodes.get_mut(path).map(|node| {
                    node.data.clone_from(data);
                    node.mtime = *time;
                    node.mzxid = zxid;
                    node.version += 1;
                    node.trigger(path, NodeEvent::Written)
                });
                written.into_iter().collect()
            }
            Change::Several(changes) => {
                changes.iter().flat_map(|change| self.change(zxid, change)).collect()
            }
            Change::CloseSession(session) => {
                let owned: Vec<String> = self.owned_by(*session);
                owned.iter().flat_map(|path| self.remove(zxid, path)).collect()
            }
            Change::SetPermissions { path, permissions } => {
                if let Some(node) = self.nodes.get_mut(path) {
                    node.permissions = *permissions;
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
        let gone = node.trigger(path, NodeEvent::Deleted);
        let parent = path::parent(path);
        let children = self.nodes.get_mut(parent).map(|node| {
            node.children.remove(path::last(path));
            node.child_changes += 1;
            node.children_zxid = zxid;
            node.trigger(parent, NodeEvent::ChildrenChanged)
        });
        [gone].into_iter().chain(children).collect()
    }

    // ----- reading

    pub(super) fn stat(&self, path: &str, needs_read: bool) -> Result<Stat, Fault> {
        let node = self.nodes.get(path).ok_or(Fault::NoNode)?;
        if needs_read && !node.allows(Permissions::READ) {
            return Err(Fault::NoAuth);
        }
        Ok(node.stat())
    }

    pub(super) fn data(&self, path: &str) -> Result<(Vec<u8>, Stat), Fault> {
        let node = self.may(path, Permissions::READ)?;
        Ok((node.data.clone(), node.stat()))
    }

    /// Returns the ACL's entry for everyone, if there is one.
    pub(super) fn acl(&self, path: &str) -> Result<Vec<Acl>, Fault> {
        let node = self.nodes.get(path).ok_or(Fault::NoNode)?;
        if !node.allows(Permissions::READ) && !node.allows(Permissions::ADMIN) {
            return Err(Fault::NoAuth);
        }
        let granted = node.permissions;
        Ok(granted.map(|granted| Acl::new(granted, "world", "anyone")).into_iter().collect())
    }

    pub(super) fn children(&self, path: &str) -> Result<Vec<String>, Fault> {
        Ok(self.may(path, Permissions::READ)?.children.iter().cloned().collect())
    }

    /// Returns a node's children without regard to its ACL.
    pub(super) fn all_children(&self, path: &str) -> impl Iterator<Item = &String> {
        self.nodes.get(path).into_iter().flat_map(|node| &node.children)
    }

    pub(super) fn contains(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    /// Returns whether the node is a container without children.
    pub(super) fn is_empty_container(&self, path: &str) -> bool {
        self.nodes.get(path).is_some_and(|node| node.container && node.children.is_empty())
    }

    /// Returns whether the node is a container that has had children and has none now.
    pub(super) fn has_outlived_its_children(&self, path: &str) -> bool {
        self.is_empty_container(path) && self.nodes.get(path).is_some_and(|node| node.next > 0)
    }

    /// Returns all nodes that can have children, except for the root.
    pub(super) fn possible_parents(&self) -> impl Iterator<Item = &String> {
        let parents = self.nodes.iter().filter(|(path, node)| node.owner == 0 && *path != "/");
        parents.map(|(path, _)| path)
    }

    fn owned_by(&self, session: i64) -> Vec<String> {
        let owned = self.nodes.iter().filter(|(_, node)| node.owner == session);
        owned.map(|(path, _)| path.clone()).collect()
    }

    /// Returns all nodes that sessions own.
    pub(super) fn ephemerals(&self) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|(_, node)| node.owner != 0);
        nodes.map(|(path, _)| path.clone()).collect()
    }
}
