//! Reads all contenders below a base path.

use std::cell::RefCell;

use super::list_contenders::Contender;
use super::list_locks::{LIST, LockList, UnlistedReason, Walk, look_at_and_below};
use super::ticket::Ticket;
use super::wait_graph::Waits;
use crate::error::Result;
use crate::path;
use crate::rt;
use crate::session::client::Client;
use crate::session::client_core::ClientCore;
use crate::session::connection::Answer;
use crate::session::session::Session;

impl Client {
    /// Looks who holds and who waits for the locks at `base` and below it, at any depth; `None` if the
    /// node does not exist.
    ///
    /// For [deadlocks](Waits::deadlocks), and pictures of who waits for whom. The look includes everything
    /// that happened before this call, and may be out of date when it is returned; contenders that come or go
    /// meanwhile may be in it or not.
    ///
    /// Takes one request for each node that is no contender, and one for each contender. Of more than
    /// 20,000 contenders, the locks that are too many are [named](Waits::unlisted).
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
pub(super) fn look_at_waits(
    session: &Session,
    core: &ClientCore,
    base: &str,
) -> Answer<Option<Waits>> {
    let whole = |path: &str| core.whole(path);
    let begun = rt::now();
    let mut walk = Walk::default();
    walk.takes_all = true;
    session.sync()?;
    if !look_at_and_below(session, &mut walk, base, whole)? {
        return Ok(None);
    }
    let mut contenders = Vec::new();
    walk.locks.sort_by(|(one, _), (other, _)| one.path.cmp(&other.path));
    let paths: Vec<String> =
        walk.locks.iter().flat_map(|(_, all)| all).map(|one| whole(one)).collect();
    walk.requests += paths.len();
    let hidden = RefCell::new(Vec::new());
    let note_hidden = |path: &str| hidden.borrow_mut().push(core.shown(path).to_owned());
    let mut reads = session.read_each_noting(&paths, note_hidden).into_iter();
    for (lock, nodes) in &walk.locks {
        for (place, (node, read)) in nodes.iter().zip(&mut reads).enumerate() {
            let Some(ticket) = Ticket::parse(path::last(node)) else { continue };
            let seen = Contender::seen(&lock.path, &ticket, read)?;
            contenders.extend(seen.map(|one| one.at(place, place < lock.holders)));
        }
    }
    let hidden = hidden.into_inner().into_iter();
    walk.unlisted.extend(hidden.map(|path| (path, UnlistedReason::NotAuthorized)));
    let LockList { base, unlisted, requests, .. } = walk.finish(base);
    let chroot = core.whole("");
    let ended = rt::now();
    Ok(Some(Waits { base, contenders, unlisted, requests, chroot, begun, ended }))
}
