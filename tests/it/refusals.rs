//! What servers refuse because of their settings: quotas that are used up, local sessions.

use std::time::Duration;

use zklock::maintenance::MaintenanceEnd;
use zklock::znode::CreateMode;
use zklock::{DistributedQueue, Error, ErrorKind, SessionState, SharedValue};

use crate::support::proxy::opcode;
use crate::support::raw::{Kind, Raw};
use crate::support::server::{Server, free_port};
use crate::support::site::Site;
use crate::support::{
    QUIET, connecting, in_background, skip_before, skip_without_server, strict, unique_base,
};

const LONG: Duration = Duration::from_secs(120);
const QUOTA_EXCEEDED: i32 = -125;

/// What may be below a path at most; -1 is no limit.
fn set_quota(raw: &mut Raw, path: &str, nodes: i64, bytes: i64) {
    let node = format!("/zookeeper/quota{path}");
    raw.create_all(&node).unwrap();
    let limits = format!("count=-1,bytes=-1=;byteHardLimit={bytes};countHardLimit={nodes}");
    for (name, data) in [("zookeeper_limits", &*limits), ("zookeeper_stats", "count=0,bytes=0")] {
        raw.create(&format!("{node}/{name}"), data.as_bytes(), Kind::Persistent).unwrap();
    }
}

fn assert_is_of_quota(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error}");
    assert!(!error.is_outage() && !error.is_retryable() && !error.may_have_taken_effect());
    let text = "a quota (count or bytes) on the path or above it is used up";
    assert!(error.to_string().contains(text), "{error}");
    assert!(error.path().is_some_and(|path| path.starts_with('/')), "{error:?}");
}

#[test]
fn a_quota_that_is_used_up_fails_each_call_at_once_and_deletes_still_work() {
    skip_without_server!();
    skip_before!(3, 7, "enforce no quotas");
    let site = Site::with("quota", &Server::builder().extra("enforceQuota=true"));
    let (zk, mut raw) = (site.quiet_client(), site.raw());
    let at = |name: &str| format!("{}/{name}", site.base);
    let guard = strict(&zk, &site.base, "held").lock().unwrap();
    SharedValue::new(&zk, &site.base, "value").set("1").unwrap();
    zk.znode(at("made")).create(CreateMode::Persistent, "").unwrap();
    // The base, held and its contender, value, made.
    set_quota(&mut raw, &site.base, 5, -1);

    assert_is_of_quota(&strict(&zk, &site.base, "new").lock().unwrap_err());
    assert_is_of_quota(&strict(&zk, &site.base, "held").lock().unwrap_err());
    let queue = DistributedQueue::new(&zk, &site.base, "queue");
    assert_is_of_quota(&queue.offer("x").unwrap_err());
    let steps = zk.transaction().write(at("made"), "").create(at("one"), CreateMode::Ephemeral, "");
    let error = steps.commit().unwrap_err();
    assert_is_of_quota(&error);
    assert_eq!(zk.state(), SessionState::Connected);
    guard.unlock().unwrap();
    zk.znode(at("made")).delete().unwrap();
    drop(strict(&zk, &site.base, "held").lock().unwrap());

    // One of bytes, below it.
    let base = at("bytes");
    raw.create(&base, b"", Kind::Persistent).unwrap();
    set_quota(&mut raw, &base, -1, 10);
    let value = SharedValue::new(&zk, &site.base, "bytes");
    value.set("0123456789").unwrap();
    assert_is_of_quota(&value.set("more than ten bytes").unwrap_err());
    assert_eq!(value.get().unwrap().expect("a value").data, b"0123456789");
    value.set("less").unwrap();
    drop((queue, value));
    site.finish([zk]);
}

#[test]
fn a_maintenance_hold_that_a_quota_ends_says_so() {
    skip_without_server!();
    let site = Site::own("quota-maintenance");
    let (proxy, zk) = site.proxied(QUIET);
    let holder = site.quiet_client();
    let guard = strict(&holder, &site.base, "a").lock().unwrap();
    let lock = strict(&zk, &site.base, "a");
    let hold = in_background(move || {
        lock.hold_for_maintenance("disk", MaintenanceEnd::Never, LONG).map(|hold| hold.is_some())
    });
    site.wait_for_children("a", 2);
    // It is written anew every ten seconds.
    proxy.deny(opcode::SET_DATA, "", QUOTA_EXCEEDED);
    // In doubt if deleting its node takes long, so only the kind is certain.
    let error = hold.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error}");
    site.wait_for_only("a", guard.path());
    drop(guard);
    site.finish([zk, holder]);
}

/// An ensemble whose sessions are local until they make an ephemeral node, which they must not.
fn local_sessions() -> Vec<Server> {
    let ports: Vec<[u16; 2]> = (0..3).map(|_| [free_port(), free_port()]).collect();
    let member = |id: usize| {
        let settings = ["initLimit=50", "syncLimit=10", "localSessionsEnabled=true"];
        let builder = Server::builder().member(id, free_port());
        let builder = settings.iter().fold(builder, |builder, line| builder.extra(*line));
        let others = ports.iter().enumerate();
        others.fold(builder, |builder, (other, [quorum, election])| {
            builder.extra(format!("server.{other}=127.0.0.1:{quorum}:{election}"))
        })
    };
    let servers: Vec<Server> = (0..3).map(|id| member(id).launch().unwrap()).collect();
    servers.iter().for_each(|server| server.wait_ready().unwrap());
    servers
}

#[test]
fn a_local_session_that_must_not_be_upgraded_says_what_to_set() {
    skip_without_server!();
    let servers = local_sessions();
    for server in &servers {
        let zk = connecting(&server.hosts()).session_timeout(QUIET).connect().unwrap();
        let (base, session) = (unique_base("local"), zk.session_id());
        zk.znode(&base).create_with_parents(CreateMode::Persistent, "").unwrap();
        let by_lock = strict(&zk, &base, "a").lock().unwrap_err();
        let owned = format!("{base}/owned");
        let together = || zk.transaction().create(&owned, CreateMode::Ephemeral, "").commit();
        let by_transaction = together().unwrap_err();
        for error in [by_lock, by_transaction] {
            let text = "set localSessionsUpgradingEnabled=true on all servers";
            assert!(error.to_string().contains(text), "{:?}: {error}", server.mode());
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(!error.is_retryable() && !error.is_outage() && !error.may_have_taken_effect());
        }
        assert_eq!((zk.state(), zk.session_id()), (SessionState::Connected, session));
        // Nothing that a transaction makes for all fails.
        let kept = format!("{base}/kept");
        zk.transaction().create(&kept, CreateMode::Persistent, "").commit().unwrap();
        zk.close();
    }
}
