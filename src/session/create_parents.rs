//! Creates a node together with its missing parents.

use super::connection::{Answer, Fault, NodeKind};
use super::one_session::Session;
use crate::acl::Acl;
use crate::path;

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
