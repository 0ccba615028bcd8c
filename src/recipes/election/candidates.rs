//! The candidates of an election, and who leads.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::contend::list_contenders::Contender;
use crate::session_id::SessionId;

/// A candidate, which leads or campaigns: see
/// [`LeaderElection::candidates`](crate::LeaderElection::candidates).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The path of its node.
    pub path: String,
    /// Its sequence number, which decides the order.
    pub sequence: i32,
    /// The bytes of its [`id`](Candidate::id). Empty if an ACL hides them, and while a request to
    /// resign stands in their place: a leader writes its data back as soon as it has noted the
    /// request (see [`request_release`](crate::DistributedLock::request_release)).
    pub data: Vec<u8>,
    /// The id of the session it belongs to; `None` if the node belongs to no session, so that no
    /// session's end deletes it, or an ACL hides that, and then [`since`](Candidate::since), too.
    pub session: Option<SessionId>,
    /// When it began to campaign, by the ensemble's clock; `None` if an ACL hides that. Since
    /// ZooKeeper 3.7.3, 3.8.4 and 3.9.2, an ACL that hides the data does.
    pub since: Option<SystemTime>,
}

impl Candidate {
    /// Returns its id, with invalid UTF-8 replaced: see
    /// [`LeaderElection::id`](crate::LeaderElection::id).
    pub fn id(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }

    /// How long ago it began to campaign; `None` if an ACL hides that. As exact as this machine's
    /// and the ensemble's clocks agree, and never negative.
    pub fn age(&self) -> Option<Duration> {
        self.since.map(|since| since.elapsed().unwrap_or_default())
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
            .field("session", &self.session)
            .field("age", &self.age())
            .finish_non_exhaustive()
    }
}

/// Makes the leader of the holders.
pub(super) fn leader(holders: Vec<Contender>) -> Option<Candidate> {
    holders.into_iter().next().map(Candidate::from)
}

/// Whether both name the same node.
pub(super) fn is_same(one: &Option<Candidate>, other: &Option<Candidate>) -> bool {
    one.as_ref().map(|one| &one.path) == other.as_ref().map(|other| &other.path)
}
