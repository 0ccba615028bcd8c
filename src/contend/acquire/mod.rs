//! Acquires a lock: carries out on a session what the state machine in [`acquisition`] decides, within the
//! caller's limits.

mod acquisition;
mod long_wait;
mod maintenance_ahead;
mod others_seen;
mod watched_nodes;
mod worse_ahead;

pub(crate) use long_wait::LongWait;
pub(crate) use maintenance_ahead::{HoldAhead, MaintenanceAhead};
pub(crate) use others_seen::OthersSeen;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::acl::Acl;
use crate::connection_notice::End;
use crate::contend::hold::{DROP_LIMIT, Hold, ToDo, held_by_this_thread, tell_own_wait};
use crate::contend::name::{
    ChildOrigin, EnsembleClock, Form, LastingChildren, NodeNaming, Ticket, ask_origins,
    interop_warning, is_contender, is_ignored, is_request, is_uncertain, with_facts_of, with_wait,
};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::foreign_contenders::ForeignContenders;
use crate::path;
use crate::rt::{self, Deadline};
use crate::session::{
    Answer, Call, Client, ClientCore, Created, Enqueued, Fault, Found, Names, NodeKind, Purpose,
    Session, StillMeant, Stop, Wait, WatchKind, cancelled, make_container, make_parents,
};
use crate::wire_values::Stat;
use acquisition::{Acquisition, Action, Input, Listing, OwnNode, Trouble, Watched};
use watched_nodes::WatchedNodes;
use worse_ahead::WorseAhead;

/// A wait of more than this.
const LONG_WAIT: Duration = Duration::from_secs(1);

const MAKE: Purpose = Purpose::to_change("create the lock node", "CREATE on its parent");
const SYNC: Purpose = Purpose::to_read("sync", "");
const CREATE: Purpose = Purpose::to_change("create a contender", "CREATE on the lock node");
const LIST: Purpose = Purpose::to_read("list the contenders", "READ on the lock node");
const READ: Purpose = Purpose::to_read("read a contender", "READ on the contender");
const WATCH: Purpose = Purpose::to_read("watch a contender", "READ on the contender");
const WATCH_ALL: Purpose = Purpose::to_read("watch the contenders", "READ on the lock node");
const DELETE: Purpose = Purpose::to_change("delete a contender", "DELETE on the lock node");
const WITHDRAW: Purpose = Purpose::to_change("delete the contender", "DELETE on the lock node");

/// What to contend for, and what the contender's node looks like.
#[derive(Debug)]
pub(crate) struct Contention<'a> {
    pub(crate) client: &'a Client,
    /// The lock node, as the client names it.
    pub(crate) node: &'a str,
    /// The lock whose wait is reported: the same, except for a waiting room.
    pub(crate) reported_as: &'a str,
    /// What is contended for, for messages: such as "lock" or "permit".
    pub(crate) noun: &'static str,
    pub(crate) data: Vec<u8>,
    pub(crate) acl: &'a [Acl],
    pub(crate) form: Form,
    /// Whether its node tells facts for programs.
    pub(crate) tells_facts: bool,
    /// Whether the lock node has to be there already: it is not made, and without it the call fails.
    pub(crate) must_exist: bool,
    /// For how long each holder may hold it.
    pub(crate) hold_at_most: Option<Duration>,
    /// Its patience, if it asks holders that have more to release the lock.
    pub(crate) asks_worse_than: Option<u32>,
}

impl Contention<'_> {
    /// What the lock node is made as.
    pub(super) fn lock_node_kind(&self) -> NodeKind {
        match self.form.naming {
            NodeNaming::Curator => NodeKind::Container,
            NodeNaming::Kazoo => NodeKind::Persistent,
        }
    }
}

/// How long to try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    pub(crate) wait: &'a Wait,
    /// Whether to wait for other contenders.
    pub(crate) patient: bool,
}

