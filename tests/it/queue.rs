//! Queues: scenarios 79 and 80, and the documented guarantees on how often an item is delivered.

mod crowd;
mod late;
mod leased;
mod storm;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use log::LevelFilter;
use zklock::{Acl, Cancel, Client, DistributedQueue, ErrorKind, LossReason, PriorityQueue};

use crate::support::logs::logs;
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{self, Kind, Raw};
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    QUIET, connecting, eventually, got_nothing, in_background, kind, last, skip_unless_alone,
    skip_without_server, skip_without_zookeeper, waiting,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);
const T: Duration = Duration::from_secs(4);

fn queue(zk: &Client, site: &Site) -> DistributedQueue {
    DistributedQueue::new(zk, &site.base, "q")
}

fn jobs(zk: &Client, site: &Site) -> PriorityQueue {
    PriorityQueue::new(zk, &site.base, "q")
}

fn text(data: Option<Vec<u8>>) -> Option<String> {
    data.map(|data| String::from_utf8(data).unwrap())
}

/// Makes a child of the queue's node as another client would.
fn intrude(site: &Site, name: &str, data: &[u8]) -> String {
    let mut raw = site.raw();
    let node = format!("{}/q", site.base);
    raw.create_all(&node).unwrap();
    let made = raw.create(&format!("{node}/{name}"), data, Kind::PersistentSequential).unwrap();
    raw.close().unwrap();
    made
}

fn count_of(proxy: &Proxy, operation: i32, part: &str) -> usize {
    let is_meant = |path: &Option<String>| path.as_ref().is_some_and(|path| path.contains(part));
    proxy.requests().iter().filter(|r| r.opcode == operation && is_meant(&r.path)).count()
}

// ----- order

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

// ----- waiting

#[test]
fn s80_take_survives_the_deletion_of_the_queue_and_of_what_is_above_it() {
    skip_without_zookeeper!();
    let site = Site::shared("s80");
    let clients = [site.client(), site.client()];
    let (producer, consumer) = (queue(&clients[0], &site), queue(&clients[1], &site));
    let take = |consumer: &DistributedQueue| {
        let consumer = consumer.clone();
        waiting(move || consumer.take().unwrap())
    };
    // The queue's node does not exist yet.
    let first = take(&consumer);
    producer.offer("first").unwrap();
    assert_eq!(first.join().unwrap(), b"first");
    for round in ["second", "third"] {
        let waits = take(&consumer);
        site.raw().delete(&format!("{}/q", site.base)).unwrap();
        if round == "third" {
            site.raw().delete(&site.base).unwrap();
        }
        producer.offer(round).unwrap();
        assert_eq!(waits.join().unwrap(), round.as_bytes());
    }
    let waits = {
        let consumer = consumer.clone();
        waiting(move || consumer.lease().unwrap().ack().unwrap())
    };
    site.raw().delete_recursive(&site.base).unwrap();
    producer.offer("fourth").unwrap();
    waits.join().unwrap();
    drop((producer, consumer));
    site.finish(clients);
}

