//! Limits that are shorter than the way to the server and back: nothing is lost by them.

use std::time::Duration;

use zklock::{DistributedQueue, PriorityQueue};

use super::{SOON, queue, text};
use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::{QUIET, skip_without_server, waiting};

/// The caller's time is over while the item is read: it stays in the queue.
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
        let taken = queue(&zk, &site).take_for(Duration::from_millis(100)).unwrap();
        assert_eq!(taken, None);
        assert!(proxy.wait_for_requests(opcode::GET_DATA, round as u64 + 1, SOON));
        proxy.release();
        // Its answer comes behind that to the read.
        assert_eq!(queue(&zk, &site).len().unwrap(), round + 1);
    }
    for round in 0..ITEMS {
        assert_eq!(text(theirs.try_take().unwrap()), Some(round.to_string()));
    }
    assert_eq!(proxy.count(opcode::DELETE), 0);
    drop((theirs, proxy));
    site.finish([zk, other]);
}

/// Whatever value asks for it, the next call of the same client to take is given what came late.
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
        let taken = queue(&zk, &site).take_for(Duration::from_millis(300)).unwrap();
        assert_eq!(taken, None);
        assert!(proxy.wait_for_request(opcode::DELETE, SOON));
        let waiter = queue(&zk, &site);
        let waits = waiting(move || waiter.take_for(SOON * 2).unwrap());
        proxy.release();
        assert_eq!(text(waits.join().unwrap()), Some(number.to_string()));
    }
    // That of another queue is not.
    offers.offer("late").unwrap();
    proxy.reset_counts();
    proxy.stall_reply(opcode::DELETE);
    assert_eq!(queue(&zk, &site).take_for(Duration::from_millis(300)).unwrap(), None);
    assert!(proxy.wait_for_request(opcode::DELETE, SOON));
    proxy.release();
    let another = DistributedQueue::new(&zk, &site.base, "another");
    assert_eq!(another.try_take().unwrap(), None);
    assert_eq!(PriorityQueue::new(&zk, &site.base, "another").try_take().unwrap(), None);
    assert_eq!(text(queue(&zk, &site).take_for(SOON).unwrap()).as_deref(), Some("late"));
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
    (0..ITEMS).for_each(|number| offers.offer(number.to_string()).unwrap());
    proxy.delay_replies(Duration::from_millis(40));
    let mut taken = Vec::new();
    for limit in [10, 60, 75, 90, 110, 130, 150].repeat(3) {
        let limit = Duration::from_millis(limit);
        taken.extend(queue(&zk, &site).take_for(limit).unwrap());
    }
    proxy.pass();
    while taken.len() < ITEMS {
        taken.push(queue(&zk, &site).take_for(SOON).unwrap().expect("it was lost"));
    }
    taken.sort_by_key(|item| String::from_utf8_lossy(item).parse::<usize>().unwrap());
    let all: Vec<_> = (0..ITEMS).map(|number| number.to_string().into_bytes()).collect();
    assert_eq!(taken, all);
    assert_eq!(offers.try_take().unwrap(), None);
    drop((offers, proxy));
    site.finish([zk]);
}
