//! Two-phase commit.

pub(crate) mod coordinator;
pub(crate) mod participant;
pub(crate) mod round;

use std::sync::Arc;

use coordinator::Coordinator;
use participant::Participant;
use round::{Decision, Round, RoundState, read, size};

use self::round::no_round;
use super::node_config::{NodeConfig, Purpose, placed};
use crate::contend::ticket::Guid;
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::rt::{self, Deadline, Mutex};
use crate::session::connection::{Answer, Fault, Stat, Step};
use crate::session::create_parents::{Stamp, make_once};
use crate::session::session::Session;

/// One round in which all participants commit, or all abort.
///
/// A [`Coordinator`] begins it and names the participants; each of them [joins](Self::join), makes
/// ready, and [votes](Participant::vote). When all have voted yes the coordinator decides to commit,
/// else to abort; and every participant learns the [decision](Participant::decision).
///
/// The round is the persistent node `base/name`, whose data name the participants and, once it is
/// there, the decision. Its children show the rest in one listing: `here-<participant>`, which is
/// ephemeral, `yes-<participant>` or `no-<participant>`, and `commit` or `abort`. Only the
/// coordinator watches them; participants watch the round's node, so that a vote wakes one client.
///
/// # Guarantees
///
/// - **There is one decision**, however many coordinators there are: it is made by one transaction,
///   which nobody can make a second time.
/// - **It is to commit only if every participant has voted yes and is alive**: that transaction
///   takes effect only while the nodes of all are there. One who votes no, dies or does not vote in
///   time has the round aborted.
/// - **It stays**, until somebody [forgets](Self::forget) the round: whoever restarts can learn it.
/// - A participant has one vote, which it cannot change, also not after a restart.
///
/// # When the coordinator is gone
///
/// Two-phase commit blocks: a participant that has voted yes must neither commit nor abort before it
/// knows the decision, and if the coordinator dies first, there is none. Nothing decides by itself
/// then, as the coordinator may be slow only. Anybody may [recover](Self::recover) the round, as
/// another coordinator: to decide it as the first would have, or to [abort](Coordinator::abort) it.
/// If both are at it, one of them decides and the other learns what. What a participant does for
/// a decision is its own affair: it has to make its work durable before it votes yes, and to do, or
/// undo, what was decided also after a crash.
///
/// Over a handle of the program's own ([`Client`](crate::Client)'s `From<Arc<ZooKeeper>>`) there are no
/// transactions: the steps are taken one by one. There is still one decision; but a participant that
/// dies at that moment may be committed without, and a vote may be half cast.
///
/// # Example
///
/// ```no_run
/// use std::time::Duration;
/// use zklock::{Client, Decision, TwoPhaseCommit};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let transfer = TwoPhaseCommit::new(&zk, "/commits", "transfer-17");
/// let coordinator = transfer.begin(&["orders", "stock"])?;
///
/// // Each participant, in a process of its own:
/// let orders = transfer.join("orders")?;
/// orders.vote_yes()?;
/// let stock = transfer.join("stock")?;
/// stock.vote_yes()?;
///
/// let decision = coordinator.decide_for(Duration::from_secs(10))?;
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

/// What the largest request of a round may take, of the 1 MiB that servers accept.
const MOST_BYTES: usize = 900_000;

const BEGIN: Purpose = Purpose { tried: "begin the round", needs: "CREATE on its parent" };
const READ: Purpose = Purpose { tried: "read the round", needs: "READ on its node" };
const FORGET: Purpose =
    Purpose { tried: "remove the round", needs: "DELETE on its node and on the parent" };

placed!(
    TwoPhaseCommit,
    TwoPhaseCommitBuilder,
    "The round `name` under the path `base`, which is its own until the round is forgotten",
    "Participants need READ, CREATE and DELETE on the round's node; the coordinator WRITE, too."
);

