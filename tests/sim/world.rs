//! An ensemble in memory and the connections to it, with every fault that a lock can meet, at
//! moments that the schedule draws.
//!
//! Several servers apply what their leader has decided, each in its own time. A client's
//! requests wait at its server in order; replies and watch events come back in order, too.
//! A connection may break before or after a request has taken effect. The link's promises to
//! the client are taken for granted here: while a client is out of touch, its lease ends before
//! the ensemble ends its session. [`conform`](super::conform) shows that these servers answer as
//! real ones do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use zklock_testing::core::{
    self, Asker, Change, Event, Rules, Transaction, Tree, Trigger, Watches, decide,
};

use super::translation;
use crate::acl::{Acl, Permissions};
use crate::link::Sizes;
use crate::path;
use crate::rt::schedule::{Process, Schedule, current};
use crate::rt::{self, Mutex};

use crate::connection_notice::{End, Notice};
use crate::session::{
    Answer, Answered, Fault, IsWanted, NodeKind, OnReply, Reply, Request, SessionRecords, Step,
    Submission,
};
use crate::wire_values::NodeEvent;

/// The longest time that a link takes to resume after its process was stopped.
const RESUMPTION: Duration = Duration::from_millis(5);
/// The longest time that a link delays requests that can wait.
const MOMENT: Duration = Duration::from_millis(5);

/// How the network and the servers behave when nothing is wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    pub(super) servers: usize,
    /// The longest time that a message takes.
    pub(super) latency: Duration,
    /// The longest time that a server lags behind its leader.
    pub(super) lag: Duration,
    /// The longest time that a thread may be delayed before its request is sent.
    pub(super) hesitation: Duration,
    pub(super) session_timeout: Duration,
    pub(super) connect_timeout: Duration,
    /// Whether links remind the client of unfinished work. They do so only if a plan needs it:
    /// reminders would hide that the library forgot something.
    pub(super) reminds: bool,
    /// In how many percent of creates the link does not know the new node's zxid.
    pub(super) forgetful: u64,
    /// Whether clients get no events of nodes that they may not read. Servers from 3.8.4 and 3.9.2
    /// on are so, and older ones where a distribution has patched them (CVE-2024-23944).
    pub(super) discreet: bool,
    /// Whether checking that a node exists needs READ on it, as on servers from 3.8.4 and 3.9.2 on.
    pub(super) hides_stat: bool,
    /// Whether servers are older than 3.5: they know neither containers nor the removal of watches.
    /// They refuse such a request and close the connection.
    pub(super) is_old: bool,
    /// The largest request in bytes; on larger ones servers close the connection without a reply.
    pub(super) largest: Option<usize>,
    /// The longest time until the leader notices that a container has outlived its children and
    /// removes it; with `None` it never does.
    pub(super) tidies: Option<Duration>,
    /// The longest time after which a request of a connection that was given up is still carried out,
    /// even after newer ones of the same session; with `None` only until there is another connection.
    pub(super) late: Option<Duration>,
}

/// The simulated ensemble with its clients.
pub(super) struct World {
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    me: Weak<World>,
    pub(super) habits: Habits,
    servers: Vec<Server>,
    leader: Tree,
    log: Vec<Transaction>,
    tenures: BTreeMap<i64, ServerSession>,
    links: Vec<Link>,
    connections: u64,
    requests: u64,
    /// How many requests of each operation were sent.
    asked: [u64; OPERATIONS],
    /// How many connections were lost.
    breaks: u64,
    down_until: Duration,
    /// When the last request of a connection that was given up may be carried out.
    late_until: Duration,
    /// How many such requests were carried out after newer ones.
    carried_out_late: u64,
    /// Where their transactions are in the log.
    late: BTreeSet<usize>,
    /// Which processes were stopped, and until when.
    stops: Vec<(Process, Duration)>,
    /// Which process panics, and after how many more requests.
    panics: Option<(Process, u32)>,
    /// Callbacks to run when the lock on this state is released.
    effects: Vec<(Process, Effect)>,
}

type Effect = Box<dyn FnOnce() + Send>;

struct Server {
    tree: Tree,
    /// How many transactions of the log the server has applied.
    applied: usize,
    stalled_until: Duration,
}

/// A session as the ensemble knows it.
struct ServerSession {
    closed: bool,
}

/// A session as its client knows it.
struct Link {
    session: i64,
    process: Process,
    records: Arc<Mutex<SessionRecords>>,
    connection: Option<SimulatedConnection>,
    latest_connection: u64,
    ended: Option<End>,
    over: bool,
    /// When the lease ends, if the client is out of touch.
    lease_end: Option<Duration>,
    /// How often the client lost or regained touch with the ensemble.
    touches: u64,
    sent: VecDeque<Sent>,
    /// Watch events that the client's event thread has not passed on yet.
    events: VecDeque<(NodeEvent, String)>,
    seen: usize,
    cut_until: Duration,
    give_up_at: Duration,
    trap: Option<Trap>,
    /// Whether an outsider has ended the session, which its holders cannot know.
    murdered: bool,
    sizes: Sizes,
}

struct SimulatedConnection {
    id: u64,
    since: Duration,
    server: usize,
    broken: bool,
    /// Whether the server has closed it, and accepts no more requests from it.
    deaf: bool,
    /// Whether the leader takes another server to serve the session. Only a write tells.
    moved: bool,
    to_server: VecDeque<Waiting>,
    /// Items with how many transactions the server had applied when it sent them.
    to_client: VecDeque<(usize, Item)>,
    /// Items that wait until the server has applied this many transactions.
    held: VecDeque<(usize, Item)>,
    watches: Watches,
}

struct Waiting {
    number: u64,
    request: Request,
}

struct Sent {
    number: u64,
    size: usize,
    at: rt::Moment,
    operation: Operation,
    on_reply: OnReply,
}

enum Item {
    Reply(u64, Answer<Reply>),
    Event(NodeEvent, String),
    /// The server has closed the connection.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Delete,
    Write,
    Transact,
    Read,
    Children,
    Sync,
    Unwatch,
}

