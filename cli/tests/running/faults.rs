//! Faults of each party: killed, stopped, sessions lost, servers silent. After each, another zklock takes the
//! lock, and the file lock tells whether the first command still works.

use std::collections::HashSet;
use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use zklock::{DistributedLock, SessionId};

use super::support::{Running, Site, children, until_ended};

/// A command with descendants in its group, and outside of it; it does not end by TERM.
const STUBBORN: &str = "trap '' TERM; sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &); \
                        while :; do sleep 1; done";

#[test]
fn zklock_is_killed() {
    let site = Site::new("killed");
    let running = site.start(&[], "a", STUBBORN);
    running.signal(Signal::SIGKILL);
    // Long before the session ends.
    let ended = running.end();
    assert_eq!(ended.signal, Some(9));
    assert!(site.nothing_is_left());
    let next = site.run_judged("a", "echo mine");
    assert_eq!((next.code, next.out.as_str()), (Some(0), "mine\n"));
}

#[test]
fn zklock_is_stopped_for_longer_than_its_session() {
    let site = Site::new("stopped");
    let running = site.start(&[], "a", STUBBORN);
    running.signal(Signal::SIGSTOP);
    let next = site.run_judged("a", "echo mine");
    assert_eq!((next.code, next.out.as_str()), (Some(0), "mine\n"), "{}", next.err);
    running.signal(Signal::SIGCONT);
    let ended = running.end();
    assert_eq!(ended.code, Some(123));
    assert!(ended.err.contains("LOCK LOST after "), "{}", ended.err);
}

/// The guard process waits for nobody to read what it reports.
#[test]
fn zklock_is_stopped_and_reads_no_reports() {
    let site = Site::new("unread-reports");
    let running = site.start(&[], "a", STUBBORN);
    running.signal(Signal::SIGSTOP);
    running.until_stopped();
    let mut reports = reports(running.process(), running.guard());
    // Parts of lines are no reports.
    while reports.write(b"\n").is_ok() {}
    kill(running.command(), Signal::SIGSTOP).unwrap();
    let next = site.run_judged("a", "echo mine");
    assert_eq!((next.code, next.out.as_str()), (Some(0), "mine\n"), "{}", next.err);
    running.signal(Signal::SIGCONT);
    assert_eq!(running.end().code, Some(123));
}

/// The end of a pipe that the guard process writes to, and zklock reads from.
fn reports(zklock: Pid, guard: Pid) -> File {
    let pipes = |process: Pid, access: i32| {
        let all = fs::read_dir(format!("/proc/{process}/fd")).unwrap().map(|one| one.unwrap());
        let has_access = move |fd: &DirEntry| {
            let info = format!("/proc/{process}/fdinfo/{}", fd.file_name().display());
            let info = fs::read_to_string(info).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            i32::from_str_radix(flags.trim(), 8).unwrap() & OFlag::O_ACCMODE.bits() == access
        };
        all.filter(has_access).map(|fd| (fs::read_link(fd.path()).unwrap(), fd.path()))
    };
    let read: HashSet<PathBuf> =
        pipes(zklock, OFlag::O_RDONLY.bits()).map(|(pipe, _)| pipe).collect();
    let is_read = |pipe: &Path| read.contains(pipe) && pipe.to_str().unwrap().starts_with("pipe:");
    let mut all = pipes(guard, OFlag::O_WRONLY.bits()).filter(|(pipe, _)| is_read(pipe));
    let (_, path) = all.next().expect("a pipe from the guard process to zklock");
    OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).unwrap()
}

#[test]
fn zklock_is_stopped_for_a_moment() {
    let site = Site::new("moment");
    let running = site.start(&[], "a", "sleep 0.3; echo done");
    running.signal(Signal::SIGSTOP);
    running.until_stopped();
    running.signal(Signal::SIGCONT);
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "done\n", ""));
}

#[test]
fn the_guard_process_is_killed() {
    let site = Site::new("guard-killed");
    let running = site.start(&[], "a", STUBBORN);
    kill(running.guard(), Signal::SIGKILL).unwrap();
    let ended = running.end();
    assert_eq!(ended.code, Some(125));
    assert_eq!(ended.err, "zklock: a: the guard process was killed, so the command is, too\n");
    assert!(site.nothing_is_left());
    assert_eq!(site.run(["-n", "a", "true"]).code, Some(0));
}

