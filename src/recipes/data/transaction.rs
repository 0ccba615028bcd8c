//! Transactions: the server carries out all steps, or none.

use std::fmt;

use super::change_at_most_once::change_at_most_once;
use super::create_options::CreateOptions;
use super::version::Version;
use super::znode::{CREATE, DELETE, WRITE, Znode, refused};
use crate::contend::{COMMIT, Hold, no_transactions};
use crate::error::{Error, Result};
use crate::path;
use crate::session::{Call, Client, Created, Fault, Purpose, Reply, Session, Step, Transacted};

const CHECK: Purpose = Purpose::to_change("check the node", "READ on it");

/// Several steps of which the server carries out all or none.
///
/// Each step sees the results of the steps before it. Nothing is sent before
/// [`commit`](Transaction::commit), which also reports paths that ZooKeeper does not allow.
///
/// [`Client::transaction`] begins one. That of a guard,
/// [`Hold::transaction`](crate::Hold::transaction), takes effect only if the guard's node still
/// exists, and borrows the guard, which cannot be dropped meanwhile.
///
/// ```no_run
/// use zklock::znode::CreateMode;
/// use zklock::{Client, DistributedLock};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// zk.transaction()
///     .create("/app/jobs/17", CreateMode::Persistent, "queued")
///     .delete("/app/drafts/17")
///     .commit()?;
/// let guard = DistributedLock::new(&zk, "/locks", "job-17").lock()?;
/// guard.transaction().write("/app/jobs/17", "done").commit()?;
/// # Ok::<(), zklock::Error>(())
/// ```
#[must_use = "a transaction has no effect before `commit`"]
pub struct Transaction<'a> {
    client: Client,
    fence: Option<&'a Hold>,
    steps: Vec<Step>,
    /// The paths of the steps, as the client names them.
    paths: Vec<String>,
    /// The first error in the arguments, which `commit` reports.
    wrong: Option<Error>,
}

/// What a step of a [`Transaction`] has done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StepResult {
    /// The node exists, with the given version.
    Checked,
    /// This node was created: a sequential one has its number in its path.
    Created(Znode),
    /// The node's data has this version now.
    Written(Version),
    /// The node was deleted.
    Deleted,
}

impl Hold {
    /// Starts a transaction that takes effect only if the lock is still held.
    ///
    /// The server checks in the same transaction that the guard's node exists. So the ensemble
    /// refuses a late write by a holder whose process was paused or cut off, however long, and data
    /// in ZooKeeper needs no [fencing token](crate::FencingToken). Earlier writes stay.
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::fenced(self)
    }
}

impl Client {
    /// Starts a transaction, without steps.
    pub fn transaction(&self) -> Transaction<'static> {
        Transaction::new(self, None)
    }
}

impl<'a> Transaction<'a> {
    /// Starts a transaction that takes effect only if the hold's node still exists.
    pub(crate) fn fenced(hold: &'a Hold) -> Transaction<'a> {
        Transaction::new(hold.client(), Some(hold))
    }

    fn new(client: &Client, fence: Option<&'a Hold>) -> Transaction<'a> {
        let client = client.clone();
        Transaction { client, fence, steps: Vec::new(), paths: Vec::new(), wrong: None }
    }

    /// Adds a step that requires a node to exist. Needs READ on it.
    pub fn check(self, path: impl AsRef<str>) -> Transaction<'a> {
        self.step(path.as_ref(), |path| Ok(Step::Check { path, version: None }))
    }

    /// Adds a step that requires a node's data to have this version, so that a later step does not
    /// undo another client's change. Needs READ on it.
    pub fn check_unchanged(self, path: impl AsRef<str>, version: Version) -> Transaction<'a> {
        self.step(path.as_ref(), |path| Ok(Step::Check { path, version: Some(version.checked()?) }))
    }