#[test]
fn who_waits_is_told_of_an_item_and_of_a_cancel_and_keeps_to_its_time() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-limits");
    let zk = site.client();
    let queue = queue(&zk, &site);
    for exists in [false, true] {
        let begin = Stopwatch::start();
        assert!(got_nothing(queue.take_within(Duration::from_millis(200))));
        assert!(got_nothing(queue.lease_within(Duration::from_millis(200))));
        let took = begin.took();
        assert!(
            took.at_least(Duration::from_millis(400)) && took.within(Duration::from_secs(3)),
            "{took:?}"
        );
        assert!(got_nothing(queue.take_within(Duration::ZERO)));

        let (cancel, token, taker) = (Cancel::new(), Cancel::new(), queue.clone());
        let (one, other) = (cancel.clone(), token.clone());
        let takes = waiting(move || taker.take_within(&one).unwrap_err());
        let leaser = queue.clone();
        let leases = waiting(move || leaser.lease_within(&other).unwrap_err());
        cancel.cancel();
        token.cancel();
        let errors = [takes.join().unwrap(), leases.join().unwrap()];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
            assert_eq!(error.path(), Some(&*format!("{}/q", site.base)));
        }
        if !exists {
            queue.offer("x").unwrap();
            assert_eq!(queue.take().unwrap(), b"x");
        }
    }
    // All threads wait in one process; each item wakes one of them.
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let queue = queue.clone();
            waiting(move || match number % 2 {
                0 => queue.take().unwrap(),
                _ => queue.take_within(SOON).unwrap().expect("in time"),
            })
        })
        .collect();
    for item in ["a", "b", "c", "d"] {
        queue.offer(item).unwrap();
    }
    let taken: BTreeSet<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(taken.len(), 4);
    zk.close();
    assert_eq!(kind(queue.take()), ErrorKind::Closed);
    assert_eq!(kind(queue.offer("x")), ErrorKind::Closed);
    drop(queue);
    site.finish([zk]);
}

#[test]
fn a_wait_of_no_time_is_a_try() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-zero");
    let zk = site.client();
    let (queue, jobs) = (queue(&zk, &site), PriorityQueue::new(&zk, &site.base, "p"));
    // On a busy machine 50 ms may be too short for one of them.
    let tries = |what: &str, get: &dyn Fn() -> zklock::Result<bool>| {
        eventually(SOON, what, || get().is_ok_and(|got| got));
    };
    for _ in 0..3 {
        queue.offer("a").unwrap();
        tries("the item", &|| Ok(queue.take_within(Duration::ZERO)?.is_some()));
        jobs.offer(7, "b").unwrap();
        tries("the job", &|| Ok(jobs.take_within(Duration::ZERO)?.is_some()));
        queue.offer("a").unwrap();
        tries("the lease", &|| match queue.lease_within(Duration::ZERO)? {
            Some(item) => item.ack().map(|()| true),
            None => Ok(false),
        });
        tries("the empty queue", &|| Ok(queue.take_within(Duration::ZERO)?.is_none()));
        tries("no more jobs", &|| Ok(jobs.take_within(Duration::ZERO)?.is_none()));
    }
    drop((queue, jobs));
    site.finish([zk]);
}

#[test]
fn closing_the_client_ends_a_wait() {
    skip_without_zookeeper!();
    let site = Site::shared("queue-close");
    let zk = site.client();
    let (queue, jobs) = (queue(&zk, &site), PriorityQueue::new(&zk, &site.base, "p"));
    let threads = [
        {
            let queue = queue.clone();
            waiting(move || queue.take().map(drop))
        },
        {
            let queue = queue.clone();
            waiting(move || queue.take_within(SOON * 4).map(drop))
        },
        {
            let queue = queue.clone();
            waiting(move || queue.lease().map(drop))
        },
        waiting(move || jobs.take().map(drop)),
    ];
    zk.close();
    for thread in threads {
        assert_eq!(kind(thread.join().unwrap()), ErrorKind::Closed);
    }
    drop(queue);
    site.finish([zk]);
}

#[test]
fn a_wait_outlives_connections_and_sessions() {
    skip_without_server!();
    let site = Site::own("queue-session");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.client();
    let (consumer, producer) = (queue(&zk, &site), queue(&other, &site));
    let priorities = PriorityQueue::new(&zk, &site.base, "p");
    producer.offer("x").unwrap();
    assert_eq!(consumer.take().unwrap(), b"x");
    let wait = |consumer: &DistributedQueue| {
        let (consumer, priorities) = (consumer.clone(), priorities.clone());
        (
            waiting(move || consumer.take().unwrap()),
            waiting(move || priorities.take_within(SOON * 2).unwrap().expect("in time")),
        )
    };
    let told = PriorityQueue::new(&other, &site.base, "p");
    let (takes, prior) = wait(&consumer);
    proxy.cut();
    producer.offer("cut").unwrap();
    told.offer(1, "cut").unwrap();
    assert_eq!((takes.join().unwrap(), prior.join().unwrap()), (b"cut".to_vec(), b"cut".to_vec()));
    let (takes, prior) = wait(&consumer);
    site.expire(&proxy);
    producer.offer("expired").unwrap();
    told.offer(1, "expired").unwrap();
    assert_eq!(takes.join().unwrap(), b"expired");
    assert_eq!(prior.join().unwrap(), b"expired");
    drop((consumer, producer, priorities, told));
    drop(proxy);
    site.finish([zk, other]);
}

