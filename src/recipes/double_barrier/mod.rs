//! The double barrier: participants enter together and leave together.

mod round;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use round::{Capacity, WaitOutcome, Waiting, all_gone, crowd, withdraw};

use super::lock_config::default_data;
use super::node_config::{NodeConfig, Purpose, Wait};
use crate::acl::Acl;
use crate::contend::acquire::{Contention, Limits, acquire, insist};
use crate::contend::hold::{DROP_LIMIT, Hold};
use crate::contend::loss_reason::LossReason;
use crate::contend::ticket::{Form, Guid, NodeNaming};
use crate::contend::watchdog::Lost;
use crate::error::{Error, ErrorKind, Result};
use crate::logging;
use crate::path;
use crate::rt::{self, Deadline, Mutex};
use crate::session::cancel::Cancel;
use crate::session::client::Client;
use crate::session::watch_loop::View;

/// Lets so many participants begin together, and end together.
///
/// [`enter`](DoubleBarrier::enter) waits until all are there, [`leave`](Entered::leave) until all
/// have left. Then the same barrier serves the next round; who comes early waits for the last one
/// to end.
///
/// # Guarantees
///
/// A round is decided by one transaction, which names its participants in the data of the node
/// `base/name`, and takes effect only while the node of each of them is there. Everybody enters by
/// that alone. So
///
/// - **a participant that has given up, failed or died never counts**: it goes as if it had not
///   come. One that dies counts until its session ends, which is when the ensemble knows of it;
///   one that has come again in a new session counts once;
/// - **all enter, or none**: whoever is named has entered, also when its time is just over;
/// - **nothing stale lets anybody through or holds anybody up**: a round of which nobody is there
///   any more is over, and children that are no participants, as Curator's and kazoo's `ready`,
///   mean nothing. Clients of these cannot take part, nor must they use the path.
///
/// Nobody is woken before the round is complete, however many wait. To come takes one round trip to
/// take a place, one to say that it counts from then on, and four to look; the last one
/// reads the others' nodes, and decides.
///
/// Over a handle of the program's own ([`Client`]'s `From<Arc<ZooKeeper>>`) there are no
/// transactions: what decides a round is asked step by step, and who goes at that moment may be
/// counted.
///
/// # The number of participants
///
/// From 1 to 500, and all must name the same: whoever names another than the first one there gets
/// the error [`Disagreement`](ErrorKind::Disagreement). One more than there may be waits for a place,
/// as one may belong to an earlier run of its program that was killed, until that session ends: up to
/// the [connect time-out](crate::ClientBuilder::connect_timeout), which should be longer than the
/// session time-out. Then it gets the error [`Full`](ErrorKind::Full), and has had no effect.
///
/// # Example
///
/// ```no_run
/// use zklock::{Client, DoubleBarrier};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let barrier = DoubleBarrier::new(&zk, "/barriers", "step", 3);
/// let entered = barrier.enter()?; // until there are three
/// println!("all are here; {} to compute", entered.path());
/// entered.leave()?; // until all three have finished
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DoubleBarrier {
    target: NodeConfig,
    participants: u32,
}

/// How going has ended.
enum Withdrawn {
    /// A round names it.
    Entered(Entered),
    /// No round names it, or ever will.
    Gone,
    /// There was no answer in time.
    Unknown,
}

/// The most participants: so that what decides a round stays well below the largest request that
/// servers take, whatever the path.
const MOST: u32 = 500;

const ENTER: Purpose = Purpose {
    tried: "enter the double barrier",
    needs: "READ, WRITE, CREATE and DELETE on its node, and READ and WRITE on its participants'",
};
const LEAVE: Purpose = Purpose { tried: "leave the double barrier", needs: "READ on its node" };

