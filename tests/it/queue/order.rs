//! Who gets which item, and what that costs.

use std::sync::Mutex;
use std::thread;

use zklock::{Cancel, DistributedQueue, ErrorKind, PriorityQueue};

use super::{BRIEF, SOON, jobs, queue, text};
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::Kind;
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::{
    QUIET, eventually, got_nothing, kind, last, skip_without_server, skip_without_zookeeper,
};

fn count_of(proxy: &Proxy, operation: i32, part: &str) -> usize {
    let is_meant = |path: &Option<String>| path.as_ref().is_some_and(|path| path.contains(part));
    proxy.requests().iter().filter(|r| r.opcode == operation && is_meant(&r.path)).count()
}

#[test]
fn s79_what_is_offered_first_is_taken_first() {
    skip_without_zookeeper!();
    let site = Site::shared("s79-order");
    let zk = site.client();
    let queue = queue(&zk, &site);
    assert_eq!(queue.try_take().unwrap(), None);
    assert!(got_nothing(queue.take_within(BRIEF)));
    assert_eq!(queue.peek().unwrap(), None);
    assert_eq!(queue.len().unwrap(), 0);
    for number in 0..12 {
        queue.offer(number.to_string()).unwrap();
    }
    queue.offer(b"").unwrap();
    assert_eq!(queue.len().unwrap(), 13);
    assert_eq!(queue.peek().unwrap(), Some(b"0".to_vec()));
    assert_eq!(queue.take().unwrap(), b"0");
    assert_eq!(queue.take_within(SOON).unwrap(), Some(b"1".to_vec()));
    assert_eq!(queue.take_within(&Cancel::new()).unwrap(), Some(b"2".to_vec()));
    assert_eq!(queue.try_take().unwrap(), Some(b"3".to_vec()));
    // A value that does not share what the other one has fetched.
    let other = self::queue(&zk, &site);
    for number in 4..12 {
        let taken = if number % 2 == 0 { &queue } else { &other }.try_take().unwrap();
        assert_eq!(text(taken), Some(number.to_string()));
    }
    assert_eq!(queue.take().unwrap(), b"");
    assert_eq!(queue.try_take().unwrap(), None);
    assert_eq!(other.try_take().unwrap(), None);
    drop((queue, other));
    site.finish([zk]);
}

#[test]
fn s79_four_consumers_are_given_each_item_once() {
    skip_without_zookeeper!();
    const ITEMS: usize = 400;
    let site = Site::shared("s79-four");
    let (producer, consumers) = (site.client(), [site.client(), site.client()]);
    let taken = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let shared = queue(&consumers[0], &site);
        let threads =
            [shared.clone(), shared, queue(&consumers[1], &site), queue(&consumers[1], &site)];
        for queue in threads {
            let taken = &taken;
            scope.spawn(move || {
                loop {
                    let item = String::from_utf8(queue.take().unwrap()).unwrap();
                    if item == "end" {
                        return;
                    }
                    taken.lock().unwrap().push(item.parse::<usize>().unwrap());
                }
            });
        }
        let queue = queue(&producer, &site);
        for number in 0..ITEMS {
            queue.offer(number.to_string()).unwrap();
        }
        // Consumers that compete take the first ones in any order.
        eventually(SOON, "all items", || taken.lock().unwrap().len() >= ITEMS);
        for _ in 0..4 {
            queue.offer("end").unwrap();
        }
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort_unstable();
    assert_eq!(taken, (0..ITEMS).collect::<Vec<_>>());
    assert_eq!(site.children("q").len(), 0);
    site.finish(consumers.into_iter().chain([producer]));
}

