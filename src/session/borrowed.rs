//! Sessions of a handle that belongs to the program: no link, and so none of what it knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::fuses::What;
use super::handle::{Handle, ZooKeeper};
use super::lookout::Lookout;
use super::session::ended;
use super::store::{
    Answer, Created, Ensemble, Entered, Fault, Info, Kind, Names, OnAnswer, Reports, Stat, Step,
    Store, or_none,
};
use super::wake::Waiter;
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::End;
use crate::path;
use crate::rt::{self, Deadline, bounded};

/// How long opening a session may take: the default of clients that have settings.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The most threads that the crate may keep waiting, of attempts to open a session.
const MOST: usize = 2;

/// A handle of the program's, with whatever session it has.
#[derive(Debug)]
pub(crate) struct Borrowed {
    handle: Arc<Handle>,
    threads: Arc<AtomicUsize>,
}

impl Borrowed {
    pub(crate) fn new(handle: Arc<ZooKeeper>) -> Borrowed {
        Borrowed { handle: Arc::new(Handle::shared(handle)), threads: Arc::default() }
    }
}

/// An attempt that may go on when nobody waits for it any more.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ensemble for Borrowed {
    fn open(
        &self,
        reports: Reports,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Store>> {
        let deadline = Deadline::after(CONNECT_TIMEOUT);
        let status = Arc::clone(&reports.status);
        let (lookout, rung) = Lookout::new(Arc::clone(&self.handle), reports);
        let store = Plain { lookout: Arc::clone(&lookout) };
        self.threads.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(Arc::clone(&self.threads));
        if self.threads.load(Ordering::SeqCst) <= MOST {
            rt::spawn("zklock-handle", move || {
                lookout.run(&rung, counted);
            })?;
        }
        loop {
            let phase = status.now();
            if let Some(end) = phase.ended {
                return Err(ended(end));
            }
            if phase.attached {
                return Ok(Box::new(store));
            }
            if stop() {
                return Err(ended(End::Closed));
            }
            if deadline.has_passed() {
                return Err(Error::new(
                    ErrorKind::Connect,
                    format!("the handle has not answered within {CONNECT_TIMEOUT:?}"),
                ));
            }
            waiter.wait(deadline);
        }
    }

    /// The crate does not tell.
    fn session_timeout(&self) -> Duration {
        Duration::ZERO
    }

    fn connect_timeout(&self) -> Duration {
        CONNECT_TIMEOUT
    }

    fn handle(&self) -> Option<usize> {
        self.handle.address()
    }

    fn retry(&self) {
        Handle::retry();
    }
}

/// One session, for as long as the handle keeps it.
#[derive(Debug)]
struct Plain {
    lookout: Arc<Lookout>,
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.lookout.leave();
    }
}

