//! A client's end of the simulated ensemble: what the engine takes for sessions.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use super::world::{LinkId, Recipient, Reply, Request, Way, World};
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::End;
use crate::path;
use crate::rt::schedule::current;
use crate::rt::{self, Deadline, Mutex};
use crate::session::session::ended;
use crate::session::store::{
    Answer, Created, Ensemble, Entered, Fault, Info, IsWanted, Kind, Names, OnAnswer, Reports,
    Stat, Step, Store,
};
use crate::session::wake::Waiter;

/// The simulated ensemble, as one client's.
pub(super) struct Servers(pub(super) Arc<World>);

impl Ensemble for Servers {
    fn open(
        &self,
        reports: Reports,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Store>> {
        let Some(schedule) = current() else { return Err(ended(End::Closed)) };
        let deadline = Deadline::after(self.connect_timeout());
        let latency = self.0.look(|world| world.habits.latency);
        loop {
            if stop() {
                return Err(ended(End::Closed));
            }
            let reachable = self.0.look(|world| world.reachable_at(schedule.process()));
            if reachable <= schedule.time() {
                break;
            }
            if deadline.has_passed() {
                return Err(Error::new(ErrorKind::Connect, "no server can be reached"));
            }
            let then = Deadline::after(reachable - schedule.time());
            waiter.wait(then.earlier(deadline));
        }
        let link = self.0.act(|world| world.open(reports));
        schedule.pause(schedule.some(latency));
        Ok(Box::new(Wire { world: Arc::clone(&self.0), link }))
    }

    fn session_timeout(&self) -> Duration {
        self.0.look(|world| world.habits.session_timeout)
    }

    fn connect_timeout(&self) -> Duration {
        self.0.look(|world| world.habits.connect_timeout)
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Servers")
    }
}

/// One session.
pub(super) struct Wire {
    world: Arc<World>,
    link: LinkId,
}

type Pending = (Arc<Mutex<Option<Answer<Reply>>>>, rt::Rung);

impl Wire {
    fn hesitate(&self) {
        if self.world.act(|world| world.is_to_panic()) {
            resume_unwind(Box::new("meant"));
        }
        let hesitation = self.world.look(|world| world.habits.hesitation);
        if let Some(schedule) = current()
            && !hesitation.is_zero()
            && schedule.chance(10)
        {
            schedule.pause(schedule.some(hesitation));
        }
    }

    fn send(&self, request: Request, way: Way) -> Pending {
        self.hesitate();
        let (slot, (bell, rung)) = (Arc::new(Mutex::new(None)), rt::bell());
        let recipient = Recipient::Task(Arc::clone(&slot), bell);
        self.world.act(|world| world.send(self.link, request, way, recipient));
        (slot, rung)
    }

    /// Back to back.
    fn send_both(&self, requests: [Request; 2]) -> [Pending; 2] {
        self.hesitate();
        self.world.act(|world| {
            requests.map(|request| {
                let (slot, (bell, rung)) = (Arc::new(Mutex::new(None)), rt::bell());
                let recipient = Recipient::Task(Arc::clone(&slot), bell);
                world.send(self.link, request, Way::Verb, recipient);
                (slot, rung)
            })
        })
    }

    fn receive((slot, rung): Pending) -> Answer<Reply> {
        // Even what is refused at once takes a look at the clock, lest somebody asks for ever.
        let _ = rt::now();
        loop {
            if let Some(answer) = slot.lock().take() {
                return answer;
            }
            rung.wait(Deadline::NEVER);
        }
    }

    /// What is asked often.
    fn ask(&self, request: Request) -> Answer<Reply> {
        Wire::receive(self.send(request, Way::Verb))
    }

    /// What is asked rarely.
    fn ask_the_handle(&self, request: Request) -> Answer<Reply> {
        Wire::receive(self.send(request, Way::Handle))
    }
}

fn strange<T>() -> Answer<T> {
    Err(Fault::Refused("a reply of another kind".to_owned()))
}

impl Store for Wire {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: Kind) -> Answer<Created> {
        let (path, data, acl) = (path.to_owned(), data.to_vec(), acl.to_vec());
        let create = Request::Create { path, data, acl, kind };
        let answer = match kind {
            Kind::Persistent | Kind::Container => self.ask_the_handle(create),
            _ => self.ask(create),
        };
        match answer? {
            Reply::Created(created) => Ok(created),
            _ => strange(),
        }
    }

    fn enter(&self, path: &str, data: &[u8], acl: &[Acl]) -> Answer<Entered> {
        let parent = path::parent(path).to_owned();
        let (path, data, acl) = (path.to_owned(), data.to_vec(), acl.to_vec());
        let create = Request::Create { path, data, acl, kind: Kind::EphemeralSequential };
        let list = Request::Children { path: parent, watch: false };
        let [made, siblings] = self.send_both([create, list]);
        let (made, siblings) = (Wire::receive(made), Wire::receive(siblings));
        let made = match made? {
            Reply::Created(created) => created,
            _ => return strange(),
        };
        let siblings = match siblings {
            Ok(Reply::Names(names)) => Some(Arc::new(names)),
            _ => None,
        };
        Ok(Entered { made, siblings })
    }

    fn delete(&self, path: &str) -> Answer<()> {
        self.ask(Request::Delete { path: path.to_owned() }).map(drop)
    }

