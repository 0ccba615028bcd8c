//! Lock paths shared with the real locks of other clients. Tests of pairs add rows to a table, which
//! `scripts/test` prints at the end.

mod ours;
mod peer;
mod queues;

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::mem;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use log::LevelFilter;
use zklock::maintenance::MaintenanceEnd;
use zklock::{ErrorKind, LeaderElection};

use Whose::{Aiozk, Before, Curator, Go, Kazoo, WriteLock, Zklock, ZookeeperClient};
use peer::{Peer, Whose, skip_without};

use crate::support::logs::logs;
use crate::support::raw::Kind;
use crate::support::server;
use crate::support::site::Site;
use crate::support::{
    eventually, got_nothing, mutex, skip_unless_alone, skip_without_zookeeper, strict, waiting,
};

const SOON: Duration = Duration::from_secs(30);
/// How long a call tries that should not get the lock.
const BRIEFLY: Duration = Duration::from_millis(300);
/// How long all the work of a test may take; the test runner stops a test after ten minutes.
const WORK_LIMIT: Duration = Duration::from_secs(500);

/// Two programs that share lock nodes; either may be the first.
struct Meeting {
    site: Site,
    first: Peer,
    second: Peer,
}

impl Meeting {
    fn of(test: &str, first: Whose, second: Whose) -> Meeting {
        let site = Site::shared(test);
        let first = Peer::start(first, site.hosts());
        let second = Peer::start(second, site.hosts());
        Meeting { site, first, second }
    }

    fn swap(&mut self) {
        mem::swap(&mut self.first, &mut self.second);
    }

    /// Makes a lock node that the server does not remove when it is empty: kazoo assumes that a
    /// lock node it has seen stays.
    fn node(&self, name: &str) -> String {
        let path = format!("{}/{name}", self.site.base);
        let mut raw = self.site.raw();
        raw.create_all(&path).unwrap();
        raw.close().unwrap();
        path
    }

    /// Waits until there are `count` contenders.
    fn contenders(&self, path: &str, count: usize) {
        let mut raw = self.site.raw();
        let what = format!("{count} contenders of {} and {}", self.first, self.second);
        eventually(SOON, &what, || raw.get_children(path).unwrap().len() == count);
        raw.close().unwrap();
    }

    /// While the first holds, the second does not get the lock; afterwards it does.
    fn excludes(&mut self, holds: &str, waits: &str) {
        let begin = Instant::now();
        let path = self.node(&format!("{}-{holds}-excludes-{waits}", self.first));
        let (first, second) = (self.first.to_string(), self.second.to_string());
        self.first.lock(&path, holds);
        // Go's cannot give up.
        assert!(
            self.second.whose() == Go || !self.second.tries(&path, waits, BRIEFLY),
            "{first} {holds} did not keep {second} {waits} out"
        );
        self.contenders(&path, 1);
        self.second.order(&format!("lock {path} {waits}"));
        self.contenders(&path, 2);
        assert_eq!(self.second.said(), None, "{second} {waits} beside {first} {holds}");
        self.first.release();
        self.second.is_granted();
        self.second.release();
        self.contenders(&path, 0);
        row([&format!("{first} {holds}"), &format!("{second} {waits}")], 2, begin, "waits");
    }

    /// While the first holds, the second gets the lock too.
    fn admits(&mut self, holds: &str, enters: &str, as_it_should: bool) {
        let begin = Instant::now();
        let path = self.node(&format!("{}-{holds}-admits-{enters}", self.first));
        let (first, second) = (self.first.to_string(), self.second.to_string());
        self.first.lock(&path, holds);
        assert!(
            self.second.tries(&path, enters, SOON),
            "{first} {holds} kept {second} {enters} out"
        );
        self.first.release();
        self.second.release();
        self.contenders(&path, 0);
        let found = if as_it_should { "shares" } else { "BOTH ENTER" };
        row([&format!("{first} {holds}"), &format!("{second} {enters}")], 2, begin, found);
    }

    /// Mutexes exclude each other in both directions.
    fn mutexes(&mut self, first: &str, second: &str) {
        self.excludes(first, second);
        self.swap();
        self.excludes(second, first);
        self.swap();
    }

