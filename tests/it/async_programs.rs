//! Programs with an async runtime: the lines of `examples/async_tasks.rs` that are there to be copied.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep_until;
use zklock::{DistributedLock, HandOver, LossReason};

use crate::support::site::Site;
use crate::support::stopwatch::{Moment, Stopwatch};
use crate::support::{eventually, skip_without_server, timed};

#[path = "../../examples/async_tasks.rs"]
#[allow(dead_code, unreachable_pub, reason = "the example's own main is not used here")]
mod async_tasks;

use async_tasks::Section;

const LONG: Duration = Duration::from_secs(30);
/// How late a section may end, or a timer of the runtime.
const AT_ONCE: Duration = Duration::from_millis(50);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// A lock whose contenders have a node each, so that they can be counted.
fn lock(site: &Site, zk: &zklock::Client) -> DistributedLock {
    DistributedLock::new(zk, &site.base, "a").hand_over(HandOver::Off)
}

/// As many tasks that wait for the lock, once all contend.
fn waiting(
    runtime: &Runtime,
    lock: &DistributedLock,
    count: usize,
) -> Vec<tokio::task::JoinHandle<zklock::Result<bool>>> {
    let wait = |lock: DistributedLock| async move {
        Section::enter(&lock, LONG).await.map(|section| section.is_some())
    };
    let tasks = (0..count).map(|_| runtime.spawn(wait(lock.clone()))).collect();
    eventually(LONG, "all contend", || lock.contenders().unwrap().len() == count + 1);
    tasks
}

#[test]
fn a_future_that_is_dropped_leaves_no_contender() {
    skip_without_server!();
    let site = Site::shared("async-dropped");
    let zk = site.quiet_client();
    let (runtime, lock) = (runtime(), lock(&site, &zk));
    let held = lock.lock().unwrap();
    let tasks = waiting(&runtime, &lock, 8);
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    eventually(LONG, "nobody waits", || lock.contenders().unwrap().len() == 1);
    for task in tasks {
        assert!(runtime.block_on(task).unwrap_err().is_cancelled());
    }
    held.unlock().unwrap();
    // Granted, and dropped in the task.
    drop(runtime.block_on(Section::enter(&lock, LONG)).unwrap().expect("free"));
    eventually(LONG, "nobody holds", || lock.contenders().unwrap().is_empty());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn a_loss_ends_the_section_at_once() {
    skip_without_server!();
    let site = Site::shared("async-loss");
    let (zk, other) = (site.quiet_client(), site.quiet_client());
    let (runtime, lock) = (runtime(), lock(&site, &zk));
    let section = runtime.block_on(Section::enter(&lock, LONG)).unwrap().expect("free");
    let node = lock.contenders().unwrap().remove(0).path;
    let ended = runtime.spawn(async move {
        let why = section.lost().await;
        (why, Moment::now(), section.lost().await)
    });
    other.znode(&node).delete().unwrap();
    let watch = Stopwatch::start();
    let (why, end, again) = runtime.block_on(ended).unwrap();
    assert_eq!((why, again), (LossReason::NodeDeleted, LossReason::NodeDeleted));
    let took = watch.took_until(end);
    println!("a section ended {took:?} after its lock's node was deleted");
    assert!(took.within(AT_ONCE), "{took:?}");
    drop(lock);
    site.finish([zk, other]);
}

#[test]
fn timers_go_on_while_tasks_wait_for_one_lock() {
    skip_without_server!();
    let site = Site::shared("async-timers");
    let zk = site.quiet_client();
    let (runtime, lock) = (runtime(), lock(&site, &zk));
    let held = lock.lock().unwrap();
    let tasks = waiting(&runtime, &lock, 64);
    let timers = runtime.spawn(async {
        let mut latest = Duration::ZERO;
        for _ in 0..50 {
            let (due, watch) = (Instant::now() + Duration::from_millis(10), Stopwatch::start());
            sleep_until(due.into()).await;
            let took = watch.took();
            assert!(took.within(AT_ONCE + Duration::from_millis(10)), "{took:?}");
            latest = latest.max(due.elapsed());
        }
        latest
    });
    // Some of the timers run while each task has the lock in its turn.
    held.unlock().unwrap();
    let latest = runtime.block_on(timers).unwrap();
    println!("of 50 timers, the latest was {latest:?} late");
    for task in tasks {
        assert!(runtime.block_on(task).unwrap().unwrap());
    }
    drop(lock);
    site.finish([zk]);
}

#[test]
fn a_runtime_ends_while_tasks_wait_and_one_holds() {
    skip_without_server!();
    let site = Site::shared("async-end");
    let zk = site.quiet_client();
    let (runtime, lock) = (runtime(), lock(&site, &zk));
    let section = runtime.block_on(Section::enter(&lock, LONG)).unwrap().expect("free");
    runtime.spawn(async move { section.lost().await });
    waiting(&runtime, &lock, 64);
    let ((), took) = timed(|| drop(runtime));
    println!("a runtime with 64 waiting tasks and a holder ended in {took:?}");
    assert!(took.within(Duration::from_secs(1)), "{took:?}");
    eventually(LONG, "nobody contends", || lock.contenders().unwrap().is_empty());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn a_full_pool_of_blocking_threads_keeps_no_holder_from_releasing() {
    skip_without_server!();
    let site = Site::shared("async-pool");
    let zk = site.quiet_client();
    let lock = lock(&site, &zk);
    let runtime =
        Builder::new_multi_thread().max_blocking_threads(1).enable_time().build().unwrap();
    let (end, ended) = mpsc::channel::<()>();
    let pool = runtime.spawn_blocking(move || ended.recv());
    let section = runtime.block_on(Section::enter(&lock, LONG)).unwrap().expect("free");
    let next = waiting(&runtime, &lock, 1).remove(0);
    runtime.block_on(section.leave()).unwrap();
    assert!(runtime.block_on(next).unwrap().unwrap());
    drop(end);
    assert!(runtime.block_on(pool).unwrap().is_err());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn a_drop_in_an_outage_keeps_no_thread_of_the_runtime() {
    skip_without_server!();
    let site = Site::own("async-outage");
    let (proxy, zk) = site.proxied(Duration::from_secs(60));
    let (runtime, lock) = (runtime(), lock(&site, &zk));
    let section = runtime.block_on(Section::enter(&lock, LONG)).unwrap().expect("free");
    proxy.hold();
    let ((), took) = timed(|| runtime.block_on(async { drop(section) }));
    println!("dropping a section in an outage took {took:?}");
    assert!(took.within(AT_ONCE), "{took:?}");
    proxy.release();
    eventually(LONG, "nobody contends", || lock.contenders().unwrap().is_empty());
    drop(lock);
    site.finish([zk]);
}