impl Store for Plain {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: Kind) -> Answer<Created> {
        let lookout = &self.lookout;
        if matches!(kind, Kind::Persistent | Kind::PersistentSequential | Kind::Container) {
            // What the crate sends for a container is none.
            let kind = if kind == Kind::Container { Kind::Persistent } else { kind };
            let made = lookout.call(|handle| handle.create(path, data, acl, kind));
            return made.map(|path| Created { path, czxid: None });
        }
        if kind == Kind::Named {
            // Who wants it sees to it: by its name alone it might be another's.
            let made = lookout.call(|handle| handle.create(path, data, acl, kind))?;
            if made != path {
                return Err(Fault::ConnectionLoss);
            }
            let stat = match lookout.call(|handle| handle.exists(path, false)) {
                // It has been made; an ACL hides the rest.
                Err(Fault::NoAuth) => None,
                found => found?,
            };
            stat.iter().for_each(|stat| lookout.meet(stat));
            return Ok(Created { path: made, czxid: stat.map(|stat| stat.czxid) });
        }
        let path = lookout.make(path, |handle| match handle.create(path, data, acl, kind) {
            // The crate gives answers to the wrong callers while credentials are added.
            Ok(made) if !made.starts_with(path) => Err(Fault::ConnectionLoss),
            // Of an earlier attempt: nobody else knows the guid.
            Err(Fault::NodeExists) if kind == Kind::Ephemeral => Ok(path.to_owned()),
            made => made,
        })?;
        let czxid = match lookout.call(|handle| handle.exists(&path, false)) {
            Ok(Some(stat)) => {
                lookout.learn(&path, &stat)?;
                Some(stat.czxid)
            }
            Err(Fault::SessionEnded) => return Err(Fault::SessionEnded),
            Ok(None) | Err(_) => None,
        };
        Ok(Created { path, czxid })
    }

    /// One after the other: the crate answers one request of a thread at a time.
    fn enter(&self, path: &str, data: &[u8], acl: &[Acl]) -> Answer<Entered> {
        let made = self.create(path, data, acl, Kind::EphemeralSequential)?;
        let siblings = self.children(path::parent(path), false).ok().flatten();
        Ok(Entered { made, siblings })
    }

    fn delete(&self, path: &str) -> Answer<()> {
        delete(&self.lookout, path)
    }

    fn write(&self, path: &str, data: &[u8]) -> Answer<()> {
        self.lookout.call(|handle| handle.write(path, data, None))
    }

    /// One after the other, for want of transactions in the crate: who dies in between leaves it
    /// half done. What only looks comes first.
    fn transact(&self, steps: &[Step]) -> Answer<()> {
        let lookout = &self.lookout;
        // What is made only to be deleted again: that it is not there is what counts.
        let passes = |made: &str| {
            steps.iter().any(|step| matches!(step, Step::Delete { path } if path == made))
        };
        for step in steps {
            let path = match step {
                Step::Check { path, .. } => path,
                Step::Create { path, .. } if passes(path) => path,
                _ => continue,
            };
            let found = lookout.call(|handle| handle.exists(path, false))?;
            match (step, found) {
                (Step::Check { version, .. }, Some(stat)) => {
                    if version.is_some_and(|version| version != stat.version) {
                        return Err(Fault::BadVersion);
                    }
                }
                (Step::Check { .. }, None) => return Err(Fault::NoNode),
                (_, Some(_)) => return Err(Fault::NodeExists),
                (_, None) => {}
            }
        }
        let made = |gone: &str| {
            steps.iter().any(|step| matches!(step, Step::Create { path, .. } if path == gone))
        };
        for step in steps {
            match step {
                Step::Check { .. } => {}
                Step::Create { path, .. } if passes(path) => {}
                Step::Delete { path } if made(path) => {}
                Step::Create { path, data, acl, kind } => {
                    self.create(path, data, acl, *kind)?;
                }
                Step::Delete { path } => self.delete(path)?,
                Step::Write { path, data, version } => {
                    lookout.call(|handle| handle.write(path, data, *version))?;
                }
            }
        }
        Ok(())
    }

    /// A watcher for that would stay with the crate, whoever waits.
    fn await_making(&self, path: &str) -> Answer<bool> {
        match self.lookout.call(|handle| handle.exists(path, false))? {
            Some(_) => Ok(true),
            None => Err(Fault::Refused(
                "over a handle of the program's own, nobody can wait for a node to be made"
                    .to_owned(),
            )),
        }
    }

    fn data(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        if watch {
            return watch_node(&self.lookout, path);
        }
        self.lookout.call(|handle| handle.read(path, false))
    }

    fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        let lookout = &self.lookout;
        let read = if watch { watch_node(lookout, path)? } else { read(lookout, path)? };
        if let Some((_, stat)) = &read {
            lookout.learn(path, stat)?;
        }
        Ok(read)
    }

    fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        if watch {
            return watch_children(&self.lookout, path);
        }
        self.lookout.call(|handle| handle.children(path, false))
    }

    fn sync(&self) -> Answer<()> {
        self.lookout.sync()
    }

    fn confirm(&self, path: &str) -> Answer<Option<Stat>> {
        self.lookout.sync()?;
        let stat = self.lookout.call(|handle| handle.exists(path, false))?;
        if let Some(stat) = &stat {
            self.lookout.learn(path, stat)?;
        }
        Ok(stat)
    }

    fn watch_soon(&self, path: &str, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        let (lookout, path) = (Arc::clone(&self.lookout), path.to_owned());
        self.lookout.later(move || {
            on_answer(match watch_node(&lookout, &path) {
                Ok(Some(found)) => Ok(found),
                Ok(None) => {
                    lookout.is_gone(&path);
                    Err(Fault::NoNode)
                }
                Err(fault) => Err(fault),
            });
        });
    }

    fn watch_siblings_soon(&self, path: &str, on_answer: OnAnswer<Stat>) {
        let (lookout, path) = (Arc::clone(&self.lookout), path.to_owned());
        self.lookout.later(move || {
            let _ = watch_children(&lookout, path::parent(&path));
            on_answer(match lookout.call(|handle| handle.exists(&path, false)) {
                Ok(Some(stat)) => Ok(stat),
                Ok(None) => Err(Fault::NoNode),
                Err(fault) => Err(fault),
            });
        });
    }

    fn watch_children_soon(&self, path: &str, on_answer: OnAnswer<Names>) {
        let (lookout, path) = (Arc::clone(&self.lookout), path.to_owned());
        self.lookout.later(move || {
            let children = watch_children(&lookout, &path);
            on_answer(children.and_then(|children| children.ok_or(Fault::NoNode)));
        });
    }

    /// The crate does not say when a request is under way: that the answer is there has to do.
    fn let_go(&self, path: &str, until: Deadline, on_answer: OnAnswer<()>) {
        let (lookout, path) = (Arc::clone(&self.lookout), path.to_owned());
        let (done, told) = bounded::<()>(0);
        self.lookout.later(move || {
            // Also when it is dropped, as a session's end does with what was to be done.
            let _done = done;
            on_answer(delete(&lookout, &path));
        });
        if let Some(end) = until.instant() {
            let _ = told.recv_deadline(end);
        }
    }

    fn delete_soon(&self, path: &str) {
        let (lookout, path) = (Arc::clone(&self.lookout), path.to_owned());
        self.lookout.later(move || drop(delete(&lookout, &path)));
    }

    fn lease(&self) -> Result<(), End> {
        self.lookout.end().map_or(Ok(()), Err)
    }

    fn may_adopt(&self) -> bool {
        false
    }

    fn info(&self) -> Info {
        Info { session: self.lookout.owner(), ..Info::default() }
    }

    /// The handle stays as it is; what was made in its session is deleted, for as long as that
    /// takes.
    fn close(&self, _give_up_after: Duration) {
        self.lookout.close();
    }
}

