//! In a terminal: job control, as a shell's user has it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::openpty;

use super::support::Site;

/// What Ctrl-C and Ctrl-Z send.
const CTRL_C: &str = "\u{3}";
const CTRL_Z: &str = "\u{1a}";

/// A shell with a terminal of its own.
struct Shell {
    terminal: File,
    shown: String,
    shell: Child,
}

impl Shell {
    fn new() -> Shell {
        let mut shell = Shell::of(&["bash", "--norc", "--noprofile", "-i"]);
        shell.until("ready$ ");
        // Then what is typed is not taken for what is printed.
        shell.types("stty -echo\n");
        shell.until("ready$ ");
        shell
    }

    /// Another program as the first one of a terminal's session.
    fn of(program: &[&str]) -> Shell {
        let pair = openpty(None, None).unwrap();
        let slave = || Stdio::from(pair.slave.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.arg("--ctty").args(program).env("PS1", "ready$ ");
        let shell = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
        Shell { terminal: pair.master.into(), shown: String::new(), shell }
    }

    fn types(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until this is shown; returns what was shown before it.
    fn until(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.shown.find(text) {
                let before = self.shown[..at].to_owned();
                self.shown.drain(..at + text.len());
                return before;
            }
            let start = &self.shown[..self.shown.len().min(2000)];
            assert!(self.shown.len() < 100_000, "{text:?} is not in what was shown: {start:?}…");
            let mut asked = [PollFd::new(self.terminal.as_fd(), PollFlags::POLLIN)];
            let found = poll(&mut asked, PollTimeout::from(60_000_u16)).unwrap();
            assert_eq!(found, 1, "{text:?} was not shown within a minute, but {:?}", self.shown);
            let mut bytes = [0; 4096];
            let count = self.terminal.read(&mut bytes).unwrap();
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }
}

/// What a person does with a job whose script is `echo ask; read answer; echo got-$answer`.
impl Shell {
    fn stops_the_job(&mut self) {
        self.types(CTRL_Z);
        self.until("Stopped");
    }

    fn takes_back_the_job(&mut self) {
        self.types("fg; echo fg=$?.\n");
        // The shell shows what it lets go on.
        self.until("run --grace");
    }

    fn answers(&mut self) {
        self.types("yes\n");
        self.until("got-yes");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn run(site: &Site, timeout: &str, script: &str) -> String {
    let zklock = env!("CARGO_BIN_EXE_zklock");
    let hosts = site.server.hosts();
    let judge = site.file("judge");
    format!(
        "{zklock} --hosts {hosts} --session-timeout {timeout} run --grace 200ms a -- \
         flock -n -E 99 {} sh -c '{script}'; echo exit=$?.\n",
        judge.display()
    )
}

#[test]
fn the_command_reads_from_the_terminal_and_ctrl_c_ends_it() {
    let site = Site::new("terminal");
    let mut shell = Shell::new();
    shell.types(&run(&site, "10s", "echo ask; read answer; echo got-$answer; sleep 1000"));
    shell.until("ask");
    shell.answers();
    shell.types(CTRL_C);
    // The shell gives up the rest of the line, as for any program that Ctrl-C ends.
    shell.until("ready$ ");
    shell.types("echo exit=$?.\n");
    shell.until("exit=130.");
    // The terminal is the shell's again.
    shell.types("echo back\n");
    shell.until("back");
    assert!(site.nothing_is_left());
}

#[test]
fn ctrl_z_stops_the_job_and_fg_lets_it_go_on() {
    let site = Site::new("ctrl-z");
    let mut shell = Shell::new();
    let line = run(&site, "20s", "echo ask; read answer; echo got-$answer");
    shell.types(&line);
    shell.until("ask");
    shell.stops_the_job();
    // A stopped job still holds the lock, and does not read.
    assert_eq!(site.run(["-n", "a", "true"]).code, Some(124));
    shell.types("echo still-here\n");
    shell.until("still-here");
    shell.takes_back_the_job();
    shell.answers();
    shell.until("fg=0.");
}

#[test]
fn a_job_that_is_stopped_for_too_long_ends_with_its_lock() {
    let site = Site::new("ctrl-z-lost");
    let mut shell = Shell::new();
    shell.types(&run(&site, "4s", "echo ask; read answer; echo got-$answer"));
    shell.until("ask");
    shell.stops_the_job();
    let next = site.run_judged("a", "echo mine");
    assert_eq!((next.code, next.out.as_str()), (Some(0), "mine\n"), "{}", next.err);
    shell.types("fg; echo fg=$?.\n");
    let shown = shell.until("fg=123.");
    assert!(shown.contains("LOCK LOST"), "{shown}");
    assert!(!shown.contains("got-\r"), "{shown}");
}

#[test]
fn a_job_in_the_background_keeps_off_the_terminal() {
    let site = Site::new("background");
    let mut shell = Shell::new();
    let line = run(&site, "10s", "echo works; read answer < /dev/tty; echo got-$answer");
    // The shell says at once what becomes of its jobs.
    shell.types("set -b\n");
    shell.types(&line.replace("; echo exit", " & : "));
    shell.until("works");
    // It reads from a terminal that it does not have.
    shell.until("Stopped");
    shell.takes_back_the_job();
    shell.answers();
    shell.until("fg=0.");
}

#[test]
fn a_command_whose_input_is_a_pipe_gets_the_terminal_when_it_asks_for_it() {
    let site = Site::new("asks-late");
    let mut shell = Shell::new();
    let line = run(&site, "10s", "echo ask; read answer < /dev/tty; echo got-$answer");
    shell.types(&format!("echo piped | {line}"));
    shell.until("ask");
    shell.answers();
    shell.until("exit=0.");
}

#[test]
fn ctrl_z_stops_a_pipeline_as_a_whole() {
    let site = Site::new("pipeline");
    let mut shell = Shell::new();
    let line = run(&site, "20s", "echo ask; read go; echo more; read answer; echo got-$answer");
    shell.types(&line.replace("; echo exit", " | cat; echo exit"));
    shell.until("ask");
    // Now it has got the terminal.
    shell.types("on\n");
    shell.until("more");
    shell.stops_the_job();
    shell.until("ready$ ");
    shell.takes_back_the_job();
    shell.answers();
    shell.until("fg=0.");
}

/// As `ssh -t host zklock` does: there is no shell that could let it go on.
#[test]
fn without_a_shell_ctrl_z_does_nothing() {
    let site = Site::new("leader");
    let line = run(&site, "20s", "echo ask; read answer; echo got-$answer");
    let line = line.replace("; echo exit=$?.", "");
    let mut shell = Shell::of(&["sh", "-c", &format!("exec {line}")]);
    shell.until("ask");
    shell.types(CTRL_Z);
    shell.answers();
}

#[test]
fn a_job_in_the_background_does_not_take_the_terminal_when_it_gets_the_lock() {
    let site = Site::new("late-background");
    let holder = site.start(&[], "a", "sleep 1000");
    let mut shell = Shell::new();
    shell.types(&run(&site, "20s", "echo works; sleep 1000"));
    shell.until("; waiting");
    shell.stops_the_job();
    shell.types("bg\n");
    shell.until("run --grace");
    shell.types("cat\n");
    shell.types("one\n");
    shell.until("one\r\n");
    drop(holder);
    shell.until("works");
    shell.types("two\n");
    shell.until("two\r\n");
}

#[test]
fn a_command_that_cannot_be_run_gives_the_terminal_back() {
    let site = Site::new("not-run");
    let mut shell = Shell::new();
    shell.types(&run(&site, "10s", "").replace("flock -n", "/no/such/program"));
    shell.until("exit=127.");
    shell.types("echo back\n");
    shell.until("back");
}

#[test]
fn top_shows_the_locks_until_q() {
    let site = Site::new("top");
    let holder = site.start(&["--label", "shown"], "a", "sleep 1000");
    let mut shell = Shell::new();
    let zklock = env!("CARGO_BIN_EXE_zklock");
    let hosts = site.server.hosts();
    shell.types(&format!("{zklock} --hosts {hosts} top --every 100ms; echo exit=$?.\n"));
    shell.until("/locks: 1 locks, 0 contenders wait; by waiting");
    shell.until("\"shown\"");
    shell.types("n");
    shell.until("by name");
    drop(holder);
    let next = site.start(&[], "b", "sleep 1000");
    shell.until("/locks/b");
    shell.types("q");
    shell.until("exit=0.");
    // The terminal is as it was.
    shell.types("echo back\n");
    shell.until("back");
    // So it is after a signal.
    shell.types(&format!(
        "sh -c 'echo pid=$$.; exec {zklock} --hosts {hosts} top'; echo exit=$?.\n"
    ));
    shell.until("pid=");
    let number = shell.until(".");
    shell.until("by waiting");
    let process = nix::unistd::Pid::from_raw(number.parse().unwrap());
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM).unwrap();
    shell.until("exit=143.");
    drop(next);
}
