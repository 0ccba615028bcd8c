//! The nodes of a round of two-phase commit: what they say, and how they are read.

use std::collections::BTreeSet;
use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::recipes::data::NodeConfig;
use crate::session::{Answer, Fault, Names, Session, View};
use crate::wire_values::Stat;

/// The decision of a two-phase commit. The enum is exhaustive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// All participants commit.
    Commit,
    /// All participants abort.
    Abort,
}

impl Decision {
    /// The name of the child that shows it, and the word for it in the data.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Decision::Commit => "commit",
            Decision::Abort => "abort",
        }
    }

    fn parse(mark: &str) -> Option<Decision> {
        [Decision::Commit, Decision::Abort].into_iter().find(|decision| decision.mark() == mark)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mark())
    }
}

/// The vote of a participant in a two-phase commit. The enum is exhaustive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// The participant can commit, whatever happens from now on.
    Yes,
    /// The participant cannot commit.
    No,
}

impl Vote {
    pub(super) fn other(self) -> Vote {
        match self {
            Vote::Yes => Vote::No,
            Vote::No => Vote::Yes,
        }
    }
}

/// The state of a round of a [`TwoPhaseCommit`](crate::TwoPhaseCommit).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundState {
    /// The participants, in the order in which the coordinator named them.
    pub participants: Vec<ParticipantState>,
    /// The decision, if there is one.
    pub decision: Option<Decision>,
}

/// The state of one participant in a [`RoundState`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParticipantState {
    /// The name of the participant.
    pub name: String,
    /// Whether the participant has joined, and its session lives.
    pub is_here: bool,
    /// Its vote, if it has voted.
    pub vote: Option<Vote>,
}

impl RoundState {
    pub(super) fn new(round: &Round, children: &Names) -> RoundState {
        let children: BTreeSet<&str> = children.iter().collect();
        let has = |name: String| children.contains(name.as_str());
        let state = |name: &String| ParticipantState {
            name: name.clone(),
            is_here: has(here(name)),
            vote: [Vote::No, Vote::Yes].into_iter().find(|voted| has(vote(name, *voted))),
        };
        RoundState {
            participants: round.participants.iter().map(state).collect(),
            decision: round.decision,
        }
    }
}

/// The name of the child that shows that a participant is alive.
pub(super) fn here(participant: &str) -> String {
    format!("here-{participant}")
}

/// The name of the child that is a participant's vote.
pub(super) fn vote(participant: &str, vote: Vote) -> String {
    let word = if vote == Vote::Yes { "yes" } else { "no" };
    format!("{word}-{participant}")
}

/// The format of the data of a round's node, which they name. A later version that only adds lines
/// keeps the number.
const FORMAT: u32 = 1;

/// What the data of the round's node say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    /// Distinguishes it from earlier and later rounds of the same name.
    pub(super) id: String,
    pub(super) participants: Vec<String>,
    pub(super) decision: Option<Decision>,
}

