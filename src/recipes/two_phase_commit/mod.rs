//! Two-phase commit.

mod coordinator;
mod participant;
mod round;

pub use coordinator::Coordinator;
pub use participant::Participant;
pub use round::{Decision, ParticipantState, RoundState, Vote};

use uuid::Uuid;

use round::{Round, no_round, read, size};

use crate::error::{Error, ErrorKind, Result};
use crate::recipes::data::{Attempts, NodeConfig, make_once, placed};
use crate::session::{Answer, Fault, Names, Purpose, Session, Step, Wait};
use crate::wire_values::Stat;
use crate::{path, rt};

/// One round in which all participants commit, or all abort.
///
/// A [`Coordinator`] begins the round and names the participants. Each participant
/// [joins](Self::join), prepares its work, and [votes](Participant::vote). If all have voted yes,
/// the coordinator decides to commit, otherwise to abort. Every participant learns the
/// [decision](Participant::decision). A vote wakes one client, the coordinator.
///
/// # Guarantees
///
/// - **There is one decision**, however many coordinators there are: one transaction makes it.
/// - **It is to commit only if every participant has voted yes and is alive**: that transaction
///   takes effect only while the nodes of all are there. If a participant votes no, dies or does
///   not vote in time, the round is aborted.
/// - **It stays** until a client [forgets](Self::forget) the round: a participant can learn it
///   after a restart.
/// - A participant has one vote, which it cannot change, not even after a restart.
///
/// Each participant must make its work durable before it votes yes, and must complete or undo it as
/// decided, even after a crash.
///
/// Two-phase commit blocks: a participant that has voted yes must neither commit nor abort before
/// it knows the decision, and if the coordinator dies first, there is none. The library does not
/// decide by itself then. Any client may [recover](Self::recover) the round, to decide it or to
/// [abort](Coordinator::abort) it. If two coordinators try to decide, one of them succeeds and the
/// other learns the decision.
///
/// On [a program's own handle](crate::Client#impl-From<Arc<ZooKeeper>>-for-Client) there are no
/// transactions. There is still one decision, but the round may be committed without a participant
/// that dies at that moment, and a vote may be half cast.
///
/// ```no_run
/// use std::time::Duration;
/// use zklock::commit::{Decision, Vote};
/// use zklock::{Client, TwoPhaseCommit};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let transfer = TwoPhaseCommit::new(&zk, "/commits", "transfer-17");
/// let coordinator = transfer.begin(&["orders", "stock"])?;
///
/// // Each participant, in a process of its own:
/// let orders = transfer.join("orders")?;
/// orders.vote(Vote::Yes)?;
/// let stock = transfer.join("stock")?;
/// stock.vote(Vote::Yes)?;
///
/// let decision = coordinator.decide_or_abort_within(Duration::from_secs(10))?;
/// assert_eq!(decision, Decision::Commit);
/// assert_eq!(orders.decision()?, decision);
/// assert_eq!(stock.decision()?, decision);
/// transfer.forget()?; // when all have done what was decided
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TwoPhaseCommit {
    target: NodeConfig,
}

/// The limit for the largest request of a round, in bytes. Servers accept 1 MiB.
const MOST_BYTES: usize = 900_000;

const BEGIN: Purpose = Purpose::to_change("begin the round", "CREATE on its parent");
const READ: Purpose = Purpose::to_read("read the round", "READ on its node");
const FORGET: Purpose =
    Purpose::to_change("remove the round", "DELETE on its node and on the parent");

placed!(
    TwoPhaseCommit,
    "Returns a handle of the round at the node `base/name`",
    "Another round can be there only after [`forget`](TwoPhaseCommit::forget). Participants need READ, CREATE and DELETE on the round's node; the coordinator also WRITE."
);

