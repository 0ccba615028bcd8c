//! Holds a lock for maintenance: makes a contender's node that belongs to no session, waits until it is the
//! first, moves its end, and deletes it.
//!
//! The node is the same from the beginning to the end. Until it is the first, it says that the hold is asked
//! for, and is written anew every ten seconds: waiters delete it when that has not happened for thirty.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::contend::acquire::{Contention, HoldAhead, MaintenanceAhead};
use crate::contend::hold::DROP_LIMIT;
use crate::contend::name::{
    EnsembleClock, MaintenanceEnd, MaintenanceHold, NodeNaming, Ticket, asked_for,
    contenders_in_order, fitting, held, is_held,
};
use crate::contend::observe::{Contender, delete_contender};
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::rt::{self, Deadline};
use crate::session::{
    Answer, Call, Client, Fault, Purpose, Session, StillMeant, Stop, View, Wait, WatchLoop,
    cancelled, make_below,
};
use crate::wire_values::Stat;

/// How often a hold that is asked for is written anew.
const RENEWED_EVERY: Duration = Duration::from_secs(10);

/// The lock node is made so often if it is gone each time.
const MOST_MADE: usize = 20;

/// The longest text of a reason, in bytes.
const LONGEST_REASON: usize = 1_000;

const HOLD: Purpose = Purpose::to_change(
    "hold the lock for maintenance",
    "CREATE, READ and DELETE on the lock node, and READ and WRITE on its contenders",
);
const CHANGE: Purpose =
    Purpose::to_change("move the end of the hold", "READ and WRITE on its node");
const RELEASE: Purpose = Purpose::to_change("release the hold", "DELETE on the lock node");

/// Why a lock is held, and until when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) reason: &'a str,
    pub(crate) end: MaintenanceEnd,
}

/// Holds the lock as soon as no contender is ahead; `None` if others are still ahead when the time, or that
/// of the hold, is over.
pub(crate) fn hold_for_maintenance(
    contention: &Contention<'_>,
    terms: Terms<'_>,
    wait: &Wait,
) -> Result<Option<Contender>> {
    check(terms, contention.node)?;
    let mut maker = Maker::new(contention, terms, wait);
    match maker.make().and_then(|()| maker.come_first()) {
        Ok(Some(since)) => match maker.begin(Some(since)) {
            Ok(hold) => Ok(Some(hold.at(0, true))),
            Err(stop) => Err(maker.withdraw(stop)),
        },
        Ok(None) => maker.give_up(None),
        Err(stop) => maker.give_up(Some(stop)),
    }
}

/// Makes a hold for which nobody waits, from when it is the first.
pub(crate) fn queue_maintenance(
    contention: &Contention<'_>,
    terms: Terms<'_>,
) -> Result<Contender> {
    check(terms, contention.node)?;
    let wait = contention.client.core().connect_timeout().into();
    let mut maker = Maker::new(contention, terms, &wait);
    match maker.make().and_then(|()| maker.begin(None)) {
        Ok(hold) => Ok(hold),
        Err(stop) => Err(maker.withdraw(stop)),
    }
}

/// Moves the end of a hold that is held or queued; false if it is not there any more.
pub(crate) fn change_maintenance(
    client: &Client,
    lock_node: &str,
    hold: &Contender,
    end: MaintenanceEnd,
) -> Result<bool> {
    check_end(end, lock_node)?;
    check_is_hold(lock_node, hold)?;
    let path = client.core().whole(&hold.path);
    let changed = CHANGE.ask(client.core(), lock_node, |session| {
        loop {
            let Some((data, stat)) = session.read(&path, false)? else { return Ok(Some(false)) };
            if MaintenanceHold::read(&data, None).is_asked_for {
                return Ok(None);
            }
            match session.write_version(&path, &held(data, None, end), Some(stat.version)) {
                Ok(_) => return Ok(Some(true)),
                Err(Fault::NoNode) => return Ok(Some(false)),
                Err(Fault::BadVersion) => {}
                Err(fault) => return Err(fault),
            }
        }
    })?;
    changed.ok_or_else(|| {
        let message = format!("{:?} is not held yet: whoever asked for it waits", hold.path);
        Error::new(ErrorKind::InvalidArgument, message).on(lock_node)
    })
}

