//! A lock path that does not exist, beside nodes of another program: a node of ours there may be in its way.
//! As at `/service/x/leader`, where Patroni elects nobody while that node is there.

use zklock::znode::ZnodeStat;
use zklock::{Client, ErrorKind, LockList};

use crate::connect::Lock;
use crate::exit::Failure;
use crate::words::visible;

/// A parent with more children is not judged.
const MOST_CHILDREN: usize = 100;

/// So many of them are named.
const MOST_NAMED: usize = 3;

/// Fails if the path does not exist, and there are nodes beside it of which none is a lock or has one below
/// it.
pub(crate) fn refuse_if_new(client: &Client, lock: &Lock) -> Result<(), Failure> {
    if client.znode(&lock.path).stat().is_ok_and(|stat| stat.is_none()) {
        return refuse(client, lock);
    }
    Ok(())
}

fn refuse(client: &Client, lock: &Lock) -> Result<(), Failure> {
    let names = match nodes_of_others(client, &lock.base) {
        // What cannot be seen keeps nobody from a lock.
        Err(error) if error.kind() == ErrorKind::NotAuthorized => return Ok(()),
        names => names?,
    };
    if names.is_empty() {
        return Ok(());
    }
    let first = names.iter().take(MOST_NAMED).map(|name| visible(name)).collect::<Vec<_>>();
    let more = match names.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "{} does not exist, and what is beside it is no lock ({}{more}): it may be another program's, which a lock's \
         node keeps from working. To make it all the same: --create",
        lock.path,
        first.join(", ")
    );
    Err(Failure::usage(message))
}

/// The children of this node, if none is a lock or has one below it.
fn nodes_of_others(client: &Client, base: &str) -> Result<Vec<String>, zklock::Error> {
    let mut names = client.znode(base).children()?.unwrap_or_default();
    names.retain(|name| counts(name));
    if names.len() > MOST_CHILDREN || names.iter().any(|name| is_of_locks(name)) {
        return Ok(Vec::new());
    }
    for name in &names {
        let path = format!("{}/{name}", base.trim_end_matches('/'));
        if client.znode(path).stat()?.is_some_and(|stat| may_be_an_idle_lock(&stat)) {
            return Ok(Vec::new());
        }
    }
    let has_none = |list: LockList| list.locks.is_empty() && list.unlisted.is_empty();
    let are_others = !names.is_empty() && client.locks(base)?.is_some_and(has_none);
    Ok(if are_others { names } else { Vec::new() })
}

/// Whether that is a node that a program has made, beside a lock.
fn counts(name: &str) -> bool {
    name != "zookeeper" && !name.starts_with("zklock-doctor-")
}

/// Whether that stands beside a lock that zklock has used: the marks of `--once`, or a waiting room.
fn is_of_locks(name: &str) -> bool {
    name.ends_with(".once") || name.starts_with("_zklock_room_")
}

/// A lock that nobody uses has no children, and lock nodes no data.
fn may_be_an_idle_lock(stat: &ZnodeStat) -> bool {
    stat.owner.is_none() && stat.child_count == 0 && stat.data_length == 0
}