impl DoubleBarrier {
    /// The double barrier `name` under the path `base`, for so many participants: as
    /// [`DistributedLock::new`](crate::DistributedLock::new). A number of them that cannot be is
    /// reported by the first call.
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
        participants: u32,
    ) -> DoubleBarrier {
        DoubleBarrier::builder(zk, base, name, participants).build()
    }

    /// As [`new`](DoubleBarrier::new), with settings.
    pub fn builder(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
        participants: u32,
    ) -> DoubleBarrierBuilder {
        let target = NodeConfig::new(zk.into(), base.as_ref(), name.as_ref());
        DoubleBarrierBuilder { barrier: DoubleBarrier { target, participants } }
    }

    /// How many it is for.
    pub fn participants(&self) -> u32 {
        self.participants
    }

    /// Blocks until all participants are there.
    ///
    /// A participant that loses its session before that comes again in a new one. One whose session
    /// is lost when the round is decided already has entered, and its guard says that it is lost.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](ErrorKind::InvalidName); [`InvalidData`](ErrorKind::InvalidData) for a number
    /// of participants that cannot be; [`Disagreement`](ErrorKind::Disagreement) if others name
    /// another, also if one of them stays for the connect time-out beside those who name the same;
    /// [`Full`](ErrorKind::Full) if so many others are there for the connect time-out;
    /// [`NotAuthorized`](ErrorKind::NotAuthorized); else as
    /// [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn enter(&self) -> Result<Entered> {
        insist(|| self.enter_by(Wait::FOREVER))
    }

    /// As [`enter`](DoubleBarrier::enter), for so long at the most: `None` when there were not
    /// enough by then. A request that is under way may take up to 50 ms more.
    ///
    /// With `None` its nodes are gone, also one of a session that was lost, and no round counts them.
    /// Only if the ensemble does not answer in
    /// these 50 ms, as the log says then, the node is deleted in the background, and a round that is
    /// decided before counts it, as it would count one that died a moment later: even a round of the
    /// caller's own next call, in a new session.
    ///
    /// # Errors
    ///
    /// As [`enter`](DoubleBarrier::enter), at the end of the limit if that is sooner than the connect
    /// time-out.
    pub fn enter_for(&self, limit: Duration) -> Result<Option<Entered>> {
        self.enter_by(Wait::until(Deadline::after(limit)))
    }

    /// As [`enter`](DoubleBarrier::enter), until any thread trips `cancel`. If the round is decided
    /// by then, it has entered all the same.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled), with which the node is as gone as with the `None` of
    /// [`enter_for`](DoubleBarrier::enter_for); else as [`enter`](DoubleBarrier::enter).
    pub fn enter_with(&self, cancel: &Cancel) -> Result<Entered> {
        insist(|| self.enter_by(Wait::unless(cancel)))
    }

    fn enter_by(&self, wait: Wait<'_>) -> Result<Option<Entered>> {
        let contention = self.contention()?;
        loop {
            let Some(hold) = self.take_place(&contention, wait)? else { return Ok(None) };
            match self.await_round(&hold, &contention.data, wait) {
                Ok(Some(WaitOutcome::Entered(round))) => {
                    return Ok(Some(self.entered(hold, round)));
                }
                // Others may still count it, until the ensemble knows of that.
                Ok(Some(WaitOutcome::Lost)) => match self.withdraw(hold, wait)? {
                    Withdrawn::Entered(entered) => return Ok(Some(entered)),
                    Withdrawn::Gone => {}
                    Withdrawn::Unknown => return wait.over(&contention.node),
                },
                Ok(None) => {
                    return match self.withdraw(hold, wait.parting())? {
                        Withdrawn::Entered(entered) => Ok(Some(entered)),
                        Withdrawn::Gone | Withdrawn::Unknown => wait.over(&contention.node),
                    };
                }
                Err(error) => {
                    return match self.withdraw(hold, wait.parting()) {
                        Ok(Withdrawn::Entered(entered)) => Ok(Some(entered)),
                        _ => Err(error),
                    };
                }
            }
        }
    }

    fn contention(&self) -> Result<Contention> {
        let (node, participants) = (self.target.node()?.to_owned(), self.participants);
        if participants == 0 || participants > MOST {
            let message = format!("a double barrier is for 1 to {MOST}, not {participants}");
            return Err(Error::new(ErrorKind::InvalidData, message).on(node));
        }
        // By what the nodes of one call are known, though it may take one session after another.
        let guid = Guid::from_u128(rt::random());
        let mut data = default_data();
        data.extend(format!(" entry={guid}").bytes());
        Ok(Contention {
            client: self.target.client.clone(),
            node,
            data,
            acl: self.target.acl.clone(),
            form: Form::of_permits(NodeNaming::Curator, 1, participants),
            must_exist: false,
        })
    }

    /// One of so many places, as soon as there is one.
    fn take_place(&self, contention: &Contention, wait: Wait<'_>) -> Result<Option<Hold>> {
        let count = self.count();
        loop {
            let limits = Limits { deadline: wait.until, patient: false, cancel: wait.cancel };
            if let Some(hold) = acquire(contention, limits)? {
                return Ok(Some(hold));
            }
            if wait.until.has_passed() {
                return Ok(None);
            }
            let patience = Deadline::after(self.target.client.core().connect_timeout());
            let seen = Arc::new(Mutex::new(Capacity::Room));
            let sees = Arc::clone(&seen);
            let look = move |view: &mut View<'_>, whole: &str| {
                let now = crowd(view, whole, count)?;
                *sees.lock() = now;
                Ok((now == Capacity::Room).then_some(()))
            };
            let limited = Wait { until: wait.until.earlier(patience), ..wait };
            if self.target.find(ENTER, limited, look)?.is_some() {
                continue;
            }
            let crowd = *seen.lock();
            let error = match crowd {
                Capacity::Full => {
                    let message = format!("{count} others are there, and it is for {count}");
                    Error::new(ErrorKind::Full, message)
                }
                Capacity::Odd(other) => {
                    let message =
                        format!("one of the others is for {other}, and this is for {count}");
                    Error::new(ErrorKind::Disagreement, message)
                }
                Capacity::Room | Capacity::Locks if wait.until.has_passed() => return Ok(None),
                Capacity::Room | Capacity::Locks => continue,
            };
            return Err(error.on(&contention.node));
        }
    }

    fn await_round(&self, hold: &Hold, data: &[u8], wait: Wait<'_>) -> Result<Option<WaitOutcome>> {
        let waiting = Waiting::new(hold, data, self.count());
        self.target.find(ENTER, wait, move |view, whole| waiting.look(view, whole))
    }

    /// Goes, unless a round has been decided with this participant; in whichever session.
    fn withdraw(&self, hold: Hold, wait: Wait<'_>) -> Result<Withdrawn> {
        let (own, owner) = (path::last(hold.path()).to_owned(), hold.held_node().session_id());
        let held_node = Arc::clone(hold.held_node());
        let look = move |view: &mut View<'_>, whole: &str| {
            if view.id() != owner {
                // Its server may not have heard of the node, or of the round.
                view.sync()?;
            }
            // Its going is no loss.
            drop(held_node.leave());
            withdraw(view, whole, &own).map(Some)
        };
        match self.target.find(ENTER, wait, look) {
            Ok(Some(Some(round))) => Ok(Withdrawn::Entered(self.entered(hold.again(), round))),
            Ok(Some(None)) => {
                hold.has_gone();
                Ok(Withdrawn::Gone)
            }
            Ok(None) => {
                logging::warning!(
                    target: "zklock::contend",
                    "double barrier {:?}: timed out without an answer, deleting the node in the \
                     background",
                    self.target.node().unwrap_or_default()
                );
                hold.let_go(Deadline::after(Duration::ZERO));
                Ok(Withdrawn::Unknown)
            }
            Err(error) => {
                hold.let_go(Deadline::after(Duration::ZERO));
                Err(error)
            }
        }
    }

    fn entered(&self, hold: Hold, mut round: Vec<String>) -> Entered {
        // Each waits for the next one first, so that not all wait for the same.
        let own = path::last(hold.path());
        let target = round.iter().position(|name| name == own).unwrap_or_default();
        round.rotate_left(target);
        Entered { target: self.target.clone(), hold, round }
    }

    fn count(&self) -> usize {
        usize::try_from(self.participants).unwrap_or(usize::MAX)
    }
}

