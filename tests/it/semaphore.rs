use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{
    Cancel, Client, ContenderKind, DistributedSemaphore, Error, ErrorKind, LossReason, Permit,
};

use crate::support::proxy::opcode;
use crate::support::raw::{Kind, Raw};
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    QUIET, eventually, got_nothing, kind, last, mutex, skip_without_server, skip_without_zookeeper,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);

fn semaphore(zk: &Client, site: &Site, permits: u32) -> DistributedSemaphore {
    DistributedSemaphore::new(zk, &site.base, "a", permits)
}

/// Makes a contender as another client would.
fn intrude(raw: &mut Raw, site: &Site, weight: u32, permits: u32) -> String {
    let guid = "_c_11111111-2222-3333-4444-555555555555";
    let prefix = format!("{}/a/{guid}-lease-{weight}-of-{permits}-", site.base);
    raw.create(&prefix, b"", Kind::EphemeralSequential).unwrap()
}

#[test]
fn s55_as_many_are_granted_as_there_are_permits() {
    skip_without_zookeeper!();
    const PERMITS: usize = 3;
    let site = Site::shared("s55");
    let clients = [site.client(), site.client()];
    let (granted, grants) = mpsc::channel();
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        let mut releasers = Vec::new();
        for number in 0..=PERMITS {
            let semaphore = semaphore(&clients[number % 2], &site, PERMITS as u32);
            let (release, until) = mpsc::channel::<()>();
            releasers.push(release);
            let (granted, inside) = (granted.clone(), &inside);
            scope.spawn(move || {
                let permit = semaphore.acquire().unwrap();
                assert!(inside.fetch_add(1, Ordering::SeqCst) < PERMITS);
                granted.send(number).unwrap();
                let _ = until.recv();
                permit.ensure_held().unwrap();
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            });
            site.wait_for_children("a", number + 1);
        }
        let mut first: Vec<usize> =
            (0..PERMITS).map(|_| grants.recv_timeout(SOON).unwrap()).collect();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2]);
        let more = semaphore(&clients[0], &site, PERMITS as u32);
        assert!(more.try_acquire().unwrap().is_none());
        assert!(got_nothing(more.try_acquire_for(BRIEF)));
        assert!(grants.try_recv().is_err());
        // Not the first holder: any release is enough.
        drop(releasers.remove(1));
        assert_eq!(grants.recv_timeout(SOON), Ok(3));
        drop(releasers);
    });
    site.wait_for_children("a", 0);
    site.finish(clients);
}

#[test]
fn s56_many_permits_are_had_all_at_once_or_not_at_all() {
    skip_without_zookeeper!();
    let site = Site::shared("s56");
    let zk = site.client();
    let semaphore = semaphore(&zk, &site, 3);
    let two = semaphore.acquire_many(2).unwrap();
    assert!(last(two.path()).contains("-lease-2-of-3-"), "{two:?}");
    assert_eq!(site.children("a").len(), 1, "one node for all of them");
    assert!(semaphore.try_acquire_many(2).unwrap().is_none());
    assert!(got_nothing(semaphore.acquire_many_within(3, BRIEF)));
    assert!(got_nothing(semaphore.acquire_many_within(2, Instant::now())));
    site.wait_for_only("a", two.path());
    let one = semaphore.try_acquire_many(1).unwrap().expect("one is left");
    drop(one);
    site.wait_for_only("a", two.path());

    let (granted, grants) = mpsc::channel();
    thread::scope(|scope| {
        let (semaphore, others) = (&semaphore, granted.clone());
        scope.spawn(move || {
            let all = semaphore.acquire_many(3).unwrap();
            granted.send("all").unwrap();
            drop(all);
        });
        site.wait_for_children("a", 2);
        // One permit is free, but an earlier contender waits for it.
        assert!(semaphore.try_acquire().unwrap().is_none());
        scope.spawn(move || {
            let one = semaphore.acquire().unwrap();
            others.send("one").unwrap();
            drop(one);
        });
        site.wait_for_children("a", 3);
        assert!(grants.try_recv().is_err());
        two.ensure_held().unwrap();
        two.release().unwrap();
        assert_eq!(grants.iter().collect::<Vec<_>>(), ["all", "one"]);
    });
    drop(semaphore);
    site.finish([zk]);
}

