//! `zklock graph`, `deadlocks` and `check`, and what they say of locks that hang, on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod site;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use zklock::{Acl, Client, DistributedLock, Permissions};

use self::site::Site;

const SOON: Duration = Duration::from_secs(20);

/// Ends the process, and what it runs with it, when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // TERM, as its guard process then ends the command, too.
        let id = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

impl Site {
    fn start(&self, arguments: &[&str]) -> Running {
        Running(self.command(arguments).stderr(Stdio::null()).spawn().unwrap())
    }

    fn lock(&self, name: &str) -> DistributedLock {
        DistributedLock::new(&self.zk, "/locks", name)
    }

    /// Waits until so many contend for this lock.
    fn contended_by(&self, name: &str, count: usize) {
        let lock = self.lock(name);
        eventually("the contenders", || lock.contenders().unwrap().len() == count);
    }
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < SOON, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two jobs, each of which runs another zklock under its own lock.
fn nested(site: &Site) -> [Running; 2] {
    let zklock = env!("CARGO_BIN_EXE_zklock");
    let job = |label: &str, lock: &str, inner: &str, other: &str| {
        // The inner one begins when the other job holds its lock.
        let script =
            format!("until {zklock} test {other}; do :; done; exec {zklock} run {inner} -- true");
        site.start(&["run", "--label", label, lock, "--", "sh", "-c", &script])
    };
    let jobs = [job("billing", "dlA", "dlB", "dlB"), job("stock, 50%", "dlB", "dlA", "dlA")];
    site.contended_by("dlA", 2);
    site.contended_by("dlB", 2);
    jobs
}

#[test]
fn two_jobs_that_lock_in_opposite_order_are_named_with_what_ends_it() {
    let site = Site::new();
    let _jobs = nested(&site);
    let (code, out, err) = site.zklock(&["deadlocks"]);
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[0],
        "DEADLOCK, unless a guard is with another thread, or something else ends one of them:"
    );
    let is_said = |label: &str, holds: &str, waits: &str| {
        let (label, holds) = (format!(", sh, {label:?})"), format!(" holds /locks/{holds}, for "));
        let waits = format!(", and waits for /locks/{waits}, queued ");
        lines[1..3]
            .iter()
            .any(|line| [&label, &holds, &waits].iter().all(|part| line.contains(*part)))
    };
    assert!(is_said("billing", "dlA", "dlB") && is_said("stock, 50%", "dlB", "dlA"), "{out}");
    assert!(
        lines[3].starts_with("  to end it, ask the last of them: zklock ask /locks/dl"),
        "{out}"
    );
    // What it says to type ends it.
    let ask: Vec<&str> = lines[3].split("zklock ").nth(1).unwrap().split(' ').collect();
    let (code, _, err) = site.zklock(&ask);
    assert_eq!(code, 0, "{err}");
    eventually("the end of the deadlock", || site.zklock(&["deadlocks"]).0 == 0);
}

