//! The barrier: callers wait until somebody removes it.

use std::sync::Arc;
use std::time::Duration;

use super::node_config::{NodeConfig, Purpose, Wait, placed};
use crate::contend::ticket::Guid;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::{self, Deadline, Mutex};
use crate::session::cancel::Cancel;
use crate::session::connection::{Answer, Fault};
use crate::session::create_parents::{Stamp, make_once};
use crate::session::session::Session;
use crate::session::watch_loop::View;

/// Holds up whoever waits for it, as long as it is raised.
///
/// ZooKeeper's recipe: the barrier is up as long as the node `base/name` exists. It is persistent,
/// so the barrier stays up when whoever raised it ends; anybody may lift it. Curator's
/// `DistributedBarrier` and kazoo's `Barrier` of the same path are the same barrier.
///
/// The value is a description, as a [`DistributedLock`](crate::DistributedLock) is: it can be
/// cloned and shared.
///
/// # Guarantees
///
/// Nobody passes a barrier that was raised before he came, and not lifted since, whichever server
/// he asks: the first look goes through the ensemble's leader. Nobody misses that it is lifted; who
/// waits goes on over lost connections and sessions. Where it is lifted and raised again at once, a
/// waiter may see the new one only, and goes on waiting.
///
/// # Example
///
/// ```no_run
/// use zklock::{Barrier, Client};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let barrier = Barrier::new(&zk, "/barriers", "maintenance");
/// barrier.raise()?; // nobody passes from here on
/// barrier.lift()?;
/// barrier.wait()?; // at once: it is not raised
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    target: NodeConfig,
}

/// Waiting means to read the node.
const WAIT: Purpose = Purpose { tried: "wait at the barrier", needs: "READ on it" };
const RAISE: Purpose = Purpose { tried: "raise the barrier", needs: "CREATE on its parent" };
const LIFT: Purpose = Purpose {
    tried: "lift the barrier",
    needs: "DELETE on its parent, and READ on the node, which tells it from later ones",
};

placed!(
    Barrier,
    BarrierBuilder,
    "The barrier `name` under the path `base`",
    "Who waits needs READ on the node; to lift it takes DELETE on its parent and, with ZooKeeper \
     3.7.3, 3.8.4, 3.9.2 and later, READ on the node."
);

impl Barrier {
    /// Raises the barrier, and says whether this call did; false if it was up already.
    ///
    /// It is raised once at the most. When an answer was lost, the node is looked for, and made
    /// only if it is certain that it was not.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) or [`Connect`](ErrorKind::Connect) without an
    /// answer within the [connect time-out](crate::ClientBuilder::connect_timeout): it may be up or
    /// not. `ConnectionLoss` also when an answer was lost and the barrier is not up, but may have
    /// been in the meantime. [`InvalidName`](ErrorKind::InvalidName),
    /// [`NotAuthorized`](ErrorKind::NotAuthorized), and what waiting cannot mend else.
    pub fn raise(&self) -> Result<bool> {
        let (acl, mark) = (self.target.acl.clone(), Guid::from_u128(rt::random()).to_string());
        let before = Arc::<Mutex<Option<Stamp>>>::default();
        let until = Deadline::after(self.target.client.core().connect_timeout());
        let raised = self.target.ask(RAISE, move |session, whole| {
            let is_ours = |data: &[u8]| data == mark.as_bytes();
            make_once(session, whole, mark.as_bytes(), &acl, is_ours, &before, until)
        })?;
        raised.ok_or_else(|| {
            let message = "the answer to raising the barrier was lost; it is not up, but may have \
                           been raised and lifted again by others";
            let error = Error::new(ErrorKind::ConnectionLoss, message);
            error.on(self.target.node().unwrap_or_default())
        })
    }

    /// Lifts the barrier, and says whether this call did; also if it may have been this call,
    /// because an answer was lost. False if it was not up.
    ///
    /// If an answer is lost, and it has to ask again, it leaves alone what was raised since.
    ///
    /// # Errors
    ///
    /// As [`raise`](Barrier::raise): without an answer it may be up or not.
    pub fn lift(&self) -> Result<bool> {
        let meant = Arc::<Mutex<Option<i64>>>::default();
        let until = Deadline::after(self.target.client.core().connect_timeout());
        self.target.ask(LIFT, move |session, whole| lift(session, whole, &meant, until))
    }

    /// Whether the barrier is up: asked through the ensemble's leader.
    ///
    /// # Errors
    ///
    /// As [`raise`](Barrier::raise).
    pub fn is_raised(&self) -> Result<bool> {
        self.target.ask(WAIT, |session, whole| match session.confirm(whole) {
            // An ACL hides what is there.
            Err(Fault::NoAuth) => Ok(true),
            found => Ok(found?.is_some()),
        })
    }

    /// Blocks as long as the barrier is up.
    ///
    /// # Errors
    ///
    /// What waiting cannot mend: [`InvalidName`](ErrorKind::InvalidName),
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without READ on the barrier's node,
    /// [`AuthFailed`](ErrorKind::AuthFailed), [`Closed`](ErrorKind::Closed),
    /// [`System`](ErrorKind::System), [`Server`](ErrorKind::Server).
    pub fn wait(&self) -> Result<()> {
        self.wait_by(Wait::FOREVER).map(drop)
    }

    /// As [`wait`](Barrier::wait), for so long at the most: false when it was up until then, or
    /// when the ensemble did not answer. A request that is under way may take up to 50 ms more.
    ///
    /// # Errors
    ///
    /// As [`wait`](Barrier::wait).
    pub fn wait_for(&self, limit: Duration) -> Result<bool> {
        self.wait_by(Wait::until(Deadline::after(limit)))
    }

    /// As [`wait`](Barrier::wait), until any thread trips `cancel`.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled); else as [`wait`](Barrier::wait).
    pub fn wait_with(&self, cancel: &Cancel) -> Result<()> {
        self.wait_by(Wait::unless(cancel)).map(drop)
    }

    fn wait_by(&self, wait: Wait<'_>) -> Result<bool> {
        let look = |view: &mut View<'_>, whole: &str| {
            // A server that lags behind must not be believed that there is none.
            let passes = view.confirm(whole)?.is_none() || view.node(whole)?.is_none();
            Ok(passes.then_some(()))
        };
        Ok(self.target.find(WAIT, wait, look)?.is_some())
    }
}

fn lift(
    session: &Session,
    whole: &str,
    meant: &Mutex<Option<i64>>,
    until: Deadline,
) -> Answer<bool> {
    let begun = *meant.lock();
    let found = session.confirm(whole)?.map(|stat| stat.czxid);
    if begun.is_some() && found != begun {
        return Ok(true);
    }
    if found.is_none() {
        return Ok(false);
    }
    // Nobody waits for it any more, and may raise another one meanwhile.
    if until.has_passed() {
        return Err(Fault::ConnectionLoss);
    }
    *meant.lock() = found;
    match session.delete(whole) {
        Ok(()) => Ok(true),
        Err(Fault::NoNode) => Ok(begun.is_some()),
        Err(fault) => Err(fault),
    }
}
