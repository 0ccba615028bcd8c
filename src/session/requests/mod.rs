//! The requests that a session can make, written once for every [`Connection`], real or simulated.
//! Paths are whole: the chroot is part of them.
//!
//! A server that limits its requests (`zookeeper.request_throttle_max_requests`, since 3.6) answers
//! some of them with an error, on a connection that lives on, and does not carry them out. Those
//! are repeated, with pauses; a request whose answer is not waited for gets [`Fault::Busy`].

mod create_parents;
mod pending_reply;
mod reaper;
mod session;
mod single_flight;
mod strays;
mod time_limit;

pub(crate) use create_parents::{make_below, make_container, make_parents};
pub(crate) use pending_reply::PendingReply;
pub(crate) use reaper::Reaper;
pub(crate) use session::{Session, ended, rejected, until_attached};
#[cfg(all(test, shuttle))]
pub(crate) use single_flight::SingleFlight;
pub(crate) use strays::Strays;
pub(crate) use time_limit::TimeLimit;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::acl::{Acl, why_refused};
use crate::connection_notice::{End, Info};
use crate::link::{AwaitsServer, UnsupportedOperations};
use crate::loss_reason::LossReason;
use crate::path;
use crate::rt::{AtomicBool, Deadline, Moment};
use crate::session::connection::{
    Answer, Answered, Connection, Created, Enqueued, Fault, Found, IsWanted, Names, NodeKind,
    OnAnswer, OnReply, Reply, Request, Step, Submission, Transacted, Waits, WatchKind, Watches,
    or_none,
};
use crate::session::owned::{NodeInMaking, OwnedNodes, StillMeant};
use crate::session::wait::Waiter;
use crate::wire_values::{NOWHERE, Stat, op};

/// How many requests of one caller may be under way at once.
const WINDOW: usize = 100;

/// The first pause before a request is repeated that the server was too busy for; each further
/// pause is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(200);
/// After this many attempts the answer counts as lost: about two seconds.
const ATTEMPTS: u32 = 15;

/// See the module. Every call returns in bounded time, and as soon as the caller's time limit is
/// over: as with a lost connection, its request may take effect or not. After that, no request is
/// sent whose answer would be waited for. Dropping the last `Verbs` of a connection ends the
/// session.
#[derive(Debug)]
pub(crate) struct Verbs {
    connection: Arc<dyn Connection>,
    watches: Arc<Watches>,
    owned: Arc<OwnedNodes>,
    limit: Option<TimeLimit>,
    /// Many servers close the connection instead of an answer to these: this is remembered so that no
    /// other connection is lost for it.
    unknown: Arc<UnsupportedOperations>,
}

/// A question about each of several paths.
pub(crate) type Question<T> = fn(&Verbs, &[String]) -> Vec<Answer<T>>;

/// [`Verbs::read_each_noting`], with questions that are asked in some other way.
pub(crate) fn read_each_by<E>(
    paths: &[String],
    on_hidden: impl Fn(&str),
    mut ask: impl FnMut(&[String], Question<Found>) -> Result<Vec<Answer<Found>>, E>,
) -> Result<Vec<Answer<Found>>, E> {
    let mut all = ask(paths, Verbs::data_each)?;
    let may_have_stat =
        |read: &Answer<Found>| matches!(read, Err(Fault::NoAuth | Fault::TooLarge(_)));
    let unread: Vec<usize> = (0..all.len()).filter(|at| may_have_stat(&all[*at])).collect();
    let hidden = unread.iter().filter(|at| matches!(all[**at], Err(Fault::NoAuth)));
    hidden.for_each(|at| on_hidden(&paths[*at]));
    let again: Vec<String> = unread.iter().map(|at| paths[*at].clone()).collect();
    for (at, found) in unread.into_iter().zip(ask(&again, Verbs::stat_each)?) {
        all[at] = found;
    }
    Ok(all)
}

/// The same fault; of a refused ACL, it says which entry may be to blame.
fn naming_entry(fault: Fault, acl: &[Acl]) -> Fault {
    match fault {
        Fault::InvalidAcl(_) => Fault::InvalidAcl(why_refused(acl)),
        fault => fault,
    }
}

fn first([answer]: [Answer<Reply>; 1]) -> Answer<Reply> {
    answer
}

fn strange<T>(reply: &Reply) -> Answer<T> {
    Err(Fault::Refused(format!("the server's reply does not fit the request: {reply:?}")))
}

pub(crate) fn created(reply: Reply) -> Answer<Created> {
    match reply {
        Reply::Created(created) => Ok(created),
        other => strange(&other),
    }
}

pub(crate) fn data(reply: Reply) -> Answer<(Vec<u8>, Stat)> {
    match reply {
        Reply::Data(data, stat) => Ok((data, stat)),
        other => strange(&other),
    }
}

pub(crate) fn stat(reply: Reply) -> Answer<Stat> {
    match reply {
        Reply::Stat(stat) => Ok(stat),
        other => strange(&other),
    }
}

