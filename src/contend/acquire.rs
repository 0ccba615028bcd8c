//! Acquires a lock: carries out on a session what the state machine in [`core`](super::core) decides,
//! within the caller's limits.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::cleanup::{CLEANUP_LIMIT, put_away};
use super::core::{
    Acquisition, Action, ConnectionNumber, Event, Inspection, Leftovers, Listing, Made, Trouble,
    Watched,
};
use super::errors::{cancelled, refusal};
use super::hold::Hold;
use super::interop_warning;
use super::rule::Rule;
use super::ticket::{Form, Guid, NodeNaming};
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::logging;
use crate::path;
use crate::rt::{self, AtomicBool, Deadline};
use crate::session::cancel::Cancel;
use crate::session::client::Client;
use crate::session::client_core::{ClientCore, Interrupted, Patience};
use crate::session::connection::{Answer, Created, Enqueued, Fault, NodeKind};
use crate::session::create_parents::make_parents;
use crate::session::notify::{Signal, Subscription, Waiter};
use crate::session::retry::Retry;
use crate::session::session::Session;
use crate::session::watch_loop::{GRACE, worth_asking};

/// What to contend for, and how to appear.
#[derive(Debug)]
pub(crate) struct Contention {
    pub(crate) client: Client,
    /// The lock node, as the client names it.
    pub(crate) node: String,
    pub(crate) data: Vec<u8>,
    pub(crate) acl: Vec<Acl>,
    pub(crate) form: Form,
    /// Whether the lock node has to be there already: it is not made, and without it there is
    /// nothing to be had.
    pub(crate) must_exist: bool,
}

/// How long to try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    pub(crate) deadline: Deadline,
    /// Whether to wait for other contenders.
    pub(crate) patient: bool,
    pub(crate) cancel: Option<&'a Cancel>,
}

/// Why a call ends, or begins anew.
enum Stop {
    GaveUp,
    Cancelled,
    Failed(Error),
    /// The session has ended; another one may do.
    SessionEnded,
}

struct Attempt<'a> {
    contention: &'a Contention,
    limits: Limits<'a>,
    /// By when requests must have their answers.
    ask_until: Deadline,
    core: &'a Arc<ClientCore>,
    /// The lock node, as the server knows it.
    node: String,
    waiter: Waiter,
    session: Option<(Arc<Session>, Subscription)>,
    watching: HashMap<String, ActiveWatch>,
    /// The connection that the watches were set on.
    watching_on: u64,
    retry: Retry,
    /// How many requests had no answer, and sessions were lost.
    losses: u32,
    /// Since when there has been no connection.
    cut_off: Option<Instant>,
    /// Whether the list of children has been looked through for those who do not respect us.
    looked_round: bool,
}

struct ActiveWatch {
    fired: Arc<AtomicBool>,
    _subscription: Subscription,
}

/// A place in the ensemble's queue that one call leaves and another may take.
pub(crate) struct PausedAcquisition {
    core: Arc<ClientCore>,
    /// The lock node, as the server knows it.
    node: String,
    session: Arc<Session>,
    queue: Acquisition,
}

impl PausedAcquisition {
    /// Nobody takes it.
    pub(crate) fn withdraw(self, limits: Limits<'_>) {
        let Some(own) = self.queue.leftovers().own else { return };
        let path = path::join(&self.node, &own);
        let until = Deadline::after(CLEANUP_LIMIT).earlier(limits.late());
        // The call has got nothing, whatever becomes of the node.
        let _ = put_away(&self.core, &self.session, path, until, None);
    }
}

impl Limits<'_> {
    /// By when all has to be over.
    fn late(&self) -> Deadline {
        let late = self.deadline.instant().and_then(|end| end.checked_add(GRACE));
        late.map_or(Deadline::NEVER, Deadline::at)
    }
}

/// Tries until there is something to give: for limits without a deadline, by which nobody gives up.
pub(crate) fn insist<T>(mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    loop {
        if let Some(got) = attempt()? {
            return Ok(got);
        }
    }
}

