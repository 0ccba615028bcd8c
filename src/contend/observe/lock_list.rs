//! Lists the locks below a base path, at any depth.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::ask_each::AskEach;
use super::contender::Contender;
use crate::contend::name::{
    ContenderKind, Ticket, children_made, count_holders, in_grant_order, is_uncertain,
};
use crate::error::Result;
use crate::path;
use crate::session::{Answer, Client, Fault, Names, Purpose, Session};
use crate::session_id::SessionId;
use crate::wire_values::Stat;

/// At most so many nodes are asked for their children.
const MOST_NODES: usize = 20_000;

/// How many nodes are asked before the answers decide which are next.
const STEP: usize = 1_000;

/// ZooKeeper's own nodes are below this one.
const OF_ZOOKEEPER: &str = "/zookeeper";

/// The locks below a path, and the nodes that could not be looked at: see [`Client::locks`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockList {
    /// The path at and below which the locks were listed.
    pub base: String,
    /// The locks that clients hold or wait for, sorted by path.
    pub locks: Vec<ListedLock>,
    /// The nodes whose children could not be listed, or not all, and why; sorted by path.
    pub unlisted: Vec<(String, UnlistedReason)>,
    /// How many requests were sent to make the list.
    pub requests: usize,
}

/// A lock that clients hold or wait for: see [`Client::locks`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLock {
    /// The lock path.
    pub path: String,
    /// The last component of the path.
    pub name: String,
    /// What kind of lock its contenders use.
    pub kind: LockKind,
    /// How many contenders hold the lock.
    pub holders: usize,
    /// How many contenders wait for it.
    pub waiters: usize,
    /// The first holder; `None` if it released before it could be read.
    pub first: Option<Contender>,
}

/// Why locks may be missing in a [`LockList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnlistedReason {
    /// An ACL hides the node's children, or a contender's data: this client needs READ on the node.
    NotAuthorized,
    /// The list of the node's children is larger than the 64 MiB that the client accepts, or than
    /// the server's own limit.
    TooLarge,
    /// This many of the node's children were not looked at, because a list looks at 20,000
    /// nodes at most.
    TooMany(usize),
}

/// The kind of lock that the contenders of a path use, as their nodes' names show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// A [`DistributedLock`](crate::DistributedLock) or a
    /// [`LeaderElection`](crate::LeaderElection): their nodes look alike.
    Mutex,
    /// A [`DistributedRwLock`](crate::DistributedRwLock).
    ReadWrite,
    /// A [`DistributedSemaphore`](crate::DistributedSemaphore) or a
    /// [`DoubleBarrier`](crate::DoubleBarrier).
    Semaphore {
        /// How many permits the semaphore has, read from the name of the first contender's node.
        permits: u32,
        /// How many permits are taken.
        taken: u32,
    },
    /// The waiting room of a lock whose contenders have [patience](crate::DistributedLock::patience): those
    /// who *hold* it may contend for the lock.
    Room,
}

impl LockKind {
    /// Returns the kind of lock that these contenders use; `None` if there are none.
    ///
    /// They must be all those of one path, in the order of
    /// [`contenders`](crate::LockNode::contenders).
    pub fn of(contenders: &[Contender]) -> Option<LockKind> {
        let first = contenders.first()?;
        let taken = contenders.iter().filter(|one| one.holds).map(|one| one.weight);
        let is_room = contenders.iter().any(|one| one.patience().is_some());
        Some(kind(contenders.iter().map(|one| one.kind), is_room, first.permits, taken))
    }
}

pub(super) const LIST: Purpose = Purpose::to_read("list the locks", "READ on the base path");

impl Client {
    /// Lists the locks at `base` and below it, at any depth, that clients hold or wait for; `None`
    /// if the node does not exist.
    ///
    /// For people and logs: the list may be out of date when it is returned, and this client's
    /// server may lag behind the others. Locks without contenders are left out. Nodes that an ACL
    /// hides, or that are too many, are [named](LockList::unlisted).
    ///
    /// Takes one request for each node that is neither a contender of a [known recipe](ContenderKind), by its
    /// name, nor an item of a queue, and one for each lock; many of them share a round trip. At most 20,000
    /// nodes are looked at, those with few siblings first. ZooKeeper's own nodes, below `/zookeeper`, are
    /// not.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::ErrorKind::InvalidName) for a path that ZooKeeper does not allow;
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ on `base`;
    /// [`Connect`](crate::ErrorKind::Connect) if the ensemble does not answer within the [connect
    /// timeout](crate::ClientBuilder::connect_timeout); otherwise errors that [end every
    /// wait](crate::guide#what-ends-every-wait).
    pub fn locks(&self, base: impl AsRef<str>) -> Result<Option<LockList>> {
        list_locks(self, base.as_ref(), HashMap::new())
    }
}

