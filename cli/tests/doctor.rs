//! What `zklock doctor` says of servers' settings and of all locks, of real servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Command, Stdio};
use std::time::Duration;

use raw::{Kind, Raw};
use server::{Builder, Server, free_port};
use zklock::znode::CreateMode;
use zklock::{Acl, Client, DistributedLock, Permissions};

#[path = "../../tests/it/support/server.rs"]
mod server;

#[path = "../../tests/it/support/raw.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod raw;

/// Exit code and findings.
fn doctor(hosts: &str, options: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zklock"));
    command.env_remove("ZKLOCK_TICK_TIME").env_remove("ZKLOCK_SESSION_TIMEOUT");
    command.args(["--hosts", hosts, "doctor"]).args(options).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// Checks that there is a finding with each of these texts.
fn assert_found(said: &(i32, String), code: i32, all: &[&str]) {
    assert_eq!(said.0, code, "{}", said.1);
    for one in all {
        assert!(said.1.contains(one), "{one}:\n{}", said.1);
    }
}

/// Three members of an ensemble, of which the first has other settings.
fn ensemble(odd: impl Fn(Builder) -> Builder) -> Vec<Server> {
    ensemble_of(|id, builder| if id == 0 { odd(builder) } else { builder })
}

/// Three members of an ensemble, each with settings of its own.
fn ensemble_of(own: impl Fn(usize, Builder) -> Builder) -> Vec<Server> {
    let ports: Vec<[u16; 2]> = (0..3).map(|_| [free_port(), free_port()]).collect();
    let member = |id: usize| {
        let mut builder = Server::builder().member(id, free_port());
        builder = builder.extra("initLimit=50").extra("syncLimit=10");
        for (other, [quorum, election]) in ports.iter().enumerate() {
            builder = builder.extra(format!("server.{other}=127.0.0.1:{quorum}:{election}"));
        }
        own(id, builder)
    };
    let servers: Vec<Server> = (0..3).map(|id| member(id).launch().unwrap()).collect();
    for server in &servers {
        server.wait_ready().unwrap();
    }
    servers
}

#[test]
fn a_tick_that_is_shorter_than_what_is_reckoned_with_is_to_be_stated() {
    let server = Server::start();
    let said = doctor(&server.hosts(), &[]);
    assert_found(
        &said,
        0,
        &[
            "; tickTime 200ms, session timeouts of 200ms to 600s; a read takes ",
            "ok       session: a session timeout of 30 s (asked for 30 s): an outage of less than 20.7 s loses no lock \
             of a program that uses the library, and one of less than 17.6 s ends no command of zklock run with its \
             usual grace; a host that crashes blocks the others for 30 s",
            "ok       tickTime: at most 200ms: if that is stated to a program (ClientBuilder::tick_time), it loses no \
             lock in an outage of less than 23.3 s, instead of 20.7 s; with --tick-time 200ms, zklock run ends no \
             command in one of less than 20.1 s, instead of 17.6 s",
        ],
    );
    let said = doctor(&server.hosts(), &["--tick-time", "200ms"]);
    let reckoned = "ok       tickTime: at most 200ms, and 200ms is reckoned with";
    assert_found(&said, 0, &["of less than 23.3 s loses no lock of a program", reckoned]);
    let short = ["--session-timeout", "10s"];
    let figures = ["of less than 4.3 s loses no lock", "one of less than 1.8 s ends no command of"];
    assert_found(&doctor(&server.hosts(), &short), 0, &figures);
    let stated = [&short[..], &["--tick-time", "2s"]].concat();
    let figures = ["of less than 5.5 s loses no lock", "one of less than 2.9 s ends no command of"];
    assert_found(&doctor(&server.hosts(), &stated), 0, &figures);
}

#[test]
fn a_tick_that_is_longer_than_what_is_stated_is_an_error() {
    let server = Server::start();
    let said = doctor(&server.hosts(), &["--tick-time", "150ms"]);
    let (text, remedy) = (
        format!("error    tickTime: 200ms at {}, and 150ms is reckoned with: ", server.hosts()),
        "State it to all clients (--tick-time 200ms, ClientBuilder::tick_time), or set tickTime=150 at all servers",
    );
    assert_found(&said, 1, &[&text, remedy]);
    // Unstated, half of a short session timeout is reckoned with.
    let server = Server::builder().tick(2_000).start().unwrap();
    let said = doctor(&server.hosts(), &["--session-timeout", "3s"]);
    let text = format!("error    tickTime: 2s at {}, and 1.5s is reckoned with: ", server.hosts());
    assert_found(&said, 1, &[&text]);
}

#[test]
fn a_server_with_other_settings_is_found() {
    let servers = ensemble(|builder| builder.tick(400).max_session(20_000));
    let [odd, second, third] = [0, 1, 2].map(|one: usize| servers[one].hosts());
    let hosts = format!("{odd},{second},{third}");
    let unequal_ticks = format!(
        "warning  tickTime: not all servers have the same: 400ms at {odd}; 200ms at {second}, {third}. "
    );
    let grants = format!(
        "error    session timeout: not all servers grant the same for 30s: 20s at {odd}; 30s at {second}, {third}. \
         So two clients may hold a lock at once: ask for 200ms to 20s (--session-timeout), or give all servers "
    );
    assert_found(&doctor(&hosts, &[]), 1, &[&unequal_ticks, &grants]);
    let limits = format!(
        "warning  session timeout: not all servers have the same limits: 200ms to 20s at {odd}; 200ms to 600s at \
         {second}, {third}: give all "
    );
    let stated = ["--session-timeout", "20s", "--tick-time", "400ms"];
    let reckoned = "ok       tickTime: at most 400ms, and 400ms is reckoned with";
    assert_found(&doctor(&hosts, &stated), 0, &[&unequal_ticks, &limits, reckoned]);
    // What is true of the others is not true of this one.
    let stated = ["--session-timeout", "20s", "--tick-time", "200ms"];
    let longer =
        format!("error    tickTime: 400ms at {odd}; 200ms at {second}, {third}, and 200ms ");
    assert_found(&doctor(&hosts, &stated), 1, &[&longer]);
}

#[test]
fn a_session_timeout_that_no_server_grants_is_found() {
    let server = Server::builder().max_session(20_000).start().unwrap();
    let hosts = server.hosts();
    let granted = "warning  session timeout: 30s was asked for, and 20s is granted: ask for 200ms to 20s \
                   (--session-timeout), or change minSessionTimeout or maxSessionTimeout of all servers";
    let session = "warning  session: a session timeout of 20 s (asked for 30 s): ";
    assert_found(&doctor(&hosts, &[]), 0, &[granted, session]);
}

#[test]
fn a_tick_that_a_server_does_not_tell_is_not_known() {
    let server = Server::builder().extra("4lw.commands.whitelist=srvr").start().unwrap();
    let hosts = server.hosts();
    let unknown = format!(
        "warning  tickTime: not known of {hosts}: if it is longer than the 3s that are reckoned with, two clients may \
         hold a lock at once. With 4lw.commands.whitelist=srvr,conf in zoo.cfg, "
    );
    let said = doctor(&hosts, &[]);
    let why = "; tickTime not told (conf is not in 4lw.commands.whitelist); a read takes ";
    assert_found(&said, 0, &[why, &unknown]);
    assert!(!said.1.contains("at most"), "{}", said.1);
}

#[test]
fn what_is_wrong_with_any_lock_is_found() {
    let server = Server::builder().sequence("/locks/a/old", 2_000_000_000).start().unwrap();
    let hosts = server.hosts();
    let zk = Client::connect(&hosts).unwrap();
    let lock = |base: &str, name: &str| DistributedLock::new(&zk, base, name).lock().unwrap();
    let guards = [lock("/locks/a", "old"), lock("/locks", "a"), lock("/locks/b", "good")];
    let create = |path: &str, mode| zk.znode(path).create(mode, "").unwrap();
    let _ = create("/locks/b/good/qn-0000000001", CreateMode::Persistent);
    let _ = create("/locks/b/good/x-latch-", CreateMode::EphemeralSequential);
    let hidden = create("/locks/b/good/x-lock-", CreateMode::EphemeralSequential);
    hidden.set_acl(Acl::digest(Permissions::ALL, "nobody:nothing")).unwrap();
    let (code, out) = doctor(&hosts, &["--all"]);
    let found: Vec<&str> = out.lines().filter(|line| line.contains("/locks")).collect();
    // Servers before 3.7.3, 3.8.4 and 3.9.2 tell all but the data.
    let good = DistributedLock::new(&zk, "/locks/b", "good").contenders().unwrap();
    let is_hidden = good.iter().any(|one| one.since.is_none());
    let expected = [
        "ok       /locks: 3 locks, 1 contenders wait",
        "warning  /locks/b/good/x-lock-0000000003: it cannot be read: not permitted (READ)",
        "error    /locks/a/old: sequence number 2000000000 of at most 2147483647: use another name",
        "warning  /locks/b/good: an ACL hides who 1 of its contenders are, such as x-lock-000000000",
        "warning  /locks/b/good: /locks/b/good/x-latch-0000000002 of session ",
        "warning  /locks/b/good: /locks/b/good/x-lock-0000000003 ",
        "warning  /locks/b/good: 1 children are no contenders, such as \"qn-0000000001\", an item of a queue",
    ];
    let of_hiding = |text: &&str| is_hidden || !text.contains("hides");
    let expected: Vec<&str> = expected.into_iter().filter(of_hiding).collect();
    assert_eq!((code, found.len()), (1, expected.len()), "{out}");
    for (line, text) in found.iter().zip(expected) {
        assert!(line.starts_with(text), "{line}");
    }
    // The node that told the server's time is gone.
    assert_eq!(zk.znode("/locks").children().unwrap().unwrap(), ["a", "b"]);
    drop(guards);
}

/// The most nodes that may be below a path.
fn set_quota(server: &Server, path: &str, nodes: i64) {
    let mut raw = Raw::connect(&server.hosts(), Duration::from_secs(60)).unwrap();
    let node = format!("/zookeeper/quota{path}");
    raw.create_all(&node).unwrap();
    let limits = format!("count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit={nodes}");
    for (name, data) in [("zookeeper_limits", &*limits), ("zookeeper_stats", "count=0,bytes=0")] {
        raw.create(&format!("{node}/{name}"), data.as_bytes(), Kind::Persistent).unwrap();
    }
}

#[test]
fn a_quota_is_named_and_is_an_error_if_it_is_used_up_and_enforced() {
    if server::is_before((3, 7)) {
        return eprintln!("SKIPPED: servers before 3.7 enforce no quotas");
    }
    for is_enforced in [true, false] {
        let server =
            Server::builder().extra(format!("enforceQuota={is_enforced}")).start().unwrap();
        let hosts = server.hosts();
        let zk = Client::connect(&hosts).unwrap();
        let guard = DistributedLock::new(&zk, "/root/locks", "a").lock().unwrap();
        let room = ["ok       /locks/a: the quota of \"/root\": 4 of 9 nodes and "];
        // The root, the locks, this one, and its holder.
        set_quota(&server, "/root", 9);
        assert_found(&doctor(&format!("{hosts}/root"), &["/locks/a"]), 0, &room);
        let mut raw = Raw::connect(&hosts, Duration::from_secs(60)).unwrap();
        let limits = b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=4";
        raw.set_data("/zookeeper/quota/root/zookeeper_limits", limits).unwrap();
        let used = "/root/locks/a: the quota of \"/root\": 4 of 4 nodes and ";
        let said = doctor(&hosts, &["/root/locks/a"]);
        match is_enforced {
            true => {
                let lock = format!("error    {used}");
                assert_found(&said, 1, &[&lock, " are used, so no lock below it can be taken: "]);
                let base =
                    ["error    /root: no lock can be taken: could not create the node: a quota"];
                assert_found(&doctor(&hosts, &["--base", "/root", "/root/locks/a"]), 1, &base);
            }
            false => {
                let lock = format!("warning  {used}");
                assert_found(&said, 0, &[&lock, " are used; the servers do not enforce it"]);
            }
        }
        drop(guard);
    }
}

#[test]
fn sessions_that_can_own_no_lock_are_an_error() {
    let servers = ensemble_of(|_, builder| builder.extra("localSessionsEnabled=true"));
    Client::connect(&servers[0].hosts())
        .unwrap()
        .znode("/zklock")
        .create(CreateMode::Persistent, "")
        .unwrap();
    for server in &servers {
        let text = "no lock can be taken: could not create the node: the session is a local one, which can own no \
                    lock: set localSessionsUpgradingEnabled=true on all servers";
        assert_found(&doctor(&server.hosts(), &["--base", "/zklock"]), 1, &[text]);
    }
}

#[test]
fn servers_that_look_at_no_acl_are_seen_to() {
    for skips in [true, false] {
        let server = Server::builder()
            .extra(if skips { "skipACL=yes" } else { "skipACL=no" })
            .start()
            .unwrap();
        let zk = Client::connect(&server.hosts()).unwrap();
        drop(DistributedLock::new(&zk, "/locks", "a").lock().unwrap());
        let nobodys = Acl::digest(Permissions::ALL, "nobody:nothing");
        zk.znode("/locks/a").set_acl([nobodys, Acl::world(Permissions::READ)]).unwrap();
        let text = match skips {
            true => {
                "it does not permit CREATE, DELETE to this client, but the servers do (skipACL=yes, or"
            }
            false => {
                "it does not permit CREATE, DELETE to this client, which cannot take it: use the"
            }
        };
        let level = if skips { "note     /locks/a: ACL " } else { "warning  /locks/a: ACL " };
        assert_found(&doctor(&server.hosts(), &["/locks/a"]), 0, &[level, text]);
        assert_eq!(zk.znode("/locks/a").children().unwrap().unwrap(), [""; 0], "nothing is left");
    }
}
