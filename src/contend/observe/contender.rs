//! Lists the contenders of a lock.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use crate::contend::name::{
    ContenderKind, Facts, MaintenanceHold, Ticket, children_made, contenders_in_order,
    count_holders, facts, held_since, in_grant_order, in_grant_order_by, is_request,
    those_who_may_hold_too,
};
use crate::error::Result;
use crate::path;
use crate::session::{Answer, Client, Fault, Found, Purpose, Session};
use crate::session_id::SessionId;
use crate::wire_values::Stat;

/// The owner of a node whose stat an ACL hides. No session has this id.
pub(crate) const HIDDEN: i64 = -1;

/// A contender, which holds a lock or waits for it: see
/// [`LockNode::contenders`](crate::LockNode::contenders).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contender {
    /// The path of its node.
    pub path: String,
    /// Its sequence number, which decides the order of grants.
    pub sequence: i32,
    /// What kind of lock it holds or waits for.
    pub kind: ContenderKind,
    /// How many of a semaphore's permits it takes; 1 for other locks.
    pub weight: u32,
    /// How many permits its semaphore has, as its node's name says; 1 for other locks.
    pub permits: u32,
    /// The data of its node: by default host, process, program and thread, and a second line of facts for
    /// [`held_since`](Contender::held_since) and [`Client::waits`](crate::Client::waits).
    ///
    /// Empty if an ACL hides it, and until a holder that was asked to release has written it back.
    pub data: Vec<u8>,
    /// The host that it runs on. This and the next three are `None` unless its data are the
    /// default.
    pub host: Option<String>,
    /// The id of its process on the host.
    pub process: Option<u32>,
    /// The file name of its program.
    pub program: Option<String>,
    /// The name of the thread that created its node.
    pub thread: Option<String>,
    /// The id of the session that owns its node; `None` if the node is not ephemeral, or if an ACL
    /// hides it.
    pub session: Option<SessionId>,
    /// When its node was created, by the ensemble's clock; `None` if an ACL hides that. Since
    /// ZooKeeper 3.7.3, 3.8.4 and 3.9.2, an ACL that hides the data does.
    pub since: Option<SystemTime>,
    /// Its place in the order of the lock, from 0 for the first.
    pub position: usize,
    /// Whether it holds the lock, rather than waits for it.
    pub holds: bool,
    told: Told,
}

/// What its data tell, and when they were written. All of these are equal: a contender that tells more
/// than before is still the same.
#[derive(Clone)]
struct Told {
    /// The transaction that made its node, if that is known.
    made_by: Option<i64>,
    may_hold_too: bool,
    written: Option<SystemTime>,
    facts: Option<Facts>,
}

impl PartialEq for Told {
    fn eq(&self, _: &Told) -> bool {
        true
    }
}

impl Eq for Told {}

impl Contender {
    pub(crate) fn new(node: &str, ticket: &Ticket<'_>, data: Vec<u8>, stat: &Stat) -> Contender {
        // A request to release the lock is not what it says about itself.
        let data = if is_request(&data) { Vec::new() } else { data };
        let text = std::str::from_utf8(&data).ok().and_then(|text| text.lines().next());
        let default = text.filter(|line| line.starts_with("host="));
        let part = |name: &str, next: &str| between(default?, name, next);
        Contender {
            path: path::join(node, ticket.name()),
            sequence: ticket.sequence(),
            kind: ticket.kind(),
            weight: ticket.weight(),
            host: part("host=", " pid=").map(str::to_owned),
            process: part(" pid=", " program=").and_then(|id| id.parse().ok()),
            program: part(" program=", " thread=").map(str::to_owned),
            thread: part(" thread=", "").map(str::to_owned),
            told: Told {
                may_hold_too: false,
                made_by: (stat.ephemeral_owner != HIDDEN).then_some(stat.czxid),
                written: at(stat, stat.mtime),
                facts: facts(&data),
            },
            data,
            session: SessionId::of_owner(stat.ephemeral_owner),
            since: created_at(stat),
            position: 0,
            holds: false,
            permits: ticket.permits(),
        }
    }

    /// The same, at this place in the order.
    pub(crate) fn at(self, position: usize, holds: bool) -> Contender {
        Contender { position, holds, ..self }
    }

