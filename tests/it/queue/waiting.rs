//! Consumers that wait.

use std::collections::BTreeSet;
use std::time::Duration;

use zklock::{Cancel, DistributedQueue, ErrorKind, PriorityQueue};

use super::{SOON, queue};
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    QUIET, eventually, got_nothing, kind, skip_without_server, skip_without_zookeeper, waiting,
};

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
