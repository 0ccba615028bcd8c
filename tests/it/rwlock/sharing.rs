//! Who may hold beside whom, and that nobody starves.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{
    Cancel, Client, ContenderKind, DistributedRwLock, ErrorKind, LossReason, ReadGuard, WriteGuard,
};

use super::{SOON, kinds};
use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{
    QUIET, eventually, got_nothing, kind, last, skip_without_server, skip_without_zookeeper,
};

const BRIEF: Duration = Duration::from_millis(50);

#[test]
fn s46_readers_share() {
    skip_without_zookeeper!();
    const READERS: usize = 6;
    let site = Site::shared("s46");
    let clients = [site.client(), site.client()];
    let inside = Barrier::new(READERS);
    thread::scope(|scope| {
        for number in 0..READERS {
            let lock = DistributedRwLock::new(&clients[number % 2], &site.base, "a");
            let inside = &inside;
            scope.spawn(move || {
                let guard = match number % 3 {
                    0 => lock.read().unwrap(),
                    1 => lock.try_read_for(SOON).unwrap().expect("no writer is there"),
                    _ => lock.try_read().unwrap().expect("no writer is there"),
                };
                // No thread passes the barrier before all hold.
                inside.wait();
                assert!(guard.is_held());
                guard.ensure_held().unwrap();
                inside.wait();
            });
        }
    });
    site.wait_for_children("a", 0);
    site.finish(clients);
}

#[test]
fn s47_a_writer_excludes_all() {
    skip_without_zookeeper!();
    let site = Site::shared("s47");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| DistributedRwLock::new(zk, &site.base, "a"));
    let writer = ours.write().unwrap();
    assert!(last(writer.path()).contains("-__WRIT__"), "{writer:?}");
    for lock in [&ours, &theirs] {
        assert!(lock.try_read().unwrap().is_none());
        assert!(lock.try_write().unwrap().is_none());
        assert!(got_nothing(lock.try_read_for(BRIEF)));
        assert!(got_nothing(lock.write_within(Instant::now() + BRIEF)));
        site.wait_for_only("a", writer.path());
    }
    thread::scope(|scope| {
        let reader = scope.spawn(|| theirs.read().unwrap());
        site.wait_for_children("a", 2);
        assert!(!reader.is_finished(), "it reads while another writes");
        writer.unlock().unwrap();
        let reader = reader.join().unwrap();
        assert!(last(reader.path()).contains("-__READ__"), "{reader:?}");

        // The same with the roles swapped.
        assert!(ours.try_write().unwrap().is_none());
        assert!(got_nothing(ours.try_write_for(BRIEF)));
        site.wait_for_only("a", reader.path());
        let writer = scope.spawn(|| ours.write().unwrap());
        site.wait_for_children("a", 2);
        assert!(!writer.is_finished(), "it writes while another reads");
        let token = reader.fencing_token();
        drop(reader);
        assert!(writer.join().unwrap().fencing_token() > token);
    });
    drop((ours, theirs));
    site.finish(clients);
}

#[test]
fn s48_readers_that_come_after_a_waiting_writer_wait_behind_it() {
    skip_without_zookeeper!();
    let site = Site::shared("s48");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let first = lock.read().unwrap();
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let (lock, writers) = (&lock, tell.clone());
        scope.spawn(move || {
            let guard = lock.write().unwrap();
            writers.send("writer").unwrap();
            drop(guard);
        });
        site.wait_for_children("a", 2);
        assert!(lock.try_read().unwrap().is_none(), "it overtook the writer");
        scope.spawn(move || {
            let guard = lock.read().unwrap();
            tell.send("reader").unwrap();
            drop(guard);
        });
        site.wait_for_children("a", 3);
        assert_eq!(kinds(lock), [ContenderKind::Read, ContenderKind::Write, ContenderKind::Read]);
        assert!(told.try_recv().is_err());
        drop(first);
        assert_eq!(told.iter().collect::<Vec<_>>(), ["writer", "reader"]);
    });
    drop(lock);
    site.finish([zk]);
}

