//! A server never removes a container that never had a child. So a call that makes a lock node, and then no contender,
//! deletes the lock node again.

use std::time::Duration;

use zklock::maintenance::MaintenanceEnd;
use zklock::{Acl, Cancel, Client, DistributedLock, ErrorKind, Group, NodeNaming, Permissions};

use crate::support::proxy::opcode;
use crate::support::raw::Kind;
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::{QUIET, eventually, in_background, skip_before, skip_without_server, strict};

const SOON: Duration = Duration::from_secs(15);

/// Whoever makes the lock node with it may not make a contender in it.
fn without_create() -> Acl {
    Acl::new(Permissions::READ | Permissions::DELETE, "world", "anyone")
}

fn closed(zk: &Client, site: &Site) -> DistributedLock {
    strict(zk, &site.base, "a").acl(without_create())
}

/// Whether `base/a` exists.
fn is_there(site: &Site) -> bool {
    site.raw().exists(&format!("{}/a", site.base)).unwrap().is_some()
}

fn wait_until_gone(site: &Site) {
    eventually(SOON, "the lock node to go", || !is_there(site));
}

#[test]
fn a_lock_node_whose_first_contender_is_refused_is_deleted_and_tokens_still_grow() {
    skip_before!(3, 5, "has no containers");
    skip_without_server!();
    let site = Site::own("unused-refused");
    let (proxy, zk) = site.proxied(QUIET);
    site.raw().create_all(&site.base).unwrap();
    let mut last = None;
    for _ in 0..3 {
        proxy.reset_counts();
        let error = closed(&zk, &site).try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
        wait_until_gone(&site);
        let node = format!("{}/a", site.base);
        let deletes = proxy.requests().into_iter().filter(|seen| {
            seen.opcode == opcode::DELETE && seen.path.as_deref() == Some(node.as_str())
        });
        assert_eq!(deletes.count(), 1);
        let guard = strict(&zk, &site.base, "a").try_lock().unwrap().expect("free");
        assert!(last < Some(guard.fencing_token()), "{last:?} {guard:?}");
        last = Some(guard.fencing_token());
        guard.unlock().unwrap();
        site.raw().delete_recursive(&node).unwrap();
    }
    site.finish([zk]);
}

/// The server counts the quota's node itself, and the lock node.
#[test]
fn a_lock_node_in_which_a_quota_leaves_no_room_is_deleted() {
    skip_before!(3, 7, "has no quotas that are enforced");
    skip_without_server!();
    let site =
        Site::with("unused-quota", &Server::builder().property("zookeeper.enforceQuota=true"));
    let (mut raw, zk) = (site.raw(), site.client());
    raw.create_all(&site.base).unwrap();
    let quota = format!("/zookeeper/quota{}", site.base);
    raw.create_all(&quota).unwrap();
    let limits = b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2";
    raw.create(&format!("{quota}/zookeeper_limits"), limits, Kind::Persistent).unwrap();
    raw.create(&format!("{quota}/zookeeper_stats"), b"count=1,bytes=0", Kind::Persistent).unwrap();
    let error = strict(&zk, &site.base, "a").try_lock().unwrap_err();
    assert!(!error.is_outage(), "{error}");
    wait_until_gone(&site);
    raw.delete_recursive(&quota).unwrap();
    site.finish([zk]);
}

#[test]
fn a_lock_node_that_is_made_after_its_call_has_ended_is_deleted() {
    skip_before!(3, 5, "has no containers");
    skip_without_server!();
    let site = Site::own("unused-late");
    let (proxy, zk) = site.proxied(QUIET);
    site.raw().create_all(&site.base).unwrap();
    proxy.stall_reply(opcode::CREATE_CONTAINER);
    let error = strict(&zk, &site.base, "a").try_lock_for(Duration::from_millis(100)).unwrap_err();
    assert!(error.is_outage(), "{error}");
    eventually(SOON, "the lock node", || is_there(&site));
    proxy.pass();
    wait_until_gone(&site);
    site.finish([zk]);
}

