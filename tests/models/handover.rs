//! Threads that share a contender's node.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::lock::{Holders, NODE, assert_no_contender_is_left, client, if_answered, world};
use super::{explore, join, threads, until};
use crate::contend::HandOver;
use crate::error::ErrorKind;
use crate::recipes::DistributedLock;
use crate::rt::shuttled::one_in;
use crate::session::{Cancel, Client};

/// Longer than any model takes.
const LONG: Duration = Duration::from_secs(3600);

fn lock_of(client: &Client, turns: u32) -> DistributedLock {
    let within = HandOver::Within { turns, time: LONG };
    DistributedLock::new(client, "/locks", "one").data(b"").hand_over(within)
}

#[test]
fn it_goes_from_one_to_the_other() {
    explore(|| {
        let world = world();
        let (client, holders) = (client(&world), Holders::default());
        let lock = lock_of(&client, 64);
        let contenders = threads(3, move |number| {
            for _ in 0..1 + number % 2 {
                let guard = holders.hold(lock.lock().unwrap());
                if number == 0 { drop(guard) } else { guard.unlock().unwrap() }
            }
        });
        join(contenders);
        assert_no_contender_is_left(&world, &client);
        client.close();
        || ()
    });
}

/// Locks on the same path share one node, even if created and dropped at the same time.
#[test]
fn equal_locks_made_at_once_are_one() {
    explore(|| {
        let world = world();
        let (client, holders) = (client(&world), Holders::default());
        let sharer = client.clone();
        join(threads(3, move |_| {
            let lock = lock_of(&sharer, 64);
            drop(holders.hold(lock.lock().unwrap()));
        }));
        assert_no_contender_is_left(&world, &client);
        client.close();
        || ()
    });
}

#[test]
fn who_gives_up_leaves_his_place_to_the_next() {
    explore(|| {
        let world = world();
        let (client, holders) = (client(&world), Holders::default());
        let (lock, cancel) = (lock_of(&client, 64), Cancel::new());
        let token = cancel.clone();
        let contenders = threads(4, move |number| {
            let guard = match number {
                0 => Some(lock.lock().unwrap()),
                1 => if_answered(lock.try_lock_for(Duration::from_millis(1))),
                2 => if_answered(lock.try_lock()),
                _ => match lock.lock_within(&token) {
                    Ok(guard) => Some(guard.expect("a wait without a limit")),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Cancelled);
                        None
                    }
                },
            };
            drop(guard.map(|guard| holders.hold(guard)));
        });
        cancel.cancel();
        join(contenders);
        assert_no_contender_is_left(&world, &client);
        client.close();
        || ()
    });
}

/// Threads that wait for a sibling go on when that sibling's node is gone.
#[test]
fn a_loss_holds_up_nobody() {
    explore(|| {
        let world = world();
        let (client, holders) = (client(&world), Holders::default());
        let lock = lock_of(&client, 64);
        let done = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&done);
        let contenders = threads(3, move |_| {
            drop(holders.hold(lock.lock().unwrap()));
            counts.fetch_add(1, SeqCst);
        });
        if one_in(2) {
            until(|| world.nodes().len() > 3 || done.load(SeqCst) == 3);
        }
        for node in world.nodes().iter().filter(|node| node.len() > NODE.len()) {
            world.remove(node);
        }
        world.reconnect();
        join(contenders);
        assert_no_contender_is_left(&world, &client);
        client.close();
        || ()
    });
}

/// The holder keeps its guard until its siblings have held the lock with another node.
#[test]
fn siblings_do_not_wait_for_the_guard_of_a_lost_lock() {
    explore(|| {
        let world = world();
        let client = client(&world);
        let lock = lock_of(&client, 64);
        let guard = lock.lock().unwrap();
        let path = guard.path().to_owned();
        let contenders = threads(2, move |_| drop(lock.lock().unwrap()));
        if one_in(2) {
            world.remove(&path);
        } else {
            world.expire();
        }
        join(contenders);
        assert!(!guard.is_held());
        drop(guard);
        assert_no_contender_is_left(&world, &client);
        client.close();
        || ()
    });
}

#[test]
fn others_have_their_turn() {
    explore(|| {
        let (world, holders) = (world(), Holders::default());
        let clients = [client(&world), client(&world)];
        let locks = clients.each_ref().map(|client| lock_of(client, 1));
        let contenders = threads(4, move |number| {
            drop(holders.hold(locks[number % 2].lock().unwrap()));
        });
        if one_in(3) {
            world.expire();
        }
        join(contenders);
        until(|| world.nodes().len() == 3);
        drop(clients);
        || ()
    });
}

#[test]
fn what_is_kept_is_let_go_for_others_and_in_the_end() {
    explore(|| {
        let (world, holders) = (world(), Holders::default());
        let clients = [client(&world), client(&world)];
        let keep = if one_in(2) { LONG } else { Duration::from_millis(1) };
        let keeps = lock_of(&clients[0], 64).keep_for(keep);
        let locks = [keeps, lock_of(&clients[1], 64)];
        let contenders = threads(3, move |number| {
            for _ in 0..2 - number % 2 {
                drop(holders.hold(locks[number % 2].lock().unwrap()));
            }
        });
        join(contenders);
        until(|| world.nodes().len() == 3);
        drop(clients);
        || ()
    });
}

#[test]
fn a_close_ends_every_wait() {
    explore(|| {
        let world = world();
        let client = client(&world);
        let lock = lock_of(&client, 64).keep_for(LONG);
        let contenders = threads(3, move |number| match lock.lock() {
            Ok(guard) if number == 0 => assert!(matches!(guard.lost().wait(), Err(_))),
            Ok(guard) => drop(guard),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{error:?}"),
        });
        if one_in(2) {
            until(|| world.nodes().len() > 3);
        }
        client.close();
        join(contenders);
        let left = Arc::clone(&world);
        move || assert_eq!(left.nodes(), ["/", "/locks", NODE])
    });
}
