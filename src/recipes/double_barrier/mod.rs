//! The double barrier: participants enter together and leave together.

mod round;

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use uuid::Uuid;

use round::{Capacity, WaitOutcome, Waiting, all_gone, crowd, withdraw};

use crate::acl::Acl;
use crate::contend::{
    Contention, DROP_LIMIT, Form, Hold, Limits, NodeNaming, acquire, insist, insist_within,
};
use crate::error::{Error, ErrorKind, Result};
use crate::recipes::data::NodeConfig;
use crate::recipes::locks::default_data;
use crate::rt::{self, Deadline};
use crate::session::Purpose;
use crate::session::{Call, Client, View, Wait, cancelled, unanswered};
use crate::{logging, path};

/// Lets a fixed number of participants begin together, and end together.
///
/// [`enter`](DoubleBarrier::enter) waits until all are there, [`leave`](Entered::leave) until all
/// have left. Then the barrier serves the next round, for which a participant that comes early
/// waits.
///
/// # Guarantees
///
/// One transaction decides a round. It takes effect only while each participant's node exists, and
/// participants enter only by this decision. So
///
/// - **a participant that has given up, failed or died never counts.** One that dies counts until
///   its session ends; one that has come again in a new session counts once;
/// - **all enter, or none**: each named participant has entered, even if its timeout is just over;
/// - **nothing stale lets a participant through or blocks it**: a round of which no participant is
///   left is over, and other children, such as Curator's and kazoo's `ready`, mean nothing. Clients
///   of these libraries must not use the path.
///
/// Entering takes six round trips. Only the last participant to come may be woken before the round
/// is complete. In the tests, a hundred that come together at a barrier whose node exists send at
/// most 16 requests each.
///
/// On [a program's own handle](Client#impl-From<Arc<ZooKeeper>>-for-Client) there are no
/// transactions: a participant that leaves while a round is decided may be counted.
///
/// From 1 to 500 can take part. One that names another number than the first one there gets
/// [`Conflict`](ErrorKind::Conflict).
///
/// If all places are taken, perhaps by killed processes whose sessions have not ended, one more
/// participant waits at most the [connect timeout](crate::ClientBuilder::connect_timeout), which
/// should be longer than the session timeout. Then it gets [`Full`](ErrorKind::Full), and has had
/// no effect.
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

/// The result of a withdrawal.
enum Withdrawn {
    /// A round names the participant.
    Entered(Entered),
    /// No round names it, and none will.
    Gone,
    /// There was no answer in time.
    Unknown,
}

/// The most participants: the transaction that decides a round stays well below the largest request
/// that servers accept, however long the path.
const MOST: u32 = 500;

const ENTER: Purpose = Purpose::to_change(
    "enter the double barrier",
    "READ, WRITE, CREATE and DELETE on its node, and READ and WRITE on its participants'",
);
const LEAVE: Purpose = Purpose::to_read("leave the double barrier", "READ on its node");