/// The queue: the writer that holds, two readers, a writer and a reader.
#[test]
fn s48_a_released_writer_wakes_exactly_the_readers_that_may_go() {
    skip_without_server!();
    let site = Site::own("s48-wakes");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let writer = lock.write().unwrap();
    let waiters: Vec<(Proxy, Client)> = (0..4).map(|_| site.proxied(QUIET)).collect();
    let (tell, told) = mpsc::channel();
    let release: Vec<_> = (0..4).map(|_| mpsc::channel::<()>()).collect();
    let (releasers, releases): (Vec<_>, Vec<_>) = release.into_iter().unzip();
    thread::scope(|scope| {
        for (number, ((proxy, zk), until)) in waiters.iter().zip(releases).enumerate() {
            let (lock, tell) = (DistributedRwLock::new(zk, &site.base, "a"), tell.clone());
            scope.spawn(move || {
                if number == 2 {
                    let guard = lock.write().unwrap();
                    tell.send(number).unwrap();
                    let _ = until.recv();
                    drop(guard);
                } else {
                    let guard = lock.read().unwrap();
                    tell.send(number).unwrap();
                    let _ = until.recv();
                    drop(guard);
                }
            });
            // Once these requests are seen, the waiter's watches are being set. The first reader has
            // only a writer ahead, and goes on without a list: it watches its own node, too.
            let watches = if number == 0 { 2 } else { 1 };
            assert!(proxy.wait_for_watches(watches, SOON), "no watch");
        }
        let queue = lock.contenders().unwrap();
        let watched: Vec<_> = waiters.iter().map(|(proxy, _)| proxy.watched()).collect();
        // A reader watches the writer before it, a writer any contender before it.
        let places =
            |all: &[usize]| -> Vec<_> { all.iter().map(|at| queue[*at].path.clone()).collect() };
        assert_eq!(watched, [places(&[0, 1]), places(&[0]), places(&[2]), places(&[3])]);
        let before: Vec<u64> = waiters.iter().map(|(proxy, _)| proxy.total_requests()).collect();
        writer.unlock().unwrap();
        let mut granted = [told.recv_timeout(SOON).unwrap(), told.recv_timeout(SOON).unwrap()];
        granted.sort_unstable();
        assert_eq!(granted, [0, 1]);
        for number in [2, 3] {
            let after = waiters[number].0.total_requests();
            assert_eq!(after, before[number], "{number} was woken for nothing");
        }
        // The writer gets in once both readers have left, in either order.
        drop(releasers);
        assert_eq!(told.recv_timeout(SOON), Ok(2));
        assert_eq!(told.recv_timeout(SOON), Ok(3));
    });
    drop(lock);
    // The proxies must stay until the last deletes are answered.
    let (_proxies, clients): (Vec<_>, Vec<_>) = waiters.into_iter().unzip();
    site.finish(clients.into_iter().chain([zk]));
}

/// The writer comes after the reader has made its node, but before it has listed the contenders:
/// kazoo's reader (#649) then waits for that writer, which waits for the reader.
#[test]
fn s49_a_reader_does_not_wait_for_a_writer_behind_it() {
    skip_without_server!();
    let site = Site::own("s49");
    let zk = site.client();
    let (proxy, other) = site.proxied(QUIET);
    site.raw().create_all(&format!("{}/a", site.base)).unwrap();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let theirs = DistributedRwLock::new(&other, &site.base, "a");
    for holder_first in [false, true] {
        let holder = holder_first.then(|| lock.write().unwrap());
        let before = usize::from(holder_first);
        proxy.stall_reply(opcode::CREATE);
        thread::scope(|scope| {
            let reader = scope.spawn(|| theirs.read().unwrap());
            site.wait_for_children("a", before + 1);
            let writer = scope.spawn(|| lock.write().unwrap());
            site.wait_for_children("a", before + 2);
            proxy.release();
            drop(holder);
            let reader = reader.join().unwrap();
            assert!(!writer.is_finished(), "reader and writer hold at once");
            reader.unlock().unwrap();
            writer.join().unwrap().unlock().unwrap();
        });
    }
    drop((lock, theirs));
    site.finish([zk, other]);
}

#[test]
fn s51_another_thread_cannot_read_during_a_write() {
    skip_without_zookeeper!();
    let site = Site::shared("s51");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let writer = lock.write().unwrap();
    thread::scope(|scope| {
        let theirs = lock.clone();
        let none = scope.spawn(move || theirs.try_read().unwrap().is_none()).join().unwrap();
        assert!(none, "a clone on another thread");
        assert!(scope.spawn(|| lock.try_read().unwrap().is_none()).join().unwrap());
    });
    // Nor can the same thread read: no thread owns the lock.
    assert!(lock.try_read().unwrap().is_none());
    drop(writer);
    assert!(lock.try_read().unwrap().is_some());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s52_a_reader_cannot_become_the_writer() {
    skip_without_zookeeper!();
    struct NotThere;
    trait Upgrade {
        fn upgrade(&self) -> NotThere {
            NotThere
        }
        fn try_upgrade(&self) -> NotThere {
            NotThere
        }
    }
    impl Upgrade for ReadGuard {}
    let site = Site::shared("s52");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let reader = lock.read().unwrap();
    // This does not compile if the guard has methods with these names.
    let NotThere = reader.upgrade();
    let NotThere = reader.try_upgrade();
    // A reader that takes the write lock fails at once, or waits for itself until it is cancelled.
    assert!(lock.try_write().unwrap().is_none());
    // A call that ends deletes its node, but need not wait for the answer.
    site.wait_for_children("a", 1);
    let cancel = Cancel::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            site.wait_for_children("a", 2);
            cancel.cancel();
        });
        assert_eq!(kind(lock.write_within(&cancel)), ErrorKind::Cancelled);
    });
    assert_eq!(kind(lock.read_within(&cancel)), ErrorKind::Cancelled);
    assert!(reader.is_held());
    site.wait_for_children("a", 1);
    drop((reader, lock));
    site.finish([zk]);
}

