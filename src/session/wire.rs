//! Real sessions: the `zookeeper` crate's handle on a link to the ensemble.
//!
//! All requests go past the handle, straight to the link: through the handle, a request takes two
//! more threads and a loopback connection there and back, and its place among the others is not
//! known. The handle only keeps the session: the link closes it when the handle goes. The link tells
//! of all watches that fire, whoever has set them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::handle::Handle;
use super::pending::Pending;
use super::session::ended;
use super::store::{
    Answer, Created, Ensemble, Entered, Fault, Found, Info, IsWanted, Kind, Names, OnAnswer,
    Reports, Stat, Step, Store, or_none,
};
use super::wake::{Waiter, Watches};
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::link::core::{Answer as Reply, End, Notice, OnAnswer as OnReply};
use crate::link::frame::{
    FLAG_CONTAINER, FLAG_EPHEMERAL, FLAG_EPHEMERAL_SEQUENTIAL, FLAG_SEQUENTIAL, Fields, Frame,
    Malformed, SYNC_ROOT, code, op,
};
use crate::link::{Later, Link, LinkConfig, Verb};
use crate::logging;
use crate::path;
use crate::rt::Deadline;

/// How long the handle may take to connect to its link, in the same process.
const ADMISSION: Duration = Duration::from_secs(2);

/// So many nodes are read in one round trip.
const WINDOW: usize = 100;

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
        let (table, void) = (Arc::clone(&watches), Arc::clone(&watches));
        let link = Link::open(
            config,
            Box::new(move |notice| {
                if matches!(notice, Notice::Suspended | Notice::Ended(_)) {
                    void.are_void();
                }
                told.note(notice);
                on_notice(notice);
            }),
            Box::new(move |path| watches.tell(path)),
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
        let handle = Handle::open(&link, || admit_by.has_passed() || stop())?;
        Ok(Box::new(Wire { _handle: handle, link, watches: table, is_old: Arc::default() }))
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
    /// Asked nothing, and kept for as long as the session is.
    _handle: Handle,
    link: Link,
    watches: Arc<Watches>,
    /// The server is older than 3.5. It says so by closing the connection.
    is_old: Arc<AtomicBool>,
}

/// A request of the link's own.
struct Request {
    operation: i32,
    body: Vec<u8>,
}

impl Request {
    fn create(path: &str, data: &[u8], acl: &[Acl], flags: i32) -> Request {
        let count = i32::try_from(acl.len()).unwrap_or(i32::MAX);
        let head = Frame::new().buffer(path.as_bytes()).buffer(data).int(count);
        let all = acl.iter().fold(head, |frame, acl| {
            frame
                .int(acl.permissions.bits())
                .buffer(acl.scheme.as_bytes())
                .buffer(acl.id.as_bytes())
        });
        Request { operation: op::CREATE, body: all.int(flags).body() }
    }

    /// Of any version.
    fn delete(path: &str) -> Request {
        Request { operation: op::DELETE, body: Frame::new().buffer(path.as_bytes()).int(-1).body() }
    }

    /// One that reads, with a watch or without.
    fn about(operation: i32, path: &str, watch: bool) -> Request {
        Request { operation, body: Frame::new().buffer(path.as_bytes()).flag(watch).body() }
    }

    fn sync() -> Request {
        Request { operation: op::SYNC, body: SYNC_ROOT.to_vec() }
    }

    fn transaction(steps: &[Step]) -> Request {
        let any = |version: &Option<i32>| version.unwrap_or(-1);
        let one = |step: &Step| match step {
            Step::Check { path, version } => Request {
                operation: op::CHECK,
                body: Frame::new().buffer(path.as_bytes()).int(any(version)).body(),
            },
            Step::Create { path, data, acl, kind } => {
                let request = Request::create(path, data, acl, flags(*kind));
                match kind {
                    Kind::Container => Request { operation: op::CREATE_CONTAINER, ..request },
                    _ => request,
                }
            }
            Step::Delete { path } => Request::delete(path),
            Step::Write { path, data, version } => Request {
                operation: op::SET_DATA,
                body: Frame::new().buffer(path.as_bytes()).buffer(data).int(any(version)).body(),
            },
        };
        let all = steps.iter().map(one).fold(Frame::new(), |frame, Request { operation, body }| {
            frame.int(operation).flag(false).int(-1).raw(&body)
        });
        Request { operation: op::MULTI, body: all.int(-1).flag(true).int(-1).body() }
    }

    fn answered_to(self, on_answer: OnReply) -> Verb {
        Verb { operation: self.operation, body: self.body, on_answer }
    }
}

