//! Without faults: exit codes, messages, the command's surroundings, the kinds of locks.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use serde_json::Value;
use zklock::{DistributedLock, LeaderElection};

use super::support::{Ended, Running, Site};

#[test]
fn the_exit_code_is_that_of_the_command() {
    let site = Site::new("code");
    for (script, code) in [
        ("true", 0),
        ("exit 7", 7),
        ("exit 123", 123),
        ("kill -KILL $$", 137),
        ("kill -64 $$", 192),
    ] {
        let ended = site.run(["a", "--", "sh", "-c", script]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(code), ""), "{script}");
    }
    // By these, zklock ends as the command does. A shell shows them as 130 and 143.
    for (script, signal) in [("kill -INT $$", 2), ("kill -TERM $$", 15)] {
        let ended = site.run(["a", "--", "sh", "-c", script]);
        assert_eq!((ended.signal, ended.err.as_str()), (Some(signal), ""), "{script}");
    }
    let missing = site.run(["a", "--", "/no/such/program"]);
    assert_eq!(missing.code, Some(127));
    assert_eq!(missing.err, "zklock: a: cannot run /no/such/program: No such file or directory\n");
    let file = site.file("plain");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(site.run(["a".as_ref(), "--".as_ref(), file.as_os_str()]).code, Some(126));
    // Nothing stays: the next one need not wait for a session's end.
    assert_eq!(site.run(["-n", "a", "true"]).code, Some(0));
}

#[test]
fn wrong_usage_is_64_and_runs_nothing() {
    let site = Site::new("usage");
    let cases: [&[&str]; 10] = [
        &["a"],
        &["--on-loss", "nothing", "a", "echo", "ran"],
        &["-w", "1x", "a", "echo", "ran"],
        &["-s", "--once", "k", "a", "echo", "ran"],
        &["--label", "two\nlines", "a", "echo", "ran"],
        &["../a", "echo", "ran"],
        &["--hold-at-least", "1h", "--once", "k", "a", "echo", "ran"],
        &["--hold-at-least", "1h", "--lead", "a", "echo", "ran"],
        &["--grace", "2s", "a", "echo", "ran"],
        // It would be ended without an outage now and then.
        &["--grace", "1150ms", "a", "echo", "ran"],
    ];
    for arguments in cases {
        let ended = site.run(arguments);
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (Some(64), ""),
            "{arguments:?}: {}",
            ended.err
        );
        assert_ne!(ended.err, "");
    }
}

/// The usual grace is shorter then.
#[test]
fn a_short_session_timeout_needs_no_other_settings() {
    let site = Site::new("short");
    let mut command = site.zklock();
    let ended = Ended::new(command.args(["run", "a", "echo", "ran"]).output().unwrap());
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "ran\n", ""));
}

#[test]
fn others_hold_it() {
    let site = Site::new("conflict");
    let holder = site.start(&["--label", "the first"], "a", "sleep 1000");
    let refused = site.run(["-n", "a", "echo", "ran"]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(124), ""));
    assert!(refused.err.starts_with("zklock: a: held by "), "{}", refused.err);
    let holder_in_words = format!("(pid {}, flock, \"the first\"), queued ", holder.process());
    assert!(refused.err.contains(&holder_in_words), "{}", refused.err);
    assert!(refused.err.ends_with(" s ago; not waiting (-n)\n"), "{}", refused.err);
    let late = site.run(["-w", "2", "a", "echo", "ran"]);
    assert_eq!((late.code, late.out.as_str()), (Some(124), ""));
    assert!(late.err.ends_with("; not free within 2.0 s\n"), "{}", late.err);
    for arguments in [["-n", "-E", "0"], ["-n", "-E", "75"]] {
        let ended = site.run([&arguments[..], &["a", "echo", "ran"]].concat());
        let code = arguments[2].parse().unwrap();
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""));
        assert_eq!(ended.err.is_empty(), code == 0, "{}", ended.err);
    }
}