#[test]
fn the_graph_shows_who_waits_for_whom_in_each_of_its_forms() {
    let site = Site::new();
    let _jobs = nested(&site);
    let (code, out, err) = site.zklock(&["graph"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "/locks/dlA");
    assert!(
        lines[1].starts_with("  held by ") && lines[1].ends_with("; it waits for /locks/dlB"),
        "{out}"
    );
    assert!(
        lines[2].starts_with("    <- ") && lines[2].ends_with("; it holds /locks/dlB"),
        "{out}"
    );
    let (code, out, _) = site.zklock(&["graph", "--dot"]);
    assert_eq!(code, 0);
    assert!(
        out.contains("n0 -> n1 ") && out.contains("n1 -> n0 ") && out.contains("\\\"billing\\\""),
        "{out}"
    );
    let (code, out, _) = site.zklock(&["graph", "--mermaid"]);
    assert_eq!(code, 0);
    assert!(
        out.contains("n1 -->|its holder waits for| n0") && out.contains("stock, 50#37;"),
        "{out}"
    );
    let (code, out, _) = site.zklock(&["--json", "graph"]);
    assert_eq!(code, 0);
    let all: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(all["locks"][0]["lock"], "/locks/dlA");
    assert_eq!(all["waits"].as_array().unwrap().len(), 2);
    // A lock that is held and not waited for is no part of it.
    let _held = site.lock("quiet").lock().unwrap();
    assert!(!site.zklock(&["graph"]).1.contains("quiet"));
}

#[test]
fn no_deadlock_and_one_that_an_acl_may_hide() {
    let site = Site::new();
    let held = site.lock("a").lock().unwrap();
    let _waits = site.start(&["run", "a", "--", "true"]);
    site.contended_by("a", 2);
    let none = "zklock: no deadlock at or below /locks\n".to_owned();
    assert_eq!(site.zklock(&["deadlocks"]), (0, String::new(), none));
    assert_eq!(site.zklock(&["--json", "deadlocks"]), (0, String::new(), String::new()));
    let (code, _, err) = site.zklock(&["deadlocks", "/nowhere"]);
    assert_eq!((code, err.as_str()), (125, "zklock: /nowhere does not exist\n"));
    held.unlock().unwrap();
    let hidden = DistributedLock::new(&site.zk, "/locks", "hidden").acl([Acl::new(
        Permissions::CREATE | Permissions::DELETE,
        "world",
        "anyone",
    )]);
    let lists = Client::connect(site.server.hosts()).unwrap();
    let parent = lists.znode("/locks/hidden");
    parent.create(zklock::znode::CreateMode::Persistent, "").unwrap();
    let _held = hidden.lock().unwrap();
    let (code, out, err) = site.zklock(&["deadlocks"]);
    assert_eq!((code, out.as_str()), (3, ""), "{err}");
    assert!(err.contains("cannot be read: not permitted (READ)"), "{err}");
}

#[test]
fn a_check_is_one_line_with_the_code_of_its_state() {
    let site = Site::new();
    let node = site.zk.znode("/locks/a");
    let _ = node.create_with_parents(zklock::znode::CreateMode::Container, "").unwrap();
    let ok = |arguments: &[&str]| site.zklock(&[&["check"], arguments].concat());
    assert_eq!(
        ok(&[
            "a",
            "--max-held",
            "1h",
            "--max-waiting",
            "10m",
            "--max-waiters",
            "0",
            "--no-deadlock"
        ]),
        (0, "ZKLOCK OK - /locks/a: 0 hold it, 0 wait\n".to_owned(), String::new())
    );
    let held = site.lock("a").data("host=web1 pid=7 program=job thread=t\nv=1").lock().unwrap();
    assert_eq!(
        ok(&["a", "--max-held", "1h", "--no-deadlock"]),
        (0, "ZKLOCK OK - /locks/a: 1 hold it, 0 wait\n".to_owned(), String::new())
    );
    let _waits = site.start(&["run", "a", "--", "true"]);
    site.contended_by("a", 2);
    let (code, out, _) =
        ok(&["a", "b", "--max-held", "1ms", "--max-waiting", "1ms", "--max-waiters", "0"]);
    assert_eq!(code, 2, "{out}");
    assert!(
        out.starts_with("ZKLOCK CRITICAL - /locks/a is held by web1 (pid 7, job) for "),
        "{out}"
    );
    assert!(
        out.contains(" (zklock ask /locks/a --node 0000000000); ") && out.contains(" has waited "),
        "{out}"
    );
    assert!(
        out.contains(" for /locks/a (who takes it: zklock watch /locks/a --for 1m); "),
        "{out}"
    );
    assert!(out.ends_with("; 1 wait for /locks/a\n"), "{out}");
    assert_eq!(out.lines().count(), 1);
    held.unlock().unwrap();
    let (code, _, err) = site.zklock(&["check"]);
    assert_eq!(code, 64, "{err}");
    let unreachable =
        site.command(&["--hosts", "127.0.0.1:1", "--connect-timeout", "100ms", "check", "a"]);
    let output = { unreachable }.output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("ZKLOCK UNKNOWN - "));
}