#[test]
fn s56_no_permits_or_more_than_there_are_are_refused_before_anything_is_asked() {
    skip_without_server!();
    let site = Site::own("s56-bounds");
    let (proxy, zk) = site.proxied(QUIET);
    for (permits, wanted) in [(3, 0), (3, 4), (1, 2), (0, 0), (0, 1), (1, u32::MAX)] {
        let semaphore = semaphore(&zk, &site, permits);
        let errors = [
            semaphore.acquire_many(wanted).unwrap_err(),
            semaphore.acquire_many_within(wanted, &Cancel::new()).unwrap_err(),
            semaphore.try_acquire_many(wanted).unwrap_err(),
            semaphore.acquire_many_within(wanted, SOON).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wanted} of {permits}: {error}");
            assert_eq!(error.path(), Some(&*format!("{}/a", site.base)));
            assert!(!error.is_retryable());
        }
    }
    assert_eq!(proxy.requests(), []);
    // The largest possible semaphore.
    let most = semaphore(&zk, &site, u32::MAX);
    let all = most.acquire_many(u32::MAX).unwrap();
    assert!(most.try_acquire().unwrap().is_none());
    drop(all);
    let most_of_them = most.acquire_many(u32::MAX - 1).unwrap();
    assert!(most.try_acquire_many(2).unwrap().is_none());
    assert!(most.try_acquire().unwrap().is_some());
    drop((most, most_of_them));
    site.finish([zk]);
}

/// Three hold one permit each and two wait; any holder may release first.
#[test]
fn s57_the_right_waiter_wakes_whichever_holder_releases() {
    skip_without_server!();
    let site = Site::own("s57");
    let zk = site.client();
    let semaphore = semaphore(&zk, &site, 3);
    for first in 0..3 {
        for second in 0..2 {
            let case = format!("{first}, then {second}");
            let mut holders: Vec<Permit> = (0..3).map(|_| semaphore.acquire().unwrap()).collect();
            let waiters = [(); 2].map(|()| site.proxied(QUIET));
            let (granted, grants) = mpsc::channel();
            thread::scope(|scope| {
                for (number, (proxy, zk)) in waiters.iter().enumerate() {
                    let granted = granted.clone();
                    let site = &site;
                    scope.spawn(move || {
                        let permit = self::semaphore(zk, site, 3).try_acquire_for(2 * SOON);
                        let permit = permit.unwrap().expect("in time");
                        granted.send((number, permit)).unwrap();
                    });
                    assert!(proxy.wait_for_watches(3, SOON), "{case}: watches");
                }
                let before = waiters[1].0.total_requests();
                holders.remove(first).release().unwrap();
                let (number, one) = grants.recv_timeout(SOON).expect(&case);
                assert_eq!(number, 0, "{case}");
                // The other waiter watches the last three before it: one of them must go before
                // its turn can come.
                if first == 0 {
                    assert_eq!(waiters[1].0.total_requests(), before, "{case}: woken for nothing");
                }
                assert!(grants.try_recv().is_err(), "{case}");
                holders.remove(second).release().unwrap();
                let (number, two) = grants.recv_timeout(SOON).expect(&case);
                assert_eq!(number, 1, "{case}");
                drop((one, two));
            });
            drop(holders);
            site.wait_for_children("a", 0);
            for (_, zk) in waiters {
                zk.close();
            }
        }
    }
    drop(semaphore);
    site.finish([zk]);
}

#[test]
fn s57_of_unequal_holders_too() {
    skip_without_server!();
    let site = Site::own("s57-unequal");
    // Without heartbeats, which would make it look for missed events.
    let (_proxy, zk) = site.proxied(QUIET);
    let semaphore = semaphore(&zk, &site, 6);
    // Two permits are free once the second holder has released, or both others.
    let weights = [1, 4, 1];
    for order in [[1, 0, 2], [0, 2, 1], [2, 0, 1], [2, 1, 0]] {
        let mut holders: Vec<Option<Permit>> =
            weights.map(|weight| Some(semaphore.acquire_many(weight).unwrap())).into();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| semaphore.acquire_many_within(2, SOON).unwrap());
            site.wait_for_children("a", 4);
            let mut free = 0;
            for (place, weight) in order.map(|place| (place, weights[place])) {
                assert!(!waiter.is_finished() || free >= 2, "{order:?}");
                let permit = holders[place].take().unwrap();
                free += weight;
                permit.release().unwrap();
                if free >= 2 {
                    eventually(SOON, "the waiter to be admitted", || waiter.is_finished());
                }
            }
            let permit = waiter.join().unwrap();
            assert!(permit.is_some(), "{order:?}");
        });
    }
    drop(semaphore);
    site.finish([zk]);
}

