//! Requests whose answer is lost.

use std::time::Duration;

use zklock::{Cancel, DistributedQueue, ErrorKind};

use super::{SOON, late, queue, text};
use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    QUIET, connecting, eventually, got_nothing, kind, last, skip_without_server, waiting,
};

const T: Duration = Duration::from_secs(4);

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
