//! Signals to zklock, while it waits and while the command runs.

use std::process::Command;

use nix::sys::signal::Signal;

use super::forward::{Forward, has};
use super::support::{Running, Site, until_ended};

const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

#[test]
fn a_signal_during_the_wait_ends_it_and_nothing_runs() {
    let site = Site::new("interrupted");
    let holder = site.start(&[], "a", "sleep 1000");
    for signal in ENDING {
        let file = site.file("events");
        let waiter = site.wait_for("a", &file);
        waiter.signal(signal);
        let ended = waiter.end();
        assert_eq!(ended.out, "");
        match signal {
            // A shell's loop around it has to end, too, and systemd stops its units by TERM.
            Signal::SIGINT | Signal::SIGTERM => assert_eq!(ended.signal, Some(signal as i32)),
            _ => assert_eq!(ended.code, Some(128 + signal as i32)),
        }
    }
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.end().signal, Some(15));
    assert_eq!(site.run(["-n", "a", "true"]).code, Some(0));
}

#[test]
fn a_signal_while_no_server_answers_ends_it() {
    let site = Site::new("interrupted-outage");
    site.server.pause().unwrap();
    let mut command = site.zklock();
    let waiter = Running::of(command.args(["-v", "run", "a", "echo", "ran"]));
    waiter.signal(Signal::SIGTERM);
    let ended = waiter.end();
    assert_eq!((ended.signal, ended.out.as_str()), (Some(15), ""));
    site.server.resume().unwrap();
}

/// After the lock is acquired, it is looked for the mark.
#[test]
fn a_signal_before_the_command_is_not_lost_though_the_lock_is_held() {
    let site = Site::new("interrupted-once");
    let forward = Forward::start(site.server.hosts(), |bytes| has(bytes, b"a.once/done/k"));
    let mut command = site.zklock();
    let run = ["run", "--grace", "200ms", "--once", "k", "a", "echo", "ran"];
    let waiter = Running::of(command.args(["--hosts", &forward.hosts]).args(run));
    forward.until_silent();
    waiter.signal(Signal::SIGTERM);
    let ended = waiter.end();
    assert_eq!((ended.signal, ended.out.as_str(), ended.err.as_str()), (Some(15), "", ""));
}

#[test]
fn an_outage_before_the_command_is_one_though_the_lock_was_held() {
    let site = Site::new("outage-once");
    let forward = Forward::start(site.server.hosts(), |bytes| has(bytes, b"a.once/done/k"));
    let mut command = site.zklock();
    command.args(["--hosts", &forward.hosts, "--connect-timeout", "500ms"]);
    let run = ["run", "--grace", "200ms", "--once", "k", "a", "echo", "ran"];
    let ended = Running::of(command.args(run)).end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(69), ""));
    assert!(ended.err.ends_with(". The command was NOT run\n"), "{}", ended.err);
}

/// Its exit code does not have to be waited for until all time-outs have passed.
#[test]
fn a_signal_after_the_command_ends_what_is_left_to_do() {
    let site = Site::new("interrupted-late");
    let forward = Forward::start(site.server.hosts(), |bytes| {
        has(bytes, b"a.once/done/k") && has(bytes, b"zklock-once")
    });
    let mut command = site.zklock();
    command.args(["--hosts", &forward.hosts, "--session-timeout", "60s"]);
    command.args(["--connect-timeout", "10m", "run", "--grace", "200ms", "--once", "k"]);
    let running = Running::of(command.args(["a", "echo", "ran"]));
    forward.until_silent();
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(125), "ran\n"), "{}", ended.err);
    assert!(ended.err.contains("the job has run"), "{}", ended.err);
}

#[test]
fn a_parent_that_ignores_its_children_changes_nothing() {
    let site = Site::new("ignored-children");
    let mut command = Command::new("env");
    command.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_zklock")]);
    command.args(["--hosts", site.server.hosts(), "run", "a", "sh", "-c", "exit 3"]);
    assert_eq!(command.status().unwrap().code(), Some(3));
}

#[test]
fn what_has_left_the_group_is_told_to_end_and_killed() {
    let site = Site::new("left-the-group");
    let script = "(trap '' TERM; setsid sleep 1000 &); trap 'exit 4' TERM; echo ready; \
                  while :; do sleep 0.05; done";
    let running = site.start_ready(&[], script);
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, Some(4), "{}", ended.err);
}

/// The command itself has ended when the signal comes.
#[test]
fn a_signal_gives_leftovers_no_more_time() {
    let site = Site::new("leftovers");
    let script = "trap '' TERM; sleep 1000 & echo ready; exit 3";
    let running = site.start_ready(&["--session-timeout", "60s", "--grace", "3s"], script);
    until_ended(running.command());
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!(ended.code, Some(3), "{}", ended.err);
    assert!(ended.err.contains("had left processes running"), "{}", ended.err);
}

#[test]
fn signals_are_passed_on() {
    let site = Site::new("passed");
    let script = "trap 'echo usr1' USR1; trap 'echo int; exit 5' INT; \
                  echo ready; while :; do sleep 0.05; done";
    let mut running = site.start_ready(&[], script);
    running.signal(Signal::SIGUSR1);
    assert_eq!(running.line(), "usr1");
    running.signal(Signal::SIGINT);
    assert_eq!(running.line(), "int");
    assert_eq!(running.end().code, Some(5));
}

/// Those that would end zklock, and mean nothing to it.
#[test]
fn a_signal_of_the_command_s_own_is_passed_on() {
    let site = Site::new("own-signals");
    for signal in
        [Signal::SIGALRM, Signal::SIGIO, Signal::SIGPROF, Signal::SIGPWR, Signal::SIGVTALRM]
    {
        let name = signal.as_str().trim_start_matches("SIG");
        let script = format!("trap 'exit 5' {name}; echo ready; while :; do sleep 0.05; done");
        let running = site.start_ready(&[], &script);
        running.signal(signal);
        assert_eq!(running.end().code, Some(5), "{name}");
    }
}

#[test]
fn what_a_shell_has_started_takes_its_time_to_end() {
    let site = Site::new("shell");
    // The outer shell dies of the signal at once.
    let script = "sh -c 'trap \"sleep 0.5; echo flushed; exit\" TERM; echo ready; while :; do sleep 0.05; done'; :";
    let running = site.start_ready(&[], script);
    running.signal(Signal::SIGTERM);
    let ended = running.end();
    assert_eq!((ended.signal, ended.out.as_str()), (Some(15), "flushed\n"));
    assert!(!ended.err.contains("zklock"), "{}", ended.err);
}

#[test]
fn hup_may_come_as_often_as_it_likes() {
    let site = Site::new("hup");
    let script = "trap 'echo reloaded' HUP; echo ready; while :; do sleep 0.05; done";
    let mut running = site.start_ready(&["--grace", "0"], script);
    for _ in 0..4 {
        running.signal(Signal::SIGHUP);
        assert_eq!(running.line(), "reloaded");
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().signal, Some(15));
}

#[test]
fn a_second_signal_kills_after_the_grace() {
    let site = Site::new("twice");
    let script = "trap '' TERM INT; echo ready; while :; do sleep 0.05; done";
    let running = site.start_ready(&[], script);
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
