//! Changes that are made once: sends a change within a time limit and says how certain its outcome is, or
//! creates a node over lost replies.

use std::sync::Arc;

use super::permit::{Outcome, Permits};
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::session::Purpose;
use crate::session::{
    Answer, Call, ClientCore, Fault, NodeKind, Session, SessionNeed, Step, Stop, make_parents,
};

/// What is known of a change whose reply was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LostChange {
    /// It was not made, and can be repeated.
    NotMade,
    /// It was not made, and would be refused.
    Refused(Fault),
    Unknown,
}

/// Finds out whether a change was made whose reply was lost. Gets the zxid that the session had seen
/// before it sent the change: if it was made, then in a later transaction.
pub(super) type FindOut<'a> = &'a dyn Fn(&Session, i64) -> Answer<LostChange>;

/// Makes a change of the node; an inner error says that it was not made.
///
/// After a lost reply it is repeated only if `find_out` says that it was not made, and only in the same
/// session, which no other one replaces meanwhile. Until that has ended, the attempt without an answer may
/// still be carried out, before or after the repeated one. A version keeps both from taking effect, and so
/// does a name, until the node is deleted. So `find_out` is asked again when the repeated one is refused:
/// perhaps because of the first.
pub(super) fn change_at_most_once<T>(
    call: &mut Call,
    node: &str,
    purpose: Purpose,
    find_out: Option<FindOut<'_>>,
    mut change: impl FnMut(&Session) -> Answer<T>,
) -> Result<Answer<T>> {
    // The session of the attempt without a reply, what it had seen before, and what keeps it.
    let mut lost: Option<(Arc<Session>, i64, Option<SessionNeed>)> = None;
    loop {
        let session = match call.session() {
            Ok(session) => session,
            Err(Stop::Failed(error)) if lost.is_some() => {
                return Err(unknown(node).caused_by(error));
            }
            Err(Stop::TimeOver) => {
                return Err(purpose.unanswered(call.core(), lost.is_some(), node));
            }
            Err(stop) => return Err(purpose.stopped(stop, call, node)),
        };
        if let Some((asked, seen, _)) = &lost {
            let Some(find_out) = find_out.filter(|_| Arc::ptr_eq(asked, &session)) else {
                return Err(unknown(node));
            };
            match call.ask_in(&session, |session| find_out(session, *seen)) {
                Ok(Ok(LostChange::NotMade)) => {}
                Ok(Ok(LostChange::Refused(fault))) => return Ok(Err(fault)),
                Ok(Err(Fault::ConnectionLoss)) if !call.is_over() => continue,
                _ => return Err(unknown(node)),
            }
        }
        let before = session.seen_zxid();
        let need = find_out.map(|_| session.owned().need());
        match call.ask_in(&session, &mut change) {
            Ok(Err(refused)) if !call.is_unanswered() => {
                let (Some(find_out), Some((_, seen, _))) = (find_out, &lost) else {
                    return Ok(Err(refused));
                };
                match call.ask_in(&session, |session| find_out(session, *seen)) {
                    Ok(Ok(LostChange::NotMade | LostChange::Refused(_))) => {
                        return Ok(Err(refused));
                    }
                    _ => return Err(unknown(node)),
                }
            }
            Ok(answer) if !call.is_unanswered() => return Ok(answer),
            _ if find_out.is_none() || call.is_over() => return Err(unknown(node)),
            _ => lost = Some((session, before, need)),
        }
    }
}

/// The error of a change that may have been made.
pub(super) fn unknown(node: &str) -> Error {
    let message = "the connection was lost before the reply came: the change may have been made";
    Error::new(ErrorKind::ConnectionLoss, message).on(node)
}

/// When a node was created, and how often its children have changed since; `None` if an ACL hides
/// that.
type Stamp = Option<(i64, i32)>;

/// What one attempt to make a node leaves for the next.
pub(crate) struct Attempts {
    permits: Permits,
    /// The parent before the attempt, on a handle without transactions.
    before: Option<Stamp>,
}

impl Attempts {
    pub(crate) fn new(core: &Arc<ClientCore>) -> Attempts {
        Attempts { permits: Permits::new(core), before: None }
    }
}

/// Creates a plain node and its missing parents, once, however often the call is repeated. Returns whether
/// the node that exists is ours; `None` if that cannot be known: an earlier attempt may have taken effect,
/// and others may have deleted the node since.
pub(crate) fn make_once(
    session: &Session,
    whole: &str,
    data: &[u8],
    acl: &[Acl],
    is_ours: impl Fn(&[u8]) -> bool,
    attempts: &mut Attempts,
) -> Answer<Option<bool>> {
    if !session.has_transactions() {
        return make_once_by_looking(session, whole, data, acl, is_ours, &mut attempts.before);
    }
    match attempts.permits.settle(session, whole)? {
        Outcome::NotMade => {}
        Outcome::Made => return Ok(Some(true)),
        Outcome::Unknown => {
            session.sync()?;
            return Ok(session.read(whole, false)?.map(|(found, _)| is_ours(&found)));
        }
    }
    let (path, parent) = (whole.to_owned(), path::parent(whole));
    let kind = NodeKind::Persistent;
    let create = Step::Create { path, data: data.to_vec(), acl: acl.to_vec(), kind };
    loop {
        match attempts.permits.spend(session, whole, &create) {
            Ok(_) => return Ok(Some(true)),
            Err(Fault::NodeExists) => return Ok(Some(false)),
            Err(Fault::NoNode) => make_parents(session, parent, NodeKind::Persistent, acl)?,
            Err(fault) => return Err(fault),
        }
    }
}

/// The same without transactions. An attempt without an answer may still take effect, until its session
/// has ended.
fn make_once_by_looking(
    session: &Session,
    whole: &str,
    data: &[u8],
    acl: &[Acl],
    is_ours: impl Fn(&[u8]) -> bool,
    before: &mut Option<Stamp>,
) -> Answer<Option<bool>> {
    let parent = path::parent(whole);
    loop {
        let begun = *before;
        if begun.is_some() {
            session.sync()?;
            if let Some((found, _)) = session.read(whole, false)? {
                return Ok(Some(is_ours(&found)));
            }
        }
        let now = match session.confirm(parent) {
            Ok(None) => {
                make_parents(session, parent, NodeKind::Persistent, acl)?;
                continue;
            }
            Ok(Some(stat)) => Some((stat.czxid, stat.child_changes)),
            // The ACL may allow CREATE all the same.
            Err(Fault::NoAuth) => None,
            Err(fault) => return Err(fault),
        };
        if begun.is_some_and(|begun| begun.is_none() || begun != now) {
            return Ok(None);
        }
        *before = Some(now);
        match session.create(whole, data, acl, NodeKind::Persistent) {
            Ok(_) => return Ok(Some(true)),
            Err(Fault::NodeExists) if begun.is_none() => return Ok(Some(false)),
            // Perhaps an earlier attempt took effect only now.
            Err(Fault::NodeExists) => {}
            Err(Fault::NoNode) => *before = None,
            Err(fault) => return Err(fault),
        }
    }
}