impl LockList {
    /// Lists the locks again, in fewer requests than the first time; `None` if the node at the base
    /// path no longer exists.
    ///
    /// A first contender that was in this list is not read again. One that has changed its data
    /// since is shown with what it said first; most never do.
    ///
    /// # Errors
    ///
    /// As [`Client::locks`].
    pub fn refresh(&self, client: &Client) -> Result<Option<LockList>> {
        let firsts = self.locks.iter().filter_map(|lock| lock.first.clone());
        let known = firsts.filter(is_told_apart).map(|one| (one.path.clone(), one)).collect();
        list_locks(client, &self.base, known)
    }
}

/// Whether no other contender ever has this node's path, and it says something about itself: a
/// request to release the lock may have stood in the place of that.
pub(super) fn is_told_apart(one: &Contender) -> bool {
    let ticket = Ticket::parse(path::last(&one.path));
    let has_guid = ticket.is_some_and(|one| one.is_certain() && !one.guid().is_empty());
    // The end of a maintenance hold may be moved.
    has_guid && !one.data.is_empty() && !one.is_maintenance()
}

fn list_locks(
    client: &Client,
    base: &str,
    known: HashMap<String, Contender>,
) -> Result<Option<LockList>> {
    path::check_absolute(base)?;
    let core = client.core();
    LIST.ask(client.core(), base, |session| {
        let (mut walk, mut asks) = (Walk::default(), session);
        if !look_at_and_below(&mut asks, &mut walk, base, |path| core.whole(path))? {
            return Ok(None);
        }
        read_firsts(session, &mut walk, &known, |path| core.whole(path))?;
        Ok(Some(walk.finish(base)))
    })
}

/// False if there is no such node.
pub(super) fn look_at_and_below<A: AskEach>(
    asks: &mut A,
    walk: &mut Walk,
    base: &str,
    whole: impl Fn(&str) -> String,
) -> Result<bool, A::Error> {
    let list = |session: &Session, paths: &[String]| {
        paths.iter().map(|path| session.names_and_stat(path, false)).collect()
    };
    let found = asks.each(&[whole(base)], list)?.pop();
    match found.unwrap_or(Ok(None)) {
        Ok(Some((children, stat))) => walk.note_children(base, &children, &stat),
        Ok(None) => return Ok(false),
        Err(fault) => return Err(asks.refused(fault)),
    }
    look_below(asks, walk, whole)?;
    Ok(true)
}

fn look_below<A: AskEach>(
    asks: &mut A,
    walk: &mut Walk,
    whole: impl Fn(&str) -> String,
) -> Result<(), A::Error> {
    loop {
        let paths = walk.next_nodes();
        if paths.is_empty() {
            return Ok(());
        }
        let asked: Vec<String> = paths.iter().map(|path| whole(path)).collect();
        for (path, found) in paths.iter().zip(asks.list_each(&asked)?) {
            match found {
                Ok(Some((children, stat))) => walk.note_children(path, &children, &stat),
                // It was deleted meanwhile.
                Ok(None) => walk.requests += 1,
                Err(Fault::NoAuth) => walk.note_unlisted(path, UnlistedReason::NotAuthorized),
                Err(Fault::TooLarge(_)) => walk.note_unlisted(path, UnlistedReason::TooLarge),
                Err(fault) => return Err(asks.refused(fault)),
            }
        }
    }
}

fn read_firsts(
    session: &Session,
    walk: &mut Walk,
    known: &HashMap<String, Contender>,
    whole: impl Fn(&str) -> String,
) -> Answer<()> {
    let mut unread = Vec::new();
    walk.settle();
    for (lock, contenders) in &mut walk.locks {
        let Some(first) = contenders.first() else { continue };
        match known.get(first) {
            Some(one) => lock.first = Some(one.remembered().at(0, lock.holders > 0)),
            None => unread.push((lock, first)),
        }
    }
    walk.requests += unread.len();
    let paths: Vec<String> = unread.iter().map(|(_, first)| whole(first)).collect();
    for ((lock, first), read) in unread.into_iter().zip(session.read_each(&paths)) {
        let Some(ticket) = Ticket::parse(path::last(first)) else { continue };
        let first = Contender::seen(&lock.path, &ticket, read)?;
        lock.first = first.map(|one| one.at(0, lock.holders > 0));
    }
    Ok(())
}

