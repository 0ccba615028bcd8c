//! The barrier: callers wait until it is removed.

use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::recipes::data::{Attempts, NodeConfig, Outcome, Permits, make_once, placed};
use crate::rt;
use crate::session::{Answer, Fault, Purpose, Session, Step, View, Wait};

/// Blocks all callers that wait for it, as long as it is raised.
///
/// The barrier is up as long as the persistent node `base/name` exists: it outlives the client that
/// raised it, and any client may lift it. It is the same barrier as Curator's `DistributedBarrier`
/// and kazoo's `Barrier` of this path. Beside it, each call that raises or lifts it creates a node
/// `_zklock_<id>_permit` for a moment. The value can be cloned and shared.
///
/// # Guarantees
///
/// - No call passes a barrier that was raised before the call began, and was not lifted since,
///   whichever server it asks.
/// - A waiting call learns that the barrier is lifted, also over lost connections and sessions. If
///   it is raised again at once, the call may see only that, and goes on waiting.
/// - What a call of `raise` or `lift` has done, once it has succeeded, is not undone by an earlier
///   call of this client whose reply was lost, even if the ensemble carries that out
///   [later](crate::Error::may_have_taken_effect). Not so on a program's own handle, which has no
///   transactions.
///
/// ```no_run
/// use zklock::{Barrier, Client};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let barrier = Barrier::new(&zk, "/barriers", "maintenance");
/// barrier.raise()?; // no call passes from here on
/// barrier.lift()?;
/// barrier.wait()?; // at once: it is not raised
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    target: NodeConfig,
}

/// To wait, a call reads the node.
const WAIT: Purpose = Purpose::to_read("wait at the barrier", "READ on it");
const RAISE: Purpose = Purpose::to_change("raise the barrier", "CREATE and DELETE on its parent");
const LIFT: Purpose = Purpose::to_change(
    "lift the barrier",
    "CREATE and DELETE on its parent, and READ on the node, to distinguish it from later ones",
);

placed!(
    Barrier,
    "Returns the barrier `name` under the path `base`",
    "Waiting requires READ on the node. Raising and lifting require CREATE and DELETE on its parent; \
     lifting also, with ZooKeeper 3.7.3, 3.8.4, 3.9.2 and later, READ on the node."
);

impl Barrier {
    /// Raises the barrier, and returns whether this call did; false if it was up already.
    ///
    /// # Errors
    ///
    /// - [`Connect`](ErrorKind::Connect) if no server could be asked within the [connect
    ///   timeout](crate::ClientBuilder::connect_timeout): this call has not raised it.
    /// - [`ConnectionLoss`](ErrorKind::ConnectionLoss) if a request has no answer by then: this
    ///   call may have raised it, or may still do so until a later call of this client succeeds, or
    ///   the session has ended; also if the session was lost with a reply, and the barrier is not up
    ///   but may have been meanwhile.
    /// - Others that [end every wait](crate::guide#what-ends-every-wait).
    pub fn raise(&self) -> Result<bool> {
        let mark = Uuid::from_u128(rt::random()).to_string();
        let mut attempts = Attempts::new(self.target.client.core());
        let raised = self.target.ask(RAISE, |session, whole| {
            let (mark, acl) = (mark.as_bytes(), &self.target.acl);
            make_once(session, whole, mark, acl, |data| data == mark, &mut attempts)
        })?;
        raised.ok_or_else(|| {
            let message = "the reply to raising the barrier was lost; it is not up, but may have \
                           been raised, and lifted again by others";
            let error = Error::new(ErrorKind::ConnectionLoss, message);
            error.on(self.target.node().unwrap_or_default())
        })
    }

    /// Lifts the barrier, and returns whether this call did; false if it was not up.
    ///
    /// If the session was lost with a reply, true also if it only may have been this call; on a
    /// program's own handle after any lost reply. A retry does not lift a barrier that was raised since
    /// the first attempt.
    ///
    /// # Errors
    ///
    /// As [`raise`](Barrier::raise): without a reply the barrier may be up or not.
    pub fn lift(&self) -> Result<bool> {
        let (mut meant, mut permits) = (None, Permits::new(self.target.client.core()));
        self.target.ask(LIFT, |session, whole| lift(session, whole, &mut meant, &mut permits))
    }

    /// Asks the ensemble's leader whether the barrier is up.
    ///
    /// # Errors
    ///
    /// As [`raise`](Barrier::raise).
    pub fn is_raised(&self) -> Result<bool> {
        self.target.ask(WAIT, |session, whole| match session.confirm(whole) {
            // An ACL forbids to read the node, so the node exists.
            Err(Fault::NoAuth) => Ok(true),
            found => Ok(found?.is_some()),
        })
    }

    /// Blocks as long as the barrier is up.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without READ on the barrier's node; others that
    /// [end every wait](crate::guide#what-ends-every-wait).
    pub fn wait(&self) -> Result<()> {
        self.pass(&Wait::FOREVER).map(drop)
    }

    /// Blocks while the barrier is up, at most `wait`; returns false if it was still up then.
    ///
    /// # Errors
    ///
    /// [`Connect`](ErrorKind::Connect) at the end of `wait` if no server answered in this call;
    /// [`Cancelled`](ErrorKind::Cancelled); otherwise as [`wait`](Barrier::wait).
    pub fn wait_within(&self, wait: impl Into<Wait>) -> Result<bool> {
        self.pass(&wait.into())
    }

    fn pass(&self, wait: &Wait) -> Result<bool> {
        let look = |view: &mut View<'_>, whole: &str| {
            // A server that lags behind may wrongly say that there is no node.
            let passes =
                view.session.confirm(whole)?.is_none() || view.watch_node(whole)?.is_none();
            Ok(passes.then_some(()))
        };
        Ok(self.target.find(WAIT, self.target.call(wait), look)?.is_some())
    }
}

/// Deletes the node, but none that was created after the first attempt, which has set `meant`.
fn lift(
    session: &Session,
    whole: &str,
    meant: &mut Option<i64>,
    permits: &mut Permits,
) -> Answer<bool> {
    let has_transactions = session.has_transactions();
    let may_be_lifted = match permits.settle(session, whole)? {
        Outcome::Made => return Ok(true),
        Outcome::Unknown => true,
        Outcome::NotMade => meant.is_some() && !has_transactions,
    };
    let begun = *meant;
    let found = session.confirm(whole)?.map(|stat| stat.czxid);
    if found.is_none() || begun.is_some_and(|begun| found != Some(begun)) {
        return Ok(may_be_lifted);
    }
    *meant = found;
    let deleted = match has_transactions {
        true => permits.spend(session, whole, &Step::delete(whole.to_owned())).map(drop),
        false => session.delete(whole),
    };
    match deleted {
        Ok(()) => Ok(true),
        Err(Fault::NoNode) => Ok(may_be_lifted),
        Err(fault) => Err(fault),
    }
}
