//! Thousands of locks, in a tree: what `ls`, `show`, `doctor --all` and, in a terminal, `top` say of them, also in an
//! outage.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use server::Server;
use stopwatch::Stopwatch;
use zklock::znode::{CreateMode, CreateOptions};
use zklock::{Acl, Client, Permissions};

#[path = "../../tests/it/support/server.rs"]
mod server;

#[path = "../../tests/it/support/stopwatch.rs"]
#[allow(dead_code, reason = "shared by tests: each uses a part")]
mod stopwatch;

/// The number of the calling thread, which the stopwatch asks for.
fn own_task() -> u32 {
    let task = fs::read_link("/proc/thread-self").unwrap();
    task.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// A key is answered within this time.
const AT_ONCE: Duration = Duration::from_millis(200);

const GUID: &str = "_c_aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa-lock-";

struct Site {
    server: Server,
    zk: Client,
}

impl Site {
    fn new() -> Site {
        let server = Server::start();
        let builder = Client::builder(&server.hosts()).session_timeout(Duration::from_secs(300));
        let zk = builder.connect().unwrap();
        Site { server, zk }
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.env("ZKLOCK_HOSTS", self.server.hosts()).args(arguments).stdin(Stdio::null());
        command
    }

    /// Exit code, standard output, standard error.
    fn zklock(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(env!("CARGO_BIN_EXE_zklock"), arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Creates all of these nodes.
    fn create(&self, nodes: &[(String, CreateMode)]) {
        for some in nodes.chunks(500) {
            let all = self.zk.transaction();
            let data = "host=web1 pid=7 program=job thread=t";
            some.iter()
                .fold(all, |all, (path, mode)| all.create(path, *mode, data))
                .commit()
                .unwrap();
        }
    }

    /// Has locks held that are five levels deep, and hides two nodes. Returns the locks' paths, sorted.
    fn deep_locks(&self) -> Vec<String> {
        let mut level = vec!["/locks".to_owned()];
        let mut nodes = vec![("/locks".to_owned(), CreateMode::Persistent)];
        for width in [10, 5, 5, 4, 2] {
            let below = |parent: &String| {
                (0..width).map(|name| format!("{parent}/{name}")).collect::<Vec<_>>()
            };
            level = level.iter().flat_map(below).collect();
            nodes.extend(level.iter().map(|path| (path.clone(), CreateMode::Persistent)));
        }
        let contender = |lock: &String| format!("{lock}/{GUID}0000000000");
        nodes.extend(level.iter().map(|lock| (contender(lock), CreateMode::Ephemeral)));
        self.create(&nodes);
        let nobody = Acl::digest(Permissions::ALL, "nobody:nothing");
        let hidden = CreateOptions::new(CreateMode::Persistent).acl(nobody);
        for path in ["/locks/0/0/hidden", "/locks/hidden"] {
            let _ = self.zk.znode(path).create(hidden.clone(), "").unwrap();
        }
        level.sort();
        level
    }
}

/// `zklock top` in a terminal of its own.
struct Top {
    terminal: File,
    shown: String,
    process: Child,
}

impl Top {
    fn start(site: &Site, arguments: &[&str]) -> Top {
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None).unwrap();
        // Otherwise the next one would keep this terminal open.
        fcntl(&pair.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        let slave = || Stdio::from(pair.slave.try_clone().unwrap());
        let mut command = site.command("setsid", &["--ctty", env!("CARGO_BIN_EXE_zklock"), "top"]);
        let process = command.args(arguments).stdin(slave()).stdout(slave()).stderr(slave());
        Top {
            process: process.spawn().unwrap(),
            terminal: pair.master.into(),
            shown: String::new(),
        }
    }

    fn types(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    /// Reads what is shown next; false if nothing more will be.
    fn reads(&mut self) -> bool {
        let mut asked = [PollFd::new(self.terminal.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut asked, PollTimeout::from(60_000_u16)).unwrap(), 1, "{:?}", self.shown);
        let mut bytes = [0; 65_536];
        match self.terminal.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
                true
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::EIO as i32));
                false
            }
        }
    }

    /// Waits for a screen of which this is true, and returns it.
    fn until(&mut self, is_meant: impl Fn(&str) -> bool) -> String {
        loop {
            // Each screen begins at home, and its last line ends with what clears the rest.
            while let Some(end) = self.shown.find("\x1b[J") {
                let screen = self.shown[..end].rsplit("\x1b[H").next().unwrap().to_owned();
                self.shown.drain(..end + 3);
                if is_meant(&screen) {
                    return screen.replace("\x1b[K", "");
                }
            }
            assert!(self.reads(), "it has ended: {}", self.shown);
        }
    }

    fn until_shown(&mut self, text: &str) -> String {
        self.until(|screen| screen.contains(text))
    }

    /// How long each of its threads was ready to run without a processor. The first is there to be asked until
    /// somebody waits for the process.
    fn waited(&self) -> HashMap<PathBuf, Duration> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id()));
        let waited = |task: &Path| {
            let text = fs::read_to_string(task.join("schedstat")).ok()?;
            text.split(' ').nth(1)?.parse().ok().map(Duration::from_nanos)
        };
        let tasks = tasks.into_iter().flatten().flatten().map(|task| task.path());
        tasks.filter_map(|task| Some((task.clone(), waited(&task)?))).collect()
    }

    /// Checks that it does what is asked for within this time.
    fn takes(&mut self, limit: Duration, what: &str, act: impl FnOnce(&mut Top)) {
        let (before, watch) = (self.waited(), Stopwatch::start());
        act(self);
        let took = watch.took();
        let since = |(task, waited): (PathBuf, Duration)| {
            waited.saturating_sub(before.get(&task).copied().unwrap_or_default())
        };
        let held_up: Duration = self.waited().into_iter().map(since).sum();
        assert!(took.within(limit + held_up), "{what}: {took:?}, itself held up for {held_up:?}");
    }

    /// Waits for its end, while the process is still there to be asked.
    fn until_it_ends(&mut self) {
        while self.reads() {}
    }

    fn ends_by_q(mut self) {
        self.types("q");
        self.until_it_ends();
        assert_eq!(self.end(), 0);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }

    /// Its exit code, or the signal that ended it.
    fn end(mut self) -> i32 {
        let status = self.process.wait().unwrap();
        status.code().or(status.signal().map(|number| 128 + number)).unwrap()
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn two_thousand_locks_in_a_deep_tree_are_listed_and_what_is_hidden_is_said() {
    let site = Site::new();
    let locks = site.deep_locks();
    assert_eq!(locks.len(), 2_000);
    let (code, out, err) = site.zklock(&["ls"]);
    let listed: Vec<&str> = out.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!((code, listed.len()), (0, 2_000));
    assert!(locks.iter().eq(&listed));
    let hidden = "zklock: /locks/0/0/hidden cannot be read: not permitted (READ)\n\
                  zklock: /locks/hidden cannot be read: not permitted (READ)\n";
    assert_eq!(err, hidden);
    let (_, out, err) = site.zklock(&["--json", "ls", "0/0"]);
    let last = out.lines().last().unwrap();
    let hidden = r#"{"unlisted":"/locks/0/0/hidden","why":"cannot be read: not permitted (READ)"}"#;
    assert_eq!((out.lines().count(), last), (41, hidden));
    assert!(err.contains("/locks/0/0/hidden"), "{err}");
    let (code, out, _) = site.zklock(&["show", &locks[7]]);
    let heading = format!("{}  mutex: held by 1, waited for by 0\n", locks[7]);
    assert!(code == 0 && out.starts_with(&heading), "{out}");
    // One of them belongs to no session any more, and one lock is not for this client.
    let orphan = format!("{}/{GUID}0000000000", locks[3]);
    site.zk.znode(&orphan).delete().unwrap();
    let _ = site.zk.znode(&orphan).create(CreateMode::Persistent, "").unwrap();
    let others = [
        Acl::world(Permissions::READ | Permissions::ADMIN),
        Acl::digest(Permissions::ALL, "ops:secret"),
    ];
    site.zk.znode(&locks[5]).set_acl(others.to_vec()).unwrap();
    let (code, out, _) = site.zklock(&["doctor", "--all"]);
    assert_eq!(code, 1, "{out}");
    let found: Vec<&str> = out.lines().filter(|line| line.contains("/locks")).collect();
    let remedy = format!("zklock break {} --node {GUID}0000000000", locks[3]);
    let expected = [
        "ok       /locks: 2000 locks, 0 contenders wait".to_owned(),
        "warning  /locks/0/0/hidden: it cannot be read: not permitted (READ)".to_owned(),
        "warning  /locks/hidden: it cannot be read: not permitted (READ)".to_owned(),
        format!(
            "error    {}: {GUID}0000000000 (node {GUID}0000000000) belongs to no session, so nothing will remove it: \
             {remedy}",
            locks[3]
        ),
        format!(
            "warning  {}: ACL world:anyone ra, digest:ops:secret cdrwa: it does not permit CREATE, DELETE to this \
             client, which cannot take it: use the credentials of those who do (--auth-file)",
            locks[5]
        ),
    ];
    assert_eq!(found, expected);
    assert!(out.contains("ok       clock: this host's and the ensemble's agree within a second"));
    let remedy: Vec<&str> = remedy.split(' ').skip(1).chain(["--yes"]).collect();
    assert_eq!(site.zklock(&remedy).0, 0);
    site.zk.znode(&locks[5]).set_acl(Acl::open()).unwrap();
    let (code, out, _) = site.zklock(&["doctor", "--all", "/locks/0"]);
    assert!(code == 0 && out.contains("/locks/0: 199 locks, 0 contenders wait"), "{out}");
}

#[test]
fn top_scrolls_and_filters() {
    let site = Site::new();
    let locks = site.deep_locks();
    let mut top = Top::start(&site, &[]);
    top.until_shown("/locks: 2000 locks, 0 contenders wait; by waiting; 1 to 20 of 2000");
    top.until_shown("/locks/0/0/hidden cannot be read: not permitted (READ); and 1 more");
    top.types("n");
    top.until_shown("; by name; 1 to 20 of 2000");
    top.types("\x1b[B\x1b[6~");
    let screen = top.until_shown("; 22 to 41 of 2000");
    assert!(screen.contains(&locks[21]) && screen.contains(&locks[40]), "{screen}");
    assert!(!screen.contains(&format!("{} ", locks[20])), "{screen}");
    top.types("\x1b[F");
    top.until_shown("; 1981 to 2000 of 2000");
    top.types("/7/4/4/3/");
    let screen = top.until_shown("; 2 of them");
    assert!(
        screen.contains("/locks/7/4/4/3/1") && screen.contains("web1 (pid 7, job)"),
        "{screen}"
    );
    top.types("\r");
    top.until_shown("filter: 7/4/4/3/   / changes it");
    top.types("\x1b");
    top.until_shown("; 1 to 20 of 2000");
    top.ends_by_q();
}

#[test]
fn top_tells_of_an_outage_and_answers_keys_in_it_on_time() {
    let site = Site::new();
    let locks = site.deep_locks();
    let mut top = Top::start(&site, &[]);
    let mut third = Top::start(&site, &[]);
    let mut by_key = Top::start(&site, &["--every", "100ms"]);
    for one in [&mut top, &mut third, &mut by_key] {
        one.until_shown("2000 locks");
    }
    let is_current = |screen: &str| !screen.contains("not current");
    top.until(is_current);
    site.server.pause();
    top.takes(Duration::from_secs(2), "the silence is said", |top| {
        top.until_shown("not current: no server has answered for ");
    });
    top.takes(AT_ONCE, "an order by name", |top| {
        top.types("n");
        top.until_shown("by name");
    });
    top.takes(AT_ONCE, "the end of the list", |top| {
        top.types("\x1b[F");
        top.until_shown("1981 to 2000 of 2000");
    });
    by_key.takes(AT_ONCE, "the end by q", |top| {
        top.types("q");
        top.until_it_ends();
    });
    assert_eq!(by_key.end(), 0);
    third.takes(AT_ONCE, "the end by TERM", |top| {
        top.signal(Signal::SIGTERM);
        top.until_it_ends();
    });
    assert_eq!(third.end(), 143);
    // It has never had an answer.
    let mut late = Top::start(&site, &[]);
    late.until_shown("/locks: looking");
    late.until_shown("not current: no server has answered for ");
    late.takes(AT_ONCE, "the end by Ctrl-C", |top| {
        top.types("\u{3}");
        top.until_it_ends();
    });
    assert_eq!(late.end(), 0);
    for arguments in [&["ls"][..], &["show", &locks[0]], &["doctor", "--all"]] {
        let arguments = [&["--connect-timeout", "300ms"], arguments].concat();
        assert_eq!(site.zklock(&arguments).0, 69, "{arguments:?}");
    }
    site.server.resume();
    top.until(|screen| screen.contains("2000 locks") && is_current(screen));
    // What has changed meanwhile is seen.
    let contender = format!("{}/{GUID}0000000000", locks[1]);
    site.zk.znode(&contender).delete().unwrap();
    top.until(|screen| screen.contains("1999 locks") && is_current(screen));
    assert_eq!(site.zklock(&["ls"]).1.lines().count(), 1_999);
    assert!(site.zklock(&["show", &locks[1]]).1.ends_with("  free\n"));
    top.takes(AT_ONCE, "the end by q", |top| {
        top.types("q");
        top.until_it_ends();
    });
    assert_eq!(top.end(), 0);
}

/// Two lists take all requests of the nodes, but those of the contenders once.
#[test]
fn top_reads_what_contenders_say_only_once() {
    let site = Site::new();
    let locks = site.deep_locks();
    let mut top = Top::start(&site, &[]);
    top.until_shown("2000 locks");
    site.server.stat_reset();
    // The next list shows it.
    site.zk.znode(format!("{}/{GUID}0000000000", locks[1])).delete().unwrap();
    top.until_shown("1999 locks");
    let packets = site.server.counter("zk_packets_received");
    let nodes = 1 + 10 + 50 + 250 + 1_000 + 2_000 + 2;
    // Besides, it was checked a few times whether the server answers.
    assert!((nodes..nodes + 500).contains(&packets), "{packets}");
    top.ends_by_q();
}

#[test]
fn top_shows_a_path_that_does_not_exist_until_it_does() {
    let site = Site::new();
    let mut top = Top::start(&site, &["later"]);
    top.until_shown("/locks/later does not exist");
    let lock = "/locks/later/a".to_owned();
    let nodes =
        ["/locks", "/locks/later", &lock].map(|path| (path.to_owned(), CreateMode::Persistent));
    site.create(&nodes);
    site.create(&[(format!("{lock}/{GUID}0000000000"), CreateMode::Ephemeral)]);
    top.until_shown("/locks/later: 1 locks, 0 contenders wait");
    top.ends_by_q();
}

#[test]
fn top_ends_also_if_nobody_reads_its_terminal() {
    let site = Site::new();
    let _ = site.deep_locks();
    let mut top = Top::start(&site, &[]);
    top.until_shown("2000 locks");
    // They change more screens than a terminal holds.
    top.types(&("nw".repeat(10_000) + "q"));
    assert_eq!(top.end(), 0);
}
