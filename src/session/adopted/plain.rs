//! How a session is asked on a handle of the program's.

use std::sync::Arc;
use std::time::Duration;

use super::fuses::What;
use super::lookout::Lookout;
use crate::acl::Acl;
use crate::link::core::End;
use crate::rt::Deadline;
use crate::session::store::{
    Answer, Answered, Asked, Blocking, Both, Connection, Created, Fault, Info, Kind, Names, Reply,
    Request, Stat, Step, or_none,
};
use crate::session::wake::Waiter;
use crate::session::workers::Workers;

/// One session, for as long as the handle keeps it.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) lookout: Arc<Lookout>,
    pub(super) workers: Workers,
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.lookout.leave();
    }
}

impl Connection for Plain {
    /// By the session's own thread, one after the other.
    fn submit(&self, requests: Both<Asked>) -> bool {
        let lookout = Arc::clone(&self.lookout);
        self.lookout.later(move || {
            for Asked { request, on_reply } in requests.into_iter().flatten() {
                on_reply(Answered::Read(answer(&lookout, &request)));
            }
        });
        false
    }

    /// The crate does not say when a request is under way: that the answer is there has to do. As that
    /// may take for ever, nobody waits for it without a deadline.
    fn flushed_by(&self, until: Deadline) {
        if until.is_never() {
            return;
        }
        let waiter = Waiter::new();
        let done = waiter.bell();
        self.lookout.later(move || done());
        waiter.wait(until);
    }

    fn trusted(&self) -> Result<(), End> {
        self.lookout.end().map_or(Ok(()), Err)
    }

    fn blocking(&self) -> Option<&dyn Blocking> {
        Some(self)
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

impl Blocking for Plain {
    fn call(&self, request: Request) -> Answer<Reply> {
        answer(&self.lookout, &request)
    }

    fn workers(&self) -> &Workers {
        &self.workers
    }
}

fn answer(lookout: &Lookout, request: &Request) -> Answer<Reply> {
    match request {
        Request::Create { path, data, acl, kind } => {
            create(lookout, path, data, acl, *kind).map(Reply::Created)
        }
        Request::Delete { path } => delete(lookout, path).map(|()| Reply::Done),
        Request::Write { path, data, version } => {
            lookout.call(|handle| handle.write(path, data, *version)).map(|()| Reply::Done)
        }
        Request::Transact(steps) => transact(lookout, steps).map(|()| Reply::Done),
        Request::Data { path, watch } => {
            let found = match watch {
                true => watch_node(lookout, path)?,
                false => lookout.call(|handle| handle.read(path))?,
            };
            let Some((data, stat)) = found else {
                if *watch {
                    lookout.is_gone(path);
                }
                return Err(Fault::NoNode);
            };
            lookout.learn(path, &stat)?;
            Ok(Reply::Data(data, stat))
        }
        Request::Exists { path, watch } => {
            match lookout.call(|handle| handle.exists(path))? {
                Some(stat) => {
                    lookout.learn(path, &stat)?;
                    Ok(Reply::Stat(stat))
                }
                // A watcher for that would stay with the crate, whoever waits.
                None if *watch => Err(Fault::Refused(
                    "over a handle of the program's own, nobody can wait for a node to be made"
                        .to_owned(),
                )),
                None => Err(Fault::NoNode),
            }
        }
        Request::Children { path, watch } => {
            children(lookout, path, *watch)?.map(Reply::Names).ok_or(Fault::NoNode)
        }
        // One after the other.
        Request::ChildrenAndStat { path, watch } => {
            let found = lookout.call(|handle| handle.read(path))?;
            let (_, stat) = found.ok_or(Fault::NoNode)?;
            let names = children(lookout, path, *watch)?.ok_or(Fault::NoNode)?;
            Ok(Reply::NamesAndStat(names, stat))
        }
        Request::Sync => lookout.sync().map(|()| Reply::Done),
        // The watches are the handle's.
        Request::Unwatch { .. } => Err(Fault::Unknown),
    }
}

fn create(lookout: &Lookout, path: &str, data: &[u8], acl: &[Acl], kind: Kind) -> Answer<Created> {
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
        let stat = match lookout.call(|handle| handle.exists(path)) {
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
    let czxid = match lookout.call(|handle| handle.exists(&path)) {
        Ok(Some(stat)) => {
            lookout.learn(&path, &stat)?;
            Some(stat.czxid)
        }
        Err(Fault::SessionEnded) => return Err(Fault::SessionEnded),
        Ok(None) | Err(_) => None,
    };
    Ok(Created { path, czxid })
}

/// One after the other, for want of transactions in the crate: who dies in between leaves it
/// half done. What only looks comes first.
fn transact(lookout: &Lookout, steps: &[Step]) -> Answer<()> {
    // What is made only to be deleted again: that it is not there is what counts.
    let passes =
        |made: &str| steps.iter().any(|step| matches!(step, Step::Delete { path } if path == made));
    for step in steps {
        let path = match step {
            Step::Check { path, .. } => path,
            Step::Create { path, .. } if passes(path) => path,
            _ => continue,
        };
        let found = lookout.call(|handle| handle.exists(path))?;
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
                create(lookout, path, data, acl, *kind)?;
            }
            Step::Delete { path } => delete(lookout, path)?,
            Step::Write { path, data, version } => {
                lookout.call(|handle| handle.write(path, data, *version))?;
            }
        }
    }
    Ok(())
}

fn delete(lookout: &Lookout, path: &str) -> Answer<()> {
    let _turn = lookout.fuses.turn(path);
    let answer = lookout.call(|handle| handle.delete(path));
    if matches!(answer, Ok(()) | Err(Fault::NoNode)) {
        lookout.is_gone(path);
    }
    answer
}

fn children(lookout: &Lookout, path: &str, watch: bool) -> Answer<Option<Names>> {
    if watch {
        return watch_children(lookout, path);
    }
    lookout.call(|handle| handle.children(path))
}

fn watch_node(lookout: &Lookout, path: &str) -> Answer<Option<(Vec<u8>, Stat)>> {
    let _turn = lookout.fuses.turn(path);
    // A watcher on a node that is gone would stay with the crate. Our own is not gone before we
    // delete it, which takes the turn.
    if !lookout.is_mine(path) && lookout.call(|handle| handle.exists(path))?.is_none() {
        return Ok(None);
    }
    or_none(lookout.call(|handle| {
        let plain = || handle.read(path)?.ok_or(Fault::NoNode);
        lookout.fuses.watch(What::Node, path, plain, |fuse| {
            handle.read_with(path, Box::new(move || fuse.blow()))
        })
    }))
}

fn watch_children(lookout: &Lookout, path: &str) -> Answer<Option<Names>> {
    let _turn = lookout.fuses.turn(path);
    or_none(lookout.call(|handle| {
        let plain = || handle.children(path)?.ok_or(Fault::NoNode);
        lookout.fuses.watch(What::Children, path, plain, |fuse| {
            handle.children_with(path, Box::new(move || fuse.blow()))
        })
    }))
}
