//! Many producers and consumers, while connections are cut, sessions end, and the server restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use zklock::{Client, DistributedQueue, Error, ErrorKind};

use super::queue;
use crate::support::proxy::Proxy;
use crate::support::raw::Raw;
use crate::support::server;
use crate::support::site::Site;
use crate::support::{connecting, eventually, setting, skip_without_server};

/// Clients of each kind, with `THREADS` threads each.
const CLIENTS: usize = 2;
const THREADS: usize = 4;
const T: Duration = Duration::from_secs(4);
/// The test runner stops a test after ten minutes.
const LIMIT: Duration = Duration::from_secs(500);

/// How many items there are. Each waits for at most three writes.
fn items() -> usize {
    setting("ZKLOCK_STORM_ITEMS", if server::has_slow_log() { 4_000 } else { 20_000 }) as usize
}

/// How many items are offered and delivered between two faults.
fn pace() -> usize {
    items() / 25
}

/// A server behind two proxies, and clients on both.
struct Storm {
    site: Site,
    proxies: [Proxy; 2],
    producers: Vec<Client>,
    consumers: Vec<Client>,
}

/// What has been delivered, and how often.
#[derive(Default)]
struct Delivered {
    items: Mutex<BTreeMap<usize, usize>>,
    progress: Progress,
}

/// How many items were offered and delivered, and a way to wait for more.
#[derive(Default)]
struct Progress {
    /// The count, and whether the work has ended.
    state: Mutex<(usize, bool)>,
    more: Condvar,
}

impl Storm {
    fn new(test: &str) -> Storm {
        let site = Site::own(test);
        let proxies = [(); 2].map(|()| Proxy::start(site.server().addr()));
        let connect = |number: usize| {
            let builder = connecting(&proxies[number % 2].hosts()).session_timeout(T);
            builder.connect().expect("a client")
        };
        let [producers, consumers] = [(); 2].map(|()| (0..CLIENTS).map(connect).collect());
        Storm { site, proxies, producers, consumers }
    }

    /// Causes each kind of fault in turn, as the work proceeds, until it ends. Returns their
    /// number.
    fn rage(&self, progress: &Progress) -> usize {
        for fault in 0.. {
            if !progress.wait_for(pace() * (fault + 1)) {
                return fault;
            }
            let proxy = &self.proxies[fault % 2];
            match fault % 6 {
                5 => self.end_a_session(proxy, fault / 6),
                _ if fault == 24 => self.site.server().restart(),
                _ => proxy.cut(),
            }
        }
        0
    }

    fn end_a_session(&self, proxy: &Proxy, which: usize) {
        let sessions = proxy.sessions();
        let (session, password) = &sessions[which % sessions.len()];
        // The session may have ended before.
        if let Ok(stolen) = Raw::resume(self.site.hosts(), T, *session, password) {
            let _ = stolen.close();
        }
        proxy.cut();
    }

    /// Runs producers, each with a share of the numbers, and, when half of all items are there,
    /// consumers. Closes the consumers' clients once all producers are done and the queue is empty.
    /// Returns the number of faults.
    fn run(
        &self,
        delivered: &Delivered,
        produce: impl Fn(&DistributedQueue, usize) + Sync,
        consume: impl Fn(&DistributedQueue) + Sync,
    ) -> usize {
        let (next, progress) = (&AtomicUsize::new(0), &delivered.progress);
        let (produce, consume) = (&produce, &consume);
        thread::scope(|scope| {
            let mut producing = Vec::new();
            for queue in self.queues(&self.producers) {
                producing.push(scope.spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= items() {
                            return;
                        }
                        produce(&queue, number);
                        progress.note();
                    }
                }));
            }
            let rage = scope.spawn(|| self.rage(progress));
            assert!(progress.wait_for(items() / 2));
            for queue in self.queues(&self.consumers) {
                scope.spawn(move || consume(&queue));
            }
            producing.into_iter().for_each(|thread| thread.join().unwrap());
            let zk = self.site.client();
            let rest = queue(&zk, &self.site);
            eventually(LIMIT, "an empty queue", || rest.len().is_ok_and(|items| items == 0));
            self.consumers.iter().for_each(Client::close);
            progress.end();
            rage.join().unwrap()
        })
    }

    /// One queue for each thread; those of one client share their cache.
    fn queues(&self, clients: &[Client]) -> Vec<DistributedQueue> {
        let of_client = |zk| {
            let queue = queue(zk, &self.site);
            (0..THREADS).map(move |_| queue.clone())
        };
        clients.iter().flat_map(of_client).collect()
    }

    fn finish(self) {
        drop(self.proxies);
        self.site.finish(self.producers.into_iter().chain(self.consumers));
    }
}

