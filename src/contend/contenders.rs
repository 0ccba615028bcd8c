//! Looking at contention.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::acquire::refusal;
use super::rule::in_grant_order;
use super::ticket::Class;
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::rt::Deadline;
use crate::session::client::{Client, Interrupted, Patience};
use crate::session::session::Session;
use crate::session::status::Usable;
use crate::session::store::{Answer, Fault};
use crate::session::wake::Waiter;

/// One of those who hold or wait for a lock: see
/// [`DistributedLock::contenders`](crate::DistributedLock::contenders).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contender {
    /// Its node.
    pub path: String,
    /// The number by which the order is kept.
    pub sequence: i32,
    /// What it contends for.
    pub class: Class,
    /// What it says of itself: by default host, process id and thread. Empty when an ACL
    /// hides it.
    pub data: Vec<u8>,
    /// The id of the session it belongs to, as servers name it in their logs (in
    /// hexadecimal). 0 is a node of no session, which nobody will clean up.
    pub session: i64,
    /// When its node was made, by the ensemble's clock.
    pub since: SystemTime,
}

impl Contender {
    /// How long ago its node was made; as good as this machine's and the ensemble's clocks
    /// agree, and never negative.
    pub fn age(&self) -> Duration {
        self.since.elapsed().unwrap_or_default()
    }

    /// The data as text, with what is not UTF-8 replaced.
    pub fn label(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contender")
            .field("path", &self.path)
            .field("sequence", &self.sequence)
            .field("class", &self.class)
            .field("label", &self.label())
            .field("session", &format_args!("0x{:x}", self.session))
            .field("age", &self.age())
            .finish_non_exhaustive()
    }
}

/// The contenders of a lock node, in grant order. Those that vanish meanwhile are left out.
pub(crate) fn contenders(client: &Client, node: &str) -> Result<Vec<Contender>> {
    let core = client.core();
    let (waiter, deadline) = (Waiter::new(), Deadline::after(core.connect_timeout()));
    loop {
        let opened = core.session(&waiter, deadline, || false, Patience::UntilDeadline);
        let session = match opened {
            Ok(session) => session,
            Err(Interrupted::Failed(error)) => return Err(error),
            Err(Interrupted::GaveUp) => {
                return Err(Error::new(
                    ErrorKind::Connect,
                    format!("no server could be reached within {:?}", core.connect_timeout()),
                )
                .on(node));
            }
        };
        let _subscription = session.status().subscribe(waiter.bell());
        if session.status().until_usable(&waiter, deadline, || false) == Usable::NotInTime {
            return Err(refusal(&Fault::ConnectionLoss, "list the contenders", "", node));
        }
        let (asked, whole, shown) = (Arc::clone(&session), core.whole(node), node.to_owned());
        let job = move || list(&asked, &whole, &shown);
        let listed = core.calls().run(&waiter, deadline, || false, job, drop)?;
        match listed.unwrap_or(Err(Fault::ConnectionLoss)) {
            Ok(found) => return Ok(found),
            Err(Fault::ConnectionLoss | Fault::SessionEnded) if !deadline.has_passed() => {}
            Err(fault) => {
                return Err(refusal(&fault, "list the contenders", "READ on the lock node", node));
            }
        }
    }
}

fn list(session: &Session, whole: &str, node: &str) -> Answer<Vec<Contender>> {
    let children = session.children(whole, false)?.unwrap_or_default();
    let mut found = Vec::new();
    for ticket in in_grant_order(&children) {
        let Some((data, stat)) = session.read(&path::join(whole, ticket.name()), false)? else {
            continue;
        };
        let since = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or_default());
        found.push(Contender {
            path: path::join(node, ticket.name()),
            sequence: ticket.sequence(),
            class: ticket.class(),
            data,
            session: stat.ephemeral_owner,
            since: SystemTime::UNIX_EPOCH + since,
        });
    }
    Ok(found)
}