/// Deletes a hold; false if it is not there any more.
pub(crate) fn release_maintenance(
    client: &Client,
    lock_node: &str,
    hold: &Contender,
) -> Result<bool> {
    check_is_hold(lock_node, hold)?;
    let path = client.core().whole(&hold.path);
    delete_contender(RELEASE, client, lock_node, &path)
}

fn check_is_hold(lock_node: &str, hold: &Contender) -> Result<()> {
    if path::parent(&hold.path) == lock_node && hold.maintenance().is_some() {
        return Ok(());
    }
    let message = format!("{:?} is not a maintenance hold of this lock", hold.path);
    Err(Error::new(ErrorKind::InvalidArgument, message).on(lock_node))
}

fn check(terms: Terms<'_>, lock_node: &str) -> Result<()> {
    let Terms { reason, end } = terms;
    if reason.is_empty() || reason.len() > LONGEST_REASON || reason.contains(char::is_control) {
        let message = format!(
            "the reason of a maintenance hold is a text of 1 to {LONGEST_REASON} bytes without control characters"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message).on(lock_node));
    }
    check_end(end, lock_node)
}

fn check_end(end: MaintenanceEnd, lock_node: &str) -> Result<()> {
    match end {
        MaintenanceEnd::After(after) if after.as_millis() == 0 => {
            let message = "a maintenance hold lasts for at least a millisecond";
            Err(Error::new(ErrorKind::InvalidArgument, message).on(lock_node))
        }
        _ => Ok(()),
    }
}

/// Makes one hold.
struct Maker<'a> {
    contention: &'a Contention<'a>,
    terms: Terms<'a>,
    /// They stand in the names of its nodes, one for each attempt, so that these are found after a lost
    /// reply.
    guids: Vec<Uuid>,
    /// As long as it lasts, nodes that it may have made are its own.
    meant: StillMeant,
    /// The lock node, as the server knows it.
    lock_node: String,
    watch_loop: WatchLoop,
    /// The name of its node, once that is known.
    name: Option<String>,
    clock: Option<EnsembleClock>,
    /// The version of its data that it knows: what others have written since then counts.
    version: i32,
    renewal: Option<Instant>,
    ahead: MaintenanceAhead,
    has_seen_others: bool,
    /// Whether it was asked to be held: then it does not end by itself any more.
    may_be_held: bool,
}

/// What a look at the contenders shows.
enum Place {
    First,
    /// Others are ahead, and these maintenance holds among them.
    Behind(Vec<HoldAhead>),
    /// The node has been deleted.
    Gone,
}

