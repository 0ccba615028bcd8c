//! Servers that throttle: a request that they are too busy for is not carried out, and answered
//! with an error, while the connection stays open.

use std::sync::mpsc;
use std::time::Duration;

use zklock::{Contender, DistributedQueue, LossReason};

use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::{QUIET, eventually, mutex, skip_without_server};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_watch_that_a_busy_server_refuses_is_asked_for_again() {
    skip_without_server!();
    let site = Site::own("busy-watch");
    let (proxy, zk) = site.proxied(QUIET);
    let lock = mutex(&zk, &site.base, "a");
    drop(lock.lock().unwrap());
    proxy.reset_counts();
    proxy.throttle(opcode::GET_DATA, 2);
    let guard = lock.lock().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    assert!(proxy.wait_for_requests(opcode::GET_DATA, 3, SOON), "the watch was given up");
    site.raw().delete(guard.path()).unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
    assert!(!guard.is_held());
    drop((guard, lock));
    site.finish([zk]);
}

#[test]
fn a_busy_server_ends_no_call() {
    skip_without_server!();
    let site = Site::own("busy-calls");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let lock = mutex(&zk, &site.base, "a");
    for opcode in [opcode::CREATE, opcode::CREATE_CONTAINER, opcode::GET_CHILDREN] {
        proxy.throttle(opcode, 3);
    }
    let guard = lock.lock().unwrap();
    for opcode in [opcode::SYNC, opcode::EXISTS, opcode::GET_DATA, opcode::DELETE] {
        proxy.throttle(opcode, 2);
    }
    guard.ensure_held().unwrap();
    let shown = lock.contenders().unwrap();
    assert_eq!(shown.iter().map(|one| &one.path[..]).collect::<Vec<_>>(), [guard.path()]);
    // A dropped guard does not wait for an answer, but its node is deleted all the same.
    drop(guard);
    eventually(SOON, "the release", || site.children("a").is_empty());
    // A waiting call does not fail either.
    let theirs = mutex(&other, &site.base, "a");
    let held = theirs.lock().unwrap();
    proxy.throttle(opcode::CREATE, 1);
    proxy.throttle(opcode::GET_DATA, 1);
    proxy.throttle(opcode::GET_CHILDREN2, 1);
    let waits = crate::support::in_background({
        let lock = lock.clone();
        move || lock.lock()
    });
    site.wait_for_children("a", 2);
    held.unlock().unwrap();
    waits.recv_timeout(SOON).unwrap().unwrap().unlock().unwrap();
    // Nor is an item taken twice, or lost.
    let queue = DistributedQueue::new(&zk, &site.base, "q");
    proxy.throttle(opcode::CREATE, 1);
    queue.offer("item").unwrap();
    proxy.throttle(opcode::DELETE, 1);
    assert_eq!(queue.take().unwrap(), b"item");
    assert_eq!(queue.try_take().unwrap(), None);
    let none: Vec<Contender> = lock.contenders().unwrap();
    assert!(none.is_empty());
    drop((lock, theirs, queue));
    site.finish([zk, other]);
}