impl DoubleBarrier {
    /// Returns the double barrier `name` under the path `base` for this number of participants.
    ///
    /// Never fails: the first call reports a bad number, or a bad name, as with
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
        participants: u32,
    ) -> DoubleBarrier {
        let target = NodeConfig::new(zk.into(), base.as_ref(), name.as_ref());
        DoubleBarrier { target, participants }
    }

    /// Returns the path `base/name`.
    pub fn path(&self) -> &str {
        self.target.path()
    }

    /// Sets the ACL of every new node, including missing parents. Default [`Acl::open`].
    ///
    /// Participants need READ, WRITE, CREATE and DELETE on the barrier's node, and READ and WRITE
    /// on the participants' nodes.
    #[must_use = "the value is changed, and returned"]
    pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> DoubleBarrier {
        self.target.acl = acl.into();
        self
    }

    /// Enters, and blocks until all participants have entered.
    ///
    /// A participant that loses its session before that comes again in a new one. If the round was
    /// already decided, it has entered, and its guard reports the loss.
    ///
    /// # Errors
    ///
    /// - [`InvalidArgument`](ErrorKind::InvalidArgument) if the number of participants is not
    ///   allowed.
    /// - [`Conflict`](ErrorKind::Conflict) if others name another number; also if one of them stays
    ///   for the connect timeout beside others that name the same number.
    /// - [`Full`](ErrorKind::Full) if all places are taken for the connect timeout.
    /// - Otherwise as [`DistributedLock::lock`](crate::DistributedLock::lock).
    pub fn enter(&self) -> Result<Entered> {
        insist(|| self.enter_by(&Wait::FOREVER))
    }

    /// Enters, and blocks until all participants have entered, at most `wait`; `None` if some were
    /// missing then.
    ///
    /// A request that is under way may take up to 50 ms more. After `None`, and after
    /// [`Cancelled`](ErrorKind::Cancelled), the call's nodes are gone, including one of a session
    /// that was lost, and no round counts them. If the round is decided before the wait is
    /// cancelled, the participant has entered nevertheless.
    ///
    /// If the ensemble does not answer in these 50 ms, the call fails, and the node is deleted in
    /// the background. A round that is decided before that counts it, as a participant that died a
    /// moment later: even a round of the caller's own next call, in a new session.
    ///
    /// # Errors
    ///
    /// [`Connect`](ErrorKind::Connect) or [`ConnectionLoss`](ErrorKind::ConnectionLoss) at the end
    /// of `wait` if the ensemble did not answer; `Cancelled`; otherwise as
    /// [`enter`](DoubleBarrier::enter), at the end of `wait` if that is sooner.
    pub fn enter_within(&self, wait: impl Into<Wait>) -> Result<Option<Entered>> {
        let wait = wait.into();
        insist_within(&wait, || self.enter_by(&wait))
    }

    fn enter_by(&self, wait: &Wait) -> Result<Option<Entered>> {
        let (contention, begun) = (self.contention()?, rt::now());
        // By its end all requests must be answered, however many there are.
        let call = self.target.call(wait);
        loop {
            let Some(hold) = self.take_place(&contention, &call)? else { return Ok(None) };
            match self.await_round(&hold, &contention.data, call.again()) {
                Ok(Some(WaitOutcome::Entered(round))) => {
                    return Ok(Some(self.entered(hold, round)));
                }
                // Others may still count its node, until the ensemble knows of the loss.
                Ok(Some(WaitOutcome::Lost)) => match self.withdraw(hold, call.again())? {
                    Withdrawn::Entered(entered) => return Ok(Some(entered)),
                    Withdrawn::Gone => {}
                    Withdrawn::Unknown => return self.unknown(wait),
                },
                Ok(None) => {
                    return match self.withdraw(hold, self.parting(wait))? {
                        Withdrawn::Entered(entered) => Ok(Some(entered)),
                        Withdrawn::Gone => over(wait, contention.node),
                        Withdrawn::Unknown => self.unknown(wait),
                    };
                }
                Err(error) => {
                    let in_doubt = error.kind() == ErrorKind::ConnectionLoss;
                    return match self.withdraw(hold, self.parting(wait)) {
                        Ok(Withdrawn::Entered(entered)) => Ok(Some(entered)),
                        Ok(Withdrawn::Gone) if in_doubt => {
                            let waited = rt::now().saturating_duration_since(begun);
                            Err(unanswered(self.target.client.core(), waited, contention.node))
                        }
                        Ok(Withdrawn::Unknown) if error.is_outage() => self.unknown(wait),
                        _ => Err(error),
                    };
                }
            }
        }
    }

    /// The result of a call whose node may be counted until it is deleted.
    fn unknown<T>(&self, wait: &Wait) -> Result<Option<T>> {
        let node = self.target.node()?;
        over::<T>(wait, node)?;
        Err(ENTER.unanswered(self.target.client.core(), true, node))
    }

    /// The call that cleans up after a wait like this one.
    fn parting(&self, wait: &Wait) -> Call {
        let until = wait.late().earlier(Deadline::after(DROP_LIMIT));
        Call::strict(self.target.client.core(), &until.into())
    }

    fn contention(&self) -> Result<Contention<'_>> {
        let (node, participants) = (self.target.node()?, self.participants);
        if participants == 0 || participants > MOST {
            let message = format!("{participants} participants: only 1 to {MOST} are possible");
            return Err(Error::new(ErrorKind::InvalidArgument, message).on(node));
        }
        // Marks all nodes of one call, which may use several sessions one after another.
        let guid = Uuid::from_u128(rt::random());
        let mut data = default_data();
        data.extend(format!(" entry={guid}").bytes());
        Ok(Contention {
            client: &self.target.client,
            node,
            reported_as: node,
            noun: "place in the double barrier",
            data,
            acl: &self.target.acl,
            form: Form::of_permits(NodeNaming::Curator, 1, participants),
            tells_facts: false,
            must_exist: false,
            asks_worse_than: None,
            hold_at_most: None,
        })
    }

    /// Takes a place, as soon as one is free.
    fn take_place(&self, contention: &Contention<'_>, call: &Call) -> Result<Option<Hold>> {
        let wait = call.limit();
        let count = self.count();
        loop {
            let limits = Limits::impatient(wait);
            if let Some(hold) = acquire(contention, limits)? {
                return Ok(Some(hold));
            }
            if wait.until().has_passed() {
                return Ok(None);
            }
            let patience = Deadline::after(self.target.client.core().connect_timeout());
            let mut seen = Capacity::Room;
            let look = |view: &mut View<'_>, whole: &str| {
                seen = crowd(view, whole, count)?;
                Ok((seen == Capacity::Room).then_some(()))
            };
            let limited = call.again().earlier(patience);
            if self.target.find_or_none(ENTER, limited, look)?.is_some() {
                continue;
            }
            let error = match seen {
                Capacity::Full => {
                    let message = format!("no place is free: all {count} are taken; retry later");
                    Error::new(ErrorKind::Full, message)
                }
                Capacity::Odd(other) => {
                    let message =
                        format!("size mismatch: another client names {other}, this call {count}");
                    Error::new(ErrorKind::Conflict, message)
                }
                Capacity::Room | Capacity::Locks if wait.until().has_passed() => return Ok(None),
                Capacity::Room | Capacity::Locks => continue,
            };
            return Err(error.on(contention.node));
        }
    }

    fn await_round(&self, hold: &Hold, data: &[u8], call: Call) -> Result<Option<WaitOutcome>> {
        let mut waiting = Waiting::new(hold, data, self.count());
        self.target.find(ENTER, call, |view, whole| waiting.look(view, whole))
    }

    /// Withdraws, unless a decided round names this participant; works in any session.
    fn withdraw(&self, hold: Hold, call: Call) -> Result<Withdrawn> {
        let (own, owner) = (path::last(hold.path()).to_owned(), hold.held_node().session_id);
        let look = |view: &mut View<'_>, whole: &str| {
            if view.session.id() != owner {
                // This session's server may lag behind, and not show the node or the round.
                view.session.sync()?;
            }
            // The node's deletion below must not be reported as a loss.
            drop(hold.held_node().leave());
            withdraw(view.session, whole, &own).map(Some)
        };
        match self.target.find_or_none(ENTER, call, look) {
            Ok(Some(Some(round))) => Ok(Withdrawn::Entered(self.entered(hold.again(), round))),
            Ok(Some(None)) => {
                hold.forget_node();
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
        // Each participant first waits for the one after it, so that not all wait for the same one.
        let own = path::last(hold.path());
        let target = round.iter().position(|name| name == own).unwrap_or_default();
        round.rotate_left(target);
        Entered { target: self.target.clone(), hold, round }
    }

    fn count(&self) -> usize {
        usize::try_from(self.participants).unwrap_or(usize::MAX)
    }
}

