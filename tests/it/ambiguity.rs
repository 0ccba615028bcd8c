use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use zklock::{Cancel, Client, DistributedLock, ErrorKind, LockGuard, SessionState};

use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{self, Acl, Kind, Raw};
use crate::support::site::Site;
use crate::support::skip_without_server;
use crate::support::stopwatch::Stopwatch;
use crate::support::{QUIET, connecting, eventually, got_nothing, is_unanswered, mutex, strict};

const T: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_secs(15);

/// A client of the test's own server, behind a proxy that can misbehave.
struct Rig {
    site: Site,
    proxy: Proxy,
    zk: Client,
}

impl Rig {
    fn new(test: &str) -> Rig {
        Rig::with_timeout(test, T)
    }

    fn with_timeout(test: &str, timeout: Duration) -> Rig {
        let site = Site::own(test);
        let proxy = Proxy::start(site.server().addr());
        let zk = connecting(&proxy.hosts()).session_timeout(timeout).connect().unwrap();
        Rig { site, proxy, zk }
    }

    fn lock(&self, name: &str) -> DistributedLock {
        mutex(&self.zk, &self.site.base, name)
    }

    /// Holds something in the client's session, which is then kept over requests without an answer.
    fn keep(&self) -> LockGuard {
        let kept = self.lock("kept").lock().unwrap();
        let is_watched = || self.zk.stats().watches_at_server == Some(1);
        eventually(LONG, "the watch of what is kept", is_watched);
        self.proxy.reset_counts();
        kept
    }

    /// Replaces the client: one that repeatedly lost its connection waits longer each time before
    /// it reconnects.
    fn renew(&mut self) {
        self.zk.close();
        self.zk = connecting(&self.proxy.hosts()).session_timeout(T).connect().unwrap();
        self.proxy.reset_counts();
    }

    /// Makes a lock node "stuck" in which contenders can be created but not deleted, and returns
    /// the connection that can remove it.
    fn make_stuck(&self) -> Raw {
        const READ_AND_CREATE: i32 = 1 | 4;
        let mut owner = self.site.raw();
        owner.add_auth("digest", b"user:password").unwrap();
        owner.create_all(&self.site.base).unwrap();
        let acl = [Acl::new(READ_AND_CREATE, "world", "anyone"), Acl::new(raw::ALL, "auth", "")];
        let node = format!("{}/stuck", self.site.base);
        owner.create_with_acl(&node, b"", Kind::Persistent, &acl).unwrap();
        owner
    }

    fn remove_stuck(&self, owner: &mut Raw) {
        let node = format!("{}/stuck", self.site.base);
        for child in owner.get_children(&node).unwrap() {
            owner.delete(&format!("{node}/{child}")).unwrap();
        }
        owner.delete(&node).unwrap();
    }

    fn tries_to_delete(&self, what: &str) -> usize {
        let requests = self.proxy.requests();
        let is_it = |path: &Option<String>| path.as_ref().is_some_and(|path| path.contains(what));
        requests.iter().filter(|r| r.opcode == opcode::DELETE && is_it(&r.path)).count()
    }

    fn finish(self) {
        self.site.finish([self.zk]);
    }

    /// Checks that the guard's node is the only one, belongs to this session, and that its creation
    /// is the guard's token.
    fn assert_adopted(&self, name: &str, guard: &LockGuard, case: &str) {
        let children = self.site.children(name);
        assert_eq!(children.len(), 1, "{case}: {children:?}");
        assert!(guard.path().ends_with(&children[0]), "{case}: {} {children:?}", guard.path());
        let stat = self.site.raw().exists(guard.path()).unwrap().unwrap();
        assert_eq!(stat.czxid as u64, guard.fencing_token().zxid(), "{case}");
        assert_eq!(Some(stat.ephemeral_owner.into()), self.zk.session_id(), "{case}");
        assert!(guard.is_held(), "{case}");
        guard.ensure_held().unwrap();
    }

    /// How many creates of contenders the proxy has seen.
    fn contenders_made(&self) -> usize {
        let is_contender = |path: &Option<String>| path.as_ref().is_some_and(|p| p.contains("_c_"));
        let requests = self.proxy.requests();
        requests.iter().filter(|r| r.opcode == opcode::CREATE && is_contender(&r.path)).count()
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Lock,
    For,
    With,
}

impl Call {
    const ALL: [Call; 3] = [Call::Lock, Call::For, Call::With];

