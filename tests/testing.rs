//! The features `testing-local` and `testing`, as the tests of another crate would use them.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test")]

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
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    #[cfg(feature = "testing")]
    {
        let error = ZooKeeperServer::builder().image("two words:1").start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
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
        .env("RUST_LOG", "zklock::testing=info");
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
        match ZooKeeperServer::start() {
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

/// Without a setting, a local installation replaces Docker where that cannot be used.
#[cfg(feature = "testing")]
mod fallback {
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A Docker engine that is not there.
    const NO_ENGINE: &str = "unix:///nonexistent/docker.sock";

    /// A Docker engine that answers, and has no image and no network.
    fn engine_without_images() -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let pulls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&pulls);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(io::Result::ok) {
                let _ = answer_request(stream, &counted);
            }
        });
        (format!("tcp://{address}"), pulls)
    }

    fn answer_request(mut stream: TcpStream, pulls: &AtomicUsize) -> io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines().map_while(io::Result::ok);
        let request = lines.next().unwrap_or_default();
        lines.take_while(|line| !line.is_empty()).for_each(drop);
        let (status, body) = if request.contains("/_ping") {
            ("200 OK", "OK")
        } else if request.contains("/images/create") {
            // `testcontainers` tries again with this platform.
            pulls.fetch_add(usize::from(!request.contains("amd64")), Ordering::SeqCst);
            ("500 Internal Server Error", r#"{"message":"no such registry"}"#)
        } else {
            ("404 Not Found", r#"{"message":"no such thing"}"#)
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        )
    }

    /// What a process wrote that started servers without any setting but these.
    fn started(count: u32, variables: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let mut command = owner_of_servers(count);
        command.env_remove("ZKLOCK_TESTING_SERVER").env_remove("ZKLOCK_TESTING_IMAGE");
        command.envs(variables.iter().copied());
        let output = command.stdin(Stdio::null()).output().expect("a process");
        let lines = |text: &[u8], word: &str| {
            let text = String::from_utf8_lossy(text);
            text.lines().filter(|line| line.contains(word)).map(str::to_owned).collect()
        };
        (lines(&output.stdout, "server"), lines(&output.stderr, "zklock::testing"))
    }

    fn has_no_installation() -> bool {
        let missing = ZooKeeperServer::builder().local().start().err();
        let missing = missing.filter(|error| error.to_string().contains("apt-get install"));
        if let Some(error) = &missing {
            assert!(env::var_os("ZKLOCK_TESTS_MUST_RUN").is_none(), "{error}");
            println!("SKIPPED: {error}");
        }
        missing.is_some()
    }

    #[test]
    fn no_engine() {
        if has_no_installation() {
            return;
        }
        let (servers, log) = started(1, &[("DOCKER_HOST", NO_ENGINE)]);
        assert!(servers.len() == 1 && servers[0].contains("server at 127.0.0.1:"), "{servers:?}");
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(log[0].contains("local, not in Docker: no Docker engine answers"), "{log:?}");
    }

    #[test]
    fn no_image() {
        if has_no_installation() {
            return;
        }
        let (engine, pulls) = engine_without_images();
        let (servers, log) = started(2, &[("DOCKER_HOST", &engine)]);
        let are_there = servers.iter().all(|server| server.contains("server at 127.0.0.1:"));
        assert!(servers.len() == 2 && are_there, "{servers:?}");
        assert_eq!(log.len(), 2, "{log:?}");
        assert!(log.iter().all(|line| line.contains("cannot be pulled")), "{log:?}");
        assert!(log.iter().all(|line| line.contains("no such registry")), "{log:?}");
        assert_eq!(pulls.load(Ordering::SeqCst), 1, "a process tries it once");
    }

    #[test]
    fn neither() {
        let path = ("PATH", "/nonexistent");
        for (engine, cause) in [
            (NO_ENGINE.to_owned(), "no Docker engine answers"),
            (engine_without_images().0, "cannot be pulled"),
        ] {
            let (servers, log) = started(1, &[("DOCKER_HOST", &engine), path]);
            assert_eq!((servers.len(), log.len()), (1, 0), "{servers:?} {log:?}");
            for part in ["no server: ", cause, "start an engine", "java on the PATH", "apt-get"] {
                assert!(servers[0].contains(part), "{part} is missing in {servers:?}");
            }
        }
    }

    #[test]
    fn what_is_forced_is_not_replaced() {
        let engine = ("DOCKER_HOST", NO_ENGINE);
        for forced in
            [("ZKLOCK_TESTING_SERVER", "docker"), ("ZKLOCK_TESTING_IMAGE", "zookeeper:3.9")]
        {
            let (servers, _) = started(1, &[engine, forced]);
            let refused =
                servers[0].contains("no server: cannot start a ZooKeeper server in Docker");
            assert!(refused, "{forced:?} gave {servers:?}");
        }
        if has_no_installation() {
            return;
        }
        let (engine, pulls) = engine_without_images();
        let forced = [("DOCKER_HOST", engine.as_str()), ("ZKLOCK_TESTING_SERVER", "local")];
        let (servers, log) = started(1, &forced);
        assert!(servers[0].contains("server at "), "{servers:?}");
        assert!(log.len() == 1 && log[0].ends_with("(local)"), "{log:?}");
        assert_eq!(pulls.load(Ordering::SeqCst), 0);
    }
}