    /// Adds a step that creates a node. Its parent must exist, or an earlier step must create it.
    pub fn create(
        self,
        path: impl AsRef<str>,
        options: impl Into<CreateOptions>,
        data: impl Into<Vec<u8>>,
    ) -> Transaction<'a> {
        let (options, data) = (options.into(), data.into());
        let kind = options.kind();
        self.step(path.as_ref(), |path| Ok(Step::Create { path, data, acl: options.acl, kind }))
    }

    /// Adds a step that replaces a node's data.
    pub fn write(self, path: impl AsRef<str>, data: impl Into<Vec<u8>>) -> Transaction<'a> {
        let data = data.into();
        self.step(path.as_ref(), |path| Ok(Step::Write { path, data, version: None }))
    }

    /// Adds a step that deletes a node.
    pub fn delete(self, path: impl AsRef<str>) -> Transaction<'a> {
        self.step(path.as_ref(), |path| Ok(Step::Delete { path, version: None }))
    }

    fn step(mut self, path: &str, step: impl FnOnce(String) -> Result<Step>) -> Transaction<'a> {
        let checked = path::check_absolute(path)
            .and_then(|()| step(self.client.core().whole(path)).map_err(|error| error.on(path)));
        match checked {
            Ok(step) => {
                self.steps.push(step);
                self.paths.push(path.to_owned());
            }
            Err(error) => drop(self.wrong.get_or_insert(error)),
        }
        self
    }

    /// Sends the transaction, and returns what each step has done.
    ///
    /// Ends within the client's [connect timeout](crate::ClientBuilder::connect_timeout), and is
    /// not repeated. If a guard's commit had no answer in time, the guard's node is neither handed
    /// to another thread of this process nor kept when the guard is dropped: the server deletes it
    /// after the commit.
    ///
    /// # Errors
    ///
    /// Nothing was changed, except for [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss): the
    /// transaction may have been committed, or may [still be](crate::Error::may_have_taken_effect),
    /// until the session has ended; a guard's only as long as the guard's node exists.
    ///
    /// - The error of the first step that failed, with its path:
    ///   [`NotFound`](crate::ErrorKind::NotFound),
    ///   [`AlreadyExists`](crate::ErrorKind::AlreadyExists),
    ///   [`VersionMismatch`](crate::ErrorKind::VersionMismatch),
    ///   [`NotEmpty`](crate::ErrorKind::NotEmpty),
    ///   [`NotAuthorized`](crate::ErrorKind::NotAuthorized),
    ///   [`InvalidName`](crate::ErrorKind::InvalidName),
    ///   [`InvalidArgument`](crate::ErrorKind::InvalidArgument).
    /// - For a guard's transaction: [`NodeDeleted`](crate::ErrorKind::NodeDeleted),
    ///   [`SessionLost`](crate::ErrorKind::SessionLost), [`Closed`](crate::ErrorKind::Closed) or
    ///   [`AuthFailed`](crate::ErrorKind::AuthFailed) if the guard no longer holds;
    ///   [`NotAuthorized`](crate::ErrorKind::NotAuthorized) if the lock's ACL denies the holder
    ///   READ on its own node.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported) for a client of a program's own handle: the
    ///   `zookeeper` crate has no transactions.
    /// - Otherwise as for [`Znode`](Znode#errors).
    pub fn commit(self) -> Result<Vec<StepResult>> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        if self.steps.is_empty() && self.fence.is_none() {
            return Ok(Vec::new());
        }
        let transacted = match self.fence {
            Some(hold) => hold.commit(&self.steps)?,
            None => commit(&self.client, &self.steps, &self.paths[0])?,
        };
        match transacted {
            Ok(done) => Ok(self.results(done)),
            Err((index, fault)) => Err(self.refused(index, &fault)),
        }
    }

    fn results(&self, done: Vec<Reply>) -> Vec<StepResult> {
        let result = |(step, reply): (&Step, Reply)| match (step, reply) {
            (_, Reply::Created(Created { path, .. })) => {
                StepResult::Created(self.client.znode(self.client.core().shown(&path)))
            }
            (_, Reply::Stat(stat)) => StepResult::Written(Version::of(&stat)),
            (Step::Delete { .. }, _) => StepResult::Deleted,
            _ => StepResult::Checked,
        };
        self.steps.iter().zip(done).map(result).collect()
    }

    fn refused(&self, index: usize, fault: &Fault) -> Error {
        let purpose = match self.steps.get(index) {
            Some(Step::Create { .. }) => CREATE,
            Some(Step::Delete { .. }) => DELETE,
            Some(Step::Write { .. }) => WRITE,
            Some(Step::Check { .. }) | None => CHECK,
        };
        refused(fault, purpose, self.paths.get(index).map_or("", String::as_str))
    }
}

fn commit(client: &Client, steps: &[Step], first: &str) -> Result<Transacted> {
    let commit = |session: &Session| match session.has_transactions() {
        true => session.commit(steps).map(Some),
        false => Ok(None),
    };
    let mut call = Call::strict(client.core(), &client.core().connect_timeout().into());
    match change_at_most_once(&mut call, first, COMMIT, None, commit)? {
        Ok(Some(transacted)) => Ok(transacted),
        Ok(None) => Err(no_transactions(first)),
        Err(fault) => Err(COMMIT.refused(&fault, first)),
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("paths", &self.paths)
            .field("is_fenced", &self.fence.is_some())
            .finish_non_exhaustive()
    }
}