const OPERATIONS: usize = 8;

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStage {
    /// It has not taken effect, and never does.
    Lost,
    /// It has not taken effect yet, and may still do so until the client is back.
    Arrived,
    /// It has taken effect, and the client does not know.
    Done,
    /// Its answer has arrived, and the waiting thread has not looked yet.
    Answered,
    /// As `Answered`, but the process is stopped for this long instead.
    Unseen(Duration),
}

/// Breaks the connection when the next requests of an operation reach a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trap {
    pub(super) on: Operation,
    pub(super) when: RequestStage,
    /// The longest time until the connection is mended.
    pub(super) mend: Duration,
    pub(super) times: usize,
}

fn operation(request: &Request) -> Operation {
    match request {
        Request::One(Step::Create { .. }) => Operation::Create,
        Request::One(Step::Delete { .. }) => Operation::Delete,
        Request::One(Step::Write { .. }) | Request::SetAcl { .. } => Operation::Write,
        Request::One(Step::Check { .. }) | Request::Transact(_) => Operation::Transact,
        Request::Data { .. } | Request::Exists { .. } | Request::Acl { .. } => Operation::Read,
        Request::Children { .. } | Request::ChildrenAndStat { .. } => Operation::Children,
        Request::Sync => Operation::Sync,
        Request::Unwatch { .. } => Operation::Unwatch,
    }
}

/// Returns the size of a create or a write; no other request here can be too large.
fn size(request: &Request) -> usize {
    match request {
        Request::One(Step::Create { path, data, .. } | Step::Write { path, data, .. }) => {
            path.len() + data.len()
        }
        _ => 0,
    }
}

/// Returns the time by the link's clock.
fn clock() -> rt::Moment {
    rt::Moment::ZERO.plus(schedule().time())
}

fn is_for_the_leader(request: &Request) -> bool {
    !matches!(operation(request), Operation::Read | Operation::Children | Operation::Unwatch)
}

fn is_write(request: &Request) -> bool {
    is_for_the_leader(request) && *request != Request::Sync
}

/// Identifies one session of one client.
pub(super) type LinkId = usize;

pub(super) fn schedule() -> std::rc::Rc<Schedule> {
    current().unwrap_or_else(|| unreachable!("the world exists within a simulation"))
}

impl World {
    pub(super) fn new(habits: Habits) -> Arc<World> {
        Arc::new_cyclic(|me| {
            let rules = Rules {
                is_old: habits.is_old,
                hides_stat: habits.hides_stat,
                hides_events: habits.discreet,
                ..Rules::default()
            };
            let server =
                || Server { tree: Tree::new(rules), applied: 0, stalled_until: Duration::ZERO };
            let inner = Inner {
                me: me.clone(),
                habits,
                servers: (0..habits.servers).map(|_| server()).collect(),
                leader: Tree::new(rules),
                log: Vec::new(),
                tenures: BTreeMap::new(),
                links: Vec::new(),
                connections: 0,
                requests: 0,
                asked: [0; OPERATIONS],
                breaks: 0,
                down_until: Duration::ZERO,
                late_until: Duration::ZERO,
                carried_out_late: 0,
                late: BTreeSet::new(),
                stops: Vec::new(),
                panics: None,
                effects: Vec::new(),
            };
            World { inner: Mutex::new(inner) }
        })
    }

    /// Changes the state, and then runs the callbacks that follow from the change.
    pub(super) fn act<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock();
        let result = change(&mut inner);
        let effects = std::mem::take(&mut inner.effects);
        drop(inner);
        for (process, effect) in effects {
            schedule().within(process, effect);
        }
        result
    }

    /// Reads the state.
    pub(super) fn look<T>(&self, at: impl FnOnce(&Inner) -> T) -> T {
        at(&self.inner.lock())
    }
}

macro_rules! trace {
    ($($what:tt)*) => {
        if schedule().verbose {
            schedule().say(&format!($($what)*));
        }
    };
}

impl Inner {
    fn later(&self, at: Duration, act: impl FnOnce(&mut Inner) + 'static) {
        let me = self.me.clone();
        schedule().at(at, move || {
            if let Some(world) = me.upgrade() {
                world.act(act);
            }
        });
    }

    /// Acts for a client at that time, or when its process resumes.
    fn later_at(&self, link: LinkId, at: Duration, act: impl FnOnce(&mut Inner) + 'static) {
        let process = self.links[link].process;
        self.later(at, move |inner| match schedule().stopped(process) {
            // Threads of a process resume in any order.
            Some(until) => {
                let at = until + schedule().some(RESUMPTION);
                inner.later_at(link, at, act);
            }
            None => act(inner),
        });
    }

    /// Draws when a message sent now arrives.
    fn arrival(&self) -> Duration {
        schedule().time() + schedule().some(self.habits.latency)
    }

    fn tell(&mut self, link: LinkId, notice: Notice) {
        let link = &self.links[link];
        trace!("session {} of process {}: {notice:?}", link.session, link.process);
        let records = Arc::clone(&link.records);
        let effect = move || records.lock().note(notice);
        self.effects.push((link.process, Box::new(effect)));
    }

    fn answer(&mut self, link: LinkId, sent: Sent, answer: Answer<Reply>) {
        let process = self.links[link].process;
        self.effects.push((process, Box::new(|| (sent.on_reply)(Answered::Read(answer)))));
    }

    fn answer_all(&mut self, link: LinkId, fault: &Fault) {
        for sent in std::mem::take(&mut self.links[link].sent) {
            self.answer(link, sent, Err(fault.clone()));
        }
    }

    // ----- the ensemble

    fn commit(&mut self, change: Change) -> usize {
        let zxid = self.log.len() as i64 + 1;
        trace!("transaction {zxid}: {change:?}");
        let transaction = Transaction { zxid, change };
        let triggers = self.leader.apply(&transaction);
        self.log.push(transaction);
        self.tidy_later(&triggers);
        let index = self.log.len();
        for server in 0..self.servers.len() {
            let at = schedule().time() + schedule().some(self.habits.lag);
            self.later(at, move |inner| inner.catch_up(server, index));
        }
        index
    }

