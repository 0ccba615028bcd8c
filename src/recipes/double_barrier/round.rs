//! Decides when the participants of a double barrier may enter, and when they may leave.

use std::collections::{BTreeMap, BTreeSet};

use crate::contend::{ContenderKind, Hold, Ticket, contenders_in_order, in_grant_order};
use crate::path;
use crate::session::{Answer, Fault, Found, Names, Session, Step, View};

/// A participant that waits for a round.
pub(super) struct Waiting {
    /// The name of its node.
    own: String,
    /// The session that owns the node.
    owner: i64,
    /// The node's data.
    data: Vec<u8>,
    /// Whether it has declared that it counts.
    declared: bool,
    /// The entries of the participants that are known to count, by their nodes' names.
    known: BTreeMap<String, Vec<u8>>,
    count: usize,
}

/// How a wait for a round ended.
pub(super) enum WaitOutcome {
    Entered(Vec<String>),
    /// The participant's node or its session is gone.
    Lost,
}

/// Whether a place is free; if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capacity {
    Room,
    Full,
    /// A participant there names this other number, and blocks all that came later.
    Odd(u32),
    /// Contenders of locks are there, which do not belong there.
    Locks,
}

/// Checks for a free place by the rule by which the engine grants one.
pub(super) fn crowd(view: &mut View<'_>, whole: &str, count: usize) -> Answer<Capacity> {
    let children = view.watch_names(whole)?.unwrap_or_default();
    let leaving = view.session.leaving(whole);
    let queue = contenders_in_order(view.session, whole, &children)?;
    let mut others: Vec<_> = queue.iter().filter_map(|name| Ticket::parse(name)).collect();
    others.retain(|ticket| leaving.iter().all(|name| name != ticket.name()));
    if others.iter().any(|ticket| ticket.kind() != ContenderKind::Permits) {
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
            owner: hold.held_node().session_id,
            data: data.to_vec(),
            declared: false,
            known: BTreeMap::new(),
            count,
        }
    }

    /// Looks for a round that names this participant, and decides one if all are there.
    pub(super) fn look(&mut self, view: &mut View<'_>, whole: &str) -> Answer<Option<WaitOutcome>> {
        let own_path = path::join(whole, &self.own);
        loop {
            // Checked before the round is read: a decided round names the node even if it is gone.
            let is_here =
                self.declare(view.session, &own_path)? && view.watch_node(&own_path)?.is_some();
            let Some((data, stat)) = view.watch_node(whole)? else {
                return Ok(Some(WaitOutcome::Lost));
            };
            let before = names(&data);
            if before.contains(&self.own) {
                return Ok(Some(WaitOutcome::Entered(before)));
            }
            if !is_here {
                return Ok(Some(WaitOutcome::Lost));
            }
            let children = view.session.names(whole, false)?.unwrap_or_default();
            let mut members = members(view.session, whole, &children, self.count);
            if members.len() < self.count {
                return Ok(None);
            }
            members.truncate(self.count);
            // The last in the order decides, as all the others were there when it came. If it goes, the
            // one that comes in its place is the last.
            if members.last() != Some(&self.own) {
                return Ok(None);
            }
            if let Some(left) = before.iter().find(|name| children.contains(name)) {
                if view.watch_node(&path::join(whole, left))?.is_some() {
                    return Ok(None);
                }
                continue;
            }
            if !self.are_complete(view, whole, &members)? {
                return Ok(None);
            }
            let checks = members.iter().map(|name| check(&path::join(whole, name), None));
            let write = Step::Write {
                path: whole.to_owned(),
                data: format!("{FORMAT}\n{}", members.join("\n")).into_bytes(),
                version: Some(stat.version),
            };
            let steps: Vec<Step> = checks.chain([write]).collect();
            match view.session.transact(&steps) {
                // Decided, by this or another participant; or one has gone. Look again.
                Ok(()) | Err(Fault::BadVersion | Fault::NoNode) => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Writes to the participant's own node, which counts from then on. Before, if the call gives
    /// up, any thread may delete the node. False if the node or its session is gone.
    fn declare(&mut self, session: &Session, own_path: &str) -> Answer<bool> {
        if session.id() != self.owner {
            return Ok(false);
        }
        if !self.declared {
            match session.write(own_path, &self.data) {
                Ok(()) => self.declared = true,
                Err(Fault::NoNode) => return Ok(false),
                Err(fault) => return Err(fault),
            }
        }
        Ok(true)
    }

    /// Whether these are all different participants, and each of them counts. If one does not, watches
    /// it. Who counts goes on counting, and is not read again.
    fn are_complete(
        &mut self,
        view: &mut View<'_>,
        whole: &str,
        members: &[String],
    ) -> Answer<bool> {
        let path = |name: &String| path::join(whole, name);
        let unknown: Vec<&String> =
            members.iter().filter(|name| !self.known.contains_key(*name)).collect();
        let paths: Vec<String> = unknown.iter().map(|name| path(name)).collect();
        for (name, found) in unknown.iter().zip(view.session.read_each(&paths)) {
            self.note(name, found?);
        }
        // Latest first: those that came last are the last to count.
        for name in unknown.into_iter().rev() {
            let is_known = self.known.contains_key(name);
            if !is_known && !self.note(name, view.watch_node(&path(name))?) {
                return Ok(false);
            }
        }
        let entries: BTreeSet<_> = members.iter().filter_map(|name| self.known.get(name)).collect();
        // A participant that has come again in a new session may be there twice, for a while.
        Ok(entries.len() == members.len())
    }

    /// Notes a participant that counts, and returns whether it does.
    fn note(&mut self, name: &str, found: Found) -> bool {
        let Some((data, _)) = found.filter(|(_, stat)| stat.version > 0) else { return false };
        self.known.insert(name.to_owned(), entry(name, data));
        true
    }
}

/// Deletes the node unless a round names it; if one does, returns that round.
pub(super) fn withdraw(session: &Session, whole: &str, own: &str) -> Answer<Option<Vec<String>>> {
    let own_path = path::join(whole, own);
    loop {
        let Some((data, stat)) = session.read(whole, false)? else { return Ok(None) };
        let round = names(&data);
        if round.iter().any(|name| name == own) {
            return Ok(Some(round));
        }
        let unchanged = check(whole, Some(stat.version));
        match session.transact(&[unchanged, Step::delete(own_path.clone())]) {
            Ok(()) | Err(Fault::NoNode) => return Ok(None),
            Err(Fault::BadVersion) => {}
            Err(fault) => return Err(fault),
        }
    }
}

/// Checks whether all participants of the round have gone.
pub(super) fn all_gone(view: &mut View<'_>, whole: &str, round: &[String]) -> Answer<Option<()>> {
    loop {
        // A new session's server may lag behind, and not show all that entered.
        view.session.sync()?;
        let children = view.session.names(whole, false)?.unwrap_or_default();
        let Some(left) = round.iter().find(|name| children.contains(name)) else {
            return Ok(Some(()));
        };
        if view.watch_node(&path::join(whole, left))?.is_some() {
            return Ok(None);
        }
    }
}

fn check(path: &str, version: Option<i32>) -> Step {
    Step::Check { path: path.to_owned(), version }
}

/// The participants among the children, in the order in which they came; without those that this
/// session has given up already.
fn members(session: &Session, whole: &str, children: &Names, count: usize) -> Vec<String> {
    let leaving = session.leaving(whole);
    let ours = in_grant_order(children.iter()).into_iter().filter(|ticket| {
        let permits = usize::try_from(ticket.permits()).unwrap_or(usize::MAX);
        let stays = leaving.iter().all(|name| name != ticket.name());
        ticket.kind() == ContenderKind::Permits && permits == count && stays
    });
    ours.map(|ticket| ticket.name().to_owned()).collect()
}

/// Identifies the call that the node belongs to: its data, or its name if an ACL hides the data.
fn entry(name: &str, data: Vec<u8>) -> Vec<u8> {
    if data.is_empty() { name.as_bytes().to_vec() } else { data }
}

/// The first line of a round's data. Versions that only add lines keep it.
const FORMAT: &str = "format 1";

/// The participants of a round. Anything else in the data is ignored.
fn names(data: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(data);
    let is_ours = |ticket: &Ticket<'_>| ticket.kind() == ContenderKind::Permits;
    let ours = text.lines().filter(|name| Ticket::parse(name).as_ref().is_some_and(is_ours));
    ours.map(str::to_owned).collect()
}
