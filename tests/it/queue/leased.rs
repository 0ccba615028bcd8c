//! Queues with many leased items before a free one.

use std::time::Duration;

use zklock::queue::LeasedItem;
use zklock::{Client, DistributedQueue};

use super::{SOON, queue, text};
use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{QUIET, eventually, in_background, last, skip_without_server};

/// How many requests of these kinds there were for the queue's node, and for items, without nodes
/// below items.
fn asked(proxy: &Proxy, operations: &[i32]) -> [usize; 2] {
    let requests = proxy.requests();
    let of_kind = requests.iter().filter(|request| operations.contains(&request.opcode));
    let names: Vec<_> = of_kind.filter_map(|request| request.path.as_deref().map(last)).collect();
    let count = |is_meant: fn(&str) -> bool| names.iter().filter(|name| is_meant(name)).count();
    [count(|name| name == "q"), count(|name| name.starts_with("qn-"))]
}

fn reads_of_items(proxy: &Proxy) -> usize {
    asked(proxy, &[opcode::GET_DATA])[1]
}

fn lists_and_looks(proxy: &Proxy) -> [usize; 2] {
    asked(proxy, &[opcode::GET_CHILDREN, opcode::GET_CHILDREN2])
}

fn all_leased(queue: &DistributedQueue, count: usize) -> Vec<LeasedItem> {
    for number in 0..count {
        queue.offer(number.to_string()).unwrap();
    }
    (0..count).map(|_| queue.lease().unwrap()).collect()
}

/// Drops the leases, and waits until their nodes are deleted.
fn let_go(leases: Vec<LeasedItem>, workers: &Client) {
    drop(leases);
    eventually(SOON * 4, "the last delete", || workers.stats().pending_deletes == 0);
}

/// With one request after the other this would take more than six seconds.
#[test]
fn an_item_behind_many_leased_ones_is_found_in_a_few_round_trips() {
    skip_without_server!();
    const LEASED: usize = 130;
    let site = Site::own("queue-behind");
    let workers = site.quiet_client();
    let theirs = queue(&workers, &site);
    let leases = all_leased(&theirs, LEASED);
    theirs.offer("free").unwrap();
    let (proxy, zk) = site.proxied(QUIET);
    proxy.delay_replies(Duration::from_millis(50));
    for call in ["lease", "take", "peek"] {
        let mine = queue(&zk, &site);
        proxy.reset_counts();
        match call {
            "lease" => {
                let item = mine.lease_within(Duration::from_secs(4)).unwrap().expect("it is free");
                assert_eq!(item.data(), b"free");
            }
            "peek" => assert_eq!(mine.peek().unwrap(), Some(b"free".to_vec())),
            _ => {
                let item = mine.take_within(Duration::from_secs(4)).unwrap();
                assert_eq!(text(item).as_deref(), Some("free"));
                theirs.offer("free").unwrap();
            }
        }
        // The first item and the free one are read.
        assert_eq!(reads_of_items(&proxy), 2, "{call}");
        let [lists, looks] = lists_and_looks(&proxy);
        assert_eq!(lists, 1, "{call}");
        assert!(looks <= LEASED + 1, "{call}: {looks}");
    }
    proxy.pass();
    // The first ten items are checked at once.
    let mine = queue(&zk, &site);
    proxy.reset_counts();
    proxy.stall_reply(opcode::GET_CHILDREN);
    let finds = in_background(move || mine.lease_within(SOON * 2).unwrap().is_some());
    assert!(proxy.wait_for_requests(opcode::GET_CHILDREN, 10, SOON), "checked one by one");
    proxy.release();
    assert!(finds.recv_timeout(SOON * 2).unwrap());
    let_go(leases, &workers);
    drop((theirs, proxy));
    site.finish([workers, zk]);
}

/// Leased items are checked again from time to time, but not read.
#[test]
fn a_consumer_that_waits_beside_leased_items_only_looks_after_them() {
    skip_without_server!();
    const LEASED: usize = 60;
    let site = Site::own("queue-beside");
    let workers = site.quiet_client();
    let theirs = queue(&workers, &site);
    let mut leases = all_leased(&theirs, LEASED);
    let (proxy, zk) = site.proxied(Duration::from_secs(2));
    let mine = queue(&zk, &site);
    let waits = in_background(move || mine.lease().unwrap().data().to_vec());
    // One list at the start, the others because a cached list is not trusted forever.
    eventually(SOON * 4, "three lists", || lists_and_looks(&proxy)[0] >= 3);
    let (reads, [lists, looks]) = (reads_of_items(&proxy), lists_and_looks(&proxy));
    assert!(reads <= 1, "{reads}");
    assert!(looks <= LEASED * (lists + 1), "{looks} looks, {lists} lists");
    // The waiting consumer gets an item that is released.
    drop(leases.remove(LEASED / 2));
    let given = waits.recv_timeout(SOON * 2).unwrap();
    assert_eq!(given, (LEASED / 2).to_string().as_bytes());
    let_go(leases, &workers);
    drop((theirs, proxy));
    site.finish([workers, zk]);
}