#[test]
fn s58_another_count_revokes_nobody() {
    skip_without_zookeeper!();
    let site = Site::shared("s58");
    let zk = site.client();
    let three = semaphore(&zk, &site, 3);
    let holders = [(); 3].map(|()| three.acquire().unwrap());
    for permits in [1, 2, 4, u32::MAX] {
        assert_eq!(kind(semaphore(&zk, &site, permits).acquire()), ErrorKind::Conflict);
        holders.iter().for_each(|permit| permit.ensure_held().unwrap());
    }
    assert_eq!(site.children("a").len(), 3);
    drop(holders);
    // The number can be changed when no contender is left.
    let two = semaphore(&zk, &site, 2);
    let holders = [(); 2].map(|()| two.acquire().unwrap());
    assert!(two.try_acquire().unwrap().is_none());
    assert_eq!(kind(three.try_acquire()), ErrorKind::Conflict);
    drop((holders, two, three));
    site.finish([zk]);
}

#[test]
fn s59_giving_up_and_cancelling_leave_no_node() {
    skip_without_zookeeper!();
    let site = Site::shared("s59");
    let zk = site.client();
    let semaphore = semaphore(&zk, &site, 2);
    let mut holder = semaphore.acquire_many(2).unwrap();
    for weight in 1..=2 {
        assert!(semaphore.try_acquire_many(weight).unwrap().is_none());
        assert_eq!(site.children("a"), [last(holder.path())]);
        assert!(got_nothing(semaphore.acquire_many_within(weight, BRIEF)));
        site.wait_for_only("a", holder.path());
        let cancel = Cancel::new();
        holder = thread::scope(|scope| {
            let waiter = scope.spawn(|| kind(semaphore.acquire_many_within(weight, &cancel)));
            site.wait_for_children("a", 2);
            let next = scope.spawn(|| semaphore.acquire_many(2).unwrap());
            site.wait_for_children("a", 3);
            cancel.cancel();
            assert_eq!(waiter.join().unwrap(), ErrorKind::Cancelled);
            assert_eq!(site.children("a").len(), 2);
            // The waiter behind it goes on waiting, for the right node.
            assert!(!next.is_finished());
            holder.release().unwrap();
            next.join().unwrap()
        });
        assert_eq!(kind(semaphore.acquire_many_within(weight, &cancel)), ErrorKind::Cancelled);
        assert_eq!(site.children("a"), [last(holder.path())]);
    }
    drop(holder);
    site.wait_for_children("a", 0);
    drop(semaphore);
    site.finish([zk]);
}

#[test]
fn s60_when_a_waiters_node_is_deleted_it_queues_anew() {
    skip_without_zookeeper!();
    let site = Site::shared("s60");
    let zk = site.client();
    let semaphore = semaphore(&zk, &site, 3);
    let holder = semaphore.acquire_many(2).unwrap();
    let mut raw = site.raw();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire_many(2).unwrap());
        site.wait_for_children("a", 2);
        let theirs = semaphore.contenders().unwrap().remove(1).path;
        raw.delete(&theirs).unwrap();
        // The waiter notices only when it lists again, which it does when the holder goes.
        assert!(!waiter.is_finished());
        holder.release().unwrap();
        let permit = waiter.join().unwrap();
        assert_ne!(permit.path(), theirs);
        permit.ensure_held().unwrap();
        assert_eq!(site.children("a"), [last(permit.path())], "an orphaned node");
        permit.release().unwrap();
    });
    assert_eq!(site.children("a").len(), 0);

    // The same when the holder's node is deleted next.
    let holder = semaphore.acquire_many(3).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire().unwrap());
        site.wait_for_children("a", 2);
        let theirs = semaphore.contenders().unwrap().remove(1).path;
        raw.delete(&theirs).unwrap();
        raw.delete(holder.path()).unwrap();
        let permit = waiter.join().unwrap();
        assert_eq!(site.children("a"), [last(permit.path())]);
        assert!(matches!(holder.lost().wait_within(SOON), Some(Err(_))));
        permit.ensure_held().unwrap();
    });
    assert_eq!(kind(holder.release()), ErrorKind::NodeDeleted);
    raw.close().unwrap();
    drop(semaphore);
    site.finish([zk]);
}

