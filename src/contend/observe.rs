//! Going on looking: who holds, whenever that changes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::acquire::{refusal, worth_asking};
use super::contenders::Contender;
use super::rule::{holds, in_grant_order};
use super::ticket::{Class, Form};
use crate::error::Result;
use crate::path;
use crate::rt::{AtomicBool, Deadline};
use crate::session::client::{Client, Interrupted, Patience};
use crate::session::session::Session;
use crate::session::status::Usable;
use crate::session::store::{Answer, Fault};
use crate::session::wake::{Signal, Subscription, Waiter};

/// The changes of who holds a lock: see
/// [`DistributedLock::observe`](crate::DistributedLock::observe).
///
/// As an iterator it blocks until there is a change, and ends after an error, which is one that
/// waiting cannot mend. It has no thread: what happens between two calls is looked up by the next
/// one, and of several changes only the last is seen.
pub struct Observer {
    client: Client,
    node: Result<String>,
    form: Form,
    waiter: Waiter,
    session: Option<(Arc<Session>, Subscription)>,
    seen: Option<Seen>,
    /// Who held when that was last told.
    told: Option<Vec<String>>,
    over: bool,
}

/// What has been seen, until it changes.
struct Seen {
    connection: u64,
    review: u64,
    changed: Arc<AtomicBool>,
    _watch: Subscription,
}

impl Observer {
    pub(crate) fn new(client: &Client, node: Result<String>, form: Form) -> Observer {
        Observer {
            client: client.clone(),
            node,
            form,
            waiter: Waiter::new(),
            session: None,
            seen: None,
            told: None,
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
        let (node, ask_until) = (self.node.clone()?, worth_asking(deadline));
        loop {
            let Some(session) = self.usable_session(ask_until)? else { return Ok(None) };
            if self.is_up_to_date(&session) {
                if deadline.has_passed() {
                    return Ok(None);
                }
                self.waiter.wait(deadline);
                continue;
            }
            match self.look(&session, &node, ask_until)? {
                None if ask_until.has_passed() => return Ok(None),
                None => {}
                Some(Ok(holders)) => {
                    let paths = holders.iter().map(|one| one.path.clone()).collect();
                    if self.told.as_ref() != Some(&paths) {
                        self.told = Some(paths);
                        return Ok(Some(holders));
                    }
                }
                // Something has vanished just now, or the connection has.
                Some(Err(Fault::NoNode | Fault::ConnectionLoss | Fault::SessionEnded)) => {}
                Some(Err(fault)) => {
                    let needs = "READ on the lock node";
                    return Err(refusal(&fault, "look who holds the lock", needs, &node));
                }
            }
        }
    }

    /// A session that a server serves; `None` when there is none in time.
    fn usable_session(&mut self, until: Deadline) -> Result<Option<Arc<Session>>> {
        loop {
            if let Some((session, _)) = &self.session {
                match session.status().until_usable(&self.waiter, until, || false) {
                    Usable::Now => return Ok(Some(Arc::clone(session))),
                    Usable::NotInTime => return Ok(None),
                    Usable::Never(_) => (self.session, self.seen) = (None, None),
                }
            }
            let core = self.client.core();
            match core.session(&self.waiter, until, || false, Patience::UntilDeadline) {
                Ok(session) => {
                    let subscription = session.status().subscribe(self.waiter.bell());
                    self.session = Some((session, subscription));
                }
                Err(Interrupted::GaveUp) => return Ok(None),
                Err(Interrupted::Failed(error)) => return Err(error),
            }
        }
    }

    fn is_up_to_date(&self, session: &Session) -> bool {
        let phase = session.status().now();
        self.seen.as_ref().is_some_and(|seen| {
            !seen.changed.load(Ordering::SeqCst)
                && (seen.connection, seen.review) == (phase.connection, phase.review())
        })
    }

    /// Looks, and has changes watched; `None` when there was no time.
    fn look(
        &mut self,
        session: &Arc<Session>,
        node: &str,
        until: Deadline,
    ) -> Result<Option<Answer<Vec<Contender>>>> {
        let (changed, bell) = (Arc::new(AtomicBool::new(false)), self.waiter.bell());
        let flag = Arc::clone(&changed);
        let signal: Signal = Arc::new(move || {
            flag.store(true, Ordering::SeqCst);
            bell();
        });
        let phase = session.status().now();
        let (asked, node, form) = (Arc::clone(session), node.to_owned(), self.form);
        let core = self.client.core();
        let whole = core.whole(&node);
        let job = move || look(&asked, &whole, &node, form, &signal);
        let found = core.calls().run(&self.waiter, until, || false, job, drop)?;
        Ok(found.map(|found| {
            let (holders, watch) = found?;
            let (connection, review) = (phase.connection, phase.review());
            self.seen = Some(Seen { connection, review, changed, _watch: watch });
            Ok(holders)
        }))
    }
}

/// Who holds, and what rings when that may have changed. A lost watch is known by the connection.
fn look(
    session: &Session,
    whole: &str,
    node: &str,
    form: Form,
    signal: &Signal,
) -> Answer<(Vec<Contender>, Subscription)> {
    let subscribe = |path: &str| session.watches().subscribe(path, Arc::clone(signal));
    // As long as the first is there nobody else holds, and so its node is all that has to be
    // watched. Not so where several can hold.
    if form.class == Class::Mutex {
        let children = session.children(whole, false)?.unwrap_or_default();
        if let Some(first) = in_grant_order(&children).first() {
            let path = path::join(whole, first.name());
            let watch = subscribe(&path);
            match session.read(&path, true) {
                Ok(Some((data, stat))) => {
                    return Ok((vec![Contender::new(node, first, data, &stat)], watch));
                }
                Ok(None) => return Err(Fault::NoNode),
                // It would tell us nothing; the list does.
                Err(Fault::NoAuth) => {}
                Err(fault) => return Err(fault),
            }
        }
    }
    let watch = subscribe(whole);
    let Some(children) = session.children(whole, true)? else {
        return if session.await_making(whole)? {
            Err(Fault::NoNode)
        } else {
            Ok((Vec::new(), watch))
        };
    };
    let mut holders = Vec::new();
    for ticket in in_grant_order(&children).into_iter().take_while(|one| holds(one, &children)) {
        let read = session.read(&path::join(whole, ticket.name()), false)?;
        holders.extend(read.map(|(data, stat)| Contender::new(node, &ticket, data, &stat)));
    }
    Ok((holders, watch))
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