/// Contends until admitted; `None` when it was not to be within the limits.
pub(crate) fn acquire(contention: &Contention, limits: Limits<'_>) -> Result<Option<Hold>> {
    pursue(contention, limits, None, Some)
}

/// As `acquire`, from a place that another call has left, if there is one. When this call gives up
/// its place in turn, it goes to `pass`, which gives it back if nobody takes it.
pub(crate) fn pursue(
    contention: &Contention,
    limits: Limits<'_>,
    paused: Option<Box<PausedAcquisition>>,
    pass: impl FnOnce(Box<PausedAcquisition>) -> Option<Box<PausedAcquisition>>,
) -> Result<Option<Hold>> {
    let core = contention.client.core();
    let late = limits.late();
    let ask_until = worth_asking(limits.deadline);
    let mut attempt = Attempt {
        contention,
        limits,
        ask_until,
        core,
        node: core.whole(&contention.node),
        waiter: Waiter::new(),
        session: None,
        watching: HashMap::new(),
        watching_on: 0,
        retry: core.retry_policy(),
        losses: 0,
        cut_off: None,
        looked_round: false,
    };
    let _cancel = limits.cancel.map(|cancel| cancel.subscribe(attempt.waiter.bell()));
    let (mut queue, begin) = match paused {
        Some(paused) => {
            let PausedAcquisition { session, mut queue, .. } = *paused;
            queue.go_on(limits.patient);
            attempt.look_after(session);
            (queue, Some(Event::Woken))
        }
        None => {
            let fresh = || Guid::from_u128(rt::random());
            let (form, rule) = (contention.form, Rule::permits(contention.form.permits));
            (Acquisition::new(form, rule, limits.patient, fresh), None)
        }
    };
    let driven = catch_unwind(AssertUnwindSafe(|| attempt.drive(&mut queue, begin)));
    let driven = driven.unwrap_or_else(|panic| {
        attempt.abandon(queue.leftovers());
        resume_unwind(panic);
    });
    if matches!(driven, Ok(None) | Err(Stop::GaveUp | Stop::Cancelled))
        && queue.has_place()
        && let Some(session) = attempt.live_session()
    {
        let (core, node) = (Arc::clone(core), attempt.node.clone());
        attempt.watching.clear();
        match pass(Box::new(PausedAcquisition { core, node, session, queue })) {
            None => return attempt.left(driven),
            Some(paused) => queue = paused.queue,
        }
    }
    match driven {
        Ok(Some(hold)) => Ok(Some(hold)),
        Ok(None) => attempt.withdraw(queue.leftovers(), late, false).map(|()| None),
        Err(Stop::GaveUp) => {
            attempt.explain_giving_up();
            attempt.withdraw(queue.leftovers(), late, false).map(|()| None)
        }
        Err(Stop::Cancelled) => {
            let _ = attempt.withdraw(queue.leftovers(), Deadline::NEVER, false);
            Err(cancelled(&contention.node))
        }
        Err(Stop::Failed(error)) => {
            let exhausted = error.kind() == ErrorKind::SequenceExhausted;
            // The first error is the one to tell.
            let _ = attempt.withdraw(queue.leftovers(), late, exhausted);
            Err(if error.path().is_some() { error } else { error.on(&contention.node) })
        }
        // `drive` goes on with another session.
        Err(Stop::SessionEnded) => Ok(None),
    }
}