fn delete(lookout: &Lookout, path: &str) -> Answer<()> {
    let _turn = lookout.fuses.turn(path).lock();
    let answer = lookout.call(|handle| handle.delete(path));
    if matches!(answer, Ok(()) | Err(Fault::NoNode)) {
        lookout.is_gone(path);
    }
    answer
}

fn read(lookout: &Lookout, path: &str) -> Answer<Option<(Vec<u8>, Stat)>> {
    match lookout.call(|handle| handle.read(path, false)) {
        // Neither an ACL that hides the data nor its size hides whether the node exists.
        Err(Fault::NoAuth | Fault::TooLarge(_)) => {
            let stat = lookout.call(|handle| handle.exists(path, false))?;
            Ok(stat.map(|stat| (Vec::new(), stat)))
        }
        read => read,
    }
}

fn watch_node(lookout: &Lookout, path: &str) -> Answer<Option<(Vec<u8>, Stat)>> {
    let _turn = lookout.fuses.turn(path).lock();
    // A watcher on a node that is gone would stay with the crate. Our own is not gone before we
    // delete it, which takes the turn.
    if !lookout.is_mine(path) && lookout.call(|handle| handle.exists(path, false))?.is_none() {
        return Ok(None);
    }
    or_none(lookout.call(|handle| {
        let plain = || handle.read(path, false)?.ok_or(Fault::NoNode);
        lookout
            .fuses
            .watch(What::Node, path, plain, |fuse| handle.read_with(path, move || fuse.blow()))
    }))
}

fn watch_children(lookout: &Lookout, path: &str) -> Answer<Option<Names>> {
    let _turn = lookout.fuses.turn(path).lock();
    or_none(lookout.call(|handle| {
        let plain = || handle.children(path, false)?.ok_or(Fault::NoNode);
        lookout.fuses.watch(What::Children, path, plain, |fuse| {
            handle.children_with(path, move || fuse.blow())
        })
    }))
}
