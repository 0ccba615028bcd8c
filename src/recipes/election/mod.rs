//! Leader election.

mod back_off;
mod candidates_progress;
mod lead_loop;

pub use candidates_progress::{ElectionPhase, ElectionProgress};

use std::sync::Arc;
use std::time::Duration;

use crate::acl::Acl;
use crate::contend::{Contender, ContenderKind, Hold, NodeNaming, observe};
use crate::error::Result;
use crate::fencing::FencingToken;
use crate::recipes::locks::{LockNode, guard, naming_setting, node_settings};
use crate::rt::Mutex;
use crate::session::{Changes, Client, Wait};
use back_off::BackOff;
use candidates_progress::ProgressBoard;

/// Elects one leader among many candidates, and the next one when the leader resigns or its session
/// ends.
///
/// Each candidate has an ephemeral sequential node below `base/name`, with its id as data; the
/// lowest number leads. Candidates of Curator's `LeaderSelector` (not `LeaderLatch`) can share the
/// path; all see each other's ids. An election and a mutex of one path exclude each other.
///
/// The value is a description, as a [`DistributedLock`](crate::DistributedLock) is, with the same
/// guarantees. Each campaign has a node of its own. [`request_release`](LockNode::request_release)
/// asks the leader to resign.
///
/// - One leader at a time, provided that each stops when its [`Leadership`] says that it is lost.
///   Candidates lead in the order in which they began to campaign.
/// - Not reentrant: a leader that campaigns again, without resigning, waits for itself.
///
/// ```no_run
/// use zklock::{Client, LeaderElection};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let election = LeaderElection::new(&zk, "/elections", "scheduler").id("node-7");
/// let leadership = election.campaign()?; // waits until it is ours
/// while leadership.is_held() {
///     println!("one step of the leader's work, with token {}", leadership.fencing_token());
/// }
/// # Ok::<(), zklock::Error>(())
/// ```
///
/// [`lead`](LeaderElection::lead) campaigns again and again.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    lock_node: LockNode,
    back_off: BackOff,
    progress: Arc<Mutex<ProgressBoard>>,
}

impl LeaderElection {
    /// Returns the election `name` under the path `base`: see
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> LeaderElection {
        let place = (base.as_ref(), name.as_ref());
        let mut lock_node = LockNode::new(zk.into(), place, ContenderKind::Mutex, "leadership");
        lock_node.tells_facts = false;
        let (back_off, progress) = (BackOff::default(), Arc::default());
        LeaderElection { lock_node, back_off, progress }
    }

    /// Blocks until this candidate leads.
    ///
    /// It goes on as [`DistributedLock::lock`](crate::DistributedLock::lock) does. Bind the result
    /// to a name: `let _ = election.campaign()?;` resigns at once.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn campaign(&self) -> Result<Leadership> {
        self.lock_node.wait(self.form(ContenderKind::Mutex)).map(Leadership::new)
    }

    /// Campaigns, waiting at most `wait`, as
    /// [`DistributedLock::lock_within`](crate::DistributedLock::lock_within) does; `None` if
    /// other candidates were still ahead then.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn campaign_within(&self, wait: impl Into<Wait>) -> Result<Option<Leadership>> {
        Ok(self
            .lock_node
            .within(self.form(ContenderKind::Mutex), &wait.into())?
            .map(Leadership::new))
    }

    /// Leads if there is no other candidate; otherwise returns `None` and leaves no node behind.
    ///
    /// `None` means that a server said in this call that there are others.
    ///
    /// # Errors
    ///
    /// As [`DistributedLock::try_lock`](crate::DistributedLock::try_lock).
    pub fn try_campaign(&self) -> Result<Option<Leadership>> {
        Ok(self.lock_node.try_now(self.form(ContenderKind::Mutex))?.map(Leadership::new))
    }

    /// Returns the present leader; `None` if nobody leads. Its [`label`](Contender::label) is its
    /// id.
    ///
    /// The candidate itself may not know yet that it leads, or may already doubt its session; only
    /// its [`Leadership`] says whether *it* leads.
    ///
    /// # Errors
    ///
    /// As [`contenders`](LockNode::contenders).
    pub fn leader(&self) -> Result<Option<Contender>> {
        Ok(self.holder()?.filter(is_candidate))
    }

    /// Observes who leads: first the present [`leader`](LeaderElection::leader), then the leader
    /// after each change; `None` while nobody leads.
    ///
    /// A change of the leader costs each observer a list and a read. While there is none, the list
    /// of candidates is watched.
    pub fn observe(&self) -> Changes<Option<Contender>> {
        let leader = |holders: Vec<Contender>| holders.into_iter().next().filter(is_candidate);
        observe(self.client(), self.node().map(str::to_owned), ContenderKind::Mutex, leader)
    }
}

/// Whether it is no [maintenance hold](LockNode::hold_for_maintenance), during which nobody leads.
fn is_candidate(leader: &Contender) -> bool {
    leader.maintenance().is_none()
}

impl LeaderElection {
    /// Sets the id of this candidate: the data of its node, which others see as the
    /// [`label`](Contender::label) of the leader.
    ///
    /// The default and the limits are those of [a lock's data](LockNode#settings).
    #[must_use = "the value is changed, and returned"]
    pub fn id(mut self, id: impl Into<String>) -> LeaderElection {
        self.lock_node.data = Some(id.into().into_bytes());
        // That of another candidate from now on.
        self.progress = Arc::default();
        self
    }

    /// Sets how long [`lead`](LeaderElection::lead) pauses after an error: `first`, doubled with
    /// each further error up to `longest`.
    ///
    /// The pause is a random part of that, between the half and the whole. Default 100 ms and 10 s;
    /// with [`Duration::ZERO`] for both it does not pause. It is `first` again after a term that
    /// ended without an error, or took longer than `longest`.
    #[must_use = "the value is changed, and returned"]
    pub fn back_off(mut self, first: Duration, longest: Duration) -> LeaderElection {
        self.back_off = BackOff { first, longest };
        self
    }
}

node_settings!(LeaderElection);
naming_setting!(LeaderElection);

/// Holds the leadership of a [`LeaderElection`]; dropping it resigns.
///
/// Dropping works as for a [`LockGuard`](crate::LockGuard) with a node of its own, also on another
/// thread. It keeps the client's session open.
#[must_use = "if unused it resigns immediately"]
#[clippy::has_significant_drop]
pub struct Leadership {
    hold: Hold,
}

impl Leadership {
    fn new(hold: Hold) -> Leadership {
        Leadership { hold }
    }

    /// Returns the number to send with each write, so that its receiver can refuse late writes of a
    /// former leader.
    ///
    /// The number is greater than earlier leaders'.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }
}

guard!(Leadership, resign, resign_within, "Resigns as dropping does");