/// The walk through the tree, without its requests: which nodes to look at, and what was found.
#[derive(Default)]
pub(super) struct Walk {
    /// The locks, and the paths of their contenders, or only of the first.
    pub(super) locks: Vec<(ListedLock, Vec<String>)>,
    pub(super) takes_all: bool,
    /// The nodes that have numbered children, and these: a contender's name does not always tell that it is
    /// one.
    numbered: Vec<(String, Names)>,
    /// The nodes of sessions among those that were looked at because their names do not tell.
    of_sessions: HashSet<String>,
    /// How many paths of contenders there are.
    taken: usize,
    pub(super) unlisted: Vec<(String, UnlistedReason)>,
    /// Nodes to look at: by the number of siblings and their parent, their names. So, a node with a
    /// multitude of children keeps nobody from looking at the others.
    ahead: BTreeMap<(usize, String), Vec<String>>,
    pub(super) requests: usize,
}

impl Walk {
    /// These are the children of a node, and this is its stat.
    fn note_children(&mut self, path: &str, children: &Names, stat: &Stat) {
        self.requests += 1;
        let is_of_a_session = SessionId::of_owner(stat.ephemeral_owner).is_some();
        if is_of_a_session && is_uncertain(path::last(path)) {
            self.of_sessions.insert(path.to_owned());
        }
        let made = children_made(stat);
        let may_contend = |name: &&str| {
            let ticket = Ticket::parse(name).filter(|one| one.may_be_of(made));
            ticket.is_some() && !is_item_of_a_queue(name)
        };
        let numbered: Names = children.iter().filter(may_contend).collect();
        // The root is no lock path.
        if !numbered.is_empty() && path != "/" {
            self.numbered.push((path.to_owned(), numbered));
        }
        let may_have_locks = |name: &&str| {
            Ticket::parse(name).is_none_or(|one| !one.is_certain())
                && !is_item_of_a_queue(name)
                && path::join(path, name) != OF_ZOOKEEPER
        };
        let names: Vec<String> =
            children.iter().filter(may_have_locks).map(str::to_owned).collect();
        if !names.is_empty() {
            self.ahead.insert((names.len(), path.to_owned()), names);
        }
    }

    /// Makes locks of what was found, at the end.
    pub(super) fn settle(&mut self) {
        for (path, numbered) in std::mem::take(&mut self.numbered) {
            let contends = |name: &&str| {
                !is_uncertain(name) || self.of_sessions.contains(&path::join(&path, name))
            };
            let contenders: Names = numbered.iter().filter(contends).collect();
            self.settle_lock(&path, &contenders);
        }
    }

    fn settle_lock(&mut self, path: &str, contenders: &Names) {
        let contenders = in_grant_order(contenders.iter());
        let names: Vec<&str> = contenders.iter().map(Ticket::name).collect();
        let holders = count_holders(&names);
        if let Some(first) = contenders.first() {
            let taken = contenders[..holders].iter().map(Ticket::weight);
            let is_room = contenders.iter().any(|one| one.patience().is_some());
            let lock = ListedLock {
                path: path.to_owned(),
                name: path::last(path).to_owned(),
                kind: kind(contenders.iter().map(Ticket::kind), is_room, first.permits(), taken),
                holders,
                waiters: contenders.len() - holders,
                first: None,
            };
            let wanted = if self.takes_all { contenders.len() } else { 1 };
            if self.takes_all && self.taken + wanted > MOST_NODES {
                self.unlisted.push((path.to_owned(), UnlistedReason::TooMany(wanted)));
            } else {
                self.taken += wanted;
                let wanted = contenders[..wanted].iter();
                self.locks.push((lock, wanted.map(|one| path::join(path, one.name())).collect()));
            }
        }
    }

    fn note_unlisted(&mut self, path: &str, reason: UnlistedReason) {
        self.requests += 1;
        self.unlisted.push((path.to_owned(), reason));
    }

    /// The nodes to look at now; none at the end.
    fn next_nodes(&mut self) -> Vec<String> {
        let mut next = Vec::new();
        let room = STEP.min(MOST_NODES.saturating_sub(self.requests));
        while let Some(mut group) = self.ahead.first_entry() {
            if next.len() == room {
                break;
            }
            let kept = group.get().len().saturating_sub(room - next.len());
            let names = group.get_mut().split_off(kept);
            next.extend(names.iter().map(|name| path::join(&group.key().1, name)));
            if kept == 0 {
                group.remove();
            }
        }
        if next.is_empty() {
            for ((_, path), names) in std::mem::take(&mut self.ahead) {
                let reason = UnlistedReason::TooMany(names.len());
                self.unlisted.push((path, reason));
            }
        }
        next
    }