impl<'a> Maker<'a> {
    fn new(contention: &'a Contention<'a>, terms: Terms<'a>, wait: &Wait) -> Maker<'a> {
        let core = contention.client.core();
        Maker {
            contention,
            terms,
            guids: Vec::new(),
            meant: StillMeant::default(),
            lock_node: core.whole(contention.node),
            watch_loop: WatchLoop::new(Call::new(core, wait)),
            name: None,
            clock: None,
            version: 0,
            renewal: None,
            ahead: MaintenanceAhead::default(),
            has_seen_others: false,
            may_be_held: false,
        }
    }

    fn path(&self) -> String {
        path::join(&self.lock_node, self.name.as_deref().unwrap_or_default())
    }

    fn data(&self) -> Vec<u8> {
        let made_by = String::from_utf8_lossy(&self.contention.data);
        asked_for(self.terms.reason, made_by.lines().next().unwrap_or_default())
    }

    /// Makes its node, which says that the hold is asked for.
    fn make(&mut self) -> Result<(), Stop> {
        let data = self.data();
        let Maker { guids, meant, lock_node, .. } = self;
        let contention = self.contention;
        let made = self.watch_loop.call.insist(|session| {
            if !guids.is_empty() {
                session.sync()?;
            }
            let children = session.names(lock_node, false)?.unwrap_or_default();
            let is_own = |one: &Ticket<'_>| one.has_any_guid(guids);
            let path = match children.iter().filter_map(Ticket::parse).find(is_own) {
                Some(own) => {
                    let path = path::join(lock_node, own.name());
                    session.owned().settle_doubt(&path, None);
                    path
                }
                None => {
                    // A fresh one each time, as an earlier create may still be carried out.
                    let guid = Uuid::from_u128(rt::random());
                    guids.push(guid);
                    let form = fitting(contention.form, &children);
                    let prefix = form.maintenance_prefix(guid);
                    let path = path::join(lock_node, &prefix);
                    create(session, contention, &path, &data, meant)?
                }
            };
            Ok((session.exists(&path, false)?, path))
        })?;
        let (stat, path) = made.map_err(|fault| HOLD.refused(&fault, self.contention.node))?;
        self.name = Some(path::last(&path).to_owned());
        let stat = stat.ok_or_else(|| self.gone())?;
        self.note_written(&stat);
        match Ticket::parse(path::last(&path)) {
            Some(ticket) if !ticket.exhausted() => Ok(()),
            _ => Err(Error::new(
                ErrorKind::SequenceExhausted,
                "the lock node's sequence numbers are used up",
            )
            .on(self.contention.node)
            .into()),
        }
    }

    fn note_written(&mut self, stat: &Stat) {
        let now = rt::now();
        self.clock = Some(EnsembleClock::new(stat.mtime, now));
        self.version = stat.version;
        self.renewal = now.checked_add(RENEWED_EVERY);
    }

    /// Waits until no contender is ahead, and returns since when, by the ensemble's clock; `None` if the
    /// hold's own time is over before.
    fn come_first(&mut self) -> Result<Option<i64>, Stop> {
        loop {
            let session = self.watch_loop.call.session()?;
            match self.look(&session)? {
                Ok(_) if self.has_seen_others && self.is_too_late() => return Ok(None),
                Ok(Place::First) => return Ok(self.clock.map(EnsembleClock::now)),
                Ok(Place::Behind(_)) => self.until_changed(&session)?,
                Ok(Place::Gone) => return Err(self.gone().into()),
                Err(fault) if fault.is_loss() => {}
                Err(fault) => return Err(HOLD.refused(&fault, self.contention.node).into()),
            }
        }
    }

    fn is_too_late(&self) -> bool {
        match (self.terms.end, self.clock) {
            (MaintenanceEnd::At(time), Some(clock)) => clock.is_after(time),
            _ => false,
        }
    }

    fn until_changed(&self, session: &Arc<Session>) -> Result<(), Stop> {
        let call = &self.watch_loop.call;
        let at = |due: Option<Instant>| due.map_or(Deadline::NEVER, Deadline::at);
        let ends = match (self.terms.end, self.clock) {
            (MaintenanceEnd::At(time), Some(clock)) => {
                rt::now().checked_add(clock.until_after(time))
            }
            _ => None,
        };
        let due = [self.renewal, self.ahead.due(), ends];
        let until = due.into_iter().map(at).fold(call.until(), Deadline::earlier);
        call.has_come(until, || {
            self.ahead.is_due(session) || !self.watch_loop.is_up_to_date(session)
        });
        call.check()
    }

    /// Looks who is ahead, watches the last of them, and does what is due meanwhile.
    fn look(&mut self, session: &Arc<Session>) -> Result<Answer<Place>, Stop> {
        let (path, data) = (self.path(), self.data());
        let Some(own) = self.name.clone() else { return Ok(Ok(Place::Gone)) };
        let is_due = self.renewal.is_some_and(|due| rt::now() >= due);
        let bell = self.watch_loop.call.bell();
        let Maker { lock_node, ahead, clock, version, .. } = self;
        let mut written = None;
        let looked = self.watch_loop.look(session, |view| {
            if is_due {
                match write_from(view.session, &path, &data, *version) {
                    Ok(stat) => written = Some(stat),
                    Err(Fault::NoNode) => return Ok(Place::Gone),
                    Err(fault) => return Err(fault),
                }
            }
            loop {
                let place = place(view, lock_node, &own)?;
                let (Place::Behind(holds), Some(clock)) = (&place, *clock) else {
                    return Ok(place);
                };
                if !ahead.look(view.session, lock_node, holds, clock, Some(&bell))? {
                    return Ok(place);
                }
            }
        })?;
        if let Some(written) = written {
            self.note_written(&written);
        }
        self.has_seen_others |= matches!(looked, Ok(Place::Behind(_)));
        Ok(looked)
    }

    /// Writes that the lock is held since then, or queued, and until when.
    fn begin(&mut self, since: Option<i64>) -> Result<Contender, Stop> {
        if self.is_too_late() {
            let message = "the end of the maintenance hold has passed, by the ensemble's clock";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err(error.on(self.contention.node).into());
        }
        let (path, end) = (self.path(), self.terms.end);
        let data = held(self.data(), since, end);
        let Contention { node, .. } = self.contention;
        self.may_be_held = true;
        let mut version = self.version;
        let begun = self.watch_loop.call.insist(|session| {
            loop {
                match session.write_version(&path, &data, Some(version)) {
                    Ok(_) | Err(Fault::BadVersion) => {}
                    Err(fault) => return Err(fault),
                }
                match session.read(&path, false)? {
                    // Written earlier, without an answer; its end may have been moved since.
                    Some(found) if is_held(&found.0) => return Ok(Some(found)),
                    Some((_, stat)) => version = stat.version,
                    None => return Ok(None),
                }
            }
        })?;
        let found = match begun {
            Ok(found) => found,
            Err(Fault::NoNode) => None,
            Err(fault) => return Err(HOLD.refused(&fault, node).into()),
        };
        let ticket = self.name.as_deref().and_then(Ticket::parse);
        let made = found
            .zip(ticket)
            .map(|((data, stat), ticket)| Contender::new(node, &ticket, data, &stat));
        made.ok_or_else(|| self.gone().into())
    }

    /// Deletes what it has made, of a call that ends like this, or because it is too late.
    fn give_up(self, stop: Option<Stop>) -> Result<Option<Contender>> {
        let is_over = matches!(stop, None | Some(Stop::TimeOver)) && self.has_seen_others;
        let error = self.withdraw(stop.unwrap_or(Stop::TimeOver));
        if is_over { Ok(None) } else { Err(error) }
    }

    /// The error of a call that ends like this. What it has made is deleted, or ends by itself; otherwise the
    /// error says that the lock may be held.
    fn withdraw(self, stop: Stop) -> Error {
        let Contention { client, node, .. } = self.contention;
        let call = &self.watch_loop.call;
        let error = match stop {
            Stop::Cancelled => cancelled(node),
            stop => HOLD.stopped(stop, call, node),
        };
        if !self.may_be_held {
            return if self.delete_soon() { error } else { error.in_doubt() };
        }
        let deleted = HOLD.ask(client.core(), node, |session| self.delete_own(session));
        let Err(why) = deleted else { return error };
        let path = client.core().shown(&self.path()).to_owned();
        let message = format!(
            "the lock may be held for maintenance by {path:?}, which could not be deleted again: {why}"
        );
        let in_doubt = Error::new(ErrorKind::ConnectionLoss, message).in_doubt();
        Error::gather([in_doubt.clone(), error]).unwrap_or(in_doubt)
    }

    /// Deletes its node if that is quick, otherwise in the background: what is asked for ends by itself, too.
    /// Returns whether it is gone.
    fn delete_soon(&self) -> bool {
        let Some(session) = self.watch_loop.call.live_session() else { return false };
        let until = Deadline::after(DROP_LIMIT);
        let deleted = session.ask(&until.into(), |session| self.delete_own(session));
        let is_gone = matches!(deleted, Some(Ok(())));
        if !is_gone {
            let namings = [NodeNaming::Curator, NodeNaming::Kazoo];
            let markers =
                self.guids.iter().flat_map(|guid| namings.map(|naming| naming.front(*guid)));
            let reaper = self.contention.client.core().reaper();
            reaper.sweep(&session, self.lock_node.clone(), markers.collect());
        }
        is_gone
    }

    /// Deletes its node, which may have been made though its name is not known.
    fn delete_own(&self, session: &Session) -> Answer<()> {
        session.sync()?;
        let children = session.names(&self.lock_node, false)?.unwrap_or_default();
        let is_own = |one: &Ticket<'_>| one.has_any_guid(&self.guids);
        for own in children.iter().filter_map(Ticket::parse).filter(is_own) {
            match session.delete(&path::join(&self.lock_node, own.name())) {
                Ok(()) | Err(Fault::NoNode) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    fn gone(&self) -> Error {
        let message = "the maintenance hold was released by another client, or its maker was not heard of for too long";
        Error::new(ErrorKind::NodeDeleted, message).on(self.contention.node)
    }
}

fn create(
    session: &Session,
    contention: &Contention<'_>,
    path: &str,
    data: &[u8],
    meant: &StillMeant,
) -> Answer<String> {
    let (acl, kind) = (contention.acl, contention.lock_node_kind());
    for _ in 0..MOST_MADE {
        let create = || session.create_lasting(path, data, acl, meant);
        match make_below(session, path::parent(path), kind, acl, create) {
            // Another call may delete the lock node again before it is used.
            Err(Fault::NoNode) => {}
            made => return made.map(|made| made.path),
        }
    }
    Err(Fault::NoNode)
}

/// Writes to the node, of which this version is known: not if that is a request from before the present one
/// was written.
fn write_from(session: &Session, path: &str, data: &[u8], mut version: i32) -> Answer<Stat> {
    loop {
        match session.write_version(path, data, Some(version)) {
            Err(Fault::BadVersion) => {
                version = session.exists(path, false)?.ok_or(Fault::NoNode)?.version;
            }
            written => return written,
        }
    }
}

/// Looks who is ahead of this node, and watches the last one of them.
fn place(view: &mut View<'_>, lock_node: &str, own: &str) -> Answer<Place> {
    let mut is_certain = false;
    loop {
        let children = view.session.names(lock_node, false)?.unwrap_or_default();
        let queue = contenders_in_order(view.session, lock_node, &children)?;
        let contenders: Vec<_> = queue.iter().filter_map(|name| Ticket::parse(name)).collect();
        let Some(at) = contenders.iter().position(|one| one.name() == own) else {
            // A server that lags behind may not know the node yet.
            if std::mem::replace(&mut is_certain, true) {
                return Ok(Place::Gone);
            }
            view.session.sync()?;
            continue;
        };
        let Some(last) = at.checked_sub(1).and_then(|before| contenders.get(before)) else {
            return Ok(Place::First);
        };
        let holds = HoldAhead::among(&contenders[..at]);
        match view.watch_node(&path::join(lock_node, last.name())) {
            Ok(Some(_)) => return Ok(Place::Behind(holds)),
            Ok(None) => {}
            // A watch on it would report nothing.
            Err(Fault::NoAuth) => {
                view.watch_names(lock_node)?;
                return Ok(Place::Behind(holds));
            }
            Err(fault) => return Err(fault),
        }
    }
}
