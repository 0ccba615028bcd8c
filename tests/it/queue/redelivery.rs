//! Leased items: whose they are, and when they are delivered again.

use std::time::Duration;

use zklock::{ErrorKind, LossReason};

use super::{BRIEF, SOON, queue};
use crate::support::raw::Kind;
use crate::support::site::Site;
use crate::support::{
    QUIET, got_nothing, in_background, kind, skip_without_server, skip_without_zookeeper, waiting,
};

#[test]
fn s79_a_leased_item_is_nobody_elses_until_it_is_dropped_and_gone_when_acknowledged() {
    skip_without_zookeeper!();
    let site = Site::shared("s79-lease");
    let clients = [site.client(), site.client()];
    let [mine, theirs] = [0, 1].map(|client| queue(&clients[client], &site));
    assert!(mine.try_lease().unwrap().is_none());
    mine.offer("a").unwrap();
    mine.offer("b").unwrap();
    let item = mine.lease().unwrap();
    assert_eq!(item.data(), &b"a"[..]);
    assert!(item.item_path().ends_with("-0000000000"), "{item:?}");
    assert_eq!(item.item_path(), format!("{}/q/qn-0000000000", site.base));
    assert!(item.is_held());
    item.ensure_held().unwrap();
    assert!(format!("{item:?}").contains("qn-0000000000"));
    // The leased item is skipped by values that know of the lease and by those that do not.
    assert_eq!(mine.peek().unwrap(), Some(b"b".to_vec()));
    assert_eq!(mine.len().unwrap(), 2);
    let next = theirs.lease_within(SOON).unwrap().expect("there is another");
    assert_eq!(next.data(), b"b");
    for queue in [&mine, &theirs, &queue(&clients[0], &site), &queue(&clients[1], &site)] {
        assert_eq!(queue.try_take().unwrap(), None);
        assert!(queue.try_lease().unwrap().is_none());
        assert!(got_nothing(queue.take_within(BRIEF)));
        assert!(got_nothing(queue.lease_within(BRIEF)));
    }
    let lost = item.lost();
    drop(item);
    assert!(lost.wait_within(Duration::ZERO) == Some(Ok(())));
    let again = theirs.lease().unwrap();
    assert_eq!(again.data(), &b"a"[..]);
    assert!(again.item_path().ends_with("-0000000000"), "{again:?}");
    again.ack().unwrap();
    next.ack().unwrap();
    assert_eq!(mine.len().unwrap(), 0);
    assert!(mine.try_lease().unwrap().is_none());
    drop((mine, theirs));
    site.finish(clients);
}

/// A waiter on the same value, on another value of the client, or in another client: all get it.
#[test]
fn s79_who_waits_is_given_what_returns() {
    skip_without_zookeeper!();
    let site = Site::shared("s79-return");
    let clients = [site.client(), site.client()];
    let holder = queue(&clients[0], &site);
    holder.offer("a").unwrap();
    for takes in [false, true] {
        for waiter in [holder.clone(), queue(&clients[0], &site), queue(&clients[1], &site)] {
            let item = holder.lease().unwrap();
            let waits = waiting(move || match takes {
                true => waiter.take().unwrap(),
                false => waiter.lease().unwrap().data().to_vec(),
            });
            drop(item);
            assert_eq!(waits.join().unwrap(), b"a");
            if takes {
                holder.offer("a").unwrap();
            }
        }
    }
    holder.take().unwrap();
    drop(holder);
    site.finish(clients);
}