#[test]
fn a_holder_that_hangs_is_named_with_since_when_and_what_to_type() {
    let site = Site::new();
    let before = site.start(&["run", "hung", "--", "sleep", "1000"]);
    site.contended_by("hung", 1);
    // It waits for more than a second, and then hangs.
    let _hangs = site.start(&["run", "--label", "hangs", "hung", "--", "sleep", "1000"]);
    site.contended_by("hung", 2);
    let lock = site.lock("hung");
    eventually("a long wait", || {
        let all = lock.contenders().unwrap();
        all.iter().any(|one| !one.holds && one.age().unwrap() > Duration::from_millis(1_300))
    });
    drop(before);
    eventually("a holder that has told since when it holds", || {
        let holder = lock.holder().unwrap().expect("a holder");
        holder.held_since() > holder.since
    });
    eventually("two seconds", || {
        let held = lock.holder().unwrap().unwrap().held_since().unwrap();
        held.elapsed().unwrap_or_default() > Duration::from_secs(2)
    });
    let (code, out, err) = site.zklock(&["check", "hung", "--max-held", "1s"]);
    assert_eq!((code, err.as_str()), (2, ""), "{out}");
    assert!(out.starts_with("ZKLOCK CRITICAL - /locks/hung is held by "), "{out}");
    assert!(
        out.contains(", sleep, \"hangs\") for ")
            && out.ends_with(" (zklock ask /locks/hung --node 0000000001)\n"),
        "{out}"
    );
    // And that ends it.
    assert_eq!(site.zklock(&["ask", "/locks/hung", "--node", "0000000001", "-w", "15s"]).0, 0);
    assert_eq!(site.zklock(&["check", "hung", "--max-held", "1s"]).0, 0);
}

#[test]
fn a_crowd_and_a_holder_that_tells_nothing_are_named() {
    let site = Site::new();
    let foreign = site.lock("cur").data("10.1.2.3");
    let _held = foreign.lock().unwrap();
    let others: Vec<Client> =
        (0..30).map(|_| Client::connect(site.server.hosts()).unwrap()).collect();
    let waiters: Vec<_> = others
        .iter()
        .map(|zk| {
            let lock = DistributedLock::new(zk, "/locks", "cur");
            std::thread::spawn(move || lock.lock().map(drop).map_err(|error| error.kind()))
        })
        .collect();
    site.contended_by("cur", 31);
    let (code, out, _) = site.zklock(&["check", "cur", "--max-waiters", "29", "--max-held", "1ms"]);
    assert_eq!(code, 2, "{out}");
    assert!(out.contains("/locks/cur is held or was waited for by 10.1.2.3 for "), "{out}");
    assert!(
        out.contains(" (zklock show /locks/cur)") && out.contains("30 wait for /locks/cur"),
        "{out}"
    );
    let (_, out, _) = site.zklock(&["graph"]);
    assert!(
        out.contains("  held by 10.1.2.3, queued ") && out.ends_with("    <- and 20 more\n"),
        "{out}"
    );
    others.iter().for_each(Client::close);
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), Err(zklock::ErrorKind::Closed));
    }
}

#[test]
fn a_deadlock_is_critical_for_a_check() {
    let site = Site::new();
    let _jobs = nested(&site);
    let (code, out, err) = site.zklock(&["check", "dlA", "--no-deadlock"]);
    assert_eq!((code, err.as_str()), (2, ""), "{out}");
    assert!(out.starts_with("ZKLOCK CRITICAL - deadlock: ") && out.lines().count() == 1, "{out}");
    let next = |text: &str| text.contains(" (zklock ask /locks/dl") && text.ends_with(')');
    assert!(next(out.trim_end()), "{out}");
    let (code, out, _) = site.zklock(&["doctor", "--all"]);
    let found = out.lines().find(|line| line.starts_with("error    /locks: deadlock: "));
    assert!(code == 1 && found.is_some_and(next), "{out}");
}

