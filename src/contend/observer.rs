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

/// The changes of who holds a lock: see
/// [`DistributedLock::observe`](crate::DistributedLock::observe).
///
/// As an iterator it blocks until there is a change, and ends after an error, which is one that
/// waiting cannot mend. It has no thread: what happens between two calls is looked up by the next
/// one, and of several changes only the last is seen.
pub struct Observer {
    observation: WatchedChanges<Vec<Contender>>,
    node: Result<String>,
    form: Form,
    over: bool,
}

const LOOK: Purpose = Purpose { tried: "look who holds the lock", needs: "READ on the lock node" };

#[expect(clippy::ptr_arg, reason = "as the observation has it compared")]
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

    /// Those who hold now, in the order of their numbers, as soon as they are not those of the
    /// last call; at the first call at once. Empty when nobody holds; `None` when nothing has
    /// changed for so long. A request that is under way may take up to 50 ms more.
    ///
    /// It goes on over lost connections and sessions.
    ///
    /// # Errors
    ///
    /// What waiting cannot mend: [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ on the lock node,
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed), [`Closed`](crate::ErrorKind::Closed),
    /// [`System`](crate::ErrorKind::System), [`Server`](crate::ErrorKind::Server).
    pub fn next_for(&mut self, limit: Duration) -> Result<Option<Vec<Contender>>> {
        self.next_until(Deadline::after(limit))
    }

    fn next_until(&mut self, deadline: Deadline) -> Result<Option<Vec<Contender>>> {
        let (node, form) = (self.node.clone()?, self.form);
        let (whole, shown) = (self.observation.client().core().whole(&node), node.clone());
        let look = move |view: &mut View<'_>| look(view, &whole, &shown, form);
        let next = self.observation.next_until(deadline, look)?;
        next.transpose().map_err(|fault| LOOK.refused(&fault, &node))
    }
}

/// Who holds, and news of that.
fn look(view: &mut View<'_>, whole: &str, node: &str, form: Form) -> Answer<Vec<Contender>> {
    // As long as the first is there nobody else holds, and so its node is all that has to be
    // watched. Not so where several can hold.
    if form.class == Class::Mutex {
        let children = view.children(whole, false)?.unwrap_or_default();
        if let Some(first) = in_grant_order(&children).first() {
            match view.node(&path::join(whole, first.name())) {
                Ok(Some((data, stat))) => {
                    return Ok(vec![Contender::new(node, first, data, &stat)]);
                }
                Ok(None) => return Err(Fault::NoNode),
                // It would tell us nothing; the list does.
                Err(Fault::NoAuth) => {}
                Err(fault) => return Err(fault),
            }
        }
    }
    let Some(children) = view.list_or_making(whole)? else { return Ok(Vec::new()) };
    let mut holders = Vec::new();
    for ticket in in_grant_order(&children).into_iter().take_while(|one| holds(one, &children)) {
        holders.extend(Contender::read(view, whole, node, &ticket)?);
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
