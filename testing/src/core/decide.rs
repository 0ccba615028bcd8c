//! What a leader decides on a request, and what a server answers by itself.

use super::acl::{allows, resolved};
use super::path::{is_valid, parent};
use super::{
    ADMIN, Acl, CREATE, Change, DELETE, Error, Identity, Mode, READ, Reply, Request, Stat, Step,
    Tree, WRITE, WatchMode, Watches,
};

/// Servers have only so much room for a time to live.
const LONGEST_TTL: i64 = (1 << 40) - 1;

/// Who asks, and when.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// The session.
    pub session: i64,
    /// What the client has proved.
    pub who: &'a [Identity],
    /// The number that the next transaction gets.
    pub zxid: i64,
    /// In milliseconds since 1970.
    pub time: i64,
}

/// What comes of a request.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The answer, as it is once the change is carried out.
    pub reply: Result<Reply, Error>,
    /// What is to be carried out before the answer is sent.
    pub change: Option<Change>,
}

/// Decides on a request. `leader` is the newest state, `local` that of the server which the client is connected to, and
/// `watches` what that server watches for the client.
pub fn decide(
    leader: &Tree,
    local: &Tree,
    watches: &mut Watches,
    asker: &Asker<'_>,
    request: &Request,
) -> Decision {
    match request {
        Request::One(step) => match change(leader, asker, step, false) {
            Ok((change, reply)) => Decision { reply: Ok(reply), change },
            Err(error) => Decision { reply: Err(error), change: None },
        },
        Request::Multi(steps) => multi(leader, asker, steps),
        Request::SetAcl { path, acl, version } => match set_acl(leader, asker, path, acl, *version)
        {
            Ok((change, reply)) => Decision { reply: Ok(reply), change: Some(change) },
            Err(error) => Decision { reply: Err(error), change: None },
        },
        request => Decision { reply: read(local, watches, asker, request), change: None },
    }
}

fn check(version: i32, present: i32) -> Result<(), Error> {
    if version == -1 || version == present { Ok(()) } else { Err(Error::BadVersion) }
}

type Changed = (Option<Change>, Reply);

fn change(
    tree: &Tree,
    asker: &Asker<'_>,
    step: &Step,
    in_transaction: bool,
) -> Result<Changed, Error> {
    match step {
        Step::Create { path, data, acl, mode } => create(tree, asker, path, data, acl, *mode),
        Step::Delete { path, version } => delete(tree, asker, path, *version),
        Step::SetData { path, data, version } => set_data(tree, asker, path, data, *version),
        // Alone, it is no request of the protocol that servers answer.
        Step::Check { .. } if !in_transaction => Err(Error::Unimplemented),
        Step::Check { path, .. } if !is_valid(path) => Err(Error::BadArguments),
        Step::Check { path, version } => {
            tree.may(path, READ, asker.who)?;
            check(*version, tree.stat(path).unwrap_or_default().version)?;
            Ok((None, Reply::Done))
        }
    }
}

fn create(
    tree: &Tree,
    asker: &Asker<'_>,
    path: &str,
    data: &[u8],
    acl: &[Acl],
    mode: Mode,
) -> Result<Changed, Error> {
    if tree.rules().is_old && mode == Mode::Container
        || mode.ttl().is_some() && !tree.rules().has_ttl
    {
        return Err(Error::Unimplemented);
    }
    if mode.ttl().is_some_and(|ttl| !(1..=LONGEST_TTL).contains(&ttl)) {
        return Err(Error::BadArguments);
    }
    has_parent(path)?;
    let acl = resolved(acl, asker.who)?;
    let above = parent(path);
    tree.may(above, CREATE, asker.who)?;
    // Only now is the whole path looked at: a sequential node may be named by its number alone.
    let path = if mode.is_sequential() {
        format!("{path}{:010}", tree.next(above))
    } else {
        path.to_owned()
    };
    if !is_valid(&path) {
        return Err(Error::BadArguments);
    }
    if tree.contains(&path) {
        return Err(Error::NodeExists);
    }
    if tree.stat(above).unwrap_or_default().ephemeral_owner != 0 {
        return Err(Error::NoChildrenForEphemerals);
    }
    let owner = if mode.is_ephemeral() { asker.session } else { 0 };
    let Asker { zxid, time, .. } = *asker;
    let stat = Stat {
        czxid: zxid,
        mzxid: zxid,
        pzxid: zxid,
        ctime: time,
        mtime: time,
        ephemeral_owner: owner,
        data_length: i32::try_from(data.len()).unwrap_or(i32::MAX),
        ..Stat::default()
    };
    let change = Change::Create { path: path.clone(), data: data.to_vec(), acl, owner, mode, time };
    Ok((Some(change), Reply::Created(path, stat)))
}

/// Whether a path names a node below another one. Before servers look for that one, they ask no more of a
/// path.
fn has_parent(path: &str) -> Result<(), Error> {
    if path.contains('/') && !path.contains('\0') { Ok(()) } else { Err(Error::BadArguments) }
}

