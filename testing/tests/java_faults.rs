//! Faults of servers from a local installation and in Docker, as the tests of another crate would use them.

#![allow(clippy::expect_used, clippy::panic, reason = "a test")]

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use zklock::{Client, DistributedLock, LossReason, SharedCounter};
use zklock_testing::{ErrorKind, ZooKeeper};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Longer than a restart takes on a busy machine.
const LONG_SESSION: Duration = Duration::from_secs(40);
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of the kind that `ZKLOCK_TESTING_SERVER` names, if that is a real one.
fn start() -> zklock_testing::Result<ZooKeeper> {
    let is_named = env::var_os("ZKLOCK_TESTING_SERVER").is_some_and(|name| !name.is_empty());
    if is_named { ZooKeeper::start() } else { ZooKeeper::builder().local().start() }
}

fn client(server: &ZooKeeper) -> zklock::Result<Client> {
    Client::connect(server.hosts())
}

fn session(zk: &Client) -> i64 {
    zk.session_id().expect("a session").into()
}

#[test]
fn a_restart_keeps_port_data_sessions_and_locks() -> Result<()> {
    let server = start()?;
    let zk = Client::builder(server.hosts()).session_timeout(LONG_SESSION).connect()?;
    let guard = DistributedLock::new(&zk, "/locks", "nightly").lock()?;
    let counter = SharedCounter::new(&zk, "/count", "reports");
    counter.add(7)?;
    let session = zk.session_id();

    server.stop()?;
    assert!(TcpStream::connect(server.hosts()).is_err());
    server.stop()?; // nothing is left to do
    server.start_again()?;
    server.start_again()?;

    guard.ensure_held()?;
    assert_eq!(counter.get()?, 7);
    assert_eq!(zk.session_id(), session);
    Ok(())
}

#[test]
fn a_paused_server_is_silent_and_a_short_pause_costs_no_lock() -> Result<()> {
    let server = start()?;
    let zk = Client::builder(server.hosts()).session_timeout(LONG_SESSION).connect()?;
    let guard = DistributedLock::new(&zk, "/locks", "nightly").lock()?;

    server.pause()?;
    server.pause()?;
    assert!(answer(server.hosts(), "ruok", Duration::from_millis(500)).is_err());
    server.resume()?;
    server.resume()?;

    assert_eq!(answer(server.hosts(), "ruok", PATIENCE).expect("an answer"), "imok");
    guard.ensure_held()?;
    Ok(())
}

#[test]
fn a_long_pause_costs_the_lock() -> Result<()> {
    let server = start()?;
    let zk =
        Client::builder(server.hosts()).session_timeout(Duration::from_millis(1000)).connect()?;
    let lock = DistributedLock::new(&zk, "/locks", "nightly");
    let guard = lock.lock()?;

    server.pause()?;
    assert_eq!(guard.lost().wait_within(PATIENCE), Some(Err(LossReason::LeaseExpired)));
    server.resume()?;
    drop(guard);

    assert!(lock.try_lock_for(PATIENCE)?.is_some());
    Ok(())
}

#[test]
fn an_expired_session_is_lost_at_once_and_for_its_client_only() -> Result<()> {
    let server = start()?;
    let (here, there) = (client(&server)?, client(&server)?);
    let ours = DistributedLock::new(&here, "/locks", "nightly");
    let theirs = DistributedLock::new(&there, "/locks", "nightly");
    let other = DistributedLock::new(&there, "/locks", "hourly").lock()?;

    // Again and again: the client tries to take its session back meanwhile.
    for _ in 0..30 {
        let guard = ours.lock()?;
        let ended = session(&here);
        server.expire(ended)?;

        let next = theirs.try_lock()?.expect("the node is gone when `expire` returns");
        assert!(next.fencing_token() > guard.fencing_token());
        assert_eq!(guard.lost().wait_within(PATIENCE), Some(Err(LossReason::SessionExpired)));
        assert!(!guard.is_held());
        next.unlock()?;

        let error = server.expire(ended).expect_err("it has ended");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(&format!("0x{ended:x}")), "{error}");
    }
    other.ensure_held()?;

    let ended = session(&there);
    server.expire(ended)?;
    assert_eq!(other.lost().wait_within(PATIENCE), Some(Err(LossReason::SessionExpired)));
    Ok(())
}

#[test]
fn a_session_of_another_server_cannot_be_expired() -> Result<()> {
    let (server, elsewhere) = (start()?, start()?);
    let zk = client(&elsewhere)?;
    let error = server.expire(session(&zk)).expect_err("it is another server's");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    Ok(())
}

#[test]
fn what_a_stopped_or_paused_server_cannot_do_is_an_error() -> Result<()> {
    let server = start()?;
    let zk = client(&server)?;

    server.pause()?;
    for done in [server.start_again(), server.expire(session(&zk))] {
        let error = done.expect_err("it is paused");
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.to_string().contains("call `resume` first"), "{error}");
    }
    server.stop()?;
    for done in [server.pause(), server.resume(), server.expire(session(&zk))] {
        let error = done.expect_err("it is stopped");
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.to_string().contains("call `start_again` first"), "{error}");
    }
    server.start_again()?;
    assert!(answer(server.hosts(), "ruok", PATIENCE).is_ok());
    Ok(())
}

#[test]
fn a_start_that_failed_can_be_repeated() -> Result<()> {
    let server = start()?;
    server.stop()?;
    let in_its_place = TcpListener::bind(server.hosts()).expect("its port");
    let error = server.start_again().expect_err("its port is taken");
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.to_string().contains("already in use"), "{error}");
    drop(in_its_place);
    server.start_again()?;
    assert!(answer(server.hosts(), "ruok", PATIENCE).is_ok());
    Ok(())
}

#[test]
fn nothing_is_left_of_servers_that_were_stopped_or_paused() -> io::Result<()> {
    let directory = env::temp_dir().join(format!("zklock-testing-faults-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let status = Command::new(env::current_exe()?)
        .args(["--exact", "owner_of_servers", "--nocapture"])
        .env("ZKLOCK_TEST_OWNER", "1")
        .env("TMPDIR", &directory)
        .status()?;
    let left = left_in(&directory)?;
    fs::remove_dir_all(&directory)?;
    assert!(status.success());
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Not a test by itself: [`nothing_is_left_of_servers_that_were_stopped_or_paused`] runs it as a process.
#[test]
fn owner_of_servers() -> Result<()> {
    if env::var_os("ZKLOCK_TEST_OWNER").is_none() {
        return Ok(());
    }
    let servers = [start()?, start()?, start()?];
    let [stopped, paused, restarted] = &servers;
    stopped.stop()?;
    paused.pause()?;
    restarted.stop()?;
    restarted.start_again()?;
    let hosts = servers.each_ref().map(|server| server.hosts().to_owned());
    drop(servers);
    for hosts in hosts {
        assert!(TcpStream::connect(&hosts).is_err(), "{hosts} is still there");
    }
    Ok(())
}

/// The files and directories in a directory, without the empty directory of the ports.
fn left_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if !path.ends_with(format!("zklock-ports-{}", fs::metadata("/proc/self")?.uid())) {
            left.push(path);
        } else {
            left.extend(left_in(&path)?);
        }
    }
    Ok(left)
}

fn answer(hosts: &str, command: &str, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect(hosts)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(command.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    if text.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(text) }
}