    /// Readers share and writers exclude all, in both directions. The arguments are what comes
    /// after `read` and `write` in the names of kinds.
    fn readers_and_writers(&mut self, first: &str, second: &str) {
        for [theirs, other] in [[first, second], [second, first]] {
            let [read, write] = ["read", "write"].map(|class| format!("{class}{theirs}"));
            let [other_read, other_write] =
                ["read", "write"].map(|class| format!("{class}{other}"));
            self.excludes(&write, &other_write);
            self.excludes(&write, &other_read);
            self.excludes(&read, &other_write);
            self.admits(&read, &other_read, true);
            self.swap();
        }
    }

    /// Two programs of each client increment one counter; then the meeting is over.
    fn work(self, first: &str, second: &str) {
        let path = self.node("work");
        let [one, two] = [self.first.whose(), self.second.whose()];
        let mut crew = [
            (Peer::start(one, self.site.hosts()), first),
            (Peer::start(two, self.site.hosts()), second),
            (self.first, first),
            (self.second, second),
        ];
        let rounds = acquisitions() / crew.len();
        let counter = format!("counter{}", self.site.base.replace('/', "-"));
        let counter = Path::new(env!("CARGO_TARGET_TMPDIR")).join(counter);
        fs::write(&counter, "0 nobody").unwrap();

        let begin = Instant::now();
        for (peer, kind) in &mut crew {
            peer.order(&format!("work {path} {kind} {rounds} {}", counter.display()));
        }
        let mut passed = 0;
        for (peer, _) in &crew {
            let answer = peer.answer(WORK_LIMIT.saturating_sub(begin.elapsed()));
            let taken = answer.strip_prefix("done ").unwrap_or_else(|| panic!("{peer}: {answer}"));
            passed += taken.parse::<usize>().unwrap();
        }
        let writes = crew
            .iter()
            .map(|(_, kind)| if kind.starts_with("mixed") { rounds.div_ceil(5) } else { rounds });
        let expected = writes.sum::<usize>();
        let contents = fs::read_to_string(&counter).unwrap();
        let count: usize = contents.split(' ').next().unwrap().parse().unwrap();
        fs::remove_file(&counter).unwrap();
        row(
            [&format!("{one} {first}"), &format!("{two} {second}")],
            rounds * crew.len(),
            begin,
            &format!("counter {count} of {expected}, passed between them {passed} times"),
        );
        assert_eq!(count, expected, "increments of {one} and {two}");
        assert!(passed > crew.len(), "{one} and {two} passed the counter on only {passed} times");
        crew.into_iter().for_each(|(peer, _)| peer.end());
        self.site.finish([]);
    }

    fn end(self) {
        self.first.end();
        self.second.end();
        self.site.finish([]);
    }
}

/// How many acquisitions a pair of clients makes.
fn acquisitions() -> usize {
    let given = env::var("ZKLOCK_INTEROP_ACQUISITIONS").ok();
    // Each acquisition waits for two writes.
    let some = if server::has_slow_log() { 1_000 } else { 5_000 };
    given.map_or(some, |number| number.parse().expect("a number of acquisitions"))
}

/// Adds a row to the table: the first and second program, the acquisitions, and what was found.
fn row([first, second]: [&str; 2], acquisitions: usize, begin: Instant, found: &str) {
    let seconds = begin.elapsed().as_secs_f64();
    let row = format!("{first:<24}{second:<24}{acquisitions:>8}{seconds:>8.1} s  {found}\n");
    print!("{row}");
    let table = peer::programs().join("table");
    let mut table = OpenOptions::new().append(true).create(true).open(table).unwrap();
    // In one write: tests run in parallel.
    table.write_all(row.as_bytes()).unwrap();
}

// ----- pairs that exclude each other, in both directions

#[test]
fn s71_a_mutex_is_shared_with_curator() {
    skip_without_zookeeper!();
    skip_without!(Curator);
    let mut meeting = Meeting::of("s71-curator", Zklock, Curator);
    meeting.mutexes("mutex", "mutex");
    meeting.work("mutex", "mutex");
}