fn delete(tree: &Tree, asker: &Asker<'_>, path: &str, version: i32) -> Result<Changed, Error> {
    has_parent(path)?;
    if matches!(path, "/" | "/zookeeper" | "/zookeeper/quota" | "/zookeeper/config") {
        return Err(Error::BadArguments);
    }
    let stat = tree.stat(path).ok_or(Error::NoNode);
    // Old servers look for the node before they look at the ACL.
    if tree.rules().is_old {
        stat?;
    }
    tree.may(parent(path), DELETE, asker.who)?;
    let stat = stat?;
    check(version, stat.version)?;
    if stat.num_children != 0 {
        return Err(Error::NotEmpty);
    }
    Ok((Some(Change::Delete { path: path.to_owned() }), Reply::Done))
}

fn set_data(
    tree: &Tree,
    asker: &Asker<'_>,
    path: &str,
    data: &[u8],
    version: i32,
) -> Result<Changed, Error> {
    if !is_valid(path) {
        return Err(Error::BadArguments);
    }
    tree.may(path, WRITE, asker.who)?;
    let mut stat = tree.stat(path).unwrap_or_default();
    check(version, stat.version)?;
    stat.version = stat.version.wrapping_add(1);
    (stat.mzxid, stat.mtime) = (asker.zxid, asker.time);
    stat.data_length = i32::try_from(data.len()).unwrap_or(i32::MAX);
    let change = Change::SetData { path: path.to_owned(), data: data.to_vec(), time: asker.time };
    Ok((Some(change), Reply::Stat(stat)))
}

fn set_acl(
    tree: &Tree,
    asker: &Asker<'_>,
    path: &str,
    acl: &[Acl],
    version: i32,
) -> Result<(Change, Reply), Error> {
    if !is_valid(path) {
        return Err(Error::BadArguments);
    }
    let acl = resolved(acl, asker.who)?;
    tree.may(path, ADMIN, asker.who)?;
    let mut stat = tree.stat(path).unwrap_or_default();
    check(version, stat.aversion)?;
    stat.aversion = stat.aversion.wrapping_add(1);
    Ok((Change::SetAcl { path: path.to_owned(), acl }, Reply::Stat(stat)))
}

/// Decides on a transaction; each step sees the results of those before it.
fn multi(leader: &Tree, asker: &Asker<'_>, steps: &[Step]) -> Decision {
    let paths = steps.iter().map(|step| match step {
        Step::Create { path, .. }
        | Step::Delete { path, .. }
        | Step::SetData { path, .. }
        | Step::Check { path, .. } => path.as_str(),
    });
    let (mut then, mut changes, mut done) = (leader.part(paths), Vec::new(), Vec::new());
    let is_gone = |changes: &[Change], whole: &str| {
        changes.iter().any(|change| matches!(change, Change::Delete { path } if path == whole))
    };
    for (place, step) in steps.iter().enumerate() {
        // A number makes another path.
        match step {
            Step::Create { path, mode, .. } if mode.is_sequential() => {
                let whole = format!("{path}{:010}", then.next(parent(path)));
                if !is_gone(&changes, &whole) {
                    then.adopt(leader, &whole);
                }
            }
            _ => {}
        }
        match change(&then, asker, step, true) {
            Ok((change, reply)) => {
                if let Some(change) = &change {
                    then.change(asker.zxid, change);
                }
                changes.extend(change);
                done.push(reply);
            }
            Err(error) => {
                return Decision { reply: Ok(Reply::Multi(Err((place, error)))), change: None };
            }
        }
    }
    Decision { reply: Ok(Reply::Multi(Ok(done))), change: Some(Change::Several(changes)) }
}

fn read(
    tree: &Tree,
    watches: &mut Watches,
    asker: &Asker<'_>,
    request: &Request,
) -> Result<Reply, Error> {
    let who = asker.who;
    match request {
        Request::Exists { path, .. } if path.contains('\0') => Err(Error::BadArguments),
        Request::Exists { path, watch } => {
            let found = match tree.rules().hides_stat {
                true => tree.may(path, READ, who),
                false => tree.contains(path).then_some(()).ok_or(Error::NoNode),
            };
            if *watch && found != Err(Error::NoAuth) {
                watches.watch_node(path);
            }
            found.map(|()| Reply::Stat(tree.stat(path).unwrap_or_default()))
        }
        Request::GetData { path, watch } => {
            tree.may(path, READ, who)?;
            if *watch {
                watches.watch_node(path);
            }
            let data = tree.data(path).unwrap_or_default().to_vec();
            Ok(Reply::Data(data, tree.stat(path).unwrap_or_default()))
        }
        Request::GetChildren { path, watch } => {
            tree.may(path, READ, who)?;
            if *watch {
                watches.watch_children(path);
            }
            let names = tree.children(path).cloned().collect();
            Ok(Reply::Children(names, tree.stat(path).unwrap_or_default()))
        }
        Request::GetAcl { path } => {
            let acl = tree.acl(path).ok_or(Error::NoNode)?;
            let may = |needed| allows(acl, needed, who);
            if !may(READ) && !may(ADMIN) {
                return Err(Error::NoAuth);
            }
            let acl =
                acl.iter().map(|entry| if may(ADMIN) { entry.clone() } else { masked(entry) });
            Ok(Reply::Acl(acl.collect(), tree.stat(path).unwrap_or_default()))
        }
        Request::AddWatch { path, mode } => {
            match mode {
                WatchMode::Persistent => watches.watch_persistently(path),
                WatchMode::PersistentRecursive => watches.watch_recursively(path),
            }
            Ok(Reply::Done)
        }
        Request::RemoveWatches { .. } if tree.rules().is_old => Err(Error::Unimplemented),
        Request::RemoveWatches { path, which, only_check } => {
            watches.remove(path, *which, *only_check).map(|()| Reply::Done)
        }
        Request::Sync { .. } | Request::One(_) | Request::Multi(_) | Request::SetAcl { .. } => {
            Ok(Reply::Done)
        }
    }
}