    pub(super) fn finish(mut self, base: &str) -> LockList {
        self.settle();
        let mut locks: Vec<ListedLock> = self.locks.into_iter().map(|(lock, _)| lock).collect();
        locks.sort_by(|one, other| one.path.cmp(&other.path));
        let mut unlisted = self.unlisted;
        unlisted.sort_by(|(one, _), (other, _)| one.cmp(other));
        LockList { base: base.to_owned(), locks, unlisted, requests: self.requests }
    }
}

/// As the library's queues and ZooKeeper's recipe name them, with a number at the end.
fn is_item_of_a_queue(name: &str) -> bool {
    let number = name.strip_prefix("qn-").or_else(|| name.strip_prefix("pn-"));
    number.is_some_and(|rest| rest.bytes().all(|one| one == b'-' || one.is_ascii_digit()))
}

fn kind(
    mut kinds: impl Iterator<Item = ContenderKind>,
    is_room: bool,
    permits: u32,
    taken: impl Iterator<Item = u32>,
) -> LockKind {
    let first = kinds.next();
    let is_shared = |one| matches!(one, ContenderKind::Read | ContenderKind::Write);
    match first {
        _ if is_room => LockKind::Room,
        Some(ContenderKind::Permits) => {
            LockKind::Semaphore { permits, taken: taken.fold(0, u32::saturating_add) }
        }
        _ if first.into_iter().chain(kinds).any(is_shared) => LockKind::ReadWrite,
        _ => LockKind::Mutex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize, front: &str) -> Names {
        (0..count).map(|number| format!("{front}{number}")).collect()
    }

    /// Walks through a tree in which every node has these children.
    fn walk(children: impl Fn(&str) -> Names) -> LockList {
        let mut walk = Walk::default();
        walk.note_children("/", &children("/"), &Stat::default());
        loop {
            let next = walk.next_nodes();
            if next.is_empty() {
                return walk.finish("/");
            }
            for path in next {
                walk.note_children(&path, &children(&path), &Stat::default());
            }
        }
    }

    #[test]
    fn a_tree_without_an_end_is_left_at_some_point_and_that_is_said() {
        let endless = walk(|_| ["a", "b"].into_iter().collect());
        assert_eq!(endless.requests, MOST_NODES);
        let rest = endless.unlisted.iter().map(|(_, reason)| match *reason {
            UnlistedReason::TooMany(count) => count,
            other => panic!("{other:?}"),
        });
        // Each node that was looked at has two children: one of all nodes is the root.
        assert_eq!(rest.sum::<usize>(), 2 * MOST_NODES - (MOST_NODES - 1));
    }

    #[test]
    fn a_node_with_a_multitude_of_children_hides_no_lock_elsewhere() {
        let list = walk(|path| match path {
            "/" => ["crowd", "deep"].into_iter().collect(),
            "/crowd" => names(3 * MOST_NODES, "x"),
            "/deep" | "/deep/1" | "/deep/1/1" => ["1"].into_iter().collect(),
            "/deep/1/1/1" => ["lock-0000000007", "lock-0000000008"].into_iter().collect(),
            _ => Names::default(),
        });
        let paths: Vec<_> = list.locks.iter().map(|lock| &*lock.path).collect();
        assert_eq!(paths, ["/deep/1/1/1"]);
        let looked_at = MOST_NODES - 6;
        let reason = UnlistedReason::TooMany(3 * MOST_NODES - looked_at);
        assert_eq!(list.unlisted, [("/crowd".to_owned(), reason)]);
    }

    #[test]
    fn contenders_items_of_queues_and_the_nodes_of_zookeeper_are_not_looked_into() {
        let list = walk(|path| match path {
            "/" => ["a", "qn-0000000001", "pn-0000000001-0000000002", "zookeeper"].iter().collect(),
            "/a" => ["lock-0000000001", "below", "qn-x"].into_iter().collect(),
            "/a/below" => ["__READ__0000000001", "__READ__0000000002"].into_iter().collect(),
            "/a/qn-x" => Names::default(),
            other => panic!("looked at {other}"),
        });
        let found: Vec<_> = list.locks.iter().map(|one| (&*one.path, one.holders)).collect();
        assert_eq!(found, [("/a", 1), ("/a/below", 2)]);
        assert_eq!((list.requests, list.unlisted.len()), (4, 0));
    }
}