// ----- leases

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

// ----- lost answers

#[test]
fn an_offer_without_an_answer_is_reported_and_not_repeated() {
    skip_without_server!();
    let site = Site::own("queue-offer-lost");
    let (proxy, zk) = site.proxied(T);
    let queue = queue(&zk, &site);
    queue.offer("first").unwrap();
    for (arrives, expected) in [(true, 2), (false, 2)] {
        match arrives {
            true => proxy.drop_reply_on(opcode::CREATE, "/qn-", 1),
            false => proxy.drop_request_on(opcode::CREATE, "/qn-", 1),
        }
        let error = queue.offer("second").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLoss);
        assert!(error.may_have_taken_effect() && !error.is_retryable());
        assert!(error.to_string().contains("it may be there, or not"), "{error}");
        assert_eq!(error.path(), Some(&*format!("{}/q", site.base)));
        assert_eq!(queue.len().unwrap(), expected);
    }
    assert_eq!(queue.take().unwrap(), b"first");
    assert_eq!(queue.take().unwrap(), b"second");
    drop((queue, proxy));
    site.finish([zk]);
}

/// Whichever message is lost, the result is true, and no item is there twice.
#[test]
fn an_offer_is_there_once_at_most_and_the_caller_knows_whether_it_is_in_doubt() {
    skip_without_server!();
    let site = Site::own("queue-offer-doubt");
    let proxy = Proxy::start(site.server().addr());
    let builder = connecting(&proxy.hosts()).session_timeout(QUIET);
    let patient = builder.clone().connect_timeout(SOON * 2).connect().unwrap();
    let hasty = builder.connect_timeout(Duration::from_secs(2)).connect().unwrap();
    let other = site.quiet_client();
    let theirs = queue(&other, &site);
    type Harm = fn(&Proxy);
    let harms: [(&str, Harm, &[ErrorKind]); 6] = [
        ("none", |_| (), &[]),
        (
            "no request",
            |p| p.drop_request_on(opcode::CREATE, "/qn-", 1),
            &[ErrorKind::ConnectionLoss],
        ),
        ("no reply", |p| p.drop_reply_on(opcode::CREATE, "/qn-", 1), &[ErrorKind::ConnectionLoss]),
        ("two lost", |p| p.drop_reply_on(opcode::CREATE, "/qn-", 2), &[ErrorKind::ConnectionLoss]),
        ("a stall", |p| p.stall_reply(opcode::CREATE), &[ErrorKind::ConnectionLoss]),
        ("no server", Proxy::refuse, &[ErrorKind::Connect, ErrorKind::ConnectionLoss]),
    ];
    for is_new in [true, false] {
        for (harm, inflict, expected) in harms {
            if is_new {
                site.raw().delete_recursive(&format!("{}/q", site.base)).unwrap();
            } else {
                theirs.offer("another").unwrap();
            }
            // A call that is never answered ends when the connect timeout is over.
            let zk = if ["a stall", "no server"].contains(&harm) { &hasty } else { &patient };
            inflict(&proxy);
            let offered = queue(zk, &site).offer(harm);
            proxy.pass();
            // The offer has no later effect: a request sent after it has been answered.
            eventually(SOON * 2, "an answer", || queue(zk, &site).len().is_ok());
            let mut found = Vec::new();
            while let Some(item) = theirs.try_take().unwrap() {
                found.push(text(Some(item)).unwrap());
            }
            let count = found.iter().filter(|item| *item == harm).count();
            match &offered {
                Ok(_) => assert_eq!(count, 1, "{harm}"),
                Err(error) if error.kind() == ErrorKind::Connect => assert_eq!(count, 0, "{harm}"),
                Err(error) => assert!(count <= 1, "{harm}: {count}, {error}"),
            }
            match (offered.is_ok(), expected) {
                (true, []) => {}
                (false, [_, ..]) => {
                    let found = kind(offered);
                    assert!(expected.contains(&found), "{harm}, new: {is_new}: {found:?}");
                }
                // For a queue that does not exist yet, the first request only finds that out.
                _ => assert!(is_new, "{harm}: {offered:?}"),
            }
        }
    }
    drop((theirs, proxy));
    site.finish([patient, hasty, other]);
}