pub(crate) fn names(reply: Reply) -> Answer<Names> {
    match reply {
        Reply::Names(names) => Ok(names),
        other => strange(&other),
    }
}

fn names_perhaps_stat(reply: Reply) -> Answer<(Names, Option<Stat>)> {
    match reply {
        Reply::NamesAndStat(names, stat) => Ok((names, Some(stat))),
        reply => Ok((names(reply)?, None)),
    }
}

fn names_and_stat(reply: Reply) -> Answer<(Names, Stat)> {
    match reply {
        Reply::NamesAndStat(names, stat) => Ok((names, stat)),
        other => strange(&other),
    }
}

fn told<T: 'static>(on_answer: OnAnswer<T>, read: fn(Reply) -> Answer<T>) -> OnReply {
    Box::new(move |answered: Answered| on_answer(answered.read().and_then(read)))
}

fn on_late<T: 'static>(late: OnAnswer<T>, read: fn(Reply) -> Answer<T>) -> OnAnswer<Reply> {
    Box::new(move |reply| late(reply.and_then(read)))
}

impl Request {
    fn create(path: &str, data: &[u8], acl: &[Acl], kind: NodeKind) -> Request {
        let (path, data, acl) = (path.to_owned(), data.to_vec(), acl.to_vec());
        Request::One(Step::Create { path, data, acl, kind })
    }

    fn delete(path: &str) -> Request {
        Request::One(Step::delete(path.to_owned()))
    }

    fn data(path: &str, watch: bool) -> Request {
        Request::Data { path: path.to_owned(), watch }
    }

    fn exists(path: &str, watch: bool) -> Request {
        Request::Exists { path: path.to_owned(), watch }
    }

    fn children(path: &str, watch: bool) -> Request {
        Request::Children { path: path.to_owned(), watch }
    }
}

impl Verbs {
    pub(super) fn new(
        connection: Box<dyn Connection>,
        watches: Arc<Watches>,
        owned: Arc<OwnedNodes>,
        unknown: Arc<UnsupportedOperations>,
    ) -> Verbs {
        Verbs { connection: connection.into(), watches, owned, limit: None, unknown }
    }

    /// The same, for a caller with a time limit.
    pub(super) fn within(&self, limit: TimeLimit) -> Verbs {
        Verbs {
            connection: Arc::clone(&self.connection),
            watches: Arc::clone(&self.watches),
            owned: Arc::clone(&self.owned),
            limit: Some(limit),
            unknown: Arc::clone(&self.unknown),
        }
    }

    pub(super) fn limit(&self) -> Option<&TimeLimit> {
        self.limit.as_ref()
    }

    /// Whether the caller's time limit is over.
    fn is_over(&self) -> bool {
        self.limit().is_some_and(TimeLimit::is_over)
    }

    /// The ephemeral nodes of the session.
    pub(crate) fn owned(&self) -> &Arc<OwnedNodes> {
        &self.owned
    }

    // ----- asking

    /// A request; if it sets a watch, that is noted when the answer comes, in the order of answers
    /// and events.
    fn asked(&self, request: Request, on_reply: OnReply) -> Submission {
        let (path, kind, awaits) = match &request {
            Request::Exists { path, watch: true } => (path, WatchKind::Node, true),
            Request::Data { path, watch: true } => (path, WatchKind::Node, false),
            Request::Children { path, watch: true }
            | Request::ChildrenAndStat { path, watch: true } => (path, WatchKind::Children, false),
            _ => return Submission { request, on_reply },
        };
        if self.connection.is_handle() {
            return Submission { request, on_reply };
        }
        let (watches, path) = (Arc::clone(&self.watches), path.clone());
        let on_reply = Box::new(move |answered: Answered| {
            // A watch on a missing node waits for its creation.
            if let Some(is_there) = answered.finds().filter(|is_there| *is_there || awaits) {
                watches.note_set(&path, kind, is_there);
            }
            on_reply(answered);
        });
        Submission { request, on_reply }
    }

    fn submit(&self, request: Request, on_reply: OnReply) -> bool {
        self.connection.submit(vec![self.asked(request, on_reply)], Waits::NotAtAll)
    }

