//! Reports who holds a lock whenever that changes.

use std::fmt;
use std::time::Duration;

use super::ask_until_answered::Purpose;
use super::list_contenders::Contender;
use super::rule::{holds, in_grant_order};
use super::ticket::{Class, Form};
use crate::error::Result;
use crate::path;
use crate::rt::Deadline;
use crate::session::client::Client;
use crate::session::connection::{Answer, Fault};
use crate::session::watch_loop::View;
use crate::session::watched_changes::WatchedChanges;

/// Reports who holds a lock whenever that changes: see
/// [`DistributedLock::observe`](crate::DistributedLock::observe).
///
/// As an iterator it blocks until there is a change, and ends after an error, which is always one
/// that waiting does not resolve. It has no thread: each call looks up what has happened since the
/// one before, and of several changes only the last is seen.
pub struct Observer {
    observation: WatchedChanges<Vec<Contender>>,
    node: Result<String>,
    form: Form,
    over: bool,
}

const LOOK: Purpose = Purpose::to_read("read who holds the lock", "READ on the lock node");

#[expect(clippy::ptr_arg, reason = "`WatchedChanges` requires this signature")]
fn are_same(some: &Vec<Contender>, others: &Vec<Contender>) -> bool {
    some.iter().map(|one| &one.path).eq(others.iter().map(|one| &one.path))
}

impl Observer {
    pub(crate) fn new(client: &Client, node: Result<String>, form: Form) -> Observer {
        Observer {
            observation: WatchedChanges::new(client, false, are_same),
            node,
            form,
            over: false,
        }
    }

    /// Waits at most `limit` for other holders than at the last call, and returns them in the order
    /// of their numbers.
    ///
    /// The first call returns the holders at once. Empty if there is no holder; `None` if nothing
    /// has changed within `limit`. A request that is under way may take up to 50 ms more.
    ///
    /// Lost connections and sessions do not end the wait.
    ///
    /// # Errors
    ///
    /// Only what waiting does not resolve: [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ on the lock node,
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed), [`Closed`](crate::ErrorKind::Closed),
    /// [`System`](crate::ErrorKind::System), [`Server`](crate::ErrorKind::Server).
    pub fn next_for(&mut self, limit: Duration) -> Result<Option<Vec<Contender>>> {
        self.next_until(Deadline::after(limit))
    }

    /// Whether what the last call returned still holds, as far as the connected server knows.
    ///
    /// False before the first call, after a change that the next call will return, and without a
    /// connection: what was returned last may be out of date then. Sends no request; a broken
    /// connection is noticed after a third of the session timeout at the latest.
    pub fn is_current(&self) -> bool {
        self.observation.is_current()
    }

    fn next_until(&mut self, deadline: Deadline) -> Result<Option<Vec<Contender>>> {
        let (node, form) = (self.node.clone()?, self.form);
        let (whole, shown) = (self.observation.client().core().whole(&node), node.clone());
        let look = move |view: &mut View<'_>| look(view, &whole, &shown, form);
        let next = self.observation.next_until(deadline, look)?;
        next.transpose().map_err(|fault| LOOK.refused(&fault, &node))
    }
}

/// Reads who holds the lock, and watches for changes.
fn look(view: &mut View<'_>, whole: &str, node: &str, form: Form) -> Answer<Vec<Contender>> {
    // While a mutex's first contender is there, no other one holds, so only its node must be
    // watched. In other locks several contenders can hold.
    if form.class == Class::Mutex {
        let children = view.children(whole, false)?.unwrap_or_default();
        if let Some(first) = in_grant_order(&children).first() {
            match view.node(&path::join(whole, first.name())) {
                Ok(Some((data, stat))) => {
                    return Ok(vec![Contender::new(node, first, data, &stat).at(0, true)]);
                }
                Ok(None) => return Err(Fault::NoNode),
                // A watch on it would report nothing; one on the list does.
                Err(Fault::NoAuth) => {}
                Err(fault) => return Err(fault),
            }
        }
    }
    let Some(children) = view.list_or_making(whole)? else { return Ok(Vec::new()) };
    let mut holders = Vec::new();
    let tickets = in_grant_order(&children).into_iter().take_while(|one| holds(one, &children));
    for (position, ticket) in tickets.enumerate() {
        let holder = Contender::read(view, whole, node, &ticket)?;
        holders.extend(holder.map(|holder| holder.at(position, true)));
    }
    Ok(holders)
}

impl Iterator for Observer {
    type Item = Result<Vec<Contender>>;

    fn next(&mut self) -> Option<Result<Vec<Contender>>> {
        if self.over {
            return None;
        }
        let next = self.next_until(Deadline::NEVER);
        self.over = next.is_err();
        // Without a deadline there is no giving up.
        next.transpose()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("node", &self.node).finish_non_exhaustive()
    }
}