#[test]
fn s60_when_a_holders_node_is_deleted_its_permits_are_free() {
    skip_without_zookeeper!();
    let site = Site::shared("s60-holder");
    let zk = site.client();
    let semaphore = semaphore(&zk, &site, 2);
    let [one, two] = [(); 2].map(|()| semaphore.acquire().unwrap());
    let (tell, told) = mpsc::channel();
    one.on_lost(move |why| tell.send(why).unwrap());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire().unwrap());
        site.wait_for_children("a", 3);
        site.raw().delete(one.path()).unwrap();
        let three = waiter.join().unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok(LossReason::NodeDeleted));
        assert!(!one.is_held());
        two.ensure_held().unwrap();
        drop(one);
        three.ensure_held().unwrap();
    });
    drop((two, semaphore));
    site.finish([zk]);
}

fn assert_disagreement(error: &Error, site: &Site, theirs: u32, ours: u32) {
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let (node, text) = (format!("{}/a", site.base), error.to_string());
    assert_eq!(error.path(), Some(&*node));
    let says = |number: u32| text.contains(&format!(" {number}"));
    assert!(text.contains(&node) && says(theirs) && says(ours), "{text}");
}

#[test]
fn s61_whoever_disagrees_about_the_count_gets_an_error_and_harms_nobody() {
    skip_without_zookeeper!();
    let site = Site::shared("s61");
    let clients = [site.client(), site.client()];
    let ours = semaphore(&clients[0], &site, 2);
    let theirs = semaphore(&clients[1], &site, 3);
    let holder = ours.acquire().unwrap();
    let fail = |holder: &Permit, waiting: usize| {
        let errors = [
            theirs.acquire().unwrap_err(),
            theirs.acquire_many(3).unwrap_err(),
            theirs.acquire_many_within(1, &Cancel::new()).unwrap_err(),
            theirs.try_acquire().unwrap_err(),
            theirs.try_acquire_for(SOON).unwrap_err(),
        ];
        for error in errors {
            assert_disagreement(&error, &site, 2, 3);
        }
        assert_eq!(site.children("a").len(), 1 + waiting, "they leave a node");
        holder.ensure_held().unwrap();
    };
    fail(&holder, 0);
    // The same behind a waiter, which goes on waiting.
    thread::scope(|scope| {
        let waiter = scope.spawn(|| ours.acquire_many(2).unwrap());
        site.wait_for_children("a", 2);
        fail(&holder, 1);
        assert!(!waiter.is_finished());
        let queue = ours.contenders().unwrap();
        assert_eq!(queue[1].weight, 2);
        holder.release().unwrap();
        waiter.join().unwrap().release().unwrap();
    });
    // They may start once no contender is left.
    let permits = theirs.acquire_many(3).unwrap();
    assert_disagreement(&ours.acquire().unwrap_err(), &site, 3, 2);
    permits.ensure_held().unwrap();
    drop((permits, ours, theirs));
    site.finish(clients);
}

/// A contender that agrees with the holders is not refused because of one before it that does not,
/// since that one will leave; nor is it admitted while that one might still become the first.
#[test]
fn s61_whoever_agrees_with_the_holders_is_not_refused_for_another_who_does_not() {
    skip_without_zookeeper!();
    let site = Site::shared("s61-between");
    let zk = site.client();
    let semaphore = semaphore(&zk, &site, 2);
    let mut raw = site.raw();
    let holder = semaphore.acquire().unwrap();
    let odd = intrude(&mut raw, &site, 1, 3);
    assert!(semaphore.try_acquire().unwrap().is_none());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire());
        site.wait_for_children("a", 3);
        raw.delete(&odd).unwrap();
        let permit = waiter.join().unwrap().expect("it agrees with the holder");
        holder.ensure_held().unwrap();
        permit.ensure_held().unwrap();
        permit.release().unwrap();

        // Here the holder goes first, so the other contender holds.
        let odd = intrude(&mut raw, &site, 1, 3);
        let waiter = scope.spawn(|| semaphore.acquire());
        site.wait_for_children("a", 3);
        holder.release().unwrap();
        assert_disagreement(&semaphore.try_acquire().unwrap_err(), &site, 3, 2);
        // The waiter waits for the other contender, and either result is correct.
        raw.delete(&odd).unwrap();
        match waiter.join().unwrap() {
            Ok(permit) => permit.release().unwrap(),
            Err(error) => assert_disagreement(&error, &site, 3, 2),
        }
    });
    assert_eq!(site.children("a").len(), 0);
    raw.close().unwrap();
    drop(semaphore);
    site.finish([zk]);
}

