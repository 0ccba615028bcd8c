//! Leader election.

pub(crate) mod candidates;
pub(crate) mod lead_loop;
pub(crate) mod progress;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::candidates::{Candidate, LeaderObserver};
use self::progress::{BackOff, ProgressBoard};
use super::guard_macro::guard;
use super::lock_config::{LockConfig, node_settings};
use crate::acl::Acl;
use crate::contend::fencing::FencingToken;
use crate::contend::hold::Hold;
use crate::contend::loss_reason::LossReason;
use crate::contend::ticket::{Class, Form, NodeNaming};
use crate::contend::watchdog::Lost;
use crate::error::Result;
use crate::rt::Deadline;
use crate::session::cancel::Cancel;
use crate::session::client::Client;

/// Has one of many candidates lead, and the next one when it resigns or its session ends.
///
/// Whoever campaigns makes an ephemeral sequential child of the election's node `base/name`, with
/// its id for data; the lowest number leads, each other waits for the one before it. Node names are
/// those of Curator's `InterProcessMutex`, on which its `LeaderSelector` stands: candidates of both
/// can share a path, and see each other's ids. (Its `LeaderLatch` has other names.)
///
/// The value is a description: cheap to make, to clone, to share between threads, and not tied to
/// a session. Each campaign has a node of its own, also those of one value.
///
/// It excludes any mutex of the same path and name, and so a
/// [`DistributedLock`](crate::DistributedLock) there can ask the leader to resign, by
/// [`request_release`](crate::DistributedLock::request_release), or
/// [break](crate::DistributedLock::break_lock) its leadership.
///
/// # Guarantees
///
/// Those of a [`DistributedLock`](crate::DistributedLock): one leader at a time as long as each
/// stops when its [`Leadership`] says that it is lost, which it does by this machine's own clock,
/// before the ensemble has the next one lead. What a leader that was paused sends late can only be
/// refused by who receives it, by the [`fencing_token`](Leadership::fencing_token). Leaders come in
/// the order in which they began to campaign. Who leads and campaigns again, without resigning,
/// waits for itself.
///
/// # Example
///
/// One term, to be ended by whoever has it:
///
/// ```no_run
/// use zklock::{Client, LeaderElection};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let election = LeaderElection::builder(&zk, "/elections", "scheduler").id("node-7").build();
/// let leadership = election.campaign()?; // waits until it is ours
/// while leadership.is_leader() {
///     println!("one step of the leader's work, with token {}", leadership.fencing_token());
/// }
/// # Ok::<(), zklock::Error>(())
/// ```
///
/// To stand again and again there is [`lead`](LeaderElection::lead).
#[derive(Clone, Debug)]
pub struct LeaderElection {
    pub(super) config: LockConfig,
    back_off: BackOff,
    progress: Arc<ProgressBoard>,
}

impl LeaderElection {
    /// The election `name` under the path `base`, with the default settings: as
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> LeaderElection {
        LeaderElection::builder(zk, base, name).build()
    }

    /// As [`new`](LeaderElection::new), with settings.
    pub fn builder(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> LeaderElectionBuilder {
        let config = LockConfig::new(zk.into(), base.as_ref(), name.as_ref());
        let (back_off, progress) = (BackOff::default(), Arc::default());
        LeaderElectionBuilder { lock: LeaderElection { config, back_off, progress } }
    }

    /// Blocks until this candidate leads.
    ///
    /// It outlasts lost connections and lost sessions: with a new session it stands anew. While no
    /// server can be reached it goes on trying.
    ///
    /// Bind what it gives to a name: `let _ = election.campaign()?;` resigns at once, and no lint
    /// that is on by default says so.
    ///
    /// # Errors
    ///
    /// What waiting cannot mend: as [`DistributedLock::lock`](crate::DistributedLock::lock). No
    /// node of ours is left in any case.
    pub fn campaign(&self) -> Result<Leadership> {
        self.stand(None)
    }

    /// As [`campaign`](LeaderElection::campaign), until any thread trips `cancel`.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled), at once if the token was tripped before; else as
    /// [`campaign`](LeaderElection::campaign).
    pub fn campaign_with(&self, cancel: &Cancel) -> Result<Leadership> {
        self.stand(Some(cancel))
    }

    /// Leads if there is no other candidate; else `None`, and no node is left: as
    /// [`DistributedLock::try_lock`](crate::DistributedLock::try_lock).
    ///
    /// # Errors
    ///
    /// As [`campaign`](LeaderElection::campaign).
    pub fn try_campaign(&self) -> Result<Option<Leadership>> {
        Ok(self.config.try_now(self.form())?.map(Leadership::new))
    }

    /// Campaigns for so long at the most; `None` when it did not come to lead. The time bounds
    /// everything: as [`DistributedLock::try_lock_for`](crate::DistributedLock::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`campaign`](LeaderElection::campaign).
    pub fn campaign_for(&self, limit: Duration) -> Result<Option<Leadership>> {
        self.stand_by(Deadline::after(limit))
    }

    /// As [`campaign_for`](LeaderElection::campaign_for), until an instant.
    ///
    /// # Errors
    ///
    /// As [`campaign`](LeaderElection::campaign).
    pub fn campaign_until(&self, end: Instant) -> Result<Option<Leadership>> {
        self.stand_by(Deadline::at(end))
    }

    /// Who leads as far as this client's server knows, which may lag behind the others: the first of
    /// the candidates. For people and logs: the answer is out of date when it comes. The candidate
    /// itself may not know it yet, or be in doubt about its session already; whether *it* leads is
    /// for its [`Leadership`] to say.
    ///
    /// Takes one request, and one more for the first candidate, however many there are.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) or
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) when the ensemble does not answer
    /// within the [connect time-out](crate::ClientBuilder::connect_timeout); what waiting cannot
    /// mend else.
    pub fn leader(&self) -> Result<Option<Candidate>> {
        Ok(self.config.first_contender(false)?.map(Candidate::from))
    }

