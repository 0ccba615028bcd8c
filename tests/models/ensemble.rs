//! A minimal ensemble of one server, which threads call directly. Each session has a thread in
//! place of its link; everything that the client hears comes from that thread, in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use shuttle::thread::yield_now;

use crate::connection_notice::{End, Notice};
use crate::error::Result;
use crate::path;
use crate::rt::shuttled::{one_in, start_always};
use crate::rt::{Condvar, Mutex};
use crate::session::{Answer, Answered, Fault, OnReply, Reply, SessionRecords};
use crate::wire_values::{NodeEvent, Stat};

/// How opening a session may fail. Each number *n* means one time in *n*; 0 means never.
#[derive(Clone, Copy, Default)]
pub(super) struct Troubles {
    pub(super) unreachable: u32,
    pub(super) rejected: u32,
    pub(super) panics: u32,
    /// The last session whose opening may fail.
    pub(super) until: i64,
}

/// The ensemble and its troubles.
pub(super) struct World {
    server: Mutex<Server>,
    pub(super) troubles: Troubles,
}

#[derive(Default)]
pub(super) struct Server {
    nodes: BTreeMap<String, Node>,
    /// The next sequence number by parent; numbers of deleted nodes are not used again.
    numbers: BTreeMap<String, u32>,
    zxid: i64,
    sessions: BTreeMap<i64, ModelSession>,
    opened: i64,
}

struct Node {
    czxid: i64,
    /// The session that owns the node; 0 means none.
    owner: i64,
}

/// A session as the server sees it.
struct ModelSession {
    attached: bool,
    connection: u64,
    trusted: bool,
    watched: BTreeSet<(Aspect, String)>,
    link: Arc<Inbox>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Aspect {
    Node,
    Children,
}

/// A task for a link.
pub(super) enum Task {
    Break,
    Attach,
    End(End),
    Tell(NodeEvent, String),
    /// The answer to a request that was sent on the connection of this number.
    Answer(u64, OnReply, Answer<Reply>),
}

#[derive(Default)]
struct Inbox {
    tasks: Mutex<VecDeque<Task>>,
    came: Condvar,
}

impl Inbox {
    fn put(&self, task: Task) {
        self.tasks.lock().push_back(task);
        self.came.notify_one();
    }

    fn take(&self) -> Task {
        let mut tasks = self.tasks.lock();
        loop {
            match tasks.pop_front() {
                Some(task) => return task,
                None => self.came.wait(&mut tasks),
            }
        }
    }
}

impl World {
    pub(super) fn new(troubles: Troubles) -> Arc<World> {
        let world = World { server: Mutex::default(), troubles };
        world.server.lock().nodes.insert("/".to_owned(), Node { czxid: 0, owner: 0 });
        Arc::new(world)
    }

    // ----- what models change and inspect

    pub(super) fn make(&self, path: &str) {
        let _ = self.server.lock().create(path, 0);
    }

    pub(super) fn remove(&self, path: &str) {
        let _ = self.server.lock().delete(path);
    }

    pub(super) fn contains(&self, path: &str) -> bool {
        self.server.lock().nodes.contains_key(path)
    }

    pub(super) fn nodes(&self) -> Vec<String> {
        self.server.lock().nodes.keys().cloned().collect()
    }

    /// Returns how many sessions have been opened and how many of them have not ended.
    pub(super) fn sessions(&self) -> (i64, usize) {
        let server = self.server.lock();
        (server.opened, server.sessions.len())
    }

    /// Breaks the latest session's connection and makes a new one.
    pub(super) fn reconnect(&self) {
        self.order(Task::Break);
        self.order(Task::Attach);
    }

    pub(super) fn disconnect(&self) {
        self.order(Task::Break);
    }

    pub(super) fn expire(&self) {
        self.order(Task::End(End::Expired));
    }

