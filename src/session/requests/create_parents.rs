//! Creates a node together with its missing parents.

use super::session::Session;
use crate::acl::Acl;
use crate::path;
use crate::session::connection::{Answer, Created, Fault, NodeKind, OnAnswer};

/// Creates the node, and its missing parents as plain nodes.
pub(crate) fn make_parents(
    session: &Session,
    node: &str,
    kind: NodeKind,
    acl: &[Acl],
) -> Answer<()> {
    make(session, node, acl, || session.create(node, &[], acl, kind).map(|_| false)).map(drop)
}

/// Creates a container, and its missing parents as plain nodes. Returns whether this call made a
/// container: a server removes it only after it has had a child. `late` is called if the container
/// is answered for after the caller's time limit.
pub(crate) fn make_container(
    session: &Session,
    node: &str,
    acl: &[Acl],
    late: OnAnswer<Created>,
) -> Answer<bool> {
    let mut late = Some(late);
    make(session, node, acl, || {
        session.create_container(node, &[], acl, &mut late).map(|made| made.1)
    })
}

/// Creates the missing parents, and the node with `make_node`; returns what that has returned, false
/// if the node was there.
fn make(
    session: &Session,
    node: &str,
    acl: &[Acl],
    mut make_node: impl FnMut() -> Answer<bool>,
) -> Answer<bool> {
    let mut make = |path: &str| match path == node {
        true => make_node(),
        false => session.create(path, &[], acl, NodeKind::Persistent).map(|_| false),
    };
    let mut missing = vec![node];
    let mut is_made = false;
    // Upwards until a node exists: creating a parent that exists already may be forbidden. The root
    // may be missing, too: on a program's handle it is the chroot.
    while let Some(path) = missing.last() {
        match make(path) {
            Ok(made) => {
                is_made = made;
                break;
            }
            Err(Fault::NodeExists) => break,
            Err(Fault::NoNode) if *path != "/" => missing.push(path::parent(path)),
            Err(fault) => return Err(fault),
        }
    }
    missing.pop();
    while let Some(path) = missing.pop() {
        match make(path) {
            Ok(made) => is_made = made,
            Err(Fault::NodeExists) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(is_made)
}

/// Makes a child of `node` with `make_child`, and the node before if it is missing: a container, unless
/// `kind` is another. If the node is made in vain, as the child is refused, it is deleted again.
pub(crate) fn make_below<T>(
    session: &Session,
    node: &str,
    kind: NodeKind,
    acl: &[Acl],
    mut make_child: impl FnMut() -> Answer<T>,
) -> Answer<T> {
    match make_child() {
        Err(Fault::NoNode) => {}
        made => return made,
    }
    let is_unused = match kind {
        NodeKind::Container => make_container(session, node, acl, Box::new(drop))?,
        kind => make_parents(session, node, kind, acl).map(|()| false)?,
    };
    let made = make_child();
    if is_unused && made.as_ref().is_err_and(|fault| !fault.is_loss() && *fault != Fault::NoNode) {
        session.delete_unused_soon(node);
    }
    made
}