#[test]
fn s52a_tokens_grow_from_writer_to_writer_whatever_readers_there_are() {
    skip_without_zookeeper!();
    let site = Site::shared("s52a");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let mut highest = None;
    for round in 0..12 {
        let writer = lock.write().unwrap();
        let token = writer.fencing_token();
        assert!(highest < Some(token), "{round}: {highest:?} {token}");
        let shown = match round % 3 {
            0 => writer.downgrade().unwrap().fencing_token(),
            1 => {
                drop(writer);
                lock.read().unwrap().fencing_token()
            }
            _ => token,
        };
        assert!(shown >= token);
        highest = Some(shown);
    }
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s54_when_a_readers_session_dies_the_writer_proceeds() {
    skip_without_server!();
    let site = Site::own("s54");
    let zk = site.client();
    let (proxy, other) = site.proxied(Duration::from_secs(3));
    let ours = DistributedRwLock::new(&zk, &site.base, "a");
    let theirs = DistributedRwLock::new(&other, &site.base, "a");
    for downgraded in [false, true] {
        let reader = match downgraded {
            false => theirs.read().unwrap(),
            true => theirs.write().unwrap().downgrade().unwrap(),
        };
        let (tell, told) = mpsc::channel();
        reader.on_lost(move |why| tell.send(why).unwrap());
        thread::scope(|scope| {
            let writer = scope.spawn(|| ours.write().unwrap());
            site.wait_for_children("a", 2);
            assert!(!writer.is_finished());
            proxy.black_hole();
            let writer = writer.join().unwrap();
            assert!(!reader.is_held(), "reader and writer hold at once");
            assert_eq!(told.recv_timeout(SOON), Ok(LossReason::LeaseExpired));
            assert!(writer.fencing_token() > reader.fencing_token());
            proxy.pass();
            assert_eq!(kind(reader.ensure_held()), ErrorKind::SessionLost);
            assert_eq!(kind(reader.unlock()), ErrorKind::SessionLost);
            writer.unlock().unwrap();
        });
    }
    drop((ours, theirs));
    site.finish([zk, other]);
}

/// Ends a stream of contenders, even if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn s48_a_stream_of_readers_does_not_starve_a_writer() {
    skip_without_zookeeper!();
    let site = Site::shared("readers");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let (done, inside, rounds) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let guard = lock.read().unwrap();
                    inside.fetch_add(1, Ordering::SeqCst);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    // Waits until another reader is inside, so that there is always one.
                    let end = Instant::now() + BRIEF;
                    while inside.load(Ordering::SeqCst) < 2 && Instant::now() < end {
                        thread::yield_now();
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
        let ends = Ends(&done);
        eventually(SOON, "a stream", || rounds.load(Ordering::SeqCst) > 20);
        let writer = lock.try_write_for(4 * SOON).unwrap();
        drop(ends);
        assert_eq!(inside.load(Ordering::SeqCst), 0);
        assert!(writer.is_some(), "starved");
    });
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s48_a_stream_of_writers_does_not_starve_a_reader() {
    skip_without_zookeeper!();
    let site = Site::shared("writers");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let (done, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    drop(lock.write().unwrap());
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let ends = Ends(&done);
        eventually(SOON, "a stream", || rounds.load(Ordering::SeqCst) > 20);
        let reader = lock.try_read_for(4 * SOON).unwrap();
        drop(ends);
        assert!(reader.is_some(), "starved");
    });
    drop(lock);
    site.finish([zk]);
}

#[test]
fn values_of_the_read_write_lock_can_be_shared_and_sent() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<DistributedRwLock>();
    anywhere::<ReadGuard>();
    anywhere::<WriteGuard>();
}