#[test]
fn a_deletion_without_an_answer_is_resolved_or_reported_but_gives_no_item_twice() {
    skip_without_server!();
    let site = Site::own("queue-take-lost");
    let (proxy, zk) = site.proxied(T);
    let other = site.client();
    let (queue, watcher) = (queue(&zk, &site), queue(&other, &site));
    type Take = fn(&DistributedQueue) -> zklock::Result<Option<Vec<u8>>>;
    let calls: [Take; 4] = [
        |queue| queue.take().map(Some),
        |queue| queue.take_within(SOON),
        |queue| queue.take_within(&Cancel::new()),
        |queue| queue.try_take(),
    ];
    for (number, take) in calls.iter().enumerate() {
        watcher.offer(format!("a{number}")).unwrap();
        watcher.offer(format!("b{number}")).unwrap();
        // The request never arrived: repeated, it takes the item.
        proxy.drop_request_on(opcode::DELETE, "/qn-", 1);
        assert_eq!(text(take(&queue).unwrap()), Some(format!("a{number}")));
        // The request arrived: the client cannot tell whose delete took the item.
        proxy.drop_reply_on(opcode::DELETE, "/qn-", 1);
        let error = take(&queue).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLoss, "{error}");
        assert!(last(error.path().unwrap()).starts_with("qn-"), "{error}");
        assert_eq!(watcher.len().unwrap(), 0);
        // The item is gone for all.
        assert_eq!(queue.try_take().unwrap(), None);
        // A lost read is just repeated.
        watcher.offer("c").unwrap();
        proxy.drop_reply_on(opcode::GET_DATA, "/qn-", 1);
        assert_eq!(take(&queue).unwrap(), Some(b"c".to_vec()));
    }
    drop((queue, watcher, proxy));
    site.finish([zk, other]);
}

#[test]
fn what_comes_too_late_for_one_call_is_for_the_next() {
    skip_without_server!();
    let site = Site::own("queue-late");
    let (proxy, zk) = site.proxied(QUIET);
    let queue = queue(&zk, &site);
    queue.offer("a").unwrap();
    proxy.reset_counts();
    proxy.stall_reply(opcode::DELETE);
    let begin = Stopwatch::start();
    late::assert_late(queue.take_within(Duration::from_millis(300)));
    assert!(begin.took().within(Duration::from_secs(5)));
    assert!(proxy.wait_for_request(opcode::DELETE, SOON));
    let waits = {
        let queue = queue.clone();
        waiting(move || queue.take_within(SOON).unwrap())
    };
    proxy.release();
    assert_eq!(waits.join().unwrap(), Some(b"a".to_vec()));
    assert_eq!(queue.try_take().unwrap(), None);
    drop((queue, proxy));
    site.finish([zk]);
}