impl<'a> Limits<'a> {
    /// To wait for other contenders as long as this.
    pub(crate) fn patient(wait: &'a Wait) -> Limits<'a> {
        Limits { wait, patient: true }
    }

    /// To wait for the ensemble as long as this, but not for other contenders.
    pub(crate) fn impatient(wait: &'a Wait) -> Limits<'a> {
        Limits { wait, patient: false }
    }
}

struct Attempt<'a> {
    contention: &'a Contention<'a>,
    call: &'a mut Call,
    /// The lock node, as the server knows it.
    node: String,
    watched: WatchedNodes,
    /// Whether the call has made the lock node, a container, and certainly nothing in it: a server
    /// removes such a node only after it has had a child.
    has_unused_container: bool,
    /// Whether the list of children has been searched for incompatible contenders.
    looked_round: bool,
    /// Whether the wait for others has been reported.
    waits: bool,
    others: &'a OthersSeen,
    lasting: Arc<LastingChildren>,
    /// When the list was asked for that is judged next.
    listed_at: Option<Instant>,
    /// When its node was there for certain, if it was made.
    queued_at: Option<Instant>,
    /// The data with which its node was made, if they are not those of the contention.
    made_with: Option<Vec<u8>>,
    /// Whether another call has made it.
    taken_over: bool,
    /// Whether the node tells of other waits than this one.
    tells_of_others: bool,
    long_wait: LongWait,
    maintenance: MaintenanceAhead,
    worse: WorseAhead,
    /// As long as the call lasts, nodes that it may have created are its own.
    meant: &'a StillMeant,
}

/// A place in the ensemble's queue that one call leaves and another may take.
pub(crate) struct PausedAcquisition {
    session: Arc<Session>,
    acquisition: Acquisition,
    queued_at: Option<Instant>,
    data: Vec<u8>,
}

impl PausedAcquisition {
    /// Deletes the node, as no other call takes the place.
    pub(crate) fn withdraw(self, core: &ClientCore, lock_node: &str, wait: &Wait) {
        let Some(own) = self.acquisition.own_name() else { return };
        let path = path::join(&core.whole(lock_node), own);
        let until = Deadline::after(DROP_LIMIT).earlier(wait.late());
        // The call acquires nothing, whatever becomes of the node.
        let _ = core.reaper().put_away(&self.session, path, until, None);
    }
}

/// Repeats an attempt until it returns something: for calls without a deadline, which do not give
/// up.
pub(crate) fn insist<T>(mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    loop {
        if let Some(got) = attempt()? {
            return Ok(got);
        }
    }
}

/// Makes an attempt that may give up when its time is over; without a limit it does not give up.
pub(crate) fn insist_within<T>(
    wait: &Wait,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    if wait.until().is_never() { insist(attempt).map(Some) } else { attempt() }
}

/// Contends until admitted; `None` if others are ahead when the time is over, or are ahead at all and
/// the caller does not wait for them. If the time is over before any list has shown that, it is an
/// error: an outage must not be taken for another holder.
pub(crate) fn acquire(contention: &Contention<'_>, limits: Limits<'_>) -> Result<Option<Hold>> {
    acquire_after(contention, limits, &OthersSeen::default(), rt::now())
}

/// As `acquire`, for a call that began then and has seen these others already, at an earlier lock.
pub(crate) fn acquire_after(
    contention: &Contention<'_>,
    limits: Limits<'_>,
    others: &OthersSeen,
    begin: Instant,
) -> Result<Option<Hold>> {
    let mut call = Call::new(contention.client.core(), limits.wait);
    let got = pursue(contention, &mut call, limits.patient, others, None, Some)?;
    others.or_unanswered(got, begin, contention.client.core(), contention.node)
}

/// Reports how a call has ended that wanted this lock and began then, for a program that wants to know.
pub(crate) fn report_end(
    client: &Client,
    (lock, what): (&str, &'static str),
    limits: Limits<'_>,
    begin: Option<Instant>,
    got: Result<Option<Hold>>,
) -> Result<Option<Hold>> {
    let error = match got {
        Ok(Some(hold)) => return Ok(Some(hold.acquired_since(begin))),
        // Such a call is repeated.
        Ok(None) if limits.patient && limits.wait.until().is_never() => return Ok(None),
        Ok(None) => None,
        Err(ref error) => Some(error.kind()),
    };
    if let Some(begin) = begin {
        client.core().report(|| Event::NotAcquired {
            lock: lock.to_owned(),
            what,
            waited: rt::now().saturating_duration_since(begin),
            error,
            thread: rt::program_thread(),
        });
    }
    got
}

/// Contends until admitted, from a place that another call has left, if there is one; `None` if it
/// gives up, of which `others` says whether others were ahead. When this call gives up its place in
/// turn, it goes to `pass`, which gives it back if nobody takes it.
pub(crate) fn pursue(
    contention: &Contention<'_>,
    call: &mut Call,
    patient: bool,
    others: &OthersSeen,
    paused: Option<Box<PausedAcquisition>>,
    pass: impl FnOnce(Box<PausedAcquisition>) -> Option<Box<PausedAcquisition>>,
) -> Result<Option<Hold>> {
    let (core, late) = (contention.client.core(), call.limit().late());
    call.allow_grace();
    others.found_by(call.bell());
    let meant = StillMeant::default();
    let mut attempt = Attempt {
        contention,
        node: core.whole(contention.node),
        watched: WatchedNodes::new(call.bell()),
        call,
        has_unused_container: false,
        looked_round: false,
        waits: false,
        others,
        lasting: core.extension(),
        listed_at: None,
        queued_at: None,
        made_with: None,
        taken_over: false,
        tells_of_others: false,
        long_wait: LongWait::default(),
        maintenance: MaintenanceAhead::default(),
        worse: WorseAhead::default(),
        meant: &meant,
    };
    let (mut acquisition, begin) = match paused {
        Some(paused) => {
            let PausedAcquisition { session, mut acquisition, queued_at, data } = *paused;
            (attempt.queued_at, attempt.made_with) = (queued_at, Some(data));
            (attempt.taken_over, attempt.tells_of_others) = (true, true);
            acquisition.go_on(patient);
            attempt.call.use_session(session);
            (acquisition, Some(Input::Woken))
        }
        None => {
            let fresh = || Uuid::from_u128(rt::random());
            let foreign = core.foreign_contenders();
            let mut acquisition = Acquisition::new(contention.form, patient, foreign, fresh);
            acquisition.note_holders(contention.asks_worse_than.is_some());
            (acquisition, None)
        }
    };
    let driven = catch_unwind(AssertUnwindSafe(|| attempt.drive(&mut acquisition, begin)));
    let driven = driven.unwrap_or_else(|panic| {
        attempt.abandon(&acquisition);
        resume_unwind(panic);
    });
    let keeps_place = matches!(driven, Ok(None) | Err(Stop::TimeOver | Stop::Cancelled))
        && acquisition.has_place();
    if let Some(session) = attempt.call.live_session().filter(|_| keeps_place) {
        attempt.watched.clear();
        let queued_at = attempt.queued_at;
        let data = attempt.data().to_vec();
        match pass(Box::new(PausedAcquisition { session, acquisition, queued_at, data })) {
            None => return attempt.left(driven),
            Some(paused) => acquisition = paused.acquisition,
        }
    }
    attempt.end(driven, &acquisition, late)
}

impl Attempt<'_> {
    /// The result of a call that keeps no place: what it leaves behind is deleted.
    fn end(
        &mut self,
        driven: Result<Option<Hold>, Stop>,
        left: &Acquisition,
        late: Deadline,
    ) -> Result<Option<Hold>> {
        let error = match driven {
            Ok(Some(hold)) => return Ok(Some(hold)),
            Err(Stop::Failed(error)) => Some(error),
            Err(Stop::Cancelled) => Some(cancelled(self.contention.reported_as)),
            // `drive` goes on with another session when one has ended.
            Ok(None) | Err(Stop::TimeOver | Stop::SessionEnded(_)) => None,
        };
        if let Some(session) = self.call.live_session().filter(|_| self.has_unused_container) {
            session.delete_unused_soon(&self.node);
        }
        let kind = error.as_ref().map(Error::kind);
        let is_spent = kind == Some(ErrorKind::SequenceExhausted);
        let withdrawn = self.withdraw(left, late, is_spent);
        match error {
            None => withdrawn.map(|()| None),
            // The first error is the one to report.
            Some(error) if error.path().is_some() => Err(error),
            // Of a room, the numbers are its own.
            Some(error) if is_spent => Err(error.on(self.contention.node)),
            Some(error) => Err(error.on(self.contention.reported_as)),
        }
    }

    /// The result of a call that has left its place to another.
    fn left(&self, driven: Result<Option<Hold>, Stop>) -> Result<Option<Hold>> {
        match driven {
            Err(Stop::Cancelled) => Err(cancelled(self.contention.reported_as)),
            _ => Ok(None),
        }
    }

    fn drive(
        &mut self,
        acquisition: &mut Acquisition,
        mut event: Option<Input>,
    ) -> Result<Option<Hold>, Stop> {
        loop {
            let (session, next) = match (self.call.live_session(), event.take()) {
                (Some(session), Some(event)) => (session, event),
                _ => {
                    self.watched.clear();
                    self.has_unused_container = false;
                    let session = self.call.open()?;
                    // No ephemeral node belongs to session 0, so none is adopted.
                    let id = if session.may_adopt() { session.id() } else { 0 };
                    (session, Input::Begin { session: id })
                }
            };
            let is_successor = matches!(next, Input::Succeeded);
            let action = acquisition.step(next);
            if let Some(gone) = acquisition.take_missing() {
                session.owned().forget(&path::join(&self.node, &gone));
            }
            let listed_at = self.listed_at.take();
            if let Some(listed_at) = listed_at.filter(|_| acquisition.is_blocked()) {
                self.others.note(listed_at);
            }
            if acquisition.is_blocked() && self.end_maintenance(&session, acquisition)? {
                event = Some(Input::Woken);
                continue;
            }
            if acquisition.is_blocked() && acquisition.is_patient() {
                self.ask_worse(&session, acquisition)?;
            }
            if matches!(action, Action::Wait) {
                self.report_waiting(acquisition);
            }
            match action {
                Action::Hold { name, czxid, contested } => {
                    self.until_trusted(&session)?;
                    if session.status().now().ended.is_some() {
                        continue;
                    }
                    // An event may have come while the call waited for the lease.
                    let connection = session.status().now().connection;
                    if is_successor && self.watched.to_do(connection) != ToDo::Succeed {
                        event = Some(Input::Woken);
                        continue;
                    }
                    let Contention { client, node, noun, .. } = self.contention;
                    let watch = self.watched.take(&name);
                    let place = (*node, &*name);
                    let data = self.data_of_hold();
                    let mut hold = Hold::new(client, session, place, czxid, watch, noun, data);
                    hold.contested = contested;
                    hold.limit_to(self.contention.hold_at_most);
                    if self.contention.tells_facts && self.has_waited_long() {
                        hold.tell_held_since();
                    }
                    return Ok(Some(hold));
                }
                Action::Yield => return Ok(None),
                Action::MakeParents if self.contention.must_exist => {
                    let message = "the lock node does not exist, and must exist for this call";
                    return Err(Stop::Failed(Error::new(ErrorKind::NotFound, message)));
                }
                Action::Fail(error) => return Err(Stop::Failed(error)),
                action => match self.perform(&session, action, acquisition) {
                    Ok(done) => event = Some(done),
                    // The next turn of the loop notices it.
                    Err(Stop::SessionEnded(_)) => {}
                    Err(stop) => return Err(stop),
                },
            }
        }
    }

    fn perform(
        &mut self,
        session: &Arc<Session>,
        action: Action,
        acquisition: &Acquisition,
    ) -> Result<Input, Stop> {
        Ok(match action {
            Action::Create { prefix } => {
                let created = self.create(session, prefix);
                self.has_unused_container &= match &created {
                    Ok(Input::Created { made: Err(Trouble::Refused(_)), .. }) => true,
                    // The limit was over before the request was sent.
                    Err(_) => !self.call.is_unanswered(),
                    Ok(_) => false,
                };
                created?
            }
            Action::MakeParents => self.make_lock_node(session)?,
            Action::Sync => {
                let (synced, on) = self.ask_on(session, |session, _| session.sync())?;
                Input::Synced(self.sort(synced, SYNC).map(|()| on))
            }
            Action::List => self.list(session, false)?,
            Action::WatchChildren => self.list(session, true)?,
            Action::Inspect { name } => {
                let path = path::join(&self.node, &name);
                let read = self.ask(session, |session, _| session.read(&path, false))?;
                let read = self.sort(read, READ);
                if let Ok(Some((_, stat))) = &read {
                    self.queued_at.get_or_insert_with(rt::now);
                    if stat.ephemeral_owner == session.id() {
                        session.owned().own(&path);
                    }
                }
                Input::Inspected(read.map(|read| read.map(|(_, stat)| stat)))
            }
            Action::Watch { names, successor } => {
                self.watch(session, &names, successor, acquisition.made_by())?
            }
            Action::AskOrigins { names } => {
                let found =
                    self.ask(session, |session, node| ask_origins(session, node, &names))?;
                let found = self.sort(found, READ).map(|found| names.into_iter().zip(found));
                Input::Origins(found.map(|found| self.judge(found, acquisition.made_by())))
            }
            Action::Delete { name } => {
                let path = path::join(&self.node, &name);
                let deleted = self.ask(session, |session, _| session.delete(&path))?;
                Input::Deleted(self.sort(deleted, DELETE))
            }
            Action::Wait => self.wait(session, acquisition)?,
            Action::Hold { .. } | Action::Yield | Action::Fail(_) => Input::Woken,
        })
    }

    fn make_lock_node(&mut self, session: &Arc<Session>) -> Result<Input, Stop> {
        let (acl, kind) = (self.contention.acl, self.contention.lock_node_kind());
        let (reaper, of_session) = (Arc::clone(self.call.core().reaper()), Arc::downgrade(session));
        let node = self.node.clone();
        let late = move |made: Answer<Created>| {
            let Some(session) = of_session.upgrade().filter(|_| made.is_ok()) else { return };
            let delete = move || {
                of_session.upgrade()?.delete_unused_soon(&node);
                None
            };
            reaper.later(&session, rt::now(), delete);
        };
        let made = self.ask(session, |session, node| match kind {
            NodeKind::Container => make_container(session, node, acl, Box::new(late)),
            kind => make_parents(session, node, kind, acl).map(|()| false),
        })?;
        self.has_unused_container = made == Ok(true);
        Ok(Input::ParentsMade(self.sort(made, MAKE).map(drop)))
    }

    fn look_round(&mut self, children: &Names) {
        if !std::mem::replace(&mut self.looked_round, true) {
            let form = self.contention.form;
            let core = self.call.core();
            core.warn_once(&self.node, || interop_warning(form, children));
            let foreign = core.foreign_contenders();
            if *foreign == ForeignContenders::Wait {
                return;
            }
            let is_passed =
                |name: &&str| Ticket::parse(name).is_some_and(|one| is_ignored(&one, &foreign));
            if let Some(name) = children.iter().find(is_passed) {
                let why = "a contender that is not waited for, as the client's settings want it";
                core.warn_once(&path::join(&self.node, name), || Some(why.to_owned()));
            }
        }
    }

    /// Deletes the maintenance holds ahead whose time is over. Returns whether to list the contenders again:
    /// a call that waits hears of the node that it waits for.
    fn end_maintenance(
        &mut self,
        session: &Session,
        acquisition: &Acquisition,
    ) -> Result<bool, Stop> {
        let ahead = acquisition.maintenance_ahead();
        let place = acquisition.own_name().zip(self.queued_at).filter(|_| !ahead.is_empty());
        let Some((own, queued_at)) = place else {
            self.maintenance = MaintenanceAhead::default();
            return Ok(false);
        };
        let own = path::join(&self.node, own);
        let bell = Some(self.call.bell()).filter(|_| acquisition.is_patient());
        let mut maintenance = std::mem::take(&mut self.maintenance);
        maintenance.put_off(session);
        let has_gone = self.ask(session, |session, node| {
            let Some(stat) = session.exists(&own, false)? else { return Ok(true) };
            let clock = EnsembleClock::new(stat.ctime, queued_at);
            maintenance.look(session, node, ahead, clock, bell.as_ref())
        });
        self.maintenance = maintenance;
        match has_gone {
            Ok(has_gone) => Ok(has_gone.unwrap_or(false) && !acquisition.is_patient()),
            // The next request finds that, too.
            Err(Stop::SessionEnded(_)) => Ok(false),
            Err(stop) => Err(stop),
        }
    }

    /// Asks those that hold the lock, if they have more patience and that is wanted.
    fn ask_worse(&mut self, session: &Session, acquisition: &Acquisition) -> Result<(), Stop> {
        let Some(patience) = self.contention.asks_worse_than else { return Ok(()) };
        let bell = self.call.bell();
        let mut worse = std::mem::take(&mut self.worse);
        let holders = acquisition.holders_ahead();
        let asked =
            self.ask(session, |session, node| worse.look(session, node, holders, patience, &bell));
        self.worse = worse;
        match asked {
            // The next request finds that, too; and after a lost connection it looks again.
            Ok(_) | Err(Stop::SessionEnded(_)) => Ok(()),
            Err(stop) => Err(stop),
        }
    }

    fn create(&mut self, session: &Arc<Session>, prefix: String) -> Result<Input, Stop> {
        let path = path::join(&self.node, &prefix);
        let acl = self.contention.acl;
        let (reaper, of_session) = (Arc::clone(self.call.core().reaper()), Arc::downgrade(session));
        let node = self.node.clone();
        let late = move |answer: Answer<Created>| match (of_session.upgrade(), answer) {
            // Noted as leaving as soon as it is known, so that no other call of ours waits for it.
            (Some(session), Ok(made)) => reaper.delete(&session, made.path),
            // It may take effect after the withdrawal has looked for it.
            (Some(session), Err(Fault::ConnectionLoss)) if !session.may_adopt() => {
                reaper.sweep(&session, node, vec![prefix]);
            }
            _ => {}
        };
        self.call.until_served(session)?;
        let mut leaving = session.leaving(&self.node);
        let (before, meant) = (session.status().now().connection, self.meant);
        let with_stat = self.lasting.has_any_of(&self.node);
        self.listed_at = Some(self.others.listing());
        self.taken_over = false;
        let made_with = self.data_of_a_wait();
        let data = made_with.as_deref().unwrap_or(&self.contention.data);
        let entered = self.ask(session, |session, _| {
            session.enter(&path, data, acl, meant, with_stat, Box::new(late))
        });
        self.made_with = made_with;
        // One without an answer may still be carried out, at any time.
        self.queued_at = entered.as_ref().is_ok_and(Answer::is_ok).then(rt::now);
        let after = session.status().now().connection;
        let Enqueued { made, siblings } = match self.sort(entered?, CREATE) {
            Ok(entered) => entered,
            Err(trouble) => return Ok(Input::Created { made: Err(trouble), listing: None }),
        };
        // Like any list, it counts only on the connection that it was requested on.
        let siblings = siblings.filter(|_| before == after);
        if let Some((siblings, _)) = &siblings {
            self.look_round(siblings);
            leaving.extend(self.call.core().strays().delete(session, &self.node, siblings));
        }
        let listing = siblings.map(|siblings| self.listing(after, siblings, false, leaving));
        let own = OwnNode { name: path::last(&made.path).to_owned(), czxid: made.czxid };
        Ok(Input::Created { made: Ok(own), listing })
    }

    /// Waits until the session is trusted or has ended: a process that was stopped may come here
    /// after its lease has run out and before that was noticed.
    fn until_trusted(&self, session: &Session) -> Result<(), Stop> {
        self.call.wait_for(|| session.is_trusted() || session.status().now().ended.is_some())
    }

    /// Asks about the lock node.
    fn ask<T>(
        &mut self,
        session: &Session,
        question: impl FnOnce(&Session, &str) -> Answer<T>,
    ) -> Result<Answer<T>, Stop> {
        self.call.until_served(session)?;
        match self.call.ask_in(session, |session| question(session, &self.node))? {
            Err(Fault::SessionEnded) => Err(Stop::SessionEnded(End::Expired)),
            answer => Ok(answer),
        }
    }

    /// Asks as `ask` does, for answers that count only on the connection they were requested on. Also
    /// returns that one's number.
    fn ask_on<T>(
        &mut self,
        session: &Session,
        question: impl FnOnce(&Session, &str) -> Answer<T>,
    ) -> Result<(Answer<T>, u64), Stop> {
        self.call.until_served(session)?;
        let before = session.status().now().connection;
        let answer = self.ask(session, question)?;
        let after = session.status().now().connection;
        let answer = if before == after { answer } else { Err(Fault::ConnectionLoss) };
        Ok((answer, after))
    }

    /// Sorts faults into those that retrying may resolve, and errors that say what was tried and
    /// what it needs.
    fn sort<T>(&self, answer: Answer<T>, purpose: Purpose) -> Result<T, Trouble> {
        answer.map_err(|fault| match fault {
            Fault::ConnectionLoss => Trouble::Unanswered,
            Fault::NoNode => Trouble::NoNode,
            fault => Trouble::Refused(purpose.refused(&fault, self.contention.node)),
        })
    }

    /// Watches the nodes, and with a successor its node, too, in one round trip.
    fn watch(
        &mut self,
        session: &Arc<Session>,
        names: &[String],
        successor: Option<OwnNode>,
        made_by: Option<i64>,
    ) -> Result<Input, Stop> {
        let own = successor.as_ref().map(|own| &own.name);
        let is_wanted = |name: &str| names.iter().chain(own).any(|wanted| wanted == name);
        // Whether one contends whose name does not tell is asked with the watch, for each own node anew.
        let is_kept = |name: &str| is_wanted(name) && !is_uncertain(name);
        self.watched.keep(session.status().now().connection, is_kept);
        // The own node last: whatever of the others is gone by their answers, it stood after that.
        let to_watch = names.iter().chain(own).filter(|name| !self.watched.contains(name));
        let to_watch: Vec<String> = to_watch.cloned().collect();
        let paths: Vec<String> = to_watch.iter().map(|name| path::join(&self.node, name)).collect();
        let own_is_last = own.is_some_and(|own| to_watch.last() == Some(own));
        for (name, path) in to_watch.iter().zip(&paths) {
            let is_own = Some(name) == own;
            let kind = if is_own { WatchKind::Node } else { WatchKind::Children };
            self.watched.subscribe(session.watches(), kind, name, path);
        }
        let all = match paths.is_empty() {
            true => Ok(Vec::new()),
            false => self.ask(session, |session, _| session.watch_each(&paths, own_is_last))?,
        };
        let all = all.unwrap_or_else(|fault| vec![Err(fault); to_watch.len()]);
        let (mut trouble, mut uncertain) = (None, Vec::new());
        for (name, read) in to_watch.iter().zip(all) {
            let is_open = Some(name) != own && is_uncertain(name);
            if let Some((_, stat)) = read.as_ref().ok().and_then(Option::as_ref).filter(|_| is_open)
            {
                uncertain.push((name.clone(), Some(ChildOrigin::of(stat))));
            }
            let answer = match read {
                read if Some(name) == own => {
                    let stands = read.is_ok_and(|found| stands(found, session, successor.as_ref()));
                    // Otherwise a list follows when a node ahead is gone.
                    stands.then_some(Watched::Set)
                }
                Ok(Some(_)) => Some(Watched::Set),
                Ok(None) => Some(Watched::Gone),
                Err(Fault::NoAuth) => Some(Watched::Hidden),
                read => {
                    trouble = self.sort(read, WATCH).err();
                    None
                }
            };
            self.watched.note_answer(name, answer);
        }
        if let Some(trouble) = trouble {
            return Ok(Input::Watched(Err(trouble)));
        }
        let mut origins = self.judge(uncertain, made_by);
        origins.retain(|(_, is_before)| !is_before);
        if !origins.is_empty() {
            let passed = origins.into_iter().map(|(name, _)| name);
            return Ok(Input::Watched(Ok(Watched::Passed(passed.collect()))));
        }
        let connection = session.status().now().connection;
        Ok(self.watched.judge(connection, own.map(String::as_str)))
    }

    /// Lists the children, and has them watched from then on if that is wanted.
    fn list(&mut self, session: &Arc<Session>, watch: bool) -> Result<Input, Stop> {
        const CHILDREN: &str = "";
        let mut leaving = session.leaving(&self.node);
        if watch {
            self.watched.keep(session.status().now().connection, |_| false);
            self.watched.subscribe(session.watches(), WatchKind::Children, CHILDREN, &self.node);
        }
        self.listed_at = Some(self.others.listing());
        let with_stat = self.lasting.has_any_of(&self.node);
        let (children, on) = self.ask_on(session, |session, node| match with_stat {
            true => {
                Ok(session.names_and_stat(node, watch)?.map(|(names, stat)| (names, Some(stat))))
            }
            false => Ok(session.names(node, watch)?.map(|names| (names, None))),
        })?;
        let children = self.sort(children, if watch { WATCH_ALL } else { LIST });
        if let Ok(Some((children, _))) = &children {
            leaving.extend(self.call.core().strays().delete(session, &self.node, children));
            if !watch {
                self.look_round(children);
            }
        }
        if watch && (!matches!(&children, Ok(Some(_))) || on != self.watched.on()) {
            self.watched.clear();
        }
        let watched = watch && self.watched.contains(CHILDREN);
        let listing =
            |children: Option<_>| self.listing(on, children.unwrap_or_default(), watched, leaving);
        Ok(Input::Listed(children.map(listing)))
    }

    /// The children, perhaps with the lock node's stat.
    fn listing(
        &self,
        on: u64,
        (children, stat): (Names, Option<Stat>),
        watched: bool,
        leaving: Vec<String>,
    ) -> Listing {
        let lasting = stat.map(|stat| self.lasting.among(&self.node, &stat, &children));
        let lasting = lasting.unwrap_or_default();
        Listing { on, children, watched, leaving, lasting }
    }

    /// Which of these children come before the node that was made by this transaction, and which do not.
    fn judge(
        &self,
        origins: impl IntoIterator<Item = (String, Option<ChildOrigin>)>,
        made_by: Option<i64>,
    ) -> Vec<(String, bool)> {
        let origins: Vec<_> =
            origins.into_iter().filter_map(|(name, origin)| Some((name, origin?))).collect();
        let lasting = origins.iter().filter_map(|(name, origin)| match origin {
            ChildOrigin::Lasting { czxid } => Some((name.clone(), *czxid)),
            _ => None,
        });
        let lasting: Vec<_> = lasting.collect();
        if let Some((first, _)) = lasting.iter().find(|(name, _)| is_contender(name)) {
            self.call.core().warn_once(&path::join(&self.node, first), || {
                Some("it belongs to no session, so it is not taken for a contender".into())
            });
        }
        self.lasting.note(&self.node, lasting);
        origins.into_iter().map(|(name, origin)| (name, origin.is_before(made_by))).collect()
    }

    /// The data of its node.
    fn data(&self) -> &[u8] {
        self.made_with.as_deref().unwrap_or(&self.contention.data)
    }

    /// The data of its node, but for what they tell of the wait: that may be kilobytes, if the thread holds
    /// many locks.
    fn data_of_hold(&self) -> Vec<u8> {
        let made = self.made_with.as_deref();
        let told = made.and_then(|made| with_facts_of(made, &self.contention.data));
        told.unwrap_or_else(|| self.data().to_vec())
    }

    /// What a node that is made now tells of the wait, if that is more than the contention says.
    ///
    /// A place that goes to another call keeps its data for now. They say that the wait is limited, as one
    /// without a limit gives no place up: so nobody takes it for one that never ends.
    fn data_of_a_wait(&self) -> Option<Vec<u8>> {
        let Contention { data, tells_facts, .. } = self.contention;
        if !tells_facts {
            return None;
        }
        with_wait(data, self.call.limit().may_end(), &held_by_this_thread())
    }

    /// Has the own node tell again what is held as long as it is there: threads may wait behind this one, and
    /// the node may have been made by another.
    fn tell_wait(&mut self, acquisition: &Acquisition) {
        let Contention { data, tells_facts, .. } = self.contention;
        let (Some(kept), Some(own)) = (self.others.kept_waiting.clone(), acquisition.own_name())
        else {
            return;
        };
        let are_there = !kept.nodes().is_empty();
        if !tells_facts || !are_there && !self.tells_of_others {
            return;
        }
        self.tells_of_others = are_there;
        let facts = self.data_of_a_wait();
        let Some(told) = with_facts_of(self.data(), facts.as_deref().unwrap_or(data)) else {
            return;
        };
        tell_own_wait(self.call.core(), path::join(&self.node, own), told, kept);
    }

    /// Whether the time of the grant differs much from that of the node's creation.
    fn has_waited_long(&self) -> bool {
        let may_have = self.waits || self.taken_over;
        let queued_at = self.queued_at.filter(|_| may_have);
        queued_at.is_some_and(|since| rt::now().saturating_duration_since(since) > LONG_WAIT)
    }

    /// Reports, once, that the call waits for others.
    fn report_waiting(&mut self, acquisition: &Acquisition) {
        if !std::mem::replace(&mut self.waits, true) {
            let Contention { node, reported_as, form, .. } = *self.contention;
            let is_retold = self.contention.tells_facts && self.others.kept_waiting.is_some();
            let foreign = acquisition.foreign_ahead().map(|name| path::join(node, name));
            self.long_wait = LongWait::begin(self.call, reported_as, form.kind, is_retold, foreign);
            self.call.core().report(|| {
                let lock = reported_as.to_owned();
                let (ahead, first) = acquisition.ahead();
                let holder = first.map(|first| path::join(node, &first));
                let thread = rt::program_thread();
                Event::Waiting { lock, ahead, holder, thread }
            });
        }
    }

    /// Waits until a watch fires, another connection makes the watches worthless, or it is time to
    /// check whether the server has dropped one.
    fn wait(&mut self, session: &Session, acquisition: &Acquisition) -> Result<Input, Stop> {
        let review = session.status().now().review();
        loop {
            let phase = session.status().now();
            if phase.ended.is_some() {
                return Ok(Input::Woken);
            }
            match self.watched.to_do(phase.connection) {
                _ if phase.review() != review
                    || self.others.is_wanted()
                    || self.worse.is_due(phase.connection) =>
                {
                    return Ok(Input::Woken);
                }
                ToDo::Wait => {}
                ToDo::Look => return Ok(Input::Woken),
                ToDo::Succeed => return Ok(Input::Succeeded),
            }
            if self.maintenance.is_due(session) {
                self.end_maintenance(session, acquisition)?;
                // What has happened meanwhile has rung the bell already.
                continue;
            }
            if self.call.alarm_rings()
                && self.long_wait.go_on(self.call, self.contention.reported_as)
            {
                self.tell_wait(acquisition);
            }
            self.call.set_alarm_by(self.maintenance.due());
            self.call.wait_for_event(phase.attached)?;
        }
    }

    /// Has the nodes that the call leaves behind deleted in the background.
    fn abandon(&self, left: &Acquisition) {
        let Some(session) = self.call.live_session() else { return };
        let reaper = self.call.core().reaper();
        reaper.sweep(&session, self.node.clone(), left.doubtful_prefixes());
        if let Some(own) = left.own_name() {
            reaper.delete(&session, path::join(&self.node, own));
        }
    }

    /// Deletes the nodes that the call leaves behind, at once if that is quick, otherwise in the
    /// background. An error means that the server has refused a deletion.
    fn withdraw(&mut self, left: &Acquisition, late: Deadline, reset: bool) -> Result<()> {
        self.watched.clear();
        let Some(session) = self.call.live_session() else { return Ok(()) };
        let reaper = self.call.core().reaper();
        reaper.sweep(&session, self.node.clone(), left.doubtful_prefixes());
        let Some(own) = left.own_name() else { return Ok(()) };
        let path = path::join(&self.node, own);
        let until = Deadline::after(DROP_LIMIT).earlier(late);
        match reaper.put_away(&session, path, until, reset.then_some(&self.node)) {
            Ok(()) | Err(Fault::ConnectionLoss) => Ok(()),
            Err(fault) => Err(WITHDRAW.refused(&fault, self.contention.node)),
        }
    }
}

/// Whether that is the successor's node, made by that session and asked for nothing.
fn stands(found: Found, session: &Session, successor: Option<&OwnNode>) -> bool {
    let is_own = |czxid| successor.is_some_and(|own| own.czxid == Some(czxid));
    found.is_some_and(|(data, stat)| {
        stat.ephemeral_owner == session.id() && is_own(stat.czxid) && !is_request(&data)
    })
}
