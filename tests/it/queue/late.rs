//! Limits shorter than a round trip to the server lose no item.

use std::time::Duration;

use zklock::{DistributedQueue, ErrorKind, PriorityQueue};

use super::{SOON, queue, text};
use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::{QUIET, got_nothing, is_unanswered, skip_without_server, waiting};

/// The timeout ends while the item is read: the item stays in the queue.
#[test]
fn nothing_is_deleted_for_a_caller_that_has_gone() {
    skip_without_server!();
    const ITEMS: usize = 5;
    let site = Site::own("queue-gone");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.client();
    let theirs = queue(&other, &site);
    for round in 0..ITEMS {
        theirs.offer(round.to_string()).unwrap();
        proxy.stall_reply(opcode::GET_DATA);
        assert!(is_unanswered(queue(&zk, &site).take_within(Duration::from_millis(100))));
        assert!(proxy.wait_for_requests(opcode::GET_DATA, round as u64 + 1, SOON));
        proxy.release();
        // The answer to `len` comes after the answer to the read.
        assert_eq!(queue(&zk, &site).len().unwrap(), round + 1);
    }
    for round in 0..ITEMS {
        assert_eq!(text(theirs.try_take().unwrap()), Some(round.to_string()));
    }
    assert_eq!(proxy.count(opcode::DELETE), 0);
    drop((theirs, proxy));
    site.finish([zk, other]);
}

/// An item that comes too late goes to the client's next call that takes, on any value of the
/// queue.
#[test]
fn with_a_value_for_each_call_what_comes_too_late_is_for_the_next_call() {
    skip_without_server!();
    let site = Site::own("queue-late-value");
    let (proxy, zk) = site.proxied(QUIET);
    let producer = site.client();
    let offers = queue(&producer, &site);
    for number in 0..3 {
        offers.offer(number.to_string()).unwrap();
        proxy.reset_counts();
        proxy.stall_reply(opcode::DELETE);
        assert!(is_unanswered(queue(&zk, &site).take_within(SOON / 20)));
        assert!(proxy.wait_for_request(opcode::DELETE, SOON));
        let waiter = queue(&zk, &site);
        let waits = waiting(move || waiter.take_within(SOON * 2).unwrap());
        proxy.release();
        assert_eq!(text(waits.join().unwrap()), Some(number.to_string()));
    }
    // But not to a call on another queue.
    offers.offer("late").unwrap();
    proxy.reset_counts();
    proxy.stall_reply(opcode::DELETE);
    assert!(got_nothing(queue(&zk, &site).take_within(SOON / 20)));
    assert!(proxy.wait_for_request(opcode::DELETE, SOON));
    proxy.release();
    let another = DistributedQueue::new(&zk, &site.base, "another");
    assert_eq!(another.try_take().unwrap(), None);
    assert_eq!(PriorityQueue::new(&zk, &site.base, "another").try_take().unwrap(), None);
    assert_eq!(text(queue(&zk, &site).take_within(SOON).unwrap()).as_deref(), Some("late"));
    drop((offers, another, proxy));
    site.finish([zk, producer]);
}

#[test]
fn no_item_is_lost_by_limits_that_are_too_short_for_the_way() {
    skip_without_server!();
    const ITEMS: usize = 12;
    let site = Site::own("queue-short");
    let (proxy, zk) = site.proxied(QUIET);
    let offers = queue(&zk, &site);
    for number in 0..ITEMS {
        offers.offer(number.to_string()).unwrap();
    }
    proxy.delay_replies(Duration::from_millis(40));
    let mut taken = Vec::new();
    for limit in [10, 60, 75, 90, 110, 130, 150].repeat(3) {
        let limit = Duration::from_millis(limit);
        match queue(&zk, &site).take_within(limit) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Connect, "{error}"),
            Ok(item) => taken.extend(item),
        }
    }
    proxy.pass();
    while taken.len() < ITEMS {
        taken.push(queue(&zk, &site).take_within(SOON).unwrap().expect("it was lost"));
    }
    taken.sort_by_key(|item| String::from_utf8_lossy(item).parse::<usize>().unwrap());
    let all: Vec<_> = (0..ITEMS).map(|number| number.to_string().into_bytes()).collect();
    assert_eq!(taken, all);
    assert_eq!(offers.try_take().unwrap(), None);
    drop((offers, proxy));
    site.finish([zk]);
}