impl Round {
    pub(super) fn new<'a>(id: String, participants: impl Iterator<Item = &'a str>) -> Round {
        Round { id, participants: participants.map(str::to_owned).collect(), decision: None }
    }

    /// Checks what can be checked without a request.
    pub(super) fn check(&self, node: &str) -> Result<()> {
        let refused = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why).on(node));
        if self.participants.is_empty() {
            return refused("a round without participants has nothing to decide".to_owned());
        }
        let mut seen = BTreeSet::new();
        for name in &self.participants {
            path::lock_path(node, name)?;
            path::lock_path(node, &here(name))?;
            if !seen.insert(name) {
                return refused(format!("the participant {name:?} is named twice"));
            }
        }
        Ok(())
    }

    pub(super) fn decided(&self, decision: Decision) -> Round {
        Round { decision: Some(decision), ..self.clone() }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut text = format!("round {}\nformat {FORMAT}\n", self.id);
        for name in &self.participants {
            text.push_str(&format!("participant {name}\n"));
        }
        if let Some(decision) = self.decision {
            text.push_str(&format!("decision {decision}\n"));
        }
        text.into_bytes()
    }

    /// `None` for data that are not a round's. Lines of a kind that a later version may add are
    /// ignored.
    pub(super) fn parse(data: &[u8]) -> Option<Round> {
        let mut lines = std::str::from_utf8(data).ok()?.lines();
        let id = lines.next()?.strip_prefix("round ")?.to_owned();
        let mut round = Round { id, participants: Vec::new(), decision: None };
        for line in lines {
            match (line.split_once(' ')?, round.decision) {
                (("format", number), _) if number != FORMAT.to_string() => return None,
                (("participant", name), None) => round.participants.push(name.to_owned()),
                (("decision", mark), None) => round.decision = Some(Decision::parse(mark)?),
                (("participant" | "decision", _), Some(_)) => return None,
                _ => {}
            }
        }
        Some(round)
    }

    /// Parses what was read of the round's node, and adds the version of its data.
    pub(super) fn of(found: Option<(Vec<u8>, Stat)>) -> Answer<Option<(Round, i32)>> {
        let Some((data, stat)) = found else { return Ok(None) };
        match Round::parse(&data) {
            Some(round) => Ok(Some((round, stat.version))),
            None => Err(Fault::Refused("the node's data are not those of a round".to_owned())),
        }
    }
}

/// The size of a round's largest request: the one that decides to commit.
pub(super) fn size(round: &Round, whole: &str) -> usize {
    let step = |name: &String| whole.len() + name.len() + "/here-".len() + 20;
    round.write().len() + round.participants.iter().map(|name| 2 * step(name)).sum::<usize>()
}

/// Reads the round as the ensemble's leader knows it.
pub(super) fn read(session: &Session, whole: &str) -> Answer<Option<(Round, i32)>> {
    session.sync()?;
    let found = session.read(whole, false)?;
    if found.as_ref().is_some_and(|(data, _)| data.is_empty()) {
        // Perhaps an ACL hides the data: then listing the children fails, too.
        session.names(whole, false)?;
    }
    Round::of(found)
}

pub(super) fn no_round(target: &NodeConfig) -> Error {
    let message = "there is no such round: it has not begun, or was forgotten already";
    target.error(ErrorKind::NotFound, message)
}

/// Reads the round and watches it; `None` if this round does not exist any more.
pub(super) fn find_round(
    view: &mut View<'_>,
    whole: &str,
    id: &str,
) -> Answer<Option<(Round, i32)>> {
    let mut found = view.watch_node(whole)?;
    if found.is_none() {
        // The server of a new session may lag behind.
        view.session.sync()?;
        found = view.watch_node(whole)?;
    }
    Ok(Round::of(found)?.filter(|(round, _)| round.id == id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let round = Round::new("7".to_owned(), ["a", "b c", "participant d"].into_iter());
        for round in [round.decided(Decision::Commit), round.decided(Decision::Abort), round] {
            assert_eq!(Round::parse(&round.write()), Some(round));
        }
        for other in [
            "",
            "participant a\n",
            "round 7\nabort\n",
            "round 7\nformat 2\n",
            "round 7\ndecision perhaps\n",
            "round 7\ndecision abort\ndecision abort\n",
            "round 7\ndecision abort\nparticipant a\n",
        ] {
            assert_eq!(Round::parse(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(Round::parse(b"round \xff\n"), None);
        let later = Round::parse(b"round 7\nformat 1\nparticipant a\ncolour blue\n").unwrap();
        assert_eq!(later, Round::new("7".to_owned(), ["a"].into_iter()));
    }

    #[test]
    fn participants_are_names_and_each_is_named_once() {
        let check = |names: &[&str]| Round::new(String::new(), names.iter().copied()).check("/r");
        assert!(check(&["a", "b"]).is_ok());
        assert_eq!(check(&[]).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(check(&["a", "b", "a"]).unwrap_err().kind(), ErrorKind::InvalidArgument);
        for bad in ["", "a/b", "a\nb", ".."] {
            assert_eq!(check(&["a", bad]).unwrap_err().kind(), ErrorKind::InvalidName, "{bad:?}");
        }
    }
}