    /// Has emptied containers removed later. The leader removes a container that is empty by then,
    /// even if another one has taken its place.
    fn tidy_later(&self, triggers: &[Trigger]) {
        let Some(most) = self.habits.tidies else { return };
        let of_children = |trigger: &&Trigger| trigger.event == Event::ChildrenChanged;
        for Trigger { path, .. } in triggers.iter().filter(of_children) {
            if self.leader.has_outlived_its_children(path) {
                let (at, path) = (schedule().time() + schedule().some(most), path.clone());
                self.later(at, move |inner| {
                    if inner.leader.is_empty_container(&path) {
                        inner.commit(Change::Delete { path });
                    }
                });
            }
        }
    }

    fn catch_up(&mut self, server: usize, index: usize) {
        let stalled = self.servers[server].stalled_until;
        if stalled > schedule().time() {
            self.later(stalled, move |inner| inner.catch_up(server, index));
        } else {
            self.apply(server, index);
        }
    }

    fn apply(&mut self, server: usize, index: usize) {
        while self.servers[server].applied < index {
            let one = &mut self.servers[server];
            let transaction = &self.log[one.applied];
            one.applied += 1;
            let triggers = one.tree.apply(transaction);
            let closed = match transaction.change {
                Change::CloseSession(session) => Some(session),
                _ => None,
            };
            for link in 0..self.links.len() {
                for trigger in &triggers {
                    self.fire(link, server, trigger);
                }
                if closed == Some(self.links[link].session) {
                    self.dismiss(link, server);
                }
            }
        }
        for link in 0..self.links.len() {
            let applied = self.servers[server].applied;
            while let Some(connection) = &mut self.links[link].connection
                && connection.server == server
                && connection.held.front().is_some_and(|(needed, _)| *needed <= applied)
                && let Some((_, item)) = connection.held.pop_front()
            {
                self.push(link, item);
            }
        }
    }

    /// Has a server close the connection of a session that has ended.
    fn dismiss(&mut self, link: LinkId, server: usize) {
        let applied = self.servers[server].applied;
        let Some(connection) = &mut self.links[link].connection else { return };
        if connection.server != server || connection.broken || connection.deaf {
            return;
        }
        // Where messages take time, earlier ones may arrive or not.
        if !self.habits.latency.is_zero() && schedule().chance(50) {
            return self.hang_up(link, self.habits.latency);
        }
        connection.deaf = true;
        connection.held.push_back((applied, Item::End));
    }

    fn fire(&mut self, link: LinkId, server: usize, trigger: &Trigger) {
        let Some(connection) = &mut self.links[link].connection else { return };
        if connection.server != server {
            return;
        }
        if connection.watches.fire(trigger, &[], self.habits.discreet) {
            let event = translation::event(trigger.event);
            self.push(link, Item::Event(event, trigger.path.clone()));
        }
    }

    /// Sends an item to the client.
    fn push(&mut self, link: LinkId, item: Item) {
        let arrival = self.arrival();
        let Some(connection) = &mut self.links[link].connection else { return };
        if connection.broken {
            return;
        }
        let id = connection.id;
        let applied = self.servers[connection.server].applied;
        connection.to_client.push_back((applied, item));
        self.later_at(link, arrival, move |inner| inner.deliver(link, id));
    }

    fn deliver(&mut self, link: LinkId, id: u64) {
        let Some(connection) = &mut self.links[link].connection else { return };
        if connection.id != id || connection.broken {
            return;
        }
        let Some((applied, item)) = connection.to_client.pop_front() else { return };
        match item {
            // The link takes this for the end of the session.
            Item::Reply(_, Err(Fault::SessionEnded)) => self.expired(link),
            Item::Reply(number, answer) => {
                self.links[link].seen = self.links[link].seen.max(applied);
                let Some(sent) = self.links[link].sent.pop_front() else { return };
                assert_eq!(sent.number, number, "replies must come in order");
                trace!("session {}: reply {answer:?}", self.links[link].session);
                let operation = sent.operation;
                self.links[link].sizes.answered(sent.size);
                self.answer(link, sent, answer);
                match self.spring(link, operation, true) {
                    Some(RequestStage::Unseen(lasts)) => {
                        self.stop(self.links[link].process, schedule().time() + lasts);
                    }
                    Some(_) => {
                        self.cut(link, Duration::ZERO, Duration::ZERO);
                        // The waiting thread may be so slow that it sees the new connection first.
                        if schedule().chance(50) {
                            self.notice(link, id);
                            self.attach(link);
                        }
                    }
                    None => {}
                }
            }
            Item::Event(event, path) => {
                // Later replies may overtake an event: a link keeps the order, but a program's
                // handle has a separate thread for events.
                self.links[link].events.push_back((event, path));
                let at = self.arrival();
                self.later_at(link, at, move |inner| inner.pass_on(link));
            }
            Item::End => {
                connection.broken = true;
                self.breaks += u64::from(!self.links[link].over);
                self.notice(link, id);
            }
        }
    }

    fn pass_on(&mut self, link: LinkId) {
        let one = &mut self.links[link];
        let Some((event, path)) = one.events.pop_front() else { return };
        trace!("session {}: {event:?} {path}", one.session);
        let watches = Arc::clone(&one.records.lock().watches);
        self.effects.push((one.process, Box::new(move || watches.tell(event, &path))));
    }

    /// Sends a request when the link gets to it, if it is still wanted then.
    pub(super) fn send_later(&mut self, link: LinkId, asked: Submission, is_wanted: IsWanted) {
        let at = schedule().time() + schedule().some(MOMENT);
        self.later_at(link, at, move |inner| {
            if is_wanted() {
                inner.send(link, asked);
            }
        });
    }

