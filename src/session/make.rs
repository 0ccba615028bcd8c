//! Making a node together with what is missing above it.

use super::session::Session;
use super::store::{Answer, Fault, Kind};
use crate::acl::Acl;
use crate::path;

/// Creates the node, and what is missing above it as plain nodes.
pub(crate) fn make_parents(session: &Session, node: &str, kind: Kind, acl: &[Acl]) -> Answer<()> {
    let kind_of = |path: &str| if path == node { kind } else { Kind::Persistent };
    let mut missing = vec![node];
    // Upwards until something is there: a parent that exists need not allow to be made.
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
