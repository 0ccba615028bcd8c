//! Many readers and writers in several processes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{DistributedRwLock, FencingToken, WriteGuard};

use crate::support::server::Server;
use crate::support::site::Site;
use crate::support::{connecting, skip_without_server};

const STRESS: &str = "rwlock::stress::s53_under_stress_the_invariants_hold";
const STRESS_OF: &str = "ZKLOCK_TEST_STRESS_OF";
const STRESS_FOR: Duration = Duration::from_secs(6);
const PROCESSES: usize = 4;
const THREADS: usize = 4;

/// What the lock protects: a file whose contents only writers change. Each holder also takes the
/// kernel's lock on it, shared or exclusive, and must get that without waiting.
struct Protected(File);

/// A counter, twice, and the token of its latest writer.
type Contents = (u64, u64, String);

impl Protected {
    fn open(path: &str) -> Protected {
        Protected(File::options().read(true).write(true).open(path).expect("the file"))
    }

    fn load(&mut self) -> Contents {
        let mut text = String::new();
        self.0.seek(SeekFrom::Start(0)).expect("a file");
        self.0.read_to_string(&mut text).expect("text");
        let mut parts = text.split_whitespace();
        let number =
            |part: Option<&str>| part.and_then(|part| part.parse().ok()).expect("a number");
        (number(parts.next()), number(parts.next()), parts.next().unwrap_or_default().to_owned())
    }

    fn store(&mut self, (one, two, token): &Contents) {
        self.0.seek(SeekFrom::Start(0)).expect("a file");
        // Fixed lengths, so that nothing is left of former contents.
        write!(self.0, "{one:020} {two:020} {token}").expect("written");
    }

    fn write(&mut self, guard: &WriteGuard) {
        self.0.try_lock().expect("another holder is inside");
        let (one, two, latest) = self.load();
        assert_eq!(one, two, "half of a write was seen");
        let token = guard.fencing_token().to_string();
        assert!(latest < token, "{latest} came before {token}");
        // A reader would now see half of a write.
        self.store(&(one + 1, two, token.clone()));
        thread::yield_now();
        assert!(guard.is_held());
        self.store(&(one + 1, one + 1, token));
        self.0.unlock().expect("locked");
    }

    fn read(&mut self, token: FencingToken) {
        self.0.try_lock_shared().expect("a writer is inside");
        let before = self.load();
        assert_eq!(before.0, before.1, "half of a write was seen");
        assert!(before.2 <= token.to_string(), "{} came before {token}", before.2);
        thread::yield_now();
        assert_eq!(self.load(), before, "a writer changed the file meanwhile");
        self.0.unlock().expect("locked");
    }
}

/// One of the processes; it prints how often it has written, read, and read with others.
fn be_stressed(hosts: &str) {
    let base = std::env::var("ZKLOCK_TEST_STRESS_BASE").expect("a base path");
    let file = std::env::var("ZKLOCK_TEST_STRESS_FILE").expect("a file");
    let zk = connecting(hosts).session_timeout(Duration::from_secs(30)).connect().unwrap();
    let lock = DistributedRwLock::new(&zk, &base, "a");
    let counts = [(); 3].map(|()| AtomicUsize::new(0));
    let (inside, end) = (AtomicUsize::new(0), Instant::now() + STRESS_FOR);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (lock, counts, inside, file) = (&lock, &counts, &inside, &file);
            scope.spawn(move || {
                let mut protected = Protected::open(file);
                let mut read = |token| {
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    protected.read(token);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    counts[1].fetch_add(1, Ordering::SeqCst);
                    counts[2].fetch_add(usize::from(others > 0), Ordering::SeqCst);
                };
                let mut writing = Protected::open(file);
                // One in ten writes, and every other writer goes on as a reader.
                for round in number * 3.. {
                    if Instant::now() > end {
                        break;
                    }
                    if round % 10 == 0 {
                        let guard = lock.write().unwrap();
                        writing.write(&guard);
                        counts[0].fetch_add(1, Ordering::SeqCst);
                        if round % 20 == 0 {
                            let guard = guard.downgrade().unwrap();
                            read(guard.fencing_token());
                            assert!(guard.is_held());
                        }
                    } else {
                        let guard = lock.read().unwrap();
                        read(guard.fencing_token());
                        assert!(guard.is_held());
                    }
                }
            });
        }
    });
    let counts = counts.map(AtomicUsize::into_inner);
    println!("stress: {} {} {}", counts[0], counts[1], counts[2]);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn s53_under_stress_the_invariants_hold() {
    if let Ok(hosts) = std::env::var(STRESS_OF) {
        return be_stressed(&hosts);
    }
    skip_without_server!();
    let site = Site::with("s53", &Server::builder().max_session(60_000));
    let file = std::env::temp_dir().join(format!("zklock-stress-{}", std::process::id()));
    let nothing = "0".repeat(20);
    let no_token = format!("{}-{}", "0".repeat(16), "0".repeat(8));
    std::fs::write(&file, format!("{nothing} {nothing} {no_token}")).unwrap();
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let command = Command::new(std::env::current_exe().expect("this program"))
                .args([STRESS, "--exact", "--nocapture", "--test-threads=1"])
                .env(STRESS_OF, site.hosts())
                .env("ZKLOCK_TEST_STRESS_BASE", &site.base)
                .env("ZKLOCK_TEST_STRESS_FILE", &file)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn();
            Killed(command.expect("a child process"))
        })
        .collect();
    let mut totals = [0; 3];
    for mut child in children {
        let output = BufReader::new(child.0.stdout.take().expect("its output"));
        for line in output.lines() {
            let line = line.expect("a line");
            if let Some((_, counts)) = line.split_once("stress: ") {
                for (total, count) in totals.iter_mut().zip(counts.split(' ')) {
                    *total += count.parse::<u64>().expect("a number");
                }
            }
        }
        assert!(child.0.wait().expect("its end").success(), "an invariant did not hold");
    }
    let [writes, reads, shared] = totals;
    println!("{writes} writes, {reads} reads, of which {shared} with others");
    let (one, two, _) = Protected::open(file.to_str().expect("a name")).load();
    std::fs::remove_file(&file).unwrap();
    assert_eq!((one, two), (writes, writes), "writes were lost");
    assert!(writes >= 10 && reads > writes && shared > 0, "{totals:?}");
    site.wait_for_children("a", 0);
    site.finish([]);
}
