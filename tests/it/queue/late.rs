//! Limits shorter than a round trip to the server lose no item.

use std::time::Duration;

use zklock::{Cancel, DistributedQueue, ErrorKind, PriorityQueue};

use super::{SOON, queue, text};
use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::{QUIET, eventually, last, skip_without_server, waiting};

/// The deletion is under way, and the error says so: the item may be gone from the queue.
pub(super) fn assert_late(taken: zklock::Result<Option<Vec<u8>>>) {
    let error = taken.expect_err("a deletion is under way");
    assert_eq!(error.kind(), ErrorKind::ConnectionLoss, "{error}");
    assert!(error.may_have_taken_effect() && error.is_outage() && !error.is_retryable());
    assert!(last(error.path().unwrap()).starts_with("qn-"), "{error}");
    assert!(error.to_string().contains("late_items"), "{error}");
}

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
        // The list was answered.
        assert_eq!(queue(&zk, &site).take_within(Duration::from_millis(300)).unwrap(), None);
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
        assert_late(queue(&zk, &site).take_within(SOON / 20));
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
    assert_late(queue(&zk, &site).take_within(SOON / 20));
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
            Err(error) if error.kind() == ErrorKind::Connect => {}
            late @ Err(_) => assert_late(late),
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

#[test]
fn a_cancelled_call_says_that_it_may_have_taken_an_item() {
    skip_without_server!();
    let site = Site::own("queue-late-cancel");
    let (proxy, zk) = site.proxied(QUIET);
    let queue = queue(&zk, &site);
    queue.offer("a").unwrap();
    proxy.reset_counts();
    proxy.stall_reply(opcode::DELETE);
    let (cancel, taker) = (Cancel::new(), queue.clone());
    let token = cancel.clone();
    let takes = waiting(move || taker.take_within(&token).unwrap_err());
    assert!(proxy.wait_for_request(opcode::DELETE, SOON));
    cancel.cancel();
    let error = takes.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(error.may_have_taken_effect(), "{error}");
    assert!(last(error.path().unwrap()).starts_with("qn-"), "{error}");
    proxy.release();
    assert_eq!(queue.take_within(SOON).unwrap(), Some(b"a".to_vec()));
    drop((queue, proxy));
    site.finish([zk]);
}

/// A consumer that takes no more gets what it has taken too late, also after it has closed.
#[test]
fn what_comes_too_late_is_not_lost_with_the_client() {
    skip_without_server!();
    let site = Site::own("queue-late-items");
    let other = site.client();
    let offers = queue(&other, &site);
    for is_open in [true, false] {
        let (proxy, zk) = site.proxied(QUIET);
        let mine = queue(&zk, &site);
        offers.offer("a").unwrap();
        proxy.stall_reply(opcode::DELETE);
        assert_late(mine.take_within(SOON / 20));
        assert!(mine.late_items().unwrap().is_empty());
        proxy.release();
        let mut late = Vec::new();
        if is_open {
            eventually(SOON, "the late item", || {
                late.extend(mine.late_items().unwrap());
                !late.is_empty()
            });
        } else {
            assert_eq!(offers.len().unwrap(), 0);
            // The reply that was withheld has come, as replies come in order.
            zk.sync().unwrap();
            zk.close();
            late = mine.late_items().unwrap();
        }
        assert_eq!(late, [b"a".to_vec()], "open: {is_open}");
        assert!(mine.late_items().unwrap().is_empty());
        assert_eq!(PriorityQueue::new(&zk, &site.base, "q").late_items().unwrap().len(), 0);
        drop((mine, proxy, zk));
    }
    drop(offers);
    site.finish([other]);
}