fn outcome(error: i32) -> Answer<()> {
    let other = match error {
        code::OK => return Ok(()),
        code::CONNECTION_LOSS => return Err(Fault::ConnectionLoss),
        code::SESSION_EXPIRED => return Err(Fault::SessionEnded),
        code::NO_NODE => return Err(Fault::NoNode),
        code::NODE_EXISTS => return Err(Fault::NodeExists),
        code::NOT_EMPTY => return Err(Fault::NotEmpty),
        code::BAD_VERSION => return Err(Fault::BadVersion),
        code::NO_AUTH => return Err(Fault::NoAuth),
        code::INVALID_ACL => return Err(Fault::InvalidAcl),
        code::MARSHALLING => return Err(Fault::too_large()),
        code::THROTTLED => return Err(Fault::Busy),
        code::BAD_ARGUMENTS => "BadArguments",
        code::UNIMPLEMENTED => "Unimplemented",
        code::NO_CHILDREN_FOR_EPHEMERALS => "NoChildrenForEphemerals",
        other => &format!("error {other}"),
    };
    Err(Fault::Refused(format!("the server refused it: {other}")))
}

/// What a reply says, of which the link has checked the form.
fn told<T>(reply: Option<Reply>, read: impl FnOnce(&Reply) -> Result<T, Malformed>) -> Answer<T> {
    // Nobody answers any more.
    let reply = reply.ok_or(Fault::SessionEnded)?;
    if reply.error == code::MARSHALLING && !reply.body.is_empty() {
        // The link says why; a server never says more than the code.
        return Err(Fault::TooLarge(String::from_utf8_lossy(&reply.body).into_owned()));
    }
    outcome(reply.error)?;
    read(&reply).map_err(|malformed| Fault::Refused(malformed.to_string()))
}

impl Wire {
    fn send(&self, request: Request, on_answer: impl FnOnce(Reply) + Send + 'static) {
        self.link.verbs([request.answered_to(Box::new(on_answer))]);
    }

    /// Back to back, with nothing in between.
    fn send_both(&self, requests: [Request; 2], on_answers: [OnReply; 2]) {
        let [first, second] = requests;
        let [on_first, on_second] = on_answers;
        self.link.verbs([first.answered_to(on_first), second.answered_to(on_second)]);
    }

    fn ask_both(&self, requests: [Request; 2]) -> [Option<Reply>; 2] {
        let pending = Pending::<2>::new();
        self.send_both(requests, [pending.on_answer(0), pending.on_answer(1)]);
        pending.wait()
    }

    fn ask<T>(
        &self,
        request: Request,
        read: impl FnOnce(&Reply) -> Result<T, Malformed>,
    ) -> Answer<T> {
        let pending = Pending::<1>::new();
        self.link.verbs([request.answered_to(pending.on_answer(0))]);
        let [reply] = pending.wait();
        told(reply, read)
    }

    /// Servers before 3.5 know no containers. They say so, and close the connection: another one
    /// is not to be lost for the same answer.
    fn create_container(&self, path: &str, data: &[u8], acl: &[Acl]) -> Answer<Created> {
        if self.is_old.load(Ordering::Relaxed) {
            return self.create(path, data, acl, Kind::Persistent);
        }
        let create = Request::create(path, data, acl, FLAG_CONTAINER);
        let pending = Pending::<1>::new();
        let create = Request { operation: op::CREATE_CONTAINER, ..create };
        self.link.verbs([create.answered_to(pending.on_answer(0))]);
        let [reply] = pending.wait();
        if reply.as_ref().is_some_and(|reply| reply.error == code::UNIMPLEMENTED) {
            self.is_old.store(true, Ordering::Relaxed);
            logging::info!(
                target: "zklock::session",
                "the server knows no container nodes (ZooKeeper 3.5 and later do): {path:?} and \
                 others are made as persistent nodes"
            );
            // It closes this one.
            return Err(Fault::ConnectionLoss);
        }
        told(reply, created)
    }

    /// Asks for what is read of a node, and for a watch on it if that is wanted.
    fn look<T>(
        &self,
        operation: i32,
        path: &str,
        watch: bool,
        read: impl FnOnce(&Reply) -> Result<T, Malformed>,
    ) -> Answer<Option<T>> {
        let [reply] = self.begin_to_look(operation, path, watch).wait();
        or_none(told(reply, read))
    }

    fn begin_to_look(&self, operation: i32, path: &str, watch: bool) -> Pending<1> {
        let (request, pending) = (Request::about(operation, path, watch), Pending::<1>::new());
        let mut on_answer = pending.on_answer(0);
        if watch {
            on_answer = self.watching(operation, path, on_answer);
        }
        self.link.verbs([request.answered_to(on_answer)]);
        pending
    }