/// What a call returns if it found nothing before the time was over.
fn over<T>(wait: &Wait, node: &str) -> Result<Option<T>> {
    if wait.is_cancelled() { Err(cancelled(node)) } else { Ok(None) }
}

/// A participant's place inside a [`DoubleBarrier`]; dropping it leaves, without waiting for the
/// others.
#[must_use = "if unused the participant leaves immediately"]
#[clippy::has_significant_drop]
pub struct Entered {
    target: NodeConfig,
    hold: Hold,
    /// All participants of the round, this one first.
    round: Vec<String>,
}

impl Entered {
    /// Leaves, and blocks until all participants of the round have left, or died.
    ///
    /// # Errors
    ///
    /// - [`SessionLost`](ErrorKind::SessionLost), [`NodeDeleted`](ErrorKind::NodeDeleted) or
    ///   [`Closed`](ErrorKind::Closed) at once if the participant was not inside any more.
    /// - [`NotAuthorized`](ErrorKind::NotAuthorized) without DELETE on the barrier's node.
    /// - Others that [end every wait](crate::guide#what-ends-every-wait).
    pub fn leave(self) -> Result<()> {
        let Entered { target, hold, round } = self;
        hold.release()?;
        let look = |view: &mut View<'_>, whole: &str| all_gone(view, whole, &round);
        target.find(LEAVE, target.call(&Wait::FOREVER), look).map(drop)
    }

    /// Leaves, and waits for the others to leave, at most `wait`; returns false if some were still
    /// inside then. It has left in any case.
    ///
    /// # Errors
    ///
    /// [`Connect`](ErrorKind::Connect) at the end of `wait` if no server answered whether the
    /// others have left; [`Cancelled`](ErrorKind::Cancelled); otherwise as
    /// [`leave`](Entered::leave).
    pub fn leave_within(self, wait: impl Into<Wait>) -> Result<bool> {
        let wait = wait.into();
        let Entered { target, hold, round } = self;
        hold.check()?;
        hold.let_go(Deadline::after(DROP_LIMIT).earlier(wait.until()));
        let look = |view: &mut View<'_>, whole: &str| all_gone(view, whole, &round);
        Ok(target.find(LEAVE, target.call(&wait), look)?.is_some())
    }
}

impl Deref for Entered {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered")
            .field("path", &self.path())
            .field("participants", &self.round.len())
            .field("is_held", &self.is_held())
            .finish()
    }
}