#[test]
fn a_waiter_gets_it_afterwards() {
    let site = Site::new("waiter");
    let release = site.file("release");
    let script = format!("cat {}", release.display());
    nix::unistd::mkfifo(&release, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let holder = site.start(&[], "a", &script);
    let zk = zklock::Client::connect(site.server.hosts()).unwrap();
    let lock = DistributedLock::new(&zk, "/locks", "a");
    let mut changes = lock.observe();
    let first = changes.latest().unwrap()[0].path.clone();
    let mut waiter = site.zklock();
    waiter.args(["run", "--grace", "200ms", "a", "--"]).args(site.judged("echo ran"));
    let waiter = Running::of(&mut waiter);
    fs::write(&release, "").unwrap();
    assert_eq!(holder.end().code, Some(0));
    let ended = waiter.end();
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "ran\n", ""));
    assert!(lock.contenders().unwrap().iter().all(|one| one.path != first));
}

#[test]
fn the_command_is_told_what_it_runs_under() {
    let site = Site::new("variables");
    let ended = site.run(["a", "--", "env"]);
    let value = |name: &str| {
        let found = ended.out.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {name} in {}", ended.out)).to_owned()
    };
    assert_eq!(value("ZKLOCK_LOCK"), "/locks/a");
    assert!(value("ZKLOCK_NODE").starts_with("/locks/a/_c_"));
    let token: zklock::FencingToken = value("ZKLOCK_TOKEN").parse().unwrap();
    assert_eq!(value("ZKLOCK_ZXID"), token.zxid().to_string());
    assert!(value("ZKLOCK_SESSION").starts_with("0x"));
    assert_ne!(value("ZKLOCK_LOST_FD"), "");
    // Its input, and the rest of its surroundings, are zklock's.
    let mut cat = site.zklock();
    let file = site.file("input");
    fs::write(&file, "input\n").unwrap();
    let cat = cat
        .args(["run", "--grace", "200ms", "a", "cat"])
        .stdin(fs::File::open(file).unwrap())
        .output()
        .unwrap();
    assert_eq!(cat.stdout, b"input\n");
}

#[test]
fn what_it_leaves_running_is_ended_or_waited_for() {
    let site = Site::new("linger");
    for leave in [
        "trap '' TERM; sleep 1000 & exit 3",
        "sleep 1000 & exit 3",
        "setsid sleep 1000 & exit 3",
        "(setsid sleep 1000 &) & exit 3",
    ] {
        let ended = site.run_judged("a", leave);
        assert_eq!(ended.code, Some(3), "{leave}: {}", ended.err);
        assert_eq!(ended.err, "zklock: a: flock had left processes running; they were ended\n");
        assert!(site.nothing_is_left(), "{leave}");
    }
    let fifo = site.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo first; cat {} & exit 3", fifo.display());
    let holder = site.start(&["--linger", "wait"], "a", &script);
    assert_eq!(site.run(["-n", "a", "true"]).code, Some(124));
    fs::write(&fifo, "last\n").unwrap();
    let ended = holder.end();
    assert_eq!(
        (ended.code, ended.out.as_str(), ended.err.as_str()),
        (Some(3), "first\nlast\n", "")
    );
}

#[test]
fn readers_share_and_permits_are_counted() {
    let site = Site::new("kinds");
    let nested = |outer: &[&str], inner: &[&str]| {
        let zklock = env!("CARGO_BIN_EXE_zklock");
        let hosts = site.server.hosts();
        let inner_run = [&[zklock, "--hosts", hosts, "run", "-n"], inner, &["true"]].concat();
        site.run([outer, &["--"], &inner_run].concat()).code
    };
    assert_eq!(nested(&["-s", "rw"], &["-s", "rw"]), Some(0));
    for exclusive in [&["-x", "rw"][..], &["rw"]] {
        assert_eq!(nested(&["-s", "rw"], exclusive), Some(124));
        assert_eq!(nested(exclusive, &["-s", "rw"]), Some(124));
    }
    assert_eq!(nested(&["--permits", "2", "p"], &["--permits", "2", "p"]), Some(0));
    assert_eq!(
        nested(&["--permits", "2", "--take", "2", "p"], &["--permits", "2", "p"]),
        Some(124)
    );
    assert_eq!(nested(&["--permits", "2", "p"], &["--permits", "3", "p"]), Some(125));
    assert_eq!(nested(&["a", "--also", "b"], &["b"]), Some(124));
    assert_eq!(nested(&["b"], &["a", "--also", "b"]), Some(124));
    assert_eq!(nested(&["--lead", "e"], &["e"]), Some(124));
}