impl Attempt<'_> {
    /// What a call gives that has left its place to another.
    fn left(&self, driven: Result<Option<Hold>, Stop>) -> Result<Option<Hold>> {
        match driven {
            Err(Stop::Cancelled) => Err(cancelled(&self.contention.node)),
            _ => Ok(None),
        }
    }

    fn drive(
        &mut self,
        queue: &mut Acquisition,
        mut event: Option<Event>,
    ) -> Result<Option<Hold>, Stop> {
        loop {
            let (session, next) = match (self.live_session(), event.take()) {
                (Some(session), Some(event)) => (session, event),
                _ => {
                    if self.session.take().is_some() {
                        self.note_loss(ErrorKind::SessionLost, "the session was lost")?;
                    }
                    let session = self.open_session()?;
                    // Of no session is no ephemeral node.
                    let id = if session.may_adopt() { session.id() } else { 0 };
                    (session, Event::Begin { session: id })
                }
            };
            match queue.step(next) {
                Action::Hold(place) => {
                    self.until_trusted(&session)?;
                    if session.status().now().ended.is_some() {
                        continue;
                    }
                    let Contention { client, node, data, .. } = self.contention;
                    return Ok(Some(Hold::new(client, session, node, &place, data)));
                }
                Action::Yield => return Ok(None),
                Action::Fail(error) => return Err(Stop::Failed(error)),
                action => match self.perform(&session, action) {
                    Ok(done) => event = Some(done),
                    // Which the next turn finds out.
                    Err(Stop::SessionEnded) => {}
                    Err(stop) => return Err(stop),
                },
            }
        }
    }

    fn live_session(&self) -> Option<Arc<Session>> {
        let (session, _) = self.session.as_ref()?;
        session.status().now().ended.is_none().then(|| Arc::clone(session))
    }

    fn open_session(&mut self) -> Result<Arc<Session>, Stop> {
        self.watching.clear();
        self.session = None;
        let cancel = self.limits.cancel;
        let give_up = || cancel.is_some_and(Cancel::is_cancelled);
        // Long enough for an attempt to begin, which goes on for the next call.
        let until = worth_asking(self.patience()).earlier(self.ask_until);
        let opened = self.core.session(&self.waiter, until, give_up, Patience::UntilDeadline);
        match opened {
            Ok(session) => {
                self.look_after(Arc::clone(&session));
                self.cut_off = None;
                Ok(session)
            }
            Err(Interrupted::GaveUp) => Err(self.outage(ErrorKind::Connect)),
            Err(Interrupted::Failed(error)) => Err(Stop::Failed(error)),
        }
    }

    fn look_after(&mut self, session: Arc<Session>) {
        let subscription = session.status().subscribe(self.waiter.bell());
        self.session = Some((session, subscription));
    }

    /// By when there has to be a connection. An outage does not begin anew when the session ends
    /// in it.
    fn patience(&mut self) -> Deadline {
        let since = *self.cut_off.get_or_insert_with(rt::now);
        let outage = self.retry.longest_outage().and_then(|longest| since.checked_add(longest));
        outage.map_or(self.ask_until, |end| Deadline::at(end).earlier(self.ask_until))
    }

    /// There is no connection in time.
    fn outage(&self, kind: ErrorKind) -> Stop {
        match self.retry.longest_outage() {
            Some(longest) if !self.is_cancelled() && !self.ask_until.has_passed() => {
                let message = format!("there was no connection to the ensemble for {longest:?}");
                Stop::Failed(Error::new(kind, message))
            }
            _ => self.gave_up(),
        }
    }

    fn note_loss(&mut self, kind: ErrorKind, what: &str) -> Result<(), Stop> {
        self.losses = self.losses.saturating_add(1);
        if !self.retry.is_exceeded_by(self.losses) {
            return Ok(());
        }
        let message = format!("{what}; that was loss number {} of this call", self.losses);
        Err(Stop::Failed(Error::new(kind, message)))
    }

    fn gave_up(&self) -> Stop {
        if self.is_cancelled() { Stop::Cancelled } else { Stop::GaveUp }
    }

    fn is_cancelled(&self) -> bool {
        self.limits.cancel.is_some_and(Cancel::is_cancelled)
    }

    fn check(&self, until: Deadline) -> Result<(), Stop> {
        if self.is_cancelled() || until.has_passed() { Err(self.gave_up()) } else { Ok(()) }
    }

    fn perform(&mut self, session: &Arc<Session>, action: Action) -> Result<Event, Stop> {
        let on_node = self.node.clone();
        Ok(match action {
            Action::Create { prefix } => Event::Created(self.create(session, prefix)?),
            Action::MakeParents if self.contention.must_exist => return Err(Stop::GaveUp),
            Action::MakeParents => {
                let (acl, node) = (self.contention.acl.clone(), on_node);
                let kind = match self.contention.form.naming {
                    NodeNaming::Curator => NodeKind::Container,
                    NodeNaming::Kazoo => NodeKind::Persistent,
                };
                let make = move |session: &Session| make_parents(session, &node, kind, &acl);
                let made = self.ask(session, make, drop)?;
                Event::ParentsMade(self.sort(made, "create it", "CREATE on its parent"))
            }
            Action::Sync => {
                let (synced, on) = self.ask_on(session, |store| store.sync())?;
                Event::Synced(self.sort(synced, "sync", "").map(|()| on))
            }
            Action::List => {
                let leaving = session.leaving(&self.node);
                let (children, on) =
                    self.ask_on(session, move |store| store.children(&on_node, false))?;
                let children = self.sort(children, "list its children", "READ on it");
                if let Ok(Some(children)) = &children {
                    self.look_round(children);
                }
                Event::Listed(children.map(|children| Listing {
                    on,
                    children: children.unwrap_or_default(),
                    watched: false,
                    leaving,
                }))
            }
            Action::WatchChildren => self.watch_children(session)?,
            Action::Inspect { name } => {
                let path = path::join(&self.node, &name);
                let read = self.ask(session, move |store| store.read(&path, false), drop)?;
                let read = self.sort(read, "read a contender", "READ on it");
                Event::Inspected(read.map(|read| {
                    read.map(|(_, stat)| Inspection {
                        owner: stat.ephemeral_owner,
                        czxid: stat.czxid,
                    })
                }))
            }
            Action::Watch { names } => Event::Watched(self.watch(session, &names)?),
            Action::Delete { name } => {
                let path = path::join(&self.node, &name);
                let deleted = self.ask(session, move |store| store.delete(&path), drop)?;
                Event::Deleted(self.sort(deleted, "delete a contender", "DELETE on it"))
            }
            Action::Wait => {
                self.wait(session)?;
                Event::Woken
            }
            Action::Hold(_) | Action::Yield | Action::Fail(_) => Event::Woken,
        })
    }

    fn look_round(&mut self, children: &[String]) {
        if !std::mem::replace(&mut self.looked_round, true) {
            let form = self.contention.form;
            self.core.warn_once(&self.node, || interop_warning::warning(form, children));
        }
    }

    fn create(
        &mut self,
        session: &Arc<Session>,
        prefix: String,
    ) -> Result<Result<Made, Trouble>, Stop> {
        let path = path::join(&self.node, &prefix);
        let (data, acl) = (self.contention.data.clone(), self.contention.acl.clone());
        let (core, owner) = (Arc::clone(self.core), Arc::clone(session));
        let node = self.node.clone();
        let late = move |answer: Answer<Enqueued>| match answer {
            Ok(entered) => core.reaper().delete(&owner, entered.made.path),
            // It may take effect after the withdrawal has looked for it.
            Err(Fault::ConnectionLoss) if !owner.may_adopt() => {
                core.reaper().sweep(&owner, node, vec![prefix]);
            }
            Err(_) => {}
        };
        // Known to go as soon as it is known, lest another call of ours wait for it.
        let (reaper, of_session) = (self.core.reaper().clone(), Arc::downgrade(session));
        let made_late = move |made: Created| {
            if let Some(session) = of_session.upgrade() {
                reaper.delete(&session, made.path);
            }
        };
        self.until_usable(session)?;
        let leaving = session.leaving(&self.node);
        let before = session.status().now().connection;
        let entered =
            self.ask(session, move |store| store.enter(&path, &data, &acl, made_late), late)?;
        let after = session.status().now().connection;
        let entered = self.sort(entered, "create a contender under it", "CREATE on it");
        Ok(entered.map(|Enqueued { made, siblings }| {
            // As any list, it counts on one connection only.
            let siblings = siblings.filter(|_| before == after);
            if let Some(siblings) = &siblings {
                self.look_round(siblings);
            }
            let listing = |children| Listing {
                on: ConnectionNumber(after),
                children,
                watched: false,
                leaving,
            };
            Made {
                name: path::last(&made.path).to_owned(),
                czxid: made.czxid,
                listing: siblings.map(listing),
            }
        }))
    }

    /// A process that was stopped may come here after its session has run out, and before
    /// anybody has noticed.
    fn until_trusted(&self, session: &Session) -> Result<(), Stop> {
        while !session.is_trusted() && session.status().now().ended.is_none() {
            self.check(self.ask_until)?;
            self.waiter.wait(self.ask_until);
        }
        Ok(())
    }

    fn until_usable(&mut self, session: &Session) -> Result<(), Stop> {
        loop {
            self.check(self.ask_until)?;
            let phase = session.status().now();
            if phase.ended.is_some() {
                return Err(Stop::SessionEnded);
            }
            if phase.attached {
                self.cut_off = None;
                return Ok(());
            }
            let until = self.patience();
            if until.has_passed() {
                return Err(self.outage(ErrorKind::ConnectionLoss));
            }
            self.waiter.wait(until);
        }
    }

    fn ask<T: Send + 'static>(
        &mut self,
        session: &Arc<Session>,
        job: impl FnOnce(&Session) -> Answer<T> + Send + 'static,
        late: impl FnOnce(Answer<T>) + Send + 'static,
    ) -> Result<Answer<T>, Stop> {
        self.until_usable(session)?;
        let answer = session.ask(self.ask_until, self.limits.cancel, job, late);
        match answer.map_err(Stop::Failed)?.ok_or_else(|| self.gave_up())? {
            Err(Fault::SessionEnded) => Err(Stop::SessionEnded),
            Err(Fault::ConnectionLoss) => {
                self.note_loss(ErrorKind::ConnectionLoss, "the connection was lost")?;
                Ok(Err(Fault::ConnectionLoss))
            }
            answer => Ok(answer),
        }
    }

    /// As `ask`, for answers that count only on the connection they were asked on.
    fn ask_on<T: Send + 'static>(
        &mut self,
        session: &Arc<Session>,
        job: impl FnOnce(&Session) -> Answer<T> + Send + 'static,
    ) -> Result<(Answer<T>, ConnectionNumber), Stop> {
        self.until_usable(session)?;
        let before = session.status().now().connection;
        let answer = self.ask(session, job, drop)?;
        let after = session.status().now().connection;
        let answer = if before == after { answer } else { Err(Fault::ConnectionLoss) };
        Ok((answer, ConnectionNumber(after)))
    }

    /// Sorts answers into those that trying again may mend, and errors that say what was
    /// tried and what it needs.
    fn sort<T>(&self, answer: Answer<T>, tried: &str, needs: &str) -> Result<T, Trouble> {
        answer.map_err(|fault| match fault {
            Fault::ConnectionLoss => Trouble::Unanswered,
            Fault::NoNode => Trouble::NoNode,
            fault => Trouble::Refused(refusal(&fault, tried, needs, &self.contention.node)),
        })
    }

    /// Forgets watches that are of no use any more, and says which connection counts.
    fn keep_watches(&mut self, session: &Session, wanted: impl Fn(&str) -> bool) {
        let connection = session.status().now().connection;
        if connection != self.watching_on {
            self.watching.clear();
            self.watching_on = connection;
        }
        self.watching
            .retain(|name, watching| wanted(name) && !watching.fired.load(Ordering::SeqCst));
    }

    fn subscribe(&mut self, session: &Session, name: &str, path: &str) {
        let (fired, bell) = (Arc::new(AtomicBool::new(false)), self.waiter.bell());
        let flag = Arc::clone(&fired);
        let signal: Signal = Arc::new(move || {
            flag.store(true, Ordering::SeqCst);
            bell();
        });
        let _subscription = session.watches().subscribe(path, signal);
        self.watching.insert(name.to_owned(), ActiveWatch { fired, _subscription });
    }

    fn watch(
        &mut self,
        session: &Arc<Session>,
        names: &[String],
    ) -> Result<Result<Watched, Trouble>, Stop> {
        self.keep_watches(session, |name| names.iter().any(|wanted| wanted == name));
        for name in names {
            if self.watching.contains_key(name) {
                continue;
            }
            let path = path::join(&self.node, name);
            self.subscribe(session, name, &path);
            let read = self.ask(session, move |store| store.read(&path, true), drop)?;
            if read == Err(Fault::NoAuth) {
                self.watching.remove(name);
                return Ok(Ok(Watched::Hidden));
            }
            match self.sort(read, "watch a contender", "READ on it") {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.watching.remove(name);
                    return Ok(Ok(Watched::Gone));
                }
                Err(trouble) => {
                    self.watching.remove(name);
                    return Ok(Err(trouble));
                }
            }
        }
        if session.status().now().connection != self.watching_on {
            return Ok(Err(Trouble::Unanswered));
        }
        Ok(Ok(Watched::All))
    }

    fn watch_children(&mut self, session: &Arc<Session>) -> Result<Event, Stop> {
        const CHILDREN: &str = "";
        self.keep_watches(session, |_| false);
        let (node, leaving) = (self.node.clone(), session.leaving(&self.node));
        self.subscribe(session, CHILDREN, &node);
        let (children, on) = self.ask_on(session, move |store| store.children(&node, true))?;
        let children = self.sort(children, "watch its children", "READ on it");
        if !matches!(&children, Ok(Some(_))) || on.0 != self.watching_on {
            self.watching.clear();
        }
        let watched = self.watching.contains_key(CHILDREN);
        Ok(Event::Listed(children.map(|children| Listing {
            on,
            children: children.unwrap_or_default(),
            watched,
            leaving,
        })))
    }

    /// Until a watch fires or another connection makes the watches worthless; or until it is
    /// time to see whether one was forgotten.
    fn wait(&mut self, session: &Session) -> Result<(), Stop> {
        let review = session.status().now().review();
        loop {
            let phase = session.status().now();
            if phase.ended.is_some() {
                return Err(Stop::SessionEnded);
            }
            let fired = self.watching.values().any(|one| one.fired.load(Ordering::SeqCst));
            let changed = phase.connection != self.watching_on || phase.review() != review;
            if fired || changed {
                return Ok(());
            }
            self.check(self.limits.deadline)?;
            if !phase.attached && self.retry.longest_outage().is_some() {
                self.until_usable(session)?;
            } else {
                self.waiter.wait(self.limits.deadline);
            }
        }
    }

    fn explain_giving_up(&self) {
        let phase = self.session.as_ref().map(|(session, _)| session.status().now());
        if !phase.is_some_and(|phase| phase.is_usable()) {
            logging::warning!(
                target: "zklock::contend",
                "{:?}: timed out, no connection to the ensemble",
                self.contention.node
            );
        }
    }

    /// Has what the call leaves deleted in the background.
    fn abandon(&self, left: Leftovers) {
        let Some(session) = self.live_session() else { return };
        let reaper = self.core.reaper();
        reaper.sweep(&session, self.node.clone(), left.doubtful);
        if let Some(own) = left.own {
            reaper.delete(&session, path::join(&self.node, &own));
        }
    }

    /// Deletes what the call leaves, at once if that is quickly done, else in the
    /// background. An error says that the server will not have it deleted.
    fn withdraw(&mut self, left: Leftovers, late: Deadline, reset: bool) -> Result<()> {
        self.watching.clear();
        let Some(session) = self.live_session() else { return Ok(()) };
        self.core.reaper().sweep(&session, self.node.clone(), left.doubtful);
        let Some(own) = left.own else { return Ok(()) };
        let path = path::join(&self.node, &own);
        let until = Deadline::after(CLEANUP_LIMIT).earlier(late);
        let node = reset.then(|| self.node.clone());
        match put_away(self.core, &session, path, until, node) {
            Ok(()) | Err(Fault::ConnectionLoss) => Ok(()),
            Err(fault) => {
                let needs = "DELETE on the lock node";
                Err(refusal(&fault, "delete the contender", needs, &self.contention.node))
            }
        }
    }
}
