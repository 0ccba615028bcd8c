//! Creates a node together with its missing parents, also over lost replies.

use super::connection::{Answer, Fault, NodeKind};
use super::session::Session;
use crate::acl::Acl;
use crate::path;

/// When a node was created, and how often its children have changed since; `None` if an ACL hides
/// that.
pub(crate) type Stamp = Option<(i64, i32)>;

/// Creates the node, and its missing parents as plain nodes.
pub(crate) fn make_parents(
    session: &Session,
    node: &str,
    kind: NodeKind,
    acl: &[Acl],
) -> Answer<()> {
    let kind_of = |path: &str| if path == node { kind } else { NodeKind::Persistent };
    let mut missing = vec![node];
    // Upwards until a node exists: creating a parent that exists already may be forbidden.
    while let Some(path) = missing.last() {
        match session.create(path, &[], acl, kind_of(path)) {
            Ok(_) | Err(Fault::NodeExists) => break,
            Err(Fault::NoNode) if path::parent(path) != "/" => missing.push(path::parent(path)),
            Err(fault) => return Err(fault),
        }
    }
    missing.pop();
    while let Some(path) = missing.pop() {
        match session.create(path, &[], acl, kind_of(path)) {
            Ok(_) | Err(Fault::NodeExists) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

/// Creates a plain node and its missing parents, once, however often the call is repeated: `before`
/// carries what one call leaves for the next. Returns whether the node that exists is ours; `None`
/// if that cannot be known: an earlier attempt may have taken effect, and others may have deleted
/// the node since.
pub(crate) fn make_once(
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
