//! Warns of contenders that do not respect ours, though ours respect them: clients in other
//! languages that do not recognise our node names.

use super::contender_node_name::{ContenderKind, Form, NodeNaming, Ticket};
use crate::session::connection::Names;

/// The warning, if one of the children is such a contender.
pub(crate) fn warning(form: Form, children: &Names) -> Option<String> {
    let marker = form.marker();
    // Those named like ours are quickly seen to be compatible: they are most of them.
    let is_alike =
        |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with(&*marker);
    children.iter().filter(|name| !is_alike(name)).find_map(|name| {
        let why = blindness(form, &Ticket::parse(name)?)?;
        Some(format!("there is an incompatible contender {name:?}: {why}"))
    })
}

fn blindness(form: Form, theirs: &Ticket<'_>) -> Option<&'static str> {
    const KAZOO: &str = "kazoo ignores this lock's nodes; set `extra_lock_patterns` in kazoo, or \
                         use `NodeNaming::Kazoo` here";
    const CURATOR: &str = "Curator ignores nodes named in kazoo's style; use \
                           `NodeNaming::Curator` here";
    const MIXED: &str = "Curator's mutexes and read/write locks ignore each other; use a lock \
                         path of its own for each";
    const SEMAPHORE: &str = "clients of other locks ignore a semaphore's nodes; use a lock path \
                             of its own for the semaphore";
    if theirs.is_maintenance() {
        return None;
    }
    let of_kazoo = ["__lock__", "__rlock__"].iter().any(|marker| theirs.marker().ends_with(marker));
    let of_curator = theirs.guid().len() == DASHED && !of_kazoo;
    let is_mutex = |kind| kind == ContenderKind::Mutex;
    match (form.naming, form.kind) {
        (_, ContenderKind::Permits) if theirs.kind() != ContenderKind::Permits => Some(SEMAPHORE),
        _ if theirs.kind() == ContenderKind::Permits => None,
        (NodeNaming::Curator, _) if of_kazoo => Some(KAZOO),
        (NodeNaming::Kazoo, _) if of_curator => Some(CURATOR),
        (NodeNaming::Curator, kind) if is_mutex(kind) != is_mutex(theirs.kind()) => Some(MIXED),
        _ => None,
    }
}

/// How long a uuid is with its dashes, which go-zookeeper leaves out.
const DASHED: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
    const HEX: &str = "0f8fad5bd9cb469fa16570867728950e";

    #[test]
    fn s72_those_who_cannot_respect_us_are_told_of_and_nobody_else() {
        use NodeNaming::{Curator, Kazoo};
        let curator_mutex = format!("_c_{UUID}-lock-0000000001");
        let curator_reader = format!("_c_{UUID}-__READ__0000000001");
        let curator_writer = format!("_c_{UUID}-__WRIT__0000000001");
        let kazoo_mutex = format!("{HEX}__lock__0000000001");
        let kazoo_reader = format!("{HEX}__rlock__0000000001");
        let go_mutex = format!("_c_{HEX}-lock-0000000001");
        let write_lock = "x-5-0000000001".to_owned();
        let permit = format!("_c_{UUID}-lease-1-of-2-0000000001");
        let stranger = "leases".to_owned();
        let mutex = |naming| Form::new(naming, ContenderKind::Mutex);
        let reader = |naming| Form::new(naming, ContenderKind::Read);
        let semaphore = Form::of_permits(Curator, 1, 2);
        for (form, theirs, warned_of) in [
            (mutex(Curator), &curator_mutex, false),
            (mutex(Curator), &go_mutex, false),
            (mutex(Curator), &write_lock, false),
            (mutex(Curator), &stranger, false),
            (mutex(Curator), &permit, false),
            (mutex(Curator), &kazoo_mutex, true),
            (mutex(Curator), &kazoo_reader, true),
            (mutex(Curator), &curator_reader, true),
            (mutex(Curator), &format!("_c_{UUID}-maintenance-__WRIT__0000000001"), false),
            (mutex(Curator), &curator_writer, true),
            (reader(Curator), &curator_reader, false),
            (reader(Curator), &curator_writer, false),
            (reader(Curator), &curator_mutex, true),
            (reader(Curator), &kazoo_reader, true),
            (mutex(Kazoo), &kazoo_mutex, false),
            (mutex(Kazoo), &kazoo_reader, false),
            (mutex(Kazoo), &go_mutex, false),
            (mutex(Kazoo), &curator_mutex, true),
            (reader(Kazoo), &kazoo_mutex, false),
            (reader(Kazoo), &curator_writer, true),
            (semaphore, &permit, false),
            (semaphore, &stranger, false),
            (semaphore, &curator_mutex, true),
        ] {
            let warning = warning(form, &[theirs].into_iter().collect());
            assert_eq!(warning.is_some(), warned_of, "{form:?} and {theirs}");
        }
    }
}