#[test]
fn s79_the_lowest_priority_number_is_taken_first_and_within_one_the_eldest() {
    skip_without_zookeeper!();
    let site = Site::shared("s79-priority");
    let zk = site.client();
    let (queue, other) = (jobs(&zk, &site), jobs(&zk, &site));
    assert_eq!(queue.try_take().unwrap(), None);
    for (priority, data) in
        [(7, "c"), (u32::MAX, "e"), (0, "a"), (7, "d"), (1, "b"), (u32::MAX, "f")]
    {
        queue.offer(priority, data).unwrap();
    }
    assert_eq!(queue.len().unwrap(), 6);
    assert_eq!(text(queue.peek().unwrap()).as_deref(), Some("a"));
    assert_eq!(queue.take().unwrap(), b"a");
    assert_eq!(other.take_within(SOON).unwrap(), Some(b"b".to_vec()));
    // A new item with a lower priority number comes before items that are listed already.
    other.offer(3, "between").unwrap();
    assert_eq!(queue.take().unwrap(), b"between");
    assert_eq!(queue.try_take().unwrap(), Some(b"c".to_vec()));
    other.offer(0, "first").unwrap();
    assert_eq!(queue.take_within(&Cancel::new()).unwrap(), Some(b"first".to_vec()));
    for expected in ["d", "e", "f"] {
        assert_eq!(text(queue.try_take().unwrap()).as_deref(), Some(expected));
    }
    assert_eq!(queue.len().unwrap(), 0);
    drop((queue, other));
    site.finish([zk]);
}

/// The next consumer gets it, even if its cached list does not contain it.
#[test]
fn s79_a_priority_that_comes_late_is_heeded_by_every_consumer() {
    skip_without_zookeeper!();
    const ROUNDS: u32 = 40;
    let site = Site::shared("s79-late-priority");
    let clients = [site.client(), site.client(), site.client()];
    let [producer, one, two] = [0, 1, 2].map(|client| jobs(&clients[client], &site));
    for number in 0..ROUNDS * 2 {
        producer.offer(1_000, number.to_string()).unwrap();
    }
    for round in 0..ROUNDS {
        assert_eq!(one.take().unwrap(), (round * 2).to_string().as_bytes());
        producer.offer(ROUNDS - round, "urgent").unwrap();
        let consumer = if round % 2 == 0 { &two } else { &one };
        assert_eq!(consumer.try_take().unwrap(), Some(b"urgent".to_vec()), "round {round}");
        assert_eq!(two.take().unwrap(), (round * 2 + 1).to_string().as_bytes());
    }
    drop((producer, one, two));
    site.finish(clients);
}

/// A cached list of names is useless once the queue's node was made anew: numbers begin anew, too.
#[test]
fn items_keep_their_order_when_the_empty_queue_was_removed_and_made_anew() {
    skip_without_server!();
    let site = Site::own("queue-anew");
    let clients = [site.quiet_client(), site.quiet_client()];
    let [mine, theirs] = [0, 1].map(|client| queue(&clients[client], &site));
    for round in ["take", "lease", "try_take"] {
        for number in 0..6 {
            theirs.offer(format!("old {number}")).unwrap();
        }
        // Now `mine` has cached the names of all six.
        assert_eq!(mine.take().unwrap(), b"old 0");
        (1..6).for_each(|_| drop(theirs.take().unwrap()));
        site.raw().delete(&format!("{}/q", site.base)).unwrap();
        for number in 0..6 {
            theirs.offer(format!("new {number}")).unwrap();
        }
        for number in 0..6 {
            let item = match round {
                "take" => mine.take().unwrap(),
                "try_take" => mine.try_take().unwrap().expect("there are more"),
                _ => {
                    let item = mine.lease().unwrap();
                    let data = item.data().to_vec();
                    item.ack().unwrap();
                    data
                }
            };
            assert_eq!(text(Some(item)), Some(format!("new {number}")), "{round}");
        }
    }
    drop((mine, theirs));
    site.finish(clients);
}

