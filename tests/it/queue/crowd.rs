//! What consumers in many clients cost that want the items of one queue, and that a list which
//! others have made worthless costs little.
//!
//! Consumers let each other go first for some milliseconds: how many requests that saves depends on how
//! fast they are, so the tests that count them run alone. `ZKLOCK_CONSUMERS=1` has one client empty the
//! queues; `ZKLOCK_GONE=16000` makes the lists longer. The tests print how long that takes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use zklock::{Cancel, Client, DistributedQueue, ErrorKind, PriorityQueue};

use super::{SOON, queue};
use crate::support::proxy::Proxy;
use crate::support::server;
use crate::support::site::Site;
use crate::support::{QUIET, eventually, setting, skip_unless_alone, skip_without_server};

const CONSUMERS: usize = 30;

#[derive(Clone, Copy, Debug)]
enum Way {
    Take,
    Lease,
}

/// Gets an item and is done with it; false if the wait is cancelled.
fn get(queue: &DistributedQueue, way: Way, stop: &Cancel) -> bool {
    let got = match way {
        Way::Take => queue.take_within(stop).map(|item| drop(item.unwrap())),
        Way::Lease => queue.lease_within(stop).and_then(|item| item.unwrap().ack()),
    };
    match got {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::Cancelled => false,
        Err(error) => panic!("{error}"),
    }
}