/// As above, but another client has made a contender in the lock node by then.
#[test]
fn a_lock_node_that_another_client_uses_stays_with_its_contender() {
    skip_before!(3, 5, "has no containers");
    skip_without_server!();
    let site = Site::own("unused-used");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.client();
    site.raw().create_all(&site.base).unwrap();
    proxy.stall_reply(opcode::CREATE_CONTAINER);
    let error = strict(&zk, &site.base, "a").try_lock_for(Duration::from_millis(100)).unwrap_err();
    assert!(error.is_outage(), "{error}");
    let guard = strict(&other, &site.base, "a").try_lock().unwrap().expect("free");
    proxy.pass();
    assert!(proxy.wait_for_request(opcode::DELETE, SOON), "no delete was tried");
    // Answered after the delete.
    assert!(strict(&zk, &site.base, "a").try_lock().unwrap().is_none());
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
    drop(zk);
    site.finish([other]);
}

#[test]
fn a_lock_node_that_was_there_or_is_kazoos_or_may_have_a_contender_is_left_alone() {
    skip_before!(3, 5, "has no containers");
    skip_without_server!();
    let site = Site::own("unused-kept");
    let (proxy, zk) = site.proxied(QUIET);
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let node = format!("{}/a", site.base);
    let tries_to_delete = || {
        zk.sync().unwrap();
        let seen = proxy.requests();
        let mut of_node = seen.iter().filter(|seen| seen.path.as_deref() == Some(node.as_str()));
        of_node.any(|seen| seen.opcode == opcode::DELETE)
    };
    // Kazoo expects that a lock path stays.
    assert!(closed(&zk, &site).naming(NodeNaming::Kazoo).try_lock().is_err());
    assert!(is_there(&site) && !tries_to_delete());
    // Somebody else's.
    assert!(closed(&zk, &site).try_lock().is_err());
    assert!(is_there(&site) && !tries_to_delete());
    raw.delete(&node).unwrap();
    // The request to create the contender is under way when the call ends. The first one finds no lock node.
    proxy.delay_replies(Duration::from_secs(1));
    let (lock, cancel) = (strict(&zk, &site.base, "a"), Cancel::new());
    let token = cancel.clone();
    let call = in_background(move || lock.lock_within(&token).map(drop));
    eventually(SOON, "the lock node", || is_there(&site));
    proxy.reset_counts();
    proxy.stall_request(opcode::CREATE);
    assert!(proxy.wait_for_request(opcode::CREATE, SOON), "no contender was asked for");
    cancel.cancel();
    // On a slow machine it may have got the lock.
    let _ = call.recv_timeout(SOON).expect("the end of the call");
    proxy.pass();
    assert!(!tries_to_delete());
    site.finish([zk]);
}

#[test]
fn a_group_and_a_lock_for_maintenance_in_which_nothing_is_made_are_deleted() {
    skip_before!(3, 5, "has no containers");
    skip_without_server!();
    let site = Site::shared("unused-others");
    let zk = site.client();
    site.raw().create_all(&site.base).unwrap();
    let error = Group::new(&zk, &site.base, "a").acl(without_create()).join("me", "").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
    wait_until_gone(&site);
    let held = closed(&zk, &site).hold_for_maintenance("disk", MaintenanceEnd::Never, SOON);
    assert_eq!(held.unwrap_err().kind(), ErrorKind::NotAuthorized);
    wait_until_gone(&site);
    site.finish([zk]);
}

/// Limits that end anywhere in a call.
#[test]
fn calls_that_are_given_up_at_any_moment_leave_no_lock_node_that_was_never_used() {
    skip_before!(3, 5, "has no containers");
    skip_without_server!();
    let site = Site::own("unused-any-moment");
    let (proxy, zk) = site.proxied(QUIET);
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    strict(&zk, &site.base, "first").lock().unwrap().unlock().unwrap();
    proxy.delay(Duration::from_millis(25));
    for number in 0..40 {
        let lock = strict(&zk, &site.base, format!("x{number}"));
        let _ = lock.try_lock_for(Duration::from_millis(5 * number));
    }
    proxy.pass();
    eventually(SOON, "the last delete", || zk.stats().pending_deletes == 0);
    eventually(SOON, "the last unused lock node to go", || {
        raw.get_children(&site.base).unwrap().iter().all(|name| {
            let stat = raw.exists(&format!("{}/{name}", site.base)).unwrap();
            stat.is_none_or(|stat| stat.cversion > 0)
        })
    });
    site.finish([zk]);
}