/// As those see an entry who may not set the ACL: without the hash of the password.
fn masked(entry: &Acl) -> Acl {
    match entry.id.split_once(':') {
        Some((name, _)) if entry.scheme == "digest" => {
            Acl { id: format!("{name}:x"), ..entry.clone() }
        }
        _ => entry.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{ALL, Rules, Transaction};

    /// A leader, as tests ask it.
    struct Leader {
        tree: Tree,
        zxid: i64,
    }

    impl Leader {
        fn new(rules: Rules) -> Leader {
            Leader { tree: Tree::new(rules), zxid: 0 }
        }

        fn ask(&mut self, request: Request) -> Result<Reply, Error> {
            let asker = Asker { session: 7, who: &[], zxid: self.zxid + 1, time: 1_000 };
            let decision =
                decide(&self.tree, &self.tree, &mut Watches::default(), &asker, &request);
            if let Some(change) = decision.change {
                self.zxid += 1;
                self.tree.apply(&Transaction { zxid: self.zxid, change });
            }
            decision.reply
        }

        fn create(&mut self, path: &str, mode: Mode) -> Result<Reply, Error> {
            self.ask(Request::One(create_of(path, mode)))
        }
    }

    fn create_of(path: &str, mode: Mode) -> Step {
        Step::Create { path: path.to_owned(), data: Vec::new(), acl: vec![Acl::world(ALL)], mode }
    }

    fn delete_of(path: &str) -> Step {
        Step::Delete { path: path.to_owned(), version: -1 }
    }

    #[test]
    fn each_step_of_a_transaction_sees_those_before_it() {
        let mut leader = Leader::new(Rules::default());
        leader.create("/a", Mode::Persistent).unwrap();
        leader.create("/a/b", Mode::Persistent).unwrap();
        // Its parent still has a child, and then has none.
        let refused = leader.ask(Request::Multi(vec![delete_of("/a"), delete_of("/a/b")]));
        assert_eq!(refused, Ok(Reply::Multi(Err((0, Error::NotEmpty)))));
        let done = leader.ask(Request::Multi(vec![delete_of("/a/b"), delete_of("/a")]));
        assert_eq!(done, Ok(Reply::Multi(Ok(vec![Reply::Done, Reply::Done]))));
        assert!(!leader.tree.contains("/a"));
        let steps = vec![create_of("/a", Mode::Persistent), create_of("/a/b", Mode::Ephemeral)];
        assert!(matches!(leader.ask(Request::Multi(steps)), Ok(Reply::Multi(Ok(_)))));
        let below = vec![create_of("/a/b/c", Mode::Persistent)];
        let refused = leader.ask(Request::Multi(below));
        assert_eq!(refused, Ok(Reply::Multi(Err((0, Error::NoChildrenForEphemerals)))));
    }

    #[test]
    fn numbers_of_a_transaction_follow_each_other_and_meet_what_is_there() {
        let mut leader = Leader::new(Rules::default());
        leader.create("/n-0000000001", Mode::Persistent).unwrap();
        let both = vec![create_of("/n-", Mode::PersistentSequential)];
        let refused = leader.ask(Request::Multi(both));
        assert_eq!(refused, Ok(Reply::Multi(Err((0, Error::NodeExists)))));
        let freed = vec![delete_of("/n-0000000001"), create_of("/n-", Mode::PersistentSequential)];
        assert!(matches!(leader.ask(Request::Multi(freed)), Ok(Reply::Multi(Ok(_)))));
        assert!(leader.tree.contains("/n-0000000001"));
    }

    #[test]
    fn what_servers_of_that_kind_do_not_know_is_unimplemented() {
        let mut leader = Leader::new(Rules { is_old: true, ..Rules::default() });
        assert_eq!(leader.create("/a", Mode::Container), Err(Error::Unimplemented));
        assert_eq!(leader.create("/a", Mode::Ttl(5)), Err(Error::Unimplemented));
        let mut leader = Leader::new(Rules { has_ttl: true, ..Rules::default() });
        assert_eq!(leader.create("/a", Mode::Ttl(0)), Err(Error::BadArguments));
        leader.create("/a", Mode::Ttl(5)).unwrap();
        assert_eq!(leader.tree.overdue(1_005), Vec::<String>::new());
        assert_eq!(leader.tree.overdue(1_006), ["/a"]);
    }
}
