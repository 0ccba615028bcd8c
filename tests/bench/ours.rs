//! A worker that uses our own locks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use zklock::zookeeper::{WatchedEvent, ZooKeeper};
use zklock::{Client, DistributedLock, HandOver, LockGuard};

use super::contestant::Contestant;
use super::obey::{Done, Hand, Outcome, Waits};
use super::our_recipes;
use super::support::raw::Raw;
use super::support::transport::Transport;

const SESSION: Duration = Duration::from_secs(30);
/// All waiters are in the queue when each has called, and no node has come for this long. Nodes
/// cannot be counted, as waiters of one client may share one.
const SETTLED: Duration = Duration::from_millis(300);

/// The lock of one variant. Variants differ only in this, and in how the client is made.
fn lock(variant: Contestant, zk: &Client, base: &str, name: &str) -> DistributedLock {
    let lock = DistributedLock::new(zk, base, name);
    match variant {
        Contestant::ZklockOff => lock.hand_over(HandOver::Off),
        Contestant::ZklockPatience => lock.patience(1_000),
        Contestant::ZklockKept => lock.keep_for(Duration::from_secs(60)),
        _ => lock,
    }
}

pub(crate) struct Ours {
    variant: Contestant,
    hosts: String,
    clients: Vec<Client>,
    /// The handles of clients that are made of handles of the `zookeeper` crate.
    handles: Vec<Arc<ZooKeeper>>,
}

impl Ours {
    pub(crate) fn new(variant: Contestant) -> Ours {
        Ours { variant, hosts: String::new(), clients: Vec::new(), handles: Vec::new() }
    }

    fn client(&mut self, hosts: &str) -> Outcome<Client> {
        if self.variant != Contestant::ZklockCrate {
            let transport = match self.variant {
                Contestant::ZklockTls => Transport::MutualTls,
                _ => Transport::Plain,
            };
            return Ok(transport.client(hosts).session_timeout(SESSION).connect()?);
        }
        let handle = Arc::new(ZooKeeper::connect(hosts, SESSION, |_: WatchedEvent| ())?);
        self.handles.push(Arc::clone(&handle));
        Ok(Client::from(handle))
    }

    fn lock(&self, client: usize, path: &str) -> Outcome<DistributedLock> {
        let (base, name) = path.rsplit_once('/').ok_or("a path")?;
        Ok(lock(self.variant, &self.clients[client % self.clients.len()], base, name))
    }
}

impl Hand for Ours {
    fn connect(&mut self, hosts: &str, clients: usize) -> Outcome<()> {
        self.close()?;
        hosts.clone_into(&mut self.hosts);
        for _ in 0..clients {
            let client = self.client(hosts)?;
            self.clients.push(client);
        }
        Ok(())
    }

    fn close(&mut self) -> Outcome<()> {
        self.clients.clear();
        for handle in self.handles.drain(..) {
            handle.close()?;
        }
        Ok(())
    }

    fn run(&mut self, path: &str, locks: usize, threads: usize, length: Duration) -> Outcome<Done> {
        let (start, over) = (Barrier::new(threads + 1), AtomicBool::new(false));
        let (start, over) = (&start, &over);
        let locks = (0..threads)
            .map(|own| self.lock(0, &format!("{path}/{}", own % locks)))
            .collect::<Outcome<Vec<DistributedLock>>>()?;
        thread::scope(|scope| {
            let work = |lock: DistributedLock| {
                move || {
                    start.wait();
                    let (mut operations, mut waits) = (0, Waits::of_one_of(threads));
                    while !over.load(Ordering::Relaxed) {
                        drop(waits.note(|| lock.lock())?);
                        operations += 1;
                    }
                    Ok((operations, waits))
                }
            };
            let working: Vec<_> = locks.into_iter().map(|lock| scope.spawn(work(lock))).collect();
            start.wait();
            let begin = Instant::now();
            thread::sleep(length);
            over.store(true, Ordering::Relaxed);
            let (mut operations, mut waits) = (0, Waits::none());
            for (count, of_thread) in all(working)? {
                operations += count;
                waits.noted.extend(of_thread.noted);
            }
            Ok(Done { operations, time: begin.elapsed(), waits })
        })
    }

    fn queue(&mut self, path: &str, waiters: usize, repeats: usize) -> Outcome<Done> {
        let mut done = Done { operations: 0, time: Duration::ZERO, waits: Waits::none() };
        // Not with the locks' own `contenders`, which also reads each contender's data.
        let mut onlooker = Raw::connect(&self.hosts, SESSION)?;
        for _ in 0..repeats {
            let held = self.lock(0, path)?.lock()?;
            let locks = (0..waiters)
                .map(|own| self.lock(own, path))
                .collect::<Outcome<Vec<DistributedLock>>>()?;
            let called = AtomicUsize::new(0);
            let time = thread::scope(|scope| -> Outcome<Duration> {
                let working =
                    locks.into_iter().map(|lock| wait_once(scope, lock, &called)).collect();
                // An error is returned only after the release: otherwise the waiters wait for ever.
                let in_line = wait_for_line(&mut onlooker, path, &called, waiters);
                let begin = Instant::now();
                LockGuard::unlock(held)?;
                all(working)?;
                in_line?;
                Ok(begin.elapsed())
            })?;
            done.operations += waiters as u64;
            done.time += time;
        }
        onlooker.close()?;
        Ok(done)
    }

    fn recipe(&mut self, recipe: &str, path: &str, count: usize) -> Outcome<Done> {
        our_recipes::perform(&self.clients, recipe, path, count)
    }

    fn hold(&mut self, path: &str, locks: usize) -> Outcome<Done> {
        let begin = Instant::now();
        let held = (0..locks)
            .map(|own| Ok(self.lock(0, &format!("{path}/{own}"))?.lock()?))
            .collect::<Outcome<Vec<LockGuard>>>()?;
        let done = Done { operations: locks as u64, time: begin.elapsed(), waits: Waits::none() };
        held.into_iter().try_for_each(LockGuard::unlock)?;
        Ok(done)
    }
}

fn wait_once<'s>(
    scope: &'s Scope<'s, '_>,
    lock: DistributedLock,
    called: &'s AtomicUsize,
) -> ScopedJoinHandle<'s, zklock::Result<()>> {
    scope.spawn(move || {
        called.fetch_add(1, Ordering::SeqCst);
        lock.lock().map(drop)
    })
}

fn wait_for_line(
    onlooker: &mut Raw,
    path: &str,
    called: &AtomicUsize,
    waiters: usize,
) -> Outcome<()> {
    let (mut length, mut since) = (0, Instant::now());
    loop {
        thread::sleep(Duration::from_millis(50));
        let now = onlooker.get_children(path)?.len();
        if now != length || called.load(Ordering::SeqCst) < waiters {
            (length, since) = (now, Instant::now());
        } else if since.elapsed() > SETTLED {
            return Ok(());
        }
    }
}

fn all<T>(working: Vec<ScopedJoinHandle<'_, zklock::Result<T>>>) -> Outcome<Vec<T>> {
    let result = |thread: ScopedJoinHandle<'_, _>| -> Outcome<T> {
        Ok(thread.join().map_err(|_| "a thread panicked")??)
    };
    working.into_iter().map(result).collect()
}
