//! Decides when the participants of a double barrier may enter, and when they may leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::contend::hold::Hold;
use crate::contend::rule::in_grant_order;
use crate::contend::ticket::{Class, Ticket};
use crate::path;
use crate::rt::AtomicBool;
use crate::session::connection::{Answer, Fault, Step};
use crate::session::session::Session;
use crate::session::watch_loop::View;

/// Who waits for a round.
#[derive(Clone)]
pub(super) struct Waiting {
    /// Its node's name.
    own: String,
    /// The session of that.
    owner: i64,
    /// What its node says.
    data: Vec<u8>,
    /// Whether it has said that it counts.
    declared: Arc<AtomicBool>,
    count: usize,
}

/// What became of a wait for a round.
pub(super) enum WaitOutcome {
    Entered(Vec<String>),
    /// The own node is gone, or its session.
    Lost,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capacity {
    Room,
    Full,
    /// One is there for another number of participants, and stands in the way of all who came later.
    Odd(u32),
    /// These do not belong there.
    Locks,
}

/// What the engine goes by when it gives a place.
pub(super) fn crowd(view: &mut View<'_>, whole: &str, count: usize) -> Answer<Capacity> {
    let children = view.list(whole)?.unwrap_or_default();
    let leaving = view.leaving(whole);
    let mut others = in_grant_order(&children);
    others.retain(|ticket| leaving.iter().all(|name| name != ticket.name()));
    if others.iter().any(|ticket| ticket.class() != Class::Permits) {
        return Ok(Capacity::Locks);
    }
    let is_odd = |ticket: &&Ticket<'_>| ticket.permits() as usize != count;
    if let Some(odd) = others.iter().find(is_odd) {
        return Ok(Capacity::Odd(odd.permits()));
    }
    let taken: usize = others.iter().map(|ticket| ticket.weight() as usize).sum();
    Ok(if taken < count { Capacity::Room } else { Capacity::Full })
}

impl Waiting {
    pub(super) fn new(hold: &Hold, data: &[u8], count: usize) -> Waiting {
        Waiting {
            own: path::last(hold.path()).to_owned(),
            owner: hold.held_node().session_id(),
            data: data.to_vec(),
            declared: Arc::default(),
            count,
        }
    }

    /// Looks whether there is a round with this participant, and decides it if all are there.
    pub(super) fn look(&self, view: &mut View<'_>, whole: &str) -> Answer<Option<WaitOutcome>> {
        let own_path = path::join(whole, &self.own);
        loop {
            // First, because a round that was decided names the node also when that is gone.
            let is_here = self.declare(view, &own_path)? && view.node(&own_path)?.is_some();
            let Some((data, stat)) = view.node(whole)? else { return Ok(Some(WaitOutcome::Lost)) };
            let before = names(&data);
            if before.contains(&self.own) {
                return Ok(Some(WaitOutcome::Entered(before)));
            }
            if !is_here {
                return Ok(Some(WaitOutcome::Lost));
            }
            let children = view.children(whole, false)?.unwrap_or_default();
            let mut members = members(view, whole, &children, self.count);
            if members.len() < self.count {
                return Ok(None);
            }
            if let Some(left) = before.iter().find(|name| children.contains(name)) {
                if view.node(&path::join(whole, left))?.is_some() {
                    return Ok(None);
                }
                continue;
            }
            members.truncate(self.count);
            // Whoever is the last to declare itself sees them all.
            if !are_complete(view, whole, &members)? {
                return Ok(None);
            }
            let checks = members.iter().map(|name| check(&path::join(whole, name), None));
            let write = Step::Write {
                path: whole.to_owned(),
                data: members.join("\n").into_bytes(),
                version: Some(stat.version),
            };
            let steps: Vec<Step> = checks.chain([write]).collect();
            match view.transact(&steps) {
                // Or another has decided, or somebody has gone.
                Ok(()) | Err(Fault::BadVersion | Fault::NoNode) => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Writes over the own node, which counts from then on: before, who gives up has it deleted by
    /// whoever gets to it. False if it is gone, or its session.
    fn declare(&self, session: &Session, own_path: &str) -> Answer<bool> {
        if session.id() != self.owner {
            return Ok(false);
        }
        if !self.declared.load(Ordering::SeqCst) {
            match session.write(own_path, &self.data) {
                Ok(()) => self.declared.store(true, Ordering::SeqCst),
                Err(Fault::NoNode) => return Ok(false),
                Err(fault) => return Err(fault),
            }
        }
        Ok(true)
    }
}

/// Deletes the node as long as no round names it; if one does, says which.
pub(super) fn withdraw(session: &Session, whole: &str, own: &str) -> Answer<Option<Vec<String>>> {
    let own_path = path::join(whole, own);
    loop {
        let Some((data, stat)) = session.read(whole, false)? else { return Ok(None) };
        let round = names(&data);
        if round.iter().any(|name| name == own) {
            return Ok(Some(round));
        }
        let unchanged = check(whole, Some(stat.version));
        match session.transact(&[unchanged, Step::Delete { path: own_path.clone() }]) {
            Ok(()) | Err(Fault::NoNode) => return Ok(None),
            Err(Fault::BadVersion) => {}
            Err(fault) => return Err(fault),
        }
    }
}

/// Looks whether all of the round have gone.
pub(super) fn all_gone(view: &mut View<'_>, whole: &str, round: &[String]) -> Answer<Option<()>> {
    loop {
        // A new session's server may not have heard of all who entered.
        view.sync()?;
        let children = view.children(whole, false)?.unwrap_or_default();
        let Some(left) = round.iter().find(|name| children.contains(name)) else {
            return Ok(Some(()));
        };
        if view.node(&path::join(whole, left))?.is_some() {
            return Ok(None);
        }
    }
}

fn check(path: &str, version: Option<i32>) -> Step {
    Step::Check { path: path.to_owned(), version }
}

/// The participants among the children, in the order in which they came; without those that this
/// session has given up already.
fn members(session: &Session, whole: &str, children: &[String], count: usize) -> Vec<String> {
    let leaving = session.leaving(whole);
    let ours = in_grant_order(children).into_iter().filter(|ticket| {
        let permits = usize::try_from(ticket.permits()).unwrap_or(usize::MAX);
        let stays = leaving.iter().all(|name| name != ticket.name());
        ticket.class() == Class::Permits && permits == count && stays
    });
    ours.map(|ticket| ticket.name().to_owned()).collect()
}

/// Whether these are as many participants, and each of them counts.
fn are_complete(session: &Session, whole: &str, members: &[String]) -> Answer<bool> {
    let mut entries = BTreeSet::new();
    // The last to come are the last to count.
    for name in members.iter().rev() {
        match session.read(&path::join(whole, name), false)? {
            Some((data, stat)) if stat.version > 0 => entries.insert(entry(name, data)),
            _ => return Ok(false),
        };
    }
    // Who has come again in a new session may be there twice, for a while.
    Ok(entries.len() == members.len())
}

/// What tells the calls apart that nodes belong to. An ACL may hide it.
fn entry(name: &str, data: Vec<u8>) -> Vec<u8> {
    if data.is_empty() { name.as_bytes().to_vec() } else { data }
}

/// The participants of a round. What else the data may say is nobody of ours.
fn names(data: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(data);
    let is_ours = |ticket: &Ticket<'_>| ticket.class() == Class::Permits;
    let ours = text.lines().filter(|name| Ticket::parse(name).as_ref().is_some_and(is_ours));
    ours.map(str::to_owned).collect()
}