    /// As `look`, at many nodes: a window of requests is sent before its first answer is waited for.
    fn look_at_each<T>(
        &self,
        operation: i32,
        paths: &[String],
        watch: bool,
        read: fn(&Reply) -> Result<T, Malformed>,
    ) -> Vec<Answer<Option<T>>> {
        let mut all = Vec::with_capacity(paths.len());
        for window in paths.chunks(WINDOW) {
            let begin = |path: &String| self.begin_to_look(operation, path, watch);
            let begun: Vec<Pending<1>> = window.iter().map(begin).collect();
            all.extend(begun.into_iter().map(|pending| {
                let [reply] = pending.wait();
                or_none(told(reply, read))
            }));
        }
        all
    }

    /// Notes the watch that an answered request has set, in the order of answers and events.
    fn watching(&self, operation: i32, path: &str, on_answer: OnReply) -> OnReply {
        let (watches, path) = (Arc::clone(&self.watches), path.to_owned());
        Box::new(move |reply: Reply| {
            // One on a node that is not there waits for its making.
            let awaits = operation == op::EXISTS && reply.error == code::NO_NODE;
            if reply.error == code::OK || awaits {
                watches.is_set(&path);
            }
            on_answer(reply);
        })
    }

    fn watch(&self, path: &str, on_answer: OnAnswer<(Vec<u8>, Stat)>) -> Verb {
        let on_answer = Box::new(move |reply| on_answer(told(Some(reply), data_and_stat)));
        let on_answer = self.watching(op::GET_DATA, path, on_answer);
        Request::about(op::GET_DATA, path, true).answered_to(on_answer)
    }

    fn exists(&self, path: &str, watch: bool) -> Answer<Option<Stat>> {
        self.look(op::EXISTS, path, watch, |reply| Fields(&reply.body).stat())
    }
}

impl Store for Wire {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: Kind) -> Answer<Created> {
        match kind {
            Kind::Container => self.create_container(path, data, acl),
            _ => self.ask(Request::create(path, data, acl, flags(kind)), created),
        }
    }

    fn enter(&self, path: &str, data: &[u8], acl: &[Acl]) -> Answer<Entered> {
        let create = Request::create(path, data, acl, FLAG_EPHEMERAL_SEQUENTIAL);
        let list = Request::about(op::GET_CHILDREN, path::parent(path), false);
        let [made, siblings] = self.ask_both([create, list]);
        let made = told(made, created)?;
        Ok(Entered { made, siblings: told(siblings, names).ok() })
    }

    fn delete(&self, path: &str) -> Answer<()> {
        self.ask(Request::delete(path), |_| Ok(()))
    }

    fn write(&self, path: &str, data: &[u8]) -> Answer<()> {
        let body = Frame::new().buffer(path.as_bytes()).buffer(data).int(-1).body();
        self.ask(Request { operation: op::SET_DATA, body }, |_| Ok(()))
    }

    fn transact(&self, steps: &[Step]) -> Answer<()> {
        outcome(self.ask(Request::transaction(steps), first_error)?)
    }

    fn await_making(&self, path: &str) -> Answer<bool> {
        Ok(self.exists(path, true)?.is_some())
    }

    fn data(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        self.look(op::GET_DATA, path, watch, data_and_stat)
    }

    fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        match self.data(path, watch) {
            // Since ZooKeeper 3.8.4 and 3.9.2, whoever may not read a node can set a watch on
            // it, but is told of nothing (CVE-2024-23944).
            Err(Fault::NoAuth) if watch => Err(Fault::NoAuth),
            Err(Fault::NoAuth | Fault::TooLarge(_)) => {
                let stat = self.exists(path, watch)?;
                Ok(stat.map(|stat| (Vec::new(), stat)))
            }
            read => read,
        }
    }

    fn read_each(&self, paths: &[String]) -> Vec<Answer<Found>> {
        let all = self.look_at_each(op::GET_DATA, paths, false, data_and_stat);
        let again = |(path, answer): (&String, _)| match answer {
            Err(Fault::NoAuth | Fault::TooLarge(_)) => self.read(path, false),
            read => read,
        };
        paths.iter().zip(all).map(again).collect()
    }

    fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        self.look(op::GET_CHILDREN, path, watch, names)
    }

    fn list(&self, path: &str, watch: bool) -> Answer<Option<(Names, Stat)>> {
        let names_and_stat = |reply: &Reply| {
            let mut fields = Fields(&reply.body);
            Ok((Arc::new(fields.strings()?), fields.stat()?))
        };
        self.look(op::GET_CHILDREN_AND_STAT, path, watch, names_and_stat)
    }

    fn children_each(&self, paths: &[String], watch: bool) -> Vec<Answer<Option<Names>>> {
        self.look_at_each(op::GET_CHILDREN, paths, watch, names)
    }

    fn sync(&self) -> Answer<()> {
        self.ask(Request::sync(), |_| Ok(()))
    }

    fn confirm(&self, path: &str) -> Answer<Option<Stat>> {
        let exists = Request::about(op::EXISTS, path, false);
        let [synced, found] = self.ask_both([Request::sync(), exists]);
        told(synced, |_| Ok(()))?;
        or_none(told(found, |reply| Fields(&reply.body).stat()))
    }

    fn watch_soon(&self, path: &str, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        self.link.verbs([self.watch(path, on_answer)]);
    }

    fn watch_later(&self, path: &str, is_wanted: IsWanted, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        self.link.later(Later { verb: self.watch(path, on_answer), is_wanted });
    }

    fn watch_siblings_soon(&self, path: &str, on_answer: OnAnswer<Stat>) {
        let watch = Request::about(op::GET_CHILDREN, path::parent(path), true);
        let exists = Request::about(op::EXISTS, path, false);
        let is_busy = Arc::new(AtomicBool::new(false));
        let was_busy = Arc::clone(&is_busy);
        let on_children = move |reply: Reply| {
            is_busy.store(reply.error == code::THROTTLED, Ordering::Relaxed);
        };
        let stat = |reply: &Reply| Fields(&reply.body).stat();
        let on_exists = move |reply: Reply| {
            on_answer(match was_busy.load(Ordering::Relaxed) {
                true => Err(Fault::Busy),
                false => told(Some(reply), stat),
            });
        };
        let on_children =
            self.watching(op::GET_CHILDREN, path::parent(path), Box::new(on_children));
        self.send_both([watch, exists], [on_children, Box::new(on_exists)]);
    }

    fn let_go(&self, path: &str, until: Deadline, on_answer: OnAnswer<()>) {
        let on_answer = Box::new(move |reply: Reply| on_answer(outcome(reply.error)));
        self.link.send_off(Request::delete(path).answered_to(on_answer), until);
    }

    fn watch_children_soon(&self, path: &str, on_answer: OnAnswer<Names>) {
        let on_answer = Box::new(move |reply| on_answer(told(Some(reply), names)));
        let on_answer = self.watching(op::GET_CHILDREN, path, on_answer);
        let request = Request::about(op::GET_CHILDREN, path, true);
        self.link.verbs([request.answered_to(on_answer)]);
    }

    fn unwatch_soon(&self, path: &str) {
        /// Of a node's data, its children or its making.
        const ANY: i32 = 3;
        if self.is_old.load(Ordering::Relaxed) {
            return;
        }
        let body = Frame::new().buffer(path.as_bytes()).int(ANY).body();
        let is_old = Arc::clone(&self.is_old);
        self.send(Request { operation: op::REMOVE_WATCHES, body }, move |reply| {
            is_old.fetch_or(reply.error == code::UNIMPLEMENTED, Ordering::Relaxed);
        });
    }

    fn delete_soon(&self, path: &str) {
        self.send(Request::delete(path), drop);
    }

    fn lease(&self) -> Result<(), End> {
        self.link.lease()
    }

    fn info(&self) -> Info {
        self.link.info()
    }

    fn close(&self, give_up_after: Duration) {
        self.link.close(give_up_after);
    }
}

