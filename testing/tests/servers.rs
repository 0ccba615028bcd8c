//! Servers from a local installation and in Docker, as the tests of another crate would use them.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Client, DistributedLock};
use zklock_testing::{ErrorKind, Result, ZooKeeper, ZooKeeperBuilder};

/// A server of the kind that `ZKLOCK_TESTING_SERVER` names, if that is a real one.
fn real() -> ZooKeeperBuilder {
    let is_named = env::var_os("ZKLOCK_TESTING_SERVER").is_some_and(|name| !name.is_empty());
    if is_named { ZooKeeper::builder() } else { ZooKeeper::builder().local() }
}

#[test]
fn a_lock_is_passed_on() -> Result<(), Box<dyn std::error::Error>> {
    let server = real().start()?;
    let (here, there) = (Client::connect(server.hosts())?, Client::connect(server.hosts())?);
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
    let server = real()
        .env("ZOO_CFG_EXTRA", "minSessionTimeout=200 maxSessionTimeout=7000")
        .startup_timeout(Duration::from_secs(90))
        .start()?;
    assert_eq!(setting(server.hosts(), "maxSessionTimeout"), "7000");
    assert_eq!(setting(server.hosts(), "tickTime"), "200");
    Ok(())
}

#[test]
fn a_setting_that_cannot_be_is_an_error() {
    let error = real().startup_timeout(Duration::ZERO).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    #[cfg(feature = "docker")]
    {
        let error = real().image("two words:1").start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let broken = real().env("ZOO_TICK_TIME", "soon").start().unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::System);
    let text = broken.to_string();
    assert!(text.contains("ended while it was starting") && text.contains("soon"), "{text}");
}

#[test]
fn it_is_gone_when_dropped() -> Result<()> {
    let server = real().start()?;
    let hosts = server.hosts().to_owned();
    assert!(serves(&hosts));
    drop(server);
    assert!(!serves(&hosts));
    Ok(())
}

#[test]
fn it_is_gone_when_its_process_was_killed() -> io::Result<()> {
    for pauses in [false, true] {
        let mut owner = owner_of_servers(1);
        if pauses {
            owner.env("ZKLOCK_TEST_OWNER_PAUSES", "1");
        }
        let mut owner = owner.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(owner.stdout.take().expect("a pipe"));
        let hosts = output
            .lines()
            .map_while(io::Result::ok)
            .find_map(|line| Some(line.split_once("server at ")?.1.to_owned()))
            .expect("the owner of a server");
        assert!(TcpStream::connect(&hosts).is_ok());

        owner.kill()?;
        owner.wait()?;
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&hosts).is_ok() {
            assert!(Instant::now() < end, "the server at {hosts} has outlived its process");
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// This test as a process of its own, which starts servers one after another, writes where they are or why
/// there is none, and waits for the end of its standard input.
fn owner_of_servers(count: u32) -> Command {
    let mut command = Command::new(env::current_exe().expect("a program"));
    command
        .args(["--exact", "owner", "--nocapture"])
        .env("ZKLOCK_TEST_OWNER", count.to_string())
        .env("RUST_LOG", "zklock_testing=info");
    command
}

/// Not a test by itself: other tests run it as a process.
#[test]
fn owner() -> Result<()> {
    let Some(count) = env::var_os("ZKLOCK_TEST_OWNER") else { return Ok(()) };
    env_logger::init();
    let count: u32 = count.to_str().and_then(|count| count.parse().ok()).expect("a number");
    let mut servers = Vec::new();
    for _ in 0..count {
        let builder = match env::var_os("OWNER_FORCES") {
            Some(_) => ZooKeeper::builder(),
            None => real(),
        };
        match builder.start() {
            Ok(server) => {
                if env::var_os("ZKLOCK_TEST_OWNER_PAUSES").is_some() {
                    server.pause()?;
                }
                println!("server at {}", server.hosts());
                servers.push(server);
            }
            Err(error) => println!("no server: {error}"),
        }
    }
    let _ = io::stdin().read_line(&mut String::new());
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

#[cfg(feature = "docker")]
mod docker {
    use super::*;

    /// A Docker engine that is not there.
    const NO_ENGINE: &str = "unix:///nonexistent/docker.sock";

    /// What a process wrote that started a server without any setting but these.
    fn started(variables: &[(&str, &str)]) -> String {
        let mut command = owner_of_servers(1);
        command.env_remove("ZKLOCK_TESTING_SERVER").env_remove("ZKLOCK_TESTING_IMAGE");
        command.envs(variables.iter().copied());
        let output = command.stdin(Stdio::null()).output().expect("a process");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn what_is_forced_is_not_replaced() {
        for forced in
            [("ZKLOCK_TESTING_SERVER", "docker"), ("ZKLOCK_TESTING_IMAGE", "zookeeper:3.9")]
        {
            let said = started(&[("DOCKER_HOST", NO_ENGINE), forced, ("OWNER_FORCES", "no")]);
            for part in
                ["no server: cannot start a ZooKeeper server in Docker", "no Docker engine answers"]
            {
                assert!(said.contains(part), "{forced:?} gave {said}");
            }
        }
    }
}