    /// The same, read some time ago: if it told nothing of when its wait ended, it may tell it now.
    pub(super) fn remembered(&self) -> Contender {
        let mut one = self.clone();
        one.told.facts = one.told.facts.filter(|facts| facts.held_for.is_some());
        one
    }

    /// What its data tell; `None` if they are the program's own, or another library's.
    pub(super) fn facts(&self) -> Option<&Facts> {
        self.told.facts.as_ref()
    }

    /// When they were written.
    pub(super) fn written(&self) -> Option<SystemTime> {
        self.told.written
    }

    /// A contender of which an ACL hides everything except for the name.
    fn hidden(node: &str, ticket: &Ticket<'_>) -> Contender {
        let stat = Stat { ephemeral_owner: HIDDEN, ..Stat::default() };
        Contender::new(node, ticket, Vec::new(), &stat)
    }

    /// Reads a contender from its node, if that is there.
    pub(crate) fn read(
        session: &Session,
        whole: &str,
        node: &str,
        ticket: &Ticket<'_>,
    ) -> Answer<Option<Contender>> {
        let read = session.read(&path::join(whole, ticket.name()), false);
        Contender::seen(node, ticket, read)
    }

    pub(super) fn seen(
        node: &str,
        ticket: &Ticket<'_>,
        read: Answer<Found>,
    ) -> Answer<Option<Contender>> {
        match read {
            Err(Fault::NoAuth) => Ok(Some(Contender::hidden(node, ticket))),
            read => Ok(read?.map(|(data, stat)| Contender::new(node, ticket, data, &stat))),
        }
    }

    /// Whether it contends, if its name does not tell.
    pub(super) fn contends(&self, ticket: &Ticket<'_>) -> bool {
        let is_hidden = self.told.made_by.is_none();
        ticket.is_certain() || self.session.is_some() || is_hidden
    }

    /// Returns whether it may hold the lock as well, though others hold it: by its node's name its program
    /// waits for none of those ahead, as its documentation has it or as it was seen to do.
    ///
    /// Such as kazoo's behind a holder with the default [naming](crate::NodeNaming), unless kazoo's locks are
    /// made with the `extra_lock_patterns` that the names do not show. Known only of lists of [all
    /// contenders](crate::LockNode::contenders), of one lock or [below a path](crate::Client::waits).
    pub fn may_hold_too(&self) -> bool {
        self.told.may_hold_too
    }

    /// Returns whether its node's name is to the letter that of a [recipe that is known](ContenderKind): then
    /// it contends whether or not it belongs to a session, and is waited for whatever
    /// [`foreign_contenders`](crate::ClientBuilder::foreign_contenders) says.
    ///
    /// Others contend only while their session lives.
    pub fn is_of_a_known_recipe(&self) -> bool {
        Ticket::parse(path::last(&self.path)).is_some_and(|ticket| ticket.is_certain())
    }

    /// Returns what its node's name says of its recipe, such as `lock`, `latch` or `LOCK-SHARED`.
    ///
    /// For people: what stands in the name besides a guid and the sequence number.
    pub fn recipe(&self) -> &str {
        Ticket::parse(path::last(&self.path)).map_or("", |ticket| ticket.recipe())
    }

    /// Returns how long ago its node was created; `None` if an ACL hides that.
    ///
    /// As exact as this machine's and the ensemble's clocks agree, and never negative.
    pub fn age(&self) -> Option<Duration> {
        self.since.map(|since| since.elapsed().unwrap_or_default())
    }

    /// Returns since when it has held the lock, by the ensemble's clock.
    ///
    /// This is when its node was created, unless it had waited for more than a second: then it tells
    /// when its wait ended, a second later, but not more than twenty holders of a client in a second,
    /// and none whose ACL denies it READ or WRITE on its node. Until it has told that, the time is
    /// too early.
    ///
    /// For threads that hand the lock on to each other, the first of them counts, and a [kept] lock is
    /// held. For a downgraded reader this is the time of the downgrade; for a maintenance hold that was
    /// [queued](crate::LockNode::queue_for_maintenance), when that was done. `None` if it waits; if its
    /// data are the program's own, an election's or of another library; and if an observer or a
    /// [refreshed](crate::LockList::refresh) list read it before it could tell.
    ///
    /// [kept]: crate::DistributedLock::keep_for
    pub fn held_since(&self) -> Option<SystemTime> {
        if self.is_maintenance() {
            return held_since(&self.data).or(self.since).filter(|_| self.holds);
        }
        let held_for = self.facts().filter(|_| self.holds)?.held_for;
        let told = held_for.and_then(|held_for| self.told.written?.checked_sub(held_for));
        // Not before there was a node, whatever it tells.
        told.max(self.since)
    }

