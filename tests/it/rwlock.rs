use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{
    Cancel, Client, ContenderKind, DistributedRwLock, ErrorKind, FencingToken, LossReason,
    ReadGuard, SessionState, WriteGuard,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{ALL, Acl, Kind};
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::{
    QUIET, connecting, eventually, got_nothing, kind, last, skip_without_server,
    skip_without_zookeeper,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);

fn sequence(path: &str) -> i32 {
    path[path.len() - 10..].parse().unwrap()
}

fn kinds(lock: &DistributedRwLock) -> Vec<ContenderKind> {
    lock.contenders().unwrap().iter().map(|one| one.kind).collect()
}

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
fn s50_a_downgraded_writer_keeps_its_place_and_a_queued_writer_waits() {
    skip_without_zookeeper!();
    let site = Site::shared("s50");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let writer = lock.write().unwrap();
    let (path, token) = (writer.path().to_owned(), writer.fencing_token());
    thread::scope(|scope| {
        let next = scope.spawn(|| lock.write().unwrap());
        site.wait_for_children("a", 2);
        let reader = writer.downgrade().unwrap();
        assert!(!next.is_finished(), "the queued writer got in");
        assert_eq!(reader.fencing_token(), token);
        assert_ne!(reader.path(), path);
        assert_eq!(sequence(reader.path()), sequence(&path));
        assert!(last(reader.path()).contains("-__READ__"), "{reader:?}");
        reader.ensure_held().unwrap();
        // The reader's node, the waiter's, and no other.
        assert_eq!(kinds(&lock), [ContenderKind::Read, ContenderKind::Write]);
        assert_eq!(lock.contenders().unwrap()[0].path, reader.path());
        assert_eq!(lock.contenders().unwrap()[0].session, zk.session_id());
        // Even so, new readers do not overtake the writer.
        assert!(lock.try_read().unwrap().is_none());
        assert!(!next.is_finished());
        reader.unlock().unwrap();
        let next = next.join().unwrap();
        // s52a: a store that has seen the reader's token does not refuse the writer's.
        assert!(next.fencing_token() > token);
        next.unlock().unwrap();
    });
    assert_eq!(site.children("a").len(), 0);
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s50_a_downgrade_lets_in_the_readers_that_wait_next() {
    skip_without_zookeeper!();
    let site = Site::shared("s50-readers");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let writer = lock.write().unwrap();
    thread::scope(|scope| {
        let readers = [(); 3].map(|()| scope.spawn(|| lock.read().unwrap()));
        site.wait_for_children("a", 4);
        assert!(readers.iter().all(|reader| !reader.is_finished()));
        let ours = writer.downgrade().unwrap();
        let theirs = readers.map(|reader| reader.join().unwrap());
        assert!(ours.is_held() && theirs.iter().all(|one| one.is_held()));
        assert_eq!(kinds(&lock), [ContenderKind::Read; 4]);
        assert!(theirs.iter().all(|one| one.fencing_token() > ours.fencing_token()));
        // And other readers that come.
        assert!(lock.try_read().unwrap().is_some());
        assert!(lock.try_write().unwrap().is_none());
        drop((ours, theirs));
    });
    assert!(lock.try_write().unwrap().is_some());
    drop(lock);
    site.finish([zk]);
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

// ----- faults in the middle of a downgrade

#[derive(Clone, Copy, Debug)]
enum Loss {
    Reply,
    Request,
}

/// A writer behind a faulty network, and another writer that waits for it.
struct Downgrade {
    site: Site,
    zk: Client,
    waiting: Client,
}

impl Downgrade {
    fn lock(&self) -> DistributedRwLock {
        DistributedRwLock::new(&self.zk, &self.site.base, "a")
    }

    /// Downgrades while `fault` happens, and checks that no writer was let in.
    fn try_with(&self, case: &str, fault: impl FnOnce()) {
        let writer = self.lock().write().unwrap();
        let (path, token) = (writer.path().to_owned(), writer.fencing_token());
        let next = DistributedRwLock::new(&self.waiting, &self.site.base, "a");
        thread::scope(|scope| {
            let next = scope.spawn(|| next.write().unwrap());
            self.site.wait_for_children("a", 2);
            fault();
            let reader = writer.downgrade().unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(!next.is_finished(), "{case}: the queued writer got in");
            assert_eq!(reader.fencing_token(), token, "{case}");
            assert_eq!(sequence(reader.path()), sequence(&path), "{case}");
            reader.ensure_held().unwrap();
            // The reader and the waiter; neither the writer nor a second reader.
            assert_eq!(kinds(&self.lock()), [ContenderKind::Read, ContenderKind::Write], "{case}");
            assert_eq!(self.lock().contenders().unwrap()[0].path, reader.path(), "{case}");
            assert!(!next.is_finished(), "{case}: the queued writer got in");
            reader.unlock().unwrap();
            next.join().unwrap().unlock().unwrap();
        });
        assert_eq!(self.site.children("a").len(), 0, "{case}");
    }
}

#[test]
fn s50_a_downgrade_survives_lost_requests_and_replies() {
    skip_without_server!();
    let site = Site::own("s50-lost");
    let waiting = site.client();
    let mut rig = Downgrade { zk: waiting.clone(), site, waiting };
    for (operation, part) in
        [(opcode::CREATE, "__READ__"), (opcode::DELETE, "__WRIT__"), (opcode::SYNC, "")]
    {
        for loss in [Loss::Reply, Loss::Request] {
            for count in [1, 3] {
                // A new client: one that repeatedly lost its connection waits longer before it
                // reconnects.
                let (proxy, zk) = rig.site.proxied(Duration::from_secs(4));
                rig.zk = zk;
                let case = format!("{part:?} {operation} {loss:?} {count}");
                let before = proxy.connections();
                rig.try_with(&case, || match loss {
                    Loss::Reply => proxy.drop_reply_on(operation, part, count),
                    Loss::Request => proxy.drop_request_on(operation, part, count),
                });
                assert!(proxy.connections() > before, "{case}: nothing was lost");
                rig.zk.close();
            }
        }
    }
    let Downgrade { site, zk, waiting } = rig;
    site.finish([zk, waiting]);
}

#[test]
fn s50_a_cut_in_the_middle_of_a_downgrade_does_no_harm() {
    skip_without_server!();
    let site = Site::own("s50-cut");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let waiting = site.client();
    let next = DistributedRwLock::new(&waiting, &site.base, "a");
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    for operation in [opcode::CREATE, opcode::DELETE] {
        let writer = lock.write().unwrap();
        let token = writer.fencing_token();
        proxy.reset_counts();
        thread::scope(|scope| {
            let next = scope.spawn(|| next.write().unwrap());
            site.wait_for_children("a", 2);
            proxy.stall_reply(operation);
            let reader = scope.spawn(|| writer.downgrade().unwrap());
            assert!(proxy.wait_for_request(operation, SOON));
            // The number of children shows that the request was done.
            let expected = if operation == opcode::CREATE { 3 } else { 2 };
            site.wait_for_children("a", expected);
            proxy.refuse();
            eventually(SOON, "the suspension", || zk.state() == SessionState::Suspended);
            assert!(!next.is_finished(), "the queued writer got in");
            proxy.pass();
            let reader = reader.join().unwrap();
            assert_eq!(reader.fencing_token(), token);
            reader.ensure_held().unwrap();
            assert_eq!(kinds(&lock), [ContenderKind::Read, ContenderKind::Write]);
            assert!(!next.is_finished(), "the queued writer got in");
            reader.unlock().unwrap();
            next.join().unwrap().unlock().unwrap();
        });
    }
    drop((lock, next));
    site.finish([zk, waiting]);
}

#[test]
fn s50_a_downgrade_whose_session_is_lost_holds_nothing_and_says_so() {
    skip_without_server!();
    let site = Site::own("s50-session");
    let (proxy, zk) = site.proxied(Duration::from_secs(3));
    let other = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let next = DistributedRwLock::new(&other, &site.base, "a");
    for operation in [opcode::CREATE, opcode::DELETE] {
        let writer = lock.write().unwrap();
        proxy.reset_counts();
        proxy.stall_reply(operation);
        let error = thread::scope(|scope| {
            let reader = scope.spawn(|| writer.downgrade());
            assert!(proxy.wait_for_request(operation, SOON));
            proxy.black_hole();
            reader.join().unwrap().unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::SessionLost, "{error}");
        proxy.pass();
        let guard = next.try_write_for(SOON).unwrap().expect("nothing is held");
        assert_eq!(site.children("a").len(), 1);
        guard.unlock().unwrap();
    }
    drop((lock, next));
    site.finish([zk, other]);
}

#[test]
fn s50_a_downgrade_of_a_lost_lock_fails_and_leaves_nothing() {
    skip_without_zookeeper!();
    let site = Site::shared("s50-gone");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let mut raw = site.raw();

    // Only the node is gone.
    let writer = lock.write().unwrap();
    raw.delete(writer.path()).unwrap();
    assert_eq!(kind(writer.downgrade()), ErrorKind::NodeDeleted);
    site.wait_for_children("a", 0);

    // The lock node is gone, too.
    let writer = lock.write().unwrap();
    raw.delete_recursive(&format!("{}/a", site.base)).unwrap();
    assert_eq!(kind(writer.downgrade()), ErrorKind::NodeDeleted);
    site.wait_for_children("a", 0);

    // A node with the same name is another client's.
    let writer = lock.write().unwrap();
    let path = writer.path().to_owned();
    raw.delete(&path).unwrap();
    raw.create(&path, b"", Kind::Ephemeral).unwrap();
    assert_eq!(kind(writer.downgrade()), ErrorKind::NodeDeleted);
    // The deletion of the reader's node is on its way.
    site.wait_for_only("a", last(&path));
    raw.delete(&path).unwrap();

    // The client is closed.
    let writer = lock.write().unwrap();
    zk.close();
    assert_eq!(kind(writer.downgrade()), ErrorKind::Closed);
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s50_a_downgrade_that_an_acl_forbids_releases_the_lock() {
    skip_without_zookeeper!();
    const READ_AND_DELETE: i32 = 1 | 8;
    let site = Site::shared("s50-acl");
    let zk = site.client();
    let node = format!("{}/a", site.base);
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let writer = lock.write().unwrap();
    let mut raw = site.raw();
    raw.add_auth("digest", b"me:secret").unwrap();
    let acl = [Acl::new(READ_AND_DELETE, "world", "anyone"), Acl::new(ALL, "auth", "")];
    raw.set_acl(&node, &acl).unwrap();
    let error = writer.downgrade().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
    assert_eq!(error.path(), Some(&*node));
    assert!(error.to_string().contains("CREATE"), "{error}");
    // The release did not wait for the server's answer.
    site.wait_for_children("a", 0);
    raw.delete(&node).unwrap();
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

/// The reader's node was made, but the reply was lost, and then an ACL forbids another create.
#[test]
fn s50_a_downgrade_that_is_forbidden_on_the_way_leaves_no_reader() {
    skip_without_server!();
    const READ_AND_DELETE: i32 = 1 | 8;
    let site = Site::own("s50-forbidden");
    let (proxy, zk) = site.proxied(Duration::from_secs(30));
    let node = format!("{}/a", site.base);
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let writer = lock.write().unwrap();
    let mut raw = site.raw();
    raw.add_auth("digest", b"me:secret").unwrap();
    proxy.stall_reply(opcode::CREATE);
    let error = thread::scope(|scope| {
        let reader = scope.spawn(|| writer.downgrade());
        site.wait_for_children("a", 2);
        let acl = [Acl::new(READ_AND_DELETE, "world", "anyone"), Acl::new(ALL, "auth", "")];
        raw.set_acl(&node, &acl).unwrap();
        proxy.refuse();
        proxy.pass();
        reader.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
    eventually(SOON, "both nodes to go", || raw.get_children(&node).unwrap().is_empty());
    raw.delete(&node).unwrap();
    raw.close().unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s50_a_downgraded_guard_learns_of_loss_and_of_requests() {
    skip_without_zookeeper!();
    let site = Site::shared("s50-watch");
    let zk = site.client();
    let lock = DistributedRwLock::new(&zk, &site.base, "a");
    let writer = lock.write().unwrap();
    let (tell, told) = mpsc::channel();
    let requests = tell.clone();
    writer.on_lost(move |_| tell.send("lost").unwrap());
    writer.on_release_requested(move || requests.send("requested").unwrap());
    let reader = writer.downgrade().unwrap();
    // The writer's callbacks were dropped, and not called.
    assert!(told.recv().is_err());
    let (tell, told) = mpsc::channel();
    let requests = tell.clone();
    reader.on_lost(move |why| tell.send(Some(why)).unwrap());
    reader.on_release_requested(move || requests.send(None).unwrap());
    assert_eq!(lock.request_release().unwrap(), 1);
    assert_eq!(told.recv_timeout(SOON), Ok(None));
    site.raw().delete(reader.path()).unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(Some(LossReason::NodeDeleted)));
    assert_eq!(kind(reader.unlock()), ErrorKind::NodeDeleted);
    drop(lock);
    site.finish([zk]);
}

// ----- no contender starves

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

// ----- stress

const STRESS: &str = "rwlock::s53_under_stress_the_invariants_hold";
const STRESS_OF: &str = "ZKLOCK_TEST_STRESS_OF";
const STRESS_FOR: Duration = Duration::from_secs(6);
const PROCESSES: usize = 4;
const THREADS: usize = 4;

/// What the lock protects: a file whose contents only writers change. Each holder also takes the
/// kernel's lock on it, shared or exclusive, and must get that without waiting.
struct Protected(File);

/// A counter, twice, and the token of its latest writer.
type Contents = (u64, u64, String);

impl Protected {
    fn open(path: &str) -> Protected {
        Protected(File::options().read(true).write(true).open(path).expect("the file"))
    }

    fn load(&mut self) -> Contents {
        let mut text = String::new();
        self.0.seek(SeekFrom::Start(0)).expect("a file");
        self.0.read_to_string(&mut text).expect("text");
        let mut parts = text.split_whitespace();
        let number =
            |part: Option<&str>| part.and_then(|part| part.parse().ok()).expect("a number");
        (number(parts.next()), number(parts.next()), parts.next().unwrap_or_default().to_owned())
    }

    fn store(&mut self, (one, two, token): &Contents) {
        self.0.seek(SeekFrom::Start(0)).expect("a file");
        // Fixed lengths, so that nothing is left of former contents.
        write!(self.0, "{one:020} {two:020} {token}").expect("written");
    }

    fn write(&mut self, guard: &WriteGuard) {
        self.0.try_lock().expect("another holder is inside");
        let (one, two, latest) = self.load();
        assert_eq!(one, two, "half of a write was seen");
        let token = guard.fencing_token().to_string();
        assert!(latest < token, "{latest} came before {token}");
        // A reader would now see half of a write.
        self.store(&(one + 1, two, token.clone()));
        thread::yield_now();
        assert!(guard.is_held());
        self.store(&(one + 1, one + 1, token));
        self.0.unlock().expect("locked");
    }

    fn read(&mut self, token: FencingToken) {
        self.0.try_lock_shared().expect("a writer is inside");
        let before = self.load();
        assert_eq!(before.0, before.1, "half of a write was seen");
        assert!(before.2 <= token.to_string(), "{} came before {token}", before.2);
        thread::yield_now();
        assert_eq!(self.load(), before, "a writer changed the file meanwhile");
        self.0.unlock().expect("locked");
    }
}

/// One of the processes; it prints how often it has written, read, and read with others.
fn be_stressed(hosts: &str) {
    let base = std::env::var("ZKLOCK_TEST_STRESS_BASE").expect("a base path");
    let file = std::env::var("ZKLOCK_TEST_STRESS_FILE").expect("a file");
    let zk = connecting(hosts).session_timeout(Duration::from_secs(30)).connect().unwrap();
    let lock = DistributedRwLock::new(&zk, &base, "a");
    let counts = [(); 3].map(|()| AtomicUsize::new(0));
    let (inside, end) = (AtomicUsize::new(0), Instant::now() + STRESS_FOR);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (lock, counts, inside, file) = (&lock, &counts, &inside, &file);
            scope.spawn(move || {
                let mut protected = Protected::open(file);
                let mut read = |token| {
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    protected.read(token);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    counts[1].fetch_add(1, Ordering::SeqCst);
                    counts[2].fetch_add(usize::from(others > 0), Ordering::SeqCst);
                };
                let mut writing = Protected::open(file);
                // One in ten writes, and every other writer goes on as a reader.
                for round in number * 3.. {
                    if Instant::now() > end {
                        break;
                    }
                    if round % 10 == 0 {
                        let guard = lock.write().unwrap();
                        writing.write(&guard);
                        counts[0].fetch_add(1, Ordering::SeqCst);
                        if round % 20 == 0 {
                            let guard = guard.downgrade().unwrap();
                            read(guard.fencing_token());
                            assert!(guard.is_held());
                        }
                    } else {
                        let guard = lock.read().unwrap();
                        read(guard.fencing_token());
                        assert!(guard.is_held());
                    }
                }
            });
        }
    });
    let counts = counts.map(AtomicUsize::into_inner);
    println!("stress: {} {} {}", counts[0], counts[1], counts[2]);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn s53_under_stress_the_invariants_hold() {
    if let Ok(hosts) = std::env::var(STRESS_OF) {
        return be_stressed(&hosts);
    }
    skip_without_server!();
    let site = Site::with("s53", &Server::builder().max_session(60_000));
    let file = std::env::temp_dir().join(format!("zklock-stress-{}", std::process::id()));
    let nothing = "0".repeat(20);
    let no_token = format!("{}-{}", "0".repeat(16), "0".repeat(8));
    std::fs::write(&file, format!("{nothing} {nothing} {no_token}")).unwrap();
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let command = Command::new(std::env::current_exe().expect("this program"))
                .args([STRESS, "--exact", "--nocapture", "--test-threads=1"])
                .env(STRESS_OF, site.hosts())
                .env("ZKLOCK_TEST_STRESS_BASE", &site.base)
                .env("ZKLOCK_TEST_STRESS_FILE", &file)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn();
            Killed(command.expect("a child process"))
        })
        .collect();
    let mut totals = [0; 3];
    for mut child in children {
        let output = BufReader::new(child.0.stdout.take().expect("its output"));
        for line in output.lines() {
            let line = line.expect("a line");
            if let Some((_, counts)) = line.split_once("stress: ") {
                for (total, count) in totals.iter_mut().zip(counts.split(' ')) {
                    *total += count.parse::<u64>().expect("a number");
                }
            }
        }
        assert!(child.0.wait().expect("its end").success(), "an invariant did not hold");
    }
    let [writes, reads, shared] = totals;
    println!("{writes} writes, {reads} reads, of which {shared} with others");
    let (one, two, _) = Protected::open(file.to_str().expect("a name")).load();
    std::fs::remove_file(&file).unwrap();
    assert_eq!((one, two), (writes, writes), "writes were lost");
    assert!(writes >= 10 && reads > writes && shared > 0, "{totals:?}");
    site.wait_for_children("a", 0);
    site.finish([]);
}

#[test]
fn values_of_the_read_write_lock_can_be_shared_and_sent() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<DistributedRwLock>();
    anywhere::<ReadGuard>();
    anywhere::<WriteGuard>();
}
