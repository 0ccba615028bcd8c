//! The feature `testing`, as the tests of another crate would use it.

#![allow(clippy::expect_used, clippy::panic, reason = "a test")]

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use zklock::testing::ZooKeeperServer;
use zklock::{DistributedLock, ErrorKind, Result};

#[test]
fn a_lock_is_passed_on() -> Result<()> {
    let server = ZooKeeperServer::start()?;
    let (here, there) = (server.client()?, server.client()?);
    let ours = DistributedLock::new(&here, "/locks", "nightly");
    let theirs = DistributedLock::new(&there, "/locks", "nightly");

    let guard = ours.lock()?;
    assert!(theirs.try_lock()?.is_none());
    let token = guard.fencing_token();
    guard.unlock()?;
    let guard = theirs.try_lock_for(Duration::from_secs(10))?.expect("it is free");
    assert!(guard.fencing_token() > token);
    Ok(())
}

#[test]
fn a_server_has_its_settings() -> Result<()> {
    let server = ZooKeeperServer::builder()
        .env("ZOO_CFG_EXTRA", "minSessionTimeout=200 maxSessionTimeout=7000")
        .startup_timeout(Duration::from_secs(90))
        .start()?;
    assert_eq!(setting(server.hosts(), "maxSessionTimeout"), "7000");
    assert_eq!(setting(server.hosts(), "tickTime"), "200");
    Ok(())
}

#[test]
fn a_setting_that_cannot_be_is_an_error() {
    let error = ZooKeeperServer::builder().startup_timeout(Duration::ZERO).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    let error = ZooKeeperServer::builder().image("two words:1").start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let broken = ZooKeeperServer::builder().env("ZOO_TICK_TIME", "soon").start().unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::System);
    let text = broken.to_string();
    assert!(text.contains("ended while it was starting") && text.contains("soon"), "{text}");
}

#[test]
fn it_is_gone_when_dropped() -> Result<()> {
    let server = ZooKeeperServer::start()?;
    let hosts = server.hosts().to_owned();
    assert!(serves(&hosts));
    drop(server);
    assert!(!serves(&hosts));
    Ok(())
}

#[test]
fn it_is_gone_when_its_process_was_killed() -> io::Result<()> {
    let mut owner = Command::new(env::current_exe()?)
        .args(["--exact", "owner_of_a_server", "--nocapture"])
        .env("ZKLOCK_TEST_OWNER", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(owner.stdout.take().expect("a pipe"));
    let hosts = output
        .lines()
        .map_while(io::Result::ok)
        .find_map(|line| Some(line.split_once("server at ")?.1.to_owned()))
        .expect("the owner of a server");
    assert!(serves(&hosts));

    owner.kill()?;
    owner.wait()?;
    let end = Instant::now() + Duration::from_secs(30);
    while serves(&hosts) {
        assert!(Instant::now() < end, "the server at {hosts} has outlived its process");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Is no test, but what the one before runs.
#[test]
fn owner_of_a_server() -> Result<()> {
    if env::var_os("ZKLOCK_TEST_OWNER").is_some() {
        let server = ZooKeeperServer::start()?;
        println!("server at {}", server.hosts());
        let _ = io::stdin().read_line(&mut String::new());
    }
    Ok(())
}

fn serves(hosts: &str) -> bool {
    answer(hosts, "srvr").is_ok_and(|text| text.contains("Mode: "))
}

/// A line of what `conf` answers.
fn setting(hosts: &str, key: &str) -> String {
    let text = answer(hosts, "conf").expect("an answer");
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.expect("a setting of that name").to_owned()
}

fn answer(hosts: &str, word: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(hosts)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    io::Write::write_all(&mut stream, word.as_bytes())?;
    io::read_to_string(stream)
}