    /// Returns why and until when the lock is held for maintenance, if that is what this contender is: see
    /// [`LockNode::hold_for_maintenance`](crate::LockNode::hold_for_maintenance).
    ///
    /// Its node's name says what it is. If an ACL hides its data, or they were overwritten, the rest is not
    /// known.
    pub fn maintenance(&self) -> Option<MaintenanceHold> {
        self.is_maintenance().then(|| MaintenanceHold::read(&self.data, self.told.written))
    }

    /// Returns how many later ones may come before it, if it is in the waiting room of a lock:
    /// see [`patience`](crate::DistributedLock::patience).
    pub fn patience(&self) -> Option<u32> {
        Ticket::parse(path::last(&self.path))?.patience()
    }

    pub(super) fn is_maintenance(&self) -> bool {
        let is_named_so =
            || Ticket::parse(path::last(&self.path)).is_some_and(|one| one.is_maintenance());
        self.session.is_none() && is_named_so()
    }

    /// Returns the first line of the data as text; what is not UTF-8 is replaced.
    pub fn label(&self) -> String {
        let first = self.data.split(|byte| *byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(first).into_owned()
    }
}

/// What stands in the text between these names, or after the first if there is no other.
fn between<'a>(text: &'a str, name: &str, next: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(name)?;
    if next.is_empty() { Some(rest) } else { Some(rest.split_once(next)?.0) }
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contender")
            .field("path", &self.path)
            .field("sequence", &self.sequence)
            .field("kind", &self.kind)
            .field("weight", &self.weight)
            .field("label", &self.label())
            .field("session", &self.session)
            .field("age", &self.age())
            .field("position", &self.position)
            .field("holds", &self.holds)
            .finish_non_exhaustive()
    }
}

/// When a node was created; `None` if an ACL hides that.
pub(crate) fn created_at(stat: &Stat) -> Option<SystemTime> {
    at(stat, stat.ctime)
}

/// A time of the node's stat; `None` if an ACL hides that.
fn at(stat: &Stat, milliseconds: i64) -> Option<SystemTime> {
    let since = Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default());
    (stat.ephemeral_owner != HIDDEN).then(|| SystemTime::UNIX_EPOCH + since)
}

/// The contenders of a lock node, in grant order. Those that vanish meanwhile are left out. The client's
/// server catches up with the leader first.
pub(crate) fn contenders(client: &Client, node: &str) -> Result<Vec<Contender>> {
    let whole = client.core().whole(node);
    let purpose = Purpose::to_read("list the contenders", "READ on the lock node");
    purpose.ask(client.core(), node, |session| {
        session.sync()?;
        list(session, &whole, node)
    })
}