    /// Sends requests back to back.
    fn begin(&self, requests: impl ExactSizeIterator<Item = Request>) -> PendingReply<'_> {
        #[cfg(test)]
        self.connection.hesitate();
        let pending = PendingReply::new(requests.len(), self.limit()).over(&*self.connection);
        let asked = |(number, request)| self.asked(request, pending.on_reply(number));
        let requests = requests.enumerate().map(asked).collect();
        let waits =
            if self.limit.is_some() { Waits::Within(pending.is_wanted()) } else { Waits::Here };
        self.connection.submit(requests, waits);
        pending
    }

    /// Sends requests back to back and waits for their answers; does not repeat those that the server was too
    /// busy for. If the caller's time limit is over before the first answer comes, `late` is taken, and
    /// called with it, on another thread.
    fn ask_once<const N: usize>(
        &self,
        requests: [Request; N],
        late: &mut Option<OnAnswer<Reply>>,
    ) -> [Answer<Reply>; N] {
        if self.is_over() {
            return [const { Err(Fault::ConnectionLoss) }; N];
        }
        self.begin(requests.into_iter()).wait(late)
    }

    /// Asks until the server is not too busy.
    fn patiently<T>(&self, mut ask: impl FnMut() -> Answer<T>) -> Answer<T> {
        let mut pause = PAUSE;
        for _ in 0..ATTEMPTS {
            match ask() {
                Err(Fault::Busy) => self.rest(pause),
                answer => return answer,
            }
            pause = (pause * 2).min(LONGEST);
        }
        Err(Fault::ConnectionLoss)
    }

    /// [`ask_once`](Verbs::ask_once), patiently, and an answer that is late interests nobody.
    fn ask(&self, request: impl Fn() -> Request) -> Answer<Reply> {
        self.patiently(|| first(self.ask_once([request()], &mut None)))
    }

    fn rest(&self, pause: Duration) {
        match self.limit() {
            None => Waiter::new().wait(Deadline::after(pause)),
            Some(limit) => limit.pause(pause),
        }
    }

    /// Asks about each path. A window of requests is sent before its first answer is waited for.
    fn ask_each<T>(
        &self,
        paths: &[String],
        request: impl Fn(&str) -> Request,
        read: fn(Reply) -> Answer<T>,
    ) -> Vec<Answer<Option<T>>> {
        let again = |path: &str| self.ask(|| request(path)).and_then(read);
        let mut all = Vec::with_capacity(paths.len());
        for window in paths.chunks(WINDOW) {
            if self.is_over() {
                all.extend(window.iter().map(|_| Err(Fault::ConnectionLoss)));
                continue;
            }
            let begun = self.begin(window.iter().map(|path| request(path)));
            all.extend(begun.wait_all(&mut None).zip(window).map(|(answer, path)| {
                or_none(match answer {
                    Err(Fault::Busy) => again(path),
                    answer => answer.and_then(read),
                })
            }));
        }
        all
    }

    // ----- requests that change something

    pub(crate) fn create(
        &self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        kind: NodeKind,
    ) -> Answer<Created> {
        if kind.is_ephemeral() {
            return self.create_owned(path, data, acl, (kind, false), None, &mut None);
        }
        if kind == NodeKind::Container {
            return self.create_container(path, data, acl, &mut None).map(|(made, _)| made);
        }
        let made = self.ask(|| Request::create(path, data, acl, kind));
        made.map_err(|fault| naming_entry(fault, acl)).and_then(created)
    }

    /// Creates a container, and says so; at servers that know none a plain node. `late` is as in
    /// [`enter`](Verbs::enter), for a container.
    pub(crate) fn create_container(
        &self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        late: &mut Option<OnAnswer<Created>>,
    ) -> Answer<(Created, bool)> {
        if self.knows_containers()? {
            let mut late = late.take().map(|late| on_late(late, created));
            let create = || Request::create(path, data, acl, NodeKind::Container);
            match self.patiently(|| first(self.ask_once([create()], &mut late))) {
                Err(Fault::Unknown) => self.unknown.learn(op::CREATE_CONTAINER, Moment::now()),
                // A handle cannot make one.
                answer => {
                    let is_container = !self.connection.is_handle();
                    let made = answer.map_err(|fault| naming_entry(fault, acl)).and_then(created);
                    return made.map(|made| (made, is_container));
                }
            }
        }
        self.create(path, data, acl, NodeKind::Persistent).map(|made| (made, false))
    }

    /// Whether to ask the servers for a container. While it is in doubt whether they know what that is,
    /// this waits until asking tells, and has another request answered first.
    fn knows_containers(&self) -> Answer<bool> {
        const CONTAINER: i32 = op::CREATE_CONTAINER;
        while let Some(pause) = self.unknown.suspected(CONTAINER, Moment::now()) {
            if pause.is_zero() {
                self.sync()?;
                break;
            }
            self.rest(pause.min(LONGEST));
            self.connection.trusted().map_err(|_| Fault::SessionEnded)?;
            if self.is_over() {
                return Err(Fault::ConnectionLoss);
            }
        }
        Ok(!self.unknown.is_unknown(CONTAINER, Moment::now()))
    }

    /// Creates an ephemeral sequential node and lists the children of its parent, in one round trip if
    /// possible; `with_stat`, with the parent's stat. If the caller's time limit is over before the answer
    /// comes, `late` is called with it, on a thread on which it may only signal; with an ended session if it
    /// will never come. After a lost answer the node may still be made at any time: as long as `meant` lives,
    /// the caller may [own](OwnedNodes::own) it; after that it is deleted when it appears.
    pub(crate) fn enter(
        &self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        meant: &StillMeant,
        with_stat: bool,
        late: OnAnswer<Created>,
    ) -> Answer<Enqueued> {
        let mut late = Some(on_late(late, created));
        self.patiently(|| {
            let create = Request::create(path, data, acl, NodeKind::Contender);
            let list = match (path::parent(path), with_stat) {
                (parent, false) => Request::children(parent, false),
                (parent, true) => {
                    Request::ChildrenAndStat { path: parent.to_owned(), watch: false }
                }
            };
            let making = self.owned.begin(path, NodeKind::Contender, true)?;
            let ask = |late: &mut _| {
                let [made, siblings] = self.ask_once([create, list], late);
                let made = made.map_err(|fault| naming_entry(fault, acl)).and_then(created);
                (made, siblings)
            };
            let (made, siblings) = self.making(making, Some(meant), &mut late, ask);
            Ok(Enqueued { made: made?, siblings: siblings.and_then(names_perhaps_stat).ok() })
        })
    }

    /// As `create`, of an ephemeral node under a name that others may want, too; `meant` and `late` as in
    /// [`enter`](Verbs::enter).
    pub(crate) fn create_named(
        &self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        meant: &StillMeant,
        late: OnAnswer<Created>,
    ) -> Answer<Created> {
        let mut late = Some(on_late(late, created));
        self.create_owned(path, data, acl, (NodeKind::Named, true), Some(meant), &mut late)
    }

    /// As `create`, of an ephemeral node under a name that no other call knows; `meant` as in
    /// [`enter`](Verbs::enter).
    pub(crate) fn create_unique(
        &self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        meant: &StillMeant,
    ) -> Answer<Created> {
        self.create_owned(path, data, acl, (NodeKind::Ephemeral, true), Some(meant), &mut None)
    }

    /// As `create`, of a sequential node that outlives the session, under a name that no other call knows;
    /// `meant` as in [`enter`](Verbs::enter).
    pub(crate) fn create_lasting(
        &self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        meant: &StillMeant,
    ) -> Answer<Created> {
        let made = self.create(path, data, acl, NodeKind::PersistentSequential);
        if matches!(made, Err(Fault::ConnectionLoss)) {
            self.owned.doubt_lasting(path, meant);
        }
        made
    }

    fn create_owned(
        &self,
        path: &str,
        data: &[u8],
        acl: &[Acl],
        (kind, is_ours): (NodeKind, bool),
        meant: Option<&StillMeant>,
        late: &mut Option<OnAnswer<Reply>>,
    ) -> Answer<Created> {
        self.patiently(|| {
            let making = self.owned.begin(path, kind, is_ours)?;
            let create = Request::create(path, data, acl, kind);
            let ask = |late: &mut _| {
                let [made] = self.ask_once([create], late);
                (made.map_err(|fault| naming_entry(fault, acl)).and_then(created), ())
            };
            self.making(making, meant, late, ask).0
        })
    }

    /// Asks for a node to be made, and notes what becomes of it; `late` is as in `ask_once`.
    fn making<T>(
        &self,
        making: NodeInMaking,
        meant: Option<&StillMeant>,
        late: &mut Option<OnAnswer<Reply>>,
        ask: impl FnOnce(&mut Option<OnAnswer<Reply>>) -> (Answer<Created>, T),
    ) -> (Answer<Created>, T) {
        // Without a limit, the answer is waited for.
        if self.limit.is_none() {
            let asked = ask(late);
            making.settle(&asked.0, meant);
            return asked;
        }
        let making = Arc::new(making);
        let (told, mut then) = (Arc::clone(&making), late.take());
        let was_given = then.is_some();
        let mut noted: Option<OnAnswer<Reply>> = Some(Box::new(move |reply: Answer<Reply>| {
            told.settle(&reply.clone().and_then(created), None);
            if let Some(late) = then.take() {
                late(reply);
            }
        }));
        let is_over = self.is_over();
        let asked = ask(&mut noted);
        match noted {
            // It was not sent.
            Some(_) if is_over => making.settle(&Err(Fault::Busy), None),
            Some(_) => making.settle(&asked.0, meant),
            // It is not known yet: the answer will be noted when it comes.
            None => {}
        }
        // A further attempt has the same caller.
        if was_given {
            *late = noted;
        }
        asked
    }

    pub(crate) fn delete(&self, path: &str) -> Answer<()> {
        self.delete_version(path, None)
    }

    /// Deletes the node if its data has this version; `None` means any.
    pub(crate) fn delete_version(&self, path: &str, version: Option<i32>) -> Answer<()> {
        let deleted =
            self.ask(|| Request::One(Step::Delete { path: path.to_owned(), version })).map(drop);
        self.owned.note_delete(path, &deleted);
        deleted
    }

    /// Deletes the nodes, in as few round trips as possible.
    pub(super) fn delete_each(&self, paths: &[String]) {
        self.ask_each(paths, Request::delete, Ok);
    }

    /// As `delete`. If the caller's time limit is over before the answer comes, `late` is called
    /// with it, on a thread on which it may only signal.
    pub(crate) fn delete_or(&self, path: &str, late: OnAnswer<()>) -> Answer<()> {
        let mut late = Some(on_late(late, |_| Ok(())));
        let ask = || first(self.ask_once([Request::delete(path)], &mut late));
        let deleted = self.patiently(ask).map(drop);
        self.owned.note_delete(path, &deleted);
        deleted
    }

    /// Deletes the node that transaction `czxid` created; `NoNode` if it is gone, even if another
    /// session has created one of the same name since. Without permission to read the node, the two
    /// cannot be told apart.
    pub(crate) fn delete_named(&self, path: &str, czxid: i64) -> Answer<()> {
        let mut is_replaced = false;
        // Looks again each time: the node may have been replaced meanwhile.
        let deleted = self.patiently(|| match self.confirm_once(path) {
            Ok(Some(stat)) if stat.czxid != czxid => {
                is_replaced = true;
                Err(Fault::NoNode)
            }
            Ok(None) => Err(Fault::NoNode),
            Ok(Some(_)) | Err(Fault::NoAuth) => {
                first(self.ask_once([Request::delete(path)], &mut None)).map(drop)
            }
            Err(fault) => Err(fault),
        });
        // The one in its place may be somebody's of this session.
        if !is_replaced {
            self.owned.note_delete(path, &deleted);
        }
        deleted
    }

    /// Replaces the node's data.
    pub(crate) fn write(&self, path: &str, data: &[u8]) -> Answer<()> {
        self.write_version(path, data, None).map(drop)
    }

    /// Replaces the node's data if it has this version, and returns the new stat; `None` means any.
    pub(crate) fn write_version(
        &self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> Answer<Stat> {
        let write = || Step::Write { path: path.to_owned(), data: data.to_vec(), version };
        self.ask(|| Request::One(write())).and_then(stat)
    }

    pub(crate) fn set_acl(&self, path: &str, acl: &[Acl]) -> Answer<()> {
        let set = self.ask(|| Request::SetAcl { path: path.to_owned(), acl: acl.to_vec() });
        set.map(drop).map_err(|fault| naming_entry(fault, acl))
    }

    /// Carries out all of these steps as one, or none of them; then it returns the fault of the
    /// first that failed.
    pub(crate) fn transact(&self, steps: &[Step]) -> Answer<()> {
        self.commit(steps)?.map(drop).map_err(|(_, fault)| fault)
    }

    /// Carries out all of these steps as one, or none of them; returns what each has done, or which
    /// failed.
    pub(crate) fn commit(&self, steps: &[Step]) -> Answer<Transacted> {
        let mut making = Vec::new();
        for step in steps {
            if let Step::Create { path, kind, .. } = step {
                if kind.is_ephemeral() {
                    making.push(self.owned.begin(path, *kind, false)?);
                }
            }
        }
        let makes_owned = !making.is_empty();
        let reply = self.ask(|| Request::Transact(steps.to_vec()));
        let refused = match &reply {
            Ok(Reply::Transacted(Err((_, fault)))) => Some(fault),
            Ok(_) => None,
            Err(fault) => Some(fault),
        };
        if let Some(fault) = refused {
            making.iter().for_each(|one| one.settle(&Err(fault.clone()), None));
        }
        let reply = reply?;
        let Reply::Transacted(transacted) = reply else { return strange(&reply) };
        if let Ok(done) = &transacted {
            self.note_steps(steps, done, making);
        }
        Ok(transacted.map_err(|(place, fault)| {
            let fault = match steps.get(place) {
                Some(Step::Create { acl, .. }) => naming_entry(fault, acl),
                _ => fault,
            };
            let is_ended = fault == Fault::SessionEnded;
            (place, if is_ended { self.why_no_session(makes_owned) } else { fault })
        }))
    }

    /// Notes which nodes of the session a transaction has made, and which it has deleted.
    fn note_steps(&self, steps: &[Step], done: &[Reply], making: Vec<NodeInMaking>) {
        let mut making = making.into_iter();
        for (step, reply) in steps.iter().zip(done) {
            match (step, reply) {
                (Step::Delete { path, .. }, _) => self.owned.deleted(path),
                (Step::Create { kind, .. }, Reply::Created(made)) if kind.is_ephemeral() => {
                    making.next().iter().for_each(|one| one.settle(&Ok(made.clone()), None));
                }
                _ => {}
            }
        }
    }

    /// A write that changes nothing. Only a write is sure to be refused if the leader takes another server to
    /// serve the session: by the loss of the connection.
    pub(super) fn probe(&self) -> Answer<()> {
        match self.delete_version(NOWHERE, Some(i32::MAX)) {
            Err(fault) if fault.is_loss() => Err(fault),
            _ => Ok(()),
        }
    }

    /// Why a step of a transaction failed as if the session had ended. A server also says so of a local
    /// session that it must not upgrade, so a write is asked whether the session lives. The transaction
    /// changed nothing.
    fn why_no_session(&self, makes_owned: bool) -> Fault {
        match self.probe() {
            Err(_) => Fault::SessionEnded,
            Ok(()) if makes_owned => Fault::LocalSession,
            Ok(()) => {
                Fault::Refused("a step failed as if the session had ended, but it lives".to_owned())
            }
        }
    }

    /// Sends the deletion of a node, and returns when the request is certain to reach the server if
    /// the connection lasts, when there is no connection, or at the deadline. Later requests come
    /// after it. The answer comes on another thread, and may be lost with the session.
    pub(crate) fn let_go(&self, path: &str, until: Deadline, on_answer: OnAnswer<()>) {
        if !self.submit(Request::delete(path), told(on_answer, |_| Ok(()))) {
            self.connection.flushed_by(until);
        }
    }

    /// Asks for a node's deletion without waiting.
    pub(crate) fn delete_soon(&self, path: &str) {
        self.submit(Request::delete(path), Box::new(drop));
    }

    /// Asks, once and without waiting, for the deletion of a container that this session has made, and in
    /// which it has made nothing. The server refuses that if others have.
    pub(crate) fn delete_unused_soon(&self, path: &str) {
        let delete = Step::Delete { path: path.to_owned(), version: Some(0) };
        self.submit(Request::One(delete), Box::new(drop));
    }

    // ----- requests that read

    pub(crate) fn exists(&self, path: &str, watch: bool) -> Answer<Option<Stat>> {
        or_none(self.ask(|| Request::exists(path, watch)).and_then(stat))
    }

    /// The node's data and stat, or `None` if there is no such node. A watch is set only
    /// on a node that exists, so that none is left behind.
    pub(crate) fn data(&self, path: &str, watch: bool) -> Answer<Found> {
        or_none(self.ask(|| Request::data(path, watch)).and_then(data))
    }

    /// `None` if the node does not exist.
    pub(crate) fn acl(&self, path: &str) -> Answer<Option<Vec<Acl>>> {
        let read = self.ask(|| Request::Acl { path: path.to_owned() });
        or_none(read.and_then(|reply| match reply {
            Reply::Acl(acl) => Ok(acl),
            other => strange(&other),
        }))
    }

    /// As `data`, but a node whose data is too large, or hidden by an ACL, is found, with empty
    /// data. `NoAuth` means that the node exists, but the server tells nothing else: servers from
    /// 3.7.3, 3.8.4 and 3.9.2 on require READ for the stat, too. It is also the answer to a request
    /// to watch a node without READ on it: since ZooKeeper 3.8.4 and 3.9.2 such a watch can be set,
    /// but gets no events (CVE-2024-23944).
    pub(crate) fn read(&self, path: &str, watch: bool) -> Answer<Found> {
        self.or_stat(path, self.data(path, watch), watch)
    }

    /// What was read of a node, or if that was nothing, its stat if it may tell that.
    fn or_stat(&self, path: &str, read: Answer<Found>, watch: bool) -> Answer<Found> {
        if !self.may_have_stat(&read, watch) {
            return read;
        }
        let stat = self.exists(path, watch)?;
        Ok(stat.map(|stat| (Vec::new(), stat)))
    }

    /// Whether a node that was not read may tell its stat.
    fn may_have_stat(&self, read: &Answer<Found>, watch: bool) -> bool {
        match read {
            Err(Fault::NoAuth) => !watch,
            // Over a program's handle, asking whether a node exists sets no watch on it.
            Err(Fault::TooLarge(_)) => !watch || !self.connection.is_handle(),
            _ => false,
        }
    }

    /// As `read` without a watch, of many nodes, in as few round trips as possible.
    pub(crate) fn read_each(&self, paths: &[String]) -> Vec<Answer<Found>> {
        self.read_each_noting(paths, |_| ())
    }

    /// The same; `on_hidden` is told the paths of the nodes that an ACL hides.
    pub(crate) fn read_each_noting(
        &self,
        paths: &[String],
        on_hidden: impl Fn(&str),
    ) -> Vec<Answer<Found>> {
        let together = |paths: &[String], question: Question<Found>| Ok(question(self, paths));
        let Ok(all) = read_each_by::<Infallible>(paths, on_hidden, together);
        all
    }

    fn data_each(&self, paths: &[String]) -> Vec<Answer<Found>> {
        self.ask_each(paths, |path| Request::data(path, false), data)
    }

    /// As `read_each`, without the data.
    pub(crate) fn stat_each(&self, paths: &[String]) -> Vec<Answer<Found>> {
        let stats = self.ask_each(paths, |path| Request::exists(path, false), stat);
        let without_data = |found: Option<Stat>| found.map(|stat| (Vec::new(), stat));
        stats.into_iter().map(|found| found.map(without_data)).collect()
    }

    /// Sets watches on several contenders' nodes, in one round trip if possible, and answers as `read`
    /// with a watch. They are on the nodes' children, and find empty data: contenders have no children,
    /// so such a watch fires at the node's end, and at no write. If the last node is the caller's own,
    /// the watch on it is on its data. A lost connection or session is an error of all.
    pub(crate) fn watch_each(
        &self,
        paths: &[String],
        own_is_last: bool,
    ) -> Answer<Vec<Answer<Found>>> {
        let own = paths.last().filter(|_| own_is_last);
        let request = |path: &str| match own {
            Some(own) if own == path => Request::data(path, true),
            _ => Request::ChildrenAndStat { path: path.to_owned(), watch: true },
        };
        let read = |reply| match reply {
            Reply::NamesAndStat(_, stat) => Ok((Vec::new(), stat)),
            reply => data(reply),
        };
        let mut all = self.ask_each(paths, request, read);
        if let Some((own, read)) = own.and_then(|own| Some((own, all.pop()?))) {
            all.push(self.or_stat(own, read, true));
        }
        match all.iter().filter_map(|one| one.as_ref().err()).find(|fault| fault.is_loss()) {
            Some(lost) => Err(lost.clone()),
            None => Ok(all),
        }
    }

    /// Whether the node exists; if not, sets a watch for its creation. The watch stays at the
    /// server until then, or until the session or its connection ends.
    pub(crate) fn await_making(&self, path: &str) -> Answer<bool> {
        Ok(self.exists(path, true)?.is_some())
    }

    /// The names of the node's children; `None` if the node does not exist.
    pub(crate) fn ask_names(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        or_none(self.ask(|| Request::children(path, watch)).and_then(names))
    }

    /// As `ask_names`, of many nodes, in as few round trips as possible.
    pub(crate) fn children_each(
        &self,
        paths: &[String],
        watch: bool,
    ) -> Vec<Answer<Option<Names>>> {
        self.ask_each(paths, |path| Request::children(path, watch), names)
    }

    /// The names of the node's children, and its stat.
    pub(crate) fn ask_names_and_stat(
        &self,
        path: &str,
        watch: bool,
    ) -> Answer<Option<(Names, Stat)>> {
        let list = || Request::ChildrenAndStat { path: path.to_owned(), watch };
        or_none(self.ask(list).and_then(names_and_stat))
    }

    /// As `ask_names_and_stat`, of many nodes, in as few round trips as possible.
    pub(crate) fn lists_each(
        &self,
        paths: &[String],
        watch: bool,
    ) -> Vec<Answer<Option<(Names, Stat)>>> {
        let list = |path: &str| Request::ChildrenAndStat { path: path.to_owned(), watch };
        self.ask_each(paths, list, names_and_stat)
    }

    /// Answered when this connection's server has seen all that the leader had committed.
    pub(crate) fn sync(&self) -> Answer<()> {
        self.ask(|| Request::Sync).map(drop)
    }

    /// Does a `sync` and reads the node's stat, in one round trip; `NoAuth` as with `read`.
    pub(crate) fn confirm(&self, path: &str) -> Answer<Option<Stat>> {
        self.patiently(|| self.confirm_once(path))
    }

    fn confirm_once(&self, path: &str) -> Answer<Option<Stat>> {
        let requests = [Request::Sync, Request::exists(path, false)];
        let [synced, found] = self.ask_once(requests, &mut None);
        synced?;
        or_none(found.and_then(stat))
    }

    // ----- setting watches, without waiting

    /// Reads the node's data and sets a watch on it; `NoAuth` as with `read`.
    pub(crate) fn watch_soon(&self, path: &str, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        self.submit(Request::data(path, true), told(on_answer, data));
    }

    /// See [`Connection::is_watched`].
    pub(crate) fn is_watched(&self, path: &str) -> bool {
        self.connection.is_watched(path)
    }

    /// As `watch_soon`, but possibly a few milliseconds late, and only if it is still wanted then.
    /// If the connection is lost before, there may be no answer.
    pub(crate) fn watch_later(
        &self,
        path: &str,
        is_wanted: IsWanted,
        on_answer: OnAnswer<(Vec<u8>, Stat)>,
    ) {
        let asked = self.asked(Request::data(path, true), told(on_answer, data));
        self.connection.later(asked, is_wanted);
    }

    /// Sets a watch on the children of the node's parent, and answers whether the node exists;
    /// `NoAuth` as with `read`.
    pub(crate) fn watch_siblings_soon(&self, path: &str, on_answer: OnAnswer<Stat>) {
        let is_busy = Arc::new(AtomicBool::new(false));
        let was_busy = Arc::clone(&is_busy);
        let on_children = Box::new(move |answered: Answered| {
            is_busy.store(answered.is_busy(), Ordering::Relaxed);
        });
        let on_exists = Box::new(move |answered: Answered| {
            on_answer(match was_busy.load(Ordering::Relaxed) {
                true => Err(Fault::Busy),
                false => answered.read().and_then(stat),
            });
        });
        let watch = self.asked(Request::children(path::parent(path), true), on_children);
        let exists = self.asked(Request::exists(path, false), on_exists);
        self.connection.submit(vec![watch, exists], Waits::NotAtAll);
    }

    /// Lists a node's children and sets a watch on them.
    pub(crate) fn watch_children_soon(&self, path: &str, on_answer: OnAnswer<Names>) {
        self.submit(Request::children(path, true), told(on_answer, names));
    }

    /// Whether watches can be removed from the server, as far as is known. While that is in doubt, it is
    /// tried only if `nothing_is_held`: the connection may be lost by it, and at some servers the session
    /// with it.
    pub(super) fn may_unwatch(&self, nothing_is_held: bool) -> bool {
        let now = Moment::now();
        let is_worth_it = match self.unknown.suspected(op::REMOVE_WATCHES, now) {
            Some(pause) => pause.is_zero() && nothing_is_held,
            None => !self.unknown.is_unknown(op::REMOVE_WATCHES, now),
        };
        is_worth_it && !self.connection.is_handle()
    }

    /// Removes all watches of this connection on a node. Later requests come after it. Not every
    /// server can do it.
    pub(crate) fn unwatch_soon(&self, path: &str) {
        let unknown = Arc::clone(&self.unknown);
        let on_reply = Box::new(move |answered: Answered| {
            if matches!(answered.read(), Err(Fault::Unknown)) {
                unknown.learn(op::REMOVE_WATCHES, Moment::now());
            }
        });
        self.submit(Request::Unwatch { path: path.to_owned() }, on_reply);
    }

    /// See [`Connection::await_server`].
    pub(crate) fn await_server(&self, reads: bool) -> Option<AwaitsServer> {
        self.connection.await_server(reads)
    }

    /// See [`Connection::read_until`].
    pub(super) fn read_until(&self, then: Deadline, is_done: &dyn Fn() -> bool) {
        self.connection.read_until(then, is_done);
    }

    /// See [`Connection::reconnect`].
    pub(super) fn reconnect(&self) {
        self.connection.reconnect();
    }

    // ----- the session itself

    /// Whether a holder in this session may trust that its nodes exist; if not, why the session is
    /// over. Once an error, it stays one. It may come before any notice of the end. `Ok` says for how
    /// long that is certain.
    pub(crate) fn trusted(&self) -> Result<Duration, End> {
        self.connection.trusted()
    }

    /// See [`Connection::trusted_here`].
    pub(crate) fn trusted_here(&self) -> Result<Duration, End> {
        self.connection.trusted_here()
    }

    /// See [`Connection::seen_zxid`].
    pub(crate) fn seen_zxid(&self) -> i64 {
        self.connection.seen_zxid()
    }

    /// Whether the server carries out the steps of a transaction as one. Over a program's own handle,
    /// they are carried out one after the other.
    pub(crate) fn has_transactions(&self) -> bool {
        !self.connection.is_handle()
    }

    /// Whether a node that may be ours can be recognised as this session's, and so be kept.
    pub(crate) fn may_adopt(&self) -> bool {
        !self.connection.is_handle()
    }

    /// What is known of how the session was lost.
    pub(crate) fn details(&self, of: LossReason) -> Option<String> {
        (of == LossReason::LeaseExpired).then(|| self.connection.why_lapsed()).flatten()
    }

    pub(crate) fn info(&self) -> Info {
        self.connection.info()
    }

    /// See [`Connection::close`].
    pub(crate) fn close(&self, why: End, give_up_after: Duration) {
        self.connection.close(why, give_up_after);
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::rt::Mutex;

    /// Answers nothing, and notes what is requested.
    #[derive(Debug)]
    struct Notes {
        is_certain: bool,
        said: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Connection for Notes {
        fn submit(&self, _requests: Vec<Submission>, _waits: Waits) -> bool {
            self.said.lock().push("submit");
            self.is_certain
        }

        fn flushed_by(&self, _until: Deadline) {
            self.said.lock().push("flush");
        }

        fn trusted(&self) -> Result<Duration, End> {
            Ok(Duration::ZERO)
        }

        fn info(&self) -> Info {
            Info { session: 1, ..Info::default() }
        }

        fn close(&self, _why: End, _give_up_after: Duration) {}
    }

    fn verbs(notes: Notes) -> Verbs {
        let owned = Arc::new(OwnedNodes::new(usize::MAX, None, Arc::default()));
        Verbs::new(Box::new(notes), Arc::default(), owned, Arc::default())
    }

    #[test]
    fn a_release_waits_until_its_request_is_certain_to_be_sent() {
        for (is_certain, expected) in [(true, &["submit"][..]), (false, &["submit", "flush"])] {
            let said = Arc::default();
            let notes = Notes { is_certain, said: Arc::clone(&said) };
            verbs(notes).let_go("/a", Deadline::NEVER, Box::new(drop));
            assert_eq!(*said.lock(), expected);
        }
    }

    #[test]
    fn what_the_server_was_too_busy_for_is_asked_again() {
        let mut asked = 0;
        let ask = || {
            asked += 1;
            if asked < 3 { Err(Fault::Busy) } else { Ok(asked) }
        };
        let verbs = verbs(Notes { is_certain: true, said: Arc::default() });
        assert_eq!(verbs.patiently(ask), Ok(3));
        assert_eq!(verbs.patiently(|| Err::<(), _>(Fault::NoNode)), Err(Fault::NoNode));
    }
}