    fn write(&self, path: &str, data: &[u8]) -> Answer<()> {
        let write = Request::Write { path: path.to_owned(), data: data.to_vec() };
        self.ask_the_handle(write).map(drop)
    }

    fn transact(&self, steps: &[Step]) -> Answer<()> {
        self.ask(Request::Transact(steps.to_vec())).map(drop)
    }

    fn await_making(&self, path: &str) -> Answer<bool> {
        match self.ask_the_handle(Request::Exists { path: path.to_owned(), watch: true }) {
            Ok(_) => Ok(true),
            Err(Fault::NoNode) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    fn data(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        match self.ask(Request::Data { path: path.to_owned(), watch }) {
            Ok(Reply::Data(data, stat)) => Ok(Some((data, stat))),
            Ok(_) => strange(),
            Err(Fault::NoNode) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        let read = self.data(path, watch);
        let path = path.to_owned();
        match read {
            Err(Fault::NoAuth) if !watch => match self.ask(Request::Exists { path, watch }) {
                Ok(Reply::Stat(stat)) => Ok(Some((Vec::new(), stat))),
                Ok(_) => strange(),
                Err(Fault::NoNode) => Ok(None),
                Err(fault) => Err(fault),
            },
            read => read,
        }
    }

    fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        match self.ask(Request::Children { path: path.to_owned(), watch }) {
            Ok(Reply::Names(names)) => Ok(Some(Arc::new(names))),
            Ok(_) => strange(),
            Err(Fault::NoNode) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn sync(&self) -> Answer<()> {
        Wire::receive(self.send(Request::Sync, Way::Verb)).map(drop)
    }

    fn confirm(&self, path: &str) -> Answer<Option<Stat>> {
        let exists = Request::Exists { path: path.to_owned(), watch: false };
        let [synced, found] = self.send_both([Request::Sync, exists]);
        Wire::receive(synced)?;
        match Wire::receive(found) {
            Ok(Reply::Stat(stat)) => Ok(Some(stat)),
            Ok(_) => strange(),
            Err(Fault::NoNode) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn watch_soon(&self, path: &str, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        let request = Request::Data { path: path.to_owned(), watch: true };
        let data = |reply| match reply {
            Reply::Data(data, stat) => Ok((data, stat)),
            _ => strange(),
        };
        let answer = Recipient::Callback(Box::new(move |answer| on_answer(answer.and_then(data))));
        self.world.act(|world| world.send(self.link, request, Way::Verb, answer));
    }

    fn watch_later(&self, path: &str, is_wanted: IsWanted, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        let request = Request::Data { path: path.to_owned(), watch: true };
        let data = |reply| match reply {
            Reply::Data(data, stat) => Ok((data, stat)),
            _ => strange(),
        };
        let answer = Recipient::Callback(Box::new(move |answer| on_answer(answer.and_then(data))));
        self.world.act(|world| world.send_later(self.link, request, is_wanted, answer));
    }

    fn watch_siblings_soon(&self, path: &str, on_answer: OnAnswer<Stat>) {
        let children = Request::Children { path: path::parent(path).to_owned(), watch: true };
        let exists = Request::Exists { path: path.to_owned(), watch: false };
        let nobody = Recipient::Callback(Box::new(drop));
        let stat = |reply| match reply {
            Reply::Stat(stat) => Ok(stat),
            _ => strange(),
        };
        let answer = Recipient::Callback(Box::new(move |answer| on_answer(answer.and_then(stat))));
        self.world.act(|world| {
            world.send(self.link, children, Way::Verb, nobody);
            world.send(self.link, exists, Way::Verb, answer);
        });
    }

    fn watch_children_soon(&self, path: &str, on_answer: OnAnswer<Names>) {
        let request = Request::Children { path: path.to_owned(), watch: true };
        let names = |reply| match reply {
            Reply::Names(names) => Ok(Arc::new(names)),
            _ => strange(),
        };
        let answer = Recipient::Callback(Box::new(move |answer| on_answer(answer.and_then(names))));
        self.world.act(|world| world.send(self.link, request, Way::Verb, answer));
    }

    /// Nobody is held up here: that would be beyond the deadline.
    fn let_go(&self, path: &str, _until: Deadline, on_answer: OnAnswer<()>) {
        let delete = Request::Delete { path: path.to_owned() };
        let answer = Recipient::Callback(Box::new(|answer| on_answer(answer.map(drop))));
        self.world.act(|world| world.send(self.link, delete, Way::Verb, answer));
    }

    fn delete_soon(&self, path: &str) {
        let delete = Request::Delete { path: path.to_owned() };
        let nobody = Recipient::Callback(Box::new(drop));
        self.world.act(|world| world.send(self.link, delete, Way::Verb, nobody));
    }

    fn lease(&self) -> Result<(), End> {
        self.world.look(|world| world.lease(self.link))
    }

    fn info(&self) -> Info {
        let (session, timeout) =
            self.world.look(|world| (world.id(self.link), world.habits.session_timeout));
        Info { session, timeout, server: None, trouble: None }
    }

    fn close(&self, give_up_after: Duration) {
        self.world.act(|world| world.close(self.link, give_up_after));
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close(Duration::from_secs(1));
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wire").field(&self.link).finish()
    }
}