fn list(session: &Session, whole: &str, node: &str) -> Answer<Vec<Contender>> {
    /// A list that is outdated so often is that of an odd server.
    const MOST_LISTS: usize = 20;
    for _ in 0..MOST_LISTS {
        if let Some(found) = list_once(session, whole, node)? {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// `None` if all have gone meanwhile: there may be new contenders that were not in the list.
fn list_once(session: &Session, whole: &str, node: &str) -> Answer<Option<Vec<Contender>>> {
    let (children, stat) = session.names_and_stat(whole, false)?.unwrap_or_default();
    let made = children_made(&stat);
    let tickets = in_grant_order(children.iter());
    let tickets: Vec<_> = tickets.into_iter().filter(|one| one.may_be_of(made)).collect();
    let paths: Vec<String> = tickets.iter().map(|one| path::join(whole, one.name())).collect();
    let (mut found, mut is_any_there) = (HashMap::with_capacity(tickets.len()), tickets.is_empty());
    for (ticket, read) in tickets.iter().zip(session.read_each(&paths)) {
        let Some(one) = Contender::seen(node, ticket, read)? else { continue };
        is_any_there = true;
        if one.contends(ticket) {
            found.insert(ticket.name(), one);
        }
    }
    if !is_any_there {
        return Ok(None);
    }
    // They were read in the order of grants: when one was read, those ahead that are not among these
    // had gone.
    let there = tickets.iter().map(Ticket::name).filter(|name| found.contains_key(name));
    let names: Vec<&str> = in_grant_order_by(there, |name| found.get(name)?.told.made_by)
        .iter()
        .map(Ticket::name)
        .collect();
    let holders = count_holders(&names);
    let placed = names.into_iter().filter_map(|name| found.remove(name)).enumerate();
    let mut placed: Vec<_> = placed.map(|(place, one)| one.at(place, place < holders)).collect();
    note_those_who_may_hold_too(&mut placed);
    Ok(Some(placed))
}

/// Notes which of a lock's contenders, in the order of grants, may hold it beside the holders.
pub(super) fn note_those_who_may_hold_too(all: &mut [Contender]) {
    let holders = all.iter().filter(|one| one.holds).count();
    let names: Vec<&str> = all.iter().map(|one| path::last(&one.path)).collect();
    // Curator's say at which address they are.
    let is_curator = |place: usize| all[place].label().parse::<IpAddr>().is_ok();
    let may_hold_too = those_who_may_hold_too(&names, holders, is_curator);
    for (one, may_hold_too) in all.iter_mut().zip(may_hold_too) {
        one.told.may_hold_too = may_hold_too;
    }
}

/// The first of the contenders; the others are not read.
pub(crate) fn first_contender(client: &Client, node: &str) -> Result<Option<Contender>> {
    let whole = client.core().whole(node);
    let purpose = Purpose::to_read("look for the first contender", "READ on the lock node");
    purpose.ask(client.core(), node, |session| {
        session.sync()?;
        look_for_first(session, &whole, node)
    })
}

pub(crate) fn look_for_first(
    session: &Session,
    whole: &str,
    node: &str,
) -> Answer<Option<Contender>> {
    loop {
        let children = session.names(whole, false)?.unwrap_or_default();
        let queue = contenders_in_order(session, whole, &children)?;
        let Some(first) = queue.first().and_then(|first| Ticket::parse(first)) else {
            return Ok(None);
        };
        // If it has gone meanwhile, there may be new contenders that were not in the list.
        if let Some(found) = Contender::read(session, whole, node, &first)? {
            return Ok(Some(found.at(0, count_holders(&queue) > 0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_tells_when_its_wait_ended_or_did_not_wait() {
        let ticket = Ticket::parse("lock-0000000001").unwrap();
        let stat = Stat { ctime: 5_000, mtime: 9_000, ephemeral_owner: 1, ..Stat::default() };
        let reads = |data: &[u8]| Contender::new("/locks/a", &ticket, data.to_vec(), &stat);
        let at = |milliseconds| SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds);
        let holder = |data| reads(data).at(0, true);
        for (data, since, remembered) in [
            (&b"host=a\nv=1"[..], Some(at(5_000)), None),
            (b"host=a\nv=1 held_for=1000", Some(at(8_000)), Some(at(8_000))),
            (b"host=a", None, None),
            (b"", None, None),
            (b"host=a\nv=1 held_for=18446744073709551615", Some(at(5_000)), Some(at(5_000))),
        ] {
            assert_eq!(holder(data).held_since(), since);
            assert_eq!(holder(data).remembered().held_since(), remembered);
            assert_eq!(reads(data).at(1, false).held_since(), None);
        }
    }

    #[test]
    fn a_request_to_let_go_is_not_what_a_contender_says_of_itself() {
        let ticket = Ticket::parse("lock-0000000001").unwrap();
        let says =
            |data: &[u8]| Contender::new("/locks/a", &ticket, data.to_vec(), &Stat::default()).data;
        for (data, said) in
            [(&b"host:1"[..], &b"host:1"[..]), (b"unlock", b""), (b"__REVOKE__", b"")]
        {
            assert_eq!(says(data), said);
        }
    }
}