impl TwoPhaseCommit {
    /// Begins the round with these participants; each name must be valid as a component of a path.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) if the round has begun already;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for no participants, one that is named
    /// twice, or more than fit into a request; [`ConnectionLoss`](ErrorKind::ConnectionLoss) if a
    /// request had no answer within the connect timeout, or the session was lost with a reply: the round
    /// may have begun, even if it does not exist now; otherwise as for [`Znode`](crate::Znode#errors).
    pub fn begin<S: AsRef<str>>(&self, participants: &[S]) -> Result<Coordinator> {
        let node = self.target.node()?;
        let id = Uuid::from_u128(rt::random()).to_string();
        let round = Round::new(id, participants.iter().map(S::as_ref));
        round.check(node)?;
        let bytes = size(&round, &self.target.whole()?);
        if bytes > MOST_BYTES {
            let message = format!(
                "too many participants: requests of {bytes} bytes, at most {MOST_BYTES} are allowed"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message).on(node));
        }
        let mut attempts = Attempts::new(self.target.client.core());
        let begun = self.target.ask(BEGIN, |session, whole| {
            let is_ours = |data: &[u8]| Round::parse(data).is_some_and(|one| one.id == round.id);
            make_once(session, whole, &round.write(), &self.target.acl, is_ours, &mut attempts)
        })?;
        match begun {
            Some(true) => Ok(Coordinator::new(self.target.clone(), round)),
            Some(false) => {
                let message = "the round exists already: recover it, or forget it if it has ended";
                Err(Error::new(ErrorKind::AlreadyExists, message).on(node))
            }
            None => {
                let message = "a reply was lost: the round does not exist now, but may have begun, \
                               and others may have decided and forgotten it";
                Err(Error::new(ErrorKind::ConnectionLoss, message).on(node))
            }
        }
    }

    /// Takes over a round whose coordinator may be gone, to decide it or to learn its decision.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such round; otherwise as
    /// [`begin`](TwoPhaseCommit::begin).
    pub fn recover(&self) -> Result<Coordinator> {
        let found = self.target.ask(READ, read)?;
        let (round, _) = found.ok_or_else(|| no_round(&self.target))?;
        Ok(Coordinator::new(self.target.clone(), round))
    }

    /// Joins the round under one of the names that the coordinator has given.
    ///
    /// The round can be committed only while the [`Participant`] and its session live. A
    /// participant that joins again, after a restart, keeps its vote. It can also join a decided
    /// round, to learn the decision.
    ///
    /// If the name is in use, the call waits as [`Group::join`](crate::Group::join) does.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such round;
    /// [`InvalidName`](ErrorKind::InvalidName) for a name that is not a participant's;
    /// [`Taken`](ErrorKind::Taken) if the name was in use all that time; otherwise as
    /// [`begin`](TwoPhaseCommit::begin).
    pub fn join(&self, participant: impl AsRef<str>) -> Result<Participant> {
        let limit = self.target.client.core().connect_timeout();
        self.join_within(participant, limit)
    }

    /// Joins the round as [`join`](TwoPhaseCommit::join) does, within `wait` instead of the connect
    /// timeout.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled); otherwise as [`join`](TwoPhaseCommit::join).
    pub fn join_within(
        &self,
        participant: impl AsRef<str>,
        wait: impl Into<Wait>,
    ) -> Result<Participant> {
        Participant::join(&self.target, participant.as_ref(), &wait.into())
    }

    /// Returns the participants, their votes, and the decision, all of the same moment; `None` if
    /// there is no such round.
    ///
    /// Asks the ensemble's leader first.
    ///
    /// # Errors
    ///
    /// As [`begin`](TwoPhaseCommit::begin).
    pub fn state(&self) -> Result<Option<RoundState>> {
        self.target.ask(READ, |session, whole| {
            loop {
                let Some(before) = session.confirm(whole)? else { return Ok(None) };
                let Some(children) = session.names(whole, false)? else { return Ok(None) };
                let found = session.read(whole, false)?;
                // If the round was decided or begun anew in between, the list may be older.
                let is_same = |(_, stat): &(_, Stat)| {
                    (stat.czxid, stat.version) == (before.czxid, before.version)
                };
                if found.as_ref().is_none_or(is_same) {
                    let round = Round::of(found)?;
                    return Ok(round.map(|(round, _)| RoundState::new(&round, &children)));
                }
            }
        })
    }

    /// Removes a decided round, with its votes and its decision; returns `false`, and removes
    /// nothing, if it is not decided yet.
    ///
    /// Call it only when every participant has done what was decided: one that comes later cannot
    /// learn the decision any more.
    ///
    /// If a reply was lost, the request may be carried out [later](crate::Error::may_have_taken_effect),
    /// until the session has ended: then it removes a round that has begun under this name and was decided
    /// since, if it has the same participants' nodes. Give each round a name of its own.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such round, which may also be the effect of
    /// a lost reply; [`Server`](ErrorKind::Server) if another client has created children of one of
    /// the round's children, which the message names; otherwise as
    /// [`begin`](TwoPhaseCommit::begin).
    pub fn forget(&self) -> Result<bool> {
        let mut meant = None;
        let forgotten =
            self.target.ask(FORGET, |session, whole| forget(session, whole, &mut meant))?;
        forgotten.ok_or_else(|| no_round(&self.target))
    }
}

/// Removes the round that was found first, but no later round of the same name.
fn forget(session: &Session, whole: &str, meant: &mut Option<String>) -> Answer<Option<bool>> {
    loop {
        let found = read(session, whole)?;
        let is_first = meant.is_none();
        let (round, version) = match found {
            Some((round, version)) if is_first || meant.as_ref() == Some(&round.id) => {
                (round, version)
            }
            // An earlier attempt has removed it.
            _ => return Ok((!is_first).then_some(true)),
        };
        if round.decision.is_none() {
            return Ok(Some(false));
        }
        *meant = Some(round.id);
        let children = session.names(whole, false)?.unwrap_or_default();
        let paths = children.iter().map(|child| path::join(whole, child));
        // A round that has begun since has another version, because it is not decided yet.
        let same = Step::Check { path: whole.to_owned(), version: Some(version) };
        let deletes = paths.chain([whole.to_owned()]).map(Step::delete);
        let steps: Vec<Step> = [same].into_iter().chain(deletes).collect();
        match session.transact(&steps) {
            Ok(()) => return Ok(Some(true)),
            Err(Fault::NotEmpty) => {
                if let Some(parent) = parent_among(session, whole, &children)? {
                    let message =
                        format!("its child {parent:?} has children of its own: delete them first");
                    return Err(Fault::Refused(message));
                }
                // A child was created meanwhile: list again.
            }
            // A participant has gone, or the round was removed: look again.
            Err(Fault::NoNode | Fault::BadVersion) => {}
            Err(fault) => return Err(fault),
        }
    }
}

/// One of the children that has children.
fn parent_among(session: &Session, whole: &str, children: &Names) -> Answer<Option<String>> {
    for child in children.iter() {
        if session.confirm(&path::join(whole, child))?.is_some_and(|stat| stat.children > 0) {
            return Ok(Some(child.to_owned()));
        }
    }
    Ok(None)
}
