//! What a path is for which nobody contends: not there; a lock that is free; or the node of a program that
//! elects by one node without a number, such as Patroni's `/service/x/leader` and Kafka's `/controller`. No
//! lock can be told from that by its contenders.

use std::time::SystemTime;

use humantime::format_rfc3339_millis;
use serde_json::{Value, json};
use zklock::znode::ZnodeStat;
use zklock::{Client, ErrorKind, SessionId};

use crate::exit::Failure;
use crate::words::in_words;
use crate::words::visible;

/// Said of a path that is not there: a typing error must not read like a free lock.
pub(crate) const NO_SUCH_NODE: &str =
    "no such node: nobody holds it, and nobody has yet, or not since it was removed when idle";

/// So many children are looked at.
const MOST_LOOKED_AT: usize = 20;

/// The numbers that servers append to names have so many digits.
const DIGITS: usize = 10;

/// So much of a node's data is shown.
const MOST_SHOWN: usize = 100;

pub(crate) enum PathWithoutContenders {
    NotThere,
    Free,
    OfALeader(LeaderNode),
}

/// An ephemeral node without a number.
pub(crate) struct LeaderNode {
    pub(crate) path: String,
    pub(crate) session: SessionId,
    since: SystemTime,
    data: Vec<u8>,
    /// Its name, if it is a child of the path that was looked at.
    child: Option<String>,
}

impl PathWithoutContenders {
    pub(crate) fn at(client: &Client, path: &str) -> Result<PathWithoutContenders, Failure> {
        let Some(stat) = shown(client.znode(path).stat())? else {
            return Ok(PathWithoutContenders::Free);
        };
        let Some(stat) = stat else { return Ok(PathWithoutContenders::NotThere) };
        if let Some(found) = LeaderNode::with(client, path, None, &stat)? {
            return Ok(PathWithoutContenders::OfALeader(found));
        }
        if stat.child_count == 0 {
            return Ok(PathWithoutContenders::Free);
        }
        let names = shown(client.znode(path).children())?.flatten().unwrap_or_default();
        let others = names.into_iter().filter(|name| !has_number(name) && !is_of_doctor(name));
        for name in others.take(MOST_LOOKED_AT) {
            let child = format!("{}/{name}", path.trim_end_matches('/'));
            let Some(Some(stat)) = shown(client.znode(&child).stat())? else { continue };
            if let Some(found) = LeaderNode::with(client, &child, Some(name), &stat)? {
                return Ok(PathWithoutContenders::OfALeader(found));
            }
        }
        Ok(PathWithoutContenders::Free)
    }

    /// Whether there is a node.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(self, PathWithoutContenders::NotThere)
    }

    pub(crate) fn leader_node(&self) -> Option<&LeaderNode> {
        match self {
            PathWithoutContenders::OfALeader(node) => Some(node),
            PathWithoutContenders::NotThere | PathWithoutContenders::Free => None,
        }
    }

    pub(crate) fn in_words(&self) -> String {
        match self {
            PathWithoutContenders::NotThere => NO_SUCH_NODE.to_owned(),
            PathWithoutContenders::Free => "free".to_owned(),
            PathWithoutContenders::OfALeader(node) => node.in_words(),
        }
    }
}

impl LeaderNode {
    /// Why no lock can be made at this path: it is such a node, or is below one.
    pub(crate) fn in_the_way(client: &Client, path: &str) -> Result<Option<String>, Failure> {
        let mut rest = path;
        while !rest.is_empty() {
            if let Some(Some(stat)) = shown(client.znode(rest).stat())? {
                let node = LeaderNode::with(client, rest, None, &stat)?;
                return Ok(node.map(|node| match rest == path {
                    true => node.in_words(),
                    false => format!("{} above it: {}", visible(rest), node.in_words()),
                }));
            }
            rest = rest.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        Ok(None)
    }

    /// `None` if its stat is none of an ephemeral node.
    fn with(
        client: &Client,
        path: &str,
        child: Option<String>,
        stat: &ZnodeStat,
    ) -> Result<Option<LeaderNode>, Failure> {
        let Some(session) = stat.owner else { return Ok(None) };
        let read = shown(client.znode(path).read())?.flatten();
        let data = read.map(|found| found.data).unwrap_or_default();
        Ok(Some(LeaderNode { path: path.to_owned(), session, since: stat.created_at, data, child }))
    }

    /// `ephemeral node of session 0x1, since 10:00, data "n1": not a lock of a queue; its owner leads`.
    pub(crate) fn in_words(&self) -> String {
        let what = match &self.child {
            Some(name) => format!("its child {} is an ephemeral node", visible(name)),
            None => "ephemeral node".to_owned(),
        };
        let (session, since) = (self.session, in_words(self.since));
        let data: String = self.label().chars().take(MOST_SHOWN).collect();
        format!(
            "{what} of session {session}, since {since}, data {data:?}: not a lock of a queue; its owner leads"
        )
    }

    /// The first line of its data.
    pub(crate) fn label(&self) -> String {
        let first = self.data.split(|byte| *byte == b'\n').next().unwrap_or_default();
        visible(&String::from_utf8_lossy(first))
    }

    pub(crate) fn since(&self) -> SystemTime {
        self.since
    }

    pub(crate) fn data(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }

    pub(crate) fn as_json(&self) -> Value {
        json!({
            "node": self.path,
            "session": self.session.to_string(),
            "since": format_rfc3339_millis(self.since).to_string(),
            "data": self.data(),
        })
    }
}

/// `None` if an ACL hides it.
fn shown<T>(answer: Result<T, zklock::Error>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == ErrorKind::NotAuthorized => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn has_number(name: &str) -> bool {
    name.bytes().rev().take_while(u8::is_ascii_digit).count() == DIGITS
}

/// `zklock doctor` makes one below a lock, for a moment.
fn is_of_doctor(name: &str) -> bool {
    name.starts_with("zklock-doctor-")
}
