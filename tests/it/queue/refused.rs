//! What is refused, ignored or warned of.

use std::time::Duration;

use log::LevelFilter;
use zklock::{Acl, Cancel, DistributedQueue, ErrorKind, PriorityQueue};

use super::{BRIEF, SOON, jobs, queue};
use crate::support::logs::logs;
use crate::support::raw::{self, Kind, Raw};
use crate::support::site::Site;
use crate::support::{
    QUIET, got_nothing, kind, last, skip_unless_alone, skip_without_server, skip_without_zookeeper,
};

/// Makes a child of the queue's node as another client would.
fn intrude(site: &Site, name: &str, data: &[u8]) -> String {
    let mut raw = site.raw();
    let node = format!("{}/q", site.base);
    raw.create_all(&node).unwrap();
    let made = raw.create(&format!("{node}/{name}"), data, Kind::PersistentSequential).unwrap();
    raw.close().unwrap();
    made
}

#[test]
fn bad_names_are_told_by_the_first_call() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-names");
    let zk = site.client();
    for (base, name) in [("relative", "q"), ("/a", ""), ("/a", "b/c"), ("/a", ".."), ("/a/", "q")] {
        let queue = DistributedQueue::new(&zk, base, name);
        let jobs = PriorityQueue::new(&zk, base, name);
        for found in [
            kind(queue.offer("x")),
            kind(queue.take()),
            kind(queue.try_take()),
            kind(queue.take_within(SOON)),
            kind(queue.take_within(&Cancel::new())),
            kind(queue.lease()),
            kind(queue.try_lease()),
            kind(queue.peek()),
            kind(queue.len()),
            kind(jobs.offer(0, "x")),
            kind(jobs.take()),
            kind(jobs.peek()),
        ] {
            assert_eq!(found, ErrorKind::InvalidName, "{base:?} {name:?}");
        }
    }
    site.finish([zk]);
}

#[test]
fn an_item_that_is_too_large_is_refused_before_it_is_sent_and_the_largest_is_taken() {
    skip_without_server!();
    let site = Site::own("queue-large");
    let (proxy, zk) = site.proxied(QUIET);
    let queue = queue(&zk, &site);
    queue.offer("").unwrap();
    assert_eq!(queue.take().unwrap(), b"");
    // Header, lengths of path and data, one ACL entry, and the flags.
    let path = format!("{}/q/qn-", site.base);
    let most = 1_048_575 - (8 + 4 + path.len() + 4 + 4 + (4 + 4 + 5 + 4 + 6) + 4);
    proxy.reset_counts();
    let error = queue.offer(vec![7; most + 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().contains(&most.to_string()), "{error}");
    assert!(!error.is_retryable());
    assert_eq!(proxy.total_requests(), 0);
    let largest: Vec<u8> = (0..most).map(|n| n as u8).collect();
    queue.offer(&largest).unwrap();
    assert!(queue.take().unwrap() == largest, "other bytes came out");
    queue.offer(&largest).unwrap();
    let item = queue.lease().unwrap();
    assert!(item.data() == largest, "other bytes came out");
    item.ack().unwrap();
    drop((queue, proxy));
    site.finish([zk]);
}

#[test]
fn children_of_another_kind_are_ignored_with_one_warning() {
    skip_without_zookeeper!();
    skip_unless_alone!();
    let site = Site::shared("queue-foreign");
    let zk = site.client();
    let logs = logs(LevelFilter::Warn);
    let queue = queue(&zk, &site);
    intrude(&site, "lock-", b"foreign");
    intrude(&site, "pn-0000000000-", b"foreign");
    let item = intrude(&site, "qn-", b"a peer's");
    assert_eq!(last(&item), "qn-0000000002");
    queue.offer("ours").unwrap();
    assert_eq!(queue.len().unwrap(), 2);
    assert_eq!(queue.take().unwrap(), b"a peer's");
    assert_eq!(queue.take().unwrap(), b"ours");
    assert_eq!(queue.try_take().unwrap(), None);
    assert_eq!(site.children("q").len(), 2);
    let warnings = logs.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("2 children that are no items"), "{warnings:?}");
    drop(queue);
    site.finish([zk]);
}

#[test]
fn an_item_with_children_that_are_no_leases_is_warned_of_once() {
    skip_without_zookeeper!();
    skip_unless_alone!();
    let site = Site::shared("queue-blocked");
    let zk = site.client();
    let logs = logs(LevelFilter::Warn);
    let queue = queue(&zk, &site);
    let item = intrude(&site, "qn-", b"blocked");
    site.raw().create(&format!("{item}/note"), b"", Kind::Persistent).unwrap();
    for _ in 0..2 {
        assert_eq!(queue.try_take().unwrap(), None);
        assert!(queue.try_lease().unwrap().is_none());
    }
    let warnings = logs.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains(&item) && warnings[0].contains("no leases"), "{warnings:?}");
    // A lease is nothing to warn of.
    site.raw().delete(&format!("{item}/note")).unwrap();
    queue.offer("b").unwrap();
    let leased = queue.lease().unwrap();
    let other = self::queue(&zk, &site);
    assert_eq!(other.try_take().unwrap(), Some(b"b".to_vec()));
    assert_eq!(other.try_take().unwrap(), None);
    assert_eq!(logs.warnings().len(), 1, "{:?}", logs.warnings());
    leased.ack().unwrap();
    drop((queue, other));
    site.finish([zk]);
}