    fn order(&self, task: Task) {
        let latest = self.server.lock().sessions.keys().next_back().copied();
        if let Some(session) = latest {
            self.have(session, task);
        }
    }

    // ----- sessions

    /// Opens a session, unless `fails` returns an error for its number.
    pub(super) fn open(
        self: &Arc<Self>,
        records: SessionRecords,
        fails: impl FnOnce(i64) -> Result<()>,
    ) -> Result<i64> {
        let session = {
            let mut server = self.server.lock();
            server.opened += 1;
            server.opened
        };
        fails(session)?;
        let link = Arc::<Inbox>::default();
        let seat = ModelSession {
            attached: false,
            connection: 0,
            trusted: true,
            watched: BTreeSet::new(),
            link: Arc::clone(&link),
        };
        self.server.lock().sessions.insert(session, seat);
        link.put(Task::Attach);
        let world = Arc::clone(self);
        start_always("link", move || serve(&world, session, &link, &records));
        Ok(session)
    }

    pub(super) fn lease(&self, session: i64) -> Result<(), End> {
        let trusted = self.server.lock().sessions.get(&session).is_some_and(|seat| seat.trusted);
        if trusted { Ok(()) } else { Err(End::Lapsed) }
    }

    /// Gives the session's link a task, if the session still exists.
    pub(super) fn have(&self, session: i64, task: Task) {
        let link = self.server.lock().sessions.get(&session).map(|seat| Arc::clone(&seat.link));
        if let Some(link) = link {
            link.put(task);
        }
    }

    // ----- requests

    /// Has the server act at once. Its answer comes through the link, if the connection lasts.
    pub(super) fn ask(
        &self,
        session: i64,
        on_reply: OnReply,
        act: impl FnOnce(&mut Server) -> Answer<Reply>,
    ) {
        let mut server = self.server.lock();
        let Some(seat) = server.sessions.get(&session) else {
            drop(server);
            // The link needs a chance to report the end.
            yield_now();
            return on_reply(Answered::Read(Err(Fault::SessionEnded)));
        };
        let (link, connection) = (Arc::clone(&seat.link), seat.connection);
        let answer = if seat.attached { act(&mut server) } else { Err(Fault::ConnectionLoss) };
        link.put(Task::Answer(connection, on_reply, answer));
    }
}

impl Server {
    pub(super) fn create(&mut self, path: &str, owner: i64) -> Answer<i64> {
        if !self.nodes.contains_key(path::parent(path)) {
            return Err(Fault::NoNode);
        }
        if self.nodes.contains_key(path) {
            return Err(Fault::NodeExists);
        }
        self.zxid += 1;
        self.nodes.insert(path.to_owned(), Node { czxid: self.zxid, owner });
        self.fire(&[Aspect::Children], path::parent(path), NodeEvent::ChildrenChanged);
        Ok(self.zxid)
    }

    /// Creates a node with the next sequence number appended to its path.
    pub(super) fn create_numbered(&mut self, path: &str, owner: i64) -> Answer<(String, i64)> {
        let parent = path::parent(path).to_owned();
        if !self.nodes.contains_key(&parent) {
            return Err(Fault::NoNode);
        }
        let number = self.numbers.entry(parent).or_default();
        let numbered = format!("{path}{number:010}");
        *number += 1;
        let czxid = self.create(&numbered, owner)?;
        Ok((numbered, czxid))
    }

    pub(super) fn delete(&mut self, path: &str) -> Answer<()> {
        if self.nodes.keys().any(|other| path::parent(other) == path && other != path) {
            return Err(Fault::NotEmpty);
        }
        self.nodes.remove(path).ok_or(Fault::NoNode)?;
        // Each watch on the node, also the one on its children, ends with it, and a session is told once.
        self.fire(&[Aspect::Node, Aspect::Children], path, NodeEvent::Deleted);
        self.fire(&[Aspect::Children], path::parent(path), NodeEvent::ChildrenChanged);
        Ok(())
    }

