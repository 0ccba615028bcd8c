//! Lists the locks below a base path.

use super::ask_until_answered::{Purpose, ask};
use super::list_contenders::Contender;
use super::rule::{holds, in_grant_order};
use super::ticket::{ContenderKind, Ticket};
use crate::error::Result;
use crate::path;
use crate::session::client::Client;
use crate::session::connection::{Answer, Fault};
use crate::session::session::Session;

/// A lock that clients hold or wait for: see [`Client::locks`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLock {
    /// The lock path, `base/name`.
    pub path: String,
    /// Its last component.
    pub name: String,
    /// What kind of lock its contenders use.
    pub kind: LockKind,
    /// How many contenders hold it.
    pub holders: usize,
    /// How many contenders wait for it.
    pub waiters: usize,
    /// The first holder; `None` if it released before it could be read.
    pub first: Option<Contender>,
}

/// What kind of lock the contenders of a path use, as their nodes' names say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// A [`DistributedLock`](crate::DistributedLock), or a
    /// [`LeaderElection`](crate::LeaderElection), whose nodes look alike.
    Mutex,
    /// A [`DistributedRwLock`](crate::DistributedRwLock).
    ReadWrite,
    /// A [`DistributedSemaphore`](crate::DistributedSemaphore) or a
    /// [`DoubleBarrier`](crate::DoubleBarrier).
    Semaphore {
        /// Its permits, by the first contender's name.
        permits: u32,
        /// How many of them are taken.
        taken: u32,
    },
}

impl LockKind {
    /// What kind of lock these contenders use, which are all those of one path, in the order in
    /// which [`contenders`](crate::DistributedLock::contenders) lists them; `None` without any.
    pub fn of(contenders: &[Contender]) -> Option<LockKind> {
        let first = contenders.first()?;
        let taken = contenders.iter().filter(|one| one.holds).map(|one| one.weight);
        Some(kind(contenders.iter().map(|one| one.kind), first.permits, taken))
    }
}

const LIST: Purpose = Purpose::to_read("list the locks", "READ on the base path and its children");

impl Client {
    /// Lists the locks below `base` that clients hold or wait for, sorted by name.
    ///
    /// For people and logs: the list may be out of date when it is returned. It comes from this
    /// client's server, which may lag behind the others. Locks without contenders are left out, as
    /// are locks whose node an ACL hides. Takes one request, one more for each child of `base`, and
    /// one for each lock; many of them share a round trip.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::ErrorKind::InvalidName) for a path that ZooKeeper does not allow;
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ on `base`;
    /// [`Connect`](crate::ErrorKind::Connect) if the ensemble does not answer within the
    /// [connect timeout](crate::ClientBuilder::connect_timeout); otherwise errors that
    /// [end every wait](crate::guide#what-ends-every-wait).
    pub fn locks(&self, base: impl AsRef<str>) -> Result<Vec<ListedLock>> {
        let base = base.as_ref().to_owned();
        path::check_absolute(&base)?;
        let (whole, shown) = (self.core().whole(&base), base.clone());
        ask(self, &base, LIST, move |session| list(session, &whole, &shown))
    }
}

fn list(session: &Session, whole: &str, base: &str) -> Answer<Vec<ListedLock>> {
    let names = session.children(whole, false)?.unwrap_or_default();
    let mut names: Vec<&str> = names.iter().collect();
    names.sort();
    let paths: Vec<String> = names.iter().map(|name| path::join(whole, name)).collect();
    let (mut found, mut firsts) = (Vec::new(), Vec::new());
    for ((name, whole), children) in
        names.iter().zip(&paths).zip(session.children_each(&paths, false))
    {
        let children = match children {
            // An ACL hides it.
            Err(Fault::NoAuth) => continue,
            children => children?.unwrap_or_default(),
        };
        let contenders = in_grant_order(&children);
        let holders = contenders.iter().take_while(|one| holds(one, &children)).count();
        let Some(first) = contenders.first() else { continue };
        let taken = contenders[..holders].iter().map(Ticket::weight);
        let kind = kind(contenders.iter().map(Ticket::kind), first.permits(), taken);
        firsts.push((path::join(whole, first.name()), first.name().to_owned()));
        found.push(ListedLock {
            path: path::join(base, name),
            name: (*name).to_owned(),
            kind,
            holders,
            waiters: contenders.len() - holders,
            first: None,
        });
    }
    let (paths, tickets): (Vec<String>, Vec<String>) = firsts.into_iter().unzip();
    for ((lock, ticket), read) in found.iter_mut().zip(&tickets).zip(session.read_each(&paths)) {
        let Some(ticket) = Ticket::parse(ticket) else { continue };
        let first = Contender::seen(&lock.path, &ticket, read)?;
        lock.first = first.map(|one| one.at(0, lock.holders > 0));
    }
    Ok(found)
}

fn kind(
    mut kinds: impl Iterator<Item = ContenderKind>,
    permits: u32,
    taken: impl Iterator<Item = u32>,
) -> LockKind {
    let first = kinds.next();
    let is_shared = |one| matches!(one, ContenderKind::Read | ContenderKind::Write);
    match first {
        Some(ContenderKind::Permits) => {
            LockKind::Semaphore { permits, taken: taken.fold(0, u32::saturating_add) }
        }
        _ if first.into_iter().chain(kinds).any(is_shared) => LockKind::ReadWrite,
        _ => LockKind::Mutex,
    }
}