#[test]
fn who_takes_a_lock_from_whom_is_told_by_how_often_each_client_held_it() {
    let site = Site::new();
    let of = |host: &str| site.lock("a").data(format!("host={host} pid=7 program=job thread=t"));
    let (first, second) = (of("web1"), of("web2"));
    let mut held = Some(first.lock().unwrap());
    let told = Stdio::piped();
    let mut watch =
        site.command(&["--json", "watch", "a", "--for", "3s"]).stdout(told).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    // Each takes it when it was seen that the other has it, for as long as is watched.
    let mut turns = [&second, &first].into_iter().cycle();
    let summary = loop {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if line.get("clients").is_some() {
            break line;
        }
        match line["holders"].as_array().unwrap().is_empty() {
            false => drop(held.take()),
            true if held.is_none() => held = Some(turns.next().unwrap().lock().unwrap()),
            true => {}
        }
    };
    assert!(watch.wait().unwrap().success());
    let clients = summary["clients"].as_array().unwrap();
    let of = |host: &str| {
        let one = clients.iter().find(|one| one["client"] == format!("{host} (job)"));
        let one = one.unwrap_or_else(|| panic!("{host} in {summary}"));
        (one["times"].as_u64().unwrap(), one["seconds"].as_f64().unwrap())
    };
    let ((times1, seconds1), (times2, seconds2)) = (of("web1"), of("web2"));
    assert!(times1 >= 1 && times2 >= 1 && times1.abs_diff(times2) <= 1, "{summary}");
    let watched = summary["seconds"].as_f64().unwrap();
    assert!(watched >= 3.0 && seconds1 > 0.0 && seconds2 > 0.0, "{summary}");
    assert!(seconds1 + seconds2 <= watched, "{summary}");
}

#[test]
fn a_waiter_that_gets_no_turn_is_named_with_the_client_that_has_them() {
    let site = Site::new();
    let _held = site.lock("a").data("host=web9 pid=7 program=job thread=t").lock().unwrap();
    let _waits = site.start(&["run", "a", "--", "true"]);
    site.contended_by("a", 2);
    let (code, out, err) = site.zklock(&["watch", "a", "--for", "1s"]);
    assert_eq!(code, 0, "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].ends_with("  held by web9 (pid 7, job)"), "{out}");
    assert!(lines[1].starts_with("/locks/a  seen for "), "{out}");
    assert!(lines[2].starts_with("web9 (job)\t1\t"), "{out}");
    assert!(
        lines[3].starts_with("1 wait, the first of them ") && lines[3].contains(", queued "),
        "{out}"
    );
    assert_eq!(lines.len(), 4, "{out}");
}

#[test]
fn what_was_seen_of_a_lock_is_told_also_if_no_server_answers_at_the_end() {
    let site = Site::new();
    let _held = site.lock("a").data("host=web9 pid=7 program=job thread=t").lock().unwrap();
    let arguments = ["--connect-timeout", "1s", "watch", "a", "--for"];
    let mut command = site.command(&[&arguments[..], &["3s"]].concat());
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().ends_with("  held by web9 (pid 7, job)"));
    site.server.pause().unwrap();
    let rest: Vec<String> = lines.map(|line| line.unwrap()).collect();
    assert_eq!(watch.wait().unwrap().code(), Some(69), "{rest:?}");
    assert!(rest[0].starts_with("/locks/a  seen for "), "{rest:?}");
    assert!(rest[1].starts_with("web9 (job)\t1\t"), "{rest:?}");
    assert_eq!(rest[2..], ["it is not known who waits"]);
    let output = site.command(&[&arguments[..], &["0s"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    site.server.resume().unwrap();
}