/// Curator's nodes do not tell what their threads hold, so its session is all that joins them.
#[test]
fn a_deadlock_with_curator_in_between_is_suspected_and_never_said_for_certain() {
    skip_without_zookeeper!();
    skip_without!(Curator);
    let site = Site::shared("interop-deadlock");
    let mut curator = Peer::start(Curator, site.hosts());
    let path = |name: &str| format!("{}/{name}", site.base);
    curator.lock(&path("a"), "mutex");
    let (ours, zk) = (site.quiet_client(), site.client());
    let (own, theirs) = (strict(&ours, &site.base, "b"), strict(&ours, &site.base, "a"));
    let (tell, is_held) = mpsc::channel();
    let thread = waiting(move || {
        let held = own.lock().unwrap();
        tell.send(()).unwrap();
        let got = theirs.lock();
        drop(held);
        got.err().map(|error| error.kind())
    });
    is_held.recv_timeout(SOON).unwrap();
    curator.order(&format!("lock {} mutex", path("b")));
    let look = || zk.waits(&site.base).unwrap().expect("a base node");
    eventually(SOON, "a circle", || !look().deadlocks(None).is_empty());
    let first = look();
    let begin = Instant::now();
    eventually(SOON, "three seconds", || begin.elapsed() > Duration::from_secs(3));
    let found = look().deadlocks(Some(&first));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].holders.len() == 2 && !found[0].is_certain, "{}", found[0]);
    // The end of ours lets Curator go on.
    ours.close();
    assert_eq!(thread.join().unwrap(), Some(ErrorKind::Closed));
    curator.is_granted();
    curator.end();
    site.finish([zk]);
}

/// Each sees the other's id.
#[test]
fn s71_an_election_is_shared_with_curators_leader_selector() {
    skip_without_zookeeper!();
    skip_without!(Curator);
    let mut meeting = Meeting::of("s71-election", Zklock, Curator);
    meeting.mutexes("leader", "leader");
    let path = meeting.node("ids");
    meeting.first.lock(&path, "leader");
    assert_eq!(meeting.second.ask(&format!("leader {path}")), "zklock");
    meeting.first.release();
    meeting.second.lock(&path, "leader");
    let zk = meeting.site.client();
    let leader = LeaderElection::new(&zk, &meeting.site.base, "ids").leader().unwrap();
    assert_eq!(leader.map(|leader| leader.label()).as_deref(), Some("curator"));
    meeting.second.release();
    meeting.contenders(&path, 0);
    drop(zk);
    meeting.end();
}

#[test]
fn s71_a_mutex_is_shared_with_kazoo_that_is_told_of_our_names() {
    skip_without_zookeeper!();
    skip_without!(Kazoo);
    let mut meeting = Meeting::of("s71-kazoo-patterns", Zklock, Kazoo);
    meeting.mutexes("mutex", "mutex-patterns");
    meeting.work("mutex", "mutex-patterns");
}

#[test]
fn s71_a_mutex_is_shared_with_kazoo_that_uses_our_names() {
    skip_without_zookeeper!();
    skip_without!(Kazoo);
    let mut meeting = Meeting::of("s71-kazoo-subclass", Zklock, Kazoo);
    meeting.mutexes("mutex", "mutex-subclass");
    meeting.work("mutex", "mutex-subclass");
}

#[test]
fn s71_a_mutex_is_shared_with_zookeeper_client() {
    skip_without_zookeeper!();
    skip_without!(ZookeeperClient);
    let mut meeting = Meeting::of("s71-zookeeper-client", Zklock, ZookeeperClient);
    meeting.mutexes("mutex", "mutex");
    meeting.work("mutex", "mutex");
}

#[test]
fn s71_a_mutex_is_shared_with_kazoo_as_shipped_by_its_own_names() {
    skip_without_zookeeper!();
    skip_without!(Kazoo);
    let mut meeting = Meeting::of("s71-kazoo", Zklock, Kazoo);
    meeting.mutexes("mutex-kazoo", "mutex");
    meeting.work("mutex-kazoo", "mutex");
}

#[test]
fn s71_a_mutex_is_shared_with_aiozk_under_both_names() {
    skip_without_zookeeper!();
    skip_without!(Aiozk);
    let mut meeting = Meeting::of("s71-aiozk", Zklock, Aiozk);
    meeting.mutexes("mutex-kazoo", "mutex");
    meeting.mutexes("mutex", "mutex");
    meeting.mutexes("mutex", "write");
    meeting.work("mutex", "mutex");
}

