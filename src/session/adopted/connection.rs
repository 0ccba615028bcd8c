//! A session on a program's handle, as a [`Connection`].

use std::sync::Arc;
use std::time::Duration;

use super::calls_on_worker::Calls;
use super::monitor::Monitor;
use crate::acl::Acl;
use crate::connection_notice::{End, Info};
use crate::rt::Deadline;
use crate::session::connection::{
    Answer, Connection, Created, Fault, Found, Names, NodeKind, Reply, Request, Step, Submission,
    Waits, WatchKind, or_none,
};
use crate::session::threads::Workers;
use crate::session::wait::Waiter;
use crate::wire_values::Stat;

/// The crate puts the chroot in front of every path, and does not tell it.
const NO_CHROOT: &str = "the handle's chroot, the path at the end of its connect string, does not exist, nor \
     does the node above it, which the handle cannot make; create the chroot first, with a handle \
     that has none";

/// One session, for as long as the handle keeps it.
#[derive(Debug)]
pub(super) struct HandleConnection {
    session: Arc<UsedSession>,
    workers: Arc<Workers>,
}

/// A session that is left when neither a connection nor a call uses it any more: what a call creates
/// that nobody waits for has to be deleted, too.
#[derive(Debug)]
struct UsedSession(Arc<Monitor>);

impl Drop for UsedSession {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl HandleConnection {
    pub(super) fn new(monitor: Arc<Monitor>, workers: Arc<Workers>) -> HandleConnection {
        HandleConnection { session: Arc::new(UsedSession(monitor)), workers }
    }

    fn monitor(&self) -> &Monitor {
        &self.session.0
    }
}

impl Connection for HandleConnection {
    /// Makes the requests, one after the other: on the caller's thread; on one of the pool's, for a
    /// caller with a limit; or on the session's own.
    fn submit(&self, requests: Vec<Submission>, waits: Waits) -> bool {
        let session = Arc::clone(&self.session);
        let calls = |is_wanted| Calls {
            requests: requests.into(),
            is_wanted,
            answer: move |request: &Request| answer(&session.0, request),
            no_thread: Arc::default(),
        };
        match waits {
            Waits::Here => calls(Box::new(|| true)).make(),
            Waits::Within(is_wanted) => calls(is_wanted).make_on(&self.workers),
            Waits::NotAtAll => {
                let calls = calls(Box::new(|| true));
                self.monitor().later(move || calls.make());
            }
        }
        false
    }

    fn is_watched(&self, path: &str) -> bool {
        self.monitor().watchers.is_watched_since_made(path)
    }

    /// The crate does not say when a request has been sent, so this waits for its answer. As that
    /// may take for ever, this does not wait at all without a deadline.
    fn flushed_by(&self, until: Deadline) {
        if until.is_never() {
            return;
        }
        let waiter = Waiter::new();
        let done = waiter.bell();
        self.monitor().later(move || done());
        waiter.wait(until);
    }

    fn trusted(&self) -> Result<Duration, End> {
        self.monitor().end().map_or(Ok(Duration::ZERO), Err)
    }

    fn is_handle(&self) -> bool {
        true
    }

    fn info(&self) -> Info {
        Info { session: self.monitor().owner(), ..Info::default() }
    }