/// They come and go all the time, and their short-lived nodes block other contenders only briefly.
#[test]
fn s61_a_stream_of_those_who_disagree_costs_nobody_a_permit() {
    skip_without_zookeeper!();
    let site = Site::shared("s61-stream");
    let clients = [site.client(), site.client()];
    let (ours, theirs) = (semaphore(&clients[0], &site, 3), semaphore(&clients[1], &site, 2));
    let keeper = ours.acquire().unwrap();
    let (rounds, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                // Also ends if the contenders that agree are stuck or have failed.
                while rounds.load(Ordering::SeqCst) < 60 && start.elapsed() < 3 * SOON {
                    assert_eq!(kind(theirs.acquire()), ErrorKind::Conflict);
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                while rounds.fetch_add(1, Ordering::SeqCst) < 60 {
                    let permit = ours.try_acquire_for(SOON).unwrap().expect("a permit in time");
                    permit.release().unwrap();
                }
            });
        }
    });
    println!("{} were refused", refused.load(Ordering::SeqCst));
    keeper.release().unwrap();
    assert_eq!(site.children("a").len(), 0);
    drop((ours, theirs));
    site.finish(clients);
}

#[test]
fn s61_a_lock_on_a_semaphores_node_and_a_permit_exclude_each_other() {
    skip_without_zookeeper!();
    let site = Site::shared("s61-lock");
    let zk = site.client();
    let (semaphore, lock) = (semaphore(&zk, &site, 5), mutex(&zk, &site.base, "a"));
    let permit = semaphore.acquire().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    drop(permit);
    let guard = lock.lock().unwrap();
    assert!(semaphore.try_acquire().unwrap().is_none());
    drop(guard);
    drop((semaphore, lock));
    site.finish([zk]);
}

/// An observer's number may be wrong; the holders have agreed on theirs.
#[test]
fn s61_whoever_looks_on_with_another_count_sees_and_asks_all_who_hold() {
    skip_without_zookeeper!();
    let site = Site::shared("s61-looks");
    let zk = site.client();
    let right = semaphore(&zk, &site, 3);
    let permits = [(); 3].map(|()| right.acquire().unwrap());
    for count in [1, 2, 9] {
        let wrong = semaphore(&zk, &site, count);
        let seen = wrong.observe().next_within(SOON).unwrap().expect("holders");
        assert_eq!(seen.len(), permits.len(), "{count}");
        assert_eq!(wrong.request_release().unwrap(), permits.len(), "{count}");
    }
    drop((permits, right));
    site.finish([zk]);
}

#[test]
fn s62_when_a_holders_session_dies_its_permits_are_free() {
    skip_without_server!();
    let site = Site::own("s62");
    let zk = site.client();
    let (proxy, other) = site.proxied(Duration::from_secs(3));
    let ours = semaphore(&zk, &site, 3);
    let theirs = semaphore(&other, &site, 3);
    let kept = ours.acquire().unwrap();
    let lost = theirs.acquire_many(2).unwrap();
    let (tell, told) = mpsc::channel();
    lost.on_lost(move |why| tell.send(why).unwrap());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| ours.acquire_many(2).unwrap());
        site.wait_for_children("a", 3);
        proxy.black_hole();
        let permits = waiter.join().unwrap();
        assert!(!lost.is_held(), "more permits are held than there are");
        assert_eq!(told.recv_timeout(SOON), Ok(LossReason::LeaseExpired));
        permits.ensure_held().unwrap();
        proxy.pass();
        assert_eq!(kind(lost.release()), ErrorKind::SessionLost);
        permits.release().unwrap();
    });
    // After that it can acquire permits again.
    theirs.acquire_many(2).unwrap().release().unwrap();
    drop((kept, ours, theirs));
    site.finish([zk, other]);
}

#[test]
fn s63_trying_behind_one_who_waits_for_ever_returns_promptly() {
    skip_without_zookeeper!();
    let site = Site::shared("s63");
    let zk = site.client();
    let semaphore = semaphore(&zk, &site, 3);
    let holder = semaphore.acquire().unwrap();
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| kind(semaphore.acquire_many_within(3, &cancel)));
        site.wait_for_children("a", 2);
        let start = Stopwatch::start();
        assert!(semaphore.try_acquire().unwrap().is_none());
        assert!(semaphore.try_acquire_many(2).unwrap().is_none());
        assert!(got_nothing(semaphore.try_acquire_for(BRIEF)));
        assert!(start.took().within(Duration::from_secs(3)), "{:?}", start.took());
        cancel.cancel();
        assert_eq!(waiter.join().unwrap(), ErrorKind::Cancelled);
    });
    // No waiter is in the way any more.
    site.wait_for_only("a", holder.path());
    let others = semaphore.try_acquire_many(2).unwrap();
    assert!(others.is_some());
    drop((holder, others, semaphore));
    site.finish([zk]);
}