#[test]
fn s71_a_mutex_is_shared_with_zookeepers_write_lock() {
    skip_without_zookeeper!();
    skip_without!(WriteLock);
    let mut meeting = Meeting::of("s71-write-lock", Zklock, WriteLock);
    meeting.mutexes("mutex", "mutex");
    meeting.end();
}

/// With a foreign contender that comes and goes, too: both wait for what both know.
#[test]
fn s71_locks_are_shared_with_an_earlier_version() {
    skip_without_zookeeper!();
    skip_without!(Before);
    let mut meeting = Meeting::of("s71-before", Zklock, Before);
    meeting.mutexes("mutex", "mutex");
    meeting.readers_and_writers("", "");
    let path = meeting.node("foreign");
    let mut raw = meeting.site.raw();
    let foreign = format!("{path}/x-5-");
    let foreign = raw.create(&foreign, b"", Kind::EphemeralSequential).unwrap();
    meeting.first.order(&format!("lock {path} mutex"));
    meeting.second.order(&format!("lock {path} mutex"));
    meeting.contenders(&path, 3);
    raw.delete(&foreign).unwrap();
    raw.close().unwrap();
    for _ in 0..2 {
        let mut said = None;
        eventually(SOON, "one of them to hold", || {
            said = meeting.first.said().map(|_| true).or(meeting.second.said().map(|_| false));
            said.is_some()
        });
        assert!(meeting.first.said().is_none() && meeting.second.said().is_none());
        if said == Some(true) { meeting.first.release() } else { meeting.second.release() }
    }
    meeting.work("mutex", "mutex");
}

#[test]
fn s71_a_mutex_is_shared_with_go() {
    skip_without_zookeeper!();
    skip_without!(Go);
    let mut meeting = Meeting::of("s71-go", Zklock, Go);
    meeting.mutexes("mutex", "mutex");
    meeting.work("mutex", "mutex");
}

#[test]
fn s71_a_read_write_lock_is_shared_with_curator() {
    skip_without_zookeeper!();
    skip_without!(Curator);
    let mut meeting = Meeting::of("s71-rw-curator", Zklock, Curator);
    meeting.readers_and_writers("", "");
    meeting.work("mixed", "mixed");
}

#[test]
fn s71_a_read_write_lock_is_shared_with_kazoo_that_is_told_of_our_names() {
    skip_without_zookeeper!();
    skip_without!(Kazoo);
    let mut meeting = Meeting::of("s71-rw-kazoo-patterns", Zklock, Kazoo);
    meeting.readers_and_writers("", "-patterns");
    meeting.work("mixed", "mixed-patterns");
}

#[test]
fn s71_a_read_write_lock_is_shared_with_kazoo_that_uses_our_names() {
    skip_without_zookeeper!();
    skip_without!(Kazoo);
    let mut meeting = Meeting::of("s71-rw-kazoo-subclass", Zklock, Kazoo);
    meeting.readers_and_writers("", "-subclass");
    meeting.work("mixed", "mixed-subclass");
}

#[test]
fn s71_a_read_write_lock_is_shared_with_kazoo_as_shipped_by_its_own_names() {
    skip_without_zookeeper!();
    skip_without!(Kazoo);
    let mut meeting = Meeting::of("s71-rw-kazoo", Zklock, Kazoo);
    meeting.readers_and_writers("-kazoo", "");
    meeting.work("mixed-kazoo", "mixed");
}

/// Neither program is ours: Curator's node names work for any client that uses them.
#[test]
fn s71_curator_and_kazoo_that_uses_its_names_are_kept_apart_too() {
    skip_without_zookeeper!();
    skip_without!(Curator, Kazoo);
    let mut meeting = Meeting::of("s71-curator-kazoo", Curator, Kazoo);
    meeting.mutexes("mutex", "mutex-subclass");
    meeting.readers_and_writers("", "-subclass");
    meeting.end();
}