    pub(super) fn send(&mut self, link: LinkId, Submission { request, on_reply }: Submission) {
        let operation = operation(&request);
        self.requests += 1;
        // It watches one contender, by the number at its end, which has no children to list.
        let is_number = |last: char| last.is_ascii_digit();
        let is_look_ahead =
            matches!(&request, Request::ChildrenAndStat { path, .. } if path.ends_with(is_number));
        let counted = if is_look_ahead { Operation::Read } else { operation };
        self.asked[counted as usize] += 1;
        let (number, arrival) = (self.requests, self.arrival());
        let (size, at) = (size(&request), clock());
        let sent = Sent { number, size, at, operation, on_reply };
        let one = &mut self.links[link];
        if one.ended.is_some() {
            return self.answer(link, sent, Err(Fault::SessionEnded));
        }
        if let Some(why) = one.sizes.refusal(size, at) {
            return self.answer(link, sent, Err(Fault::TooLarge(why)));
        }
        let Some(connection) = &mut one.connection else {
            return self.answer(link, sent, Err(Fault::ConnectionLoss));
        };
        if connection.broken {
            return one.sent.push_back(sent);
        }
        let id = connection.id;
        one.sent.push_back(sent);
        connection.to_server.push_back(Waiting { number, request });
        self.later(arrival, move |inner| inner.serve(link, id));
    }

    /// Has the server process the next request of a connection.
    fn serve(&mut self, link: LinkId, id: u64) {
        let Some(connection) = &mut self.links[link].connection else { return };
        if connection.id != id || connection.broken || connection.deaf {
            return;
        }
        let server = connection.server;
        let stalled = self.servers[server].stalled_until;
        // A server that is cut off from its leader may get a request through, or not.
        let unheard = stalled > schedule().time()
            && connection.to_server.front().is_some_and(|next| is_for_the_leader(&next.request))
            && schedule().chance(50);
        if unheard || !connection.held.is_empty() {
            let then = stalled.max(self.arrival());
            self.later(then, move |inner| inner.serve(link, id));
            return;
        }
        let has_moved = connection.moved;
        let Some(Waiting { number, request }) = connection.to_server.pop_front() else { return };
        if has_moved && is_write(&request) {
            self.lose_touch(link);
            return self.hang_up(link, self.habits.latency);
        }
        if self.habits.largest.is_some_and(|largest| size(&request) > largest) {
            self.lose_touch(link);
            return self.hang_up(link, self.habits.latency);
        }
        if let Some(when) = self.spring(link, operation(&request), false) {
            match (when, &mut self.links[link].connection) {
                (RequestStage::Done, _) => {
                    let _ = self.process(link, server, &request);
                }
                (RequestStage::Arrived, Some(connection)) if schedule().chance(50) => {
                    connection.to_server.push_front(Waiting { number, request });
                }
                _ => {}
            }
            let mend = self.links[link].trap.map_or(Duration::ZERO, |trap| trap.mend);
            return self.cut(link, self.habits.latency, schedule().some(mend));
        }
        let answer = self.process(link, server, &request);
        trace!("session {}: {request:?} gets {answer:?}", self.links[link].session);
        let needed = if is_for_the_leader(&request) { self.log.len() } else { 0 };
        let is_unknown = answer == Err(Fault::Unknown);
        let item = Item::Reply(number, answer);
        if let Some(connection) = &mut self.links[link].connection {
            connection.held.push_back((needed, item));
        }
        if is_unknown {
            self.lose_touch(link);
            self.dismiss(link, server);
        }
        self.catch_up(server, needed);
    }

    /// Returns the stage at which a trap breaks the connection, if one is set for this operation.
    /// `answered` selects between traps before and after the answer.
    fn spring(&mut self, link: LinkId, on: Operation, answered: bool) -> Option<RequestStage> {
        let trap = self.links[link].trap.as_mut()?;
        let early =
            matches!(trap.when, RequestStage::Lost | RequestStage::Arrived | RequestStage::Done);
        if trap.on != on || trap.times == 0 || early == answered {
            return None;
        }
        trap.times -= 1;
        Some(trap.when)
    }

    fn process(&mut self, link: LinkId, server: usize, request: &Request) -> Answer<Reply> {
        let session = self.links[link].session;
        let closed = self.is_closed(session);
        // A server that has not heard of the end still answers what it can by itself.
        if closed && is_for_the_leader(request) {
            return Err(Fault::SessionEnded);
        }
        let asker = self.asker(session);
        let of_no_connection = &mut Watches::default();
        let connection = self.links[link].connection.as_mut();
        let watches = connection.map_or(of_no_connection, |one| &mut one.watches);
        let asked = translation::request(request);
        let decision = decide(&self.leader, &self.servers[server].tree, watches, &asker, &asked);
        if let Some(change) = decision.change {
            self.commit(change);
        }
        let reply = match decision.reply {
            // Nobody cares.
            Err(core::Error::NoWatcher) => return Ok(Reply::Done),
            reply => reply.map_err(translation::fault)?,
        };
        let mut reply = translation::reply(reply, request);
        // The client finds a forgotten zxid by reading the stat, which may be hidden.
        if let (Request::One(Step::Create { kind, .. }), Reply::Created(made)) =
            (request, &mut reply)
            && kind.is_ephemeral()
            && schedule().chance(self.habits.forgetful)
            && !self.habits.hides_stat
        {
            made.czxid = None;
        }
        Ok(reply)
    }