#[test]
fn s79_a_consumers_crash_has_its_item_delivered_again() {
    skip_without_server!();
    let site = Site::own("s79-crash");
    // With a long timeout, so that the server ends the session before the lease runs out.
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.client();
    let (mine, theirs) = (queue(&zk, &site), queue(&other, &site));
    mine.offer("a").unwrap();
    let item = mine.lease().unwrap();
    let (waits, same) = (theirs.clone(), mine.clone());
    let waits = waiting(move || waits.lease().unwrap());
    site.expire(&proxy);
    let again = waits.join().unwrap();
    assert_eq!(again.data(), &b"a"[..]);
    assert!(again.item_path().ends_with("-0000000000"), "{again:?}");
    // The former holder learns of the loss, cannot acknowledge the item, and does no harm when
    // dropped.
    assert_eq!(item.lost().wait_within(SOON), Some(Err(LossReason::SessionExpired)));
    assert!(!item.is_held());
    assert_eq!(kind(item.ack()), ErrorKind::SessionLost);
    again.ensure_held().unwrap();
    // A thread on the same value gets it while the old guard still exists.
    let waits = waiting(move || same.lease().unwrap());
    drop(again);
    waits.join().unwrap().ack().unwrap();
    drop((mine, theirs, proxy));
    site.finish([zk, other]);
}

#[test]
fn s79_a_lost_lease_is_redelivered_within_the_same_value_while_the_guard_lives() {
    skip_without_zookeeper!();
    let site = Site::shared("s79-broken");
    let zk = site.client();
    let queue = queue(&zk, &site);
    queue.offer("a").unwrap();
    let item = queue.lease().unwrap();
    let waits = {
        let queue = queue.clone();
        waiting(move || queue.lease().unwrap())
    };
    let mut raw = site.raw();
    let leases = raw.get_children(item.item_path()).unwrap();
    assert_eq!(leases.len(), 1, "{leases:?}");
    raw.delete(&format!("{}/{}", item.item_path(), leases[0])).unwrap();
    let again = waits.join().unwrap();
    assert_eq!(item.lost().wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
    assert_eq!(kind(item.ack()), ErrorKind::NodeDeleted);
    again.ensure_held().unwrap();
    again.ack().unwrap();
    assert_eq!(queue.len().unwrap(), 0);
    drop(queue);
    site.finish([zk]);
}

#[test]
fn an_item_that_is_deleted_under_its_lease_is_reported() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-deleted");
    let zk = site.client();
    let queue = queue(&zk, &site);
    queue.offer("a").unwrap();
    let item = queue.lease().unwrap();
    site.raw().delete_recursive(item.item_path()).unwrap();
    assert_eq!(item.lost().wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
    assert_eq!(kind(item.ack()), ErrorKind::NodeDeleted);
    assert!(queue.try_lease().unwrap().is_none());
    drop(queue);
    site.finish([zk]);
}

/// Contenders that fail to get an item have a node below it for a moment.
#[test]
fn contenders_in_vain_do_not_keep_an_item_from_being_acknowledged() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-vain");
    let zk = site.client();
    let queue = queue(&zk, &site);
    for rivals in [1, 3] {
        queue.offer("a").unwrap();
        let item = queue.lease().unwrap();
        let mut raw = site.raw();
        for _ in 0..rivals {
            let rival =
                format!("{}/_c_11111111-2222-3333-4444-555555555555-lock-", item.item_path());
            raw.create(&rival, b"", Kind::EphemeralSequential).unwrap();
        }
        item.ack().unwrap();
        assert_eq!(queue.len().unwrap(), 0);
        raw.close().unwrap();
    }
    drop(queue);
    site.finish([zk]);
}

/// A contender with a child cannot be deleted, so neither can its item.
#[test]
fn an_acknowledgement_that_makes_no_progress_ends_and_names_the_node() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-stuck");
    let zk = site.client();
    let queue = queue(&zk, &site);
    queue.offer("a").unwrap();
    let item = queue.lease().unwrap();
    let path = item.item_path().to_owned();
    site.raw().create_all(&format!("{path}/lock-0000000007/note")).unwrap();
    let acks = in_background(move || item.ack());
    let error = acks.recv_timeout(SOON * 2).expect("the call ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert_eq!(error.path(), Some(&*path));
    assert!(error.to_string().contains("lock-0000000007"), "{error}");
    // The item is available again.
    site.raw().delete_recursive(&format!("{path}/lock-0000000007")).unwrap();
    queue.lease_within(SOON).unwrap().expect("it has returned").ack().unwrap();
    drop(queue);
    site.finish([zk]);
}
