//! A client's end of the small ensemble: what the engine takes for sessions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::ensemble::{Task, World};
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::End;
use crate::path;
use crate::rt::Deadline;
use crate::rt::shuttled::{give_way, one_in};
use crate::session::session::ended;
use crate::session::store::{
    Answer, Created, Ensemble, Entered, Fault, Info, Kind, Names, OnAnswer, Reports, Stat, Step,
    Store,
};
use crate::session::wake::Waiter;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The ensemble, as clients see it.
pub(super) struct Servers(pub(super) Arc<World>);

impl Servers {
    fn may_open(&self, session: i64) -> Result<()> {
        let troubles = self.0.troubles;
        let time_in = |count| session <= troubles.until && count > 0 && one_in(count);
        if time_in(troubles.unreachable) {
            Err(Error::new(ErrorKind::Connect, "unreachable"))
        } else if time_in(troubles.rejected) {
            Err(ended(End::AuthFailed))
        } else if time_in(troubles.panics) {
            give_way()
        } else {
            Ok(())
        }
    }
}

impl Ensemble for Servers {
    fn open(
        &self,
        reports: Reports,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Store>> {
        let status = Arc::clone(&reports.status);
        let session = self.0.open(reports, |session| self.may_open(session))?;
        let wire = Wire { world: Arc::clone(&self.0), session };
        let slow = session <= self.0.troubles.until && self.0.troubles.unreachable > 0;
        let limit = if slow { Deadline::after(TIMEOUT) } else { Deadline::NEVER };
        loop {
            let phase = status.now();
            if let Some(end) = phase.ended {
                return Err(ended(end));
            }
            if phase.attached {
                return Ok(Box::new(wire));
            }
            if stop() {
                return Err(ended(End::Closed));
            }
            if limit.has_passed() {
                return Err(Error::new(ErrorKind::Connect, "not in time"));
            }
            waiter.wait(limit);
        }
    }

    fn session_timeout(&self) -> Duration {
        TIMEOUT
    }

    fn connect_timeout(&self) -> Duration {
        TIMEOUT
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Servers")
    }
}

/// One session.
struct Wire {
    world: Arc<World>,
    session: i64,
}

impl Store for Wire {
    fn create(&self, path: &str, _data: &[u8], _acl: &[Acl], kind: Kind) -> Answer<Created> {
        let (path, czxid) = self.world.ask(self.session, |server| match kind {
            Kind::Persistent | Kind::Container => Ok((path.to_owned(), server.create(path, 0)?)),
            Kind::Ephemeral | Kind::Named => {
                Ok((path.to_owned(), server.create(path, self.session)?))
            }
            Kind::PersistentSequential => server.create_numbered(path, 0),
            Kind::EphemeralSequential => server.create_numbered(path, self.session),
        })?;
        Ok(Created { path, czxid: Some(czxid) })
    }

    fn enter(&self, path: &str, data: &[u8], acl: &[Acl]) -> Answer<Entered> {
        let made = self.create(path, data, acl, Kind::EphemeralSequential)?;
        let siblings = self.children(path::parent(path), false).ok().flatten();
        Ok(Entered { made, siblings })
    }

    fn delete(&self, path: &str) -> Answer<()> {
        self.world.ask(self.session, |server| server.delete(path))
    }

    /// There is no data here.
    fn write(&self, path: &str, _data: &[u8]) -> Answer<()> {
        self.read(path, false)?.map(drop).ok_or(Fault::NoNode)
    }

    /// Nothing that is modelled here needs one.
    fn transact(&self, _steps: &[Step]) -> Answer<()> {
        Err(Fault::Refused("there are no transactions here".to_owned()))
    }

    fn await_making(&self, path: &str) -> Answer<bool> {
        Ok(self.read(path, false)?.is_some())
    }

    fn data(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        self.read(path, watch)
    }

    fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        let found =
            self.world.ask(self.session, |server| Ok(server.find(self.session, path, watch)));
        Ok(found?.map(|stat| (Vec::new(), stat)))
    }

    fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        let found =
            self.world.ask(self.session, |server| Ok(server.children(self.session, path, watch)));
        Ok(found?.map(Arc::new))
    }

    fn sync(&self) -> Answer<()> {
        self.world.ask(self.session, |_| Ok(()))
    }

    fn confirm(&self, path: &str) -> Answer<Option<Stat>> {
        self.world.ask(self.session, |server| Ok(server.find(self.session, path, false)))
    }

    fn watch_soon(&self, path: &str, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        let (path, session) = (path.to_owned(), self.session);
        let act = move |world: &World| {
            let found = world.ask(session, |server| Ok(server.find(session, &path, true)));
            on_answer(
                found.and_then(|found| found.map(|stat| (Vec::new(), stat)).ok_or(Fault::NoNode)),
            );
        };
        self.world.have(session, Task::Do(Box::new(act)));
    }

    /// Nothing is hidden here.
    fn watch_siblings_soon(&self, path: &str, on_answer: OnAnswer<Stat>) {
        self.watch_soon(path, Box::new(|answer| on_answer(answer.map(|(_, stat)| stat))));
    }

    fn watch_children_soon(&self, path: &str, on_answer: OnAnswer<Names>) {
        let (path, session) = (path.to_owned(), self.session);
        let act = move |world: &World| {
            let found = world.ask(session, |server| Ok(server.children(session, &path, true)));
            on_answer(found.and_then(|found| found.map(Arc::new).ok_or(Fault::NoNode)));
        };
        self.world.have(session, Task::Do(Box::new(act)));
    }

    /// What the caller asks next comes after it.
    fn let_go(&self, path: &str, _until: Deadline, on_answer: OnAnswer<()>) {
        let answer = self.delete(path);
        self.world.have(self.session, Task::Do(Box::new(move |_| on_answer(answer))));
    }

    fn delete_soon(&self, path: &str) {
        let (path, session) = (path.to_owned(), self.session);
        let act = move |world: &World| drop(world.ask(session, |server| server.delete(&path)));
        self.world.have(session, Task::Do(Box::new(act)));
    }

    fn lease(&self) -> Result<(), End> {
        self.world.lease(self.session)
    }

    fn info(&self) -> Info {
        Info { session: self.session, timeout: TIMEOUT, server: None, trouble: None }
    }

    fn close(&self, _give_up_after: Duration) {
        self.world.have(self.session, Task::End(End::Closed));
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wire").field(&self.session).finish()
    }
}