#[test]
fn s44_a_number_at_the_end_is_not_offered_and_the_numbers_start_anew() {
    skip_without_server!();
    const LAST_GOOD: i32 = i32::MAX - (1 << 16);
    let base = "/zklock-test/at-the-end";
    let mut site =
        Site::with("s44-queue", &Server::builder().sequence(format!("{base}/q"), LAST_GOOD));
    base.clone_into(&mut site.base);
    let zk = site.client();
    let queue = queue(&zk, &site);
    queue.offer("last").unwrap();
    let error = queue.offer("none").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SequenceExhausted);
    assert!(error.is_retryable());
    assert_eq!(queue.len().unwrap(), 1, "a refused item is in the queue");
    assert_eq!(queue.take().unwrap(), b"last");
    assert_eq!(kind(queue.offer("none")), ErrorKind::SequenceExhausted);
    queue.offer("new").unwrap();
    assert_eq!(site.children("q"), ["qn-0000000000"]);
    let item = queue.lease().unwrap();
    assert_eq!(item.data(), &b"new"[..]);
    assert!(item.item_path().ends_with("-0000000000"), "{item:?}");
    item.ack().unwrap();
    drop(queue);
    site.finish([zk]);
}

#[test]
fn s44_items_beyond_the_last_number_are_not_put_in_any_order() {
    skip_without_zookeeper!();
    let site = Site::shared("s44-queue-beyond");
    let zk = site.client();
    let queue = queue(&zk, &site);
    queue.offer("first").unwrap();
    let mut raw = site.raw();
    raw.create(&format!("{}/q/qn--2147483648", site.base), b"beyond", Kind::Persistent).unwrap();
    raw.create(&format!("{}/q/qn-2147483647", site.base), b"second", Kind::Persistent).unwrap();
    assert_eq!(queue.take().unwrap(), b"first");
    assert_eq!(queue.take().unwrap(), b"second");
    let refused = [
        queue.take().unwrap_err(),
        queue.try_take().unwrap_err(),
        queue.lease().map(drop).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::SequenceExhausted);
        assert_eq!(error.path().map(last), Some("qn--2147483648"));
        assert!(error.to_string().contains("delete it"), "{error}");
    }
    assert_eq!(queue.peek().unwrap(), None);
    raw.delete(&format!("{}/q/qn--2147483648", site.base)).unwrap();
    assert_eq!(queue.try_take().unwrap(), None);
    drop(queue);
    site.finish([zk]);
}

#[test]
fn to_take_costs_two_requests_and_to_lease_four_however_long_the_queue() {
    skip_without_server!();
    const ITEMS: usize = 300;
    let site = Site::own("queue-cost");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.client();
    let (queue, producer) = (queue(&zk, &site), queue(&other, &site));
    for _ in 0..ITEMS {
        producer.offer("x").unwrap();
    }
    proxy.reset_counts();
    (0..ITEMS / 2).for_each(|_| drop(queue.take().unwrap()));
    assert_eq!(proxy.total_requests(), 1 + ITEMS as u64);
    assert_eq!(count_of(&proxy, opcode::GET_CHILDREN2, "/q"), 1);
    proxy.reset_counts();
    (0..ITEMS / 2).for_each(|_| queue.lease().unwrap().ack().unwrap());
    // Read, create, list, watch (if it is held for long enough), and the transaction.
    let requests = proxy.total_requests();
    assert!(requests <= ITEMS as u64 / 2 * 5, "{requests}");
    assert_eq!(proxy.count(opcode::MULTI), ITEMS as u64 / 2);
    proxy.reset_counts();
    assert_eq!(queue.try_take().unwrap(), None);
    // A `sync` and a list, to look for new items through the leader.
    assert_eq!(proxy.total_requests(), 2);

    let jobs = PriorityQueue::new(&zk, &site.base, "p");
    let offers = PriorityQueue::new(&other, &site.base, "p");
    for n in 0..ITEMS {
        offers.offer(n as u32 % 7, "x").unwrap();
    }
    proxy.reset_counts();
    for _ in 0..ITEMS {
        jobs.take().unwrap();
    }
    assert_eq!(proxy.total_requests(), 1 + 4 * ITEMS as u64);
    drop((queue, producer, jobs, offers, proxy));
    site.finish([zk, other]);
}

#[test]
fn queues_can_be_shared_among_threads() {
    fn sendable<T: Send + Sync + 'static>() {}
    sendable::<DistributedQueue>();
    sendable::<PriorityQueue>();
    sendable::<zklock::queue::LeasedItem>();
}