    fn on(self, lock: &DistributedLock) -> LockGuard {
        match self {
            Call::Lock => lock.lock().unwrap(),
            Call::For => lock.try_lock_for(LONG).unwrap().expect("in time"),
            Call::With => lock.lock_within(&Cancel::new()).unwrap().unwrap(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Loss {
    Reply,
    Request,
}

impl Loss {
    const BOTH: [Loss; 2] = [Loss::Reply, Loss::Request];

    fn arm(self, proxy: &Proxy, operation: i32, part: &str, count: usize) {
        match self {
            Loss::Reply => proxy.drop_reply_on(operation, part, count),
            Loss::Request => proxy.drop_request_on(operation, part, count),
        }
    }
}

/// An operation, a part of its path, what is lost, and how often.
type Fault = (i32, &'static str, Loss, usize);

/// Takes the lock in every way while `faults` happen, and checks that it has one node; `check`
/// checks the rest and releases the lock.
fn with_faults(rig: &mut Rig, faults: &[Fault], check: impl Fn(&Rig, LockGuard, &str)) {
    for call in Call::ALL {
        rig.renew();
        let kept = rig.keep();
        let case = format!("{call:?} {faults:?}");
        let before = rig.proxy.connections();
        let name = before.to_string();
        rig.site.raw().create_all(&format!("{}/{name}", rig.site.base)).unwrap();
        for (operation, part, loss, count) in faults {
            loss.arm(&rig.proxy, *operation, part, *count);
        }
        let guard = call.on(&rig.lock(&name));
        assert!(rig.proxy.connections() > before, "{case}: nothing was lost");
        // Unused faults must not hit what follows.
        rig.proxy.pass();
        rig.assert_adopted(&name, &guard, &case);
        check(rig, guard, &case);
        assert_eq!(rig.site.children(&name).len(), 0, "{case}");
        kept.unlock().unwrap();
    }
}

#[test]
fn s36_a_create_whose_reply_is_lost_is_adopted() {
    skip_without_server!();
    let mut rig = Rig::new("s36");
    for count in [1, 3] {
        with_faults(
            &mut rig,
            &[(opcode::CREATE, "_c_", Loss::Reply, count)],
            |rig, guard, case| {
                assert_eq!(rig.contenders_made(), 1, "{case}");
                guard.unlock().unwrap();
            },
        );
    }
    rig.finish();
}

#[test]
fn s36_adoption_survives_further_losses() {
    skip_without_server!();
    let mut rig = Rig::new("s36-more");
    let created = (opcode::CREATE, "_c_", Loss::Reply, 1);
    for loss in Loss::BOTH {
        for count in [1, 3] {
            for operation in [opcode::SYNC, opcode::GET_CHILDREN, opcode::GET_DATA] {
                let faults = [created, (operation, "", loss, count)];
                with_faults(&mut rig, &faults, |rig, guard, case| {
                    assert_eq!(rig.contenders_made(), 1, "{case}");
                    guard.unlock().unwrap();
                });
            }
        }
    }
    rig.finish();
}

#[test]
fn s36_an_adopted_waiter_keeps_its_place() {
    skip_without_server!();
    let rig = Rig::new("s36-waiter");
    let kept = rig.keep();
    let other = rig.site.client();
    let holder = mutex(&other, &rig.site.base, "a").lock().unwrap();
    rig.proxy.drop_reply_on(opcode::CREATE, "_c_", 1);
    let lock = rig.lock("a");
    let waiter = thread::spawn(move || lock.lock().unwrap());
    eventually(LONG, "the waiter's watch", || rig.zk.stats().watches == 3);
    let queue = mutex(&other, &rig.site.base, "a").contenders().unwrap();
    assert_eq!(queue.len(), 2, "{queue:?}");
    holder.unlock().unwrap();
    let guard = waiter.join().unwrap();
    assert_eq!(rig.contenders_made(), 1);
    rig.assert_adopted("a", &guard, "waiter");
    drop((guard, kept));
    rig.site.finish([rig.zk, other]);
}

#[test]
fn s37_a_node_of_an_ended_session_is_not_adopted() {
    skip_without_server!();
    let rig = Rig::with_timeout("s37", Duration::from_secs(3));
    let first = rig.zk.session_id().unwrap();
    let kept = rig.keep();
    rig.proxy.stall_reply(opcode::CREATE);
    let lock = rig.lock("a");
    // Its parents exist, so that the only create is the contender's.
    rig.site.raw().create_all(&format!("{}/a", rig.site.base)).unwrap();
    let locker = thread::spawn(move || lock.lock().unwrap());
    eventually(LONG, "the node", || rig.site.children("a").len() == 1);
    let ghost = rig.site.children("a").remove(0);
    rig.proxy.black_hole();
    eventually(LONG, "the loss of the session", || rig.zk.state() == SessionState::Lost);
    rig.proxy.pass();
    let guard = locker.join().unwrap();
    assert_ne!(rig.zk.session_id(), Some(first));
    assert!(!guard.path().ends_with(&ghost));
    rig.assert_adopted("a", &guard, "after the loss");
    guard.unlock().unwrap();
    assert!(!kept.is_held());
    drop(kept);
    rig.finish();
}

#[test]
fn s38_a_create_that_was_not_applied_is_made_once_more() {
    skip_without_server!();
    let mut rig = Rig::new("s38");
    for count in [1, 3] {
        with_faults(
            &mut rig,
            &[(opcode::CREATE, "_c_", Loss::Request, count)],
            |rig, guard, case| {
                assert_eq!(rig.contenders_made(), count + 1, "{case}");
                guard.unlock().unwrap();
            },
        );
    }
    rig.finish();
}

#[test]
fn s38_the_lock_node_and_its_parents_are_made_over_losses() {
    skip_without_server!();
    let mut rig = Rig::new("s38-parents");
    for (number, loss) in Loss::BOTH.into_iter().enumerate() {
        for call in Call::ALL {
            rig.renew();
            let case = format!("{call:?} {loss:?}");
            let base = format!("{}/{number}{call:?}/deep", rig.site.base);
            let before = rig.proxy.connections();
            loss.arm(&rig.proxy, opcode::CREATE_CONTAINER, "", 2);
            loss.arm(&rig.proxy, opcode::CREATE, "", 3);
            let guard = call.on(&mutex(&rig.zk, &base, "a"));
            assert!(rig.proxy.connections() >= before + 3, "{case}");
            let children = rig.site.raw().get_children(&format!("{base}/a")).unwrap();
            assert_eq!(children.len(), 1, "{case}: {children:?}");
            guard.ensure_held().unwrap();
            rig.proxy.pass();
            guard.unlock().unwrap();
        }
    }
    rig.finish();
}

#[test]
fn s39_s40_a_delete_is_done_whatever_is_lost() {
    skip_without_server!();
    let mut rig = Rig::new("s39");
    for loss in Loss::BOTH {
        for count in [1, 3] {
            for call in Call::ALL {
                rig.renew();
                let lock = rig.lock("a");
                let case = format!("{call:?} {loss:?} {count}");
                let guard = call.on(&lock);
                let before = rig.proxy.connections();
                loss.arm(&rig.proxy, opcode::DELETE, "_c_", count);
                guard.unlock().unwrap();
                assert_eq!(rig.site.children("a").len(), 0, "{case}");
                assert!(rig.proxy.connections() > before, "{case}: nothing was lost");
                // Ends what is left of the fault: a delete that took effect is not repeated.
                rig.proxy.pass();

                let guard = call.on(&lock);
                loss.arm(&rig.proxy, opcode::DELETE, "_c_", count);
                drop(guard);
                let next = call.on(&lock);
                rig.assert_adopted("a", &next, &case);
                rig.proxy.pass();
                next.unlock().unwrap();
            }
        }
    }
    rig.finish();
}

#[test]
fn s40_a_delete_during_an_outage_happens_after_it() {
    skip_without_server!();
    // On a busy machine a server takes longer than T to start.
    let rig = Rig::with_timeout("s40", QUIET);
    let session = rig.zk.session_id();
    let lock = rig.lock("a");
    let guard = lock.lock().unwrap();
    rig.site.server().kill();
    eventually(LONG, "the suspension", || rig.zk.state() == SessionState::Suspended);
    drop(guard);
    rig.site.server().start_again();
    let guard = lock.lock().unwrap();
    // The session is the same, so the delete was repeated.
    assert_eq!(rig.zk.session_id(), session);
    // A call knows which nodes of its own session are about to go, and need not wait for that.
    eventually(LONG, "the delete", || rig.site.children("a").len() == 1);
    rig.assert_adopted("a", &guard, "after the outage");
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s39_an_unlock_during_an_outage_waits_for_its_end() {
    skip_without_server!();
    let rig = Rig::new("s39-outage");
    let guard = rig.lock("a").lock().unwrap();
    rig.proxy.refuse();
    eventually(LONG, "the suspension", || rig.zk.state() == SessionState::Suspended);
    let (tell, told) = mpsc::channel();
    let unlocker = thread::spawn(move || tell.send(guard.unlock()).unwrap());
    assert!(told.recv_timeout(Duration::from_millis(200)).is_err());
    rig.proxy.pass();
    told.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(rig.site.children("a").len(), 0);
    unlocker.join().unwrap();
    rig.finish();
}

#[test]
fn s41_a_list_that_is_refused_leaves_no_node() {
    skip_without_server!();
    const WRITE_ONLY: i32 = 4 | 8; // create and delete
    let rig = Rig::new("s41");
    let node = format!("{}/a", rig.site.base);
    let mut raw = rig.site.raw();
    raw.create_all(&rig.site.base).unwrap();
    let mut owner = rig.site.raw();
    owner.add_auth("digest", b"owner:secret").unwrap();
    let acl = [Acl::new(WRITE_ONLY, "world", "anyone"), Acl::new(raw::ALL, "auth", "")];
    owner.create_with_acl(&node, b"", Kind::Persistent, &acl).unwrap();
    let lock = rig.lock("a");
    let calls: [(&str, &dyn Fn() -> zklock::Result<()>); 4] = [
        ("lock", &|| lock.lock().map(drop)),
        ("try_lock", &|| lock.try_lock().map(drop)),
        ("try_lock_for", &|| lock.try_lock_for(LONG).map(drop)),
        ("lock_within", &|| lock.lock_within(&Cancel::new()).map(drop)),
    ];
    for (name, call) in calls {
        let error = call().expect_err(name);
        assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{name}: {error}");
        assert_eq!(error.path(), Some(node.as_str()), "{name}");
        let text = error.to_string();
        assert!(text.contains("READ") && text.contains(&node), "{name}: {text}");
        assert_eq!(owner.get_children(&node).unwrap(), [""; 0], "{name}");
    }
    let error = lock.contenders().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
    assert_eq!(rig.contenders_made(), 4);
    assert_eq!(rig.proxy.connections(), 1);
    raw.delete(&node).unwrap();
    drop(lock);
    rig.finish();
}

#[test]
fn s41_a_list_without_an_answer_is_asked_again() {
    skip_without_server!();
    let mut rig = Rig::new("s41-again");
    for loss in Loss::BOTH {
        for count in [1, 3] {
            with_faults(
                &mut rig,
                &[(opcode::GET_CHILDREN, "", loss, count)],
                |rig, guard, case| {
                    assert_eq!(rig.contenders_made(), 1, "{case}");
                    guard.unlock().unwrap();
                },
            );
        }
    }
    rig.finish();
}

#[test]
fn s42_giving_up_during_an_outage_leaves_no_ghost() {
    skip_without_server!();
    let rig = Rig::new("s42");
    let kept = rig.keep();
    let session = rig.zk.session_id();
    for outage in ["refused", "silent"] {
        for cancels in [false, true] {
            let case = format!("{outage}-{cancels}");
            let lock = rig.lock(&case);
            rig.site.raw().create_all(&format!("{}/{case}", rig.site.base)).unwrap();
            rig.proxy.stall_reply(opcode::CREATE);
            let cancel = Cancel::new();
            let token = cancel.clone();
            let limit = Duration::from_millis(1000);
            let started = Stopwatch::start();
            let caller = thread::spawn(move || {
                if cancels { lock.lock_within(&token) } else { lock.try_lock_for(limit) }
            });
            eventually(LONG, "the node", || rig.site.children(&case).len() == 1);
            if outage == "refused" {
                rig.proxy.refuse();
            } else {
                rig.proxy.black_hole();
            }
            if cancels {
                cancel.cancel();
            }
            let outcome = caller.join().unwrap();
            if cancels {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled, "{case}");
            } else {
                assert!(is_unanswered(outcome), "{case}");
                assert!(started.took().within(limit + Duration::from_secs(1)), "{case}");
            }
            assert_eq!(rig.site.children(&case).len(), 1, "{case}: there was no ghost");
            rig.proxy.pass();
            eventually(LONG, "the ghost to go", || rig.site.children(&case).is_empty());
            // The session is the same, so the ghost was deleted.
            assert_eq!(rig.zk.session_id(), session, "{case}");
            let guard =
                rig.lock(&case).try_lock_for(LONG).unwrap().expect("the lock after the outage");
            guard.unlock().unwrap();
        }
    }
    kept.unlock().unwrap();
    rig.finish();
}

#[test]
fn s42_giving_up_while_requests_are_swallowed_leaves_nothing() {
    skip_without_server!();
    let rig = Rig::new("s42-swallowed");
    rig.site.raw().create_all(&format!("{}/a", rig.site.base)).unwrap();
    let lock = rig.lock("a");
    rig.proxy.black_hole();
    assert!(is_unanswered(lock.try_lock_for(Duration::from_millis(300))));
    assert!(rig.proxy.wait_for_request(opcode::CREATE, LONG));
    rig.proxy.pass();
    let guard = lock.lock().unwrap();
    rig.assert_adopted("a", &guard, "after the black hole");
    drop((guard, lock));
    rig.finish();
}

#[test]
fn s42_a_waiter_that_gives_up_leaves_nothing_over_lost_deletes() {
    skip_without_server!();
    let rig = Rig::new("s42-waiter");
    let other = rig.site.client();
    let holder = mutex(&other, &rig.site.base, "a").lock().unwrap();
    let lock = rig.lock("a");
    for loss in Loss::BOTH {
        for count in [1, 3] {
            loss.arm(&rig.proxy, opcode::DELETE, "_c_", count);
            let before = rig.proxy.connections();
            assert!(got_nothing(lock.try_lock_for(Duration::from_millis(200))));
            eventually(LONG, "the waiter's node to go", || rig.site.children("a").len() == 1);
            eventually(LONG, "the lost connection", || rig.proxy.connections() > before);
            rig.proxy.pass();
        }
    }
    holder.ensure_held().unwrap();
    drop((holder, lock));
    rig.site.finish([rig.zk, other]);
}

#[test]
fn s43_a_guard_of_a_lost_session_releases_nobody() {
    skip_without_server!();
    let rig = Rig::with_timeout("s43", Duration::from_secs(3));
    let other = rig.site.client();
    for unlocks in [false, true] {
        let stale = rig.lock("a").lock().unwrap();
        rig.proxy.black_hole();
        eventually(LONG, "the loss", || rig.zk.state() == SessionState::Lost);
        assert!(!stale.is_held());
        let holder = mutex(&other, &rig.site.base, "a").lock().unwrap();
        assert!(holder.fencing_token() > stale.fencing_token());
        rig.proxy.pass();
        rig.proxy.reset_counts();
        // Opens the new session, in which a stale release could delete a node.
        assert!(rig.lock("a").try_lock().unwrap().is_none());
        let deletes = rig.proxy.count(opcode::DELETE);
        if unlocks {
            assert_eq!(stale.unlock().unwrap_err().kind(), ErrorKind::SessionLost);
        } else {
            drop(stale);
        }
        assert_eq!(rig.zk.stats().pending_deletes, 0);
        assert_eq!(rig.proxy.count(opcode::DELETE), deletes);
        holder.ensure_held().unwrap();
        assert_eq!(rig.site.children("a").len(), 1);
        holder.unlock().unwrap();
    }
    rig.site.finish([rig.zk, other]);
}

#[test]
fn s43_an_unlock_that_is_retried_spares_the_next_holder() {
    skip_without_server!();
    let rig = Rig::new("s43-retried");
    let other = rig.site.client();
    let guard = rig.lock("a").lock().unwrap();
    rig.proxy.stall_reply(opcode::DELETE);
    let unlocker = thread::spawn(move || guard.unlock());
    let holder = mutex(&other, &rig.site.base, "a").lock().unwrap();
    rig.proxy.refuse();
    rig.proxy.pass();
    unlocker.join().unwrap().unwrap();
    assert_eq!(rig.proxy.count(opcode::DELETE), 2);
    holder.ensure_held().unwrap();
    drop(holder);
    rig.site.finish([rig.zk, other]);
}

#[test]
fn s43_an_unlock_that_is_retried_spares_a_successor_of_the_same_client() {
    skip_without_server!();
    let rig = Rig::new("s43-same");
    for count in [1, 3] {
        // The successor must have a node of its own.
        let lock = strict(&rig.zk, &rig.site.base, "a");
        let guard = lock.lock().unwrap();
        let watches = rig.zk.stats().watches;
        let successor = thread::spawn(move || lock.lock().unwrap());
        eventually(LONG, "the successor's watch", || rig.zk.stats().watches > watches);
        rig.proxy.reset_counts();
        rig.proxy.drop_reply_on(opcode::DELETE, "_c_", count);
        guard.unlock().unwrap();
        let next = successor.join().unwrap();
        assert!(rig.proxy.count(opcode::DELETE) >= 2);
        rig.assert_adopted("a", &next, "successor");
        rig.proxy.pass();
        next.unlock().unwrap();
    }
    rig.finish();
}

#[test]
fn s43b_our_own_lost_session_does_not_block_us_after_a_restart() {
    skip_without_server!();
    let rig = Rig::new("s43b");
    let lock = rig.lock("a");
    let stale = lock.lock().unwrap();
    // After the first heartbeat the server keeps the session longer than the lease lasts.
    assert!(rig.proxy.wait_for_request(opcode::SYNC, LONG));
    stale.ensure_held().unwrap();
    rig.proxy.black_hole();
    eventually(LONG, "the loss", || rig.zk.state() == SessionState::Lost);
    assert_eq!(rig.site.children("a").len(), 1, "the server expired the session first");
    // When it starts again, the server gives each session that it knows a full new timeout.
    rig.site.server().kill();
    rig.proxy.pass();
    rig.site.server().start_again();
    let ready = Stopwatch::start();
    let guard = lock.lock().unwrap();
    let took = ready.took();
    assert!(took.within(T / 2), "took {took:?}");
    println!("the lock was acquired {took:?} after the restart");
    assert!(guard.fencing_token() > stale.fencing_token());
    rig.assert_adopted("a", &guard, "after the restart");
    drop((stale, guard, lock));
    rig.finish();
}

#[test]
fn a_node_that_cannot_be_deleted_is_told_of_and_delays_no_other() {
    skip_without_server!();
    const TRIES: usize = 9;
    let rig = Rig::new("stuck");
    let mut owner = rig.make_stuck();
    let stuck = rig.lock("stuck");
    let error = stuck.lock().unwrap().unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
    let tries = || rig.tries_to_delete("/stuck/");
    // By now the pause between two tries has grown to 2.5 s.
    eventually(LONG, "some tries", || tries() >= TRIES);
    drop(rig.lock("a").lock().unwrap());
    let tried = tries();
    rig.proxy.delay_replies(Duration::from_millis(200));
    assert!(is_unanswered(rig.lock("a").try_lock_for(Duration::from_millis(20))));
    eventually(LONG, "the node of the abandoned create", || rig.site.children("a").len() == 1);
    eventually(LONG, "its deletion", || rig.site.children("a").is_empty());
    assert_eq!(tries(), tried, "it waited for the next try to delete the stuck node");
    rig.proxy.pass();
    let error = stuck.try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
    assert!(error.to_string().contains("DELETE"), "{error}");
    rig.remove_stuck(&mut owner);
    drop(stuck);
    rig.finish();
}

/// A node that belongs to no call blocks all contenders while the server refuses to delete it.
#[test]
fn a_node_that_was_made_too_late_and_cannot_be_deleted_is_a_contender() {
    skip_without_server!();
    let rig = Rig::new("stuck-late");
    let mut owner = rig.make_stuck();
    drop(rig.lock("a").lock().unwrap());
    let stuck = rig.lock("stuck");
    rig.proxy.delay_replies(Duration::from_millis(200));
    assert!(is_unanswered(stuck.try_lock_for(Duration::from_millis(20))));
    // The client tries again only after the first refusal has arrived.
    eventually(LONG, "two tries", || rig.tries_to_delete("/stuck/") >= 2);
    rig.proxy.pass();
    let error = stuck.try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
    rig.remove_stuck(&mut owner);
    drop(stuck);
    rig.finish();
}