#[test]
fn s69_contenders_for_permits_are_listed_with_their_weights() {
    skip_without_zookeeper!();
    let site = Site::shared("s69-semaphore");
    let zk = site.client();
    let semaphore = DistributedSemaphore::new(&zk, &site.base, "a", 4).data("job 7");
    let holders = [1, 3].map(|weight| semaphore.acquire_many(weight).unwrap());
    let mut raw = site.raw();
    intrude(&mut raw, &site, 4, 4);
    // Names that only look like a permit's.
    for name in ["lease-0-of-4-0000000009", "lease-5-of-4-0000000009", "lease-1-0000000009"] {
        raw.create(&format!("{}/a/{name}", site.base), b"", Kind::Ephemeral).unwrap();
    }
    let listed = semaphore.contenders().unwrap();
    assert_eq!(listed.iter().map(|one| one.weight).collect::<Vec<_>>(), [1, 3, 4]);
    assert!(listed.iter().all(|one| one.kind == ContenderKind::Permits), "{listed:?}");
    let paths: Vec<_> = listed.iter().map(|one| &*one.path).collect();
    assert_eq!(paths[..2], [holders[0].path(), holders[1].path()]);
    let sessions: Vec<_> = listed.iter().filter_map(|one| one.session).collect();
    let own = zk.session_id().unwrap();
    assert_eq!(sessions, [own, own, raw.session().into()]);
    assert_eq!(listed[0].label(), "job 7");
    raw.close().unwrap();
    drop((holders, semaphore));
    site.finish([zk]);
}

/// Permits of every weight, in many threads: never more are held than there are, and each thread
/// gets its turn.
#[test]
fn s55_of_many_threads_never_do_more_hold_than_there_are_permits() {
    skip_without_zookeeper!();
    const PERMITS: u32 = 5;
    const THREADS: usize = 9;
    let site = Site::shared("s55-many");
    let clients = [site.client(), site.client(), site.client()];
    let (taken, most, start) = (AtomicU32::new(0), AtomicU32::new(0), Barrier::new(THREADS));
    thread::scope(|scope| {
        for number in 0..THREADS {
            let semaphore = semaphore(&clients[number % 3], &site, PERMITS);
            let (taken, most, start) = (&taken, &most, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..20 {
                    let weight = 1 + (number as u32 * 7 + round * 3) % PERMITS;
                    let permits = semaphore.acquire_many(weight).unwrap();
                    let now = taken.fetch_add(weight, Ordering::SeqCst) + weight;
                    assert!(now <= PERMITS, "{now} of {PERMITS}");
                    most.fetch_max(now, Ordering::SeqCst);
                    thread::yield_now();
                    assert!(permits.is_held());
                    taken.fetch_sub(weight, Ordering::SeqCst);
                    drop(permits);
                }
            });
        }
    });
    println!("at most {} of {PERMITS} at a time", most.into_inner());
    site.wait_for_children("a", 0);
    site.finish(clients);
}

#[test]
fn s36_a_permit_whose_create_had_no_answer_is_adopted() {
    skip_without_server!();
    let site = Site::own("s36-permit");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    site.raw().create_all(&format!("{}/a", site.base)).unwrap();
    let semaphore = semaphore(&zk, &site, 3);
    // Otherwise the client would open another session.
    let kept = mutex(&zk, &site.base, "kept").lock().unwrap();
    for count in [1, 3] {
        proxy.reset_counts();
        proxy.drop_reply_on(opcode::CREATE, "-lease-", count);
        let permits = semaphore.acquire_many(2).unwrap();
        assert_eq!(proxy.count(opcode::CREATE), 1, "made twice");
        assert_eq!(site.children("a"), [last(permits.path())]);
        proxy.pass();
        permits.ensure_held().unwrap();
        proxy.drop_reply_on(opcode::DELETE, "-lease-", count);
        permits.release().unwrap();
        assert_eq!(site.children("a").len(), 0);
        proxy.pass();
    }
    kept.unlock().unwrap();
    drop(semaphore);
    site.finish([zk]);
}

#[test]
fn values_of_the_semaphore_can_be_shared_and_sent() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<DistributedSemaphore>();
    anywhere::<Permit>();
}