fn flags(kind: Kind) -> i32 {
    match kind {
        Kind::Persistent => 0,
        Kind::Container => FLAG_CONTAINER,
        Kind::Ephemeral | Kind::Named => FLAG_EPHEMERAL,
        Kind::PersistentSequential => FLAG_SEQUENTIAL,
        Kind::EphemeralSequential => FLAG_EPHEMERAL_SEQUENTIAL,
    }
}

/// Of the steps of a transaction: what ended it, or `OK`. The steps before that one have no error,
/// and those behind it one that says nothing.
fn first_error(reply: &Reply) -> Result<i32, Malformed> {
    let mut fields = Fields(&reply.body);
    loop {
        let (operation, is_end, _) = (fields.int()?, fields.flag()?, fields.int()?);
        match operation {
            _ if is_end => return Ok(code::OK),
            op::CREATE | op::CREATE_CONTAINER => drop(fields.string()?),
            op::SET_DATA => drop(fields.stat()?),
            op::DELETE | op::CHECK => {}
            -1 => match fields.int()? {
                code::OK => {}
                error => return Ok(error),
            },
            _ => return Err(Malformed("a step of an unknown kind")),
        }
    }
}

/// The reply's own number is that of the transaction which has made the node.
fn created(reply: &Reply) -> Result<Created, Malformed> {
    let path = Fields(&reply.body).string()?.to_owned();
    Ok(Created { path, czxid: Some(reply.zxid) })
}

fn data_and_stat(reply: &Reply) -> Result<(Vec<u8>, Stat), Malformed> {
    let mut fields = Fields(&reply.body);
    Ok((fields.buffer()?.to_vec(), fields.stat()?))
}

fn names(reply: &Reply) -> Result<Names, Malformed> {
    Fields(&reply.body).strings().map(Arc::new)
}
