//! A server, a folder, and zklock's processes.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use zklock_testing::ZooKeeper;

/// A server of the test's own, and a folder for files.
pub(crate) struct Site {
    pub(crate) server: ZooKeeper,
    folder: PathBuf,
}

impl Site {
    pub(crate) fn new(test: &str) -> Site {
        let server = ZooKeeper::builder().local().start().expect("a ZooKeeper server");
        let folder = env::temp_dir().join(format!("zklock-cli-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Site { server, folder }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// `sh -c script` under the file lock.
    pub(crate) fn judged(&self, script: &str) -> Vec<String> {
        let file = self.file("judge").display().to_string();
        ["flock", "-n", "-E", "99", &file, "sh", "-c", script].map(str::to_owned).to_vec()
    }

    /// Whether nothing that a judged command has started is left.
    pub(crate) fn nothing_is_left(&self) -> bool {
        let judge = self.judged("true");
        Command::new(&judge[0]).args(&judge[1..]).status().unwrap().success()
    }

    /// The command line up to the subcommand. A session of four seconds: faults are over soon.
    pub(crate) fn zklock(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zklock"));
        // The test may run under the command itself.
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("ZKLOCK_") {
                command.env_remove(name);
            }
        }
        command.args(["--hosts", self.server.hosts(), "--session-timeout", "4s"]);
        command
    }

    /// Runs `zklock run`, with these arguments, to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ended {
        let mut command = self.zklock();
        Ended::new(command.args(["run", "--grace", "200ms"]).args(arguments).output().unwrap())
    }

    /// Runs `zklock run LOCK -- sh -c SCRIPT` with the file lock.
    pub(crate) fn run_judged(&self, lock: &str, script: &str) -> Ended {
        self.run(
            [vec!["--grace".into(), "200ms".into(), lock.into(), "--".into()], self.judged(script)]
                .concat(),
        )
    }

    /// Waits until this event is in the file of events of a running process; then the file is empty.
    pub(crate) fn until_it_says(&self, event: &str, file: &Path) {
        // For a file that is not there yet, tail looks only once a second.
        fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        let script = "tail -n +1 -F \"$0\" 2>/dev/null | grep -m 1 \"\\\"event\\\":\\\"$1\\\"\" && : > \"$0\"";
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script]).arg(file).arg(event).stdout(Stdio::null());
        assert!(shell.status().unwrap().success());
    }

    /// Starts `zklock run OPTIONS a -- sh -c SCRIPT`, without the file lock, whose script prints `ready`.
    pub(crate) fn start_ready(&self, options: &[&str], script: &str) -> Running {
        let mut command = self.zklock();
        command.args(["run", "--grace", "200ms"]).args(options).args(["a", "--", "sh", "-c"]);
        let mut running = Running::of(command.arg(script));
        assert_eq!(running.line(), "ready");
        running
    }

    /// Starts one that has to wait for the lock, which its events say in the file.
    pub(crate) fn wait_for(&self, lock: &str, events: &Path) -> Running {
        let mut command = self.zklock();
        command.args(["run", "--grace", "200ms", "--events"]).arg(events);
        let waiter = Running::of(command.args([lock, "echo", "ran"]));
        self.until_it_says("waiting", events);
        waiter
    }

    /// Starts `zklock run OPTIONS LOCK -- sh -c SCRIPT` with the file lock, whose script prints `started`.
    pub(crate) fn start(&self, options: &[&str], lock: &str, script: &str) -> Running {
        let mut command = self.zklock();
        command.args(["run", "--grace", "200ms"]).args(options).args([lock, "--"]);
        let mut running =
            Running::of(command.args(self.judged(&format!("echo started; {script}"))));
        assert_eq!(running.line(), "started");
        running
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// How a process has ended, and what it has printed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn new(output: Output) -> Ended {
        Ended {
            code: output.status.code(),
            signal: output.status.signal(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A process of zklock whose command is at work.
pub(crate) struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Drop for Running {
    /// Then the guard process ends the rest.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    pub(crate) fn of(command: &mut Command) -> Running {
        Running::with(command.stderr(Stdio::piped()))
    }

    /// With its own standard error.
    pub(crate) fn with(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running { child, out }
    }

    /// The next line on standard output; empty at its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn process(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    /// The guard process: the only child of zklock.
    pub(crate) fn guard(&self) -> Pid {
        let all = children(self.process());
        assert_eq!(all.len(), 1, "children of zklock: {all:?}");
        all[0]
    }

    /// The first process of the command.
    pub(crate) fn command(&self) -> Pid {
        children(self.guard())[0]
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.process(), signal).unwrap();
    }

    /// Waits until zklock is stopped.
    pub(crate) fn until_stopped(&self) {
        let status = waitpid(self.process(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    }

    /// Waits for its end. The pipes are closed when nothing of it is left, so this also waits for that.
    pub(crate) fn end(mut self) -> Ended {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut err).unwrap();
        }
        let status = self.child.wait().unwrap();
        Ended { code: status.code(), signal: status.signal(), out, err }
    }
}

/// Waits until a process of somebody else has ended with all its threads, whether or not its parent knows it.
pub(crate) fn until_ended(process: Pid) {
    let begun = Instant::now();
    let state = || fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let threads = || fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    while threads() > 1 || !(state().is_empty() || state().contains(") Z ")) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{process} goes on: {}", state());
        thread::yield_now();
    }
}

/// The children of a process.
pub(crate) fn children(of: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let text: String = texts.collect();
    text.split_whitespace().map(|one| Pid::from_raw(one.parse().unwrap())).collect()
}