/// A hold for maintenance keeps everybody of these kinds out, in whose names it is made, until it is released.
fn maintenance_stops(test: &str, whose: Whose, kinds: &[&str]) {
    let mut meeting = Meeting::of(test, whose, whose);
    let zk = meeting.site.quiet_client();
    for kind in kinds {
        let begin = Instant::now();
        let path = meeting.node(kind);
        let lock = mutex(&zk, &meeting.site.base, kind);
        // Its name is taken from the contenders that are there.
        meeting.first.lock(&path, kind);
        let hold = lock.queue_for_maintenance("disk", MaintenanceEnd::Never).unwrap();
        meeting.second.order(&format!("lock {path} {kind}"));
        meeting.contenders(&path, 3);
        meeting.first.release();
        meeting.contenders(&path, 2);
        assert!(!meeting.first.tries(&path, kind, BRIEFLY), "{kind} during a hold");
        assert_eq!(meeting.second.said(), None, "{kind} during a hold");
        let holder = lock.holder().unwrap().expect("the hold");
        assert_eq!(holder.maintenance().map(|hold| hold.reason).as_deref(), Some("disk"));
        assert!(lock.release_maintenance(&hold).unwrap());
        meeting.second.is_granted();
        meeting.second.release();
        meeting.contenders(&path, 0);
        row(["zklock maintenance", &format!("{} {kind}", meeting.first)], 2, begin, "waits");
    }
    drop(zk);
    meeting.end();
}

#[test]
fn s71_a_maintenance_hold_stops_curators_mutex_and_read_write_lock() {
    skip_without_zookeeper!();
    skip_without!(Curator);
    maintenance_stops("s71-maintenance-curator", Curator, &["mutex", "read", "write"]);
}

#[test]
fn s71_a_maintenance_hold_stops_kazoo() {
    skip_without_zookeeper!();
    skip_without!(Kazoo);
    let kinds = ["mutex", "read", "write", "mutex-patterns", "mutex-subclass", "write-subclass"];
    maintenance_stops("s71-maintenance-kazoo", Kazoo, &kinds);
}

#[test]
fn s71_a_maintenance_hold_stops_zookeeper_client() {
    skip_without_zookeeper!();
    skip_without!(ZookeeperClient);
    maintenance_stops("s71-maintenance-zookeeper-client", ZookeeperClient, &["mutex"]);
}

// ----- pairs that do not, as documented

/// We wait for aiozk's readers; they wait for its own writers only.
#[test]
fn s72_aiozks_readers_do_not_wait_for_us() {
    skip_without_zookeeper!();
    skip_without!(Aiozk);
    let mut meeting = Meeting::of("s72-aiozk", Zklock, Aiozk);
    meeting.admits("mutex", "read", false);
    meeting.admits("write", "read", false);
    meeting.swap();
    meeting.excludes("read", "mutex");
    meeting.excludes("read", "write");
    meeting.admits("read", "read", true);
    meeting.end();
}

/// We wait for ZooKeeper's own lock under both names; it does not wait for us under kazoo's.
#[test]
fn s72_zookeepers_write_lock_does_not_wait_for_kazoos_names() {
    skip_without_zookeeper!();
    skip_without!(WriteLock);
    let mut meeting = Meeting::of("s72-write-lock", Zklock, WriteLock);
    meeting.admits("mutex-kazoo", "mutex", false);
    meeting.swap();
    meeting.excludes("mutex", "mutex-kazoo");
    meeting.end();
}

/// We wait for kazoo; kazoo as shipped ignores our node names.
#[test]
fn s72_kazoo_as_shipped_does_not_wait_for_us() {
    skip_without_zookeeper!();
    skip_without!(Kazoo);
    let mut meeting = Meeting::of("s72-kazoo", Zklock, Kazoo);
    meeting.admits("mutex", "mutex", false);
    meeting.swap();
    meeting.excludes("mutex", "mutex");
    meeting.end();
}

/// We wait for a Curator that reads or writes; it does not wait for our mutex, nor for its own.
#[test]
fn s72_curators_read_write_lock_does_not_wait_for_a_mutex() {
    skip_without_zookeeper!();
    skip_without!(Curator);
    let mut meeting = Meeting::of("s72-curator-classes", Zklock, Curator);
    meeting.admits("mutex", "write", false);
    meeting.admits("mutex", "read", false);
    meeting.swap();
    meeting.excludes("write", "mutex");
    meeting.excludes("read", "mutex");
    meeting.swap();
    meeting.admits("write", "mutex", false);
    meeting.admits("read", "mutex", false);
    meeting.end();
    let mut meeting = Meeting::of("s72-curator-itself", Curator, Curator);
    meeting.admits("mutex", "write", false);
    meeting.admits("write", "mutex", false);
    meeting.end();
}

