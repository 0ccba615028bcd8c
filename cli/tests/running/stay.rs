//! `--hold-at-least`: the lock is kept though the command has ended.
//!
//! Where it has to be seen held, its time is an hour, which a signal ends. No session may end on a busy machine.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use zklock::DistributedLock;

use super::support::{Ended, Running, Site, children};

const LONG: [&str; 4] = [SESSION[0], SESSION[1], "--hold-at-least", "1h"];

const SESSION: [&str; 2] = ["--session-timeout", "60s"];

/// A command that has ended with 3, and the zklock that stays.
fn staying(site: &Site, options: &[&str]) -> Running {
    let file = site.file("events");
    let mut command = site.zklock();
    command.args(["run", "--grace", "200ms", "--events"]).arg(&file).args(LONG).args(options);
    let running = Running::of(command.args(["a", "sh", "-c", "exit 3"]));
    site.until_it_says("still_held", &file);
    assert_eq!(children(running.process()), []);
    running
}

fn ends_with_3(running: Running) -> Ended {
    let ended = running.end();
    assert_eq!(ended.code, Some(3), "{:?}: {}", ended.signal, ended.err);
    ended
}

fn ask(site: &Site) {
    assert_eq!(site.zklock().args(SESSION).args(["ask", "a"]).status().unwrap().code(), Some(0));
}

fn is_held(site: &Site, options: &[&str]) -> bool {
    let ended = site.run([&SESSION[..], &["-n"], options, &["true"]].concat());
    assert!(matches!(ended.code, Some(0 | 124)), "{ended:?}");
    ended.code == Some(124)
}

#[test]
fn it_is_held_until_a_signal_ends_it_and_the_exit_code_is_the_command_s() {
    let site = Site::new("stay");
    for (options, refused, signal) in [
        (&[][..], &["a"][..], Signal::SIGTERM),
        (&["-s"], &["-x", "a"], Signal::SIGINT),
        (&["-x"], &["-s", "a"], Signal::SIGHUP),
        (&["--permits", "2", "--take", "2"], &["--permits", "2", "a"], Signal::SIGQUIT),
        (&["--also", "b"], &["b"], Signal::SIGTERM),
    ] {
        let running = staying(&site, options);
        assert!(is_held(&site, refused), "{options:?}");
        // Those are the command's.
        running.signal(Signal::SIGUSR1);
        assert!(is_held(&site, refused), "{options:?}");
        running.signal(signal);
        ends_with_3(running);
        // It waits if the release was not confirmed in time.
        assert_eq!(
            site.run([&SESSION[..], refused, &["true"]].concat()).code,
            Some(0),
            "{options:?}"
        );
    }
}

/// Counted from the grant, which another holder puts off until after the time that is measured from.
#[test]
fn it_is_not_released_before_its_time_is_over() {
    let site = Site::new("stay-time");
    let holder = site.start(&SESSION, "a", "sleep 1000");
    let file = site.file("events");
    let mut command = site.zklock();
    command.args(SESSION).args(["run", "--hold-at-least", "2s", "--events"]);
    let waiter = Running::of(command.arg(&file).args(["a", "true"]));
    site.until_it_says("waiting", &file);
    let before = Instant::now();
    holder.signal(Signal::SIGTERM);
    site.until_it_says("acquired", &file);
    let zk = zklock::Client::connect(site.server.hosts()).unwrap();
    let next = DistributedLock::new(&zk, "/locks", "a").lock().unwrap();
    assert!(before.elapsed() >= Duration::from_secs(2), "{:?}", before.elapsed());
    assert_eq!(waiter.end().code, Some(0));
    next.unlock().unwrap();
}

#[test]
fn a_command_that_takes_longer_keeps_nothing() {
    let site = Site::new("stay-over");
    let file = site.file("events");
    let events = file.to_str().unwrap();
    let options = ["--hold-at-least", "1ms", "--events", events, "a", "sleep", "0.1"];
    assert_eq!(site.run([&SESSION[..], &options].concat()).code, Some(0));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"ended\"") && !text.contains("still_held"), "{text}");
}

#[test]
fn a_loss_after_the_command_is_said_and_is_no_failure_of_the_command() {
    let site = Site::new("stay-lost");
    let running = staying(&site, &[]);
    let zk = zklock::Client::connect(site.server.hosts()).unwrap();
    let lock = DistributedLock::new(&zk, "/locks", "a");
    let holder = lock.holder().unwrap().unwrap();
    assert!(lock.break_lock(&holder).unwrap());
    let ended = ends_with_3(running);
    let said = "zklock: a: LOCK LOST after the end of the command, 5";
    assert!(ended.err.starts_with(said) && ended.err.lines().count() == 1, "{}", ended.err);
}

/// The release takes its time, but not that of the outage.
#[test]
fn a_signal_in_an_outage_ends_it() {
    let site = Site::new("stay-outage");
    let running = staying(&site, &[]);
    site.server.pause().unwrap();
    running.signal(Signal::SIGTERM);
    ends_with_3(running);
    site.server.resume().unwrap();
}

#[test]
fn what_was_not_started_or_was_told_to_end_keeps_nothing() {
    let site = Site::new("stay-not");
    let missing = site.run([&LONG[..], &["a", "--", "/no/such/program"]].concat());
    assert_eq!(missing.code, Some(127), "{}", missing.err);
    let tells = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let running = site.start_ready(&LONG, tells);
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, Some(5));
    let running = site.start_ready(&LONG, tells);
    ask(&site);
    assert_eq!(running.end().code, Some(5));
    assert_eq!(site.run([&SESSION[..], &["a", "true"]].concat()).code, Some(0));
    // Nothing was held.
    site.server.stop().unwrap();
    let without = ["--connect-timeout", "300ms", "--if-unavailable", "run"];
    let ended = site.run([&without[..], &LONG, &["a", "sh", "-c", "exit 4"]].concat());
    assert_eq!(ended.code, Some(4), "{}", ended.err);
}

#[test]
fn it_is_released_when_that_is_asked_for() {
    let site = Site::new("stay-asked");
    let running = staying(&site, &[]);
    ask(&site);
    let said = "zklock: a: another client asks for its release; the command has ended, so it is released\n";
    let ended = ends_with_3(running);
    assert!(ended.err.starts_with(said), "{}", ended.err);
    let running = staying(&site, &["--on-ask", "ignore"]);
    ask(&site);
    site.until_it_says("release_requested", &site.file("events"));
    assert!(is_held(&site, &["a"]));
    running.signal(Signal::SIGTERM);
    ends_with_3(running);
}

#[test]
fn a_command_that_ran_too_long_keeps_it_too_and_systemd_is_told() {
    let site = Site::new("stay-max-run");
    let path = site.file("socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    let next = || {
        let mut bytes = [0; 256];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let mut command = site.zklock();
    command.args(["run", "--notify", "--max-run", "2s"]).args(LONG).args(["a", "sleep", "1000"]);
    let running = Running::of(command.env("NOTIFY_SOCKET", &path));
    assert_eq!(next(), "STATUS=waiting: /locks/a");
    assert_eq!(next(), "READY=1\nSTATUS=holds the lock");
    assert_eq!(next(), "STATUS=the command has ended; keeps the lock for --hold-at-least");
    assert!(is_held(&site, &["a"]));
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, Some(122));
}
