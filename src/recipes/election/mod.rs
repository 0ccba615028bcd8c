//! Leader election.

mod back_off;
pub(crate) mod lead_loop;
pub(crate) mod progress;

use std::sync::Arc;
use std::time::Duration;

use self::back_off::BackOff;
use self::progress::ProgressBoard;
use super::common_to_locks::{LockNode, guard, node_settings};
use crate::acl::Acl;
use crate::contend::hold::Hold;
use crate::contend::list_contenders::Contender;
use crate::contend::observe_holders::observe;
use crate::contend::ticket::{ContenderKind, Form, NodeNaming};
use crate::error::Result;
use crate::fencing::FencingToken;
use crate::rt::Mutex;
use crate::session::client::Client;
use crate::session::observed_changes::Changes;
use crate::session::wait_limit::Wait;

/// Elects one leader among many candidates, and the next one when the leader resigns or its session
/// ends.
///
/// Each candidate creates an ephemeral sequential child of the election's node `base/name`, with
/// its id as data. The lowest number leads; each other candidate waits for the one before it. Node
/// names are those of Curator's `InterProcessMutex`, which its `LeaderSelector` uses: candidates of
/// both can share a path, and see each other's ids. (Curator's `LeaderLatch` uses other names.)
///
/// The value is a description: cheap to make, to clone, to share between threads, and not tied to
/// a session. Each campaign has a node of its own, even if several campaigns use one value.
///
/// An election and a mutex of the same path and name exclude each other.
/// [`request_release`](LockNode::request_release) asks the leader to resign.
///
/// # Guarantees
///
/// Those of a [`DistributedLock`](crate::DistributedLock):
///
/// - One leader at a time, provided that each stops when its [`Leadership`] says that it is lost.
///   It says so by this machine's own clock, before the ensemble lets the next candidate lead.
/// - Only the receiver can refuse what a paused leader sends late, by the
///   [`fencing_token`](Leadership::fencing_token).
/// - Candidates lead in the order in which they began to campaign.
/// - Not reentrant: a leader that campaigns again, without resigning, waits for itself.
///
/// # Example
///
/// One term, until the leadership is lost or dropped:
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
    pub(super) lock_node: LockNode,
    back_off: BackOff,
    progress: Arc<Mutex<ProgressBoard>>,
}

impl LeaderElection {
    /// Returns the election `name` under the path `base`, with the default settings: see
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> LeaderElection {
        let place = (base.as_ref(), name.as_ref());
        let lock_node = LockNode::new(zk.into(), place, ContenderKind::Mutex, "leadership");
        let (back_off, progress) = (BackOff::default(), Arc::default());
        LeaderElection { lock_node, back_off, progress }
    }

    /// Blocks until this candidate leads.
    ///
    /// Lost connections and lost sessions do not end it: in a new session it campaigns anew. While
    /// no server can be reached it keeps trying.
    ///
    /// Bind the result to a name: `let _ = election.campaign()?;` resigns at once, and no lint that
    /// is on by default warns of it.
    ///
    /// # Errors
    ///
    /// Only what [ends every wait](crate::guide#what-ends-every-wait): as
    /// [`DistributedLock::lock`](crate::DistributedLock::lock). The call leaves no node behind in
    /// any case.
    pub fn campaign(&self) -> Result<Leadership> {
        self.lock_node.wait(self.form()).map(Leadership::new)
    }