#[test]
fn the_guard_process_is_killed_during_the_wait() {
    let site = Site::new("guard-killed-early");
    let holder = site.start(&[], "a", "sleep 1000");
    let waiter = site.wait_for("a", &site.file("events"));
    kill(waiter.guard(), Signal::SIGKILL).unwrap();
    holder.signal(Signal::SIGTERM);
    let ended = waiter.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(125), ""));
    assert!(ended.err.contains("the guard process was killed"), "{}", ended.err);
    assert_eq!(site.run(["-n", "a", "true"]).code, Some(0));
}

/// It was told to start the command while it was stopped; when it goes on, another one holds the lock.
#[test]
fn the_guard_process_starts_nothing_when_it_is_too_late() {
    let site = Site::new("guard-late");
    let holder = site.start(&[], "a", "sleep 1000");
    let file = site.file("events");
    let waiter = site.wait_for("a", &file);
    let guard = waiter.guard();
    kill(guard, Signal::SIGSTOP).unwrap();
    holder.signal(Signal::SIGTERM);
    site.until_it_says("acquired", &file);
    waiter.signal(Signal::SIGSTOP);
    waiter.until_stopped();
    let next = site.start(&[], "a", "sleep 1000");
    kill(guard, Signal::SIGCONT).unwrap();
    until_ended(guard);
    waiter.signal(Signal::SIGCONT);
    let ended = waiter.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(123), ""), "{}", ended.err);
    next.signal(Signal::SIGTERM);
    assert_eq!(next.end().signal, Some(15));
}

#[test]
fn the_guard_process_is_stopped_and_the_command_is_to_end() {
    let site = Site::new("guard-deaf");
    let running = site.start(&["--session-timeout", "60s"], "a", STUBBORN);
    kill(running.guard(), Signal::SIGSTOP).unwrap();
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGINT);
    let ended = running.end();
    assert_eq!(ended.code, Some(137), "{}", ended.err);
    assert!(site.nothing_is_left());
}

/// A reader who does not read holds nobody up.
#[test]
fn nobody_reads_what_is_said() {
    let site = Site::new("unread");
    let (_reader, writer) = nix::unistd::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(&writer, &[b'.'; 4096]).is_ok() {}
    while nix::unistd::write(&writer, b".").is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let fd = writer.as_raw_fd().to_string();
    fcntl(&writer, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let mut command = site.zklock();
    command.args(["-vv", "--session-timeout", "10m", "run", "--events", &fd, "a", "--"]);
    command.args(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]);
    let mut running = Running::with(command.stderr(writer.try_clone().unwrap()));
    assert_eq!(running.line(), "ready");
    let zk = zklock::Client::connect(site.server.hosts()).unwrap();
    let lock = DistributedLock::new(&zk, "/locks", "a");
    let holders = lock.contenders().unwrap();
    assert_eq!(lock.request_release().unwrap(), 1);
    assert!(lock.break_lock(&holders[0]).unwrap());
    assert_eq!(running.end().code, Some(123));
}

#[test]
fn the_guard_process_is_stopped_and_the_server_silent() {
    let site = Site::new("guard-stopped");
    let running = site.start(&[], "a", STUBBORN);
    kill(running.guard(), Signal::SIGSTOP).unwrap();
    site.server.pause().unwrap();
    let ended = running.end();
    assert_eq!(ended.code, Some(123), "{}", ended.err);
    assert!(ended.err.contains("LOCK LOST after "), "{}", ended.err);
    assert!(site.nothing_is_left());
    site.server.resume().unwrap();
    assert_eq!(site.run_judged("a", "true").code, Some(0));
}

#[test]
fn the_guard_process_is_stopped_and_the_session_expires() {
    let site = Site::new("guard-expired");
    let running = site.start(&[], "a", STUBBORN);
    kill(running.guard(), Signal::SIGSTOP).unwrap();
    site.server.expire(session_of_holder(&site).into()).unwrap();
    let ended = running.end();
    assert_eq!(ended.code, Some(123), "{}", ended.err);
    assert!(site.nothing_is_left());
}

