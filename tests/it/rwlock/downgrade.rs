//! Writers that become readers, and faults in the middle of that.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zklock::{Client, ContenderKind, DistributedRwLock, ErrorKind, LossReason, SessionState};

use super::{SOON, kinds};
use crate::support::proxy::opcode;
use crate::support::raw::{ALL, Acl, Kind};
use crate::support::site::Site;
use crate::support::{eventually, kind, last, skip_without_server, skip_without_zookeeper};

fn sequence(path: &str) -> i32 {
    path[path.len() - 10..].parse().unwrap()
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