/// Makes an item in the queue's node that only its maker may read or delete.
fn hide(raw: &mut Raw, site: &Site, prefix: &str) -> String {
    raw.create_all(&format!("{}/q", site.base)).unwrap();
    raw.add_auth("digest", b"me:secret").unwrap();
    let (path, private) =
        (format!("{}/q/{prefix}", site.base), [raw::Acl::new(raw::ALL, "auth", "")]);
    raw.create_with_acl(&path, b"private", Kind::PersistentSequential, &private).unwrap()
}

#[test]
fn an_item_that_may_not_be_read_is_warned_of_once() {
    skip_without_zookeeper!();
    skip_unless_alone!();
    let site = Site::shared("queue-hidden-log");
    let zk = site.client();
    let logs = logs(LevelFilter::Warn);
    let mut raw = site.raw();
    let hidden = hide(&mut raw, &site, "qn-");
    for queue in [queue(&zk, &site), queue(&zk, &site)] {
        assert_eq!(queue.peek().unwrap(), None);
        assert_eq!(queue.try_take().unwrap(), None);
        assert!(queue.try_lease().unwrap().is_none());
    }
    let warnings = logs.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains(&hidden) && warnings[0].contains("READ"), "{warnings:?}");
    raw.delete_recursive(&format!("{}/q", site.base)).unwrap();
    site.finish([zk]);
}

#[test]
fn an_item_that_may_not_be_read_is_passed_over() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-hidden");
    let zk = site.client();
    let mut raw = site.raw();
    hide(&mut raw, &site, "qn-");
    let queue = queue(&zk, &site);
    for item in ["a", "b", "c"] {
        queue.offer(item).unwrap();
    }
    assert_eq!(queue.peek().unwrap(), Some(b"a".to_vec()));
    assert_eq!(queue.take().unwrap(), b"a");
    let item = queue.lease().unwrap();
    assert_eq!(item.data(), b"b");
    item.ack().unwrap();
    assert_eq!(queue.try_take().unwrap(), Some(b"c".to_vec()));
    assert_eq!(queue.try_take().unwrap(), None);
    assert_eq!(queue.peek().unwrap(), None);
    assert!(got_nothing(queue.lease_within(Duration::from_millis(100))));
    assert_eq!(queue.len().unwrap(), 1);
    let urgent = jobs(&zk, &site);
    hide(&mut raw, &site, "pn-0000000000-");
    urgent.offer(7, "later").unwrap();
    assert_eq!(urgent.take().unwrap(), b"later");
    raw.delete_recursive(&format!("{}/q", site.base)).unwrap();
    drop((queue, urgent));
    site.finish([zk]);
}

#[test]
fn an_acl_keeps_others_out_of_the_queue_and_they_are_told() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-acl");
    let owner = site.builder().auth("digest", "owner:secret").connect().unwrap();
    let stranger = site.client();
    let mine = DistributedQueue::new(&owner, &site.base, "q").acl(Acl::creator_only());
    let theirs = queue(&stranger, &site);
    let mut raw = site.raw();
    raw.create_all(&format!("{}/open", site.base)).unwrap();
    mine.offer("a").unwrap();
    for refused in [
        kind(theirs.offer("x")),
        kind(theirs.try_take()),
        kind(theirs.take()),
        kind(theirs.lease_within(SOON)),
        kind(theirs.peek()),
        kind(theirs.len()),
    ] {
        assert_eq!(refused, ErrorKind::NotAuthorized);
    }
    let item = mine.lease().unwrap();
    assert_eq!(item.data(), b"a");
    item.ack().unwrap();
    mine.offer("b").unwrap();
    assert_eq!(mine.take().unwrap(), b"b");

    // An item that may not be read is not deleted unread, and others can be taken.
    let open = DistributedQueue::new(&stranger, &site.base, "open");
    let hidden = [raw::Acl::new(12, "world", "anyone")];
    let prefix = format!("{}/open/qn-", site.base);
    raw.create_with_acl(&prefix, b"hidden", Kind::PersistentSequential, &hidden).unwrap();
    assert_eq!(open.try_take().unwrap(), None);
    assert!(open.try_lease().unwrap().is_none());
    open.offer("c").unwrap();
    assert_eq!(open.take().unwrap(), b"c");
    assert_eq!(open.len().unwrap(), 1);
    drop((mine, theirs, open));
    site.finish([owner, stranger]);
}

/// No server gives such a number, so another program has made the node.
#[test]
fn a_negative_number_that_no_server_gives_is_no_item() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-negative");
    let zk = site.client();
    let queue = queue(&zk, &site);
    queue.offer("a").unwrap();
    site.raw().create(&format!("{}/q/qn--000000001", site.base), b"", Kind::Persistent).unwrap();
    assert_eq!(queue.len().unwrap(), 1);
    assert_eq!(queue.take().unwrap(), b"a");
    assert_eq!(queue.try_take().unwrap(), None);
    assert!(queue.try_lease().unwrap().is_none());
    assert!(got_nothing(queue.take_within(BRIEF)));
    drop(queue);
    site.finish([zk]);
}