#[test]
fn a_leader_has_its_id() {
    let site = Site::new("lead");
    let mut command = site.zklock();
    command.args([
        "lead",
        "--grace",
        "200ms",
        "service",
        "--id",
        "web1:80",
        "--",
        "sh",
        "-c",
        "echo leads; exec sleep 1000",
    ]);
    let mut leader = Running::of(&mut command);
    assert_eq!(leader.line(), "leads");
    let zk = zklock::Client::connect(site.server.hosts()).unwrap();
    let found = LeaderElection::new(&zk, "/locks", "service").leader().unwrap().unwrap();
    assert_eq!(found.label(), "web1:80");
    leader.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(leader.end().signal, Some(15));
}

#[test]
fn once_is_once_for_each_key() {
    let site = Site::new("once");
    let once = |key: &str, script: &str| site.run(["--once", key, "job", "--", "sh", "-c", script]);
    let first = once("monday", "echo ran");
    assert_eq!((first.code, first.out.as_str()), (Some(0), "ran\n"));
    let second = once("monday", "echo ran");
    assert_eq!((second.code, second.out.as_str(), second.err.as_str()), (Some(0), "", ""));
    // What has failed, runs again.
    assert_eq!(once("tuesday", "exit 5").code, Some(5));
    assert_eq!(once("tuesday", "echo again").out, "again\n");
    assert_eq!(once("bad/key", "echo ran").code, Some(64));
    // It holds the lock of the same name meanwhile.
    let zklock = env!("CARGO_BIN_EXE_zklock");
    let script = format!("{zklock} --hosts {} run -n job true", site.server.hosts());
    assert_eq!(once("wednesday", &script).code, Some(124));
    let forget = ["--once", "thursday", "--forget-after", "0", "job", "true"];
    assert_eq!(site.run(forget).code, Some(0));
    assert_eq!(once("monday", "echo forgotten").out, "forgotten\n");
}

#[test]
fn a_lock_within_a_lock_has_its_own_token_or_none() {
    let site = Site::new("nested");
    let zklock = env!("CARGO_BIN_EXE_zklock");
    let hosts = site.server.hosts();
    let script =
        format!("{zklock} --hosts {hosts} run --permits 2 b -- env; echo outer=$ZKLOCK_TOKEN.");
    let ended = site.run(["a", "--", "sh", "-c", &script]);
    assert!(ended.out.contains("ZKLOCK_LOCK=/locks/b\n"), "{}", ended.out);
    assert!(!ended.out.contains("ZKLOCK_TOKEN="), "{}", ended.out);
    assert!(!ended.out.contains("outer=."), "{}", ended.out);
}

