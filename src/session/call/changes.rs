//! Reports the state of something whenever it changes.

use std::fmt;

use super::purpose::Purpose;
use super::watch_loop::{View, WatchLoop};
use super::{Call, Stop};
use crate::error::Result;
use crate::session::client::Client;
use crate::session::connection::{Answer, Fault};
use crate::session::wait::Wait;

type Look<T> = Box<dyn Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync>;

/// Reports a state whenever it changes: the holders of a lock, the leader, the members of a group,
/// or the data of a node.
///
/// As an iterator it blocks until there is a change, and ends after an error, which is always one
/// that [ends every wait](crate::guide#what-ends-every-wait). It has no thread: each call looks up
/// what has happened since the one before, and of several changes only the last is seen.
///
/// It keeps the client's session open, as a lock does. Before you join a thread that observes, end
/// its wait by a [`Cancel`](crate::Cancel), or by [`Client::close`], which fails it with
/// [`Closed`](crate::ErrorKind::Closed).
///
/// The reported states never go back in time, but a server that lags behind the others reports
/// changes late. Lost connections and sessions do not end it, and are no change: a program that
/// must know of an outage calls [`next_within`](Changes::next_within) and
/// [`is_current`](Changes::is_current).
///
/// ```no_run
/// use std::time::Duration;
/// use zklock::{Client, DistributedLock};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let mut holders = DistributedLock::new(&zk, "/locks", "nightly").observe();
/// loop {
///     match holders.next_within(Duration::from_secs(1))? {
///         Some(holders) => println!("now {holders:?}"),
///         None if holders.is_current() => {} // the same
///         None => println!("an outage: nobody knows"),
///     }
///     # break;
/// }
/// # Ok::<(), zklock::Error>(())
/// ```
#[must_use = "it watches only while it is asked"]
pub struct Changes<T> {
    client: Client,
    node: Result<String>,
    purpose: Purpose,
    look: Look<T>,
    /// Whether two looks found the same.
    is_same: fn(&T, &T) -> bool,
    watch_loop: WatchLoop,
    /// The session of the last look that was answered. The first look in another one begins with a
    /// `sync`: its server may lag behind the one that was asked last.
    session: i64,
    /// What was returned last.
    told: Option<T>,
    over: bool,
}

impl<T: Clone + Send + 'static> Changes<T> {
    /// `look` reads the state of the node at this path, and watches it; `is_same` compares two
    /// states.
    pub(crate) fn new(
        client: &Client,
        node: Result<String>,
        purpose: Purpose,
        is_same: fn(&T, &T) -> bool,
        look: impl Fn(&mut View<'_>, &str) -> Answer<T> + Send + Sync + 'static,
    ) -> Changes<T> {
        Changes {
            client: client.clone(),
            node,
            purpose,
            look: Box::new(look),
            is_same,
            watch_loop: WatchLoop::new(Call::new(client.core(), &Wait::FOREVER)),
            session: 0,
            told: None,
            over: false,
        }
    }

    /// Waits at most `wait` for a state other than the one returned last, and returns it; `None`
    /// if nothing has changed in time.
    ///
    /// The first call returns the state at once. A request that is under way may take up to 50 ms
    /// more.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled) if the wait is cancelled; otherwise
    /// [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ,
    /// [`AuthFailed`](crate::ErrorKind::AuthFailed), [`Closed`](crate::ErrorKind::Closed),
    /// [`System`](crate::ErrorKind::System) or [`Server`](crate::ErrorKind::Server).
    pub fn next_within(&mut self, wait: impl Into<Wait>) -> Result<Option<T>> {
        self.next_by(&wait.into(), true)
    }

    /// Returns the observed state, as far as the connected server knows.
    ///
    /// If what the last call returned is not [current](Changes::is_current), it looks again, at
    /// most for the [connect timeout](crate::ClientBuilder::connect_timeout). In an outage it
    /// returns the state that was seen last.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) if no state was seen before, and no server answered;
    /// otherwise as [`next_within`](Changes::next_within).
    pub fn latest(&mut self) -> Result<&T> {
        if !self.is_current() {
            let limit = Wait::from(self.client.core().connect_timeout());
            self.next_by(&limit, false)?;
        }
        let (core, node) = (self.client.core(), self.node.as_deref().unwrap_or_default());
        self.told.as_ref().ok_or_else(|| self.purpose.unanswered(core, false, node))
    }

    /// Returns whether the state returned last is still the present one, as far as the connected
    /// server knows.
    ///
    /// False before the first call, in a forked child, after a change that the next call will
    /// return, and without a connection. Sends no request; a broken connection is noticed after a
    /// third of the session timeout at the latest.
    pub fn is_current(&self) -> bool {
        !self.client.core().is_elsewhere() && self.told.is_some() && self.watch_loop.is_current()
    }

    fn next_by(&mut self, wait: &Wait, waits: bool) -> Result<Option<T>> {
        self.client.core().check_process()?;
        let node = self.node.clone()?;
        self.watch_loop.call.renew(wait);
        let next = match self.find_next(waits, &self.client.core().whole(&node)) {
            Ok(next) => next.map(Some).map_err(|fault| self.purpose.refused(&fault, &node)),
            Err(Stop::TimeOver) => Ok(None),
            Err(stop) => Err(self.purpose.stopped(stop, &self.watch_loop.call, &node)),
        };
        self.watch_loop.call.renew(&Wait::FOREVER);
        next
    }

    /// Looks until the state differs from the one returned last. Without `waits`, it only looks once
    /// whether it is the same.
    fn find_next(&mut self, waits: bool, whole: &str) -> Result<Answer<T>, Stop> {
        loop {
            let session = self.watch_loop.call.session()?;
            if self.watch_loop.is_up_to_date(&session) {
                if !waits {
                    return Err(Stop::TimeOver);
                }
                self.watch_loop.until_changed()?;
            }
            let syncs = self.session != session.id();
            let found = self.watch_loop.look(&session, |view| {
                if syncs {
                    view.session.sync()?;
                }
                (self.look)(view, whole)
            })?;
            match found {
                Ok(found) => {
                    self.session = session.id();
                    if !self.told.as_ref().is_some_and(|told| (self.is_same)(told, &found)) {
                        self.told = Some(found.clone());
                        return Ok(Ok(found));
                    }
                }
                // A node has just been deleted, or the connection lost: look again.
                Err(Fault::NoNode | Fault::ConnectionLoss | Fault::SessionEnded) => {}
                Err(fault) => return Ok(Err(fault)),
            }
        }
    }
}

impl<T: Clone + Send + 'static> Iterator for Changes<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.over {
            return None;
        }
        let next = self.next_by(&Wait::FOREVER, true);
        self.over = next.is_err();
        // Without a deadline there is no giving up.
        next.transpose()
    }
}

impl<T> fmt::Debug for Changes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("node", &self.node).finish_non_exhaustive()
    }
}