    /// Campaigns, waiting at most `wait`; returns `None` if others were ahead until its time was
    /// over.
    ///
    /// `None` means that a server said so in this call. The time includes connecting and cleaning
    /// up: see [`DistributedLock::lock_within`](crate::DistributedLock::lock_within).
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect), when the time is over, if no server answered in this
    /// call; [`Cancelled`](crate::ErrorKind::Cancelled) if the wait is cancelled; otherwise as
    /// [`campaign`](LeaderElection::campaign).
    pub fn campaign_within(&self, wait: impl Into<Wait>) -> Result<Option<Leadership>> {
        Ok(self.lock_node.within(self.form(), &wait.into())?.map(Leadership::new))
    }

    /// Leads if there is no other candidate; otherwise returns `None`, and no node is left.
    ///
    /// `None` means that a server said in this call that there are others: see
    /// [`DistributedLock::try_lock`](crate::DistributedLock::try_lock).
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) if no server answered within the
    /// [connect timeout](crate::ClientBuilder::connect_timeout); otherwise as
    /// [`campaign`](LeaderElection::campaign).
    pub fn try_campaign(&self) -> Result<Option<Leadership>> {
        Ok(self.lock_node.try_now(self.form())?.map(Leadership::new))
    }

    /// Returns the leader, the first of the [`contenders`](LockNode::contenders), as
    /// [`holder`](LockNode::holder) does; its [`label`](Contender::label) is its id.
    ///
    /// The candidate itself may not know yet that it leads, or may already doubt its session; only
    /// its [`Leadership`] says whether *it* leads.
    ///
    /// # Errors
    ///
    /// As [`contenders`](LockNode::contenders).
    pub fn leader(&self) -> Result<Option<Contender>> {
        self.holder()
    }

    /// Observes who leads: first the present [`leader`](LeaderElection::leader), then the leader
    /// after each change. For followers, dashboards and tests.
    ///
    /// While there is a leader, only its node is watched, so that new candidates wake no observer;
    /// a change of the leader costs each observer a list and a read. While there is none, the list
    /// of candidates is watched.
    ///
    /// ```no_run
    /// use zklock::{Client, LeaderElection};
    ///
    /// let zk = Client::connect("zk1:2181,zk2:2181")?;
    /// for leader in LeaderElection::new(&zk, "/elections", "scheduler").observe() {
    ///     match leader? {
    ///         Some(leader) => println!("{} leads", leader.label()),
    ///         None => println!("nobody leads"),
    ///     }
    /// }
    /// # Ok::<(), zklock::Error>(())
    /// ```
    pub fn observe(&self) -> Changes<Option<Contender>> {
        let leader = |holders: Vec<Contender>| holders.into_iter().next();
        let node = self.node().map(str::to_owned);
        observe(self.client(), node, ContenderKind::Mutex, leader, is_same)
    }

    fn form(&self) -> Form {
        self.lock_node.form(ContenderKind::Mutex)
    }
}

impl LeaderElection {
    /// Sets the id of this candidate, as [`leader`](LeaderElection::leader) and
    /// [`contenders`](LockNode::contenders) show it to others: the data of its node.
    ///
    /// Default: host, process id, program and the name of the thread that campaigns. Keep it below 1 MiB;
    /// `__REVOKE__` and `unlock` are refused, because they ask a leader to resign.
    #[must_use = "the value is changed, and returned"]
    pub fn id(mut self, id: impl Into<String>) -> LeaderElection {
        self.lock_node.data = Some(id.into().into_bytes());
        // That of another candidate from now on.
        self.progress = Arc::default();
        self
    }

    /// Sets how long [`lead`](LeaderElection::lead) pauses after an error.
    ///
    /// The pause is `first`, doubled with each further error up to `longest`, and of that a random
    /// part between the half and the whole, so that candidates that fail together do not campaign
    /// again together. Default 100 ms and 10 s; with [`Duration::ZERO`] for both it does not pause.
    ///
    /// It is `first` again after a term that ended without an error, or took longer than `longest`.
    #[must_use = "the value is changed, and returned"]
    pub fn back_off(mut self, first: Duration, longest: Duration) -> LeaderElection {
        self.back_off = BackOff { first, longest };
        self
    }
}

node_settings!(LeaderElection);

/// The leadership of a [`LeaderElection`]; dropping it resigns.
///
/// Dropping works as for a [`LockGuard`](crate::LockGuard) with a node of its own.
///
/// It can be sent to another thread and dropped there. It keeps the client's session open.
#[must_use = "if unused it resigns immediately"]
#[clippy::has_significant_drop]
pub struct Leadership {
    hold: Hold,
}

impl Leadership {
    fn new(hold: Hold) -> Leadership {
        Leadership { hold }
    }

    /// Returns the number to send along with everything the leader does, so that its receiver can
    /// refuse what a former leader sends late. It grows from leader to leader.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }
}

guard!(Leadership, resign, resign_within, "Resigns as dropping does");

/// Whether both name the same node.
fn is_same(one: &Option<Contender>, other: &Option<Contender>) -> bool {
    one.as_ref().map(|one| &one.path) == other.as_ref().map(|other| &other.path)
}