    /// The handle stays open. What was created in its session is deleted, however long that takes.
    fn close(&self, _why: End, _give_up_after: Duration) {
        self.monitor().close();
    }
}

fn answer(monitor: &Monitor, request: &Request) -> Answer<Reply> {
    match request {
        Request::One(step) => carry_out(monitor, step),
        Request::Transact(steps) => {
            transact(monitor, steps).map(|done| Reply::Transacted(Ok(done)))
        }
        Request::Acl { path } => monitor.call(|handle| handle.acl(path)).map(Reply::Acl),
        Request::SetAcl { path, acl } => {
            monitor.call(|handle| handle.set_acl(path, acl)).map(Reply::Stat)
        }
        Request::Data { path, watch } => {
            let watch = *watch && !is_polled(monitor, path)?;
            let found = match watch {
                true => watch_node(monitor, path)?,
                false => monitor.call(|handle| handle.read(path))?,
            };
            let (data, stat) = learned(monitor, path, watch, found)?;
            Ok(Reply::Data(data, stat))
        }
        Request::Exists { path, watch } => {
            match monitor.call(|handle| handle.exists(path))? {
                Some(stat) => {
                    monitor.learn(path, &stat)?;
                    Ok(Reply::Stat(stat))
                }
                // A watcher for that would stay in the crate, even if no call waits any more.
                None if *watch => Err(Fault::Refused(
                    "a client of a ZooKeeper handle cannot wait for a node that does not exist; \
                     create the node first, or use `Client::connect`"
                        .to_owned(),
                )),
                None => Err(Fault::NoNode),
            }
        }
        Request::Children { path, watch } => {
            let watch = *watch && !is_polled(monitor, path)?;
            let _turn = watch.then(|| monitor.watchers.turn(path));
            children(monitor, path, watch)?.map(Reply::Names).ok_or(Fault::NoNode)
        }
        // Two requests, one after the other: a watcher on a missing node would stay in the crate.
        Request::ChildrenAndStat { path, watch } => {
            let watch = *watch && !is_polled(monitor, path)?;
            let _turn = watch.then(|| monitor.watchers.turn(path));
            let found = monitor.call(|handle| handle.read(path))?;
            let (_, stat) = learned(monitor, path, watch, found)?;
            let names = children(monitor, path, watch)?.ok_or(Fault::NoNode)?;
            Ok(Reply::NamesAndStat(names, stat))
        }
        Request::Sync => monitor.sync().map(|()| Reply::Done),
        // The watches are the handle's.
        Request::Unwatch { .. } => Err(Fault::Unknown),
    }
}

/// Whether a watch on the node would tell nothing, so that the session looks for changes itself: the crate
/// cuts the chroot off the paths of events, and finds no watcher for what is left of the root's.
fn is_polled(monitor: &Monitor, path: &str) -> Answer<bool> {
    if path != "/" {
        return Ok(false);
    }
    match monitor.call(|handle| handle.exists("/"))? {
        // No transaction has made the ensemble's own root.
        Some(stat) if stat.czxid == 0 => Ok(false),
        Some(stat) => {
            monitor.poll_root(stat);
            Ok(true)
        }
        None => Ok(false),
    }
}

/// What was found of a node, from which the session's end is learned; if it is to be watched, also that
/// it is gone.
fn learned(monitor: &Monitor, path: &str, watch: bool, found: Found) -> Answer<(Vec<u8>, Stat)> {
    let Some((data, stat)) = found else {
        if watch {
            monitor.note_gone(path);
        }
        return Err(Fault::NoNode);
    };
    monitor.learn(path, &stat)?;
    Ok((data, stat))
}

fn create(
    monitor: &Monitor,
    path: &str,
    data: &[u8],
    acl: &[Acl],
    kind: NodeKind,
) -> Answer<Created> {
    if matches!(kind, NodeKind::Persistent | NodeKind::PersistentSequential | NodeKind::Container) {
        // The crate's request for a container does not create one.
        let kind = if kind == NodeKind::Container { NodeKind::Persistent } else { kind };
        let made = monitor.call(|handle| handle.create(path, data, acl, kind));
        if path == "/" && made == Err(Fault::NoNode) {
            return Err(Fault::Refused(NO_CHROOT.to_owned()));
        }
        return made.map(|path| Created { path, czxid: None });
    }
    if kind == NodeKind::Named {
        // The caller has to clean it up: the name alone does not tell whose node it is.
        let made = monitor.call(|handle| handle.create(path, data, acl, kind))?;
        if made != path {
            return Err(Fault::ConnectionLoss);
        }
        let stat = match monitor.call(|handle| handle.exists(path)) {
            // The node was created; an ACL hides its stat.
            Err(Fault::NoAuth) => None,
            found => found?,
        };
        stat.iter().for_each(|stat| monitor.meet(stat));
        return Ok(Created { path: made, czxid: stat.map(|stat| stat.czxid) });
    }
    let path = monitor.make(path, |handle| match handle.create(path, data, acl, kind) {
        // The crate gives answers to the wrong callers while credentials are added.
        Ok(made) if !made.starts_with(path) => Err(Fault::ConnectionLoss),
        // From an earlier attempt: no other client knows the GUID.
        Err(Fault::NodeExists) if kind == NodeKind::Ephemeral => Ok(path.to_owned()),
        made => made,
    })?;
    // The program may watch a node of its own itself: the crate would tell it nothing.
    let found = match kind {
        NodeKind::EphemeralSequential => monitor.call(|handle| handle.exists(&path)),
        _ => watch_made(monitor, &path),
    };
    let czxid = match found {
        Ok(Some(stat)) => {
            monitor.learn(&path, &stat)?;
            Some(stat.czxid)
        }
        Err(Fault::SessionEnded) => return Err(Fault::SessionEnded),
        Ok(None) | Err(_) => None,
    };
    Ok(Created { path, czxid })
}

/// Carries out the steps one after the other, as the crate has no transactions: a client that dies
/// in between leaves them half done. The checks come first.
fn transact(monitor: &Monitor, steps: &[Step]) -> Answer<Vec<Reply>> {
    // A step that creates a node which a later step deletes only checks that the node does not
    // exist.
    let passes = |made: &str| {
        steps.iter().any(|step| matches!(step, Step::Delete { path, .. } if path == made))
    };
    for step in steps {
        let path = match step {
            Step::Check { path, .. } => path,
            Step::Create { path, .. } if passes(path) => path,
            _ => continue,
        };
        let found = monitor.call(|handle| handle.exists(path))?;
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
    let take = |step: &Step| match step {
        Step::Create { path, .. } if passes(path) => Ok(Reply::Done),
        Step::Delete { path, .. } if made(path) => Ok(Reply::Done),
        step => carry_out(monitor, step),
    };
    steps.iter().map(take).collect()
}

/// Checks have been carried out before.
fn carry_out(monitor: &Monitor, step: &Step) -> Answer<Reply> {
    match step {
        Step::Check { .. } => Ok(Reply::Done),
        Step::Create { path, data, acl, kind } => {
            create(monitor, path, data, acl, *kind).map(Reply::Created)
        }
        Step::Delete { path, version } => delete(monitor, path, *version).map(|()| Reply::Done),
        Step::Write { path, data, version } => {
            monitor.call(|handle| handle.write(path, data, *version)).map(Reply::Stat)
        }
    }
}

fn delete(monitor: &Monitor, path: &str, version: Option<i32>) -> Answer<()> {
    let _turn = monitor.watchers.turn(path);
    let answer = monitor.call(|handle| handle.delete(path, version));
    if matches!(answer, Ok(()) | Err(Fault::NoNode)) {
        monitor.note_gone(path);
    }
    answer
}

/// With a watch, only for who has the node's turn.
fn children(monitor: &Monitor, path: &str, watch: bool) -> Answer<Option<Names>> {
    if !watch {
        return monitor.call(|handle| handle.children(path));
    }
    or_none(monitor.call(|handle| {
        let plain = || handle.children(path)?.ok_or(Fault::NoNode);
        monitor.watchers.watch(WatchKind::Children, path, plain, |armed| {
            handle.children_with(path, Box::new(move || armed.blow()))
        })
    }))
}

/// Watches a node that was created just now, and reads its stat with the same request. It takes no
/// turn, as a call that hangs must not hold up the node's deletion: if that comes first, the watcher
/// counts as one that may never be called.
fn watch_made(monitor: &Monitor, path: &str) -> Answer<Option<Stat>> {
    or_none(monitor.call(|handle| {
        let plain = || handle.exists(path)?.ok_or(Fault::NoNode);
        monitor.watchers.watch_made(path, plain, |armed| {
            let found = handle.exists_with(path, Box::new(move || armed.blow()))?;
            found.ok_or(Fault::NoNode)
        })
    }))
}

fn watch_node(monitor: &Monitor, path: &str) -> Answer<Option<(Vec<u8>, Stat)>> {
    let _turn = monitor.watchers.turn(path);
    // A watcher on a missing node would stay in the crate. Our own node exists until we delete it,
    // and deleting it takes the turn, too.
    if !monitor.is_mine(path) && monitor.call(|handle| handle.exists(path))?.is_none() {
        return Ok(None);
    }
    or_none(monitor.call(|handle| {
        let plain = || handle.read(path)?.ok_or(Fault::NoNode);
        monitor.watchers.watch(WatchKind::Node, path, plain, |armed| {
            handle.read_with(path, Box::new(move || armed.blow()))
        })
    }))
}
