//! Many threads of many clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use zklock::{Cancel, DistributedLock, ErrorKind, FencingToken, HandOver, LockGuard};

use super::{Rig, SOON};
use crate::support::site::Site;
use crate::support::{Raise, eventually, skip_without_server};

struct Ring {
    inside: AtomicBool,
    rounds: AtomicU64,
    last: Mutex<Option<FencingToken>>,
}

impl Ring {
    fn new() -> Ring {
        Ring { inside: AtomicBool::new(false), rounds: AtomicU64::new(0), last: Mutex::new(None) }
    }

    fn pass_through(&self, guard: LockGuard) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two holders at once");
        let token = guard.fencing_token();
        let before = self.last.lock().unwrap().replace(token);
        assert!(before < Some(token), "{before:?} came before {token}");
        thread::yield_now();
        assert!(guard.is_held());
        assert!(self.inside.swap(false, Ordering::SeqCst), "two holders at once");
        self.rounds.fetch_add(1, Ordering::SeqCst);
        drop(guard);
    }
}

#[test]
fn s03_of_many_threads_of_many_clients_never_are_two_inside() {
    skip_without_server!();
    const THREADS: usize = 8;
    const ROUNDS: u64 = 50;
    let site = Site::own("many");
    let clients = [(); 4].map(|()| site.client());
    let (ring, start) = (Ring::new(), Barrier::new(THREADS * clients.len()));
    thread::scope(|scope| {
        for (number, zk) in clients.iter().enumerate() {
            for thread in 0..THREADS {
                // Some threads keep the lock, some do not, and one client does not hand over.
                let builder = DistributedLock::new(zk, &site.base, "a");
                let lock = match number {
                    0 => builder.hand_over(HandOver::Off),
                    1 if thread % 2 == 0 => builder.keep_for(SOON),
                    2 => builder
                        .hand_over(HandOver::Within { turns: 2, time: Duration::from_millis(1) }),
                    _ => builder,
                };
                let (ring, start) = (&ring, &start);
                scope.spawn(move || {
                    start.wait();
                    (0..ROUNDS).for_each(|_| ring.pass_through(lock.lock().unwrap()));
                });
            }
        }
    });
    assert_eq!(ring.rounds.into_inner(), (THREADS * clients.len()) as u64 * ROUNDS);
    site.finish(clients);
}

#[test]
fn s23_of_many_threads_whose_connections_are_cut_never_are_two_inside() {
    skip_without_server!();
    const THREADS: usize = 6;
    let site = Site::own("many-cut");
    let [(one, first), (two, second)] = [(); 2].map(|()| site.proxied(Duration::from_secs(20)));
    let (ring, stop) = (Ring::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _at_the_end = Raise(&stop);
        for (number, zk) in [&first, &second].into_iter().enumerate() {
            for _ in 0..THREADS {
                let builder = DistributedLock::new(zk, &site.base, "a");
                let lock = if number == 0 { builder.keep_for(SOON) } else { builder };
                let (ring, stop) = (&ring, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        ring.pass_through(lock.lock().unwrap());
                    }
                });
            }
        }
        for proxy in [&one, &two].into_iter().cycle().take(20) {
            let before = ring.rounds.load(Ordering::SeqCst);
            proxy.cut();
            eventually(SOON, "the threads to go on", || {
                ring.rounds.load(Ordering::SeqCst) >= before + 200
            });
        }
    });
    println!("{} turns", ring.rounds.into_inner());
    site.finish([first, second]);
    drop((one, two));
}

/// Many threads come and give up, at every possible moment.
#[test]
fn s20_of_many_who_give_up_none_takes_the_lock_with_it() {
    skip_without_server!();
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 200;
    let rig = Rig::new("leavers");
    let ring = Ring::new();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let lock = if number == 0 { rig.theirs() } else { rig.lock() };
            let ring = &ring;
            scope.spawn(move || {
                let mut random = number + 1;
                for _ in 0..ROUNDS {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let limit = Duration::from_micros((random >> 33) % 3_000);
                    let result = match (random >> 60) % 4 {
                        0 => Ok(Some(lock.lock().unwrap())),
                        1 => lock.try_lock(),
                        2 => lock.try_lock_for(limit),
                        _ => cancelled_after(&lock, limit),
                    };
                    match result {
                        Ok(Some(guard)) => ring.pass_through(guard),
                        Ok(None) => {}
                        Err(error) => assert!(
                            matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Connect),
                            "{error}"
                        ),
                    }
                }
            });
        }
    });
    println!("{} turns in {} rounds", ring.rounds.into_inner(), THREADS * ROUNDS);
    drop(rig.lock().lock().unwrap());
    rig.finish();
}

fn cancelled_after(lock: &DistributedLock, limit: Duration) -> zklock::Result<Option<LockGuard>> {
    let cancel = Cancel::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(limit);
            cancel.cancel();
        });
        lock.lock_within(&cancel)
    })
}