/// The session of the process that holds the lock.
fn session_of_holder(site: &Site) -> SessionId {
    let zk = zklock::Client::connect(site.server.hosts()).unwrap();
    let all = DistributedLock::new(&zk, "/locks", "a").contenders().unwrap();
    all[0].session.unwrap()
}

#[test]
fn the_command_is_killed() {
    let site = Site::new("command-killed");
    let running = site.start(&[], "a", "sleep 1000");
    kill(running.command(), Signal::SIGKILL).unwrap();
    let ended = running.end();
    assert_eq!(ended.code, Some(137), "{}", ended.err);
    assert!(site.nothing_is_left());
    assert_eq!(site.run(["-n", "a", "true"]).code, Some(0));
}

#[test]
fn the_command_is_stopped_and_the_lock_stays() {
    let site = Site::new("command-stopped");
    let running = site.start(&[], "a", "sleep 0.2; echo done");
    kill(running.command(), Signal::SIGSTOP).unwrap();
    assert_eq!(site.run(["-w", "5", "a", "true"]).code, Some(124));
    kill(running.command(), Signal::SIGCONT).unwrap();
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "done\n"));
}

#[test]
fn a_stopped_command_is_ended_with_its_lock() {
    let site = Site::new("stopped-lost");
    let running = site.start(&[], "a", "sleep 1000");
    for process in children(running.command()) {
        kill(process, Signal::SIGSTOP).unwrap();
    }
    kill(running.command(), Signal::SIGSTOP).unwrap();
    site.server.pause().unwrap();
    assert_eq!(running.end().code, Some(123));
    assert!(site.nothing_is_left());
    site.server.resume().unwrap();
}

#[test]
fn the_server_is_silent() {
    let site = Site::new("silent");
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let running = site.start_ready(&["--grace", "300ms"], script);
    site.server.pause().unwrap();
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(123), "told\n"), "{}", ended.err);
    assert!(ended.err.contains("the lock is about to be LOST"), "{}", ended.err);
    assert!(ended.err.contains("TERM to sh (group "), "{}", ended.err);
    site.server.resume().unwrap();
}

#[test]
fn the_server_is_silent_and_the_command_does_not_listen() {
    let site = Site::new("silent-stubborn");
    for on_loss in ["term", "kill", "usr1"] {
        let running = site.start(&["--on-loss", on_loss], "a", STUBBORN);
        site.server.pause().unwrap();
        let ended = running.end();
        assert_eq!(ended.code, Some(123), "{on_loss}: {}", ended.err);
        assert!(site.nothing_is_left(), "{on_loss}");
        site.server.resume().unwrap();
    }
}

#[test]
fn the_server_is_gone_for_a_moment() {
    let site = Site::new("moment-gone");
    let fifo = site.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo ready; cat {}; echo done", fifo.display());
    let running = site.start_ready(&["--session-timeout", "60s"], &script);
    site.server.stop().unwrap();
    site.server.start_again().unwrap();
    fs::write(&fifo, "").unwrap();
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "done\n", ""));
}

/// Four commands, since the heartbeats of each are at another place of their interval. The gap that a pause leaves
/// among the answered heartbeats must not shorten the lease when the server has long been back.
#[test]
fn the_server_is_silent_for_a_third_of_the_session_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(20);
    let site = Site::new("third");
    let fifo = |number: u32| site.file(&format!("fifo{number}"));
    let start = |number: u32| {
        nix::unistd::mkfifo(&fifo(number), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let script = format!("echo ready; cat {}; echo done", fifo(number).display());
        let mut command = site.zklock();
        command.args(["--session-timeout", "20s", "run", &format!("lock{number}"), "sh", "-c"]);
        let mut running = Running::of(command.arg(script));
        assert_eq!(running.line(), "ready");
        // A quarter of the time between two heartbeats.
        thread::sleep(TIMEOUT / 36);
        running
    };
    let all = [0, 1, 2, 3].map(|number| (number, start(number)));
    site.server.pause().unwrap();
    thread::sleep(TIMEOUT * 31 / 100);
    site.server.resume().unwrap();
    thread::sleep(TIMEOUT * 6 / 10);
    for (number, running) in all {
        // Nobody reads it if the command has ended.
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK;
        drop(nix::fcntl::open(&fifo(number), flags, nix::sys::stat::Mode::empty()));
        let ended = running.end();
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "done\n", ""));
    }
}

