use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Cancel, Client, DistributedLock, ErrorKind, FencingToken, LockGuard};

use crate::support::raw::Kind;
use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::{eventually, mutex, skip_without_server, skip_without_zookeeper, strict};

/// No number this close to the last one is granted.
const MARGIN: i32 = 1 << 16;
const LAST_GOOD: i32 = i32::MAX - MARGIN;
const LONG: Duration = Duration::from_secs(15);

/// A server on which the next contender for the lock `a` gets the number `next`.
fn site_at(test: &str, next: i32) -> (Site, Client) {
    let base = "/zklock-test/at-the-end";
    let mut site = Site::with(test, &Server::builder().sequence(format!("{base}/a"), next));
    base.clone_into(&mut site.base);
    let zk = site.client();
    (site, zk)
}

fn number(guard: &LockGuard) -> i32 {
    let path = guard.path();
    let digits = path.bytes().rev().take_while(u8::is_ascii_digit).count();
    path[path.len() - digits..].parse().unwrap()
}

fn fails_as_exhausted<T: std::fmt::Debug>(result: zklock::Result<T>) {
    let error = result.expect_err("a number at the end of the range was granted");
    assert_eq!(error.kind(), ErrorKind::SequenceExhausted, "{error}");
    assert!(error.path().is_some_and(|path| path.ends_with("/a")), "{error}");
    assert!(error.is_retryable());
}

#[test]
fn s44_the_last_good_number_is_granted_and_the_next_is_not() {
    skip_without_server!();
    let (site, zk) = site_at("s44-margin", LAST_GOOD);
    let lock = strict(&zk, &site.base, "a");
    let last = lock.lock().unwrap();
    assert_eq!(number(&last), LAST_GOOD);
    fails_as_exhausted(lock.try_lock_for(LONG));
    fails_as_exhausted(lock.try_lock());
    // The holder is not affected, and its node keeps the lock node in place.
    last.ensure_held().unwrap();
    assert_eq!(site.children("a").len(), 1);
    let token = last.fencing_token();
    last.unlock().unwrap();

    fails_as_exhausted(lock.lock());
    assert!(site.raw().exists(&format!("{}/a", site.base)).unwrap().is_none());
    let first = lock.lock().unwrap();
    assert_eq!(number(&first), 0);
    assert!(first.fencing_token() > token);
    assert!(first.fencing_token().to_string() > token.to_string());
    drop((first, lock));
    site.finish([zk]);
}

#[test]
fn s44_in_a_waiting_room_numbers_at_the_end_are_refused_and_begin_anew_when_it_is_empty() {
    skip_without_server!();
    let base = "/zklock-test/at-the-end";
    let room = format!("{base}/_zklock_room_a");
    let mut site = Site::with("s44-room", &Server::builder().sequence(&room, LAST_GOOD));
    base.clone_into(&mut site.base);
    let zk = site.client();
    let lock = strict(&zk, &site.base, "a").patience(1_000_000);
    let guard = lock.lock().unwrap();
    site.wait_for_children("_zklock_room_a", 0);
    let error = lock.try_lock().expect_err("a place at the end of the numbers");
    assert_eq!(error.kind(), ErrorKind::SequenceExhausted, "{error}");
    assert_eq!(error.path(), Some(&*room));
    // The room was empty, so it was deleted, and numbers begin anew.
    assert!(lock.try_lock().unwrap().is_none());
    guard.ensure_held().unwrap();
    drop((guard, lock));
    site.finish([zk]);
}

#[test]
fn s44_a_spent_number_is_never_granted_however_asked_for() {
    skip_without_server!();
    // The last numbers of the range, and the first of those that the server repeats.
    for first in [LAST_GOOD + 1, i32::MAX - 1, i32::MAX] {
        let (site, zk) = site_at("s44-spent", first - 1);
        let lock = mutex(&zk, &site.base, "a");
        let node = format!("{}/a", site.base);
        // A child that is not a contender keeps the lock node and its numbering. It takes one
        // number.
        site.raw().create(&format!("{node}/foreign"), b"", Kind::Persistent).unwrap();
        for _ in 0..2 {
            fails_as_exhausted(lock.lock());
            fails_as_exhausted(lock.try_lock());
            fails_as_exhausted(lock.try_lock_for(LONG));
            fails_as_exhausted(lock.lock_within(&Cancel::new()));
            assert_eq!(site.children("a"), ["foreign"]);
        }
        site.raw().delete(&format!("{node}/foreign")).unwrap();
        fails_as_exhausted(lock.lock());
        assert!(site.raw().exists(&node).unwrap().is_none());
        assert_eq!(number(&lock.lock().unwrap()), 0);
        drop(lock);
        site.finish([zk]);
    }
}

#[test]
fn s44_negative_numbers_are_never_granted() {
    skip_without_server!();
    let (site, zk) = site_at("s44-negative", i32::MIN + 5);
    let lock = mutex(&zk, &site.base, "a");
    fails_as_exhausted(lock.lock());
    assert_eq!(number(&lock.lock().unwrap()), 0);
    drop(lock);
    site.finish([zk]);
}