#[test]
fn an_acknowledgement_without_an_answer_is_resolved() {
    skip_without_server!();
    let site = Site::own("queue-ack-lost");
    let (proxy, zk) = site.proxied(T);
    let queue = queue(&zk, &site);
    for arrives in [true, false, true] {
        queue.offer("a").unwrap();
        let item = queue.lease().unwrap();
        match arrives {
            true => proxy.drop_reply(opcode::MULTI, 1),
            false => proxy.drop_request(opcode::MULTI, 1),
        }
        item.ack().unwrap();
        assert_eq!(queue.len().unwrap(), 0);
    }
    // If the session is lost, too, the outcome stays unknown: whether the connection breaks or is silent.
    for breaks in [true, false] {
        queue.offer("b").unwrap();
        let item = queue.lease().unwrap();
        proxy.stall_reply(opcode::MULTI);
        let acks = waiting(move || item.ack());
        eventually(SOON, "the acknowledgement", || site.children("q").is_empty());
        match breaks {
            true => proxy.refuse(),
            false => proxy.black_hole(),
        }
        let error = acks.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SessionLost);
        assert!(error.may_have_taken_effect() && !error.is_retryable(), "{error}");
        assert!(error.to_string().contains("may be gone from the queue"), "{error}");
        proxy.pass();
    }
    drop((queue, proxy));
    site.finish([zk]);
}

#[test]
fn leasing_survives_lost_answers_of_every_kind() {
    skip_without_server!();
    let site = Site::own("queue-lease-lost");
    let (proxy, zk) = site.proxied(T);
    let queue = queue(&zk, &site);
    let faults = [
        (opcode::GET_DATA, "/qn-"),
        (opcode::CREATE, "_c_"),
        (opcode::GET_CHILDREN2, "/q"),
        (opcode::GET_CHILDREN, "/qn-"),
        (opcode::SYNC, ""),
    ];
    for (operation, part) in faults {
        for arrives in [true, false] {
            queue.offer("a").unwrap();
            match arrives {
                true => proxy.drop_reply_on(operation, part, 1),
                false => proxy.drop_request_on(operation, part, 1),
            }
            let item = queue.lease_within(SOON).unwrap().expect("in time");
            proxy.pass();
            item.ensure_held().unwrap();
            assert_eq!(site.children(&format!("q/{}", last(item.item_path()))).len(), 1);
            item.ack().unwrap();
        }
    }
    assert_eq!(site.children("q").len(), 0);
    drop((queue, proxy));
    site.finish([zk]);
}

#[test]
fn without_a_server_calls_with_a_limit_keep_to_it_and_the_others_say_so() {
    skip_without_server!();
    let site = Site::own("queue-cut-off");
    let proxy = Proxy::start(site.server().addr());
    let limit = Duration::from_millis(500);
    let builder = connecting(&proxy.hosts()).session_timeout(T).connect_timeout(limit);
    let zk = builder.connect().unwrap();
    // By a client that has more time than this one, on a busy machine.
    let other = site.client();
    queue(&other, &site).offer("a").unwrap();
    let queue = queue(&zk, &site);
    proxy.refuse();
    eventually(SOON, "the loss of the connection", || {
        zk.state() != zklock::SessionState::Connected
    });
    let begin = Stopwatch::start();
    assert!(got_nothing(queue.take_within(limit)));
    assert!(got_nothing(queue.lease_within(limit)));
    assert_eq!(kind(queue.try_take()), ErrorKind::Connect);
    assert_eq!(kind(queue.try_lease()), ErrorKind::Connect);
    assert_eq!(kind(queue.offer("b")), ErrorKind::Connect);
    assert!(queue.len().is_err() && queue.peek().is_err());
    assert!(begin.took().within(Duration::from_secs(12)), "{:?}", begin.took());
    proxy.pass();
    assert_eq!(queue.take_within(SOON).unwrap(), Some(b"a".to_vec()));
    assert_eq!(queue.len().unwrap(), 0, "an offer that failed for certain is in the queue");
    drop((queue, proxy));
    site.finish([zk, other]);
}

// ----- what is refused

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

// ----- what it costs

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
