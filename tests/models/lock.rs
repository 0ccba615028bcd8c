use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::connection::Servers;
use super::ensemble::{Troubles, World};
use super::{explore, join, threads, until};
use crate::contend::HandOver;
use crate::error::{ErrorKind, Result};
use crate::fencing::FencingToken;
use crate::recipes::{DistributedLock, LockGuard};
use crate::rt::Mutex;
use crate::rt::shuttled::one_in;
use crate::session::{Cancel, Client};

pub(super) const NODE: &str = "/locks/one";

pub(super) fn client(world: &Arc<World>) -> Client {
    Client::with(Box::new(Servers(Arc::clone(world))), "test".to_owned(), String::new())
}

fn lock(client: &Client) -> DistributedLock {
    let builder = DistributedLock::new(client, "/locks", "one").data(b"");
    builder.hand_over(HandOver::Off)
}

pub(super) fn world() -> Arc<World> {
    let world = World::new(Troubles::default());
    for path in ["/locks", NODE] {
        world.make(path);
    }
    world
}

/// The guards that are held at the moment.
#[derive(Clone, Default)]
pub(super) struct Holders(Arc<Mutex<Held>>);

#[derive(Default)]
pub(super) struct Held {
    guards: Vec<Arc<LockGuard>>,
    latest: Option<FencingToken>,
}

impl Holders {
    /// Holds for a moment and returns the guard.
    pub(super) fn hold(&self, guard: LockGuard) -> LockGuard {
        let guard = Arc::new(guard);
        {
            let mut held = self.0.lock();
            // The lock may be lost already, and granted to others since.
            if guard.is_held() {
                let others = held.guards.iter().filter(|other| other.is_held()).count();
                assert_eq!(others, 0, "two guards are held at once");
                let token = Some(guard.fencing_token());
                assert!(held.latest < token, "the token is not above the last one");
                held.latest = token;
                held.guards.push(Arc::clone(&guard));
            }
        }
        // Each look lets other threads run, which might take the lock as well.
        for _ in 0..32 {
            guard.is_held();
        }
        self.0.lock().guards.retain(|other| !Arc::ptr_eq(other, &guard));
        Arc::into_inner(guard).unwrap()
    }
}

/// Waits until no contender is left although the session goes on. The node of a caller that gave up
/// may be created late, and is then deleted.
pub(super) fn assert_no_contender_is_left(world: &World, client: &Client) {
    until(|| client.stats().pending_deletes == 0 && world.nodes().len() == 3);
    assert_eq!(world.nodes(), ["/", "/locks", NODE]);
}

#[test]
fn all_who_want_it_hold_it_one_after_the_other() {
    explore(|| {
        let world = world();
        let (client, holders) = (client(&world), Holders::default());
        let lock = lock(&client);
        join(threads(3, move |number| {
            let guard = holders.hold(lock.lock().unwrap());
            if number == 0 { drop(guard) } else { guard.unlock().unwrap() }
        }));
        until(|| world.nodes().len() == 3);
        client.close();
        || ()
    });
}

#[test]
fn reconnections_lose_no_wake_up_and_leave_no_node() {
    explore(|| {
        let world = world();
        let (client, holders) = (client(&world), Holders::default());
        let lock = lock(&client);
        let contenders = threads(2, move |number| {
            let guard = holders.hold(lock.lock().unwrap());
            if number == 0 { drop(guard) } else { guard.unlock().unwrap() }
        });
        world.reconnect();
        world.reconnect();
        join(contenders);
        until(|| world.nodes().len() == 3);
        client.close();
        || ()
    });
}

/// Calls with a deadline or a cancel token run on workers; a call without a grant leaves no node.
/// The guard, if the call got one; it may have had no answer in time.
pub(super) fn if_answered(tried: Result<Option<LockGuard>>) -> Option<LockGuard> {
    tried.unwrap_or_else(|error| {
        assert_eq!(error.kind(), ErrorKind::Connect);
        None
    })
}

#[test]
fn who_gives_up_leaves_no_node_and_blocks_nobody() {
    explore(|| {
        let world = world();
        let (client, holders) = (client(&world), Holders::default());
        let (lock, cancel) = (lock(&client), Cancel::new());
        let token = cancel.clone();
        let contenders = threads(3, move |number| {
            let guard = match number {
                0 => Some(lock.lock().unwrap()),
                1 => if_answered(lock.try_lock_for(Duration::from_millis(1))),
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

#[test]
fn an_expiry_ends_holds_and_starts_waits_anew() {
    explore(|| {
        let (world, holders) = (world(), Holders::default());
        let clients = [client(&world), client(&world)];
        let locks = clients.each_ref().map(lock);
        let contenders =
            threads(2, move |number| drop(holders.hold(locks[number].lock().unwrap())));
        // This ends the session of either client.
        world.expire();
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
        let lock = lock(&client);
        let contenders = threads(3, move |number| match lock.lock() {
            // The other threads wait behind this one.
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

/// A loss is reported once to each callback and waiter, unless the release comes first.
#[test]
fn a_loss_is_told_once_or_not_at_all() {
    explore(|| {
        let world = world();
        let client = client(&world);
        let guard = lock(&client).lock().unwrap();
        let (told, path) = (Arc::new(AtomicU64::new(0)), guard.path().to_owned());
        for _ in 0..2 {
            let told = Arc::clone(&told);
            guard.on_lost(move |_| {
                told.fetch_add(1, SeqCst);
            });
        }
        let lost = guard.lost();
        let waits = threads(2, move |_| lost.wait());
        let meddling = Arc::clone(&world);
        let meddler =
            threads(
                2,
                move |number| {
                    if number == 0 { meddling.remove(&path) } else { meddling.reconnect() }
                },
            );
        let releaser = threads(1, {
            let guard = Mutex::new(Some(guard));
            let guard = Arc::new(guard);
            move |_| drop(guard.lock().take())
        });
        join(meddler);
        join(releaser);
        let seen = join(waits);
        client.close();
        move || {
            let told = told.load(SeqCst);
            assert!(told <= 2, "2 callbacks were called {told} times");
            if told > 0 {
                assert!(
                    seen.iter().all(|end| *end != Ok(())),
                    "{seen:?}, but {told} callbacks ran"
                );
            }
        }
    });
}

/// A holder hears of its node's removal, even around a reconnect.
#[test]
fn a_node_that_is_removed_is_lost() {
    explore(|| {
        let world = world();
        let client = client(&world);
        let guard = lock(&client).lock().unwrap();
        let told = Arc::new(AtomicU64::new(0));
        let note = Arc::clone(&told);
        let (path, meddling) = (guard.path().to_owned(), Arc::clone(&world));
        let meddler =
            threads(
                2,
                move |number| {
                    if number == 0 { meddling.remove(&path) } else { meddling.reconnect() }
                },
            );
        guard.on_lost(move |_| {
            note.fetch_add(1, SeqCst);
        });
        assert!(matches!(guard.lost().wait(), Err(_)));
        assert!(!guard.is_held());
        join(meddler);
        until(|| told.load(SeqCst) == 1);
        drop(guard);
        client.close();
        move || assert_eq!(told.load(SeqCst), 1)
    });
}
