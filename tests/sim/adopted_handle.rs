//! A program's handle of the `zookeeper` crate in the simulation. It keeps none of a link's
//! promises. A call hangs or fails, sometimes even on a working connection; watches are lost with
//! the connection; and when the session has expired the handle opens another one. Closing of
//! handles, by themselves or by the program, is not simulated.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};

use super::world::{LinkId, World, schedule};
use crate::acl::Acl;
use crate::connection_notice::Notice;
use crate::rt::schedule::Process;
use crate::rt::{self, Mutex};
use crate::session::{
    Answer, Answered, Fault, Found, Handle, HandleEvent, Names, NodeKind, PendingReply, Reply,
    Request, SessionRecords, Step, Submission, Subscription, Unlisten, Watcher, Watches, created,
    data, names, or_none, stat,
};
use crate::wire_values::Stat;

/// A simulated handle.
pub(super) struct SimulatedHandle {
    me: Weak<SimulatedHandle>,
    world: Arc<World>,
    process: Process,
    state: Mutex<State>,
}

struct State {
    link: Option<LinkId>,
    /// Events reach all registered watchers, whatever connection their watches were set on.
    events: Arc<Watches>,
    line: HandleEvent,
    /// How many sessions the handle has had.
    sessions: u64,
    /// The number of the next listener.
    next: u64,
    listeners: BTreeMap<u64, Arc<dyn Fn(HandleEvent) + Send + Sync>>,
    watchers: HashMap<String, Vec<(Watcher, Subscription)>>,
}

impl SimulatedHandle {
    /// Makes a handle in the running process.
    pub(super) fn new(world: &Arc<World>) -> Arc<SimulatedHandle> {
        let process = schedule().process();
        let handle = Arc::new_cyclic(|me| SimulatedHandle {
            me: Weak::clone(me),
            world: Arc::clone(world),
            process,
            state: Mutex::new(State {
                link: None,
                events: Arc::default(),
                line: HandleEvent::Lost,
                sessions: 0,
                next: 0,
                listeners: BTreeMap::new(),
                watchers: HashMap::new(),
            }),
        });
        handle.open();
        handle
    }

    /// Returns how many sessions the handle has had so far.
    pub(super) fn sessions(&self) -> u64 {
        self.state.lock().sessions
    }

    /// Opens another session.
    fn open(&self) {
        let (me, events) = (Weak::clone(&self.me), Arc::<Watches>::default());
        let mut state = self.state.lock();
        state.events = Arc::clone(&events);
        state.sessions += 1;
        drop(state);
        let on_notice = move |notice| {
            if let Some(handle) = me.upgrade() {
                handle.heard(notice);
            }
        };
        let reports = SessionRecords {
            status: Arc::default(),
            watches: events,
            on_notice: Box::new(on_notice),
        };
        let link = self.world.act(|world| world.open(reports));
        self.state.lock().link = Some(link);
    }

    fn heard(&self, notice: Notice) {
        match notice {
            Notice::Attached => self.tell(HandleEvent::Connected),
            Notice::Suspended => self.tell(HandleEvent::Lost),
            // The handle learns of the session's end from a server.
            Notice::Ended(_) => {
                self.tell(HandleEvent::Lost);
                self.renew();
            }
            _ => {}
        }
    }

    fn tell(&self, line: HandleEvent) {
        let mut state = self.state.lock();
        if state.line == line {
            return;
        }
        state.line = line;
        let listeners: Vec<_> = state.listeners.values().cloned().collect();
        drop(state);
        for tell in listeners {
            tell(line);
        }
    }

    /// Opens another session as soon as a server can be reached.
    fn renew(&self) {
        let schedule = schedule();
        let reachable = self.world.look(|world| world.reachable_at(self.process));
        let latency = self.world.look(|world| world.habits.latency);
        let going_on = schedule.stopped(self.process).unwrap_or_default();
        let at = reachable.max(going_on).max(schedule.time()) + schedule.some(latency);
        let me = Weak::clone(&self.me);
        schedule.at(at, move || {
            let (Some(handle), schedule) = (me.upgrade(), self::schedule()) else { return };
            let reachable = handle.world.look(|world| world.reachable_at(handle.process));
            if schedule.stopped(handle.process).is_some() || reachable > schedule.time() {
                return handle.renew();
            }
            schedule.within(handle.process, || {
                handle.tell(HandleEvent::Expired);
                handle.open();
            });
        });
    }

    fn call(&self, request: Request) -> Answer<Reply> {
        self.call_with(request, None)
    }