/// One that has entered a [`DoubleBarrier`]. Dropped, it has left, without waiting for the others.
#[must_use = "if unused the participant leaves immediately"]
#[clippy::has_significant_drop]
pub struct Entered {
    target: NodeConfig,
    hold: Hold,
    /// All of the round, this one first.
    round: Vec<String>,
}

impl Entered {
    /// Leaves, and blocks until all of the round have left, or died.
    ///
    /// # Errors
    ///
    /// [`SessionLost`](ErrorKind::SessionLost), [`LockLost`](ErrorKind::LockLost) or
    /// [`Closed`](ErrorKind::Closed) if it was not inside any more: then the others are not waited
    /// for. [`NotAuthorized`](ErrorKind::NotAuthorized) without DELETE on the barrier's node, and
    /// what waiting cannot mend else.
    pub fn leave(self) -> Result<()> {
        let Entered { target, hold, round } = self;
        hold.release()?;
        let look = move |view: &mut View<'_>, whole: &str| all_gone(view, whole, &round);
        target.find(LEAVE, Wait::FOREVER, look).map(drop)
    }

    /// As [`leave`](Entered::leave), for so long at the most: false when others are still inside, or
    /// when the ensemble did not answer. This one has left in any case. A request that is under way
    /// may take up to 50 ms more.
    ///
    /// # Errors
    ///
    /// As [`leave`](Entered::leave).
    pub fn leave_for(self, limit: Duration) -> Result<bool> {
        let until = Deadline::after(limit);
        let Entered { target, hold, round } = self;
        hold.check()?;
        hold.let_go(Deadline::after(DROP_LIMIT).earlier(until));
        let look = move |view: &mut View<'_>, whole: &str| all_gone(view, whole, &round);
        Ok(target.find(LEAVE, Wait::until(until), look)?.is_some())
    }