    /// As [`leader`](LeaderElection::leader), of all that had happened before this call: asks the
    /// ensemble's leader first, in one request more. A leader that has resigned before is not told.
    ///
    /// # Errors
    ///
    /// As [`leader`](LeaderElection::leader).
    pub fn latest_leader(&self) -> Result<Option<Candidate>> {
        Ok(self.config.first_contender(true)?.map(Candidate::from))
    }

    /// All candidates, in the order in which they come to lead; the first one leads, with what
    /// [`leader`](LeaderElection::leader) says of that.
    ///
    /// Takes one request, and one more for each candidate.
    ///
    /// # Errors
    ///
    /// As [`leader`](LeaderElection::leader).
    pub fn candidates(&self) -> Result<Vec<Candidate>> {
        Ok(self.config.contenders(false)?.into_iter().map(Candidate::from).collect())
    }

    /// As [`candidates`](LeaderElection::candidates), of all that had happened before this call: as
    /// [`latest_leader`](LeaderElection::latest_leader).
    ///
    /// # Errors
    ///
    /// As [`leader`](LeaderElection::leader).
    pub fn latest_candidates(&self) -> Result<Vec<Candidate>> {
        Ok(self.config.contenders(true)?.into_iter().map(Candidate::from).collect())
    }

    /// Who leads, whenever that changes, as [`leader`](LeaderElection::leader) says it: for those
    /// who follow, for dashboards and tests.
    ///
    /// While there is a leader only its node is watched, so that those who come to wait wake nobody;
    /// a change of the leader costs each observer a list and a read. While there is none, the list
    /// of candidates is watched.
    pub fn observe(&self) -> LeaderObserver {
        LeaderObserver::new(self.config.observe(self.form()))
    }

    pub(super) fn stand(&self, cancel: Option<&Cancel>) -> Result<Leadership> {
        self.config.wait(self.form(), cancel).map(Leadership::new)
    }

    fn stand_by(&self, deadline: Deadline) -> Result<Option<Leadership>> {
        Ok(self.config.try_until(self.form(), deadline)?.map(Leadership::new))
    }

    fn form(&self) -> Form {
        self.config.form(Class::Mutex)
    }
}

/// Settings of a [`LeaderElection`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct LeaderElectionBuilder {
    lock: LeaderElection,
}

impl LeaderElectionBuilder {
    /// Who this candidate is, as [`leader`](LeaderElection::leader) and
    /// [`candidates`](LeaderElection::candidates) tell others: the data of its node. Default: host,
    /// process id and the name of the thread that campaigns. Keep it below 1 MiB; `__REVOKE__` and
    /// `unlock` are refused, as they ask a leader to resign.
    pub fn id(mut self, id: impl Into<String>) -> LeaderElectionBuilder {
        self.lock.config.data = Some(id.into().into_bytes());
        self
    }

    /// How long [`lead`](LeaderElection::lead) rests after an error, before it stands again:
    /// `first`, doubled with each further error up to `longest`, and of that a random part between
    /// the half and the whole, so that candidates which fail together do not stand again together.
    /// Default 100 ms and 10 s; with [`Duration::ZERO`] for both it does not rest.
    ///
    /// It is `first` again after a term that ended without an error, or took longer than `longest`.
    pub fn back_off(mut self, first: Duration, longest: Duration) -> LeaderElectionBuilder {
        self.lock.back_off = BackOff { first, longest };
        self
    }
}

node_settings!(LeaderElectionBuilder, LeaderElection);

/// Being the leader of a [`LeaderElection`]; dropped, it resigns, as a
/// [`LockGuard`](crate::LockGuard) of a node of its own is released.
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

    /// The number to send along with whatever the leader does, so that its receiver can refuse
    /// what a former leader sends late. It grows from leader to leader.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Resigns as dropping does, but waits until the server has confirmed it, and tells if it could
    /// not be.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn resign(self) -> Result<()> {
        self.hold.release()
    }
}

guard!(Leadership, fencing_token, "the leadership", is_leader, ensure_leader);
