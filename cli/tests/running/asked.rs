//! What ends a command but its lock: that another client asks for the release, and `--max-run`.

use nix::sys::signal::{Signal, kill};

use super::support::{Ended, Running, Site};

const TELLS: &str = "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.02; done";

/// Asks for the release of a lock, and waits for it.
fn ask(site: &Site, lock: &str) -> Ended {
    Ended::new(site.zklock().args(["ask", "-w", "30s", lock]).output().unwrap())
}

#[test]
fn a_command_is_told_to_end_when_its_release_is_asked_for() {
    let site = Site::new("asked");
    for (options, lock) in [(&[][..], "a"), (&["-s"], "a"), (&["--also", "b"], "b")] {
        let running = site.start_ready(options, TELLS);
        assert_eq!(ask(&site, lock).code, Some(0), "{options:?}");
        let ended = running.end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(5), "told\n"), "{}", ended.err);
        let said = "zklock: a: another client asks for its release; TERM to sh\n";
        assert!(ended.err.contains(said), "{}", ended.err);
    }
}

#[test]
fn a_stopped_command_is_told_to_end_as_well() {
    let site = Site::new("asked-stopped");
    let running =
        site.start_ready(&["--on-ask", "usr1"], "trap 'exit 5' USR1; echo ready; kill -STOP $$");
    assert_eq!(ask(&site, "a").code, Some(0));
    assert_eq!(running.end().code, Some(5));
}

/// The guard process was stopped: it learns of all this at once.
#[test]
fn a_command_that_is_just_being_started_is_told_to_end_as_well() {
    let site = Site::new("asked-early");
    for _ in 0..5 {
        let holder = site.start_ready(&[], "echo ready; sleep 1000");
        let file = site.file("events");
        let mut command = site.zklock();
        command.args(["run", "--events"]).arg(&file).args(["a", "sleep", "30"]);
        let waiter = Running::of(&mut command);
        site.until_it_says("waiting", &file);
        let guard = waiter.guard();
        kill(guard, Signal::SIGSTOP).unwrap();
        holder.signal(Signal::SIGTERM);
        holder.end();
        site.until_it_says("acquired", &file);
        assert_eq!(site.zklock().args(["ask", "a"]).status().unwrap().code(), Some(0));
        site.until_it_says("release_requested", &file);
        kill(guard, Signal::SIGCONT).unwrap();
        let ended = waiter.end();
        assert_eq!(ended.signal, Some(15), "{}", ended.err);
    }
}

/// It takes its time, and the lock is held until then.
#[test]
fn a_command_that_does_not_listen_keeps_its_lock() {
    let site = Site::new("asked-deaf");
    for (options, what) in [
        (&["--on-ask", "ignore"][..], "the command goes on (--on-ask ignore)"),
        (&[], "TERM to sh"),
    ] {
        let file = site.file("events");
        let options = [options, &["--events", file.to_str().unwrap()]].concat();
        let running =
            site.start_ready(&options, "trap '' TERM; echo ready; while :; do sleep 1; done");
        assert_eq!(site.zklock().args(["ask", "a"]).status().unwrap().code(), Some(0));
        site.until_it_says("release_requested", &file);
        assert_eq!(site.run(["-n", "a", "true"]).code, Some(124));
        kill(running.command(), Signal::SIGKILL).unwrap();
        let ended = running.end();
        assert_eq!(ended.code, Some(137));
        assert!(ended.err.ends_with(&format!("release; {what}\n")), "{}", ended.err);
    }
}

#[test]
fn a_command_ends_when_it_has_run_for_long_enough() {
    let site = Site::new("max-run");
    let run = |options: &[&str], script: &str| {
        let options = [&["--max-run", "300ms"], options, &["a", "--", "sh", "-c", script]].concat();
        site.run(options)
    };
    let told = run(&[], TELLS);
    assert_eq!((told.code, told.out.as_str()), (Some(122), "ready\ntold\n"), "{}", told.err);
    let said = "zklock: a: sh has run for 0.3 s (--max-run); TERM, KILL after 0.2 s\n";
    assert!(told.err.contains(said), "{}", told.err);
    let deaf = run(&[], "trap '' TERM; sleep 1000 & setsid sleep 1000 & while :; do sleep 1; done");
    assert_eq!(deaf.code, Some(122), "{}", deaf.err);
    assert!(site.nothing_is_left());
    let stopped = run(&[], "kill -STOP $$");
    assert_eq!(stopped.code, Some(122), "{}", stopped.err);
    // It has not been done.
    let failed = run(&["--once", "k"], "trap 'exit 0' TERM; while :; do sleep 0.02; done");
    assert_eq!(failed.code, Some(122), "{}", failed.err);
    let done = run(&["--once", "k"], "echo done");
    assert_eq!((done.code, done.out.as_str()), (Some(0), "done\n"), "{}", done.err);
}

/// The guard process is stopped: zklock kills the command itself.
#[test]
fn a_command_ends_though_its_guard_process_does_nothing() {
    let site = Site::new("max-run-guard");
    let running = site.start_ready(&["--max-run", "500ms"], "echo ready; sleep 1000");
    kill(running.guard(), Signal::SIGSTOP).unwrap();
    assert_eq!(running.end().code, Some(122));
    assert!(site.nothing_is_left());
}
