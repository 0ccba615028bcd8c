//! The library's requests as the servers in memory take them, and their answers as the library takes those.

use zklock_testing::core;

use crate::acl::{Acl, Permissions};
use crate::session::{Created, Fault, NodeKind, Reply, Request, Step};
use crate::wire_values::{NodeEvent, Stat};

pub(super) fn acl(acl: &[Acl]) -> Vec<core::Acl> {
    let entry = |acl: &Acl| core::Acl {
        permissions: acl.permissions.bits(),
        scheme: acl.scheme.clone(),
        id: acl.id.clone(),
    };
    acl.iter().map(entry).collect()
}

pub(super) fn mode(kind: NodeKind) -> core::Mode {
    match kind {
        NodeKind::Persistent => core::Mode::Persistent,
        NodeKind::PersistentSequential => core::Mode::PersistentSequential,
        NodeKind::Ephemeral | NodeKind::Named => core::Mode::Ephemeral,
        NodeKind::EphemeralSequential | NodeKind::Contender => core::Mode::EphemeralSequential,
        NodeKind::Container => core::Mode::Container,
    }
}

fn step(step: &Step) -> core::Step {
    let number = |version: &Option<i32>| version.unwrap_or(-1);
    match step {
        Step::Check { path, version } => {
            core::Step::Check { path: path.clone(), version: number(version) }
        }
        Step::Create { path, data, acl: list, kind } => core::Step::Create {
            path: path.clone(),
            data: data.clone(),
            acl: acl(list),
            mode: mode(*kind),
        },
        Step::Delete { path, version } => {
            core::Step::Delete { path: path.clone(), version: number(version) }
        }
        Step::Write { path, data, version } => {
            let version = number(version);
            core::Step::SetData { path: path.clone(), data: data.clone(), version }
        }
    }
}

pub(super) fn request(request: &Request) -> core::Request {
    match request {
        Request::One(one) => core::Request::One(step(one)),
        Request::Transact(steps) => core::Request::Multi(steps.iter().map(step).collect()),
        Request::SetAcl { path, acl: list } => {
            core::Request::SetAcl { path: path.clone(), acl: acl(list), version: -1 }
        }
        Request::Acl { path } => core::Request::GetAcl { path: path.clone() },
        Request::Sync => core::Request::Sync { path: "/".to_owned() },
        Request::Data { path, watch } => {
            core::Request::GetData { path: path.clone(), watch: *watch }
        }
        Request::Exists { path, watch } => {
            core::Request::Exists { path: path.clone(), watch: *watch }
        }
        Request::Children { path, watch } | Request::ChildrenAndStat { path, watch } => {
            core::Request::GetChildren { path: path.clone(), watch: *watch }
        }
        Request::Unwatch { path } => core::Request::RemoveWatches {
            path: path.clone(),
            which: core::Watched::Any,
            only_check: false,
        },
    }
}

pub(super) fn fault(error: core::Error) -> Fault {
    match error {
        core::Error::NoNode => Fault::NoNode,
        core::Error::NoAuth => Fault::NoAuth,
        core::Error::BadVersion => Fault::BadVersion,
        core::Error::NoChildrenForEphemerals => Fault::BelowEphemeral,
        core::Error::NodeExists => Fault::NodeExists,
        core::Error::NotEmpty => Fault::NotEmpty,
        core::Error::SessionExpired => Fault::SessionEnded,
        core::Error::InvalidAcl => Fault::InvalidAcl(String::new()),
        core::Error::Unimplemented => Fault::Unknown,
        other => Fault::Refused(format!("{other:?}")),
    }
}

pub(super) fn stat(stat: core::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        ctime: stat.ctime,
        mtime: stat.mtime,
        version: stat.version,
        child_changes: stat.cversion,
        data_length: stat.data_length,
        children: stat.num_children,
        children_zxid: stat.pzxid,
        ephemeral_owner: stat.ephemeral_owner,
    }
}

/// The answer to that request.
pub(super) fn reply(reply: core::Reply, to: &Request) -> Reply {
    let entry =
        |acl: core::Acl| Acl::new(Permissions::from_bits(acl.permissions), acl.scheme, acl.id);
    match reply {
        core::Reply::Created(path, of) => Reply::Created(Created { path, czxid: Some(of.czxid) }),
        core::Reply::Done => Reply::Done,
        core::Reply::Stat(of) => Reply::Stat(stat(of)),
        core::Reply::Data(data, of) => Reply::Data(data, stat(of)),
        core::Reply::Children(names, of) => match to {
            Request::ChildrenAndStat { .. } => {
                Reply::NamesAndStat(names.iter().collect(), stat(of))
            }
            _ => Reply::Names(names.iter().collect()),
        },
        core::Reply::Acl(acl, _) => Reply::Acl(acl.into_iter().map(entry).collect()),
        core::Reply::Multi(done) => Reply::Transacted(match done {
            Ok(all) => Ok(all.into_iter().map(|one| self::reply(one, to)).collect()),
            Err((place, error)) => Err((place, fault(error))),
        }),
    }
}

pub(super) fn event(event: core::Event) -> NodeEvent {
    match event {
        core::Event::Created => NodeEvent::Created,
        core::Event::Deleted => NodeEvent::Deleted,
        core::Event::DataChanged => NodeEvent::Written,
        core::Event::ChildrenChanged => NodeEvent::ChildrenChanged,
    }
}