/// It would wait for its own end.
#[test]
fn a_lock_that_is_held_around_a_zklock_is_refused() {
    let site = Site::new("around");
    let zklock = format!("{} --hosts {}", env!("CARGO_BIN_EXE_zklock"), site.server.hosts());
    let around = |outer: &[&str], inner: &str| {
        site.run([outer, &["--", "sh", "-c", &format!("{zklock} run {inner} echo ran")]].concat())
    };
    let within_another = format!("b {zklock} run a");
    for (outer, inner, lock) in [
        (&["a"][..], "a", "a"),
        (&["a"], "-s a", "a"),
        (&["a"], &within_another, "a"),
        (&["--also", "c", "a"], "c", "c"),
        (&["a"], "--also a b", "a"),
        (&["-s", "a"], "-x a", "a"),
        (&["--permits", "2", "a"], "--permits 2 --take 2 a", "a"),
    ] {
        let ended = around(outer, inner);
        assert_eq!((ended.code, ended.out.as_str()), (Some(64), ""), "{inner}: {}", ended.err);
        let why = format!("/locks/{lock} is held by a zklock that this one runs under");
        assert!(ended.err.contains(&why), "{inner}: {}", ended.err);
    }
    for (outer, inner) in
        [(&["a"][..], "b"), (&["-s", "a"], "-s a"), (&["--permits", "2", "a"], "--permits 2 a")]
    {
        let ended = around(outer, inner);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "ran\n"), "{inner}: {}", ended.err);
    }
}

#[test]
fn of_several_locks_the_one_that_others_hold_is_named() {
    let site = Site::new("named");
    let _holder = site.start_ready(&[], "echo ready; sleep 1000");
    let ended = site.run(["-n", "--also", "a", "b", "echo", "ran"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(124), ""));
    assert!(ended.err.starts_with("zklock: b: /locks/a is held by "), "{}", ended.err);
}

#[test]
fn a_process_that_may_open_no_more_files_is_no_outage() {
    let site = Site::new("files");
    let zklock = site.zklock();
    let mut codes = Vec::new();
    for limit in 6..16 {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit}; exec \"$@\""), "sh"]);
        command.arg(zklock.get_program()).args(zklock.get_args());
        command.args([
            "--connect-timeout",
            "300ms",
            "run",
            "--if-unavailable",
            "run",
            "a",
            "echo",
            "ran",
        ]);
        let ended = Ended::new(command.output().unwrap());
        let has_run = ended.out == "ran\n";
        assert_eq!(has_run, ended.code == Some(0), "{limit}: {ended:?}");
        assert!(!ended.err.contains("WITHOUT the lock"), "{limit}: {}", ended.err);
        codes.push(ended.code.unwrap());
    }
    // The first could not connect, and the last had no trouble.
    assert!(codes.starts_with(&[125]) && codes.ends_with(&[0]), "{codes:?}");
}

#[test]
fn without_a_server_nothing_runs_unless_it_is_told_to() {
    let site = Site::new("down");
    site.server.stop().unwrap();
    let short = ["--connect-timeout", "300ms"];
    let run =
        |more: &[&str]| site.run([&short, more, &["a", "sh", "-c", "echo ran; exit 4"]].concat());
    let failed = run(&[]);
    assert_eq!((failed.code, failed.out.as_str()), (Some(69), ""));
    assert!(failed.err.starts_with("zklock: a: ZooKeeper cannot be reached: "), "{}", failed.err);
    assert!(failed.err.ends_with(". The command was NOT run\n"), "{}", failed.err);
    let skipped = run(&["--if-unavailable", "skip"]);
    assert_eq!((skipped.code, skipped.out.as_str()), (Some(0), ""));
    assert!(skipped.err.ends_with(". The command was not run\n"), "{}", skipped.err);
    let ran = run(&["--if-unavailable", "run"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), "ran\n"));
    assert!(ran.err.ends_with(". The command runs WITHOUT the lock\n"), "{}", ran.err);
}

#[test]
fn events_are_lines_of_json() {
    let site = Site::new("events");
    let file = site.file("events");
    let path = file.to_str().unwrap();
    assert_eq!(site.run(["--events", path, "a", "sh", "-c", "exit 2"]).code, Some(2));
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named = |name: &str| {
        lines
            .iter()
            .find(|line| line["event"] == name)
            .unwrap_or_else(|| panic!("no {name}: {text}"))
    };
    assert_eq!(named("connected")["session_timeout_ms"], 4000);
    assert!(named("acquired")["token"].is_string());
    assert!(named("started")["pid"].is_u64());
    assert_eq!(named("ended")["exit"], 2);
    assert!(lines.iter().all(|line| line["lock"] == "/locks/a" && line["time"].is_string()));
}