    /// How many have entered together.
    pub fn participants(&self) -> usize {
        self.round.len()
    }

    /// Whether it is inside for all that is known here: as
    /// [`LockGuard::is_held`](crate::LockGuard::is_held). For the others it has left when it is not.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// A handle by which any thread can wait for the loss of its place.
    pub fn lost(&self) -> Lost {
        self.hold.lost()
    }

    /// Calls `callback`, once, when its place is lost: as
    /// [`LockGuard::on_lost`](crate::LockGuard::on_lost).
    pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        self.hold.on_lost(Box::new(callback));
    }

    /// The participant's node, as the client names it.
    pub fn path(&self) -> &str {
        self.hold.path()
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered")
            .field("path", &self.path())
            .field("participants", &self.participants())
            .field("is_held", &self.is_held())
            .finish()
    }
}

/// Settings of a [`DoubleBarrier`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct DoubleBarrierBuilder {
    barrier: DoubleBarrier,
}

impl DoubleBarrierBuilder {
    /// The ACL of every node that the barrier makes: missing parents, its own node, and
    /// participants. Default [`Acl::open`].
    ///
    /// Whoever takes part needs READ, WRITE, CREATE and DELETE on the barrier's node, and READ
    /// and WRITE on the participants'.
    pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> DoubleBarrierBuilder {
        self.barrier.target.acl = acl.into();
        self
    }

    /// The double barrier with these settings.
    pub fn build(self) -> DoubleBarrier {
        self.barrier
    }
}
