//! The subcommands that look at locks, ask for them and break them, on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod site;

use std::any::Any;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::SystemTime;

use nix::pty::{Winsize, openpty};
use serde_json::Value;
use zklock::znode::CreateMode;
use zklock::{DistributedLock, DistributedRwLock, DistributedSemaphore, LeaderElection};
use zklock_testing::ZooKeeper;

use self::site::{Site, said};

impl Site {
    /// The lines that it prints on a terminal of this width.
    fn on_a_terminal(&self, width: u16, arguments: &[&str]) -> Vec<String> {
        let size = Winsize { ws_row: 24, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None).unwrap();
        // The terminal ends with the process: nobody else keeps it open.
        let mut child = self.command(arguments).stdout(Stdio::from(pair.slave)).spawn().unwrap();
        let mut shown = Vec::new();
        let _ = File::from(pair.master).read_to_end(&mut shown);
        assert!(child.wait().unwrap().success());
        String::from_utf8(shown).unwrap().lines().map(str::to_owned).collect()
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let (code, out, err) = self.zklock(&[&["--json"], arguments].concat());
        assert_eq!((code, err.as_str()), (0, ""));
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn lock(&self, name: &str) -> DistributedLock {
        DistributedLock::new(&self.zk, "/locks", name).data("host=web1 pid=7 program=job thread=t")
    }
}

#[test]
fn a_free_lock() {
    let site = Site::new();
    for is_there in [false, true] {
        if is_there {
            let node = site.zk.znode("/free/a");
            let _ = node.create_with_parents(CreateMode::Persistent, "").unwrap();
        }
        let text = "no such node: nobody holds it, and nobody has yet, or not since it was removed when idle\n";
        let said = if is_there { String::new() } else { format!("zklock: /free/a: {text}") };
        assert_eq!(site.zklock(&["test", "/free/a"]), (1, String::new(), said.clone()));
        assert_eq!(site.zklock(&["test", "-q", "/free/a"]), (1, String::new(), String::new()));
        let shown = if is_there { "free\n" } else { text };
        let shown = (0, format!("/free/a  {shown}"), String::new());
        assert_eq!(site.zklock(&["show", "/free/a"]), shown);
        assert_eq!(site.zklock(&["wait", "/free/a"]), (0, String::new(), said));
    }
    assert_eq!(site.zklock(&["leader", "a"]), (1, String::new(), String::new()));
    assert_eq!(
        site.zklock(&["ask", "a"]),
        (1, String::new(), "zklock: a: nobody holds it\n".to_owned())
    );
    let missing = (1, String::new(), "zklock: /locks does not exist\n".to_owned());
    assert_eq!(site.zklock(&["ls"]), missing);
    assert_eq!(site.zklock(&["--json", "ls"]), missing);
    let _ = site.zk.znode("/locks").create(CreateMode::Persistent, "").unwrap();
    let (code, out, err) = site.zklock(&["ls"]);
    assert_eq!((code, out.as_str()), (0, ""));
    assert_eq!(err, "zklock: nobody holds or waits for a lock below /locks\n");
    assert!(site.json(&["ls"]).is_empty());
    let (code, _, err) = site.zklock(&["break", "a", "--session", "0x1", "--yes"]);
    assert_eq!(
        (code, err.as_str()),
        (1, "zklock: a: no contender is like that; see zklock show\n")
    );
}

#[test]
fn a_held_lock_and_its_waiter() {
    let site = Site::new();
    let guard = site.lock("a").lock().unwrap();
    assert_eq!(site.zklock(&["test", "a"]).0, 0);
    assert_eq!(site.zklock(&["test", "/locks/a"]).0, 0);
    let (code, _, err) = site.zklock(&["wait", "-w", "3", "a"]);
    assert_eq!(code, 124);
    assert!(
        err.starts_with("zklock: a: not free within 3.0 s: held by web1 (pid 7, job), queued "),
        "{err}"
    );
    let (code, out, err) = site.zklock(&["show", "a"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "/locks/a  mutex: held by 1, waited for by 0");
    let cells: Vec<&str> = lines[1].split('\t').collect();
    assert_eq!(cells[..3], ["holds", "mutex", "web1 (pid 7, job)"]);
    assert_eq!(cells[5], site.zk.session_id().unwrap().to_string());
    assert!(guard.path().ends_with(cells[6]));
    let shown = &site.json(&["show", "a"])[0];
    assert_eq!(shown["contenders"][0]["host"], "web1");
    assert_eq!(shown["contenders"][0]["holds"], true);
    assert_eq!((&shown["kind"], &shown["permits"]), (&"mutex".into(), &Value::Null));
    let queued_since = shown["contenders"][0]["queued_since"].as_str().unwrap();
    assert!(humantime::parse_rfc3339(queued_since).unwrap() <= SystemTime::now());
    // `wait` ends with the release.
    let mut waiter = site.command(&["wait", "a"]).spawn().unwrap();
    guard.unlock().unwrap();
    assert!(waiter.wait().unwrap().success());
}

#[test]
fn all_kinds_are_listed() {
    let site = Site::new();
    let mutex = site.lock("a").lock().unwrap();
    let rw = DistributedRwLock::new(&site.zk, "/locks", "b");
    let readers = [rw.read().unwrap(), rw.read().unwrap()];
    let permit = DistributedSemaphore::new(&site.zk, "/locks", "c", 5).acquire_many(3).unwrap();
    let leader = LeaderElection::new(&site.zk, "/locks", "d").id("web1:80\nmore");
    let leader = leader.campaign().unwrap();
    let (code, out, err) = site.zklock(&["ls"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split('\t').collect()).collect();
    let without_queued = |row: &Vec<&str>| [row[0], row[1], row[2], row[5]].join(" ");
    assert_eq!(
        rows.iter().map(without_queued).collect::<Vec<_>>(),
        [
            "/locks/a mutex web1 (pid 7, job) 0",
            "/locks/b read/write 2 readers 0",
            "/locks/c semaphore 3 of 5 0",
            "/locks/d mutex web1:80 0",
        ]
    );
    let listed = site.json(&["ls", "/locks"]);
    assert_eq!(listed.len(), 4);
    assert_eq!((&listed[2]["permits"], &listed[2]["taken"]), (&5.into(), &3.into()));
    assert_eq!(site.zklock(&["leader", "d"]).1, "web1:80\n");
    assert_eq!(site.json(&["leader", "d"])[0]["leader"], "web1:80\nmore");
    drop((mutex, readers, permit, leader));
}

#[test]
fn paths_may_end_with_a_slash_and_the_root_can_be_listed() {
    let site = Site::new();
    let guard = site.lock("a").lock().unwrap();
    let below_the_root = DistributedLock::new(&site.zk, "/", "top").lock().unwrap();
    for arguments in
        [&["ls", "/locks/"][..], &["ls", "--base", "/locks/"], &["--base", "/", "ls", "locks/"]]
    {
        let (code, out, err) = site.zklock(arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        assert!(out.starts_with("/locks/a\t"), "{arguments:?}: {out}");
    }
    for arguments in [&["ls", "/"][..], &["--base", "/", "ls"]] {
        let (code, out, err) = site.zklock(arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        let paths: Vec<_> = out.lines().map(|line| line.split('\t').next().unwrap()).collect();
        assert_eq!(paths, ["/locks/a", "/top"], "{arguments:?}");
    }
    for lock in ["a/", "/locks/a/", "/locks/a//", "/top/"] {
        assert_eq!(site.zklock(&["test", lock]).0, 0, "{lock}");
    }
    for no_lock in ["/", "", "//"] {
        assert_eq!(site.zklock(&["test", no_lock]).0, 64, "{no_lock:?}");
    }
    drop((guard, below_the_root));
}

#[test]
fn on_a_narrow_terminal_only_who_it_is_is_cut() {
    let site = Site::new();
    let guard = site.lock("a").lock().unwrap();
    let waiter = "/locks/a/_c_aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa-lock-";
    for host in ["web2", "web3.a.long.name.example.org"] {
        let data = format!("host={host} pid=911 program=backup.sh thread=main");
        let waiter = site.zk.znode(waiter);
        let _ = waiter.create(CreateMode::EphemeralSequential, data).unwrap();
    }
    let session = site.zk.session_id().unwrap().to_string();
    let lines = site.on_a_terminal(80, &["show", "a"]);
    assert_eq!(lines[0], "/locks/a  mutex: held by 1, waited for by 2");
    let words = |line: &str| {
        line.split("  ")
            .filter(|one| !one.is_empty())
            .map(|one| one.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(words(&lines[1]), ["STATE", "KIND", "WHO", "HELD", "QUEUED", "SESSION", "NODE"]);
    let first = guard.path().len() - 10;
    let first: i32 = guard.path()[first..].parse().unwrap();
    for (place, (state, who)) in [
        ("holds", "web1 (pid 7, job)"),
        ("behind 1", "web2 (pid 911,"),
        ("behind 2", "web3.a.long.na"),
    ]
    .into_iter()
    .enumerate()
    {
        let line = &lines[2 + place];
        assert!(line.chars().count() <= 80, "{line}");
        let cells = words(line);
        // None of them tells since when it holds.
        assert_eq!(cells[..2], [state, "mutex"]);
        assert!(cells[2].starts_with(who), "{line}");
        let number = first + i32::try_from(place).unwrap();
        assert_eq!(cells[4..], [session.clone(), format!("{number:010}")]);
    }
    drop(guard);
}

#[test]
fn the_permits_of_a_semaphore_are_shown() {
    let site = Site::new();
    let semaphore = DistributedSemaphore::new(&site.zk, "/locks", "a", 5);
    let permits = [semaphore.acquire_many(3).unwrap(), semaphore.acquire().unwrap()];
    let (_, out, _) = site.zklock(&["show", "a"]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "/locks/a  semaphore, 4 of 5 permits taken: held by 2, waited for by 0");
    assert!(lines[1].starts_with("holds\t3 permits\t"), "{out}");
    assert!(lines[2].starts_with("holds\t1 permit\t"), "{out}");
    let shown = &site.json(&["show", "a"])[0];
    assert_eq!(
        (&shown["kind"], &shown["permits"], &shown["taken"]),
        (&"semaphore".into(), &5.into(), &4.into())
    );
    drop(permits);
}

#[test]
fn a_holder_is_asked() {
    let site = Site::new();
    let guard = site.lock("a").lock().unwrap();
    let (code, _, err) = site.zklock(&["ask", "-w", "3", "a"]);
    assert_eq!(code, 124);
    assert!(err.ends_with("zklock: a: not released within 3.0 s\n"), "{err}");
    assert!(guard.release_requested());
    guard.unlock().unwrap();
    let guard = site.lock("a").lock().unwrap();
    let (sender, asked) = std::sync::mpsc::channel();
    guard.on_release_requested(move || sender.send(()).unwrap());
    let mut ask = site.command(&["ask", "-w", "60", "a"]).spawn().unwrap();
    asked.recv().unwrap();
    guard.unlock().unwrap();
    assert!(ask.wait().unwrap().success());
    assert_eq!(site.zklock(&["test", "a"]).0, 1);
}

#[test]
fn all_holders_of_a_shared_lock_are_asked_and_waited_for() {
    let site = Site::new();
    let rw = DistributedRwLock::new(&site.zk, "/locks", "a");
    let (first, second) = (rw.read().unwrap(), rw.read().unwrap());
    let ask = |limit| {
        let mut command = site.command(&["ask", "-w", limit, "a"]);
        let mut ask = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(ask.stderr.take().unwrap()).lines();
        assert!(said.next().unwrap().unwrap().contains("asked for its release"));
        ask
    };
    let mut too_short = ask("3");
    first.unlock().unwrap();
    assert_eq!(too_short.wait().unwrap().code(), Some(124));
    let mut ask = ask("60");
    // Those that come later are not waited for.
    let later = rw.read().unwrap();
    second.unlock().unwrap();
    assert!(ask.wait().unwrap().success());
    drop(later);
}

#[test]
fn a_wait_without_a_server_does_not_end_as_if_others_held_the_lock() {
    let site = Site::new();
    let guard = site.lock("a").lock().unwrap();
    let mut ask = site.command(&["ask", "-w", "8", "a"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(ask.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().contains("asked for its release"));
    site.server.stop().unwrap();
    let last = said.map_while(Result::ok).last().unwrap();
    assert_eq!(last, "zklock: a: no server has answered within 8.0 s");
    assert_eq!(ask.wait().unwrap().code(), Some(69));
    drop(guard);
}

#[test]
fn a_lock_is_broken_by_node_or_session_and_not_by_mistake() {
    let site = Site::new();
    let guard = site.lock("a").lock().unwrap();
    let node = guard.path().rsplit('/').next().unwrap().to_owned();
    let (code, out, err) = site.zklock(&["break", "a", "--node", &node]);
    assert_eq!((code, out.as_str()), (64, ""));
    assert!(err.contains("--yes"), "{err}");
    assert!(guard.is_held());
    assert_eq!(site.zklock(&["break", "a", "--yes"]).0, 64);
    assert_eq!(site.zklock(&["break", "a", "--node", "other", "--yes"]).0, 1);
    let (code, _, err) = site.zklock(&["break", "a", "--node", &node, "--yes"]);
    assert_eq!((code, err.as_str()), (0, "zklock: a: web1 (pid 7, job) was removed\n"));
    assert!(guard.lost().wait().is_err());
    let guard = site.lock("a").lock().unwrap();
    let session = site.zk.session_id().unwrap().to_string();
    assert_eq!(site.zklock(&["break", "a", "--session", &session, "--yes"]).0, 0);
    assert!(guard.lost().wait().is_err());
    let guard = site.lock("a").lock().unwrap();
    let number = &guard.path()[guard.path().len() - 10..];
    assert_eq!(site.zklock(&["break", "a", "--node", number, "--yes"]).0, 0);
    assert!(guard.lost().wait().is_err());
}

#[test]
fn of_a_waiter_that_is_removed_it_is_said_that_it_may_queue_again() {
    let site = Site::new();
    let guard = site.lock("a").lock().unwrap();
    let waiter = "/locks/a/_c_aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa-lock-";
    let waiter = site.zk.znode(waiter).create(CreateMode::EphemeralSequential, "host").unwrap();
    let (code, _, err) = site.zklock(&["break", "a", "--node", waiter.path(), "--yes"]);
    let said = "zklock: a: host no longer waits; it may queue again, as zklock run does\n";
    assert_eq!((code, err.as_str()), (0, said));
    assert!(guard.is_held());
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure_and_a_reader_that_has_gone_is_none() {
    let site = Site::new();
    let guard = site.lock("a").lock().unwrap();
    for arguments in
        [&["ls"][..], &["--json", "ls"], &["show", "a"], &["--json", "test", "a"], &["doctor"]]
    {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = said(site.command(arguments).stdout(full).output().unwrap());
        let why = "zklock: standard output: No space left on device (os error 28)\n".to_owned();
        let why = if arguments.contains(&"a") { why.replace("zklock:", "zklock: a:") } else { why };
        assert_eq!(output, (125, String::new(), why), "{arguments:?}");
        let (reader, writer) = nix::unistd::pipe().unwrap();
        drop(reader);
        let output = said(site.command(arguments).stdout(writer).output().unwrap());
        assert_eq!(output, (0, String::new(), String::new()), "{arguments:?}");
    }
    drop(guard);
}

#[test]
fn changes_are_watched() {
    let site = Site::new();
    let mut watch = site.command(&["--json", "watch", "a"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut holders = || -> usize {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        line["holders"].as_array().unwrap().len()
    };
    assert_eq!(holders(), 0);
    let guard = site.lock("a").lock().unwrap();
    assert_eq!(holders(), 1);
    guard.unlock().unwrap();
    assert_eq!(holders(), 0);
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn a_watch_ends_when_nobody_reads_it() {
    let site = Site::new();
    let mut watch = site.command(&["watch", "a"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.ends_with("free\n"), "{first}");
    assert!(watch.wait().unwrap().success());
}

#[test]
fn all_holders_of_a_shared_lock_and_of_a_semaphore_are_watched() {
    let site = Site::new();
    let rw = DistributedRwLock::new(&site.zk, "/locks", "rw").data("a reader");
    let permits = DistributedSemaphore::new(&site.zk, "/locks", "permits", 3);
    let permits = permits.data("a part");
    let read: &dyn Fn() -> Box<dyn Any> = &|| Box::new(rw.read().unwrap());
    let acquire: &dyn Fn() -> Box<dyn Any> = &|| Box::new(permits.acquire().unwrap());
    for (name, holder, hold) in [("rw", "a reader", read), ("permits", "a part", acquire)] {
        let mut watch = site.command(&["watch", name]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        let mut shown = || lines.next().unwrap().unwrap().split_once("  ").unwrap().1.to_owned();
        assert_eq!(shown(), "free");
        let first = hold();
        assert_eq!(shown(), format!("held by {holder}"));
        let second = hold();
        assert_eq!(shown(), format!("held by {holder}, {holder}"));
        drop(first);
        assert_eq!(shown(), format!("held by {holder}"));
        drop(second);
        assert_eq!(shown(), "free");
        watch.kill().unwrap();
        watch.wait().unwrap();
    }
}

#[test]
fn what_others_have_written_does_not_control_the_terminal() {
    let site = Site::new();
    let evil = DistributedLock::new(&site.zk, "/locks", "a").data("\u{1b}[2Jgone\ttab");
    let guard = evil.lock().unwrap();
    for arguments in [&["ls"][..], &["show", "a"], &["ask", "a"]] {
        let (_, out, err) = site.zklock(arguments);
        assert!(!out.contains('\u{1b}') && !err.contains('\u{1b}'), "{out}{err}");
    }
    drop(guard);
}

#[test]
fn the_doctor_finds_what_is_wrong() {
    let site = Site::new();
    let (code, out, _) = site.zklock(&["doctor", "a"]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("ok       /locks/a: its node does not exist"), "{out}");
    let guard = site.lock("a").lock().unwrap();
    // An orphan, and something else.
    let orphan = "/locks/a/_c_aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa-lock-0000000007";
    let _ = site.zk.znode(orphan).create(CreateMode::Persistent, "").unwrap();
    let _ = site.zk.znode("/locks/a/readme").create(CreateMode::Persistent, "").unwrap();
    let (code, out, _) = site.zklock(&["doctor", "a"]);
    assert_eq!(code, 1, "{out}");
    for found in [
        "version ",
        "standalone; tickTime 200ms, session timeouts of 200ms to 60s; a read takes ",
        "ok       session: a session timeout of ",
        "ok       /locks/a: ACL world:anyone cdrwa",
        "error    /locks/a: _c_aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa-lock-0000000007 ",
        "warning  /locks/a: 1 children are no contenders, such as \"readme\"",
    ] {
        assert!(out.contains(found), "{found}: {out}");
    }
    let (_, _, err) = site.zklock(&["show", "a"]);
    assert!(
        err.contains("belongs to no session, so nothing will remove it: zklock break a --node _c_"),
        "{err}"
    );
    drop(guard);
}

#[test]
fn the_doctor_knows_items_of_a_queue_from_contenders() {
    let site = Site::new();
    let guard = site.lock("a").lock().unwrap();
    let _ = site.zk.znode("/locks/a/qn-0000000001").create(CreateMode::Persistent, "").unwrap();
    let (_, out, _) = site.zklock(&["doctor", "a"]);
    assert!(out.contains("no contenders, such as \"qn-0000000001\", an item of a queue"), "{out}");
    drop(guard);
}

#[test]
fn the_doctor_finds_servers_that_are_no_ensemble() {
    let site = Site::new();
    let other = ZooKeeper::builder().local().start().unwrap();
    let hosts = format!("{},{}", site.server.hosts(), other.hosts());
    let (code, out, _) = site.zklock(&["--hosts", &hosts, "doctor"]);
    assert_eq!(code, 1, "{out}");
    for hosts in [site.server.hosts(), other.hosts()] {
        let line =
            out.lines().find(|line| line.starts_with(&format!("error    {hosts}: "))).unwrap();
        assert!(line.contains("standalone, so it forms no ensemble with the others"), "{line}");
    }
}

/// Servers without a quorum. They tell so only when all of them have been asked.
fn without_quorum(count: usize) -> String {
    let all_are_asked = Arc::new(Barrier::new(count));
    let server = |_| {
        let (listener, all_are_asked) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::clone(&all_are_asked));
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for mut connection in listener.incoming().flatten() {
                let mut asked = [0; 4];
                if connection.read_exact(&mut asked).is_ok() && asked == *b"srvr" {
                    all_are_asked.wait();
                    let text = b"This ZooKeeper instance is not currently serving requests\n";
                    connection.write_all(text).unwrap();
                }
            }
        });
        address
    };
    (0..count).map(server).collect::<Vec<_>>().join(",")
}

#[test]
fn the_doctor_asks_all_servers_at_once_and_finds_that_they_have_no_quorum() {
    let site = Site::new();
    let hosts = without_quorum(3);
    let (code, out, _) = site.zklock(&["--hosts", &hosts, "--connect-timeout", "10s", "doctor"]);
    assert_eq!(code, 69, "{out}");
    for server in hosts.split(',') {
        let line = format!(
            "error    {server}: runs, but serves no clients: it has no quorum, or is starting"
        );
        assert!(out.contains(&line), "{out}");
    }
}

#[test]
fn without_a_server_the_answer_is_unknown() {
    let site = Site::new();
    site.server.stop().unwrap();
    let subcommands: [&[&str]; 8] = [
        &["ls"],
        &["show", "a"],
        &["test", "a"],
        &["wait", "a"],
        &["ask", "a"],
        &["leader", "a"],
        &["watch", "a"],
        &["break", "a", "--node", "n", "--yes"],
    ];
    for arguments in subcommands {
        let (code, out, err) = site.zklock(&[&["--connect-timeout", "200ms"], arguments].concat());
        assert_eq!((code, out.as_str()), (69, ""), "{arguments:?}");
        assert!(err.contains("Connection refused"), "{err}");
    }
    let (code, out, _) = site.zklock(&["--connect-timeout", "200ms", "doctor"]);
    assert_eq!(code, 69);
    assert!(out.starts_with("error    127.0.0.1:"), "{out}");
}