/// Requests for one item that is offered to consumers in thirty clients, all of them waiting: the
/// median of several, as a busy machine holds up some. The first items teach the consumers that they
/// are many.
fn requests_for_an_item(way: Way) -> u64 {
    const LESSONS: usize = 4;
    const ITEMS: usize = 11;
    let site = Site::own("queue-idle");
    let proxy = Proxy::start(site.server().addr());
    let connect =
        || Client::builder(&proxy.hosts()).session_timeout(QUIET).connect().expect("a client");
    let clients: Vec<Client> = (0..CONSUMERS).map(|_| connect()).collect();
    let producer = connect();
    let offers = queue(&producer, &site);
    offers.offer("first").unwrap();
    assert!(offers.try_take().unwrap().is_some());
    let (stop, got) = (Cancel::new(), AtomicUsize::new(0));
    let requests = thread::scope(|scope| {
        for zk in &clients {
            let (queue, stop, got) = (queue(zk, &site), &stop, &got);
            scope.spawn(move || {
                while get(&queue, way, stop) {
                    got.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let all_wait = |taken| {
            eventually(SOON * 2, "the consumers to wait again", || {
                let watches = site.server().counter("zk_watch_count");
                got.load(Ordering::SeqCst) == taken && watches == CONSUMERS as u64
            });
        };
        all_wait(0);
        let requests = |item| {
            proxy.reset_counts();
            offers.offer("x").unwrap();
            all_wait(item + 1);
            proxy.total_requests()
        };
        let mut requests: Vec<u64> = (0..LESSONS + ITEMS).map(requests).skip(LESSONS).collect();
        stop.cancel();
        requests.sort_unstable();
        requests
    });
    drop(offers);
    // Through the proxy: without it, each client waits in vain for its session's end.
    site.finish(clients.into_iter().chain([producer]));
    drop(proxy);
    println!("{way:?} by one of {CONSUMERS} waiting consumers: {requests:?} requests");
    requests[ITEMS / 2]
}

#[test]
fn an_item_for_thirty_waiting_consumers_is_taken_with_few_requests_on_time() {
    skip_without_server!();
    skip_unless_alone!();
    assert!(requests_for_an_item(Way::Take) <= 45);
}

#[test]
fn an_item_for_thirty_waiting_consumers_is_leased_and_acknowledged_with_few_requests_on_time() {
    skip_without_server!();
    skip_unless_alone!();
    assert!(requests_for_an_item(Way::Lease) <= 60);
}

/// Requests for each item of a long queue that consumers in many clients empty.
fn requests_to_empty(way: Way, items: usize) -> f64 {
    let consumers = setting("ZKLOCK_CONSUMERS", CONSUMERS as u64);
    let site = Site::own("queue-crowd");
    let clients: Vec<Client> = (0..consumers).map(|_| site.quiet_client()).collect();
    let producer = site.quiet_client();
    let offers = queue(&producer, &site);
    thread::scope(|scope| {
        for part in 0..20 {
            let offers = &offers;
            let numbers = (part..items).step_by(20);
            scope.spawn(move || {
                numbers.for_each(|item| assert!(offers.offer(item.to_string()).is_ok()));
            });
        }
    });
    assert_eq!(offers.len().unwrap(), items);
    let (got, is_over) = (AtomicUsize::new(0), Cancel::new());
    site.server().stat_reset();
    let start = Instant::now();
    thread::scope(|scope| {
        for zk in &clients {
            let (queue, got, is_over) = (queue(zk, &site), &got, &is_over);
            scope.spawn(move || {
                while get(&queue, way, is_over) {
                    if got.fetch_add(1, Ordering::SeqCst) + 1 == items {
                        is_over.cancel();
                    }
                }
            });
        }
        eventually(SOON * 8, "the last item", || is_over.is_cancelled());
        println!("{way:?} of {items} by {consumers}: {:?}", start.elapsed());
    });
    let requests = site.server().counter("zk_packets_received");
    assert_eq!(offers.len().unwrap(), 0);
    drop(offers);
    site.finish(clients.into_iter().chain([producer]));
    let each = requests as f64 / items as f64;
    println!("{each} requests an item");
    each
}

#[test]
fn thirty_consumers_that_take_all_items_of_a_queue_are_seldom_in_each_others_way_on_time() {
    skip_without_server!();
    skip_unless_alone!();
    let items = if server::has_slow_log() { 1_000 } else { 5_000 };
    assert!(requests_to_empty(Way::Take, items) <= 6.0);
}

#[test]
fn thirty_consumers_that_lease_all_items_of_a_queue_are_seldom_in_each_others_way_on_time() {
    skip_without_server!();
    skip_unless_alone!();
    let items = if server::has_slow_log() { 1_000 } else { 2_000 };
    assert!(requests_to_empty(Way::Lease, items) <= 12.0);
}

/// A consumer has listed a long queue, and comes back when others have taken it all.
#[test]
fn a_new_item_behind_a_list_of_items_that_are_gone_is_found_at_once() {
    skip_without_server!();
    let gone = setting("ZKLOCK_GONE", 300);
    let site = Site::own("queue-stale");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    for way in [Way::Take, Way::Lease] {
        let (mine, theirs) = (queue(&zk, &site), queue(&other, &site));
        (0..gone).for_each(|_| assert!(theirs.offer("old").is_ok()));
        assert!(get(&mine, way, &Cancel::new()));
        (1..gone).for_each(|_| drop(theirs.take().unwrap()));
        theirs.offer("new").unwrap();
        proxy.reset_counts();
        let start = Instant::now();
        assert!(get(&mine, way, &Cancel::new()));
        println!("{way:?} of an item behind {gone} that are gone: {:?}", start.elapsed());
        let requests = proxy.total_requests();
        assert!(requests <= 10, "{way:?}: {requests}");
    }
    let (mine, theirs) = (super::jobs(&zk, &site), PriorityQueue::new(&other, &site.base, "q"));
    (0..gone).for_each(|_| assert!(theirs.offer(3, "old").is_ok()));
    mine.take().unwrap();
    (1..gone).for_each(|_| drop(theirs.take().unwrap()));
    theirs.offer(9, "new").unwrap();
    proxy.reset_counts();
    assert_eq!(mine.take_within(SOON).unwrap(), Some(b"new".to_vec()));
    assert!(proxy.total_requests() <= 10, "{}", proxy.total_requests());
    // Nothing new since the list, so only reading shows that all are gone.
    (0..gone).for_each(|_| assert!(theirs.offer(3, "old").is_ok()));
    mine.take().unwrap();
    (1..gone).for_each(|_| drop(theirs.take().unwrap()));
    proxy.reset_counts();
    assert_eq!(mine.try_take().unwrap(), None);
    assert!(proxy.total_requests() <= 10, "{}", proxy.total_requests());
    drop((mine, theirs, proxy));
    site.finish([zk, other]);
}