    /// One without credentials, as all clients are here.
    fn asker(&self, session: i64) -> Asker<'static> {
        let time = schedule().time().as_millis() as i64;
        Asker { session, who: &[], zxid: self.log.len() as i64 + 1, time }
    }

    /// What the leader would do if that session asked for a node.
    fn making(&self, path: &str, acl: &[Acl], kind: NodeKind, session: i64) -> Option<Change> {
        let (path, data, acl) = (path.to_owned(), Vec::new(), translation::acl(acl));
        let step = core::Step::Create { path, data, acl, mode: translation::mode(kind) };
        let asker = Asker { time: 0, ..self.asker(session) };
        let asked = core::Request::One(step);
        decide(&self.leader, &self.leader, &mut Watches::default(), &asker, &asked).change
    }

    fn close_tenure(&mut self, session: i64) {
        if let Some(tenure) = self.tenures.get_mut(&session)
            && !std::mem::replace(&mut tenure.closed, true)
        {
            self.commit(Change::CloseSession(session));
        }
    }

    // ----- sessions

    /// Returns when a new session can be opened, by the faults known now.
    pub(super) fn reachable_at(&self, process: Process) -> Duration {
        let cut = self.links.iter().filter(|link| link.process == process);
        let cut = cut.map(|link| link.cut_until).max().unwrap_or_default();
        self.down_until.max(cut).max(self.served_at())
    }

    fn is_stalled(&self, server: usize) -> bool {
        self.servers[server].stalled_until > schedule().time()
    }

    /// Returns when at least one server has contact with its leader.
    fn served_at(&self) -> Duration {
        self.servers.iter().map(|server| server.stalled_until).min().unwrap_or_default()
    }

    pub(super) fn open(&mut self, records: SessionRecords) -> LinkId {
        let process = schedule().process();
        let session = self.links.len() as i64 + 1000;
        self.tenures.insert(session, ServerSession { closed: false });
        self.links.push(Link {
            session,
            process,
            records: Arc::new(Mutex::new(records)),
            connection: None,
            latest_connection: 0,
            ended: None,
            over: false,
            lease_end: None,
            touches: 0,
            sent: VecDeque::new(),
            events: VecDeque::new(),
            seen: 0,
            cut_until: Duration::ZERO,
            give_up_at: Duration::MAX,
            trap: None,
            murdered: false,
            sizes: Sizes::default(),
        });
        let link = self.links.len() - 1;
        self.attach(link);
        link
    }

    fn attach(&mut self, link: LinkId) {
        let now = schedule().time();
        let one = &self.links[link];
        if one.over || one.connection.is_some() {
            return;
        }
        let reachable = self.down_until.max(one.cut_until).max(self.served_at());
        if reachable > now {
            if reachable > one.give_up_at {
                let (session, at) = (link, one.give_up_at.max(now));
                return self.later_at(session, at, move |inner| inner.bury(link));
            }
            return self
                .later_at(link, reachable + self.back_off(), move |inner| inner.attach(link));
        }
        if one.ended.is_none() && one.lease_end.is_some_and(|end| now >= end) {
            self.end(link, End::Lapsed);
        }
        let session = self.links[link].session;
        let closed = self.tenures.get(&session).is_none_or(|tenure| tenure.closed);
        if closed && self.links[link].ended.is_none() {
            self.end(link, End::Expired);
        }
        if self.links[link].ended.is_some() {
            self.close_tenure(session);
            return self.bury(link);
        }
        // A server asks its leader before it accepts a session.
        let able: Vec<_> = (0..self.servers.len()).filter(|one| !self.is_stalled(*one)).collect();
        let server = able[schedule().below(able.len())];
        // No server accepts a client that has seen newer transactions than it has itself.
        let seen = self.links[link].seen;
        self.apply(server, seen);
        self.connections += 1;
        self.links[link].latest_connection = self.connections;
        self.links[link].connection = Some(SimulatedConnection {
            id: self.connections,
            since: now,
            server,
            broken: false,
            deaf: false,
            moved: false,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            held: VecDeque::new(),
            watches: Watches::default(),
        });
        trace!("session {session}: attached to server {server}");
        self.find_touch(link);
        self.tell(link, Notice::Attached);
        if self.habits.reminds {
            self.remind(link, self.connections);
        }
    }

    /// SessionRecords now and then that the session is alive, as the link does.
    fn remind(&mut self, link: LinkId, id: u64) {
        let at = schedule().time() + self.habits.session_timeout / 3;
        self.later_at(link, at, move |inner| {
            let connection = inner.links[link].connection.as_ref();
            if connection.is_some_and(|one| one.id == id && !one.broken)
                && inner.links[link].ended.is_none()
            {
                inner.tell(link, Notice::Alive);
                inner.remind(link, id);
            }
        });
    }

    /// Draws how long a client needs to find out that it can reach a server again.
    fn back_off(&self) -> Duration {
        let most = self.habits.session_timeout / 20;
        if schedule().chance(50) { Duration::ZERO } else { schedule().some(most) }
    }

    fn bury(&mut self, link: LinkId) {
        if !std::mem::replace(&mut self.links[link].over, true) {
            self.tell(link, Notice::Over);
        }
    }

    /// Ends the contact between client and ensemble in both directions.
    fn lose_touch(&mut self, link: LinkId) {
        let (now, timeout) = (schedule().time(), self.habits.session_timeout);
        let one = &mut self.links[link];
        if one.lease_end.is_some() || one.ended.is_some() {
            return;
        }
        let ends = (now + timeout).saturating_sub(schedule().some(timeout / 3)).max(now);
        let lease_end = ends.saturating_sub(schedule().some(timeout / 3) + Duration::from_nanos(1));
        one.lease_end = Some(lease_end);
        one.touches += 1;
        let touch = one.touches;
        self.later(ends, move |inner| inner.expire(link, touch));
        self.later_at(link, lease_end, move |inner| inner.lapse(link, touch));
    }

    fn find_touch(&mut self, link: LinkId) {
        let one = &mut self.links[link];
        one.lease_end = None;
        one.touches += 1;
    }

    fn expire(&mut self, link: LinkId, touch: u64) {
        let one = &self.links[link];
        let session = one.session;
        if one.touches != touch {
            return;
        }
        trace!("session {session} expires");
        self.close_tenure(session);
    }

    fn lapse(&mut self, link: LinkId, touch: u64) {
        if self.links[link].touches == touch && self.links[link].ended.is_none() {
            self.end(link, End::Lapsed);
            // Earlier requests may still take effect.
            self.cut(link, Duration::ZERO, Duration::ZERO);
        }
    }

    /// Ends the session because a server has reported its expiry.
    fn expired(&mut self, link: LinkId) {
        if self.links[link].ended.is_none() {
            self.end(link, End::Expired);
        }
        self.links[link].connection = None;
        self.bury(link);
    }

    fn end(&mut self, link: LinkId, why: End) {
        self.links[link].ended = Some(why);
        // Answers and notices take different ways, so either may come first.
        if schedule().chance(50) {
            self.answer_all(link, &Fault::SessionEnded);
        }
        self.tell(link, Notice::Ended(why));
        self.answer_all(link, &Fault::SessionEnded);
    }

    pub(super) fn lease(&self, link: LinkId) -> Result<Duration, End> {
        let link = &self.links[link];
        let left = link.lease_end.map(|end| end.saturating_sub(schedule().time()));
        let lapsed = left == Some(Duration::ZERO);
        link.ended.or(lapsed.then_some(End::Lapsed)).map_or(Ok(left.unwrap_or_default()), Err)
    }

    /// The last transaction that the session's client knows of.
    pub(super) fn seen(&self, link: LinkId) -> i64 {
        self.links[link].seen as i64
    }

    pub(super) fn id(&self, link: LinkId) -> i64 {
        self.links[link].session
    }

    pub(super) fn close(&mut self, link: LinkId, why: End, give_up_after: Duration) {
        if self.links[link].over {
            return;
        }
        if self.links[link].ended.is_none() {
            self.lose_touch(link);
            self.end(link, why);
        }
        self.links[link].give_up_at = schedule().time() + give_up_after;
        let arrival = self.arrival();
        self.later_at(link, arrival, move |inner| {
            let session = inner.links[link].session;
            match &inner.links[link].connection {
                Some(connection) if !connection.broken => {
                    inner.close_tenure(session);
                    inner.bury(link);
                }
                _ => {
                    inner.links[link].connection = None;
                    inner.attach(link);
                }
            }
        });
    }

    // ----- faults

    /// Stops the client's process.
    pub(super) fn stop(&mut self, process: Process, until: Duration) {
        trace!("process {process} is stopped until {until:?}");
        schedule().stop(process, until);
        self.stops.push((process, until));
        for link in 0..self.links.len() {
            if self.links[link].process != process || self.links[link].ended.is_some() {
                continue;
            }
            self.lose_touch(link);
            let touch = self.links[link].touches;
            self.later_at(link, until, move |inner| inner.go_on(link, touch));
        }
    }

    /// Restores contact if the interruption ended without consequences.
    fn go_on(&mut self, link: LinkId, touch: u64) {
        let one = &self.links[link];
        let lives = one.lease_end.is_some_and(|end| schedule().time() < end);
        let attached = one.connection.as_ref().is_some_and(|one| !one.broken);
        // A session that is being closed is not kept alive.
        if one.touches == touch && lives && attached && one.ended.is_none() {
            self.find_touch(link);
        }
    }

    /// Breaks the connection. Requests that the server has not processed yet take effect at once,
    /// late, or never.
    pub(super) fn cut(&mut self, link: LinkId, notice: Duration, mend: Duration) {
        let now = schedule().time();
        self.links[link].cut_until = self.links[link].cut_until.max(now + mend);
        let Some(connection) = &mut self.links[link].connection else { return };
        if connection.broken {
            return;
        }
        connection.broken = true;
        connection.to_client.clear();
        let (id, server) = (connection.id, connection.server);
        let unserved = std::mem::take(&mut connection.to_server);
        trace!("the connection of session {} is cut", self.links[link].session);
        let at_once = schedule().below(unserved.len() + 1);
        let mut at = now;
        for (place, Waiting { request, .. }) in unserved.into_iter().enumerate() {
            if place < at_once {
                let _ = self.process(link, server, &request);
            } else if schedule().chance(50) {
                at += schedule().some(self.habits.late.unwrap_or(mend.max(notice)));
                self.late_until = self.late_until.max(at);
                self.later(at, move |inner| inner.carry_out_late(link, id, server, &request));
            } else {
                break;
            }
        }
        self.lose_touch(link);
        self.hang_up(link, notice);
    }

    /// Carries out a request of a connection that is no more. A session with a newer connection accepts
    /// nothing from an old one, unless the old one's server has asked for the session again meanwhile: the
    /// leader then takes that server to serve it.
    fn carry_out_late(&mut self, link: LinkId, id: u64, server: usize, request: &Request) {
        let one = &mut self.links[link];
        let is_overtaken = one.latest_connection != id;
        if is_overtaken && (self.habits.late.is_none() || !is_write(request)) {
            return;
        }
        if let Some(newer) = one.connection.as_mut().filter(|_| is_overtaken) {
            newer.moved = true;
        }
        let begin = self.log.len();
        let answer = self.process(link, server, request);
        if is_overtaken {
            self.late.extend(begin..self.log.len());
        }
        trace!("session {}, late: {request:?} gets {answer:?}", self.links[link].session);
        self.carried_out_late += u64::from(is_overtaken && answer.is_ok());
    }

    /// Closes a connection; the client notices it later.
    fn hang_up(&mut self, link: LinkId, notice: Duration) {
        let Some(connection) = &mut self.links[link].connection else { return };
        connection.broken = true;
        connection.to_client.clear();
        let id = connection.id;
        self.breaks += u64::from(!self.links[link].over);
        self.later_at(link, schedule().time() + notice, move |inner| inner.notice(link, id));
    }

    fn notice(&mut self, link: LinkId, id: u64) {
        let one = &mut self.links[link];
        if one.connection.as_ref().is_none_or(|connection| connection.id != id) {
            return;
        }
        one.connection = None;
        one.sizes.closed(one.sent.iter().map(|sent| (sent.size, sent.at)), clock());
        if self.links[link].ended.is_none() {
            let answers_first = schedule().chance(50);
            if answers_first {
                self.answer_all(link, &Fault::ConnectionLoss);
            }
            self.tell(link, Notice::Suspended);
            self.answer_all(link, &Fault::ConnectionLoss);
        }
        let arrival = self.arrival();
        self.later_at(link, arrival, move |inner| inner.attach(link));
    }

    pub(super) fn cut_all(&mut self, process: Process, notice: Duration, mend: Duration) {
        for link in 0..self.links.len() {
            if self.links[link].process == process && !self.links[link].over {
                self.cut(link, notice, mend);
            }
        }
    }

    /// Lets connections be made again.
    pub(super) fn mend(&mut self, process: Process) {
        for link in 0..self.links.len() {
            if self.links[link].process == process {
                self.links[link].cut_until = Duration::ZERO;
                self.attach(link);
            }
        }
    }

    /// Stops all servers.
    pub(super) fn go_down(&mut self, notice: Duration, until: Duration) {
        self.down_until = self.down_until.max(until);
        for link in 0..self.links.len() {
            self.cut(link, schedule().some(notice), Duration::ZERO);
        }
    }

    /// Cuts a server off from its leader.
    pub(super) fn stall(&mut self, server: usize, until: Duration) {
        trace!("server {server} is stalled until {until:?}");
        let one = &mut self.servers[server];
        one.stalled_until = one.stalled_until.max(until);
        let timeout = self.habits.session_timeout;
        for link in 0..self.links.len() {
            let one = &self.links[link];
            let Some(connection) = one.connection.as_ref().filter(|one| one.server == server)
            else {
                continue;
            };
            let (id, broken) = (connection.id, connection.broken);
            if broken || one.ended.is_some() {
                continue;
            }
            self.lose_touch(link);
            let touch = self.links[link].touches;
            self.later_at(link, until, move |inner| inner.go_on(link, touch));
            // The client gives up the connection because its heartbeats are not answered.
            let silence = schedule().time() + schedule().some(timeout * 2 / 3);
            self.later_at(link, silence, move |inner| {
                if inner.is_stalled(server) && inner.links[link].latest_connection == id {
                    inner.cut(link, Duration::ZERO, Duration::ZERO);
                }
            });
        }
    }

    /// Has a thread of the process panic after this many more requests.
    pub(super) fn set_panic(&mut self, process: Process, after: u32) {
        self.panics = Some((process, after));
    }

    /// Returns whether the running task panics now.
    pub(super) fn is_to_panic(&mut self) -> bool {
        match &mut self.panics {
            Some((process, left)) if *process == schedule().process() => {
                let now = *left == 0;
                *left = left.saturating_sub(1);
                if now {
                    self.panics = None;
                }
                now
            }
            _ => false,
        }
    }

    pub(super) fn set_trap(&mut self, process: Process, trap: Trap) {
        for link in self.links.iter_mut().filter(|link| link.process == process) {
            link.trap = Some(trap);
        }
    }

    /// Ends a client's session from outside.
    pub(super) fn murder(&mut self, process: Process) {
        for link in 0..self.links.len() {
            if self.links[link].process == process && self.links[link].ended.is_none() {
                self.links[link].murdered = true;
                self.close_tenure(self.links[link].session);
            }
        }
    }

    /// Deletes a node from outside, unless it has children. Returns whether it was deleted.
    pub(super) fn delete(&mut self, path: &str) -> bool {
        let exists = self.leader.contains(path);
        let empty = self.leader.children(path).next().is_none();
        if exists && empty {
            self.commit(Change::Delete { path: path.to_owned() });
        }
        exists && empty
    }

    /// Overwrites a node's data from outside.
    pub(super) fn write(&mut self, path: &str, data: &[u8]) {
        if self.leader.contains(path) {
            let time = schedule().time().as_millis() as i64;
            self.commit(Change::SetData { path: path.to_owned(), data: data.to_vec(), time });
        }
    }

    /// Creates a node that stays and, if `deep`, another below it. Returns their paths, the lower
    /// one first.
    pub(super) fn litter(&mut self, path: &str, kind: NodeKind, deep: bool) -> Vec<String> {
        let mut made = Vec::new();
        let all = [Acl::new(Permissions::ALL, "world", "anyone")];
        if let Some(change) = self.making(path, &all, kind, 0)
            && let Change::Create { path, .. } = &change
        {
            made.push(path.clone());
            self.commit(change);
        }
        if deep && let Some(above) = made.first().cloned() {
            let below = path::join(&above, "below");
            made.splice(..0, self.litter(&below, NodeKind::Persistent, false));
        }
        made
    }

    /// Adds a contender of another kind of client.
    pub(super) fn contend(&mut self, prefix: &str) -> Option<String> {
        self.add(prefix, NodeKind::EphemeralSequential)
    }

    /// Adds a node of another program's session, under this name.
    pub(super) fn register(&mut self, path: &str) -> Option<String> {
        self.add(path, NodeKind::Ephemeral)
    }

    fn add(&mut self, prefix: &str, kind: NodeKind) -> Option<String> {
        let all = [Acl::new(Permissions::ALL, "world", "anyone")];
        let change = self.making(prefix, &all, kind, i64::MAX)?;
        let Change::Create { path, .. } = &change else { return None };
        let path = path.clone();
        self.commit(change);
        Some(path)
    }

    /// Creates a plain node whose next child has the number `next`.
    pub(super) fn make(&mut self, path: &str, acl: &[Acl], next: i32) {
        if let Some(change) = self.making(path, acl, NodeKind::Persistent, 0) {
            self.commit(change);
            self.commit(Change::SetNext { path: path.to_owned(), next });
        }
    }

    pub(super) fn set_acl(&mut self, path: &str, acl: &[Acl]) {
        self.commit(Change::SetAcl { path: path.to_owned(), acl: translation::acl(acl) });
    }

    // ----- for checks

    /// Returns all nodes that can have children, except for the root.
    pub(super) fn possible_parents(&self) -> Vec<String> {
        self.leader.possible_parents().cloned().collect()
    }

    pub(super) fn contains(&self, path: &str) -> bool {
        self.leader.contains(path)
    }

    pub(super) fn children(&self, path: &str) -> Vec<String> {
        self.leader.children(path).cloned().collect()
    }

    /// Returns a node's children with their data, by the transactions that created them.
    pub(super) fn children_by_age(&self, path: &str) -> BTreeMap<i64, (String, Vec<u8>)> {
        let read = |name: &String| {
            let child = path::join(path, name);
            let is_readable =
                |acl: &core::Acl| acl.scheme == "world" && acl.permissions & core::READ != 0;
            self.leader.acl(&child)?.iter().any(is_readable).then_some(())?;
            let data = self.leader.data(&child)?.to_vec();
            Some((self.leader.stat(&child)?.czxid, (name.clone(), data)))
        };
        self.leader.children(path).filter_map(read).collect()
    }

    /// Returns whether a node was created below this one since that transaction.
    pub(super) fn had_children_since(&self, path: &str, zxid: i64) -> bool {
        let then = usize::try_from(zxid).unwrap_or_default();
        self.made_since(then).any(|(made, ..)| path::parent(made) == path)
    }

    /// Returns how many transactions there were so far.
    pub(super) fn transactions(&self) -> usize {
        self.log.len()
    }

    /// Returns the nodes created since then, with their owners and data, but for those that were made late.
    pub(super) fn made_since(&self, then: usize) -> impl Iterator<Item = (&str, i64, &[u8])> {
        let in_time = (then..self.log.len()).filter(|at| !self.late.contains(at));
        in_time.filter_map(|at| match &self.log[at].change {
            Change::Create { path, owner, data, .. } => Some((path.as_str(), *owner, &data[..])),
            _ => None,
        })
    }

    /// Returns the data that transactions have written to a node since then, and the present length
    /// of the log.
    pub(super) fn transacted_since(&self, path: &str, then: usize) -> (Vec<&[u8]>, usize) {
        let mut written = Vec::new();
        for transaction in self.log.iter().skip(then) {
            let Change::Several(changes) = &transaction.change else { continue };
            written.extend(changes.iter().filter_map(|change| match change {
                Change::SetData { path: of, data, .. } if of == path => Some(data.as_slice()),
                _ => None,
            }));
        }
        (written, self.log.len())
    }

    /// Returns the nodes whose data was overwritten since then, and the present length of the log.
    pub(super) fn written_since(&self, then: usize) -> (Vec<String>, usize) {
        let written = self.log[then..].iter().filter_map(|transaction| match &transaction.change {
            Change::SetData { path, .. } => Some(path.clone()),
            _ => None,
        });
        (written.collect(), self.log.len())
    }

    /// Finds data with this text in it that a multi-step transaction wrote to the node.
    pub(super) fn written_with(&self, node: &str, text: &str) -> Option<Vec<u8>> {
        let changes = self.log.iter().filter_map(|transaction| match &transaction.change {
            Change::Several(changes) => Some(changes),
            _ => None,
        });
        changes.flatten().find_map(|change| match change {
            Change::SetData { path, data, .. } if path == node => {
                String::from_utf8_lossy(data).contains(text).then(|| data.clone())
            }
            _ => None,
        })
    }

    /// Returns how many transactions have created a node with this data, or written them.
    pub(super) fn times_written(&self, said: &[u8]) -> usize {
        let has_written = |transaction: &&Transaction| match &transaction.change {
            Change::Create { data, .. } | Change::SetData { data, .. } => data == said,
            _ => false,
        };
        self.log.iter().filter(has_written).count()
    }

    /// Returns the transaction that created a node with this data.
    pub(super) fn made_with(&self, said: &[u8]) -> Option<i64> {
        self.log.iter().find_map(|transaction| match &transaction.change {
            Change::Create { data, .. } => (data == said).then_some(transaction.zxid),
            _ => None,
        })
    }

    /// Returns the transaction that created the node last, and the data that it was given.
    pub(super) fn made_last(&self, path: &str) -> Option<(i64, &[u8])> {
        self.log.iter().rev().find_map(|transaction| match &transaction.change {
            Change::Create { path: made, data, .. } if made == path => {
                Some((transaction.zxid, &data[..]))
            }
            _ => None,
        })
    }

    /// Returns the session that owns or owned the node.
    pub(super) fn owner(&self, path: &str) -> Option<i64> {
        self.log.iter().rev().find_map(|transaction| match &transaction.change {
            Change::Create { path: made, owner, .. } if made == path => Some(*owner),
            _ => None,
        })
    }

    pub(super) fn ephemerals(&self) -> Vec<String> {
        self.leader.ephemerals()
    }

    /// Returns how many connections were lost so far, or `None` while one is missing.
    pub(super) fn breaks(&self) -> Option<u64> {
        let there = |link: &Link| link.connection.as_ref().is_some_and(|one| !one.broken);
        self.links.iter().all(|link| link.over || there(link)).then_some(self.breaks)
    }

    /// Returns when a process resumed after its last stop, or will resume.
    pub(super) fn resumed_at(&self, process: Process) -> Duration {
        let of_process = self.stops.iter().filter(|(stopped, _)| *stopped == process);
        of_process.map(|(_, until)| *until).max().unwrap_or_default()
    }

    /// Returns since when a session's client has its connection.
    pub(super) fn connected_since(&self, session: i64) -> Option<Duration> {
        let link = self.links.iter().find(|link| link.session == session)?;
        link.connection.as_ref().filter(|one| !one.broken).map(|one| one.since)
    }

    /// Returns whether the session's client knows that the session has ended.
    pub(super) fn has_ended(&self, session: i64) -> bool {
        self.links.iter().any(|link| link.session == session && link.ended.is_some())
    }

    /// Returns whether the session's lease is over, even if its client does not know yet.
    pub(super) fn has_lapsed(&self, session: i64) -> bool {
        let lapsed = |end: Duration| schedule().time() >= end;
        self.links.iter().any(|link| link.session == session && link.lease_end.is_some_and(lapsed))
    }

    /// Returns whether a process has a session that has not ended.
    pub(super) fn has_session(&self, process: Process) -> bool {
        self.links.iter().any(|link| link.process == process && link.ended.is_none())
    }

    /// Returns when the last request of a connection that was given up may be carried out.
    pub(super) fn late_until(&self) -> Duration {
        self.late_until
    }

    /// Returns how many requests were carried out after newer ones of their sessions.
    pub(super) fn carried_out_late(&self) -> u64 {
        self.carried_out_late
    }

    pub(super) fn asked(&self, operation: Operation) -> u64 {
        self.asked[operation as usize]
    }

    /// Returns whether the servers have ended the session, even if its client does not know yet.
    pub(super) fn is_closed(&self, session: i64) -> bool {
        self.tenures.get(&session).is_none_or(|tenure| tenure.closed)
    }

    pub(super) fn is_murdered(&self, session: i64) -> bool {
        self.links.iter().any(|link| link.session == session && link.murdered)
    }
}