#[test]
fn s44_a_foreign_contender_keeps_the_lock_node() {
    skip_without_server!();
    let (site, zk) = site_at("s44-foreign", i32::MAX - 3);
    let lock = mutex(&zk, &site.base, "a");
    let node = format!("{}/a", site.base);
    let mut foreign = site.raw();
    let theirs = foreign
        .create(
            &format!("{node}/_c_11111111-2222-3333-4444-555555555555-lock-"),
            b"",
            Kind::EphemeralSequential,
        )
        .unwrap();
    fails_as_exhausted(lock.lock());
    assert_eq!(site.children("a").len(), 1);
    assert!(foreign.exists(&theirs).unwrap().is_some());
    foreign.close().unwrap();
    fails_as_exhausted(lock.lock());
    assert_eq!(number(&lock.lock().unwrap()), 0);
    drop(lock);
    site.finish([zk]);
}

const THREADS: usize = 8;

/// Calls once in each thread, all at once; returns the results and the most holders at one time.
fn all_at_once(
    site: &Site,
    clients: &[Client],
    lock: fn(&Client, &str) -> DistributedLock,
) -> (Vec<zklock::Result<i32>>, usize) {
    let (start, inside, most) = (Barrier::new(THREADS), AtomicUsize::new(0), AtomicUsize::new(0));
    let call = |client: &Client| {
        let lock = lock(client, &site.base);
        start.wait();
        let guard = lock.try_lock_for(LONG)?.expect("the lock in time");
        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::yield_now();
        let number = number(&guard);
        inside.fetch_sub(1, Ordering::SeqCst);
        guard.unlock()?;
        Ok(number)
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|which| scope.spawn(move || call(&clients[which % clients.len()])))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (results, most.into_inner())
}

#[test]
fn s44_many_at_once_at_the_end_all_fail() {
    skip_without_server!();
    let (site, zk) = site_at("s44-many", i32::MAX - 7);
    let clients = [zk, site.client()];
    let foreign = format!("{}/a/foreign", site.base);
    site.raw().create(&foreign, b"", Kind::Persistent).unwrap();
    for _ in 0..3 {
        let (results, most) = all_at_once(&site, &clients, |zk, base| strict(zk, base, "a"));
        assert_eq!(most, 0);
        results.into_iter().for_each(fails_as_exhausted);
        eventually(LONG, "the last contender to go", || site.children("a") == ["foreign"]);
    }
    site.raw().delete(&foreign).unwrap();
    fails_as_exhausted(mutex(&clients[0], &site.base, "a").lock());
    let (results, most) = all_at_once(&site, &clients, |zk, base| strict(zk, base, "a"));
    assert_eq!(most, 1);
    let mut numbers: Vec<i32> = results.into_iter().map(Result::unwrap).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..THREADS as i32).collect::<Vec<_>>());
    site.finish(clients);
}

#[test]
fn s44_the_lock_node_is_renewed_under_a_crowd() {
    skip_without_server!();
    let (site, zk) = site_at("s44-crowd", i32::MAX - 7);
    let clients = [zk, site.client()];
    let mut failures = 0;
    // The first calls that fail remove the lock node; the others may then be admitted.
    loop {
        let (results, most) = all_at_once(&site, &clients, |zk, base| mutex(zk, base, "a"));
        assert!(most <= 1, "{most} holders at once");
        let failed = results.iter().filter(|result| result.is_err()).count();
        for result in results {
            match result {
                Ok(number) => assert!((0..1000).contains(&number), "{number} was granted"),
                failed => fails_as_exhausted(failed),
            }
        }
        failures += failed;
        if failed == 0 {
            break;
        }
    }
    assert!(failures > 0);
    site.finish(clients);
}

#[test]
fn s45_tokens_grow_though_the_lock_node_is_made_anew() {
    skip_without_zookeeper!();
    let site = Site::shared("s45");
    let zk = site.client();
    let lock = mutex(&zk, &site.base, "a");
    let node = format!("{}/a", site.base);
    let mut before: Option<FencingToken> = None;
    for round in 0..5 {
        for expected in 0..2 {
            let guard = lock.lock().unwrap();
            assert_eq!(number(&guard), expected, "round {round}");
            let token = guard.fencing_token();
            let stat = site.raw().exists(guard.path()).unwrap().unwrap();
            assert_eq!(token.zxid(), stat.czxid as u64);
            assert_eq!(token.to_string().parse::<FencingToken>().unwrap(), token);
            if let Some(before) = before.replace(token) {
                assert!(token > before, "{token} after {before}");
                assert!(token.to_string() > before.to_string());
            }
            // Another connection deletes the parent, so the node has to be gone.
            guard.unlock().unwrap();
        }
        site.raw().delete(&node).unwrap();
    }
    drop(lock);
    site.finish([zk]);
}
