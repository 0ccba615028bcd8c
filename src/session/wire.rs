//! Real sessions: the `zookeeper` crate's handle on a link to the ensemble.

use std::sync::Arc;
use std::time::Duration;

use super::handle::Handle;
use super::session::ended;
use super::store::{
    Answer, Created, Ensemble, Fault, Info, Kind, Names, OnAnswer, Reports, Stat, Store,
};
use super::wake::Waiter;
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::{Answer as Reply, End};
use crate::link::frame::{Fields, Frame, SYNC_ROOT, code, op};
use crate::link::{Link, LinkConfig};
use crate::path;
use crate::rt::{Deadline, bounded};

/// How long the handle may take to connect to its link, in the same process.
const ADMISSION: Duration = Duration::from_secs(2);

/// The servers of a connect string, and how to talk to them.
#[derive(Debug)]
pub(crate) struct Servers(pub(crate) LinkConfig);

impl Ensemble for Servers {
    fn open(
        &self,
        reports: Reports,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Store>> {
        let Reports { status, watches, on_notice } = reports;
        let (config, limit) = (self.0.clone(), self.0.connect_timeout);
        let told = Arc::clone(&status);
        let link = Link::open(
            config,
            Box::new(move |notice| {
                told.note(notice);
                on_notice(notice);
            }),
        )?;
        let deadline = Deadline::after(limit);
        loop {
            let phase = status.now();
            if let Some(end) = phase.ended {
                return Err(ended(end));
            }
            if phase.attached {
                break;
            }
            if stop() {
                return Err(ended(End::Closed));
            }
            if deadline.has_passed() {
                let trouble = link.info().trouble;
                let hosts = &self.0.resolver;
                let trouble = trouble.unwrap_or_else(|| format!("no answer yet from {hosts}"));
                return Err(Error::new(
                    ErrorKind::Connect,
                    format!("could not connect within {limit:?}; last: {trouble}"),
                ));
            }
            waiter.wait(deadline);
        }
        // The session is there: it is not to be thrown away for what is left of the time.
        let admit_by = Deadline::after(ADMISSION);
        let handle = Handle::open(&link, &watches, || admit_by.has_passed() || stop())?;
        Ok(Box::new(Wire { handle, link }))
    }

    fn session_timeout(&self) -> Duration {
        self.0.session_timeout
    }

    fn connect_timeout(&self) -> Duration {
        self.0.connect_timeout
    }

    fn retry(&self) {
        Handle::retry();
    }
}

/// One session.
#[derive(Debug)]
struct Wire {
    handle: Handle,
    link: Link,
}

fn outcome(error: i32) -> Answer<()> {
    match error {
        code::OK => Ok(()),
        code::CONNECTION_LOSS => Err(Fault::ConnectionLoss),
        code::SESSION_EXPIRED => Err(Fault::SessionEnded),
        code::NO_NODE => Err(Fault::NoNode),
        code::NO_AUTH => Err(Fault::NoAuth),
        other => Err(Fault::Refused(format!("the server refused it: error {other}"))),
    }
}

impl Store for Wire {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: Kind) -> Answer<Created> {
        let made = match self.handle.create(path, data, acl, kind) {
            // Servers before 3.5 know no containers.
            Err(Fault::Refused(_)) if kind == Kind::Container => {
                self.handle.create(path, data, acl, Kind::Persistent)
            }
            made => made,
        };
        made.map(|path| Created { czxid: self.link.take_created(&path), path })
    }

    fn delete(&self, path: &str) -> Answer<()> {
        self.handle.delete(path)
    }

    fn write(&self, path: &str, data: &[u8]) -> Answer<()> {
        self.handle.write(path, data)
    }

    fn await_making(&self, path: &str) -> Answer<bool> {
        Ok(self.handle.exists(path, true)?.is_some())
    }

    fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        match self.handle.read(path, watch) {
            // Since ZooKeeper 3.8.4 and 3.9.2, whoever may not read a node can set a watch on
            // it, but is told of nothing (CVE-2024-23944).
            Err(Fault::NoAuth) if watch => Err(Fault::NoAuth),
            // Neither an ACL that hides the data nor its size hides whether the node exists.
            Err(Fault::NoAuth | Fault::TooLarge) => {
                let stat = self.handle.exists(path, watch)?;
                Ok(stat.map(|stat| (Vec::new(), stat)))
            }
            read => read,
        }
    }

    fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        self.handle.children(path, watch)
    }

    fn sync(&self) -> Answer<()> {
        let (tell, told) = bounded(1);
        let on_answer = Box::new(move |answer: Reply| {
            let _ = tell.send(answer.error);
        });
        self.link.verb(op::SYNC, SYNC_ROOT.to_vec(), on_answer);
        outcome(told.recv().map_err(|_| Fault::SessionEnded)?)
    }

    fn confirm(&self, path: &str) -> Answer<Option<Stat>> {
        let (tell, told) = bounded(2);
        let second = tell.clone();
        let sync = SYNC_ROOT.to_vec();
        let exists = Frame::new().buffer(path.as_bytes()).flag(false).body();
        self.link.verb(op::SYNC, sync, Box::new(move |answer| drop(tell.send(answer))));
        self.link.verb(op::EXISTS, exists, Box::new(move |answer| drop(second.send(answer))));
        let synced = told.recv().map_err(|_| Fault::SessionEnded)?;
        let found = told.recv().map_err(|_| Fault::SessionEnded)?;
        outcome(synced.error)?;
        match outcome(found.error) {
            Ok(()) => Fields(&found.body)
                .stat()
                .map(Some)
                .map_err(|malformed| Fault::Refused(malformed.to_string())),
            Err(Fault::NoNode) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn watch_soon(&self, path: &str, on_answer: OnAnswer<Vec<u8>>) {
        let body = Frame::new().buffer(path.as_bytes()).flag(true).body();
        let on_answer = move |answer: Reply| {
            let data = || Fields(&answer.body).buffer().map(<[u8]>::to_vec).unwrap_or_default();
            on_answer(outcome(answer.error).map(|()| data()));
        };
        self.link.verb(op::GET_DATA, body, Box::new(on_answer));
    }

    fn watch_siblings_soon(&self, path: &str, on_answer: OnAnswer<()>) {
        let about = |path: &str, watch| Frame::new().buffer(path.as_bytes()).flag(watch).body();
        let on_answer = move |answer: Reply| on_answer(outcome(answer.error));
        self.link.verb(op::GET_CHILDREN, about(path::parent(path), true), Box::new(drop));
        self.link.verb(op::EXISTS, about(path, false), Box::new(on_answer));
    }

    fn delete_soon(&self, path: &str) {
        let body = Frame::new().buffer(path.as_bytes()).int(-1).body();
        self.link.verb(op::DELETE, body, Box::new(drop));
    }

    fn is_trusted(&self) -> bool {
        self.link.is_trusted()
    }

    fn info(&self) -> Info {
        self.link.info()
    }

    fn close(&self, give_up_after: Duration) {
        self.link.close(give_up_after);
    }
}
