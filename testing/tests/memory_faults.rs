//! The server in memory and its faults, as clients meet them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use zklock::znode::CreateMode;
use zklock::{Client, DistributedLock, LossReason};
use zklock_testing::ZooKeeper;

const LONG: Duration = Duration::from_secs(20);

fn client(server: &ZooKeeper) -> Client {
    Client::connect(server.hosts()).expect("a client")
}

fn session(client: &Client) -> i64 {
    client.session_id().expect("a session").into()
}

#[test]
fn a_lock_works_and_leaves_nothing() {
    let server = ZooKeeper::in_memory().unwrap();
    let zk = client(&server);
    let guard = DistributedLock::new(&zk, "/locks", "one").lock().unwrap();
    assert!(DistributedLock::new(&zk, "/locks", "one").try_lock().unwrap().is_none());
    drop(guard);
    assert!(DistributedLock::new(&zk, "/locks", "one").try_lock().unwrap().is_some());
    zk.close();
    assert!(server.sessions().unwrap().is_empty());
}

#[test]
fn an_expired_session_loses_its_lock() {
    let server = ZooKeeper::in_memory().unwrap();
    let (one, other) = (client(&server), client(&server));
    let guard = DistributedLock::new(&one, "/locks", "one").lock().unwrap();
    server.expire(session(&one)).unwrap();
    // The others get it at once.
    assert!(DistributedLock::new(&other, "/locks", "one").try_lock().unwrap().is_some());
    let reason = guard.lost().wait_within(LONG);
    assert_eq!(reason, Some(Err(LossReason::SessionExpired)));
    assert!(server.expire(17).unwrap_err().to_string().contains("no session 0x11"));
}

#[test]
fn after_a_restart_sessions_and_nodes_are_still_there() {
    let server = ZooKeeper::in_memory().unwrap();
    let zk = client(&server);
    let before = session(&zk);
    let guard = DistributedLock::new(&zk, "/locks", "one").lock().unwrap();
    server.restart().unwrap();
    zk.znode("/new").create(CreateMode::Persistent, b"").unwrap();
    assert_eq!(session(&zk), before);
    assert!(guard.is_held());
    server.refuse().unwrap();
    assert_eq!(server.sessions().unwrap(), [before]);
    server.restart().unwrap();
    assert!(zk.znode("/new").stat().unwrap().is_some());
}

#[test]
fn a_request_whose_reply_is_dropped_was_carried_out() {
    let server = ZooKeeper::in_memory().unwrap();
    let zk = client(&server);
    server.drop_replies(1).unwrap();
    let guard = DistributedLock::new(&zk, "/locks", "one").lock().unwrap();
    assert!(guard.is_held());
    drop(guard);
    // Not a second node, which would be a holder for ever.
    assert!(DistributedLock::new(&zk, "/locks", "one").try_lock().unwrap().is_some());
}

#[test]
fn a_late_request_is_carried_out_after_newer_ones() {
    let server = ZooKeeper::in_memory().unwrap();
    let (zk, other) = (client(&server), client(&server));
    let late = zk.znode("/late");
    server.carry_out_late(1, Duration::from_secs(3600)).unwrap();
    let _ = late.create(CreateMode::Persistent, b"late");
    let before = other.znode("/late").stat().unwrap().is_some();
    other.znode("/newer").create(CreateMode::Persistent, b"").unwrap();
    // The client may have created it anew; then the late request finds it.
    let _ = other.znode("/late").delete();
    assert!(other.znode("/late").stat().unwrap().is_none());
    // Sessions live as long as this, if they are heard in between.
    server.advance(Duration::from_secs(3600)).unwrap();
    let witness = client(&server);
    let is_there = witness.znode("/late").stat().unwrap().is_some();
    assert!(is_there, "before: {before}");
}

#[test]
fn requests_that_are_throttled_are_done_in_the_end() {
    let server = ZooKeeper::in_memory().unwrap();
    let zk = client(&server);
    server.throttle(0.5).unwrap();
    for _ in 0..10 {
        drop(DistributedLock::new(&zk, "/locks", "one").lock().unwrap());
    }
    assert!(server.throttle(1.5).unwrap_err().to_string().contains("0 to 1"));
}

#[test]
fn time_that_is_advanced_expires_who_is_not_heard() {
    let server = ZooKeeper::in_memory().unwrap();
    let zk = client(&server);
    let other = client(&server);
    let guard = DistributedLock::new(&zk, "/locks", "one").lock().unwrap();
    server.pause().unwrap();
    server.advance(Duration::from_secs(60)).unwrap();
    server.resume().unwrap();
    assert_eq!(guard.lost().wait_within(LONG), Some(Err(LossReason::SessionExpired)));
    assert!(DistributedLock::new(&other, "/locks", "one").try_lock_for(LONG).unwrap().is_some());
}

#[test]
fn containers_go_when_they_have_outlived_their_children() {
    let server =
        ZooKeeper::builder().in_memory().check_interval(Duration::from_secs(600)).start().unwrap();
    let zk = client(&server);
    let container = zk.znode("/box");
    container.create(CreateMode::Container, b"").unwrap();
    let child = zk.znode("/box/child");
    child.create(CreateMode::Persistent, b"").unwrap();
    child.delete().unwrap();
    assert!(container.stat().unwrap().is_some());
    server.advance(Duration::from_secs(601)).unwrap();
    let witness = client(&server);
    assert!(witness.znode("/box").stat().unwrap().is_none());
}

#[test]
fn a_paused_server_answers_nothing_and_goes_on() {
    let server = ZooKeeper::in_memory().unwrap();
    let zk = client(&server);
    server.pause().unwrap();
    let tried = DistributedLock::new(&zk, "/locks", "one").try_lock_for(Duration::from_millis(50));
    assert!(!matches!(tried, Ok(Some(_))));
    server.resume().unwrap();
    drop(DistributedLock::new(&zk, "/locks", "one").lock().unwrap());
}

fn word(server: &ZooKeeper, word: &[u8]) -> String {
    let mut socket = TcpStream::connect(server.hosts()).unwrap();
    socket.write_all(word).unwrap();
    let mut said = String::new();
    socket.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn words_are_answered() {
    let server = ZooKeeper::in_memory().unwrap();
    assert_eq!(word(&server, b"ruok"), "imok");
    assert!(word(&server, b"srvr").contains("Mode: standalone"));
    assert!(word(&server, b"stat").contains("Node count: 5"));
    assert!(word(&server, b"envi").contains("zookeeper.version=3.8.0"));
    assert!(word(&server, b"mntr").contains("zk_znode_count\t5"));
}

/// Also what is no frame of the protocol, or larger than a server takes.
#[test]
fn who_speaks_something_else_is_hung_up_on_and_others_are_served() {
    let server = ZooKeeper::in_memory().unwrap();
    for said in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0, 3, 1, 2, 3], &[255; 64], &[0, 255, 255, 255, 0]]
    {
        let mut socket = TcpStream::connect(server.hosts()).unwrap();
        socket.write_all(said).unwrap();
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{said:?} gets {rest:?}");
    }
    drop(DistributedLock::new(client(&server), "/locks", "one").lock().unwrap());
}

#[test]
#[cfg(target_os = "linux")]
fn two_hundred_servers_take_less_than_200_mb() {
    let servers: Vec<_> = (0..200).map(|_| ZooKeeper::in_memory().unwrap()).collect();
    for server in &servers {
        assert_eq!(word(server, b"ruok"), "imok");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 200_000, "{kilobytes} kB");
}