impl TwoPhaseCommit {
    /// Begins the round, with these participants: each a name that can be a component of a path.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) if it has begun already;
    /// [`InvalidName`](ErrorKind::InvalidName); [`InvalidData`](ErrorKind::InvalidData) for no
    /// participants, one that is named twice, or more than fit into a request;
    /// [`NotAuthorized`](ErrorKind::NotAuthorized); [`Connect`](ErrorKind::Connect) or
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) without an answer within the
    /// [connect time-out](crate::ClientBuilder::connect_timeout): it may have begun. `ConnectionLoss`
    /// also when an answer was lost and there is no such round now, but may have been in the meantime.
    pub fn begin<S: AsRef<str>>(&self, participants: &[S]) -> Result<Coordinator> {
        let node = self.target.node()?;
        let id = Guid::from_u128(rt::random()).to_string();
        let round = Round::new(id, participants.iter().map(S::as_ref));
        round.check(node)?;
        let bytes = size(&round, &self.target.whole()?);
        if bytes > MOST_BYTES {
            let message = format!(
                "so many participants take requests of {bytes} bytes, and {MOST_BYTES} are allowed"
            );
            return Err(Error::new(ErrorKind::InvalidData, message).on(node));
        }
        let (begins, acl) = (round.clone(), self.target.acl.clone());
        let before = Arc::<Mutex<Option<Stamp>>>::default();
        let until = Deadline::after(self.target.client.core().connect_timeout());
        let begun = self.target.ask(BEGIN, move |session, whole| {
            let is_ours = |data: &[u8]| Round::parse(data).is_some_and(|one| one.id == begins.id);
            make_once(session, whole, &begins.write(), &acl, is_ours, &before, until)
        })?;
        match begun {
            Some(true) => Ok(Coordinator::new(self.target.clone(), round)),
            Some(false) => {
                let message = "there is such a round; recover it, or forget it if it has ended";
                Err(Error::new(ErrorKind::AlreadyExists, message).on(node))
            }
            None => {
                let message = "the answer to beginning the round was lost; it is not there, but may \
                               have begun, and been decided and forgotten by others";
                Err(Error::new(ErrorKind::ConnectionLoss, message).on(node))
            }
        }
    }

    /// Takes up a round whose coordinator may be gone, to decide it or to learn its decision.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such round; else as
    /// [`begin`](TwoPhaseCommit::begin).
    pub fn recover(&self) -> Result<Coordinator> {
        let found = self.target.ask(READ, read)?;
        let (round, _) = found.ok_or_else(|| no_round(&self.target))?;
        Ok(Coordinator::new(self.target.clone(), round))
    }

    /// Takes part under one of the names that the coordinator has given; as long as the
    /// [`Participant`] lives, and its session, the round can be committed.
    ///
    /// After a restart the participant joins again, and finds its vote kept; also when the round is
    /// decided already, to learn how. Where another has the name, such as the session of its former
    /// process, it waits for that to end, up to the
    /// [connect time-out](crate::ClientBuilder::connect_timeout): this should be longer than the
    /// session time-out.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such round;
    /// [`InvalidName`](ErrorKind::InvalidName) for a name that is none of the participants';
    /// [`Taken`](ErrorKind::Taken) if another takes part under it all that time; else as
    /// [`begin`](TwoPhaseCommit::begin).
    pub fn join(&self, participant: impl AsRef<str>) -> Result<Participant> {
        Participant::join(&self.target, participant.as_ref())
    }

    /// Who is here, who has voted what, and the decision, all as at one moment: by one listing, after
    /// the server has caught up with the leader. `None` if there is no such round.
    ///
    /// # Errors
    ///
    /// As [`begin`](TwoPhaseCommit::begin).
    pub fn state(&self) -> Result<Option<RoundState>> {
        self.target.ask(READ, |session, whole| {
            loop {
                let Some(before) = session.confirm(whole)? else { return Ok(None) };
                let Some(children) = session.children(whole, false)? else { return Ok(None) };
                let found = session.read(whole, false)?;
                // Decided, or begun anew, in between: the list may be of before.
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

    /// The decision, if there is one: for a participant that has restarted and needs no more.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such round; else as
    /// [`begin`](TwoPhaseCommit::begin).
    pub fn decision(&self) -> Result<Option<Decision>> {
        let found = self.target.ask(READ, read)?;
        found.map(|(round, _)| round.decision).ok_or_else(|| no_round(&self.target))
    }

    /// Removes a round that has ended, with its votes and its decision; false if it is not decided
    /// yet, and so is left. Only when every participant has done what was decided: who comes later
    /// learns nothing any more.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such round, which can also be because an
    /// answer was lost; [`Server`](ErrorKind::Server), naming it, for a child that has children, which
    /// somebody else has made; else as [`begin`](TwoPhaseCommit::begin).
    pub fn forget(&self) -> Result<bool> {
        let until = Deadline::after(self.target.client.core().connect_timeout());
        let meant = Arc::<Mutex<Option<String>>>::default();
        let forgotten =
            self.target.ask(FORGET, move |session, whole| forget(session, whole, &meant, until))?;
        forgotten.ok_or_else(|| no_round(&self.target))
    }
}

/// Removes the round that was found first, and none that has begun under its name since.
fn forget(
    session: &Session,
    whole: &str,
    meant: &Mutex<Option<String>>,
    until: Deadline,
) -> Answer<Option<bool>> {
    // Nobody waits for it any more.
    while !until.has_passed() {
        let found = read(session, whole)?;
        let mut meant = meant.lock();
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
        drop(meant);
        let children = session.children(whole, false)?.unwrap_or_default();
        let paths = children.iter().map(|child| path::join(whole, child));
        // One that has begun since is of another version: nobody has decided it yet.
        let same = Step::Check { path: whole.to_owned(), version: Some(version) };
        let deletes = paths.chain([whole.to_owned()]).map(|path| Step::Delete { path });
        let steps: Vec<Step> = [same].into_iter().chain(deletes).collect();
        match session.transact(&steps) {
            Ok(()) => return Ok(Some(true)),
            Err(Fault::NotEmpty) => {
                if let Some(parent) = parent_among(session, whole, &children)? {
                    let message =
                        format!("its child {parent:?} has children, which are no round's");
                    return Err(Fault::Refused(message));
                }
                // Somebody has come.
            }
            // Somebody has gone, or it has been removed.
            Err(Fault::NoNode | Fault::BadVersion) => {}
            Err(fault) => return Err(fault),
        }
    }
    Err(Fault::ConnectionLoss)
}

/// One of the children that has children.
fn parent_among(session: &Session, whole: &str, children: &[String]) -> Answer<Option<String>> {
    for child in children {
        if session.confirm(&path::join(whole, child))?.is_some_and(|stat| stat.children > 0) {
            return Ok(Some(child.clone()));
        }
    }
    Ok(None)
}
