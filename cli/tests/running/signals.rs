//! Signals to zklock, while it waits and while the command runs.

use std::process::Command;

use nix::sys::signal::Signal;

use super::support::{Running, Site};

const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

#[test]
fn a_signal_during_the_wait_ends_it_and_nothing_runs() {
    let site = Site::new("interrupted");
    let holder = site.start(&[], "a", "sleep 1000");
    for signal in ENDING {
        let mut command = site.zklock();
        let file = site.file("events");
        let file_name = file.to_str().unwrap();
        command.args(["run", "--grace", "200ms", "--events", file_name, "a", "echo", "ran"]);
        let waiter = Running::of(&mut command);
        site.until_it_says("waiting", &file);
        waiter.signal(signal);
        let ended = waiter.end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(128 + signal as i32), ""));
    }
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.end().code, Some(143));
    assert_eq!(site.run(["-n", "a", "true"]).code, Some(0));
}

#[test]
fn a_signal_while_no_server_answers_ends_it() {
    let site = Site::new("interrupted-outage");
    site.server.pause().unwrap();
    let mut command = site.zklock();
    let waiter = Running::of(command.args(["-v", "run", "a", "echo", "ran"]));
    // It has blocked the signal before it connects; before that, the signal ends it by itself.
    waiter.signal(Signal::SIGTERM);
    let ended = waiter.end();
    assert!(ended.code == Some(143) || ended.signal == Some(15), "{ended:?}");
    assert_eq!(ended.out, "");
    site.server.resume().unwrap();
}

#[test]
fn signals_are_passed_on() {
    let site = Site::new("passed");
    let script = "trap 'echo usr1' USR1; trap 'echo int; exit 5' INT; \
                  echo ready; while :; do sleep 0.05; done";
    let mut command = site.zklock();
    command.args(["run", "--grace", "200ms", "a", "--", "sh", "-c", script]);
    let mut running = Running::of(&mut command);
    assert_eq!(running.line(), "ready");
    running.signal(Signal::SIGUSR1);
    assert_eq!(running.line(), "usr1");
    running.signal(Signal::SIGINT);
    assert_eq!(running.line(), "int");
    assert_eq!(running.end().code, Some(5));
}

#[test]
fn what_a_shell_has_started_takes_its_time_to_end() {
    let site = Site::new("shell");
    // The outer shell dies of the signal at once.
    let script = "sh -c 'trap \"sleep 0.5; echo flushed; exit\" TERM; echo ready; while :; do sleep 0.05; done'; :";
    let mut command = site.zklock();
    command.args(["run", "--grace", "200ms", "a", "--", "sh", "-c", script]);
    let mut running = Running::of(&mut command);
    assert_eq!(running.line(), "ready");
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(143), "flushed\n"));
    assert!(!ended.err.contains("zklock"), "{}", ended.err);
}

#[test]
fn hup_may_come_as_often_as_it_likes() {
    let site = Site::new("hup");
    let script = "trap 'echo reloaded' HUP; echo ready; while :; do sleep 0.05; done";
    let mut command = site.zklock();
    command.args(["run", "--grace", "0", "a", "--", "sh", "-c", script]);
    let mut running = Running::of(&mut command);
    assert_eq!(running.line(), "ready");
    for _ in 0..4 {
        running.signal(Signal::SIGHUP);
        assert_eq!(running.line(), "reloaded");
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().code, Some(143));
}

#[test]
fn a_second_signal_kills_after_the_grace() {
    let site = Site::new("twice");
    let script = "trap '' TERM INT; echo ready; while :; do sleep 0.05; done";
    let mut command = site.zklock();
    command.args(["run", "--grace", "200ms", "a", "--", "sh", "-c", script]);
    let mut running = Running::of(&mut command);
    assert_eq!(running.line(), "ready");
    // Two of one number could become one.
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGINT);
    let ended = running.end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(137), ""));
}

#[test]
fn ignored_signals_stay_ignored() {
    let site = Site::new("nohup");
    let mut command = Command::new("sh");
    let zklock = env!("CARGO_BIN_EXE_zklock");
    let script = format!(
        "trap '' HUP; exec {zklock} --hosts {} run a -- sh -c 'echo ready; read line; echo alive'",
        site.server.hosts()
    );
    let mut child = command
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let process = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(process, Signal::SIGHUP).unwrap();
    drop(child.stdin.take());
    line.clear();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "alive\n");
    assert!(child.wait().unwrap().success());
}