    fn fire(&mut self, aspects: &[Aspect], path: &str, event: NodeEvent) {
        for seat in self.sessions.values_mut() {
            let mut watched = false;
            for aspect in aspects {
                watched |= seat.watched.remove(&(*aspect, path.to_owned()));
            }
            if watched {
                seat.link.put(Task::Tell(event, path.to_owned()));
            }
        }
    }

    pub(super) fn find(&mut self, session: i64, path: &str, watch: bool) -> Option<Stat> {
        let node = self.nodes.get(path)?;
        let (czxid, ephemeral_owner) = (node.czxid, node.owner);
        let stat = Stat { czxid, mzxid: czxid, ephemeral_owner, ..Stat::default() };
        if let (true, Some(seat)) = (watch, self.sessions.get_mut(&session)) {
            seat.watched.insert((Aspect::Node, path.to_owned()));
        }
        Some(stat)
    }

    pub(super) fn children(
        &mut self,
        session: i64,
        path: &str,
        watch: bool,
    ) -> Option<Vec<String>> {
        self.nodes.get(path)?;
        if let (true, Some(seat)) = (watch, self.sessions.get_mut(&session)) {
            seat.watched.insert((Aspect::Children, path.to_owned()));
        }
        let children = self.nodes.keys().filter(|other| path::parent(other) == path);
        let names = children.filter(|other| *other != path).map(|other| path::last(other));
        Some(names.map(str::to_owned).collect())
    }

    pub(super) fn unwatch(&mut self, session: i64, path: &str) {
        if let Some(seat) = self.sessions.get_mut(&session) {
            seat.watched.retain(|(_, watched)| watched != path);
        }
    }

    fn end(&mut self, session: i64) {
        self.sessions.remove(&session);
        let nodes = self.nodes.iter().filter(|(_, node)| node.owner == session);
        let paths: Vec<String> = nodes.map(|(path, _)| path.clone()).collect();
        for path in paths {
            let _ = self.delete(&path);
        }
    }
}

/// Runs a session's link until the session ends.
fn serve(world: &Arc<World>, session: i64, inbox: &Inbox, records: &SessionRecords) {
    let tell = |notice| records.note(notice);
    let seat = |change: &mut dyn FnMut(&mut ModelSession)| {
        if let Some(seat) = world.server.lock().sessions.get_mut(&session) {
            change(seat);
        }
    };
    let mut attached = false;
    loop {
        match inbox.take() {
            Task::Break if attached => {
                attached = false;
                seat(&mut |seat| {
                    seat.attached = false;
                    seat.watched.clear();
                });
                tell(Notice::Suspended);
            }
            Task::Attach if !attached => {
                attached = true;
                seat(&mut |seat| {
                    seat.attached = true;
                    seat.connection += 1;
                });
                tell(Notice::Attached);
            }
            Task::Break | Task::Attach => {}
            Task::Tell(event, path) => records.watches.tell(event, &path),
            Task::Answer(connection, on_reply, answer) => {
                let mut lasts = false;
                seat(&mut |seat| lasts = seat.attached && seat.connection == connection);
                on_reply(Answered::Read(if lasts { answer } else { Err(Fault::ConnectionLoss) }));
            }
            Task::End(why) => {
                // The lease ends before the server passes the session's locks on.
                seat(&mut |seat| seat.trusted = false);
                if one_in(2) {
                    tell(Notice::Ended(why));
                    world.server.lock().end(session);
                } else {
                    world.server.lock().end(session);
                    tell(Notice::Ended(why));
                }
                tell(Notice::Over);
                break;
            }
        }
    }
    // Requests still waiting are answered, too.
    let left = std::mem::take(&mut *inbox.tasks.lock());
    for task in left {
        if let Task::Answer(_, on_reply, _) = task {
            on_reply(Answered::Read(Err(Fault::SessionEnded)));
        }
    }
}