#[test]
fn the_session_expires() {
    let site = Site::new("expired");
    let running = site.start(&[], "a", STUBBORN);
    site.server.expire(session_of_holder(&site).into()).unwrap();
    let ended = running.end();
    assert_eq!(ended.code, Some(123), "{}", ended.err);
    assert!(ended.err.contains("LOCK LOST after "), "{}", ended.err);
    assert!(site.nothing_is_left());
}

#[test]
fn a_warning_is_all_if_that_is_asked_for() {
    let site = Site::new("warn");
    let fifo = site.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("cat {}; echo done", fifo.display());
    let file = site.file("events");
    let options = ["--on-loss", "warn", "--events", file.to_str().unwrap()];
    let running = site.start(&options, "a", &script);
    site.server.expire(session_of_holder(&site).into()).unwrap();
    site.until_it_says("lost", &file);
    // Another one gets the lock, while the first still works.
    assert_eq!(site.run(["a", "true"]).code, Some(0));
    fs::write(&fifo, "").unwrap();
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(123), "done\n"));
    assert!(ended.err.contains("the command goes on (--on-loss warn)"), "{}", ended.err);
}

#[test]
fn a_loss_counts_though_the_command_ends_before_the_news() {
    let site = Site::new("late-news");
    let fifo = site.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo ready; cat {}", fifo.display());
    let running = site.start_ready(&["--on-loss", "warn"], &script);
    // It hears nothing from now on.
    running.signal(Signal::SIGSTOP);
    running.until_stopped();
    let zk = zklock::Client::connect(site.server.hosts()).unwrap();
    let lock = DistributedLock::new(&zk, "/locks", "a");
    assert!(lock.break_lock(&lock.contenders().unwrap()[0]).unwrap());
    fs::write(&fifo, "").unwrap();
    running.signal(Signal::SIGCONT);
    let ended = running.end();
    assert_eq!(ended.code, Some(123), "{}", ended.err);
    assert!(ended.err.contains("LOCK LOST"), "{}", ended.err);
}

#[test]
fn the_command_can_watch_a_descriptor() {
    let site = Site::new("lost-fd");
    // Reads until the end of the file, which is the loss.
    let watch = "echo ready; eval \"cat <&$ZKLOCK_LOST_FD\"; echo lost";
    let told = site.start_ready(&[], &format!("trap '' TERM; {watch}; sleep 1000"));
    site.server.pause().unwrap();
    let ended = told.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(123), "lost\n"), "{}", ended.err);
    site.server.resume().unwrap();
    // Also when it is not to be ended; and when the lock is lost without warning.
    let warned = ["--on-loss", "warn"];
    let only_warned = site.start_ready(&warned, watch);
    site.server.pause().unwrap();
    let ended = only_warned.end();
    assert_eq!(ended.out, "lost\n", "{}", ended.err);
    site.server.resume().unwrap();
    let deposed = site.start_ready(&warned, watch);
    site.server.expire(session_of_holder(&site).into()).unwrap();
    let ended = deposed.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(123), "lost\n"), "{}", ended.err);
}

#[test]
fn the_server_is_down_at_the_end() {
    let site = Site::new("down-at-end");
    let fifo = site.file("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("echo ready; cat {}; exit 6", fifo.display());
    let running = site.start_ready(&["--session-timeout", "10s"], &script);
    site.server.stop().unwrap();
    fs::write(&fifo, "").unwrap();
    // It was held to the end, and goes with the session.
    let ended = running.end();
    assert_eq!(ended.code, Some(6), "{}", ended.err);
    assert!(ended.err.contains("the release was not confirmed"), "{}", ended.err);
}
