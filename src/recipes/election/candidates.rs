//! The candidates of an election, and who leads.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::contend::list_contenders::Contender;
use crate::contend::observer::Observer;
use crate::error::Result;

/// A candidate, which leads or campaigns: see
/// [`LeaderElection::candidates`](crate::LeaderElection::candidates).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Its node.
    pub path: String,
    /// Its sequence number, which decides the order.
    pub sequence: i32,
    /// The bytes of its [`id`](Candidate::id). Empty if an ACL hides them, and while a request to
    /// resign stands in their place: a leader writes its data back as soon as it has noted the
    /// request (see [`request_release`](crate::DistributedLock::request_release)).
    pub data: Vec<u8>,
    /// The id of the session it belongs to, as servers name it in their logs (in hexadecimal). 0
    /// means that the node belongs to no session, so that no session's end deletes it. -1 means
    /// unknown: since ZooKeeper 3.7.3, 3.8.4 and 3.9.2, an ACL that hides the data hides this, too.
    pub session: i64,
    /// When it began to campaign, by the ensemble's clock. If an ACL hides that: when it was seen,
    /// by this machine's clock.
    pub since: SystemTime,
}

impl Candidate {
    /// Returns its id, with invalid UTF-8 replaced: see
    /// [`LeaderElectionBuilder::id`](crate::LeaderElectionBuilder::id).
    pub fn id(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }

    /// How long ago it began to campaign; as exact as this machine's and the ensemble's clocks
    /// agree, and never negative.
    pub fn age(&self) -> Duration {
        self.since.elapsed().unwrap_or_default()
    }
}

impl From<Contender> for Candidate {
    fn from(contender: Contender) -> Candidate {
        let Contender { path, sequence, data, session, since, .. } = contender;
        Candidate { path, sequence, data, session, since }
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("path", &self.path)
            .field("sequence", &self.sequence)
            .field("id", &self.id())
            .field("session", &format_args!("0x{:x}", self.session))
            .field("age", &self.age())
            .finish_non_exhaustive()
    }
}

/// Reports who leads whenever that changes: see
/// [`LeaderElection::observe`](crate::LeaderElection::observe).
///
/// As an iterator it blocks until there is a change, and ends after an error, which is always one
/// that waiting does not resolve. It has no thread: each call looks up what has happened since the
/// one before, and of several changes only the last is seen.
///
/// ```no_run
/// use zklock::{Client, LeaderElection};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// for leader in LeaderElection::new(&zk, "/elections", "scheduler").observe() {
///     match leader? {
///         Some(leader) => println!("{} leads", leader.id()),
///         None => println!("nobody leads"),
///     }
/// }
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Debug)]
pub struct LeaderObserver {
    holders: Observer,
}

impl LeaderObserver {
    pub(super) fn new(holders: Observer) -> LeaderObserver {
        LeaderObserver { holders }
    }

    /// Waits at most `limit` for another leader than at the last call, and returns it.
    ///
    /// The first call returns the leader at once. `Some(None)` means that no candidate leads,
    /// `None` that nothing has changed within `limit`. A request that is under way may take up to
    /// 50 ms more.
    ///
    /// Lost connections and sessions do not end the wait.
    ///
    /// # Errors
    ///
    /// As [`Observer::next_for`].
    pub fn next_for(&mut self, limit: Duration) -> Result<Option<Option<Candidate>>> {
        Ok(self.holders.next_for(limit)?.map(leader))
    }

    /// Whether what the last call returned still holds: see [`Observer::is_current`].
    ///
    /// Without a connection, the leader that was returned may no longer lead.
    pub fn is_current(&self) -> bool {
        self.holders.is_current()
    }
}

impl Iterator for LeaderObserver {
    type Item = Result<Option<Candidate>>;

    fn next(&mut self) -> Option<Result<Option<Candidate>>> {
        self.holders.next().map(|holders| holders.map(leader))
    }
}

fn leader(holders: Vec<Contender>) -> Option<Candidate> {
    holders.into_iter().next().map(Candidate::from)
}
