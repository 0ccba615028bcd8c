//! Measures time without what a busy machine adds, so that tests can check the library's limits.
//!
//! The kernel counts, for each thread, how long it was ready to run but had no processor. Each
//! limit is extended by the sum of that for the test and its servers during the measurement. On an
//! idle machine that is next to nothing, and a limit is strict.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::hint;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{own_task, server};

/// Runs since it was started.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    waited: HashMap<Thread, Duration>,
    stolen: Duration,
    start: Instant,
}

/// A thread by its process and its own number.
type Thread = (u32, String);

/// A point in time, with how long the thread that noted it had waited for a processor until then:
/// that thread may end before the stopwatch reads the others.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    at: Instant,
    by: Option<(Thread, Duration)>,
}

/// How long something took.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    time: Duration,
    held_up: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        let (waited, stolen) = (waited(), stolen());
        Stopwatch { waited, stolen, start: Instant::now() }
    }

    /// For lower limits: how long it has run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// When it was started.
    pub(crate) fn instant(&self) -> Instant {
        self.start
    }

    /// For upper limits: what has passed until now.
    pub(crate) fn took(&self) -> Took {
        self.took_until(Moment { at: Instant::now(), by: None })
    }

    /// What had passed at a moment that another thread noted.
    pub(crate) fn took_until(&self, end: Moment) -> Took {
        let since = |(thread, now)| {
            let before = self.waited.get(&thread).copied().unwrap_or_default();
            Duration::saturating_sub(now, before)
        };
        let mut waited = waited();
        waited.extend(end.by);
        let waited: Duration = waited.into_iter().map(since).sum();
        let time = end.at.saturating_duration_since(self.start);
        Took { time, held_up: waited + stolen().saturating_sub(self.stolen) }
    }
}

impl Moment {
    pub(crate) fn now() -> Moment {
        let at = Instant::now();
        let task = Path::new("/proc/self/task").join(own_task().to_string());
        Moment { at, by: waited_by(std::process::id(), &task) }
    }
}

impl Took {
    pub(crate) fn time(self) -> Duration {
        self.time
    }

    /// How much of the time the machine may have added.
    pub(crate) fn held_up(self) -> Duration {
        self.held_up
    }

    pub(crate) fn at_least(self, limit: Duration) -> bool {
        self.time >= limit
    }

    /// Whether it took at most `limit`, plus what the machine added.
    pub(crate) fn within(self, limit: Duration) -> bool {
        self.time <= limit.saturating_add(self.held_up)
    }
}

impl fmt::Debug for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Took { time, held_up } = self;
        write!(f, "{time:.2?} (of which waiting for a processor: at most {held_up:.2?})")
    }
}

/// How long each thread of this process and its servers was ready to run, but did not. Empty if the
/// kernel does not count that; every limit is then strict.
fn waited() -> HashMap<Thread, Duration> {
    let mut waited = HashMap::new();
    for process in server::processes().into_iter().chain([std::process::id()]) {
        let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        // A thread may end meanwhile.
        waited.extend(tasks.flatten().filter_map(|task| waited_by(process, &task.path())));
    }
    waited
}

/// How long the thread in this folder of `/proc` was ready to run, but did not.
fn waited_by(process: u32, task: &Path) -> Option<(Thread, Duration)> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    // The fields: time on a processor, time waiting for one, number of turns.
    let nanoseconds = text.split(' ').nth(1)?.parse().ok()?;
    let name = task.file_name()?.to_str()?.to_owned();
    Some(((process, name), Duration::from_nanos(nanoseconds)))
}

/// How long this virtual machine was ready to run, but its host did not let it.
fn stolen() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text.split_whitespace().nth(8).and_then(|field| field.parse().ok());
    // In hundredths of a second, on every Linux.
    Duration::from_millis(ticks.unwrap_or(0_u64) * 10)
}

#[test]
fn what_the_machine_adds_is_no_lateness() {
    let (limit, time) = (Duration::from_millis(100), Duration::from_millis(120));
    let took = |held_up| Took { time, held_up: Duration::from_millis(held_up) };
    assert!(!took(0).within(limit) && !took(19).within(limit));
    assert!(took(20).within(limit) && took(500).within(limit));
    assert!(took(500).at_least(time) && !took(500).at_least(time * 2));
}

#[test]
fn threads_that_have_to_share_a_processor_are_held_up() {
    if waited().is_empty() {
        eprintln!("SKIPPED: this kernel does not count how long threads wait for a processor");
        return;
    }
    let enough = AtomicBool::new(false);
    let more_than_processors = 2 * thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let watch = Stopwatch::start();
        for _ in 0..more_than_processors {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let limit = Instant::now() + Duration::from_secs(60);
        // Measured while they run: the count of a thread ends with it.
        let took = loop {
            let took = watch.took();
            if took.held_up() >= Duration::from_millis(20) || Instant::now() >= limit {
                break took;
            }
        };
        enough.store(true, Ordering::Relaxed);
        assert!(took.held_up() >= Duration::from_millis(20), "{took:?}");
        // Several threads wait at once, so their sum is longer than the time that passed.
        let less = took.time().saturating_sub(Duration::from_millis(10));
        assert!(took.within(less), "{took:?}");
    });
}