#[test]
fn s72_curator_does_not_wait_for_us_when_we_use_the_names_of_kazoo() {
    skip_without_zookeeper!();
    skip_without!(Curator);
    let mut meeting = Meeting::of("s72-curator-kazoo-names", Zklock, Curator);
    meeting.admits("mutex-kazoo", "mutex", false);
    meeting.admits("write-kazoo", "write", false);
    meeting.swap();
    meeting.excludes("mutex", "mutex-kazoo");
    meeting.excludes("write", "write-kazoo");
    meeting.end();
}

/// It considers only names with `lock-`.
#[test]
fn s72_zookeeper_client_does_not_wait_for_other_names() {
    skip_without_zookeeper!();
    skip_without!(ZookeeperClient);
    let mut meeting = Meeting::of("s72-zookeeper-client", Zklock, ZookeeperClient);
    meeting.admits("mutex-kazoo", "mutex", false);
    meeting.admits("write", "mutex", false);
    meeting.admits("read", "mutex", false);
    meeting.swap();
    meeting.excludes("mutex", "mutex-kazoo");
    meeting.excludes("mutex", "write");
    meeting.excludes("mutex", "read");
    meeting.end();
    if Kazoo.is_there() {
        let mut meeting = Meeting::of("s72-zookeeper-client-kazoo", Kazoo, ZookeeperClient);
        meeting.admits("mutex", "mutex", false);
        meeting.admits("mutex-patterns", "mutex", false);
        meeting.end();
    }
}

/// A client that shares a path with a kazoo that does not wait logs one warning; a client that
/// shares it with Curator logs none.
#[test]
fn s72_the_log_warns_of_contenders_that_do_not_wait_for_us() {
    skip_without_zookeeper!();
    skip_without!(Kazoo, Curator);
    skip_unless_alone!();
    let logs = logs(LevelFilter::Warn);
    let mut meeting = Meeting::of("s72-warning", Kazoo, Curator);
    let zk = meeting.site.client();
    let blocked_by = |holder: &mut Peer, path: &str, name: &str| {
        holder.lock(path, "mutex");
        let lock = mutex(&zk, &meeting.site.base, name);
        for _ in 0..2 {
            assert!(got_nothing(lock.try_lock_for(BRIEFLY)));
        }
        holder.release();
    };
    let (kazoo, curator) = (meeting.node("kazoo"), meeting.node("curator"));
    blocked_by(&mut meeting.second, &curator, "curator");
    assert_eq!(logs.warnings(), Vec::<String>::new());
    blocked_by(&mut meeting.first, &kazoo, "kazoo");
    let warnings = logs.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("extra_lock_patterns"), "{warnings:?}");
    drop(zk);
    meeting.end();
}

/// We wait for its writers and readers.
#[test]
fn s72_kazoos_read_write_lock_as_shipped_does_not_wait_for_us() {
    skip_without_zookeeper!();
    skip_without!(Kazoo);
    let mut meeting = Meeting::of("s72-rw-kazoo", Zklock, Kazoo);
    meeting.admits("write", "write", false);
    meeting.admits("write", "read", false);
    meeting.admits("read", "write", false);
    meeting.swap();
    meeting.excludes("write", "write");
    meeting.excludes("write", "read");
    meeting.excludes("read", "write");
    meeting.end();
}

#[test]
fn s72_curator_and_kazoo_as_shipped_do_not_wait_for_each_other() {
    skip_without_zookeeper!();
    skip_without!(Curator, Kazoo);
    let mut meeting = Meeting::of("s72-curator-kazoo", Curator, Kazoo);
    meeting.admits("mutex", "mutex", false);
    meeting.excludes("mutex", "mutex-patterns");
    meeting.swap();
    meeting.admits("mutex", "mutex", false);
    meeting.admits("mutex-patterns", "mutex", false);
    meeting.end();
}