    /// Sends a request; its watcher is registered when the answer comes.
    fn call_with(&self, request: Request, watcher: Option<(&str, Watcher)>) -> Answer<Reply> {
        let schedule = schedule();
        // Looking at the clock makes time pass, even for a call that is refused at once: otherwise
        // a caller might repeat it for ever.
        let _ = rt::now();
        let timeout = self.world.look(|world| world.habits.session_timeout);
        // A request not yet sent when the connection is lost may wait for the next connection,
        // whatever its session.
        if schedule.chance(10) {
            schedule.pause(schedule.some(timeout));
        }
        let waits = schedule.chance(50);
        let end = schedule.time() + timeout * 2;
        while waits && self.state.lock().line != HandleEvent::Connected && schedule.time() < end {
            schedule.pause(timeout / 20);
        }
        let Some(link) = self.state.lock().link else { return Err(Fault::ConnectionLoss) };
        let pending = PendingReply::new(1, None);
        let (on_reply, me) = (pending.on_reply(0), Weak::clone(&self.me));
        let watcher = watcher.map(|(path, watcher)| (path.to_owned(), watcher));
        let on_reply = Box::new(move |answered: Answered| {
            if let (Some(_), Some((path, watcher))) = (answered.finds(), watcher)
                && let Some(handle) = me.upgrade()
            {
                handle.watch(&path, watcher);
            }
            on_reply(answered);
        });
        self.world.act(|world| world.send(link, Submission { request, on_reply }));
        let [answer, _] = pending.wait(&mut None);
        match answer {
            // Some calls end when the connection is lost, others only long after.
            Err(fault @ (Fault::ConnectionLoss | Fault::SessionEnded)) => {
                if schedule.chance(30) {
                    schedule.pause(schedule.some(timeout * 3));
                }
                Err(if schedule.chance(50) { fault } else { Fault::ConnectionLoss })
            }
            // The crate loses answers on working connections, too.
            answer if schedule.chance(99) => answer,
            _ => Err(Fault::ConnectionLoss),
        }
    }

    fn watch(&self, path: &str, watcher: Watcher) {
        let (me, node) = (Weak::clone(&self.me), path.to_owned());
        let fired = Arc::new(move || {
            if let Some(handle) = me.upgrade() {
                let watchers = handle.state.lock().watchers.remove(&node);
                watchers.iter().flatten().for_each(|(watcher, _)| watcher());
            }
        });
        let events = Arc::clone(&self.state.lock().events);
        let subscription = events.subscribe(path, fired);
        let mut state = self.state.lock();
        state.watchers.entry(path.to_owned()).or_default().push((watcher, subscription));
    }
}

impl Handle for SimulatedHandle {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: NodeKind) -> Answer<String> {
        let (path, data, acl) = (path.to_owned(), data.to_vec(), acl.to_vec());
        let made =
            self.call(Request::One(Step::Create { path, data, acl, kind })).and_then(created)?;
        Ok(made.path)
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Answer<()> {
        self.call(Request::One(Step::Delete { path: path.to_owned(), version })).map(drop)
    }

    fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<Stat> {
        let (path, data) = (path.to_owned(), data.to_vec());
        self.call(Request::One(Step::Write { path, data, version })).and_then(stat)
    }

    fn acl(&self, path: &str) -> Answer<Vec<Acl>> {
        match self.call(Request::Acl { path: path.to_owned() })? {
            Reply::Acl(acl) => Ok(acl),
            other => Err(Fault::Refused(format!("{other:?}"))),
        }
    }

    fn set_acl(&self, path: &str, acl: &[Acl]) -> Answer<Stat> {
        let (path, acl) = (path.to_owned(), acl.to_vec());
        self.call(Request::SetAcl { path, acl }).and_then(stat)
    }

    fn read(&self, path: &str) -> Answer<Found> {
        or_none(self.call(Request::Data { path: path.to_owned(), watch: false }).and_then(data))
    }

    fn exists(&self, path: &str) -> Answer<Option<Stat>> {
        or_none(self.call(Request::Exists { path: path.to_owned(), watch: false }).and_then(stat))
    }

    fn children(&self, path: &str) -> Answer<Option<Names>> {
        or_none(
            self.call(Request::Children { path: path.to_owned(), watch: false }).and_then(names),
        )
    }

    fn read_with(&self, path: &str, watcher: Watcher) -> Answer<(Vec<u8>, Stat)> {
        let read = Request::Data { path: path.to_owned(), watch: true };
        self.call_with(read, Some((path, watcher))).and_then(data)
    }

    fn exists_with(&self, path: &str, watcher: Watcher) -> Answer<Option<Stat>> {
        let exists = Request::Exists { path: path.to_owned(), watch: true };
        or_none(self.call_with(exists, Some((path, watcher))).and_then(stat))
    }

    fn children_with(&self, path: &str, watcher: Watcher) -> Answer<Names> {
        let list = Request::Children { path: path.to_owned(), watch: true };
        self.call_with(list, Some((path, watcher))).and_then(names)
    }

    fn forget(&self, path: &str) -> Answer<()> {
        // The answer does not matter: servers reply that there is no such watch.
        self.call(Request::Exists { path: path.to_owned(), watch: false })?;
        let forgotten = self.state.lock().watchers.remove(path);
        drop(forgotten);
        Ok(())
    }

    fn listen(&self, tell: Box<dyn Fn(HandleEvent) + Send>) -> Option<Unlisten> {
        let mut state = self.state.lock();
        state.next += 1;
        let (number, tell) = (state.next, Mutex::new(tell));
        state.listeners.insert(number, Arc::new(move |line| (tell.lock())(line)));
        let me = Weak::clone(&self.me);
        Some(Box::new(move || {
            if let Some(handle) = me.upgrade() {
                let listener = handle.state.lock().listeners.remove(&number);
                drop(listener);
            }
        }))
    }

    fn is_dead(&self, _path: &str) -> bool {
        false
    }

    fn is_orphan(&self) -> bool {
        false
    }

    fn address(&self) -> Option<usize> {
        Some(self.me.as_ptr().addr())
    }
}

impl fmt::Debug for SimulatedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimulatedHandle").field(&self.process).finish()
    }
}
