//! Changes that are made once: sends a change within a time limit and says how certain its outcome is, or
//! creates a node over lost replies.

use std::sync::Arc;

use super::recipe_znode::Purpose;
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::session::blocking_call::{Call, Stop};
use crate::session::connection::{Answer, Fault, NodeKind};
use crate::session::create_parents::make_parents;
use crate::session::one_session::Session;

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

/// Makes a change of the node; an inner error says that it was certainly not made.
///
/// After a lost reply it is repeated only if `find_out` says that it was not made, and only in the same
/// session: a request of a session that was given up may still arrive. (In the same session none can,
/// once a later one was answered on a new connection.)
pub(super) fn change_at_most_once<T>(
    call: &mut Call,
    node: &str,
    purpose: Purpose,
    find_out: Option<FindOut<'_>>,
    mut change: impl FnMut(&Session) -> Answer<T>,
) -> Result<Answer<T>> {
    // The session of the attempt without a reply, and what it had seen before.
    let mut lost: Option<(Arc<Session>, i64)> = None;
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
        if let Some((asked, seen)) = &lost {
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
        let seen = session.seen_zxid();
        match call.ask_in(&session, &mut change) {
            Ok(answer) if !call.is_unanswered() => return Ok(answer),
            _ if find_out.is_none() || call.is_over() => return Err(unknown(node)),
            _ => lost = Some((session, seen)),
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
pub(super) type Stamp = Option<(i64, i32)>;

/// Creates a plain node and its missing parents, once, however often the call is repeated: `before`
/// carries what one call leaves for the next. Returns whether the node that exists is ours; `None`
/// if that cannot be known: an earlier attempt may have taken effect, and others may have deleted
/// the node since.
pub(super) fn make_once(
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
