//! Looks at all contenders below a base path, and reads those of which an earlier look does not tell enough.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use super::ask_each::AskEach;
use super::contender::{Contender, note_those_who_may_hold_too};
use super::kept_lists::KeptLists;
use super::lock_list::{LIST, LockList, UnlistedReason, Walk, is_told_apart, look_at_and_below};
use super::reading::{Known, Reading, which_to_read};
use super::waits::Waits;
use crate::contend::name::Ticket;
use crate::error::Result;
use crate::session::{Answer, Client, ClientCore, Session, read_each_by};
use crate::{path, rt};

impl Client {
    /// Looks who holds and who waits for the locks at `base` and below it, at any depth; `None` if the
    /// node does not exist.
    ///
    /// For [deadlocks](Waits::deadlocks), and pictures of who waits for whom. The look includes everything
    /// that happened before this call, and may be out of date when it is returned; contenders that come or go
    /// meanwhile may be in it or not.
    ///
    /// Takes one request for each node that is no contender, and one for each contender; one more for each
    /// contender whose name is not [certain](crate::ContenderKind). Of more than 20,000 contenders, the locks
    /// that are too many are [named](Waits::unlisted).
    ///
    /// # Errors
    ///
    /// As [`locks`](Client::locks).
    pub fn waits(&self, base: impl AsRef<str>) -> Result<Option<Waits>> {
        let (base, core) = (base.as_ref(), self.core());
        path::check_absolute(base)?;
        LIST.ask(core, base, |session| look_at_waits(session, core, base))
    }
}

/// All contenders at and below a path: see [`Client::waits`].
pub(crate) fn look_at_waits(
    session: &Session,
    core: &ClientCore,
    base: &str,
) -> Answer<Option<Waits>> {
    let (earlier, mut asks) = (Waits::empty(base), session);
    session.sync()?;
    look(&mut asks, core, &earlier)
}

/// A contender that a look lists.
struct Listed<'a> {
    path: &'a str,
    place: usize,
    holds: bool,
    known: Option<Known<'a>>,
}

/// Looks again, after an earlier look or an empty one.
pub(super) fn look<A: AskEach>(
    asks: &mut A,
    core: &ClientCore,
    earlier: &Waits,
) -> Result<Option<Waits>, A::Error> {
    let (begun, whole) = (rt::now(), |path: &str| core.whole(path));
    let mut walk = Walk::default();
    walk.takes_all = true;
    if !look_at_and_below(asks, &mut walk, &earlier.base, whole)? {
        return Ok(None);
    }
    walk.settle();
    walk.locks.sort_by(|(one, _), (other, _)| one.path.cmp(&other.path));
    let (listed_at, known) = (rt::now(), known_from(earlier));
    let mut listed: Vec<Listed<'_>> = Vec::new();
    for (lock, nodes) in &walk.locks {
        listed.extend(nodes.iter().enumerate().map(|(place, path)| {
            let known = known.get(&**path).copied();
            Listed { path, place, holds: place < lock.holders, known }
        }));
    }
    let facts: Vec<_> = listed.iter().map(|one| (one.known, one.holds)).collect();
    let reads = which_to_read(walk.requests, asks.spare(), listed_at, &facts);
    let due = listed.iter().zip(&reads).filter(|(_, is_read)| **is_read);
    let paths: Vec<String> = due.map(|(one, _)| whole(one.path)).collect();
    let hidden = RefCell::new(Vec::new());
    let note_hidden = |path: &str| hidden.borrow_mut().push(core.shown(path).to_owned());
    let read = read_each_by(&paths, note_hidden, |paths, question| {
        asks.each(paths, |session, paths| question(session, paths))
    });
    let mut read = read?.into_iter();
    let (mut contenders, mut readings) = (Vec::new(), HashMap::new());
    for (Listed { path, place, holds, known }, is_read) in listed.into_iter().zip(reads) {
        let holds_since = known.and_then(|known| known.reading.holds_since).unwrap_or(listed_at);
        let (one, at) = match known {
            Some(known) if !is_read => (Some(known.one.clone()), known.reading.at),
            _ => {
                let (Some(read), Some(ticket)) = (read.next(), Ticket::parse(path::last(path)))
                else {
                    continue;
                };
                let seen = Contender::seen(path::parent(path), &ticket, read);
                (seen.map_err(|fault| asks.refused(fault))?, listed_at)
            }
        };
        let Some(one) = one else { continue };
        contenders.push(one.at(place, holds));
        let holds_since = holds.then_some(holds_since);
        readings.insert(path.to_owned(), Reading { at, holds_since });
    }
    for of_one_lock in
        contenders.chunk_by_mut(|one, next| path::parent(&one.path) == path::parent(&next.path))
    {
        note_those_who_may_hold_too(of_one_lock);
    }
    let hidden = hidden.into_inner().into_iter();
    walk.unlisted.extend(hidden.map(|path| (path, UnlistedReason::NotAuthorized)));
    walk.requests = walk.requests + paths.len() - asks.known();
    let LockList { base, unlisted, requests, .. } = walk.finish(&earlier.base);
    Ok(Some(Waits {
        base,
        contenders,
        unlisted,
        requests,
        chroot: core.whole(""),
        begun,
        ended: rt::now(),
        readings,
        lists: KeptLists::default(),
    }))
}

/// What an earlier look knows of contenders whose paths nobody else ever has.
fn known_from(earlier: &Waits) -> HashMap<&str, Known<'_>> {
    let in_edges: HashSet<usize> =
        earlier.edges().into_iter().flat_map(|(holder, by)| [holder, by]).collect();
    let told_apart = earlier.contenders.iter().enumerate().filter(|(_, one)| is_told_apart(one));
    let known = told_apart.filter_map(|(place, one)| {
        let reading = *earlier.readings.get(&one.path)?;
        Some((&*one.path, Known { one, reading, is_in_edge: in_edges.contains(&place) }))
    });
    known.collect()
}