/// The descriptor itself: its position in the file is the one that the command writes at, too.
#[test]
fn events_go_to_a_descriptor_beside_what_the_command_writes() {
    let site = Site::new("descriptor");
    let file = site.file("all");
    let mut command = site.zklock();
    command.args(["run", "--events", "1", "a", "sh", "-c", "echo one; echo two"]);
    assert!(command.stdout(fs::File::create(&file).unwrap()).status().unwrap().success());
    let text = fs::read_to_string(&file).unwrap();
    let (events, words): (Vec<&str>, _) = text.lines().partition(|line| line.starts_with('{'));
    assert_eq!(words, ["one", "two"], "{text}");
    assert!(events.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
    assert!(events.iter().any(|line| line.contains("\"acquired\"")), "{text}");
}

/// As the standard output of a systemd unit is.
#[test]
fn events_go_to_a_socket() {
    let site = Site::new("socket");
    let (mut reader, writer) = UnixStream::pair().unwrap();
    let mut command = site.zklock();
    command.args(["run", "--events", "1", "a", "true"]).stdout(OwnedFd::from(writer));
    assert!(command.status().unwrap().success());
    drop(command);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"acquired\""), "{text}");
}

#[test]
fn events_that_nobody_could_read_are_wrong_usage() {
    let site = Site::new("unreadable");
    let fifo = site.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (target, why) in [
        (fifo.to_str().unwrap(), "nobody reads it"),
        ("77", "Bad file descriptor"),
        // The standard input.
        ("0", "only open for reading"),
    ] {
        let mut command = site.zklock();
        command.args(["run", "--events", target, "a", "echo", "ran"]).stdin(Stdio::null());
        let ended = Ended::new(command.output().unwrap());
        assert_eq!((ended.code, ended.out.as_str()), (Some(64), ""), "{target}");
        let start = format!("zklock: a: --events {target}: ");
        assert!(ended.err.starts_with(&start) && ended.err.contains(why), "{}", ended.err);
    }
}

#[test]
fn credentials_come_from_a_file() {
    let site = Site::new("auth");
    let file = site.file("auth");
    fs::write(&file, "# of the nightly job\ndigest ann:secret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    let own = ["--auth-file", file, "--creator-only", "--base", "/private", "a", "true"];
    let ended = site.run(own);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let stranger = site.run(["--base", "/private", "a", "echo", "ran"]);
    assert_eq!((stranger.code, stranger.out.as_str()), (Some(77), ""), "{}", stranger.err);
}

#[test]
fn systemd_is_told() {
    let site = Site::new("notify");
    let path = site.file("socket");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let mut command = site.zklock();
    command.args(["run", "--notify", "--grace", "200ms", "a", "true"]).env("NOTIFY_SOCKET", &path);
    assert!(command.status().unwrap().success());
    let next = || {
        let mut bytes = [0; 256];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    assert_eq!(next(), "STATUS=waiting: /locks/a");
    assert_eq!(next(), "READY=1\nSTATUS=holds the lock");
    // A unit whose job is done already has not failed.
    let status = |options: &[&str]| {
        let mut command = site.zklock();
        command.args(["run", "--notify", "--grace", "200ms"]).args(options).args(["b", "true"]);
        assert!(command.env("NOTIFY_SOCKET", &path).status().unwrap().success());
        assert_eq!(next(), "STATUS=waiting: /locks/b");
        next()
    };
    let not_run = "READY=1\nSTATUS=ends without having run the command";
    assert_eq!(status(&["--once", "k"]), "READY=1\nSTATUS=holds the lock");
    assert_eq!(status(&["--once", "k"]), not_run);
    let _holder = site.start(&[], "b", "sleep 1000");
    assert_eq!(status(&["-n", "-E", "0"]), not_run);
}
