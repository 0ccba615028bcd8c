//! What callers see when the link's thread panics, and in a forked process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Link;
use super::commands::{DeferredRequest, Outgoing};
use crate::connection_notice::{End, Notice};
use crate::link::search::{LinkConfig, Resolver};
use crate::link::transport::Access;
use crate::rt::{self, Deadline, Receiver, bounded, unbounded};
use crate::wire_values::code::SESSION_EXPIRED;
use crate::wire_values::{RawReply, SYNC_ROOT, op};

/// A link without any server.
fn link(on_notice: impl Fn(Notice) + Send + 'static) -> Link {
    let config = LinkConfig {
        resolver: Resolver::new(Vec::new()),
        access: Access::default(),
        session_timeout: Duration::from_secs(10),
        tick: None,
        connect_timeout: Duration::from_secs(10),
    };
    Link::open(config, Box::new(on_notice), Box::new(|_, _| Vec::new())).unwrap()
}

/// A request, and a receiver of the code that answers it, disconnected if the request is dropped.
fn verb() -> (Outgoing, Receiver<i32>) {
    let (tell, told) = bounded(1);
    let on_answer = Box::new(move |answer: RawReply| tell.send(answer.error).unwrap());
    (Outgoing { operation: op::SYNC, body: SYNC_ROOT.to_vec(), on_answer }, told)
}

fn answer(told: &Receiver<i32>) -> Option<i32> {
    match told.recv_timeout(Duration::from_secs(30)) {
        Ok(error) => Some(error),
        Err(rt::RecvTimeoutError::Disconnected) => None,
        Err(rt::RecvTimeoutError::Timeout) => panic!("no answer"),
    }
}

#[test]
fn after_two_panics_the_link_does_no_more_than_answer_and_ends_when_dropped() {
    let (tell, notices) = unbounded();
    let link = link(move |notice| tell.send(notice).unwrap());
    let panics = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let (verb, told) = verb();
        let counted = Arc::clone(&panics);
        let is_wanted = Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            panic!("the link must survive this")
        });
        link.later(DeferredRequest { verb, is_wanted });
        assert!(matches!(answer(&told), None | Some(SESSION_EXPIRED)));
    }
    assert_eq!(panics.load(Ordering::SeqCst), 2);
    for _ in 0..2 {
        let (verb, told) = verb();
        link.send(vec![verb]);
        assert_eq!(answer(&told), Some(SESSION_EXPIRED));
    }
    assert!(link.lease().is_err());
    drop(link);
    let told: Vec<Notice> = notices.iter().collect();
    assert_eq!(told, [Notice::Ended(End::Lapsed), Notice::Over], "and then the thread ended");
}

#[test]
fn a_panic_of_one_who_is_told_is_nothing_to_the_others() {
    let (tell, notices) = unbounded();
    let link = link(move |notice| {
        tell.send(notice).unwrap();
        panic!("the link must survive this");
    });
    link.close(End::Closed, Duration::from_secs(10));
    drop(link);
    let told: Vec<Notice> = notices.iter().collect();
    assert_eq!(told, [Notice::Ended(End::Closed), Notice::Over]);
}

#[test]
fn in_a_forked_process_nothing_is_sent_and_nobody_waits() {
    let (tell, notices) = unbounded();
    let mut link = link(move |notice| tell.send(notice).unwrap());
    link.process += 1;
    let lines = Arc::clone(&link.shared);
    // Locked, as another thread may have left them when the process was forked.
    let left = (lines.connection.lock(), lines.deferred.lock(), lines.info.lock());
    let [first, second, third] = [(); 3].map(|()| verb());
    assert!(link.send(vec![first.0]));
    link.later(DeferredRequest { verb: second.0, is_wanted: Box::new(|| true) });
    link.send(vec![third.0]);
    link.flushed_by(Deadline::NEVER);
    assert_eq!([first.1, second.1, third.1].map(|told| answer(&told)), [None; 3]);
    assert_eq!(link.lease(), Err(End::Closed));
    assert_eq!(link.info().session, 0);
    link.close(End::Closed, Duration::ZERO);
    assert!(link.shared.commands.is_empty());
    drop(left);
    link.process -= 1;
    drop(link);
    assert_eq!(notices.iter().last(), Some(Notice::Over));
}
