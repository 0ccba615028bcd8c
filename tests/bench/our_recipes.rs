//! The recipes beside the locks, each by many clients at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Client, DistributedQueue, DistributedSemaphore, DoubleBarrier, Group, SharedCounter};

use super::obey::{Done, Outcome, Waits};

/// How long a consumer waits for an item before it looks whether all are taken.
const WAIT: Duration = Duration::from_millis(200);
/// How many permits the semaphore has.
const PERMITS: u32 = 3;

/// Carries out `count` operations of this recipe at `path`, on all clients.
pub(crate) fn perform(clients: &[Client], recipe: &str, path: &str, count: usize) -> Outcome<Done> {
    let (base, name) = path.rsplit_once('/').ok_or("a path")?;
    let of = |index: usize| &clients[index % clients.len()];
    let time = match recipe {
        "take" | "lease" => {
            let queues: Vec<_> =
                clients.iter().map(|zk| DistributedQueue::new(zk, base, name)).collect();
            together(queues.len(), |own| {
                (own..count)
                    .step_by(clients.len())
                    .try_for_each(|item| queues[own].offer(item.to_string()).map(drop))
            })?;
            let taken = AtomicUsize::new(0);
            together(queues.len(), |own| {
                while taken.load(Ordering::SeqCst) < count {
                    let got = match recipe {
                        "take" => queues[own].take_within(WAIT)?.is_some(),
                        _ => match queues[own].lease_within(WAIT)? {
                            Some(item) => item.ack().map(|()| true)?,
                            None => false,
                        },
                    };
                    taken.fetch_add(usize::from(got), Ordering::SeqCst);
                }
                Ok(())
            })?
        }
        "meet" => together(count, |own| {
            let barrier =
                DoubleBarrier::new(of(own), base, name, u32::try_from(count).unwrap_or(1));
            barrier.enter()?.leave()
        })?,
        "add" => together(clients.len(), |own| {
            let counter = SharedCounter::new(of(own), base, name);
            (own..count).step_by(clients.len()).try_for_each(|_| counter.add(1).map(drop))
        })?,
        "join" => {
            let groups: Vec<_> = clients.iter().map(|zk| Group::new(zk, base, name)).collect();
            let mut members = Vec::new();
            let begin = Instant::now();
            for own in 0..count {
                members.push(groups[own % groups.len()].join(format!("member-{own}"), "")?);
            }
            assert_eq!(groups[0].members()?.len(), count);
            let time = begin.elapsed();
            for member in members {
                member.leave()?;
            }
            time
        }
        "permits" => together(count, |own| {
            let semaphore = DistributedSemaphore::new(of(own), base, name, PERMITS);
            semaphore.acquire()?.release()
        })?,
        _ => return Err(format!("unknown recipe: {recipe}").into()),
    };
    Ok(Done { operations: count as u64, time, waits: Waits::none() })
}

/// Runs so many threads, and returns how long the last one took.
fn together(
    threads: usize,
    work: impl Fn(usize) -> zklock::Result<()> + Sync,
) -> Outcome<Duration> {
    let (begin, work) = (Instant::now(), &work);
    thread::scope(|scope| {
        let working: Vec<_> = (0..threads).map(|own| scope.spawn(move || work(own))).collect();
        working.into_iter().try_for_each(|thread| -> Outcome<()> {
            Ok(thread.join().map_err(|_| "a thread panicked")??)
        })
    })?;
    Ok(begin.elapsed())
}