impl Delivered {
    fn note(&self, item: usize) {
        *self.items.lock().unwrap().entry(item).or_default() += 1;
        self.progress.note();
    }

    fn into_items(self) -> BTreeMap<usize, usize> {
        self.items.into_inner().unwrap()
    }
}

impl Progress {
    fn note(&self) {
        self.state.lock().unwrap().0 += 1;
        self.more.notify_all();
    }

    fn end(&self) {
        self.state.lock().unwrap().1 = true;
        self.more.notify_all();
    }

    /// Waits until there are `count`; false if the work ends before.
    fn wait_for(&self, count: usize) -> bool {
        let few = |state: &mut (usize, bool)| state.0 < count && !state.1;
        let state = self.more.wait_while(self.state.lock().unwrap(), few).unwrap();
        !state.1
    }
}

fn number(data: &[u8]) -> usize {
    std::str::from_utf8(data).unwrap().parse().unwrap()
}

fn is_trouble(error: &Error) -> bool {
    let of_the_network = [ErrorKind::ConnectionLoss, ErrorKind::Connect, ErrorKind::SessionLost];
    of_the_network.contains(&error.kind())
}

#[test]
fn s79_in_a_storm_leasing_loses_no_item() {
    skip_without_server!();
    let storm = Storm::new("s79-storm-lease");
    let delivered = Delivered::default();
    let [repeated, unacknowledged] = [(); 2].map(|()| AtomicUsize::new(0));
    let acknowledged = Mutex::new(BTreeSet::new());
    let faults = storm.run(
        &delivered,
        |queue, number| {
            while let Err(error) = queue.offer(number.to_string()) {
                assert!(is_trouble(&error), "{error}");
                repeated.fetch_add(1, Ordering::Relaxed);
            }
        },
        |queue| {
            loop {
                let item = match queue.lease() {
                    Ok(item) => item,
                    Err(error) if error.kind() == ErrorKind::Closed => return,
                    Err(error) => panic!("{error}"),
                };
                let number = number(item.data());
                match item.ack() {
                    Ok(()) => drop(acknowledged.lock().unwrap().insert(number)),
                    Err(error) => {
                        // The answer for the last item may come after the client is closed.
                        let is_closed = error.kind() == ErrorKind::Closed;
                        assert!(is_trouble(&error) || is_closed, "{error}");
                        unacknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                }
                delivered.note(number);
            }
        },
    );
    let (count, items) = (items(), delivered.into_items());
    let more_than_once = items.values().filter(|&&times| times > 1).count();
    let (acknowledged, repeated) = (acknowledged.into_inner().unwrap(), repeated.into_inner());
    let unacknowledged = unacknowledged.into_inner();
    println!(
        "{count} items, {faults} faults: {repeated} offers repeated, {} acknowledged, \
         {unacknowledged} leases lost, {more_than_once} delivered more than once",
        acknowledged.len()
    );
    assert!(faults > 25, "{faults}");
    assert!(items.keys().copied().eq(0..count), "{} of {count} delivered", items.len());
    // Acknowledgements without an error were done.
    assert!(count - acknowledged.len() <= unacknowledged, "{}", acknowledged.len());
    storm.finish();
}

#[test]
fn s79_in_a_storm_taking_gives_no_item_twice() {
    skip_without_server!();
    let storm = Storm::new("s79-storm-take");
    let delivered = Delivered::default();
    let [doubtful, unknown] = [(); 2].map(|()| AtomicUsize::new(0));
    let offered = Mutex::new(BTreeSet::new());
    let faults = storm.run(
        &delivered,
        |queue, number| match queue.offer(number.to_string()) {
            Ok(_) => drop(offered.lock().unwrap().insert(number)),
            Err(error) => {
                assert!(is_trouble(&error), "{error}");
                doubtful.fetch_add(1, Ordering::Relaxed);
            }
        },
        |queue| {
            loop {
                match queue.take() {
                    Ok(data) => delivered.note(number(&data)),
                    Err(error) if error.kind() == ErrorKind::Closed => return,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::ConnectionLoss, "{error}");
                        unknown.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        },
    );
    let (count, items) = (items(), delivered.into_items());
    let (doubtful, unknown) = (doubtful.into_inner(), unknown.into_inner());
    let offered = offered.into_inner().unwrap();
    let lost = offered.iter().filter(|number| !items.contains_key(number)).count();
    println!(
        "{count} items, {faults} faults: {} offered, {doubtful} offers in doubt, {} delivered, \
         {unknown} deletions in doubt, {lost} items lost by them",
        offered.len(),
        items.len()
    );
    assert!(faults > 25, "{faults}");
    let twice: Vec<_> = items.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    // Each missing item was reported by an error.
    assert!(lost <= unknown, "{lost} lost, {unknown} in doubt");
    storm.finish();
}
